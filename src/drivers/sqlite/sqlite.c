/* SPDX-License-Identifier: MIT */
/*
 * The SQLite driver: an embedded store in one file, for all processes of one machine.  This file opens stores and
 * connections.
 *
 * SQLite keeps the rows; through the side file (side.h) processes queue, notify each other and remember what was
 * granted.  See sqlite_impl.h for the other files.
 *
 * Writers of dibs queue in the side file before they begin, so SQLite's own lock is busy only when another program
 * (the sqlite3 shell, a backup) has it: then the busy handler sleeps until the deadline of the call.  The rows of
 * buckets are kept between transactions as long as SQLite's data version shows that no other connection wrote.
 */
#include "drivers/sqlite/path.h"
#include "drivers/sqlite/sqlite_impl.h"
#include "sql/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sqlite_link link_t;

/* After a burst the log's file is cut to this size when the log starts again. */
#define LOG_MOST "67108864"

/* ---- Errors ---- */

sql_rc dibs__sqlite_broke(link_t *l, int code) {
  l->failed = code == SQLITE_OK ? SQLITE_INTERNAL : code;
  snprintf(l->message, sizeof l->message, "%s", l->db ? sqlite3_errmsg(l->db) : sqlite3_errstr(code));
  return DIBS__SQL_FAILED;
}

sql_rc dibs__sqlite_wrong(link_t *l) {
  l->failed = SQLITE_CORRUPT;
  snprintf(l->message, sizeof l->message, "its rows contradict each other");
  return DIBS__SQL_FAILED;
}

dibs__status dibs__sqlite_excuse_code(const char *path, int code, const char *message, const char *doing,
                                      struct dibs__result *result) {
  switch (code & 0xff) {
  case SQLITE_NOMEM:
    dibs__set_message(result, "out of memory: can't %s %s", doing, path);
    return DIBS_NO_MEMORY;
  case SQLITE_FULL:
    dibs__set_message(result, "can't %s %s: the disk is full (%s); free some space and try again", doing, path,
                      message);
    return DIBS_UNAVAILABLE;
  case SQLITE_BUSY:
  case SQLITE_LOCKED:
    dibs__set_message(result, "can't %s %s: another program keeps the database locked (%s)", doing, path, message);
    return DIBS_UNAVAILABLE;
  case SQLITE_READONLY:
  case SQLITE_PERM:
  case SQLITE_AUTH:
    dibs__set_message(result, "can't %s %s: no permission to write there (%s)", doing, path, message);
    return DIBS_DENIED;
  case SQLITE_CORRUPT:
  case SQLITE_NOTADB:
  case SQLITE_FORMAT:
    dibs__set_message(result,
                      "can't %s %s: the file is damaged (%s); restore it, or move it away to start with an empty store",
                      doing, path, message);
    return DIBS_CORRUPT;
  default:
    dibs__set_message(result, "can't %s %s: %s (SQLite's code %d)", doing, path, message, code);
    return DIBS_UNAVAILABLE;
  }
}

dibs__status dibs__sqlite_excuse(const link_t *l, const char *doing, struct dibs__result *result) {
  return dibs__sqlite_excuse_code(l->store->path, l->failed, l->message, doing, result);
}

/* ---- Statements ---- */

/* A text of every engine as SQLite wants it: there $1 would be a name, not a number.  malloc'd. */
static char *own_text(unsigned text) {
  static const struct dibs__sql_word words[] = {
      {"seen", ""}, {"by_slot", " INDEXED BY dibs_holder_slot"}, {NULL, NULL}};
  struct dibs__sql_names names = {.engine = &dibs__sqlite_engine, .prefix = "dibs_", .words = words};
  char *own = dibs__sql_composed(&names, dibs__rows_texts[text]);
  for (char *at = own ? strchr(own, '$') : NULL; at; at = strchr(at, '$')) *at = '?';
  return own;
}

