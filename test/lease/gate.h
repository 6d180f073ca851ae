/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_GATE_H
#define DIBS_TEST_LEASE_GATE_H
/*
 * A driver for tests: it records each batch and, while the gate is shut, holds it until the test lets it through.  The
 * test decides the answers.
 */
#include "help.h"
#include "store/combiner.h"

enum { GATE_BATCHES = 256, GATE_OPS = 64 };

struct gate_batch {
  struct dibs__session *session;
  struct dibs__op *ops[GATE_OPS];
  size_t count;
  uintptr_t thread;
  bool open, left;
};

/* A lock of its own guards it; tests read it through the functions below. */
struct gate_plan {
  uint32_t caps, max_sessions, max_batch;
  bool shut; /* batches wait for gate_let */
  /* Answers one operation; NULL: OK. */
  void (*answer)(struct dibs__op *op);
  dibs__status run; /* the answer of run() itself; OK if zero */
  bool dead;
  uint32_t refuse_connects; /* how many of the next attempts fail */
};

void gate_begin(struct gate_plan plan); /* forgets the recorded batches */
void gate_change(struct gate_plan plan);
size_t gate_seen(void); /* number of batches that arrived */
struct gate_batch gate_batch(size_t at);
void gate_let(size_t at); /* lets this batch through */
void gate_open(void);     /* lets all batches through, also later ones */
uint32_t gate_connects(void);
uint32_t gate_pending(struct dibs__core *core); /* operations that wait to be sent */

/* An operation that counts its outcomes. */
struct probe {
  struct dibs__op op; /* first */
  struct dibs__core *core;
  _Atomic uint32_t dones;
  _Atomic int status;
  struct dibs__op *hand_in; /* `done` submits this probe */
  _Atomic uint32_t *hold;   /* `done` waits until it is not 0 */
};
void probe_make(struct probe *probe, struct dibs__core *core, uint16_t flags);
struct dibs__op *probe_list(struct probe *probes[], size_t count);

/* A thread in dibs__core_run. */
struct runner {
  pthread_t thread;
  struct dibs__core *core;
  struct dibs__op *list;
  dibs__tick by;
  bool answered;
  _Atomic bool over;
};
void runner_start(struct runner *runner, struct dibs__core *core, struct dibs__op *list, int64_t ms);
bool runner_join(struct runner *runner);

struct dibs__core *gate_core(void); /* opens a core; gate_close closes it */
void gate_close(struct dibs__core *core);

#endif
