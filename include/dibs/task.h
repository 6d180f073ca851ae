/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_H
#define DIBS_TASK_H
/*
 * Tasks: work that is kept in the store until it is done.  A task is of one kind, has a payload, and may be in a phase.
 * A client claims it for a time, works, extends its claim, and ends it with a verdict.
 *
 * Read this first:
 *
 * - A claim is a right that ends.  When its time is over the task is claimed by another client, and this counts as a
 *   failed try.  A client that is paused may not know it yet: the store refuses its verdict (STALE), but not its
 *   effects elsewhere.  Pass the fence of the claim to what you change: it grows with each claim of the task, and never
 *   decreases.
 * - So work may be done twice, after a crash between the work and its verdict.  Make it repeatable, or guard it by the
 *   fence, or do it and end the claim in one transaction of yours (dibs_task_end_many).
 * - Order: the largest priority first, then the task that has been ready for the longest time.  Tasks with the same
 *   `serial` text run one at a time, in the order in which they were added.
 *
 * Tasks by lane (dibs/lane.h): the owner of a lane claims the tasks whose `serial` texts hash to it, many at a time,
 * and works on those of each text in their order.  No other client works on them, so their order needs no lock for each
 * task.  A worker does all of it: give it a topic, which workers of other kinds do not use: all members share the
 * lanes. From the first claim with lanes on, tasks of this kind that have a serial text are claimed only with lanes of
 * this topic, and not by their priority, until DIBS_KIND_NO_LANES.
 *
 * Tasks may also be rows of a table of yours (doc/tables.md): give it to dibs_tasks_claim or to a worker.  Its column
 * `phase` says what is to be done, and you insert and delete the rows.  There,
 *
 * - `kind` is only a label, and may be NULL: the name of the table;
 * - a task has a key, a phase, a fence and an age (since its phase changed), and nothing else;
 * - a task is done when its row is in a phase that nobody claims: dibs_task_unlock.  Done and dead are UNSUPPORTED, and
 *   a worker takes them as FAIL.  Texts are not kept, and failed tries are not counted: the pause after one grows as
 *   that of dibs_task_relock;
 * - a claim, extension or verdict that is repeated after UNKNOWN finds nothing of the first: it answers STALE, also if
 *   the first took effect, and the row is free after timeout_ms.
 *
 * The rules of dibs.h also apply here: INVALID of every call, and "a failure of the store".  After UNKNOWN these calls
 * repeat the request until their time is over; a repeated request finds the effect of the first.  (dibs_tasks_change
 * differs: see there.)
 */
#include <dibs.h>
#include <dibs/lane.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Bounds ------------------------------------------------------------------------------------------------- */

enum {
  DIBS_TASKS_MAX = 1000,      /* tasks in one call */
  DIBS_TASK_TEXT_MAX = 4096,  /* bytes of an error or a result; of a longer one the end is kept */
  DIBS_TASK_ERRORS = 32,      /* errors that are kept of each task, the latest ones */
  DIBS_TASK_TRIES = 10,       /* how often a task may fail that does not say so */
  DIBS_TASK_PRIORITY = 1000,  /* priorities are from -1000 to 1000 */
  DIBS_TASK_PHASES_MAX = 16,  /* phases in one claim */
  DIBS_WORKER_THREADS = 1024, /* threads of one worker */
  DIBS_WORKER_PREFETCH = 10000
};
/* Kinds, phases, serial and unique texts are names: 1 to DIBS_NAME_MAX bytes.  A payload is any sequence of bytes, up
 * to DIBS_RECORD_MAX. */

/* ---- Adding ------------------------------------------------------------------------------------------------- */

typedef struct dibs_task_options {
  size_t size;
  const char *phase;  /* NULL: none */
  const char *serial; /* tasks of the kind with the same text run one at a time, in their order; NULL: none */
  const char *unique; /* of unfinished tasks of the kind one has this text; NULL: any number */
  int64_t at_ms;      /* from when on it may be claimed, in ms since 1970; 0: from now on */
  int64_t delay_ms;   /* added to that */
  int32_t priority;   /* the largest first */
  uint32_t tries;     /* how often it may fail; 0: DIBS_TASK_TRIES */
  int64_t wait_ms;    /* how long to repeat the request if the store does not answer; 0: 5 s; DIBS_FOREVER */
} dibs_task_options;
#define DIBS_TASK_OPTIONS_INIT DIBS__INIT(dibs_task_options)

