/* SPDX-License-Identifier: MIT */
/* Counters: the public calls; opening and closing. */
#include "counter/counter.h"
#include "base/map.h"
#include "counter/counter_impl.h"
#include "guard/guard.h"
#include "handle/request.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 500, READ_TRIES = 40, READ_PAUSE_MS = 5 };

typedef struct dibs__counters counters_t;
typedef struct dibs__count_group group_t;

/* ---- The state of a store ---- */

static group_t *make_group(counters_t *c, const struct dibs__table *table) {
  group_t *g = aligned_alloc(_Alignof(group_t), sizeof *g);
  if (!g) return NULL;
  memset(g, 0, sizeof *g);
  g->counters = c;
  g->table = table ? dibs__table_hold(table) : NULL;
  dibs__mutex_init(&g->lock);
  for (size_t i = 0; i < DIBS__COUNT_STRIPES; i++) dibs__mutex_init(&g->stripes[i].lock);
  g->durable.group = g->shared.group = g;
  g->shared.shared = true;
  dibs__count_space(table, g->space);
  dibs__random(&g->durable.source.id, sizeof g->durable.source.id);
  dibs__random(&g->shared.source.id, sizeof g->shared.source.id);
  dibs__random(&g->buffered.id, sizeof g->buffered.id);
  return g;
}

static void free_batch(struct dibs__count_batch *b) {
  if (!b) return;
  dibs__count_batch_clear(b);
  free(b);
}

static void free_group(group_t *g) {
  for (size_t i = 0; i < DIBS__COUNT_STRIPES; i++) {
    dibs__sums_clear(&g->stripes[i].sums);
    dibs__mutex_destroy(&g->stripes[i].lock);
  }
  dibs__sums_clear(&g->collected);
  dibs__sums_clear(&g->refused);
  free_batch(g->current);
  free_batch(g->durable.open);
  free_batch(g->durable.sent);
  free_batch(g->shared.open);
  free_batch(g->shared.sent);
  dibs__mutex_destroy(&g->lock);
  dibs__table_drop(g->table);
  free(g);
}

static void end_counters(struct dibs__at_close *at_close) {
  dibs__count_flusher_stop((counters_t *)at_close);
  dibs__count_stop((counters_t *)at_close);
}

static void free_counters(struct dibs__at_close *at_close) {
  counters_t *c = (counters_t *)at_close;
  for (group_t *g = atomic_load(&c->groups), *next; g; g = next) {
    next = g->next;
    free_group(g);
  }
  dibs__mutex_destroy(&c->lock);
  free(c);
}

counters_t *dibs__counters_of(dibs_store *store) {
  struct dibs__at_close *known = atomic_load(&store->counters);
  if (known) return (counters_t *)known;
  counters_t *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->at_close = (struct dibs__at_close){.end = end_counters, .free = free_counters};
  c->store = store;
  dibs__mutex_init(&c->lock);
  if (atomic_compare_exchange_strong(&store->counters, &known, &c->at_close)) return c;
  free_counters(&c->at_close); /* another thread was faster */
  return (counters_t *)known;
}

static group_t *find_group(group_t *from, const struct dibs__table *table) {
  while (from && from->table != table) from = from->next;
  return from;
}

group_t *dibs__count_group_of(counters_t *c, const struct dibs__table *table) {
  group_t *g = find_group(atomic_load(&c->groups), table);
  if (g) return g;
  dibs__mutex_lock(&c->lock);
  g = find_group(atomic_load(&c->groups), table);
  if (!g) {
    g = make_group(c, table);
    if (g) g->next = atomic_load(&c->groups);
    if (g) atomic_store(&c->groups, g);
  }
  dibs__mutex_unlock(&c->lock);
  return g;
}

/* ---- Checks ---- */

static dibs_status check_options(const dibs_counter_options *given, dibs_counter_options *o, dibs_error *error) {
  *o = (dibs_counter_options){.size = sizeof *o};
  if (given) {
    dibs_status status = dibs__check_size(given->size, sizeof *o, "dibs_counter_options", error);
    if (status != DIBS_OK) return status;
    memcpy(o, given, given->size);
  }
  if (o->level < DIBS_COUNT_DURABLE || o->level > DIBS_COUNT_SHARED)
    return dibs__fail(error, DIBS_INVALID, "there is no level %d of counters", (int)o->level);
  if (o->reserved != 0) return dibs__fail(error, DIBS_INVALID, "`reserved` of the options of counters is not 0");
  if (o->wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                      (long long)o->wait_ms);
  if (o->table && !dibs__table_of(o->table)->count)
    return dibs__fail(error, DIBS_INVALID, "the table \"%s\" was declared without count, which a counter needs",
                      dibs__table_of(o->table)->table);
  return DIBS_OK;
}

