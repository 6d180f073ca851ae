/* SPDX-License-Identifier: MIT */
/*
 * The SQLite driver: an embedded store in one file, for all processes of one machine.
 *
 * SQLite keeps the rows; the side file (sqlite_side.h) is where processes queue, wake each other and remember what was
 * granted.  See sqlite_parts.h for what is where.
 */
#include "drivers/sqlite_parts.h"
#include "drivers/sqlite_place.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__lite lite;

static lite *lite_of(struct dibs__dstore *store) {
  return (lite *)store;
}

/* ---- Opening ---- */

static void free_store(lite *store) {
  if (!store) return;
  dibs__lite_link_close(store->spare);
  dibs__lite_link_close(store->tidier);
  dibs__side_close(store->side);
  free(store->path);
  free(store);
}

/* Ours by its header, but without a log.  *was is EMPTY if it turns out that an empty file was being filled when its
 * filler was killed: SQLite has undone that by now. */
static dibs__status open_plain(lite *store, enum dibs__lite_kind *was, struct dibs__said *said) {
  int application = 0;
  bool row;
  sqlite3_stmt *st = dibs__lite_ready(store->spare, DIBS__LITE_APPLICATION_ID);
  enum dibs__sql_step end = dibs__lite_row(store->spare, st, &row);
  if (row) application = sqlite3_column_int(st, 0);
  sqlite3_reset(st);
  if (row && application == 0) {
    dibs__lite_link_close(store->spare);
    store->spare = NULL;
    *was = DIBS__LITE_EMPTY;
    return DIBS_OK;
  }
  if (end == DIBS__SQL_FINE) end = dibs__lite_say(store->spare, "PRAGMA journal_mode=WAL");
  return end == DIBS__SQL_FINE ? DIBS_OK : dibs__lite_excuse(store->spare, "open", said);
}

/* Under the gate: whatever is there becomes ours, whole and open. */
static dibs__status open_database(lite *store, enum dibs__lite_kind *was, uint32_t mode, uint32_t epoch, dibs__tick by,
                                  struct dibs__said *said) {
  dibs__status status = DIBS_OK;
  if (*was == DIBS__LITE_PLAIN) {
    status = dibs__lite_link_open(store, store->path, by, &store->spare, said);
    if (status == DIBS_OK) status = open_plain(store, was, said);
  }
  if (status == DIBS_OK && (*was == DIBS__LITE_ABSENT || *was == DIBS__LITE_EMPTY))
    status = dibs__lite_make(store, *was, mode, epoch, by, said);
  if (status != DIBS_OK) return status;
  if (!dibs__lite_stat(store->path, &store->device, &store->inode)) {
    dibs__say(said, "%s vanished while it was opened", store->path);
    return DIBS_UNAVAILABLE;
  }
  return store->spare ? DIBS_OK : dibs__lite_link_open(store, store->path, by, &store->spare, said);
}

static dibs__status open_life(lite *store, bool made, struct dibs__side_memory *memory, struct dibs__said *said) {
  dibs__status status = dibs__side_match_file(store->side, store->path, memory, said);
  if (status != DIBS_OK) return status;
  if (dibs__lite_settle_life(store->spare, made, memory) == DIBS__SQL_FINE) return DIBS_OK;
  status = dibs__lite_excuse(store->spare, "open", said);
  dibs__lite_rollback(store->spare);
  return status;
}

static dibs__status open_under_gate(lite *store, enum dibs__lite_kind was, uint32_t mode,
                                    struct dibs__side_memory *memory, dibs__tick by, struct dibs__said *said) {
  dibs__status status = DIBS_OK;
  bool logged = dibs__lite_has_log(store->path);
  /* Nobody turns one of ours into something else; all else may have changed until we were let in. */
  if (was != DIBS__LITE_OURS) status = dibs__lite_look(store->path, &was, said);
  if (status == DIBS_OK) status = open_database(store, &was, mode, memory->epoch + 1, by, said);
  bool made = was == DIBS__LITE_ABSENT || was == DIBS__LITE_EMPTY;
  if (status == DIBS_OK && !made && dibs__lite_migrate(store->spare) != DIBS__SQL_FINE)
    status = dibs__lite_excuse(store->spare, "migrate", said);
  if (status == DIBS_OK) status = open_life(store, made, memory, said);
  if (status == DIBS_OK) return status;
  /* Nothing is left behind.  A log that was not there before is of our look alone: whoever lives has one. */
  dibs__lite_link_close(store->spare);
  store->spare = NULL;
  if (!logged) dibs__lite_remove(store->path, was == DIBS__LITE_ABSENT);
  return status;
}

static dibs__status read_sync(const struct dibs__uri *uri, bool *sync, struct dibs__said *said) {
  const char *value = dibs__uri_param(uri, "write_sync");
  *sync = !value || strcmp(value, "on") == 0;
  if (*sync || strcmp(value, "off") == 0) return DIBS_OK;
  dibs__say(said, "write_sync=%.20s: it is on or off", value);
  return DIBS_INVALID;
}

