/* SPDX-License-Identifier: MIT */
/*
 * A storm on workers by lane: processes that join, leave, are stopped for longer than their ttl, and killed, while
 * tasks of many keys are added and the number of lanes changes.
 *
 * The command line and the processes are those of support/members.h.
 *
 * The tasks of a key are numbered.  The function of the worker reads the record of the key under the lane's lease,
 * which seals it, and writes its own number there, under the lease.  It logs:
 *
 *   O key number last    the record has another number than the one before: the order is broken
 *   A key number fence   the store has acknowledged that it wrote its number, under this fence
 *
 * Now and then it answers that it wants another try, before or after the write.  In the end each number of each key was
 * written exactly once, with fences that never decrease, and every task is done.
 *
 * --unguarded writes without the lease: then numbers must be written twice, or the storm proves nothing (exit 0 when
 * they are).  It goes on until that is so: on SQLite a member that is stopped while it writes keeps all from writing,
 * and a whole storm may pass like that.
 */
#include "dibs/lane.h"
#include "dibs/task.h"
#include "support/members.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CLAIM_MS = 4000, /* a dead worker's tasks are free before, with its lanes */
  KEYS = 40,
  NUMBERS_MAX = 20000, /* of a key */
  BACKLOG = 8,         /* of each key, more are not added */
  ADD_EACH_MS = 20,
  THREADS = 3,
  LANES_FIRST = 8,
  CALM_MS = 120000,
  UNGUARDED_TIMES = 10 /* as long as the storm was to last, at most */
};

/* Of a member. */
static uint32_t draw(uint32_t below) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return drawn % below;
}

/* ---- A worker ---- */

static struct member_self me;

static dibs_verdict another_try(dibs_work_reply *reply) {
  reply->delay_ms = draw(30);
  return (dibs_verdict[]){DIBS_END_FAIL, DIBS_END_NEXT, DIBS_END_WAIT, DIBS_END_RELEASE}[draw(4)];
}

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)user;
  uint64_t key = strtoull(task->serial + 4, NULL, 10), number = strtoull(task->payload, NULL, 10), last;
  dibs_lease *lease = me.unguarded ? NULL : dibs_lane_lease(task->lane);
  if (draw(16) == 0) return another_try(reply);
  if (number_read(me.store, task->serial, lease, &last) != DIBS_OK)
    return DIBS_END_NEXT;                   /* the lane is lost, for example */
  if (last >= number) return DIBS_END_DONE; /* its verdict was lost */
  if (last + 1 != number) {
    member_say(&me, 'O', key, number, last);
    return DIBS_END_FAIL;
  }
  if (me.unguarded) dibs__nap_ms(60); /* so that it is often stopped here */
  if (number_write(me.store, task->serial, lease, number) != DIBS_OK) return DIBS_END_NEXT;
  member_say(&me, 'A', key, number, dibs_lane_fence(task->lane).value);
  return draw(32) == 0 ? another_try(reply) : DIBS_END_DONE;
}

static int be_member(int argc, char *argv[]) {
  dibs_error error;
  dibs_status status;
  member_begin(&me, argc, argv);
  dibs_worker_options o = {.size = sizeof o,
                           .threads = me.unguarded ? 8 : THREADS,
                           .prefetch = 20,
                           .timeout_ms = CLAIM_MS,
                           .work = work,
                           .topic = "storm",
                           .lane_ttl_ms = me.ttl_ms};
  dibs_worker *worker = NULL;
  while ((status = dibs_worker_start(me.store, "storm", &o, &worker, &error)) != DIBS_OK) {
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) die("starting the worker", error.text);
    if (member_leaves()) return 0;
    dibs__nap_ms(50);
  }
  while (!member_leaves()) dibs__nap_ms(10);
  if (dibs_worker_stop(worker, CALM_MS, &error) != DIBS_OK) die("stopping the worker", error.text);
  dibs_worker_free(worker);
  dibs_close(me.store);
  return 0;
}

/* ---- Processes ---- */

static struct members storm;
static struct {
  atomic_bool over;
  uint32_t added; /* numbers of each key; of the thread that adds, until it has ended */
} tasks;
static uint32_t resized;

