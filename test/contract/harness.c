/* SPDX-License-Identifier: MIT */
/* Parties, one-line operations, and time, for the contract's tests. */
#include "harness.h"
#include "tier/tiers.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IN_DOUBT = 1 }; /* stored in `state`, which belongs to the core; here the test is the core */
enum { PARTIES = 1024, KEPT = 4096, NAMES = 4096, RUN_MS = 5000, TRIES = 500 };
enum { QUICK_TRIES = 20, NAP_MS = 20 }; /* a driver that has to connect again may refuse at once for some seconds */

static struct {
  char uri[1024];    /* as given */
  char scheme[32];   /* innermost */
  char folder[64];   /* of SQLite's files */
  char opened[1400]; /* by the parties of this case */
  char prefix[24];
  uint8_t salt[12]; /* of the case's ids */
  const struct contract_target *target;
  struct party *parties[PARTIES];
  size_t party_count;
  char *kept[KEPT];
  size_t kept_count;
  char *names[NAMES];
  size_t name_count;
  int64_t time_advanced;
  _Atomic int64_t slowest_ms; /* the longest run of this case */
} all;

static dibs__tick ms_from_now(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

/* ---- The case ---- */

void contract_begin(const char *uri) {
  struct dibs__uri parsed;
  struct dibs__result reported = {0};
  if (dibs__uri_parse(uri, &parsed, &reported) != DIBS_OK) {
    fprintf(stderr, "contract: %s\n", reported.text);
    exit(2);
  }
  snprintf(all.uri, sizeof all.uri, "%s", uri);
  snprintf(all.scheme, sizeof all.scheme, "%s", parsed.scheme);
  all.target = contract_target_of(all.scheme);
  if ((strcmp(all.scheme, "sqlite") == 0 && !*parsed.path) || strstr(uri, "##")) {
    snprintf(all.folder, sizeof all.folder, "/tmp/dibs-contract-XXXXXX");
    if (!mkdtemp(all.folder)) {
      perror("contract: a temporary folder");
      exit(2);
    }
  }
  dibs__uri_free(&parsed);
}

static void empty_folder(void) {
  DIR *dir = opendir(all.folder);
  if (!dir) return;
  for (struct dirent *entry; (entry = readdir(dir));) {
    char path[sizeof all.folder + sizeof entry->d_name + 2];
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", all.folder, entry->d_name);
    unlink(path);
  }
  closedir(dir);
}

void contract_end(void) {
  if (!*all.folder) return;
  empty_folder();
  rmdir(all.folder);
}

/* "sqlite:##1,sqlite:##2" -> "sqlite:/tmp/.../case1,sqlite:/tmp/.../case2" */
static void case_tiers(void) {
  size_t len = 0;
  for (const char *at = all.uri; *at && len < sizeof all.opened - sizeof all.folder - 8;) {
    bool mark = strncmp(at, "##", 2) == 0;
    if (mark)
      len += (size_t)snprintf(all.opened + len, sizeof all.opened - len, "%s/case", all.folder);
    else
      all.opened[len++] = *at;
    at += mark ? 2 : 1;
  }
  all.opened[len] = '\0';
}

/* "fault+sqlite:?fault.x=1" -> "fault+sqlite:/tmp/.../case.db?fault.x=1" */
static void case_uri(const char *path) {
  if (strstr(all.uri, "##")) {
    case_tiers();
    return;
  }
  size_t head = strcspn(all.uri, "?");
  snprintf(all.opened, sizeof all.opened, "%.*s%s%s", (int)head, all.uri, path, all.uri + head);
}

int case_begin(void **state) {
  char path[128] = "";
  uint32_t salt[4];
  (void)state;
  all.time_advanced = 0;
  atomic_store(&all.slowest_ms, 0);
  dibs__random(salt, sizeof salt);
  memcpy(all.salt, salt, sizeof all.salt);
  snprintf(all.prefix, sizeof all.prefix, "%08x%04x.", salt[3], salt[2] & 0xffff);
  if (strcmp(all.scheme, "memory") == 0)
    snprintf(path, sizeof path, "contract-%s", all.prefix);
  else if (*all.folder)
    snprintf(path, sizeof path, "%s/case.db", all.folder);
  case_uri(path);
  if (!all.target->local && (all.target->skew || all.target->apart)) { /* names are the same in each history, so each
                                                                        * case has tables of its own */
    size_t len = strlen(all.opened);
    snprintf(all.opened + len, sizeof all.opened - len, "%cprefix=c%08x_", strchr(all.opened, '?') ? '&' : '?',
             salt[2]);
  }
  return 0;
}

int case_end(void **state) {
  (void)state;
  for (size_t i = 0; i < all.party_count; i++) {
    close_party(all.parties[i]);
    free(all.parties[i]);
  }
  all.party_count = 0;
  for (size_t i = 0; i < all.kept_count; i++) free(all.kept[i]);
  all.kept_count = 0;
  for (size_t i = 0; i < all.name_count; i++) free(all.names[i]);
  all.name_count = 0;
  if (*all.folder) empty_folder();
  return 0;
}

const struct contract_target *target(void) {
  return all.target;
}

const char *case_store_uri(void) {
  return all.opened;
}

bool has_cap(uint32_t cap) {
  struct party *p = party();
  bool has = (p->identity.caps & cap) == cap;
  close_party(p);
  return has;
}

void needs(uint32_t cap) {
  if (!has_cap(cap)) skip();
}

void needs_family(struct party *p, enum dibs__family family) {
  if (!(p->identity.families & 1u << family)) skip();
}

void needs_rows(void) {
  if (has_cap(DIBS__CAP_SESSION)) skip();
}

struct party *breaking_party(struct party *holder, struct party *other) {
  return holder->identity.caps & DIBS__CAP_SESSION ? holder : other;
}

/* ---- Parties ---- */

struct dibs__dstore *store_of(struct party *p) {
  return p->chain.stores[0];
}

struct dibs__dstore *innermost(struct party *p) {
  return p->chain.stores[p->chain.count - 1];
}

static void connect_again(struct party *p) {
  const struct dibs__driver *driver = store_of(p)->driver;
  struct dibs__result reported = {0};
  dibs__status status = DIBS_UNAVAILABLE;
  if (p->session) driver->disconnect(p->session);
  p->session = NULL;
  for (int i = 0; i < TRIES && status != DIBS_OK; i++)
    status = driver->connect(store_of(p), ms_from_now(RUN_MS), &p->session, &p->identity, &reported);
  if (status != DIBS_OK) fail_msg("connect: %s: %s", status_name(status), reported.text);
}

bool open_as_tier(void) {
  return getenv("DIBS_TEST_AS_TIER") != NULL;
}

/* Installs a mandate in all buckets of a tier. */
static void install_all(struct party *p) {
  struct dibs__anchor_op ops[DIBS__BUCKETS];
  struct dibs__op *batch[DIBS__BUCKETS];
  size_t count = 0;
  for (int verb = DIBS__ANCHOR_READ; verb <= DIBS__ANCHOR_INSTALL; verb += DIBS__ANCHOR_INSTALL) {
    for (uint16_t i = 0; i < DIBS__BUCKETS; i++) {
      dibs__mandate stands = verb == DIBS__ANCHOR_READ ? (dibs__mandate){0} : ops[i].current;
      if (verb == DIBS__ANCHOR_INSTALL && ops[i].served) continue;
      stands.epoch++;
      ops[i] = (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = (uint16_t)verb, .bucket = i}};
      ops[i].op.flags = verb == DIBS__ANCHOR_READ ? DIBS__OP_READS : 0;
      ops[i].op.mandate = stands;
      ops[i].op.by = ms_from_now(RUN_MS);
      batch[count++] = &ops[i].op;
    }
    if (count) run_batch(p, batch, count);
    count = 0;
  }
  for (size_t i = 0; i < DIBS__BUCKETS; i++) assert_true(ops[i].served);
}

