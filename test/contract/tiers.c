/* SPDX-License-Identifier: MIT */
/* Stores that serve for an anchor elsewhere: installing mandates (R34), grants (R35), and buckets that open, leave and
 * are only read (R45 to R47). */
#include "harness.h"
#include "tier/tiers_impl.h"

#include <stdio.h>
#include <string.h>

enum { PATIENCE_MS = 5000 };

static dibs__mandate above(dibs__mandate m, uint32_t by) {
  return (dibs__mandate){m.epoch + by, m.incarnation};
}

/* A tier of a store that keeps an installed mandate. */
static struct party *tier_with_anchor(void) {
  if (open_as_tier()) skip(); /* then every party is a tier */
  struct party *t = tier();
  if (!(t->identity.families & 1u << DIBS__FAM_ANCHOR)) skip();
  return t;
}

/* Installs an epoch this far above that of the bucket of "n"; the party uses it. */
static dibs__mandate serve(struct party *t, uint32_t by) {
  uint16_t bucket = bucket_of("n");
  dibs__mandate what = above(anchor_has(t, bucket), by);
  struct dibs__anchor_op op = anchor_install(t, bucket, what);
  expect(op, DIBS_OK);
  assert_true(dibs__mandate_equal(&op.current, &what));
  assert_true(op.served);
  t->mandates[bucket] = what;
  return what;
}

/* One request for "n", without following the mandate. */
static struct dibs__lease_op send_request(struct party *p, enum dibs__lease_verb verb, int id, dibs__fence fence,
                                          dibs__mandate under) {
  struct dibs__lease_op op = lease_op(p, verb, "n", id, (struct how){.now = true, .try_only = true});
  struct dibs__op *ops[] = {&op.op};
  op.op.mandate = under;
  op.fence = fence;
  run_batch(p, ops, 1);
  return op;
}

/* No operation can take or change what id 1 holds under `fence`. */
static void nothing_changes(struct party *p, dibs__mandate under, dibs__fence fence, dibs__status want,
                            const dibs__mandate *has) {
  for (int verb = DIBS__ACQUIRE; verb <= DIBS__BREAK; verb++)
    for (int id = 1; id <= 2; id++) {
      struct dibs__lease_op op = send_request(p, (enum dibs__lease_verb)verb, id, fence, under);
      assert_int_equal(op.op.status, want);
      if (has) assert_true(dibs__mandate_equal(&op.op.has, has));
    }
}

/* ---- R34 ---- */

static void R34_a_mandate_is_installed_upwards(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *u = tier();
  uint16_t bucket = bucket_of("n");
  assert_false(anchor_read(t, bucket).served);
  dibs__mandate first = serve(t, 5), found = anchor_read(u, bucket).current;
  assert_true(dibs__mandate_equal(&first, &found));
  for (uint32_t below = 0; below < 3; below++) {
    dibs__mandate what = first;
    what.epoch -= below;
    struct dibs__anchor_op op = anchor_install(u, bucket, what);
    expect(op, DIBS_CONFLICT);
    assert_true(dibs__mandate_equal(&op.current, &first));
  }
  dibs__mandate second = serve(u, 1000);
  expect(anchor_install(t, bucket, above(first, 1)), DIBS_CONFLICT);
  found = anchor_read(t, bucket).current;
  assert_true(dibs__mandate_equal(&second, &found));
}

static void R34_only_for_the_present_incarnation(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1), other = above(first, 1);
  other.incarnation.b[7] ^= 1;
  struct dibs__anchor_op op = anchor_install(t, bucket_of("n"), other);
  expect(op, DIBS_CONFLICT);
  assert_true(dibs__mandate_equal(&op.current, &first));
}

static void R34_epochs_have_an_end(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate last = anchor_read(t, 9).current;
  last.epoch = DIBS__EPOCH_MAX + 1;
  expect(anchor_install(t, 9, last), DIBS_INVALID);
  assert_false(anchor_read(t, 9).served);
  expect(anchor_install(t, DIBS__BUCKETS, last), DIBS_INVALID);
}

