/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_STORE_H
#define DIBS_STORE_STORE_H
/* clang-format off */
/*
 * THE CONTRACT between the core and a driver: whatever keeps leases and records for us.
 *
 * A driver holds statements, scripts and mapping; the state machine lives above it.  The core hands it batches of
 * operations (run), asks it what happened (events), and lets it look (list).  test/contract/ is the other half of this
 * page: each requirement has a number, R1..., and a test that carries it.
 *
 *  R1  Every element of a batch is answered on its own; the order of elements for one name is the order of answers.
 *  R2  An operation may be asked again with the same id, after any outcome, and finds its own earlier effect.
 *  R3  Equal non-zero lanes never travel in two batches at once.  (The core keeps this; a driver relies on it.)
 *  R4  Elements of one group (non-zero) commit together or not at all.  The core never splits a group.
 *  R5  An operation under another mandate than the store's answers MOVED, does nothing, and says what the store has.
 *  R6  run() answers OK when every element is answered; UNAVAILABLE when nothing was done; UNKNOWN when the elements
 *      that still say UNKNOWN may have happened.  Only run() itself failing counts as the store being down.
 *  R7  run() returns by its deadline, give or take a scheduling delay.  Elements whose name is locked by somebody
 *      who is slow answer UNAVAILABLE on their own.
 *  R8  Only the store's clock decides whether a lease is over.  It does not step; `until` is in its timeline.
 *  R9  At any instant of the store's clock a name has one exclusive holder, or any number of shared ones, or up to N
 *      counted ones, all of the same N; offers count as holders.
 *  R10 Exclusive grants of one name have growing fences, also across expiry, crash, and a restart that lost memory.
 *      A block of fences is counted as used whole.  Shared and counted grants have fence 0.
 *  R11 First come, first served: nobody is granted or offered what an earlier live, awake waiter waits for.
 *  R12 A waiter whose session is gone is passed over, at the latest when it would have been offered.
 *  R13 An offer that is not confirmed in offer_ms passes on; its waiter sleeps, keeps its place, and is awake again
 *      after its next re-check.
 *  R14 Renew, release of a lease that is over, or of another id or fence, answer LOST and change nothing.
 *  R15 Cancel takes away whatever the id has: a place in the queue, an offer, a lease; and says which.
 *  R16 A broken lease can't be renewed.  Unless broken at once, it keeps the name until released or expired.
 *  R17 Events may be lost or come twice; they delay at most, never mislead.
 *  R18 A record refuses (STALE) a fence below the one it remembers, or an equal one of another lease id.
 *  R19 list() shows each holder and waiter that is there from beginning to end of the listing exactly once.
 *  R20 A driver that is opened on what it can't serve (damaged, foreign, newer) refuses and changes nothing.
 *  R21 A guarded put or drop of a record is done only if all its guards hold; else it changes nothing and says which
 *      does not: NOT_FOUND, else STALE with the fence that is remembered, else CONFLICT with the version that stands.
 *  R22 A version of a key stands for one content: also across a removal the next one is another.
 *  R23 A removed record remembers its fence: R18 holds for who comes late and would make it anew.
 *  R24 What claims hold of a stock, together, is its `used`, and never more than its limit.
 *  R25 A claim counts once: taken again it answers REPLAY with what it holds, whatever is left; CONFLICT if it was given
 *      back or is another stock's.
 *  R26 Takes and gives of one stock are decided in the order of the batch: one that does not fit is refused, a smaller
 *      one behind it may fit.
 *  R27 One bad claim poisons nobody: in a batch where one repeats, one has no stock and one does not fit, each gets its
 *      own answer and all others are in.
 *  R28 What a claim holds is given back once.  A claim that is given back before it was taken never counts.
 *  R29 A fenced take or give is refused (STALE) as in R18, unless it was done before.
 *  R30 An answer that is stored under a key stands until its time is over or it is forgotten: whoever begins or stores
 *      meanwhile gets it (REPLAY), and changes nothing.
 *  R31 An attempt refuses (STALE) what attempts with a lower fence, or an equal one of another id, do later: also when
 *      its answer was forgotten or its time is over, as long as the row is there.
 *  R32 What an attempt asks again (begin, store) after any outcome finds what it did: OK.
 *  R33 Two keys know nothing of each other.  Answers are any bytes, up to DIBS_RECORD_MAX.
 *  R34 A mandate is installed only upwards, and only for the life that the store has; its sequence begins anew.
 *  R35 A bucket that is served for an anchor elsewhere is granted under nothing but the mandate that was installed last,
 *      in the life in which it was; its store makes no epoch for it.  Whoever did not open the store as a tier is
 *      refused (DENIED), and changes nothing.
 *  R36 A reader of reports sees, of each client, the latest that was put before, unless it is older than was asked.
 *
 * Threads: open, close, connect, disconnect are called by one thread at a time; with CAP_PARALLEL, which connect tells,
 * connect and disconnect by several, each for a session of its own.  run and list: one caller a session.
 * events: one caller a store.  wake: any thread.  No lock of the core is held across any of them.
 */
