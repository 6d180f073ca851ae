/* SPDX-License-Identifier: MIT */
/*
 * The crontabs of the fleets that run `dibs cron`: their jobs with the last and the next firing, firing one by hand,
 * and the crontab itself for nodes without a file (task/crontab_kept.h).  The nodes fire, not this daemon.
 */
#include "dibs/cron.h"
#include "info/info.h"
#include "serve/page.h"
#include "serve/tag.h"
#include "task/cron_table.h"
#include "task/crontab_kept.h"
#include "task/firing.h"
#include "task/task.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The fleets ---- */

struct listing {
  struct dibs__json *json;
  const struct page *page;
  size_t limit, count;
  bool more;
  char last[DIBS_NAME_MAX + 1];
};

static bool add_fleet(const char *name, void *user) {
  struct listing *l = user;
  const char *prefix = l->page->prefix ? l->page->prefix : "", *after = l->page->after ? l->page->after : "";
  if (strncmp(name, prefix, strlen(prefix)) != 0 || strcmp(name, after) <= 0) return true;
  l->more = l->count == l->limit;
  if (l->more || strlen(name) >= sizeof l->last) return false;
  l->count++;
  memcpy(l->last, name, strlen(name) + 1);
  dibs__json_open(l->json, NULL, '{');
  dibs__json_text(l->json, "fleet", name);
  dibs__json_close(l->json, '}');
  return true;
}

static const struct field fleets_fields[] = {PAGE_FIELDS(0), {.name = NULL}};

static void list_fleets(struct request *r) {
  const struct page *page = r->in;
  dibs_error error = {0};
  struct listing l = {.json = dibs__answer_begin(r, 200), .page = page, .limit = dibs__page_limit(r, page->limit)};
  dibs__json_open(l.json, NULL, '{');
  dibs__json_open(l.json, "fleets", '[');
  dibs_status status = dibs__crontab_names(r->server->store, add_fleet, &l, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  dibs__json_close(l.json, ']');
  dibs__json_text(l.json, "next", l.more ? l.last : NULL);
  dibs__json_close(l.json, '}');
}

static void get_fleets(struct request *r) {
  dibs__pool_run(r, list_fleets, NULL);
}

/* ---- One fleet ---- */

static int write_job(const dibs_cron_info *job, void *user) {
  struct dibs__json *j = user;
  dibs__json_open(j, NULL, '{');
  dibs__info_cron_job(j, job);
  dibs__json_close(j, '}');
  return 0;
}

static dibs_status load_table(struct request *r, struct dibs__crontab_kept *kept, dibs_cron_table *table,
                              dibs_error *error) {
  dibs_status status = dibs__crontab_load(r->server->store, r->param[0], kept, error);
  *table = (dibs_cron_table){.size = sizeof *table, .text = kept->text, .length = kept->length, .zone = kept->zone};
  return status;
}

static void show_fleet(struct request *r) {
  dibs_error error = {0};
  struct dibs__crontab_kept kept;
  dibs_cron_table table;
  dibs_status status = load_table(r, &kept, &table, &error);
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "fleet", r->param[0]);
  dibs__json_open(j, "jobs", '[');
  if (status == DIBS_OK) status = dibs_cron_list(r->server->store, r->param[0], &table, write_job, j, &error);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
  free(kept.text);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_fleet(struct request *r) {
  dibs__pool_run(r, show_fleet, NULL);
}

struct fire_in {
  const char *key;
};
static const struct field fire_fields[] = {
    {.name = "Idempotency-Key",
     .place = FIELD_HEADER,
     .at = offsetof(struct fire_in, key),
     .least = 1,
     .most = DIBS_NAME_MAX,
     .help = "a text of the caller's for this request: a repeat does not fire again and gets the answer of the first, "
             "for a day; give another one after 409"},
    {.name = NULL}};

/* A job is by hand the same firing as by its schedule: a task of the kind cron:FLEET, which a node claims. */
static dibs_status fire_job(struct request *r, const dibs_cron_table *table, uint64_t *nr, dibs_error *error) {
  const char *key = ((const struct fire_in *)r->in)->key;
  char kind[DIBS_NAME_MAX + 1], token[DIBS__TASK_KEY_DIGITS + 1];
  if (!key) return dibs_cron_fire(r->server->store, r->param[0], table, r->param[1], nr, error);
  dibs__cron_kind(r->param[0], kind);
  dibs__task_key_token(kind, r->param[1], key, token);
  return dibs__cron_fire_once(r->server->store, r->param[0], table, r->param[1], token, nr, error);
}

static void fire(struct request *r) {
  dibs_error error = {0};
  struct dibs__crontab_kept kept;
  dibs_cron_table table;
  uint64_t nr = 0;
  dibs_status status = load_table(r, &kept, &table, &error);
  if (status == DIBS_OK) status = fire_job(r, &table, &nr, &error);
  free(kept.text);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 201);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "fleet", r->param[0]);
  dibs__json_text(j, "job", r->param[1]);
  dibs__json_uint(j, "task", nr);
  dibs__json_close(j, '}');
}

