/* SPDX-License-Identifier: MIT */
/*
 * What the nodes said to the first round of an acquire.
 *
 * A vote counts if the node remembers all leases that may still be alive: one that lost its memory does not, for as
 * long as the longest lease may last, because it may have held for another.
 */
#include "drivers/redlock_parts.h"

#include <stdlib.h>

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

/* "SESSION:UNTIL", in this store's own timeline; 0: another's, whose timeline we do not know. */
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

/* ---- What is hoped for ---- */

/* Near the nodes' clocks, so that other clients hope for something near; but above what is known. */
uint64_t dibs__redlock_hope(struct dibs__redlock *store, uint32_t many) {
  uint64_t hope = 0;
  dibs__mutex_lock(&store->lock);
  if (store->from) {
    int64_t passed_us = (dibs__tick_now().ns - store->from_at.ns) / 1000;
    hope = store->from + (uint64_t)passed_us * 1024 / 1000;
    if (hope <= store->highest) hope = store->highest + 1;
    store->highest = hope + many - 1;
  }
  dibs__mutex_unlock(&store->lock);
  return hope;
}

/* A node proposed this: by its clock, or one above what it had seen. */
static void saw_clock(struct dibs__redlock *store, uint64_t proposed) {
  dibs__mutex_lock(&store->lock);
  store->from = proposed;
  store->from_at = dibs__tick_now();
  if (proposed > store->highest) store->highest = proposed;
  dibs__mutex_unlock(&store->lock);
}

/* ---- Counting ---- */

/* Until when a node's part of a grant was promised.  A node holds for longer than that, by the drift. */
static int64_t promised_until(const struct dibs__redlock *store, const struct grant *g, int64_t sent_ms) {
  int64_t until = tagged_until(store, g->tag);
  return until != 0 ? until : sent_ms + g->left - dibs__redlock_drift_ms(store, g->left);
}

/* A grant that a majority has whose vote counts; there is one at most. */
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

/* Could one of those who have it somewhere have it on a majority, if those that did not answer gave it to them? */
static bool one_may_hold(const struct dibs__redlock *store, const votes_t *v, const dibs__str who[]) {
  size_t missing = store->count - dibs__redlock_bits(v->answered);
  for (size_t i = 0; i < v->left_count; i++) {
    size_t same = 0;
    for (size_t j = 0; j < v->left_count; j++) same += dibs__str_equal(who[i], who[j]);
    if (same + missing >= store->majority) return true;
  }
  return false;
}

/* Busy is an answer of enough nodes, one of which has it for somebody else; else it is the quorum that is missing. */
static enum dibs__redlock_verdict refusal(const struct dibs__redlock *store, const votes_t *v, const dibs__str who[]) {
  if (!v->held || dibs__redlock_bits(v->held | ((v->took | v->mine) & v->counts)) < store->majority)
    return DIBS__REDLOCK_NO_QUORUM;
  return one_may_hold(store, v, who) ? DIBS__REDLOCK_BUSY : DIBS__REDLOCK_SPLIT;
}

enum dibs__redlock_verdict dibs__redlock_count(struct dibs__redlock_session *s, const struct dibs__redlock_asked *asked,
                                               int64_t sent_ms, votes_t *v) {
  struct dibs__redlock *store = s->store;
  struct grant grants[DIBS__REDLOCK_NODES];
  dibs__str who[DIBS__REDLOCK_NODES] = {{0}};
  size_t grant_count = 0;
  *v = (votes_t){.top = 0};
  for (size_t i = 0; i < store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, asked, i);
    if (reply && reply->type == REDIS_REPLY_ARRAY) read_node(reply, i, v, grants, &grant_count, who);
  }
  if (v->took & ~v->written) saw_clock(store, v->top);
  if (v->broken) return DIBS__REDLOCK_BROKEN;
  find_grant(store, grants, grant_count, sent_ms, v);
  if (v->found) return DIBS__REDLOCK_FOUND;
  if (dibs__redlock_bits(v->written & v->counts) >= store->majority) return DIBS__REDLOCK_GRANTED;
  if (dibs__redlock_bits((v->took | v->mine) & v->counts) >= store->majority) return DIBS__REDLOCK_WON;
  return refusal(store, v, who);
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
