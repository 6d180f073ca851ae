/* SPDX-License-Identifier: MIT */
/* Records: get, put, remove, update; in dibs' own table or in one of the user's.  A thin layer: the store decides. */
#include "guard/guard.h"
#include "handle/request.h"
#include "lease/lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__request request_t;

/* Get, change, put; repeated when another writer was faster.  A random pause between two tries separates writers that
 * met. */

enum { WAIT_DEFAULT_MS = 5000, PAUSE_FIRST_MS = 2, PAUSE_MOST_MS = 100 };

struct updating {
  dibs_store *store;
  const char *key;
  dibs_update_options o;
  dibs_record_fn fn;
  void *user;
  dibs__tick by;
  size_t count;
  dibs_record_result result;
};

static int64_t left_ms(const struct updating *u) {
  return dibs__tick_left_ms(dibs__tick_now(), u->by);
}

/* false: the time is over. */
static bool wait_a_little(const struct updating *u) {
  uint32_t drawn;
  int64_t most = PAUSE_FIRST_MS, left = left_ms(u);
  for (uint32_t i = 1; i < u->result.tries && most < PAUSE_MOST_MS; i++) most *= 2;
  if (most > PAUSE_MOST_MS) most = PAUSE_MOST_MS;
  dibs__random(&drawn, sizeof drawn);
  int64_t ms = (int64_t)drawn % (most + 1);
  if (ms >= left) return false;
  if (ms > 0) dibs__nap_ms(ms);
  return true;
}

static bool all_kept(const dibs_value *values, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (values[i].data || values[i].length != DIBS_KEEP) return false;
  return true;
}

static dibs_status put_update(struct updating *u, const dibs_record *record, dibs_error *error) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < u->count; i++) values[i] = (dibs_value){NULL, DIBS_KEEP};
  dibs_status status = u->fn(record, values, u->count, u->user);
  if (status != DIBS_OK)
    return dibs__fail(error, status, "the update of record \"%s\" was ended by its function: %s", u->key,
                      dibs_status_text(status));
  if (record && all_kept(values, u->count)) {
    strncpy(u->result.version, record->version, DIBS_VERSION_MAX);
    return DIBS_OK;
  }
  dibs_record_options o = {.size = sizeof o,
                           .table = u->o.table,
                           .lease = u->o.lease,
                           .wait_ms = left_ms(u) + 1,
                           .if_version = record ? record->version : NULL,
                           .flags = record ? 0 : DIBS_IF_ABSENT};
  uint32_t tries = u->result.tries;
  status = dibs_record_put(u->store, u->key, values, u->count, &o, &u->result, error);
  u->result.tries = tries;
  return status;
}

/* *again: somebody was faster. */
static dibs_status attempt(struct updating *u, bool *again, dibs_error *error) {
  dibs_record *record = NULL;
  dibs_record_options o = {.size = sizeof o, .table = u->o.table, .lease = u->o.lease, .wait_ms = left_ms(u) + 1};
  bool makes = (u->o.flags & DIBS_IF_ABSENT) != 0;
  u->result.tries++;
  dibs_status status = dibs_record_get(u->store, u->key, &o, &record, error);
  bool none = status == DIBS_NOT_FOUND || (status == DIBS_OK && !u->o.table && !record->values[0].data);
  if (none && !makes)
    status = dibs__fail(error, DIBS_NOT_FOUND, "there is no record \"%s\" to update", u->key);
  else if (none || status == DIBS_OK) {
    status = put_update(u, none ? NULL : record, error);
    *again = status == DIBS_CONFLICT || (status == DIBS_NOT_FOUND && !none);
  }
  dibs_record_free(record);
  return status;
}

static dibs_status update(struct updating *u, dibs_error *error) {
  for (;;) {
    bool again = false;
    dibs_status status = attempt(u, &again, error);
    if (!again) return status;
    if (u->o.tries && u->result.tries >= u->o.tries)
      return dibs__fail(error, DIBS_CONFLICT,
                        "record \"%s\": somebody was faster each of %u times; nothing was changed", u->key,
                        u->result.tries);
    if (!wait_a_little(u))
      return dibs__fail(
          error, DIBS_TIMEOUT,
          "record \"%s\": somebody was faster each of %u times until the time was over; nothing was changed", u->key,
          u->result.tries);
  }
}

