/* SPDX-License-Identifier: MIT */
/* `dibs run NAME -- true` and `flock FILE true`, from start to end, as a shell sees them. */
#include "lab/bench.h"
#include "cli/cli.h"
#include "dibs/admin.h"
#include "store/uri.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* One call, until it ends.  false unless it ended with 0. */
static bool run_once(struct bench *b, const char *program, char *const argv[]) {
  pid_t pid;
  if (!dibs__bench_spawn(b, program, argv, &pid)) return false;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return dibs__bench_fail(b, "cannot wait for %s: %s", argv[0], strerror(errno));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  int how = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return dibs__bench_fail(b, "%s ended with status %d", argv[0], how);
}

static bool calls(struct bench *b, const char *program, char *const argv[], struct bench_sample *sample) {
  struct dibs__hist *hist = calloc(1, sizeof *hist);
  if (!hist) return dibs__bench_fail(b, "out of memory");
  bool done = run_once(b, program, argv); /* brings the program into the page cache */
  dibs__tick from = dibs__tick_now(), last = from;
  for (uint32_t i = 0; done && i < b->size.calls; i++) {
    done = run_once(b, program, argv);
    dibs__tick now = dibs__tick_now();
    dibs__hist_add(hist, now.ns - last.ns);
    last = now;
  }
  if (done) {
    dibs__bench_sample_hist(sample, hist);
    sample->value[BENCH_RATE] = b->size.calls * 1e9 / (double)(last.ns - from.ns);
  }
  free(hist);
  return done;
}

static bool bench_side_command(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  char name[64], file[sizeof b->folder + 16];
  char path[PATH_MAX], dibs[] = "dibs", run[] = "run", dashes[] = "--", flock[] = "flock", nothing[] = "true";
  if (arg == BENCH_COMMAND_FLOCK) {
    snprintf(file, sizeof file, "%s/flock", b->folder);
    return calls(b, "flock", (char *[]){flock, file, nothing, NULL}, sample);
  }
  dibs__bench_name(name, 0);
  return calls(b, dibs__cli_find_program("dibs", path, sizeof path), (char *[]){dibs, run, name, dashes, nothing, NULL},
               sample);
}

/* The cases of `dibs bench lease`: their sides and their aims. */

