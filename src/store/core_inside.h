/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_CORE_INSIDE_H
#define DIBS_STORE_CORE_INSIDE_H
/* What core.c, combine.c and service.c share, and nobody else sees. */
#include "store/core.h"

enum {
  SEATS_MAX = 5,      /* one for what is urgent, four for the rest */
  BATCH_DEFAULT = 64, /* operations a batch of a driver that names no bound */
  MOVES_MAX = 8,      /* how often one operation follows the mandate before it gives up */
  LEND_MS = 2,        /* how long an event loop may be held by a store whose writers are slow today */
  CROWD_MAX = 256,    /* callers that a leader waits for at most */
  SOLO_NS = 6000,     /* a batch of one that is cheaper than this is cheaper than a thread's sleep and wake */
  GATHER_PART = 4,    /* of what a batch of one costs is the most that is waited for the others, */
  GATHER_NS = 100000, /* and this */
  SPLIT_SOLOS = 4,    /* a batch that has been under way for so many times what one alone takes, */
  SPLIT_MIN_MS = 2,   /* at least so long, */
  SPLIT_MAX_MS = 20,  /* and at most, is not waited for */
  CROWD_THIN = 8,     /* batches with fewer, before it expects fewer */
  RETRY_MIN_MS = 50,  /* between attempts to connect */
  RETRY_MAX_MS = 2000
};

/* A blocking call.  Lives on its caller's stack: nobody touches it after CALL_DONE was set, and the caller does not
 * return before, unless it took all its operations back under the lock. */
enum { CALL_DONE = 1, CALL_STEP = 2 };
struct dibs__call {
  dibs__word word;       /* CALL_DONE; goes up by CALL_STEP when a seat is given */
  _Atomic uint32_t left; /* operations not answered yet */
  struct seat *seat;     /* guarded by the core's lock: given, to be led */
  /* Of whoever hands out, before CALL_DONE. */
  struct dibs__call *before; /* in the order of handing out */
  dibs__word *then;          /* whom this caller wakes when it is done */
};
enum {
  CHAIN_FROM = 32,
  CHAIN = 8
}; /* callers answered at once from which on they wake each other; in chains of so many */

enum { OP_IDLE = 0, OP_PENDING = 1, OP_SENT = 2, OP_ANSWERED = 3 };

/* A session and the right to lead on it.  All but `busy` belongs to whoever leads. */
struct seat {
  struct dibs__session *session;
  bool busy; /* guarded by the lock */
  bool urgent_only, ordinary_only;
  dibs__tick since;      /* busy; guarded by the lock */
  int64_t split_ns;      /* see SPLIT_SOLOS; guarded by the lock */
  bool brief;            /* led by an event loop */
  bool put_back;         /* it could not be begun in that time: it waits again */
  struct dibs__op **ops; /* in flight; guarded by the lock for reading lanes */
  uint32_t count, room;
  bool laned; /* some of them have a lane; guarded by the lock */
  dibs__tick retry_at;
  uint32_t failures;
  dibs__tick sent; /* when the batch in flight left */
  /* How many callers came together lately: a leader lets so many come before it leaves.  Guarded by the lock. */
  uint32_t crowd, thin;
  int64_t solo_ns; /* what a batch of one takes, about the median; of whoever leads */
};

/* A thread that leads in place of the service thread.  Guarded by the lock but for `word`. */
struct carrier {
  struct dibs__core *core;
  dibs__thread *thread;
  struct seat *seat; /* given, to be led */
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
  uint32_t seat_count;
  struct dibs__session *direct; /* of dibs__core_inside; NULL otherwise */

  dibs__mutex lock; /* guards all below but what says otherwise */
  struct seat seats[SEATS_MAX];
  struct dibs__queue urgent, ordinary;
  uint32_t pending; /* in both */
  uint32_t groups;  /* numbers given so far */
  dibs__mandate mandates[DIBS__BUCKETS];
  struct dibs__core_counts counts;
  char trouble[256];

  /* The receiver. `receiver` is written under the lock, read anywhere. */
  _Atomic(dibs__word *) receiver;
  bool asleep; /* in events(), not to be woken yet */
  dibs__tick asleep_until;
  uint64_t roused; /* goes up with each rouse, so that none between looking and sleeping is missed */
  dibs__thread *service;
  dibs__word service_word;
  struct carrier carriers[SEATS_MAX];
  bool stopping;

  dibs__mutex connecting; /* one at a time, where the driver wants that; no other lock is taken under it */
  dibs__mutex list_lock;  /* guards list_session; before `connecting` */
  struct dibs__session *list_session;
};

/* inside.c */
void dibs__core_direct(struct dibs__core *core, struct dibs__op *list);

/* core.c */
dibs__status dibs__core_connect(struct dibs__core *core, dibs__tick by, struct dibs__session **session,
                                struct dibs__said *said);
void dibs__core_disconnect(struct dibs__core *core, struct dibs__session *session);

/* combine.c */
struct seat *dibs__seat_find_locked(struct dibs__core *core);
/* There is a seat, but what waits is held back for the sake of a batch that is under way: until when.  NEVER: it is
 * not. */
dibs__tick dibs__held_back_locked(struct dibs__core *core);
/* Lock held; comes back without it.  `mine`: the leader's own call, or NULL. */
void dibs__lead_locked(struct dibs__core *core, struct seat *seat, const struct dibs__call *mine);
void dibs__seat_drop(struct dibs__core *core, struct seat *seat);

/* service.c: wakes the receiver if it would sleep beyond `due`; starts the service thread if there is no receiver. */
void dibs__service_rouse(struct dibs__core *core, dibs__tick due);

#endif
