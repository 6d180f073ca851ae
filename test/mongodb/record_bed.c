/* SPDX-License-Identifier: MIT */
#include "record_bed.h"

#include <string.h>

enum { MANY = 256, COLUMNS = 40 };

dibs_error reported;
dibs_record_result result;
const char KEEP[] = "(kept)";
static dibs_record *records[MANY];
static dibs_lease *leases[MANY];
static size_t record_count, lease_count;

int records_end(void **state) {
  while (record_count > 0) dibs_record_free(records[--record_count]);
  while (lease_count > 0) dibs_lease_free(leases[--lease_count]);
  return case_end(state);
}

dibs_lease *lease_of(const char *name) {
  dibs_lease_options o = {.size = sizeof o, .wait_ms = 20000};
  assert_true(lease_count < MANY);
  if (dibs_acquire(store(), name, &o, &leases[lease_count], &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return leases[lease_count++];
}

static void expect(const char *what, const char *key, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("%s \"%s\": %s, not %s: %s", what, key, dibs_status_name(got), dibs_status_name(want), reported.text);
}

static dibs_record_options options_of(struct how how) {
  return (dibs_record_options){.size = sizeof(dibs_record_options),
                               .table = how.table,
                               .if_version = how.if_version,
                               .flags = how.flags,
                               .lease = how.lease,
                               .wait_ms = 30000};
}

const dibs_record *get_as(const char *key, struct how how, dibs_status want) {
  dibs_record_options o = options_of(how);
  dibs_record *record = NULL;
  expect("get", key, dibs_record_get(store(), key, &o, &record, &reported), want);
  assert_true((record != NULL) == (want == DIBS_OK));
  assert_true(record_count < MANY);
  if (record) records[record_count++] = record;
  return record;
}

void put_as(const char *key, const char *const *texts, size_t count, struct how how, dibs_status want) {
  dibs_record_options o = options_of(how);
  dibs_value values[COLUMNS];
  for (size_t i = 0; i < count; i++) {
    values[i] = (dibs_value){texts[i], texts[i] ? strlen(texts[i]) : 0};
    if (texts[i] == KEEP) values[i] = (dibs_value){NULL, DIBS_KEEP};
  }
  result.size = sizeof result;
  expect("put", key, dibs_record_put(store(), key, values, count, &o, &result, &reported), want);
}

void remove_as(const char *key, struct how how, dibs_status want) {
  dibs_record_options o = options_of(how);
  result.size = sizeof result;
  expect("remove", key, dibs_record_remove(store(), key, &o, &result, &reported), want);
}

void assert_message(const char *words) {
  if (!strstr(reported.text, words)) fail_msg("\"%s\" is not in \"%s\"", words, reported.text);
}
