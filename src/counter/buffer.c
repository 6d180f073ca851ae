/* SPDX-License-Identifier: MIT */
/*
 * Additions in the memory of the process.  A thread adds in a stripe of its own, so that threads rarely wait for each
 * other.  One thread of the library, the flusher, writes them: it collects the stripes into one table, and sends this
 * as batches, one after the other.  While the store does not answer, it repeats the first batch, and the stripes go on.
 */
#include "counter/counter_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_MS = 50, RETRY_MAX_MS = 1000, SEND_MS = DIBS__COUNT_CLOSE_MS };

typedef struct dibs__counters counters_t;
typedef struct dibs__count_group group_t;
typedef struct dibs__count_batch batch_t;
typedef struct dibs__count_stripe stripe_t;

static void run_flusher(void *arg);

/* ---- Adding ---- */

static stripe_t *my_stripe(group_t *g) {
  static _Atomic uint32_t threads;
  static _Thread_local uint32_t mine;
  if (mine == 0) mine = atomic_fetch_add(&threads, 1) % DIBS__COUNT_STRIPES + 1;
  return &g->stripes[mine - 1];
}

static void wake_flusher(counters_t *c) {
  atomic_fetch_add(&c->wake, 1);
  dibs__word_wake(&c->wake, 1, false);
}

static bool add_sum(struct dibs__sum *s, int64_t delta) {
  int64_t sum;
  if (__builtin_add_overflow(s->sum, delta, &sum) || sum > DIBS__COUNT_SUM_MAX || sum < -DIBS__COUNT_SUM_MAX)
    return false;
  s->sum = sum;
  return true;
}

static dibs_status too_much(const char *key, dibs_error *error) {
  return dibs__fail(error, DIBS_FULL,
                    "adding to \"%s\": what is buffered for it would be more than 57 bits; use the level durable", key);
}

static bool start_flusher(counters_t *c) {
  dibs__mutex_lock(&c->lock);
  if (!c->flusher && !c->stopping) c->flusher = dibs__thread_start("dibs-counter", run_flusher, c);
  bool runs = c->flusher != NULL;
  dibs__mutex_unlock(&c->lock);
  return runs;
}

/* A key that the stripe does not have yet. */
static dibs_status add_key(group_t *g, stripe_t *stripe, const char *key, uint32_t len, uint64_t hash, int64_t delta,
                           dibs_error *error) {
  counters_t *c = g->counters;
  dibs_status status = dibs__count_check_key(key, error);
  if (status != DIBS_OK) return status;
  if (atomic_load(&c->keys) >= DIBS__COUNT_KEYS_MAX)
    return dibs__fail(error, DIBS_UNAVAILABLE,
                      "adding to \"%s\": this process has buffered %d keys that %s did not take yet", key,
                      DIBS__COUNT_KEYS_MAX, c->store->shown);
  if (!start_flusher(c)) return dibs__fail(error, DIBS_NO_MEMORY, "no thread can be started for buffered counters");
  dibs__mutex_lock(&stripe->lock);
  struct dibs__sum *s = dibs__sums_find(&stripe->sums, key, len, hash);
  int64_t keys = 1;
  if (!s) {
    s = dibs__sums_make(&stripe->sums, key, len, hash);
    if (s) keys = atomic_fetch_add(&c->keys, 1);
  }
  bool added = s && add_sum(s, delta);
  dibs__mutex_unlock(&stripe->lock);
  if (keys == 0 || keys + 1 == DIBS__COUNT_FLUSH_KEYS + atomic_load(&c->refused)) wake_flusher(c);
  if (!s) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for an addition to \"%s\"", key);
  return added ? dibs__fine(error) : too_much(key, error);
}

dibs_status dibs__count_buffer(group_t *g, const char *key, uint32_t len, uint64_t hash, int64_t delta,
                               dibs_error *error) {
  stripe_t *stripe = my_stripe(g);
  dibs__mutex_lock(&stripe->lock);
  struct dibs__sum *s = dibs__sums_find(&stripe->sums, key, len, hash);
  bool added = s && add_sum(s, delta);
  dibs__mutex_unlock(&stripe->lock);
  if (added) return dibs__fine(error);
  return s ? too_much(key, error) : add_key(g, stripe, key, len, hash, delta, error);
}

/* ---- What is buffered of a key ---- */

