/* SPDX-License-Identifier: MIT */
/*
 * Additions that are committed in the database, or in the fast store in front of it, when their call returns: each of
 * the two has a line of batches.  Callers of one line join the open batch.  One of them seals
 * and sends it; those that come meanwhile join the next one.  So a hot key takes one row lock and one commit for all
 * callers that wait for it.
 *
 * The callers of a batch come back with their next additions a moment after it is settled, one after the other.  A
 * batch that was sealed by the first of them would have one addition, and all others would wait for it.  So the sender
 * waits until as many have joined as were in the last batch, for at most a quarter of the time that this batch took.
 *
 * Any caller that waits may send: that of the batch that is on its way, if the caller that sent it has left by its
 * deadline; and those of the open batch, because the batch before theirs must be settled first.  A batch whose callers
 * have all left is given up: they were answered UNKNOWN, or UNAVAILABLE if no attempt can have been applied.
 */
#include "counter/counter_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PAUSE_MS = 5, PAUSE_MAX_MS = 200, GATHER_PART = 4 };
#define GATHER_MAX_NS INT64_C(2000000)

typedef struct dibs__count_line line_t;
typedef struct dibs__count_batch batch_t;

static void drop_locked(batch_t *b) {
  if (--b->refs > 0) return;
  dibs__count_batch_clear(b);
  free(b);
}

static void wake(batch_t *b, uint32_t count) {
  if (!b) return;
  atomic_fetch_add(&b->word, 1);
  dibs__word_wake(&b->word, count, false);
}

/* Somebody else must send now. */
static void pass_on_locked(line_t *l) {
  if (l->busy) return;
  if (l->sent && l->sent->waiters > 0)
    wake(l->sent, 1);
  else
    wake(l->open, 1);
}

/* ---- Joining ---- */

/* Into the open batch.  false: it is full, or the sum would not fit. */
static bool add_locked(batch_t *b, const char *key, uint32_t len, uint64_t hash, int64_t delta, bool *no_memory) {
  struct dibs__sum *s = dibs__sums_find(&b->sums, key, len, hash);
  if (!s && b->sums.count >= DIBS__COUNTER_ITEMS) return false;
  if (!s) s = dibs__sums_make(&b->sums, key, len, hash);
  *no_memory = !s;
  int64_t sum; /* an overflow leaves a wrong one */
  if (!s || __builtin_add_overflow(s->sum, delta, &sum)) return false;
  s->sum = sum;
  return true;
}

static bool open_locked(line_t *l) {
  if (l->open) return true;
  l->open = calloc(1, sizeof *l->open);
  if (!l->open) return false;
  l->open->refs = 1;
  l->open->status = DIBS_UNKNOWN;
  return true;
}

/* ---- Sending ---- */

/* The batch on its way is settled, or nobody waits for it any more. */
static void settle_locked(line_t *l) {
  batch_t *b = l->sent;
  l->sent = NULL;
  wake(b, INT32_MAX);
  drop_locked(b);
}

static void gather_locked(line_t *l) {
  int64_t most_ns = l->took_ns / GATHER_PART < GATHER_MAX_NS ? l->took_ns / GATHER_PART : GATHER_MAX_NS;
  dibs__tick end = {dibs__tick_now().ns + most_ns};
  l->busy = true;
  while (l->open->waiters < l->callers && dibs__tick_before(dibs__tick_now(), end)) {
    dibs__mutex_unlock(&l->group->lock);
    dibs__yield();
    dibs__mutex_lock(&l->group->lock);
  }
  l->busy = false;
}

static bool seal_locked(line_t *l) {
  if (l->sent) return true;
  gather_locked(l);
  if (!dibs__count_seal(&l->source, l->open)) return false;
  l->sent = l->open;
  l->open = NULL;
  return true;
}

/* Sends the batch on its way, or the open one, once; afterwards somebody else may. */
static void send_locked(line_t *l, dibs__tick by, uint32_t nth) {
  if (!seal_locked(l)) { /* no memory: perhaps soon */
    dibs__mutex_unlock(&l->group->lock);
    dibs__nap_ms(PAUSE_MS);
    dibs__mutex_lock(&l->group->lock);
    return;
  }
  batch_t *b = l->sent;
  dibs__tick began = dibs__tick_now();
  l->busy = true;
  l->callers = b->waiters;
  b->refs++;
  dibs__mutex_unlock(&l->group->lock);
  bool settled = l->shared ? dibs__count_send_shared(l, b, by) : dibs__count_send(l->group, &l->source, b, by);
  int64_t took_ns = dibs__tick_now().ns - began.ns;
  int64_t pause_ms = (int64_t)PAUSE_MS << (nth < 5 ? nth : 5), left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
  if (pause_ms > PAUSE_MAX_MS) pause_ms = PAUSE_MAX_MS;
  if (!settled && left_ms > 0) dibs__nap_ms(pause_ms < left_ms ? pause_ms : left_ms);
  dibs__mutex_lock(&l->group->lock);
  l->busy = false;
  l->took_ns = took_ns;
  if (!settled && b->waiters > 0) {
    b->status = DIBS_UNKNOWN;
  } else {
    if (!settled) b->status = b->unsure ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
    settle_locked(l);
  }
  drop_locked(b);
}

