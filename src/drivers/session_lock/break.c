/* SPDX-License-Identifier: MIT */
/*
 * Breaking and listing.
 *
 * A lock of another process can only be taken by ending the connection that has it, with all its other locks.  So
 * that is done only for a break at once.  A lock of this store is broken without the server.
 *
 * The server knows keys, not names.  For one given name, it shows which connections hold it and wait for it; a
 * listing of all names shows this process alone.
 */
#include "drivers/session_lock/session_lock_impl.h"

#include <inttypes.h>
#include <stdio.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;
typedef struct dibs__session_locks locks_t;
typedef struct dibs__hold hold;

enum { HOLDERS = 64, LOOK_MS = 1000 };

/* The server's connections that hold a name, or wait for it, on the session's connection. */
static sql_rc connections_of(session *s, const char *text, dibs__str name, int64_t *ids, size_t *count) {
  struct dibs__server_key key;
  const struct dibs__sql_engine *engine = s->rows.wire->engine;
  size_t nth = s->rows.wire->put;
  *count = 0;
  dibs__lock_key(s->store->locks, name, &key);
  sql_rc end = engine->put(s->rows.wire, text, &key.value, 1);
  if (end == DIBS__SQL_OK) end = engine->go(s->rows.wire, false);
  for (size_t i = 0; end == DIBS__SQL_OK && i < engine->rows(s->rows.wire, nth) && *count < HOLDERS; i++) {
    int64_t id = dibs__sql_cell_number(s->rows.wire, nth, i, 0);
    if (id) ids[(*count)++] = id;
  }
  return end;
}

static bool is_ours_locked(const locks_t *locks, int64_t id) {
  if (locks->base.wire && !locks->base.gone && locks->base.id == id) return true;
  for (const struct dibs__link *link = locks->links; link; link = link->next)
    if (!link->gone && link->id == id) return true;
  return false;
}

static bool is_ours(locks_t *locks, int64_t id) {
  dibs__mutex_lock(&locks->lock);
  bool ours = is_ours_locked(locks, id);
  dibs__mutex_unlock(&locks->lock);
  return ours;
}

/* ---- Breaking ---- */

struct breaking {
  session *s;
  locks_t *locks;
  struct dibs__lease_op *op;
  uint64_t fence;
  uint32_t mode;
  uint32_t broken;
  char from[DIBS_OWNER_MAX + 1]; /* of a holder of this store; the server knows no other owners */
  bool fresh;
};

/* The holders of this store; the caller goes through the links. */
static void break_ours_locked(struct breaking *k) {
  for (hold *h = k->locks->all, *next; h; h = next) {
    next = h->next;
    if (h->state != DIBS__HOLD_HOLDS || !dibs__str_equal(dibs__hold_name(h), k->op->name)) continue;
    k->broken++;
    k->fresh = k->fresh || !h->broken;
    k->mode = h->mode;
    snprintf(k->from, sizeof k->from, "%.*s", (int)h->owner.len, h->owner.text);
    if (h->first > k->fence) k->fence = h->first;
    if (h->until > k->op->until.ms) k->op->until.ms = h->until;
    h->broken = true;
    dibs__hold_tell_locked(k->locks, h);
    if (!k->op->now) continue;
    dibs__link_put_drop(k->locks, h);
    h->state = DIBS__HOLD_GONE;
    h->until = dibs__lock_now() + DIBS__LOCK_GONE_MS;
    k->locks->due = 0;
  }
}

static sql_rc kill_others(struct breaking *k, dibs__tick by, bool *left) {
  int64_t ids[HOLDERS];
  size_t count;
  const struct dibs__sql_engine *engine = k->s->rows.wire->engine;
  *left = false;
  sql_rc end = connections_of(k->s, k->locks->how->holders, k->op->name, ids, &count);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    if (is_ours(k->locks, ids[i])) continue;
    *left = true;
    if (!k->op->now) continue;
    struct dibs__sql_value v = dibs__sql_number(ids[i]);
    end = engine->put(k->s->rows.wire, k->locks->how->kill, &v, 1);
    if (end == DIBS__SQL_OK) end = engine->go(k->s->rows.wire, false);
    /* A connection that has gone meanwhile is the goal, too; DENIED is an answer. */
    if (end == DIBS__SQL_FAILED && !dibs__sql_dead(k->s->rows.wire) && k->s->rows.wire->trouble != DIBS__SQL_DENIED)
      end = DIBS__SQL_OK;
  }
  (void)by;
  return end;
}

