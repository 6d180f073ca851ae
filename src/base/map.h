/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_MAP_H
#define DIBS_BASE_MAP_H
/*
 * A hash table.  A node is part of the object that it finds; the caller hashes and compares.  The table grows when
 * memory allows; without memory it only gets slower, so adding never fails.  Not locked.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__map_node {
  struct dibs__map_node *next;
  uint64_t hash;
};

struct dibs__map {
  struct dibs__map_node **heads;
  size_t capacity, count; /* capacity: a power of two */
};

bool dibs__map_init(struct dibs__map *map); /* false: out of memory */
void dibs__map_free(struct dibs__map *map);
void dibs__map_add(struct dibs__map *map, struct dibs__map_node *node, uint64_t hash);
void dibs__map_remove(struct dibs__map *map, struct dibs__map_node *node); /* the node must be in the map */
/* The first node with this hash, from `from` on in its chain: begin with dibs__map_head, continue with ->next. */
static inline struct dibs__map_node *dibs__map_head(const struct dibs__map *map, uint64_t hash) {
  return map->heads[hash & (map->capacity - 1)];
}
uint64_t dibs__hash(const void *bytes, size_t size);

#endif
