/* SPDX-License-Identifier: MIT */
/*
 * Mailboxes: per slot a ring of hints and a bell.
 *
 * One producer at a time, whoever holds the writer lock; one consumer, the slot's owner.  A hint is written whole
 * before `tail` shows it, so a producer that dies half way leaves nothing to be seen, and the next one writes over it.
 * Only producers move `tail` and only consumers move `head`, also when a slot changes hands: a hint meant for the
 * former owner may reach the new one, who does not know its id and passes over it.
 *
 * Bells are rung after the writer lock is free again, else whoever wakes would run into it.  Nobody spins on a bell:
 * from post to take in another process it is 3 to 5 us in the middle and 6 to 30 us at p99 (two cores), of which a spin
 * could save the smaller part, and who waits for a lease waits for longer than anybody should spin.
 */
#include "drivers/sqlite_side_page.h"

#include <string.h>

static uint64_t load_u64(const uint8_t *from) {
  uint64_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

static void ring_bell(struct dibs__page_slot *slot) {
  atomic_fetch_add(&slot->bell, 1);
  dibs__word_wake(&slot->bell, 1, true);
}

void dibs__side_post(struct dibs__side *side, uint64_t session, const struct dibs__event *event) {
  uint32_t place;
  uint64_t generation;
  if (!dibs__side_split(session, &place, &generation)) return;
  struct dibs__page_slot *slot = &side->page->slots[place];
  if (atomic_load(&slot->generation) != generation) return;

  uint32_t tail = atomic_load_explicit(&slot->tail, memory_order_relaxed);
  uint32_t head = atomic_load_explicit(&slot->head, memory_order_acquire);
  if (tail - head >= DIBS__SIDE_RING) {
    atomic_store(&slot->dropped, 1);
  } else {
    struct dibs__page_hint *hint = &slot->ring[tail % DIBS__SIDE_RING];
    atomic_store_explicit(&hint->what, (uint64_t)event->what, memory_order_relaxed);
    atomic_store_explicit(&hint->id[0], load_u64(event->id.b), memory_order_relaxed);
    atomic_store_explicit(&hint->id[1], load_u64(event->id.b + 8), memory_order_relaxed);
    atomic_store_explicit(&hint->fence, event->fence.v, memory_order_relaxed);
    atomic_store_explicit(&hint->held_until_ns, event->held_until.ns, memory_order_relaxed);
    atomic_store_explicit(&slot->tail, tail + 1, memory_order_release);
  }
  side->posted = true;
  side->call[place / 64] |= UINT64_C(1) << place % 64;
}

void dibs__side_calls_take(struct dibs__side *side, struct dibs__side_calls *calls) {
  calls->all = side->orphaned;
  calls->some = side->posted;
  if (calls->some) {
    memcpy(calls->slots, side->call, sizeof calls->slots);
    memset(side->call, 0, sizeof side->call);
  }
  side->orphaned = side->posted = false;
}

void dibs__side_calls_ring(struct dibs__side *side, const struct dibs__side_calls *calls) {
  if (calls->all) {
    dibs__side_ring_all(side);
    return;
  }
  if (!calls->some) return;
  for (uint32_t i = 0; i < DIBS__SIDE_SLOTS / 64; i++)
    for (uint64_t left = calls->slots[i]; left != 0; left &= left - 1)
      ring_bell(&side->page->slots[i * 64 + (uint32_t)__builtin_ctzll(left)]);
}

void dibs__side_ring_all(struct dibs__side *side) {
  for (uint32_t i = 0; i < DIBS__SIDE_SLOTS; i++) {
    struct dibs__page_slot *slot = &side->page->slots[i];
    if (atomic_load_explicit(&slot->pid, memory_order_relaxed) == 0) continue;
    atomic_store(&slot->dropped, 1);
    ring_bell(slot);
  }
}

/* ---- The owner of the slot ---- */

size_t dibs__side_take(struct dibs__side *side, struct dibs__event *events, size_t cap, bool *all) {
  struct dibs__page_slot *slot = &side->page->slots[side->slot];
  *all = atomic_load_explicit(&slot->dropped, memory_order_relaxed) && atomic_exchange(&slot->dropped, 0);
  uint32_t tail = atomic_load_explicit(&slot->tail, memory_order_acquire);
  uint32_t head = atomic_load_explicit(&slot->head, memory_order_relaxed);
  if (tail - head > DIBS__SIDE_RING) { /* nonsense in the page */
    head = tail;
    *all = true;
  }
  size_t count = 0;
  for (; count < cap && head != tail; head++) {
    const struct dibs__page_hint *hint = &slot->ring[head % DIBS__SIDE_RING];
    uint64_t what = atomic_load_explicit(&hint->what, memory_order_relaxed);
    if (what > DIBS__EV_NEW_LIFE) {
      *all = true;
      continue;
    }
    struct dibs__event *event = &events[count++];
    event->what = (enum dibs__event_what)what;
    event->fence.v = atomic_load_explicit(&hint->fence, memory_order_relaxed);
    event->held_until.ns = atomic_load_explicit(&hint->held_until_ns, memory_order_relaxed);
    for (int i = 0; i < 2; i++) {
      uint64_t half = atomic_load_explicit(&hint->id[i], memory_order_relaxed);
      memcpy(event->id.b + 8 * i, &half, sizeof half);
    }
  }
  atomic_store_explicit(&slot->head, head, memory_order_release);
  return count;
}

/* A take with a small `cap` may have left some. */
static bool something_left(const struct dibs__page_slot *slot) {
  return atomic_load(&slot->tail) != atomic_load(&slot->head) || atomic_load(&slot->dropped);
}

void dibs__side_wait(struct dibs__side *side, dibs__tick by) {
  struct dibs__page_slot *slot = &side->page->slots[side->slot];
  /* Race: something is posted and rung after the caller's take and before our sleep.  Closed by comparing with the bell
   * as it was when wait returned last, before that take: such a ring makes it differ. */
  while (atomic_load(&slot->bell) == side->heard && !something_left(slot))
    if (!dibs__word_wait(&slot->bell, side->heard, by, true)) break;
  side->heard = atomic_load(&slot->bell);
}

void dibs__side_wake(struct dibs__side *side) {
  ring_bell(&side->page->slots[side->slot]);
}
