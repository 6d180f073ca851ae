/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LEASE_ROOM_H
#define DIBS_LEASE_ROOM_H
/*
 * What the files of this room share.
 *
 * A lease is what a caller has: a handle, a wait, a result.  A grant is what the store knows: an id, a place in the
 * queue or a right until an instant, a block of fences.  Usually a lease has one grant for its whole life; between
 * leases of one process the grant is handed on without the store (cohort.c).
 *
 * A grant asks one question at a time: `asked` says which, ASK_NOTHING that none travels.  Whatever else is wanted
 * meanwhile is noted (`then_release`, a parked cohort) and done when the answer comes.
 *
 * One lock, store->lock, guards everything here but what is atomic.  It is never held across a call of the core that
 * may carry operations, nor across a callback.  Order: store->lock before the core's own.
 */
#include "base/heap.h"
#include "base/hist.h"
#include "base/map.h"
#include "store/core.h"

enum {
  CONFIRM_MS = 5,    /* how long a lease that began by an offer may be unconfirmed */
  RUN_MAX = 64,      /* hand-offs inside the process before others must have had a chance */
  RUN_MAX_MS = 10,   /* and the time for it */
  RUN_EXTRA_MS = 25, /* what a cohort asks beyond the ttl, so that a hand-off in the middle of a run has it whole */
  RECHECK_MS = 1000, /* a waiter asks again at least this often */
  RECHECKS_AT_ONCE = 256, /* so that a crowd of waiters does not hold the store for long */
  LEAVE_MS = 100,         /* how much later than asked a blocking call may return when the store does not answer */
  RECHECK_FAILS = 30      /* in a row, then the wait ends with the trouble */
};

enum phase {
  LEASE_LOCAL,  /* waits for a lease of this process (cohort) */
  LEASE_ASKING, /* its first question travels */
  LEASE_QUEUED, /* waits in the store */
  LEASE_HELD,
  LEASE_RELEASING,
  LEASE_OVER /* `status` says how it ended */
};

enum asked { ASK_NOTHING, ASK_ACQUIRE, ASK_RENEW, ASK_RELEASE, ASK_CANCEL };

/* What is to be called back; several may be due at once, and are called in this order. */
enum { CALL_GRANTED = 1, CALL_LOST = 2, CALL_RELEASED = 4 };

struct cohort;

struct grant {
  struct dibs__map_node by_id;
  struct dibs__lease_op op; /* the carrier's while a question travels, but for op.id, which nobody changes */
  uint32_t slot;
  const char *tier; /* NULL: the store itself */
  union {
    struct dibs__heap_node recheck; /* in `rechecks`, while it waits */
    struct dibs__heap_node loss;    /* in `losses`, while it is held */
  };
  struct dibs__heap_node renewal;
  struct grant *spare_next;
  dibs_store *store;
  enum asked asked;
  uint32_t fails;
  int64_t ttl_ms;        /* of the question that travels, or of the latest grant or renewal */
  dibs_lease *lease;     /* whose it is, or, parked in its cohort, was: then lease->grant is another or NULL */
  dibs_lease *asker;     /* lends name and owner to the question that travels: the grant may be handed on meanwhile */
  struct cohort *cohort; /* NULL: alone */
  dibs__tick until;      /* surely ours before */
  dibs__fence fence;     /* the present one */
  uint32_t left;         /* fences behind it in the block */
  uint32_t fresh_left;   /* of a block drawn meanwhile, from fresh on */
  dibs__fence fresh;
  bool waits, held;  /* as the store sees it */
  bool then_release; /* when the answer comes */
  bool shown;        /* its id is known outside: never handed on */
  bool again;        /* an event came while a question travelled: ask once more */
  bool unconfirmed;  /* it began by an offer: the store waits for a renewal */
  bool adopted;      /* its mandate is a guess until the store has confirmed it */
};

struct dibs_lease {
  dibs_store *store;
  _Atomic uint32_t refs; /* handles, and whatever inside still points here */
  _Atomic uint32_t handles;
  /* Immutable after start. */
  char *owner; /* NULL: the store's */
  uint32_t mode, slots, flags;
  bool own_id; /* the caller drew the id */
  bool blocking;
  dibs_lease_fn done, on_lost;
  void *done_user, *lost_user;
  /* Atomic: read without the lock. */
  _Atomic uint32_t phase;
  _Atomic int64_t until_ns; /* alive before; 0: lost */
  _Atomic uint64_t fence;
  const char *_Atomic tier;  /* NULL: the store itself */
  dibs__word word;           /* goes up when a blocked caller should look */
  _Atomic uint32_t sleepers; /* callers that sleep, or are about to, until the word differs from what they saw */
  /* Guarded by store->lock. */
  int64_t ttl_ms;
  dibs_status status, released, renewed;
  dibs_status waited; /* what the wait came to; not changed any more once the phase is HELD or beyond */
  bool tries;         /* does not wait */
  bool counted;       /* in store->waiting */
  bool detached;
  struct grant *grant;
  struct cohort *cohort;
  dibs_lease *next_local; /* in the cohort's line */
  dibs_lease *all_prev, *all_next;
  struct dibs__heap_node wait; /* in `waits`, if it completes later; `at`, when the wait ends, stands in any case */
  dibs__tick began;            /* to be acquired, later to be released at the store */
  dibs__id id;
  uint32_t slot;
  uint32_t calls; /* due: CALL_* */
  dibs_lease *next_call;
  dibs_lease_fn release_done;
  void *release_user;
  char name[];
};

