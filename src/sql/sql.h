/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_SQL_H
#define DIBS_SQL_SQL_H
/*
 * What SQL engines share: the schema, the rows, and the decisions.
 *
 * A dialect (drivers/sqlite*, later postgres, mysql) keeps a connection and the statements that move rows; it decides
 * nothing.  The decisions are made here, in C, inside the dialect's transaction and under whatever keeps other writers
 * of the same name out (SQLite: the one writer; a server: the row lock that head_load takes).  A dialect may answer
 * common cases by one statement of its own, as long as it comes to the same.
 *
 * The rows:
 *
 *   dibs_name    (bucket, '', 0)         the bucket's own: life, epoch, the last seq drawn, for whom (its `state`)
 *                (bucket, name, 0)       the head of a name in use: its one exclusive holder inline, what its queue
 *                                        is like.  Gone when nobody is there.
 *                (bucket, name, ticket)  each waiter; an offer is a waiter with a state
 *                All of a name and its bucket lie beside each other: what happens to it writes one page.
 *   dibs_deep    (bucket, name, id)      where a waiter of a long queue stands
 *   dibs_holder  (bucket, name, id)      each holder of a shared or counted name
 *   dibs_break   (bucket, name, nr)      recorded breaks
 *   dibs_record  (name)                  fence, digest, version, data.  Removed: the version is below 0, no data
 *   dibs_stock (name), dibs_claim (claim), dibs_once (name), dibs_report (id): see guard.h
 *   dibs_meta                            one row: version, life, what file this is
 *
 * What keeps each step from growing with the queue are bounds kept in the head: `front` (nobody WAITING has a smaller
 * ticket), `reach` (nobody OFFERED has a larger one), `due` (no holder row and no offer ends before).
 */
#include "store/store.h"

enum { DIBS__SQL_SCHEMA = 3, DIBS__SQL_BREAKS = 16 };
/* Up to so many waiters a name's queue is searched for an id; those that come when it is longer are found by an
 * index, which costs each of them a page more. */
enum { DIBS__SQL_SHALLOW = 32 };
/* How long a recorded break is kept. */
#define DIBS__SQL_BREAK_KEEP_MS (INT64_C(7) * 86400000)

/* What a step came to.  Everything but FINE ends the transaction by a rollback. */
enum dibs__sql_step {
  DIBS__SQL_FINE,
  DIBS__SQL_BROKE, /* the engine failed; the dialect knows how */
  DIBS__SQL_SPENT, /* the bucket's epoch has too few fences left: make the next one, then begin again */
  DIBS__SQL_OTHER  /* the store's memory is not the one it was: begin a new incarnation, then begin again */
};

enum dibs__sql_waits { DIBS__SQL_WAITING, DIBS__SQL_OFFERED, DIBS__SQL_ASLEEP };

struct dibs__sql_label {
  uint32_t len;
  char text[DIBS_OWNER_MAX + 1];
};

struct dibs__sql_holder {
  dibs__id id;
  uint64_t granted; /* the first fence of the grant; 0: shared, counted */
  uint64_t first;   /* of the block that stands */
  uint32_t block;
  uint32_t slot;
  uint32_t ttl_ms;
  bool broken;
  int64_t until, since;
  uint64_t session;
  struct dibs__sql_label owner;
};

struct dibs__sql_waiter {
  uint64_t ticket;
  dibs__id id;
  enum dibs__sql_waits state;
  bool deep; /* in the index */
  uint32_t mode, slots, ttl_ms;
  int64_t until;  /* of an offer */
  uint64_t first; /* the fence of an exclusive offer; 0: none was left */
  int64_t since;
  uint64_t session;
  struct dibs__sql_label owner;
};

/* What an operation knows of the name that it is about. */
struct dibs__sql_head {
  uint16_t bucket;
  dibs__str name;
  bool exists; /* there is a row */
  /* What must be written at the end. */
  bool queue_changed, holder_changed;

  uint32_t mode, slots;     /* of holders and offers, while there are any: they are all alike */
  uint32_t holders, offers; /* how many */
  uint32_t waiters;         /* offers included */
  uint64_t tickets;         /* the last one drawn since the queue was empty */
  uint64_t front, reach;
  uint32_t low_slot; /* counted: none below is free */
  bool deep;         /* new waiters go to the index */
  int64_t due;       /* 0: neither holder rows nor offers */
  /* The exclusive holder: with holders == 1 and mode == DIBS_EXCLUSIVE. */
  struct dibs__sql_holder x;
};

/* Under whose mandates a bucket is granted (R35).  In its row NULL stands for OWN.  `life` is always the store's
 * present one: what was installed in another is VOID, and nothing is granted until something is installed again. */
