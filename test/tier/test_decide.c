/* SPDX-License-Identifier: MIT */
/* Decides which tier serves a bucket, and under which epoch. */
#include "bed.h"
#include "unit.h"

#include <string.h>

static dibs__mandate has(uint32_t epoch, uint8_t incarnation) {
  return (dibs__mandate){epoch, incarnation_of(incarnation)};
}

/* A bucket that the first tier has served for some time. */
static struct dibs__tiers_state settled(uint32_t epoch, uint8_t incarnation) {
  struct dibs__tiers_state s = two_tiers();
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] = (struct dibs__tiers_mandate){epoch, 0, incarnation_of(incarnation), NOW - 60000, 0, {0}};
  return s;
}

/* ---- The tier of a bucket ---- */

static void all_on(const struct dibs__tiers_state *s, uint32_t first_bucket, uint32_t end, uint32_t tier) {
  for (uint32_t b = first_bucket; b < end; b++)
    if (dibs__tiers_wanted(s, b) != tier) fail_msg("bucket %u on %u", b, dibs__tiers_wanted(s, b));
}

static void roll_out_is_by_bucket(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  all_on(&s, 0, 100, 0);
  s.tiers[0].percent = 10;
  all_on(&s, 0, 10, 0);
  all_on(&s, 10, 100, 1);
  s.tiers[0].percent = 0;
  all_on(&s, 0, 100, 1);
  s = three_tiers();
  s.tiers[0].percent = 10;
  s.tiers[1].percent = 30;
  all_on(&s, 0, 10, 0);
  all_on(&s, 10, 30, 1);
  all_on(&s, 30, 100, 2);
}

static void an_unreachable_tier_is_left_by_buckets_that_may_move(void **state) {
  (void)state;
  struct dibs__tiers_state s = three_tiers();
  s.tiers[0].down = true;
  all_on(&s, 0, 100, 1);
  s.tiers[1].down = true;
  all_on(&s, 0, 100, 2);
  s.fallback = 25;
  all_on(&s, 0, 25, 2);
  all_on(&s, 25, 100, 0);
  s.fallback = 0;
  all_on(&s, 0, 100, 0);
  /* A bucket that is not rolled out to a tier does not stay on it. */
  s.tiers[0].percent = 50;
  all_on(&s, 0, 50, 0);
  all_on(&s, 50, 100, 1);
}

static void manual_states_and_the_breaker_flag_overrule_votes(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  s.tiers[0].hand = DIBS__HAND_OPEN;
  all_on(&s, 0, 100, 1);
  s.breaker = false; /* a manual decision needs no vote */
  all_on(&s, 0, 100, 1);
  s = two_tiers();
  s.tiers[0].down = true;
  s.tiers[0].hand = DIBS__HAND_CLOSED;
  all_on(&s, 0, 100, 0);
  s.tiers[0].hand = DIBS__HAND_AUTO;
  all_on(&s, 0, 100, 1);
  s.breaker = false;
  all_on(&s, 0, 100, 0);
}

static void the_last_tier_is_never_down(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  s.tiers[0].hand = s.tiers[1].hand = DIBS__HAND_OPEN;
  s.tiers[1].down = true;
  all_on(&s, 0, 100, 1);
}

static void a_pin_overrules_everything(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  s.pinned = 1;
  all_on(&s, 0, 100, 1);
  s.pinned = 0;
  s.tiers[0].percent = 0;
  s.tiers[0].down = true;
  s.tiers[0].hand = DIBS__HAND_OPEN;
  all_on(&s, 0, 100, 0);
}

/* ---- A record that was restored to an older state ---- */

