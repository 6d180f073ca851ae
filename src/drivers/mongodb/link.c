/* SPDX-License-Identifier: MIT */
/*
 * One connection to MongoDB: commands with deadlines, and the server's clock.
 *
 * libmongoc has one time limit for all commands of a client.  So each stream of a client is wrapped: it waits no longer
 * than the deadline of the call that uses the link.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
  CLOCK_KEEP_MS = 5000,   /* then it is read again, */
  CLOCK_WORSE_MS = 30000, /* but a better bound is kept so long */
  DRIFT = 5000,           /* a clock gains or loses at most one part in so many */
  OLDEST_WIRE = 9         /* MongoDB 4.4: pipelines with $$NOW, and hello */
};

/* The library exports it for drivers in other languages, but its headers do not declare it. */
mongoc_stream_t *mongoc_client_default_stream_initiator(const mongoc_uri_t *uri, const mongoc_host_list_t *host,
                                                        void *client, bson_error_t *error);

/* ---- Streams with a deadline ---- */

enum { TIMED_STREAM = 77 };

struct timed {
  mongoc_stream_t base; /* first */
  mongoc_stream_t *inner;
  const struct dibs__mongo_link *link;
  bool late;
};

static struct timed *timed_of(mongoc_stream_t *stream) {
  return (struct timed *)stream;
}

/* false: the time is over */
static bool limit(struct timed *t, int32_t *ms) {
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), t->link->by);
  t->late = left <= 0;
  if (t->late) {
    errno = ETIMEDOUT;
    return false;
  }
  if (*ms <= 0 || left < *ms) *ms = left > INT_MAX ? INT_MAX : (int32_t)left;
  return true;
}

static void timed_destroy(mongoc_stream_t *stream) {
  mongoc_stream_destroy(timed_of(stream)->inner);
  free(stream);
}
static int timed_close(mongoc_stream_t *stream) {
  return mongoc_stream_close(timed_of(stream)->inner);
}
static int timed_flush(mongoc_stream_t *stream) {
  return mongoc_stream_flush(timed_of(stream)->inner);
}
static ssize_t timed_writev(mongoc_stream_t *stream, mongoc_iovec_t *iov, size_t count, int32_t ms) {
  if (!limit(timed_of(stream), &ms)) return -1;
  return mongoc_stream_writev(timed_of(stream)->inner, iov, count, ms);
}
static ssize_t timed_readv(mongoc_stream_t *stream, mongoc_iovec_t *iov, size_t count, size_t least, int32_t ms) {
  if (!limit(timed_of(stream), &ms)) return -1;
  return mongoc_stream_readv(timed_of(stream)->inner, iov, count, least, ms);
}
static int timed_setsockopt(mongoc_stream_t *stream, int level, int name, void *value, mongoc_socklen_t len) {
  return mongoc_stream_setsockopt(timed_of(stream)->inner, level, name, value, len);
}
static mongoc_stream_t *timed_inner(mongoc_stream_t *stream) {
  return timed_of(stream)->inner;
}
static bool timed_check_closed(mongoc_stream_t *stream) {
  return mongoc_stream_check_closed(timed_of(stream)->inner);
}
static void timed_failed(mongoc_stream_t *stream) {
  mongoc_stream_failed(timed_of(stream)->inner);
  free(stream);
}
static bool timed_timed_out(mongoc_stream_t *stream) {
  return timed_of(stream)->late || mongoc_stream_timed_out(timed_of(stream)->inner);
}
static bool timed_should_retry(mongoc_stream_t *stream) {
  return !timed_of(stream)->late && mongoc_stream_should_retry(timed_of(stream)->inner);
}

static mongoc_stream_t *make_stream(const mongoc_uri_t *uri, const mongoc_host_list_t *host, void *link,
                                    bson_error_t *error) {
  struct timed *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  t->link = link;
  t->inner = mongoc_client_default_stream_initiator(uri, host, t->link->client, error);
  if (!t->inner) {
    free(t);
    return NULL;
  }
  t->base = (mongoc_stream_t){.type = TIMED_STREAM,
                              .destroy = timed_destroy,
                              .close = timed_close,
                              .flush = timed_flush,
                              .writev = timed_writev,
                              .readv = timed_readv,
                              .setsockopt = timed_setsockopt,
                              .get_base_stream = timed_inner,
                              .check_closed = timed_check_closed,
                              .failed = timed_failed,
                              .timed_out = timed_timed_out,
                              .should_retry = timed_should_retry};
  return &t->base;
}

