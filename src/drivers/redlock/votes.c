/* SPDX-License-Identifier: MIT */
/*
 * Commands to the nodes, and the meaning of their replies.
 *
 * A release counts as in time, rather than too late, if the name may have been the id's: the nodes that released it,
 * and those that did not answer, were a majority.
 */
#include "drivers/redlock/redlock_impl.h"

#include <stdio.h>
#include <string.h>

typedef struct dibs__redlock_words words_t;
typedef struct dibs__redlock_doing doing;

enum { BREAKS_KEPT_MS = 86400000 };

static void put_tag(const struct dibs__redlock_batch *b, words_t *words, int64_t until) {
  char *at = words->text + words->used;
  int len = snprintf(at, sizeof words->text - words->used, "%016llx:%lld", (unsigned long long)b->store->session,
                     (long long)until);
  words->used += (size_t)len + 1;
  dibs__redlock_word(words, at, (size_t)len);
}

static void put_take(struct dibs__redlock_batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_key(&w, b->store, "mark", (dibs__str){0});
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, (uint64_t)(op->ttl_ms + dibs__redlock_drift_ms(b->store, op->ttl_ms)));
  dibs__redlock_word(&w, op->owner.len ? op->owner.p : "", op->owner.len);
  dibs__redlock_number(&w, op->ttl_ms);
  put_tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, dibs__process_id());
  dibs__redlock_number(&w, (uint64_t)b->store->max_ttl_ms);
  d->proposed = dibs__redlock_propose_fence(b->store, dibs__redlock_wanted(op));
  dibs__redlock_number(&w, d->proposed);
  dibs__redlock_number(&w, dibs__redlock_wanted(op));
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_TAKE, &w, &d->requested);
}

static void put_renew(struct dibs__redlock_batch *b, doing *d) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, op->fence.v);
  dibs__redlock_number(&w, (uint64_t)(op->ttl_ms + dibs__redlock_drift_ms(b->store, op->ttl_ms)));
  dibs__redlock_number(&w, op->ttl_ms);
  put_tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, op->want_block ? 1 : 0);
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_RENEW, &w, &d->requested);
}

void dibs__redlock_put_drop(struct dibs__redlock_batch *b, doing *d, uint32_t nodes, const char *which,
                            uint64_t fence) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  if (which)
    dibs__redlock_word(&w, which, strlen(which));
  else
    dibs__redlock_number(&w, fence);
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_DROP, &w, &d->requested);
}

static void put_break(struct dibs__redlock_batch *b, doing *d) {
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
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_BREAK, &w, &d->requested);
}

void dibs__redlock_put_first(struct dibs__redlock_batch *b, doing *d) {
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    put_take(b, d);
    return;
  case DIBS__RENEW:
    put_renew(b, d);
    return;
  case DIBS__RELEASE:
    dibs__redlock_put_drop(b, d, dibs__redlock_all(b), NULL, d->op->fence.v);
    return;
  case DIBS__CANCEL:
    dibs__redlock_put_drop(b, d, dibs__redlock_all(b), "all", 0);
    return;
  case DIBS__BREAK:
    put_break(b, d);
    return;
  }
}

void dibs__redlock_put_seal(struct dibs__redlock_batch *b, doing *d, uint32_t nodes, bool renews) {
  const struct dibs__lease_op *op = d->op;
  words_t w = {.count = 0};
  dibs__redlock_bucket_key(&w, b->store, op->op.bucket);
  dibs__redlock_key(&w, b->store, "n:", op->name);
  dibs__redlock_word(&w, op->id.b, sizeof op->id.b);
  dibs__redlock_number(&w, d->fence);
  dibs__redlock_number(&w, dibs__redlock_wanted(op));
  dibs__redlock_number(&w, renews ? 1 : 0);
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_SEAL, &w, &d->requested);
}

void dibs__redlock_put_heal(struct dibs__redlock_batch *b, doing *d) {
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
  put_tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_word(&w, d->owner.p, d->owner.len);
  dibs__redlock_word(&w, d->pid.p, d->pid.len);
  dibs__redlock_word(&w, d->since.p, d->since.len);
  struct dibs__redlock_requested unheard;
  dibs__redlock_put(b->s, d->behind, DIBS__REDLOCK_HEAL, &w, &unheard);
}

/* ---- Replies ---- */

enum { POLL_MS = 8, POLL_DOUBLINGS = 5 };
#define FENCES_END (UINT64_C(1) << 53)

