/* SPDX-License-Identifier: MIT */
/*
 * Claiming.  A claim has an id.  When its outcome is not known, the next request repeats it with this id and gets the
 * tasks that the first one claimed: none of them is lost to a client that nobody listens to any more.
 */
#include "lane/lane.h"
#include "lease/lease.h"
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 1000 }; /* a claim that waits looks for tasks at least so often */

/* ---- Checks ---- */

static dibs_status check_phases(const dibs_claim_options *o, dibs_error *error) {
  if (o->phase_count > DIBS_TASK_PHASES_MAX || (o->phase_count > 0 && !o->phases))
    return dibs__fail(error, DIBS_INVALID, "phase_count is %" PRIu32 ": give up to %d phases", o->phase_count,
                      DIBS_TASK_PHASES_MAX);
  for (uint32_t i = 0; i < o->phase_count; i++)
    if (dibs__check_text(o->phases[i], DIBS_NAME_MAX, "a phase", error) != DIBS_OK) return DIBS_INVALID;
  return DIBS_OK;
}

static dibs_status check_lanes(const dibs_claim_options *o, dibs_error *error) {
  if (o->reserved != 0) return dibs__fail(error, DIBS_INVALID, "`reserved` of the options is not 0");
  if (!o->lanes && o->lane_count == 0) return DIBS_OK;
  if (!o->lanes || o->lane_count < 1 || o->lane_count > DIBS_LANES_MAX)
    return dibs__fail(error, DIBS_INVALID, "lane_count is %" PRIu32 ": give 1 to %d lanes", o->lane_count,
                      DIBS_LANES_MAX);
  if (o->table) return dibs__fail(error, DIBS_INVALID, "lanes are for tasks in dibs' own table: give lanes or a table");
  if (o->phase_count > 0)
    return dibs__fail(error, DIBS_INVALID, "give lanes or phases: a lane has tasks of all phases");
  for (uint32_t i = 0; i < o->lane_count; i++) {
    if (!o->lanes[i]) return dibs__fail(error, DIBS_INVALID, "a lane is NULL");
    if (dibs_lane_lanes(o->lanes[i]) != dibs_lane_lanes(o->lanes[0]) ||
        strcmp(dibs__lane_topic_of(o->lanes[i]), dibs__lane_topic_of(o->lanes[0])) != 0)
      return dibs__fail(error, DIBS_INVALID, "the lanes are of different topics, or of different numbers of lanes");
  }
  return DIBS_OK;
}

dibs_status dibs__claim_check(dibs_store *store, const char *kind, const dibs_claim_options *o, dibs_error *error) {
  dibs_status status = dibs__task_served(store, o->table, error);
  if (status == DIBS_OK && o->table && !o->table->locked_at)
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "the table \"%.80s\" was declared without phase, locked_at and updated_at, which tasks need",
                      o->table->table);
  kind = dibs__own_kind(kind, o->table);
  if (status == DIBS_OK) status = dibs__check_text(kind, DIBS_NAME_MAX, "the kind of the tasks", error);
  if (status == DIBS_OK) status = check_phases(o, error);
  if (status == DIBS_OK) status = check_lanes(o, error);
  if (status == DIBS_OK && o->owner) status = dibs__check_text(o->owner, DIBS_OWNER_MAX, "the owner", error);
  if (status != DIBS_OK) return status;
  if (o->timeout_ms < DIBS_TTL_MIN_MS || o->timeout_ms > DIBS_TTL_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "timeout_ms is %" PRId64 ": give 100 ms to a day", o->timeout_ms);
  if (o->most < 1 || o->most > DIBS_TASKS_MAX)
    return dibs__fail(error, DIBS_INVALID, "most is %" PRIu32 ": give 1 to %d", o->most, DIBS_TASKS_MAX);
  return DIBS_OK;
}

/* ---- The tasks of an answer ---- */

