/* SPDX-License-Identifier: MIT */
/*
 * A batch of leases, and the count of the votes.
 *
 * A batch runs in stretches in which no name occurs twice, each of a few rounds with all nodes in parallel:
 *
 *   1  every acquire requests the name, and proposes a fence: a node to which that is above all it has seen writes
 *      it with the name, and if a majority did, this is all; renewals, releases, cancels and breaks are done
 *   2  an acquire that a majority granted, but not under the fence, writes the highest proposal back there; an acquire
 *      that lost drops its grants; a renewal draws its fences, and updates nodes that did not know of it
 *   3  an acquire that could not write back drops its grants, too
 *
 * A split vote is repeated after a random time, a few times within the call.  `until` is counted from before the
 * first round.
 *
 * A vote counts if the node remembers all leases that may still be alive: a node that lost its memory does not count,
 * for as long as the longest lease may last, because it may have held for another client.
 */
#include "drivers/redlock/redlock_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__redlock_votes votes_t;

enum { SAYS_TAKEN, SAYS_OTHERS, SAYS_MINE };
enum { COUNTS = 2 };

/* A grant of ours, as one node remembers it. */
struct grant {
  uint64_t first, block;
  int64_t left;
  dibs__str tag;
  bool counts;
};

static void add_top(votes_t *v, uint64_t proposed) {
  if (proposed > v->top) v->top = proposed;
}

static int64_t read_digits(const char *p, const char *end) {
  int64_t number = 0;
  for (; p < end && *p >= '0' && *p <= '9' && number < INT64_MAX / 10 - 1; p++) number = number * 10 + (*p - '0');
  return number;
}

