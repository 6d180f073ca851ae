/* SPDX-License-Identifier: MIT */
/*
 * Watches of this process's waiters, and events.
 *
 * A waiter watches the one before it, as a waiter and as a holder.  The first two watch all holders: the first for the
 * name, the second to see for how long the first one has had its offer.  So a release wakes one waiter, however many
 * wait, and the stream of a waiter that moves up goes on.
 *
 * One thread reads the streams.  A stream of the JSON gateway takes its watches when it begins; so new watches begin
 * another stream, and when there are STREAMS of them, one new stream replaces all.  Every watch has the revision up to
 * which it is complete, so nothing is missed in between, nor when a stream ends and goes on at another endpoint.  If
 * etcd has compacted that revision, the waiter checks again, and watches from then on.
 *
 * The gateway may lose watches of a stream: a Go server drops what it has not read of a request when it begins to
 * answer, unless this is more than it would skip.  So a stream with several watches ends with PADDING blanks, and a
 * watch that etcd does not confirm begins again on another stream.
 *
 * A member that is stopped keeps its streams silent.  The requests of the same store notice that, and move to another
 * endpoint; the streams follow.  The core's waiters check again each second, anyway.
 *
 * Lock: `lock` guards all that is not the thread's alone; no request is sent, and no other lock taken, while it is
 * held.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 257 * 1024, UNPADDED = 2, CONFIRM_MS = 250, CONFIRM_MOST_MS = 4000 };
enum { STREAMS = 4, EVENTS = 1024, OBSERVED = 512, POLL_MS = 250, REST_MS = 100, AUTHORIZE_MS = 1000, NOTICES = 1 };

/* A waiter watches of the keys of the holders, of the key of the waiter before it, or of the key that this waiter will
 * have as a holder. */
enum watched { OF_HOLDERS, OF_BEFORE, OF_BEFORE_HELD, WATCHED };

/* Of one waiter. */
struct watch {
  struct watch *next;
  dibs__id id;
  uint64_t name_hash, serial, revision; /* all events up to it were seen */
  uint64_t from;                        /* complete from this revision on */
  uint64_t seen[WATCHED];               /* the latest event of each key: another stream may begin before it */
  bool near, before, shares;
  bool signalled;            /* an event was posted since the waiter was queued or checked */
  bool streamed;             /* on a stream that lives */
  bool compacted;            /* begin with what comes */
  uint8_t wanted, confirmed; /* the keys that it needs, as bits; those that etcd has begun to watch */
  dibs__tick asked;          /* when it was put on a stream */
  int64_t patience_ms;       /* then: how long it may take to be confirmed */
  dibs__id before_id;
  struct dibs__etcd_key holders, before_key;
};

struct stream {
  CURL *easy;
  struct curl_slist *headers;
  struct dibs__etcd_text body, line;
  uint32_t host;
  struct dibs__etcd *store;
  bool failed, denied;
};

/* Since when an offer was seen; and when a holder or a waiter ended. */
struct observed {
  uint64_t name_hash, mod;
  dibs__id id; /* zero: of an end, at revision mod */
  dibs__tick at;
};

struct dibs__etcd_watches {
  dibs__mutex lock;
  struct watch *all;
  uint64_t serials;
  bool notices, notices_streamed, notices_confirmed;
  dibs__tick notices_asked;
  uint64_t notices_revision;
  struct observed observed[OBSERVED];
  size_t observed_next;
  struct dibs__event events[EVENTS];
  size_t event_head, event_count;
  bool overflow, recheck, new_incarnation, woken;
  dibs__word word;
  dibs__thread *thread;
  CURLM *multi;
  /* The thread's. */
  struct dibs__etcd_link *link;
  struct stream streams[STREAMS];
  dibs__tick again;
};

typedef struct dibs__etcd_watches watches;

/* ---- Events ---- */

static void notify(watches *w) {
  atomic_fetch_add(&w->word, 1);
  dibs__word_wake(&w->word, 1, false);
}

