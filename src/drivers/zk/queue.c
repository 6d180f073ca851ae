/* SPDX-License-Identifier: MIT */
/*
 * The children of a name: who holds it, who waits, what a waiter watches.
 *
 * ZooKeeper numbers the children of a node in the order in which they were created, and creates none before another
 * one afterwards.  So the children decide everything: an exclusive lease holds if no child is before it, a shared one
 * if only shared ones are, a counted one of N if fewer than N are and all of them are counted ones of N.  No later
 * child changes that.  Which slot a counted lease has, the order can't say: a node `slot-K` beside the others keeps it.
 *
 * What changes the answer for a waiter?
 *   - A node that excludes it.  It watches the last one, and no other, until that is gone.
 *   - If fewer than N are behind that node or none excludes it, but too many counted ones are before it: the first
 *     waiter watches the children, because any holder may end.  Every other one watches the node before it alone, until
 *     that one is granted or gone, and is the first waiter then.  So a release is read by one waiter.
 */
#include "drivers/zk/zk_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST = 16 }; /* of "0123456789abcdef-x-", or -s- or -c5- */
enum { WORD_BITS = 64, WORDS = DIBS_SLOTS_MAX / WORD_BITS + 1 };

static const char slot_prefix[] = "slot-";

/* A number without a sign, blanks and zeros before it; NULL: there is none up to `most`. */
static const char *read_number(const char *text, uint32_t most, uint32_t *number) {
  uint64_t value = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9' && value <= most; at++) value = value * 10 + (uint64_t)(*at - '0');
  if (at == text || value > most || (*text == '0' && at > text + 1)) return NULL;
  *number = (uint32_t)value;
  return at;
}

static const char *read_mode(const char *at, struct dibs__zk_child *child) {
  child->slots = 0;
  child->mode = *at == 'x' ? DIBS_EXCLUSIVE : *at == 's' ? DIBS_SHARED : DIBS_COUNTED;
  if (child->mode != DIBS_COUNTED) return at + 1;
  return *at == 'c' ? read_number(at + 1, DIBS_SLOTS_MAX, &child->slots) : NULL;
}

bool dibs__zk_child_read(const char *name, struct dibs__zk_child *child) {
  if (strspn(name, "0123456789abcdef") != DIGEST || name[DIGEST] != '-') return false;
  const char *at = read_mode(name + DIGEST + 1, child);
  if (!at || *at++ != '-' || (child->mode == DIBS_COUNTED && child->slots == 0)) return false;
  char *end;
  long seq = strtol(at, &end, 10); /* it becomes negative after 2147483647 */
  if (end == at || *end != '\0') return false;
  child->name = name;
  memcpy(child->digest, name, DIGEST);
  child->digest[DIGEST] = '\0';
  child->seq = (int32_t)seq;
  return true;
}

bool dibs__zk_pick_node(const struct dibs__zk_slot *children, struct dibs__zk_hold *h, const int32_t *below) {
  struct dibs__zk_child child, latest = {.name = NULL};
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child) || strcmp(child.digest, h->digest) != 0) continue;
    if (h->node[0] ? strcmp(child.name, h->node) != 0 : below && !dibs__zk_before(child.seq, *below)) continue;
    if (!latest.name || dibs__zk_before(latest.seq, child.seq)) latest = child;
  }
  snprintf(h->node, sizeof h->node, "%s", latest.name ? latest.name : "");
  return latest.name != NULL;
}

bool dibs__zk_pass_over(struct dibs__zk_hold *h, int32_t *below) {
  struct dibs__zk_child child;
  bool is_node = dibs__zk_child_read(h->node, &child);
  if (is_node) *below = child.seq;
  h->node[0] = '\0';
  return is_node;
}

static bool alike(const struct dibs__zk_child *a, uint32_t mode, uint32_t slots) {
  return mode != DIBS_EXCLUSIVE && a->mode == mode && a->slots == slots;
}

/* ---- Slots ---- */

const char *dibs__zk_slot_node(uint32_t slot, char to[DIBS__ZK_SLOT_NODE]) {
  snprintf(to, DIBS__ZK_SLOT_NODE, "%s%u", slot_prefix, slot);
  return to;
}

/* The smallest free slot for the first of those that hold and have none yet, the next one for the second: so that they
 * do not try the same.  `before` holders are before this one. */
static uint32_t free_slot(const struct dibs__zk_slot *children, uint32_t slots, uint32_t before) {
  uint64_t used[WORDS] = {0};
  uint32_t taken = 0, found = DIBS__ZK_NO_SLOT;
  for (int i = 0; i < children->count; i++) {
    uint32_t slot;
    const char *name = children->names[i], *end;
    if (strncmp(name, slot_prefix, sizeof slot_prefix - 1) != 0) continue;
    end = read_number(name + sizeof slot_prefix - 1, slots - 1, &slot);
    if (!end || *end != '\0') continue;
    used[slot / WORD_BITS] |= UINT64_C(1) << slot % WORD_BITS;
    taken++;
  }
  uint32_t skip = before > taken ? before - taken : 0;
  for (uint32_t slot = 0; slot < slots; slot++) {
    if (used[slot / WORD_BITS] & UINT64_C(1) << slot % WORD_BITS) continue;
    found = slot;
    if (skip-- == 0) break;
  }
  return found;
}

