/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_FIELD_IMPL_H
#define DIBS_DRIVERS_MONGODB_FIELD_IMPL_H
/*
 * Fields of the user's documents (field.c).
 *
 * Documents have any content.  So each filter checks the types itself, by an expression that fails for no document, and
 * compares values by expressions, too: {a: 7} would match an array that contains 7.
 *
 * Expressions are templates, extended JSON with ' for ":
 *
 *   @k @P @L @U @f @v @o   names of fields: key, phase, locked_at, updated_at, fence, version, owner
 *   @s @m @C @c @a @g @w @t   used, limit, claims; of a claim: claim, claim_amount, claim_given, claim_time,
 * claim_owner
 *   @0 @1                  numbers
 *   @i                     the number @1, ms, as a text
 *   @2                     the number @1 in units of instants, rounded up
 *   @I @O                  texts: the claim and its owner
 *   @u                     how many ms are 1, where instants are numbers
 */
#include "drivers/mongodb/mongodb_impl.h"

#define CASE(when, then) "{'case':" when ",'then':" then "}"
#define IF(when, then, otherwise) "{'$cond':[" when "," then "," otherwise "]}"
#define TYPE_IN(f, types) "{'$in':[{'$type':'$" f "'},[" types "]]}"
#define NOTHING "'missing','null'"
#define NUMBERS "'int','long','double'"
/* A number without a fraction that is exact in every type. */
#define WHOLE(f)                                                                                                       \
  IF(TYPE_IN(f, "'int','long'"), "true",                                                                               \
     IF(TYPE_IN(f, "'double'"),                                                                                        \
        "{'$and':[{'$gt':['$" f "',-9007199254740992]},{'$lt':['$" f "',9007199254740992]},"                           \
        "{'$eq':[{'$trunc':['$" f "']},'$" f "']}]}",                                                                  \
        "false"))
#define WITHOUT_NUL(f) "{'$lt':[{'$indexOfBytes':['$" f "','\\u0000']},0]}"
#define FENCE_FITS                                                                                                     \
  IF(TYPE_IN("@f", NOTHING), "true",                                                                                   \
     IF(WHOLE("@f"), "{'$and':[{'$gte':['$@f',0]},{'$lt':['$@f',9007199254740991]}]}", "false"))

enum { DIBS__MF_ISO = 24 }; /* the length of 2026-01-02T03:04:05.678Z */
#define DIBS__MF_EXACT (INT64_C(1) << 53)

/* Of several templates, one behind the other; NULL at the end.  NULL: no memory. */
bson_t *dibs__mf_expand(const struct dibs__table *table, const char *const templates[], int64_t first, int64_t second);
struct dibs__mf_words {
  int64_t numbers[2];
  dibs__str claim, owner; /* UTF-8 */
};
bson_t *dibs__mf_expand_words(const struct dibs__table *table, const char *const templates[],
                              const struct dibs__mf_words *words);
bson_t *dibs__mf_expand_one(const struct dibs__table *table, const char *template, int64_t first, int64_t second);
int64_t dibs__mf_unit(const struct dibs__table *table);
void dibs__mf_iso(int64_t ms, char to[DIBS__MF_ISO + 1]);
bool dibs__mf_iso_ms(dibs__str text, int64_t *ms); /* false: it has another form */

bool dibs__mf_find(const bson_t *document, const char *field, bson_iter_t *at);
bool dibs__mf_is_nothing(const bson_t *document, const char *field); /* missing, or null */
bool dibs__mf_whole(const bson_iter_t *at, int64_t *number);
dibs__str dibs__mf_text(const bson_iter_t *at);
bool dibs__mf_fits_fence(const bson_iter_t *at);
void dibs__mf_show(const bson_t *document, char to[DIBS__MONGO_SHOWN]);

/* A key as people write it may be that of documents with keys of several types. */
enum { DIBS__MF_NUMBER = 1, DIBS__MF_TEXT = 2, DIBS__MF_OID = 4 };
/* The key of a document, as text, and the letter of its type: o, t, n; 0: it is none.  A text stays in the document. */
enum { DIBS__MF_KEY = 24 + 1 }; /* memory for an ObjectId or a number */
char dibs__mf_key(const bson_iter_t *at, char memory[DIBS__MF_KEY], dibs__str *key);
uint32_t dibs__mf_type_of(char letter);
uint32_t dibs__mf_types_of(dibs__str key);
bool dibs__mf_put_key(bson_t *to, const char *name, dibs__str key, uint32_t type); /* as the field `name` */
bool dibs__mf_is_number(dibs__str text, int64_t *number);
/* Filters; the caller destroys them. */
bson_t *dibs__mf_filter_type(const struct dibs__table *table, uint32_t types); /* keys of these types */
bson_t *dibs__mf_filter_same(const struct dibs__table *table, dibs__str key);  /* this key, of any type */
bool dibs__mf_put_types(bson_t *to, const char *field, uint32_t types);
bson_t *dibs__mf_or_none(bson_t *made, bool fine); /* if not, destroys it, and returns NULL */

#endif