static void post_locked(watches *w, enum dibs__event_what what, dibs__id id) {
  if (w->event_count == EVENTS)
    w->overflow = true;
  else
    w->events[(w->event_head + w->event_count++) % EVENTS] = (struct dibs__event){.what = what, .id = id};
  notify(w);
}

static void post_offer_locked(watches *w, struct watch *at) {
  at->signalled = true;
  post_locked(w, DIBS__EV_OFFER, at->id);
}

void dibs__etcd_recheck(struct dibs__etcd *store, enum dibs__event_what what) {
  watches *w = store->watches;
  if (!w) return;
  dibs__mutex_lock(&w->lock);
  if (what == DIBS__EV_NEW_INCARNATION) w->new_incarnation = true;
  w->recheck = true;
  dibs__mutex_unlock(&w->lock);
  notify(w);
}

static size_t take_events(watches *w, struct dibs__event *events, size_t cap, bool *woken) {
  size_t count = 0;
  dibs__mutex_lock(&w->lock);
  *woken = w->woken;
  w->woken = false;
  if (w->new_incarnation && count < cap) {
    events[count++] = (struct dibs__event){.what = DIBS__EV_NEW_INCARNATION};
    w->new_incarnation = false;
  }
  if ((w->recheck || w->overflow) && count < cap) {
    events[count++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    w->recheck = w->overflow = false;
  }
  while (count < cap && w->event_count) {
    events[count++] = w->events[w->event_head];
    w->event_head = (w->event_head + 1) % EVENTS;
    w->event_count--;
  }
  dibs__mutex_unlock(&w->lock);
  return count;
}

static void ensure_thread_locked(struct dibs__etcd *store);

dibs__status dibs__etcd_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by) {
  struct dibs__etcd *store = dibs__etcd_of(base);
  watches *w = store->watches;
  dibs__mutex_lock(&w->lock);
  w->notices = true;
  ensure_thread_locked(store);
  dibs__mutex_unlock(&w->lock);
  for (;;) {
    bool woken;
    uint32_t seen = atomic_load(&w->word); /* before the check: a later notification ends the sleep */
    *count = take_events(w, events, cap, &woken);
    if (*count || woken || cap == 0) return DIBS_OK;
    if (!dibs__word_wait(&w->word, seen, by, false)) return DIBS_OK;
  }
}

void dibs__etcd_wake(struct dibs__dstore *base) {
  watches *w = dibs__etcd_of(base)->watches;
  dibs__mutex_lock(&w->lock);
  w->woken = true;
  dibs__mutex_unlock(&w->lock);
  notify(w);
}

/* ---- Offers ---- */

static void observe_locked(watches *w, uint64_t name_hash, dibs__id id, uint64_t mod, dibs__tick at) {
  for (size_t i = 0; i < OBSERVED; i++) {
    const struct observed *o = &w->observed[i];
    if (o->at.ns && o->name_hash == name_hash && o->mod == mod && dibs__id_equal(o->id, id))
      return; /* the first time counts */
  }
  w->observed[w->observed_next++ % OBSERVED] = (struct observed){name_hash, mod, id, at};
}

void dibs__etcd_end_seen(struct dibs__etcd *store, dibs__str name, uint64_t revision) {
  static const dibs__id none;
  dibs__mutex_lock(&store->watches->lock);
  observe_locked(store->watches, dibs__hash(name.p, name.len), none, revision, dibs__tick_now());
  dibs__mutex_unlock(&store->watches->lock);
}

/* Did this process see every end of a holder of this name since `revision`?  If not, the latest end
 * that it saw may be that of an earlier holder. */
static bool sees_all_locked(const watches *w, uint64_t name_hash, uint64_t revision) {
  for (const struct watch *at = w->all; at; at = at->next)
    if (at->name_hash == name_hash && at->near && !at->compacted && at->from <= revision) return true;
  return false;
}