static void R34_the_sequence_restarts(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1, .block = 50);
  expect(held, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(held.fence), first.epoch);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  dibs__mandate second = serve(t, 3);
  struct dibs__lease_op later = acquire(t, "n", 2);
  expect(later, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(later.fence), second.epoch);
  assert_true(dibs__fence_seq(later.fence) < (target()->by_revision ? 1u << 22 : 50));
  assert_true(dibs__fence_below(held.fence, later.fence));
}

static void R34_other_buckets_are_unaffected(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  uint16_t other = (uint16_t)((bucket_of("n") + 1) % DIBS__BUCKETS);
  dibs__mandate before = anchor_read(t, other).current;
  serve(t, 1);
  struct dibs__anchor_op read = anchor_read(t, other);
  assert_false(read.served);
  assert_true(dibs__mandate_equal(&read.current, &before));
}

/* ---- R35 ---- */

static void R35_a_tier_gets_no_grant_from_the_stores_own_bucket(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).current, none = {.incarnation = own.incarnation};
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  nothing_changes(t, own, held.fence, DIBS__MOVED, &none);
  nothing_changes(t, none, held.fence, DIBS__MOVED, &none);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  dibs__mandate still = anchor_read(t, bucket_of("n")).current;
  assert_true(dibs__mandate_equal(&own, &still));
}

static void R35_a_client_that_opened_the_store_alone_is_refused(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).current, what = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  nothing_changes(p, what, held.fence, DIBS_DENIED, NULL);
  assert_non_null(strstr(p->reported.text, "with all its tiers"));
  nothing_changes(p, own, held.fence, DIBS_DENIED, NULL);
  nothing_changes(p, (dibs__mandate){0}, held.fence, DIBS_DENIED, NULL);
  /* Nor a free name. */
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  assert_int_equal(send_request(p, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  expect(cancel(t, "n", 3), DIBS_NOT_FOUND);
  /* Everything else works as before. */
  expect(save(p, "r", 1, held.fence, "kept"), DIBS_OK);
  assert_string_equal(load(p, "r").got, "kept");
  assert_true(anchor_read(p, bucket_of("n")).served);
}

static void R35_only_the_last_installed_mandate_grants(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1), second = serve(t, 1), stranger = second;
  stranger.incarnation.b[0] ^= 0x10;
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  nothing_changes(t, first, held.fence, DIBS__MOVED, &second);
  nothing_changes(t, above(second, 1), held.fence, DIBS__MOVED, &second);
  nothing_changes(t, stranger, held.fence, DIBS__MOVED, &second);
  expect(acquire(t, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(t, "n", 1, held.fence), DIBS_OK);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
}

/* One packet of a server and one transaction of a file carry all of them. */
static void R35_a_batch_may_mix_served_and_other_buckets(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  struct dibs__lease_op ops[12];
  struct dibs__op *batch[12];
  char name[16];
  for (size_t i = 1; i < 12; i += 2) {
    snprintf(name, sizeof name, "m%zu", i);
    dibs__mandate has = anchor_has(t, bucket_of(name));
    if (!anchor_read(t, bucket_of(name)).served) expect(anchor_install(t, bucket_of(name), above(has, 1)), DIBS_OK);
  }
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < 12; i++) {
      snprintf(name, sizeof name, "m%zu", i);
      uint16_t bucket = bucket_of(name);
      t->mandates[bucket] = p->mandates[bucket] = anchor_read(t, bucket).current;
      ops[i] = lease_op(round ? p : t, DIBS__ACQUIRE, name, (int)i, (struct how){.now = false});
      batch[i] = &ops[i].op;
    }
    run_batch(round ? p : t, batch, 12);
    for (size_t i = 0; i < 12; i++) {
      bool served = anchor_read(t, ops[i].op.bucket).served, is_tier = round == 0;
      if (served == is_tier)
        expect(ops[i], DIBS_OK);
      else
        assert_int_equal(ops[i].op.status, is_tier ? DIBS__MOVED : DIBS_DENIED);
    }
  }
}

