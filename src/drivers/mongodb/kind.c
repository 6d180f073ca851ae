/* SPDX-License-Identifier: MIT */
/*
 * Commits of dibs' own tasks.  A decision may change several tasks (of one serial text, say), and only single documents
 * are atomic.  So each kind has a document, and one replacement of it is the commit:
 *
 *   kinds  {_id: KIND, v, settings, running, paused, keep_ms, next, pending: [{nr, old, set: {...}}, {nr, old, gone}],
 *           tokens: [...]}
 *
 *  1. The kind's document is read.  Its `pending` changes are written to the documents of the tasks (apply).
 *  2. The tasks that the decision needs are read, and the memory driver's code decides on a scratch memory.
 *  3. New tasks are inserted as drafts, which no decision sees.
 *  4. The kind's document is replaced, if it still has the version that was read: the new one has all changes in
 *     `pending`.  This is the commit.
 *  5. The changes are written to the documents of the tasks.
 *
 * A client that dies before 4 has changed nothing; after 4, the next client does 5 for it (in its step 1).  Between the
 * steps 1 and 4 nobody else has committed anything of this kind, because the version is the same: so what step 2 read
 * is one state.
 *
 * Step 5 may be done by several clients, and late: each change names the version of the task's document that it was
 * decided on (`old`), and gives it that of the commit.  A version is drawn at random and never comes back, so a change
 * that was done changes nothing when it comes again, nor after later commits.  A draft has
 * a version, too; a change never inserts a document of a task, so it cannot bring back a deleted task.
 *
 * What the majority has confirmed, a new primary may show some moments later (its commit point is behind), but one
 * member never shows less than before.  So all reads of a try go to one member, and there step 1 sees, or does, what
 * the kind's document has pending.  (Behind a mongos nobody sees which member answers.  So a claim, or an end, is also
 * checked when it was applied: see took_effect.)
 */
#include "drivers/mongodb/kind_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long after it was decided a commit may take place (R61: a fence is not before its claim); after how many tries
 * that the server did not take the call gives up; of how many changes a commit has so many that others shall not read
 * them. */
enum { GUARD_MS = DIBS__MONGO_GUARD_MS, REFUSALS = 8, MANY = 64, PAUSE_MAX_MS = 40, CHUNK = 8 << 20 };

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_try try;
typedef struct dibs__mem_task task;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

static const char *collection(const batch *b, enum dibs__mongo_kind kind) {
  return mongoc_collection_get_name(link_of(b)->collections[kind]);
}

static int64_t draw_version(void) {
  int64_t version;
  do dibs__random(&version, sizeof version);
  while (version == 0);
  return version;
}

/* ---- Commands ---- */

static bool begin_command(batch *b, bson_t *command, const char *verb, enum dibs__mongo_kind kind, const char *list,
                          bson_t *elements) {
  bson_init(command);
  return bson_append_utf8(command, verb, -1, collection(b, kind), -1) && BSON_APPEND_BOOL(command, "ordered", false) &&
         bson_append_array_begin(command, list, -1, elements);
}

/* Sends it, if it has elements, and destroys it.  `n`: how many documents were there for them. */
static dibs__status end_command(batch *b, bson_t *command, bson_t *elements, uint32_t count, bool fine, int64_t *n,
                                bool *refused) {
  bson_t reply;
  bson_iter_t at;
  dibs__status status = fine && bson_append_array_end(command, elements) ? DIBS_OK : DIBS_NO_MEMORY;
  *n = 0;
  *refused = false;
  if (status == DIBS_OK && count > 0) {
    status = dibs__mongo_write(link_of(b), command, &reply, b->result);
    *refused = bson_has_field(&reply, "writeErrors");
    if (bson_iter_init_find(&at, &reply, "n")) *n = bson_iter_as_int64(&at);
    bson_destroy(&reply);
  }
  bson_destroy(command);
  return status;
}

/* {q: {_id, v}, ...} */
static bool begin_element(bson_t *elements, uint32_t nth, bson_t *one, int64_t nr, int64_t version) {
  char index[12];
  const char *at;
  bson_t q;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  return bson_append_document_begin(elements, at, -1, one) && BSON_APPEND_DOCUMENT_BEGIN(one, "q", &q) &&
         BSON_APPEND_INT64(&q, "_id", nr) && BSON_APPEND_INT64(&q, "v", version) && bson_append_document_end(one, &q);
}

/* ---- Applying a commit ---- */

typedef bool each_fn(void *user, const bson_t *one);

static bool each_of(const bson_t *from, const char *field, each_fn *each, void *user) {
  bson_iter_t at, in;
  if (!from || !bson_iter_init_find(&at, from, field) || !BSON_ITER_HOLDS_ARRAY(&at) || !bson_iter_recurse(&at, &in))
    return true;
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t one;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) return false;
    bson_iter_document(&in, &len, &bytes);
    if (!bson_init_static(&one, bytes, len) || !each(user, &one)) return false;
  }
  return true;
}

