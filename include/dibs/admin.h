/* SPDX-License-Identifier: MIT */
#ifndef DIBS_ADMIN_H
#define DIBS_ADMIN_H
/*
 * For operators and their tools: listing and breaking leases, metrics, tiers and flags.  The rules of dibs.h also apply
 * here: INVALID of every call, and "a failure of the store".
 */
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Listing, and breaking ---------------------------------------------------------------------------------- */

enum { DIBS_HOLDS = 0, DIBS_WAITS = 1, DIBS_OFFERED = 2, DIBS_BREAKING = 3, DIBS_BROKEN = 4 /* a recorded break */ };

/* One holder, waiter or recorded break.  Strings are valid during the call of the function that gets it. */
typedef struct dibs_lease_info {
  size_t size;
  const char *name;
  const char *owner; /* of a break: of the client that broke the lease */
  uint32_t state;    /* DIBS_HOLDS ... */
  dibs_mode mode;
  uint32_t slots;
  uint32_t slot;
  uint32_t ahead;   /* waiters: how many are before it in the queue */
  uint32_t pid;     /* of the holder's or waiter's process if the store knows it and the process lives, else 0 */
  dibs_fence fence; /* of a holder: the first of the latest block that its process drew; may be above its own */
  int64_t ttl_ms;   /* 0: not known */
  int64_t left_ms;  /* until it ends by itself; 0 for waiters without an offer */
  int64_t age_ms;   /* since it was granted, requested or broken; -1: not known, of a waiter far behind in the line of
                       another process */
  const char *from; /* of a break: the owner of the holder that lost the name; "" if the store does not know it */
  const char
      *tier; /* that keeps it, for people: its URI without a password; "": the store has no tiers, or is http:// */
} dibs_lease_info;

/* Return 0 to continue, anything else to stop. */
typedef int (*dibs_list_fn)(const dibs_lease_info *info, void *user);

/* dibs_list lists holders and waiters of the names that begin with `prefix` (NULL: all), by name and then in the order
 * of the queue.  dibs_show lists those of one name, and its recorded breaks.
 *
 * An exclusive waiter behind another one of its own dibs_open is not in the store's queue, but in a line in memory.
 * It is listed after the store's waiters of the name: at once by its own dibs_open; by others as of the latest second,
 * if its line is older than a second.  The processes exchange this through the store: redlock:// and lock= cannot, and
 * tiers use their anchor.  While that does not answer, the lines of other processes are missing from the list.
 *
 * With lock= the server keeps no names: dibs_list shows the leases of this dibs_open only, and dibs_show all of its
 * name. redlock:// knows no waiters.  Of several tiers, a handle lists what is in the tiers that it knows to be in
 * use: right after dibs_open of a fleet that began in this second, that may be none.
 *
 * Blocks for I/O, for some seconds at most.
 * OK, also if `fn` stopped it; NOT_FOUND (dibs_show: no holder, no waiter, no recorded break); INVALID; or a failure
 * of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_list(dibs_store *store, const char *prefix, dibs_list_fn fn, void *user,
                                                dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_show(dibs_store *store, const char *name, dibs_list_fn fn, void *user,
                                                dibs_error *error);

/* The end of a call that completes later.  `error` has the text for people, as the blocking call gives it; it is never
 * NULL, and valid during the call. */
typedef void (*dibs_done_fn)(dibs_status status, const dibs_error *error, void *user);

/* Begins dibs_show and returns at once.  Later `fn` is called for each entry, and then `done` exactly once, with the
 * status that dibs_show would have answered, or with CANCELLED (dibs_close).  Both are called where the callbacks of
 * leases are: by a thread of the library, or by dibs_dispatch.  One thread of the library carries out all calls of this
 * store that begin so, one after the other; while the store does not answer, they wait for each other.
 * OK; INVALID and NO_MEMORY at once, and then neither function is called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_show_start(dibs_store *store, const char *name, dibs_list_fn fn,
                                                      dibs_done_fn done, void *user, dibs_error *error);

enum { DIBS_BREAK_NOW = 1 };

typedef struct dibs_break_options {
  size_t size;
  uint32_t flags;    /* DIBS_BREAK_NOW: do not wait for the holder; two may hold until it notices, up to ttl/3 */
  uint32_t reserved; /* zero */
  int64_t wait_ms;   /* without NOW: how long to wait until the holder releases or expires; 0: do not wait;
                        DIBS_FOREVER */
  const char *who;   /* the author of the break, which is recorded; NULL: the store's owner */
} dibs_break_options;
#define DIBS_BREAK_OPTIONS_INIT DIBS__INIT(dibs_break_options)

