/* SPDX-License-Identifier: MIT */
/*
 * The verbs of a lease.  A plan is one transaction: it compares what the decision depends on, and either does what was
 * decided, or reads the name again for the next decision.  So a decision is never taken on what has changed meanwhile.
 *
 * Free and held names need one transaction: GUESS grants if nobody has the name and nobody waits, and else queues.
 *
 * A confirmation compares the holders (none may have come) and the waiters in front (none may have woken up).  What
 * happens behind does not disturb it, so many new waiters can't delay the first one.
 */
#include "drivers/etcd/etcd_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BREAK_KEEP_S = 7 * 86400, BREAK_CHUNK = 32, TERM_TRIES = 3 };

typedef struct dibs__etcd_element element;
typedef struct dibs__etcd_batch batch;
typedef struct dibs__etcd_claim claim;

static struct dibs__lease_op *op_of(const element *e) {
  return (struct dibs__lease_op *)e->op;
}

/* ---- What is valid ---- */

static bool lease_valid(struct dibs__lease_op *op) {
  bool valid = op->op.bucket < DIBS__BUCKETS && op->name.len >= 1 && op->name.len <= DIBS_NAME_MAX;
  if (op->op.verb == DIBS__ACQUIRE) {
    valid = valid && op->mode <= DIBS_COUNTED && op->ttl_ms > 0 && op->owner.len <= DIBS_OWNER_MAX;
    if (op->mode == DIBS_COUNTED) valid = valid && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX;
    op->fence = DIBS__FENCE_NONE;
  }
  if (op->op.verb == DIBS__RENEW) valid = valid && op->ttl_ms > 0;
  if (op->op.verb > DIBS__BREAK || op->op.group) valid = false;
  op->waiting = false;
  op->got_block = op->slot = 0;
  op->was = DIBS__WAS_NOTHING;
  op->until = op->recheck = (dibs__when){0};
  return valid;
}

/* The fence is one of the grant; R39. */
static bool fence_fits(const struct dibs__lease_op *op, uint32_t mode, dibs__fence granted, dibs__fence first,
                       uint32_t block) {
  if (mode != DIBS_EXCLUSIVE) return op->fence.v == 0;
  if (op->op.verb == DIBS__RENEW && op->fence.v == 0) return true;
  return op->fence.v >= granted.v && op->fence.v < first.v + block;
}

static int64_t now_ms(void) {
  return dibs__etcd_ms(dibs__tick_now());
}

static void plan(element *e, enum dibs__etcd_plan next) {
  e->plan = next;
  e->kept = false;
}

/* A lease of etcd that is shorter than the new ttl can't serve it; a longer one would keep the name. */
static bool needs_other_lease(const struct dibs__etcd_item *item, uint32_t ttl_ms) {
  return item->class_s != dibs__etcd_class(ttl_ms);
}

void dibs__etcd_lease_begin(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  plan(e, DIBS__ETCD_READ);
  if (!lease_valid(op)) {
    dibs__etcd_done(b, e, DIBS_INVALID);
    return;
  }
  struct dibs__etcd_bucket bucket = dibs__etcd_bucket_known(b->store, op->op.bucket);
  e->own_hold = dibs__etcd_hold_find(b->store, op->name, op->id, &e->hold);
  uint64_t revision = dibs__etcd_revision_seen(b->store);
  if (!bucket.known || !dibs__etcd_mandate_valid(b->store, &bucket, revision, op)) return; /* it may have changed */
  e->name.bucket = bucket;
  bool lives = e->own_hold && e->hold.until > now_ms();
  bool ours = lives && fence_fits(op, e->hold.mode, e->hold.granted, e->hold.first, e->hold.block);
  e->mod = e->hold.mod;
  if (op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE && !e->own_hold && !op->ticket &&
      bucket.served != DIBS__ETCD_LEFT)
    plan(e, DIBS__ETCD_GUESS);
  if (op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE && !e->own_hold && op->ticket &&
      bucket.served != DIBS__ETCD_LEFT && dibs__etcd_signalled(b->store, op->id))
    plan(e, DIBS__ETCD_CONFIRM);
  if (op->op.verb == DIBS__RENEW && ours && !op->want_block && !needs_other_lease(&e->hold.item, op->ttl_ms))
    plan(e, DIBS__ETCD_RENEW);
  if (op->op.verb == DIBS__RELEASE && ours) plan(e, DIBS__ETCD_REMOVE);
  if (op->op.verb == DIBS__CANCEL && lives && !op->only_waits) plan(e, DIBS__ETCD_REMOVE);
}

/* ---- Before the transaction ---- */