dibs_status dibs_record_update(dibs_store *store, const char *key, const dibs_update_options *options,
                               dibs_record_fn fn, void *user, dibs_record_result *result, dibs_error *error) {
  struct updating u = {.store = store, .key = key, .fn = fn, .user = user};
  size_t size = result ? result->size : 0;
  if (result && (size < sizeof(size_t) || size > sizeof *result))
    return dibs__fail(error, DIBS_INVALID, "result.size is %zu: set it to sizeof(dibs_record_result)", size);
  if (options && (options->size < sizeof(size_t) || options->size > sizeof u.o))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_update_options)", options->size);
  if (options) memcpy(&u.o, options, options->size);
  if (!fn || !key) return dibs__fail(error, DIBS_INVALID, "dibs_record_update: a key and a function must be given");
  if ((u.o.flags & ~(uint32_t)DIBS_IF_ABSENT) || u.o.wait_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "dibs_record_update: unknown flags, or a time below 0");
  const struct dibs__table *table = dibs__table_of(u.o.table);
  u.count = table ? table->column_count : 1;
  u.by = dibs__tick_add_ms(dibs__tick_now(), u.o.wait_ms ? u.o.wait_ms : WAIT_DEFAULT_MS);
  u.result.size = sizeof u.result;
  dibs_status status = update(&u, error);
  u.result.size = size;
  if (result) memcpy(result, &u.result, size);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

/* Records by version: get, put, remove; in dibs' own table or in one of the user's.  The store decides. */

enum {
  VERSION_WAIT_DEFAULT_MS = 5000,
  VALUES_CAPACITY = DIBS__TABLE_COLUMNS * (sizeof(dibs_value) + 1) + sizeof(dibs_value)
};

/* What a call is about. */
struct call {
  dibs_store *store;
  const char *name; /* of the function */
  const char *key;
  const char *doing; /* "getting" */
  const struct dibs__table *table;
  dibs_record_options o;
  uint32_t guards;
  const struct dibs__proof *proof; /* in place of o.lease: of a client elsewhere */
  uint64_t fence;                  /* ours */
  size_t columns;
};

/* A record and all that it points to. */
struct held {
  dibs_record record;
  dibs_value one; /* of dibs' own table */
  char *got;
  char version[DIBS_VERSION_MAX + 1];
};

/* ---- What was asked ---- */

static bool is_fenced(const struct call *c) {
  return c->o.lease || c->proof;
}

static dibs_status read_options(struct call *c, const dibs_record_options *given, dibs_error *error) {
  c->o = (dibs_record_options){.size = sizeof c->o};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof c->o))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_record_options)", given->size);
  if (given) memcpy(&c->o, given, given->size);
  if (c->o.flags & ~(uint32_t)(DIBS_IF_ABSENT | DIBS_UNCHECKED))
    return dibs__fail(error, DIBS_INVALID, "%s: unknown flags in the options", c->name);
  if (c->o.wait_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "%s: wait_ms is %lld: give 0 or a positive time", c->name,
                      (long long)c->o.wait_ms);
  c->table = dibs__table_of(c->o.table);
  c->columns = c->table ? c->table->column_count : 1;
  return dibs__request_check(c->store, DIBS__FAM_RECORD, "record", c->key, error);
}

static dibs_status guards(struct call *c, bool puts, dibs_error *error) {
  if (c->o.if_version) c->guards |= DIBS__IF_VERSION;
  if (c->o.flags & DIBS_IF_ABSENT) c->guards |= DIBS__IF_ABSENT;
  if (is_fenced(c)) c->guards |= DIBS__IF_FENCE;
  if (c->o.if_version && strlen(c->o.if_version) > DIBS_VERSION_MAX)
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": a version has at most %d bytes", c->key, DIBS_VERSION_MAX);
  if (c->o.if_version && (c->guards & DIBS__IF_ABSENT))
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": what is absent has no version: if_version or DIBS_IF_ABSENT",
                      c->key);
  if (!puts && (c->guards & DIBS__IF_ABSENT))
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": what is absent can't be removed", c->key);
  if (!c->guards == !(c->o.flags & DIBS_UNCHECKED))
    return dibs__fail(
        error, DIBS_INVALID,
        "record \"%s\": say how it is guarded: if_version, DIBS_IF_ABSENT, a lease, or else DIBS_UNCHECKED", c->key);
  return DIBS_OK;
}

static dibs_status check_values(const struct call *c, const dibs_value *values, size_t count, size_t *size,
                                dibs_error *error) {
  *size = 0;
  if (!values && count > 0) return dibs__fail(error, DIBS_INVALID, "record \"%s\": values is NULL", c->key);
  if (count != c->columns)
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": %zu values were given and %zu are wanted", c->key, count,
                      c->columns);
  for (size_t i = 0; i < count; i++) {
    const dibs_value *v = &values[i];
    if (!v->data && (!c->table || (v->length != 0 && v->length != DIBS_KEEP)))
      return dibs__fail(error, DIBS_INVALID, "record \"%s\": value %zu is NULL%s", c->key, i + 1,
                        c->table ? " and has a length" : "; to have none, remove the record");
    if (v->data && v->length > DIBS_RECORD_MAX - *size)
      return dibs__fail(error, DIBS_INVALID, "record \"%s\": a record has at most %d bytes", c->key, DIBS_RECORD_MAX);
    if (v->data) *size += v->length;
  }
  return DIBS_OK;
}

