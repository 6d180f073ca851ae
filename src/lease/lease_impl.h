/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LEASE_LEASE_IMPL_H
#define DIBS_LEASE_LEASE_IMPL_H
/*
 * What the files of this folder share.
 *
 * A lease is what a caller has: a handle, a wait, a result.  A grant is what the store knows: an id, a position in the
 * queue or a right until an instant, a block of fences.  Usually a lease has one grant for its whole life; between
 * leases of one process the grant is handed on without the store (cohort.c).
 *
 * A grant has one request in flight at a time: `requested` names it, REQUEST_NOTHING is none.  Further work is
 * noted (`then_release`, a parked cohort) and done when the answer comes.
 *
 * One lock, store->lock, guards everything here but what is atomic.  It is never held across a call of the core that
 * may carry operations, nor across a callback.  Order: store->lock before the core's own.
 */
#include "base/heap.h"
#include "base/hist.h"
#include "base/map.h"
#include "handle/handle.h"
#include "lease/lease.h"

enum {
  CONFIRM_MS = 5,  /* how long a lease that began by an offer may be unconfirmed */
  RUN_MAX = 64,    /* hand-offs inside the process before others must have had a chance */
  RUN_MAX_MS = 10, /* and the time for it */
  RUN_EXTRA_MS =
      25, /* what a cohort requests beyond the ttl, so that a hand-off in the middle of a run has a whole ttl */
  RECHECK_MS = 1000,      /* a waiter repeats its request at least this often, */
  AHEAD_FAR = 32,         /* or, if at least so many are before it in the queue, */
  RECHECK_FAR_MS = 10000, /* this often: ten thousand that repeat it each second occupy the store */
  RECHECKS_AT_ONCE = 256, /* so that many waiters do not occupy the store for long */
  RETRY_FIRST_MS = 25     /* an unreachable or full store is tried again so soon, then less and less often */
};

enum phase {
  LEASE_LOCAL,      /* waits for a lease of this process (cohort) */
  LEASE_REQUESTING, /* its first request is in flight */
  LEASE_QUEUED,     /* waits in the store */
  LEASE_HELD,
  LEASE_RELEASING,
  LEASE_OVER /* `status` says how it ended */
};

enum requested { REQUEST_NOTHING, REQUEST_ACQUIRE, REQUEST_RENEW, REQUEST_RELEASE, REQUEST_CANCEL };

/* The callbacks of a lease; several may be due at once, and run in this order. */
enum { CALL_GRANTED = 1, CALL_RENEWED = 2, CALL_LOST = 4, CALL_RELEASED = 8 };

/* A renewal that a caller requests.  Those that wait for the grant's present request are sent together afterwards, as
 * one renewal with the ttl of the latest (lease.c). */
struct renewal {
  struct renewal *next; /* in lease->renewals, in the order of the calls */
  int64_t ttl_ms;       /* 0: the lease's */
  dibs_lease_fn done;   /* of dibs_renew_start; may be NULL */
  void *user;
  dibs_status status; /* once it is done */
  enum { RENEWAL_WAITS, RENEWAL_SENT, RENEWAL_DONE } state;
  bool blocking; /* its caller waits for it, and has its memory */
  bool keeps;    /* of dibs_release_after: when the store has renewed it, the handle ends and the lease stays */
};

struct cohort;

