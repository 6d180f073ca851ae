/* SPDX-License-Identifier: MIT */
/*
 * Makes the mandates of the record and of the tiers agree.  One round: read the state; ask each tier that matters what
 * all its buckets have; decide on a copy; write the copy back if the state has not changed since the read; install the
 * new mandates, once.
 *
 * The races:
 *
 *   - Two clients find a tier empty.  Both make an epoch; one write wins.  The other client reads again, finds a
 *     young epoch and gives it time to arrive.
 *   - A tier's mandates were read before another client's epoch arrived there, but after that was written: then
 *     our write loses, because the state's version has changed.
 *   - The maker dies between writing and installing, or its install has an unknown outcome: no client installs
 *     that epoch again.  The tier keeps another one, and after DIBS__TIERS_GRACE_MS the next epoch is made.
 *   - A bucket moves away from a tier that is up.  First the record has the move; then that tier learns of it, and
 *     grants no free name any more; then the other tier gets its epoch.  So each client with the new record asks the
 *     tier that is left first, and this tier decides whether a name is still there.  If a maker dies in between, the
 *     next maker informs the tier and installs.
 *   - Strict: a client confirms the old copy while our write is on its way to the record.  The wait for the end of
 *     leases counts from the answer to our write at the latest; an answer that took longer than SAVE_MS counts as
 *     none.
 */
#include "tier/tiers_impl.h"

enum {
  NAP_MS = 5,     /* doubled each time, until DIBS__TIERS_GRACE_MS is over */
  SAVE_MS = 1000, /* strict: how long writing the state may take */
  LATE_MS = 15000 /* how long a renewal may take from its decision to its commit */
};

/* What the tiers have in one round. */
struct survey {
  bool reached[DIBS__URI_TIERS];
  dibs__mandate has[DIBS__URI_TIERS][DIBS__BUCKETS]; /* each node of a Redis Cluster has an incarnation of its own */
  struct dibs__buckets served[DIBS__URI_TIERS], left[DIBS__URI_TIERS];
  struct dibs__buckets used[DIBS__URI_TIERS]; /* without tiers */
  uint32_t drawn[DIBS__BUCKETS]; /* by the anchor, by its clock in the next hour; 0: not beyond its epoch */
  struct dibs__anchor_op ops[DIBS__BUCKETS];
  struct dibs__op *list[DIBS__BUCKETS];
};

struct round {
  struct dibs__tiers_state state, before;
  struct dibs__tiers_saved read; /* version 0: there is no record */
  struct dibs__buckets made;
  bool young, changed, saved, server;
  bool restored;                       /* the record was restored to an older one */
  struct dibs__tiers_read_at flags_at; /* when the flags were read with which the round began */
  uint32_t moves, epochs;
};

/* ---- Tiers ---- */

static void request_all(struct survey *survey, uint16_t verb, const struct dibs__tiers_state *state,
                        const struct dibs__buckets *which, uint32_t tier, size_t *count) {
  *count = 0;
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    if (which && (!dibs__buckets_has(which, b) || state->mandates[b].tier != tier)) continue;
    struct dibs__anchor_op *op = &survey->ops[*count];
    *op =
        (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = verb, .bucket = b, .status = DIBS_UNKNOWN}};
    if (state) op->op.mandate = (dibs__mandate){state->mandates[b].epoch, state->mandates[b].incarnation};
    survey->list[(*count)++] = &op->op;
  }
}

static void read_tier(struct tiers *t, uint32_t nth, struct survey *survey, dibs__tick by,
                      struct dibs__result *result) {
  size_t count;
  request_all(survey, DIBS__ANCHOR_READ, NULL, NULL, nth, &count);
  for (size_t i = 0; i < count; i++) survey->list[i]->by = by;
  survey->reached[nth] = dibs__tier_call(&t->tiers[nth], &t->own[nth], survey->list, count, by, result) == DIBS_OK;
  survey->served[nth] = survey->left[nth] = survey->used[nth] = (struct dibs__buckets){{0}};
  if (nth == t->last) memset(survey->drawn, 0, sizeof survey->drawn);
  for (size_t i = 0; i < count && survey->reached[nth]; i++) {
    if (survey->ops[i].op.status != DIBS_OK) {
      survey->reached[nth] = false;
      break;
    }
    /* An epoch of a bucket that is not served was made by the tier itself, perhaps by its clock, as by a Redis without
     * tiers; an anchor's next epoch is above it, too.  (The anchor serves the tiers in its own buckets as they are.) */
    dibs__mandate has = survey->ops[i].current;
    uint32_t by_clock = dibs__tiers_first_epoch(dibs__wall_ms());
    if (nth != t->last && !survey->ops[i].served && has.epoch < by_clock) has.epoch = by_clock;
    uint32_t drawn = dibs__fence_epoch(survey->ops[i].last);
    if (nth != t->last && has.epoch < drawn) has.epoch = drawn;
    if (nth == t->last) survey->drawn[survey->ops[i].op.bucket] = drawn > has.epoch ? drawn + 1 : 0;
    if (survey->ops[i].served) dibs__buckets_add(&survey->served[nth], survey->ops[i].op.bucket);
    if (survey->ops[i].used) dibs__buckets_add(&survey->used[nth], survey->ops[i].op.bucket);
    if (survey->ops[i].left) dibs__buckets_add(&survey->left[nth], survey->ops[i].op.bucket);
    survey->has[nth][survey->ops[i].op.bucket] = has;
  }
}