/* Several tiers: the first change makes the stores tiers. */
static void begin_tiers(struct party *p) {
  if (!(p->identity.families & 1u << DIBS__FAM_TIERS) || anchor_read(p, 0).current.epoch) return;
  struct dibs__tiers_op op = {.op = {.family = DIBS__FAM_TIERS, .verb = DIBS__TIERS_SWITCH, .by = ms_from_now(RUN_MS)}};
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  expect(op, DIBS_OK);
}

static struct party *party_opened(const char *text, bool as_tier, bool as_anchor) {
  struct dibs__uri uri;
  struct dibs__result reported = {0};
  dibs__status status = dibs__uri_parse(text, &uri, &reported);
  if (status != DIBS_OK) fail_msg("%s: %s", text, reported.text);
  assert_true(all.party_count < PARTIES);
  struct party *p = calloc(1, sizeof *p);
  assert_non_null(p);
  uri.as_tier = as_tier || open_as_tier();
  uri.as_anchor = as_anchor;
  for (int i = 0; i < TRIES; i++) {
    status = dibs__chain_open(&uri, NULL, ms_from_now(RUN_MS), &p->chain, &reported);
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) break;
  }
  dibs__uri_free(&uri);
  if (status != DIBS_OK) {
    free(p);
    fail_msg("%s: %s: %s", text, status_name(status), reported.text);
  }
  all.parties[all.party_count++] = p;
  connect_again(p);
  if (open_as_tier()) install_all(p);
  begin_tiers(p);
  return p;
}

