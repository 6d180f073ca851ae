/* SPDX-License-Identifier: MIT */
/*
 * Which tier serves a bucket, and under which epoch.
 *
 * Two things are kept whatever happens.  Every change of a bucket's mandate has a larger epoch than all before, and a
 * larger one than its new tier was seen to have; and an epoch is made for one life of one tier, so nobody can install
 * it anywhere else.  Who made it installs it once.
 */
#include "tier/state.h"

#include <assert.h>
#include <string.h>

/* A fence is epoch * 2^32 + seq; a lone Redis gives ms * 2^10. */
enum { MS_PER_EPOCH_BITS = 22 };

uint32_t dibs__tiers_first_epoch(int64_t now) {
  /* +2: at least 70 minutes ahead of the anchor's clock. */
  uint64_t epoch = now < 0 ? 0 : ((uint64_t)now >> MS_PER_EPOCH_BITS) + 2;
  return epoch == 0 || epoch > DIBS__EPOCH_MAX ? 1 : (uint32_t)epoch;
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* ---- Where a bucket should be ---- */

static bool may_be_down(const struct dibs__tiers_state *state, uint32_t tier) {
  return state->breaker && state->tiers[tier].hand == DIBS__HAND_AUTO && tier + 1 < state->count;
}

static bool is_down(const struct dibs__tiers_state *state, uint32_t tier) {
  return state->tiers[tier].hand == DIBS__HAND_OPEN || (state->tiers[tier].down && may_be_down(state, tier));
}

uint32_t dibs__tiers_wanted(const struct dibs__tiers_state *state, uint32_t bucket) {
  assert(state->count > 0 && bucket < DIBS__BUCKETS);
  if (state->pinned >= 0) return (uint32_t)state->pinned;
  for (uint32_t i = 0; i + 1 < state->count; i++) {
    if (bucket >= state->tiers[i].percent) continue;
    if (!is_down(state, i) || bucket >= state->fallback) return i;
  }
  return state->count - 1;
}

bool dibs__tiers_astray(const struct dibs__tiers_state *state, uint32_t *to) {
  *to = 0;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    uint32_t wanted = dibs__tiers_wanted(state, b);
    if (wanted != state->mandates[b].tier) *to |= UINT32_C(1) << wanted;
  }
  return *to != 0;
}

/* ---- The next epoch ---- */

/* Strict: when nobody can hold anything any more that was granted before. */
static int64_t all_over(const struct dibs__tiers_state *state, int64_t now) {
  return now + DIBS__TIERS_CONFIRM_MS + state->longest_ms;
}

struct change {
  uint32_t tier, above;
  const dibs__life *life;
  bool by_hand; /* however far it is */
  bool kept;    /* the tier lost nothing: whoever holds something there goes on to be seen */
};

static enum dibs__tiers_verdict make(struct dibs__tiers_mandate *m, const struct dibs__tiers_state *state,
                                     const struct change *change, int64_t now) {
  uint32_t floor = dibs__tiers_first_epoch(now + state->wall_ahead_ms), behind = larger(m->epoch, floor);
  if (!change->by_hand && change->above > behind && change->above - behind > DIBS__TIERS_RAISE_MAX)
    return DIBS__TIERS_FAR;
  uint32_t seen = larger(m->epoch, change->above);
  if (seen >= DIBS__EPOCH_MAX) return DIBS__TIERS_SPENT;
  int64_t from = 0;
  if (state->strictness == DIBS__STRICT) {
    from = all_over(state, now);
    /* What is still waited for goes on; no longer than it can be needed, should the clock have been stepped back. */
    if (change->kept) from = m->from < from ? m->from : from;
  }
  *m = (struct dibs__tiers_mandate){larger(seen + 1, floor), change->tier, *change->life, now, from};
  return DIBS__TIERS_MADE;
}

/* Either way: a clock that was stepped back must not make anybody wait for the step. */
static bool is_young(const struct dibs__tiers_mandate *m, int64_t now) {
  return m->epoch != 0 && now < m->since + DIBS__TIERS_GRACE_MS && now > m->since - DIBS__TIERS_GRACE_MS;
}

