/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_TASK_IMPL_H
#define DIBS_TASK_TASK_IMPL_H
/*
 * What the files of this folder share: claimed tasks, and one request to the store at a time, for callers that repeat
 * in a way of their own (worker.c).
 */
#include "dibs/task.h"
#include "handle/request.h"
#include "task/task.h"

enum { DIBS__TASK_WAIT_MS = 5000 }; /* how long a call repeats its request if the caller gives no time */
#define DIBS__TASK_TIMEOUT_MS INT64_C(30000)

enum { DIBS__TASK_WHY = sizeof((struct dibs__task_op *)0)->why };

/* The tasks of one claim: the memory of its answer, which they share. */
struct dibs__task_batch {
  _Atomic uint32_t refs;
  dibs_store *store;               /* held */
  const struct dibs__table *table; /* the user's, held; NULL: dibs' own */
  void *got;
  uint32_t count;
  struct dibs__held {
    dibs_task task;  /* first */
    uint32_t serial; /* bytes of task.serial: a text that people inserted may contain NUL */
    struct dibs__task_batch *batch;
    int64_t timeout_ms;
    dibs__tick began;         /* before its claim was requested */
    _Atomic int64_t until_ns; /* a dibs__tick: until then the claim is certainly alive; 0: it is over */
    _Atomic bool over;        /* it is lost: no late answer to an extension makes it longer */
    _Atomic bool ended;       /* the store answered to its end */
    dibs_lease *lease;        /* of its lane, with which its claim ends (R109), held; NULL: without lanes */
    bool unsure;              /* an end of it was sent, and no answer arrived */
    bool repeated;            /* the end had taken effect before, by an earlier call */
    dibs_verdict verdict;     /* with which it ended */
    dibs_status answer;       /* to its end: OK, a refusal, or UNKNOWN */
    char phase[DIBS_NAME_MAX + 1];
    /* In a table of the user's (own.c). */
    dibs__word busy; /* 1: a request for it is under way */
    char locked[40]; /* the locked_at of its claim; for whom `busy` was set */
    /* Of a worker; guarded by its lock. */
    struct dibs__held *before, *after, *next;
    dibs__tick extend_at;
    bool ending;                  /* its verdict is known */
    bool lost;                    /* the store refused its extension, or its lane is lost */
    struct dibs__worker_key *key; /* with lanes (worker_lanes.c) */
    struct dibs__worker_lane *lane;
  } held[];
};

static inline struct dibs__held *dibs__held_of(dibs_task *task) {
  return (struct dibs__held *)task;
}

/* A claim, as it is requested again and again. */
struct dibs__claim {
  /* Checked; the caller keeps them. */
  dibs_store *store;
  const struct dibs__table *table; /* the user's; NULL: dibs' own */
  const char *kind, *owner;
  const char *const *phases;
  uint32_t phase_count;
  int64_t timeout_ms;
  struct dibs__task_lane *lanes; /* with the answers of the latest request; NULL: without lanes */
  uint32_t lane_count, of_lanes;
  const char *topic;
  uint32_t from; /* the slot where the next request begins to look */
  /* The latest request. */
  dibs__id id;
  dibs__tick first;         /* before `id` was sent for the first time */
  bool unsure;              /* its outcome is not known: the next request repeats it */
  int64_t next_ms;          /* with none: when one may be ready; -1: nothing waits */
  bool more;                /* with none: claim again at once */
  char why[DIBS__TASK_WHY]; /* what the store said of it, for people */
};

/* The checks of dibs_tasks_claim and dibs_worker_start. */
dibs_status dibs__claim_check(dibs_store *store, const char *kind, const dibs_claim_options *options,
                              dibs_error *error);
/* One request.  OK with up to `most` tasks, also with none; or a failure of the store.  The caller is inside. */
dibs_status dibs__claim_once(struct dibs__claim *claim, uint32_t most, dibs_task **tasks, size_t *count, dibs__tick by);

