/* SPDX-License-Identifier: MIT */
/* A Redis Cluster as one store, on the six nodes of script/server/rediscluster. */
#include "bed.h"
#include "drivers/redis/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 32, TTL_MS = 60000 };

struct client {
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;
  dibs__mandate has[DIBS__BUCKETS];
};

static char prefix[32];

static struct client client_open(const char *more) {
  struct client c = {.store = NULL};
  struct dibs__uri uri;
  char text[1024];
  snprintf(text, sizeof text, "%s&prefix=%s%s", bed_uri, prefix, more);
  assert_int_equal(dibs__uri_parse(text, &uri, &c.reported), DIBS_OK);
  dibs__status status = dibs__redis_driver.open(&uri, NULL, 0, within(LONG_MS), &c.store, &c.reported);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  status = dibs__redis_driver.connect(c.store, within(LONG_MS), &c.session, &c.identity, &c.reported);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  for (size_t b = 0; b < DIBS__BUCKETS; b++) c.has[b] = c.identity.mandate;
  return c;
}

static void client_close(struct client *c) {
  dibs__redis_driver.disconnect(c->session);
  dibs__redis_driver.close(c->store);
}

/* The nodes script, with its first line of output as a number (-1: none). */
static int nodes(const char *words) {
  char command[512], line[64] = "";
  snprintf(command, sizeof command, "bash \"$DIBS_TEST_REDIS_NODES\" %s", words);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  bool any = fgets(line, sizeof line, pipe) != NULL;
  while (fgetc(pipe) != EOF) continue;
  if (pclose(pipe) != 0) fail_msg("nodes %s", words);
  return any ? atoi(line) : -1;
}

static void moves(int node, unsigned bucket) {
  char words[64];
  snprintf(words, sizeof words, "move %d %u", node, bucket);
  (void)nodes(words);
}

/* The node, 0 to 5, that has the bucket. */
static int node_of(struct client *c, unsigned bucket) {
  uint16_t of[DIBS__REDIS_PLACES], first = UINT16_MAX;
  struct dibs__redis *store = (struct dibs__redis *)c->store;
  (void)dibs__redis_map_copy(store, of);
  const char *hosts = strchr(bed_uri, '@');
  first = (uint16_t)atoi(strchr(hosts, ':') + 1);
  return dibs__redis_map_node(store, of[bucket])->redis.location->hosts[0].port - first;
}

static int other_master(int than) {
  char list[64] = "";
  FILE *pipe = popen("bash \"$DIBS_TEST_REDIS_NODES\" masters", "r");
  assert_non_null(pipe);
  int found = -1;
  while (fgets(list, sizeof list, pipe))
    if (atoi(list) != than) found = atoi(list);
  (void)pclose(pipe);
  assert_true(found >= 0);
  return found;
}

static struct dibs__lease_op lease(enum dibs__lease_verb verb, const char *name, uint64_t nth) {
  struct dibs__lease_op op = {.op = {.family = DIBS__FAM_LEASE, .verb = (uint16_t)verb},
                              .name = dibs__str_of(name, strlen(name)),
                              .owner = dibs__str_of("test", 4),
                              .ttl_ms = TTL_MS};
  op.op.bucket = dibs__bucket(op.name);
  memcpy(op.id.b, &nth, sizeof nth);
  return op;
}

/* As the core does it: again under the mandate of the answer MOVED, and again if the node failed. */
static dibs__status send(struct client *c, struct dibs__lease_op *op) {
  dibs__tick by = within(LONG_MS);
  dibs__fence fence = op->fence;
  for (;;) {
    struct dibs__op *ops[] = {&op->op};
    op->fence = fence;
    op->op.mandate = c->has[op->op.bucket];
    op->op.status = DIBS_UNKNOWN;
    (void)dibs__redis_driver.run(c->session, ops, 1, within(LONG_MS), &c->reported);
    if (op->op.status == DIBS__MOVED && op->op.has.epoch) {
      c->has[op->op.bucket] = op->op.has;
      continue;
    }
    bool passing = op->op.status == DIBS_UNAVAILABLE || op->op.status == DIBS_UNKNOWN;
    if (!passing || !dibs__tick_before(dibs__tick_now(), by)) return op->op.status;
    dibs__nap_ms(20);
  }
}