static int64_t sum_of(const struct dibs__sums *sums, const char *key, uint32_t len, uint64_t hash) {
  const struct dibs__sum *s = dibs__sums_find(sums, key, len, hash);
  return s ? s->sum : 0;
}

/* A table from which keys were moved can't be searched. */
static int64_t sum_in_rest(const struct dibs__sums *sums, const char *key, uint32_t len) {
  for (const struct dibs__sum *s = NULL; (s = dibs__sums_next(sums, s));)
    if (s->len == len && memcmp(s->key, key, len) == 0) return s->sum;
  return 0;
}

int64_t dibs__count_buffered(group_t *g, const char *key, uint32_t len, uint64_t hash, bool *sending,
                             uint64_t *settled) {
  dibs__mutex_lock(&g->lock);
  int64_t sum = sum_in_rest(&g->collected, key, len);
  *sending = g->sending && g->current && dibs__sums_find(&g->current->sums, key, len, hash);
  *settled = g->settled;
  if (g->current) sum += sum_of(&g->current->sums, key, len, hash);
  for (size_t i = 0; i < DIBS__COUNT_STRIPES; i++) {
    dibs__mutex_lock(&g->stripes[i].lock);
    sum += sum_of(&g->stripes[i].sums, key, len, hash);
    dibs__mutex_unlock(&g->stripes[i].lock);
  }
  dibs__mutex_unlock(&g->lock);
  return sum;
}

/* ---- The flusher: one batch ---- */

/* Moves the sums of a stripe.  Without memory the rest stays there, and what was moved stays as a key with sum 0. */
static bool collect_stripe_locked(group_t *g, stripe_t *stripe) {
  bool whole = dibs__sums_reserve(&g->collected, stripe->sums.count);
  int64_t merged = 0;
  for (struct dibs__sum *s = NULL; whole && (s = dibs__sums_next(&stripe->sums, s));)
    merged += dibs__sums_take(&g->collected, &stripe->sums, s);
  if (whole) dibs__sums_clear(&stripe->sums);
  atomic_fetch_sub(&g->counters->keys, merged);
  return whole;
}

static void collect_locked(group_t *g) {
  bool whole = true;
  for (size_t i = 0; i < DIBS__COUNT_STRIPES && whole; i++) {
    dibs__mutex_lock(&g->stripes[i].lock);
    whole = collect_stripe_locked(g, &g->stripes[i]);
    dibs__mutex_unlock(&g->stripes[i].lock);
  }
}

/* The next batch, from what was collected.  false: there is nothing to send, or no memory (*no_memory). */
static bool make_batch_locked(group_t *g, bool *no_memory) {
  size_t most = g->collected.count < DIBS__COUNTER_ITEMS ? g->collected.count : DIBS__COUNTER_ITEMS, n = 0;
  if (most == 0) return false;
  batch_t *b = calloc(1, sizeof *b);
  *no_memory = !b || !dibs__sums_reserve(&b->sums, most);
  if (*no_memory) {
    free(b);
    return false;
  }
  for (struct dibs__sum *s = NULL; n < most && (s = dibs__sums_next(&g->collected, s)); n++)
    (void)dibs__sums_take(&b->sums, &g->collected, s);
  if (g->collected.count == 0) dibs__sums_clear(&g->collected);
  g->current = b;
  return true;
}

static bool is_too_old(const batch_t *b) {
  return b->unsure && dibs__tick_before(dibs__tick_add_ms(b->since, DIBS__COUNTER_REPEAT_MS), dibs__tick_now());
}

/* Without an outcome: the ledger of the store may forget the batch. */
static void end_unknown(batch_t *b) {
  b->status = DIBS_UNKNOWN;
  for (size_t i = 0; i < b->sums.count; i++) b->sorted[i]->status = DIBS_UNKNOWN;
}

static void settle_locked(group_t *g) {
  batch_t *b = g->current;
  int64_t all = (int64_t)b->sums.count, refused = 0, merged = 0;
  for (struct dibs__sum *s = NULL; (s = dibs__sums_next(&b->sums, s));) {
    if (s->status == DIBS_OK) continue;
    refused++;
    merged += dibs__sums_take(&g->refused, &b->sums, s);
  }
  atomic_fetch_add(&g->counters->refused, refused - merged);
  atomic_fetch_sub(&g->counters->keys, all - refused + merged);
  dibs__count_batch_clear(b);
  free(b);
  g->current = NULL;
  g->settled++;
}