/* clang-format on */
#include "base/port.h"
#include "dibs.h"
#include "store/fence.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIBS__DRIVER_ABI 3u

/* An instant of the store's own timeline: opaque milliseconds, never compared with ours. */
typedef struct {
  int64_t ms;
} dibs__when;

/* Drawn by the caller, secret: proves ownership and makes its operation safe to repeat. */
typedef struct {
  uint8_t b[16];
} dibs__id;

/* Not terminated. */
typedef struct {
  const char *p;
  uint32_t len;
} dibs__str;

/* Which life of a store's memory: differs when some of it may have been lost. */
typedef struct {
  uint8_t b[20];
} dibs__life;

/* The right under which an operation is asked (one a bucket of names). */
typedef struct {
  uint32_t epoch; /* 0: the caller knows none yet, and is told */
  dibs__life life;
} dibs__mandate;

/* Statuses beside those of dibs.h; never shown outside. */
typedef int32_t dibs__status;
enum { DIBS__QUEUED = 100, DIBS__MOVED = 101 };

enum dibs__cap {
  DIBS__CAP_SHARED = 1,         /* shared leases */
  DIBS__CAP_COUNTED = 2,        /* counted leases */
  DIBS__CAP_FIFO = 4,           /* R11 */
  DIBS__CAP_GRANT_NEXT = 8,     /* a release makes the offer by itself */
  DIBS__CAP_EVENTS = 16,        /* events() sleeps until something happened; else it only sleeps */
  DIBS__CAP_SESSION = 32,       /* leases die with their session, at once */
  DIBS__CAP_ATOMIC = 64,        /* groups */
  DIBS__CAP_ANCHOR = 128,       /* durable: may remember epochs for others; serves FAM_ANCHOR */
  DIBS__CAP_VOLATILE = 256,     /* its memory may be lost while it is up */
  DIBS__CAP_PARALLEL = 512,     /* more than one session does useful work at once */
  DIBS__CAP_BRIEF = 2048,       /* a batch takes microseconds; with a deadline of a few ms run() does it, or answers
                                   UNAVAILABLE and nothing was done: an event loop may carry it */
  DIBS__CAP_OFFERS_LAST = 4096, /* an offer made after QUEUED was answered has a larger fence than that answer, and
                                   stands at least DIBS__OFFER_MS from when QUEUED was asked */
  DIBS__CAP_BLOCKS = 1024       /* grants and renewals may draw blocks of fences (cohort hand-off) */
};

/* ---- Operations --------------------------------------------------------------------------------------------- */

enum dibs__family { /* appended only */
                    DIBS__FAM_LEASE,
                    DIBS__FAM_ANCHOR,
                    DIBS__FAM_RECORD,
                    DIBS__FAM_STOCK,
                    DIBS__FAM_ONCE,
                    DIBS__FAM_REPORT,
                    DIBS__FAM_TIERS, /* of a tiered store only: tier/tiers.h */
                    DIBS__FAM_COUNT
};

enum {
  DIBS__OP_READS = 1, /* changes nothing */
  DIBS__OP_URGENT = 2 /* renew, confirm, release: never behind what can wait for a row lock */
};

enum { DIBS__BUCKETS = 100, DIBS__OFFER_MS = 500, DIBS__BLOCK_MAX = 1024 };

/* Head of every operation: all that the combiner, tiers and shims need to know. */
struct dibs__op {
  uint16_t family, verb;
  uint16_t flags;
  uint16_t bucket;       /* of the name: dibs__bucket() */
  uint32_t lane;         /* R3 */
  uint32_t group;        /* R4 */
  dibs__mandate mandate; /* R5 */
  dibs__tick by;         /* run() may be given less, never more */
  /* Answered by the driver. */
  dibs__status status; /* the core sets UNKNOWN before run() */
  dibs__mandate has;   /* with MOVED: what the store has; epoch 0: nothing */
  /* The core's; a driver never touches them. */
  struct dibs__op *next;
  void (*done)(struct dibs__op *);
  struct dibs__call *call;
  uint32_t state;
  dibs__when at;   /* the store's clock when it was answered */
  dibs__tick sent; /* ours, before it was sent */
};