/* Adds a task.  `nr` (may be NULL) is its number: larger than those of all earlier tasks.  With a handle of
 * dibs_inside_... the task is added by your own transaction, and exists when you commit.  Blocks for I/O.
 * OK; REPLAY (an unfinished task of this kind has this `unique` text: `nr` is its number, and none was added);
 * INVALID; or a failure of the store: UNSUPPORTED (it keeps no tasks), UNKNOWN (it may be added). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_add(dibs_store *store, const char *kind, const void *payload,
                                                    size_t length, const dibs_task_options *options, uint64_t *nr,
                                                    dibs_error *error);

/* One of several tasks to add.  Set the size of each. */
typedef struct dibs_task_new {
  size_t size;
  const void *payload;
  size_t length;
  const char *phase, *serial, *unique; /* as in dibs_task_options */
  int64_t at_ms, delay_ms;
  int32_t priority;
  uint32_t tries;
  /* Answers. */
  dibs_status status; /* OK, REPLAY or INVALID: each for itself */
  uint64_t nr;
} dibs_task_new;
#define DIBS_TASK_NEW_INIT DIBS__INIT(dibs_task_new)

/* Adds up to DIBS_TASKS_MAX tasks, whose payloads have up to 16 MiB together, in one request; their numbers grow in
 * this order.
 * OK: each task has its own status.  INVALID; or a failure of the store, as dibs_task_add. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_add_many(dibs_store *store, const char *kind, dibs_task_new *tasks,
                                                         size_t count, int64_t wait_ms, dibs_error *error);

/* ---- Claiming ----------------------------------------------------------------------------------------------- */

/* A claimed task.  Read its fields, and do not write them; they are valid until dibs_task_free.  One thread at a time
 * uses a task, but for dibs_task_extend and dibs_task_left_ms: those are for any thread. */
typedef struct dibs_task {
  size_t size;
  uint64_t nr;      /* 0 in a table of yours */
  const char *key;  /* of its row in a table of yours; "": in dibs' own */
  dibs_fence fence; /* of this claim; with lanes see `lane` */
  const char *kind;
  const char *phase; /* "": none.  dibs_task_step changes it */
  const char *serial, *unique;
  const char *payload; /* with a NUL behind its last byte */
  size_t length;
  const char *error; /* of the latest failed try; "": none */
  uint32_t attempt;  /* 1 for the first claim */
  uint32_t fails;    /* failed tries up to now */
  uint32_t tries;    /* how many there may be */
  int32_t priority;
  int64_t age_ms;        /* since it was added, when it was claimed */
  int64_t made_ms;       /* when it was added, in ms since 1970, by the store's clock */
  const dibs_lane *lane; /* until dibs_lane_release; NULL: claimed without lanes.  Its lease, and its fence, guard what
                            you write for a serial text, and the fence of the claim does not: that orders the claims of
                            this task alone */
} dibs_task;

typedef struct dibs_claim_options {
  size_t size;
  const char *const *phases; /* only tasks in one of these phases; NULL: in any */
  uint32_t phase_count;
  uint32_t most;           /* how many tasks; 0: 1; up to DIBS_TASKS_MAX */
  int64_t timeout_ms;      /* how long the claim lasts if it is not extended: 100 ms to a day; 0: 30 s */
  int64_t wait_ms;         /* how long to wait for a task, and for a store that is unreachable; 0: answer at once;
                              DIBS_FOREVER */
  const char *owner;       /* a label for people; NULL: the store's */
  const dibs_table *table; /* its rows are the tasks (see below); NULL: dibs' own */
  /* Lanes of one topic that you own: only tasks with a serial text of these lanes (see below); NULL: without lanes.
   * Not with phases, and not with a table. */
  dibs_lane *const *lanes;
  uint32_t lane_count;        /* up to DIBS_LANES_MAX */
  uint32_t reserved;          /* zero */
  dibs_status *lane_statuses; /* answers: OK, or STALE (see below), for each of `lanes`; NULL: not wanted */
} dibs_claim_options;
#define DIBS_CLAIM_OPTIONS_INIT DIBS__INIT(dibs_claim_options)