struct applying {
  bson_t *elements;
  uint32_t count;
  int64_t version;
};

static bool document_in(const bson_t *from, const char *field, bson_t *to) {
  bson_iter_t at;
  uint32_t len;
  const uint8_t *bytes;
  if (!bson_iter_init_find(&at, from, field) || !BSON_ITER_HOLDS_DOCUMENT(&at)) return false;
  bson_iter_document(&at, &len, &bytes);
  return bson_init_static(to, bytes, len);
}

/* {q: {_id, v: OLD}, u: {$set: {..., v: NEW}, $push: {errors: {$each: [LAST], $slice: -32}}}} */
static bool put_change(void *user, const bson_t *change) {
  struct applying *a = user;
  bson_t one, set, state, u, push, errors, each, last;
  if (!document_in(change, "set", &state)) return true;
  bool fine = begin_element(a->elements, a->count++, &one, dibs__mongo_number_in(change, "nr", 0),
                            dibs__mongo_number_in(change, "old", 0)) &&
              BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &u) && BSON_APPEND_DOCUMENT_BEGIN(&u, "$set", &set) &&
              bson_concat(&set, &state) && BSON_APPEND_INT64(&set, "v", a->version) &&
              bson_append_document_end(&u, &set);
  if (bson_has_field(change, "failed") && document_in(&state, "last", &last))
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(&u, "$push", &push) &&
           BSON_APPEND_DOCUMENT_BEGIN(&push, "errors", &errors) && BSON_APPEND_ARRAY_BEGIN(&errors, "$each", &each) &&
           BSON_APPEND_DOCUMENT(&each, "0", &last) && bson_append_array_end(&errors, &each) &&
           BSON_APPEND_INT32(&errors, "$slice", -DIBS__TASK_ERRORS) && bson_append_document_end(&push, &errors) &&
           bson_append_document_end(&u, &push);
  return fine && bson_append_document_end(&one, &u) && bson_append_document_end(a->elements, &one);
}

/* {q: {_id, v: OLD}, limit: 1} */
static bool put_removal(void *user, const bson_t *change) {
  struct applying *a = user;
  bson_t one;
  if (!bson_has_field(change, "gone")) return true;
  return begin_element(a->elements, a->count++, &one, dibs__mongo_number_in(change, "nr", 0),
                       dibs__mongo_number_in(change, "old", 0)) &&
         BSON_APPEND_INT32(&one, "limit", 1) && bson_append_document_end(a->elements, &one);
}

static bool put_token(void *user, const bson_t *token) {
  struct applying *a = user;
  char index[12];
  const char *at;
  bson_uint32_to_string(a->count++, &at, index, sizeof index);
  return bson_append_document(a->elements, at, -1, token);
}

static bool see_any(void *user, const bson_t *row) {
  (void)row;
  *(bool *)user = true;
  return false;
}

/* The insert of the token was refused: because it is there already? */
static bool has_token(batch *b, int64_t version) {
  bson_t filter = BSON_INITIALIZER;
  bool there = false;
  BSON_APPEND_INT64(&filter, "_id", version);
  (void)dibs__mongo_find(link_of(b), DIBS__MONGO_TOKEN, &filter, 1, false, see_any, &there, b->result);
  bson_destroy(&filter);
  return there;
}

/* One of the commands.  An insert that finds its document is done.  *found stays: each document that changes was there
 * as it had been read. */
static dibs__status apply_part(batch *b, const bson_t *head, int64_t version, int part, bool *found) {
  static const struct {
    const char *verb, *list, *field;
    enum dibs__mongo_kind kind;
    each_fn *put;
  } parts[] = {{"update", "updates", "pending", DIBS__MONGO_TASK, put_change},
               {"delete", "deletes", "pending", DIBS__MONGO_TASK, put_removal},
               {"insert", "documents", "tokens", DIBS__MONGO_TOKEN, put_token}};
  bson_t command, elements;
  int64_t n;
  bool refused;
  struct applying a = {.elements = &elements, .version = version};
  bool fine = begin_command(b, &command, parts[part].verb, parts[part].kind, parts[part].list, &elements) &&
              each_of(head, parts[part].field, parts[part].put, &a);
  dibs__status status = end_command(b, &command, &elements, a.count, fine, &n, &refused);
  if (part != 2 && n < a.count) *found = false;
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE; /* it may be done again */
  return status == DIBS_OK && refused && (part != 2 || !has_token(b, version)) ? DIBS_UNAVAILABLE : status;
}

/* By what the member showed that got the last command. */
static bool was_applied(batch *b, int64_t version) {
  if (b->applied_moves != link_of(b)->moves) memset(b->applied, 0, sizeof b->applied);
  b->applied_moves = link_of(b)->moves;
  return b->applied[(uint64_t)version % DIBS__MONGO_APPLIED] == version;
}

struct looking {
  uint64_t nrs[DIBS__TASK_ITEMS];
  uint32_t count, found;
  bool unsure;
};

