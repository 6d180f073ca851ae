/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_TIERS_IMPL_H
#define DIBS_TIER_TIERS_IMPL_H
/*
 * What the files of the tiered driver share.
 *
 * Locks, in this order: tiers.control (requests to the anchor and repairs of mandates, one at a time), tier.gate
 * (opening a tier's store, and connecting if its driver wants one at a time), tiers.lock (the copy of the state,
 * breakers, counts; no call is made under it), tiers.event_lock (the queue of events).
 */
#include "store/registry.h"
#include "tier/tiers.h"

#include <stdlib.h>
#include <string.h>

enum {
  TIERS_ALL = DIBS__URI_TIERS + 1, /* and the memory of the process */
  TIERS_EVENTS = 1024,
  TIERS_BATCH = 256,
  TIERS_TIMEOUT_MS = 500, /* of a batch at a tier before the last */
  TIERS_RETRY_MS =
      100, /* a waiter for a tier that does not answer repeats its request after this; so does the control thread */
  TIERS_HEAL_ROUNDS = 12,  /* each may lose the race to write the record */
  TIERS_CONTROL_MS = 2000, /* for the control thread's requests to the anchor */
  TIERS_TROUBLE = 200
};

struct tiers;

/* tiers.c: a lock that is held across calls to stores. */
struct timed_lock {
  dibs__mutex lock; /* guards `taken` */
  bool taken;
  dibs__word word; /* increased when it is released */
};

struct tier {
  struct tiers *all;
  uint32_t nth;
  const struct dibs__uri *uri; /* NULL: the memory of the process */
  struct timed_lock gate;      /* guards opening and, for some drivers, connecting */
  struct dibs__chain chain;
  struct dibs__dstore *store;      /* set once, under the gate and the lock */
  _Atomic uint32_t caps, families; /* 0: it was never reached */
  _Atomic uint32_t sessions;       /* the number that its own URI allows; 0: as caps, or it takes only one */
  /* Guarded by tiers.lock. */
  struct dibs__breaker breaker;
  struct dibs__hist took; /* of batches that were answered */
  uint64_t operations, failures;
  bool reached, ours;  /* of the latest call: it was answered; it failed because of our own password or configuration */
  dibs__status latest; /* the status of the latest call */
  dibs__tick used, answered; /* the latest use by callers' operations; the latest answer to any request */
  bool timed;
  int64_t ahead_ms; /* its clock minus ours */
  char trouble[TIERS_TROUBLE];
  /* events.c */
  dibs__thread *listener; /* guarded by event_lock until `leaving` */
  _Atomic bool listens;
};

/* A bucket's mandate as this process uses it. */
struct here {
  uint32_t tier;
  dibs__mandate mandate;
  int64_t from; /* the anchor's clock: nothing is granted before this */
  uint32_t left_tier;
  dibs__mandate left; /* the tier that is asked first; epoch 0: none */
};

struct tiers {
  struct dibs__dstore base;
  /* Immutable after open. */
  uint32_t count, last;
  const char *schemes[DIBS__URI_TIERS];
  struct dibs__uri kept_uri;
  const struct dibs__uri *uri; /* &kept_uri */
  char *module_path;           /* NULL: the default */
  dibs__id client;
  char owner[DIBS_OWNER_MAX + 1];
  int64_t timeout_ms, dwell_ms;
  int32_t strictness; /* that the URI requests; -1: none */
  bool least_strict;  /* the URI requests it */

  struct tier tiers[TIERS_ALL];

