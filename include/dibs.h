/* SPDX-License-Identifier: MIT */
#ifndef DIBS_H
#define DIBS_H
/*
 * dibs: one holder, one write.
 *
 * Read this first:
 *
 * - A lease is a right that ends.  A process that is paused (a debugger, a swapped machine, SIGSTOP) may wake after
 *   its lease has passed to somebody else and not know it yet.  dibs_lease_alive() tells without I/O; but only a
 *   fence that the written thing itself checks (dibs_record_save, or a column of your own) keeps a late write out.
 * - A lost lease stays lost.  Its handle never becomes good again; ask for a new one.
 * - DIBS_UNKNOWN means: it may or may not have happened.  Asking again with the same lease id is safe.
 * - A handle belongs to the process that opened it.  After fork() the child's use of it answers DIBS_INVALID.
 * - All functions may be called from any thread unless they say otherwise.  The library's own threads block every
 *   signal.  Callbacks run with no lock held and may call any function of this header.
 * - What this header does not declare is not supported.
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

/* The version of the library that is running, "0.1.0", and as a number, 0x000100.  Never fails. */
DIBS_EXPORT const char *dibs_version(void);
DIBS_EXPORT uint32_t dibs_version_number(void);

/* ---- Statuses ----------------------------------------------------------------------------------------------- */

/* One closed set for every call.  Numbers are stable and only appended.  The first ten are answers of a healthy
 * store; the rest are trouble.  X(name, number, text). */
#define DIBS_STATUSES(X)                                                                                               \
  X(OK, 0, "done")                                                                                                     \
  X(HELD, 1, "somebody else holds it")                                                                                 \
  X(TIMEOUT, 2, "the wait ended before it was free")                                                                   \
  X(LOST, 3, "the lease is lost; somebody else may hold the name")                                                     \
  X(STALE, 4, "a newer fence was seen; nothing was changed")                                                           \
  X(CONFLICT, 5, "somebody changed it in between; nothing was changed")                                                \
  X(FULL, 6, "there is not enough left")                                                                               \
  X(REPLAY, 7, "this was done before; the stored answer is given")                                                     \
  X(NOT_FOUND, 8, "there is no such thing")                                                                            \
  X(INVALID, 9, "the call itself is wrong")                                                                            \
  X(DENIED, 10, "not permitted")                                                                                       \
  X(UNSUPPORTED, 11, "this store can't do that")                                                                       \
  X(CANCELLED, 12, "the call was cancelled")                                                                           \
  X(UNAVAILABLE, 13, "the store can't be reached; nothing was done")                                                   \
  X(UNKNOWN, 14, "it may or may not have happened; asking again with the same id is safe")                             \
  X(CORRUPT, 15, "the store's data is damaged")                                                                        \
  X(TOO_NEW, 16, "the store was made by a newer dibs")                                                                 \
  X(NO_MEMORY, 17, "out of memory")

typedef enum dibs_status {
#define DIBS__STATUS_ENUM(name, number, text) DIBS_##name = number,
  DIBS_STATUSES(DIBS__STATUS_ENUM)
#undef DIBS__STATUS_ENUM
} dibs_status;

/* "HELD", and "somebody else holds it".  For a number that is no status: "?" and "no such status".  Never NULL. */
DIBS_EXPORT const char *dibs_status_name(dibs_status status);
DIBS_EXPORT const char *dibs_status_text(dibs_status status);

/* What went wrong, for people: names the store (no password), the name, the engine's own words and the next step.
 * The caller owns it; every `error` argument below may be NULL; it is written whenever the call does not answer
 * DIBS_OK, and cleared when it does. */
typedef struct dibs_error {
  dibs_status status;
  char text[508];
} dibs_error;

/* ---- Bounds ------------------------------------------------------------------------------------------------- */

enum {
  DIBS_NAME_MAX = 255,       /* bytes of a name: UTF-8, at least one, no control characters */
  DIBS_OWNER_MAX = 127,      /* bytes of an owner: a label for people, proves nothing */
  DIBS_SLOTS_MAX = 65535,    /* slots of a counted lease */
  DIBS_MANY_MAX = 1024,      /* names in one dibs_acquire_many */
  DIBS_RECORD_MAX = 1048576, /* bytes of a record: of all its values together */
  DIBS_VERSION_MAX = 127,    /* bytes of a version */
  DIBS_COLUMNS_MAX = 32      /* columns of a table of yours */
};
#define DIBS_TTL_MIN_MS INT64_C(100)
#define DIBS_TTL_MAX_MS INT64_C(86400000) /* a day; longer work renews */
#define DIBS_TTL_DEFAULT_MS INT64_C(30000)
#define DIBS_FOREVER INT64_C(-1) /* as wait_ms: no limit */

/* ---- Stores ------------------------------------------------------------------------------------------------- */

typedef struct dibs_store dibs_store;
typedef struct dibs_lease dibs_lease;

enum {
  /* Callbacks wait until your event loop calls dibs_dispatch(); dibs_fd() is readable when there are some.
   * Without it a thread of the library runs them. */
  DIBS_STORE_LOOP = 1
};

/* Zero means the default for every field but `size`, which is sizeof(dibs_store_options): write
 * `dibs_store_options o = {.size = sizeof o};`.  A NULL pointer means all defaults. */
typedef struct dibs_store_options {
  size_t size;
  uint32_t flags;          /* DIBS_STORE_LOOP */
  const char *owner;       /* the owner of leases that name none; NULL: "user@host:pid" */
  const char *module_path; /* folders of driver modules, ':' between; NULL: the installed one, or DIBS_MODULE_PATH */
} dibs_store_options;

