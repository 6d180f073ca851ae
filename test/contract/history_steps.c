/* SPDX-License-Identifier: MIT */
/* Draws the steps of a history from a seed, and prints them. */
#include "history.h"
#include "history_args.h"

#include <stdio.h>

static uint32_t below(uint64_t *state, uint32_t n) {
  return (uint32_t)(history_random(state) % n);
}

static bool one_in(uint64_t *state, uint32_t n) {
  return below(state, n) == 0;
}

static const struct {
  enum step_kind kind;
  uint32_t weight;
} weights[] = {
    {STEP_ACQUIRE, 400},  {STEP_RENEW, 110},  {STEP_RELEASE, 180}, {STEP_CANCEL, 50},     {STEP_BREAK, 30},
    {STEP_LOAD, 15},      {STEP_SEAL, 30},    {STEP_SAVE, 40},     {STEP_ANCHOR_READ, 5}, {STEP_ANCHOR_NEXT, 8},
    {STEP_LIST_NAME, 20}, {STEP_LIST_ALL, 8}, {STEP_TIME, 75},     {STEP_CLOSE, 6},       {STEP_USE_UP, 1},
};

static enum step_kind draw_kind(uint64_t *state) {
  uint32_t sum = 0, at;
  for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) sum += weights[i].weight;
  at = below(state, sum);
  for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
    if (at < weights[i].weight) return weights[i].kind;
    at -= weights[i].weight;
  }
  return STEP_TIME;
}

static bool may_join(enum step_kind kind) {
  return kind <= STEP_SAVE;
}

/* An id usually keeps its mode, so that several ids wait for compatible leases. */
static void draw_mode(uint64_t *state, uint64_t seed, struct step *step) {
  static const uint8_t slots[] = {1, 2, 2, 3};
  uint32_t flavour = (uint32_t)(seed % 4);
  uint32_t pick = step->id + (one_in(state, 25) ? below(state, 9) : 0);
  step->mode = DIBS_EXCLUSIVE;
  if (flavour == 1 && pick % 3) step->mode = DIBS_SHARED;
  if (flavour == 2 && pick % 4) step->mode = DIBS_COUNTED;
  if (flavour == 3) step->mode = (uint8_t)(pick % 3);
  step->slots = one_in(state, 15) ? slots[below(state, 4)] : 2;
}

static struct step draw_step(uint64_t *state, uint64_t seed) {
  static const uint32_t ttls[] = {3500, 8500, 15500, 40500};
  static const uint32_t jumps[] = {1000, 1000, 2000, 5000, 20000};
  struct step step = {.kind = draw_kind(state)};
  step.name = (uint8_t)(one_in(state, 2) ? 0 : below(state, NAMES));
  step.id = (uint8_t)below(state, IDS);
  step.party = (uint8_t)(one_in(state, 8) ? below(state, PARTIES) : step.id % PARTIES);
  draw_mode(state, seed, &step);
  step.fence = (uint8_t)(one_in(state, 10) ? below(state, 4) : FENCE_LAST);
  step.mandate = (uint8_t)(one_in(state, 40) ? below(state, 4) : MANDATE_STANDING);
  step.fence_plus = (uint8_t)(one_in(state, 4) ? below(state, 6) : 0);
  if (step.kind == STEP_SEAL || step.kind == STEP_SAVE) {
    step.fence = (uint8_t)(one_in(state, 3) ? below(state, 4) : FENCE_LAST);
    step.fence_plus = (uint8_t)(one_in(state, 6) ? below(state, 6) : 0);
  }
  step.ttl_ms = ttls[below(state, 4)];
  step.block = one_in(state, 3) ? below(state, 6) : 0;
  step.ms = jumps[below(state, 5)];
  step.try_only = one_in(state, 5);
  step.now = one_in(state, 2);
  step.with_ticket = one_in(state, 2);
  if (step.kind <= STEP_BREAK && one_in(state, step.kind == STEP_ACQUIRE ? 8 : 4)) {
    step.to_offered = true;
    if (!one_in(state, 4)) step.fence = FENCE_OFFERED;
    step.fence_plus = one_in(state, 8);
  }
  return step;
}

