/* SPDX-License-Identifier: MIT */
/*
 * The claims of stocks.  Only the document of a stock decides; what a claim needs beyond it is in a document of its
 * own:
 *
 *   claims  {_id: CLAIM, v, stock, state, amount, at, delete_at}
 *
 * A claim belongs to one stock (R25).  So before a stock's document gets a claim inside, the claim is BOUND to this
 * stock: its document names it.  A claim that is bound and not inside has taken nothing.
 *
 * A stock with more than a hundred claims (claims=N) moves them out in two steps: their documents are set to HELD or
 * GIVEN, and the next replacement of the stock's document leaves them out.  While a claim is inside, only what is
 * inside counts; else its own document counts.  Giving back what was moved out puts the claim inside again, given, with
 * the new `used` in the same replacement; later it is moved out as GIVEN.
 *
 * Why a client may be killed, or stopped for any time, between any two steps:
 *
 *  - Binding, then the stock.  The stock's document is read first (version v), the claim's binding is verified after
 *    that, and the replacement requires v.  A client that binds the claim to another stock first marks it VOID, and
 * then gives the old stock's document a new version, unless that has the claim inside (rebind).  A client that verified
 *    the binding before the mark has read a version before that one, so its replacement fails.
 *  - Moving out.  Documents of claims only go from BOUND to HELD to GIVEN, so a copy that arrives late changes nothing
 *    that is newer; and a replacement that leaves claims out fails if the stock has changed since they were copied.
 *  - Giving back a claim that was moved out.  Its document is read after the stock's (version v), in which it is not
 *    inside.  Copies are complete before a version without the claim exists, so what was read holds for v.
 *  - Removing a binding that was not needed requires the version with which this very client made it.  A client that
 *    finds the binding of another one gives it a version of its own first (adopt), and never removes it: the other one
 *    may have verified it, and put the claim inside.
 *  - Binding again, adopting and marking require that the claim was not moved out meanwhile: a claim that is HELD would
 *    be bound, and taken, a second time.
 */
#include "drivers/mongodb/batch_impl.h"

#include <stdlib.h>
#include <string.h>

enum { TRIES = 100 };

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_element element;
typedef struct dibs__mongo_document document;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

static const struct dibs__stock_op *op_of(const element *e) {
  return (const struct dibs__stock_op *)e->asked;
}

static bool is_open(const element *e) {
  return e->d && !e->done && e->d->kind == DIBS__MONGO_STOCK;
}

static bool has_claim(const element *e) {
  return is_open(e) && op_of(e)->op.verb <= DIBS__STOCK_GIVE && op_of(e)->claim.len > 0;
}

static int64_t draw_version(void) {
  int64_t version;
  do dibs__random(&version, sizeof version);
  while (version == 0);
  return version;
}

/* ---- What is known, in the scratch memory ---- */

dibs__status dibs__mongo_claims_load(batch *b, const document *d) {
  static const struct dibs__mem_stock another;
  const struct dibs__mem_stock *s = dibs__mem_stock_find(b->memory, dibs__str_of(d->key, d->key_len));
  for (size_t i = 0; i < b->count; i++) {
    const element *e = &b->elements[i];
    if (e->d != d || !has_claim(e) || e->known < DIBS__MONGO_HELD) continue;
    if (dibs__mem_taken_find(b->memory, op_of(e)->claim)) continue;
    struct dibs__mem_taken *t =
        dibs__mem_taken_add(b->memory, op_of(e)->claim, e->known == DIBS__MONGO_ELSEWHERE ? &another : s, e->at);
    if (!t) return DIBS_NO_MEMORY;
    t->amount = e->amount;
    t->given = t->was_given = e->known == DIBS__MONGO_GIVEN;
    t->elsewhere = true;
  }
  return DIBS_OK;
}

/* Decides the document's operations by what is known, to see which claims they add, and which they look for. */
static void foresee(batch *b, document *d) {
  bool fine = dibs__mongo_decode(b->memory, d) == DIBS_OK && dibs__mongo_claims_load(b, d) == DIBS_OK;
  for (size_t i = 0; i < b->count && fine; i++) {
    element *e = &b->elements[i];
    if (e->d != d || e->done || !e->asked) continue;
    struct dibs__stock_op op = *op_of(e);
    bool there = has_claim(e) && dibs__mem_taken_find(b->memory, op.claim);
    dibs__mem_stock(b->memory, &op, b->now);
    e->adds = e->wanted = false;
    if (!has_claim(e) || there || op.op.status == DIBS_INVALID) continue;
    e->adds = dibs__mem_taken_find(b->memory, op.claim) != NULL;
    e->wanted = e->known == DIBS__MONGO_UNREAD || (e->known == DIBS__MONGO_FREE && e->adds);
  }
  dibs__mem_scratch_empty(b->memory);
}

