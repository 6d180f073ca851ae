/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_MAP_H
#define DIBS_BASE_MAP_H
/*
 * A hash table of nodes that live inside what they find; the caller hashes and compares.  Grows by itself when it can;
 * when memory is short it only gets slower, so adding never fails.  Not locked.
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
  size_t room, count; /* room: a power of two */
};

bool dibs__map_init(struct dibs__map *map); /* false: out of memory */
void dibs__map_free(struct dibs__map *map);
void dibs__map_add(struct dibs__map *map, struct dibs__map_node *node, uint64_t hash);
void dibs__map_remove(struct dibs__map *map, struct dibs__map_node *node); /* must be in */
/* The first node with this hash at or behind `from` in its chain: begin with dibs__map_head, go on with ->next. */
static inline struct dibs__map_node *dibs__map_head(const struct dibs__map *map, uint64_t hash) {
  return map->heads[hash & (map->room - 1)];
}
uint64_t dibs__hash(const void *bytes, size_t size);

#endif
