/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_SQL_H
#define DIBS_SQL_SQL_H
/*
 * What SQL engines share: the schema, the rows, and the decisions.
 *
 * A dialect (src/drivers/sqlite, src/drivers/server) keeps a connection and the statements that move rows; it decides
 * nothing.  This folder decides, in C, inside the dialect's transaction and under the lock that keeps other writers
 * of the same name out (SQLite: the one writer; a server: the row lock that head_load takes).  A dialect may answer
 * common cases by one statement of its own, if the result is the same.
 *
 * The rows:
 *
 *   dibs_name    (bucket, '', 0)         the bucket's own: incarnation, epoch, the last seq drawn, for whom (its
 *                                        `state`), what its clock counts from (its `since`)
 *                (bucket, name, 0)       the head of a name in use: its one exclusive holder inline, the state of its
 *                                        queue.  Deleted when the name has neither holders nor waiters.
 *                (bucket, name, ticket)  each waiter; an offer is a waiter with a state
 *                All of a name and its bucket are neighbours: a change of a name writes one page.
 *   dibs_deep    (bucket, name, id)      the position of a waiter of a long queue
 *   dibs_holder  (bucket, name, id)      each holder of a shared or counted name
 *   dibs_break   (bucket, name, nr)      recorded breaks
 *   dibs_record  (name)                  fence, digest, version, data.  Removed: the version is below 0, no data
 *   dibs_stock (name), dibs_claim (claim), dibs_once (name), dibs_report (id), dibs_counter (name),
 *   dibs_counter_source (id), dibs_rate (name): see wire.h
 *   dibs_meta                            one row: version, incarnation, which file this is
 *
 * Bounds in the head keep each step from growing with the queue: `front` (no WAITING one has a smaller ticket),
 * `reach` (no OFFERED one has a larger one), `due` (no holder row and no offer expires before).
 */
#include "store/store.h"

enum { DIBS__SQL_SCHEMA = 7, DIBS__SQL_BREAKS = 16 };
/* A name's queue of up to so many waiters is searched for an id; those that come when it is longer are found by an
 * index, which costs each of them a page more. */
enum { DIBS__SQL_SHALLOW = 32 };
/* How many waiters are read at once. */
enum { DIBS__SQL_PAGE = 64 };
/* How long a recorded break is kept. */
#define DIBS__SQL_BREAK_KEEP_MS (INT64_C(7) * 86400000)

/* The result of a step.  Everything but OK ends the transaction by a rollback. */
enum dibs__sql_rc {
  DIBS__SQL_OK,
  DIBS__SQL_FAILED,    /* the engine failed; the dialect has the details */
  DIBS__SQL_EXHAUSTED, /* the bucket's epoch has too few fences left: begin the next one, then run again */
  DIBS__SQL_OTHER      /* the store has lost its memory: begin a new incarnation, then run again */
};

enum dibs__sql_waits { DIBS__SQL_WAITING, DIBS__SQL_OFFERED, DIBS__SQL_ASLEEP };

struct dibs__sql_label {
  uint32_t len;
  char text[DIBS_OWNER_MAX + 1];
};

struct dibs__sql_holder {
  dibs__id id;
  uint64_t granted; /* the first fence of the grant; 0: shared, counted */
  uint64_t first;   /* of the current block */
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
  bool deep; /* it is in the index */
  uint32_t mode, slots, ttl_ms;
  int64_t until;  /* of an offer */
  uint64_t first; /* the fence of an exclusive offer; 0: none was left */
  int64_t since;
  uint64_t session;
  struct dibs__sql_label owner;
};

/* What an operation knows of its name. */
struct dibs__sql_head {
  uint16_t bucket;
  dibs__str name;
  bool exists; /* the row exists */
  /* Parts to write at the end. */
  bool queue_changed, holder_changed;