int64_t dibs__etcd_offer_age(struct dibs__etcd *store, dibs__str name, dibs__id id, uint64_t mod) {
  watches *w = store->watches;
  uint64_t hash = dibs__hash(name.p, name.len);
  dibs__tick now = dibs__tick_now(), at = now, ended = DIBS__TICK_ZERO;
  static const dibs__id none;
  bool known = false;
  dibs__mutex_lock(&w->lock);
  for (size_t i = 0; i < OBSERVED; i++) {
    const struct observed *o = &w->observed[i];
    if (!o->at.ns || o->name_hash != hash) continue;
    bool same = dibs__id_equal(o->id, id) && o->mod == mod;
    bool end = dibs__id_equal(o->id, none) && o->mod > mod; /* it waited when that holder or waiter ended */
    known = known || same;
    if (same) at = o->at;
    if (end && dibs__tick_before(ended, o->at) && sees_all_locked(w, hash, o->mod)) ended = o->at;
  }
  if (!known) observe_locked(w, hash, id, mod, at);
  dibs__mutex_unlock(&w->lock);
  if (ended.ns) at = ended; /* the offer began then at the earliest */
  return (now.ns - at.ns) / DIBS__NS_PER_MS;
}

/* ---- What is watched ---- */

static struct watch *find_locked(const watches *w, dibs__id id) {
  struct watch *at = w->all;
  while (at && !dibs__id_equal(at->id, id)) at = at->next;
  return at;
}

