/* SPDX-License-Identifier: MIT */
/*
 * The anchor's record of the tiers, the reports of clients, and the thread that keeps this client in step with both.
 *
 * `confirmed` is the time before the request whose answer is the copy.  The anchor's clock is taken to be its time when
 * the answer arrived, so that this client never believes it to be later than it is.
 *
 * The thread works each second, and at once when a breaker changes or a record refuses a write: it reports how it sees
 * the tiers, reads the record and the reports of others, votes, and moves buckets that should be on another tier.  It
 * probes tiers that no caller uses, so that their return is noticed.
 */
#include "tier/tiers_impl.h"

#include <stdio.h>

enum { VERSION_MAX = 24, WELL_MS = 3 * DIBS__TIERS_REPORT_MS };

/* A call at the anchor, on this driver's own session. */
static dibs__status send_request(struct tiers *t, struct dibs__op *const ops[], size_t count, dibs__tick by,
                                 struct dibs__result *result) {
  for (size_t i = 0; i < count; i++) {
    ops[i]->by = by;
    ops[i]->status = DIBS_UNKNOWN;
  }
  return dibs__tier_call(&t->tiers[t->last], &t->own[t->last], ops, count, by, result);
}

static struct dibs__record_op record_op(uint16_t verb) {
  return (struct dibs__record_op){.op = {.family = DIBS__FAM_RECORD, .verb = verb},
                                  .key = dibs__str_of(DIBS__TIERS_KEY, sizeof DIBS__TIERS_KEY - 1)};
}

/* The incarnation in which the anchor answers. */
static struct dibs__anchor_op read_incarnation(void) {
  return (struct dibs__anchor_op){.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ}};
}

/* Copies the state, and returns its version.  Any thread. */
static uint64_t tiers_copy(struct tiers *t, struct dibs__tiers_state *state) {
  dibs__mutex_lock(&t->lock);
  *state = t->state;
  uint64_t version = t->version;
  dibs__mutex_unlock(&t->lock);
  return version;
}

int64_t dibs__tiers_now(struct tiers *t) {
  dibs__mutex_lock(&t->lock);
  int64_t now = tiers_ms(dibs__tick_now()) + t->ahead_ms;
  dibs__mutex_unlock(&t->lock);
  return now;
}

/* ---- Adopting ---- */

static void note_anchor_clock(struct tiers *t, dibs__tick sent, const struct dibs__result *result) {
  dibs__tick received = dibs__tick_now();
  dibs__mutex_lock(&t->lock);
  t->ahead_ms = result->now.ms - tiers_ms(received);
  t->ahead_most_ms = result->now.ms + 1 - tiers_ms(sent);
  dibs__mutex_unlock(&t->lock);
}

/* Was the anchor restored from a backup, or replaced by another server?  Then the record is older than the one read
 * before (requests to the anchor go one at a time, so no older answer can come late), or was written in another
 * incarnation than the anchor's present one.  Lock held. */
static bool went_back_locked(const struct tiers *t, const struct dibs__tiers_state *state, uint64_t version,
                             const dibs__incarnation *incarnation) {
  static const dibs__incarnation unknown;
  struct dibs__tiers_read_at is = {state->repairs, version}, newest = {t->state.repairs, t->newest};
  bool boots = atomic_load(&t->tiers[t->last].caps) & DIBS__CAP_BOOT_INCARNATION;
  bool told = incarnation && !boots && memcmp(&state->anchor_incarnation, &unknown, sizeof unknown) != 0;
  return (t->newest != 0 && dibs__tiers_before(&is, &newest)) ||
         (told && memcmp(&state->anchor_incarnation, incarnation, sizeof *incarnation) != 0);
}

/* A client that may know less than us has repaired the record since we read it.  true: our flags must be restored.
 * Lock held. */
