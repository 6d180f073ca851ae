/* SPDX-License-Identifier: MIT */
/*
 * `dibs lane run`: a member of a topic, and a command for each lane that it owns.
 *
 * The order: signals are blocked and a launcher for each lane is forked while there is one thread; then the store is
 * opened, and the member joins.  This thread waits for signals and dispatches the member's callbacks.  A thread for
 * each owned lane runs its commands, one after the other, and releases the lane when the last one has ended:
 *
 *   on_gain -> thread: command, pause, command, ... -> end_fd (on_lose, or dibs ends) -> dibs_lane_release -> joined
 *
 * The minder of a command ends it in time when the lane's lease can't be renewed, as for `dibs run` (run.h).
 */
#include "cli/job.h"
#include "cli/lane.h"
#include "store/locate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  LOOK_MS = 500,         /* between two looks at the member's trouble */
  PAUSE_MS = 1000,       /* before a command that ended by itself is started again; doubled each time, */
  PAUSE_MOST_MS = 30000, /* up to this; */
  STEADY_MS = 10000,     /* and a command that ran for so long begins with the first pause again */
  START_AGAIN_MS = 1000, /* before a thread is tried again for a lane that got none */
  ENDED_MS = 5000        /* after KILL: until the store knows that the lanes are free */
};

struct member {
  /* Immutable after the start. */
  const struct cli_values *v;
  const struct cli_globals *globals;
  const char *topic;
  char *store_uri;
  dibs_store *store;
  dibs_lane_member *lanes;
  struct lane_commands commands;
  bool verbose;
  int wake_fd; /* raised when a lane's thread has ended, or this thread has to look */
  struct cli_signals signals;
  /* The main thread's own. */
  struct lane_work *list;
  dibs_status trouble; /* of which a note was written */
};

/* A lane and its thread. */
struct lane_work {
  struct lane_work *next;
  struct member *member;
  dibs_lane *lane; /* until `over` */
  uint32_t number;
  dibs__thread *thread; /* NULL: none could be started; the next try is at `again` */
  dibs__tick again;
  int end_fd; /* readable: the command is to be ended, and no other started; -1: none is left */
  _Atomic bool over;
};

/* ---- A lane's thread ---- */

static size_t lane_environment(const struct lane_work *w, char to[MINDER_TEXT_MAX]) {
  const struct member *m = w->member;
  dibs_lease *lease = dibs_lane_lease(w->lane);
  char number[32], id[33] = "", held[CLI_HELD_MAX];
  size_t length = 0;
  (void)!dibs_lease_id(lease, id, NULL); /* of a lost lease: the command is ended before it begins */
  dibs__cli_run_variable(to, &length, "DIBS_TOPIC", m->topic);
  snprintf(number, sizeof number, "%" PRIu32, w->number);
  dibs__cli_run_variable(to, &length, "DIBS_LANE", number);
  snprintf(number, sizeof number, "%" PRIu32, dibs_lane_lanes(w->lane));
  dibs__cli_run_variable(to, &length, "DIBS_LANES", number);
  dibs__cli_run_variable(to, &length, "DIBS_NAME", dibs_lease_name(lease));
  dibs__cli_run_variable(to, &length, "DIBS_LEASE", id);
  snprintf(number, sizeof number, "%" PRIu64, dibs_lane_fence(w->lane).value);
  dibs__cli_run_variable(to, &length, "DIBS_FENCE", number);
  snprintf(number, sizeof number, "%" PRId64 "ms", m->commands.ttl_ms);
  dibs__cli_run_variable(to, &length, "DIBS_TTL", number);
  dibs__cli_run_variable(to, &length, "DIBS_SLOT", "");
  dibs__cli_run_variable(to, &length, "DIBS_STORE", m->store_uri);
  dibs__cli_outer_list(held);
  dibs__cli_run_variable(to, &length, "DIBS_HELD", held);
  return length;
}

/* Runs the command once.  false: the lane is to be given back. */
static bool run_once(struct lane_work *w, size_t slot) {
  struct member *m = w->member;
  char environment[MINDER_TEXT_MAX], what[32];
  int in = open("/dev/null", O_RDONLY | O_CLOEXEC), status = 0;
  snprintf(what, sizeof what, "lane %" PRIu32, w->number);
  enum lane_end end = dibs__cli_lane_command(
      &m->commands,
      &(struct lane_command){
          .slot = slot, .what = what, .lease = dibs_lane_lease(w->lane), .in = in, .end_fd = w->end_fd},
      environment, lane_environment(w, environment), &status);
  if (in >= 0) close(in);
  char text[80];
  dibs__cli_run_describe(text, sizeof text, status);
  if (end == LANE_COMMAND_ENDED) dibs__cli_note(m->globals, "%s: %s; it is started again", what, text);
  return end == LANE_COMMAND_ENDED || end == LANE_COMMAND_NOT_STARTED;
}