static bool same_key(const struct dibs__etcd_key *a, const struct dibs__etcd_key *b) {
  return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

/* The waiter is the first now, and its stream goes on: it has the holders, or the key of the one holder, which was the
 * waiter before it.  An end that it ignored, because another waiter was first, may be later than what was read. */
static bool keep_watch_locked(watches *w, struct watch *at, dibs__id holder, uint64_t revision) {
  static const dibs__id none;
  bool missed = false, first = !at->before;
  if (!at->streamed || !(at->near || dibs__id_equal(at->before_id, holder))) return false;
  for (size_t i = 0; i < OBSERVED && !first; i++) {
    const struct observed *o = &w->observed[i];
    missed = missed || (o->at.ns && o->name_hash == at->name_hash && o->mod > revision && dibs__id_equal(o->id, none));
  }
  at->before = false;
  if (missed) post_offer_locked(w, at);
  return true;
}

static bool is_same(const struct watch *at, const struct watch *as) {
  return at->near == as->near && at->before == as->before && at->shares == as->shares &&
         (!as->before || dibs__id_equal(at->before_id, as->before_id));
}

void dibs__etcd_watch(struct dibs__etcd *store, const struct dibs__lease_op *op, const struct dibs__etcd_name *name) {
  watches *w = store->watches;
  const struct dibs__etcd_claim *before = name->own_at ? &name->front[name->own_at - 1] : NULL;
  struct watch new = {.id = op->id, .revision = name->revision, .from = name->revision};
  struct dibs__etcd_key waiters;
  dibs__id holder = name->holder_count == 1 ? name->holders[0].id : (dibs__id){{0}};
  new.shares = op->mode != DIBS_EXCLUSIVE; /* a release may serve several */
  new.near = name->own_at <= 1 || new.shares;
  new.before = before != NULL;
  new.name_hash = dibs__hash(op->name.p, op->name.len);
  dibs__etcd_key(store, "lease", op->name, &new.holders);
  dibs__etcd_key(store, "wait", op->name, &waiters);
  if (before) new.before_id = before->id;
  if (before) dibs__etcd_key_id(&waiters, before->id, &new.before_key);
  dibs__mutex_lock(&w->lock);
  struct watch *at = find_locked(w, op->id);
  bool known = at && same_key(&at->holders, &new.holders);
  bool same = known && is_same(at, &new);
  if (known && !same && !before && !new.shares) same = keep_watch_locked(w, at, holder, name->revision);
  if (!at && (at = calloc(1, sizeof *at))) {
    at->next = w->all;
    w->all = at;
  }
  if (at && !same) {
    new.next = at->next;
    new.serial = ++w->serials;
    *at = new;
    ensure_thread_locked(store);
    if (w->multi) curl_multi_wakeup(w->multi);
  }
  dibs__mutex_unlock(&w->lock);
}

bool dibs__etcd_signalled(struct dibs__etcd *store, dibs__id id) {
  watches *w = store->watches;
  dibs__mutex_lock(&w->lock);
  struct watch *at = find_locked(w, id);
  bool signalled = at && at->signalled && !at->before;
  if (at) at->signalled = false;
  dibs__mutex_unlock(&w->lock);
  return signalled;
}

void dibs__etcd_unwatch(struct dibs__etcd *store, dibs__id id) {
  watches *w = store->watches;
  dibs__mutex_lock(&w->lock);
  for (struct watch **at = &w->all; *at; at = &(*at)->next) {
    if (!dibs__id_equal((*at)->id, id)) continue;
    struct watch *gone = *at;
    *at = gone->next;
    free(gone);
    break;
  }
  dibs__mutex_unlock(&w->lock);
}

/* ---- Answers of a stream ---- */

static bool any_deleted(const json_t *events, bool *any_put, uint64_t *revision) {
  bool deleted = false;
  const json_t *event;
  size_t i;
  *any_put = false;
  json_array_foreach(events, i, event) {
    const char *type = json_string_value(json_object_get(event, "type"));
    bool is = type && strcmp(type, "DELETE") == 0;
    deleted = deleted || is;
    *any_put = *any_put || !is;
    *revision = (uint64_t)dibs__etcd_number(json_object_get(event, "kv"), "mod_revision");
  }
  return deleted;
}

static void take_notices_locked(watches *w, const json_t *events) {
  const json_t *event;
  size_t i;
  json_array_foreach(events, i, event) {
    struct dibs__etcd_key key;
    const char *type = json_string_value(json_object_get(event, "type"));
    dibs__id id;
    if ((type && strcmp(type, "DELETE") == 0) || !dibs__etcd_key_of(json_object_get(event, "kv"), &key)) continue;
    const char *slash = strrchr(key.text, '/');
    bool valid = slash && strlen(slash + 1) == 2 * sizeof id.b;
    for (size_t k = 0; valid && k < sizeof id.b; k++) {
      char two[3] = {slash[1 + 2 * k], slash[2 + 2 * k], '\0'}, *end;
      id.b[k] = (uint8_t)strtoul(two, &end, 16);
      valid = !*end;
    }
    if (valid) post_locked(w, DIBS__EV_LOST, id);
  }
}

static void take_watch_locked(watches *w, struct watch *at, enum watched of, const json_t *events) {
  bool put;
  uint64_t revision = 0;
  bool deleted = any_deleted(events, &put, &revision);
  if (revision <= at->seen[of]) return;
  at->seen[of] = revision;
  static const dibs__id none;
  if (deleted || of == OF_BEFORE) observe_locked(w, at->name_hash, none, revision, dibs__tick_now());
  if (of == OF_BEFORE ? deleted || put : deleted && (!at->before || at->shares)) post_offer_locked(w, at);
}

/* One line of a stream. */
static void take_result(watches *w, const json_t *result) {
  uint64_t number = (uint64_t)dibs__etcd_number(result, "watch_id");
  uint64_t revision = (uint64_t)dibs__etcd_number(json_object_get(result, "header"), "revision");
  const json_t *events = json_object_get(result, "events");
  bool canceled = json_is_true(json_object_get(result, "canceled"));
  bool created = json_is_true(json_object_get(result, "created"));
  dibs__mutex_lock(&w->lock);
  if (number == NOTICES) {
    take_notices_locked(w, events);
    if (revision > w->notices_revision) w->notices_revision = revision;
    if (created) w->notices_confirmed = true;
    if (canceled) w->notices_streamed = false;
  }
  for (struct watch *at = number == NOTICES ? NULL : w->all; at; at = at->next) {
    if (at->serial != number / WATCHED) continue;
    if (created) at->confirmed |= (uint8_t)(1u << number % WATCHED);
    if (json_array_size(events)) take_watch_locked(w, at, (enum watched)(number % WATCHED), events);
    /* The other key of this watch may still have older events to come. */
    if (json_array_size(events) && at->near && !at->before) at->revision = revision;
    if (!canceled) break;
    at->streamed = false; /* compacted, or refused: what happened is not known */
    at->compacted = true;
    post_offer_locked(w, at);
    break;
  }
  dibs__mutex_unlock(&w->lock);
}

static void take_line(watches *w, struct stream *s, const char *line, size_t len) {
  json_t *value = json_loadb(line, len, 0, NULL);
  const json_t *result = json_object_get(value, "result");
  if (result)
    take_result(w, result);
  else
    s->failed = true;
  if (!result && len && memmem(line, len, "auth token", 10)) s->denied = true;
  json_decref(value);
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *arg) {
  struct stream *s = arg;
  size_t begin = 0;
  dibs__etcd_put_bytes(&s->line, bytes, size * count);
  for (size_t i = 0; i < s->line.len; i++) {
    if (s->line.p[i] != '\n') continue;
    if (i > begin) take_line(s->store->watches, s, s->line.p + begin, i - begin);
    begin = i + 1;
  }
  if (begin) memmove(s->line.p, s->line.p + begin, s->line.len - begin);
  s->line.len -= begin;
  return s->line.failed ? 0 : size * count;
}

/* ---- Streams ---- */

static void put_watch(struct dibs__etcd_text *to, const struct dibs__etcd_key *key, bool range, uint64_t number,
                      uint64_t revision, const char *filters) {
  dibs__etcd_put(to, "{\"create_request\":");
  if (range) {
    dibs__etcd_range_body(to, key, "");
    to->len--; /* its closing bracket */
  } else {
    dibs__etcd_put(to, "{\"key\":");
    dibs__etcd_put_base64(to, key->text, key->len);
  }
  dibs__etcd_putf(to, ",\"watch_id\":\"%" PRIu64 "\"%s", number, filters);
  if (revision) dibs__etcd_putf(to, ",\"start_revision\":\"%" PRIu64 "\"", revision + 1);
  dibs__etcd_put(to, "}}");
}

static void notices_key(const struct dibs__etcd *store, struct dibs__etcd_key *key) {
  char session[17];
  dibs__etcd_key(store, "notice", (dibs__str){0}, key);
  for (int i = 0; i < 16; i++) session[i] = "0123456789abcdef"[store->number >> (60 - 4 * i) & 15];
  memcpy(key->text + key->len, session, 16);
  key->len += 16;
  key->text[key->len++] = '/';
  key->text[key->len] = '\0';
}

/* How many keys it watches. */
static size_t put_watches(struct watch *at, struct dibs__etcd_text *body) {
  static const char no_puts[] = ",\"filters\":[\"NOPUT\"]";
  uint64_t from = at->compacted ? 0 : at->revision, number = WATCHED * at->serial;
  struct dibs__etcd_key key;
  if (at->near) put_watch(body, &at->holders, true, number + OF_HOLDERS, from, no_puts);
  if (at->before) put_watch(body, &at->before_key, false, number + OF_BEFORE, from, "");
  dibs__etcd_key_id(&at->holders, at->before_id, &key);
  if (!at->near) put_watch(body, &key, false, number + OF_BEFORE_HELD, from, no_puts);
  at->wanted = (uint8_t)(at->near << OF_HOLDERS | at->before << OF_BEFORE | !at->near << OF_BEFORE_HELD);
  at->confirmed = 0;
  at->streamed = true;
  at->asked = dibs__tick_now();
  at->patience_ms = at->patience_ms == 0                    ? CONFIRM_MS
                    : at->patience_ms < CONFIRM_MOST_MS / 2 ? 2 * at->patience_ms
                                                            : CONFIRM_MOST_MS;
  return (size_t)at->near + at->before + !at->near;
}

static void put_padding(struct dibs__etcd_text *body) {
  char blanks[1024];
  memset(blanks, ' ', sizeof blanks);
  for (size_t i = 0; i < PADDING / sizeof blanks; i++) dibs__etcd_put_bytes(body, blanks, sizeof blanks);
}

/* All watches that are on no stream; true: there are some. */
static bool collect(struct dibs__etcd *store, struct dibs__etcd_text *body) {
  watches *w = store->watches;
  struct dibs__etcd_key key;
  size_t count = 0;
  body->len = 0;
  dibs__mutex_lock(&w->lock);
  if (w->notices && !w->notices_streamed) {
    notices_key(store, &key);
    put_watch(body, &key, true, NOTICES, w->notices_revision, ",\"filters\":[\"NODELETE\"]");
    w->notices_streamed = true;
    w->notices_confirmed = false;
    w->notices_asked = dibs__tick_now();
    count++;
  }
  for (struct watch *at = w->all; at; at = at->next)
    if (!at->streamed) count += put_watches(at, body);
  dibs__mutex_unlock(&w->lock);
  if (count > UNPADDED) put_padding(body);
  return body->len > 0;
}

/* What etcd did not confirm in time is watched on another stream. */
static void check_confirmed(watches *w) {
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&w->lock);
  if (w->notices_streamed && !w->notices_confirmed &&
      dibs__tick_before(dibs__tick_add_ms(w->notices_asked, CONFIRM_MOST_MS), now))
    w->notices_streamed = false;
  for (struct watch *at = w->all; at; at = at->next) {
    if (!at->streamed || at->confirmed == at->wanted) continue;
    if (dibs__tick_before(dibs__tick_add_ms(at->asked, at->patience_ms), now)) at->streamed = false;
  }
  dibs__mutex_unlock(&w->lock);
}

