/* SPDX-License-Identifier: MIT */
/*
 * Tasks by lane of the memory driver (store/task.h, R108 to R110): CLAIM with lanes.
 *
 * The kind has the largest fence that a CLAIM named for each lane of the present P.  When it grows, and when a lane of
 * another P is named first, all claims by lane of these slots end at once.  So those of one lane always have one fence,
 * and what this fence may claim next is in kind.heads and kind.keyed (task_rows.c).
 */
#include "base/slot.h"
#include "drivers/memory/task_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_task task;
typedef struct dibs__mem_kind kind;
typedef struct dibs__mem_tasks tasks;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_lane task_lane;

bool dibs__mem_lanes_valid(task_op *op) {
  if (op->lane_count == 0 && op->of_lanes == 0) return true;
  if (op->lane_count < 1 || op->lane_count > DIBS__TASK_LANES || !op->lanes)
    return dibs__mem_task_refuse(op, "a claim by lane names 1 to %d lanes", DIBS__TASK_LANES);
  if (op->of_lanes < 1 || op->of_lanes > DIBS__TASK_LANES)
    return dibs__mem_task_refuse(op, "a topic has 1 to %d lanes", DIBS__TASK_LANES);
  if (op->topic.len < 1 || op->topic.len > DIBS__TASK_TOPIC_MAX)
    return dibs__mem_task_refuse(op, "a topic has 1 to %d bytes", DIBS__TASK_TOPIC_MAX);
  if (op->phase_count) return dibs__mem_task_refuse(op, "a claim by lane names no phases");
  for (uint32_t i = 0; i < op->lane_count; i++) {
    const task_lane *lane = &op->lanes[i];
    if (lane->lane >= op->of_lanes || (i && lane->lane <= op->lanes[i - 1].lane))
      return dibs__mem_task_refuse(op, "lanes are named by number, each once, from 0 to of_lanes - 1");
    if (lane->fence.v == 0) return dibs__mem_task_refuse(op, "lane %u has no fence", lane->lane);
  }
  return true;
}

/* ---- The fences of lanes ---- */

/* Ends the claims by lane of these slots.  false: no memory, and some have not ended. */
static bool end_claims(tasks *all, kind *k, uint64_t first, uint64_t end, int64_t now) {
  const task before = {.slot = (uint32_t)first};
  for (task *t; (t = dibs__mem_order_next(k->held, &before, DIBS__MEM_BY_SLOT)) && t->slot < end;)
    if (!dibs__mem_task_end_late(all, t, now, now)) return false;
  return true;
}

/* Answers which lanes are STALE; whether any is not. */
static bool find_stale(const kind *k, const task_op *op) {
  bool same = k->lane_count == op->of_lanes, any = false;
  for (uint32_t i = 0; i < op->lane_count; i++) {
    task_lane *lane = &op->lanes[i];
    bool stale = lane->fence.v < (same ? k->floor.v : k->largest.v);
    if (same && lane->fence.v < k->lanes[lane->lane].v) stale = true;
    lane->status = stale ? DIBS_STALE : DIBS_OK;
    any = any || !stale;
  }
  return any;
}

/* No lane of this P has been named yet. */
static bool begin_lanes(kind *k, uint32_t count) {
  dibs__fence *lanes = calloc(count, sizeof *lanes);
  if (!lanes) return false;
  free(k->lanes);
  k->lanes = lanes;
  k->lane_count = count;
  k->floor = k->largest;
  return true;
}

static bool raise_fences(tasks *all, kind *k, const task_op *op, int64_t now) {
  for (uint32_t i = 0; i < op->lane_count; i++) {
    const task_lane *lane = &op->lanes[i];
    if (lane->status != DIBS_OK || lane->fence.v <= k->lanes[lane->lane].v) continue;
    uint64_t first = dibs__lane_slot(lane->lane, k->lane_count), end = dibs__lane_slot(lane->lane + 1, k->lane_count);
    if (!end_claims(all, k, first, end, now)) return false;
    k->lanes[lane->lane] = lane->fence;
    if (lane->fence.v > k->largest.v) k->largest = lane->fence;
  }
  return true;
}

