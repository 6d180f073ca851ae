/* SPDX-License-Identifier: MIT */
/*
 * ADD, CLAIM, EXTEND, END and KIND of dibs' own tasks: which tasks each of them needs to decide.  The memory driver
 * decides (drivers/memory/task.c), and kind.c commits.
 *
 *   ADD     the unfinished ones with the unique texts; of each serial text the task that is not blocked; the token
 *   CLAIM   those that wait or are claimed, and whose time is over: they are changed by a commit of their own; then the
 *           first ready ones
 *   EXTEND  the tasks
 *   END     the tasks; of the serial text of a task that is done, the next one
 *
 * Finished tasks (R72), and drafts that a client left an hour ago, are deleted by the thread that tidies, with a
 * commit. A client that is about to make tasks of such drafts finds another version of the kind then.
 */
#include "drivers/mongodb/kind_impl.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWEPT = 200, SWEPT_KINDS = 16, SWEEP_MS = 500, MORE_SWEEPS = 2, PAUSE_MS = 3, OVER = 250, DRAFTS_MS = 3600000 };

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_try try;
typedef struct dibs__mem_task task;
typedef struct dibs__task_op task_op;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

static void decide_in(try *t, task_op *op) {
  dibs__op_free_answer(&op->op);
  dibs__mem_task(t->tasks, op, t->now);
}

/* ---- Sweeping ---- */

static bool see_draft(void *user, const bson_t *row) {
  try *t = user;
  if (t->count == t->capacity) return false; /* at another time */
  t->rows[t->count++] = (struct dibs__mongo_loaded){.nr = (uint64_t)dibs__mongo_number_in(row, "_id", 0),
                                                    .version = dibs__mongo_number_in(row, "v", 0)};
  return true;
}

static const char *const by_end[] = {"kept", NULL};

