/* SPDX-License-Identifier: MIT */
/*
 * Listing: the names that any node has, then all nodes' rows of each.  A holder is shown if, together with the nodes
 * that did not answer, it may have a majority.
 */
#include "drivers/redlock/redlock_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__redlock_session session;

enum { SCAN_COUNT = 1000, CHUNK = 128, BREAKS = 16, BREAK_PARTS = BREAKS * DIBS__REDLOCK_NODES, SHOWN = 9 };

struct names {
  char **at; /* sorted once they are complete */
  size_t count, capacity;
};

static void free_names(struct names *names) {
  for (size_t i = 0; i < names->count; i++) free(names->at[i]);
  free(names->at);
}

static bool add_name(struct names *names, const char *p, size_t len) {
  if (names->count == names->capacity) {
    size_t capacity = names->capacity ? names->capacity * 2 : 64;
    char **wider = realloc(names->at, capacity * sizeof(char *));
    if (!wider) return false;
    names->at = wider;
    names->capacity = capacity;
  }
  names->at[names->count] = strndup(p, len);
  return names->at[names->count] && ++names->count;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_names(struct names *names) {
  size_t kept = 0;
  if (names->count == 0) return;
  qsort(names->at, names->count, sizeof names->at[0], by_name);
  for (size_t i = 1; i < names->count; i++) {
    if (strcmp(names->at[kept], names->at[i]) == 0)
      free(names->at[i]);
    else
      names->at[++kept] = names->at[i];
  }
  names->count = kept + 1;
}

/* ---- Which names there are ---- */

/* The names with `prefix`, as a pattern of SCAN. */
static size_t scan_pattern(const session *s, dibs__str prefix, char *to, size_t size) {
  size_t used = (size_t)snprintf(to, size, "%s:rl:n:", s->store->location->prefix);
  for (size_t i = 0; i < prefix.len && used + 3 < size; i++) {
    if (memchr("*?[]\\^-", prefix.p[i], 7)) to[used++] = '\\';
    to[used++] = prefix.p[i];
  }
  to[used++] = '*';
  return used;
}

static bool read_keys(const session *s, const struct dibs__list *list, const redisReply *keys, struct names *names) {
  size_t head = strlen(s->store->location->prefix) + strlen(":rl:n:");
  for (size_t i = 0; i < keys->elements; i++) {
    const redisReply *key = keys->element[i];
    if (key->type != REDIS_REPLY_STRING || key->len <= head) continue;
    if (!dibs__list_has(list, dibs__str_of(key->str + head, key->len - head))) continue;
    if (!add_name(names, key->str + head, key->len - head)) return false;
  }
  return true;
}

/* OK; UNAVAILABLE: the node did not answer all calls. */
static dibs__status scan_node(session *s, size_t node, const struct dibs__list *list, dibs__tick by,
                              struct names *names) {
  char glob[2 * DIBS_NAME_MAX + 128], cursor[24] = "0", count[16];
  size_t len = scan_pattern(s, list->prefix, glob, sizeof glob);
  snprintf(count, sizeof count, "%d", (int)SCAN_COUNT);
  do {
    const char *const words[] = {"SCAN", cursor, "MATCH", glob, "COUNT", count};
    const size_t lengths[] = {4, strlen(cursor), 5, len, 5, strlen(count)};
    if (!dibs__redis_put(s->links[node], 6, words, lengths)) return DIBS_NO_MEMORY;
    struct dibs__redlock_requested requested;
    for (size_t i = 0; i < DIBS__REDLOCK_NODES; i++) requested.nth[i] = DIBS__REDLOCK_UNASKED;
    requested.nth[node] = 0;
    dibs__redlock_go(s, by);
    const redisReply *reply = dibs__redlock_reply(s, &requested, node);
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[0]->len >= sizeof cursor)
      return DIBS_UNAVAILABLE;
    if (!read_keys(s, list, reply->element[1], names)) return DIBS_NO_MEMORY;
    memcpy(cursor, reply->element[0]->str, reply->element[0]->len + 1);
  } while (strcmp(cursor, "0") != 0);
  return DIBS_OK;
}

