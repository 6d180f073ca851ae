/* SPDX-License-Identifier: MIT */
/* Holding a lease: which clients may hold it, the options, ids, and how a lease ends by its holder's will. */
#include "help.h"

#include "base/text.h"

#include <stdio.h>

#define ID_A "00112233445566778899aabbccddeeff"
#define ID_B "ffeeddccbbaa99887766554433221100"

static void exclusive_has_one_holder(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  assert_string_equal(dibs_lease_name(lease), "n");
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_true(dibs_lease_left_ms(lease) > 0 && dibs_lease_left_ms(lease) < DIBS_TTL_DEFAULT_MS);
  assert_true(dibs_lease_fence(lease).value > 0 && dibs_lease_fence(lease).value < UINT64_C(1) << 53);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  assert_int_equal(send_request(two, "other"), DIBS_OK);
  uint64_t fence = dibs_lease_fence(lease).value;
  give(lease);
  lease = take(two, "n");
  assert_true(dibs_lease_fence(lease).value > fence);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  give(lease);
  assert_int_equal(send_request(one, "n"), DIBS_OK);
}

static void shared_excludes_exclusive_only(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *a = take(one, "n", .mode = DIBS_SHARED), *b = take(two, "n", .mode = DIBS_SHARED);
  dibs_lease *c = take(one, "n", .mode = DIBS_SHARED);
  assert_int_equal(dibs_lease_fence(a).value, 0);
  assert_int_equal(dibs_lease_alive(c), 1);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  assert_int_equal(send_request(two, "n", .mode = DIBS_COUNTED, .slots = 2), DIBS_HELD);
  give(a);
  give(b);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  give(c);
  dibs_lease *writer = take(two, "n");
  assert_int_equal(send_request(one, "n", .mode = DIBS_SHARED), DIBS_HELD);
  give(writer);
  assert_int_equal(send_request(one, "n", .mode = DIBS_SHARED), DIBS_OK);
}

static void counted_gives_each_holder_a_slot(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held[3];
  bool used[3] = {false};
  for (int i = 0; i < 3; i++) {
    held[i] = take(i == 1 ? two : one, "n", .mode = DIBS_COUNTED, .slots = 3);
    uint32_t slot = dibs_lease_slot(held[i]);
    assert_true(slot < 3 && !used[slot]);
    used[slot] = true;
  }
  assert_int_equal(send_request(two, "n", .mode = DIBS_COUNTED, .slots = 3), DIBS_HELD);
  assert_int_equal(send_request(two, "n", .mode = DIBS_COUNTED, .slots = 4), DIBS_INVALID);
  uint32_t slot = dibs_lease_slot(held[1]);
  give(held[1]);
  held[1] = take(one, "n", .mode = DIBS_COUNTED, .slots = 3);
  assert_int_equal(dibs_lease_slot(held[1]), slot);
  for (int i = 0; i < 3; i++) give(held[i]);
  assert_int_equal(send_request(two, "n", .mode = DIBS_COUNTED, .slots = 4), DIBS_OK);
}

