/* SPDX-License-Identifier: MIT */
#ifndef DIBS_H
#define DIBS_H
/*
 * dibs: one holder, one write.
 *
 * Read this first:
 *
 * - A lease is a right that ends.  A process that is paused (a debugger, a swapped machine, SIGSTOP) may wake up after
 *   its lease has passed to another client, and not know it yet.  dibs_lease_alive() checks that without I/O.  Only a
 *   fence that the data itself checks (dibs_record_put, or a column of your own) refuses a late write.
 * - A lost lease stays lost.  Its handle never becomes valid again; acquire a new lease.
 * - DIBS_UNKNOWN means: it may or may not have happened.  You can safely repeat the call with the same lease id or the
 *   same claim.
 * - A handle belongs to the process that opened it.  In a child after fork() its calls answer DIBS_INVALID.
 * - You can call every function from any thread, unless its comment says otherwise.  The library's own threads block
 *   all signals.  Callbacks run with no lock held, and may call any function of this header but dibs_close.
 * - This header declares everything that is supported.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DIBS_EXPORT __attribute__((visibility("default")))
#define DIBS_MUST_USE __attribute__((warn_unused_result))
#else
#define DIBS_EXPORT
#define DIBS_MUST_USE
#endif

/* ---- Version ------------------------------------------------------------------------------------------------ */

#define DIBS_VERSION_MAJOR 0
#define DIBS_VERSION_MINOR 1
#define DIBS_VERSION_PATCH 0

/* The version of the library that is running: "0.1.0", and as a number, 0x000100.  They never fail. */
DIBS_EXPORT const char *dibs_version(void);
DIBS_EXPORT uint32_t dibs_version_number(void);

/* ---- Statuses ----------------------------------------------------------------------------------------------- */

/* One closed set for all calls.  Numbers are stable, and new ones are only appended.  0 to 9 are answers of a healthy
 * store, the others are failures.  X(name, number, text).
 *
 * The comment of each call lists its statuses.  Two groups are described only here:
 *
 * - INVALID, of every call: an argument is wrong, the store is closed, or it belongs to another process (fork).
 * - "a failure of the store", of every call that reaches the store: DENIED (a right is missing; the schema has the
 *   other kind of leases, see doc/internals/session-locks.md; or a name is served by a tier and the store was opened
 *   alone), UNSUPPORTED (the store does not provide this, or cannot keep this text), UNAVAILABLE (nothing was changed),
 *   UNKNOWN (also: no answer in time), CORRUPT, TOO_NEW (it was upgraded while you had it open), NO_MEMORY. */
#define DIBS_STATUSES(X)                                                                                               \
  X(OK, 0, "done")                                                                                                     \
  X(HELD, 1, "somebody else holds it")                                                                                 \
  X(TIMEOUT, 2, "the wait ended before the name was free")                                                             \
  X(LOST, 3, "the lease is lost; somebody else may hold the name")                                                     \
  X(STALE, 4, "a newer fence was seen; nothing changed")                                                               \
  X(CONFLICT, 5, "somebody else changed it since you read it; nothing changed")                                        \
  X(FULL, 6, "too little is left")                                                                                     \
  X(REPLAY, 7, "this was done before; the stored result is returned")                                                  \
  X(NOT_FOUND, 8, "it does not exist")                                                                                 \
  X(INVALID, 9, "an argument of the call is wrong")                                                                    \
  X(DENIED, 10, "not permitted")                                                                                       \
  X(UNSUPPORTED, 11, "this store does not support it")                                                                 \
  X(CANCELLED, 12, "the call was cancelled")                                                                           \
  X(UNAVAILABLE, 13, "the store is unreachable; nothing changed")                                                      \
  X(UNKNOWN, 14, "the outcome is not known; repeating the call with the same id is safe")                              \
  X(CORRUPT, 15, "the store's data is damaged")                                                                        \
  X(TOO_NEW, 16, "a newer dibs created the store")                                                                     \
  X(NO_MEMORY, 17, "out of memory")

typedef enum dibs_status {
#define DIBS__STATUS_ENUM(name, number, text) DIBS_##name = number,
  DIBS_STATUSES(DIBS__STATUS_ENUM)
#undef DIBS__STATUS_ENUM
} dibs_status;

/* "HELD", and "somebody else holds it".  For a number that is no status: "?" and "no such status".  Never NULL. */
DIBS_EXPORT const char *dibs_status_name(dibs_status status);
DIBS_EXPORT const char *dibs_status_text(dibs_status status);

/* What went wrong, for people: the store (without a password), the name, the engine's own message and the next step.
 * The caller owns it.  Each `error` argument below may be NULL.  A call that answers DIBS_OK clears it, and every other
 * call writes it. */
typedef struct dibs_error {
  dibs_status status;
  char text[508];
} dibs_error;

/* ---- Bounds ------------------------------------------------------------------------------------------------- */