static bool was_repaired_locked(struct tiers *t, const struct dibs__tiers_state *state) {
  struct dibs__tiers_read_at at = dibs__tiers_flags_at(&t->state, t->newest);
  if (t->newest != 0 && state->repaired && state->repairs > t->state.repairs) tiers_count(t, DIBS__M_WENT_BACK, 1);
  if (t->owes) {
    t->owes = dibs__tiers_owes_flags(state, &t->flags_at);
  } else if (state->count == t->state.count && dibs__tiers_owes_flags(state, &at)) {
    t->flags = t->state;
    t->flags_at = at;
    t->owes = true;
  }
  return t->owes;
}

/* Fills `here` from the state.  Lock held; true: some bucket has another mandate now. */
static bool refresh_placements_locked(struct tiers *t) {
  bool changed = false;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *m = &t->state.mandates[b];
    struct here here = {.tier = m->tier,
                        .mandate = {m->epoch, m->incarnation},
                        .from = m->from,
                        .left_tier = m->left.tier,
                        .left = {m->left.epoch, m->left.incarnation}};
    if (t->local) here = (struct here){.tier = DIBS__TIER_LOCAL, .mandate = t->local_mandate};
    changed = changed || !dibs__mandate_equal(&here.mandate, &t->here[b].mandate) ||
              !dibs__mandate_equal(&here.left, &t->here[b].left);
    t->here[b] = here;
  }
  return changed;
}

/* When the record is an older one, the state read before it stays valid here until it is written again, however often
 * the older one is read meanwhile. */
static void adopt(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__tiers_saved saved,
                  const dibs__incarnation *incarnation, dibs__tick sent) {
  uint64_t version = saved.version;
  dibs__mutex_lock(&t->lock);
  struct dibs__tiers_read_at is = {state->repairs, version}, last = {t->state.repairs, t->newest};
  bool newest = t->newest == 0 || !dibs__tiers_before(&is, &last);
  t->behind = went_back_locked(t, state, version, incarnation);
  bool owes = false;
  if (newest) {
    owes = was_repaired_locked(t, state);
    t->state = *state;
    t->newest = version;
  }
  t->version = version;
  t->digest = saved.digest;
  t->known = true;
  if (newest) t->confirmed = sent;
  bool changed = refresh_placements_locked(t);
  dibs__mutex_unlock(&t->lock);
  if (owes) dibs__tiers_kick(t);
  if (changed) dibs__tiers_notify(t, &(struct dibs__event){.what = DIBS__EV_RECHECK});
}

void dibs__tiers_suppose(struct tiers *t, const struct dibs__tiers_state *state, dibs__tick requested) {
  adopt(t, state, (struct dibs__tiers_saved){0}, NULL, requested);
}

/* All clients of an anchor must name the same tiers in the same order. */
static dibs__status check_members(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__result *result) {
  bool same = state->count == t->count;
  for (uint32_t i = 0; same && i < t->count; i++) same = strcmp(state->tiers[i].scheme, t->schemes[i]) == 0;
  if (same) {
    bool strict = state->strictness == DIBS__STRICT;
    dibs__mutex_lock(&t->lock);
    bool follows = t->version != 0; /* the setting was changed for all clients meanwhile */
    dibs__mutex_unlock(&t->lock);
    bool agrees = follows || t->strictness < 0 ||
                  (strict == (t->strictness == DIBS__STRICT) && t->least_strict == state->least_strict);
    if (agrees) return DIBS_OK;
    dibs__set_message(result,
                      "tiers.strictness differs from the strictness of the anchor, %s; omit it, or change the anchor's "
                      "with dibs tier strictness",
                      strict                ? "strict"
                      : state->least_strict ? "least-strict"
                                            : "fenced");
    return DIBS_INVALID;
  }
  char theirs[128] = "";
  size_t len = 0;
  for (uint32_t i = 0; i < state->count && len < sizeof theirs - 40; i++)
    len += (size_t)snprintf(theirs + len, sizeof theirs - len, "%s%s", i ? "," : "", state->tiers[i].scheme);
  dibs__set_message(result, "%s is the anchor of other tiers, %s; name these tiers, or use another prefix or schema",
                    t->tiers[t->last].uri->shown, theirs);
  return DIBS_INVALID;
}

