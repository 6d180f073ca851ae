/* SPDX-License-Identifier: MIT */
/* The command of a firing, guarded by a minder under the claim: see cron.h. */
#include "cli/cron.h"
#include "history/history.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OWN_VARIABLES = 6 };

struct work {
  struct run run; /* first */
  struct cron_pool *pool;
  const dibs_firing *firing;
  size_t slot;
  struct tail_pipe tail;
};

/* ---- What the command gets ---- */

static void write_instant(char *to, size_t size, int64_t at_ms) {
  time_t at = (time_t)(at_ms / 1000);
  struct tm utc;
  if (gmtime_r(&at, &utc) == NULL || strftime(to, size, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) *to = '\0';
}

/* The variables of the crontab, then dibs' own.  The pointers are valid as long as `own` and the firing are. */
struct variables {
  char own[OWN_VARIABLES][DIBS_CRON_NAME_MAX + 4200];
  const char **list;
};

static bool make_variables(struct variables *v, const struct work *w) {
  const dibs_firing *f = w->firing;
  char instant[40];
  size_t count = 0;
  while (f->environment[count] != NULL) count++;
  v->list = calloc(count + OWN_VARIABLES + 1, sizeof *v->list);
  if (v->list == NULL) return false;
  for (size_t i = 0; i < count; i++) v->list[i] = f->environment[i];
  write_instant(instant, sizeof instant, f->at_ms);
  snprintf(v->own[0], sizeof v->own[0], "DIBS_TASK=%" PRIu64, f->task->nr);
  snprintf(v->own[1], sizeof v->own[1], "DIBS_FENCE=%" PRIu64, f->task->fence.value);
  snprintf(v->own[2], sizeof v->own[2], "DIBS_ATTEMPT=%" PRIu32, f->task->attempt);
  snprintf(v->own[3], sizeof v->own[3], "DIBS_JOB=%s", f->job);
  snprintf(v->own[4], sizeof v->own[4], "DIBS_INSTANT=%s", instant);
  snprintf(v->own[5], sizeof v->own[5], "DIBS_STORE=%s", w->pool->store_uri);
  for (size_t i = 0; i < OWN_VARIABLES; i++) v->list[count + i] = v->own[i];
  return true;
}

static const char *shell_of(const dibs_firing *f) {
  for (const char *const *v = f->environment; *v != NULL; v++)
    if (strncmp(*v, "SHELL=", 6) == 0 && (*v)[6] != '\0') return *v + 6;
  return "/bin/sh";
}

/* What the crontab has after the first %, or nothing. */
static int open_input(const dibs_firing *f) {
  if (f->input == NULL) return open("/dev/null", O_RDONLY | O_CLOEXEC);
  return dibs__cli_input_file(f->input, strlen(f->input));
}

/* ---- Running it ---- */

static int64_t claim_left(const struct run *run) {
  return dibs_task_left_ms(((const struct work *)(const void *)run)->firing->task);
}

/* 0, or errno: nothing was started. */
static int start_minder(struct work *w, const char *const *variables) {
  const char *const argv[] = {shell_of(w->firing), "-c", w->firing->command, NULL};
  int ends[2] = {-1, -1}, error = 0, in = open_input(w->firing);
  if (in < 0 || pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) error = errno;
  w->tail.from = ends[0];
  const struct launch launch = {.name = w->firing->job,
                                .argv = argv,
                                .environment = variables,
                                .grace_ms = w->run.grace_ms,
                                .in = in,
                                .out = ends[1]};
  if (error == 0 && !dibs__cli_launch(&w->pool->slots.list[w->slot].launcher, &launch, &w->run.minder)) error = errno;
  if (in >= 0) close(in);
  if (ends[1] >= 0) close(ends[1]);
  return error;
}

static void run_command(struct work *w) {
  struct variables *v = malloc(sizeof *v);
  bool fine = v != NULL && make_variables(v, w);
  w->run.start_error = fine ? start_minder(w, v->list) : ENOMEM;
  if (v != NULL && fine) free(v->list);
  free(v);
  if (w->run.start_error == 0) {
    /* Those of a lease that dibs itself may run under are removed. */
    char removed[MINDER_TEXT_MAX];
    size_t length = 0;
    static const char *const names[] = {"DIBS_NAME", "DIBS_LEASE", "DIBS_SLOT", "DIBS_TTL"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) dibs__cli_run_variable(removed, &length, names[i], "");
    dibs__cli_run_loop(&w->run, removed, length);
    dibs__cli_tail_pipe_read(&w->tail);
  } else if (w->run.start_error == EPIPE) {
    w->pool->broken = true;
    dibs__notifier_raise(w->pool->wake_fd);
  }
}

static dibs_verdict judge(const struct work *w, dibs_firing_reply *reply) {
  static_assert(sizeof reply->text >= DIBS__RUN_OUTPUT_MAX, "the output of a run fits");
  struct dibs__run_row row = {.how = 0};
  if (w->run.start_error == EPIPE) return DIBS_END_RELEASE;
  if (dibs__cli_run_lacks_means(&w->run)) {
    dibs__cli_slots_pause(&w->pool->slots, w->pool->globals, w->firing->job, w->run.start_error, w->pool->end_fd);
    return DIBS_END_RELEASE;
  }
  w->pool->slots.start_error = 0;
  dibs__cli_history_describe(&w->run, &row);
  reply->how = (dibs_run_end)row.how;
  reply->code = row.code;
  reply->length = dibs__cli_last_read(&w->tail.tail, reply->text);
  return row.how == DIBS__RUN_DONE ? DIBS_END_DONE : DIBS_END_FAIL;
}

dibs_verdict dibs__cli_cron_work(const dibs_firing *firing, dibs_firing_reply *reply, void *user) {
  struct cron_pool *pool = user;
  if (pool->broken) return DIBS_END_RELEASE;
  char *argv[] = {(char *)(uintptr_t)firing->command, NULL}; /* for messages */
  struct work w = {.pool = pool, .firing = firing, .tail = {.from = -1}, .slot = dibs__cli_slot_take(&pool->slots)};
  w.run = dibs__cli_slot_run(&pool->slots, w.slot, pool->globals, &w.tail, pool->end_fd);
  w.run.name = firing->job;
  w.run.argv = argv;
  w.run.options.ttl_ms = CRON_CLAIM_MS;
  w.run.grace_ms = dibs__cli_run_grace(CRON_CLAIM_MS);
  w.run.max_ms = firing->timeout_ms;
  w.run.left_ms = claim_left;
  if (w.run.alarm >= 0)
    run_command(&w);
  else
    w.run.start_error = errno;
  dibs_verdict verdict = judge(&w, reply);
  if (w.run.minder.fd >= 0) close(w.run.minder.fd);
  if (w.run.alarm >= 0) close(w.run.alarm);
  if (w.tail.from >= 0) close(w.tail.from);
  dibs__cli_slot_free(&pool->slots, w.slot);
  return verdict;
}
