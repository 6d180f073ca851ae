/* SPDX-License-Identifier: MIT */
/*
 * A store in a server: opening, the schema, incarnations, sessions, the kind of leases, events.
 *
 * Opening.  The schema is made once, under a lock of the server's.  A connection that comes later reads one row and
 * knows that the schema is complete.
 *
 * Incarnations.  Each new connection compares the server's incarnation with that of the store's rows.
 * A server's incarnation can't change under a connection, but tables that were restored from a dump are another
 * incarnation of the same server: so a connection that finds rows of another incarnation reads its own again first.
 * If they differ, every bucket begins an epoch above all that the rows know; buckets that are served for an anchor
 * elsewhere become void instead.  Leases stay until they expire: the server's clock goes on, and a new client does
 * not disturb the holders.  Their renewals carry the old mandate, and are refused.
 * A replica that was promoted may lack grants.  With failover_wait=MS the incarnation begins so long after a client has
 * first seen it: by then each lost lease has ended, since no ttl is longer.
 *
 * The kind of leases.  Leases in a schema are either rows or the server's session locks.  Neither kind excludes the
 * other, so a schema has one kind.  The first acquire decides it in one transaction, and the store's row remembers
 * it; opening, listing and records decide nothing.  Two first acquires race for the row's lock, and the second sees
 * what the first wrote.  A session lock also checks for live leases that are rows, which an old version of dibs may
 * have left; session locks of an old version can't be seen.
 *
 * Events.  The notifier is opened before the first waiter is queued, or when a thread listens; the listening thread
 * replaces it if it is broken, or at another server than the sessions.  Events for our own waiters do not travel.
 */
#include "drivers/server/server_impl.h"

#include <ctype.h>
#include <stdio.h>

enum { OPEN_MS = 2000, AGAIN_MS = 250, AGAIN_MAX_MS = 4000 };

bool dibs__server_notifier_there(struct dibs__server *store) {
  dibs__mutex_lock(&store->inside->lock);
  bool there = store->inside->notifier != NULL;
  dibs__mutex_unlock(&store->inside->lock);
  return there;
}

/* The pause between tries grows while the server is full or unreachable.  `opening` is held. */
static dibs__status open_notifier(struct dibs__server *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__server_inside *in = store->inside;
  void *notifier = NULL;
  uint32_t draw;
  dibs__tick now = dibs__tick_now();
  if (dibs__tick_before(now, in->notifier_at)) {
    if (!result->text[0])
      dibs__set_message(result, "%s refused a connection for notifications; dibs tries again soon", store->shown);
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = store->engine->notifier_open(store, store->session, by, &notifier, result);
  if (status != DIBS_OK) {
    dibs__random(&draw, sizeof draw);
    in->notifier_pause_ms = in->notifier_pause_ms ? 2 * in->notifier_pause_ms : AGAIN_MS;
    if (in->notifier_pause_ms > AGAIN_MAX_MS) in->notifier_pause_ms = AGAIN_MAX_MS;
    int64_t pause_ms = in->notifier_pause_ms / 2 + (int64_t)(draw % in->notifier_pause_ms);
    in->notifier_at = dibs__tick_add_ms(dibs__tick_now(), pause_ms);
    return status;
  }
  in->notifier_pause_ms = 0;
  dibs__mutex_lock(&in->lock);
  in->notifier = notifier;
  dibs__mutex_unlock(&in->lock);
  return status;
}

/* One thread opens at a time: others wait for the lock, and find the notifier open. */
dibs__status dibs__server_notifier_ensure(struct dibs__server *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__server_inside *in = store->inside;
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), OPEN_MS));
  dibs__mutex_lock(&in->opening);
  dibs__status status = dibs__server_notifier_there(store) ? DIBS_OK : open_notifier(store, by, result);
  dibs__mutex_unlock(&in->opening);
  return status;
}

static void server_notifier_close(struct dibs__server *store) {
  dibs__mutex_lock(&store->inside->lock);
  void *notifier = store->inside->notifier;
  store->inside->notifier = NULL;
  dibs__mutex_unlock(&store->inside->lock);
  if (notifier) store->engine->notifier_close(notifier);
}

/* Requests come first: a full server may have no connection for a session as long as the notifier has its own. */
static void yield_notifier(struct dibs__server *store) {
  struct dibs__server_inside *in = store->inside;
  dibs__mutex_lock(&in->opening);
  in->notifier_at = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MAX_MS);
  dibs__mutex_unlock(&in->opening);
  server_notifier_close(store);
}

static void wake_locked(struct dibs__server *store) {
  struct dibs__server_inside *in = store->inside;
  in->woken = true;
  if (in->notifier) store->engine->notifier_wake(in->notifier);
  atomic_fetch_add(&in->notifier_word, 1);
}

