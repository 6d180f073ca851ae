/* SPDX-License-Identifier: MIT */
/*
 * A batch: read the documents that are not remembered, decide every operation on a copy, replace what changed, and
 * repeat all of this for the documents that somebody else has replaced meanwhile.
 *
 * A lost answer is UNKNOWN for the operations on the documents of that command, and those are forgotten.
 */
#include "drivers/mongodb/batch_impl.h"
#include "drivers/mongodb/table_impl.h"
#include "store/counter.h"
#include "store/family.h"

#include <stdlib.h>
#include <string.h>

enum { REMEMBERED = 1024, LONG_BYTES = 16384, RETRY_MAX_MS = 20, SLEEPERS_MS = 10000 };
#define BASE_MS INT64_C(1767225600000) /* fences count from 2026 (R43) */

typedef struct dibs__mongo_document document;
typedef struct dibs__mongo_batch batch;

static struct dibs__mongo *store_of(const batch *b) {
  return (struct dibs__mongo *)b->session->base.store;
}
static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

/* ---- What the memory driver asks ---- */

static bool hook_alive(void *user, uint64_t session) {
  const batch *b = user;
  if (session == store_of(b)->session) return true;
  for (size_t i = 0; i < b->session_count; i++)
    if (b->sessions[i] == session) return b->alive[i];
  return true; /* not looked up: there were too many; an offer to a dead one expires */
}

static void hook_post(void *user, uint64_t session, const struct dibs__event *event) {
  batch *b = user;
  if (b->notice_count == DIBS__MONGO_NOTICES) return; /* events may be lost (R17) */
  b->notices[b->notice_count++] = (struct dibs__mongo_sent_notice){{session, *event}, b->deciding};
}

static bool hook_draw(void *user, uint32_t want, dibs__fence *first, uint32_t *block) {
  batch *b = user;
  document *d = b->deciding;
  uint64_t floor = ((uint64_t)dibs__mongo_epoch(link_of(b)) << 32) + (uint64_t)(b->now - BASE_MS) * 1024;
  uint64_t limit = floor + 1024 * 1000; /* R44 */
  uint64_t next = d->fence + 1 > floor ? d->fence + 1 : floor;
  if (next > DIBS__FENCE_MAX) return false;
  if (next + want > limit) want = next < limit ? (uint32_t)(limit - next) : 1;
  first->v = next;
  *block = want;
  d->fence = next + want - 1;
  return true;
}

/* ---- Documents ---- */

static void forget_document(document *d) {
  bson_destroy(d->seen);
  bson_destroy(d->made);
  d->seen = d->made = NULL;
  d->loaded = false;
}

static void forget_documents(batch *b) {
  for (size_t i = 0; i < DIBS__MONGO_HEADS; i++)
    while (b->heads[i]) {
      document *d = b->heads[i];
      b->heads[i] = d->next;
      forget_document(d);
      free(d);
    }
  b->remembered = 0;
}

static document *find_document(batch *b, enum dibs__mongo_kind kind, dibs__str key, bool add) {
  document **head = &b->heads[(dibs__hash(key.p, key.len) + kind) % DIBS__MONGO_HEADS];
  for (document *d = *head; d; d = d->next)
    if (d->kind == kind && dibs__str_equal(dibs__str_of(d->key, d->key_len), key)) return d;
  document *d = add ? calloc(1, sizeof *d + key.len + 1) : NULL;
  if (!d) return NULL;
  d->kind = kind;
  d->key_len = key.len;
  memcpy(d->key, key.p, key.len);
  d->next = *head;
  *head = d;
  b->remembered++;
  return d;
}

static void see_document(document *d, const bson_t *row) {
  bson_iter_t at;
  bson_destroy(d->seen);
  d->seen = row ? bson_copy(row) : NULL;
  d->version = row && bson_iter_init_find(&at, row, "v") ? bson_iter_as_int64(&at) : 0;
  d->loaded = d->fresh = true;
}

struct loading {
  batch *b;
  enum dibs__mongo_kind kind;
};

static bool see_row(void *user, const bson_t *row) {
  const struct loading *l = user;
  bson_iter_t at;
  uint32_t len;
  if (!bson_iter_init_find(&at, row, "_id") || !BSON_ITER_HOLDS_UTF8(&at)) return true;
  const char *key = bson_iter_utf8(&at, &len);
  document *d = find_document(l->b, l->kind, dibs__str_of(key, len), false);
  if (d) see_document(d, row);
  return true;
}

