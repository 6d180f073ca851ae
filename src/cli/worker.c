/* SPDX-License-Identifier: MIT */
/*
 * `dibs worker`: a worker of the library whose function runs a command for each task (job.c).
 *
 * The order: signals are blocked and a launcher for each job is forked while there is one thread; then the store is
 * opened, and the worker's threads are started.  This thread waits for signals, and stops the worker.
 */
#include "base/duration.h"
#include "cli/job.h"
#include "store/locate.h"
#include "task/task.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  TIMEOUT_MS = 30000,
  DRAIN_MS = 30000,
  LOOK_MS = 500,     /* between two looks at the state of the worker */
  LOOK_ONCE_MS = 50, /* and with --once */
  ENDED_MS = 5000,   /* after KILL: until the verdicts are sent */
  TROUBLE_MS = 5000  /* --once gives up on a store that does not answer for so long */
};

struct cli_worker {
  struct job_pool pool; /* first */
  const struct cli_values *v;
  const struct work_plan *plan;
  struct cli_signals signals;
  dibs_worker *worker;
  bool once;
  bool told; /* that the tasks go to lanes */
  /* --once: what was counted when nothing was held for the first time. */
  bool was_idle;
  uint64_t idle_claimed, idle_polls;
  dibs_status trouble; /* of which a note was written */
  dibs__tick trouble_since;
  char odd[256]; /* the latest row of a table that was noted: no claim takes it */
};

/* ---- Before the store is opened ---- */

static int check_call(const struct cli_call *call) {
  const struct cli_values *v = &call->v;
  const struct cli_globals *g = &v->globals;
  if (v->kind == NULL && v->table == NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--kind KIND is missing: of which kind are the tasks?");
  if (v->kind != NULL && v->table != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "give --kind or --table: the rows of a table have no kind");
  if (v->exec != NULL && call->nrest > 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "give the command with --exec, or after --, and not both");
  if (v->topic == NULL && (v->lanes != CLI_UNSET || v->ttl_ms != CLI_UNSET))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "--lanes and --ttl are for a worker by lane: give --topic TOPIC, too");
  if (v->topic != NULL && (v->table != NULL || v->phase != NULL))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "--topic is for tasks of all phases in dibs' own table: give it without --table and --phase");
  return CLI_DONE;
}

static int make_folder(struct job_pool *pool) {
  const char *at = getenv("TMPDIR");
  int length =
      snprintf(pool->folder, sizeof pool->folder, "%s/dibs-worker.XXXXXX", at != NULL && *at == '/' ? at : "/tmp");
  if (length > 0 && (size_t)length < sizeof pool->folder && mkdtemp(pool->folder) != NULL) return CLI_DONE;
  int error = length > 0 && (size_t)length < sizeof pool->folder ? errno : ENAMETOOLONG;
  pool->folder[0] = '\0';
  return dibs__cli_fail(pool->globals, CLI_FAILED, "", "cannot create a folder for DIBS_NEXT_PHASE in %s: %s",
                        at != NULL && *at == '/' ? at : "/tmp", strerror(error));
}

static void remove_folder(const struct job_pool *pool) {
  char path[96];
  if (pool->folder[0] == '\0') return;
  for (size_t i = 0; i < pool->slots.count; i++) {
    snprintf(path, sizeof path, "%s/%zu", pool->folder, i);
    unlink(path);
  }
  rmdir(pool->folder);
}

static int start_pool(struct cli_worker *w, char *const *argv) {
  struct job_pool *pool = &w->pool;
  size_t jobs = w->v->jobs == CLI_UNSET ? 1 : (size_t)w->v->jobs;
  pool->argv = argv;
  pool->end_fd = dibs__notifier_open();
  pool->wake_fd = dibs__notifier_open();
  if (pool->end_fd < 0 || pool->wake_fd < 0)
    return dibs__cli_fail(pool->globals, CLI_FAILED, "", "no file descriptor is left");
  int code = make_folder(pool);
  if (code == CLI_DONE) code = dibs__cli_slots_open(&pool->slots, pool->globals, &w->signals.before, argv, jobs);
  return code;
}

/* ---- While it works ---- */

/* Nothing is held, and the store was asked twice since: the first time may have been before the last task ended. */
static bool nothing_left(struct cli_worker *w) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  if (dibs_worker_count(w->worker, &c, NULL) != DIBS_OK || c.held > 0 || c.lanes != c.lanes_assigned ||
      (w->was_idle && c.claimed != w->idle_claimed)) {
    w->was_idle = false;
    return false;
  }
  if (w->pool.topic != NULL && c.lanes == 0) return true; /* there are more members than lanes */
  if (!w->was_idle) {
    w->was_idle = true;
    w->idle_claimed = c.claimed;
    w->idle_polls = c.idle;
  }
  return c.idle >= w->idle_polls + 2;
}