/* The tier that a moved bucket left gets the epoch below the new one: it is no mandate, so nothing is granted under it,
 * and clients with the old mandate get MOVED.  It does not get the new epoch itself: then two tiers would have it, and
 * a client that starts while the anchor is unreachable could choose the wrong one.  A tier that cannot be reached stays
 * as it is, and a tier that was left on purpose knows already.  When tiers begin, all other tiers get it, too.  When
 * the record was restored to an older one, and when a person raises the epochs, all tiers get it: if the record is
 * restored again, they show how high it was. */
static void retire(struct tiers *t, const struct round *r, struct survey *survey, dibs__tick by) {
  const struct dibs__tiers_state *before = &r->before, *after = &r->state;
  struct dibs__result aside;
  for (uint32_t nth = 0; nth < t->count; nth++) {
    size_t count = 0;
    for (uint16_t b = 0; b < DIBS__BUCKETS && survey->reached[nth]; b++) {
      bool first = before->mandates[b].epoch == 0;
      const struct dibs__tiers_left *on_purpose = &after->mandates[b].left;
      bool left = r->restored || (first ? dibs__buckets_has(&r->made, b) : before->mandates[b].tier == nth);
      if (after->mandates[b].tier == nth || !left) continue;
      if (on_purpose->epoch && on_purpose->tier == nth) continue;
      uint32_t epoch = after->mandates[b].epoch - 1;
      if (!(epoch & 1) || (!first && epoch <= before->mandates[b].epoch)) continue;
      survey->ops[count] = (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR,
                                                           .verb = DIBS__ANCHOR_INSTALL,
                                                           .bucket = b,
                                                           .by = by,
                                                           .status = DIBS_UNKNOWN,
                                                           .mandate = {epoch, survey->has[nth][b].incarnation}}};
      survey->list[count] = &survey->ops[count].op;
      count++;
    }
    if (count) (void)dibs__tier_call(&t->tiers[nth], &t->own[nth], survey->list, count, by, &aside);
  }
}

/* Runs `verb` on the buckets of the set, each with the mandate that `of` returns; epoch 0: skips it. */
typedef dibs__mandate requester(const struct dibs__tiers_mandate *m, uint32_t tier);

static dibs__mandate left_there(const struct dibs__tiers_mandate *m, uint32_t tier) {
  return m->left.tier == tier ? (dibs__mandate){m->left.epoch, m->left.incarnation} : (dibs__mandate){0};
}

static dibs__mandate open_there(const struct dibs__tiers_mandate *m, uint32_t tier) {
  return m->tier == tier && !m->left.epoch ? (dibs__mandate){m->epoch, m->incarnation} : (dibs__mandate){0};
}

/* `done`: the buckets with answer OK that have drawn nothing above the record's epoch: the anchor may have opened a
 * bucket since the read, and drawn by its clock. */
static void request_some(struct tiers *t, struct survey *survey, uint16_t verb, const struct dibs__tiers_state *state,
                         const struct dibs__buckets *which, uint32_t tier, requester *of, dibs__tick by,
                         struct dibs__buckets *done) {
  struct dibs__result aside;
  size_t count = 0;
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    dibs__mandate about = of(&state->mandates[b], tier);
    if (!dibs__buckets_has(which, b) || about.epoch == 0) continue;
    survey->ops[count] = (struct dibs__anchor_op){
        .op = {
            .family = DIBS__FAM_ANCHOR, .verb = verb, .bucket = b, .by = by, .status = DIBS_UNKNOWN, .mandate = about}};
    survey->list[count] = &survey->ops[count].op;
    count++;
  }
  if (count == 0) return;
  if (dibs__tier_call(&t->tiers[tier], &t->own[tier], survey->list, count, by, &aside) != DIBS_OK) return;
  for (size_t i = 0; i < count; i++)
    if (survey->ops[i].op.status == DIBS_OK &&
        dibs__fence_epoch(survey->ops[i].last) < state->mandates[survey->ops[i].op.bucket].epoch)
      dibs__buckets_add(done, survey->ops[i].op.bucket);
}

/* Removes from the set what cannot be installed yet: the tier that a bucket moves away from must know first, so that no
 * name is granted on both. */