static void fill_held(struct dibs__held *held, const struct dibs__task_row *row, const struct dibs__claim *claim) {
  size_t phase = row->phase.len < sizeof held->phase ? row->phase.len : sizeof held->phase - 1;
  memcpy(held->phase, row->phase.p, phase);
  held->serial = row->serial.len;
  held->timeout_ms = claim->timeout_ms;
  held->began = claim->first;
  held->until_ns = claim->table ? dibs__own_until(claim->first, claim->timeout_ms, row->began_ms).ns
                                : dibs__sure_until(claim->first, claim->timeout_ms).ns;
  dibs__own_keep(held, row->locked.p, row->locked.len);
  int64_t made_ms = claim->table ? row->at_ms : row->made_ms;
  held->task = (dibs_task){.size = sizeof held->task,
                           .nr = row->nr,
                           .key = row->key.p ? row->key.p : "",
                           .fence = {row->fence.v},
                           .kind = row->kind.p,
                           .phase = held->phase,
                           .serial = row->serial.p,
                           .unique = row->unique.p,
                           .payload = row->payload.p,
                           .length = row->payload.len,
                           .error = row->text.p,
                           .attempt = row->attempts,
                           .fails = row->fails,
                           .tries = row->tries,
                           .priority = row->priority,
                           .made_ms = made_ms,
                           .age_ms = row->began_ms > made_ms ? row->began_ms - made_ms : 0};
}

/* Takes over the memory of the answer. */
static dibs_status take_tasks(const struct dibs__claim *claim, struct dibs__task_op *op, dibs_task **tasks,
                              size_t *count) {
  uint32_t n = op->got_count;
  if (n == 0) return DIBS_OK;
  struct dibs__task_batch *batch = calloc(1, sizeof *batch + n * sizeof batch->held[0]);
  if (!batch) return DIBS_NO_MEMORY;
  const struct dibs__task_row *rows = op->got;
  batch->refs = batch->count = n;
  batch->store = claim->store;
  batch->table = claim->table ? dibs__table_hold(claim->table) : NULL;
  batch->got = op->got;
  op->got = NULL;
  op->got_count = 0;
  atomic_fetch_add(&batch->store->refs, 1);
  for (uint32_t i = 0; i < n; i++) {
    struct dibs__held *held = &batch->held[i];
    held->batch = batch;
    fill_held(held, &rows[i], claim);
    tasks[(*count)++] = &held->task;
  }
  return DIBS_OK;
}

dibs_task *dibs__task_adopt(dibs_store *store, const char *kind, uint64_t nr, dibs_fence fence, int64_t timeout_ms,
                            uint32_t fails, int64_t age_ms) {
  struct dibs__task_batch *batch = calloc(1, sizeof *batch + sizeof batch->held[0]);
  char *own_kind = strdup(kind);
  if (!batch || !own_kind) {
    free(batch);
    free(own_kind);
    return NULL;
  }
  struct dibs__held *held = &batch->held[0];
  batch->refs = batch->count = 1;
  batch->store = store;
  batch->got = own_kind;
  atomic_fetch_add(&store->refs, 1);
  held->batch = batch;
  held->timeout_ms = timeout_ms ? timeout_ms : DIBS__TASK_TIMEOUT_MS;
  held->began = dibs__tick_now();
  held->task = (dibs_task){.size = sizeof held->task,
                           .nr = nr,
                           .key = "",
                           .fence = fence,
                           .kind = own_kind,
                           .phase = held->phase,
                           .serial = "",
                           .unique = "",
                           .payload = "",
                           .error = "",
                           .fails = fails,
                           .age_ms = age_ms};
  return &held->task;
}

void dibs__task_set_lane(struct dibs__held *held, const dibs_lane *lane) {
  held->task.lane = lane;
  held->lease = dibs_lane_lease(lane);
  dibs__lease_hold(held->lease); /* the task may stay longer than the lane */
}