enum {
  DIBS_NAME_MAX = 255,       /* bytes of a name, a key, a prefix: UTF-8, at least one, no control characters */
  DIBS_OWNER_MAX = 127,      /* bytes of an owner, likewise: a label for people, which proves nothing */
  DIBS_SLOTS_MAX = 65535,    /* slots of a counted lease */
  DIBS_MANY_MAX = 1024,      /* names in one dibs_acquire_many */
  DIBS_RECORD_MAX = 1048576, /* bytes of a record: of all its values together */
  DIBS_VERSION_MAX = 127,    /* bytes of a version */
  DIBS_COLUMNS_MAX = 32      /* columns of a table of yours */
};
/* Names, keys, claims and owners are compared byte by byte: "a", "A" and "a " are three names, and the composed and the
 * decomposed form of a letter with an accent are two.  The library refuses any other text (INVALID). */
#define DIBS_TTL_MIN_MS INT64_C(100)
#define DIBS_TTL_MAX_MS INT64_C(86400000) /* a day; longer work renews */
#define DIBS_TTL_DEFAULT_MS INT64_C(30000)
#define DIBS_FOREVER INT64_C(-1) /* as wait_ms: no limit */

/* The fence of an exclusive grant: `value` is larger than that of every earlier grant of the name, and below 2^53.
 * Compare values; they have no other meaning.  0: there is none.
 *
 * Exception: after names have moved to another tier in a store of several tiers, a client that has not noticed the move
 * can still get a grant of the old tier, with a lower fence than those of the new one.  Records refuse that fence once
 * a newer one was used there.  With the strictness `strict` (dibs/admin.h) this cannot happen. */
typedef struct dibs_fence {
  uint64_t value;
} dibs_fence;

#define DIBS__INIT(type)                                                                                               \
  { .size = sizeof(type) }

/* ---- Stores ------------------------------------------------------------------------------------------------- */

typedef struct dibs_store dibs_store;
typedef struct dibs_lease dibs_lease;

enum {
  /* Callbacks wait until your event loop calls dibs_dispatch(); dibs_fd() is readable when there are some.
   * Without it a thread of the library runs them. */
  DIBS_STORE_LOOP = 1
};

/* Each struct that you fill has a `size`: set it to the sizeof of the struct, or in C begin with its INIT macro:
 * `dibs_store_options options = DIBS_STORE_OPTIONS_INIT;`.  In options, zero means the default of every other field,
 * and a NULL pointer means all defaults. */
typedef struct dibs_store_options {
  size_t size;
  uint32_t flags;          /* DIBS_STORE_LOOP */
  const char *owner;       /* of leases without one of their own; NULL: "user@host:pid", with '?' for other bytes */
  const char *module_path; /* folders of driver modules, ':' between; NULL: the installed one, or DIBS_MODULE_PATH */
} dibs_store_options;
#define DIBS_STORE_OPTIONS_INIT DIBS__INIT(dibs_store_options)

/* Opens the store at `uri` ("sqlite:///var/lib/app/dibs.db", "postgres://app@db/app", several tiers of one store
 * "redis://cache,mysql://db/app", "memory:"), or the store that a section of an INI file names
 * ("/etc/app/dibs.ini#live", where [live] has store = URI and, of tiers, tiers.strictness = strict and the like;
 * without #: [store]).
 *
 * NULL means the first of: $DIBS_STORE; the [store] of $XDG_CONFIG_HOME/dibs/dibs.ini (~/.config/dibs/dibs.ini; not for
 * root); the [store] of /etc/dibs/dibs.ini; the embedded file $XDG_STATE_HOME/dibs/dibs.db, or /var/lib/dibs/dibs.db
 * for root.  An empty URI or DIBS_STORE is INVALID.  An INI file that exists must be readable and correct.  A file
 * that other users may have written, and a file of yours with a password that other users may read, is DENIED.
 *
 * Connections to a server: a handle uses one.  It opens a second one when a renewal, confirm or release has waited 10
 * ms for the first, and closes it when it was not needed for 5 s; `?connections=N` in the URI allows up to 5.  A wait,
 * and a lease with on_lost, open one more for notifications (on MariaDB two), and a listing may open one for its
 * duration. Session locks (lock=) have connections of their own.  Each tier counts separately.
 *
 * Creates tables, files and folders that are missing.  Blocks for I/O.  *store is yours, for dibs_close; NULL unless
 * DIBS_OK.
 * OK; INVALID (the URI or the settings); DENIED; UNSUPPORTED (no such driver; a network file system; a server that is
 * too old or has unfit settings); UNAVAILABLE (at once: it does not wait for a server that is unreachable or full);
 * CORRUPT (also: not a file of dibs); TOO_NEW; NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_open(const char *uri, const dibs_store_options *options, dibs_store **store,
                                                dibs_error *error);

/* Ends every wait (its callback gets DIBS_CANCELLED before this returns), releases every lease that is held and not
 * detached, and ends the store's threads.  Lease handles stay valid memory until dibs_lease_free, and their calls
 * answer INVALID.  Blocks for I/O, some seconds at most.  Do not call it from a callback of this store.  NULL is fine.
 */
DIBS_EXPORT void dibs_close(dibs_store *store);

/* The store's URI without password, valid until dibs_close. */
DIBS_EXPORT const char *dibs_store_uri(const dibs_store *store);

