/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_TABLE_IMPL_H
#define DIBS_DRIVERS_MONGODB_TABLE_IMPL_H
/* Records and stock in the user's own collections. */
#include "drivers/mongodb/collection_impl.h"

/* A guard: the remembered fence is not above @0, nor is it @0 of a lease with another digest than @1. */
#define FENCE "{'$numberLong':'@0'}"
#define DIGEST "{'$numberLong':'@1'}"
#define FENCE_HOLDS(is)                                                                                                \
  IF(TYPE_IN("@f", NOTHING), "true", IF(WHOLE("@f"), "{'$and':[{'$gte':['$@f',0]}," is "]}", "false"))
#define SAME_OWNER "{'$or':[{'$lt':['$@f'," FENCE "]},{'$and':[{'$eq':['$@f'," FENCE "]},{'$eq':['$@o'," DIGEST "]}]}]}"

/* ---- table_run.c ---- */

/* One operation on a document of the user's.  Those of table_record.c and table_stock.c begin with this. */
struct dibs__mr {
  /* Set by the caller. */
  struct dibs__mongo_collection c; /* what the caller of open sets, without `by` */
  struct dibs__op *op;
  char *why; /* of the operation */
  size_t why_size;
  dibs__str key;
  /* Of its verb. */
  uint32_t type; /* of the key */
  bool again;    /* the verb must run again: the document has changed since it was read */
  /* Set by run. */
  uint32_t retries, missed;
};
/* The answer of the operation, so far. */
void dibs__mr_answer(struct dibs__mr *r, dibs__status status, const char *why);
void dibs__mr_fail(struct dibs__mr *r, dibs__status status); /* with the text of the server */
/* INVALID: this field of the document is not what it must be.  Answers false. */
bool dibs__mr_wrong(struct dibs__mr *r, const bson_t *document, const char *field, const char *must);
/* The insert was refused, and there is no document with the key: the verb runs again, since it was removed meanwhile;
 * after some times INVALID, since another unique index has refused it. */
void dibs__mr_missed(struct dibs__mr *r, const char *why);
/* The document with the key; the caller destroys it.  NULL: it is answered. */
bson_t *dibs__mr_find(struct dibs__mr *r);
/* Opens the collection, and runs the verb until it is answered, or until the deadline.  `makes`: the collection need
 * not exist. */
void dibs__mr_run(struct dibs__mr *r, dibs__tick by, bool makes, void (*verb)(struct dibs__mr *r));

/* ---- table_key.c ---- */

/* The type of the key, as far as is known; 0: no document has it. */
uint32_t dibs__mk_guess(const struct dibs__mongo_collection *c, dibs__str key);
/* Adds to a filter: exactly this key, of this type. */
bool dibs__mk_put(const struct dibs__mongo_collection *c, bson_t *filter, dibs__str key, uint32_t type);
/* The document with this key, of any type; the caller destroys it.  OK; NOT_FOUND; INVALID: there are two; a failure;
 * with `why`. */
dibs__status dibs__mk_find(struct dibs__mongo_collection *c, dibs__str key, uint32_t *type, bson_t **document,
                           char *why, size_t size);
/* The type of the key in a new document: a key of digits becomes a number, and one of 24 hex digits an ObjectId, unless
 * the keys of the collection are texts. */
dibs__status dibs__mk_choose(struct dibs__mongo_collection *c, dibs__str key, uint32_t *type);
bool dibs__mk_put_new(const struct dibs__mongo_collection *c, bson_t *to, dibs__str key, uint32_t type);
/* OK, also with *twice: a unique index has it already, and nothing was done.  INVALID: the server refuses it.  Both
 * with `why`.  UNKNOWN, UNAVAILABLE, DENIED, NO_MEMORY. */
dibs__status dibs__mk_insert(struct dibs__mongo_collection *c, const bson_t *document, bool *twice, char *why,
                             size_t size);
/* After the insert: another client may have chosen another type for the same key at the same time.  Both look: a text
 * leaves at once, and another key if the text stays, so that at most one of them is left.  OK, also with *twice: the
 * document was removed; UNKNOWN. */
dibs__status dibs__mk_settle(struct dibs__mongo_collection *c, dibs__str key, uint32_t type, const bson_t *document,
                             bool *twice);

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

/* ---- table_stock.c ---- */

void dibs__mongo_run_stock(struct dibs__mongo_session *session, struct dibs__stock_op *op, dibs__tick by,
                           struct dibs__result *result);

#endif
