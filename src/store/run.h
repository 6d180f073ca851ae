/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_RUN_H
#define DIBS_STORE_RUN_H
/* clang-format off */
/*
 * Runs: what ran, where and how it ended.  DIBS__FAM_RUN keeps a row for each run of a command; it is written once, after
 * the run, and never read by what decides about leases.
 *
 *  R80  PUT of an id that exists replaces nothing and answers OK: a repeat is safe.
 *  R81  LIST has each run that exists from the beginning to the end of the listing once, the latest end first.
 *  R82  A run is kept for its keep_ms, or as many ms as the store's setting says; then a sweep deletes it.
 *  R83  Texts of a run are kept unchanged, as in R48 and R49; its output is any sequence of bytes.
 */
/* clang-format on */
#include "store/store.h"

enum dibs__run_verb {
  DIBS__RUN_PUT,  /* OK */
  DIBS__RUN_LIST, /* OK: `got` */
  DIBS__RUN_SET   /* sets the store's settings: `keep_ms`.  OK */
};

/* The public header has the same numbers. */
enum dibs__run_end {
  DIBS__RUN_DONE,     /* exit status 0 */
  DIBS__RUN_FAILED,   /* another exit status, `code` */
  DIBS__RUN_LOST,     /* the lease or claim was lost */
  DIBS__RUN_OVERTIME, /* longer than it may */
  DIBS__RUN_KILLED,   /* by the signal `code` */
  DIBS__RUN_NOT_RUN   /* the command could not be started */
};

struct dibs__run_row {
  dibs__id id;
  dibs__str name, kind; /* of the lease, key, job or task; "run", "once", "cron", "worker" */
  dibs__str host;       /* where, as owners of leases are named */
  dibs__str command, output;
  dibs__fence fence;
  uint64_t nr; /* of a task; 0: none */
  uint32_t how;
  int32_t code;
  int64_t began_ms, ended_ms; /* PUT: how long ago, by the client's clock.  LIST: since 1970, by the store's */
};

enum { DIBS__RUN_OUTPUT_MAX = 4096, DIBS__RUN_COMMAND_MAX = 512, DIBS__RUN_ROWS = 1000 };
#define DIBS__RUN_KEEP_MS (INT64_C(30) * 86400000)

struct dibs__run_op {
  struct dibs__op op;       /* the mandate is not checked */
  struct dibs__run_row row; /* PUT */
  int64_t keep_ms;          /* PUT: -1: as the store says.  SET: -1: the default; 0: keep no runs from now on */
  /* LIST: what is empty or 0 does not limit it. */
  dibs__str name, prefix;
  dibs__str kind;
  uint64_t nr;                 /* only those of this task */
  bool failed;                 /* only those that did not end DONE */
  int64_t since_ms, before_ms; /* that ended within these, since 1970; before_ms with before_id: the next page */
  dibs__id before_id;
  uint32_t most;
  /* Answers. */
  struct dibs__run_row *got; /* malloc'd, one allocation, and the texts after it */
  uint32_t got_count;
  bool off;       /* LIST: the store keeps no runs */
  int64_t now_ms; /* LIST: the store's clock, since 1970 */
};

/* Clears the answers; false: the operation is not well-formed, and its status is INVALID. */
bool dibs__run_valid(struct dibs__run_op *op);
/* LIST: answers copies of these rows.  The status is OK, or NO_MEMORY. */
void dibs__run_answer(struct dibs__run_op *op, const struct dibs__run_row *rows, size_t count);

#endif
