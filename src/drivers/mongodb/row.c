/* SPDX-License-Identifier: MIT */
/*
 * Documents of dibs' own tasks.
 *
 *   tasks  {_id: NUMBER, v, kind, serial, unique, payload, priority, tries,        as it was added
 *           state, rank, due, timed, kept, fence, claim, ended, verdict, attempts, fails, phase, by, made, began, at,
 *           result, last: {fence, by, at, text}, errors: [...]}
 *
 * `timed` is `due` of a task that waits or is claimed, `kept` that of a finished task that is deleted then; both for an
 * index each.  A draft has the state -1, `kept` -1, and no more than the first line: it is no task before a commit
 * makes it one.  `last` is also the last of `errors`, which no decision reads.
 */
#include "drivers/mongodb/kind_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mongo_try try;
typedef struct dibs__mem_task task;

/* ---- Filters ---- */

bson_t *dibs__mongo_rows_of(dibs__str kind) {
  bson_t *filter = bson_new();
  if (kind.len) dibs__mongo_put_bytes(filter, "kind", kind);
  return filter;
}

void dibs__mongo_put_states(bson_t *filter, uint32_t states) {
  bson_t in, list;
  uint32_t count = 0;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "state", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
  for (int32_t state = 0; state <= DIBS__TASK_CANCELLED; state++) {
    char index[12];
    const char *at;
    if (!(states >> state & 1)) continue;
    bson_uint32_to_string(count++, &at, index, sizeof index);
    BSON_APPEND_INT32(&list, at, state);
  }
  bson_append_array_end(&in, &list);
  bson_append_document_end(filter, &in);
}

void dibs__mongo_put_nrs(bson_t *filter, const char *operator, const uint64_t * nrs, size_t count) {
  bson_t in, list;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, operator, & list);
  for (size_t i = 0; i < count; i++) {
    char index[12];
    const char *at;
    bson_uint32_to_string((uint32_t)i, &at, index, sizeof index);
    BSON_APPEND_INT64(&list, at, (int64_t)nrs[i]);
  }
  bson_append_array_end(&in, &list);
  bson_append_document_end(filter, &in);
}

void dibs__mongo_put_compare(bson_t *filter, const char *field, const char *operator, int64_t value) {
  bson_t part;
  bson_append_document_begin(filter, field, -1, &part);
  bson_append_int64(&part, operator, - 1, value);
  bson_append_document_end(filter, &part);
}