static int hex_of(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "SESSION:UNTIL", in this store's own timeline; 0: of another store, whose timeline is unknown. */
static int64_t tagged_until(const struct dibs__redlock *store, dibs__str tag) {
  uint64_t session = 0;
  if (tag.len < 18 || tag.p[16] != ':') return 0;
  for (size_t i = 0; i < 16; i++) session = session << 4 | (uint64_t)(hex_of(tag.p[i]) & 15);
  return session == store->session ? read_digits(tag.p + 17, tag.p + tag.len) : 0;
}

static int downwards(const void *a, const void *b) {
  const int64_t *x = a, *y = b;
  return *x < *y ? 1 : *x > *y ? -1 : 0;
}

static int upwards(const void *a, const void *b) {
  return -downwards(a, b);
}

/* ---- The proposed fence ---- */

/* Near the nodes' clocks, so that other clients propose something near; but above what is known. */
uint64_t dibs__redlock_propose_fence(struct dibs__redlock *store, uint32_t many) {
  uint64_t proposal = 0;
  dibs__mutex_lock(&store->lock);
  if (store->from) {
    int64_t passed_us = (dibs__tick_now().ns - store->from_at.ns) / 1000;
    proposal = store->from + (uint64_t)passed_us * 1024 / 1000;
    if (proposal <= store->highest) proposal = store->highest + 1;
    store->highest = proposal + many - 1;
  }
  dibs__mutex_unlock(&store->lock);
  return proposal;
}

/* A node proposed this: its clock, or one above what it had seen. */
static void saw_clock(struct dibs__redlock *store, uint64_t proposed) {
  dibs__mutex_lock(&store->lock);
  store->from = proposed;
  store->from_at = dibs__tick_now();
  if (proposed > store->highest) store->highest = proposed;
  dibs__mutex_unlock(&store->lock);
}

/* ---- Counting ---- */

/* The end of a node's part of a grant, as promised.  A node holds for longer than that, by the drift. */
static int64_t promised_until(const struct dibs__redlock *store, const struct grant *g, int64_t sent_ms) {
  int64_t until = tagged_until(store, g->tag);
  return until != 0 ? until : sent_ms + g->left - dibs__redlock_drift_ms(store, g->left);
}

/* A grant on a majority of nodes whose votes count; there is one at most. */
static void find_grant(const struct dibs__redlock *store, const struct grant *grants, size_t count, int64_t sent_ms,
                       votes_t *v) {
  int64_t until[DIBS__REDLOCK_NODES];
  for (size_t i = 0; i < count && !v->found; i++) {
    size_t same = 0;
    for (size_t j = i; j < count; j++)
      if (grants[j].counts && grants[j].first == grants[i].first)
        until[same++] = promised_until(store, &grants[j], sent_ms);
    if (same < store->majority) continue;
    qsort(until, same, sizeof until[0], downwards);
    v->found = true;
    v->first = grants[i].first;
    v->block = grants[i].block;
    v->found_until = until[store->majority - 1];
  }
}

static void read_node(const redisReply *reply, size_t node, votes_t *v, struct grant *grants, size_t *grant_count,
                      dibs__str who[]) {
  uint32_t bit = 1u << node;
  v->answered |= bit;
  if (dibs__redlock_int(reply, 1) == COUNTS)
    v->counts |= bit;
  else
    v->wait[node] = dibs__redlock_int(reply, 2) > 0 ? dibs__redlock_int(reply, 2) : 1;
  switch (dibs__redlock_int(reply, 0)) {
  case SAYS_TAKEN:
    v->took |= bit;
    if (dibs__redlock_int(reply, 4)) v->written |= bit;
    add_top(v, (uint64_t)dibs__redlock_int(reply, 3));
    break;
  case SAYS_OTHERS:
    v->held |= bit;
    who[v->left_count] = dibs__redlock_text(reply, 4);
    v->left[v->left_count++] = dibs__redlock_int(reply, 3);
    break;
  case SAYS_MINE:
    v->mine |= bit;
    if (dibs__redlock_int(reply, 4)) v->broken = true;
    add_top(v, (uint64_t)dibs__redlock_int(reply, 9) + 1);
    grants[(*grant_count)++] = (struct grant){.left = dibs__redlock_int(reply, 3),
                                              .first = (uint64_t)dibs__redlock_int(reply, 5),
                                              .block = (uint64_t)dibs__redlock_int(reply, 7),
                                              .tag = dibs__redlock_text(reply, 8),
                                              .counts = (v->counts & bit) != 0};
    break;
  default:
    break;
  }
}

/* Could one of the other holders have a majority, if the nodes that did not answer granted it the name? */
static bool one_may_hold(const struct dibs__redlock *store, const votes_t *v, const dibs__str who[]) {
  size_t missing = store->count - dibs__redlock_bits(v->answered);
  for (size_t i = 0; i < v->left_count; i++) {
    size_t same = 0;
    for (size_t j = 0; j < v->left_count; j++) same += dibs__str_equal(who[i], who[j]);
    if (same + missing >= store->majority) return true;
  }
  return false;
}

/* Busy needs answers of enough nodes, one of which has another holder; otherwise the quorum is missing. */
static enum dibs__redlock_verdict judge_refusal(const struct dibs__redlock *store, const votes_t *v,
                                                const dibs__str who[]) {
  if (!v->held || dibs__redlock_bits(v->held | ((v->took | v->mine) & v->counts)) < store->majority)
    return DIBS__REDLOCK_NO_QUORUM;
  return one_may_hold(store, v, who) ? DIBS__REDLOCK_BUSY : DIBS__REDLOCK_SPLIT;
}

enum dibs__redlock_verdict dibs__redlock_count(struct dibs__redlock_session *s,
                                               const struct dibs__redlock_requested *requested, int64_t sent_ms,
                                               votes_t *v) {
  struct dibs__redlock *store = s->store;
  struct grant grants[DIBS__REDLOCK_NODES];
  dibs__str who[DIBS__REDLOCK_NODES] = {{0}};
  size_t grant_count = 0;
  *v = (votes_t){.top = 0};
  for (size_t i = 0; i < store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, requested, i);
    if (reply && reply->type == REDIS_REPLY_ARRAY) read_node(reply, i, v, grants, &grant_count, who);
  }
  if (v->took & ~v->written) saw_clock(store, v->top);
  if (v->broken) return DIBS__REDLOCK_BROKEN;
  find_grant(store, grants, grant_count, sent_ms, v);
  if (v->found) return DIBS__REDLOCK_FOUND;
  if (dibs__redlock_bits(v->written & v->counts) >= store->majority) return DIBS__REDLOCK_GRANTED;
  if (dibs__redlock_bits((v->took | v->mine) & v->counts) >= store->majority) return DIBS__REDLOCK_WON;
  return judge_refusal(store, v, who);
}

int64_t dibs__redlock_free_in(const struct dibs__redlock *store, const votes_t *v) {
  int64_t left[DIBS__REDLOCK_NODES];
  size_t ours = dibs__redlock_bits((v->took | v->mine) & v->counts), need = 1;
  if (v->left_count == 0) return 0;
  for (size_t i = 0; i < v->left_count; i++) left[i] = v->left[i] < 0 ? 0 : v->left[i];
  qsort(left, v->left_count, sizeof left[0], upwards);
  if (ours < store->majority) need = store->majority - ours;
  if (need > v->left_count) need = v->left_count;
  return left[need - 1];
}

/* ---- A batch ---- */

typedef struct dibs__redlock_session session;
typedef struct dibs__redlock_doing doing;

enum { SPLIT_NAP_MS = 4 };

/* ---- A stretch ---- */

