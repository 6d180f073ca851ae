/* SPDX-License-Identifier: MIT */
#include "drivers/shim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct dibs__shim *shim_of(struct dibs__dstore *store) {
  return (struct dibs__shim *)store;
}

static struct dibs__session *inner_of(struct dibs__session *session) {
  return ((struct dibs__shim_session *)session)->inner;
}

struct dibs__shim *dibs__shim_new(size_t size, const struct dibs__driver *driver, struct dibs__dstore *inner,
                                  struct dibs__said *said) {
  assert(size >= sizeof(struct dibs__shim) && inner);
  struct dibs__shim *shim = calloc(1, size);
  if (!shim) {
    dibs__say(said, "no memory for the %s shim", driver->name);
    return NULL;
  }
  shim->base.driver = driver;
  shim->inner = inner;
  return shim;
}

void dibs__shim_close(struct dibs__dstore *store) {
  free(store);
}

dibs__status dibs__shim_connect_sized(size_t size, struct dibs__dstore *store, dibs__tick by,
                                      struct dibs__session **session, struct dibs__identity *identity,
                                      struct dibs__said *said) {
  assert(size >= sizeof(struct dibs__shim_session));
  struct dibs__dstore *inner = shim_of(store)->inner;
  *session = NULL;
  struct dibs__shim_session *made = calloc(1, size);
  if (!made) {
    *said = (struct dibs__said){.sent = dibs__tick_now()};
    dibs__say(said, "no memory for a session of the %s shim", store->driver->name);
    return DIBS_NO_MEMORY;
  }
  made->base.store = store;
  dibs__status status = inner->driver->connect(inner, by, &made->inner, identity, said);
  if (status == DIBS_OK)
    *session = &made->base;
  else
    free(made);
  return status;
}

dibs__status dibs__shim_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                struct dibs__identity *identity, struct dibs__said *said) {
  return dibs__shim_connect_sized(sizeof(struct dibs__shim_session), store, by, session, identity, said);
}

void dibs__shim_disconnect(struct dibs__session *session) {
  struct dibs__session *inner = inner_of(session);
  inner->store->driver->disconnect(inner);
  free(session);
}

dibs__status dibs__shim_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__said *said) {
  struct dibs__session *inner = inner_of(session);
  return inner->store->driver->run(inner, ops, count, by, said);
}

dibs__status dibs__shim_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by) {
  struct dibs__dstore *inner = shim_of(store)->inner;
  return inner->driver->events(inner, events, cap, count, by);
}

void dibs__shim_wake(struct dibs__dstore *store) {
  struct dibs__dstore *inner = shim_of(store)->inner;
  inner->driver->wake(inner);
}

dibs__status dibs__shim_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                             struct dibs__said *said) {
  struct dibs__session *inner = inner_of(session);
  return inner->store->driver->list(inner, list, by, said);
}

void dibs__shim_tidy(struct dibs__dstore *store) {
  struct dibs__dstore *inner = shim_of(store)->inner;
  if (inner->driver->tidy) inner->driver->tidy(inner);
}

/* ---- Answers that never arrive ---- */

struct dibs__shim_before {
  dibs__mandate has;
  union {
    struct dibs__lease_op lease;
    struct dibs__anchor_op anchor;
    struct dibs__record_op record;
    struct dibs__stock_op stock;
    struct dibs__once_op once;
    struct dibs__report_op report;
  } op;
};