/* For stores opened with DIBS_STORE_LOOP.  The descriptor is readable while callbacks wait; it belongs to the store.
 * -1 without DIBS_STORE_LOOP.
 *
 * dibs_dispatch runs at most `max` callbacks (0: all that wait) in the calling thread, and returns how many it ran. The
 * operations that they start on an embedded store are done in one transaction at the end of dibs_dispatch (sooner if
 * something waits for them), which takes tens of microseconds; if other writers hold it up for 2 ms, a thread of the
 * library does them.  Otherwise it does not block.
 *
 * The callbacks of a store never run side by side: while one thread runs some, dibs_dispatch in another answers 0 at
 * once.  So do not hold a lock that a callback takes while you wait for a callback.  A callback may dispatch until
 * another one has come, in a loop that does not wait for the descriptor alone: another thread may have made it
 * unreadable. */
DIBS_EXPORT int dibs_fd(dibs_store *store);
DIBS_EXPORT size_t dibs_dispatch(dibs_store *store, size_t max);

/* ---- Leases ------------------------------------------------------------------------------------------------- */

typedef enum dibs_mode {
  DIBS_EXCLUSIVE = 0, /* one holder; the only mode whose fence can seal */
  DIBS_SHARED = 1,    /* any number of readers, and no exclusive holder at the same time */
  DIBS_COUNTED = 2    /* up to `slots` holders; the first holder sets the number */
} dibs_mode;

enum {
  DIBS_NO_RENEW = 1 /* the library does not renew this lease; you call dibs_renew */
};

/* `status` is the result of the operation, and `error` has its text for people, as the blocking call gives it (but
 * never the number of slots of other holders).  `error` is never NULL.  The handle and the error are valid during the
 * call. */
typedef void (*dibs_lease_fn)(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user);

/* Zero means the default for every field but `size`. */
typedef struct dibs_lease_options {
  size_t size;
  dibs_mode mode;
  uint32_t slots;    /* DIBS_COUNTED only: how many may hold, 1 to DIBS_SLOTS_MAX */
  uint32_t flags;    /* DIBS_NO_RENEW */
  uint32_t reserved; /* zero */
  int64_t ttl_ms;    /* how long it lasts without renewal; 0: 30 s */
  int64_t wait_ms;   /* how long to wait for the name, and for a store that is unreachable or full; 0: answer HELD or
                        UNAVAILABLE at once; DIBS_FOREVER: until the name is granted, also if the store is
                        unreachable for hours: the request is repeated about each second until it answers */
  const char *owner; /* a label for people; NULL: the store's */
  const char *id;    /* 32 hex digits that you draw, so that a repeated call after UNKNOWN finds its own grant, with
                        the remaining time; NULL: the library draws it.  Secret: a client that knows the id can
                        release the lease.  See "Lease ids" below. */
  dibs_lease_fn on_lost; /* called once, with LOST, if the lease is lost while it is held, before another client can
                            hold the name; or if it is being broken: stop the work, then release.  It may be on its
                            way while another thread frees the lease: free what `user` points to in a callback */
  void *user;            /* passed to on_lost */
} dibs_lease_options;
#define DIBS_LEASE_OPTIONS_INIT DIBS__INIT(dibs_lease_options)

/* Lease ids.  Draw one for each lease: an id belongs to one name, and has one handle at a time.
 * - In one process (and one dibs_open), an id that waits, holds, or lost its lease and was not released or freed since,
 *   is INVALID for another name and for a second handle.  You can use it again right after dibs_release,
 *   dibs_lease_free, or a wait that ended: the new request waits until the store has answered the earlier one.
 * - A request with the id of a grant that the store still has answers OK with the fence of that grant.  The end of the
 *   grant does not move: dibs_lease_left_ms is its remaining time, or the ttl of this request if that is less.  If less
 *   than the margin is left, the lease is renewed for the new ttl before the call answers.  mode, slots and owner stay
 *   as granted.
 * - Processes that share an id share the lease: a release by one of them ends it for all, and a renewal sets the ttl
 *   for all.  To pass a lease on, detach it first (dibs_lease_detach), then adopt it. */