/* ---- The question ---- */

static void keep_values(request_t *request, const dibs_value *values, size_t count) {
  dibs_value kept[DIBS__TABLE_COLUMNS] = {{NULL, 0}};
  /* The array comes first: there the memory is aligned. */
  dibs__str position = dibs__request_keep(request, (const char *)values, count * sizeof *values);
  for (size_t i = 0; i < count; i++) {
    kept[i] = values[i];
    if (values[i].data) kept[i].data = dibs__request_keep(request, values[i].data, values[i].length).p;
  }
  memcpy(request->memory, kept, count * sizeof *kept);
  request->record.values = (const dibs_value *)(const void *)position.p;
}

static dibs_status make_request(struct call *c, const dibs_value *values, size_t size, request_t **out,
                                dibs_error *error) {
  size_t key = strlen(c->key), version = c->o.if_version ? strlen(c->o.if_version) : 0;
  request_t *request = dibs__request_make(c->store, DIBS__FAM_RECORD, c->table, size + key + version + VALUES_CAPACITY);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", c->key);
  struct dibs__record_op *op = &request->record;
  if (c->table && values) keep_values(request, values, c->columns);
  if (!c->table && values) op->data = dibs__request_keep(request, values->data, values->length);
  op->key = dibs__request_keep(request, c->key, key);
  op->if_version = dibs__request_keep(request, c->o.if_version, version);
  op->table = c->table;
  op->guards = c->guards;
  dibs_status status = DIBS_OK;
  bool lost = false;
  if (c->o.lease) status = dibs__lease_grant(c->o.lease, &op->id, &op->fence, &lost, error);
  if (c->proof) {
    op->id = c->proof->id;
    op->fence = c->proof->fence;
  }
  c->fence = op->fence.v;
  /* For a write the fence decides; but who reads with a lost lease should know. */
  if (status == DIBS_OK && lost && !c->guards)
    status = dibs__explain(c->store, DIBS_LOST, "sealing with", dibs_lease_name(c->o.lease), error);
  if (status == DIBS_OK)
    *out = request;
  else
    dibs__request_drop(request);
  return status;
}

static dibs_status carry(const struct call *c, request_t *request, uint16_t verb) {
  int64_t wait_ms = c->o.wait_ms ? c->o.wait_ms : VERSION_WAIT_DEFAULT_MS;
  return dibs__request_carry_until(request, verb, dibs__tick_add_ms(dibs__tick_now(), wait_ms));
}

/* ---- The answer ---- */

static dibs_status engine_result(const struct call *c, dibs_status status, const char *why, dibs_error *error) {
  bool inside = c->store->outer != NULL; /* then the engine said why */
  if (status == DIBS_INVALID && !*why && !inside) why = "the store refuses it";
  if (status == DIBS_UNSUPPORTED && c->table && !*why) why = "it has no tables of yours; use a SQL store";
  if (!*why) return dibs__explain(c->store, status, c->doing, c->key, error);
  return dibs__fail(error, status, "%s \"%s\"%s%.80s at %.120s: %s", c->doing, c->key, c->table ? " in table " : "",
                    c->table ? c->table->table : "", c->store->shown, why);
}

static dibs_status explain(const struct call *c, dibs_status status, const struct dibs__record_op *op,
                           const char *version, dibs_error *error) {
  switch (status) {
  case DIBS_OK:
    return dibs__fine(error);
  case DIBS_STALE:
    return dibs__fail(error, status,
                      "%s \"%s\" with fence %" PRIu64 " was refused: it has seen fence %" PRIu64
                      "; somebody newer holds the lease",
                      c->doing, c->key, c->fence, op->seen.v);
  case DIBS_CONFLICT:
    if (c->guards & DIBS__IF_ABSENT)
      return dibs__fail(error, status, "record \"%s\" is there already, at version \"%s\"", c->key, version);
    return dibs__fail(error, status,
                      "record \"%s\" is at version \"%s\", not \"%s\": somebody changed it; get it and do it again",
                      c->key, version, c->o.if_version);
  case DIBS_NOT_FOUND:
    return dibs__fail(error, status, "there is no record \"%s\"%s%.80s", c->key, c->table ? " in table " : "",
                      c->table ? c->table->table : "");
  default:
    return engine_result(c, status, op->why, error);
  }
}

