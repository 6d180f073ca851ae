/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SIDE_IMPL_H
#define DIBS_DRIVERS_SQLITE_SIDE_IMPL_H
/*
 * The layout of FILE-dibs, and what side.c and side_queue.c share.
 *
 * Programs built by other compilers, against other C libraries, map the same page: widths are fixed, nothing in it is
 * a library's type, and every field is a lock-free atomic.  Every process that may open the database may write
 * garbage here: a value is checked before it is an index.
 *
 * The bytes of the gate's and the slots' locks, the magic and the layout's number are the same in all layouts, so
 * that every version notices others and a page that it does not know.
 */
#include "drivers/sqlite/side.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>

#define DIBS__PAGE_MAGIC UINT64_C(0x6567617073626964) /* "dibspage", least byte first */
#define DIBS__PAGE_LAYOUT UINT32_C(1)

enum {
  DIBS__PAGE_LINE = 64, /* a cache line of a processor: one side spins on it, and the other must not write beside it */
  DIBS__PAGE_HEAD = 4096
};

/* Locks are on bytes that the file never has. */
#define DIBS__LOCK_GATE (INT64_C(1) << 40)
#define DIBS__LOCK_SLOTS (DIBS__LOCK_GATE + 1)
#define DIBS__LOCK_COPY (DIBS__LOCK_GATE - 1)

/* The identity of a file, beyond its name. */
struct dibs__page_file {
  _Atomic uint64_t device, inode; /* both 0: unknown */
  _Atomic uint64_t born_ns;       /* inodes are reused; 0 if the file system has none */
};

struct dibs__page_head {
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t magic; /* stored last */
  _Atomic uint32_t layout;
  _Atomic uint32_t slots, ring, buckets;
  _Atomic uint64_t size;

  /* Written under the gate while no other process is there. */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t boot[5]; /* 36 characters, then zeros */
  _Atomic int64_t clock_offset_ns;
  _Atomic uint64_t generations; /* where a slot's count began, so that no session of a lost page occurs again */

  alignas(DIBS__PAGE_LINE) struct dibs__page_file page, database;

  /* Written under the gate or the writer lock.  `standing`: 0 no incarnation is valid, odd it is being written. */
  alignas(DIBS__PAGE_LINE) _Atomic uint32_t standing;
  _Atomic uint32_t epoch;
  _Atomic uint32_t incarnation[5];

  /* Written under the writer lock. */
  alignas(DIBS__PAGE_LINE) _Atomic int64_t latest_ms; /* the largest instant of the store's clock */
  _Atomic uint64_t copies;                            /* how often the whole log was copied into the database */
  alignas(DIBS__PAGE_LINE) dibs__word writer;         /* 0 free, else the owner's tag; see side_queue.c */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t marks[DIBS__BUCKETS];
};

struct dibs__page_hint {
  _Atomic uint64_t what, id[2], fence;
  _Atomic int64_t held_until_ns;
};

struct dibs__page_slot {
  /* Written by the holder of the writer lock; the notifier also by the owner. */
  alignas(DIBS__PAGE_LINE) dibs__word notifier;
  _Atomic uint32_t tail;    /* hints put in so far */
  _Atomic uint32_t dropped; /* 1: some were dropped */
  /* Written by the owner. */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t generation; /* raised at each use, under the gate */
  _Atomic uint32_t head;                                /* hints taken out so far */
  _Atomic uint32_t pid;                                 /* 0: none */
  alignas(DIBS__PAGE_LINE) struct dibs__page_hint ring[DIBS__SIDE_RING];
};

struct dibs__page {
  alignas(DIBS__PAGE_HEAD) struct dibs__page_head head;
  alignas(DIBS__PAGE_HEAD) struct dibs__page_slot slots[DIBS__SIDE_SLOTS];
};

static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a lock inside an atomic is one per process");
static_assert(sizeof(struct dibs__page_hint) == 40 && sizeof(struct dibs__page_slot) == 768, "the layout is fixed");
static_assert(sizeof(struct dibs__page_head) == 1280 && sizeof(struct dibs__page) == 4096 + 1024 * 768, "the layout");
static_assert((DIBS__SIDE_RING & (DIBS__SIDE_RING - 1)) == 0, "positions in the ring wrap at 2^32");

struct dibs__side {
  /* Immutable after open. */
  struct dibs__page *page;
  char *path;
  int fd;           /* a description of its own: its locks belong to this open store alone */
  uint32_t slot;    /* ours */
  uint32_t tag;     /* our value of `writer` */
  uint64_t session; /* ours */
  uint64_t process; /* dibs__process_generation of the opener */
  /* Of the thread that opens and closes. */
  bool gate;  /* held */
  bool fresh; /* the file was made by this open, and is unused yet */
  /* Guarded by the writer lock. */
  bool orphaned;                        /* it was taken over from a dead owner, whose hints may be missing */
  bool posted;                          /* some bit of `call` is set */
  uint64_t call[DIBS__SIDE_SLOTS / 64]; /* slots that write_end notifies */
  /* Guarded by the lock of side.c. */
  struct dibs__side *next;
  _Atomic bool copies; /* a thread of this store has DIBS__LOCK_COPY */
  /* Of the slot's consumer. */
  uint32_t heard; /* the notifier when wait last returned: hints posted until then are in the buffer */
};

/* The parts of a session number.  false: it is none. */
static inline bool dibs__side_split(uint64_t session, uint32_t *slot, uint64_t *generation) {
  uint64_t location = session & 0xffff;
  *slot = (uint32_t)location - 1;
  *generation = session >> 16;
  return location >= 1 && location <= DIBS__SIDE_SLOTS;
}

/* Is the slot's byte locked by another open store?  Our own locks are invisible. */
bool dibs__side_slot_locked(struct dibs__side *side, uint32_t slot);

/* Flags beside the owner in the writer's word: a waiter may be asleep; a waiter has waited for long. */
#define DIBS__QUEUE_SLEEPERS (UINT32_C(1) << 31)
#define DIBS__QUEUE_STARVING (UINT32_C(1) << 30)
/* The tag of an owner of the writer lock. */
uint32_t dibs__side_queue_tag(uint32_t slot, uint64_t generation);
/* When a slot is taken: frees a writer lock that its former owner left behind, and notifies everybody that hints may be
 * missing. */
void dibs__side_queue_heal(struct dibs__side *side);

/* The slots to notify. */
struct dibs__side_calls {
  bool all, some;
  uint64_t slots[DIBS__SIDE_SLOTS / 64]; /* with `some` */
};

/* ---- The file and its locks (side.c): these use fd, path, page and gate only ---- */

/* The identity of a file; false with errno. */
struct dibs__file_id {
  uint64_t device, inode, born_ns;
};

#endif