/* Acquires the lease of `name`: blocks until it is held, the wait ends, or a failure ends the wait.  First come, first
 * served.  *lease is yours, for dibs_lease_free; NULL unless DIBS_OK.
 *
 * A grant that follows a wait may be an offer at first: it is valid for half a second from when it was made, and the
 * library confirms it within some milliseconds for the whole ttl.  If the process is paused in between for longer than
 * that, the lease is lost.  A lease with on_lost or DIBS_NO_RENEW, and every shared or counted one, is confirmed before
 * the call returns.
 *
 * After TIMEOUT and CANCELLED, here and in `done` of dibs_acquire_start, the caller is in no queue any more, and an
 * offer that it got in the meantime has passed to the next waiter.  If the store does not confirm that within 100 ms,
 * the call returns, and this follows.
 *
 * OK; HELD (wait_ms 0); TIMEOUT; CANCELLED (dibs_close); LOST (options.id holds the name, and that lease is being
 * broken); INVALID (the name, the options, slots other than the holders', an id in use); or a failure of the store:
 * UNSUPPORTED (also: the mode), UNAVAILABLE (it was unreachable or full for the whole wait, or each answer took longer
 * than the ttl), UNKNOWN (call again with the same options.id; without an id of yours, what was granted is given back).
 * DENIED, UNSUPPORTED, CORRUPT, TOO_NEW and NO_MEMORY end a wait at once. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire(dibs_store *store, const char *name,
                                                   const dibs_lease_options *options, dibs_lease **lease,
                                                   dibs_error *error);

/* Acquires all `count` names, or none.  Blocks like dibs_acquire; wait_ms is the limit for the whole call.  The names
 * are acquired in one fixed order, so that two such calls can't deadlock.  leases[i] belongs to names[i].
 * Statuses as dibs_acquire; INVALID also if a name occurs twice, or options.id is given. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire_many(dibs_store *store, const char *const names[], size_t count,
                                                        const dibs_lease_options *options, dibs_lease *leases[],
                                                        dibs_error *error);

/* Begins to acquire and returns at once.  `done` is called exactly once, later, with the status that dibs_acquire would
 * have answered.  The handle is yours from now on in either case.  Needs no thread while it waits.
 * OK; INVALID, UNSUPPORTED (the mode) and NO_MEMORY at once, and then `done` is never called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire_start(dibs_store *store, const char *name,
                                                         const dibs_lease_options *options, dibs_lease_fn done,
                                                         void *user, dibs_lease **lease, dibs_error *error);

/* Ends a wait that dibs_acquire_start began: `done` is called with CANCELLED, unless the lease was granted first.  Does
 * not block and never fails.  It has no effect on a lease that does not wait. */
DIBS_EXPORT void dibs_acquire_cancel(dibs_lease *lease);

/* Releases the lease; the next waiter gets it.  Blocks for I/O.  The handle stays, for dibs_lease_free.
 * OK; LOST (it was lost or released before, or has left this handle: in each case it is not held any more by it);
 * INVALID (never held); or a failure of the store: UNAVAILABLE and UNKNOWN (the lease may be held until its ttl ends).
 */
DIBS_EXPORT dibs_status dibs_release(dibs_lease *lease, dibs_error *error);

/* Begins to release and returns at once.  `done` (may be NULL) is called exactly once, later, with the status that
 * dibs_release would have answered.
 * OK; LOST, INVALID and NO_MEMORY at once, and then `done` is never called. */
DIBS_EXPORT dibs_status dibs_release_start(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error);

/* Keeps the name held for `keep_ms` from now on, without this process: for a job that must not run again within a
 * minute although it took a second.  It renews the lease for exactly that time (at least DIBS_TTL_MIN_MS), also if the
 * lease had more left, and then the lease leaves the handle: nothing renews it, dibs_lease_free and dibs_close do not
 * release it, and on_lost is not called.  When the time is over, the name passes to the next waiter, of this process or
 * of another; a waiter that expected a later end notices within a second.  keep_ms of 0 or less releases at once.
 * Blocks for I/O.
 * OK; LOST (also: another thread released it meanwhile); INVALID (not held, or keep_ms above DIBS_TTL_MAX_MS); or a
 * failure of the store, after which the handle still holds the lease as before: UNSUPPORTED (session locks end with
 * their connection), UNAVAILABLE (repeat it), UNKNOWN (repeat it; the time may be set already). */
DIBS_EXPORT dibs_status dibs_release_after(dibs_lease *lease, int64_t keep_ms, dibs_error *error);

/* Renews now, for `ttl_ms` (0: the present ttl), and makes that the lease's ttl.  Blocks for I/O.
 * OK; LOST (also: another thread released it meanwhile); INVALID (not held, or the ttl); or a failure of the store: the
 * lease is held as before, and with UNKNOWN the store may have renewed it. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_renew(dibs_lease *lease, int64_t ttl_ms, dibs_error *error);

/* Begins to renew and returns at once.  `done` (may be NULL) is called exactly once, later, with the status that
 * dibs_renew would have answered; with LOST if the lease is released or the store is closed before.  Renewals that wait
 * for an earlier request of this lease become one, with the ttl of the latest.
 * OK; LOST, INVALID and NO_MEMORY at once, and then `done` is never called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_renew_start(dibs_lease *lease, int64_t ttl_ms, dibs_lease_fn done,
                                                       void *user, dibs_error *error);

/* 1 while the lease is surely held by this handle, else 0: less than the margin is left by the local boot-time clock,
 * counted from before the last successful renewal was sent.  The margin is a twentieth of the ttl, 5 to 500 ms, and a
 * thousandth of it for the drift of two clocks: 530 ms of 30 s, 87 s of a day.  No I/O, no lock: call it in the middle
 * of your work. */
DIBS_EXPORT int dibs_lease_alive(const dibs_lease *lease);

/* Milliseconds for which dibs_lease_alive will answer 1 if no renewal succeeds; 0 when it is not held.  No I/O, no
 * lock. */
DIBS_EXPORT int64_t dibs_lease_left_ms(const dibs_lease *lease);

/* Milliseconds for which the store may keep the name for this lease, if no renewal succeeds: the ttl counted from the
 * store's last answer, without the margin.  So it is more than dibs_lease_left_ms.  Until then other clients may have
 * to wait; from then on they need not, as far as this process knows.  Do not work by it: work by dibs_lease_alive.
 * 0 when the lease is lost, was released, has left the handle or was never held.  No I/O, no lock. */
