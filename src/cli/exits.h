/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_EXITS_H
#define DIBS_CLI_EXITS_H
/*
 * The one table of exit codes.  `dibs help exits`, the help of each command and dibs(1) are made from it or checked
 * against it.  The codes stand above what commands commonly use and below those of a shell, and each comes with a
 * line on standard error, so that a child's own status is not mistaken for one of ours.
 *
 * X(name, number, statuses, text)
 */
#define CLI_EXITS(X)                                                                                                   \
  X(DONE, 0, "OK REPLAY", "done, now or before; run, once: the command's own status is returned")                      \
  X(CONFLICT, 115, "CONFLICT", "somebody changed it in between; nothing was written")                                  \
  X(TROUBLE, 116, "", "doctor, lab: something needs attention")                                                        \
  X(ABSENT, 117, "NOT_FOUND", "nobody holds or waits for it, or there is no such thing")                               \
  X(STALE, 118, "STALE", "a newer fence was seen; nothing was written")                                                \
  X(FAILED, 119, "NO_MEMORY CANCELLED", "the system refused: memory, processes, output, or the minder was killed")     \
  X(BUSY, 120, "HELD FULL", "somebody else holds it (--try), or there is not enough left (stock)")                     \
  X(TIMEOUT, 121, "TIMEOUT", "still held when the time of --wait was over")                                            \
  X(LOST, 122, "LOST", "the lease was lost or broken; run, once: the command was ended")                               \
  X(STORE, 123, "UNAVAILABLE DENIED CORRUPT TOO_NEW", "the store can't be used: down, not permitted, damaged, newer")  \
  X(UNKNOWN, 124, "UNKNOWN", "it may or may not have happened; asking again is safe")                                  \
  X(USAGE, 125, "INVALID UNSUPPORTED", "the command line is wrong, or the store can't do that")                        \
  X(NOEXEC, 126, "", "run, once: the command was found but can't be executed")                                         \
  X(NOCMD, 127, "", "run, once: the command was not found")                                                            \
  X(SIGNAL, 128, "", "128+N: run, once: the command, or dibs while it waited, was ended by signal N")

enum cli_exit {
#define CLI__EXIT_ENUM(name, number, statuses, text) CLI_##name = number,
  CLI_EXITS(CLI__EXIT_ENUM)
#undef CLI__EXIT_ENUM
};

/* As bits, for what a command may answer. */
enum {
  CLI__BIT_BEFORE = -1,
#define CLI__EXIT_INDEX(name, number, statuses, text) CLI__BIT_##name,
  CLI_EXITS(CLI__EXIT_INDEX)
#undef CLI__EXIT_INDEX
};
#define CLI_MAY(name) (1u << CLI__BIT_##name)

#endif
