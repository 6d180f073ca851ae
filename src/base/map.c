/* SPDX-License-Identifier: MIT */
#include "base/map.h"
#include "base/port.h"

#include "base/port.h"

#include <assert.h>
#include <stdlib.h>

DIBS__MODULE_API bool dibs__map_init(struct dibs__map *map) {
  *map = (struct dibs__map){.capacity = 64};
  map->heads = calloc(map->capacity, sizeof(*map->heads));
  return map->heads != NULL;
}

DIBS__MODULE_API void dibs__map_free(struct dibs__map *map) {
  free(map->heads);
  *map = (struct dibs__map){0};
}

static void grow(struct dibs__map *map) {
  size_t capacity = map->capacity * 2;
  struct dibs__map_node **heads = calloc(capacity, sizeof(*heads));
  if (!heads) return;
  for (size_t i = 0; i < map->capacity; i++) {
    for (struct dibs__map_node *node = map->heads[i], *next; node; node = next) {
      next = node->next;
      node->next = heads[node->hash & (capacity - 1)];
      heads[node->hash & (capacity - 1)] = node;
    }
  }
  free(map->heads);
  map->heads = heads;
  map->capacity = capacity;
}

DIBS__MODULE_API void dibs__map_add(struct dibs__map *map, struct dibs__map_node *node, uint64_t hash) {
  if (map->count >= map->capacity) grow(map);
  node->hash = hash;
  node->next = map->heads[hash & (map->capacity - 1)];
  map->heads[hash & (map->capacity - 1)] = node;
  map->count++;
}

DIBS__MODULE_API void dibs__map_remove(struct dibs__map *map, struct dibs__map_node *node) {
  struct dibs__map_node **at = &map->heads[node->hash & (map->capacity - 1)];
  while (*at != node) {
    assert(*at);
    at = &(*at)->next;
  }
  *at = node->next;
  node->next = NULL;
  map->count--;
}

DIBS__MODULE_API uint64_t dibs__hash(const void *bytes, size_t size) {
  const unsigned char *p = bytes;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < size; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
  return hash ^ (hash >> 32);
}
