/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_RECORD_BED_H
#define DIBS_TEST_MONGODB_RECORD_BED_H
/* One line for each call about a record in a collection of the user's; beside task_bed.h. */
#include "task_bed.h"

int records_end(void **state);
#define RECORDS(f) cmocka_unit_test_setup_teardown(f, case_begin, records_end)

#define TABLE(...) declare(&(dibs_table_options){.size = sizeof(dibs_table_options), .table = gateways(), __VA_ARGS__})
dibs_lease *lease_of(const char *name); /* the end of the case frees it */

struct how {
  dibs_table *table;
  const char *if_version;
  dibs_lease *lease;
  uint32_t flags;
};
/* The text of the latest answer, and its result. */
extern dibs_error reported;
extern dibs_record_result result;
/* NULL unless OK; the end of the case frees it. */
const dibs_record *get_as(const char *key, struct how how, dibs_status want);
#define get(key, want, in, ...) get_as(key, (struct how){.table = in, ##__VA_ARGS__}, want)
/* Values are texts; NULL is NULL, KEEP keeps. */
extern const char KEEP[];
void put_as(const char *key, const char *const *values, size_t count, struct how how, dibs_status want);
#define VALUES(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)
#define put(key, values, want, in, ...) put_as(key, values, (struct how){.table = in, ##__VA_ARGS__}, want)
void remove_as(const char *key, struct how how, dibs_status want);
#define take_away(key, want, in, ...) remove_as(key, (struct how){.table = in, ##__VA_ARGS__}, want)
void assert_message(const char *words); /* the latest answer's text contains this */

#endif
