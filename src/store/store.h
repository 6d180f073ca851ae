/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_STORE_H
#define DIBS_STORE_STORE_H
#include "base/port.h"
#include "dibs.h"
#include "store/fence.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* clang-format off */
/*
 * THE CONTRACT between the core and a driver.  A driver keeps leases and records in one kind of engine.
 *
 * A driver contains statements, scripts and mapping; the state machine is above it.  The core gives it batches of
 * operations (run), waits for its events (events), and lists its holders and waiters (list).  test/contract/ is the
 * other half of this page: each requirement has a number, R1..., and a test that carries this number.
 *
 *  R1  Each element of a batch has an answer of its own.  Elements for one name are answered in their order in the
 *      batch.
 *  R2  An operation may be repeated with the same id, after any outcome.  The repeat finds the effect of the first.
 *  R3  Two batches that run at the same time never contain the same non-zero lane.  (The core ensures this; a driver
 *       relies on it.)
 *  R4  The elements of one non-zero group commit together or not at all.  The core never splits a group.
 *  R5  An operation under another mandate than the store's answers MOVED and changes nothing.  `has` is the store's.
 *  R6  run() returns OK when every element has its answer; UNAVAILABLE when nothing was done; UNKNOWN when the elements
 *       whose status is still UNKNOWN may have happened.  The store counts as down only when run() itself fails.
 *  R7  run() returns by its deadline, plus at most a scheduling delay.  An element whose name a slow client has locked
 *       answers UNAVAILABLE, and the other elements of the batch are not affected.
 *  R8  Only the store's clock decides whether a lease has ended.  It does not step; `until` is an instant of its
 *      timeline.
 *  R9  At any instant of the store's clock a name has one exclusive holder, or any number of shared holders, or up to N
 *       counted holders that all have the same N.  An offer counts as a holder.
 *  R10 The exclusive grants of one name have growing fences, also across expiry, a crash, and a restart that lost
 *      memory. A block of fences counts as used as a whole.  Shared and counted grants have fence 0.
 *  R11 First come, first served: no client is granted or offered what an earlier waiter, live and awake, waits for.
 *  R12 A waiter whose session has ended is skipped, at the latest when it would be offered the name.
 *  R13 An offer that is not confirmed within offer_ms passes to the next waiter.  The waiter that did not confirm
 *      sleeps, keeps its position in the queue, and is awake again after its next re-check.
 *  R14 A renewal or a release of a lease that has ended, or with another id or fence, answers LOST and changes nothing
 *      (a renewal with fence 0: R39).
 *  R85 `ahead` in the answer QUEUED is never more than the number of waiters, with those that have offers, that are
 *      before this one in the queue.  (A driver that does not know it answers 0: then the waiter re-checks more often.)
 *  R15 CANCEL removes what the id has, a position in the queue, an offer or a lease, and reports which (`was`).
 *  R84 CANCEL with `only_waits` removes only a position in the queue, or an offer, whose latest request came from this very
 *       session: a lease, and what another session has requested since, remain (NOT_FOUND).  (For a caller that does not
 *       know whether the client continues elsewhere with the same id.  Clients of one daemon share its session.)
 *  R16 A broken lease cannot be renewed.  Unless BREAK had `now`, it keeps the name until it is released or expires.
 *  R17 Events may be lost or arrive twice.  Such an error delays a client; it never causes a wrong answer.
 *  R18 A record refuses (STALE) a fence below the remembered fence, and an equal fence of another lease id.
 *  R19 list() reports exactly once each holder and waiter that exists from the beginning to the end of the listing: by
 *      name in byte order, and with `after` only those of later names.
 *  R20 A driver refuses to open what it cannot serve (damaged, foreign, newer), and changes nothing.
 *  R21 A guarded PUT or DROP takes effect only if all its guards hold.  Otherwise it changes nothing and reports the
 *       first failure in this order: NOT_FOUND; STALE with the remembered fence; CONFLICT with the present version.
 *  R22 One version of a key means one content.  The version after a removal is a new one, too.
 *  R23 A removed record remembers its fence: R18 also refuses a late client that would create the record again.
 *  R24 `used` of a stock is the sum of what its claims hold, and never exceeds its limit.
 *  R25 A claim counts once: a repeated TAKE answers REPLAY with what the claim holds, however much is left; CONFLICT if
 *       the claim was given back or belongs to another stock.
 *  R26 The takes and gives of one stock are decided in the order of the batch: a take that does not fit is refused, and
 *       a smaller take after it may fit.
 *  R27 A bad claim does not harm others: in a batch in which one claim repeats, one has no stock and one does not fit,
 *       each of these has its own answer, and all others succeed.
 *  R28 What a claim holds is given back once.  A claim that is given back before it is taken never counts.
 *  R29 A fenced TAKE or GIVE is refused (STALE) as in R18, unless it was done before.
 *  R30 An answer that is stored under a key is kept until its time is over or it is forgotten.  Until then each client
 *       that begins or stores receives this answer (REPLAY) and changes nothing.
 *  R31 After an attempt, later operations of attempts with a lower fence, or with an equal fence of another id, are
 *       refused (STALE): also when its answer was forgotten or its time is over, as long as the row exists.
 *  R32 An attempt that repeats BEGIN or STORE after any outcome finds its own effect: OK.
 *  R33 Two keys are independent of each other.  An answer is any sequence of bytes, up to DIBS_RECORD_MAX.
 *  R34 INSTALL only raises a mandate, and only for the store's present incarnation.  The sequence restarts at its
 *       beginning.
 *  R35 A bucket that is served for an anchor elsewhere grants only under the mandate that was installed last, and only
 *       in the incarnation in which it was installed; its store makes no epoch for it.  A client that did not open the
 *       store as a tier is refused (DENIED) and changes nothing.  A tier is granted nothing in a bucket that is the
 *       store's own, except as in R45.
 *  R36 A reader of reports receives, for each client, the latest report that was put before, unless this is older than
 *       the age that the reader requests.
 *  R37 `until` minus op.at is never more than the time that the lease still has when run() is called: a client that
 *      counts this difference from the call, by a clock as fast as the store's, reaches its end no later than the lease
 *      ends.  A repeated ACQUIRE answers the `until` of the grant that it finds, also if it requests another ttl.
 *  R38 What an id has belongs to one name: with another name the id is unknown.  (The core allows no id two names in
 *      one process; a driver separates them by name.)
 *  R39 A renewal of an exclusive lease with fence 0 is one by the id alone: the holder with this id is renewed, whatever
 *      its fence, and the answer has its latest block.  It is not one for an offer, and a release always names a fence.
 *  R41 After RAISE of a bucket that is the store's own, every grant has a fence above `above` and above all before it,
 *       and holders need the new mandate for their operations.
 *  R42 After ALONE with `above`, every grant has a fence above `above`, too; an epoch that ensures this already stays.
 *  R43 The store of a server draws fences above its clock (R8, in ms since 2026, times 1024, above its epoch).  So a
 *       server that is restored to an earlier state gives no fence a second time.
 *  R44 A block is shortened if it would lead that clock by more than a second.
 *  R58 A bucket that moves to another tier and returns uses the epochs that it is given, and one more for every 70
 *       minutes in which it is the store's own: after OPEN it draws by a clock that starts at 0.
 *  R59 R43 and R44 hold from then on: a server that is restored to a state after OPEN or RAISE gives no fence a second
 *       time.
 *  R45 A bucket that is the store's own serves, under the same mandate, clients that opened the store alone and clients
 *      that opened it as the anchor of tiers.  OPEN makes an installed bucket the store's own again, under the same
 *      epoch.
 *  R46 After LEAVE a bucket keeps its holders and its offers: they are renewed, confirmed and released under the
 *      mandate that they have, however it was granted.  A held name admits clients that are compatible with its
 *      holders.  A name without a holder and an offer is not granted, queued for or offered: a tier gets MOVED with the
 *      very mandate that it named.  So the name stays free.  A tier that requests a held name gets HELD and is not
 *      queued; a client that is not a tier gets DENIED (HELD is also correct for a held name).
 *  R47 An operation that only reads (READ, LOAD, list) writes nothing; neither does opening a store that is complete.
 *  R48 Names, keys, claims and owners are bytes: two that differ in any byte are two, and each is returned unchanged.
 *      A prefix is compared byte by byte.
 *  R49 A text that the store cannot keep, because it is not UTF-8 or has no equivalent in the store's encoding, is
 *       refused (INVALID, UNSUPPORTED) for its own operation alone, and changes nothing.  It never answers UNAVAILABLE.
 *  R54 A claim is kept as long as it holds units, and for 30 days after it was given back.
 *  R56 A listing of stocks has each stock that exists from its beginning to its end once, by key in byte order.
 *  R55 Keys of stocks and records, and claims, are their bytes: texts that a collation treats as equal are different.
 *       (In a user's table R24, R25 and R55 hold whatever it contains, or the answer is INVALID and nothing is changed:
 *       test/guard/test_users_tables.c.)
 *  R96 A store with counted leases draws the fences of all names of a bucket from one sequence: a grant without a block has
 *       a larger fence than every earlier grant of another name of its bucket.  (Lanes rely on it: lane/lane_impl.h.)
 *  R105 What the statements of a transactor, and operations of sessions attached to its connection, have changed takes
 *       effect at COMMIT, together, or not at all: after ROLLBACK, and when the connection is closed, nothing has.
 *  R106 After a statement that ended the transaction, SQL and COMMIT answer INVALID, and operations attached to the
 *       connection change nothing.
 *  R52 Sessions are alike: an operation may be repeated on any session of the store, whichever session carried it
 *      before.
 *
 * Threads: one thread at a time calls open, close, connect, disconnect.  With CAP_PARALLEL, which connect reports,
 * several call connect and disconnect, each for a session of its own.  run and list: one caller per session.
 * events: one caller per store.  wake: any thread.  The core holds no lock during any of these calls.
 */
