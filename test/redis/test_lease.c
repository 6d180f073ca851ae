/* SPDX-License-Identifier: MIT */
/* What the contract's suite cannot see: the keys that a Redis keeps and forgets, and foreign keys in their place. */
#include "bed.h"
#include "store/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1000, NAMES = 200000, WAITED = 20000, HELD = 20000, LEASE_BYTES = 300, TTL_MS = 600000 };

/* One open store with one session. */
struct client {
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;
};

static struct dibs__redis_link *by_hand;
static struct dibs__redis_location *location;

static struct client client_open_at(const char *text, bool as_tier) {
  struct client c = {.store = NULL};
  struct dibs__uri uri;
  assert_int_equal(dibs__uri_parse(text, &uri, &c.reported), DIBS_OK);
  uri.as_tier = as_tier;
  dibs__status status = dibs__redis_driver.open(&uri, NULL, 0, within(LONG_MS), &c.store, &c.reported);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  status = dibs__redis_driver.connect(c.store, within(LONG_MS), &c.session, &c.identity, &c.reported);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  return c;
}

static struct client client_open(bool as_tier) {
  return client_open_at(bed_uri, as_tier);
}

static void client_close(struct client *c) {
  if (!c->store) return;
  dibs__redis_driver.disconnect(c->session);
  dibs__redis_driver.close(c->store);
  c->store = NULL;
}

static void run(struct client *c, struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++) ops[i]->status = DIBS_UNKNOWN;
  dibs__status status = dibs__redis_driver.run(c->session, ops, count, within(LONG_MS), &c->reported);
  if (status != DIBS_OK) fail_msg("%s", c->reported.text);
}

static dibs__id id_of(int n) {
  dibs__id id = {"lease"};
  memcpy(id.b + 8, &n, sizeof n);
  return id;
}

static struct dibs__anchor_op anchor(struct client *c, enum dibs__anchor_verb verb, uint16_t bucket,
                                     dibs__mandate what) {
  struct dibs__anchor_op op = {.op = {.family = DIBS__FAM_ANCHOR, .verb = (uint16_t)verb, .bucket = bucket}};
  struct dibs__op *ops[] = {&op.op};
  op.op.mandate = what;
  run(c, ops, 1);
  return op;
}

static struct dibs__lease_op lease(struct client *c, enum dibs__lease_verb verb, const char *name, int id) {
  struct dibs__lease_op op = {.name = dibs__str_of(name, strlen(name)), .owner = dibs__str_of("somebody", 8)};
  (void)c;
  op.id = id_of(id);
  op.op.family = DIBS__FAM_LEASE;
  op.op.verb = (uint16_t)verb;
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = (dibs__mandate){1, c->identity.mandate.incarnation};
  op.ttl_ms = TTL_MS;
  op.queue = true;
  return op;
}

static void send_request(struct client *c, struct dibs__lease_op *op, dibs__status want) {
  struct dibs__op *ops[] = {&op->op};
  run(c, ops, 1);
  if (op->op.status != want) fail_msg("status %d, expected %d: %s", op->op.status, want, c->reported.text);
}

static struct dibs__lease_op acquire(struct client *c, const char *name, int id, dibs__status want) {
  struct dibs__lease_op op = lease(c, DIBS__ACQUIRE, name, id);
  send_request(c, &op, want);
  return op;
}

static void release(struct client *c, struct dibs__lease_op held) {
  held.op.verb = DIBS__RELEASE;
  send_request(c, &held, DIBS_OK);
}

static long long keys(void) {
  return RUN(by_hand, "DBSIZE")->integer;
}

static long long memory_used(void) {
  const char *at = strstr(RUN(by_hand, "INFO", "memory")->str, "used_memory:");
  return at ? atoll(at + strlen("used_memory:")) : 0;
}

static int begin(void **state) {
  (void)state;
  location = bed_location(bed_uri);
  by_hand = bed_connect(location);
  RUN(by_hand, "FLUSHDB");
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__redis_disconnect(by_hand);
  dibs__redis_location_free(location);
  return 0;
}

/* ---- Keys that it keeps ---- */

