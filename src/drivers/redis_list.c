/* SPDX-License-Identifier: MIT */
/*
 * Listing: SCAN finds the names, redis/list.lua shows them some at a time, each lot at one instant of the server.
 *
 * SCAN gives every key that is there from its beginning to its end, some of them twice: names are sorted, and each is
 * shown once (R19).
 */
#include "drivers/redis_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char dibs__redis_lua_list[];

/* What list.lua says a row is, before its owner. */
enum {
  ROW = 1 + 1 + 2 + 2 + 4 + 8 + 8 + 8 + 8 + 1,
  LOT = 64,
  KEY_MAX = 80,
  PATTERN_MAX = 2 * (64 + DIBS_NAME_MAX) + 16
};

struct line {
  struct dibs__lease_row row;
  double order; /* within its kind */
};

struct listing {
  struct dibs__redis_session *session;
  const struct dibs__list *list;
  struct dibs__said *said;
  dibs__tick by;
  char **names; /* each malloc'd: its length, a byte, then itself */
  size_t count, room;
  struct line *lines; /* of one name */
  size_t line_count, line_room;
  bool enough; /* the caller wants no more */
};

static dibs__mutex naming = {PTHREAD_MUTEX_INITIALIZER};
static struct dibs__redis_script list_script;

static const struct dibs__redis_script *script(void) {
  dibs__mutex_lock(&naming);
  if (!list_script.text) {
    list_script.text = dibs__redis_lua_list;
    dibs__redis_script_name(&list_script);
  }
  dibs__mutex_unlock(&naming);
  return &list_script;
}

static const struct dibs__redis_place *place_of(const struct listing *g) {
  return ((const struct dibs__redis *)g->session->base.store)->place;
}

static dibs__status no_memory(struct listing *g) {
  dibs__redis_drop(g->session->link);
  dibs__say(g->said, "no memory for a listing of %s", place_of(g)->shown);
  return DIBS_NO_MEMORY;
}

/* The one reply that was asked for. */
static dibs__status ask(struct listing *g, const redisReply **reply) {
  dibs__status status = dibs__redis_go(g->session->link, g->by, g->said);
  if (status != DIBS_OK) return DIBS_UNAVAILABLE; /* it changes nothing: never in doubt */
  *reply = dibs__redis_reply(g->session->link, 0);
  if (*reply && (*reply)->type == REDIS_REPLY_ARRAY) return DIBS_OK;
  if (*reply && (*reply)->type == REDIS_REPLY_ERROR &&
      (strncmp((*reply)->str, "CORRUPT", 7) == 0 || strncmp((*reply)->str, "WRONGTYPE", 9) == 0)) {
    dibs__say(g->said, "%s: %.180s", place_of(g)->shown, (*reply)->str);
    return DIBS_CORRUPT;
  }
  return dibs__redis_refused(g->session->link, *reply, "list", g->said);
}

/* ---- Names ---- */

static size_t escape(char *to, const char *from, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    if (strchr("*?[]^-\\", from[i]) && from[i]) to[n++] = '\\';
    to[n++] = from[i];
  }
  return n;
}

static bool add_name(struct listing *g, dibs__str name) {
  if (g->count == g->room) {
    size_t room = g->room ? 2 * g->room : 64;
    char **wider = realloc(g->names, room * sizeof *wider);
    if (!wider) return false;
    g->names = wider;
    g->room = room;
  }
  char *kept = malloc(1 + (size_t)name.len);
  if (!kept) return false;
  kept[0] = (char)(uint8_t)name.len;
  memcpy(kept + 1, name.p, name.len);
  g->names[g->count++] = kept;
  return true;
}

static dibs__str name_at(const struct listing *g, size_t i) {
  return dibs__str_of(g->names[i] + 1, (uint8_t)g->names[i][0]);
}