/* A batch is not repeated for longer than the store remembers it. */
static dibs__tick deadline_of(const dibs_counter_options *o) {
  int64_t most = DIBS__COUNTER_REPEAT_MS, ms = o->wait_ms ? o->wait_ms : DIBS__COUNT_WAIT_MS;
  return dibs__tick_add_ms(dibs__tick_now(), ms < 0 || ms > most ? most : ms);
}

dibs_status dibs__count_check_family(dibs_store *store, dibs_error *error) {
  if (dibs__core_families(store->core) & 1u << DIBS__FAM_COUNTER) return DIBS_OK;
  return dibs__fail(error, DIBS_UNSUPPORTED, "%s keeps no counters: %s", store->shown, dibs__database_advice(store));
}

dibs_status dibs__count_check_outside(dibs_store *store, const char *call, dibs_error *error) {
  if (!store->outer) return dibs__count_check_family(store, error);
  return dibs__fail(error, DIBS_UNSUPPORTED,
                    "%s is not possible in a transaction of yours: call it with the store itself", call);
}

dibs_status dibs__count_check_key(const char *key, dibs_error *error) {
  return dibs__check_text(key, DIBS_NAME_MAX, "the key of the counter", error);
}

dibs_status dibs__count_check_shared(dibs_store *store, dibs_error *error) {
  if (dibs__count_has_shared(store)) return DIBS_OK;
  return dibs__fail(
      error, DIBS_UNSUPPORTED,
      "%s has no fast store in front of the database, which the level shared needs: doc/counters.md names "
      "the stores that have one",
      store->shown);
}

static dibs_status no_memory(dibs_error *error) {
  return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for counters");
}

/* ---- Adding ---- */

static dibs_status add_inside(dibs_store *store, const char *key, int64_t delta, const dibs_counter_options *o,
                              dibs_error *error) {
  dibs_status status = dibs__count_check_key(key, error);
  if (status != DIBS_OK) return status;
  if (o->level != DIBS_COUNT_DURABLE)
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "adding to \"%s\": only the level durable can be part of your transaction: use it, or the store "
                      "itself",
                      key);
  return dibs__count_inside(store, key, o->table ? dibs__table_of(o->table) : NULL, delta, deadline_of(o), error);
}

static dibs_status add(dibs_store *store, const char *key, int64_t delta, const dibs_counter_options *o,
                       dibs_error *error) {
  counters_t *c = dibs__counters_of(store);
  group_t *g = c ? dibs__count_group_of(c, o->table ? dibs__table_of(o->table) : NULL) : NULL;
  if (!g) return no_memory(error);
  size_t len = strnlen(key, DIBS_NAME_MAX + 1);
  if (len > DIBS_NAME_MAX) return dibs__count_check_key(key, error);
  uint64_t hash = dibs__hash(key, len);
  if (o->level == DIBS_COUNT_BUFFERED) return dibs__count_buffer(g, key, (uint32_t)len, hash, delta, error);
  bool shared = o->level == DIBS_COUNT_SHARED;
  dibs_status status = dibs__count_check_key(key, error);
  if (status == DIBS_OK && shared) status = dibs__count_check_shared(store, error);
  if (status != DIBS_OK) return status;
  if (shared && !dibs__count_flusher_start(g)) return no_memory(error);
  return dibs__count_join(shared ? &g->shared : &g->durable, key, (uint32_t)len, hash, delta, deadline_of(o), error);
}

