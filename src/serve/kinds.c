/* SPDX-License-Identifier: MIT */
/*
 * The kinds of tasks: how many are in each state, and their settings.
 *
 * A store counts by reading an index or a table, which takes longer the more tasks there are.  So the daemon counts for
 * all its clients together, and rests for at least EVERY_MS and REST times as long as counting took: however many pages
 * are open and however many tasks there are, it uses a small part of the store's time.  `age_ms` of an answer says when
 * its numbers were counted.
 *
 * A failure is kept like the counts: until the store is asked again, every request gets it, also those that would have
 * got older counts.
 */
#include "serve/kinds.h"
#include "dibs/task.h"
#include "handle/handle.h"
#include "info/info.h"
#include "serve/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  EVERY_MS = 1000,
  REST = 20,
  SLOW_MS = 50,   /* if counting takes longer, */
  KEPT_MS = 15000 /* requests get counts up to this old; series.c counts every 10 s, so no request waits for it */
};

struct kinds {
  dibs__mutex counting; /* held by the one who counts; taken before the lock */
  dibs__mutex lock;     /* guards what follows */
  struct kind_row *rows;
  size_t count;
  uint64_t changes;         /* of settings, by this server */
  uint64_t counted_changes; /* of those, the rows have at least so many */
  bool counted;             /* rows are of counted_at; else there are none */
  bool busy;                /* somebody counts */
  dibs__tick counted_at, fresh_until, kept_until;
  dibs_error failure;      /* of the last time that the store was asked; status DIBS_OK: it counted */
  dibs__tick failed_until; /* it is not asked again before this */
};

static void free_rows(struct kind_row *rows, size_t count) {
  for (size_t i = 0; i < count; i++) free((char *)(uintptr_t)rows[i].kind);
  free(rows);
}

bool dibs__kinds_open(struct server *server) {
  server->kinds = calloc(1, sizeof *server->kinds);
  if (!server->kinds) return false;
  dibs__mutex_init(&server->kinds->counting);
  dibs__mutex_init(&server->kinds->lock);
  return true;
}

void dibs__kinds_close(struct server *server) {
  struct kinds *k = server->kinds;
  if (!k) return;
  free_rows(k->rows, k->count);
  dibs__mutex_destroy(&k->counting);
  dibs__mutex_destroy(&k->lock);
  free(k);
}

/* ---- Counting ---- */

struct counting {
  struct kind_row *rows;
  size_t count, capacity;
  bool no_memory;
};

static int keep_kind(const dibs_task_kind *kind, void *user) {
  struct counting *c = user;
  if (c->count == c->capacity) {
    size_t capacity = c->capacity ? 2 * c->capacity : 16;
    struct kind_row *rows = realloc(c->rows, capacity * sizeof *rows);
    c->no_memory = !rows;
    if (!rows) return 1;
    c->rows = rows;
    c->capacity = capacity;
  }
  char *text = strdup(kind->kind);
  c->no_memory = !text;
  if (!text) return 1;
  struct kind_row *row = &c->rows[c->count++];
  row->kind = text;
  memcpy(row->states, kind->states, sizeof row->states);
  row->oldest_ms = kind->oldest_ms;
  row->keep_ms = kind->keep_ms;
  row->running = kind->running;
  row->paused = kind->paused != 0;
  snprintf(row->topic, sizeof row->topic, "%s", kind->topic);
  return 0;
}

/* After a failure the store gets no request for as long as the failed one took: half of one thread's time waits for it
 * at most. */
static void keep_failure(struct kinds *k, const dibs_error *failure, dibs__tick began) {
  dibs__tick now = dibs__tick_now();
  int64_t took_ms = dibs__tick_left_ms(began, now);
  dibs__mutex_lock(&k->lock);
  k->failure = *failure;
  k->failed_until = dibs__tick_add_ms(now, took_ms > EVERY_MS ? took_ms : EVERY_MS);
  dibs__mutex_unlock(&k->lock);
}

