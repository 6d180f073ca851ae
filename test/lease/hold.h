/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_HOLD_H
#define DIBS_TEST_LEASE_HOLD_H
/*
 * A shim that holds batches back: batches with an operation on a certain name wait, as on a slow network, until the
 * test lets them through.  "hold+sqlite:..."; one for the process.
 */
#include "help.h"

/* Batches with this name are held from now on.  NULL: none is, and held ones continue. */
void hold_name(const char *name);
void hold_extensions(bool on); /* the same with extensions of claims of tasks; off: held ones continue */
void hold_continue(void);      /* held batches continue; new ones with the name are held */
/* Calls this in the next listing, before it is read.  false: the listing fails. */
void hold_list(bool (*before)(void *user), void *user);
void hold_begin(void);                  /* registers the scheme */
uint32_t held_now(void);                /* batches */
uint32_t pending_in(dibs_store *store); /* operations that wait for a session */

#endif
