/* SPDX-License-Identifier: MIT */
/*
 * The sides of `dibs bench task` that drain a queue, and its cases.
 *
 * A side fills a kind of its own before the time begins.  Four clients drain it, each with its own store and so with
 * its own connections, as four processes would; the floor has as many connections.  Afterwards the tables must contain
 * each task once.
 */
#include "lab/bench_task.h"
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* So many tasks are there for each second of a drain: more than the clients can do, or the drain ends earlier. */
enum { A_SECOND_OF_ONE = 8000, A_SECOND_MOST = 200000 };
enum { WORKER_THREADS = 4, WORKER_PREFETCH = 4000, LIVE_PAUSE_MS = 20, STUCK_MS = 60000, WAIT_MS = 20000 };

/* ---- A kind ---- */

bool dibs__bench_queue_open(struct bench *b, struct bench_queue *queue) {
  static uint32_t count;
  *queue = (struct bench_queue){.b = b};
  dibs__bench_name(queue->kind, ++count);
  return dibs__bench_open(b, 0, &queue->store);
}

static bool add_some(struct bench_queue *queue, uint32_t count, const dibs_task_new *like, uint32_t keys) {
  dibs_task_new news[BENCH_BATCH_MAX];
  char texts[BENCH_BATCH_MAX][24];
  dibs_error error;
  for (uint32_t i = 0; i < count; i++) {
    news[i] = *like;
    if (!keys) continue;
    snprintf(texts[i], sizeof texts[i], "key-%" PRIu64, (queue->added + i) % keys);
    news[i].serial = texts[i];
  }
  if (dibs_task_add_many(queue->store, queue->kind, news, count, WAIT_MS, &error))
    return dibs__bench_fail(queue->b, "cannot add tasks: %s", error.text);
  for (uint32_t i = 0; i < count; i++)
    if (news[i].status) return dibs__bench_fail(queue->b, "a task was not added: status %d", (int)news[i].status);
  if (!queue->first) queue->first = news[0].nr;
  queue->added += count;
  return true;
}

bool dibs__bench_queue_add(struct bench_queue *queue, uint32_t count, const dibs_task_new *like, uint32_t keys) {
  static const char payload[] = "payload 123456";
  dibs_task_new plain = {.size = sizeof plain, .payload = payload, .length = sizeof payload - 1};
  for (uint32_t some; count > 0; count -= some) {
    some = count < BENCH_BATCH_MAX ? count : BENCH_BATCH_MAX;
    if (!add_some(queue, some, like ? like : &plain, keys)) return false;
  }
  return true;
}

static int copy_kind(const dibs_task_kind *kind, void *user) {
  *(dibs_task_kind *)user = *kind;
  return 1;
}

bool dibs__bench_queue_count(struct bench_queue *queue, dibs_task_state state, uint64_t *count) {
  dibs_task_kind kind = {.size = sizeof kind};
  dibs_error error;
  if (dibs_tasks_count(queue->store, queue->kind, copy_kind, &kind, &error))
    return dibs__bench_fail(queue->b, "cannot count tasks: %s", error.text);
  *count = kind.states[state];
  return true;
}

bool dibs__bench_queue_close(struct bench_queue *queue, bool done) {
  dibs_task_filter all = {.size = sizeof all, .kind = queue->kind};
  dibs_error error;
  dibs_status status = DIBS_OK;
  if (queue->store && queue->added) {
    status = dibs_tasks_change(queue->store, DIBS_TASK_CANCEL, &all, 0, 0, NULL, NULL, &error);
    if (!status) status = dibs_tasks_change(queue->store, DIBS_TASK_PURGE, &all, 0, 0, NULL, NULL, &error);
  }
  dibs_close(queue->store);
  if (!done) return false;
  return !status || dibs__bench_fail(queue->b, "cannot remove tasks: %s", error.text);
}

/* ---- Draining ---- */

struct drainer {
  struct drain_crew *crew;
  dibs__thread *thread;
  dibs_store *store;
  struct bench_lanes lanes;
  uint64_t done;
  dibs__tick ended;
  struct dibs__hist hist; /* ns */
  char why[640];
};