static bool leave_moving_buckets(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__buckets *made,
                                 struct survey *survey, dibs__tick by) {
  struct dibs__buckets known = {{0}};
  bool all = true;
  for (uint32_t nth = 0; nth < t->count; nth++)
    request_some(t, survey, DIBS__ANCHOR_LEAVE, state, made, nth, left_there, by, &known);
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    if (!dibs__buckets_has(made, b) || !state->mandates[b].left.epoch || dibs__buckets_has(&known, b)) continue;
    made->bits[b / 64] &= ~(UINT64_C(1) << b % 64);
    all = false;
  }
  return all;
}

/* The anchor's own bucket continues as its own under the next epoch.  If that were installed and then opened, clients
 * that open the anchor alone would be refused for a moment.  Not if the bucket has to wait first (strict). */
static bool is_raised(const struct tiers *t, const struct round *r, const struct survey *survey, uint32_t bucket,
                      int64_t now) {
  const struct dibs__tiers_mandate *was = &r->before.mandates[bucket], *m = &r->state.mandates[bucket];
  return was->epoch && was->tier == t->last && m->tier == t->last && m->from <= now &&
         !dibs__buckets_has(&survey->served[t->last], bucket);
}

/* Opens the buckets that the anchor serves (R45), for clients that open it alone, too: when no lease is left elsewhere
 * and, strict, none can be.  Not a bucket that is there only for a while, because of an outage or a pin: a client that
 * opens the anchor alone would be granted a name in it for that while, and refused in the middle of its work. */
static void open_anchor(struct tiers *t, const struct round *r, struct survey *survey, int64_t now, dibs__tick by) {
  const struct dibs__tiers_state *state = &r->state;
  struct dibs__buckets which = {{0}}, done = {{0}};
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *m = &state->mandates[b];
    if (m->tier != t->last || m->epoch == 0 || m->from > now || !dibs__tiers_at_home(state, b)) continue;
    bool has = survey->reached[t->last] && survey->has[t->last][b].epoch == m->epoch &&
               dibs__buckets_has(&survey->served[t->last], b) && !dibs__buckets_has(&survey->left[t->last], b);
    bool installed = dibs__buckets_has(&r->made, b) && !is_raised(t, r, survey, b, now);
    if (has || installed) dibs__buckets_add(&which, b);
  }
  request_some(t, survey, DIBS__ANCHOR_OPEN, state, &which, t->last, open_there, by, &done);
}

/* Exactly once, with any outcome. */
static bool install(struct tiers *t, const struct round *r, struct survey *survey, int64_t now, dibs__tick by,
                    struct dibs__result *result) {
  const struct dibs__tiers_state *state = &r->state;
  const struct dibs__buckets *made = &r->made;
  bool all = true;
  for (uint32_t nth = 0; nth < t->count; nth++) {
    size_t count;
    request_all(survey, DIBS__ANCHOR_INSTALL, state, made, nth, &count);
    if (count == 0) continue;
    for (size_t i = 0; i < count; i++) {
      struct dibs__anchor_op *op = &survey->ops[i];
      op->op.by = by;
      if (!is_raised(t, r, survey, op->op.bucket, now)) continue;
      op->op.verb = DIBS__ANCHOR_RAISE;
      op->above = dibs__fence_make(op->op.mandate.epoch - 1, DIBS__SEQ_MAX);
    }
    if (dibs__tier_call(&t->tiers[nth], &t->own[nth], survey->list, count, by, result) != DIBS_OK) all = false;
    for (size_t i = 0; i < count; i++) all = all && survey->ops[i].op.status == DIBS_OK;
  }
  return all;
}

/* ---- One round ---- */

static void set_kind(struct round *r, uint32_t bucket) {
  struct dibs__tiers_mandate *m = &r->state.mandates[bucket];
  uint32_t epoch = m->epoch, kind = r->state.strictness == DIBS__STRICT ? DIBS__KIND_STRICT : DIBS__KIND_FENCED;
  while (epoch % 4 != kind) epoch++;
  if (epoch <= DIBS__EPOCH_MAX) m->epoch = epoch; /* otherwise the epoch has no kind, and no client uses it as one */
  r->changed = true;
}

static void mark_moved(struct round *r, uint32_t bucket) {
  set_kind(r, bucket);
  dibs__buckets_add(&r->made, bucket);
}

/* A bucket's first epoch is above that of every tier, wherever the bucket will be: a client that used one of them alone
 * continues with larger fences. */
static void note_highest_epochs(const struct tiers *t, const struct dibs__tiers_state *state, struct survey *survey) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    if (state->mandates[b].epoch) continue;
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->count; i++)
      if (survey->reached[i] && survey->has[i][b].epoch > most) most = survey->has[i][b].epoch;
    for (uint32_t i = 0; i < t->count; i++)
      if (survey->reached[i]) survey->has[i][b].epoch = most;
  }
}

/* ---- A record that was restored to an older one ---- */

