/* SPDX-License-Identifier: MIT */
/* The watcher: see watch.h.  Its thread calls the handlers of routes with a request that has no connection. */
#include "serve/watch.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The lists that can be watched: where their rows are, and the member that names a row.  `rows` NULL: the answer is
 * compared as a whole. */
static const struct list {
  const char *path, *rows, *key;
} lists[] = {
    {"/v1/leases", "names", "name"},      {"/v1/stocks", "stocks", "key"},
    {"/v1/counters", "counters", "key"},  {"/v1/lanes", "topics", "topic"},
    {"/v1/lanes/{topic}", NULL, NULL},    {"/v1/kinds", "kinds", "kind"},
    {"/v1/tasks", "tasks", "task"},       {"/v1/tiers", NULL, NULL},
    {"/v1/flags", "flags", "name"},       {"/v1/cron", "fleets", "fleet"},
    {"/v1/cron/{fleet}", "jobs", "name"}, {"/v1/history", "runs", NULL},
};

/* Members of /v1/tiers that each reading changes, because the server itself uses the tiers: what it measures of a tier,
 * how old its copy of the state is, and counts.  If nothing else has changed, they are sent each MEASURED_MS. */
static const char *const measured[] = {"local", "anchor_confirmed_age_ms", "counts"};
enum { MEASURED_MS = 10000 };

struct row {
  json_t *value;
  dibs__tick sent; /* when clients learned it */
  bool seen;       /* in this reading */
};

struct watch {
  struct watch *next;
  uint64_t nr, made_at;
  const struct list *list;
  const struct route *route;
  char *target, *path, *query; /* as requested; the latter two with decoded values, to which these point: */
  const char *param[PARAMS_MAX];
  void *in;
  /* Guarded by the lock of the watcher. */
  uint32_t users;
  dibs__tick unused_from;
  bool again;
  /* Only the thread of the watcher. */
  dibs__tick due, soonest; /* the next reading; the same when it is known that something changed */
  json_t *body;            /* of an answer without rows */
  dibs__tick sent;         /* when clients learned it */
  struct row *rows;        /* row_count of them */
  size_t row_count;
  bool known, trouble;
};

struct watcher {
  struct server *server;
  dibs__thread *thread;
  int notifier; /* readable while there are events */
  dibs__word word;
  dibs__mutex lock; /* guards what follows, and what is marked above */
  struct watch *first;
  const struct watch *being_read; /* its thread is reading this one */
  size_t count;
  uint64_t last_nr;
  struct event *first_event, **last_event;
  bool stopping, changed;
};

/* ---- Comparing ---- */

enum { LEFT_SLACK_MS = 500, AGE_SLACK_MS = 3000 /* counts of tasks are some seconds old */ };

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), of_end = strlen(end);
  return length >= of_end && strcmp(text + length - of_end, end) == 0;
}

/* Does a client that moves the duration on by itself have about the new value? */
static bool same_number(const char *key, int64_t before, int64_t now, int64_t passed_ms) {
  bool down = ends_with(key, "left_ms"), up = ends_with(key, "age_ms");
  int64_t expected = down ? before - passed_ms : up ? before + passed_ms : before;
  if (!down && !up) return before == now;
  if (down && expected < 0) expected = 0;
  int64_t slack_ms = down ? LEFT_SLACK_MS : AGE_SLACK_MS;
  return now - expected < slack_ms && expected - now < slack_ms;
}

static bool is_measured(const char *key) {
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
    if (strcmp(measured[i], key) == 0) return true;
  return false;
}

/* Flat: JSON has these types.  Recursion is as deep as the answers of our own routes are. */
// NOLINTNEXTLINE(misc-no-recursion)
static bool same(const char *key, json_t *before, json_t *now, int64_t passed_ms) {
  if (json_is_integer(before) && json_is_integer(now))
    return same_number(key, json_integer_value(before), json_integer_value(now), passed_ms);
  if (json_is_array(before) && json_is_array(now)) {
    bool equal = json_array_size(before) == json_array_size(now);
    for (size_t i = 0; equal && i < json_array_size(now); i++)
      equal = same("", json_array_get(before, i), json_array_get(now, i), passed_ms);
    return equal;
  }
  if (!json_is_object(before) || !json_is_object(now)) return json_equal(before, now);
  if (json_object_size(before) != json_object_size(now)) return false;
  const char *name;
  json_t *value;
  json_object_foreach(now, name, value) {
    json_t *old = json_object_get(before, name);
    if (old && passed_ms < MEASURED_MS && is_measured(name)) continue;
    if (!old || !same(name, old, value, passed_ms)) return false;
  }
  return true;
}

