/* SPDX-License-Identifier: MIT */
#include "dibs/sqlite.h"
#include "record_bed.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

static void *open_it(const char *uri) {
  sqlite3 *db = NULL;
  assert_int_equal(sqlite3_open(uri + strlen("sqlite://"), &db), SQLITE_OK);
  sqlite3_busy_timeout(db, 10000);
  return db;
}

static void close_it(void *connection) {
  assert_int_equal(sqlite3_close(connection), SQLITE_OK);
}

static long run(void *connection, const char *text, char **cell) {
  sqlite3 *db = connection;
  sqlite3_stmt *st = NULL;
  if (sqlite3_prepare_v2(db, text, -1, &st, NULL) != SQLITE_OK) fail_msg("%s: %s", text, sqlite3_errmsg(db));
  int code = sqlite3_step(st);
  if (code == SQLITE_ROW && cell && sqlite3_column_text(st, 0)) {
    size_t len = (size_t)sqlite3_column_bytes(st, 0);
    *cell = calloc(1, len + 1);
    assert_non_null(*cell);
    memcpy(*cell, sqlite3_column_text(st, 0), len);
  }
  while (code == SQLITE_ROW) code = sqlite3_step(st);
  if (code != SQLITE_DONE) fail_msg("%s: %s", text, sqlite3_errmsg(db));
  sqlite3_finalize(st);
  return sqlite3_changes(db);
}

static dibs_status inside(dibs_store *store, void *connection, dibs_store **out, dibs_error *error) {
  return dibs_inside_sqlite(store, connection, out, error);
}

const struct engine engine_sqlite = {"sqlite", "INTEGER", "TEXT",   "TEXT", "TEXT", {"DATETIME", "TIMESTAMP", "TEXT"},
                                     "main",   open_it,   close_it, run,    inside};