/* The largest epoch that a tier has for the bucket; 0: none is served for us. */
static uint32_t highest_served_epoch(const struct tiers *t, const struct survey *survey, uint32_t bucket) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < t->count; i++) {
    if (!survey->reached[i] || !dibs__buckets_has(&survey->served[i], bucket)) continue;
    uint32_t made = dibs__tiers_made(survey->has[i][bucket].epoch);
    if (made > most) most = made;
  }
  return most;
}

/* The tier is or was being left under the mandate that the record has for it: only a later record can have decided
 * this. */
static bool was_left(const struct dibs__tiers_state *state, const struct survey *survey, uint32_t bucket) {
  const struct dibs__tiers_mandate *m = &state->mandates[bucket];
  return m->epoch && survey->reached[m->tier] && dibs__buckets_has(&survey->left[m->tier], bucket) &&
         survey->has[m->tier][bucket].epoch == m->epoch;
}

/* Does a tier have something that this record did not make?  (Or another client made it since the record was read: then
 * our write loses.)  Then the fleet continues with the stricter mode of the two: a less strict one needs a person. */
static void compare_with_tiers(const struct tiers *t, struct round *r, const struct survey *survey) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    uint32_t told = highest_served_epoch(t, survey, b);
    if (was_left(&r->state, survey, b)) r->restored = true;
    if (told <= r->state.mandates[b].epoch) continue;
    r->restored = true;
    if (dibs__tiers_tells_strict(told)) r->state.strictness = DIBS__STRICT;
  }
}

/* All buckets: the epochs made since are not known, not even for which buckets.  A bucket whose tier cannot be reached
 * gets an epoch that no client installs, so that the tier does not seem to be current when it returns. */
static void pass_over(const struct tiers *t, struct round *r, const struct survey *survey, const struct heal *why,
                      int64_t now) {
  bool by_hand = why && why->restored;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &r->state.mandates[b];
    bool reached = survey->reached[m->tier];
    uint32_t above = highest_served_epoch(t, survey, b);
    if (why && why->above > above) above = why->above;
    if (m->epoch == 0 && (!reached || dibs__tiers_wanted(&r->state, b) != m->tier)) m->epoch = above;
    dibs__incarnation incarnation = reached ? survey->has[m->tier][b].incarnation : m->incarnation;
    for (uint32_t i = 0; i < t->count; i++) /* by hand: above all tiers, wherever the bucket goes next */
      if (survey->reached[i] && (by_hand || i == m->tier) && survey->has[i][b].epoch > above)
        above = survey->has[i][b].epoch;
    if (dibs__tiers_pass_over(&r->state, b, above, &incarnation, now) != DIBS__TIERS_MADE) continue;
    if (reached)
      mark_moved(r, b);
    else
      set_kind(r, b);
    r->epochs++;
  }
  r->state.repairs++;
  r->state.repaired = by_hand ? 0 : now > 0 ? now : 1;
}

/* The flags of the record to be written.  To confirm a repaired record accepts its flags. */
static void set_flags_of(struct round *r, const struct heal *why) {
  bool confirms = why && why->restored && r->before.repaired, acts = why && why->settles;
  if (!r->restored && r->state.flags_of.version == 0) return; /* this record has all that there is */
  if (confirms || acts)
    r->state.flags_of = (struct dibs__tiers_read_at){DIBS__TIERS_SETTLED, DIBS__TIERS_SETTLED};
  else if (r->restored)
    r->state.flags_of = r->flags_at;
}

static void apply_votes(struct tiers *t, struct round *r, int64_t now) {
  dibs__mutex_lock(&t->lock);
  struct dibs__tiers_tally tally = t->tally;
  bool old = !dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(t->tallied, DIBS__TIERS_CONFIRM_MS));
  dibs__mutex_unlock(&t->lock);
  if (old) return; /* the anchor was unreachable: older reports are no votes any more */
  if (tally.clients && dibs__tiers_vote(&r->state, &tally, now)) r->changed = true;
}

/* The holders at the tier that the bucket moves away from are not visible there any more.  true: the next epoch was
 * made. */
static bool lost_what_it_left(struct round *r, const struct survey *survey, uint32_t bucket, int64_t now) {
  struct dibs__tiers_mandate *m = &r->state.mandates[bucket];
  const struct dibs__tiers_left *left = &m->left;
  if (!left->epoch) return false;
  const dibs__mandate *has = &survey->has[left->tier][bucket];
  bool there = has->epoch == left->epoch && memcmp(&has->incarnation, &left->incarnation, sizeof has->incarnation) == 0;
  if (!dibs__tiers_is_down(&r->state, left->tier) && (!survey->reached[left->tier] || there)) return false;
  const dibs__incarnation *incarnation = &survey->has[m->tier][bucket].incarnation;
  if (dibs__tiers_left_lost(&r->state, bucket, incarnation, now) != DIBS__TIERS_MADE) return false;
  mark_moved(r, bucket);
  r->epochs++;
  return true;
}