static bool gather_change(void *user, const bson_t *change) {
  struct looking *l = user;
  l->unsure = l->unsure || l->count == DIBS__TASK_ITEMS || bson_has_field(change, "gone");
  if (!l->unsure) l->nrs[l->count++] = (uint64_t)dibs__mongo_number_in(change, "nr", 0);
  return true;
}

static bool count_row(void *user, const bson_t *row) {
  (void)row;
  ((struct looking *)user)->found++;
  return true;
}

/* All of them. */
static bool have_version(batch *b, struct looking *l, int64_t version) {
  bson_t *filter = dibs__mongo_rows_of((dibs__str){0});
  dibs__mongo_put_nrs(filter, "$in", l->nrs, l->count);
  BSON_APPEND_INT64(filter, "v", version);
  dibs__status status = dibs__mongo_rows_read(b, (struct dibs__mongo_pick){.filter = filter}, count_row, l);
  return status == DIBS_OK && l->found == l->count;
}

/* Has the client that committed it applied it?  Reading is cheaper, and disturbs nobody who is just writing it. */
static bool is_applied(batch *b, const bson_t *head, int64_t version) {
  struct looking l = {.count = 0};
  (void)each_of(head, "pending", gather_change, &l);
  bson_iter_t at, in;
  bool tokens = bson_iter_init_find(&at, head, "tokens") && bson_iter_recurse(&at, &in) && bson_iter_next(&in);
  if (l.count == 0 && !l.unsure && !tokens) return true;
  return !l.unsure && !tokens && have_version(b, &l, version);
}

/* Step 5. */
static dibs__status apply(batch *b, const bson_t *head, int64_t version, bool *found) {
  dibs__status status = DIBS_OK;
  for (int tries = 0; tries < REFUSALS; tries++) {
    *found = true;
    for (int part = 0; part < 3 && (part == 0 || status == DIBS_OK); part++)
      status = apply_part(b, head, version, part, found);
    if (status != DIBS_UNAVAILABLE || link_of(b)->broken || !dibs__tick_before(dibs__tick_now(), link_of(b)->by)) break;
    dibs__nap_ms(1 + tries);
  }
  if (status == DIBS_OK) b->applied[(uint64_t)version % DIBS__MONGO_APPLIED] = version;
  return status;
}

/* Of what nobody else changes soon: it is claimed, or has finished. */
static bool gather_lasting(void *user, const bson_t *change) {
  static const uint32_t states = DIBS__TASK_FINISHED | 1u << DIBS__TASK_CLAIMED | 1u << DIBS__TASK_PARKED;
  struct looking *l = user;
  bson_t set;
  int64_t state = document_in(change, "set", &set) ? dibs__mongo_number_in(&set, "state", -1) : -1;
  bool lasts = state >= 0 && state <= DIBS__TASK_CANCELLED && (states >> state & 1);
  if (lasts && l->count < DIBS__TASK_ITEMS) l->nrs[l->count++] = (uint64_t)dibs__mongo_number_in(change, "nr", 0);
  return true;
}

/* Some document was not as it had been read.  Another client has applied the commit; or what was read was older than
 * the kind's document, and the task is somebody else's. */
static bool took_effect(batch *b, const bson_t *head, int64_t version) {
  struct looking l = {.count = 0};
  (void)each_of(head, "pending", gather_lasting, &l);
  return l.count == 0 || have_version(b, &l, version);
}

/* ---- A try ---- */

static bool see_head(void *user, const bson_t *row) {
  try *t = user;
  bson_destroy(t->head);
  t->head = bson_copy(row);
  return false;
}

static dibs__status read_head(try *t, bool linearizable) {
  bson_t filter = BSON_INITIALIZER;
  dibs__mongo_put_bytes(&filter, "_id", t->name);
  dibs__status status =
      dibs__mongo_find(link_of(t->b), DIBS__MONGO_TASK_KIND, &filter, 1, linearizable, see_head, t, t->b->result);
  bson_destroy(&filter);
  if (status != DIBS_OK || !t->head) return status;
  t->version = dibs__mongo_number_in(t->head, "v", 0);
  if (t->version) return DIBS_OK;
  dibs__set_message(t->b->result, "%s: the document \"%.*s\" of the kinds is not one of dibs",
                    link_of(t->b)->location->shown, (int)(t->name.len < 60 ? t->name.len : 60), t->name.p);
  return DIBS_CORRUPT;
}

static bool bool_in(const bson_t *from, const char *field) {
  bson_iter_t at;
  return bson_iter_init_find(&at, from, field) && bson_iter_as_bool(&at);
}

