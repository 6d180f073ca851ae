/* SPDX-License-Identifier: MIT */
/*
 * What people read and change of dibs' own tasks: LIST, COUNT and CHANGE.
 *
 * LIST and COUNT read the documents of the tasks, and write nothing.  The client that commits a change also applies it,
 * before it answers.  So they show all changes that were answered.  CHANGE searches in the same way, and then changes
 * what it found, by kind, each kind with a commit (kind.c), which decides again.
 */
#include "drivers/mongodb/kind_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_try try;
typedef struct dibs__mem_task task;
typedef struct dibs__task_op task_op;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

/* ---- By kind ---- */

struct kinds {
  const uint64_t *nrs;
  uint32_t count;
  uint32_t *of; /* the number of its kind, of each; UINT32_MAX: none */
  char (*texts)[DIBS_NAME_MAX];
  uint32_t *lens, kinds;
};

static uint32_t kind_nr(struct kinds *k, dibs__str kind) {
  for (uint32_t i = 0; i < k->kinds; i++)
    if (dibs__str_equal(kind, dibs__str_of(k->texts[i], k->lens[i]))) return i;
  memcpy(k->texts[k->kinds], kind.p, kind.len);
  k->lens[k->kinds] = kind.len;
  return k->kinds++;
}

static bool see_kind(void *user, const bson_t *row) {
  struct kinds *k = user;
  uint64_t nr = (uint64_t)dibs__mongo_number_in(row, "_id", 0);
  dibs__str kind = dibs__mongo_bytes_in(row, "kind");
  if (nr == 0 || kind.len < 1 || kind.len > DIBS_NAME_MAX) return true;
  for (uint32_t i = 0; i < k->count; i++)
    if (k->nrs[i] == nr) k->of[i] = kind_nr(k, kind);
  return true;
}

static dibs__status read_kinds(batch *b, struct kinds *k) {
  bson_t filter = BSON_INITIALIZER, options = BSON_INITIALIZER, part;
  dibs__mongo_put_nrs(&filter, "$in", k->nrs, k->count);
  BSON_APPEND_DOCUMENT_BEGIN(&options, "projection", &part);
  BSON_APPEND_INT32(&part, "kind", 1);
  bson_append_document_end(&options, &part);
  dibs__status status = dibs__mongo_find_in(link_of(b), link_of(b)->collections[DIBS__MONGO_TASK], &filter, &options,
                                            false, see_kind, k, b->result);
  bson_destroy(&filter);
  bson_destroy(&options);
  return status;
}

dibs__status dibs__mongo_by_kind(batch *b, const uint64_t *nrs, uint32_t count, dibs__str known,
                                 dibs__mongo_of_kind *each, void *user) {
  struct kinds k = {.nrs = nrs, .count = count};
  k.of = malloc((count + 1) * sizeof *k.of);
  k.texts = malloc((count + 1) * sizeof *k.texts);
  k.lens = malloc((count + 1) * sizeof *k.lens);
  uint32_t *which = malloc((count + 1) * sizeof *which);
  dibs__status status = k.of && k.texts && k.lens && which ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK) {
    memset(k.of, 0xff, count * sizeof *k.of);
    status = read_kinds(b, &k);
  }
  for (uint32_t kind = 0; kind < k.kinds && status == DIBS_OK; kind++) {
    uint32_t some = 0;
    dibs__str text = dibs__str_of(k.texts[kind], k.lens[kind]);
    if (dibs__str_equal(text, known)) continue;
    for (uint32_t i = 0; i < count; i++)
      if (k.of[i] == kind) which[some++] = i;
    status = each(user, text, which, some);
  }
  free(k.of);
  free(k.texts);
  free(k.lens);
  free(which);
  return status;
}

/* ---- The filter ---- */

static bson_t *filter_of(const task_op *op, uint32_t states, uint64_t after, int64_t now) {
  const struct dibs__task_filter *f = &op->filter;
  bson_t *filter = dibs__mongo_rows_of(f->kind), range;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &range);
  BSON_APPEND_INT64(&range, "$gt", (int64_t)(after > INT64_MAX ? INT64_MAX : after));
  if (f->nr) BSON_APPEND_INT64(&range, "$eq", (int64_t)f->nr);
  bson_append_document_end(filter, &range);
  if (f->phase.len) dibs__mongo_put_bytes(filter, "phase", f->phase);
  if (f->serial.len) dibs__mongo_put_bytes(filter, "serial", f->serial);
  dibs__mongo_put_states(filter, f->states ? f->states & states : states);
  if (f->older_ms) dibs__mongo_put_compare(filter, "at", "$lte", now - f->older_ms);
  return filter;
}

