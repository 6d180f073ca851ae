/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_ACQUIRE_H
#define DIBS_CLI_ACQUIRE_H
/* Waiting for a lease while signals are heeded: shared by lock and run. */
#include "cli/cli.h"

#include <signal.h>

/* Signals come as things to read, not as interruptions.  Those that were ignored when dibs began stay ignored. */
struct cli_signals {
  int fd;
  sigset_t before; /* the mask that dibs was started with, for its child */
};
int dibs__cli_signals_open(const struct cli_globals *globals, struct cli_signals *signals);
void dibs__cli_signals_close(struct cli_signals *signals);
/* The next one, or 0. */
int dibs__cli_signals_next(const struct cli_signals *signals);

/* Acquires as the options say; the store is open with DIBS_STORE_LOOP.  CLI_DONE, or an exit code, said; 128 + N when
 * signal N ended the wait. */
int dibs__cli_acquire(const struct cli_globals *globals, dibs_store *store, const char *name,
                      dibs_lease_options *options, const struct cli_signals *signals, dibs_lease **lease);

#endif
