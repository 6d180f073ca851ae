/* SPDX-License-Identifier: MIT */
/*
 * A connection to the database file.
 *
 * Writers of dibs queue in the side file before they begin, so SQLite's own lock is met only when a stranger (the
 * sqlite3 shell, a backup) has it: then the busy handler naps until the deadline of the call.
 *
 * The rows of buckets are kept between transactions as long as SQLite's data version says that nobody else wrote.
 */
#include "drivers/sqlite_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

/* After a burst the log's file is cut back to this when it begins anew. */
#define LOG_MOST "67108864"

static_assert(DIBS__LITE_SHALLOW == DIBS__SQL_SHALLOW, "one number, written twice");

/* ---- Trouble ---- */

step dibs__lite_broke(link_t *l, int code) {
  l->failed = code == SQLITE_OK ? SQLITE_INTERNAL : code;
  snprintf(l->words, sizeof l->words, "%s", l->db ? sqlite3_errmsg(l->db) : sqlite3_errstr(code));
  return DIBS__SQL_BROKE;
}

step dibs__lite_wrong(link_t *l) {
  l->failed = SQLITE_CORRUPT;
  snprintf(l->words, sizeof l->words, "its rows contradict each other");
  return DIBS__SQL_BROKE;
}

dibs__status dibs__lite_excuse_code(const char *path, int code, const char *words, const char *doing,
                                    struct dibs__said *said) {
  switch (code & 0xff) {
  case SQLITE_NOMEM:
    dibs__say(said, "no memory to %s %s", doing, path);
    return DIBS_NO_MEMORY;
  case SQLITE_FULL:
    dibs__say(said, "can't %s %s: the disk is full (%s); make room and try again", doing, path, words);
    return DIBS_UNAVAILABLE;
  case SQLITE_BUSY:
  case SQLITE_LOCKED:
    dibs__say(said, "can't %s %s: another program keeps the database locked (%s)", doing, path, words);
    return DIBS_UNAVAILABLE;
  case SQLITE_READONLY:
  case SQLITE_PERM:
  case SQLITE_AUTH:
    dibs__say(said, "can't %s %s: no permission to write there (%s)", doing, path, words);
    return DIBS_DENIED;
  case SQLITE_CORRUPT:
  case SQLITE_NOTADB:
  case SQLITE_FORMAT:
    dibs__say(said, "can't %s %s: the file is damaged (%s); restore it, or move it away to begin anew", doing, path,
              words);
    return DIBS_CORRUPT;
  default:
    dibs__say(said, "can't %s %s: %s (SQLite's code %d)", doing, path, words, code);
    return DIBS_UNAVAILABLE;
  }
}

dibs__status dibs__lite_excuse(const link_t *l, const char *doing, struct dibs__said *said) {
  return dibs__lite_excuse_code(l->store->path, l->failed, l->words, doing, said);
}

/* ---- Statements ---- */

sqlite3_stmt *dibs__lite_ready(link_t *l, enum dibs__lite_text text) {
  if (!l->statements[text]) {
    int code =
        sqlite3_prepare_v3(l->db, dibs__lite_texts[text], -1, SQLITE_PREPARE_PERSISTENT, &l->statements[text], NULL);
    if (code != SQLITE_OK) dibs__lite_broke(l, code);
  }
  return l->statements[text];
}

step dibs__lite_row(link_t *l, sqlite3_stmt *st, bool *row) {
  *row = false;
  if (!st) return DIBS__SQL_BROKE;
  int code = sqlite3_step(st);
  *row = code == SQLITE_ROW;
  if (*row) return DIBS__SQL_FINE;
  step end = code == SQLITE_DONE ? DIBS__SQL_FINE : dibs__lite_broke(l, code);
  sqlite3_reset(st);
  return end;
}

step dibs__lite_do(link_t *l, sqlite3_stmt *st) {
  if (!st) return DIBS__SQL_BROKE;
  int code;
  while ((code = sqlite3_step(st)) == SQLITE_ROW) continue;
  step end = code == SQLITE_DONE ? DIBS__SQL_FINE : dibs__lite_broke(l, code);
  sqlite3_reset(st);
  return end;
}

step dibs__lite_plain(link_t *l, enum dibs__lite_text text) {
  return dibs__lite_do(l, dibs__lite_ready(l, text));
}

step dibs__lite_say(link_t *l, const char *text) {
  int code = sqlite3_exec(l->db, text, NULL, NULL, NULL);
  return code == SQLITE_OK ? DIBS__SQL_FINE : dibs__lite_broke(l, code);
}

/* ---- Transactions ---- */

int64_t dibs__lite_clock(const struct dibs__lite *store) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + atomic_load_explicit(&store->skew_ms, memory_order_relaxed);
}

static void forget_buckets(link_t *l) {
  memset(l->known, 0, sizeof l->known);
  memset(l->changed, 0, sizeof l->changed);
}