int64_t dibs__redlock_by_chance(int64_t most) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return most > 0 ? (int64_t)(drawn % (uint64_t)most) : 0;
}

/* ---- Answers ---- */

void dibs__redlock_lack(struct dibs__redlock_batch *b, doing *d, uint32_t answered) {
  int64_t none[DIBS__REDLOCK_NODES] = {0};
  d->op->op.status = DIBS_UNAVAILABLE;
  d->stage = STAGE_DONE;
  b->lacked = true;
  bool acquires = d->op->op.verb == DIBS__ACQUIRE;
  dibs__redlock_say_no_quorum(b->s, answered, acquires ? d->votes.wait : none, b->result);
}

static bool was_sent(const doing *d) {
  for (size_t i = 0; i < DIBS__REDLOCK_NODES; i++)
    if (d->requested.nth[i] != DIBS__REDLOCK_UNASKED) return true;
  return false;
}

/* It was done on some nodes, and may have been done on those that did not answer; also if that is all of them. */
static void answer_unknown(struct dibs__redlock_batch *b, doing *d, uint32_t answered) {
  dibs__redlock_lack(b, d, answered);
  if (!was_sent(d)) return;
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

/* A waiter requests again soon, less often each time, at a random instant: two that collided must not collide again.
 * The ticket counts the tries. */
void dibs__redlock_answer_busy(struct dibs__redlock_batch *b, doing *d) {
  struct dibs__lease_op *op = d->op;
  int64_t free_in = dibs__redlock_free_in(b->store, &d->votes);
  d->stage = STAGE_DONE;
  if (!op->queue && op->ticket == 0) {
    op->op.status = DIBS_HELD;
    op->recheck.ms = dibs__redlock_now() + free_in;
    return;
  }
  uint64_t times = op->ticket < POLL_DOUBLINGS ? op->ticket : POLL_DOUBLINGS;
  int64_t pause = (int64_t)POLL_MS << times;
  pause = pause / 2 + dibs__redlock_by_chance(pause) + 1;
  if (free_in + POLL_MS < pause) pause = free_in + 1 + dibs__redlock_by_chance(POLL_MS);
  op->ticket++;
  op->fence = DIBS__FENCE_NONE;
  op->recheck.ms = dibs__redlock_now() + pause;
  op->op.status = DIBS__QUEUED;
}

/* ---- The first round ---- */

static void judge_acquire(struct dibs__redlock_batch *b, doing *d) {
  d->verdict = dibs__redlock_count(b->s, &d->requested, b->now, &d->votes);
  switch (d->verdict) {
  case DIBS__REDLOCK_BROKEN:
    d->op->op.status = DIBS_LOST;
    d->stage = STAGE_DONE;
    return;
  case DIBS__REDLOCK_FOUND:
    if (d->votes.found_until > dibs__redlock_now()) {
      answer_grant(d, d->votes.first, d->votes.block, d->votes.found_until);
      d->fence = d->proposed;
      if (d->votes.took) d->stage = STAGE_TIDY;
      return;
    }
    d->verdict = DIBS__REDLOCK_SPLIT; /* it has expired, though the nodes do not know that yet */
    d->fence = d->votes.first;
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_GRANTED:
    d->fence = d->proposed;
    if (dibs__redlock_now() < b->now + d->op->ttl_ms) {
      answer_grant(d, d->fence, dibs__redlock_wanted(d->op), b->now + d->op->ttl_ms);
      return;
    }
    d->verdict = DIBS__REDLOCK_NO_QUORUM; /* the answers took longer than the lease lasts */
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_WON:
    d->fence = d->votes.top;
    d->stage = STAGE_SEAL;
    if (d->fence < FENCES_END - DIBS__BLOCK_MAX) return;
    d->verdict = DIBS__REDLOCK_NO_QUORUM; /* a node's clock is beyond the year 2248 */
    d->fence = d->proposed;
    d->stage = STAGE_RETURN;
    return;
  case DIBS__REDLOCK_BUSY:
  case DIBS__REDLOCK_SPLIT:
  case DIBS__REDLOCK_NO_QUORUM:
    d->fence = d->proposed; /* the parts that were written are dropped, too */
    d->stage = STAGE_RETURN;
    return;
  }
}

struct tally {
  uint32_t answered, yes, granted;
  int64_t most;
};

/* How many nodes answered what: 0 or less is no, 2 is granted. */
static struct tally tally_votes(const struct dibs__redlock_batch *b, const doing *d) {
  struct tally t = {.most = -1};
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->requested, i);
    if (!reply || reply->type != REDIS_REPLY_INTEGER) continue;
    t.answered |= 1u << i;
    if (reply->integer > 0) t.yes |= 1u << i;
    if (reply->integer == 2) t.granted |= 1u << i;
    if (reply->integer > t.most) t.most = reply->integer;
  }
  return t;
}