/* Opens the store at `uri` ("sqlite:///var/lib/app/dibs.db", "postgres://app@db/app", several tiers of one store
 * "redis://cache,mysql://db/app", "memory:"), or the one that a section of an INI file names ("/etc/app/dibs.ini#live",
 * where [live] has store = URI and, of tiers, tiers.strictness = strict and the like; without #: [store]); NULL or ""
 * means $DIBS_STORE, else the embedded file: $XDG_STATE_HOME/dibs/dibs.db, or /var/lib/dibs/dibs.db for root.  Creates
 * what is not there.  Blocks for I/O.  *store is yours, for dibs_close; NULL unless DIBS_OK.
 * INVALID (the URI), DENIED, UNSUPPORTED (no such driver, a network file system), UNAVAILABLE, CORRUPT (also: not a
 * file of dibs), TOO_NEW, NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_open(const char *uri, const dibs_store_options *options, dibs_store **store,
                                                dibs_error *error);

/* Ends every wait (their callbacks get DIBS_CANCELLED first), releases every lease that is still held and not
 * detached, ends the store's threads.  Lease handles stay valid memory until dibs_lease_free and answer INVALID or
 * LOST.  Blocks for I/O, some seconds at most.  Not from inside a callback of this store.  NULL is fine. */
DIBS_EXPORT void dibs_close(dibs_store *store);

/* The store's URI without password, valid until dibs_close. */
DIBS_EXPORT const char *dibs_store_uri(const dibs_store *store);

/* For stores opened with DIBS_STORE_LOOP.  The descriptor is readable while callbacks wait; it belongs to the store.
 * -1 without DIBS_STORE_LOOP.  dibs_dispatch runs at most `max` of them (0: all that wait) in the calling thread and
 * returns how many.  What they began on an embedded store travels in one transaction at the end of the call, which is
 * tens of microseconds; if other writers are in the way for 2 ms, a thread of the library carries it instead.
 * Otherwise it does not block. */
DIBS_EXPORT int dibs_fd(dibs_store *store);
DIBS_EXPORT size_t dibs_dispatch(dibs_store *store, size_t max);

/* ---- Leases ------------------------------------------------------------------------------------------------- */

typedef enum dibs_mode {
  DIBS_EXCLUSIVE = 0, /* one holder; the only mode whose fence can seal */
  DIBS_SHARED = 1,    /* any number of readers, no exclusive holder beside them */
  DIBS_COUNTED = 2    /* up to `slots` holders; the first one sets the number */
} dibs_mode;

enum {
  DIBS_NO_RENEW = 1 /* the library does not renew this lease by itself; dibs_renew does */
};

/* `status` is what the operation came to.  The handle is lent for the duration of the call. */
typedef void (*dibs_lease_fn)(dibs_lease *lease, dibs_status status, void *user);

/* Zero means the default for every field but `size`. */
typedef struct dibs_lease_options {
  size_t size;
  dibs_mode mode;
  uint32_t slots;        /* DIBS_COUNTED only: how many may hold, 1 to DIBS_SLOTS_MAX */
  uint32_t flags;        /* DIBS_NO_RENEW */
  uint32_t reserved;     /* zero */
  int64_t ttl_ms;        /* how long it lasts without renewal; 0: 30 s */
  int64_t wait_ms;       /* how long to wait; 0: answer HELD at once; DIBS_FOREVER */
  const char *owner;     /* a label for people; NULL: the store's */
  const char *id;        /* 32 hex digits drawn by the caller, so that a repeat after UNKNOWN finds its own grant;
                            NULL: drawn here.  Secret: who knows it can release the lease. */
  dibs_lease_fn on_lost; /* called once if the lease is lost while held, before it can be somebody else's (LOST), or
                            when somebody asks to break it (LOST: stop, then release) */
  void *user;            /* handed to on_lost */
} dibs_lease_options;

/* Acquires the lease of `name` and blocks until it is held, the wait ends, or something breaks.  First come, first
 * served.  *lease is yours, for dibs_lease_free; NULL unless DIBS_OK.
 * OK, HELD (wait_ms 0), TIMEOUT, CANCELLED (dibs_close), INVALID (name, options, slots other than the holders'),
 * UNSUPPORTED (the mode), UNAVAILABLE, UNKNOWN (give the same options.id again), NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire(dibs_store *store, const char *name,
                                                   const dibs_lease_options *options, dibs_lease **lease,
                                                   dibs_error *error);

/* Acquires all `count` names, or none.  Blocks like dibs_acquire; wait_ms bounds the whole.  The names are taken in
 * one fixed order, so that two such calls can't deadlock; a name given twice is INVALID, so is options.id.
 * leases[i] belongs to names[i]. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire_many(dibs_store *store, const char *const names[], size_t count,
                                                        const dibs_lease_options *options, dibs_lease *leases[],
                                                        dibs_error *error);

/* Begins to acquire and returns at once; `done` is called exactly once, later, with what dibs_acquire would have
 * answered.  The handle is yours from now on in either case.  Needs no thread while it waits.
 * INVALID, NO_MEMORY at once, and then `done` is never called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_acquire_start(dibs_store *store, const char *name,
                                                         const dibs_lease_options *options, dibs_lease_fn done,
                                                         void *user, dibs_lease **lease, dibs_error *error);

/* Ends a wait begun by dibs_acquire_start: `done` is called with CANCELLED, unless it was granted first.  Does not
 * block, never fails; without effect on a lease that does not wait. */
DIBS_EXPORT void dibs_acquire_cancel(dibs_lease *lease);

