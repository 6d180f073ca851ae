/* SPDX-License-Identifier: MIT */
#include "lane_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct effect {
  uint64_t number, fence;
  uint32_t key;
  bool acknowledged;
};

struct use {
  uint32_t lane, lanes, member;
  uint64_t fence;
  int64_t from, to;
};

struct facts {
  struct effect *effects;
  size_t effect_count, effect_capacity;
  struct use *uses;
  size_t use_count, use_capacity;
};

static void *grow(void *list, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return list;
  *capacity = *capacity ? *capacity * 2 : 1024;
  list = realloc(list, *capacity * size);
  if (!list) abort();
  return list;
}

static void add_effect(struct facts *f, struct effect effect) {
  f->effects = grow(f->effects, f->effect_count, &f->effect_capacity, sizeof *f->effects);
  f->effects[f->effect_count++] = effect;
}

static void begin_use(struct facts *f, struct use use) {
  f->uses = grow(f->uses, f->use_count, &f->use_capacity, sizeof *f->uses);
  f->uses[f->use_count++] = use;
}

static void end_use(struct facts *f, const struct use *use, size_t from) {
  for (size_t i = from; i < f->use_count; i++)
    if (f->uses[i].lane == use->lane && f->uses[i].lanes == use->lanes && f->uses[i].fence == use->fence)
      f->uses[i].to = use->to;
}

static bool read_member(struct facts *f, const char *folder, uint32_t member, struct lane_facts *to) {
  char path[256], line[160];
  snprintf(path, sizeof path, "%s/%u", folder, member);
  FILE *in = fopen(path, "r");
  if (!in) return false;
  size_t uses = f->use_count;
  bool disturbed = false;
  while (fgets(line, sizeof line, in)) {
    uint64_t a = 0, b = 0, c = 0;
    int64_t ns = 0;
    char what = line[0];
    if (!strchr(line, '\n')) break; /* killed in the middle of it */
    if (what == 'P') disturbed = true;
    if (what == 'P' || sscanf(line + 1, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64, &a, &b, &c, &ns) != 4) continue;
    struct use use = {(uint32_t)a, (uint32_t)b, member, c, ns, what == 'G' ? INT64_MAX : ns};
    if (what == 'G') begin_use(f, use);
    if (what == 'G') to->gains++;
    if (what == 'D') end_use(f, &use, uses);
    if (what == 'T' || what == 'A') add_effect(f, (struct effect){b, c, (uint32_t)a, what == 'A'});
  }
  fclose(in);
  if (disturbed) f->use_count = uses;
  return true;
}

static int by_number(const void *a, const void *b) {
  const struct effect *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  if (x->number != y->number) return x->number < y->number ? -1 : 1;
  return (int)y->acknowledged - (int)x->acknowledged;
}

/* Of one number of one key: the acknowledged ones come first. */
static void check_number(const struct effect *e, size_t count, uint64_t *fence, struct lane_facts *to) {
  size_t acknowledged = 0;
  while (acknowledged < count && e[acknowledged].acknowledged) acknowledged++;
  to->acknowledged += acknowledged;
  to->unanswered += acknowledged == 0;
  if (acknowledged > 1) to->twice += acknowledged - 1;
  if (acknowledged == 0) return; /* one of the tries has happened: which one is not known */
  to->backward += e[0].fence < *fence;
  if (e[0].fence > *fence) *fence = e[0].fence;
}

static void check_effects(struct facts *f, const uint64_t *last, uint32_t keys, struct lane_facts *to) {
  if (f->effect_count > 0) qsort(f->effects, f->effect_count, sizeof *f->effects, by_number);
  size_t at = 0;
  for (uint32_t key = 0; key < keys; key++) {
    uint64_t fence = 0, number = 0;
    while (at < f->effect_count && f->effects[at].key == key) {
      const struct effect *e = &f->effects[at];
      size_t count = 1;
      while (at + count < f->effect_count && e[count].key == key && e[count].number == e->number) count++;
      at += count;
      if (e->number > last[key]) { /* tries whose number was never reached; an acknowledged one is lost */
        to->missing += e->acknowledged;
        continue;
      }
      to->missing += e->number - number - 1;
      number = e->number;
      check_number(e, count, &fence, to);
    }
    to->missing += last[key] - number;
  }
}

static void check_uses(const struct facts *f, struct lane_facts *to) {
  for (size_t i = 0; i < f->use_count; i++) {
    for (size_t j = i + 1; j < f->use_count; j++) {
      const struct use *a = &f->uses[i], *b = &f->uses[j];
      if (a->member == b->member || a->to <= b->from || b->to <= a->from) continue;
      to->overlaps += a->lanes == b->lanes && a->lane == b->lane;
      to->mixed += a->lanes != b->lanes;
    }
  }
}

bool lane_check(const char *folder, uint32_t members, const uint64_t *last, uint32_t keys, struct lane_facts *to) {
  struct facts f = {0};
  bool fine = true;
  *to = (struct lane_facts){0};
  for (uint32_t i = 0; i < members; i++) fine = read_member(&f, folder, i, to) && fine;
  check_effects(&f, last, keys, to);
  check_uses(&f, to);
  free(f.effects);
  free(f.uses);
  return fine;
}
