/* SPDX-License-Identifier: MIT */
/* Nodes that are killed, paused, emptied, slow or skewed, one or two of three: what is granted and what is not. */
#include "bed.h"
#include "fault/proxy.h"

#include <stdio.h>
#include <string.h>

enum { LONG_MS = 20000 };

static void expect_no_quorum(const struct answer *a, const char *how_many) {
  assert_string_equal(status_name(a->op.op.status), status_name(DIBS_UNAVAILABLE));
  assert_int_equal(a->run, DIBS_UNAVAILABLE);
  if (!strstr(a->reported.text, how_many)) fail_msg("\"%s\" does not say %s", a->reported.text, how_many);
  assert_null(strstr(a->reported.text, "dibs-secret"));
}

static bool names_node(const struct answer *a, size_t node) {
  char port[16];
  snprintf(port, sizeof port, ":%u", (unsigned)node_port(node));
  return strstr(a->reported.text, port) != NULL;
}

/* ---- Unreachable nodes ---- */

static void a_missing_node_changes_nothing(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "", NULL)), *q = party_at(quorum(3, "", NULL));
  struct dibs__lease_op held = take(p, "n", 1);
  expect(held, DIBS_OK);
  node_kill(2);
  expect(keep_on(p, "n", 1, held.fence), DIBS_OK);
  expect(take(q, "n", 2, .try_only = true), DIBS_HELD);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op next = take(q, "n", 2, .try_only = true);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, next.fence));
}

static void two_of_five_nodes_may_be_missing(void **state) {
  (void)state;
  struct party *p = party_at(quorum(5, "", NULL)), *q = party_at(quorum(5, "", NULL));
  struct dibs__lease_op held = take(p, "n", 1);
  node_kill(0);
  node_kill(3);
  expect(keep_on(p, "n", 1, held.fence), DIBS_OK);
  expect(take(q, "n", 2, .try_only = true), DIBS_HELD);
  node_kill(4);
  struct answer a = request_for(q, "n", 2);
  expect_no_quorum(&a, "no quorum: 2 of 5");
}

static void busy_differs_from_no_quorum(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "", NULL)), *q = party_at(quorum(3, "", NULL));
  struct dibs__lease_op held = take(p, "n", 1);
  struct answer a = request_for(q, "n", 2);
  assert_int_equal(a.run, DIBS_OK);
  expect(a.op, DIBS_HELD);
  node_kill(2);
  a = request_for(q, "n", 2);
  assert_int_equal(a.run, DIBS_OK);
  expect(a.op, DIBS_HELD);
  node_kill(1);
  const char *names[] = {"n", "other"};
  for (size_t i = 0; i < 2; i++) {
    a = request_for(q, names[i], 2);
    expect_no_quorum(&a, "no quorum: 1 of 3");
    assert_true(names_node(&a, 1) && names_node(&a, 2) && !names_node(&a, 0));
  }
  a = send_request(p, DIBS__RENEW, "n", 1, held.fence, (struct how){.mode = 0});
  /* They may have happened: the answer is UNKNOWN. */
  assert_int_equal(a.run, DIBS_UNKNOWN);
  expect(a.op, DIBS_UNKNOWN);
  a = send_request(p, DIBS__RELEASE, "n", 1, held.fence, (struct how){.mode = 0});
  assert_int_equal(a.run, DIBS_UNKNOWN);
  expect(a.op, DIBS_UNKNOWN);
}

static void a_store_without_a_quorum_does_not_open(void **state) {
  (void)state;
  struct dibs__uri uri;
  struct dibs__chain chain;
  struct dibs__result reported = {0};
  struct dibs__session *session;
  struct dibs__identity identity;
  node_kill(0);
  node_kill(1);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  assert_int_equal(dibs__uri_parse(quorum(3, "", NULL), &uri, &reported), DIBS_OK);
  assert_int_equal(dibs__chain_open(&uri, NULL, by, &chain, &reported), DIBS_OK);
  const struct dibs__driver *driver = chain.stores[0]->driver;
  assert_int_equal(driver->connect(chain.stores[0], by, &session, &identity, &reported), DIBS_UNAVAILABLE);
  assert_non_null(strstr(reported.text, "no quorum: 1 of 3"));
  node_start(0);
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  while (driver->connect(chain.stores[0], until, &session, &identity, &reported) != DIBS_OK) {
    assert_true(dibs__tick_before(dibs__tick_now(), until));
    dibs__nap_ms(5);
  }
  driver->disconnect(session);
  dibs__chain_close(&chain);
  dibs__uri_free(&uri);
}