/* flat: the table of cases */
static const struct bench_case lease_cases[] = {
    {.key = "alone",
     .title = "acquire and release, one thread, no other client (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"floor: the same statements, bare", dibs__bench_side_sqlite, BENCH_BARE_DIBS},
               {"plain row, 1 operation a commit", dibs__bench_side_sqlite, BENCH_BARE_NAIVE},
               {"plain row, 64 operations a commit", dibs__bench_side_sqlite, BENCH_BARE_NAIVE_64}},
     .aims = {{"time / time of bare statements", BENCH_RATIO, BENCH_RATE, 1, 0, true, 1.5, 1, "x"}}},
    {.key = "names",
     .title = "20 blocking threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: bare statements, 1 thread", dibs__bench_side_sqlite, BENCH_BARE_DIBS}},
     .aims = {{"rate / rate of bare statements", BENCH_RATIO, BENCH_RATE, 0, 1, false, 1.5, 1, "x"}}},
    {.key = "loop",
     .title = "20 calls in flight from one thread (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_loop, 0},
               {"floor: bare statements, 1 thread", dibs__bench_side_sqlite, BENCH_BARE_DIBS}},
     .aims = {{"rate / rate of bare statements", BENCH_RATIO, BENCH_RATE, 0, 1, false, 4, 1, "x"}}},
    {.key = "threads",
     .title = "20 threads on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_SAME_NAME},
               {"floor: mutex and condition vars", dibs__bench_side_fifo, 0}},
     .aims = {{"rate, divided by the mutex's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.6, 1, "x"}}},
    {.key = "processes",
     .title = "4 processes on one name, 50 us of think time (latency of the hand-off)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS},
               {"floor: flock(2)", dibs__bench_side_turns, BENCH_TURNS_FLOCK},
               {"dibs, released at once", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_BRIEF},
               {"flock(2), released at once", dibs__bench_side_turns, BENCH_TURNS_FLOCK | BENCH_TURNS_BRIEF}},
     .aims = {{"hand-off p50, divided by flock's", BENCH_RATIO, BENCH_P50, 0, 1, true, 4, 1, "x"},
              {"hand-off p99", BENCH_VALUE, BENCH_P99, 0, 0, true, 0.5, 1e-3, "ms"}}},
    {.key = "held",
     .title = "4 processes on one name, held 200 us (the wait in excess of a fair one)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_LONG},
               {"flock(2), which is not fair", dibs__bench_side_turns, BENCH_TURNS_FLOCK | BENCH_TURNS_LONG}},
     .aims = {{"p99.9 in excess of a fair wait", BENCH_VALUE, BENCH_P999, 0, 0, true, 10, 1e-3, "ms"},
              {"a process's share, distance from 25%", BENCH_VALUE, BENCH_UNFAIR, 0, 0, true, 2, 1, "points"}}},
    {.key = "memory",
     .title = "many leases in one process",
     .sides = {{"held", dibs__bench_side_memory, BENCH_MEMORY_HELD},
               {"waiting, on 100 names", dibs__bench_side_memory, BENCH_MEMORY_WAITING}},
     .aims = {{"heap of a held lease", BENCH_VALUE, BENCH_HEAP, 0, 0, true, 1, 1.0 / 1024, "KiB"},
              {"heap of a waiting one", BENCH_VALUE, BENCH_HEAP, 1, 0, true, 1, 1.0 / 1024, "KiB"},
              {"transactions to renew all", BENCH_VALUE, BENCH_TX_ALL, 0, 0, true, 1.05, 1, ""},
              {"threads while all wait", BENCH_VALUE, BENCH_THREADS_USED, 1, 0, true, 10, 1, ""}},
     .once = true},
    {.key = "run",
     .title = "a command under a lease (latency of the call)",
     .sides = {{"dibs run NAME -- true", bench_side_command, BENCH_COMMAND_DIBS},
               {"floor: flock FILE true", bench_side_command, BENCH_COMMAND_FLOCK}},
     .aims = {{"more than flock, p50", BENCH_MORE, BENCH_P50, 0, 1, true, 2, 1e-3, "ms"}}},
    {.key = "server-names",
     .title = "20 threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: 20 bare connections", dibs__bench_side_floor, BENCH_FLOOR_OWN}},
     .aims = {{"rate, divided by the bare ones'", BENCH_RATIO, BENCH_RATE, 0, 1, false, 1.5, 1, "x"}},
     .where = BENCH_AT_SQL},
    {.key = "server-threads",
     .title = "20 threads of one process on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_SAME_NAME},
               {"floor: 20 connections poll the row", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"rate, divided by polling's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 50, 1, "x"}},
     .where = BENCH_AT_SQL},
    {.key = "server-processes",
     .title = "20 processes on one name (latency of the hand-off)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_MANY},
               {"floor: 20 connections poll the row", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"rate, divided by polling's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 5, 1, "x"}},
     .where = BENCH_AT_SQL},
    {.key = "redis-alone",
     .title = "acquire and release, one thread, no other client (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"floor: 1 bare connection", dibs__bench_side_floor, BENCH_FLOOR_ONE}},
     .aims = {{"round trips for a pair", BENCH_VALUE, BENCH_TX, 0, 0, true, 2, 1, ""},
              {"processor time, divided by bare", BENCH_RATIO, BENCH_CPU, 0, 1, true, 1.2, 1, "x"}},
     .where = BENCH_AT_REDIS},
    {.key = "redis-names",
     .title = "20 threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: 20 bare connections", dibs__bench_side_floor, BENCH_FLOOR_OWN}},
     .aims = {{"rate, divided by the bare ones'", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.9, 1, "x"}},
     .where = BENCH_AT_REDIS},
    {.key = "redis-loop",
     .title = "20 calls in flight from one thread (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_loop, 0},
               {"floor: bare, 16 pairs a trip", dibs__bench_side_floor, BENCH_FLOOR_16},
               {"bare, 64 pairs a trip", dibs__bench_side_floor, BENCH_FLOOR_64}},
     .aims = {{"rate, divided by 16 pairs a trip", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.6, 1, "x"}},
     .where = BENCH_AT_REDIS},
    {.key = "redis-threads",
     .title = "20 threads of one process on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_SAME_NAME},
               {"20 connections poll the name", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"rate, divided by polling's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 5, 1, "x"}},
     .where = BENCH_AT_REDIS},
    {.key = "redis-processes",
     .title = "20 processes on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_MANY | BENCH_TURNS_WAITS},
               {"20 connections poll the name", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"longest wait, divided by polling's", BENCH_RATIO, BENCH_MAX, 0, 1, true, 0.5, 1, "x"},
              {"grants that overtake", BENCH_VALUE, BENCH_OVERTAKEN, 0, 0, true, 0.1, 1, "%"}},
     .where = BENCH_AT_REDIS},
    {.key = "redis-million",
     .title = "a million leases held at once, then released (memory of the server)",
     .sides = {{"dibs", dibs__bench_side_million, BENCH_MILLION_DIBS},
               {"floor: SET NX PX and a counter", dibs__bench_side_million, BENCH_MILLION_FLOOR}},
     .aims = {{"memory of a lease, divided by bare", BENCH_RATIO, BENCH_STORE, 0, 1, true, 2, 1, "x"},
              {"keys left after the release", BENCH_VALUE, BENCH_KEYS, 0, 0, true, 1024, 1, ""}},
     .where = BENCH_REQUESTED,
     .once = true},
    {.key = "etcd-alone",
     .title = "acquire and release, one thread, no other client (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"floor: 1 bare connection", dibs__bench_side_floor, BENCH_FLOOR_ONE}},
     .aims = {{"round trips for a pair", BENCH_VALUE, BENCH_TX, 0, 0, true, 2.4, 1, ""},
              {"p50, divided by bare", BENCH_RATIO, BENCH_P50, 0, 1, true, 1.5, 1, "x"}},
     .where = BENCH_AT_ETCD},
    {.key = "etcd-names",
     .title = "20 threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: 20 bare connections", dibs__bench_side_floor, BENCH_FLOOR_OWN}},
     .aims = {{"rate, divided by the bare ones'", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.8, 1, "x"}},
     .where = BENCH_AT_ETCD},
    {.key = "etcd-processes",
     .title = "20 processes on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_MANY | BENCH_TURNS_WAITS},
               {"floor: 20 clients watch the one before", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"rate, divided by the bare ones'", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.67, 1, "x"}},
     .where = BENCH_AT_ETCD},
    {.key = "mongodb-alone",
     .title = "acquire and release, one thread, no other client (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"floor: 1 bare connection", dibs__bench_side_floor, BENCH_FLOOR_ONE}},
     .aims = {{"round trips for a pair", BENCH_VALUE, BENCH_TX, 0, 0, true, 2.4, 1, ""},
              {"p50, divided by bare", BENCH_RATIO, BENCH_P50, 0, 1, true, 1.5, 1, "x"}},
     .where = BENCH_AT_MONGODB},
    {.key = "mongodb-names",
     .title = "20 threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: 20 bare connections", dibs__bench_side_floor, BENCH_FLOOR_OWN}},
     .aims = {{"rate, divided by the bare ones'", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.8, 1, "x"}},
     .where = BENCH_AT_MONGODB},
    {.key = "mongodb-processes",
     .title = "20 processes on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_MANY | BENCH_TURNS_WAITS},
               {"20 connections poll the document", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"rate, divided by polling's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.8, 1, "x"}},
     .where = BENCH_AT_MONGODB},
    {.key = "zk-alone",
     .title = "acquire and release, one thread, no other client (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"floor: the recipe, 1 connection", dibs__bench_side_floor, BENCH_FLOOR_ONE}},
     .aims = {{"round trips for a pair", BENCH_VALUE, BENCH_TX, 0, 0, true, 3.6, 1, ""}},
     .where = BENCH_AT_ZOOKEEPER},
    {.key = "zk-names",
     .title = "20 threads, each with its own name (latency of the pair)",
     .sides = {{"dibs", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"floor: the recipe, 20 connections", dibs__bench_side_floor, BENCH_FLOOR_OWN}},
     .aims = {{"rate, divided by the recipe's", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.8, 1, "x"}},
     .where = BENCH_AT_ZOOKEEPER},
    {.key = "zk-processes",
     .title = "20 processes on one name (latency of the wait)",
     .sides = {{"dibs", dibs__bench_side_turns, BENCH_TURNS_DIBS | BENCH_TURNS_MANY | BENCH_TURNS_WAITS},
               {"floor: the recipe, 20 connections", dibs__bench_side_floor, BENCH_FLOOR_SHARED}},
     .aims = {{"time of a turn, divided by the recipe's", BENCH_RATIO, BENCH_RATE, 1, 0, true, 1.5, 1, "x"}},
     .where = BENCH_AT_ZOOKEEPER},
    {.key = "tiers-alone",
     .title = "with tiers: one thread, no other client (latency of the pair)",
     .sides = {{"the tiers", dibs__bench_side_threads, BENCH_ONE_THREAD},
               {"the first tier alone", dibs__bench_side_threads, BENCH_ONE_THREAD | BENCH_FIRST_TIER}},
     .aims = {{"rate, divided by that without tiers", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.9, 1, "x"}},
     .where = BENCH_IN_TIERS},
    {.key = "tiers-names",
     .title = "with tiers: 20 threads on 20 names (latency of the pair)",
     .sides = {{"the tiers", dibs__bench_side_threads, BENCH_OWN_NAMES},
               {"the first tier alone", dibs__bench_side_threads, BENCH_OWN_NAMES | BENCH_FIRST_TIER}},
     .aims = {{"rate, divided by that without tiers", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.9, 1, "x"}},
     .where = BENCH_IN_TIERS},
    {.key = "tiers-loop",
     .title = "with tiers: 20 calls in flight from one thread (latency of the pair)",
     .sides = {{"the tiers", dibs__bench_side_loop, 0},
               {"the first tier alone", dibs__bench_side_loop, BENCH_FIRST_TIER}},
     .aims = {{"rate, divided by that without tiers", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.9, 1, "x"}},
     .where = BENCH_IN_TIERS},
    {.key = "tiers-threads",
     .title = "with tiers: 20 threads on one name (latency of the wait)",
     .sides = {{"the tiers", dibs__bench_side_threads, BENCH_SAME_NAME},
               {"the first tier alone", dibs__bench_side_threads, BENCH_SAME_NAME | BENCH_FIRST_TIER}},
     .aims = {{"rate, divided by that without tiers", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.9, 1, "x"}},
     .where = BENCH_IN_TIERS},
    {.key = "tiers-fallback",
     .title = "20 clients, and the first tier becomes unreachable (between two grants)",
     .sides = {{"the tiers", dibs__bench_side_gap, 0}},
     .aims = {{"longest time without a grant", BENCH_VALUE, BENCH_GAP, 0, 0, true, 1500, 1, "ms"}},
     .where = BENCH_REQUESTED,
     .once = true},
    {.key = NULL}};