DIBS__MODULE_API void dibs__server_wake(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__mutex_lock(&store->inside->lock);
  wake_locked(store);
  dibs__mutex_unlock(&store->inside->lock);
  dibs__word_wake(&store->inside->notifier_word, 1, false);
}

void dibs__server_tell_us(struct dibs__server *store, const struct dibs__event *event) {
  struct dibs__server_inside *in = store->inside;
  dibs__mutex_lock(&in->lock);
  size_t last = in->event_count ? in->event_count - 1 : 0;
  bool again = in->event_count && event->what == DIBS__EV_TASKS && in->events[last].what == DIBS__EV_TASKS;
  if (in->event_count < DIBS__SERVER_LOCAL_EVENTS && !again)
    in->events[in->event_count++] = *event;
  else if (!again)
    in->events[DIBS__SERVER_LOCAL_EVENTS - 1] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  wake_locked(store);
  dibs__mutex_unlock(&in->lock);
  dibs__word_wake(&in->notifier_word, 1, false);
}

/* Takes our own events, without a request to the server.  true: do not sleep. */
static bool take_ours(struct dibs__server *store, struct dibs__event *events, size_t cap, size_t *count, uint32_t *seen,
                      void **notifier) {
  struct dibs__server_inside *in = store->inside;
  dibs__mutex_lock(&in->lock);
  *count = in->event_count < cap ? in->event_count : cap;
  memcpy(events, in->events, *count * sizeof *events);
  memmove(in->events, in->events + *count, (in->event_count - *count) * sizeof *events);
  in->event_count -= *count;
  bool woken = in->woken;
  in->woken = in->event_count > 0;
  *seen = atomic_load(&in->notifier_word);
  *notifier = in->notifier;
  dibs__mutex_unlock(&in->lock);
  return woken || *count > 0;
}

/* Listens from the first call on: a caller misses nothing between two calls. */
static bool listens(struct dibs__server *store, dibs__tick by) {
  struct dibs__result result = {.dead = false};
  return dibs__server_notifier_there(store) || dibs__server_notifier_ensure(store, by, &result) == DIBS_OK;
}

/* Notifications were lost: all waiters check again. */
static dibs__status recheck(struct dibs__event *events, size_t cap, size_t *count) {
  *count = 0;
  if (cap) events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  return DIBS_OK;
}

DIBS__MODULE_API dibs__status dibs__server_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap,
                                                  size_t *count, dibs__tick by) {
  struct dibs__server *store = (struct dibs__server *)base;
  uint32_t seen;
  void *notifier;
  if (atomic_exchange(&store->inside->yields, false)) {
    yield_notifier(store);
    return recheck(events, cap, count);
  }
  if (atomic_exchange(&store->inside->moved, false)) {
    server_notifier_close(store);
    return recheck(events, cap, count);
  }
  bool heard = listens(store, by);
  if (take_ours(store, events, cap, count, &seen, &notifier)) return DIBS_OK;
  if (!heard || !notifier) {
    /* The next try comes after a pause; waiters poll meanwhile. */
    dibs__tick again = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MS);
    dibs__word_wait(&store->inside->notifier_word, seen, dibs__tick_min(by, again), false);
    return DIBS_OK;
  }
  dibs__status status = store->engine->notifier_wait(notifier, events, cap, count, by);
  if (status == DIBS_OK) return DIBS_OK;
  server_notifier_close(store);
  return recheck(events, cap, count);
}

/* ---- The kind of leases ---- */

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;
typedef struct dibs__sql_value value;

static char own_kind(const session *s) {
  return s->store->locks ? DIBS__SESSION_LOCKS : DIBS__SERVER_ROWS;
}

/* The kind in column 2 of the row: "rows", "locks", or none yet. */
static char kind_in(const session *s, size_t nth) {
  const struct dibs__sql_engine *e = s->rows.wire->engine;
  if (e->rows(s->rows.wire, nth) == 0) return DIBS__SERVER_UNDECIDED;
  value v = e->cell(s->rows.wire, nth, 0, 2, DIBS__SQL_TEXT);
  return v.kind == DIBS__SQL_NULL || v.len == 0 ? DIBS__SERVER_UNDECIDED : *v.p;
}

/* Live leases that are rows: of a version that did not record the kind. */
static sql_rc live_rows(session *s, bool *some) {
  size_t nth;
  *some = false;
  if (!s->store->locks) return DIBS__SQL_OK;
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_LIVE, NULL, 0, &nth);
  if (end == DIBS__SQL_OK) *some = s->rows.wire->engine->rows(s->rows.wire, nth) > 0;
  return end;
}

