/* SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "unit.h"

#include <string.h>

static void hex_is_written_and_read(void **state) {
  (void)state;
  uint8_t bytes[16], back[16];
  char hex[33];
  for (size_t i = 0; i < 16; i++) bytes[i] = (uint8_t)(i * 17);
  dibs__hex_write(bytes, hex);
  assert_string_equal(hex, "00112233445566778899aabbccddeeff");
  assert_true(dibs__hex_read(hex, back));
  assert_memory_equal(bytes, back, 16);
  assert_true(dibs__hex_read("00112233445566778899AABBCCDDEEFF", back));
  assert_memory_equal(bytes, back, 16);
}

static void bad_hex_is_refused_and_changes_nothing(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "0",
                                    "00112233445566778899aabbccddeef",
                                    "00112233445566778899aabbccddeeff0",
                                    "00112233445566778899aabbccddeef ",
                                    " 0112233445566778899aabbccddeeff",
                                    "0x112233445566778899aabbccddeeff",
                                    "g0112233445566778899aabbccddeeff",
                                    "00112233-4556-6778-899a-abbccddee"};
  for (size_t i = 0; i < COUNT_OF(bad); i++) {
    uint8_t to[16], as_it_was[16];
    memset(to, 0x5a, sizeof to);
    memset(as_it_was, 0x5a, sizeof as_it_was);
    assert_false(dibs__hex_read(bad[i], to));
    assert_memory_equal(to, as_it_was, 16);
  }
}

struct name_case {
  const char *name;
  enum dibs__name_flaw flaw;
  size_t at;
};

static void names_are_utf8_without_control_characters(void **state) {
  (void)state;
  static const struct name_case cases[] = {
      {"", DIBS__NAME_EMPTY, 0},
      {"a", DIBS__NAME_OK, 0},
      {"job: nightly / 7", DIBS__NAME_OK, 0},
      {"gr\xc3\xb6\xc3\x9f\x65", DIBS__NAME_OK, 0},
      {"\xe2\x82\xac\xf0\x9f\x94\x92", DIBS__NAME_OK, 0},
      {"\xf4\x8f\xbf\xbf", DIBS__NAME_OK, 0},         /* U+10FFFF */
      {"\xed\x9f\xbf\xee\x80\x80", DIBS__NAME_OK, 0}, /* around the surrogates */
      {"ab\tc", DIBS__NAME_CONTROL, 2},
      {"ab\n", DIBS__NAME_CONTROL, 2},
      {"a\x7f", DIBS__NAME_CONTROL, 1},
      {"a\xc2\x80", DIBS__NAME_CONTROL, 1}, /* C1 */
      {"a\xc2\x9f", DIBS__NAME_CONTROL, 1},
      {"a\xc2\xa0", DIBS__NAME_OK, 0}, /* the first character after C1 */
      {"a\x80", DIBS__NAME_NOT_UTF8, 1},
      {"abc\xc3", DIBS__NAME_NOT_UTF8, 3},
      {"\xc0\xaf", DIBS__NAME_NOT_UTF8, 0}, /* overlong */
      {"\xe0\x80\xaf", DIBS__NAME_NOT_UTF8, 0},
      {"\xf0\x80\x80\xaf", DIBS__NAME_NOT_UTF8, 0},
      {"\xed\xa0\x80", DIBS__NAME_NOT_UTF8, 0},     /* surrogate */
      {"\xf4\x90\x80\x80", DIBS__NAME_NOT_UTF8, 0}, /* above U+10FFFF */
      {"\xff", DIBS__NAME_NOT_UTF8, 0},
  };
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    size_t at = 99;
    assert_int_equal(dibs__name_check(cases[i].name, strlen(cases[i].name), 255, &at), cases[i].flaw);
    assert_int_equal(at, cases[i].at);
  }
  assert_int_equal(dibs__name_check("a\0b", 3, 255, NULL), DIBS__NAME_CONTROL);
}

static void names_may_have_the_maximum_length(void **state) {
  (void)state;
  char name[300];
  memset(name, 'x', sizeof name);
  assert_int_equal(dibs__name_check(name, 255, 255, NULL), DIBS__NAME_OK);
  assert_int_equal(dibs__name_check(name, 256, 255, NULL), DIBS__NAME_LONG);
  assert_string_equal(dibs__name_flaw_text(DIBS__NAME_LONG), "is too long");
}

static void cutting_keeps_sequences_intact(void **state) {
  (void)state;
  const char *text = "a\xc3\xb6\xe2\x82\xac\xf0\x9f\x94\x92";
  static const size_t keeps[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (size_t len = 0; len < COUNT_OF(keeps); len++) assert_int_equal(dibs__utf8_cut(text, len), keeps[len]);
  /* Bytes that are not UTF-8 form no sequence. */
  assert_int_equal(dibs__utf8_cut("\x80\x80\x80\x80\x80", 5), 5);
  assert_int_equal(dibs__utf8_cut("ab\xff", 3), 3);
}

static void text_is_built_up_to_its_bound(void **state) {
  (void)state;
  char capacity[12];
  struct dibs__text text;
  dibs__text_begin(&text, capacity, sizeof capacity);
  dibs__text_adds(&text, "abc");
  dibs__text_addf(&text, "%d", 42);
  assert_string_equal(capacity, "abc42");
  assert_false(text.cut);
  dibs__text_adds(&text, "12345\xc3\xb6");
  assert_true(text.cut);
  assert_string_equal(capacity, "abc4212345");
  dibs__text_adds(&text, "x"); /* nothing is appended after an overflow */
  dibs__text_addf(&text, "x");
  dibs__text_add_json(&text, "x", 1);
  assert_string_equal(capacity, "abc4212345");
  assert_int_equal(text.len, 10);
}

static void formatted_text_is_cut_at_its_bound(void **state) {
  (void)state;
  char capacity[6];
  struct dibs__text text;
  dibs__text_begin(&text, capacity, sizeof capacity);
  dibs__text_addf(&text, "%s", "12345");
  assert_false(text.cut);
  dibs__text_begin(&text, capacity, sizeof capacity);
  dibs__text_addf(&text, "%s", "1234\xc3\xb6");
  assert_true(text.cut);
  assert_string_equal(capacity, "1234");
}

static void json_strings_are_escaped_and_complete_or_absent(void **state) {
  (void)state;
  char capacity[64];
  struct dibs__text text;
  dibs__text_begin(&text, capacity, sizeof capacity);
  const char *odd = "a\"\\\n\x01\x7f\xc3\xb6\xff";
  dibs__text_add_json(&text, odd, strlen(odd));
  assert_string_equal(capacity, "\"a\\\"\\\\\\n\\u0001\\u007f\xc3\xb6\xef\xbf\xbd\"");
  char small[8];
  dibs__text_begin(&text, small, sizeof small);
  dibs__text_adds(&text, "k:");
  dibs__text_add_json(&text, "12345", 5);
  assert_true(text.cut);
  assert_string_equal(small, "k:");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hex_is_written_and_read),
      cmocka_unit_test(bad_hex_is_refused_and_changes_nothing),
      cmocka_unit_test(names_are_utf8_without_control_characters),
      cmocka_unit_test(names_may_have_the_maximum_length),
      cmocka_unit_test(cutting_keeps_sequences_intact),
      cmocka_unit_test(text_is_built_up_to_its_bound),
      cmocka_unit_test(formatted_text_is_cut_at_its_bound),
      cmocka_unit_test(json_strings_are_escaped_and_complete_or_absent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