DIBS_EXPORT int64_t dibs_lease_store_left_ms(const dibs_lease *lease);

/* The fence (see dibs_fence).  0 for shared and counted leases, before the grant, and for a lease that was adopted
 * without its fence, until its first renewal. */
DIBS_EXPORT dibs_fence dibs_lease_fence(const dibs_lease *lease);

/* The slot of a counted lease, from 0. */
DIBS_EXPORT uint32_t dibs_lease_slot(const dibs_lease *lease);

/* The URI of the tier that granted it, without a password; of a store without tiers its own URI.  "memory": the memory
 * of this process alone, because every tier was down (least-strict); another process may hold the name, too.
 * Valid until dibs_close. */
DIBS_EXPORT const char *dibs_lease_tier(const dibs_lease *lease);

/* The name; valid as long as the handle. */
DIBS_EXPORT const char *dibs_lease_name(const dibs_lease *lease);

/* Writes the 32 hex digits of the secret id and a NUL into `id`.  From then on, a release always goes to the store, and
 * does not hand the lease to the next waiter of this process directly.
 * OK; INVALID (not held). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_id(dibs_lease *lease, char id[33], dibs_error *error);

/* One more owner of the same handle, as for re-entry.  Each owner calls dibs_lease_free once.  Returns `lease`. */
DIBS_EXPORT dibs_lease *dibs_lease_retain(dibs_lease *lease);

/* Gives the handle back.  When the last owner does, a lease that is held is released in the background, and a wait is
 * cancelled.  Does not block.  NULL is fine. */
DIBS_EXPORT void dibs_lease_free(dibs_lease *lease);

/* Leaves the lease to any process that knows its id: this handle does not renew it any more, dibs_lease_free and
 * dibs_close do not release it, and on_lost is not called.  It may wait for a request in flight.
 * OK; INVALID (not held); UNSUPPORTED (session locks belong to their connection). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_detach(dibs_lease *lease, dibs_error *error);

/* Makes a handle for a lease that was acquired elsewhere, from its name, id (32 hex digits) and fence.  `fence` 0: the
 * name and the id are enough; then the first successful renewal learns the fence.  (If the process that acquired the
 * lease had got it from another lease of its own, the learned fence may be larger than the fence in that process.)
 *
 * Sends nothing to the store.  Call dibs_renew: until a renewal succeeds, dibs_lease_alive is 0 and the library does
 * not renew the lease; if there is no lease with this name and id, the renewal answers LOST, and the store has not
 * changed. dibs_release and dibs_release_after need no renewal before.  options.ttl_ms is the ttl of renewals.
 * OK; INVALID (the name, the id, the options, or an id in use: "Lease ids", also while its release is in flight);
 * UNSUPPORTED (the mode); NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_adopt(dibs_store *store, const char *name, const char *id,
                                                       dibs_fence fence, const dibs_lease_options *options,
                                                       dibs_lease **lease, dibs_error *error);

/* ---- Tables of your own --------------------------------------------------------------------------------------- */

/* The roles of the columns in a table of yours.  Leave out what you do not use.  Without a table (NULL), each
 * function below that takes one uses dibs' own.  SQL stores only, and for records, stock and tasks also MongoDB, where
 * it is a collection (doc/mongodb.md); the others answer UNSUPPORTED. */
typedef struct dibs__table dibs_table;

/* The kind of a row's version. */
typedef enum dibs_version_kind {
  DIBS_VERSION_NUMBER = 0, /* a whole number that each write counts up */
  DIBS_VERSION_TIME = 1,   /* the time of the latest write */
  DIBS_VERSION_HASH = 2    /* a hash of the row's `columns` */
} dibs_version_kind;

/* What numbers in columns of instants count since 1970, UTC. */
typedef enum dibs_time_unit {
  DIBS_TIME_MS = 0, /* milliseconds */
  DIBS_TIME_S = 1   /* seconds */
} dibs_time_unit;

typedef struct dibs_table_options {
  size_t size;
  const char *table;   /* "event", "booking.event" */
  const char *key;     /* its unique key; calls write it as the engine does: "1", not "01" */
  const char *version; /* its version; NULL: none, or a hash that is not stored */
  dibs_version_kind version_kind;
  const char *fence;        /* a number of 64 bits: the largest fence seen */
  const char *owner;        /* a number of 64 bits: a digest of the lease that had it */
  const char *columns;      /* "title, body": the values that are read and written */
  const char *used, *limit; /* numbers: of a stock */
  const char *claims;       /* the table of its claims; in MongoDB the array of claims in the document */
  const char *claim;        /* its unique key: text of at least 36 bytes */
  const char *claim_stock;  /* the key of the counted row; in MongoDB NULL */
  const char *claim_amount; /* a number; NULL: always 1 */
  const char *claim_given;  /* a number: 0 taken, 1 given back (MongoDB: true); NULL: nothing is ever given back */
  const char *claim_owner;  /* text */
  const char *claim_time;   /* a number: ms since 1970 (MongoDB: a date) */
  /* Tasks: rows of work, with `key` and `fence`.  Each a date with a time, or a number (doc/tables.md). */
  const char *phase;        /* text: the step that comes next; NULL in a row: it is not a task */
  const char *locked_at;    /* when the row was claimed; 1970 or NULL in a row: it is free */
  const char *updated_at;   /* when its phase changed; of rows with one locked_at, the oldest is claimed first */
  dibs_time_unit time_unit; /* of locked_at and updated_at, where they are numbers */
  const char *count;        /* a number: of a counter (dibs/counter.h) */
} dibs_table_options;
#define DIBS_TABLE_OPTIONS_INIT DIBS__INIT(dibs_table_options)

