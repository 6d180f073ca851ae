/* SPDX-License-Identifier: MIT */
#ifndef DIBS_COUNTER_COUNTER_IMPL_H
#define DIBS_COUNTER_COUNTER_IMPL_H
/*
 * Counters of an open store.
 *
 *   counter.c   the public calls; opening and closing
 *   batch.c     a batch with its id, and one attempt to send it
 *   durable.c   additions that are committed when their call returns: callers join a batch
 *   shared.c    the fast store in front of the database: sending batches to it, reading it
 *   flush.c     from the fast store to the database: the thread that does it, and flushes on request
 *   buffer.c    additions in the memory of the process: stripes, and the thread that writes them
 *   refused.c   additions that were refused after their call had returned
 *   sums.c      sums by key
 *   rate.c      quotas, which have no state here
 *
 * A group has all of one table.  Its parts, durable, shared and buffered, are a source each, with a sequence of its
 * own: a batch of a source is settled before the next one is sent, because the ledger of the store has only the last
 * one.
 *
 * Order of locks: counters.lock, then a group's, then a stripe's.  None is held while anything is sent.
 */
#include "base/port.h"
#include "counter/counter.h"
#include "counter/sums.h"
#include "dibs/counter.h"
#include "handle/handle.h"
#include "store/shared.h"
#include "store/values.h"

enum {
  DIBS__COUNT_STRIPES = 16,       /* threads beyond so many share one */
  DIBS__COUNT_FLUSH_KEYS = 10000, /* keys that begin a flush before its second is over, */
  DIBS__COUNT_FLUSH_MIN_MS = 200, /* but not sooner than this after the last one */
  DIBS__COUNT_KEYS_MAX = 1000000, /* keys that a process buffers: about 100 MB */
  DIBS__COUNT_FLUSH_MS = 1000,
  DIBS__COUNT_TEXT = 400,      /* of an error */
  DIBS__COUNT_CLOSE_MS = 5000, /* how long dibs_close tries to write what is buffered */
  DIBS__COUNT_WAIT_MS = 5000,  /* of a call, unless it says otherwise */
  /* The flusher of the fast store looks each second, and writes sums that are so old: 3 s in all. */
  DIBS__COUNT_SHARED_LOOK_MS = 1000,
  DIBS__COUNT_SHARED_AGE_MS = 2000,
  DIBS__COUNT_SHARED_TTL_MS = 10000, /* of the lease of a partition: a flusher that is killed delays it by this */
  DIBS__COUNT_SPACE = 33
};
/* Of a stripe's sum: those of all stripes together fit in 64 bits. */
#define DIBS__COUNT_SUM_MAX (INT64_C(1) << 57)

struct dibs__counters;
struct dibs__count_group;

/* ---- A batch ---- */

struct dibs__count_batch {
  uint64_t sequence;
  struct dibs__sums sums;      /* with the status of each key, once it is settled */
  struct dibs__sum **sorted;   /* of `sums`, from when it is sealed on: no key is added any more */
  dibs_status status;          /* UNKNOWN until it is settled */
  bool unsure;                 /* an attempt of it may have been applied */
  dibs_status failure;         /* of the latest attempt */
  dibs__tick since;            /* the first attempt; 0: none */
  char text[DIBS__COUNT_TEXT]; /* for people, of the latest attempt */
  dibs__incarnation sent_to;   /* shared: what the latest attempt expected */
  /* Durable; guarded by the group's lock. */
  uint32_t refs, waiters;
  dibs__word word; /* goes up when it is settled, and when somebody must send */
};

/* The source of batches. */
struct dibs__count_source {
  dibs__id id;
  uint64_t last; /* the last sequence number that was given */
};

/* No key is added from now on, and it has a sequence number.  false: no memory. */
bool dibs__count_seal(struct dibs__count_source *source, struct dibs__count_batch *batch);
/* One attempt, until `by` at most.  true: it is settled, as batch->status and the status of its keys say. */
bool dibs__count_send(struct dibs__count_group *group, const struct dibs__count_source *source,
                      struct dibs__count_batch *batch, dibs__tick by);
void dibs__count_batch_clear(struct dibs__count_batch *batch);

/* ---- A group: a table ---- */

/* Batches whose callers wait for them; guarded by the group's lock. */
struct dibs__count_line {
  struct dibs__count_group *group;
  bool shared; /* they go to the fast store; else to the database */
  struct dibs__count_source source;
  struct dibs__count_batch *open, *sent; /* callers join `open`; `sent` is being settled */
  bool busy;                             /* a caller sends `sent`, or waits for others before it does */
  uint32_t callers;                      /* of the last batch that was sent */
  int64_t took_ns;                       /* and how long that took */
  dibs__incarnation incarnation;         /* shared: as last answered; of the caller that is busy */
};

struct dibs__count_stripe {
  _Alignas(64) dibs__mutex lock;
  struct dibs__sums sums; /* guarded by it */
};