static struct dibs__lease_op acquired(struct client *c, const char *name, uint64_t nth) {
  struct dibs__lease_op op = lease(DIBS__ACQUIRE, name, nth);
  if (send(c, &op) != DIBS_OK) fail_msg("%s: %d, %s", name, (int)op.op.status, c->reported.text);
  return op;
}

static dibs__status again(struct client *c, enum dibs__lease_verb verb, const struct dibs__lease_op *held) {
  struct dibs__lease_op op = *held;
  op.op.verb = (uint16_t)verb;
  op.want_block = 0;
  return send(c, &op);
}

static int begin(void **state) {
  (void)state;
  uint32_t draw;
  dibs__random(&draw, sizeof draw);
  snprintf(prefix, sizeof prefix, "t%08" PRIx32, draw);
  return 0;
}

/* After a failed test no node may stay stopped. */
static int end(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    char command[256];
    snprintf(command, sizeof command, "bash \"$DIBS_TEST_REDIS_NODES\" resume %d 2>/dev/null", n);
    (void)!system(command);
  }
  return 0;
}

/* ---- Places ---- */

static void slots_are_those_of_the_server(void **state) {
  (void)state;
  for (unsigned place = 0; place < DIBS__REDIS_PLACES; place += 7) {
    char words[64], tag[16];
    snprintf(tag, sizeof tag, place == DIBS__REDIS_REPORTS ? "reports" : "%u", place);
    snprintf(words, sizeof words, "cli 0 cluster keyslot '{%s}'", tag);
    assert_int_equal(nodes(words), dibs__redis_slot(place));
  }
  assert_int_equal(nodes("cli 0 cluster keyslot '{reports}'"), dibs__redis_slot(DIBS__REDIS_REPORTS));
}

static void a_batch_reaches_all_nodes_and_keeps_its_order(void **state) {
  (void)state;
  enum { COUNT = 600, NAMES = 150 };
  struct client c = client_open("");
  static struct dibs__lease_op ops[COUNT];
  static char names[NAMES][NAME];
  struct dibs__op *list[COUNT];
  for (int i = 0; i < NAMES; i++) snprintf(names[i], NAME, "name-%d", i);
  /* Of each name: acquired, refused to another, released by an unknown client (LOST), acquired by the holder again. */
  for (int i = 0; i < COUNT; i++) {
    static const uint64_t who[] = {1, 2, 3, 1};
    static const enum dibs__lease_verb verbs[] = {DIBS__ACQUIRE, DIBS__ACQUIRE, DIBS__RELEASE, DIBS__ACQUIRE};
    ops[i] = lease(verbs[i / NAMES], names[i % NAMES], who[i / NAMES]);
    ops[i].op.mandate = c.has[0];
    list[i] = &ops[i].op;
  }
  dibs__status status = dibs__redis_driver.run(c.session, list, COUNT, within(LONG_MS), &c.reported);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  for (int i = 0; i < NAMES; i++) {
    assert_int_equal(ops[i].op.status, DIBS_OK);
    assert_int_equal(ops[NAMES + i].op.status, DIBS_HELD);
    assert_int_equal(ops[2 * NAMES + i].op.status, DIBS_LOST);
    assert_int_equal(ops[3 * NAMES + i].op.status, DIBS_OK);
    assert_true(ops[3 * NAMES + i].fence.v == ops[i].fence.v);
  }
  client_close(&c);
}

static void the_longest_names_fill_a_call(void **state) {
  (void)state;
  enum { COUNT = 4 * DIBS__REDIS_CALL };
  struct client c = client_open("");
  static struct dibs__lease_op ops[COUNT];
  static char names[COUNT][DIBS_NAME_MAX + 1];
  struct dibs__op *list[COUNT];
  for (int i = 0; i < COUNT; i++) {
    snprintf(names[i], sizeof names[i], "%0*d", DIBS_NAME_MAX, i);
    ops[i] = lease(DIBS__ACQUIRE, names[i], 1);
    ops[i].op.mandate = c.has[0];
    list[i] = &ops[i].op;
  }
  for (int turn = 0; turn < 2; turn++) { /* acquired, then released */
    dibs__status status = dibs__redis_driver.run(c.session, list, COUNT, within(LONG_MS), &c.reported);
    if (status != DIBS_OK) fail_msg("%s", c.reported.text);
    for (int i = 0; i < COUNT; i++) {
      assert_int_equal(ops[i].op.status, DIBS_OK);
      ops[i].op.verb = DIBS__RELEASE;
    }
  }
  client_close(&c);
}

