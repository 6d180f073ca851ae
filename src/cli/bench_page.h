/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_BENCH_PAGE_H
#define DIBS_CLI_BENCH_PAGE_H
/*
 * What a side that measures several processes shares with them: a page of memory that a helper finds under the
 * descriptor it is started with.  A helper is this same program, run anew, because a store's handle does not survive
 * a fork.  It attaches, opens what it needs, reports ready, waits for `go`, works until `stop`, leaves its results in
 * its own place and ends with 0.
 */
#include "cli/bench.h"

#include <sys/types.h>

enum bench_role { BENCH_ROLE_DIBS, BENCH_ROLE_FLOCK, BENCH_ROLE_HELD, BENCH_ROLE_WAITING };

struct bench_child {
  pid_t pid; /* the parent's; 0 once it was waited for */
  uint64_t turns;
  uint64_t overtaken;     /* of these, while somebody waited who had asked clearly before */
  uint64_t transactions;  /* of the store, for these turns */
  struct dibs__hist hist; /* ns: hand-offs, or waits beyond the fair turn */
  struct bench_sample sample;
  char why[640]; /* "" when all went well */
};

struct bench_page {
  enum bench_role role;
  int64_t think_us, hold_us;
  uint32_t count;   /* helpers */
  bool beyond;      /* record waits beyond the fair turn, not hand-offs */
  bool waits;       /* record waits, and count who overtakes */
  uint32_t many;    /* leases to hold or to wait for */
  uint32_t names;   /* that the waiting ones share */
  uint32_t rounds;  /* of renewal to watch */
  int64_t ttl_ms;   /* of the held ones */
  uint32_t run;     /* names of this run of the bench: the parent's process id */
  char store[4096]; /* here and not among the arguments, which everybody can read */
  char file[4096];  /* of flock */
  dibs__word ready, go, stop;
  /* Of the hand-off.  Written by the holder, read by the next. */
  _Atomic int64_t released_ns; /* when the last holder called release */
  _Atomic uint64_t fence;
  atomic_uint inside;
  _Atomic int64_t asked_ns[BENCH_PROCESSES_MANY]; /* since when each waits; 0: it does not */
  struct bench_child child[BENCH_PROCESSES_MANY];
};

struct bench_page *dibs__bench_page_new(struct bench *b, int *fd);
void dibs__bench_page_free(struct bench_page *page, int fd);
/* Starts `count` helpers and waits until they are ready.  false: none is left running. */
bool dibs__bench_children_start(struct bench *b, struct bench_page *page, int fd, uint32_t count);
/* Sets `go`. */
void dibs__bench_children_go(struct bench_page *page);
/* Sets `stop`, waits for all; false when one did not do well. */
bool dibs__bench_children_end(struct bench *b, struct bench_page *page, uint32_t count);
/* Waits until *word is `value` or more; false when a helper has ended before, or after `ms`. */
bool dibs__bench_children_wait(struct bench *b, struct bench_page *page, dibs__word *word, uint32_t value, int64_t ms);

/* In the helper: `child` reports ready and sleeps until go. */
void dibs__bench_child_ready(struct bench_page *page);
bool dibs__bench_child_fail(struct bench_child *child, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dibs__bench_role_turns(struct bench_page *page, struct bench_child *child);
bool dibs__bench_role_held(struct bench_page *page, struct bench_child *child);
bool dibs__bench_role_waiting(struct bench_page *page, struct bench_child *child);

#endif