/* ---- Errors ---- */

static bool error_is_denied(const bson_error_t *error) {
  if (error->domain == MONGOC_ERROR_CLIENT && error->code == MONGOC_ERROR_CLIENT_AUTHENTICATE) return true;
  return error->code == 13 || error->code == 18 || error->code == 8000; /* Unauthorized, AuthenticationFailed */
}

/* The server's own code: libmongoc has others with the same numbers.  (14 is TypeMismatch, and its own is of an answer
 * that is damaged.) */
static bool is_code(const bson_error_t *error, uint32_t code) {
  return error->domain == MONGOC_ERROR_SERVER && error->code == code;
}

/* The server did nothing, and another one, or the same one soon, will: it is not the primary, or another command was
 * writing the same document.  (Of the latter MongoDB says WriteConflict, and servers over PostgreSQL its words.) */
static bool error_is_early(const bson_error_t *error) {
  static const uint32_t codes[] = {10107, 13435, 13436, 112};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (is_code(error, codes[i])) return true;
  return strstr(error->message, "deadlock detected") || strstr(error->message, "could not serialize access");
}

/* The server refused the command, and nothing was done.  All other errors of a write are in doubt: a primary that steps
 * down, a server that ends, an internal error after the write.  (The last four are about the document that a
 * findAndModify would write: a validator, a unique index, its size.  Of an index, servers over PostgreSQL have no
 * code.) */
static bool error_is_refusal(const bson_error_t *error) {
  static const uint32_t codes[] = {2,  4,  9,  14, 15, 17,  20,    22,  40,    52,    57,
                                   59, 66, 67, 72, 73, 115, 10334, 121, 11000, 11001, 17419};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (is_code(error, codes[i])) return true;
  return error->domain == MONGOC_ERROR_SERVER && (strstr(error->message, "violates exclusion constraint") ||
                                                  strstr(error->message, "violates unique constraint"));
}

/* No server was found.  A certificate or an account that is refused does not become right by itself.  libmongoc puts
 * the reasons of all servers in brackets, behind a sentence of its own. */
static dibs__status explain_selection(const struct dibs__mongo_link *link, const char *said,
                                      struct dibs__result *result) {
  const char *why = strchr(said, '['), *next = "";
  const char *end = why ? strrchr(why, ']') : NULL;
  int length = end ? (int)(end - why - 1) : (int)strlen(said);
  const mongoc_uri_t *uri = mongoc_client_get_uri(link->client); /* another thread may replace the location's */
  dibs__status status = DIBS_UNAVAILABLE;
  why = end ? why + 1 : said;
  if (strstr(said, "uthenticat")) {
    status = DIBS_DENIED;
  } else if (strstr(said, "certificate verify failed")) {
    status = DIBS_DENIED;
    next = "; use a name of its certificate, and name its authority with ca=FILE";
  } else if (strstr(said, "length header") && !mongoc_uri_get_tls(uri)) {
    /* So a server with TLS ends a connection without. */
    next = "; a server with TLS needs tls=true or ca=FILE";
  } else if (strstr(said, "TLS handshake")) {
    next = "; does this port have TLS?";
  } else if (strstr(said, "initialize TLS")) {
    next = "; are ca= and tlsCertificateKeyFile= files in PEM form?";
  } else if (!end && mongoc_uri_get_replica_set(uri)) {
    /* Servers answer, and libmongoc uses none of them: it gives no reason. */
    why = "no host of the URI is a usable member of that replica set", length = (int)strlen(why);
    next = "; is replicaSet= its name, and has it a primary?";
  }
  if (length > 0 && why[length - 1] == '.') length--;
  dibs__set_message(result, "%.100s: %.*s%s", link->location->shown, length < 110 ? length : 110, why, next);
  return status;
}

