/* SPDX-License-Identifier: MIT */
/*
 * The thread that keeps this client in step with the anchor: each second, and at once when a breaker turns or a record
 * refuses, it tells how the tiers look from here, reads what stands and what the others say, votes, and moves what
 * should be elsewhere.  Tiers that nobody asks otherwise are probed, so that it is known when they are back.
 */
#include "tier/tiers_parts.h"

enum { GAP_MS = 20 }; /* between two looks, however often it is kicked */

void dibs__tiers_kick(struct tiers *t) {
  atomic_fetch_add(&t->kicked, 1);
  dibs__word_wake(&t->kicked, 1, false);
}

/* ---- Alone ---- */

bool dibs__tiers_here_locked(struct tiers *t) {
  bool changed = false;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *m = &t->state.mandates[b];
    struct here here = {.tier = m->tier, .mandate = {m->epoch, m->life}, .from = m->from};
    if (t->local) here = (struct here){.tier = DIBS__TIER_LOCAL, .mandate = t->local_mandate};
    changed = changed || !dibs__mandate_equal(&here.mandate, &t->here[b].mandate);
    t->here[b] = here;
  }
  return changed;
}

void dibs__tiers_local_locked(struct tiers *t) {
  bool down = t->known && t->state.least_strict;
  for (uint32_t i = 0; i < t->count && down; i++) down = t->tiers[i].breaker.state != DIBS__BREAKER_CLOSED;
  if (down == t->local) return;
  t->local = down;
  (void)dibs__tiers_here_locked(t);
}

/* ---- One look ---- */

/* Some tier that serves buckets does not answer: this is watched closely. */
static bool trouble_locked(const struct tiers *t) {
  bool used[TIERS_ALL] = {false};
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) used[t->here[b].tier] = true;
  for (uint32_t i = 0; i < t->last; i++)
    if (used[i] && t->tiers[i].breaker.state != DIBS__BREAKER_CLOSED) return true;
  return t->local;
}

/* What is to be mended: a vote that would turn something, a bucket that is astray, an anchor behind its records. */
static bool due(struct tiers *t, struct heal *why) {
  struct dibs__tiers_state *copy = calloc(1, sizeof *copy);
  uint32_t to;
  if (!copy) return false;
  int64_t now = dibs__tiers_now(t);
  *why = (struct heal){0};
  (void)dibs__tiers_copy(t, copy);
  dibs__mutex_lock(&t->lock);
  struct dibs__tiers_tally tally = t->tally;
  uint32_t seen = t->seen_epoch, refused = t->refused_epoch;
  t->seen_epoch = t->refused_epoch = 0;
  dibs__mutex_unlock(&t->lock);
  /* What was refused stands still: nobody is ahead of us but a record. */
  for (uint32_t b = 0; b < DIBS__BUCKETS && refused; b++)
    if (copy->mandates[b].epoch == refused) why->above = seen, why->only = refused;
  bool is = why->above || dibs__tiers_vote(copy, &tally, now) || dibs__tiers_astray(copy, &to);
  free(copy);
  return is;
}

/* A tier that buckets should go to can't be reached: not each time anew. */
static bool may_move(struct tiers *t) {
  struct dibs__tiers_state *copy = calloc(1, sizeof *copy);
  uint32_t to = 0;
  bool may = false;
  if (!copy) return false;
  (void)dibs__tiers_copy(t, copy);
  if (!dibs__tiers_astray(copy, &to)) {
    free(copy);
    return true;
  }
  dibs__mutex_lock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++) may = may || ((to >> i & 1) && dibs__tier_open_locked(&t->tiers[i]));
  dibs__mutex_unlock(&t->lock);
  free(copy);
  return may;
}