void dibs_task_free(dibs_task *task) {
  if (!task) return;
  struct dibs__task_batch *batch = dibs__held_of(task)->batch;
  if (atomic_fetch_sub(&batch->refs, 1) != 1) return;
  for (uint32_t i = 0; i < batch->count; i++)
    if (batch->held[i].lease) dibs__lease_drop(batch->held[i].lease);
  dibs__store_drop(batch->store);
  dibs__table_drop(batch->table);
  free(batch->got);
  free(batch);
}

/* ---- The request ---- */

static struct dibs__request *claim_request(const struct dibs__claim *claim, uint32_t most) {
  const char *by = claim->owner ? claim->owner : claim->store->owner;
  size_t size = strlen(claim->kind) + strlen(by) + claim->phase_count * (sizeof(dibs__str) + 1) +
                dibs__length(claim->topic) + claim->lane_count * sizeof *claim->lanes;
  for (uint32_t i = 0; i < claim->phase_count; i++) size += strlen(claim->phases[i]);
  struct dibs__request *request = dibs__request_make(claim->store, DIBS__FAM_TASK, claim->table, size);
  if (!request) return NULL;
  struct dibs__task_op *op = &request->task;
  dibs__str *phases = dibs__request_array(request, claim->phase_count * sizeof *phases);
  if (claim->lane_count > 0) {
    op->lanes = dibs__request_array(request, claim->lane_count * sizeof *op->lanes);
    memcpy(op->lanes, claim->lanes, claim->lane_count * sizeof *op->lanes);
    op->lane_count = claim->lane_count;
    op->of_lanes = claim->of_lanes;
    op->topic = dibs__request_keep(request, claim->topic, strlen(claim->topic));
    op->from = claim->from;
  }
  for (uint32_t i = 0; i < claim->phase_count; i++)
    phases[i] = dibs__request_keep(request, claim->phases[i], strlen(claim->phases[i]));
  op->table = claim->table;
  op->phases = phases;
  op->phase_count = claim->phase_count;
  op->kind = dibs__request_keep(request, claim->kind, strlen(claim->kind));
  op->by = dibs__request_keep(request, by, strlen(by));
  op->timeout_ms = claim->timeout_ms;
  op->most = most;
  op->id = claim->id;
  op->again = claim->unsure;
  dibs__task_lane(request, most);
  return request;
}

/* An id whose first request was sent so long ago has nothing any more. */
static void draw_id(struct dibs__claim *claim) {
  dibs__tick now = dibs__tick_now();
  if (claim->unsure && dibs__tick_before(now, dibs__sure_until(claim->first, claim->timeout_ms))) return;
  dibs__random(&claim->id, sizeof claim->id);
  claim->first = now;
  claim->unsure = false;
}

dibs_status dibs__claim_once(struct dibs__claim *claim, uint32_t most, dibs_task **tasks, size_t *count,
                             dibs__tick by) {
  *count = 0;
  draw_id(claim);
  struct dibs__request *request = claim_request(claim, most);
  if (!request) return DIBS_NO_MEMORY;
  dibs_status status = dibs__request_carry(request, DIBS__TASK_CLAIM, by);
  dibs__task_keep_why(request, claim->why);
  if (status == DIBS_OK) {
    claim->next_ms = request->task.next_ms;
    claim->more = request->task.more;
    claim->from = request->task.from;
    if (claim->lane_count > 0) memcpy(claim->lanes, request->task.lanes, claim->lane_count * sizeof *claim->lanes);
    status = take_tasks(claim, &request->task, tasks, count);
  }
  if (status == DIBS_OK)
    claim->unsure = false;
  else if (status == DIBS_UNKNOWN || status == DIBS_NO_MEMORY)
    claim->unsure = true;
  dibs__request_drop(request);
  return status;
}

/* ---- Lanes ---- */