/* Releases the lease; the next in line gets it.  Blocks for I/O; the handle stays, for dibs_lease_free.
 * OK, LOST (it was not ours any more; it is released all the same), INVALID (never held, forked),
 * UNAVAILABLE (it will end by its ttl), UNKNOWN. */
DIBS_EXPORT dibs_status dibs_release(dibs_lease *lease, dibs_error *error);

/* Begins to release and returns at once; `done` (may be NULL) is called exactly once, later. */
DIBS_EXPORT dibs_status dibs_release_start(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error);

/* Renews now, for `ttl_ms` (0: as acquired), and keeps that as its ttl.  Blocks for I/O.
 * OK, LOST, INVALID, UNAVAILABLE, UNKNOWN. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_renew(dibs_lease *lease, int64_t ttl_ms, dibs_error *error);

/* 1 while the lease is surely ours, else 0: less than the margin is left by the local boot-time clock, counted from
 * before the last successful renewal was sent.  No I/O, no lock; for use in the middle of work. */
DIBS_EXPORT int dibs_lease_alive(const dibs_lease *lease);

/* Milliseconds for which dibs_lease_alive will answer 1 if no renewal succeeds; 0 when lost.  No I/O. */
DIBS_EXPORT int64_t dibs_lease_left_ms(const dibs_lease *lease);

/* The fence: larger than that of every earlier grant of this name; below 2^53.  Opaque but for its order.  0 for
 * shared and counted leases and before the grant. */
DIBS_EXPORT uint64_t dibs_lease_fence(const dibs_lease *lease);

/* The slot of a counted lease, from 0. */
DIBS_EXPORT uint32_t dibs_lease_slot(const dibs_lease *lease);

/* Which of the store's tiers granted it: its URI without password; the store's own URI where there is one only.
 * "memory": the memory of this process alone, because every tier was down (least-strict): others may hold it too.
 * Valid until dibs_close. */
DIBS_EXPORT const char *dibs_lease_tier(const dibs_lease *lease);

/* Valid as long as the handle. */
DIBS_EXPORT const char *dibs_lease_name(const dibs_lease *lease);

/* Writes the 32 hex digits of the secret id and a NUL into `id`.  From then on the lease is never handed to another
 * waiter of this process without the store.  OK, or INVALID when the lease is not held. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_id(dibs_lease *lease, char id[33], dibs_error *error);

/* One more owner of the same handle: re-entry is retaining it.  Each needs its own dibs_lease_free. */
DIBS_EXPORT dibs_lease *dibs_lease_retain(dibs_lease *lease);

/* Gives the handle back; with the last one a lease that is held is released in the background and a wait is
 * cancelled.  NULL is fine. */
DIBS_EXPORT void dibs_lease_free(dibs_lease *lease);

/* Leaves the lease to whoever knows its id: no renewal, no release at free or close, on_lost is not called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_detach(dibs_lease *lease, dibs_error *error);

/* A handle on a lease that was acquired elsewhere, by its name, id (32 hex digits) and fence.  Nothing is asked of
 * the store until dibs_renew or dibs_release.  The library does not renew it until the first dibs_renew succeeded. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lease_adopt(dibs_store *store, const char *name, const char *id,
                                                       uint64_t fence, const dibs_lease_options *options,
                                                       dibs_lease **lease, dibs_error *error);

/* ---- Looking, and breaking ---------------------------------------------------------------------------------- */

enum { DIBS_HOLDS = 0, DIBS_WAITS = 1, DIBS_OFFERED = 2, DIBS_BREAKING = 3, DIBS_BROKEN = 4 /* a recorded break */ };

/* One holder, waiter or recorded break.  Strings are valid during the call that gives it. */
typedef struct dibs_lease_info {
  size_t size;
  const char *name;
  const char *owner; /* of a break: who broke it */
  uint32_t state;    /* DIBS_HOLDS ... */
  dibs_mode mode;
  uint32_t slots;
  uint32_t slot;
  uint32_t ahead; /* waiters: how many are before it in line */
  uint32_t pid;   /* of the holder's or waiter's process if the store knows it and it lives, else 0 */
  uint64_t fence;
  int64_t ttl_ms;
  int64_t left_ms; /* until it ends by itself; 0 for waiters that are not offered */
  int64_t age_ms;  /* since granted, asked or broken */
} dibs_lease_info;

/* Return 0 to go on, anything else to stop. */
typedef int (*dibs_list_fn)(const dibs_lease_info *info, void *user);

/* Lists holders and waiters, by name and then in line, of names that begin with `prefix` (NULL: all); or of the one
 * name in dibs_show, with the recorded breaks.  Blocks for I/O.  OK, NOT_FOUND (dibs_show: nobody holds or waits),
 * INVALID, UNAVAILABLE. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_list(dibs_store *store, const char *prefix, dibs_list_fn fn, void *user,
                                                dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_show(dibs_store *store, const char *name, dibs_list_fn fn, void *user,
                                                dibs_error *error);

enum { DIBS_BREAK_NOW = 1 };

typedef struct dibs_break_options {
  size_t size;
  uint32_t flags;    /* DIBS_BREAK_NOW: do not wait for the holder; two may hold until it notices, up to ttl/3 */
  uint32_t reserved; /* zero */
  int64_t wait_ms;   /* without NOW: how long to wait until the holder let go or expired; 0: do not wait */
  const char *who;   /* recorded; NULL: the store's owner */
} dibs_break_options;

