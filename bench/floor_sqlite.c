/* SPDX-License-Identifier: MIT */
/*
 * The rate of SQLite itself: prepared statements, one connection without other users, WAL with synchronous=NORMAL, no
 * busy handler, nothing around it.
 */
#include "floor_sqlite.h"
#include "floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *dibs__floor_sqlite_version(void) {
  return sqlite3_libversion();
}

bool dibs__floor_prepare(sqlite3 *db, const char *text, sqlite3_stmt **statement) {
  return !sqlite3_prepare_v3(db, text, -1, SQLITE_PREPARE_PERSISTENT, statement, NULL);
}

bool dibs__floor_step(sqlite3_stmt *statement) {
  int got;
  while ((got = sqlite3_step(statement)) == SQLITE_ROW) continue;
  sqlite3_reset(statement);
  return got == SQLITE_DONE;
}

bool dibs__floor_change(sqlite3_stmt *statement) {
  return dibs__floor_step(statement) && sqlite3_changes(sqlite3_db_handle(statement)) == 1;
}

static void files_remove(const char *path) {
  static const char *const ends[] = {"", "-wal", "-shm", "-dibs"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    char file[4200];
    snprintf(file, sizeof file, "%s%s", path, ends[i]);
    unlink(file);
  }
}

/* ---- The plain row ---- */

struct naive {
  sqlite3_stmt *acquire, *release;
};

static bool naive_open(sqlite3 *db, void **own) {
  struct naive *naive = calloc(1, sizeof *naive);
  *own = naive;
  return naive &&
         !sqlite3_exec(
             db,
             "CREATE TABLE lease(name TEXT PRIMARY KEY, owner INTEGER, fence INTEGER NOT NULL, until INTEGER);"
             "INSERT INTO lease VALUES('bench', NULL, 0, 0)",
             NULL, NULL, NULL) &&
         dibs__floor_prepare(db,
                             "UPDATE lease SET owner=?1, fence=fence+1, until=?2 WHERE name='bench' AND "
                             "(owner IS NULL OR until<?3) RETURNING fence",
                             &naive->acquire) &&
         dibs__floor_prepare(db, "UPDATE lease SET owner=NULL WHERE name='bench' AND owner=?1", &naive->release);
}

static void naive_close(void *own) {
  struct naive *naive = own;
  if (!naive) return;
  sqlite3_finalize(naive->acquire);
  sqlite3_finalize(naive->release);
  free(naive);
}

static bool naive_acquire(void *own, int64_t now_ms) {
  struct naive *naive = own;
  sqlite3_bind_int64(naive->acquire, 1, 7);
  sqlite3_bind_int64(naive->acquire, 2, now_ms + 30000);
  sqlite3_bind_int64(naive->acquire, 3, now_ms);
  return dibs__floor_change(naive->acquire);
}

static bool naive_release(void *own, int64_t now_ms) {
  struct naive *naive = own;
  (void)now_ms;
  sqlite3_bind_int64(naive->release, 1, 7);
  return dibs__floor_change(naive->release);
}

static const struct floor_statements naive_statements = {naive_open, naive_close, naive_acquire, naive_release};

/* ---- Around them ---- */

struct floor_sqlite {
  const struct floor_statements *kind;
  void *own;
  sqlite3 *db;
  sqlite3_stmt *begin, *commit;
  char path[4096];
};

struct floor_sqlite *dibs__floor_sqlite_open(const char *path, enum floor_kind kind, char *why, size_t size) {
  struct floor_sqlite *floor = calloc(1, sizeof *floor);
  if (!floor) return NULL;
  snprintf(floor->path, sizeof floor->path, "%s", path);
  if (kind == FLOOR_NAIVE) files_remove(path);
  floor->kind = kind == FLOOR_DIBS ? &dibs__floor_dibs_statements : &naive_statements;
  if (!sqlite3_open_v2(path, &floor->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) &&
      !sqlite3_exec(floor->db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL", NULL, NULL, NULL) &&
      floor->kind->open(floor->db, &floor->own) && dibs__floor_prepare(floor->db, "BEGIN IMMEDIATE", &floor->begin) &&
      dibs__floor_prepare(floor->db, "COMMIT", &floor->commit)) {
    return floor;
  }
  snprintf(why, size, "cannot open the floor at %s: %s", path, sqlite3_errmsg(floor->db));
  dibs__floor_sqlite_close(floor);
  return NULL;
}

void dibs__floor_sqlite_close(struct floor_sqlite *floor) {
  if (!floor) return;
  floor->kind->close(floor->own);
  sqlite3_finalize(floor->begin);
  sqlite3_finalize(floor->commit);
  sqlite3_close(floor->db);
  files_remove(floor->path);
  free(floor);
}

static bool pair_alone(struct floor_sqlite *floor, int64_t now_ms) {
  return dibs__floor_step(floor->begin) && floor->kind->acquire(floor->own, now_ms) &&
         dibs__floor_step(floor->commit) && dibs__floor_step(floor->begin) &&
         floor->kind->release(floor->own, now_ms) && dibs__floor_step(floor->commit);
}

static bool pairs_together(struct floor_sqlite *floor, uint32_t pairs, int64_t now_ms) {
  bool done = dibs__floor_step(floor->begin);
  for (uint32_t i = 0; done && i < pairs; i++) {
    done = floor->kind->acquire(floor->own, now_ms) && floor->kind->release(floor->own, now_ms);
  }
  return done && dibs__floor_step(floor->commit);
}

bool dibs__floor_sqlite_pairs(struct floor_sqlite *floor, uint32_t pairs, bool one, int64_t now_ms, char *why,
                              size_t size) {
  bool done = true;
  if (!one) done = pairs_together(floor, pairs, now_ms);
  for (uint32_t i = 0; one && done && i < pairs; i++) done = pair_alone(floor, now_ms);
  if (!done) snprintf(why, size, "the floor at %s: %s", floor->path, sqlite3_errmsg(floor->db));
  return done;
}