/* The filter {_id: {$in: [...]}} of those documents of a kind that `wanted` accepts; how many. */
static size_t put_keys(const batch *b, enum dibs__mongo_kind kind, bool (*wanted)(const document *), bson_t *filter) {
  bson_t in, keys;
  size_t count = 0;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  for (size_t i = 0; i < b->count; i++) {
    const document *d = b->elements[i].d;
    char index[12];
    const char *at;
    if (!d || d->kind != kind || b->elements[i].done || !wanted(d)) continue;
    bson_uint32_to_string((uint32_t)count++, &at, index, sizeof index);
    bson_append_utf8(&keys, at, -1, d->key, (int)d->key_len);
  }
  bson_append_array_end(&in, &keys);
  bson_append_document_end(filter, &in);
  return count;
}

static bool wants_load(const document *d) {
  return !d->loaded;
}

static dibs__status load_documents(batch *b) {
  dibs__status status = DIBS_OK;
  for (enum dibs__mongo_kind kind = 0; kind < DIBS__MONGO_DOCUMENTS && status == DIBS_OK; kind++) {
    bson_t filter = BSON_INITIALIZER;
    bool reads = true;
    for (size_t i = 0; i < b->count; i++)
      if (b->elements[i].d && b->elements[i].d->kind == kind && !b->elements[i].done)
        reads = reads && b->elements[i].d->reads_only;
    if (put_keys(b, kind, wants_load, &filter) > 0) {
      struct loading l = {b, kind};
      status = dibs__mongo_find(link_of(b), kind, &filter, 0, reads, see_row, &l, b->result);
      for (size_t i = 0; i < b->count && status == DIBS_OK; i++) {
        document *d = b->elements[i].d;
        if (d && d->kind == kind && !d->loaded) see_document(d, NULL); /* there is none */
      }
    }
    bson_destroy(&filter);
  }
  return status;
}

/* ---- Deciding ---- */

/* Is this the first element with its document? */
bool dibs__mongo_is_first(const batch *b, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (b->elements[k].d == b->elements[i].d && !b->elements[k].done) return false;
  return true;
}

static void note_row(const batch *b, const struct dibs__mem_row *row, uint64_t sessions[DIBS__MONGO_SESSIONS],
                     size_t *count) {
  for (const struct dibs__mem_claim *c = row->first; c; c = c->after) {
    size_t i = 0;
    while (i < *count && sessions[i] != c->session) i++;
    bool is_new = i == *count && c->session != store_of(b)->session;
    if (is_new && *count < DIBS__MONGO_SESSIONS) sessions[(*count)++] = c->session;
  }
}

/* A waiter that did not confirm its offer sleeps until it requests again; if its process was killed, it never will. */
static dibs__status learn_sleepers(batch *b) {
  bool there[DIBS__MONGO_SESSIONS];
  size_t gone = 0;
  if (b->sleeper_count == 0 || dibs__tick_before(dibs__tick_now(), b->sleepers_at)) {
    b->sleeper_count = 0;
    return DIBS_OK;
  }
  b->sleepers_at = dibs__tick_add_ms(dibs__tick_now(), SLEEPERS_MS);
  dibs__status status = dibs__mongo_there(link_of(b), b->sleepers, there, b->sleeper_count, b->result);
  for (size_t i = 0; i < b->sleeper_count && status == DIBS_OK; i++)
    if (!there[i]) b->sleepers[gone++] = b->sleepers[i];
  b->sleeper_count = gone;
  return status;
}

/* Looks up the processes of the waiters that the documents have. */
static dibs__status learn_sessions(batch *b) {
  b->session_count = b->sleeper_count = 0;
  for (size_t i = 0; i < b->count; i++) {
    document *d = b->elements[i].d;
    if (!d || b->elements[i].done || d->kind != DIBS__MONGO_LEASE || !d->seen || !dibs__mongo_is_first(b, i)) continue;
    if (dibs__mongo_decode(b->memory, d) == DIBS_OK) {
      const struct dibs__mem_name *name = dibs__mem_name_find(b->memory, dibs__str_of(d->key, d->key_len));
      if (name) note_row(b, &name->waiting, b->sessions, &b->session_count);
      if (name) note_row(b, &name->asleep, b->sleepers, &b->sleeper_count);
    }
    dibs__mem_scratch_empty(b->memory);
  }
  dibs__status status = learn_sleepers(b);
  if (b->session_count == 0 || status != DIBS_OK) return status;
  return dibs__mongo_alive(link_of(b), b->sessions, b->alive, b->session_count, b->result);
}