struct party *party_at(const char *text) {
  return party_opened(text, false, false);
}

static struct party *party_of_case(bool as_tier, bool as_anchor) {
  struct party *p = party_opened(all.opened, as_tier, as_anchor);
  if (all.target->own_clocks && all.time_advanced) all.target->skew(innermost(p), all.time_advanced);
  return p;
}

struct party *party(void) {
  return party_of_case(false, false);
}

struct party *tier(void) {
  if (all.target->no_tier) skip();
  return party_of_case(true, false);
}

struct party *anchor_of_tiers(void) {
  if (all.target->no_tier || open_as_tier()) skip();
  struct party *p = party_of_case(true, true);
  uint32_t needs = 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_REPORT;
  if ((p->identity.families & needs) != needs || !(p->identity.caps & DIBS__CAP_ANCHOR)) skip();
  return p;
}

void close_party(struct party *p) {
  if (p->gone) return;
  if (p->session) store_of(p)->driver->disconnect(p->session);
  p->session = NULL;
  dibs__chain_close(&p->chain);
  p->gone = true;
}

/* ---- Names, ids, time ---- */

dibs__str name_of(const char *text) {
  char name[300];
  int len = snprintf(name, sizeof name, "%s%s", all.prefix, text);
  for (size_t i = 0; i < all.name_count; i++)
    if (strcmp(all.names[i], name) == 0) return dibs__str_of(all.names[i], (size_t)len);
  assert_true(all.name_count < NAMES);
  char *kept = strdup(name);
  assert_non_null(kept);
  all.names[all.name_count++] = kept;
  return dibs__str_of(kept, (size_t)len);
}

uint16_t bucket_of(const char *text) {
  return dibs__bucket(name_of(text));
}

dibs__id id_of(int n) {
  dibs__id id;
  memcpy(id.b, all.salt, sizeof all.salt);
  memcpy(id.b + sizeof all.salt, &n, sizeof n);
  return id;
}

uint32_t ttl(void) {
  if (all.target->skew) return 20000;
  /* DIBS_TEST_TTL_MS: for a server that needs long to open a connection. */
  const char *given = getenv("DIBS_TEST_TTL_MS");
  if (given) return (uint32_t)strtoul(given, NULL, 10);
  return all.target->ttl_ms ? all.target->ttl_ms : 1000;
}

