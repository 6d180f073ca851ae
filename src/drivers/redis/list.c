/* SPDX-License-Identifier: MIT */
/*
 * Listing and reports.
 *
 * Listing: SCAN finds the names, redis/list.lua shows them in batches, each at one instant of the server.  SCAN gives
 * every key that exists from its beginning to its end, some of them twice: names are sorted, and each is shown once
 * (R19).
 *
 * Reports: a script call each, redis/report.lua, after those of leases in the same round trip.
 */
#include "drivers/redis/cluster.h"
#include "drivers/redis/redis_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char dibs__redis_lua_list[];

/* The form of a row of list.lua, before its owner. */
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
  struct dibs__result *result;
  dibs__tick by;
  char **names; /* each malloc'd: its length, a byte, then the name */
  size_t count, capacity;
  struct line *lines; /* of one name */
  size_t line_count, line_capacity;
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

static const struct dibs__redis_location *location_of(const struct listing *g) {
  return ((const struct dibs__redis *)g->session->base.store)->location;
}

static dibs__status no_memory(struct listing *g) {
  if (g->session->link) dibs__redis_drop(g->session->link);
  dibs__set_message(g->result, "out of memory for a list of %s", location_of(g)->shown);
  return DIBS_NO_MEMORY;
}

/* The status of a reply that is none of ours. */
static dibs__status refused(struct listing *g, const redisReply *reply) {
  if (reply && reply->type == REDIS_REPLY_ERROR &&
      (strncmp(reply->str, "CORRUPT", 7) == 0 || strncmp(reply->str, "WRONGTYPE", 9) == 0)) {
    dibs__set_message(g->result, "%s: %.180s", location_of(g)->shown, reply->str);
    return DIBS_CORRUPT;
  }
  struct dibs__redis_link none = {.location = location_of(g)}; /* of a cluster: the session has no link */
  return dibs__redis_refused(g->session->link ? g->session->link : &none, reply, "list", g->result);
}

