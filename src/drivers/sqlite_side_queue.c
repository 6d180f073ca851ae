/* SPDX-License-Identifier: MIT */
/*
 * The queue of writers before BEGIN IMMEDIATE: a futex mutex whose word names its owner, so that a waiter can tell a
 * slow owner from a dead one.
 *
 *   bit 31       SLEEPERS: somebody may be asleep
 *   bit 30       STARVING: somebody has waited for long
 *   bits 11-29   the low bits of the owner's generation
 *   bits 0-10    the owner's slot + 1, or 0
 *
 * States: 0, free; an owner's tag, held; no owner but STARVING, kept for who has slept.
 *
 * An owner that dies leaves its tag.  Sleepers wake each SLICE_MS, ask the kernel whether the owner's byte is still
 * locked, and take over if not.  SQLite rolls back what the dead one had begun: its own locks go with the process too,
 * though perhaps an instant later, so whoever takes over may still be told that the database is busy.
 *
 * Who finds it free takes it, also before those that sleep, because waking one costs more than a transaction; FIFO is
 * kept by the tables, not here.  But a process that writes without a pause would shut out the others, who never wake
 * within the instant between two of its turns (measured: for a second, beside one that holds for 300 us).  So who has
 * waited for STARVE_MS says so, and the next owner then keeps the lock for those that have slept, for GRACE_MS: if none
 * comes (killed, gave up), anybody takes it.
 */
#include "drivers/sqlite_side_page.h"

enum { SLICE_MS = 20, STARVE_MS = 5, GRACE_MS = 1 };
#define SLEEPERS DIBS__QUEUE_SLEEPERS
#define STARVING DIBS__QUEUE_STARVING
#define OWNER (STARVING - 1)
#define SLOT_BITS 11
#define SLOT_MASK ((UINT32_C(1) << SLOT_BITS) - 1)
#define GENERATION_MASK ((UINT32_C(1) << 19) - 1)

/* How long a writer spins before it sleeps: as long as one transaction of somebody else takes (15 to 20 us), whatever a
 * pause is worth on this processor (25 to 60 ns).  Measured on two cores with turns of 17 us: sleeping at once costs a
 * third of the turns of two writers that have something else to do in between; 75 us costs a tenth with eight of them.
 */
enum { SPIN_NS = 25000, SPINS_A_LOOK = 32 };

static uint32_t tag_of(uint32_t slot, uint64_t generation) {
  return ((uint32_t)generation & GENERATION_MASK) << SLOT_BITS | (slot + 1);
}

static bool owner_lives(struct dibs__side *side, uint32_t owner) {
  uint32_t slot = (owner & SLOT_MASK) - 1;
  if (slot == side->slot) return owner == side->tag;
  if (slot >= DIBS__SIDE_SLOTS) return false;
  /* A slot that was given anew has another generation: the owner meant here is dead, though the byte is locked. */
  uint64_t generation = atomic_load(&side->page->slots[slot].generation);
  return tag_of(slot, generation) == owner && dibs__side_slot_locked(side, slot);
}

static bool spin(struct dibs__side *side, dibs__word *word) {
  int64_t until = dibs__tick_now().ns + SPIN_NS;
  do {
    for (int i = 0; i < SPINS_A_LOOK; i++, dibs__spin_pause()) {
      uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);
      if (seen == 0 && atomic_compare_exchange_strong(word, &seen, side->tag)) return true;
    }
  } while (dibs__tick_now().ns < until);
  return false;
}

/* One writer that could not have it at once. */
struct wait {
  dibs__tick look; /* when to ask next whether the owner lives */
  bool slept;      /* what is kept is kept for us, too */
};

static bool is_kept(uint32_t word) {
  return word != 0 && (word & OWNER) == 0;
}

/* Takes it if it is free, kept for us, or its owner is dead.  *seen: the word, when not. */
static bool try_take(struct dibs__side *side, struct wait *wait, dibs__tick now, uint32_t *seen) {
  dibs__word *word = &side->page->head.writer;
  /* Race: two sleep, the owner frees it and wakes one, who takes it and frees it without a wake: the other sleeps on.
   * Closed by whoever has waited taking it *with* SLEEPERS, at the price of one wake for nobody at the end. */
  const uint32_t mine = side->tag | SLEEPERS;
  if (*seen == 0 || (is_kept(*seen) && wait->slept)) return atomic_compare_exchange_strong(word, seen, mine);
  if (is_kept(*seen) || dibs__tick_before(now, wait->look)) return false;
  wait->look = dibs__tick_add_ms(now, SLICE_MS);
  /* Race: the owner dies, its slot is given to a new process, and that one takes the lock while we believe it dead: the
   * compare would succeed against a live owner.  Closed by the generation within the tag: the new one's word differs
   * from what we saw.  (It would need 2^19 takings of the slot between these two lines.) */
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
    /* Before giving up, too: a wake that was spent on us is thereby handed on by the present owner. */
    uint32_t told = seen | SLEEPERS | (dibs__tick_before(now, starving) ? 0 : STARVING);
    if (told != seen && !atomic_compare_exchange_strong(word, &seen, told)) continue;
    if (!dibs__tick_before(now, by)) {
      /* Nothing is kept for who has left.  Others that starve say so again. */
      if (!is_kept(seen)) atomic_compare_exchange_strong(word, &told, told & ~STARVING);
      return false;
    }
    /* Race: an owner dies between freeing the word and waking.  Closed by the slice: nobody sleeps for longer. */
    dibs__tick until = is_kept(seen) ? dibs__tick_add_ms(now, GRACE_MS) : wait.look;
    dibs__word_wait(word, told, dibs__tick_min(by, until), true);
    wait.slept = !is_kept(seen) || !dibs__tick_before(dibs__tick_now(), until);
  }
}

bool dibs__side_write_begin(struct dibs__side *side, dibs__tick by) {
  dibs__word *word = &side->page->head.writer;
  uint32_t seen = 0;
  if (atomic_compare_exchange_strong(word, &seen, side->tag)) return true;
  return spin(side, word) || wait_for_it(side, by);
}

/* Frees the word if `tag` owns it.  Only the owner changes the tag, others only add flags. */
static void release(dibs__word *word, uint32_t tag) {
  uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);
  do /* else somebody wrote nonsense into the page, and it is not ours to free */
    if ((seen & OWNER) != tag) return;
  while (!atomic_compare_exchange_weak(word, &seen, seen & STARVING ? seen & ~OWNER : 0));
  if (seen & SLEEPERS) dibs__word_wake(word, 1, true);
}

void dibs__side_write_end(struct dibs__side *side) {
  /* Once the word is free another thread may own it and post: what is to be rung is taken along. */
  struct dibs__side_calls calls;
  dibs__side_calls_take(side, &calls);
  release(&side->page->head.writer, side->tag);
  /* Race: we die here, and what was posted is not rung.  Waiters look again each second (R17). */
  dibs__side_calls_ring(side, &calls);
}

void dibs__side_queue_heal(struct dibs__side *side) {
  dibs__word *word = &side->page->head.writer;
  uint32_t seen = atomic_load(word);
  if ((seen & SLOT_MASK) != side->slot + 1) return;
  /* Race: a sleeper takes over from the same dead owner.  Then the word is not what we saw, release leaves it, and the
   * sleeper tells everybody as we do. */
  release(word, seen & OWNER);
  dibs__side_ring_all(side);
}

uint32_t dibs__side_queue_tag(uint32_t slot, uint64_t generation) {
  return tag_of(slot, generation);
}
