/* SPDX-License-Identifier: MIT */
/* Listing (R19). */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void R19_holders_and_waiters_of_one_name_in_order(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .owner = "anna");
  expect(acquire(q, "n", 2, .owner = "berta"), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .owner = "cecil"), DIBS__QUEUED);
  expect(acquire(p, "other", 4, .owner = "dora"), DIBS_OK);
  struct seen seen = list_name(q, "n");
  assert_int_equal(seen.count, 3);
  assert_string_equal(seen.rows[0].owner, "anna");
  assert_int_equal(seen.rows[0].row.state, DIBS__HOLDS);
  assert_int_equal(seen.rows[0].row.fence.v, held.fence.v);
  assert_int_equal(seen.rows[0].row.ttl_ms, ttl());
  assert_true(seen.rows[0].row.left_ms > 0 && seen.rows[0].row.left_ms <= ttl());
  assert_true(seen.rows[0].row.age_ms >= 0);
  assert_string_equal(seen.rows[1].owner, "berta");
  assert_int_equal(seen.rows[1].row.state, DIBS__WAITS);
  assert_int_equal(seen.rows[1].row.ahead, 0);
  assert_int_equal(seen.rows[1].row.left_ms, 0);
  assert_string_equal(seen.rows[2].owner, "cecil");
  assert_int_equal(seen.rows[2].row.ahead, 1);
  dibs__str name = name_of("n");
  assert_int_equal(strlen(seen.rows[0].name), name.len);
  assert_memory_equal(seen.rows[0].name, name.p, name.len);
}

static void R19_modes_and_slots_are_listed(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED | DIBS__CAP_COUNTED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 3, .owner = "one"), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 3, .owner = "two"), DIBS_OK);
  expect(acquire(p, "m", 3, .mode = DIBS_SHARED, .owner = "three"), DIBS_OK);
  struct seen seen = list_name(p, "n");
  const struct seen_row *two = find_row(&seen, DIBS__HOLDS, "two");
  assert_int_equal(seen.count, 2);
  assert_non_null(two);
  assert_int_equal(two->row.mode, DIBS_COUNTED);
  assert_int_equal(two->row.slots, 3);
  assert_int_equal(two->row.slot, 1);
  seen = list_name(p, "m");
  assert_int_equal(seen.count, 1);
  assert_int_equal(seen.rows[0].row.mode, DIBS_SHARED);
  assert_int_equal(seen.rows[0].row.fence.v, 0);
}

static void R19_an_offer_and_a_sleeper_are_listed(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .owner = "anna");
  expect(acquire(p, "n", 2, .owner = "berta"), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .owner = "cecil"), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct seen seen = list_name(p, "n");
  assert_int_equal(seen.count, 2);
  const struct seen_row *berta = find_row(&seen, DIBS__OFFERED, "berta");
  assert_non_null(berta);
  assert_true(berta->row.left_ms > 0 && berta->row.left_ms <= offer_ms());
  advance_past_offer(p);
  expect(cancel(p, "n", 99), DIBS_NOT_FOUND);
  seen = list_name(p, "n");
  assert_int_equal(seen.count, 2);
  assert_string_equal(seen.rows[0].owner, "berta");
  assert_int_equal(seen.rows[0].row.state, DIBS__WAITS);
  assert_string_equal(seen.rows[1].owner, "cecil");
  assert_int_equal(seen.rows[1].row.state, DIBS__OFFERED);
  assert_int_equal(seen.rows[1].row.ahead, 1);
}

static void R19_ended_leases_are_not_listed(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  assert_int_equal(list_name(p, "n").count, 1);
  advance_past_ttl(p);
  assert_int_equal(list_name(p, "n").count, 0);
  assert_int_equal(list_prefix(p, "").count, 0);
  struct dibs__lease_op held = acquire(p, "n", 2);
  expect(release(p, "n", 2, held.fence), DIBS_OK);
  assert_int_equal(list_name(p, "n").count, 0);
}

static void R19_a_prefix_selects_names(void **state) {
  (void)state;
  struct party *p = party();
  const char *names[] = {"b", "a", "ab", "aa", "a%", "a_", "A", "abc", "a\xc3\xa9"};
  for (int i = 0; i < 9; i++) expect(acquire(p, names[i], i, .ttl = 60000, .owner = names[i]), DIBS_OK);
  struct seen seen = list_prefix(p, "a");
  assert_int_equal(seen.count, 7);
  for (size_t i = 1; i < seen.count; i++) assert_true(strcmp(seen.rows[i - 1].name, seen.rows[i].name) < 0);
  assert_int_equal(list_prefix(p, "ab").count, 2);
  assert_int_equal(list_prefix(p, "a%").count, 1);
  assert_int_equal(list_prefix(p, "a_").count, 1);
  assert_int_equal(list_prefix(p, "A").count, 1);
  assert_int_equal(list_prefix(p, "").count, 9);
  assert_int_equal(list_prefix(p, "zz").count, 0);
}

