/* SPDX-License-Identifier: MIT */
/*
 * Records over HTTP: the body is the value, as it is; ETag is the version.  A conditional request names the version
 * that the caller read (RFC 9110); a lease guards by its fence.
 */
#include "base/text.h"
#include "guard/guard.h"
#include "serve/stale.h"
#include "serve/tag.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct record_in {
  const char *if_match, *if_none_match, *lease;
  int64_t fence;
  bool unchecked;
  struct field_data value;
};

#define IN(member) offsetof(struct record_in, member)
#define LEASE_FIELDS                                                                                                   \
  {.name = "Dibs-Lease",                                                                                               \
   .place = FIELD_HEADER,                                                                                              \
   .kind = FIELD_ID,                                                                                                   \
   .at = IN(lease),                                                                                                    \
   .least = 32,                                                                                                        \
   .most = 32,                                                                                                         \
   .help = "the id of an exclusive lease; with Dibs-Fence"},                                                           \
  {                                                                                                                    \
    .name = "Dibs-Fence", .place = FIELD_HEADER, .kind = FIELD_NUMBER, .at = IN(fence), .least = 1,                    \
    .most = (INT64_C(1) << 53) - 1, .help = "its fence: refused (409 stale) if the record has seen a larger one"       \
  }
static const struct field get_fields[] = {{.name = "If-None-Match",
                                           .place = FIELD_HEADER,
                                           .at = IN(if_none_match),
                                           .most = 512,
                                           .help = "the ETag of a copy: 304 if the record still has that version"},
                                          {.name = NULL}};
static const struct field seal_fields[] = {LEASE_FIELDS, {.name = NULL}};
#define GUARD_FIELDS                                                                                                   \
  {.name = "If-Match",                                                                                                 \
   .place = FIELD_HEADER,                                                                                              \
   .at = IN(if_match),                                                                                                 \
   .most = 512,                                                                                                        \
   .pattern = TAG_PATTERN,                                                                                             \
   .help = "the ETag that the caller read: only if the record still has that version"},                                \
      LEASE_FIELDS, {                                                                                                  \
    .name = "unchecked", .place = FIELD_QUERY, .kind = FIELD_FLAG, .at = IN(unchecked),                                \
    .help = "without a guard: the last write wins"                                                                     \
  }
static const struct field put_fields[] = {
    {.name = "value", .kind = FIELD_RAW, .at = IN(value), .most = DIBS_RECORD_MAX, .help = "the value"},
    GUARD_FIELDS,
    {.name = "If-None-Match",
     .place = FIELD_HEADER,
     .at = IN(if_none_match),
     .most = 512,
     .pattern = "^[*]$",
     .help = "*: only if there is no such record"},
    {.name = NULL}};
static const struct field delete_fields[] = {GUARD_FIELDS, {.name = NULL}};

/* ---- Guards ---- */

bool dibs__tag_read(const char *text, char to[DIBS_VERSION_MAX + 1]) {
  if (strncmp(text, "W/", 2) == 0) text += 2;
  size_t length = strlen(text);
  if (length < 3 || length > DIBS_VERSION_MAX + 2 || text[0] != '"' || text[length - 1] != '"') return false;
  if (memchr(text + 1, '"', length - 2)) return false;
  memcpy(to, text + 1, length - 2);
  to[length - 2] = '\0';
  return true;
}

/* false: the request was answered.  *proof is set only if a lease was given. */
static bool read_proof(struct request *r, struct dibs__proof *proof, bool *given) {
  const struct record_in *in = r->in;
  *given = in->lease != NULL;
  if (!in->lease != (in->fence == FIELD_UNSET)) {
    dibs__answer_refuse(r, 400, "invalid", "Dibs-Lease and Dibs-Fence belong together: give both, or neither");
    return false;
  }
  if (!*given) return true;
  (void)dibs__hex_read(in->lease, proof->id.b); /* checked */
  proof->fence = (dibs__fence){(uint64_t)in->fence};
  return true;
}

void dibs__tag_set(struct request *r, const char *version) {
  dibs__answer_header(r, "ETag", "\"%s\"", version);
}

/* ---- Answers ---- */

static void problem(struct request *r, dibs_status status, const dibs_record_result *result, const dibs_error *error) {
  dibs__answer_problem(r, status, error);
  if (status == DIBS_CONFLICT && result->version[0]) dibs__tag_set(r, result->version);
  if (status == DIBS_STALE && result->fence.value > 0)
    dibs__answer_header(r, "Dibs-Fence", "%" PRIu64, result->fence.value);
  dibs__id id;
  const struct record_in *in = r->in;
  if (status == DIBS_STALE && in->lease && dibs__hex_read(in->lease, id.b)) dibs__stale_refused(r->server, &id);
}

