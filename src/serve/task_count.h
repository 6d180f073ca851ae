/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TASK_COUNT_H
#define DIBS_SERVE_TASK_COUNT_H
/* What this server did with tasks, by kind and phase or outcome.  The store is not asked.  Any thread. */
#include <stdbool.h>
#include <stdint.h>

struct server;
struct request;
struct meter;

enum task_deed {
  TASK_ADDED,   /* in a phase */
  TASK_CLAIMED, /* in a phase */
  TASK_ENDED,   /* with an outcome */
  TASK_REFUSED, /* an end or an extension by a client that does not have the claim any more */
  TASK_DEEDS
};

bool dibs__task_counts_open(struct server *server);
void dibs__task_counts_close(struct server *server);
/* By a request.  `detail`: the phase or the outcome; NULL is "". */
void dibs__task_count_one(struct request *r, enum task_deed deed, const char *kind, const char *detail);
/* Begins another step of the window in which the latest counts are. */
void dibs__task_counts_step(struct server *server);
void dibs__task_counts_add(struct server *server, struct meter *meter);

#endif
