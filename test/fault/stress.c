/* SPDX-License-Identifier: MIT */
/*
 * Processes and threads that acquire, hold, write and release at random, and a parent that stops and kills them in the
 * middle.  Each writes a history of what it saw, and its beliefs; at the end the checkers read them all.
 *
 *   stress URI [--processes N] [--threads M] [--handles H] [--names K] [--seconds S] [--seed X] [--calm | --even]
 *              [--server] [--uncounted]
 *
 * --calm: stops and kills no process (memory: is always calm: one process).  --even: one name, all threads at once, no
 * pause: each process must get its share.  --server: also stops the server past the ttl, and kills it, through
 * script/servers (with.sh --private).  --uncounted: no counted leases, for a store without them.  Exit status 0: no
 * rule was broken.
 */
#include "belief.h"
#include "dibs.h"
#include "drivers/wrap/shim.h"
#include "history.h"
#include "store/registry.h"
#include "support/records.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  PROCESSES_MAX = 32,
  THREADS_MAX = 32,
  HANDLES_MAX = 8,
  TTL_LEAST_MS = 500,
  TTL_SPAN_MS = 1000,
  STALLED_MS = 30000
};

static struct {
  char uri[512], folder[64];
  uint32_t processes, threads, handles, names, seconds;
  uint64_t seed;
  bool calm, even, server, uncounted;
} plan = {.processes = 4, .threads = 3, .handles = 1, .names = 16, .seconds = 10, .seed = 1};
static dibs__tick deadline;

/* ---- Chance ---- */

static uint64_t draw(uint64_t *seed) {
  uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static uint32_t below(uint64_t *seed, uint32_t n) {
  return n > 0 ? (uint32_t)(draw(seed) % n) : 0;
}

/* ---- One thread of a party ---- */

struct thread {
  pthread_t thread;
  uint32_t number;
  struct history *history;
  struct beliefs *beliefs;
  dibs_store *stores[HANDLES_MAX];
  uint64_t seed;
};

struct turn {
  struct thread *thread;
  struct reported reported; /* the fields that all records of this round share */
  dibs_lease_options how;
  char name[16], record[16];
  uint32_t handle;
  dibs_store *store;
  dibs_lease *lease;
  struct belief *belief; /* NULL: the file was full */
  /* For an acquisition that completes later. */
  dibs__word over;
  dibs_status status;
};

static bool append(const struct turn *turn, enum what what, dibs__tick at, int64_t value, int64_t extra) {
  struct reported reported = turn->reported;
  reported.what = what;
  reported.at = at.ns;
  reported.value = value;
  reported.extra = extra;
  return history_say(turn->thread->history, reported);
}

/* Its round may be over, so it owns its data. */
struct lost {
  struct history *history;
  struct reported reported;
};
static void lost(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct lost *told = user;
  struct reported reported = told->reported;
  (void)status;
  reported.what = REPORTED_LOST;
  reported.at = dibs__tick_now().ns;
  reported.fence = dibs_lease_fence(lease).value;
  history_say(told->history, reported);
}

static void completed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct turn *turn = user;
  (void)lease;
  turn->status = status;
  atomic_store(&turn->over, 1);
  dibs__word_wake(&turn->over, 1, false);
}

static dibs_status send_request(struct turn *turn) {
  uint64_t *seed = &turn->thread->seed;
  if (below(seed, 100) < 75) return dibs_acquire(turn->store, turn->name, &turn->how, &turn->lease, NULL);
  dibs_status status = dibs_acquire_start(turn->store, turn->name, &turn->how, completed, turn, &turn->lease, NULL);
  if (status != DIBS_OK) return status;
  if (below(seed, 100) < 10) dibs_acquire_cancel(turn->lease);
  while (atomic_load(&turn->over) == 0) dibs__word_wait(&turn->over, 0, DIBS__TICK_NEVER, false);
  if (turn->status == DIBS_OK) return DIBS_OK;
  dibs_lease_free(turn->lease);
  return turn->status;
}