static sql_rc decide_kind(session *s, char *kind, bool *some) {
  size_t nth;
  sql_rc end = dibs__sql_begin(s->rows.wire);
  if (end == DIBS__SQL_OK) end = dibs__rows_request(&s->rows, DIBS__SERVER_META_LOCK, NULL, 0, &nth);
  if (end == DIBS__SQL_OK) *kind = kind_in(s, nth);
  if (end == DIBS__SQL_OK && *kind == DIBS__SERVER_UNDECIDED) {
    end = live_rows(s, some);
    value own = s->store->locks ? dibs__sql_text("locks", 5) : dibs__sql_text("rows", 4);
    if (end == DIBS__SQL_OK && !*some) end = dibs__rows_put(&s->rows, DIBS__SERVER_META_KIND, &own, 1);
    if (!*some) *kind = own_kind(s);
  }
  /* A grant that depends on this is later in the log: this need not wait for the disk by itself. */
  const char *lazy = s->store->engine->lazy;
  if (end == DIBS__SQL_OK && lazy) end = s->rows.wire->engine->put(s->rows.wire, lazy, NULL, 0);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  if (end != DIBS__SQL_OK && !dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return end;
}

static void explain_kind(const session *s, bool some, struct dibs__result *result) {
  if (some)
    dibs__set_message(result, "%s: its leases are rows, and some are held, which lock= can't see; wait until they end",
                      s->store->shown);
  else if (s->store->locks)
    dibs__set_message(
        result, "%s: its leases are rows, which do not exclude locks; remove lock=, or use another schema= or prefix=",
        s->store->shown);
  else
    dibs__set_message(result,
                      "%s: its leases are locks of the server, which do not exclude rows; add lock=%s, or use another "
                      "schema= or prefix=",
                      s->store->shown, s->rows.wire->engine->quote == '`' ? "named" : "advisory");
}

static bool is_acquire(const struct dibs__op *op) {
  return op->family == DIBS__FAM_LEASE && op->verb == DIBS__ACQUIRE;
}

sql_rc dibs__server_settle_kind(session *s, struct dibs__op *const ops[], size_t count, struct dibs__result *result) {
  char kind = DIBS__SERVER_UNDECIDED;
  bool some = false, requested = false;
  if (atomic_load(&s->store->inside->kind) == own_kind(s)) return DIBS__SQL_OK;
  for (size_t i = 0; i < count && !requested; i++) requested = is_acquire(ops[i]);
  if (!requested) return DIBS__SQL_OK;
  sql_rc end = decide_kind(s, &kind, &some);
  if (end != DIBS__SQL_OK) return end;
  if (kind == own_kind(s)) {
    atomic_store(&s->store->inside->kind, kind);
    return end;
  }
  explain_kind(s, some, result);
  for (size_t i = 0; i < count; i++) {
    if (!is_acquire(ops[i])) continue;
    ops[i]->status = DIBS_DENIED;
    for (size_t k = 0; k < count && ops[i]->group; k++)
      if (ops[k]->group == ops[i]->group) ops[k]->status = DIBS_DENIED;
  }
  return end;
}

/* The nth statement has read the row of dibs_meta. */
static void know_kind(session *s, size_t nth) {
  atomic_store(&s->store->inside->kind, kind_in(s, nth));
}

/* ---- Opening ---- */

enum {
  SCHEMA_TEXT = 4096,
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_EVENTS |
         DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS | DIBS__CAP_OFFERS_LAST
};

dibs__status dibs__server_explain(session *s, const char *doing, struct dibs__result *result) {
  return dibs__sql_explain(s->rows.wire, doing, s->store->shown, result);
}

/* ---- The URI ---- */

static const char *const common_params[] = {"schema",       "prefix",       "lock",
                                            "lease_sync",   "lock_timeout", "connect_timeout",
                                            "lock_waiters", "connections",  "failover_wait"};
enum { COMMON = sizeof common_params / sizeof common_params[0], PARAMS_MAX = 64 };

static dibs__status only_known(const struct dibs__server_engine *engine, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  const char *known[PARAMS_MAX + 1];
  size_t count = 0;
  for (; count < COMMON; count++) known[count] = common_params[count];
  for (size_t i = 0; engine->params && engine->params[i] && count < PARAMS_MAX; i++) known[count++] = engine->params[i];
  known[count] = NULL;
  return dibs__uri_only(uri, NULL, known, result);
}

static dibs__status read_word(const struct dibs__uri *uri, const char *key, const char *otherwise, char *to,
                              struct dibs__result *result) {
  const char *given = dibs__uri_param(uri, key);
  if (!given) given = otherwise;
  size_t len = strlen(given);
  bool fine = len >= 1 && len <= DIBS__SERVER_WORD_MAX && !isdigit((unsigned char)given[0]);
  for (size_t i = 0; i < len && fine; i++) fine = isalnum((unsigned char)given[i]) || given[i] == '_';
  if (!fine) {
    dibs__set_message(result, "%s=%s is not 1 to %d letters, digits and _ that begin without a digit", key, given,
                      DIBS__SERVER_WORD_MAX);
    return DIBS_INVALID;
  }
  memcpy(to, given, len + 1);
  return DIBS_OK;
}

enum { FAILOVER_WAIT_MAX = 86400000 };

static dibs__status check_failover_wait(const struct dibs__uri *uri, struct dibs__result *result) {
  const char *lock = dibs__uri_param(uri, "lock");
  const char *why = NULL;
  if (lock && strcmp(lock, "rows") != 0) why = "is for leases in rows: a session lock ends with its server";
  if (uri->as_tier || uri->as_anchor) why = "is for a store that is used alone; tiers have tiers.strictness=strict";
  if (!why) return DIBS_OK;
  dibs__set_message(result, "failover_wait= %s", why);
  return DIBS_INVALID;
}

static dibs__status read_options(const struct dibs__uri *uri, struct dibs__server_options *o,
                                 struct dibs__result *result) {
  const char *sync = dibs__uri_param(uri, "lease_sync");
  if (sync && strcmp(sync, "on") != 0 && strcmp(sync, "off") != 0) {
    dibs__set_message(result, "lease_sync=%s is not on or off", sync);
    return DIBS_INVALID;
  }
  o->lease_sync = !sync || strcmp(sync, "on") == 0;
  dibs__status status = read_word(uri, "schema", "dibs", o->schema, result);
  if (status == DIBS_OK) status = read_word(uri, "prefix", "dibs_", o->prefix, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "lock_timeout", 10, 60000, 1000, &o->lock_timeout_ms, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", 100, 60000, 5000, &o->connect_timeout_ms, result);
  int64_t waiters = 0;
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "lock_waiters", 1, DIBS__SERVER_WAITERS_MAX, DIBS__SERVER_WAITERS, &waiters, result);
  o->lock_waiters = (uint32_t)waiters;
  int64_t connections = 0;
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connections", 1, DIBS__CONNECTIONS_MAX, DIBS__CONNECTIONS, &connections, result);
  o->connections = (uint32_t)connections;
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "failover_wait", 0, FAILOVER_WAIT_MAX, 0, &o->failover_wait_ms, result);
  return status == DIBS_OK && o->failover_wait_ms ? check_failover_wait(uri, result) : status;
}