/* If a lease belongs to a connection, each process ends its own expired leases. */
static void do_housekeeping(void) {
  for (size_t i = 0; i < all.party_count; i++) {
    struct party *p = all.parties[i];
    if (!p->gone && (p->identity.caps & DIBS__CAP_SESSION)) store_of(p)->driver->tidy(store_of(p));
  }
}

void advance_time(struct party *p, int64_t ms) {
  if (!all.target->skew) {
    dibs__nap_ms(ms);
    do_housekeeping();
    return;
  }
  all.time_advanced += ms;
  if (!all.target->own_clocks) all.target->skew(innermost(p), ms);
  for (size_t i = 0; all.target->own_clocks && i < all.party_count; i++)
    if (!all.parties[i]->gone) all.target->skew(innermost(all.parties[i]), ms);
}

int64_t time_advanced(void) {
  return all.time_advanced;
}

void advance_past_ttl(struct party *p) {
  advance_time(p, ttl() + 50 + all.target->late_ms);
}

void advance_past(struct party *p, int64_t ttl_ms) {
  advance_time(p, ttl_ms + 1 + all.target->late_ms);
}

void advance_past_offer(struct party *p) {
  advance_time(p, offer_ms() + 50);
}

int64_t offer_ms(void) {
  return all.target->offer_ms ? all.target->offer_ms : DIBS__OFFER_MS;
}

int64_t store_now(struct party *p) {
  (void)anchor_read(p, 0);
  return p->reported.now.ms;
}

/* ---- Running ---- */

static bool is_unanswered(const struct dibs__op *op, dibs__status run) {
  return op->status == DIBS_UNKNOWN || op->status == DIBS_UNAVAILABLE || run == DIBS_UNAVAILABLE;
}

void run_batch(struct party *p, struct dibs__op *const ops[], size_t count) {
  const struct dibs__driver *driver = store_of(p)->driver;
  struct dibs__op **left = calloc(count, sizeof(struct dibs__op *));
  dibs__status status = DIBS_OK;
  size_t left_count = count;
  assert_non_null(left);
  memcpy(left, ops, count * sizeof(struct dibs__op *));
  for (size_t i = 0; i < count; i++) left[i]->state = 0;
  for (int tries = 0; left_count && tries < TRIES; tries++) {
    size_t still = 0;
    for (size_t i = 0; i < left_count; i++) left[i]->status = DIBS_UNKNOWN;
    if (tries > QUICK_TRIES) dibs__nap_ms(NAP_MS);
    if (!p->session) connect_again(p);
    p->reported = (struct dibs__result){0};
    dibs__tick began = dibs__tick_now();
    status = driver->run(p->session, left, left_count, ms_from_now(RUN_MS), &p->reported);
    int64_t took_ms = (dibs__tick_now().ns - began.ns) / DIBS__NS_PER_MS;
    if (took_ms > atomic_load(&all.slowest_ms))
      atomic_store(&all.slowest_ms, took_ms); /* threads may race; a bound is enough */
    if (status == DIBS_OK && p->reported.dead)
      fail_msg("a session that answered reports that it is dead: %s", p->reported.text);
    for (size_t i = 0; i < left_count; i++) {
      if (!is_unanswered(left[i], status)) continue;
      if (status != DIBS_UNAVAILABLE && left[i]->status == DIBS_UNKNOWN) left[i]->state = IN_DOUBT;
      left[still++] = left[i];
    }
    left_count = still;
    if (p->reported.dead) connect_again(p);
  }
  free(left);
  if (left_count) fail_msg("run: %s: %s", status_name(status), p->reported.text);
}

int64_t told_ms(void) {
  return target()->told_ms ? target()->told_ms + 2 * atomic_load(&all.slowest_ms) : 0;
}

bool in_doubt(const struct dibs__op *op) {
  return op->state == IN_DOUBT;
}

static uint32_t flags_of(enum dibs__lease_verb verb) {
  return verb == DIBS__RENEW || verb == DIBS__RELEASE ? DIBS__OP_URGENT : 0;
}