/* Until when what is left is written; NEVER: the store is open. */
static dibs__tick close_by(const counters_t *c) {
  int64_t closed_ns = atomic_load(&c->store->closed_ns);
  return closed_ns ? dibs__tick_add_ms((dibs__tick){closed_ns}, DIBS__COUNT_CLOSE_MS) : DIBS__TICK_NEVER;
}

/* One attempt, if the batch may still be repeated.  true: it is settled.  A process that is stopped after this check
 * finds its deadline over, and sends nothing. */
static bool send_current_locked(group_t *g) {
  batch_t *b = g->current;
  /* So that a refused key finds its place without memory. */
  bool ready = dibs__sums_reserve(&g->refused, b->sums.count) && (b->sorted || dibs__count_seal(&g->buffered, b));
  if (!ready) {
    snprintf(b->text, sizeof b->text, "out of memory");
    return false;
  }
  if (is_too_old(b)) { /* the process was stopped since the last attempt */
    end_unknown(b);
    return true;
  }
  /* An attempt that is on its way when dibs_close begins lasts no longer than that call may take. */
  dibs__tick by = dibs__tick_min(dibs__tick_add_ms(dibs__tick_now(), SEND_MS), close_by(g->counters));
  g->sending = true;
  dibs__mutex_unlock(&g->lock);
  bool settled = dibs__count_send(g, &g->buffered, b, by);
  dibs__mutex_lock(&g->lock);
  g->sending = false;
  return settled;
}

/* Everything that the group had when this began.  false: the store did not take it; the batch is kept. */
static bool flush_group(group_t *g, dibs_status *trouble, char text[DIBS__COUNT_TEXT]) {
  bool ends = true, collected = false, no_memory = false;
  dibs__mutex_lock(&g->lock);
  while (ends) {
    if (!g->current && g->collected.count == 0 && !collected) {
      collect_locked(g);
      collected = true;
    }
    if (!g->current && !make_batch_locked(g, &no_memory)) break;
    ends = send_current_locked(g);
    if (ends) {
      settle_locked(g);
      continue;
    }
    dibs_status failure = g->current->failure == DIBS_OK ? DIBS_UNAVAILABLE : g->current->failure;
    *trouble = g->current->unsure ? DIBS_UNKNOWN : failure;
    memcpy(text, g->current->text, DIBS__COUNT_TEXT);
  }
  dibs__mutex_unlock(&g->lock);
  if (no_memory) {
    *trouble = DIBS_NO_MEMORY;
    snprintf(text, DIBS__COUNT_TEXT, "out of memory");
  }
  return ends && !no_memory;
}

/* ---- The flusher: when ---- */

static bool flush_all(counters_t *c) {
  dibs_status trouble = DIBS_OK;
  char text[DIBS__COUNT_TEXT] = "";
  bool all = true;
  dibs__mutex_lock(&c->lock);
  uint64_t wanted = c->wanted;
  dibs__mutex_unlock(&c->lock);
  for (group_t *g = atomic_load(&c->groups); g; g = g->next) all = flush_group(g, &trouble, text) && all;
  dibs__mutex_lock(&c->lock);
  c->trouble = trouble;
  memcpy(c->text, text, sizeof c->text);
  if (all) c->done = wanted;
  atomic_fetch_add(&c->changed, 1);
  dibs__mutex_unlock(&c->lock);
  dibs__word_wake(&c->changed, INT32_MAX, false);
  return all;
}

struct schedule {
  dibs__tick due;     /* of the next flush; 0: nothing is buffered */
  dibs__tick soonest; /* of a flush because there are many keys */
  int64_t retry_ms;
};

/* Is it time to flush?  Otherwise *until says how long to wait. */
static bool is_due(counters_t *c, struct schedule *s, dibs__tick *until) {
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&c->lock);
  bool asked = c->wanted > c->done || c->stopping;
  dibs__mutex_unlock(&c->lock);
  int64_t keys = atomic_load(&c->keys) - atomic_load(&c->refused);
  *until = DIBS__TICK_NEVER;
  if (asked) return true;
  bool many = keys >= DIBS__COUNT_FLUSH_KEYS;
  if (many && !dibs__tick_before(now, s->soonest)) return true;
  if (keys == 0) {
    s->due = DIBS__TICK_ZERO;
    return false;
  }
  if (s->due.ns == 0) s->due = dibs__tick_add_ms(now, DIBS__COUNT_FLUSH_MS);
  *until = many ? dibs__tick_min(s->due, s->soonest) : s->due;
  return !dibs__tick_before(now, s->due);
}

