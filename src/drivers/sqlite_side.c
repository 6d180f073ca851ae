/* SPDX-License-Identifier: MIT */
/*
 * The side file: opening it, one life after another, slots, and what it remembers.  The file and its locks are in
 * sqlite_side_file.c, the writers' queue in sqlite_side_queue.c, hints and bells in sqlite_side_mail.c.
 *
 * Opening, all under the gate: file, size and mapping; is it the same life (boot, clock, file)?  If not, and somebody
 * lives: refuse.  If not, and nobody lives: forget the incarnation *first*, then write down the new life, so that
 * whoever is killed in between leaves a page without an incarnation and never an old one under a new boot.  Then a
 * slot.
 */
#include "drivers/sqlite_side_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The store's clock is read and rounded at different instants by different processes. */
enum { CLOCK_SLACK_MS = 10 };
#define GENERATIONS_MASK ((UINT64_C(1) << 40) - 1)
#define GENERATION_END (UINT64_C(1) << 46) /* a session is a positive number of 64 bits */

/* ---- Which life ---- */

struct life {
  uint64_t boot[5];
  int64_t clock_offset_ns;
  bool told; /* false: the system does not say; then only a living process proves that the boot is the same */
  struct dibs__file_id page;
};

static bool read_life(const struct dibs__side *side, struct life *life) {
  char id[40] = "";
  memset(life, 0, sizeof *life);
  life->told = dibs__boot_id(id);
  memcpy(life->boot, id, sizeof life->boot);
  life->clock_offset_ns = dibs__boot_clock_offset_ns();
  return dibs__side_file_id(side->fd, "", AT_EMPTY_PATH, &life->page);
}

static bool same_file(const struct dibs__page_file *known, const struct dibs__file_id *id) {
  return atomic_load(&known->device) == id->device && atomic_load(&known->inode) == id->inode &&
         atomic_load(&known->born_ns) == id->born_ns;
}

static void remember_file(struct dibs__page_file *known, const struct dibs__file_id *id) {
  atomic_store(&known->device, id->device);
  atomic_store(&known->inode, id->inode);
  atomic_store(&known->born_ns, id->born_ns);
}

static bool same_life(struct dibs__page_head *head, const struct life *life) {
  /* INT64_MIN: nobody knows the offset, and two who do not know need not have the same. */
  bool same = life->clock_offset_ns != INT64_MIN && atomic_load(&head->clock_offset_ns) == life->clock_offset_ns;
  for (int i = 0; i < 5; i++) same = same && atomic_load(&head->boot[i]) == life->boot[i];
  /* A clock that stands before what it has shown is another clock, whatever the ids say (a machine set back). */
  int64_t now_ms = dibs__tick_now().ns / DIBS__NS_PER_MS;
  return same && atomic_load(&head->latest_ms) <= now_ms + CLOCK_SLACK_MS && same_file(&head->page, &life->page);
}

static void begin_life(struct dibs__page_head *head, const struct life *life) {
  atomic_store(&head->standing, 0);
  uint64_t generations;
  dibs__random(&generations, sizeof generations);
  atomic_store(&head->generations, generations & GENERATIONS_MASK);
  atomic_store(&head->latest_ms, 0);
  atomic_store(&head->writer, 0);
  remember_file(&head->database, &(struct dibs__file_id){0, 0, 0});
  remember_file(&head->page, &life->page);
  atomic_store(&head->clock_offset_ns, life->clock_offset_ns);
  for (int i = 0; i < 5; i++) atomic_store(&head->boot[i], life->boot[i]);
}

static void fill_page(struct dibs__page_head *head, const struct life *life) {
  begin_life(head, life);
  atomic_store(&head->layout, DIBS__PAGE_LAYOUT);
  atomic_store(&head->slots, DIBS__SIDE_SLOTS);
  atomic_store(&head->ring, DIBS__SIDE_RING);
  atomic_store(&head->buckets, DIBS__BUCKETS);
  atomic_store(&head->size, sizeof(struct dibs__page));
  /* Race: killed before this line: the next one finds no page, and fills it anew. */
  atomic_store(&head->magic, DIBS__PAGE_MAGIC);
}