  struct timed_lock control;
  /* Guarded by control: this driver's own sessions. */
  struct dibs__session *own[TIERS_ALL];
  struct dibs__session *probes[TIERS_ALL]; /* the control thread's */

  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__tiers_state state;
  bool known;       /* `state` is valid */
  uint64_t version; /* of the record as it was read last, needed to write it; 0: not read yet */
  uint64_t digest;  /* of the same record */
  uint64_t newest;  /* of the record in `state`: larger than `version` if the record was restored to an older one */
  bool behind; /* the record was restored to an older one: `state` is the newest known, and must be written again */
  bool owes;   /* a client with older knowledge repaired the record: our flags must be restored */
  struct dibs__tiers_state flags;      /* these flags, */
  struct dibs__tiers_read_at flags_at; /* and when they were read */
  dibs__tick confirmed;                /* the copy was the anchor's record at this time or later; 0: never */
  int64_t ahead_ms;                    /* the anchor's clock minus ours: at least this, */
  int64_t ahead_most_ms;               /* and at most */
  bool local;                          /* all buckets are on the memory of the process */
  dibs__mandate local_mandate;
  struct here here[DIBS__BUCKETS];
  struct dibs__tiers_tally tally;
  dibs__tick tallied;
  uint32_t seen_epoch, refused_epoch; /* epochs of leases: remembered by a record; refused by a record */
  int64_t longest_ms;                 /* the longest ttl requested in this process */
  _Atomic uint64_t counts[DIBS__M_COUNT];

  /* The control thread. */
  dibs__thread *thread;
  dibs__word kicked;
  _Atomic bool runs, stopping, leaving, disbanded;
  _Atomic bool acts; /* an operation came that changes something: before it, nothing is written (R47) */

  /* The queue of events. */
  dibs__mutex event_lock;
  dibs__word rung;
  bool woken, overflow;
  uint32_t event_first, event_count;
  struct dibs__event events[TIERS_EVENTS];
};