/* Takes the name from whoever holds it: the holder's next renewal is refused, it is told, and the name passes on
 * when it let go or when its ttl ends.  Who broke what is recorded.
 * OK, NOT_FOUND (nobody holds it), TIMEOUT (asked, but still held when wait_ms ended), INVALID, UNAVAILABLE. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_break(dibs_store *store, const char *name, const dibs_break_options *options,
                                                 dibs_error *error);

/* ---- Tables of your own --------------------------------------------------------------------------------------- */

/* Which columns of a table of yours play which part; what you do not use may be missing.  Without a table (NULL) every
 * function below that takes one uses dibs' own.  SQL stores only. */
typedef struct dibs__table dibs_table;

typedef struct dibs_table_options {
  size_t size;
  const char *table;        /* "event", "booking.event" */
  const char *key;          /* its unique key */
  const char *version;      /* a number counted up, a timestamp, or a hash; NULL: none, or a hash that is not stored */
  const char *version_kind; /* "number" (NULL), "time", "hash" */
  const char *fence;        /* a number of 64 bits: the largest fence seen */
  const char *owner;        /* a number of 64 bits: a digest of the lease that had it */
  const char *columns;      /* "title, body": what is loaded and saved */
  const char *used, *limit; /* numbers: of a stock */
  const char *claims;       /* the table of its claims */
  const char *claim;        /* its unique key: text of at least 36 bytes */
  const char *claim_stock;  /* the key of the counted row */
  const char *claim_amount; /* a number; NULL: always 1 */
  const char *claim_given;  /* a number: 0 taken, 1 given back; NULL: nothing is ever given back */
  const char *claim_owner;  /* text */
  const char *claim_time;   /* a number: ms since 1970 */
} dibs_table_options;

/* Declares a table.  Nothing is asked of the store.  *table is yours, for dibs_table_free, which may be called as soon
 * as no call with it is about to begin.  INVALID says which name is not one. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_table_declare(const dibs_table_options *options, dibs_table **table,
                                                         dibs_error *error);
DIBS_EXPORT void dibs_table_free(dibs_table *table);

/* Declares the table that the section [section] of an INI file describes: keys are the fields above, values what they
 * would be.  `section` NULL: the file's only one.  INVALID says file, line and what is wrong; NOT_FOUND (the section),
 * UNAVAILABLE (the file can't be read), NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_table_read(const char *file, const char *section, dibs_table **table,
                                                      dibs_error *error);

/* ---- Records: writes that check the fence --------------------------------------------------------------------- */

/* A record remembers the largest fence that it has seen, with a digest of its lease.  Seal before you read, then a
 * holder that is late can't write any more:  seal, work, save.
 *
 * dibs_record_seal raises the record's fence to the lease's and reads it, in one step.  *data is malloc'd, NUL behind
 * the last byte, yours to free; NULL for a record that has never been saved (then *length is 0).
 * OK, STALE (a newer fence was there), LOST (the lease is), INVALID (not exclusive, key), UNAVAILABLE, UNKNOWN,
 * NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_seal(dibs_store *store, const char *key, dibs_lease *lease,
                                                       char **data, size_t *length, dibs_error *error);

/* Writes the record unless a newer fence was seen, or this one in another lease.  The lease may be dead by now; only
 * the fence decides.  OK, STALE, INVALID, UNAVAILABLE, UNKNOWN, NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_save(dibs_store *store, const char *key, dibs_lease *lease,
                                                       const char *data, size_t length, dibs_error *error);

/* Reads without a fence.  OK, NOT_FOUND, INVALID, UNAVAILABLE, NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_load(dibs_store *store, const char *key, char **data, size_t *length,
                                                       uint64_t *fence, dibs_error *error);

/* ---- Records by version ----------------------------------------------------------------------------------------- */

/* A record has a version beside its fence: each write makes another.  Who edits it gets it, and puts it back if that
 * version still stands; who holds a lease is checked by the fence as well.  In dibs' own table a record is one value,
 * of any bytes, in a table of yours one value a column, as the engine's text.  Write one record in one way: by version,
 * by fence, or by both; a writer that is guarded by one knows nothing of those that are guarded by the other. */
typedef struct dibs_value {
  const char *data; /* NULL: there is none (SQL's NULL) */
  size_t length;    /* in a put, with NULL: DIBS_KEEP leaves the column as it is */
} dibs_value;
#define DIBS_KEEP ((size_t)-1)

/* A record that was read; for dibs_record_free.  More may be added behind. */
typedef struct dibs_record {
  const char *version;      /* as text; opaque.  "0" in dibs' own table: nothing was ever put, or it was removed */
  uint64_t fence;           /* the largest that was seen; 0: none, or the table has no such column */
  size_t count;             /* 1, or the table's columns */
  const dibs_value *values; /* in the order of dibs_table_options.columns; a NUL behind the last byte of each */
} dibs_record;

enum {
  DIBS_IF_ABSENT = 1, /* only if there is no such record */
  DIBS_UNCHECKED = 2  /* no guard: the last one wins */
};

typedef struct dibs_record_options {
  size_t size;
  const dibs_table *table; /* NULL: dibs' own */
  const char *if_version;  /* only if this version stands; as text, of a record or of an earlier put */
  uint32_t flags;          /* DIBS_IF_ABSENT, DIBS_UNCHECKED */
  dibs_lease *lease;       /* only if no newer fence was seen, nor this one of another lease; exclusive */
  int64_t wait_ms;         /* for all of it; 0: 5 s */
} dibs_record_options;

/* What a put or removal met; all of it is also in the error's text.  The next call may be given its version. */
typedef struct dibs_record_result {
  size_t size;
  char version[DIBS_VERSION_MAX + 1]; /* OK: the new one; CONFLICT: the one that stands */
  uint64_t fence;                     /* STALE: the one that stands; else 0 */
  uint32_t tries;                     /* dibs_record_update: how often it was begun */
} dibs_record_result;