/* One operation for each of `count` names from `first` on, in batches; all must answer this. */
static void sweep(struct client *c, struct dibs__lease_op *ops, int verb, size_t count, int id, dibs__status want) {
  struct dibs__op *batch[BATCH];
  for (size_t at = 0; at < count; at += BATCH) {
    size_t n = count - at < BATCH ? count - at : BATCH;
    for (size_t i = 0; i < n; i++) {
      ops[at + i].op.verb = (uint16_t)verb;
      ops[at + i].id = id_of(id);
      batch[i] = &ops[at + i].op;
    }
    run(c, batch, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(batch[i]->status, want);
  }
}

static struct dibs__lease_op *waiters(struct client *c, size_t count) {
  struct dibs__lease_op *ops = calloc(count, sizeof *ops);
  char(*names)[16] = calloc(count, sizeof *names);
  assert_true(ops && names);
  for (size_t i = 0; i < count; i++) {
    snprintf(names[i], sizeof names[i], "job-%zu", i);
    ops[i] = lease(c, DIBS__ACQUIRE, names[i], 1);
  }
  return ops;
}

static void waiters_free(struct dibs__lease_op *ops) {
  free((void *)(uintptr_t)ops[0].name.p);
  free(ops);
}

static const char *key_of_name(const char *name) {
  static char key[32 + DIBS_NAME_MAX];
  snprintf(key, sizeof key, "dibs:{%u}:n:%s", dibs__bucket(dibs__str_of(name, strlen(name))), name);
  return key;
}

static void many_names_leave_no_keys(void **state) {
  (void)state;
  struct client p = client_open(false), q = client_open(false);
  struct dibs__lease_op *ops = waiters(&p, NAMES), *line = waiters(&q, WAITED);
  sweep(&p, ops, DIBS__ACQUIRE, NAMES, 1, DIBS_OK);
  assert_true(keys() >= NAMES);
  sweep(&q, line, DIBS__ACQUIRE, WAITED, 2, DIBS__QUEUED);
  sweep(&p, ops, DIBS__RELEASE, NAMES, 1, DIBS_OK);
  sweep(&q, line, DIBS__ACQUIRE, WAITED, 2, DIBS_OK);
  for (size_t i = 0; i < WAITED; i++) assert_int_equal(line[i].got_block, 1);
  sweep(&q, line, DIBS__RELEASE, WAITED, 2, DIBS_OK);
  assert_int_equal(keys(), DIBS__BUCKETS);
  waiters_free(ops);
  waiters_free(line);
  client_close(&p);
  client_close(&q);
}

/* Each name twice in a call: the second operation finds the effect of the first. */
static void the_longest_names_fill_a_call(void **state) {
  (void)state;
  enum { COUNT = DIBS__REDIS_CALL / 2 };
  static char names[COUNT][DIBS_NAME_MAX + 1];
  struct dibs__lease_op ops[2 * COUNT];
  struct dibs__op *list[2 * COUNT];
  struct client p = client_open(false);
  for (int i = 0; i < COUNT; i++) {
    snprintf(names[i], sizeof names[i], "%0*d", DIBS_NAME_MAX, i);
    ops[i] = lease(&p, DIBS__ACQUIRE, names[i], i);
    ops[COUNT + i] = lease(&p, DIBS__ACQUIRE, names[i], COUNT + i);
    ops[i].queue = ops[COUNT + i].queue = false;
    list[i] = &ops[i].op;
    list[COUNT + i] = &ops[COUNT + i].op;
  }
  run(&p, list, (size_t)2 * COUNT);
  assert_int_equal(p.reported.commits, 1);
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(ops[i].op.status, DIBS_OK);
    assert_int_equal(ops[COUNT + i].op.status, DIBS_HELD);
    ops[i].op.verb = DIBS__RELEASE;
  }
  for (int i = 0; i < COUNT; i++) assert_int_equal(RUN(by_hand, "EXISTS", key_of_name(names[i]))->integer, 1);
  run(&p, list, (size_t)2 * COUNT);
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(ops[i].op.status, DIBS_OK);
    assert_int_equal(ops[COUNT + i].op.status, DIBS_OK);
  }
  client_close(&p);
}

static void a_held_lease_takes_little_memory(void **state) {
  (void)state;
  struct client p = client_open(false);
  struct dibs__lease_op *ops = waiters(&p, HELD);
  sweep(&p, ops, DIBS__ACQUIRE, 1, 1, DIBS_OK); /* the scripts are loaded */
  long long before = memory_used();
  sweep(&p, ops, DIBS__ACQUIRE, HELD, 1, DIBS_OK);
  long long each = (memory_used() - before) / HELD;
  sweep(&p, ops, DIBS__RELEASE, HELD, 1, DIBS_OK);
  if (each < 50 || each > LEASE_BYTES) fail_msg("%lld bytes a lease", each);
  waiters_free(ops);
  client_close(&p);
}

