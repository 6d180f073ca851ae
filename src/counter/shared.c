/* SPDX-License-Identifier: MIT */
/*
 * The fast store in front of the database.  A batch of additions is sent to it under the incarnation that it is known
 * to have.  If the store answers that it has another one, nothing was added: the batch is sent again under that one,
 * unless an earlier attempt may have been added.  Such a batch may be in the memory that the store has lost, and from
 * there in the database, so its outcome stays unknown.
 */
#include "base/sha256.h"
#include "counter/counter_impl.h"
#include "handle/request.h"

#include <stdio.h>
#include <string.h>

enum { LEARN_TRIES = 4, READ_MS = 1000 };

typedef struct dibs__count_group group_t;
typedef struct dibs__count_batch batch_t;
typedef struct dibs__count_line line_t;

bool dibs__count_has_shared(const dibs_store *store) {
  return !store->outer && (dibs__core_families(store->core) >> DIBS__FAM_SHARED & 1) != 0;
}

void dibs__count_space(const struct dibs__table *table, char space[DIBS__COUNT_SPACE]) {
  char hex[65];
  struct dibs__sha256 hash;
  if (!table || !table->count) {
    snprintf(space, DIBS__COUNT_SPACE, "own");
    return;
  }
  const char *const parts[] = {table->table, table->key, table->count};
  dibs__sha256_begin(&hash);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) dibs__sha256_add(&hash, parts[i], strlen(parts[i]) + 1);
  dibs__sha256_end(&hash, hex);
  snprintf(space, DIBS__COUNT_SPACE, "%.*s", DIBS__COUNT_SPACE - 1, hex);
}

struct dibs__request *dibs__count_shared_request(group_t *group, size_t more) {
  size_t len = strlen(group->space);
  struct dibs__request *request = dibs__request_make(group->counters->store, DIBS__FAM_SHARED, NULL, len + 1 + more);
  if (request) request->shared.space = dibs__request_keep(request, group->space, len);
  return request;
}

/* ---- Adding ---- */

static struct dibs__request *make_request(line_t *line, const batch_t *batch) {
  size_t count = batch->sums.count, bytes = count * sizeof(struct dibs__counter_item);
  for (size_t i = 0; i < count; i++) bytes += (size_t)batch->sorted[i]->len + 1;
  struct dibs__request *request = dibs__count_shared_request(line->group, bytes);
  if (!request) return NULL;
  struct dibs__shared_op *op = &request->shared;
  op->source = line->source.id;
  op->sequence = batch->sequence;
  op->incarnation = batch->sent_to;
  /* Rounded up: the store must not be younger. */
  op->since_ms = batch->unsure ? dibs__tick_left_ms(batch->since, dibs__tick_now()) + 1 : 0;
  dibs__random(&op->fresh, sizeof op->fresh);
  op->count = (uint32_t)count;
  op->items = dibs__request_array(request, count * sizeof *op->items);
  for (size_t i = 0; i < count; i++)
    op->items[i] =
        (struct dibs__counter_item){.key = dibs__request_keep(request, batch->sorted[i]->key, batch->sorted[i]->len),
                                    .delta = batch->sorted[i]->sum};
  memcpy(&request->op.lane, line->source.id.b, sizeof request->op.lane);
  if (request->op.lane == 0) request->op.lane = 1;
  return request;
}

static void settle_all(batch_t *batch, dibs_status status, const char *why) {
  batch->status = status;
  for (size_t i = 0; i < batch->sums.count; i++) batch->sorted[i]->status = (int32_t)status;
  if (why) snprintf(batch->text, sizeof batch->text, "%s", why);
}

static bool is_too_old(const batch_t *batch) {
  return batch->unsure && dibs__tick_before(dibs__tick_add_ms(batch->since, DIBS__SHARED_REPEAT_MS), dibs__tick_now());
}

