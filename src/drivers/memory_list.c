/* SPDX-License-Identifier: MIT */
/*
 * Listing: everything asked for is copied under the lock, then sorted and handed out without it, so that a listing is
 * one instant of the store (R19) and its caller may call back.
 */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;

struct line {
  struct dibs__lease_row row;
  int64_t order; /* within its name and kind */
  char text[];   /* name, owner */
};

struct lines {
  struct line **at;
  size_t count, cap;
};

static struct line *add(struct lines *lines, const name *n, const char *owner, uint32_t owner_len) {
  if (lines->count == lines->cap) {
    size_t cap = lines->cap ? lines->cap * 2 : 64;
    struct line **wider = realloc(lines->at, cap * sizeof(struct line *));
    if (!wider) return NULL;
    lines->at = wider;
    lines->cap = cap;
  }
  struct line *line = calloc(1, sizeof *line + n->len + owner_len + 1);
  if (!line) return NULL;
  memcpy(line->text, n->text, n->len);
  if (owner_len) memcpy(line->text + n->len, owner, owner_len);
  line->row.name = dibs__str_of(line->text, n->len);
  line->row.owner = dibs__str_of(line->text + n->len, owner_len);
  lines->at[lines->count++] = line;
  return line;
}

static bool add_claim(const struct dibs__memory *m, struct lines *lines, const claim *c, int64_t now) {
  bool holds = c->state == DIBS__MEM_HOLDS || c->state == DIBS__MEM_BREAKING;
  bool offered = c->state == DIBS__MEM_OFFERED && c->until > now;
  if (holds && c->until <= now) return true;
  if (!holds && !dibs__mem_alive(m, c->session)) return true;
  struct line *line = add(lines, c->name, c->owner, c->owner_len);
  if (!line) return false;
  struct dibs__lease_row *row = &line->row;
  row->state = DIBS_WAITS;
  if (holds) row->state = c->state == DIBS__MEM_HOLDS ? DIBS_HOLDS : DIBS_BREAKING;
  if (offered) row->state = DIBS_OFFERED;
  row->mode = c->mode;
  row->slots = c->slots;
  row->slot = c->slot;
  row->ttl_ms = c->ttl_ms;
  row->fence = holds ? c->first : DIBS__FENCE_NONE;
  row->left_ms = holds || offered ? c->until - now : 0;
  row->age_ms = now - (holds ? c->since : c->asked_since);
  row->pid = dibs__mem_alive(m, c->session) ? dibs__process_id() : 0;
  line->order = (int64_t)c->ticket;
  return true;
}

static bool add_row(const struct dibs__memory *m, struct lines *lines, const struct dibs__mem_row *row, int64_t now) {
  for (const claim *c = row->first; c; c = c->after)
    if (!add_claim(m, lines, c, now)) return false;
  return true;
}

static bool add_breaks(struct lines *lines, const name *n, int64_t now) {
  uint32_t count = n->break_count < DIBS__MEM_BREAKS ? n->break_count : DIBS__MEM_BREAKS;
  for (uint32_t i = 0; n->breaks && i < count; i++) {
    uint32_t nth = n->break_count - count + i;
    const struct dibs__mem_break *broke = &n->breaks[nth % DIBS__MEM_BREAKS];
    struct line *line = add(lines, n, broke->owner, broke->owner_len);
    if (!line) return false;
    line->row.state = DIBS_BROKEN;
    line->row.mode = broke->mode;
    line->row.fence = broke->fence;
    line->row.age_ms = now - broke->at;
    line->order = nth;
  }
  return true;
}

static bool add_name(const struct dibs__memory *m, struct lines *lines, const name *n, int64_t now) {
  return add_row(m, lines, &n->holders, now) && add_row(m, lines, &n->offered, now) &&
         add_row(m, lines, &n->waiting, now) && add_row(m, lines, &n->asleep, now);
}

static bool begins_with(const name *n, dibs__str prefix) {
  return n->len >= prefix.len && (prefix.len == 0 || memcmp(n->text, prefix.p, prefix.len) == 0);
}

static bool gather(struct dibs__memory *m, const struct dibs__list *list, struct lines *lines, int64_t now) {
  if (list->name.len) {
    const name *n = dibs__mem_name_find(m, list->name);
    return !n || (add_name(m, lines, n, now) && add_breaks(lines, n, now));
  }
  for (struct dibs__map_node *link = NULL; (link = dibs__mem_next(&m->names, link));)
    if (begins_with((name *)link, list->prefix) && !add_name(m, lines, (name *)link, now)) return false;
  return true;
}

/* Holders, then the line, then breaks. */
static int kind(uint32_t state) {
  if (state == DIBS_BROKEN) return 2;
  return state == DIBS_WAITS || state == DIBS_OFFERED;
}

static int compare(const void *left, const void *right) {
  const struct line *a = *(struct line *const *)left, *b = *(struct line *const *)right;
  uint32_t len = a->row.name.len < b->row.name.len ? a->row.name.len : b->row.name.len;
  int by_name = memcmp(a->row.name.p, b->row.name.p, len);
  if (by_name) return by_name;
  if (a->row.name.len != b->row.name.len) return a->row.name.len < b->row.name.len ? -1 : 1;
  if (kind(a->row.state) != kind(b->row.state)) return kind(a->row.state) - kind(b->row.state);
  return (a->order > b->order) - (a->order < b->order);
}

static void hand_out(const struct lines *lines, const struct dibs__list *list) {
  uint32_t ahead = 0;
  for (size_t i = 0; i < lines->count; i++) {
    struct dibs__lease_row *row = &lines->at[i]->row;
    if (i == 0 || !dibs__str_equal(row->name, lines->at[i - 1]->row.name)) ahead = 0;
    if (kind(row->state) == 1) row->ahead = ahead++;
    if (list->row(row, list->user)) return;
  }
}

dibs__status dibs__mem_list(struct dibs__memory *m, const struct dibs__list *list, struct dibs__said *said) {
  struct lines lines = {0};
  dibs__mutex_lock(&m->lock);
  int64_t now = dibs__mem_clock(m);
  bool enough = gather(m, list, &lines, now);
  dibs__mutex_unlock(&m->lock);
  said->now = (dibs__when){now};
  if (!enough) dibs__say(said, "no memory for a listing of %zu lines", lines.count);
  if (enough && lines.count) {
    qsort(lines.at, lines.count, sizeof(struct line *), compare);
    hand_out(&lines, list);
  }
  for (size_t i = 0; i < lines.count; i++) free(lines.at[i]);
  free(lines.at);
  return enough ? DIBS_OK : DIBS_NO_MEMORY;
}