static int64_t latest_over(const struct dibs__mem_row *row, int64_t now, int64_t latest) {
  for (const struct dibs__mem_claim *c = row->first; c; c = c->after)
    if (c->until <= now && c->until > latest) latest = c->until;
  return latest;
}

/* The latest end that counts as over at `now`; INT64_MIN: none. */
static int64_t over_at(batch *b, const document *d, int64_t now) {
  dibs__str key = dibs__str_of(d->key, d->key_len);
  if (d->kind == DIBS__MONGO_LEASE) {
    const struct dibs__mem_name *name = dibs__mem_name_find(b->memory, key);
    return name ? latest_over(&name->offered, now, latest_over(&name->holders, now, INT64_MIN)) : INT64_MIN;
  }
  const struct dibs__mem_once *o = d->kind == DIBS__MONGO_ONCE ? dibs__mem_once_find(b->memory, key) : NULL;
  return o && o->until <= now ? o->until : INT64_MIN;
}

/* Waits the few ms in which it is not certain whether something is over, so that nothing ends early (R8).  (After a
 * slow answer the bounds of the clock are far apart.) */
static dibs__status settle_clock(batch *b, document *d) {
  int64_t over = over_at(b, d, b->now);
  while (over > dibs__mongo_earliest(link_of(b))) {
    if (!dibs__tick_before(dibs__tick_now(), link_of(b)->by)) return DIBS_UNAVAILABLE;
    dibs__nap_ms(1);
    b->now = dibs__mongo_latest(link_of(b));
    over = over_at(b, d, b->now);
  }
  if (over > d->expired) d->expired = over;
  return DIBS_OK;
}

/* The earliest instant, in ms, at which the bucket can have had what the takes of this batch took; INT64_MIN: there are
 * none. */
static int64_t taken_from(const batch *b, const document *d) {
  const struct dibs__mem_rate *r = dibs__mem_rate_find(b->memory, dibs__str_of(d->key, d->key_len));
  int64_t from = INT64_MIN;
  for (size_t i = 0; i < b->count && r; i++) {
    const struct dibs__mongo_element *e = &b->elements[i];
    if (e->d != d || e->done || e->op->verb != DIBS__COUNTER_TAKE || e->op->status != DIBS_OK) continue;
    int64_t ns = r->full_ns - dibs__rate_span_ns((const struct dibs__counter_op *)e->op);
    int64_t ms = (ns + DIBS__NS_PER_MS - 1) / DIBS__NS_PER_MS;
    if (ms > from) from = ms;
  }
  return from;
}

/* A take takes effect when the server's clock has reached the instant from which the bucket has its tokens.  Otherwise
 * a client with an earlier clock would find the bucket emptier than it can be, and correct that; then another one with
 * a later clock could take the difference, again and again (R93).  A bucket that is far from empty needs no wait. */
static dibs__status settle_take(batch *b, document *d) {
  int64_t from = taken_from(b, d);
  while (from > dibs__mongo_earliest(link_of(b))) {
    if (!dibs__tick_before(dibs__tick_now(), link_of(b)->by)) return DIBS_UNAVAILABLE;
    dibs__nap_ms(1);
  }
  if (from > d->expired) d->expired = from;
  return DIBS_OK;
}