/* ---- Documents of claims ---- */

/* {update: claims, updates: [{q, u}]}; destroys both.  `done`: it found the document. */
static dibs__status update_claim(batch *b, bson_t *q, bson_t *u, bool *done) {
  bson_t command = BSON_INITIALIZER, list, one, reply;
  bson_iter_t at;
  BSON_APPEND_UTF8(&command, "update", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_CLAIM]));
  BSON_APPEND_ARRAY_BEGIN(&command, "updates", &list);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
  BSON_APPEND_DOCUMENT(&one, "q", q);
  BSON_APPEND_DOCUMENT(&one, "u", u);
  bson_append_document_end(&list, &one);
  bson_append_array_end(&command, &list);
  dibs__status status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
  *done = status == DIBS_OK && bson_iter_init_find(&at, &reply, "n") && bson_iter_as_int64(&at) == 1;
  bson_destroy(&reply);
  bson_destroy(&command);
  bson_destroy(q);
  bson_destroy(u);
  return status;
}

/* Changes its state, if it has this version and was not moved out (which keeps the version); `stock` may be empty: it
 * stays. */
static dibs__status change_claim(batch *b, dibs__str claim, int64_t version, int64_t to_version, const char *state,
                                 dibs__str stock, bool *done) {
  bson_t *q = bson_new(), *u = bson_new(), set, in, states;
  bson_append_utf8(q, "_id", -1, claim.p, (int)claim.len);
  BSON_APPEND_INT64(q, "v", version);
  BSON_APPEND_DOCUMENT_BEGIN(q, "state", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &states);
  BSON_APPEND_UTF8(&states, "0", "bound");
  BSON_APPEND_UTF8(&states, "1", "void");
  bson_append_array_end(&in, &states);
  bson_append_document_end(q, &in);
  BSON_APPEND_DOCUMENT_BEGIN(u, "$set", &set);
  BSON_APPEND_UTF8(&set, "state", state);
  BSON_APPEND_INT64(&set, "v", to_version);
  if (stock.len) bson_append_utf8(&set, "stock", -1, stock.p, (int)stock.len);
  bson_append_document_end(u, &set);
  return update_claim(b, q, u, done);
}

/* A claim that is wanted, of the first element that wants it from this stock. */
static bool is_first_wanted(const batch *b, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (b->elements[k].wanted && b->elements[k].d == b->elements[i].d &&
        dibs__str_equal(op_of(&b->elements[k])->claim, op_of(&b->elements[i])->claim))
      return false;
  return true;
}

static bool wants_insert(const batch *b, size_t i) {
  const element *e = &b->elements[i];
  return e->wanted && e->adds && e->bound_v == 0 && is_first_wanted(b, i);
}

static bool put_binding(bson_t *documents, uint32_t nth, const element *e) {
  bson_t one;
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  return bson_append_document_begin(documents, at, -1, &one) &&
         bson_append_utf8(&one, "_id", -1, op_of(e)->claim.p, (int)op_of(e)->claim.len) &&
         BSON_APPEND_INT64(&one, "v", e->bound_v) &&
         bson_append_utf8(&one, "stock", -1, e->d->key, (int)e->d->key_len) &&
         BSON_APPEND_UTF8(&one, "state", "bound") && bson_append_document_end(documents, &one);
}

/* Which of the documents were not inserted, because there is one? */
static void note_refused(batch *b, const bson_t *reply, const uint32_t *which, uint32_t count) {
  bson_iter_t at, in, of;
  if (!bson_iter_init_find(&at, reply, "writeErrors") || !bson_iter_recurse(&at, &in)) return;
  while (bson_iter_next(&in)) {
    if (!bson_iter_recurse(&in, &of) || !bson_iter_find(&of, "index")) continue;
    int64_t index = bson_iter_as_int64(&of);
    if (index >= 0 && index < count) b->elements[which[index]].bound_v = 0;
  }
}