static inline bool grant_parked(const struct grant *grant) {
  return grant->lease->grant != grant;
}

/* The leases of this process for one exclusive name: one at the front, which has or asks for the grant, and a line. */
struct cohort {
  struct dibs__map_node by_name;
  dibs_lease *first, *last;   /* the line */
  struct grant *grant;        /* the front's, or parked */
  uint32_t run;               /* hand-offs since `began` */
  uint32_t asked_run;         /* and as they were when the latest renewal was asked, */
  dibs__tick began, asked_at; /* at which time */
  bool others;                /* others may wait in the store */
  char name[];
};

struct dibs_store {
  /* Immutable after open. */
  struct dibs__core *core;
  dibs_store *outer; /* of dibs_inside: the store that it belongs to; NULL otherwise */
  char *owner;
  char *shown; /* the URI */
  uint32_t flags;
  uint64_t generation;
  bool cohorts_allowed;
  int bell; /* DIBS_STORE_LOOP */

  _Atomic uint32_t refs;
  dibs__word callers;       /* threads inside a call that needs the core: dibs_close waits for them */
  _Atomic bool closing;     /* set under the lock */
  dibs__mutex lock;         /* guards what follows */
  struct dibs__map grants;  /* by id */
  struct dibs__map cohorts; /* by name */
  struct dibs__heap waits, rechecks, renewals, losses;
  struct grant *spares;
  uint32_t grants_owed; /* to be freed when they end: their lease went before */
  uint32_t leases;      /* that exist: as many grants do, and room in every heap */
  dibs_lease *all;
  uint32_t flying;   /* questions that travel */
  dibs__word landed; /* goes up when one lands while closing */
  uint64_t granted, handed_off, lost, renewed, waiting, held;
  uint64_t busy, timeouts, failed, stale;
  struct dibs__hist acquiring, releasing; /* how long it took, of those that came to be OK */

  /* watch.c */
  dibs__thread *watchdog, *loss_timer;
  dibs__word watchdog_word, loss_word;
  dibs__tick watchdog_until, loss_until; /* when they look by themselves */
  bool untidy, stopping, served;
  dibs__tick serve_at; /* when the store is to be served; 0: it is, or nobody needs it */

  /* dispatch.c */
  dibs__thread *dispatcher;
  dibs__word dispatch_word;
  dibs_lease *first_call, *last_call;
  _Atomic bool calls_due;   /* somebody must be told of them, once, after the present decision or batch */
  _Atomic uintptr_t lender; /* the thread in dibs_dispatch: what it starts it carries itself, at the end */
};

/* What a decision under the lock leaves to be done after it. */
enum { WAKES_MAX = 8 };
struct after {
  struct dibs__op *mine, *mine_last; /* the caller carries these and waits */
  struct dibs__op *rest, *rest_last; /* somebody else does */
  dibs__word *wakes[WAKES_MAX];
  uint32_t wake_count;
  dibs__tick due; /* not 0: a timer of the receiver's was set to this; it may be asleep for longer */
};