struct grant {
  struct dibs__map_node by_id;
  struct dibs__lease_op op; /* the carrier's while a request is in flight, but for op.id, which never changes */
  const char *tier;         /* NULL: the store itself */
  union {
    struct dibs__heap_node recheck; /* in `rechecks`, while it waits */
    struct dibs__heap_node loss;    /* in `losses`, while it is held */
  };
  struct dibs__heap_node renewal;
  union {
    struct grant *spare_next; /* while no lease uses it */
    dibs__tick until_else;    /* `until`, if the renewal in flight, which may shorten it, has no effect */
  };
  dibs_store *store;
  enum requested requested;
  uint32_t fails;
  int64_t ttl_ms;    /* of the request in flight; then the time that the store granted, from op.sent on */
  dibs_lease *lease; /* its lease; parked in its cohort: its latest, whose lease->grant is another or NULL */
  dibs_lease
      *requester; /* has the name and owner of the request in flight: the grant may be handed on before the answer */
  struct cohort *cohort;  /* NULL: alone */
  dibs__tick until;       /* surely ours before */
  dibs__tick store_until; /* the store may keep it until then, by its latest answer */
  dibs__fence fence;      /* the present one */
  uint32_t left;          /* fences after it in the block */
  uint32_t fresh_left;    /* of a block drawn later, from `fresh` on */
  dibs__fence fresh;
  uint32_t slot;
  /* Bits: ten thousand leases have as many grants. */
  bool waits : 1, held : 1; /* as the store sees it */
  bool then_release : 1;    /* when the answer comes */
  bool shown : 1;           /* its id is known outside: never handed on */
  bool again : 1;           /* an event came while a request was in flight: repeat it */
  bool unconfirmed : 1;     /* it began by an offer: the store waits for a renewal */
  bool adopted : 1;         /* its mandate is a guess until the store has confirmed it */
  bool follows : 1;         /* is requested when the earlier one with its id has ended */
  bool followed : 1;        /* another grant follows, or did */
};

struct dibs_lease {
  dibs_store *store;
  _Atomic uint32_t refs; /* handles, and whatever inside still points here */
  _Atomic uint32_t handles;
  /* Immutable after start. */
  char *owner; /* NULL: the store's */
  uint32_t mode, slots, flags;
  bool own_id;    /* the caller drew the id */
  bool id_shared; /* dibs__lease_share_id */
  bool blocking;
  dibs_lease_fn done, on_lost;
  void *done_user, *lost_user;
  /* Atomic: read without the lock. */
  _Atomic uint32_t phase;
  _Atomic int64_t until_ns;       /* alive before; 0: lost */
  _Atomic int64_t store_until_ns; /* as grant->store_until; 0: not held */
  _Atomic uint64_t fence;
  const char *_Atomic tier;  /* NULL: the store itself */
  dibs__word word;           /* goes up when a blocked caller must read the lease again */
  _Atomic uint32_t sleepers; /* callers that sleep, or are about to, until the word differs from what they saw */
  /* Guarded by store->lock. */
  int64_t ttl_ms;
  dibs_status status, released;
  dibs_status waited; /* the status of the wait; not changed any more once the phase is HELD or beyond */
  bool tries;         /* does not wait */
  bool counted;       /* in store->leases->waiting */
  /* Not OK: it leaves the store's queue, and its wait ends with this when its grant has ended there, or at wait.at. */
  dibs_status leaves;
  struct grant *grant;
  struct cohort *cohort;
  dibs_lease *next_local; /* in the cohort's line */
  dibs_lease *all_prev, *all_next;
  struct dibs__heap_node wait; /* in `waits`, if it completes later; `at`, when the wait ends, is set in any case */
  dibs__tick began;            /* to be acquired, later to be released at the store */
  dibs__id id;
  uint32_t slot;
  uint32_t calls; /* due: CALL_* */
  struct dibs__due_call due;
  struct renewal *renewals;
  dibs_lease_fn release_done;
  void *release_user;
  char name[];
};

/* No caller waits for the answer of its request. */
static inline bool lease_left(const dibs_lease *lease) {
  return lease->leaves != DIBS_OK || atomic_load(&lease->phase) == LEASE_OVER;
}

static inline void lease_time_over(dibs_lease *lease) {
  atomic_store(&lease->until_ns, 0);
  atomic_store(&lease->store_until_ns, 0);
}

static inline bool grant_parked(const struct grant *grant) {
  return grant->lease->grant != grant;
}

/* The leases of this process for one exclusive name: one at the front, which has or requests the grant, and a line.
 * Each name that is held has one, so it is small. */
