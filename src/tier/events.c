/* SPDX-License-Identifier: MIT */
/*
 * The events of all tiers, in one queue, and the requests of people: view, flags, moves by hand.
 *
 * A thread for each tier sleeps in its events(), from its first grant or queued waiter on.  A full queue becomes one
 * RECHECK event.
 */
#include "tier/tiers_impl.h"

#include <stdio.h>

enum { AT_ONCE = 64, LISTEN_MS = 1000 };

static void queue_event_locked(struct tiers *t, const struct dibs__event *event) {
  if (t->event_count == TIERS_EVENTS) {
    t->overflow = true;
    return;
  }
  t->events[(t->event_first + t->event_count++) % TIERS_EVENTS] = *event;
}

static void notify_all(struct tiers *t, const struct dibs__event *events, size_t count) {
  if (count == 0) return;
  dibs__mutex_lock(&t->event_lock);
  for (size_t i = 0; i < count; i++) queue_event_locked(t, &events[i]);
  dibs__mutex_unlock(&t->event_lock);
  atomic_fetch_add(&t->rung, 1);
  dibs__word_wake(&t->rung, 1, false);
}

void dibs__tiers_notify(struct tiers *t, const struct dibs__event *event) {
  notify_all(t, event, 1);
}

static bool granted_at(const struct here *here, uint32_t tier, uint32_t epoch) {
  bool left = here->left.epoch && here->left_tier == tier && here->left.epoch == epoch;
  return left || (here->tier == tier && here->mandate.epoch == epoch);
}

/* Keeps the fence of an offer only if the waiter may use it before it confirms: under the record's mandate, from a
 * store that makes this promise.  Otherwise the waiter asks the tier.  Strict: always, because only the answer to a
 * request says that it may. */
static void check_offers(struct tier *tier, struct dibs__event *events, size_t count) {
  struct tiers *t = tier->all;
  bool lasts = (atomic_load(&tier->caps) & DIBS__CAP_OFFERS_LAST) != 0;
  dibs__mutex_lock(&t->lock);
  for (size_t i = 0; i < count; i++) {
    struct dibs__event *event = &events[i];
    if (event->what != DIBS__EV_OFFER) continue;
    bool stands = false;
    for (uint32_t b = 0; b < DIBS__BUCKETS && !stands; b++)
      stands = granted_at(&t->here[b], tier->nth, dibs__fence_epoch(event->fence));
    if (stands && t->state.strictness != DIBS__STRICT && (lasts || event->held_until.ns != 0)) continue;
    event->fence.v = 0;
    event->held_until = DIBS__TICK_ZERO;
  }
  dibs__mutex_unlock(&t->lock);
}

static void listener_thread(void *arg) {
  struct tier *tier = arg;
  struct tiers *t = tier->all;
  struct dibs__event events[AT_ONCE];
  while (!atomic_load(&t->leaving)) {
    size_t count = 0;
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LISTEN_MS);
    dibs__status status = tier->store->driver->events(tier->store, events, AT_ONCE, &count, by);
    check_offers(tier, events, count);
    notify_all(t, events, count);
    if (status != DIBS_OK) dibs__nap_ms(TIERS_RETRY_MS);
  }
}

void dibs__tiers_listen(struct tier *tier) {
  struct tiers *t = tier->all;
  if (atomic_load(&tier->listens)) return;
  dibs__mutex_lock(&t->event_lock);
  /* Without a thread the waiters check each second. */
  if (!tier->listener && !atomic_load(&t->leaving))
    tier->listener = dibs__thread_start("dibs-tier-event", listener_thread, tier);
  atomic_store(&tier->listens, tier->listener != NULL);
  dibs__mutex_unlock(&t->event_lock);
}

void dibs__tiers_listen_stop(struct tiers *t) {
  atomic_store(&t->leaving, true);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    struct tier *tier = &t->tiers[i];
    if (!tier->listener) continue;
    tier->store->driver->wake(tier->store);
    dibs__thread_join(tier->listener);
    tier->listener = NULL;
  }
}

