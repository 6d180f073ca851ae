/* SPDX-License-Identifier: MIT */
/*
 * Listing.  One transaction reads the holders, the waiters and, for one name, its breaks, at one revision.  All keys of
 * a kind are read, and sorted here, because the order of keys is not that of names.
 *
 * etcd tells what a lease has left in whole seconds, one request for each; so beyond the first LEFT_MOST holders the
 * ttl is shown, which is the most that can be left.
 */
#include "drivers/etcd/etcd_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT_MOST = 64, BREAKS_MOST = 16 };

struct line {
  struct dibs__lease_row row;
  uint64_t order;
  int64_t lease;
  dibs__id id;
  char name[DIBS_NAME_MAX];
  char owner[DIBS__BREAK_OWNER_MAX];
};

struct lines {
  struct line *at;
  size_t count;
};

/* ---- Reading ---- */

static uint32_t state_of(const struct dibs__etcd_claim *c) {
  if (c->waits) return DIBS__WAITS;
  return c->breaking ? DIBS__BREAKING : DIBS__HOLDS;
}

static void line_of(struct line *line, const struct dibs__etcd_claim *c, uint32_t name_len) {
  line->id = c->id;
  line->order = c->create;
  line->lease = c->lease;
  memcpy(line->owner, c->owner, c->owner_len);
  line->row = (struct dibs__lease_row){.state = state_of(c), .mode = c->mode, .slots = c->slots, .slot = c->slot};
  line->row.name.len = name_len;
  line->row.owner.len = c->owner_len;
  line->row.ttl_ms = c->ttl_ms;
  line->row.pid = c->pid;
  line->row.fence = c->first;
  int64_t age = dibs__wall_ms() - c->since;
  line->row.age_ms = age > 0 ? age : 0;
  line->row.left_ms = c->waits ? 0 : c->ttl_ms;
  if (c->waits) line->row.slot = c->asleep;
}

static void add_claims(struct dibs__etcd *store, const struct dibs__list *list, const char *kind, const json_t *range,
                       struct lines *lines) {
  const json_t *kv;
  size_t i;
  json_array_foreach(json_object_get(range, "kvs"), i, kv) {
    struct line *line = &lines->at[lines->count];
    struct dibs__etcd_claim c;
    uint32_t len;
    if (!dibs__etcd_claim_read(store, kind, kv, &c, line->name, &len)) continue;
    dibs__str name = dibs__str_of(line->name, len);
    if (list->name.len ? !dibs__str_equal(name, list->name) : !dibs__list_has(list, name)) continue;
    line_of(line, &c, len);
    lines->count++;
  }
}

static void add_breaks(const struct dibs__list *list, const json_t *range, struct lines *lines) {
  const json_t *kvs = json_object_get(range, "kvs"), *kv;
  size_t i, count = json_array_size(kvs), len;
  json_array_foreach(kvs, i, kv) {
    json_t *value = count - i > BREAKS_MOST ? NULL : dibs__etcd_value(kv);
    struct line *line = &lines->at[lines->count];
    char *owner = value ? dibs__etcd_bytes(value, "owners", &len) : NULL;
    if (owner && len <= sizeof line->owner && list->name.len <= sizeof line->name) {
      memset(line, 0, sizeof *line);
      memcpy(line->owner, owner, len);
      memcpy(line->name, list->name.p, list->name.len);
      line->row.name.len = list->name.len;
      line->row.owner.len = (uint32_t)len;
      line->row.state = DIBS__BROKEN;
      line->row.mode = (uint32_t)dibs__etcd_number(value, "mode");
      line->row.fence.v = (uint64_t)dibs__etcd_number(value, "fence");
      int64_t age = dibs__wall_ms() - dibs__etcd_number(value, "at");
      line->row.age_ms = age > 0 ? age : 0;
      line->order = (uint64_t)dibs__etcd_number(kv, "create_revision");
      lines->count++;
    }
    free(owner);
    json_decref(value);
  }
}

/* ---- Order, offers ---- */

static int kind_of(uint32_t state) {
  return state == DIBS__BROKEN ? 2 : state == DIBS__WAITS || state == DIBS__OFFERED;
}

static int compare_lines(const void *left, const void *right) {
  const struct line *a = left, *b = right;
  uint32_t len = a->row.name.len < b->row.name.len ? a->row.name.len : b->row.name.len;
  int by_name = memcmp(a->name, b->name, len);
  if (by_name) return by_name;
  if (a->row.name.len != b->row.name.len) return a->row.name.len < b->row.name.len ? -1 : 1;
  if (kind_of(a->row.state) != kind_of(b->row.state)) return kind_of(a->row.state) - kind_of(b->row.state);
  return (a->order > b->order) - (a->order < b->order);
}

static bool fits(const struct dibs__lease_row *first, size_t count, const struct dibs__lease_row *row) {
  if (!count) return true;
  if (first->mode != row->mode || row->mode == DIBS_EXCLUSIVE) return false;
  return row->mode == DIBS_SHARED || (first->slots == row->slots && count < row->slots);
}

