/* SPDX-License-Identifier: MIT */
#include "drivers/wrap/shim.h"
#include "store/family.h"

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
                                  struct dibs__result *result) {
  assert(size >= sizeof(struct dibs__shim) && inner);
  struct dibs__shim *shim = calloc(1, size);
  if (!shim) {
    dibs__set_message(result, "out of memory for the %s shim", driver->name);
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
                                      struct dibs__result *result) {
  assert(size >= sizeof(struct dibs__shim_session));
  struct dibs__dstore *inner = shim_of(store)->inner;
  *session = NULL;
  struct dibs__shim_session *made = calloc(1, size);
  if (!made) {
    *result = (struct dibs__result){.sent = dibs__tick_now()};
    dibs__set_message(result, "out of memory for a session of the %s shim", store->driver->name);
    return DIBS_NO_MEMORY;
  }
  made->base.store = store;
  dibs__status status = inner->driver->connect(inner, by, &made->inner, identity, result);
  if (status == DIBS_OK)
    *session = &made->base;
  else
    free(made);
  return status;
}

dibs__status dibs__shim_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                struct dibs__identity *identity, struct dibs__result *result) {
  return dibs__shim_connect_sized(sizeof(struct dibs__shim_session), store, by, session, identity, result);
}

void dibs__shim_disconnect(struct dibs__session *session) {
  struct dibs__session *inner = inner_of(session);
  inner->store->driver->disconnect(inner);
  free(session);
}

dibs__status dibs__shim_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__result *result) {
  struct dibs__session *inner = inner_of(session);
  return inner->store->driver->run(inner, ops, count, by, result);
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
                             struct dibs__result *result) {
  struct dibs__session *inner = inner_of(session);
  return inner->store->driver->list(inner, list, by, result);
}

void dibs__shim_tidy(struct dibs__dstore *store) {
  struct dibs__dstore *inner = shim_of(store)->inner;
  if (inner->driver->tidy) inner->driver->tidy(inner);
}

/* ---- Answers that never arrive ---- */

struct dibs__shim_before {
  size_t size;
  char memory[]; /* the operations, one behind the other */
};

struct dibs__shim_before *dibs__shim_remember(struct dibs__op *const ops[], size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++) size += dibs__family_of(ops[i])->size;
  struct dibs__shim_before *before = malloc(sizeof *before + size);
  if (!before) return NULL;
  before->size = size;
  char *to = before->memory;
  for (size_t i = 0; i < count; i++) {
    memcpy(to, ops[i], dibs__family_of(ops[i])->size);
    to += dibs__family_of(ops[i])->size;
  }
  return before;
}

/* The head is the core's, but for the answers in it. */
void dibs__shim_drop_answers(struct dibs__shim_before *before, struct dibs__op *const ops[], size_t count) {
  const char *from = before->memory;
  for (size_t i = 0; i < count; i++) {
    const size_t size = dibs__family_of(ops[i])->size, got = dibs__family_of(ops[i])->got;
    const void *answer, *answer_before;
    memcpy(&answer, (char *)ops[i] + got, sizeof answer);
    memcpy(&answer_before, from + got, sizeof answer_before);
    if (got && answer != answer_before) dibs__op_free_answer(ops[i]);
    memcpy((char *)ops[i] + sizeof(struct dibs__op), from + sizeof(struct dibs__op), size - sizeof(struct dibs__op));
    memcpy(&ops[i]->has, from + offsetof(struct dibs__op, has), sizeof ops[i]->has);
    ops[i]->status = DIBS_UNKNOWN;
    from += size;
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