/* Takes the name from its holder: the store refuses the holder's next renewal and notifies it, and the name passes on
 * when the holder releases or when its ttl ends.  The store records the break and its author.  Blocks for I/O and for
 * wait_ms.
 * OK; NOT_FOUND (no client holds it); TIMEOUT (the holder was notified, and still held it when wait_ms ended);
 * CANCELLED (dibs_close during the wait: it is broken); INVALID; or a failure of the store: UNSUPPORTED (also: a
 * session lock that the user of the connection may not end), UNKNOWN (it may be broken). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_break(dibs_store *store, const char *name, const dibs_break_options *options,
                                                 dibs_error *error);

/* Begins dibs_break and returns at once.  `done` is called exactly once, later, with the status that dibs_break would
 * have answered, or with CANCELLED (dibs_close: it may be broken), where the callbacks of leases are called.  A break
 * that waits needs no thread of its own.
 * OK; INVALID and NO_MEMORY at once, and then `done` is never called. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_break_start(dibs_store *store, const char *name,
                                                       const dibs_break_options *options, dibs_done_fn done, void *user,
                                                       dibs_error *error);

/* ---- Metrics --------------------------------------------------------------------------------------------------- */

enum {
  DIBS_COUNTER = 0,
  DIBS_GAUGE = 1,
  DIBS_LATENCY = 2,
  DIBS_SIZES = 3,
  DIBS_LATENCY_STEPS = 25,
  DIBS_SIZES_STEPS = 12
};

/* Durations in ns.  steps[i] is how many were less than 2^(10+i): about 1 us, 2 us, ... 17 s. */
typedef struct dibs_latency {
  uint64_t count, sum, max;
  uint64_t p50, p90, p99, p999;
  uint64_t steps[DIBS_LATENCY_STEPS];
} dibs_latency;

/* How many there were together in something.  steps[i] is how often it was at most 2^i: 1, 2, 4, ... 2048. */
typedef struct dibs_sizes {
  uint64_t count, sum, max;
  uint64_t steps[DIBS_SIZES_STEPS];
} dibs_sizes;

typedef struct dibs_metric {
  size_t size;
  const char *name;            /* "acquired", "tier_failures": lower case, stable */
  const char *help;            /* a line for people */
  const char *tier;            /* the tier: "redis"; NULL: the whole store */
  uint32_t kind;               /* DIBS_COUNTER, DIBS_GAUGE, DIBS_LATENCY, DIBS_SIZES */
  uint64_t value;              /* of a counter or a gauge */
  const dibs_latency *latency; /* of a latency; else NULL */
  const char *strategy;        /* of "granted_by": what granted the lease, "redis", "mysql-named"; else NULL */
  const dibs_sizes *sizes;     /* of sizes; else NULL */
} dibs_metric;

/* Return 0 to continue, anything else to stop.  The metric and its strings are valid during the call. */
typedef int (*dibs_metric_fn)(const dibs_metric *metric, void *user);

/* Calls `fn` for each metric of this handle since it was opened: of every store "acquired", "held", "waiting", "lost"
 * and others, and the durations of acquiring and releasing; of a store of several tiers also those of each tier.
 * "granted_by" has a part of "acquired" for each tier and strategy; the tier of a single store has the name of its
 * scheme.  With tiers it reads the state from the anchor, for two seconds at most; otherwise it does not block. OK,
 * also if `fn` stopped it; INVALID; NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_metrics(dibs_store *store, dibs_metric_fn fn, void *user, dibs_error *error);

/* ---- What ran ------------------------------------------------------------------------------------------------------
 */

