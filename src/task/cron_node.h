/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_CRON_NODE_H
#define DIBS_TASK_CRON_NODE_H
/*
 * A node of a fleet that shares a crontab, as far as it adds firings: it reads the store's clock, decides which firings
 * are due (cron.h), adds them as tasks, and keeps the decisions in the store (firing.h).
 *
 * The nodes need no leader: the store keeps each firing once.  A node that finds that others were faster waits a little
 * the next time, so that a fleet of many nodes does not add each firing many times for nothing.
 *
 * One thread uses a node.
 */
#include "task/firing.h"

#include <stdatomic.h>

struct dibs__cron_node {
  dibs_store *store;
  char space[DIBS__CRON_SPACE_MAX + 1];
  const _Atomic bool *stop; /* set by another thread: decide no more */
  const struct dibs__crontab *tab;
  struct dibs__cron_plan {
    uint64_t digest;
    int64_t next_ms; /* the first instant that is not decided; 0: the job is new; INT64_MAX: none */
  } * plans;         /* of each job of tab */
  struct dibs__cron_state known;
  bool has_clock, follows;
  int64_t offset_ms; /* the store's clock, less the tick's */
  dibs__tick clock_at, decide_at;
  uint64_t decided;                  /* firings that it added, or found added */
  dibs_error clock_error, add_error; /* OK: the latest request succeeded */
};

/* Zeroed and closed again by the caller. */
void dibs__cron_node_open(struct dibs__cron_node *node, dibs_store *store, const char *space, const _Atomic bool *stop);
void dibs__cron_node_close(struct dibs__cron_node *node);
/* From now on these are the jobs; `tab` stays until the next one.  false: no memory, and nothing changed. */
bool dibs__cron_node_take(struct dibs__cron_node *node, const struct dibs__crontab *tab);
/* Does what is due, which may block for I/O.  When to call it again. */
dibs__tick dibs__cron_node_step(struct dibs__cron_node *node);

#endif