/* Claims ready tasks of `kind`.  `tasks` has room for options->most pointers; *count of them are yours, each for
 * dibs_task_free.  Blocks for I/O and for wait_ms.
 * OK (*count is 1 or more); NOT_FOUND (no task is ready); CANCELLED (dibs_close); INVALID (also: the table does not
 * fit); or a failure of the store: UNSUPPORTED (it keeps no tasks, or has no tables of yours; or the table was declared
 * without the columns of tasks; or see below), UNKNOWN (tasks may be claimed; they are free again after timeout_ms, as
 * after a failed try).
 * With a handle of dibs_inside_... the tasks are claimed when you commit.  If the kind has a limit: PostgreSQL needs a
 * transaction with READ COMMITTED (with more isolation UNSUPPORTED: it does not show the latest claims of others), and
 * MariaDB locks the claimed tasks of the kind, so that nobody else can extend or end them until you commit.
 *
 * With lanes: several tasks of one serial text may be claimed at one time.  They are in `tasks` in their order; work on
 * them in this order, and when one of them does not end as done, give back the later ones (dibs_task_release, the last
 * one first).  A lane is STALE if a later owner has claimed tasks of it: release the lane, and claim with it no more;
 * if all are, the call answers STALE.  When you release a lane, its claims end: give back before what you have not
 * begun. After UNKNOWN, too, release the lanes: tasks may be claimed that you do not know, and later ones of their
 * serial texts would come before them.  INVALID: the kind belongs to another topic; UNSUPPORTED: the store has no tasks
 * by lane.
 */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tasks_claim(dibs_store *store, const char *kind,
                                                       const dibs_claim_options *options, dibs_task **tasks,
                                                       size_t *count, dibs_error *error);

/* How long the claim certainly lasts, by this machine's clock: counted from before the request was sent, less the
 * margin that leases have, too.  With lanes, at most as long as the lease of the lane, with which the claim ends.
 * 0: its time is over, it was ended, the store refused it, or the lane is lost or was given back.  Does not block. */
DIBS_EXPORT int64_t dibs_task_left_ms(const dibs_task *task);

/* Frees it.  A claim that was not ended stays until its time is over.  NULL is fine.  Also after dibs_close. */
DIBS_EXPORT void dibs_task_free(dibs_task *task);

/* ---- While you work ----------------------------------------------------------------------------------------- */

/* From now on the claim lasts timeout_ms (0: as long as it was claimed for; in a table of yours always 0).  Blocks for
 * I/O.
 * OK; STALE (the time of the claim was over and another client has the task, or a person changed it: stop);
 * NOT_FOUND (no such task); INVALID (also: the claim was ended); or a failure of the store: UNAVAILABLE (also: another
 * session has locked the row of this task; repeat it), UNKNOWN (repeat it). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_extend(dibs_task *task, int64_t timeout_ms, dibs_error *error);
/* The same for several tasks of one store, in one request.  statuses[i] (may be NULL) is the status of tasks[i].
 * OK, if each has a status; INVALID (also: a task is given twice; nothing was sent); or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tasks_extend(dibs_task *const *tasks, size_t count, int64_t timeout_ms,
                                                        dibs_status *statuses, dibs_error *error);
/* The task is in `phase` from now on, and stays claimed, for as long as it was claimed for.  If this process crashes,
 * the task continues there.  Statuses as dibs_task_extend. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_step(dibs_task *task, const char *phase, dibs_error *error);

/* ---- Verdicts ----------------------------------------------------------------------------------------------- */

/* Each of these ends the claim; the task is still yours to free.  They block for I/O, some seconds at most.
 * OK; STALE and NOT_FOUND (as dibs_task_extend: nothing was changed); INVALID (also: the claim was ended before); or a
 * failure of the store: UNKNOWN and UNAVAILABLE (also: another session has locked the row of this task.  You may repeat
 * the call until the time of the claim is over).  UNKNOWN after a lost answer may also mean that the store can no
 * longer tell whether this call ended the claim: finished tasks of the kind are not kept and there is no such task, or
 * the claim has expired, or the task was claimed again.  Then the claim counts as ended, and a repeated call is
 * INVALID. */

