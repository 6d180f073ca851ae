/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_COUNTER_IMPL_H
#define DIBS_DRIVERS_MONGODB_COUNTER_IMPL_H
/* What counter.c and ledger.c share. */
#include "drivers/mongodb/batch_impl.h"
#include "store/counter.h"

enum { DIBS__MONGO_SOURCE = 33 }; /* 32 digits and a NUL */

/* A batch that was begun so long ago is applied by any client. */
extern int64_t dibs__mongo_late_ms;

/* The document of a source or a guard. */
struct dibs__mongo_ledger {
  bson_t *seen; /* NULL: there is none */
  int64_t version;
  uint64_t sequence; /* of a guard: its largest fence */
  dibs__str refused; /* in `seen` */
  bool applies;      /* it has a batch: */
  bool sure;
  uint64_t batch_sequence;
  bson_t batch; /* in `seen` */
};

/* The new content of such a document. */
struct dibs__mongo_entry {
  uint64_t sequence;
  dibs__str refused;
  int64_t keep_ms;
  const struct dibs__counter_op *op; /* the batch; NULL: none */
  bool sure;
};

void dibs__mongo_source_text(const dibs__id *id, char to[DIBS__MONGO_SOURCE]);
void dibs__mongo_ledger_clear(struct dibs__mongo_ledger *l);
void dibs__mongo_ledger_read(struct dibs__mongo_ledger *l, const bson_t *row); /* NULL: there is none */
dibs__status dibs__mongo_ledger_load(struct dibs__mongo_batch *b, const dibs__id *id, struct dibs__mongo_ledger *l);
/* Replaces the document, if it is still as it was read: `done`, and `l` has the new one. */
dibs__status dibs__mongo_ledger_write(struct dibs__mongo_batch *b, const dibs__id *id, struct dibs__mongo_ledger *l,
                                      const struct dibs__mongo_entry *entry, bool *done);
/* The batch as an operation; its texts are in `l`, and the caller frees its items.  false: it is not one. */
bool dibs__mongo_ledger_op(const struct dibs__mongo_ledger *l, struct dibs__counter_op *op);

#endif