struct cohort {
  struct dibs__map_node by_name;
  dibs_lease *first, *last;               /* the line */
  struct grant *grant;                    /* the front's, or parked */
  dibs__tick began, requested_at;         /* of `run`; when its latest renewal was requested */
  struct cohort *lined_prev, *lined_next; /* in store->leases->lined, while the line is not empty */
  uint32_t waiting : 31;                  /* in the line */
  uint32_t others : 1;                    /* others may wait in the store */
  uint8_t run, requested_run;             /* hand-offs since `began`, and as they were at `requested_at` */
  char name[];
};
_Static_assert(RUN_MAX < UINT8_MAX, "counted in a byte");

/* The leases of one store.  Guarded by store->lock. */
struct dibs__leases {
  struct dibs__map grants;  /* by id */
  struct dibs__map cohorts; /* by name */
  struct dibs__heap waits, rechecks, renewals, losses;
  struct grant *spares;
  uint32_t grants_owed; /* to be freed when they end: their lease went before */
  uint32_t count;       /* of leases that exist: there are as many grants, and positions in every heap */
  dibs_lease *all;
  uint32_t leaving; /* waits that end when the store has answered */
  uint64_t granted, handed_off, lost, renewed, waiting, held;
  uint64_t busy, timeouts, failed, lost_in_time;
  struct dibs__lease_grants by_tier[DIBS__LEASE_TIERS];
  struct dibs__hist acquiring, releasing; /* how long each that answered OK took */

  /* watch.c */
  dibs__thread *watchdog, *loss_timer;
  dibs__word watchdog_word, loss_word;
  dibs__tick watchdog_until, loss_until; /* when they wake by themselves */
  dibs__tick stuck_at; /* not 0: the watchdog carries requests or tidies; if it still does then, others renew */
  bool untidy, stopping, served;
  dibs__tick serve_at; /* when the store is to be served; 0: it is, or nobody needs it */

  /* list.c */
  struct job *jobs; /* shows and breaks that complete later */
  dibs__thread *helper;
  dibs__word helper_word;

  /* lines.c */
  struct cohort *lined; /* those with a line */
  struct lines *lines;  /* what is published of them; NULL: nothing was yet */
  dibs__tick lines_at;  /* when to publish them again; 0: there are none */
};

/* What a decision under the lock leaves to be done after it. */
enum { WAKES_MAX = 8 };
struct deferred {
  struct dibs__op *mine, *mine_last; /* the caller carries these and waits */
  struct dibs__op *rest, *rest_last; /* another thread does */
  dibs__word *wakes[WAKES_MAX];
  uint32_t wake_count;
  dibs__tick due; /* not 0: a timer of the receiver's was set to this; it may be asleep for longer */
};

/* ---- leases.c ---- */
/* INVALID inside a transaction of the user's. */
dibs_status dibs__store_leases(dibs_store *store, const char *name, dibs_error *error);

/* ---- list.c ---- */
/* Ends the shows and breaks that complete later, with CANCELLED; the store is closing.  Waits for the call in flight.
 */
void dibs__jobs_cancel(dibs_store *store);
/* How a name is held, which may be another way than when the store refused a lease. */
struct held_as {
  bool known;      /* it could be read */
  bool other_mode; /* it has holders, which are not counted */
  uint32_t slots;  /* of its holders; 0: it has none, or they are not counted */
};
/* Of the name of a counted lease.  Blocks for I/O. */
struct held_as dibs__held_as(dibs_lease *lease);
/* INVALID: the name is, or was, held with another number of slots, or it is held by the lease's id in another mode. */
dibs_status dibs__held_otherwise(const dibs_lease *lease, struct held_as held, dibs_error *error);

