/* SPDX-License-Identifier: MIT */
/* All names with their holders and waiters, page by page; and breaking a lease. */
#include "dibs/admin.h"
#include "lease/lease.h"
#include "serve/page.h"
#include "serve/stale.h"

#include <stdlib.h>
#include <string.h>

enum {
  SHOWN_MOST = 100,        /* holders and waiters of one name in a page; GET of the name has all */
  ROWS_MOST = 2000,        /* of all names in a page: then it ends early */
  BREAK_WAIT_MS = 3600000, /* the longest wait for a holder that was notified */
};

/* ---- A page of names ---- */

/* The name that is being written. */
struct listing {
  struct server *server;
  struct dibs__json *json;
  size_t limit, names, rows; /* in the page */
  bool open, more;
  char name[DIBS_NAME_MAX + 1];
  uint64_t holders, waiters;
};

static void end_name(struct listing *l) {
  if (!l->open) return;
  dibs__json_close(l->json, ']');
  dibs__json_uint(l->json, "holders", l->holders);
  dibs__json_uint(l->json, "waiters", l->waiters);
  dibs__json_uint(l->json, "stale_writes", dibs__stale_count(l->server, l->name));
  dibs__json_close(l->json, '}');
  l->open = false;
}

static void begin_name(struct listing *l, const char *name) {
  end_name(l);
  memcpy(l->name, name, strlen(name) + 1);
  l->holders = l->waiters = 0;
  l->names++;
  l->open = true;
  dibs__json_open(l->json, NULL, '{');
  dibs__json_text(l->json, "name", name);
  dibs__json_open(l->json, "leases", '[');
}

static int add_row(const dibs_lease_info *info, void *user) {
  struct listing *l = user;
  if (!l->open || strcmp(l->name, info->name) != 0) {
    l->more = l->names == l->limit || l->rows >= ROWS_MOST;
    if (l->more) return 1;
    begin_name(l, info->name);
  }
  bool waits = info->state == DIBS_WAITS || info->state == DIBS_OFFERED;
  l->waiters += waits;
  l->holders += !waits;
  if (l->holders + l->waiters > SHOWN_MOST) return 0;
  l->rows++;
  return dibs__lease_row_write(info, l->json);
}

struct names_in {
  struct page page;
};
static const struct field names_fields[] = {PAGE_FIELDS(offsetof(struct names_in, page)), {.name = NULL}};

static void list_names(struct request *r) {
  const struct page *page = &((const struct names_in *)r->in)->page;
  dibs_error error = {0};
  struct listing l = {
      .server = r->server, .json = dibs__answer_begin(r, 200), .limit = dibs__page_limit(r, page->limit)};
  dibs__json_open(l.json, NULL, '{');
  dibs__json_open(l.json, "names", '[');
  dibs_status status =
      dibs__list_after(r->server->store, page->prefix, page->after, (uint32_t)l.limit + 1, add_row, &l, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  end_name(&l);
  dibs__json_close(l.json, ']');
  dibs__json_text(l.json, "next", l.more ? l.name : NULL);
  dibs__json_close(l.json, '}');
}

static void get_names(struct request *r) {
  dibs__pool_run(r, list_names, NULL);
}

/* ---- Breaking ---- */

struct break_in {
  bool now;
  int64_t wait_ms;
  const char *who;
};

#define IN(member) offsetof(struct break_in, member)
static const struct field break_fields[] = {
    {.name = "now",
     .place = FIELD_QUERY,
     .kind = FIELD_FLAG,
     .at = IN(now),
     .help = "the name is free at once: until the old holder notices, for up to a third of its ttl, two may hold it"},
    {.name = "wait",
     .place = FIELD_QUERY,
     .kind = FIELD_DURATION,
     .at = IN(wait_ms),
     .most = BREAK_WAIT_MS,
     .help = "how long to wait until the holder, which is notified, releases the name; 0, the default: not at all"},
    {.name = "by",
     .place = FIELD_QUERY,
     .at = IN(who),
     .least = 1,
     .most = DIBS_OWNER_MAX,
     .help = "the author of the break, which the store records behind the label of the token"},
    {.name = NULL}};

static void broken(dibs_status status, const dibs_error *error, void *user) {
  struct request *r = user;
  const struct break_in *in = r->in;
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, error);
    return;
  }
  if (!in->now && in->wait_ms <= 0) { /* FIELD_UNSET, or 0 */
    dibs__answer_refuse(r, 409, "held",
                        "the holder of \"%s\" was notified; it has the name until it releases it or its ttl ends",
                        r->param[0]);
    return;
  }
  dibs__answer_begin(r, 204);
  dibs__answer_end(r);
}

static void delete_holders(struct request *r) {
  const struct break_in *in = r->in;
  dibs_error error = {0};
  char author[DIBS_OWNER_MAX + 1];
  bool known = dibs__auth_author(r, in->who, in->who ? strlen(in->who) : 0, author);
  dibs_break_options options = {.size = sizeof options,
                                .flags = in->now ? DIBS_BREAK_NOW : 0,
                                .wait_ms = in->wait_ms == FIELD_UNSET ? 0 : in->wait_ms,
                                .who = known ? author : NULL};
  dibs_status status = dibs_break_start(r->server->store, r->param[0], &options, broken, r, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

/* ---- The routes ---- */

const struct route dibs__name_routes[] = {
    {METHOD_GET, "/v1/leases", SCOPE_READ, get_names, sizeof(struct names_in), names_fields, "listLeases", "200",
     "The names that are held or waited for, page by page",
     "By name, in the order of bytes.  Of each name up to 100 holders and waiters are in `leases`.", NULL},
    {METHOD_DELETE, "/v1/leases/{name}/holders", SCOPE_ADMIN, delete_holders, sizeof(struct break_in), break_fields,
     "breakLease", "204 404 409", "Take a name from its holder by force",
     "The store refuses the holder's next renewal, and records the break.  409: the holder was notified, and still had "
     "the name when the wait ended; the name passes on when the holder releases it, or when its ttl ends.",
     NULL},
    {.path = NULL}};
