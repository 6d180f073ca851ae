/* SPDX-License-Identifier: MIT */
/*
 * Opening a store in a server: the URI, the schema, incarnations, sessions.
 *
 * The schema is made once, under a lock of the server's.  A connection that comes later reads one row and knows that
 * all is there.
 *
 * Incarnations: what the server says of its life is compared with what the store's rows remember whenever a connection
 * is made (a life can't change under one).  When it differs, every bucket begins an epoch above all that the rows know,
 * but for those that are served for an anchor elsewhere: what was installed in them is void.
 * Leases stay as they are until they end: the server's clock goes on, and who holds one should not be disturbed by
 * somebody new for as long as may be.  Its renewals are asked under the old mandate, and refused.
 */
#include "sql/far_parts.h"

#include <ctype.h>
#include <stdio.h>

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_value value;

enum {
  SCHEMA_TEXT = 4096,
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_EVENTS |
         DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS | DIBS__CAP_OFFERS_LAST,
  SESSIONS = 5
};

dibs__status dibs__far_excuse(session *s, const char *doing, struct dibs__said *said) {
  return dibs__sql_excuse(s->wire, doing, s->store->shown, said);
}

/* ---- The URI ---- */

static const char *const common_params[] = {"schema",       "prefix",          "lock",        "lease_sync",
                                            "lock_timeout", "connect_timeout", "lock_waiters"};
enum { COMMON = sizeof common_params / sizeof common_params[0], PARAMS_MAX = 64 };

static dibs__status only_known(const struct dibs__far_engine *engine, const struct dibs__uri *uri,
                               struct dibs__said *said) {
  const char *known[PARAMS_MAX + 1];
  size_t count = 0;
  for (; count < COMMON; count++) known[count] = common_params[count];
  for (size_t i = 0; engine->params && engine->params[i] && count < PARAMS_MAX; i++) known[count++] = engine->params[i];
  known[count] = NULL;
  return dibs__uri_only(uri, NULL, known, said);
}

static dibs__status word(const struct dibs__uri *uri, const char *key, const char *otherwise, char *to,
                         struct dibs__said *said) {
  const char *given = dibs__uri_param(uri, key);
  if (!given) given = otherwise;
  size_t len = strlen(given);
  bool fine = len >= 1 && len <= DIBS__FAR_WORD_MAX && !isdigit((unsigned char)given[0]);
  for (size_t i = 0; i < len && fine; i++) fine = isalnum((unsigned char)given[i]) || given[i] == '_';
  if (!fine) {
    dibs__say(said, "%s=%s: letters, digits and _ are meant, 1 to %d of them, no digit first", key, given,
              DIBS__FAR_WORD_MAX);
    return DIBS_INVALID;
  }
  memcpy(to, given, len + 1);
  return DIBS_OK;
}

static dibs__status read_options(const struct dibs__uri *uri, struct dibs__far_options *o, struct dibs__said *said) {
  const char *sync = dibs__uri_param(uri, "lease_sync");
  if (sync && strcmp(sync, "on") != 0 && strcmp(sync, "off") != 0) {
    dibs__say(said, "lease_sync=%s: on or off is meant", sync);
    return DIBS_INVALID;
  }
  o->lease_sync = !sync || strcmp(sync, "on") == 0;
  dibs__status status = word(uri, "schema", "dibs", o->schema, said);
  if (status == DIBS_OK) status = word(uri, "prefix", "dibs_", o->prefix, said);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "lock_timeout", 10, 60000, 1000, &o->lock_timeout_ms, said);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", 100, 60000, 5000, &o->connect_timeout_ms, said);
  int64_t waiters = 0;
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "lock_waiters", 1, DIBS__FAR_WAITERS_MAX, DIBS__FAR_WAITERS, &waiters, said);
  o->lock_waiters = (uint32_t)waiters;
  return status;
}

/* ---- The schema ---- */

