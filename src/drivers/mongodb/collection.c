/* SPDX-License-Identifier: MIT */
/*
 * The user's collections: whether one fits its declaration, and commands about its documents.
 *
 * A collection is checked once for each session: its type, its collation, and the index of the key.  Documents have no
 * columns, so their content is checked by each command.
 */
#include "drivers/mongodb/collection_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  COLLECTIONS = 16, /* of which a session remembers what it has checked */
  PAUSE_MAX_MS = 16 /* before a command that met another one is sent again */
};

typedef struct dibs__mongo_collection collection_t;
typedef struct dibs__table table_t;

struct dibs__mongo_seen {
  struct dibs__mongo_checked known[COLLECTIONS];
  size_t next;
};

/* ---- Does it fit? ---- */

static struct dibs__mongo_checked *know_table(struct dibs__mongo_session *session, const table_t *table) {
  struct dibs__mongo_seen *all = session->seen;
  if (!all) all = session->seen = calloc(1, sizeof *all);
  if (!all) return NULL;
  for (size_t i = 0; i < COLLECTIONS; i++)
    if (all->known[i].nr == table->nr) return &all->known[i];
  struct dibs__mongo_checked *k = &all->known[all->next++ % COLLECTIONS];
  *k = (struct dibs__mongo_checked){.nr = table->nr};
  return k;
}

static bool has_dollar(const char *name, char *why, size_t size) {
  if (!name || !strchr(name, '$')) return false;
  snprintf(why, size, "the name \"%.64s\" has a $, to which MongoDB gives a meaning", name);
  return true;
}

static bool names_fit(const table_t *t, char *why, size_t size) {
  const char *const names[] = {t->table, t->key,    t->version,   t->fence,     t->owner, t->used,
                               t->limit, t->claims, t->claim,     t->amount,    t->given, t->taker,
                               t->taken, t->phase,  t->locked_at, t->updated_at};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (has_dollar(names[i], why, size)) return false;
  for (size_t i = 0; i < t->column_count; i++)
    if (has_dollar(t->columns[i], why, size)) return false;
  return true;
}

struct looked {
  bool exists, unique;
  char why[128]; /* what does not fit */
  const char *key;
};

static bool look_collection(void *user, const bson_t *row) {
  struct looked *l = user;
  bson_iter_t at, in;
  l->exists = true;
  if (bson_iter_init_find(&at, row, "type") && BSON_ITER_HOLDS_UTF8(&at) &&
      strcmp(bson_iter_utf8(&at, NULL), "collection") != 0)
    snprintf(l->why, sizeof l->why, "it is a %.20s: dibs can't guard documents there", bson_iter_utf8(&at, NULL));
  if (bson_iter_init(&at, row) && bson_iter_find_descendant(&at, "options.collation.locale", &in) &&
      BSON_ITER_HOLDS_UTF8(&in) && strcmp(bson_iter_utf8(&in, NULL), "simple") != 0)
    snprintf(l->why, sizeof l->why, "it has a collation, in which different keys and phases may be equal");
  return false;
}

static bool look_index(void *user, const bson_t *row) {
  struct looked *l = user;
  bson_iter_t at, in;
  bool unique = bson_iter_init_find(&at, row, "unique") && bson_iter_as_bool(&at);
  if (!unique || bson_has_field(row, "partialFilterExpression")) return true;
  if (!bson_iter_init_find(&at, row, "key") || !BSON_ITER_HOLDS_DOCUMENT(&at) || !bson_iter_recurse(&at, &in) ||
      !bson_iter_next(&in) || strcmp(bson_iter_key(&in), l->key) != 0 || bson_iter_next(&in))
    return true;
  l->unique = true;
  return false;
}

/* A unique index of the key alone. */
static dibs__status look_for_index(collection_t *c, struct looked *l) {
  l->unique = strcmp(l->key, "_id") == 0;
  if (l->unique) return DIBS_OK;
  return dibs__mongo_read(c->link, mongoc_collection_find_indexes_with_opts(c->handle, NULL), look_index, l, c->result);
}

static void explain_no_index(const struct looked *l, char *why, size_t size) {
  snprintf(why, size, "\"%.40s\" has no unique index of its own: a key could exist twice", l->key);
}

static dibs__status look_at_collection(collection_t *c, struct looked *l) {
  bson_t options = BSON_INITIALIZER, filter;
  mongoc_database_t *database = mongoc_client_get_database(c->link->client, c->database);
  BSON_APPEND_DOCUMENT_BEGIN(&options, "filter", &filter);
  BSON_APPEND_UTF8(&filter, "name", c->name);
  bson_append_document_end(&options, &filter);
  mongoc_cursor_t *cursor = mongoc_database_find_collections_with_opts(database, &options);
  dibs__status status = dibs__mongo_read(c->link, cursor, look_collection, l, c->result);
  mongoc_database_destroy(database);
  bson_destroy(&options);
  return status == DIBS_OK && l->exists ? look_for_index(c, l) : status;
}

static dibs__status check_collection(collection_t *c, char *why, size_t size) {
  struct looked l = {.key = c->table->key};
  if (c->known->fits) return DIBS_OK;
  dibs__status status = look_at_collection(c, &l);
  if (status != DIBS_OK) {
    snprintf(why, size, "%.199s", c->result->text);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  }
  if (l.exists && !l.why[0] && !l.unique) explain_no_index(&l, l.why, sizeof l.why);
  c->known->fits = l.exists && !l.why[0];
  if (c->known->fits) return DIBS_OK;
  snprintf(why, size, "%s", l.why);
  if (l.exists) return DIBS_INVALID;
  snprintf(why, size,
           "there is no collection \"%.64s\" in the database \"%.63s\": correct its name, or insert a document",
           c->name, c->database);
  return DIBS_NOT_FOUND;
}

