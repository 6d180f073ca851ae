/* SPDX-License-Identifier: MIT */
/*
 * `dibs worker`: a worker of the library whose function runs a command for each task (job.c).
 *
 * The order: signals are blocked and a launcher for each job is forked while there is one thread; then the store is
 * opened, and the worker's threads are started.  This thread waits for signals, and stops the worker.
 */
#include "cli/job.h"
#include "store/locate.h"

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
  struct crew crew; /* first */
  const struct cli_values *v;
  const struct work_plan *plan;
  struct cli_signals signals;
  dibs_worker *worker;
  bool once;
  /* --once: what was counted when nothing was held for the first time. */
  bool resting;
  uint64_t rested_claimed, rested_idle;
  dibs_status trouble; /* of which a note was written */
  dibs__tick trouble_since;
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
  return CLI_DONE;
}

static int make_folder(struct crew *crew) {
  const char *at = getenv("TMPDIR");
  int length =
      snprintf(crew->folder, sizeof crew->folder, "%s/dibs-worker.XXXXXX", at != NULL && *at == '/' ? at : "/tmp");
  if (length > 0 && (size_t)length < sizeof crew->folder && mkdtemp(crew->folder) != NULL) return CLI_DONE;
  int error = length > 0 && (size_t)length < sizeof crew->folder ? errno : ENAMETOOLONG;
  crew->folder[0] = '\0';
  return dibs__cli_fail(crew->globals, CLI_FAILED, "", "cannot create a folder for DIBS_NEXT_PHASE in %s: %s",
                        at != NULL && *at == '/' ? at : "/tmp", strerror(error));
}

static void remove_folder(const struct crew *crew) {
  char path[96];
  if (crew->folder[0] == '\0') return;
  for (size_t i = 0; i < crew->count; i++) {
    snprintf(path, sizeof path, "%s/%zu", crew->folder, i);
    unlink(path);
  }
  rmdir(crew->folder);
}

static int start_crew(struct cli_worker *w, char *const *argv) {
  struct crew *crew = &w->crew;
  size_t jobs = w->v->jobs == CLI_UNSET ? 1 : (size_t)w->v->jobs;
  crew->argv = argv;
  crew->places = calloc(jobs, sizeof *crew->places);
  crew->end_fd = dibs__notifier_open();
  crew->wake_fd = dibs__notifier_open();
  if (crew->places == NULL || crew->end_fd < 0 || crew->wake_fd < 0)
    return dibs__cli_fail(crew->globals, CLI_FAILED, "", "no memory or no file descriptor is left");
  int code = make_folder(crew);
  for (size_t i = 0; i < jobs && code == CLI_DONE; i++) {
    code = dibs__cli_launcher_start(crew->globals, &w->signals.before, argv, &crew->places[i].launcher);
    if (code == CLI_DONE) crew->count++;
  }
  return code;
}

static int start_worker(struct cli_worker *w) {
  struct crew *crew = &w->crew;
  const struct cli_globals *g = crew->globals;
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = w->once ? 0 : DIBS_FOREVER};
  dibs_error error = {0};
  int code = dibs__cli_reach(g, &reach, &w->signals, &crew->store);
  if (code != CLI_DONE) return code;
  crew->store_uri = dibs__cli_store_uri(g, crew->store);
  if (crew->store_uri == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  if (w->plan->kept) crew->history = dibs__cli_history_start(g, crew->store, crew->kind, crew->argv);
  const char *phases[] = {w->plan->phase};
  /* Long tasks: those that wait here could run elsewhere. */
  dibs_worker_options o = {.size = sizeof o,
                           .phases = phases,
                           .phase_count = w->plan->phase != NULL ? 1 : 0,
                           .threads = (uint32_t)crew->count,
                           .flags = DIBS_WORKER_NO_PREFETCH,
                           .timeout_ms = crew->timeout_ms,
                           .poll_ms = w->once ? LOOK_ONCE_MS : 0,
                           .owner = g->owner,
                           .table = crew->table,
                           .work = dibs__cli_job,
                           .user = crew};
  dibs_status status = dibs_worker_start(crew->store, crew->table != NULL ? NULL : crew->kind, &o, &w->worker, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(g, status, &error, crew->kind);
}

/* ---- While it works ---- */

/* Nothing is held, and the store was asked twice since: the first time may have been before the last task ended. */
static bool nothing_left(struct cli_worker *w) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  if (dibs_worker_count(w->worker, &c, NULL) != DIBS_OK || c.held > 0 ||
      (w->resting && c.claimed != w->rested_claimed)) {
    w->resting = false;
    return false;
  }
  if (!w->resting) {
    w->resting = true;
    w->rested_claimed = c.claimed;
    w->rested_idle = c.idle;
  }
  return c.idle >= w->rested_idle + 2;
}