/* The name in "dibs:{17}:n:NAME".  false: it is no key of ours. */
static bool name_in(const struct listing *g, const redisReply *key, dibs__str *name) {
  size_t at = strlen(place_of(g)->prefix) + 2;
  char head[KEY_MAX];
  if (key->type != REDIS_REPLY_STRING || at >= key->len) return false;
  const char *end = memchr(key->str + at, '}', key->len - at);
  size_t len = end ? (size_t)(end - key->str) + 4 : key->len; /* "}:n:" */
  if (len >= key->len || len >= sizeof head || key->len - len > DIBS_NAME_MAX) return false;
  *name = dibs__str_of(key->str + len, key->len - len);
  snprintf(head, sizeof head, "%s:{%u}:n:", place_of(g)->prefix, dibs__bucket(*name));
  return strlen(head) == len && memcmp(head, key->str, len) == 0;
}

static bool take_names(struct listing *g, const redisReply *keys) {
  for (size_t i = 0; i < keys->elements; i++) {
    dibs__str name;
    if (name_in(g, keys->element[i], &name) && !add_name(g, name)) return false;
  }
  return true;
}

static dibs__status find_names(struct listing *g) {
  char pattern[PATTERN_MAX], cursor[24] = "0";
  const char *prefix = place_of(g)->prefix;
  size_t len = escape(pattern, prefix, strlen(prefix));
  memcpy(pattern + len, ":{*}:n:", 7);
  len += 7;
  if (g->list->prefix.len > DIBS_NAME_MAX) return DIBS_OK;
  if (g->list->prefix.len) len += escape(pattern + len, g->list->prefix.p, g->list->prefix.len);
  pattern[len++] = '*';
  do {
    const redisReply *reply = NULL;
    const char *words[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "4000"};
    const size_t lengths[] = {4, strlen(cursor), 5, len, 5, 4};
    if (!dibs__redis_put(g->session->link, 6, words, lengths)) return no_memory(g);
    dibs__status status = ask(g, &reply);
    if (status != DIBS_OK) return status;
    if (reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY)
      return dibs__redis_refused(g->session->link, NULL, "list", g->said);
    snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
    if (!take_names(g, reply->element[1])) return no_memory(g);
  } while (strcmp(cursor, "0") != 0);
  return DIBS_OK;
}

static int by_name(const void *left, const void *right) {
  const char *a = *(char *const *)left, *b = *(char *const *)right;
  uint8_t a_len = (uint8_t)a[0], b_len = (uint8_t)b[0];
  int order = memcmp(a + 1, b + 1, a_len < b_len ? a_len : b_len);
  return order ? order : a_len - b_len;
}

static void each_once(struct listing *g) {
  size_t kept = 0;
  if (g->count) qsort(g->names, g->count, sizeof *g->names, by_name);
  for (size_t i = 0; i < g->count; i++) {
    if (kept && by_name(&g->names[kept - 1], &g->names[i]) == 0)
      free(g->names[i]);
    else
      g->names[kept++] = g->names[i];
  }
  g->count = kept;
}

/* ---- Rows ---- */

static uint64_t number_at(const char *from, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; i++) number |= (uint64_t)(uint8_t)from[i] << 8 * i;
  return number;
}

static double double_at(const char *from) {
  double number;
  memcpy(&number, from, sizeof number);
  return number;
}

/* Holders, then the line, then breaks. */
static int kind(uint32_t state) {
  if (state == DIBS_BROKEN) return 2;
  return state == DIBS_WAITS || state == DIBS_OFFERED;
}

static int by_order(const void *left, const void *right) {
  const struct line *a = left, *b = right;
  int order = kind(a->row.state) - kind(b->row.state);
  return order ? order : (a->order > b->order) - (a->order < b->order);
}