static dibs_status acquire(struct turn *turn) {
  struct belief request = {.name = turn->reported.name,
                           .mode = turn->reported.mode,
                           .renews = !(turn->how.flags & DIBS_NO_RENEW),
                           .ttl_ms = (uint32_t)turn->how.ttl_ms,
                           .handle = turn->thread->history->party * HANDLES_MAX + turn->handle};
  dibs__random(request.id, sizeof request.id); /* the checker identifies the request by this id; the store has
                                                * another */
  turn->belief = belief_request(turn->thread->beliefs, &request);
  dibs_status status = send_request(turn);
  if (turn->belief && status == DIBS_OK) belief_granted(turn->thread->beliefs, turn->belief, turn->lease);
  if (turn->belief && status != DIBS_OK) belief_refused(turn->belief, true);
  return status;
}

/* Records until when the name is certainly taken: no waiter need be woken before. */
static void say_alive(const struct turn *turn, enum what what) {
  dibs__tick at = dibs__tick_now();
  int64_t left = dibs_lease_left_ms(turn->lease); /* rounded up */
  if (what == REPORTED_ALIVE && left == 0) return;
  append(turn, what, at, left > 0 ? at.ns + (left - 1) * DIBS__NS_PER_MS : at.ns, 0);
}

static void hold(struct turn *turn) {
  uint64_t *seed = &turn->thread->seed;
  uint32_t kind = below(seed, 1000);
  int64_t ms = 0;
  if (plan.even) return;
  if (kind >= 800) ms = 1 + below(seed, 5);
  if (kind >= 980) ms = 20 + below(seed, 100);
  if (kind >= 999) ms = turn->how.ttl_ms + 300; /* without renewal the lease is lost meanwhile */
  dibs__tick end = dibs__tick_add_ms(dibs__tick_now(), ms);
  while (dibs__tick_before(dibs__tick_now(), end)) {
    dibs__nap_ms(ms < 5 ? ms : 5);
    say_alive(turn, REPORTED_ALIVE);
  }
}

static dibs_status seal(struct turn *turn, int64_t *number) {
  char *data = NULL;
  size_t length;
  dibs_status status = record_seal(turn->store, turn->record, turn->lease, &data, &length, NULL);
  *number = data ? strtoll(data, NULL, 10) : 0;
  append(turn, REPORTED_SEALED, dibs__tick_now(), *number, status);
  free(data);
  return status;
}

static void save(struct turn *turn, int64_t number) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)number);
  append(turn, REPORTED_SAVING, dibs__tick_now(), number, 0);
  dibs_status status = record_save(turn->store, turn->record, turn->lease, text, strlen(text), NULL);
  append(turn, REPORTED_SAVED, dibs__tick_now(), number, status);
}

/* Reads without a fence: the number must not decrease. */
static void look(struct turn *turn) {
  char *data = NULL;
  size_t length;
  append(turn, REPORTED_LOOKING, dibs__tick_now(), 0, 0);
  dibs_status status = record_load(turn->store, turn->record, &data, &length, NULL, NULL);
  if (status == DIBS_OK || status == DIBS_NOT_FOUND)
    append(turn, REPORTED_LOOKED, dibs__tick_now(), data ? strtoll(data, NULL, 10) : 0, 0);
  free(data);
}

static void work(struct turn *turn) {
  uint64_t *seed = &turn->thread->seed;
  int64_t number = 0;
  bool writes = turn->reported.mode == DIBS_EXCLUSIVE && kind_of(turn->reported.name) == KIND_EXCLUSIVE &&
                (plan.even ? 0 : below(seed, 100) < 60);
  bool sealed = writes && seal(turn, &number) == DIBS_OK;
  hold(turn);
  if (sealed) save(turn, number + 1); /* also if the lease was lost meanwhile: the fence must refuse the save */
  if (writes && below(seed, 100) < 20) look(turn);
}