/* *user: there may be more. */
static dibs__status decide_sweep(try *t, void *user) {
  struct dibs__mongo_pick finished = {.filter = dibs__mongo_rows_of(t->name), .sort = by_end, .most = SWEPT},
                          drafts = {.filter = dibs__mongo_rows_of(t->name), .most = SWEPT};
  bson_t range;
  BSON_APPEND_DOCUMENT_BEGIN(finished.filter, "kept", &range);
  BSON_APPEND_INT64(&range, "$gt", 0);
  BSON_APPEND_INT64(&range, "$lte", t->sure);
  bson_append_document_end(finished.filter, &range);
  BSON_APPEND_INT64(drafts.filter, "kept", -1);
  dibs__mongo_put_compare(drafts.filter, "made", "$lte", t->sure - DRAFTS_MS);
  t->capacity = SWEPT;
  t->rows = calloc(t->capacity, sizeof *t->rows);
  if (!t->rows) {
    bson_destroy(finished.filter);
    bson_destroy(drafts.filter);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = dibs__mongo_rows_read(t->b, drafts, see_draft, t);
  if (status != DIBS_OK) {
    bson_destroy(finished.filter);
    return status;
  }
  size_t before = t->count;
  status = dibs__mongo_rows_load(t, finished);
  *(bool *)user = t->count - before == SWEPT;
  if (status == DIBS_OK) dibs__mem_tasks_sweep(t->tasks, t->sure);
  return status;
}

struct sweeping {
  char kinds[SWEPT_KINDS][DIBS_NAME_MAX];
  uint32_t lens[SWEPT_KINDS];
  size_t count;
};

static bool see_kept(void *user, const bson_t *row) {
  struct sweeping *s = user;
  dibs__str kind = dibs__mongo_bytes_in(row, "kind");
  if (kind.len < 1 || kind.len > DIBS_NAME_MAX) return true;
  for (size_t i = 0; i < s->count; i++)
    if (dibs__str_equal(kind, dibs__str_of(s->kinds[i], s->lens[i]))) return true;
  memcpy(s->kinds[s->count], kind.p, kind.len);
  s->lens[s->count++] = kind.len;
  return s->count < SWEPT_KINDS;
}

static bool has_time(const batch *b) {
  return dibs__tick_left_ms(dibs__tick_now(), link_of(b)->by) > SWEEP_MS;
}

void dibs__mongo_tasks_sweep(batch *b) {
  struct sweeping s = {.count = 0};
  int64_t now = dibs__mongo_earliest(link_of(b));
  bson_t *kept = bson_new(), *drafts = bson_new(), range;
  BSON_APPEND_DOCUMENT_BEGIN(kept, "kept", &range);
  BSON_APPEND_INT64(&range, "$gt", 0);
  BSON_APPEND_INT64(&range, "$lte", now);
  bson_append_document_end(kept, &range);
  BSON_APPEND_INT64(drafts, "kept", -1);
  dibs__mongo_put_compare(drafts, "made", "$lte", now - DRAFTS_MS);
  /* By the index: of a million that are over it reads the first ones. */
  struct dibs__mongo_pick picks[] = {{.filter = kept, .sort = by_end, .most = SWEPT},
                                     {.filter = drafts, .sort = by_end, .most = SWEPT}};
  dibs__status status = DIBS_OK;
  for (size_t i = 0; i < 2; i++) {
    if (status == DIBS_OK && s.count < SWEPT_KINDS)
      status = dibs__mongo_rows_read(b, picks[i], see_kept, &s);
    else
      bson_destroy(picks[i].filter);
  }
  /* The thread that renews leases does this: so there are few commits more than one for each kind. */
  int extra = MORE_SWEEPS;
  for (size_t i = 0; i < s.count && status == DIBS_OK; i++) {
    bool more = true;
    for (bool first = true; more && status == DIBS_OK && (first || (extra-- > 0 && has_time(b))); first = false) {
      if (!first) dibs__nap_ms(PAUSE_MS); /* other threads look each ms whether the kind is free */
      status = dibs__mongo_kind_run(b, dibs__str_of(s.kinds[i], s.lens[i]), decide_sweep, &more);
    }
  }
}

/* ---- ADD ---- */

struct adding {
  task_op *op;
  struct dibs__mongo_drafts drafts;
};

static size_t gather_texts(const task_op *op, dibs__str *texts, bool serials) {
  size_t count = 0;
  for (uint32_t i = 0; i < op->count; i++) {
    dibs__str text = serials ? op->news[i].serial : op->news[i].unique;
    if (text.len && text.len <= DIBS_NAME_MAX) texts[count++] = text;
  }
  return count;
}

/* Unfinished ones with these texts. */
static dibs__status load_texts(try *t, const task_op *op, bool serials) {
  dibs__str texts[DIBS__TASK_ITEMS];
  size_t count = op->count <= DIBS__TASK_ITEMS ? gather_texts(op, texts, serials) : 0;
  if (count == 0) return DIBS_OK;
  bson_t *filter = dibs__mongo_rows_of(t->name);
  dibs__mongo_put_texts(filter, serials ? "serial" : "unique", texts, count);
  uint32_t blocked = serials ? 1u << DIBS__TASK_BLOCKED : 0;
  dibs__mongo_put_states(filter, DIBS__TASK_UNFINISHED & ~blocked);
  return dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter});
}

struct token {
  try *t;
  const task_op *op;
};

static bool see_token(void *user, const bson_t *row) {
  const struct token *k = user;
  uint64_t nrs[DIBS__TASK_ITEMS];
  bool replays[DIBS__TASK_ITEMS];
  uint32_t count = 0;
  bson_iter_t at, in;
  if (!bson_iter_init_find(&at, row, "nrs") || !bson_iter_recurse(&at, &in)) return true;
  for (; count < DIBS__TASK_ITEMS && bson_iter_next(&in); count++) {
    int64_t nr = bson_iter_as_int64(&in);
    replays[count] = nr < 0;
    nrs[count] = (uint64_t)(nr < 0 ? -nr : nr);
  }
  /* It is not certainly over, so it still holds (R65), although the decision is at the latest time that it may be. */
  int64_t until = dibs__mongo_number_in(row, "until", 0);
  if (until <= k->t->now) until = k->t->now + 1;
  if (!dibs__mem_task_load_token(k->t->tasks, k->op, until, nrs, replays, count)) k->t->status = DIBS_NO_MEMORY;
  return false;
}

static dibs__status load_token(try *t, const task_op *op) {
  if (op->token.len == 0 || op->token.len > DIBS__TASK_TOKEN_MAX) return DIBS_OK;
  bson_t filter = BSON_INITIALIZER;
  struct token k = {t, op};
  dibs__mongo_put_bytes(&filter, "token", op->token);
  dibs__mongo_put_compare(&filter, "until", "$gt", t->sure);
  dibs__status status =
      dibs__mongo_find(link_of(t->b), DIBS__MONGO_TOKEN, &filter, 1, false, see_token, &k, t->b->result);
  bson_destroy(&filter);
  return status == DIBS_OK ? t->status : status;
}

