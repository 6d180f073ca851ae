/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_CRON_H
#define DIBS_CLI_CRON_H
/*
 * `dibs cron`: what its files share.
 *
 *   cron.c       the command: the crontab's file, signals, what people read
 *   cron_work.c  the command of a firing
 *
 * The library (dibs/cron.h) decides what is due, and which firings this node runs.
 */
#include "cli/job.h"
#include "dibs/cron.h"

struct cron_pool {
  /* Immutable after the start. */
  const struct cli_globals *globals;
  char *store_uri;
  struct job_slots slots;
  int end_fd;          /* readable: commands are to be ended now */
  int wake_fd;         /* raised when the main thread has to look */
  _Atomic bool broken; /* a launcher is gone: this node can start no more commands */
};

enum { CRON_CLAIM_MS = 30000 };

/* A dibs_firing_fn; `user` is the pool. */
dibs_verdict dibs__cli_cron_work(const dibs_firing *firing, dibs_firing_reply *reply, void *user);

#endif
