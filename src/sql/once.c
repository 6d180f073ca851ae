/* SPDX-License-Identifier: MIT */
/*
 * Once keys: a row a key, with the latest attempt and perhaps an answer.
 *
 * No operation reads before it writes: a conditional update has the conditions, and a read of the row after it, under
 * its lock, shows the result.  So any number of them is one transaction in one packet, in the order of their keys;
 * each key comes once in it.  A packet that failed is sent again in single steps, so that a row which another client
 * locks for long fails only its own operations.
 *
 * Inside a user's transaction the new row keeps others out: INSERT waits for the transaction that inserted the same
 * key until it commits or rolls back.  It is never a plain INSERT: an INSERT that fails because of another's row
 * leaves a shared lock on that row in MariaDB, and two transactions that then both write it are a deadlock.
 */
#include "sql/wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TOGETHER = 64,            /* operations in a transaction */
  BYTES_TOGETHER = 2 << 20, /* of answers in one packet */
  SWEPT = 100,              /* rows in a sweep */
  TEXT_MAX = 1200,
  TRIES_INSIDE = 8,
  NAP_MS = 2,
  NAP_MAX_MS = 50
};

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__once_op once;

/* One operation of a packet. */
struct item {
  once *op;
  size_t order;  /* as the caller gave it */
  bool insert;   /* the row may be missing */
  size_t answer; /* the statement that shows the result */
};

/* ---- Texts ---- */

/* Whether this attempt may have the row, which has no valid answer.  $2 fence, $3 owner. */
static const char *may_begin(const once *op) {
  return op->fence.v ? "(fence < $2 OR (fence = $2 AND owner = $3))"
                     : "(fence <= $2 OR owner = 0 OR owner = $3 OR data IS NOT NULL)";
}
static const char *may_store(const once *op) {
  return op->fence.v ? "(fence < $2 OR (fence = $2 AND owner = $3))" : "(fence >= $2 AND owner = $3)";
}

static sql_rc put_text(const struct dibs__sql_guard *g, const char *text, const value *values, size_t count) {
  return g->wire->engine->put(g->wire, text, values, count);
}

static value key_of(const once *op) {
  return dibs__sql_text(op->key.p, op->key.len);
}

static sql_rc put_read(const struct dibs__sql_guard *g, const once *op) {
  const char *now = g->wire->engine->now_ms;
  char text[TEXT_MAX];
  value values[] = {key_of(op)};
  snprintf(text, sizeof text,
           "SELECT data, %s - made, until - %s FROM %sonce WHERE name = $1 AND until > %s AND data IS NOT NULL", now,
           now, g->prefix, now);
  return put_text(g, text, values, 1);
}

static sql_rc put_insert(const struct dibs__sql_guard *g, const value values[4]) {
  const struct dibs__sql_engine *e = g->wire->engine;
  char text[TEXT_MAX];
  snprintf(text, sizeof text,
           "INSERT INTO %sonce (name, fence, owner, made, until) VALUES ($1, $2, $3, %s, %s + $4) %s", g->prefix,
           e->now_ms, e->now_ms, e->on_conflict ? "ON CONFLICT DO NOTHING" : "ON DUPLICATE KEY UPDATE name = name");
  return put_text(g, text, values, 4);
}

static sql_rc put_update(const struct dibs__sql_guard *g, const once *op, const value values[5]) {
  bool stores = op->op.verb == DIBS__ONCE_STORE;
  const char *now = g->wire->engine->now_ms;
  char text[TEXT_MAX];
  snprintf(text, sizeof text,
           "UPDATE %sonce SET fence = CASE WHEN fence < $2 THEN $2 ELSE fence END, owner = $3, made = %s,"
           " until = %s + $4, data = %s WHERE name = $1 AND (data IS NULL OR until <= %s) AND %s",
           g->prefix, now, now, stores ? "$5" : "NULL", now, stores ? may_store(op) : may_begin(op));
  return put_text(g, text, values, stores ? 5 : 4);
}

