/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks a MongoDB: its version, the members of its replica set as libmongoc found them and as the set itself
 * sees them, TLS, and the journal.
 *
 * libmongoc looks at every member when the client is made, and when it must choose one; a member that is stopped costs
 * it connectTimeoutMS then, and is "Unknown".  Nothing here looks for members again.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { UNAUTHORIZED = 13, NO_REPLICATION = 76, UNKNOWN_COMMAND = 59 };

typedef struct dibs__mongo_link link_t;

/* A command of the database admin.  OK: `reply`, to be destroyed.  DENIED; UNSUPPORTED: the server has no such thing.
 */
static dibs__status ask(link_t *link, const char *command, bson_t *reply, bson_error_t *error) {
  bson_t request = BSON_INITIALIZER;
  BSON_APPEND_INT32(&request, command, 1);
  bool done = mongoc_client_command_simple(link->client, "admin", &request, NULL, reply, error);
  bson_destroy(&request);
  if (done) return DIBS_OK;
  bson_destroy(reply);
  if (error->code == UNAUTHORIZED) return DIBS_DENIED;
  bool none = error->code == NO_REPLICATION || error->code == UNKNOWN_COMMAND || error->domain == MONGOC_ERROR_SERVER;
  return none ? DIBS_UNSUPPORTED : DIBS_UNAVAILABLE;
}

static const char *text_in(const bson_t *document, const char *key, const char *other) {
  bson_iter_t at;
  return bson_iter_init_find(&at, document, key) && BSON_ITER_HOLDS_UTF8(&at) ? bson_iter_utf8(&at, NULL) : other;
}

static void describe_server(link_t *link, struct dibs__findings *to) {
  bson_t reply, inner;
  bson_iter_t at;
  bson_error_t error;
  dibs__status status = ask(link, "buildInfo", &reply, &error);
  if (status == DIBS_DENIED) dibs__find_hidden(to, "server", "the version");
  if (status != DIBS_OK && status != DIBS_DENIED)
    dibs__find_trouble(to, "server", "read the message, then try again", "%s", error.message);
  if (status != DIBS_OK) return;
  const uint8_t *bytes;
  uint32_t length;
  bool stand_in = bson_iter_init_find(&at, &reply, "ferretdb") && BSON_ITER_HOLDS_DOCUMENT(&at);
  if (stand_in) {
    bson_iter_document(&at, &length, &bytes);
    stand_in = bson_init_static(&inner, bytes, length);
  }
  const char *version = text_in(&reply, "version", "of an unknown version");
  if (stand_in)
    dibs__find(to, "server", "FerretDB %s, which calls itself MongoDB %s, at %s", text_in(&inner, "version", "?"),
               version, link->location->shown);
  else
    dibs__find(to, "server", "MongoDB %s at %s", version, link->location->shown);
  bson_destroy(&reply);
}

/* What the set sees of a member: a document of replSetGetStatus. */
static void find_set_member(const bson_t *member, struct dibs__findings *to) {
  const char *name = text_in(member, "name", "?"), *state = text_in(member, "stateStr", "?");
  bson_iter_t at;
  bool healthy = !bson_iter_init_find(&at, member, "health") || bson_iter_as_double(&at) > 0;
  if (healthy)
    dibs__find(to, "node", "%s: %s", name, state);
  else
    dibs__find_trouble(to, "node", "look at that member: writes need a majority of the members",
                       "%s does not answer the other members: %s", name,
                       text_in(member, "lastHeartbeatMessage", state));
}

static void describe_set(link_t *link, struct dibs__findings *to) {
  bson_t reply;
  bson_iter_t at, members;
  bson_error_t error;
  dibs__status status = ask(link, "replSetGetStatus", &reply, &error);
  if (status == DIBS_DENIED)
    dibs__find_hidden(to, "node", "the state of the members as the set sees it (grant clusterMonitor)");
  if (status == DIBS_UNAVAILABLE)
    dibs__find_trouble(to, "node", "read the message, then try again", "%s", error.message);
  if (status != DIBS_OK) return;
  if (bson_iter_init_find(&at, &reply, "members") && bson_iter_recurse(&at, &members))
    while (bson_iter_next(&members)) {
      const uint8_t *bytes;
      uint32_t length;
      bson_t member;
      if (!BSON_ITER_HOLDS_DOCUMENT(&members)) continue;
      bson_iter_document(&members, &length, &bytes);
      if (bson_init_static(&member, bytes, length)) find_set_member(&member, to);
    }
  bson_destroy(&reply);
}

