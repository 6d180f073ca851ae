/* SPDX-License-Identifier: MIT */
/*
 * Guarded writes of the memory driver: groups, records, once keys, stocks and their claims, reports.  Every other
 * driver is compared with it.
 *
 * Groups: before an element of a group runs, its name or record is copied; if one of the group fails, the copies
 * replace the originals.  All memory is allocated beforehand, so a rollback can't fail.  Fences that were drawn stay
 * drawn.
 *
 * Records are rows that remember the largest fence they have seen, and how many versions they have had.  A once key
 * has the latest attempt, and perhaps an answer.  Stocks run one operation after the other.  A report is the latest
 * of each client.
 */
#include "drivers/memory/memory_impl.h"
#include "store/family.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim mem_claim;
typedef struct dibs__mem_name name;
typedef struct dibs__mem_record record;

struct dibs__mem_saved {
  struct dibs__mem_saved *next;
  bool is_record;
  name *n;           /* the copy, NULL if there was none */
  mem_claim *claims; /* copies, chained by `after` */
  record *r;
  uint32_t len;
  char text[]; /* of the name or key */
};

static dibs__str text_of(const struct dibs__mem_saved *s) {
  return dibs__str_of(s->text, s->len);
}

static bool save_row(struct dibs__mem_saved *s, const struct dibs__mem_row *row) {
  for (const mem_claim *c = row->first; c; c = c->after) {
    mem_claim *twin = malloc(sizeof *c + c->owner_len + 1);
    if (!twin) return false;
    memcpy(twin, c, sizeof *c + c->owner_len + 1);
    twin->name = s->n;
    twin->before = NULL;
    twin->after = s->claims;
    s->claims = twin;
  }
  return true;
}

static bool save_name(struct dibs__mem_saved *s, const name *n) {
  s->n = calloc(1, sizeof *n + n->len + 1);
  if (!s->n) return false;
  s->n->link.hash = n->link.hash;
  s->n->soonest = INT64_MAX;
  s->n->exact = true;
  s->n->len = n->len;
  memcpy(s->n->text, n->text, n->len);
  if (n->breaks) {
    s->n->breaks = malloc(DIBS__MEM_BREAKS * sizeof *n->breaks);
    if (!s->n->breaks) return false;
    memcpy(s->n->breaks, n->breaks, DIBS__MEM_BREAKS * sizeof *n->breaks);
    s->n->break_count = n->break_count;
  }
  return save_row(s, &n->holders) && save_row(s, &n->offered) && save_row(s, &n->waiting) && save_row(s, &n->asleep);
}

static bool save_record(struct dibs__mem_saved *s, const record *r) {
  s->r = malloc(sizeof *r + r->key_len + 1);
  if (!s->r) return false;
  memcpy(s->r, r, sizeof *r + r->key_len + 1);
  if (!r->data) return true;
  s->r->data = malloc((size_t)r->data_len + 1);
  if (s->r->data) memcpy(s->r->data, r->data, (size_t)r->data_len + 1);
  return s->r->data != NULL;
}

DIBS__MODULE_API struct dibs__mem_record *dibs__mem_record_find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->records, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    record *r = (record *)link;
    if (dibs__str_equal(dibs__str_of(r->key, r->key_len), key)) return r;
  }
  return NULL;
}

bool dibs__mem_save(struct dibs__memory *m, const struct dibs__op *op, struct dibs__mem_saved **saved) {
  bool is_record = op->family == DIBS__FAM_RECORD;
  dibs__str text = dibs__op_key(op);
  for (const struct dibs__mem_saved *s = *saved; s; s = s->next)
    if (s->is_record == is_record && dibs__str_equal(text_of(s), text)) return true;
  struct dibs__mem_saved *s = calloc(1, sizeof *s + text.len + 1);
  if (!s) return false;
  s->next = *saved;
  *saved = s;
  s->is_record = is_record;
  s->len = text.len;
  if (text.len) memcpy(s->text, text.p, text.len);
  if (is_record) {
    const record *r = dibs__mem_record_find(m, text);
    return !r || save_record(s, r);
  }
  const name *n = dibs__mem_name_find(m, text);
  return !n || save_name(s, n);
}

static void empty_row(struct dibs__memory *m, const struct dibs__mem_row *row) {
  while (row->first) dibs__mem_claim_remove(m, row->first);
}