struct dibs__count_group {
  struct dibs__count_group *next; /* immutable once it is published */
  struct dibs__counters *counters;
  const struct dibs__table *table; /* held; NULL: dibs' own */
  dibs__mutex lock;
  struct dibs__count_line durable, shared; /* guarded by the lock */
  char space[DIBS__COUNT_SPACE];           /* of its shared sums; immutable */
  _Atomic bool is_shared;                  /* the flusher writes its shared sums */
  /* Buffered. */
  struct dibs__count_stripe stripes[DIBS__COUNT_STRIPES];
  struct dibs__count_source buffered; /* the flusher's */
  /* Guarded by the lock; only the flusher changes them. */
  struct dibs__sums collected;       /* taken from the stripes, not in a batch yet */
  struct dibs__count_batch *current; /* being settled; NULL: none */
  bool sending;                      /* an attempt of it is on its way */
  uint64_t settled;                  /* how many batches were */
  struct dibs__sums refused;         /* until dibs_counter_refused */
};

/* The state of a store; made by the first call of counters. */
struct dibs__counters {
  struct dibs__at_close at_close; /* first */
  dibs_store *store;
  struct dibs__count_group *_Atomic groups; /* grows only */
  /* Keys that take memory: those of all stripes, those on their way, and refused ones. */
  _Atomic int64_t keys, refused;
  dibs__mutex lock; /* guards what follows */
  dibs__thread *flusher;
  bool stopping;
  dibs__word wake;     /* goes up when the flusher has something to do */
  uint64_t wanted;     /* flushes that were requested */
  uint64_t done;       /* of those, how many are complete */
  dibs__word changed;  /* goes up with `done`, and after each failure */
  dibs_status trouble; /* of the latest attempt; OK: it succeeded */
  char text[DIBS__COUNT_TEXT];
  /* The flusher of shared sums. */
  dibs__thread *shared_flusher; /* guarded by the lock */
  dibs__word shared_wake;       /* goes up when it has to stop */
  struct dibs__counter_lag lag; /* guarded by the lock; as it was at */
  dibs__tick lag_at;            /* this time; 0: it has not looked */
};

/* NULL: no memory. */
struct dibs__counters *dibs__counters_of(dibs_store *store);
struct dibs__count_group *dibs__count_group_of(struct dibs__counters *counters, const struct dibs__table *table);

/* ---- The parts ---- */

dibs_status dibs__count_join(struct dibs__count_line *line, const char *key, uint32_t len, uint64_t hash, int64_t delta,
                             dibs__tick by, dibs_error *error);
/* As dibs__count_send, to the fast store. */
bool dibs__count_send_shared(struct dibs__count_line *line, struct dibs__count_batch *batch, dibs__tick by);
dibs_status dibs__count_buffer(struct dibs__count_group *group, const char *key, uint32_t len, uint64_t hash,
                               int64_t delta, dibs_error *error);
/* What this process has buffered of a key.  *sending: a batch with this key is on its way. */
int64_t dibs__count_buffered(struct dibs__count_group *group, const char *key, uint32_t len, uint64_t hash,
                             bool *sending, uint64_t *settled);
/* Requests a flush, and waits for it. */
dibs_status dibs__count_flush(struct dibs__counters *counters, dibs__tick by, dibs_error *error);
/* Writes what is left, in the time that dibs_close has, and ends the flusher. */
void dibs__count_stop(struct dibs__counters *counters);
/* In the transaction of a handle of dibs_inside_...; blocks until it is answered, whatever `by` is, because giving up
 * would end the user's connection. */
dibs_status dibs__count_inside(dibs_store *store, const char *key, const struct dibs__table *table, int64_t delta,
                               dibs__tick by, dibs_error *error);
/* The status of an addition, with its text; `why` of the store, or "". */
dibs_status dibs__count_explain(dibs_store *store, const char *key, const struct dibs__table *table, dibs_status status,
                                const char *why, dibs_error *error);

/* ---- The fast store ---- */

/* Does the store have one? */
bool dibs__count_has_shared(const dibs_store *store);
/* The name of the sums of a table: never changes. */
void dibs__count_space(const struct dibs__table *table, char space[DIBS__COUNT_SPACE]);
struct dibs__request *dibs__count_shared_request(struct dibs__count_group *group, size_t more);
/* What a key has there.  `name`: of the sums that are added up now; *waits: some of it is on its way to the database.
 */
struct dibs__count_shared_sum {
  int64_t sum;
  bool waits;
  char name[DIBS__SHARED_NAME_MAX];
};
dibs_status dibs__count_shared_read(struct dibs__count_group *group, const char *key, dibs__tick by,
                                    struct dibs__count_shared_sum *sum);
/* Of all partitions. */
dibs_status dibs__count_shared_look(struct dibs__count_group *group, dibs__tick by,
                                    struct dibs__shared_part parts[DIBS__SHARED_PARTS]);
/* From now on a thread writes the group's shared sums to the database.  false: no thread. */
bool dibs__count_flusher_start(struct dibs__count_group *group);
/* Writes all shared sums of the group that are there now, of all processes. */
dibs_status dibs__count_flush_shared(struct dibs__count_group *group, dibs__tick by, dibs_error *error);
void dibs__count_flusher_stop(struct dibs__counters *counters);

/* UNSUPPORTED, unless the store keeps counters. */
dibs_status dibs__count_check_family(dibs_store *store, dibs_error *error);
/* UNSUPPORTED in a transaction of the user's, also. */
dibs_status dibs__count_check_outside(dibs_store *store, const char *call, dibs_error *error);
/* UNSUPPORTED, unless it has a fast store, too. */
dibs_status dibs__count_check_shared(dibs_store *store, dibs_error *error);
/* The key, the first time that a table of sums sees it. */
dibs_status dibs__count_check_key(const char *key, dibs_error *error);

#endif