enum dibs__sql_served { DIBS__SQL_OWN, DIBS__SQL_SERVED, DIBS__SQL_VOID };

struct dibs__sql_bucket {
  uint32_t seq;
  enum dibs__sql_served served;
  dibs__mandate mandate;
};

/* A removed record stays, as -version without data: neither who comes late with an old fence nor who has seen an old
 * version takes what is made anew for what was there.  Dialects store all three as signed numbers of 64 bits. */
struct dibs__sql_record {
  uint64_t fence, digest, version;
  const char *data; /* the dialect's, until its next call */
  uint32_t len;
};

struct dibs__sql_break {
  int64_t at;
  uint64_t fence;
  uint32_t mode;
  dibs__str owner;
};

/* The dialect's statements.  `to` is the dialect's connection.  `*found`: there is one. */
struct dibs__sql_rows {
  /* Rows contradict each other: BROKE, and the store is damaged. */
  enum dibs__sql_step (*wrong)(void *to);

  /* The pointer is good until the transaction ends. */
  enum dibs__sql_step (*bucket_get)(void *to, uint16_t bucket, struct dibs__sql_bucket **row);
  enum dibs__sql_step (*bucket_put)(void *to, uint16_t bucket); /* seq and epoch of what `row` points to were changed */
  enum dibs__sql_step (*bucket_serve)(void *to, uint16_t bucket); /* `served` was */

  enum dibs__sql_step (*head_load)(void *to, struct dibs__sql_head *head); /* bucket and name are set */
  enum dibs__sql_step (*head_add)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_step (*head_set)(void *to, const struct dibs__sql_head *head); /* all of it */
  enum dibs__sql_step (*head_set_queue)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_step (*head_drop)(void *to, const struct dibs__sql_head *head);

  enum dibs__sql_step (*holder_find)(void *to, const struct dibs__sql_head *head, dibs__id id,
                                     struct dibs__sql_holder *holder, bool *found);
  enum dibs__sql_step (*holder_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *holder);
  /* until, ttl, session */
  enum dibs__sql_step (*holder_set)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *holder);
  enum dibs__sql_step (*holder_drop)(void *to, const struct dibs__sql_head *head, dibs__id id);
  enum dibs__sql_step (*holders_expire)(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
  /* Calls `each` for all; then marks them broken, or drops them. */
  enum dibs__sql_step (*holders_each)(void *to, const struct dibs__sql_head *head,
                                      void (*each)(void *arg, const struct dibs__sql_holder *holder), void *arg);
  enum dibs__sql_step (*holders_break)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_step (*holders_drop)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_step (*holders_first_until)(void *to, const struct dibs__sql_head *head, int64_t *until);
  /* The smallest slot from low_slot on that nobody has. */
  enum dibs__sql_step (*slot_free)(void *to, const struct dibs__sql_head *head, uint32_t *slot);

  /* By ticket if it is not 0 and has this id, else by id. */
  enum dibs__sql_step (*waiter_find)(void *to, const struct dibs__sql_head *head, dibs__id id, uint64_t ticket,
                                     struct dibs__sql_waiter *waiter, bool *found);
  /* The first WAITING one from head->front on. */
  enum dibs__sql_step (*waiter_next)(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *waiter,
                                     bool *found);
  /* The one that is OFFERED; asked only when there is one. */
  enum dibs__sql_step (*waiter_offered)(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *waiter,
                                        bool *found);
  enum dibs__sql_step (*waiter_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *waiter);
  /* state, until, session, first */
  enum dibs__sql_step (*waiter_set)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *waiter);
  enum dibs__sql_step (*waiter_drop)(void *to, const struct dibs__sql_head *head,
                                     const struct dibs__sql_waiter *waiter);
  enum dibs__sql_step (*offers_expire)(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
  enum dibs__sql_step (*offers_first_until)(void *to, const struct dibs__sql_head *head, int64_t *until);

  /* Adds one and forgets those before the last DIBS__SQL_BREAKS. */
  enum dibs__sql_step (*break_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_break *row);

  enum dibs__sql_step (*record_load)(void *to, dibs__str key, struct dibs__sql_record *record, bool *found);
  /* `data` false: fence and digest only; a new row has version 0 then, and no data. */
  enum dibs__sql_step (*record_put)(void *to, dibs__str key, const struct dibs__sql_record *record, bool data);
};

