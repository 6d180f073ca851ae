/* SPDX-License-Identifier: MIT */
/*
 * Who holds a name, and who is next.
 *
 * A claim stands in one of four rows of its name: holders, offered, waiting, asleep.  `waiting` is in the order of
 * tickets; the others in any order, a ticket says where in line they are.  Offers count as holders (R9), so all of
 * holders and offers have one mode, and one number of slots.
 */
#include "drivers/memory_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;

static claim *claim_of(struct dibs__map_node *link) {
  return (claim *)link;
}
static name *name_of(struct dibs__map_node *link) {
  return (name *)link;
}

/* ---- Rows ---- */

static struct dibs__mem_row *row_of(name *n, enum dibs__mem_state state) {
  switch (state) {
  case DIBS__MEM_OFFERED:
    return &n->offered;
  case DIBS__MEM_WAITING:
    return &n->waiting;
  case DIBS__MEM_ASLEEP:
    return &n->asleep;
  case DIBS__MEM_HOLDS:
  case DIBS__MEM_BREAKING:
    break;
  }
  return &n->holders;
}

static bool ends(enum dibs__mem_state state) {
  return state == DIBS__MEM_HOLDS || state == DIBS__MEM_BREAKING || state == DIBS__MEM_OFFERED;
}

static void row_take(struct dibs__mem_row *row, claim *c) {
  if (c->before)
    c->before->after = c->after;
  else
    row->first = c->after;
  if (c->after)
    c->after->before = c->before;
  else
    row->last = c->before;
  c->before = c->after = NULL;
  row->count--;
}

/* Before the first of a later ticket.  Who comes new goes to the end at once; who wakes up was near the front. */
static void row_put(struct dibs__mem_row *row, claim *c) {
  claim *next = NULL;
  if (row->last && row->last->ticket > c->ticket)
    for (next = row->first; next->ticket < c->ticket;) next = next->after;
  c->after = next;
  c->before = next ? next->before : row->last;
  if (c->before)
    c->before->after = c;
  else
    row->first = c;
  if (next)
    next->before = c;
  else
    row->last = c;
  row->count++;
}

/* Of holders and offers only the first matters to others, so a lower bound is enough until somebody asks. */
static void ends_then(name *n, int64_t until) {
  if (until > n->soonest) return;
  n->soonest = until;
  n->exact = true;
}
static void ends_no_more(name *n, int64_t until) {
  if (until == n->soonest) n->exact = false;
}

int64_t dibs__mem_soonest(name *n) {
  if (n->exact) return n->soonest;
  n->soonest = INT64_MAX;
  for (claim *c = n->holders.first; c; c = c->after)
    if (c->until < n->soonest) n->soonest = c->until;
  for (claim *c = n->offered.first; c; c = c->after)
    if (c->until < n->soonest) n->soonest = c->until;
  n->exact = true;
  return n->soonest;
}

/* ---- Names ---- */

name *dibs__mem_name_find(const struct dibs__memory *m, dibs__str text) {
  struct dibs__map_node *link = dibs__map_head(&m->names, dibs__hash(text.p, text.len));
  for (; link; link = link->next)
    if (dibs__str_equal(dibs__str_of(name_of(link)->text, name_of(link)->len), text)) return name_of(link);
  return NULL;
}

name *dibs__mem_name_get(struct dibs__memory *m, dibs__str text) {
  name *n = dibs__mem_name_find(m, text);
  if (n) return n;
  n = calloc(1, sizeof *n + text.len + 1);
  if (!n) return NULL;
  n->soonest = INT64_MAX;
  n->exact = true;
  n->len = text.len;
  memcpy(n->text, text.p, text.len);
  dibs__map_add(&m->names, &n->link, dibs__hash(text.p, text.len));
  return n;
}

void dibs__mem_name_drop_if_idle(struct dibs__memory *m, name *n) {
  if (n->holders.count || n->offered.count || n->waiting.count || n->asleep.count || n->breaks) return;
  dibs__map_remove(&m->names, &n->link);
  free(n);
}

/* ---- Claims ---- */

static uint64_t claim_hash(const name *n, dibs__id id) {
  return dibs__hash(id.b, sizeof id.b) ^ n->link.hash; /* one id may stand with several names */
}

claim *dibs__mem_claim_find(const struct dibs__memory *m, const name *n, dibs__id id) {
  struct dibs__map_node *link = dibs__map_head(&m->claims, claim_hash(n, id));
  for (; link; link = link->next)
    if (claim_of(link)->name == n && dibs__id_equal(claim_of(link)->id, id)) return claim_of(link);
  return NULL;
}

void dibs__mem_claim_link(struct dibs__memory *m, claim *c) {
  dibs__map_add(&m->claims, &c->link, claim_hash(c->name, c->id));
  row_put(row_of(c->name, c->state), c);
  if (ends(c->state)) ends_then(c->name, c->until);
}

claim *dibs__mem_claim_add(struct dibs__memory *m, name *n, const struct dibs__lease_op *op,
                           enum dibs__mem_state state) {
  claim *c = calloc(1, sizeof *c + op->owner.len + 1);
  if (!c) return NULL;
  c->name = n;
  c->id = op->id;
  c->state = state;
  c->mode = op->mode;
  c->slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  c->ttl_ms = op->ttl_ms;
  c->ticket = ++m->last_ticket;
  c->until = INT64_MAX;
  c->owner_len = op->owner.len;
  if (op->owner.len) memcpy(c->owner, op->owner.p, op->owner.len);
  dibs__mem_claim_link(m, c);
  return c;
}

