/* SPDX-License-Identifier: MIT */
/* Carrying an operation to the store, and keeping its memory while it is in flight. */
#include "handle/request.h"
#include "store/family.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TEXTS = 8,
  ALIGN = _Alignof(max_align_t),
  PAUSE_MS = 5,      /* before the second try, doubled before each further one */
  PAUSE_MAX_MS = 320 /* so that a server that comes back is noticed soon */
};

typedef struct dibs__request request_t;

request_t *dibs__request_make(dibs_store *store, uint16_t family, const struct dibs__table *table, size_t capacity) {
  request_t *request = calloc(1, sizeof *request + capacity + TEXTS + ALIGN);
  if (!request) return NULL;
  request->store = store;
  request->op.family = family;
  request->refs = 1;
  request->capacity = capacity + TEXTS + ALIGN;
  if (table) request->table = dibs__table_hold(table);
  return request;
}

dibs__str dibs__request_keep(request_t *request, const char *p, size_t len) {
  assert(request->used + len + 1 <= request->capacity);
  char *to = request->memory + request->used;
  if (len) memcpy(to, p, len);
  to[len] = '\0';
  request->used += len + 1;
  return dibs__str_of(to, len);
}

void dibs__request_drop(request_t *request) {
  if (!request || atomic_fetch_sub(&request->refs, 1) != 1) return;
  dibs__op_free_answer(&request->op);
  dibs__table_drop(request->table);
  free(request);
}

void *dibs__request_array(request_t *request, size_t size) {
  request->used = (request->used + ALIGN - 1) / ALIGN * ALIGN;
  assert(request->used + size <= request->capacity);
  void *array = request->memory + request->used;
  request->used += size;
  return array;
}

/* Inside a transaction it is the store's, which outlives it. */
static void count_stale(dibs_store *store) {
  if (store->outer) store = store->outer;
  dibs__mutex_lock(&store->lock);
  store->stale++;
  dibs__mutex_unlock(&store->lock);
}

static dibs_status status_of(const request_t *request, dibs__status status) {
  if (status == DIBS_STALE) count_stale(request->store);
  return status == DIBS_TIMEOUT || status == DIBS__MOVED ? DIBS_UNAVAILABLE : (dibs_status)status;
}

static void request_answered(struct dibs__op *op) {
  request_t *request = (request_t *)op;
  dibs_store *store = request->store;
  atomic_store(&request->answered, 1);
  dibs__mutex_lock(&store->lock);
  store->in_flight--;
  dibs__mutex_unlock(&store->lock);
  dibs__request_drop(request);
}

static bool call_done_locked(dibs_store *store, struct dibs__due_call *due) {
  request_t *request = (request_t *)((char *)due - offsetof(request_t, due));
  dibs__mutex_unlock(&store->lock);
  request->done(request, status_of(request, request->op.status));
  dibs__mutex_lock(&store->lock);
  return true;
}

/* The request belongs to its caller, who drops it in `done`. */
static void started_answered(struct dibs__op *op) {
  request_t *request = (request_t *)op;
  dibs_store *store = request->store;
  atomic_store(&request->answered, 1);
  dibs__mutex_lock(&store->lock);
  dibs__calls_queue_locked(store, &request->due);
  store->in_flight--;
  dibs__mutex_unlock(&store->lock);
}

static void prepare(request_t *request, uint16_t verb, dibs__tick by, void (*answered)(struct dibs__op *)) {
  dibs_store *store = request->store;
  struct dibs__op *op = &request->op;
  assert(!dibs__request_is_answered(request));
  dibs__str key = dibs__op_key(op);
  uint16_t bucket = key.len ? dibs__bucket(key) : op->bucket;
  dibs__core_head(store->core, op, op->family, verb, op->flags, bucket, answered);
  op->by = dibs__tick_min(op->by, by);
  dibs__mutex_lock(&store->lock);
  store->in_flight++;
  dibs__mutex_unlock(&store->lock);
}

dibs_status dibs__request_carry(request_t *request, uint16_t verb, dibs__tick by) {
  struct dibs__op *op = &request->op;
  atomic_fetch_add(&request->refs, 1);
  prepare(request, verb, by, request_answered);
  dibs__core_run(request->store->core, op, dibs__tick_add_ms(op->by, LEAVE_MS));
  return status_of(request, dibs__request_is_answered(request) ? op->status : (dibs__status)DIBS_UNKNOWN);
}

dibs_status dibs__request_start(request_t *request, uint16_t verb, dibs__tick by,
                                void (*done)(request_t *request, dibs_status status), void *user) {
  dibs_store *store = request->store;
  dibs__mutex_lock(&store->lock);
  bool ready = dibs__calls_ready_locked(store);
  dibs__mutex_unlock(&store->lock);
  if (!ready || !dibs__core_serve(store->core)) return DIBS_NO_MEMORY;
  request->due.run_locked = call_done_locked;
  request->done = done;
  request->user = user;
  prepare(request, verb, by, started_answered);
  dibs__start(store, &request->op);
  return DIBS_OK;
}

void dibs__request_pause(uint32_t nth, dibs__tick by) {
  int64_t most = PAUSE_MS;
  uint32_t chance;
  for (uint32_t i = 1; i < nth && most < PAUSE_MAX_MS; i++) most *= 2;
  dibs__random(&chance, sizeof chance);
  int64_t ms = most / 2 + (int64_t)(chance % (uint32_t)(most / 2 + 1));
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
  dibs__nap_ms(ms < left ? ms : left);
}

dibs_status dibs__request_carry_until(request_t *request, uint16_t verb, dibs__tick by) {
  for (uint32_t nth = 1;; nth++) {
    dibs_status status = dibs__request_carry(request, verb, by);
    bool over = request->store->outer || request->store->closing || !dibs__tick_before(dibs__tick_now(), by);
    if (status != DIBS_UNAVAILABLE || over) return status;
    dibs__request_pause(nth, by);
    atomic_store(&request->answered, 0);
  }
}

const char *dibs__database_advice(dibs_store *store) {
  return dibs__core_caps(store->core) & DIBS__CAP_ALONE ? "use a database for them; this store can't be one of several "
                                                          "tiers"
                                                        : "add a database as its last tier (STORE,DATABASE)";
}

dibs_status dibs__request_check(dibs_store *store, uint16_t family, const char *what, const char *key,
                                dibs_error *error) {
  char subject[64];
  snprintf(subject, sizeof subject, strcmp(what, "once key") == 0 ? "the %s" : "the key of the %s", what);
  if (dibs__check_text(key, DIBS_NAME_MAX, subject, error) != DIBS_OK) return DIBS_INVALID;
  if (!(dibs__core_families(store->core) & (1u << family)))
    return dibs__fail(error, DIBS_UNSUPPORTED, "%s keeps no %ss: %s", store->shown, what, dibs__database_advice(store));
  return DIBS_OK;
}