/* clang-format on */

#define DIBS__DRIVER_ABI 6u

/* An instant of the store's own timeline: opaque milliseconds, never compared with ours. */
typedef struct {
  int64_t ms;
} dibs__when;

/* The caller draws it and keeps it secret: it proves ownership and makes the caller's operation safe to repeat. */
typedef struct {
  uint8_t b[16];
} dibs__id;

/* Not terminated. */
typedef struct {
  const char *p;
  uint32_t len;
} dibs__str;

/* Identifies one lifetime of a store's memory: a new incarnation means that some of the memory may be lost. */
typedef struct {
  uint8_t b[20];
} dibs__incarnation;

/* The right under which a client requests an operation; each bucket of names has one. */
typedef struct {
  uint32_t epoch; /* 0: the caller knows none yet; the answer has it */
  dibs__incarnation incarnation;
} dibs__mandate;

/* Statuses in addition to those of dibs.h; users never see them. */
typedef int32_t dibs__status;
enum { DIBS__QUEUED = 100, DIBS__MOVED = 101 };

/* The core reads them, but for FIFO, GRANT_NEXT and ATOMIC: what an engine promises by these, test/contract demands of
 * it. 256 is not used any more. */
enum dibs__cap {
  DIBS__CAP_SHARED = 1,         /* shared leases */
  DIBS__CAP_COUNTED = 2,        /* counted leases */
  DIBS__CAP_FIFO = 4,           /* R11 */
  DIBS__CAP_GRANT_NEXT = 8,     /* a release itself makes the offer to the next waiter */
  DIBS__CAP_EVENTS = 16,        /* events() sleeps until something happened; without it, it only sleeps */
  DIBS__CAP_SESSION = 32,       /* leases end with their session, at once */
  DIBS__CAP_ATOMIC = 64,        /* groups */
  DIBS__CAP_ANCHOR = 128,       /* durable: may remember epochs for others; serves FAM_ANCHOR */
  DIBS__CAP_PARALLEL = 512,     /* more than one session does useful work at the same time */
  DIBS__CAP_BRIEF = 2048,       /* a batch takes microseconds; with a deadline of a few ms run() does it, or answers
                                   UNAVAILABLE and nothing was done: an event loop may carry it */
  DIBS__CAP_OFFERS_LAST = 4096, /* an offer made after the answer QUEUED has a larger fence than that answer, and
                                   is valid for at least DIBS__OFFER_MS from the request that was answered QUEUED */
  DIBS__CAP_BOOT_INCARNATION =
      8192,                      /* each boot of its machine is a new incarnation, in which no durable data is lost */
  DIBS__CAP_ALONE = 16384,       /* it can't be one of several tiers */
  DIBS__CAP_TASK_TABLES = 32768, /* serves tasks in the user's tables (R77) without the family of tasks */
  DIBS__CAP_BLOCKS = 1024        /* grants and renewals may draw blocks of fences (cohort hand-off) */
};