static bool is_majority(const struct dibs__redlock_batch *b, uint32_t nodes) {
  return dibs__redlock_bits(nodes) >= b->store->majority;
}

static void judge_drop(struct dibs__redlock_batch *b, doing *d) {
  struct tally t = tally_votes(b, d);
  bool cancels = d->op->op.verb == DIBS__CANCEL;
  uint32_t missing = dibs__redlock_all(b) & ~t.answered;
  d->stage = STAGE_DONE;
  if (!is_majority(b, t.answered)) {
    answer_unknown(b, d, t.answered);
  } else if (t.granted && is_majority(b, t.granted | missing)) {
    d->op->was = DIBS__WAS_HELD;
    d->op->op.status = DIBS_OK;
  } else {
    d->op->op.status = cancels ? DIBS_NOT_FOUND : DIBS_LOST;
  }
}

/* A holder has a majority, so at least one of a majority that answers knows of it; and a lease broken there can't be
 * renewed on another majority. */
static void judge_break(struct dibs__redlock_batch *b, doing *d) {
  struct tally t = {.most = -1};
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->requested, i);
    if (!reply || reply->type != REDIS_REPLY_INTEGER) continue;
    t.answered |= 1u << i;
    if (reply->integer >= 0) t.yes |= 1u << i;
    if (reply->integer > t.most) t.most = reply->integer;
  }
  d->stage = STAGE_DONE;
  if (!is_majority(b, t.answered)) {
    answer_unknown(b, d, t.answered);
    return;
  }
  d->op->op.status = t.yes ? DIBS_OK : DIBS_NOT_FOUND;
  d->op->until.ms = d->op->now ? dibs__redlock_now() : dibs__redlock_now() + (t.most > 0 ? t.most : 0);
}

/* Keeps what a later round sends to other nodes: a copy, because the next round frees the answers. */
static void copy_reply(doing *d, const redisReply *reply) {
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

static void judge_renew(struct dibs__redlock_batch *b, doing *d) {
  uint32_t answered = 0;
  uint64_t top = 0;
  d->renewed = d->behind = 0;
  d->first = d->granted = d->block = 0;
  for (size_t i = 0; i < b->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(b->s, &d->requested, i);
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
    copy_reply(d, reply);
  }
  uint32_t missing = dibs__redlock_all(b) & ~answered;
  if (is_majority(b, d->renewed)) {
    answer_grant(d, d->first, d->op->want_block ? 0 : d->block, b->now + d->op->ttl_ms);
    d->op->waiting = true; /* unknown: so the name is released from time to time */
    d->fence = d->op->want_block && top < FENCES_END - DIBS__BLOCK_MAX ? top : 0;
    if (d->behind || d->fence) d->stage = STAGE_RENEWED;
  } else if (!is_majority(b, d->renewed | missing)) {
    d->op->op.status = DIBS_LOST;
    d->stage = STAGE_DONE;
  } else {
    answer_unknown(b, d, answered);
  }
}

void dibs__redlock_judge_first(struct dibs__redlock_batch *b, doing *d) {
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

/* ---- The second round ---- */

void dibs__redlock_judge_seal(struct dibs__redlock_batch *b, doing *d) {
  struct tally t = tally_votes(b, d);
  bool in_time = dibs__redlock_now() < b->now + d->op->ttl_ms;
  if (in_time && is_majority(b, t.yes & d->votes.counts)) {
    answer_grant(d, d->fence, dibs__redlock_wanted(d->op), b->now + d->op->ttl_ms);
    return;
  }
  d->verdict = is_majority(b, t.answered) ? DIBS__REDLOCK_SPLIT : DIBS__REDLOCK_NO_QUORUM;
  d->votes.answered = t.answered;
  d->stage = STAGE_UNDO;
}

void dibs__redlock_judge_renewed(struct dibs__redlock_batch *b, doing *d) {
  if (d->fence && is_majority(b, tally_votes(b, d).yes))
    answer_grant(d, d->fence, dibs__redlock_wanted(d->op), d->op->until.ms);
  d->stage = STAGE_DONE;
}