static void prepare_kept(link_t *l, unsigned text) {
  char *own = text < DIBS__ROWS_TEXTS ? own_text(text) : NULL;
  /* cppcheck-suppress arrayIndexOutOfBoundsCond ; it takes the first own text for the last one */
  const char *sql = text < DIBS__ROWS_TEXTS ? own : dibs__sqlite_texts[text];
  int code =
      sql ? sqlite3_prepare_v3(l->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &l->statements[text], NULL) : SQLITE_NOMEM;
  free(own);
  if (code != SQLITE_OK) dibs__sqlite_broke(l, code);
}

sqlite3_stmt *dibs__sqlite_ready(link_t *l, unsigned text) {
  dibs__sqlite_let_go(l);
  if (!l->statements[text]) prepare_kept(l, text);
  return l->statements[text];
}

sql_rc dibs__sqlite_row(link_t *l, sqlite3_stmt *st, bool *row) {
  *row = false;
  if (!st) return DIBS__SQL_FAILED;
  int code = sqlite3_step(st);
  *row = code == SQLITE_ROW;
  if (*row) return DIBS__SQL_OK;
  sql_rc end = code == SQLITE_DONE ? DIBS__SQL_OK : dibs__sqlite_broke(l, code);
  sqlite3_reset(st);
  return end;
}

sql_rc dibs__sqlite_do(link_t *l, sqlite3_stmt *st) {
  if (!st) return DIBS__SQL_FAILED;
  int code;
  while ((code = sqlite3_step(st)) == SQLITE_ROW) continue;
  sql_rc end = code == SQLITE_DONE ? DIBS__SQL_OK : dibs__sqlite_broke(l, code);
  sqlite3_reset(st);
  return end;
}

sql_rc dibs__sqlite_plain(link_t *l, unsigned text) {
  return dibs__sqlite_do(l, dibs__sqlite_ready(l, text));
}

sql_rc dibs__sqlite_message(link_t *l, const char *text) {
  int code = sqlite3_exec(l->db, text, NULL, NULL, NULL);
  return code == SQLITE_OK ? DIBS__SQL_OK : dibs__sqlite_broke(l, code);
}

/* ---- Transactions ---- */

int64_t dibs__sqlite_clock(const struct dibs__lite *store) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + atomic_load_explicit(&store->skew_ms, memory_order_relaxed);
}

static void forget_buckets(link_t *l) {
  memset(l->known, 0, sizeof l->known);
  memset(l->changed, 0, sizeof l->changed);
}

sql_rc dibs__sqlite_begin(link_t *l) {
  unsigned version = 0;
  sql_rc st = dibs__sqlite_plain(l, DIBS__SQLITE_BEGIN);
  if (st != DIBS__SQL_OK) return st;
  int code = sqlite3_file_control(l->db, "main", SQLITE_FCNTL_DATA_VERSION, &version);
  if (code != SQLITE_OK || !l->versioned || version != l->version) forget_buckets(l);
  l->versioned = code == SQLITE_OK;
  l->version = version;
  l->hint_count = 0;
  return DIBS__SQL_OK;
}

/* Prepared at opening: the end of a transaction must not need memory. */
void dibs__sqlite_rollback(link_t *l) {
  dibs__sqlite_let_go(l);
  sqlite3_reset(l->statements[DIBS__ROWS_RECORD]);
  if (!sqlite3_get_autocommit(l->db)) {
    sqlite3_step(l->statements[DIBS__SQLITE_ROLLBACK]);
    sqlite3_reset(l->statements[DIBS__SQLITE_ROLLBACK]);
  }
  forget_buckets(l);
  l->hint_count = 0;
}

bool dibs__sqlite_stuck(const link_t *l) {
  return !sqlite3_get_autocommit(l->db);
}

static sql_rc put_buckets(link_t *l) {
  for (size_t half = 0; half < 2; half++) {
    while (l->changed[half]) {
      size_t bucket = half * 64 + (size_t)__builtin_ctzll(l->changed[half]);
      const struct dibs__sql_bucket *row = &l->buckets[bucket];
      sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_BUCKET_SET);
      if (!st) return DIBS__SQL_FAILED;
      sqlite3_bind_int64(st, 1, (sqlite3_int64)bucket);
      sqlite3_bind_int64(st, 2, row->mandate.epoch);
      sqlite3_bind_int64(st, 3, (sqlite3_int64)row->seq);
      sql_rc end = dibs__sqlite_do(l, st);
      if (end != DIBS__SQL_OK) return end;
      l->changed[half] &= l->changed[half] - 1;
    }
  }
  return DIBS__SQL_OK;
}