static void call_memory(batch *b, struct dibs__op *op) {
  document *d = b->deciding;
  struct dibs__mem_bucket *bucket = &b->memory->buckets[op->bucket];
  switch (op->family) {
  case DIBS__FAM_LEASE:
    if (op->bucket < DIBS__BUCKETS)
      *bucket = (struct dibs__mem_bucket){.mandate = dibs__mongo_mandate(link_of(b)), .seq = 1};
    b->memory->last_ticket = d->tickets;
    dibs__mem_lease(b->memory, &b->from, (struct dibs__lease_op *)op, b->now);
    d->tickets = b->memory->last_ticket;
    return;
  case DIBS__FAM_RECORD:
    dibs__mem_record(b->memory, (struct dibs__record_op *)op);
    return;
  case DIBS__FAM_STOCK:
    dibs__mem_stock(b->memory, (struct dibs__stock_op *)op, b->now);
    return;
  case DIBS__FAM_COUNTER:
    dibs__mem_counter(b->memory, (struct dibs__counter_op *)op, b->now);
    return;
  default:
    dibs__mem_once(b->memory, (struct dibs__once_op *)op, b->now);
  }
}

/* Are they the same, but for the version? */
static bool is_same(const bson_t *seen, const bson_t *made) {
  bson_t bare = BSON_INITIALIZER;
  bson_copy_to_excluding_noinit(seen, &bare, "v", NULL);
  bool same = bson_equal(&bare, made);
  bson_destroy(&bare);
  return same;
}

static bool has_content(const document *d, const bson_t *made) {
  bson_iter_t at, in;
  if (d->kind != DIBS__MONGO_LEASE) return bson_has_field(made, "fence");
  if (d->fence || bson_has_field(made, "breaks")) return true;
  return bson_iter_init_find(&at, made, "claims") && bson_iter_recurse(&at, &in) && bson_iter_next(&in);
}

static bool is_unchanged(const document *d, const bson_t *made) {
  return d->seen ? is_same(d->seen, made) : !has_content(d, made);
}

enum outcome { WRITTEN, REPLACED, DOUBTFUL, FAILED };

static void conclude(batch *b, document *d, enum outcome how, dibs__status status) {
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__mongo_element *e = &b->elements[i];
    if (e->d != d || e->done) continue;
    if (how == WRITTEN) {
      e->done = true;
      continue;
    }
    dibs__op_free_answer(e->op);
    memcpy(e->op, e->asked, e->size);
    if (how == REPLACED) continue;
    e->op->status = how == DOUBTFUL ? DIBS_UNKNOWN : status;
    e->done = true;
  }
  for (size_t i = 0; i < b->notice_count && how != WRITTEN;) {
    if (b->notices[i].d == d)
      b->notices[i] = b->notices[--b->notice_count];
    else
      i++;
  }
  if (how == WRITTEN && d->made) {
    bson_destroy(d->seen);
    d->seen = d->made;
    d->made = NULL;
    d->version = d->made_version;
  } else {
    bson_destroy(d->made);
    d->made = NULL;
  }
  if (how != WRITTEN) d->loaded = false;
}

/* All operations on one document, in their order. */
static void decide(batch *b, document *d) {
  dibs__status status = dibs__mongo_decode(b->memory, d);
  if (status == DIBS_OK && d->kind == DIBS__MONGO_STOCK) status = dibs__mongo_claims_load(b, d);
  b->deciding = d;
  d->gone = b->sleepers;
  d->gone_count = b->sleeper_count;
  if (status == DIBS_OK) status = settle_clock(b, d);
  if (d->kind == DIBS__MONGO_RATE && b->now > dibs__mongo_latest(link_of(b))) b->now = dibs__mongo_latest(link_of(b));
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__mongo_element *e = &b->elements[i];
    if (e->d != d || e->done) continue;
    e->op->status = status;
    if (status == DIBS_OK) call_memory(b, e->op);
  }
  if (status == DIBS_OK) d->made = dibs__mongo_encode(b->memory, d);
  if (status == DIBS_OK && !d->made) status = DIBS_NO_MEMORY;
  /* (A document that somebody else has changed may not be what it would be encoded as.  R47) */
  if (d->made && (d->reads_only || is_unchanged(d, d->made))) {
    bson_destroy(d->made);
    d->made = NULL;
  }
  if (d->made && d->kind == DIBS__MONGO_RATE) status = settle_take(b, d);
  if (status == DIBS_CORRUPT)
    dibs__set_message(b->result, "%s: the document \"%.60s\" is not one of dibs", link_of(b)->location->shown, d->key);
  dibs__mem_scratch_empty(b->memory);
  /* Without a new document: if nothing changed, the answer is only as new as the document that was read. */
  if (status != DIBS_OK)
    conclude(b, d, FAILED, status);
  else if (!d->made)
    conclude(b, d, d->fresh ? WRITTEN : REPLACED, DIBS_OK);
}