struct drain_crew {
  struct bench_drain *drain;
  dibs__word go;
  dibs__tick until; /* written before `go` */
  struct drainer member[BENCH_TASK_CLIENTS];
};

bool dibs__bench_batch(dibs_store *store, const char *kind, const struct bench_lanes *lanes, uint32_t most,
                       int64_t timeout_ms, size_t *count, dibs__tick *claimed,
                       void (*work)(const dibs_task *task, void *user), void *user, char *why, size_t size) {
  dibs_claim_options options = {.size = sizeof options, .most = most, .timeout_ms = timeout_ms};
  dibs_task *tasks[BENCH_BATCH_MAX];
  dibs_task_end ends[BENCH_BATCH_MAX];
  dibs_error error;
  if (lanes) options.lanes = lanes->lanes;
  if (lanes) options.lane_count = lanes->count;
  dibs_status status = dibs_tasks_claim(store, kind, &options, tasks, count, &error);
  *claimed = dibs__tick_now();
  if (status == DIBS_NOT_FOUND) return true;
  if (status) snprintf(why, size, "cannot claim: %s", error.text);
  if (status) return false;
  for (size_t i = 0; i < *count; i++) {
    if (work) work(tasks[i], user);
    ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_DONE};
  }
  status = dibs_task_end_many(NULL, ends, *count, &error);
  if (status) snprintf(why, size, "cannot end tasks: %s", error.text);
  for (size_t i = 0; !status && i < *count; i++) {
    status = ends[i].status;
    if (status) snprintf(why, size, "task %" PRIu64 " was not ended: status %d", tasks[i]->nr, (int)status);
  }
  for (size_t i = 0; i < *count; i++) dibs_task_free(tasks[i]);
  return !status;
}

static const struct bench_lanes *lanes_of(const struct drainer *d) {
  return d->crew->drain->by_lane ? &d->lanes : NULL;
}

static void drainer_main(void *arg) {
  struct drainer *d = arg;
  const struct bench_drain *drain = d->crew->drain;
  while (!atomic_load(&d->crew->go)) dibs__word_wait(&d->crew->go, 0, DIBS__TICK_NEVER, false);
  do {
    size_t count = 0;
    dibs__tick from = dibs__tick_now(), claimed;
    if (!dibs__bench_batch(d->store, drain->queue->kind, lanes_of(d), drain->batch, 0, &count, &claimed, NULL, NULL,
                           d->why, sizeof d->why))
      break;
    d->ended = dibs__tick_now();
    if (count == 0) break;
    dibs__hist_add(&d->hist, (drain->claims ? claimed : d->ended).ns - from.ns);
    d->done += count;
  } while (dibs__tick_before(d->ended, d->crew->until));
}

static bool drainers_join(struct drain_crew *crew) {
  struct bench_drain *drain = crew->drain;
  struct bench_lanes *members[BENCH_TASK_CLIENTS];
  for (uint32_t i = 0; i < drain->clients; i++) {
    members[i] = &crew->member[i].lanes;
    if (!dibs__bench_lanes_join(drain->queue->b, crew->member[i].store, drain->queue->kind, members[i])) return false;
  }
  return dibs__bench_lanes_settle(drain->queue->b, members, drain->clients);
}

/* Opens connections and prepares statements outside of the measurement: each client does one batch. */
static bool drainers_open(struct drain_crew *crew) {
  struct bench_drain *drain = crew->drain;
  struct bench *b = drain->queue->b;
  for (uint32_t i = 0; i < drain->clients; i++) {
    crew->member[i].crew = crew;
    if (!dibs__bench_open(b, 0, &crew->member[i].store)) return false;
  }
  if (drain->by_lane && !drainers_join(crew)) return false;
  for (uint32_t i = 0; i < drain->clients; i++) {
    struct drainer *d = &crew->member[i];
    size_t count;
    dibs__tick claimed;
    if (!dibs__bench_batch(d->store, drain->queue->kind, lanes_of(d), drain->batch, 0, &count, &claimed, NULL, NULL,
                           d->why, sizeof d->why))
      return dibs__bench_fail(b, "%s", d->why);
    drain->done += count;
  }
  return true;
}

