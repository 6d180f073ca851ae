/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BENCH_FLOOR_SQLITE_H
#define DIBS_BENCH_FLOOR_SQLITE_H
/* One kind of statements that the SQLite floor can run, and the functions that the kinds share. */
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

struct floor_statements {
  /* Creates the tables and prepares the statements; *own is for close, also after a failure. */
  bool (*open)(sqlite3 *db, void **own);
  void (*close)(void *own); /* may be NULL */
  bool (*acquire)(void *own, int64_t now_ms);
  bool (*release)(void *own, int64_t now_ms);
};

extern const struct floor_statements dibs__floor_dibs_statements;

bool dibs__floor_prepare(sqlite3 *db, const char *text, sqlite3_stmt **statement);
/* Steps to the end. */
bool dibs__floor_step(sqlite3_stmt *statement);
/* The same, and it must change one row: a floor that does nothing proves nothing. */
bool dibs__floor_change(sqlite3_stmt *statement);

#endif