/* ---- The server's incarnation ---- */

/* A digest that never changes; not a secret. */
static void digest(const char *p, size_t len, dibs__incarnation *incarnation) {
  for (size_t part = 0; part < sizeof incarnation->b; part += 4) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (part * UINT64_C(0x9e3779b97f4a7c15));
    for (size_t i = 0; i < len; i++) hash = (hash ^ (unsigned char)p[i]) * UINT64_C(0x100000001b3);
    hash ^= hash >> 32;
    for (size_t i = 0; i < 4; i++) incarnation->b[part + i] = (uint8_t)(hash >> 8 * i);
  }
}

static sql_rc request_incarnation(session *s, bool *told) {
  const struct dibs__server_engine *engine = s->store->engine;
  size_t nth = s->rows.wire->put;
  char *text = dibs__server_text(s->store, engine->incarnation(!s->store->options.lease_sync));
  if (!text) return dibs__sql_fail(s->rows.wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = engine->sql.put(s->rows.wire, text, NULL, 0);
  if (end == DIBS__SQL_OK) end = engine->sql.go(s->rows.wire, false);
  free(text);
  if (end != DIBS__SQL_OK) return end;
  value cell = {.kind = DIBS__SQL_NULL};
  if (engine->sql.rows(s->rows.wire, nth) == 1) cell = engine->sql.cell(s->rows.wire, nth, 0, 0, DIBS__SQL_TEXT);
  *told = cell.kind == DIBS__SQL_TEXT && cell.len;
  if (*told) digest(cell.p, cell.len, &s->incarnation);
  return end;
}

static dibs__status read_incarnation(session *s, struct dibs__result *result) {
  bool told = false;
  if (request_incarnation(s, &told) != DIBS__SQL_OK) return dibs__server_explain(s, "request the identity of", result);
  if (told) return DIBS_OK;
  dibs__set_message(result, "%s does not report its identity", s->store->shown);
  return DIBS_UNSUPPORTED;
}

/* ---- The schema ---- */

/* The statement can run again after it was interrupted; see put_ddl for an engine that has this for tables alone. */
static void if_not_there(char *text, size_t size, bool tables_alone) {
  static const char *const heads[] = {"CREATE TABLE ", "CREATE INDEX ", "CREATE UNIQUE INDEX ", " ADD COLUMN "};
  static const char added[] = "IF NOT EXISTS ";
  for (size_t i = 0; i < (tables_alone ? 1 : sizeof heads / sizeof heads[0]); i++) {
    size_t len = strlen(text), more = sizeof added - 1;
    const char *head = strstr(text, heads[i]);
    if (!head || (head != text && *head != ' ') || len + more >= size) continue;
    char *to = text + (head - text) + strlen(heads[i]);
    memmove(to + more, to, strlen(to) + 1);
    memcpy(to, added, more);
    return;
  }
}

static sql_rc put_ddl(session *s, const char *text) {
  char *made = dibs__server_text(s->store, text);
  if (!made) return dibs__sql_fail(s->rows.wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = s->rows.wire->engine->put(s->rows.wire, made, NULL, 0);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
  free(made);
  bool exists = s->rows.wire->engine->plain_index && s->rows.wire->trouble == DIBS__SQL_TWICE;
  return end == DIBS__SQL_FAILED && exists ? DIBS__SQL_OK : end;
}

static sql_rc make_version(session *s, uint32_t version) {
  const struct dibs__server_engine *engine = s->store->engine;
  char text[SCHEMA_TEXT];
  const char *own;
  sql_rc end = DIBS__SQL_OK;
  for (size_t nth = 0; end == DIBS__SQL_OK; nth++) {
    if (!dibs__sql_schema(&engine->sql.words, version, nth, text, sizeof text)) break;
    if_not_there(text, sizeof text, s->rows.wire->engine->plain_index);
    end = put_ddl(s, text);
  }
  for (size_t nth = 0; end == DIBS__SQL_OK && engine->schema && (own = engine->schema(version, nth)); nth++)
    end = put_ddl(s, own);
  return end;
}

/* 0: there is none. */
static sql_rc read_version(session *s, uint32_t *version) {
  size_t nth;
  *version = 0;
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_META, NULL, 0, &nth);
  if (end != DIBS__SQL_OK) return s->rows.wire->trouble == DIBS__SQL_MISSING ? DIBS__SQL_OK : end;
  if (s->rows.wire->engine->rows(s->rows.wire, nth) > 0) {
    *version = (uint32_t)dibs__sql_cell_number(s->rows.wire, nth, 0, 0);
    know_kind(s, nth);
  }
  return end;
}

static sql_rc first_rows(session *s) {
  bool told;
  size_t nth;
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_META, NULL, 0, &nth);
  if (end != DIBS__SQL_OK || s->rows.wire->engine->rows(s->rows.wire, nth) > 0) return end;
  end = request_incarnation(s, &told); /* the tables depend on it */
  value meta[] = {dibs__sql_number(0), dibs__sql_bytes(s->incarnation.b, sizeof s->incarnation.b)};
  if (end == DIBS__SQL_OK) end = dibs__sql_begin(s->rows.wire);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++) {
    value v[] = {dibs__sql_number(b), dibs__sql_bytes(s->incarnation.b, sizeof s->incarnation.b), dibs__sql_number(1)};
    end = dibs__rows_put(&s->rows, DIBS__ROWS_BUCKET_ADD, v, 3);
  }
  if (end == DIBS__SQL_OK) end = dibs__rows_put(&s->rows, DIBS__SERVER_META_ADD, meta, 2);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  if (end != DIBS__SQL_OK && !dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return end;
}