static const struct bench_subject subjects[] = {
    {"lease", "what leases cost", lease_cases},
    {"task", "how fast tasks are done", dibs__bench_task_cases},
    {"counter", "what additions to counters cost", dibs__bench_counter_cases}};

static const struct bench_subject *subject_of(const char *name) {
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
    if (strcmp(subjects[i].name, name) == 0) return &subjects[i];
  return NULL;
}

/* `dibs bench SUBJECT`: parses the options, finds a folder for the files, runs the cases in rounds. */

static const struct bench_size whole = {.rounds = 5,
                                        .ms = 1000,
                                        .many = 10000,
                                        .ttl_ms = 3000,
                                        .million = 1000000,
                                        .calls = 50,
                                        .tasks_least = 1000,
                                        .lives = 100,
                                        .crash = 50000,
                                        .rows_few = 10000,
                                        .rows_many = 1000000,
                                        .rows = 100000,
                                        .keys = 1000,
                                        .parked = 10};
static const struct bench_size smoke = {.rounds = 1,
                                        .ms = 50,
                                        .many = 200,
                                        .ttl_ms = 1500,
                                        .million = 500,
                                        .calls = 3,
                                        .tasks_least = 100,
                                        .lives = 5,
                                        .crash = 400,
                                        .rows_few = 20,
                                        .rows_many = 200,
                                        .rows = 200,
                                        .keys = 20,
                                        .parked = 2};
