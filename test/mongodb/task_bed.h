/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_TASK_BED_H
#define DIBS_TEST_MONGODB_TASK_BED_H
/*
 * Helpers of the tests of collections of the user's: a client of libmongoc beside dibs, a collection for each
 * case, and one line for each operation.  Documents and filters are extended JSON with ' for ".
 */
#include "dibs/task.h"
#include "handle/request.h"
#include "store/task.h"
#include "store/values.h"

#include <mongoc/mongoc.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { LONG_MS = 30000, FORMS = 4 };

void bed_begin(const char *uri);
int case_begin(void **state);
int case_end(void **state);
#define CASE(f) cmocka_unit_test_setup_teardown(f, case_begin, case_end)
const char *case_uri(void);
const char *gateways(void);     /* the collection of this case */
void case_is(const char *name); /* this one */
void case_drop(void);           /* forgets its operations; the store stays open */

/* ---- The user's client ---- */

void insert(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Changes all that match; returns how many it changed. */
int64_t update(const char *filter, const char *change);
int64_t count(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The JSON of one document that matches; valid until the next call.  "": none. */
const char *shown(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* In the database of the case; false: the server refused it. */
bool command(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The value of the answer to a findAndModify, or NULL; the caller destroys it. */
bson_t *find_and_modify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Another command was changing the same document, and nothing was done. */
bool met_another(const bson_error_t *error);

/* How a program writes instants. */
struct form {
  const char *name;
  dibs_time_unit unit;
  bool coarse;
};
extern const struct form all_forms[FORMS];
extern const struct form *form; /* of the present case; at first dates */
#define FOR_EACH_FORM for (form = all_forms; form < all_forms + FORMS; case_next(), form++)
void case_next(void);                              /* another collection */
const char *ago(int64_t ms);                       /* valid until the eighth call after this one */
const char *never(void);                           /* 1970 */
bool locked_about(const char *id, int64_t ago_ms); /* locked_at of this document, as people write its _id */
bool is_never(const char *id);

/* ---- dibs ---- */

dibs_store *store(void);
dibs_table *declare(const dibs_table_options *options); /* the end of the case frees it */
dibs_table *table_with(const char *table, const char *key);
dibs_table *gateway(void); /* of the collection of the case, by its _id, in the present form */

struct dibs__task_op *task_make(dibs_table *t);
struct dibs__task_op *task_carry(struct dibs__task_op *op, enum dibs__task_verb verb, dibs_status want);
/* A claim of up to two phases; NULL: none. */
struct dibs__task_op *claim_for(dibs_table *t, uint32_t most, int64_t timeout_ms, const char *one, const char *two);
const struct dibs__task_row *row_of(const struct dibs__task_op *op, uint32_t i);
const struct dibs__task_row *claim_row(dibs_table *t, const char *key); /* claims exactly this one */
struct dibs__task_op *claim_none(dibs_table *t);
struct dibs__task_item item_of(const struct dibs__task_row *row);
struct dibs__task_op *change(dibs_table *t, enum dibs__task_verb verb, struct dibs__task_item *item, dibs_status want);
void end_with(dibs_table *t, const struct dibs__task_row *row, enum dibs__task_verdict verdict, const char *phase,
              int64_t delay_ms, dibs_status want);

#endif
