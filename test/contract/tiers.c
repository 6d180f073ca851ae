/* SPDX-License-Identifier: MIT */
/* Stores that serve for an anchor elsewhere: what is installed (R34), what is granted (R35); reports (R36). */
#include "harness.h"

#include <stdio.h>
#include <string.h>

enum { PATIENCE_MS = 5000, KEEP_MS = 60000 };

static dibs__mandate above(dibs__mandate mandate, uint32_t by) {
  mandate.epoch += by;
  return mandate;
}

/* A tier of a store that keeps what is installed. */
static struct party *tier_with_anchor(void) {
  if (open_as_tier()) skip(); /* nobody is no tier then */
  struct party *t = tier();
  if (!(t->identity.families & 1u << DIBS__FAM_ANCHOR)) skip();
  return t;
}

/* Installs an epoch so far above what the bucket of "n" has; the party goes by it. */
static dibs__mandate serve(struct party *t, uint32_t by) {
  uint16_t bucket = bucket_of("n");
  dibs__mandate what = above(anchor_read(t, bucket).stands, by);
  struct dibs__anchor_op op = anchor_install(t, bucket, what);
  expect(op, DIBS_OK);
  assert_true(dibs__mandate_equal(&op.stands, &what));
  assert_true(op.served);
  t->mandates[bucket] = what;
  return what;
}

/* One question about "n", without following the mandate. */
static struct dibs__lease_op ask(struct party *p, enum dibs__lease_verb verb, int id, dibs__fence fence,
                                 dibs__mandate under) {
  struct dibs__lease_op op = lease_op(p, verb, "n", id, (struct how){.now = true, .try_only = true});
  struct dibs__op *ops[] = {&op.op};
  op.op.mandate = under;
  op.fence = fence;
  run_batch(p, ops, 1);
  return op;
}

/* All that could take or change what id 1 holds under `fence`. */
static void nothing_is_done(struct party *p, dibs__mandate under, dibs__fence fence, dibs__status want,
                            const dibs__mandate *has) {
  for (int verb = DIBS__ACQUIRE; verb <= DIBS__BREAK; verb++)
    for (int id = 1; id <= 2; id++) {
      struct dibs__lease_op op = ask(p, (enum dibs__lease_verb)verb, id, fence, under);
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
  dibs__mandate first = serve(t, 5), found = anchor_read(u, bucket).stands;
  assert_true(dibs__mandate_equal(&first, &found));
  for (uint32_t below = 0; below < 3; below++) {
    dibs__mandate what = first;
    what.epoch -= below;
    struct dibs__anchor_op op = anchor_install(u, bucket, what);
    expect(op, DIBS_CONFLICT);
    assert_true(dibs__mandate_equal(&op.stands, &first));
  }
  dibs__mandate second = serve(u, 1000);
  expect(anchor_install(t, bucket, above(first, 1)), DIBS_CONFLICT);
  found = anchor_read(t, bucket).stands;
  assert_true(dibs__mandate_equal(&second, &found));
}

static void R34_only_for_the_present_life(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1), other = above(first, 1);
  other.life.b[7] ^= 1;
  struct dibs__anchor_op op = anchor_install(t, bucket_of("n"), other);
  expect(op, DIBS_CONFLICT);
  assert_true(dibs__mandate_equal(&op.stands, &first));
}

static void R34_epochs_have_an_end(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate last = anchor_read(t, 9).stands;
  last.epoch = DIBS__EPOCH_MAX + 1;
  expect(anchor_install(t, 9, last), DIBS_INVALID);
  assert_false(anchor_read(t, 9).served);
  expect(anchor_install(t, DIBS__BUCKETS, last), DIBS_INVALID);
}

static void R34_the_sequence_begins_anew(void **state) {
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
  assert_true(dibs__fence_seq(later.fence) < 50);
  assert_true(dibs__fence_below(held.fence, later.fence));
}

static void R34_a_bucket_is_served_alone(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  uint16_t other = (uint16_t)((bucket_of("n") + 1) % DIBS__BUCKETS);
  dibs__mandate before = anchor_read(t, other).stands;
  serve(t, 1);
  struct dibs__anchor_op read = anchor_read(t, other);
  assert_false(read.served);
  assert_true(dibs__mandate_equal(&read.stands, &before));
}

/* ---- R35 ---- */

