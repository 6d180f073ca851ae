/* SPDX-License-Identifier: MIT */
/* lab_collections [drop]: prints how many collections of the lab exist in the MongoDB $DIBS_STORE; or drops them. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char *argv[]) {
  const char *store = getenv("DIBS_STORE");
  bson_error_t error = {0};
  bool drops = argc > 1 && strcmp(argv[1], "drop") == 0;
  int count = 0;
  mongoc_init();
  mongoc_uri_t *uri = mongoc_uri_new(store ? store : "");
  mongoc_client_t *client = uri ? mongoc_client_new_from_uri(uri) : NULL;
  const char *name = uri ? mongoc_uri_get_database(uri) : NULL;
  if (!client || !name) {
    fprintf(stderr, "lab_collections: DIBS_STORE is no URI of a database in MongoDB\n");
    return 1;
  }
  mongoc_database_t *database = mongoc_client_get_database(client, name);
  char **names = mongoc_database_get_collection_names_with_opts(database, NULL, &error);
  bool fine = names != NULL;
  for (char **at = names; fine && *at; at++) {
    if (strncmp(*at, "dibs_lab_", 9) != 0) continue;
    count++;
    if (!drops) continue;
    mongoc_collection_t *collection = mongoc_database_get_collection(database, *at);
    fine = mongoc_collection_drop(collection, &error);
    mongoc_collection_destroy(collection);
  }
  bson_strfreev(names);
  mongoc_database_destroy(database);
  mongoc_client_destroy(client);
  mongoc_uri_destroy(uri);
  if (!fine) fprintf(stderr, "lab_collections: %s\n", error.message);
  if (fine) printf("%d\n", count);
  mongoc_cleanup();
  return !fine;
}