/* ---- Operations --------------------------------------------------------------------------------------------- */

enum dibs__family { /* appended only; what is true of each is in family.c */
                    DIBS__FAM_LEASE,
                    DIBS__FAM_ANCHOR,
                    DIBS__FAM_RECORD,
                    DIBS__FAM_STOCK,
                    DIBS__FAM_ONCE,
                    DIBS__FAM_REPORT,
                    DIBS__FAM_TIERS,   /* of a tiered store only */
                    DIBS__FAM_TASK,    /* store/task.h */
                    DIBS__FAM_RUN,     /* store/run.h */
                    DIBS__FAM_COUNTER, /* store/counter.h */
                    DIBS__FAM_SHARED,  /* store/shared.h */
                    DIBS__FAM_ENGINE,  /* store/engine.h */
                    DIBS__FAM_COUNT
};

enum {
  DIBS__OP_READS = 1, /* changes nothing; the core sets it by the table of families */
  DIBS__OP_URGENT = 2 /* renew, confirm, release: never waits for an operation that can wait for a row lock */
};

enum { DIBS__CONNECTIONS = 2, DIBS__CONNECTIONS_MAX = 5 }; /* sessions with a server: the URI's default; the maximum */
enum { DIBS__BUCKETS = 100, DIBS__OFFER_MS = 500, DIBS__BLOCK_MAX = 1024 };

/* The head of every operation: the combiner, tiers and shims need nothing else. */
struct dibs__op {
  uint16_t family, verb;
  uint16_t flags;
  uint16_t bucket;       /* of the name: dibs__bucket() */
  uint32_t lane;         /* R3 */
  uint32_t group;        /* R4 */
  dibs__mandate mandate; /* R5 */
  dibs__tick by;         /* the deadline; run() may get an earlier one, never a later one */
  /* Answers of the driver; `at`, below, is one, too. */
  dibs__status status; /* the core sets UNKNOWN before run() */
  dibs__mandate has;   /* with MOVED: the store's mandate; epoch 0: it has none */
  /* The core's own; a driver does not read or write them, except `at`. */
  struct dibs__op *next;
  void (*done)(struct dibs__op *);
  struct dibs__call *call;
  uint32_t state;
  /* The store's clock when it decided this operation, on the timeline of `until` and `recheck`: read during run(), not
   * before.  A driver sets it for a lease.  For other families, and where it is 0, the core uses result.now. */
  dibs__when at;
  dibs__tick sent; /* the core's: the local clock before the batch was sent */
};