static void a_restored_record_skips_epochs_that_it_may_have_used(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50;
  struct dibs__tiers_state s = settled(e, 1);
  dibs__incarnation incarnation = incarnation_of(2);
  assert_int_equal(dibs__tiers_pass_over(&s, 3, e + 10, &incarnation, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, e + 10 + DIBS__TIERS_PASS_OVER + 1);
  assert_memory_equal(&s.mandates[3].incarnation, &incarnation, sizeof incarnation);
  assert_int_equal(dibs__tiers_pass_over(&s, 4, 0, &incarnation, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[4].epoch, e + DIBS__TIERS_PASS_OVER + 1);
  /* After any number of restores the remaining epochs are not used up. */
  for (int i = 0; i < 500; i++) assert_int_equal(dibs__tiers_pass_over(&s, 5, 0, &incarnation, NOW), DIBS__TIERS_MADE);
  assert_true(s.mandates[5].epoch < DIBS__EPOCH_MAX);
  s.mandates[6].epoch = DIBS__EPOCH_MAX;
  assert_int_equal(dibs__tiers_pass_over(&s, 6, 0, &incarnation, NOW), DIBS__TIERS_SPENT);
}

static void the_mark_of_a_left_tier_reveals_the_next_epoch(void **state) {
  (void)state;
  assert_int_equal(dibs__tiers_made(428047), 428048);
  assert_int_equal(dibs__tiers_made(428048), 428048);
  assert_int_equal(dibs__tiers_made(0), 0);
  assert_true(dibs__tiers_tells_strict(428045) && dibs__tiers_tells_strict(428046)); /* 428046 % 4 == 2 */
  assert_false(dibs__tiers_tells_strict(428047) || dibs__tiers_tells_strict(428048) || dibs__tiers_tells_strict(0));
}

static bool owes(const struct dibs__tiers_state *state, int64_t repairs, uint64_t version) {
  return dibs__tiers_owes_flags(state, &(struct dibs__tiers_read_at){repairs, version});
}

static void a_repaired_record_lacks_later_flags(void **state) {
  (void)state;
  struct dibs__tiers_state s = settled(dibs__tiers_first_epoch(NOW), 1);
  s.repairs = 1;
  assert_false(owes(&s, 0, 50)); /* no client repaired it: a fleet began again */
  s.repaired = NOW;
  assert_true(owes(&s, 0, 50)); /* it was missing: all flags are later ones */
  s.flags_of = (struct dibs__tiers_read_at){0, 20};
  assert_true(owes(&s, 0, 21));
  assert_false(owes(&s, 0, 20));
  assert_false(owes(&s, 1, 60)); /* read since then */
  s.repaired = 0;
  assert_true(owes(&s, 0, 21)); /* repaired by a bump */
  s.flags_of = (struct dibs__tiers_read_at){DIBS__TIERS_SETTLED, DIBS__TIERS_SETTLED};
  assert_false(owes(&s, 0, 21));
}

static void flags_keep_their_version(void **state) {
  (void)state;
  struct dibs__tiers_state s = settled(dibs__tiers_first_epoch(NOW), 1);
  s.repairs = 2;
  assert_true(dibs__tiers_flags_at(&s, 7).repairs == 2 && dibs__tiers_flags_at(&s, 7).version == 7);
  assert_true(dibs__tiers_flags_at(&s, 0).repairs == 0 && dibs__tiers_flags_at(&s, 0).version == 0);
  s.flags_of = (struct dibs__tiers_read_at){1, 20};
  assert_true(dibs__tiers_flags_at(&s, 7).repairs == 1 && dibs__tiers_flags_at(&s, 7).version == 20);
  s.flags_of = (struct dibs__tiers_read_at){DIBS__TIERS_SETTLED, DIBS__TIERS_SETTLED};
  assert_true(dibs__tiers_flags_at(&s, 7).repairs == 2 && dibs__tiers_flags_at(&s, 7).version == 7);
}

/* ---- The state that a tier reports ---- */

static void epochs_begin_above_the_fences_of_a_store_alone(void **state) {
  (void)state;
  /* The fence of an hour by a clock in ms * 1024. */
  for (int64_t now = NOW; now < NOW + 2 * EPOCH_BITS_MS; now += 60000) {
    uint64_t alone = (uint64_t)(now + 3600000) * 1024;
    assert_true(dibs__fence_make(dibs__tiers_first_epoch(now), 0).v > alone);
    assert_true(dibs__tiers_first_epoch(now) <= (uint64_t)(now + 3 * EPOCH_BITS_MS) >> 22);
  }
  assert_int_equal(dibs__tiers_first_epoch(-1), 1);
  assert_int_equal(dibs__tiers_first_epoch(INT64_MAX), 1);
}

static void the_first_client_creates_the_first_epoch(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  dibs__mandate nothing = has(0, 1);
  assert_int_equal(dibs__tiers_told(&s, 7, &nothing, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[7].epoch, dibs__tiers_first_epoch(NOW));
  assert_memory_equal(&s.mandates[7].incarnation, &nothing.incarnation, sizeof nothing.incarnation);
  assert_true(s.mandates[7].since == NOW);
  assert_int_equal(s.mandates[6].epoch + s.mandates[8].epoch, 0);
  dibs__mandate same = has(s.mandates[7].epoch, 1);
  assert_int_equal(dibs__tiers_told(&s, 7, &same, NOW + 1), DIBS__TIERS_JOIN);
}

static void a_tier_with_another_state_gets_the_next_epoch(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50;
  const dibs__mandate others[] = {has(0, 1), has(0, 2), has(e, 2), has(e - 1, 1), has(e - 1, 2), has(e + 3, 1)};
  for (size_t i = 0; i < COUNT_OF(others); i++) {
    struct dibs__tiers_state s = settled(e, 1);
    assert_int_equal(dibs__tiers_told(&s, 3, &others[i], NOW), DIBS__TIERS_MADE);
    assert_int_equal(s.mandates[3].epoch, (others[i].epoch > e ? others[i].epoch : e) + 1);
    assert_memory_equal(&s.mandates[3].incarnation, &others[i].incarnation, sizeof others[i].incarnation);
    assert_int_equal(s.mandates[3].tier, 0);
    assert_true(s.mandates[3].since == NOW && s.mandates[3].from == 0);
  }
  struct dibs__tiers_state s = settled(e, 1), before = s;
  dibs__mandate same = has(e, 1);
  assert_int_equal(dibs__tiers_told(&s, 3, &same, NOW), DIBS__TIERS_JOIN);
  assert_memory_equal(&s, &before, sizeof s);
}

static void a_new_epoch_has_a_moment_to_arrive(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50;
  struct dibs__tiers_state s = settled(e, 1), before;
  s.mandates[3].since = NOW;
  before = s;
  dibs__mandate late = has(e - 1, 1), ahead = has(e + 1, 1), same = has(e, 1);
  for (int64_t now = NOW; now < NOW + DIBS__TIERS_GRACE_MS; now += 10) {
    assert_int_equal(dibs__tiers_told(&s, 3, &late, now), DIBS__TIERS_YOUNG);
    assert_int_equal(dibs__tiers_told(&s, 3, &same, now), DIBS__TIERS_JOIN);
  }
  /* After a small step back of the clock it waits; after a larger one it does not. */
  assert_int_equal(dibs__tiers_told(&s, 3, &late, NOW - 10), DIBS__TIERS_YOUNG);
  assert_memory_equal(&s, &before, sizeof s);
  assert_int_equal(dibs__tiers_told(&s, 3, &late, NOW + DIBS__TIERS_GRACE_MS), DIBS__TIERS_MADE);
  s = before;
  assert_int_equal(dibs__tiers_told(&s, 3, &late, NOW - 3600000), DIBS__TIERS_MADE);
  /* A higher epoch is not the expected one. */
  s = before;
  assert_int_equal(dibs__tiers_told(&s, 3, &ahead, NOW + 1), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, e + 2);
}

static void an_anchor_that_is_behind_is_raised_only_by_hand(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50;
  struct dibs__tiers_state s = settled(e, 1), before = s;
  dibs__mandate server = has(e + DIBS__TIERS_RAISE_MAX + 1, 1), near = has(e + DIBS__TIERS_RAISE_MAX, 1);
  assert_int_equal(dibs__tiers_told(&s, 3, &server, NOW), DIBS__TIERS_SERVER);
  assert_int_equal(dibs__tiers_next(&s, 3, server.epoch, &server.incarnation, NOW), DIBS__TIERS_SERVER);
  assert_memory_equal(&s, &before, sizeof s);
  assert_int_equal(dibs__tiers_told(&s, 3, &near, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, near.epoch + 1);
  s = before;
  assert_int_equal(dibs__tiers_bump(&s, 3, server.epoch, &server.incarnation, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, server.epoch + 1);
  /* An empty anchor is behind its clock, not behind 0. */
  s = two_tiers();
  dibs__mandate old = has(dibs__tiers_first_epoch(NOW) + 7, 1);
  assert_int_equal(dibs__tiers_told(&s, 3, &old, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, old.epoch + 1);
}

static void after_the_last_epoch_there_is_none(void **state) {
  (void)state;
  struct dibs__tiers_state s = settled(DIBS__EPOCH_MAX - 1, 1), before;
  dibs__incarnation incarnation = incarnation_of(1);
  assert_int_equal(dibs__tiers_next(&s, 3, 0, &incarnation, NOW), DIBS__TIERS_MADE);
  assert_int_equal(s.mandates[3].epoch, DIBS__EPOCH_MAX);
  before = s;
  dibs__mandate nothing = has(0, 2);
  assert_int_equal(dibs__tiers_told(&s, 3, &nothing, NOW + 5000), DIBS__TIERS_SPENT);
  assert_int_equal(dibs__tiers_next(&s, 3, 0, &incarnation, NOW), DIBS__TIERS_SPENT);
  assert_int_equal(dibs__tiers_bump(&s, 3, UINT32_MAX, &incarnation, NOW), DIBS__TIERS_SPENT);
  assert_memory_equal(&s, &before, sizeof s);
}

/* ---- How strict ---- */

static void strict_waits_for_all_possible_holders(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50, to;
  int64_t over = NOW + DIBS__TIERS_CONFIRM_MS + 45000;
  dibs__incarnation one = incarnation_of(1), two = incarnation_of(2);
  const dibs__incarnation *lives[] = {&one, &two};
  const dibs__mandate *unknown[] = {NULL, NULL};
  struct dibs__buckets moved;
  for (int strict = 0; strict < 2; strict++) {
    struct dibs__tiers_state s = settled(e, 1), begun;
    s.strictness = strict ? DIBS__STRICT : DIBS__FENCED;
    s.longest_ms = 45000;
    begun = s;
    /* Its memory was lost, or belongs to another incarnation, or an install arrived late. */
    const dibs__mandate others[] = {has(0, 1), has(e, 2), has(e - 1, 1)};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
      s = begun;
      assert_int_equal(dibs__tiers_told(&s, 3, &others[i], NOW), DIBS__TIERS_MADE);
      assert_true(s.mandates[3].from == (strict ? over : 0));
    }
    /* A move. */
    s = begun;
    s.pinned = 1;
    assert_true(dibs__tiers_astray(&s, &to) && dibs__tiers_placement(&s, lives, unknown, NOW, &moved));
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++) assert_true(s.mandates[b].from == (strict ? over : 0));
    /* The sequence is used up: no lease was forgotten. */
    s = begun;
    assert_int_equal(dibs__tiers_next(&s, 3, 0, &one, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == 0);
    /* The same in another incarnation, and if the tier has a higher epoch than the anchor knows. */
    s = begun;
    assert_int_equal(dibs__tiers_next(&s, 3, 0, &two, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == (strict ? over : 0));
    s = begun;
    assert_int_equal(dibs__tiers_next(&s, 3, e + 1, &one, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == (strict ? over : 0));
    /* A used-up sequence does not end a wait, but the wait is not endless. */
    s = begun;
    s.mandates[3].from = NOW + 1000;
    assert_int_equal(dibs__tiers_next(&s, 3, 0, &one, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == (strict ? NOW + 1000 : 0));
    s.mandates[3].from = NOW + 3600000;
    assert_int_equal(dibs__tiers_next(&s, 3, 0, &one, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == (strict ? over : 0));
    /* The bucket was never served: nothing to wait for, unless the tier has leases. */
    s = two_tiers();
    s.strictness = begun.strictness;
    s.longest_ms = 45000;
    const dibs__mandate nothing = has(0, 1), something = has(e, 1);
    assert_int_equal(dibs__tiers_told(&s, 3, &nothing, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[3].from == 0);
    assert_int_equal(dibs__tiers_told(&s, 4, &something, NOW), DIBS__TIERS_MADE);
    assert_true(s.mandates[4].from == (strict ? over : 0));
  }
}

/* ---- Moves ---- */

static void buckets_move_to_their_tier(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50, to;
  dibs__incarnation one = incarnation_of(1), two = incarnation_of(2);
  const dibs__incarnation *lives[] = {&one, &two};
  dibs__mandate there[DIBS__BUCKETS];
  const dibs__mandate *known[] = {NULL, there};
  struct dibs__buckets moved;
  struct dibs__tiers_state s = settled(e, 1), before = s;
  assert_false(dibs__tiers_astray(&s, &to));
  assert_false(dibs__tiers_placement(&s, lives, known, NOW, &moved));
  assert_true(moved.bits[0] == 0 && moved.bits[1] == 0);
  assert_memory_equal(&s, &before, sizeof s);

  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) there[b] = has(b == 70 ? e + 9 : b == 71 ? e + 100000 : 0, 2);
  s.tiers[0].percent = 10;
  assert_true(dibs__tiers_astray(&s, &to));
  assert_int_equal(to, 1 << 1);
  assert_true(dibs__tiers_placement(&s, lives, known, NOW, &moved));
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    bool should = b >= 10 && b != 71; /* its new tier has an epoch that the anchor may not exceed by itself */
    assert_int_equal(dibs__buckets_has(&moved, b), should);
    assert_int_equal(s.mandates[b].tier, should);
    assert_int_equal(s.mandates[b].epoch, !should ? e : b == 70 ? e + 10 : e + 1);
    assert_memory_equal(&s.mandates[b].incarnation, should ? &two : &one, sizeof one);
  }
}

static void an_unreachable_tier_gets_no_bucket(void **state) {
  (void)state;
  uint32_t e = dibs__tiers_first_epoch(NOW) + 50, to;
  dibs__incarnation one = incarnation_of(1), three = incarnation_of(3);
  const dibs__incarnation *lives[] = {&one, NULL, &three};
  const dibs__mandate *unknown[] = {NULL, NULL, NULL};
  struct dibs__buckets moved;
  struct dibs__tiers_state s = three_tiers();
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] = (struct dibs__tiers_mandate){e, 0, one, NOW - 60000, 0, {0}};
  s.tiers[0].percent = 0;
  s.tiers[1].percent = 40;
  assert_true(dibs__tiers_astray(&s, &to));
  assert_int_equal(to, 1 << 1 | 1 << 2);
  assert_true(dibs__tiers_placement(&s, lives, unknown, NOW, &moved));
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) assert_int_equal(s.mandates[b].tier, b < 40 ? 0 : 2);
  assert_false(dibs__tiers_placement(&s, lives, unknown, NOW, &moved));
}

/* The target tier does not have its epoch yet, or never gets it: the leases are still on the old tier. */
static void a_move_that_has_not_arrived_is_not_reversed(void **state) {
  (void)state;
  struct dibs__tiers_state s = settled(1000, 1);
  dibs__incarnation first = incarnation_of(1), last = incarnation_of(2);
  const dibs__incarnation *lives[] = {&first, &last};
  dibs__mandate there[2][DIBS__BUCKETS];
  const dibs__mandate *known[] = {there[0], there[1]};
  struct dibs__buckets moved;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) there[0][b] = has(1000, 1), there[1][b] = has(3, 2);
  s.pinned = 1;
  assert_true(dibs__tiers_placement(&s, lives, known, NOW, &moved));
  struct dibs__tiers_mandate under_way = s.mandates[7];
  assert_true(under_way.tier == 1 && under_way.left.epoch == 1000 && under_way.left.tier == 0);
  s.pinned = -1;
  assert_false(dibs__tiers_placement(&s, lives, known, NOW + 60000, &moved));
  assert_memory_equal(&s.mandates[7], &under_way, sizeof under_way);
  /* Moved by hand from an unreachable tier: its remaining leases cannot be listed. */
  known[1] = NULL;
  assert_true(dibs__tiers_placement(&s, lives, known, NOW + 60000, &moved));
}

/* ---- Random events ---- */

/* The changes of one step to each bucket. */
struct step {
  uint32_t above[DIBS__BUCKETS];
  bool requested[DIBS__BUCKETS];
};

static bool mandates_equal(const struct dibs__tiers_mandate *a, const struct dibs__tiers_mandate *b) {
  return a->epoch == b->epoch && a->tier == b->tier && a->since == b->since && a->from == b->from &&
         memcmp(a->incarnation.b, b->incarnation.b, sizeof a->incarnation.b) == 0 && a->left.epoch == b->left.epoch &&
         a->left.tier == b->left.tier &&
         memcmp(a->left.incarnation.b, b->left.incarnation.b, sizeof a->left.incarnation.b) == 0;
}

static void check_epochs_grew(const struct dibs__tiers_state *before, const struct dibs__tiers_state *after,
                              const struct step *step, int64_t now) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *was = &before->mandates[b], *is = &after->mandates[b];
    if (mandates_equal(was, is)) continue;
    assert_true(step->requested[b]);
    /* So no two mandates share an epoch, on any tier. */
    assert_true(is->epoch > was->epoch);
    assert_true(is->epoch > step->above[b]);
    assert_true(is->epoch >= dibs__tiers_first_epoch(now));
    assert_true(is->epoch <= DIBS__EPOCH_MAX && is->tier < after->count && is->since == now);
    int64_t over = now + DIBS__TIERS_CONFIRM_MS + after->longest_ms;
    assert_true(after->strictness == DIBS__FENCED ? is->from == 0 : is->from <= over);
    bool moved = was->epoch && was->tier != is->tier;
    /* A move in which the tier participates waits for no lease: leases continue there. */
    if (moved && is->left.epoch) {
      assert_true(is->left.epoch == was->epoch && is->left.tier == was->tier && !was->left.epoch);
      assert_true(is->from == (after->strictness == DIBS__STRICT && was->from < over ? was->from : is->from));
    } else if (moved && after->strictness == DIBS__STRICT) {
      assert_true(is->from == over);
    }
  }
}

static void change_something(struct dibs__tiers_state *s, uint64_t *seed) {
  uint32_t tier = (uint32_t)draw(seed, s->count - 1);
  switch (draw(seed, 6)) {
  case 0:
    s->tiers[tier].percent = (uint32_t)draw(seed, 101);
    break;
  case 1:
    s->tiers[tier].down = draw(seed, 2);
    break;
  case 2:
    s->tiers[tier].hand = (enum dibs__tiers_hand)draw(seed, 3);
    break;
  case 3:
    s->pinned = draw(seed, 3) ? -1 : (int32_t)draw(seed, s->count);
    break;
  case 4:
    s->fallback = (uint32_t)draw(seed, 101);
    break;
  default:
    s->strictness = (enum dibs__tiers_strictness)draw(seed, 2);
    s->longest_ms = (int64_t)draw(seed, 60000);
  }
}

static void one_bucket(struct dibs__tiers_state *s, uint64_t *seed, struct step *step, int64_t now) {
  uint32_t b = (uint32_t)draw(seed, DIBS__BUCKETS);
  const struct dibs__tiers_mandate *m = &s->mandates[b];
  uint32_t near = (uint32_t)draw(seed, 5), standing = m->epoch;
  dibs__mandate told = {draw(seed, 4) ? standing + 2 - (near < standing ? near : 0) : (uint32_t)draw(seed, 4000),
                        draw(seed, 2) ? m->incarnation : incarnation_of((uint8_t)draw(seed, 5))};
  bool is_it =
      standing && told.epoch == standing && memcmp(&told.incarnation, &m->incarnation, sizeof m->incarnation) == 0;
  uint64_t way = draw(seed, 4);
  step->requested[b] = true;
  step->above[b] = told.epoch;
  if (way == 0) {
    dibs__tiers_next(s, b, told.epoch, &told.incarnation, now);
  } else if (way == 1 && draw(seed, 8) == 0) {
    dibs__tiers_bump(s, b, told.epoch + (uint32_t)draw(seed, 3000), &told.incarnation, now);
  } else {
    enum dibs__tiers_verdict verdict = dibs__tiers_told(s, b, &told, now);
    assert_int_equal(verdict == DIBS__TIERS_JOIN, is_it);
    assert_int_equal(verdict == DIBS__TIERS_MADE, s->mandates[b].epoch != standing);
  }
}

static void all_buckets(struct dibs__tiers_state *s, uint64_t *seed, struct step *step, int64_t now) {
  dibs__incarnation alive[3];
  dibs__mandate there[3][DIBS__BUCKETS];
  const dibs__incarnation *lives[3];
  const dibs__mandate *known[3];
  struct dibs__tiers_state before = *s;
  struct dibs__buckets moved;
  for (uint32_t i = 0; i < 3; i++) {
    alive[i] = incarnation_of((uint8_t)draw(seed, 5));
    lives[i] = draw(seed, 3) ? &alive[i] : NULL;
    known[i] = draw(seed, 2) ? there[i] : NULL;
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
      there[i][b] = (dibs__mandate){before.mandates[b].epoch + (uint32_t)draw(seed, 3), alive[i]};
  }
  bool any = dibs__tiers_placement(s, lives, known, now, &moved);
  assert_int_equal(any, moved.bits[0] || moved.bits[1]);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    uint32_t wanted = dibs__tiers_wanted(&before, b);
    const struct dibs__tiers_mandate *was = &before.mandates[b];
    const dibs__mandate *has = known[was->tier] ? &there[was->tier][b] : NULL;
    bool well = was->epoch && has && !dibs__tiers_is_down(&before, was->tier) && has->epoch == was->epoch &&
                memcmp(&has->incarnation, &was->incarnation, sizeof was->incarnation) == 0;
    bool up = known[was->tier] && !dibs__tiers_is_down(&before, was->tier);
    bool should = wanted != was->tier && lives[wanted] && !(up && was->left.epoch);
    if (should) assert_int_equal(s->mandates[b].left.epoch, well ? was->epoch : 0);
    assert_int_equal(dibs__buckets_has(&moved, b), should);
    assert_int_equal(s->mandates[b].tier, should ? wanted : before.mandates[b].tier);
    step->requested[b] = true;
    step->above[b] = should && known[wanted] ? there[wanted][b].epoch : 0;
  }
}

static void epochs_only_grow_under_random_events(void **state) {
  (void)state;
  for (uint64_t round = 1; round <= 40; round++) {
    uint64_t seed = round * 0x9e3779b97f4a7c15u;
    struct dibs__tiers_state s = three_tiers();
    int64_t now = NOW;
    for (int i = 0; i < 500; i++) {
      now += (int64_t)draw(&seed, 2000) - (draw(&seed, 50) ? 0 : 60000);
      if (draw(&seed, 4) == 0) change_something(&s, &seed);
      struct dibs__tiers_state before = s;
      struct step step = {{0}, {0}};
      if (draw(&seed, 4))
        one_bucket(&s, &seed, &step, now);
      else
        all_buckets(&s, &seed, &step, now);
      check_epochs_grew(&before, &s, &step, now);
    }
  }
}

/* Clients that act on their latest read; a write on an older version is refused. */
static void of_two_concurrent_decisions_one_is_repeated(void **state) {
  (void)state;
  struct dibs__tiers_state stands = settled(dibs__tiers_first_epoch(NOW) + 1, 1), a = stands, b = stands;
  dibs__mandate empty = has(0, 2);
  assert_int_equal(dibs__tiers_told(&a, 5, &empty, NOW), DIBS__TIERS_MADE);
  assert_int_equal(dibs__tiers_told(&b, 5, &empty, NOW), DIBS__TIERS_MADE);
  assert_int_equal(a.mandates[5].epoch, b.mandates[5].epoch); /* which is why only one write may succeed */
  stands = a;
  b = stands;
  assert_int_equal(dibs__tiers_told(&b, 5, &empty, NOW), DIBS__TIERS_YOUNG);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(roll_out_is_by_bucket),
      cmocka_unit_test(an_unreachable_tier_is_left_by_buckets_that_may_move),
      cmocka_unit_test(manual_states_and_the_breaker_flag_overrule_votes),
      cmocka_unit_test(the_last_tier_is_never_down),
      cmocka_unit_test(a_pin_overrules_everything),
      cmocka_unit_test(a_restored_record_skips_epochs_that_it_may_have_used),
      cmocka_unit_test(a_repaired_record_lacks_later_flags),
      cmocka_unit_test(flags_keep_their_version),
      cmocka_unit_test(the_mark_of_a_left_tier_reveals_the_next_epoch),
      cmocka_unit_test(a_move_that_has_not_arrived_is_not_reversed),
      cmocka_unit_test(epochs_begin_above_the_fences_of_a_store_alone),
      cmocka_unit_test(the_first_client_creates_the_first_epoch),
      cmocka_unit_test(a_tier_with_another_state_gets_the_next_epoch),
      cmocka_unit_test(a_new_epoch_has_a_moment_to_arrive),
      cmocka_unit_test(an_anchor_that_is_behind_is_raised_only_by_hand),
      cmocka_unit_test(after_the_last_epoch_there_is_none),
      cmocka_unit_test(strict_waits_for_all_possible_holders),
      cmocka_unit_test(buckets_move_to_their_tier),
      cmocka_unit_test(an_unreachable_tier_gets_no_bucket),
      cmocka_unit_test(epochs_only_grow_under_random_events),
      cmocka_unit_test(of_two_concurrent_decisions_one_is_repeated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