enum dibs__lease_verb {
  /* Grants, confirms or queues, by what the store knows of `id`:
   *   holds it (not over, not broken) -> OK, the same fence, block, slot and until
   *   is offered it                   -> OK, a new holder: until = now + ttl.  Its fence is the offer's, or, with a
   *                                      block wanted, drawn now
   *   waits                           -> OK if it can be granted now, else QUEUED (with the same ticket); awake again
   *   is unknown                      -> OK if it is compatible with holders and offers and nobody live waits;
   *                                      else, `queue`: QUEUED at the end of the line, or HELD.
   * INVALID: counted, and the holders' number of slots is another. */
  DIBS__ACQUIRE,
  /* RENEW and RELEASE: of a holder, or of who is offered an exclusive name, by the fence that the offer drew. */
  DIBS__RENEW,   /* OK: until = now + ttl; with want_block also a new block.  LOST.  `waiting` is set. */
  DIBS__RELEASE, /* OK: the next live waiters get offers.  LOST. */
  DIBS__CANCEL,  /* OK, with `was`; NOT_FOUND.  Like a release if it was held or offered. */
  DIBS__BREAK /* all holders of the name, and who is offered it if it is exclusive; `now` at once.  OK with `until` the
                 last holder's; NOT_FOUND.  Recorded. */
};

enum { DIBS__WAS_NOTHING = 0, DIBS__WAS_WAITING = 1, DIBS__WAS_OFFERED = 2, DIBS__WAS_HELD = 3 };

struct dibs__lease_op {
  struct dibs__op op;
  dibs__str name;
  dibs__str owner; /* ACQUIRE: the holder's label.  BREAK: who breaks */
  dibs__id id;
  dibs__fence fence; /* RENEW, RELEASE: any fence of the block that was granted.  ACQUIRE, RENEW answer: the first;
                        QUEUED: see CAP_OFFERS_LAST */
  uint32_t mode;     /* dibs_mode */
  uint32_t slots;    /* counted: N */
  uint32_t ttl_ms;
  uint32_t want_block; /* fences wanted; 0 at ACQUIRE means 1; 0 at RENEW means none */
  uint64_t ticket;     /* of a waiter: what QUEUED gave, or 0.  Answer of QUEUED: never 0 */
  bool queue;
  bool now; /* BREAK */
  /* Answers. */
  bool waiting;       /* somebody waits in the store's queue for this name */
  uint32_t got_block; /* fences drawn, from `fence` on; 0 for shared and counted */
  uint32_t slot;
  uint32_t was;     /* CANCEL */
  dibs__when until; /* OK: when it is over.  BREAK: when it is free at the latest */
  const char
      *tier; /* OK: which of several tiers answered, for people; lives as long as the store.  NULL: there is one */
  dibs__when recheck; /* QUEUED, HELD: when a holder or an offer runs out, if nothing happens before */
};

enum dibs__anchor_verb {
  DIBS__ANCHOR_READ, /* OK: `stands` is the bucket's mandate */
  DIBS__ANCHOR_NEXT, /* makes the next epoch if the standing one is op.mandate's: OK, or CONFLICT; `stands` either way
                      */
  /* op.mandate becomes the bucket's, and the sequence begins anew, if its life is the store's present one and its epoch
   * is above what the bucket has: OK, else CONFLICT; `stands` either way.  From then on the bucket is `served` for an
   * anchor elsewhere (R35): NEXT answers CONFLICT; what is asked under another mandate, or after a new life began, or
   * when the epoch is used up, answers MOVED and what it has. */
  DIBS__ANCHOR_INSTALL,
  /* The bucket is the store's own again, under an epoch above all that it had.  OK, `stands`. */
  DIBS__ANCHOR_ALONE
};

/* Of a bucket's mandate in the store itself.  A store that is served answers as `has` and `stands` the epoch that was
 * installed last (0: nothing is remembered) and the life that it has now. */
struct dibs__anchor_op {
  struct dibs__op op; /* op.mandate is not checked here but compared by NEXT, installed by INSTALL */
  dibs__mandate stands;
  bool served; /* answered by all */
};

