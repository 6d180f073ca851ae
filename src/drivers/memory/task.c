/* SPDX-License-Identifier: MIT */
/*
 * Tasks of the memory driver (store/task.h): what ADD, CLAIM, EXTEND, END and KIND decide; task_lane.c has CLAIM with
 * lanes.  Every other driver is compared with it.
 *
 * Each verb that changes something first deletes finished tasks whose time is over.  A user's table is not served.
 */
#include "drivers/memory/task_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_task task;
typedef struct dibs__mem_kind kind;
typedef struct dibs__mem_tasks tasks;
typedef struct dibs__task_op task_op;

enum { SWEEP_FROM = 64 }; /* tokens, before expired ones are searched */

/* ---- All tasks of a memory ---- */

static void token_drop(tasks *all, struct dibs__mem_token *token) {
  dibs__map_remove(&all->tokens, &token->link);
  free(token->nrs);
  free(token->replays);
  free(token);
}

static void forget_tokens(tasks *all, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&all->tokens, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&all->tokens, node);
    if (((struct dibs__mem_token *)node)->until <= before) token_drop(all, (struct dibs__mem_token *)node);
  }
}

DIBS__MODULE_API void dibs__mem_tasks_free(tasks *all) {
  if (!all) return;
  struct dibs__map_node *next, *node = NULL;
  for (task *t; (t = all->all);) dibs__mem_task_purge(all, t, INT64_MAX);
  if (all->tokens.heads) forget_tokens(all, INT64_MAX);
  if (all->kinds.heads) node = dibs__mem_next(&all->kinds, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&all->kinds, node);
    free(((kind *)node)->lanes);
    free(node);
  }
  dibs__map_free(&all->kinds);
  dibs__map_free(&all->tokens);
  free(all);
}

DIBS__MODULE_API tasks *dibs__mem_tasks_new(int64_t now) {
  tasks *all = calloc(1, sizeof *all);
  if (!all) return NULL;
  all->wall = dibs__wall_ms() - now;
  bool enough = dibs__map_init(&all->kinds);
  enough = dibs__map_init(&all->tokens) && enough;
  if (enough) return all;
  dibs__mem_tasks_free(all);
  return NULL;
}

static void sweep_finished(tasks *all, int64_t now) {
  for (task *t; (t = dibs__mem_order_first(all->kept, DIBS__MEM_BY_TURN)) && t->due <= now;)
    dibs__mem_task_purge(all, t, now);
}

DIBS__MODULE_API void dibs__mem_tasks_sweep(tasks *all, int64_t now) {
  sweep_finished(all, now + all->wall);
  forget_tokens(all, now + all->wall);
}

/* ---- Valid operations ---- */

bool dibs__mem_task_refuse(task_op *op, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(op->why, sizeof op->why, format, args);
  va_end(args);
  op->op.status = DIBS_INVALID;
  return false;
}

static bool is_time(int64_t ms) {
  return ms >= 0 && ms <= DIBS__TASK_MS_MAX;
}

static bool add_valid(task_op *op) {
  if (op->token.len > DIBS__TASK_TOKEN_MAX) return dibs__mem_task_refuse(op, "the token has more than 64 bytes");
  if (op->token.len && (op->token_ms <= 0 || !is_time(op->token_ms)))
    return dibs__mem_task_refuse(op, "token_ms is out of range");
  return true;
}

static bool claim_valid(task_op *op) {
  if (op->phase_count > DIBS__TASK_PHASES)
    return dibs__mem_task_refuse(op, "a claim names at most %d phases", DIBS__TASK_PHASES);
  for (uint32_t i = 0; i < op->phase_count; i++)
    if (op->phases[i].len > DIBS_NAME_MAX)
      return dibs__mem_task_refuse(op, "a phase has at most %d bytes", DIBS_NAME_MAX);
  if (op->by.len > DIBS_OWNER_MAX) return dibs__mem_task_refuse(op, "an owner has at most %d bytes", DIBS_OWNER_MAX);
  return dibs__mem_lanes_valid(op);
}