/* Reads.  With options.lease it seals in the same step: from then on nobody with an older fence can put, and what is
 * read can't be overtaken by them.  if_version and flags must not be given.  *record is yours; NULL unless DIBS_OK.
 * OK; NOT_FOUND (in dibs' own table never with a lease: that makes an empty one of version "0"); STALE; LOST (the lease
 * is); INVALID (key, lease, a table that the store's does not fit); UNSUPPORTED (tables, or a part that this one
 * lacks); DENIED, UNAVAILABLE, UNKNOWN (with a lease: it may be sealed), NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_get(dibs_store *store, const char *key,
                                                      const dibs_record_options *options, dibs_record **record,
                                                      dibs_error *error);
DIBS_EXPORT void dibs_record_free(dibs_record *record); /* NULL is fine */

/* Writes `count` values: 1 in dibs' own table, else one a column.  All guards that are given must hold, and one must be
 * given, or DIBS_UNCHECKED.  What is not there is made with DIBS_IF_ABSENT, and in dibs' own table also with a lease or
 * UNCHECKED alone.  One statement when the guards hold; why they do not is looked up only then.  `result` may be NULL.
 * OK; NOT_FOUND (there is nothing to change); STALE (a newer fence was seen); CONFLICT (another version stands, or,
 * IF_ABSENT, any); INVALID (also: the engine refuses the values); UNSUPPORTED, DENIED, UNAVAILABLE; UNKNOWN (it may be
 * written: get it and look); NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_put(dibs_store *store, const char *key, const dibs_value *values,
                                                      size_t count, const dibs_record_options *options,
                                                      dibs_record_result *result, dibs_error *error);

/* Removes, under the same guards.  dibs' own table goes on to remember fence and version under the key, so that neither
 * a late holder nor an old version matches what is made anew; a row of yours is deleted.  Answers like a put. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_remove(dibs_store *store, const char *key,
                                                         const dibs_record_options *options, dibs_record_result *result,
                                                         dibs_error *error);

/* Makes what is to be put of what is there.  `record` is NULL if nothing is.  values[i] begin as DIBS_KEEP; what they
 * are set to must stay until the next call or the end of dibs_record_update.  It may be called several times, so it
 * must have no other effect.  Any status but OK ends the update and is handed on. */
typedef dibs_status (*dibs_record_fn)(const dibs_record *record, dibs_value *values, size_t count, void *user);

typedef struct dibs_update_options {
  size_t size;
  const dibs_table *table;
  dibs_lease *lease; /* seals when it reads, and puts under the fence too */
  uint32_t tries;    /* at most so many; 0: as many as the time allows */
  uint32_t flags;    /* DIBS_IF_ABSENT: also makes what is not there; else that is NOT_FOUND */
  int64_t wait_ms;   /* for all of it; 0: 5 s */
} dibs_update_options;

/* Gets, calls `fn`, puts if the version still stands; else again, after a pause that grows and differs between callers.
 * result->tries counts.  OK; CONFLICT (the tries are used up), TIMEOUT (the time is), what `fn` returned, and what get
 * and put answer. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_record_update(dibs_store *store, const char *key,
                                                         const dibs_update_options *options, dibs_record_fn fn,
                                                         void *user, dibs_record_result *result, dibs_error *error);

/* ---- Several writes without a transaction ---------------------------------------------------------------------- */

/* One of several writes, anywhere, and what takes it back.  Either is given `user`; the text of a failure may be left
 * in `error` (never NULL). */
typedef dibs_status (*dibs_step_fn)(void *user, dibs_error *error);
typedef struct dibs_step {
  const char *name;  /* for people: "charge the card" */
  dibs_step_fn act;  /* OK or REPLAY: done */
  dibs_step_fn undo; /* OK, REPLAY, NOT_FOUND: it is gone.  NULL: it can't be taken back: the last one that may fail */
  void *user;
} dibs_step;

typedef struct dibs_steps_result {
  size_t size;
  size_t done;         /* how many acts were done, from the first on */
  size_t left;         /* how many of these stand although they should not: 0 is all or nothing */
  size_t first_left;   /* the first of them; meaningless when left is 0 */
  dibs_status undo;    /* of the first undo that failed; OK if none did */
  uint32_t undo_tries; /* calls of undo */
} dibs_steps_result;

/* Does the steps in order.  If one does not come to OK or REPLAY, those that were done are taken back, the last first,
 * each tried again after UNAVAILABLE and UNKNOWN until wait_ms (0: 5 s) is over.  A step that answered UNKNOWN may be
 * done: it is undone too, so undo must bear finding nothing.  All are tried, also when one of them fails.
 * OK; what the step that failed answered, and the text says which it was, and by name what remains to be undone by
 * hand; INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_steps(const dibs_step *steps, size_t count, int64_t wait_ms,
                                                 dibs_steps_result *result, dibs_error *error);

/* ---- Stock: a bounded quantity ----------------------------------------------------------------------------------- */

/* A stock is a row with a limit and what is used of it; taking inserts a claim beside it, in the same transaction.  The
 * sum of claims never exceeds the limit, and a claim never counts twice: repeat a take or give with the same claim id
 * after UNKNOWN, and it finds its own effect. */
