/* SPDX-License-Identifier: MIT */
/*
 * A batch of leases.  It is carried out in stretches in which no name comes twice, each of a few rounds with all nodes
 * side by side:
 *
 *   1  every acquire asks for the name, and hopes for a fence: where that is above all that was seen it is written with
 *      the name, and where that is a majority, this is all; renewals, releases, cancels and breaks are done
 *   2  who was given a name by a majority, but not the fence, has the highest that was proposed written back there; who
 *      was not gives back what it was given; a renewal draws its fences, and teaches nodes that did not know of it
 *   3  who could not write back gives back, too
 *
 * A vote that was split is repeated after a while drawn by chance, a few times within the call.  `until` is counted
 * from before the first round.
 *
 * A release is told from one that came too late by what may have been: the name was the id's as long as those that gave
 * it back, and those that did not answer, were a majority.
 */
#include "drivers/redlock_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__redlock_session session;
typedef struct dibs__redlock_words words_t;
typedef struct dibs__redlock_doing doing;

enum { BREAKS_KEPT_MS = 86400000, SPLIT_NAP_MS = 4, POLL_MS = 8, POLL_DOUBLINGS = 5 };
#define FENCES_END (UINT64_C(1) << 53)

enum stage {
  STAGE_DONE,
  STAGE_FIRST,   /* asked in the first round */
  STAGE_SEAL,    /* an acquire that won */
  STAGE_RETURN,  /* one that did not: what it was given is to be given back */
  STAGE_TIDY,    /* one that was granted before: nodes that gave it anew just now are let go */
  STAGE_UNDO,    /* one that won, and could not write back: the same */
  STAGE_RENEWED, /* a renewal that draws, or teaches */
};

struct dibs__redlock_doing {
  struct dibs__lease_op *op;
  enum stage stage;
  enum dibs__redlock_verdict verdict;
  struct dibs__redlock_asked asked;
  struct dibs__redlock_votes votes;
  uint64_t fence, hoped;
  uint32_t renewed, behind; /* nodes */
  uint64_t first, granted, block;
  dibs__str owner, pid, since; /* as a node told; good until the next round */
  char told[DIBS_OWNER_MAX + 64];
  bool again;
};

struct batch {
  session *s;
  struct dibs__redlock *store;
  struct dibs__said *said;
  dibs__tick by;
  int64_t now; /* in ms of our boot-time clock */
  doing *all;
  size_t count;
  bool lacked, doubt, founded;
};

doing *dibs__redlock_doing_new(void) {
  return calloc(DIBS__REDLOCK_BATCH, sizeof(doing));
}

void dibs__redlock_doing_free(doing *all) {
  free(all);
}

static int64_t now_ms(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}

static int64_t by_chance(int64_t most) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return most > 0 ? (int64_t)(drawn % (uint64_t)most) : 0;
}

static uint32_t all_nodes(const struct batch *b) {
  return (uint32_t)(UINT64_C(1) << b->store->count) - 1;
}

static uint32_t wanted(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}

/* ---- Answers ---- */

static void lack(struct batch *b, doing *d, uint32_t answered) {
  int64_t none[DIBS__REDLOCK_NODES] = {0};
  d->op->op.status = DIBS_UNAVAILABLE;
  d->stage = STAGE_DONE;
  b->lacked = true;
  bool acquires = d->op->op.verb == DIBS__ACQUIRE;
  dibs__redlock_say_no_quorum(b->s, answered, acquires ? d->votes.wait : none, b->said);
}

/* What was done on some, and may have been done on those that did not answer. */
static void doubt(struct batch *b, doing *d, uint32_t answered) {
  lack(b, d, answered);
  if (answered == 0) return;
  d->op->op.status = DIBS_UNKNOWN;
  b->doubt = true;
}

static void answer_grant(doing *d, uint64_t first, uint64_t block, int64_t until) {
  d->op->fence.v = first;
  d->op->got_block = (uint32_t)block;
  d->op->slot = 0;
  d->op->until.ms = until;
  d->op->op.status = DIBS_OK;
  d->stage = STAGE_DONE;
}