static void R35_shared_and_counted_grants_need_the_mandate(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  if ((t->identity.caps & DIBS__CAP_SHARED) == 0) skip();
  dibs__mandate own = anchor_read(t, bucket_of("n")).current, first = serve(t, 1);
  uint32_t modes = t->identity.caps & DIBS__CAP_COUNTED ? DIBS_COUNTED : DIBS_SHARED;
  for (uint32_t mode = DIBS_SHARED; mode <= modes; mode++) {
    struct how how = {.mode = mode, .slots = mode == DIBS_COUNTED ? 2 : 0};
    struct dibs__lease_op old = lease_op(t, DIBS__ACQUIRE, "n", 1, how);
    struct dibs__op *ops[] = {&old.op};
    old.op.mandate = own;
    run_batch(t, ops, 1);
    assert_int_equal(old.op.status, DIBS__MOVED);
    assert_true(dibs__mandate_equal(&old.op.has, &first));
    struct dibs__lease_op held = acquire_as(t, "n", 1, how);
    expect(held, DIBS_OK);
    expect(release(t, "n", 1, held.fence), DIBS_OK);
  }
}

static void R35_a_used_up_epoch_is_reported(void **state) {
  (void)state;
  if (!target()->use_up) skip();
  struct party *t = tier_with_anchor();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 1);
  target()->use_up(t, bucket, 1);
  struct dibs__lease_op last = acquire(t, "n", 1);
  expect(last, DIBS_OK);
  expect(release(t, "n", 1, last.fence), DIBS_OK);
  for (int i = 0; i < 3; i++) {
    struct dibs__lease_op op = send_request(t, DIBS__ACQUIRE, 2 + i, DIBS__FENCE_NONE, first);
    assert_int_equal(op.op.status, DIBS__MOVED);
    assert_true(dibs__mandate_equal(&op.op.has, &first));
  }
  dibs__mandate still = anchor_read(t, bucket).current;
  assert_true(dibs__mandate_equal(&first, &still));
  dibs__mandate second = serve(t, 1);
  struct dibs__lease_op next = acquire(t, "n", 2);
  expect(next, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(next.fence), second.epoch);
}

static void R35_a_block_larger_than_the_rest_of_the_epoch(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  if (!target()->use_up) skip();
  struct party *t = tier_with_anchor();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  target()->use_up(t, bucket, 3);
  struct dibs__lease_op op = lease_op(t, DIBS__RENEW, "n", 1, (struct how){.block = 10});
  struct dibs__op *ops[] = {&op.op};
  op.fence = held.fence;
  run_batch(t, ops, 1);
  assert_int_equal(op.op.status, DIBS__MOVED);
  assert_true(dibs__mandate_equal(&op.op.has, &first));
  serve(t, 1);
  expect(renew(t, "n", 1, held.fence), DIBS_OK);
}

/* A name may be free although waiters exist; the offer to the requesting waiter itself may use the last fence. */
static void R35_an_offer_takes_the_last_but_one(void **state) {
  (void)state;
  needs(DIBS__CAP_GRANT_NEXT | DIBS__CAP_BLOCKS);
  if (!target()->use_up) skip();
  struct party *t = tier_with_anchor(), *u = tier();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = u->mandates[bucket] = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  expect(acquire(u, "n", 2), DIBS__QUEUED);
  target()->use_up(t, bucket, 2);
  advance_past_ttl(t);
  struct dibs__lease_op op = lease_op(u, DIBS__ACQUIRE, "n", 2, (struct how){.block = 2});
  struct dibs__op *ops[] = {&op.op};
  run_batch(u, ops, 1);
  assert_int_equal(op.op.status, DIBS__MOVED);
  assert_true(dibs__mandate_equal(&op.op.has, &first));
  dibs__mandate still = anchor_read(t, bucket).current;
  assert_true(dibs__mandate_equal(&first, &still));
  serve(t, 1);
  expect(acquire(u, "n", 2, .block = 2), DIBS_OK);
}