static bool filter_valid(task_op *op) {
  const struct dibs__task_filter *f = &op->filter;
  if (f->kind.len > DIBS_NAME_MAX || f->phase.len > DIBS_NAME_MAX || f->serial.len > DIBS_NAME_MAX)
    return dibs__mem_task_refuse(op, "a text of the filter has more than %d bytes", DIBS_NAME_MAX);
  if (f->states & ~(DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED)) return dibs__mem_task_refuse(op, "no such state");
  if (!is_time(f->older_ms)) return dibs__mem_task_refuse(op, "older_ms is out of range");
  if (op->op.verb == DIBS__TASK_CHANGE && op->change > DIBS__TASK_PURGE)
    return dibs__mem_task_refuse(op, "no such change");
  if (op->op.verb == DIBS__TASK_LIST && op->errors && !f->nr)
    return dibs__mem_task_refuse(op, "errors are those of one task");
  return true;
}

static bool settings_valid(task_op *op) {
  uint32_t known = DIBS__TASK_SET_RUNNING | DIBS__TASK_SET_PAUSED | DIBS__TASK_SET_KEEP | DIBS__TASK_SET_NO_LANES;
  if (op->set & ~known) return dibs__mem_task_refuse(op, "no such setting");
  if ((op->set & DIBS__TASK_SET_KEEP) && op->keep_ms != -1 && !is_time(op->keep_ms))
    return dibs__mem_task_refuse(op, "keep_ms is out of range");
  return true;
}

static bool op_valid(task_op *op) {
  uint16_t verb = op->op.verb;
  if (verb > DIBS__TASK_KIND) return dibs__mem_task_refuse(op, "no such verb");
  bool names = verb == DIBS__TASK_ADD || verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_KIND;
  bool lists = verb == DIBS__TASK_ADD || verb == DIBS__TASK_EXTEND || verb == DIBS__TASK_END;
  bool limits = verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_CHANGE || verb == DIBS__TASK_LIST;
  bool times = verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_EXTEND;
  if ((names && op->kind.len == 0) || ((names || verb == DIBS__TASK_COUNT) && op->kind.len > DIBS_NAME_MAX))
    return dibs__mem_task_refuse(op, "a kind has 1 to %d bytes", DIBS_NAME_MAX);
  if (lists && op->count > DIBS__TASK_ITEMS) return dibs__mem_task_refuse(op, "more than %d items", DIBS__TASK_ITEMS);
  if (limits && (op->most < 1 || op->most > DIBS__TASK_ITEMS))
    return dibs__mem_task_refuse(op, "`most` is from 1 to %d", DIBS__TASK_ITEMS);
  if (times && (op->timeout_ms <= 0 || !is_time(op->timeout_ms)))
    return dibs__mem_task_refuse(op, "timeout_ms is out of range");
  if (verb == DIBS__TASK_ADD) return add_valid(op);
  if (verb == DIBS__TASK_CLAIM) return claim_valid(op);
  if (verb == DIBS__TASK_CHANGE || verb == DIBS__TASK_LIST) return filter_valid(op);
  return verb != DIBS__TASK_KIND || settings_valid(op);
}

static bool new_valid(const struct dibs__task_new *n) {
  return n->phase.len <= DIBS_NAME_MAX && n->serial.len <= DIBS_NAME_MAX && n->unique.len <= DIBS_NAME_MAX &&
         n->payload.len <= DIBS_RECORD_MAX && is_time(n->at_ms) && is_time(n->delay_ms) &&
         n->priority >= -DIBS__TASK_PRIORITY && n->priority <= DIBS__TASK_PRIORITY;
}

static bool item_valid(const task_op *op, const struct dibs__task_item *item) {
  if (item->phase.len > DIBS_NAME_MAX) return false;
  return op->op.verb == DIBS__TASK_EXTEND || (item->verdict <= DIBS__TASK_END_GIVE && is_time(item->delay_ms));
}

/* ---- ADD ---- */

static struct dibs__mem_token *find_token(tasks *all, dibs__str text, int64_t now) {
  struct dibs__map_node *link = dibs__map_head(&all->tokens, dibs__hash(text.p, text.len));
  for (; link; link = link->next) {
    struct dibs__mem_token *token = (struct dibs__mem_token *)link;
    if (!dibs__str_equal(dibs__str_of(token->text, token->len), text)) continue;
    if (token->until > now) return token;
    token_drop(all, token);
    return NULL;
  }
  return NULL;
}