/* A step that ends a lease, or repeats a request, usually concerns a lease that was requested a few steps earlier. */
static void choose_recent_lease(uint64_t *state, struct step steps[], size_t at) {
  static const uint8_t keep_out_of[] = {2, 8, 8, 3, 2};
  struct step *step = &steps[at];
  if (step->kind > STEP_BREAK && step->kind != STEP_SEAL && step->kind != STEP_SAVE) return;
  if (step->to_offered) return;
  if (step->kind <= STEP_BREAK && one_in(state, keep_out_of[step->kind])) return;
  for (uint32_t back = 1 + below(state, 12); back < 40 && back <= at; back++) {
    const struct step *before = &steps[at - back];
    if (before->kind != STEP_ACQUIRE) continue;
    step->name = before->name;
    step->id = before->id;
    step->mode = before->mode;
    step->slots = before->slots;
    return;
  }
}

void history_draw(uint64_t seed, struct step steps[], size_t count) {
  uint64_t state = history_seeded(seed);
  for (size_t i = 0; i < count; i++) {
    steps[i] = draw_step(&state, seed);
    choose_recent_lease(&state, steps, i);
  }
  for (size_t i = 0; i + 1 < count; i++) steps[i].joins = one_in(&state, 5);
  for (size_t i = 0; i < count;) {
    size_t end = i;
    while (end + 1 < count && steps[end].joins && may_join(steps[end].kind) && may_join(steps[end + 1].kind) &&
           end - i + 1 < JOINED_MAX)
      end++;
    steps[end].joins = false;
    bool group = end > i && one_in(&state, 3);
    for (; i <= end; i++) {
      steps[i].group = group;
      if (i > 0 && steps[i - 1].joins) steps[i].party = steps[i - 1].party; /* a batch uses one session */
    }
  }
}

void history_print_step(const struct step *s, size_t nr) {
  static const char *const kinds[] = {"acquire", "renew",    "release",     "cancel", "break",
                                      "load",    "seal",     "save",        "epoch?", "next epoch",
                                      "list",    "list all", "time passes", "leaves", "use up"};
  static const char *const modes[] = {"exclusive", "shared", "counted"};
  static const char *const fences[] = {"", " fence:before", " fence:another's", " fence:0", " fence:offered"};
  static const char *const mandates[] = {"", " mandate:older", " mandate:stranger's", " mandate:none"};
  printf("%4zu  party %u: %s", nr, s->party, kinds[s->kind]);
  if (s->kind == STEP_TIME)
    printf(" %u ms", s->ms);
  else if (s->kind == STEP_USE_UP)
    printf(" name %u, %u left", s->name, s->fence_plus);
  else if (s->to_offered)
    printf(" the last offered waiter");
  else if (s->kind != STEP_CLOSE)
    printf(" name %u id %u", s->name, s->id);
  if (s->kind == STEP_ACQUIRE) printf(" %s", modes[s->mode]);
  if (s->kind == STEP_ACQUIRE && s->mode == DIBS_COUNTED) printf(" of %u", s->slots);
  if (s->kind == STEP_ACQUIRE) printf("%s%s", s->try_only ? " try" : "", s->with_ticket ? " ticket" : "");
  if (s->kind <= STEP_RENEW) printf(" ttl %u block %u", s->ttl_ms, s->block);
  if (s->kind == STEP_BREAK && s->now) printf(" now");
  if (s->kind == STEP_RENEW || s->kind == STEP_RELEASE || s->kind == STEP_SEAL || s->kind == STEP_SAVE)
    printf("%s +%u", fences[s->fence], s->fence_plus);
  printf("%s%s%s\n", s->kind <= STEP_BREAK ? mandates[s->mandate] : "", s->group ? " [group]" : "",
         s->joins ? " &" : "");
}