enum dibs__tiers_verdict dibs__tiers_told(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has,
                                          int64_t now) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  bool same_life = memcmp(&m->life, &has->life, sizeof m->life) == 0;
  if (m->epoch != 0 && has->epoch == m->epoch && same_life) return DIBS__TIERS_JOIN;
  /* Above what stands: it was not made by this record, and no install that is on its way can change that. */
  if (is_young(m, now) && has->epoch <= m->epoch) return DIBS__TIERS_YOUNG;
  /* Only a bucket that nobody was ever served for need not wait.  One epoch too low in the life that stands may be an
   * install that came late, after the memory was flushed: it proves nothing. */
  struct change change = {m->tier, has->epoch, &has->life, false, m->epoch == 0 && has->epoch == 0};
  return make(m, state, &change, now);
}

static enum dibs__tiers_verdict next(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                     const dibs__life *life, int64_t now, bool by_hand) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  /* Above what stands was seen: this record is an old one, and what was made since is not known. */
  bool kept = above <= m->epoch && memcmp(&m->life, life, sizeof *life) == 0;
  struct change change = {m->tier, above, life, by_hand, kept};
  return make(m, state, &change, now);
}

enum dibs__tiers_verdict dibs__tiers_next(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__life *life, int64_t now) {
  return next(state, bucket, above, life, now, false);
}

enum dibs__tiers_verdict dibs__tiers_bump(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__life *life, int64_t now) {
  return next(state, bucket, above, life, now, true);
}

bool dibs__tiers_place(struct dibs__tiers_state *state, const dibs__life *const lives[],
                       const dibs__mandate *const has[], int64_t now, struct dibs__buckets *moved) {
  bool any = false;
  *moved = (struct dibs__buckets){{0}};
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &state->mandates[b];
    uint32_t wanted = dibs__tiers_wanted(state, b);
    if (wanted == m->tier || !lives[wanted]) continue;
    uint32_t above = has[wanted] ? has[wanted][b].epoch : 0;
    struct change change = {wanted, above, lives[wanted], false, m->epoch == 0 && above == 0};
    if (make(m, state, &change, now) != DIBS__TIERS_MADE) continue;
    dibs__buckets_add(moved, b);
    any = true;
  }
  return any;
}

/* ---- Votes ---- */

void dibs__tiers_tally(const struct dibs__tiers_report reports[], size_t count, struct dibs__tiers_tally *tally) {
  *tally = (struct dibs__tiers_tally){.clients = (uint32_t)count};
  for (size_t r = 0; r < count; r++)
    for (uint32_t i = 0; i < reports[r].count; i++) {
      tally->active[i] += reports[r].tiers[i].active;
      tally->down[i] += reports[r].tiers[i].active && reports[r].tiers[i].down;
      tally->well[i] += reports[r].tiers[i].well;
    }
}

static void goes_down(struct dibs__tiers_tier *tier, int64_t begins_with, int64_t now) {
  int64_t most = begins_with > DIBS__TIERS_DWELL_MAX_MS ? begins_with : DIBS__TIERS_DWELL_MAX_MS;
  bool soon = tier->turned != 0 && now - tier->turned < DIBS__TIERS_DWELL_MAX_MS;
  int64_t doubled = tier->dwell_ms > most / 2 ? most : tier->dwell_ms * 2;
  tier->dwell_ms = soon && doubled > begins_with ? doubled : begins_with;
  tier->down = true;
  tier->turned = now;
}

static void comes_up(struct dibs__tiers_tier *tier, int64_t now) {
  tier->down = false;
  tier->turned = now;
}

/* Over, or the clock was stepped back so far that it would never be. */
static bool dwelt(const struct dibs__tiers_tier *tier, int64_t now) {
  return now >= tier->turned + tier->dwell_ms || now < tier->turned - tier->dwell_ms;
}

bool dibs__tiers_vote(struct dibs__tiers_state *state, const struct dibs__tiers_tally *tally, int64_t now) {
  bool turned = false;
  for (uint32_t i = 0; i < state->count; i++) {
    struct dibs__tiers_tier *tier = &state->tiers[i];
    bool was = tier->down;
    if (!may_be_down(state, i)) {
      /* By hand open, it stays what it was for when the hand is taken off. */
      if (was && tier->hand != DIBS__HAND_OPEN) comes_up(tier, now);
    } else if (!was) {
      if (tally->down[i] * 2 > tally->active[i]) goes_down(tier, state->dwell_ms, now);
    } else if (dwelt(tier, now) && tally->well[i] * 2 > tally->clients) {
      comes_up(tier, now);
    }
    turned = turned || tier->down != was;
  }
  return turned;
}