static void close_stream(watches *w, struct stream *s) {
  if (!s->easy) return;
  curl_multi_remove_handle(w->multi, s->easy);
  curl_easy_cleanup(s->easy);
  curl_slist_free_all(s->headers);
  dibs__etcd_text_free(&s->body);
  dibs__etcd_text_free(&s->line);
  *s = (struct stream){0};
}

/* Every watch begins again, on a new stream. */
static void close_streams(watches *w) {
  for (size_t i = 0; i < STREAMS; i++) close_stream(w, &w->streams[i]);
  dibs__mutex_lock(&w->lock);
  w->notices_streamed = false;
  for (struct watch *at = w->all; at; at = at->next) at->streamed = false;
  dibs__mutex_unlock(&w->lock);
}

static bool set_headers(struct dibs__etcd *store, struct stream *s) {
  char token[sizeof store->token];
  dibs__mutex_lock(&store->lock);
  memcpy(token, store->token, sizeof token);
  dibs__mutex_unlock(&store->lock);
  s->headers = curl_slist_append(NULL, "Content-Type: application/json");
  struct curl_slist *longer = s->headers ? curl_slist_append(s->headers, "Expect:") : NULL;
  if (longer && *token) longer = curl_slist_append(longer, token);
  return longer && curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers) == CURLE_OK;
}