static void work_lane(void *arg) {
  struct lane_work *w = arg;
  struct member *m = w->member;
  size_t slot = dibs__cli_slot_take(&m->commands.slots);
  struct pollfd ends = {.fd = w->end_fd, .events = POLLIN};
  int64_t pause_ms = PAUSE_MS;
  for (;;) {
    dibs__tick began = dibs__tick_now();
    if (poll(&ends, 1, 0) > 0 || !run_once(w, slot)) break;
    if (dibs__tick_left_ms(began, dibs__tick_now()) >= STEADY_MS) pause_ms = PAUSE_MS;
    if (poll(&ends, 1, (int)pause_ms) > 0) break;
    pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
  }
  dibs__cli_slot_free(&m->commands.slots, slot);
  w->over = true; /* first: the memory of the lane may be another lane's after its release */
  dibs_lane_release(w->lane);
  dibs__notifier_raise(m->wake_fd);
}

/* ---- The member's callbacks, in the main thread ---- */

/* false: no thread or descriptor is left; it is tried again. */
static bool start_work(struct lane_work *w) {
  w->again = dibs__tick_add_ms(dibs__tick_now(), START_AGAIN_MS);
  if (w->end_fd < 0) w->end_fd = dibs__notifier_open();
  if (w->end_fd >= 0) w->thread = dibs__thread_start("dibs-lane", work_lane, w);
  return w->thread != NULL;
}

/* A lane whose command cannot be started stays this member's: without its lease the store would give it to no other
 * member, but back to this one. */
static void gain(dibs_lane *lane, dibs_status status, void *user) {
  (void)status;
  struct member *m = user;
  struct lane_work *w = calloc(1, sizeof *w);
  if (w == NULL) {
    dibs__cli_note(m->globals, "lane %" PRIu32 ": out of memory", dibs_lane_number(lane));
    dibs_lane_release(lane);
    return;
  }
  *w = (struct lane_work){.next = m->list, .member = m, .lane = lane, .number = dibs_lane_number(lane), .end_fd = -1};
  m->list = w;
  if (!start_work(w))
    dibs__cli_note(m->globals, "lane %" PRIu32 ": no thread or descriptor is left for it; dibs tries again", w->number);
  else if (m->verbose)
    dibs__cli_note(m->globals, "lane %" PRIu32 " of '%s': owned", w->number, m->topic);
}

static void start_again(struct member *m) {
  for (struct lane_work *w = m->list; w != NULL; w = w->next)
    if (w->thread == NULL && !w->over && !dibs__tick_before(dibs__tick_now(), w->again) && start_work(w))
      dibs__cli_note(m->globals, "lane %" PRIu32 ": its command runs now", w->number);
}

/* Its thread gives the lane back, if it has one. */
static void end_work(struct lane_work *w) {
  if (w->thread != NULL) {
    dibs__notifier_raise(w->end_fd);
    return;
  }
  w->over = true;
  dibs_lane_release(w->lane);
}

static void free_work(struct lane_work *w) {
  dibs__thread_join(w->thread);
  if (w->end_fd >= 0) dibs__notifier_close(w->end_fd);
  free(w);
}

static void lose(dibs_lane *lane, dibs_status status, void *user) {
  const struct member *m = user;
  for (struct lane_work *w = m->list; w != NULL; w = w->next) {
    if (w->over || w->lane != lane) continue;
    end_work(w);
    if (m->verbose)
      dibs__cli_note(m->globals, "lane %" PRIu32 " of '%s': %s", w->number, m->topic,
                     status == DIBS_LOST ? "lost" : "to be handed over");
    return;
  }
}

/* Joins the threads that have ended. */
static void reap(struct member *m) {
  for (struct lane_work **at = &m->list; *at != NULL;) {
    struct lane_work *w = *at;
    if (!w->over) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    free_work(w);
  }
}

/* ---- The main thread ---- */

/* The next signal that asks to end; 0: none. */
static int next_signal(const struct member *m) {
  int signo;
  while ((signo = dibs__cli_signals_next(&m->signals)) != 0) {
    if (signo == SIGTSTP) raise(SIGSTOP);
    if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) return signo;
  }
  return 0;
}

/* The signal that asks to end; 0: none. */
static int turn(struct member *m, int64_t ms) {
  struct pollfd fds[] = {{m->signals.fd, POLLIN, 0}, {dibs_fd(m->store), POLLIN, 0}, {m->wake_fd, POLLIN, 0}};
  (void)poll(fds, 3, (int)ms);
  if (fds[2].revents != 0) dibs__notifier_lower(m->wake_fd);
  dibs_dispatch(m->store, 0);
  reap(m);
  start_again(m);
  return next_signal(m);
}