/* The server ends a connection with some delay. */
static sql_rc end_others(struct breaking *k, dibs__tick by, bool *any) {
  bool left;
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), LOOK_MS));
  sql_rc end = kill_others(k, by, &left);
  *any = left;
  while (end == DIBS__SQL_OK && left && k->op->now && dibs__tick_before(dibs__tick_now(), until)) {
    dibs__nap_ms(1);
    end = kill_others(k, by, &left);
  }
  return end;
}

static sql_rc record_break(struct breaking *k) {
  struct dibs__sql_head head = {.bucket = k->op->op.bucket, .name = k->op->name};
  struct dibs__sql_break row = {.fence = k->fence, .mode = k->mode};
  size_t nth;
  sql_rc end = dibs__rows_request(&k->s->rows, DIBS__SERVER_NOW, NULL, 0, &nth);
  if (end != DIBS__SQL_OK) return end;
  char owner[DIBS__BREAK_OWNER_MAX];
  row.owner = dibs__break_owner(owner, k->op->owner, dibs__str_of(k->from, strlen(k->from)));
  row.at = dibs__sql_cell_number(k->s->rows.wire, nth, 0, 0);
  end = dibs__sql_begin(k->s->rows.wire);
  if (end == DIBS__SQL_OK) end = dibs__rows_break_add(&k->s->rows, &head, &row);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(k->s->rows.wire);
  if (end == DIBS__SQL_OK) end = k->s->rows.wire->engine->go(k->s->rows.wire, true);
  if (end != DIBS__SQL_OK && !dibs__sql_dead(k->s->rows.wire)) dibs__sql_rollback(k->s->rows.wire);
  return end;
}

void dibs__lock_break(session *s, struct dibs__lease_op *op, int64_t now, dibs__tick by, struct dibs__result *result) {
  struct breaking k = {.s = s, .locks = s->store->locks, .op = op};
  bool others = false;
  op->until.ms = 0;
  op->op.status = DIBS_NOT_FOUND;
  dibs__mutex_lock(&k.locks->lock);
  break_ours_locked(&k);
  dibs__mutex_unlock(&k.locks->lock);
  if (k.broken) dibs__lock_notify(k.locks);
  if (op->now) op->until.ms = now;
  dibs__link_go(k.locks, by);
  s->rows.wire->by = by;
  sql_rc end = end_others(&k, by, &others);
  if (end == DIBS__SQL_OK && ((others && op->now) || k.fresh)) {
    result->commits++;
    end = record_break(&k);
  }
  if (end != DIBS__SQL_OK) {
    op->op.status = dibs__server_explain(s, "break a lease in", result);
    return;
  }
  if (k.broken || (others && op->now)) op->op.status = DIBS_OK;
  if (!others || op->now) return;
  op->op.status = DIBS_UNSUPPORTED;
  dibs__set_message(result,
                    "\"%.*s\" is a session lock of another process, which dibs can break only at once (--now): that "
                    "ends its connection, with all other leases on it",
                    (int)op->name.len, op->name.p);
}

/* ---- Listing ---- */

struct kept {
  struct dibs__lease_row row;
  struct dibs__sql_label owner;
  char name[DIBS_NAME_MAX];
};

static bool is_requested_for(const struct dibs__list *list, const hold *h) {
  dibs__str name = dibs__hold_name(h);
  if (h->state == DIBS__HOLD_GONE) return false;
  if (list->name.len) return dibs__str_equal(name, list->name);
  return dibs__list_has(list, name);
}

static void keep_row(struct kept *k, const hold *h, int64_t now) {
  *k = (struct kept){.owner = h->owner};
  memcpy(k->name, h->name, h->len);
  k->row.name.len = h->len;
  k->row.state = h->state == DIBS__HOLD_WAITS     ? DIBS__WAITS
                 : h->state == DIBS__HOLD_OFFERED ? DIBS__OFFERED
                 : h->broken                      ? DIBS__BREAKING
                                                  : DIBS__HOLDS;
  k->row.mode = h->mode;
  k->row.ttl_ms = h->ttl_ms;
  k->row.pid = dibs__process_id();
  k->row.fence.v = h->state == DIBS__HOLD_HOLDS ? h->first : 0;
  k->row.left_ms = h->state == DIBS__HOLD_WAITS ? 0 : h->until - now;
  k->row.age_ms = now - h->since;
}