typedef enum dibs_strategy {
  DIBS_COALESCED = 0,   /* all that wait for the row are decided together, first come first served: the default */
  DIBS_ATOMIC = 1,      /* one conditional statement each */
  DIBS_PESSIMISTIC = 2, /* the row is locked first, then read, then written */
  DIBS_OPTIMISTIC = 3,  /* read; written if nobody did in between; else again */
  DIBS_NAMED = 4,       /* a lease around the transaction, released after its commit */
  DIBS_FENCED = 5,      /* the same, and the row refuses fences below the one it has seen */
  DIBS_UNGUARDED = 6    /* read, then written as if alone: loses updates; for experiments */
} dibs_strategy;

enum { DIBS_TAKE_PARTIAL = 1 /* take what is left if there is less than asked for */ };

typedef struct dibs_stock_options {
  size_t size;
  const dibs_table *table; /* NULL: dibs' own */
  dibs_strategy strategy;
  uint32_t flags;    /* DIBS_TAKE_PARTIAL */
  const char *claim; /* drawn by the caller, 1 to 64 bytes; NULL: drawn here, see the result */
  const char *owner; /* a label for people; NULL: the store's */
  int64_t wait_ms;   /* for all of it, retries included; 0: 5 s */
  uint32_t tries;    /* OPTIMISTIC, and after deadlocks: at most so many; 0: as many as the time allows */
} dibs_stock_options;

typedef struct dibs_stock_result {
  size_t size;
  char claim[65];
  int64_t got;         /* taken or given by this claim, now or, with REPLAY, before */
  int64_t used, limit; /* as this call left them, where it knows; else -1 */
  uint32_t retries;    /* beginnings after the first: conflicts, deadlocks, lost connections */
  uint32_t deadlocks;
} dibs_stock_result;

/* Takes `amount` (1 or more) of the stock `key`.  `result` may be NULL.  Blocks for I/O.
 * OK; FULL (less than that is left); NOT_FOUND (no such stock); REPLAY (this claim took `got` before); CONFLICT
 * (OPTIMISTIC: the tries are used up; else the claim was given back or belongs to another stock); INVALID; STALE, LOST,
 * TIMEOUT (NAMED, FENCED); UNSUPPORTED; UNAVAILABLE; UNKNOWN (repeat with the same claim). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_take(dibs_store *store, const char *key, int64_t amount,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Gives back what `claim` took.  OK (`got`); REPLAY (given before); NOT_FOUND (no such claim: it is remembered as
 * given, and a take that comes late is refused); otherwise like dibs_stock_take. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_give(dibs_store *store, const char *key, const char *claim,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Reads `used` and `limit`.  OK, NOT_FOUND, INVALID, UNSUPPORTED, UNAVAILABLE. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_show(dibs_store *store, const char *key,
                                                      const dibs_stock_options *options, dibs_stock_result *result,
                                                      dibs_error *error);
/* Makes the stock, or sets its limit.  OK; FULL: more than that is used (nothing was changed); INVALID (a table of
 * yours whose rows can't be made so), UNSUPPORTED, UNAVAILABLE, UNKNOWN. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_stock_set(dibs_store *store, const char *key, int64_t limit,
                                                     const dibs_stock_options *options, dibs_stock_result *result,
                                                     dibs_error *error);

/* ---- Once ----------------------------------------------------------------------------------------------------------
 */

typedef struct dibs_once_options {
  size_t size;
  int64_t keep_ms;   /* how long the answer is kept; 0: a day */
  int64_t wait_ms;   /* for somebody who is at it; 0: answer HELD; DIBS_FOREVER */
  int64_t ttl_ms;    /* of the lease under which it runs; 0: 30 s.  Renewed while it runs */
  const char *owner; /* a label for people */
} dibs_once_options;

/* Does the work: *answer is malloc'd by the function, for the library to free, and kept if it returns DIBS_OK (at most
 * DIBS_RECORD_MAX bytes; NULL is an empty one); any other status is handed on, and the key is free again.  The fence of
 * the lease grows with each attempt.  `lease` is NULL inside a transaction of yours. */
typedef dibs_status (*dibs_once_fn)(dibs_lease *lease, char **answer, size_t *length, void *user);

/* Runs `fn` once for `key` in the whole fleet, and keeps its answer; whoever comes later is given that (REPLAY).
 * Whoever comes in between waits.  *answer is malloc'd, yours to free, NUL behind the last byte; NULL unless the call
 * answers OK or REPLAY.
 * A crash in the middle frees the key when the lease ends: what `fn` did outside the store may then be done again,
 * under a larger fence.  To have the effect and the answer in one transaction, see dibs_inside: there who comes in
 * between waits until you commit (REPLAY) or roll back (it runs).  Use a key one way or the other: inside, an attempt
 * outside that has begun is HELD, for a day if it crashed.  Inside, how long they wait is said by your connection's own
 * lock timeout (then UNAVAILABLE, and your transaction can go on); wait_ms has no part in it.
 * OK (it ran now), REPLAY, HELD, TIMEOUT, LOST (the lease was, while it ran: the answer was not kept), STALE (a newer
 * attempt has begun: not kept), and what `fn` returned; CONFLICT (inside: your transaction can't go on), INVALID,
 * UNSUPPORTED, UNAVAILABLE (nothing was done), UNKNOWN (it may have run, the answer may be kept: ask again),
 * NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_once(dibs_store *store, const char *key, const dibs_once_options *options,
                                                dibs_once_fn fn, void *user, char **answer, size_t *length,
                                                dibs_error *error);
/* Takes the answer away, so that the next dibs_once runs again.  OK, NOT_FOUND (there is none), INVALID, UNSUPPORTED,
 * UNAVAILABLE, UNKNOWN. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_once_forget(dibs_store *store, const char *key, dibs_error *error);

/* ---- Inside a transaction of yours ---------------------------------------------------------------------------------
 */

