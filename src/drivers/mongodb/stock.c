/* SPDX-License-Identifier: MIT */
/*
 * The document of a stock, and listing:
 *
 *   stocks  {_id: KEY, v, fence, lease, used, limit, claims: [{claim, amount, at, given}]}
 *
 * Its latest claims are inside, the others in documents of their own: claim.c.  A document without `limit` is no stock
 * yet.
 */
#include "drivers/mongodb/batch_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CLAIM_MAX = 64 };

typedef struct dibs__mongo_document document;
typedef struct dibs__mem_taken taken_t;

/* ---- From a document, and to one ---- */

static bool decode_claim(struct dibs__memory *memory, const document *d, const struct dibs__mem_stock *stock,
                         const bson_t *from) {
  dibs__str claim = dibs__mongo_bytes_in(from, "claim");
  if (claim.len < 1 || claim.len > CLAIM_MAX || dibs__mem_taken_find(memory, claim)) return false;
  taken_t *t = dibs__mem_taken_add(memory, claim, stock, dibs__mongo_number_in(from, "at", 0));
  if (!t) return false;
  bson_iter_t at;
  t->amount = dibs__mongo_number_in(from, "amount", -1);
  if (t->amount < 0) return false;
  t->given = bson_iter_init_find(&at, from, "given") && bson_iter_as_bool(&at);
  t->elsewhere = d->moves;
  t->was_given = t->given;
  return true;
}

dibs__status dibs__mongo_stock_decode(struct dibs__memory *memory, const document *d) {
  bson_iter_t at, in;
  if (!bson_has_field(d->seen, "limit")) return DIBS_OK;
  struct dibs__mem_stock *s = dibs__mem_stock_add(memory, dibs__str_of(d->key, d->key_len));
  if (!s) return DIBS_NO_MEMORY;
  s->used = dibs__mongo_number_in(d->seen, "used", -1);
  s->limit = dibs__mongo_number_in(d->seen, "limit", -1);
  s->fence.v = (uint64_t)dibs__mongo_number_in(d->seen, "fence", 0);
  s->owner = (uint64_t)dibs__mongo_number_in(d->seen, "lease", 0);
  if (s->used < 0 || s->used > s->limit || s->fence.v > DIBS__FENCE_MAX) return DIBS_CORRUPT;
  if (!bson_iter_init_find(&at, d->seen, "claims") || !BSON_ITER_HOLDS_ARRAY(&at) || !bson_iter_recurse(&at, &in))
    return DIBS_CORRUPT;
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t one;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) return DIBS_CORRUPT;
    bson_iter_document(&in, &len, &bytes);
    if (!bson_init_static(&one, bytes, len) || !decode_claim(memory, d, s, &one)) return DIBS_CORRUPT;
  }
  return DIBS_OK;
}

/* What a claim elsewhere says stays there, until it is given back. */
static bool is_inside(const taken_t *t) {
  return !t->elsewhere || t->given != t->was_given;
}

static int compare_nth(const void *left, const void *right) {
  const taken_t *a = *(const taken_t *const *)left, *b = *(const taken_t *const *)right;
  return (a->nth > b->nth) - (a->nth < b->nth);
}

static bool encode_claims(bson_t *to, const struct dibs__memory *memory, const struct dibs__mem_stock *s) {
  const taken_t **inside = calloc(memory->taken.count + 1, sizeof *inside);
  uint32_t count = 0;
  bool fine = inside != NULL;
  for (const struct dibs__map_node *node = NULL; fine && (node = dibs__mem_next(&memory->taken, node));) {
    const taken_t *t = (const taken_t *)node;
    if (t->stock == s && is_inside(t)) inside[count++] = t;
  }
  if (count) qsort(inside, count, sizeof *inside, compare_nth);
  for (uint32_t i = 0; i < count && fine; i++) {
    char index[12];
    const char *key;
    bson_t one;
    bson_uint32_to_string(i, &key, index, sizeof index);
    fine = bson_append_document_begin(to, key, -1, &one) &&
           bson_append_utf8(&one, "claim", -1, inside[i]->claim, (int)inside[i]->len) &&
           BSON_APPEND_INT64(&one, "amount", inside[i]->amount) && BSON_APPEND_INT64(&one, "at", inside[i]->at) &&
           (!inside[i]->given || BSON_APPEND_BOOL(&one, "given", true)) && bson_append_document_end(to, &one);
  }
  free(inside);
  return fine;
}