static void R35_a_tier_is_granted_nothing_of_the_stores_own(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).stands, none = {.life = own.life};
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  nothing_is_done(t, own, held.fence, DIBS__MOVED, &none);
  nothing_is_done(t, none, held.fence, DIBS__MOVED, &none);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  dibs__mandate still = anchor_read(t, bucket_of("n")).stands;
  assert_true(dibs__mandate_equal(&own, &still));
}

static void R35_who_is_no_tier_is_refused(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  dibs__mandate own = anchor_read(p, bucket_of("n")).stands, what = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  nothing_is_done(p, what, held.fence, DIBS_DENIED, NULL);
  assert_non_null(strstr(p->said.text, "with all its tiers"));
  nothing_is_done(p, own, held.fence, DIBS_DENIED, NULL);
  nothing_is_done(p, (dibs__mandate){0}, held.fence, DIBS_DENIED, NULL);
  /* Nor what nobody holds. */
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  assert_int_equal(ask(p, DIBS__ACQUIRE, 3, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  expect(cancel(t, "n", 3), DIBS_NOT_FOUND);
  /* All else is as ever. */
  expect(save(p, "r", 1, held.fence, "kept"), DIBS_OK);
  assert_string_equal(load(p, "r").got, "kept");
  assert_true(anchor_read(p, bucket_of("n")).served);
}

static void R35_only_under_what_was_installed_last(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1), second = serve(t, 1), stranger = second;
  stranger.life.b[0] ^= 0x10;
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  nothing_is_done(t, first, held.fence, DIBS__MOVED, &second);
  nothing_is_done(t, above(second, 1), held.fence, DIBS__MOVED, &second);
  nothing_is_done(t, stranger, held.fence, DIBS__MOVED, &second);
  expect(acquire(t, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(t, "n", 1, held.fence), DIBS_OK);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
}

/* As the one packet of a server and the one transaction of a file carry them. */
static void R35_also_in_a_batch_of_many(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  struct dibs__lease_op ops[12];
  struct dibs__op *batch[12];
  char name[16];
  for (size_t i = 1; i < 12; i += 2) {
    snprintf(name, sizeof name, "m%zu", i);
    struct dibs__anchor_op read = anchor_read(t, bucket_of(name));
    if (!read.served) expect(anchor_install(t, bucket_of(name), above(read.stands, 1)), DIBS_OK);
  }
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < 12; i++) {
      snprintf(name, sizeof name, "m%zu", i);
      uint16_t bucket = bucket_of(name);
      t->mandates[bucket] = p->mandates[bucket] = anchor_read(t, bucket).stands;
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

static void R35_shared_and_counted_too(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  if ((t->identity.caps & DIBS__CAP_SHARED) == 0) skip();
  dibs__mandate own = anchor_read(t, bucket_of("n")).stands, first = serve(t, 1);
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

static void R35_an_epoch_that_is_used_up_is_told(void **state) {
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
    struct dibs__lease_op op = ask(t, DIBS__ACQUIRE, 2 + i, DIBS__FENCE_NONE, first);
    assert_int_equal(op.op.status, DIBS__MOVED);
    assert_true(dibs__mandate_equal(&op.op.has, &first));
  }
  dibs__mandate still = anchor_read(t, bucket).stands;
  assert_true(dibs__mandate_equal(&first, &still));
  dibs__mandate second = serve(t, 1);
  struct dibs__lease_op next = acquire(t, "n", 2);
  expect(next, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(next.fence), second.epoch);
}

static void R35_a_block_too_large_for_what_is_left(void **state) {
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

/* What is found free of waiters' claims may be used up by the offer to the very one who asks. */
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
  pass_ttl(t);
  struct dibs__lease_op op = lease_op(u, DIBS__ACQUIRE, "n", 2, (struct how){.block = 2});
  struct dibs__op *ops[] = {&op.op};
  run_batch(u, ops, 1);
  assert_int_equal(op.op.status, DIBS__MOVED);
  assert_true(dibs__mandate_equal(&op.op.has, &first));
  dibs__mandate still = anchor_read(t, bucket).stands;
  assert_true(dibs__mandate_equal(&first, &still));
  serve(t, 1);
  expect(acquire(u, "n", 2, .block = 2), DIBS_OK);
}

static void R35_two_ask_for_the_last_fence(void **state) {
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
  dibs__mandate still = anchor_read(t, bucket).stands;
  assert_true(dibs__mandate_equal(&first, &still));
}

static void R35_a_new_life_voids_what_was_installed(void **state) {
  (void)state;
  if (!target()->reborn) skip();
  struct party *t = tier_with_anchor(), *p = party();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 1);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(held, DIBS_OK);
  target()->reborn(t, bucket);
  struct dibs__lease_op old = ask(t, DIBS__RENEW, 1, held.fence, first);
  assert_int_equal(old.op.status, DIBS__MOVED);
  assert_int_equal(old.op.has.epoch, first.epoch);
  dibs__mandate now = old.op.has;
  nothing_is_done(t, now, held.fence, DIBS__MOVED, &now);
  nothing_is_done(p, now, held.fence, DIBS_DENIED, NULL);
  struct dibs__anchor_op read = anchor_read(t, bucket);
  assert_true(read.served);
  assert_true(dibs__mandate_equal(&read.stands, &now));
  expect(anchor_install(t, bucket, now), DIBS_CONFLICT);
  dibs__mandate stranger = above(first, 1);
  stranger.life.b[3] ^= 1;
  expect(anchor_install(t, bucket, stranger), DIBS_CONFLICT);
  dibs__mandate second = serve(t, 1);
  assert_int_equal(second.epoch, first.epoch + 1);
  (void)cancel(t, "n", 1); /* it may be remembered or not */
  struct dibs__lease_op later = acquire(t, "n", 2);
  expect(later, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(later.fence), second.epoch);
}

static void R35_nobody_makes_the_next_epoch_there(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  dibs__mandate first = serve(t, 1);
  struct dibs__anchor_op op = anchor_next(t, bucket_of("n"), first);
  expect(op, DIBS_CONFLICT);
  assert_true(op.served);
  assert_true(dibs__mandate_equal(&op.stands, &first));
}

static void R35_alone_again_it_goes_on_above(void **state) {
  (void)state;
  struct party *t = tier_with_anchor(), *p = party();
  uint16_t bucket = bucket_of("n");
  dibs__mandate first = serve(t, 7);
  struct dibs__lease_op held = acquire(t, "n", 1);
  expect(release(t, "n", 1, held.fence), DIBS_OK);
  struct dibs__anchor_op op = anchor_alone(t, bucket);
  expect(op, DIBS_OK);
  assert_false(op.served);
  assert_true(op.stands.epoch > first.epoch);
  nothing_is_done(t, first, held.fence, DIBS__MOVED, &(dibs__mandate){.life = op.stands.life});
  struct dibs__lease_op own = acquire(p, "n", 2);
  expect(own, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, own.fence));
  struct dibs__anchor_op again = anchor_alone(t, bucket);
  expect(again, DIBS_OK);
  assert_true(dibs__mandate_equal(&again.stands, &op.stands));
  if (t->identity.caps & DIBS__CAP_ANCHOR) expect(anchor_next(t, bucket, op.stands), DIBS_OK);
}

static void R35_it_is_remembered(void **state) {
  (void)state;
  struct party *t = tier_with_anchor();
  uint16_t bucket = bucket_of("n");
  if (strcmp(store_of(t)->driver->name, "memory") == 0) (void)party(); /* which ends with its last user */
  dibs__mandate what = serve(t, 2);
  struct dibs__lease_op held = acquire(t, "n", 1);
  leave(t);
  struct party *u = tier(), *p = party();
  struct dibs__anchor_op read = anchor_read(u, bucket);
  assert_true(read.served);
  assert_true(dibs__mandate_equal(&read.stands, &what));
  assert_int_equal(ask(p, DIBS__ACQUIRE, 2, DIBS__FENCE_NONE, what).op.status, DIBS_DENIED);
  struct dibs__lease_op more = acquire(u, "n", (u->identity.caps & DIBS__CAP_SESSION) ? 2 : 1);
  expect(more, DIBS_OK);
  assert_true(more.fence.v >= held.fence.v);
  assert_int_equal(dibs__fence_epoch(more.fence), what.epoch);
}

/* An offer has its fence when it is made; what was installed since decides which fence the grant has. */
static void R35_an_offer_is_granted_under_what_stands(void **state) {
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
  assert_int_equal(ask(u, DIBS__RENEW, 2, offered, second).op.status, DIBS_LOST);
  struct dibs__lease_op granted = acquire(u, "n", 2);
  expect(granted, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(granted.fence), second.epoch);
}

/* ---- Where tiers keep their state: a record that no user can name ---- */

static struct dibs__record_op reserved(struct party *p, enum dibs__record_verb verb, const char *key, uint32_t guards,
                                       const char *version, const char *data) {
  struct dibs__record_op op = record_op(verb, "", 0, DIBS__FENCE_NONE, data);
  struct dibs__op *ops[] = {&op.op};
  op.key = dibs__str_of(key, strlen(key));
  op.guards = guards;
  op.if_version = dibs__str_of(version, strlen(version));
  needs_family(p, DIBS__FAM_RECORD);
  run_batch(p, ops, 1);
  keep(op.got);
  return op;
}

static void R21_the_key_of_the_tiers_is_like_any(void **state) {
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
  leave(t);
  struct party *u = party();
  struct dibs__record_op got = reserved(u, DIBS__RECORD_LOAD, key, 0, "", NULL);
  expect(got, DIBS_OK);
  assert_string_equal(got.got, "two");
  assert_int_equal(list_prefix(u, "").count, 0);
}

/* ---- R36 ---- */

typedef struct dibs__report_op report;

static struct party *reporter(void) {
  struct party *p = party();
  if (!(p->identity.families & 1u << DIBS__FAM_REPORT)) skip();
  return p;
}

static report report_op(enum dibs__report_verb verb, int id, const char *data, int64_t keep_ms) {
  report op = {.op = {.family = DIBS__FAM_REPORT, .verb = (uint16_t)verb}, .id = id_of(id), .keep_ms = keep_ms};
  op.op.flags = verb == DIBS__REPORT_READ ? DIBS__OP_READS : 0;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  if (data) op.data = dibs__str_of(data, strlen(data));
  return op;
}

static report run(struct party *p, report op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  keep((char *)op.got);
  return op;
}

static report put(struct party *p, int id, const char *data, bool want) {
  report op = report_op(DIBS__REPORT_PUT, id, data, KEEP_MS);
  op.want = want;
  return run(p, op);
}

static const struct dibs__report *from(const report *op, int id) {
  for (uint32_t i = 0; i < op->got_count; i++)
    if (dibs__id_equal(op->got[i].id, id_of(id))) return &op->got[i];
  return NULL;
}

static void says(const report *op, int id, const char *data) {
  const struct dibs__report *r = from(op, id);
  if (!data) {
    assert_null(r);
    return;
  }
  assert_non_null(r);
  assert_int_equal(r->data.len, strlen(data));
  assert_memory_equal(r->data.p, data, r->data.len);
  assert_in_range(r->age_ms, 0, PATIENCE_MS);
}

static void R36_the_latest_of_each_is_read(void **state) {
  (void)state;
  struct party *p = reporter(), *q = party();
  report read = run(q, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  expect(read, DIBS_OK);
  says(&read, 1, NULL);
  report first = put(p, 1, "one", false);
  expect(first, DIBS_OK);
  assert_int_equal(first.got_count, 0);
  report second = put(q, 2, "", true);
  expect(second, DIBS_OK);
  says(&second, 1, "one");
  says(&second, 2, "");
  report third = put(p, 1, "one, later", true);
  says(&third, 1, "one, later");
  says(&third, 2, "");
  read = run(q, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  says(&read, 1, "one, later");
  expect(run(q, report_op(DIBS__REPORT_DROP, 1, NULL, 0)), DIBS_OK);
  expect(run(q, report_op(DIBS__REPORT_DROP, 1, NULL, 0)), DIBS_OK);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  says(&read, 1, NULL);
  says(&read, 2, "");
}

static void R36_what_is_older_than_was_asked_is_not_read(void **state) {
  (void)state;
  struct party *p = reporter();
  enum { SHORT_MS = 300 };
  expect(put(p, 1, "old", false), DIBS_OK);
  dibs__nap_ms(SHORT_MS + 50); /* by whichever clock: not all of them can be moved */
  report read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, SHORT_MS));
  says(&read, 1, NULL);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS)); /* reading takes nothing away */
  says(&read, 1, "old");
  report op = report_op(DIBS__REPORT_PUT, 2, "new", SHORT_MS);
  expect(run(p, op), DIBS_OK);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS)); /* putting does */
  says(&read, 1, NULL);
  says(&read, 2, "new");
}