/* ---- Writing ---- */

static void put_version(document *d) {
  do dibs__random(&d->made_version, sizeof d->made_version);
  while (d->made_version == 0);
  BSON_APPEND_INT64(d->made, "v", d->made_version);
}

/* {$cond: [{$gte: [$$NOW, AT]}, true, false]}: without $cond, FerretDB refuses $$NOW in collections with an index. */
static bool put_time(bson_t *q, int64_t at_ms) {
  bson_t expr, branches, test, args;
  return BSON_APPEND_DOCUMENT_BEGIN(q, "$expr", &expr) && BSON_APPEND_ARRAY_BEGIN(&expr, "$cond", &branches) &&
         BSON_APPEND_DOCUMENT_BEGIN(&branches, "0", &test) && BSON_APPEND_ARRAY_BEGIN(&test, "$gte", &args) &&
         BSON_APPEND_UTF8(&args, "0", "$$NOW") && BSON_APPEND_DATE_TIME(&args, "1", at_ms) &&
         bson_append_array_end(&test, &args) && bson_append_document_end(&branches, &test) &&
         BSON_APPEND_BOOL(&branches, "1", true) && BSON_APPEND_BOOL(&branches, "2", false) &&
         bson_append_array_end(&expr, &branches) && bson_append_document_end(q, &expr);
}

