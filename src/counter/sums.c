/* SPDX-License-Identifier: MIT */
/* Sums by key: see sums.h. */
#include "counter/sums.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

typedef struct dibs__sums sums_t;
typedef struct dibs__sum sum_t;

/* The place of the key, or the empty place where it belongs. */
static sum_t *place_of(const sums_t *sums, const char *key, uint32_t len, uint64_t hash) {
  for (size_t at = hash & (sums->capacity - 1);; at = (at + 1) & (sums->capacity - 1)) {
    sum_t *s = &sums->places[at];
    if (!s->key || (s->hash == hash && s->len == len && memcmp(s->key, key, len) == 0)) return s;
  }
}

sum_t *dibs__sums_find(const sums_t *sums, const char *key, uint32_t len, uint64_t hash) {
  if (sums->capacity == 0) return NULL;
  sum_t *s = place_of(sums, key, len, hash);
  return s->key ? s : NULL;
}

/* At most half of the places are used, so that a search ends soon. */
bool dibs__sums_reserve(sums_t *sums, size_t more) {
  size_t capacity = sums->capacity ? sums->capacity : FIRST_CAPACITY;
  while ((sums->count + more) * 2 > capacity) capacity *= 2;
  if (capacity == sums->capacity) return true;
  sums_t larger = {.capacity = capacity, .count = sums->count};
  larger.places = calloc(larger.capacity, sizeof *larger.places);
  if (!larger.places) return false;
  for (size_t i = 0; i < sums->capacity; i++) {
    const sum_t *s = &sums->places[i];
    if (s->key) *place_of(&larger, s->key, s->len, s->hash) = *s;
  }
  free(sums->places);
  *sums = larger;
  return true;
}

sum_t *dibs__sums_make(sums_t *sums, const char *key, uint32_t len, uint64_t hash) {
  if (!dibs__sums_reserve(sums, 1)) return NULL;
  char *copy = malloc((size_t)len + 1);
  if (!copy) return NULL;
  memcpy(copy, key, len);
  copy[len] = '\0';
  sum_t *s = place_of(sums, key, len, hash);
  *s = (sum_t){.hash = hash, .key = copy, .len = len};
  sums->count++;
  return s;
}

bool dibs__sums_take(sums_t *sums, sums_t *from, sum_t *sum) {
  sum_t *s = place_of(sums, sum->key, sum->len, sum->hash);
  bool known = s->key != NULL;
  if (known) {
    int64_t end = sum->sum < 0 ? INT64_MIN : INT64_MAX;
    if (__builtin_add_overflow(s->sum, sum->sum, &s->sum)) s->sum = end;
    s->status = sum->status;
    free(sum->key);
  } else {
    *s = *sum;
    sums->count++;
  }
  sum->key = NULL;
  from->count--;
  return known;
}

sum_t *dibs__sums_next(const sums_t *sums, const sum_t *sum) {
  for (size_t i = sum ? (size_t)(sum - sums->places) + 1 : 0; i < sums->capacity; i++)
    if (sums->places[i].key) return &sums->places[i];
  return NULL;
}

static int compare_keys(const void *left, const void *right) {
  const sum_t *a = *(const sum_t *const *)left, *b = *(const sum_t *const *)right;
  uint32_t least = a->len < b->len ? a->len : b->len;
  int order = memcmp(a->key, b->key, least);
  return order ? order : (a->len > b->len) - (a->len < b->len);
}

sum_t **dibs__sums_sorted(const sums_t *sums) {
  size_t n = 0;
  if (sums->count == 0) return NULL;
  sum_t **all = malloc(sums->count * sizeof(sum_t *));
  if (!all) return NULL;
  for (sum_t *s = NULL; (s = dibs__sums_next(sums, s));) all[n++] = s;
  qsort(all, n, sizeof(sum_t *), compare_keys);
  return all;
}

void dibs__sums_clear(sums_t *sums) {
  for (size_t i = 0; i < sums->capacity; i++) free(sums->places[i].key);
  free(sums->places);
  *sums = (sums_t){NULL, 0, 0};
}