static void restore_name(struct dibs__memory *m, struct dibs__mem_saved *s) {
  name *n = dibs__mem_name_find(m, text_of(s));
  if (n) {
    empty_row(m, &n->holders);
    empty_row(m, &n->offered);
    empty_row(m, &n->waiting);
    empty_row(m, &n->asleep);
    free(n->breaks);
    n->breaks = NULL;
    dibs__mem_name_drop_if_idle(m, n);
  }
  if (!s->n) return;
  dibs__map_add(&m->names, &s->n->link, s->n->link.hash);
  while (s->claims) {
    mem_claim *c = s->claims;
    s->claims = c->after;
    c->after = NULL;
    dibs__mem_claim_link(m, c);
  }
  s->n = NULL;
}

void dibs__mem_restore(struct dibs__memory *m, struct dibs__mem_saved **saved) {
  for (struct dibs__mem_saved *s = *saved; s; s = s->next) {
    if (!s->is_record) {
      restore_name(m, s);
      continue;
    }
    record *r = dibs__mem_record_find(m, text_of(s));
    if (r) dibs__mem_record_remove(m, r);
    if (s->r) dibs__map_add(&m->records, &s->r->link, s->r->link.hash);
    s->r = NULL;
  }
  dibs__mem_forget_saved(saved);
}

void dibs__mem_forget_saved(struct dibs__mem_saved **saved) {
  while (*saved) {
    struct dibs__mem_saved *s = *saved;
    *saved = s->next;
    while (s->claims) {
      mem_claim *c = s->claims;
      s->claims = c->after;
      free(c);
    }
    if (s->n) free(s->n->breaks);
    free(s->n);
    if (s->r) free(s->r->data);
    free(s->r);
    free(s);
  }
}

/* ---- Records ---- */

void dibs__mem_record_remove(struct dibs__memory *m, record *r) {
  dibs__map_remove(&m->records, &r->link);
  free(r->data);
  free(r);
}

static record *add_record(struct dibs__memory *m, dibs__str key) {
  record *r = calloc(1, sizeof *r + key.len + 1);
  if (!r) return NULL;
  r->key_len = key.len;
  memcpy(r->key, key.p, key.len);
  dibs__map_add(&m->records, &r->link, dibs__hash(key.p, key.len));
  return r;
}

DIBS__MODULE_API struct dibs__mem_record *dibs__mem_record_get(struct dibs__memory *m, dibs__str key) {
  record *r = dibs__mem_record_find(m, key);
  return r ? r : add_record(m, key);
}

static char *copy_bytes(const char *data, uint32_t len) {
  char *to = malloc((size_t)len + 1);
  if (!to) return NULL;
  if (len) memcpy(to, data, len);
  to[len] = 0;
  return to;
}

/* Without data the record does not exist; the version goes on from where it was. */
static uint64_t version_of(const record *r) {
  return r && r->data ? r->version : 0;
}

static void load(const record *r, struct dibs__record_op *op) {
  op->seen = r->fence;
  op->version = version_of(r);
  op->op.status = DIBS_OK;
  if (op->version == 0) return;
  op->got = copy_bytes(r->data, r->data_len);
  op->got_len = op->got ? r->data_len : 0;
  if (!op->got) op->op.status = DIBS_NO_MEMORY;
}

static void write_record(record *r, struct dibs__record_op *op, char *data) {
  free(r->data);
  r->data = data;
  r->data_len = data ? op->data.len : 0;
  if (data) op->version = ++r->version;
  op->seen = r->fence;
  op->op.status = DIBS_OK;
}

DIBS__MODULE_API void dibs__mem_record(struct dibs__memory *m, struct dibs__record_op *op) {
  if (!dibs__record_valid(op)) return;
  record *r = dibs__mem_record_find(m, op->key);
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (r && (r->data || r->version == 0)) load(r, op);
    return;
  }
  if (!dibs__record_admits(op, r ? r->fence : DIBS__FENCE_NONE, r ? r->digest : 0, version_of(r),
                           r && r->data ? dibs__str_of(r->data, (uint32_t)r->data_len) : (dibs__str){0}))
    return;
  bool writes = op->op.verb == DIBS__RECORD_PUT;
  char *data = writes ? copy_bytes(op->data.p, op->data.len) : NULL;
  bool enough = data || !writes;
  if (enough && !r) r = add_record(m, op->key);
  if (!enough || !r) {
    free(data);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    r->fence = op->fence;
    r->digest = dibs__id_digest(op->id);
  }
  if (op->op.verb == DIBS__RECORD_SEAL)
    load(r, op);
  else
    write_record(r, op, data);
}