enum dibs__record_verb {
  DIBS__RECORD_LOAD, /* OK, NOT_FOUND */
  DIBS__RECORD_SEAL, /* OK (creates an empty one; not in a table of the user's: NOT_FOUND), STALE */
  DIBS__RECORD_SAVE, /* OK, STALE.  dibs' own table only */
  /* Writes, if the guards hold (R21): OK with the new version.  Without IF_VERSION dibs' own table makes what is not
   * there; a table of the user's only with IF_ABSENT. */
  DIBS__RECORD_PUT,
  DIBS__RECORD_DROP /* Removes, if the guards hold (R21, R22, R23): OK, NOT_FOUND */
};

/* Guards of PUT and DROP: any of them together, but not VERSION with ABSENT. */
enum {
  DIBS__IF_VERSION = 1, /* if_version stands; in dibs' own table "0" is nothing there */
  DIBS__IF_ABSENT = 2,  /* nothing is there (sealed, or removed) */
  DIBS__IF_FENCE = 4    /* R18; raises the remembered fence */
};

/* A table of the user's, as it was declared (store/table.h); NULL in an operation: dibs' own. */
struct dibs__table;

/* With a table, `values` has one for each of its columns, in that order: to be written (PUT; one of length DIBS_KEEP is
 * left as it is), and `got` is an array of the same, followed in the same memory by what they point to. */
struct dibs__record_op {
  struct dibs__op op; /* records do not check the mandate: R18 guards them */
  dibs__str key;
  dibs__id id; /* of the lease; stored as a digest */
  dibs__fence fence;
  dibs__str data;
  /* Answers. */
  dibs__fence seen; /* the remembered fence; with STALE the one that refused */
  uint64_t version; /* 0: sealed, never saved, or removed; with CONFLICT the one that stands */
  char *got;        /* LOAD, SEAL: malloc'd, NUL behind the last byte; NULL when version is 0 */
  uint32_t got_len;
  /* Asked, appended. */
  const struct dibs__table *table; /* LOAD, SEAL, PUT, DROP */
  uint32_t guards;                 /* DIBS__IF_... */
  dibs__str if_version;            /* as text; a number, in dibs' own table */
  const dibs_value *values;
  /* Answers, appended. */
  char stands[DIBS_VERSION_MAX + 1]; /* with a table: the version, as text */
  char why[200];                     /* for people: what the engine said of this one; "" when nothing */
};

enum dibs__stock_verb {
  /* Takes `amount` under `claim`, or what is left if `partial`.  OK (`got`); FULL; NOT_FOUND (no such stock); REPLAY:
   * the claim was taken before, `got` says how much; CONFLICT: the claim was given back, or stands for another stock.
   */
  DIBS__STOCK_TAKE,
  /* Gives back what the claim took.  OK (`got`); REPLAY: it was given before; NOT_FOUND: no such claim, which is
   * remembered as given, so that a take that comes late does not count. */
  DIBS__STOCK_GIVE,
  DIBS__STOCK_READ, /* OK: used, limit.  NOT_FOUND */
  DIBS__STOCK_SET   /* Makes it, or sets its limit to `amount`.  OK.  FULL: more than that is used */
};

/* How a take or give is carried out.  Coalesced: all of a batch for one row in one transaction, in order, each with
 * its own answer.  The others are what people do by hand; each is a transaction of its own. */
struct dibs__stock_op {
  struct dibs__op op; /* stocks do not check the mandate.  lane: of the key, where coalesced */
  const struct dibs__table *table;
  uint32_t strategy; /* dibs_strategy; never NAMED, which is a lease around ATOMIC */
  bool partial;
  dibs__str key, claim, owner;
  int64_t amount;
  dibs__id id; /* FENCED: of the lease, and its fence */
  dibs__fence fence;
  uint32_t tries; /* OPTIMISTIC: how often it may begin anew */
  /* Answers. */
  int64_t got, used, limit; /* used and limit as this operation left them; of TAKE and GIVE where they are known */
  uint32_t retries, deadlocks;
};

/* A row a key: the attempt (fence, digest of the id), and an answer, or none yet.  A fence of 0 is for a transaction of
 * the user's: there the row itself, not committed yet, keeps others out; elsewhere it excludes nobody. */