static dibs__status begin_try(try *t) {
  batch *b = t->b;
  bool found;
  dibs__status status = read_head(t, false);
  t->moves = link_of(b)->moves;
  if (status == DIBS_OK && t->head && !was_applied(b, t->version) && !is_applied(b, t->head, t->version))
    status = apply(b, t->head, t->version, &found);
  if (status == DIBS_OK) status = dibs__mongo_clock(link_of(b), false, b->result); /* it may be another primary's */
  if (status != DIBS_OK) return status;
  if (t->head) b->applied[(uint64_t)t->version % DIBS__MONGO_APPLIED] = t->version;
  t->now = dibs__mongo_latest(link_of(b));
  t->sure = dibs__mongo_earliest(link_of(b));
  t->next = INT64_MIN; /* without a document of the kind there may be tasks, in a copy that was restored */
  t->tasks = dibs__mem_tasks_new(0);
  t->kind = t->tasks ? dibs__mem_kind_get(t->tasks, t->name) : NULL;
  if (!t->kind) return DIBS_NO_MEMORY;
  t->tasks->wall = 0;
  t->kind->has_settings = true;
  if (!t->head) return DIBS_OK;
  t->has_settings = bool_in(t->head, "settings");
  t->kind->running = (uint32_t)dibs__mongo_number_in(t->head, "running", 0);
  t->kind->paused = bool_in(t->head, "paused");
  t->kind->keep_ms = dibs__mongo_number_in(t->head, "keep_ms", -1);
  t->next = dibs__mongo_number_in(t->head, "next", INT64_MIN);
  return DIBS_OK;
}

static void end_try(try *t) {
  for (size_t i = 0; i < t->count; i++) bson_destroy(t->rows[i].was);
  free(t->rows);
  bson_destroy(t->head);
  dibs__mem_tasks_free(t->tasks);
}

/* ---- Drafts ---- */

void dibs__mongo_drafts_remove(batch *b, struct dibs__mongo_drafts *d) {
  bson_t command, elements;
  int64_t n;
  bool refused;
  if (d->nrs && !link_of(b)->broken) {
    uint32_t count = 0;
    bool fine = begin_command(b, &command, "delete", DIBS__MONGO_TASK, "deletes", &elements);
    for (uint32_t i = 0; i < d->count && fine; i++) {
      bson_t one;
      if (d->nrs[i] == 0) continue;
      fine = begin_element(&elements, count++, &one, (int64_t)d->nrs[i], d->version) &&
             BSON_APPEND_INT32(&one, "limit", 1) && bson_append_document_end(&elements, &one);
    }
    (void)end_command(b, &command, &elements, count, fine, &n, &refused);
  }
  free(d->nrs);
  *d = (struct dibs__mongo_drafts){0};
}

/* {findAndModify: store, query: {_id: "tasks"}, update: {$inc: {last: N}}, upsert: true, new: true} */
static dibs__status draw_numbers(batch *b, uint32_t count, uint64_t *first) {
  bson_t command = BSON_INITIALIZER, part, inc, reply, value;
  BSON_APPEND_UTF8(&command, "findAndModify", collection(b, DIBS__MONGO_META));
  BSON_APPEND_DOCUMENT_BEGIN(&command, "query", &part);
  BSON_APPEND_UTF8(&part, "_id", "tasks");
  bson_append_document_end(&command, &part);
  BSON_APPEND_DOCUMENT_BEGIN(&command, "update", &part);
  BSON_APPEND_DOCUMENT_BEGIN(&part, "$inc", &inc);
  BSON_APPEND_INT64(&inc, "last", count);
  bson_append_document_end(&part, &inc);
  bson_append_document_end(&command, &part);
  BSON_APPEND_BOOL(&command, "upsert", true);
  BSON_APPEND_BOOL(&command, "new", true);
  dibs__status status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
  bson_destroy(&command);
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE; /* these numbers are not used */
  int64_t last =
      status == DIBS_OK && document_in(&reply, "value", &value) ? dibs__mongo_number_in(&value, "last", 0) : 0;
  bson_destroy(&reply);
  if (status == DIBS_OK && last < count) status = DIBS_CORRUPT;
  *first = (uint64_t)(last - count + 1);
  return status;
}

static bool see_number(void *user, const bson_t *row) {
  *(int64_t *)user = dibs__mongo_number_in(row, "_id", 0);
  return false;
}

/* A number is used already: in a copy that was restored the counter may be older than the tasks.  Moves it past them:
 * {findAndModify: store, query: {_id: "tasks"}, update: {$max: {last: N}}, upsert: true} */