/* The anchor's own buckets: the anchor decides their epochs, unless a caller requests the next one.  true: nothing is
 * left to do. */
static bool follow_anchor(struct round *r, const struct survey *survey, uint32_t bucket, const struct heal *why,
                          int64_t now) {
  struct dibs__tiers_mandate *m = &r->state.mandates[bucket];
  const dibs__mandate *has = &survey->has[m->tier][bucket];
  if (m->tier + 1 != r->state.count || m->epoch == 0 || dibs__buckets_has(&survey->served[m->tier], bucket))
    return false;
  if (has->epoch < m->epoch) return false;
  if (dibs__tiers_follow(&r->state, bucket, has, now)) r->changed = true;
  return !why || !(why->by_hand || why->above);
}

/* Repairs buckets whose tier does not have the record's mandate, or has no fences left. */
static void repair_buckets(struct round *r, const struct survey *survey, const struct heal *why, int64_t now) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &r->state.mandates[b];
    if (!survey->reached[m->tier]) continue;
    if (lost_what_it_left(r, survey, b, now) || follow_anchor(r, survey, b, why, now)) continue;
    if (m->epoch == 0 && dibs__tiers_wanted(&r->state, b) != m->tier) continue; /* placement() makes it */
    bool behind = why && why->above && why->above >= m->epoch && (!why->only || why->only == m->epoch);
    uint32_t above = behind ? why->above : 0;
    bool spent = why && m->epoch && why->spent[b] == m->epoch;
    bool by_hand = why && why->by_hand;
    const dibs__incarnation *incarnation = &survey->has[m->tier][b].incarnation;
    dibs__mandate has = survey->has[m->tier][b];
    /* A tier that does not serve us does not have the record's mandate, even if its own number is equal. */
    bool serves = dibs__buckets_has(&survey->served[m->tier], b) && !dibs__buckets_has(&survey->left[m->tier], b);
    if (m->epoch != 0 && has.epoch == m->epoch && !serves) has.epoch--;
    for (uint32_t i = 0; by_hand && i < r->state.count; i++) /* above all tiers, wherever the bucket goes next */
      if (survey->reached[i] && survey->has[i][b].epoch > above) above = survey->has[i][b].epoch;
    enum dibs__tiers_verdict verdict = by_hand          ? dibs__tiers_bump(&r->state, b, above, incarnation, now)
                                       : spent || above ? dibs__tiers_next(&r->state, b, above, incarnation, now)
                                                        : dibs__tiers_told(&r->state, b, &has, now);
    if (verdict == DIBS__TIERS_YOUNG) r->young = true;
    if (verdict == DIBS__TIERS_SERVER) r->server = true;
    if (verdict != DIBS__TIERS_MADE) continue;
    mark_moved(r, b);
    r->epochs++;
  }
}

static void placement(struct tiers *t, struct round *r, const struct survey *survey, int64_t now) {
  const dibs__incarnation *incarnations[DIBS__URI_TIERS] = {NULL};
  const dibs__mandate *has[DIBS__URI_TIERS] = {NULL};
  struct dibs__buckets moved = {{0, 0}};
  for (uint32_t i = 0; i < t->count; i++)
    if (survey->reached[i]) incarnations[i] = &survey->has[i][0].incarnation, has[i] = survey->has[i];
  bool any = dibs__tiers_placement(&r->state, incarnations, has, now, &moved);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    uint32_t wanted = dibs__tiers_wanted(&r->state, b);
    bool could = incarnations[wanted] && !r->state.mandates[b].left.epoch;
    if (could && wanted != r->state.mandates[b].tier) r->server = true;
  }
  if (!any) return;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    if (!dibs__buckets_has(&moved, b)) continue;
    mark_moved(r, b);
    r->moves++;
  }
}

/* ---- Moves in progress ---- */

struct busy {
  struct dibs__buckets set;
};

static int mark_busy(const struct dibs__lease_row *row, void *user) {
  struct busy *busy = user;
  bool has = row->state == DIBS__HOLDS || row->state == DIBS__OFFERED || row->state == DIBS__BREAKING;
  if (has) dibs__buckets_add(&busy->set, dibs__bucket(row->name));
  return 0;
}

/* A bucket without a lease at the tier that it moves away from has moved: that tier grants nothing, so it stays so.  A
 * lease that ended just now may have been renewed by a transaction that has not committed yet. */