/* A part of the latest error is not a condition of the filter, because errors are bytes. */
static bool error_fits(const task_op *op, const bson_t *row) {
  dibs__str part = op->filter.text;
  bson_iter_t at, in;
  if (part.len == 0) return true;
  if (dibs__mongo_number_in(row, "state", 0) == DIBS__TASK_DONE) return false;
  if (!bson_iter_init_find(&at, row, "last") || !bson_iter_recurse(&at, &in) || !bson_iter_find(&in, "text"))
    return false;
  const uint8_t *bytes = NULL;
  uint32_t len = 0;
  if (BSON_ITER_HOLDS_UTF8(&in))
    bytes = (const uint8_t *)bson_iter_utf8(&in, &len);
  else if (BSON_ITER_HOLDS_BINARY(&in))
    bson_iter_binary(&in, NULL, &len, &bytes);
  return bytes && memmem(bytes, len, part.p, part.len) != NULL;
}

struct page {
  const task_op *op;
  uint32_t seen, found;
  uint64_t last;
  bool (*keep)(void *user, const bson_t *row); /* a row that fits; false: it stops */
  void *user;
};

static bool see_one(void *user, const bson_t *row) {
  struct page *p = user;
  p->seen++;
  p->last = (uint64_t)dibs__mongo_number_in(row, "_id", 0);
  if (!error_fits(p->op, row)) return true;
  p->found++;
  return p->keep(p->user, row) && p->found < p->op->most;
}

/* The first `most` that fit, by number. */
static dibs__status find_fitting(batch *b, struct page *p, uint64_t after, uint32_t states, bool payloads,
                                 bool errors) {
  int64_t now = dibs__mongo_latest(link_of(b));
  dibs__status status = DIBS_OK;
  for (p->last = after; status == DIBS_OK; p->seen = 0) {
    struct dibs__mongo_pick pick = {.filter = filter_of(p->op, states, p->last, now),
                                    .most = p->op->filter.text.len ? DIBS__TASK_ITEMS : p->op->most,
                                    .payloads = payloads,
                                    .all_errors = errors};
    int64_t most = pick.most;
    status = dibs__mongo_rows_read(b, pick, see_one, p);
    if (p->found >= p->op->most || p->seen < most) break;
  }
  return status;
}

/* ---- LIST ---- */

static bool keep_row(void *user, const bson_t *row) {
  try *t = user;
  if (dibs__mem_task_find(t->tasks, (uint64_t)dibs__mongo_number_in(row, "_id", 0))) return true;
  struct dibs__mem_kind *kind = dibs__mem_kind_get(t->tasks, dibs__mongo_bytes_in(row, "kind"));
  if (!kind) {
    t->status = DIBS_NO_MEMORY;
    return false;
  }
  kind->has_settings = true;
  dibs__mongo_row_decode(t, kind, row);
  return t->status == DIBS_OK;
}

static void end_reading(try *t) {
  for (size_t i = 0; i < t->count; i++) bson_destroy(t->rows[i].was);
  free(t->rows);
  dibs__mem_tasks_free(t->tasks);
}

dibs__status dibs__mongo_task_list(batch *b, task_op *op) {
  try t = {.b = b, .tasks = dibs__mem_tasks_new(0)};
  task_op of_one = {.filter = {.nr = op->filter.nr}, .most = 1}; /* errors: no other member of the filter counts */
  struct page p = {.op = op->errors ? &of_one : op, .keep = keep_row, .user = &t};
  if (!t.tasks) return DIBS_NO_MEMORY;
  t.tasks->wall = 0;
  dibs__status status = find_fitting(b, &p, p.op->filter.after, DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED,
                                     op->payloads && !op->errors, op->errors);
  if (status == DIBS_OK) status = t.status;
  if (status == DIBS_OK) dibs__mem_task(t.tasks, op, dibs__mongo_latest(link_of(b)));
  end_reading(&t);
  return status;
}

/* ---- COUNT ---- */

struct counting {
  int64_t now;
  struct dibs__task_kind *rows;
  char **texts; /* of the rows */
  size_t count, capacity, bytes;
  dibs__status status;
};