static void options_are_checked(void **state) {
  (void)state;
  dibs_store *store = open_store();
  char long_name[DIBS_NAME_MAX + 2];
  memset(long_name, 'x', sizeof long_name);
  long_name[sizeof long_name - 1] = '\0';
  dibs_error error;
  dibs_lease *lease = (dibs_lease *)&error;
  assert_int_equal(dibs_acquire(store, long_name, NULL, &lease, &error), DIBS_INVALID);
  assert_null(lease);
  assert_int_equal(error.status, DIBS_INVALID);
  assert_true(error.text[0] != '\0');
  long_name[DIBS_NAME_MAX] = '\0';
  assert_int_equal(send_request(store, long_name), DIBS_OK);
  assert_int_equal(dibs_acquire(store, NULL, NULL, &lease, NULL), DIBS_INVALID);
  assert_int_equal(dibs_acquire(NULL, "n", NULL, &lease, NULL), DIBS_INVALID);
  assert_int_equal(dibs_acquire(store, "n", NULL, NULL, NULL), DIBS_INVALID);
  assert_int_equal(send_request(store, ""), DIBS_INVALID);
  assert_int_equal(send_request(store, "a\nb"), DIBS_INVALID);
  assert_int_equal(send_request(store, "\xff"), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .ttl_ms = DIBS_TTL_MIN_MS - 1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .ttl_ms = DIBS_TTL_MAX_MS + 1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .ttl_ms = -1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .wait_ms = -2), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .slots = 1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .mode = DIBS_COUNTED), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .mode = DIBS_COUNTED, .slots = DIBS_SLOTS_MAX + 1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .mode = (dibs_mode)3), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .flags = 2), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .reserved = 1), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .owner = ""), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .id = "0011"), DIBS_INVALID);
  options too_long = HOW();
  too_long.size = sizeof too_long + 8;
  assert_int_equal(request_as(store, "n", too_long), DIBS_INVALID);
  assert_int_equal(send_request(store, "n", .ttl_ms = DIBS_TTL_MIN_MS), DIBS_OK);
  assert_int_equal(dibs_acquire(store, "n", NULL, &lease, &error), DIBS_OK);
  assert_int_equal(error.status, DIBS_OK);
  assert_string_equal(error.text, "");
  give(lease);
}

/* A program that was built when the struct was shorter. */
static void shorter_options_have_defaults_for_missing_fields(void **state) {
  (void)state;
  dibs_store *store = open_store();
  options how = HOW(.mode = DIBS_COUNTED, .slots = 2, .ttl_ms = 2000, .wait_ms = -7, .id = "not read");
  how.size = offsetof(options, wait_ms);
  dibs_lease *lease = take_as(store, "n", how);
  assert_true(dibs_lease_left_ms(lease) <= 2000);
  give(lease);
  how.size = sizeof(size_t);
  lease = take_as(store, "n", how);
  assert_true(dibs_lease_fence(lease).value > 0); /* exclusive: the mode is beyond the end */
  assert_true(dibs_lease_left_ms(lease) > 20000);
  give(lease);
  how.size = sizeof(size_t) - 1;
  assert_int_equal(request_as(store, "n", how), DIBS_INVALID);

  dibs_store_options so = {.size = sizeof(size_t), .flags = 0xffff, .owner = "not read"};
  dibs_store *other = NULL;
  assert_int_equal(dibs_open(case_uri(), &so, &other, NULL), DIBS_OK);
  dibs_close(other);
  dibs_break_options bo = {.size = offsetof(dibs_break_options, who), .who = (const char *)1};
  lease = take(store, "n");
  assert_int_equal(dibs_break(store, "n", &bo, NULL), DIBS_OK);
  dibs_lease_free(lease);
}