static bool add_line(struct listing *g, dibs__str name, const char *from, const char **next) {
  if (g->line_count == g->line_room) {
    size_t room = g->line_room ? 2 * g->line_room : 16;
    struct line *wider = realloc(g->lines, room * sizeof *wider);
    if (!wider) return false;
    g->lines = wider;
    g->line_room = room;
  }
  struct line *to = &g->lines[g->line_count++];
  *to = (struct line){.row = {.name = name}};
  to->row.state = (uint8_t)from[0];
  to->row.mode = (uint8_t)from[1];
  to->row.slots = (uint32_t)number_at(from + 2, 2);
  to->row.slot = (uint32_t)number_at(from + 4, 2);
  to->row.ttl_ms = (uint32_t)number_at(from + 6, 4);
  to->row.fence.v = (uint64_t)double_at(from + 10);
  to->row.left_ms = (int64_t)double_at(from + 18);
  to->row.age_ms = (int64_t)double_at(from + 26);
  to->order = double_at(from + 34);
  to->row.owner = dibs__str_of(from + ROW, (uint8_t)from[ROW - 1]);
  *next = from + ROW + to->row.owner.len;
  return true;
}

static dibs__status show(struct listing *g, dibs__str name, const redisReply *rows) {
  if (rows->type != REDIS_REPLY_STRING) return dibs__redis_refused(g->session->link, NULL, "list", g->said);
  const char *at = rows->str, *end = rows->str + rows->len;
  g->line_count = 0;
  while (end - at >= ROW && end - at >= ROW + (uint8_t)at[ROW - 1])
    if (!add_line(g, name, at, &at)) return no_memory(g);
  if (g->line_count) qsort(g->lines, g->line_count, sizeof *g->lines, by_order);
  uint32_t ahead = 0;
  for (size_t i = 0; i < g->line_count && !g->enough; i++) {
    if (kind(g->lines[i].row.state) == 1) g->lines[i].row.ahead = ahead++;
    g->enough = g->list->row(&g->lines[i].row, g->list->user) != 0;
  }
  return DIBS_OK;
}

static dibs__status show_lot(struct listing *g, size_t from, size_t count) {
  const char *words[2 * LOT + 1];
  size_t lengths[2 * LOT + 1], n = 0;
  char keys[LOT][KEY_MAX];
  for (; n < count; n++) {
    snprintf(keys[n], KEY_MAX, "%s:{%u}", place_of(g)->prefix, dibs__bucket(name_at(g, from + n)));
    words[n] = keys[n], lengths[n] = strlen(keys[n]);
  }
  words[n] = g->list->name.len ? "1" : "0", lengths[n++] = 1;
  for (size_t i = 0; i < count; i++, n++) words[n] = name_at(g, from + i).p, lengths[n] = name_at(g, from + i).len;
  if (!dibs__redis_put_script(g->session->link, script(), count, n, words, lengths)) return no_memory(g);
  const redisReply *reply = NULL;
  dibs__status status = ask(g, &reply);
  if (status != DIBS_OK) return status;
  if (reply->elements != count + 1 || reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len != 8)
    return dibs__redis_refused(g->session->link, NULL, "list", g->said);
  g->said->now.ms = (int64_t)double_at(reply->element[0]->str);
  for (size_t i = 0; i < count && status == DIBS_OK && !g->enough; i++)
    status = show(g, name_at(g, from + i), reply->element[i + 1]);
  return status;
}

dibs__status dibs__redis_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                              struct dibs__said *said) {
  struct listing g = {.session = (struct dibs__redis_session *)base, .list = list, .said = said, .by = by};
  dibs__status status = DIBS_OK;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (list->name.len > DIBS_NAME_MAX) return DIBS_OK;
  if (!list->name.len)
    status = find_names(&g);
  else if (!add_name(&g, list->name))
    status = no_memory(&g);
  each_once(&g);
  for (size_t at = 0; at < g.count && status == DIBS_OK && !g.enough; at += LOT)
    status = show_lot(&g, at, g.count - at < LOT ? g.count - at : LOT);
  for (size_t i = 0; i < g.count; i++) free(g.names[i]);
  free(g.names);
  free(g.lines);
  return status;
}