/* As libmongoc found them. */
static void describe_members(link_t *link, struct dibs__findings *to) {
  size_t count = 0;
  mongoc_server_description_t **all = mongoc_client_get_server_descriptions(link->client, &count);
  for (size_t i = 0; i < count; i++) {
    const char *type = mongoc_server_description_type(all[i]),
               *host = mongoc_server_description_host(all[i])->host_and_port;
    if (strcmp(type, "Unknown") == 0 && count > 1)
      dibs__find_trouble(to, "node", "look at that member: writes need a majority of the members",
                         "%s did not answer when the members were looked for", host);
    else if (count > 1)
      dibs__find(to, "node", "%s: %s", host, type);
  }
  mongoc_server_descriptions_destroy_all(all, count);
}

static void describe_role(link_t *link, struct dibs__findings *to) {
  bson_t reply;
  bson_error_t error;
  if (ask(link, "hello", &reply, &error) != DIBS_OK) return;
  const char *set = text_in(&reply, "setName", NULL), *me = text_in(&reply, "me", NULL);
  if (set)
    dibs__find(to, "role", "primary of the replica set %s%s%s, term %" PRIu32, set, me ? ", " : "", me ? me : "",
               link->term);
  else if (strcmp(text_in(&reply, "msg", ""), "isdbgrid") == 0)
    dibs__find(to, "role", "mongos, of a sharded cluster");
  else
    dibs__find(to, "role", "one server: nothing takes its place when it fails, and writes are confirmed by it alone");
  bson_destroy(&reply);
}

static void describe_tls(const link_t *link, struct dibs__findings *to) {
  const mongoc_uri_t *uri = mongoc_client_get_uri(link->client); /* another thread may replace the location's */
  if (!mongoc_uri_get_tls(uri))
    dibs__find(to, "tls", "none: the connection is not encrypted");
  else if (mongoc_uri_get_option_as_bool(uri, MONGOC_URI_TLSALLOWINVALIDCERTIFICATES, false) ||
           mongoc_uri_get_option_as_bool(uri, MONGOC_URI_TLSINSECURE, false))
    dibs__find_warning(to, "tls", "remove tlsAllowInvalidCertificates, and name the authority with tlsCAFile",
                       "TLS; the server is not verified");
  else
    dibs__find(to, "tls", "TLS; the server's certificate and name are verified");
}

/* Without it a majority may have confirmed what no disk has. */
static void describe_journal(link_t *link, struct dibs__findings *to) {
  bson_t reply;
  bson_iter_t at, field;
  bson_error_t error;
  if (!link->replicated) return;
  dibs__find(to, "setting", "dibs writes with w = majority, whatever the server's default is");
  dibs__status status = ask(link, "replSetGetConfig", &reply, &error);
  if (status == DIBS_DENIED)
    dibs__find_hidden(to, "setting", "writeConcernMajorityJournalDefault (grant clusterMonitor)");
  if (status != DIBS_OK) return;
  if (bson_iter_init(&at, &reply) &&
      bson_iter_find_descendant(&at, "config.writeConcernMajorityJournalDefault", &field)) {
    if (bson_iter_as_bool(&field))
      dibs__find(to, "setting", "writeConcernMajorityJournalDefault = true");
    else
      dibs__find_warning(to, "setting",
                         "set it to true: a power failure of a majority ends leases that are still valid",
                         "writeConcernMajorityJournalDefault = false");
  }
  bson_destroy(&reply);
}

void dibs__mongo_describe(link_t *link, struct dibs__findings *to) {
  describe_server(link, to);
  describe_role(link, to);
  if (link->replicated) describe_members(link, to);
  if (link->replicated) describe_set(link, to);
  describe_tls(link, to);
  describe_journal(link, to);
}