/* Says once when the store does not answer, and when it does again.  CLI_DONE; or the exit code with which --once gives
 * up. */
static int watch_trouble(struct cli_worker *w) {
  const struct cli_globals *g = w->pool.globals;
  dibs_error error = {0};
  dibs_worker_trouble(w->worker, &error);
  /* The table does not fit, or the kind belongs to another topic: asking again does not help. */
  bool wrong = (w->pool.table != NULL || w->pool.topic != NULL) &&
               (error.status == DIBS_INVALID || error.status == DIBS_UNSUPPORTED);
  if (wrong || error.status == DIBS_CONFLICT) return dibs__cli_fail_status(g, error.status, &error, w->pool.kind);
  if (error.status == DIBS_NOT_FOUND) { /* the tasks go to lanes */
    if (!w->told)
      dibs__cli_note(g, "%s: start workers with --topic, or end that with dibs task kind %s --no-lanes", error.text,
                     w->pool.kind);
    w->told = true;
    return CLI_DONE;
  }
  if (error.status != DIBS_OK && w->trouble == DIBS_OK) {
    w->trouble_since = dibs__tick_now();
    dibs__cli_note(g, "%s; dibs tries again", error.text);
  } else if (error.status == DIBS_OK && w->trouble != DIBS_OK) {
    dibs__cli_note(g, "%s answers again", dibs_store_uri(w->pool.store));
  }
  if (error.status == DIBS_OK && error.text[0] && strncmp(error.text, w->odd, sizeof w->odd - 1) != 0) {
    snprintf(w->odd, sizeof w->odd, "%.255s", error.text);
    dibs__cli_note(g, "%s", error.text);
  }
  w->trouble = error.status;
  if (!w->once || error.status == DIBS_OK || dibs__tick_left_ms(w->trouble_since, dibs__tick_now()) < TROUBLE_MS)
    return CLI_DONE;
  return dibs__cli_fail_status(g, error.status, &error, w->pool.kind);
}

/* The next signal that asks to end; 0: none. */
static int next_signal(const struct cli_worker *w) {
  int signo;
  while ((signo = dibs__cli_signals_next(&w->signals)) != 0) {
    if (signo == SIGTSTP) raise(SIGSTOP);
    if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) return signo;
  }
  return 0;
}

/* Waits for a signal, or for `ms`; meanwhile lanes come and go.  The signal that asks to end; 0: none. */
static int wait_for_signal(const struct cli_worker *w, int64_t ms) {
  const struct job_pool *pool = &w->pool;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  struct pollfd fds[] = {{w->signals.fd, POLLIN, 0}, {pool->wake_fd, POLLIN, 0}, {-1, POLLIN, 0}};
  if (pool->topic != NULL) fds[2].fd = dibs_fd(pool->store);
  for (;;) {
    int ready = poll(fds, 3, (int)dibs__tick_left_ms(dibs__tick_now(), by));
    if (ready > 0 && fds[1].revents != 0) dibs__notifier_lower(pool->wake_fd);
    if (pool->topic != NULL) dibs_dispatch(pool->store, 0);
    bool only_lanes = ready > 0 && fds[0].revents == 0 && fds[1].revents == 0;
    if (!only_lanes || !dibs__tick_before(dibs__tick_now(), by)) return next_signal(w);
  }
}

/* With a topic it asks the store, which may not answer now. */
static int start_again(struct cli_worker *w, const dibs_worker_options *o) {
  const struct job_pool *pool = &w->pool;
  dibs__tick by = w->once ? dibs__tick_add_ms(dibs__tick_now(), TROUBLE_MS) : DIBS__TICK_NEVER;
  dibs_error error = {0};
  for (bool noted = false;; noted = true) {
    dibs_status status = dibs_worker_start(pool->store, pool->table != NULL ? NULL : pool->kind, o, &w->worker, &error);
    if (status == DIBS_OK) return CLI_DONE;
    if ((status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) || !dibs__tick_before(dibs__tick_now(), by))
      return dibs__cli_fail_status(pool->globals, status, &error, pool->kind);
    if (!noted) dibs__cli_note(pool->globals, "%s; dibs tries again", error.text);
    int signo = wait_for_signal(w, LOOK_MS);
    if (signo != 0) return CLI_SIGNAL + signo;
  }
}

