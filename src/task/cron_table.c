/* SPDX-License-Identifier: MIT */
#include "task/cron_table.h"
#include "handle/handle.h"

#include <stdlib.h>
#include <string.h>

static const char default_zone[] = "UTC";

static bool add_jobs(struct dibs__crontab *tab, const dibs_cron_table *given) {
  for (size_t i = 0; i < given->job_count; i++) {
    if (!dibs__crontab_add(tab, &given->jobs[i], given->zone ? given->zone : default_zone)) return false;
  }
  return true;
}

static dibs_status check_table(const dibs_cron_table *table, dibs_error *error) {
  if ((table->length > 0 && !table->text) || (table->job_count > 0 && !table->jobs))
    return dibs__fail(error, DIBS_INVALID, "dibs_cron_table: a length without a text, or a count without jobs");
  /* Elements of an array have the size that the program was compiled with: only the present one is known. */
  for (size_t i = 0; i < table->job_count; i++)
    if (table->jobs[i].size != sizeof table->jobs[i])
      return dibs__fail(error, DIBS_INVALID, "jobs[%zu].size is %zu: set it to sizeof(dibs_cron_job), %zu", i,
                        table->jobs[i].size, sizeof table->jobs[i]);
  return DIBS_OK;
}

dibs_status dibs__cron_table_read(const dibs_cron_table *given, struct dibs__cron_table **to, dibs_error *error) {
  dibs_cron_table own = DIBS_CRON_TABLE_INIT;
  *to = NULL;
  if (!given) return dibs__fail(error, DIBS_INVALID, "the table of jobs is NULL");
  if (dibs__check_size(given->size, sizeof own, "dibs_cron_table", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&own, given, given->size);
  if (check_table(&own, error) != DIBS_OK) return DIBS_INVALID;
  struct dibs__cron_table *table = calloc(1, sizeof *table);
  if (table) {
    table->refs = 1;
    table->tab = dibs__crontab_read(own.text ? own.text : "", own.length, own.zone ? own.zone : default_zone);
  }
  if (!table || !table->tab || !add_jobs(table->tab, &own)) {
    dibs__cron_table_drop(table);
    return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the table of jobs");
  }
  for (size_t i = 0; own.on_error && i < table->tab->flaw_count; i++)
    own.on_error(table->tab->flaws[i].line, table->tab->flaws[i].message, own.user);
  *to = table;
  return DIBS_OK;
}

struct dibs__cron_table *dibs__cron_table_hold(struct dibs__cron_table *table) {
  atomic_fetch_add(&table->refs, 1);
  return table;
}

void dibs__cron_table_drop(struct dibs__cron_table *table) {
  if (!table || atomic_fetch_sub(&table->refs, 1) > 1) return;
  dibs__crontab_free(table->tab);
  free(table);
}

dibs_status dibs__cron_check_name(const char *name, dibs_error *error) {
  return dibs__check_text(name, DIBS__CRONTAB_NAME, "the name of the crontab", error);
}