static void R36_any_bytes_up_to_their_most(void **state) {
  (void)state;
  struct party *p = reporter();
  char data[DIBS__REPORT_MAX + 1];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
  report op = report_op(DIBS__REPORT_PUT, 1, NULL, KEEP_MS);
  op.want = true;
  op.data = dibs__str_of(data, DIBS__REPORT_MAX);
  report all = run(p, op);
  expect(all, DIBS_OK);
  const struct dibs__report *r = from(&all, 1);
  assert_true(r && r->data.len == DIBS__REPORT_MAX && memcmp(r->data.p, data, DIBS__REPORT_MAX) == 0);
  op.data.len++;
  expect(run(p, op), DIBS_INVALID);
  expect(run(p, report_op(DIBS__REPORT_READ, 0, NULL, 0)), DIBS_INVALID);
  op.op.verb = DIBS__REPORT_DROP + 1;
  expect(run(p, op), DIBS_INVALID);
}

static void R20_what_an_older_dibs_made_goes_on(void **state) {
  (void)state;
  if (!target()->aged) skip();
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  expect(save(p, "r", 1, held.fence, "kept"), DIBS_OK);
  target()->aged(p);
  struct party *q = party();
  assert_int_equal(q->identity.schema, 3);
  expect(put(q, 1, "one", false), DIBS_OK);
  report read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  says(&read, 1, "one");
  assert_string_equal(load(q, "r").got, "kept");
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__anchor_op bucket = anchor_read(q, bucket_of("n"));
  expect(bucket, DIBS_OK);
  assert_false(bucket.served);
}

