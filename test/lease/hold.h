/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_HOLD_H
#define DIBS_TEST_LEASE_HOLD_H
/*
 * A shim that holds batches back: those that carry a question about a certain name wait, as on a slow network, until
 * the test lets them through.  "hold+sqlite:..."; one for the process.
 */
#include "help.h"

/* Batches with this name are held from now on.  NULL: none is, and those that were go on. */
void hold_name(const char *name);
void hold_on(void);                     /* those that are held go on; what comes with the name is held */
void hold_begin(void);                  /* makes the scheme known */
uint32_t held_now(void);                /* batches */
uint32_t pending_in(dibs_store *store); /* operations that wait for a session */

#endif