dibs__mandate mandate_for(struct party *p, uint16_t bucket) {
  if (p->mandates[bucket].epoch == 0) p->mandates[bucket] = anchor_read(p, bucket).current;
  return p->mandates[bucket];
}

struct dibs__lease_op lease_op(struct party *p, enum dibs__lease_verb verb, const char *name, int id, struct how how) {
  struct dibs__lease_op op = {.name = name_of(name), .id = id_of(id), .mode = how.mode, .slots = how.slots};
  const char *owner = how.owner ? how.owner : "somebody";
  op.op.family = DIBS__FAM_LEASE;
  op.op.verb = (uint16_t)verb;
  op.op.flags = (uint16_t)flags_of(verb);
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = mandate_for(p, op.op.bucket);
  op.op.by = ms_from_now(RUN_MS);
  op.owner = dibs__str_of(owner, strlen(owner));
  op.ttl_ms = how.ttl ? how.ttl : ttl();
  op.want_block = how.block;
  op.ticket = how.ticket;
  op.queue = !how.try_only;
  op.now = how.now;
  return op;
}

/* Follows the mandate a few times, as a caller does. */
static void run_lease(struct party *p, struct dibs__lease_op *op) {
  struct dibs__lease_op requested = *op;
  for (int i = 0; i < 5; i++) {
    struct dibs__op *ops[] = {&op->op};
    run_batch(p, ops, 1);
    if (op->op.status != DIBS__MOVED) return;
    dibs__mandate has = op->op.has;
    p->mandates[op->op.bucket] = has;
    *op = requested;
    op->op.mandate = has;
  }
  fail_msg("MOVED too many times");
}

struct dibs__lease_op acquire_as(struct party *p, const char *name, int id, struct how how) {
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, name, id, how);
  run_lease(p, &op);
  if (op.op.status == DIBS__QUEUED && op.ticket == 0) fail_msg("QUEUED without a ticket");
  if (op.op.status == DIBS_OK && (how.mode == DIBS_EXCLUSIVE) != (op.fence.v != 0))
    fail_msg("mode %u with fence %llu", how.mode, (unsigned long long)op.fence.v);
  return op;
}

struct dibs__lease_op renew_as(struct party *p, const char *name, int id, dibs__fence fence, struct how how) {
  struct dibs__lease_op op = lease_op(p, DIBS__RENEW, name, id, how);
  op.fence = fence;
  run_lease(p, &op);
  return op;
}

struct dibs__lease_op release(struct party *p, const char *name, int id, dibs__fence fence) {
  struct dibs__lease_op op = lease_op(p, DIBS__RELEASE, name, id, (struct how){.mode = 0});
  op.fence = fence;
  run_lease(p, &op);
  return op;
}

struct dibs__lease_op cancel(struct party *p, const char *name, int id) {
  struct dibs__lease_op op = lease_op(p, DIBS__CANCEL, name, id, (struct how){.mode = 0});
  run_lease(p, &op);
  return op;
}

struct dibs__lease_op break_it(struct party *p, const char *name, bool now) {
  struct dibs__lease_op op = lease_op(p, DIBS__BREAK, name, 0, (struct how){.owner = "breaker", .now = now});
  run_lease(p, &op);
  return op;
}

static struct dibs__anchor_op anchor_op(struct party *p, enum dibs__anchor_verb verb, uint16_t bucket,
                                        dibs__mandate from) {
  struct dibs__anchor_op op = {.op = {.family = DIBS__FAM_ANCHOR, .verb = (uint16_t)verb, .bucket = bucket}};
  struct dibs__op *ops[] = {&op.op};
  op.op.flags = verb == DIBS__ANCHOR_READ ? DIBS__OP_READS : 0;
  op.op.mandate = from;
  op.op.by = ms_from_now(RUN_MS);
  run_batch(p, ops, 1);
  return op;
}

struct dibs__anchor_op anchor_read(struct party *p, uint16_t bucket) {
  return anchor_op(p, DIBS__ANCHOR_READ, bucket, (dibs__mandate){0});
}

