/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_COMBINER_IMPL_H
#define DIBS_STORE_COMBINER_IMPL_H
/* What combiner.c and connections.c share; no other file includes it. */
#include "store/combiner.h"

enum {
  CONN_SLOTS_MAX = DIBS__CONNECTIONS_MAX,
  BATCH_DEFAULT = 64, /* operations in a batch if the driver gives no bound */
  MOVES_MAX = 8,      /* how often one operation follows the mandate before it fails */
  LEND_MS = 2,        /* how long a store with slow writers may block an event loop */
  CALLERS_MAX = 256,  /* the most callers that a leader waits for */
  SOLO_NS = 6000,     /* if a batch of one costs less, it costs less than a thread's sleep and wake */
  GATHER_PART = 8,    /* a leader waits for the next caller at most this fraction of the cost of a batch of one, */
  GATHER_NS = 100000, /* and for all of them at most this */
  SPLIT_SOLOS = 4,    /* other operations do not wait for a batch that has run for this many times the cost of one, */
  SPLIT_MIN_MS = 2,   /* but at least for this, */
  SPLIT_MAX_MS = 20,  /* and at most for this */
  CALLERS_FEW = 8,    /* after so many batches with fewer callers, a leader expects fewer */
  RETRY_MIN_MS = 50,  /* between attempts to connect */
  RETRY_MAX_MS = 1000,
  LATE_MS = 1000,       /* a call that fails after it fails because of the store, not for want of time */
  CONNECT_MS = 1000,    /* how long a thread may take to open one more session if there is another */
  URGENT_AFTER_MS = 10, /* after urgent operations waited so long for the first session, the second is opened */
  IDLE_MS = 5000        /* a session beyond the first that carried nothing for so long is closed */
};

/* A blocking call, on its caller's stack.  No other thread uses it after it has set CALL_DONE, and the caller does not
 * return before, unless it took back all its operations under the lock. */
enum { CALL_DONE = 1, CALL_STEP = 2 };
struct dibs__call {
  dibs__word word;       /* CALL_DONE; increased by CALL_STEP when a slot is passed to the call */
  _Atomic uint32_t left; /* operations not answered yet */
  struct slot *slot;     /* guarded by the core's lock: passed to this call, which leads on it */
  bool away;             /* guarded by the core's lock: its thread opens a session or carries a batch, and cannot lead */
  /* For the thread that delivers answers, before CALL_DONE. */
  struct dibs__call *before; /* in the order of delivery */
  dibs__word *then;          /* the caller that this caller wakes when it is done */
};
enum {
  CHAIN_FROM = 32,
  CHAIN = 8
}; /* so many callers that are answered together wake each other, in chains of CHAIN */

enum { OP_IDLE = 0, OP_PENDING = 1, OP_SENT = 2, OP_ANSWERED = 3 };

/*
 * A session and the right to lead on it.  The leader owns every field that is not guarded by the lock.
 *
 * Of a parallel engine, the first slot carries ordinary operations, and urgent ones as long as the second slot, which
 * is for urgent operations only, has no session.  All others carry ordinary operations.  Slots beyond the first open
 * their session when there is work for them, and before they take it: if the server has no connection left, the work is
 * still in the queue for the first slot.
 */
struct slot {
  struct dibs__session *session;
  bool busy;   /* guarded by the lock */
  bool open;   /* guarded by the lock: it has a session, as far as other threads know */
  bool proven; /* a batch succeeded on this session */
  bool urgent_only, ordinary_only;
  dibs__tick needed;     /* when a thread last led on it while the first slot was busy; guarded by the lock */
  dibs__tick since;      /* when it became busy; guarded by the lock */
  int64_t split_ns;      /* see SPLIT_SOLOS; guarded by the lock */
  bool brief;            /* led by an event loop */
  bool put_back;         /* the batch could not be started in LEND_MS: it is queued again */
  struct dibs__op **ops; /* in flight; guarded by the lock for reading lanes */
  uint32_t count, capacity;
  bool frees; /* when this batch ends, another slot may carry what waited for its lanes, or what it put back; guarded by
                 the lock */
  dibs__tick retry_at; /* guarded by the lock, as is `failures` */
  uint32_t failures;   /* failed attempts to connect, in a row */
  dibs__tick sent;     /* when the batch in flight was sent */
  /* How many callers came together lately: a leader waits for so many before it sends.  Guarded by the lock. */
  uint32_t callers, thin;
  int64_t solo_ns; /* the cost of a batch of one, about the median; the leader's */
};

