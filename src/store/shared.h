/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_SHARED_H
#define DIBS_STORE_SHARED_H
/* clang-format off */
/*
 * Sums that wait in a fast store in front of the database: counters of the level `shared`.  DIBS__FAM_SHARED is served
 * by the first of several tiers.  A space has the sums of one table; a key belongs to one of its partitions for ever.
 *
 * Sums are added up under a name: a source, which is drawn for each incarnation of the store, and a number.  SEAL takes
 * them out of the addition and answers them, to be written to the database as a batch of that source and number; DROP
 * removes them when they are written.  Between the two they stay in the store: no crash of a process removes them.
 *
 *  R98   ADD adds a batch once in each partition, together with the number of the batch: OK.  A batch that is not above
 *        the latest of its source was added before: REPLAY.  A repeat of the latest one has the status of each item:
 *        OK; FULL, if the sum would not fit in 64 bits.  An ADD that expects another incarnation than the store's adds
 *        nothing: CONFLICT, with the present one.  So a batch whose answer was lost is not added again to a store that
 *        may have lost the first, or may have passed it on.  A store that keeps its incarnation when it is emptied
 *        answers the same of a repeat, unless its memory is older than the first attempt.
 *  R99   What SEAL answers does not change any more, is at most DIBS__COUNTER_ITEMS keys, and is answered again until
 *        it is dropped.  No two partitions have one source, and of one source, numbers are answered in growing order.
 *        No sum is in two answers, and none is in no answer.
 *  R100  DROP of another batch than that of the present answer of SEAL changes nothing: NOT_FOUND.  What the database
 *        refused stays in the store, until FORGET.  FORGET leaves what was added to a refused sum since it was
 *        answered, also if it is repeated.
 *  R101  Sums of an earlier incarnation are sealed before anything is added: in an earlier state of the store, a source
 *        and a number have no key, and of no key another sum, than the sums of this name had later.
 *  R102  READ answers a key's sum among those that are added up, with their name, and apart from it the sum of what is
 *        sealed.
 */
/* clang-format on */
#include "store/counter.h"

enum dibs__shared_verb {
  DIBS__SHARED_ADD,     /* OK, REPLAY, CONFLICT.  The status of each item */
  DIBS__SHARED_READ,    /* one item.  OK: `number` of the item, `sealed`, `name` */
  DIBS__SHARED_LOOK,    /* OK: `parts` */
  DIBS__SHARED_SEAL,    /* OK: `got`, `source`, `sequence`, `age_ms`.  NOT_FOUND: nothing waits */
  DIBS__SHARED_DROP,    /* OK, NOT_FOUND.  Its items were refused, with `status` and `delta` */
  DIBS__SHARED_REFUSED, /* OK: `got`, some of the refused sums, from `cursor` on; a sum may be answered twice */
  DIBS__SHARED_FORGET   /* OK: `delta` is taken from the refused sum with this `status`, and `repeat` as `number` */
};

enum { DIBS__SHARED_PARTS = 16, DIBS__SHARED_SPACE_MAX = 40, DIBS__SHARED_NAME_MAX = 96 };
/* The store remembers the latest batch of a source for KEEP_MS (shared.lua has it, too); so a batch is not repeated
 * later than REPEAT_MS after it was sent for the first time. */
#define DIBS__SHARED_KEEP_MS (INT64_C(15) * 60000)
#define DIBS__SHARED_REPEAT_MS (INT64_C(5) * 60000)
/* Sums that are older than this are not written any more: the ledger of the database may have forgotten them. */
#define DIBS__SHARED_OLDEST_MS (DIBS__COUNTER_KEEP_GUARDED_MS / 2)

struct dibs__shared_row {
  dibs__str key; /* in the memory of the answer, with a NUL after it */
  int64_t sum;
  dibs__status status; /* REFUSED */
  int64_t repeat;      /* REFUSED: differs where one key has several refused sums, because they do not fit in one */
};

/* Of one partition. */
struct dibs__shared_part {
  int64_t age_ms;   /* of the oldest sum; -1: there is none */
  uint32_t batches; /* that SEAL would answer */
  uint32_t keys;    /* that are added up now */
  uint32_t refused; /* sums */
};

struct dibs__shared_op {
  struct dibs__op op;               /* the mandate is not checked */
  dibs__str space;                  /* letters and digits */
  uint32_t part;                    /* SEAL, DROP, REFUSED, FORGET */
  struct dibs__counter_item *items; /* ADD: in the order of their keys, each key once */
  uint32_t count;
  dibs__id source;               /* ADD: of the batch; DROP.  Answer of SEAL */
  uint64_t sequence;             /* ADD, DROP, at most DIBS__SHARED_SEQUENCE_MAX.  Answer of SEAL */
  dibs__id fresh;                /* A random number.  ADD: the source of sums that begin now; FORGET: of this request */
  int64_t since_ms;              /* ADD: how long ago the first attempt was sent; 0: this is the first */
  dibs__incarnation incarnation; /* ADD: expected.  Answer of CONFLICT: the present one */
  uint64_t cursor;               /* REFUSED: 0 begins; answer: 0 ends */
  /* Answers. */
  char name[DIBS__SHARED_NAME_MAX]; /* READ: "" if nothing is added up */
  int64_t sealed;                   /* READ */
  bool waits;                       /* READ: the key is in a sealed batch */
  int64_t age_ms;                   /* SEAL */
  struct dibs__shared_part parts[DIBS__SHARED_PARTS];
  struct dibs__shared_row *got; /* malloc'd, one allocation; NULL: none.  SEAL: by key in byte order */
  uint32_t got_count;
};
#define DIBS__SHARED_SEQUENCE_MAX (INT64_C(1) << 53)

/* It never changes. */
static inline uint32_t dibs__shared_part(dibs__str key) {
  return dibs__bucket(key) % DIBS__SHARED_PARTS;
}
/* Clears the answers; false: the operation is not well-formed, and its status is INVALID. */
bool dibs__shared_valid(struct dibs__shared_op *op);

#endif