static void end_moves(struct tiers *t, struct round *r, const struct survey *survey, dibs__tick by) {
  for (uint32_t nth = 0; nth < t->count; nth++) {
    struct busy busy = {{{0}}};
    struct dibs__list list = {.row = mark_busy, .user = &busy, .ended_ms = LATE_MS};
    struct dibs__result aside;
    struct dibs__buckets which = {{0}};
    bool any = false;
    for (uint16_t b = 0; b < DIBS__BUCKETS && survey->reached[nth]; b++) {
      const struct dibs__tiers_left *left = &r->state.mandates[b].left;
      if (!left->epoch || left->tier != nth || !dibs__buckets_has(&survey->left[nth], b)) continue;
      if (survey->has[nth][b].epoch != left->epoch) continue;
      dibs__buckets_add(&which, b);
      any = true;
    }
    if (!any || !t->own[nth]) continue;
    if (t->own[nth]->store->driver->list(t->own[nth], &list, by, &aside) != DIBS_OK) {
      if (aside.dead) dibs__tier_hang_up(&t->tiers[nth], &t->own[nth]);
      continue;
    }
    for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
      if (!dibs__buckets_has(&which, b) || dibs__buckets_has(&busy.set, b)) continue;
      r->state.mandates[b].left = (struct dibs__tiers_left){0};
      r->changed = true;
    }
  }
}

/* The tiers that matter: those that serve buckets, or should. */
static uint32_t tiers_that_matter(const struct tiers *t, const struct dibs__tiers_state *state) {
  uint32_t set = 0;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    if (state->mandates[b].epoch) set |= 1u << state->mandates[b].tier;
    if (state->mandates[b].left.epoch) set |= 1u << state->mandates[b].left.tier;
    set |= 1u << dibs__tiers_wanted(state, b);
  }
  return set & ((1u << t->count) - 1);
}

/* A store that is used without tiers becomes a tier for others only on request. */
static void roll_out_by_hand(const struct tiers *t, struct dibs__tiers_state *state, const struct survey *survey) {
  bool used = false;
  for (uint32_t i = 0; i < t->count; i++)
    used = used || (survey->reached[i] && (survey->used[i].bits[0] || survey->used[i].bits[1]));
  for (uint32_t i = 0; i < t->last && used; i++) state->tiers[i].percent = 0;
}

/* These stores were never opened as tiers, or the anchor has lost what it knew of them: the new record is newer than
 * one of an earlier fleet, whose clients may still run.  Its epochs are below those to which its members were raised,
 * and its record was repaired less often. */
static int64_t first_repairs(const struct tiers *t, const struct survey *survey) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < t->count; i++)
    for (uint32_t b = 0; b < DIBS__BUCKETS && survey->reached[i]; b++)
      if (survey->has[i][b].epoch > most) most = survey->has[i][b].epoch;
  return most;
}

/* These stores were never opened as tiers.  What the anchor serves continues there, under the epochs that it has; but
 * not if another tier has served, or was used alone, under later ones. */
static void begin_at_anchor(const struct tiers *t, struct round *r, const struct survey *survey) {
  for (uint32_t b = 0; b < DIBS__BUCKETS && survey->reached[t->last]; b++) {
    dibs__mandate has = survey->has[t->last][b];
    bool behind = dibs__buckets_has(&survey->served[t->last], b);
    uint32_t drawn = survey->drawn[b] > has.epoch ? survey->drawn[b] : has.epoch;
    for (uint32_t i = 0; i < t->last; i++) {
      bool theirs = dibs__buckets_has(&survey->served[i], b) || dibs__buckets_has(&survey->used[i], b);
      behind = behind || (survey->reached[i] && theirs && survey->has[i][b].epoch > drawn);
    }
    if (behind) continue;
    r->state.mandates[b] =
        (struct dibs__tiers_mandate){.epoch = has.epoch, .tier = t->last, .incarnation = has.incarnation};
  }
}

static void begin_state(const struct tiers *t, struct dibs__tiers_state *state) {
  dibs__tiers_begin(state, t->schemes, t->count);
  if (t->strictness >= 0) {
    state->strictness = t->strictness ? DIBS__STRICT : DIBS__FENCED;
    state->least_strict = t->least_strict;
  }
  state->dwell_ms = t->dwell_ms;
}

dibs__status dibs__tiers_foresee(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  struct survey *survey = calloc(1, sizeof *survey);
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  if (!survey || !state) {
    free(survey);
    free(state);
    return DIBS_NO_MEMORY;
  }
  dibs__tick requested = dibs__tick_now();
  begin_state(t, state);
  for (uint32_t i = 0; i < t->count; i++) read_tier(t, i, survey, by, result);
  roll_out_by_hand(t, state, survey);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) state->mandates[b].tier = t->last;
  dibs__status status = survey->reached[t->last] ? DIBS_OK : DIBS_UNAVAILABLE;
  if (status == DIBS_OK) dibs__tiers_suppose(t, state, requested);
  free(state);
  free(survey);
  return status;
}

/* Strict: `from` was computed when the round began, by a clock that may be behind.  A client that confirms the old copy
 * until our write is done may hold for that much longer. */
