/* SPDX-License-Identifier: MIT */
/*
 * Tasks in a table of the user's: what is different from those in dibs' own.
 *
 * The store accepts an extension and an end only with the locked_at of the answer before it.  So the requests for one
 * task follow one another: `busy` is 1 while one is under way.  An extension is a request of the worker's keeper, and
 * an end one of the thread that works.
 */
#include "lease/lease.h"
#include "task/task_impl.h"

#include <string.h>

#define COARSE_MS INT64_C(1000) /* a column of whole seconds cuts up to this from a claim */

const char *dibs__own_kind(const char *kind, const struct dibs__table *table) {
  return table && (!kind || !*kind) ? table->table : kind;
}

dibs__tick dibs__own_until(dibs__tick sent, int64_t timeout_ms, int64_t locked_ms) {
  int64_t ms = locked_ms % COARSE_MS == 0 ? timeout_ms - COARSE_MS : timeout_ms;
  return ms > 0 ? dibs__sure_until(sent, ms) : DIBS__TICK_ZERO;
}

/* ---- One request for a task at a time ---- */

static struct dibs__held *held_at(dibs__own_nth *nth, const void *of, size_t i) {
  return dibs__held_of(nth(of, i));
}

void dibs__own_leave(dibs__own_nth *nth, const void *of, size_t count) {
  for (size_t i = 0; i < count && held_at(nth, of, i)->batch->table; i++) {
    dibs__word *busy = &held_at(nth, of, i)->busy;
    atomic_store(busy, 0);
    dibs__word_wake(busy, UINT32_MAX, false);
  }
}

/* A call that has to wait for one of its tasks leaves the others first, so no two calls wait for each other. */
bool dibs__own_enter(dibs__own_nth *nth, const void *of, size_t count, dibs__tick by) {
  for (size_t i = 0; i < count && held_at(nth, of, i)->batch->table;) {
    dibs__word *busy = &held_at(nth, of, i)->busy;
    uint32_t idle = 0;
    if (atomic_compare_exchange_strong(busy, &idle, 1)) {
      i++;
      continue;
    }
    dibs__own_leave(nth, of, i);
    if (!dibs__word_wait(busy, 1, by, false)) return false;
    i = 0;
  }
  return true;
}

/* ---- Items ---- */

size_t dibs__own_bytes(const dibs_task *task) {
  const struct dibs__held *held = (const struct dibs__held *)task;
  return held->batch->table ? strlen(task->key) + strlen(held->locked) : 0;
}

void dibs__own_fill(struct dibs__request *request, struct dibs__task_item *item, dibs_task *task) {
  struct dibs__held *held = dibs__held_of(task);
  if (!held->batch->table) return;
  item->key = dibs__request_keep(request, task->key, strlen(task->key));
  item->locked = dibs__request_keep(request, held->locked, strlen(held->locked));
}

void dibs__own_keep(struct dibs__held *held, const char *locked, size_t length) {
  if (length >= sizeof held->locked) length = sizeof held->locked - 1;
  if (length > 0) memcpy(held->locked, locked, length);
  held->locked[length] = '\0';
}