/* The task is done.  `result` is kept with it, for people; NULL: none. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_done(dibs_task *task, const char *result, dibs_error *error);
/* The next step: the task is ready at once, in `phase`; NULL: in the phase that it has. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_unlock(dibs_task *task, const char *phase, dibs_error *error);
/* What the task waits for has not happened yet: it is ready again later, and this is not a failed try.  The pause grows
 * with the time that it has waited: a tenth of this time up to 2 minutes, then 30 s.  waited_ms: how long it has
 * waited; negative: since it was added. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_relock(dibs_task *task, int64_t waited_ms, dibs_error *error);
/* A failed try: the task is ready again after a random time of at most 1 s, which doubles with each failed try, up to
 * an hour.  When it has failed as often as it may, it is dead; with a serial text it is parked, and the later tasks
 * with this text wait until a person decides.  `text` says what happened. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_fail(dibs_task *task, const char *text, dibs_error *error);
/* The task can never succeed: dead at once, or parked. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_dead(dibs_task *task, const char *text, dibs_error *error);
/* It was not begun: ready at once, and this claim does not count as an attempt. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_release(dibs_task *task, dibs_error *error);

typedef enum dibs_verdict {
  DIBS_END_DONE = 0,   /* as dibs_task_done */
  DIBS_END_NEXT = 1,   /* as dibs_task_unlock */
  DIBS_END_WAIT = 2,   /* as dibs_task_relock */
  DIBS_END_FAIL = 3,   /* as dibs_task_fail */
  DIBS_END_DEAD = 4,   /* as dibs_task_dead */
  DIBS_END_RELEASE = 5 /* as dibs_task_release */
} dibs_verdict;

/* One of several claims to end.  Set the size of each. */
typedef struct dibs_task_end {
  size_t size;
  dibs_task *task;
  dibs_verdict verdict;
  uint32_t tries;    /* FAIL: how often it may fail; 0: as the task has it */
  const char *phase; /* NEXT; NULL: unchanged */
  const char *text;  /* DONE, FAIL, DEAD */
  int64_t delay_ms;  /* WAIT, FAIL: the pause; negative: as dibs_task_relock with -1, and dibs_task_fail, have it */
  int64_t least_ms;  /* FAIL, with a negative delay_ms: the random pause begins after this one */
  /* Answer: as that of the call for one task. */
  dibs_status status;
} dibs_task_end;
#define DIBS_TASK_END_INIT DIBS__INIT(dibs_task_end)

/* Ends up to DIBS_TASKS_MAX claims of one store in one request.  `inside` is NULL, or a handle of dibs_inside_... on
 * this store: then your own transaction ends them, together with what else it writes, and the claims count as ended
 * when you commit.  After a rollback you may end them in another way.
 * OK, if each has a status; INVALID (also: a task is given twice; nothing was sent); or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_end_many(dibs_store *inside, dibs_task_end *ends, size_t count,
                                                         dibs_error *error);

/* ---- A worker ----------------------------------------------------------------------------------------------- */

/* A worker claims tasks of one kind and runs a function for each of them in threads of its own.  It claims some tasks
 * in advance, extends the claims that it holds, and sends the verdicts of several threads together. */
typedef struct dibs_worker dibs_worker;

/* What the function decides besides its verdict.  All is empty at first, and delay_ms is -1. */
typedef struct dibs_work_reply {
  size_t size;
  int64_t delay_ms;                  /* as in dibs_task_end */
  int64_t least_ms;                  /* as in dibs_task_end */
  uint32_t tries;                    /* as in dibs_task_end */
  uint32_t reserved;                 /* zero */
  char phase[DIBS_NAME_MAX + 1];     /* NEXT; "": unchanged */
  char text[DIBS_TASK_TEXT_MAX + 1]; /* DONE, FAIL, DEAD: for people */
} dibs_work_reply;