dibs__status dibs__mongo_explain(struct dibs__mongo_link *link, const bson_error_t *error, const bson_t *reply,
                                 bool sent, struct dibs__result *result) {
  (void)reply;
  bool selection = error->domain == MONGOC_ERROR_SERVER_SELECTION;
  bool stream = error->domain == MONGOC_ERROR_STREAM || error->domain == MONGOC_ERROR_PROTOCOL;
  dibs__set_message(result, "%s: %.160s", link->location->shown, error->message);
  link->broken = link->broken || selection || stream;
  if (selection) return explain_selection(link, error->message, result);
  if (stream) return sent ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
  if (error_is_denied(error)) return DIBS_DENIED;
  if (error_is_early(error)) return DIBS_UNAVAILABLE;
  if (error->domain == MONGOC_ERROR_BSON) return DIBS_INVALID;
  return sent && !error_is_refusal(error) ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
}

/* ---- Commands ---- */

static bool concern(bson_t *options) {
  bson_t w;
  return BSON_APPEND_DOCUMENT_BEGIN(options, "writeConcern", &w) && BSON_APPEND_UTF8(&w, "w", "majority") &&
         BSON_APPEND_BOOL(&w, "j", true) && bson_append_document_end(options, &w);
}

static bool has_concern_error(const bson_t *reply, bson_error_t *error) {
  bson_iter_t at, in;
  if (!bson_iter_init_find(&at, reply, "writeConcernError") || !bson_iter_recurse(&at, &in)) return false;
  bson_set_error(error, MONGOC_ERROR_WRITE_CONCERN, 64, "the write was not confirmed by a majority");
  return true;
}

/* What the failure of a write means, which was sent `link->started` times.  A write that the majority did not confirm
 * was done, whatever the code is.  A refusal is that of the last one: an earlier one may have been done. */
static dibs__status explain_write(struct dibs__mongo_link *link, const bson_error_t *error, const bson_t *reply,
                                  bool *refused, struct dibs__result *result) {
  dibs__status status = dibs__mongo_explain(link, error, reply, link->started > 0, result);
  bool in_doubt = link->repeated || bson_has_field(reply, "writeConcernError");
  if (in_doubt) return DIBS_UNKNOWN;
  *refused = status == DIBS_UNAVAILABLE && error_is_refusal(error);
  return status;
}

/* *refused: the server has answered, and changed nothing: this command can't be done. */
static dibs__status write_command(struct dibs__mongo_link *link, const char *database, const bson_t *command,
                                  bson_t *reply, bool *refused, struct dibs__result *result) {
  bson_error_t error = {0};
  bson_t options = BSON_INITIALIZER;
  dibs__status status = DIBS_OK;
  *refused = false;
  link->started = 0;
  link->repeated = false;
  if (!concern(&options)) {
    bson_destroy(&options);
    bson_init(reply);
    return DIBS_NO_MEMORY;
  }
  bool done = mongoc_client_write_command_with_opts(link->client, database, command, &options, reply, &error);
  bson_destroy(&options);
  link->repeated = link->started > 1;
  /* With writeErrors the call counts as failed, but the reply has the outcome of each element. */
  if (!done && !bson_has_field(reply, "writeErrors")) status = explain_write(link, &error, reply, refused, result);
  if (status == DIBS_OK && has_concern_error(reply, &error))
    status = dibs__mongo_explain(link, &error, reply, true, result);
  if (status != DIBS_OK) {
    bson_destroy(reply);
    bson_init(reply);
  }
  return status;
}

dibs__status dibs__mongo_write(struct dibs__mongo_link *link, const bson_t *command, bson_t *reply,
                               struct dibs__result *result) {
  bool refused;
  return write_command(link, link->location->database, command, reply, &refused, result);
}

dibs__status dibs__mongo_write_in(struct dibs__mongo_link *link, const char *database, const bson_t *command,
                                  bson_t *reply, struct dibs__result *result) {
  bool refused;
  dibs__status status = write_command(link, database, command, reply, &refused, result);
  return refused ? DIBS_INVALID : status;
}

static bool read_concern(const struct dibs__mongo_link *link, bson_t *options, bool linearizable) {
  bson_t part;
  if (!link->replicated) return true;
  return BSON_APPEND_DOCUMENT_BEGIN(options, "readConcern", &part) &&
         BSON_APPEND_UTF8(&part, "level", linearizable ? "linearizable" : "majority") &&
         bson_append_document_end(options, &part);
}