  uint32_t mode, slots;     /* of holders and offers, while there are any: they are all equal */
  uint32_t holders, offers; /* the number of holders */
  uint32_t waiters;         /* offers included */
  uint64_t tickets;         /* the last one drawn since the queue was empty */
  uint64_t front, reach;
  uint32_t low_slot; /* counted: every slot below is taken */
  bool deep;         /* new waiters go to the index */
  int64_t due;       /* 0: neither holder rows nor offers */
  /* The exclusive holder: with holders == 1 and mode == DIBS_EXCLUSIVE. */
  struct dibs__sql_holder x;
};

/* The mandates under which a bucket grants (R35).  In its row NULL means OWN.  `life` is always the store's current
 * incarnation: a mandate of another one is VOID, and nothing is granted until a new one is installed.  LEFT: the bucket
 * moves to another tier; holders go on, and a name without holders is not granted (R46). */
enum dibs__sql_served { DIBS__SQL_OWN, DIBS__SQL_SERVED, DIBS__SQL_VOID, DIBS__SQL_LEFT };

/* The role in which the store was opened. */
struct dibs__sql_opened {
  bool as_tier, as_anchor; /* an anchor is a tier, too */
};

/* A fence is (epoch << 32) + seq.  In a store with a clock, seq of a bucket of its own is not limited to 32 bits: it
 * follows the server's clock.  A LEFT bucket goes on from there by sequence, to the end of those 32 bits. */
struct dibs__sql_bucket {
  uint64_t seq;
  enum dibs__sql_served served;
  dibs__mandate mandate;
  int64_t clock_base; /* with a clock: the server's ms from which `seq` counts its clock; 0: DIBS__SQL_BASE_MS */
};
/* The largest fence that the bucket has drawn. */
static inline dibs__fence dibs__sql_last(const struct dibs__sql_bucket *row) {
  return (dibs__fence){((uint64_t)row->mandate.epoch << 32) + row->seq};
}

/*
 * With a clock: a draw takes at least (now - clock_base) * PER_MS as its seq, so a store that is restored from a
 * backup draws above all that it drew before, unless it drew more than PER_MS a millisecond or its clock was stepped
 * back.  A draw never leads the clock by more than LEAD_MS; a larger block is cut.  The texts of server/text.c have
 * these numbers.
 *
 * A bucket begins with BASE_MS: a store whose tables are lost and made again draws above what it drew before.  An
 * epoch that is above all of that by itself (OPEN; RAISE and ALONE above a fence) begins its clock when it begins:
 * counted from BASE_MS again, each return from another tier would use up as many epochs as fit between BASE_MS and
 * now (R58).
 */
#define DIBS__SQL_BASE_MS INT64_C(1767225600000) /* 2026-01-01 00:00 UTC */
enum { DIBS__SQL_PER_MS = 1024, DIBS__SQL_LEAD_MS = 1000 };

/* A removed record stays, as -version without data: so a writer with an old fence or an old version never takes a
 * record that is made again for the earlier one.  Dialects store all three as signed numbers of 64 bits. */
struct dibs__sql_record {
  uint64_t fence, digest, version;
  const char *data; /* in the dialect's memory, until its next call */
  uint32_t len;
};

struct dibs__sql_break {
  int64_t at;
  uint64_t fence;
  uint32_t mode;
  dibs__str owner;
};

/*
 * The statements about rows that are the same on every engine (schema.c).  $1 is the bucket and $2 the name wherever a
 * statement needs both; "dibs_X" is a table, under the prefix of the store.  They are templates of text.h with two
 * words of the dialect: @{seen}, another column (see struct dibs__rows), and @{by_slot}, a hint to use the index of
 * slots.  A dialect numbers its own statements from DIBS__ROWS_TEXTS on.
 */