dibs__status dibs__tiers_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by) {
  struct tiers *t = tiers_of(store);
  *count = 0;
  for (;;) {
    uint32_t seen = atomic_load(&t->rung);
    dibs__mutex_lock(&t->event_lock);
    if (t->overflow && cap > 0) {
      t->overflow = false;
      t->event_count = 0;
      events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    }
    while (*count < cap && t->event_count > 0) {
      events[(*count)++] = t->events[t->event_first];
      t->event_first = (t->event_first + 1) % TIERS_EVENTS;
      t->event_count--;
    }
    bool woken = t->woken;
    t->woken = false;
    dibs__mutex_unlock(&t->event_lock);
    if (*count > 0 || woken) return DIBS_OK;
    if (!dibs__word_wait(&t->rung, seen, by, false)) return DIBS_OK;
  }
}

void dibs__tiers_wake(struct dibs__dstore *store) {
  struct tiers *t = tiers_of(store);
  dibs__mutex_lock(&t->event_lock);
  t->woken = true;
  dibs__mutex_unlock(&t->event_lock);
  atomic_fetch_add(&t->rung, 1);
  dibs__word_wake(&t->rung, 1, false);
}

/* ---- Requests of people ---- */

/* ---- The view ---- */

static dibs__status reach_tier(struct tiers *t, uint32_t nth, dibs__tick by, struct dibs__result *result) {
  struct dibs__anchor_op read = {.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ, .by = by}};
  struct dibs__op *ops[] = {&read.op};
  return dibs__tier_call(&t->tiers[nth], &t->own[nth], ops, 1, by, result);
}

/* A client that has just started knows nothing about tiers that serve nothing. */
static void reach_unknown(struct tiers *t, dibs__tick by) {
  struct dibs__result result;
  for (uint32_t i = 0; i < t->last; i++) {
    dibs__mutex_lock(&t->lock);
    bool unknown = t->tiers[i].answered.ns == 0;
    dibs__mutex_unlock(&t->lock);
    if (unknown) (void)reach_tier(t, i, by, &result);
  }
}

static void view_tier(struct tiers *t, uint32_t nth, dibs__tick now, struct dibs__tiers_view *view) {
  const struct tier *tier = &t->tiers[nth];
  snprintf(view->tiers[nth].uri, sizeof view->tiers[nth].uri, "%s", tier->uri->shown);
  memcpy(view->tiers[nth].trouble, tier->trouble, sizeof view->tiers[nth].trouble);
  view->tiers[nth].breaker = tier->breaker.state;
  dibs__breaker_rates(&tier->breaker, now, &view->tiers[nth].calls, &view->tiers[nth].failed_percent,
                      &view->tiers[nth].slow_percent);
  view->tiers[nth].reached = tier->reached;
  view->tiers[nth].operations = tier->operations;
  view->tiers[nth].failures = tier->failures;
  view->tiers[nth].p50_ns = dibs__hist_percentile(&tier->took, 50);
  view->tiers[nth].p99_ns = dibs__hist_percentile(&tier->took, 99);
  view->tiers[nth].max_ns = tier->took.max;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    view->tiers[nth].buckets += t->state.mandates[b].epoch && t->state.mandates[b].tier == nth;
}

static void fill_view(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by) {
  struct dibs__result result;
  struct dibs__tiers_client *clients = NULL;
  size_t count = 0;
  dibs__tick soon = dibs__tick_add_ms(dibs__tick_now(), TIERS_CONTROL_MS);
  soon = dibs__tick_min(by, soon);
  if (dibs__timed_lock_take(&t->control, soon)) {
    reach_unknown(t, soon);
    (void)dibs__tiers_sync(t, soon, &clients, &count, &result);
    dibs__timed_lock_release(&t->control);
  }
  struct dibs__tiers_view *view = calloc(1, sizeof *view + count * sizeof *clients);
  op->op.status = view ? DIBS_OK : DIBS_NO_MEMORY;
  if (view) {
    dibs__tick now = dibs__tick_now();
    view->client_count = count;
    view->clients = (struct dibs__tiers_client *)(void *)(view + 1);
    if (count) memcpy(view->clients, clients, count * sizeof *clients);
    for (uint32_t i = 0; i < DIBS__M_COUNT; i++) view->counts[i] = atomic_load(&t->counts[i]);
    dibs__mutex_lock(&t->lock);
    view->state = t->state;
    view->tally = t->tally;
    view->local = t->local;
    view->confirmed_ms = t->confirmed.ns ? tiers_ms(now) - tiers_ms(t->confirmed) : -1;
    view->now_ms = tiers_ms(now) + t->ahead_ms;
    for (uint32_t i = 0; i < t->count; i++) view_tier(t, i, now, view);
    dibs__mutex_unlock(&t->lock);
  }
  free(clients);
  op->got = view;
}

