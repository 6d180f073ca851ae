/* SPDX-License-Identifier: MIT */
/*
 * Events.  Each process that takes or waits for leases has a document in the collection of sessions: {_id, seen, box}.
 * A client that makes an offer to a waiter, or breaks a lease, adds a notice to the box of its process, which empties
 * it.  The process looks into its box often while it waits, less often later.  `seen` proves that it lives.
 *
 * A notice may be lost; then a waiter looks again by itself (R17).
 *
 * Locks: `lock` guards the notices of this process and `waited`.  The link is that of the thread in events().
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <stdlib.h>
#include <string.h>

/* KEEP_MS: documents of processes that were killed are removed by others after that. */
enum {
  BOX = 256,
  DEAD_MS = 6000,
  KEEP_MS = 3600000,
  BEAT_MS = 1500,
  CALL_MS = 2000,
  REST_MS = 500,
  LOOK_SHARE = 4,
  BUSY_MS = 150
};

struct dibs__mongo_mailbox {
  dibs__mutex lock;
  dibs__word word; /* changes with each notice and wake */
  struct dibs__event notices[BOX];
  size_t count;
  bool overflow, woken;
  dibs__tick waited;  /* when a waiter was queued last, or a notice came */
  _Atomic bool tasks; /* a CLAIM found none: it looks whether there are new ones, too */
  _Atomic bool registered;
  /* events() alone. */
  struct dibs__mongo_link *link;
  dibs__tick again;
  int64_t tasks_seen;   /* what the document "tasks" said last */
  _Atomic int64_t beat; /* ns: when the latest sign of life was given */
};
typedef struct dibs__mongo_mailbox mailbox;

dibs__status dibs__mongo_mailbox_open(struct dibs__mongo *store) {
  mailbox *m = calloc(1, sizeof *m);
  if (!m) return DIBS_NO_MEMORY;
  dibs__mutex_init(&m->lock);
  store->mailbox = m;
  return DIBS_OK;
}

static bson_t *by_session(uint64_t session) {
  bson_t *filter = bson_new();
  BSON_APPEND_INT64(filter, "_id", (int64_t)session);
  return filter;
}

void dibs__mongo_mailbox_close(struct dibs__mongo *store) {
  mailbox *m = store->mailbox;
  if (!m) return;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), REST_MS);
  struct dibs__result result;
  if (atomic_load(&m->registered) && !m->link) (void)dibs__mongo_connect(store->location, by, &m->link, &result);
  if (atomic_load(&m->registered) && m->link) {
    bson_t *filter = by_session(store->session);
    m->link->by = by;
    mongoc_collection_delete_one(m->link->collections[DIBS__MONGO_SESSION], filter, NULL, NULL, NULL);
    bson_destroy(filter);
  }
  dibs__mongo_disconnect(m->link);
  dibs__mutex_destroy(&m->lock);
  free(m);
  store->mailbox = NULL;
}

/* ---- Signs of life: by events(), and by a batch that may queue a waiter ---- */

static bool beat_is_due(mailbox *m) {
  dibs__tick last = {atomic_load(&m->beat)};
  return last.ns == 0 || !dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(last, BEAT_MS));
}

static dibs__status beat(struct dibs__mongo *store, struct dibs__mongo_link *link, struct dibs__result *result) {
  bson_t *filter = by_session(store->session);
  bson_t update = BSON_INITIALIZER, part, options = BSON_INITIALIZER;
  bson_error_t error;
  BSON_APPEND_DOCUMENT_BEGIN(&update, "$currentDate", &part);
  BSON_APPEND_BOOL(&part, "seen", true);
  bson_append_document_end(&update, &part);
  BSON_APPEND_BOOL(&options, "upsert", true);
  int64_t now = dibs__tick_now().ns;
  bool done =
      mongoc_collection_update_one(link->collections[DIBS__MONGO_SESSION], filter, &update, &options, NULL, &error);
  if (done) atomic_store(&store->mailbox->beat, now);
  bson_destroy(filter);
  bson_destroy(&update);
  bson_destroy(&options);
  return done ? DIBS_OK : dibs__mongo_explain(link, &error, NULL, false, result);
}

/* {seen: {$exists: true}, $expr: {$lt: [$seen, {$subtract: [$$NOW, KEEP_MS]}]}}.  A process that was only stopped makes
 * its document again. */
