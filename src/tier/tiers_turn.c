/* SPDX-License-Identifier: MIT */
/* A lock that is held across calls to stores, and so is waited for until `by` at most. */
#include "tier/tiers_parts.h"

#include <assert.h>

enum { ALL = INT32_MAX };

bool dibs__turn_take(struct turn *turn, dibs__tick by) {
  for (;;) {
    dibs__mutex_lock(&turn->lock);
    bool mine = !turn->taken;
    turn->taken = true;
    uint32_t seen = atomic_load(&turn->word);
    dibs__mutex_unlock(&turn->lock);
    if (mine) return true;
    if (!dibs__word_wait(&turn->word, seen, by, false)) return false;
  }
}

void dibs__turn_end(struct turn *turn) {
  dibs__mutex_lock(&turn->lock);
  assert(turn->taken);
  turn->taken = false;
  atomic_fetch_add(&turn->word, 1);
  dibs__mutex_unlock(&turn->lock);
  /* All: one alone may just be giving up. */
  dibs__word_wake(&turn->word, ALL, false);
}