/* Does the work of a task, and returns its verdict; if it called a function above that ends the claim, that counts. The
 * worker extends the claim meanwhile: while dibs_task_left_ms is 0, the claim is lost, so stop.  The task is valid
 * during the call, and the worker frees it.
 * With a topic, task->lane is the lane, and its lease guards what you write: each later owner of the same serial text
 * has a larger fence.  When the lane is lost, dibs_task_left_ms is 0. */
typedef dibs_verdict (*dibs_work_fn)(dibs_task *task, dibs_work_reply *reply, void *user);

typedef struct dibs_worker_options {
  size_t size;
  const char *const *phases; /* as in dibs_claim_options */
  uint32_t phase_count;
  uint32_t threads;        /* how many tasks run at one time; 0: 1 */
  uint32_t prefetch;       /* how many tasks more are claimed in advance, at most; 0: as many as threads */
  uint32_t flags;          /* DIBS_WORKER_NO_PREFETCH */
  int64_t timeout_ms;      /* of each claim, which is extended when a third of it has passed; 0: 30 s */
  int64_t poll_ms;         /* look for tasks at least so often, also if nothing wakes the worker; 0: 1 s */
  const char *owner;       /* a label for people; NULL: the store's */
  const dibs_table *table; /* as in dibs_claim_options */
  dibs_work_fn work;
  void *user; /* passed to work */
  /* The worker joins this topic, and claims tasks of the lanes that it gets.  Those of one serial text run one after
   * the other: each begins when the store has accepted that the one before is done.  Those of different texts run in
   * parallel.  NULL: without lanes.  Not with phases, and not with a table. */
  const char *topic;
  uint32_t lanes;      /* of the topic; 0: as it has */
  uint32_t reserved;   /* zero */
  int64_t lane_ttl_ms; /* as ttl_ms of dibs_lane_options; 0: 30 s */
} dibs_worker_options;
#define DIBS_WORKER_OPTIONS_INIT DIBS__INIT(dibs_worker_options)
enum { DIBS_WORKER_NO_PREFETCH = 1 /* claim only what a thread can begin at once: for long tasks */ };

/* What a worker has counted since it was started. */
typedef struct dibs_worker_counts {
  size_t size;
  uint64_t claimed, begun;
  uint64_t done, next, waits, failed, dead; /* verdicts that the store accepted */
  uint64_t released;                        /* given back without being begun */
  uint64_t refused;                         /* verdicts that the store refused: the claim was over */
  uint64_t unsent;         /* verdicts that the store did not answer in time, or whose effect is unknown */
  uint64_t extended, lost; /* claims: extended, and refused while they were extended */
  uint64_t requests;       /* requests to the store: claims, extensions, ends */
  uint64_t idle;           /* claims that found no task */
  uint64_t held, running;  /* now: claimed by this worker; begun and not ended */
  uint64_t lanes;          /* now: that it owns */
  uint64_t lanes_assigned; /* that are to be its own; UINT64_MAX: it does not know yet */
} dibs_worker_counts;
#define DIBS_WORKER_COUNTS_INIT DIBS__INIT(dibs_worker_counts)

/* Starts a worker.  *worker is yours, for dibs_worker_free before dibs_close.  Does not block for I/O, but with a
 * topic: then it also answers as dibs_lane_join. OK; INVALID; UNSUPPORTED (the store keeps no tasks; also inside a
 * transaction of yours); NO_MEMORY (also: no threads). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_worker_start(dibs_store *store, const char *kind,
                                                        const dibs_worker_options *options, dibs_worker **worker,
                                                        dibs_error *error);
/* Claims no more tasks, gives back those that were not begun, and waits until the others have ended, for wait_ms at
 * most (0: does not wait for them; DIBS_FOREVER).  With a topic it gives back each lane when its tasks have ended, and
 * leaves the topic; with DIBS_STORE_LOOP dispatch between short calls.  Do not call it from the worker's own function.
 * OK; TIMEOUT (tasks still run: their claims are still extended, and you may call it again); INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_worker_stop(dibs_worker *worker, int64_t wait_ms, dibs_error *error);
/* Stops it, waits until every call of its function has returned, and frees it.  If the store does not answer, it gives
 * up sending verdicts 5 s after the latest call has returned, or the store has answered last: the claims end by their
 * time.  So it blocks for the calls, and for 15 s more if the store never answers; with a topic it also leaves, as
 * dibs_lane_member_free does.  NULL is fine. */
