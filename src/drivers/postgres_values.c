/* SPDX-License-Identifier: MIT */
/*
 * Values as libpq wants them.  Numbers and bytes travel in binary; text as text, so that it may also become what the
 * server finds to stand there: a user's integer, uuid, timestamp.
 */
#include "drivers/postgres_parts.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAY_HEAD = 20, NUMBER_DIGITS = 24 };

/* `at` holds offsets into the room while values are added, because that moves: see dibs__pg_values_end. */
static char *reserve(struct dibs__pg_values *v, size_t size) {
  if (v->used + size > v->size) {
    size_t room = v->size ? v->size : 512;
    while (room < v->used + size) room *= 2;
    char *more = realloc(v->room, room);
    if (!more) return NULL;
    v->room = more;
    v->size = room;
  }
  char *at = v->room + v->used;
  v->used += size;
  return at;
}

void dibs__pg_values_begin(struct dibs__pg_values *v) {
  v->count = 0;
  v->used = 0;
}

void dibs__pg_values_end(struct dibs__pg_values *v) {
  for (int i = 0; i < v->count; i++) v->at[i] = v->offsets[i] == SIZE_MAX ? NULL : v->room + v->offsets[i];
}

static void add(struct dibs__pg_values *v, Oid type, size_t offset, size_t len, bool binary) {
  assert(v->count < DIBS__PG_VALUES);
  v->types[v->count] = type;
  v->offsets[v->count] = offset;
  v->lengths[v->count] = (int)len;
  v->formats[v->count] = binary;
  v->count++;
}

static void put32(char *to, uint32_t number) {
  number = htobe32(number);
  memcpy(to, &number, sizeof number);
}

static void put64(char *to, int64_t number) {
  uint64_t big = htobe64((uint64_t)number);
  memcpy(to, &big, sizeof big);
}

/* libpq cuts a text at a NUL, and the server has none in its own: it refuses the byte that stands there instead. */
static void put_text(char *to, const struct dibs__sql_value *value) {
  if (value->len) memcpy(to, value->p, value->len);
  if (value->len && memchr(value->p, '\0', value->len))
    for (uint32_t i = 0; i < value->len; i++)
      if (to[i] == '\0') to[i] = '\xff';
}

bool dibs__pg_values_add(struct dibs__pg_values *v, const struct dibs__sql_value *value, const Oid *types) {
  size_t offset = v->used;
  Oid known = types ? types[v->count] : 0;
  char *to;
  switch (value->kind) {
  case DIBS__SQL_NULL:
    add(v, known, SIZE_MAX, 0, false);
    return true;
  case DIBS__SQL_NUMBER:
    if (types && known != DIBS__PG_INT8) { /* the server found a type itself, when there was another kind here */
      to = reserve(v, NUMBER_DIGITS);
      if (!to) return false;
      int len = snprintf(to, NUMBER_DIGITS, "%" PRId64, value->number);
      add(v, known, offset, (size_t)len, false);
      return true;
    }
    to = reserve(v, sizeof(int64_t));
    if (!to) return false;
    put64(to, value->number);
    add(v, DIBS__PG_INT8, offset, sizeof(int64_t), true);
    return true;
  case DIBS__SQL_TEXT:
    to = reserve(v, (size_t)value->len + 1);
    if (!to) return false;
    put_text(to, value);
    to[value->len] = '\0';
    add(v, known, offset, value->len, false);
    return true;
  case DIBS__SQL_BYTES:
    to = reserve(v, value->len);
    if (!to) return false;
    if (value->len) memcpy(to, value->p, value->len);
    add(v, DIBS__PG_BYTEA, offset, value->len, true);
    return true;
  }
  return false;
}

/* ---- A column of rows as an array ---- */

void dibs__pg_kinds(char *kinds, const struct dibs__sql_value *rows, size_t columns, size_t row_count) {
  for (size_t c = 0; c < columns; c++) {
    enum dibs__sql_kind kind = DIBS__SQL_NULL;
    for (size_t r = 0; r < row_count && kind == DIBS__SQL_NULL; r++) kind = rows[r * columns + c].kind;
    kinds[c] = kind == DIBS__SQL_TEXT ? 't' : kind == DIBS__SQL_BYTES ? 'b' : 'n';
  }
  kinds[columns] = '\0';
}

static Oid element(char kind) {
  return kind == 't' ? DIBS__PG_TEXT : kind == 'b' ? DIBS__PG_BYTEA : DIBS__PG_INT8;
}

static size_t element_size(const struct dibs__sql_value *value) {
  if (value->kind == DIBS__SQL_NULL) return 0;
  return value->kind == DIBS__SQL_NUMBER ? sizeof(int64_t) : value->len;
}

static char *put_element(char *to, const struct dibs__sql_value *value) {
  size_t size = element_size(value);
  put32(to, value->kind == DIBS__SQL_NULL ? UINT32_MAX : (uint32_t)size);
  to += 4;
  if (value->kind == DIBS__SQL_NUMBER)
    put64(to, value->number);
  else if (value->kind == DIBS__SQL_TEXT)
    put_text(to, value);
  else if (size)
    memcpy(to, value->p, size);
  return to + size;
}

bool dibs__pg_values_add_column(struct dibs__pg_values *v, char kind, const struct dibs__sql_value *rows,
                                size_t columns, size_t column, size_t row_count) {
  size_t size = ARRAY_HEAD, offset = v->used;
  bool holes = false;
  for (size_t r = 0; r < row_count; r++) {
    const struct dibs__sql_value *value = &rows[r * columns + column];
    size += 4 + element_size(value);
    if (value->kind == DIBS__SQL_NULL) holes = true;
    /* Of one kind: else the server would read one as the other. */
    assert(value->kind == DIBS__SQL_NULL || element(kind) == element(value->kind == DIBS__SQL_TEXT    ? 't'
                                                                     : value->kind == DIBS__SQL_BYTES ? 'b'
                                                                                                      : 'n'));
  }
  char *to = reserve(v, size);
  if (!to) return false;
  put32(to, 1); /* dimensions */
  put32(to + 4, holes);
  put32(to + 8, element(kind));
  put32(to + 12, (uint32_t)row_count);
  put32(to + 16, 1); /* the number of the first */
  to += ARRAY_HEAD;
  for (size_t r = 0; r < row_count; r++) to = put_element(to, &rows[r * columns + column]);
  add(v, 0, offset, size, true);
  return true;
}