/* Who waits asks again soon, less often with each time, at an instant drawn by chance: two that came together must not
 * come together again.  The ticket counts how often. */
static void answer_busy(struct batch *b, doing *d) {
  struct dibs__lease_op *op = d->op;
  int64_t free_in = dibs__redlock_free_in(b->store, &d->votes);
  d->stage = STAGE_DONE;
  if (!op->queue && op->ticket == 0) {
    op->op.status = DIBS_HELD;
    op->recheck.ms = now_ms() + free_in;
    return;
  }
  uint64_t times = op->ticket < POLL_DOUBLINGS ? op->ticket : POLL_DOUBLINGS;
  int64_t pause = (int64_t)POLL_MS << times;
  pause = pause / 2 + by_chance(pause) + 1;
  if (free_in + POLL_MS < pause) pause = free_in + 1 + by_chance(POLL_MS);
  op->ticket++;
  op->fence = DIBS__FENCE_NONE;
  op->recheck.ms = now_ms() + pause;
  op->op.status = DIBS__QUEUED;
}

/* ---- The first round ---- */

static void tag(const struct batch *b, words_t *words, int64_t until) {
  char *at = words->text + words->used;
  int len = snprintf(at, sizeof words->text - words->used, "%016llx:%lld", (unsigned long long)b->store->session,
                     (long long)until);
  words->used += (size_t)len + 1;
  dibs__redlock_word(words, at, (size_t)len);
}

static void put_take(struct batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_key(&w, b->store, "mark", (dibs__str){0});
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, (uint64_t)(op->ttl_ms + dibs__redlock_drift_ms(b->store, op->ttl_ms)));
  dibs__redlock_word(&w, op->owner.len ? op->owner.p : "", op->owner.len);
  dibs__redlock_number(&w, op->ttl_ms);
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, dibs__process_id());
  dibs__redlock_number(&w, (uint64_t)b->store->max_ttl_ms);
  d->hoped = dibs__redlock_hope(b->store, wanted(op));
  dibs__redlock_number(&w, d->hoped);
  dibs__redlock_number(&w, wanted(op));
  dibs__redlock_put(b->s, all_nodes(b), DIBS__REDLOCK_TAKE, &w, &d->asked);
}

static void put_renew(struct batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, op->fence.v);
  dibs__redlock_number(&w, (uint64_t)(op->ttl_ms + dibs__redlock_drift_ms(b->store, op->ttl_ms)));
  dibs__redlock_number(&w, op->ttl_ms);
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, op->want_block ? 1 : 0);
  dibs__redlock_put(b->s, all_nodes(b), DIBS__REDLOCK_RENEW, &w, &d->asked);
}

/* `which`: "all", or NULL: the grant with this fence, and what was not granted yet. */
static void put_drop(struct batch *b, doing *d, uint32_t nodes, const char *which, uint64_t fence) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  if (which)
    dibs__redlock_word(&w, which, strlen(which));
  else
    dibs__redlock_number(&w, fence);
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_DROP, &w, &d->asked);
}

static void put_break(struct batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  uint64_t word;
  char text[20];
  words_t w = {.count = 0};
  dibs__random(&word, sizeof word);
  snprintf(text, sizeof text, "%016llx", (unsigned long long)word);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_key(&w, b->store, "b:", op->name);
  dibs__redlock_word(&w, op->owner.len ? op->owner.p : "", op->owner.len);
  dibs__redlock_word(&w, text, 16);
  dibs__redlock_number(&w, op->now ? 1 : 0);
  dibs__redlock_number(&w, BREAKS_KEPT_MS);
  dibs__redlock_put(b->s, all_nodes(b), DIBS__REDLOCK_BREAK, &w, &d->asked);
}

static void put_first(struct batch *b, doing *d) {
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    put_take(b, d);
    return;
  case DIBS__RENEW:
    put_renew(b, d);
    return;
  case DIBS__RELEASE:
    put_drop(b, d, all_nodes(b), NULL, d->op->fence.v);
    return;
  case DIBS__CANCEL:
    put_drop(b, d, all_nodes(b), "all", 0);
    return;
  case DIBS__BREAK:
    put_break(b, d);
    return;
  }
}