static void post_firing(struct request *r) {
  dibs__pool_run(r, fire, NULL);
}

/* ---- The crontab itself ---- */

struct table_in {
  const char *if_match, *if_none_match, *zone;
  struct field_data text;
};

#define IN(member) offsetof(struct table_in, member)
static const struct field table_fields[] = {
    {.name = "text", .kind = FIELD_RAW, .at = IN(text), .most = DIBS_CRON_TABLE_MAX, .help = "the crontab"},
    {.name = "If-Match",
     .place = FIELD_HEADER,
     .at = IN(if_match),
     .most = 512,
     .pattern = TAG_PATTERN,
     .help = "the ETag that the caller read: only if the crontab still has that version"},
    {.name = "If-None-Match",
     .place = FIELD_HEADER,
     .at = IN(if_none_match),
     .most = 512,
     .pattern = "^[*]$",
     .help = "*: only if the fleet has no crontab"},
    {.name = "zone",
     .place = FIELD_QUERY,
     .at = IN(zone),
     .least = 1,
     .most = 127,
     .help = "the time zone of jobs without one, as Europe/Berlin; UTC if it is not given"},
    {.name = NULL}};

static void show_table(struct request *r) {
  dibs_error error = {0};
  struct dibs__crontab_kept kept;
  dibs_status status = dibs__crontab_load(r->server->store, r->param[0], &kept, &error);
  if (status == DIBS_OK) {
    dibs__json_put(dibs__answer_begin(r, 200), kept.text, kept.length);
    r->answer.type = "text/plain; charset=utf-8";
    dibs__tag_set(r, kept.version);
  } else {
    dibs__answer_problem(r, status, &error);
  }
  free(kept.text);
}

static void get_table(struct request *r) {
  dibs__pool_run(r, show_table, NULL);
}

/* The first errors of a crontab. */
struct wrong_lines {
  uint32_t count, line;
  char text[300];
};

static void see_wrong(uint32_t line, const char *message, void *user) {
  struct wrong_lines *f = user;
  if (f->count++ > 0) return;
  f->line = line;
  snprintf(f->text, sizeof f->text, "%s", message);
}

/* false: the request was answered. */
static bool is_fine(struct request *r, const dibs_cron_table *given, struct wrong_lines *wrong) {
  struct dibs__cron_table *table = NULL;
  dibs_error error = {0};
  dibs_status status = dibs__cron_table_read(given, &table, &error);
  if (status == DIBS_OK) dibs__cron_table_drop(table);
  if (status != DIBS_OK)
    dibs__answer_problem(r, status, &error);
  else if (wrong->count > 0)
    dibs__answer_refuse(r, 400, "invalid", "line %" PRIu32 ": %s%s; nothing was changed", wrong->line, wrong->text,
                        wrong->count > 1 ? "; other lines are wrong, too" : "");
  return status == DIBS_OK && wrong->count == 0;
}