bool dibs__mongo_stock_encode(bson_t *to, const struct dibs__memory *memory, const document *d) {
  const struct dibs__mem_stock *s = dibs__mem_stock_find(memory, dibs__str_of(d->key, d->key_len));
  bson_t claims;
  if (!s) return !d->seen || BSON_APPEND_INT64(to, "fence", 0);
  return BSON_APPEND_INT64(to, "fence", (int64_t)s->fence.v) && BSON_APPEND_INT64(to, "lease", (int64_t)s->owner) &&
         BSON_APPEND_INT64(to, "used", s->used) && BSON_APPEND_INT64(to, "limit", s->limit) &&
         BSON_APPEND_ARRAY_BEGIN(to, "claims", &claims) && encode_claims(&claims, memory, s) &&
         bson_append_array_end(to, &claims);
}

/* ---- Listing ---- */

bool dibs__mongo_stock_is_apart(struct dibs__stock_op *op) {
  if (op->op.verb == DIBS__STOCK_LIST) {
    op->op.status = dibs__stock_list_valid(op) ? DIBS_UNKNOWN : DIBS_INVALID;
    return true;
  }
  return op->table != NULL;
}

struct listing {
  char *keys; /* DIBS_NAME_MAX bytes for each row */
  struct dibs__list which;
  struct dibs__stock_row *rows;
  size_t count, most;
};

static bool list_row(void *user, const bson_t *from) {
  struct listing *l = user;
  dibs__str key = dibs__mongo_bytes_in(from, "_id");
  if (!dibs__list_has(&l->which, key)) return false; /* behind the last one with this prefix */
  if (key.len < 1 || key.len > DIBS_NAME_MAX || l->count == l->most) return true;
  char *copy = l->keys + l->count * DIBS_NAME_MAX;
  memcpy(copy, key.p, key.len);
  l->rows[l->count++] = (struct dibs__stock_row){.key = dibs__str_of(copy, key.len),
                                                 .used = dibs__mongo_number_in(from, "used", 0),
                                                 .limit = dibs__mongo_number_in(from, "limit", 0)};
  return true;
}

void dibs__mongo_put_range(bson_t *filter, dibs__str prefix, dibs__str after) {
  bson_t range;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &range);
  bson_append_utf8(&range, "$gte", -1, prefix.len ? prefix.p : "", (int)prefix.len);
  if (after.len) bson_append_utf8(&range, "$gt", -1, after.p, (int)after.len);
  bson_append_document_end(filter, &range);
}

bool dibs__mongo_is_text(dibs__str text) {
  return text.len == 0 || bson_utf8_validate(text.p, text.len, false);
}

static void list_stocks(struct dibs__mongo_batch *b, struct dibs__stock_op *op) {
  bson_t filter = BSON_INITIALIZER, part;
  struct listing l = {.which = {.prefix = op->key, .after = op->claim}, .most = (size_t)op->amount};
  l.rows = calloc(l.most, sizeof *l.rows);
  l.keys = malloc(l.most * DIBS_NAME_MAX);
  bool enough = l.rows && l.keys;
  op->op.status = DIBS_NO_MEMORY;
  dibs__status status = DIBS_OK;
  if (enough && dibs__mongo_is_text(op->key) && dibs__mongo_is_text(op->claim)) {
    dibs__mongo_put_range(&filter, op->key, op->claim);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "limit", &part);
    BSON_APPEND_BOOL(&part, "$exists", true);
    bson_append_document_end(&filter, &part);
    status = dibs__mongo_find(b->session->link, DIBS__MONGO_STOCK, &filter, op->amount, false, list_row, &l, b->result);
  }
  if (status != DIBS_OK)
    op->op.status = status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  else if (enough)
    dibs__stock_list_answer(op, l.rows, l.count);
  free(l.rows);
  free(l.keys);
  bson_destroy(&filter);
}

void dibs__mongo_stock_lists(struct dibs__mongo_batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__op *op = b->elements[i].op;
    if (op->family == DIBS__FAM_STOCK && op->verb == DIBS__STOCK_LIST && op->status == DIBS_UNKNOWN)
      list_stocks(b, (struct dibs__stock_op *)op);
  }
}