enum dibs__rows_text {
  DIBS__ROWS_BUCKET_ADD,
  DIBS__ROWS_BUCKET_SERVE,
  DIBS__ROWS_HEAD,
  DIBS__ROWS_HEAD_ADD,
  DIBS__ROWS_HEAD_SET,
  DIBS__ROWS_HEAD_QUEUE,
  DIBS__ROWS_HEAD_DROP,
  DIBS__ROWS_HOLDER,
  DIBS__ROWS_HOLDER_ADD,
  DIBS__ROWS_HOLDER_SET,
  DIBS__ROWS_HOLDER_DROP,
  DIBS__ROWS_HOLDERS,
  DIBS__ROWS_HOLDERS_EXPIRE,
  DIBS__ROWS_HOLDERS_BREAK,
  DIBS__ROWS_HOLDERS_DROP,
  DIBS__ROWS_HOLDERS_UNTIL,
  DIBS__ROWS_SLOTS,
  DIBS__ROWS_WAITER_AT,
  DIBS__ROWS_WAITER_SHALLOW,
  DIBS__ROWS_WAITER_NEXT,
  DIBS__ROWS_WAITER_OFFERED,
  DIBS__ROWS_WAITERS, /* behind ticket $3, at most DIBS__SQL_PAGE of them */
  DIBS__ROWS_DEEP,
  DIBS__ROWS_DEEP_ADD,
  DIBS__ROWS_DEEP_DROP,
  DIBS__ROWS_WAITER_ADD,
  DIBS__ROWS_WAITER_SET,
  DIBS__ROWS_WAITER_DROP,
  DIBS__ROWS_OFFERS_EXPIRE,
  DIBS__ROWS_OFFERS_UNTIL,
  DIBS__ROWS_BREAK_ADD,
  DIBS__ROWS_BREAK_TRIM,
  DIBS__ROWS_BREAKS,
  DIBS__ROWS_BREAKS_OLD,
  DIBS__ROWS_RECORD,
  DIBS__ROWS_TEXTS
};
extern const char *const dibs__rows_texts[DIBS__ROWS_TEXTS];
/* The columns of a waiter, then @{seen} (or NULL), then those that only a head has. */
#define DIBS__ROWS_WAITER "place, state, id, session, mode, slots, until, deep, ttl, since, owner, first"
#define DIBS__ROWS_ONLY_HEAD "granted, block, broken, waiters, holders, offers, tickets, front, reach, low_slot, due"

/* The dialect's statements.  `to` is the dialect's connection.  `*found`: there is one. */
struct dibs__sql_rows {
  /* Rows contradict each other: FAILED, and the store is damaged. */
  enum dibs__sql_rc (*wrong)(void *to);

  /* The pointer is valid until the transaction ends. */
  enum dibs__sql_rc (*bucket_get)(void *to, uint16_t bucket, struct dibs__sql_bucket **row);
  /* seq, epoch or clock_base of `row` have changed */
  enum dibs__sql_rc (*bucket_put)(void *to, uint16_t bucket);
  enum dibs__sql_rc (*bucket_serve)(void *to, uint16_t bucket); /* `served` has changed */

  enum dibs__sql_rc (*head_load)(void *to, struct dibs__sql_head *head); /* bucket and name are set */
  enum dibs__sql_rc (*head_add)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_rc (*head_set)(void *to, const struct dibs__sql_head *head); /* all of it */
  enum dibs__sql_rc (*head_set_queue)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_rc (*head_drop)(void *to, const struct dibs__sql_head *head);