/* The nodes that may have the name under d->fence, or have not granted it yet. */
static uint32_t granted_nodes(const doing *d) {
  return d->votes.found ? d->votes.took | d->votes.mine : d->votes.took;
}

static bool put_second(struct dibs__redlock_batch *b, doing *d) {
  switch (d->stage) {
  case STAGE_SEAL:
    dibs__redlock_put_seal(b, d, d->votes.took | d->votes.mine, false);
    return true;
  case STAGE_RETURN:
    dibs__redlock_put_drop(b, d, granted_nodes(d), NULL, d->fence);
    return granted_nodes(d) != 0;
  case STAGE_TIDY:
    dibs__redlock_put_drop(b, d, d->votes.took, NULL, d->fence);
    return true;
  case STAGE_RENEWED:
    if (d->behind) dibs__redlock_put_heal(b, d);
    if (d->fence) dibs__redlock_put_seal(b, d, d->renewed, true);
    return true;
  case STAGE_DONE:
  case STAGE_FIRST:
  case STAGE_UNDO:
    break;
  }
  return false;
}

static void judge_second(struct dibs__redlock_batch *b, doing *d) {
  if (d->stage == STAGE_SEAL) dibs__redlock_judge_seal(b, d);
  if (d->stage == STAGE_TIDY) d->stage = STAGE_DONE;
  if (d->stage == STAGE_RENEWED) dibs__redlock_judge_renewed(b, d);
}

static void round_first(struct dibs__redlock_batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) dibs__redlock_put_first(b, &b->all[i]);
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) dibs__redlock_judge_first(b, &b->all[i]);
}

static void round_second(struct dibs__redlock_batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) put = put_second(b, &b->all[i]) || put;
  if (!put) return;
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++) judge_second(b, &b->all[i]);
}

/* For acquires that could not write back. */
static void round_third(struct dibs__redlock_batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_UNDO) continue;
    dibs__redlock_put_drop(b, d, d->votes.took | d->votes.mine, NULL, d->fence);
    d->stage = STAGE_RETURN;
    put = true;
  }
  if (put) dibs__redlock_go(b->s, b->by);
}

/* A round that is cut short would cost the links. */
static bool time_left(const struct dibs__redlock_batch *b) {
  return dibs__tick_left_ms(dibs__tick_now(), b->by) > b->store->node_timeout_ms;
}

/* true: some are requested again. */
static bool conclude_round(struct dibs__redlock_batch *b, int64_t round, bool founded) {
  bool again = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_RETURN) continue;
    bool retries = (d->verdict == DIBS__REDLOCK_SPLIT && round < b->store->retries) ||
                   (d->verdict == DIBS__REDLOCK_NO_QUORUM && founded);
    if (retries && time_left(b)) {
      d->stage = STAGE_FIRST;
      again = true;
    } else if (d->verdict == DIBS__REDLOCK_NO_QUORUM) {
      dibs__redlock_lack(b, d, d->votes.answered);
    } else {
      dibs__redlock_answer_busy(b, d);
    }
  }
  return again;
}

/* All nodes answered, and none counts: the store is new, or all of them lost their memory. */
static bool none_counts(const struct dibs__redlock_batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const doing *d = &b->all[i];
    if (d->stage == STAGE_RETURN && d->verdict == DIBS__REDLOCK_NO_QUORUM &&
        d->votes.answered == dibs__redlock_all(b) && d->votes.counts == 0)
      return true;
  }
  return false;
}

static void sleep_before_retry(struct dibs__redlock_batch *b, int64_t round) {
  int64_t pause = 1 + dibs__redlock_by_chance((int64_t)SPLIT_NAP_MS << (round < 5 ? round : 5));
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), b->by);
  dibs__nap_ms(pause < left ? pause : left);
}

static void run_stretch(struct dibs__redlock_batch *b) {
  for (int64_t round = 0;; round++) {
    dibs__redlock_links(b->s, b->by);
    round_first(b);
    round_second(b);
    round_third(b);
    bool founded = false;
    if (!b->founded && none_counts(b)) founded = b->founded = dibs__redlock_found(b->s, b->by);
    if (!conclude_round(b, round, founded)) return;
    if (!founded) sleep_before_retry(b, round);
  }
}

/* ---- The driver's call ---- */

static void begin_answer(struct dibs__lease_op *op) {
  op->waiting = false;
  op->got_block = op->slot = op->was = 0;
  op->until = op->recheck = (dibs__when){0};
  op->tier = NULL;
}