static void raise_numbers(batch *b) {
  bson_t filter = BSON_INITIALIZER, options = BSON_INITIALIZER, command = BSON_INITIALIZER, part, max, reply;
  int64_t last = 0;
  BSON_APPEND_DOCUMENT_BEGIN(&options, "sort", &part);
  BSON_APPEND_INT32(&part, "_id", -1);
  bson_append_document_end(&options, &part);
  BSON_APPEND_DOCUMENT_BEGIN(&options, "projection", &part);
  BSON_APPEND_INT32(&part, "_id", 1);
  bson_append_document_end(&options, &part);
  BSON_APPEND_INT64(&options, "limit", 1);
  dibs__status status = dibs__mongo_find_in(link_of(b), link_of(b)->collections[DIBS__MONGO_TASK], &filter, &options,
                                            false, see_number, &last, b->result);
  BSON_APPEND_UTF8(&command, "findAndModify", collection(b, DIBS__MONGO_META));
  BSON_APPEND_DOCUMENT_BEGIN(&command, "query", &part);
  BSON_APPEND_UTF8(&part, "_id", "tasks");
  bson_append_document_end(&command, &part);
  BSON_APPEND_DOCUMENT_BEGIN(&command, "update", &part);
  BSON_APPEND_DOCUMENT_BEGIN(&part, "$max", &max);
  BSON_APPEND_INT64(&max, "last", last);
  bson_append_document_end(&part, &max);
  bson_append_document_end(&command, &part);
  BSON_APPEND_BOOL(&command, "upsert", true);
  if (status == DIBS_OK && last > 0) {
    (void)dibs__mongo_write(link_of(b), &command, &reply, b->result); /* the next try finds out */
    bson_destroy(&reply);
  }
  bson_destroy(&filter);
  bson_destroy(&options);
  bson_destroy(&command);
}

dibs__status dibs__mongo_drafts_number(try *t) {
  struct dibs__mongo_drafts *d = t->drafts;
  dibs__status status = DIBS_OK;
  if (!d->first) {
    d->count = t->adds->count;
    d->version = draw_version();
    status = draw_numbers(t->b, d->count, &d->first);
    if (status != DIBS_OK) d->first = 0;
  }
  t->tasks->last_nr = d->first ? d->first - 1 : 0;
  return status;
}

static uint64_t number_of(const try *t, uint32_t item) {
  uint64_t nr = t->adds->news[item].nr, first = t->drafts->first;
  bool added = t->adds->news[item].status == DIBS_OK && !t->adds->news[item].repeated;
  return added && nr >= first && nr - first < t->drafts->count ? nr : 0;
}

static bool are_written(const try *t) {
  for (uint32_t i = 0; i < t->drafts->count; i++)
    if (t->drafts->nrs[i] != number_of(t, i)) return false;
  return true;
}

/* Step 3.  Several commands, if the payloads are long. */
static dibs__status write_drafts(try *t) {
  struct dibs__mongo_drafts *d = t->drafts;
  dibs__status status = DIBS_OK;
  d->nrs = calloc(d->count + 1, sizeof *d->nrs);
  if (!d->nrs) return DIBS_NO_MEMORY;
  for (uint32_t i = 0; i < d->count && status == DIBS_OK;) {
    bson_t command, elements, one;
    uint32_t count = 0;
    int64_t n;
    bool refused, fine = begin_command(t->b, &command, "insert", DIBS__MONGO_TASK, "documents", &elements);
    for (; i < d->count && fine && elements.len < CHUNK; i++) {
      char index[12];
      const char *at;
      d->nrs[i] = number_of(t, i);
      if (!d->nrs[i]) continue;
      bson_uint32_to_string(count++, &at, index, sizeof index);
      fine = bson_append_document_begin(&elements, at, -1, &one) &&
             dibs__mongo_row_put_draft(&one, dibs__mem_task_find(t->tasks, d->nrs[i]), d->version) &&
             bson_append_document_end(&elements, &one);
    }
    status = end_command(t->b, &command, &elements, count, fine, &n, &refused);
    if (status == DIBS_OK && refused) raise_numbers(t->b);
    if (status == DIBS_UNKNOWN || (status == DIBS_OK && n < count)) status = DIBS_UNAVAILABLE;
  }
  return status;
}

/* Drafts of an earlier try serve again, unless their numbers now belong to other items. */
static dibs__status need_drafts(try *t) {
  if (!t->drafts || !t->drafts->first) return DIBS_OK;
  if (t->drafts->nrs && are_written(t)) return DIBS_OK;
  bool none = true;
  for (uint32_t i = 0; i < t->drafts->count; i++) none = none && !number_of(t, i);
  if (none && t->drafts->nrs) dibs__mongo_drafts_remove(t->b, t->drafts); /* another client has added them */
  if (none) return DIBS_OK;
  if (t->drafts->nrs) {
    dibs__mongo_drafts_remove(t->b, t->drafts);
    return DIBS_UNAVAILABLE; /* the next try has new numbers */
  }
  dibs__status status = write_drafts(t);
  if (status != DIBS_OK) dibs__mongo_drafts_remove(t->b, t->drafts);
  return status;
}

/* ---- The commit ---- */

static bool begin_change(bson_t *list, uint32_t *count, bson_t *one, uint64_t nr, int64_t version) {
  char index[12];
  const char *at;
  bson_uint32_to_string((*count)++, &at, index, sizeof index);
  return bson_append_document_begin(list, at, -1, one) && BSON_APPEND_INT64(one, "nr", (int64_t)nr) &&
         BSON_APPEND_INT64(one, "old", version);
}