/* As it may be begun again where it was broken off. */
static void if_not_there(char *text, size_t size) {
  static const char *const heads[] = {"CREATE TABLE ", "CREATE INDEX "};
  static const char added[] = "IF NOT EXISTS ";
  for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
    size_t head = strlen(heads[i]), len = strlen(text), more = sizeof added - 1;
    if (strncmp(text, heads[i], head) != 0 || len + more >= size) continue;
    memmove(text + head + more, text + head, len - head + 1);
    memcpy(text + head, added, more);
  }
}

static step say(session *s, const char *text) {
  char *made = dibs__far_text(s->store, text);
  if (!made) return dibs__sql_broke(s->wire, DIBS__SQL_NO_SPACE, "out of memory");
  step end = s->wire->engine->put(s->wire, made, NULL, 0);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  free(made);
  return end;
}

static step make_version(session *s, uint32_t version) {
  const struct dibs__far_engine *engine = s->store->engine;
  char text[SCHEMA_TEXT];
  const char *own;
  step end = DIBS__SQL_FINE;
  for (size_t nth = 0; end == DIBS__SQL_FINE; nth++) {
    if (!dibs__sql_schema(&engine->sql.words, version, nth, text, sizeof text)) break;
    if_not_there(text, sizeof text);
    end = say(s, text);
  }
  for (size_t nth = 0; end == DIBS__SQL_FINE && engine->schema && (own = engine->schema(version, nth)); nth++)
    end = say(s, own);
  return end;
}

/* 0: there is none. */
static step read_version(session *s, uint32_t *version) {
  size_t nth;
  *version = 0;
  step end = dibs__far_ask(s, DIBS__FAR_META, NULL, 0, &nth);
  if (end != DIBS__SQL_FINE) return s->wire->trouble == DIBS__SQL_MISSING ? DIBS__SQL_FINE : end;
  if (s->wire->engine->rows(s->wire, nth) > 0) *version = (uint32_t)dibs__sql_cell_number(s->wire, nth, 0, 0);
  return end;
}

static step first_rows(session *s) {
  value meta[] = {dibs__sql_number(0), dibs__sql_bytes(s->life.b, sizeof s->life.b)};
  size_t nth;
  step end = dibs__far_ask(s, DIBS__FAR_META, NULL, 0, &nth);
  if (end != DIBS__SQL_FINE || s->wire->engine->rows(s->wire, nth) > 0) return end;
  end = dibs__sql_begin(s->wire);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++) {
    value v[] = {dibs__sql_number(b), dibs__sql_bytes(s->life.b, sizeof s->life.b), dibs__sql_number(1)};
    end = dibs__far_put(s, DIBS__FAR_BUCKET_ADD, v, 3);
  }
  if (end == DIBS__SQL_FINE) end = dibs__far_put(s, DIBS__FAR_META_ADD, meta, 2);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(s->wire);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, true);
  if (end != DIBS__SQL_FINE && !dibs__sql_dead(s->wire)) dibs__sql_rollback(s->wire);
  return end;
}

static step migrate(session *s, uint32_t version) {
  step end = DIBS__SQL_FINE;
  for (; version < DIBS__SQL_SCHEMA && end == DIBS__SQL_FINE; version++) {
    end = make_version(s, version);
    if (end == DIBS__SQL_FINE && version == 0) end = first_rows(s);
    value v = dibs__sql_number(version + 1);
    if (end == DIBS__SQL_FINE) end = dibs__far_put(s, DIBS__FAR_META_VERSION, &v, 1);
    if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, true);
  }
  return end;
}

/* Makes what is missing, under the lock; who was first is seen by a second look. */
static step make_schema(session *s, uint32_t *version) {
  const struct dibs__far_engine *engine = s->store->engine;
  step end = engine->lock_schema(s->wire, true);
  if (end == DIBS__SQL_FINE) end = engine->sql.go(s->wire, false);
  if (end == DIBS__SQL_FINE) end = read_version(s, version);
  if (end == DIBS__SQL_FINE && *version < DIBS__SQL_SCHEMA) {
    end = migrate(s, *version);
    *version = DIBS__SQL_SCHEMA;
  }
  if (end != DIBS__SQL_FINE) return end;
  end = engine->lock_schema(s->wire, false);
  return end == DIBS__SQL_FINE ? engine->sql.go(s->wire, false) : end;
}