/* ---- What the first round said ---- */

static void judge_acquire(struct batch *b, doing *d) {
  d->verdict = dibs__redlock_count(b->s, &d->asked, b->now, &d->votes);
  d->again = false;
  switch (d->verdict) {
  case DIBS__REDLOCK_BROKEN:
    d->op->op.status = DIBS_LOST;
    d->stage = STAGE_DONE;
    return;
  case DIBS__REDLOCK_FOUND:
    if (d->votes.found_until > now_ms()) {
      answer_grant(d, d->votes.first, d->votes.block, d->votes.found_until);
      d->fence = d->hoped;
      if (d->votes.took) d->stage = STAGE_TIDY;
      return;
    }
    d->verdict = DIBS__REDLOCK_SPLIT; /* it is over, though the nodes do not know it yet */
    d->fence = d->votes.first;
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_GRANTED:
    d->fence = d->hoped;
    if (now_ms() < b->now + d->op->ttl_ms) {
      answer_grant(d, d->fence, wanted(d->op), b->now + d->op->ttl_ms);
      return;
    }
    d->verdict = DIBS__REDLOCK_NO_QUORUM; /* the answers took longer than the lease lasts */
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_WON:
    d->fence = d->votes.top;
    d->stage = STAGE_SEAL;
    if (d->fence < FENCES_END - DIBS__BLOCK_MAX) return;
    d->verdict = DIBS__REDLOCK_NO_QUORUM; /* a node's clock stands beyond the year 2248 */
    d->fence = d->hoped;
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_BUSY:
  case DIBS__REDLOCK_SPLIT:
  case DIBS__REDLOCK_NO_QUORUM:
    d->fence = d->hoped; /* what was written of it goes, too */
    d->stage = STAGE_RETURN;
    return;
  }
}

struct tally {
  uint32_t answered, yes, granted;
  int64_t most;
};

/* How many said what: 0 or less is no, 2 is that it was granted. */
static struct tally tally(const struct batch *b, const doing *d) {
  struct tally t = {.most = -1};
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->asked, i);
    if (!reply || reply->type != REDIS_REPLY_INTEGER) continue;
    t.answered |= 1u << i;
    if (reply->integer > 0) t.yes |= 1u << i;
    if (reply->integer == 2) t.granted |= 1u << i;
    if (reply->integer > t.most) t.most = reply->integer;
  }
  return t;
}

static bool is_majority(const struct batch *b, uint32_t nodes) {
  return dibs__redlock_bits(nodes) >= b->store->majority;
}

static void judge_drop(struct batch *b, doing *d) {
  struct tally t = tally(b, d);
  bool cancels = d->op->op.verb == DIBS__CANCEL;
  uint32_t missing = all_nodes(b) & ~t.answered;
  d->stage = STAGE_DONE;
  if (!is_majority(b, t.answered)) {
    doubt(b, d, t.answered);
  } else if (t.granted && is_majority(b, t.granted | missing)) {
    d->op->was = DIBS__WAS_HELD;
    d->op->op.status = DIBS_OK;
  } else {
    d->op->op.status = cancels ? DIBS_NOT_FOUND : DIBS_LOST;
  }
}

/* Whoever holds has a majority, so one at least of a majority that answers knows of it; and who is broken there can't
 * renew on another majority. */
static void judge_break(struct batch *b, doing *d) {
  struct tally t = {.most = -1};
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->asked, i);
    if (!reply || reply->type != REDIS_REPLY_INTEGER) continue;
    t.answered |= 1u << i;
    if (reply->integer >= 0) t.yes |= 1u << i;
    if (reply->integer > t.most) t.most = reply->integer;
  }
  d->stage = STAGE_DONE;
  if (!is_majority(b, t.answered)) {
    doubt(b, d, t.answered);
    return;
  }
  d->op->op.status = t.yes ? DIBS_OK : DIBS_NOT_FOUND;
  d->op->until.ms = d->op->now ? now_ms() : now_ms() + (t.most > 0 ? t.most : 0);
}

