/* SPDX-License-Identifier: MIT */
/* The queue of callbacks, and the batch of an event loop. */
#include "handle/handle.h"

void dibs__start(dibs_store *store, struct dibs__op *list) {
  if (!list) return;
  if (atomic_load_explicit(&store->calls.batch_thread, memory_order_relaxed) == dibs__thread_self())
    dibs__core_leave(store->core, list);
  else
    dibs__core_start(store->core, list);
}

bool dibs__batch_begin(dibs_store *store) {
  uintptr_t nobody = 0;
  return !store->closing && atomic_compare_exchange_strong(&store->calls.batch_thread, &nobody, dibs__thread_self());
}

/* Two threads that wake each other for each operation would spend more time on that than on the operations. */
void dibs__batch_end(dibs_store *store) {
  atomic_store(&store->calls.batch_thread, 0);
  dibs__core_lend(store->core);
}

void dibs__batch_flush(dibs_store *store) {
  uintptr_t thread = atomic_load(&store->calls.batch_thread);
  if (thread == 0) return;
  if (thread == dibs__thread_self()) dibs__core_lend(store->core);
  dibs__core_start(store->core, NULL); /* the receiver carries the rest, and what the answers have begun */
}

void dibs__calls_queue_locked(dibs_store *store, struct dibs__due_call *due) {
  struct dibs__calls *calls = &store->calls;
  due->next = NULL;
  bool first = !calls->first;
  if (calls->last)
    calls->last->next = due;
  else
    calls->first = due;
  calls->last = due;
  if (!first) return;
  if (!dibs__calls_ready_locked(store)) dibs__lease_part.help_locked(store);
  atomic_store(&calls->due, true);
}

void dibs__calls_again_locked(dibs_store *store, struct dibs__due_call *due) {
  struct dibs__calls *calls = &store->calls;
  due->next = calls->first;
  if (!calls->first) calls->last = due;
  calls->first = due;
}

void dibs__calls_remove_locked(dibs_store *store, struct dibs__due_call *due) {
  struct dibs__calls *calls = &store->calls;
  struct dibs__due_call **at = &calls->first, *before = NULL;
  while (*at != due) {
    before = *at;
    at = &before->next;
  }
  *at = due->next;
  if (calls->last == due) calls->last = before;
}

/* Once for a batch of answers, not for each callback: the thread that wakes finds all of them. */
void dibs__calls_handed(void *context) {
  dibs_store *store = context;
  struct dibs__calls *calls = &store->calls;
  if (!atomic_load_explicit(&calls->due, memory_order_relaxed) || !atomic_exchange(&calls->due, false)) return;
  if (store->flags & DIBS_STORE_LOOP) {
    dibs__notifier_raise(store->notifier);
    return;
  }
  atomic_fetch_add(&calls->word, 1);
  dibs__word_wake(&calls->word, 1, false);
}

/* Lock held on entry and on return, not while calling.  false: nothing was called. */
static bool call_first_locked(dibs_store *store) {
  struct dibs__due_call *due = store->calls.first;
  store->calls.first = due->next;
  if (!store->calls.first) store->calls.last = NULL;
  return due->run_locked(store, due);
}

/* One thread at a time: what the callbacks of a handle use is freed in one of them.  A callback may dispatch itself. */
static size_t run_due_calls(dibs_store *store, size_t max) {
  struct dibs__calls *calls = &store->calls;
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  /* Lowered before the queue is read: a callback that is queued from here on raises it again, or is found below. */
  dibs__notifier_lower(store->notifier);
  uintptr_t outer = calls->dispatcher;
  if (outer != 0 && outer != dibs__thread_self()) {
    dibs__mutex_unlock(&store->lock);
    return 0; /* that thread reads the queue again before it ends, and raises the notifier for what it leaves */
  }
  calls->dispatcher = dibs__thread_self();
  bool lends = dibs__batch_begin(store);
  while (calls->first && (max == 0 || count < max)) count += call_first_locked(store);
  calls->dispatcher = outer;
  if (calls->first) dibs__notifier_raise(store->notifier);
  dibs__mutex_unlock(&store->lock);
  if (lends)
    dibs__batch_end(store);
  else if (outer != 0)
    dibs__core_lend(store->core); /* the callback that dispatches may wait for what it has begun itself */
  return count;
}

size_t dibs_dispatch(dibs_store *store, size_t max) {
  if (dibs__enter(store, "dibs_dispatch", NULL) != DIBS_OK) return 0;
  size_t count = store->flags & DIBS_STORE_LOOP ? run_due_calls(store, max) : 0;
  dibs__exit(store);
  return count;
}

static void run_calls(void *arg) {
  dibs_store *store = arg;
  struct dibs__calls *calls = &store->calls;
  dibs__mutex_lock(&store->lock);
  for (;;) {
    while (calls->first) (void)call_first_locked(store);
    if (calls->stopping) break;
    uint32_t seen = atomic_load(&calls->word);
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&calls->word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

bool dibs__calls_ready_locked(dibs_store *store) {
  if (store->flags & DIBS_STORE_LOOP) return true;
  if (!store->calls.thread) store->calls.thread = dibs__thread_start("dibs-calls", run_calls, store);
  return store->calls.thread != NULL;
}

void dibs__calls_stop(dibs_store *store) {
  if (store->flags & DIBS_STORE_LOOP) {
    run_due_calls(store, 0);
    return;
  }
  dibs__mutex_lock(&store->lock);
  store->calls.stopping = true;
  dibs__mutex_unlock(&store->lock);
  atomic_fetch_add(&store->calls.word, 1);
  dibs__word_wake(&store->calls.word, 1, false);
  dibs__thread_join(store->calls.thread);
  store->calls.thread = NULL;
}