static bool put_state(try *t, bson_t *one, const task *row, bool failed) {
  bson_t set;
  bool timed = row->state == DIBS__TASK_WAITING || row->state == DIBS__TASK_CLAIMED;
  if (timed && row->due < t->next) t->next = row->due;
  if (failed && !BSON_APPEND_BOOL(one, "failed", true)) return false;
  return BSON_APPEND_DOCUMENT_BEGIN(one, "set", &set) && dibs__mongo_row_put_state(&set, row) &&
         bson_append_document_end(one, &set);
}

/* What the decision has made of a task that was loaded. */
static bool put_loaded(try *t, bson_t *list, uint32_t *count, const struct dibs__mongo_loaded *was) {
  const task *row = was->was ? dibs__mem_task_find(t->tasks, was->nr) : NULL;
  bson_t one, now = BSON_INITIALIZER;
  bool fine = !row || dibs__mongo_row_put_state(&now, row);
  if (fine && row && bson_equal(&now, was->was)) {
    bson_destroy(&now);
    return true;
  }
  bson_destroy(&now);
  fine = fine && begin_change(list, count, &one, was->nr, was->version);
  if (!row) return fine && BSON_APPEND_BOOL(&one, "gone", true) && bson_append_document_end(list, &one);
  if (row->state == DIBS__TASK_READY && !was->ready) t->b->tasks_ready = true;
  return fine && put_state(t, &one, row, row->error_count > was->errors) && bson_append_document_end(list, &one);
}

static bool put_new(try *t, bson_t *list, uint32_t *count) {
  bson_t one;
  for (uint32_t i = 0; t->drafts && t->drafts->first && i < t->drafts->count; i++) {
    uint64_t nr = number_of(t, i);
    const task *row = nr ? dibs__mem_task_find(t->tasks, nr) : NULL;
    if (!row) continue;
    if (row->state == DIBS__TASK_READY) t->b->tasks_ready = true;
    if (!begin_change(list, count, &one, nr, t->drafts->version) || !put_state(t, &one, row, false) ||
        !bson_append_document_end(list, &one))
      return false;
  }
  return true;
}

/* The token of an ADD: {_id, kind, token, until, delete_at, nrs: [...], replays: [...]}.  It never changes, so it may
 * be inserted late. */
static bool put_token_of(try *t, bson_t *head, int64_t version, bool *any) {
  const struct dibs__task_op *op = t->adds;
  bson_t list, one, part;
  bool uses = op && op->token.len, some = false;
  for (uint32_t i = 0; uses && i < op->count; i++) {
    uses = !op->news[i].repeated;
    some = some || op->news[i].nr;
  }
  *any = uses && some;
  bool fine = BSON_APPEND_ARRAY_BEGIN(head, "tokens", &list);
  if (*any) {
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) && BSON_APPEND_INT64(&one, "_id", version) &&
           dibs__mongo_put_bytes(&one, "kind", t->name) && dibs__mongo_put_bytes(&one, "token", op->token) &&
           BSON_APPEND_INT64(&one, "until", t->now + op->token_ms) &&
           BSON_APPEND_DATE_TIME(&one, "delete_at", t->now + op->token_ms) &&
           BSON_APPEND_ARRAY_BEGIN(&one, "nrs", &part);
    for (uint32_t i = 0; i < op->count && fine; i++) {
      char index[12];
      const char *at;
      bson_uint32_to_string(i, &at, index, sizeof index);
      /* A number that the item found, and did not add, is negative. */
      int64_t nr = (int64_t)op->news[i].nr;
      fine = BSON_APPEND_INT64(&part, at, op->news[i].status == DIBS_REPLAY ? -nr : nr);
    }
    fine = fine && bson_append_array_end(&one, &part) && bson_append_document_end(&list, &one);
  }
  return fine && bson_append_array_end(head, &list);
}

/* The new document of the kind.  *any: it has changes. */
static bool put_head(try *t, bson_t *head, int64_t version, bool *any) {
  bson_t list;
  uint32_t count = 0;
  bool token = false;
  bool fine = dibs__mongo_put_bytes(head, "_id", t->name) && BSON_APPEND_INT64(head, "v", version) &&
              BSON_APPEND_BOOL(head, "settings", t->has_settings || t->sets) &&
              BSON_APPEND_INT64(head, "running", t->kind->running) &&
              BSON_APPEND_BOOL(head, "paused", t->kind->paused) &&
              BSON_APPEND_INT64(head, "keep_ms", t->kind->keep_ms) && BSON_APPEND_ARRAY_BEGIN(head, "pending", &list);
  for (size_t i = 0; i < t->count && fine; i++) fine = put_loaded(t, &list, &count, &t->rows[i]);
  fine = fine && put_new(t, &list, &count) && bson_append_array_end(head, &list) &&
         BSON_APPEND_INT64(head, "next", t->next) && put_token_of(t, head, version, &token);
  *any = count > 0 || token || t->sets;
  return fine;
}

