/* SPDX-License-Identifier: MIT */
/* What a decision under the lock leaves to be done after it: questions to carry, threads to wake. */
#include "lease/room.h"

static void put(struct dibs__op **first, struct dibs__op **last, struct dibs__op *op) {
  op->next = NULL;
  if (*last)
    (*last)->next = op;
  else
    *first = op;
  *last = op;
}

void dibs__after_mine(struct after *after, struct dibs__op *op) {
  put(&after->mine, &after->mine_last, op);
}

void dibs__after_rest(struct after *after, struct dibs__op *op) {
  put(&after->rest, &after->rest_last, op);
}

void dibs__after_wake(dibs_store *store, struct after *after, dibs__word *word) {
  atomic_fetch_add(word, 1);
  if (after->wake_count < WAKES_MAX)
    after->wakes[after->wake_count++] = word;
  else
    dibs__core_wake(store->core, word); /* a crowd: under the lock, slower but right */
}

void dibs__after_tell(struct after *after, dibs_lease *lease) {
  /* Race: a caller looks, we raise the word, it goes to sleep.  Closed by the order: it counts itself before the kernel
   * compares the word, and we raise the word before we look at the count. */
  atomic_fetch_add(&lease->word, 1);
  if (atomic_load(&lease->sleepers) > 0) dibs__after_wake(lease->store, after, &lease->word);
}

bool dibs__lease_sleep(dibs_lease *lease, uint32_t seen, dibs__tick by) {
  atomic_fetch_add(&lease->sleepers, 1);
  bool in_time = dibs__word_wait(&lease->word, seen, by, false);
  atomic_fetch_sub(&lease->sleepers, 1);
  return in_time;
}

static void start(dibs_store *store, struct dibs__op *list) {
  if (!list) return;
  if (atomic_load_explicit(&store->lender, memory_order_relaxed) == dibs__thread_self())
    dibs__core_leave(store->core, list);
  else
    dibs__core_start(store->core, list);
}

bool dibs__after(dibs_store *store, struct after *after, dibs__tick by) {
  bool answered = true;
  for (uint32_t i = 0; i < after->wake_count; i++) dibs__core_wake(store->core, after->wakes[i]);
  start(store, after->rest);
  dibs__room_handed(store);
  if (after->mine) answered = dibs__core_run(store->core, after->mine, by);
  *after = (struct after){0};
  return answered;
}

void dibs__after_start(dibs_store *store, struct after *after) {
  dibs__after_answer(store, after);
  dibs__room_handed(store);
}

void dibs__after_answer(dibs_store *store, struct after *after) {
  for (uint32_t i = 0; i < after->wake_count; i++) dibs__core_wake(store->core, after->wakes[i]);
  start(store, after->mine);
  start(store, after->rest);
  if (after->due.ns != 0) dibs__core_rouse(store->core, after->due);
  *after = (struct after){0};
}