static bool open_stream(struct dibs__etcd *store, struct stream *s) {
  watches *w = store->watches;
  char url[512];
  s->store = store;
  s->host = dibs__etcd_host(store);
  s->easy = curl_easy_init();
  snprintf(url, sizeof url, "%s/v3/watch", store->location.urls[s->host]);
  return s->easy && !s->body.failed && dibs__etcd_options(store, s->easy) && set_headers(store, s) &&
         curl_easy_setopt(s->easy, CURLOPT_URL, url) == CURLE_OK &&
         curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body.p) == CURLE_OK &&
         curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body.len) == CURLE_OK &&
         curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, take_bytes) == CURLE_OK &&
         curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s) == CURLE_OK &&
         curl_multi_add_handle(w->multi, s->easy) == CURLM_OK;
}

static bool authorized(struct dibs__etcd *store) {
  struct dibs__result result = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), AUTHORIZE_MS);
  return dibs__etcd_authorize(store->watches->link, by, &result) == DIBS_OK;
}

static void open_streams(struct dibs__etcd *store) {
  watches *w = store->watches;
  struct stream *s = NULL;
  if (dibs__tick_before(dibs__tick_now(), w->again)) return;
  for (size_t i = 0; i < STREAMS && !s; i++)
    if (!w->streams[i].easy) s = &w->streams[i];
  if (!s) {
    dibs__mutex_lock(&w->lock);
    bool more = w->notices && !w->notices_streamed;
    for (const struct watch *at = w->all; at; at = at->next) more = more || !at->streamed;
    dibs__mutex_unlock(&w->lock);
    if (!more) return;
    close_streams(w);
    s = &w->streams[0];
  }
  if (!collect(store, &s->body)) return;
  if (authorized(store) && open_stream(store, s)) return;
  close_streams(w);
  dibs__etcd_text_free(&s->body);
  w->again = dibs__tick_add_ms(dibs__tick_now(), REST_MS);
}