/* An answer that this operation stores is not read back. */
static sql_rc put_lookup(const struct dibs__sql_guard *g, const once *op, const value values[3]) {
  const struct dibs__sql_engine *e = g->wire->engine;
  bool stores = op->op.verb == DIBS__ONCE_STORE;
  char text[TEXT_MAX];
  snprintf(text, sizeof text,
           "SELECT fence, owner, %s, CASE WHEN data IS NULL THEN NULL ELSE until - %s END, %s - made, until - %s"
           " FROM %sonce WHERE name = $1%s",
           stores ? "CASE WHEN owner = $3 AND fence >= $2 THEN NULL ELSE data END" : "data", e->now_ms, e->now_ms,
           e->now_ms, g->prefix, e->for_update);
  return put_text(g, text, values, stores ? 3 : 1);
}

static sql_rc put_attempt(const struct dibs__sql_guard *g, struct item *item) {
  const once *op = item->op;
  value values[] = {key_of(op), dibs__sql_number((int64_t)op->fence.v),
                    dibs__sql_number((int64_t)dibs__id_digest(op->id)), dibs__sql_number(op->keep_ms),
                    dibs__sql_bytes(op->data.p, op->data.len)};
  sql_rc end = item->insert ? put_insert(g, values) : DIBS__SQL_OK;
  if (end == DIBS__SQL_OK) end = put_update(g, op, values);
  item->answer = g->wire->put;
  if (end == DIBS__SQL_OK) end = put_lookup(g, op, values);
  return end;
}

static sql_rc put_ending(const struct dibs__sql_guard *g, struct item *item) {
  const once *op = item->op;
  bool forgets = op->op.verb == DIBS__ONCE_FORGET;
  value values[] = {key_of(op), dibs__sql_number((int64_t)dibs__id_digest(op->id))};
  char text[TEXT_MAX];
  if (forgets)
    snprintf(text, sizeof text,
             "UPDATE %sonce SET data = NULL, owner = 0 WHERE name = $1 AND data IS NOT NULL AND until > %s", g->prefix,
             g->wire->engine->now_ms);
  else
    snprintf(text, sizeof text, "UPDATE %sonce SET owner = 0 WHERE name = $1 AND owner = $2 AND data IS NULL",
             g->prefix);
  item->answer = g->wire->put;
  return put_text(g, text, values, forgets ? 1 : 2);
}

static bool is_attempt(const once *op) {
  return op->op.verb == DIBS__ONCE_BEGIN || op->op.verb == DIBS__ONCE_STORE;
}

static sql_rc put_item(const struct dibs__sql_guard *g, struct item *item) {
  if (item->op->op.verb == DIBS__ONCE_READ) {
    item->answer = g->wire->put;
    return put_read(g, item->op);
  }
  return is_attempt(item->op) ? put_attempt(g, item) : put_ending(g, item);
}

/* ---- Answers ---- */

static void hand_out(once *op, dibs__status status, value data, int64_t age_ms, int64_t left_ms) {
  op->op.status = status;
  op->age_ms = age_ms > 0 ? age_ms : 0; /* a wall clock may be set back */
  op->left_ms = left_ms;
  if (data.kind == DIBS__SQL_NULL) return;
  op->got = malloc((size_t)data.len + 1);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (data.len) memcpy(op->got, data.p, data.len);
  op->got[data.len] = '\0';
  op->got_len = data.len;
}

static void read_answer(const struct dibs__sql_wire *w, const struct item *item) {
  item->op->op.status = DIBS_NOT_FOUND;
  if (w->engine->rows(w, item->answer) == 0) return;
  hand_out(item->op, DIBS_OK, w->engine->cell(w, item->answer, 0, 0, DIBS__SQL_BYTES),
           dibs__sql_cell_number(w, item->answer, 0, 1), dibs__sql_cell_number(w, item->answer, 0, 2));
}