static void count_again(struct server *server) {
  struct kinds *k = server->kinds;
  dibs_error failure = {0};
  struct counting c = {.rows = NULL};
  dibs__mutex_lock(&k->lock);
  uint64_t changes = k->changes; /* a change while the store counts may be missing in the rows */
  dibs__mutex_unlock(&k->lock);
  dibs__tick began = dibs__tick_now();
  dibs_status status = dibs_tasks_count(server->store, NULL, keep_kind, &c, &failure);
  if (status == DIBS_OK && c.no_memory) status = dibs__fail(&failure, DIBS_NO_MEMORY, "no memory for the kinds");
  if (status != DIBS_OK) {
    free_rows(c.rows, c.count);
    keep_failure(k, &failure, began);
    return;
  }
  int64_t took_ms = dibs__tick_left_ms(began, dibs__tick_now()), rest_ms = REST * took_ms;
  dibs__mutex_lock(&k->lock);
  free_rows(k->rows, k->count);
  k->rows = c.rows;
  k->count = c.count;
  k->counted = true;
  k->counted_changes = changes;
  k->counted_at = began;
  k->fresh_until = dibs__tick_add_ms(began, rest_ms > EVERY_MS ? rest_ms : EVERY_MS);
  k->kept_until = took_ms > SLOW_MS ? dibs__tick_add_ms(began, KEPT_MS) : k->fresh_until;
  k->failure.status = DIBS_OK;
  dibs__mutex_unlock(&k->lock);
}

/* Do the rows have all changes of settings? */
static bool is_current_locked(const struct kinds *k) {
  return k->counted && k->counted_changes == k->changes;
}

static bool is_fresh_locked(const struct kinds *k) {
  dibs__tick now = dibs__tick_now();
  if (k->failure.status != DIBS_OK) return dibs__tick_before(now, k->failed_until);
  return is_current_locked(k) && dibs__tick_before(now, k->fresh_until);
}

/* Is there something to answer without asking the store?  `keeps`: slow counts may be older.  While somebody counts,
 * the others get the counts before that; if there are none, they wait. */
static bool is_usable_locked(const struct kinds *k, bool keeps) {
  bool failed = k->failure.status != DIBS_OK, current = is_current_locked(k);
  if (is_fresh_locked(k) || (k->busy && (failed || current))) return true;
  return keeps && !failed && current && dibs__tick_before(dibs__tick_now(), k->kept_until);
}

/* Asks the store, if that is due. */
static void refresh(struct server *server, bool keeps) {
  struct kinds *k = server->kinds;
  dibs__mutex_lock(&k->lock);
  bool usable = is_usable_locked(k, keeps);
  if (!usable) k->busy = true;
  dibs__mutex_unlock(&k->lock);
  if (usable) return;
  dibs__mutex_lock(&k->counting);
  dibs__mutex_lock(&k->lock);
  bool fresh = is_fresh_locked(k);
  dibs__mutex_unlock(&k->lock);
  if (!fresh) count_again(server);
  dibs__mutex_lock(&k->lock);
  k->busy = false;
  dibs__mutex_unlock(&k->lock);
  dibs__mutex_unlock(&k->counting);
}

void dibs__kinds_count(struct server *server) {
  refresh(server, false);
}

dibs_status dibs__kinds_read(struct server *server, bool (*see)(const struct kind_row *row, void *user), void *user,
                             int64_t *age_ms, dibs_error *error) {
  struct kinds *k = server->kinds;
  refresh(server, true);
  dibs__mutex_lock(&k->lock);
  dibs_status status = k->failure.status;
  if (status != DIBS_OK && error) *error = k->failure;
  *age_ms = dibs__tick_left_ms(k->counted_at, dibs__tick_now());
  for (size_t i = 0; status == DIBS_OK && i < k->count; i++)
    if (!see(&k->rows[i], user)) break;
  dibs__mutex_unlock(&k->lock);
  return status;
}