static dibs__status find_names(session *s, const struct dibs__list *list, dibs__tick by, struct names *names,
                               uint32_t *answered) {
  if (list->name.len) {
    *answered = (uint32_t)(UINT64_C(1) << s->store->count) - 1; /* requested at once, below */
    return add_name(names, list->name.p, list->name.len) ? DIBS_OK : DIBS_NO_MEMORY;
  }
  *answered = 0;
  for (size_t i = 0; i < s->store->count; i++) {
    if (!s->links[i]) continue;
    dibs__status status = scan_node(s, i, list, by, names);
    if (status == DIBS_NO_MEMORY) return status;
    if (status == DIBS_OK) *answered |= 1u << i;
  }
  sort_names(names);
  return DIBS_OK;
}

/* ---- The nodes' rows of a name ---- */

struct part {
  dibs__str word, who;
  int64_t at;
  uint64_t fence;
  int64_t age;
};

struct merged {
  dibs__str name;
  uint32_t answered;
  struct dibs__lease_row row;
  bool holds;
  struct part parts[BREAK_PARTS];
  size_t part_count;
};

static uint64_t read_number(const char **p, const char *end) {
  uint64_t number = 0;
  while (*p < end && **p >= '0' && **p <= '9') number = number * 10 + (uint64_t)(*(*p)++ - '0');
  if (*p < end) ++*p;
  return number;
}

/* "word instant fence who" */
static void add_break(struct merged *m, dibs__str text, int64_t now) {
  const char *p = text.p, *end = text.p + text.len, *space = memchr(p, ' ', text.len);
  if (!space || m->part_count == BREAK_PARTS) return;
  struct part *part = &m->parts[m->part_count];
  part->word = dibs__str_of(p, (size_t)(space - p));
  p = space + 1;
  part->at = (int64_t)read_number(&p, end);
  part->fence = read_number(&p, end);
  part->who = dibs__str_of(p, (size_t)(end - p));
  part->age = now > part->at ? now - part->at : 0;
  for (size_t i = 0; i < m->part_count; i++)
    if (dibs__str_equal(m->parts[i].word, part->word)) return;
  m->part_count++;
}

static int by_fence(const void *a, const void *b) {
  const struct part *x = a, *y = b;
  if (x->fence != y->fence) return x->fence < y->fence ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

static int downwards(const void *a, const void *b) {
  const int64_t *x = a, *y = b;
  return *x < *y ? 1 : *x > *y ? -1 : 0;
}

static void set_row(struct merged *m, const redisReply *reply) {
  struct dibs__lease_row *row = &m->row;
  row->name = m->name;
  row->owner = dibs__redlock_text(reply, 4);
  row->mode = DIBS_EXCLUSIVE;
  row->fence.v = (uint64_t)dibs__redlock_int(reply, 2);
  row->ttl_ms = (uint32_t)dibs__redlock_int(reply, 5);
  row->pid = (uint32_t)dibs__redlock_int(reply, 6);
  row->age_ms = dibs__redlock_int(reply, 7);
}

/* Of all recorded holders, takes the holder on most nodes; its time ends when a majority of them has released
 * it. */
static void merge_holders(session *s, const struct dibs__redlock_requested *requested, struct merged *m) {
  const redisReply *all[DIBS__REDLOCK_NODES] = {NULL}, *best = NULL;
  size_t most = 0, majority = s->store->majority;
  int64_t left[DIBS__REDLOCK_NODES];
  m->answered = 0;
  m->holds = false;
  m->part_count = 0;
  m->row = (struct dibs__lease_row){.state = DIBS__HOLDS};
  for (size_t i = 0; i < s->store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, requested, i);
    if (!reply || reply->type != REDIS_REPLY_ARRAY) continue;
    m->answered |= 1u << i;
    for (size_t k = SHOWN; k < reply->elements; k++)
      add_break(m, dibs__redlock_text(reply, k), dibs__redlock_int(reply, 8));
    if (dibs__redlock_int(reply, 0) > 0) all[i] = reply;
  }
  for (size_t i = 0; i < s->store->count; i++) {
    size_t same = 0;
    for (size_t j = 0; all[i] && j < s->store->count; j++)
      same += all[j] && dibs__str_equal(dibs__redlock_text(all[i], 1), dibs__redlock_text(all[j], 1));
    if (same > most) most = same, best = all[i];
  }
  size_t missing = s->store->count - dibs__redlock_bits(m->answered), same = 0;
  if (!best || most + missing < majority) return;
  m->holds = true;
  for (size_t i = 0; i < s->store->count; i++) {
    if (!all[i] || !dibs__str_equal(dibs__redlock_text(best, 1), dibs__redlock_text(all[i], 1))) continue;
    left[same++] = dibs__redlock_int(all[i], 0);
    if ((uint64_t)dibs__redlock_int(all[i], 2) > m->row.fence.v) set_row(m, all[i]);
    if (dibs__redlock_int(all[i], 3)) m->row.state = DIBS__BREAKING;
  }
  qsort(left, same, sizeof left[0], downwards);
  /* The time that was promised: a node holds for longer, by the drift. */
  m->row.left_ms = left[same < majority ? same - 1 : majority - 1] - dibs__redlock_drift_ms(s->store, m->row.ttl_ms);
  if (m->row.left_ms < 1) m->row.left_ms = 1;
}

