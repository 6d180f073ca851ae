/* SPDX-License-Identifier: MIT */
/* SHA-256 with the vectors of FIPS 180-4 and neighbouring lengths, and the hash of a row that serves as its version. */
#include "base/sha256.h"
#include "sql/sql_impl.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static void hash(const char *bytes, size_t len, size_t piece, char hex[65]) {
  struct dibs__sha256 h;
  dibs__sha256_begin(&h);
  for (size_t at = 0; at < len; at += piece) dibs__sha256_add(&h, bytes + at, len - at < piece ? len - at : piece);
  dibs__sha256_end(&h, hex);
}

static void known_texts_have_known_hashes(void **state) {
  (void)state;
  static const struct {
    const char *text, *hex;
  } known[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrst"
       "u",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
  };
  char hex[65];
  for (size_t i = 0; i < COUNT_OF(known); i++) {
    hash(known[i].text, strlen(known[i].text), 1000, hex);
    assert_string_equal(hex, known[i].hex);
  }
  char *million = malloc(1000000);
  assert_non_null(million);
  memset(million, 'a', 1000000);
  hash(million, 1000000, 1000000, hex);
  assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

static void hashing_in_pieces_gives_the_same_hash(void **state) {
  (void)state;
  char bytes[300], whole[65], hex[65];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7);
  for (size_t len = 0; len <= sizeof bytes; len++) {
    hash(bytes, len, sizeof bytes, whole);
    for (size_t piece = 1; piece < 130; piece += 13) {
      hash(bytes, len, piece, hex);
      assert_string_equal(hex, whole);
    }
  }
}

static void a_row_has_one_fixed_hash_form(void **state) {
  (void)state;
  const struct dibs__table table = {.columns = {"a", "b"}, .column_count = 2};
  const dibs_value null = {NULL, 0}, empty = {"", 0}, x = {"x", 1}, xb = {"xb", 2};
  char hex[65], other[65];
  dibs__table_hash(&table, (const dibs_value[]){{"3", 1}, null}, hex);
  hash("a\0"
       "1:3"
       "b\0"
       "-",
       8, 100, other);
  assert_string_equal(hex, other);
  dibs__table_hash(&table, (const dibs_value[]){x, empty}, hex);
  dibs__table_hash(&table, (const dibs_value[]){x, null}, other);
  assert_string_not_equal(hex, other);
  dibs__table_hash(&table, (const dibs_value[]){xb, empty}, other);
  assert_string_not_equal(hex, other);
  dibs__table_hash(&table, (const dibs_value[]){empty, x}, other);
  assert_string_not_equal(hex, other);
}

static void the_next_instant_has_the_form_of_the_old(void **state) {
  (void)state;
  /* now: 2025-11-21 18:16:40.123 UTC */
  static const struct {
    const char *old;
    int64_t step_us;
    const char *next;
  } known[] = {
      {"", 1, "2025-11-21 18:16:40.123000"},
      {"2025-11-21 18:16:40.123", 1, "2025-11-21 18:16:40.123001"},
      {"2025-11-21 18:16:40", 1, "2025-11-21 18:16:40.123000"},
      {"2025-11-21T18:16:40.5Z", 1000, "2025-11-21T18:16:40.501000Z"},
      {"2025-11-21 19:16:40.12+01", 1, "2025-11-21 19:16:40.123000+01"},
      {"2025-11-21 12:46:41-05:30", 1000000, "2025-11-21 12:46:42.000000-05:30"},
      {"2025-12-31 23:59:59.999999", 1, "2026-01-01 00:00:00.000000"},
      {"2028-02-28 23:59:59", 1000000, "2028-02-29 00:00:00.000000"},
      {"2100-02-28 23:59:59", 1000000, "2100-03-01 00:00:00.000000"},
      {"1969-12-31 23:59:59", 1, "2025-11-21 18:16:40.123000"},
  };
  static const char *const odd[] = {"infinity",
                                    "2025-11-21",
                                    "2025-11-21 18:16",
                                    "2025-11-21 18:16:40 BC",
                                    "2025-13-01 00:00:00",
                                    "9999-12-31 23:59:59.999999",
                                    "1763749000",
                                    "2025-11-21 18:16:40+99"};
  char next[DIBS_VERSION_MAX + 1];
  for (size_t i = 0; i < COUNT_OF(known); i++) {
    assert_true(dibs__table_instant(known[i].old, INT64_C(1763749000123), known[i].step_us, next, sizeof next));
    assert_string_equal(next, known[i].next);
  }
  for (size_t i = 0; i < COUNT_OF(odd); i++)
    assert_false(dibs__table_instant(odd[i], INT64_C(1763749000123), 1, next, sizeof next));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_texts_have_known_hashes),
      cmocka_unit_test(hashing_in_pieces_gives_the_same_hash),
      cmocka_unit_test(a_row_has_one_fixed_hash_form),
      cmocka_unit_test(the_next_instant_has_the_form_of_the_old),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
