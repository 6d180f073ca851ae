/* SPDX-License-Identifier: MIT */
/*
 * What happens in all tiers, in one queue: a thread a tier sleeps in its events(), from its first grant or place in a
 * queue on.  A full queue becomes one "look again".
 */
#include "tier/tiers_parts.h"

enum { AT_ONCE = 64, LISTEN_MS = 1000 };

static void put_locked(struct tiers *t, const struct dibs__event *event) {
  if (t->event_count == TIERS_EVENTS) {
    t->overflow = true;
    return;
  }
  t->events[(t->event_first + t->event_count++) % TIERS_EVENTS] = *event;
}

static void ring_all(struct tiers *t, const struct dibs__event *events, size_t count) {
  if (count == 0) return;
  dibs__mutex_lock(&t->ears);
  for (size_t i = 0; i < count; i++) put_locked(t, &events[i]);
  dibs__mutex_unlock(&t->ears);
  atomic_fetch_add(&t->rung, 1);
  dibs__word_wake(&t->rung, 1, false);
}

void dibs__tiers_ring(struct tiers *t, const struct dibs__event *event) {
  ring_all(t, event, 1);
}

/* What may be begun with before it is confirmed, without asking: an offer under a mandate that stands, by who promises
 * so much.  Else the tier is asked.  Strict: always, because only who asks is told that he may. */
static void weigh_offers(struct tier *tier, struct dibs__event *events, size_t count) {
  struct tiers *t = tier->all;
  bool lasts = (atomic_load(&tier->caps) & DIBS__CAP_OFFERS_LAST) != 0;
  dibs__mutex_lock(&t->lock);
  for (size_t i = 0; i < count; i++) {
    struct dibs__event *event = &events[i];
    if (event->what != DIBS__EV_OFFER) continue;
    bool stands = false;
    for (uint32_t b = 0; b < DIBS__BUCKETS && !stands; b++)
      stands = t->here[b].tier == tier->nth && t->here[b].mandate.epoch == dibs__fence_epoch(event->fence);
    if (stands && t->state.strictness != DIBS__STRICT && (lasts || event->held_until.ns != 0)) continue;
    event->fence.v = 0;
    event->held_until = DIBS__TICK_ZERO;
  }
  dibs__mutex_unlock(&t->lock);
}

static void listen_there(void *arg) {
  struct tier *tier = arg;
  struct tiers *t = tier->all;
  struct dibs__event events[AT_ONCE];
  while (!atomic_load(&t->leaving)) {
    size_t count = 0;
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LISTEN_MS);
    dibs__status status = tier->store->driver->events(tier->store, events, AT_ONCE, &count, by);
    weigh_offers(tier, events, count);
    ring_all(t, events, count);
    if (status != DIBS_OK) dibs__nap_ms(TIERS_RETRY_MS);
  }
}

void dibs__tiers_listen(struct tier *tier) {
  struct tiers *t = tier->all;
  if (atomic_load(&tier->hears)) return;
  dibs__mutex_lock(&t->ears);
  /* Without a thread waiters look by themselves, each second. */
  if (!tier->ear && !atomic_load(&t->leaving)) tier->ear = dibs__thread_start("dibs-ear", listen_there, tier);
  atomic_store(&tier->hears, tier->ear != NULL);
  dibs__mutex_unlock(&t->ears);
}

void dibs__tiers_listen_stop(struct tiers *t) {
  atomic_store(&t->leaving, true);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    struct tier *tier = &t->tiers[i];
    if (!tier->ear) continue;
    tier->store->driver->wake(tier->store);
    dibs__thread_join(tier->ear);
    tier->ear = NULL;
  }
}

dibs__status dibs__tiers_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by) {
  struct tiers *t = tiers_of(store);
  *count = 0;
  for (;;) {
    uint32_t seen = atomic_load(&t->rung);
    dibs__mutex_lock(&t->ears);
    if (t->overflow && cap > 0) {
      t->overflow = false;
      t->event_count = 0;
      events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    }
    while (*count < cap && t->event_count > 0) {
      events[(*count)++] = t->events[t->event_first];
      t->event_first = (t->event_first + 1) % TIERS_EVENTS;
      t->event_count--;
    }
    bool woken = t->woken;
    t->woken = false;
    dibs__mutex_unlock(&t->ears);
    if (*count > 0 || woken) return DIBS_OK;
    if (!dibs__word_wait(&t->rung, seen, by, false)) return DIBS_OK;
  }
}

void dibs__tiers_wake(struct dibs__dstore *store) {
  struct tiers *t = tiers_of(store);
  dibs__mutex_lock(&t->ears);
  t->woken = true;
  dibs__mutex_unlock(&t->ears);
  atomic_fetch_add(&t->rung, 1);
  dibs__word_wake(&t->rung, 1, false);
}
