/* SPDX-License-Identifier: MIT */
#include "base/heap.h"

#include <assert.h>
#include <stdlib.h>

bool dibs__heap_reserve(struct dibs__heap *heap, uint32_t count) {
  if (count <= heap->capacity) return true;
  uint32_t capacity = heap->capacity ? heap->capacity : 16;
  while (capacity < count) capacity += capacity / 4;
  struct dibs__heap_node **nodes = realloc(heap->nodes, capacity * sizeof *nodes);
  if (!nodes) return false;
  heap->nodes = nodes;
  heap->capacity = capacity;
  return true;
}

void dibs__heap_free(struct dibs__heap *heap) {
  free(heap->nodes);
  *heap = (struct dibs__heap){0};
}

static void set_node(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  heap->nodes[i] = node;
  node->position = i + 1;
}

static void rise(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  while (i > 0) {
    uint32_t parent = (i - 1) / 2;
    if (!dibs__tick_before(node->at, heap->nodes[parent]->at)) break;
    set_node(heap, i, heap->nodes[parent]);
    i = parent;
  }
  set_node(heap, i, node);
}

static void sink(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= heap->count) break;
    if (child + 1 < heap->count && dibs__tick_before(heap->nodes[child + 1]->at, heap->nodes[child]->at)) child++;
    if (!dibs__tick_before(heap->nodes[child]->at, node->at)) break;
    set_node(heap, i, heap->nodes[child]);
    i = child;
  }
  set_node(heap, i, node);
}

void dibs__heap_set(struct dibs__heap *heap, struct dibs__heap_node *node, dibs__tick at) {
  if (node->position == 0) {
    assert(heap->count < heap->capacity);
    node->at = at;
    heap->count++;
    rise(heap, heap->count - 1, node);
    return;
  }
  bool earlier = dibs__tick_before(at, node->at);
  node->at = at;
  if (earlier)
    rise(heap, node->position - 1, node);
  else
    sink(heap, node->position - 1, node);
}

void dibs__heap_remove(struct dibs__heap *heap, struct dibs__heap_node *node) {
  uint32_t i = node->position - 1;
  if (node->position == 0 || i >= heap->count || heap->nodes[i] != node) return;
  node->position = 0;
  struct dibs__heap_node *last = heap->nodes[--heap->count];
  if (last == node) return;
  if (i > 0 && dibs__tick_before(last->at, heap->nodes[(i - 1) / 2]->at))
    rise(heap, i, last);
  else
    sink(heap, i, last);
}