static bool put_update(const document *d, bson_t *updates, uint32_t nth) {
  bson_t one, q;
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  bool fine = bson_append_document_begin(updates, at, -1, &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
              bson_append_utf8(&q, "_id", -1, d->key, (int)d->key_len) && BSON_APPEND_INT64(&q, "v", d->version);
  if (d->expired != INT64_MIN) fine = fine && put_time(&q, d->expired);
  return fine && bson_append_document_end(&one, &q) && BSON_APPEND_DOCUMENT(&one, "u", d->made) &&
         bson_append_document_end(updates, &one);
}

static bool put_insert(const document *d, bson_t *documents, uint32_t nth) {
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  return bson_append_document(documents, at, -1, d->made);
}

static bool wants_check(const document *d) {
  return d->checked;
}

/* Is this the first element with a document that this command writes? */
static bool is_sent(const batch *b, size_t i, enum dibs__mongo_kind kind, bool inserts) {
  const document *d = b->elements[i].d;
  return d && !b->elements[i].done && d->kind == kind && d->made && (d->seen == NULL) == inserts &&
         dibs__mongo_is_first(b, i);
}

/* Only `n` of the documents were replaced: those that have the version of this batch now.  If fewer have it, somebody
 * has replaced one of them again, and nobody knows which. */
static void check_written(batch *b, enum dibs__mongo_kind kind, bool inserts, int64_t n) {
  bson_t filter = BSON_INITIALIZER;
  document *sent[DIBS__MONGO_BATCH];
  size_t count = 0;
  int64_t mine = 0;
  for (size_t i = 0; i < b->count; i++)
    if (is_sent(b, i, kind, inserts)) sent[count++] = b->elements[i].d;
  for (size_t i = 0; i < count; i++) sent[i]->checked = true;
  put_keys(b, kind, wants_check, &filter);
  for (size_t i = 0; i < count; i++) sent[i]->loaded = sent[i]->checked = false;
  struct loading l = {b, kind};
  dibs__status status = dibs__mongo_find(link_of(b), kind, &filter, 0, false, see_row, &l, b->result);
  bson_destroy(&filter);
  for (size_t i = 0; i < count && status == DIBS_OK; i++)
    if (sent[i]->loaded && sent[i]->version == sent[i]->made_version) mine++;
  for (size_t i = 0; i < count; i++) {
    document *d = sent[i];
    bool loaded = d->loaded && status == DIBS_OK;
    bool written = loaded && d->version == d->made_version;
    bool sure = n == 0 || (status == DIBS_OK && mine == n);
    conclude(b, d, written ? WRITTEN : sure ? REPLACED : DOUBTFUL, DIBS_UNKNOWN);
    d->loaded = loaded;
  }
}

/* Sends the updates, or the inserts, of one kind. */
static void write_kind(batch *b, enum dibs__mongo_kind kind, bool inserts) {
  bson_t command = BSON_INITIALIZER, list, reply;
  bson_iter_t at;
  uint32_t count = 0;
  bool fine = BSON_APPEND_UTF8(&command, inserts ? "insert" : "update",
                               mongoc_collection_get_name(link_of(b)->collections[kind])) &&
              BSON_APPEND_BOOL(&command, "ordered", false) &&
              BSON_APPEND_ARRAY_BEGIN(&command, inserts ? "documents" : "updates", &list);
  for (size_t i = 0; i < b->count && fine; i++) {
    document *d = b->elements[i].d;
    if (!is_sent(b, i, kind, inserts)) continue;
    put_version(d);
    fine = inserts ? put_insert(d, &list, count++) : put_update(d, &list, count++);
  }
  fine = fine && bson_append_array_end(&command, &list);
  if (count == 0) {
    bson_destroy(&command);
    return;
  }
  dibs__status status = fine ? dibs__mongo_write(link_of(b), &command, &reply, b->result) : DIBS_NO_MEMORY;
  if (!fine) bson_init(&reply);
  b->result->commits++;
  if (status == DIBS_OK && inserts && (kind == DIBS__MONGO_RATE || kind == DIBS__MONGO_ONCE))
    dibs__mongo_index(b, kind, "delete_at", true);
  int64_t n = status == DIBS_OK && bson_iter_init_find(&at, &reply, "n") ? bson_iter_as_int64(&at) : 0;
  if (status == DIBS_OK && n < count) {
    check_written(b, kind, inserts, n);
  } else {
    for (size_t i = 0; i < b->count; i++) {
      document *d = b->elements[i].d;
      if (!d || b->elements[i].done || d->kind != kind || !d->made || (d->seen == NULL) != inserts) continue;
      conclude(b, d, status == DIBS_OK ? WRITTEN : status == DIBS_UNKNOWN ? DOUBTFUL : FAILED, status);
    }
  }
  bson_destroy(&reply);
  bson_destroy(&command);
}

/* ---- A batch ---- */

/* R49: names, owners and claims are texts. */
static bool texts_are_valid(const struct dibs__op *op, dibs__str key) {
  if (!dibs__mongo_is_text(key)) return false;
  if (op->family == DIBS__FAM_STOCK) return dibs__mongo_is_text(((const struct dibs__stock_op *)op)->claim);
  return op->family != DIBS__FAM_LEASE || dibs__mongo_is_text(((const struct dibs__lease_op *)op)->owner);
}

static bool op_writes(const struct dibs__op *op) {
  return !dibs__op_reads(op);
}

/* The mandate of a bucket: all have the same. */
static void answer_anchor(batch *b, struct dibs__anchor_op *op) {
  op->op.status = op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_OPEN ? DIBS_INVALID : DIBS_OK;
  if (op->op.status == DIBS_OK && op->op.verb != DIBS__ANCHOR_READ) op->op.status = DIBS_UNSUPPORTED;
  op->current = dibs__mongo_mandate(link_of(b));
  op->served = op->left = false;
  op->used = true;
  op->last = DIBS__FENCE_NONE;
}

/* Its document, or an answer. */
static void place_element(batch *b, struct dibs__mongo_element *e) {
  enum dibs__mongo_kind kind;
  dibs__str key;
  struct dibs__op *op = e->op;
  e->done = true;
  op->status = DIBS_UNSUPPORTED;
  if (op->family == DIBS__FAM_ANCHOR) answer_anchor(b, (struct dibs__anchor_op *)op);
  if (!dibs__mongo_place(op, &kind, &key)) return;
  if (op->family == DIBS__FAM_RECORD && ((const struct dibs__record_op *)op)->table) return;
  if (op->family == DIBS__FAM_STOCK && dibs__mongo_stock_is_apart((struct dibs__stock_op *)op)) return;
  if (op->family == DIBS__FAM_COUNTER && dibs__mongo_counter_is_apart((struct dibs__counter_op *)op)) return;
  op->status = DIBS_INVALID;
  if (key.len < 1 || key.len > DIBS_NAME_MAX || !texts_are_valid(op, key)) return;
  e->size = dibs__family_of(op)->size;
  e->asked = malloc(e->size);
  e->d = e->asked ? find_document(b, kind, key, true) : NULL;
  op->status = e->d ? DIBS_UNKNOWN : DIBS_NO_MEMORY;
  if (!e->d) return;
  memcpy(e->asked, op, e->size);
  e->done = false;
}

static void prepare(batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->elements[i].d) b->elements[i].d->reads_only = true;
  for (size_t i = 0; i < b->count; i++) {
    document *d = b->elements[i].d;
    if (!d) continue;
    d->expired = INT64_MIN;
    d->fresh = false;
    if (op_writes(b->elements[i].op)) d->reads_only = false;
    if (!d->reads_only) continue;
    d->loaded = false; /* what only reads, reads the present content */
  }
}