static dibs__status prepare_renew(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  e->fresh_lease = needs_other_lease(&e->hold.item, op->ttl_ms);
  if (!e->fresh_lease || e->item.id) return DIBS_OK;
  return dibs__etcd_item_get(b->store, b->link, op->ttl_ms, b->by, &e->item, b->result);
}

static dibs__status prepare_session(batch *b, element *e) {
  dibs__status status = dibs__etcd_session_ready(b->store, b->link, b->by, b->result);
  e->session = dibs__etcd_session_lease(b->store);
  return status == DIBS_OK && !e->session ? DIBS_UNAVAILABLE : status;
}

dibs__status dibs__etcd_lease_prepare(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  e->session = dibs__etcd_session_lease(b->store);
  switch (e->plan) {
  case DIBS__ETCD_GUESS:
  case DIBS__ETCD_CONFIRM:
  case DIBS__ETCD_GRANT:
    if (e->item.id) return DIBS_OK;
    return dibs__etcd_item_get(b->store, b->link, op->ttl_ms, b->by, &e->item, b->result);
  case DIBS__ETCD_QUEUE:
  case DIBS__ETCD_AWAKE:
    return prepare_session(b, e);
  case DIBS__ETCD_RENEW:
    return prepare_renew(b, e);
  case DIBS__ETCD_BREAK:
    if (!e->item.id && !e->noted) {
      dibs__status status = dibs__etcd_grant(b->link, BREAK_KEEP_S, b->by, &e->item, b->result);
      if (status != DIBS_OK) return status;
    }
    return prepare_session(b, e);
  default:
    return DIBS_OK;
  }
}

/* ---- Transactions ---- */

struct keys {
  struct dibs__etcd_key holders, waiters, holder, waiter, bucket;
};

static void keys_of(const batch *b, const element *e, struct keys *k) {
  const struct dibs__lease_op *op = op_of(e);
  dibs__etcd_key(b->store, "lease", op->name, &k->holders);
  dibs__etcd_key(b->store, "wait", op->name, &k->waiters);
  dibs__etcd_key_id(&k->holders, op->id, &k->holder);
  dibs__etcd_key_id(&k->waiters, op->id, &k->waiter);
  dibs__etcd_bucket_key(b->store, op->op.bucket, &k->bucket);
}

static void read_name(const batch *b, const element *e, struct dibs__etcd_text *to) {
  dibs__etcd_name_get(b->store, op_of(e), to);
}

static void put_claim(const element *e, struct dibs__etcd_text *to, const struct dibs__etcd_key *key, const claim *c,
                      int64_t lease) {
  struct dibs__etcd_text value = {0};
  dibs__etcd_claim_value(c, &e->name.bucket, e->nth, &value);
  dibs__etcd_op_put(to, key, value.p ? value.p : "", value.len, lease);
  if (value.failed) to->failed = true;
  dibs__etcd_text_free(&value);
}

static claim claim_of(const batch *b, const element *e, bool waits) {
  const struct dibs__lease_op *op = op_of(e);
  claim c = {.id = op->id, .waits = waits, .mode = op->mode, .ttl_ms = op->ttl_ms, .session = b->store->number};
  c.slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  c.slot = e->slot;
  c.block = e->block;
  c.pid = dibs__process_id();
  c.since = dibs__wall_ms();
  c.owner_len = op->owner.len;
  if (op->owner.len) memcpy(c.owner, op->owner.p, op->owner.len);
  return c;
}

/* The holder's key; and that the bucket was used, the first time. */
static void put_holder(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  claim c = claim_of(b, e, false);
  struct dibs__etcd_bucket used = e->name.bucket;
  struct dibs__etcd_text value = {0};
  put_claim(e, &txn->success, &k->holder, &c, e->item.id);
  if (used.used || used.served != DIBS__ETCD_OWN) return;
  used.used = true;
  dibs__etcd_bucket_value(b->store, &used, &value);
  dibs__etcd_op_put(&txn->success, &k->bucket, value.p ? value.p : "", value.len, 0);
  if (value.failed) txn->success.failed = true;
  dibs__etcd_text_free(&value);
}

/* If it is held, the same transaction queues: so a waiter is queued by one request. */
static void put_guess(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  const struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_txn queue = {0};
  dibs__etcd_compare_empty(txn, &k->holders);
  dibs__etcd_compare_empty(txn, &k->waiters);
  put_holder(b, e, k, txn);
  if (op->queue && e->session) {
    claim c = claim_of(b, e, true);
    dibs__etcd_compare(&queue, &k->bucket, DIBS__ETCD_MOD, e->name.bucket.mod);
    dibs__etcd_compare(&queue, &k->holder, DIBS__ETCD_CREATE, 0);
    dibs__etcd_compare(&queue, &k->waiter, DIBS__ETCD_CREATE, 0);
    put_claim(e, &queue.success, &k->waiter, &c, e->session);
  }
  if (!e->terse) dibs__etcd_op_txn(&txn->failure, &queue);
  dibs__etcd_txn_free(&queue);
}

/* Those that must not change: the waiters in front of it, asleep or with offers of their own. */
static void compare_front(const element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  const struct dibs__etcd_name *n = &e->name;
  size_t count = n->own_waits ? n->own_at : n->front_count;
  struct dibs__etcd_key key;
  if (!n->own_waits && count == 0) dibs__etcd_compare_empty(txn, &k->waiters);
  for (size_t i = 0; i < count; i++) {
    dibs__etcd_key_id(&k->waiters, n->front[i].id, &key);
    dibs__etcd_compare(txn, &key, DIBS__ETCD_MOD, n->front[i].mod);
  }
}

static void put_grant(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  const struct dibs__lease_op *op = op_of(e);
  if (op->mode == DIBS_EXCLUSIVE)
    dibs__etcd_compare_empty(txn, &k->holders);
  else
    dibs__etcd_compare_since(txn, &k->holders, e->name.revision);
  compare_front(e, k, txn);
  dibs__etcd_compare(txn, &k->waiter, DIBS__ETCD_MOD, e->name.own_waits ? e->name.own.mod : 0);
  put_holder(b, e, k, txn);
  if (e->name.own_waits) dibs__etcd_op_delete(&txn->success, &k->waiter);
}

/* It is still queued, and nobody is before it: asleep or not. */
static void put_confirm(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  uint64_t ticket = op_of(e)->ticket;
  dibs__etcd_compare_empty(txn, &k->holders);
  dibs__etcd_compare_first(txn, &k->waiters, ticket);
  dibs__etcd_compare(txn, &k->waiter, DIBS__ETCD_CREATE, ticket);
  put_holder(b, e, k, txn);
  dibs__etcd_op_delete(&txn->success, &k->waiter);
  dibs__etcd_op_range(&txn->success, &k->waiters, ",\"count_only\":true");
}

static void put_off(element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  struct dibs__etcd_key key;
  for (size_t i = 0; i < e->name.front_count; i++) {
    claim *c = &e->name.front[i];
    if (!c->asleep) continue; /* decided: see late_offers */
    dibs__etcd_key_id(&k->waiters, c->id, &key);
    dibs__etcd_compare(txn, &key, DIBS__ETCD_MOD, c->mod);
    if (c->offered) put_claim(e, &txn->success, &key, c, -1);
  }
}

/* A key that is put again has its fence written in it, because its revision is another one. */
static void put_renewal(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  const struct dibs__lease_op *op = op_of(e);
  const struct dibs__etcd_hold *h = &e->hold;
  bool draws = h->mode == DIBS_EXCLUSIVE && op->want_block;
  dibs__etcd_compare(txn, &k->holder, DIBS__ETCD_MOD, e->mod);
  e->writes = draws || e->fresh_lease;
  if (e->writes) {
    const claim *was = dibs__etcd_name_holder(&e->name, op->id);
    claim c = *was;
    c.granted = h->granted;
    c.first = draws ? DIBS__FENCE_NONE : h->first;
    c.block = draws ? e->block : h->block;
    c.ttl_ms = op->ttl_ms;
    c.session = b->store->number;
    c.pid = dibs__process_id();
    put_claim(e, &txn->success, &k->holder, &c, e->fresh_lease ? e->item.id : -1);
  }
  dibs__etcd_op_range(&txn->success, &k->waiters, ",\"count_only\":true");
}

static void put_remove(const element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  bool waiter = e->name.own_waits && !dibs__etcd_name_holder(&e->name, op_of(e)->id);
  const struct dibs__etcd_key *key = waiter ? &k->waiter : &k->holder;
  dibs__etcd_compare(txn, key, DIBS__ETCD_MOD, e->mod);
  dibs__etcd_op_delete(&txn->success, key);
  dibs__etcd_op_range(&txn->success, &k->waiters, ",\"count_only\":true");
}

static void put_notice(const batch *b, const element *e, struct dibs__etcd_text *to, const claim *c) {
  struct dibs__etcd_key key;
  char session[17];
  int len = snprintf(session, sizeof session, "%016llx", (unsigned long long)c->session);
  dibs__etcd_key(b->store, "notice", dibs__str_of(session, (size_t)len), &key);
  dibs__etcd_key_id(&key, c->id, &key);
  dibs__etcd_op_put(to, &key, "broken", 6, e->session);
}

static void put_break(const batch *b, element *e, const struct keys *k, struct dibs__etcd_txn *txn) {
  const struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_key key;
  size_t count = 0;
  dibs__etcd_compare_since(txn, &k->holders, e->name.revision);
  for (size_t i = 0; i < e->name.holder_count && count < BREAK_CHUNK; i++) {
    claim c = e->name.holders[i];
    dibs__etcd_key_id(&k->holders, c.id, &key);
    if (count == 0) dibs__etcd_compare(txn, &key, DIBS__ETCD_MOD, c.mod);
    if (c.breaking && !op->now) continue;
    count++;
    if (!c.breaking) put_notice(b, e, &txn->success, &c);
    c.breaking = true;
    if (!op->now) {
      dibs__etcd_compare(txn, &key, DIBS__ETCD_MOD, c.mod);
      put_claim(e, &txn->success, &key, &c, -1);
    }
  }
  if (op->now) dibs__etcd_op_delete_range(&txn->success, &k->holders);
  if (!e->noted) dibs__etcd_put_break(b, e, &txn->success);
}

/* The gateway parses what is inside of other transactions once for each level: half of its work would be what an
 * element reads in case that it does nothing.  A process that waits somewhere queues, and reads the name, at once. */
static bool can_be_terse(const element *e) {
  if (e->plan == DIBS__ETCD_GUESS) return e->together && !(op_of(e)->queue && e->session);
  return e->plan == DIBS__ETCD_RENEW || e->plan == DIBS__ETCD_REMOVE;
}

void dibs__etcd_lease_put(batch *b, element *e, struct dibs__etcd_txn *txn) {
  struct keys k;
  claim c;
  keys_of(b, e, &k);
  e->writes = e->plan != DIBS__ETCD_READ;
  e->terse = can_be_terse(e);
  if (e->plan == DIBS__ETCD_READ) {
    read_name(b, e, &txn->success);
    return;
  }
  dibs__etcd_compare(txn, &k.bucket, DIBS__ETCD_MOD, e->name.bucket.mod);
  switch (e->plan) {
  case DIBS__ETCD_GUESS:
    put_guess(b, e, &k, txn);
    break;
  case DIBS__ETCD_CONFIRM:
    put_confirm(b, e, &k, txn);
    break;
  case DIBS__ETCD_GRANT:
    put_grant(b, e, &k, txn);
    break;
  case DIBS__ETCD_QUEUE:
  case DIBS__ETCD_AWAKE:
    c = claim_of(b, e, true);
    dibs__etcd_compare(txn, &k.holder, DIBS__ETCD_CREATE, 0);
    dibs__etcd_compare(txn, &k.waiter, DIBS__ETCD_MOD, e->plan == DIBS__ETCD_AWAKE ? e->name.own.mod : 0);
    put_claim(e, &txn->success, &k.waiter, &c, e->session);
    read_name(b, e, &txn->success);
    break;
  case DIBS__ETCD_PUT_OFF:
    put_off(e, &k, txn);
    read_name(b, e, &txn->success);
    break;
  case DIBS__ETCD_RENEW:
    put_renewal(b, e, &k, txn);
    break;
  case DIBS__ETCD_REMOVE:
    put_remove(e, &k, txn);
    break;
  default:
    put_break(b, e, &k, txn);
    break;
  }
  if (!e->terse) read_name(b, e, &txn->failure);
}

/* ---- Answers ---- */

static void answer_holder(batch *b, element *e, const struct dibs__etcd_hold *h) {
  struct dibs__lease_op *op = op_of(e);
  op->fence = h->first;
  op->got_block = h->mode == DIBS_EXCLUSIVE ? h->block : 0;
  op->slot = h->slot;
  op->until.ms = h->until;
  dibs__etcd_hold_set(b->store, op->name, h);
  dibs__etcd_unwatch(b->store, op->id);
  dibs__etcd_done(b, e, DIBS_OK);
}

/* R37: never more than the lease of etcd still lives. */
static int64_t until_of(const element *e, const struct dibs__etcd_item *item) {
  int64_t until = dibs__etcd_ms(e->sent) + op_of(e)->ttl_ms;
  int64_t end = dibs__etcd_ms(item->from) + (int64_t)item->ttl_s * 1000;
  return until < end ? until : end;
}

/* Of ACQUIRE: removes its own key, as another lease has or will have the fence of it, and decides again. */
static void remove_own(element *e, uint64_t mod) {
  e->mod = mod;
  e->ended = true;
  e->own_hold = e->name.own_waits = false;
  plan(e, DIBS__ETCD_REMOVE);
}

static void granted(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_bucket *k = &e->name.bucket;
  if (op->mode == DIBS_EXCLUSIVE && dibs__etcd_epoch_over(k, b->revision)) {
    e->item = (struct dibs__etcd_item){0}; /* a key is on it */
    remove_own(e, b->revision);
    return;
  }
  struct dibs__etcd_hold h = {.id = op->id, .mod = b->revision, .item = e->item, .ttl_ms = op->ttl_ms};
  h.until = until_of(e, &e->item);
  h.mode = op->mode;
  h.slot = e->slot;
  h.block = op->mode == DIBS_EXCLUSIVE ? e->block : 0;
  if (op->mode == DIBS_EXCLUSIVE) h.first = h.granted = dibs__etcd_fence(k->epoch, k->base, b->revision, e->nth);
  if (!k->used && k->served == DIBS__ETCD_OWN) {
    k->used = true;
    k->mod = b->revision;
    dibs__etcd_bucket_learn(b->store, op->op.bucket, k);
  }
  op->op.at.ms = dibs__etcd_ms(e->sent);
  if (e->plan != DIBS__ETCD_CONFIRM)
    op->waiting = e->name.known && e->name.waiter_count > (e->name.own_waits ? 1u : 0u);
  e->item = (struct dibs__etcd_item){0}; /* the holder's */
  answer_holder(b, e, &h);
}

static void renewed(batch *b, element *e, const json_t *responses) {
  struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_hold h = e->hold;
  const struct dibs__etcd_bucket *k = &e->name.bucket;
  bool draws = h.mode == DIBS_EXCLUSIVE && op->want_block;
  if (draws) h.first = dibs__etcd_fence(k->epoch, k->base, b->revision, e->nth);
  if (draws) h.block = e->block;
  if (e->writes) h.mod = b->revision;
  if (e->fresh_lease) h.item = e->item;
  if (e->fresh_lease) e->item = (struct dibs__etcd_item){0};
  if (!e->fresh_lease) h.item.from = e->sent;
  h.asked = false;
  h.ttl_ms = op->ttl_ms;
  h.until = until_of(e, &h.item);
  op->op.at.ms = dibs__etcd_ms(e->sent);
  op->waiting = dibs__etcd_number(dibs__etcd_range_at(responses, e->writes ? 1 : 0), "count") > 0;
  answer_holder(b, e, &h);
  if (draws && dibs__etcd_epoch_over(k, b->revision)) op->got_block = 0; /* the block is of the next epoch */
}

static void removed(batch *b, element *e, const json_t *responses) {
  struct dibs__lease_op *op = op_of(e);
  bool waiter = e->name.own_waits && !dibs__etcd_name_holder(&e->name, op->id);
  op->waiting = dibs__etcd_number(dibs__etcd_range_at(responses, 1), "count") > 0;
  dibs__etcd_hold_drop(b->store, op->name, op->id);
  dibs__etcd_unwatch(b->store, op->id);
  if (e->own_hold && !waiter && !e->ended) dibs__etcd_item_return(b->store, &e->hold.item);
  dibs__etcd_end_seen(b->store, op->name, b->revision);
  if (e->ended && op->op.verb == DIBS__ACQUIRE) {
    e->own_hold = e->ended = false;
    plan(e, DIBS__ETCD_READ);
    return;
  }
  if (op->op.verb == DIBS__CANCEL)
    op->was = !waiter ? DIBS__WAS_HELD : e->name.own.offered ? DIBS__WAS_OFFERED : DIBS__WAS_WAITING;
  if (e->ended && op->op.verb == DIBS__CANCEL) op->was = DIBS__WAS_NOTHING;
  dibs__etcd_done(b, e, !e->ended ? DIBS_OK : op->op.verb == DIBS__CANCEL ? DIBS_NOT_FOUND : DIBS_LOST);
}

static void broken(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  size_t left = 0;
  e->noted = true;
  e->item = (struct dibs__etcd_item){0}; /* the record's */
  for (size_t i = 0; i < e->name.holder_count; i++) left += !e->name.holders[i].breaking;
  if (!op->now && left > BREAK_CHUNK) {
    plan(e, DIBS__ETCD_READ);
    return;
  }
  if (op->now) op->until.ms = now_ms();
  if (op->now) dibs__etcd_end_seen(b->store, op->name, b->revision);
  dibs__etcd_done(b, e, DIBS_OK);
}

/* ---- Decisions ---- */

/* When a holder ends, as far as we know; of another process, at the latest. */
static int64_t end_of(const batch *b, const element *e, const claim *c) {
  struct dibs__etcd_hold h;
  if (dibs__etcd_hold_find(b->store, op_of(e)->name, c->id, &h) && h.mod == c->mod) return h.until;
  return now_ms() + c->ttl_ms;
}

static int64_t recheck_of(const batch *b, const element *e) {
  int64_t first = INT64_MAX, now = dibs__etcd_ms(e->sent);
  for (size_t i = 0; i < e->name.holder_count; i++) {
    int64_t end = end_of(b, e, &e->name.holders[i]);
    if (end < first) first = end;
  }
  for (size_t i = 0; i < e->name.front_count; i++) {
    const claim *c = &e->name.front[i];
    if (!c->offered) continue;
    int64_t end = now + DIBS__ETCD_OFFER_MS - dibs__etcd_offer_age(b->store, op_of(e)->name, c->id, c->mod);
    if (end < first) first = end;
  }
  return first;
}

/* A holder whose time is over for this process, which has granted or renewed it itself.  Its key is removed only if
 * etcd reports that less than a second is left: each renewal gives the lease of etcd at least a second more than the
 * ttl, so what another process has renewed is over, too.  (A spare lease may have less left: so a time that this
 * process only read from etcd tells nothing.)  Else a renewal is refused, unless more is left: another process has
 * renewed it.  true: decided. */
static bool ended_here(batch *b, element *e, const claim *c) {
  int64_t left_s, granted_s, now = now_ms();
  if (!e->own_hold || e->hold.asked || e->hold.until > now) return false;
  int64_t ours_ms = dibs__etcd_ms(e->hold.item.from) + (int64_t)e->hold.item.ttl_s * 1000 - now;
  if (dibs__etcd_left(b->link, c->lease, b->by, &left_s, &granted_s, b->result) != DIBS_OK) {
    dibs__etcd_done(b, e, DIBS_UNAVAILABLE);
    return true;
  }
  if (left_s <= 0) {
    e->ended = true;
    e->mod = c->mod;
    plan(e, DIBS__ETCD_REMOVE);
    return true;
  }
  if (op_of(e)->op.verb != DIBS__RENEW || left_s * 1000 > ours_ms) {
    int64_t left_ms = (left_s - granted_s) * 1000 + c->ttl_ms;
    e->hold.until = now + (left_ms > 0 ? left_ms : 0);
    return false;
  }
  dibs__etcd_done(b, e, DIBS_LOST);
  return true;
}

static void acquire_held(batch *b, element *e, const claim *c) {
  struct dibs__etcd_hold now;
  dibs__etcd_hold_of(e, c);
  /* Another session of this process may have been granted it meanwhile, and knows its end exactly. */
  if (!e->own_hold && dibs__etcd_hold_find(b->store, op_of(e)->name, c->id, &now) && now.mod == c->mod) {
    e->hold = now;
    e->own_hold = true;
  }
  if (c->breaking) {
    dibs__etcd_done(b, e, DIBS_LOST);
    return;
  }
  if ((c->over && e->name.bucket.served == DIBS__ETCD_SERVED) || c->mod < dibs__etcd_meta_of(b->store).mod) {
    remove_own(e, c->mod);
    return;
  }
  if (ended_here(b, e, c)) return;
  if (!e->own_hold && dibs__etcd_until(b->link, c->lease, b->by, &e->hold, b->result) != DIBS_OK) {
    dibs__etcd_done(b, e, DIBS_UNAVAILABLE);
    return;
  }
  op_of(e)->waiting = e->name.waiter_count > 0;
  answer_holder(b, e, &e->hold);
}

/* R46.  true: it is answered. */
static bool acquire_left(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  const claim *other = e->name.holder_count ? &e->name.holders[0] : NULL;
  bool unlike = other && other->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && other->slots != op->slots;
  if (b->store->as_tier && other && (unlike || dibs__etcd_name_fits(&e->name, op->mode, op->slots))) return false;
  op->op.has = b->store->as_tier ? op->op.mandate : (dibs__mandate){0};
  if (other) op->recheck.ms = recheck_of(b, e);
  dibs__etcd_done(b, e, !b->store->as_tier ? DIBS_DENIED : other ? DIBS_HELD : DIBS__MOVED);
  return true;
}

/* Marks the offers that nobody confirmed: `asleep`, and still `offered`, are put off. */
static bool late_offers(const batch *b, element *e) {
  const struct dibs__lease_op *op = op_of(e);
  bool late = false, confirms = op->op.verb == DIBS__ACQUIRE;
  for (size_t i = 0; i < e->name.front_count; i++) {
    claim *c = &e->name.front[i];
    if (!c->offered || (confirms && dibs__id_equal(c->id, op->id))) continue;
    if (dibs__etcd_offer_age(b->store, op->name, c->id, c->mod) < DIBS__ETCD_OFFER_MS) continue;
    c->asleep = late = true;
  }
  return late;
}

static void answer_waiter(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  const struct dibs__etcd_name *n = &e->name;
  op->ticket = n->own.create;
  op->ahead = n->own_in_front ? (uint32_t)n->own_at : DIBS__ETCD_FRONT;
  op->recheck.ms = recheck_of(b, e);
  op->waiting = true;
  if (n->own_in_front) /* those far behind check again each second, as every waiter does */
    dibs__etcd_watch(b->store, op, n);
  dibs__etcd_done(b, e, DIBS__QUEUED);
}

static void plan_grant(element *e) {
  struct dibs__lease_op *op = op_of(e);
  e->slot = op->mode == DIBS_COUNTED ? dibs__etcd_free_slot(&e->name, op->slots) : 0;
  plan(e, DIBS__ETCD_GRANT);
}

/* The id is in the queue. */
static void acquire_waiting(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_name *n = &e->name;
  bool awake_before = false;
  if (n->own_in_front && n->own.offered) {
    plan_grant(e);
    return;
  }
  for (size_t i = 0; n->own_in_front && i < n->own_at; i++)
    awake_before = awake_before || (!n->front[i].asleep && !n->front[i].offered);
  if (n->own.asleep && n->own_in_front && !awake_before && n->bucket.served != DIBS__ETCD_LEFT &&
      dibs__etcd_name_fits(n, op->mode, op->slots)) {
    plan_grant(e);
    return;
  }
  bool others = false;
  for (size_t i = 0; i < n->front_count; i++) others = others || n->front[i].offered;
  /* A sleeper does not take what is offered: it stays asleep until that offer is confirmed, or late. */
  if (n->own.asleep && others && late_offers(b, e))
    plan(e, DIBS__ETCD_PUT_OFF);
  else if (n->own.asleep && others)
    answer_waiter(b, e);
  else if (n->own.asleep || n->own.session != b->store->number || n->own.lease != dibs__etcd_session_lease(b->store))
    plan(e, DIBS__ETCD_AWAKE);
  else if (late_offers(b, e))
    plan(e, DIBS__ETCD_PUT_OFF);
  else
    answer_waiter(b, e);
}

static void acquire_new(batch *b, element *e, bool awake) {
  struct dibs__lease_op *op = op_of(e);
  struct dibs__etcd_name *n = &e->name;
  const claim *other = n->holder_count ? &n->holders[0] : NULL;
  bool left = n->bucket.served == DIBS__ETCD_LEFT;
  if (other && other->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && other->slots != op->slots)
    dibs__etcd_done(b, e, DIBS_INVALID);
  else if ((left || !awake) && dibs__etcd_name_fits(n, op->mode, op->slots))
    plan_grant(e);
  else if (late_offers(b, e))
    plan(e, DIBS__ETCD_PUT_OFF);
  else if (op->queue)
    plan(e, DIBS__ETCD_QUEUE);
  else {
    op->recheck.ms = recheck_of(b, e);
    op->waiting = n->waiter_count > 0;
    dibs__etcd_done(b, e, DIBS_HELD);
  }
}

static void decide_acquire(batch *b, element *e) {
  struct dibs__etcd_name *n = &e->name;
  bool awake, left = n->bucket.served == DIBS__ETCD_LEFT;
  const claim *held = dibs__etcd_name_holder(n, op_of(e)->id);
  dibs__etcd_name_offers(n, &awake);
  if (held)
    acquire_held(b, e, held);
  else if (n->own_waits && left) {
    e->mod = n->own.mod;
    e->ended = true; /* it leaves the queue, and is decided again */
    plan(e, DIBS__ETCD_REMOVE);
  } else if (n->own_waits)
    acquire_waiting(b, e);
  else if (!left || !acquire_left(b, e))
    acquire_new(b, e, awake);
}

/* RENEW, RELEASE */
static void decide_granted(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  const claim *c = dibs__etcd_name_holder(&e->name, op->id);
  op->waiting = e->name.waiter_count > 0;
  if (c) dibs__etcd_hold_of(e, c);
  if (c && ended_here(b, e, c)) return;
  if (!c || !fence_fits(op, c->mode, c->granted, c->first, c->block) || (c->breaking && op->op.verb == DIBS__RENEW)) {
    if (!c) dibs__etcd_hold_drop(b->store, op->name, op->id);
    dibs__etcd_done(b, e, DIBS_LOST);
    return;
  }
  e->mod = c->mod;
  plan(e, op->op.verb == DIBS__RENEW ? DIBS__ETCD_RENEW : DIBS__ETCD_REMOVE);
}

static void decide_cancel(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  const claim *c = dibs__etcd_name_holder(&e->name, op->id);
  bool awake;
  dibs__etcd_name_offers(&e->name, &awake);
  op->waiting = e->name.waiter_count > 0;
  if (c) dibs__etcd_hold_of(e, c);
  if (late_offers(b, e)) {
    plan(e, DIBS__ETCD_PUT_OFF);
    return;
  }
  bool waits = !c && e->name.own_waits;
  if (!c && !waits) dibs__etcd_unwatch(b->store, op->id);
  if ((!c && !waits) || (op->only_waits && (c || e->name.own.session != b->store->number))) { /* R84 */
    dibs__etcd_done(b, e, DIBS_NOT_FOUND);
    return;
  }
  if (c && ended_here(b, e, c)) return;
  e->mod = c ? c->mod : e->name.own.mod;
  plan(e, DIBS__ETCD_REMOVE);
}

static void decide_break(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  size_t unbroken = 0;
  int64_t last = now_ms();
  for (size_t i = 0; i < e->name.holder_count; i++) {
    int64_t end = end_of(b, e, &e->name.holders[i]);
    unbroken += !e->name.holders[i].breaking;
    if (end > last) last = end;
  }
  op->until.ms = last;
  op->waiting = e->name.waiter_count > 0;
  if (e->name.holder_count == 0)
    dibs__etcd_done(b, e, e->noted ? DIBS_OK : DIBS_NOT_FOUND);
  else if (unbroken == 0 && !op->now)
    dibs__etcd_done(b, e, DIBS_OK);
  else
    plan(e, DIBS__ETCD_BREAK);
}

static void decide(batch *b, element *e) {
  struct dibs__lease_op *op = op_of(e);
  if (!dibs__etcd_mandate_valid(b->store, &e->name.bucket, b->revision, op)) {
    if (op->op.status == DIBS_DENIED)
      dibs__set_message(b->result, "%.100s is a tier; open it with all its tiers: --store FIRST,SECOND",
                        b->store->location.shown);
    dibs__etcd_done(b, e, op->op.status);
    return;
  }
  switch ((enum dibs__lease_verb)op->op.verb) {
  case DIBS__ACQUIRE:
    decide_acquire(b, e);
    break;
  case DIBS__RENEW:
  case DIBS__RELEASE:
    decide_granted(b, e);
    break;
  case DIBS__CANCEL:
    decide_cancel(b, e);
    break;
  case DIBS__BREAK:
    decide_break(b, e);
    break;
  }
}

void dibs__etcd_lease_take(batch *b, element *e, const json_t *txn) {
  const json_t *responses = json_object_get(txn, "responses");
  bool succeeded = json_is_true(json_object_get(txn, "succeeded"));
  size_t at = 0;
  bool did = succeeded && e->plan != DIBS__ETCD_READ;
  if (did && (e->plan == DIBS__ETCD_GUESS || e->plan == DIBS__ETCD_GRANT || e->plan == DIBS__ETCD_CONFIRM)) {
    const json_t *waiters = dibs__etcd_range_at(responses, json_array_size(responses) - 1);
    if (e->plan == DIBS__ETCD_CONFIRM) op_of(e)->waiting = dibs__etcd_number(waiters, "count") > 0;
    granted(b, e);
    return;
  }
  if (did && e->plan == DIBS__ETCD_RENEW) {
    if (e->fresh_lease || (e->kept && e->term == b->term)) {
      renewed(b, e, responses);
      return;
    }
    e->kept = false; /* another leader since the lease was kept alive: it may not know of that */
    if (++e->rounds == TERM_TRIES) dibs__etcd_done(b, e, DIBS_UNAVAILABLE);
    return;
  }
  if (did && e->plan == DIBS__ETCD_REMOVE) {
    removed(b, e, responses);
    return;
  }
  if (did && e->plan == DIBS__ETCD_BREAK) {
    broken(b, e);
    return;
  }
  if (!succeeded && e->terse) {
    plan(e, DIBS__ETCD_READ);
    return;
  }
  if (e->plan == DIBS__ETCD_GUESS) at = 1; /* the transaction that queues */
  if (did && (e->plan == DIBS__ETCD_QUEUE || e->plan == DIBS__ETCD_AWAKE)) at = 1;
  if (did && e->plan == DIBS__ETCD_PUT_OFF) dibs__etcd_end_seen(b->store, op_of(e)->name, b->revision);
  if (did && e->plan == DIBS__ETCD_PUT_OFF) at = json_array_size(responses) - DIBS__ETCD_READS;
  plan(e, DIBS__ETCD_READ);
  if (!dibs__etcd_name_read(b->store, op_of(e), responses, at, b->revision, &e->name)) {
    dibs__etcd_done(b, e, DIBS_NO_MEMORY);
  } else if (e->name.foreign[0]) {
    dibs__set_message(b->result, "%.80s: the key %.160s is not one of dibs; delete it", b->store->location.shown,
                      e->name.foreign);
    dibs__etcd_done(b, e, DIBS_CORRUPT);
  } else {
    decide(b, e);
  }
}