static void released_twice_is_lost(void **state) {
  (void)state;
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n");
  assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(dibs_lease_left_ms(lease), 0);
  dibs_error error;
  assert_int_equal(dibs_release(lease, &error), DIBS_LOST);
  assert_int_equal(error.status, DIBS_LOST);
  assert_int_not_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  char id[33];
  assert_int_equal(dibs_lease_id(lease, id, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
  assert_int_equal(dibs_release(NULL, NULL), DIBS_INVALID);
  dibs_lease_free(NULL);
}

static void a_freed_lease_is_released(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  assert_ptr_equal(dibs_lease_retain(lease), lease);
  dibs_lease_free(lease);
  assert_int_equal(dibs_lease_alive(lease), 1); /* of the other owner */
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  dibs_lease_free(lease);
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
}

static void same_id_finds_the_same_grant(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *a = take(one, "n", .id = ID_A), *b = take(two, "n", .id = ID_A);
  assert_true(dibs_lease_fence(a).value > 0);
  assert_int_equal(dibs_lease_fence(a).value, dibs_lease_fence(b).value);
  assert_int_equal(send_request(two, "n", .id = ID_B), DIBS_HELD);
  char id[33];
  assert_int_equal(dibs_lease_id(b, id, NULL), DIBS_OK);
  assert_string_equal(id, ID_A);
  assert_int_equal(dibs_release(b, NULL), DIBS_OK);
  assert_int_equal(dibs_release(a, NULL), DIBS_LOST);
  dibs_lease_free(a);
  dibs_lease_free(b);
}

static void a_detached_lease_is_adopted_renewed_and_released(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .ttl_ms = 20000);
  char id[33];
  assert_int_equal(dibs_lease_id(lease, id, NULL), DIBS_OK);
  uint64_t fence = dibs_lease_fence(lease).value;
  assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
  close_store(one); /* neither call releases it */

  dibs_lease *adopted = NULL;
  assert_int_equal(dibs_lease_adopt(two, "n", id, (dibs_fence){fence}, NULL, &adopted, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_fence(adopted).value, fence);
  assert_int_equal(dibs_lease_alive(adopted), 0); /* nothing was sent yet */
  dibs_lease *again = NULL;
  assert_int_equal(dibs_lease_adopt(two, "n", id, (dibs_fence){fence}, NULL, &again, NULL), DIBS_INVALID);
  assert_null(again);
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  assert_int_equal(dibs_renew(adopted, 5000, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_alive(adopted), 1);
  assert_true(dibs_lease_left_ms(adopted) <= 5000);
  give(adopted);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
}

static void adopted_with_a_wrong_id_or_fence_is_lost(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n"), *adopted = NULL;
  char id[33];
  assert_int_equal(dibs_lease_id(lease, id, NULL), DIBS_OK);
  uint64_t fence = dibs_lease_fence(lease).value;
  assert_int_equal(dibs_lease_adopt(two, "n", ID_B, (dibs_fence){fence}, NULL, &adopted, NULL), DIBS_OK);
  assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_LOST);
  assert_int_equal(dibs_release(adopted, NULL), DIBS_LOST);
  dibs_lease_free(adopted);
  assert_int_equal(dibs_lease_adopt(two, "n", id, (dibs_fence){fence + 1}, NULL, &adopted, NULL), DIBS_OK);
  assert_int_equal(dibs_release(adopted, NULL), DIBS_LOST);
  dibs_lease_free(adopted);
  assert_int_equal(dibs_lease_adopt(two, "n", id, (dibs_fence){fence + 1}, NULL, &adopted, NULL), DIBS_OK);
  assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_LOST);
  dibs_lease_free(adopted);
  assert_int_equal(dibs_lease_adopt(two, "n", "xyz", (dibs_fence){fence}, NULL, &adopted, NULL), DIBS_INVALID);
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  give(lease);
}

static void a_renewal_may_change_the_ttl(void **state) {
  (void)state;
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n", .ttl_ms = 2000);
  assert_true(dibs_lease_left_ms(lease) <= 2000);
  assert_int_equal(dibs_renew(lease, 60000, NULL), DIBS_OK);
  assert_true(dibs_lease_left_ms(lease) > 50000);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK); /* it is now the lease's ttl */
  assert_true(dibs_lease_left_ms(lease) > 50000);
  assert_int_equal(dibs_renew(lease, 1000, NULL), DIBS_OK);
  assert_true(dibs_lease_left_ms(lease) <= 1000);
  assert_int_equal(dibs_renew(lease, 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_renew(lease, DIBS_TTL_MAX_MS + 1, NULL), DIBS_INVALID);
  give(lease);
}

/* Two clocks drift apart during the whole ttl. */
static void margin_grows_with_the_ttl(void **state) {
  (void)state;
  dibs_store *store = open_store();
  const struct {
    int64_t ttl_ms, margin_ms;
  } some[] = {{100, 5}, {2000, 102}, {30000, 530}, {3600000, 4100}, {DIBS_TTL_MAX_MS, 86900}};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
    dibs__tick before = dibs__tick_now();
    dibs_lease *lease = take(store, "n", .ttl_ms = some[i].ttl_ms, .flags = DIBS_NO_RENEW);
    int64_t left_ms = dibs_lease_left_ms(lease), most_ms = some[i].ttl_ms - some[i].margin_ms;
    assert_true(left_ms <= most_ms && left_ms >= most_ms - ms_since(before) - 2);
    dibs_lease_free(lease);
    UNTIL(send_request(store, "n") == DIBS_OK);
  }
}