static void R35_two_requests_compete_for_the_last_fence(void **state) {
  (void)state;
  if (!target()->use_up) skip();
  struct party *t = tier_with_anchor();
  uint16_t bucket = bucket_of("n");
  char other[64];
  dibs__str mine = name_of(""), found = mine;
  dibs__mandate first = serve(t, 1);
  for (int i = 0; found.len == mine.len || dibs__bucket(found) != bucket; i++)
    found = dibs__str_of(other, (size_t)snprintf(other, sizeof other, "%.*s%d", (int)mine.len, mine.p, i));
  target()->use_up(t, bucket, 1);
  struct dibs__lease_op ops[2] = {lease_op(t, DIBS__ACQUIRE, "n", 1, (struct how){.now = false}),
                                  lease_op(t, DIBS__ACQUIRE, "n", 2, (struct how){.now = false})};
  ops[1].name = found;
  struct dibs__op *batch[] = {&ops[0].op, &ops[1].op};
  run_batch(t, batch, 2);
  int granted = 0;
  for (int i = 0; i < 2; i++) {
    granted += ops[i].op.status == DIBS_OK;
    if (ops[i].op.status == DIBS_OK) continue;
    assert_int_equal(ops[i].op.status, DIBS__MOVED);
    assert_true(dibs__mandate_equal(&ops[i].op.has, &first));
  }
  assert_true(granted < 2);
  dibs__mandate still = anchor_read(t, bucket).current;
  assert_true(dibs__mandate_equal(&first, &still));
}

static void R35_a_new_incarnation_voids_the_mandate(void **state) {
  (void)state;
  if (!target()->reborn) skip();
  struct party *t = tier_with_anchor(), *p = party();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  target()->reborn(t, bucket);
  struct dibs__lease_op old = send_request(t, DIBS__RENEW, 1, held.fence, first);
  assert_int_equal(old.op.status, DIBS__MOVED);
  assert_int_equal(old.op.has.epoch, first.epoch);
  dibs__mandate now = old.op.has;
  nothing_changes(t, now, held.fence, DIBS__MOVED, &now);
  nothing_changes(p, now, held.fence, DIBS_DENIED, NULL);
  struct dibs__anchor_op read = anchor_read(t, bucket);
  assert_true(read.served);
  assert_true(dibs__mandate_equal(&read.current, &now));
  expect(anchor_install(t, bucket, now), DIBS_CONFLICT);
  dibs__mandate stranger = above(first, 1);
  stranger.incarnation.b[3] ^= 1;
  expect(anchor_install(t, bucket, stranger), DIBS_CONFLICT);
  dibs__mandate second = serve(t, 1);
  assert_int_equal(second.epoch, first.epoch + 1);
  (void)cancel(t, "n", 1); /* the new incarnation may remember the lease or not */
  struct dibs__lease_op later = acquire(t, "n", 2);
  expect(later, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(later.fence), second.epoch);
}

static void R35_a_served_bucket_refuses_next(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1);
  struct dibs__anchor_op op = anchor_next(t, bucket_of("n"), first);
  expect(op, DIBS_CONFLICT);
  assert_true(op.served);
  assert_true(dibs__mandate_equal(&op.current, &first));
}

static void R35_a_bucket_alone_again_continues_above(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 7);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  struct dibs__anchor_op op = anchor_alone(t, bucket);
  expect(op, DIBS_OK);
  assert_false(op.served);
  assert_true(op.current.epoch > first.epoch);
  nothing_changes(t, first, held.fence, DIBS__MOVED, &(dibs__mandate){.incarnation = op.current.incarnation});
  struct dibs__lease_op own = acquire(p, "n", 2);
  expect(own, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, own.fence));
  struct dibs__anchor_op again = anchor_alone(t, bucket);
  expect(again, DIBS_OK);
  assert_true(dibs__mandate_equal(&again.current, &op.current));
  if (t->identity.caps & DIBS__CAP_ANCHOR) expect(anchor_next(t, bucket, op.current), DIBS_OK);
}