static dibs__status understand(struct tiers *t, const struct dibs__record_op *op, const dibs__incarnation *incarnation,
                               dibs__tick sent, struct dibs__result *result) {
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  if (!state) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_read(op->got, op->got_len, state, result);
  if (status == DIBS_OK) status = check_members(t, state, result);
  struct dibs__tiers_saved saved = {op->version, dibs__record_digest(dibs__str_of(op->got, op->got_len))};
  if (status == DIBS_OK) adopt(t, state, saved, incarnation, sent);
  free(state);
  return status;
}

/* ---- Reading, writing ---- */

static dibs__status loaded(struct tiers *t, struct dibs__record_op *op, const struct dibs__anchor_op *anchor,
                           dibs__tick sent, struct dibs__result *result) {
  const dibs__incarnation *incarnation = anchor->op.status == DIBS_OK ? &anchor->current.incarnation : NULL;
  dibs__status status = op->op.status;
  if (status == DIBS_OK && op->version == 0) status = DIBS_NOT_FOUND;
  if (status == DIBS_OK) status = understand(t, op, incarnation, sent, result);
  free(op->got);
  return status;
}

dibs__status dibs__tiers_load(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  struct dibs__record_op op = record_op(DIBS__RECORD_LOAD);
  struct dibs__anchor_op incarnation = read_incarnation();
  struct dibs__op *ops[] = {&op.op, &incarnation.op};
  dibs__tick sent = dibs__tick_now();
  dibs__status status = send_request(t, ops, 2, by, result);
  if (status != DIBS_OK) return status;
  note_anchor_clock(t, sent, result);
  return loaded(t, &op, &incarnation, sent, result);
}

dibs__status dibs__tiers_save(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__tiers_saved read,
                              dibs__tick by, struct dibs__result *result) {
  char text[VERSION_MAX];
  size_t len;
  char *data = dibs__tiers_write(state, &len);
  if (!data) return DIBS_NO_MEMORY;
  struct dibs__record_op op = record_op(DIBS__RECORD_PUT);
  struct dibs__op *ops[] = {&op.op};
  int n = snprintf(text, sizeof text, "%llu", (unsigned long long)read.version);
  op.guards = read.version ? DIBS__IF_VERSION | DIBS__IF_DIGEST : DIBS__IF_ABSENT;
  op.if_digest = read.digest;
  if (read.version) op.if_version = dibs__str_of(text, (size_t)n);
  op.data = dibs__str_of(data, len);
  dibs__tick sent = dibs__tick_now();
  dibs__status status = send_request(t, ops, 1, by, result);
  if (status == DIBS_OK) {
    note_anchor_clock(t, sent, result);
    status = op.op.status;
    struct dibs__tiers_saved saved = {op.version, dibs__record_digest(op.data)};
    if (status == DIBS_OK) adopt(t, state, saved, NULL, sent);
    if (status == DIBS_NOT_FOUND) status = DIBS_CONFLICT; /* the record was removed meanwhile */
  }
  free(op.got);
  free(data);
  return status;
}

/* ---- Reports ---- */