/* More of one bucket than a call has. */
static void a_batch_of_one_bucket_keeps_its_order(void **state) {
  (void)state;
  enum { COUNT = 999 };
  struct client c = client_open("");
  static struct dibs__lease_op ops[COUNT];
  struct dibs__op *list[COUNT];
  /* Taken by one client, given back by an unknown one (LOST), given back by the first one by its id, and so on. */
  for (int i = 0; i < COUNT; i++) {
    static const enum dibs__lease_verb verbs[] = {DIBS__ACQUIRE, DIBS__RELEASE, DIBS__CANCEL};
    ops[i] = lease(verbs[i % 3], "one", i % 3 == 1 ? 999999 : (uint64_t)(i / 3) + 1);
    ops[i].op.mandate = c.has[0];
    list[i] = &ops[i].op;
  }
  dibs__status status = dibs__redis_driver.run(c.session, list, COUNT, within(LONG_MS), &c.reported);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  for (int i = 0; i < COUNT; i++) assert_int_equal(ops[i].op.status, i % 3 == 1 ? DIBS_LOST : DIBS_OK);
  client_close(&c);
}

/* ---- Slots that move ---- */

static void a_holder_keeps_its_lease_when_its_slot_moves(void **state) {
  (void)state;
  struct client c = client_open(""), d = client_open("");
  struct dibs__lease_op held = acquired(&c, "page", 1);
  unsigned bucket = held.op.bucket;
  int from = node_of(&c, bucket), to = other_master(from);
  moves(to, bucket);
  struct dibs__lease_op other = lease(DIBS__ACQUIRE, "page", 2);
  assert_int_equal(send(&d, &other), DIBS_HELD);
  assert_int_equal(again(&c, DIBS__RENEW, &held), DIBS_OK);
  assert_int_equal(node_of(&c, bucket), to);
  assert_int_equal(again(&c, DIBS__RELEASE, &held), DIBS_OK);
  other = acquired(&d, "page", 2);
  assert_true(other.fence.v > held.fence.v);
  moves(from, bucket);
  assert_int_equal(again(&d, DIBS__RELEASE, &other), DIBS_OK);
  struct dibs__lease_op last = acquired(&c, "page", 3);
  assert_true(last.fence.v > other.fence.v);
  client_close(&c);
  client_close(&d);
}

/* In the middle of a move some keys of the queue are here and some there. */
static void nothing_is_done_while_a_slot_moves(void **state) {
  (void)state;
  struct client c = client_open(""), d = client_open("");
  struct dibs__lease_op first = acquired(&c, "half", 9); /* its fence: the bucket has a key */
  assert_int_equal(again(&c, DIBS__RELEASE, &first), DIBS_OK);
  struct dibs__lease_op held = lease(DIBS__ACQUIRE, "half", 1);
  held.mode = DIBS_SHARED;
  assert_int_equal(send(&c, &held), DIBS_OK);
  struct dibs__lease_op waits = lease(DIBS__ACQUIRE, "half", 2);
  waits.queue = true;
  assert_int_equal(send(&d, &waits), DIBS__QUEUED);
  unsigned bucket = held.op.bucket;
  int from = node_of(&c, bucket), to = other_master(from);
  char words[512];
  for (int i = 0; i < 4; i++) {
    /* First its holders have moved, and the bucket and the head of its queue have not; then these have, too. */
    if (i % 2 == 0) {
      snprintf(words, sizeof words,
               i ? "half %d %d %u '%s:{%u}' '%s:{%u}:n:half'" : "half %d %d %u '%s:{%u}:h:half' '%s:{%u}:u:half'", from,
               to, bucket, prefix, bucket, prefix, bucket);
      (void)nodes(words);
    }
    struct dibs__lease_op op = i % 2 ? held : lease(DIBS__ACQUIRE, "half", 3);
    if (i % 2) op.op.verb = DIBS__RELEASE;
    struct dibs__op *ops[] = {&op.op};
    op.op.mandate = c.has[bucket];
    op.op.status = DIBS_UNKNOWN;
    assert_int_equal(dibs__redis_driver.run(c.session, ops, 1, within(LONG_MS), &c.reported), DIBS_UNAVAILABLE);
    assert_int_equal(op.op.status, DIBS_UNAVAILABLE);
    if (!strstr(c.reported.text, "a slot is being moved")) fail_msg("%s", c.reported.text);
  }
  snprintf(words, sizeof words, "finish %d %d %u", from, to, bucket);
  (void)nodes(words);
  struct dibs__lease_op more = waits;
  more.op.verb = DIBS__ACQUIRE;
  assert_int_equal(send(&d, &more), DIBS__QUEUED);
  assert_int_equal(more.ticket, waits.ticket);
  assert_int_equal(again(&c, DIBS__RELEASE, &held), DIBS_OK);
  assert_int_equal(send(&d, &waits), DIBS_OK);
  client_close(&c);
  client_close(&d);
}

