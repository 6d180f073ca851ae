/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_PHASES_H
#define DIBS_LAB_PHASES_H
/*
 * What the lab shares with the nodes of the experiment `phases`: phases.c is the lab's side, phases_node.c a node.
 *
 *   rows    (id, phase, state, locked_at, created_at, updated_at, fence, certificate, late)
 *   effects (row_id, step, node, late)
 *
 * `state` is the next step.  An effect is a row that a step inserts.  `late` is the lab's measure: the writes of nodes
 * whose claim was over.
 */
#include "lab/lab.h"

enum {
  PHASES_NODES = 4,
  PHASES_KILLED = 0,  /* this node is killed, */
  PHASES_STOPPED = 1, /* and this one is stopped past its timeout; the others begin after that */
  PHASES_ROWS = 12,
  PHASES_STEPS = 5,
  PHASES_CREATED = 2, /* steps of a creation; the others are of a deletion */
  PHASES_CERTIFICATE_MS = 500
};

enum phases_method { PHASES_POLLED, PHASES_COMPARED, PHASES_DIBS };

struct phases_slot {
  /* The node's. */
  dibs__word held;        /* it is in the middle of a step and waits to be killed or stopped */
  _Atomic bool late_over; /* what it wrote after it had been stopped has been answered */
  uint32_t row, step;     /* of `held` */
  _Atomic uint32_t effects, waits, refused;
  /* The lab's. */
  dibs__word release;
};

struct phases_page {
  /* Immutable once nodes run. */
  enum phases_method method;
  int64_t timeout_ms;
  char rows[LAB_TABLE_MAX], effects[LAB_TABLE_MAX];
  /* Any node's. */
  dibs__word ready;
  _Atomic uint32_t troubled; /* 1: a node writes `why`; 2: it has */
  char why[LAB_WHY_MAX];
  _Atomic int64_t continued_ns; /* the first claim of killed_row after the kill; 0: none */
  struct phases_slot slot[PHASES_NODES];
  /* The lab's. */
  dibs__word begin, join;      /* the first two nodes may begin; the others, too */
  _Atomic uint32_t killed_row; /* 0: none */
};

/* The nth row from 1 on is a gateway if n is odd, else a domain. */
static inline void dibs__phases_id(char id[LAB_KEY_MAX], uint32_t nth) {
  snprintf(id, LAB_KEY_MAX, "%s-%02u", nth % 2 ? "gateway" : "domain", nth);
}
extern const char *const dibs__phases_steps[PHASES_STEPS];

#endif