enum { ROUND_MS_MIN = 10, ROUND_MS_MAX = 600000, TRIES = 10 /* of a round, if the machine must be calm */ };

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
  interrupted = number;
}

/* ---- Shared by the sides ---- */

void dibs__bench_sample_clear(struct bench_sample *sample) {
  for (size_t i = 0; i < BENCH_METRICS; i++) sample->value[i] = (double)NAN;
  sample->skipped = false;
}

void dibs__bench_sample_hist(struct bench_sample *sample, const struct dibs__hist *hist) {
  if (!hist->count) return;
  sample->value[BENCH_P50] = (double)dibs__hist_percentile(hist, 50) / 1000;
  sample->value[BENCH_P99] = (double)dibs__hist_percentile(hist, 99) / 1000;
  sample->value[BENCH_P999] = (double)dibs__hist_percentile(hist, 99.9) / 1000;
  sample->value[BENCH_MAX] = (double)hist->max / 1000;
}

static int add_metric(const dibs_metric *metric, void *user) {
  static const struct {
    const char *name;
    size_t at;
  } wanted[] = {{"acquired", offsetof(struct bench_counts, acquired)},
                {"waiting", offsetof(struct bench_counts, waiting)},
                {"lost", offsetof(struct bench_counts, lost)},
                {"renewed", offsetof(struct bench_counts, renewed)},
                {"transactions", offsetof(struct bench_counts, transactions)}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && !metric->tier; i++)
    if (strcmp(metric->name, wanted[i].name) == 0) *(uint64_t *)(void *)((char *)user + wanted[i].at) = metric->value;
  return 0;
}