void dibs__mongo_put_texts(bson_t *filter, const char *field, const dibs__str *texts, size_t count) {
  bson_t in, list;
  bson_append_document_begin(filter, field, -1, &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
  for (size_t i = 0; i < count; i++) {
    char index[12];
    const char *at;
    bson_uint32_to_string((uint32_t)i, &at, index, sizeof index);
    dibs__mongo_put_bytes(&list, at, texts[i]);
  }
  bson_append_array_end(&in, &list);
  bson_append_document_end(filter, &in);
}

/* ---- Writing ---- */

static bool put_last(bson_t *to, const task *t) {
  const struct dibs__mem_failed *e = t->errors;
  bson_t last;
  while (e && e->next) e = e->next;
  if (!e) return true;
  return BSON_APPEND_DOCUMENT_BEGIN(to, "last", &last) && BSON_APPEND_INT64(&last, "fence", (int64_t)e->fence.v) &&
         dibs__mongo_put_bytes(&last, "by", dibs__str_of(e->bytes, e->by_len)) &&
         BSON_APPEND_INT64(&last, "at", e->at) &&
         dibs__mongo_put_bytes(&last, "text", dibs__str_of(e->bytes + e->by_len, e->text_len)) &&
         bson_append_document_end(to, &last);
}

bool dibs__mongo_row_put_state(bson_t *to, const task *t) {
  bool timed = t->state == DIBS__TASK_WAITING || t->state == DIBS__TASK_CLAIMED;
  bool kept = t->state == DIBS__TASK_DONE || t->state == DIBS__TASK_CANCELLED;
  bool fine =
      BSON_APPEND_INT32(to, "state", (int32_t)t->state) && BSON_APPEND_INT32(to, "rank", t->rank) &&
      BSON_APPEND_INT64(to, "due", t->due) && BSON_APPEND_INT64(to, "timed", timed ? t->due : 0) &&
      BSON_APPEND_INT64(to, "kept", kept ? t->due : 0) && BSON_APPEND_INT64(to, "fence", (int64_t)t->fence.v) &&
      BSON_APPEND_INT64(to, "claim", (int64_t)t->claim) && BSON_APPEND_INT64(to, "ended", (int64_t)t->ended.v) &&
      BSON_APPEND_INT32(to, "verdict", (int32_t)t->verdict) && BSON_APPEND_INT64(to, "attempts", t->attempts) &&
      BSON_APPEND_INT64(to, "fails", t->fails) &&
      dibs__mongo_put_bytes(to, "phase", dibs__str_of(t->phase, t->phase_len)) &&
      dibs__mongo_put_bytes(to, "by", dibs__str_of(t->by, t->by_len)) && BSON_APPEND_INT64(to, "made", t->made) &&
      BSON_APPEND_INT64(to, "began", t->began) && BSON_APPEND_INT64(to, "at", t->at);
  if (t->result) fine = fine && dibs__mongo_put_bytes(to, "result", dibs__str_of(t->result, t->result_len));
  return fine && put_last(to, t);
}

bool dibs__mongo_row_put_draft(bson_t *to, const task *t, int64_t version) {
  bool fine = BSON_APPEND_INT64(to, "_id", (int64_t)t->nr) && BSON_APPEND_INT64(to, "v", version) &&
              dibs__mongo_put_bytes(to, "kind", dibs__str_of(t->kind->text, t->kind->len)) &&
              BSON_APPEND_INT32(to, "state", -1) && BSON_APPEND_INT64(to, "kept", -1) &&
              BSON_APPEND_INT64(to, "made", t->made);
  if (t->serial.len) fine = fine && dibs__mongo_put_bytes(to, "serial", t->serial);
  if (t->unique.len) fine = fine && dibs__mongo_put_bytes(to, "unique", t->unique);
  return fine && dibs__mongo_put_bytes(to, "payload", t->payload) && BSON_APPEND_INT32(to, "priority", t->priority) &&
         BSON_APPEND_INT64(to, "tries", t->tries);
}

/* ---- Reading ---- */

static bool read_texts(task *t, const bson_t *from) {
  dibs__str phase = dibs__mongo_bytes_in(from, "phase"), by = dibs__mongo_bytes_in(from, "by");
  dibs__str result = dibs__mongo_bytes_in(from, "result");
  if (phase.len > sizeof t->phase || by.len > sizeof t->by || result.len > DIBS__TASK_TEXT_MAX) return false;
  t->phase_len = phase.len;
  if (phase.len) memcpy(t->phase, phase.p, phase.len);
  t->by_len = by.len;
  if (by.len) memcpy(t->by, by.p, by.len);
  if (t->state != DIBS__TASK_DONE) return true;
  t->result = malloc((size_t)result.len + 1);
  if (!t->result) return false;
  if (result.len) memcpy(t->result, result.p, result.len);
  t->result_len = result.len;
  return true;
}

static void read_numbers(task *t, const bson_t *from) {
  t->nr = (uint64_t)dibs__mongo_number_in(from, "_id", 0);
  t->due = dibs__mongo_number_in(from, "due", 0);
  t->fence.v = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  t->claim = (uint64_t)dibs__mongo_number_in(from, "claim", 0);
  t->ended.v = (uint64_t)dibs__mongo_number_in(from, "ended", 0);
  t->verdict = (uint32_t)dibs__mongo_number_in(from, "verdict", 0);
  t->attempts = (uint32_t)dibs__mongo_number_in(from, "attempts", 0);
  t->fails = (uint32_t)dibs__mongo_number_in(from, "fails", 0);
  t->made = dibs__mongo_number_in(from, "made", 0);
  t->began = dibs__mongo_number_in(from, "began", 0);
  t->at = dibs__mongo_number_in(from, "at", 0);
}

static bool read_error(task *t, const bson_t *from) {
  dibs__str by = dibs__mongo_bytes_in(from, "by"), text = dibs__mongo_bytes_in(from, "text");
  dibs__fence fence = {(uint64_t)dibs__mongo_number_in(from, "fence", 0)};
  if (by.len > DIBS_OWNER_MAX || text.len > DIBS__TASK_TEXT_MAX) return false;
  return dibs__mem_task_load_error(t, fence, by, text, dibs__mongo_number_in(from, "at", 0));
}

static bool read_document(task *t, const bson_iter_t *at) {
  uint32_t len;
  const uint8_t *bytes;
  bson_t one;
  if (!BSON_ITER_HOLDS_DOCUMENT(at)) return false;
  bson_iter_document(at, &len, &bytes);
  return bson_init_static(&one, bytes, len) && read_error(t, &one);
}

/* All of them if they were read, else the latest. */
static bool read_errors(task *t, const bson_t *from) {
  bson_iter_t at, in;
  if (bson_iter_init_find(&at, from, "errors") && BSON_ITER_HOLDS_ARRAY(&at)) {
    if (!bson_iter_recurse(&at, &in)) return false;
    while (bson_iter_next(&in))
      if (!read_document(t, &in)) return false;
    return true;
  }
  return !bson_iter_init_find(&at, from, "last") || read_document(t, &at);
}

static bool read_all(task *t, const bson_t *from) {
  read_numbers(t, from);
  return read_texts(t, from) && read_errors(t, from);
}

static bool keep_loaded(try *t, const task *of, int64_t version) {
  if (t->count == t->capacity) {
    size_t capacity = t->capacity ? t->capacity * 2 : 64;
    struct dibs__mongo_loaded *rows = realloc(t->rows, capacity * sizeof *rows);
    if (!rows) return false;
    t->rows = rows;
    t->capacity = capacity;
  }
  struct dibs__mongo_loaded *row = &t->rows[t->count];
  *row = (struct dibs__mongo_loaded){.nr = of->nr, .version = version, .was = bson_new()};
  row->ready = of->state == DIBS__TASK_READY;
  row->errors = of->error_count;
  t->count++;
  return dibs__mongo_row_put_state(row->was, of);
}

task *dibs__mongo_row_decode(try *t, struct dibs__mem_kind *kind, const bson_t *from) {
  int64_t state = dibs__mongo_number_in(from, "state", DIBS__TASK_CANCELLED + 1);
  int64_t tries = dibs__mongo_number_in(from, "tries", 0), priority = dibs__mongo_number_in(from, "priority", 0);
  struct dibs__task_new made = {.serial = dibs__mongo_bytes_in(from, "serial"),
                                .unique = dibs__mongo_bytes_in(from, "unique"),
                                .payload = dibs__mongo_bytes_in(from, "payload"),
                                .tries = (uint32_t)tries,
                                .priority = (int32_t)priority};
  if (state == -1) return NULL;
  bool fine = state >= DIBS__TASK_READY && state <= DIBS__TASK_CANCELLED && tries > 0 && tries <= UINT32_MAX &&
              dibs__mongo_number_in(from, "_id", 0) > 0 && dibs__mongo_number_in(from, "v", 0) != 0;
  task *row = fine ? dibs__mem_task_make(&made) : NULL;
  if (row) row->state = (uint32_t)state;
  t->status = !fine ? DIBS_CORRUPT : row ? DIBS_OK : DIBS_NO_MEMORY;
  if (row && !read_all(row, from)) t->status = DIBS_CORRUPT;
  if (t->status == DIBS_OK) {
    dibs__mem_task_load(t->tasks, kind, row);
    if (!keep_loaded(t, row, dibs__mongo_number_in(from, "v", 0))) t->status = DIBS_NO_MEMORY;
    return row;
  }
  dibs__str id = dibs__mongo_bytes_in(from, "_id");
  if (t->status == DIBS_CORRUPT && id.len)
    dibs__set_message(t->b->result, "%s: the document \"%.*s\" of the tasks is not one of dibs",
                      t->b->session->link->location->shown, (int)(id.len < 60 ? id.len : 60), id.p);
  else if (t->status == DIBS_CORRUPT)
    dibs__set_message(t->b->result, "%s: the document %lld of the tasks is not one of dibs",
                      t->b->session->link->location->shown, (long long)dibs__mongo_number_in(from, "_id", 0));
  dibs__mem_task_free(row);
  return NULL;
}

static bool see_row(void *user, const bson_t *from) {
  try *t = user;
  if (dibs__mem_task_find(t->tasks, (uint64_t)dibs__mongo_number_in(from, "_id", 0))) return true;
  dibs__mongo_row_decode(t, t->kind, from);
  return t->status == DIBS_OK;
}

dibs__status dibs__mongo_rows_read(struct dibs__mongo_batch *b, struct dibs__mongo_pick pick, dibs__mongo_row *row,
                                   void *user) {
  static const char *const by_number[] = {"_id", NULL};
  struct dibs__mongo_link *link = b->session->link;
  bson_t options = BSON_INITIALIZER, part;
  const char *const *sort = pick.sort ? pick.sort : by_number;
  BSON_APPEND_DOCUMENT_BEGIN(&options, "sort", &part);
  for (; *sort; sort++) bson_append_int32(&part, *sort, -1, 1);
  bson_append_document_end(&options, &part);
  if (pick.most) BSON_APPEND_INT64(&options, "limit", pick.most);
  if (!pick.payloads || !pick.all_errors) {
    BSON_APPEND_DOCUMENT_BEGIN(&options, "projection", &part);
    if (!pick.payloads) BSON_APPEND_INT32(&part, "payload", 0);
    if (!pick.all_errors) BSON_APPEND_INT32(&part, "errors", 0);
    bson_append_document_end(&options, &part);
  }
  dibs__status status = dibs__mongo_find_in(link, link->collections[DIBS__MONGO_TASK], pick.filter, &options, false,
                                            row, user, b->result);
  bson_destroy(&options);
  bson_destroy(pick.filter);
  return status;
}

dibs__status dibs__mongo_rows_load(try *t, struct dibs__mongo_pick pick) {
  dibs__status status = dibs__mongo_rows_read(t->b, pick, see_row, t);
  return status == DIBS_OK ? t->status : status;
}

/* ---- Others that a change touches ---- */

dibs__status dibs__mongo_load_next(try *t, dibs__str serial) {
  uint64_t some[DIBS__TASK_ITEMS];
  size_t count = 0;
  for (size_t i = 0; i < t->count && count < DIBS__TASK_ITEMS; i++) {
    const task *row = dibs__mem_task_find(t->tasks, t->rows[i].nr);
    if (row && dibs__str_equal(row->serial, serial)) some[count++] = row->nr;
  }
  bson_t *filter = dibs__mongo_rows_of(t->name);
  dibs__mongo_put_bytes(filter, "serial", serial);
  BSON_APPEND_INT32(filter, "state", DIBS__TASK_BLOCKED);
  dibs__mongo_put_nrs(filter, "$nin", some, count);
  return dibs__mongo_rows_load(t, (struct dibs__mongo_pick){.filter = filter, .most = 1});
}
