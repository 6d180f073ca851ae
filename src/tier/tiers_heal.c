/* SPDX-License-Identifier: MIT */
/*
 * Mandates and tiers brought together.  One round: read the state; ask each tier that matters what all its buckets
 * have; decide on a copy; write the copy back if the state is still the one that was read; install what was made, once.
 *
 * The races:
 *   - Two clients find a tier empty.  Both make an epoch; one write wins, the other reads again, finds a young epoch
 * and gives it time to arrive.
 *   - What a tier had was read before somebody else's epoch arrived there, but after that was written: then our write
 *     loses, because the state's version is another.
 *   - The maker dies between writing and installing, or its installing has an unknown outcome: nobody installs that
 *     epoch again.  The tier goes on having another, and when the moment of grace is over the next epoch is made.
 *   - Strict: somebody confirms the old copy while ours is on its way to the record.  What waits for leases to be over
 *     counts from when our write was answered at the latest: an answer that took longer is as good as none.
 */
#include "tier/tiers_parts.h"

enum {
  NAP_MS = 5,    /* and twice as long each time, until the moment of grace is over */
  SAVE_MS = 1000 /* strict: how long writing the state may take */
};

/* What the tiers have, as of one round. */
struct look {
  bool reached[DIBS__URI_TIERS];
  dibs__life lives[DIBS__URI_TIERS];
  dibs__mandate has[DIBS__URI_TIERS][DIBS__BUCKETS];
  struct dibs__buckets served[DIBS__URI_TIERS];
  struct dibs__anchor_op ops[DIBS__BUCKETS];
  struct dibs__op *list[DIBS__BUCKETS];
};

/* ---- Tiers ---- */

static void ask_all(struct look *look, uint16_t verb, const struct dibs__tiers_state *state,
                    const struct dibs__buckets *which, uint32_t tier, size_t *count) {
  *count = 0;
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    if (which && (!dibs__buckets_has(which, b) || state->mandates[b].tier != tier)) continue;
    struct dibs__anchor_op *op = &look->ops[*count];
    *op =
        (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = verb, .bucket = b, .status = DIBS_UNKNOWN}};
    if (state) op->op.mandate = (dibs__mandate){state->mandates[b].epoch, state->mandates[b].life};
    look->list[(*count)++] = &op->op;
  }
}

static void read_tier(struct tiers *t, uint32_t nth, struct look *look, dibs__tick by, struct dibs__said *said) {
  size_t count;
  ask_all(look, DIBS__ANCHOR_READ, NULL, NULL, nth, &count);
  for (size_t i = 0; i < count; i++) look->list[i]->by = by;
  look->reached[nth] = dibs__tier_call(&t->tiers[nth], &t->own[nth], look->list, count, by, said) == DIBS_OK;
  look->served[nth] = (struct dibs__buckets){{0}};
  for (size_t i = 0; i < count && look->reached[nth]; i++) {
    if (look->ops[i].op.status != DIBS_OK) {
      look->reached[nth] = false;
      break;
    }
    /* Of one that is not served: made by the tier for itself, by its clock perhaps, as a lone Redis does; what an
     * anchor makes is above it all the same. */
    dibs__mandate has = look->ops[i].stands;
    uint32_t by_clock = dibs__tiers_first_epoch(dibs__wall_ms());
    if (!look->ops[i].served && has.epoch < by_clock) has.epoch = by_clock;
    if (look->ops[i].served) dibs__buckets_add(&look->served[nth], look->ops[i].op.bucket);
    look->has[nth][look->ops[i].op.bucket] = has;
    look->lives[nth] = has.life;
  }
}

/* Buckets that moved get the epoch below their new one at the tier that they left: it is nobody's mandate, so nothing
 * is granted under it, and whoever still comes under the old one is told that it is over.  Not the new one itself: two
 * tiers would have it, and who begins while the anchor is away could take the wrong one for what stands.  As far as it
 * goes: a tier that can't be reached is left as it is.  When tiers begin, all that serve nothing get it: whoever goes
 * on opening the anchor alone, as before there were tiers, would hold what is held on another. */