dibs__status dibs__mongo_read(struct dibs__mongo_link *link, mongoc_cursor_t *cursor, dibs__mongo_row *row, void *user,
                              struct dibs__result *result) {
  bson_error_t error;
  const bson_t *document, *reply = NULL;
  dibs__status status = DIBS_OK;
  while (mongoc_cursor_next(cursor, &document))
    if (!row(user, document)) break;
  if (mongoc_cursor_error_document(cursor, &error, &reply))
    status = dibs__mongo_explain(link, &error, reply, false, result);
  mongoc_cursor_destroy(cursor);
  return status;
}

dibs__status dibs__mongo_find_in(struct dibs__mongo_link *link, mongoc_collection_t *collection, const bson_t *filter,
                                 bson_t *options, bool linearizable, dibs__mongo_row *row, void *user,
                                 struct dibs__result *result) {
  if (!read_concern(link, options, linearizable)) return DIBS_NO_MEMORY;
  return dibs__mongo_read(link, mongoc_collection_find_with_opts(collection, filter, options, NULL), row, user, result);
}

dibs__status dibs__mongo_find(struct dibs__mongo_link *link, enum dibs__mongo_kind kind, const bson_t *filter,
                              int64_t most, bool linearizable, dibs__mongo_row *row, void *user,
                              struct dibs__result *result) {
  bson_t options = BSON_INITIALIZER, part;
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(&options, "sort", &part) && BSON_APPEND_INT32(&part, "_id", 1) &&
              bson_append_document_end(&options, &part);
  if (most > 0) fine = fine && BSON_APPEND_INT64(&options, "limit", most);
  dibs__status status = DIBS_NO_MEMORY;
  if (fine)
    status = dibs__mongo_find_in(link, link->collections[kind], filter, &options, linearizable, row, user, result);
  bson_destroy(&options);
  return status;
}

/* ---- The clock ---- */

/* An electionId is 7fffffff and eight bytes of the term, in MongoDB since 3.2. */
static uint32_t term_of(const bson_t *hello) {
  bson_iter_t at;
  uint32_t term = 0;
  if (!bson_iter_init_find(&at, hello, "electionId") || !BSON_ITER_HOLDS_OID(&at)) return 0;
  const bson_oid_t *id = bson_iter_oid(&at);
  for (size_t i = 8; i < 12; i++) term = term << 8 | id->bytes[i];
  return term;
}

/* A command is sent. */
static void note_command(const mongoc_apm_command_started_t *event) {
  struct dibs__mongo_link *link = mongoc_apm_command_started_get_context(event);
  uint32_t member = mongoc_apm_command_started_get_server_id(event);
  link->moves += member != link->member && !link->routed;
  link->member = member;
  link->started++;
}

static bool watch_commands(struct dibs__mongo_link *link) {
  mongoc_apm_callbacks_t *callbacks = mongoc_apm_callbacks_new();
  mongoc_apm_set_command_started_cb(callbacks, note_command);
  bool fine = mongoc_client_set_apm_callbacks(link->client, callbacks, link);
  mongoc_apm_callbacks_destroy(callbacks);
  return fine;
}

static dibs__status check_server(struct dibs__mongo_link *link, const bson_t *hello, struct dibs__result *result) {
  bson_iter_t at;
  bool writes = bson_iter_init_find(&at, hello, "isWritablePrimary") && bson_iter_as_bool(&at);
  if (!writes) {
    dibs__set_message(result, "%s is not the primary; name all members and replicaSet=NAME", link->location->shown);
    return DIBS_UNAVAILABLE;
  }
  int32_t wire = bson_iter_init_find(&at, hello, "maxWireVersion") ? (int32_t)bson_iter_as_int64(&at) : 0;
  if (wire >= OLDEST_WIRE) return DIBS_OK;
  dibs__set_message(result, "%s: MongoDB 4.4 or newer is needed", link->location->shown);
  return DIBS_UNSUPPORTED;
}

/* Does the clock now say what no clock could say that went on since it was read?  It was set, or is another server's.
 */
static bool was_set(const struct dibs__mongo_link *link, int64_t server_ms, dibs__tick sent, dibs__tick received) {
  int64_t least = (sent.ns - link->clock_received.ns) / DIBS__NS_PER_MS,
          most = (received.ns - link->clock_sent.ns) / DIBS__NS_PER_MS, gone = server_ms - link->server_ms;
  return gone < least - least / (DRIFT / 10) - 2 || gone > most + most / (DRIFT / 10) + 2;
}