/* ---- Changing ---- */

struct wish {
  const struct dibs__tiers_op *op;
  uint32_t count;
};

static dibs__status change_state(struct dibs__tiers_state *state, void *arg, struct dibs__result *result) {
  const struct wish *wish = arg;
  const struct dibs__tiers_op *op = wish->op;
  switch (op->op.verb) {
  case DIBS__TIERS_FLAG:
    return dibs__tiers_flag_set(state, op->name, op->value, result);
  case DIBS__TIERS_MOVE:
    state->pinned = op->tier;
    return DIBS_OK;
  case DIBS__TIERS_SWITCH:
    state->tiers[op->tier].hand = (enum dibs__tiers_hand)op->value;
    /* Earlier votes no longer count: clients vote again. */
    if (op->value == DIBS__HAND_CLOSED) state->tiers[op->tier].down = false;
    return DIBS_OK;
  case DIBS__TIERS_STRICTNESS:
    state->strictness = (enum dibs__tiers_strictness)op->value;
    return DIBS_OK;
  default: /* BUMP */
    return DIBS_OK;
  }
}

static bool op_is_valid(const struct tiers *t, struct dibs__tiers_op *op) {
  bool of_tier = op->op.verb == DIBS__TIERS_MOVE || op->op.verb == DIBS__TIERS_SWITCH;
  int32_t least = op->op.verb == DIBS__TIERS_MOVE ? -1 : 0;
  bool fine = op->op.verb <= DIBS__TIERS_DISBAND && (op->op.verb != DIBS__TIERS_FLAG || op->name);
  if (of_tier) fine = fine && op->tier >= least && op->tier < (int32_t)t->count;
  if (op->op.verb == DIBS__TIERS_SWITCH) fine = fine && op->value <= DIBS__HAND_CLOSED;
  if (op->op.verb == DIBS__TIERS_STRICTNESS) fine = fine && op->value <= DIBS__STRICT;
  if (!fine) snprintf(op->why, sizeof op->why, "%s has no such tier or setting", t->uri->shown);
  return fine;
}

static dibs__status apply_change(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by,
                                 struct dibs__result *result) {
  struct wish wish = {.op = op, .count = t->count};
  struct heal *why = calloc(1, sizeof *why);
  if (!why) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_control_take(t, by, result);
  if (status != DIBS_OK) {
    free(why);
    return status;
  }
  if (op->op.verb == DIBS__TIERS_MOVE && op->tier >= 0) status = reach_tier(t, (uint32_t)op->tier, by, result);
  /* To become strict: the tiers themselves refuse clients with an old copy, from a time when a copy was valid for long,
   * and these clients then read the anchor. */
  bool stricter = op->op.verb == DIBS__TIERS_STRICTNESS && op->value == DIBS__STRICT;
  why->settles = op->op.verb != DIBS__TIERS_BUMP;
  if (op->op.verb == DIBS__TIERS_BUMP || stricter) {
    why->by_hand = true;
    why->restored = op->op.verb == DIBS__TIERS_BUMP;
    why->above = op->above;
  }
  if (status == DIBS_OK) status = dibs__tiers_change(t, why, change_state, &wish, by, result);
  dibs__timed_lock_release(&t->control);
  free(why);
  return status;
}

