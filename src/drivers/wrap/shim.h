/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_WRAP_SHIM_H
#define DIBS_DRIVERS_WRAP_SHIM_H
/*
 * What drivers with one inner store share: a shim begins with these structs, and its table has the functions below
 * for everything that it does not change.  A shim is linked into its module (dibs-driver-NAME.so), and may be linked
 * into a test and offered by dibs__driver_add.
 *
 *   trace     trace.file=PATH                       one line of JSON a driver call
 *   fault     fault.rate= .nth= .on= .how= ...      fails calls, see fault.h
 *   latency   latency.ms= .jitter= .events=         a network's latency
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

/* A shim of `size` bytes, zero except for its head.  NULL: no memory, see `result`. */
struct dibs__shim *dibs__shim_new(size_t size, const struct dibs__driver *driver, struct dibs__dstore *inner,
                                  struct dibs__result *result);
dibs__driver_close dibs__shim_close;
/* As the operation of that name in struct dibs__driver.  `size` is that of the shim's own session. */
dibs__status dibs__shim_connect_sized(size_t size, struct dibs__dstore *store, dibs__tick by,
                                      struct dibs__session **session, struct dibs__identity *identity,
                                      struct dibs__result *result);
dibs__driver_connect dibs__shim_connect;
dibs__driver_disconnect dibs__shim_disconnect;
dibs__driver_run dibs__shim_run;
dibs__driver_events dibs__shim_events;
dibs__driver_wake dibs__shim_wake;
dibs__driver_list dibs__shim_list;
dibs__driver_tidy dibs__shim_tidy;

/* ---- Answers that never arrive ---- */

/* A copy of operations before they run: dropping the answers restores it, with status UNKNOWN.  The core's own fields
 * are left alone; it may change them while the operations travel. */
struct dibs__shim_before;
struct dibs__shim_before *dibs__shim_remember(struct dibs__op *const ops[], size_t count); /* NULL: no memory */
void dibs__shim_drop_answers(struct dibs__shim_before *before, struct dibs__op *const ops[], size_t count);
void dibs__shim_forget(struct dibs__shim_before *before); /* NULL is fine */

/* The nth number drawn from a seed: the same on every machine, for every caller. */
uint64_t dibs__shim_draw(uint64_t seed, uint64_t n);

#endif