/* Copied, so that no callback runs under the lock.  NULL with *count 0: none; with *count not 0: no memory. */
static struct kept *keep_ours(locks_t *locks, const struct dibs__list *list, size_t *count) {
  int64_t now = dibs__lock_now();
  size_t at = 0;
  *count = 0;
  dibs__mutex_lock(&locks->lock);
  for (const hold *h = locks->all; h; h = h->next) *count += is_requested_for(list, h);
  struct kept *rows = *count ? calloc(*count, sizeof *rows) : NULL;
  for (const hold *h = locks->all; h && rows; h = h->next)
    if (is_requested_for(list, h) && (h->state == DIBS__HOLD_WAITS || h->until > now)) keep_row(&rows[at++], h, now);
  dibs__mutex_unlock(&locks->lock);
  if (rows) *count = at;
  return rows;
}

static int by_name(const void *a, const void *b) {
  const struct kept *x = a, *y = b;
  uint32_t least = x->row.name.len < y->row.name.len ? x->row.name.len : y->row.name.len;
  int order = memcmp(x->name, y->name, least);
  if (order) return order;
  if (x->row.name.len != y->row.name.len) return x->row.name.len < y->row.name.len ? -1 : 1;
  if (x->row.state != y->row.state) return x->row.state == DIBS__WAITS ? 1 : y->row.state == DIBS__WAITS ? -1 : 0;
  return (x->row.age_ms < y->row.age_ms) - (x->row.age_ms > y->row.age_ms);
}

static bool show_ours(locks_t *locks, const struct dibs__list *list, bool *enough) {
  size_t count;
  struct kept *rows = keep_ours(locks, list, &count);
  uint32_t ahead = 0;
  if (!rows) return count == 0;
  qsort(rows, count, sizeof *rows, by_name);
  for (size_t i = 0; i < count && !*enough; i++) {
    struct dibs__lease_row *row = &rows[i].row;
    row->name.p = rows[i].name;
    row->owner = dibs__str_of(rows[i].owner.text, rows[i].owner.len);
    if (i && !dibs__str_equal(row->name, rows[i - 1].row.name)) ahead = 0;
    if (row->state == DIBS__WAITS) row->ahead = ahead++;
    *enough = list->row(row, list->user) != 0;
  }
  free(rows);
  return true;
}

static sql_rc show_others(session *s, const struct dibs__list *list, bool waiters, bool *enough) {
  int64_t ids[HOLDERS];
  size_t count;
  const struct dibs__session_locking *how = s->store->locks->how;
  sql_rc end = connections_of(s, waiters ? how->waiters : how->holders, list->name, ids, &count);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK && !*enough; i++) {
    char owner[48];
    if (is_ours(s->store->locks, ids[i])) continue;
    int len = snprintf(owner, sizeof owner, "connection %" PRId64 " of the server", ids[i]);
    struct dibs__lease_row row = {.name = list->name, .owner = dibs__str_of(owner, (size_t)len)};
    row.state = waiters ? DIBS__WAITS : DIBS__HOLDS;
    *enough = list->row(&row, list->user) != 0;
  }
  return end;
}

/* Breaks are rows, and the only ones, so the listing of rows shows them alone. */
dibs__status dibs__session_lock_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                                     struct dibs__result *result) {
  session *s = (session *)base;
  bool enough = false;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  s->rows.wire->by = by;
  dibs__server_fresh(s);
  if (!show_ours(s->store->locks, list, &enough)) return DIBS_NO_MEMORY;
  result->now.ms = dibs__lock_now();
  if (!list->name.len || enough) return DIBS_OK;
  sql_rc end = show_others(s, list, false, &enough);
  if (end == DIBS__SQL_OK && !enough) end = show_others(s, list, true, &enough);
  if (end != DIBS__SQL_OK) return dibs__server_explain(s, "list", result);
  if (enough) return DIBS_OK;
  dibs__status status = dibs__server_list(base, list, by, result);
  result->now.ms = dibs__lock_now();
  return status;
}