/* false: there is no row. */
static bool answer_attempt(const struct dibs__sql_wire *w, const struct item *item) {
  once *op = item->op;
  size_t nth = item->answer;
  if (w->engine->rows(w, nth) == 0) return false;
  uint64_t fence = (uint64_t)dibs__sql_cell_number(w, nth, 0, 0), owner = (uint64_t)dibs__sql_cell_number(w, nth, 0, 1);
  value good_for = w->engine->cell(w, nth, 0, 3, DIBS__SQL_NUMBER);
  bool mine = owner == dibs__id_digest(op->id) && (op->fence.v == 0 || fence == op->fence.v);
  bool has_answer = good_for.kind != DIBS__SQL_NULL;
  dibs__status status = op->fence.v || op->op.verb == DIBS__ONCE_STORE ? DIBS_STALE : DIBS_HELD;
  /* An answer with 0 ms left is valid, too: this very statement may have stored it. */
  if (mine && has_answer == (op->op.verb == DIBS__ONCE_STORE))
    status = DIBS_OK;
  else if (has_answer && good_for.number > 0)
    status = DIBS_REPLAY;
  value data = status == DIBS_REPLAY ? w->engine->cell(w, nth, 0, 2, DIBS__SQL_BYTES) : dibs__sql_null();
  hand_out(op, status, data, dibs__sql_cell_number(w, nth, 0, 4), dibs__sql_cell_number(w, nth, 0, 5));
  return true;
}

/* false: run it again, and insert its row first. */
static bool read_item(const struct dibs__sql_wire *w, struct item *item) {
  once *op = item->op;
  if (op->op.verb == DIBS__ONCE_READ) {
    read_answer(w, item);
    return true;
  }
  if (is_attempt(op)) return answer_attempt(w, item);
  op->op.status = w->engine->changed(w, item->answer) > 0 ? DIBS_OK : DIBS_NOT_FOUND;
  return true;
}

/* ---- A packet ---- */

/* All of it, as one transaction unless it only reads.  OK: each is answered, or its `insert` is set. */
static sql_rc send_items(struct dibs__sql_guard *g, struct item *items, size_t count, bool reads) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = reads ? DIBS__SQL_OK : dibs__sql_begin(w);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = put_item(g, &items[i]);
  if (!reads && end == DIBS__SQL_OK) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, !reads && !w->inside);
  if (end != DIBS__SQL_OK) {
    if (!reads && !dibs__sql_dead(w) && !w->unsure) dibs__sql_rollback(w);
    return end;
  }
  if (!reads && !w->inside) g->commits++;
  for (size_t i = 0; i < count; i++)
    if (!read_item(w, &items[i])) items[i].insert = true;
  return end;
}

static bool is_hopeless(const struct dibs__sql_wire *w) {
  return dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE;
}

/* Answers a step that failed and is not tried again. */
static void answer_refused(struct dibs__sql_guard *g, once *op) {
  const struct dibs__sql_wire *w = g->wire;
  op->op.status = dibs__sql_explain(w, "store a once key in", g->store, g->result);
  if (!w->inside || w->trouble != DIBS__SQL_DEADLOCK) return;
  op->op.status = DIBS_CONFLICT;
  dibs__set_message(g->result, "the transaction can't continue: %s; roll it back and begin again", w->message);
}

/* Runs one by itself, until it is answered or its time is over. */
static sql_rc run_item(struct dibs__sql_guard *g, struct item *item) {
  struct dibs__sql_wire *w = g->wire;
  bool reads = item->op->op.verb == DIBS__ONCE_READ;
  int beginnings = 0;
  for (int64_t nap_ms = NAP_MS;; nap_ms = nap_ms * 2 < NAP_MAX_MS ? nap_ms * 2 : NAP_MAX_MS) {
    sql_rc end = send_items(g, item, 1, reads);
    if (end == DIBS__SQL_OK && item->op->op.status != DIBS_UNKNOWN) return end;
    if (end != DIBS__SQL_OK && is_hopeless(w)) return end;
    bool again = end == DIBS__SQL_OK || w->trouble == DIBS__SQL_DEADLOCK;
    if (w->inside) again = end == DIBS__SQL_OK && ++beginnings < TRIES_INSIDE;
    if (again && dibs__tick_left_ms(dibs__tick_now(), w->by) > (end == DIBS__SQL_OK ? 0 : nap_ms)) {
      if (end != DIBS__SQL_OK) dibs__nap_ms(nap_ms);
      continue;
    }
    if (end == DIBS__SQL_OK) /* the row is inserted and deleted repeatedly */
      dibs__sql_fail(w, DIBS__SQL_LOCKED, "other clients created and removed the row until the deadline");
    answer_refused(g, item->op);
    return DIBS__SQL_OK;
  }
}