static void every_key_of_a_queue_expires(void **state) {
  (void)state;
  struct client p = client_open(false), q = client_open(false);
  struct dibs__lease_op shared = lease(&p, DIBS__ACQUIRE, "n", 1);
  shared.mode = DIBS_COUNTED;
  shared.slots = 1;
  send_request(&p, &shared, DIBS_OK);
  acquire(&q, "n", 2, DIBS__QUEUED);
  struct dibs__lease_op broken = lease(&p, DIBS__BREAK, "n", 0);
  send_request(&p, &broken, DIBS_OK);
  const redisReply *all = RUN(by_hand, "KEYS", "dibs:{*}:*:n");
  char *names[16] = {NULL};
  size_t count = all->elements;
  assert_int_equal(count, 8); /* n h u s w q a b */
  for (size_t i = 0; i < count; i++) names[i] = strdup(all->element[i]->str);
  for (size_t i = 0; i < count; i++) {
    if (RUN(by_hand, "PTTL", names[i])->integer <= 0) fail_msg("%s has no expiry", names[i]);
    free(names[i]);
  }
  client_close(&p);
  client_close(&q);
}

static void fences_do_not_run_ahead_of_the_clock(void **state) {
  (void)state;
  struct client p = client_open(false);
  uint64_t last = 0;
  for (int i = 0; i < 200; i++) {
    struct dibs__lease_op op = lease(&p, DIBS__ACQUIRE, "n", i);
    op.want_block = DIBS__BLOCK_MAX;
    send_request(&p, &op, DIBS_OK);
    assert_true(op.fence.v > last && op.got_block >= 1);
    last = op.fence.v + op.got_block - 1;
    /* Otherwise they would decrease when the memory is lost.  Each grant has a fence, in any millisecond. */
    assert_true(last < ((uint64_t)p.reported.now.ms + 1) * 1024 + 200);
    release(&p, op);
  }
  RUN(by_hand, "FLUSHDB");
  for (int64_t then = p.reported.now.ms;
       p.reported.now.ms <= then + 1;) /* a server that loses its memory needs longer than that */
    (void)anchor(&p, DIBS__ANCHOR_READ, 0, (dibs__mandate){0});
  struct dibs__lease_op op = acquire(&p, "n", 999, DIBS_OK);
  assert_true(op.fence.v > last);
  client_close(&p);
}

/* ---- Mandates ---- */

static void a_used_up_epoch_grants_nothing(void **state) {
  (void)state;
  struct client t = client_open(true);
  uint16_t bucket = dibs__bucket(dibs__str_of("n", 1));
  dibs__mandate what = anchor(&t, DIBS__ANCHOR_READ, bucket, (dibs__mandate){0}).current;
  what.epoch = 70;
  assert_true(anchor(&t, DIBS__ANCHOR_INSTALL, bucket, what).served);
  char key[32];
  snprintf(key, sizeof key, "dibs:{%u}", bucket);
  RUN(by_hand, "SETRANGE", key, "5", "\xfd\xff\xff\xff"); /* two fences remain */
  struct dibs__lease_op op = lease(&t, DIBS__ACQUIRE, "n", 1);
  op.op.mandate = what;
  op.want_block = 3;
  send_request(&t, &op, DIBS__MOVED);
  assert_int_equal(op.op.has.epoch, 70);
  op.want_block = 2;
  send_request(&t, &op, DIBS_OK);
  struct dibs__lease_op again = op;
  again.op.verb = DIBS__RENEW;
  again.want_block = 1;
  send_request(&t, &again, DIBS__MOVED);
  what.epoch++;
  assert_int_equal(anchor(&t, DIBS__ANCHOR_INSTALL, bucket, what).op.status, DIBS_OK);
  again.op.mandate = what;
  send_request(&t, &again, DIBS_OK);
  assert_int_equal(again.fence.v, dibs__fence_make(71, 1).v);
  client_close(&t);
}

