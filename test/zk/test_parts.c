/* SPDX-License-Identifier: MIT */
/* The parts of the ZooKeeper driver that need no server: paths, positions in a queue, fences, the URI. */
#include "drivers/zk/zk_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Paths ---- */

static void there_and_back(const char *bytes, uint32_t len) {
  char encoded[3 * DIBS_NAME_MAX + 1], decoded[DIBS_NAME_MAX + 1];
  uint32_t got = 0;
  dibs__zk_encode(dibs__str_of(bytes, len), encoded);
  assert_null(strchr(encoded, '/'));
  assert_string_not_equal(encoded, ".");
  assert_string_not_equal(encoded, "..");
  for (const char *at = encoded; *at; at++) assert_true(*at > ' ' && *at < 0x7f);
  assert_true(dibs__zk_decode(encoded, decoded, &got));
  assert_int_equal(got, len);
  assert_memory_equal(decoded, bytes, len);
}

static void every_name_survives_the_way_through_a_path(void **state) {
  char all[DIBS_NAME_MAX];
  (void)state;
  for (int i = 0; i < DIBS_NAME_MAX; i++) all[i] = (char)(i + 1);
  there_and_back(all, DIBS_NAME_MAX);
  for (int i = 0; i < 256; i++) {
    char one = (char)i;
    there_and_back(&one, 1);
  }
  there_and_back(".", 1);
  there_and_back("..", 2);
  there_and_back("...", 3);
  there_and_back("a.b/c%41", 8);
}

static void two_names_are_two_paths(void **state) {
  char one[3 * DIBS_NAME_MAX + 1], two[3 * DIBS_NAME_MAX + 1];
  (void)state;
  dibs__zk_encode(dibs__str_of("a/b", 3), one);
  dibs__zk_encode(dibs__str_of("a%2Fb", 5), two);
  assert_string_not_equal(one, two);
}

static void a_foreign_component_is_no_name(void **state) {
  char decoded[DIBS_NAME_MAX + 1];
  uint32_t len;
  (void)state;
  assert_false(dibs__zk_decode("a%4", decoded, &len));
  assert_false(dibs__zk_decode("a%zz", decoded, &len));
  assert_false(dibs__zk_decode("", decoded, &len));
}

/* ---- Positions ---- */

static struct dibs__zk_position position_of(const char **names, int count, int32_t seq, bool shared) {
  struct dibs__zk_slot slot = {.names = names, .count = count};
  struct dibs__zk_position position;
  dibs__zk_position(&slot, seq, shared, &position);
  return position;
}

static void only_what_excludes_it_is_before_a_waiter(void **state) {
  const char *names[] = {"00000000000000aa-s-0000000003",
                         "00000000000000ab-x-0000000007",
                         "00000000000000ac-s-0000000005",
                         "00000000000000ad-s-0000000009",
                         "something else",
                         "00000000000000ae-x-0000000011"};
  (void)state;
  struct dibs__zk_position p = position_of(names, 6, 5, true); /* readers before a reader */
  assert_true(p.exists && p.waiting);
  assert_int_equal(p.blockers, 0);
  p = position_of(names, 6, 7, false);
  assert_int_equal(p.blockers, 2);
  assert_int_equal(p.last.seq, 5); /* the last of them, whatever the order of the list */
  assert_int_equal(p.ahead, 0);
  p = position_of(names, 6, 9, true);
  assert_int_equal(p.blockers, 1);
  assert_int_equal(p.last.seq, 7);
  assert_int_equal(p.ahead, 1);
  p = position_of(names, 6, 11, false);
  assert_int_equal(p.blockers, 4);
  assert_int_equal(p.last.seq, 9);
  assert_int_equal(p.ahead, 2);
  assert_false(p.waiting);
  assert_false(position_of(names, 6, 4, false).exists);
}

static void numbers_go_on_after_the_largest(void **state) {
  const char *names[] = {"00000000000000aa-x--2147483648", "00000000000000ab-x-2147483647",
                         "00000000000000ac-x--2147483647"};
  struct dibs__zk_slot slot = {.names = names, .count = 3};
  struct dibs__zk_child *sorted;
  size_t holders;
  (void)state;
  assert_int_equal(dibs__zk_sorted(&slot, &sorted, &holders), 3);
  assert_int_equal(holders, 1);
  assert_int_equal(sorted[0].seq, INT32_MAX);
  assert_int_equal(sorted[1].seq, INT32_MIN);
  assert_int_equal(sorted[2].seq, INT32_MIN + 1);
  free(sorted);
  assert_int_equal(position_of(names, 3, INT32_MIN, false).blockers, 1);
}

