/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_TIERS_PARTS_H
#define DIBS_TIER_TIERS_PARTS_H
/*
 * What the files of the tiered driver share.
 *
 * Locks, in this order: tiers.control (talks to the anchor and repairs mandates, one at a time), tier.gate (opening a
 * tier's store, connecting where its driver wants one at a time), tiers.lock (the copy of the state, breakers, counts;
 * nothing is called under it), tiers.ears (what happened).
 */
#include "store/registry.h"
#include "tier/tiers.h"

#include <stdlib.h>
#include <string.h>

enum {
  TIERS_ALL = DIBS__URI_TIERS + 1, /* with the memory of the process */
  TIERS_EVENTS = 1024,
  TIERS_BATCH = 256,
  TIERS_SESSIONS = 5,
  TIERS_TIMEOUT_MS = 500,  /* of a batch at a tier before the last */
  TIERS_RETRY_MS = 100,    /* who waits for a tier that does not answer asks again so soon; the control thread too */
  TIERS_HEAL_ROUNDS = 12,  /* each may lose a race for the record */
  TIERS_CONTROL_MS = 2000, /* for what the control thread asks of the anchor */
  TIERS_TROUBLE = 200
};

struct tiers;

/* tiers_turn.c: a lock that is held across calls to stores. */
struct turn {
  dibs__mutex lock; /* guards `taken` */
  bool taken;
  dibs__word word; /* goes up when it ends */
};

struct tier {
  struct tiers *all;
  uint32_t nth;
  const struct dibs__uri *uri; /* NULL: the memory of the process */
  struct turn gate;            /* guards opening and, for some drivers, connecting */
  struct dibs__chain chain;
  struct dibs__dstore *store;      /* set once, under the gate and the lock */
  _Atomic uint32_t caps, families; /* 0: it was never reached */
  /* Guarded by tiers.lock. */
  struct dibs__breaker breaker;
  struct dibs__hist took; /* of batches that were answered */
  uint64_t operations, failures;
  bool reached, ours;        /* the latest call; it failed for our own password or configuration */
  dibs__status latest;       /* what that came to */
  dibs__tick used, answered; /* by callers' operations; by anything */
  bool timed;
  int64_t ahead_ms; /* its clock, of ours */
  char trouble[TIERS_TROUBLE];
  /* tiers_events.c */
  dibs__thread *ear; /* guarded by ears until leaving */
  _Atomic bool hears;
};

/* A bucket's mandate as it is used here. */
struct here {
  uint32_t tier;
  dibs__mandate mandate;
  int64_t from; /* the anchor's clock: nothing is granted before */
};

struct tiers {
  struct dibs__dstore base;
  /* Immutable after open. */
  uint32_t count, last;
  const char *schemes[DIBS__URI_TIERS];
  struct dibs__uri kept_uri;
  const struct dibs__uri *uri; /* that */
  char *module_path;           /* NULL: the default */
  dibs__id client;
  char owner[DIBS_OWNER_MAX + 1];
  int64_t timeout_ms, dwell_ms;
  int32_t strictness; /* asked for; -1: not */
  bool least_strict;  /* asked for */

  struct tier tiers[TIERS_ALL];

  struct turn control;
  /* Guarded by control: sessions of our own. */
  struct dibs__session *own[TIERS_ALL];
  struct dibs__session *probes[TIERS_ALL]; /* the control thread's */

  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__tiers_state state;
  bool known;            /* the state is there */
  uint64_t version;      /* of the record; 0: not read yet */
  dibs__tick confirmed;  /* the copy was what stood, at least then; 0: never */
  int64_t ahead_ms;      /* the anchor's clock, less ours, at least */
  int64_t ahead_most_ms; /* and at most */
  bool local;            /* all is on the memory of the process */
  dibs__mandate local_mandate;
  struct here here[DIBS__BUCKETS];
  struct dibs__tiers_tally tally;
  dibs__tick tallied;
  uint32_t seen_epoch, refused_epoch; /* a record remembers the one, and refused the other */
  int64_t longest_ms;                 /* that was asked for here */
  _Atomic uint64_t counts[DIBS__M_COUNT];

  /* The control thread. */
  dibs__thread *thread;
  dibs__word kicked;
  _Atomic bool runs, stopping, leaving, disbanded;

  /* What happened. */
  dibs__mutex ears;
  dibs__word rung;
  bool woken, overflow;
  uint32_t event_first, event_count;
  struct dibs__event events[TIERS_EVENTS];
};

struct tiers_session {
  struct dibs__session base;
  bool inside;                            /* attached to a transaction of the user's at the anchor */
  struct dibs__session *inner[TIERS_ALL]; /* NULL: not connected now */
  uint32_t where[TIERS_BATCH];            /* of the batch under way */
  uint64_t tickets[TIERS_BATCH];          /* as they were asked */
  struct dibs__op *ops[TIERS_BATCH];
};

static inline struct tiers *tiers_of(struct dibs__dstore *store) {
  return (struct tiers *)store;
}
static inline int64_t tiers_ms(dibs__tick at) {
  return at.ns / DIBS__NS_PER_MS;
}
static inline void tiers_count(struct tiers *t, enum dibs__tiers_metric what, uint64_t by) {
  if (by) atomic_fetch_add_explicit(&t->counts[what], by, memory_order_relaxed);
}
static inline bool tiers_config_trouble(dibs__status status) {
  return status != DIBS_OK && status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN;
}