/* `dibs run`, `once`, `cron` and `worker` leave a row for each run in the store: in SQLite, PostgreSQL, MariaDB, MySQL
 * and MongoDB, and of several tiers at the anchor.  Redis alone keeps none.  A row is written after the run, and no
 * lease or claim depends on it: if the store does not answer then, the row is lost. */

typedef enum dibs_run_end {
  DIBS_RUN_DONE = 0,     /* exit status 0, or another that a worker takes for no failure: `code` */
  DIBS_RUN_FAILED = 1,   /* another exit status: `code` */
  DIBS_RUN_LOST = 2,     /* the lease or the claim was lost */
  DIBS_RUN_OVERTIME = 3, /* it was ended because it took longer than it may */
  DIBS_RUN_KILLED = 4,   /* by the signal `code` */
  DIBS_RUN_NOT_RUN = 5   /* the command could not be started */
} dibs_run_end;

/* Instants are in ms since 1970: by the store's clock in a listing, by this machine's clock in dibs_runs_add. */
typedef struct dibs_run_info {
  size_t size;
  const char *name;    /* of the lease, key or job; the kind of a task */
  const char *kind;    /* "run", "once", "cron", "worker", or a word of yours */
  const char *host;    /* where it ran: "user@host:pid" */
  const char *command; /* up to 512 bytes; a longer one is cut at its end.  NULL: none */
  const char *output;  /* the last bytes, 4096 at most, any bytes; in a listing with a NUL after them.  NULL: none */
  size_t output_length;
  dibs_fence fence; /* 0: none */
  uint64_t task;    /* 0: none */
  dibs_run_end how;
  int32_t code;     /* the exit status or the signal */
  int64_t began_ms; /* dibs_runs_add: 0: as ended_ms */
  int64_t ended_ms; /* dibs_runs_add: 0: now */
} dibs_run_info;
#define DIBS_RUN_INFO_INIT DIBS__INIT(dibs_run_info)

enum { DIBS_RUNS_FAILED = 1 };
#define DIBS_RUNS_KEEP_DEFAULT INT64_C(-1) /* 30 days */
#define DIBS_RUNS_KEEP_MAX_MS INT64_C(315619200000)

/* A member that is 0 or NULL does not limit the listing. */
typedef struct dibs_runs_options {
  size_t size;
  const char *name;           /* runs of this name */
  const char *prefix;         /* of names that begin so */
  const char *kind;           /* of this kind */
  uint32_t flags;             /* DIBS_RUNS_FAILED: only those that did not end DONE */
  uint32_t most;              /* so many */
  int64_t since_ms, until_ms; /* that ended at or after since_ms, and before until_ms: ms since 1970, store's clock */
  uint64_t task;              /* of the task with this number */
} dibs_runs_options;
#define DIBS_RUNS_OPTIONS_INIT DIBS__INIT(dibs_runs_options)

/* Return 0 to continue, anything else to stop.  The run and its strings are valid during the call. */
typedef int (*dibs_run_fn)(const dibs_run_info *run, void *user);

/* Calls `fn` for each kept run that `options` (NULL: all) choose, the latest end first.  Blocks for I/O.
 * OK, also if `fn` stopped it or there are none; INVALID; or a failure of the store: UNSUPPORTED (it keeps no
 * history). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_runs(dibs_store *store, const dibs_runs_options *options, dibs_run_fn fn,
                                                void *user, dibs_error *error);

/* Keeps a run of your own; all that it points to is copied.  host NULL: the owner of the store.  Blocks for I/O.
 * OK, also if the store is set to keep none; INVALID; or a failure of the store: UNSUPPORTED, UNKNOWN (it may be
 * kept). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_runs_add(dibs_store *store, const dibs_run_info *run, dibs_error *error);

/* Sets for how long the store keeps each run that ends from now on: 0 keeps none, DIBS_RUNS_KEEP_DEFAULT 30 days.  The
 * setting is the store's, for all clients.  Blocks for I/O.
 * OK; INVALID; or a failure of the store: UNSUPPORTED. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_runs_keep(dibs_store *store, int64_t keep_ms, dibs_error *error);

/* ---- Several tiers ---------------------------------------------------------------------------------------------- */