/* Sends one command; gives its reply. */
static dibs__status send_request(struct listing *g, const redisReply **reply) {
  dibs__status status = dibs__redis_go(g->session->link, g->by, g->result);
  if (status != DIBS_OK) return DIBS_UNAVAILABLE; /* it changes nothing: never in doubt */
  *reply = dibs__redis_reply(g->session->link, 0);
  return *reply && (*reply)->type == REDIS_REPLY_ARRAY ? DIBS_OK : refused(g, *reply);
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
  if (g->count == g->capacity) {
    size_t capacity = g->capacity ? 2 * g->capacity : 64;
    char **wider = realloc(g->names, capacity * sizeof *wider);
    if (!wider) return false;
    g->names = wider;
    g->capacity = capacity;
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

/* The name in "dibs:{17}:n:NAME".  false: not a key of this store. */
static bool name_in(const struct listing *g, const redisReply *key, dibs__str *name) {
  size_t at = strlen(location_of(g)->prefix) + 2;
  char head[KEY_MAX];
  if (key->type != REDIS_REPLY_STRING || at >= key->len) return false;
  const char *end = memchr(key->str + at, '}', key->len - at);
  size_t len = end ? (size_t)(end - key->str) + 4 : key->len; /* "}:n:" */
  if (len >= key->len || len >= sizeof head || key->len - len > DIBS_NAME_MAX) return false;
  *name = dibs__str_of(key->str + len, key->len - len);
  snprintf(head, sizeof head, "%s:{%u}:n:", location_of(g)->prefix, dibs__bucket(*name));
  return strlen(head) == len && memcmp(head, key->str, len) == 0;
}

/* The pattern matches more: the star for the bucket also matches the beginning of a name that looks like a key. */
static bool add_names(struct listing *g, const redisReply *keys) {
  for (size_t i = 0; i < keys->elements; i++) {
    dibs__str name;
    if (!name_in(g, keys->element[i], &name) || !dibs__list_has(g->list, name)) continue;
    if (!add_name(g, name)) return false;
  }
  return true;
}

static dibs__status find_names(struct listing *g) {
  char pattern[PATTERN_MAX], cursor[24] = "0";
  const char *prefix = location_of(g)->prefix;
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
    dibs__status status = send_request(g, &reply);
    if (status != DIBS_OK) return status;
    if (reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY)
      return dibs__redis_refused(g->session->link, NULL, "list", g->result);
    snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
    if (!add_names(g, reply->element[1])) return no_memory(g);
  } while (strcmp(cursor, "0") != 0);
  return DIBS_OK;
}

static int by_name(const void *left, const void *right) {
  const char *a = *(char *const *)left, *b = *(char *const *)right;
  uint8_t a_len = (uint8_t)a[0], b_len = (uint8_t)b[0];
  int order = memcmp(a + 1, b + 1, a_len < b_len ? a_len : b_len);
  return order ? order : a_len - b_len;
}

static void remove_duplicates(struct listing *g) {
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

/* Holders, then the queue, then breaks. */
static int line_kind(uint32_t state) {
  if (state == DIBS__BROKEN) return 2;
  return state == DIBS__WAITS || state == DIBS__OFFERED;
}

static int by_order(const void *left, const void *right) {
  const struct line *a = left, *b = right;
  int order = line_kind(a->row.state) - line_kind(b->row.state);
  return order ? order : (a->order > b->order) - (a->order < b->order);
}

static bool add_line(struct listing *g, dibs__str name, const char *from, const char **next) {
  if (g->line_count == g->line_capacity) {
    size_t capacity = g->line_capacity ? 2 * g->line_capacity : 16;
    struct line *wider = realloc(g->lines, capacity * sizeof *wider);
    if (!wider) return false;
    g->lines = wider;
    g->line_capacity = capacity;
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

static dibs__status show_name(struct listing *g, dibs__str name, const redisReply *rows) {
  if (rows->type != REDIS_REPLY_STRING) return refused(g, NULL);
  const char *at = rows->str, *end = rows->str + rows->len;
  g->line_count = 0;
  while (end - at >= ROW && end - at >= ROW + (uint8_t)at[ROW - 1])
    if (!add_line(g, name, at, &at)) return no_memory(g);
  if (g->line_count) qsort(g->lines, g->line_count, sizeof *g->lines, by_order);
  uint32_t ahead = 0;
  for (size_t i = 0; i < g->line_count && !g->enough; i++) {
    if (line_kind(g->lines[i].row.state) == 1) g->lines[i].row.ahead = ahead++;
    g->enough = g->list->row(&g->lines[i].row, g->list->user) != 0;
  }
  return DIBS_OK;
}

/* Is it list.lua's answer for so many names? */
static bool is_shown(const redisReply *reply, size_t count) {
  return reply->elements == count + 1 && reply->element[0]->type == REDIS_REPLY_STRING && reply->element[0]->len == 8;
}

static dibs__status show_names(struct listing *g, size_t from, size_t count) {
  const char *words[2 * LOT + 1];
  size_t lengths[2 * LOT + 1], n = 0;
  char keys[LOT][KEY_MAX];
  for (; n < count; n++) {
    snprintf(keys[n], KEY_MAX, "%s:{%u}", location_of(g)->prefix, dibs__bucket(name_at(g, from + n)));
    words[n] = keys[n], lengths[n] = strlen(keys[n]);
  }
  words[n] = g->list->name.len ? "1" : "0", lengths[n++] = 1;
  for (size_t i = 0; i < count; i++, n++) words[n] = name_at(g, from + i).p, lengths[n] = name_at(g, from + i).len;
  if (!dibs__redis_put_script(g->session->link, script(), count, n, words, lengths)) return no_memory(g);
  const redisReply *reply = NULL;
  dibs__status status = send_request(g, &reply);
  if (status != DIBS_OK) return status;
  if (!is_shown(reply, count)) return refused(g, NULL);
  g->result->now.ms = (int64_t)double_at(reply->element[0]->str);
  for (size_t i = 0; i < count && status == DIBS_OK && !g->enough; i++)
    status = show_name(g, name_at(g, from + i), reply->element[i + 1]);
  return status;
}

/* ---- In a cluster ---- */

/* All keys of a bucket, between two reads that show that its slot was there, and whole: SCAN would miss keys that move
 * from a node that is not scanned yet to a node that was. */
static bool put_find(void *user, struct dibs__redis_link *link, size_t nth) {
  const struct listing *g = user;
  char keys[2][KEY_MAX], slot[8];
  snprintf(keys[0], KEY_MAX, "%s:{%zu}", location_of(g)->prefix, nth);
  snprintf(keys[1], KEY_MAX, "%s:{%zu}:-", location_of(g)->prefix, nth); /* lease.lua */
  snprintf(slot, sizeof slot, "%u", dibs__redis_slot(nth));
  const char *const probe[] = {"MGET", keys[0], keys[1]};
  const size_t probe_lengths[] = {4, strlen(keys[0]), strlen(keys[1])};
  const char *const get[] = {"CLUSTER", "GETKEYSINSLOT", slot, "100000000"};
  const size_t get_lengths[] = {7, 13, strlen(slot), 9};
  return dibs__redis_put(link, 3, probe, probe_lengths) && dibs__redis_put(link, 4, get, get_lengths) &&
         dibs__redis_put(link, 3, probe, probe_lengths);
}

static dibs__status find_in_cluster(struct listing *g) {
  enum { EACH_FIND = 3 };
  size_t places[DIBS__BUCKETS];
  const redisReply *replies[DIBS__BUCKETS * EACH_FIND];
  for (size_t i = 0; i < DIBS__BUCKETS; i++) places[i] = i;
  dibs__status status =
      dibs__redis_cluster_read(g->session, places, DIBS__BUCKETS, EACH_FIND, put_find, g, replies, g->by, g->result);
  for (size_t i = 0; i < DIBS__BUCKETS * EACH_FIND && status == DIBS_OK; i++) {
    if (replies[i]->type != REDIS_REPLY_ARRAY) return refused(g, replies[i]);
    if (i % EACH_FIND == 1 && !add_names(g, replies[i])) return no_memory(g);
  }
  return status;
}

struct shown {
  const struct listing *g;
  size_t from;
};

static bool put_show(void *user, struct dibs__redis_link *link, size_t nth) {
  const struct shown *s = user;
  dibs__str name = name_at(s->g, s->from + nth);
  char key[KEY_MAX];
  snprintf(key, sizeof key, "%s:{%u}", location_of(s->g)->prefix, dibs__bucket(name));
  const char *const words[] = {key, s->g->list->name.len ? "3" : "2", name.p};
  const size_t lengths[] = {strlen(key), 1, name.len};
  return dibs__redis_put_script(link, script(), 1, 3, words, lengths);
}

static dibs__status show_in_cluster(struct listing *g, size_t from, size_t count) {
  struct shown shown = {g, from};
  size_t places[LOT];
  const redisReply *replies[LOT];
  for (size_t i = 0; i < count; i++) places[i] = dibs__bucket(name_at(g, from + i));
  dibs__status status =
      dibs__redis_cluster_read(g->session, places, count, 1, put_show, &shown, replies, g->by, g->result);
  for (size_t i = 0; i < count && status == DIBS_OK && !g->enough; i++) {
    const redisReply *reply = replies[i];
    if (reply->type != REDIS_REPLY_ARRAY) return refused(g, reply);
    if (!is_shown(reply, 1)) return refused(g, NULL);
    g->result->now.ms = (int64_t)double_at(reply->element[0]->str);
    status = show_name(g, name_at(g, from + i), reply->element[1]);
  }
  return status;
}

/* ---- Listing ---- */

dibs__status dibs__redis_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                              struct dibs__result *result) {
  struct listing g = {.session = (struct dibs__redis_session *)base, .list = list, .result = result, .by = by};
  dibs__status status = DIBS_OK;
  bool cluster = ((const struct dibs__redis *)base->store)->cluster != NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (list->name.len > DIBS_NAME_MAX) return DIBS_OK;
  if (!list->name.len)
    status = cluster ? find_in_cluster(&g) : find_names(&g);
  else if (!add_name(&g, list->name))
    status = no_memory(&g);
  remove_duplicates(&g);
  for (size_t at = 0; at < g.count && status == DIBS_OK && !g.enough; at += LOT) {
    size_t some = g.count - at < LOT ? g.count - at : LOT;
    status = cluster ? show_in_cluster(&g, at, some) : show_names(&g, at, some);
  }
  for (size_t i = 0; i < g.count; i++) free(g.names[i]);
  free(g.names);
  free(g.lines);
  return status;
}

/* ---- Reports ---- */

extern const char dibs__redis_lua_report[];

typedef struct dibs__report_op report;
enum { REPORT_KEY_MAX = 96, EACH = 3 /* elements of the reply */ };

static struct dibs__redis_script report_script;

static const struct dibs__redis_script *script_for_reports(void) {
  dibs__mutex_lock(&naming);
  if (!report_script.text) {
    report_script.text = dibs__redis_lua_report;
    dibs__redis_script_name(&report_script);
  }
  dibs__mutex_unlock(&naming);
  return &report_script;
}

bool dibs__redis_report_valid(report *op) {
  op->got = NULL;
  op->got_count = 0;
  bool drops = op->op.verb == DIBS__REPORT_DROP;
  bool valid = op->op.verb <= DIBS__REPORT_DROP && (drops || op->keep_ms > 0) &&
               (op->op.verb != DIBS__REPORT_PUT || op->data.len <= DIBS__REPORT_MAX);
  if (!valid) op->op.status = DIBS_INVALID;
  return valid;
}

bool dibs__redis_report_put(struct dibs__redis_session *session, const report *op) {
  const char *prefix = ((const struct dibs__redis *)session->base.store)->location->prefix;
  bool puts = op->op.verb == DIBS__REPORT_PUT;
  char keys[2][REPORT_KEY_MAX], keep[24], verb = (char)('0' + op->op.verb);
  snprintf(keys[0], REPORT_KEY_MAX, "%s:{reports}", prefix);
  snprintf(keys[1], REPORT_KEY_MAX, "%s:{reports}:s", prefix);
  snprintf(keep, sizeof keep, "%" PRId64, op->keep_ms);
  const char *const words[] = {keys[0],
                               keys[1],
                               &verb,
                               (const char *)op->id.b,
                               keep,
                               op->want ? "1" : "0",
                               puts && op->data.len ? op->data.p : ""};
  const size_t lengths[] = {strlen(keys[0]),        strlen(keys[1]), 1, sizeof op->id.b, strlen(keep), 1,
                            puts ? op->data.len : 0};
  return dibs__redis_put_script(session->link, script_for_reports(), 2, 7, words, lengths);
}

static double report_number_at(const redisReply *r) {
  double number;
  memcpy(&number, r->str, sizeof number);
  return number;
}

static bool is_text(const redisReply *r, size_t len) {
  return r->type == REDIS_REPLY_STRING && (len == SIZE_MAX || r->len == len);
}

/* Is it a valid reply of the script? */
static bool is_report_reply(const redisReply *r, size_t *bytes) {
  *bytes = 0;
  if (r->type != REDIS_REPLY_ARRAY || r->elements % EACH != 1 || !is_text(r->element[0], sizeof(double))) return false;
  for (size_t i = 1; i < r->elements; i += EACH) {
    if (!is_text(r->element[i], sizeof(dibs__id)) || !is_text(r->element[i + 1], sizeof(double)) ||
        !is_text(r->element[i + 2], SIZE_MAX))
      return false;
    *bytes += r->element[i + 2]->len;
  }
  return true;
}

void dibs__redis_report_answer(struct dibs__redis_session *session, report *op, const redisReply *r,
                               struct dibs__result *result) {
  size_t bytes;
  if (!r) return; /* missing: it stays UNKNOWN */
  if (r->type == REDIS_REPLY_ERROR || !is_report_reply(r, &bytes)) {
    op->op.status = dibs__redis_refused(session->link, r, "keep a report in", result);
    return;
  }
  if (result->now.ms == 0) result->now.ms = (int64_t)report_number_at(r->element[0]);
  op->op.status = DIBS_OK;
  size_t count = (r->elements - 1) / EACH;
  if (count == 0) return;
  op->got = malloc(count * sizeof *op->got + bytes);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(op->got + count);
  for (size_t i = 0; i < count; i++) {
    const redisReply *const *each = (const redisReply *const *)r->element + 1 + i * EACH;
    struct dibs__report *to = &op->got[op->got_count++];
    memcpy(to->id.b, each[0]->str, sizeof to->id.b);
    to->age_ms = (int64_t)report_number_at(each[1]);
    to->data = dibs__str_of(at, each[2]->len);
    if (each[2]->len) memcpy(at, each[2]->str, each[2]->len);
    at += each[2]->len;
  }
}
