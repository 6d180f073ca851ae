/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_TASK_WINDOW_H
#define DIBS_SQL_TASK_WINDOW_H
/*
 * Windows: what a claim with lanes reads, decides and locks (task_window.c), on behalf of task_lane.c.
 */
#include "sql/task_claim.h"

enum {
  DIBS__WINDOW_MORE = 64,         /* rows of a window beside those that the claim wants */
  DIBS__WINDOW_ARRIVED_MAX = 1000 /* tasks without a slot that it has; if it has so many, there may be more */
};

/* Slots from `first` up to `last`. */
struct dibs__slot_range {
  int64_t first, last;
};

enum dibs__fate { DIBS__FATE_LEFT, DIBS__FATE_TAKEN, DIBS__FATE_WAITS, DIBS__FATE_BLOCKED };

struct dibs__found {
  uint64_t nr, head; /* of the first of its key in this window */
  int64_t slot, due;
  dibs__str serial; /* in the memory of the window */
  enum dibs__fate fate;
};

/* A key of which some are put aside. */
struct dibs__aside {
  int64_t slot;
  dibs__str serial;
  uint64_t nr; /* the first one */
  bool is_blocked;
};

struct dibs__window {
  struct dibs__found *rows; /* in the order in which they are taken */
  size_t count;
  struct dibs__found *arrived; /* those without a slot */
  size_t arrived_count;
  struct dibs__aside *asides; /* in the order of keys */
  size_t aside_count;
  char *texts;
};

struct dibs__lane_steps {
  bool promoted, limited, repeated;
};

struct dibs__laning {
  struct dibs__claiming *c;
  struct dibs__lane_steps *steps; /* what it did since it began */
  struct dibs__claim_looked looked;
  struct dibs__slot_range *ranges; /* in the order in which it looks */
  size_t range_count, next;
  size_t again; /* ranges that it looks at once more, from `next` on */
  uint32_t taken;
  size_t seen;              /* rows that it looked at */
  size_t asked;             /* rows of a window */
  int64_t last, last_taken; /* slots */
  bool cut;                 /* too many tasks have no slot yet */
  uint64_t *flips, *waits;  /* to be written */
  size_t flip_count, wait_count;
  uint32_t written; /* of the tasks that it takes */
  bool wrote;
  int64_t now;
};

/* The slots of the lanes that are not STALE.  false: no memory. */
bool dibs__window_ranges(struct dibs__laning *laning);
/* Puts the statement that reads the window of a range; reads its answer.  false: no memory. */
enum dibs__sql_rc dibs__window_put(struct dibs__laning *laning, const struct dibs__slot_range *range);
bool dibs__window_read(const struct dibs__sql_wire *wire, size_t nth, struct dibs__window *window);
void dibs__window_free(struct dibs__window *window);
/* Decides, and locks what it takes and what is put aside.  The window is that of the range that is next. */
enum dibs__sql_rc dibs__window_take(struct dibs__laning *laning, struct dibs__window *window);

#endif