static void a_paused_node_costs_one_timeout(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&node_timeout=300", NULL));
  struct dibs__lease_op held = take(p, "n", 1);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  node_pause(1);
  struct answer a = request_for(p, "n", 2);
  expect(a.op, DIBS_OK);
  assert_true(a.took_ms >= 290);
  struct answer b = request_for(p, "m", 2);
  expect(b.op, DIBS_OK);
  assert_true(b.took_ms < 290);
  expect(release(p, "n", 2, a.op.fence), DIBS_OK);
  /* The node counts again when it continues: without it there would be no majority. */
  node_resume(1);
  node_pause(2);
  (void)granted_at_last(p, "o", 3, 60000);
  assert_true(node_say(1, "EXISTS %s", key_of("o")) == 1);
}

/* All nodes have the request, and carry it out when they continue. */
static void what_no_node_answers_is_unknown(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "", NULL));
  struct dibs__lease_op held = take(p, "n", 1);
  for (size_t node = 0; node < 3; node++) node_pause(node);
  struct answer a = send_request(p, DIBS__RENEW, "n", 1, held.fence, (struct how){.ttl = 1000});
  for (size_t node = 0; node < 3; node++) node_resume(node);
  assert_string_equal(status_name(a.op.op.status), status_name(DIBS_UNKNOWN));
}

static void a_refused_request_leaves_nothing(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&node_timeout=300", NULL));
  expect(take(p, "warm", 9), DIBS_OK);
  node_pause(2);
  expect(take(p, "n", 1), DIBS_OK);
  node_resume(2);
  node_say(2, "DEL %s", key_of("n")); /* sent while it was paused */
  struct party *q = party_at(quorum(3, "&node_timeout=300", NULL));
  for (int i = 0; i < 3; i++) expect(take(q, "n", 2, .try_only = true), DIBS_HELD);
  assert_int_equal(node_say(2, "EXISTS %s", key_of("n")), 0);
  expect(keep_on(p, "n", 1, take(p, "n", 1).fence), DIBS_OK);
}

/* ---- Nodes that lost their memory ---- */

static void an_emptied_node_does_not_count_while_earlier_leases_may_live(void **state) {
  (void)state;
  const char *uri = "&max_ttl=2500";
  struct party *p = party_at(quorum(3, uri, NULL));
  struct dibs__lease_op warm = acquire(p, "n", 7, .ttl = 2000);
  expect(release(p, "n", 7, warm.fence), DIBS_OK);
  node_kill(2);
  struct dibs__lease_op held = acquire(p, "n", 1, .ttl = 2000);
  expect(held, DIBS_OK);
  node_start(2); /* never had the lease */
  node_kill(0);
  node_start(0); /* has forgotten the lease */
  struct party *q = party_at(quorum(3, uri, NULL));
  struct answer a = request_for(q, "n", 2, .ttl = 1000);
  expect_no_quorum(&a, "lost its memory");
  assert_true(names_node(&a, 0) && names_node(&a, 2) && !names_node(&a, 1));
  struct dibs__lease_op next = granted_at_last(q, "n", 2, 1000);
  assert_true(now_ms() >= held.until.ms);
  assert_true(dibs__fence_below(held.fence, next.fence));
}

static void a_flushed_node_counts_as_emptied(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&max_ttl=1000", NULL));
  expect(acquire(p, "n", 1, .ttl = 800), DIBS_OK);
  int64_t began = now_ms();
  node_say(0, "FLUSHDB");
  node_say(1, "FLUSHDB");
  struct answer a = request_for(p, "n", 2, .ttl = 100);
  assert_int_not_equal(a.op.op.status, DIBS_OK);
  granted_at_last(p, "m", 3, 1000);
  assert_true(now_ms() - began >= 1000);
}

static void a_renewal_restores_the_lease_on_emptied_nodes(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&max_ttl=60000", NULL)), *q = party_at(quorum(3, "&max_ttl=60000", NULL));
  struct dibs__lease_op held = acquire(p, "n", 1, .ttl = 30000, .owner = "anna");
  for (size_t i = 0; i < 3; i++) {
    node_kill(i);
    node_start(i);
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
    do {
      assert_true(dibs__tick_before(dibs__tick_now(), by));
      expect(renew(p, "n", 1, held.fence, .ttl = 30000), DIBS_OK);
    } while (node_say(i, "EXISTS %s", key_of("n")) != 1);
  }
  expect(take(q, "n", 2, .try_only = true), DIBS_HELD);
  struct seen seen = list_name(q, "n");
  assert_int_equal(seen.count, 1);
  assert_string_equal(seen.rows[0].owner, "anna");
  assert_int_equal(seen.rows[0].row.fence.v, held.fence.v);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  for (size_t i = 0; i < 3; i++) assert_int_equal(node_say(i, "EXISTS %s", key_of("n")), 0);
}