/* Says once when the store does not answer, and when it does again.  CLI_DONE; or the exit code with which --once gives
 * up. */
static int watch_trouble(struct cli_worker *w) {
  const struct cli_globals *g = w->crew.globals;
  dibs_error error = {0};
  dibs_worker_trouble(w->worker, &error);
  /* The table does not fit: asking again does not help. */
  if (w->crew.table != NULL && (error.status == DIBS_INVALID || error.status == DIBS_UNSUPPORTED))
    return dibs__cli_fail_status(g, error.status, &error, w->crew.kind);
  if (error.status != DIBS_OK && w->trouble == DIBS_OK) {
    w->trouble_since = dibs__tick_now();
    dibs__cli_note(g, "%s; it is asked again", error.text);
  } else if (error.status == DIBS_OK && w->trouble != DIBS_OK) {
    dibs__cli_note(g, "%s answers again", dibs_store_uri(w->crew.store));
  }
  w->trouble = error.status;
  if (!w->once || error.status == DIBS_OK || dibs__tick_left_ms(w->trouble_since, dibs__tick_now()) < TROUBLE_MS)
    return CLI_DONE;
  return dibs__cli_fail_status(g, error.status, &error, w->crew.kind);
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

/* Waits for a signal, or for `ms`.  true: a signal asks to end. */
static bool wait_for_signal(const struct cli_worker *w, int64_t ms) {
  struct pollfd fds[] = {{w->signals.fd, POLLIN, 0}, {w->crew.wake_fd, POLLIN, 0}};
  if (poll(fds, 2, (int)ms) > 0 && fds[1].revents != 0) dibs__notifier_lower(w->crew.wake_fd);
  return next_signal(w) != 0;
}

static bool enough(const struct crew *crew) {
  return crew->max_tasks > 0 && crew->begun >= crew->max_tasks;
}

/* Until it has to stop.  CLI_DONE, or an exit code after a message. */
static int work_on(struct cli_worker *w) {
  const struct crew *crew = &w->crew;
  while (!wait_for_signal(w, w->once ? LOOK_ONCE_MS : LOOK_MS)) {
    int code = watch_trouble(w);
    if (code != CLI_DONE) return code;
    if (crew->broken)
      return dibs__cli_fail(crew->globals, CLI_FAILED, "",
                            "a process that starts commands was killed or stopped; the worker ends");
    if ((w->once && nothing_left(w)) || enough(crew)) return CLI_DONE;
  }
  return CLI_DONE;
}

/* Claims no more.  Commands that still run when --drain is over, or at a second signal, are ended, and their tasks
 * given back. */
static void drain(struct cli_worker *w) {
  const struct crew *crew = &w->crew;
  int64_t drain_ms = w->v->drain_ms == CLI_UNSET ? DRAIN_MS : w->v->drain_ms;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), drain_ms);
  bool told = false;
  while (dibs_worker_stop(w->worker, LOOK_ONCE_MS, NULL) == DIBS_TIMEOUT) {
    if (!told && crew->tells) dibs__cli_note(crew->globals, "waiting for the commands that run");
    told = true;
    if (!dibs__tick_before(dibs__tick_now(), by) || wait_for_signal(w, 0)) break;
  }
  dibs__notifier_raise(crew->end_fd);
  (void)!dibs_worker_stop(w->worker, dibs__cli_run_grace(crew->timeout_ms) + ENDED_MS, NULL);
}