static void R19_a_listing_goes_on_after_a_name(void **state) {
  (void)state;
  struct party *p = party();
  const char *names[] = {"b", "a", "ab", "aa", "a%", "a_", "A", "abc", "a\xc3\xa9"};
  for (int i = 0; i < 9; i++) expect(acquire(p, names[i], i, .ttl = 60000, .owner = names[i]), DIBS_OK);
  struct seen all = list_prefix(p, "a");
  for (size_t i = 0; i < all.count; i++) {
    dibs__str after = dibs__str_of(all.rows[i].name, strlen(all.rows[i].name));
    struct seen seen = list_how(p, (struct dibs__list){.prefix = name_of("a"), .after = after});
    assert_int_equal(seen.count, all.count - i - 1);
    if (seen.count) assert_string_equal(seen.rows[0].name, all.rows[i + 1].name);
  }
  /* A name that does not exist, before, within and behind those with the prefix. */
  assert_int_equal(list_how(p, (struct dibs__list){.prefix = name_of("a"), .after = name_of("0")}).count, 7);
  assert_int_equal(list_how(p, (struct dibs__list){.prefix = name_of("a"), .after = name_of("aaa")}).count, 3);
  assert_int_equal(list_how(p, (struct dibs__list){.prefix = name_of("a"), .after = name_of("b")}).count, 0);
  assert_int_equal(list_how(p, (struct dibs__list){.prefix = name_of(""), .after = name_of("abc")}).count, 2);
}

static void R19_each_of_many_rows_is_listed_exactly_once(void **state) {
  (void)state;
  enum { NAMES_OF = 140, EACH = 7 }; /* more of both than a driver reads in a step */
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  for (int n = 0; n < NAMES_OF; n++) {
    struct dibs__lease_op ops[EACH];
    struct dibs__op *batch[EACH];
    char name[16], owner[EACH][32];
    snprintf(name, sizeof name, "n%03d", n);
    for (int i = 0; i < EACH; i++) {
      snprintf(owner[i], sizeof owner[i], "%d/%d", n, i);
      ops[i] = lease_op(p, DIBS__ACQUIRE, name, i, (struct how){.mode = DIBS_SHARED, .ttl = 60000, .owner = owner[i]});
      batch[i] = &ops[i].op;
    }
    run_batch(p, batch, EACH);
    for (int i = 0; i < EACH; i++) expect(ops[i], DIBS_OK);
  }
  struct seen seen = list_prefix(p, "n");
  assert_int_equal(seen.count, NAMES_OF * EACH);
  bool *shown = calloc(NAMES_OF * EACH, sizeof *shown);
  assert_non_null(shown);
  free_at_end((char *)shown);
  for (size_t i = 0; i < seen.count; i++) {
    int n, k;
    assert_int_equal(sscanf(seen.rows[i].owner, "%d/%d", &n, &k), 2);
    assert_false(shown[n * EACH + k]);
    shown[n * EACH + k] = true;
    if (i) assert_true(strcmp(seen.rows[i - 1].name, seen.rows[i].name) <= 0);
  }
}

static int stop_at_3(const struct dibs__lease_row *row, void *user) {
  int *count = user;
  (void)row;
  return ++*count == 3;
}

static void R19_the_caller_may_stop(void **state) {
  (void)state;
  struct party *p = party();
  const char *names[] = {"a", "b", "c", "d", "e"};
  int count = 0;
  for (int i = 0; i < 5; i++) expect(acquire(p, names[i], i), DIBS_OK);
  struct dibs__list how = {.prefix = name_of(""), .row = stop_at_3, .user = &count};
  struct dibs__result reported = {0};
  dibs__status status = DIBS_UNAVAILABLE;
  for (int i = 0; i < 100 && status == DIBS_UNAVAILABLE; i++)
    status = store_of(p)->driver->list(p->session, &how, dibs__tick_add_ms(dibs__tick_now(), 5000), &reported);
  assert_int_equal(status, DIBS_OK);
  assert_int_equal(count, 3);
  expect(acquire(p, "f", 6), DIBS_OK);
}

static const struct CMUnitTest contract_lists_cases[] = {
    CASE(R19_holders_and_waiters_of_one_name_in_order),
    CASE(R19_modes_and_slots_are_listed),
    CASE(R19_an_offer_and_a_sleeper_are_listed),
    CASE(R19_ended_leases_are_not_listed),
    CASE(R19_a_prefix_selects_names),
    CASE(R19_a_listing_goes_on_after_a_name),
    CASE(R19_each_of_many_rows_is_listed_exactly_once),
    CASE(R19_the_caller_may_stop),
};
CONTRACT_TESTS(contract_lists);
