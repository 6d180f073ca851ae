/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_KINDS_H
#define DIBS_SERVE_KINDS_H
/* The counts of tasks, which the daemon keeps for all its clients (kinds.c). */
#include "dibs/task.h"

#include <stdbool.h>

struct request;
struct server;

struct kind_row {
  const char *kind; /* a row that somebody wrote by SQL may have a long one */
  uint64_t states[DIBS_TASK_STATES];
  int64_t oldest_ms, keep_ms; /* as in dibs_task_kind */
  uint32_t running;
  bool paused;
  char topic[DIBS_TOPIC_MAX + 1]; /* "": its tasks go to no lanes */
};

/* Can the first parameter of the path be the name of a kind?  false: it was answered 400. */
bool dibs__is_kind(struct request *r);

bool dibs__kinds_open(struct server *server);
void dibs__kinds_close(struct server *server);
/* Counts again, unless that was done a short time ago.  Blocks for I/O. */
void dibs__kinds_count(struct server *server);
/* Calls `see` for each kind, by name, until it returns false; it must not block.  Blocks for I/O if it counts again. */
dibs_status dibs__kinds_read(struct server *server, bool (*see)(const struct kind_row *row, void *user), void *user,
                             int64_t *age_ms, dibs_error *error);
/* The counts of one kind; of an unknown one they are 0. */
dibs_status dibs__kinds_find(struct server *server, const char *kind, struct kind_row *row, int64_t *age_ms,
                             dibs_error *error);

#endif