/* ---- The end ---- */

static void report(const struct cli_worker *w) {
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  if (!w->crew.globals->json || dibs_worker_count(w->worker, &c, NULL) != DIBS_OK) return;
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, w->crew.table != NULL ? "table" : "kind", w->crew.kind);
  dibs__cli_json_uint(&j, "claimed", c.claimed);
  dibs__cli_json_uint(&j, "done", c.done);
  dibs__cli_json_uint(&j, "next", c.next);
  dibs__cli_json_uint(&j, "waits", c.waits);
  dibs__cli_json_uint(&j, "failed", c.failed);
  dibs__cli_json_uint(&j, "dead", c.dead);
  dibs__cli_json_uint(&j, "released", c.released);
  dibs__cli_json_uint(&j, "refused", c.refused);
  dibs__cli_json_uint(&j, "unsent", c.unsent);
  dibs__cli_json_uint(&j, "requests", c.requests);
  dibs__cli_json_close(&j, '}');
}

static void free_crew(struct crew *crew) {
  for (size_t i = 0; i < crew->count; i++) dibs__cli_launcher_end(&crew->places[i].launcher);
  remove_folder(crew);
  free(crew->places);
  if (crew->end_fd >= 0) dibs__notifier_close(crew->end_fd);
  if (crew->wake_fd >= 0) dibs__notifier_close(crew->wake_fd);
  dibs__locate_free(crew->store_uri);
  dibs__mutex_destroy(&crew->lock);
}

int dibs__cli_work(const struct cli_values *v, const struct work_plan *plan, char *const *argv) {
  struct cli_worker w = {.v = v, .plan = plan, .once = v->once, .signals = {.fd = -1}};
  struct crew *crew = &w.crew;
  crew->globals = &v->globals;
  crew->kind = plan->kind;
  crew->table = plan->table;
  crew->timeout_ms = plan->timeout_ms == CLI_UNSET ? TIMEOUT_MS : plan->timeout_ms;
  crew->max_ms = plan->max_ms;
  crew->max_tasks = v->max_tasks == CLI_UNSET ? 0 : (uint64_t)v->max_tasks;
  crew->tries = plan->tries == CLI_UNSET ? 0 : (uint32_t)plan->tries;
  crew->plain = plan->plain;
  crew->tells = v->verbose || isatty(STDERR_FILENO);
  crew->end_fd = crew->wake_fd = -1;
  dibs__mutex_init(&crew->lock);
  int code = dibs__cli_signals_open(crew->globals, &w.signals);
  if (code == CLI_DONE) code = start_crew(&w, argv);
  if (code == CLI_DONE) code = start_worker(&w);
  if (code == CLI_DONE) {
    if (crew->tells)
      dibs__cli_note(crew->globals, "working on %s '%s'", crew->table != NULL ? "rows of" : "tasks of kind",
                     crew->kind);
    code = work_on(&w);
    drain(&w);
    report(&w);
    if (code == CLI_DONE) code = dibs__cli_flush(crew->globals);
  }
  dibs_worker_free(w.worker);
  dibs__cli_history_end(crew->history);
  dibs_close(crew->store);
  free_crew(crew);
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
                           .kept = !dibs__cli_history_is_off(v)};
  dibs_table *table = NULL;
  int code = check_call(call);
  if (code == CLI_DONE) code = dibs__cli_table(call, &table);
  if (table != NULL) plan.kind = v->table;
  plan.table = table;
  if (code == CLI_DONE) code = dibs__cli_work(v, &plan, v->exec != NULL ? by_shell : call->rest);
  dibs_table_free(table);
  return code;
}
