/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_TEE_H
#define DIBS_CLI_TEE_H
/*
 * What a command writes, on its way to our own standard output and error, and a copy that is kept (kept.h).
 *
 * Nothing blocks while the command runs: who reads slowly makes the command wait, as it would without us, and never the
 * loop that looks after the lease.  When nobody reads any more, it is kept all the same.
 */
#include "cli/kept.h"

#include <poll.h>

struct tee_stream {
  int from, to;
  char *pending; /* read, and not written yet: [at, at + len) */
  size_t at, len, room;
  int broken; /* errno of writing */
};

struct tee {
  struct tee_stream stream[KEPT_STREAMS];
  struct kept kept;
};

/* `ends` are for the command; close them once it has them.  CLI_DONE, or CLI_FAILED, said. */
int dibs__cli_tee_open(struct tee *tee, const struct cli_globals *globals, int ends[KEPT_STREAMS]);
void dibs__cli_tee_close(struct tee *tee);

/* What to poll for, and what to do then. */
enum { TEE_POLLS = 4 };
void dibs__cli_tee_ask(const struct tee *tee, struct pollfd polls[TEE_POLLS]);
void dibs__cli_tee_step(struct tee *tee, const struct pollfd polls[TEE_POLLS]);
/* The command is over: takes what it has written until now. */
void dibs__cli_tee_finish(struct tee *tee);
/* Writes what is pending; may block.  CLI_DONE; or CLI_FAILED, said, when it could not be written.  That nobody reads
 * it is no failure. */
int dibs__cli_tee_flush(struct tee *tee, const struct cli_globals *globals);

#endif