/* The lane for whose owner it was claimed; once.  The caller owns the lane. */
void dibs__task_set_lane(struct dibs__held *held, const dibs_lane *lane);

/* Gives a request for many tasks a lane of its own: it is a batch already and gains nothing from waiting for a batch
 * that is under way, so the claims and the verdicts of a worker run side by side. */
void dibs__task_lane(struct dibs__request *request, size_t count);

/* One request for each: OK, and each has its status; or a failure of the store.  `inside` is the store, or a handle
 * inside a transaction of the user's on it.  The caller is inside.  `why`: what the store said, or empty. */
dibs_status dibs__extend_once(dibs_store *store, dibs_task *const *tasks, size_t count, int64_t timeout_ms,
                              const char *phase, dibs_status *statuses, dibs__tick by, char why[DIBS__TASK_WHY]);
dibs_status dibs__end_once(dibs_store *inside, dibs_task_end *ends, size_t count, dibs__tick by,
                           char why[DIBS__TASK_WHY]);
/* An error of a request for many tasks; `why` as above, or empty. */
dibs_status dibs__task_explain(dibs_store *store, const struct dibs__table *table, dibs_status status,
                               const char *doing, const char *kind, const char *why, dibs_error *error);

/* Repeats a request after UNAVAILABLE, and after UNKNOWN if it may be done twice, until `by`; inside a transaction of
 * the user's it does not. */
enum dibs__repeats { DIBS__AFTER_UNKNOWN, DIBS__UNLESS_UNKNOWN };
dibs_status dibs__task_repeat(dibs_store *store, dibs__tick by, enum dibs__repeats repeats,
                              dibs_status (*once)(void *arg), void *arg);
/* What the store said of the request, for people; empty: nothing, or it was not answered. */
static inline void dibs__task_keep_why(struct dibs__request *request, char why[DIBS__TASK_WHY]) {
  why[0] = '\0';
  if (dibs__request_is_answered(request)) __builtin_memcpy(why, request->task.why, DIBS__TASK_WHY);
}
/* Does the store keep tasks, in this table of the user's?  NULL: in dibs' own. */
dibs_status dibs__task_served(dibs_store *store, const struct dibs__table *table, dibs_error *error);
/* INVALID unless NULL or a name; `what` is the subject. */
dibs_status dibs__task_check_text(const char *text, const char *what, dibs_error *error);
static inline size_t dibs__length(const char *text) {
  return text ? __builtin_strlen(text) : 0;
}

/* ---- In a table of the user's (own.c); for tasks in dibs' own these do nothing ---- */

/* The kind that its tasks have: without one the name of the table. */
const char *dibs__own_kind(const char *kind, const struct dibs__table *table);
/* Until when a claim certainly lasts whose locked_at is `locked_ms`. */
dibs__tick dibs__own_until(dibs__tick sent, int64_t timeout_ms, int64_t locked_ms);
/* Requests for some tasks, of which nth(of, i) is one: waits until no other is under way.  false: `by` has passed. */
typedef dibs_task *dibs__own_nth(const void *of, size_t i);
bool dibs__own_enter(dibs__own_nth *nth, const void *of, size_t count, dibs__tick by);
void dibs__own_leave(dibs__own_nth *nth, const void *of, size_t count);
/* What an item of a request has there: how many bytes, and into it. */
size_t dibs__own_bytes(const dibs_task *task);
void dibs__own_fill(struct dibs__request *request, struct dibs__task_item *item, dibs_task *task);
void dibs__own_keep(struct dibs__held *held, const char *locked, size_t length);

/* The pause after so many failed tries is random, up to this. */
int64_t dibs__task_fail_most_ms(uint32_t fails);
/* The pause after a verdict; 0: it has none.  If the verdict names no pause, each call draws another one. */
int64_t dibs__task_pause_ms(const dibs_task_end *end);
/* The pause of a task that has waited for so long. */
int64_t dibs__task_relock_ms(int64_t waited_ms);

#endif