static sql_rc migrate(session *s, uint32_t version) {
  sql_rc end = DIBS__SQL_OK;
  for (; version < DIBS__SQL_SCHEMA && end == DIBS__SQL_OK; version++) {
    end = make_version(s, version);
    if (end == DIBS__SQL_OK && version == 0) end = first_rows(s);
    value v = dibs__sql_number(version + 1);
    if (end == DIBS__SQL_OK) end = dibs__rows_put(&s->rows, DIBS__SERVER_META_VERSION, &v, 1);
    if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  }
  return end;
}

/* Makes what is missing, under the lock; a second read shows whether another process was first. */
static sql_rc make_schema(session *s, uint32_t *version) {
  const struct dibs__server_engine *engine = s->store->engine;
  sql_rc end = engine->lock_schema(s->rows.wire, true);
  if (end == DIBS__SQL_OK) end = engine->sql.go(s->rows.wire, false);
  if (end == DIBS__SQL_OK) end = read_version(s, version);
  if (end == DIBS__SQL_OK && *version < DIBS__SQL_SCHEMA) {
    end = migrate(s, *version);
    *version = DIBS__SQL_SCHEMA;
  }
  if (end != DIBS__SQL_OK) return end;
  end = engine->lock_schema(s->rows.wire, false);
  return end == DIBS__SQL_OK ? engine->sql.go(s->rows.wire, false) : end;
}