static struct dibs__task_kind *counted_kind(struct counting *c, dibs__str kind) {
  for (size_t i = 0; i < c->count; i++)
    if (dibs__str_equal(c->rows[i].kind, kind)) return &c->rows[i];
  if (c->count == c->capacity) {
    size_t capacity = c->capacity ? 2 * c->capacity : 32;
    struct dibs__task_kind *rows = realloc(c->rows, capacity * sizeof *rows);
    if (rows) c->rows = rows;
    char **texts = realloc(c->texts, capacity * sizeof *texts);
    if (texts) c->texts = texts;
    if (!rows || !texts) return NULL;
    c->capacity = capacity;
  }
  char *text = malloc((size_t)kind.len + 1);
  if (!text) return NULL;
  memcpy(text, kind.p, kind.len);
  c->texts[c->count] = text;
  c->rows[c->count] = (struct dibs__task_kind){.kind = dibs__str_of(text, kind.len), .oldest_ms = -1, .keep_ms = -1};
  c->bytes += kind.len + 2;
  return &c->rows[c->count++];
}

static bool see_settings(void *user, const bson_t *row) {
  struct counting *c = user;
  bson_iter_t at;
  dibs__str kind = dibs__mongo_bytes_in(row, "_id");
  if (!bson_iter_init_find(&at, row, "settings") || !bson_iter_as_bool(&at) || kind.len < 1) return true;
  struct dibs__task_kind *k = counted_kind(c, kind);
  if (!k) c->status = DIBS_NO_MEMORY;
  if (!k) return false;
  k->running = (uint32_t)dibs__mongo_number_in(row, "running", 0);
  k->paused = bson_iter_init_find(&at, row, "paused") && bson_iter_as_bool(&at);
  k->keep_ms = dibs__mongo_number_in(row, "keep_ms", -1);
  return true;
}

/* {_id: {kind, state}, n, due}: how many, and the least `due`. */
static bool see_group(void *user, const bson_t *row) {
  struct counting *c = user;
  bson_iter_t at;
  bson_t id;
  uint32_t len;
  const uint8_t *bytes;
  if (!bson_iter_init_find(&at, row, "_id") || !BSON_ITER_HOLDS_DOCUMENT(&at)) return true;
  bson_iter_document(&at, &len, &bytes);
  if (!bson_init_static(&id, bytes, len)) return true;
  dibs__str kind = dibs__mongo_bytes_in(&id, "kind");
  int64_t state = dibs__mongo_number_in(&id, "state", -1), due = dibs__mongo_number_in(row, "due", INT64_MAX);
  if (kind.len < 1 || state < 0 || state > DIBS__TASK_CANCELLED) return true;
  struct dibs__task_kind *k = counted_kind(c, kind);
  if (!k) c->status = DIBS_NO_MEMORY;
  if (!k) return false;
  k->states[state] = (uint64_t)dibs__mongo_number_in(row, "n", 0);
  bool is_free = (state == DIBS__TASK_READY || state == DIBS__TASK_WAITING) && due <= c->now;
  if (is_free && c->now - due > k->oldest_ms) k->oldest_ms = c->now - due;
  return true;
}

static void put_majority(const struct dibs__mongo_link *link, bson_t *options) {
  bson_t part;
  if (!link->replicated) return;
  BSON_APPEND_DOCUMENT_BEGIN(options, "readConcern", &part);
  BSON_APPEND_UTF8(&part, "level", "majority");
  bson_append_document_end(options, &part);
}

