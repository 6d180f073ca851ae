/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "hold.h"

#include "drivers/wrap/shim.h"
#include "lease/lease_impl.h"
#include "store/combiner_impl.h"
#include "store/task.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static char wanted[64];
static bool extensions;
static uint32_t held, era; /* batches that were held in an earlier era continue */
static bool (*before_list)(void *user);
static void *before_list_user;

static bool carries(struct dibs__op *const ops[], size_t count) {
  size_t length = strlen(wanted);
  for (size_t i = 0; i < count && extensions; i++)
    if (ops[i]->family == DIBS__FAM_TASK && ops[i]->verb == DIBS__TASK_EXTEND) return true;
  for (size_t i = 0; i < count && length > 0; i++) {
    if (ops[i]->family != DIBS__FAM_LEASE) continue;
    dibs__str name = ((struct dibs__lease_op *)ops[i])->name;
    if (name.len == length && memcmp(name.p, wanted, length) == 0) return true;
  }
  return false;
}

static dibs__status hold_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *reported) {
  pthread_mutex_lock(&lock);
  if (carries(ops, count)) {
    uint32_t mine = era;
    held++;
    while (era == mine) pthread_cond_wait(&moved, &lock);
    held--;
  }
  pthread_mutex_unlock(&lock);
  /* Any delay is fine: the test decides what is late. */
  if (!dibs__tick_before(dibs__tick_now(), by)) by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  return dibs__shim_run(session, ops, count, by, reported);
}

static dibs__status list_held(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                              struct dibs__result *reported) {
  pthread_mutex_lock(&lock);
  bool (*before)(void *user) = before_list;
  before_list = NULL;
  pthread_mutex_unlock(&lock);
  *reported = (struct dibs__result){.sent = dibs__tick_now()};
  return before && !before(before_list_user) ? DIBS_DENIED : dibs__shim_list(session, list, by, reported);
}

static const struct dibs__driver driver;
static dibs__status hold_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                              dibs__tick by, struct dibs__dstore **store, struct dibs__result *reported) {
  (void)uri, (void)count, (void)by;
  *reported = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__shim *shim = dibs__shim_new(sizeof *shim, &driver, inner[0], reported);
  if (!shim) return DIBS_NO_MEMORY;
  *store = &shim->base;
  return DIBS_OK;
}

static const char *const schemes[] = {"hold", NULL};
static const struct dibs__driver driver = {.size = sizeof(struct dibs__driver),
                                           .abi = DIBS__DRIVER_ABI,
                                           .name = "hold",
                                           .schemes = schemes,
                                           .inner_min = 1,
                                           .inner_max = 1,
                                           .open = hold_open,
                                           .close = dibs__shim_close,
                                           .connect = dibs__shim_connect,
                                           .disconnect = dibs__shim_disconnect,
                                           .run = hold_run,
                                           .events = dibs__shim_events,
                                           .wake = dibs__shim_wake,
                                           .list = list_held,
                                           .tidy = dibs__shim_tidy};

void hold_begin(void) {
  dibs__driver_add(&driver);
}

void hold_name(const char *name) {
  pthread_mutex_lock(&lock);
  wanted[0] = '\0';
  if (name) snprintf(wanted, sizeof wanted, "%s", name);
  if (!name) era++;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

void hold_extensions(bool on) {
  pthread_mutex_lock(&lock);
  extensions = on;
  if (!on) era++;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

void hold_list(bool (*before)(void *user), void *user) {
  pthread_mutex_lock(&lock);
  before_list = before;
  before_list_user = user;
  pthread_mutex_unlock(&lock);
}

void hold_continue(void) {
  pthread_mutex_lock(&lock);
  era++;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

uint32_t held_now(void) {
  pthread_mutex_lock(&lock);
  uint32_t now = held;
  pthread_mutex_unlock(&lock);
  return now;
}

uint32_t pending_in(dibs_store *store) {
  dibs__mutex_lock(&store->core->lock);
  uint32_t count = store->core->pending;
  dibs__mutex_unlock(&store->core->lock);
  return count;
}