static void R35_the_mandate_is_remembered(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  uint16_t bucket = bucket_of("n");
  if (strcmp(store_of(t)->driver->name, "memory") == 0) (void)party(); /* whose content ends with its last user */
  dibs__mandate what = serve(t, 2);
  struct dibs__lease_op held = acquire(t, "n", 1);
  close_party(t);
  struct party *u = tier(), *p = party();
  struct dibs__anchor_op read = anchor_read(u, bucket);
  assert_true(read.served);
  assert_true(dibs__mandate_equal(&read.current, &what));
  assert_int_equal(send_request(p, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  struct dibs__lease_op more = acquire(u, "n", (u->identity.caps & DIBS__CAP_SESSION) ? 2 : 1);
  expect(more, DIBS_OK);
  assert_true(more.fence.v >= held.fence.v);
  assert_int_equal(dibs__fence_epoch(more.fence), what.epoch);
}

/* An offer draws its fence when it is created; a mandate that is installed later decides the fence of the grant. */
static void R35_an_offer_is_granted_under_the_current_mandate(void **state) {
  (void)state;
  needs(DIBS__CAP_GRANT_NEXT);
  needs_rows();
  struct party *t = tier_with_anchor(), *u = tier();
  dibs__mandate first = serve(t, 1);
  u->mandates[bucket_of("n")] = first;
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  expect(acquire(u, "n", 2), DIBS__QUEUED);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  dibs__mandate second = u->mandates[bucket_of("n")] = serve(t, 1);
  dibs__fence offered = dibs__fence_nth(held.fence, 1);
  assert_int_equal(send_request(u, DIBS__RENEW, 2, offered, second).op.status, DIBS_LOST);
  struct dibs__lease_op granted = acquire(u, "n", 2);
  expect(granted, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(granted.fence), second.epoch);
}

/* ---- The record of the tiers' state, which users cannot name ---- */

static struct dibs__record_op reserved(struct party *p, enum dibs__record_verb verb, const char *key, uint32_t guards,
                                       const char *version, const char *data) {
  struct dibs__record_op op = record_op(verb, "", 0, DIBS__FENCE_NONE, data);
  struct dibs__op *ops[] = {&op.op};
  op.key = dibs__str_of(key, strlen(key));
  op.guards = guards;
  op.if_version = dibs__str_of(version, strlen(version));
  needs_family(p, DIBS__FAM_RECORD);
  run_batch(p, ops, 1);
  free_at_end(op.got);
  return op;
}

static void R21_the_record_of_the_tiers_obeys_guards(void **state) {
  (void)state;
  struct party *p = party(), *t = tier();
  char key[64], version[24];
  dibs__str mine = name_of("");
  snprintf(key, sizeof key, "\1%.*s", (int)mine.len, mine.p);
  expect(reserved(p, DIBS__RECORD_LOAD, key, 0, "", NULL), DIBS_NOT_FOUND);
  struct dibs__record_op made = reserved(t, DIBS__RECORD_PUT, key, DIBS__IF_ABSENT, "", "{}");
  if (in_doubt(&made.op))
    made.version = reserved(p, DIBS__RECORD_LOAD, key, 0, "", NULL).version;
  else
    expect(made, DIBS_OK);
  snprintf(version, sizeof version, "%llu", (unsigned long long)made.version);
  expect(reserved(p, DIBS__RECORD_PUT, key, DIBS__IF_ABSENT, "", "no"), DIBS_CONFLICT);
  struct dibs__record_op next = reserved(p, DIBS__RECORD_PUT, key, DIBS__IF_VERSION, version, "two");
  if (!in_doubt(&next.op)) expect(next, DIBS_OK);
  expect(reserved(t, DIBS__RECORD_PUT, key, DIBS__IF_VERSION, version, "no"), DIBS_CONFLICT);
  close_party(t);
  struct party *u = party();
  struct dibs__record_op got = reserved(u, DIBS__RECORD_LOAD, key, 0, "", NULL);
  expect(got, DIBS_OK);
  assert_string_equal(got.got, "two");
  assert_int_equal(list_prefix(u, "").count, 0);
}

/* ---- R45, R46 ---- */

static void R45_the_anchors_own_bucket_serves_both_kinds_of_clients(void **state) {
  (void)state;
  struct party *a = anchor_of_tiers(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).current;
  a->mandates[bucket_of("n")] = own;
  struct dibs__lease_op first = send_request(a, DIBS__ACQUIRE, 1, DIBS__FENCE_NONE, own);
  expect(first, DIBS_OK);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  assert_int_equal(send_request(a, DIBS__RENEW, 1, first.fence, own).op.status, DIBS_OK);
  assert_int_equal(send_request(a, DIBS__RELEASE, 1, first.fence, own).op.status, DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 2, .try_only = true);
  expect(second, DIBS_OK);
  assert_true(dibs__fence_below(first.fence, second.fence));
  assert_int_equal(dibs__fence_epoch(first.fence), dibs__fence_epoch(second.fence));
  assert_int_equal(send_request(a, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, own).op.status, DIBS_HELD);
  assert_false(anchor_read(a, bucket_of("n")).served);
  assert_true(anchor_read(a, bucket_of("n")).used);
}

static void R45_an_installed_bucket_opens_under_its_epoch(void **state) {
  (void)state;
  struct party *a = anchor_of_tiers(), *p = party();
  dibs__mandate what = serve(a, 4);
  assert_int_equal(send_request(p, DIBS__ACQUIRE, 1, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  assert_int_equal(anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), above(what, 1)).op.status, DIBS_CONFLICT);
  struct dibs__anchor_op opened = anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), what);
  expect(opened, DIBS_OK);
  assert_false(opened.served);
  assert_true(dibs__mandate_equal(&opened.current, &what));
  expect(anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), what), DIBS_OK);
  struct dibs__lease_op held = send_request(p, DIBS__ACQUIRE, 1, DIBS__FENCE_NONE, what);
  expect(held, DIBS_OK);
  assert_true(dibs__fence_epoch(held.fence) >= what.epoch); /* if it uses its clock (R43) */
  assert_int_equal(send_request(a, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what).op.status, DIBS_HELD);
}

