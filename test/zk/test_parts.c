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

/* ---- Answers ---- */

static void what_was_sent_on_a_connection_that_the_library_ended_may_be_done(void **state) {
  static const int lost[] = {ZCONNECTIONLOSS, ZOPERATIONTIMEOUT, ZSESSIONMOVED, ZCLOSING, ZRUNTIMEINCONSISTENCY};
  static const int not_done[] = {ZSESSIONEXPIRED, ZNONODE, ZBADVERSION, ZNODEEXISTS, ZNOAUTH};
  (void)state;
  for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) assert_true(dibs__zk_lost(lost[i]));
  for (size_t i = 0; i < sizeof not_done / sizeof not_done[0]; i++) assert_false(dibs__zk_lost(not_done[i]));
}

/* ---- Positions ---- */

static struct dibs__zk_position position_among(const char **names, int count, struct dibs__zk_child self) {
  struct dibs__zk_slot slot = {.names = names, .count = count};
  struct dibs__zk_position position;
  dibs__zk_position(&slot, &self, &position);
  return position;
}

static struct dibs__zk_position position_of(const char **names, int count, int32_t seq, bool shared) {
  return position_among(names, count,
                        (struct dibs__zk_child){.mode = shared ? DIBS_SHARED : DIBS_EXCLUSIVE, .seq = seq});
}

static struct dibs__zk_position counted_among(const char **names, int count, int32_t seq, uint32_t slots) {
  return position_among(names, count, (struct dibs__zk_child){.mode = DIBS_COUNTED, .slots = slots, .seq = seq});
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
  assert_int_equal(p.watched.seq, 5); /* the last of them, whatever the order of the list */
  assert_int_equal(p.ahead, 0);
  p = position_of(names, 6, 9, true);
  assert_int_equal(p.blockers, 1);
  assert_int_equal(p.watched.seq, 7);
  assert_int_equal(p.ahead, 1);
  p = position_of(names, 6, 11, false);
  assert_int_equal(p.blockers, 4);
  assert_int_equal(p.watched.seq, 9);
  assert_int_equal(p.ahead, 2);
  assert_false(p.waiting);
  assert_false(position_of(names, 6, 4, false).exists);
}

#define NODE(kind, seq) "00000000000000aa-" kind "-00000000" seq
enum { MANY = 8 };

static void as_many_counted_ones_hold_as_there_are_slots(void **state) {
  const char *names[] = {NODE("c3", "09"), NODE("c3", "04"), "slot-2",        NODE("c3", "05"),
                         "slot-0",         NODE("c3", "07"), NODE("c3", "08")};
  enum { COUNT = sizeof names / sizeof names[0] };
  struct dibs__zk_slot slot = {.names = names, .count = COUNT};
  struct dibs__zk_child *sorted;
  size_t holders;
  (void)state;
  assert_int_equal(dibs__zk_sorted(&slot, &sorted, &holders), 5);
  assert_int_equal(holders, 3);
  assert_int_equal(sorted[3].seq, 8);
  free(sorted);
  struct dibs__zk_position p = counted_among(names, COUNT, 7, 3);
  assert_true(p.exists && p.free && p.waiting);
  assert_int_equal(p.slot, 1);
  p = counted_among(names, COUNT, 8, 3); /* the first waiter: any holder may end */
  assert_true(p.exists && !p.free);
  assert_int_equal(p.watch, DIBS__ZK_WATCH_CHILDREN);
  assert_int_equal(p.ahead, 0);
  p = counted_among(names, COUNT, 9, 3);
  assert_false(p.free);
  assert_int_equal(p.watch, DIBS__ZK_WATCH_BEFORE);
  assert_int_equal(p.watched.seq, 8);
  assert_int_equal(p.ahead, 1);
}

/* Two that hold and have no slot yet do not try the same one. */
static void each_of_several_new_holders_gets_a_slot_of_its_own(void **state) {
  const char *names[] = {NODE("c5", "01"), NODE("c5", "02"), NODE("c5", "03"), NODE("c5", "04"), "slot-1"};
  uint32_t seen = 0;
  (void)state;
  for (int32_t seq = 1; seq <= 4; seq++) {
    uint32_t slot = counted_among(names, 5, seq, 5).slot;
    assert_true(slot < 5 && slot != 1);
    seen |= 1u << slot;
  }
  assert_true(seen & 1u); /* the smallest one is among them */
  assert_int_equal(counted_among(names, 4, 1, 5).slot, 0);
  assert_int_equal(counted_among(names, 4, 4, 5).slot, 3);
  const char *full[] = {NODE("c2", "03"), "slot-0", "slot-1"}; /* of a lease that was deleted without its slot */
  struct dibs__zk_position p = counted_among(full, 3, 3, 2);
  assert_true(p.free);
  assert_int_equal(p.slot, DIBS__ZK_NO_SLOT);
  assert_int_equal(p.watch, DIBS__ZK_WATCH_CHILDREN);
}