static bool drain_gather(struct drain_crew *crew, dibs__tick from, double cpu, struct bench_sample *sample) {
  struct bench_drain *drain = crew->drain;
  struct drainer *all = &crew->member[0];
  uint64_t done = 0;
  int64_t ns = 1;
  for (uint32_t i = 0; i < drain->clients; i++) {
    struct drainer *d = &crew->member[i];
    if (d->why[0]) return dibs__bench_fail(drain->queue->b, "%s", d->why);
    if (d->done && d->ended.ns - from.ns > ns) ns = d->ended.ns - from.ns;
    done += d->done;
    if (i) dibs__hist_merge(&all->hist, &d->hist);
  }
  drain->done += done;
  dibs__bench_sample_hist(sample, &all->hist);
  sample->value[BENCH_RATE] = (double)done * 1e9 / (double)ns;
  if (done) sample->value[BENCH_CPU] = cpu * 1e6 / (double)done;
  return done > 0 || dibs__bench_fail(drain->queue->b, "no task was claimed");
}

bool dibs__bench_drain(struct bench_drain *drain, struct bench_sample *sample) {
  struct bench *b = drain->queue->b;
  struct drain_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__bench_fail(b, "out of memory");
  crew->drain = drain;
  bool done = drainers_open(crew);
  for (uint32_t i = 0; done && i < drain->clients; i++) {
    crew->member[i].thread = dibs__thread_start("bench", drainer_main, &crew->member[i]);
    if (!crew->member[i].thread) done = dibs__bench_fail(b, "cannot start thread number %u", i + 1);
  }
  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  crew->until = dibs__tick_add_ms(from, done ? b->size.ms : 0);
  atomic_store(&crew->go, 1);
  dibs__word_wake(&crew->go, UINT32_MAX, false);
  for (uint32_t i = 0; i < drain->clients; i++)
    if (crew->member[i].thread) dibs__thread_join(crew->member[i].thread);
  cpu = dibs__bench_cpu() - cpu;
  if (done) done = drain_gather(crew, from, cpu, sample);
  for (uint32_t i = 0; i < drain->clients; i++) dibs__bench_lanes_leave(&crew->member[i].lanes);
  for (uint32_t i = 0; i < drain->clients; i++) dibs_close(crew->member[i].store);
  free(crew);
  return done;
}

static uint32_t tasks_for(const struct bench *b, uint32_t batch) {
  uint64_t a_second = (uint64_t)batch * A_SECOND_OF_ONE;
  if (a_second > A_SECOND_MOST) a_second = A_SECOND_MOST;
  uint64_t tasks = a_second * (uint64_t)b->size.ms / 1000;
  return (uint32_t)(tasks < b->size.tasks_least ? b->size.tasks_least : tasks) + batch * BENCH_TASK_CLIENTS;
}

/* The tables contain what was done. */
static bool drained(struct bench_queue *queue, uint64_t done) {
  uint64_t counted = 0;
  if (!dibs__bench_queue_count(queue, DIBS_TASK_DONE, &counted)) return false;
  return counted == done ||
         dibs__bench_fail(queue->b, "%" PRIu64 " tasks were done, and %" PRIu64 " are counted", done, counted);
}

static bool side_drain(struct bench *b, uint32_t batch, struct bench_sample *sample) {
  struct bench_queue queue;
  struct bench_drain drain = {.queue = &queue, .clients = BENCH_TASK_CLIENTS, .batch = batch};
  bool done = dibs__bench_queue_open(b, &queue) && dibs__bench_queue_add(&queue, tasks_for(b, batch), NULL, 0) &&
              dibs__bench_drain(&drain, sample) && drained(&queue, drain.done);
  return dibs__bench_queue_close(&queue, done);
}

/* ---- The worker of the library ---- */

static dibs_verdict do_nothing(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)task, (void)reply, (void)user;
  return DIBS_END_DONE;
}