static void disturb(dibs_store *store) {
  static const uint32_t sizes[] = {LANES_FIRST, 5, 13, 16};
  struct member *p = &storm.at[members_draw(MEMBERS_AT_ONCE)];
  uint32_t what = storm.unguarded ? 7 : members_draw(10);
  if (p->pid == 0) {
    member_start(&storm, p);
  } else if (p->stopped) {
    return;
  } else if (what < 5) {
    member_end(&storm, p, what < 3 ? SIGTERM : SIGKILL);
  } else if (what < 8) {
    if (storm.unguarded && members_stopped(&storm) >= 2) return; /* others are to get its lanes */
    /* Unguarded: until they have surely got them. */
    member_stop(&storm, p, (storm.unguarded ? 3 : 1) * storm.ttl_ms + (int64_t)members_draw((uint32_t)storm.ttl_ms));
  } else {
    dibs_status status = dibs_lane_resize(store, "storm", sizes[members_draw(4)], 0, NULL);
    resized += status == DIBS_OK || status == DIBS_TIMEOUT;
  }
}

/* ---- Tasks ---- */

static int take_states(const dibs_task_kind *kind, void *user) {
  memcpy(user, kind->states, sizeof kind->states);
  return 0;
}

static void count_states(dibs_store *store, uint64_t states[DIBS_TASK_STATES]) {
  dibs_error error;
  memset(states, 0, DIBS_TASK_STATES * sizeof *states);
  for (int i = 0; dibs_tasks_count(store, "storm", take_states, states, &error) != DIBS_OK; i++) {
    if (i == 100) die("counting", error.text);
    dibs__nap_ms(50);
  }
}

static uint64_t unfinished(dibs_store *store) {
  uint64_t states[DIBS_TASK_STATES], sum = 0;
  count_states(store, states);
  for (int i = DIBS_TASK_ARRIVED; i <= DIBS_TASK_PARKED; i++) sum += states[i];
  return sum;
}

/* The next number of each key, in one request. */
static void add_numbers(dibs_store *store) {
  static char serials[KEYS][16];
  dibs_task_new next[KEYS];
  dibs_error error;
  char number[16];
  snprintf(number, sizeof number, "%" PRIu32, tasks.added + 1);
  for (uint32_t key = 0; key < KEYS; key++) {
    snprintf(serials[key], sizeof serials[key], "key-%" PRIu32, key);
    next[key] = (dibs_task_new){.size = sizeof next[key],
                                .payload = number,
                                .length = strlen(number),
                                .serial = serials[key],
                                .tries = 1000000};
  }
  if (dibs_task_add_many(store, "storm", next, KEYS, CALM_MS, &error) != DIBS_OK) die("adding", error.text);
  tasks.added++;
}

/* ---- The judgement ---- */

struct facts {
  uint64_t effects, twice, missing, backward, disordered;
};

static uint64_t written[KEYS][NUMBERS_MAX + 1]; /* the fence; 0: not written */

static void read_log(const char *path, struct facts *f) {
  FILE *log = fopen(path, "r");
  char line[160], what;
  uint64_t key, number, third;
  if (!log) die(path, strerror(errno));
  while (fgets(line, sizeof line, log) && strchr(line, '\n')) { /* else it is being written */
    if (sscanf(line, " %c %" SCNu64 " %" SCNu64 " %" SCNu64, &what, &key, &number, &third) != 4) die(path, line);
    if (key >= KEYS || number > NUMBERS_MAX) die(path, "the log is damaged");
    f->disordered += what == 'O';
    if (what != 'A') continue;
    f->twice += written[key][number] != 0;
    f->effects++;
    written[key][number] = third;
  }
  fclose(log);
}

/* All that the members have written down until now. */
static void read_logs(struct facts *f) {
  *f = (struct facts){0};
  memset(written, 0, sizeof written);
  for (uint32_t i = 0; i < storm.started; i++) {
    char path[256];
    snprintf(path, sizeof path, "%s/%u", storm.folder, i);
    read_log(path, f);
  }
  for (uint32_t key = 0; key < KEYS; key++) {
    uint64_t fence = 0;
    for (uint32_t number = 1; number <= NUMBERS_MAX; number++) {
      if (written[key][number] == 0) continue;
      f->backward += written[key][number] < fence;
      fence = written[key][number];
    }
  }
}

static bool wrote_late(const struct facts *f) {
  return f->twice > 0 || f->backward > 0 || f->disordered > 0;
}