static dibs__status count_states(batch *b, const task_op *op, struct counting *c) {
  bson_t options = BSON_INITIALIZER, pipeline = BSON_INITIALIZER, list, stage, group, id, n, due;
  bson_t *match = dibs__mongo_rows_of(op->kind);
  dibs__mongo_put_states(match, DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED);
  BSON_APPEND_ARRAY_BEGIN(&pipeline, "pipeline", &list);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &stage);
  BSON_APPEND_DOCUMENT(&stage, "$match", match);
  bson_append_document_end(&list, &stage);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &stage);
  BSON_APPEND_DOCUMENT_BEGIN(&stage, "$group", &group);
  BSON_APPEND_DOCUMENT_BEGIN(&group, "_id", &id);
  BSON_APPEND_UTF8(&id, "kind", "$kind");
  BSON_APPEND_UTF8(&id, "state", "$state");
  bson_append_document_end(&group, &id);
  BSON_APPEND_DOCUMENT_BEGIN(&group, "n", &n);
  BSON_APPEND_INT32(&n, "$sum", 1);
  bson_append_document_end(&group, &n);
  BSON_APPEND_DOCUMENT_BEGIN(&group, "due", &due);
  BSON_APPEND_UTF8(&due, "$min", "$due");
  bson_append_document_end(&group, &due);
  bson_append_document_end(&stage, &group);
  bson_append_document_end(&list, &stage);
  bson_append_array_end(&pipeline, &list);
  put_majority(link_of(b), &options);
  mongoc_cursor_t *cursor = mongoc_collection_aggregate(link_of(b)->collections[DIBS__MONGO_TASK], MONGOC_QUERY_NONE,
                                                        &pipeline, &options, NULL);
  bson_destroy(&options);
  bson_destroy(&pipeline);
  bson_destroy(match);
  return dibs__mongo_read(link_of(b), cursor, see_group, c, b->result);
}

static int compare_kinds(const void *left, const void *right) {
  const struct dibs__task_kind *a = left, *b = right;
  if (dibs__str_equal(a->kind, b->kind)) return 0;
  return dibs__str_before(a->kind, b->kind) ? -1 : 1;
}

static void answer_kinds(struct counting *c, task_op *op) {
  if (c->count) qsort(c->rows, c->count, sizeof *c->rows, compare_kinds);
  size_t count = c->count < DIBS__TASK_ITEMS ? c->count : DIBS__TASK_ITEMS;
  struct dibs__task_kind *rows = count ? malloc(count * sizeof *rows + c->bytes) : NULL;
  if (count && !rows) op->op.status = DIBS_NO_MEMORY;
  if (!rows) return;
  char *at = (char *)(rows + count);
  for (size_t i = 0; i < count; i++) {
    rows[i] = c->rows[i];
    memcpy(at, c->rows[i].kind.p, c->rows[i].kind.len);
    rows[i].kind = dibs__str_of(at, c->rows[i].kind.len);
    at += c->rows[i].kind.len;
    *at++ = '\0';
    rows[i].topic = dibs__str_of(at, 0);
    *at++ = '\0';
  }
  op->got = rows;
  op->got_count = (uint32_t)count;
}

dibs__status dibs__mongo_task_count(batch *b, task_op *op) {
  struct counting c = {.now = dibs__mongo_latest(link_of(b)), .status = DIBS_OK};
  bson_t filter = BSON_INITIALIZER;
  if (op->kind.len) dibs__mongo_put_bytes(&filter, "_id", op->kind);
  dibs__status status =
      dibs__mongo_find(link_of(b), DIBS__MONGO_TASK_KIND, &filter, 0, false, see_settings, &c, b->result);
  bson_destroy(&filter);
  if (status == DIBS_OK) status = c.status;
  if (status == DIBS_OK) status = count_states(b, op, &c);
  if (status == DIBS_OK) status = c.status;
  if (status == DIBS_OK) answer_kinds(&c, op);
  for (size_t i = 0; i < c.count; i++) free(c.texts[i]);
  free(c.texts);
  free(c.rows);
  return status;
}

/* ---- CHANGE ---- */

struct changing {
  batch *b;
  task_op *op;
  uint64_t nrs[DIBS__TASK_ITEMS], share[DIBS__TASK_ITEMS];
  uint32_t count, share_count;
  task_op part; /* of one kind */
  bool done;    /* something was changed already */
};

/* Of finished tasks of a page: unfinished tasks with their unique texts. */
static dibs__status load_holders(try *t) {
  dibs__str texts[DIBS__TASK_ITEMS];
  size_t count = 0;
  for (size_t i = 0; i < t->count && count < DIBS__TASK_ITEMS; i++) {
    const task *row = dibs__mem_task_find(t->tasks, t->rows[i].nr);
    if (row->unique.len) texts[count++] = row->unique;
  }
  if (count == 0) return DIBS_OK;
  bson_t *filter = bson_new();
  dibs__mongo_put_texts(filter, "unique", texts, count);
  dibs__mongo_put_states(filter, DIBS__TASK_UNFINISHED);
  dibs__status status = dibs__mongo_rows_read(t->b, (struct dibs__mongo_pick){.filter = filter}, keep_row, t);
  return status == DIBS_OK ? t->status : status;
}