static void look(struct tiers *t) {
  struct dibs__said said;
  struct heal why;
  int64_t longest = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), TIERS_CONTROL_MS);
  if (atomic_load(&t->disbanded)) return;
  if (!dibs__turn_take(&t->control, by)) return;
  dibs__status status = dibs__tiers_sync(t, by, NULL, NULL, &said);
  dibs__mutex_lock(&t->lock);
  if (t->longest_ms > t->state.longest_ms) longest = t->longest_ms;
  dibs__mutex_unlock(&t->lock);
  if (status == DIBS_OK && longest) (void)dibs__tiers_change(t, NULL, dibs__tiers_raise_longest, &longest, by, &said);
  if (status == DIBS_NOT_FOUND || (status == DIBS_OK && due(t, &why) && may_move(t)))
    (void)dibs__tiers_change(t, status == DIBS_OK ? &why : NULL, NULL, NULL, by, &said);
  dibs__turn_end(&t->control);
}

/* Tiers that are not well, and those that serve nothing: whoever votes for their return must have seen them well. */
static void probe(struct tiers *t) {
  for (uint32_t i = 0; i < t->last && !atomic_load(&t->stopping); i++) {
    struct tier *tier = &t->tiers[i];
    struct dibs__said said;
    dibs__tick now = dibs__tick_now();
    dibs__mutex_lock(&t->lock);
    bool fresh = tier->answered.ns && tiers_ms(now) - tiers_ms(tier->answered) < DIBS__TIERS_REPORT_MS;
    bool closed = tier->breaker.state == DIBS__BREAKER_CLOSED, here = false;
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++) here = here || t->here[b].tier == i;
    dibs__mutex_unlock(&t->lock);
    if (closed && (fresh || here)) continue;
    struct dibs__anchor_op op = {.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ, .status = DIBS_UNKNOWN}};
    struct dibs__op *ops[] = {&op.op};
    op.op.by = dibs__tick_add_ms(now, t->timeout_ms);
    /* Without control: who repairs a mandate need not wait for a tier that does not answer. */
    (void)dibs__tier_call(tier, &t->probes[i], ops, 1, op.op.by, &said);
  }
}

/* A tier that was left waits for clients that find it well: also one that is there for a moment only has its say. */
static bool left_one(struct tiers *t) {
  bool left = false;
  dibs__mutex_lock(&t->lock);
  for (uint32_t i = 0; i < t->last && !left; i++) left = t->state.tiers[i].down;
  dibs__mutex_unlock(&t->lock);
  return left;
}

static void control(void *arg) {
  struct tiers *t = arg;
  uint32_t seen = atomic_load(&t->kicked);
  dibs__tick next = dibs__tick_add_ms(dibs__tick_now(), DIBS__TIERS_REPORT_MS);
  if (left_one(t)) {
    probe(t);
    next = dibs__tick_now();
  }
  while (!atomic_load(&t->stopping)) {
    if (dibs__word_wait(&t->kicked, seen, next, false) && atomic_load(&t->kicked) == seen) continue;
    if (atomic_load(&t->stopping)) break;
    seen = atomic_load(&t->kicked);
    look(t);
    probe(t);
    dibs__mutex_lock(&t->lock);
    int64_t pause = trouble_locked(t) ? TIERS_RETRY_MS : DIBS__TIERS_REPORT_MS;
    dibs__mutex_unlock(&t->lock);
    next = dibs__tick_add_ms(dibs__tick_now(), pause);
    if (!atomic_load(&t->stopping) && atomic_load(&t->kicked) != seen) dibs__nap_ms(GAP_MS);
  }
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), t->timeout_ms);
  if (!dibs__turn_take(&t->control, by)) return;
  dibs__tiers_leave(t, by);
  dibs__turn_end(&t->control);
}

bool dibs__tiers_control_start(struct tiers *t, dibs__tick by) {
  if (atomic_load(&t->runs)) return true;
  if (!dibs__turn_take(&t->control, by)) return false;
  if (!t->thread) t->thread = dibs__thread_start("dibs-tiers", control, t);
  bool runs = t->thread != NULL;
  atomic_store(&t->runs, runs);
  dibs__turn_end(&t->control);
  return runs;
}

dibs__status dibs__tiers_control_take(struct tiers *t, dibs__tick by, struct dibs__said *said) {
  if (dibs__turn_take(&t->control, by)) return DIBS_OK;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__say(said, "%s did not answer in time what stands", t->tiers[t->last].uri->shown);
  return DIBS_UNAVAILABLE;
}

void dibs__tiers_control_stop(struct tiers *t) {
  atomic_store(&t->stopping, true);
  dibs__tiers_kick(t);
  dibs__thread_join(t->thread);
  t->thread = NULL;
}