struct dibs__shim_before *dibs__shim_remember(struct dibs__op *const ops[], size_t count) {
  struct dibs__shim_before *before = calloc(count + 1, sizeof *before);
  if (!before) return NULL;
  for (size_t i = 0; i < count; i++) {
    before[i].has = ops[i]->has;
    if (ops[i]->family == DIBS__FAM_LEASE) {
      const struct dibs__lease_op *op = (const struct dibs__lease_op *)ops[i];
      struct dibs__lease_op *to = &before[i].op.lease;
      to->fence = op->fence, to->ticket = op->ticket;
      to->waiting = op->waiting, to->got_block = op->got_block, to->slot = op->slot, to->was = op->was;
      to->until = op->until, to->recheck = op->recheck;
    } else if (ops[i]->family == DIBS__FAM_ANCHOR) {
      before[i].op.anchor.stands = ((const struct dibs__anchor_op *)ops[i])->stands;
      before[i].op.anchor.served = ((const struct dibs__anchor_op *)ops[i])->served;
    } else if (ops[i]->family == DIBS__FAM_RECORD) {
      const struct dibs__record_op *op = (const struct dibs__record_op *)ops[i];
      struct dibs__record_op *to = &before[i].op.record;
      to->seen = op->seen, to->version = op->version, to->got = op->got, to->got_len = op->got_len;
      memcpy(to->stands, op->stands, sizeof to->stands);
    } else if (ops[i]->family == DIBS__FAM_STOCK) {
      before[i].op.stock = *(const struct dibs__stock_op *)ops[i];
    } else if (ops[i]->family == DIBS__FAM_ONCE) {
      before[i].op.once = *(const struct dibs__once_op *)ops[i];
    } else if (ops[i]->family == DIBS__FAM_REPORT) {
      before[i].op.report.got = ((const struct dibs__report_op *)ops[i])->got;
      before[i].op.report.got_count = ((const struct dibs__report_op *)ops[i])->got_count;
    }
  }
  return before;
}

void dibs__shim_drop_answers(struct dibs__shim_before *before, struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++) {
    ops[i]->status = DIBS_UNKNOWN;
    ops[i]->has = before[i].has;
    if (ops[i]->family == DIBS__FAM_LEASE) {
      struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
      const struct dibs__lease_op *from = &before[i].op.lease;
      op->fence = from->fence, op->ticket = from->ticket;
      op->waiting = from->waiting, op->got_block = from->got_block, op->slot = from->slot, op->was = from->was;
      op->until = from->until, op->recheck = from->recheck;
    } else if (ops[i]->family == DIBS__FAM_ANCHOR) {
      ((struct dibs__anchor_op *)ops[i])->stands = before[i].op.anchor.stands;
      ((struct dibs__anchor_op *)ops[i])->served = before[i].op.anchor.served;
    } else if (ops[i]->family == DIBS__FAM_RECORD) {
      struct dibs__record_op *op = (struct dibs__record_op *)ops[i];
      const struct dibs__record_op *from = &before[i].op.record;
      if (op->got != from->got) free(op->got);
      op->seen = from->seen, op->version = from->version, op->got = from->got, op->got_len = from->got_len;
      memcpy(op->stands, from->stands, sizeof op->stands);
      op->why[0] = '\0';
    } else if (ops[i]->family == DIBS__FAM_STOCK) {
      struct dibs__stock_op *op = (struct dibs__stock_op *)ops[i];
      const struct dibs__stock_op *from = &before[i].op.stock;
      op->got = from->got, op->used = from->used, op->limit = from->limit;
      op->retries = from->retries, op->deadlocks = from->deadlocks;
    } else if (ops[i]->family == DIBS__FAM_ONCE) {
      struct dibs__once_op *op = (struct dibs__once_op *)ops[i];
      const struct dibs__once_op *from = &before[i].op.once;
      if (op->got != from->got) free(op->got);
      op->got = from->got, op->got_len = from->got_len;
      op->age_ms = from->age_ms, op->left_ms = from->left_ms;
    } else if (ops[i]->family == DIBS__FAM_REPORT) {
      struct dibs__report_op *op = (struct dibs__report_op *)ops[i];
      const struct dibs__report_op *from = &before[i].op.report;
      if (op->got != from->got) free(op->got);
      op->got = from->got, op->got_count = from->got_count;
    }
  }
}

void dibs__shim_forget(struct dibs__shim_before *before) {
  free(before);
}

/* splitmix64 */
uint64_t dibs__shim_draw(uint64_t seed, uint64_t n) {
  uint64_t x = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}