/* Binds the claims that nobody seems to have.  Those that were bound are not wanted any more. */
static dibs__status insert_claims(batch *b) {
  bson_t command = BSON_INITIALIZER, list, reply;
  uint32_t which[DIBS__MONGO_BATCH], count = 0;
  BSON_APPEND_UTF8(&command, "insert", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_CLAIM]));
  BSON_APPEND_BOOL(&command, "ordered", false);
  BSON_APPEND_ARRAY_BEGIN(&command, "documents", &list);
  bool fine = true;
  for (size_t i = 0; i < b->count && fine; i++) {
    if (!wants_insert(b, i)) continue;
    b->elements[i].bound_v = draw_version();
    b->elements[i].adopted = false;
    fine = put_binding(&list, count, &b->elements[i]);
    which[count++] = (uint32_t)i;
  }
  bson_append_array_end(&command, &list);
  dibs__status status = DIBS_OK;
  if (count > 0) {
    status = fine ? dibs__mongo_write(link_of(b), &command, &reply, b->result) : DIBS_NO_MEMORY;
    if (!fine) bson_init(&reply);
    if (status == DIBS_OK) note_refused(b, &reply, which, count);
    for (uint32_t i = 0; i < count && status == DIBS_OK; i++) {
      element *e = &b->elements[which[i]];
      if (e->bound_v == 0) continue;
      e->known = DIBS__MONGO_BOUND;
      e->wanted = false;
    }
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status;
}

/* ---- What the document of a claim says ---- */

struct looking {
  batch *b;
  bson_t *rows[DIBS__MONGO_BATCH]; /* of each element */
};

static bool see_claim(void *user, const bson_t *row) {
  struct looking *l = user;
  dibs__str claim = dibs__mongo_bytes_in(row, "_id");
  for (size_t i = 0; i < l->b->count; i++)
    if (l->b->elements[i].wanted && !l->rows[i] && dibs__str_equal(op_of(&l->b->elements[i])->claim, claim))
      l->rows[i] = bson_copy(row);
  return true;
}

struct inside {
  const char *key;
  dibs__str claim;
  bool there, has; /* the document; it has the claim inside */
  int64_t version;
};

static bool see_stock(void *user, const bson_t *row) {
  struct inside *s = user;
  bson_iter_t at, in, of;
  s->there = true;
  s->version = dibs__mongo_number_in(row, "v", 0);
  if (!bson_iter_init_find(&at, row, "claims") || !bson_iter_recurse(&at, &in)) return false;
  while (!s->has && bson_iter_next(&in)) {
    uint32_t len = 0;
    if (!bson_iter_recurse(&in, &of) || !bson_iter_find(&of, "claim") || !BSON_ITER_HOLDS_UTF8(&of)) continue;
    const char *text = bson_iter_utf8(&of, &len);
    s->has = dibs__str_equal(dibs__str_of(text, len), s->claim);
  }
  return false;
}

static dibs__status look_at_stock(batch *b, dibs__str key, struct inside *s) {
  bson_t filter = BSON_INITIALIZER;
  bson_append_utf8(&filter, "_id", -1, key.p, (int)key.len);
  s->there = s->has = false;
  dibs__status status = dibs__mongo_find(link_of(b), DIBS__MONGO_STOCK, &filter, 1, false, see_stock, s, b->result);
  bson_destroy(&filter);
  return status;
}

/* Gives the document of a stock another version, and makes one if there is none: no client that has read it before can
 * replace it, or make one. */
static dibs__status touch_stock(batch *b, dibs__str key, const struct inside *s, bool *done) {
  const char *name = mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_STOCK]);
  bson_t command = BSON_INITIALIZER, list, one, part, in, reply;
  bson_iter_t at;
  BSON_APPEND_UTF8(&command, s->there ? "update" : "insert", name);
  BSON_APPEND_ARRAY_BEGIN(&command, s->there ? "updates" : "documents", &list);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
  if (s->there) {
    BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &part);
    bson_append_utf8(&part, "_id", -1, key.p, (int)key.len);
    BSON_APPEND_INT64(&part, "v", s->version);
    bson_append_document_end(&one, &part);
    BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &part);
    BSON_APPEND_DOCUMENT_BEGIN(&part, "$set", &in);
    BSON_APPEND_INT64(&in, "v", draw_version());
    bson_append_document_end(&part, &in);
    bson_append_document_end(&one, &part);
  } else {
    bson_append_utf8(&one, "_id", -1, key.p, (int)key.len);
    BSON_APPEND_INT64(&one, "fence", 0);
    BSON_APPEND_INT64(&one, "v", draw_version());
  }
  bson_append_document_end(&list, &one);
  bson_append_array_end(&command, &list);
  dibs__status status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
  *done = status == DIBS_OK && bson_iter_init_find(&at, &reply, "n") && bson_iter_as_int64(&at) == 1;
  bson_destroy(&reply);
  bson_destroy(&command);
  return status;
}

