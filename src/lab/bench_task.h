/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_BENCH_TASK_H
#define DIBS_LAB_BENCH_TASK_H
/* What the sides of `dibs bench task` share: tasks of a kind of their own, and clients that drain them. */
#include "dibs/lane.h"
#include "dibs/task.h"
#include "lab/bench.h"

enum { BENCH_BATCH_MAX = DIBS_TASKS_MAX };

/* Tasks of a kind that no other side uses: a side fills it, drains it, and removes what is left. */
struct bench_queue {
  struct bench *b;
  dibs_store *store; /* for filling and counting */
  char kind[64];
  uint64_t added;
  uint64_t first; /* the smallest number; 0: none was added */
};
bool dibs__bench_queue_open(struct bench *b, struct bench_queue *queue);
/* Adds `count` tasks as `like`, whose `serial` is replaced by one of `keys` texts unless that is 0. */
bool dibs__bench_queue_add(struct bench_queue *queue, uint32_t count, const dibs_task_new *like, uint32_t keys);
/* The number of its tasks in a state. */
bool dibs__bench_queue_count(struct bench_queue *queue, dibs_task_state state, uint64_t *count);
/* Removes all tasks of the kind.  `done`: the side went well; then removing must also succeed. */
bool dibs__bench_queue_close(struct bench_queue *queue, bool done);

/* A member of a topic. */
enum { BENCH_LANES = 64 };
struct bench_lanes {
  dibs_lane_member *member;
  dibs__mutex mutex; /* of the rest, until the lanes are settled */
  dibs_lane *lanes[BENCH_LANES];
  uint32_t count;
};
bool dibs__bench_lanes_join(struct bench *b, dibs_store *store, const char *topic, struct bench_lanes *lanes);
/* Waits until each of all members has its lanes. */
bool dibs__bench_lanes_settle(struct bench *b, struct bench_lanes *const members[], uint32_t count);
void dibs__bench_lanes_leave(struct bench_lanes *lanes);

/* Clients with a store each, which claim `batch` tasks, end them, and again, until the time is over or no task is
 * left. */
struct bench_drain {
  struct bench_queue *queue;
  uint32_t clients, batch;
  bool by_lane; /* each is a member of the topic with the name of the kind */
  bool claims;  /* latencies are of the claim alone, else of the claim and the end of a batch */
  /* Answers. */
  uint64_t done;
};
bool dibs__bench_drain(struct bench_drain *drain, struct bench_sample *sample);
/* One batch, of up to `most` tasks, of these lanes if there are any.  *count: how many were done, 0 when there is none.
 * false: `why`. */
bool dibs__bench_batch(dibs_store *store, const char *kind, const struct bench_lanes *lanes, uint32_t most,
                       int64_t timeout_ms, size_t *count, dibs__tick *claimed,
                       void (*work)(const dibs_task *task, void *user), void *user, char *why, size_t size);

/* The sides of bench_task_rows.c: what else is in the tables. */
enum {
  BENCH_ROWS_FEW,      /* 10,000 rows that wait or are finished */
  BENCH_ROWS_MANY,     /* a million of these */
  BENCH_ROWS_NONE,     /* nothing */
  BENCH_ROWS_DEAD,     /* 100,000 dead rows, which a held snapshot keeps */
  BENCH_ROWS_FINISHED, /* 100,000 finished rows */
};
bool dibs__bench_side_rows(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_KEYS_NONE, BENCH_KEYS_PARKED, BENCH_KEYS_LANES };
bool dibs__bench_side_keys(struct bench *b, uint32_t arg, struct bench_sample *sample);
bool dibs__bench_side_crash(struct bench *b, uint32_t arg, struct bench_sample *sample);

#endif
