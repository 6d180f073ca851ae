/* SPDX-License-Identifier: MIT */
/* A driver refuses what it cannot serve, gives the reason, and changes nothing (R20). */
#include "harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static dibs__status try_open(const char *text, struct dibs__result *reported) {
  struct dibs__uri uri;
  struct dibs__chain chain;
  dibs__status status = dibs__uri_parse(text, &uri, reported);
  if (status != DIBS_OK) return status;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  for (int i = 0; i < 100; i++) {
    status = dibs__chain_open(&uri, NULL, by, &chain, reported);
    if (status != DIBS_UNAVAILABLE) break;
  }
  dibs__uri_free(&uri);
  if (status == DIBS_OK) dibs__chain_close(&chain);
  return status;
}

static void R20_an_unknown_parameter_is_refused(void **state) {
  (void)state;
  char text[1500];
  struct dibs__result reported = {0};
  snprintf(text, sizeof text, "%s%cnonsense=1", case_store_uri(), strchr(case_store_uri(), '?') ? '&' : '?');
  assert_int_equal(try_open(text, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "nonsense"));
}

static void R20_a_host_is_refused_if_the_engine_has_none(void **state) {
  (void)state;
  struct dibs__result reported = {0};
  if (!target()->local) skip();
  char text[64];
  snprintf(text, sizeof text, "%s://somewhere/x", target()->scheme);
  assert_int_equal(try_open(text, &reported), DIBS_INVALID);
  assert_string_not_equal(reported.text, "");
}

static void write_file(const char *path, const char *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static size_t read_file(const char *path, char *bytes, size_t size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t n = fread(bytes, 1, size, file);
  fclose(file);
  return n;
}

static void R20_a_foreign_file_is_unchanged(void **state) {
  (void)state;
  struct dibs__result reported = {0};
  const char *colon = strrchr(case_store_uri(), ':');
  char path[1400], beside[1450], bytes[8192], after[sizeof bytes + 1];
  if (!target()->is_file) skip();
  snprintf(path, sizeof path, "%.*s", (int)strcspn(colon + 1, "?"), colon + 1);
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)('a' + i % 23);
  write_file(path, bytes, sizeof bytes);
  dibs__status status = try_open(case_store_uri(), &reported);
  assert_int_equal(status, DIBS_CORRUPT);
  assert_non_null(strstr(reported.text, path));
  assert_int_equal(read_file(path, after, sizeof after), sizeof bytes);
  assert_memory_equal(after, bytes, sizeof bytes);
  const char *ends[] = {"-wal", "-shm", "-journal", "-dibs"};
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
    snprintf(beside, sizeof beside, "%s%s", path, ends[i]);
    if (access(beside, F_OK) == 0) fail_msg("opening left the file %s", beside);
  }
}

static void R20_a_file_is_not_a_folder(void **state) {
  (void)state;
  struct dibs__result reported = {0};
  char text[1500];
  if (!target()->is_file) skip();
  size_t head = strcspn(case_store_uri(), "?");
  snprintf(text, sizeof text, "%.*s/inside", (int)head, case_store_uri());
  const char *colon = strrchr(case_store_uri(), ':');
  char path[1400];
  snprintf(path, sizeof path, "%.*s", (int)strcspn(colon + 1, "?"), colon + 1);
  write_file(path, "x", 1);
  dibs__status status = try_open(text, &reported);
  assert_true(status == DIBS_UNAVAILABLE || status == DIBS_DENIED || status == DIBS_INVALID || status == DIBS_CORRUPT);
  assert_string_not_equal(reported.text, "");
}

static void R20_two_opens_at_once_are_two_sessions(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  assert_true(p->identity.session != 0);
  assert_int_not_equal(p->identity.session, q->identity.session);
  assert_true(p->identity.families & 1u << DIBS__FAM_LEASE);
  assert_true(p->identity.max_batch >= 1);
}

static const struct CMUnitTest contract_refusals_cases[] = {
    CASE(R20_an_unknown_parameter_is_refused),    CASE(R20_a_host_is_refused_if_the_engine_has_none),
    CASE(R20_a_foreign_file_is_unchanged),        CASE(R20_a_file_is_not_a_folder),
    CASE(R20_two_opens_at_once_are_two_sessions),
};
CONTRACT_TESTS(contract_refusals);