/* The claim is bound to the stock `old`, which does not have it: binds it to the stock of `e`.  Without success it is
 * looked at again. */
static dibs__status rebind(batch *b, element *e, dibs__str old, int64_t version, struct inside *s) {
  dibs__str claim = op_of(e)->claim, key = dibs__str_of(e->d->key, e->d->key_len);
  int64_t marked = draw_version(), mine = draw_version();
  bool done = false;
  dibs__status status = change_claim(b, claim, version, marked, "void", (dibs__str){0}, &done);
  if (status != DIBS_OK || !done) return status;
  for (done = false; !done && status == DIBS_OK;) {
    if (!dibs__tick_before(dibs__tick_now(), link_of(b)->by)) return DIBS_UNAVAILABLE;
    status = look_at_stock(b, old, s);
    if (status != DIBS_OK) return status;
    if (s->has) return change_claim(b, claim, marked, mine, "bound", (dibs__str){0}, &done);
    status = touch_stock(b, old, s, &done);
  }
  if (status == DIBS_OK) status = change_claim(b, claim, marked, mine, "bound", key, &done);
  if (status != DIBS_OK || !done) return status;
  e->known = DIBS__MONGO_BOUND;
  e->bound_v = mine;
  return DIBS_OK;
}

/* It is bound to another stock, or was. */
static dibs__status look_elsewhere(batch *b, element *e, dibs__str stock, int64_t version) {
  struct inside s = {.claim = op_of(e)->claim};
  dibs__status status = look_at_stock(b, stock, &s);
  if (status != DIBS_OK) return status;
  e->known = s.has ? DIBS__MONGO_ELSEWHERE : DIBS__MONGO_FREE;
  if (s.has || !e->adds) return DIBS_OK;
  e->known = DIBS__MONGO_UNREAD;
  /* An operation of this batch may be about to take this very claim from that stock: it is first. */
  for (size_t i = 0; i < b->count; i++) {
    const element *other = &b->elements[i];
    if (has_claim(other) && other->d != e->d && !other->d->deferred && other->adds &&
        dibs__str_equal(op_of(other)->claim, op_of(e)->claim) &&
        dibs__str_equal(dibs__str_of(other->d->key, other->d->key_len), stock)) {
      e->d->deferred = true;
      return DIBS_OK;
    }
  }
  return rebind(b, e, stock, version, &s);
}

static dibs__status interpret(batch *b, element *e, const bson_t *row) {
  dibs__str state = dibs__mongo_bytes_in(row, "state"), stock = dibs__mongo_bytes_in(row, "stock");
  int64_t version = dibs__mongo_number_in(row, "v", 0);
  bool here = dibs__str_equal(stock, dibs__str_of(e->d->key, e->d->key_len));
  bool bound = dibs__str_equal(state, dibs__str_of("bound", 5)),
       is_void = dibs__str_equal(state, dibs__str_of("void", 4));
  if (!bound && !is_void) {
    bool given = dibs__str_equal(state, dibs__str_of("given", 5));
    e->known = !here ? DIBS__MONGO_ELSEWHERE : given ? DIBS__MONGO_GIVEN : DIBS__MONGO_HELD;
    e->amount = dibs__mongo_number_in(row, "amount", 0);
    e->at = dibs__mongo_number_in(row, "at", 0);
    return DIBS_OK;
  }
  if (!here) return look_elsewhere(b, e, stock, version);
  e->known = DIBS__MONGO_FREE;
  if (bound && version == e->bound_v) e->known = DIBS__MONGO_BOUND;
  if (e->known == DIBS__MONGO_BOUND || !e->adds) return DIBS_OK;
  /* Adopt it. */
  int64_t mine = draw_version();
  bool done = false;
  dibs__status status = change_claim(b, op_of(e)->claim, version, mine, "bound", (dibs__str){0}, &done);
  e->known = done ? DIBS__MONGO_BOUND : DIBS__MONGO_UNREAD;
  if (done) e->bound_v = mine;
  e->adopted = e->adopted || done;
  return status;
}

