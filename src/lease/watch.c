/* SPDX-License-Identifier: MIT */
/*
 * Two threads a store, started with its first held lease.  The watchdog renews everything that is due in one batch, at
 * a third of the ttl, and does the engine's housekeeping.  The loss timer does nothing but look at the clock, so that a
 * watchdog stuck in a dead network can't hide a loss.
 *
 * A lease that is over in a moment costs one thread, not three: the loss timer starts the watchdog when the first
 * renewal is due, and has the store served when somebody who wants to be told of a break has held for SERVE_MS.
 *
 * Both sleep at most a second while there is anything to watch: a futex sleeps by a clock that stops while the machine
 * is suspended, and new leases, which end later than that, need not wake them.
 */
#include "lease/room.h"

enum { LOOK_MS = 1000, SERVE_MS = 20, AGAIN_MS = 20 };

static void watch(void *arg);

static dibs__thread *start_watchdog_locked(dibs_store *store) {
  if (!store->watchdog) store->watchdog = dibs__thread_start("dibs-watchdog", watch, store);
  return store->watchdog;
}

/* When the loss timer must start somebody. */
static dibs__tick helpers_due_locked(dibs_store *store, dibs__tick now) {
  struct dibs__heap_node *renewal = dibs__heap_first(&store->renewals);
  dibs__tick due = store->serve_at.ns ? store->serve_at : DIBS__TICK_NEVER;
  if (renewal && !store->watchdog) due = dibs__tick_min(due, renewal->at);
  if (store->first_call && !dibs__calls_ready_locked(store)) due = DIBS__TICK_ZERO;
  /* If there was no thread to be had just now: not at once again. */
  return dibs__tick_before(due, now) ? dibs__tick_add_ms(now, AGAIN_MS) : due;
}

static void start_helpers_locked(dibs_store *store, dibs__tick now) {
  struct dibs__heap_node *renewal = dibs__heap_first(&store->renewals);
  if (renewal && !dibs__tick_before(now, renewal->at)) start_watchdog_locked(store);
  if (store->serve_at.ns == 0 || dibs__tick_before(now, store->serve_at)) return;
  store->serve_at = DIBS__TICK_ZERO;
  dibs__core_serve(store->core);
}

static void lose_due(dibs_store *store, dibs__tick now) {
  struct after after = {0};
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->losses)) && !dibs__tick_before(now, node->at))
    dibs__lose_locked((struct grant *)((char *)node - offsetof(struct grant, loss)), &after);
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  dibs__mutex_lock(&store->lock);
}

/* How long to sleep: to the first in the heap, a second at most; for ever if the last second was idle too. */
static dibs__tick look_again(const struct dibs__heap *heap, dibs__tick now, bool *idle) {
  struct dibs__heap_node *first = dibs__heap_first(heap);
  dibs__tick at = dibs__tick_add_ms(now, LOOK_MS);
  if (first) {
    *idle = false;
    return dibs__tick_min(at, first->at);
  }
  if (*idle) return DIBS__TICK_NEVER;
  *idle = true;
  return at;
}

static void time_losses(void *arg) {
  dibs_store *store = arg;
  bool idle = false;
  dibs__mutex_lock(&store->lock);
  while (!store->stopping) {
    dibs__tick now = dibs__tick_now();
    uint32_t seen = atomic_load(&store->loss_word); /* before the lock is let go: whoever stops us may come there */
    lose_due(store, now);
    start_helpers_locked(store, now);
    dibs__tick until = dibs__tick_min(look_again(&store->losses, now, &idle), helpers_due_locked(store, now));
    store->loss_until = until;
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&store->loss_word, seen, until, false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

/* Everything that is due, and what would be soon: one transaction a round, not one a lease. */
static struct dibs__op *due_renewals_locked(dibs_store *store, dibs__tick now, dibs__tick *by) {
  struct dibs__op *first = NULL, **end = &first;
  struct dibs__heap_node *node;
  *by = DIBS__TICK_NEVER;
  bool any = false;
  while ((node = dibs__heap_first(&store->renewals))) {
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, renewal));
    dibs__tick from = any ? dibs__tick_add_ms(now, grant->ttl_ms / 12) : now;
    if (dibs__tick_before(from, node->at)) break;
    dibs__heap_remove(&store->renewals, node);
    if (grant->asked != ASK_NOTHING) continue; /* its answer sets the timer again */
    any = true;
    bool line = grant->cohort && grant->cohort->first && !grant->shown;
    *end = dibs__ask_renew_locked(grant, grant->lease->ttl_ms, line ? RUN_MAX : 0);
    *by = dibs__tick_min(*by, (*end)->by);
    end = &(*end)->next;
  }
  return first;
}

