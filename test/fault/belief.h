/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_BELIEF_H
#define DIBS_TEST_FAULT_BELIEF_H
/*
 * What each client believes.  For each request for a lease: from when to when dibs_lease_alive() returned true, and
 * until when the lease then claimed to stay alive.  A look reads the boot-time clock, asks the lease, and reads the
 * clock again; all processes of the machine share this clock, so a look proves its belief even if its process is
 * scheduled late.  A thread looks at all leases of the process every few milliseconds.
 *
 * Each process writes a mapped file of its own: its content survives kill -9.  The checker compares all beliefs: at no
 * instant may two clients both believe to hold what only one of them can have.
 */
#include "base/port.h"
#include "dibs/admin.h"

enum { BELIEFS_MAX = 100000, BELIEF_EVENTS_MAX = 20000, BELIEF_NAMES = 64, BELIEF_SLOTS = 3 };

/* One request.  Instants are ns of the boot-time clock; 0: it did not happen. */
struct belief {
  uint16_t name;
  uint8_t mode;              /* dibs_mode */
  uint8_t renews;            /* 1: the library renews it */
  uint32_t slot;             /* of a counted lease */
  uint64_t id[2];            /* the client: handles of one id are one client */
  uint64_t fence;            /* 0: none */
  uint32_t ttl_ms;           /* the longest that was requested */
  uint32_t process, handle;  /* a store's number, unique among all processes */
  int64_t requested;         /* before the call */
  int64_t from;              /* after the first look that returned true */
  _Atomic int64_t seen;      /* before the latest look that returned true */
  _Atomic int64_t until;     /* the lease then claimed to be alive until this instant */
  _Atomic int64_t ended;     /* before the client gave the lease up: released, freed, detached, closed */
  _Atomic int64_t dead;      /* after the first look that returned false, once a look had returned true */
  _Atomic int64_t shortened; /* before the first renewal by hand for less time */
  _Atomic int64_t gave_back; /* before the store may have received a request that removes what the id has, */
  _Atomic int64_t given;     /* and after it did; 0: the request may still arrive */
  _Atomic uint32_t written;  /* stored last: 1 if the fields above the first atomic one are valid */
  _Atomic uint32_t answered; /* the request returned */
};

enum belief_event_kind {
  BELIEF_BREAK,     /* dibs_break of the name */
  BELIEF_BREAK_NOW, /* with DIBS_BREAK_NOW */
  BELIEF_AWAY,      /* a server was stopped or dead */
  BELIEF_STOPPED,   /* this process was stopped, cut off or killed */
  BELIEF_WRONG      /* the client itself saw a broken rule */
};
struct belief_event {
  uint32_t kind, process;
  uint16_t name;
  int64_t from;
  _Atomic int64_t to; /* 0: it did not end */
};

struct belief_file {
  uint32_t process; /* 0: the parent */
  _Atomic uint32_t count, event_count;
  struct belief_event events[BELIEF_EVENTS_MAX];
  struct belief at[BELIEFS_MAX];
};

/* ---- Writing ---- */

struct beliefs; /* of this process */
/* FOLDER/process-N.beliefs; `looks`: with a thread that looks.  NULL, and a message on stderr, if that fails. */
struct beliefs *beliefs_open(const char *folder, uint32_t process, bool looks);
void beliefs_close(struct beliefs *beliefs);

/* Call it before a request.  NULL: the file is full. */
struct belief *belief_request(struct beliefs *beliefs, const struct belief *request);
/* The request was granted: looks begin now and last until belief_end. */
void belief_granted(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease);
/* The request was not granted. `taken_back`: the library may send the store a request that removes what the id has,
 * also later. */
void belief_refused(struct belief *belief, bool taken_back);
/* Call these before and after a renewal by hand for `ttl_ms`. */
void belief_renewing(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease, uint32_t ttl_ms);
void belief_renewed(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease);
/* Call it before the lease is given up.  `released`: for all handles of the id; otherwise it is only detached. */
void belief_end(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease, bool released);
/* Call it after the store answered the release. */
void belief_given(struct belief *belief);
/* One look by the calling thread. */
bool belief_look(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease);

struct belief_event *belief_event(struct beliefs *beliefs, enum belief_event_kind kind, uint32_t process,
                                  uint16_t name);
void belief_event_over(struct belief_event *event); /* may be NULL */

/* ---- The checker ---- */

/* When two may believe: each of these is a promise of doc/guarantees.md, and excuses nothing beyond it. */
struct belief_rules {
  bool session; /* session locks (5a): a server that ends a connection passes the name on before its holder learns it
                 */
  bool moves;   /* fenced tiers (2): a move grants at once under a newer epoch */
  bool forgets; /* tiers: while a server is unreachable, a tier may forget its holders, or be left: holders learn it
                 * early */
  bool alone;   /* least-strict: a grant by the memory of one process alone, under epoch 1, excludes no other client */
};
struct belief_sums {
  uint64_t requested, believed, lost; /* lost: before the lease's own claim ended, with a reason */
  uint64_t excused;                   /* pairs of clients that both believed, as a promise allows */
  uint64_t followed;                  /* beliefs that began within 50 ms of another one's end: these test the rule */
  uint64_t repeated;                  /* requests with an id of an earlier request */
  uint32_t processes, broken;
};
/* Reads FOLDER/process-*.beliefs and prints what is wrong.  Returns how many rules were broken; -1: unreadable. */
int beliefs_check(const char *folder, const struct belief_rules *rules, struct belief_sums *sums);

#endif