static void describe_us(struct tiers *t, struct dibs__tiers_report *report) {
  dibs__tick now = dibs__tick_now();
  *report = (struct dibs__tiers_report){.count = t->count};
  memcpy(report->owner, t->owner, sizeof report->owner);
  for (uint32_t i = 0; i < DIBS__M_COUNT; i++) report->counts[i] = atomic_load(&t->counts[i]);
  dibs__mutex_lock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++) {
    const struct tier *tier = &t->tiers[i];
    bool lately = tier->used.ns && tiers_ms(now) - tiers_ms(tier->used) < DIBS__TIERS_ACTIVE_MS;
    bool closed = tier->breaker.state == DIBS__BREAKER_CLOSED;
    bool here = false;
    /* Also if no mandate could be made yet: a tier that was never reached can be voted down, too. */
    for (uint32_t b = 0; b < DIBS__BUCKETS && !here; b++)
      here = t->here[b].tier == i || (t->here[b].left.epoch && t->here[b].left_tier == i);
    report->tiers[i].active = lately && here;
    report->tiers[i].down = !closed && !tier->ours;
    report->tiers[i].well = closed && tier->reached && tiers_ms(now) - tiers_ms(tier->answered) < WELL_MS;
    report->tiers[i].breaker = tier->breaker.state == DIBS__BREAKER_OPEN        ? DIBS__SEEN_OPEN
                               : tier->breaker.state == DIBS__BREAKER_HALF_OPEN ? DIBS__SEEN_HALF_OPEN
                                                                                : DIBS__SEEN_CLOSED;
  }
  dibs__mutex_unlock(&t->lock);
}

/* The reports of the other clients.  NULL: no memory, or there are none. */
static struct dibs__tiers_client *understand_reports(const struct tiers *t, const struct dibs__report_op *op,
                                                     size_t *count) {
  *count = 0;
  struct dibs__tiers_client *clients = op->got_count ? calloc(op->got_count, sizeof *clients) : NULL;
  for (uint32_t i = 0; clients && i < op->got_count; i++) {
    struct dibs__tiers_client *client = &clients[*count];
    if (!dibs__tiers_report_read(op->got[i].data, &client->report)) continue;
    client->age_ms = op->got[i].age_ms;
    client->us = dibs__id_equal(op->got[i].id, t->client);
    ++*count;
  }
  return clients;
}

static void tally_reports(struct tiers *t, const struct dibs__tiers_client *clients, size_t count) {
  struct dibs__tiers_tally made = {0};
  struct dibs__tiers_report *reports = calloc(count ? count : 1, sizeof *reports);
  if (!reports) return;
  for (size_t i = 0; i < count; i++) reports[i] = clients[i].report;
  dibs__tiers_tally(reports, count, &made);
  free(reports);
  dibs__mutex_lock(&t->lock);
  t->tally = made;
  t->tallied = dibs__tick_now();
  dibs__mutex_unlock(&t->lock);
}

dibs__status dibs__tiers_sync(struct tiers *t, dibs__tick by, struct dibs__tiers_client **clients, size_t *count,
                              struct dibs__result *result) {
  char text[DIBS__REPORT_MAX];
  struct dibs__tiers_report us;
  describe_us(t, &us);
  uint16_t verb = atomic_load(&t->acts) ? DIBS__REPORT_PUT : DIBS__REPORT_READ;
  struct dibs__report_op put = {.op = {.family = DIBS__FAM_REPORT, .verb = verb},
                                .id = t->client,
                                .data = dibs__str_of(text, dibs__tiers_report_write(&us, text, sizeof text)),
                                .keep_ms = DIBS__TIERS_ACTIVE_MS,
                                .want = true};
  struct dibs__record_op load = record_op(DIBS__RECORD_LOAD);
  struct dibs__anchor_op incarnation = read_incarnation();
  struct dibs__op *ops[] = {&put.op, &load.op, &incarnation.op};
  size_t many = 0;
  dibs__tick sent = dibs__tick_now();
  if (clients) *clients = NULL;
  dibs__status status = send_request(t, ops, 3, by, result);
  if (status == DIBS_OK) note_anchor_clock(t, sent, result);
  if (status == DIBS_OK) status = loaded(t, &load, &incarnation, sent, result);
  if (put.op.status == DIBS_OK) {
    struct dibs__tiers_client *others = understand_reports(t, &put, &many);
    tally_reports(t, others, many);
    if (clients)
      *clients = others, *count = many;
    else
      free(others);
  }
  free(put.got);
  return status;
}

