/* SPDX-License-Identifier: MIT */
/* Additions that were refused after their call had returned: buffered ones of this process, shared ones of all. */
#include "counter/counter_impl.h"
#include "guard/guard.h"
#include "handle/request.h"

#include <stdlib.h>
#include <string.h>

enum { SEND_MS = 5000 };

typedef struct dibs__counters counters_t;
typedef struct dibs__count_group group_t;

/* ---- Buffered ---- */

/* Back into the group's table.  false: no memory. */
static bool keep_refused(group_t *g, struct dibs__sums *from, struct dibs__sum *sum) {
  dibs__mutex_lock(&g->lock);
  bool fits = dibs__sums_reserve(&g->refused, 1);
  if (fits && !dibs__sums_take(&g->refused, from, sum)) {
    atomic_fetch_add(&g->counters->refused, 1);
    atomic_fetch_add(&g->counters->keys, 1);
  }
  dibs__mutex_unlock(&g->lock);
  return fits;
}

/* Takes the table: the function may add again meanwhile. */
static bool hand_out_refused(group_t *g, dibs_counter_refusal_fn fn, void *user) {
  bool goes_on = true;
  dibs__mutex_lock(&g->lock);
  struct dibs__sums taken = g->refused;
  g->refused = (struct dibs__sums){NULL, 0, 0};
  atomic_fetch_sub(&g->counters->refused, (int64_t)taken.count);
  atomic_fetch_sub(&g->counters->keys, (int64_t)taken.count);
  dibs__mutex_unlock(&g->lock);
  for (struct dibs__sum *s = NULL; (s = dibs__sums_next(&taken, s));) {
    if (!goes_on && keep_refused(g, &taken, s)) continue;
    const dibs_counter_refusal refusal = {.size = sizeof refusal,
                                          .key = s->key,
                                          .table = (const dibs_table *)g->table,
                                          .delta = s->sum,
                                          .status = (dibs_status)s->status};
    goes_on = fn(&refusal, user) == 0 && goes_on;
  }
  dibs__sums_clear(&taken);
  return goes_on;
}

dibs_status dibs_counter_refused(dibs_store *store, dibs_counter_refusal_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_counter_refused: fn is NULL");
  dibs_status status = dibs__enter(store, "dibs_counter_refused", error);
  if (status != DIBS_OK) return status;
  counters_t *c = (counters_t *)atomic_load(&store->counters);
  bool goes_on = true;
  for (group_t *g = c ? atomic_load(&c->groups) : NULL; g && goes_on; g = g->next)
    goes_on = hand_out_refused(g, fn, user);
  dibs__exit(store);
  return dibs__fine(error);
}

/* ---- Shared ---- */

/* A page of refused sums, and the function for them. */
struct page {
  group_t *group;
  uint32_t part;
  dibs_counter_refusal_fn fn;
  void *user;
  uint64_t cursor;
  bool goes_on;
};

static struct dibs__request *shared_request(const struct page *p, size_t more) {
  struct dibs__request *request = dibs__count_shared_request(p->group, more);
  if (request) request->shared.part = p->part;
  return request;
}

static dibs_status forget(const struct page *p, const struct dibs__shared_row *row) {
  struct dibs__request *request = shared_request(p, sizeof(struct dibs__counter_item) + row->key.len + 1);
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__shared_op *op = &request->shared;
  op->count = 1;
  dibs__random(&op->fresh, sizeof op->fresh);
  op->items = dibs__request_array(request, sizeof *op->items);
  op->items[0] = (struct dibs__counter_item){.key = dibs__request_keep(request, row->key.p, row->key.len),
                                             .delta = row->sum,
                                             .status = row->status,
                                             .number = row->repeat};
  dibs_status status =
      dibs__request_carry_until(request, DIBS__SHARED_FORGET, dibs__tick_add_ms(dibs__tick_now(), SEND_MS));
  dibs__request_drop(request);
  return status;
}

static dibs_status hand_out_page(struct page *p) {
  struct dibs__request *request = shared_request(p, 0);
  if (!request) return DIBS_NO_MEMORY;
  request->shared.cursor = p->cursor;
  dibs_status status =
      dibs__request_carry_until(request, DIBS__SHARED_REFUSED, dibs__tick_add_ms(dibs__tick_now(), SEND_MS));
  if (status == DIBS_OK) p->cursor = request->shared.cursor;
  for (uint32_t i = 0; status == DIBS_OK && p->goes_on && i < request->shared.got_count; i++) {
    const struct dibs__shared_row *row = &request->shared.got[i];
    const dibs_counter_refusal refusal = {.size = sizeof refusal,
                                          .key = row->key.p,
                                          .table = (const dibs_table *)p->group->table,
                                          .delta = row->sum,
                                          .status = (dibs_status)row->status};
    int answer = p->fn(&refusal, p->user);
    p->goes_on = answer == 0 || answer == DIBS_COUNT_KEEP;
    if (answer == 0) status = forget(p, row);
  }
  dibs__request_drop(request);
  return status;
}

static dibs_status hand_out_shared(group_t *group, dibs_counter_refusal_fn fn, void *user) {
  struct page p = {.group = group, .fn = fn, .user = user, .goes_on = true};
  dibs_status status = DIBS_OK;
  for (p.part = 0; p.part < DIBS__SHARED_PARTS && status == DIBS_OK && p.goes_on; p.part++) {
    p.cursor = 0;
    do status = hand_out_page(&p);
    while (status == DIBS_OK && p.goes_on && p.cursor != 0);
  }
  return status;
}

dibs_status dibs_counter_refused_shared(dibs_store *store, const dibs_table *table, dibs_counter_refusal_fn fn,
                                        void *user, dibs_error *error) {
  const struct dibs__table *declared = table ? dibs__table_of(table) : NULL;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_counter_refused_shared: fn is NULL");
  if (declared && !declared->count)
    return dibs__fail(error, DIBS_INVALID, "the table \"%s\" was declared without count, which a counter needs",
                      declared->table);
  dibs_status status = dibs__enter(store, "dibs_counter_refused_shared", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_family(store, error);
  if (status == DIBS_OK) status = dibs__count_check_shared(store, error);
  if (status == DIBS_OK) {
    counters_t *c = dibs__counters_of(store);
    group_t *g = c ? dibs__count_group_of(c, declared) : NULL;
    status = g ? hand_out_shared(g, fn, user) : DIBS_NO_MEMORY;
    if (status == DIBS_OK)
      (void)dibs__fine(error);
    else
      (void)dibs__explain(store, status, "reading refused sums", declared ? declared->table : "", error);
  }
  dibs__exit(store);
  return status;
}
