/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_TASK_H
#define DIBS_STORE_TASK_H
/* clang-format off */
/*
 * Tasks: the operations of DIBS__FAM_TASK.  A task is a row of work of one kind.  A client claims it, works, extends its
 * claim, and ends it with a verdict.  Each claim has a larger fence of its task, and every later transition names it.
 *
 * Times are ms since 1970 by the store's clock (a server's, or this machine's for a file), which is read in the
 * operation itself.
 *
 *  R60  A task is claimed by one claim at a time: until this ends, is given back, or its time is over.
 *  R61  The fence of a task grows with each claim, and never decreases: also after a retry by hand, and after its row
 *       was moved to the finished ones and back.  It is at least the store's time of the claim, in ms since 1970.  So
 *       after the restore of a backup a new claim has a larger fence than each claim that was lost, also of a new task
 *       that has the number of a lost one.
 *  R62  EXTEND and END take effect only under the fence of the present claim, and before its time is over or before
 *       another claim was made; otherwise STALE, and nothing is changed.  NOT_FOUND: there is no such task.  (A CLAIM of
 *       its kind ends a claim whose time is over, whether it takes this task or not.)  UNAVAILABLE: nothing is changed,
 *       because another session has locked the row for longer than the operation waits, or the engine refused to write
 *       it; `why` says which task and the reason.  Send it again, until the claim is over.
 *  R63  An END that is repeated with the same fence and verdict answers OK (and `repeated`) and changes nothing, until the
 *       task is ended under a later fence, or is not kept any more (R72): then NOT_FOUND.  So after an END whose answer was lost,
 *       NOT_FOUND does not say by which END the task finished, and STALE not if this END took effect.
 *  R64  A CLAIM that is repeated (`again`) with its id answers the tasks that the first claimed and still has, and claims
 *       no others if it finds any.
 *  R65  An ADD with a token is done once: a repeat adds nothing and answers the same numbers, with REPLAY if `wants_new`,
 *       for `token_ms` after the first.  Its items answer `repeated`, and REPLAY if `wants_new`, else as they did first.  An
 *       ADD without a valid item does not use its token.
 *  R66  Of unfinished tasks of one kind at most one has a `unique` text: ADD of a second one adds nothing and answers
 *       its item REPLAY with the number of the first.
 *  R67  CLAIM takes ready tasks by their priority, the largest first; then by the instant from which they were ready;
 *       then by their number.  A task is ready when its time has come, and again when the time of its claim is over.
 *       (After NEXT, GIVE, RETRY and the end of an earlier one with its serial text it is ready from that instant on.)
 *  R68  Tasks of one kind with the same `serial` text run one at a time, in the order of their numbers: a later one is
 *       not claimed before the earlier ones have finished, whatever their times and priorities.  Others are not
 *       affected.  (A retried task waits for a later one only if this is claimed or parked.)
 *  R69  Of a kind with a limit at most that many tasks are claimed at one instant.  A paused kind gives none.  Inside a
 *       user's transaction, where the claims that others committed since it began can't be counted, CLAIM of a kind with
 *       a limit answers UNSUPPORTED; and a limit or pause that was set after its snapshot may not apply to it.
 *  R70  The verdict FAIL, and a claim whose time is over, count as failed tries.  When a task has failed as often as it may, it
 *       is dead; if it has a `serial` text it is parked instead, and its key with it: nothing of this key is claimed
 *       until a person retries, cancels or purges it.  The verdict DEAD does the same at once, and counts no try.
 *  R71  The text of each failed try, and of DEAD, is kept with the task, the last DIBS__TASK_ERRORS of them, until it is
 *       purged.  That of a claim whose time is over is "the claim of OWNER ended without an answer".
 *  R72  A finished task (done, dead, cancelled) leaves the claimable rows in the step that finishes it.  It is kept for keep_ms of its
 *       kind, as it is then; a dead one until it is purged by hand.
 *  R73  Each item of ADD, EXTEND and END has an answer of its own, and a bad one does not harm the others.  A task that
 *       is named twice is answered as if the second item were sent after the first.
 *  R74  The cost of a claim does not grow with the number of finished, waiting, blocked or claimed tasks.
 *  R75  A payload is any sequence of bytes, up to DIBS_RECORD_MAX.  Kinds, phases, serial and unique texts are bytes, compared
 *       byte by byte (R48, R49).
 *  R76  LIST and COUNT change nothing (R47).  LIST has each task that exists from the beginning to the end of the
 *       listing once.  They answer the state that the latest change left: a task whose time has come since is WAITING or
 *       CLAIMED until a CLAIM of its kind, one with a serial text may be ARRIVED until then, and a finished one may
 *       remain until a sweep deletes it.
 *  R77  In the user's own table: a row is free when locked_at <= now - timeout, the oldest locked_at first, then the oldest
 *       updated_at.  A claim sets locked_at to now.  END and EXTEND also need the locked_at that the claim set, so that
 *       a client without fences that took the row over is not overruled.  NEXT sets 1970, WAIT sets now + delay - timeout.
 *       The table has no place for the id of a claim and for verdicts: a CLAIM that is repeated (`again`) claims nothing,
 *       and an END that is repeated answers STALE.
 *  R78  A CHANGE looks at the first `most` tasks that match, by number, and changes no others.  It leaves out a task that
 *       another client changed while it looked, and RETRY a finished one whose `unique` text an unfinished one has (with
 *       `dry` each of several with one text is counted).  So it may change fewer than it looked at; `last` and `more` say
 *       what it looked at.  A caller that continues behind `last` as long as there is `more` leaves out no other task.
 *
 * Tasks by lane.  The slot of a task with a serial text is dibs__slot() of this text (base/slot.h), and its lane of P lanes
 * dibs__slot_lane().  A CLAIM with `lanes` claims for the owner of these lanes of a topic, which has a fence for each (the
 * fence of the lane's lease; those of all lanes of a topic, of every P, grow together).  From the first such CLAIM on the
 * kind is `by_lane`, and belongs to this topic, until KIND says otherwise.
 *
 *  R108  A CLAIM with lanes takes tasks with a serial text of these lanes only, and takes one only if each earlier
 *        unfinished task of its key is claimed under the same fence of this lane, or is taken by this CLAIM.  So it may
 *        take several of one key, and those of a key are in `got` by their number: the client that claims them works on
 *        them in this order, and stops when one did not end as DONE.  A lane is STALE, and nothing of it is taken, if a CLAIM
 *        named it with a larger fence before, or if one with a larger fence for any lane of another P was there
 *        (and was not STALE itself).  INVALID: the kind belongs to another topic.  Tasks of a kind by lane are claimed by turns
 *        between keys (`from`), not by priority.  A CLAIM without lanes takes those without a serial text only; if it takes none, `why` names the topic.
 *        The limit and the pause of the kind hold; phases are INVALID.  `again` answers only tasks that are still claimed
 *        under the fences that the CLAIM names.  UNSUPPORTED inside a user's transaction, which would keep other owners
 *        waiting.
 *  R109  A task that is claimed under a smaller fence of its lane, or of another P, is free at once for a CLAIM with lanes: its
 *        claim has ended, as one whose time is over has (R62: until a CLAIM has ended it, a late answer may still count),
 *        and it does not count for the limit.  When a claim by lane ends before its task is finished, or its time is over, the
 *        claims of later tasks of this key under the same fence end with it.  Of those that end together only the first
 *        counts a failed try.  An END with the verdict DONE is STALE, and changes nothing, while an earlier task of the key
 *        is unfinished, which the same END does not finish before it.  (A claim that was made without lanes lasts until it
 *        ends or its time is over, and its END does not look at earlier tasks.)
 *  R110  Behind a waiting or parked task nothing of its key is claimed.  The cost of a CLAIM does not grow with the number of such
 *        tasks, nor with the lanes and keys of others (R74).  After a RETRY, CANCEL or PURGE of the first one, and when its time has
 *        come, a later CLAIM takes them.  Until then LIST and COUNT answer that they are READY, WAITING or BLOCKED.
 *
 * Wake-ups.  After a committed ADD, an END or a CHANGE that makes tasks ready, events() gives DIBS__EV_TASKS, without saying
 * which: in all processes on PostgreSQL, SQLite and in memory; on MongoDB in those with a CLAIM that found none; on MariaDB in the store that did it, and for each task in
 * one of the few processes that it wakes, among those whose latest CLAIM of this kind found less than it wanted; where
 * leases belong to connections, only in the store that did it; with several tiers from the first CLAIM on.  It does not
 * come when the time of a waiting or claimed task comes (`next_ms` says that), nor for tasks that were inserted in a
 * transaction of the user's or by statements of people.  So workers poll as well (R17).
 */