struct tiers_session {
  struct dibs__session base;
  bool inside;                            /* attached to a user's transaction at the anchor */
  struct dibs__session *inner[TIERS_ALL]; /* NULL: not connected now */
  uint32_t where[TIERS_BATCH];            /* of the batch in progress */
  uint64_t tickets[TIERS_BATCH];          /* as the caller gave them */
  uint32_t next[TIERS_BATCH];             /* the tier to ask after the tier that the bucket leaves; or ANSWERED */
  dibs__mandate then[TIERS_BATCH];        /* under this mandate */
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

/* ---- tiers.c: locks that are held across calls to stores ---- */

/* false: not available until `by`. */
bool dibs__timed_lock_take(struct timed_lock *timed_lock, dibs__tick by);
void dibs__timed_lock_release(struct timed_lock *timed_lock);

/* ---- tiers.c ---- */

/* Connects *session if it is NULL, and opens the tier's store if necessary; runs; disconnects the session if it is
 * dead.  Answers as run(), with a message that names the tier; UNAVAILABLE at once while the breaker is open.  `ops`
 * NULL: only connects. */
dibs__status dibs__tier_call(struct tier *tier, struct dibs__session **session, struct dibs__op *const ops[],
                             size_t count, dibs__tick by, struct dibs__result *result);
void dibs__tier_hang_up(struct tier *tier, struct dibs__session **session);
/* Would the breaker allow a call?  Lock held. */
bool dibs__tier_open_locked(const struct tier *tier);

/* ---- anchor.c: control held, unless noted ---- */

/* Uses this state, although it is in no record. */
void dibs__tiers_suppose(struct tiers *t, const struct dibs__tiers_state *state, dibs__tick requested);
/* Reads the state, and adopts it.  OK; NOT_FOUND: none was ever written. */
dibs__status dibs__tiers_load(struct tiers *t, dibs__tick by, struct dibs__result *result);
/* Writes it if the record has not changed since: OK (adopted), CONFLICT; UNKNOWN: it may have been written. */
dibs__status dibs__tiers_save(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__tiers_saved read,
                              dibs__tick by, struct dibs__result *result);
/* In one round trip: puts our report, reads the state and the reports of others.  `clients`: malloc'd, may be NULL. */
dibs__status dibs__tiers_sync(struct tiers *t, dibs__tick by, struct dibs__tiers_client **clients, size_t *count,
                              struct dibs__result *result);
/* The anchor's clock is at least this.  Any thread. */
int64_t dibs__tiers_now(struct tiers *t);

/* ---- heal.c ---- */

/* An epoch has a kind, for a client that finds it at a tier while the anchor is unreachable: the remainder of its
 * division by 4 is a mandate, fenced or strict; an odd one means that the bucket was moved away from this tier. */
enum { DIBS__KIND_FENCED = 0, DIBS__KIND_STRICT = 2 };

/* The reason for a repair. */
struct heal {
  uint32_t found[DIBS__BUCKETS]; /* the bucket needed a repair under this epoch, plus one; 0: it did not */
  uint32_t spent[DIBS__BUCKETS]; /* this epoch of the bucket is used up; 0: none */
  uint32_t above;                /* all epochs must be above this; 0: no bound */
  uint32_t only;                 /* `above` is for buckets of this epoch only; 0: for all */
  bool by_hand;                  /* requested by a person: the next epoch of all buckets, at any distance */
  bool settles;  /* a person sets a flag: flags that are newer than a repaired record's are not restored */
  bool restored; /* of all buckets, above the epochs that a record restored to an older one may have made */
};
/* Reads what the tiers have, makes the mandates that are needed, installs them.  Takes control.  OK: the tiers that can
 * be reached have the mandates of the record.  Does nothing if all that the reason names has changed since. */
dibs__status dibs__tiers_heal(struct tiers *t, const struct heal *why, dibs__tick by, struct dibs__result *result);
/* The same, control held; `change` (may be NULL) alters the state first, with `arg`; any status of it but OK ends the
 * repair. */
dibs__status dibs__tiers_change(struct tiers *t, const struct heal *why,
                                dibs__status (*change)(struct dibs__tiers_state *state, void *arg,
                                                       struct dibs__result *result),
                                void *arg, dibs__tick by, struct dibs__result *result);

/* Repairs the record before it is used to grant anything. */
dibs__status dibs__tiers_put_right(struct tiers *t, dibs__tick by, struct dibs__result *result);

/* The state that a change starts with if these stores were never opened as tiers; writes nothing.  OK, or why the
 * anchor cannot be read. */
dibs__status dibs__tiers_foresee(struct tiers *t, dibs__tick by, struct dibs__result *result);

/* A change: the longest ttl is at least *arg (int64_t). */
dibs__status dibs__tiers_raise_longest(struct dibs__tiers_state *state, void *arg, struct dibs__result *result);

/* ---- anchor.c ---- */
bool dibs__tiers_control_start(struct tiers *t, dibs__tick by); /* false: no thread can be started */
/* Takes control for an operation with the deadline `by`; else UNAVAILABLE, with a message. */
dibs__status dibs__tiers_control_take(struct tiers *t, dibs__tick by, struct dibs__result *result);
void dibs__tiers_control_stop(struct tiers *t);
void dibs__tiers_kick(struct tiers *t); /* the control thread checks now */
/* Before the first use: reads the state, or begins it.  OK, or why nothing can be served. */
dibs__status dibs__tiers_ready(struct tiers *t, dibs__tick by, struct dibs__result *result);

/* ---- events.c ---- */
void dibs__tiers_notify(struct tiers *t, const struct dibs__event *event);
void dibs__tiers_listen(struct tier *tier); /* from now on, events of this tier are received */
void dibs__tiers_listen_stop(struct tiers *t);
dibs__driver_events dibs__tiers_events;
dibs__driver_wake dibs__tiers_wake;

/* ---- run.c, tiers.c, events.c ---- */
dibs__driver_run dibs__tiers_run;
void dibs__tiers_hand(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by);
/* If everything is down: continues with the memory of the process, if that is allowed; and returns to the tiers when
 * one works again.  Lock held. */
void dibs__tiers_local_locked(struct tiers *t);

#endif
