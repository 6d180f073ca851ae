/* SPDX-License-Identifier: MIT */
/*
 * The queue of writers before BEGIN IMMEDIATE, and the mailboxes.
 *
 * The queue is a futex mutex whose word names its owner, so that a waiter can tell a slow owner from a dead one.
 *
 *   bit 31       SLEEPERS: a waiter may be asleep
 *   bit 30       STARVING: a waiter has waited for long
 *   bits 11-29   the low bits of the owner's generation
 *   bits 0-10    the owner's slot + 1, or 0
 *
 * States: 0, free; an owner's tag, held; no owner but STARVING, reserved for waiters that have slept.
 *
 * An owner that dies leaves its tag.  Sleepers wake each SLICE_MS, check whether the kernel still has the owner's
 * byte locked, and take over if not.  SQLite rolls back what the dead owner had begun: its own locks end with the
 * process too, though perhaps an instant later, so SQLite may still be busy for the new owner.
 *
 * A writer that finds it free takes it, also before sleepers, because waking one costs more than a transaction; the
 * tables keep FIFO, not this queue.  But a process that writes without a pause would shut out the others, which never
 * wake within the instant between two of its turns (measured: for a second, beside a process that holds it for 300
 * us).  So a waiter sets STARVING after STARVE_MS, and the next owner then reserves the lock for waiters that have
 * slept, for GRACE_MS: if none comes (killed, gave up), any writer takes it.
 *
 * Mailboxes: per slot a ring buffer of hints and a notifier.  One producer at a time, the holder of the writer lock;
 * one consumer, the slot's owner.  A hint is written whole before `tail` shows it, so a producer that dies half way
 * leaves nothing visible, and the next one overwrites it.  Only producers move `tail` and only consumers move `head`,
 * also when a slot changes hands: a hint for the former owner may reach the new one, which does not know its id and
 * skips it.
 *
 * Notifications are sent after the writer lock is free again, so that the woken process does not collide with it.
 * Nobody spins on a notifier: from post to take in another process it is 3 to 5 us in the median and 6 to 30 us at
 * p99 (two cores), of which a spin could save the smaller part, and a waiter of a lease waits for longer than a spin
 * is worth.
 */
#include "drivers/sqlite/side_impl.h"

#include <string.h>

enum { SLICE_MS = 20, STARVE_MS = 5, GRACE_MS = 1 };
#define SLEEPERS DIBS__QUEUE_SLEEPERS
#define STARVING DIBS__QUEUE_STARVING
#define OWNER (STARVING - 1)
#define SLOT_BITS 11
#define SLOT_MASK ((UINT32_C(1) << SLOT_BITS) - 1)
#define GENERATION_MASK ((UINT32_C(1) << 19) - 1)

/* How long a writer spins before it sleeps: as long as another process' transaction takes (15 to 20 us), whatever a
 * pause instruction takes on this processor (25 to 60 ns).  Measured on two cores with turns of 17 us: sleeping at once
 * costs a third of the turns of two writers that have something else to do in between; 75 us costs a tenth with eight
 * of them. */
enum { SPIN_NS = 25000, SPINS_A_LOOK = 32 };

uint32_t dibs__side_queue_tag(uint32_t slot, uint64_t generation) {
  return ((uint32_t)generation & GENERATION_MASK) << SLOT_BITS | (slot + 1);
}

static bool owner_lives(struct dibs__side *side, uint32_t owner) {
  uint32_t slot = (owner & SLOT_MASK) - 1;
  if (slot == side->slot) return owner == side->tag;
  if (slot >= DIBS__SIDE_SLOTS) return false;
  /* A slot with a new owner has another generation: the owner meant here is dead, though the byte is locked. */
  uint64_t generation = atomic_load(&side->page->slots[slot].generation);
  return dibs__side_queue_tag(slot, generation) == owner && dibs__side_slot_locked(side, slot);
}

static bool spin_until_free(struct dibs__side *side, dibs__word *word) {
  int64_t until = dibs__tick_now().ns + SPIN_NS;
  do {
    for (int i = 0; i < SPINS_A_LOOK; i++, dibs__spin_pause()) {
      uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);
      if (seen == 0 && atomic_compare_exchange_strong(word, &seen, side->tag)) return true;
    }
  } while (dibs__tick_now().ns < until);
  return false;
}

/* A writer that did not get the lock at once. */
struct wait {
  dibs__tick next_check; /* when to check next whether the owner is alive */
  bool slept;            /* a reserved lock is reserved for this waiter, too */
};

static bool is_kept(uint32_t word) {
  return word != 0 && (word & OWNER) == 0;
}