/* A thread that leads in place of the service thread.  Guarded by the lock, except `word`. */
struct carrier {
  struct dibs__core *core;
  dibs__thread *thread;
  struct slot *slot; /* passed to this thread, which leads on it */
  bool busy;
  dibs__word word;
};

struct dibs__queue {
  struct dibs__op *first, *last;
};

struct dibs__core {
  /* Immutable after open. */
  struct dibs__uri uri;
  struct dibs__chain chain;
  struct dibs__dstore *store; /* the outermost */
  struct dibs__identity identity;
  struct dibs__core_hooks hooks;
  uint32_t slot_count;
  struct dibs__session *direct; /* of dibs__core_inside; NULL otherwise */

  dibs__mutex lock; /* guards everything below, with the exceptions that are noted */
  struct slot slots[CONN_SLOTS_MAX];
  struct dibs__queue urgent, ordinary;
  uint32_t pending; /* in both */
  uint32_t groups;  /* group numbers given so far */
  dibs__mandate mandates[DIBS__BUCKETS];
  struct dibs__core_counts counts;
  char trouble[256];

  /* The receiver.  `receiver` is written under the lock, and read without it. */
  _Atomic(dibs__word *) receiver;
  bool asleep; /* in events(), with no wake under way */
  dibs__tick asleep_until;
  uint64_t roused; /* increased by each rouse, so that a rouse between the check and the sleep is noticed */
  dibs__thread *service;
  dibs__word service_word;
  struct carrier carriers[CONN_SLOTS_MAX];
  bool stopping;

  _Atomic bool cut_off;   /* see dibs__core_is_cut_off */
  dibs__mutex connecting; /* serialises connecting if the driver requires it; no other lock is taken under it */
  dibs__mutex list_lock;  /* guards list_session; before `connecting` */
  struct dibs__session *list_session;
};

/* connections.c */
void dibs__core_direct(struct dibs__core *core, struct dibs__op *list);

/* connections.c: what a call that began then shows of the store. */
void dibs__core_learn(struct dibs__core *core, dibs__status status, bool dead, dibs__tick began, dibs__tick by);

/* combiner.c */
dibs__status dibs__core_connect(struct dibs__core *core, dibs__tick by, struct dibs__session **session,
                                struct dibs__result *result);
void dibs__core_disconnect(struct dibs__core *core, struct dibs__session *session);

/* combiner.c */
struct slot *dibs__slot_find_locked(struct dibs__core *core);
/* The instant until which the waiting operations, which have a free slot, wait for a running batch.  NEVER: they do
 * not. */
dibs__tick dibs__held_back_locked(struct dibs__core *core);
/* Lock held on entry, released on return.  `mine`: the leader's own call, or NULL. */
void dibs__lead_locked(struct dibs__core *core, struct slot *slot, struct dibs__call *mine);

/* connections.c */
/* From when on this slot, which is not the first and has no session, may try to open one. */
dibs__tick dibs__slot_opens_at_locked(const struct dibs__core *core, const struct slot *slot, bool urgent);
/* Opens its session; releases the lock meanwhile.  false: no session can be opened now. */
bool dibs__slot_open_locked(struct dibs__core *core, struct slot *slot, struct dibs__call *mine);
/* The first slot has lost its session: it takes over the session of an idle slot, if there is one. */
void dibs__slot_inherit_locked(struct dibs__core *core, struct slot *slot);
/* For the first slot's leader; no lock held. */
dibs__status dibs__slot_connect(struct dibs__core *core, struct slot *slot, dibs__tick now, dibs__tick by,
                                struct dibs__result *result);
void dibs__slot_drop(struct dibs__core *core, struct slot *slot);
/* Takes the session of an idle slot of a parallel engine; NULL: there is none. */
struct dibs__session *dibs__slot_lend(struct dibs__core *core);
/* Gives the session to the first slot if that needs one.  false: the caller keeps it. */
bool dibs__slot_take_back(struct dibs__core *core, struct dibs__session *session);
/* Closes sessions beyond the first that carried nothing for IDLE_MS.  true: some are left. */
bool dibs__slots_close_idle(struct dibs__core *core);

/* connections.c: wakes the receiver if it would sleep beyond `due`; without a receiver, starts the service thread. */
void dibs__service_rouse(struct dibs__core *core, dibs__tick due);

#endif