/* clang-format on */
#include "store/store.h"

enum dibs__task_verb {
  /* Adds items[].  OK: each item has its answer: OK or REPLAY with `nr`, or INVALID. */
  DIBS__TASK_ADD,
  /* (Without lanes; with lanes see R108.)  First ends the claims of `kind` whose time is over, also if it is paused;
   * they are failed tries.  Then claims up to `most` tasks of `kind`, in one of `phases` if any are given, for
   * `timeout_ms`.  OK, also with none: `got`, in the order of R67, and with none `next_ms`.  With `again`, if the id
   * has claims: only answers these, by number. */
  DIBS__TASK_CLAIM,
  /* The claims of items[] end `timeout_ms` from now; with a phase, the task is in this phase from now on.  OK: each
   * item has OK (`due_ms`), STALE, NOT_FOUND, UNAVAILABLE or INVALID. */
  DIBS__TASK_EXTEND,
  /* Ends the claims of items[] by their verdicts.  OK: each item has OK, STALE, NOT_FOUND, UNAVAILABLE or INVALID. */
  DIBS__TASK_END,
  /* By hand: looks at up to `most` tasks that match `filter`, the smallest numbers first, and changes them (with `dry`,
   * only counts them).  Those in states that the change does not name do not match.  OK: `changed`, `last`, `more`
   * (R78). */
  DIBS__TASK_CHANGE,
  DIBS__TASK_LIST,  /* Up to `most` tasks that match `filter`, by number.  OK: `got` */
  DIBS__TASK_COUNT, /* OK: `got`, for each kind with tasks or settings, in byte order; `kind` empty: all kinds */
  DIBS__TASK_KIND   /* Sets what `set` names of the settings of `kind`.  OK */
};