static void tiers_leave(struct tiers *t, dibs__tick by) {
  struct dibs__result result;
  if (!atomic_load(&t->acts)) return;
  struct dibs__report_op op = {.op = {.family = DIBS__FAM_REPORT, .verb = DIBS__REPORT_DROP}, .id = t->client};
  struct dibs__op *ops[] = {&op.op};
  (void)send_request(t, ops, 1, by, &result);
}

/*
 * ---- The control thread ----
 */

enum { GAP_MS = 20 }; /* between two cycles, however many kicks come */

void dibs__tiers_kick(struct tiers *t) {
  atomic_fetch_add(&t->kicked, 1);
  dibs__word_wake(&t->kicked, 1, false);
}

/* ---- With the memory of the process ---- */

void dibs__tiers_local_locked(struct tiers *t) {
  bool down = t->known && t->state.least_strict;
  for (uint32_t i = 0; i < t->count && down; i++) down = t->tiers[i].breaker.state != DIBS__BREAKER_CLOSED;
  if (down == t->local) return;
  t->local = down;
  (void)refresh_placements_locked(t);
}

/* ---- One cycle ---- */

/* Does a tier that serves buckets not answer?  Then the cycles are shorter. */
static bool tier_fails_locked(const struct tiers *t) {
  bool used[TIERS_ALL] = {false};
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    used[t->here[b].tier] = true;
    if (t->here[b].left.epoch) used[t->here[b].left_tier] = true;
  }
  for (uint32_t i = 0; i < t->last; i++)
    if (used[i] && t->tiers[i].breaker.state != DIBS__BREAKER_CLOSED) return true;
  return t->local;
}

/* A move is in progress, and it is this client's turn to check whether it has ended: one of all clients does so each
 * second.  Strict: a bucket that waits at the anchor is opened when the wait is over. */
static bool must_check_moves(const struct dibs__tiers_state *state, const struct dibs__tiers_tally *tally,
                             int64_t now) {
  bool any = false;
  for (uint32_t b = 0; b < DIBS__BUCKETS && !any; b++) {
    const struct dibs__tiers_mandate *m = &state->mandates[b];
    bool opens = m->tier + 1 == state->count && m->from && m->from <= now && now < m->from + 5 * DIBS__TIERS_REPORT_MS;
    any = m->left.epoch || opens;
  }
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return any && (tally->clients < 2 || drawn % tally->clients == 0);
}

/* Is there something to repair: a vote that would change a tier, a bucket on the wrong tier, an anchor behind its
 * records? */
static bool is_repair_due(struct tiers *t, struct heal *why) {
  struct dibs__tiers_state *copy = calloc(1, sizeof *copy);
  uint32_t to;
  if (!copy) return false;
  int64_t now = dibs__tiers_now(t);
  *why = (struct heal){0};
  (void)tiers_copy(t, copy);
  dibs__mutex_lock(&t->lock);
  struct dibs__tiers_tally tally = t->tally;
  uint32_t seen = t->seen_epoch, refused = t->refused_epoch;
  t->seen_epoch = t->refused_epoch = 0;
  bool behind = t->behind || t->owes;
  dibs__mutex_unlock(&t->lock);
  /* No client is ahead of the present epoch of a refused lease; only a record is. */
  for (uint32_t b = 0; b < DIBS__BUCKETS && refused; b++)
    if (copy->mandates[b].epoch == refused) why->above = seen, why->only = refused;
  bool is = behind || why->above || must_check_moves(copy, &tally, now) || dibs__tiers_vote(copy, &tally, now) ||
            dibs__tiers_astray(copy, &to);
  free(copy);
  return is;
}

