/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_COUNTER_H
#define DIBS_STORE_COUNTER_H
/* clang-format off */
/*
 * Counters: numbers that many clients add to.  DIBS__FAM_COUNTER adds batches.  A batch has a source, which is one
 * incarnation of a process (or one flush of a level above), and a sequence number.  The store keeps a ledger: of each
 * source the sequence number of the last batch that it applied.
 *
 *  R86  ADD applies a batch once, all of its items in one transaction with the ledger: OK.  A batch whose sequence number
 *       is not above the ledger's was applied before: REPLAY, and nothing changes.  After any outcome the repeat of the
 *       latest batch finds the effect of the first, with the status of each item.
 *  R87  Batches of different sources that run at the same time lose nothing: each item is added to the number that is
 *       there.  Items are given in the order of their keys, each key once, and are applied in this order, so
 *       that no two batches wait for each other in a circle.
 *  R88  An item that the counter can't take is refused by itself, and reported; the other items of the batch are
 *       applied: FULL, if the sum would not fit in 64 bits (or in the user's column); NOT_FOUND, if a user's table has no
 *       such row.
 *  R89  With a guard, a batch is refused (STALE) if the ledger has seen a larger fence of this guard, unless the batch
 *       was applied before; it then changes nothing.  An ADD under a guard raises the remembered fence.
 *  R90  The ledger keeps a source for DIBS__COUNTER_KEEP_MS after its latest batch.  A source therefore repeats no batch
 *       later than DIBS__COUNTER_REPEAT_MS after it sent this batch for the first time.  Under a guard it is
 *       DIBS__COUNTER_KEEP_GUARDED_MS: such a batch may come from an old copy of a store in front (store/shared.h).
 *  R91  READ answers the number of each key.  A key that nobody has added to is NOT_FOUND.
 *  R92  LIST has each counter that exists from the beginning to the end of the listing once, by key in byte order.
 *  R93  TAKE allows, in any interval of the store's clock, at most `limit` and `limit` for each `per_ms` of the interval.
 *       A bucket that nobody has used is full.  Several clients of one key share its bucket.
 *  R94  A TAKE that is refused (FULL) changes nothing.  After `wait_ms` it is allowed, if nobody else takes meanwhile.
 *  R95  Limit and time are those of each TAKE: a bucket has no more than the present limit, and is full after the present
 *       per_ms at the latest, also after the clock was set back.
 *  R107 Inside a user's transaction an ADD has no source and no row in the ledger (sequence 0): it counts when this
 *       transaction commits, and only then.  An item that is refused, as in R88, leaves that transaction usable.  READ and
 *       LIST answer what the transaction sees.  TAKE is UNSUPPORTED.
 */
/* clang-format on */
#include "store/store.h"

enum dibs__counter_verb {
  DIBS__COUNTER_ADD,  /* OK, REPLAY; STALE.  The status of each item: OK, FULL, NOT_FOUND */
  DIBS__COUNTER_READ, /* OK.  The status of each item: OK with `number`, NOT_FOUND, INVALID (a user's column) */
  DIBS__COUNTER_LIST, /* the first `most` counters that begin with `prefix` and are larger than `after`.  OK: `got` */
  DIBS__COUNTER_TAKE  /* takes `amount` from the bucket `key`.  OK; FULL with `wait_ms`.  A repeat takes again */
};

enum {
  DIBS__COUNTER_ITEMS = 1000, /* of a batch: its transaction locks so many rows, for some ten milliseconds */
  DIBS__COUNTER_ROWS = 1001   /* of a page */
};
/* A process that is paused or whose machine is suspended may repeat a batch late.  It compares the age of the batch
 * with REPEAT_MS by a clock that counts suspended time, so a row of the ledger that is older than KEEP_MS refuses
 * nothing that still comes; the difference covers a server's clock that is set forward by up to six days. */
#define DIBS__COUNTER_KEEP_MS (INT64_C(7) * 86400000)
#define DIBS__COUNTER_REPEAT_MS (INT64_C(1) * 86400000)
#define DIBS__COUNTER_KEEP_GUARDED_MS (INT64_C(400) * 86400000)

/* A bucket is one instant: when it would be full again, in ns.  So a take adds amount * per / limit to it. */
#define DIBS__RATE_LIMIT_MAX INT64_C(1000000000)
#define DIBS__RATE_PER_MAX_MS (INT64_C(31) * 86400000)

struct dibs__counter_item {
  dibs__str key;
  int64_t delta; /* ADD */
  /* Answers. */
  dibs__status status;
  int64_t number; /* READ */
};

struct dibs__counter_row {
  dibs__str key; /* in the memory of the answer, with a NUL after it */
  int64_t number;
};

struct dibs__counter_op {
  struct dibs__op op;               /* the mandate is not checked: the ledger guards it */
  const struct dibs__table *table;  /* NULL: dibs' own */
  struct dibs__counter_item *items; /* ADD: in the order of their keys, each key once */
  uint32_t count;
  /* ADD.  Of one source, one batch at a time is on its way. */
  dibs__id source;
  uint64_t sequence; /* from 1 on; inside a user's transaction 0 */
  dibs__id guard;
  dibs__fence fence; /* 0: no guard */
  /* LIST; not of a user's table. */
  dibs__str prefix, after;
  uint32_t most;
  /* TAKE */
  dibs__str key;
  int64_t amount, limit, per_ms; /* amount <= limit */
  /* Answers. */
  int64_t wait_ms;               /* TAKE, FULL: at least 1 */
  struct dibs__counter_row *got; /* malloc'd, one allocation; NULL: none */
  uint32_t got_count;
  char why[200]; /* for people, with INVALID; may be "" */
};

/* Clears the answers; false: the operation is not well-formed, and its status is INVALID.  `inside` a user's
 * transaction: UNSUPPORTED, if it is a TAKE. */
bool dibs__counter_valid(struct dibs__counter_op *op, bool inside);
/* ADD: how long the ledger keeps its source (R90). */
static inline int64_t dibs__counter_keep_ms(const struct dibs__counter_op *op) {
  return op->fence.v ? DIBS__COUNTER_KEEP_GUARDED_MS : DIBS__COUNTER_KEEP_MS;
}
/* TAKE: what it adds to the instant, and how far ahead of now the instant may be, in ns. */
int64_t dibs__rate_step_ns(const struct dibs__counter_op *op);
int64_t dibs__rate_span_ns(const struct dibs__counter_op *op);
/* TAKE: FULL; the instant is so far ahead of now. */
void dibs__rate_refuse(struct dibs__counter_op *op, int64_t ahead_ns);
/* Sets the status of all items. */
void dibs__counter_set_all(struct dibs__counter_op *op, dibs__status status);
/* LIST: answers copies of these rows.  The status is OK, or NO_MEMORY. */
void dibs__counter_answer(struct dibs__counter_op *op, const struct dibs__counter_row *rows, size_t count);

/*
 * What the ledger keeps of a batch with refused items: for each of them its index in the batch and its status.  The
 * index counts the items in the order in which they were given.
 */
enum { DIBS__COUNTER_REFUSED_MAX = DIBS__COUNTER_ITEMS * 3 };
/* `to` has room for DIBS__COUNTER_REFUSED_MAX bytes.  Returns how many it wrote; 0: no item was refused. */
size_t dibs__counter_write_refused(const struct dibs__counter_op *op, uint8_t *to);
/* Sets the status of all items by what the ledger kept. */
void dibs__counter_read_refused(struct dibs__counter_op *op, const uint8_t *from, size_t len);

#endif