DIBS_EXPORT void dibs_worker_free(dibs_worker *worker);
/* Fills *counts; set its size first.  Does not block.  OK; INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_worker_count(dibs_worker *worker, dibs_worker_counts *counts,
                                                        dibs_error *error);
/* The latest failure of a request to the store, for people; its status is OK if there was none since the last request
 * that was answered; then the text may name a row of your table that no claim takes, and why.  With a topic also what
 * dibs_lane_trouble says: after CONFLICT the worker gets no more lanes, free it.  NOT_FOUND: it finds no task because
 * the tasks of this kind go to lanes.  Does not block. */
DIBS_EXPORT void dibs_worker_trouble(dibs_worker *worker, dibs_error *error);

/* ---- For people --------------------------------------------------------------------------------------------- */

typedef enum dibs_task_state {
  DIBS_TASK_ARRIVED = 0, /* added by a statement of yours, and not looked at since */
  DIBS_TASK_READY = 1,
  DIBS_TASK_CLAIMED = 2,
  DIBS_TASK_WAITING = 3, /* its time has not come */
  DIBS_TASK_BLOCKED = 4, /* an earlier task has its serial text */
  DIBS_TASK_PARKED = 5,  /* failed too often, with a serial text: it waits for a person, and its serial text with it */
  DIBS_TASK_DONE = 6,
  DIBS_TASK_DEAD = 7, /* failed too often; kept until a person retries or purges it */
  DIBS_TASK_CANCELLED = 8,
  DIBS_TASK_STATES = 9
} dibs_task_state;

/* Which tasks: those that match all of it.  NULL, 0 and zero fields match every task. */
typedef struct dibs_task_filter {
  size_t size;
  uint64_t nr, after; /* only this one; only those with larger numbers */
  const char *kind, *phase, *serial;
  const char *text;  /* part of the latest error */
  uint32_t states;   /* a bit for each: 1u << DIBS_TASK_DEAD */
  uint32_t reserved; /* zero */
  int64_t older_ms;  /* unchanged for so long */
  /* The rows of a table of yours are the tasks (doc/tables.md): of those above only phase, states and older_ms, where a
   * row is READY or CLAIMED. */
  const dibs_table *table;
  const char *key;    /* only this row */
  int64_t timeout_ms; /* how long a claim there lasts; 0: 30 s */
} dibs_task_filter;
#define DIBS_TASK_FILTER_INIT DIBS__INIT(dibs_task_filter)

/* Strings are valid during the call of the function that gets it.  Instants are in ms since 1970, by the store's
 * clock. */
typedef struct dibs_task_info {
  size_t size;
  uint64_t nr;
  dibs_fence fence; /* of its latest claim; 0: it was never claimed */
  const char *kind, *phase, *serial, *unique;
  const char *payload; /* "" without DIBS_LIST_PAYLOADS */
  size_t length;
  const char *owner; /* of its latest claim */
  const char *text;  /* the latest error, or the result */
  size_t text_length;
  dibs_task_state state;
  uint32_t attempts, fails, tries;
  int32_t priority;
  int64_t made_ms;  /* when it was added */
  int64_t due_ms;   /* until when it is claimed, waits or is kept; 0: no end, and in other states */
  int64_t began_ms; /* its latest claim; 0: none */
  int64_t at_ms;    /* its latest change */
  const char *key;  /* of its row in a table of yours; "": in dibs' own */
} dibs_task_info;

/* Return 0 to continue, anything else to stop. */
typedef int (*dibs_task_fn)(const dibs_task_info *task, void *user);

enum { DIBS_LIST_PAYLOADS = 1 };