static void release_lease(struct turn *turn) {
  append(turn, REPORTED_LETTING, dibs__tick_now(), 0, 0);
  if (turn->belief) belief_end(turn->thread->beliefs, turn->belief, turn->lease, true);
  if (below(&turn->thread->seed, 100) >= 5) {
    dibs_status status = dibs_release(turn->lease, NULL);
    if (turn->belief && (status == DIBS_OK || status == DIBS_LOST)) belief_given(turn->belief);
    append(turn, REPORTED_RELEASED, dibs__tick_now(), status, 0);
  }
  dibs_lease_free(turn->lease);
}

static void choose(struct turn *turn, struct thread *thread, struct lost *told) {
  uint64_t *seed = &thread->seed;
  uint16_t name = plan.even ? 0 : (uint16_t)below(seed, plan.names);
  uint32_t waits = plan.even ? 99 : below(seed, 100);
  *turn = (struct turn){.thread = thread, .handle = below(seed, plan.handles)};
  turn->store = thread->stores[turn->handle];
  turn->reported.name = name;
  turn->reported.thread = thread->number;
  turn->reported.lease = atomic_fetch_add(&thread->history->requests, 1) + 1;
  snprintf(turn->name, sizeof turn->name, "name-%u", name);
  snprintf(turn->record, sizeof turn->record, "record-%u", name);
  turn->how = (dibs_lease_options){.size = sizeof turn->how, .ttl_ms = TTL_LEAST_MS + below(seed, TTL_SPAN_MS)};
  turn->how.wait_ms = waits < 10 ? 0 : waits < 30 ? 30 + below(seed, 270) : 3000;
  if (kind_of(name) == KIND_READERS && below(seed, 100) < 70) turn->how.mode = DIBS_SHARED;
  if (kind_of(name) == KIND_COUNTED && !plan.uncounted) turn->how.mode = DIBS_COUNTED;
  if (turn->how.mode == DIBS_COUNTED) turn->how.slots = SLOTS;
  if (!plan.even && below(seed, 100) < 20) turn->how.flags = DIBS_NO_RENEW;
  turn->reported.mode = (uint8_t)turn->how.mode;
  *told = (struct lost){.history = thread->history, .reported = turn->reported};
  turn->how.on_lost = lost;
  turn->how.user = told;
}

/* false: the history is full. */
static bool run_round(struct thread *thread, struct lost *told) {
  struct turn turn;
  choose(&turn, thread, told);
  if (!append(&turn, REPORTED_REQUEST, dibs__tick_now(), turn.how.wait_ms, turn.how.ttl_ms)) return false;
  dibs_status status = acquire(&turn);
  if (status != DIBS_OK) {
    append(&turn, REPORTED_GONE, dibs__tick_now(), status, 0);
    if (status == DIBS_UNAVAILABLE) dibs__nap_ms(5);
    return true;
  }
  turn.reported.fence = dibs_lease_fence(turn.lease).value;
  say_alive(&turn, REPORTED_GRANT);
  work(&turn);
  release_lease(&turn);
  return true;
}

static void *run_thread(void *arg) {
  enum { TOLD = 4096 }; /* callbacks of that many rounds ago have run */
  struct thread *thread = arg;
  struct lost *told = calloc(TOLD, sizeof *told);
  for (uint32_t i = 0; told && dibs__tick_before(dibs__tick_now(), deadline); i++)
    if (!run_round(thread, &told[i % TOLD])) break;
  return told;
}

/* ---- A party: a process ---- */

