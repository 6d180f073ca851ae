/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_CRON_TABLE_H
#define DIBS_TASK_CRON_TABLE_H
/*
 * The jobs that a caller gives (dibs_cron_table), as they were read.  They are counted: firings that run use them after
 * they were replaced.
 */
#include "task/crontab.h"

struct dibs__cron_table {
  _Atomic uint32_t refs;
  struct dibs__crontab *tab;
};

/* Checks and reads it, and reports what is wrong in it to its function.  OK; INVALID; NO_MEMORY. */
dibs_status dibs__cron_table_read(const dibs_cron_table *given, struct dibs__cron_table **table, dibs_error *error);
struct dibs__cron_table *dibs__cron_table_hold(struct dibs__cron_table *table);
void dibs__cron_table_drop(struct dibs__cron_table *table); /* NULL is fine */
/* INVALID unless it is fit for a fleet. */
dibs_status dibs__cron_check_name(const char *name, dibs_error *error);

#endif