/* If a tier to which buckets should move cannot be reached, not every cycle tries again. */
static bool may_move(struct tiers *t) {
  struct dibs__tiers_state *copy = calloc(1, sizeof *copy);
  uint32_t to = 0;
  bool may = false;
  if (!copy) return false;
  (void)tiers_copy(t, copy);
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

static void run_cycle(struct tiers *t) {
  struct dibs__result result;
  struct heal why;
  int64_t longest = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), TIERS_CONTROL_MS);
  if (atomic_load(&t->disbanded)) return;
  if (!dibs__timed_lock_take(&t->control, by)) return;
  dibs__status status = dibs__tiers_sync(t, by, NULL, NULL, &result);
  if (!atomic_load(&t->acts)) {
    dibs__timed_lock_release(&t->control);
    return;
  }
  dibs__mutex_lock(&t->lock);
  if (t->longest_ms > t->state.longest_ms) longest = t->longest_ms;
  dibs__mutex_unlock(&t->lock);
  if (status == DIBS_OK && longest) (void)dibs__tiers_change(t, NULL, dibs__tiers_raise_longest, &longest, by, &result);
  if (status == DIBS_OK && is_repair_due(t, &why) && may_move(t))
    (void)dibs__tiers_change(t, &why, NULL, NULL, by, &result);
  dibs__timed_lock_release(&t->control);
}

/* Probes tiers that fail, and those that serve nothing: a client must have seen a tier well to vote for its return. */
static void probe_tiers(struct tiers *t) {
  for (uint32_t i = 0; i < t->last && !atomic_load(&t->stopping); i++) {
    struct tier *tier = &t->tiers[i];
    struct dibs__result result;
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
    /* Without control: the repair of a mandate must not wait for a tier that does not answer. */
    (void)dibs__tier_call(tier, &t->probes[i], ops, 1, op.op.by, &result);
  }
}

/* A tier that was left waits for clients that report it well: a client that runs only for a moment reports, too. */
static bool has_left_a_tier(struct tiers *t) {
  bool left = false;
  dibs__mutex_lock(&t->lock);
  for (uint32_t i = 0; i < t->last && !left; i++) left = t->state.tiers[i].down;
  dibs__mutex_unlock(&t->lock);
  return left;
}

static void control_thread(void *arg) {
  struct tiers *t = arg;
  uint32_t seen = atomic_load(&t->kicked);
  dibs__tick next = dibs__tick_add_ms(dibs__tick_now(), DIBS__TIERS_REPORT_MS);
  if (has_left_a_tier(t)) {
    probe_tiers(t);
    next = dibs__tick_now();
  }
  while (!atomic_load(&t->stopping)) {
    if (dibs__word_wait(&t->kicked, seen, next, false) && atomic_load(&t->kicked) == seen) continue;
    if (atomic_load(&t->stopping)) break;
    seen = atomic_load(&t->kicked);
    run_cycle(t);
    probe_tiers(t);
    dibs__mutex_lock(&t->lock);
    int64_t pause = tier_fails_locked(t) ? TIERS_RETRY_MS : DIBS__TIERS_REPORT_MS;
    dibs__mutex_unlock(&t->lock);
    next = dibs__tick_add_ms(dibs__tick_now(), pause);
    if (!atomic_load(&t->stopping) && atomic_load(&t->kicked) != seen) dibs__nap_ms(GAP_MS);
  }
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), t->timeout_ms);
  if (!dibs__timed_lock_take(&t->control, by)) return;
  tiers_leave(t, by);
  dibs__timed_lock_release(&t->control);
}

bool dibs__tiers_control_start(struct tiers *t, dibs__tick by) {
  if (atomic_load(&t->runs)) return true;
  if (!dibs__timed_lock_take(&t->control, by)) return false;
  if (!t->thread) t->thread = dibs__thread_start("dibs-tiers", control_thread, t);
  bool runs = t->thread != NULL;
  atomic_store(&t->runs, runs);
  dibs__timed_lock_release(&t->control);
  return runs;
}

dibs__status dibs__tiers_control_take(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  if (dibs__timed_lock_take(&t->control, by)) return DIBS_OK;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__set_message(result, "cannot read the state of the tiers from %s: no answer before the deadline",
                    t->tiers[t->last].uri->shown);
  return DIBS_UNAVAILABLE;
}

void dibs__tiers_control_stop(struct tiers *t) {
  atomic_store(&t->stopping, true);
  dibs__tiers_kick(t);
  dibs__thread_join(t->thread);
  t->thread = NULL;
}