enum dibs__once_verb {
  DIBS__ONCE_READ, /* OK: the stored answer.  NOT_FOUND: none, or its time is over */
  /* Stores the answer under a fence: OK, also if this attempt had stored it; REPLAY: there is one, and it is given;
   * STALE: a newer fence was seen, or this one of another id. */
  DIBS__ONCE_STORE,
  DIBS__ONCE_FORGET, /* Takes the answer away; the fence is remembered.  OK, NOT_FOUND: none */
  /* An attempt begins, and is remembered for keep_ms: OK, whatever older ones say from now on is refused; REPLAY, STALE
   * as STORE; HELD, of fence 0: somebody with a lease has begun, and has neither stored nor left. */
  DIBS__ONCE_BEGIN,
  DIBS__ONCE_LEAVE /* This attempt ends without an answer.  OK, NOT_FOUND: it is not the latest, or has one */
};

struct dibs__once_op {
  struct dibs__op op; /* the mandate is not checked: the fence guards it */
  dibs__str key;
  dibs__id id;
  dibs__fence fence;
  int64_t keep_ms; /* how long the answer is kept; of BEGIN the attempt */
  dibs__str data;
  /* Answers. */
  char *got; /* of READ, and with REPLAY: malloc'd, NUL behind the last byte */
  uint32_t got_len;
  int64_t age_ms, left_ms; /* of the answer; with HELD and STALE of the attempt that is in the way */
};

/* What clients of several tiers tell each other at the anchor: a row a client, as good as the latest second.  They need
 * not survive a crash. */
enum dibs__report_verb {
  DIBS__REPORT_PUT,  /* `id` says `data`; then as READ, if `want`.  Those older than keep_ms go.  OK */
  DIBS__REPORT_READ, /* OK: all that are not older than keep_ms, in no order */
  DIBS__REPORT_DROP  /* `id` leaves.  OK, also when it was not there */
};

enum { DIBS__REPORT_MAX = 1024, DIBS__REPORTS_MAX = 4096 /* given at most */ };

struct dibs__report {
  dibs__id id;
  int64_t age_ms;
  dibs__str data; /* in the same memory */
};

struct dibs__report_op {
  struct dibs__op op; /* the mandate is not checked */
  dibs__id id;        /* of the client: a name, not a secret */
  dibs__str data;
  int64_t keep_ms;
  bool want;
  /* Answers. */
  struct dibs__report *got; /* malloc'd, in one piece; NULL when there are none */
  uint32_t got_count;
};

/* ---- What happened, what is there --------------------------------------------------------------------------- */

enum dibs__event_what {
  DIBS__EV_OFFER,        /* `id` (one of ours) is offered its name, or may be granted: ask again */
  DIBS__EV_RECHECK,      /* some of ours may be; ask again for all that wait */
  DIBS__EV_LOST,         /* `id`, held by this session, was broken */
  DIBS__EV_SESSION_GONE, /* all leases of a session store are gone */
  DIBS__EV_NEW_LIFE      /* the store's memory began anew */
};

struct dibs__event {
  enum dibs__event_what what;
  dibs__id id;
  /* OFFER of an exclusive name by a store whose clock is our boot-time clock: the name may be taken for held until
   * `held_until` (less a margin) under `fence`, without asking first.  Renewing it confirms; 0: ask, or, with
   * CAP_OFFERS_LAST, see there. */
  dibs__fence fence;
  dibs__tick held_until;
};

/* One holder, waiter or recorded break. */
struct dibs__lease_row {
  dibs__str name, owner;
  uint32_t state; /* DIBS_HOLDS ... of dibs.h */
  uint32_t mode, slots, slot, ttl_ms, ahead, pid;
  dibs__fence fence;
  int64_t left_ms, age_ms;
};

struct dibs__list {
  dibs__str name;                                            /* not empty: only this one, with its recorded breaks */
  dibs__str prefix;                                          /* else names that begin with it */
  int (*row)(const struct dibs__lease_row *row, void *user); /* 0: go on */
  void *user;
};

/* Filled by open, connect, run, list: also when they fail. */
struct dibs__said {
  dibs__when now;   /* the store's clock during the call */
  dibs__tick sent;  /* ours, before it was sent */
  bool dead;        /* the session is of no more use: disconnect it, connect another */
  bool untidy;      /* tidy() has something to do soon (a write-ahead log that grew) */
  uint32_t commits; /* transactions that this call took */
  char text[256];   /* for people: the engine's own words, no password; "" when all is well */
};