enum dibs__lease_verb {
  /* Grants, confirms or queues, by the state of `id` in the store:
   *   a holder (alive, not broken) -> OK with the same fence, block, slot and until, whatever ttl, mode, slots and
   *                                   block this request has; only RENEW moves `until`
   *   has an offer                 -> OK, a new holder: until = now + ttl.  Its fence is the offer's; with want_block
   *                                   it is drawn now
   *   a waiter                     -> OK if it can be granted now, else QUEUED (with the same ticket); awake again
   *   unknown                      -> OK if it is compatible with holders and offers and no live client waits;
   *                                   else, with `queue`, QUEUED at the end of the queue, and without it HELD.
   * INVALID: counted, and the holders have another number of slots. */
  DIBS__ACQUIRE,
  /* RENEW and RELEASE: by a holder, or by a waiter with an offer of an exclusive name and the fence of this offer. */
  DIBS__RENEW,   /* OK: until = now + ttl; with want_block also a new block.  LOST.  `waiting` is set.  With fence 0 the
                    id alone names the holder (R39). */
  DIBS__RELEASE, /* OK: the next live waiters get offers.  LOST. */
  DIBS__CANCEL,  /* OK, with `was`; NOT_FOUND.  Of a holder or an offer it has the effect of a release.  With
                    `only_waits`: R84. */
  DIBS__BREAK    /* Breaks all holders of the name, and an exclusive offer of it; with `now` at once.  OK with the last
                    holder's `until`; NOT_FOUND.  The store records it. */
};

enum { DIBS__WAS_NOTHING = 0, DIBS__WAS_WAITING = 1, DIBS__WAS_OFFERED = 2, DIBS__WAS_HELD = 3 };

struct dibs__lease_op {
  struct dibs__op op;
  dibs__str name;
  dibs__str owner; /* ACQUIRE: the holder's label.  BREAK: the label of the client that breaks */
  dibs__id id;
  dibs__fence fence; /* RENEW, RELEASE: any fence of the granted block.  Answer of ACQUIRE, RENEW: the first one; of
                        QUEUED: see CAP_OFFERS_LAST */
  uint32_t mode;     /* dibs_mode */
  uint32_t slots;    /* counted: N */
  uint32_t ttl_ms;
  uint32_t want_block; /* fences wanted; 0 at ACQUIRE means 1; 0 at RENEW means none */
  uint64_t ticket;     /* of a waiter: the ticket that QUEUED answered, or 0.  Answer of QUEUED: never 0 */
  bool queue;
  bool now;        /* BREAK */
  bool only_waits; /* CANCEL (R84) */
  /* Answers. */
  bool waiting;       /* a client waits in the store's queue for this name */
  uint32_t got_block; /* fences drawn, from `fence` on; 0 for shared and counted */
  uint32_t slot;      /* ACQUIRE, RENEW: of a counted lease */
  union {
    uint32_t was;   /* CANCEL */
    uint32_t ahead; /* QUEUED: at least so many are before it in the queue; 0: perhaps none (R85) */
  };
  dibs__when until; /* OK: when the lease ends.  BREAK: when the name is free at the latest */
  /* OK, QUEUED: the tier that answered, for people; valid as long as the store.  NULL: the store has no tiers. */
  const char *tier;
  dibs__when recheck; /* QUEUED, HELD: when a holder or an offer expires, if nothing happens before */
};

enum dibs__anchor_verb {
  /* Every verb answers `current`, the bucket's mandate after it. */
  DIBS__ANCHOR_READ, /* OK */
  DIBS__ANCHOR_NEXT, /* Makes the next epoch if op.mandate is the current one: OK; else CONFLICT */
  /* op.mandate becomes the bucket's, and its sequence restarts at its beginning, if its incarnation is the store's
   * present one and its epoch is above the bucket's: OK, else CONFLICT.  From then on the bucket is `served` for an
   * anchor elsewhere (R35): NEXT answers CONFLICT.  An operation under another mandate, or after a new incarnation
   * began, or when the epoch is used up, answers MOVED with the store's mandate. */
  DIBS__ANCHOR_INSTALL,
  /* The bucket becomes the store's own again, under an epoch above all that it had and above the fence `above`.  If it
   * is the store's own already, it changes only if it may have drawn no fence above `above`.  OK. */
  DIBS__ANCHOR_ALONE,
  /* The next epoch of a bucket that is the store's own, also above the fence `above`: OK; CONFLICT: it is served. */
  DIBS__ANCHOR_RAISE,
  /* The bucket moves to another tier (R46): OK, also if an earlier LEAVE did it; CONFLICT: op.mandate is not the
   * bucket's, or the store makes epochs of its own by its clock. */
  DIBS__ANCHOR_LEAVE,
  /* The bucket that was installed as op.mandate becomes the store's own (R45): OK, also if it is; else CONFLICT. */
  DIBS__ANCHOR_OPEN
};

/* An operation on a bucket's mandate in the store itself.  For a served bucket, `has` and `current` are the epoch that
 * was installed last (0: the store remembers none) and the store's present incarnation. */
