/* SPDX-License-Identifier: MIT */
/* A batch of additions with its id, and one attempt to send it. */
#include "counter/counter_impl.h"
#include "handle/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__count_batch batch_t;

bool dibs__count_seal(struct dibs__count_source *source, batch_t *batch) {
  batch->sorted = dibs__sums_sorted(&batch->sums);
  if (!batch->sorted) return false;
  batch->sequence = ++source->last;
  batch->status = DIBS_UNKNOWN;
  return true;
}

void dibs__count_batch_clear(batch_t *batch) {
  free(batch->sorted);
  batch->sorted = NULL;
  dibs__sums_clear(&batch->sums);
}

static uint32_t lane_of(const struct dibs__count_source *source) {
  uint32_t lane;
  memcpy(&lane, source->id.b, sizeof lane);
  return lane ? lane : 1;
}

static struct dibs__request *make_request(struct dibs__count_group *group, const struct dibs__count_source *source,
                                          const batch_t *batch) {
  size_t count = batch->sums.count, bytes = count * sizeof(struct dibs__counter_item);
  for (size_t i = 0; i < count; i++) bytes += (size_t)batch->sorted[i]->len + 1;
  struct dibs__request *request = dibs__request_make(group->counters->store, DIBS__FAM_COUNTER, group->table, bytes);
  if (!request) return NULL;
  struct dibs__counter_op *op = &request->counter;
  op->table = request->table;
  op->source = source->id;
  op->sequence = batch->sequence;
  op->count = (uint32_t)count;
  op->items = dibs__request_array(request, count * sizeof *op->items);
  for (size_t i = 0; i < count; i++)
    op->items[i] =
        (struct dibs__counter_item){.key = dibs__request_keep(request, batch->sorted[i]->key, batch->sorted[i]->len),
                                    .delta = batch->sorted[i]->sum};
  request->op.lane = lane_of(source); /* two attempts of one source never run at the same time */
  return request;
}

/* The reason alone: the caller names the counter and the store. */
static void set_reason(batch_t *batch, struct dibs__count_group *group, dibs_status status, const char *why) {
  char trouble[256] = "";
  const char *what = batch->unsure ? "the outcome of a batch is not known" : dibs_status_text(status);
  if (!why[0]) dibs__core_trouble(group->counters->store->core, trouble, sizeof trouble);
  snprintf(batch->text, sizeof batch->text, "%s%s%s", why[0] ? why : what, trouble[0] ? ": " : "", trouble);
}

/* These may end by themselves: the batch is kept.  A database may be read-only for a while, as during a failover, or
 * repaired; a caller of a durable addition learns it at once, but nobody else has what is buffered. */
static bool may_pass(dibs_status status, bool buffered) {
  if (status == DIBS_DENIED || status == DIBS_CORRUPT || status == DIBS_TOO_NEW) return buffered;
  return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_NO_MEMORY;
}

bool dibs__count_send(struct dibs__count_group *group, const struct dibs__count_source *source, batch_t *batch,
                      dibs__tick by) {
  struct dibs__request *request = make_request(group, source, batch);
  if (!request) {
    snprintf(batch->text, sizeof batch->text, "out of memory");
    return false;
  }
  if (batch->since.ns == 0) batch->since = dibs__tick_now();
  dibs_status status = dibs__request_carry(request, DIBS__COUNTER_ADD, by);
  bool answered = dibs__request_is_answered(request), applied = status == DIBS_OK || status == DIBS_REPLAY;
  if (status == DIBS_UNKNOWN) batch->unsure = true;
  for (size_t i = 0; i < batch->sums.count && answered && applied; i++)
    batch->sorted[i]->status = request->counter.items[i].status;
  if (applied)
    batch->text[0] = '\0';
  else
    set_reason(batch, group, status, answered ? request->counter.why : "");
  dibs__request_drop(request);
  batch->failure = applied ? DIBS_OK : status;
  if (may_pass(status, source == &group->buffered)) return false;
  /* After an UNKNOWN attempt a refusal of the whole batch says nothing about that attempt. */
  batch->status = applied ? DIBS_OK : batch->unsure ? DIBS_UNKNOWN : status;
  for (size_t i = 0; i < batch->sums.count && !applied; i++) batch->sorted[i]->status = (int32_t)batch->status;
  return true;
}
