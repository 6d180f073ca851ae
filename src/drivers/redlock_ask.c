/* SPDX-License-Identifier: MIT */
/* What is asked of the nodes: each operation's commands. */
#include "drivers/redlock_batch.h"

#include <stdio.h>
#include <string.h>

typedef struct dibs__redlock_words words_t;
typedef struct dibs__redlock_doing doing;

enum { BREAKS_KEPT_MS = 86400000 };

static void tag(const struct dibs__redlock_batch *b, words_t *words, int64_t until) {
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
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, dibs__process_id());
  dibs__redlock_number(&w, (uint64_t)b->store->max_ttl_ms);
  d->hoped = dibs__redlock_hope(b->store, dibs__redlock_wanted(op));
  dibs__redlock_number(&w, d->hoped);
  dibs__redlock_number(&w, dibs__redlock_wanted(op));
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_TAKE, &w, &d->asked);
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
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_number(&w, op->want_block ? 1 : 0);
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_RENEW, &w, &d->asked);
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
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_DROP, &w, &d->asked);
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
  dibs__redlock_put(b->s, dibs__redlock_all(b), DIBS__REDLOCK_BREAK, &w, &d->asked);
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
  dibs__redlock_put(b->s, nodes, DIBS__REDLOCK_SEAL, &w, &d->asked);
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
  tag(b, &w, b->now + op->ttl_ms);
  dibs__redlock_word(&w, d->owner.p, d->owner.len);
  dibs__redlock_word(&w, d->pid.p, d->pid.len);
  dibs__redlock_word(&w, d->since.p, d->since.len);
  struct dibs__redlock_asked unheard;
  dibs__redlock_put(b->s, d->behind, DIBS__REDLOCK_HEAL, &w, &unheard);
}
