/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_KEPT_H
#define DIBS_CLI_KEPT_H
/*
 * What `dibs once` keeps of a command: its status, and what it wrote, in the order in which it came.
 *
 *   dibs-once/1 STATUS MS OUT ERR\n       the status, how long it took, bytes written to each
 *   o0000123\n...                         123 bytes of standard output
 *   e0000045\n...                         45 bytes of standard error; and so on
 *
 * The parts hold less than was written when it was more than can be kept.
 */
#include "cli/cli.h"

enum { KEPT_OUT, KEPT_ERR, KEPT_STREAMS };

/* While it comes. */
struct kept {
  char *parts;
  size_t len, room;
  size_t latest; /* where the latest part begins; its stream is `stream` */
  int stream;    /* -1: none */
  bool cut;      /* something was left out, and so is all that follows */
  uint64_t written[KEPT_STREAMS], left_out;
};
void dibs__cli_kept_begin(struct kept *kept);
void dibs__cli_kept_add(struct kept *kept, int stream, const char *bytes, size_t len);
/* malloc'd; NULL: no memory. */
char *dibs__cli_kept_whole(const struct kept *kept, int status, int64_t took_ms, size_t *length);
void dibs__cli_kept_free(struct kept *kept);

/* What was kept. */
struct told {
  int status;
  int64_t took_ms;
  uint64_t written[KEPT_STREAMS], left_out; /* bytes */
  const char *parts;                        /* into the text that was read */
  size_t len;
};
/* false: that is something else. */
bool dibs__cli_told_read(const char *text, size_t length, struct told *told);
/* The next part; *at begins with 0.  false: that was the last. */
bool dibs__cli_told_next(const struct told *told, size_t *at, int *stream, const char **bytes, size_t *len);

#endif