/* ---- Events ---- */

static void add_event(struct watcher *watcher, const struct watch *watch, const char *kind, json_t *text,
                      bool requested) {
  struct event *event = calloc(1, sizeof *event);
  json_object_set_new(text, "watch", json_string(watch->target));
  char *dump = json_dumps(text, JSON_COMPACT);
  json_decref(text);
  if (!event || !dump) {
    free(event);
    free(dump);
    return;
  }
  *event =
      (struct event){.watch = watch->nr, .requested = requested, .kind = kind, .text = dump, .length = strlen(dump)};
  dibs__mutex_lock(&watcher->lock);
  *watcher->last_event = event;
  watcher->last_event = &event->next;
  dibs__mutex_unlock(&watcher->lock);
  dibs__notifier_raise(watcher->notifier);
}

static void forget_rows(struct watch *watch) {
  for (size_t i = 0; i < watch->row_count; i++) json_decref(watch->rows[i].value);
  free(watch->rows);
  watch->rows = NULL;
  watch->row_count = 0;
  json_decref(watch->body);
  watch->body = NULL;
  watch->known = false;
}

static void send_body(struct watcher *watcher, const struct watch *watch, json_t *body, bool requested) {
  json_t *text = json_object();
  json_object_set(text, "body", body);
  add_event(watcher, watch, "list", text, requested);
}

/* Keeps the answer that was read, and sends it as a whole. */
static void send_list(struct watcher *watcher, struct watch *watch, json_t *body, dibs__tick now) {
  json_t *rows = watch->list->rows ? json_object_get(body, watch->list->rows) : NULL;
  size_t count = json_array_size(rows);
  forget_rows(watch);
  watch->rows = calloc(count + 1, sizeof *watch->rows);
  if (!watch->rows) return;
  for (size_t i = 0; i < count; i++)
    watch->rows[watch->row_count++] = (struct row){json_incref(json_array_get(rows, i)), now, false};
  if (!watch->list->rows) watch->body = json_incref(body);
  watch->sent = now;
  watch->known = true;
  send_body(watcher, watch, body, false);
}

/* The row that is named like this one; rows come in their order, so it is most often the next. */
static struct row *find_row(const struct watch *watch, const json_t *row, size_t *hint) {
  const json_t *key = json_object_get(row, watch->list->key);
  for (size_t i = 0; i < watch->row_count; i++) {
    size_t at = (*hint + i) % watch->row_count;
    if (!json_equal(json_object_get(watch->rows[at].value, watch->list->key), key)) continue;
    *hint = at + 1;
    return &watch->rows[at];
  }
  return NULL;
}

/* Rows that are new or changed into `set`, and what replaces the rows into `next`, which has room. */
static size_t compare_rows(struct watch *watch, json_t *rows, dibs__tick now, struct row *next, json_t *set) {
  size_t count = 0, hint = 0, i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    struct row *old = find_row(watch, row, &hint);
    if (old) old->seen = true;
    bool kept = old && same("", old->value, row, dibs__tick_left_ms(old->sent, now));
    next[count++] =
        kept ? (struct row){json_incref(old->value), old->sent, false} : (struct row){json_incref(row), now, false};
    if (!kept) json_array_append(set, row);
  }
  return count;
}

static void send_change(struct watcher *watcher, struct watch *watch, json_t *body, dibs__tick now) {
  json_t *rows = json_object_get(body, watch->list->rows), *set = json_array(), *gone = json_array();
  struct row *next = calloc(json_array_size(rows) + 1, sizeof *next);
  if (!next || !set || !gone) {
    free(next);
    json_decref(set);
    json_decref(gone);
    return;
  }
  size_t count = compare_rows(watch, rows, now, next, set);
  for (size_t i = 0; i < watch->row_count; i++) {
    if (!watch->rows[i].seen) json_array_append(gone, json_object_get(watch->rows[i].value, watch->list->key));
    json_decref(watch->rows[i].value);
  }
  free(watch->rows);
  watch->rows = next;
  watch->row_count = count;
  json_t *text = json_object(), *after = json_object_get(body, "next");
  bool differs = json_array_size(set) > 0 || json_array_size(gone) > 0;
  json_object_set_new(text, "set", set);
  json_object_set_new(text, "removed", gone);
  if (after) json_object_set(text, "next", after);
  if (differs)
    add_event(watcher, watch, "change", text, false);
  else
    json_decref(text);
}