/* The same for all buckets of a tier. */
static dibs__status of_all(struct tiers *t, uint32_t nth, enum dibs__anchor_verb verb, dibs__fence above,
                           struct dibs__anchor_op ops[DIBS__BUCKETS], dibs__tick by, struct dibs__result *result) {
  struct dibs__op *list[DIBS__BUCKETS];
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    ops[b] = (struct dibs__anchor_op){
        .op = {.family = DIBS__FAM_ANCHOR, .verb = (uint16_t)verb, .bucket = b, .by = by, .status = DIBS_UNKNOWN},
        .above = above};
    list[b] = &ops[b].op;
  }
  dibs__status status = dibs__tier_call(&t->tiers[nth], &t->own[nth], list, DIBS__BUCKETS, by, result);
  for (uint16_t b = 0; b < DIBS__BUCKETS && status == DIBS_OK; b++) status = ops[b].op.status;
  return status;
}

/* The largest epoch that the anchor's record or any tier knows: any tier that continues alone must be above it, because
 * it may follow any other. */
static dibs__status largest(struct tiers *t, struct dibs__anchor_op ops[DIBS__BUCKETS], uint32_t *epoch, dibs__tick by,
                            struct dibs__result *result) {
  dibs__status status = dibs__tiers_load(t, by, result);
  *epoch = 0;
  if (status == DIBS_NOT_FOUND) status = DIBS_OK;
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (t->state.mandates[b].epoch > *epoch) *epoch = t->state.mandates[b].epoch;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t i = 0; i < t->count && status == DIBS_OK; i++) {
    status = of_all(t, i, DIBS__ANCHOR_READ, DIBS__FENCE_NONE, ops, by, result);
    for (uint32_t b = 0; b < DIBS__BUCKETS && status == DIBS_OK; b++) {
      uint32_t drawn = dibs__fence_epoch(ops[b].last);
      if (ops[b].current.epoch > *epoch) *epoch = ops[b].current.epoch;
      if (drawn > *epoch) *epoch = drawn;
    }
  }
  return status;
}

/* Each member makes its own epochs again, above all that any of them had; then the anchor forgets its tiers. */
static dibs__status disband(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  struct dibs__anchor_op *ops = calloc(DIBS__BUCKETS, sizeof *ops);
  uint32_t epoch;
  dibs__status status = ops ? dibs__tiers_control_take(t, by, result) : DIBS_NO_MEMORY;
  if (status != DIBS_OK) {
    free(ops);
    return status;
  }
  status = largest(t, ops, &epoch, by, result);
  dibs__fence above = dibs__fence_make(epoch, DIBS__SEQ_MAX);
  for (uint32_t i = 0; i < t->count && status == DIBS_OK; i++)
    status = of_all(t, i, DIBS__ANCHOR_ALONE, above, ops, by, result);
  if (status == DIBS_OK) {
    struct dibs__record_op drop = {.op = {.family = DIBS__FAM_RECORD, .verb = DIBS__RECORD_DROP, .by = by},
                                   .key = dibs__str_of(DIBS__TIERS_KEY, sizeof DIBS__TIERS_KEY - 1)};
    struct dibs__op *one[] = {&drop.op};
    status = dibs__tier_call(&t->tiers[t->last], &t->own[t->last], one, 1, by, result);
    if (status == DIBS_OK && drop.op.status != DIBS_NOT_FOUND) status = drop.op.status;
    atomic_store(&t->disbanded, status == DIBS_OK);
  }
  dibs__timed_lock_release(&t->control);
  free(ops);
  return status;
}

void dibs__tiers_hand(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by) {
  struct dibs__result result = {0};
  op->why[0] = '\0';
  op->got = NULL;
  op->op.status = DIBS_INVALID;
  if (!op_is_valid(t, op)) return;
  if (op->op.verb == DIBS__TIERS_VIEW)
    fill_view(t, op, by);
  else if (op->op.verb == DIBS__TIERS_DISBAND)
    op->op.status = disband(t, by, &result);
  else
    op->op.status = apply_change(t, op, by, &result);
  if (op->op.status == DIBS_OK) return;
  memcpy(op->why, result.text, sizeof op->why - 1);
  op->why[sizeof op->why - 1] = '\0';
}