static void store_table(struct request *r) {
  const struct table_in *in = r->in;
  char if_version[DIBS_VERSION_MAX + 1], version[DIBS_VERSION_MAX + 1] = "";
  struct wrong_lines wrong = {.count = 0};
  dibs_error error = {0};
  dibs_cron_table table = {.size = sizeof table,
                           .text = in->text.p,
                           .length = in->text.length,
                           .zone = in->zone,
                           .on_error = see_wrong,
                           .user = &wrong};
  if (in->if_match && !dibs__tag_read(in->if_match, if_version)) {
    dibs__answer_refuse(r, 400, "invalid", "If-Match: give one ETag, as a GET returned it");
    return;
  }
  if (!is_fine(r, &table, &wrong)) return;
  dibs_status status =
      dibs__crontab_put(r->server->store, r->param[0], &table, in->if_match ? if_version : NULL, version, &error);
  if (status == DIBS_OK)
    dibs__answer_begin(r, 204);
  else
    dibs__answer_problem(r, status, &error);
  if (version[0]) dibs__tag_set(r, version);
}

static void put_table(struct request *r) {
  const struct table_in *in = r->in;
  if (in->if_none_match && strcmp(in->if_none_match, "*") != 0)
    dibs__answer_refuse(r, 400, "invalid", "If-None-Match: of a write only * has a meaning");
  else if (!in->if_match == !in->if_none_match)
    dibs__answer_refuse(
        r, 428, "guard-missing",
        "say which crontab you replace: If-Match with the ETag that you read, or If-None-Match: * for a "
        "new one");
  else
    dibs__pool_run(r, store_table, NULL);
}

static void forget(struct request *r) {
  dibs_error error = {0};
  dibs_status status = dibs__crontab_forget(r->server->store, r->param[0], &error);
  if (status == DIBS_OK)
    dibs__answer_begin(r, 204);
  else
    dibs__answer_problem(r, status, &error);
}

static void delete_fleet(struct request *r) {
  dibs__pool_run(r, forget, NULL);
}

const struct route dibs__cron_routes[] = {
    {METHOD_GET, "/v1/cron", SCOPE_READ, get_fleets, sizeof(struct page), fleets_fields, "listFleets", "200",
     "The fleets whose crontab is kept in the store", "Each node of `dibs cron` keeps its own there.", NULL},
    {METHOD_GET, "/v1/cron/{fleet}", SCOPE_READ, get_fleet, 0, NULL, "showFleet", "200 404",
     "The jobs of a fleet, with their last and next firings", "", NULL},
    {METHOD_GET, "/v1/cron/{fleet}/table", SCOPE_READ, get_table, 0, NULL, "getTable", "200 404",
     "The crontab of a fleet, as text", "ETag is its version.", "text/plain"},
    {METHOD_PUT, "/v1/cron/{fleet}/table", SCOPE_ADMIN, put_table, sizeof(struct table_in), table_fields, "setTable",
     "204 404 409 412 428", "Store the crontab of a fleet whose nodes have no file: `dibs cron --name FLEET`",
     "A bad line is 400, and nothing is changed.  412: the crontab has another version, or is that of a file.  409: "
     "the store has those of 1,000 fleets.",
     NULL},
    {METHOD_DELETE, "/v1/cron/{fleet}", SCOPE_ADMIN, delete_fleet, 0, NULL, "forgetFleet", "204 404",
     "Remove a crontab from the store and the list",
     "It ends no node.  A node with a file keeps its crontab again; nodes without one have no jobs from then on.",
     NULL},
    {METHOD_POST, "/v1/cron/{fleet}/jobs/{job}", SCOPE_ADMIN, post_firing, sizeof(struct fire_in), fire_fields,
     "fireJob", "201 404 409", "Fire a job now", "409: it is still running, and its firings do not overlap.", NULL},
    {.path = NULL}};