/* For a client that opened the store alone, and for a client that opened it as a tier. */
static void left_keeps(struct party *holder, struct party *a, struct party *p, dibs__mandate what) {
  struct dibs__lease_op held = send_request(holder, DIBS__ACQUIRE, 1, DIBS__FENCE_NONE, what);
  expect(held, DIBS_OK);
  assert_int_equal(anchor_run(a, DIBS__ANCHOR_LEAVE, bucket_of("n"), above(what, 1)).op.status, DIBS_CONFLICT);
  struct dibs__anchor_op left = anchor_run(a, DIBS__ANCHOR_LEAVE, bucket_of("n"), what);
  expect(left, DIBS_OK);
  assert_true(left.left && left.served);
  assert_true(left.last.v == 0 || !dibs__fence_below(left.last, held.fence));
  expect(anchor_run(a, DIBS__ANCHOR_LEAVE, bucket_of("n"), what), DIBS_OK);
  assert_true(anchor_read(a, bucket_of("n")).left);
  assert_int_equal(anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), what).op.status, DIBS_CONFLICT);
  assert_int_equal(send_request(a, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what).op.status, DIBS_HELD);
  dibs__status lone = send_request(p, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status;
  assert_true(lone == DIBS_DENIED || lone == DIBS_HELD); /* a session lock is requested first */
  struct dibs__lease_op again = send_request(holder, DIBS__ACQUIRE, 1, DIBS__FENCE_NONE, what);
  expect(again, DIBS_OK);
  assert_true(again.fence.v == held.fence.v);
  assert_int_equal(send_request(holder, DIBS__RENEW, 1, held.fence, what).op.status, DIBS_OK);
  assert_int_equal(send_request(holder, DIBS__RELEASE, 1, held.fence, what).op.status, DIBS_OK);
  struct dibs__lease_op free_now = send_request(a, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what);
  assert_int_equal(free_now.op.status, DIBS__MOVED);
  assert_true(dibs__mandate_equal(&free_now.op.has, &what));
  assert_int_equal(send_request(p, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  /* A mandate that is installed later grants next, above all drawn fences. */
  dibs__mandate next = {dibs__fence_epoch(held.fence), what.incarnation};
  if (next.epoch > what.epoch)
    assert_int_equal(anchor_run(a, DIBS__ANCHOR_INSTALL, bucket_of("n"), next).op.status, DIBS_CONFLICT);
  struct dibs__anchor_op back = anchor_run(a, DIBS__ANCHOR_INSTALL, bucket_of("n"), above(next, 3));
  expect(back, DIBS_OK);
  assert_false(back.left);
}

static void R46_a_left_bucket_keeps_its_holders(void **state) {
  (void)state;
  struct party *a = anchor_of_tiers(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).current;
  left_keeps(p, a, p, own);
  left_keeps(a, a, p, anchor_read(a, bucket_of("n")).current);
}

static void R46_a_left_tier_keeps_its_holders(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  left_keeps(t, t, p, serve(t, 1));
}

static void R46_waiters_of_a_left_bucket_get_no_offer(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  needs(DIBS__CAP_FIFO);
  dibs__mandate what = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  expect(acquire(t, "n", 2), DIBS__QUEUED);
  expect(anchor_run(t, DIBS__ANCHOR_LEAVE, bucket_of("n"), what), DIBS_OK);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_HELD);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS__MOVED);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what).op.status, DIBS__MOVED);
  assert_int_equal(send_request(t, DIBS__CANCEL, 2, DIBS__FENCE_NONE, what).op.status, DIBS_NOT_FOUND);
}