/* ---- store.c ---- */
dibs_status dibs__fail(dibs_error *error, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
dibs_status dibs__fine(dibs_error *error);
/* INVALID if the store can't be used here: NULL, closed, or of another process. */
dibs_status dibs__store_usable(dibs_store *store, const char *call, dibs_error *error);
/* The same, and until dibs__exit the store is not taken away: dibs_close waits. */
dibs_status dibs__enter(dibs_store *store, const char *call, dibs_error *error);
void dibs__exit(dibs_store *store); /* the store may be gone after it */
void dibs__store_drop(dibs_store *store);
/* A handle for a core of dibs__core_inside, which becomes its own. */
dibs_status dibs__store_inside(dibs_store *outer, struct dibs__core *core, dibs_store **inside, dibs_error *error);
/* INVALID inside a transaction of the user's. */
dibs_status dibs__store_leases(dibs_store *store, const char *name, dibs_error *error);
/* The words for a status that came from the store, about a name. */
dibs_status dibs__explain(dibs_store *store, dibs_status status, const char *what, const char *name, dibs_error *error);

/* ---- after.c ---- */
void dibs__after_mine(struct after *after, struct dibs__op *op);
void dibs__after_rest(struct after *after, struct dibs__op *op);
void dibs__after_wake(dibs_store *store, struct after *after, dibs__word *word); /* the word goes up now */
/* The lease's word goes up; its sleepers are woken, if there are any: who is carried along with its own question, as a
 * lone caller is, sleeps elsewhere or not at all. */
void dibs__after_tell(struct after *after, dibs_lease *lease);
/* Sleeps until the lease's word is not `seen`, or `by`, which it answers false to. */
bool dibs__lease_sleep(dibs_lease *lease, uint32_t seen, dibs__tick by);
/* Not under the lock.  Wakes, starts the rest, carries what is mine until `by`; false: it left before the answers. */
bool dibs__after(dibs_store *store, struct after *after, dibs__tick by);
/* The same, but everything is started and nothing waited for. */
void dibs__after_start(dibs_store *store, struct after *after);
/* The same, in the middle of a batch of answers: callbacks are told of at its end. */
void dibs__after_answer(dibs_store *store, struct after *after);

/* ---- handle.c ---- */
/* Options as given, also by a caller that was built against a shorter struct; defaults filled in. */
dibs_lease_options dibs__lease_options(const dibs_lease_options *given);
dibs_status dibs__lease_make(dibs_store *store, const char *name, const dibs_lease_options *options, dibs_lease **lease,
                             dibs_error *error);
void dibs__lease_hold(dibs_lease *lease); /* one more reference from inside */
void dibs__lease_drop_locked(dibs_lease *lease);
dibs_status dibs__lease_enter(dibs_lease *lease, const char *call, dibs_error *error);
int64_t dibs__margin_ms(int64_t ttl_ms);

/* ---- grant.c ---- */
struct grant *dibs__grant_take_locked(dibs_lease *lease);
void dibs__grant_end_locked(struct grant *grant);
void dibs__grant_give_locked(struct grant *grant, dibs_lease *lease);
struct grant *dibs__grant_find_locked(dibs_store *store, const dibs__id *id);

/* ---- ask.c: questions to the store, and what their answers do ---- */
/* Prepares the question; it belongs into an `after`. */
struct dibs__op *dibs__ask_acquire_locked(struct grant *grant);
struct dibs__op *dibs__ask_renew_locked(struct grant *grant, int64_t ttl_ms, uint32_t want_block);
struct dibs__op *dibs__ask_release_locked(struct grant *grant);
struct dibs__op *dibs__ask_cancel_locked(struct grant *grant);

/* ---- turns.c: what happens to a lease ---- */
/* The grant is its lease's: held from now on, surely until `until`. */
void dibs__hold_locked(struct grant *grant, dibs__fence first, uint32_t block, dibs__tick until, struct after *after);
/* The wait of this lease is over. */
void dibs__wait_over_locked(dibs_lease *lease, dibs_status status, struct after *after);
/* The grant is lost. */
void dibs__lose_locked(struct grant *grant, struct after *after);
/* The lease leaves whatever it waits for. */
void dibs__leave_locked(dibs_lease *lease, dibs_status status, struct after *after);
/* The lease is released: handed on inside the process, or by a question in after->mine. */
void dibs__release_locked(dibs_lease *lease, struct after *after);
/* The release is done, for the lease. */
void dibs__released_locked(dibs_lease *lease, dibs_status status, struct after *after);
/* The store's side of a grant is given up, whatever it is asked right now. */
void dibs__give_up_locked(struct grant *grant, struct after *after, bool mine);
void dibs__room_event(void *room, const struct dibs__event *event);
dibs__tick dibs__room_timers(void *room, dibs__tick now);

/* ---- cohort.c ---- */
/* Joins the cohort of the name.  *local: it waits in line; else it is the front and must ask.  false: no memory. */
bool dibs__cohort_join_locked(dibs_lease *lease, bool *local, struct after *after);
bool dibs__cohort_has_locked(dibs_store *store, const char *name);
void dibs__cohort_leave_locked(dibs_lease *lease); /* the line */
/* The grant is parked: hands it on, renews it, or gives it back. */
void dibs__cohort_pass_locked(struct cohort *cohort, struct after *after);
/* The grant is the cohort's no more: the next in line asks anew, or the cohort ends. */
void dibs__cohort_part_locked(struct grant *grant, struct after *after, bool mine);
/* A renewal was answered OK. */
void dibs__cohort_renewed_locked(struct cohort *cohort, bool others, struct after *after);

/* ---- watch.c ---- */
void dibs__watch_locked(struct grant *grant);
bool dibs__watch_ready_locked(dibs_store *store);  /* there will be somebody to watch; false: no thread is to be had */
void dibs__watch_help_locked(dibs_store *store);   /* a thread could not be started */
void dibs__watch_loss_locked(struct grant *grant); /* `until` has changed */
void dibs__unwatch_locked(struct grant *grant);
void dibs__watch_stop(dibs_store *store);
void dibs__room_untidy(void *room);

/* ---- dispatch.c ---- */
void dibs__call_locked(dibs_lease *lease, uint32_t call);
/* There will be somebody to call back.  false: no thread is to be had. */
bool dibs__calls_ready_locked(dibs_store *store);
void dibs__room_handed(void *room); /* tells that callbacks wait, if that is due */
void dibs__dispatch_stop(dibs_store *store);

#endif