/* Some fifty statements, each of which a server writes to its disk: a busy one takes seconds, and half a schema would
 * help nobody.  Once in the life of a database. */
enum { SCHEMA_MS = 60000 };

static dibs__status settle_schema(session *s, struct dibs__result *result) {
  uint32_t version;
  sql_rc end = read_version(s, &version);
  if (end != DIBS__SQL_OK) return dibs__server_explain(s, "read the tables of dibs in", result);
  if (version < DIBS__SQL_SCHEMA) {
    dibs__tick enough = dibs__tick_add_ms(dibs__tick_now(), SCHEMA_MS);
    if (dibs__tick_before(s->rows.wire->by, enough)) s->rows.wire->by = enough;
    end = make_schema(s, &version);
  }
  if (end != DIBS__SQL_OK) return dibs__server_explain(s, "make the tables of dibs in", result);
  if (version <= DIBS__SQL_SCHEMA) return DIBS_OK;
  dibs__set_message(
      result,
      "a newer dibs created the tables of %s: they have version %u, this dibs supports %d; install a newer dibs",
      s->store->shown, version, DIBS__SQL_SCHEMA);
  return DIBS_TOO_NEW;
}

/* ---- Incarnations ---- */

static sql_rc same_incarnation(session *s, unsigned text, bool *same) {
  dibs__incarnation stored;
  size_t nth;
  sql_rc end = dibs__rows_request(&s->rows, text, NULL, 0, &nth);
  if (end != DIBS__SQL_OK) return end;
  if (s->rows.wire->engine->rows(s->rows.wire, nth) != 1)
    return dibs__sql_fail(s->rows.wire, DIBS__SQL_DAMAGED, "the row of dibs_meta is missing");
  dibs__rows_read_bytes(&s->rows, nth, 0, 1, stored.b, sizeof stored.b);
  *same = memcmp(stored.b, s->incarnation.b, sizeof stored.b) == 0;
  return end;
}

static sql_rc new_incarnation(session *s) {
  int64_t epoch = 0;
  size_t nth;
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_BUCKETS_LOCK, NULL, 0, &nth);
  if (end != DIBS__SQL_OK) return end;
  size_t rows = s->rows.wire->engine->rows(s->rows.wire, nth);
  if (rows != DIBS__BUCKETS) return dibs__sql_fail(s->rows.wire, DIBS__SQL_DAMAGED, "rows of buckets are missing");
  for (size_t i = 0; i < rows; i++) {
    int64_t one = dibs__sql_cell_number(s->rows.wire, nth, i, 1);
    if (one > epoch) epoch = one;
  }
  if (epoch >= DIBS__EPOCH_MAX) return dibs__sql_fail(s->rows.wire, DIBS__SQL_ODD, "its epochs are used up");
  value v[] = {dibs__sql_bytes(s->incarnation.b, sizeof s->incarnation.b), dibs__sql_number(epoch + 1)};
  end = dibs__rows_put(&s->rows, DIBS__SERVER_BUCKETS_SET, v, 2);
  if (end == DIBS__SQL_OK) end = dibs__rows_put(&s->rows, DIBS__SERVER_META_INCARNATION, v, 1);
  return end;
}

/* How long the new incarnation may not begin yet; the first client that asks notes when it did. */
static sql_rc failover_wait(session *s, int64_t *left) {
  int64_t wait = s->store->options.failover_wait_ms, digest = 0;
  size_t nth;
  *left = 0;
  if (wait == 0) return DIBS__SQL_OK;
  memcpy(&digest, s->incarnation.b, sizeof digest - 1);
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_META_NOTED, NULL, 0, &nth);
  if (end != DIBS__SQL_OK) return end;
  int64_t noted = dibs__sql_cell_number(s->rows.wire, nth, 0, 0), now = dibs__sql_cell_number(s->rows.wire, nth, 0, 2);
  bool known = dibs__sql_cell_number(s->rows.wire, nth, 0, 1) == digest && noted > 0 && noted <= now;
  *left = (known ? noted : now) + wait + DIBS__SERVER_COHORT_MS - now;
  value v = dibs__sql_number(digest);
  return known ? DIBS__SQL_OK : dibs__rows_put(&s->rows, DIBS__SERVER_META_NOTE, &v, 1);
}

static sql_rc say_failover_wait(session *s, int64_t left) {
  char text[160];
  snprintf(text, sizeof text,
           "it may have lost leases in a failover; it grants names again in %lld.%lld s (failover_wait)",
           (long long)(left / 1000), (long long)(left % 1000 / 100));
  return dibs__sql_fail(s->rows.wire, DIBS__SQL_ODD, text);
}