void dibs__mem_claim_remove(struct dibs__memory *m, claim *c) {
  row_take(row_of(c->name, c->state), c);
  if (ends(c->state)) ends_no_more(c->name, c->until);
  dibs__map_remove(&m->claims, &c->link);
  free(c);
}

void dibs__mem_claim_become(claim *c, enum dibs__mem_state state, int64_t until) {
  name *n = c->name;
  if (ends(c->state)) ends_no_more(n, c->until);
  row_take(row_of(n, c->state), c);
  c->state = state;
  c->until = until;
  row_put(row_of(n, state), c);
  if (ends(state)) ends_then(n, until);
}

/* ---- Whose turn it is ---- */

bool dibs__mem_fits(const name *n, uint32_t mode, uint32_t slots) {
  const claim *other = n->holders.first ? n->holders.first : n->offered.first;
  if (!other) return true;
  if (other->mode != mode || mode == DIBS_EXCLUSIVE) return false;
  return mode == DIBS_SHARED || (other->slots == slots && n->holders.count + n->offered.count < slots);
}

uint32_t dibs__mem_free_slot(const name *n, uint32_t slots) {
  uint64_t used[(DIBS_SLOTS_MAX + 64) / 64];
  uint32_t slot = 0;
  assert(slots <= DIBS_SLOTS_MAX);
  memset(used, 0, (slots + 64) / 64 * sizeof *used);
  for (const claim *c = n->holders.first; c; c = c->after) used[c->slot / 64] |= UINT64_C(1) << c->slot % 64;
  while (used[slot / 64] & UINT64_C(1) << slot % 64) slot++;
  assert(slot < slots);
  return slot;
}

bool dibs__mem_draw(struct dibs__mem_bucket *bucket, uint32_t want, dibs__fence *first, uint32_t *block) {
  if (want == 0) want = 1;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (want > DIBS__SEQ_MAX - bucket->seq || bucket->served == DIBS__MEM_VOID) return false;
  *first = dibs__fence_make(bucket->mandate.epoch, bucket->seq + 1);
  *block = want;
  bucket->seq += want;
  return true;
}

/* An exclusive offer has its fence, so that who is offered may begin at once; the last one of an epoch has none. */
static void offer(struct dibs__memory *m, claim *c, int64_t now) {
  name *n = c->name;
  struct dibs__event event = {.what = DIBS__EV_OFFER, .id = c->id};
  c->first = DIBS__FENCE_NONE;
  c->block = 0;
  if (c->mode == DIBS_EXCLUSIVE &&
      dibs__mem_draw(&m->buckets[dibs__bucket((dibs__str){n->text, n->len})], 1, &c->first, &c->block)) {
    event.fence = c->first;
    event.held_until.ns = (now + DIBS__OFFER_MS - m->origin) * DIBS__NS_PER_MS;
  }
  c->granted = c->first;
  dibs__mem_claim_become(c, DIBS__MEM_OFFERED, now + DIBS__OFFER_MS);
  dibs__mem_post_event(m, c->session, &event);
}

void dibs__mem_pass_on(struct dibs__memory *m, name *n, int64_t now) {
  claim *c, *next;
  for (c = n->waiting.first; c; c = next) {
    next = c->after;
    if (!dibs__mem_alive(m, c->session)) {
      dibs__mem_claim_remove(m, c);
      continue;
    }
    if (!dibs__mem_fits(n, c->mode, c->slots)) break;
    offer(m, c, now);
  }
}

void dibs__mem_settle(struct dibs__memory *m, name *n, int64_t now) {
  claim *c, *next;
  if (n->soonest <= now) {
    for (c = n->holders.first; c; c = next) {
      next = c->after;
      if (c->until <= now) dibs__mem_claim_remove(m, c);
    }
    for (c = n->offered.first; c; c = next) {
      next = c->after;
      if (c->until <= now) dibs__mem_claim_become(c, DIBS__MEM_ASLEEP, INT64_MAX);
    }
    (void)dibs__mem_soonest(n);
  }
  dibs__mem_pass_on(m, n, now);
}

static bool goes(const struct dibs__memory *m, const claim *c, uint64_t session) {
  return session ? c->session == session : !dibs__mem_alive(m, c->session);
}

static void sweep_row(struct dibs__memory *m, struct dibs__mem_row *row, uint64_t session) {
  claim *c, *next;
  for (c = row->first; c; c = next) {
    next = c->after;
    if (goes(m, c, session)) dibs__mem_claim_remove(m, c);
  }
}

static bool any_goes(const struct dibs__memory *m, const struct dibs__mem_row *row, uint64_t session) {
  const claim *c = row->first;
  while (c && !goes(m, c, session)) c = c->after;
  return c != NULL;
}

void dibs__mem_sweep_name(struct dibs__memory *m, name *n, uint64_t session, int64_t now) {
  if (!any_goes(m, &n->waiting, session) && !any_goes(m, &n->asleep, session) && !any_goes(m, &n->offered, session))
    return;
  dibs__mem_settle(m, n, now);
  sweep_row(m, &n->waiting, session);
  sweep_row(m, &n->asleep, session);
  sweep_row(m, &n->offered, session);
  dibs__mem_pass_on(m, n, now);
}
