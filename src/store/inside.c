/* SPDX-License-Identifier: MIT */
/*
 * A core on the caller's own connection.  Who calls holds a row lock in a transaction of its own, it may be: waiting
 * for a leader who waits for that row would be a deadlock that no database sees.  So nobody else carries its
 * operations.
 */
#include "store/core_inside.h"

#include <stdlib.h>
#include <string.h>

dibs__status dibs__core_inside(struct dibs__core *outer, void *connection, struct dibs__core **out,
                               struct dibs__said *said) {
  const struct dibs__driver *driver = outer->store->driver;
  *out = NULL;
  if (!driver->attach) {
    dibs__say(said, "%s can't take part in a transaction of yours", outer->uri.shown);
    return DIBS_UNSUPPORTED;
  }
  struct dibs__core *core = calloc(1, sizeof *core);
  if (!core) return DIBS_NO_MEMORY;
  dibs__status status = driver->attach(outer->store, connection, &core->direct, &core->identity, said);
  if (status != DIBS_OK) {
    free(core);
    return status;
  }
  core->store = outer->store;
  dibs__mutex_init(&core->lock);
  dibs__mutex_init(&core->list_lock);
  dibs__mutex_init(&core->connecting);
  *out = core;
  return DIBS_OK;
}

static void count(struct dibs__core *core, size_t operations, const struct dibs__said *said) {
  dibs__mutex_lock(&core->lock);
  core->counts.batches++;
  core->counts.operations += operations;
  if (said->text[0]) memcpy(core->trouble, said->text, sizeof core->trouble);
  dibs__mutex_unlock(&core->lock);
}

/* Up to a batch of the list; what is left of it. */
static struct dibs__op *carry(struct dibs__core *core, struct dibs__op *list) {
  struct dibs__op *ops[BATCH_DEFAULT];
  struct dibs__said said = {0};
  dibs__tick now = dibs__tick_now(), by = dibs__tick_add_ms(now, DIBS__IO_MS);
  size_t n = 0;
  for (; list && n < BATCH_DEFAULT; list = list->next) {
    list->status = DIBS_UNKNOWN;
    by = dibs__tick_min(by, list->by);
    ops[n++] = list;
  }
  dibs__status status = core->store->driver->run(core->direct, ops, n, by, &said);
  count(core, n, &said);
  for (size_t i = 0; i < n; i++) {
    if (status != DIBS_OK && status != DIBS_UNKNOWN) ops[i]->status = status;
    ops[i]->sent = now;
    ops[i]->at = said.now;
    ops[i]->next = NULL;
    ops[i]->done(ops[i]);
  }
  return list;
}

void dibs__core_direct(struct dibs__core *core, struct dibs__op *list) {
  while (list) list = carry(core, list);
}