static dibs__status enter_life(struct dibs__side *side, bool known, struct dibs__said *said) {
  struct dibs__page_head *head = &side->page->head;
  struct life life;
  if (!read_life(side, &life)) {
    dibs__say(said, "%s can't be examined: %s", side->path, strerror(errno));
    return DIBS_UNAVAILABLE;
  }
  if (!known) {
    fill_page(head, &life);
    return DIBS_OK;
  }
  uint32_t slot;
  bool same = same_life(head, &life), somebody = dibs__side_somebody(side, &slot);
  if (!same && somebody) {
    dibs__say(said,
              "%s: process %u uses the store under another boot or boot-time clock (a container with a time namespace "
              "of its own, another machine); their leases can't be compared: stop one side",
              side->path, atomic_load(&side->page->slots[slot].pid));
    return DIBS_UNSUPPORTED;
  }
  if (!same || (!somebody && !life.told)) begin_life(head, &life);
  return DIBS_OK;
}

/* ---- What it remembers ---- */

/* Waits for a begin() under the writer lock to come to an end; one that was killed half way never does. */
enum { TORN_TRIES = 1000 };

static bool read_incarnation(struct dibs__page_head *head, dibs__life *incarnation) {
  for (int i = 0; i < TORN_TRIES; i++, dibs__spin_pause()) {
    uint32_t before = atomic_load(&head->standing), words[5];
    if (before == 0) return false;
    for (int k = 0; k < 5; k++) words[k] = atomic_load(&head->incarnation[k]);
    if (before % 2 != 0 || atomic_load(&head->standing) != before) continue;
    memcpy(incarnation->b, words, sizeof incarnation->b);
    return true;
  }
  return false;
}

static void read_memory(struct dibs__side *side, struct dibs__side_memory *memory) {
  memset(memory, 0, sizeof *memory);
  bool stands = read_incarnation(&side->page->head, &memory->incarnation);
  memory->life = stands ? DIBS__SIDE_SAME : DIBS__SIDE_NEW;
  memory->epoch = dibs__side_epoch(side);
}

void dibs__side_begin(struct dibs__side *side, const dibs__life *incarnation, uint32_t epoch) {
  struct dibs__page_head *head = &side->page->head;
  side->fresh = false;
  /* The epoch first: whoever reads the new incarnation has seen it, and one that is killed here costs an epoch. */
  uint32_t last = atomic_load(&head->epoch);
  while (last < epoch && !atomic_compare_exchange_weak(&head->epoch, &last, epoch)) {
  }
  uint32_t writing = atomic_load(&head->standing) | 1, words[5];
  atomic_store(&head->standing, writing);
  memcpy(words, incarnation->b, sizeof words);
  for (int i = 0; i < 5; i++) atomic_store(&head->incarnation[i], words[i]);
  for (int i = 0; i < DIBS__BUCKETS; i++) atomic_store(&head->marks[i], 0);
  uint32_t written = writing + 1;
  atomic_store(&head->standing, written == 0 ? 2 : written);
}

void dibs__side_mark(struct dibs__side *side, uint16_t bucket, dibs__fence fence, dibs__when now) {
  struct dibs__page_head *head = &side->page->head;
  if (bucket < DIBS__BUCKETS) {
    uint64_t mark = atomic_load_explicit(&head->marks[bucket], memory_order_relaxed);
    while (mark < fence.v && !atomic_compare_exchange_weak(&head->marks[bucket], &mark, fence.v)) {
    }
  }
  int64_t latest = atomic_load_explicit(&head->latest_ms, memory_order_relaxed);
  while (latest < now.ms && !atomic_compare_exchange_weak(&head->latest_ms, &latest, now.ms)) {
  }
}

dibs__fence dibs__side_marked(const struct dibs__side *side, uint16_t bucket) {
  if (bucket >= DIBS__BUCKETS) return DIBS__FENCE_NONE;
  return (dibs__fence){atomic_load(&side->page->head.marks[bucket])};
}

uint32_t dibs__side_epoch(const struct dibs__side *side) {
  return atomic_load(&side->page->head.epoch);
}

dibs__status dibs__side_match_file(struct dibs__side *side, const char *database, struct dibs__side_memory *memory,
                                   struct dibs__said *said) {
  struct dibs__page_head *head = &side->page->head;
  struct dibs__file_id id;
  if (!dibs__side_file_id(AT_FDCWD, database, 0, &id)) {
    dibs__say(said, "%s can't be examined: %s", database, strerror(errno));
    return DIBS_UNAVAILABLE;
  }
  if (same_file(&head->database, &id)) return DIBS_OK;

  uint32_t slot;
  if (atomic_load(&head->database.inode) != 0 && dibs__side_somebody(side, &slot)) {
    /* It goes on in the file that this name stood for: two stores would grant the same names. */
    dibs__say(said, "%s was replaced by another file while process %u has the former one open: stop it first", database,
              atomic_load(&side->page->slots[slot].pid));
    return DIBS_UNAVAILABLE;
  }
  atomic_store(&head->standing, 0); /* before the file is remembered, as in begin_life */
  remember_file(&head->database, &id);
  read_memory(side, memory);
  return DIBS_OK;
}