sql_rc dibs__server_settle_incarnation(session *s) {
  bool same = false, told;
  int64_t left = 0;
  sql_rc end = same_incarnation(s, DIBS__SERVER_META, &same);
  if (end != DIBS__SQL_OK || same) return end;
  end = request_incarnation(s, &told);
  if (end != DIBS__SQL_OK) return end;
  end = dibs__sql_begin(s->rows.wire);
  if (end == DIBS__SQL_OK) end = same_incarnation(s, DIBS__SERVER_META_LOCK, &same);
  if (end == DIBS__SQL_OK && !same) end = failover_wait(s, &left);
  if (end == DIBS__SQL_OK && !same && left <= 0) end = new_incarnation(s);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  if (end != DIBS__SQL_OK && !dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return end == DIBS__SQL_OK && left > 0 ? say_failover_wait(s, left) : end;
}

sql_rc dibs__server_next_epoch(session *s, uint16_t bucket) {
  sql_rc end = dibs__sql_begin(s->rows.wire);
  if (end == DIBS__SQL_OK) end = dibs__server_lock_bucket(s, bucket);
  if (end != DIBS__SQL_OK) return end;
  struct dibs__sql_bucket *b = &s->buckets[bucket];
  if (!dibs__sql_next_epoch(b)) return dibs__sql_fail(s->rows.wire, DIBS__SQL_ODD, "its epochs are used up");
  end = dibs__server_put_bucket(s, bucket);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  return end == DIBS__SQL_OK ? s->rows.wire->engine->go(s->rows.wire, true) : end;
}

/* ---- Sessions ---- */

static void waiter_seen(struct dibs__rows *rows, uint64_t who, int64_t where) {
  dibs__server_know(dibs__server_of(rows), who, where);
}

/* NULL: no memory. */
static session *session_new(struct dibs__server *store) {
  session *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->base.store = &store->base;
  s->store = store;
  s->rows.texts = store->texts;
  s->rows.seen = waiter_seen;
  return s;
}

dibs__status dibs__server_session_open(struct dibs__server *store, dibs__tick by, session **out,
                                       struct dibs__result *result) {
  session *s = session_new(store);
  if (!s) return DIBS_NO_MEMORY;
  struct dibs__server_inside *in = store->inside;
  dibs__status status = store->engine->connect(store, by, &s->rows.wire, result);
  if (status == DIBS_OK) {
    s->connected = true;
    atomic_fetch_add(&in->sessions, 1);
    s->rows.wire->by = by;
    status = read_incarnation(s, result);
  } else if (atomic_load(&in->sessions) == 0 && dibs__server_notifier_there(store)) {
    atomic_store(&in->yields, true);
    dibs__server_wake(&store->base);
  }
  if (status != DIBS_OK) {
    dibs__server_session_close(s);
    return status;
  }
  *out = s;
  return DIBS_OK;
}

void dibs__server_session_close(session *s) {
  if (!s) return;
  dibs__server_fresh(s);
  if (s->connected) atomic_fetch_sub(&s->store->inside->sessions, 1);
  if (s->rows.wire) s->store->engine->close(s->rows.wire);
  free(s->names);
  free(s->pool);
  free(s->records);
  free(s->others);
  free(s->notices);
  free(s);
}

/* In a switchover a server becomes read-only, and keeps connections that only listen: the waiters of this process would
 * count as dead at its successor. */
static void note_incarnation(struct dibs__server *store, const dibs__incarnation *incarnation) {
  struct dibs__server_inside *in = store->inside;
  dibs__mutex_lock(&in->lock);
  bool moved = in->seen_any && in->notifier && memcmp(&in->seen, incarnation, sizeof *incarnation) != 0;
  in->seen = *incarnation;
  in->seen_any = true;
  dibs__mutex_unlock(&in->lock);
  if (!moved) return;
  atomic_store(&in->moved, true);
  dibs__server_wake(&store->base);
}

static dibs__status settle_store(session *s, struct dibs__result *result) {
  dibs__status status = settle_schema(s, result);
  if (status != DIBS_OK) return status;
  if (dibs__server_settle_incarnation(s) != DIBS__SQL_OK)
    return dibs__server_explain(s, "begin an incarnation of", result);
  note_incarnation(s->store, &s->incarnation);
  return DIBS_OK;
}

static void identify(session *s, struct dibs__identity *identity) {
  *identity = (struct dibs__identity){
      .caps = CAPS | s->store->engine->caps,
      .families = (1u << DIBS__FAM_LEASE) | (1u << DIBS__FAM_ANCHOR) | (1u << DIBS__FAM_RECORD) |
                  (1u << DIBS__FAM_STOCK) | (1u << DIBS__FAM_ONCE) | (1u << DIBS__FAM_REPORT) | (1u << DIBS__FAM_RUN) |
                  (1u << DIBS__FAM_TASK) | (1u << DIBS__FAM_COUNTER) | (1u << DIBS__FAM_ENGINE),
      .max_batch = DIBS__SERVER_BATCH,
      .max_sessions = s->store->options.connections,
      .session = s->store->session};
  if (s->known[0] & 1) identity->mandate = dibs__sql_hint(s->store->opened, &s->buckets[0]);
}

/* The state of buckets, as a hint. */
static sql_rc read_hint(session *s) {
  value v = dibs__sql_number(0);
  size_t nth;
  dibs__server_fresh(s);
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_BUCKET, &v, 1, &nth);
  return end == DIBS__SQL_OK ? dibs__server_read_bucket(s, nth, 0) : end;
}