static int run_party(uint32_t party) {
  static struct thread threads[THREADS_MAX];
  dibs_store *stores[HANDLES_MAX] = {NULL};
  void *told[THREADS_MAX] = {NULL};
  struct history *history = history_make(plan.folder, party);
  struct beliefs *beliefs = beliefs_open(plan.folder, party, true);
  dibs_error error;
  if (!history || !beliefs) return 2;
  for (uint32_t h = 0; h < plan.handles; h++)
    while (dibs_open(plan.uri, NULL, &stores[h], &error) != DIBS_OK) {
      /* An unreachable server returns. */
      if (plan.server && error.status == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), deadline)) {
        dibs__nap_ms(20);
        continue;
      }
      fprintf(stderr, "stress: %s\n", error.text);
      return 2;
    }
  for (uint32_t t = 0; t < plan.threads; t++) {
    threads[t] = (struct thread){
        .number = t + 1, .history = history, .beliefs = beliefs, .seed = plan.seed * 1000003 + party * 101 + t};
    memcpy(threads[t].stores, stores, sizeof stores);
    if (pthread_create(&threads[t].thread, NULL, run_thread, &threads[t]) != 0) return 2;
  }
  for (uint32_t t = 0; t < plan.threads; t++) pthread_join(threads[t].thread, &told[t]);
  for (uint32_t h = 0; h < plan.handles; h++) dibs_close(stores[h]);
  for (uint32_t t = 0; t < plan.threads; t++) free(told[t]);
  beliefs_close(beliefs);
  return 0;
}

/* ---- The parent ---- */

struct child {
  pid_t pid;
  uint32_t party;
  dibs__tick stopped_until; /* 0: the process runs */
};
static struct child children[PROCESSES_MAX];
static uint32_t parties;
static int unserved;
static struct history *mine;

static void note(enum what what, uint32_t party) {
  history_say(mine, (struct reported){.what = what, .at = dibs__tick_now().ns, .lease = party});
}

static bool control_server(const char *verb) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *at = getenv("DIBS_TEST_SERVERS_DIR");
  char command[512];
  if (!script || !at) return false;
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, at);
  return system(command) == 0;
}

/* Alternates: stops the server for longer than any ttl; kills it and starts it at once. Stopped processes stay stopped
 * meanwhile. */
static bool disturb_server(uint64_t *seed) {
  static uint32_t turns;
  bool stops = turns++ % 2 == 0, fine;
  note(REPORTED_STOP, 0);
  fine = control_server(stops ? "pause" : "kill");
  if (stops) dibs__nap_ms(TTL_LEAST_MS + TTL_SPAN_MS + below(seed, 500));
  fine = control_server(stops ? "resume" : "start") && fine;
  note(REPORTED_GO_ON, 0);
  return fine;
}

static bool spawn(struct child *child) {
  *child = (struct child){.party = ++parties};
  child->pid = fork();
  if (child->pid == 0) _exit(run_party(child->party));
  return child->pid > 0;
}

static void continue_party(struct child *child) {
  kill(child->pid, SIGCONT);
  note(REPORTED_GO_ON, child->party);
  child->stopped_until = DIBS__TICK_ZERO;
}

static void disturb(uint64_t *seed) {
  struct child *child = &children[below(seed, plan.processes)];
  if (child->stopped_until.ns != 0) return;
  if (below(seed, 100) < 70) {
    note(REPORTED_STOP, child->party);
    kill(child->pid, SIGSTOP);
    child->stopped_until = dibs__tick_add_ms(dibs__tick_now(), 100 + below(seed, 2400));
    return;
  }
  note(REPORTED_KILL, child->party);
  kill(child->pid, SIGKILL);
  waitpid(child->pid, NULL, 0);
  note(REPORTED_KILLED, child->party);
  if (!spawn(child)) perror("fork");
}

static void look_after(void) {
  uint64_t seed = plan.seed;
  dibs__tick next = dibs__tick_add_ms(dibs__tick_now(), 300), outage = dibs__tick_add_ms(next, 1500);
  while (dibs__tick_before(dibs__tick_now(), deadline)) {
    dibs__nap_ms(10);
    dibs__tick now = dibs__tick_now();
    for (uint32_t c = 0; c < plan.processes; c++)
      if (children[c].stopped_until.ns != 0 && dibs__tick_before(children[c].stopped_until, now))
        continue_party(&children[c]);
    if (plan.calm || plan.even || dibs__tick_before(now, next)) continue;
    if (plan.server && dibs__tick_before(outage, now)) {
      if (!disturb_server(&seed)) printf("BROKEN  cannot stop and start the server\n"), unserved++;
      now = dibs__tick_now();
      outage = dibs__tick_add_ms(now, 3000 + below(&seed, 1000));
    } else {
      disturb(&seed);
    }
    next = dibs__tick_add_ms(now, 100 + below(&seed, 700));
  }
  for (uint32_t c = 0; c < plan.processes; c++)
    if (children[c].stopped_until.ns != 0) continue_party(&children[c]);
  note(REPORTED_OVER, 0);
}