/* ---- One caller ---- */

struct caller {
  line_t *line;
  const char *key;
  uint32_t len;
  uint64_t hash;
  int64_t delta;
  dibs__tick by;
  dibs_error *error;
};

/* dibs_close ends every wait; what this caller added it learns as at the end of its time. */
static bool is_over(const struct caller *c) {
  return c->line->group->counters->store->closing || !dibs__tick_before(dibs__tick_now(), c->by);
}

static bool is_settled(const line_t *l, const batch_t *b) {
  return b != l->open && b != l->sent;
}

/* The caller's time is over before its batch is settled.  It takes its addition out again, because the others may still
 * send the batch: the opposite was possible a moment ago.  It can't while an attempt runs, whose sender alone may look
 * at the batch, or after an attempt that may have been applied. */
static dibs_status leave_locked(struct caller *c, batch_t *b) {
  line_t *l = c->line;
  bool sending = l->busy && b == l->sent, sealed = b->sorted != NULL;
  struct dibs__sum *s = sending || b->unsure ? NULL : dibs__sums_find(&b->sums, c->key, c->len, c->hash);
  int64_t sum;
  bool out = s && !__builtin_sub_overflow(s->sum, c->delta, &sum);
  if (out) s->sum = sum;
  const char *why = !sealed ? "other batches took all the time" : "no answer in time";
  if (sealed && !sending && b->text[0]) why = b->text;
  return dibs__fail(c->error, out ? DIBS_UNAVAILABLE : DIBS_UNKNOWN, "adding to \"%s\" at %s: %s%s", c->key,
                    l->group->counters->store->shown, why, out ? "; nothing was added" : "");
}

dibs_status dibs__count_explain(dibs_store *store, const char *key, const struct dibs__table *table, dibs_status status,
                                const char *why, dibs_error *error) {
  switch (status) {
  case DIBS_OK:
    return dibs__fine(error);
  case DIBS_FULL:
    return dibs__fail(error, status, "adding to \"%s\": the sum does not fit; nothing was added", key);
  case DIBS_NOT_FOUND:
    return dibs__fail(error, status, "adding to \"%s\": the table \"%s\" has no such row; insert it first", key,
                      table ? table->table : "");
  default:
    if (status == DIBS_INVALID && !why[0]) why = "the row has no whole number, or the store can't keep such a key";
    return dibs__fail(error, status, "adding to \"%s\" at %s: %s", key, store->shown,
                      why[0] ? why : dibs_status_text(status));
  }
}

static dibs_status result_of(const struct caller *c, const batch_t *b) {
  const struct dibs__sum *s = dibs__sums_find(&b->sums, c->key, c->len, c->hash);
  dibs_status status = b->status == DIBS_OK && s ? (dibs_status)s->status : b->status;
  const struct dibs__count_group *g = c->line->group;
  return dibs__count_explain(g->counters->store, c->key, g->table, status, b->text, c->error);
}

/* Joins the open batch; if that has no place, helps to send it and what is before it.  NULL: the error is set. */
static batch_t *join_locked(struct caller *c, dibs_status *status) {
  line_t *l = c->line;
  for (uint32_t nth = 0;; nth++) {
    bool no_memory = !open_locked(l);
    if (!no_memory && add_locked(l->open, c->key, c->len, c->hash, c->delta, &no_memory)) return l->open;
    *status = DIBS_NO_MEMORY;
    if (no_memory) {
      dibs__fail(c->error, *status, "out of memory for an addition to \"%s\"", c->key);
      return NULL;
    }
    *status = DIBS_UNAVAILABLE;
    if (is_over(c)) {
      dibs__fail(c->error, *status, "adding to \"%s\": other batches took all the time; nothing was added", c->key);
      return NULL;
    }
    if (l->busy) {
      dibs__mutex_unlock(&l->group->lock);
      dibs__nap_ms(1);
      dibs__mutex_lock(&l->group->lock);
    } else {
      send_locked(l, c->by, nth);
    }
  }
}

static dibs_status wait_locked(struct caller *c, batch_t *b) {
  line_t *l = c->line;
  for (uint32_t nth = 0; !is_settled(l, b);) {
    if (is_over(c)) return leave_locked(c, b);
    if (!l->busy) {
      send_locked(l, c->by, nth++);
      continue;
    }
    uint32_t seen = atomic_load(&b->word);
    dibs__mutex_unlock(&l->group->lock);
    dibs__word_wait(&b->word, seen, c->by, false);
    dibs__mutex_lock(&l->group->lock);
  }
  return result_of(c, b);
}

dibs_status dibs__count_join(line_t *l, const char *key, uint32_t len, uint64_t hash, int64_t delta, dibs__tick by,
                             dibs_error *error) {
  struct caller c = {l, key, len, hash, delta, by, error};
  dibs_status status;
  dibs__mutex_lock(&l->group->lock);
  batch_t *b = join_locked(&c, &status);
  if (b) {
    b->refs++;
    b->waiters++;
    status = wait_locked(&c, b);
    b->waiters--;
    if (b == l->sent && b->waiters == 0 && !l->busy) settle_locked(l); /* given up */
    drop_locked(b);
  }
  pass_on_locked(l);
  dibs__mutex_unlock(&l->group->lock);
  return status;
}
