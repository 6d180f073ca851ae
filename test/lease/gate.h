/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_GATE_H
#define DIBS_TEST_LEASE_GATE_H
/*
 * A driver that does nothing but be watched: each batch is noted and, while the gate is shut, waits to be let through.
 * What it answers the test says.
 */
#include "help.h"
#include "store/core.h"

enum { GATE_BATCHES = 256, GATE_OPS = 64 };

struct gate_batch {
  struct dibs__session *session;
  struct dibs__op *ops[GATE_OPS];
  size_t count;
  uintptr_t thread;
  bool open, left;
};

/* Guarded by a lock of its own; read by tests through the functions below. */
struct gate_plan {
  uint32_t caps, max_sessions, max_batch;
  bool shut; /* batches wait for gate_let */
  /* Answers one operation; NULL: OK. */
  void (*answer)(struct dibs__op *op);
  dibs__status run; /* what run() itself answers; OK if zero */
  bool dead;
  uint32_t refuse_connects; /* so many of the next fail */
};

void gate_begin(struct gate_plan plan); /* forgets what was seen */
void gate_change(struct gate_plan plan);
size_t gate_seen(void); /* batches that came in */
struct gate_batch gate_batch(size_t at);
void gate_let(size_t at); /* lets this one through */
void gate_open(void);     /* and all that come */
uint32_t gate_connects(void);
uint32_t gate_pending(struct dibs__core *core); /* operations that wait to be carried */

/* An operation that counts what becomes of it. */
struct probe {
  struct dibs__op op; /* first */
  struct dibs__core *core;
  _Atomic uint32_t dones;
  _Atomic int status;
  struct dibs__op *hand_in; /* done hands it in */
  _Atomic uint32_t *hold;   /* done waits until it is not 0 */
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

struct dibs__core *gate_core(void); /* opens one; closed by gate_close */
void gate_close(struct dibs__core *core);

#endif
