/* SPDX-License-Identifier: MIT */
/* Stocks and their claims: what every other driver is compared with.  One operation after the other. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__stock_op stock_op;

enum { CLAIM_MAX = 64, SWEEP_FROM = 1024 /* claims, before anybody looks for old ones */ };
#define KEEP_MS (INT64_C(30) * 86400000)

/* ---- Rows ---- */

struct dibs__mem_stock {
  struct dibs__map_node link; /* of memory.stocks; first */
  int64_t used, limit;
  dibs__fence fence;
  uint64_t owner; /* a digest */
  uint32_t len;
  char key[];
};

struct taken {
  struct dibs__map_node link; /* of memory.taken; first */
  const struct dibs__mem_stock *stock;
  int64_t amount, at;
  bool given;
  uint32_t len;
  char claim[];
};

typedef struct dibs__mem_stock stock_t;

static stock_t *find_stock(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->stocks, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    stock_t *s = (stock_t *)link;
    if (dibs__str_equal(dibs__str_of(s->key, s->len), key)) return s;
  }
  return NULL;
}

static struct taken *find_taken(const struct dibs__memory *m, dibs__str claim) {
  struct dibs__map_node *link = dibs__map_head(&m->taken, dibs__hash(claim.p, claim.len));
  for (; link; link = link->next) {
    struct taken *t = (struct taken *)link;
    if (dibs__str_equal(dibs__str_of(t->claim, t->len), claim)) return t;
  }
  return NULL;
}

static stock_t *add_stock(struct dibs__memory *m, dibs__str key) {
  stock_t *s = calloc(1, sizeof *s + key.len + 1);
  if (!s) return NULL;
  s->len = key.len;
  memcpy(s->key, key.p, key.len);
  dibs__map_add(&m->stocks, &s->link, dibs__hash(key.p, key.len));
  return s;
}

/* Claims from before that instant. */
static void forget_taken(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->taken, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->taken, node);
    if (((struct taken *)node)->at >= before) continue;
    dibs__map_remove(&m->taken, node);
    free(node);
  }
}

static struct taken *add_taken(struct dibs__memory *m, const stock_op *op, const stock_t *s, int64_t now) {
  if (m->taken.count >= SWEEP_FROM && m->taken.count >= m->taken_swept * 2) {
    forget_taken(m, now - KEEP_MS);
    m->taken_swept = m->taken.count;
  }
  struct taken *t = calloc(1, sizeof *t + op->claim.len + 1);
  if (!t) return NULL;
  t->stock = s;
  t->at = now;
  t->len = op->claim.len;
  memcpy(t->claim, op->claim.p, op->claim.len);
  dibs__map_add(&m->taken, &t->link, dibs__hash(op->claim.p, op->claim.len));
  return t;
}

void dibs__mem_stocks_forget(struct dibs__memory *m) {
  forget_taken(m, INT64_MAX);
  struct dibs__map_node *next, *node = dibs__mem_next(&m->stocks, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->stocks, node);
    dibs__map_remove(&m->stocks, node);
    free(node);
  }
}

/* ---- Operations ---- */

static bool stale(const stock_t *s, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return false;
  return dibs__fence_below(op->fence, s->fence) || (op->fence.v == s->fence.v && s->owner != dibs__id_digest(op->id));
}

static void seal(stock_t *s, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return;
  s->fence = op->fence;
  s->owner = dibs__id_digest(op->id);
}

static dibs__status take(struct dibs__memory *m, stock_op *op, stock_t *s, int64_t now) {
  struct taken *t = find_taken(m, op->claim);
  if (t && (t->given || t->stock != s)) return DIBS_CONFLICT;
  if (t) {
    op->got = t->amount;
    return DIBS_REPLAY;
  }
  if (!s) return DIBS_NOT_FOUND;
  if (stale(s, op)) return DIBS_STALE;
  int64_t left = s->limit - s->used;
  if (left <= 0 || (op->amount > left && !op->partial)) return DIBS_FULL;
  t = add_taken(m, op, s, now);
  if (!t) return DIBS_NO_MEMORY;
  t->amount = op->got = op->amount < left ? op->amount : left;
  s->used += t->amount;
  seal(s, op);
  return DIBS_OK;
}

static dibs__status give(struct dibs__memory *m, stock_op *op, stock_t *s, int64_t now) {
  struct taken *t = find_taken(m, op->claim);
  if (t && t->stock != s) return DIBS_CONFLICT;
  if (t && t->given) {
    op->got = t->amount;
    return DIBS_REPLAY;
  }
  if (!s) return DIBS_NOT_FOUND;
  if (stale(s, op)) return DIBS_STALE;
  bool there = t != NULL;
  if (!t) t = add_taken(m, op, s, now); /* so that a take that comes late does not count */
  if (!t) return DIBS_NO_MEMORY;
  t->given = true;
  if (!there) return DIBS_NOT_FOUND;
  op->got = t->amount;
  s->used -= t->amount;
  seal(s, op);
  return DIBS_OK;
}

static dibs__status set(struct dibs__memory *m, const stock_op *op, stock_t **s) {
  if (*s && (*s)->used > op->amount) return DIBS_FULL;
  if (!*s) *s = add_stock(m, op->key);
  if (!*s) return DIBS_NO_MEMORY;
  (*s)->limit = op->amount;
  return DIBS_OK;
}

static bool valid(const stock_op *op) {
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX || op->strategy > DIBS_UNGUARDED || op->strategy == DIBS_NAMED)
    return false;
  if (op->op.verb == DIBS__STOCK_READ) return true;
  if (op->op.verb == DIBS__STOCK_SET) return op->amount >= 0;
  if (op->op.verb > DIBS__STOCK_SET || (op->op.verb == DIBS__STOCK_TAKE && op->amount < 1)) return false;
  if (op->strategy == DIBS_FENCED && op->fence.v == 0) return false;
  return op->claim.len >= 1 && op->claim.len <= CLAIM_MAX && op->owner.len <= DIBS_OWNER_MAX;
}

void dibs__mem_stock(struct dibs__memory *m, stock_op *op, int64_t now) {
  op->got = 0;
  op->used = op->limit = -1;
  op->retries = op->deadlocks = 0;
  op->op.status = op->table ? DIBS_UNSUPPORTED : DIBS_INVALID;
  if (op->table || !valid(op)) return;
  stock_t *s = find_stock(m, op->key);
  switch (op->op.verb) {
  case DIBS__STOCK_TAKE:
    op->op.status = take(m, op, s, now);
    break;
  case DIBS__STOCK_GIVE:
    op->op.status = give(m, op, s, now);
    break;
  case DIBS__STOCK_READ:
    op->op.status = s ? DIBS_OK : DIBS_NOT_FOUND;
    break;
  default:
    op->op.status = set(m, op, &s);
  }
  if (!s) return;
  op->used = s->used;
  op->limit = s->limit;
}
