/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SIDE_H
#define DIBS_DRIVERS_SQLITE_SIDE_H
/*
 * The side file of an embedded store, FILE-dibs beside FILE: how processes that share the database communicate
 * without SQLite.  A shared page (mapped read-write, preallocated so that a full disk can't raise SIGBUS) and locks
 * on bytes of the same file (OFD locks: the kernel drops them when a process dies, however it dies).
 *
 *   gate      one process at a time opens the store                      OFD lock on one byte
 *   slots     one per open store: alive while its byte is locked         OFD lock on one byte each
 *   header    boot id, clock offset, dev and inode of the database, incarnation, last epoch, largest boot time
 *   marks     per bucket the largest fence granted (DIBS__BUCKETS words)
 *   writer    a robust queue before BEGIN IMMEDIATE: a futex word that names its owner's slot and generation; a waiter
 *             that has slept a while checks whether the kernel still has the owner's byte locked, and takes over if not
 *   copies    one store at a time copies SQLite's log into the database    OFD lock on one byte, and a count
 *   mailbox   per slot: a notifier (futex word) and a ring buffer of hints, written only by the holder of `writer`
 *
 * Nothing in the page decides what the database contains: it wakes, turns a doubt into a new epoch, and hints at what
 * was committed there.  A hint is seen whole or not at all, and may be lost.
 */
#include "store/store.h"

enum { DIBS__SIDE_SLOTS = 1024, DIBS__SIDE_RING = 16 };

struct dibs__side;

enum dibs__side_state {
  DIBS__SIDE_SAME = 0, /* the incarnation in the page goes on */
  DIBS__SIDE_NEW = 1   /* another boot, another file, no page yet: a new incarnation must begin */
};

/* What the page knows of the incarnation; the driver compares it with the database's own copy. */
struct dibs__side_memory {
  enum dibs__side_state state;
  dibs__incarnation incarnation; /* with SAME */
  uint32_t epoch;                /* the last one known; also with NEW, if there was one: a lower bound */
};

/* Opens FILE-dibs, takes the gate and a slot.  It is created with `mode` exactly, or with the permissions (and, by
 * root, the owner) of an existing database.  The gate is held on OK: then open or create the database, match it, begin
 * a new incarnation if needed (dibs__side_begin), and leave the gate.  Refuses with UNSUPPORTED while another live
 * process has another boot id or clock offset; UNAVAILABLE if the gate or a slot is not free by `by` or the disk is
 * full; DENIED; CORRUPT if it is damaged while another process uses it; TOO_NEW; NO_MEMORY.  On failure it leaves no
 * new file, nor when the side is closed before the gate is left or an incarnation begun. */
dibs__status dibs__side_open(const char *database, uint32_t mode, dibs__tick by, struct dibs__side **side,
                             struct dibs__side_memory *memory, struct dibs__result *result);
/* Under the gate, once the database exists: does the page belong to this very file (dev, inode, birth)?  If not, the
 * state is NEW; but UNAVAILABLE while another live process uses the file that was replaced. */
dibs__status dibs__side_match_file(struct dibs__side *side, const char *database, struct dibs__side_memory *memory,
                                   struct dibs__result *result);
/* Under the gate or the writer lock: a new incarnation has begun (already committed in the database).  Resets marks. */
void dibs__side_begin(struct dibs__side *side, const dibs__incarnation *incarnation, uint32_t epoch);
void dibs__side_gate_leave(struct dibs__side *side);
void dibs__side_close(struct dibs__side *side); /* releases slot and locks; NULL is fine */

/* This open store's session: slot and generation in one number, never 0.  Alive while its byte is locked and the slot
 * has no new owner. */
uint64_t dibs__side_session(const struct dibs__side *side);
bool dibs__side_alive(struct dibs__side *side, uint64_t session);
uint32_t dibs__side_pid(struct dibs__side *side, uint64_t session); /* 0 when not alive */

/* The writer queue.  false: no turn by `by`.  Not recursive; the thread that began ends it.  After a takeover from a
 * dead owner SQLite may still be busy for an instant, until the kernel has dropped that process's other locks. */
bool dibs__side_write_begin(struct dibs__side *side, dibs__tick by);
void dibs__side_write_end(struct dibs__side *side);

/* Under the writer lock, after commit: remembers the largest fence of a bucket (may be none), and the store's clock,
 * which is the boot-time clock in ms: a page from the future belongs to another boot. */
void dibs__side_mark(struct dibs__side *side, uint16_t bucket, dibs__fence fence, dibs__when now);
/* The largest fence remembered for a bucket: a database below it is an older one. */
dibs__fence dibs__side_marked(const struct dibs__side *side, uint16_t bucket);
uint32_t dibs__side_epoch(const struct dibs__side *side);

/* SQLite before 3.51.3 may lose commits if the log starts again while a checkpoint begins that finds all of the log
 * copied by an earlier one.  So one store at a time copies it, and only if it has committed since the last whole copy:
 * then the log can't start again meanwhile.  (A copy by another program, or a commit outside of the writer queue, is
 * not seen here.)  false: another store copies it now, or has copied all of it since `committed`, our last commit's
 * dibs__side_copies. */
bool dibs__side_copy_begin(struct dibs__side *side, uint64_t committed);
void dibs__side_copy_end(struct dibs__side *side);
void dibs__side_copied(struct dibs__side *side); /* all of it; under the writer lock, between begin and end */
uint64_t dibs__side_copies(const struct dibs__side *side);

/* Under the writer lock, after commit: puts a hint into the session's ring buffer and notifies it once
 * dibs__side_write_end runs (so that the woken process does not collide with the lock).  A full buffer becomes "check
 * everything". */
void dibs__side_post(struct dibs__side *side, uint64_t session, const struct dibs__event *event);
/* The same to every session; a session that has not taken the same hint yet gets it once. */
void dibs__side_post_all(struct dibs__side *side, enum dibs__event_what what);
/* The owner of the slot: takes hints out; *all is set if some were dropped. */
size_t dibs__side_take(struct dibs__side *side, struct dibs__event *events, size_t cap, bool *all);
/* Sleeps on this slot's notifier until a hint is posted, dibs__side_wake, or `by`. */
void dibs__side_wait(struct dibs__side *side, dibs__tick by);
void dibs__side_wake(struct dibs__side *side); /* this slot's notifier; any thread */

#endif