/* The states.  The public header has the same numbers. */
enum dibs__task_state {
  DIBS__TASK_ARRIVED = 0, /* inserted, and not looked at since: becomes one of the next three */
  DIBS__TASK_READY = 1,
  DIBS__TASK_CLAIMED = 2, /* until due_ms */
  DIBS__TASK_WAITING = 3, /* until due_ms */
  DIBS__TASK_BLOCKED = 4, /* an earlier task has its serial text */
  DIBS__TASK_PARKED = 5,
  DIBS__TASK_DONE = 6,
  DIBS__TASK_DEAD = 7,
  DIBS__TASK_CANCELLED = 8
};
#define DIBS__TASK_UNFINISHED 0x3fu /* as bits of a filter */
#define DIBS__TASK_FINISHED 0x1c0u

enum {
  DIBS__TASK_ERRORS = 32,     /* kept of each task */
  DIBS__TASK_TEXT_MAX = 4096, /* of an error or a result; longer ones are cut at the beginning, their end says more */
  DIBS__TASK_TRIES = 10,      /* of a task that does not say how often it may fail */
  DIBS__TASK_ITEMS = 1000,    /* items, or rows of an answer, of one operation */
  DIBS__TASK_PHASES = 16,
  DIBS__TASK_PRIORITY = 1000 /* from -1000 to 1000 */
};
#define DIBS__TASK_KEEP_MS (INT64_C(7) * 86400000) /* finished tasks of a kind without settings */
#define DIBS__TASK_TOKEN_MS (INT64_C(3600000))     /* token_ms of a random token */
#define DIBS__TASK_KEY_MS (INT64_C(86400000))      /* token_ms of a token from a key of the caller */
#define DIBS__TASK_MS_MAX (INT64_C(1) << 48)       /* of times, delays and timeouts: sums of them fit */
/* Of delays, timeouts and ages in the user's table, ten years: a sum with the clock fits into every type of instants.
 */