static void wait_longer(struct tiers *t, struct round *r, int64_t now) {
  dibs__mutex_lock(&t->lock);
  int64_t late = tiers_ms(dibs__tick_now()) + t->ahead_most_ms + SAVE_MS;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (dibs__buckets_has(&r->made, b) && r->state.mandates[b].from > now) r->state.mandates[b].from += late - now;
}

/* The anchor's record was restored to an older one, and was not repaired, or not with the flags that we know. */
static bool record_is_behind(struct tiers *t) {
  dibs__mutex_lock(&t->lock);
  bool behind = t->behind || t->owes;
  dibs__mutex_unlock(&t->lock);
  return behind;
}

/* Reads the state with which a round begins, and whether the record needs a repair.  Restores flags that we know and
 * the record lacks: a fleet that is stricter than the record has the epochs of a strict one. */
static uint64_t begin_round(struct tiers *t, struct round *r) {
  dibs__mutex_lock(&t->lock);
  r->state = t->state;
  r->restored = t->behind;
  r->flags_at = dibs__tiers_flags_at(&t->state, t->newest);
  if (t->owes) {
    bool strict = r->state.strictness == DIBS__STRICT;
    dibs__tiers_copy_flags(&r->state, &t->flags);
    r->restored = r->restored || (!strict && r->state.strictness == DIBS__STRICT);
    r->state.flags_of = r->flags_at = t->flags_at;
    r->changed = true;
  }
  r->read = (struct dibs__tiers_saved){t->version, t->digest};
  dibs__mutex_unlock(&t->lock);
  return r->read.version;
}

static bool any_left(const struct dibs__tiers_state *state) {
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (state->mandates[b].left.epoch) return true;
  return false;
}

/* Reads what the tiers have; `some`: only those that the record concerns.  Nothing is decided without the anchor: its
 * buckets could be moved without their holders, and new epochs be below what it drew by its clock. */
static dibs__status read_members(struct tiers *t, struct round *r, struct survey *survey, bool some, dibs__tick by,
                                 struct dibs__result *result) {
  struct dibs__result aside;
  uint32_t set = some && !r->restored ? tiers_that_matter(t, &r->state) : (1u << t->count) - 1;
  memset(survey->reached, 0, sizeof survey->reached);
  set |= 1u << t->last;
  for (uint32_t i = 0; i < t->count; i++)
    if (set >> i & 1) read_tier(t, i, survey, by, i == t->last ? result : &aside);
  if (!survey->reached[t->last] && !result->text[0])
    dibs__set_message(result, "the last tier of %s answered for its record, but not for its buckets", t->uri->shown);
  return survey->reached[t->last] ? DIBS_OK : DIBS_UNAVAILABLE;
}

typedef dibs__status changer(struct dibs__tiers_state *state, void *arg, struct dibs__result *result);

static void decide(struct tiers *t, struct round *r, struct survey *survey, const struct heal *why, uint64_t version,
                   int64_t now, dibs__tick by) {
  memcpy(r->state.drawn, survey->drawn, sizeof survey->drawn);
  if (!version) begin_at_anchor(t, r, survey);
  compare_with_tiers(t, r, survey);
  note_highest_epochs(t, &r->state, survey);
  end_moves(t, r, survey, by);
  if (r->restored)
    pass_over(t, r, survey, why, now);
  else
    repair_buckets(r, survey, why, now);
  set_flags_of(r, why);
  placement(t, r, survey, now);
  if (survey->reached[t->last]) r->state.anchor_incarnation = survey->has[t->last][0].incarnation;
}