static void remove_dead(struct dibs__mongo_link *link) {
  bson_t filter = BSON_INITIALIZER, exists, expr, args, minus, terms;
  BSON_APPEND_DOCUMENT_BEGIN(&filter, "seen", &exists);
  BSON_APPEND_BOOL(&exists, "$exists", true);
  bson_append_document_end(&filter, &exists);
  BSON_APPEND_DOCUMENT_BEGIN(&filter, "$expr", &expr);
  BSON_APPEND_ARRAY_BEGIN(&expr, "$lt", &args);
  BSON_APPEND_UTF8(&args, "0", "$seen");
  BSON_APPEND_DOCUMENT_BEGIN(&args, "1", &minus);
  BSON_APPEND_ARRAY_BEGIN(&minus, "$subtract", &terms);
  BSON_APPEND_UTF8(&terms, "0", "$$NOW");
  BSON_APPEND_INT64(&terms, "1", KEEP_MS);
  bson_append_array_end(&minus, &terms);
  bson_append_document_end(&args, &minus);
  bson_append_array_end(&expr, &args);
  bson_append_document_end(&filter, &expr);
  mongoc_collection_delete_many(link->collections[DIBS__MONGO_SESSION], &filter, NULL, NULL, NULL);
  bson_destroy(&filter);
}

dibs__status dibs__mongo_mailbox_ready(struct dibs__mongo *store, struct dibs__mongo_link *link,
                                       struct dibs__result *result) {
  mailbox *m = store->mailbox;
  if (!beat_is_due(m)) return DIBS_OK;
  dibs__status status = beat(store, link, result);
  if (status != DIBS_OK) return status;
  if (!atomic_exchange(&m->registered, true)) dibs__mongo_wake(&store->base); /* from now on it looks into its box */
  return DIBS_OK;
}

void dibs__mongo_mailbox_waits(struct dibs__mongo *store) {
  mailbox *m = store->mailbox;
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&m->lock);
  bool long_ago = !dibs__tick_before(now, dibs__tick_add_ms(m->waited, 1000));
  m->waited = now;
  dibs__mutex_unlock(&m->lock);
  if (long_ago) dibs__mongo_wake(&store->base);
}

void dibs__mongo_mailbox_wants_tasks(struct dibs__mongo *store) {
  if (!atomic_exchange(&store->mailbox->tasks, true)) dibs__mongo_wake(&store->base);
}

struct lives {
  const uint64_t *sessions;
  bool *alive;
  size_t count;
};

static bool see_life(void *user, const bson_t *row) {
  const struct lives *l = user;
  bson_iter_t at;
  if (!bson_iter_init_find(&at, row, "_id")) return true;
  uint64_t session = (uint64_t)bson_iter_as_int64(&at);
  for (size_t i = 0; i < l->count; i++)
    if (l->sessions[i] == session) l->alive[i] = true;
  return true;
}

/* {_id: {$in: [...]}} */
static void put_sessions(bson_t *filter, const uint64_t *sessions, size_t count) {
  bson_t in, keys;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  for (size_t i = 0; i < count; i++) {
    char index[12];
    const char *at;
    bson_uint32_to_string((uint32_t)i, &at, index, sizeof index);
    BSON_APPEND_INT64(&keys, at, (int64_t)sessions[i]);
  }
  bson_append_array_end(&in, &keys);
  bson_append_document_end(filter, &in);
}

dibs__status dibs__mongo_there(struct dibs__mongo_link *link, const uint64_t *sessions, bool *there, size_t count,
                               struct dibs__result *result) {
  bson_t filter = BSON_INITIALIZER;
  struct lives lives = {sessions, there, count};
  memset(there, 0, count * sizeof *there);
  put_sessions(&filter, sessions, count);
  dibs__status status = dibs__mongo_find(link, DIBS__MONGO_SESSION, &filter, 0, false, see_life, &lives, result);
  bson_destroy(&filter);
  return status;
}

