/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_TABLE_IMPL_H
#define DIBS_DRIVERS_MONGODB_TABLE_IMPL_H
/* Records and stock in the user's own collections. */
#include "drivers/mongodb/collection_impl.h"

/* ---- table_value.c ---- */

/* The field as text (malloc'd), or NULL: null, or missing.  false: no memory. */
bool dibs__mv_read(const bson_t *document, const char *field, char **text, size_t *len);
/* The value of a field that has no type yet: a text, or else bytes. */
bool dibs__mv_put_new(bson_t *to, const char *name, const dibs_value *v);
/* An expression for $expr: the field has a type in which it can have this value, which is not NULL. */
bool dibs__mv_put_condition(bson_t *to, const char *field, const dibs_value *v);
/* Adds to a stage $set: the field gets this value, in the type that it has. */
bool dibs__mv_put_set(bson_t *set, const char *field, const dibs_value *v);
/* Can it have this value?  If not, `why`. */
bool dibs__mv_fits(const bson_t *document, const char *field, const dibs_value *v, char *why, size_t size);
/* An expression: the field is as in this document. */
bool dibs__mv_put_same(bson_t *to, const char *field, const bson_t *document);

/* ---- table_record.c ---- */

void dibs__mongo_run_record(struct dibs__mongo_session *session, struct dibs__record_op *op, dibs__tick by,
                            struct dibs__result *result);

#endif