/* Declares a table.  Sends nothing to the store: a connection checks the table when it first uses it, and then the call
 * answers INVALID with the column that is missing or has the wrong type (doc/tables.md).  *table is yours, for
 * dibs_table_free; free it when no later call will use it.
 * OK; INVALID (the options; the text names the field); NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_table_declare(const dibs_table_options *options, dibs_table **table,
                                                         dibs_error *error);
DIBS_EXPORT void dibs_table_free(dibs_table *table);

/* Declares the table that the section [section] of an INI file describes: its keys are the fields above, its values
 * their content.  `section` NULL: the only section of the file.
 * OK; INVALID (the text has the file, the line and the reason); NOT_FOUND (the section); UNAVAILABLE (the file can't be
 * read); NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_table_read(const char *file, const char *section, dibs_table **table,
                                                      dibs_error *error);

/* ---- Records ---------------------------------------------------------------------------------------------------- */

/* A record has a version and a fence.  Each write makes another version: an editor gets the record, and puts it back if
 * it still has that version.  The fence refuses a late holder of a lease.  In dibs' own table a record is one value, of
 * any bytes; in a table of yours it has one value for each column, as the engine's text.  Write each record in one way:
 * by version, by fence, or by both.  A writer with one guard does not notice writers that use only the other.
 *
 * Records, stock and once need a database: sqlite:, postgres:, mysql:, memory:, or one of these as the last tier.
 * etcd: and zk: have records of dibs' own form.  mongodb: has records and stock, also in collections of yours, and
 * once. Elsewhere, as on redis: and redlock: alone, every call of these three families answers UNSUPPORTED, with and
 * without a lease. */
typedef struct dibs_value {
  const char *data; /* NULL: no value (SQL's NULL) */
  size_t length;    /* in a put, with NULL: DIBS_KEEP leaves the column as it is */
} dibs_value;
#define DIBS_KEEP ((size_t)-1)

/* A record that was read; for dibs_record_free.  Later versions may append fields. */
typedef struct dibs_record {
  const char *version; /* text without a meaning.  "0" in dibs' own table: nothing was put yet, or it was removed */
  dibs_fence fence;    /* the largest fence that the record has seen; 0: none, or the table has no such column */
  size_t count;        /* 1, or the number of the table's columns */
  const dibs_value *values; /* in the order of dibs_table_options.columns; a NUL follows the last byte of each */
} dibs_record;

enum {
  DIBS_IF_ABSENT = 1, /* only if there is no such record */
  DIBS_UNCHECKED = 2  /* no guard: the last write wins */
};

typedef struct dibs_record_options {
  size_t size;
  const dibs_table *table; /* NULL: dibs' own */
  const char *if_version;  /* only if the record has this version, which a record or an earlier put returned */
  uint32_t flags;          /* DIBS_IF_ABSENT, DIBS_UNCHECKED */
  dibs_lease *lease;       /* an exclusive lease: only if the record has seen no larger fence, and not this fence from
                              another lease */
  int64_t wait_ms;         /* for the whole call, also for an unreachable or full store; 0: 5 s */
} dibs_record_options;
#define DIBS_RECORD_OPTIONS_INIT DIBS__INIT(dibs_record_options)

/* The result of a put or removal; the error's text contains it, too.  You can pass its version to the next call. */
typedef struct dibs_record_result {
  size_t size;
  char version[DIBS_VERSION_MAX + 1]; /* after OK of a put: the new version; after CONFLICT: the record's; else "" */
  dibs_fence fence;                   /* after STALE: the fence that the record has seen; else 0 */
  uint32_t tries;                     /* of dibs_record_update: how often it has read the record */
} dibs_record_result;
#define DIBS_RECORD_RESULT_INIT DIBS__INIT(dibs_record_result)

/* Reads a record.  With options.lease it also seals the record in the same step: from then on no client with an older
 * fence can write it, so what you have read stays the latest.  Do not set if_version and flags.  *record is yours, for
 * dibs_record_free; NULL unless DIBS_OK.  Blocks for I/O.
 * OK; NOT_FOUND (in dibs' own table never with a lease: that creates an empty record of version "0"); STALE (with a
 * lease: the record has seen a larger fence); LOST (the lease is lost); INVALID (the key, the options, a lease without
 * a fence, a table that does not fit its declaration); or a failure of the store: UNSUPPORTED (see above; or the table
 * has no fence column), UNKNOWN (with a lease: the record may be sealed). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_get(dibs_store *store, const char *key,
                                                      const dibs_record_options *options, dibs_record **record,
                                                      dibs_error *error);
DIBS_EXPORT void dibs_record_free(dibs_record *record); /* NULL is fine */

