/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SIDE_H
#define DIBS_DRIVERS_SQLITE_SIDE_H
/*
 * The side file of an embedded store, FILE-dibs beside FILE: what processes that share the database tell each other
 * without SQLite.  A shared page (mapped read-write, preallocated so that a full disk can't raise SIGBUS) and locks on
 * bytes of the same file (OFD locks: the kernel drops them when a process dies, however it dies).
 *
 *   gate      one process at a time opens the store                      OFD lock on one byte
 *   slots     one per open store: alive while its byte is locked         OFD lock on one byte each
 *   header    boot id, clock offset, dev and inode of the database, incarnation, last epoch, largest boot time
 *   marks     per bucket the largest fence granted (DIBS__BUCKETS words)
 *   writer    a robust queue before BEGIN IMMEDIATE: a futex word that names its owner's slot and generation; a waiter
 *             that has slept a while asks the kernel whether the owner's byte is still locked, and takes over if not
 *   mailbox   per slot: a bell (futex word) and a ring of hints, written only by whoever holds `writer`
 *
 * Nothing in the page decides what the database says: it wakes, makes a doubt into a new epoch, and hints at what was
 * committed there.  A hint is seen whole or not at all, and may be lost.
 */
#include "store/store.h"

enum { DIBS__SIDE_SLOTS = 1024, DIBS__SIDE_RING = 16 };

struct dibs__side;

enum dibs__side_life {
  DIBS__SIDE_SAME = 0, /* the incarnation that the page remembers goes on */
  DIBS__SIDE_NEW = 1   /* another boot, another file, no page yet: a new incarnation must begin */
};

/* What the page remembers of the incarnation; the driver compares it with the database's own copy. */
struct dibs__side_memory {
  enum dibs__side_life life;
  dibs__life incarnation; /* with SAME */
  uint32_t epoch;         /* the last one it saw; also with NEW, if any was to be seen: a lower bound */
};

/* Opens FILE-dibs, takes the gate and a slot.  It is created with `mode` exactly, or with the permissions (and, by
 * root, the owner) of the database where that exists.  The gate is held on OK: then open or create the database, match
 * it, begin a new incarnation if need be (dibs__side_begin), and leave the gate.  Refuses with UNSUPPORTED while
 * another live process has another boot id or clock offset; UNAVAILABLE when the gate or a slot can't be had by `by` or
 * the disk is full; DENIED; CORRUPT when it is damaged while somebody uses it; TOO_NEW; NO_MEMORY.  Leaves no file that
 * was not there when it fails, nor when the side is closed before the gate is left or an incarnation begun. */
dibs__status dibs__side_open(const char *database, uint32_t mode, dibs__tick by, struct dibs__side **side,
                             struct dibs__side_memory *memory, struct dibs__said *said);
/* Under the gate, once the database exists: is the page that of this very file (dev, inode, birth)?  Else life is NEW;
 * but UNAVAILABLE while another process lives, which goes on with the file that was replaced. */
dibs__status dibs__side_match_file(struct dibs__side *side, const char *database, struct dibs__side_memory *memory,
                                   struct dibs__said *said);
/* Under the gate or the writer lock: a new incarnation stands (already committed in the database). Resets marks. */
void dibs__side_begin(struct dibs__side *side, const dibs__life *incarnation, uint32_t epoch);
void dibs__side_gate_leave(struct dibs__side *side);
void dibs__side_close(struct dibs__side *side); /* gives slot and locks back; NULL is fine */

/* This open store's session: slot and generation in one number, never 0.  Alive while its byte is locked and the slot
 * has not been given anew. */
uint64_t dibs__side_session(const struct dibs__side *side);
bool dibs__side_alive(struct dibs__side *side, uint64_t session);
uint32_t dibs__side_pid(struct dibs__side *side, uint64_t session); /* 0 when not alive */

/* The writer queue.  false: not by `by`.  Not recursive; ended by the thread that began.  After a takeover from a dead
 * owner SQLite may still say busy for an instant, until the kernel has dropped that process's other locks. */
bool dibs__side_write_begin(struct dibs__side *side, dibs__tick by);
void dibs__side_write_end(struct dibs__side *side);

/* Under the writer lock, after commit: remembers the largest fence of a bucket (may be none), and the store's clock,
 * which is the boot-time clock in ms: a page from the future is of another life. */
void dibs__side_mark(struct dibs__side *side, uint16_t bucket, dibs__fence fence, dibs__when now);
/* The largest fence remembered for a bucket: a database that is below it is not what it was. */
dibs__fence dibs__side_marked(const struct dibs__side *side, uint16_t bucket);
uint32_t dibs__side_epoch(const struct dibs__side *side);

/* Under the writer lock, after commit: puts a hint into the session's ring and rings its bell once
 * dibs__side_write_end runs (so that the woken does not run into the lock).  A full ring becomes "look at all". */
void dibs__side_post(struct dibs__side *side, uint64_t session, const struct dibs__event *event);
/* The owner of the slot: takes hints out; *all is set when some were dropped. */
size_t dibs__side_take(struct dibs__side *side, struct dibs__event *events, size_t cap, bool *all);
/* Sleeps on the own bell until something is posted, dibs__side_wake, or `by`. */
void dibs__side_wait(struct dibs__side *side, dibs__tick by);
void dibs__side_wake(struct dibs__side *side); /* own bell; any thread */

#endif