/* A handle whose calls take part in the transaction that stands open on your own connection: a PGconn *, MYSQL * or
 * sqlite3 *, by the store's scheme.  What they did stands when you commit.  Records, stock and once; no leases.  The
 * connection must not be used by anybody else during a call, the transaction must be open before the first, and the
 * tables of dibs must be there (open the store once before).  For dibs_close, which leaves the
 * connection as it is, and before the store is closed.
 * UNSUPPORTED (the store has no transactions of yours), INVALID (no connection), UNAVAILABLE. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_inside(dibs_store *store, void *connection, dibs_store **inside,
                                                  dibs_error *error);

/* ---- What it is doing ----------------------------------------------------------------------------------------- */

typedef struct dibs_stats {
  size_t size;
  uint64_t batches;      /* driver calls that carried operations */
  uint64_t operations;   /* operations carried */
  uint64_t transactions; /* store transactions, as far as the driver counts them */
  uint64_t granted;      /* grants given to callers, hand-offs included */
  uint64_t handed_off;   /* grants passed on inside the process, without the store */
  uint64_t lost;         /* leases lost */
  uint64_t renewed;      /* renewals that succeeded */
  uint64_t waiting;      /* acquisitions waiting now */
  uint64_t held;         /* leases held now */
  uint64_t busy;         /* acquisitions that somebody else's lease refused: HELD */
  uint64_t timeouts;     /* acquisitions whose wait ended */
  uint64_t failed;       /* acquisitions that the store did not answer: UNAVAILABLE, UNKNOWN */
  uint64_t stale;        /* writes of records, stock and once that a newer fence refused */
} dibs_stats;

/* Counters of this handle since it was opened.  Set stats->size first.  Never blocks for I/O. */
DIBS_EXPORT void dibs_store_stats(dibs_store *store, dibs_stats *stats);

enum { DIBS_COUNTER = 0, DIBS_GAUGE = 1, DIBS_LATENCY = 2, DIBS_LATENCY_STEPS = 25 };

/* How long something took, in ns.  steps[i] is how many took less than 2^(10+i): about 1 us, 2 us, ... 17 s. */
typedef struct dibs_latency {
  uint64_t count, sum, max;
  uint64_t p50, p90, p99, p999;
  uint64_t steps[DIBS_LATENCY_STEPS];
} dibs_latency;

typedef struct dibs_metric {
  size_t size;
  const char *name;            /* "acquired", "tier_failures": lower case, stable */
  const char *help;            /* a line for people */
  const char *tier;            /* which tier it is of: "redis"; NULL: of the store */
  uint32_t kind;               /* DIBS_COUNTER, DIBS_GAUGE, DIBS_LATENCY */
  uint64_t value;              /* not of a latency */
  const dibs_latency *latency; /* of a latency; else NULL */
} dibs_metric;

/* Return 0 to go on, anything else to stop.  All that it points to is valid during the call. */
typedef int (*dibs_metric_fn)(const dibs_metric *metric, void *user);

/* Everything that this handle counts, one by one: of any store what dibs_stats has, and how long acquiring and
 * releasing took; of a store of several tiers what each does.  There it asks the anchor how things stand, for two
 * seconds at most; else it does not block.  OK, INVALID, NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_metrics(dibs_store *store, dibs_metric_fn fn, void *user, dibs_error *error);

/* ---- Several tiers ---------------------------------------------------------------------------------------------- */

/* A store may be several: "redis://cache,mysql://db/app".  The first is preferred; the last, the anchor, remembers
 * which of them serves which names, a hundredth of them (a bucket) at a time, and serves what no other does.  What is
 * set here is kept at the anchor and followed by every client within a second.
 *
 * A tier is named as its scheme is: "redis" (also for rediss), "mysql" (also for mariadb), "postgres"; the second one
 * of a scheme is "redis-2".  Its number, "0" for the first, is as good.
 *
 * All of these block for I/O, and answer UNSUPPORTED when the store is not of several tiers, unless they say otherwise;
 * INVALID, UNAVAILABLE (the anchor, or the tier, can't be reached), UNKNOWN, CORRUPT, TOO_NEW, NO_MEMORY. */

enum { DIBS_BUCKETS = 100, DIBS_TIERS_MAX = 4 };

/* Whether it is asked; of a client, or by hand for all of them. */
typedef enum dibs_breaker {
  DIBS_BREAKER_CLOSED = 0,   /* it is */
  DIBS_BREAKER_OPEN = 1,     /* it is not: too much failed, or was slow */
  DIBS_BREAKER_HALF_OPEN = 2 /* it is tried */
} dibs_breaker;

typedef enum dibs_hand {
  DIBS_HAND_AUTO = 0,  /* as the clients vote */
  DIBS_HAND_OPEN = 1,  /* as if it were down */
  DIBS_HAND_CLOSED = 2 /* never taken for down */
} dibs_hand;

typedef enum dibs_strictness {
  DIBS_STRICTNESS_FENCED = 0, /* after a move it is granted at once; a late holder is kept out by fences */
  DIBS_STRICTNESS_STRICT = 1, /* after a move nothing is granted until nobody can hold any more */
  DIBS_STRICTNESS_LEAST = 2   /* fenced; and when every tier is down each process goes on alone, by its own memory */
} dibs_strictness;

