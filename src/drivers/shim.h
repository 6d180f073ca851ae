/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SHIM_H
#define DIBS_DRIVERS_SHIM_H
/*
 * What drivers with one inner store have in common: a shim begins with these structs and takes for its table the
 * functions below wherever it has nothing to add.  A shim is linked into its module (dibs-driver-NAME.so), and may be
 * linked into a test and offered by dibs__driver_add.
 *
 *   trace     trace.file=PATH                       one line of JSON a driver call
 *   fault     fault.rate= .nth= .on= .how= ...      makes trouble, see fault.h
 *   latency   latency.ms= .jitter= .events=         a network's distance
 */
#include "store/uri.h"

extern const struct dibs__driver dibs__trace_driver, dibs__fault_driver, dibs__latency_driver;

struct dibs__shim {
  struct dibs__dstore base;
  struct dibs__dstore *inner; /* immutable; not ours to close */
};

struct dibs__shim_session {
  struct dibs__session base;
  struct dibs__session *inner;
};

/* A shim of `size` bytes, zero but for its head.  NULL: no memory, said tells. */
struct dibs__shim *dibs__shim_new(size_t size, const struct dibs__driver *driver, struct dibs__dstore *inner,
                                  struct dibs__said *said);
void dibs__shim_close(struct dibs__dstore *store);
/* As the operation of that name in struct dibs__driver.  `size` is that of the shim's own session. */
dibs__status dibs__shim_connect_sized(size_t size, struct dibs__dstore *store, dibs__tick by,
                                      struct dibs__session **session, struct dibs__identity *identity,
                                      struct dibs__said *said);
dibs__status dibs__shim_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                struct dibs__identity *identity, struct dibs__said *said);
void dibs__shim_disconnect(struct dibs__session *session);
dibs__status dibs__shim_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__said *said);
dibs__status dibs__shim_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by);
void dibs__shim_wake(struct dibs__dstore *store);
dibs__status dibs__shim_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                             struct dibs__said *said);
void dibs__shim_tidy(struct dibs__dstore *store);

/* ---- Answers that never arrive ---- */

/* What operations looked like before they were run: dropping the answers makes them so again, with status UNKNOWN.
 * The core's own fields are left alone; it may change them while the operations travel. */
struct dibs__shim_before;
struct dibs__shim_before *dibs__shim_remember(struct dibs__op *const ops[], size_t count); /* NULL: no memory */
void dibs__shim_drop_answers(struct dibs__shim_before *before, struct dibs__op *const ops[], size_t count);
void dibs__shim_forget(struct dibs__shim_before *before); /* NULL is fine */

/* The nth number drawn from a seed: the same on every machine, whoever asks for it. */
uint64_t dibs__shim_draw(uint64_t seed, uint64_t n);

#endif