static void retire(struct tiers *t, const struct dibs__tiers_state *before, const struct dibs__tiers_state *after,
                   struct look *look, dibs__tick by) {
  struct dibs__said aside;
  for (uint32_t nth = 0; nth < t->count; nth++) {
    size_t count = 0;
    for (uint16_t b = 0; b < DIBS__BUCKETS && look->reached[nth]; b++) {
      bool first = before->mandates[b].epoch == 0;
      if (after->mandates[b].tier == nth || (!first && before->mandates[b].tier != nth)) continue;
      uint32_t epoch = after->mandates[b].epoch - 1;
      if (!(epoch & 1) || (!first && epoch <= before->mandates[b].epoch)) continue;
      look->ops[count] = (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR,
                                                         .verb = DIBS__ANCHOR_INSTALL,
                                                         .bucket = b,
                                                         .by = by,
                                                         .status = DIBS_UNKNOWN,
                                                         .mandate = {epoch, look->lives[nth]}}};
      look->list[count] = &look->ops[count].op;
      count++;
    }
    if (count) (void)dibs__tier_call(&t->tiers[nth], &t->own[nth], look->list, count, by, &aside);
  }
}

/* Once, and never again, whatever becomes of it. */
static bool install(struct tiers *t, const struct dibs__tiers_state *state, const struct dibs__buckets *made,
                    struct look *look, dibs__tick by, struct dibs__said *said) {
  bool all = true;
  for (uint32_t nth = 0; nth < t->count; nth++) {
    size_t count;
    ask_all(look, DIBS__ANCHOR_INSTALL, state, made, nth, &count);
    if (count == 0) continue;
    for (size_t i = 0; i < count; i++) look->list[i]->by = by;
    if (dibs__tier_call(&t->tiers[nth], &t->own[nth], look->list, count, by, said) != DIBS_OK) all = false;
    for (size_t i = 0; i < count; i++) all = all && look->ops[i].op.status == DIBS_OK;
  }
  return all;
}

/* ---- One round ---- */

struct round {
  struct dibs__tiers_state state, before;
  struct dibs__buckets made;
  bool young, changed, saved, far;
  uint32_t moves, epochs;
};

static void mark(struct round *r, uint32_t bucket) {
  struct dibs__tiers_mandate *m = &r->state.mandates[bucket];
  uint32_t epoch = m->epoch, kind = r->state.strictness == DIBS__STRICT ? DIBS__KIND_STRICT : DIBS__KIND_FENCED;
  while (epoch % 4 != kind) epoch++;
  if (epoch <= DIBS__EPOCH_MAX) m->epoch = epoch; /* else of no kind: nobody takes it for one */
  dibs__buckets_add(&r->made, bucket);
  r->changed = true;
}

static void vote(struct tiers *t, struct round *r, int64_t now) {
  dibs__mutex_lock(&t->lock);
  struct dibs__tiers_tally tally = t->tally;
  bool old = !dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(t->tallied, DIBS__TIERS_CONFIRM_MS));
  dibs__mutex_unlock(&t->lock);
  if (old) return; /* the anchor was away: what was said before that is no vote any more */
  if (tally.clients && dibs__tiers_vote(&r->state, &tally, now)) r->changed = true;
}

