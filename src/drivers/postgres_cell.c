/* SPDX-License-Identifier: MIT */
/*
 * Answers.  The first time a statement's answers come as text, because their types are not known; from then on in
 * binary if all are of types that we read.
 */
#include "drivers/postgres_parts.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_DIGITS = 24 };

static const struct dibs__pg_wire *of(const struct dibs__sql_wire *wire) {
  return (const struct dibs__pg_wire *)wire;
}

static PGresult *result_of(const struct dibs__sql_wire *wire, size_t nth) {
  return nth < of(wire)->result_count ? of(wire)->results[nth] : NULL;
}

size_t dibs__pg_rows(const struct dibs__sql_wire *wire, size_t nth) {
  const PGresult *result = result_of(wire, nth);
  return result ? (size_t)PQntuples(result) : 0;
}

uint64_t dibs__pg_changed(const struct dibs__sql_wire *wire, size_t nth) {
  PGresult *result = result_of(wire, nth);
  return result ? strtoull(PQcmdTuples(result), NULL, 10) : 0;
}

enum dibs__pg_answers dibs__pg_answers_of(const PGresult *result) {
  for (int i = 0; i < PQnfields(result); i++) {
    switch (PQftype(result, i)) {
    case DIBS__PG_BOOL:
    case DIBS__PG_BYTEA:
    case DIBS__PG_NAME:
    case DIBS__PG_INT8:
    case DIBS__PG_INT2:
    case DIBS__PG_INT4:
    case DIBS__PG_TEXT:
    case DIBS__PG_OID:
    case DIBS__PG_BPCHAR:
    case DIBS__PG_VARCHAR:
      break;
    default:
      return DIBS__PG_AS_TEXT;
    }
  }
  return DIBS__PG_BINARY;
}

/* ---- Bytes that came as text: \x and hex digits, made bytes where they lie ---- */

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool unhex(char *at, size_t len) {
  if (len < 2 || len % 2 || at[0] != '\\' || at[1] != 'x') return false;
  for (size_t i = 2; i < len; i += 2) {
    int high = hex_digit(at[i]), low = hex_digit(at[i + 1]);
    if (high < 0 || low < 0) return false;
    at[i / 2 - 1] = (char)(high << 4 | low);
  }
  return true;
}

bool dibs__pg_result_ready(PGresult *result) {
  for (int c = 0; c < PQnfields(result); c++) {
    if (PQftype(result, c) != DIBS__PG_BYTEA || PQfformat(result, c)) continue;
    for (int r = 0; r < PQntuples(result); r++)
      if (!PQgetisnull(result, r, c) && !unhex(PQgetvalue(result, r, c), (size_t)PQgetlength(result, r, c)))
        return false;
  }
  return true;
}

/* ---- One cell ---- */

static int64_t big_endian(const char *at, int len) {
  uint64_t n = 0;
  for (int i = 0; i < len; i++) n = n << 8 | (unsigned char)at[i];
  return (int64_t)n;
}

static int64_t number_of(const char *at, int len, Oid type) {
  switch (type) {
  case DIBS__PG_INT8:
  case DIBS__PG_OID:
  case DIBS__PG_BOOL:
    return big_endian(at, len);
  case DIBS__PG_INT4:
    return (int32_t)big_endian(at, len);
  case DIBS__PG_INT2:
    return (int16_t)big_endian(at, len);
  default:
    return strtoll(at, NULL, 10); /* libpq ends every value with a NUL */
  }
}

static bool is_number(Oid type) {
  return type == DIBS__PG_INT8 || type == DIBS__PG_INT4 || type == DIBS__PG_INT2 || type == DIBS__PG_OID ||
         type == DIBS__PG_BOOL;
}

/* As the server would have written it. */
static struct dibs__sql_value in_digits(PGresult *result, int64_t number, Oid type) {
  char *to = PQresultAlloc(result, NUMBER_DIGITS);
  if (!to) return dibs__sql_null();
  int len = type == DIBS__PG_BOOL ? snprintf(to, NUMBER_DIGITS, "%s", number ? "t" : "f")
                                  : snprintf(to, NUMBER_DIGITS, "%" PRId64, number);
  return dibs__sql_text(to, (size_t)len);
}

struct dibs__sql_value dibs__pg_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as) {
  PGresult *result = result_of(wire, nth);
  int r = (int)row, c = (int)column;
  if (!result || r >= PQntuples(result) || c >= PQnfields(result) || PQgetisnull(result, r, c)) return dibs__sql_null();
  const char *at = PQgetvalue(result, r, c);
  int len = PQgetlength(result, r, c);
  Oid type = PQftype(result, c);
  bool binary = PQfformat(result, c) != 0;
  if (type == DIBS__PG_BYTEA && !binary) len = (len - 2) / 2;
  if (as == DIBS__SQL_NUMBER) {
    if (binary) return dibs__sql_number(number_of(at, len, type));
    return dibs__sql_number(type == DIBS__PG_BOOL ? *at == 't' : strtoll(at, NULL, 10));
  }
  if (binary && is_number(type)) {
    /* From now on as text at once. */
    of(wire)->result_texts[nth]->answers = DIBS__PG_AS_TEXT;
    return in_digits(result, number_of(at, len, type), type);
  }
  return as == DIBS__SQL_BYTES ? dibs__sql_bytes(at, (size_t)len) : dibs__sql_text(at, (size_t)len);
}