/* After a failure.  A flush that is requested meanwhile does not wait for the whole pause. */
static void pause_flusher(counters_t *c, struct schedule *s) {
  s->retry_ms = s->retry_ms ? s->retry_ms * 2 : RETRY_MS;
  if (s->retry_ms > RETRY_MAX_MS) s->retry_ms = RETRY_MAX_MS;
  uint32_t seen = atomic_load(&c->wake);
  dibs__word_wait(&c->wake, seen, dibs__tick_add_ms(dibs__tick_now(), s->retry_ms), false);
}

static bool is_stopping(counters_t *c) {
  dibs__mutex_lock(&c->lock);
  bool stopping = c->stopping;
  dibs__mutex_unlock(&c->lock);
  return stopping;
}

static void run_flusher(void *arg) {
  counters_t *c = arg;
  struct schedule s = {.retry_ms = 0};
  for (;;) {
    dibs__tick until;
    uint32_t seen = atomic_load(&c->wake);
    if (!is_due(c, &s, &until)) {
      dibs__word_wait(&c->wake, seen, until, false);
      continue;
    }
    bool stops = is_stopping(c), all = flush_all(c);
    s.due = DIBS__TICK_ZERO;
    s.soonest = dibs__tick_add_ms(dibs__tick_now(), DIBS__COUNT_FLUSH_MIN_MS);
    if (stops && (all || !dibs__tick_before(dibs__tick_now(), close_by(c)))) return;
    if (all)
      s.retry_ms = 0;
    else
      pause_flusher(c, &s);
  }
}

/* ---- Flushing on request ---- */

static dibs_status refused_status(const counters_t *c, dibs_error *error) {
  int64_t refused = atomic_load(&c->refused);
  for (group_t *g = atomic_load(&c->groups); g && refused > 0; g = g->next) {
    dibs__mutex_lock(&g->lock);
    const struct dibs__sum *s = dibs__sums_next(&g->refused, NULL);
    dibs_status status = s ? (dibs_status)s->status : DIBS_OK;
    if (s)
      dibs__fail(error, status,
                 "%lld buffered additions were refused, such as that to \"%s\" (%s): see dibs_counter_refused",
                 (long long)refused, s->key, dibs_status_name(status));
    dibs__mutex_unlock(&g->lock);
    if (status != DIBS_OK) return status;
  }
  return dibs__fine(error);
}

static bool is_sending(const counters_t *c) {
  bool sends = false;
  for (group_t *g = atomic_load(&c->groups); g && !sends; g = g->next) {
    dibs__mutex_lock(&g->lock);
    sends = g->sending;
    dibs__mutex_unlock(&g->lock);
  }
  return sends;
}

dibs_status dibs__count_flush(counters_t *c, dibs__tick by, dibs_error *error) {
  bool in_time = true;
  dibs__mutex_lock(&c->lock);
  bool runs = c->flusher != NULL;
  uint64_t mine = runs ? ++c->wanted : 0;
  if (runs) wake_flusher(c);
  while (c->done < mine && in_time) {
    uint32_t seen = atomic_load(&c->changed);
    dibs__mutex_unlock(&c->lock);
    in_time = !c->store->closing && dibs__word_wait(&c->changed, seen, by, false);
    dibs__mutex_lock(&c->lock);
  }
  dibs__mutex_unlock(&c->lock);
  bool sends = is_sending(c); /* it may be applied */
  dibs__mutex_lock(&c->lock);
  dibs_status status = c->trouble == DIBS_OK ? DIBS_UNAVAILABLE : c->trouble;
  if (sends) status = DIBS_UNKNOWN;
  if (c->done >= mine) status = DIBS_OK;
  if (status != DIBS_OK)
    dibs__fail(error, status, "buffered additions are not all written to %s: %s; the process tries again",
               c->store->shown, c->text[0] ? c->text : "no answer in time");
  dibs__mutex_unlock(&c->lock);
  return status == DIBS_OK ? refused_status(c, error) : status;
}

void dibs__count_stop(counters_t *c) {
  dibs__mutex_lock(&c->lock);
  c->stopping = true;
  dibs__thread *flusher = c->flusher;
  dibs__mutex_unlock(&c->lock);
  wake_flusher(c);
  dibs__thread_join(flusher);
}