/* Buckets whose tier has not what stands, or no fences left. */
static void mend(struct round *r, const struct look *look, const struct heal *why, int64_t now) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &r->state.mandates[b];
    if (!look->reached[m->tier]) continue;
    if (m->epoch == 0 && dibs__tiers_wanted(&r->state, b) != m->tier) continue; /* place has it */
    bool behind = why && why->above && why->above >= m->epoch && (!why->only || why->only == m->epoch);
    uint32_t above = behind ? why->above : 0;
    bool spent = why && m->epoch && why->spent[b] == m->epoch;
    bool by_hand = why && why->by_hand;
    const dibs__life *life = &look->lives[m->tier];
    dibs__mandate has = look->has[m->tier][b];
    /* A tier that is not served for us has not what stands, whatever its own number is. */
    if (m->epoch != 0 && has.epoch == m->epoch && !dibs__buckets_has(&look->served[m->tier], b)) has.epoch--;
    if (by_hand && has.epoch > above) above = has.epoch;
    enum dibs__tiers_verdict verdict = by_hand          ? dibs__tiers_bump(&r->state, b, above, life, now)
                                       : spent || above ? dibs__tiers_next(&r->state, b, above, life, now)
                                                        : dibs__tiers_told(&r->state, b, &has, now);
    if (verdict == DIBS__TIERS_YOUNG) r->young = true;
    if (verdict == DIBS__TIERS_FAR) r->far = true;
    if (verdict != DIBS__TIERS_MADE) continue;
    mark(r, b);
    r->epochs++;
  }
}

static void place(struct tiers *t, struct round *r, const struct look *look, int64_t now) {
  const dibs__life *lives[DIBS__URI_TIERS] = {NULL};
  const dibs__mandate *has[DIBS__URI_TIERS] = {NULL};
  struct dibs__buckets moved = {{0, 0}};
  for (uint32_t i = 0; i < t->count; i++)
    if (look->reached[i]) lives[i] = &look->lives[i], has[i] = look->has[i];
  if (!dibs__tiers_place(&r->state, lives, has, now, &moved)) return;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    if (!dibs__buckets_has(&moved, b)) continue;
    mark(r, b);
    r->moves++;
  }
}

/* Which tiers it is about: those that serve buckets, or should. */
static uint32_t concerned(const struct tiers *t, const struct dibs__tiers_state *state) {
  uint32_t set = 0;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    if (state->mandates[b].epoch) set |= 1u << state->mandates[b].tier;
    set |= 1u << dibs__tiers_wanted(state, b);
  }
  return set & ((1u << t->count) - 1);
}

static void begin_state(const struct tiers *t, struct dibs__tiers_state *state) {
  dibs__tiers_begin(state, t->schemes, t->count);
  if (t->strictness >= 0) {
    state->strictness = t->strictness ? DIBS__STRICT : DIBS__FENCED;
    state->least_strict = t->least_strict;
  }
  state->dwell_ms = t->dwell_ms;
}

/* Strict: `from` was reckoned from when the round began, by a clock that may be behind; who confirms the old copy until
 * our write is done holds for so much longer. */
static void wait_longer(struct tiers *t, struct round *r, int64_t now) {
  dibs__mutex_lock(&t->lock);
  int64_t late = tiers_ms(dibs__tick_now()) + t->ahead_most_ms + SAVE_MS;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (dibs__buckets_has(&r->made, b) && r->state.mandates[b].from > now) r->state.mandates[b].from += late - now;
}

typedef dibs__status changer(struct dibs__tiers_state *state, void *arg, struct dibs__said *said);