/* The shorter the round trip, the better the bounds. */
static void keep_clock(struct dibs__mongo_link *link, int64_t server_ms, dibs__tick sent) {
  dibs__tick received = dibs__tick_now();
  bool worse = received.ns - sent.ns > link->clock_received.ns - link->clock_sent.ns;
  link->clock_read = received;
  if (worse && link->clock_sent.ns && !was_set(link, server_ms, sent, received) &&
      dibs__tick_before(received, dibs__tick_add_ms(link->clock_received, CLOCK_WORSE_MS)))
    return;
  link->server_ms = server_ms;
  link->clock_sent = sent;
  link->clock_received = received;
}

dibs__status dibs__mongo_clock(struct dibs__mongo_link *link, bool now, struct dibs__result *result) {
  dibs__tick sent = dibs__tick_now();
  if (!now && link->clock_read.ns && link->member == link->clock_member &&
      dibs__tick_before(sent, dibs__tick_add_ms(link->clock_read, CLOCK_KEEP_MS)))
    return DIBS_OK;
  bson_t command = BSON_INITIALIZER, reply;
  bson_error_t error;
  bson_iter_t at;
  BSON_APPEND_INT32(&command, "hello", 1);
  bool done = mongoc_client_command_simple(link->client, "admin", &command, NULL, &reply, &error);
  bson_destroy(&command);
  dibs__status status =
      done ? check_server(link, &reply, result) : dibs__mongo_explain(link, &error, &reply, false, result);
  if (status == DIBS_OK && bson_iter_init_find(&at, &reply, "localTime")) {
    if (link->member != link->clock_member) link->clock_sent.ns = 0; /* the old one says nothing of this one */
    keep_clock(link, bson_iter_date_time(&at), sent);
    link->clock_member = link->member;
    link->term = term_of(&reply);
    link->routed = bson_has_field(&reply, "msg");
    link->replicated = bson_has_field(&reply, "setName") || link->routed;
  } else if (status == DIBS_OK) {
    dibs__set_message(result, "%s does not show its clock", link->location->shown);
    status = DIBS_UNSUPPORTED;
  }
  bson_destroy(&reply);
  return status;
}

int64_t dibs__mongo_earliest(const struct dibs__mongo_link *link) {
  int64_t since = dibs__tick_now().ns - link->clock_received.ns;
  return link->server_ms + (since - since / DRIFT) / DIBS__NS_PER_MS;
}

int64_t dibs__mongo_latest(const struct dibs__mongo_link *link) {
  int64_t since = dibs__tick_now().ns - link->clock_sent.ns;
  return link->server_ms + 2 + (since + since / DRIFT) / DIBS__NS_PER_MS;
}

/* ---- Opening ---- */

static const char *const collection_names[DIBS__MONGO_KINDS] = {
    [DIBS__MONGO_LEASE] = "leases",       [DIBS__MONGO_RECORD] = "records",   [DIBS__MONGO_ONCE] = "once",
    [DIBS__MONGO_STOCK] = "stocks",       [DIBS__MONGO_SESSION] = "sessions", [DIBS__MONGO_META] = "store",
    [DIBS__MONGO_CLAIM] = "claims",       [DIBS__MONGO_RATE] = "rates",       [DIBS__MONGO_COUNTER] = "counters",
    [DIBS__MONGO_SOURCE_ROW] = "sources", [DIBS__MONGO_RUN] = "runs",         [DIBS__MONGO_REPORT] = "reports",
    [DIBS__MONGO_TASK] = "tasks",         [DIBS__MONGO_TASK_KIND] = "kinds",  [DIBS__MONGO_TOKEN] = "tokens"};

static bool open_collections(struct dibs__mongo_link *link) {
  for (size_t i = 0; i < DIBS__MONGO_KINDS; i++) {
    char name[DIBS__MONGO_WORD_MAX + 16];
    snprintf(name, sizeof name, "%s%s", link->location->prefix, collection_names[i]);
    link->collections[i] = mongoc_client_get_collection(link->client, link->location->database, name);
    if (!link->collections[i]) return false;
  }
  return true;
}

