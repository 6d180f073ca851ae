/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_BATCH_IMPL_H
#define DIBS_DRIVERS_MONGODB_BATCH_IMPL_H
/* A batch while it runs: what run.c and the families with documents of their own (claim.c) share. */
#include "drivers/mongodb/mongodb_impl.h"

enum { DIBS__MONGO_HEADS = 256, DIBS__MONGO_NOTICES = 256, DIBS__MONGO_SESSIONS = 64, DIBS__MONGO_APPLIED = 64 };

/* The document of a claim, as far as it is known since the document of its stock was read. */
enum dibs__mongo_known {
  DIBS__MONGO_UNREAD,
  DIBS__MONGO_FREE,     /* no stock has the claim */
  DIBS__MONGO_BOUND,    /* to this stock, by this client; nothing is taken */
  DIBS__MONGO_HELD,     /* this stock has it outside of its document */
  DIBS__MONGO_GIVEN,    /* the same, given back */
  DIBS__MONGO_ELSEWHERE /* another stock has it */
};

struct dibs__mongo_element {
  struct dibs__op *op;
  void *asked; /* the operation as it was requested */
  size_t size;
  struct dibs__mongo_document *d;
  bool done;
  /* TAKE and GIVE of a stock: the claim. */
  enum dibs__mongo_known known;
  int64_t amount, at; /* HELD, GIVEN */
  int64_t bound_v;    /* the version with which this client bound it; 0: it did not */
  bool adopted;       /* another client had bound it before */
  bool adds;          /* as far as is known, this operation gives the claim to the stock */
  bool wanted;        /* its document is read now */
};

struct dibs__mongo_sent_notice {
  struct dibs__mongo_notice notice;
  const struct dibs__mongo_document *d;
};

struct dibs__mongo_batch {
  struct dibs__mongo_session *session;
  struct dibs__mem_hooks hooks;
  struct dibs__memory *memory;
  struct dibs__mem_open from;
  struct dibs__mongo_document *heads[DIBS__MONGO_HEADS];
  size_t remembered;
  uint32_t document_moves;              /* link->moves when these were read: another member may show claims older */
  uint32_t indexed;                     /* a bit for each index that was made */
  dibs__tick recovered;                 /* when it looked for batches of counters that were left */
  int64_t applied[DIBS__MONGO_APPLIED]; /* of tasks: commits that were applied, by version */
  uint32_t applied_moves;               /* link->moves at that time: another member may not show it yet */
  /* Of the batch that runs. */
  struct dibs__mongo_element *elements;
  size_t count;
  struct dibs__mongo_document *deciding;
  int64_t now;
  struct dibs__mongo_sent_notice notices[DIBS__MONGO_NOTICES];
  size_t notice_count;
  bool tasks_ready; /* a commit made tasks ready */
  struct dibs__result *result;
  /* Sessions whose life was looked up. */
  uint64_t sessions[DIBS__MONGO_SESSIONS];
  bool alive[DIBS__MONGO_SESSIONS];
  size_t session_count;
  uint64_t sleepers[DIBS__MONGO_SESSIONS]; /* sessions of claims that sleep; then those that are gone */
  size_t sleeper_count;
  dibs__tick sleepers_at; /* when their processes are looked up again */
};

/* Is this the first element with its document that is not done? */
bool dibs__mongo_is_first(const struct dibs__mongo_batch *b, size_t i);

/* ---- index.c ---- */

/* Makes an index by this field, once for each connection.  `expires`: the server deletes a document at the time that
 * the field has.  A user without the right to create an index keeps such documents. */
void dibs__mongo_index(struct dibs__mongo_batch *b, enum dibs__mongo_kind kind, const char *field, bool expires);

/* ---- counter.c ---- */

struct dibs__counter_op;
/* It is not decided on a document, but by dibs__mongo_counters; or it has its answer. */
bool dibs__mongo_counter_is_apart(struct dibs__counter_op *op);
void dibs__mongo_counters(struct dibs__mongo_batch *b);

/* ---- own.c ---- */

/* The operations of the batch on dibs' own tasks. */
void dibs__mongo_tasks(struct dibs__mongo_batch *b);
/* Deletes finished tasks whose time is over; without elements. */
void dibs__mongo_tasks_sweep(struct dibs__mongo_batch *b);

/* ---- history.c ---- */

void dibs__mongo_runs(struct dibs__mongo_batch *b);

/* ---- report.c ---- */

void dibs__mongo_reports(struct dibs__mongo_batch *b);

/* ---- claim.c ---- */

/* After the documents of stocks were read: learns of the batch's claims what the decision needs, and binds those that
 * the decision adds. */
dibs__status dibs__mongo_claims_bind(struct dibs__mongo_batch *b);
/* Adds what is known of them to the scratch memory that has their stock. */
dibs__status dibs__mongo_claims_load(struct dibs__mongo_batch *b, const struct dibs__mongo_document *d);
/* Afterwards: removes what was bound and then not needed. */
void dibs__mongo_claims_clean(struct dibs__mongo_batch *b);

/* ---- stock.c ---- */

void dibs__mongo_stock_lists(struct dibs__mongo_batch *b);

#endif