/* ---- Once keys ---- */

typedef struct dibs__mem_once once;

enum { SWEEP_FROM = 64 }; /* keys, before expired ones are searched */

DIBS__MODULE_API struct dibs__mem_once *dibs__mem_once_find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->onces, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    once *o = (once *)link;
    if (dibs__str_equal(dibs__str_of(o->key, o->key_len), key)) return o;
  }
  return NULL;
}

static void drop_once(struct dibs__memory *m, once *o) {
  dibs__map_remove(&m->onces, &o->link);
  free(o->data);
  free(o);
}

void dibs__mem_onces_forget(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->onces, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->onces, node);
    if (((once *)node)->until <= before) drop_once(m, (once *)node);
  }
}

static once *once_add(struct dibs__memory *m, dibs__str key, int64_t now) {
  if (m->onces.count >= SWEEP_FROM && m->onces.count >= m->onces_swept * 2) {
    dibs__mem_onces_forget(m, now);
    m->onces_swept = m->onces.count;
  }
  once *o = calloc(1, sizeof *o + key.len + 1);
  if (!o) return NULL;
  o->key_len = key.len;
  memcpy(o->key, key.p, key.len);
  dibs__map_add(&m->onces, &o->link, dibs__hash(key.p, key.len));
  return o;
}

DIBS__MODULE_API struct dibs__mem_once *dibs__mem_once_get(struct dibs__memory *m, dibs__str key) {
  once *o = dibs__mem_once_find(m, key);
  return o ? o : once_add(m, key, INT64_MIN);
}

static char *once_copy(const char *data, uint32_t len) {
  char *to = malloc((size_t)len + 1);
  if (!to) return NULL;
  if (len) memcpy(to, data, len);
  to[len] = '\0';
  return to;
}

static void answer_once(struct dibs__once_op *op, dibs__status status, const once *o, int64_t now) {
  op->op.status = status;
  op->age_ms = now - o->made;
  op->left_ms = o->until - now;
}

static void hand_out_once(struct dibs__once_op *op, dibs__status status, const once *o, int64_t now) {
  answer_once(op, status, o, now);
  op->got = once_copy(o->data, o->data_len);
  op->got_len = op->got ? o->data_len : 0;
  if (!op->got) op->op.status = DIBS_NO_MEMORY;
}

static void take_once(once *o, const struct dibs__once_op *op, uint64_t digest, char *data, int64_t now) {
  free(o->data);
  o->data = data;
  o->data_len = data ? op->data.len : 0;
  if (dibs__fence_below(o->fence, op->fence)) o->fence = op->fence;
  o->owner = digest;
  o->made = now;
  o->until = now + op->keep_ms;
}

/* Whether this attempt may have the key, which has no valid answer. */
static bool may_take_once(const once *o, const struct dibs__once_op *op, uint64_t digest) {
  if (op->fence.v) return dibs__fence_below(o->fence, op->fence) || (o->fence.v == op->fence.v && o->owner == digest);
  if (op->op.verb == DIBS__ONCE_STORE) return o->owner == digest;
  return o->fence.v == 0 || o->owner == 0 || o->owner == digest || o->data;
}