  enum dibs__sql_rc (*holder_find)(void *to, const struct dibs__sql_head *head, dibs__id id,
                                   struct dibs__sql_holder *holder, bool *found);
  enum dibs__sql_rc (*holder_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *holder);
  /* until, ttl, session */
  enum dibs__sql_rc (*holder_set)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *holder);
  enum dibs__sql_rc (*holder_drop)(void *to, const struct dibs__sql_head *head, dibs__id id);
  enum dibs__sql_rc (*holders_expire)(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
  /* Calls `each` for all; then marks them broken, or deletes them. */
  enum dibs__sql_rc (*holders_each)(void *to, const struct dibs__sql_head *head,
                                    void (*each)(void *arg, const struct dibs__sql_holder *holder), void *arg);
  enum dibs__sql_rc (*holders_break)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_rc (*holders_drop)(void *to, const struct dibs__sql_head *head);
  enum dibs__sql_rc (*holders_first_until)(void *to, const struct dibs__sql_head *head, int64_t *until);
  /* The smallest free slot from low_slot on. */
  enum dibs__sql_rc (*slot_free)(void *to, const struct dibs__sql_head *head, uint32_t *slot);

  /* By ticket if it is not 0 and has this id, else by id. */
  enum dibs__sql_rc (*waiter_find)(void *to, const struct dibs__sql_head *head, dibs__id id, uint64_t ticket,
                                   struct dibs__sql_waiter *waiter, bool *found);
  /* The first WAITING one from head->front on. */
  enum dibs__sql_rc (*waiter_next)(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *waiter,
                                   bool *found);
  /* The OFFERED one; called only if there is one. */
  enum dibs__sql_rc (*waiter_offered)(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *waiter,
                                      bool *found);
  enum dibs__sql_rc (*waiter_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *waiter);
  /* state, until, session, first */
  enum dibs__sql_rc (*waiter_set)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *waiter);
  enum dibs__sql_rc (*waiter_drop)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *waiter);
  enum dibs__sql_rc (*offers_expire)(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
  enum dibs__sql_rc (*offers_first_until)(void *to, const struct dibs__sql_head *head, int64_t *until);

  /* Adds one and deletes those before the last DIBS__SQL_BREAKS. */
  enum dibs__sql_rc (*break_add)(void *to, const struct dibs__sql_head *head, const struct dibs__sql_break *row);

  enum dibs__sql_rc (*record_load)(void *to, dibs__str key, struct dibs__sql_record *record, bool *found);
  /* `data` false: fence and digest only; a new row has version 0 then, and no data. */
  enum dibs__sql_rc (*record_put)(void *to, dibs__str key, const struct dibs__sql_record *record, bool data);
};

/* One run of operations within one transaction. */
struct dibs__sql {
  const struct dibs__sql_rows *rows;
  void *to;
  int64_t now;      /* the store's clock, read after other writers were locked out */
  uint64_t session; /* the session of the request */
  struct dibs__sql_opened opened;
  bool clocked;          /* `now` is a wall clock, which does not go back with a restored backup */
  bool left;             /* of the current lease operation: its bucket is LEFT */
  uint32_t served_under; /* of the current lease operation: the installed epoch; 0: none */
  bool denied;           /* output: a lease operation was denied, because its bucket is served elsewhere, */
  char served_by[40];    /* by this tier; "": unknown */
  /* Both about sessions of any process; `post` takes effect when the transaction is committed. */
  bool (*alive)(void *to, uint64_t session);
  void (*post)(void *to, uint64_t session, enum dibs__event_what what, dibs__id id);
  /* An exclusive offer, with its fence and its end in the store's clock. */
  void (*offer)(void *to, uint64_t session, dibs__id id, uint64_t fence, int64_t until);
};

/* Each answers one operation; EXHAUSTED and OTHER leave it unanswered.  (lease.c, guard.c) */
enum dibs__sql_rc dibs__sql_lease(struct dibs__sql *sql, struct dibs__lease_op *op);
enum dibs__sql_rc dibs__sql_anchor(struct dibs__sql *sql, struct dibs__anchor_op *op);
enum dibs__sql_rc dibs__sql_record(struct dibs__sql *sql, struct dibs__record_op *op);

