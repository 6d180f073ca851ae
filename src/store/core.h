/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_CORE_H
#define DIBS_STORE_CORE_H
/*
 * An open store as the rooms above see it: sessions, mandates, the combiner, and the role of the receiver.
 *
 * The combiner.  Callers leave operations in a queue.  Whoever finds a session free leads: it carries what waits in one
 * driver call, names its successor, and only then hands out the answers.  A caller alone finds the session free and its
 * own operation waiting: no timer, no other thread.  Urgent operations have a session of their own where the engine has
 * more than one.
 *
 * Operations are counted objects of the rooms above, never on a stack: a caller may leave while its operation travels.
 * `done` of an operation is called exactly once for each time that it was handed in, by whatever thread carried it,
 * with no lock held; it may hand in more.
 *
 * The receiver.  One thread at a time sleeps in the driver's events(), runs the room's timers and leads what nobody
 * else does: a thread that waits for a lease anyway, or, as soon as a second one waits or something was started that
 * completes later, the service thread.
 */
#include "store/registry.h"

enum { DIBS__IO_MS = 5000 }; /* how long a driver call may take if nothing depends on it sooner */

/* May be asked again under the mandate that stands (an acquire may, a renewal may not). */
enum { DIBS__OP_FOLLOWS = 4 };

struct dibs__core;

/* What the room above does when something happens.  Called by the receiver, no lock held. */
struct dibs__core_hooks {
  void *room;
  const char *owner; /* whose store it is, for people; NULL: nobody says */
  void (*event)(void *room, const struct dibs__event *event);
  dibs__tick (*timers)(void *room, dibs__tick now); /* does what is due; returns when to be called again */
  void (*handed)(void *room);                       /* a batch of answers was handed out; must be quick */
  void (*untidy)(void *room);                       /* dibs__core_tidy is wanted; called by a leader, must be quick */
};

struct dibs__core_counts {
  uint64_t batches, operations, transactions;
};

dibs__status dibs__core_open(const char *uri, const char *module_path, const struct dibs__core_hooks *hooks,
                             struct dibs__core **core, struct dibs__said *said);
/* Ends the service thread.  Operations in flight must have ended before. */
void dibs__core_stop(struct dibs__core *core);
void dibs__core_close(struct dibs__core *core);
/* A core on the caller's own connection, in its transaction: no combiner, no threads; dibs__core_run carries what it is
 * given in the calling thread, and that, families, uri and close are all that may be called.  `outer` must stay open.
 */
dibs__status dibs__core_inside(struct dibs__core *outer, void *connection, struct dibs__core **core,
                               struct dibs__said *said);

const char *dibs__core_uri(const struct dibs__core *core);
uint32_t dibs__core_caps(const struct dibs__core *core);
uint32_t dibs__core_families(const struct dibs__core *core);
void dibs__core_count(struct dibs__core *core, struct dibs__core_counts *counts);

/* Prepares the head: family, verb, flags, bucket, the mandate as known now, the deadline. */
void dibs__core_head(struct dibs__core *core, struct dibs__op *op, uint16_t family, uint16_t verb, uint16_t flags,
                     uint16_t bucket, void (*done)(struct dibs__op *));

/* Neighbours in a list with the same non-zero group travel together; the core gives each group a number of its own.
 * At most max_batch of them.
 *
 * Hands in a list (linked by next) and blocks until all are answered, leading if need be.  At `by` it leaves: what was
 * not sent is taken back (TIMEOUT, done is called), what was sent goes on without us.  true: all were answered. */
bool dibs__core_run(struct dibs__core *core, struct dibs__op *list, dibs__tick by);
/* Hands in a list; somebody else carries it. */
void dibs__core_start(struct dibs__core *core, struct dibs__op *list);
/* Hands in a list that the caller carries soon, by dibs__core_lend. */
void dibs__core_leave(struct dibs__core *core, struct dibs__op *list);
/* An event loop lends itself: leads one batch if the engine is brief and a seat free, and comes back within LEND_MS;
 * what could not be begun in that time, or by another engine, is the receiver's. */
void dibs__core_lend(struct dibs__core *core);

/* Blocks until *word != seen or `by`, as receiver if nobody is. */
void dibs__core_wait(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by);
/* Wakes whoever waits in dibs__core_wait for this word, which was changed before.  Only the address is used: what the
 * word lives in may be gone by now. */
void dibs__core_wake(struct dibs__core *core, dibs__word *word);
/* The timers changed: the receiver, if there is one, must look again before `due`. */
void dibs__core_rouse(struct dibs__core *core, dibs__tick due);
/* From now on a thread of the library is the receiver.  false: there is none to be had. */
bool dibs__core_serve(struct dibs__core *core);

/* On a session of its own. */
/* The engine's housekeeping; for a thread that carries nobody's operations, one at a time. */
void dibs__core_tidy(struct dibs__core *core);

dibs__status dibs__core_list(struct dibs__core *core, const struct dibs__list *list, struct dibs__said *said);

/* The words of the latest trouble, for an operation that came back with it. */
void dibs__core_trouble(struct dibs__core *core, char *text, size_t size);

#endif