/* {_id: {$in: [...]}, $expr: {$gt: [$seen, {$subtract: [$$NOW, DEAD_MS]}]}} */
dibs__status dibs__mongo_alive(struct dibs__mongo_link *link, const uint64_t *sessions, bool *alive, size_t count,
                               struct dibs__result *result) {
  bson_t filter = BSON_INITIALIZER, expr, args, minus, terms;
  struct lives lives = {sessions, alive, count};
  memset(alive, 0, count * sizeof *alive);
  put_sessions(&filter, sessions, count);
  BSON_APPEND_DOCUMENT_BEGIN(&filter, "$expr", &expr);
  BSON_APPEND_ARRAY_BEGIN(&expr, "$gt", &args);
  BSON_APPEND_UTF8(&args, "0", "$seen");
  BSON_APPEND_DOCUMENT_BEGIN(&args, "1", &minus);
  BSON_APPEND_ARRAY_BEGIN(&minus, "$subtract", &terms);
  BSON_APPEND_UTF8(&terms, "0", "$$NOW");
  BSON_APPEND_INT64(&terms, "1", DEAD_MS);
  bson_append_array_end(&minus, &terms);
  bson_append_document_end(&args, &minus);
  bson_append_array_end(&expr, &args);
  bson_append_document_end(&filter, &expr);
  dibs__status status = dibs__mongo_find(link, DIBS__MONGO_SESSION, &filter, 0, false, see_life, &lives, result);
  bson_destroy(&filter);
  return status;
}

/* ---- Sending ---- */

static void keep_notice(mailbox *m, const struct dibs__event *event) {
  dibs__mutex_lock(&m->lock);
  if (m->count < BOX)
    m->notices[m->count++] = *event;
  else
    m->overflow = true;
  dibs__mutex_unlock(&m->lock);
  atomic_fetch_add(&m->word, 1);
  dibs__word_wake(&m->word, 1, false);
}

/* {q: {_id}, u: {$push: {box: {$each: [{what, id}], $slice: -BOX}}}} */
static bool put_notice(bson_t *updates, uint32_t nth, const struct dibs__mongo_notice *n) {
  bson_t one, q, u, push, box, each, notice;
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  return bson_append_document_begin(updates, at, -1, &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
         BSON_APPEND_INT64(&q, "_id", (int64_t)n->session) && bson_append_document_end(&one, &q) &&
         BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &u) && BSON_APPEND_DOCUMENT_BEGIN(&u, "$push", &push) &&
         BSON_APPEND_DOCUMENT_BEGIN(&push, "box", &box) && BSON_APPEND_ARRAY_BEGIN(&box, "$each", &each) &&
         BSON_APPEND_DOCUMENT_BEGIN(&each, "0", &notice) &&
         BSON_APPEND_UTF8(&notice, "what", n->event.what == DIBS__EV_LOST ? "lost" : "offer") &&
         bson_append_binary(&notice, "id", -1, BSON_SUBTYPE_BINARY, n->event.id.b, sizeof n->event.id.b) &&
         bson_append_document_end(&each, &notice) && bson_append_array_end(&box, &each) &&
         BSON_APPEND_INT32(&box, "$slice", -BOX) && bson_append_document_end(&push, &box) &&
         bson_append_document_end(&u, &push) && bson_append_document_end(&one, &u) &&
         bson_append_document_end(updates, &one);
}

void dibs__mongo_send(struct dibs__mongo *store, struct dibs__mongo_link *link,
                      const struct dibs__mongo_notice *notices, size_t count) {
  bson_t command = BSON_INITIALIZER, updates, reply;
  uint32_t sent = 0;
  BSON_APPEND_UTF8(&command, "update", mongoc_collection_get_name(link->collections[DIBS__MONGO_SESSION]));
  BSON_APPEND_BOOL(&command, "ordered", false);
  BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
  for (size_t i = 0; i < count; i++) {
    if (notices[i].session == store->session)
      keep_notice(store->mailbox, &notices[i].event);
    else
      (void)put_notice(&updates, sent++, &notices[i]);
  }
  bson_append_array_end(&command, &updates);
  /* A request after the deadline would only end the connection. */
  bool late = link->broken || !dibs__tick_before(dibs__tick_now(), link->by);
  if (sent && !late) {
    mongoc_client_write_command_with_opts(link->client, link->location->database, &command, NULL, &reply, NULL);
    bson_destroy(&reply);
  }
  bson_destroy(&command);
}

/* {_id: "tasks", ready: N}, of the same collection, so that one look of a process finds both.  N is drawn: another one
 * says that tasks are ready since the last look. */