/* For a dialect's fast statements: is the operation well-formed?  If not, its status is set. */
bool dibs__sql_lease_valid(struct dibs__lease_op *op);
/* How many fences a grant draws at once. */
static inline uint32_t dibs__sql_wanted_fences(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}
/* Draws `want` fences, fewer if they would lead the clock.  OK or EXHAUSTED; the row must be put afterwards. */
enum dibs__sql_rc dibs__sql_draw(const struct dibs__sql *sql, struct dibs__sql_bucket *row, uint32_t want,
                                 uint64_t *first, uint32_t *block);
/* With a clock, in a bucket of its own: as if it had drawn just now all that its clock allows. */
void dibs__sql_clock_in(const struct dibs__sql *sql, struct dibs__sql_bucket *row);
/* The same: its clock begins now, at `seq`. */
void dibs__sql_clock_begin(const struct dibs__sql *sql, struct dibs__sql_bucket *row);
/* Begins the bucket's next epoch.  false: there is none.  A bucket that is served begins none: its epoch counts as used
 * up. */
bool dibs__sql_next_epoch(struct dibs__sql_bucket *row);
/* Begins an epoch of the bucket's own that is above all that it had, and above that fence.  false: there is none. */
bool dibs__sql_epoch_above(struct dibs__sql_bucket *row, dibs__fence above);
/* May a fast statement answer?  A tier's operations need an installed mandate, others the store's own, an anchor's
 * either. */
static inline bool dibs__sql_answers(struct dibs__sql_opened opened, enum dibs__sql_served served) {
  if (served == DIBS__SQL_SERVED) return opened.as_tier;
  return served == DIBS__SQL_OWN && (!opened.as_tier || opened.as_anchor);
}
/* The same, as a condition on `coalesce(state, 0)` of the bucket's row. */
static inline const char *dibs__sql_ours(struct dibs__sql_opened opened) {
  return opened.as_anchor ? "< 2" : opened.as_tier ? "= 1" : "= 0";
}
/* Is the operation's mandate that of the bucket?  If not, it is answered: MOVED, DENIED. */
bool dibs__sql_stands(struct dibs__sql_opened opened, const struct dibs__sql_bucket *row, struct dibs__op *op);
/* Has a bucket that is served fewer fences left than the operation may draw?  Then the operation is answered MOVED. */
bool dibs__sql_used_up(const struct dibs__sql_bucket *row, struct dibs__lease_op *op);
/* The mandate to hint to a client that connects. */
static inline dibs__mandate dibs__sql_hint(struct dibs__sql_opened opened, const struct dibs__sql_bucket *row) {
  dibs__mandate hint = row->mandate;
  if (!dibs__sql_answers(opened, row->served)) hint.epoch = 0;
  return hint;
}
/* The record that an anchor keeps of its tiers, and the tier that serves the bucket according to it, for people; "" if
 * unknown.  (tier/state.c) */
#define DIBS__SQL_TIERS_KEY "\001tiers"
void dibs__tiers_who_serves(dibs__str text, uint32_t bucket, char *to, size_t size);
/* The reason for DENIED. */
void dibs__sql_say_served(const char *store, const char *served_by, struct dibs__result *result);

/* ---- One name (lease.c) ---- */

/* Loads the head, removes what has expired, offers what is free. */
enum dibs__sql_rc dibs__sql_enter(struct dibs__sql *sql, struct dibs__sql_head *head);
/* Writes the head as it is now. */
enum dibs__sql_rc dibs__sql_leave(struct dibs__sql *sql, struct dibs__sql_head *head);
enum dibs__sql_rc dibs__sql_pass_on(struct dibs__sql *sql, struct dibs__sql_head *head);
/* Removes one waiter from the queue and its counts. */
enum dibs__sql_rc dibs__sql_waiter_out(struct dibs__sql *sql, struct dibs__sql_head *head,
                                       const struct dibs__sql_waiter *waiter);

static inline bool dibs__sql_inline(const struct dibs__sql_head *head) {
  return head->holders && head->mode == DIBS_EXCLUSIVE;
}

#endif
