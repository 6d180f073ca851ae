/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_HEAP_H
#define DIBS_BASE_HEAP_H
/*
 * A binary heap of instants.  A node is part of the object that it times.  Once capacity was reserved, adding a node
 * never allocates, so that renewing and releasing cannot fail.  Not locked.
 */
#include "base/port.h"

struct dibs__heap_node {
  dibs__tick at;
  uint32_t position; /* 0: not in a heap; else index + 1 */
};

struct dibs__heap {
  struct dibs__heap_node **nodes;
  uint32_t count, capacity;
};

/* Reserves capacity for `count` nodes in total; false: out of memory, nothing changed. */
bool dibs__heap_reserve(struct dibs__heap *heap, uint32_t count);
void dibs__heap_free(struct dibs__heap *heap);
/* Adds the node, or moves it if it is in the heap already.  Capacity must be reserved. */
void dibs__heap_set(struct dibs__heap *heap, struct dibs__heap_node *node, dibs__tick at);
void dibs__heap_remove(struct dibs__heap *heap,
                       struct dibs__heap_node *node); /* no effect if it is in no heap, or in another one */
static inline struct dibs__heap_node *dibs__heap_first(const struct dibs__heap *heap) {
  return heap->count ? heap->nodes[0] : NULL;
}

#endif
