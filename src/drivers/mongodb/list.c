/* SPDX-License-Identifier: MIT */
/* Listing: the documents of leases by name, some at a time, shown by the memory driver's own code.  Each name is one
 * instant. */
#include "drivers/mongodb/mongodb_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 200, SESSIONS = 256 };

struct page {
  struct dibs__memory *memory;
  struct dibs__mongo_link *link;
  struct dibs__result *result;
  char last[DIBS_NAME_MAX + 1];
  size_t count;
  dibs__status status;
  bool enough;   /* the caller wants no more, or no later name has the prefix */
  int64_t width; /* ms between the bounds of the clock */
  const struct dibs__list *list;
  uint64_t sessions[SESSIONS];
  bool alive[SESSIONS];
  size_t session_count;
};

static void note_row(struct page *p, const struct dibs__mem_row *row) {
  for (const struct dibs__mem_claim *c = row->first; c && p->session_count < SESSIONS; c = c->after) {
    size_t i = 0;
    while (i < p->session_count && p->sessions[i] != c->session) i++;
    if (i == p->session_count) p->sessions[p->session_count++] = c->session;
  }
}

/* Which processes of the page's waiters live? */
static dibs__status learn_sessions(struct page *p, struct dibs__result *result) {
  p->session_count = 0;
  for (struct dibs__map_node *node = NULL; (node = dibs__mem_next(&p->memory->names, node));) {
    const struct dibs__mem_name *name = (const struct dibs__mem_name *)node;
    note_row(p, &name->waiting);
    note_row(p, &name->asleep);
  }
  if (p->session_count == 0) return DIBS_OK;
  return dibs__mongo_alive(p->link, p->sessions, p->alive, p->session_count, result);
}

static bool is_alive(void *user, uint64_t session) {
  const struct page *p = user;
  for (size_t i = 0; i < p->session_count; i++)
    if (p->sessions[i] == session) return p->alive[i];
  return true;
}

static bool load_row(void *user, const bson_t *row) {
  struct page *p = user;
  bson_iter_t at;
  uint32_t len = 0;
  if (!bson_iter_init_find(&at, row, "_id") || !BSON_ITER_HOLDS_UTF8(&at)) return true;
  const char *name = bson_iter_utf8(&at, &len);
  if (len < 1 || len > DIBS_NAME_MAX) return true;
  if (p->list->name.len == 0 && !dibs__list_has(p->list, dibs__str_of(name, len))) {
    p->enough = true; /* it is behind the last one with this prefix */
    return false;
  }
  struct dibs__mongo_document *d = calloc(1, sizeof *d + len + 1);
  if (!d) {
    p->status = DIBS_NO_MEMORY;
    return false;
  }
  d->kind = DIBS__MONGO_LEASE;
  d->key_len = len;
  memcpy(d->key, name, len);
  memcpy(p->last, name, len + 1);
  d->seen = bson_copy(row);
  p->status = dibs__mongo_decode(p->memory, d);
  if (p->status == DIBS_CORRUPT)
    dibs__set_message(p->result, "%s: the document \"%.60s\" is not one of dibs", p->link->location->shown, name);
  bson_destroy(d->seen);
  free(d);
  p->count++;
  return p->status == DIBS_OK;
}

static int show_row(const struct dibs__lease_row *row, void *user) {
  struct page *p = user;
  /* `until` was counted from the upper bound, and the memory driver counts from the lower one. */
  struct dibs__lease_row shown = *row;
  if (shown.left_ms > 0) shown.left_ms = shown.left_ms > p->width ? shown.left_ms - p->width : 1;
  int more = p->list->row(&shown, p->list->user);
  p->enough = p->enough || more != 0;
  return more;
}

/* The names after `last`, or the first. */
static void put_filter(const struct page *p, bson_t *filter) {
  const struct dibs__list *list = p->list;
  char from[DIBS_NAME_MAX + 1];
  bson_t range;
  if (list->name.len) {
    bson_append_utf8(filter, "_id", -1, list->name.p, (int)list->name.len);
    return;
  }
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &range);
  if (*p->last) {
    BSON_APPEND_UTF8(&range, "$gt", p->last);
  } else if (list->after.len) {
    char after[DIBS_NAME_MAX + 1];
    memcpy(after, list->after.p, list->after.len);
    after[list->after.len] = '\0';
    BSON_APPEND_UTF8(&range, "$gt", after);
    dibs__str prefix = list->prefix;
    if (prefix.len) {
      memcpy(from, prefix.p, prefix.len);
      from[prefix.len] = '\0';
      BSON_APPEND_UTF8(&range, "$gte", from);
    }
  } else {
    if (list->prefix.len) memcpy(from, list->prefix.p, list->prefix.len);
    from[list->prefix.len] = '\0';
    BSON_APPEND_UTF8(&range, "$gte", from);
  }
  bson_append_document_end(filter, &range);
}

static bool is_text(dibs__str text) {
  return text.len == 0 || bson_utf8_validate(text.p, text.len, false);
}

dibs__status dibs__mongo_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                              struct dibs__result *result) {
  struct dibs__mongo_session *session = (struct dibs__mongo_session *)base;
  struct page p = {.link = session->link, .result = result, .list = list};
  const struct dibs__mem_hooks hooks = {.alive = is_alive, .user = &p};
  struct dibs__list page = *list;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  session->link->by = by;
  dibs__status status = dibs__mongo_clock(session->link, false, result);
  if (!is_text(list->name) || !is_text(list->prefix) || !is_text(list->after)) return status; /* no such name exists */
  p.memory = dibs__mem_scratch_new(&hooks);
  if (!p.memory) return DIBS_NO_MEMORY;
  page.row = show_row;
  page.user = &p;
  for (bool more = true; status == DIBS_OK && more && !p.enough;) {
    bson_t filter = BSON_INITIALIZER;
    put_filter(&p, &filter);
    p.count = 0;
    status = dibs__mongo_find(session->link, DIBS__MONGO_LEASE, &filter, PAGE, false, load_row, &p, result);
    bson_destroy(&filter);
    if (status == DIBS_OK) status = p.status;
    if (status == DIBS_OK) status = learn_sessions(&p, result);
    p.width = dibs__mongo_latest(session->link) - dibs__mongo_earliest(session->link);
    if (status == DIBS_OK) status = dibs__mem_list_at(p.memory, &page, dibs__mongo_earliest(session->link), result);
    dibs__mem_scratch_empty(p.memory);
    more = p.count == PAGE && !list->name.len;
  }
  dibs__mem_scratch_free(p.memory);
  result->now = (dibs__when){dibs__mongo_latest(session->link)};
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}