/* ---- Slots ---- */

static dibs__status take_slot(struct dibs__side *side, struct dibs__said *said) {
  uint32_t slot = 0;
  while (slot < DIBS__SIDE_SLOTS && !dibs__side_lock(side, DIBS__LOCK_SLOTS + slot)) {
    if (errno != EAGAIN) {
      dibs__say(said, "%s can't be locked: %s", side->path, strerror(errno));
      return DIBS_UNAVAILABLE;
    }
    slot++;
  }
  if (slot == DIBS__SIDE_SLOTS) {
    dibs__say(said, "%s: the store is open %d times already, and that is the limit: close some", side->path,
              DIBS__SIDE_SLOTS);
    return DIBS_UNAVAILABLE;
  }
  struct dibs__page_slot *mine = &side->page->slots[slot];
  side->slot = slot;
  dibs__side_queue_heal(side);

  uint64_t generation = atomic_load(&mine->generation) + 1, first = atomic_load(&side->page->head.generations);
  if (generation <= first || generation >= GENERATION_END) generation = (first & GENERATIONS_MASK) + 1;
  /* What the former owner left is not for us; only consumers move `head`. */
  atomic_store(&mine->head, atomic_load(&mine->tail));
  atomic_store(&mine->dropped, 0);
  side->heard = atomic_load(&mine->bell);
  atomic_store(&mine->pid, dibs__process_id());
  atomic_store(&mine->generation, generation);
  side->session = generation << 16 | (slot + 1);
  side->tag = dibs__side_queue_tag(slot, generation);
  return DIBS_OK;
}

uint64_t dibs__side_session(const struct dibs__side *side) {
  return side->session;
}

bool dibs__side_alive(struct dibs__side *side, uint64_t session) {
  uint32_t slot;
  uint64_t generation;
  if (session == side->session) return true; /* our own locks do not show */
  if (!dibs__side_split(session, &slot, &generation) || slot == side->slot) return false;
  /* Race: the owner dies and the slot is given anew between the two.  Its new owner raises the generation as soon as
   * it has the byte; the instant between is answered by "alive", and by the truth when asked again. */
  return dibs__side_slot_locked(side, slot) && atomic_load(&side->page->slots[slot].generation) == generation;
}

uint32_t dibs__side_pid(struct dibs__side *side, uint64_t session) {
  uint32_t slot;
  uint64_t generation;
  if (!dibs__side_split(session, &slot, &generation) || !dibs__side_alive(side, session)) return 0;
  return atomic_load(&side->page->slots[slot].pid);
}

/* ---- Opening and closing ---- */

void dibs__side_gate_leave(struct dibs__side *side) {
  if (!side->gate) return;
  side->fresh = false;
  dibs__side_unlock(side, DIBS__LOCK_GATE);
  side->gate = false;
}

void dibs__side_close(struct dibs__side *side) {
  if (!side) return;
  /* In a forked child the descriptor is closed and the page not mapped; the numbers may mean something else by now. */
  if (side->process == dibs__process_generation()) {
    if (side->session != 0) {
      dibs__side_queue_heal(side);
      atomic_store(&side->page->slots[side->slot].pid, 0);
    }
    dibs__side_file_close(side);
    dibs__side_fork_remove(side);
  }
  free(side->path);
  free(side);
}

dibs__status dibs__side_open(const char *database, uint32_t mode, dibs__tick by, struct dibs__side **side,
                             struct dibs__side_memory *memory, struct dibs__said *said) {
  *side = NULL;
  memset(memory, 0, sizeof *memory);
  struct dibs__side *mine = calloc(1, sizeof *mine);
  if (!mine) return DIBS_NO_MEMORY;
  mine->fd = -1;
  mine->process = dibs__process_generation();

  dibs__status status = DIBS_NO_MEMORY;
  bool known;
  size_t size = strlen(database) + sizeof "-dibs";
  mine->path = malloc(size);
  if (!mine->path) goto out;
  snprintf(mine->path, size, "%s-dibs", database);
  if (!dibs__side_fork_add(mine)) goto out;

  status = dibs__side_file_open(mine, database, mode, by, said);
  if (status == DIBS_OK) status = dibs__side_file_map(mine, &known, said);
  if (status == DIBS_OK) status = enter_life(mine, known, said);
  if (status == DIBS_OK) status = take_slot(mine, said);
  if (status != DIBS_OK) goto out;
  read_memory(mine, memory);
  *side = mine;
  mine = NULL;
out:
  dibs__side_close(mine);
  return status;
}