/* ---- Beginning ---- */

/* What a tier says of its buckets: the highest epoch of each, with its tier and life. */
static bool hear_tier(struct tiers *t, uint32_t nth, struct dibs__tiers_state *state, dibs__tick by) {
  struct dibs__anchor_op *ops = calloc(DIBS__BUCKETS, sizeof *ops);
  struct dibs__op *list[DIBS__BUCKETS];
  struct dibs__said said;
  if (!ops) return false;
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    ops[b] = (struct dibs__anchor_op){
        .op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ, .bucket = b, .by = by, .status = DIBS_UNKNOWN}};
    list[b] = &ops[b].op;
  }
  bool reached = dibs__tier_call(&t->tiers[nth], &t->own[nth], list, DIBS__BUCKETS, by, &said) == DIBS_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && reached; b++) {
    struct dibs__tiers_mandate *m = &state->mandates[b];
    if (ops[b].op.status != DIBS_OK || !ops[b].served || ops[b].stands.epoch <= m->epoch) continue;
    *m = (struct dibs__tiers_mandate){.epoch = ops[b].stands.epoch, .tier = nth, .life = ops[b].stands.life};
  }
  free(ops);
  return reached;
}

/* The anchor is away.  What a tier serves was installed there under somebody's mandate: with fences it is safe to go on
 * under that, and whoever asks later follows what stands.  Not where the epoch says that it was left, or is strict. */
static bool adopt_from_tiers(struct tiers *t, dibs__tick by) {
  bool any = false;
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  if (!state || t->strictness == DIBS__STRICT) {
    free(state);
    return false;
  }
  dibs__tiers_begin(state, t->schemes, t->count);
  for (uint32_t i = 0; i < t->last; i++) (void)hear_tier(t, i, state, by);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &state->mandates[b];
    bool stands = m->epoch != 0 && m->epoch % 4 == DIBS__KIND_FENCED;
    any = any || stands;
    if (!stands) *m = (struct dibs__tiers_mandate){.epoch = 0};
  }
  if (any) {
    dibs__mutex_lock(&t->lock);
    t->state = *state;
    t->known = true;
    (void)dibs__tiers_here_locked(t);
    dibs__mutex_unlock(&t->lock);
  }
  free(state);
  return any;
}

static dibs__status can_anchor(const struct tiers *t, struct dibs__said *said) {
  uint32_t has = atomic_load(&t->tiers[t->last].families);
  uint32_t needs = 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_REPORT | 1u << DIBS__FAM_ANCHOR;
  if (has == 0 || (has & needs) == needs) return DIBS_OK;
  dibs__say(said, "%s can't be the anchor of tiers; the last one must be SQLite, PostgreSQL or MariaDB",
            t->tiers[t->last].uri->shown);
  return DIBS_INVALID;
}

static bool is_known(struct tiers *t) {
  dibs__mutex_lock(&t->lock);
  bool known = t->known;
  dibs__mutex_unlock(&t->lock);
  return known;
}

dibs__status dibs__tiers_ready(struct tiers *t, dibs__tick by, struct dibs__said *said) {
  if (is_known(t)) return DIBS_OK;
  dibs__status status = dibs__tiers_control_take(t, by, said);
  if (status != DIBS_OK) return status;
  if (!is_known(t)) {
    struct tier *anchor = &t->tiers[t->last];
    /* One that is silent leaves half of the time to ask the tiers instead. */
    dibs__tick now = dibs__tick_now(), soon = dibs__tick_add_ms(now, dibs__tick_left_ms(now, by) / 2);
    status = dibs__tier_call(anchor, &t->own[t->last], NULL, 0, soon, said);
    if (status == DIBS_OK) status = can_anchor(t, said);
    if (status == DIBS_OK) status = dibs__tiers_load(t, soon, said);
    if (status == DIBS_NOT_FOUND) status = dibs__tiers_change(t, NULL, NULL, NULL, by, said);
    if ((status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) && adopt_from_tiers(t, by)) status = DIBS_OK;
    if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  }
  dibs__turn_end(&t->control);
  return status;
}
