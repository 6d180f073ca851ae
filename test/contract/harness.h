/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HARNESS_H
#define DIBS_TEST_CONTRACT_HARNESS_H
/*
 * What the contract's tests stand on: parties (opens of one store), one-line operations, and time.
 *
 * A case has names, ids and, where the engine makes that cheap, a store of its own.  A party asks again after
 * UNAVAILABLE and UNKNOWN as any caller would (a shim may make trouble).  After UNKNOWN the last answer may be that of
 * a second time, see in_doubt().
 */
#include "base/port.h"
#include "store/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct party;

/* What a test may do to a store of a target that no caller can.  NULL: can't. */
struct contract_target {
  const char *scheme; /* the innermost */
  bool local;         /* no host */
  bool is_file;
  bool own_clocks;  /* skew moves the clock of one open only: all are moved */
  bool no_tier;     /* refuses to be one */
  int64_t slack_ms; /* by so much at most a lease outlasts its `until` there */
  int64_t told_ms;  /* by so much at most two clients may be told one instant earlier or later */
  bool strides;     /* the next epoch is above the last one, by how much is its own business */
  bool apart;       /* on one server, a prefix of its own for each case costs nothing */
  bool lazy_close;  /* what waits or is offered something goes with its session only when somebody meets it */
  /* Moves its clock forward.  Without it time is waited for, with short ttls. */
  void (*skew)(struct dibs__dstore *store, int64_t ms);
  /* Its session is gone as after kill -9.  Without it a process is killed. */
  void (*kill)(struct dibs__dstore *store);
  /* Waits until a server has noticed that the process whose waiter has this id was killed. */
  void (*bury)(struct dibs__dstore *store, dibs__id id);
  /* A restart that lost leases, waiters and breaks; epochs and records stay. */
  void (*forget)(struct dibs__dstore *store);
  /* Its memory is another's, as far as it can tell: a new life, in which leases may be remembered or not. */
  void (*reborn)(struct party *p, uint16_t bucket);
  /* Its tables are as the version before left them; nobody has it open but `p`. */
  void (*aged)(struct party *p);
  /* Leaves so many fences in the bucket's epoch. */
  void (*use_up)(struct party *p, uint16_t bucket, uint32_t left);
};
const struct contract_target *contract_target_of(const char *scheme);

/* ---- The case ---- */

/* `uri` as given on the command line; sqlite: and memory: get a path of their own for each case. */
void contract_begin(const char *uri);
void contract_end(void);
int case_begin(void **state);
int case_end(void **state);
const struct contract_target *target(void);
bool has_cap(uint32_t cap);
/* Skips the test when the driver does not promise this. */
void needs(uint32_t cap);
/* Skips it when its store serves no such operations. */
void needs_family(struct party *p, enum dibs__family family);
/* Skips it when leases are a connection's: they can't be found, taken over or undone by another. */
void needs_rows(void);
/* Who can ask the holder of a lease of `holder`'s to let go: of a connection's lease only the holder's own store. */
struct party *who_breaks(struct party *holder, struct party *other);
/* What parties of this case open. */
const char *case_store_uri(void);

/* ---- Parties ---- */

struct party {
  struct dibs__chain chain;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__said said;                /* of the last run */
  dibs__mandate mandates[DIBS__BUCKETS]; /* as far as they were needed */
  bool gone;
};
/* With DIBS_TEST_AS_TIER stores are opened as tiers, and their buckets are served under mandates (R35). */
bool open_as_tier(void);
/* One more open of the case's store. */
struct party *party(void);
struct party *party_at(const char *uri);        /* of another store */
struct party *tier(void);                       /* as a tier of it (R35) */
void leave(struct party *p);                    /* an orderly close; the case's end closes who is left */
struct dibs__dstore *store_of(struct party *p); /* what the core talks to */
struct dibs__dstore *innermost(struct party *p);

/* ---- Names, ids, time ---- */

dibs__str name_of(const char *text);  /* of this case; good until its end */
uint16_t bucket_of(const char *text); /* of name_of(text) */
dibs__id id_of(int n);                /* of this case */
/* A ttl that is long beside what a test takes, and short enough to wait for where the clock can't be moved. */
uint32_t ttl(void);
/* Lets time pass at the store. */
void pass(struct party *p, int64_t ms);
int64_t passed(void); /* in this case, by moving the clock */
/* Past a ttl, past an offer's time. */
void pass_ttl(struct party *p);
void pass_offer(struct party *p);
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
/* `got` is freed at the end of the case. */
struct dibs__record_op load(struct party *p, const char *key);
struct dibs__record_op seal(struct party *p, const char *key, int id, dibs__fence fence);
struct dibs__record_op save(struct party *p, const char *key, int id, dibs__fence fence, const char *data);

/* As the party knows it; asked for when it knows none. */
dibs__mandate mandate_for(struct party *p, uint16_t bucket);
/* The same, not yet run, under the standing mandate; for batches. */
struct dibs__lease_op lease_op(struct party *p, enum dibs__lease_verb verb, const char *name, int id, struct how how);
struct dibs__record_op record_op(enum dibs__record_verb verb, const char *key, int id, dibs__fence fence,
                                 const char *data);
/* Somebody in a session of its own acquires or queues, then is gone as after kill -9. */
struct dibs__lease_op ghost_as(const char *name, int id, struct how how);
#define ghost(name, id, ...) ghost_as(name, id, (struct how){.now = false, ##__VA_ARGS__})
/* The other end of a ghost that needs a process: argv of --ghost. */
int ghost_main(int argc, char *argv[]);
/* Runs a batch, again while it answers UNAVAILABLE or UNKNOWN.  Fails the test if it does not come through. */
void run_batch(struct party *p, struct dibs__op *const ops[], size_t count);
/* Frees what records answered, at the end of the case. */
void keep(char *got);

/* ---- Expectations ---- */

/* Of an operation in doubt also what a second time answers: LOST for a release, NOT_FOUND for cancel and break. */
#define expect(answer, want) expect_at(__FILE__, __LINE__, (answer).op, want)
void expect_at(const char *file, int line, struct dibs__op got, dibs__status want);
/* It was answered after an UNKNOWN: it may have been done before. */
bool in_doubt(const struct dibs__op *op);
/* The lease was granted or renewed at the time of the last run, for so long. */
void expect_until(const struct party *p, const struct dibs__lease_op *op, int64_t ttl_ms);
/* CANCEL answered OK, and it was that. */
void expect_was(struct dibs__lease_op got, uint32_t was);
const char *status_name(dibs__status status);

/* Asks again for a waiter that has been told it may be its turn; its grant. */
struct dibs__lease_op granted_after_wait(struct party *p, const char *name, int id, struct how how);

/* What list shows. */
struct seen {
  size_t count;
  struct seen_row {
    char name[256], owner[128];
    struct dibs__lease_row row;
  } * rows;
};
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
#define CONTRACT_TESTS(name)                                                                                           \
  const struct contract_tests name = {name##_cases, sizeof name##_cases / sizeof name##_cases[0]}
extern const struct contract_tests contract_batches, contract_grants, contract_fences, contract_queue, contract_ends,
    contract_records, contract_events, contract_lists, contract_refusals, contract_crowds, contract_offers,
    contract_races, contract_once, contract_stock, contract_tiers;

#endif
