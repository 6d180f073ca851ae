/* SPDX-License-Identifier: MIT */
/* What people ask: how things stand, flags, moves by hand. */
#include "tier/tiers_parts.h"

#include <stdio.h>

/* ---- Looking ---- */

static dibs__status reach(struct tiers *t, uint32_t nth, dibs__tick by, struct dibs__said *said) {
  struct dibs__anchor_op read = {.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ, .by = by}};
  struct dibs__op *ops[] = {&read.op};
  return dibs__tier_call(&t->tiers[nth], &t->own[nth], ops, 1, by, said);
}

/* Who has just come knows nothing of tiers that serve nothing. */
static void reach_unknown(struct tiers *t, dibs__tick by) {
  struct dibs__said said;
  for (uint32_t i = 0; i < t->last; i++) {
    dibs__mutex_lock(&t->lock);
    bool unknown = t->tiers[i].answered.ns == 0;
    dibs__mutex_unlock(&t->lock);
    if (unknown) (void)reach(t, i, by, &said);
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

static void look(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by) {
  struct dibs__said said;
  struct dibs__tiers_client *clients = NULL;
  size_t count = 0;
  dibs__tick soon = dibs__tick_add_ms(dibs__tick_now(), TIERS_CONTROL_MS);
  soon = dibs__tick_min(by, soon);
  if (dibs__turn_take(&t->control, soon)) {
    reach_unknown(t, soon);
    (void)dibs__tiers_sync(t, soon, &clients, &count, &said);
    dibs__turn_end(&t->control);
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

static dibs__status grant_wish(struct dibs__tiers_state *state, void *arg, struct dibs__said *said) {
  const struct wish *wish = arg;
  const struct dibs__tiers_op *op = wish->op;
  switch (op->op.verb) {
  case DIBS__TIERS_FLAG:
    return dibs__tiers_flag_set(state, op->name, op->value, said);
  case DIBS__TIERS_MOVE:
    state->pinned = op->tier;
    return DIBS_OK;
  case DIBS__TIERS_SWITCH:
    state->tiers[op->tier].hand = (enum dibs__tiers_hand)op->value;
    /* What was voted before is over: it is voted anew. */
    if (op->value == DIBS__HAND_CLOSED) state->tiers[op->tier].down = false;
    return DIBS_OK;
  case DIBS__TIERS_STRICTNESS:
    state->strictness = (enum dibs__tiers_strictness)op->value;
    return DIBS_OK;
  default: /* BUMP */
    return DIBS_OK;
  }
}

static bool valid(const struct tiers *t, struct dibs__tiers_op *op) {
  bool of_tier = op->op.verb == DIBS__TIERS_MOVE || op->op.verb == DIBS__TIERS_SWITCH;
  int32_t least = op->op.verb == DIBS__TIERS_MOVE ? -1 : 0;
  bool fine = op->op.verb <= DIBS__TIERS_DISBAND && (op->op.verb != DIBS__TIERS_FLAG || op->name);
  if (of_tier) fine = fine && op->tier >= least && op->tier < (int32_t)t->count;
  if (op->op.verb == DIBS__TIERS_SWITCH) fine = fine && op->value <= DIBS__HAND_CLOSED;
  if (op->op.verb == DIBS__TIERS_STRICTNESS) fine = fine && op->value <= DIBS__STRICT;
  if (!fine) snprintf(op->why, sizeof op->why, "%s has no such tier or setting", t->uri->shown);
  return fine;
}

static dibs__status change(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by, struct dibs__said *said) {
  struct wish wish = {.op = op, .count = t->count};
  struct heal *why = calloc(1, sizeof *why);
  if (!why) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_control_take(t, by, said);
  if (status != DIBS_OK) {
    free(why);
    return status;
  }
  if (op->op.verb == DIBS__TIERS_MOVE && op->tier >= 0) status = reach(t, (uint32_t)op->tier, by, said);
  /* To become strict: whoever goes by an old copy, of a time when that was allowed for long, is turned away by the
   * tiers themselves, and learns of it at the anchor. */
  bool stricter = op->op.verb == DIBS__TIERS_STRICTNESS && op->value == DIBS__STRICT;
  if (op->op.verb == DIBS__TIERS_BUMP || stricter) {
    why->by_hand = true;
    why->above = op->above;
  }
  if (status == DIBS_OK) status = dibs__tiers_change(t, why, grant_wish, &wish, by, said);
  dibs__turn_end(&t->control);
  free(why);
  return status;
}

/* Each member makes its own epochs again, above those that it had; then the anchor forgets. */
static dibs__status disband(struct tiers *t, dibs__tick by, struct dibs__said *said) {
  struct dibs__anchor_op *ops = calloc(DIBS__BUCKETS, sizeof *ops);
  struct dibs__op *list[DIBS__BUCKETS];
  dibs__status status = ops ? dibs__tiers_control_take(t, by, said) : DIBS_NO_MEMORY;
  if (status != DIBS_OK) {
    free(ops);
    return status;
  }
  for (uint32_t i = 0; i < t->count && status == DIBS_OK; i++) {
    for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
      ops[b] = (struct dibs__anchor_op){
          .op = {
              .family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_ALONE, .bucket = b, .by = by, .status = DIBS_UNKNOWN}};
      list[b] = &ops[b].op;
    }
    status = dibs__tier_call(&t->tiers[i], &t->own[i], list, DIBS__BUCKETS, by, said);
    for (uint16_t b = 0; b < DIBS__BUCKETS && status == DIBS_OK; b++) status = ops[b].op.status;
  }
  if (status == DIBS_OK) {
    struct dibs__record_op drop = {.op = {.family = DIBS__FAM_RECORD, .verb = DIBS__RECORD_DROP, .by = by},
                                   .key = dibs__str_of(DIBS__TIERS_KEY, sizeof DIBS__TIERS_KEY - 1)};
    struct dibs__op *one[] = {&drop.op};
    status = dibs__tier_call(&t->tiers[t->last], &t->own[t->last], one, 1, by, said);
    if (status == DIBS_OK && drop.op.status != DIBS_NOT_FOUND) status = drop.op.status;
    atomic_store(&t->disbanded, status == DIBS_OK);
  }
  dibs__turn_end(&t->control);
  free(ops);
  return status;
}

void dibs__tiers_hand(struct tiers *t, struct dibs__tiers_op *op, dibs__tick by) {
  struct dibs__said said = {0};
  op->why[0] = '\0';
  op->got = NULL;
  op->op.status = DIBS_INVALID;
  if (!valid(t, op)) return;
  if (op->op.verb == DIBS__TIERS_VIEW)
    look(t, op, by);
  else if (op->op.verb == DIBS__TIERS_DISBAND)
    op->op.status = disband(t, by, &said);
  else
    op->op.status = change(t, op, by, &said);
  if (op->op.status == DIBS_OK) return;
  memcpy(op->why, said.text, sizeof op->why - 1);
  op->why[sizeof op->why - 1] = '\0';
}