/* A finished one whose unique text an unfinished one has is not retried. */
static bool is_replaced(const task *row) {
  bool finished = (DIBS__TASK_FINISHED >> row->state & 1) != 0;
  return finished && row->unique.len && dibs__mem_task_of_unique(row->kind, row->unique);
}

/* Adds those of the next page that match, and answers whether there may be more. */
static dibs__status find_page(struct changing *c, uint64_t *after, bool *more) {
  try t = {.b = c->b, .tasks = dibs__mem_tasks_new(0)};
  struct page p = {.op = c->op, .keep = keep_row, .user = &t};
  if (!t.tasks) return DIBS_NO_MEMORY;
  bool retries = c->op->change == DIBS__TASK_RETRY;
  dibs__status status = find_fitting(c->b, &p, *after, dibs__mem_task_changeable(c->op->change), false, false);
  if (status == DIBS_OK) status = t.status;
  size_t count = t.count;
  *more = count == c->op->most;
  if (status == DIBS_OK && retries) status = load_holders(&t);
  for (size_t i = 0; i < count && status == DIBS_OK && c->count < c->op->most; i++) {
    *after = t.rows[i].nr;
    if (!retries || !is_replaced(dibs__mem_task_find(t.tasks, *after))) c->nrs[c->count++] = *after;
  }
  end_reading(&t);
  return status;
}

static dibs__status load_others(try *t, const task *row, uint32_t change) {
  bool finished = (DIBS__TASK_FINISHED >> row->state & 1) != 0, retries = change == DIBS__TASK_RETRY;
  dibs__status status = DIBS_OK;
  if (!retries && !finished && row->serial.len && row->state != DIBS__TASK_BLOCKED)
    return dibs__mongo_load_next(t, row->serial);
  if (!retries || !finished) return DIBS_OK;
  for (int i = 0; i < 2 && status == DIBS_OK; i++) {
    dibs__str text = i ? row->unique : row->serial;
    uint32_t blocked = i ? 0 : 1u << DIBS__TASK_BLOCKED;
    if (text.len == 0) continue;
    bson_t *filter = dibs__mongo_rows_of(t->name);
    dibs__mongo_put_bytes(filter, i ? "unique" : "serial", text);
    dibs__mongo_put_states(filter, DIBS__TASK_UNFINISHED & ~blocked);
    status = dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter});
  }
  return status;
}

static dibs__status decide_change(try *t, void *user) {
  struct changing *c = user;
  bson_t *filter = dibs__mongo_rows_of(t->name);
  dibs__mongo_put_nrs(filter, "$in", c->share, c->share_count);
  dibs__status status = dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter});
  for (uint32_t i = 0; i < c->share_count && status == DIBS_OK; i++) {
    const task *row = dibs__mem_task_find(t->tasks, c->share[i]);
    if (row) status = load_others(t, row, c->op->change);
  }
  c->part = *c->op;
  c->part.changed = 0;
  if (status == DIBS_OK) dibs__mem_task_change_some(t->tasks, &c->part, c->share, c->share_count, t->now);
  return status;
}

static dibs__status change_share(void *user, dibs__str kind, const uint32_t *which, uint32_t count) {
  struct changing *c = user;
  c->share_count = count;
  for (uint32_t i = 0; i < count; i++) c->share[i] = c->nrs[which[i]];
  dibs__status status = dibs__mongo_kind_run(c->b, kind, decide_change, c);
  if (status != DIBS_OK) return c->done ? DIBS_UNKNOWN : status;
  c->op->changed += c->part.changed;
  c->done = c->done || (c->part.changed && !c->op->dry);
  return DIBS_OK;
}

dibs__status dibs__mongo_task_change(batch *b, task_op *op) {
  struct changing *c = calloc(1, sizeof *c);
  uint64_t after = op->filter.after;
  bool more = true;
  dibs__status status = DIBS_OK;
  if (!c) return DIBS_NO_MEMORY;
  c->b = b;
  c->op = op;
  while (status == DIBS_OK && more && c->count < op->most) status = find_page(c, &after, &more);
  if (status == DIBS_OK && c->count) {
    op->last = c->nrs[c->count - 1];
    op->more = c->count == op->most;
    status = dibs__mongo_by_kind(b, c->nrs, c->count, (dibs__str){0}, change_share, c);
  }
  free(c);
  return status;
}