static bool see_incarnation(void *user, const bson_t *document) {
  struct dibs__mongo_link *link = user;
  bson_iter_t at;
  uint32_t len = 0;
  const uint8_t *bytes = NULL;
  if (!bson_iter_init_find(&at, document, "incarnation") || !BSON_ITER_HOLDS_BINARY(&at)) return false;
  bson_iter_binary(&at, NULL, &len, &bytes);
  if (len == sizeof link->incarnation.b) memcpy(link->incarnation.b, bytes, len);
  return false;
}

/* The store's own document: who comes first makes it. */
static dibs__status read_store(struct dibs__mongo_link *link, struct dibs__result *result) {
  static const dibs__incarnation none;
  bson_t filter = BSON_INITIALIZER, command = BSON_INITIALIZER, reply, documents, document;
  char name[DIBS__MONGO_WORD_MAX + 16];
  BSON_APPEND_UTF8(&filter, "_id", "store");
  dibs__status status = dibs__mongo_find(link, DIBS__MONGO_META, &filter, 1, false, see_incarnation, link, result);
  if (status == DIBS_OK && memcmp(&link->incarnation, &none, sizeof none) == 0) {
    dibs__incarnation fresh;
    dibs__random(&fresh, sizeof fresh);
    snprintf(name, sizeof name, "%sstore", link->location->prefix);
    BSON_APPEND_UTF8(&command, "insert", name);
    BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
    BSON_APPEND_DOCUMENT_BEGIN(&documents, "0", &document);
    BSON_APPEND_UTF8(&document, "_id", "store");
    BSON_APPEND_INT32(&document, "version", 1);
    BSON_APPEND_BINARY(&document, "incarnation", BSON_SUBTYPE_BINARY, fresh.b, sizeof fresh.b);
    bson_append_document_end(&documents, &document);
    bson_append_array_end(&command, &documents);
    status = dibs__mongo_write(link, &command, &reply, result);
    bson_destroy(&reply);
    if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK)
      status = dibs__mongo_find(link, DIBS__MONGO_META, &filter, 1, false, see_incarnation, link, result);
    if (status == DIBS_OK && memcmp(&link->incarnation, &none, sizeof none) == 0) {
      dibs__set_message(result, "%s: the document \"store\" of the collection %s is not one of dibs",
                        link->location->shown, name);
      status = DIBS_CORRUPT;
    }
  }
  bson_destroy(&filter);
  bson_destroy(&command);
  return status;
}

dibs__status dibs__mongo_connect(struct dibs__mongo_location *location, dibs__tick by, struct dibs__mongo_link **out,
                                 struct dibs__result *result) {
  struct dibs__mongo_link *link = calloc(1, sizeof *link);
  mongoc_uri_t *uri = NULL;
  bson_error_t error = {0};
  *out = NULL;
  if (!link) return DIBS_NO_MEMORY;
  link->location = location;
  link->by = by;
  dibs__status status = dibs__mongo_uri_now(location, by, &uri, result);
  if (status == DIBS_OK) link->client = mongoc_client_new_from_uri_with_error(uri, &error);
  mongoc_uri_destroy(uri);
  if (status == DIBS_OK && !link->client) {
    dibs__set_message(result, "%s: %.160s", location->shown, error.message);
    status = DIBS_INVALID;
  } else if (status == DIBS_OK) {
    mongoc_client_set_error_api(link->client, MONGOC_ERROR_API_VERSION_2);
    mongoc_client_set_stream_initiator(link->client, make_stream, link);
    if (!open_collections(link) || !watch_commands(link)) status = DIBS_NO_MEMORY;
  }
  for (int i = 0; i < 3 && status == DIBS_OK; i++) status = dibs__mongo_clock(link, true, result);
  if (status == DIBS_OK) status = read_store(link, result);
  if (status == DIBS_OK)
    *out = link;
  else
    dibs__mongo_disconnect(link);
  return status;
}

void dibs__mongo_disconnect(struct dibs__mongo_link *link) {
  if (!link) return;
  for (size_t i = 0; i < DIBS__MONGO_KINDS; i++)
    if (link->collections[i]) mongoc_collection_destroy(link->collections[i]);
  if (link->client) mongoc_client_destroy(link->client);
  free(link);
}