void dibs__mongo_tell_tasks(struct dibs__mongo *store, struct dibs__mongo_link *link) {
  bson_t filter = BSON_INITIALIZER, update = BSON_INITIALIZER, set, options = BSON_INITIALIZER;
  int64_t ready;
  dibs__random(&ready, sizeof ready);
  BSON_APPEND_UTF8(&filter, "_id", "tasks");
  BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
  BSON_APPEND_INT64(&set, "ready", ready);
  bson_append_document_end(&update, &set);
  BSON_APPEND_BOOL(&options, "upsert", true);
  keep_notice(store->mailbox, &(struct dibs__event){.what = DIBS__EV_TASKS});
  mongoc_collection_update_one(link->collections[DIBS__MONGO_SESSION], &filter, &update, &options, NULL, NULL);
  bson_destroy(&filter);
  bson_destroy(&update);
  bson_destroy(&options);
}

/* ---- Receiving ---- */

static void read_notice(mailbox *m, const bson_t *from) {
  struct dibs__event event = {.what = DIBS__EV_OFFER};
  bson_iter_t at;
  uint32_t len = 0;
  const uint8_t *bytes = NULL;
  if (bson_iter_init_find(&at, from, "what") && BSON_ITER_HOLDS_UTF8(&at) &&
      strcmp(bson_iter_utf8(&at, NULL), "lost") == 0)
    event.what = DIBS__EV_LOST;
  if (bson_iter_init_find(&at, from, "id") && BSON_ITER_HOLDS_BINARY(&at)) bson_iter_binary(&at, NULL, &len, &bytes);
  if (len == sizeof event.id.b)
    memcpy(event.id.b, bytes, len);
  else
    event.what = DIBS__EV_RECHECK;
  keep_notice(m, &event);
}

struct box {
  mailbox *m;
  bool full;
};

static bool see_box(void *user, const bson_t *row) {
  struct box *box = user;
  bson_iter_t at, in;
  if (bson_iter_init_find(&at, row, "ready")) {
    int64_t ready = bson_iter_as_int64(&at);
    if (ready != box->m->tasks_seen) keep_notice(box->m, &(struct dibs__event){.what = DIBS__EV_TASKS});
    box->m->tasks_seen = ready;
  } else if (bson_iter_init_find(&at, row, "box")) {
    box->full = BSON_ITER_HOLDS_ARRAY(&at) && bson_iter_recurse(&at, &in) && bson_iter_next(&in);
  }
  return true;
}

/* Takes out what is in the box. */
static dibs__status empty_box(struct dibs__mongo *store, struct dibs__result *result) {
  mailbox *m = store->mailbox;
  bson_t *filter = by_session(store->session);
  bson_t update = BSON_INITIALIZER, part, empty, reply;
  bson_iter_t at, in;
  bson_error_t error;
  BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &part);
  BSON_APPEND_ARRAY_BEGIN(&part, "box", &empty);
  bson_append_array_end(&part, &empty);
  bson_append_document_end(&update, &part);
  bool done = mongoc_collection_find_and_modify(m->link->collections[DIBS__MONGO_SESSION], filter, NULL, &update, NULL,
                                                false, false, false, &reply, &error);
  if (done && bson_iter_init_find(&at, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&at) &&
      bson_iter_recurse(&at, &in) && bson_iter_find(&in, "box") && BSON_ITER_HOLDS_ARRAY(&in) &&
      bson_iter_recurse(&in, &at)) {
    while (bson_iter_next(&at)) {
      uint32_t len;
      const uint8_t *bytes;
      bson_t one;
      if (!BSON_ITER_HOLDS_DOCUMENT(&at)) continue;
      bson_iter_document(&at, &len, &bytes);
      if (bson_init_static(&one, bytes, len)) read_notice(m, &one);
    }
    dibs__mutex_lock(&m->lock);
    m->waited = dibs__tick_now();
    dibs__mutex_unlock(&m->lock);
  }
  bson_destroy(&reply);
  bson_destroy(filter);
  bson_destroy(&update);
  return done ? DIBS_OK : dibs__mongo_explain(m->link, &error, NULL, false, result);
}

