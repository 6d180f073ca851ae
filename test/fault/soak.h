/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_SOAK_H
#define DIBS_TEST_FAULT_SOAK_H
/* A long run under an even load, in which nothing may grow. */
#include "base/port.h"

#include <stdio.h>

enum { SOAK_URI = 1536, SOAK_THREADS = 8, SOAK_TABLES = 24, SOAK_TABLE = 40 };

/* ---- soak_load.c: one process ---- */

struct soak_job {
  char uri[SOAK_URI];
  uint32_t process, threads, keys; /* keys: how many once keys a client uses; 0: a new one each time */
  uint64_t seed;
  dibs__tick deadline;
};

/* X(name): what the load does; the count has the calls with an expected answer.  tasks: those that were added */
#define SOAK_KINDS(X) X(leases) X(waits) X(records) X(stock) X(once) X(tasks) X(verdicts) X(lists) X(handles)
enum soak_kind {
#define SOAK_KIND(name) SOAK_##name,
  SOAK_KINDS(SOAK_KIND)
#undef SOAK_KIND
      SOAK_KIND_COUNT
};
struct soak_done {
  _Atomic uint64_t done[SOAK_KIND_COUNT], failed;
};

/* Runs until the deadline; `done` is shared with the parent.  Returns the process's exit status. */
int soak_load(const struct soak_job *job, struct soak_done *done);

/* ---- soak_rows.c: rows and keys of the store ---- */

struct soak_rows {
  char table[SOAK_TABLES][SOAK_TABLE]; /* "dibs_name"; "keys" for a Redis */
  int64_t count[SOAK_TABLES];
  uint32_t tables;
};
/* All tables of dibs in the stores of the URI, through the engine's own client.  false: the client failed. */
bool soak_rows(const char *uri, struct soak_rows *rows);

#endif