static dibs__status open_place(lite *store, const struct dibs__uri *uri, dibs__tick by, struct dibs__said *said) {
  static const char *const known[] = {"mode", "fs", "write_sync", NULL};
  enum dibs__lite_kind kind;
  struct dibs__side_memory memory;
  struct dibs__place place;
  dibs__status status = dibs__uri_only(uri, NULL, known, said);
  if (status == DIBS_OK) status = read_sync(uri, &store->write_sync, said);
  if (status != DIBS_OK) return status;
  status = dibs__place_prepare(uri, &place, said);
  if (status != DIBS_OK) return status;
  store->path = place.path;
  place.path = NULL;
  uint32_t mode = place.file_mode;
  dibs__place_free(&place);
  /* Before anything is written. */
  status = dibs__lite_look(store->path, &kind, said);
  if (status == DIBS_OK) status = dibs__side_open(store->path, mode, by, &store->side, &memory, said);
  if (status == DIBS_OK) status = open_under_gate(store, kind, mode, &memory, by, said);
  /* Else the gate is kept until the side file is closed, which takes away what this open made. */
  if (status == DIBS_OK) dibs__side_gate_leave(store->side);
  return status;
}

static dibs__status lite_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                              dibs__tick by, struct dibs__dstore **out, struct dibs__said *said) {
  (void)inner, (void)count;
  *out = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  lite *store = calloc(1, sizeof *store);
  if (!store) {
    dibs__say(said, "no memory to open %s", uri->shown);
    return DIBS_NO_MEMORY;
  }
  store->base.driver = &dibs__sqlite_driver;
  store->as_tier = uri->as_tier;
  store->swept_ms = dibs__lite_clock(store);
  dibs__status status = open_place(store, uri, by, said);
  if (status != DIBS_OK) {
    free_store(store);
    return status;
  }
  said->now.ms = dibs__lite_clock(store);
  *out = &store->base;
  return DIBS_OK;
}

static void lite_close(struct dibs__dstore *store) {
  if (!store) return;
  dibs__lite_leave(lite_of(store));
  dibs__lite_checkpoint(lite_of(store));
  dibs__lite_checkpoint_last(lite_of(store));
  free_store(lite_of(store));
}

/* ---- Sessions ---- */

static void lite_disconnect(struct dibs__session *session) {
  struct dibs__lite_session *s = (struct dibs__lite_session *)session;
  if (!s) return;
  lite *store = lite_of(s->base.store);
  /* One that served well is kept for the next session, and for what close has to do. */
  if (s->link && !s->link->failed && !s->link->inside && !store->spare)
    store->spare = s->link;
  else
    dibs__lite_link_close(s->link);
  free(s);
}

static void identify(lite *store, struct dibs__lite_link *link, struct dibs__identity *identity) {
  *identity = (struct dibs__identity){
      .mandate = dibs__sql_hint(store->as_tier, &link->buckets[0]),
      .caps = DIBS__CAP_BRIEF | DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
              DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_BLOCKS,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_STOCK |
                  1u << DIBS__FAM_ONCE | 1u << DIBS__FAM_REPORT,
      .schema = DIBS__SQL_SCHEMA,
      .max_batch = DIBS__LITE_BATCH,
      .max_sessions = 1,
      .session = dibs__side_session(store->side)};
}

static dibs__status lite_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__said *said) {
  lite *store = lite_of(base);
  struct dibs__sql_bucket *bucket;
  dibs__status status = DIBS_OK;
  *session = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  struct dibs__lite_session *s = calloc(1, sizeof *s);
  if (!s) {
    dibs__say(said, "no memory for a session of %s", store->path);
    return DIBS_NO_MEMORY;
  }
  s->base.store = base;
  s->link = store->spare;
  store->spare = NULL;
  if (!s->link) status = dibs__lite_link_open(store, store->path, by, &s->link, said);
  if (status == DIBS_OK) {
    s->link->by = by;
    if (dibs__lite_bucket_get(s->link, 0, &bucket) == DIBS__SQL_BROKE)
      status = dibs__lite_excuse(s->link, "read", said);
  }
  if (status != DIBS_OK) {
    lite_disconnect(&s->base);
    return status;
  }
  identify(store, s->link, identity);
  said->now.ms = dibs__lite_clock(store);
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
  /* One place is kept for "look at all". */
  *count = dibs__side_take(store->side, events, cap > 1 ? cap - 1 : cap, &all);
  if (!*count && !all) {
    dibs__side_wait(store->side, by);
    *count = dibs__side_take(store->side, events, cap > 1 ? cap - 1 : cap, &all);
  }
  if (all && *count == cap) *count = 0; /* it says more than one hint does */
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
                                 struct dibs__said *said) {
  struct dibs__lite_link *l = ((struct dibs__lite_session *)session)->link;
  struct dibs__sql_bucket *row;
  bool unsure;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  l->by = by;
  if (!dibs__side_write_begin(l->store->side, by)) return DIBS_UNAVAILABLE;
  enum dibs__sql_step end = dibs__lite_begin(l);
  if (end == DIBS__SQL_FINE) end = dibs__lite_bucket_get(l, bucket, &row);
  if (end == DIBS__SQL_FINE) {
    row->seq = DIBS__SEQ_MAX - left;
    end = dibs__lite_bucket_put(l, bucket);
  }
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  dibs__side_write_end(l->store->side);
  return end == DIBS__SQL_FINE ? DIBS_OK : dibs__lite_excuse(l, "write to", said);
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
    .attach = dibs__lite_attach,
    .run = dibs__lite_run,
    .events = lite_events,
    .wake = lite_wake,
    .list = dibs__lite_list,
    .tidy = dibs__lite_tidy,
};