sql_rc dibs__sqlite_commit(link_t *l, bool *unsure) {
  *unsure = false;
  sqlite3_reset(l->statements[DIBS__ROWS_RECORD]); /* it may be at a row, and would keep the snapshot */
  sql_rc st = put_buckets(l);
  if (st != DIBS__SQL_OK) return st;
  st = dibs__sqlite_plain(l, DIBS__SQLITE_COMMIT);
  if (st == DIBS__SQL_OK) return st;
  /* No process sees it now.  But the failed step may have followed the write of the last frame (syncing it to disk, the
   * shared index), and then a recovery would find it. */
  *unsure = l->failed != SQLITE_FULL && l->failed != SQLITE_IOERR_WRITE && l->failed != SQLITE_BUSY;
  return st;
}

sql_rc dibs__sqlite_full(link_t *l, bool full) {
  return dibs__sqlite_message(l, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
}

/* ---- Opening ---- */

static int on_busy(void *arg, int times) {
  link_t *l = arg;
  (void)times;
  if (!dibs__tick_before(dibs__tick_now(), l->by)) return 0;
  dibs__nap_ms(1);
  return 1;
}

static int wal_grew(void *arg, sqlite3 *db, const char *schema, int pages) {
  link_t *l = arg;
  (void)db, (void)schema;
  atomic_store_explicit(&l->store->log_pages, pages, memory_order_relaxed);
  if (l->store->side) atomic_store(&l->store->copies, dibs__side_copies(l->store->side));
  return SQLITE_OK;
}

static int set_up_connection(link_t *l) {
  int code = sqlite3_extended_result_codes(l->db, 1);
  if (code == SQLITE_OK) code = sqlite3_busy_handler(l->db, on_busy, l);
  if (code == SQLITE_OK) code = sqlite3_wal_autocheckpoint(l->db, 0);
  sqlite3_wal_hook(l->db, wal_grew, l); /* replaces the automatic checkpoint, so after it */
  if (code == SQLITE_OK) code = sqlite3_db_config(l->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
  /* A quoted name without a column is an error, not a text. */
  if (code == SQLITE_OK) code = sqlite3_db_config(l->db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
  if (code == SQLITE_OK) code = sqlite3_db_config(l->db, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
  /* Ids in deleted rows are of leases that are over: wiping them would only cost more writes. */
  if (code == SQLITE_OK)
    code = sqlite3_exec(
        l->db,
        "PRAGMA synchronous=NORMAL;PRAGMA secure_delete=OFF;PRAGMA foreign_keys=ON;PRAGMA journal_size_limit=" LOG_MOST,
        NULL, NULL, NULL);
  return code;
}

dibs__status dibs__sqlite_link_open(struct dibs__lite *store, const char *path, dibs__tick by, link_t **link,
                                    struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  *link = NULL;
  link_t *l = calloc(1, sizeof *l);
  if (!l) {
    dibs__set_message(result, "out of memory for opening %s", path);
    return DIBS_NO_MEMORY;
  }
  l->store = store;
  l->by = by;
  int code =
      sqlite3_open_v2(path, &l->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
  if (code == SQLITE_OK && sqlite3_db_readonly(l->db, "main") == 1) code = SQLITE_READONLY;
  if (code == SQLITE_OK) code = set_up_connection(l);
  if (code == SQLITE_OK && !dibs__sqlite_ready(l, DIBS__SQLITE_ROLLBACK)) code = l->failed;
  if (code != SQLITE_OK) {
    dibs__sqlite_broke(l, code);
    status =
        dibs__sqlite_excuse_code(path, code, code == SQLITE_READONLY ? "it is read-only" : l->message, "open", result);
    dibs__sqlite_link_close(l);
    return status;
  }
  *link = l;
  return DIBS_OK;
}

void dibs__sqlite_link_close(link_t *l) {
  if (!l) return;
  for (size_t i = 0; i < DIBS__SQLITE_TEXTS; i++) sqlite3_finalize(l->statements[i]);
  dibs__sqlite_wire_close(l->wire);
  if (!l->inside) sqlite3_close(l->db);
  free(l);
}

/* ---- The store ---- */

typedef struct dibs__lite lite;

static lite *lite_of(struct dibs__dstore *store) {
  return (lite *)store;
}

static void free_store(lite *store) {
  if (!store) return;
  dibs__sqlite_link_close(store->spare);
  dibs__sqlite_link_close(store->tidier);
  dibs__side_close(store->side);
  free(store->path);
  free(store);
}

/* Ours by its header, but without a log.  *was is EMPTY if an empty file was being filled when its process was killed:
 * SQLite has undone that by now. */
static dibs__status open_plain(lite *store, enum dibs__sqlite_kind *was, struct dibs__result *result) {
  int application = 0;
  bool row;
  sqlite3_stmt *st = dibs__sqlite_ready(store->spare, DIBS__SQLITE_APPLICATION_ID);
  enum dibs__sql_rc end = dibs__sqlite_row(store->spare, st, &row);
  if (row) application = sqlite3_column_int(st, 0);
  sqlite3_reset(st);
  if (row && application == 0) {
    dibs__sqlite_link_close(store->spare);
    store->spare = NULL;
    *was = DIBS__SQLITE_EMPTY;
    return DIBS_OK;
  }
  if (end == DIBS__SQL_OK) end = dibs__sqlite_message(store->spare, "PRAGMA journal_mode=WAL");
  return end == DIBS__SQL_OK ? DIBS_OK : dibs__sqlite_excuse(store->spare, "open", result);
}

/* Under the gate: makes the existing file ours, whole and open. */
static dibs__status open_database(lite *store, enum dibs__sqlite_kind *was, uint32_t mode, uint32_t epoch,
                                  dibs__tick by, struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  if (*was == DIBS__SQLITE_PLAIN) {
    status = dibs__sqlite_link_open(store, store->path, by, &store->spare, result);
    if (status == DIBS_OK) status = open_plain(store, was, result);
  }
  if (status == DIBS_OK && (*was == DIBS__SQLITE_ABSENT || *was == DIBS__SQLITE_EMPTY))
    status = dibs__sqlite_make(store, *was, mode, epoch, by, result);
  if (status != DIBS_OK) return status;
  if (!dibs__sqlite_stat(store->path, &store->device, &store->inode)) {
    dibs__set_message(result, "%s vanished while it was opened", store->path);
    return DIBS_UNAVAILABLE;
  }
  return store->spare ? DIBS_OK : dibs__sqlite_link_open(store, store->path, by, &store->spare, result);
}

static dibs__status open_incarnation(lite *store, bool made, struct dibs__side_memory *memory,
                                     struct dibs__result *result) {
  dibs__status status = dibs__side_match_file(store->side, store->path, memory, result);
  if (status != DIBS_OK) return status;
  if (dibs__sqlite_settle_incarnation(store->spare, made, memory) == DIBS__SQL_OK) return DIBS_OK;
  status = dibs__sqlite_excuse(store->spare, "open", result);
  dibs__sqlite_rollback(store->spare);
  return status;
}

static dibs__status open_under_gate(lite *store, enum dibs__sqlite_kind was, uint32_t mode,
                                    struct dibs__side_memory *memory, dibs__tick by, struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  bool logged = dibs__sqlite_has_log(store->path);
  /* No process turns a dibs database into something else; any other file may have changed until we got the gate. */
  if (was != DIBS__SQLITE_OURS) status = dibs__sqlite_look(store->path, &was, result);
  if (status == DIBS_OK) status = open_database(store, &was, mode, memory->epoch + 1, by, result);
  bool made = was == DIBS__SQLITE_ABSENT || was == DIBS__SQLITE_EMPTY;
  if (status == DIBS_OK && !made && dibs__sqlite_migrate(store->spare) != DIBS__SQL_OK)
    status = dibs__sqlite_excuse(store->spare, "migrate", result);
  if (status == DIBS_OK) status = open_incarnation(store, made, memory, result);
  if (status == DIBS_OK) return status;
  /* Leaves nothing behind.  A log that was not there before comes from our check alone: every live process has one. */
  dibs__sqlite_link_close(store->spare);
  store->spare = NULL;
  if (!logged) dibs__sqlite_remove(store->path, was == DIBS__SQLITE_ABSENT);
  return status;
}

static dibs__status read_sync(const struct dibs__uri *uri, bool *sync, struct dibs__result *result) {
  const char *value = dibs__uri_param(uri, "write_sync");
  *sync = !value || strcmp(value, "on") == 0;
  if (*sync || strcmp(value, "off") == 0) return DIBS_OK;
  dibs__set_message(result, "write_sync=%.20s is not on or off", value);
  return DIBS_INVALID;
}

static dibs__status open_location(lite *store, const struct dibs__uri *uri, dibs__tick by,
                                  struct dibs__result *result) {
  static const char *const known[] = {"mode", "fs", "write_sync", NULL};
  enum dibs__sqlite_kind kind;
  struct dibs__side_memory memory;
  struct dibs__location location;
  dibs__status status = dibs__uri_only(uri, NULL, known, result);
  if (status == DIBS_OK) status = read_sync(uri, &store->write_sync, result);
  if (status != DIBS_OK) return status;
  status = dibs__location_prepare(uri, &location, result);
  if (status != DIBS_OK) return status;
  store->path = location.path;
  location.path = NULL;
  uint32_t mode = location.file_mode;
  dibs__location_free(&location);
  /* Before anything is written. */
  status = dibs__sqlite_look(store->path, &kind, result);
  if (status == DIBS_OK) status = dibs__side_open(store->path, mode, by, &store->side, &memory, result);
  if (status == DIBS_OK) status = open_under_gate(store, kind, mode, &memory, by, result);
  /* Otherwise the gate is kept until the side file is closed, which removes what this open made. */
  if (status == DIBS_OK) dibs__side_gate_leave(store->side);
  return status;
}

static dibs__status lite_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                              dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner, (void)count;
  *out = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  lite *store = calloc(1, sizeof *store);
  if (!store) {
    dibs__set_message(result, "out of memory for opening %s", uri->shown);
    return DIBS_NO_MEMORY;
  }
  store->base.driver = &dibs__sqlite_driver;
  store->opened = (struct dibs__sql_opened){uri->as_tier, uri->as_anchor};
  store->swept_ms = dibs__sqlite_clock(store);
  dibs__status status = open_location(store, uri, by, result);
  if (status != DIBS_OK) {
    free_store(store);
    return status;
  }
  result->now.ms = dibs__sqlite_clock(store);
  *out = &store->base;
  return DIBS_OK;
}

static void lite_close(struct dibs__dstore *store) {
  if (!store) return;
  dibs__sqlite_leave(lite_of(store));
  dibs__sqlite_checkpoint(lite_of(store));
  dibs__sqlite_checkpoint_last(lite_of(store));
  free_store(lite_of(store));
}

/* ---- Sessions ---- */

static void lite_disconnect(struct dibs__session *session) {
  struct dibs__sqlite_session *s = (struct dibs__sqlite_session *)session;
  if (!s) return;
  lite *store = lite_of(s->base.store);
  /* A link without errors is kept for the next session, and for close. */
  if (s->link && !s->link->failed && !s->link->inside && !store->spare)
    store->spare = s->link;
  else
    dibs__sqlite_link_close(s->link);
  free(s);
}

static void identify(lite *store, struct dibs__sqlite_link *link, struct dibs__identity *identity) {
  *identity = (struct dibs__identity){
      .mandate = dibs__sql_hint(store->opened, &link->buckets[0]),
      .caps = DIBS__CAP_BRIEF | DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
              DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_BLOCKS | DIBS__CAP_BOOT_INCARNATION,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_STOCK |
                  1u << DIBS__FAM_ONCE | 1u << DIBS__FAM_REPORT | 1u << DIBS__FAM_RUN | 1u << DIBS__FAM_TASK |
                  1u << DIBS__FAM_COUNTER | 1u << DIBS__FAM_ENGINE,
      .max_batch = DIBS__SQLITE_BATCH,
      .max_sessions = 1,
      .session = dibs__side_session(store->side)};
}

static dibs__status lite_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__result *result) {
  lite *store = lite_of(base);
  struct dibs__sql_bucket *bucket;
  dibs__status status = DIBS_OK;
  *session = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__sqlite_session *s = calloc(1, sizeof *s);
  if (!s) {
    dibs__set_message(result, "out of memory for a session of %s", store->path);
    return DIBS_NO_MEMORY;
  }
  s->base.store = base;
  s->link = store->spare;
  store->spare = NULL;
  if (!s->link) status = dibs__sqlite_link_open(store, store->path, by, &s->link, result);
  if (status == DIBS_OK) {
    s->link->by = by;
    if (dibs__sqlite_bucket_get(s->link, 0, &bucket) == DIBS__SQL_FAILED)
      status = dibs__sqlite_excuse(s->link, "read", result);
  }
  if (status != DIBS_OK) {
    lite_disconnect(&s->base);
    return status;
  }
  identify(store, s->link, identity);
  result->now.ms = dibs__sqlite_clock(store);
  *session = &s->base;
  return DIBS_OK;
}

/* ---- Events ---- */

static dibs__status lite_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by) {
  lite *store = lite_of(base);
  bool all = false;
  *count = 0;
  if (cap == 0) return DIBS_OK;
  /* One element is kept for "check everything". */
  *count = dibs__side_take(store->side, events, cap > 1 ? cap - 1 : cap, &all);
  if (!*count && !all) {
    dibs__side_wait(store->side, by);
    *count = dibs__side_take(store->side, events, cap > 1 ? cap - 1 : cap, &all);
  }
  if (all && *count == cap) *count = 0; /* it covers more than one hint does */
  if (all) events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  return DIBS_OK;
}

static void lite_wake(struct dibs__dstore *store) {
  dibs__side_wake(lite_of(store)->side);
}

/* ---- For tests ---- */

void dibs__sqlite_skew(struct dibs__dstore *store, int64_t ms) {
  atomic_fetch_add(&lite_of(store)->skew_ms, ms);
  dibs__side_wake(lite_of(store)->side);
}

dibs__status dibs__sqlite_use_up(struct dibs__session *session, uint16_t bucket, uint32_t left, dibs__tick by,
                                 struct dibs__result *result) {
  struct dibs__sqlite_link *l = ((struct dibs__sqlite_session *)session)->link;
  struct dibs__sql_bucket *row;
  bool unsure;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  l->by = by;
  if (!dibs__side_write_begin(l->store->side, by)) return DIBS_UNAVAILABLE;
  enum dibs__sql_rc end = dibs__sqlite_begin(l);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_bucket_get(l, bucket, &row);
  if (end == DIBS__SQL_OK) {
    row->seq = DIBS__SEQ_MAX - left;
    end = dibs__sqlite_bucket_put(l, bucket);
  }
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  dibs__side_write_end(l->store->side);
  return end == DIBS__SQL_OK ? DIBS_OK : dibs__sqlite_excuse(l, "write to", result);
}

/* ---- The driver ---- */

static const char *const schemes[] = {"sqlite", NULL};

const struct dibs__driver dibs__sqlite_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "sqlite",
    .schemes = schemes,
    .open = lite_open,
    .close = lite_close,
    .connect = lite_connect,
    .disconnect = lite_disconnect,
    .attach = dibs__sqlite_attach,
    .transactor_open = dibs__sqlite_transactor_open,
    .transact = dibs__sqlite_transact,
    .transactor_close = dibs__sqlite_transactor_close,
    .run = dibs__sqlite_run,
    .events = lite_events,
    .wake = lite_wake,
    .list = dibs__sqlite_list,
    .tidy = dibs__sqlite_tidy,
};