/* Renews the leases in one batch; under another node's mandate again, one by one. */
static void renew_together(struct client *c, struct dibs__lease_op held[], size_t count) {
  struct dibs__op *ops[8];
  assert_true(count <= sizeof ops / sizeof *ops);
  for (size_t i = 0; i < count; i++) {
    held[i].op.verb = DIBS__RENEW;
    held[i].want_block = 0;
    held[i].op.mandate = c->has[held[i].op.bucket];
    held[i].op.status = DIBS_UNKNOWN;
    ops[i] = &held[i].op;
  }
  (void)dibs__redis_driver.run(c->session, ops, count, within(LONG_MS), &c->reported);
  for (size_t i = 0; i < count; i++) {
    if (held[i].op.status != DIBS__MOVED) continue;
    c->has[held[i].op.bucket] = held[i].op.has;
    (void)send(c, &held[i]);
  }
}

/* Leases on names in different buckets of one node, the lowest bucket first: that one is the key of their call. */
static int acquire_beside_each_other(struct client *c, struct dibs__lease_op held[], char names[][NAME], size_t count) {
  int node = -1;
  size_t found = 0;
  for (unsigned bucket = 0; bucket < DIBS__BUCKETS && found < count; bucket++) {
    if (node >= 0 && node_of(c, bucket) != node) continue;
    for (int i = 0;; i++) {
      snprintf(names[found], NAME, "beside-%d", i);
      if (dibs__bucket(dibs__str_of(names[found], strlen(names[found]))) == bucket) break;
    }
    held[found] = acquired(c, names[found], found + 1);
    node = node_of(c, bucket);
    found++;
  }
  assert_int_equal(found, count);
  return node;
}

static void a_bucket_that_moves_does_not_hold_up_those_beside_it(void **state) {
  (void)state;
  enum { COUNT = 4 };
  struct client c = client_open("");
  struct dibs__lease_op held[COUNT];
  char names[COUNT][NAME], words[512];
  int from = acquire_beside_each_other(&c, held, names, COUNT), to = other_master(from);
  renew_together(&c, held, COUNT);
  assert_int_equal(c.reported.commits, 1); /* in one call */
  static const int moved[] = {2, 0};       /* beside another bucket; the first of the call */
  for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
    moves(to, held[moved[i]].op.bucket);
    renew_together(&c, held, COUNT);
    for (size_t k = 0; k < COUNT; k++) assert_int_equal(held[k].op.status, DIBS_OK);
    assert_int_equal(node_of(&c, held[moved[i]].op.bucket), to);
    dibs__nap_ms(1100); /* for so long each bucket has calls of its own */
  }
  unsigned bucket = held[3].op.bucket;
  snprintf(words, sizeof words, "half %d %d %u '%s:{%u}'", from, to, bucket, prefix, bucket);
  (void)nodes(words);
  for (int i = 0; i < 2; i++) {
    renew_together(&c, held, COUNT);
    for (size_t k = 0; k < COUNT; k++) assert_int_equal(held[k].op.status, k == 3 ? DIBS_UNAVAILABLE : DIBS_OK);
    assert_non_null(strstr(c.reported.text, "a slot is being moved"));
  }
  snprintf(words, sizeof words, "finish %d %d %u", from, to, bucket);
  (void)nodes(words);
  for (size_t k = 0; k < COUNT; k++) {
    assert_int_equal(again(&c, DIBS__RENEW, &held[k]), DIBS_OK);
    assert_int_equal(again(&c, DIBS__RELEASE, &held[k]), DIBS_OK);
  }
  client_close(&c);
}

