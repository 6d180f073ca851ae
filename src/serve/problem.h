/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_PROBLEM_H
#define DIBS_SERVE_PROBLEM_H
/* The kinds of problems (RFC 9457) of dibs serve and dibs gate: GET /problems lists them. */
#include "dibs.h"

#include <stdint.h>

struct problem {
  const char *word; /* in the type: /problems/held; NULL: a status that is none */
  int http;
  uint32_t again; /* a client that repeats the request after these seconds may succeed; 0: it is of no use */
  const char *meaning, *cause, *next;
};

/* A status of the library. */
const struct problem *dibs__problem_of(dibs_status status);
/* NULL: there is no such kind. */
const struct problem *dibs__problem_find(const char *word);
/* NULL: there is none with this number. */
const struct problem *dibs__problem_nth(size_t nth);

#endif