static dibs__status settle_schema(session *s, struct dibs__said *said) {
  uint32_t version;
  step end = read_version(s, &version);
  if (end == DIBS__SQL_FINE && version < DIBS__SQL_SCHEMA) end = make_schema(s, &version);
  if (end != DIBS__SQL_FINE) return dibs__far_excuse(s, "make the tables of dibs in", said);
  if (version <= DIBS__SQL_SCHEMA) return DIBS_OK;
  dibs__say(said, "%s was made by a newer dibs: its tables have version %u, this dibs knows %d; install a newer one",
            s->store->shown, version, DIBS__SQL_SCHEMA);
  return DIBS_TOO_NEW;
}

/* ---- Incarnations ---- */

/* A digest that is fixed for ever; not a secret. */
static void digest(const char *p, size_t len, dibs__life *life) {
  for (size_t part = 0; part < sizeof life->b; part += 4) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (part * UINT64_C(0x9e3779b97f4a7c15));
    for (size_t i = 0; i < len; i++) hash = (hash ^ (unsigned char)p[i]) * UINT64_C(0x100000001b3);
    hash ^= hash >> 32;
    for (size_t i = 0; i < 4; i++) life->b[part + i] = (uint8_t)(hash >> 8 * i);
  }
}

static dibs__status read_life(session *s, struct dibs__said *said) {
  const struct dibs__far_engine *engine = s->store->engine;
  size_t nth = s->wire->put;
  step end = engine->sql.put(s->wire, engine->life(!s->store->options.lease_sync), NULL, 0);
  if (end == DIBS__SQL_FINE) end = engine->sql.go(s->wire, false);
  if (end != DIBS__SQL_FINE) return dibs__far_excuse(s, "ask for the identity of", said);
  value cell = {.kind = DIBS__SQL_NULL};
  if (engine->sql.rows(s->wire, nth) == 1) cell = engine->sql.cell(s->wire, nth, 0, 0, DIBS__SQL_TEXT);
  if (cell.kind == DIBS__SQL_TEXT && cell.len) {
    digest(cell.p, cell.len, &s->life);
    return DIBS_OK;
  }
  dibs__say(said, "%s does not say which server it is", s->store->shown);
  return DIBS_UNSUPPORTED;
}

static step same_life(session *s, enum dibs__far_texts text, bool *same) {
  dibs__life stands;
  size_t nth;
  step end = dibs__far_ask(s, text, NULL, 0, &nth);
  if (end != DIBS__SQL_FINE) return end;
  if (s->wire->engine->rows(s->wire, nth) != 1)
    return dibs__sql_broke(s->wire, DIBS__SQL_DAMAGED, "the row of dibs_meta is missing");
  dibs__far_read_bytes(s, nth, 0, 1, stands.b, sizeof stands.b);
  *same = memcmp(stands.b, s->life.b, sizeof stands.b) == 0;
  return end;
}

static step new_life(session *s) {
  int64_t epoch = 0;
  size_t nth;
  step end = dibs__far_ask(s, DIBS__FAR_BUCKETS_LOCK, NULL, 0, &nth);
  if (end != DIBS__SQL_FINE) return end;
  size_t rows = s->wire->engine->rows(s->wire, nth);
  if (rows != DIBS__BUCKETS) return dibs__sql_broke(s->wire, DIBS__SQL_DAMAGED, "rows of buckets are missing");
  for (size_t i = 0; i < rows; i++) {
    int64_t one = dibs__sql_cell_number(s->wire, nth, i, 1);
    if (one > epoch) epoch = one;
  }
  if (epoch >= DIBS__EPOCH_MAX) return dibs__sql_broke(s->wire, DIBS__SQL_ODD, "its epochs are used up");
  value v[] = {dibs__sql_bytes(s->life.b, sizeof s->life.b), dibs__sql_number(epoch + 1)};
  end = dibs__far_put(s, DIBS__FAR_BUCKETS_SET, v, 2);
  if (end == DIBS__SQL_FINE) end = dibs__far_put(s, DIBS__FAR_META_LIFE, v, 1);
  return end;
}