struct dibs__identity {
  dibs__mandate mandate; /* a hint: what buckets stand under as far as connect knows; epoch 0 if it does not */
  uint32_t caps;
  uint32_t families; /* bit a family */
  uint32_t schema;
  uint32_t max_batch;
  uint32_t max_sessions; /* with CAP_PARALLEL */
  uint64_t session;      /* what its waiters live by */
};

/* ---- Drivers ------------------------------------------------------------------------------------------------ */

struct dibs__uri;
/* A driver's own store and session begin with these. */
struct dibs__dstore {
  const struct dibs__driver *driver;
};
struct dibs__session {
  struct dibs__dstore *store;
};

/* Shims and tiers are drivers with inner stores: opened before, closed after them by the core. */
struct dibs__driver {
  uint32_t size, abi; /* sizeof, DIBS__DRIVER_ABI: checked when a module is loaded */
  const char *name;
  const char *const *schemes; /* NULL at the end */
  /* How many inner stores: a shim has 1 ("trace+memory:"), an engine 0. */
  uint32_t inner_min, inner_max;

  /* May block until `by`.  Creates what is missing; on any failure nothing is left behind.
   * OK INVALID DENIED UNSUPPORTED UNAVAILABLE CORRUPT TOO_NEW NO_MEMORY. */
  dibs__status (*open)(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count, dibs__tick by,
                       struct dibs__dstore **store, struct dibs__said *said);
  /* After every session is gone.  May block for I/O a short while.  Does not close inner stores. */
  void (*close)(struct dibs__dstore *store);

  /* May block until `by`.  OK and as open. */
  dibs__status (*connect)(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                          struct dibs__identity *identity, struct dibs__said *said);
  void (*disconnect)(struct dibs__session *session);
  /* A session on the caller's own connection (PGconn *, MYSQL *, sqlite3 *), inside its transaction: what is run takes
   * part in that, and stands when it commits.  disconnect leaves the connection as it is.  NULL: can't. */
  dibs__status (*attach)(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                         struct dibs__identity *identity, struct dibs__said *said);

  /* R1-R18.  May block until `by`. */
  dibs__status (*run)(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                      struct dibs__said *said);

  /* Sleeps until something happened, wake(), or `by`.  *count <= cap.  OK (also with none), UNAVAILABLE. */
  dibs__status (*events)(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                         dibs__tick by);
  /* Makes events() return soon, now or the next time it is called.  Never blocks, never fails. */
  void (*wake)(struct dibs__dstore *store);

  /* R19.  May block until `by`. */
  dibs__status (*list)(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                       struct dibs__said *said);

  /* Housekeeping off the path of callers: checkpoints, sweeping what nobody asks for.  Called by a thread that
   * carries nobody's operations, soon after `untidy` was said and about once a second, and once before close.  NULL:
   * none needed. */
  void (*tidy)(struct dibs__dstore *store);
};

/* ---- Small things every side needs ------------------------------------------------------------------------- */

static inline dibs__str dibs__str_of(const char *p, size_t len) {
  return (dibs__str){p, (uint32_t)len};
}
bool dibs__str_equal(dibs__str a, dibs__str b);
/* Is it this number, as digits? */
bool dibs__str_is_number(dibs__str text, uint64_t number);
bool dibs__id_equal(dibs__id a, dibs__id b); /* in time that does not depend on the content */
bool dibs__mandate_equal(const dibs__mandate *a, const dibs__mandate *b);
/* Which of the buckets a name belongs to: FNV-1a 64, folded, modulo DIBS__BUCKETS.  Fixed for ever. */
uint16_t dibs__bucket(dibs__str name);
/* A record operation on dibs' own table: clears its answers; is it well-formed?  Else its status is set. */
bool dibs__record_valid(struct dibs__record_op *op);
/* Its guards; a save and a seal are guarded by the fence. */
static inline uint32_t dibs__record_guards(const struct dibs__record_op *op) {
  return op->op.verb >= DIBS__RECORD_PUT ? op->guards : op->op.verb == DIBS__RECORD_LOAD ? 0 : DIBS__IF_FENCE;
}
/* Do its guards hold against what is remembered?  Else its status says which does not, with `seen` or `version`.
 * `version` 0: nothing is there. */
bool dibs__record_admits(struct dibs__record_op *op, dibs__fence fence, uint64_t digest, uint64_t version);
/* What a record keeps of a lease id: 8 bytes of a hash, not reversible to the id.  Fixed for ever. */
uint64_t dibs__id_digest(dibs__id id);
void dibs__say(struct dibs__said *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