/* A node that missed a draw still knows the lease, and a node with an older block does not confirm the newer one. */
static void blocks_drawn_while_a_node_is_unreachable(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&node_timeout=300", NULL));
  struct dibs__lease_op held = take(p, "n", 1, .block = 4);
  assert_int_equal(held.got_block, 4);
  dibs__fence last = held.fence;
  for (size_t i = 0; i < 3; i++) {
    node_pause(i);
    struct dibs__lease_op drawn = keep_on(p, "n", 1, last, .block = 8);
    expect(drawn, DIBS_OK);
    assert_int_equal(drawn.got_block, 8);
    assert_true(drawn.fence.v >= last.v + 4);
    last = drawn.fence;
    node_resume(i);
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
    do {
      assert_true(dibs__tick_before(dibs__tick_now(), by));
      expect(keep_on(p, "n", 1, (dibs__fence){last.v + 7}), DIBS_OK);
    } while (node_say(i, "HGET %s f", key_of("n")) != (int64_t)last.v);
  }
  expect(release(p, "n", 1, (dibs__fence){last.v + 8}), DIBS_LOST);
  expect(release(p, "n", 1, (dibs__fence){last.v + 7}), DIBS_OK);
  struct dibs__lease_op next = take(p, "n", 2);
  assert_true(next.fence.v >= last.v + 8);
}

/* ---- Fences ---- */

static void fences_grow_across_majorities_that_share_one_node(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&node_timeout=300", NULL));
  struct dibs__lease_op op = take(p, "n", 1);
  expect(release(p, "n", 1, op.fence), DIBS_OK);
  dibs__fence last = op.fence;
  for (size_t round = 0; round < 3; round++) {
    size_t ahead = round % 3, away = (round + 1) % 3;
    /* One node has seen larger fences than the others: they learn them only when the fence is written back. */
    uint64_t server = last.v + UINT64_C(1000000000000);
    node_say(ahead, "SET %s %llu", bucket_key_of("n"), (unsigned long long)server);
    node_pause(away);
    op = granted_at_last(p, "n", 1, 60000);
    assert_true(op.fence.v > server);
    expect(release(p, "n", 1, op.fence), DIBS_OK);
    last = op.fence;
    node_resume(away);
    node_say(away, "DEL %s", key_of("n"));
    node_pause(ahead);
    op = granted_at_last(p, "n", 2, 60000);
    if (!dibs__fence_below(last, op.fence)) fail_msg("round %zu: the fence decreased", round);
    expect(release(p, "n", 2, op.fence), DIBS_OK);
    last = op.fence;
    node_resume(ahead);
    node_say(ahead, "DEL %s", key_of("n"));
  }
}

/* ---- Time ---- */

static void nodes_hold_a_lease_longer_than_the_client(void **state) {
  (void)state;
  enum { TTL = 20000, DRIFT = 200 };
  struct party *p = party_at(quorum(3, "", NULL));
  struct dibs__lease_op held = acquire(p, "n", 1, .ttl = TTL);
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < 3; i++) {
      int64_t left = node_say(i, "PTTL %s", key_of("n"));
      if (left + now_ms() < held.until.ms + DRIFT)
        fail_msg("node %zu ends the lease %lld ms after the client", i, (long long)(left + now_ms() - held.until.ms));
    }
    held = renew(p, "n", 1, held.fence, .ttl = TTL);
    expect(held, DIBS_OK);
  }
}

static struct proxied *before(size_t node, uint16_t *port) {
  char to[32], why[PROXY_WHY] = "";
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)node_port(node));
  struct proxied *proxied = proxied_start(&(struct proxy_options){.to = to, .protocol = FRAME_REDIS}, why);
  if (!proxied) fail_msg("%s", why);
  *port = proxied_port(proxied);
  return proxied;
}

static void say(struct proxied *proxied, const char *line) {
  char answer[PROXY_LINE];
  if (!proxied_say(proxied, line, answer)) fail_msg("%s: %s", line, answer);
}