/* Returns how many did not end with status 0. */
static int end_processes(void) {
  int bad = unserved;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STALLED_MS);
  for (uint32_t c = 0; c < plan.processes; c++) {
    int status = 0;
    pid_t gone;
    while ((gone = waitpid(children[c].pid, &status, WNOHANG)) == 0 && dibs__tick_before(dibs__tick_now(), by))
      dibs__nap_ms(5);
    if (gone == 0) {
      printf("BROKEN  process %u hangs; killing it\n", children[c].party);
      kill(children[c].pid, SIGABRT); /* leaves a core file if the system is configured for it */
      waitpid(children[c].pid, &status, 0);
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      printf("BROKEN  process %u ended with status %#x\n", children[c].party, (unsigned)status);
    } else {
      continue;
    }
    bad++;
  }
  return bad;
}

/* Reads the records at the end. */
static int read_finals(int64_t finals[HISTORY_NAMES]) {
  dibs_store *store = NULL;
  dibs_error error;
  if (dibs_open(plan.uri, NULL, &store, &error) != DIBS_OK) {
    fprintf(stderr, "stress: %s\n", error.text);
    return 1;
  }
  for (uint16_t name = 0; name < HISTORY_NAMES; name++) {
    char key[16], *data = NULL;
    size_t length;
    snprintf(key, sizeof key, "record-%u", name);
    dibs_status status = record_load(store, key, &data, &length, NULL, NULL);
    finals[name] = status == DIBS_OK && data ? strtoll(data, NULL, 10) : status == DIBS_NOT_FOUND || !data ? 0 : -1;
    free(data);
  }
  dibs_close(store);
  return 0;
}

/* ---- The command line ---- */

static bool number(const char *text, uint64_t most, uint64_t *to) {
  char *end;
  errno = 0;
  *to = strtoull(text, &end, 10);
  return errno == 0 && *text >= '0' && *text <= '9' && !*end && *to <= most;
}

static bool parse(int argc, char *argv[]) {
  struct {
    const char *name;
    uint32_t *to, most;
  } options[] = {{"--processes", &plan.processes, PROCESSES_MAX},
                 {"--threads", &plan.threads, THREADS_MAX},
                 {"--handles", &plan.handles, HANDLES_MAX},
                 {"--names", &plan.names, HISTORY_NAMES},
                 {"--seconds", &plan.seconds, 86400}};
  if (argc < 2) return false;
  snprintf(plan.uri, sizeof plan.uri, "%s", argv[1]);
  for (int i = 2; i < argc; i++) {
    uint64_t n = 0;
    bool known = false;
    if (strcmp(argv[i], "--calm") == 0) {
      plan.calm = true;
      continue;
    }
    if (strcmp(argv[i], "--server") == 0) {
      plan.server = true;
      continue;
    }
    if (strcmp(argv[i], "--uncounted") == 0) {
      plan.uncounted = true;
      continue;
    }
    if (strcmp(argv[i], "--even") == 0) {
      plan.even = true;
      continue;
    }
    if (i + 1 >= argc) return false;
    if (strcmp(argv[i], "--seed") == 0 && number(argv[i + 1], UINT64_MAX, &plan.seed)) known = true;
    for (size_t o = 0; o < sizeof options / sizeof options[0]; o++)
      if (strcmp(argv[i], options[o].name) == 0 && number(argv[i + 1], options[o].most, &n) && n > 0) {
        *options[o].to = (uint32_t)n;
        known = true;
      }
    if (!known) return false;
    i++;
  }
  return true;
}

