/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HARNESS_H
#define DIBS_TEST_CONTRACT_HARNESS_H
/*
 * Helpers of the contract's tests: parties (a party is one open handle of the store), one-line operations, and time.
 *
 * A case has names, ids and, where the engine makes that cheap, a store of its own.  A party repeats an operation after
 * UNAVAILABLE and UNKNOWN, as every caller does (a shim may inject failures). After UNKNOWN the last answer may be that
 * of a repetition, see in_doubt().
 */
#include "base/port.h"
#include "store/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct party;

/* What a test can do to a store of this kind and a caller cannot.  NULL: not possible. */
struct contract_target {
  const char *scheme; /* of the innermost driver */
  bool local;         /* the URI has no host */
  bool is_file;
  bool own_clocks;  /* skew moves the clock of one party only, so the harness moves all */
  bool no_tier;     /* the store cannot be a tier */
  int64_t slack_ms; /* a lease may last this much longer than `until` */
  uint32_t ttl_ms;  /* of a test's leases, where the clock cannot be moved; 0: a second */
  int64_t told_ms;  /* two clients may receive one instant with this difference */
  bool by_revision; /* fences and versions follow a revision that other writes raise, too; an offer has none */
  int64_t late_ms;  /* a lease that nobody renews ends up to so much later */
  int64_t offer_ms; /* 0: DIBS__OFFER_MS */
  int most_waiters; /* of one name; 0: ten thousand */
  bool strides;     /* the next epoch may be more than one above the last */
  bool clocked;     /* its own buckets draw fences by a wall clock: they never run out */
  bool no_lanes;    /* CLAIM of tasks with lanes is UNSUPPORTED */
  bool apart;       /* all cases share one server, where a prefix for each case costs nothing */
  bool one_session; /* all clients share one session of the store behind */
  bool lazy_close;  /* a closed session's waiters and offers disappear only when an operation meets them */
  /* Moves its clock forward.  Without it the test waits, with short ttls. */
  void (*skew)(struct dibs__dstore *store, int64_t ms);
  /* Ends its session as kill -9 does.  Without it the test kills a process. */
  void (*kill)(struct dibs__dstore *store);
  /* Waits until the server has noticed that the process of the waiter with this id was killed. */
  void (*bury)(struct dibs__dstore *store, dibs__id id);
  /* A restart that loses leases, waiters and breaks; epochs and records stay. */
  void (*forget)(struct dibs__dstore *store);
  /* The store finds the memory of another store: a new incarnation, which may remember leases or not. */
  void (*reborn)(struct party *p, uint16_t bucket);
  /* Its tables are as the previous version left them; only `p` has it open. */
  void (*aged)(struct party *p);
  /* Remembers the bucket's row, or restores it: a restored backup that nothing else reveals. */
  void (*restore)(struct party *p, uint16_t bucket, bool back);
  /* Leaves so many fences in the bucket's epoch; on a clocked store only in a tier's bucket. */
  void (*use_up)(struct party *p, uint16_t bucket, uint32_t left);
};
const struct contract_target *contract_target_of(const char *scheme);

/* ---- The case ---- */

/* `uri` is that of the command line; sqlite: and memory: get a path of their own for each case. */
void contract_begin(const char *uri);
void contract_end(void);
int case_begin(void **state);
int case_end(void **state);
int case_end_alone(void **state); /* also makes the store leave its tiers, because the next case uses the same server */
const struct contract_target *target(void);
bool has_cap(uint32_t cap);
/* Skips the test if the driver does not promise this capability. */
void needs(uint32_t cap);
/* Skips the test if its store does not serve this family. */
void needs_family(struct party *p, enum dibs__family family);
/* Skips the test if leases belong to a connection: another one cannot find, adopt or undo them. */
void needs_rows(void);
/* The party that can break a lease of `holder`: if leases belong to a connection, only the holder's own store can. */
struct party *breaking_party(struct party *holder, struct party *other);
/* The URI that the parties of this case open. */
const char *case_store_uri(void);