static dibs__status look_into_box(struct dibs__mongo *store, struct dibs__result *result) {
  mailbox *m = store->mailbox;
  struct box box = {.m = m};
  bson_t *filter = bson_new(), in, keys;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  BSON_APPEND_INT64(&keys, "0", (int64_t)store->session);
  if (atomic_load(&m->tasks)) BSON_APPEND_UTF8(&keys, "1", "tasks");
  bson_append_array_end(&in, &keys);
  bson_append_document_end(filter, &in);
  dibs__status status = dibs__mongo_find(m->link, DIBS__MONGO_SESSION, filter, 2, false, see_box, &box, result);
  bson_destroy(filter);
  return status == DIBS_OK && box.full ? empty_box(store, result) : status;
}

/* How long it may be until the next look: briefly after a waiter was queued, longer and longer after that; and some
 * times as long as the look took.  So the looks of many processes slow down on a server that is busy, with them or with
 * others, but still find an offer long before it expires. */
static int64_t pause_of(mailbox *m, int64_t took_ms) {
  dibs__mutex_lock(&m->lock);
  int64_t ms = dibs__tick_left_ms(m->waited, dibs__tick_now());
  dibs__mutex_unlock(&m->lock);
  int64_t pause = ms < 2000 ? 5 : ms < 30000 ? 25 : ms < 600000 || atomic_load(&m->tasks) ? 100 : 500;
  int64_t busy = took_ms * LOOK_SHARE < BUSY_MS ? took_ms * LOOK_SHARE : BUSY_MS;
  return pause > busy ? pause : busy;
}

/* Connects, beats and looks, as far as each is due; gives the time of the next visit. */
static dibs__tick visit(struct dibs__mongo *store) {
  mailbox *m = store->mailbox;
  struct dibs__result result = {.text = ""};
  dibs__tick now = dibs__tick_now();
  dibs__status status = DIBS_OK;
  if (!atomic_load(&m->registered)) return DIBS__TICK_NEVER;
  if (dibs__tick_before(now, m->again)) return m->again;
  if (!m->link) {
    status = dibs__mongo_connect(store->location, dibs__tick_add_ms(now, CALL_MS), &m->link, &result);
    if (status == DIBS_OK) keep_notice(m, &(struct dibs__event){.what = DIBS__EV_RECHECK});
    if (status == DIBS_OK) remove_dead(m->link);
  }
  if (status == DIBS_OK) m->link->by = dibs__tick_add_ms(now, CALL_MS);
  if (status == DIBS_OK && beat_is_due(m)) status = beat(store, m->link, &result);
  if (status == DIBS_OK) status = look_into_box(store, &result);
  if (status != DIBS_OK) {
    dibs__mongo_disconnect(m->link);
    m->link = NULL;
    return m->again = dibs__tick_add_ms(dibs__tick_now(), REST_MS);
  }
  return m->again = dibs__tick_add_ms(dibs__tick_now(), pause_of(m, dibs__tick_left_ms(now, dibs__tick_now())));
}

static bool take_notices(mailbox *m, struct dibs__event *events, size_t cap, size_t *count) {
  dibs__mutex_lock(&m->lock);
  bool up = m->woken;
  m->woken = false;
  if (m->overflow && *count < cap) {
    events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    m->overflow = false;
  }
  size_t taken = 0;
  while (taken < m->count && *count < cap) events[(*count)++] = m->notices[taken++];
  memmove(m->notices, m->notices + taken, (m->count - taken) * sizeof *m->notices);
  m->count -= taken;
  dibs__mutex_unlock(&m->lock);
  return up || *count > 0;
}

dibs__status dibs__mongo_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by) {
  struct dibs__mongo *store = (struct dibs__mongo *)base;
  mailbox *m = store->mailbox;
  *count = 0;
  for (;;) {
    uint32_t seen = atomic_load(&m->word);
    if (take_notices(m, events, cap, count)) return DIBS_OK;
    dibs__tick next = visit(store);
    if (take_notices(m, events, cap, count)) return DIBS_OK;
    if (!dibs__tick_before(dibs__tick_now(), by)) return DIBS_OK;
    (void)dibs__word_wait(&m->word, seen, dibs__tick_min(by, next), false);
  }
}

void dibs__mongo_wake(struct dibs__dstore *base) {
  mailbox *m = ((struct dibs__mongo *)base)->mailbox;
  dibs__mutex_lock(&m->lock);
  m->woken = true;
  dibs__mutex_unlock(&m->lock);
  atomic_fetch_add(&m->word, 1);
  dibs__word_wake(&m->word, 1, false);
}