static bool any_queues(const batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->elements[i].op->family == DIBS__FAM_LEASE && b->elements[i].op->verb == DIBS__ACQUIRE) return true;
  return false;
}

static bool any_left(const batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (!b->elements[i].done) return true;
  return false;
}

static void give_up(batch *b, dibs__status status) {
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__mongo_element *e = &b->elements[i];
    if (e->done) continue;
    if (e->d) forget_document(e->d);
    e->op->status = status;
    e->done = true;
  }
}

/* The clock of a link does not go back. */
static void note_time(batch *b) {
  int64_t now = dibs__mongo_latest(link_of(b));
  if (now > b->now) b->now = now;
}

/* Another member gets the commands now, which may show some moments later what the majority has confirmed: a claim
 * older than its stock, say.  So everything is read there again. */
static bool has_moved(batch *b) {
  bool moved = b->document_moves != link_of(b)->moves;
  b->document_moves = link_of(b)->moves;
  for (size_t i = 0; i < DIBS__MONGO_HEADS && moved; i++)
    for (document *d = b->heads[i]; d; d = d->next) d->loaded = false;
  return moved;
}

/* One round.  The documents that were replaced meanwhile remain. */
static dibs__status play(batch *b) {
  (void)has_moved(b);
  dibs__status status = load_documents(b);
  if (status == DIBS_OK) status = learn_sessions(b);
  if (status == DIBS_OK) status = dibs__mongo_clock(link_of(b), false, b->result); /* they may be another primary's */
  if (status != DIBS_OK) return status;
  note_time(b);
  status = dibs__mongo_claims_bind(b);
  if (status != DIBS_OK || has_moved(b)) return status;
  for (size_t i = 0; i < b->count; i++) {
    document *d = b->elements[i].d;
    if (!b->elements[i].done && dibs__mongo_is_first(b, i) && !d->deferred) decide(b, d);
  }
  for (enum dibs__mongo_kind kind = 0; kind < DIBS__MONGO_DOCUMENTS; kind++) {
    write_kind(b, kind, false);
    write_kind(b, kind, true);
  }
  return DIBS_OK;
}

static void send_notices(batch *b) {
  struct dibs__mongo_notice notices[DIBS__MONGO_NOTICES];
  for (size_t i = 0; i < b->notice_count; i++) notices[i] = b->notices[i].notice;
  if (b->notice_count) dibs__mongo_send(store_of(b), link_of(b), notices, b->notice_count);
  b->notice_count = 0;
}

/* A thousand long records would be a gigabyte. */
static bool is_long(const document *d) {
  return d->seen && d->seen->len > LONG_BYTES && (d->kind == DIBS__MONGO_RECORD || d->kind == DIBS__MONGO_ONCE);
}

static void finish(batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__op *op = b->elements[i].op;
    free(b->elements[i].asked);
    if (b->elements[i].d && is_long(b->elements[i].d)) forget_document(b->elements[i].d);
    if (op->family == DIBS__FAM_LEASE && op->status == DIBS__QUEUED) dibs__mongo_mailbox_waits(store_of(b));
  }
  if (b->remembered > REMEMBERED) forget_documents(b);
}

/* If nothing at all was done, the call itself failed (R6). */
static dibs__status overall(const batch *b) {
  dibs__status worst = DIBS_OK;
  bool none = b->count > 0;
  for (size_t i = 0; i < b->count; i++) {
    dibs__status status = b->elements[i].op->status;
    if (status == DIBS_UNKNOWN) worst = DIBS_UNKNOWN;
    none = none && status == DIBS_UNAVAILABLE;
  }
  return none ? DIBS_UNAVAILABLE : worst;
}

