/* SPDX-License-Identifier: MIT */
/*
 * Events.  The bell is opened when somebody is to be queued, or when somebody listens; the one who listens closes and
 * replaces a broken one.  What concerns ourselves does not go by way of the server.
 */
#include "sql/far_parts.h"

enum { OPEN_MS = 2000, AGAIN_MS = 250 };

bool dibs__far_bell_there(struct dibs__far *store) {
  dibs__mutex_lock(&store->inside->lock);
  bool there = store->inside->bell != NULL;
  dibs__mutex_unlock(&store->inside->lock);
  return there;
}

/* One thread opens at a time: others wait for the lock, and find it open. */
dibs__status dibs__far_bell_ensure(struct dibs__far *store, dibs__tick by, struct dibs__said *said) {
  struct dibs__far_inside *in = store->inside;
  dibs__status status = DIBS_OK;
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), OPEN_MS));
  dibs__mutex_lock(&in->opening);
  bool there = dibs__far_bell_there(store);
  void *bell = NULL;
  if (!there) status = store->engine->bell_open(store, store->session, by, &bell, said);
  if (bell) {
    dibs__mutex_lock(&in->lock);
    in->bell = bell;
    dibs__mutex_unlock(&in->lock);
  }
  dibs__mutex_unlock(&in->opening);
  return status;
}

void dibs__far_bell_close(struct dibs__far *store) {
  dibs__mutex_lock(&store->inside->lock);
  void *bell = store->inside->bell;
  store->inside->bell = NULL;
  dibs__mutex_unlock(&store->inside->lock);
  if (bell) store->engine->bell_close(bell);
}

static void wake_locked(struct dibs__far *store) {
  struct dibs__far_inside *in = store->inside;
  in->woken = true;
  if (in->bell) store->engine->bell_wake(in->bell);
  atomic_fetch_add(&in->bell_word, 1);
}

DIBS__MODULE_API void dibs__far_wake(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__mutex_lock(&store->inside->lock);
  wake_locked(store);
  dibs__mutex_unlock(&store->inside->lock);
  dibs__word_wake(&store->inside->bell_word, 1, false);
}

void dibs__far_tell_us(struct dibs__far *store, const struct dibs__event *event) {
  struct dibs__far_inside *in = store->inside;
  dibs__mutex_lock(&in->lock);
  if (in->event_count < DIBS__FAR_LOCAL_EVENTS)
    in->events[in->event_count++] = *event;
  else
    in->events[DIBS__FAR_LOCAL_EVENTS - 1] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  wake_locked(store);
  dibs__mutex_unlock(&in->lock);
  dibs__word_wake(&in->bell_word, 1, false);
}

/* What there is for us, without asking the server.  true: do not sleep. */
static bool take_ours(struct dibs__far *store, struct dibs__event *events, size_t cap, size_t *count, uint32_t *seen,
                      void **bell) {
  struct dibs__far_inside *in = store->inside;
  dibs__mutex_lock(&in->lock);
  *count = in->event_count < cap ? in->event_count : cap;
  memcpy(events, in->events, *count * sizeof *events);
  memmove(in->events, in->events + *count, (in->event_count - *count) * sizeof *events);
  in->event_count -= *count;
  bool woken = in->woken;
  in->woken = in->event_count > 0;
  *seen = atomic_load(&in->bell_word);
  *bell = in->bell;
  dibs__mutex_unlock(&in->lock);
  return woken || *count > 0;
}

/* Hears from the first call on: who has come back from one misses nothing. */
static bool listens(struct dibs__far *store, dibs__tick by) {
  struct dibs__said said = {.dead = false};
  return dibs__far_bell_there(store) || dibs__far_bell_ensure(store, by, &said) == DIBS_OK;
}

DIBS__MODULE_API dibs__status dibs__far_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap,
                                               size_t *count, dibs__tick by) {
  struct dibs__far *store = (struct dibs__far *)base;
  uint32_t seen;
  void *bell;
  bool heard = listens(store, by);
  if (take_ours(store, events, cap, count, &seen, &bell)) return DIBS_OK;
  if (!heard || !bell) {
    /* It is tried again, but not without a pause: what waits looks by itself meanwhile. */
    dibs__tick again = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MS);
    dibs__word_wait(&store->inside->bell_word, seen, dibs__tick_min(by, again), false);
    return DIBS_OK;
  }
  dibs__status status = store->engine->bell_wait(bell, events, cap, count, by);
  if (status == DIBS_OK) return DIBS_OK;
  dibs__far_bell_close(store);
  /* What was rung meanwhile is lost: all that wait look. */
  *count = 0;
  if (cap) events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  return DIBS_OK;
}