static dibs__status decide_add(try *t, void *user) {
  struct adding *a = user;
  t->adds = a->op;
  t->drafts = &a->drafts;
  dibs__status status = load_token(t, a->op);
  bool repeats = status == DIBS_OK && t->tasks->tokens.count > 0;
  if (status == DIBS_OK && !repeats) status = load_texts(t, a->op, false);
  if (status == DIBS_OK && !repeats) status = load_texts(t, a->op, true);
  if (status == DIBS_OK && !repeats && a->op->count) status = dibs__mongo_drafts_number(t);
  if (status == DIBS_OK) decide_in(t, a->op);
  if (a->op->op.status != DIBS_OK) t->adds = NULL;
  if (!t->adds) t->drafts = NULL;
  return status;
}

static dibs__status run_add(batch *b, task_op *op) {
  struct adding a = {.op = op};
  dibs__status status = dibs__mongo_kind_run(b, op->kind, decide_add, &a);
  bool unused = status == DIBS_UNAVAILABLE || status == DIBS_NO_MEMORY;
  if (unused)
    dibs__mongo_drafts_remove(b, &a.drafts);
  else
    free(a.drafts.nrs);
  return status;
}

/* ---- CLAIM ---- */

/* What the id has of an earlier CLAIM. */
static dibs__status load_again(try *t, const task_op *op, bool *found) {
  bson_t *filter = dibs__mongo_rows_of(t->name);
  BSON_APPEND_INT64(filter, "claim", (int64_t)dibs__id_digest(op->id));
  BSON_APPEND_INT32(filter, "state", DIBS__TASK_CLAIMED);
  dibs__mongo_put_compare(filter, "due", "$gt", t->now);
  dibs__status status =
      dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter, .most = DIBS__TASK_ITEMS, .payloads = true});
  *found = t->count > 0;
  return status;
}

/* Those whose time is over, some at a time.  Else `t->next` is exact. */
static dibs__status load_over(try *t) {
  static const char *const by_time[] = {"timed", NULL};
  bson_t *filter = dibs__mongo_rows_of(t->name);
  bson_t range;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "timed", &range);
  BSON_APPEND_INT64(&range, "$gt", 0);
  BSON_APPEND_INT64(&range, "$lte", t->sure);
  bson_append_document_end(filter, &range);
  return dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter, .sort = by_time, .most = OVER});
}

static bool see_due(void *user, const bson_t *row) {
  *(int64_t *)user = dibs__mongo_number_in(row, "timed", INT64_MAX);
  return false;
}

static dibs__status find_next(try *t) {
  static const char *const by_time[] = {"timed", NULL};
  bson_t *filter = dibs__mongo_rows_of(t->name);
  dibs__mongo_put_compare(filter, "timed", "$gt", 0);
  t->next = INT64_MAX;
  return dibs__mongo_rows_read(t->b, (struct dibs__mongo_pick){.filter = filter, .sort = by_time, .most = 1}, see_due,
                               &t->next);
}

static bool count_one(void *user, const bson_t *row) {
  (void)row;
  ++*(uint64_t *)user;
  return true;
}

/* R69.  More than the limit need not be counted. */
static dibs__status count_claimed(try *t) {
  if (!t->kind->running) return DIBS_OK;
  bson_t *filter = dibs__mongo_rows_of(t->name);
  BSON_APPEND_INT32(filter, "state", DIBS__TASK_CLAIMED);
  return dibs__mongo_rows_read(t->b, (struct dibs__mongo_pick){.filter = filter, .most = t->kind->running}, count_one,
                               &t->kind->states[DIBS__TASK_CLAIMED]);
}

static dibs__status load_ready(try *t, const task_op *op) {
  static const char *const by_turn[] = {"rank", "due", "_id", NULL};
  uint32_t most = dibs__mem_task_most(t->kind, op->most);
  if (most == 0) return DIBS_OK;
  bson_t *filter = dibs__mongo_rows_of(t->name);
  BSON_APPEND_INT32(filter, "state", DIBS__TASK_READY);
  if (op->phase_count) dibs__mongo_put_texts(filter, "phase", op->phases, op->phase_count);
  return dibs__mongo_rows_load(
      t, (struct dibs__mongo_pick){.filter = filter, .sort = by_turn, .most = most, .payloads = true});
}