struct bench_counts dibs__bench_counts(dibs_store *store) {
  struct bench_counts counts = {0};
  return dibs_metrics(store, add_metric, &counts, NULL) == DIBS_OK ? counts : (struct bench_counts){0};
}

void dibs__bench_sample_counts(struct bench_sample *sample, const struct bench_counts *before, dibs_store *store) {
  struct bench_counts now = dibs__bench_counts(store);
  uint64_t acquired = now.acquired - before->acquired;
  if (acquired) sample->value[BENCH_TX] = (double)(now.transactions - before->transactions) / (double)acquired;
}

bool dibs__bench_open(struct bench *b, uint32_t flags, dibs_store **store) {
  dibs_store_options options = {.size = sizeof options, .flags = flags};
  dibs_error error;
  if (!dibs_open(b->store, &options, store, &error)) return true;
  return dibs__bench_fail(b, "%s", error.text);
}

/* store/uri.h: a comma, a scheme, and a colon without a digit after it begin the next one. */
size_t dibs__bench_first(const char *uri) {
  for (const char *comma = strchr(uri, ','); comma; comma = strchr(comma + 1, ',')) {
    size_t scheme = strspn(comma + 1, "abcdefghijklmnopqrstuvwxyz0123456789+.-");
    const char *colon = comma + 1 + scheme;
    if (scheme && *colon == ':' && !(colon[1] >= '0' && colon[1] <= '9')) return (size_t)(comma - uri);
  }
  return strlen(uri);
}

bool dibs__bench_open_first(struct bench *b, uint32_t flags, dibs_store **store) {
  char first[sizeof b->shown];
  const char *all = b->store;
  snprintf(first, sizeof first, "%.*s", (int)dibs__bench_first(all), all);
  /* A store that is an anchor refuses a client of it alone: use another prefix beside it. */
  size_t used = strlen(first);
  if (!strncmp(first, "redis", 5))
    snprintf(first + used, sizeof first - used, "%cprefix=bench-alone", strchr(first, '?') ? '&' : '?');
  b->store = first;
  bool opened = dibs__bench_open(b, flags, store);
  b->store = all;
  return opened;
}

void dibs__bench_name_of(char name[64], uint32_t run, uint32_t n) {
  snprintf(name, 64, "bench/%u/%u", run, n);
}

void dibs__bench_name(char name[64], uint32_t n) {
  dibs__bench_name_of(name, dibs__process_id(), n);
}

/* ---- A folder for the files ---- */

/* The folder of the given SQLite store, so that the floors use the same file system; otherwise that for temporary
 * files. */
