/* SPDX-License-Identifier: MIT */
/*
 * Documents of the user's collections by their key.
 *
 * A key of digits may be that of a document with a number, or with a text; 24 hex digits may be an ObjectId or a text.
 * A filter has one type: with {$in: [7, "7"]} the other conditions would choose the document.  The type that was found
 * last is tried first; a read looks for all of them.
 */
#include "drivers/mongodb/table_impl.h"

#include <stdio.h>
#include <string.h>

enum { LOOKS = 5, LOOK_MS = 20 };

typedef struct dibs__mongo_collection collection_t;

uint32_t dibs__mk_guess(const collection_t *c, dibs__str key) {
  uint32_t types = dibs__mf_types_of(key), special = types & ~(uint32_t)DIBS__MF_TEXT;
  return c->known->key_type & types ? c->known->key_type : special ? special : types;
}

/* Not an array that contains it. */
bool dibs__mk_put(const collection_t *c, bson_t *filter, dibs__str key, uint32_t type) {
  bson_t part, no;
  const char *field = c->table->key;
  if (strcmp(field, "_id") == 0) return dibs__mf_put_key(filter, field, key, type);
  return BSON_APPEND_DOCUMENT_BEGIN(filter, field, &part) && dibs__mf_put_key(&part, "$eq", key, type) &&
         BSON_APPEND_DOCUMENT_BEGIN(&part, "$not", &no) && BSON_APPEND_UTF8(&no, "$type", "array") &&
         bson_append_document_end(&part, &no) && bson_append_document_end(filter, &part);
}

/* ---- Reading ---- */

struct found {
  bson_t *document;
  size_t count;
};

static bool see_document(void *user, const bson_t *document) {
  struct found *f = user;
  if (f->count++ == 0) f->document = bson_copy(document);
  return f->count < 2;
}

dibs__status dibs__mk_find(collection_t *c, dibs__str key, uint32_t *type, bson_t **document, char *why, size_t size) {
  struct found f = {.count = 0};
  bson_iter_t at;
  char memory[DIBS__MF_KEY];
  dibs__str text;
  bson_t *filter = dibs__mf_filter_same(c->table, key);
  dibs__status status = filter ? dibs__mongo_look(c, filter, NULL, NULL, 2, see_document, &f) : DIBS_NO_MEMORY;
  *document = NULL;
  if (status == DIBS_OK && f.count == 1 && f.document && dibs__mf_find(f.document, c->table->key, &at)) {
    uint32_t found = dibs__mf_type_of(dibs__mf_key(&at, memory, &text));
    if (found != 0) {
      c->known->key_type = *type = found;
      *document = f.document;
      return DIBS_OK;
    }
  }
  bson_destroy(f.document);
  if (status != DIBS_OK) {
    snprintf(why, size, "%.199s", status == DIBS_NO_MEMORY ? "out of memory" : c->result->text);
    return status;
  }
  if (f.count <= 1) return DIBS_NOT_FOUND;
  snprintf(why, size, "two documents have this key, a number and a text or an ObjectId: give one of them another");
  return DIBS_INVALID;
}

/* ---- A new document ---- */

static bool see_any(void *user, const bson_t *document) {
  (void)document;
  *(bool *)user = true;
  return false;
}

dibs__status dibs__mk_choose(collection_t *c, dibs__str key, uint32_t *type) {
  uint32_t types = dibs__mf_types_of(key), special = types & ~(uint32_t)DIBS__MF_TEXT;
  bool specials = false, texts = false;
  *type = special ? special : types;
  if (!special || !types) return DIBS_OK;
  dibs__status status = dibs__mongo_look(c, dibs__mf_filter_type(c->table, special), NULL, NULL, 1, see_any, &specials);
  if (status == DIBS_OK && !specials)
    status = dibs__mongo_look(c, dibs__mf_filter_type(c->table, DIBS__MF_TEXT), NULL, NULL, 1, see_any, &texts);
  if (texts) *type = DIBS__MF_TEXT;
  return status;
}

bool dibs__mk_put_new(const collection_t *c, bson_t *to, dibs__str key, uint32_t type) {
  bson_oid_t id;
  bson_oid_init(&id, NULL);
  bool fine = strcmp(c->table->key, "_id") == 0 || BSON_APPEND_OID(to, "_id", &id);
  return fine && dibs__mf_put_key(to, c->table->key, key, type);
}

dibs__status dibs__mk_insert(collection_t *c, const bson_t *document, bool *twice, char *why, size_t size) {
  bson_t command = BSON_INITIALIZER, list, reply;
  bool fine = BSON_APPEND_UTF8(&command, "insert", c->name) && BSON_APPEND_ARRAY_BEGIN(&command, "documents", &list) &&
              BSON_APPEND_DOCUMENT(&list, "0", document) && bson_append_array_end(&command, &list);
  dibs__status status = DIBS_NO_MEMORY;
  *twice = false;
  if (fine) {
    status = dibs__mongo_send_again(c, &command, &reply);
    if (status == DIBS_INVALID) snprintf(why, size, "%.160s", c->result->text);
    *twice = status == DIBS_OK && dibs__mongo_refused(&reply, &status, why, size);
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status;
}

/* ---- Two new documents with one key ---- */

static dibs__status remove_own(collection_t *c, const bson_t *document) {
  bson_t command = BSON_INITIALIZER, list, one, reply;
  bool fine = BSON_APPEND_UTF8(&command, "delete", c->name) && BSON_APPEND_ARRAY_BEGIN(&command, "deletes", &list) &&
              BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) && BSON_APPEND_DOCUMENT(&one, "q", document) &&
              BSON_APPEND_INT32(&one, "limit", 1) && bson_append_document_end(&list, &one) &&
              bson_append_array_end(&command, &list);
  dibs__status status = fine ? dibs__mongo_send_again(c, &command, &reply) : DIBS_NO_MEMORY;
  if (fine) bson_destroy(&reply);
  bson_destroy(&command);
  return status == DIBS_OK ? DIBS_OK : DIBS_UNKNOWN;
}

dibs__status dibs__mk_settle(collection_t *c, dibs__str key, uint32_t type, const bson_t *document, bool *twice) {
  char why[200];
  *twice = false;
  if (dibs__mf_types_of(key) == DIBS__MF_TEXT) return DIBS_OK;
  for (int looks = 0; looks < (type == DIBS__MF_TEXT ? 1 : LOOKS); looks++) {
    bson_t *found = NULL;
    uint32_t of = type;
    if (looks > 0) dibs__nap_ms(LOOK_MS);
    dibs__status status = dibs__mk_find(c, key, &of, &found, why, sizeof why);
    bson_destroy(found);
    if (status == DIBS_OK || status == DIBS_NOT_FOUND) return DIBS_OK;
    if (status != DIBS_INVALID) return DIBS_UNKNOWN;
  }
  *twice = true;
  return remove_own(c, document);
}