#define DIBS__TASK_WAIT_MAX_MS (INT64_C(3653) * 86400000)
enum { DIBS__TASK_TOKEN_MAX = 64 };

struct dibs__task_new {
  dibs__str phase, serial, unique, payload; /* "": no phase, no serial text, no unique text */
  int64_t at_ms;                            /* from when it is ready; 0, or in the past: from now */
  int64_t delay_ms;                         /* added to that */
  int32_t priority;
  uint32_t tries; /* 0: DIBS__TASK_TRIES */
  /* Answers. */
  dibs__status status;
  uint64_t nr;
  bool repeated; /* an ADD before this one with its token answered it (R65) */
};

enum dibs__task_verdict {
  DIBS__TASK_END_DONE, /* finished; `text` is its result */
  DIBS__TASK_END_NEXT, /* free at once; with a phase, in this phase */
  DIBS__TASK_END_WAIT, /* free after delay_ms; not a failed try */
  DIBS__TASK_END_FAIL, /* a failed try; free after delay_ms, unless it has failed too often (R70) */
  DIBS__TASK_END_DEAD, /* dead at once; with a serial text parked */
  DIBS__TASK_END_GIVE  /* given back before it began: free at once, and this claim does not count as an attempt */
};

struct dibs__task_item {
  uint64_t nr;
  dibs__fence fence;
  dibs__str phase; /* "": unchanged */
  dibs__str text;  /* of DONE, FAIL, DEAD: any bytes */
  uint32_t verdict;
  uint32_t tries; /* FAIL: how often it may fail, for this decision; 0: as its row says */
  int64_t delay_ms;
  dibs__str key, locked; /* in the user's table: instead of nr; the locked_at of the claim */
  /* Answers. */
  dibs__status status;
  bool repeated; /* END: it took effect before, and changed nothing now (R63) */
  int64_t due_ms;
  char locked_now[40]; /* EXTEND in the user's table: the new locked_at */
};

/* A task as CLAIM and LIST answer it.  The texts are in the memory of the answer, each followed by a NUL. */
struct dibs__task_row {
  uint64_t nr;
  dibs__fence fence; /* of its latest claim; 0: never claimed */
  dibs__str kind, phase, serial, unique, payload;
  dibs__str by;   /* who claimed it last */
  dibs__str text; /* the latest error, or the result; in CLAIM only of a task with failed tries */
  uint32_t state, attempts, fails, tries;
  int32_t priority;
  /* Since when it exists; until when it is claimed, waits or is kept (0: no end, and in another state). */
  int64_t made_ms, due_ms;
  int64_t began_ms, at_ms; /* its latest claim; its latest change */
  dibs__str key, locked;   /* in the user's table */
};

/* The tasks of a kind.  In the same memory as the others. */
struct dibs__task_kind {
  dibs__str kind;
  uint64_t states[9]; /* how many tasks are in each state */
  int64_t oldest_ms;  /* for how long the oldest ready one has been ready, also if it is still ARRIVED or WAITING (R76);
                         -1: none */
  uint32_t running;   /* the limit; 0: none */
  bool paused;
  int64_t keep_ms; /* -1: the default */
  dibs__str topic; /* by_lane: the topic of its lanes; "": it is not */
};

/* A lane that a CLAIM names. */
struct dibs__task_lane {
  uint32_t lane;
  dibs__fence fence;
  dibs__status status; /* answer: OK; STALE (R108) */
};

enum { DIBS__TASK_LANES = 1024, DIBS__TASK_TOPIC_MAX = 200 }; /* lanes of a CLAIM, and P; bytes */

enum { DIBS__TASK_SET_RUNNING = 1, DIBS__TASK_SET_PAUSED = 2, DIBS__TASK_SET_KEEP = 4, DIBS__TASK_SET_NO_LANES = 8 };

enum dibs__task_change {
  DIBS__TASK_RETRY,  /* parked, waiting, dead and cancelled ones are ready again, with no failed tries */
  DIBS__TASK_CANCEL, /* unfinished and unclaimed ones; claimed ones too: their claims are refused from now on */
  DIBS__TASK_PURGE   /* finished and parked ones are deleted, with their errors */
};

