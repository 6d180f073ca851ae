/* SPDX-License-Identifier: MIT */
/*
 * The anchor's record of the tiers, and what clients tell each other.
 *
 * `confirmed` is when the question left whose answer the copy is; the anchor's clock is taken to be what it said when
 * the answer arrived, so that it is never believed to be later than it is.
 */
#include "tier/tiers_parts.h"

#include <stdio.h>

enum { VERSION_MAX = 24, WELL_MS = 3 * DIBS__TIERS_REPORT_MS };

/* A call at the anchor, on our own session. */
static dibs__status ask(struct tiers *t, struct dibs__op *const ops[], size_t count, dibs__tick by,
                        struct dibs__said *said) {
  for (size_t i = 0; i < count; i++) {
    ops[i]->by = by;
    ops[i]->status = DIBS_UNKNOWN;
  }
  return dibs__tier_call(&t->tiers[t->last], &t->own[t->last], ops, count, by, said);
}

static struct dibs__record_op record(uint16_t verb) {
  return (struct dibs__record_op){.op = {.family = DIBS__FAM_RECORD, .verb = verb},
                                  .key = dibs__str_of(DIBS__TIERS_KEY, sizeof DIBS__TIERS_KEY - 1)};
}

uint64_t dibs__tiers_copy(struct tiers *t, struct dibs__tiers_state *state) {
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

static void heard(struct tiers *t, dibs__tick sent, const struct dibs__said *said) {
  dibs__tick received = dibs__tick_now();
  dibs__mutex_lock(&t->lock);
  t->ahead_ms = said->now.ms - tiers_ms(received);
  t->ahead_most_ms = said->now.ms + 1 - tiers_ms(sent);
  dibs__mutex_unlock(&t->lock);
}

/* Whatever is read is what stands, also when its version is lower than what was known: then the anchor was restored
 * from a backup.  Questions to the anchor go one at a time, so no older answer can come late. */
static void adopt(struct tiers *t, const struct dibs__tiers_state *state, uint64_t version, dibs__tick sent) {
  dibs__mutex_lock(&t->lock);
  t->state = *state;
  t->version = version;
  t->known = true;
  t->confirmed = sent;
  bool changed = dibs__tiers_here_locked(t);
  dibs__mutex_unlock(&t->lock);
  if (changed) dibs__tiers_ring(t, &(struct dibs__event){.what = DIBS__EV_RECHECK});
}

/* The clients of an anchor must mean the same tiers by the same places. */
static dibs__status fits(struct tiers *t, const struct dibs__tiers_state *state, struct dibs__said *said) {
  bool same = state->count == t->count;
  for (uint32_t i = 0; same && i < t->count; i++) same = strcmp(state->tiers[i].scheme, t->schemes[i]) == 0;
  if (same) {
    bool strict = state->strictness == DIBS__STRICT;
    dibs__mutex_lock(&t->lock);
    bool follows = t->version != 0; /* it was changed for all meanwhile */
    dibs__mutex_unlock(&t->lock);
    bool agrees = follows || t->strictness < 0 ||
                  (strict == (t->strictness == DIBS__STRICT) && t->least_strict == state->least_strict);
    if (agrees) return DIBS_OK;
    dibs__say(said,
              "tiers.strictness says otherwise than the anchor, which has %s; leave it away, or change it for all: "
              "dibs tier strictness",
              strict                ? "strict"
              : state->least_strict ? "least-strict"
                                    : "fenced");
    return DIBS_INVALID;
  }
  char theirs[128] = "";
  size_t len = 0;
  for (uint32_t i = 0; i < state->count && len < sizeof theirs - 40; i++)
    len += (size_t)snprintf(theirs + len, sizeof theirs - len, "%s%s", i ? "," : "", state->tiers[i].scheme);
  dibs__say(said, "%s is the anchor of other tiers, %s; name the same ones, or another prefix or schema for these",
            t->tiers[t->last].uri->shown, theirs);
  return DIBS_INVALID;
}

static dibs__status understand(struct tiers *t, const struct dibs__record_op *op, dibs__tick sent,
                               struct dibs__said *said) {
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  if (!state) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_read(op->got, op->got_len, state, said);
  if (status == DIBS_OK) status = fits(t, state, said);
  if (status == DIBS_OK) adopt(t, state, op->version, sent);
  free(state);
  return status;
}

/* ---- Reading, writing ---- */

static dibs__status loaded(struct tiers *t, struct dibs__record_op *op, dibs__tick sent, struct dibs__said *said) {
  dibs__status status = op->op.status;
  if (status == DIBS_OK && op->version == 0) status = DIBS_NOT_FOUND;
  if (status == DIBS_OK) status = understand(t, op, sent, said);
  free(op->got);
  return status;
}

dibs__status dibs__tiers_load(struct tiers *t, dibs__tick by, struct dibs__said *said) {
  struct dibs__record_op op = record(DIBS__RECORD_LOAD);
  struct dibs__op *ops[] = {&op.op};
  dibs__tick sent = dibs__tick_now();
  dibs__status status = ask(t, ops, 1, by, said);
  if (status != DIBS_OK) return status;
  heard(t, sent, said);
  return loaded(t, &op, sent, said);
}

dibs__status dibs__tiers_save(struct tiers *t, const struct dibs__tiers_state *state, uint64_t version, dibs__tick by,
                              struct dibs__said *said) {
  char text[VERSION_MAX];
  size_t len;
  char *data = dibs__tiers_write(state, &len);
  if (!data) return DIBS_NO_MEMORY;
  struct dibs__record_op op = record(DIBS__RECORD_PUT);
  struct dibs__op *ops[] = {&op.op};
  int n = snprintf(text, sizeof text, "%llu", (unsigned long long)version);
  op.guards = version ? DIBS__IF_VERSION : DIBS__IF_ABSENT;
  if (version) op.if_version = dibs__str_of(text, (size_t)n);
  op.data = dibs__str_of(data, len);
  dibs__tick sent = dibs__tick_now();
  dibs__status status = ask(t, ops, 1, by, said);
  if (status == DIBS_OK) {
    heard(t, sent, said);
    status = op.op.status;
    if (status == DIBS_OK) adopt(t, state, op.version, sent);
    if (status == DIBS_NOT_FOUND) status = DIBS_CONFLICT; /* it was taken away meanwhile */
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
    /* Also where no mandate could be made yet: one that was never reached can be left, too. */
    for (uint32_t b = 0; b < DIBS__BUCKETS && !here; b++) here = t->here[b].tier == i;
    report->tiers[i].active = lately && here;
    report->tiers[i].down = !closed && !tier->ours;
    report->tiers[i].well = closed && tier->reached && tiers_ms(now) - tiers_ms(tier->answered) < WELL_MS;
    report->tiers[i].breaker = tier->breaker.state == DIBS__BREAKER_OPEN        ? DIBS__SEEN_OPEN
                               : tier->breaker.state == DIBS__BREAKER_HALF_OPEN ? DIBS__SEEN_HALF_OPEN
                                                                                : DIBS__SEEN_CLOSED;
  }
  dibs__mutex_unlock(&t->lock);
}

/* What the others say.  NULL: no memory, or nobody is there. */
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

static void tally(struct tiers *t, const struct dibs__tiers_client *clients, size_t count) {
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
                              struct dibs__said *said) {
  char text[DIBS__REPORT_MAX];
  struct dibs__tiers_report us;
  describe_us(t, &us);
  struct dibs__report_op put = {.op = {.family = DIBS__FAM_REPORT, .verb = DIBS__REPORT_PUT},
                                .id = t->client,
                                .data = dibs__str_of(text, dibs__tiers_report_write(&us, text, sizeof text)),
                                .keep_ms = DIBS__TIERS_ACTIVE_MS,
                                .want = true};
  struct dibs__record_op load = record(DIBS__RECORD_LOAD);
  struct dibs__op *ops[] = {&put.op, &load.op};
  size_t many = 0;
  dibs__tick sent = dibs__tick_now();
  if (clients) *clients = NULL;
  dibs__status status = ask(t, ops, 2, by, said);
  if (status == DIBS_OK) heard(t, sent, said);
  if (status == DIBS_OK) status = loaded(t, &load, sent, said);
  if (put.op.status == DIBS_OK) {
    struct dibs__tiers_client *others = understand_reports(t, &put, &many);
    tally(t, others, many);
    if (clients)
      *clients = others, *count = many;
    else
      free(others);
  }
  free(put.got);
  return status;
}

void dibs__tiers_leave(struct tiers *t, dibs__tick by) {
  struct dibs__said said;
  struct dibs__report_op op = {.op = {.family = DIBS__FAM_REPORT, .verb = DIBS__REPORT_DROP}, .id = t->client};
  struct dibs__op *ops[] = {&op.op};
  (void)ask(t, ops, 1, by, &said);
}