static void R36_many_in_one_batch(void **state) {
  (void)state;
  struct party *p = reporter(), *t = tier();
  report ops[20];
  struct dibs__op *batch[20];
  char text[20][8];
  for (int i = 0; i < 20; i++) {
    snprintf(text[i], sizeof text[i], "%d", i);
    ops[i] = report_op(DIBS__REPORT_PUT, i, text[i], KEEP_MS);
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 20);
  for (int i = 0; i < 20; i++) expect(ops[i], DIBS_OK);
  report read = run(t, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  for (int i = 0; i < 20; i++) says(&read, i, text[i]);
}

/* What a server keeps is the next case's too: its buckets are its own again. */
static int all_alone(void **state) {
  struct dibs__anchor_op ops[DIBS__BUCKETS];
  struct dibs__op *batch[DIBS__BUCKETS];
  if (target()->no_tier) return case_end(state);
  struct party *t = tier();
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    ops[b] = (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_ALONE, .bucket = b}};
    ops[b].op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
    batch[b] = &ops[b].op;
  }
  if (t->identity.families & 1u << DIBS__FAM_ANCHOR) run_batch(t, batch, DIBS__BUCKETS);
  return case_end(state);
}

#define SERVED(f)                                                                                                      \
  { #f, f, case_begin, all_alone, NULL }
static const struct CMUnitTest contract_tiers_cases[] = {
    SERVED(R34_a_mandate_is_installed_upwards),
    SERVED(R34_only_for_the_present_life),
    SERVED(R34_epochs_have_an_end),
    SERVED(R34_the_sequence_begins_anew),
    SERVED(R34_a_bucket_is_served_alone),
    SERVED(R35_a_tier_is_granted_nothing_of_the_stores_own),
    SERVED(R35_who_is_no_tier_is_refused),
    SERVED(R35_only_under_what_was_installed_last),
    SERVED(R35_also_in_a_batch_of_many),
    SERVED(R35_shared_and_counted_too),
    SERVED(R35_an_epoch_that_is_used_up_is_told),
    SERVED(R35_a_block_too_large_for_what_is_left),
    SERVED(R35_an_offer_takes_the_last_but_one),
    SERVED(R35_two_ask_for_the_last_fence),
    SERVED(R35_a_new_life_voids_what_was_installed),
    SERVED(R35_nobody_makes_the_next_epoch_there),
    SERVED(R35_alone_again_it_goes_on_above),
    SERVED(R35_it_is_remembered),
    SERVED(R35_an_offer_is_granted_under_what_stands),
    CASE(R21_the_key_of_the_tiers_is_like_any),
    CASE(R36_the_latest_of_each_is_read),
    CASE(R36_what_is_older_than_was_asked_is_not_read),
    CASE(R36_any_bytes_up_to_their_most),
    CASE(R36_many_in_one_batch),
    CASE(R20_what_an_older_dibs_made_goes_on),
};
CONTRACT_TESTS(contract_tiers);
