/* SPDX-License-Identifier: MIT */
#include "base/heap.h"

#include <assert.h>
#include <stdlib.h>

bool dibs__heap_reserve(struct dibs__heap *heap, uint32_t count) {
  if (count <= heap->room) return true;
  uint32_t room = heap->room ? heap->room : 16;
  while (room < count) room += room / 4;
  struct dibs__heap_node **nodes = realloc(heap->nodes, room * sizeof *nodes);
  if (!nodes) return false;
  heap->nodes = nodes;
  heap->room = room;
  return true;
}

void dibs__heap_free(struct dibs__heap *heap) {
  free(heap->nodes);
  *heap = (struct dibs__heap){0};
}

static void put(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  heap->nodes[i] = node;
  node->place = i + 1;
}

static void rise(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  while (i > 0) {
    uint32_t parent = (i - 1) / 2;
    if (!dibs__tick_before(node->at, heap->nodes[parent]->at)) break;
    put(heap, i, heap->nodes[parent]);
    i = parent;
  }
  put(heap, i, node);
}

static void sink(struct dibs__heap *heap, uint32_t i, struct dibs__heap_node *node) {
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= heap->count) break;
    if (child + 1 < heap->count && dibs__tick_before(heap->nodes[child + 1]->at, heap->nodes[child]->at)) child++;
    if (!dibs__tick_before(heap->nodes[child]->at, node->at)) break;
    put(heap, i, heap->nodes[child]);
    i = child;
  }
  put(heap, i, node);
}

void dibs__heap_set(struct dibs__heap *heap, struct dibs__heap_node *node, dibs__tick at) {
  if (node->place == 0) {
    assert(heap->count < heap->room);
    node->at = at;
    heap->count++;
    rise(heap, heap->count - 1, node);
    return;
  }
  bool earlier = dibs__tick_before(at, node->at);
  node->at = at;
  if (earlier)
    rise(heap, node->place - 1, node);
  else
    sink(heap, node->place - 1, node);
}

void dibs__heap_remove(struct dibs__heap *heap, struct dibs__heap_node *node) {
  uint32_t i = node->place - 1;
  if (node->place == 0 || i >= heap->count || heap->nodes[i] != node) return;
  node->place = 0;
  struct dibs__heap_node *last = heap->nodes[--heap->count];
  if (last == node) return;
  if (i > 0 && dibs__tick_before(last->at, heap->nodes[(i - 1) / 2]->at))
    rise(heap, i, last);
  else
    sink(heap, i, last);
}