/* Until the store has accepted `count` verdicts. */
static bool worker_finishes(struct bench *b, dibs_worker *worker, uint64_t count) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STUCK_MS);
  for (;;) {
    dibs_worker_counts counts = {.size = sizeof counts};
    dibs_error error;
    if (dibs_worker_count(worker, &counts, &error)) return dibs__bench_fail(b, "%s", error.text);
    if (counts.done >= count) return true;
    if (dibs__tick_before(by, dibs__tick_now())) {
      dibs_worker_trouble(worker, &error);
      return dibs__bench_fail(b, "the worker did %" PRIu64 " of %" PRIu64 " tasks in %d s: %s", counts.done, count,
                              STUCK_MS / 1000, error.text);
    }
    dibs__nap_ms(1);
  }
}

enum { WORKER_DEFAULT, WORKER_CONNECTIONS };

/* Another handle of a server's store, with as many connections as the floor has.  *store is NULL: the store is no
 * server. */
static bool open_wide(struct bench *b, dibs_store **store) {
  char wide[sizeof b->shown];
  const char *all = b->store;
  *store = NULL;
  if (strncmp(all, "postgres", 8) != 0 && strncmp(all, "mysql", 5) != 0 && strncmp(all, "mariadb", 7) != 0) return true;
  snprintf(wide, sizeof wide, "%s%cconnections=%d", all, strchr(all, '?') ? '&' : '?', BENCH_TASK_CLIENTS);
  b->store = wide;
  bool opened = dibs__bench_open(b, 0, store);
  b->store = all;
  return opened;
}

static bool worker_drains(struct bench_queue *queue, dibs_store *store, struct bench_sample *sample) {
  dibs_worker_options options = {
      .size = sizeof options, .threads = WORKER_THREADS, .prefetch = WORKER_PREFETCH, .work = do_nothing};
  dibs_worker *worker = NULL;
  dibs_error error;
  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (dibs_worker_start(store, queue->kind, &options, &worker, &error))
    return dibs__bench_fail(queue->b, "%s", error.text);
  bool done = worker_finishes(queue->b, worker, queue->added);
  sample->value[BENCH_RATE] = (double)queue->added * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  sample->value[BENCH_CPU] = (dibs__bench_cpu() - cpu) * 1e6 / (double)queue->added;
  dibs_worker_free(worker);
  return done && drained(queue, queue->added);
}

static bool side_worker(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct bench_queue queue;
  dibs_store *wide = NULL;
  if (arg == WORKER_CONNECTIONS && !open_wide(b, &wide)) return false;
  sample->skipped = arg == WORKER_CONNECTIONS && !wide;
  if (sample->skipped) return true;
  bool done = dibs__bench_queue_open(b, &queue) &&
              dibs__bench_queue_add(&queue, tasks_for(b, BENCH_BATCH_MAX), NULL, 0) &&
              worker_drains(&queue, wide ? wide : queue.store, sample);
  dibs_close(wide);
  return dibs__bench_queue_close(&queue, done);
}

/* ---- One task at a time ---- */

struct live {
  dibs__word begun;
  _Atomic int64_t began_ns;
};

static dibs_verdict note_start(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)task, (void)reply;
  struct live *live = user;
  atomic_store(&live->began_ns, dibs__tick_now().ns);
  atomic_fetch_add(&live->begun, 1);
  dibs__word_wake(&live->begun, UINT32_MAX, false);
  return DIBS_END_DONE;
}

/* From the call that adds a task to its start; -1: the queue's bench has the reason. */
static int64_t start_ns(struct bench_queue *queue, dibs_store *by, struct live *live) {
  dibs_error error;
  uint32_t before = atomic_load(&live->begun);
  dibs__tick from = dibs__tick_now(), end = dibs__tick_add_ms(from, STUCK_MS);
  if (dibs_task_add(by, queue->kind, "1", 1, NULL, NULL, &error)) {
    dibs__bench_fail(queue->b, "cannot add a task: %s", error.text);
    return -1;
  }
  queue->added++;
  while (atomic_load(&live->begun) == before) {
    if (!dibs__word_wait(&live->begun, before, end, false) && !dibs__tick_before(dibs__tick_now(), end)) {
      dibs__bench_fail(queue->b, "a task was not started within %d s", STUCK_MS / 1000);
      return -1;
    }
  }
  return atomic_load(&live->began_ns) - from.ns;
}

