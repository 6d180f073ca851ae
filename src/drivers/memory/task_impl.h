/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MEMORY_TASK_IMPL_H
#define DIBS_DRIVERS_MEMORY_TASK_IMPL_H
/*
 * The tasks of a memory: the rows and their orders (task_rows.c), what the verbs decide (task.c, task_lane.c), and what
 * people read and change (task_list.c).  The memory's lock guards all of it.
 *
 * `now` is in ms since 1970: the memory's clock plus a constant, so that it does not step, and tests can move it.
 */
#include "drivers/memory/memory_impl.h"
#include "store/task.h"

/* Each order is a balanced tree of the tasks that are in it; a task is in several. */
enum dibs__mem_order {
  DIBS__MEM_BY_NR,
  DIBS__MEM_BY_TURN,   /* rank, due, number: of ready ones R67 */
  DIBS__MEM_BY_PHASE,  /* phase, then as BY_TURN */
  DIBS__MEM_BY_SERIAL, /* serial text, number */
  DIBS__MEM_BY_UNIQUE,
  DIBS__MEM_BY_CLAIM, /* digest of the claim's id, number */
  DIBS__MEM_BY_KEY,   /* as BY_SERIAL */
  DIBS__MEM_BY_SLOT,  /* slot of the serial text, number */
  DIBS__MEM_ORDERS
};

struct dibs__mem_failed {
  struct dibs__mem_failed *next; /* a later one */
  dibs__fence fence;
  int64_t at;
  uint32_t by_len, text_len;
  char bytes[]; /* by, text */
};

struct dibs__mem_task {
  struct {
    struct dibs__mem_task *left, *right;
  } links[DIBS__MEM_ORDERS];
  uint32_t weight; /* drawn: balances the trees */
  struct dibs__mem_kind *kind;
  uint64_t nr;
  uint32_t state;
  int32_t rank; /* of a ready one its negative priority, else 0 */
  int64_t due;  /* since when it is ready; until when it is claimed, waits, would have waited or is kept */
  dibs__fence fence;
  dibs__fence lane;  /* of a claim by lane the lane's fence, else 0 */
  uint32_t slot;     /* of its serial text */
  uint64_t claim;    /* a digest of the id of its latest claim */
  dibs__fence ended; /* the last that ended by a verdict, and this verdict (R63) */
  uint32_t verdict;
  uint32_t attempts, fails, tries;
  int32_t priority;
  int64_t made, began, at;
  uint32_t phase_len, by_len;
  char phase[DIBS_NAME_MAX], by[DIBS_OWNER_MAX];
  char *result; /* of a done one; NULL: none */
  uint32_t result_len;
  struct dibs__mem_failed *errors; /* the oldest first */
  uint32_t error_count;
  dibs__str serial, unique, payload; /* of `bytes` */
  char bytes[];
};

struct dibs__mem_kind {
  struct dibs__map_node link; /* of tasks.kinds; first */
  struct dibs__mem_task *ready, *phased, *timed /* waiting, claimed */, *serials, *uniques, *claims;
  /* By lane only, of the unfinished tasks with serial texts: those that are not claimed by lane; of each key the first
   * of these, if it is ready; those that are claimed by lane. */
  struct dibs__mem_task *keyed, *heads, *held;
  dibs__fence *lanes;         /* of each of the P lanes the largest fence that a CLAIM named */
  uint32_t lane_count;        /* P */
  dibs__fence largest, floor; /* the largest fence of all; that before P was this number */
  uint32_t topic_len;         /* 0: not by lane */
  char topic[DIBS__TASK_TOPIC_MAX];
  uint64_t states[DIBS__TASK_CANCELLED + 1];
  bool has_settings, paused;
  uint32_t running;
  int64_t keep_ms;
  uint32_t len;
  char text[];
};

struct dibs__mem_token {
  struct dibs__map_node link; /* of tasks.tokens; first */
  int64_t until;
  uint32_t count, len;
  uint64_t *nrs; /* 0: the item was invalid */
  bool *replays; /* the item was REPLAY at first */
  char text[];
};

struct dibs__mem_tasks {
  int64_t wall; /* ms since 1970, less the memory's clock */
  struct dibs__map kinds, tokens;
  size_t tokens_swept; /* as memory.onces_swept */
  struct dibs__mem_task *all, *kept /* done, cancelled */;
  uint64_t last_nr;
};

/* task_rows.c.  Orders: */
struct dibs__mem_task *dibs__mem_order_first(struct dibs__mem_task *root, enum dibs__mem_order by);
/* The first one behind `t`, which need not be in the tree. */
struct dibs__mem_task *dibs__mem_order_next(struct dibs__mem_task *root, const struct dibs__mem_task *t,
                                            enum dibs__mem_order by);
int dibs__mem_order_compare(enum dibs__mem_order by, const struct dibs__mem_task *a, const struct dibs__mem_task *b);