/* Calls `fn` for each task that matches, by number, or by key in a table of yours.  `filter` NULL: for all.  Blocks for
 * I/O, page by page.
 * OK, also if `fn` stopped it; INVALID (also: the table does not fit, or has none of what the filter names); or a
 * failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tasks_list(dibs_store *store, const dibs_task_filter *filter, uint32_t flags,
                                                      dibs_task_fn fn, void *user, dibs_error *error);
/* Calls `fn` for each error that is kept of a task, the oldest first, with nr, fence, owner, text and at_ms.
 * OK, also if there is none; INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_errors(dibs_store *store, uint64_t nr, dibs_task_fn fn, void *user,
                                                       dibs_error *error);

/* The tasks of a kind, and its settings. */
typedef struct dibs_task_kind {
  size_t size;
  const char *kind;
  uint64_t states[DIBS_TASK_STATES]; /* how many are in each state */
  int64_t oldest_ms;                 /* for how long the oldest ready one has been ready; -1: none is */
  uint32_t running;                  /* at most so many are claimed at one instant; 0: no limit */
  uint32_t paused;                   /* 1: none is claimed */
  int64_t keep_ms;                   /* how long finished ones are kept; -1: a week, the default */
  const char *topic;                 /* to whose lanes its tasks with serial texts go; "": to none */
} dibs_task_kind;
typedef int (*dibs_task_kind_fn)(const dibs_task_kind *kind, void *user);

/* Calls `fn` for the kind, or for each kind that has tasks or settings (NULL), by name.
 * OK, also if `fn` stopped it or there is none; INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tasks_count(dibs_store *store, const char *kind, dibs_task_kind_fn fn,
                                                       void *user, dibs_error *error);

typedef enum dibs_task_change {
  DIBS_TASK_RETRY = 0,  /* parked, waiting, dead and cancelled ones are ready again, with no failed tries */
  DIBS_TASK_CANCEL = 1, /* unfinished ones end; the claim of a claimed one is refused from now on */
  DIBS_TASK_PURGE = 2   /* finished and parked ones are deleted, with their errors */
} dibs_task_change;

enum { DIBS_CHANGE_DRY = 1 /* only counts them */ };

/* Changes up to `most` (0: all) tasks that match `filter`, which is not NULL, the smallest numbers first; `changed`
 * (may be NULL) is how many: fewer than `most` if no more match.  `last` (may be NULL) is the largest number that it
 * looked at: continue with it as filter->after.  It leaves out tasks that others change at the same moment, and RETRY
 * finished ones whose unique text an unfinished one has (DRY counts each of several with one text).
 * Blocks for I/O, in steps of some hundred tasks. OK, also if there was none; INVALID; or a failure of the store:
 * UNSUPPORTED (also: rows of a table of yours), UNKNOWN (see below).
 * After UNKNOWN a step is repeated only if `most` is 0, or with DRY: then `changed` may be too small, because a task
 * that the lost step changed does not match again.  With a `most` the call ends with UNKNOWN: up to `most` - `changed`
 * more tasks may be changed, and if you repeat it, it changes the next ones. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tasks_change(dibs_store *store, dibs_task_change change,
                                                        const dibs_task_filter *filter, uint32_t flags, uint64_t most,
                                                        uint64_t *changed, uint64_t *last, dibs_error *error);

enum { DIBS_KIND_RUNNING = 1, DIBS_KIND_PAUSED = 2, DIBS_KIND_KEEP = 4, DIBS_KIND_NO_LANES = 8 };

typedef struct dibs_kind_options {
  size_t size;
  /* DIBS_KIND_...: which of these are set; the others stay as they are.  NO_LANES: its tasks go to no lanes any more,
   * and claims by lane end; the next claim with lanes makes them go to its topic. */
  uint32_t set;
  uint32_t running;  /* at most so many claimed at one instant; 0: no limit */
  uint32_t paused;   /* 1: none is claimed */
  uint32_t reserved; /* zero */
  int64_t keep_ms;   /* how long finished tasks are kept, but for dead ones; -1: a week, the default */
} dibs_kind_options;
#define DIBS_KIND_OPTIONS_INIT DIBS__INIT(dibs_kind_options)

/* Sets what holds for all tasks of a kind, also if it has none yet.  OK; INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_task_kind_set(dibs_store *store, const char *kind,
                                                         const dibs_kind_options *options, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif
