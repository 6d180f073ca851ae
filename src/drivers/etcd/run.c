/* SPDX-License-Identifier: MIT */
/*
 * A batch: rounds of one transaction each, until every element has its answer.  Each element is a transaction inside
 * it, with comparisons of its own, so that a second decision about one of them does not disturb the others.  A round
 * has at most one element for a name, a key, or a bucket that it changes, because etcd puts no key twice in a
 * transaction; so elements for one name are answered in their order.
 *
 * Every transaction compares the store's incarnation, too.  One element alone is sent without a transaction around it:
 * etcd answers reads of the outermost level without a write to its log.
 *
 * Renewals.  The lease of etcd is kept alive first, all of a round in one request, then the transaction checks that the
 * key is still there.  A keep-alive is answered by the leader's memory alone, and a member that was stopped may believe
 * that it still leads; the transaction is answered by a majority.  Both answers tell the term.  Only if it is the same
 * was the keep-alive the present leader's: the transaction proves that no later leader had begun when it was answered,
 * and a later one lets every lease live for its whole ttl again.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 400, LEASE_TRIES = 8 };

typedef struct dibs__etcd_element element;
typedef struct dibs__etcd_batch batch;

void dibs__etcd_done(batch *b, element *e, dibs__status status) {
  /* It is queued, or has a key that is to be removed, so its caller has to cancel it (R6). */
  bool queued = e->op->family == DIBS__FAM_LEASE && e->op->verb == DIBS__ACQUIRE && (e->name.own_waits || e->ended);
  if (status == DIBS_UNAVAILABLE && queued) status = DIBS_UNKNOWN;
  e->done = true;
  e->op->status = status;
  if (e->op->family != DIBS__FAM_LEASE) return;
  if (e->op->at.ms == 0) e->op->at.ms = dibs__etcd_ms(e->sent.ns ? e->sent : b->result->sent);
  b->result->now = e->op->at;
  bool spare = e->op->verb == DIBS__ACQUIRE || e->op->verb == DIBS__RENEW;
  if (spare && status != DIBS_UNKNOWN) dibs__etcd_item_return(b->store, &e->item);
  e->item = (struct dibs__etcd_item){0};
}

/* ---- Families ---- */

static void begin(batch *b, element *e) {
  struct dibs__op *op = e->op;
  op->at.ms = 0;
  e->sent = DIBS__TICK_ZERO;
  if (op->group && op->family != DIBS__FAM_LEASE)
    dibs__etcd_done(b, e, DIBS_UNSUPPORTED);
  else if (op->family == DIBS__FAM_LEASE)
    dibs__etcd_lease_begin(b, e);
  else if (op->family == DIBS__FAM_ANCHOR)
    dibs__etcd_anchor_begin(b, e);
  else if (op->family == DIBS__FAM_RECORD)
    dibs__etcd_record_begin(b, e);
  else if (op->family == DIBS__FAM_REPORT)
    dibs__etcd_report_run(b, e);
  else
    dibs__etcd_done(b, e, DIBS_UNSUPPORTED);
}

static void put(batch *b, element *e, struct dibs__etcd_txn *txn) {
  e->writes = false;
  dibs__etcd_txn_begin(txn);
  if (e->op->family == DIBS__FAM_LEASE)
    dibs__etcd_lease_put(b, e, txn);
  else if (e->op->family == DIBS__FAM_ANCHOR)
    dibs__etcd_anchor_put(b, e, txn);
  else
    dibs__etcd_record_put(b, e, txn);
}

static void take(batch *b, element *e, const json_t *txn) {
  if (e->op->family == DIBS__FAM_LEASE)
    dibs__etcd_lease_take(b, e, txn);
  else if (e->op->family == DIBS__FAM_ANCHOR)
    dibs__etcd_anchor_take(b, e, txn);
  else
    dibs__etcd_record_take(b, e, txn);
}

static dibs__str key_of(const struct dibs__op *op) {
  if (op->family == DIBS__FAM_LEASE) return ((const struct dibs__lease_op *)op)->name;
  if (op->family == DIBS__FAM_RECORD) return ((const struct dibs__record_op *)op)->key;
  return (dibs__str){0};
}

static bool grants(const element *e) {
  return e->plan == DIBS__ETCD_GUESS || e->plan == DIBS__ETCD_GRANT || e->plan == DIBS__ETCD_CONFIRM;
}

static bool draws(const element *e) {
  const struct dibs__lease_op *op = (const struct dibs__lease_op *)e->op;
  if (e->op->family != DIBS__FAM_LEASE) return false;
  return grants(e) || (e->plan == DIBS__ETCD_RENEW && op->want_block);
}

static bool changes_bucket(const element *e) {
  if (e->op->family == DIBS__FAM_ANCHOR) return e->plan == DIBS__ETCD_WRITE;
  if (e->op->family != DIBS__FAM_LEASE || !grants(e)) return false;
  return !e->name.bucket.used && e->name.bucket.served == DIBS__ETCD_OWN;
}

/* Both can't be in one transaction. */
static bool collide(const element *a, const element *b) {
  bool one_key = a->op->family == b->op->family && dibs__str_equal(key_of(a->op), key_of(b->op));
  if (one_key && a->op->family != DIBS__FAM_ANCHOR) return true;
  if (a->op->family == DIBS__FAM_ANCHOR && b->op->family == DIBS__FAM_ANCHOR) return a->op->bucket == b->op->bucket;
  return a->op->bucket == b->op->bucket && changes_bucket(a) && changes_bucket(b);
}

/* ---- A round ---- */

/* What its transaction carries, beside some hundred bytes. */
static size_t size_of(const element *e) {
  if (e->op->family != DIBS__FAM_RECORD || e->plan != DIBS__ETCD_WRITE) return 0;
  return ((const struct dibs__record_op *)e->op)->data.len;
}

/* etcd refuses a transaction of more than 1.5 MiB (--max-request-bytes), which has room for one record of any size. */
static size_t choose(batch *b, element *round[DIBS__ETCD_BATCH]) {
  size_t count = 0, bytes = 0;
  for (size_t i = 0; i < b->count && count < DIBS__ETCD_BATCH; i++) {
    element *e = &b->elements[i];
    bool fits = !e->done && !(b->alone && count);
    /* An earlier element for the same name may be left for the next round, too. */
    for (size_t k = 0; k < i && fits; k++) fits = b->elements[k].done || !collide(&b->elements[k], e);
    fits = fits && (count == 0 || bytes + size_of(e) <= DIBS_RECORD_MAX);
    if (fits) bytes += size_of(e);
    if (fits) round[count++] = e;
  }
  return count;
}

static uint64_t term_of(const json_t *header) {
  return (uint64_t)dibs__etcd_number(header, "raft_term");
}

/* Of all renewals of a round whose leases stay.  Those whose lease is gone are decided by what the name shows. */
static dibs__status keep_alive(batch *b, element *const round[], size_t count) {
  struct dibs__etcd_text body = {0};
  json_t *answers = NULL;
  element *kept[DIBS__ETCD_BATCH];
  size_t kept_count = 0;
  for (size_t i = 0; i < count; i++) {
    element *e = round[i];
    if (e->done || e->op->family != DIBS__FAM_LEASE || e->plan != DIBS__ETCD_RENEW || e->fresh_lease) continue;
    dibs__etcd_putf(&body, "{\"ID\":\"%" PRId64 "\"}", e->hold.item.id);
    kept[kept_count++] = e;
  }
  if (!kept_count) return DIBS_OK;
  dibs__tick sent = dibs__tick_now();
  dibs__status status = dibs__etcd_post_lines(b->link, "/v3/lease/keepalive", &body, b->by, &answers, b->result);
  dibs__etcd_text_free(&body);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  for (size_t i = 0; i < kept_count; i++) {
    const json_t *result = json_object_get(json_array_get(answers, i), "result");
    int64_t ttl = dibs__etcd_number(result, "TTL");
    kept[i]->sent = sent;
    kept[i]->term = term_of(json_object_get(result, "header"));
    kept[i]->kept = ttl > 0 && dibs__etcd_number(result, "ID") == kept[i]->hold.item.id;
    if (kept[i]->kept) kept[i]->hold.item.ttl_s = (uint32_t)ttl;
    if (!kept[i]->kept) kept[i]->plan = DIBS__ETCD_READ;
  }
  json_decref(answers);
  return DIBS_OK;
}

static dibs__status prepare(batch *b, element *const round[], size_t count) {
  size_t drawn = 0, nth = 0;
  for (size_t i = 0; i < count; i++) {
    element *e = round[i];
    dibs__status status = e->op->family == DIBS__FAM_LEASE ? dibs__etcd_lease_prepare(b, e) : DIBS_OK;
    if (status != DIBS_OK) return status == DIBS_UNKNOWN || status == DIBS_NOT_FOUND ? DIBS_UNAVAILABLE : status;
    drawn += draws(e);
  }
  const uint32_t most = (uint32_t)(DIBS__ETCD_FENCES / (drawn ? drawn : 1));
  for (size_t i = 0; i < count; i++) {
    element *e = round[i];
    const struct dibs__lease_op *op = (const struct dibs__lease_op *)e->op;
    if (!draws(e)) continue;
    e->nth = (uint32_t)nth++ * most;
    e->block = op->want_block < 1 ? 1 : op->want_block < most ? op->want_block : most;
  }
  return keep_alive(b, round, count);
}

static void put_outer(batch *b, element *const round[], size_t count, struct dibs__etcd_text *body, bool *writes) {
  struct dibs__etcd_txn outer = {0}, inner = {0};
  struct dibs__etcd_key meta;
  uint64_t mod = dibs__etcd_meta_of(b->store).mod;
  dibs__etcd_meta_key(b->store, &meta);
  *writes = false;
  for (size_t i = 0; i < count; i++) {
    round[i]->together = count > 1;
    put(b, round[i], count == 1 ? &outer : &inner);
    if (count > 1) dibs__etcd_op_txn(&outer.success, &inner);
    *writes = *writes || round[i]->writes;
  }
  dibs__etcd_compare(&outer, &meta, DIBS__ETCD_MOD, mod);
  dibs__etcd_op_get(&outer.failure, &meta);
  dibs__etcd_txn_put(body, &outer);
  dibs__etcd_txn_free(&outer);
  dibs__etcd_txn_free(&inner);
}

/* The elements of the round that may have been done are in doubt; their leases of etcd are never used again. */
static void fail_round(batch *b, element *const round[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) {
    element *e = round[i];
    if (e->done) continue;
    bool doubt = status == DIBS_UNKNOWN && e->writes;
    dibs__etcd_done(b, e, doubt ? DIBS_UNKNOWN : status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status);
  }
}

/* A lease of etcd that the transaction names is gone: so the transaction did nothing. */
static void forget_leases(batch *b, element *const round[], size_t count) {
  dibs__etcd_items_forget(b->store);
  for (size_t i = 0; i < count; i++) {
    if (round[i]->op->family != DIBS__FAM_LEASE) continue;
    round[i]->item = (struct dibs__etcd_item){0};
    dibs__etcd_session_lost(b->store, round[i]->session);
    if (round[i]->plan == DIBS__ETCD_RENEW) round[i]->plan = DIBS__ETCD_READ;
  }
}

/* `seen`: before the request. */
static bool same_store(batch *b, const json_t *answer, size_t count, uint64_t seen) {
  const json_t *responses = json_object_get(answer, "responses"), *header = json_object_get(answer, "header");
  struct dibs__etcd_meta meta = dibs__etcd_meta_of(b->store);
  if (dibs__etcd_cluster(answer) != meta.cluster) return false;
  if ((uint64_t)dibs__etcd_number(header, "revision") < seen) return false;
  if (json_is_true(json_object_get(answer, "succeeded"))) return true;
  if (count > 1) return false;
  const json_t *range = dibs__etcd_range_at(responses, json_array_size(responses) - 1);
  const json_t *kv = json_array_get(json_object_get(range, "kvs"), 0);
  return (uint64_t)dibs__etcd_number(kv, "mod_revision") == meta.mod;
}

/* The store was emptied, or restored: what this process knew of it is no longer true.  If the restored store has the
 * same incarnation in its memory, then the transaction was done: a lease of etcd has a key now, which is removed when
 * the client repeats its request (acquire_held). */
static dibs__status other_store(batch *b, element *const round[], size_t count, const json_t *answer) {
  bool did = json_is_true(json_object_get(answer, "succeeded"));
  dibs__etcd_meta_forget(b->store);
  dibs__status status = dibs__etcd_meta_ready(b->store, b->link, b->by, b->result);
  for (size_t i = 0; i < count; i++) {
    round[i]->plan = DIBS__ETCD_READ;
    round[i]->own_hold = round[i]->kept = false;
    round[i]->item = (struct dibs__etcd_item){0};
  }
  return status != DIBS_OK && did ? DIBS_UNKNOWN : status;
}

static dibs__status take_answers(batch *b, element *const round[], size_t count, json_t *answer, uint64_t seen) {
  const json_t *header = json_object_get(answer, "header"), *responses = json_object_get(answer, "responses");
  if (!same_store(b, answer, count, seen)) return other_store(b, round, count, answer);
  b->revision = (uint64_t)dibs__etcd_number(header, "revision");
  b->term = term_of(header);
  dibs__etcd_revision_note(b->store, b->revision);
  for (size_t i = 0; i < count; i++)
    take(b, round[i], count == 1 ? answer : json_object_get(json_array_get(responses, i), "response_txn"));
  return DIBS_OK;
}

static dibs__status run_round(batch *b, element *const round[], size_t count, int *lease_tries) {
  struct dibs__etcd_text body = {0};
  json_t *answer = NULL;
  bool writes;
  uint64_t seen = dibs__etcd_revision_seen(b->store);
  dibs__status status = prepare(b, round, count);
  if (status == DIBS_OK) {
    dibs__tick sent = dibs__tick_now();
    for (size_t i = 0; i < count; i++)
      if (!round[i]->kept) round[i]->sent = sent;
    put_outer(b, round, count, &body, &writes);
    status = dibs__etcd_post(b->link, "/v3/kv/txn", &body, !writes, b->by, &answer, b->result);
    dibs__etcd_text_free(&body);
    b->result->commits += writes;
    if (status == DIBS_NOT_FOUND && (*lease_tries)++ < LEASE_TRIES) {
      forget_leases(b, round, count);
      return DIBS_OK;
    }
    if (status == DIBS_INVALID && count > 1 && !b->alone) { /* too large together */
      b->alone = true;
      return DIBS_OK;
    }
    if (status == DIBS_INVALID && count == 1) { /* the others go on */
      dibs__etcd_done(b, round[0], DIBS_INVALID);
      return DIBS_OK;
    }
    if (status == DIBS_NOT_FOUND) status = DIBS_UNAVAILABLE;
  }
  if (status == DIBS_OK) status = take_answers(b, round, count, answer, seen);
  json_decref(answer);
  if (status != DIBS_OK) fail_round(b, round, count, status);
  return status;
}

/* ---- The driver's call ---- */

/* R6 */
static dibs__status status_of(const batch *b, dibs__status last) {
  size_t undone = 0, denied = 0;
  for (size_t i = 0; i < b->count; i++) {
    if (b->elements[i].op->status == DIBS_UNKNOWN) return DIBS_UNKNOWN;
    undone += b->elements[i].op->status == DIBS_UNAVAILABLE;
    denied += b->elements[i].op->status == DIBS_DENIED;
  }
  if (last == DIBS_DENIED && denied == b->count) return DIBS_DENIED;
  return undone == b->count ? DIBS_UNAVAILABLE : DIBS_OK;
}

static dibs__status run_elements(batch *b) {
  dibs__status status = DIBS_OK;
  element *round[DIBS__ETCD_BATCH];
  int lease_tries = 0;
  if (!dibs__etcd_meta_of(b->store).mod) status = dibs__etcd_meta_ready(b->store, b->link, b->by, b->result);
  for (size_t i = 0; i < b->count && status == DIBS_OK; i++) begin(b, &b->elements[i]);
  for (int rounds = 0; status == DIBS_OK && rounds < ROUNDS; rounds++) {
    size_t count = choose(b, round);
    if (!count) return DIBS_OK;
    status = run_round(b, round, count, &lease_tries);
  }
  for (size_t i = 0; i < b->count; i++)
    if (!b->elements[i].done)
      dibs__etcd_done(b, &b->elements[i], status == DIBS_DENIED ? DIBS_DENIED : DIBS_UNAVAILABLE);
  return status;
}

dibs__status dibs__etcd_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__result *result) {
  struct dibs__etcd_session *session = (struct dibs__etcd_session *)base;
  batch b = {.store = dibs__etcd_of(base->store), .link = session->link, .count = count, .by = by, .result = result};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  result->now.ms = dibs__etcd_ms(result->sent);
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    dibs__etcd_describe(b.store, b.link, by, &findings);
    return dibs__findings_answer(&findings, ops[0]);
  }
  b.elements = calloc(count ? count : 1, sizeof *b.elements);
  if (!b.elements) return DIBS_UNAVAILABLE;
  for (size_t i = 0; i < count; i++) b.elements[i].op = ops[i];
  dibs__status status = run_elements(&b);
  status = status_of(&b, status);
  for (size_t i = 0; i < count; i++) {
    dibs__etcd_name_free(&b.elements[i].name);
    dibs__etcd_text_free(&b.elements[i].read);
  }
  free(b.elements);
  return status;
}