/* What a round later is to be told to others: a copy, because the answers go with the next round. */
static void keep_told(doing *d, const redisReply *reply) {
  dibs__str owner = dibs__redlock_text(reply, 5), pid = dibs__redlock_text(reply, 6),
            since = dibs__redlock_text(reply, 7);
  if (owner.len + pid.len + since.len > sizeof d->told) owner.len = pid.len = since.len = 0;
  char *at = d->told;
  dibs__str *const to[] = {&d->owner, &d->pid, &d->since};
  const dibs__str from[] = {owner, pid, since};
  for (size_t k = 0; k < 3; k++) {
    if (from[k].len) memcpy(at, from[k].p, from[k].len);
    *to[k] = dibs__str_of(at, from[k].len);
    at += from[k].len;
  }
}

static void judge_renew(struct batch *b, doing *d) {
  uint32_t answered = 0;
  uint64_t top = 0;
  d->renewed = d->behind = 0;
  d->first = d->granted = d->block = 0;
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->asked, i);
    if (!reply || reply->type != REDIS_REPLY_ARRAY) continue;
    answered |= 1u << i;
    int64_t what = dibs__redlock_int(reply, 0);
    if (what == 0) d->behind |= 1u << i;
    if (what != 1) continue;
    d->renewed |= 1u << i;
    if ((uint64_t)dibs__redlock_int(reply, 4) > top) top = (uint64_t)dibs__redlock_int(reply, 4);
    if ((uint64_t)dibs__redlock_int(reply, 1) <= d->first) continue;
    d->first = (uint64_t)dibs__redlock_int(reply, 1);
    d->granted = (uint64_t)dibs__redlock_int(reply, 2);
    d->block = (uint64_t)dibs__redlock_int(reply, 3);
    keep_told(d, reply);
  }
  uint32_t missing = all_nodes(b) & ~answered;
  if (is_majority(b, d->renewed)) {
    answer_grant(d, d->first, d->op->want_block ? 0 : d->block, b->now + d->op->ttl_ms);
    d->op->waiting = true; /* nobody knows: so the name is given back from time to time */
    d->fence = d->op->want_block && top < FENCES_END - DIBS__BLOCK_MAX ? top : 0;
    if (d->behind || d->fence) d->stage = STAGE_RENEWED;
  } else if (!is_majority(b, d->renewed | missing)) {
    d->op->op.status = DIBS_LOST;
    d->stage = STAGE_DONE;
  } else {
    lack(b, d, answered);
  }
}

static void judge_first(struct batch *b, doing *d) {
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    judge_acquire(b, d);
    return;
  case DIBS__RENEW:
    judge_renew(b, d);
    return;
  case DIBS__RELEASE:
  case DIBS__CANCEL:
    judge_drop(b, d);
    return;
  case DIBS__BREAK:
    judge_break(b, d);
    return;
  }
}

/* ---- The second round, and the third ---- */

static void put_seal(struct batch *b, doing *d, uint32_t nodes, bool renews) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, d->fence);
  dibs__redlock_number(&w, wanted(op));
  dibs__redlock_number(&w, renews ? 1 : 0);
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_SEAL, &w, &d->asked);
}

static void put_heal(struct batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, d->first);
  dibs__redlock_number(&w, d->granted);
  dibs__redlock_number(&w, d->block);
  dibs__redlock_number(&w, (uint64_t)(op->ttl_ms + dibs__redlock_drift_ms(b->store, op->ttl_ms)));
  dibs__redlock_number(&w, op->ttl_ms);
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_word(&w, d->owner.p, d->owner.len);
  dibs__redlock_word(&w, d->pid.p, d->pid.len);
  dibs__redlock_word(&w, d->since.p, d->since.len);
  struct dibs__redlock_asked unheard;
  dibs__redlock_put(b->s, d->behind, DIBS__REDLOCK_HEAL, &w, &unheard);
}