static void parent_folder(struct bench *b, const struct cli_globals *globals, char *to, size_t size) {
  const char *temporary = getenv("TMPDIR");
  snprintf(to, size, "%s", temporary && temporary[0] == '/' ? temporary : "/tmp");
  struct dibs__uri uri;
  struct dibs__result result;
  if (!globals->store_given || dibs__uri_parse(globals->store, &uri, &result)) return;
  snprintf(b->shown, sizeof b->shown, "%s", uri.shown);
  const char *slash = strrchr(uri.path, '/');
  if (!strcmp(uri.scheme, "sqlite")) {
    if (slash)
      snprintf(to, size, "%.*s", slash > uri.path ? (int)(slash - uri.path) : 1, uri.path);
    else
      snprintf(to, size, ".");
  }
  dibs__uri_free(&uri);
}

static bool folder_make(struct bench *b, const struct cli_globals *globals) {
  char parent[sizeof b->folder - 32];
  parent_folder(b, globals, parent, sizeof parent);
  snprintf(b->folder, sizeof b->folder, "%s/dibs-bench-XXXXXX", parent);
  if (mkdtemp(b->folder)) return true;
  return dibs__bench_fail(b, "cannot create a folder for the bench's files in %s: %s", parent, strerror(errno));
}

static void folder_remove(const char *folder) {
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

bool dibs__bench_file_uri(const struct bench *b, const char *file, char *uri, size_t size) {
  size_t at = (size_t)snprintf(uri, size, "sqlite://");
  for (const char *p = b->folder; *p && at + 32 < size; p++) {
    bool plain = strchr("%?#&", *p) == NULL;
    at += (size_t)snprintf(uri + at, size - at, plain ? "%c" : "%%%02X", (unsigned char)*p);
  }
  int last = snprintf(uri + at, size - at, "/%s", file);
  return last > 0 && (size_t)last < size - at;
}

/* ---- Rounds ---- */

static void progress(const struct bench_result *result, uint32_t round, const char *side) {
  if (!isatty(STDERR_FILENO)) return;
  fputs("\r\033[K", stderr);
  if (side) fprintf(stderr, "%s: round %u of %u, %.40s", result->test->key, round + 1, result->rounds, side);
  fflush(stderr);
}

/* All sides once.  *noisy: others used more than --calm allows. */
static bool round_run(struct bench *b, struct bench_result *result, uint32_t round, bool *noisy) {
  const struct bench_case *test = result->test;
  *noisy = false;
  for (size_t i = 0; i < BENCH_SIDES_MAX && test->sides[i].name; i++) {
    const struct bench_side *side = &test->sides[i];
    struct bench_sample *sample = &result->sample[i][round];
    struct bench_noise noise;
    dibs__bench_sample_clear(sample);
    progress(result, round, side->name);
    dibs__bench_noise_begin(&noise);
    bool done = side->run(b, side->arg, sample);
    dibs__bench_noise_end(&noise, sample);
    progress(result, round, NULL);
    if (interrupted) return dibs__bench_fail(b, "ended by signal %d", (int)interrupted);
    if (!done) return false;
    if (b->size.calm > 0 && sample->value[BENCH_OTHERS] > b->size.calm) *noisy = true;
  }
  return true;
}

static bool case_run(struct bench *b, struct bench_result *result) {
  uint32_t wanted = result->test->once ? 1 : b->size.rounds;
  uint32_t tries = wanted * TRIES;
  result->rounds = wanted; /* for the progress line */
  for (uint32_t round = 0; round < wanted;) {
    bool noisy;
    if (!round_run(b, result, round, &noisy)) return false;
    tries--;
    bool again = noisy && tries >= wanted - round;
    if (!again) round++;
    result->noisy += noisy && !again;
  }
  return true;
}

/* ---- The command ---- */

struct requested {
  const struct bench_subject *subject;
  const char *only;
  const char *out;
  const char *floor, *upset;
  bool smoke, help;
  int64_t rounds, ms; /* 0: not given */
  double calm;
};

/* Is `key` one of the words of a list with commas?  A NULL list contains all. */
static bool list_has(const char *list, const char *key) {
  if (!list) return true;
  size_t length = strlen(key);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    if (!strncmp(at, key, length) && (at[length] == 0 || at[length] == ',')) return true;
  }
  return false;
}