/* A write whose answer was lost is not in a log; the next one shows that it took place. */
static void count_missing(struct facts *f) {
  for (uint32_t key = 0; key < KEYS; key++) {
    char name[16];
    uint64_t last = 0;
    snprintf(name, sizeof name, "key-%" PRIu32, key);
    for (int i = 0; number_read(me.store, name, NULL, &last) != DIBS_OK; i++) {
      if (i == 100) die("reading a record", name);
      dibs__nap_ms(50);
    }
    f->missing += tasks.added - last;
  }
}

static int judge(dibs_store *store) {
  struct facts f;
  uint64_t states[DIBS_TASK_STATES];
  me.store = store;
  read_logs(&f);
  count_missing(&f);
  count_states(store, states);
  uint64_t all = (uint64_t)tasks.added * KEYS, unanswered = all > f.effects ? all - f.effects : 0;
  printf("members %u (left %u, killed %u, stopped %u), changes of P %u, tasks %" PRIu64 ", done %" PRIu64
         ", effects %" PRIu64 "\n",
         storm.started, storm.left, storm.killed, storm.stopped, resized, all, states[DIBS_TASK_DONE], f.effects);
  printf("twice %" PRIu64 ", missing %" PRIu64 ", fences that went back %" PRIu64 ", out of order %" PRIu64 "\n",
         f.twice, f.missing, f.backward, f.disordered);
  if (storm.unguarded) return wrote_late(&f) ? 0 : 1;
  /* Each thread of a disturbed member may have left one write that was not answered. */
  if (unanswered > THREADS * ((uint64_t)storm.killed + storm.stopped)) return 1;
  return wrote_late(&f) || f.missing || states[DIBS_TASK_DONE] != all ? 1 : 0;
}

/* A thread of its own: on SQLite nobody can write while a process is stopped that was writing. */
static void *keep_adding(void *arg) {
  dibs_store *store = arg;
  while (!tasks.over) {
    if (tasks.added < NUMBERS_MAX && unfinished(store) < (uint64_t)BACKLOG * KEYS) add_numbers(store);
    dibs__nap_ms(ADD_EACH_MS);
  }
  return NULL;
}

static void wait_until_all_are_done(dibs_store *store) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CALM_MS);
  while (unfinished(store) > 0) {
    if (!dibs__tick_before(dibs__tick_now(), by)) die("in calm", "tasks are not done");
    dibs__nap_ms(100);
  }
}

static void disturb_for_seconds(dibs_store *store) {
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), storm.seconds * 1000);
  while (dibs__tick_before(dibs__tick_now(), until)) {
    dibs__nap_ms(100 + members_draw(400));
    members_continue(&storm, false);
    disturb(store);
  }
}

static int run_storm(void) {
  dibs_store *store = NULL;
  struct facts f;
  dibs_error error;
  if (dibs_open(storm.uri, NULL, &store, &error) != DIBS_OK) die("opening", error.text);
  dibs_worker_options o = {
      .size = sizeof o, .work = work, .topic = "storm", .lanes = LANES_FIRST, .lane_ttl_ms = storm.ttl_ms};
  dibs_worker *worker = NULL;
  if (dibs_worker_start(store, "storm", &o, &worker, &error) != DIBS_OK) die("creating the topic", error.text);
  dibs_worker_free(worker);
  for (int i = 0; i < 3; i++) member_start(&storm, &storm.at[i]);
  pthread_t adder;
  if (pthread_create(&adder, NULL, keep_adding, store) != 0) die("starting", "no thread");
  disturb_for_seconds(store);
  for (int i = 1; i < UNGUARDED_TIMES && storm.unguarded && (read_logs(&f), !wrote_late(&f)); i++)
    disturb_for_seconds(store);
  tasks.over = true;
  members_continue(&storm, true);
  pthread_join(adder, NULL);
  for (int i = 0; i < 2; i++)
    if (storm.at[i].pid == 0) member_start(&storm, &storm.at[i]);
  if (!storm.unguarded) wait_until_all_are_done(store);
  for (size_t i = 0; i < MEMBERS_AT_ONCE; i++)
    if (storm.at[i].pid != 0) member_end(&storm, &storm.at[i], storm.unguarded ? SIGKILL : SIGTERM);
  int code = judge(store);
  dibs_close(store);
  return code;
}

int main(int argc, char *argv[]) {
  if (member_is_meant(argc, argv)) return be_member(argc, argv);
  members_begin(&storm, argc, argv);
  return members_end(&storm, run_storm());
}
