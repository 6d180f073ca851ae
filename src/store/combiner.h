/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_COMBINER_H
#define DIBS_STORE_COMBINER_H
/*
 * An open store as the layers above see it: sessions, mandates, the combiner, and the role of the receiver.
 *
 * The combiner.  Callers put operations in a queue.  A caller that finds a session free becomes the leader: it sends
 * the waiting operations in one driver call, names its successor, and only then delivers the answers.  A single caller
 * finds the session free and only its own operation waiting: no timer, no other thread.  Urgent operations have a
 * session of their own if the engine has more than one.
 *
 * Operations are reference-counted objects of the layers above, never on a stack: a caller may leave while its
 * operation is in flight.  `done` of an operation is called exactly once for each time that the operation is queued, by
 * any thread that leads, with no lock held; it may queue more.
 *
 * The receiver.  One thread at a time sleeps in the driver's events(), runs the timers of the layer above and leads
 * what no other thread leads: a thread that waits for a lease anyway, or the service thread, as soon as a second thread
 * waits or an operation was started that completes later.
 */
#include "store/registry.h"

enum { DIBS__IO_MS = 5000 }; /* how long a driver call may take if nothing requires an earlier end */

/* May be repeated under the store's mandate after MOVED (an acquire may, a renewal may not). */
enum { DIBS__OP_FOLLOWS = 4 };

struct dibs__core;

/* What the layer above does on these occasions.  The receiver calls them with no lock held. */
struct dibs__core_hooks {
  void *context;
  const char *owner;  /* the owner of the handle, for people; NULL: none was given */
  dibs__tick open_by; /* how long dibs__core_open may take; 0: DIBS__IO_MS from now */
  void (*event)(void *context, const struct dibs__event *event);
  dibs__tick (*timers)(void *context, dibs__tick now); /* does what is due; returns when to call it again */
  void (*handed)(void *context);                       /* a batch of answers was delivered; must be quick */
  void (*untidy)(void *context);                       /* dibs__core_tidy has work; called by a leader, must be quick */
};

enum { DIBS__CORE_SIZES = 12 };

struct dibs__core_counts {
  uint64_t batches, operations, transactions;
  uint64_t largest;                   /* batch */
  uint64_t at_most[DIBS__CORE_SIZES]; /* batches of at most 2^i operations */
  uint32_t pending;                   /* operations that wait for their batch, now */
};

dibs__status dibs__core_open(const char *uri, const char *module_path, const struct dibs__core_hooks *hooks,
                             struct dibs__core **core, struct dibs__result *result);
/* Ends the service thread.  No operation may be in flight. */
void dibs__core_stop(struct dibs__core *core);
void dibs__core_close(struct dibs__core *core);
/* A core on the caller's own connection, in its transaction: no combiner, no threads; dibs__core_run carries what it is
 * given in the calling thread, and that, families, uri and close are all that may be called.  `outer` must stay open.
 * driver_name: the driver whose connection it is; NULL: that of a transactor.
 */
dibs__status dibs__core_inside(struct dibs__core *outer, const char *driver_name, void *connection,
                               struct dibs__core **core, struct dibs__result *result);

/* A connection for transactions of users: see struct dibs__driver.  UNSUPPORTED: the engine has none.  Any thread. */
dibs__status dibs__core_transactor_open(struct dibs__core *core, dibs__tick by, struct dibs__transactor **transactor,
                                        struct dibs__result *result);
dibs__status dibs__core_transact(struct dibs__core *core, struct dibs__transactor *transactor, enum dibs__transact what,
                                 const char *sql, dibs__tick by, struct dibs__result *result);
void dibs__core_transactor_close(struct dibs__core *core, struct dibs__transactor *transactor); /* NULL is fine */

const char *dibs__core_uri(const struct dibs__core *core);
uint32_t dibs__core_caps(const struct dibs__core *core);
uint32_t dibs__core_families(const struct dibs__core *core);
/* As it was when the store was opened. */
const struct dibs__identity *dibs__core_identity(const struct dibs__core *core);
void dibs__core_count(struct dibs__core *core, struct dibs__core_counts *counts);

/* Fills the head: family, verb, flags, bucket, the mandate as known now, the deadline. */
void dibs__core_head(struct dibs__core *core, struct dibs__op *op, uint16_t family, uint16_t verb, uint16_t flags,
                     uint16_t bucket, void (*done)(struct dibs__op *));

/*
 * Neighbours in a list with the same non-zero group are sent together; the core gives each group a number of its own.
 * A group has at most max_batch operations.
 *
 * Queues a list (linked by next) and blocks until all are answered; leads if necessary.  At `by` it returns: operations
 * that were not sent leave the queue (TIMEOUT, done is called), operations that were sent continue without the caller.
 * true: all were answered.
 */
bool dibs__core_run(struct dibs__core *core, struct dibs__op *list, dibs__tick by);
/* Queues a list; another thread carries it. */
void dibs__core_start(struct dibs__core *core, struct dibs__op *list);
/* Queues a list that the caller carries soon, by dibs__core_lend. */
void dibs__core_leave(struct dibs__core *core, struct dibs__op *list);
/* For an event loop: leads one batch if the engine is CAP_BRIEF and a slot is free, and returns within LEND_MS.  The
 * receiver takes the operations that could not be started in this time, and all those of other engines. */
void dibs__core_lend(struct dibs__core *core);

/* Blocks until *word != seen or `by`; as the receiver if there is none. */
void dibs__core_wait(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by);
/* Wakes the thread that waits in dibs__core_wait for this word, which was changed before.  Only the address is used:
 * the object that contains the word may be freed by now. */
void dibs__core_wake(struct dibs__core *core, dibs__word *word);
/* The timers changed: the receiver, if there is one, must check them before `due`. */
void dibs__core_rouse(struct dibs__core *core, dibs__tick due);
/* From now on a thread of the library is the receiver.  false: no thread could be started. */
bool dibs__core_serve(struct dibs__core *core);

/* The engine's maintenance; for one thread at a time, which carries no operations.  Also closes sessions that are not
 * needed any more.  true: some may be closed soon, so call it again after a second. */
bool dibs__core_tidy(struct dibs__core *core);
/* Is there a connection for an urgent operation, as far as the core knows?  Then a full server cannot prevent a
 * confirm. */
bool dibs__core_ready(struct dibs__core *core);

/* Uses an idle session, or one of its own. */
dibs__status dibs__core_list(struct dibs__core *core, const struct dibs__list *list, struct dibs__result *result);

/* Did the latest attempts to use the store fail as a whole?  A locked row, and a call that had less than a second, say
 * nothing about the store. */
bool dibs__core_is_cut_off(const struct dibs__core *core);
/* The message of the latest failure, for an operation that failed with it. */
void dibs__core_trouble(struct dibs__core *core, char *text, size_t size);

#endif