/* One run of operations within one transaction. */
struct dibs__sql {
  const struct dibs__sql_rows *rows;
  void *to;
  int64_t now;           /* the store's clock, read after other writers were shut out */
  uint64_t session;      /* who asks */
  bool as_tier;          /* the store was opened as one */
  uint32_t served_under; /* of the lease operation that goes on: what was installed; 0: nothing */
  bool denied;           /* told: some lease operation was, because it was not */
  /* Both about sessions of any process; `post` takes effect when the transaction is committed. */
  bool (*alive)(void *to, uint64_t session);
  void (*post)(void *to, uint64_t session, enum dibs__event_what what, dibs__id id);
  /* An exclusive offer, with its fence and its end in the store's clock. */
  void (*offer)(void *to, uint64_t session, dibs__id id, uint64_t fence, int64_t until);
};

/* Each answers one operation; SPENT and OTHER leave it unanswered.  (lease.c, queue.c, guard.c) */
enum dibs__sql_step dibs__sql_lease(struct dibs__sql *sql, struct dibs__lease_op *op);
enum dibs__sql_step dibs__sql_anchor(struct dibs__sql *sql, struct dibs__anchor_op *op);
enum dibs__sql_step dibs__sql_record(struct dibs__sql *sql, struct dibs__record_op *op);

/* For a dialect's fast statements: is the operation well-formed?  Else its status is set. */
bool dibs__sql_lease_valid(struct dibs__lease_op *op);
/* Draws `want` fences for the bucket's row in this transaction, or SPENT. */
enum dibs__sql_step dibs__sql_draw_put(struct dibs__sql *sql, uint16_t bucket, uint32_t want, uint64_t *first,
                                       uint32_t *block);
/* Draws `want` fences.  FINE or SPENT; the row must be put afterwards. */
enum dibs__sql_step dibs__sql_draw(struct dibs__sql_bucket *row, uint32_t want, uint64_t *first, uint32_t *block);
/* The bucket's next epoch.  false: there is none.  Of one that is served it makes none: the epoch counts as used up. */
bool dibs__sql_next_epoch(struct dibs__sql_bucket *row);
/* What answers whom: a tier's operations what was installed, others' what the store has of its own. */
static inline enum dibs__sql_served dibs__sql_answers(bool as_tier) {
  return as_tier ? DIBS__SQL_SERVED : DIBS__SQL_OWN;
}
/* Does the operation stand under the bucket's mandate?  Else it is answered: MOVED, DENIED. */
bool dibs__sql_stands(bool as_tier, const struct dibs__sql_bucket *row, struct dibs__op *op);
/* Has a bucket that is served fewer fences left than the operation may draw?  Then it is answered MOVED. */
bool dibs__sql_used_up(const struct dibs__sql_bucket *row, struct dibs__lease_op *op);
/* What may be hinted to who connects. */
static inline dibs__mandate dibs__sql_hint(bool as_tier, const struct dibs__sql_bucket *row) {
  dibs__mandate hint = row->mandate;
  if (as_tier == (row->served == DIBS__SQL_OWN)) hint.epoch = 0;
  return hint;
}
/* Why some were denied. */
void dibs__sql_say_served(const char *store, struct dibs__said *said);

/* ---- Within the room (queue.c) ---- */

/* Loads the head, drops what is over, offers what is free. */
enum dibs__sql_step dibs__sql_enter(struct dibs__sql *sql, struct dibs__sql_head *head);
/* Writes the head as it is now. */
enum dibs__sql_step dibs__sql_leave(struct dibs__sql *sql, struct dibs__sql_head *head);
enum dibs__sql_step dibs__sql_pass_on(struct dibs__sql *sql, struct dibs__sql_head *head);
/* After pass_on: somebody live and awake waits. */
bool dibs__sql_somebody_waits(const struct dibs__sql_head *head);
bool dibs__sql_fits(const struct dibs__sql_head *head, uint32_t mode, uint32_t slots);
enum dibs__sql_step dibs__sql_recheck(struct dibs__sql *sql, const struct dibs__sql_head *head, int64_t *at);
/* Takes one waiter out, with what it counted for. */
enum dibs__sql_step dibs__sql_waiter_out(struct dibs__sql *sql, struct dibs__sql_head *head,
                                         const struct dibs__sql_waiter *waiter);
/* Takes one holder out; pass_on is the caller's. */
enum dibs__sql_step dibs__sql_holder_out(struct dibs__sql *sql, struct dibs__sql_head *head,
                                         const struct dibs__sql_holder *holder);
void dibs__sql_due_by(struct dibs__sql_head *head, int64_t until);

static inline bool dibs__sql_inline(const struct dibs__sql_head *head) {
  return head->holders && head->mode == DIBS_EXCLUSIVE;
}

#endif