/* On collections of the user's; after all others, which wait for no document of the user's. */
static void run_tables(batch *b, dibs__tick by) {
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__op *op = b->elements[i].op;
    if (op->family == DIBS__FAM_TASK && ((struct dibs__task_op *)op)->table)
      dibs__mongo_run_task(b->session, (struct dibs__task_op *)op, by, b->result);
    if (op->family == DIBS__FAM_RECORD && ((struct dibs__record_op *)op)->table)
      dibs__mongo_run_record(b->session, (struct dibs__record_op *)op, by, b->result);
    if (op->family == DIBS__FAM_STOCK && ((struct dibs__stock_op *)op)->table && op->verb != DIBS__STOCK_LIST)
      dibs__mongo_run_stock(b->session, (struct dibs__stock_op *)op, by, b->result);
  }
}

dibs__status dibs__mongo_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *result) {
  struct dibs__mongo_session *session = (struct dibs__mongo_session *)base;
  batch *b = session->batch;
  struct dibs__mongo_element elements[DIBS__MONGO_BATCH] = {{0}};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (count > DIBS__MONGO_BATCH) return DIBS_UNAVAILABLE;
  session->link->by = by;
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    dibs__mongo_describe(session->link, &findings);
    result->dead = session->link->broken;
    return dibs__findings_answer(&findings, ops[0]);
  }
  b->elements = elements;
  b->count = count;
  b->result = result;
  b->notice_count = 0;
  b->tasks_ready = false;
  for (size_t i = 0; i < count; i++) {
    elements[i].op = ops[i];
    place_element(b, &elements[i]);
  }
  prepare(b);
  dibs__status status = dibs__tick_before(result->sent, by) ? DIBS_OK : DIBS_UNAVAILABLE;
  if (status == DIBS_OK) status = dibs__mongo_clock(session->link, false, result);
  note_time(b);
  if (status == DIBS_OK && any_queues(b)) status = dibs__mongo_mailbox_ready(store_of(b), session->link, result);
  for (int64_t pause = 0; status == DIBS_OK && any_left(b); pause = pause < 30 ? pause * 2 + 1 : pause) {
    if (!dibs__tick_before(dibs__tick_now(), by)) status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK) status = play(b);
    if (status != DIBS_OK || !any_left(b) || pause == 0) continue;
    uint8_t at_random;
    dibs__random(&at_random, sizeof at_random);
    dibs__nap_ms(pause < RETRY_MAX_MS ? at_random % (pause + 1) : at_random % RETRY_MAX_MS);
    if (pause >= 30) status = dibs__mongo_clock(session->link, true, result);
  }
  if (status != DIBS_OK) give_up(b, status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status);
  run_tables(b, by);
  if (!any_left(b)) dibs__mongo_claims_clean(b);
  dibs__mongo_stock_lists(b);
  dibs__mongo_counters(b);
  dibs__mongo_runs(b);
  dibs__mongo_reports(b);
  dibs__mongo_tasks(b);
  send_notices(b);
  finish(b);
  result->now = (dibs__when){b->now};
  result->dead = session->link->broken;
  return status == DIBS_OK || status == DIBS_UNAVAILABLE ? overall(b) : status;
}

void dibs__mongo_tasks_tidy(struct dibs__mongo_session *session, struct dibs__result *result) {
  batch *b = session->batch;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  b->elements = NULL;
  b->count = 0;
  b->result = result;
  if (dibs__mongo_clock(session->link, false, result) == DIBS_OK) dibs__mongo_tasks_sweep(b);
}

struct dibs__mongo_batch *dibs__mongo_batch_new(struct dibs__mongo_session *session) {
  batch *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  b->session = session;
  b->hooks = (struct dibs__mem_hooks){hook_alive, hook_post, hook_draw, b};
  b->memory = dibs__mem_scratch_new(&b->hooks);
  b->from.session = store_of(b)->session;
  b->from.memory = b->memory;
  if (b->memory) return b;
  free(b);
  return NULL;
}

void dibs__mongo_batch_free(struct dibs__mongo_batch *b) {
  if (!b) return;
  forget_documents(b);
  dibs__mem_scratch_free(b->memory);
  free(b);
}
