/* SPDX-License-Identifier: MIT */
/* For people: the jobs of a fleet with what the store knows of them, and firing one by hand. */
#include "base/text.h"
#include "task/cron_table.h"
#include "task/firing.h"
#include "task/task_impl.h"

#include <stdlib.h>
#include <string.h>

/* Runs that one listing reads, for the last run of each job; then the jobs that had none are looked up one by one. */
enum { LISTED_LEAST = 1000, LISTED_EACH = 4 };

struct last {
  const struct dibs__crontab *tab;
  struct job_end {
    bool known;
    int64_t began_ms;
    dibs_run_end how;
    int32_t code;
  } * ends; /* of each job */
  size_t known;
  uint32_t seen;
};

static int see_run(const dibs_run_info *run, void *user) {
  struct last *last = user;
  const struct dibs__cron_job *job = dibs__crontab_find(last->tab, run->name);
  last->seen++;
  if (!job) return 0;
  struct job_end *end = &last->ends[job - last->tab->jobs];
  if (end->known) return 0;
  *end = (struct job_end){true, run->began_ms, run->how, run->code};
  return ++last->known == last->tab->job_count;
}

/* The last run of each job that has one. */
static dibs_status find_last(dibs_store *store, struct last *last, dibs_error *error) {
  size_t jobs = last->tab->job_count;
  dibs_runs_options options = {
      .size = sizeof options, .kind = "cron", .most = (uint32_t)(LISTED_LEAST + LISTED_EACH * jobs)};
  dibs_status status = jobs > 0 ? dibs_runs(store, &options, see_run, last, error) : DIBS_OK;
  bool all = last->seen < options.most; /* of the history */
  options.most = 1;
  for (size_t i = 0; i < jobs && status == DIBS_OK && !all; i++) {
    if (last->ends[i].known) continue;
    options.name = last->tab->jobs[i].name;
    status = dibs_runs(store, &options, see_run, last, error);
  }
  return status;
}

static int show_job(const struct last *last, size_t i, const struct dibs__cron_state *state, int64_t now_ms,
                    dibs_cron_fn fn, void *user) {
  const struct dibs__cron_job *job = &last->tab->jobs[i];
  const struct job_end *end = &last->ends[i];
  const struct dibs__cron_line *line = dibs__cron_state_find(state, dibs__cron_job_digest(job));
  int64_t next_ms = dibs__cron_next(job, now_ms);
  dibs_cron_info info = {.size = sizeof info,
                         .name = job->name,
                         .schedule = job->text,
                         .zone = job->zone_name,
                         .command = job->command,
                         .next_ms = next_ms == INT64_MAX ? -1 : next_ms,
                         .last_ms = end->known ? end->began_ms : -1,
                         .last_how = end->how,
                         .last_code = end->code,
                         .last_missed_ms = -1};
  if (line) {
    info.missed = line->missed;
    info.skipped = line->skipped;
    if (line->missed > 0) info.last_missed_ms = line->last_missed;
  }
  return fn(&info, user);
}

static dibs_status list_jobs(dibs_store *store, const char *name, const struct dibs__crontab *tab, dibs_cron_fn fn,
                             void *user, dibs_error *error) {
  struct dibs__store_clock clock = {0};
  struct dibs__cron_state state = {0};
  struct last last = {.tab = tab, .ends = calloc(tab->job_count + 1, sizeof *last.ends)};
  if (!last.ends) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the jobs");
  dibs_status status = dibs__cron_clock(store, &clock, error);
  if (status == DIBS_OK) status = find_last(store, &last, error);
  if (status == DIBS_OK) status = dibs__cron_load(store, name, &state, error);
  if (status == DIBS_OK)
    for (size_t i = 0; i < tab->job_count; i++)
      if (show_job(&last, i, &state, clock.ms, fn, user) != 0) break;
  dibs__cron_state_free(&state);
  free(last.ends);
  return status;
}

dibs_status dibs_cron_list(dibs_store *store, const char *name, const dibs_cron_table *given, dibs_cron_fn fn,
                           void *user, dibs_error *error) {
  struct dibs__cron_table *table;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_cron_list: fn is NULL");
  if (dibs__cron_check_name(name, error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__cron_table_read(given, &table, error);
  if (status != DIBS_OK) return status;
  status = list_jobs(store, name, table->tab, fn, user, error);
  dibs__cron_table_drop(table);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

/* ---- By hand ---- */

static dibs_status fire(dibs_store *store, const char *name, const struct dibs__crontab *tab, const char *job_name,
                        const char *token, uint64_t *nr, dibs_error *error) {
  struct dibs__store_clock clock;
  bool skipped;
  const struct dibs__cron_job *job = dibs__crontab_find(tab, job_name);
  if (!job) return dibs__fail(error, DIBS_NOT_FOUND, "there is no job \"%.128s\" in the table", job_name);
  dibs_status status = dibs__cron_clock(store, &clock, error);
  if (status != DIBS_OK) return status;
  const struct dibs__cron_due due = {.at_ms = clock.ms / 1000 * 1000};
  status = dibs__cron_fire(store, name, job, &due, token, &skipped, nr, error);
  if (status == DIBS_OK && skipped)
    return dibs__fail(error, DIBS_HELD, "\"%.128s\" is still running, and its firings do not overlap", job_name);
  return status;
}

dibs_status dibs__cron_fire_once(dibs_store *store, const char *name, const dibs_cron_table *given, const char *job,
                                 const char *token, uint64_t *nr, dibs_error *error) {
  struct dibs__cron_table *table;
  *nr = 0;
  if (!job) return dibs__fail(error, DIBS_INVALID, "dibs_cron_fire: job is NULL");
  if (dibs__cron_check_name(name, error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__cron_table_read(given, &table, error);
  if (status != DIBS_OK) return status;
  status = fire(store, name, table->tab, job, token, nr, error);
  dibs__cron_table_drop(table);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

dibs_status dibs_cron_fire(dibs_store *store, const char *name, const dibs_cron_table *given, const char *job,
                           uint64_t *nr, dibs_error *error) {
  uint8_t id[2][16];
  char token[65];
  uint64_t own;
  dibs__random(id, sizeof id);
  dibs__hex_write(id[0], token);
  dibs__hex_write(id[1], token + 32);
  return dibs__cron_fire_once(store, name, given, job, token, nr ? nr : &own, error);
}

/* ---- Without a store ---- */

dibs_status dibs_cron_next(const char *text, const char *zone_name, int64_t after_ms, int64_t *next_ms,
                           dibs_error *error) {
  struct dibs__cron_job job = {.line = 0};
  struct dibs__zone *zone = NULL;
  char wrong[200];
  if (!text || !next_ms) return dibs__fail(error, DIBS_INVALID, "dibs_cron_next: the schedule or next_ms is NULL");
  *next_ms = 0;
  if (!dibs__schedule_read(text, &job.schedule, wrong, sizeof wrong) ||
      !dibs__zone_load(zone_name ? zone_name : "UTC", &zone, wrong, sizeof wrong))
    return dibs__fail(error, DIBS_INVALID, "%s", wrong);
  job.zone = zone;
  int64_t next = dibs__cron_next(&job, after_ms);
  dibs__zone_free(zone);
  if (next == INT64_MAX)
    return dibs__fail(error, DIBS_NOT_FOUND, "\"%.200s\" does not match any instant in the next hundred years", text);
  *next_ms = next;
  return dibs__fine(error);
}