/* Writes `count` values: 1 in dibs' own table, otherwise one for each column.  You give one or more guards, and all of
 * them must hold; or DIBS_UNCHECKED instead.  DIBS_IF_ABSENT creates the record; in dibs' own table a lease or
 * UNCHECKED alone also creates it.  It is one statement when the guards hold; only when they do not, the reason is
 * read in a second one.  `result` may be NULL.  Blocks for I/O.
 * OK; NOT_FOUND (there is no record to change); STALE (the record has seen a larger fence); CONFLICT (it has another
 * version, or with IF_ABSENT it exists); INVALID (the key, the options, a lease without a fence, the table; or the
 * engine refuses the values); or a failure of the store: UNSUPPORTED (see above; or a column that the guard needs is
 * missing), UNKNOWN (it may be written: get it, and compare). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_put(dibs_store *store, const char *key, const dibs_value *values,
                                                      size_t count, const dibs_record_options *options,
                                                      dibs_record_result *result, dibs_error *error);

/* Removes a record, under the same guards but IF_ABSENT.  dibs' own table still remembers the fence and the version of
 * the key, so that a late holder or an old version never matches a record that is created later; a row of yours is
 * deleted.  Statuses as dibs_record_put. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_remove(dibs_store *store, const char *key,
                                                         const dibs_record_options *options, dibs_record_result *result,
                                                         dibs_error *error);

/* Computes the new values from the present record; `record` is NULL if there is none.  values[i] are DIBS_KEEP at
 * first. The memory that you let them point to must stay valid until the next call of this function, or the end of
 * dibs_record_update.  It may be called several times, so it must have no other effect.  Any status but OK ends the
 * update, which returns it. */
typedef dibs_status (*dibs_record_fn)(const dibs_record *record, dibs_value *values, size_t count, void *user);

typedef struct dibs_update_options {
  size_t size;
  const dibs_table *table;
  dibs_lease *lease; /* reading seals, and the fence guards the write */
  uint32_t tries;    /* at most this many; 0: as many as the time allows */
  uint32_t flags;    /* DIBS_IF_ABSENT: also creates a record; without it a missing record is NOT_FOUND */
  int64_t wait_ms;   /* for the whole call; 0: 5 s */
} dibs_update_options;
#define DIBS_UPDATE_OPTIONS_INIT DIBS__INIT(dibs_update_options)

/* Gets the record, calls `fn`, and puts the new values if the record still has that version; otherwise it repeats this
 * after a random pause that grows.  result->tries counts.  Blocks for I/O.
 * OK; CONFLICT (all tries were used); TIMEOUT (the time was over); the status that `fn` returned; and the other
 * statuses of dibs_record_get and dibs_record_put. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_update(dibs_store *store, const char *key,
                                                         const dibs_update_options *options, dibs_record_fn fn,
                                                         void *user, dibs_record_result *result, dibs_error *error);

/* ---- Stock: a bounded quantity ----------------------------------------------------------------------------------- */

/* A stock is a row with a limit and the used quantity.  A take inserts a claim in the same transaction.  The sum of the
 * claims never exceeds the limit, and a claim never counts twice: after UNKNOWN, repeat the take or give with the same
 * claim id, and it finds its own effect. */
typedef enum dibs_strategy {
  DIBS_COALESCED = 0,   /* all requests that wait for the row are decided together, in their order: the default */
  DIBS_ATOMIC = 1,      /* one conditional statement for each request */
  DIBS_PESSIMISTIC = 2, /* locks the row first, then reads it, then writes it */
  DIBS_OPTIMISTIC = 3,  /* reads the row, and writes it if it has not changed; otherwise again */
  DIBS_NAMED = 4,       /* a lease around the transaction, released after its commit */
  DIBS_FENCED = 5       /* the same, and the row refuses fences below the largest that it has seen */
} dibs_strategy;

enum { DIBS_TAKE_PARTIAL = 1 /* take the rest if there is less than requested */ };

typedef struct dibs_stock_options {
  size_t size;
  const dibs_table *table; /* NULL: dibs' own */
  dibs_strategy strategy;
  uint32_t flags;    /* DIBS_TAKE_PARTIAL */
  const char *claim; /* 1 to 64 bytes that you draw; NULL: the library draws it, see the result */
  const char *owner; /* a label for people; NULL: the store's */
  int64_t wait_ms;   /* for the whole call, retries included; 0: 5 s; DIBS_FOREVER */
  uint32_t tries;    /* OPTIMISTIC, and after deadlocks: at most this many; 0: as many as the time allows */
} dibs_stock_options;
#define DIBS_STOCK_OPTIONS_INIT DIBS__INIT(dibs_stock_options)

typedef struct dibs_stock_result {
  size_t size;
  char claim[65];
  int64_t got;         /* the quantity that this claim took or gave back: now, or with REPLAY before */
  int64_t used, limit; /* after this call, if it knows them; else -1 */
  uint32_t retries;    /* tries after the first: conflicts, deadlocks, lost connections */
  uint32_t deadlocks;
} dibs_stock_result;
#define DIBS_STOCK_RESULT_INIT DIBS__INIT(dibs_stock_result)