static void a_flush_removes_the_mandate(void **state) {
  (void)state;
  struct client t = client_open(true), p = client_open(false);
  uint16_t bucket = dibs__bucket(dibs__str_of("n", 1));
  dibs__mandate what = {9, t.identity.mandate.incarnation};
  assert_true(anchor(&t, DIBS__ANCHOR_INSTALL, bucket, what).served);
  struct dibs__lease_op op = acquire(&p, "n", 1, DIBS_DENIED);
  assert_non_null(strstr(p.reported.text, "is a tier"));
  RUN(by_hand, "FLUSHDB");
  op.op.mandate = what;
  send_request(&t, &op, DIBS__MOVED);
  assert_int_equal(op.op.has.epoch, 0);
  acquire(&p, "n", 1, DIBS_OK);
  client_close(&t);
  client_close(&p);
}

/* Grants without a mandate are above small epochs: a fence must not decrease. */
static void no_epoch_is_installed_below_a_granted_fence(void **state) {
  (void)state;
  struct client t = client_open(true), p = client_open(false);
  struct dibs__lease_op own = acquire(&p, "n", 1, DIBS_OK);
  dibs__mandate what = {dibs__fence_epoch(own.fence), t.identity.mandate.incarnation};
  assert_int_equal(anchor(&t, DIBS__ANCHOR_INSTALL, own.op.bucket, what).op.status, DIBS_CONFLICT);
  what.epoch++;
  assert_int_equal(anchor(&t, DIBS__ANCHOR_INSTALL, own.op.bucket, what).op.status, DIBS_OK);
  client_close(&t);
  client_close(&p);
}

/* Its connections and its run_id stay: the script itself checks the role. */
static void a_server_that_was_demoted_has_another_incarnation(void **state) {
  (void)state;
  struct client p = client_open(false);
  struct dibs__lease_op held = acquire(&p, "n", 1, DIBS_OK);
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  ADMIN("REPLICAOF", "NO", "ONE");
  held.op.verb = DIBS__RENEW;
  send_request(&p, &held, DIBS__MOVED);
  assert_int_equal(held.op.has.epoch, 1);
  assert_memory_not_equal(held.op.has.incarnation.b, p.identity.mandate.incarnation.b,
                          sizeof held.op.has.incarnation.b);
  held.op.mandate = held.op.has;
  send_request(&p, &held, DIBS_OK);
  client_close(&p);
}

static void a_replica_grants_nothing(void **state) {
  (void)state;
  struct client p = client_open(false);
  struct dibs__lease_op op = lease(&p, DIBS__ACQUIRE, "n", 1);
  struct dibs__op *ops[] = {&op.op};
  acquire(&p, "other", 1, DIBS_OK);
  op.op.status = DIBS_UNKNOWN;
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  dibs__status status = dibs__redis_driver.run(p.session, ops, 1, within(LONG_MS), &p.reported);
  ADMIN("REPLICAOF", "NO", "ONE");
  assert_int_equal(status, DIBS_UNAVAILABLE);
  assert_true(p.reported.dead);
  client_close(&p);
}

/* ---- Keys that it forgets ---- */

static void forgotten_scripts_are_loaded_again(void **state) {
  (void)state;
  struct client p = client_open(false);
  struct dibs__lease_op held = acquire(&p, "n", 1, DIBS_OK);
  ADMIN("SCRIPT", "FLUSH");
  release(&p, held);
  client_close(&p);
}

/* PUBLISH would count a client that listens to everything. */
static void a_client_that_monitors_is_not_a_live_waiter(void **state) {
  (void)state;
  struct client p = client_open(false), q = client_open(false);
  struct dibs__redis_link *monitor = bed_connect(location);
  RUN(monitor, "PSUBSCRIBE", "*");
  struct dibs__lease_op held = acquire(&p, "n", 1, DIBS_OK);
  acquire(&q, "n", 2, DIBS__QUEUED);
  client_close(&q);
  release(&p, held);
  acquire(&p, "n", 3, DIBS_OK);
  dibs__redis_disconnect(monitor);
  client_close(&p);
}