static bool put_bound(bson_t *list, const char *key, const char *operator, int64_t at_ms) {
  bson_t one, args;
  return bson_append_document_begin(list, key, -1, &one) && bson_append_array_begin(&one, operator, - 1, &args) &&
         BSON_APPEND_UTF8(&args, "0", "$$NOW") && BSON_APPEND_DATE_TIME(&args, "1", at_ms) &&
         bson_append_array_end(&one, &args) && bson_append_document_end(list, &one);
}

/* {_id, v, $expr: {$and: [{$gte: [$$NOW, SURE]}, {$lte: [$$NOW, NOW + GUARD]}]}}: what was over, is over, and a fence
 * is not before its claim (R61). */
static bool put_condition(const try *t, bson_t *q) {
  bson_t expr, list;
  return dibs__mongo_put_bytes(q, "_id", t->name) && BSON_APPEND_INT64(q, "v", t->version) &&
         BSON_APPEND_DOCUMENT_BEGIN(q, "$expr", &expr) && BSON_APPEND_ARRAY_BEGIN(&expr, "$and", &list) &&
         put_bound(&list, "0", "$gte", t->sure) && put_bound(&list, "1", "$lte", t->now + GUARD_MS) &&
         bson_append_array_end(&expr, &list) && bson_append_document_end(q, &expr);
}

/* Step 4. */
static dibs__status send_head(try *t, const bson_t *head, bool *done) {
  bson_t command, elements, one, q;
  int64_t n;
  bool refused, fine;
  if (t->head)
    fine = begin_command(t->b, &command, "update", DIBS__MONGO_TASK_KIND, "updates", &elements) &&
           BSON_APPEND_DOCUMENT_BEGIN(&elements, "0", &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
           put_condition(t, &q) && bson_append_document_end(&one, &q) && BSON_APPEND_DOCUMENT(&one, "u", head) &&
           bson_append_document_end(&elements, &one);
  else
    fine = begin_command(t->b, &command, "insert", DIBS__MONGO_TASK_KIND, "documents", &elements) &&
           BSON_APPEND_DOCUMENT(&elements, "0", head);
  dibs__status status = end_command(t->b, &command, &elements, 1, fine, &n, &refused);
  *done = status == DIBS_OK && n == 1;
  if (*done) t->b->result->commits++;
  return status;
}

/* The changes were applied, and others need not read them. */
static void forget_pending(batch *b, dibs__str name, int64_t version) {
  bson_t command, elements, one, q, u, set, none;
  int64_t n;
  bool refused;
  bool fine = begin_command(b, &command, "update", DIBS__MONGO_TASK_KIND, "updates", &elements) &&
              BSON_APPEND_DOCUMENT_BEGIN(&elements, "0", &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
              dibs__mongo_put_bytes(&q, "_id", name) && BSON_APPEND_INT64(&q, "v", version) &&
              bson_append_document_end(&one, &q) && BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &u) &&
              BSON_APPEND_DOCUMENT_BEGIN(&u, "$set", &set) && BSON_APPEND_ARRAY_BEGIN(&set, "pending", &none) &&
              bson_append_array_end(&set, &none) && BSON_APPEND_ARRAY_BEGIN(&set, "tokens", &none) &&
              bson_append_array_end(&set, &none) && bson_append_document_end(&u, &set) &&
              bson_append_document_end(&one, &u) && bson_append_document_end(&elements, &one);
  (void)end_command(b, &command, &elements, 1, fine, &n, &refused);
}

/* With the first document of a kind. */
static void make_indexes(batch *b) {
  static const char *const indexes[][6] = {{"kind", "state", "rank", "due", "_id"},
                                           {"kind", "state", "phase", "rank", "due", "_id"},
                                           {"kind", "timed"},
                                           {"kept", "kind"},
                                           {"kind", "serial", "state", "_id"},
                                           {"kind", "unique", "state"},
                                           {"kind", "claim"}};
  bson_t command = BSON_INITIALIZER, list, one, key, reply;
  BSON_APPEND_UTF8(&command, "createIndexes", collection(b, DIBS__MONGO_TASK));
  BSON_APPEND_ARRAY_BEGIN(&command, "indexes", &list);
  for (uint32_t i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
    char index[12], name[64];
    size_t len = 0;
    const char *at;
    bson_uint32_to_string(i, &at, index, sizeof index);
    bson_append_document_begin(&list, at, -1, &one);
    BSON_APPEND_DOCUMENT_BEGIN(&one, "key", &key);
    for (size_t k = 0; k < 6 && indexes[i][k]; k++) {
      bson_append_int32(&key, indexes[i][k], -1, 1);
      len += (size_t)snprintf(name + len, sizeof name - len, "%s%s", k ? "_" : "", indexes[i][k]);
    }
    bson_append_document_end(&one, &key);
    BSON_APPEND_UTF8(&one, "name", name);
    bson_append_document_end(&list, &one);
  }
  bson_append_array_end(&command, &list);
  mongoc_client_write_command_with_opts(link_of(b)->client, link_of(b)->location->database, &command, NULL, &reply,
                                        NULL);
  bson_destroy(&reply);
  bson_destroy(&command);
  dibs__mongo_index(b, DIBS__MONGO_TOKEN, "token", false);
  dibs__mongo_index(b, DIBS__MONGO_TOKEN, "delete_at", true);
}

/* Nothing changed.  An old primary that does not know that it is one may not say so. */
static dibs__status confirm(try *t, bool *done) {
  int64_t version = t->version;
  dibs__status status = link_of(t->b)->replicated ? read_head(t, true) : DIBS_OK;
  *done = status == DIBS_OK && t->version == version;
  return status;
}

static dibs__status commit(try *t, bool *done, int64_t *sent) {
  bson_t head = BSON_INITIALIZER;
  int64_t version = draw_version();
  bool any = false;
  dibs__status status = need_drafts(t);
  if (status == DIBS_OK && !put_head(t, &head, version, &any)) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK && !any) {
    status = confirm(t, done);
  } else if (status == DIBS_OK) {
    if (!t->head) make_indexes(t->b);
    *sent = version;
    status = send_head(t, &head, done);
  }
  /* It is committed.  If it cannot be applied now, the caller repeats the operation, which then applies it. */
  bool found = true;
  if (*done && any && apply(t->b, &head, version, &found) != DIBS_OK) status = DIBS_UNKNOWN;
  if (*done && status == DIBS_OK && !found && !took_effect(t->b, &head, version)) status = DIBS_UNKNOWN;
  if (*done && status == DIBS_OK && t->count + (t->drafts ? t->drafts->count : 0) > MANY)
    forget_pending(t->b, t->name, version);
  bson_destroy(&head);
  return status;
}