static int by_number(const void *a, const void *b) {
  const struct dibs__task_lane *x = a, *y = b;
  return (x->lane > y->lane) - (x->lane < y->lane);
}

/* Lanes of the claim that the caller owns.  INVALID: a lane is given twice. */
static dibs_status name_lanes(struct dibs__claim *claim, const dibs_claim_options *o, dibs_error *error) {
  if (o->lane_count == 0) return DIBS_OK;
  for (uint32_t i = 0; i < o->lane_count; i++)
    claim->lanes[i] =
        (struct dibs__task_lane){.lane = dibs_lane_number(o->lanes[i]), .fence = {dibs_lane_fence(o->lanes[i]).value}};
  qsort(claim->lanes, o->lane_count, sizeof *claim->lanes, by_number);
  for (uint32_t i = 1; i < o->lane_count; i++)
    if (claim->lanes[i].lane == claim->lanes[i - 1].lane)
      return dibs__fail(error, DIBS_INVALID, "lane %" PRIu32 " is given twice", claim->lanes[i].lane);
  claim->lane_count = o->lane_count;
  claim->of_lanes = dibs_lane_lanes(o->lanes[0]);
  claim->topic = dibs__lane_topic_of(o->lanes[0]);
  /* Each call begins elsewhere, so that no serial text waits for ever behind others. */
  dibs__random(&claim->from, sizeof claim->from);
  return DIBS_OK;
}

/* The answers of the lanes, and the lane of each task. */
static void answer_lanes(const struct dibs__claim *claim, const dibs_claim_options *o, dibs_task *const *tasks,
                         size_t count) {
  for (uint32_t i = 0; i < o->lane_count; i++) {
    const struct dibs__task_lane key = {.lane = dibs_lane_number(o->lanes[i])},
                                 *named = bsearch(&key, claim->lanes, o->lane_count, sizeof key, by_number);
    if (o->lane_statuses) o->lane_statuses[i] = (dibs_status)named->status;
    for (size_t t = 0; t < count; t++)
      if (dibs_lane_of(tasks[t]->serial, dibs__held_of(tasks[t])->serial, claim->of_lanes) == key.lane)
        dibs__task_set_lane(dibs__held_of(tasks[t]), o->lanes[i]);
  }
}

static bool all_stale(const struct dibs__claim *claim) {
  for (uint32_t i = 0; i < claim->lane_count; i++)
    if (claim->lanes[i].status != DIBS_STALE) return false;
  return claim->lane_count > 0;
}

/* ---- Waiting for tasks ---- */

/* Sleeps until a task may be ready.  false: the time is over. */
static bool wait_for_tasks(struct dibs__listener *listener, uint32_t seen, int64_t next_ms, dibs__tick by) {
  dibs__tick now = dibs__tick_now();
  int64_t ms = next_ms >= 0 && next_ms < LOOK_MS ? next_ms : LOOK_MS;
  if (!dibs__tick_before(now, by)) return false;
  (void)dibs__word_wait(&listener->word, seen, dibs__tick_min(by, dibs__tick_add_ms(now, ms)), false);
  return true;
}