kind *dibs__mem_lanes_begin(tasks *all, task_op *op, int64_t now) {
  kind *k = dibs__mem_kind_get(all, op->kind);
  op->op.status = DIBS_NO_MEMORY;
  if (!k) return NULL;
  dibs__str topic = dibs__str_of(k->topic, k->topic_len);
  if (topic.len && !dibs__str_equal(topic, op->topic)) {
    dibs__mem_task_refuse(op, "the kind belongs to the topic \"%.*s\"; dibs task kind --no-lanes ends that",
                          (int)(topic.len < 100 ? topic.len : 100), topic.p);
    return NULL;
  }
  bool any = find_stale(k, op);
  if (any && k->lane_count != op->of_lanes && !begin_lanes(k, op->of_lanes)) {
    dibs__mem_kind_drop_if_idle(all, k);
    return NULL;
  }
  k->has_settings = true;
  if (!k->topic_len) dibs__mem_kind_set_topic(all, k, op->topic, now);
  if (any && !raise_fences(all, k, op, now)) return NULL;
  op->op.status = DIBS_OK;
  return k;
}

dibs__fence dibs__mem_lanes_fence(const task_op *op, const task *t) {
  uint32_t first = 0, end = op->lane_count, wanted = dibs__slot_lane(t->slot, op->of_lanes);
  while (first < end) {
    uint32_t middle = first + (end - first) / 2;
    if (op->lanes[middle].lane < wanted)
      first = middle + 1;
    else
      end = middle;
  }
  bool named = first < op->lane_count && op->lanes[first].lane == wanted && op->lanes[first].status == DIBS_OK;
  return named ? op->lanes[first].fence : (dibs__fence){0};
}

/* ---- Picking ---- */

/* A head, and the later ones of its key. */
static uint32_t pick_key(const kind *k, task *head, uint32_t most, task **some) {
  uint32_t count = 0;
  for (task *t = head; count < most && t && t->state == DIBS__TASK_READY && dibs__str_equal(t->serial, head->serial);
       t = dibs__mem_order_next(k->keyed, t, DIBS__MEM_BY_KEY))
    some[count++] = t;
  return count;
}

static uint32_t pick_slots(const kind *k, uint64_t first, uint64_t end, uint32_t most, task **some) {
  uint32_t count = 0;
  const task before = {.slot = (uint32_t)first};
  task *t = first < end ? dibs__mem_order_next(k->heads, &before, DIBS__MEM_BY_SLOT) : NULL;
  for (; t && t->slot < end && count < most; t = dibs__mem_order_next(k->heads, t, DIBS__MEM_BY_SLOT))
    count += pick_key(k, t, most - count, some + count);
  return count;
}

/* In a slot with several keys the smallest number is first: so none of them waits for ever behind another. */
uint32_t dibs__mem_lanes_pick(const kind *k, task_op *op, uint32_t most, task **some) {
  uint64_t from = op->from;
  uint32_t count = 0;
  for (uint32_t round = 0; round < 2; round++)
    for (uint32_t i = 0; i < op->lane_count && count < most; i++) {
      if (op->lanes[i].status != DIBS_OK) continue;
      uint64_t first = dibs__lane_slot(op->lanes[i].lane, op->of_lanes);
      uint64_t end = dibs__lane_slot(op->lanes[i].lane + 1, op->of_lanes);
      if (round == 0 && first < from) first = from;
      if (round == 1 && end > from) end = from;
      count += pick_slots(k, first, end, most - count, some + count);
    }
  if (count) op->from = some[count - 1]->slot + 1;
  return count;
}

void dibs__mem_lanes_end(tasks *all, kind *k, int64_t now) {
  if (!k->topic_len) return;
  dibs__mem_kind_set_topic(all, k, dibs__str_of("", 0), now);
  free(k->lanes);
  k->lanes = NULL;
  k->lane_count = 0;
  k->largest = k->floor = (dibs__fence){0};
}