static void version_of(const struct call *c, const struct dibs__record_op *op, char to[DIBS_VERSION_MAX + 1]) {
  if (c->table)
    memcpy(to, op->version_text, DIBS_VERSION_MAX + 1);
  else
    snprintf(to, DIBS_VERSION_MAX + 1, "%" PRIu64, op->version);
}

static dibs_record *hand_out(const struct call *c, struct dibs__record_op *op) {
  struct held *held = calloc(1, sizeof *held);
  if (!held) return NULL;
  held->got = op->got;
  op->got = NULL;
  version_of(c, op, held->version);
  held->one = (dibs_value){held->got, held->got ? op->got_len : 0};
  held->record =
      (dibs_record){.version = held->version, .fence = {op->seen.v}, .count = c->columns, .values = &held->one};
  if (c->table) held->record.values = (const dibs_value *)(const void *)held->got;
  return &held->record;
}

void dibs_record_free(dibs_record *record) {
  struct held *held = (struct held *)(void *)record;
  if (held) free(held->got);
  free(held);
}

/* ---- The calls ---- */

static dibs_status ask_for_record(struct call *c, const dibs_record_options *given, request_t **request,
                                  dibs_error *error) {
  dibs_status status = read_options(c, given, error);
  if (status != DIBS_OK) return status;
  if (c->o.if_version || c->o.flags)
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": reading it needs no guard", c->key);
  return make_request(c, NULL, 0, request, error);
}

/* `result` may be NULL. */
static dibs_status finish_get(const struct call *c, request_t *request, dibs_status status, dibs_record **record,
                              dibs_record_result *result, dibs_error *error) {
  if (!dibs__request_is_answered(request)) return dibs__explain(c->store, status, c->doing, c->key, error);
  if (status == DIBS_OK) *record = hand_out(c, &request->record);
  if (status == DIBS_OK && !*record) status = DIBS_NO_MEMORY;
  if (status == DIBS_STALE && result) result->fence.value = request->record.seen.v;
  return explain(c, status, &request->record, "", error);
}

static dibs_status get_record(struct call *c, const dibs_record_options *given, dibs_record **record,
                              dibs_error *error) {
  request_t *request = NULL;
  dibs_status status = ask_for_record(c, given, &request, error);
  if (status != DIBS_OK) return status;
  status = carry(c, request, is_fenced(c) ? DIBS__RECORD_SEAL : DIBS__RECORD_LOAD);
  status = finish_get(c, request, status, record, NULL, error);
  dibs__request_drop(request);
  return status;
}

dibs_status dibs_record_get(dibs_store *store, const char *key, const dibs_record_options *options_given,
                            dibs_record **record, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_get", .key = key, .doing = "getting record"};
  if (!record) return dibs__fail(error, DIBS_INVALID, "dibs_record_get: no place for the record was given");
  *record = NULL;
  dibs_status status = dibs__enter(store, c.name, error);
  if (status != DIBS_OK) return status;
  status = get_record(&c, options_given, record, error);
  dibs__exit(store);
  return status;
}

static dibs_status finish_write(const struct call *c, request_t *request, uint16_t verb, dibs_status status,
                                dibs_record_result *result, dibs_error *error) {
  char version[DIBS_VERSION_MAX + 1];
  if (!dibs__request_is_answered(request)) return dibs__explain(c->store, status, c->doing, c->key, error);
  version_of(c, &request->record, version);
  bool told = status == DIBS_CONFLICT || (status == DIBS_OK && verb == DIBS__RECORD_PUT);
  if (told) memcpy(result->version, version, sizeof version);
  if (status == DIBS_STALE) result->fence.value = request->record.seen.v;
  return explain(c, status, &request->record, version, error);
}

/* Of a put or, with values NULL, a removal. */
static dibs_status ask_to_write(struct call *c, bool puts, const dibs_value *values, size_t count,
                                const dibs_record_options *given, request_t **request, dibs_error *error) {
  size_t size = 0;
  dibs_status status = read_options(c, given, error);
  if (status == DIBS_OK) status = guards(c, puts, error);
  if (status == DIBS_OK && puts) status = check_values(c, values, count, &size, error);
  if (status == DIBS_OK) status = make_request(c, puts ? values : NULL, size, request, error);
  return status;
}

