/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_HISTORY_H
#define DIBS_TEST_FAULT_HISTORY_H
/*
 * What each process saw, in a mapped file of its own that is only appended to: its content survives kill -9.  Stamps
 * are of the boot-time clock, which all processes of the machine share.
 */
#include "base/port.h"

enum { HISTORY_CAPACITY = 1000000, HISTORY_NAMES = 64 };

/* The kind of a record. `at` is the stamp before the call unless noted; `lease` numbers the requests of a process from
 * 1. */
enum what {
  REPORTED_NOTHING,  /* not completely written */
  REPORTED_REQUEST,  /* about to acquire; value: wait in ms; extra: ttl in ms */
  REPORTED_GRANT,    /* the request was granted (at: after the call); fence; value: certainly alive until, ns */
  REPORTED_ALIVE,    /* alive() returned true; value: until, ns */
  REPORTED_GONE,     /* the wait ended without a grant (at: after); value: the status */
  REPORTED_LETTING,  /* about to release */
  REPORTED_RELEASED, /* (at: after) value: the status */
  REPORTED_LOST,     /* on_lost was called (at: in it) */
  REPORTED_SEALED,   /* (at: after) value: the number read; extra: the status */
  REPORTED_SAVING,   /* about to save; value: the number */
  REPORTED_SAVED,    /* (at: after) value: the number; extra: the status */
  REPORTED_LOOKING,  /* about to load without a fence */
  REPORTED_LOOKED,   /* (at: after) value: the number */
  REPORTED_STOP,     /* the parent: about to stop the party; lease: which one, 0: the server (to kill it, too) */
  REPORTED_GO_ON,    /* the parent: continued it (at: after) */
  REPORTED_KILL,     /* the parent: about to kill it */
  REPORTED_KILLED,   /* the parent: the process is dead (at: after) */
  REPORTED_OVER,     /* the parent: the run is over; later waits may end without a grant */
  /* For runs over tiers. */
  REPORTED_SEALING, /* about to seal, or, in runs without seals, to read */
  REPORTED_READ,    /* a plain counter was read (at: after); value: the number; extra: the status */
  REPORTED_ADDING,  /* about to write a plain counter; value: the number */
  REPORTED_ADDED,   /* (at: after) value: the number; extra: the status */
  REPORTED_MARK     /* the parent: an action of the scene; value: which one, from 0 */
};

struct reported {
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
  _Atomic uint32_t requests;
  struct reported reported[HISTORY_CAPACITY];
};

/* How names are used; the same in all processes of a run. */
enum kind { KIND_EXCLUSIVE, KIND_READERS, KIND_COUNTED };
enum { SLOTS = 3 };
static inline enum kind kind_of(uint16_t name) {
  return name % 4 == 1 ? KIND_READERS : name % 4 == 3 ? KIND_COUNTED : KIND_EXCLUSIVE;
}

/* Creates and maps FOLDER/party-N.history.  NULL and a message on stderr if that fails. */
struct history *history_make(const char *folder, uint32_t party);
/* Maps the history of another process for reading.  NULL: it does not exist yet. */
const struct history *history_look(const char *folder, uint32_t party);
/* Appends; false if the history is full. */
bool history_say(struct history *history, struct reported reported);

/* ---- The checker ---- */

struct bounds {
  int64_t wake_ms;           /* the longest time that an active waiter may wait while the name is free */
  uint32_t parties, threads; /* at once, and in each process */
  double share_least;        /* the fraction of an even share of the grants that each party must get; 0: no check */
};
/* Reads all histories of the folder, prints what it found, and returns how many rules were broken; -1: unreadable.
 * `finals`: the records at the end, by name; -1: not known. */
int check_histories(const char *folder, const struct bounds *bounds, const int64_t finals[HISTORY_NAMES]);

#endif
