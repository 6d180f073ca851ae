/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_TASK_IMPL_H
#define DIBS_TASK_TASK_IMPL_H
/*
 * What the files of this folder share: claimed tasks, and one request to the store at a time, for callers that repeat
 * in a way of their own (worker.c).
 */
#include "dibs/task.h"
#include "handle/request.h"

enum { DIBS__TASK_WAIT_MS = 5000 }; /* how long a call repeats its request if the caller gives no time */
#define DIBS__TASK_TIMEOUT_MS INT64_C(30000)

/* The tasks of one claim: the memory of its answer, which they share. */
struct dibs__task_batch {
  _Atomic uint32_t refs;
  dibs_store *store; /* held */
  void *got;
  struct dibs__held {
    dibs_task task; /* first */
    struct dibs__task_batch *batch;
    int64_t timeout_ms;
    dibs__tick began;         /* before its claim was requested */
    _Atomic int64_t until_ns; /* a dibs__tick: until then the claim is certainly alive; 0: it is over */
    _Atomic bool ended;       /* the store answered to its end */
    dibs_verdict verdict;     /* with which it ended, if the store accepted it: `accepted` */
    bool accepted;
    char phase[DIBS_NAME_MAX + 1];
    /* Of a worker; guarded by its lock. */
    struct dibs__held *before, *after, *next;
    dibs__tick extend_at;
    bool ending; /* its verdict is known */
    bool lost;   /* the store refused its extension */
  } held[];
};

static inline struct dibs__held *dibs__held_of(dibs_task *task) {
  return (struct dibs__held *)task;
}

/* A claim, as it is requested again and again. */
struct dibs__claim {
  /* Checked; the caller keeps them. */
  dibs_store *store;
  const char *kind, *owner;
  const char *const *phases;
  uint32_t phase_count;
  int64_t timeout_ms;
  /* The latest request. */
  dibs__id id;
  dibs__tick first; /* before `id` was sent for the first time */
  bool unsure;      /* its outcome is not known: the next request repeats it */
  int64_t next_ms;  /* with none: when one may be ready; -1: nothing waits */
};

/* The checks of dibs_tasks_claim and dibs_worker_start. */
dibs_status dibs__claim_check(dibs_store *store, const char *kind, const dibs_claim_options *options,
                              dibs_error *error);
/* One request.  OK with up to `most` tasks, also with none; or a failure of the store.  The caller is inside. */
dibs_status dibs__claim_once(struct dibs__claim *claim, uint32_t most, dibs_task **tasks, size_t *count, dibs__tick by);

/* Gives a request for many tasks a lane of its own: it is a batch already and gains nothing from waiting for one that
 * is under way, so the claims and the verdicts of a worker run side by side. */
void dibs__task_lane(struct dibs__request *request, size_t count);

/* One request for each: OK, and each has its status; or a failure of the store.  `inside` is the store, or a handle
 * inside a transaction of the user's on it.  The caller is inside. */
dibs_status dibs__extend_once(dibs_store *store, dibs_task *const *tasks, size_t count, int64_t timeout_ms,
                              const char *phase, dibs_status *statuses, dibs__tick by);
dibs_status dibs__end_once(dibs_store *inside, dibs_task_end *ends, size_t count, dibs__tick by);

/* Repeats a request after UNKNOWN and UNAVAILABLE until `by`; inside a transaction of the user's it does not. */
dibs_status dibs__task_repeat(dibs_store *store, dibs__tick by, dibs_status (*once)(void *arg), void *arg);
/* Does the store keep tasks? */
dibs_status dibs__task_served(dibs_store *store, dibs_error *error);
/* INVALID unless NULL or a name; `what` is the subject. */
dibs_status dibs__task_check_text(const char *text, const char *what, dibs_error *error);
static inline size_t dibs__length(const char *text) {
  return text ? __builtin_strlen(text) : 0;
}

/* The pause after so many failed tries is random, up to this. */
int64_t dibs__task_fail_most_ms(uint32_t fails);
/* The pause after a verdict, 0 where it has none; drawn anew in each call where the end does not name one. */
int64_t dibs__task_pause_ms(const dibs_task_end *end);
/* The pause of a task that has waited for so long. */
int64_t dibs__task_relock_ms(int64_t waited_ms);

#endif
