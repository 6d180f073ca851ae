/* SPDX-License-Identifier: MIT */
/*
 * One writer for all users.  Users push their requests on a lock-free list; the writer takes the whole list, books it
 * in one transaction, and continues with the requests that arrived meanwhile.
 *
 * The writer must not spend its time on a thousand wake-ups while the engine is idle: it stores all answers and wakes
 * one user; each user that wakes up wakes two more.  A user that finds its answer without sleeping also wakes its two,
 * so every user wakes up; a user that is woken twice checks its own word and sleeps again.
 */
#include "floor.h"

#include <stdlib.h>

/* How often the writer yields before it takes the list, so that the requests of users that just got an answer join this
 * transaction instead of the next. With 20 users this gives 30% more bookings; more than a few yields gain nothing. */
enum { YIELDS = 4 };

struct floor_batch {
  /* immutable */
  const struct floor_run *run;
  struct floor_link *link;
  dibs__thread *thread;
  /* shared */
  struct floor_request *_Atomic queue; /* the latest request first */
  _Atomic bool stopping;
  dibs__word notifier; /* 1: the writer sleeps or is about to sleep */
  /* of the writer */
  uint64_t batches;
  struct floor_request *requests[FLOOR_BATCH_MOST];
  const struct floor_claim *claims[FLOOR_BATCH_MOST];
};

static void answer(struct floor_request *const requests[], size_t count, enum floor_answer given) {
  for (size_t i = 0; i < count; i++) {
    requests[i]->wakes[0] = 2 * i + 1 < count ? requests[2 * i + 1] : NULL;
    requests[i]->wakes[1] = 2 * i + 2 < count ? requests[2 * i + 2] : NULL;
  }
  struct floor_request *first = requests[0];
  for (size_t i = 0; i < count; i++) atomic_store_explicit(&requests[i]->answer, given, memory_order_release);
  dibs__word_wake(&first->answer, 1, false);
}

/* First come, first served: if not all requests fit, they are granted up to the limit and the rest is refused. */
static void serve(struct floor_batch *b, size_t count) {
  for (size_t i = 0; i < count; i++) b->claims[i] = &b->requests[i]->claim;
  const struct floor_strategy *strategy = b->run->strategy;
  enum floor_answer given = strategy->book_all(b->link, b->claims, count);
  b->batches++;
  if (given != FLOOR_FULL) {
    answer(b->requests, count, given);
    return;
  }
  int64_t capacity = 0;
  if (!b->run->engine->capacity(b->link, &capacity)) {
    answer(b->requests, count, FLOOR_BROKEN);
    return;
  }
  size_t fit = capacity <= 0 ? 0 : (size_t)capacity < count ? (size_t)capacity : count;
  if (fit > 0) {
    given = strategy->book_all(b->link, b->claims, fit);
    answer(b->requests, fit, given);
    b->batches++;
  }
  if (fit < count) answer(b->requests + fit, count - fit, FLOOR_FULL);
}

/* Takes the whole list, oldest first; 0 if it is empty. */
static size_t take(struct floor_batch *b) {
  struct floor_request *request = atomic_exchange(&b->queue, NULL);
  size_t count = 0;
  for (; request; request = request->next) b->requests[count++] = request;
  for (size_t i = 0; i < count / 2; i++) {
    struct floor_request *swap = b->requests[i];
    b->requests[i] = b->requests[count - 1 - i];
    b->requests[count - 1 - i] = swap;
  }
  return count;
}

static void writer(void *arg) {
  struct floor_batch *b = arg;
  for (;;) {
    for (int i = 0; i < YIELDS; i++) dibs__yield();
    size_t count = take(b);
    if (count > 0) {
      serve(b, count);
      continue;
    }
    if (atomic_load(&b->stopping)) return;
    /* A user that pushes after this store sees it and wakes the writer; the next check sees an earlier push. */
    atomic_store(&b->notifier, 1);
    if (!atomic_load(&b->queue) && !atomic_load(&b->stopping))
      dibs__word_wait(&b->notifier, 1, DIBS__TICK_NEVER, false);
    atomic_store(&b->notifier, 0);
  }
}

static void wake_writer(struct floor_batch *b) {
  if (atomic_load(&b->notifier) == 1 && atomic_exchange(&b->notifier, 0) == 1) dibs__word_wake(&b->notifier, 1, false);
}

struct floor_batch *floor_batch_start(const struct floor_run *run, struct floor_link *link) {
  struct floor_batch *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  b->run = run;
  b->link = link;
  b->thread = dibs__thread_start("writer", writer, b);
  if (b->thread) return b;
  free(b);
  return NULL;
}

enum floor_answer floor_batch_book(struct floor_batch *b, struct floor_request *request) {
  atomic_store_explicit(&request->answer, 0, memory_order_relaxed);
  request->next = atomic_load_explicit(&b->queue, memory_order_relaxed);
  while (!atomic_compare_exchange_weak(&b->queue, &request->next, request)) continue;
  wake_writer(b);
  uint32_t given;
  while (!(given = atomic_load_explicit(&request->answer, memory_order_acquire)))
    dibs__word_wait(&request->answer, 0, DIBS__TICK_NEVER, false);
  for (size_t i = 0; i < 2; i++)
    if (request->wakes[i]) dibs__word_wake(&request->wakes[i]->answer, 1, false);
  return (enum floor_answer)given;
}

uint64_t floor_batch_stop(struct floor_batch *b) {
  atomic_store(&b->stopping, true);
  wake_writer(b);
  dibs__thread_join(b->thread);
  uint64_t batches = b->batches;
  free(b);
  return batches;
}