static void set_reason(line_t *line, batch_t *batch, dibs_status status) {
  char trouble[256] = "";
  dibs__core_trouble(line->group->counters->store->core, trouble, sizeof trouble);
  snprintf(batch->text, sizeof batch->text, "%s%s%s",
           batch->unsure ? "the outcome of a batch is not known" : dibs_status_text(status), trouble[0] ? ": " : "",
           trouble);
}

/* One attempt.  *learnt: the store has another incarnation, and nothing was added. */
static bool send_once(line_t *line, batch_t *batch, dibs__tick by, bool *learnt) {
  struct dibs__request *request = make_request(line, batch);
  *learnt = false;
  if (!request) {
    snprintf(batch->text, sizeof batch->text, "out of memory");
    return false;
  }
  dibs_status status = dibs__request_carry(request, DIBS__SHARED_ADD, by);
  bool added = status == DIBS_OK || status == DIBS_REPLAY;
  if (status == DIBS_UNKNOWN) batch->unsure = true;
  for (size_t i = 0; i < batch->sums.count && added; i++) batch->sorted[i]->status = request->shared.items[i].status;
  *learnt = status == DIBS_CONFLICT;
  if (*learnt) line->incarnation = request->shared.incarnation;
  dibs__request_drop(request);
  batch->failure = added ? DIBS_OK : status;
  batch->text[0] = '\0';
  if (added) {
    batch->status = DIBS_OK;
    return true;
  }
  if (!*learnt) set_reason(line, batch, status);
  if (*learnt || status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_NO_MEMORY) return false;
  settle_all(batch, batch->unsure ? DIBS_UNKNOWN : status, NULL);
  return true;
}

bool dibs__count_send_shared(line_t *line, batch_t *batch, dibs__tick by) {
  if (batch->since.ns == 0) batch->since = dibs__tick_now();
  for (int tries = 0; tries < LEARN_TRIES; tries++) {
    bool learnt;
    if (is_too_old(batch)) {
      settle_all(batch, DIBS_UNKNOWN, "no answer in five minutes, so it is not repeated any more");
      return true;
    }
    if (!batch->unsure) batch->sent_to = line->incarnation;
    if (send_once(line, batch, by, &learnt)) return true;
    if (!learnt) return false;
    if (batch->unsure) {
      settle_all(batch, DIBS_UNKNOWN, "the answer was lost, and the fast store has lost its memory or was replaced");
      return true;
    }
  }
  return false;
}

/* ---- Reading ---- */

dibs_status dibs__count_shared_read(group_t *group, const char *key, dibs__tick by,
                                    struct dibs__count_shared_sum *sum) {
  size_t len = strlen(key);
  *sum = (struct dibs__count_shared_sum){.sum = 0};
  struct dibs__request *request = dibs__count_shared_request(group, sizeof(struct dibs__counter_item) + len + 1);
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__shared_op *op = &request->shared;
  op->count = 1;
  op->items = dibs__request_array(request, sizeof *op->items);
  op->items[0].key = dibs__request_keep(request, key, len);
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), READ_MS));
  dibs_status status = dibs__request_carry(request, DIBS__SHARED_READ, by);
  if (status == DIBS_OK) {
    if (__builtin_add_overflow(op->items[0].number, op->sealed, &sum->sum)) status = DIBS_FULL;
    sum->waits = op->waits;
    memcpy(sum->name, op->name, sizeof sum->name);
  }
  dibs__request_drop(request);
  return status;
}

dibs_status dibs__count_shared_look(group_t *group, dibs__tick by, struct dibs__shared_part parts[DIBS__SHARED_PARTS]) {
  struct dibs__request *request = dibs__count_shared_request(group, 0);
  if (!request) return DIBS_NO_MEMORY;
  dibs_status status = dibs__request_carry(request, DIBS__SHARED_LOOK, by);
  if (status == DIBS_OK) memcpy(parts, request->shared.parts, sizeof request->shared.parts);
  dibs__request_drop(request);
  return status;
}
