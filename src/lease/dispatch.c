/* SPDX-License-Identifier: MIT */
/*
 * Callbacks.  A lease with something to tell is queued once, with bits for what; it is called with no lock held, by
 * dibs_dispatch in the caller's own loop or by a thread of the library.
 */
#include "lease/room.h"

static void run_calls(void *arg);

void dibs__call_locked(dibs_lease *lease, uint32_t call) {
  dibs_store *store = lease->store;
  bool queued = lease->calls != 0;
  lease->calls |= call;
  if (queued) return;
  dibs__lease_hold(lease);
  lease->next_call = NULL;
  bool first = !store->first_call;
  if (store->last_call)
    store->last_call->next_call = lease;
  else
    store->first_call = lease;
  store->last_call = lease;
  if (!first) return;
  if (!dibs__calls_ready_locked(store)) dibs__watch_help_locked(store); /* it tries again */
  atomic_store(&store->calls_due, true);
}

bool dibs__calls_ready_locked(dibs_store *store) {
  if (store->flags & DIBS_STORE_LOOP) return true;
  if (!store->dispatcher) store->dispatcher = dibs__thread_start("dibs-calls", run_calls, store);
  return store->dispatcher != NULL;
}

/* Once a batch of answers, not once a callback: who is woken finds them all. */
void dibs__room_handed(void *room) {
  dibs_store *store = room;
  if (!atomic_load_explicit(&store->calls_due, memory_order_relaxed) || !atomic_exchange(&store->calls_due, false))
    return;
  if (store->flags & DIBS_STORE_LOOP) {
    dibs__bell_raise(store->bell);
    return;
  }
  atomic_fetch_add(&store->dispatch_word, 1);
  dibs__word_wake(&store->dispatch_word, 1, false);
}

/* Lock held on entry and on return, not while calling. */
static void call_one_locked(dibs_store *store) {
  dibs_lease *lease = store->first_call;
  store->first_call = lease->next_call;
  if (!store->first_call) store->last_call = NULL;
  uint32_t calls = lease->calls;
  lease->calls = 0;
  if (atomic_load(&lease->handles) == 0) calls &= ~(uint32_t)CALL_LOST; /* nobody is left to be told */
  dibs_status granted = lease->waited, released = lease->released;      /* granted first, also when lost since */
  dibs__mutex_unlock(&store->lock);
  if (calls & CALL_GRANTED) lease->done(lease, granted, lease->done_user);
  if (calls & CALL_LOST) lease->on_lost(lease, DIBS_LOST, lease->lost_user);
  if (calls & CALL_RELEASED) lease->release_done(lease, released, lease->release_user);
  dibs__mutex_lock(&store->lock);
  dibs__lease_drop_locked(lease);
}

/* What the callbacks begin travels in one batch at the end, in this thread if the engine is brief: two threads that
 * wake each other for each operation would spend more on that than on the operations. */
static size_t dispatch(dibs_store *store, size_t max) {
  size_t count = 0;
  uintptr_t nobody = 0;
  bool lends = !store->closing && atomic_compare_exchange_strong(&store->lender, &nobody, dibs__thread_self());
  dibs__mutex_lock(&store->lock);
  /* Lowered before looking: what is queued from here on raises it again, or is seen below. */
  dibs__bell_lower(store->bell);
  while (store->first_call && (max == 0 || count < max)) {
    call_one_locked(store);
    count++;
  }
  if (store->first_call) dibs__bell_raise(store->bell);
  dibs__mutex_unlock(&store->lock);
  if (lends) {
    atomic_store(&store->lender, 0);
    dibs__core_lend(store->core);
  }
  return count;
}

size_t dibs_dispatch(dibs_store *store, size_t max) {
  if (dibs__enter(store, "dibs_dispatch", NULL) != DIBS_OK) return 0;
  size_t count = store->flags & DIBS_STORE_LOOP ? dispatch(store, max) : 0;
  dibs__exit(store);
  return count;
}

static void run_calls(void *arg) {
  dibs_store *store = arg;
  dibs__mutex_lock(&store->lock);
  for (;;) {
    while (store->first_call) call_one_locked(store);
    if (store->stopping) break;
    uint32_t seen = atomic_load(&store->dispatch_word);
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&store->dispatch_word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

/* After watch_stop: `stopping` is set.  What waits is called first. */
void dibs__dispatch_stop(dibs_store *store) {
  if (store->flags & DIBS_STORE_LOOP) {
    dispatch(store, 0);
    return;
  }
  atomic_fetch_add(&store->dispatch_word, 1);
  dibs__word_wake(&store->dispatch_word, 1, false);
  dibs__thread_join(store->dispatcher);
  store->dispatcher = NULL;
}