/* Takes `amount` (1 or more) of the stock `key`.  `result` may be NULL.  Blocks for I/O.
 * OK; FULL (less than that is left); NOT_FOUND (no such stock); REPLAY (this claim took `got` before); CONFLICT (the
 * claim was given back, or belongs to another stock; OPTIMISTIC also: all tries were used); INVALID (the key, the
 * options, the table; or the engine refuses the write); with NAMED and FENCED also HELD, TIMEOUT, CANCELLED, LOST and
 * STALE, of the lease; or a failure of the store: UNSUPPORTED (see Records; or the strategy), UNKNOWN (repeat it with
 * result->claim). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_take(dibs_store *store, const char *key, int64_t amount,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Gives back what `claim` took.  OK (`got`); REPLAY (it was given back before); NOT_FOUND (no such stock; or no such
 * claim: the store remembers it as given back, and refuses a take of it that comes later); otherwise like
 * dibs_stock_take, but never FULL. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_give(dibs_store *store, const char *key, const char *claim,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Reads `used` and `limit`.  OK; NOT_FOUND; INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_show(dibs_store *store, const char *key,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Creates the stock, or sets its limit.
 * OK; FULL (more than that is used; nothing was changed); INVALID (also: a table of yours in which the row can't be
 * created); or a failure of the store: UNKNOWN (repeat it). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_set(dibs_store *store, const char *key, int64_t limit,
                                                     const dibs_stock_options *options, dibs_stock_result *result,
                                                     dibs_error *error);

/* ---- Once ----------------------------------------------------------------------------------------------------------
 */

typedef struct dibs_once_options {
  size_t size;
  int64_t keep_ms;   /* how long the answer is kept; 0: a day */
  int64_t wait_ms;   /* how long to wait for an attempt that runs, and for an unreachable or full store; 0: answer at
                        once; DIBS_FOREVER */
  int64_t ttl_ms;    /* of the lease that the attempt holds, which is renewed while it runs; 0: 30 s */
  const char *owner; /* a label for people; NULL: the store's */
} dibs_once_options;
#define DIBS_ONCE_OPTIONS_INIT DIBS__INIT(dibs_once_options)

/* Does the work.  You malloc *answer and the library frees it; it is kept if you return DIBS_OK (at most
 * DIBS_RECORD_MAX bytes; NULL is an empty answer).  dibs_once returns any other status, and the key is free again.  The
 * fence of `lease` grows with each attempt.  `lease` is NULL inside a transaction of yours. */
typedef dibs_status (*dibs_once_fn)(dibs_lease *lease, char **answer, size_t *length, void *user);

/* Runs `fn` once for `key` in the whole fleet, and keeps its answer.  Later calls get that answer (REPLAY).  A call
 * that comes while it runs waits.  *answer is yours to free(), with a NUL after its last byte; NULL unless the call
 * answers OK or REPLAY.  Blocks for I/O.
 *
 * If the process crashes in the middle, the key is free when the lease ends: then `fn` may repeat its effects outside
 * the store, under a larger fence.  To have the effect and the answer in one transaction, use dibs_inside_...: then a
 * call that comes in between waits until you commit (REPLAY) or roll back (it runs).  Use each key in one way only:
 * inside a transaction, a key is HELD while an attempt outside of one runs, and for a day if that crashed.  Inside, the
 * lock timeout of your connection decides how long a call waits (then UNAVAILABLE, and your transaction can continue),
 * and wait_ms has no effect.
 *
 * OK (it ran now); REPLAY; HELD, TIMEOUT and CANCELLED (of the lease: another attempt runs); LOST (the lease was lost
 * while it ran: the answer was not kept); STALE (a newer attempt has begun: the answer was not kept); the status that
 * `fn` returned; CONFLICT (inside: your transaction can't continue); INVALID (also: the answer is too long); or a
 * failure of the store: UNSUPPORTED (see Records), UNAVAILABLE (`fn` was not called), UNKNOWN (it may have run, and the
 * answer may be kept: call again), NO_MEMORY (it may have run: call again). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_once(dibs_store *store, const char *key, const dibs_once_options *options,
                                                dibs_once_fn fn, void *user, char **answer, size_t *length,
                                                dibs_error *error);
/* Deletes the answer, so that the next dibs_once runs again.
 * OK; NOT_FOUND (there is none); INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_once_forget(dibs_store *store, const char *key, dibs_error *error);

/* ---- Inside a transaction of yours ---------------------------------------------------------------------------------
 */

/* dibs/postgres.h, dibs/mysql.h and dibs/sqlite.h declare dibs_inside_postgres, dibs_inside_mysql and
 * dibs_inside_sqlite.  Each makes a handle whose calls run in the open transaction of your own connection to the
 * store's database, and take effect when you commit: records, stock, once, tasks and counters.  It has no leases: those
 * calls answer INVALID, and a record call with a lease of the store itself is fine.
 *
 * Before the first call the transaction must be open and the tables of dibs must exist (open the store once before).
 * No other thread may use the connection during a call.  *inside is yours, for dibs_close, which leaves the connection
 * as it is; close it before the store.
 * OK; INVALID (no connection, a store of another engine, a handle that is inside already); UNSUPPORTED (the store has
 * no transactions of yours); DENIED, UNAVAILABLE, CORRUPT, TOO_NEW, NO_MEMORY. */

#ifdef __cplusplus
}
#endif
#endif