/* ---- Positions ---- */

/* The holders among the children: the first one, and those like it before the first other one. */
static uint32_t count_holders(const struct dibs__zk_slot *children, struct dibs__zk_child *first) {
  struct dibs__zk_child child, other = {.seq = 0};
  bool any = false, any_other = false;
  uint32_t count = 0;
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    if (!any || dibs__zk_before(child.seq, first->seq)) *first = child;
    any = true;
  }
  if (!any || first->mode == DIBS_EXCLUSIVE) return any;
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child) || alike(&child, first->mode, first->slots)) continue;
    if (!any_other || dibs__zk_before(child.seq, other.seq)) other = child;
    any_other = true;
  }
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    count += !any_other || dibs__zk_before(child.seq, other.seq);
  }
  return first->mode == DIBS_COUNTED && count > first->slots ? first->slots : count;
}

struct around {
  uint32_t blockers, peers_before, peers_behind, peers_after; /* behind: the last blocker, and before this one */
  bool others_after;
  struct dibs__zk_child last, nearest; /* of the blockers; of all before it */
};

static void look_around(const struct dibs__zk_slot *children, const struct dibs__zk_child *self, struct around *around,
                        bool *exists) {
  struct dibs__zk_child child;
  *exists = false;
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child)) continue;
    bool peer = alike(&child, self->mode, self->slots), before = dibs__zk_before(child.seq, self->seq);
    if (child.seq == self->seq) {
      *exists = true;
    } else if (!before) {
      around->peers_after += peer;
      around->others_after = around->others_after || !peer;
    } else {
      bool any = around->peers_before + around->blockers > 0;
      if (!any || dibs__zk_before(around->nearest.seq, child.seq)) around->nearest = child;
      if (!peer && (!around->blockers || dibs__zk_before(around->last.seq, child.seq))) around->last = child;
      around->peers_before += peer;
      around->blockers += !peer;
    }
  }
  for (int i = 0; i < children->count; i++) {
    if (!dibs__zk_child_read(children->names[i], &child) || !alike(&child, self->mode, self->slots)) continue;
    if (!dibs__zk_before(child.seq, self->seq)) continue;
    around->peers_behind += !around->blockers || dibs__zk_before(around->last.seq, child.seq);
  }
}

void dibs__zk_position(const struct dibs__zk_slot *children, const struct dibs__zk_child *self,
                       struct dibs__zk_position *position) {
  struct around a = {.blockers = 0};
  struct dibs__zk_child first = {.seq = 0};
  uint32_t holders = count_holders(children, &first);
  bool counted = self->mode == DIBS_COUNTED;
  *position = (struct dibs__zk_position){.slot = DIBS__ZK_NO_SLOT};
  look_around(children, self, &a, &position->exists);
  uint32_t before = a.blockers + a.peers_before;
  position->blockers = a.blockers;
  position->free = a.blockers == 0 && (!counted || a.peers_before < self->slots);
  position->ahead = before > holders ? before - holders : 0;
  position->waiting = a.others_after || (counted && a.peers_before + 1 + a.peers_after > self->slots);
  position->unlike = counted && holders && first.mode == DIBS_COUNTED && first.slots != self->slots;
  if (position->free) {
    if (counted) position->slot = free_slot(children, self->slots, a.peers_before);
    position->watch = DIBS__ZK_WATCH_CHILDREN; /* of use only if no slot is free */
  } else if (a.blockers && (!counted || a.peers_behind < self->slots)) {
    position->watch = DIBS__ZK_WATCH_GONE;
    position->watched = a.last;
  } else if (a.blockers == 0 && a.peers_before == self->slots) {
    position->watch = DIBS__ZK_WATCH_CHILDREN;
  } else {
    position->watch = DIBS__ZK_WATCH_BEFORE;
    position->watched = a.nearest;
  }
}

static int by_seq(const void *a, const void *b) {
  const struct dibs__zk_child *x = a, *y = b;
  return x->seq == y->seq ? 0 : dibs__zk_before(x->seq, y->seq) ? -1 : 1;
}

size_t dibs__zk_sorted(const struct dibs__zk_slot *children, struct dibs__zk_child **sorted, size_t *holders) {
  size_t count = 0;
  struct dibs__zk_child first;
  *holders = 0;
  *sorted = calloc(children->count > 0 ? (size_t)children->count : 1, sizeof **sorted);
  if (!*sorted) return 0;
  for (int i = 0; i < children->count; i++) count += dibs__zk_child_read(children->names[i], &(*sorted)[count]);
  qsort(*sorted, count, sizeof **sorted, by_seq);
  *holders = count_holders(children, &first);
  return count;
}