DIBS__MODULE_API dibs__status dibs__server_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                                   struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__status status = DIBS_OK;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__mutex_lock(&store->inside->lock);
  session *s = store->inside->spare;
  store->inside->spare = NULL;
  dibs__mutex_unlock(&store->inside->lock);
  if (!s) {
    status = dibs__server_session_open(store, by, &s, result);
    if (status != DIBS_OK) return status;
    status = settle_store(s, result);
  }
  s->rows.wire->by = by;
  if (status == DIBS_OK && read_hint(s) != DIBS__SQL_OK) status = dibs__server_explain(s, "read", result);
  if (status != DIBS_OK) {
    dibs__server_session_close(s);
    return status;
  }
  identify(s, identity);
  *out = &s->base;
  return DIBS_OK;
}

DIBS__MODULE_API dibs__status dibs__server_attach(struct dibs__dstore *base, void *connection,
                                                  struct dibs__session **out, struct dibs__identity *identity,
                                                  struct dibs__result *result) {
  struct dibs__server *store = (struct dibs__server *)base;
  session *s = session_new(store);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (!s) return DIBS_NO_MEMORY;
  dibs__status status = store->engine->adopt(store, connection, &s->rows.wire, result);
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  identify(s, identity);
  identity->families &= ~((1u << DIBS__FAM_LEASE) | (1u << DIBS__FAM_ANCHOR) | (1u << DIBS__FAM_REPORT));
  identity->families &= ~(1u << DIBS__FAM_ENGINE);
  identity->families &= ~(1u << DIBS__FAM_RUN); /* what ran stays, though they may roll back */
  identity->max_sessions = 1;
  *out = &s->base;
  return DIBS_OK;
}

DIBS__MODULE_API void dibs__server_disconnect(struct dibs__session *base) {
  dibs__server_session_close((session *)base);
}

/* ---- The store ---- */

static void free_store(struct dibs__server *store) {
  if (store->inside) {
    dibs__server_session_close(store->inside->spare);
    dibs__server_session_close(store->inside->tidier);
    dibs__mutex_destroy(&store->inside->opening);
    dibs__mutex_destroy(&store->inside->lock);
    free(store->inside);
  }
  if (store->location) store->engine->forget(store->location);
  dibs__server_texts_free(store);
  free(store);
}

static dibs__status prepare_store(struct dibs__server *store, const struct dibs__uri *uri,
                                  struct dibs__result *result) {
  dibs__status status = only_known(store->engine, uri, result);
  if (status == DIBS_OK) status = read_options(uri, &store->options, result);
  if (status != DIBS_OK) return status;
  store->inside = calloc(1, sizeof *store->inside);
  if (!store->inside || !dibs__server_texts_make(store)) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->inside->opening);
  dibs__mutex_init(&store->inside->lock);
  return store->engine->prepare(uri, store, &store->location, result);
}

DIBS__MODULE_API dibs__status dibs__server_open(const struct dibs__server_engine *engine, const struct dibs__uri *uri,
                                                dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  struct dibs__server *store = calloc(1, sizeof *store);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (!store) return DIBS_NO_MEMORY;
  store->engine = engine;
  store->opened = (struct dibs__sql_opened){uri->as_tier, uri->as_anchor};
  snprintf(store->shown, sizeof store->shown, "%s", uri->shown);
  do dibs__random(&store->session, sizeof store->session);
  while ((store->session >>= 1) == 0); /* fits a signed number, is not 0 */
  dibs__status status = prepare_store(store, uri, result);
  if (status == DIBS_OK) status = dibs__server_session_open(store, by, &store->inside->spare, result);
  if (status == DIBS_OK) status = settle_store(store->inside->spare, result);
  if (status != DIBS_OK) {
    free_store(store);
    return status;
  }
  *out = &store->base;
  return DIBS_OK;
}

DIBS__MODULE_API void dibs__server_close(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__server_leave(store);
  server_notifier_close(store);
  free_store(store);
}