static void watch(void *arg) {
  dibs_store *store = arg;
  bool idle = false;
  dibs__mutex_lock(&store->lock);
  while (!store->stopping) {
    dibs__tick now = dibs__tick_now(), by;
    struct dibs__op *due = due_renewals_locked(store, now, &by);
    bool untidy = store->untidy;
    store->untidy = false;
    if (due || untidy) {
      dibs__mutex_unlock(&store->lock);
      if (due) dibs__core_run(store->core, due, dibs__tick_add_ms(by, 5));
      if (untidy) dibs__core_tidy(store->core);
      dibs__mutex_lock(&store->lock);
      continue;
    }
    uint32_t seen = atomic_load(&store->watchdog_word);
    dibs__tick until = store->watchdog_until = look_again(&store->renewals, now, &idle);
    dibs__mutex_unlock(&store->lock);
    if (!dibs__word_wait(&store->watchdog_word, seen, until, false)) dibs__core_tidy(store->core);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

static void rouse(dibs__word *word) {
  atomic_fetch_add(word, 1);
  dibs__word_wake(word, 1, false);
}

bool dibs__watch_ready_locked(dibs_store *store) {
  if (!store->loss_timer) store->loss_timer = dibs__thread_start("dibs-loss", time_losses, store);
  return store->loss_timer != NULL;
}

void dibs__watch_help_locked(dibs_store *store) {
  rouse(&store->loss_word);
}

void dibs__watch_loss_locked(struct grant *grant) {
  dibs_store *store = grant->store;
  dibs__heap_set(&store->losses, &grant->loss, grant->until);
  if (dibs__tick_before(grant->until, store->loss_until)) {
    store->loss_until = grant->until;
    rouse(&store->loss_word);
  }
}

void dibs__watch_locked(struct grant *grant) {
  dibs_store *store = grant->store;
  dibs_lease *lease = grant->lease;
  dibs__watch_loss_locked(grant);
  bool told = lease->on_lost && (dibs__core_caps(store->core) & DIBS__CAP_EVENTS);
  if (told && !store->served) {
    store->served = true;
    store->serve_at = dibs__tick_add_ms(dibs__tick_now(), SERVE_MS);
    rouse(&store->loss_word);
  }
  if (lease->flags & DIBS_NO_RENEW) return;
  int64_t pause = grant->unconfirmed ? CONFIRM_MS : grant->ttl_ms / 3;
  dibs__tick at = dibs__tick_add_ms(grant->unconfirmed ? dibs__tick_now() : grant->op.op.sent, pause);
  if (grant->fails > 0) at = dibs__tick_add_ms(dibs__tick_now(), grant->ttl_ms / 12 > 20 ? grant->ttl_ms / 12 : 20);
  dibs__heap_set(&store->renewals, &grant->renewal, at);
  if (!store->watchdog && dibs__tick_before(at, store->loss_until)) {
    store->loss_until = at;
    rouse(&store->loss_word);
  }
  if (store->watchdog && dibs__tick_before(at, store->watchdog_until)) {
    store->watchdog_until = at;
    rouse(&store->watchdog_word);
  }
}

void dibs__unwatch_locked(struct grant *grant) {
  dibs__heap_remove(&grant->store->losses, &grant->loss);
  dibs__heap_remove(&grant->store->renewals, &grant->renewal);
}

void dibs__room_untidy(void *room) {
  dibs_store *store = room;
  dibs__mutex_lock(&store->lock);
  bool first = !store->untidy;
  store->untidy = true;
  if (!store->stopping) start_watchdog_locked(store);
  dibs__mutex_unlock(&store->lock);
  if (first) rouse(&store->watchdog_word);
}

void dibs__watch_stop(dibs_store *store) {
  dibs__mutex_lock(&store->lock);
  store->stopping = true;
  dibs__mutex_unlock(&store->lock);
  rouse(&store->watchdog_word);
  rouse(&store->loss_word);
  dibs__thread_join(store->watchdog);
  dibs__thread_join(store->loss_timer);
  store->watchdog = store->loss_timer = NULL;
}