/* Takes it if it is free, reserved for us, or its owner is dead.  *seen: the word, if not. */
static bool try_take(struct dibs__side *side, struct wait *wait, dibs__tick now, uint32_t *seen) {
  dibs__word *word = &side->page->head.writer;
  /* Race: two sleep, the owner frees it and wakes one, which takes it and frees it without a wake: the other sleeps on.
   * Closed by a waiter taking it *with* SLEEPERS, at the price of one useless wake at the end. */
  const uint32_t mine = side->tag | SLEEPERS;
  if (*seen == 0 || (is_kept(*seen) && wait->slept)) return atomic_compare_exchange_strong(word, seen, mine);
  if (is_kept(*seen) || dibs__tick_before(now, wait->next_check)) return false;
  wait->next_check = dibs__tick_add_ms(now, SLICE_MS);
  /* Race: the owner dies, its slot gets a new owner, and that process takes the lock while we believe it dead: the
   * compare would succeed against a live owner.  Closed by the generation within the tag: the new one's word differs
   * from the one seen.  (It would need 2^19 uses of the slot between these two lines.) */
  if (owner_lives(side, *seen & OWNER) || !atomic_compare_exchange_strong(word, seen, mine)) return false;
  side->orphaned = true; /* it may have committed and not posted its hints yet */
  return true;
}

static bool wait_for_it(struct dibs__side *side, dibs__tick by) {
  dibs__word *word = &side->page->head.writer;
  dibs__tick now = dibs__tick_now(), starving = dibs__tick_add_ms(now, STARVE_MS);
  struct wait wait = {dibs__tick_add_ms(now, SLICE_MS), false};
  for (;; now = dibs__tick_now()) {
    uint32_t seen = atomic_load(word);
    if (try_take(side, &wait, now, &seen)) return true;
    if (seen == 0 || (is_kept(seen) && wait.slept)) continue;
    /* Before giving up, too: the present owner thereby passes on a wake that was spent on us. */
    uint32_t told = seen | SLEEPERS | (dibs__tick_before(now, starving) ? 0 : STARVING);
    if (told != seen && !atomic_compare_exchange_strong(word, &seen, told)) continue;
    if (!dibs__tick_before(now, by)) {
      /* Nothing is reserved for a waiter that has left.  Other starving waiters set the flag again. */
      if (!is_kept(seen)) atomic_compare_exchange_strong(word, &told, told & ~STARVING);
      return false;
    }
    /* Race: an owner dies between freeing the word and waking.  Closed by the slice: no waiter sleeps for longer. */
    dibs__tick until = is_kept(seen) ? dibs__tick_add_ms(now, GRACE_MS) : wait.next_check;
    dibs__word_wait(word, told, dibs__tick_min(by, until), true);
    wait.slept = !is_kept(seen) || !dibs__tick_before(dibs__tick_now(), until);
  }
}

bool dibs__side_write_begin(struct dibs__side *side, dibs__tick by) {
  dibs__word *word = &side->page->head.writer;
  uint32_t seen = 0;
  if (atomic_compare_exchange_strong(word, &seen, side->tag)) return true;
  return spin_until_free(side, word) || wait_for_it(side, by);
}

/* Frees the word if `tag` owns it.  Only the owner changes the tag, others only add flags. */
static void release_word(dibs__word *word, uint32_t tag) {
  uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);
  do /* otherwise the page has garbage, and the word is not ours to free */
    if ((seen & OWNER) != tag) return;
  while (!atomic_compare_exchange_weak(word, &seen, seen & STARVING ? seen & ~OWNER : 0));
  if (seen & SLEEPERS) dibs__word_wake(word, 1, true);
}

/* ---- Mailboxes ---- */

