/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_TASK_CLAIM_H
#define DIBS_SQL_TASK_CLAIM_H
/*
 * What the files about claims share.
 *
 *   task_claim.c      a claim without lanes
 *   task_promote.c    why nothing was claimed; promotion
 *   task_lane.c       a claim with lanes
 *   task_window.c     what it reads, decides and locks
 *   task_lane_kind.c  when a kind becomes by lane, or is it no more; the fences of lanes
 */
#include "sql/task_impl.h"

/* When a claim is repeated that found ready tasks, all of which other sessions had locked for a moment. */
enum { DIBS__CLAIM_SOON_MS = 10 };

#define DIBS__CLAIM_NOW "(SELECT @{start})"
/* SQLite uses a partial index only if the statement has the very condition of this index. */
#define DIBS__CLAIM_BUSY(of) " FROM dibs_task@{busy} WHERE kind = $1 AND state = " of " AND state <> 1@{zero}"
#define DIBS__CLAIM_ARRIVED "SELECT 1" DIBS__CLAIM_BUSY("0")
#define DIBS__CLAIM_KEYED                                                                                              \
  " FROM dibs_task@{keyed} WHERE kind = $1 AND state = 0 AND rank = 0 AND serial IS NOT NULL ORDER BY nr LIMIT 1000"
#define DIBS__CLAIM_LAST_ERROR                                                                                         \
  ", CASE WHEN fails > 0 THEN (SELECT e.text FROM dibs_task_error e WHERE e.nr = dibs_task.nr"                         \
  " ORDER BY e.fence DESC LIMIT 1) END"
/* First `since`: MariaDB sets the columns one after the other.  The fence: R61. */
#define DIBS__CLAIM_SET(now)                                                                                           \
  "since = due, state = 2, rank = 0, queue = NULL, attempts = attempts + 1, began = " now ", at = " now                \
  ", fence = CASE WHEN fence < " now " THEN " now " ELSE fence + 1 END"

struct dibs__claiming {
  struct dibs__sql_guard *g;
  struct dibs__task_op *op;
  uint32_t most;      /* fewer than the operation's, of a kind with a limit */
  bool plain;         /* only if nothing prevents it */
  bool open;          /* in a transaction */
  bool promoted;      /* it changed some of the tasks that waited for promotion */
  bool refused;       /* inside a transaction in which the claimed tasks can't be counted */
  int64_t since;      /* from when the last one of the answer was ready */
  uint32_t topic_len; /* the topic that the kind belongs to, if it is another one than the claim's */
  char topic[DIBS__TASK_TOPIC_MAX];
};

/* What prevents a claim, and what comes next. */
struct dibs__claim_looked {
  int64_t now;
  bool arrived, is_over, waited; /* there is something to promote */
  int64_t next;                  /* when a claim is over or a task has waited; 0: never */
  bool ready;                    /* some task is ready */
  int64_t running;               /* the limit; 0: none */
  bool paused;
  bool aside;         /* some task by lane is put aside */
  bool begins;        /* the kind is becoming by lane */
  uint32_t topic_len; /* 0: it is not by lane */
  char topic[DIBS__TASK_TOPIC_MAX];
};

/* ---- task_promote.c ---- */

/* Puts the statement that reads it; reads its answer. */
enum dibs__sql_rc dibs__claim_put_look(struct dibs__claiming *claiming);
void dibs__claim_read_look(const struct dibs__claiming *claiming, size_t nth, struct dibs__claim_looked *looked);
/* Both. */
enum dibs__sql_rc dibs__claim_look(struct dibs__claiming *claiming, struct dibs__claim_looked *looked);
/* Sets claiming->promoted if it changed something. */
enum dibs__sql_rc dibs__claim_promote(struct dibs__claiming *claiming, const struct dibs__claim_looked *found);

/* ---- task_claim.c ---- */

/* The kind's row stays locked until the claim is committed.  *none: the limit is reached. */
enum dibs__sql_rc dibs__claim_lock_limit(struct dibs__claiming *claiming, bool *none);
void dibs__claim_set_claimed(struct dibs__task_op *op, int64_t now);
/* The tasks that an earlier request with this id claimed and still has. */
enum dibs__sql_rc dibs__claim_find_repeat(struct dibs__claiming *claiming);

/* ---- task_lane.c ---- */

/* OK, and op.status is set if it is not. */
enum dibs__sql_rc dibs__claim_by_lane(struct dibs__claiming *claiming);
/* Puts the statement that locks the rows of the claim's lanes: lane, lanes, fence. */
enum dibs__sql_rc dibs__claim_put_lanes(struct dibs__claiming *claiming);
/* Does the claim name the lane of this slot, under this fence?  Those that are STALE do not count. */
bool dibs__lanes_has(const struct dibs__task_op *op, int64_t slot, uint64_t fence);

/* ---- task_lane_kind.c ---- */

/* A transaction: makes the kind by lane if it is not, ends claims under smaller fences, and answers which lanes are
 * STALE.  *other: the kind belongs to another topic. */
enum dibs__sql_rc dibs__lanes_enter(struct dibs__claiming *claiming, bool *other);
/* Continues what made the kind by lane, in transactions of its own, as long as there is time.  *done: it is complete.
 */
enum dibs__sql_rc dibs__lanes_convert(struct dibs__sql_guard *guard, dibs__str kind, bool *done);
/* The reverse. */
enum dibs__sql_rc dibs__lanes_leave(struct dibs__sql_guard *guard, dibs__str kind, bool *done);
/* KIND: the kind is no more by lane. */
enum dibs__sql_rc dibs__lanes_end(struct dibs__sql_guard *guard, dibs__str kind);
/* Does what nothing else would do: see the file.  *slot: where it goes on; 0 at first. */
enum dibs__sql_rc dibs__lanes_heal(struct dibs__sql_guard *guard, dibs__str kind, int64_t *slot);

#endif