static void other_modes_and_numbers_of_slots_wait_for_each_other(void **state) {
  const char *names[MANY] = {NODE("c2", "01"), "slot-0",         NODE("c5", "02"), NODE("c2", "03"),
                             NODE("s", "04"),  NODE("c2", "05"), NODE("c2", "06"), NODE("c2", "07")};
  (void)state;
  struct dibs__zk_position p = counted_among(names, MANY, 1, 2);
  assert_true(p.free && p.waiting && !p.unlike);
  p = counted_among(names, MANY, 2, 5);
  assert_true(!p.free && p.unlike);
  assert_int_equal(p.watch, DIBS__ZK_WATCH_GONE);
  assert_int_equal(p.watched.seq, 1);
  p = counted_among(names, MANY, 3, 2); /* a slot is free, and another number of slots came first */
  assert_true(!p.free && !p.unlike);
  assert_int_equal(p.watched.seq, 2);
  p = position_of(names, MANY, 4, true);
  assert_false(p.free);
  assert_int_equal(p.watched.seq, 3);
  for (int32_t seq = 5; seq <= 6; seq++) { /* both will hold when the reader has ended */
    p = counted_among(names, MANY, seq, 2);
    assert_int_equal(p.watch, DIBS__ZK_WATCH_GONE);
    assert_int_equal(p.watched.seq, 4);
  }
  p = counted_among(names, MANY, 7, 2); /* this one will not */
  assert_int_equal(p.watch, DIBS__ZK_WATCH_BEFORE);
  assert_int_equal(p.watched.seq, 6);
}

static void what_only_looks_like_a_node_is_none(void **state) {
  static const char *const wrong[] = {NODE("c", "01"),     NODE("c0", "01"), NODE("c65536", "01"),
                                      NODE("c03", "01"),   NODE("c-3", "1"), NODE("c99999999999", "01"),
                                      NODE("y", "01"),     NODE("x3", "01"), "slot-1",
                                      "00000000000000aa-c"};
  struct dibs__zk_child child;
  char node[DIBS__ZK_SLOT_NODE];
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    if (dibs__zk_child_read(wrong[i], &child)) fail_msg("%s was read", wrong[i]);
  assert_true(dibs__zk_child_read(NODE("c65535", "01"), &child));
  assert_int_equal(child.slots, 65535);
  assert_string_equal(dibs__zk_slot_node(DIBS_SLOTS_MAX - 1, node), "slot-65534");
  const char *names[] = {NODE("c2", "01"), "slot-00", "slot-2", "slot-", "slot-1x"};
  assert_int_equal(counted_among(names, 5, 1, 2).slot, 0);
}

/* ---- Data ---- */

static void the_data_of_a_node_survives(void **state) {
  char text[DIBS__ZK_DATA];
  struct dibs__zk_data got,
      all[] = {{.mode = DIBS_EXCLUSIVE, .ttl_ms = 30000, .pid = 12, .slot = DIBS__ZK_NO_SLOT, .owner = {"7 8", 3}},
               {.mode = DIBS_COUNTED, .ttl_ms = 1, .pid = 1, .slots = 5, .slot = DIBS__ZK_NO_SLOT, .owner = {"3", 1}},
               {.mode = DIBS_COUNTED, .slots = 65535, .slot = 65534, .broken = true, .owner = {"", 0}}};
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    size_t len = dibs__zk_write_data(&all[i], text);
    assert_true(dibs__zk_read_data(text, (int)len, &got));
    assert_int_equal(got.mode, all[i].mode);
    assert_int_equal(got.ttl_ms, all[i].ttl_ms);
    assert_int_equal(got.slots, all[i].slots);
    assert_int_equal(got.slot, all[i].slot);
    assert_int_equal(got.broken, all[i].broken);
    assert_int_equal(got.owner.len, all[i].owner.len);
    assert_memory_equal(got.owner.p, all[i].owner.p, got.owner.len);
  }
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
      cmocka_unit_test(what_was_sent_on_a_connection_that_the_library_ended_may_be_done),
      cmocka_unit_test(only_what_excludes_it_is_before_a_waiter),
      cmocka_unit_test(as_many_counted_ones_hold_as_there_are_slots),
      cmocka_unit_test(each_of_several_new_holders_gets_a_slot_of_its_own),
      cmocka_unit_test(other_modes_and_numbers_of_slots_wait_for_each_other),
      cmocka_unit_test(what_only_looks_like_a_node_is_none),
      cmocka_unit_test(the_data_of_a_node_survives),
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