static int start_worker(struct cli_worker *w) {
  struct job_pool *pool = &w->pool;
  const struct cli_globals *g = pool->globals;
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = w->once ? 0 : DIBS_FOREVER};
  int code = dibs__cli_reach(g, &reach, &w->signals, &pool->store);
  if (code != CLI_DONE) return code;
  pool->store_uri = dibs__cli_store_uri(g, pool->store);
  if (pool->store_uri == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  if (w->plan->keeps_history) pool->history = dibs__cli_history_start(g, pool->store, pool->kind, pool->argv);
  const char *phases[] = {w->plan->phase};
  /* Long tasks: those that wait here could run elsewhere. */
  dibs_worker_options o = {.size = sizeof o,
                           .phases = phases,
                           .phase_count = w->plan->phase != NULL ? 1 : 0,
                           .threads = (uint32_t)pool->slots.count,
                           .flags = DIBS_WORKER_NO_PREFETCH,
                           .timeout_ms = pool->timeout_ms,
                           .poll_ms = w->once ? LOOK_ONCE_MS : 0,
                           .owner = g->owner,
                           .table = pool->table,
                           .work = dibs__cli_job,
                           .user = pool,
                           .topic = pool->topic,
                           .lanes = w->v->lanes != CLI_UNSET ? (uint32_t)w->v->lanes : 0,
                           .lane_ttl_ms = pool->topic != NULL ? pool->lane_ttl_ms : 0};
  return start_again(w, &o);
}

static bool enough(const struct job_pool *pool) {
  return pool->max_tasks > 0 && pool->begun >= pool->max_tasks;
}

/* Until it has to stop.  CLI_DONE, or an exit code after a message. */
static int work_on(struct cli_worker *w) {
  const struct job_pool *pool = &w->pool;
  while (wait_for_signal(w, w->once ? LOOK_ONCE_MS : LOOK_MS) == 0) {
    int code = watch_trouble(w);
    if (code != CLI_DONE) return code;
    if (pool->broken)
      return dibs__cli_fail(pool->globals, CLI_FAILED, "",
                            "a process that starts commands was killed or stopped; the worker ends");
    if ((w->once && nothing_left(w)) || enough(pool)) return CLI_DONE;
  }
  return CLI_DONE;
}

/* Claims no more.  Commands that still run when --drain is over, or at a second signal, are ended, and their tasks
 * given back. */
static void drain(struct cli_worker *w) {
  const struct job_pool *pool = &w->pool;
  int64_t drain_ms = w->v->drain_ms == CLI_UNSET ? DRAIN_MS : w->v->drain_ms;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), drain_ms);
  bool told = false;
  while (dibs_worker_stop(w->worker, LOOK_ONCE_MS, NULL) == DIBS_TIMEOUT) {
    if (!told && pool->verbose) dibs__cli_note(pool->globals, "waiting for the commands that run");
    told = true;
    if (!dibs__tick_before(dibs__tick_now(), by) || wait_for_signal(w, 0) != 0) break;
  }
  dibs__notifier_raise(pool->end_fd);
  by = dibs__tick_add_ms(dibs__tick_now(), dibs__cli_run_grace(pool->timeout_ms) + ENDED_MS);
  while (dibs_worker_stop(w->worker, LOOK_ONCE_MS, NULL) == DIBS_TIMEOUT && dibs__tick_before(dibs__tick_now(), by))
    (void)wait_for_signal(w, 0);
}

/* ---- The end ---- */

/* The counts are final.  An exit code after a message if the store did not answer some verdicts of the end. */
static int check_unsent(const struct cli_worker *w, uint64_t unsent_before) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  dibs_error error = {0};
  char after[24];
  if (dibs_worker_count(w->worker, &c, NULL) != DIBS_OK || c.unsent <= unsent_before) return CLI_DONE;
  uint64_t unsent = c.unsent - unsent_before;
  dibs_worker_trouble(w->worker, &error);
  dibs_status status = error.status != DIBS_OK ? error.status : DIBS_UNKNOWN;
  dibs__duration_write(after, sizeof after, w->pool.timeout_ms);
  return dibs__cli_fail(w->pool.globals, dibs__cli_exit_of(status), dibs_status_name(status),
                        "%s%sgave up sending how %" PRIu64 " task%s ended: %s claimed again within %s", error.text,
                        error.text[0] ? "; " : "", unsent, unsent == 1 ? "" : "s",
                        unsent == 1 ? "it can be" : "they can be", after);
}