static void a_waiter_is_notified_at_the_node_where_its_queue_is_now(void **state) {
  (void)state;
  struct client c = client_open(""), d = client_open("");
  struct dibs__lease_op held = acquired(&c, "call", 1), waits = lease(DIBS__ACQUIRE, "call", 2);
  struct dibs__event events[8];
  size_t count = 0;
  waits.queue = true;
  assert_int_equal(send(&d, &waits), DIBS__QUEUED);
  /* The thread in events() listens at all masters, before the queue moves to another one. */
  for (int i = 0; i < 5; i++)
    assert_int_equal(dibs__redis_driver.events(d.store, events, 8, &count, within(50)), DIBS_OK);
  moves(other_master(node_of(&c, held.op.bucket)), held.op.bucket);
  assert_int_equal(again(&c, DIBS__RELEASE, &held), DIBS_OK);
  dibs__tick by = within(LONG_MS);
  bool offered = false;
  while (!offered) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    assert_int_equal(dibs__redis_driver.events(d.store, events, 8, &count, within(200)), DIBS_OK);
    for (size_t i = 0; i < count; i++)
      offered = offered || (events[i].what == DIBS__EV_OFFER && dibs__id_equal(events[i].id, waits.id));
  }
  assert_int_equal(send(&d, &waits), DIBS_OK);
  client_close(&c);
  client_close(&d);
}

static int see(const struct dibs__lease_row *row, void *user) {
  char *last = user;
  char name[NAME];
  snprintf(name, sizeof name, "%.*s", (int)row->name.len, row->name.p);
  assert_true(strcmp(last, name) < 0); /* in order, and each once */
  snprintf(last, NAME, "%s", name);
  last[NAME]++;
  return 0;
}

static void a_listing_has_each_holder_once_while_slots_move(void **state) {
  (void)state;
  enum { COUNT = 100, ROUNDS = 6 };
  struct client c = client_open("");
  for (int i = 0; i < COUNT; i++) {
    char name[NAME];
    snprintf(name, sizeof name, "row-%03d", i);
    (void)acquired(&c, name, (uint64_t)i + 1);
  }
  unsigned bucket = dibs__bucket(dibs__str_of("row-050", 7));
  char words[64];
  snprintf(words, sizeof words, "shuttle %u", bucket);
  char command[512];
  snprintf(command, sizeof command, "bash \"$DIBS_TEST_REDIS_NODES\" %s", words);
  FILE *mover = popen(command, "r");
  assert_non_null(mover);
  for (int i = 0; i < ROUNDS; i++) {
    char last[NAME + 1] = "";
    struct dibs__list list = {.row = see, .user = last};
    dibs__status status = dibs__redis_driver.list(c.session, &list, within(LONG_MS), &c.reported);
    if (status != DIBS_OK) fail_msg("%s", c.reported.text);
    assert_int_equal(last[NAME], COUNT);
  }
  assert_int_equal(pclose(mover), 0);
  client_close(&c);
}

/* ---- Nodes that fail ---- */

static void a_node_that_hangs_does_not_delay_the_others(void **state) {
  (void)state;
  struct client c = client_open("");
  struct dibs__lease_op hangs = acquired(&c, "hangs", 1);
  int node = node_of(&c, hangs.op.bucket);
  char name[NAME], words[32];
  for (int i = 0;; i++) {
    snprintf(name, sizeof name, "works-%d", i);
    if (node_of(&c, dibs__bucket(dibs__str_of(name, strlen(name)))) != node) break;
  }
  struct dibs__lease_op works = acquired(&c, name, 2);
  snprintf(words, sizeof words, "pause %d", node);
  (void)nodes(words);
  struct dibs__op *ops[] = {&hangs.op, &works.op};
  hangs.op.verb = works.op.verb = DIBS__RENEW;
  int quick = 0;
  for (int i = 0; i < 4; i++) {
    hangs.op.mandate = c.has[hangs.op.bucket], works.op.mandate = c.has[works.op.bucket];
    hangs.op.status = works.op.status = DIBS_UNKNOWN;
    dibs__tick began = dibs__tick_now();
    (void)dibs__redis_driver.run(c.session, ops, 2, within(300), &c.reported);
    assert_int_equal(works.op.status, DIBS_OK);
    assert_true(hangs.op.status == DIBS_UNAVAILABLE || hangs.op.status == DIBS_UNKNOWN);
    quick += dibs__tick_left_ms(began, dibs__tick_now()) < 250;
  }
  snprintf(words, sizeof words, "resume %d", node);
  (void)nodes(words);
  assert_true(quick > 0); /* once it was late, it is left alone for a while */
  (void)nodes("whole");
  assert_int_equal(again(&c, DIBS__RENEW, &works), DIBS_OK);
  client_close(&c);
}

