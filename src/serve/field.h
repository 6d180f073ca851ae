/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_FIELD_H
#define DIBS_SERVE_FIELD_H
/*
 * What a request may contain, as a table: each row is a member of the body's JSON object, a parameter of the query or a
 * header.  One table reads and checks requests and describes them in /openapi.json, so the two are the same.
 */
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

enum field_kind {
  FIELD_TEXT,      /* const char *: a label or name; NULL: not given */
  FIELD_LONG_TEXT, /* const char *: any characters, lines too; NULL: not given */
  FIELD_DURATION,  /* int64_t, ms: "30s", or a number of ms; -1 where "forever" is allowed and given */
  FIELD_NUMBER,    /* int64_t */
  FIELD_FLAG,      /* bool */
  FIELD_SWITCH,    /* int64_t: 1 or 0; FIELD_UNSET: not given */
  FIELD_ID,        /* const char *: 32 hexadecimal digits */
  FIELD_WORD,      /* int32_t: which of the words */
  FIELD_DATA,      /* struct field_data: a text, or {"base64": ...} */
  FIELD_ITEMS,     /* struct json_t *: an array of objects, which the route reads with a table of its own */
  FIELD_RAW        /* struct field_data: the whole body, which is no JSON */
};

enum field_place { FIELD_BODY, FIELD_QUERY, FIELD_HEADER };

/* Bytes of a value; `p` NULL: not given. */
struct field_data {
  const char *p;
  size_t length;
};

struct field {
  const char *name; /* NULL: the end of the table */
  enum field_place place;
  enum field_kind kind;
  size_t at;           /* in the struct of the route */
  int64_t least, most; /* of a number and a duration; of a text: bytes */
  bool needed, forever;
  const char *const *words;  /* of FIELD_WORD, NULL at the end */
  const struct field *items; /* of FIELD_ITEMS */
  const char *pattern;       /* of a text, for /openapi.json: what the route itself checks; NULL: it checks no more */
  const char *help;
};

/* A duration or number that was not given. */
#define FIELD_UNSET INT64_MIN

static inline int64_t dibs__given_or(int64_t number, int64_t other) {
  return number == FIELD_UNSET ? other : number;
}

#endif