struct dibs__anchor_op anchor_next(struct party *p, uint16_t bucket, dibs__mandate from) {
  return anchor_op(p, DIBS__ANCHOR_NEXT, bucket, from);
}

struct dibs__anchor_op anchor_install(struct party *p, uint16_t bucket, dibs__mandate what) {
  return anchor_op(p, DIBS__ANCHOR_INSTALL, bucket, what);
}

struct dibs__anchor_op anchor_alone(struct party *p, uint16_t bucket) {
  return anchor_op(p, DIBS__ANCHOR_ALONE, bucket, (dibs__mandate){0});
}

struct dibs__anchor_op anchor_run(struct party *p, enum dibs__anchor_verb verb, uint16_t bucket, dibs__mandate about) {
  return anchor_op(p, verb, bucket, about);
}

dibs__mandate anchor_has(struct party *p, uint16_t bucket) {
  struct dibs__anchor_op read = anchor_read(p, bucket);
  if (dibs__fence_epoch(read.last) > read.current.epoch) read.current.epoch = dibs__fence_epoch(read.last);
  return read.current;
}

int case_end_alone(void **state) {
  struct dibs__anchor_op ops[DIBS__BUCKETS];
  struct dibs__op *batch[DIBS__BUCKETS];
  if (target()->no_tier) return case_end(state);
  struct party *t = tier();
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    ops[b] = (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_ALONE, .bucket = b}};
    ops[b].op.by = ms_from_now(RUN_MS);
    batch[b] = &ops[b].op;
  }
  if (t->identity.families & 1u << DIBS__FAM_ANCHOR) run_batch(t, batch, DIBS__BUCKETS);
  return case_end(state);
}

void free_at_end(char *got) {
  if (!got) return;
  assert_true(all.kept_count < KEPT);
  all.kept[all.kept_count++] = got;
}

struct dibs__record_op record_op(enum dibs__record_verb verb, const char *key, int id, dibs__fence fence,
                                 const char *data) {
  struct dibs__record_op op = {.op = {.family = DIBS__FAM_RECORD, .verb = (uint16_t)verb}, .key = name_of(key)};
  op.op.flags = verb == DIBS__RECORD_LOAD ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  op.op.by = ms_from_now(RUN_MS);
  op.id = id_of(id);
  op.fence = fence;
  op.data = data ? dibs__str_of(data, strlen(data)) : (dibs__str){0};
  return op;
}

static struct dibs__record_op run_record(struct party *p, struct dibs__record_op op) {
  needs_family(p, DIBS__FAM_RECORD);
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  free_at_end(op.got);
  return op;
}

struct dibs__record_op load(struct party *p, const char *key) {
  return run_record(p, record_op(DIBS__RECORD_LOAD, key, 0, DIBS__FENCE_NONE, NULL));
}

struct dibs__record_op seal(struct party *p, const char *key, int id, dibs__fence fence) {
  return run_record(p, record_op(DIBS__RECORD_SEAL, key, id, fence, NULL));
}

struct dibs__record_op save_op(const char *key, int id, dibs__fence fence, const char *data) {
  struct dibs__record_op op = record_op(DIBS__RECORD_PUT, key, id, fence, data);
  op.guards = DIBS__IF_FENCE;
  return op;
}

struct dibs__record_op save(struct party *p, const char *key, int id, dibs__fence fence, const char *data) {
  return run_record(p, save_op(key, id, fence, data));
}

/* ---- Expectations ---- */

const char *status_name(dibs__status status) {
  if (status == DIBS__QUEUED) return "QUEUED";
  if (status == DIBS__MOVED) return "MOVED";
  return dibs_status_name((dibs_status)status);
}