static uint64_t count_unsent(const struct cli_worker *w) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  return dibs_worker_count(w->worker, &c, NULL) == DIBS_OK ? c.unsent : 0;
}

static void report(const struct cli_worker *w) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  if (!w->pool.globals->json || dibs_worker_count(w->worker, &c, NULL) != DIBS_OK) return;
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, w->pool.table != NULL ? "table" : "kind", w->pool.kind);
  dibs__json_uint(&j, "claimed", c.claimed);
  dibs__json_uint(&j, "done", c.done);
  dibs__json_uint(&j, "next", c.next);
  dibs__json_uint(&j, "waits", c.waits);
  dibs__json_uint(&j, "failed", c.failed);
  dibs__json_uint(&j, "dead", c.dead);
  dibs__json_uint(&j, "released", c.released);
  dibs__json_uint(&j, "refused", c.refused);
  dibs__json_uint(&j, "unsent", c.unsent);
  dibs__json_uint(&j, "requests", c.requests);
  if (w->pool.topic != NULL) dibs__json_text(&j, "topic", w->pool.topic);
  dibs__json_close(&j, '}');
}

static void free_pool(struct job_pool *pool) {
  remove_folder(pool);
  dibs__cli_slots_close(&pool->slots);
  if (pool->end_fd >= 0) dibs__notifier_close(pool->end_fd);
  if (pool->wake_fd >= 0) dibs__notifier_close(pool->wake_fd);
  dibs__locate_free(pool->store_uri);
}

int dibs__cli_work(const struct cli_values *v, const struct work_plan *plan, char *const *argv) {
  struct cli_worker w = {.v = v, .plan = plan, .once = v->once, .signals = {.fd = -1}};
  struct job_pool *pool = &w.pool;
  pool->globals = &v->globals;
  pool->kind = plan->kind;
  pool->table = plan->table;
  pool->timeout_ms = plan->timeout_ms == CLI_UNSET ? TIMEOUT_MS : plan->timeout_ms;
  pool->max_ms = plan->max_ms;
  pool->topic = v->topic;
  pool->lane_ttl_ms = v->ttl_ms == CLI_UNSET ? DIBS_TTL_DEFAULT_MS : v->ttl_ms;
  pool->max_tasks = v->max_tasks == CLI_UNSET ? 0 : (uint64_t)v->max_tasks;
  pool->tries = plan->tries == CLI_UNSET ? 0 : (uint32_t)plan->tries;
  pool->zero_or_failed = plan->zero_or_failed;
  pool->verbose = v->verbose || isatty(STDERR_FILENO);
  pool->end_fd = pool->wake_fd = -1;
  int code = dibs__cli_signals_open(pool->globals, &w.signals);
  if (code == CLI_DONE) code = start_pool(&w, argv);
  if (code == CLI_DONE) code = start_worker(&w);
  if (code == CLI_DONE) {
    if (pool->verbose)
      dibs__cli_note(pool->globals, "working on %s '%s'", pool->table != NULL ? "rows of" : "tasks of kind",
                     pool->kind);
    code = work_on(&w);
    uint64_t unsent_before = count_unsent(&w);
    drain(&w);
    dibs__worker_end(w.worker);
    report(&w);
    if (code == CLI_DONE) code = check_unsent(&w, unsent_before);
    if (code == CLI_DONE) code = dibs__cli_flush(pool->globals);
  }
  dibs_worker_free(w.worker);
  dibs__cli_history_end(pool->history);
  dibs_close(pool->store);
  free_pool(pool);
  if (w.signals.fd >= 0) dibs__cli_signals_close(&w.signals);
  return code;
}

int dibs__cli_worker(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  char shell[] = "sh", option[] = "-c";
  char *by_shell[] = {shell, option, (char *)(uintptr_t)v->exec, NULL};
  struct work_plan plan = {.kind = v->kind,
                           .phase = v->phase,
                           .timeout_ms = v->timeout_ms,
                           .max_ms = v->max_ms,
                           .tries = CLI_UNSET,
                           .keeps_history = !dibs__cli_history_is_off(v)};
  dibs_table *table = NULL;
  int code = check_call(call);
  if (code == CLI_DONE) code = dibs__cli_table(call, &table);
  if (table != NULL) plan.kind = v->table;
  plan.table = table;
  if (code == CLI_DONE) code = dibs__cli_work(v, &plan, v->exec != NULL ? by_shell : call->rest);
  dibs_table_free(table);
  return code;
}