static void a_connection_that_was_closed_while_idle_is_made_again(void **state) {
  (void)state;
  struct client c = client_open("");
  struct dibs__lease_op held = acquired(&c, "idle", 1);
  struct dibs__op *ops[] = {&held.op};
  char words[64];
  snprintf(words, sizeof words, "cli %d client kill type normal", node_of(&c, held.op.bucket));
  (void)nodes(words);
  held.op.verb = DIBS__RENEW;
  held.op.mandate = c.has[held.op.bucket];
  held.op.status = DIBS_UNKNOWN;
  dibs__status status = dibs__redis_driver.run(c.session, ops, 1, within(LONG_MS), &c.reported);
  if (status != DIBS_OK) fail_msg("%s", c.reported.text);
  assert_int_equal(held.op.status, DIBS_OK);
  client_close(&c);
}

static void a_grant_that_no_replica_has_is_in_doubt(void **state) {
  (void)state;
  struct client c = client_open("&replicas=1"), plain = client_open("");
  struct dibs__lease_op held = acquired(&c, "copied", 1);
  assert_false(c.identity.caps & DIBS__CAP_OFFERS_LAST);
  int node = node_of(&c, held.op.bucket);
  char words[64];
  snprintf(words, sizeof words, "replica %d", node);
  int replica = nodes(words);
  snprintf(words, sizeof words, "pause %d", replica);
  (void)nodes(words);
  struct dibs__op *ops[] = {&held.op};
  held.op.verb = DIBS__RENEW;
  held.op.mandate = c.has[held.op.bucket];
  held.op.status = DIBS_UNKNOWN;
  assert_int_equal(dibs__redis_driver.run(c.session, ops, 1, within(1500), &c.reported), DIBS_UNKNOWN);
  assert_int_equal(held.op.status, DIBS_UNKNOWN);
  assert_non_null(strstr(c.reported.text, "replicas=1 is required"));
  struct dibs__lease_op other = held; /* without the parameter Redis answers at once */
  assert_int_equal(again(&plain, DIBS__RENEW, &other), DIBS_OK);
  snprintf(words, sizeof words, "resume %d", replica);
  (void)nodes(words);
  (void)nodes("whole");
  assert_int_equal(again(&c, DIBS__RENEW, &held), DIBS_OK);
  client_close(&c);
  client_close(&plain);
}

/* The repeat comes by another connection of the same store, which has written nothing yet. */
static void a_repeat_of_a_grant_that_no_replica_has_is_in_doubt(void **state) {
  (void)state;
  struct client c = client_open("&replicas=1");
  struct dibs__session *other;
  struct dibs__identity identity;
  assert_int_equal(dibs__redis_driver.connect(c.store, within(LONG_MS), &other, &identity, &c.reported), DIBS_OK);
  struct dibs__lease_op probe = acquired(&c, "doubtful", 1); /* the bucket's mandate is known now */
  assert_int_equal(again(&c, DIBS__RELEASE, &probe), DIBS_OK);
  char words[64];
  snprintf(words, sizeof words, "replica %d", node_of(&c, probe.op.bucket));
  int replica = nodes(words);
  snprintf(words, sizeof words, "pause %d", replica);
  (void)nodes(words);
  struct dibs__session *const by[] = {c.session, other};
  struct dibs__lease_op op = lease(DIBS__ACQUIRE, "doubtful", 2);
  struct dibs__op *ops[] = {&op.op};
  for (size_t i = 0; i < 2; i++) {
    op.op.mandate = c.has[op.op.bucket];
    op.op.status = DIBS_UNKNOWN;
    (void)dibs__redis_driver.run(by[i], ops, 1, within(1500), &c.reported);
    assert_int_equal(op.op.status, DIBS_UNKNOWN);
    assert_non_null(strstr(c.reported.text, "replicas=1 is required"));
  }
  snprintf(words, sizeof words, "resume %d", replica);
  (void)nodes(words);
  (void)nodes("whole");
  assert_int_equal(again(&c, DIBS__ACQUIRE, &op), DIBS_OK);
  dibs__redis_driver.disconnect(other);
  client_close(&c);
}