step dibs__far_settle_life(session *s) {
  bool same = false;
  step end = same_life(s, DIBS__FAR_META, &same);
  if (end != DIBS__SQL_FINE || same) return end;
  end = dibs__sql_begin(s->wire);
  if (end == DIBS__SQL_FINE) end = same_life(s, DIBS__FAR_META_LOCK, &same);
  if (end == DIBS__SQL_FINE && !same) end = new_life(s);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(s->wire);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, true);
  if (end != DIBS__SQL_FINE && !dibs__sql_dead(s->wire)) dibs__sql_rollback(s->wire);
  return end;
}

step dibs__far_next_epoch(session *s, uint16_t bucket) {
  step end = dibs__sql_begin(s->wire);
  if (end == DIBS__SQL_FINE) end = dibs__far_lock_bucket(s, bucket);
  if (end != DIBS__SQL_FINE) return end;
  struct dibs__sql_bucket *b = &s->buckets[bucket];
  if (!dibs__sql_next_epoch(b)) return dibs__sql_broke(s->wire, DIBS__SQL_ODD, "its epochs are used up");
  value v[] = {dibs__sql_number(bucket), dibs__sql_number(b->mandate.epoch), dibs__sql_number(b->seq)};
  end = dibs__far_put(s, DIBS__FAR_BUCKET_SET, v, 3);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(s->wire);
  return end == DIBS__SQL_FINE ? s->wire->engine->go(s->wire, true) : end;
}

/* ---- Sessions ---- */

dibs__status dibs__far_session_open(struct dibs__far *store, dibs__tick by, session **out, struct dibs__said *said) {
  session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = &store->base;
  s->store = store;
  dibs__status status = store->engine->connect(store, by, &s->wire, said);
  if (status == DIBS_OK) {
    s->wire->by = by;
    status = read_life(s, said);
  }
  if (status != DIBS_OK) {
    dibs__far_session_close(s);
    return status;
  }
  *out = s;
  return DIBS_OK;
}

void dibs__far_session_close(session *s) {
  if (!s) return;
  dibs__far_fresh(s);
  if (s->wire) s->store->engine->close(s->wire);
  free(s->names);
  free(s->pool);
  free(s->records);
  free(s->others);
  free(s->rings);
  free(s);
}

static dibs__status settle(session *s, struct dibs__said *said) {
  dibs__status status = settle_schema(s, said);
  if (status != DIBS_OK) return status;
  return dibs__far_settle_life(s) == DIBS__SQL_FINE ? DIBS_OK : dibs__far_excuse(s, "begin an incarnation of", said);
}

static void identify(session *s, struct dibs__identity *identity) {
  *identity = (struct dibs__identity){.caps = CAPS | s->store->engine->caps,
                                      .families = (1u << DIBS__FAM_LEASE) | (1u << DIBS__FAM_ANCHOR) |
                                                  (1u << DIBS__FAM_RECORD) | (1u << DIBS__FAM_STOCK) |
                                                  (1u << DIBS__FAM_ONCE) | (1u << DIBS__FAM_REPORT),
                                      .schema = DIBS__SQL_SCHEMA,
                                      .max_batch = DIBS__FAR_BATCH,
                                      .max_sessions = SESSIONS,
                                      .session = s->store->session};
  if (s->known[0] & 1) identity->mandate = dibs__sql_hint(s->store->as_tier, &s->buckets[0]);
}