/* ---- Until it is committed ---- */

/* One thread of a process at a time, so that they do not make each other repeat. */
static bool enter(batch *b, uint64_t bit) {
  struct dibs__mongo *store = (struct dibs__mongo *)b->session->base.store;
  for (;;) {
    dibs__mutex_lock(&store->lock);
    bool busy = (store->tasks_busy & bit) != 0;
    store->tasks_busy |= bit;
    dibs__mutex_unlock(&store->lock);
    if (!busy) return true;
    if (!dibs__tick_before(dibs__tick_now(), link_of(b)->by)) return false;
    dibs__nap_ms(1);
  }
}

static void leave(batch *b, uint64_t bit) {
  struct dibs__mongo *store = (struct dibs__mongo *)b->session->base.store;
  dibs__mutex_lock(&store->lock);
  store->tasks_busy &= ~bit;
  dibs__mutex_unlock(&store->lock);
}

static void pause_after(int nth) {
  uint8_t at_random;
  dibs__random(&at_random, sizeof at_random);
  int64_t most = nth < 5 ? INT64_C(2) << nth : PAUSE_MAX_MS;
  dibs__nap_ms(at_random % (most < PAUSE_MAX_MS ? most : PAUSE_MAX_MS));
}

static dibs__status one_try(batch *b, dibs__str kind, dibs__mongo_decide *decide, void *user, int64_t *sent,
                            bool *done) {
  try t = {.b = b, .name = kind};
  *done = false;
  dibs__status status = begin_try(&t);
  bool was_sent = status == DIBS_OK && *sent && t.version == *sent; /* the server did it, and answered otherwise */
  *done = was_sent;
  if (status == DIBS_OK && !was_sent) status = decide(&t, user);
  bool moved = link_of(b)->moves != t.moves; /* what was read is of several members: once more */
  if (status == DIBS_OK && !was_sent && !moved) status = commit(&t, done, sent);
  if (*done && t.again) {
    *done = false;
    *sent = 0;
  }
  end_try(&t);
  return status;
}

dibs__status dibs__mongo_kind_run(batch *b, dibs__str kind, dibs__mongo_decide *decide, void *user) {
  uint64_t bit = UINT64_C(1) << (dibs__hash(kind.p, kind.len) % 64);
  int64_t sent = 0;
  dibs__status status = DIBS_OK;
  bool done = false;
  if (!enter(b, bit)) return DIBS_UNAVAILABLE;
  for (int nth = 0, refusals = 0; !done; nth++) {
    if (link_of(b)->broken || !dibs__tick_before(dibs__tick_now(), link_of(b)->by)) status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK && nth % 8 == 7) status = dibs__mongo_clock(link_of(b), true, b->result);
    if (status == DIBS_OK) status = one_try(b, kind, decide, user, &sent, &done);
    /* Other commands wrote the same documents, say. */
    if (status == DIBS_UNAVAILABLE && !link_of(b)->broken && ++refusals < REFUSALS &&
        dibs__tick_before(dibs__tick_now(), link_of(b)->by))
      status = DIBS_OK;
    if (status != DIBS_OK) break;
    if (!done) pause_after(nth);
  }
  leave(b, bit);
  return status;
}
