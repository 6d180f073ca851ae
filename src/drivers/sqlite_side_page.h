/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SIDE_PAGE_H
#define DIBS_DRIVERS_SQLITE_SIDE_PAGE_H
/*
 * The layout of FILE-dibs, and what the parts of the side file (open, queue, mail) share.  For sqlite_side*.c only.
 *
 * Programs built by other compilers, against other C libraries, map the same page: widths are fixed, nothing in it is
 * a type of somebody's library, and every field is a lock-free atomic.  Whoever may open the database may write any
 * nonsense here: what is read is checked before it is an index.
 *
 * The places of the gate's and the slots' locks, the magic and the layout's number are the same in all layouts, so that
 * every version can tell that it is not alone and that it does not know the page.
 */
#include "drivers/sqlite_side.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>

#define DIBS__PAGE_MAGIC UINT64_C(0x6567617073626964) /* "dibspage", where the least byte comes first */
#define DIBS__PAGE_LAYOUT UINT32_C(1)

enum {
  DIBS__PAGE_LINE = 64, /* of a processor's cache: what one side spins on, the other does not write beside */
  DIBS__PAGE_HEAD = 4096
};

/* Locks lie on bytes that the file will never have. */
#define DIBS__LOCK_GATE (INT64_C(1) << 40)
#define DIBS__LOCK_SLOTS (DIBS__LOCK_GATE + 1)

/* What a file is, beyond its name. */
struct dibs__page_file {
  _Atomic uint64_t device, inode; /* both 0: not known yet */
  _Atomic uint64_t born_ns;       /* inodes are used again; 0 where the file system does not tell */
};

struct dibs__page_head {
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t magic; /* stored last */
  _Atomic uint32_t layout;
  _Atomic uint32_t slots, ring, buckets;
  _Atomic uint64_t size;

  /* Written under the gate while nobody else is there. */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t boot[5]; /* 36 characters, then zeros */
  _Atomic int64_t clock_offset_ns;
  _Atomic uint64_t generations; /* where a slot's count began, so that no session of a lost page comes back */

  alignas(DIBS__PAGE_LINE) struct dibs__page_file page, database;

  /* Written under the gate or the writer lock.  `standing`: 0 no incarnation stands, odd it is being written. */
  alignas(DIBS__PAGE_LINE) _Atomic uint32_t standing;
  _Atomic uint32_t epoch;
  _Atomic uint32_t incarnation[5];

  /* Written under the writer lock. */
  alignas(DIBS__PAGE_LINE) _Atomic int64_t latest_ms; /* the largest instant of the store's clock */
  alignas(DIBS__PAGE_LINE) dibs__word writer;         /* 0 free, else the owner's tag; see sqlite_side_queue.c */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t marks[DIBS__BUCKETS];
};

struct dibs__page_hint {
  _Atomic uint64_t what, id[2], fence;
  _Atomic int64_t held_until_ns;
};

struct dibs__page_slot {
  /* Written by whoever holds the writer lock; the bell also by the owner. */
  alignas(DIBS__PAGE_LINE) dibs__word bell;
  _Atomic uint32_t tail;    /* hints put in so far */
  _Atomic uint32_t dropped; /* 1: some were not */
  /* Written by the owner. */
  alignas(DIBS__PAGE_LINE) _Atomic uint64_t generation; /* raised at each taking, under the gate */
  _Atomic uint32_t head;                                /* hints taken out so far */
  _Atomic uint32_t pid;                                 /* 0: nobody */
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
  int fd;           /* one description of its own: its locks are this open store's and nobody else's */
  uint32_t slot;    /* ours */
  uint32_t tag;     /* what we write into `writer` */
  uint64_t session; /* ours */
  uint64_t process; /* dibs__process_generation of the opener */
  /* Of the thread that opens and closes. */
  bool gate;  /* held */
  bool fresh; /* the file was made by this open, and nobody has used it yet */
  /* Guarded by the writer lock. */
  bool orphaned;                        /* it was taken from a dead owner, whose hints may be missing */
  bool posted;                          /* some bit of `call` is set */
  uint64_t call[DIBS__SIDE_SLOTS / 64]; /* slots whose bells write_end rings */
  /* Guarded by the lock of sqlite_side_fork.c. */
  struct dibs__side *next;
  /* Of the slot's consumer. */
  uint32_t heard; /* the bell when wait last returned: what was posted until then is in the ring */
};

