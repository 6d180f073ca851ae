/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_WORKER_IMPL_H
#define DIBS_TASK_WORKER_IMPL_H
/* A worker (worker.c), and its lanes if it has a topic (worker_lanes.c). */
#include "base/map.h"
#include "task/task_impl.h"

/* A verdict that waits to be sent. */
struct dibs__worker_end {
  struct dibs__worker_end *next;
  struct dibs__held *held;
  dibs_task_end end;
  bool refused; /* with lanes: the verdict DONE was refused, and this one gives the claim back */
  dibs__tick give_up_at;
  char texts[]; /* phase and text of `end` */
};

struct worker_thread {
  dibs_worker *worker;
  dibs__thread *thread;
};

struct dibs_worker {
  /* Immutable after the start. */
  dibs_store *store;               /* held */
  const struct dibs__table *table; /* the user's, held; NULL: dibs' own */
  char *kind, *owner;
  char **phases;
  uint32_t phase_count, threads, prefetch;
  int64_t timeout_ms, poll_ms;
  dibs_work_fn work;
  void *user;
  dibs__thread *claimer, *keeper;
  struct worker_thread *workers;
  struct dibs__worker_lanes *lanes; /* NULL: without lanes */
  bool ended;                       /* its threads have ended; the thread that frees it only */

  struct dibs__listener listener; /* its word wakes the claimer */
  struct dibs__claim claim;       /* claimer only */
  dibs__word work_word;           /* wakes worker threads: a task is ready, or the worker stops */
  dibs__word keep_word;           /* wakes the keeper: an end came, or the worker stops */
  dibs__word held_word;           /* wakes threads that wait until nothing is held */

  dibs__mutex lock;
  struct dibs__held *ready_first, *ready_last; /* by `next`; with lanes: of each key (worker_lanes.c) */
  struct dibs__held *held;                     /* all that are claimed and not ended, by `after` */
  struct dibs__worker_end *ends_first, *ends_last;
  uint32_t ready, running, ends;
  uint32_t roused;    /* how often the listener was woken for another reason than new tasks */
  dibs__tick look_at; /* the claimer looks for tasks then, at the latest; NEVER: at the next poll */
  dibs__tick retry_at;
  uint32_t failed; /* requests of the keeper, one after the other */
  bool stopping;   /* no more claims; what is not begun is given back */
  bool claiming;   /* the claimer has not ended */
  bool closing;    /* the keeper ends when nothing is held */
  /* NEVER; or it is being freed: claims are not requested later.  While `closing`, ends are given up then. */
  dibs__tick give_up_at;
  dibs_worker_counts counts;
  dibs_error trouble;
};

static inline void dibs__worker_rouse(dibs__word *word, uint32_t count) {
  atomic_fetch_add(word, 1);
  dibs__word_wake(word, count, false);
}

/* The claimer, if it has something to do, or to wait for. */
void dibs__worker_rouse_claimer_locked(dibs_worker *w);
/* Gives back what was not begun. */
void dibs__worker_give_back_locked(dibs_worker *w, struct dibs__held *held);

/* ---- worker_lanes.c.  Of a worker with a topic only, unless they say otherwise ---- */

/* Joins the topic.  Blocks for I/O.  On failure the caller frees the worker. */
dibs_status dibs__lanes_join(dibs_worker *w, const dibs_worker_options *options, dibs_error *error);
/* Gives back what was not begun, and each lane as soon as nothing of it is held. */
void dibs__lanes_stop(dibs_worker *w);
/* Has the member left?  Waits for it until `by`.  Also without a topic: true. */
bool dibs__lanes_have_left(dibs_worker *w, dibs__tick by);
/* Sets lanes_assigned.  Also without a topic. */
void dibs__lanes_count(dibs_worker *w, dibs_worker_counts *counts);
/* What the member says of its latest request, if it failed.  Also without a topic. */
void dibs__lanes_trouble(dibs_worker *w, dibs_error *error);
/* After all threads of the worker have ended.  Also without a topic. */
void dibs__lanes_free(dibs_worker *w);

/* The claimer: how many tasks to claim now; with which lanes (false: it has none); what it got, of which *count were
 * not given back. */
uint32_t dibs__lanes_wanted_locked(const dibs_worker *w);
bool dibs__lanes_name_locked(dibs_worker *w);
void dibs__lanes_take_locked(dibs_worker *w, dibs_status status, dibs_task **tasks, size_t *count);
/* The claimer ends, and what it does not know of its latest claim it never learns. */
void dibs__lanes_end_claims_locked(dibs_worker *w);

/* The next task to begin; NULL: none is ready. */
struct dibs__held *dibs__lanes_begin_locked(dibs_worker *w);
/* The function has returned, before its verdict is queued.  If it is not DONE, the queue is given back. */
void dibs__lanes_judge_locked(dibs_worker *w, struct dibs__held *held, dibs_verdict verdict);
/* The end is known, before `held` is dropped.  UNKNOWN: it is not, and nobody tries again. */
void dibs__lanes_end_locked(dibs_worker *w, struct dibs__held *held, dibs_verdict verdict, dibs_status answer);
/* The store refused to extend the claim of `held`, or it may be over. */
void dibs__lanes_lose_locked(dibs_worker *w, struct dibs__held *held);
/* Nothing else of its key is held. */
bool dibs__lanes_is_last_locked(const struct dibs__held *held);
/* A claim is not held any more.  In doubt, the store may still have it, and nobody ends it. */
void dibs__lanes_drop_locked(dibs_worker *w, struct dibs__held *held);
void dibs__lanes_doubt_locked(dibs_worker *w, struct dibs__held *held);

#endif
