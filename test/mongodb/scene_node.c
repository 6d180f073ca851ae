/* SPDX-License-Identifier: MIT */
/*
 * scene_node URI COLLECTION NUMBER fence|shared|polled: a node of test_scene.c, which ticks until it is killed.
 *
 *   fence    claims through dibs; guards its own updates by the fence
 *   shared   the same, by the fence and by lockedAt: programs without dibs work on the same collection
 *   polled   without dibs, as such programs were written: a findAndModify by lockedAt, sorted by lockedAt and
 * updatedAt, and its updates guarded by lockedAt
 */
#include "scene.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct node {
  int number;
  bool shared, polled;
  dibs_table *table;
};

/* A document that this node has claimed. */
struct claimed {
  int64_t id, locked_ms, waited_ms;
  uint64_t fence;
  char phase[24];
  struct dibs__task_item item;
};

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- Claims ---- */

static bool claim_by_dibs(const struct node *n, struct claimed *c) {
  const struct dibs__task_op *op = claim_for(n->table, 1, SCENE_TIMEOUT_MS, "Creating", "Deleting");
  if (op->got_count == 0) return false;
  const struct dibs__task_row *row = row_of(op, 0);
  *c = (struct claimed){.id = strtoll(row->key.p, NULL, 10),
                        .locked_ms = row->began_ms,
                        .waited_ms = row->began_ms - row->at_ms,
                        .fence = row->fence.v,
                        .item = item_of(row)};
  snprintf(c->phase, sizeof c->phase, "%s", row->phase.p);
  return true;
}

static bool claim_by_hand(struct claimed *c) {
  int64_t now = now_ms();
  bson_iter_t at;
  bson_t *found = find_and_modify("{'findAndModify':'%s','query':{'phase':{'$in':['Creating','Deleting']},"
                                  "'lockedAt':{'$lte':{'$date':{'$numberLong':'%" PRId64
                                  "'}}}},'sort':{'lockedAt':1,'updatedAt':1},"
                                  "'update':{'$set':{'lockedAt':{'$date':{'$numberLong':'%" PRId64 "'}}}},'new':true}",
                                  gateways(), now - SCENE_TIMEOUT_MS, now);
  if (!found) return false;
  *c = (struct claimed){.locked_ms = now};
  assert_true(bson_iter_init_find(&at, found, "_id"));
  c->id = bson_iter_as_int64(&at);
  assert_true(bson_iter_init_find(&at, found, "phase"));
  snprintf(c->phase, sizeof c->phase, "%s", bson_iter_utf8(&at, NULL));
  bson_destroy(found);
  return true;
}

/* The document, if the claim is still this node's. */
static const char *mine(const struct node *n, const struct claimed *c) {
  static char text[200];
  char fence[48] = "", locked[80] = "";
  if (!n->polled) snprintf(fence, sizeof fence, ",'fence':{'$numberLong':'%" PRIu64 "'}", c->fence);
  if (n->polled || n->shared)
    snprintf(locked, sizeof locked, ",'lockedAt':{'$date':{'$numberLong':'%" PRId64 "'}}", c->locked_ms);
  snprintf(text, sizeof text, "{'_id':%" PRId64 "%s%s}", c->id, fence, locked);
  return text;
}

/* ---- Work ---- */

/* Also if the claim is another node's. */
static void change_any(const struct claimed *c, const char *change_it) {
  char filter[40];
  snprintf(filter, sizeof filter, "{'_id':%" PRId64 "}", c->id);
  update(filter, change_it);
}

/* A step and the record of it are one update, which takes effect if the claim is still this node's.  `busy`: this node
 * is in the middle of the step. */