struct dibs__anchor_op {
  struct dibs__op op; /* op.mandate is not checked as in R5: NEXT compares it, INSTALL installs it */
  dibs__fence above;  /* of ALONE and RAISE; 0: no lower bound */
  /* Answers of every verb. */
  dibs__mandate current;
  bool served;
  bool left; /* LEAVE was the last one; implies `served` */
  bool used; /* not `served`, and the store has granted something in the bucket */
  /* The bucket has drawn no fence above this; if it is `left`, it draws none in a later epoch from now on.  0: not
   * known, or it is served. */
  dibs__fence last;
};

enum dibs__record_verb {
  DIBS__RECORD_LOAD, /* OK, NOT_FOUND */
  DIBS__RECORD_SEAL, /* OK (creates an empty record; in a user's table NOT_FOUND), STALE */
  /* Writes, if the guards hold (R21): OK with the new version.  Without IF_VERSION a record that does not exist is
   * created in dibs' own table; in a user's table only with IF_ABSENT. */
  DIBS__RECORD_PUT,
  DIBS__RECORD_DROP /* Removes, if the guards hold (R21, R22, R23): OK, NOT_FOUND */
};

/* Guards of PUT and DROP, in any combination but VERSION with ABSENT. */
enum {
  DIBS__IF_VERSION = 1, /* the record has if_version; in dibs' own table "0" means that it has no content */
  DIBS__IF_ABSENT = 2,  /* the record has no content: never saved, only sealed, or removed */
  DIBS__IF_FENCE = 4,   /* R18; raises the remembered fence */
  /* The content has if_digest.  After the restore of a backup versions are used again: a record may have the version
   * that a client has read, and other content.  Not of a user's table. */
  DIBS__IF_DIGEST = 8
};

/* A user's table, as it was declared (store/values.h); NULL in an operation: dibs' own table. */
struct dibs__table;

/* With a table, `values` has one value for each of its columns, in their order, which PUT writes; a value of length
 * DIBS_KEEP leaves its column unchanged.  `got` is an array of the same form; the data that it points to follows it in
 * the same memory. */
struct dibs__record_op {
  struct dibs__op op; /* records do not check the mandate: R18 guards them */
  dibs__str key;
  dibs__id id; /* of the lease; stored as a digest */
  dibs__fence fence;
  dibs__str data;
  /* Answers. */
  dibs__fence seen; /* the remembered fence; with STALE it is the reason */
  uint64_t version; /* 0: sealed, never saved, or removed; with CONFLICT the present version */
  char *got;        /* LOAD, SEAL: malloc'd, with a NUL after the last byte; NULL when version is 0 */
  uint32_t got_len;
  /* More of the request. */
  const struct dibs__table *table; /* LOAD, SEAL, PUT, DROP */
  uint32_t guards;                 /* DIBS__IF_... */
  dibs__str if_version;            /* as text; a number, in dibs' own table */
  uint64_t if_digest;              /* dibs__record_digest */
  const dibs_value *values;
  /* More answers. */
  char version_text[DIBS_VERSION_MAX + 1]; /* with a table: the version, as text */
  char why[200];                           /* for people: the engine's message for this operation; "": none */
};

enum dibs__stock_verb {
  /* Takes `amount` under `claim`; with `partial`, as much of it as is left.  OK (`got`); FULL; NOT_FOUND: no such
   * stock; REPLAY: the claim was taken before, `got` is its amount; CONFLICT: the claim was given back, or belongs to
   * another stock. */
  DIBS__STOCK_TAKE,
  /* Gives back what the claim took.  OK (`got`); REPLAY: it was given back before; NOT_FOUND: no such claim.  The store
   * remembers an unknown claim as given back, so that a late take does not count. */
  DIBS__STOCK_GIVE,
  DIBS__STOCK_READ, /* OK: used, limit.  NOT_FOUND */
  DIBS__STOCK_SET,  /* Creates the stock, or sets its limit to `amount`.  OK.  FULL: more than `amount` is used */
  /* The first `amount` stocks, 1 to DIBS__STOCK_ROWS, whose keys begin with `key` and are larger than `claim` (either
   * may be empty), by key in byte order; not of a user's table.  OK: `rows`. */
  DIBS__STOCK_LIST
};

enum { DIBS__STOCK_ROWS = 1001 };
struct dibs__stock_row {
  dibs__str key; /* in the memory of the answer, with a NUL after it */
  int64_t used, limit;
};

/* A take or give.  The strategy COALESCED decides all operations of a batch on one row in one transaction, in order,
 * each with its own answer.  The other strategies do what people write by hand; each operation is a transaction. */
struct dibs__stock_op {
  struct dibs__op op; /* stocks do not check the mandate.  COALESCED: lane is that of the key */
  const struct dibs__table *table;
  uint32_t strategy; /* dibs_strategy; never NAMED, which is a lease around ATOMIC */
  bool partial;
  dibs__str key, claim, owner;
  int64_t amount;
  dibs__id id; /* FENCED: of the lease, and its fence */
  dibs__fence fence;
  uint32_t tries; /* OPTIMISTIC: how often it may start again */
  /* Answers. */
  int64_t got, used, limit; /* used and limit after this operation; of TAKE and GIVE where the driver knows them */
  uint32_t retries, deadlocks;
  char why[200];                /* for people, with INVALID and CONFLICT: the table, column and key; may be "" */
  struct dibs__stock_row *rows; /* of LIST: malloc'd, one allocation; NULL: none */
  uint32_t row_count;
};