/* What is counted of tiers, in this order; more may be added behind. */
enum {
  DIBS_TIERS_ACQUIRED,     /* leases granted */
  DIBS_TIERS_BUSY,         /* asked for while somebody else had it */
  DIBS_TIERS_LOST,         /* refused to be renewed or released */
  DIBS_TIERS_FALLBACK,     /* granted by another tier than the first */
  DIBS_TIERS_FAILED,       /* operations that a tier did not answer */
  DIBS_TIERS_STALE,        /* writes that a newer fence refused */
  DIBS_TIERS_MOVES,        /* buckets moved to another tier */
  DIBS_TIERS_EPOCHS,       /* epochs made because a tier lost its memory or used one up */
  DIBS_TIERS_TURNS,        /* times that a breaker opened */
  DIBS_TIERS_LEAST_STRICT, /* granted by the memory of a process alone */
  DIBS_TIERS_COUNTED,      /* how many there are in this version */
  DIBS_TIERS_COUNTS = 16
};

/* How the whole stands. */
typedef struct dibs_tiers_info {
  size_t size;
  uint32_t tiers;
  uint32_t clients;      /* that have reported in the last 10 s; this one is one of them */
  int32_t pinned;        /* the tier that all were moved to by hand; -1: none */
  uint32_t on_their_own; /* 1: every tier is down, and this process goes on by its own memory */
  dibs_strictness strictness;
  uint32_t reserved;
  int64_t confirmed_ms;             /* since the anchor last confirmed what is told here; -1: never */
  uint64_t here[DIBS_TIERS_COUNTS]; /* DIBS_TIERS_ACQUIRED ...: counted by this handle, */
  uint64_t all[DIBS_TIERS_COUNTS];  /* and by those clients together, since each began */
} dibs_tiers_info;

/* How one tier stands.  Strings are valid during the call that gives it. */
typedef struct dibs_tier_info {
  size_t size;
  const char *name;    /* as in flags: "redis" */
  const char *uri;     /* without password */
  const char *trouble; /* of this process's latest call that was not well; "" */
  uint32_t tier;       /* its place, from 0 */
  uint32_t percent;    /* of buckets that it is rolled out to */
  uint32_t buckets;    /* that it serves */
  uint32_t wanted;     /* that it should serve */
  dibs_hand hand;
  dibs_breaker breaker;                         /* of this process */
  uint32_t down;                                /* 1: voted down */
  uint32_t reached;                             /* 1: this process's latest call reached it */
  int64_t turned_ms;                            /* how long it has been down, or up again; -1: it never was down */
  int64_t dwell_ms;                             /* how long it stays down at least */
  uint32_t active, clients_down, clients_well;  /* clients that use it; of them, that it fails; that can reach it */
  uint32_t calls, failed_percent, slow_percent; /* of this process, in its breaker's window */
  uint64_t operations, failures;                /* of this process */
  uint64_t p50_ns, p99_ns, max_ns;              /* how long its calls took */
} dibs_tier_info;

/* What one client last said of itself. */
typedef struct dibs_tier_client {
  size_t size;
  const char *owner; /* "user@host:pid" */
  uint32_t us;       /* 1: it is this handle */
  uint32_t tiers;
  int64_t age_ms;
  uint32_t active[DIBS_TIERS_MAX], down[DIBS_TIERS_MAX], well[DIBS_TIERS_MAX]; /* 1: yes */
  dibs_breaker breaker[DIBS_TIERS_MAX];
  uint64_t counts[DIBS_TIERS_COUNTS];
} dibs_tier_client;

/* Return 0 to go on, anything else to stop. */
typedef int (*dibs_tier_fn)(const dibs_tier_info *tier, void *user);
typedef int (*dibs_tier_client_fn)(const dibs_tier_client *client, void *user);

/* Looks at all of it once, and tells: the whole in *info (set its size first; NULL: not wanted), each tier by `tier`,
 * each client by `client`; either may be NULL.  When the anchor can't be reached, what was known last: see
 * confirmed_ms. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tiers(dibs_store *store, dibs_tiers_info *info, dibs_tier_fn tier,
                                                 dibs_tier_client_fn client, void *user, dibs_error *error);

/* Moves everything to one tier, whatever flags and votes say, and keeps it there; NULL: where these say, again. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_move(dibs_store *store, const char *tier, dibs_error *error);

/* Opens or closes a tier's breaker by hand for all clients; AUTO takes the hand off. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_switch(dibs_store *store, const char *tier, dibs_hand hand,
                                                       dibs_error *error);

/* Makes later fences of every name larger than `above`, a fence that was seen somewhere (0: than those up to now).  For
 * an anchor that was restored from an old backup. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_bump(dibs_store *store, uint64_t above, dibs_error *error);

/* Makes each member a store of its own again, and forgets how they stood; also of one that was a tier and is opened by
 * itself.  Only when nobody uses them as tiers any more.  UNSUPPORTED if the store never is a tier. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_alone(dibs_store *store, dibs_error *error);

DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_strictness_get(dibs_store *store, dibs_strictness *strictness,
                                                          dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_strictness_set(dibs_store *store, dibs_strictness strictness,
                                                          dibs_error *error);

/* Flags are percents, 0 off and 100 on: "redis.enabled" (which part of the names may be there: always the same),
 * "circuit-breaker.enabled", "mysql-fallback.enabled" (or "fallback.enabled"), "least-strict.enabled".  An unknown one
 * is INVALID, and the text names those that there are. */
typedef int (*dibs_flag_fn)(const char *name, uint32_t percent, void *user);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_flags(dibs_store *store, dibs_flag_fn fn, void *user, dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_flag_get(dibs_store *store, const char *name, uint32_t *percent,
                                                    dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_flag_set(dibs_store *store, const char *name, uint32_t percent,
                                                    dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif
