/* SPDX-License-Identifier: MIT */
#ifndef DIBS_HANDLE_CALLS_H
#define DIBS_HANDLE_CALLS_H
/*
 * Callbacks that are due, in one queue of the store.  They are called with no lock held and one after the other: by
 * dibs_dispatch in the caller's own loop, or by a thread of the library.  And the batch of operations that an event
 * loop starts in one iteration.
 */
#include "base/port.h"
#include "dibs.h"

#include <stdbool.h>
#include <stdint.h>

struct dibs__op;

/* `run_locked` is called once with the lock held, and returns with it; it unlocks while it calls the user's function.
 * false: there was nothing to call any more. */
struct dibs__due_call {
  struct dibs__due_call *next;
  bool (*run_locked)(dibs_store *store, struct dibs__due_call *due);
};

/* Guarded by store->lock but for what is atomic. */
struct dibs__calls {
  struct dibs__due_call *first, *last;
  _Atomic bool due;               /* a thread must be notified of them, once, after the present decision or batch */
  _Atomic uintptr_t batch_thread; /* the thread whose operations wait for dibs__batch_end; 0: none */
  dibs__thread *thread;           /* runs them; NULL with DIBS_STORE_LOOP */
  dibs__word word;
  uintptr_t dispatcher; /* the thread that runs some now, with DIBS_STORE_LOOP; 0: none */
  bool stopping;
};

void dibs__calls_queue_locked(dibs_store *store, struct dibs__due_call *due);
/* For run_locked, before it unlocks: it has more to call, before what is in the queue. */
void dibs__calls_again_locked(dibs_store *store, struct dibs__due_call *due);
/* It is in the queue, and is not called any more. */
void dibs__calls_remove_locked(dibs_store *store, struct dibs__due_call *due);
/* A thread will run the callbacks.  false: none can be started. */
bool dibs__calls_ready_locked(dibs_store *store);
/* Notifies that callbacks wait, if that is due; `context` is the store. */
void dibs__calls_handed(void *context);
/* Runs what waits, and ends the thread. */
void dibs__calls_stop(dibs_store *store);

/* Operations that this thread starts from now on wait for dibs__batch_end, which sends them in one batch, in this
 * thread if the engine does not block.  false: another batch of this store is open, and there is nothing to end. */
bool dibs__batch_begin(dibs_store *store);
void dibs__batch_end(dibs_store *store);
/* Something waits for operations that may have been left for the end of a batch: sends them now. */
void dibs__batch_flush(dibs_store *store);
/* Starts a list of operations, linked by `next`: in the batch of this thread, or else by another thread.  NULL is fine.
 */
void dibs__start(dibs_store *store, struct dibs__op *list);

#endif