enum { LIVE_SAME, LIVE_OTHER };

/* LIVE_OTHER: another client adds the tasks, and the store must wake the worker. */
static bool side_live(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct bench_queue queue;
  struct live live = {.begun = 0};
  dibs_worker_options options = {.size = sizeof options, .threads = WORKER_THREADS, .work = note_start, .user = &live};
  dibs_worker *worker = NULL;
  dibs_store *other = NULL;
  dibs_error error;
  struct dibs__hist *hist = calloc(1, sizeof *hist);
  bool done = dibs__bench_queue_open(b, &queue) && (arg == LIVE_SAME || dibs__bench_open(b, 0, &other));
  if (done && !hist) done = dibs__bench_fail(b, "out of memory");
  if (done && dibs_worker_start(queue.store, queue.kind, &options, &worker, &error))
    done = dibs__bench_fail(b, "%s", error.text);
  for (uint32_t i = 0; done && i <= b->size.lives; i++) {
    int64_t ns = start_ns(&queue, other ? other : queue.store, &live);
    done = ns >= 0;
    if (done && i) dibs__hist_add(hist, ns); /* the first opens connections */
    dibs__nap_ms(LIVE_PAUSE_MS);             /* the worker is idle again */
  }
  if (done) dibs__bench_sample_hist(sample, hist);
  dibs_worker_free(worker);
  dibs_close(other);
  free(hist);
  return dibs__bench_queue_close(&queue, done);
}

/* ---- The relay ---- */

/* Until the end of what it prints. */
static uint64_t count_lines(int fd) {
  static char some[65536];
  uint64_t lines = 0;
  for (;;) {
    ssize_t got = read(fd, some, sizeof some);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return lines;
    for (ssize_t i = 0; i < got; i++) lines += some[i] == '\n';
  }
}

/* $DIBS_STORE is the store. */
static bool relay_run(struct bench_queue *queue, uint64_t *lines) {
  struct bench *b = queue->b;
  char path[PATH_MAX], kind[sizeof queue->kind], relay[] = "relay", out[] = "--stdout", once[] = "--once";
  pid_t pid;
  int fd, status = 0;
  snprintf(kind, sizeof kind, "%s", queue->kind);
  if (dibs__cli_find_program("dibs", path, sizeof path) != path) snprintf(path, sizeof path, "dibs");
  if (!dibs__bench_start(b, (char *[]){path, relay, kind, out, once, NULL}, &pid, &fd)) return false;
  *lines = count_lines(fd);
  close(fd);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status == 0 || dibs__bench_fail(b, "dibs relay ended with status %d", status);
}

static bool side_relay(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  struct bench_queue queue;
  uint64_t lines = 0;
  bool done =
      dibs__bench_queue_open(b, &queue) && dibs__bench_queue_add(&queue, tasks_for(b, BENCH_BATCH_MAX), NULL, 0);
  dibs__tick from = dibs__tick_now();
  done = done && relay_run(&queue, &lines);
  sample->value[BENCH_RATE] = (double)lines * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  if (done && lines != queue.added)
    done = dibs__bench_fail(b, "%" PRIu64 " lines of %" PRIu64 " messages", lines, queue.added);
  done = done && drained(&queue, queue.added);
  return dibs__bench_queue_close(&queue, done);
}

/* ---- The cases ---- */