/* Not before the claim, which takes place with the commit (R61). */
static void raise_fences(const try *t, const task_op *op) {
  struct dibs__task_row *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    task *row = dibs__mem_task_find(t->tasks, rows[i].nr);
    uint64_t least = (uint64_t)t->now + DIBS__MONGO_GUARD_MS;
    if (row->fence.v < least) row->fence.v = least;
    rows[i].fence = row->fence;
  }
}

/* A commit of its own changes those whose time is over, and then the verb goes on.  If there are none, `t->next` is
 * exact. */
static dibs__status pass_over(try *t) {
  size_t before = t->count;
  dibs__status status = load_over(t);
  if (status != DIBS_OK) return status;
  if (t->count == before) return find_next(t);
  t->again = true; /* as long as there are some */
  dibs__mem_task_pass_time(t->tasks, t->kind, t->now);
  return DIBS_OK;
}

static dibs__status decide_claim(try *t, void *user) {
  task_op *op = user;
  dibs__status status = DIBS_OK;
  bool found = false, searched = false, valid = op->phase_count <= DIBS__TASK_PHASES && op->most <= DIBS__TASK_ITEMS;
  if (valid && op->again) status = load_again(t, op, &found);
  if (status == DIBS_OK && valid && !found && t->next <= t->sure) {
    status = pass_over(t);
    if (t->again) return status;
    searched = true;
  }
  if (status == DIBS_OK && valid && !found) status = count_claimed(t);
  if (status == DIBS_OK && valid && !found) status = load_ready(t, op);
  if (status != DIBS_OK) return status;
  decide_in(t, op);
  if (op->op.status != DIBS_OK) return DIBS_OK;
  if (!found) raise_fences(t, op);
  /* In a copy that was restored the kind's document may be older than its tasks, or not there: it is not believed. */
  if (op->got_count == 0 && !searched) status = find_next(t);
  if (op->got_count == 0 && status == DIBS_OK && t->next <= t->sure) status = pass_over(t);
  if (status != DIBS_OK || t->again) return status;
  op->next_ms = op->got_count || t->next == INT64_MAX ? -1 : t->next > t->now ? t->next - t->now : 1;
  return status;
}

static dibs__status run_claim(batch *b, task_op *op) {
  if (op->lane_count || op->of_lanes) {
    snprintf(op->why, sizeof op->why,
             "tasks by lane are not on mongodb; claim without lanes: tasks with one serial text run one at a time");
    op->op.status = DIBS_UNSUPPORTED;
    return DIBS_OK;
  }
  dibs__status status = dibs__mongo_kind_run(b, op->kind, decide_claim, op);
  struct dibs__mongo *store = (struct dibs__mongo *)b->session->base.store;
  if (status != DIBS_OK || op->op.status != DIBS_OK || op->got_count) return status;
  if (dibs__mongo_mailbox_ready(store, link_of(b), b->result) == DIBS_OK) dibs__mongo_mailbox_wants_tasks(store);
  return DIBS_OK;
}

/* ---- EXTEND, END ---- */

static dibs__status load_items(try *t, const task_op *op) {
  uint64_t nrs[DIBS__TASK_ITEMS];
  for (uint32_t i = 0; i < op->count; i++) nrs[i] = op->items[i].nr;
  bson_t *filter = dibs__mongo_rows_of(t->name);
  dibs__mongo_put_nrs(filter, "$in", nrs, op->count);
  return dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter});
}

static dibs__status decide_items(try *t, void *user) {
  task_op *op = user;
  dibs__status status = load_items(t, op);
  for (uint32_t i = 0; i < op->count && status == DIBS_OK && op->op.verb == DIBS__TASK_END; i++) {
    const struct dibs__task_item *item = &op->items[i];
    const task *row = dibs__mem_task_find(t->tasks, item->nr);
    bool ends = row && item->verdict == DIBS__TASK_END_DONE && row->state == DIBS__TASK_CLAIMED &&
                row->fence.v == item->fence.v;
    if (ends && row->serial.len) status = dibs__mongo_load_next(t, row->serial);
  }
  if (status == DIBS_OK) decide_in(t, op);
  return status;
}

