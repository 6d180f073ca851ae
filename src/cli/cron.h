/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_CRON_H
#define DIBS_CLI_CRON_H
/*
 * `dibs cron`: what its files share.
 *
 *   cron.c       the command; a node: its crontab, its clock, what is due
 *   cron_work.c  the firings that this node has claimed, and their commands
 *
 * A node is one thread with one loop.  Each call of the store ends within some seconds; meanwhile the minders end the
 * commands whose claims would otherwise pass to another node.
 */
#include "cli/run.h"
#include "dibs/task.h"
#include "task/firing.h"

/* A firing that this node has claimed. */
struct cron_work {
  struct cron_work *next;
  dibs_task *task;
  char job[DIBS__CRONTAB_NAME + 1];
  char command[DIBS__RUN_COMMAND_MAX + 1]; /* for people */
  int minder, output;                      /* -1: closed */
  dibs__tick began, ended, extend_at, max_at, report_at;
  int64_t timeout_ms;
  int status, start_error;
  bool over;     /* the command has ended */
  bool end_sent; /* dibs sent the minder the order to end it */
  bool overtime, lost, killed;
  struct cli_last tail;
};

struct cron_works {
  const struct cli_globals *globals;
  dibs_store *store;
  const struct launcher *launcher;
  char kind[DIBS_NAME_MAX + 1];
  char *store_uri;
  bool no_history;
  bool broken; /* the launcher is gone: this node can start no commands */
  struct cron_work *first;
  size_t count, most;
};

enum { CRON_CLAIM_MS = 30000, CRON_POLLS = 2 };

/* Claims ready firings and starts their commands.  *more: there may be more.  `tab`: the node's crontab. */
dibs_status dibs__cli_cron_claim(struct cron_works *works, const struct dibs__crontab *tab, bool *more,
                                 dibs_error *error);
/* The descriptors to poll, CRON_POLLS for each work in the order of the list; when the next step is due; the step. */
void dibs__cli_cron_request(const struct cron_works *works, struct pollfd *polls);
dibs__tick dibs__cli_cron_due(const struct cron_works *works);
void dibs__cli_cron_step(struct cron_works *works);
/* Ends all commands. */
void dibs__cli_cron_end_all(struct cron_works *works);

#endif