/* ---- Parties ---- */

struct party {
  struct dibs__chain chain;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;          /* of the last run */
  dibs__mandate mandates[DIBS__BUCKETS]; /* those that were needed so far */
  bool gone;
};
/* With DIBS_TEST_AS_TIER the tests open stores as tiers and serve their buckets under mandates (R35). */
bool open_as_tier(void);
/* One more handle of the case's store. */
struct party *party(void);
struct party *party_at(const char *uri);        /* of another store */
struct party *tier(void);                       /* as a tier of it (R35) */
struct party *anchor_of_tiers(void);            /* as the last of several (R45) */
void close_party(struct party *p);              /* an orderly close; the end of the case closes the other
                                                 * parties */
struct dibs__dstore *store_of(struct party *p); /* the driver that the core calls */
struct dibs__dstore *innermost(struct party *p);

/* ---- Names, ids, time ---- */

dibs__str name_of(const char *text);  /* of this case; good until its end */
uint16_t bucket_of(const char *text); /* of name_of(text) */
dibs__id id_of(int n);                /* of this case */
/* A ttl that is long compared with a test, and short enough to wait for if the clock cannot be moved. */
uint32_t ttl(void);
/* Lets time pass at the store: moves its clock, or waits. */
void advance_time(struct party *p, int64_t ms);
int64_t time_advanced(void); /* how far this case has moved the clock */
/* Is it from 2020 to 2099, counted in ms since 1970?  The clock of a server under test may be years wrong. */
static inline bool is_instant(int64_t ms) {
  return ms > INT64_C(1577836800000) && ms < INT64_C(4102444800000);
}
/* Past a ttl; past the time of an offer. */
void advance_past_ttl(struct party *p);
void advance_past(struct party *p, int64_t ttl_ms); /* of a lease with this ttl */
void advance_past_offer(struct party *p);
int64_t offer_ms(void);
/* The store's clock. */
int64_t store_now(struct party *p);

/* ---- Operations ---- */

struct how {
  uint32_t mode, slots, ttl, block;
  uint64_t ticket;
  bool try_only; /* not `queue` */
  bool now;      /* BREAK */
  const char *owner;
};
struct dibs__lease_op acquire_as(struct party *p, const char *name, int id, struct how how);
#define acquire(p, name, id, ...) acquire_as(p, name, id, (struct how){.now = false, ##__VA_ARGS__})
struct dibs__lease_op renew_as(struct party *p, const char *name, int id, dibs__fence fence, struct how how);
#define renew(p, name, id, fence, ...) renew_as(p, name, id, fence, (struct how){.now = false, ##__VA_ARGS__})
struct dibs__lease_op release(struct party *p, const char *name, int id, dibs__fence fence);
struct dibs__lease_op cancel(struct party *p, const char *name, int id);
struct dibs__lease_op break_it(struct party *p, const char *name, bool now);
struct dibs__anchor_op anchor_read(struct party *p, uint16_t bucket);
struct dibs__anchor_op anchor_next(struct party *p, uint16_t bucket, dibs__mandate from);
struct dibs__anchor_op anchor_install(struct party *p, uint16_t bucket, dibs__mandate what);
struct dibs__anchor_op anchor_alone(struct party *p, uint16_t bucket);
struct dibs__anchor_op anchor_run(struct party *p, enum dibs__anchor_verb verb, uint16_t bucket, dibs__mandate about);
/* The bucket's epoch, or the epoch of the last fence that it drew by its clock, if that is higher. */
dibs__mandate anchor_has(struct party *p, uint16_t bucket);
/* The end of the case frees `got`. */
struct dibs__record_op load(struct party *p, const char *key);
struct dibs__record_op seal(struct party *p, const char *key, int id, dibs__fence fence);
/* A put that the fence alone guards. */
struct dibs__record_op save_op(const char *key, int id, dibs__fence fence, const char *data);
struct dibs__record_op save(struct party *p, const char *key, int id, dibs__fence fence, const char *data);