static void attempt_once(struct dibs__memory *m, once *o, struct dibs__once_op *op, int64_t now) {
  uint64_t digest = dibs__id_digest(op->id);
  bool stores = op->op.verb == DIBS__ONCE_STORE;
  if (o && o->data && o->until > now) {
    bool mine = o->owner == digest && (op->fence.v == 0 || o->fence.v == op->fence.v);
    if (mine && stores)
      answer_once(op, DIBS_OK, o, now);
    else
      hand_out_once(op, DIBS_REPLAY, o, now);
    return;
  }
  if (o && !may_take_once(o, op, digest)) {
    answer_once(op, op->fence.v || stores ? DIBS_STALE : DIBS_HELD, o, now);
    return;
  }
  char *data = stores ? once_copy(op->data.p, op->data.len) : NULL;
  if (!o && (data || !stores)) o = once_add(m, op->key, now);
  if (!o || (stores && !data)) {
    free(data);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  take_once(o, op, digest, data, now);
  answer_once(op, DIBS_OK, o, now);
}

static bool once_valid(const struct dibs__once_op *op) {
  if (op->op.verb > DIBS__ONCE_LEAVE || op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if (op->op.verb != DIBS__ONCE_STORE && op->op.verb != DIBS__ONCE_BEGIN) return true;
  return op->keep_ms > 0 && op->data.len <= DIBS_RECORD_MAX;
}

DIBS__MODULE_API void dibs__mem_once(struct dibs__memory *m, struct dibs__once_op *op, int64_t now) {
  op->got = NULL;
  op->got_len = 0;
  op->age_ms = op->left_ms = 0;
  op->op.status = DIBS_INVALID;
  if (!once_valid(op)) return;
  once *o = dibs__mem_once_find(m, op->key);
  bool has = o && o->data && o->until > now;
  op->op.status = DIBS_NOT_FOUND;
  switch (op->op.verb) {
  case DIBS__ONCE_READ:
    if (has) hand_out_once(op, DIBS_OK, o, now);
    return;
  case DIBS__ONCE_FORGET:
    if (!has) return;
    free(o->data);
    o->data = NULL;
    o->data_len = 0;
    o->owner = 0;
    op->op.status = DIBS_OK;
    return;
  case DIBS__ONCE_LEAVE:
    if (!o || o->data || o->owner != dibs__id_digest(op->id)) return;
    o->owner = 0;
    op->op.status = DIBS_OK;
    return;
  default:
    attempt_once(m, o, op, now);
  }
}

/* ---- Stocks and their claims ---- */

typedef struct dibs__stock_op stock_op;

enum { CLAIM_MAX = 64, STOCK_SWEEP_FROM = 1024 /* claims, before old ones are searched */ };

typedef struct dibs__mem_stock stock_t;
typedef struct dibs__mem_taken taken_t;

DIBS__MODULE_API struct dibs__mem_stock *dibs__mem_stock_find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->stocks, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    stock_t *s = (stock_t *)link;
    if (dibs__str_equal(dibs__str_of(s->key, s->len), key)) return s;
  }
  return NULL;
}

DIBS__MODULE_API struct dibs__mem_taken *dibs__mem_taken_find(const struct dibs__memory *m, dibs__str claim) {
  struct dibs__map_node *link = dibs__map_head(&m->taken, dibs__hash(claim.p, claim.len));
  for (; link; link = link->next) {
    taken_t *t = (taken_t *)link;
    if (dibs__str_equal(dibs__str_of(t->claim, t->len), claim)) return t;
  }
  return NULL;
}

DIBS__MODULE_API struct dibs__mem_stock *dibs__mem_stock_add(struct dibs__memory *m, dibs__str key) {
  stock_t *s = calloc(1, sizeof *s + key.len + 1);
  if (!s) return NULL;
  s->len = key.len;
  memcpy(s->key, key.p, key.len);
  dibs__map_add(&m->stocks, &s->link, dibs__hash(key.p, key.len));
  return s;
}

/* Claims that were given back before that instant; all of them, if `held` ones go, too. */
static void forget_claims(struct dibs__memory *m, int64_t before, bool held) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->taken, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->taken, node);
    const taken_t *t = (const taken_t *)node;
    if (!held && (!t->given || t->at >= before)) continue;
    dibs__map_remove(&m->taken, node);
    free(node);
  }
}

DIBS__MODULE_API struct dibs__mem_taken *dibs__mem_taken_add(struct dibs__memory *m, dibs__str claim, const stock_t *s,
                                                             int64_t at) {
  taken_t *t = calloc(1, sizeof *t + claim.len + 1);
  if (!t) return NULL;
  t->stock = s;
  t->at = at;
  t->nth = ++m->taken_last;
  t->len = claim.len;
  memcpy(t->claim, claim.p, claim.len);
  dibs__map_add(&m->taken, &t->link, dibs__hash(claim.p, claim.len));
  return t;
}

static taken_t *add_claim(struct dibs__memory *m, const stock_op *op, const stock_t *s, int64_t now) {
  if (m->taken.count >= STOCK_SWEEP_FROM && m->taken.count >= m->taken_swept * 2) {
    forget_claims(m, now - DIBS__MEM_TAKEN_KEEP_MS, false);
    m->taken_swept = m->taken.count;
  }
  return dibs__mem_taken_add(m, op->claim, s, now);
}

void dibs__mem_stocks_forget(struct dibs__memory *m) {
  forget_claims(m, INT64_MAX, true);
  struct dibs__map_node *next, *node = dibs__mem_next(&m->stocks, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->stocks, node);
    dibs__map_remove(&m->stocks, node);
    free(node);
  }
}

