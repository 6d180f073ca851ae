/* SPDX-License-Identifier: MIT */
/* Records by version: get, put, remove; in dibs' own table or in one of the user's.  The store decides. */
#include "guard/asking.h"
#include "guard/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__asking asking_t;

enum { WAIT_DEFAULT_MS = 5000, VALUES_ROOM = DIBS__TABLE_COLUMNS * (sizeof(dibs_value) + 1) + sizeof(dibs_value) };

/* What a call is about. */
struct call {
  dibs_store *store;
  const char *name; /* of the function */
  const char *key;
  const char *doing; /* "getting" */
  const struct dibs__table *table;
  dibs_record_options o;
  uint32_t guards;
  uint64_t fence; /* ours */
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

static dibs_status options(struct call *c, const dibs_record_options *given, dibs_error *error) {
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
  return dibs__asking_check(c->store, DIBS__FAM_RECORD, "record", c->key, error);
}

static dibs_status guards(struct call *c, bool puts, dibs_error *error) {
  if (c->o.if_version) c->guards |= DIBS__IF_VERSION;
  if (c->o.flags & DIBS_IF_ABSENT) c->guards |= DIBS__IF_ABSENT;
  if (c->o.lease) c->guards |= DIBS__IF_FENCE;
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
  if (count != c->columns || (!values && count > 0))
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

static void keep_values(asking_t *asking, const dibs_value *values, size_t count) {
  dibs_value kept[DIBS__TABLE_COLUMNS] = {{NULL, 0}};
  /* The array comes first: there the memory is aligned. */
  dibs__str place = dibs__asking_keep(asking, (const char *)values, count * sizeof *values);
  for (size_t i = 0; i < count; i++) {
    kept[i] = values[i];
    if (values[i].data) kept[i].data = dibs__asking_keep(asking, values[i].data, values[i].length).p;
  }
  memcpy(asking->memory, kept, count * sizeof *kept);
  asking->record.values = (const dibs_value *)(const void *)place.p;
}

static dibs_status make(struct call *c, const dibs_value *values, size_t size, asking_t **out, dibs_error *error) {
  size_t key = strlen(c->key), version = c->o.if_version ? strlen(c->o.if_version) : 0;
  asking_t *asking = dibs__asking_make(c->store, DIBS__FAM_RECORD, c->table, size + key + version + VALUES_ROOM);
  if (!asking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", c->key);
  struct dibs__record_op *op = &asking->record;
  if (c->table && values) keep_values(asking, values, c->columns);
  if (!c->table && values) op->data = dibs__asking_keep(asking, values->data, values->length);
  op->key = dibs__asking_keep(asking, c->key, key);
  op->if_version = dibs__asking_keep(asking, c->o.if_version, version);
  op->table = c->table;
  op->guards = c->guards;
  dibs_status status = DIBS_OK;
  bool lost = false;
  if (c->o.lease) status = dibs__asking_grant(c->o.lease, &op->id, &op->fence, &lost, error);
  c->fence = op->fence.v;
  /* For a write the fence decides; but who reads with a lost lease should know. */
  if (status == DIBS_OK && lost && !c->guards)
    status = dibs__explain(c->store, DIBS_LOST, "sealing with", dibs_lease_name(c->o.lease), error);
  if (status == DIBS_OK)
    *out = asking;
  else
    dibs__asking_drop(asking);
  return status;
}

static dibs_status carry(const struct call *c, asking_t *asking, uint16_t verb) {
  int64_t wait_ms = c->o.wait_ms ? c->o.wait_ms : WAIT_DEFAULT_MS;
  return dibs__asking_carry(asking, verb, verb == DIBS__RECORD_LOAD ? DIBS__OP_READS : 0, 0,
                            dibs__tick_add_ms(dibs__tick_now(), wait_ms));
}

/* ---- The answer ---- */

static dibs_status engine_said(const struct call *c, dibs_status status, const char *why, dibs_error *error) {
  if (status == DIBS_INVALID && !*why) why = "the store refuses it";
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
    return engine_said(c, status, op->why, error);
  }
}

static void version_of(const struct call *c, const struct dibs__record_op *op, char to[DIBS_VERSION_MAX + 1]) {
  if (c->table)
    memcpy(to, op->stands, DIBS_VERSION_MAX + 1);
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
      (dibs_record){.version = held->version, .fence = op->seen.v, .count = c->columns, .values = &held->one};
  if (c->table) held->record.values = (const dibs_value *)(const void *)held->got;
  return &held->record;
}

void dibs_record_free(dibs_record *record) {
  struct held *held = (struct held *)(void *)record;
  if (held) free(held->got);
  free(held);
}

/* ---- The calls ---- */

static dibs_status get(struct call *c, const dibs_record_options *given, dibs_record **record, dibs_error *error) {
  asking_t *asking = NULL;
  dibs_status status = options(c, given, error);
  if (status != DIBS_OK) return status;
  if (c->o.if_version || c->o.flags)
    return dibs__fail(error, DIBS_INVALID, "record \"%s\": reading it needs no guard", c->key);
  status = make(c, NULL, 0, &asking, error);
  if (status != DIBS_OK) return status;
  status = carry(c, asking, c->o.lease ? DIBS__RECORD_SEAL : DIBS__RECORD_LOAD);
  if (!dibs__asking_is_answered(asking)) {
    status = dibs__explain(c->store, status, c->doing, c->key, error);
  } else {
    if (status == DIBS_OK) *record = hand_out(c, &asking->record);
    if (status == DIBS_OK && !*record) status = DIBS_NO_MEMORY;
    status = explain(c, status, &asking->record, "", error);
  }
  dibs__asking_drop(asking);
  return status;
}

dibs_status dibs_record_get(dibs_store *store, const char *key, const dibs_record_options *options_given,
                            dibs_record **record, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_get", .key = key, .doing = "getting record"};
  if (!record) return dibs__fail(error, DIBS_INVALID, "dibs_record_get: no place for the record was given");
  *record = NULL;
  dibs_status status = dibs__enter(store, c.name, error);
  if (status != DIBS_OK) return status;
  status = get(&c, options_given, record, error);
  dibs__exit(store);
  return status;
}

static dibs_status ask(struct call *c, uint16_t verb, const dibs_value *values, size_t size, dibs_record_result *result,
                       dibs_error *error) {
  asking_t *asking = NULL;
  char version[DIBS_VERSION_MAX + 1];
  dibs_status status = make(c, values, size, &asking, error);
  if (status != DIBS_OK) return status;
  status = carry(c, asking, verb);
  if (!dibs__asking_is_answered(asking)) {
    status = dibs__explain(c->store, status, c->doing, c->key, error);
  } else {
    version_of(c, &asking->record, version);
    bool told = status == DIBS_CONFLICT || (status == DIBS_OK && verb == DIBS__RECORD_PUT);
    if (told) memcpy(result->version, version, sizeof version);
    if (status == DIBS_STALE) result->fence = asking->record.seen.v;
    status = explain(c, status, &asking->record, version, error);
  }
  dibs__asking_drop(asking);
  return status;
}

static dibs_status check_and_ask(struct call *c, bool puts, const dibs_value *values, size_t count,
                                 const dibs_record_options *given, dibs_record_result *result, dibs_error *error) {
  size_t size = 0;
  dibs_status status = options(c, given, error);
  if (status == DIBS_OK) status = guards(c, puts, error);
  if (status == DIBS_OK && puts) status = check_values(c, values, count, &size, error);
  if (status != DIBS_OK) return status;
  return ask(c, puts ? DIBS__RECORD_PUT : DIBS__RECORD_DROP, puts ? values : NULL, size, result, error);
}

static dibs_status write(struct call *c, bool puts, const dibs_value *values, size_t count,
                         const dibs_record_options *given, dibs_record_result *result, dibs_error *error) {
  dibs_record_result mine = {.size = result ? result->size : 0};
  if (result && (mine.size < sizeof(size_t) || mine.size > sizeof mine))
    return dibs__fail(error, DIBS_INVALID, "result.size is %zu: set it to sizeof(dibs_record_result)", mine.size);
  dibs_status status = dibs__enter(c->store, c->name, error);
  if (status == DIBS_OK) {
    status = check_and_ask(c, puts, values, count, given, &mine, error);
    dibs__exit(c->store);
  }
  /* Only now: if_version may be what the last call left there. */
  if (result) memcpy(result, &mine, mine.size);
  return status;
}

dibs_status dibs_record_put(dibs_store *store, const char *key, const dibs_value *values, size_t count,
                            const dibs_record_options *options_given, dibs_record_result *result, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_put", .key = key, .doing = "putting record"};
  return write(&c, true, values, count, options_given, result, error);
}

dibs_status dibs_record_remove(dibs_store *store, const char *key, const dibs_record_options *options_given,
                               dibs_record_result *result, dibs_error *error) {
  struct call c = {.store = store, .name = "dibs_record_remove", .key = key, .doing = "removing record"};
  return write(&c, false, NULL, 0, options_given, result, error);
}