static dibs_status claim_until(struct dibs__claim *claim, uint32_t most, dibs_task **tasks, size_t *count,
                               int64_t wait_ms) {
  dibs_store *store = claim->store;
  struct dibs__listener listener = {.kind = claim->kind};
  dibs__tick now = dibs__tick_now();
  dibs__tick by = wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(now, wait_ms);
  dibs_status status;
  dibs__tick more_by = dibs__tick_add_ms(now, DIBS__TASK_WAIT_MS);
  uint32_t failed = 0;
  dibs__listen(store, &listener);
  for (;;) {
    uint32_t seen = atomic_load(&listener.word);
    dibs__tick answer_by = dibs__tick_add_ms(dibs__tick_now(), DIBS__TASK_WAIT_MS);
    status = dibs__claim_once(claim, most, tasks, count, answer_by);
    if (*count > 0 || store->outer) break;
    if (store->closing) {
      status = DIBS_CANCELLED;
    } else if (status == DIBS_OK) {
      failed = 0;
      if (all_stale(claim)) {
        status = DIBS_STALE;
        break;
      }
      if (claim->more && dibs__tick_before(dibs__tick_now(), more_by)) continue;
      if (wait_for_tasks(&listener, seen, claim->next_ms, by)) continue;
    } else if (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) {
      /* What may be claimed is looked for once more, also after the time. */
      dibs__tick until = claim->unsure && failed == 0 ? answer_by : by;
      if (dibs__tick_before(dibs__tick_now(), until)) {
        dibs__request_pause(++failed, until);
        continue;
      }
    }
    break;
  }
  dibs__listen_no_more(store, &listener);
  if (status == DIBS_UNAVAILABLE && claim->unsure) status = DIBS_UNKNOWN;
  return status;
}

static const char none_ready[] = " is ready; ";

const char *dibs__task_claim_why(const dibs_error *error) {
  const char *at = error->status == DIBS_NOT_FOUND ? strstr(error->text, none_ready) : NULL;
  return at ? at + sizeof none_ready - 1 : NULL;
}

static dibs_status claim_tasks(dibs_store *store, const char *kind, const dibs_claim_options *o, dibs_task **tasks,
                               size_t *count, dibs_error *error) {
  dibs_status status = dibs__claim_check(store, kind, o, error);
  if (status != DIBS_OK) return status;
  struct dibs__task_lane lanes[DIBS_LANES_MAX];
  kind = dibs__own_kind(kind, o->table);
  struct dibs__claim claim = {.store = store,
                              .table = o->table,
                              .kind = kind,
                              .owner = o->owner,
                              .phases = o->phases,
                              .phase_count = o->phase_count,
                              .lanes = lanes,
                              .timeout_ms = o->timeout_ms};
  status = name_lanes(&claim, o, error);
  if (status != DIBS_OK) return status;
  status = claim_until(&claim, o->most, tasks, count, o->wait_ms);
  answer_lanes(&claim, o, tasks, *count);
  if (status == DIBS_STALE)
    return dibs__fail(error, status,
                      "claiming tasks of kind \"%s\": a later owner of each lane of \"%s\" has claimed tasks of it;"
                      " release the lanes, and claim with those that on_gain gives",
                      kind, claim.topic);
  if (status == DIBS_OK && *count > 0) return dibs__fine(error);
  if (status == DIBS_OK)
    return dibs__fail(error, DIBS_NOT_FOUND, "no task of kind \"%s\"%s%s", kind,
                      claim.why[0] ? none_ready : " is ready", claim.why);
  return dibs__task_explain(store, o->table, status, "claiming tasks of kind", kind, claim.why, error);
}

dibs_status dibs_tasks_claim(dibs_store *store, const char *kind, const dibs_claim_options *given, dibs_task **tasks,
                             size_t *count, dibs_error *error) {
  dibs_claim_options o = DIBS_CLAIM_OPTIONS_INIT;
  if (!tasks || !count) return dibs__fail(error, DIBS_INVALID, "dibs_tasks_claim: tasks or count is NULL");
  *count = 0;
  if (given && dibs__check_size(given->size, sizeof o, "dibs_claim_options", error) != DIBS_OK) return DIBS_INVALID;
  if (given) memcpy(&o, given, given->size);
  if (o.most == 0) o.most = 1;
  if (o.timeout_ms == 0) o.timeout_ms = DIBS__TASK_TIMEOUT_MS;
  if (o.wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                      (long long)o.wait_ms);
  dibs_status status = dibs__enter(store, "dibs_tasks_claim", error);
  if (status != DIBS_OK) return status;
  status = claim_tasks(store, kind, &o, tasks, count, error);
  dibs__exit(store);
  return status;
}