static void a_grant_that_arrives_too_late_is_not_used(void **state) {
  (void)state;
  uint16_t ports[3];
  struct proxied *proxies[3];
  for (size_t i = 0; i < 3; i++) proxies[i] = before(i, &ports[i]);
  struct party *p = party_at(quorum(3, "", ports));
  expect(take(p, "warm", 1), DIBS_OK);
  for (size_t i = 0; i < 3; i++) say(proxies[i], "delay 60"); /* a round takes 120 ms */
  struct answer a = request_for(p, "n", 1, .ttl = 100);
  assert_int_not_equal(a.op.op.status, DIBS_OK);
  a = request_for(p, "m", 1, .ttl = 5000);
  expect(a.op, DIBS_OK);
  /* Counted from before the request. */
  assert_int_equal(a.op.until.ms, a.reported.now.ms + 5000);
  assert_true(now_ms() - a.reported.now.ms >= 120);
  close_party(p);
  for (size_t i = 0; i < 3; i++) proxied_stop(proxies[i]);
}

static void a_slow_node_is_not_waited_for(void **state) {
  (void)state;
  uint16_t ports[3] = {0, node_port(1), node_port(2)};
  struct proxied *slow = before(0, &ports[0]);
  struct party *p = party_at(quorum(3, "&node_timeout=300", ports));
  expect(take(p, "warm", 1), DIBS_OK);
  say(slow, "delay 2000");
  struct answer a = request_for(p, "n", 1);
  expect(a.op, DIBS_OK);
  assert_true(a.took_ms < 2000);
  say(slow, "pass");
  close_party(p);
  proxied_stop(slow);
}

/* The answer of one node is lost with the connection, after the node did the request. */
static void the_effect_of_a_lost_answer_is_found(void **state) {
  (void)state;
  uint16_t ports[3] = {0, 0, node_port(2)};
  struct proxied *proxies[2] = {before(0, &ports[0]), before(1, &ports[1])};
  struct party *p = party_at(quorum(3, "", ports));
  expect(take(p, "warm", 1), DIBS_OK);
  for (size_t i = 0; i < 2; i++) say(proxies[i], "cut-after-request n:");
  struct answer a = request_for(p, "n", 1);
  expect_no_quorum(&a, "no quorum: 1 of 3");
  struct dibs__lease_op got = granted_at_last(p, "n", 1, LONG_TTL), again = granted_at_last(p, "n", 1, LONG_TTL);
  assert_int_equal(got.fence.v, again.fence.v);
  expect(release(p, "n", 1, got.fence), DIBS_OK);
  close_party(p);
  for (size_t i = 0; i < 2; i++) proxied_stop(proxies[i]);
}

/* ---- The mandate of the nodes ---- */

static void a_new_store_begins_at_once(void **state) {
  (void)state;
  struct answer a = request_for(party_at(quorum(3, "&retries=0", NULL)), "n", 1);
  expect(a.op, DIBS_OK);
}

static void begun_by(size_t node, const char *name, const char *id, int ms) {
  node_say(node, "HSET %s id %s f 0 g 0 n 0 x 0 o x l 1 u x p 1 s 1", key_of(name), id);
  node_say(node, "PEXPIRE %s %d", key_of(name), ms);
}

static void a_split_vote_is_repeated(void **state) {
  (void)state;
  struct party *p = party_at(quorum(3, "&retries=12&node_timeout=500", NULL));
  expect(take(p, "warm", 9), DIBS_OK);
  begun_by(0, "n", "aaaaaaaaaaaaaaaa", 40);
  begun_by(1, "n", "bbbbbbbbbbbbbbbb", 40);
  struct answer a = request_for(p, "n", 1);
  expect(a.op, DIBS_OK);
  /* Nodes that do not agree are busy, not unreachable. */
  begun_by(0, "m", "aaaaaaaaaaaaaaaa", 60000);
  begun_by(1, "m", "bbbbbbbbbbbbbbbb", 60000);
  a = request_for(p, "m", 1);
  assert_int_equal(a.run, DIBS_OK);
  expect(a.op, DIBS_HELD);
  assert_int_equal(node_say(2, "EXISTS %s", key_of("m")), 0);
}

/* ---- Refusals ---- */