static struct dibs__mem_token *token_make(const task_op *op, int64_t now) {
  struct dibs__mem_token *token = calloc(1, sizeof *token + op->token.len + 1);
  if (!token) return NULL;
  token->until = now + op->token_ms;
  token->len = op->token.len;
  memcpy(token->text, op->token.p, op->token.len);
  token->count = op->count;
  token->nrs = calloc((size_t)op->count + 1, sizeof *token->nrs);
  token->replays = calloc((size_t)op->count + 1, sizeof *token->replays);
  if (token->nrs && token->replays) return token;
  free(token->nrs);
  free(token->replays);
  free(token);
  return NULL;
}

static void keep_token(tasks *all, struct dibs__mem_token *token, const task_op *op, int64_t now) {
  if (all->tokens.count >= SWEEP_FROM && all->tokens.count >= all->tokens_swept * 2) {
    forget_tokens(all, now);
    all->tokens_swept = all->tokens.count;
  }
  for (uint32_t i = 0; i < op->count; i++) {
    token->nrs[i] = op->news[i].nr;
    token->replays[i] = op->news[i].status == DIBS_REPLAY;
  }
  dibs__map_add(&all->tokens, &token->link, dibs__hash(token->text, token->len));
}

DIBS__MODULE_API bool dibs__mem_task_load_token(tasks *all, const task_op *op, int64_t until, const uint64_t *nrs,
                                                const bool *replays, uint32_t count) {
  task_op made = {.token = op->token, .count = count};
  struct dibs__mem_token *token = token_make(&made, until);
  if (!token) return false;
  memcpy(token->nrs, nrs, count * sizeof *nrs);
  memcpy(token->replays, replays, count * sizeof *replays);
  dibs__map_add(&all->tokens, &token->link, dibs__hash(token->text, token->len));
  return true;
}

static void repeat_add(const struct dibs__mem_token *token, task_op *op) {
  if (token->count != op->count) {
    dibs__mem_task_refuse(op, "the token was used for another number of items");
    return;
  }
  for (uint32_t i = 0; i < op->count; i++) {
    struct dibs__task_new *n = &op->news[i];
    n->nr = token->nrs[i];
    n->repeated = true;
    n->status = token->replays[i] || op->wants_new ? DIBS_REPLAY : DIBS_OK;
    if (n->nr == 0) n->status = DIBS_INVALID;
  }
}

/* All memory that the items need; none of them is in an order yet. */
static bool make_rows(const task_op *op, task **rows, int64_t now) {
  for (uint32_t i = 0; i < op->count; i++) {
    const struct dibs__task_new *n = &op->news[i];
    if (!new_valid(n)) continue;
    rows[i] = dibs__mem_task_make(n);
    if (!rows[i]) return false;
    rows[i]->due = (n->at_ms > now ? n->at_ms : now) + n->delay_ms;
  }
  return true;
}

static void add_row(tasks *all, kind *k, struct dibs__task_new *n, task *row, int64_t now) {
  if (!row) return;
  const task *same = row->unique.len ? dibs__mem_task_of_unique(k, row->unique) : NULL;
  n->status = same ? DIBS_REPLAY : DIBS_OK;
  if (same)
    dibs__mem_task_free(row);
  else
    dibs__mem_task_add(all, k, row, now);
  n->nr = same ? same->nr : row->nr;
}

/* An ADD without a valid item does not use its token. */
static bool refuse_items(const task_op *op) {
  bool all_invalid = true;
  for (uint32_t i = 0; i < op->count; i++) {
    op->news[i].nr = 0;
    op->news[i].repeated = false;
    op->news[i].status = DIBS_INVALID;
    all_invalid = all_invalid && !new_valid(&op->news[i]);
  }
  return all_invalid;
}

