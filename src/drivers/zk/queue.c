/* SPDX-License-Identifier: MIT */
/*
 * The children of a name: who holds it, who waits, whom a waiter watches.
 *
 * ZooKeeper numbers the children of a node in the order in which they were created, and creates none before another
 * one afterwards.  So the children decide everything: an exclusive lease holds if no child is before it, a shared one
 * if no exclusive child is.  A waiter watches the last child that excludes it; the others are of no interest to it.
 */
#include "drivers/zk/zk_impl.h"

#include <stdlib.h>
#include <string.h>

enum { DIGEST = 16, HEAD = DIGEST + 3 }; /* "0123456789abcdef-x-" */

bool dibs__zk_child_read(const char *name, struct dibs__zk_child *child) {
  if (strspn(name, "0123456789abcdef") != DIGEST || name[DIGEST] != '-' || name[DIGEST + 2] != '-') return false;
  char mode = name[DIGEST + 1], *end;
  if (mode != 'x' && mode != 's') return false;
  long seq = strtol(name + HEAD, &end, 10); /* it becomes negative after 2147483647 */
  if (end == name + HEAD || *end != '\0') return false;
  child->name = name;
  memcpy(child->digest, name, DIGEST);
  child->digest[DIGEST] = '\0';
  child->shared = mode == 's';
  child->seq = (int32_t)seq;
  return true;
}

/* The holders among the children: the first one if it is exclusive, else all shared ones before an exclusive one. */
static uint32_t count_holders(const struct dibs__zk_slot *children) {
  struct dibs__zk_child child, first = {.seq = 0}, writer = {.seq = 0};
  bool any = false, any_writer = false;
  uint32_t count = 0;
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    if (!any || dibs__zk_before(child.seq, first.seq)) first = child;
    if (!child.shared && (!any_writer || dibs__zk_before(child.seq, writer.seq))) writer = child, any_writer = true;
    any = true;
  }
  if (!any || !first.shared) return any;
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    count += !any_writer || dibs__zk_before(child.seq, writer.seq);
  }
  return count;
}

void dibs__zk_position(const struct dibs__zk_slot *children, int32_t seq, bool shared,
                       struct dibs__zk_position *position) {
  uint32_t before = 0, holders = count_holders(children);
  *position = (struct dibs__zk_position){.exists = false};
  for (int i = 0; i < children->count; i++) {
    struct dibs__zk_child child;
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    bool excludes = !shared || !child.shared;
    if (child.seq == seq) {
      position->exists = true;
    } else if (!dibs__zk_before(child.seq, seq)) {
      position->waiting = position->waiting || excludes;
    } else {
      before++;
      if (excludes && position->blockers++ && !dibs__zk_before(position->last.seq, child.seq)) continue;
      if (excludes) position->last = child;
    }
  }
  position->ahead = before > holders ? before - holders : 0;
}

static int by_seq(const void *a, const void *b) {
  const struct dibs__zk_child *x = a, *y = b;
  return x->seq == y->seq ? 0 : dibs__zk_before(x->seq, y->seq) ? -1 : 1;
}

size_t dibs__zk_sorted(const struct dibs__zk_slot *children, struct dibs__zk_child **sorted, size_t *holders) {
  size_t count = 0;
  *holders = 0;
  *sorted = calloc(children->count > 0 ? (size_t)children->count : 1, sizeof **sorted);
  if (!*sorted) return 0;
  for (int i = 0; i < children->count; i++) count += dibs__zk_child_read(children->names[i], &(*sorted)[count]);
  qsort(*sorted, count, sizeof **sorted, by_seq);
  if (count) *holders = 1;
  while (count && (*sorted)[0].shared && *holders < count && (*sorted)[*holders].shared) (*holders)++;
  return count;
}