/* ---- tiers_turn.c ---- */

/* false: it was not to be had until `by`. */
bool dibs__turn_take(struct turn *turn, dibs__tick by);
void dibs__turn_end(struct turn *turn);

/* ---- tiers_reach.c ---- */

/* Connects *session if it is NULL, opening the tier's store if need be; runs; disconnects it if it is dead.  As run()
 * answers, with words that name the tier; UNAVAILABLE at once while the breaker is open.  `ops` NULL: connects only. */
dibs__status dibs__tier_call(struct tier *tier, struct dibs__session **session, struct dibs__op *const ops[],
                             size_t count, dibs__tick by, struct dibs__said *said);
void dibs__tier_hang_up(struct tier *tier, struct dibs__session **session);
void dibs__tier_close(struct tier *tier);
/* Would a call be let through?  Lock held. */
bool dibs__tier_open_locked(const struct tier *tier);

/* ---- tiers_anchor.c: control held, but for what says otherwise ---- */

/* Reads the state.  OK; NOT_FOUND: none was ever written.  What was read is adopted. */
dibs__status dibs__tiers_load(struct tiers *t, dibs__tick by, struct dibs__said *said);
/* Writes it if nobody else did: OK (adopted), CONFLICT; UNKNOWN: it may be written, and is nobody's. */
dibs__status dibs__tiers_save(struct tiers *t, const struct dibs__tiers_state *state, uint64_t version, dibs__tick by,
                              struct dibs__said *said);
/* Tells of us, reads the state and what others tell, in one trip.  `clients`: malloc'd, may be NULL. */
dibs__status dibs__tiers_sync(struct tiers *t, dibs__tick by, struct dibs__tiers_client **clients, size_t *count,
                              struct dibs__said *said);
void dibs__tiers_leave(struct tiers *t, dibs__tick by);
/* A copy, and its version.  Any thread. */
uint64_t dibs__tiers_copy(struct tiers *t, struct dibs__tiers_state *state);
/* The anchor's clock is at least that.  Any thread. */
int64_t dibs__tiers_now(struct tiers *t);

/* ---- tiers_heal.c ---- */

/* An epoch tells what it is, for who finds it at a tier while the anchor is away: a mandate, fenced or strict, by what
 * is left when it is divided by 4; an odd one, that the bucket was moved away from there. */
enum { DIBS__KIND_FENCED = 0, DIBS__KIND_STRICT = 2 };

/* What makes it necessary. */
struct heal {
  uint32_t found[DIBS__BUCKETS]; /* the bucket was found wanting under this epoch, plus one; 0: it was not */
  uint32_t spent[DIBS__BUCKETS]; /* this epoch of the bucket is used up; 0: none */
  uint32_t above;                /* all epochs must be above this; 0: need not */
  uint32_t only;                 /* that is about buckets of this epoch; 0: about all */
  bool by_hand;                  /* the next epoch of all, however far above */
};
/* Looks what the tiers have, makes what mandates are needed, installs them.  Takes control.  OK: what stands is
 * installed, as far as the tiers can be reached.  Nothing is done if all that was found wanting has changed since. */
dibs__status dibs__tiers_heal(struct tiers *t, const struct heal *why, dibs__tick by, struct dibs__said *said);
/* The same, control held; `change` (may be NULL) alters the state first, with `arg`; what it answers other than OK
 * ends it. */
dibs__status dibs__tiers_change(struct tiers *t, const struct heal *why,
                                dibs__status (*change)(struct dibs__tiers_state *state, void *arg,
                                                       struct dibs__said *said),
                                void *arg, dibs__tick by, struct dibs__said *said);

/* A change: no shorter ttl than *arg (int64_t) is the longest. */
dibs__status dibs__tiers_raise_longest(struct dibs__tiers_state *state, void *arg, struct dibs__said *said);

/* ---- tiers_control.c ---- */
bool dibs__tiers_control_start(struct tiers *t, dibs__tick by); /* false: no thread is to be had */
/* Control, for what may be asked until `by`; else UNAVAILABLE, with words. */
dibs__status dibs__tiers_control_take(struct tiers *t, dibs__tick by, struct dibs__said *said);
void dibs__tiers_control_stop(struct tiers *t);
void dibs__tiers_kick(struct tiers *t); /* it looks now */
/* Before the first use: the state is read, or begun.  OK, or why nothing can be served. */
dibs__status dibs__tiers_ready(struct tiers *t, dibs__tick by, struct dibs__said *said);

/* ---- tiers_events.c ---- */
void dibs__tiers_ring(struct tiers *t, const struct dibs__event *event);
void dibs__tiers_listen(struct tier *tier); /* from now on what happens there is heard */
void dibs__tiers_listen_stop(struct tiers *t);
dibs__status dibs__tiers_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by);
void dibs__tiers_wake(struct dibs__dstore *store);

/* ---- tiers_run.c, tiers_list.c, tiers_hand.c, tiers_local.c ---- */
dibs__status dibs__tiers_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__said *said);
dibs__status dibs__tiers_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                              struct dibs__said *said);
void dibs__tiers_hand(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by);
/* Everything is down: goes on alone if that is allowed.  And back, when a tier is well again.  Lock held. */
void dibs__tiers_local_locked(struct tiers *t);
/* Fills `here` from the state.  Lock held; true: some bucket's mandate is another now. */
bool dibs__tiers_here_locked(struct tiers *t);

#endif