/* Says once when the store does not answer, and when it does again.  CLI_DONE, or the exit code with which dibs ends.
 */
static int watch_trouble(struct member *m) {
  const struct cli_globals *g = m->globals;
  dibs_error error = {0};
  dibs_lane_trouble(m->lanes, &error);
  if (error.status == DIBS_CONFLICT) return dibs__cli_fail_status(g, error.status, &error, m->topic);
  if (error.status != DIBS_OK && m->trouble == DIBS_OK)
    dibs__cli_note(g, "%s; dibs tries again", error.text);
  else if (error.status == DIBS_OK && m->trouble != DIBS_OK)
    dibs__cli_note(g, "%s answers again", dibs_store_uri(m->store));
  m->trouble = error.status;
  return CLI_DONE;
}

static int work(struct member *m) {
  while (turn(m, LOOK_MS) == 0) {
    int code = m->commands.code != 0 ? m->commands.code : watch_trouble(m);
    if (code != CLI_DONE) return code;
    if (m->commands.broken)
      return dibs__cli_fail(m->globals, CLI_FAILED, "", "a process that starts commands was killed or stopped");
  }
  return CLI_DONE;
}

/* Ends the commands, and tells the store.  What a store that does not answer does not learn ends after its ttl. */
static void leave(struct member *m) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), m->commands.grace_ms + ENDED_MS);
  while (dibs_lane_leave(m->lanes, 0, NULL) == DIBS_TIMEOUT && dibs__tick_before(dibs__tick_now(), by))
    (void)turn(m, LOOK_MS / 10);
  for (struct lane_work *w = m->list; w != NULL; w = w->next)
    if (!w->over) end_work(w);
  for (struct lane_work *w; (w = m->list) != NULL;) {
    m->list = w->next;
    free_work(w); /* its command is ended within the grace and some seconds */
  }
}

static int join(struct member *m) {
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = DIBS_FOREVER};
  dibs_error error = {0};
  int code = dibs__cli_reach(m->globals, &reach, &m->signals, &m->store);
  if (code != CLI_DONE) return code;
  m->store_uri = dibs__cli_store_uri(m->globals, m->store);
  if (m->store_uri == NULL) return dibs__cli_fail(m->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs_lane_options o = {.size = sizeof o,
                         .lanes = (uint32_t)m->v->lanes,
                         .ttl_ms = m->commands.ttl_ms,
                         .owner = m->globals->owner,
                         .on_gain = gain,
                         .on_lose = lose,
                         .user = m};
  dibs_status status;
  bool noted = false;
  while ((status = dibs_lane_join(m->store, m->topic, &o, &m->lanes, &error)) == DIBS_UNAVAILABLE ||
         status == DIBS_UNKNOWN) {
    if (!noted) dibs__cli_note(m->globals, "%s; dibs tries again", error.text);
    noted = true;
    int signo = turn(m, LOOK_MS);
    if (signo != 0) return CLI_SIGNAL + signo;
  }
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(m->globals, status, &error, m->topic);
}

int dibs__cli_lane_run(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  char shell[] = "sh", option[] = "-c";
  char *by_shell[] = {shell, option, (char *)(uintptr_t)v->exec, NULL};
  struct member m = {.v = v,
                     .globals = &v->globals,
                     .topic = call->pos[1],
                     .commands = {.globals = &v->globals, .argv = v->exec != NULL ? by_shell : call->rest},
                     .verbose = v->verbose || isatty(STDERR_FILENO),
                     .wake_fd = -1,
                     .signals = {.fd = -1}};
  int code = dibs__cli_lane_times(&m.commands, v);
  if (code == CLI_DONE) code = dibs__cli_signals_open(m.globals, &m.signals);
  if (code == CLI_DONE && (m.wake_fd = dibs__notifier_open()) < 0)
    code = dibs__cli_fail(m.globals, CLI_FAILED, "", "no file descriptor is left");
  if (code == CLI_DONE)
    code = dibs__cli_slots_open(&m.commands.slots, m.globals, &m.signals.before, m.commands.argv, (size_t)v->lanes);
  if (code == CLI_DONE) code = join(&m);
  if (m.lanes != NULL) {
    code = work(&m);
    leave(&m);
    dibs_lane_member_free(m.lanes);
  }
  dibs_close(m.store);
  dibs__cli_slots_close(&m.commands.slots);
  dibs__locate_free(m.store_uri);
  if (m.wake_fd >= 0) dibs__notifier_close(m.wake_fd);
  if (m.signals.fd >= 0) dibs__cli_signals_close(&m.signals);
  return code;
}