/* The dead waiter is behind a live one, where no offer reaches it. */
static void a_dead_silent_waiter_is_removed(void **state) {
  (void)state;
  struct client p = client_open(false), q = client_open(false);
  char key[32];
  acquire(&p, "n", 1, DIBS_OK);
  acquire(&p, "n", 2, DIBS__QUEUED);
  acquire(&q, "n", 3, DIBS__QUEUED);
  client_close(&q);
  uint16_t bucket = dibs__bucket(dibs__str_of("n", 1));
  snprintf(key, sizeof key, "dibs:{%u}:w:n", bucket);
  assert_int_equal(RUN(by_hand, "HLEN", key)->integer, 2);
  snprintf(key, sizeof key, "dibs:{%u}:a:n", bucket);
  const redisReply *all = RUN(by_hand, "ZRANGE", key, "0", "-1");
  char ids[2][16];
  assert_int_equal(all->elements, 2);
  for (int i = 0; i < 2; i++) memcpy(ids[i], all->element[i]->str, 16);
  for (int i = 0; i < 2; i++) { /* a long time passes */
    const char *words[] = {"ZADD", key, "1", ids[i]};
    const size_t lengths[] = {4, strlen(key), 1, 16};
    assert_true(dibs__redis_put(by_hand, 4, words, lengths));
    bed_go(by_hand);
  }
  acquire(&p, "n", 2, DIBS__QUEUED); /* each check removes the waiter with the oldest sign of life */
  acquire(&p, "n", 2, DIBS__QUEUED);
  snprintf(key, sizeof key, "dibs:{%u}:w:n", bucket);
  assert_int_equal(RUN(by_hand, "HLEN", key)->integer, 1);
  client_close(&p);
}

/* ---- Replicas that are waited for ---- */

static long long changes(void) {
  const char *at = strstr(RUN(by_hand, "INFO", "persistence")->str, "rdb_changes_since_last_save:");
  return at ? atoll(at + strlen("rdb_changes_since_last_save:")) : 0;
}

/* There is no replica, so whatever is done is in doubt. */
static void doubtful(struct dibs__session *session, struct dibs__op *op) {
  struct dibs__result heard;
  op->status = DIBS_UNKNOWN;
  /* WAIT takes half of it, and up to 100 ms more. */
  assert_int_equal(dibs__redis_driver.run(session, &op, 1, within(1500), &heard), DIBS_UNKNOWN);
  assert_int_equal(op->status, DIBS_UNKNOWN);
  assert_non_null(strstr(heard.text, "replicas=1 is required"));
}

/* WAIT counts the replicas that have what its own connection has written: since Redis 7.2 it waits for nothing after a
 * repeat that writes nothing, and the grant of the other connection may be on no replica. */
static void a_repeat_by_another_connection_is_written_again(void **state) {
  (void)state;
  struct client p = client_open_at(bed_with(bed_uri, "replicas=1"), false);
  struct dibs__session *other;
  struct dibs__identity identity;
  assert_int_equal(dibs__redis_driver.connect(p.store, within(LONG_MS), &other, &identity, &p.reported), DIBS_OK);
  for (uint32_t mode = DIBS_EXCLUSIVE; mode <= DIBS_COUNTED; mode++) {
    static const char *const names[] = {"alone", "shared", "counted"};
    struct dibs__lease_op op = lease(&p, DIBS__ACQUIRE, names[mode], 1);
    op.mode = mode;
    op.slots = 2;
    doubtful(p.session, &op.op);
    long long before = changes();
    doubtful(other, &op.op);
    assert_true(changes() > before);
  }
  dibs__redis_driver.disconnect(other);
  client_close(&p);
}

static void a_repeated_addition_that_no_replica_has_is_in_doubt(void **state) {
  (void)state;
  struct client p = client_open_at(bed_with(bed_uri, "replicas=1"), true);
  struct dibs__counter_item item = {.key = dibs__str_of("k", 1), .delta = 3};
  struct dibs__shared_op op = {.op = {.family = DIBS__FAM_SHARED, .verb = DIBS__SHARED_ADD},
                               .space = dibs__str_of("own", 3),
                               .items = &item,
                               .count = 1,
                               .source = id_of(1),
                               .sequence = 1,
                               .fresh = id_of(2),
                               .incarnation = p.identity.mandate.incarnation};
  doubtful(p.session, &op.op);
  long long before = changes();
  doubtful(p.session, &op.op);
  assert_true(changes() > before);
  client_close(&p);
}

/* ---- Foreign keys ---- */

