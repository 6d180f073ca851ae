/* SPDX-License-Identifier: MIT */
/*
 * Leases of etcd, and what this process holds.
 *
 * Each holder's key is on a lease of etcd of its own, so that it ends by itself.  Such a lease has whole seconds, and
 * at least one more than the holder's ttl: so a lease whose holder released early serves the next acquire, of any name,
 * as long as it lives for that ttl, and an acquire is one request, not two.  Only a lease on which no key is any more
 * is spare; after a request in doubt it never is again.
 *
 * The waiters of a process share one lease, which a thread keeps alive; it ends with the process.
 *
 * `until` of what this process holds counts by our boot-time clock, from before the request.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXTRA_MIN_S = 1, EXTRA_MAX_S = 30, EXTRA_PART = 10, KEEP_MS = 1200, KEEP_TRY_MS = 2500, HOLDS_SPARE_MS = 250 };
enum { FORGET_MS = 60000, SWEEP_FROM = 256 };

/* ---- Leases of etcd ---- */

uint32_t dibs__etcd_class(uint32_t ttl_ms) {
  uint32_t seconds = ttl_ms / 1000 + (ttl_ms % 1000 != 0), extra = seconds / EXTRA_PART;
  if (extra < EXTRA_MIN_S) extra = EXTRA_MIN_S;
  return seconds + (extra > EXTRA_MAX_S ? EXTRA_MAX_S : extra);
}

static int64_t item_left_ms(const struct dibs__etcd_item *item, dibs__tick now) {
  return (int64_t)item->ttl_s * 1000 - dibs__etcd_ms(now) + dibs__etcd_ms(item->from);
}

static bool take_spare(struct dibs__etcd *store, uint32_t ttl_ms, struct dibs__etcd_item *item) {
  uint32_t class_s = dibs__etcd_class(ttl_ms);
  dibs__tick now = dibs__tick_now();
  bool found = false;
  dibs__mutex_lock(&store->lock);
  for (size_t i = store->spare_count; i-- > 0;) {
    int64_t left_ms = item_left_ms(&store->spares[i], now);
    bool fits = !found && store->spares[i].class_s == class_s && left_ms > (int64_t)ttl_ms + HOLDS_SPARE_MS;
    if (fits) *item = store->spares[i];
    found = found || fits;
    if (fits || left_ms < (int64_t)store->spares[i].class_s * 1000 - 60000 || left_ms <= 0)
      store->spares[i] = store->spares[--store->spare_count];
  }
  dibs__mutex_unlock(&store->lock);
  return found;
}

void dibs__etcd_item_return(struct dibs__etcd *store, const struct dibs__etcd_item *item) {
  size_t oldest = 0;
  if (!item->id) return;
  dibs__mutex_lock(&store->lock);
  if (store->spare_count < DIBS__ETCD_SPARES) {
    store->spares[store->spare_count++] = *item;
  } else {
    for (size_t i = 1; i < store->spare_count; i++)
      if (dibs__tick_before(store->spares[i].from, store->spares[oldest].from)) oldest = i;
    store->spares[oldest] = *item;
  }
  dibs__mutex_unlock(&store->lock);
}

void dibs__etcd_items_forget(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  store->spare_count = 0;
  dibs__mutex_unlock(&store->lock);
}

dibs__status dibs__etcd_grant(struct dibs__etcd_link *link, uint32_t ttl_s, dibs__tick by, struct dibs__etcd_item *item,
                              struct dibs__result *result) {
  struct dibs__etcd_text body = {0};
  json_t *answer;
  uint64_t id;
  do {
    dibs__random(&id, sizeof id);
    id &= INT64_MAX;
  } while (id == 0);
  dibs__etcd_putf(&body, "{\"TTL\":\"%" PRIu32 "\",\"ID\":\"%" PRIu64 "\"}", ttl_s, id);
  dibs__tick sent = dibs__tick_now();
  dibs__status status = dibs__etcd_post(link, "/v3/lease/grant", &body, false, by, &answer, result);
  dibs__etcd_text_free(&body);
  result->commits++;
  if (status != DIBS_OK) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status; /* it ends by itself */
  int64_t ttl = dibs__etcd_number(answer, "TTL");
  *item = (struct dibs__etcd_item){.id = (int64_t)id, .ttl_s = (uint32_t)ttl, .class_s = ttl_s, .from = sent};
  json_decref(answer);
  return ttl > 0 ? DIBS_OK : DIBS_UNAVAILABLE;
}

dibs__status dibs__etcd_item_get(struct dibs__etcd *store, struct dibs__etcd_link *link, uint32_t ttl_ms, dibs__tick by,
                                 struct dibs__etcd_item *item, struct dibs__result *result) {
  if (take_spare(store, ttl_ms, item)) return DIBS_OK;
  return dibs__etcd_grant(link, dibs__etcd_class(ttl_ms), by, item, result);
}