/* ---- watch.c ---- */
void dibs__deferred_mine(struct deferred *deferred, struct dibs__op *op);
void dibs__deferred_finish(struct deferred *deferred, struct dibs__op *op);
void dibs__deferred_wake(dibs_store *store, struct deferred *deferred, dibs__word *word); /* the word goes up now */
/* The lease's word goes up, and its sleepers are woken.  A caller that carries its own request, as a lone caller does,
 * is none of them. */
void dibs__deferred_tell(struct deferred *deferred, dibs_lease *lease);
/* Sleeps until the lease's word is not `seen`, or `by`, which it answers false to. */
bool dibs__lease_sleep(dibs_lease *lease, uint32_t seen, dibs__tick by);
/* Not under the lock.  Wakes, starts the rest, carries what is mine until `by`; false: it left before the answers. */
bool dibs__deferred(dibs_store *store, struct deferred *deferred, dibs__tick by);
/* The same, but everything is started and nothing waited for. */
void dibs__deferred_start(dibs_store *store, struct deferred *deferred);
/* The same, in the middle of a batch of answers: the notification of callbacks follows at its end. */
void dibs__deferred_answer(dibs_store *store, struct deferred *deferred);

/* ---- lease.c ---- */
/* Sends the renewals that wait, if the grant has no request in flight; they belong into `deferred`. */
void dibs__renewals_send_locked(dibs_lease *lease, struct deferred *deferred, bool mine);
/* The renewals that were sent are done; with `all`, those that wait, too. */
void dibs__renewals_end_locked(dibs_lease *lease, dibs_status status, bool all, struct deferred *deferred);
/* The renewal of a dibs_release_after is in flight. */
bool dibs__renewal_keeps_locked(const dibs_lease *lease);
/* The handle has the lease no more, and the store keeps it until its ttl ends.  The grant ends here. */
void dibs__leave_to_store_locked(struct grant *grant, struct deferred *deferred);
/* Options as given, also by a caller that was built against a shorter struct; defaults filled in. */
dibs_lease_options dibs__lease_options(const dibs_lease_options *given);
dibs_status dibs__lease_make(dibs_store *store, const char *name, const dibs_lease_options *options, dibs_lease **lease,
                             dibs_error *error);
void dibs__lease_drop_locked(dibs_lease *lease);
dibs_status dibs__lease_enter(dibs_lease *lease, const char *call, dibs_error *error);
int64_t dibs__margin_ms(int64_t ttl_ms);

/* ---- cohort.c ---- */
struct grant *dibs__grant_take_locked(dibs_lease *lease);
void dibs__grant_end_locked(struct grant *grant, struct deferred *deferred);
/* An id that the caller drew belongs to one name, and in this process to one handle at a time.  A grant that is being
 * given up (its release or cancel is in flight, or a request whose caller has left) would remove what a new request
 * with the same id finds.  So the new request follows when the first has ended. */
enum id_use { ID_FREE, ID_ENDING /* *before */, ID_HAS_HANDLE, ID_OTHER_NAME };
enum id_use dibs__id_use_locked(dibs_store *store, const char *name, const dibs__id *id, struct grant **before);
dibs_status dibs__id_refused(enum id_use use, const char *name, dibs_error *error); /* INVALID */

/* ---- acquire.c: requests to the store, and the effect of their answers ---- */
/* Prepares the request, which then goes into a `struct deferred`. */
struct dibs__op *dibs__send_acquire_locked(struct grant *grant);
struct dibs__op *dibs__send_renew_locked(struct grant *grant, int64_t ttl_ms, uint32_t want_block);
struct dibs__op *dibs__send_release_locked(struct grant *grant);
struct dibs__op *dibs__send_cancel_locked(struct grant *grant);

/* ---- cohort.c: what happens to a lease ---- */
/* The grant is its lease's: held from now on, surely until `until`. */
void dibs__hold_locked(struct grant *grant, dibs__fence first, uint32_t block, dibs__tick until,
                       struct deferred *deferred);