/* ---- Operations ---- */

static bool fence_is_stale(const stock_t *s, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return false;
  return dibs__fence_below(op->fence, s->fence) || (op->fence.v == s->fence.v && s->owner != dibs__id_digest(op->id));
}

static void remember_fence(stock_t *s, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return;
  s->fence = op->fence;
  s->owner = dibs__id_digest(op->id);
}

static dibs__status stock_take(struct dibs__memory *m, stock_op *op, stock_t *s, int64_t now) {
  taken_t *t = dibs__mem_taken_find(m, op->claim);
  if (t && (t->given || t->stock != s)) return DIBS_CONFLICT;
  if (t) {
    op->got = t->amount;
    return DIBS_REPLAY;
  }
  if (!s) return DIBS_NOT_FOUND;
  if (fence_is_stale(s, op)) return DIBS_STALE;
  int64_t left = s->limit - s->used;
  if (left <= 0 || (op->amount > left && !op->partial)) return DIBS_FULL;
  t = add_claim(m, op, s, now);
  if (!t) return DIBS_NO_MEMORY;
  t->amount = op->got = op->amount < left ? op->amount : left;
  s->used += t->amount;
  remember_fence(s, op);
  return DIBS_OK;
}

static dibs__status stock_give(struct dibs__memory *m, stock_op *op, stock_t *s, int64_t now) {
  taken_t *t = dibs__mem_taken_find(m, op->claim);
  if (t && t->stock != s) return DIBS_CONFLICT;
  if (t && t->given) {
    op->got = t->amount;
    return DIBS_REPLAY;
  }
  if (!s) return DIBS_NOT_FOUND;
  if (fence_is_stale(s, op)) return DIBS_STALE;
  bool there = t != NULL;
  if (!t) t = add_claim(m, op, s, now); /* so that a take that arrives late does not count */
  if (!t) return DIBS_NO_MEMORY;
  t->given = true;
  t->at = now; /* it is kept from now on */
  if (!there) return DIBS_NOT_FOUND;
  op->got = t->amount;
  s->used -= t->amount;
  remember_fence(s, op);
  return DIBS_OK;
}

static dibs__status stock_set(struct dibs__memory *m, const stock_op *op, stock_t **s) {
  if (*s && (*s)->used > op->amount) return DIBS_FULL;
  if (!*s) *s = dibs__mem_stock_add(m, op->key);
  if (!*s) return DIBS_NO_MEMORY;
  (*s)->limit = op->amount;
  return DIBS_OK;
}

static bool stock_valid(const stock_op *op) {
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX || op->strategy > DIBS_FENCED || op->strategy == DIBS_NAMED)
    return false;
  if (op->op.verb == DIBS__STOCK_READ) return true;
  if (op->op.verb == DIBS__STOCK_SET) return op->amount >= 0;
  if (op->op.verb > DIBS__STOCK_SET || (op->op.verb == DIBS__STOCK_TAKE && op->amount < 1)) return false;
  if (op->strategy == DIBS_FENCED && op->fence.v == 0) return false;
  return op->claim.len >= 1 && op->claim.len <= CLAIM_MAX && op->owner.len <= DIBS_OWNER_MAX;
}

static int compare_stock_rows(const void *left, const void *right) {
  const struct dibs__stock_row *a = left, *b = right;
  return dibs__str_before(a->key, b->key) ? -1 : dibs__str_before(b->key, a->key);
}

static void stock_list(const struct dibs__memory *m, stock_op *op) {
  const struct dibs__list list = {.prefix = op->key, .after = op->claim};
  size_t count = 0, most = (size_t)op->amount;
  struct dibs__stock_row *rows = calloc(m->stocks.count + 1, sizeof *rows);
  op->op.status = DIBS_NO_MEMORY;
  if (!rows) return;
  for (struct dibs__map_node *link = NULL; (link = dibs__mem_next(&m->stocks, link));) {
    const stock_t *s = (const stock_t *)link;
    dibs__str key = dibs__str_of(s->key, s->len);
    if (dibs__list_has(&list, key)) rows[count++] = (struct dibs__stock_row){key, s->used, s->limit};
  }
  if (count) qsort(rows, count, sizeof *rows, compare_stock_rows);
  dibs__stock_list_answer(op, rows, count < most ? count : most);
  free(rows);
}