/* The offered waiter may have begun its work: its confirmation arrives after LEAVE. */
static void R46_an_offer_is_confirmed_under_its_fence(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  needs(DIBS__CAP_GRANT_NEXT);
  if (target()->by_revision) skip(); /* its offers have no fence */
  struct party *a = anchor_of_tiers(), *p = party(), *q = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).current;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  dibs__fence offered = anchor_read(p, bucket_of("n")).last; /* its fence is the last drawn one */
  assert_true(dibs__fence_below(held.fence, offered));
  expect(anchor_run(a, DIBS__ANCHOR_LEAVE, bucket_of("n"), own), DIBS_OK);
  assert_int_equal(send_request(q, DIBS__RENEW, 2, offered, own).op.status, DIBS_OK);
  assert_int_equal(send_request(q, DIBS__RELEASE, 2, offered, own).op.status, DIBS_OK);
}

static void R46_readers_may_join_readers_of_a_left_bucket(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  needs(DIBS__CAP_SHARED);
  dibs__mandate what = serve(t, 1);
  expect(acquire(t, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(anchor_run(t, DIBS__ANCHOR_LEAVE, bucket_of("n"), what), DIBS_OK);
  struct dibs__lease_op join = lease_op(t, DIBS__ACQUIRE, "n", 2, (struct how){.mode = DIBS_SHARED});
  struct dibs__op *ops[] = {&join.op};
  join.op.mandate = what;
  run_batch(t, ops, 1);
  expect(join, DIBS_OK);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_HELD);
  expect(release(t, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_HELD);
  expect(release(t, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  assert_int_equal(send_request(t, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS__MOVED);
}

static void move_all(struct party *p, int32_t tier) {
  struct dibs__tiers_op op = {.op = {.family = DIBS__FAM_TIERS, .verb = DIBS__TIERS_MOVE}, .tier = tier};
  struct dibs__op *ops[] = {&op.op};
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  run_batch(p, ops, 1);
  if (op.op.status != DIBS_OK) fail_msg("move to %d: %s", (int)tier, op.why);
}

/* Another name of the bucket of "n". */
static const char *neighbour(char capacity[16]) {
  int i = 0;
  do snprintf(capacity, 16, "b%d", i++);
  while (bucket_of(capacity) != bucket_of("n"));
  return capacity;
}

/* A client of tiers knows a move that has ended, but not the move back that is in progress. */
static void R46_a_client_with_an_old_copy_finds_its_lease(void **state) {
  (void)state;
  if (strcmp(target()->scheme, "tiers") != 0) skip();
  struct party *p = party(), *q = party();
  struct tiers *copy = tiers_of(store_of(p));
  char capacity[16];
  const char *other = neighbour(capacity);
  struct dibs__lease_op stays = acquire(q, other, 1, .ttl = 30000);
  expect(stays, DIBS_OK);
  move_all(q, 1);
  struct dibs__lease_op held = acquire(p, "n", 2, .ttl = 30000);
  expect(held, DIBS_OK);
  /* Only the client that holds this lock reads the record. */
  assert_true(dibs__timed_lock_take(&copy->control, dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS)));
  uint16_t bucket = bucket_of("n");
  bool under_way = copy->here[bucket].left.epoch != 0;
  expect(release(q, other, 1, stays.fence), DIBS_OK);
  move_all(q, 0);
  dibs__status renewed = send_request(p, DIBS__RENEW, 2, held.fence, p->mandates[bucket]).op.status;
  dibs__status released = send_request(p, DIBS__RELEASE, 2, held.fence, p->mandates[bucket]).op.status;
  dibs__timed_lock_release(&copy->control);
  assert_true(under_way);
  assert_int_equal(renewed, DIBS_OK);
  assert_int_equal(released, DIBS_OK);
}

/* ---- R47 ---- */

static void R47_reading_changes_nothing(void **state) {
  (void)state;
  struct party *a = anchor_of_tiers();
  struct dibs__anchor_op before = anchor_read(a, bucket_of("n"));
  assert_false(before.served || before.left);
  (void)list_prefix(a, "");
  expect(load(a, "r"), DIBS_NOT_FOUND);
  struct dibs__anchor_op after = anchor_read(a, bucket_of("n"));
  assert_false(after.served || after.left);
  assert_int_equal(after.used, before.used); /* a server remembers earlier cases */
  assert_true(dibs__mandate_equal(&before.current, &after.current));
}

static const struct CMUnitTest contract_tiers_cases[] = {
    SERVED(R34_a_mandate_is_installed_upwards),
    SERVED(R34_only_for_the_present_incarnation),
    SERVED(R34_epochs_have_an_end),
    SERVED(R34_the_sequence_restarts),
    SERVED(R34_other_buckets_are_unaffected),
    SERVED(R35_a_tier_gets_no_grant_from_the_stores_own_bucket),
    SERVED(R35_a_client_that_opened_the_store_alone_is_refused),
    SERVED(R35_only_the_last_installed_mandate_grants),
    SERVED(R35_a_batch_may_mix_served_and_other_buckets),
    SERVED(R35_shared_and_counted_grants_need_the_mandate),
    SERVED(R35_a_used_up_epoch_is_reported),
    SERVED(R35_a_block_larger_than_the_rest_of_the_epoch),
    SERVED(R35_an_offer_takes_the_last_but_one),
    SERVED(R35_two_requests_compete_for_the_last_fence),
    SERVED(R35_a_new_incarnation_voids_the_mandate),
    SERVED(R35_a_served_bucket_refuses_next),
    SERVED(R35_a_bucket_alone_again_continues_above),
    SERVED(R35_the_mandate_is_remembered),
    SERVED(R35_an_offer_is_granted_under_the_current_mandate),
    SERVED(R45_the_anchors_own_bucket_serves_both_kinds_of_clients),
    SERVED(R45_an_installed_bucket_opens_under_its_epoch),
    SERVED(R46_a_left_bucket_keeps_its_holders),
    SERVED(R46_a_left_tier_keeps_its_holders),
    SERVED(R46_a_client_with_an_old_copy_finds_its_lease),
    SERVED(R46_waiters_of_a_left_bucket_get_no_offer),
    SERVED(R46_an_offer_is_confirmed_under_its_fence),
    SERVED(R46_readers_may_join_readers_of_a_left_bucket),
    SERVED(R47_reading_changes_nothing),
    CASE(R21_the_record_of_the_tiers_obeys_guards),
};
CONTRACT_TESTS(contract_tiers);