static void all_readers_before_a_writer_hold(void **state) {
  const char *names[] = {"00000000000000aa-s-0000000001", "00000000000000ab-s-0000000002",
                         "00000000000000ac-x-0000000003", "00000000000000ad-s-0000000004"};
  struct dibs__zk_slot slot = {.names = names, .count = 4}, empty = {.count = 0};
  struct dibs__zk_child *sorted;
  size_t holders;
  (void)state;
  assert_int_equal(dibs__zk_sorted(&slot, &sorted, &holders), 4);
  assert_int_equal(holders, 2);
  free(sorted);
  assert_int_equal(dibs__zk_sorted(&empty, &sorted, &holders), 0);
  assert_int_equal(holders, 0);
  free(sorted);
}

/* ---- Fences ---- */

static int64_t zxid(int64_t epoch, int64_t counter) {
  return epoch << 32 | counter;
}

static void fences_grow_with_zxids_also_of_another_leader(void **state) {
  struct dibs__zk store = {.root_czxid = zxid(3, 17), .root_ms = INT64_C(1800000000000)};
  const int64_t zxids[] = {zxid(3, 18), zxid(3, 19), zxid(3, 0xffffffff), zxid(4, 1), zxid(5, 0), zxid(200000, 7)};
  uint64_t last = 0;
  (void)state;
  for (size_t i = 0; i < sizeof zxids / sizeof zxids[0]; i++) {
    uint64_t fence = dibs__zk_fence(&store, zxids[i]);
    assert_true(fence > last && fence <= DIBS__FENCE_MAX);
    last = fence;
  }
  assert_int_equal(dibs__zk_fence(&store, zxid(3000000, 0)), 0); /* used up: nothing is granted */
}

/* An ensemble that lost everything begins with small zxids. */
static void fences_grow_when_everything_was_lost(void **state) {
  struct dibs__zk first = {.root_czxid = zxid(1, 2), .root_ms = INT64_C(1800000000000)};
  struct dibs__zk second = {.root_czxid = zxid(1, 2),
                            .root_ms = INT64_C(1800000000000) + INT64_C(10) * 24 * 3600 * 1000};
  (void)state;
  assert_true(dibs__zk_fence(&second, zxid(1, 3)) > dibs__zk_fence(&first, zxid(200, 12345)));
}

/* ---- The URI ---- */

static dibs__status locate(const char *text, struct dibs__zk_location *location, struct dibs__result *result) {
  struct dibs__uri uri;
  dibs__status status = dibs__uri_parse(text, &uri, result);
  assert_int_equal(status, DIBS_OK);
  status = dibs__zk_location(&uri, location, result);
  dibs__uri_free(&uri);
  return status;
}

static void hosts_get_a_port_and_the_path_a_node(void **state) {
  struct dibs__zk_location location;
  struct dibs__result result = {.text = ""};
  (void)state;
  assert_int_equal(locate("zk://a,b:2182,[::1],[::2]:7/app/locks", &location, &result), DIBS_OK);
  assert_string_equal(location.hosts, "a:2181,b:2182,[::1]:2181,[::2]:7");
  assert_string_equal(location.root, "/app/locks/dibs");
  assert_int_equal(location.session_ms, 30000);
  assert_int_equal(locate("zk://a/?prefix=two&session=5000", &location, &result), DIBS_OK);
  assert_string_equal(location.root, "/two");
  assert_int_equal(location.session_ms, 5000);
}

static void what_zookeeper_does_not_allow_is_refused(void **state) {
  static const char *const wrong[] = {"zk://a/x//y",        "zk://a/x/../y",     "zk://a/./y",     "zk://a/zookeeper/x",
                                      "zk://a/?prefix=x/y", "zk://a/?session=1", "zk://a/?what=1", "zk://user@a/"};
  struct dibs__zk_location location;
  struct dibs__result result;
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    result = (struct dibs__result){.text = ""};
    if (locate(wrong[i], &location, &result) != DIBS_INVALID) fail_msg("%s was accepted", wrong[i]);
    assert_string_not_equal(result.text, "");
  }
}

static void the_password_is_not_shown(void **state) {
  struct dibs__zk_location location;
  struct dibs__result result = {.text = ""};
  (void)state;
  assert_int_equal(locate("zk://app:s%3acret@a/", &location, &result), DIBS_OK);
  assert_string_equal(location.credentials, "app:s:cret");
  assert_null(strstr(location.shown, "cret"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_name_survives_the_way_through_a_path),
      cmocka_unit_test(two_names_are_two_paths),
      cmocka_unit_test(a_foreign_component_is_no_name),
      cmocka_unit_test(only_what_excludes_it_is_before_a_waiter),
      cmocka_unit_test(numbers_go_on_after_the_largest),
      cmocka_unit_test(all_readers_before_a_writer_hold),
      cmocka_unit_test(fences_grow_with_zxids_also_of_another_leader),
      cmocka_unit_test(fences_grow_when_everything_was_lost),
      cmocka_unit_test(hosts_get_a_port_and_the_path_a_node),
      cmocka_unit_test(what_zookeeper_does_not_allow_is_refused),
      cmocka_unit_test(the_password_is_not_shown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
