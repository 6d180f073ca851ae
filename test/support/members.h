/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SUPPORT_MEMBERS_H
#define DIBS_TEST_SUPPORT_MEMBERS_H
/*
 * The processes of a storm: this program starts itself as members, and ends, stops and kills them by chance, while they
 * write down what they do, each in a file of its own.
 *
 *   PROGRAM [--seconds N] [--seed N] [--ttl MS] [--unguarded] URI     "sqlite:" is a file of its own
 *   PROGRAM member URI FILE TTL [unguarded]                           a member, which the first form starts
 */
#include "base/port.h"
#include "dibs.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MEMBERS_AT_ONCE = 5, MEMBERS_MAX = 4096 };

/* ---- The parent ---- */

struct member {
  pid_t pid; /* 0: none */
  uint32_t nth;
  bool stopped;
  dibs__tick until; /* it is continued then */
};

struct members {
  const char *uri; /* of the store */
  char folder[64]; /* of the members' files, which are numbers */
  bool unguarded;
  int64_t seconds, ttl_ms; /* of lanes: 1,000 unless given */
  uint32_t started, killed, stopped, left;
  struct member at[MEMBERS_AT_ONCE];
};

/* Reads the command line, and makes the folder. */
void members_begin(struct members *all, int argc, char *argv[]);
/* Removes the folder if `code` is 0, else says where it is; returns the code. */
int members_end(struct members *all, int code);
/* Below `below`; the same ones for the same seed. */
uint32_t members_draw(uint32_t below);

void member_start(struct members *all, struct member *p);
void member_end(struct members *all, struct member *p, int signo); /* SIGTERM: it leaves; SIGKILL */
void member_stop(struct members *all, struct member *p, int64_t ms);
uint32_t members_stopped(const struct members *all); /* how many are */
/* Those whose time is over, or all. */
void members_continue(struct members *all, bool every);

/* ---- A member ---- */

struct member_self {
  dibs_store *store;
  int log;
  int64_t ttl_ms;
  bool unguarded;
};

bool member_is_meant(int argc, char *argv[]);
/* Opens its file and the store; SIGTERM sets member_leaves(). */
void member_begin(struct member_self *self, int argc, char *argv[]);
bool member_leaves(void);
/* Writes one line: a letter and three numbers, and the present tick. */
void member_say(const struct member_self *self, char what, uint64_t a, uint64_t b, uint64_t c);

/* ---- Both ---- */

/* Ends the program with 2. */
_Noreturn void die(const char *what, const char *why);
/* A record with one number: 0 if there is none. */
dibs_status number_read(dibs_store *store, const char *name, dibs_lease *lease, uint64_t *number);
/* Guarded by the lease; without one it is not guarded at all. */
dibs_status number_write(dibs_store *store, const char *name, dibs_lease *lease, uint64_t number);

#endif