/* The cases that run without --only. */
static enum bench_where default_cases(const struct bench *b) {
  if (b->store[dibs__bench_first(b->store)]) return BENCH_IN_TIERS;
  if (!b->floor) return BENCH_IN_FILE;
  if (strncmp(b->store, "etcd", 4) == 0) return BENCH_AT_ETCD;
  if (strncmp(b->store, "mongodb", 7) == 0) return BENCH_AT_MONGODB;
  if (strncmp(b->store, "zk:", 3) == 0) return BENCH_AT_ZOOKEEPER;
  return strncmp(b->store, "redis", 5) == 0 ? BENCH_AT_REDIS : BENCH_AT_SQL;
}

static bool chosen(const struct bench_case *test, const char *only, enum bench_where here) {
  return only ? list_has(only, test->key) : test->where == BENCH_ANYWHERE || test->where == here;
}

static size_t count_cases(const struct bench_subject *subject, const char *only, enum bench_where here) {
  size_t count = 0;
  for (const struct bench_case *test = subject->cases; test->key; test++) count += chosen(test, only, here);
  return count;
}

/* Every word of the list is a case, and there is one. */
static bool cases_known(const struct bench_subject *subject, const char *only) {
  size_t words = 1;
  for (const char *at = only; at && *at; at++) words += *at == ',';
  return only ? count_cases(subject, only, BENCH_REQUESTED) == words : true;
}

static int parse(int argc, char **argv, struct requested *requested, const struct cli_globals *globals) {
  static const struct option options[] = {
      {"rounds", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 's'},
      {"only", required_argument, NULL, 'o'},   {"out", required_argument, NULL, 'w'},
      {"calm", required_argument, NULL, 'c'},   {"floor", required_argument, NULL, 'f'},
      {"upset", required_argument, NULL, 'u'},  {"smoke", no_argument, NULL, 'k'},
      {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  opterr = 0;
  optind = 1;
  for (int got; (got = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    char *end = NULL;
    if (got == 'r')
      requested->rounds = strtoll(optarg, &end, 10);
    else if (got == 's')
      requested->ms = (int64_t)(strtod(optarg, &end) * 1000 + 0.5);
    else if (got == 'c')
      requested->calm = strtod(optarg, &end);
    else if (got == 'o')
      requested->only = optarg;
    else if (got == 'w')
      requested->out = optarg;
    else if (got == 'f')
      requested->floor = optarg;
    else if (got == 'u')
      requested->upset = optarg;
    else if (got == 'h')
      requested->help = true;
    else if (got == 'k')
      requested->smoke = true;
    else
      return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: there is no option %s; see dibs bench --help",
                            argv[optind - 1]);
    if (end && (*end || end == optarg))
      return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: %s is not a number", optarg);
  }
  if (requested->help) return CLI_DONE;
  requested->subject = optind == argc - 1 ? subject_of(argv[optind]) : NULL;
  if (!requested->subject) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID",
                          "bench: name what to measure: dibs bench lease, task or counter");
  }
  if (requested->rounds < 0 || requested->rounds > BENCH_ROUNDS_MAX) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: --rounds is not between 1 and %d", BENCH_ROUNDS_MAX);
  }
  if (requested->ms && (requested->ms < ROUND_MS_MIN || requested->ms > ROUND_MS_MAX)) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: 0.01 to 600 seconds");
  }
  if (!cases_known(requested->subject, requested->only)) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID",
                          "bench: %s is not a list of cases of %s; see dibs bench --help", requested->only,
                          requested->subject->name);
  }
  return CLI_DONE;
}

static bool write_out(struct bench *b, const char *path, const struct bench_result *results, size_t count) {
  FILE *file = fopen(path, "we");
  if (!file) return dibs__bench_fail(b, "cannot write %s: %s", path, strerror(errno));
  dibs__bench_json(b, results, count, file);
  bool bad = ferror(file);
  if (fclose(file) || bad) return dibs__bench_fail(b, "cannot write %s: %s", path, strerror(errno));
  return true;
}