/* The wait of this lease is over. */
void dibs__wait_over_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred);
/* The grant is lost. */
void dibs__lose_locked(struct grant *grant, struct deferred *deferred);
/* The lease leaves whatever it waits for.  If that is the store's queue, its wait ends when the store has confirmed
 * that it left, LEAVE_MS later at most; the second call from then on ends it at once. */
void dibs__leave_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred);
/* The same, and its wait ends now. */
void dibs__leave_now_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred);
/* The lease is released: handed on inside the process, or by a request in deferred->mine. */
void dibs__release_locked(dibs_lease *lease, struct deferred *deferred);
/* The release is done, for the lease. */
void dibs__released_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred);
/* The store's side of a grant is given up, also while a request is in flight. */
void dibs__give_up_locked(struct grant *grant, struct deferred *deferred, bool mine);
/* Its caller left, and others may have its id: a lease that it has is not released. */
bool dibs__stays_with_others(const struct grant *grant);
/* Waits whose time is over end, or leave the store's queue. */
void dibs__end_waits_locked(dibs_store *store, dibs__tick now, struct deferred *deferred);
void dibs__lease_event(void *context, const struct dibs__event *event);
dibs__tick dibs__lease_timers(void *context, dibs__tick now);

/* ---- cohort.c ---- */
/* Joins the cohort of the name.  *local: it waits in line; else it is the front, and must request the grant.  false: no
 * memory. */
bool dibs__cohort_join_locked(dibs_lease *lease, bool *local, struct deferred *deferred);
bool dibs__cohort_has_locked(dibs_store *store, const char *name);
/* The grant is the cohort's no more: the next in line sends its own request, or the cohort ends. */
void dibs__cohort_part_locked(struct grant *grant, struct deferred *deferred, bool mine);
/* A renewal was answered OK. */
void dibs__cohort_renewed_locked(struct cohort *cohort, bool others, struct deferred *deferred);

/* ---- lines.c: waiters in the lines of other processes ---- */
void dibs__lines_begin_locked(struct cohort *cohort);                  /* its line has a first waiter, */
void dibs__lines_end_locked(dibs_store *store, struct cohort *cohort); /* and none any more */
/* Publishes the lines that are old enough, takes back what was published of others, sets store->leases->lines_at. */
void dibs__lines_publish_locked(dibs_store *store, dibs__tick now, struct deferred *deferred);
struct line_row {
  const char *name, *owner;
  int64_t ttl_ms, age_ms; /* 0, -1: not known */
};
struct lines_seen {
  struct line_row *rows; /* in line, name by name */
  size_t count, capacity;
  char *text;
};
typedef bool (*lines_wanted_fn)(const char *name, const void *user);
/* What the other processes have published; nothing if the store that keeps it does not answer.  Blocks for I/O.  false:
 * no memory.  To be freed in any case. */
bool dibs__lines_read(dibs_store *store, lines_wanted_fn wanted, const void *user, struct lines_seen *seen);
void dibs__lines_free(struct lines_seen *seen);

/* ---- watch.c ---- */
void dibs__watch_locked(struct grant *grant);
void dibs__watch_events_locked(dibs_lease *lease); /* it is held: its on_lost needs a thread that receives events */
void dibs__renew_soon_locked(struct grant *grant); /* if it is still held in a moment */
bool dibs__watch_ready_locked(dibs_store *store);  /* a thread will watch; false: none can be started */
void dibs__watch_loss_locked(struct grant *grant); /* `until` has changed */
/* The loss timer must act at `by`: a wait ends then, also if the receiver carries a request that is not answered; or a
 * line is old enough to be published. */
void dibs__watch_by_locked(dibs_store *store, dibs__tick by);
void dibs__unwatch_locked(struct grant *grant);
void dibs__watch_stop(dibs_store *store);
void dibs__lease_untidy(void *context);

/* ---- watch.c ---- */
void dibs__call_locked(dibs_lease *lease, uint32_t call);
/* A callback is due, and no thread could be started for it: the loss timer tries again. */
void dibs__watch_help_locked(dibs_store *store);

#endif