#define DRAIN(n)                                                                                                       \
  {                                                                                                                    \
    .key = "drain-" #n, .title = "4 clients drain a queue, " #n " at a time (latency of claim and end)",               \
    .sides = {{"dibs, batches of " #n, side_drain, n}, {"floor, batches of " #n, dibs__bench_side_floor_tasks, n}},    \
    .aims = {{"rate / rate of the floor", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.6, 1, "x"}}, .where = BENCH_ANYWHERE \
  }

/* flat: the table of cases */
const struct bench_case dibs__bench_task_cases[] = {
    DRAIN(1),
    DRAIN(10),
    DRAIN(100),
    DRAIN(1000),
    {.key = "worker",
     .title = "a worker of the library, 4 threads, drains a queue",
     .sides = {{"dibs worker", side_worker, WORKER_DEFAULT},
               {"dibs worker, 4 connections", side_worker, WORKER_CONNECTIONS},
               {"floor, batches of 1000", dibs__bench_side_floor_tasks, 1000}},
     .aims = {{"4 connections, rate / the floor's", BENCH_RATIO, BENCH_RATE, 1, 2, false, 0.6, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "live",
     .title = "one task at a time, nothing else to do (from the call that adds it to its start)",
     .sides = {{"dibs worker, same process", side_live, LIVE_SAME},
               {"dibs worker, another client", side_live, LIVE_OTHER}},
     .aims = {{"p99, same process", BENCH_VALUE, BENCH_P99, 0, 0, true, 10, 1e-3, "ms"},
              {"p99, another client", BENCH_VALUE, BENCH_P99, 1, 1, true, 10, 1e-3, "ms"}},
     .where = BENCH_ANYWHERE},
    {.key = "grown",
     .title = "claims of 10, half of the other rows wait, half are finished (latency of the claim)",
     .sides = {{"10,000 other rows", dibs__bench_side_rows, BENCH_ROWS_FEW},
               {"1,000,000 other rows", dibs__bench_side_rows, BENCH_ROWS_MANY}},
     .aims = {{"p50, divided by that of the first", BENCH_RATIO, BENCH_P50, 1, 0, true, 1.3, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "dead",
     .title = "claims of 10 while a snapshot is held that keeps dead rows (latency of the claim)",
     .sides = {{"no dead rows", dibs__bench_side_rows, BENCH_ROWS_NONE},
               {"100,000 dead rows", dibs__bench_side_rows, BENCH_ROWS_DEAD}},
     .aims = {{"p50, divided by that of the first", BENCH_RATIO, BENCH_P50, 1, 0, true, 1.25, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "finished",
     .title = "claims of 10 beside finished rows (latency of the claim)",
     .sides = {{"no finished rows", dibs__bench_side_rows, BENCH_ROWS_NONE},
               {"100,000 finished rows", dibs__bench_side_rows, BENCH_ROWS_FINISHED}},
     .aims = {{"p50, divided by that of the first", BENCH_RATIO, BENCH_P50, 1, 0, true, 1.25, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "keys",
     .title = "4 clients drain tasks with keys, 100 at a time; 10 of 1,000 keys are parked",
     .sides = {{"no keys", dibs__bench_side_keys, BENCH_KEYS_NONE},
               {"1,000 keys, 10 of them parked", dibs__bench_side_keys, BENCH_KEYS_PARKED},
               {"the same by lane: 64 lanes", dibs__bench_side_keys, BENCH_KEYS_LANES}},
     .aims = {{"by lane: rate / rate without keys", BENCH_RATIO, BENCH_RATE, 2, 0, false, 0.25, 1, "x"},
              {"by lane: rate / rate with keys", BENCH_RATIO, BENCH_RATE, 2, 1, false, 1, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "relay",
     .title = "dibs relay delivers messages as lines to its standard output, from its start to its end",
     .sides = {{"dibs relay --stdout", side_relay, 0}},
     .aims = {{"messages per second", BENCH_VALUE, BENCH_RATE, 0, 0, false, 20000, 1, ""}},
     .where = BENCH_ANYWHERE},
    {.key = "crash",
     .title = "one of two processes is killed in the middle of a drain",
     .sides = {{"dibs, batches of 100", dibs__bench_side_crash, 0}},
     .aims = {{"tasks that are lost", BENCH_VALUE, BENCH_LOST, 0, 0, true, 0, 1, ""},
              {"tasks that were done twice", BENCH_VALUE, BENCH_TWICE, 0, 0, true, 100, 1, ""}},
     .where = BENCH_ANYWHERE},
    {.key = NULL}};