DIBS__MODULE_API void dibs__mem_stock(struct dibs__memory *m, stock_op *op, int64_t now) {
  op->got = 0;
  op->used = op->limit = -1;
  op->retries = op->deadlocks = 0;
  op->why[0] = '\0';
  op->op.status = op->table ? DIBS_UNSUPPORTED : DIBS_INVALID;
  if (op->op.verb == DIBS__STOCK_LIST) {
    if (dibs__stock_list_valid(op)) stock_list(m, op);
    return;
  }
  if (op->table || !stock_valid(op)) return;
  stock_t *s = dibs__mem_stock_find(m, op->key);
  switch (op->op.verb) {
  case DIBS__STOCK_TAKE:
    op->op.status = stock_take(m, op, s, now);
    break;
  case DIBS__STOCK_GIVE:
    op->op.status = stock_give(m, op, s, now);
    break;
  case DIBS__STOCK_READ:
    op->op.status = s ? DIBS_OK : DIBS_NOT_FOUND;
    break;
  default:
    op->op.status = stock_set(m, op, &s);
  }
  if (!s) return;
  op->used = s->used;
  op->limit = s->limit;
}

/* ---- Reports ---- */

typedef struct dibs__mem_report report;

static uint64_t hash_of(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

static report *find_report(const struct dibs__memory *m, const dibs__id *id) {
  struct dibs__map_node *link = dibs__map_head(&m->reports, hash_of(id));
  while (link && memcmp(((report *)link)->id.b, id->b, sizeof id->b) != 0) link = link->next;
  return (report *)link;
}

static void drop_report(struct dibs__memory *m, report *r) {
  if (!r) return;
  dibs__map_remove(&m->reports, &r->link);
  free(r);
}

void dibs__mem_reports_forget(struct dibs__memory *m, int64_t now, int64_t keep_ms) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->reports, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->reports, node);
    if (now - ((report *)node)->seen > keep_ms) drop_report(m, (report *)node);
  }
}

static bool put_report(struct dibs__memory *m, const struct dibs__report_op *op, int64_t now) {
  report *r = find_report(m, &op->id);
  if (!r) {
    r = calloc(1, sizeof *r);
    if (!r) return false;
    r->id = op->id;
    dibs__map_add(&m->reports, &r->link, hash_of(&op->id));
  }
  r->seen = now;
  r->len = op->data.len;
  if (r->len) memcpy(r->data, op->data.p, r->len);
  return true;
}

static bool report_hand_out(const struct dibs__memory *m, struct dibs__report_op *op, int64_t now) {
  size_t count = 0, bytes = 0;
  const struct dibs__map_node *node = NULL;
  while ((node = dibs__mem_next(&m->reports, node)) && count < DIBS__REPORTS_MAX) {
    if (now - ((const report *)node)->seen > op->keep_ms) continue;
    count++;
    bytes += ((const report *)node)->len;
  }
  if (count == 0) return true;
  op->got = malloc(count * sizeof *op->got + bytes);
  if (!op->got) return false;
  char *at = (char *)(op->got + count);
  for (node = NULL; op->got_count < count;) {
    node = dibs__mem_next(&m->reports, node);
    const report *r = (const report *)node;
    if (now - r->seen > op->keep_ms) continue;
    memcpy(at, r->data, r->len);
    op->got[op->got_count++] =
        (struct dibs__report){.id = r->id, .age_ms = now - r->seen, .data = dibs__str_of(at, r->len)};
    at += r->len;
  }
  return true;
}

void dibs__mem_report(struct dibs__memory *m, struct dibs__report_op *op, int64_t now) {
  bool puts = op->op.verb == DIBS__REPORT_PUT, drops = op->op.verb == DIBS__REPORT_DROP;
  op->got = NULL;
  op->got_count = 0;
  op->op.status = DIBS_INVALID;
  if (op->op.verb > DIBS__REPORT_DROP || (!drops && op->keep_ms <= 0) || (puts && op->data.len > DIBS__REPORT_MAX))
    return;
  bool enough = true;
  if (drops) drop_report(m, find_report(m, &op->id));
  if (puts) dibs__mem_reports_forget(m, now, op->keep_ms);
  if (puts) enough = put_report(m, op, now);
  if (!drops && (!puts || op->want)) enough = enough && report_hand_out(m, op, now);
  op->op.status = enough ? DIBS_OK : DIBS_NO_MEMORY;
}