/* Those that ended, and those of an endpoint that the store has left. */
static void check_streams(struct dibs__etcd *store) {
  watches *w = store->watches;
  int left;
  bool ended = false, failed = false;
  uint32_t host = dibs__etcd_host(store);
  for (CURLMsg *message; (message = curl_multi_info_read(w->multi, &left));) {
    if (message->msg != CURLMSG_DONE) continue;
    for (size_t i = 0; i < STREAMS; i++)
      if (w->streams[i].easy == message->easy_handle) w->streams[i].failed = true;
  }
  for (size_t i = 0; i < STREAMS; i++) {
    struct stream *s = &w->streams[i];
    if (!s->easy) continue;
    ended = ended || s->failed || s->host != host;
    failed = failed || s->failed;
    if (s->denied) {
      dibs__mutex_lock(&store->lock);
      store->token[0] = '\0';
      store->token_number++;
      dibs__mutex_unlock(&store->lock);
    }
    if (s->failed && !s->denied) dibs__etcd_leave_host(store, s->host);
  }
  if (ended) close_streams(w);
  if (failed) w->again = dibs__tick_add_ms(dibs__tick_now(), REST_MS);
}

static void watch_body(void *arg) {
  struct dibs__etcd *store = arg;
  watches *w = store->watches;
  while (!atomic_load(&store->stopping)) {
    int running;
    open_streams(store);
    if (curl_multi_perform(w->multi, &running) != CURLM_OK) break;
    check_streams(store);
    check_confirmed(w);
    curl_multi_poll(w->multi, NULL, 0, POLL_MS, NULL);
  }
  close_streams(w);
}

/* Without a thread the waiters check again each second. */
static void ensure_thread_locked(struct dibs__etcd *store) {
  watches *w = store->watches;
  if (w->thread) return;
  if (!w->multi) w->multi = curl_multi_init();
  if (!w->link) w->link = dibs__etcd_link_open(store);
  if (w->multi && w->link) w->thread = dibs__thread_start("dibs-etcd-watch", watch_body, store);
}

/* ---- Opening ---- */

dibs__status dibs__etcd_watches_open(struct dibs__etcd *store) {
  store->watches = calloc(1, sizeof *store->watches);
  if (!store->watches) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->watches->lock);
  return DIBS_OK;
}

void dibs__etcd_watch_notices(struct dibs__etcd *store, uint64_t revision) {
  watches *w = store->watches;
  dibs__mutex_lock(&w->lock);
  if (!w->notices_revision) w->notices_revision = revision;
  dibs__mutex_unlock(&w->lock);
}

void dibs__etcd_watches_close(struct dibs__etcd *store) {
  watches *w = store->watches;
  if (!w) return;
  atomic_store(&store->stopping, true);
  if (w->multi) curl_multi_wakeup(w->multi);
  dibs__thread_join(w->thread);
  if (w->multi) curl_multi_cleanup(w->multi);
  dibs__etcd_link_close(w->link);
  while (w->all) {
    struct watch *next = w->all->next;
    free(w->all);
    w->all = next;
  }
  dibs__mutex_destroy(&w->lock);
  free(w);
  store->watches = NULL;
}