/* What buckets stand under, as a hint. */
static step hint(session *s) {
  value v = dibs__sql_number(0);
  size_t nth;
  dibs__far_fresh(s);
  step end = dibs__far_ask(s, DIBS__FAR_BUCKET, &v, 1, &nth);
  return end == DIBS__SQL_FINE ? dibs__far_read_bucket(s, nth, 0) : end;
}

DIBS__MODULE_API dibs__status dibs__far_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                                struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__status status = DIBS_OK;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__mutex_lock(&store->inside->lock);
  session *s = store->inside->spare;
  store->inside->spare = NULL;
  dibs__mutex_unlock(&store->inside->lock);
  if (!s) {
    status = dibs__far_session_open(store, by, &s, said);
    if (status != DIBS_OK) return status;
    status = settle(s, said);
  }
  s->wire->by = by;
  if (status == DIBS_OK && hint(s) != DIBS__SQL_FINE) status = dibs__far_excuse(s, "read", said);
  if (status != DIBS_OK) {
    dibs__far_session_close(s);
    return status;
  }
  identify(s, identity);
  *out = &s->base;
  return DIBS_OK;
}

DIBS__MODULE_API dibs__status dibs__far_attach(struct dibs__dstore *base, void *connection, struct dibs__session **out,
                                               struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__far *store = (struct dibs__far *)base;
  session *s = calloc(1, sizeof *s);
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  s->store = store;
  dibs__status status = store->engine->adopt(store, connection, &s->wire, said);
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  identify(s, identity);
  identity->families &= ~((1u << DIBS__FAM_LEASE) | (1u << DIBS__FAM_ANCHOR) | (1u << DIBS__FAM_REPORT));
  identity->max_sessions = 1;
  *out = &s->base;
  return DIBS_OK;
}

DIBS__MODULE_API void dibs__far_disconnect(struct dibs__session *base) {
  dibs__far_session_close((session *)base);
}

/* ---- The store ---- */

static void free_store(struct dibs__far *store) {
  if (store->inside) {
    dibs__far_session_close(store->inside->spare);
    dibs__far_session_close(store->inside->tidier);
    dibs__mutex_destroy(&store->inside->opening);
    dibs__mutex_destroy(&store->inside->lock);
    free(store->inside);
  }
  if (store->place) store->engine->forget(store->place);
  dibs__far_texts_free(store);
  free(store);
}

static dibs__status prepare(struct dibs__far *store, const struct dibs__uri *uri, struct dibs__said *said) {
  dibs__status status = only_known(store->engine, uri, said);
  if (status == DIBS_OK) status = read_options(uri, &store->options, said);
  if (status != DIBS_OK) return status;
  store->inside = calloc(1, sizeof *store->inside);
  if (!store->inside || !dibs__far_texts_make(store)) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->inside->opening);
  dibs__mutex_init(&store->inside->lock);
  return store->engine->prepare(uri, store, &store->place, said);
}

DIBS__MODULE_API dibs__status dibs__far_open(const struct dibs__far_engine *engine, const struct dibs__uri *uri,
                                             dibs__tick by, struct dibs__dstore **out, struct dibs__said *said) {
  struct dibs__far *store = calloc(1, sizeof *store);
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (!store) return DIBS_NO_MEMORY;
  store->engine = engine;
  store->as_tier = uri->as_tier;
  snprintf(store->shown, sizeof store->shown, "%s", uri->shown);
  do dibs__random(&store->session, sizeof store->session);
  while ((store->session >>= 1) == 0); /* fits a signed number, is not 0 */
  dibs__status status = prepare(store, uri, said);
  if (status == DIBS_OK) status = dibs__far_session_open(store, by, &store->inside->spare, said);
  if (status == DIBS_OK) status = settle(store->inside->spare, said);
  if (status != DIBS_OK) {
    free_store(store);
    return status;
  }
  *out = &store->base;
  return DIBS_OK;
}

DIBS__MODULE_API void dibs__far_close(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__far_leave(store);
  dibs__far_bell_close(store);
  free_store(store);
}