static dibs__status try_open(const char *text, bool as_tier, struct dibs__result *reported) {
  struct dibs__uri uri;
  struct dibs__chain chain;
  struct dibs__session *session;
  struct dibs__identity identity;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  dibs__status status = dibs__uri_parse(text, &uri, reported);
  if (status != DIBS_OK) return status;
  uri.as_tier = as_tier;
  status = dibs__chain_open(&uri, NULL, by, &chain, reported);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) return status;
  const struct dibs__driver *driver = chain.stores[0]->driver;
  status = driver->connect(chain.stores[0], by, &session, &identity, reported);
  if (status == DIBS_OK) driver->disconnect(session);
  dibs__chain_close(&chain);
  return status;
}

static void one_server_has_one_vote(void **state) {
  (void)state;
  struct dibs__result reported = {0};
  uint16_t twice[] = {node_port(0), node_port(1), node_port(0)};
  assert_int_equal(try_open(quorum(3, "", twice), false, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "twice"));
  char text[256];
  snprintf(text, sizeof text, "redlock://dibs:dibs-secret@127.0.0.1:%u,localhost:%u,127.0.0.1:%u/0",
           (unsigned)node_port(0), (unsigned)node_port(0), (unsigned)node_port(1));
  assert_int_equal(try_open(text, false, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "same server"));
}

static void impossible_uris_are_refused(void **state) {
  (void)state;
  struct dibs__result reported = {0};
  assert_int_equal(try_open(quorum(2, "", NULL), false, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "at least 3"));
  assert_int_equal(try_open(quorum(3, "", NULL), true, &reported), DIBS_UNSUPPORTED);
  assert_non_null(strstr(reported.text, "tier"));
  assert_null(strstr(reported.text, "dibs-secret"));
  assert_int_equal(try_open(quorum(3, "&drift=x", NULL), false, &reported), DIBS_INVALID);
  struct party *p = party_at(quorum(3, "&max_ttl=5000", NULL));
  struct answer a = request_for(p, "n", 1, .ttl = 5001);
  expect(a.op, DIBS_UNSUPPORTED);
  assert_non_null(strstr(a.reported.text, "max_ttl=5000"));
  a = request_for(p, "n", 1, .mode = DIBS_SHARED);
  expect(a.op, DIBS_UNSUPPORTED);
}

/* Another list of nodes is another store; the order of the list does not matter. */
static void the_mandate_is_that_of_the_nodes(void **state) {
  (void)state;
  uint16_t turned[] = {node_port(2), node_port(0), node_port(1)}, others[] = {node_port(2), node_port(0), node_port(3)};
  struct party *p = party_at(quorum(3, "", NULL)), *q = party_at(quorum(3, "", turned));
  struct party *r = party_at(quorum(3, "", others));
  assert_true(dibs__mandate_equal(&p->identity.mandate, &q->identity.mandate));
  assert_false(dibs__mandate_equal(&p->identity.mandate, &r->identity.mandate));
  expect(take(p, "n", 1), DIBS_OK);
  expect(take(q, "n", 2, .try_only = true), DIBS_HELD);
}

static const struct CMUnitTest cases[] = {
    NODE_CASE(a_missing_node_changes_nothing),
    NODE_CASE(two_of_five_nodes_may_be_missing),
    NODE_CASE(busy_differs_from_no_quorum),
    NODE_CASE(a_store_without_a_quorum_does_not_open),
    NODE_CASE(a_paused_node_costs_one_timeout),
    NODE_CASE(what_no_node_answers_is_unknown),
    NODE_CASE(a_refused_request_leaves_nothing),
    NODE_CASE(an_emptied_node_does_not_count_while_earlier_leases_may_live),
    NODE_CASE(a_flushed_node_counts_as_emptied),
    NODE_CASE(a_renewal_restores_the_lease_on_emptied_nodes),
    NODE_CASE(blocks_drawn_while_a_node_is_unreachable),
    NODE_CASE(fences_grow_across_majorities_that_share_one_node),
    NODE_CASE(nodes_hold_a_lease_longer_than_the_client),
    NODE_CASE(a_grant_that_arrives_too_late_is_not_used),
    NODE_CASE(a_slow_node_is_not_waited_for),
    NODE_CASE(the_effect_of_a_lost_answer_is_found),
    NODE_CASE(a_new_store_begins_at_once),
    NODE_CASE(a_split_vote_is_repeated),
    NODE_CASE(one_server_has_one_vote),
    NODE_CASE(impossible_uris_are_refused),
    NODE_CASE(the_mandate_is_that_of_the_nodes),
};

int main(int argc, char *argv[]) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  bed_begin();
  return cmocka_run_group_tests(cases, NULL, NULL);
}
