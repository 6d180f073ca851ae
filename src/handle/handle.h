/* SPDX-License-Identifier: MIT */
#ifndef DIBS_HANDLE_HANDLE_H
#define DIBS_HANDLE_HANDLE_H
/*
 * An open store as every feature sees it: leases, guarded writes, tiers and flags, and what comes later.  It contains
 * what they share; a feature keeps its own state behind a pointer, and no feature includes another's private header.
 *
 * A call of the public header begins with dibs__enter and ends with dibs__exit: dibs_close waits for those that are
 * between the two.  An operation in flight is counted in `in_flight`: dibs_close waits for it, too.
 *
 * Order of locks: store->lock before the core's own.  It is never held across a call of the core that may carry
 * operations, nor across a callback.
 */
#include "handle/calls.h"
#include "store/combiner.h"

enum { LEAVE_MS = 100 }; /* how much later than requested a wait may end when the store does not answer */

struct dibs__leases; /* lease/lease_impl.h */

/* Waits for tasks of a kind to become ready: `word` goes up and its sleepers are woken when this process adds some,
 * when the store reports some, and when the store closes. */
struct dibs__listener {
  struct dibs__listener *next;
  const char *kind;
  dibs__word word;
  /* NULL; or called as the callbacks of leases are, once after one or more of these events, but not after
   * dibs__listen_no_more in the thread that calls them. */
  void (*roused)(struct dibs__listener *listener);
  struct dibs__due_call due;
  bool is_due;
};

/* What a feature has to end when the store closes: no caller is inside any more, and operations are still carried. */
struct dibs__at_close {
  void (*end)(struct dibs__at_close *at_close);
  void (*free)(struct dibs__at_close *at_close);
};

struct dibs_store {
  /* Immutable after open. */
  struct dibs__core *core;
  dibs_store *outer; /* of dibs_inside: the store that it belongs to; NULL otherwise */
  char *owner;
  char *shown; /* the URI */
  uint32_t flags;
  uint64_t generation;
  int notifier; /* DIBS_STORE_LOOP */
  struct dibs__leases *leases;

  struct dibs__at_close *_Atomic counters; /* counter/counter_impl.h; NULL: none were used */

  _Atomic uint32_t refs;
  dibs__word callers;        /* threads inside a call that needs the core: dibs_close waits for them */
  _Atomic bool closing;      /* set under the lock */
  _Atomic int64_t closed_ns; /* a tick: when dibs_close was called; 0: it was not */
  dibs__mutex lock;          /* guards what follows, and *leases */
  uint32_t in_flight;        /* operations */
  dibs__word none_in_flight; /* goes up when the last one is answered while closing */
  uint64_t stale;            /* guarded writes that were refused */
  struct dibs__listener *listeners;
  struct dibs__calls calls;
  /* Set before the store is used, see dibs__store_watch. */
  void (*watch)(void *context, const struct dibs__event *event);
  void *watch_context;
};

/* What the lease layer does when a store opens and closes.  It is above this folder, which knows it by this table
 * alone. */
struct dibs__store_part {
  struct dibs__core_hooks hooks;   /* but for `capacity` and `owner`: those are the store's */
  bool (*open)(dibs_store *store); /* makes store->leases.  false: out of memory */
  /* Ends every wait, starts to release what is held, and sets `closing` before others have the lock again. */
  void (*close)(dibs_store *store);
  void (*stop)(dibs_store *store);   /* its timers; no caller is inside any more */
  void (*finish)(dibs_store *store); /* ends what points at the core, which is stopped; then the callbacks */
  /* A callback is due, and no thread could be started that runs it: it tries again later. */
  void (*help_locked)(dibs_store *store);
  void (*free)(dibs_store *store); /* store->leases, NULL if `open` failed; no lease is left */
};
extern const struct dibs__store_part dibs__lease_part;

dibs_status dibs__fail(dibs_error *error, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
dibs_status dibs__fine(dibs_error *error);
/* INVALID if the store can't be used here: NULL, closed, or of another process.  Until dibs__exit the store is not
 * taken away: dibs_close waits. */
dibs_status dibs__enter(dibs_store *store, const char *call, dibs_error *error);
void dibs__exit(dibs_store *store); /* the store may be gone after it */
/* In a child after fork() a handle is a copy without its threads, and one of them may have held its lock: a call that
 * does not need dibs__enter begins with one of these.  INVALID in a child; `what` is the handle: "the worker". */
static inline bool dibs__is_of_this_process(const dibs_store *store) {
  return store->generation == dibs__process_generation();
}
dibs_status dibs__check_process(const dibs_store *store, const char *call, const char *what, dibs_error *error);
void dibs__store_drop(dibs_store *store);
/* As dibs_open, but not longer than until `by`; 0: as dibs_open. */
dibs_status dibs__open_by(const char *uri, const dibs_store_options *options, dibs__tick by, dibs_store **store,
                          dibs_error *error);
/* A handle inside the transaction of a transactor's connection. */
dibs_status dibs__store_inside(dibs_store *store, void *connection, dibs_store **inside, dibs_error *error);
/* From now on its word goes up when tasks of its kind may be ready, in any process. */
void dibs__listen(dibs_store *store, struct dibs__listener *listener);
void dibs__listen_no_more(dibs_store *store, struct dibs__listener *listener);
/* From now on `watch` is called for each event of the store, beside what the leases of this handle do with it: in any
 * thread, with no lock held, until the store is closed.  Before the first call that uses the store. */
void dibs__store_watch(dibs_store *store, void (*watch)(void *context, const struct dibs__event *event), void *context);
/* Tasks of `kind` may be ready; NULL: of any kind. */
void dibs__rouse_listeners(dibs_store *store, const char *kind);
/* INVALID unless `size`, that of a struct of the caller's, is from that of its `size` field to `most`; `type` is its
 * name. */
dibs_status dibs__check_size(size_t size, size_t most, const char *type, dibs_error *error);
/* Is it fit to be a name, key or label of at most `most` bytes?  Else INVALID; `what` is the subject: "the name". Every
 * text of the caller's that reaches a store passes here. */
dibs_status dibs__check_text(const char *text, size_t most, const char *what, dibs_error *error);
/* The text for a status that came from the store, about a name. */
dibs_status dibs__explain(dibs_store *store, dibs_status status, const char *what, const char *name, dibs_error *error);

#endif