dibs__status dibs__etcd_left(struct dibs__etcd_link *link, int64_t lease, dibs__tick by, int64_t *left_s,
                             int64_t *granted_s, struct dibs__result *result) {
  struct dibs__etcd_text body = {0};
  json_t *answer;
  dibs__etcd_putf(&body, "{\"ID\":\"%" PRId64 "\"}", lease);
  dibs__status status = dibs__etcd_post(link, "/v3/lease/timetolive", &body, true, by, &answer, result);
  dibs__etcd_text_free(&body);
  *left_s = -1;
  *granted_s = 0;
  if (status == DIBS_NOT_FOUND) return DIBS_OK;
  if (status != DIBS_OK) return status;
  *left_s = dibs__etcd_number(answer, "TTL");
  *granted_s = dibs__etcd_number(answer, "grantedTTL");
  json_decref(answer);
  return DIBS_OK;
}

/* It counts from before the question: the answer may take longer than the lease of etcd is longer than the ttl (R37).
 */
dibs__status dibs__etcd_until(struct dibs__etcd_link *link, int64_t lease, dibs__tick by, struct dibs__etcd_hold *hold,
                              struct dibs__result *result) {
  int64_t left_s, granted_s, asked = dibs__etcd_ms(dibs__tick_now());
  dibs__status status = dibs__etcd_left(link, lease, by, &left_s, &granted_s, result);
  int64_t left_ms = (left_s - granted_s) * 1000 + hold->ttl_ms;
  hold->until = left_s < 0 || left_ms < 0 ? asked : asked + left_ms;
  hold->asked = true;
  return status;
}

/* ---- What this process holds ---- */

static uint64_t hold_hash(dibs__str name, dibs__id id) {
  return dibs__hash(id.b, sizeof id.b) ^ dibs__hash(name.p, name.len);
}

static struct dibs__etcd_hold *hold_find_locked(const struct dibs__etcd *store, dibs__str name, dibs__id id) {
  struct dibs__map_node *node = dibs__map_head(&store->holds, hold_hash(name, id));
  uint64_t name_hash = dibs__hash(name.p, name.len);
  for (; node; node = node->next) {
    struct dibs__etcd_hold *hold = (struct dibs__etcd_hold *)node;
    if (hold->name_hash == name_hash && dibs__id_equal(hold->id, id)) return hold;
  }
  return NULL;
}

bool dibs__etcd_hold_find(struct dibs__etcd *store, dibs__str name, dibs__id id, struct dibs__etcd_hold *to) {
  dibs__mutex_lock(&store->lock);
  const struct dibs__etcd_hold *hold = hold_find_locked(store, name, id);
  if (hold) *to = *hold;
  dibs__mutex_unlock(&store->lock);
  return hold != NULL;
}

/* Leases that ended without a release, of clients of a daemon, are forgotten some time later. */
static void forget_ended_locked(struct dibs__etcd *store) {
  int64_t before = dibs__etcd_ms(dibs__tick_now()) - FORGET_MS;
  if (store->holds.count < 2 * store->holds_swept + SWEEP_FROM) return;
  for (size_t i = 0; i < store->holds.capacity; i++) {
    for (struct dibs__map_node *node = store->holds.heads[i], *next; node; node = next) {
      next = node->next;
      if (((struct dibs__etcd_hold *)node)->until >= before) continue;
      dibs__map_remove(&store->holds, node);
      free(node);
    }
  }
  store->holds_swept = store->holds.count;
}

/* Without memory for it, the next operation reads the name. */
void dibs__etcd_hold_set(struct dibs__etcd *store, dibs__str name, const struct dibs__etcd_hold *from) {
  dibs__mutex_lock(&store->lock);
  struct dibs__etcd_hold *hold = hold_find_locked(store, name, from->id);
  struct dibs__map_node node = hold ? hold->node : (struct dibs__map_node){0};
  bool fresh = !hold;
  if (fresh) forget_ended_locked(store);
  if (fresh) hold = malloc(sizeof *hold);
  if (hold) {
    *hold = *from;
    hold->node = node;
    hold->name_hash = dibs__hash(name.p, name.len);
    if (fresh) dibs__map_add(&store->holds, &hold->node, hold_hash(name, from->id));
  }
  dibs__mutex_unlock(&store->lock);
}

void dibs__etcd_hold_of(struct dibs__etcd_element *e, const struct dibs__etcd_claim *c) {
  if (e->own_hold && e->hold.mod == c->mod) return;
  e->own_hold = false;
  e->hold = (struct dibs__etcd_hold){.id = c->id, .mod = c->mod, .ttl_ms = c->ttl_ms, .mode = c->mode};
  e->hold.slot = c->slot;
  e->hold.block = c->block;
  e->hold.granted = c->granted;
  e->hold.first = c->first;
  e->hold.item = (struct dibs__etcd_item){.id = c->lease, .class_s = dibs__etcd_class(c->ttl_ms)};
  e->hold.item.ttl_s = e->hold.item.class_s;
}