static bool put_wanted(const batch *b, bson_t *filter) {
  bson_t in, keys;
  uint32_t count = 0;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  for (size_t i = 0; i < b->count; i++) {
    char index[12];
    const char *at;
    if (!b->elements[i].wanted || !is_first_wanted(b, i)) continue;
    bson_uint32_to_string(count++, &at, index, sizeof index);
    bson_append_utf8(&keys, at, -1, op_of(&b->elements[i])->claim.p, (int)op_of(&b->elements[i])->claim.len);
  }
  bson_append_array_end(&in, &keys);
  bson_append_document_end(filter, &in);
  return count > 0;
}

static dibs__status read_claims(batch *b) {
  struct looking l = {.b = b};
  bson_t filter = BSON_INITIALIZER;
  dibs__status status = DIBS_OK;
  if (put_wanted(b, &filter)) {
    status = dibs__mongo_find(link_of(b), DIBS__MONGO_CLAIM, &filter, 0, false, see_claim, &l, b->result);
    for (size_t i = 0; i < b->count && status == DIBS_OK; i++) {
      element *e = &b->elements[i];
      if (!e->wanted) continue;
      e->wanted = false;
      e->known = DIBS__MONGO_FREE;
      if (l.rows[i])
        status = interpret(b, e, l.rows[i]);
      else
        e->bound_v = 0; /* removed meanwhile */
    }
    for (size_t i = 0; i < b->count; i++) bson_destroy(l.rows[i]);
  }
  bson_destroy(&filter);
  return status;
}

/* ---- Moving out ---- */

/* How many of its claims `seen` has inside. */
static uint32_t count_inside(const document *d) {
  bson_iter_t at, in;
  uint32_t count = 0;
  if (!d->seen || !bson_iter_init_find(&at, d->seen, "claims") || !bson_iter_recurse(&at, &in)) return 0;
  while (bson_iter_next(&in)) count++;
  return count;
}

/* {q: {_id, stock, state: {$in: [...]}}, u: {$set: {state, amount, at, delete_at}}, upsert: true}
 * A claim that is VOID and inside was marked by a client that has died since, or will find it inside. */
static bool put_copy(bson_t *updates, uint32_t nth, const document *d, const struct dibs__mem_taken *t) {
  bson_t one, q, u, part, states;
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  bool fine = bson_append_document_begin(updates, at, -1, &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
              bson_append_utf8(&q, "_id", -1, t->claim, (int)t->len) &&
              bson_append_utf8(&q, "stock", -1, d->key, (int)d->key_len) &&
              BSON_APPEND_DOCUMENT_BEGIN(&q, "state", &part) && BSON_APPEND_ARRAY_BEGIN(&part, "$in", &states) &&
              BSON_APPEND_UTF8(&states, "0", "bound") && BSON_APPEND_UTF8(&states, "1", "held") &&
              BSON_APPEND_UTF8(&states, "2", "void");
  if (t->given) fine = fine && BSON_APPEND_UTF8(&states, "3", "given");
  fine = fine && bson_append_array_end(&part, &states) && bson_append_document_end(&q, &part) &&
         bson_append_document_end(&one, &q) && BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &u) &&
         BSON_APPEND_DOCUMENT_BEGIN(&u, "$set", &part) &&
         BSON_APPEND_UTF8(&part, "state", t->given ? "given" : "held") &&
         BSON_APPEND_INT64(&part, "amount", t->amount) && BSON_APPEND_INT64(&part, "at", t->at);
  if (t->given) fine = fine && BSON_APPEND_DATE_TIME(&part, "delete_at", t->at + DIBS__MEM_TAKEN_KEEP_MS);
  return fine && bson_append_document_end(&u, &part) && bson_append_document_end(&one, &u) &&
         BSON_APPEND_BOOL(&one, "upsert", true) && bson_append_document_end(updates, &one);
}