static bool cases_run(struct bench *b, const struct requested *requested, bool json) {
  struct bench_result *results = calloc(count_cases(b->subject, requested->only, default_cases(b)), sizeof *results);
  if (!results) return dibs__bench_fail(b, "out of memory");
  size_t count = 0;
  bool done = true;
  if (!json) dibs__bench_print_head(b, stdout);
  for (const struct bench_case *test = b->subject->cases; done && test->key; test++) {
    if (!chosen(test, requested->only, default_cases(b))) continue;
    results[count].test = test;
    done = case_run(b, &results[count]);
    if (done && !json) dibs__bench_print(&results[count], stdout);
    count += done;
  }
  if (done && json) dibs__bench_json(b, results, count, stdout);
  if (done && requested->out) done = write_out(b, requested->out, results, count);
  free(results);
  return done;
}

static int help(const struct cli_globals *globals) {
  puts("usage: dibs bench lease|task|counter [--rounds N] [--seconds S] [--calm P] [--only CASE[,CASE]]\n              "
       "        "
       "  "
       "[--floor PROGRAM] [--upset COMMAND] [--smoke] [--out FILE] [--json]\n\nMeasures what leases cost on this "
       "machine, how fast tasks are done, or what additions to counters cost.  Each case has a floor that is measured "
       "in the same rounds:\nthe bare "
       "transactions, a mutex, "
       "flock(2).  Without --store it uses a temporary folder in $TMPDIR.\n\n  --rounds N    number of alternating "
       "rounds; the medians count (5)\n  --seconds S   how long each side runs in each round (1)\n  --calm P      "
       "repeat a round, a few times, if other processes used more than P percent of the processors\n  --only CASES  "
       "run only these cases\n  --floor PROG  for a --store on a server: a program that measures the server without "
       "dibs (bench/floors).\n                The cases are then those that begin with server-, or with redis-, "
       "etcd- or mongodb- for a "
       "Redis, etcd or MongoDB;\n                for a --store of several tiers those that begin with tiers-\n  "
       "--upset CMD   "
       "for "
       "tiers-fallback: a command that makes the first tier unreachable\n  --smoke       run everything for a very "
       "short time, to see whether it works\n  --out FILE    also write the figures as JSON to FILE\n  --json        "
       "print the figures as JSON instead of the table");
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
    printf("\nCases of %s:\n", subjects[i].name);
    for (const struct bench_case *test = subjects[i].cases; test->key; test++)
      printf("  %-16s %s\n", test->key, test->title);
  }
  return dibs__cli_flush(globals);
}

int dibs__bench_command(struct cli_call *call) {
  const struct cli_globals *globals = &call->v.globals;
  int argc = call->nrest;
  char **argv = call->rest;
  if (argc > 1 && !strcmp(argv[1], "helper")) return dibs__bench_helper(argc - 2, argv + 2);
  struct requested requested = {.only = NULL};
  int code = parse(argc, argv, &requested, globals);
  if (code) return code;
  if (requested.help) return help(globals);

  static struct bench b;
  char own[sizeof b.folder + 64];
  b.subject = requested.subject;
  b.size = requested.smoke ? smoke : whole;
  if (requested.rounds) b.size.rounds = (uint32_t)requested.rounds;
  if (requested.ms) b.size.ms = requested.ms;
  b.size.calm = requested.calm;
  b.floor = requested.floor;
  b.upset = requested.upset;
  if (!folder_make(&b, globals)) return dibs__cli_fail(globals, CLI_FAILED, "", "bench: %s", b.why);
  b.store = globals->store_given ? globals->store : own;
  bool done = globals->store_given || dibs__bench_file_uri(&b, "dibs.db", own, sizeof own) ||
              dibs__bench_fail(&b, "%s is too long", b.folder);
  if (!globals->store_given) snprintf(b.shown, sizeof b.shown, "%s", own);

  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  setenv("DIBS_STORE", b.store, 1); /* for `dibs run` */
  if (done) done = cases_run(&b, &requested, globals->json);
  folder_remove(b.folder);
  if (interrupted) return CLI_SIGNAL + interrupted;
  return done ? dibs__cli_flush(globals) : dibs__cli_fail(globals, CLI_FAILED, "", "bench: %s", b.why);
}