/* The rows are of no use to requests that begin after the change; nor is a failure, if the store did it. */
static void settings_changed(struct server *server, dibs_status status) {
  dibs__mutex_lock(&server->kinds->lock);
  server->kinds->changes++;
  if (status == DIBS_OK) server->kinds->failure.status = DIBS_OK;
  dibs__mutex_unlock(&server->kinds->lock);
}

/* ---- The answers ---- */

static void write_kind(struct dibs__json *j, const struct kind_row *row) {
  dibs__json_text(j, "kind", row->kind);
  for (uint32_t i = 0; i < DIBS_TASK_STATES; i++) dibs__json_uint(j, dibs__info_task_state(i), row->states[i]);
  dibs__json_known(j, "oldest_ready_age_ms", row->oldest_ms, row->oldest_ms >= 0);
  dibs__json_known(j, "running_limit", row->running, row->running != 0);
  dibs__json_bool(j, "paused", row->paused);
  dibs__json_known(j, "keep_ms", row->keep_ms, row->keep_ms >= 0);
  dibs__json_text(j, "topic", row->topic[0] ? row->topic : NULL);
}

struct listing {
  struct dibs__json *json;
  const struct page *page;
  size_t limit, count;
  bool more;
  char *last; /* of a full page; malloc'd */
};

static bool list_kind(const struct kind_row *row, void *user) {
  struct listing *l = user;
  const char *prefix = l->page->prefix ? l->page->prefix : "", *after = l->page->after ? l->page->after : "";
  if (strncmp(row->kind, prefix, strlen(prefix)) != 0 || strcmp(row->kind, after) <= 0) return true;
  l->more = l->count == l->limit;
  if (l->more) return false;
  if (++l->count == l->limit) l->last = strdup(row->kind);
  dibs__json_open(l->json, NULL, '{');
  write_kind(l->json, row);
  dibs__json_close(l->json, '}');
  return true;
}

/* The table of tasks takes kinds of 255 characters, of 4 bytes each, from those that write SQL. */
static const struct field kinds_fields[] = {
    PREFIX_FIELD(0), AFTER_FIELD(0, 4 * DIBS_NAME_MAX), PAGE_LIMIT(offsetof(struct page, limit)), {.name = NULL}};

static void list_kinds(struct request *r) {
  dibs_error error = {0};
  int64_t age_ms;
  const struct page *page = r->in;
  struct listing l = {.json = dibs__answer_begin(r, 200), .page = page, .limit = dibs__page_limit(r, page->limit)};
  dibs__json_open(l.json, NULL, '{');
  dibs__json_open(l.json, "kinds", '[');
  dibs_status status = dibs__kinds_read(r->server, list_kind, &l, &age_ms, &error);
  if (status == DIBS_OK && l.more && !l.last) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) {
    dibs__json_close(l.json, ']');
    dibs__json_text(l.json, "next", l.more ? l.last : NULL);
    dibs__json_int(l.json, "counted_age_ms", age_ms);
    dibs__json_close(l.json, '}');
  } else {
    dibs__answer_problem(r, status, &error);
  }
  free(l.last);
}

static void get_kinds(struct request *r) {
  dibs__pool_run(r, list_kinds, NULL);
}

struct finding {
  const char *kind;
  struct kind_row *row;
};

static bool take_kind(const struct kind_row *row, void *user) {
  struct finding *f = user;
  if (strcmp(row->kind, f->kind) != 0) return true;
  *f->row = *row;
  f->row->kind = f->kind; /* the other one lasts as long as the counts */
  return false;
}

dibs_status dibs__kinds_find(struct server *server, const char *kind, struct kind_row *row, int64_t *age_ms,
                             dibs_error *error) {
  struct finding f = {kind, row};
  *row = (struct kind_row){.kind = kind, .oldest_ms = -1, .keep_ms = -1};
  return dibs__kinds_read(server, take_kind, &f, age_ms, error);
}