static int show_breaks(struct merged *m, const struct dibs__list *list) {
  qsort(m->parts, m->part_count, sizeof m->parts[0], by_fence);
  size_t from = m->part_count > BREAKS ? m->part_count - BREAKS : 0;
  for (size_t i = from; i < m->part_count; i++) {
    struct dibs__lease_row row = {.name = m->name, .owner = m->parts[i].who, .state = DIBS__BROKEN};
    row.fence.v = m->parts[i].fence;
    row.age_ms = m->parts[i].age;
    int stop = list->row(&row, list->user);
    if (stop) return stop;
  }
  return 0;
}

/* UNAVAILABLE: too few answered.  *stop: the caller wants no more. */
static dibs__status show_some(session *s, char *const names[], size_t count, const struct dibs__list *list,
                              dibs__tick by, struct merged *m, bool *stop) {
  struct dibs__redlock_requested requested[CHUNK];
  uint32_t nodes = (uint32_t)(UINT64_C(1) << s->store->count) - 1;
  for (size_t i = 0; i < count; i++) {
    dibs__str name = dibs__str_of(names[i], strlen(names[i]));
    struct dibs__redlock_words w = {.count = 0};
    dibs__redlock_key(&w, s->store, "n:", name);
    dibs__redlock_key(&w, s->store, "b:", name);
    dibs__redlock_put(s, nodes, DIBS__REDLOCK_SHOW, &w, &requested[i]);
  }
  dibs__redlock_go(s, by);
  for (size_t i = 0; i < count && !*stop; i++) {
    m->name = dibs__str_of(names[i], strlen(names[i]));
    merge_holders(s, &requested[i], m);
    if (dibs__redlock_bits(m->answered) < s->store->majority) return DIBS_UNAVAILABLE;
    if (m->holds && list->row(&m->row, list->user)) *stop = true;
    if (!*stop && list->name.len && show_breaks(m, list)) *stop = true;
  }
  return DIBS_OK;
}

dibs__status dibs__redlock_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                                struct dibs__result *result) {
  session *s = (session *)base;
  struct names names = {0};
  int64_t none[DIBS__REDLOCK_NODES] = {0};
  uint32_t answered;
  bool stop = false;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  result->now.ms = result->sent.ns / DIBS__NS_PER_MS;
  struct merged *m = calloc(1, sizeof *m);
  if (!m) return DIBS_NO_MEMORY;
  dibs__redlock_links(s, by);
  dibs__status status = find_names(s, list, by, &names, &answered);
  if (status == DIBS_OK && dibs__redlock_bits(answered) < s->store->majority) status = DIBS_UNAVAILABLE;
  for (size_t at = 0; status == DIBS_OK && !stop && at < names.count; at += CHUNK) {
    size_t left = names.count - at;
    status = show_some(s, names.at + at, left < CHUNK ? left : CHUNK, list, by, m, &stop);
    if (status != DIBS_OK) answered = m->answered;
  }
  if (status == DIBS_UNAVAILABLE) dibs__redlock_say_no_quorum(s, answered, none, result);
  free_names(&names);
  free(m);
  return status;
}