step dibs__lite_begin(link_t *l) {
  unsigned version = 0;
  step st = dibs__lite_plain(l, DIBS__LITE_BEGIN);
  if (st != DIBS__SQL_FINE) return st;
  int code = sqlite3_file_control(l->db, "main", SQLITE_FCNTL_DATA_VERSION, &version);
  if (code != SQLITE_OK || !l->versioned || version != l->version) forget_buckets(l);
  l->versioned = code == SQLITE_OK;
  l->version = version;
  l->hint_count = 0;
  return DIBS__SQL_FINE;
}

/* Prepared at opening: what ends a transaction must not need memory then. */
void dibs__lite_rollback(link_t *l) {
  sqlite3_reset(l->statements[DIBS__LITE_RECORD]);
  if (!sqlite3_get_autocommit(l->db)) {
    sqlite3_step(l->statements[DIBS__LITE_ROLLBACK]);
    sqlite3_reset(l->statements[DIBS__LITE_ROLLBACK]);
  }
  forget_buckets(l);
  l->hint_count = 0;
}

bool dibs__lite_stuck(const link_t *l) {
  return !sqlite3_get_autocommit(l->db);
}

static step put_buckets(link_t *l) {
  for (size_t half = 0; half < 2; half++) {
    while (l->changed[half]) {
      size_t bucket = half * 64 + (size_t)__builtin_ctzll(l->changed[half]);
      const struct dibs__sql_bucket *row = &l->buckets[bucket];
      sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_BUCKET_SET);
      if (!st) return DIBS__SQL_BROKE;
      sqlite3_bind_int64(st, 1, (sqlite3_int64)bucket);
      sqlite3_bind_int64(st, 2, row->mandate.epoch);
      sqlite3_bind_int64(st, 3, row->seq);
      step end = dibs__lite_do(l, st);
      if (end != DIBS__SQL_FINE) return end;
      l->changed[half] &= l->changed[half] - 1;
    }
  }
  return DIBS__SQL_FINE;
}

step dibs__lite_commit(link_t *l, bool *unsure) {
  *unsure = false;
  sqlite3_reset(l->statements[DIBS__LITE_RECORD]); /* may stand at a row, and would keep the snapshot */
  step st = put_buckets(l);
  if (st != DIBS__SQL_FINE) return st;
  st = dibs__lite_plain(l, DIBS__LITE_COMMIT);
  if (st == DIBS__SQL_FINE) return st;
  /* Nobody sees it now.  But what failed may have been a step after the last frame was written (pressing it to disk,
   * the shared index), and then a recovery would find it. */
  *unsure = l->failed != SQLITE_FULL && l->failed != SQLITE_IOERR_WRITE && l->failed != SQLITE_BUSY;
  return st;
}

step dibs__lite_full(link_t *l, bool full) {
  return dibs__lite_say(l, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
}

/* ---- Opening ---- */

static int busy(void *arg, int times) {
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
  return SQLITE_OK;
}

static int set_up(link_t *l) {
  int code = sqlite3_extended_result_codes(l->db, 1);
  if (code == SQLITE_OK) code = sqlite3_busy_handler(l->db, busy, l);
  if (code == SQLITE_OK) code = sqlite3_wal_autocheckpoint(l->db, 0);
  sqlite3_wal_hook(l->db, wal_grew, l); /* takes the place of the automatic checkpoint, so after it */
  if (code == SQLITE_OK) code = sqlite3_db_config(l->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
  /* Ids in deleted rows are of leases that are over: wiping them would only write more. */
  if (code == SQLITE_OK)
    code = sqlite3_exec(
        l->db,
        "PRAGMA synchronous=NORMAL;PRAGMA secure_delete=OFF;PRAGMA foreign_keys=ON;PRAGMA journal_size_limit=" LOG_MOST,
        NULL, NULL, NULL);
  return code;
}

dibs__status dibs__lite_link_open(struct dibs__lite *store, const char *path, dibs__tick by, link_t **link,
                                  struct dibs__said *said) {
  dibs__status status = DIBS_OK;
  *link = NULL;
  link_t *l = calloc(1, sizeof *l);
  if (!l) {
    dibs__say(said, "no memory to open %s", path);
    return DIBS_NO_MEMORY;
  }
  l->store = store;
  l->by = by;
  int code =
      sqlite3_open_v2(path, &l->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
  if (code == SQLITE_OK && sqlite3_db_readonly(l->db, "main") == 1) code = SQLITE_READONLY;
  if (code == SQLITE_OK) code = set_up(l);
  if (code == SQLITE_OK && !dibs__lite_ready(l, DIBS__LITE_ROLLBACK)) code = l->failed;
  if (code != SQLITE_OK) {
    dibs__lite_broke(l, code);
    status = dibs__lite_excuse_code(path, code, code == SQLITE_READONLY ? "it is read-only" : l->words, "open", said);
    dibs__lite_link_close(l);
    return status;
  }
  *link = l;
  return DIBS_OK;
}

void dibs__lite_link_close(link_t *l) {
  if (!l) return;
  for (size_t i = 0; i < DIBS__LITE_TEXTS; i++) sqlite3_finalize(l->statements[i]);
  dibs__lite_wire_close(l->wire);
  if (!l->inside) sqlite3_close(l->db);
  free(l);
}