static void got(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                const dibs_error *error, void *user) {
  struct request *r = user;
  const struct record_in *in = r->in;
  char copy[DIBS_VERSION_MAX + 1] = "";
  if (status != DIBS_OK) {
    problem(r, status, result, error);
    return;
  }
  bool none = !record->values[0].data;
  if (none && r->method == METHOD_GET) {
    dibs__answer_refuse(r, 404, "not-found", "there is no record \"%s\"", r->param[0]);
    return;
  }
  bool same = in->if_none_match && dibs__tag_read(in->if_none_match, copy) && strcmp(copy, record->version) == 0;
  struct dibs__json *body = dibs__answer_begin(r, same ? 304 : none ? 204 : 200);
  if (!same && !none) dibs__json_put(body, record->values[0].data, record->values[0].length);
  r->answer.type = "application/octet-stream";
  dibs__tag_set(r, record->version);
  if (record->fence.value > 0) dibs__answer_header(r, "Dibs-Fence", "%" PRIu64, record->fence.value);
  dibs__answer_end(r);
}

static void written(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                    const dibs_error *error, void *user) {
  struct request *r = user;
  (void)record;
  if (status != DIBS_OK) {
    problem(r, status, result, error);
    return;
  }
  dibs__answer_begin(r, 204);
  if (result->version[0]) dibs__tag_set(r, result->version);
  dibs__answer_end(r);
}

/* ---- Requests ---- */

static void start(struct request *r, enum dibs__record_verb verb, const dibs_value *value,
                  const dibs_record_options *options, const struct dibs__proof *proof, dibs__record_fn done) {
  dibs_error error = {0};
  dibs_status status = dibs__record_start(r->server->store, verb, r->param[0], value, options, proof, done, r, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_record(struct request *r) {
  dibs_record_options options = DIBS_RECORD_OPTIONS_INIT;
  ((struct record_in *)r->in)->fence = FIELD_UNSET;
  start(r, DIBS__RECORD_LOAD, NULL, &options, NULL, got);
}

static bool may_write(struct request *r) {
  const char *key = r->param[0];
  if (dibs__auth_has(r, dibs__auth_key_scope(key, strlen(key)))) return true;
  dibs__answer_refuse(
      r, 403, "scope",
      "the token \"%s\" may not write the record \"%.255s\": dibs keeps settings of operators in it, which"
      " needs the scope admin",
      dibs__auth_label(r), key);
  return false;
}

static void seal_record(struct request *r) {
  dibs_record_options options = DIBS_RECORD_OPTIONS_INIT;
  struct dibs__proof proof;
  bool given;
  if (!may_write(r) || !read_proof(r, &proof, &given)) return;
  if (given)
    start(r, DIBS__RECORD_SEAL, NULL, &options, &proof, got);
  else
    dibs__answer_refuse(r, 400, "invalid", "Dibs-Lease and Dibs-Fence are missing: sealing needs a lease");
}

static void write_record(struct request *r, enum dibs__record_verb verb) {
  const struct record_in *in = r->in;
  char version[DIBS_VERSION_MAX + 1];
  struct dibs__proof proof;
  bool fenced;
  dibs_record_options options = DIBS_RECORD_OPTIONS_INIT;
  dibs_value value = {in->value.p, in->value.length};
  if (!may_write(r) || !read_proof(r, &proof, &fenced)) return;
  if (in->if_match && !dibs__tag_read(in->if_match, version)) {
    dibs__answer_refuse(r, 400, "invalid", "If-Match: give one ETag, as a GET returned it");
    return;
  }
  if (in->if_none_match && strcmp(in->if_none_match, "*") != 0) {
    dibs__answer_refuse(r, 400, "invalid", "If-None-Match: of a write only * has a meaning");
    return;
  }
  if (!in->if_match && !in->if_none_match && !fenced && !in->unchecked) {
    dibs__answer_refuse(r, 428, "guard-missing",
                        "say how the write is guarded: If-Match with the ETag that you read, If-None-Match: * for a "
                        "new record, Dibs-Lease with Dibs-Fence, or else ?unchecked=true");
    return;
  }
  if (in->if_match) options.if_version = version;
  if (in->if_none_match) options.flags |= DIBS_IF_ABSENT;
  if (in->unchecked && !in->if_match && !in->if_none_match && !fenced) options.flags |= DIBS_UNCHECKED;
  start(r, verb, verb == DIBS__RECORD_PUT ? &value : NULL, &options, fenced ? &proof : NULL, written);
}

static void put_record(struct request *r) {
  write_record(r, DIBS__RECORD_PUT);
}

static void delete_record(struct request *r) {
  write_record(r, DIBS__RECORD_DROP);
}

/* ---- The routes ---- */

const struct route dibs__record_routes[] = {
    {METHOD_GET, "/v1/records/{key}", SCOPE_READ, get_record, sizeof(struct record_in), get_fields, "getRecord",
     "200 304 404", "Read a record", "The body is the value; ETag is its version.", "application/octet-stream"},
    {METHOD_PUT, "/v1/records/{key}", SCOPE_USE, put_record, sizeof(struct record_in), put_fields, "putRecord",
     "204 404 409 412 428", "Write a record", "", NULL},
    {METHOD_DELETE, "/v1/records/{key}", SCOPE_USE, delete_record, sizeof(struct record_in), delete_fields,
     "deleteRecord", "204 404 409 412 428", "Remove a record", "", NULL},
    {METHOD_POST, "/v1/records/{key}/seal", SCOPE_USE, seal_record, sizeof(struct record_in), seal_fields, "sealRecord",
     "200 204 409", "Read a record, and let no older fence write it any more", "204: the record has no content yet.",
     "application/octet-stream"},
    {.path = NULL}};
