/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MEMORY_TASK_IMPL_H
#define DIBS_DRIVERS_MEMORY_TASK_IMPL_H
/*
 * The tasks of a memory: the rows and their orders (task_rows.c), what the verbs decide (task.c), and what people read
 * and change (task_list.c).  The memory's lock guards all of it.
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
void dibs__mem_task_claim(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, const struct dibs__task_op *op,
                          int64_t now);
/* Out of a claim or a wait: ready since `since`; until `due` claimed or waiting. */
void dibs__mem_task_ready(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t since);
void dibs__mem_task_wait(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, uint32_t state, int64_t due);
/* It is done, dead or cancelled; the next one of its serial text may go. */
void dibs__mem_task_finish(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, uint32_t state, int64_t now);
/* It will not be tried again: dead or parked (R70). */
void dibs__mem_task_give_up(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
/* A finished, parked or waiting one is ready again, or blocked. */
void dibs__mem_task_retry(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
void dibs__mem_task_purge(struct dibs__mem_tasks *tasks, struct dibs__mem_task *t, int64_t now);
/* Keeps an error (R71).  false: no memory. */
bool dibs__mem_task_failed(struct dibs__mem_task *t, dibs__str text, int64_t now);
dibs__str dibs__mem_task_text(const struct dibs__mem_task *t); /* the latest error, or the result */
void dibs__mem_task_free(struct dibs__mem_task *t);

/* task_list.c: verbs, and answers */
void dibs__mem_task_list(const struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
void dibs__mem_task_count(const struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
void dibs__mem_task_change(struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
/* Memory for the rows of these tasks, which may be claimed before it is filled.  NULL: no memory. */
void *dibs__mem_task_rows_alloc(struct dibs__mem_task *const some[], size_t count, bool payloads);
void dibs__mem_task_rows_fill(void *rows, struct dibs__mem_task *const some[], size_t count, bool payloads);

#endif
