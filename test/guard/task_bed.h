/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_GUARD_TASK_BED_H
#define DIBS_TEST_GUARD_TASK_BED_H
/* Helpers of the tests of tasks in users' tables: the types that columns of instants may have, the table "gateway", and
 * one line for each operation. */
#include "handle/request.h"
#include "record_bed.h"

enum { LONG_MS = 30000, TYPES = 16 };

int tasks_end(void **state);
#define CASE(f) cmocka_unit_test_setup_teardown(f, case_begin, tasks_end)

bool on_engine(const char *scheme);

/* How a program without dibs writes an instant some seconds ago, whose number is between the two texts, and 1970. */
struct type {
  const char *scheme, *name;
  dibs_time_unit unit;
  bool coarse; /* whole seconds */
  const char *ago[2], *never;
};
extern const struct type all_types[TYPES];
extern const struct type *type; /* of the present table */
#define FOR_EACH_TYPE                                                                                                  \
  for (type = all_types; type < all_types + TYPES; type++)                                                             \
    if (strcmp(type->scheme, engine->scheme) == 0)

const char *ago(int seconds); /* valid until the fourth call after this one */
dibs_table *gateway_with(const char *key);
dibs_table *gateway(void);
dibs_table *plain_gateway(void); /* with the engine's finest type */
void add(int id, const char *phase, const char *locked, const char *updated);

/* A claim's timeout is LONG_MS, and its number of tasks 1. */
struct dibs__task_op *task_make(dibs_store *s, dibs_table *t);
struct dibs__task_op *task_carry(struct dibs__task_op *op, enum dibs__task_verb verb, dibs_status want);
/* Up to two phases; NULL: none. */
struct dibs__task_op *claim_for(dibs_store *s, dibs_table *t, uint32_t most, int64_t timeout_ms, const char *one,
                                const char *two);
const struct dibs__task_row *row_of(const struct dibs__task_op *op, uint32_t i);
const struct dibs__task_row *claim_row(dibs_store *s, dibs_table *t, const char *key); /* claims exactly this one */
void claim_none(dibs_store *s, dibs_table *t);
struct dibs__task_item item_of(const struct dibs__task_row *row);
void change(dibs_store *s, dibs_table *t, enum dibs__task_verb verb, struct dibs__task_item *item, dibs_status want);
void end_with(dibs_store *s, dibs_table *t, const struct dibs__task_row *row, enum dibs__task_verdict verdict,
              const char *phase, int64_t delay_ms, dibs_status want);
bool is_never(int id); /* locked_at of this row is 1970 */
/* Is locked_at of this row between so many seconds ago, as a program without dibs compares it? */
bool locked_between(int id, int from_ago, int to_ago);

#endif
