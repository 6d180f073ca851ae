/* SPDX-License-Identifier: MIT */
/*
 * Numbers that are fixed for ever, as numbers that another program computed: changing any of them breaks existing
 * stores.
 */
#include "store/store.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static dibs__str str(const char *s) {
  return dibs__str_of(s, strlen(s));
}

static void strings_are_equal_by_content(void **state) {
  (void)state;
  char other[] = "abc";
  assert_true(dibs__str_equal(str("abc"), str(other)));
  assert_false(dibs__str_equal(str("abc"), str("abd")));
  assert_false(dibs__str_equal(str("abc"), str("ab")));
  assert_true(dibs__str_equal((dibs__str){NULL, 0}, str("")));
  assert_false(dibs__str_equal(dibs__str_of("a\0b", 3), dibs__str_of("a\0c", 3)));
}

static void ids_and_mandates_are_equal_in_every_byte(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(dibs__id); i++) {
    dibs__id a = {{0}}, b = {{0}};
    assert_true(dibs__id_equal(a, b));
    b.b[i] = 0x80;
    assert_false(dibs__id_equal(a, b));
  }
  for (size_t i = 0; i < sizeof(dibs__incarnation); i++) {
    dibs__mandate a = {7, {{0}}}, b = {7, {{0}}};
    assert_true(dibs__mandate_equal(&a, &b));
    b.incarnation.b[i] = 1;
    assert_false(dibs__mandate_equal(&a, &b));
  }
  assert_false(dibs__mandate_equal(&(dibs__mandate){7, {{0}}}, &(dibs__mandate){8, {{0}}}));
}

static void buckets_of_names_are_fixed(void **state) {
  (void)state;
  char longest[256];
  memset(longest, 'x', 255);
  longest[255] = '\0';
  assert_int_equal(dibs__bucket(str("a")), 64);
  assert_int_equal(dibs__bucket(str("nightly")), 36);
  assert_int_equal(dibs__bucket(str("seat:42")), 47);
  assert_int_equal(dibs__bucket(str("gr\xc3\xb6\xc3\x9f\x65")), 76);
  assert_int_equal(dibs__bucket(str(longest)), 93);
}

static void buckets_are_all_used(void **state) {
  (void)state;
  unsigned used[DIBS__BUCKETS] = {0};
  for (int i = 0; i < 10000; i++) {
    char name[32];
    snprintf(name, sizeof name, "job-%d", i);
    uint16_t bucket = dibs__bucket(str(name));
    assert_true(bucket < DIBS__BUCKETS);
    used[bucket]++;
  }
  for (size_t i = 0; i < DIBS__BUCKETS; i++) assert_in_range(used[i], 50, 200);
}

static void digests_of_ids_are_fixed(void **state) {
  (void)state;
  dibs__id zero = {{0}}, counted, full;
  for (size_t i = 0; i < sizeof counted.b; i++) counted.b[i] = (uint8_t)i;
  memset(full.b, 0xff, sizeof full.b);
  assert_true(dibs__id_digest(zero) == UINT64_C(0x6ca6d72980e85a51));
  assert_true(dibs__id_digest(counted) == UINT64_C(0xf87f3c1a9e081b3a));
  assert_true(dibs__id_digest(full) == UINT64_C(0x6d005060bde369f9));
}

static void a_message_is_cut_between_characters(void **state) {
  (void)state;
  struct dibs__result reported;
  char text[300];
  dibs__set_message(&reported, "%s at %d", "here", 7);
  assert_string_equal(reported.text, "here at 7");
  for (size_t lead = 0; lead < 3; lead++) {
    memset(text, 'a', lead);
    for (size_t i = lead; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
    dibs__set_message(&reported, "%s", text);
    size_t len = strlen(reported.text);
    assert_in_range(len, sizeof reported.text - 3, sizeof reported.text - 1);
    assert_int_equal((len - lead) % 3, 0);
  }
  dibs__set_message(NULL, "nobody listens");
}

static void version_is_that_of_the_header(void **state) {
  (void)state;
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", DIBS_VERSION_MAJOR, DIBS_VERSION_MINOR, DIBS_VERSION_PATCH);
  assert_string_equal(dibs_version(), version);
  assert_int_equal(dibs_version_number(), DIBS_VERSION_MAJOR * 65536 + DIBS_VERSION_MINOR * 256 + DIBS_VERSION_PATCH);
}

static void statuses_have_names_and_texts(void **state) {
  (void)state;
  assert_string_equal(dibs_status_name(DIBS_OK), "OK");
  assert_string_equal(dibs_status_name(DIBS_NO_MEMORY), "NO_MEMORY");
  assert_string_equal(dibs_status_text(DIBS_HELD), "somebody else holds it");
  for (int i = 0; i <= 17; i++) {
    assert_string_not_equal(dibs_status_name((dibs_status)i), "?");
    assert_string_not_equal(dibs_status_text((dibs_status)i), "unknown status");
  }
  assert_string_equal(dibs_status_name((dibs_status)18), "?");
  assert_string_equal(dibs_status_text((dibs_status)DIBS__QUEUED), "unknown status");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(strings_are_equal_by_content),  cmocka_unit_test(ids_and_mandates_are_equal_in_every_byte),
      cmocka_unit_test(buckets_of_names_are_fixed),    cmocka_unit_test(buckets_are_all_used),
      cmocka_unit_test(digests_of_ids_are_fixed),      cmocka_unit_test(a_message_is_cut_between_characters),
      cmocka_unit_test(version_is_that_of_the_header), cmocka_unit_test(statuses_have_names_and_texts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