static void answer_anchor(const struct dibs__redlock_batch *b, struct dibs__op *op) {
  struct dibs__anchor_op *anchor = (struct dibs__anchor_op *)op;
  anchor->current = b->store->mandate;
  anchor->served = false;
  anchor->last = DIBS__FENCE_NONE;
  op->status = op->bucket >= DIBS__BUCKETS ? DIBS_INVALID : op->verb == DIBS__ANCHOR_READ ? DIBS_OK : DIBS_UNSUPPORTED;
}

static bool well_formed(const struct dibs__lease_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->name.len < 1 || op->name.len > DIBS_NAME_MAX) return false;
  if (op->op.verb > DIBS__BREAK || op->owner.len > DIBS_OWNER_MAX) return false;
  if ((op->op.verb == DIBS__ACQUIRE || op->op.verb == DIBS__RENEW) && op->ttl_ms == 0) return false;
  if (op->op.verb != DIBS__ACQUIRE) return true;
  return op->mode == DIBS_EXCLUSIVE || op->mode == DIBS_SHARED ||
         (op->mode == DIBS_COUNTED && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX);
}

/* Whether the operation needs the nodes; if not, it is answered. */
static bool needs_nodes(struct dibs__redlock_batch *b, struct dibs__op *op) {
  struct dibs__lease_op *lease = (struct dibs__lease_op *)op;
  if (op->family != DIBS__FAM_LEASE || op->group != 0) {
    op->status = DIBS_UNSUPPORTED;
    if (op->family == DIBS__FAM_ANCHOR && op->group == 0) answer_anchor(b, op);
    return false;
  }
  begin_answer(lease);
  op->at = b->result->now;
  bool lasts = op->verb == DIBS__ACQUIRE || op->verb == DIBS__RENEW;
  if (!well_formed(lease)) {
    op->status = DIBS_INVALID;
  } else if (!dibs__mandate_equal(&op->mandate, &b->store->mandate)) {
    op->status = DIBS__MOVED;
    op->has = b->store->mandate;
  } else if (op->verb == DIBS__ACQUIRE && lease->mode != DIBS_EXCLUSIVE) {
    op->status = DIBS_UNSUPPORTED;
    dibs__set_message(b->result, "redlock:// grants only exclusive leases; for shared and counted ones use redis://");
  } else if (lasts && (int64_t)lease->ttl_ms > b->store->max_ttl_ms) {
    op->status = DIBS_UNSUPPORTED;
    dibs__set_message(
        b->result, "a ttl of %u ms is above max_ttl=%lld of %.120s; request a shorter one, or raise it for all clients",
        lease->ttl_ms, (long long)b->store->max_ttl_ms, b->store->shown);
  } else if (op->verb == DIBS__CANCEL && lease->only_waits) { /* R84: there is no queue */
    op->status = DIBS_NOT_FOUND;
  } else {
    return true;
  }
  return false;
}

static bool named_before(const struct dibs__redlock_batch *b, dibs__str name) {
  for (size_t i = 0; i < b->count; i++)
    if (dibs__str_equal(b->all[i].op->name, name)) return true;
  return false;
}

static void run_leases(struct dibs__redlock_batch *b, struct dibs__op *const ops[], size_t count) {
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    if (!needs_nodes(b, ops[i])) continue;
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (named_before(b, op->name)) {
      run_stretch(b);
      b->count = 0;
    }
    doing *d = &b->all[b->count++];
    d->op = op;
    d->stage = STAGE_FIRST;
    memset(&d->votes, 0, sizeof d->votes);
    b->result->commits = 1;
  }
  if (b->count) run_stretch(b);
}

static dibs__status say_all(const struct dibs__redlock_batch *b, struct dibs__op *const ops[], size_t count) {
  if (b->doubt) return DIBS_UNKNOWN;
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status != DIBS_UNAVAILABLE) return DIBS_OK;
  return b->lacked ? DIBS_UNAVAILABLE : DIBS_OK;
}

dibs__status dibs__redlock_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                               struct dibs__result *result) {
  session *s = (session *)base;
  dibs__tick sent = dibs__tick_now();
  *result = (struct dibs__result){.sent = sent, .now.ms = sent.ns / DIBS__NS_PER_MS};
  if (count > DIBS__REDLOCK_BATCH || !dibs__tick_before(sent, by)) {
    dibs__set_message(result, "the deadline passed before the request to %.150s", s->store->shown);
    return DIBS_UNAVAILABLE;
  }
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    dibs__redlock_describe(s, by, &findings);
    return dibs__findings_answer(&findings, ops[0]);
  }
  struct dibs__redlock_batch b = {
      .s = s, .store = s->store, .result = result, .by = by, .now = result->now.ms, .all = s->doing};
  run_leases(&b, ops, count);
  return say_all(&b, ops, count);
}