static bool do_step(const struct node *n, const struct claimed *c, int step) {
  char text[200];
  snprintf(text, sizeof text, "{'$set':{'busy.n%d':%d}}", n->number, step);
  change_any(c, text);
  dibs__nap_ms(SCENE_WORK_MS);
  snprintf(text, sizeof text, "{'$set':{'state':%d},'$push':{'done':{'step':%d,'node':%d}},'$unset':{'busy.n%d':1}}",
           step + 1, step, n->number, n->number);
  if (update(mine(n, c), text) > 0) return true;
  snprintf(text, sizeof text, "{'$unset':{'busy.n%d':1},'$push':{'refused':{'step':%d,'by':%d}}}", n->number, step,
           n->number);
  change_any(c, text);
  return false;
}

static dibs_status end_by_dibs(const struct node *n, const struct claimed *c, enum dibs__task_verdict verdict,
                               const char *phase) {
  struct dibs__task_item item = c->item;
  struct dibs__task_op *op = task_make(n->table);
  item.verdict = verdict;
  item.phase = dibs__str_of(phase, strlen(phase));
  item.delay_ms = c->waited_ms > 0 ? c->waited_ms / 10 : 0;
  op->timeout_ms = SCENE_TIMEOUT_MS;
  op->items = &item;
  op->count = 1;
  task_carry(op, DIBS__TASK_END, DIBS_OK);
  if (item.status != DIBS_OK && item.status != DIBS_STALE) fail_msg("end: %s", op->why);
  return (dibs_status)item.status;
}

/* dibs refuses what the node's own update refused. */
static bool do_step_and_compare(const struct node *n, const struct claimed *c, int step) {
  if (do_step(n, c, step)) return true;
  if (!n->polled && end_by_dibs(n, c, DIBS__TASK_END_NEXT, "Lost") != DIBS_STALE) fail_msg("a stale end was accepted");
  return false;
}

static void unlock(const struct node *n, const struct claimed *c, const char *phase) {
  char text[200], set[40] = "";
  if (!n->polled) {
    (void)end_by_dibs(n, c, DIBS__TASK_END_NEXT, phase);
    return;
  }
  if (*phase) snprintf(set, sizeof set, "'phase':'%s',", phase);
  snprintf(text, sizeof text, "{'$set':{%s'lockedAt':%s,'updatedAt':%s}}", set, never(), ago(0));
  update(mine(n, c), text);
}

/* A creation waits for its certificate: the longer it has waited, the later it looks again. */
static void create(const struct node *n, const struct claimed *c) {
  bool ready = count("{'_id':%" PRId64 ",'certificate':{'$lte':{'$numberLong':'%" PRId64 "'}}}", c->id, now_ms()) > 0;
  if (ready) {
    if (do_step_and_compare(n, c, SCENE_CREATED)) unlock(n, c, "Created");
  } else if (n->polled) {
    unlock(n, c, "");
  } else {
    (void)end_by_dibs(n, c, DIBS__TASK_END_WAIT, "");
  }
}

static void delete_one(const struct node *n, const struct claimed *c) {
  int step = 0;
  while (step < SCENE_STEPS && count("{'_id':%" PRId64 ",'state':%d}", c->id, step) == 0) step++;
  /* A node before this one may have died between its last step and the end of its claim. */
  if (step < SCENE_STEPS && !do_step_and_compare(n, c, step++)) return;
  unlock(n, c, step >= SCENE_STEPS ? "Deleted" : "");
}

int main(int argc, char *argv[]) {
  if (argc != 5) return 2;
  struct node n = {.number = (int)strtol(argv[3], NULL, 10),
                   .shared = strcmp(argv[4], "shared") == 0,
                   .polled = strcmp(argv[4], "polled") == 0};
  bed_begin(argv[1]);
  (void)case_begin(NULL);
  case_is(argv[2]);
  if (!n.polled) n.table = gateway();
  for (;; dibs__nap_ms(SCENE_TICK_MS)) {
    struct claimed c;
    bool got = n.polled ? claim_by_hand(&c) : claim_by_dibs(&n, &c);
    if (got && strcmp(c.phase, "Creating") == 0)
      create(&n, &c);
    else if (got)
      delete_one(&n, &c);
    case_drop();
  }
}