/* Copies the claims that `seen` has inside to their own documents.  If that is not possible, they stay for now. */
static dibs__status copy_claims(batch *b, document *d) {
  bson_t command = BSON_INITIALIZER, list, reply;
  bson_iter_t at;
  uint32_t count = 0;
  BSON_APPEND_UTF8(&command, "update", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_CLAIM]));
  BSON_APPEND_BOOL(&command, "ordered", false);
  BSON_APPEND_ARRAY_BEGIN(&command, "updates", &list);
  bool fine = dibs__mongo_decode(b->memory, d) == DIBS_OK;
  for (const struct dibs__map_node *node = NULL; fine && (node = dibs__mem_next(&b->memory->taken, node));)
    fine = put_copy(&list, count++, d, (const struct dibs__mem_taken *)node);
  dibs__mem_scratch_empty(b->memory);
  bson_append_array_end(&command, &list);
  dibs__status status = DIBS_OK;
  if (fine && count > 0) {
    status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
    d->moves = status == DIBS_OK && bson_iter_init_find(&at, &reply, "n") && bson_iter_as_int64(&at) == count;
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status;
}

/* ---- A round ---- */

static bool any_wanted(const batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->elements[i].wanted) return true;
  return false;
}

dibs__status dibs__mongo_claims_bind(batch *b) {
  dibs__status status = DIBS_OK;
  for (size_t i = 0; i < b->count; i++) {
    element *e = &b->elements[i];
    e->known = DIBS__MONGO_UNREAD;
    e->wanted = e->adds = false;
    if (e->d) e->d->deferred = e->d->moves = false;
  }
  for (int tries = 0; status == DIBS_OK; tries++) {
    for (size_t i = 0; i < b->count; i++)
      if (is_open(&b->elements[i]) && dibs__mongo_is_first(b, i) && !b->elements[i].d->deferred)
        foresee(b, b->elements[i].d);
    if (!any_wanted(b)) break;
    if (tries == TRIES || !dibs__tick_before(dibs__tick_now(), link_of(b)->by)) return DIBS_UNAVAILABLE;
    status = insert_claims(b);
    if (status == DIBS_OK) status = read_claims(b);
  }
  for (size_t i = 0; i < b->count && status == DIBS_OK; i++)
    if (is_open(&b->elements[i]) && dibs__mongo_is_first(b, i) && !b->elements[i].d->reads_only &&
        count_inside(b->elements[i].d) > link_of(b)->location->claims)
      status = copy_claims(b, b->elements[i].d);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status; /* none of these steps has taken or given anything */
}

/* ---- Afterwards ---- */

/* {delete: claims, deletes: [{q: {_id, v, state: "bound"}, limit: 1}]} */
static void clean(batch *b) {
  bson_t command = BSON_INITIALIZER, list, one, q, reply;
  uint32_t count = 0;
  BSON_APPEND_UTF8(&command, "delete", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_CLAIM]));
  BSON_APPEND_BOOL(&command, "ordered", false);
  BSON_APPEND_ARRAY_BEGIN(&command, "deletes", &list);
  for (size_t i = 0; i < b->count; i++) {
    const element *e = &b->elements[i];
    bool refused = e->op->status == DIBS_FULL || e->op->status == DIBS_STALE || e->op->status == DIBS_CONFLICT;
    char index[12];
    const char *at;
    if (e->bound_v == 0 || e->adopted || !refused) continue;
    bson_uint32_to_string(count++, &at, index, sizeof index);
    bson_append_document_begin(&list, at, -1, &one);
    BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q);
    bson_append_utf8(&q, "_id", -1, op_of(e)->claim.p, (int)op_of(e)->claim.len);
    BSON_APPEND_INT64(&q, "v", e->bound_v);
    BSON_APPEND_UTF8(&q, "state", "bound");
    bson_append_document_end(&one, &q);
    BSON_APPEND_INT32(&one, "limit", 1);
    bson_append_document_end(&list, &one);
  }
  bson_append_array_end(&command, &list);
  if (count > 0) {
    mongoc_client_write_command_with_opts(link_of(b)->client, link_of(b)->location->database, &command, NULL, &reply,
                                          NULL);
    bson_destroy(&reply);
  }
  bson_destroy(&command);
}

void dibs__mongo_claims_clean(batch *b) {
  bool sets = false;
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->elements[i].op;
    sets = sets || (op->family == DIBS__FAM_STOCK && op->verb == DIBS__STOCK_SET && op->status == DIBS_OK);
  }
  if (sets) dibs__mongo_index(b, DIBS__MONGO_CLAIM, "delete_at", true);
  clean(b);
}