/* A store may consist of several tiers: "redis://cache,mysql://db/app".  The first is the preferred one.  The last is
 * the anchor: it remembers which tier serves which names, a hundredth of the names (a bucket) at a time, and serves the
 * names that no other tier serves.  Each bucket has an epoch, the upper part of its fences, which grows when the bucket
 * moves and when its tier loses its memory: so fences stay in order.  The settings below are kept at the anchor, and
 * every client follows them within a second.
 *
 * A tier has the name of its scheme: "redis" (also for rediss), "mysql" (also for mariadb), "postgres"; the second tier
 * of a scheme is "redis-2".  Its number, from "0", is accepted, too.
 *
 * Unless their comment says otherwise, all of these calls block for I/O, some seconds at most, and answer OK; INVALID;
 * UNSUPPORTED when the store does not have several tiers; or another failure of the store: UNAVAILABLE (the anchor or
 * the tier can't be reached). */

enum { DIBS_BUCKETS = 100, DIBS_TIERS_MAX = 4 };

/* Does a client use the tier?  Each client decides by its own calls, unless it is set by hand for all of them. */
typedef enum dibs_breaker {
  DIBS_BREAKER_CLOSED = 0,   /* yes */
  DIBS_BREAKER_OPEN = 1,     /* no: too many calls failed or were slow */
  DIBS_BREAKER_HALF_OPEN = 2 /* for some calls, to try it */
} dibs_breaker;

typedef enum dibs_hand {
  DIBS_HAND_AUTO = 0,  /* the votes of the clients decide */
  DIBS_HAND_OPEN = 1,  /* treated as down */
  DIBS_HAND_CLOSED = 2 /* never treated as down */
} dibs_hand;

typedef enum dibs_strictness {
  DIBS_STRICTNESS_FENCED = 0, /* after a move, names are granted at once; fences refuse the writes of late holders */
  DIBS_STRICTNESS_STRICT = 1, /* after a move, nothing is granted until every earlier lease has ended */
  DIBS_STRICTNESS_LEAST = 2   /* fenced; and when every tier is down, each process grants from its own memory */
} dibs_strictness;

/* The counters of tiers, in this order; more may be appended. */
enum {
  DIBS_TIERS_ACQUIRED,     /* leases granted */
  DIBS_TIERS_BUSY,         /* requests while another client held the name */
  DIBS_TIERS_LOST,         /* renewals and releases that were refused */
  DIBS_TIERS_FALLBACK,     /* leases that another tier than the first granted */
  DIBS_TIERS_FAILED,       /* operations that a tier did not answer */
  DIBS_TIERS_STALE,        /* writes that a newer fence refused */
  DIBS_TIERS_MOVES,        /* buckets moved to another tier */
  DIBS_TIERS_EPOCHS,       /* epochs made because a tier lost its memory or used one up */
  DIBS_TIERS_TURNS,        /* times that a breaker opened */
  DIBS_TIERS_LEAST_STRICT, /* leases that a process granted from its own memory alone */
  DIBS_TIERS_WENT_BACK,    /* times that the anchor's record was older than before, as after the restore of a backup or
                              the failover to a replica that lagged, and was repaired */
  DIBS_TIERS_COUNTED,      /* how many there are in this version */
  DIBS_TIERS_COUNTS = 16
};

/* The state of all tiers together. */
typedef struct dibs_tiers_info {
  size_t size;
  uint32_t tiers;
  uint32_t clients;      /* that have reported in the last 10 s, with this one */
  int32_t pinned;        /* the tier to which all names were moved by hand; -1: none */
  uint32_t on_their_own; /* 1: every tier is down, and this process grants from its own memory */
  dibs_strictness strictness;
  uint32_t reserved;
  int64_t confirmed_ms;             /* since the anchor last confirmed this information; -1: never */
  uint64_t here[DIBS_TIERS_COUNTS]; /* DIBS_TIERS_ACQUIRED ...: counted by this handle, */
  uint64_t all[DIBS_TIERS_COUNTS];  /* and by all of those clients together, since each was opened */
  int64_t restored_ms; /* since clients found that the anchor's record went back, as after the restore of a backup, and
                        * raised all epochs; -1: never, or dibs_tier_bump confirmed it since */
  uint32_t epochs_left_percent; /* of the 2,097,151 epochs that a name can have: of the name with the fewest left */
} dibs_tiers_info;
#define DIBS_TIERS_INFO_INIT DIBS__INIT(dibs_tiers_info)