/* ---- The first state ---- */

/* What a tier knows of its buckets: the highest epoch of each, with its tier and incarnation. */
static bool read_tier_mandates(struct tiers *t, uint32_t nth, struct dibs__tiers_state *state, dibs__tick by) {
  struct dibs__anchor_op *ops = calloc(DIBS__BUCKETS, sizeof *ops);
  struct dibs__op *list[DIBS__BUCKETS];
  struct dibs__result result;
  if (!ops) return false;
  for (uint16_t b = 0; b < DIBS__BUCKETS; b++) {
    ops[b] = (struct dibs__anchor_op){
        .op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ, .bucket = b, .by = by, .status = DIBS_UNKNOWN}};
    list[b] = &ops[b].op;
  }
  bool reached = dibs__tier_call(&t->tiers[nth], &t->own[nth], list, DIBS__BUCKETS, by, &result) == DIBS_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && reached; b++) {
    struct dibs__tiers_mandate *m = &state->mandates[b];
    if (ops[b].op.status != DIBS_OK || !ops[b].served || ops[b].left || ops[b].current.epoch <= m->epoch) continue;
    *m = (struct dibs__tiers_mandate){
        .epoch = ops[b].current.epoch, .tier = nth, .incarnation = ops[b].current.incarnation};
  }
  free(ops);
  return reached;
}

/* The anchor is unreachable.  A tier serves what some client installed there under a mandate: with fences it is safe to
 * continue under it, and later clients get the record's.  Not if the epoch means that the bucket was left, or is
 * strict. */
static bool adopt_from_tiers(struct tiers *t, dibs__tick by) {
  bool any = false;
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  if (!state || t->strictness == DIBS__STRICT) {
    free(state);
    return false;
  }
  dibs__tiers_begin(state, t->schemes, t->count);
  for (uint32_t i = 0; i < t->last; i++) (void)read_tier_mandates(t, i, state, by);
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
    (void)refresh_placements_locked(t);
    dibs__mutex_unlock(&t->lock);
  }
  free(state);
  return any;
}

static dibs__status can_anchor(const struct tiers *t, struct dibs__result *result) {
  uint32_t has = atomic_load(&t->tiers[t->last].families);
  uint32_t needs = 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_REPORT | 1u << DIBS__FAM_ANCHOR;
  if (has == 0) return DIBS_OK;
  if ((has & needs) == needs && atomic_load(&t->tiers[t->last].caps) & DIBS__CAP_ANCHOR) return DIBS_OK;
  dibs__set_message(result, "%s can't be the anchor of tiers; the last one must be SQLite, PostgreSQL or MariaDB",
                    t->tiers[t->last].uri->shown);
  return DIBS_INVALID;
}

static bool is_known(struct tiers *t) {
  dibs__mutex_lock(&t->lock);
  bool known = t->known;
  dibs__mutex_unlock(&t->lock);
  return known;
}

dibs__status dibs__tiers_ready(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  if (is_known(t)) return DIBS_OK;
  dibs__status status = dibs__tiers_control_take(t, by, result);
  if (status != DIBS_OK) return status;
  if (!is_known(t)) {
    struct tier *anchor = &t->tiers[t->last];
    /* An anchor that does not answer leaves half of the time to ask the tiers instead. */
    dibs__tick now = dibs__tick_now(), soon = dibs__tick_add_ms(now, dibs__tick_left_ms(now, by) / 2);
    status = dibs__tier_call(anchor, &t->own[t->last], NULL, 0, soon, result);
    if (status == DIBS_OK) status = can_anchor(t, result);
    if (status == DIBS_OK) status = dibs__tiers_load(t, soon, result);
    if (status == DIBS_NOT_FOUND) status = dibs__tiers_foresee(t, by, result);
    if ((status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) && adopt_from_tiers(t, by)) status = DIBS_OK;
    if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  }
  dibs__timed_lock_release(&t->control);
  return status;
}
