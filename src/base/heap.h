/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_HEAP_H
#define DIBS_BASE_HEAP_H
/*
 * A binary heap of instants.  Nodes live inside what they time; adding never allocates once room was reserved, so that
 * renewing and releasing can't fail.  Not locked.
 */
#include "base/port.h"

struct dibs__heap_node {
  dibs__tick at;
  uint32_t place; /* 0: not in a heap; else index + 1 */
};

struct dibs__heap {
  struct dibs__heap_node **nodes;
  uint32_t count, room;
};

/* Makes room for `count` nodes in all; false: out of memory, nothing changed. */
bool dibs__heap_reserve(struct dibs__heap *heap, uint32_t count);
void dibs__heap_free(struct dibs__heap *heap);
/* Adds, or moves if it is there already.  Room must be reserved. */
void dibs__heap_set(struct dibs__heap *heap, struct dibs__heap_node *node, dibs__tick at);
void dibs__heap_remove(struct dibs__heap *heap, struct dibs__heap_node *node); /* fine when in none, or in another */
static inline struct dibs__heap_node *dibs__heap_first(const struct dibs__heap *heap) {
  return heap->count ? heap->nodes[0] : NULL;
}

#endif