static void a_holder_keeps_its_lease_when_a_replica_takes_over(void **state) {
  (void)state;
  struct client c = client_open("&replicas=1"), d = client_open("&replicas=1");
  struct dibs__lease_op held = acquired(&c, "survives", 1);
  int node = node_of(&c, held.op.bucket);
  char words[64];
  snprintf(words, sizeof words, "kill %d", node);
  (void)nodes(words);
  struct dibs__lease_op other = lease(DIBS__ACQUIRE, "survives", 2);
  assert_int_equal(send(&d, &other), DIBS_HELD); /* after some seconds without an answer */
  assert_int_not_equal(node_of(&d, held.op.bucket), node);
  snprintf(words, sizeof words, "start %d", node); /* the new master needs a replica of its own again */
  (void)nodes(words);
  (void)nodes("whole");
  assert_int_equal(again(&c, DIBS__RENEW, &held), DIBS_OK);
  assert_int_equal(again(&c, DIBS__RELEASE, &held), DIBS_OK);
  other = acquired(&d, "survives", 2);
  assert_true(other.fence.v > held.fence.v);
  client_close(&c);
  client_close(&d);
}

/* ---- Refusals ---- */

static void locations_that_do_not_fit_are_refused(void **state) {
  (void)state;
  bed_refused("redis://a,b", DIBS_INVALID, "for a Redis Cluster, cluster=1");
  bed_refused("redis://a/2?cluster=1", DIBS_INVALID, "does not go with a database");
  bed_refused("redis://a?cluster=1&sentinel=main", DIBS_INVALID, "does not go with sentinel=");
  bed_refused("redis:///?socket=/tmp/x&cluster=1", DIBS_INVALID, "does not go with socket=");
  bed_refused("redis://a?cluster=2", DIBS_INVALID, "cluster");
  char text[1024];
  snprintf(text, sizeof text, "%.*s", (int)strcspn(bed_uri, "?"), bed_uri);
  *strchr(text, ',') = '\0';
  bed_refused(text, DIBS_UNSUPPORTED, "is a node of a Redis Cluster: add cluster=1");
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(slots_are_those_of_the_server, begin, end),
      cmocka_unit_test_setup_teardown(a_batch_reaches_all_nodes_and_keeps_its_order, begin, end),
      cmocka_unit_test_setup_teardown(a_batch_of_one_bucket_keeps_its_order, begin, end),
      cmocka_unit_test_setup_teardown(the_longest_names_fill_a_call, begin, end),
      cmocka_unit_test_setup_teardown(a_holder_keeps_its_lease_when_its_slot_moves, begin, end),
      cmocka_unit_test_setup_teardown(nothing_is_done_while_a_slot_moves, begin, end),
      cmocka_unit_test_setup_teardown(a_bucket_that_moves_does_not_hold_up_those_beside_it, begin, end),
      cmocka_unit_test_setup_teardown(a_waiter_is_notified_at_the_node_where_its_queue_is_now, begin, end),
      cmocka_unit_test_setup_teardown(a_listing_has_each_holder_once_while_slots_move, begin, end),
      cmocka_unit_test_setup_teardown(a_node_that_hangs_does_not_delay_the_others, begin, end),
      cmocka_unit_test_setup_teardown(a_connection_that_was_closed_while_idle_is_made_again, begin, end),
      cmocka_unit_test_setup_teardown(a_grant_that_no_replica_has_is_in_doubt, begin, end),
      cmocka_unit_test_setup_teardown(a_repeat_of_a_grant_that_no_replica_has_is_in_doubt, begin, end),
      cmocka_unit_test_setup_teardown(a_holder_keeps_its_lease_when_a_replica_takes_over, begin, end),
      cmocka_unit_test_setup_teardown(locations_that_do_not_fit_are_refused, begin, end),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests_name("redis cluster", tests, NULL, NULL);
}