static void run_add(tasks *all, task_op *op, int64_t now) {
  if (refuse_items(op)) return;
  struct dibs__mem_token *token = op->token.len ? find_token(all, op->token, now) : NULL;
  if (token) {
    repeat_add(token, op);
    return;
  }
  task **rows = calloc((size_t)op->count + 1, sizeof(task *));
  bool enough = rows && make_rows(op, rows, now);
  if (enough && op->token.len) enough = (token = token_make(op, now));
  kind *k = enough ? dibs__mem_kind_get(all, op->kind) : NULL;
  if (k) {
    for (uint32_t i = 0; i < op->count; i++) add_row(all, k, &op->news[i], rows[i], now);
    if (token) keep_token(all, token, op, now);
    dibs__mem_kind_drop_if_idle(all, k);
  } else {
    for (uint32_t i = 0; rows && i < op->count; i++) dibs__mem_task_free(rows[i]);
    if (token) free(token->nrs);
    if (token) free(token->replays);
    free(token);
    op->op.status = DIBS_NO_MEMORY;
  }
  free(rows);
}

/* ---- CLAIM ---- */

DIBS__MODULE_API void dibs__mem_task_pass_time(tasks *all, kind *k, int64_t now) {
  for (task *t; (t = dibs__mem_order_first(k->timed, DIBS__MEM_BY_TURN)) && t->due <= now;) {
    if (t->state == DIBS__TASK_WAITING)
      dibs__mem_task_ready(all, t, t->due);
    else if (!dibs__mem_task_end_late(all, t, t->due, now)) /* at a later CLAIM */
      return;
  }
}

/* Those that the id has from an earlier CLAIM. */
static uint32_t find_claimed(const kind *k, const task_op *op, int64_t now, task **some) {
  task before = {.claim = dibs__id_digest(op->id)};
  uint32_t count = 0;
  for (task *t = &before; count < DIBS__TASK_ITEMS;) {
    t = dibs__mem_order_next(k->claims, t, DIBS__MEM_BY_CLAIM);
    if (!t || t->claim != before.claim) break;
    bool has = op->lane_count == 0 || (t->lane.v && t->lane.v == dibs__mem_lanes_fence(op, t).v);
    if (t->due > now && has) some[count++] = t;
  }
  return count;
}

static task *next_of_phase(const kind *k, const task *after) {
  task *t = dibs__mem_order_next(k->phased, after, DIBS__MEM_BY_PHASE);
  bool same = t && t->phase_len == after->phase_len && memcmp(t->phase, after->phase, t->phase_len) == 0;
  return same ? t : NULL;
}

/* The first ready one of each phase that the claim names. */
static uint32_t first_of_phases(const kind *k, const task_op *op, task *firsts[DIBS__TASK_PHASES]) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < op->phase_count; i++) {
    task before = {.rank = INT32_MIN, .phase_len = op->phases[i].len};
    if (before.phase_len) memcpy(before.phase, op->phases[i].p, before.phase_len);
    task *t = next_of_phase(k, &before);
    for (uint32_t j = 0; t && j < count; j++)
      if (firsts[j] == t) t = NULL; /* a phase that is named twice */
    if (t) firsts[count++] = t;
  }
  return count;
}

static uint32_t pick_of_phases(const kind *k, const task_op *op, uint32_t most, task **some) {
  task *firsts[DIBS__TASK_PHASES];
  uint32_t left = first_of_phases(k, op, firsts), count = 0;
  while (left && count < most) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < left; i++)
      if (dibs__mem_order_compare(DIBS__MEM_BY_TURN, firsts[i], firsts[best]) < 0) best = i;
    some[count++] = firsts[best];
    firsts[best] = next_of_phase(k, firsts[best]);
    if (!firsts[best]) firsts[best] = firsts[--left];
  }
  return count;
}

DIBS__MODULE_API uint32_t dibs__mem_task_most(const kind *k, uint32_t most) {
  uint64_t claimed = k->states[DIBS__TASK_CLAIMED], free_runs = claimed < k->running ? k->running - claimed : 0;
  if (k->paused) return 0;
  return k->running && free_runs < most ? (uint32_t)free_runs : most;
}