/* The state of one tier.  Strings are valid during the call of `tier`. */
typedef struct dibs_tier_info {
  size_t size;
  const char *name;    /* as in flags: "redis" */
  const char *uri;     /* without password */
  const char *trouble; /* the message of this process's latest call that failed; "": none did */
  uint32_t tier;       /* its position, from 0 */
  uint32_t percent;    /* of the buckets that it should serve by its flag */
  uint32_t buckets;    /* that it serves */
  uint32_t wanted;     /* that it should serve, by flags, votes and pins */
  dibs_hand hand;
  dibs_breaker breaker;                         /* of this process */
  uint32_t down;                                /* 1: voted down */
  uint32_t reached;                             /* 1: this process's latest call reached it */
  int64_t turned_ms;                            /* how long it has been down, or up again; -1: it never was down */
  int64_t dwell_ms;                             /* how long it stays down at least */
  uint32_t active, clients_down, clients_well;  /* clients that use it; those for which it fails; those that reach it */
  uint32_t calls, failed_percent, slow_percent; /* of this process, in its breaker's window */
  uint64_t operations, failures;                /* of this process */
  uint64_t p50_ns, p99_ns, max_ns;              /* the durations of its calls */
  uint32_t leaving; /* buckets that moved to another tier, while some of their leases are still held here */
} dibs_tier_info;

/* The latest report of one client. */
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

/* Return 0 to continue, anything else to stop. */
typedef int (*dibs_tier_fn)(const dibs_tier_info *tier, void *user);
typedef int (*dibs_tier_client_fn)(const dibs_tier_client *client, void *user);

/* Reads the state once: of all tiers together into *info (set its size first; may be NULL), then calls `tier` for each
 * tier and `client` for each client (both may be NULL).  When the anchor can't be reached, it answers OK with the state
 * that was known last: see confirmed_ms. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tiers(dibs_store *store, dibs_tiers_info *info, dibs_tier_fn tier,
                                                 dibs_tier_client_fn client, void *user, dibs_error *error);

/* Moves all names to one tier and keeps them there, against flags and votes.  NULL: flags and votes decide again. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_move(dibs_store *store, const char *tier, dibs_error *error);

/* Opens or closes a tier's breaker by hand, for all clients; with AUTO the votes decide again. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_switch(dibs_store *store, const char *tier, dibs_hand hand,
                                                       dibs_error *error);

/* Makes the later fences of every name larger than `above`, a fence that you have seen (0: larger than all up to now,
 * and than those that a restored store may have forgotten).  Call it after you have restored an anchor, or a store that
 * is used alone, from a backup.  Leases that are held are lost at their next renewal.  INVALID also if no fence can be
 * larger than `above`; UNSUPPORTED only if the store has no epochs; DENIED if an anchor elsewhere makes its epochs. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_bump(dibs_store *store, dibs_fence above, dibs_error *error);

/* Makes each tier a store of its own again, and deletes their common state; also for a former tier that you open alone.
 * Call it only when no client uses them as tiers any more.  UNSUPPORTED only if the store can't be a tier. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_tier_dissolve(dibs_store *store, dibs_error *error);

/* Reads and sets how strict a move is. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_strictness_get(dibs_store *store, dibs_strictness *strictness,
                                                          dibs_error *error);
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_strictness_set(dibs_store *store, dibs_strictness strictness,
                                                          dibs_error *error);

/* A flag is a percentage, 0 for off and 100 for on: "redis.enabled", of each tier but the anchor (for that part of the
 * names, always the same ones), "circuit-breaker.enabled", "mysql-fallback.enabled", of the anchor (or
 * "fallback.enabled"), "least-strict.enabled".  An unknown flag is INVALID, and the text lists the flags.  dibs_flag_fn
 * returns 0 to continue, anything else to stop. */
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