/* Each key has a row: the latest attempt (its fence, a digest of its id), and an answer, or none yet.  Fence 0 is for a
 * transaction of the user's: there the row itself, which is not committed yet, excludes others; elsewhere an attempt
 * with fence 0 excludes nothing. */
enum dibs__once_verb {
  DIBS__ONCE_READ, /* OK: the stored answer.  NOT_FOUND: none, or its time is over */
  /* Stores the answer under a fence: OK, also if this attempt stored it before; REPLAY: the key has an answer, which is
   * returned; STALE: the row has a newer fence, or this fence of another id. */
  DIBS__ONCE_STORE,
  DIBS__ONCE_FORGET, /* Removes the answer; the row keeps the fence.  OK; NOT_FOUND: no answer */
  /* Begins an attempt, which the row remembers for keep_ms: OK, older attempts are refused from now on; REPLAY, STALE
   * as STORE; HELD, with fence 0: an attempt with a lease has begun, and has neither stored nor left. */
  DIBS__ONCE_BEGIN,
  DIBS__ONCE_LEAVE /* Ends this attempt without an answer.  OK; NOT_FOUND: it is not the latest, or has an answer */
};

struct dibs__once_op {
  struct dibs__op op; /* the mandate is not checked: the fence guards it */
  dibs__str key;
  dibs__id id;
  dibs__fence fence;
  int64_t keep_ms; /* how long the row keeps the answer; of BEGIN, the attempt */
  dibs__str data;
  /* Answers. */
  char *got; /* of READ, and with REPLAY: malloc'd, with a NUL after the last byte */
  uint32_t got_len;
  int64_t age_ms, left_ms; /* of the answer; with HELD and STALE, of the attempt that prevents this one */
};

/* Reports: short texts by which processes inform each other.  Clients of several tiers put them at the anchor
 * (tier/flag.c), and every process puts the waiters of its local queues (lease/lines.c).  Each id has one row, which is
 * up to date to about a second and need not survive a crash.  A reader ignores texts that it does not know. */
enum dibs__report_verb {
  /* Sets the report of `id` to `data`, and deletes those older than keep_ms.  With `want` it answers as READ.  OK */
  DIBS__REPORT_PUT,
  DIBS__REPORT_READ, /* OK: all reports that are not older than keep_ms, in no order */
  DIBS__REPORT_DROP  /* Deletes the report of `id`.  OK, also if it has none */
};

enum {
  DIBS__REPORT_MAX = 1024,
  DIBS__REPORTS_MAX = 4096,    /* the most that an answer has */
  DIBS__REPORT_KEEP_MS = 10000 /* every PUT uses this; each of them deletes all older reports */
};

struct dibs__report {
  dibs__id id;
  int64_t age_ms;
  dibs__str data; /* in the same memory */
};

struct dibs__report_op {
  struct dibs__op op; /* the mandate is not checked */
  dibs__id id;        /* the client's: a name, not a secret */
  dibs__str data;
  int64_t keep_ms;
  bool want;
  /* Answers. */
  struct dibs__report *got; /* malloc'd, one allocation; NULL when there are none */
  uint32_t got_count;
};

/* A request of people to a store of several tiers (tier/tiers.h); only such a store serves it. */
struct dibs__tiers_view;
enum dibs__tiers_verb {
  DIBS__TIERS_VIEW,   /* OK: `got` */
  DIBS__TIERS_FLAG,   /* sets the flag `name` to `value` percent.  OK, INVALID */
  DIBS__TIERS_MOVE,   /* pins all buckets to `tier`; -1: unpins them.  OK, INVALID, UNAVAILABLE (it is unreachable) */
  DIBS__TIERS_SWITCH, /* the breaker of `tier`, for every client: `value` is a dibs__tiers_hand */
  DIBS__TIERS_STRICTNESS, /* `value` is a dibs__tiers_strictness */
  DIBS__TIERS_BUMP,       /* the next epoch of all buckets, above `above`; 0: just the next one */
  DIBS__TIERS_DISBAND /* each member is its own again; the anchor forgets its tiers.  Only when no client uses them */
};

struct dibs__tiers_op {
  struct dibs__op op; /* bucket and mandate have no effect */
  const char *name;
  int32_t tier;
  uint32_t value;
  uint32_t above;
  struct dibs__tiers_view *got; /* VIEW: malloc'd, one allocation */
  char why[256];                /* for people, if the status is not OK */
};

/* ---- Events, listings --------------------------------------------------------------------------------------- */

enum dibs__event_what {
  DIBS__EV_OFFER,           /* `id`, a waiter of this process, has an offer or can be granted: repeat ACQUIRE */
  DIBS__EV_RECHECK,         /* some waiters of this process may have one: repeat ACQUIRE for all */
  DIBS__EV_LOST,            /* `id`, held by this session, was broken */
  DIBS__EV_SESSION_GONE,    /* all leases of a session store have ended */
  DIBS__EV_NEW_INCARNATION, /* the store's memory has a new incarnation */
  DIBS__EV_TASKS            /* tasks may be ready: see store/task.h */
};

struct dibs__event {
  enum dibs__event_what what;
  dibs__id id;
  /* An OFFER of an exclusive name by a store whose clock is our boot-time clock: the waiter may treat the name as held
   * until `held_until` (less a margin) under `fence` without a request; a renewal confirms it.  0: repeat ACQUIRE; with
   * CAP_OFFERS_LAST, see there. */
  dibs__fence fence;
  dibs__tick held_until;
};

/* What a row of a list is.  The public header has the same numbers; lease/list.c checks that. */
enum { DIBS__HOLDS = 0, DIBS__WAITS = 1, DIBS__OFFERED = 2, DIBS__BREAKING = 3, DIBS__BROKEN = 4 };

/* One holder, waiter or recorded break. */
struct dibs__lease_row {
  dibs__str name, owner;
  uint32_t state; /* DIBS__HOLDS ...  BROKEN: the owner is a text of dibs__break_owner() */
  uint32_t mode, slots, slot, ttl_ms, ahead, pid;
  dibs__fence fence;
  int64_t left_ms, age_ms;
  const char *tier; /* valid as long as the store; NULL: the store has no tiers */
};

struct dibs__list {
  dibs__str name;                                            /* not empty: only this name, with its recorded breaks */
  dibs__str prefix;                                          /* if `name` is empty: the names with this prefix, */
  dibs__str after;                                           /* and of those the names after this one; empty: all */
  uint32_t most;                                             /* only so many names are needed; 0: all */
  int64_t ended_ms;                                          /* holders that ended less than this ago are listed, too */
  int (*row)(const struct dibs__lease_row *row, void *user); /* 0: continue */
  void *user;
};

/* open, connect, run and list fill it, also when they fail. */
struct dibs__result {
  dibs__when now;   /* the store's clock during the call */
  dibs__tick sent;  /* the local clock before the call sent anything */
  bool dead;        /* the session cannot be used any more: disconnect it, connect another */
  bool untidy;      /* tidy() has work soon (a write-ahead log that grew) */
  uint32_t commits; /* transactions that this call used */
  char text[256];   /* for people: the engine's own message, without a password; "": no error */
};

struct dibs__identity {
  /* A hint: the mandate of the buckets, as far as connect knows it; epoch 0: it does not.  An incarnation of zeros:
   * each bucket has one of its own, and an operation with zeros is one for the bucket's. */
  dibs__mandate mandate;
  uint32_t caps;
  uint32_t families; /* a bit for each family */
  uint32_t unused;   /* 0 */
  uint32_t max_batch;
  uint32_t max_sessions; /* with CAP_PARALLEL */
  uint64_t session;      /* its waiters are live as long as this session */
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

/* The types of a driver's functions, which its headers declare: `dibs__driver_run dibs__sqlite_run;`.  The struct says
 * what each does. */
typedef dibs__status dibs__driver_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                                       dibs__tick by, struct dibs__dstore **store, struct dibs__result *result);
typedef void dibs__driver_close(struct dibs__dstore *store);
typedef dibs__status dibs__driver_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                          struct dibs__identity *identity, struct dibs__result *result);
typedef void dibs__driver_disconnect(struct dibs__session *session);
typedef dibs__status dibs__driver_attach(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                                         struct dibs__identity *identity, struct dibs__result *result);
/* A connection of the driver's own for transactions of users. */
struct dibs__transactor {
  struct dibs__dstore *store;
  void *connection; /* as attach takes it */
};
enum dibs__transact {
  DIBS__TRANSACT_BEGIN,
  DIBS__TRANSACT_SQL, /* the user's statements */
  DIBS__TRANSACT_COMMIT,
  DIBS__TRANSACT_ROLLBACK
};
typedef dibs__status dibs__driver_transactor_open(struct dibs__dstore *store, dibs__tick by,
                                                  struct dibs__transactor **transactor, struct dibs__result *result);
typedef dibs__status dibs__driver_transact(struct dibs__transactor *transactor, enum dibs__transact what,
                                           const char *sql, dibs__tick by, struct dibs__result *result);
typedef void dibs__driver_transactor_close(struct dibs__transactor *transactor);
typedef dibs__status dibs__driver_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count,
                                      dibs__tick by, struct dibs__result *result);
typedef dibs__status dibs__driver_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap,
                                         size_t *count, dibs__tick by);
typedef void dibs__driver_wake(struct dibs__dstore *store);
typedef dibs__status dibs__driver_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                       struct dibs__result *result);
typedef void dibs__driver_tidy(struct dibs__dstore *store);

/* Shims and tiers are drivers with inner stores.  The core opens an inner store before its shim and closes it after. */
struct dibs__driver {
  uint32_t size, abi; /* sizeof, DIBS__DRIVER_ABI: checked when a module is loaded */
  const char *name;
  const char *const *schemes; /* NULL at the end */
  /* The number of inner stores: a shim has 1 ("trace+memory:"), an engine 0. */
  uint32_t inner_min, inner_max;

  /* May block until `by`.  Creates what is missing in the store; after a failure it has released all its resources.
   * OK INVALID DENIED UNSUPPORTED UNAVAILABLE CORRUPT TOO_NEW NO_MEMORY. */
  dibs__driver_open *open;
  /* After every session is disconnected.  May block for I/O for a short time.  Does not close inner stores. */
  dibs__driver_close *close;

  /* May block until `by`.  Statuses as open. */
  dibs__driver_connect *connect;
  dibs__driver_disconnect *disconnect;
  /* A session on the caller's own connection (PGconn *, MYSQL *, sqlite3 *), inside its transaction: operations run in
   * this transaction, and take effect when it commits.  disconnect leaves the connection open.  NULL: unsupported. */
  dibs__driver_attach *attach;

  /* A connection for transactions of users: the core attaches to it.  May block until `by`.  Statuses as open.  NULL:
   * unsupported. */
  dibs__driver_transactor_open *transactor_open;
  /* May block until `by`.  OK; INVALID, DENIED: a statement was refused; CONFLICT: the transaction was rolled back, and
   * may succeed when it is repeated; UNAVAILABLE; UNKNOWN, only of COMMIT.  result->dead: the connection is useless. */
  dibs__driver_transact *transact;
  dibs__driver_transactor_close *transactor_close; /* also rolls back */

  /* R1-R18.  May block until `by`. */
  dibs__driver_run *run;

  /* Sleeps until something happened, wake(), or `by`.  *count <= cap.  OK (also with none), UNAVAILABLE. */
  dibs__driver_events *events;
  /* Makes events() return soon, now or the next time it is called.  Never blocks, never fails. */
  dibs__driver_wake *wake;

  /* R19.  May block until `by`. */
  dibs__driver_list *list;

  /* Maintenance off the callers' path: checkpoints, deletion of rows that expired.  A thread that carries no operations
   * calls it soon after a result with `untidy`, about once a second, and once before close.  NULL: none needed. */
  dibs__driver_tidy *tidy;
};

/* The owner of a recorded break: the client that broke the lease, DIBS__BREAK_FROM, and the holder that lost it (of
 * several holders the first in byte order, so that the order of rows has no effect).  It is one text because every
 * store has one column for it.  No owner contains a control character. */
enum { DIBS__BREAK_FROM = 0x1f, DIBS__BREAK_OWNER_MAX = 2 * DIBS_OWNER_MAX + 1 };
dibs__str dibs__break_owner(char to[DIBS__BREAK_OWNER_MAX], dibs__str who, dibs__str holder);

/* ---- Helpers of the core and of drivers -------------------------------------------------------------------- */

static inline dibs__str dibs__str_of(const char *p, size_t len) {
  return (dibs__str){p, (uint32_t)len};
}
bool dibs__str_equal(dibs__str a, dibs__str b);
bool dibs__str_before(dibs__str a, dibs__str b); /* byte order; a prefix comes before the longer text */
/* Does the text have exactly the digits of this number? */
bool dibs__str_is_number(dibs__str text, uint64_t number);
/* LIST: is it well-formed?  It clears the answers. */
bool dibs__stock_list_valid(struct dibs__stock_op *op);
/* LIST: answers copies of these rows.  The status is OK, or NO_MEMORY. */
void dibs__stock_list_answer(struct dibs__stock_op *op, const struct dibs__stock_row *rows, size_t count);
/* Does a listing by prefix have this name? */
bool dibs__list_has(const struct dibs__list *list, dibs__str name);
/* The least text that such a listing may have: the prefix, or what comes right behind `after`. */
dibs__str dibs__list_from(const struct dibs__list *list, char to[DIBS_NAME_MAX + 1]);
bool dibs__id_equal(dibs__id a, dibs__id b); /* in time that does not depend on the content */
bool dibs__mandate_equal(const dibs__mandate *a, const dibs__mandate *b);
/* The bucket that a name belongs to: FNV-1a 64, folded, modulo DIBS__BUCKETS.  It never changes. */
uint16_t dibs__bucket(dibs__str name);
/* Of a record operation on dibs' own table: clears its answers; false: it is not well-formed, and its status is set. */
bool dibs__record_valid(struct dibs__record_op *op);
/* The operation's guards; SEAL has the guard of the fence. */
static inline uint32_t dibs__record_guards(const struct dibs__record_op *op) {
  return op->op.verb == DIBS__RECORD_LOAD ? 0 : op->op.verb == DIBS__RECORD_SEAL ? DIBS__IF_FENCE : op->guards;
}
/* Do the guards hold against the remembered fence and version?  If not, the status is the first failure (R21), with
 * `seen` or `version`.  `version` 0: the record has no content. */
bool dibs__record_admits(struct dibs__record_op *op, dibs__fence fence, uint64_t digest, uint64_t version,
                         dibs__str data);
/* Of a record's content, for DIBS__IF_DIGEST. */
uint64_t dibs__record_digest(dibs__str data);
/* What a record keeps of a lease id: 8 bytes of a hash, from which the id cannot be found.  It never changes. */
uint64_t dibs__id_digest(dibs__id id);
void dibs__set_message(struct dibs__result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