static uint32_t pick_ready(const kind *k, task_op *op, task **some) {
  uint32_t most = dibs__mem_task_most(k, op->most), count = 0;
  if (op->lane_count) return dibs__mem_lanes_pick(k, op, most, some);
  if (op->phase_count) return pick_of_phases(k, op, most, some);
  task *t = dibs__mem_order_first(k->ready, DIBS__MEM_BY_TURN);
  for (; t && count < most; t = dibs__mem_order_next(k->ready, t, DIBS__MEM_BY_TURN)) some[count++] = t;
  return count;
}

static void run_claim(tasks *all, task_op *op, int64_t now) {
  task *some[DIBS__TASK_ITEMS];
  kind *k = op->lane_count ? dibs__mem_lanes_begin(all, op, now) : dibs__mem_kind_find(all, op->kind);
  if (!k) return;
  uint32_t count = op->again ? find_claimed(k, op, now, some) : 0;
  bool fresh = count == 0;
  if (fresh) dibs__mem_task_pass_time(all, k, now);
  if (fresh) count = pick_ready(k, op, some);
  if (count == 0) {
    const task *next = dibs__mem_order_first(k->timed, DIBS__MEM_BY_TURN);
    if (next) op->next_ms = next->due - now;
    if (!op->lane_count && k->topic_len)
      snprintf(op->why, sizeof op->why, "its tasks with a key go to the lanes of the topic \"%.*s\"",
               (int)(k->topic_len < 100 ? k->topic_len : 100), k->topic);
    return;
  }
  op->got = dibs__mem_task_rows_alloc(some, count, true);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  op->got_count = count;
  for (uint32_t i = 0; i < count && fresh; i++)
    dibs__mem_task_claim(all, some[i], op, dibs__mem_lanes_fence(op, some[i]), now);
  dibs__mem_task_rows_fill(op->got, some, count, true);
  struct dibs__task_row *rows = op->got;
  for (uint32_t i = 0; i < count; i++)
    if (rows[i].fails == 0) rows[i].text = dibs__str_of("", 0);
}

/* ---- EXTEND, END ---- */

static void set_phase(task *t, dibs__str phase) {
  if (phase.len == 0) return;
  t->phase_len = phase.len;
  memcpy(t->phase, phase.p, phase.len);
}

static dibs__status extend_one(tasks *all, const task_op *op, struct dibs__task_item *item, int64_t now) {
  task *t = dibs__mem_task_find(all, item->nr);
  if (!t) return DIBS_NOT_FOUND;
  if (t->state != DIBS__TASK_CLAIMED || t->fence.v != item->fence.v) return DIBS_STALE;
  set_phase(t, item->phase);
  t->at = now;
  item->due_ms = now + op->timeout_ms;
  dibs__mem_task_wait(all, t, DIBS__TASK_CLAIMED, item->due_ms);
  return DIBS_OK;
}

static bool keep_result(task *t, dibs__str text) {
  if (text.len > DIBS__TASK_TEXT_MAX) text = dibs__str_of(text.p + text.len - DIBS__TASK_TEXT_MAX, DIBS__TASK_TEXT_MAX);
  t->result = malloc((size_t)text.len + 1);
  if (!t->result) return false;
  if (text.len) memcpy(t->result, text.p, text.len);
  t->result_len = text.len;
  return true;
}

/* What needs memory, before anything changes. */
static bool keep_text(task *t, const struct dibs__task_item *item, int64_t now) {
  if (item->verdict == DIBS__TASK_END_DONE) return keep_result(t, item->text);
  bool fails = item->verdict == DIBS__TASK_END_FAIL || item->verdict == DIBS__TASK_END_DEAD;
  return !fails || dibs__mem_task_failed(t, item->text, now);
}

static void apply_verdict(tasks *all, task *t, const struct dibs__task_item *item, int64_t now) {
  switch (item->verdict) {
  case DIBS__TASK_END_DONE:
    dibs__mem_task_finish(all, t, DIBS__TASK_DONE, now);
    return;
  case DIBS__TASK_END_WAIT:
    if (item->delay_ms)
      dibs__mem_task_wait(all, t, DIBS__TASK_WAITING, now + item->delay_ms);
    else
      dibs__mem_task_ready(all, t, now);
    return;
  case DIBS__TASK_END_FAIL:
    dibs__mem_task_fail_try(all, t, item->tries ? item->tries : t->tries, now + item->delay_ms, now);
    return;
  case DIBS__TASK_END_DEAD:
    dibs__mem_task_give_up(all, t, now);
    return;
  default:
    if (item->verdict == DIBS__TASK_END_GIVE) t->attempts--;
    dibs__mem_task_ready(all, t, now);
  }
}