void dibs__etcd_hold_drop(struct dibs__etcd *store, dibs__str name, dibs__id id) {
  dibs__mutex_lock(&store->lock);
  struct dibs__etcd_hold *hold = hold_find_locked(store, name, id);
  if (hold) dibs__map_remove(&store->holds, &hold->node);
  dibs__mutex_unlock(&store->lock);
  free(hold);
}

void dibs__etcd_holds_free(struct dibs__etcd *store) {
  for (size_t i = 0; i < store->holds.capacity; i++) {
    while (store->holds.heads[i]) {
      struct dibs__map_node *node = store->holds.heads[i];
      dibs__map_remove(&store->holds, node);
      free(node);
    }
  }
  dibs__map_free(&store->holds);
}

/* ---- The lease of our waiters ---- */

int64_t dibs__etcd_session_lease(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  int64_t id = store->session.id;
  dibs__mutex_unlock(&store->lock);
  return id;
}

void dibs__etcd_session_lost(struct dibs__etcd *store, int64_t lease) {
  dibs__mutex_lock(&store->lock);
  bool ours = lease && store->session.id == lease;
  if (ours) store->session.id = 0;
  dibs__mutex_unlock(&store->lock);
  if (ours) dibs__etcd_recheck(store, DIBS__EV_RECHECK); /* the waiters are queued again */
}

/* false: etcd does not have it any more. */
static bool keep_session(struct dibs__etcd *store, int64_t lease) {
  struct dibs__etcd_text body = {0};
  struct dibs__result result = {0};
  json_t *answers;
  dibs__tick sent = dibs__tick_now();
  dibs__etcd_putf(&body, "{\"ID\":\"%" PRId64 "\"}", lease);
  dibs__status status = dibs__etcd_post_lines(store->keeper_link, "/v3/lease/keepalive", &body,
                                              dibs__tick_add_ms(sent, KEEP_TRY_MS), &answers, &result);
  dibs__etcd_text_free(&body);
  if (status != DIBS_OK) return status != DIBS_NOT_FOUND;
  int64_t ttl = dibs__etcd_number(json_object_get(json_array_get(answers, 0), "result"), "TTL");
  json_decref(answers);
  dibs__mutex_lock(&store->lock);
  if (ttl > 0 && store->session.id == lease) store->session.from = sent;
  dibs__mutex_unlock(&store->lock);
  return ttl > 0;
}

static void keeper_body(void *arg) {
  struct dibs__etcd *store = arg;
  while (!atomic_load(&store->stopping)) {
    uint32_t seen = atomic_load(&store->keeper_word);
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), KEEP_MS);
    while (!atomic_load(&store->stopping) && dibs__word_wait(&store->keeper_word, seen, by, false)) {
    }
    int64_t lease = dibs__etcd_session_lease(store);
    if (atomic_load(&store->stopping) || !lease) continue;
    if (!keep_session(store, lease)) dibs__etcd_session_lost(store, lease);
  }
}

static bool start_keeper(struct dibs__etcd *store) {
  if (store->keeper) return true;
  if (!store->keeper_link) store->keeper_link = dibs__etcd_link_open(store);
  if (store->keeper_link) store->keeper = dibs__thread_start("dibs-etcd-keep", keeper_body, store);
  return store->keeper != NULL;
}

/* One thread at a time: a thread that waited for the lock finds it done. */
dibs__status dibs__etcd_session_ready(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by,
                                      struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  if (dibs__etcd_session_lease(store)) return DIBS_OK;
  dibs__mutex_lock(&store->starting);
  if (!dibs__etcd_session_lease(store)) {
    struct dibs__etcd_item item = {0};
    status = start_keeper(store) ? DIBS_OK : DIBS_NO_MEMORY;
    if (status == DIBS_OK) status = dibs__etcd_grant(link, DIBS__ETCD_SESSION_S, by, &item, result);
    dibs__mutex_lock(&store->lock);
    if (status == DIBS_OK) store->session = item;
    dibs__mutex_unlock(&store->lock);
  }
  dibs__mutex_unlock(&store->starting);
  return status;
}

/* The waiters end with it, at once. */
static void revoke_session(struct dibs__etcd *store) {
  struct dibs__etcd_text body = {0};
  struct dibs__result result = {0};
  json_t *answer;
  if (!store->session.id || !store->keeper_link) return;
  dibs__etcd_putf(&body, "{\"ID\":\"%" PRId64 "\"}", store->session.id);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 500);
  if (dibs__etcd_post(store->keeper_link, "/v3/lease/revoke", &body, true, by, &answer, &result) == DIBS_OK)
    json_decref(answer);
  dibs__etcd_text_free(&body);
}

void dibs__etcd_keeper_stop(struct dibs__etcd *store) {
  atomic_store(&store->stopping, true);
  atomic_fetch_add(&store->keeper_word, 1);
  dibs__word_wake(&store->keeper_word, 1, false);
  dibs__thread_join(store->keeper);
  revoke_session(store);
  dibs__etcd_link_close(store->keeper_link);
}