static bool in_memory(void) {
  return strstr(plan.uri, "memory:") != NULL;
}

/* "sqlite:" and "memory:" get a path of their own. */
static bool make_path(void) {
  snprintf(plan.folder, sizeof plan.folder, "/tmp/dibs-stress-XXXXXX");
  if (!mkdtemp(plan.folder)) return false;
  size_t length = strlen(plan.uri);
  if (plan.uri[length - 1] != ':') return true;
  if (in_memory())
    snprintf(plan.uri + length, sizeof plan.uri - length, "stress");
  else
    snprintf(plan.uri + length, sizeof plan.uri - length, "%s/x.db", plan.folder);
  length = strlen(plan.uri);
  if (strncmp(plan.uri, "fault+", 6) == 0)
    snprintf(plan.uri + length, sizeof plan.uri - length,
             "?fault.on=run,connect&fault.rate=20&fault.how=unknown-after&fault.events=100");
  return true;
}

/* A single process: this one runs the threads. */
static int run_alone(void) {
  plan.processes = 1;
  mine = history_make(plan.folder, 0);
  if (!mine) return 1;
  parties = 1;
  int status = run_party(1);
  note(REPORTED_OVER, 0);
  return status;
}

static int run_children(void) {
  mine = history_make(plan.folder, 0);
  if (!mine) return 1;
  for (uint32_t c = 0; c < plan.processes; c++)
    if (!spawn(&children[c])) return 1;
  look_after();
  return end_processes();
}

/* No two clients believed to hold what only one can have, and no lease was lost without a reason. */
static int check_beliefs(void) {
  struct belief_rules rules = {.session = false};
  struct belief_sums sums;
  int broken = beliefs_check(plan.folder, &rules, &sums);
  printf("         %llu beliefs of %llu requests; %llu began soon after another one ended\n",
         (unsigned long long)sums.believed, (unsigned long long)sums.requested, (unsigned long long)sums.followed);
  if (broken == 0 && sums.believed == 0) {
    printf("BROKEN  no client believed to hold a lease\n");
    broken++;
  }
  return broken;
}

int main(int argc, char *argv[]) {
  if (!parse(argc, argv) || !make_path()) {
    fputs("usage: stress URI [--processes N] [--threads M] [--handles H] [--names K] [--seconds S] [--seed X]\n"
          "              [--calm | --even] [--server] [--uncounted]\n",
          stderr);
    return 2;
  }
  printf("stress: %.*s, %u processes x %u threads, %u names, %u s, seed %llu%s\n", (int)strcspn(plan.uri, ":/"),
         plan.uri, in_memory() ? 1 : plan.processes, plan.threads, plan.names, plan.seconds,
         (unsigned long long)plan.seed,
         plan.even                  ? ", even"
         : plan.calm || in_memory() ? ", calm"
                                    : "");
  dibs__driver_add(&dibs__fault_driver);
  dibs__driver_add(&dibs__latency_driver);
  fflush(stdout); /* a child would copy the buffered output */
  deadline = dibs__tick_add_ms(dibs__tick_now(), plan.seconds * INT64_C(1000));
  int bad = in_memory() ? run_alone() : run_children();
  int64_t finals[HISTORY_NAMES];
  bad += read_finals(finals);
  /* One second between two looks, and one more for a busy machine. */
  struct bounds bounds = {
      .wake_ms = strncmp(plan.uri, "fault+", 6) == 0 ? 2500 : 2000, .parties = plan.processes, .threads = plan.threads};
  if (plan.even) bounds.share_least = 0.75;
  int broken = check_histories(plan.folder, &bounds, finals) + check_beliefs();
  if (bad || broken) {
    printf("stress: %d failures, %d rules broken; histories in %s, seed %llu\n", bad, broken, plan.folder,
           (unsigned long long)plan.seed);
    return 1;
  }
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", plan.folder);
  return system(command) == 0 ? 0 : 1;
}