/* Of a list whose rows have no key, and of an answer without rows. */
static bool same_whole(const struct watch *watch, json_t *body, dibs__tick now) {
  const json_t *rows = watch->list->rows ? json_object_get(body, watch->list->rows) : NULL;
  bool equal = json_array_size(rows) == watch->row_count;
  for (size_t i = 0; equal && i < watch->row_count; i++)
    equal = json_equal(watch->rows[i].value, json_array_get(rows, i));
  return equal && (rows || same("", watch->body, body, dibs__tick_left_ms(watch->sent, now)));
}

static void send_differences(struct watcher *watcher, struct watch *watch, json_t *body, bool requested) {
  dibs__tick now = dibs__tick_now();
  bool whole = !watch->known || (!watch->list->key && !same_whole(watch, body, now));
  watch->trouble = false;
  if (whole)
    send_list(watcher, watch, body, now);
  else if (watch->list->key)
    send_change(watcher, watch, body, now);
  if (requested && !whole) send_body(watcher, watch, body, true);
}

static void send_trouble(struct watcher *watcher, struct watch *watch, json_t *problem, bool requested) {
  bool trouble = watch->trouble;
  if (trouble && !requested) return;
  watch->trouble = true;
  watch->known = false;
  json_t *text = json_object();
  json_object_set(text, "problem", problem);
  add_event(watcher, watch, "problem", text, trouble);
}

/* ---- Reading ---- */

static void read_watch(struct watcher *watcher, struct watch *watch, bool requested) {
  struct request r = {.server = watcher->server, .route = watch->route, .in = watch->in, .in_pool = true};
  memcpy(r.param, watch->param, sizeof r.param);
  watch->route->handle(&r);
  json_t *body = r.answer.body.text ? json_loadb(r.answer.body.text, r.answer.body.length, 0, NULL) : NULL;
  bool fine = r.answer.status == 200 && !r.answer.body.failed && json_is_object(body);
  if (fine)
    send_differences(watcher, watch, body, requested);
  else if (body)
    send_trouble(watcher, watch, body, requested);
  dibs__answer_free(&r.answer);
  json_decref(body);
}

static void free_watch(struct watch *watch) {
  forget_rows(watch);
  free(watch->target);
  free(watch->path);
  free(watch->query);
  free(watch->in);
  free(watch);
}

/* Takes a watch that has had no users for so long out of the list. */
static struct watch *remove_unused_locked(struct watcher *watcher, dibs__tick now, int64_t unused_ms) {
  for (struct watch **at = &watcher->first; *at; at = &(*at)->next) {
    struct watch *watch = *at;
    if (watch->users > 0 || watch == watcher->being_read) continue;
    if (dibs__tick_before(now, dibs__tick_add_ms(watch->unused_from, unused_ms))) continue;
    *at = watch->next;
    watcher->count--;
    return watch;
  }
  return NULL;
}

/* The watch that is due first; *due: when. */
static struct watch *next_watch_locked(struct watcher *watcher, dibs__tick *due) {
  struct watch *first = NULL;
  for (struct watch *watch = watcher->first; watch; watch = watch->next) {
    if (watch->users == 0) continue;
    if (watch->again) watch->due = DIBS__TICK_ZERO;
    if (!first || dibs__tick_before(watch->due, first->due)) first = watch;
  }
  *due = first ? first->due : DIBS__TICK_NEVER;
  if (!first && watcher->first) *due = dibs__tick_add_ms(dibs__tick_now(), WATCH_GRACE_MS);
  return first;
}

static void read_and_plan(struct watcher *watcher, struct watch *watch, bool requested) {
  dibs__tick began = dibs__tick_now();
  read_watch(watcher, watch, requested);
  dibs__tick now = dibs__tick_now();
  int64_t pause_ms = dibs__tick_left_ms(began, now) * WATCH_PAUSE_FACTOR;
  if (pause_ms < WATCH_PAUSE_MS) pause_ms = WATCH_PAUSE_MS;
  if (pause_ms > WATCH_PAUSE_MAX_MS) pause_ms = WATCH_PAUSE_MAX_MS;
  watch->due = dibs__tick_add_ms(now, pause_ms);
  watch->soonest = pause_ms > WATCH_PAUSE_MS ? watch->due : dibs__tick_add_ms(now, WATCH_CHANGED_MS);
}

static void bring_forward_locked(struct watcher *watcher) {
  watcher->changed = false;
  for (struct watch *watch = watcher->first; watch; watch = watch->next)
    watch->due = dibs__tick_min(watch->due, watch->soonest);
}