struct sharing {
  batch *b;
  task_op *op;
  bool done;           /* one kind at least was decided */
  dibs__status failed; /* of another one; OK: none */
};

/* The items of one kind, as an operation of their own. */
static dibs__status run_share(void *user, dibs__str kind, const uint32_t *which, uint32_t count) {
  struct sharing *s = user;
  task_op part = *s->op;
  part.items = calloc(count, sizeof *part.items);
  if (!part.items) return DIBS_NO_MEMORY;
  part.count = count;
  for (uint32_t i = 0; i < count; i++) part.items[i] = s->op->items[which[i]];
  dibs__status status = dibs__mongo_kind_run(s->b, kind, decide_items, &part);
  for (uint32_t i = 0; i < count; i++) {
    s->op->items[which[i]] = part.items[i];
    if (status != DIBS_OK) s->op->items[which[i]].status = status;
  }
  free(part.items);
  if (status == DIBS_OK)
    s->done = true;
  else if (s->failed != DIBS_UNKNOWN)
    s->failed = status;
  return DIBS_OK;
}

/* Each item becomes INVALID, or NOT_FOUND until its task is found. */
static dibs__status clear_items(task_op *op) {
  struct dibs__mem_tasks *none = dibs__mem_tasks_new(0);
  if (!none) return DIBS_NO_MEMORY;
  dibs__mem_task(none, op, 0);
  dibs__mem_tasks_free(none);
  return op->op.status;
}

static uint32_t gather_missing(const task_op *op, uint32_t *which) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < op->count; i++)
    if (op->items[i].status == DIBS_NOT_FOUND) which[count++] = i;
  return count;
}

/* The caller names a kind.  What this does not have is of other kinds, or does not exist. */
static dibs__status run_items(batch *b, task_op *op) {
  struct sharing s = {.b = b, .op = op, .failed = DIBS_OK};
  uint32_t which[DIBS__TASK_ITEMS];
  uint64_t nrs[DIBS__TASK_ITEMS];
  dibs__status status = clear_items(op);
  uint32_t count = status == DIBS_OK ? gather_missing(op, which) : 0;
  if (count && op->kind.len && op->kind.len <= DIBS_NAME_MAX) {
    status = run_share(&s, op->kind, which, count);
    count = status == DIBS_OK && s.failed == DIBS_OK ? gather_missing(op, which) : 0;
  }
  for (uint32_t i = 0; i < op->count; i++) nrs[i] = op->items[i].status == DIBS_NOT_FOUND ? op->items[i].nr : 0;
  if (count && status == DIBS_OK) status = dibs__mongo_by_kind(b, nrs, op->count, op->kind, run_share, &s);
  if (status != DIBS_OK || s.failed == DIBS_OK) return status;
  /* Items whose kind was not reached say so themselves; an unknown outcome is that of the call. */
  return s.done && s.failed == DIBS_UNAVAILABLE ? DIBS_OK : s.failed;
}

/* ---- KIND ---- */

static dibs__status decide_kind(try *t, void *user) {
  task_op *op = user;
  decide_in(t, op);
  t->sets = op->op.status == DIBS_OK;
  return DIBS_OK;
}

/* ---- One operation ---- */

/* What the memory driver refuses without looking at a task; it has the answer. */
static bool refuses(task_op *op) {
  struct dibs__mem_tasks *none = dibs__mem_tasks_new(0);
  task_op checked = *op;
  op->op.status = DIBS_NO_MEMORY;
  if (!none) return true;
  if (op->op.verb == DIBS__TASK_ADD || op->op.verb == DIBS__TASK_EXTEND || op->op.verb == DIBS__TASK_END) {
    if (checked.count <= DIBS__TASK_ITEMS) checked.count = 0; /* each item has its own answer */
  }
  dibs__mem_task(none, &checked, 0);
  dibs__op_free_answer(&checked.op);
  dibs__mem_tasks_free(none);
  op->got = NULL;
  op->got_count = 0;
  op->next_ms = -1;
  op->more = false;
  op->changed = op->last = 0;
  memcpy(op->why, checked.why, sizeof op->why);
  op->op.status = checked.op.status;
  return op->op.status != DIBS_OK;
}