/* Where it may have the name under d->fence, or was not granted it yet. */
static uint32_t given(const doing *d) {
  return d->votes.found ? d->votes.took | d->votes.mine : d->votes.took;
}

static bool put_second(struct batch *b, doing *d) {
  switch (d->stage) {
  case STAGE_SEAL:
    put_seal(b, d, d->votes.took | d->votes.mine, false);
    return true;
  case STAGE_RETURN:
    put_drop(b, d, given(d), NULL, d->fence);
    return given(d) != 0;
  case STAGE_TIDY:
    put_drop(b, d, d->votes.took, NULL, d->fence);
    return true;
  case STAGE_RENEWED:
    if (d->behind) put_heal(b, d);
    if (d->fence) put_seal(b, d, d->renewed, true);
    return true;
  case STAGE_DONE:
  case STAGE_FIRST:
  case STAGE_UNDO:
    break;
  }
  return false;
}

static void judge_seal(struct batch *b, doing *d) {
  struct tally t = tally(b, d);
  bool in_time = now_ms() < b->now + d->op->ttl_ms;
  if (in_time && is_majority(b, t.yes & d->votes.counts)) {
    answer_grant(d, d->fence, wanted(d->op), b->now + d->op->ttl_ms);
    return;
  }
  d->verdict = is_majority(b, t.answered) ? DIBS__REDLOCK_SPLIT : DIBS__REDLOCK_NO_QUORUM;
  d->votes.answered = t.answered;
  d->stage = STAGE_UNDO;
}

static void judge_second(struct batch *b, doing *d) {
  if (d->stage == STAGE_SEAL) judge_seal(b, d);
  if (d->stage == STAGE_TIDY) d->stage = STAGE_DONE;
  if (d->stage != STAGE_RENEWED) return;
  if (d->fence && is_majority(b, tally(b, d).yes)) answer_grant(d, d->fence, wanted(d->op), d->op->until.ms);
  d->stage = STAGE_DONE;
}

/* ---- A stretch ---- */

static void round_first(struct batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) put_first(b, &b->all[i]);
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) judge_first(b, &b->all[i]);
}

static void round_second(struct batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) put = put_second(b, &b->all[i]) || put;
  if (!put) return;
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++) judge_second(b, &b->all[i]);
}

/* Of those that could not write back. */
static void round_third(struct batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_UNDO) continue;
    put_drop(b, d, d->votes.took | d->votes.mine, NULL, d->fence);
    d->stage = STAGE_RETURN;
    put = true;
  }
  if (put) dibs__redlock_go(b->s, b->by);
}

/* A round that is cut short would cost the links. */
static bool time_left(const struct batch *b) {
  return dibs__tick_left_ms(dibs__tick_now(), b->by) > b->store->node_timeout_ms;
}

/* true: some ask again. */
static bool conclude(struct batch *b, int64_t round, bool founded) {
  bool again = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_RETURN) continue;
    bool retries = d->verdict == DIBS__REDLOCK_SPLIT || (d->verdict == DIBS__REDLOCK_NO_QUORUM && founded);
    if (retries && round < b->store->retries && time_left(b)) {
      d->stage = STAGE_FIRST;
      again = true;
    } else if (d->verdict == DIBS__REDLOCK_NO_QUORUM) {
      lack(b, d, d->votes.answered);
    } else {
      answer_busy(b, d);
    }
  }
  return again;
}

/* All answered, and none of them counts: this is where it all begins, or they all lost their memory. */
static bool none_counts(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const doing *d = &b->all[i];
    if (d->stage == STAGE_RETURN && d->verdict == DIBS__REDLOCK_NO_QUORUM && d->votes.answered == all_nodes(b) &&
        d->votes.counts == 0)
      return true;
  }
  return false;
}

static void nap(struct batch *b, int64_t round) {
  int64_t pause = 1 + by_chance((int64_t)SPLIT_NAP_MS << (round < 5 ? round : 5));
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), b->by);
  dibs__nap_ms(pause < left ? pause : left);
}