static void watch_all(void *arg) {
  struct watcher *watcher = arg;
  dibs__mutex_lock(&watcher->lock);
  while (!watcher->stopping) {
    dibs__tick now = dibs__tick_now(), due;
    struct watch *unused = remove_unused_locked(watcher, now, WATCH_GRACE_MS);
    if (watcher->changed) bring_forward_locked(watcher);
    struct watch *watch = unused ? NULL : next_watch_locked(watcher, &due);
    bool ready = watch && !dibs__tick_before(now, due), requested = ready && watch->again;
    if (ready) watch->again = false;
    watcher->being_read = ready ? watch : NULL;
    uint32_t seen = atomic_load(&watcher->word);
    dibs__mutex_unlock(&watcher->lock);
    if (unused)
      free_watch(unused);
    else if (ready)
      read_and_plan(watcher, watch, requested);
    else
      dibs__word_wait(&watcher->word, seen, due, false);
    dibs__mutex_lock(&watcher->lock);
    watcher->being_read = NULL;
  }
  dibs__mutex_unlock(&watcher->lock);
}

static void wake_watcher(struct watcher *watcher) {
  atomic_fetch_add(&watcher->word, 1);
  dibs__word_wake(&watcher->word, 1, false);
}

/* ---- For the loop ---- */

struct watcher *dibs__watcher_open(struct server *server, int *ready_fd) {
  struct watcher *watcher = calloc(1, sizeof *watcher);
  if (!watcher) return NULL;
  dibs__mutex_init(&watcher->lock);
  watcher->server = server;
  watcher->last_event = &watcher->first_event;
  watcher->notifier = *ready_fd = dibs__notifier_open();
  if (watcher->notifier >= 0) watcher->thread = dibs__thread_start("dibs-watch", watch_all, watcher);
  if (watcher->thread) return watcher;
  dibs__watcher_close(watcher);
  return NULL;
}

void dibs__watcher_close(struct watcher *watcher) {
  if (!watcher) return;
  dibs__mutex_lock(&watcher->lock);
  watcher->stopping = true;
  dibs__mutex_unlock(&watcher->lock);
  wake_watcher(watcher);
  dibs__thread_join(watcher->thread);
  for (struct watch *watch; (watch = watcher->first);) {
    watcher->first = watch->next;
    free_watch(watch);
  }
  for (struct event *event; (event = watcher->first_event);) {
    watcher->first_event = event->next;
    free(event->text);
    free(event);
  }
  if (watcher->notifier >= 0) dibs__notifier_close(watcher->notifier);
  dibs__mutex_destroy(&watcher->lock);
  free(watcher);
}

static const struct list *find_list(const struct route *route) {
  for (size_t i = 0; route && i < sizeof lists / sizeof *lists; i++)
    if (strcmp(lists[i].path, route->path) == 0) return &lists[i];
  return NULL;
}

/* Rows that a watch with this query may have; the limit of a page that is not given is smaller. */
static bool has_limit(struct request *probe, const struct field *fields, const void *in) {
  int64_t limit;
  for (const struct field *f = fields; f && f->name; f++) {
    if (f->place != FIELD_QUERY || strcmp(f->name, "limit") != 0) continue;
    memcpy(&limit, (const char *)in + f->at, sizeof limit);
    if (limit <= WATCH_LIMIT) continue;
    dibs__answer_refuse(probe, 400, "invalid", "limit: a list that is watched has %d rows at most", WATCH_LIMIT);
    return false;
  }
  return true;
}

/* Do clients with this token see only names of theirs in the list?  As a GET of it would be admitted. */
static bool is_covered(const struct request *r, const struct watch *watch) {
  const char *prefix = NULL;
  if (dibs__auth_covers(r, "")) return true; /* all names are its own */
  for (const struct field *f = watch->route->fields; f && f->name; f++)
    if (f->place == FIELD_QUERY && strcmp(f->name, "prefix") == 0)
      memcpy(&prefix, (const char *)watch->in + f->at, sizeof prefix);
  return prefix && dibs__auth_covers(r, prefix);
}

static bool copy_target(struct watch *watch, const char *target) {
  const char *query = strchr(target, '?');
  watch->target = strdup(target);
  watch->path = strdup(target);
  watch->query = strdup(query ? query + 1 : "");
  return watch->target && watch->path && watch->query;
}

/* Fills the watch as a GET of its target would fill a request.  false: `probe` has an answer. */
static bool read_target(struct watch *watch, struct request *probe) {
  probe->path = watch->path;
  probe->target = watch->target;
  if (!dibs__route_find(probe)) return false;
  const struct route *route = watch->route = probe->route;
  memcpy(watch->param, probe->param, sizeof watch->param);
  if (!(watch->list = find_list(route))) {
    dibs__answer_refuse(probe, 400, "invalid", "%.120s is not a list that can be watched", watch->target);
    return false;
  }
  if (!(watch->in = calloc(1, route->in_size + 1))) {
    dibs__answer_problem(probe, DIBS_NO_MEMORY, NULL);
    return false;
  }
  return dibs__fields_read_query(probe, route->fields, watch->query, watch->in) &&
         has_limit(probe, route->fields, watch->in);
}