dibs__status dibs__mongo_collection_inserts(collection_t *c, char *why, size_t size) {
  struct looked l = {.key = c->table->key};
  dibs__status status = look_for_index(c, &l);
  if (status != DIBS_OK) {
    snprintf(why, size, "%.199s", c->result->text);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  }
  if (l.unique) return DIBS_OK;
  c->known->fits = false;
  explain_no_index(&l, why, size);
  return DIBS_INVALID;
}

/* "other.gateways" is a collection of another database. */
dibs__status dibs__mongo_collection_open(collection_t *c, char *why, size_t size) {
  const char *dot = strchr(c->table->table, '.');
  c->link = c->session->link;
  c->link->by = c->by;
  c->known = know_table(c->session, c->table);
  if (!c->known) return DIBS_NO_MEMORY;
  if (c->link->broken || !dibs__tick_before(dibs__tick_now(), c->by)) {
    snprintf(why, size, "%.199s", c->result->text);
    return DIBS_UNAVAILABLE;
  }
  if (!names_fit(c->table, why, size)) return DIBS_INVALID;
  const char *database = dot ? c->table->table : c->link->location->database;
  size_t len = dot ? (size_t)(dot - c->table->table) : strlen(database);
  if (len >= sizeof c->database) len = sizeof c->database - 1;
  memcpy(c->database, database, len);
  c->database[len] = '\0';
  c->name = dot ? dot + 1 : c->table->table;
  c->handle = mongoc_client_get_collection(c->link->client, c->database, c->name);
  return c->handle ? check_collection(c, why, size) : DIBS_NO_MEMORY;
}

void dibs__mongo_collection_close(collection_t *c) {
  if (c->handle) mongoc_collection_destroy(c->handle);
}

/* ---- Commands ---- */

dibs__status dibs__mongo_send_again(collection_t *c, const bson_t *command, bson_t *reply) {
  dibs__status status;
  for (int64_t pause = 1;; pause = pause < PAUSE_MAX_MS ? pause * 2 : pause) {
    status = dibs__mongo_write_in(c->link, c->database, command, reply, c->result);
    if (status != DIBS_UNAVAILABLE || c->link->broken) break;
    if (!dibs__tick_before(dibs__tick_add_ms(dibs__tick_now(), pause), c->by)) break;
    bson_destroy(reply);
    dibs__nap_ms(pause);
  }
  c->result->commits++;
  return status;
}

bool dibs__mongo_refused(const bson_t *reply, dibs__status *status, char *why, size_t size) {
  bson_iter_t at, in, of;
  uint32_t len = 0;
  int64_t code = 0;
  const char *text = "";
  if (!bson_iter_init_find(&at, reply, "writeErrors") || !bson_iter_recurse(&at, &in) || !bson_iter_next(&in) ||
      !bson_iter_recurse(&in, &of))
    return false;
  while (bson_iter_next(&of)) {
    if (strcmp(bson_iter_key(&of), "code") == 0) code = bson_iter_as_int64(&of);
    if (strcmp(bson_iter_key(&of), "errmsg") == 0 && BSON_ITER_HOLDS_UTF8(&of)) text = bson_iter_utf8(&of, &len);
  }
  snprintf(why, size, "%.160s", text);
  if (code == 11000 || code == 11001) return true; /* DuplicateKey */
  *status = DIBS_INVALID;
  return false;
}

dibs__status dibs__mongo_modify(collection_t *c, const struct dibs__mongo_change *change, bson_t **document) {
  bson_t command = BSON_INITIALIZER, reply;
  bson_iter_t at;
  *document = NULL;
  bool fine = BSON_APPEND_UTF8(&command, "findAndModify", c->name) &&
              BSON_APPEND_DOCUMENT(&command, "query", change->query) &&
              (!change->fields || BSON_APPEND_DOCUMENT(&command, "fields", change->fields)) &&
              (!change->sort || BSON_APPEND_DOCUMENT(&command, "sort", change->sort));
  if (change->pipeline)
    fine = fine && BSON_APPEND_ARRAY(&command, "update", change->pipeline) && BSON_APPEND_BOOL(&command, "new", true);
  else
    fine = fine && BSON_APPEND_BOOL(&command, "remove", true);
  dibs__status status = DIBS_NO_MEMORY;
  if (fine) {
    status = dibs__mongo_send_again(c, &command, &reply);
    if (status == DIBS_OK && bson_iter_init_find(&at, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&at)) {
      uint32_t len;
      const uint8_t *bytes;
      bson_iter_document(&at, &len, &bytes);
      *document = bson_new_from_data(bytes, len);
      if (!*document) status = DIBS_NO_MEMORY;
    }
    /* The repeat did not find what the first one may have changed. */
    if (status == DIBS_OK && !*document && c->link->repeated) status = DIBS_UNKNOWN;
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status;
}

dibs__status dibs__mongo_look(collection_t *c, bson_t *filter, bson_t *sort, bson_t *fields, int64_t most,
                              dibs__mongo_row *row, void *user) {
  bson_t options = BSON_INITIALIZER;
  bool fine = filter && (!sort || BSON_APPEND_DOCUMENT(&options, "sort", sort)) &&
              (!fields || BSON_APPEND_DOCUMENT(&options, "projection", fields)) &&
              (most == 0 || BSON_APPEND_INT64(&options, "limit", most));
  dibs__status status = DIBS_NO_MEMORY;
  if (fine) status = dibs__mongo_find_in(c->link, c->handle, filter, &options, false, row, user, c->result);
  bson_destroy(filter);
  bson_destroy(sort);
  bson_destroy(fields);
  bson_destroy(&options);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}