static void run_stretch(struct batch *b) {
  for (int64_t round = 0;; round++) {
    dibs__redlock_links(b->s, b->by);
    round_first(b);
    round_second(b);
    round_third(b);
    bool founded = false;
    if (!b->founded && none_counts(b)) founded = b->founded = dibs__redlock_found(b->s, b->by);
    if (!conclude(b, round, founded)) return;
    if (!founded) nap(b, round);
  }
}

/* ---- The driver's call ---- */

static void begin_answer(struct dibs__lease_op *op) {
  op->waiting = false;
  op->got_block = op->slot = op->was = 0;
  op->until = op->recheck = (dibs__when){0};
  op->tier = NULL;
}

static void answer_anchor(const struct batch *b, struct dibs__op *op) {
  struct dibs__anchor_op *anchor = (struct dibs__anchor_op *)op;
  anchor->stands = b->store->mandate;
  anchor->served = false;
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

/* To be asked of the nodes?  Else it is answered. */
static bool admit(struct batch *b, struct dibs__op *op) {
  struct dibs__lease_op *lease = (struct dibs__lease_op *)op;
  if (op->family != DIBS__FAM_LEASE || op->group != 0) {
    op->status = DIBS_UNSUPPORTED;
    if (op->family == DIBS__FAM_ANCHOR && op->group == 0) answer_anchor(b, op);
    return false;
  }
  begin_answer(lease);
  bool lasts = op->verb == DIBS__ACQUIRE || op->verb == DIBS__RENEW;
  if (!well_formed(lease)) {
    op->status = DIBS_INVALID;
  } else if (!dibs__mandate_equal(&op->mandate, &b->store->mandate)) {
    op->status = DIBS__MOVED;
    op->has = b->store->mandate;
  } else if (op->verb == DIBS__ACQUIRE && lease->mode != DIBS_EXCLUSIVE) {
    op->status = DIBS_UNSUPPORTED;
    dibs__say(b->said, "a majority grants exclusive leases only; for shared and counted ones take redis://");
  } else if (lasts && (int64_t)lease->ttl_ms > b->store->max_ttl_ms) {
    op->status = DIBS_UNSUPPORTED;
    dibs__say(b->said, "a ttl of %u ms is above max_ttl=%lld of %.120s; ask for less, or raise it for all clients",
              lease->ttl_ms, (long long)b->store->max_ttl_ms, b->store->shown);
  } else {
    return true;
  }
  return false;
}

static bool named_before(const struct batch *b, dibs__str name) {
  for (size_t i = 0; i < b->count; i++)
    if (dibs__str_equal(b->all[i].op->name, name)) return true;
  return false;
}

static void run_leases(struct batch *b, struct dibs__op *const ops[], size_t count) {
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    if (!admit(b, ops[i])) continue;
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (named_before(b, op->name)) {
      run_stretch(b);
      b->count = 0;
    }
    doing *d = &b->all[b->count++];
    d->op = op;
    d->stage = STAGE_FIRST;
    memset(&d->votes, 0, sizeof d->votes);
    b->said->commits = 1;
  }
  if (b->count) run_stretch(b);
}

static dibs__status say_all(const struct batch *b, struct dibs__op *const ops[], size_t count) {
  if (b->doubt) return DIBS_UNKNOWN;
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status != DIBS_UNAVAILABLE) return DIBS_OK;
  return b->lacked ? DIBS_UNAVAILABLE : DIBS_OK;
}

dibs__status dibs__redlock_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                               struct dibs__said *said) {
  session *s = (session *)base;
  dibs__tick sent = dibs__tick_now();
  *said = (struct dibs__said){.sent = sent, .now.ms = sent.ns / DIBS__NS_PER_MS};
  if (count > DIBS__REDLOCK_BATCH || !dibs__tick_before(sent, by)) {
    dibs__say(said, "%.150s: the deadline had passed before the question", s->store->shown);
    return DIBS_UNAVAILABLE;
  }
  struct batch b = {.s = s, .store = s->store, .said = said, .by = by, .now = said->now.ms, .all = s->doing};
  run_leases(&b, ops, count);
  return say_all(&b, ops, count);
}