/* Rows: */
struct dibs__mem_kind *dibs__mem_kind_find(const struct dibs__mem_tasks *tasks, dibs__str kind);
struct dibs__mem_kind *dibs__mem_kind_get(struct dibs__mem_tasks *tasks, dibs__str kind); /* NULL: no memory */
void dibs__mem_kind_drop_if_idle(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind);
struct dibs__mem_task *dibs__mem_task_find(const struct dibs__mem_tasks *tasks, uint64_t nr);
struct dibs__mem_task *dibs__mem_task_of_unique(const struct dibs__mem_kind *kind, dibs__str unique);
/* A row that is in no order yet.  NULL: no memory. */
struct dibs__mem_task *dibs__mem_task_make(const struct dibs__task_new *from);
void dibs__mem_task_add(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind, struct dibs__mem_task *t,
                        int64_t now);
/* For another driver, which has the rows elsewhere, and decides with a few of them here.  A row that was made, and has
 * its number, state, due and all else, enters its orders as it is.  An error of it, later than those that it has. */
void dibs__mem_task_load(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind, struct dibs__mem_task *t);
bool dibs__mem_task_load_error(struct dibs__mem_task *t, dibs__fence fence, dibs__str by, dibs__str text,
                               int64_t at_ms);
/* task.c: the token of this ADD, which was used before. */
bool dibs__mem_task_load_token(struct dibs__mem_tasks *tasks, const struct dibs__task_op *op, int64_t until,
                               const uint64_t *nrs, const bool *replays, uint32_t count);
/* task_list.c: CHANGE of those of these that match (`changed`), by number. */
void dibs__mem_task_change_some(struct dibs__mem_tasks *tasks, struct dibs__task_op *op, const uint64_t nrs[],
                                uint32_t count, int64_t now);
/* The states from which it changes tasks, as bits. */
uint32_t dibs__mem_task_changeable(enum dibs__task_change change);
/* lane: the fence of its lane; 0: not by lane. */
void dibs__mem_task_claim(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, const struct dibs__task_op *op,
                          dibs__fence lane, int64_t now);
/* Out of a claim or a wait: ready since `since`; until `due` claimed or waiting. */
void dibs__mem_task_ready(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t since);
void dibs__mem_task_wait(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, uint32_t state, int64_t due);
/* It is done, dead or cancelled; the next one of its serial text may go. */
void dibs__mem_task_finish(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, uint32_t state, int64_t now);
/* A failed try: free at `due`, unless it has failed `tries` times. */
void dibs__mem_task_fail_try(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, uint32_t tries, int64_t due,
                             int64_t now);
/* Its claim ended without an answer; ready since `since`.  false: no memory, and the claim has not ended. */
bool dibs__mem_task_end_late(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t since, int64_t now);
/* The claim of `t` under this fence of its lane ended: those of later tasks of its key end with it (R109). */
void dibs__mem_task_end_later(struct dibs__mem_tasks *tasks, const struct dibs__mem_task *t, dibs__fence lane,
                              int64_t now);
/* It is claimed by lane, and earlier tasks of its key are unfinished. */
bool dibs__mem_task_too_early(const struct dibs__mem_task *t);
/* By lane or not: all tasks with serial texts of the kind, when this changes. */
void dibs__mem_kind_set_topic(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind, dibs__str topic, int64_t now);
/* It will not be tried again: dead or parked (R70). */
void dibs__mem_task_give_up(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
/* A finished, parked or waiting one is ready again, or blocked. */
void dibs__mem_task_retry(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
void dibs__mem_task_purge(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
/* Keeps an error (R71).  false: no memory. */
bool dibs__mem_task_failed(struct dibs__mem_task *t, dibs__str text, int64_t now);
dibs__str dibs__mem_task_text(const struct dibs__mem_task *t); /* the latest error, or the result */
void dibs__mem_task_free(struct dibs__mem_task *t);

/* task.c: INVALID, with the reason; false. */
bool dibs__mem_task_refuse(struct dibs__task_op *op, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the waits and the claims of the kind whose time is over. */
void dibs__mem_task_pass_time(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind, int64_t now);
/* Up to `most`, as the limit and the pause of the kind allow. */
uint32_t dibs__mem_task_most(const struct dibs__mem_kind *kind, uint32_t most);

/* task_lane.c: CLAIM with lanes */
bool dibs__mem_lanes_valid(struct dibs__task_op *op);
/* What it does before it takes tasks: the kind is by lane, the lanes have their fences, and claims under smaller ones
 * end.  NULL: it was refused. */
struct dibs__mem_kind *dibs__mem_lanes_begin(struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
/* What it may take, up to `most`. */
uint32_t dibs__mem_lanes_pick(const struct dibs__mem_kind *kind, struct dibs__task_op *op, uint32_t most,
                              struct dibs__mem_task **some);
/* The fence of the task's lane, if the CLAIM named it and it is not STALE; else 0. */
dibs__fence dibs__mem_lanes_fence(const struct dibs__task_op *op, const struct dibs__mem_task *t);
void dibs__mem_lanes_end(struct dibs__mem_tasks *tasks, struct dibs__mem_kind *kind, int64_t now);

/* task_list.c: verbs, and answers */
void dibs__mem_task_list(const struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
void dibs__mem_task_count(const struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
void dibs__mem_task_change(struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
/* Memory for the rows of these tasks, which may be claimed before it is filled.  NULL: no memory. */
void *dibs__mem_task_rows_alloc(struct dibs__mem_task *const some[], size_t count, bool payloads);
void dibs__mem_task_rows_fill(void *rows, struct dibs__mem_task *const some[], size_t count, bool payloads);

#endif