/* The watch of the target, without users.  NULL: `probe` has an answer. */
static struct watch *make_watch(struct request *probe, const char *target) {
  struct watch *watch = calloc(1, sizeof *watch);
  bool copied = watch && copy_target(watch, target);
  if (!copied) dibs__answer_problem(probe, DIBS_NO_MEMORY, NULL);
  if (copied && read_target(watch, probe)) {
    watch->again = true;
    return watch;
  }
  if (watch) free_watch(watch);
  return NULL;
}

static struct watch *find_watch_locked(const struct watcher *watcher, const char *target) {
  for (struct watch *watch = watcher->first; watch; watch = watch->next)
    if (strcmp(watch->target, target) == 0) return watch;
  return NULL;
}

static uint64_t use_watch(struct watcher *watcher, struct watch *made, uint64_t seq, uint64_t *made_at) {
  dibs__mutex_lock(&watcher->lock);
  struct watch *watch = find_watch_locked(watcher, made->target), *unused = NULL;
  uint32_t most = watcher->server->config.watched_lists; /* each costs up to WATCH_LIMIT rows of memory, and reading */
  if (!watch && watcher->count == most) unused = remove_unused_locked(watcher, dibs__tick_now(), 0);
  if (!watch && watcher->count < most) {
    watch = made;
    made->nr = ++watcher->last_nr;
    made->made_at = seq;
    made->next = watcher->first;
    watcher->first = made;
    watcher->count++;
  }
  if (watch) watch->users++;
  uint64_t nr = watch ? watch->nr : 0;
  if (watch) *made_at = watch->made_at;
  dibs__mutex_unlock(&watcher->lock);
  if (watch != made) free_watch(made);
  if (unused) free_watch(unused);
  wake_watcher(watcher);
  return nr;
}

uint64_t dibs__watch_join(struct watcher *watcher, struct request *r, const char *target, uint64_t seq,
                          uint64_t *made_at) {
  struct request probe = {.server = r->server, .method = METHOD_GET, .in_pool = true};
  struct watch *made = make_watch(&probe, target);
  if (!made) {
    dibs__json_free(&r->answer.body);
    r->answer = probe.answer;
    dibs__answer_end(r);
    return 0;
  }
  if (!is_covered(r, made)) {
    dibs__answer_refuse(
        r, 403, "prefix",
        "the token \"%s\" is for names that begin with \"%s\": add prefix= with this or a longer prefix "
        "to the list %.120s",
        dibs__auth_label(r), dibs__auth_prefix(r), target);
    free_watch(made);
    return 0;
  }
  uint64_t nr = use_watch(watcher, made, seq, made_at);
  if (nr == 0)
    dibs__answer_refuse(r, 503, "overload", "clients watch %u lists already (--watched-lists); watch fewer",
                        r->server->config.watched_lists);
  return nr;
}

void dibs__watch_leave(struct watcher *watcher, uint64_t nr) {
  dibs__mutex_lock(&watcher->lock);
  for (struct watch *watch = watcher->first; watch; watch = watch->next) {
    if (watch->nr != nr) continue;
    watch->users--;
    watch->unused_from = dibs__tick_now();
  }
  dibs__mutex_unlock(&watcher->lock);
}

void dibs__watch_again(struct watcher *watcher, uint64_t nr) {
  dibs__mutex_lock(&watcher->lock);
  for (struct watch *watch = watcher->first; watch; watch = watch->next)
    if (watch->nr == nr) watch->again = true;
  dibs__mutex_unlock(&watcher->lock);
  wake_watcher(watcher);
}

struct event *dibs__watcher_take(struct watcher *watcher) {
  dibs__notifier_lower(watcher->notifier);
  dibs__mutex_lock(&watcher->lock);
  struct event *first = watcher->first_event;
  watcher->first_event = NULL;
  watcher->last_event = &watcher->first_event;
  dibs__mutex_unlock(&watcher->lock);
  return first;
}

void dibs__watcher_changed(struct watcher *watcher) {
  dibs__mutex_lock(&watcher->lock);
  bool wakes = !watcher->changed && watcher->count > 0;
  watcher->changed = wakes || watcher->changed;
  dibs__mutex_unlock(&watcher->lock);
  if (wakes) wake_watcher(watcher);
}