/* OK: done.  CONFLICT: another round.  Else it can't be done. */
static dibs__status one_round(struct tiers *t, struct round *r, struct look *look, const struct heal *why,
                              changer *change, void *arg, dibs__tick by, struct dibs__said *said) {
  struct dibs__said aside;
  dibs__status status = dibs__tiers_load(t, by, said);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status;
  *r = (struct round){.changed = false};
  uint64_t version = 0;
  if (status == DIBS_OK)
    version = dibs__tiers_copy(t, &r->state);
  else
    begin_state(t, &r->state);
  r->before = r->state;
  if (change) {
    status = change(&r->state, arg, said);
    if (status != DIBS_OK) return status;
    r->changed = true;
  }
  int64_t now = dibs__tiers_now(t), wall = dibs__wall_ms();
  r->state.wall_ahead_ms = wall > now ? wall - now : 0;
  vote(t, r, now);
  uint32_t set = version ? concerned(t, &r->state) : (1u << t->count) - 1;
  memset(look->reached, 0, sizeof look->reached);
  for (uint32_t i = 0; i < t->count; i++)
    if (set >> i & 1) read_tier(t, i, look, by, &aside);
  mend(r, look, why, now);
  place(t, r, look, now);
  if (!r->changed && version) {
    if (r->far)
      dibs__say(said,
                "a tier of %s has seen epochs far above what its anchor remembers; was that restored from a "
                "backup?  Raise it: dibs tier bump",
                t->uri->shown);
    return r->young ? DIBS_CONFLICT : r->far ? DIBS_UNAVAILABLE : DIBS_OK;
  }
  bool strict = r->before.strictness == DIBS__STRICT || r->state.strictness == DIBS__STRICT;
  dibs__tick saving = dibs__tick_now(), save_by = dibs__tick_add_ms(saving, SAVE_MS);
  if (strict) wait_longer(t, r, now);
  status = dibs__tiers_save(t, &r->state, version, strict ? dibs__tick_min(by, save_by) : by, said);
  if (status != DIBS_OK) return status;
  r->saved = true;
  /* It stands, but it is not installed: when the moment of grace is over the next is made. */
  if (strict && !dibs__tick_before(dibs__tick_now(), save_by)) return DIBS_CONFLICT;
  tiers_count(t, DIBS__M_MOVES, r->moves);
  tiers_count(t, DIBS__M_EPOCHS, r->epochs);
  if (r->moves || !version) retire(t, &r->before, &r->state, look, by);
  return install(t, &r->state, &r->made, look, by, &aside) ? DIBS_OK : DIBS_CONFLICT;
}

dibs__status dibs__tiers_change(struct tiers *t, const struct heal *why, changer *change, void *arg, dibs__tick by,
                                struct dibs__said *said) {
  struct look *look = calloc(1, sizeof *look);
  struct round *r = calloc(1, sizeof *r);
  dibs__status status = look && r ? DIBS_CONFLICT : DIBS_NO_MEMORY;
  int64_t nap_ms = NAP_MS;
  for (uint32_t round = 0; look && r && round < TIERS_HEAL_ROUNDS; round++) {
    status = one_round(t, r, look, why, change, arg, by, said);
    if (status != DIBS_CONFLICT && status != DIBS_UNKNOWN) break;
    if (r->saved) change = NULL, why = NULL; /* it stands; what is left is to install */
    dibs__tick now = dibs__tick_now();
    if (!dibs__tick_before(now, by)) break;
    if (r->saved || !r->young) continue;
    int64_t left = dibs__tick_left_ms(now, by);
    dibs__nap_ms(left < nap_ms ? left : nap_ms);
    nap_ms *= 2;
  }
  free(r);
  free(look);
  if (status == DIBS_CONFLICT || status == DIBS_UNKNOWN) {
    dibs__say(said, "a tier of %s does not keep what is installed, or others change its tiers all the time",
              t->uri->shown);
    status = DIBS_UNAVAILABLE;
  }
  return status;
}

/* Nobody was here while we waited, or it was about something else. */
static bool is_wanting(struct tiers *t, const struct heal *why) {
  bool is = false;
  dibs__mutex_lock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS && !is; b++)
    is = why->found[b] != 0 && t->here[b].mandate.epoch == why->found[b] - 1;
  dibs__mutex_unlock(&t->lock);
  return is;
}

dibs__status dibs__tiers_heal(struct tiers *t, const struct heal *why, dibs__tick by, struct dibs__said *said) {
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__status status = dibs__tiers_control_take(t, by, said);
  if (status != DIBS_OK) return status;
  if (is_wanting(t, why)) status = dibs__tiers_change(t, why, NULL, NULL, by, said);
  dibs__turn_end(&t->control);
  return status;
}

dibs__status dibs__tiers_raise_longest(struct dibs__tiers_state *state, void *arg, struct dibs__said *said) {
  (void)said;
  int64_t longest = *(const int64_t *)arg;
  if (longest > state->longest_ms) state->longest_ms = longest;
  return DIBS_OK;
}
