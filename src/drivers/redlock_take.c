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

/* Until when a node's part of a grant was promised.  A node holds for longer than that, by the drift. */
static int64_t promised_until(const struct dibs__redlock *store, const struct grant *g, int64_t sent_ms) {
  int64_t until = tagged_until(store, g->tag);
  return until != 0 ? until : sent_ms + g->left - dibs__redlock_drift_ms(store, g->left);
}

/* The grant with the highest fence, if a majority that counts has it. */
static void find_grant(const struct dibs__redlock *store, const struct grant *grants, size_t count, int64_t sent_ms,
                       votes_t *v) {
  int64_t until[DIBS__REDLOCK_NODES];
  size_t same = 0;
  const struct grant *best = NULL;
  for (size_t i = 0; i < count; i++)
    if (grants[i].counts && (!best || grants[i].first > best->first)) best = &grants[i];
  for (size_t i = 0; best && i < count; i++)
    if (grants[i].counts && grants[i].first == best->first) until[same++] = promised_until(store, &grants[i], sent_ms);
  if (!best || same < store->majority) return;
  qsort(until, same, sizeof until[0], downwards);
  v->found = true;
  v->first = best->first;
  v->block = best->block;
  v->found_until = until[store->majority - 1];
}

static void read_node(const redisReply *reply, size_t node, votes_t *v, struct grant *grants, size_t *grant_count) {
  uint32_t bit = 1u << node;
  v->answered |= bit;
  if (dibs__redlock_int(reply, 1) == COUNTS)
    v->counts |= bit;
  else
    v->wait[node] = dibs__redlock_int(reply, 2) > 0 ? dibs__redlock_int(reply, 2) : 1;
  switch (dibs__redlock_int(reply, 0)) {
  case SAYS_TAKEN:
    v->took |= bit;
    add_top(v, (uint64_t)dibs__redlock_int(reply, 3));
    break;
  case SAYS_OTHERS:
    v->held |= bit;
    v->left[v->left_count++] = dibs__redlock_int(reply, 3);
    if (dibs__redlock_int(reply, 4)) v->granted = true;
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

/* Busy is an answer of enough nodes, one of which has it for somebody else; else it is the quorum that is missing. */
static enum dibs__redlock_verdict refusal(const struct dibs__redlock *store, const votes_t *v) {
  if (!v->held || dibs__redlock_bits(v->held | ((v->took | v->mine) & v->counts)) < store->majority)
    return DIBS__REDLOCK_NO_QUORUM;
  return v->granted ? DIBS__REDLOCK_BUSY : DIBS__REDLOCK_SPLIT;
}

enum dibs__redlock_verdict dibs__redlock_count(struct dibs__redlock_session *s, const struct dibs__redlock_asked *asked,
                                               int64_t sent_ms, votes_t *v) {
  const struct dibs__redlock *store = s->store;
  struct grant grants[DIBS__REDLOCK_NODES];
  size_t grant_count = 0;
  *v = (votes_t){.top = 0};
  for (size_t i = 0; i < store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, asked, i);
    if (reply && reply->type == REDIS_REPLY_ARRAY) read_node(reply, i, v, grants, &grant_count);
  }
  if (v->broken) return DIBS__REDLOCK_BROKEN;
  find_grant(store, grants, grant_count, sent_ms, v);
  if (v->found) return DIBS__REDLOCK_FOUND;
  if (dibs__redlock_bits((v->took | v->mine) & v->counts) >= store->majority) return DIBS__REDLOCK_WON;
  return refusal(store, v);
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