static uint64_t load_u64(const uint8_t *from) {
  uint64_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

static void notify_slot(struct dibs__page_slot *slot) {
  atomic_fetch_add(&slot->notifier, 1);
  dibs__word_wake(&slot->notifier, 1, true);
}

static void post_to(struct dibs__side *side, uint32_t location, const struct dibs__event *event) {
  struct dibs__page_slot *slot = &side->page->slots[location];
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
  side->call[location / 64] |= UINT64_C(1) << location % 64;
}

void dibs__side_post(struct dibs__side *side, uint64_t session, const struct dibs__event *event) {
  uint32_t location;
  uint64_t generation;
  if (!dibs__side_split(session, &location, &generation)) return;
  if (atomic_load(&side->page->slots[location].generation) == generation) post_to(side, location, event);
}

static bool has_hint(struct dibs__page_slot *slot, enum dibs__event_what what) {
  uint32_t tail = atomic_load_explicit(&slot->tail, memory_order_relaxed);
  if (tail == atomic_load_explicit(&slot->head, memory_order_acquire)) return false;
  return atomic_load_explicit(&slot->ring[(tail - 1) % DIBS__SIDE_RING].what, memory_order_relaxed) == (uint64_t)what;
}

void dibs__side_post_all(struct dibs__side *side, enum dibs__event_what what) {
  for (uint32_t i = 0; i < DIBS__SIDE_SLOTS; i++) {
    struct dibs__page_slot *slot = &side->page->slots[i];
    if (atomic_load_explicit(&slot->pid, memory_order_relaxed) == 0 || has_hint(slot, what)) continue;
    post_to(side, i, &(struct dibs__event){.what = what});
  }
}

/* Under the writer lock: takes the slots with new hints. */
static void side_calls_take(struct dibs__side *side, struct dibs__side_calls *calls) {
  calls->all = side->orphaned;
  calls->some = side->posted;
  if (calls->some) {
    memcpy(calls->slots, side->call, sizeof calls->slots);
    memset(side->call, 0, sizeof side->call);
  }
  side->orphaned = side->posted = false;
}

/* Every process checks everything. */
static void side_notify_all(struct dibs__side *side) {
  for (uint32_t i = 0; i < DIBS__SIDE_SLOTS; i++) {
    struct dibs__page_slot *slot = &side->page->slots[i];
    if (atomic_load_explicit(&slot->pid, memory_order_relaxed) == 0) continue;
    atomic_store(&slot->dropped, 1);
    notify_slot(slot);
  }
}

/* Not under it, so that the woken processes do not collide with it. */
static void side_calls_notify(struct dibs__side *side, const struct dibs__side_calls *calls) {
  if (calls->all) {
    side_notify_all(side);
    return;
  }
  if (!calls->some) return;
  for (uint32_t i = 0; i < DIBS__SIDE_SLOTS / 64; i++)
    for (uint64_t left = calls->slots[i]; left != 0; left &= left - 1)
      notify_slot(&side->page->slots[i * 64 + (uint32_t)__builtin_ctzll(left)]);
}

/* ---- The owner of the slot ---- */

size_t dibs__side_take(struct dibs__side *side, struct dibs__event *events, size_t cap, bool *all) {
  struct dibs__page_slot *slot = &side->page->slots[side->slot];
  *all = atomic_load_explicit(&slot->dropped, memory_order_relaxed) && atomic_exchange(&slot->dropped, 0);
  uint32_t tail = atomic_load_explicit(&slot->tail, memory_order_acquire);
  uint32_t head = atomic_load_explicit(&slot->head, memory_order_relaxed);
  if (tail - head > DIBS__SIDE_RING) { /* garbage in the page */
    head = tail;
    *all = true;
  }
  size_t count = 0;
  for (; count < cap && head != tail; head++) {
    const struct dibs__page_hint *hint = &slot->ring[head % DIBS__SIDE_RING];
    uint64_t what = atomic_load_explicit(&hint->what, memory_order_relaxed);
    if (what > DIBS__EV_TASKS) {
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
  /* Race: a hint is posted and notified after the caller's take and before our sleep.  Closed by comparing with the
   * notifier's value when wait returned last, before that take: such a notification makes it differ. */
  while (atomic_load(&slot->notifier) == side->heard && !something_left(slot))
    if (!dibs__word_wait(&slot->notifier, side->heard, by, true)) break;
  side->heard = atomic_load(&slot->notifier);
}

void dibs__side_wake(struct dibs__side *side) {
  notify_slot(&side->page->slots[side->slot]);
}

/* ---- Ending a write ---- */

void dibs__side_write_end(struct dibs__side *side) {
  /* Once the word is free another thread may own it and post: so this takes its own notifications along. */
  struct dibs__side_calls calls;
  side_calls_take(side, &calls);
  release_word(&side->page->head.writer, side->tag);
  /* Race: we die here, and the notifications are not sent.  Waiters poll each second (R17). */
  side_calls_notify(side, &calls);
}

void dibs__side_queue_heal(struct dibs__side *side) {
  dibs__word *word = &side->page->head.writer;
  uint32_t seen = atomic_load(word);
  if ((seen & SLOT_MASK) != side->slot + 1) return;
  /* Race: a sleeper takes over from the same dead owner.  Then the word is not the one seen, release leaves it, and the
   * sleeper notifies everybody as this does. */
  release_word(word, seen & OWNER);
  side_notify_all(side);
}