static void show_kind(struct request *r) {
  dibs_error error = {0};
  int64_t age_ms;
  struct kind_row row;
  dibs_status status = dibs__kinds_find(r->server, r->param[0], &row, &age_ms, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  write_kind(j, &row);
  dibs__json_int(j, "counted_age_ms", age_ms);
  dibs__json_close(j, '}');
}

bool dibs__is_kind(struct request *r) {
  dibs_error error = {0};
  dibs_status status = dibs__check_text(r->param[0], DIBS_NAME_MAX, "the kind", &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
  return status == DIBS_OK;
}

static void get_kind(struct request *r) {
  if (dibs__is_kind(r)) dibs__pool_run(r, show_kind, NULL);
}

/* ---- Settings ---- */

struct kind_in {
  int64_t running, keep_ms, paused, no_lanes;
};

#define IN(member) offsetof(struct kind_in, member)
static const struct field kind_fields[] = {
    {.name = "paused", .kind = FIELD_SWITCH, .at = IN(paused), .help = "true: no task of the kind is claimed"},
    {.name = "running_limit",
     .kind = FIELD_NUMBER,
     .at = IN(running),
     .most = UINT32_MAX,
     .help = "how many tasks of the kind may be claimed at one instant; 0: no limit"},
    {.name = "keep",
     .kind = FIELD_DURATION,
     .at = IN(keep_ms),
     .most = INT64_C(315619200000),
     .help = "how long finished tasks are kept; dead ones are kept until they are retried or purged"},
    {.name = "no_lanes",
     .kind = FIELD_SWITCH,
     .at = IN(no_lanes),
     .help = "true: its tasks with a key go to no lanes any more"},
    {.name = NULL}};

static void set_kind(struct request *r) {
  const struct kind_in *in = r->in;
  dibs_error error = {0};
  dibs_kind_options options = {.size = sizeof options};
  if (in->paused != FIELD_UNSET) {
    options.set |= DIBS_KIND_PAUSED;
    options.paused = in->paused != 0;
  }
  if (in->no_lanes == 1) options.set |= DIBS_KIND_NO_LANES;
  if (in->running != FIELD_UNSET) {
    options.set |= DIBS_KIND_RUNNING;
    options.running = (uint32_t)in->running;
  }
  if (in->keep_ms != FIELD_UNSET) {
    options.set |= DIBS_KIND_KEEP;
    options.keep_ms = in->keep_ms;
  }
  dibs_status status = dibs_task_kind_set(r->server->store, r->param[0], &options, &error);
  settings_changed(r->server, status);
  if (status == DIBS_OK)
    show_kind(r);
  else
    dibs__answer_problem(r, status, &error);
}

static void patch_kind(struct request *r) {
  if (dibs__is_kind(r)) dibs__pool_run(r, set_kind, NULL);
}

/* ---- The routes ---- */

const struct route dibs__kind_routes[] = {
    {METHOD_GET, "/v1/kinds", SCOPE_READ, get_kinds, sizeof(struct page), kinds_fields, "listKinds", "200",
     "The kinds of tasks, with the number of tasks in each state",
     "By name.  The daemon counts for all its clients together, so the numbers are `counted_age_ms` old.", NULL},
    {METHOD_GET, "/v1/kinds/{kind}", SCOPE_READ, get_kind, 0, NULL, "showKind", "200",
     "The number of tasks of a kind in each state, and its settings", "", NULL},
    {METHOD_PATCH, "/v1/kinds/{kind}", SCOPE_ADMIN, patch_kind, sizeof(struct kind_in), kind_fields, "setKind", "200",
     "Pause or limit a kind, set how long its finished tasks are kept, or take its tasks from lanes",
     "Members that are not given stay.", NULL},
    {.path = NULL}};