static dibs__status end_one(tasks *all, struct dibs__task_item *item, int64_t now) {
  task *t = dibs__mem_task_find(all, item->nr);
  if (!t) return DIBS_NOT_FOUND;
  if (item->fence.v == 0) return DIBS_STALE;
  item->repeated = t->ended.v == item->fence.v && t->verdict == item->verdict;
  if (item->repeated) return DIBS_OK;
  if (t->state != DIBS__TASK_CLAIMED || t->fence.v != item->fence.v) return DIBS_STALE;
  bool done = item->verdict == DIBS__TASK_END_DONE;
  if (done && dibs__mem_task_too_early(t)) return DIBS_STALE;
  if (!keep_text(t, item, now)) return DIBS_NO_MEMORY;
  dibs__fence lane = t->lane;
  set_phase(t, item->phase);
  t->ended = item->fence;
  t->verdict = item->verdict;
  t->at = now;
  apply_verdict(all, t, item, now);
  if (!done) dibs__mem_task_end_later(all, t, lane, now);
  return DIBS_OK;
}

static void run_items(tasks *all, task_op *op, int64_t now) {
  for (uint32_t i = 0; i < op->count; i++) {
    struct dibs__task_item *item = &op->items[i];
    item->due_ms = 0;
    item->repeated = false;
    item->locked_now[0] = '\0';
    item->status = DIBS_INVALID;
    if (!item_valid(op, item)) continue;
    item->status = op->op.verb == DIBS__TASK_END ? end_one(all, item, now) : extend_one(all, op, item, now);
  }
}

/* ---- KIND ---- */

static void run_kind(tasks *all, task_op *op, int64_t now) {
  kind *k = dibs__mem_kind_get(all, op->kind);
  if (!k) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  k->has_settings = true;
  if (op->set & DIBS__TASK_SET_RUNNING) k->running = op->running;
  if (op->set & DIBS__TASK_SET_PAUSED) k->paused = op->paused;
  if (op->set & DIBS__TASK_SET_KEEP) k->keep_ms = op->keep_ms;
  if (op->set & DIBS__TASK_SET_NO_LANES) dibs__mem_lanes_end(all, k, now);
}

/* ---- One operation ---- */

static void clear_answer(task_op *op) {
  op->got = NULL;
  op->got_count = 0;
  op->next_ms = -1;
  op->more = false;
  op->changed = op->last = 0;
  op->why[0] = '\0';
}

DIBS__MODULE_API void dibs__mem_task(tasks *all, task_op *op, int64_t at) {
  int64_t now = at + all->wall;
  clear_answer(op);
  if (op->table) {
    dibs__mem_task_refuse(op, "a store in memory has no tables of users");
    op->op.status = DIBS_UNSUPPORTED;
    return;
  }
  op->op.status = DIBS_OK;
  if (!op_valid(op)) return;
  if (op->op.verb != DIBS__TASK_LIST && op->op.verb != DIBS__TASK_COUNT) sweep_finished(all, now);
  switch (op->op.verb) {
  case DIBS__TASK_ADD:
    run_add(all, op, now);
    return;
  case DIBS__TASK_CLAIM:
    run_claim(all, op, now);
    return;
  case DIBS__TASK_EXTEND:
  case DIBS__TASK_END:
    run_items(all, op, now);
    return;
  case DIBS__TASK_CHANGE:
    dibs__mem_task_change(all, op, now);
    return;
  case DIBS__TASK_LIST:
    dibs__mem_task_list(all, op, now);
    return;
  case DIBS__TASK_COUNT:
    dibs__mem_task_count(all, op, now);
    return;
  default:
    run_kind(all, op, now);
  }
}