static void close_releases_held_leases(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *a = take(one, "a"), *b = take(one, "b", .mode = DIBS_SHARED), *c = take(one, "c", .flags = DIBS_NO_RENEW);
  close_store(one);
  assert_int_equal(send_request(two, "a"), DIBS_OK);
  assert_int_equal(send_request(two, "b"), DIBS_OK);
  assert_int_equal(send_request(two, "c"), DIBS_OK);
  assert_int_equal(dibs_lease_alive(a), 0);
  dibs_status status = dibs_release(a, NULL);
  assert_true(status == DIBS_INVALID || status == DIBS_LOST);
  assert_string_equal(dibs_lease_name(b), "b");
  dibs_lease_free(a);
  dibs_lease_free(b);
  dibs_lease_free(c);
  dibs_close(NULL);
}

static void the_owner_defaults_to_that_of_the_store(void **state) {
  (void)state;
  dibs_store_options so = {.size = sizeof so, .owner = "the store's"};
  dibs_store *store = NULL;
  assert_int_equal(dibs_open(case_uri(), &so, &store, NULL), DIBS_OK);
  assert_non_null(strstr(dibs_store_uri(store), case_scheme()));
  assert_int_equal(dibs_fd(store), -1);
  assert_int_equal(dibs_dispatch(store, 0), 0);
  dibs_close(store);
  so.flags = 0x8000;
  assert_int_equal(dibs_open(case_uri(), &so, &store, NULL), DIBS_INVALID);
  assert_null(store);
  dibs_error error;
  assert_int_equal(dibs_open("nosuch:thing", NULL, &store, &error), DIBS_UNSUPPORTED);
  assert_non_null(strstr(error.text, "nosuch"));
}

static void stats_count_calls(void **state) {
  (void)state;
  dibs_store *store = open_store();
  dibs_lease *a = take(store, "a"), *b = take(store, "b");
  assert_int_equal(dibs_renew(a, 0, NULL), DIBS_OK);
  struct stats stats = stats_of(store);
  assert_int_equal(stats.acquired, 2);
  assert_int_equal(stats.held, 2);
  assert_int_equal(stats.waiting, 0);
  assert_int_equal(stats.renewed, 1);
  assert_int_equal(stats.lost, 0);
  assert_true(stats.operations >= 3 && stats.batches >= 1 && stats.transactions >= 1);
  give(a);
  give(b);
  stats = stats_of(store);
  assert_int_equal(stats.held, 0);
  assert_int_equal(stats.acquired, 2);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(exclusive_has_one_holder),
      TEST(shared_excludes_exclusive_only),
      TEST(counted_gives_each_holder_a_slot),
      TEST(options_are_checked),
      TEST(shorter_options_have_defaults_for_missing_fields),
      TEST(released_twice_is_lost),
      TEST(a_freed_lease_is_released),
      TEST(same_id_finds_the_same_grant),
      TEST(a_detached_lease_is_adopted_renewed_and_released),
      TEST(adopted_with_a_wrong_id_or_fence_is_lost),
      TEST(a_renewal_may_change_the_ttl),
      TEST(margin_grows_with_the_ttl),
      TEST(close_releases_held_leases),
      TEST(the_owner_defaults_to_that_of_the_store),
      TEST(stats_count_calls),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