static void foreign_keys_are_unchanged(void **state) {
  (void)state;
  struct client p = client_open(false);
  uint16_t bucket = dibs__bucket(dibs__str_of("n", 1));
  char key[32];
  snprintf(key, sizeof key, "dibs:{%u}:n:n", bucket);
  RUN(by_hand, "RPUSH", key, "x");
  acquire(&p, "n", 1, DIBS_CORRUPT);
  assert_non_null(strstr(p.reported.text, "prefix"));
  assert_int_equal(RUN(by_hand, "LLEN", key)->integer, 1);
  const char *texts[] = {"", "hello", "Xhello", "Qhello"};
  for (size_t i = 0; i < COUNT_OF(texts); i++) {
    RUN(by_hand, "SET", key, texts[i]);
    for (int verb = DIBS__ACQUIRE; verb <= DIBS__BREAK; verb++) {
      struct dibs__lease_op op = lease(&p, (enum dibs__lease_verb)verb, "n", 1);
      send_request(&p, &op, DIBS_CORRUPT);
    }
    assert_string_equal(RUN(by_hand, "GET", key)->str, texts[i]);
  }
  RUN(by_hand, "DEL", key);
  acquire(&p, "n", 1, DIBS_OK);
  snprintf(key, sizeof key, "dibs:{%u}", bucket);
  RUN(by_hand, "SET", key, "hello");
  acquire(&p, "n", 1, DIBS_CORRUPT);
  assert_string_equal(RUN(by_hand, "GET", key)->str, "hello");
  RUN(by_hand, "DEL", key);
  RUN(by_hand, "HSET", key, "a", "b");
  acquire(&p, "n", 1, DIBS_CORRUPT);
  assert_int_equal(RUN(by_hand, "HLEN", key)->integer, 1);
  client_close(&p);
}

static void a_full_server_refuses_grants_and_accepts_releases(void **state) {
  (void)state;
  struct client p = client_open(false);
  struct dibs__lease_op held = acquire(&p, "n", 1, DIBS_OK), out = held, more = lease(&p, DIBS__ACQUIRE, "m", 2);
  struct dibs__op *ops[] = {&out.op, &more.op};
  out.op.verb = DIBS__RELEASE;
  ADMIN("CONFIG", "SET", "maxmemory", "1");
  out.op.status = more.op.status = DIBS_UNKNOWN;
  dibs__status status = dibs__redis_driver.run(p.session, ops, 2, within(LONG_MS), &p.reported);
  ADMIN("CONFIG", "SET", "maxmemory", "0");
  assert_int_equal(status, DIBS_OK);
  assert_int_equal(out.op.status, DIBS_OK);
  assert_int_equal(more.op.status, DIBS_UNAVAILABLE);
  assert_non_null(strstr(p.reported.text, "OOM"));
  /* Alone, too. */
  more.op.status = DIBS_UNKNOWN;
  ADMIN("CONFIG", "SET", "maxmemory", "1");
  (void)dibs__redis_driver.run(p.session, ops + 1, 1, within(LONG_MS), &p.reported);
  ADMIN("CONFIG", "SET", "maxmemory", "0");
  assert_int_equal(more.op.status, DIBS_UNAVAILABLE);
  assert_non_null(strstr(p.reported.text, "OOM"));
  acquire(&p, "n", 3, DIBS_OK);
  client_close(&p);
}

#define CASE(f)                                                                                                        \
  { #f, f, begin, end, NULL }

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      CASE(many_names_leave_no_keys),
      CASE(the_longest_names_fill_a_call),
      CASE(a_held_lease_takes_little_memory),
      CASE(every_key_of_a_queue_expires),
      CASE(fences_do_not_run_ahead_of_the_clock),
      CASE(a_used_up_epoch_grants_nothing),
      CASE(a_flush_removes_the_mandate),
      CASE(no_epoch_is_installed_below_a_granted_fence),
      CASE(forgotten_scripts_are_loaded_again),
      CASE(a_client_that_monitors_is_not_a_live_waiter),
      CASE(a_dead_silent_waiter_is_removed),
      CASE(a_repeat_by_another_connection_is_written_again),
      CASE(a_repeated_addition_that_no_replica_has_is_in_doubt),
      CASE(foreign_keys_are_unchanged),
      CASE(a_full_server_refuses_grants_and_accepts_releases),
      CASE(a_server_that_was_demoted_has_another_incarnation),
      CASE(a_replica_grants_nothing),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