/* The answer of a repetition if the first attempt, whose answer was lost, answered `want`. */
static dibs__status second_answer(const struct dibs__op *op, dibs__status want) {
  if (op->family == DIBS__FAM_ANCHOR && op->verb != DIBS__ANCHOR_ALONE && want == DIBS_OK) return DIBS_CONFLICT;
  if (op->family != DIBS__FAM_LEASE || want != DIBS_OK) return want;
  if (op->verb == DIBS__RELEASE) return DIBS_LOST;
  return op->verb == DIBS__CANCEL || op->verb == DIBS__BREAK ? DIBS_NOT_FOUND : want;
}

void expect_at(const char *file, int line, struct dibs__op got, dibs__status want) {
  if (got.status == want || (in_doubt(&got) && got.status == second_answer(&got, want))) return;
  print_error("the answer is %s, expected %s\n", status_name(got.status), status_name(want));
  _fail(file, line);
}

void expect_until(const struct party *p, const struct dibs__lease_op *op, int64_t ttl_ms) {
  int64_t late = p->reported.now.ms + ttl_ms - op->until.ms;
  if (late == 0 || (late > 0 && in_doubt(&op->op))) return;
  fail_msg("the lease ends %lld ms earlier than expected", (long long)late);
}

void expect_was(struct dibs__lease_op got, uint32_t was) {
  if (in_doubt(&got.op) && got.op.status == DIBS_NOT_FOUND) return;
  if (got.op.status != DIBS_OK || got.was != was)
    fail_msg("cancel: %s, removed %u, expected %u", status_name(got.op.status), got.was, was);
}

struct dibs__lease_op granted_after_wait(struct party *p, const char *name, int id, struct how how) {
  struct dibs__lease_op op = acquire_as(p, name, id, how);
  if (op.op.status != DIBS_OK)
    fail_msg("id %d of %s: %s, although it is next in the queue", id, name, status_name(op.op.status));
  return op;
}

/* ---- Lists ---- */

static int add_row(const struct dibs__lease_row *row, void *user) {
  struct seen *seen = user;
  if ((seen->count & (seen->count - 1)) == 0) {
    size_t capacity = seen->count ? seen->count * 2 : 1;
    struct seen_row *rows = realloc(seen->rows, capacity * sizeof *rows);
    assert_non_null(rows);
    seen->rows = rows;
  }
  struct seen_row *to = &seen->rows[seen->count++];
  to->row = *row;
  snprintf(to->name, sizeof to->name, "%.*s", (int)row->name.len, row->name.p);
  dibs__str owner = row->owner;
  const char *mark = row->state == DIBS__BROKEN ? memchr(owner.p, DIBS__BREAK_FROM, owner.len) : NULL;
  if (mark) snprintf(to->from, sizeof to->from, "%.*s", (int)(owner.p + owner.len - mark - 1), mark + 1);
  if (mark) owner.len = (uint32_t)(mark - owner.p);
  snprintf(to->owner, sizeof to->owner, "%.*s", (int)owner.len, owner.p);
  return 0;
}

struct seen list_how(struct party *p, struct dibs__list how) {
  struct seen seen = {0};
  dibs__status status = DIBS_UNAVAILABLE;
  struct dibs__result reported = {0};
  how.row = add_row;
  how.user = &seen;
  for (int i = 0; i < TRIES && status == DIBS_UNAVAILABLE; i++) {
    seen.count = 0;
    status = store_of(p)->driver->list(p->session, &how, ms_from_now(RUN_MS), &reported);
    if (reported.dead) connect_again(p);
  }
  free_at_end((char *)seen.rows);
  if (status != DIBS_OK) fail_msg("list: %s: %s", status_name(status), reported.text);
  return seen;
}

struct seen list_name(struct party *p, const char *name) {
  return list_how(p, (struct dibs__list){.name = name_of(name)});
}

struct seen list_prefix(struct party *p, const char *prefix) {
  return list_how(p, (struct dibs__list){.prefix = name_of(prefix)});
}

const struct seen_row *find_row(const struct seen *seen, uint32_t state, const char *owner) {
  for (size_t i = 0; i < seen->count; i++)
    if (seen->rows[i].row.state == state && strcmp(seen->rows[i].owner, owner) == 0) return &seen->rows[i];
  return NULL;
}