static sql_rc run_items(struct dibs__sql_guard *g, struct item *items, size_t count) {
  bool reads = items[0].op->op.verb == DIBS__ONCE_READ;
  sql_rc end = count > 1 ? send_items(g, items, count, reads) : DIBS__SQL_FAILED;
  if (count > 1 && end != DIBS__SQL_OK && is_hopeless(g->wire)) return end;
  end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (items[i].op->op.status == DIBS_UNKNOWN) end = run_item(g, &items[i]);
  return end;
}

/* ---- A batch ---- */

static bool once_valid(const once *op) {
  if (op->op.verb > DIBS__ONCE_LEAVE || op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  return !is_attempt(op) || (op->keep_ms > 0 && op->data.len <= DIBS_RECORD_MAX);
}

static int by_key(const void *left, const void *right) {
  const struct item *a = left, *b = right;
  uint32_t least = a->op->key.len < b->op->key.len ? a->op->key.len : b->op->key.len;
  int order = memcmp(a->op->key.p, b->op->key.p, least);
  if (order == 0) order = (a->op->key.len > b->op->key.len) - (a->op->key.len < b->op->key.len);
  return order != 0 ? order : (a->order > b->order) - (a->order < b->order);
}

static bool has_key(const struct item *items, size_t count, dibs__str key) {
  for (size_t i = 0; i < count; i++)
    if (dibs__str_equal(items[i].op->key, key)) return true;
  return false;
}

/* How many of the first may travel together: only reads or only writes, and no key twice, which keeps the order. */
static size_t gather_items(struct item items[TOGETHER], once *const ops[], size_t count) {
  size_t taken = 0, bytes = 0;
  bool reads = ops[0]->op.verb == DIBS__ONCE_READ;
  for (; taken < count && taken < TOGETHER; taken++) {
    once *op = ops[taken];
    bytes += op->data.len;
    if ((op->op.verb == DIBS__ONCE_READ) != reads || (taken > 0 && bytes > BYTES_TOGETHER)) break;
    if (!reads && has_key(items, taken, op->key)) break;
    items[taken] = (struct item){.op = op, .order = taken, .insert = op->op.verb == DIBS__ONCE_BEGIN};
  }
  if (!reads) qsort(items, taken, sizeof *items, by_key);
  return taken;
}

sql_rc dibs__sql_once(struct dibs__sql_guard *g, once *const ops[], size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++) {
    ops[i]->got = NULL;
    ops[i]->got_len = 0;
    ops[i]->age_ms = ops[i]->left_ms = 0;
    ops[i]->op.status = once_valid(ops[i]) ? DIBS_UNKNOWN : DIBS_INVALID;
  }
  for (size_t at = 0; at < count && end == DIBS__SQL_OK;) {
    struct item items[TOGETHER];
    size_t run = 0;
    if (ops[at]->op.status == DIBS_INVALID) {
      at++;
      continue;
    }
    while (at + run < count && ops[at + run]->op.status != DIBS_INVALID) run++;
    size_t taken = gather_items(items, ops + at, run);
    assert(taken > 0);
    end = run_items(g, items, taken);
    at += taken;
  }
  return end;
}

sql_rc dibs__sql_once_sweep(struct dibs__sql_guard *g, bool *more) {
  return dibs__sql_sweep(g, "dibs_once", "name", SWEPT, more);
}
