/* SPDX-License-Identifier: MIT */
/* Indexes. */
#include "drivers/mongodb/batch_impl.h"

#include <string.h>

_Static_assert(2 * DIBS__MONGO_KINDS <= 32, "each kind has two bits");

/* {createIndexes: ..., indexes: [{key: {FIELD: 1}, name: FIELD, expireAfterSeconds: 0}]} */
void dibs__mongo_index(struct dibs__mongo_batch *b, enum dibs__mongo_kind kind, const char *field, bool expires) {
  struct dibs__mongo_link *link = b->session->link;
  uint32_t bit = 1u << (2 * kind + !expires);
  bson_t command = BSON_INITIALIZER, list, one, key, reply;
  if (!(b->indexed & bit)) {
    b->indexed |= bit;
    BSON_APPEND_UTF8(&command, "createIndexes", mongoc_collection_get_name(link->collections[kind]));
    BSON_APPEND_ARRAY_BEGIN(&command, "indexes", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
    BSON_APPEND_DOCUMENT_BEGIN(&one, "key", &key);
    BSON_APPEND_INT32(&key, field, 1);
    bson_append_document_end(&one, &key);
    BSON_APPEND_UTF8(&one, "name", field);
    if (expires) BSON_APPEND_INT32(&one, "expireAfterSeconds", 0);
    bson_append_document_end(&list, &one);
    bson_append_array_end(&command, &list);
    mongoc_client_write_command_with_opts(link->client, link->location->database, &command, NULL, &reply, NULL);
    bson_destroy(&reply);
  }
  bson_destroy(&command);
}