/* A member that is empty or 0 does not limit it. */
struct dibs__task_filter {
  uint64_t nr, after; /* only this one; only larger ones */
  dibs__str kind, phase, serial;
  uint32_t states;          /* a bit for each */
  int64_t older_ms;         /* unchanged for so long */
  dibs__str text;           /* part of the latest error */
  dibs__str key, after_key; /* in the user's table, instead of nr and after */
};

/* The fence of a claim at `now_ms`, of a task that had this one (R61). */
static inline dibs__fence dibs__task_next_fence(dibs__fence fence, int64_t now_ms) {
  return (dibs__fence){now_ms > 0 && fence.v < (uint64_t)now_ms ? (uint64_t)now_ms : fence.v + 1};
}

struct dibs__task_op {
  struct dibs__op op;              /* tasks do not check the mandate: their fences guard them */
  const struct dibs__table *table; /* the user's; NULL: dibs' own.  ADD, CHANGE, COUNT and KIND: UNSUPPORTED there, and
                                      the verdicts DONE and DEAD */
  dibs__str kind;
  /* ADD, EXTEND, END */
  union {
    struct dibs__task_new *news;
    struct dibs__task_item *items;
  };
  uint32_t count;
  /* ADD */
  dibs__str token; /* up to DIBS__TASK_TOKEN_MAX bytes, for this kind and as many items; "": none, as inside a
                      transaction of the user's */
  int64_t token_ms;
  bool wants_new;
  /* CLAIM */
  dibs__id id;
  bool again;
  const dibs__str *phases;
  uint32_t phase_count;
  dibs__str by;
  int64_t timeout_ms;            /* and of EXTEND */
  uint32_t most;                 /* and of CHANGE, LIST */
  struct dibs__task_lane *lanes; /* by number, each once.  UNSUPPORTED with `table` */
  uint32_t lane_count, of_lanes; /* of_lanes: P.  All three are 0: without lanes, as R67 has it; INVALID if only
                                    lane_count is */
  dibs__str topic;               /* of the lanes: 1 to DIBS__TASK_TOPIC_MAX bytes */
  uint32_t from; /* with lanes: the slot from which it looks, up to the largest and on from 0.  Answer: from where
                    the next CLAIM should look, so that no key waits for ever behind others */
  /* CHANGE, LIST */
  struct dibs__task_filter filter;
  uint32_t change;
  bool dry;
  bool errors;   /* LIST: the errors of filter.nr instead, the oldest first: rows with fence, by, text, at_ms */
  bool payloads; /* LIST: with payloads */
  /* KIND.  SET_NO_LANES: tasks with serial texts are claimed one at a time again (R68); claims by lane end.  With many
   * tasks the next claims do the rest of it (`more`).  The next CLAIM with lanes makes the kind by_lane again. */
  uint32_t set, running;
  bool paused;
  int64_t keep_ms; /* -1: the default */
  /* Answers. */
  void *got; /* malloc'd, one allocation: dibs__task_row (CLAIM, LIST), dibs__task_kind (COUNT) */
  uint32_t got_count;
  int64_t next_ms; /* CLAIM with no task: in how many ms the next time of a waiting or claimed task of the kind comes;
                      -1: there is none */
  bool more;       /* CLAIM with no task: more tasks have arrived, or times have come, than one CLAIM looks at;
                      claim again at once.  CHANGE: it looked at `most` tasks, and others behind `last` may match */
  uint64_t changed, last; /* CHANGE: how many; the largest number that it looked at, 0: none matched */
  char why[200]; /* for people, with INVALID, UNSUPPORTED and UNAVAILABLE, of an item too: the table, column, kind or
                    task, and what the engine said; with an OK of CLAIM without tasks: a row of the user's that can't be
                    claimed; that the kind is by_lane (R108) */
};

/* Of an operation on the user's table: clears its answers; true: it has its answer, INVALID or UNSUPPORTED, and no
 * table was looked at. */
bool dibs__task_table_refuses(struct dibs__task_op *op);
/* Of EXTEND and END there: sets the item's status, to OK if it is well-formed. */
bool dibs__task_table_refuses_item(struct dibs__task_op *op, struct dibs__task_item *item);

#endif