dibs_status dibs_counter_add(dibs_store *store, const char *key, int64_t delta, const dibs_counter_options *options,
                             dibs_error *error) {
  dibs_counter_options o;
  if (!key) return dibs__count_check_key(key, error);
  dibs_status status = check_options(options, &o, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_counter_add", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_family(store, error);
  if (status == DIBS_OK && store->outer)
    status = add_inside(store, key, delta, &o, error);
  else if (status == DIBS_OK)
    status = add(store, key, delta, &o, error);
  dibs__exit(store);
  return status;
}

static dibs_status flush_shared(counters_t *c, const dibs_counter_options *o, dibs__tick by, dibs_error *error) {
  dibs_status status = dibs__count_check_shared(c->store, error);
  if (status != DIBS_OK) return status;
  group_t *g = dibs__count_group_of(c, o->table ? dibs__table_of(o->table) : NULL);
  return g ? dibs__count_flush_shared(g, by, error) : no_memory(error);
}

dibs_status dibs_counter_flush(dibs_store *store, const dibs_counter_options *options, dibs_error *error) {
  dibs_counter_options o;
  dibs_status status = check_options(options, &o, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_counter_flush", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_outside(store, "dibs_counter_flush", error);
  if (status == DIBS_OK) {
    counters_t *c = dibs__counters_of(store);
    dibs__tick by = deadline_of(&o);
    status = c ? dibs__count_flush(c, by, error) : no_memory(error);
    if (status == DIBS_OK && o.level == DIBS_COUNT_SHARED) status = flush_shared(c, &o, by, error);
  }
  dibs__exit(store);
  return status;
}

/* ---- Reading ---- */

static dibs_status read_stored(dibs_store *store, const char *key, const struct dibs__table *table, dibs__tick by,
                               int64_t *stored, dibs_error *error) {
  size_t len = strlen(key);
  struct dibs__request *request =
      dibs__request_make(store, DIBS__FAM_COUNTER, table, sizeof(struct dibs__counter_item) + len + 1);
  *stored = 0;
  if (!request) return no_memory(error);
  struct dibs__counter_op *op = &request->counter;
  op->table = request->table;
  op->count = 1;
  op->items = dibs__request_array(request, sizeof *op->items);
  op->items[0].key = dibs__request_keep(request, key, len);
  dibs_status status = dibs__request_carry_until(request, DIBS__COUNTER_READ, by);
  if (status == DIBS_OK) {
    status = (dibs_status)op->items[0].status;
    *stored = op->items[0].number;
  }
  if (status == DIBS_NOT_FOUND && table)
    dibs__fail(error, status, "the table \"%s\" has no row \"%s\" at %s", table->table, key, store->shown);
  else if (status == DIBS_NOT_FOUND)
    dibs__fail(error, status, "there is no counter \"%s\" at %s", key, store->shown);
  else if (status != DIBS_OK && dibs__request_is_answered(request) && op->why[0])
    dibs__fail(error, status, "reading the counter \"%s\" at %s: %s", key, store->shown, op->why);
  else if (status != DIBS_OK)
    (void)dibs__explain(store, status, "reading the counter", key, error);
  dibs__request_drop(request);
  return status;
}

/* One try to read a counter. */
struct reading {
  const char *key;
  size_t len;
  uint64_t hash;
  bool steady; /* no batch with this key was written in between */
  struct dibs__count_shared_sum shared;
  bool has_shared; /* the fast store has answered, or there is none */
};

static bool read_shared(group_t *g, struct reading *r, dibs__tick by) {
  r->shared = (struct dibs__count_shared_sum){.sum = 0};
  return !dibs__count_has_shared(g->counters->store) || dibs__count_shared_read(g, r->key, by, &r->shared) == DIBS_OK;
}

/* The stored number, between two looks at what is buffered and shared. */
static dibs_status read_once(group_t *g, struct reading *r, dibs__tick by, dibs_counter_value *v, dibs_error *error) {
  bool sending, still;
  uint64_t before, after;
  (void)dibs__count_buffered(g, r->key, (uint32_t)r->len, r->hash, &sending, &before);
  bool answered = read_shared(g, r, by);
  struct dibs__count_shared_sum first = r->shared;
  dibs_status status = read_stored(g->counters->store, r->key, g->table, by, &v->stored, error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status;
  r->has_shared = answered && read_shared(g, r, by);
  v->shared = r->has_shared ? r->shared.sum : 0;
  v->buffered = dibs__count_buffered(g, r->key, (uint32_t)r->len, r->hash, &still, &after);
  r->steady = !sending && !still && before == after;
  if (r->has_shared)
    r->steady = r->steady && !first.waits && !r->shared.waits && strcmp(first.name, r->shared.name) == 0;
  return status;
}

/* The stored number, and what is buffered and shared at that instant: no batch with this key may be written in
 * between. */
static dibs_status read_parts(group_t *g, const char *key, dibs__tick by, dibs_counter_value *v, dibs_error *error) {
  struct reading r = {.key = key, .len = strlen(key)};
  r.hash = dibs__hash(key, r.len);
  for (int tries = 1;; tries++) {
    dibs_status status = read_once(g, &r, by, v, error);
    if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status;
    if (!r.steady && tries < READ_TRIES && dibs__tick_left_ms(dibs__tick_now(), by) > READ_PAUSE_MS) {
      dibs__nap_ms(READ_PAUSE_MS);
      continue;
    }
    v->parts = DIBS_COUNT_STORED_PART | DIBS_COUNT_BUFFERED_PART;
    if (r.has_shared) v->parts |= DIBS_COUNT_SHARED_PART;
    if (status == DIBS_NOT_FOUND && v->buffered == 0 && v->shared == 0) return status;
    if (__builtin_add_overflow(v->stored, v->buffered, &v->value) ||
        __builtin_add_overflow(v->value, v->shared, &v->value))
      return dibs__fail(error, DIBS_FULL, "the counter \"%s\": its value does not fit in 64 bits", key);
    return dibs__fine(error);
  }
}

dibs_status dibs_counter_read(dibs_store *store, const char *key, const dibs_counter_options *options,
                              dibs_counter_value *value, dibs_error *error) {
  dibs_counter_options o;
  dibs_counter_value v = {.size = sizeof v};
  if (!value) return dibs__fail(error, DIBS_INVALID, "dibs_counter_read: value is NULL");
  size_t size = value->size;
  dibs_status status = dibs__check_size(size, sizeof v, "dibs_counter_value", error);
  if (status == DIBS_OK) status = check_options(options, &o, error);
  if (status == DIBS_OK) status = dibs__count_check_key(key, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_counter_read", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_family(store, error);
  if (status == DIBS_OK) {
    counters_t *c = dibs__counters_of(store);
    group_t *g = c ? dibs__count_group_of(c, o.table ? dibs__table_of(o.table) : NULL) : NULL;
    status = g ? read_parts(g, key, deadline_of(&o), &v, error) : no_memory(error);
  }
  v.size = size;
  memcpy(value, &v, size);
  dibs__exit(store);
  return status;
}

/* ---- Listing ---- */

struct listing {
  const char *prefix;
  dibs_counter_fn fn;
  void *user;
  size_t after_len;
  char after[DIBS_NAME_MAX];
};

/* *more: there may be another page. */
static dibs_status list_page(dibs_store *store, struct listing *l, bool *more) {
  size_t prefix = strlen(l->prefix), after = l->after_len;
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_COUNTER, NULL, prefix + after);
  *more = false;
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__counter_op *op = &request->counter;
  op->prefix = dibs__request_keep(request, l->prefix, prefix);
  op->after = dibs__request_keep(request, l->after, after);
  op->most = PAGE;
  dibs_status status =
      dibs__request_carry_until(request, DIBS__COUNTER_LIST, dibs__tick_add_ms(dibs__tick_now(), DIBS__COUNT_WAIT_MS));
  if (status == DIBS_OK) {
    bool goes_on = true;
    for (uint32_t i = 0; i < op->got_count && goes_on; i++) {
      dibs__str key = op->got[i].key;
      goes_on = l->fn(key.p, op->got[i].number, l->user) == 0;
      l->after_len = key.len < DIBS_NAME_MAX ? key.len : DIBS_NAME_MAX;
      memcpy(l->after, key.p, l->after_len);
      if (key.len > DIBS_NAME_MAX) status = DIBS_CORRUPT; /* it was written by SQL, and no page begins after it */
      goes_on = goes_on && status == DIBS_OK;
    }
    *more = goes_on && op->got_count == PAGE;
  }
  dibs__request_drop(request);
  return status;
}

dibs_status dibs_counter_list(dibs_store *store, const char *prefix, dibs_counter_fn fn, void *user,
                              dibs_error *error) {
  return dibs__counter_list(store, prefix, NULL, fn, user, error);
}

dibs_status dibs__counter_list(dibs_store *store, const char *prefix, const char *after, dibs_counter_fn fn, void *user,
                               dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_counter_list: fn is NULL");
  if (after && strlen(after) > DIBS_NAME_MAX)
    return dibs__fail(error, DIBS_INVALID, "the key after which to list has more than %d bytes", DIBS_NAME_MAX);
  if (prefix && *prefix && dibs__check_text(prefix, DIBS_NAME_MAX, "the prefix", error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__enter(store, "dibs_counter_list", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_family(store, error);
  if (status == DIBS_OK) {
    struct listing l = {.prefix = prefix ? prefix : "", .fn = fn, .user = user};
    if (after) memcpy(l.after, after, l.after_len = strlen(after));
    bool more = true;
    while (more && status == DIBS_OK) status = list_page(store, &l, &more);
    if (status == DIBS_OK)
      (void)dibs__fine(error);
    else
      (void)dibs__explain(store, status, "reading the counters", l.prefix, error);
  }
  dibs__exit(store);
  return status;
}