/* The parts of a session number.  false: it is none. */
static inline bool dibs__side_split(uint64_t session, uint32_t *slot, uint64_t *generation) {
  uint64_t place = session & 0xffff;
  *slot = (uint32_t)place - 1;
  *generation = session >> 16;
  return place >= 1 && place <= DIBS__SIDE_SLOTS;
}

/* Is the slot's byte locked by another open store?  Our own locks do not show. */
bool dibs__side_slot_locked(struct dibs__side *side, uint32_t slot);

/* Flags beside the owner in the writer's word: somebody may be asleep; somebody has waited for long. */
#define DIBS__QUEUE_SLEEPERS (UINT32_C(1) << 31)
#define DIBS__QUEUE_STARVING (UINT32_C(1) << 30)
/* The tag of an owner of the writer lock. */
uint32_t dibs__side_queue_tag(uint32_t slot, uint64_t generation);
/* When a slot is taken: frees a writer lock that its former owner left behind, and tells all that hints may be
 * missing. */
void dibs__side_queue_heal(struct dibs__side *side);

/* Whose bells are to ring. */
struct dibs__side_calls {
  bool all, some;
  uint64_t slots[DIBS__SIDE_SLOTS / 64]; /* with `some` */
};
/* Under the writer lock: takes what was posted for. */
void dibs__side_calls_take(struct dibs__side *side, struct dibs__side_calls *calls);
/* Not under it, so that the woken do not run into it. */
void dibs__side_calls_ring(struct dibs__side *side, const struct dibs__side_calls *calls);
/* Everybody looks at everything. */
void dibs__side_ring_all(struct dibs__side *side);

/* A forked child shares the description and would keep its parent's locks alive: children close the descriptors of
 * all sides on the list.  Forks wait between hold and let_go; side->fd changes only there. */
bool dibs__side_fork_add(struct dibs__side *side); /* false: no memory */
void dibs__side_fork_remove(struct dibs__side *side);
void dibs__side_fork_hold(void);
void dibs__side_fork_let_go(void);

/* ---- The file and its locks (sqlite_side_file.c): these know fd, path, page and gate only ---- */

/* Opens or creates FILE-dibs and takes the gate. */
dibs__status dibs__side_file_open(struct dibs__side *side, const char *database, uint32_t mode, dibs__tick by,
                                  struct dibs__said *said);
/* Under the gate: gives the file its size and maps it.  *known: it holds a page of this layout.  Else it is all zeros
 * now, and nobody lives.  UNAVAILABLE CORRUPT TOO_NEW. */
dibs__status dibs__side_file_map(struct dibs__side *side, bool *known, struct dibs__said *said);
/* Under the gate: takes the file away, if it was made here and `fresh`; unmaps, gives back all locks, closes. */
void dibs__side_file_close(struct dibs__side *side);
/* What a file is; false with errno. */
struct dibs__file_id {
  uint64_t device, inode, born_ns;
};
bool dibs__side_file_id(int folder, const char *path, int flags, struct dibs__file_id *id);

/* false with errno: EAGAIN when another open store has it. */
bool dibs__side_lock(struct dibs__side *side, int64_t byte);
void dibs__side_unlock(struct dibs__side *side, int64_t byte);
/* Does another open store hold a slot?  *slot: the first one. */
bool dibs__side_somebody(struct dibs__side *side, uint32_t *slot);

#endif