/* OK: done.  CONFLICT: another round is necessary.  Otherwise it cannot be done. */
static dibs__status one_round(struct tiers *t, struct round *r, struct survey *survey, const struct heal *why,
                              changer *change, void *arg, dibs__tick by, struct dibs__result *result) {
  struct dibs__result aside;
  dibs__status status = dibs__tiers_load(t, by, result);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status;
  *r = (struct round){.changed = false};
  uint64_t version = 0;
  if (status == DIBS_OK)
    version = begin_round(t, r);
  else
    begin_state(t, &r->state);
  if (!version) status = read_members(t, r, survey, false, by, result);
  if (!version && status != DIBS_OK) return status;
  if (!version) roll_out_by_hand(t, &r->state, survey); /* before the change, which may be the flag that rolls out */
  if (!version) r->state.repairs = first_repairs(t, survey);
  r->restored = r->restored || (version && why && why->restored);
  r->before = r->state;
  if (change) {
    status = change(&r->state, arg, result);
    if (status != DIBS_OK) return status;
    r->changed = true;
  }
  int64_t now = dibs__tiers_now(t), wall = dibs__wall_ms();
  r->state.wall_ahead_ms = wall > now ? wall - now : 0;
  apply_votes(t, r, now);
  if (version) status = read_members(t, r, survey, !(why && why->by_hand), by, result);
  if (status != DIBS_OK) return status;
  decide(t, r, survey, why, version, now, by);
  if (!r->changed && version) {
    if (r->server)
      dibs__set_message(result,
                        "a tier of %s has seen epochs far above those of its anchor, as after the restore of a backup; "
                        "raise the anchor's with dibs tier bump",
                        t->uri->shown);
    open_anchor(t, r, survey, now, by);
    return r->young ? DIBS_CONFLICT : r->server ? DIBS_UNAVAILABLE : DIBS_OK;
  }
  bool strict = r->before.strictness == DIBS__STRICT || r->state.strictness == DIBS__STRICT;
  dibs__tick saving = dibs__tick_now(), save_by = dibs__tick_add_ms(saving, SAVE_MS);
  if (strict) wait_longer(t, r, now);
  status = dibs__tiers_save(t, &r->state, r->read, strict ? dibs__tick_min(by, save_by) : by, result);
  if (status != DIBS_OK) return status;
  r->saved = true;
  /* It is in the record, but not installed: after DIBS__TIERS_GRACE_MS the next epoch is made. */
  if (strict && !dibs__tick_before(dibs__tick_now(), save_by)) return DIBS_CONFLICT;
  if (version) tiers_count(t, DIBS__M_MOVES, r->moves); /* a fleet that begins moves nothing */
  tiers_count(t, DIBS__M_EPOCHS, r->epochs);
  if (r->moves || !version || r->restored) retire(t, r, survey, by);
  bool all = leave_moving_buckets(t, &r->state, &r->made, survey, by);
  all = install(t, r, survey, now, by, &aside) && all;
  open_anchor(t, r, survey, now, by);
  return all ? DIBS_OK : DIBS_CONFLICT;
}

dibs__status dibs__tiers_change(struct tiers *t, const struct heal *why, changer *change, void *arg, dibs__tick by,
                                struct dibs__result *result) {
  struct survey *survey = calloc(1, sizeof *survey);
  struct round *r = calloc(1, sizeof *r);
  dibs__status status = survey && r ? DIBS_CONFLICT : DIBS_NO_MEMORY;
  int64_t nap_ms = NAP_MS;
  bool ended = false, by_hand = change != NULL, stands = false;
  for (uint32_t round = 0; survey && r && round < TIERS_HEAL_ROUNDS; round++) {
    status = one_round(t, r, survey, why, change, arg, by, result);
    /* A move that has just begun may be complete already. */
    bool ends = status == DIBS_OK && r->saved && !ended && any_left(&r->state);
    if (ends) ended = true, status = DIBS_CONFLICT;
    if (status != DIBS_CONFLICT && status != DIBS_UNKNOWN) break;
    if (r->saved) change = NULL, why = NULL, stands = true; /* only the install is left */
    dibs__tick now = dibs__tick_now();
    if (!dibs__tick_before(now, by)) break;
    if (r->saved || !r->young) continue;
    int64_t left = dibs__tick_left_ms(now, by);
    dibs__nap_ms(left < nap_ms ? left : nap_ms);
    nap_ms *= 2;
  }
  free(r);
  free(survey);
  /* The change is written.  Clients that read it install the rest. */
  if (by_hand && stands && status == DIBS_CONFLICT) return DIBS_OK;
  if (status == DIBS_CONFLICT || status == DIBS_UNKNOWN) {
    dibs__set_message(result, "a tier of %s does not keep its mandate, or other clients change the tiers all the time",
                      t->uri->shown);
    status = DIBS_UNAVAILABLE;
  }
  return status;
}

dibs__status dibs__tiers_put_right(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  if (!record_is_behind(t)) return DIBS_OK;
  dibs__status status = dibs__tiers_control_take(t, by, result);
  if (status != DIBS_OK) return status;
  if (record_is_behind(t)) status = dibs__tiers_change(t, NULL, NULL, NULL, by, result);
  dibs__timed_lock_release(&t->control);
  return status;
}

/* false: another thread repaired it while we waited, or the reason was something else. */
static bool is_wanting(struct tiers *t, const struct heal *why) {
  bool is = false;
  dibs__mutex_lock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS && !is; b++)
    is = why->found[b] != 0 && t->here[b].mandate.epoch == why->found[b] - 1;
  dibs__mutex_unlock(&t->lock);
  return is;
}

dibs__status dibs__tiers_heal(struct tiers *t, const struct heal *why, dibs__tick by, struct dibs__result *result) {
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__status status = dibs__tiers_control_take(t, by, result);
  if (status != DIBS_OK) return status;
  if (is_wanting(t, why)) status = dibs__tiers_change(t, why, NULL, NULL, by, result);
  dibs__timed_lock_release(&t->control);
  return status;
}

dibs__status dibs__tiers_raise_longest(struct dibs__tiers_state *state, void *arg, struct dibs__result *result) {
  (void)result;
  int64_t longest = *(const int64_t *)arg;
  if (longest > state->longest_ms) state->longest_ms = longest;
  return DIBS_OK;
}