/* As in name.c.  `asleep` waiters are marked by their slot, which waiters do not have. */
static void mark_offers(struct lines *lines) {
  const struct dibs__lease_row *first = NULL;
  size_t count = 0;
  uint32_t ahead = 0;
  bool more = true;
  for (size_t i = 0; i < lines->count; i++) {
    struct dibs__lease_row *row = &lines->at[i].row;
    bool other = i == 0 || row->name.len != lines->at[i - 1].row.name.len ||
                 memcmp(lines->at[i].name, lines->at[i - 1].name, row->name.len) != 0;
    if (other) {
      count = 0;
      ahead = 0;
      more = true;
    }
    bool waits = row->state == DIBS__WAITS, asleep = waits && row->slot;
    if (waits) row->ahead = ahead++;
    if (waits) row->slot = 0;
    more = more && (!waits || asleep || fits(first, count, row));
    if (waits && !asleep && more) {
      row->state = DIBS__OFFERED;
      row->left_ms = DIBS__ETCD_OFFER_MS;
    }
    if (row->state == DIBS__WAITS || row->state == DIBS__BROKEN) continue;
    if (!count++) first = row;
  }
}

static dibs__status read_left(struct dibs__etcd *store, struct dibs__etcd_link *link, struct line *line, dibs__tick by,
                              struct dibs__result *result) {
  struct dibs__etcd_hold hold;
  dibs__str name = dibs__str_of(line->name, line->row.name.len);
  int64_t left_s, granted_s, now = dibs__etcd_ms(dibs__tick_now());
  if (dibs__etcd_hold_find(store, name, line->id, &hold) && hold.item.id == line->lease && hold.until > now) {
    line->row.left_ms = hold.until - now;
    return DIBS_OK;
  }
  dibs__status status = dibs__etcd_left(link, line->lease, by, &left_s, &granted_s, result);
  int64_t left_ms = (left_s + 1) * 1000 - granted_s * 1000 + line->row.ttl_ms;
  line->row.left_ms = left_s < 0 || left_ms < 0 ? 0 : left_ms < line->row.ttl_ms ? left_ms : line->row.ttl_ms;
  return status;
}

/* ---- The driver's call ---- */

static dibs__status hand_out(struct dibs__etcd_session *s, const struct dibs__list *list, struct lines *lines,
                             dibs__tick by, struct dibs__result *result) {
  struct dibs__etcd *store = dibs__etcd_of(s->base.store);
  size_t asked = 0;
  qsort(lines->at, lines->count, sizeof *lines->at, compare_lines);
  mark_offers(lines);
  for (size_t i = 0; i < lines->count; i++) {
    struct line *line = &lines->at[i];
    bool holds = line->row.state == DIBS__HOLDS || line->row.state == DIBS__BREAKING;
    if (holds && asked++ < LEFT_MOST) {
      dibs__status status = read_left(store, s->link, line, by, result);
      if (status != DIBS_OK) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
    }
    line->row.name.p = line->name;
    line->row.owner.p = line->owner;
    if (list->row(&line->row, list->user)) return DIBS_OK;
  }
  return DIBS_OK;
}

static void put_reads(struct dibs__etcd *store, const struct dibs__list *list, struct dibs__etcd_text *body) {
  struct dibs__etcd_txn txn = {0};
  struct dibs__etcd_key key;
  dibs__etcd_key(store, "lease", list->name, &key);
  dibs__etcd_op_range(&txn.success, &key, "");
  dibs__etcd_key(store, "wait", list->name, &key);
  dibs__etcd_op_range(&txn.success, &key, "");
  if (list->name.len) {
    dibs__etcd_key(store, "break", list->name, &key);
    dibs__etcd_op_range(&txn.success, &key, ",\"sort_order\":\"ASCEND\",\"sort_target\":\"CREATE\"");
  }
  dibs__etcd_txn_put(body, &txn);
  dibs__etcd_txn_free(&txn);
}

dibs__status dibs__etcd_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                             struct dibs__result *result) {
  struct dibs__etcd_session *s = (struct dibs__etcd_session *)base;
  struct dibs__etcd *store = dibs__etcd_of(base->store);
  struct dibs__etcd_text body = {0};
  struct lines lines = {0};
  json_t *answer;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  result->now.ms = dibs__etcd_ms(result->sent);
  put_reads(store, list, &body);
  dibs__status status = dibs__etcd_post(s->link, "/v3/kv/txn", &body, true, by, &answer, result);
  dibs__etcd_text_free(&body);
  if (status != DIBS_OK) return status == DIBS_UNKNOWN || status == DIBS_NOT_FOUND ? DIBS_UNAVAILABLE : status;
  const json_t *responses = json_object_get(answer, "responses");
  size_t most = 1;
  for (size_t i = 0; i < 3; i++) most += json_array_size(json_object_get(dibs__etcd_range_at(responses, i), "kvs"));
  lines.at = calloc(most, sizeof *lines.at);
  if (lines.at) {
    add_claims(store, list, "lease", dibs__etcd_range_at(responses, 0), &lines);
    add_claims(store, list, "wait", dibs__etcd_range_at(responses, 1), &lines);
    if (list->name.len) add_breaks(list, dibs__etcd_range_at(responses, 2), &lines);
  }
  json_decref(answer);
  status = lines.at ? hand_out(s, list, &lines, by, result) : DIBS_NO_MEMORY;
  free(lines.at);
  return status;
}