static dibs_status check_and_request(struct call *c, bool puts, const dibs_value *values, size_t count,
                                     const dibs_record_options *given, dibs_record_result *result, dibs_error *error) {
  request_t *request = NULL;
  uint16_t verb = puts ? DIBS__RECORD_PUT : DIBS__RECORD_DROP;
  dibs_status status = ask_to_write(c, puts, values, count, given, &request, error);
  if (status != DIBS_OK) return status;
  status = finish_write(c, request, verb, carry(c, request, verb), result, error);
  dibs__request_drop(request);
  return status;
}

static dibs_status write_record(struct call *c, bool puts, const dibs_value *values, size_t count,
                                const dibs_record_options *given, dibs_record_result *result, dibs_error *error) {
  dibs_record_result mine = {.size = result ? result->size : 0};
  if (result && (mine.size < sizeof(size_t) || mine.size > sizeof mine))
    return dibs__fail(error, DIBS_INVALID, "result.size is %zu: set it to sizeof(dibs_record_result)", mine.size);
  dibs_status status = dibs__enter(c->store, c->name, error);
  if (status == DIBS_OK) {
    status = check_and_request(c, puts, values, count, given, &mine, error);
    dibs__exit(c->store);
  }
  /* Only now: if_version may be what the last call left there. */
  if (result) memcpy(result, &mine, mine.size);
  return status;
}

dibs_status dibs_record_put(dibs_store *store, const char *key, const dibs_value *values, size_t count,
                            const dibs_record_options *options_given, dibs_record_result *result, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_put", .key = key, .doing = "putting record"};
  return write_record(&c, true, values, count, options_given, result, error);
}

dibs_status dibs_record_remove(dibs_store *store, const char *key, const dibs_record_options *options_given,
                               dibs_record_result *result, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_remove", .key = key, .doing = "removing record"};
  return write_record(&c, false, NULL, 0, options_given, result, error);
}

/* ---- Completed later ---- */

/* A call of dibs__record_start, until it is answered. */
struct started {
  struct call call;
  dibs__record_fn done;
  void *user;
  char if_version[DIBS_VERSION_MAX + 1];
};

static bool reads(uint16_t verb) {
  return verb == DIBS__RECORD_LOAD || verb == DIBS__RECORD_SEAL;
}

static void finish_started(request_t *request, dibs_status status) {
  struct started *s = request->user;
  dibs_error error = {0};
  dibs_record *record = NULL;
  dibs_record_result result = {.size = sizeof result};
  s->call.key = request->record.key.p;
  if (reads(request->op.verb))
    status = finish_get(&s->call, request, status, &record, &result, &error);
  else
    status = finish_write(&s->call, request, request->op.verb, status, &result, &error);
  s->done(status, record, &result, &error, s->user);
  dibs_record_free(record);
  dibs__request_drop(request);
  free(s);
}

static dibs_status start_request(struct call *c, uint16_t verb, request_t *request, dibs__record_fn done, void *user) {
  struct started *s = malloc(sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  *s = (struct started){.call = *c, .done = done, .user = user};
  if (c->o.if_version) {
    memcpy(s->if_version, c->o.if_version, strlen(c->o.if_version) + 1); /* its length was checked */
    s->call.o.if_version = s->if_version;
  }
  s->call.proof = NULL; /* the request has it */
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), VERSION_WAIT_DEFAULT_MS);
  dibs_status status = dibs__request_start(request, verb, by, finish_started, s);
  if (status != DIBS_OK) free(s);
  return status;
}

dibs_status dibs__record_start(dibs_store *store, enum dibs__record_verb verb, const char *key, const dibs_value *value,
                               const dibs_record_options *options, const struct dibs__proof *proof,
                               dibs__record_fn done, void *user, dibs_error *error) {
  static const char *const doing[] = {[DIBS__RECORD_LOAD] = "getting record",
                                      [DIBS__RECORD_SEAL] = "sealing record",
                                      [DIBS__RECORD_PUT] = "putting record",
                                      [DIBS__RECORD_DROP] = "removing record"};
  struct call c = {.store = store, .name = "a request for a record", .key = key, .doing = doing[verb], .proof = proof};
  request_t *request = NULL;
  dibs_status status = dibs__enter(store, c.name, error);
  if (status != DIBS_OK) return status;
  if (reads((uint16_t)verb))
    status = ask_for_record(&c, options, &request, error);
  else
    status = ask_to_write(&c, verb == DIBS__RECORD_PUT, value, value ? 1 : 0, options, &request, error);
  if (status == DIBS_OK) {
    status = start_request(&c, (uint16_t)verb, request, done, user);
    if (status != DIBS_OK) dibs__explain(store, status, c.doing, key, error);
    if (status != DIBS_OK) dibs__request_drop(request);
  }
  dibs__exit(store);
  return status;
}