static dibs__status run_task(batch *b, task_op *op) {
  switch (op->op.verb) {
  case DIBS__TASK_ADD:
    return run_add(b, op);
  case DIBS__TASK_CLAIM:
    return run_claim(b, op);
  case DIBS__TASK_EXTEND:
  case DIBS__TASK_END:
    return run_items(b, op);
  case DIBS__TASK_CHANGE:
    return dibs__mongo_task_change(b, op);
  case DIBS__TASK_LIST:
    return dibs__mongo_task_list(b, op);
  case DIBS__TASK_COUNT:
    return dibs__mongo_task_count(b, op);
  default:
    return dibs__mongo_kind_run(b, op->kind, decide_kind, op);
  }
}

static bool reads_only(const task_op *op) {
  return op->op.verb == DIBS__TASK_LIST || op->op.verb == DIBS__TASK_COUNT ||
         (op->op.verb == DIBS__TASK_CHANGE && op->dry);
}

static void answer(task_op *op, dibs__status status) {
  if (status == DIBS_UNKNOWN && reads_only(op)) status = DIBS_UNAVAILABLE;
  if (status == DIBS_OK) return;
  dibs__op_free_answer(&op->op);
  op->op.status = status;
}

/* ---- Several ENDs, or EXTENDs, of one kind: with one commit ---- */

static task_op *own_task(const batch *b, size_t i) {
  task_op *op = (task_op *)b->elements[i].op;
  return op->op.family == DIBS__FAM_TASK && !op->table ? op : NULL;
}

static bool join(const task_op *a, const task_op *b) {
  bool items = a->op.verb == DIBS__TASK_END || a->op.verb == DIBS__TASK_EXTEND;
  return items && a->op.verb == b->op.verb && a->timeout_ms == b->timeout_ms && dibs__str_equal(a->kind, b->kind);
}

static void share_out(task_op *const ops[], size_t count, const task_op *joined, dibs__status status) {
  const struct dibs__task_item *from = joined->items;
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->count) memcpy(ops[i]->items, from, ops[i]->count * sizeof *from);
    from += ops[i]->count;
    ops[i]->op.status = joined->op.status;
    memcpy(ops[i]->why, joined->why, sizeof joined->why);
    answer(ops[i], status);
  }
}

/* As if one caller had sent all of their items, in this order (R73). */
static void run_joined(batch *b, task_op *const ops[], size_t count, uint32_t items) {
  task_op joined = *ops[0];
  joined.items = calloc((size_t)items + 1, sizeof *joined.items);
  joined.count = 0;
  if (!joined.items) {
    for (size_t i = 0; i < count; i++) ops[i]->op.status = DIBS_NO_MEMORY;
    return;
  }
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->count) memcpy(joined.items + joined.count, ops[i]->items, ops[i]->count * sizeof *joined.items);
    joined.count += ops[i]->count;
  }
  dibs__status status = run_items(b, &joined);
  share_out(ops, count, &joined, status);
  free(joined.items);
}

/* Runs the operation at `i`, and later operations that join it; how many elements were looked at. */
static size_t run_from(batch *b, size_t i) {
  task_op *ops[DIBS__MONGO_BATCH], *first = own_task(b, i);
  size_t count = 0, at = i;
  uint32_t items = 0;
  for (; at < b->count; at++) {
    task_op *op = own_task(b, at);
    if (!op) continue; /* of another family */
    if (at > i && (!join(first, op) || op->count > DIBS__TASK_ITEMS - items)) break;
    if (refuses(op)) {
      if (at > i) continue;
      return 1;
    }
    op->op.status = DIBS_OK;
    ops[count++] = op;
    items += op->count;
    if (!join(first, first)) {
      at++;
      break;
    }
  }
  bool late = link_of(b)->broken || !dibs__tick_before(dibs__tick_now(), link_of(b)->by);
  if (late)
    for (size_t k = 0; k < count; k++) answer(ops[k], DIBS_UNAVAILABLE);
  else if (count > 1)
    run_joined(b, ops, count, items);
  else
    answer(first, run_task(b, first));
  return at - i;
}

void dibs__mongo_tasks(batch *b) {
  struct dibs__mongo *store = (struct dibs__mongo *)b->session->base.store;
  for (size_t i = 0; i < b->count;) {
    bool own = own_task(b, i) != NULL;
    if (own) atomic_store(&store->has_tasks, true);
    i += own ? run_from(b, i) : 1;
  }
  if (b->tasks_ready && !link_of(b)->broken) dibs__mongo_tell_tasks(store, link_of(b));
}
