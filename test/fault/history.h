/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_HISTORY_H
#define DIBS_TEST_FAULT_HISTORY_H
/*
 * What each process saw, in a file of its own that is mapped and only appended to: what was written survives kill -9.
 * Stamps are of the boot-time clock, the same for all processes of the machine.
 */
#include "base/port.h"

enum { HISTORY_ROOM = 1000000, HISTORY_NAMES = 64 };

/* What a record says.  `at` is the stamp before the call unless it says otherwise; `lease` numbers the asks of a
 * process from 1. */
enum what {
  SAID_NOTHING,  /* not completely written */
  SAID_ASK,      /* about to acquire; value: wait in ms; extra: ttl in ms */
  SAID_GRANT,    /* it was granted (at: after the call); fence; value: surely alive until, ns; extra: the slot */
  SAID_ALIVE,    /* alive() said yes; value: until, ns */
  SAID_GONE,     /* the wait ended without a grant (at: after); value: the status */
  SAID_LETTING,  /* about to release */
  SAID_RELEASED, /* (at: after) value: the status */
  SAID_LOST,     /* on_lost was called (at: in it) */
  SAID_SEALED,   /* (at: after) value: the number read; extra: the status */
  SAID_SAVING,   /* about to save; value: the number */
  SAID_SAVED,    /* (at: after) value: the number; extra: the status */
  SAID_LOOKING,  /* about to load without a fence */
  SAID_LOOKED,   /* (at: after) value: the number */
  SAID_STOP,     /* the parent: about to stop the party; lease: which one, 0: the server (to kill it, too) */
  SAID_GO_ON,    /* the parent: let it go on (at: after) */
  SAID_KILL,     /* the parent: about to kill it */
  SAID_KILLED,   /* the parent: it is dead (at: after) */
  SAID_OVER,     /* the parent: the run is over; who waits then may go without a grant */
  /* Of runs over tiers. */
  SAID_SEALING, /* about to seal, or, where nobody seals, to read */
  SAID_READ,    /* a plain counter was read (at: after); value: the number; extra: the status */
  SAID_ADDING,  /* about to write a plain counter; value: the number */
  SAID_ADDED,   /* (at: after) value: the number; extra: the status */
  SAID_MARK     /* the parent: something was done; value: which, from 0 */
};

struct said {
  int64_t at, value, extra;
  uint64_t fence;
  uint32_t lease, thread;
  uint16_t name;
  uint8_t mode; /* dibs_mode */
  _Atomic uint8_t what;
};

struct history {
  uint32_t party; /* 0: the parent */
  _Atomic uint32_t count;
  _Atomic uint32_t asks;
  struct said said[HISTORY_ROOM];
};

/* Of a run, the same for all: how names are used. */
enum kind { KIND_EXCLUSIVE, KIND_READERS, KIND_COUNTED };
enum { SLOTS = 3 };
static inline enum kind kind_of(uint16_t name) {
  return name % 4 == 1 ? KIND_READERS : name % 4 == 3 ? KIND_COUNTED : KIND_EXCLUSIVE;
}

/* FOLDER/party-N.history, made and mapped.  NULL and a word on stderr if that fails. */
struct history *history_make(const char *folder, uint32_t party);
/* One that somebody else makes or has made, to be read.  NULL: not there yet. */
const struct history *history_look(const char *folder, uint32_t party);
/* Appends; false when there is no more room. */
bool history_say(struct history *history, struct said said);

/* ---- The checker ---- */

struct bounds {
  int64_t wake_ms;           /* nobody who is awake waits for longer while the name is free */
  uint32_t parties, threads; /* at once, and of each */
  double share_least;        /* the part of an even share of the turns that each party gets; 0: no matter */
};
/* Reads all histories of the folder, prints what it found, returns how many rules were broken; -1: unreadable.
 * `finals`: what the records said at the end, by name; -1: not known. */
int check_histories(const char *folder, const struct bounds *bounds, const int64_t finals[HISTORY_NAMES]);

#endif
