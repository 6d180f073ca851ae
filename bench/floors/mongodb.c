/* SPDX-License-Identifier: MIT */
/*
 * MongoDB through libmongoc: only leases.  The usual recipe: a document for each name, taken by a findAndModify whose
 * query says that it is free by the client's clock, and given back by an update that names the owner and the fence.
 * Each write is confirmed by the majority, with its journal, as those of dibs are.  It has no waiters: it polls.
 */
#include "floor.h"

#include <mongoc/mongoc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEASE_MS = 60000 };
#define COLLECTION "floor_lease"

struct link {
  struct floor_link base;
  mongoc_client_t *client;
  const char *database;
  mongoc_uri_t *uri;
  mongoc_collection_t *names;
  bson_t options; /* with the write concern */
  int64_t fence;  /* of the lease that is held */
};

static bool broken(struct link *l, const char *what, const bson_error_t *error) {
  snprintf(l->base.why, sizeof l->base.why, "%s: %.200s", what, error->message);
  return false;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  bson_error_t error;
  bson_iter_t at, in;
  bson_t reply;
  int64_t now = now_ms();
  bson_t *command = BCON_NEW("findAndModify", COLLECTION, "query", "{", "_id", BCON_INT32(name), "until", "{", "$lte",
                             BCON_DATE_TIME(now), "}", "}", "update", "{", "$set", "{", "owner", BCON_INT32(owner),
                             "until", BCON_DATE_TIME(now + LEASE_MS), "}", "$inc", "{", "fence", BCON_INT64(1), "}",
                             "}", "new", BCON_BOOL(true));
  bool done = mongoc_client_write_command_with_opts(l->client, l->database, command, &l->options, &reply, &error);
  bson_destroy(command);
  bool got = done && bson_iter_init(&at, &reply) && bson_iter_find_descendant(&at, "value.fence", &in);
  if (got) l->fence = *fence = bson_iter_as_int64(&in);
  bson_destroy(&reply);
  if (!done) broken(l, "findAndModify", &error);
  return got ? FLOOR_DONE : done ? FLOOR_CONFLICT : FLOOR_BROKEN;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  bson_error_t error;
  bson_iter_t at;
  bson_t reply;
  bson_t *command = BCON_NEW("update", COLLECTION, "updates", "[", "{", "q", "{", "_id", BCON_INT32(name), "owner",
                             BCON_INT32(owner), "fence", BCON_INT64(l->fence), "}", "u", "{", "$set", "{", "owner",
                             BCON_NULL, "until", BCON_DATE_TIME(0), "}", "}", "}", "]");
  bool done = mongoc_client_write_command_with_opts(l->client, l->database, command, &l->options, &reply, &error);
  bson_destroy(command);
  bool given = done && bson_iter_init_find(&at, &reply, "n") && bson_iter_as_int64(&at) == 1;
  bson_destroy(&reply);
  if (given) return FLOOR_DONE;
  if (done) bson_set_error(&error, 0, 0, "the lease was no longer held");
  broken(l, "update", &error);
  return FLOOR_BROKEN;
}

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  if (l->names) mongoc_collection_destroy(l->names);
  if (l->client) mongoc_client_destroy(l->client);
  if (l->uri) mongoc_uri_destroy(l->uri);
  bson_destroy(&l->options);
  free(l);
}

static struct floor_link *link_open(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  (void)strategy;
  bson_error_t error = {.message = "out of memory"};
  struct link *l = calloc(1, sizeof *l);
  if (!l) {
    snprintf(why, FLOOR_WHY, "out of memory");
    return NULL;
  }
  bson_init(&l->options);
  BCON_APPEND(&l->options, "writeConcern", "{", "w", "majority", "j", BCON_BOOL(true), "}");
  l->uri = mongoc_uri_new_with_error(uri, &error);
  l->client = l->uri ? mongoc_client_new_from_uri_with_error(l->uri, &error) : NULL;
  if (!l->client) {
    snprintf(why, FLOOR_WHY, "%.200s", error.message);
    link_close(&l->base);
    return NULL;
  }
  mongoc_client_set_error_api(l->client, MONGOC_ERROR_API_VERSION_2);
  l->database = mongoc_uri_get_database(l->uri) ? mongoc_uri_get_database(l->uri) : "floor";
  l->names = mongoc_client_get_collection(l->client, l->database, COLLECTION);
  return &l->base;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  struct link *l = (struct link *)link;
  bson_error_t error;
  bson_t all = BSON_INITIALIZER;
  (void)limit; /* no bookings here */
  bool fine = mongoc_collection_delete_many(l->names, &all, &l->options, NULL, &error) || broken(l, "delete", &error);
  bson_destroy(&all);
  for (int32_t name = 0; name < names && fine; name++) {
    bson_t *document =
        BCON_NEW("_id", BCON_INT32(name), "owner", BCON_NULL, "until", BCON_DATE_TIME(0), "fence", BCON_INT64(0));
    fine = mongoc_collection_insert_one(l->names, document, &l->options, NULL, &error) || broken(l, "insert", &error);
    bson_destroy(document);
  }
  return fine;
}

static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  const bson_t *document;
  bson_error_t error;
  bson_iter_t at;
  bson_t all = BSON_INITIALIZER;
  memset(a, 0, sizeof *a);
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(l->names, &all, NULL, NULL);
  while (mongoc_cursor_next(cursor, &document)) {
    if (bson_iter_init_find(&at, document, "fence")) a->fences += bson_iter_as_int64(&at);
    if (bson_iter_init_find(&at, document, "owner")) a->held += !BSON_ITER_HOLDS_NULL(&at);
  }
  bool fine = !mongoc_cursor_error(cursor, &error) || broken(l, "find", &error);
  mongoc_cursor_destroy(cursor);
  bson_destroy(&all);
  return fine;
}

static const char *version(struct floor_link *link) {
  (void)link;
  return "client " MONGOC_VERSION_S;
}

static const struct floor_strategy strategies[] = {
    {"lease-own", "acquire and release a name of the user's own", .kind = FLOOR_LEASE_OWN},
    {"lease-shared", "all users try to acquire one name until they have it", .kind = FLOOR_LEASE_SHARED},
    {.name = NULL}};

static const struct floor_engine engine = {.name = "mongodb",
                                           .example = "mongodb://host:port/database",
                                           .variable = "DIBS_TEST_MONGODB",
                                           .strategies = strategies,
                                           FLOOR_CALLS};

int main(int argc, char **argv) {
  mongoc_init();
  int code = floor_main(&engine, argc, argv);
  mongoc_cleanup();
  return code;
}
