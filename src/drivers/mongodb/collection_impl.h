/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_COLLECTION_IMPL_H
#define DIBS_DRIVERS_MONGODB_COLLECTION_IMPL_H
/* A collection of the user's, during one operation (collection.c). */
#include "drivers/mongodb/field_impl.h"

/* What a session knows of it. */
struct dibs__mongo_checked {
  uint64_t nr;           /* the table's; 0: none */
  bool fits;             /* it exists, and was checked */
  uint32_t key_type;     /* DIBS__MF_...: of keys that may have several types, the latest found; 0: none yet */
  dibs__tick odd_looked; /* when a claim looked for documents that are never claimed */
  char odd[200];         /* what it found; "": none */
};

struct dibs__mongo_collection {
  /* Set by the caller. */
  struct dibs__mongo_session *session;
  const struct dibs__table *table;
  struct dibs__result *result;
  dibs__tick by;
  /* Set by open. */
  struct dibs__mongo_link *link;
  struct dibs__mongo_checked *known;
  char database[DIBS__MONGO_WORD_MAX + 1];
  const char *name;
  mongoc_collection_t *handle;
};

/* OK: it exists, and fits.  NOT_FOUND: it does not exist; the first document makes it.  INVALID, UNAVAILABLE, DENIED:
 * `why`.  NO_MEMORY.  Close it in each case. */
dibs__status dibs__mongo_collection_open(struct dibs__mongo_collection *c, char *why, size_t size);
void dibs__mongo_collection_close(struct dibs__mongo_collection *c);
/* Before a document is inserted: the unique index may have been dropped since, and with its collection, which an insert
 * makes again without an index.  OK; INVALID, UNAVAILABLE, DENIED: `why`. */
dibs__status dibs__mongo_collection_inserts(struct dibs__mongo_collection *c, char *why, size_t size);

/* A findAndModify, or without a pipeline a findAndRemove. */
struct dibs__mongo_change {
  const bson_t *query, *sort, *fields, *pipeline; /* sort, fields: may be NULL */
};
/* Sends it until it met no other client, or until the deadline.  *document: as it is now (or was, when it is removed);
 * NULL: none matched; the caller destroys it.  INVALID: the server refuses to do it, and has changed nothing.  UNKNOWN,
 * UNAVAILABLE, DENIED, NO_MEMORY. */
dibs__status dibs__mongo_modify(struct dibs__mongo_collection *c, const struct dibs__mongo_change *change,
                                bson_t **document);
/* The same of any command that writes; the caller destroys the reply. */
dibs__status dibs__mongo_send_again(struct dibs__mongo_collection *c, const bson_t *command, bson_t *reply);
/* Of the reply to an insert of one document: true: it violates a unique index.  Another refusal sets *status to
 * INVALID. In both cases `why`. */
bool dibs__mongo_refused(const bson_t *reply, dibs__status *status, char *why, size_t size);
/* Calls `row` for documents that match.  Destroys the filter, the sort and the fields; the latter two may be NULL.
 * `most` 0: all.  Never UNKNOWN. */
dibs__status dibs__mongo_look(struct dibs__mongo_collection *c, bson_t *filter, bson_t *sort, bson_t *fields,
                              int64_t most, dibs__mongo_row *row, void *user);

#endif