/* As the party knows it; the party reads it if it knows none. */
dibs__mandate mandate_for(struct party *p, uint16_t bucket);
/* The same operation, not yet run, under the current mandate; for batches. */
struct dibs__lease_op lease_op(struct party *p, enum dibs__lease_verb verb, const char *name, int id, struct how how);
struct dibs__record_op record_op(enum dibs__record_verb verb, const char *key, int id, dibs__fence fence,
                                 const char *data);
/* A client with a session of its own acquires or queues, then disappears as after kill -9. */
struct dibs__lease_op ghost_as(const char *name, int id, struct how how);
#define ghost(name, id, ...) ghost_as(name, id, (struct how){.now = false, ##__VA_ARGS__})
/* The main function of a ghost that needs a process: argv after --ghost. */
int ghost_main(int argc, char *argv[]);
/* Runs a batch, and repeats it while it answers UNAVAILABLE or UNKNOWN.  Fails the test after too many attempts. */
/* By how much the answers of this case to two clients may differ: 0 unless a client converts the store's clock, and can
 * be wrong by as long as its request took. */
int64_t told_ms(void);
void run_batch(struct party *p, struct dibs__op *const ops[], size_t count);
/* Frees this memory (an answer of a record) at the end of the case. */
void free_at_end(char *got);

/* ---- Expectations ---- */

/* For an operation in doubt, also accepts the answer of a repetition: LOST for a release, NOT_FOUND for cancel and
 * break. */
#define expect(answer, want) expect_at(__FILE__, __LINE__, (answer).op, want)
void expect_at(const char *file, int line, struct dibs__op got, dibs__status want);
/* The answer follows an UNKNOWN: an earlier attempt may have done the operation. */
bool in_doubt(const struct dibs__op *op);
/* The last run granted or renewed the lease for this ttl. */
void expect_until(const struct party *p, const struct dibs__lease_op *op, int64_t ttl_ms);
/* CANCEL answered OK and removed this. */
void expect_was(struct dibs__lease_op got, uint32_t was);
const char *status_name(dibs__status status);

/* Repeats the request of a waiter that may be next; returns its grant. */
struct dibs__lease_op granted_after_wait(struct party *p, const char *name, int id, struct how how);

/* The rows of a listing. */
struct seen {
  size_t count;
  struct seen_row {
    char name[256], owner[128], from[128]; /* from: of a break */
    struct dibs__lease_row row;
  } * rows;
};
struct seen list_how(struct party *p, struct dibs__list how); /* uses the name or prefix unchanged */
struct seen list_name(struct party *p, const char *name);
struct seen list_prefix(struct party *p, const char *prefix); /* of name_of(prefix) */
const struct seen_row *find_row(const struct seen *seen, uint32_t state, const char *owner);

/* ---- The tests ---- */

struct contract_tests {
  const struct CMUnitTest *tests;
  size_t count;
};
#define CASE(f)                                                                                                        \
  { #f, f, case_begin, case_end, NULL }
/* A case that installs a mandate. */
#define SERVED(f)                                                                                                      \
  { #f, f, case_begin, case_end_alone, NULL }
#define CONTRACT_TESTS(name)                                                                                           \
  const struct contract_tests name = {name##_cases, sizeof name##_cases / sizeof name##_cases[0]}
extern const struct contract_tests contract_batches, contract_grants, contract_fences, contract_queue, contract_ends,
    contract_records, contract_events, contract_lists, contract_refusals, contract_many_waiters, contract_offers,
    contract_races, contract_once, contract_stock, contract_texts, contract_tiers, contract_clock, contract_reports,
    contract_runs, contract_tasks, contract_tasks_order, contract_tasks_ends, contract_tasks_lists,
    contract_tasks_races, contract_counters, contract_shared, contract_transactors, contract_tasks_lanes,
    contract_tasks_lanes_ends, contract_tasks_lanes_races;

#endif
