/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_BIND_H
#define DIBS_DRIVERS_SQLITE_BIND_H
/*
 * Values into statements and out of rows.  Texts and ids are bound where they lie: every statement has ended before its
 * caller's memory can change.
 */
#include "drivers/sqlite_parts.h"

#include <string.h>

static inline void dibs__lite_bind_number(sqlite3_stmt *st, int at, uint64_t value) {
  sqlite3_bind_int64(st, at, (sqlite3_int64)value);
}
static inline void dibs__lite_bind_when(sqlite3_stmt *st, int at, int64_t value) {
  sqlite3_bind_int64(st, at, value);
}
static inline void dibs__lite_bind_text(sqlite3_stmt *st, int at, const char *p, uint32_t len) {
  sqlite3_bind_text(st, at, p ? p : "", (int)len, SQLITE_STATIC);
}
static inline void dibs__lite_bind_id(sqlite3_stmt *st, int at, const dibs__id *id) {
  sqlite3_bind_blob(st, at, id->b, sizeof id->b, SQLITE_STATIC);
}

static inline uint64_t dibs__lite_number(sqlite3_stmt *st, int column) {
  return (uint64_t)sqlite3_column_int64(st, column);
}
static inline uint32_t dibs__lite_small(sqlite3_stmt *st, int column) {
  return (uint32_t)sqlite3_column_int64(st, column);
}

static inline void dibs__lite_read_bytes(sqlite3_stmt *st, int column, void *to, size_t size) {
  const void *p = sqlite3_column_blob(st, column);
  if (p && (size_t)sqlite3_column_bytes(st, column) == size)
    memcpy(to, p, size);
  else
    memset(to, 0, size);
}

static inline void dibs__lite_read_label(sqlite3_stmt *st, int column, struct dibs__sql_label *label) {
  dibs__str text = dibs__lite_read_text(st, column);
  label->len = text.len <= DIBS_OWNER_MAX ? text.len : DIBS_OWNER_MAX;
  memcpy(label->text, text.p, label->len);
}

/* A statement about a name, with bucket and name bound. */
static inline sqlite3_stmt *dibs__lite_about(struct dibs__lite_link *l, enum dibs__lite_text text,
                                             const struct dibs__sql_head *h) {
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (!st) return NULL;
  dibs__lite_bind_number(st, 1, h->bucket);
  dibs__lite_bind_text(st, 2, h->name.p, h->name.len);
  return st;
}

static inline sqlite3_stmt *dibs__lite_about_id(struct dibs__lite_link *l, enum dibs__lite_text text,
                                                const struct dibs__sql_head *h, const dibs__id *id) {
  sqlite3_stmt *st = dibs__lite_about(l, text, h);
  if (st) dibs__lite_bind_id(st, 3, id);
  return st;
}

#endif
