/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's own collections (R77): documents of theirs, of which dibs reads and writes the fields of its
 * roles and no others.
 *
 * A claim is one findAndModify, sorted by locked_at and updated_at, for each task that it takes; so is what ends or
 * extends a claim.  Each is atomic on every server, and its answer says what it did.  A command that changed several
 * documents at once would answer a number, and no field would distinguish this client's claims from those of another
 * client in the same millisecond.  Whether a document is free is decided by the server's clock, in the command itself.
 *
 * The server may refuse to change a very document, by a validator or a unique index.  Then the free documents are tried
 * one after the other, and those that it refuses are left out.
 */
#include "drivers/mongodb/collection_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TRIES = 4,           /* of a claim that the server refuses, and of which it refuses no single document */
  ODD_KEEP_MS = 10000, /* no index leads to documents that are never claimed: how often they are looked for */
  LOCKED_MS = 100,     /* a document is free, but another client has just changed it: when it is worth another claim */
  PAUSE_MAX_MS = 16    /* before a command that met another one is sent again */
};

typedef struct dibs__task_op task_op;
typedef struct dibs__task_item item_t;
typedef struct dibs__table table_t;

struct run {
  struct dibs__mongo_collection c;
  const table_t *table;
  task_op *op;
  bson_t **found; /* documents of the answer */
  size_t found_count, refused;
};

static void set_answer(struct run *r, dibs__status status, const char *why) {
  r->op->op.status = status;
  snprintf(r->op->why, sizeof r->op->why, "%.199s", why);
}

static void fail_op(struct run *r, dibs__status status) {
  set_answer(r, status, status == DIBS_NO_MEMORY ? "out of memory" : r->c.result->text);
}

/* ---- Documents of an answer ---- */

static bool keep_document(void *user, const bson_t *document) {
  struct run *r = user;
  bson_t **more = realloc(r->found, (r->found_count + 1) * sizeof *more);
  if (!more) return false;
  r->found = more;
  r->found[r->found_count++] = bson_copy(document);
  return true;
}

static dibs__str keep_text(char **to, dibs__str text) {
  dibs__str kept = {*to, text.len};
  if (text.len) memcpy(*to, text.p, text.len);
  (*to)[text.len] = '\0';
  *to += text.len + 1;
  return kept;
}

static void fill_row(const struct run *r, const struct dibs__mongo_task *task, struct dibs__task_row *row, char **to) {
  bool listed = r->op->op.verb == DIBS__TASK_LIST;
  dibs__str none = keep_text(to, (dibs__str){"", 0});
  *row = (struct dibs__task_row){.fence = task->fence,
                                 .kind = keep_text(to, r->op->kind),
                                 .key = keep_text(to, task->key),
                                 .phase = keep_text(to, task->phase),
                                 .locked = keep_text(to, dibs__str_of(task->locked, strlen(task->locked))),
                                 .serial = none,
                                 .unique = none,
                                 .payload = none,
                                 .by = none,
                                 .text = none,
                                 .state = listed && task->free ? DIBS__TASK_READY : DIBS__TASK_CLAIMED,
                                 .began_ms = task->locked_ms,
                                 .at_ms = task->updated_ms};
  row->due_ms = row->state == DIBS__TASK_CLAIMED ? row->began_ms + r->op->timeout_ms : 0;
}

static void hand_out(struct run *r) {
  task_op *op = r->op;
  struct dibs__mongo_task task;
  size_t size = 1;
  set_answer(r, DIBS_OK, "");
  if (r->found_count == 0) return;
  for (size_t i = 0; i < r->found_count; i++)
    if (dibs__mt_read(r->table, r->found[i], &task))
      size += sizeof(struct dibs__task_row) + op->kind.len + task.key.len + task.phase.len + DIBS__MONGO_PROOF + 5;
  struct dibs__task_row *rows = malloc(size + r->found_count * sizeof *rows);
  if (!rows) {
    set_answer(r, DIBS_NO_MEMORY, "out of memory");
    return;
  }
  char *to = (char *)(rows + r->found_count);
  op->got = rows;
  for (size_t i = 0; i < r->found_count; i++)
    if (dibs__mt_read(r->table, r->found[i], &task)) fill_row(r, &task, &rows[op->got_count++], &to);
}

/* ---- Commands ---- */

static dibs__status modify(struct run *r, const bson_t *query, const bson_t *sort, const bson_t *pipeline,
                           bson_t **document) {
  bson_t *fields = dibs__mt_fields(r->op);
  const struct dibs__mongo_change change = {query, sort, fields, pipeline};
  *document = NULL;
  dibs__status status = fields ? dibs__mongo_modify(&r->c, &change, document) : DIBS_NO_MEMORY;
  bson_destroy(fields);
  return status;
}

/* Documents that match; the filter is destroyed.  `most` 0: all. */
static dibs__status look(struct run *r, bson_t *filter, bool by_key, int64_t most, dibs__mongo_row *row, void *user) {
  return dibs__mongo_look(&r->c, filter, dibs__mt_sort(r->table, by_key), dibs__mt_fields(r->op), most, row, user);
}

static bool see_one(void *user, const bson_t *document) {
  bson_t **one = user;
  *one = bson_copy(document);
  return false;
}

/* ---- Claiming ---- */

/* Claims the first free document, or the one with this _id. */
static dibs__status claim_one(struct run *r, const bson_t *only, bool *got) {
  bson_iter_t at;
  bson_t *query = dibs__mt_filter(r->op, DIBS__MT_FREE, dibs__mongo_latest(r->c.link));
  bson_t *sort = dibs__mt_sort(r->table, false), *pipeline = dibs__mt_claim(r->table), *document = NULL;
  dibs__status status = query && sort && pipeline ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK && only && bson_iter_init_find(&at, only, "_id") && !bson_append_iter(query, "_id", -1, &at))
    status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = modify(r, query, only ? NULL : sort, pipeline, &document);
  *got = document != NULL;
  if (document && !keep_document(r, document)) status = DIBS_NO_MEMORY;
  bson_destroy(query);
  bson_destroy(sort);
  bson_destroy(pipeline);
  bson_destroy(document);
  return status;
}

struct trial {
  struct run *run;
  dibs__status status;
  char why[sizeof((task_op *)NULL)->why]; /* of the first that was refused */
};

static bool try_document(void *user, const bson_t *document) {
  struct trial *t = user;
  struct run *r = t->run;
  bool got;
  dibs__status status = claim_one(r, document, &got);
  if (status == DIBS_INVALID && r->refused++ == 0) {
    dibs__mt_explain_refused(r->table, document, r->c.result->text, t->why, sizeof t->why);
  } else if (status != DIBS_OK && status != DIBS_INVALID) {
    t->status = status;
    return false;
  }
  return r->found_count < r->op->most && dibs__tick_before(dibs__tick_now(), r->c.by);
}

/* The server has refused one of the free documents: all of them are tried, one after the other. */
static dibs__status claim_one_by_one(struct run *r, char *why, size_t size) {
  struct trial t = {.run = r};
  bson_t *filter = dibs__mt_filter(r->op, DIBS__MT_FREE, dibs__mongo_latest(r->c.link));
  dibs__status status = look(r, filter, false, 0, try_document, &t);
  if (t.status != DIBS_OK) status = t.status;
  snprintf(why, size, "%s", t.why);
  /* None was refused now: the server refuses the command itself, or had another reason a moment ago. */
  if (status == DIBS_OK && r->refused == 0 && r->found_count == 0) {
    r->c.known->fits = false;
    snprintf(why, size, "%.*s", (int)sizeof r->c.result->text - 100, r->c.result->text);
    return DIBS_INVALID;
  }
  return status;
}

/* Why the collection has documents that no claim takes.  It is looked for now and then. */
static void note_odd(struct run *r) {
  dibs__tick now = dibs__tick_now();
  bson_t *one = NULL;
  if (!r->c.known->odd_looked.ns || !dibs__tick_before(now, dibs__tick_add_ms(r->c.known->odd_looked, ODD_KEEP_MS))) {
    r->c.known->odd[0] = '\0';
    if (look(r, dibs__mt_filter(r->op, DIBS__MT_ODD, 0), true, 1, see_one, &one) != DIBS_OK) return;
    if (one) dibs__mt_explain(r->table, one, r->c.known->odd, sizeof r->c.known->odd);
    bson_destroy(one);
    r->c.known->odd_looked = now;
  }
  snprintf(r->op->why, sizeof r->op->why, "%s", r->c.known->odd);
}

/* No document was claimed: answers when one is free. */
static void answer_none(struct run *r, const char *why) {
  struct dibs__mongo_task task;
  bson_t *one = NULL;
  dibs__status status = look(r, dibs__mt_filter(r->op, DIBS__MT_FIT, 0), false, 1, see_one, &one);
  if (status != DIBS_OK) {
    fail_op(r, status);
    return;
  }
  set_answer(r, DIBS_OK, "");
  if (one && dibs__mt_read(r->table, one, &task) && r->refused == 0) {
    r->op->next_ms = task.locked_ms + r->op->timeout_ms - dibs__mongo_earliest(r->c.link);
    if (r->op->next_ms <= 0) r->op->next_ms = LOCKED_MS;
  }
  bson_destroy(one);
  if (*why)
    snprintf(r->op->why, sizeof r->op->why, "%s", why);
  else
    note_odd(r);
}

static void run_claim(struct run *r) {
  char why[sizeof r->op->why] = "";
  dibs__status status = DIBS_OK;
  if (r->op->again) {
    set_answer(r, DIBS_OK, "");
    r->op->next_ms = 0;
    return;
  }
  for (int tries = 0; tries < TRIES; tries++) {
    status = DIBS_OK;
    for (bool got = true; status == DIBS_OK && got && r->found_count < r->op->most;) {
      if (r->found_count > 0 && !dibs__tick_before(dibs__tick_now(), r->c.by)) break;
      status = claim_one(r, NULL, &got);
    }
    if (status == DIBS_INVALID) status = claim_one_by_one(r, why, sizeof why);
    if (status != DIBS_INVALID) break;
    dibs__nap_ms(PAUSE_MAX_MS);
  }
  if (r->found_count > 0) {
    hand_out(r); /* a claim whose answer was lost is over when its time is */
  } else if (status == DIBS_OK) {
    answer_none(r, why);
  } else {
    fail_op(r, status);
    if (*why) snprintf(r->op->why, sizeof r->op->why, "%s", why);
  }
}

/* ---- Ending and extending ---- */

static void answer_missed(struct run *r, item_t *item) {
  bson_t *one = NULL;
  dibs__status status = look(r, dibs__mt_filter_key(r->table, item), true, 1, see_one, &one);
  item->status = status != DIBS_OK ? status : one ? DIBS_STALE : DIBS_NOT_FOUND;
  bson_destroy(one);
}

static void answer_extended(struct run *r, item_t *item, const bson_t *document) {
  struct dibs__mongo_task task;
  if (!dibs__mt_read_lock(r->table, document, &task)) return;
  item->due_ms = task.locked_ms + r->op->timeout_ms;
  snprintf(item->locked_now, sizeof item->locked_now, "%s", task.locked);
}

/* The item's status; UNKNOWN: the answer was lost. */
static void change_item(struct run *r, item_t *item) {
  bson_t *query = dibs__mt_filter_item(r->table, item), *pipeline = NULL, *document = NULL;
  if (!query) {
    item->status = DIBS_STALE; /* no claim has this proof */
    return;
  }
  if (item->phase.len && !bson_utf8_validate(item->phase.p, item->phase.len, false)) {
    item->status = DIBS_INVALID;
    snprintf(r->op->why, sizeof r->op->why, "the phase is not UTF-8");
    bson_destroy(query);
    return;
  }
  pipeline = dibs__mt_change(r->op, item);
  item->status = pipeline ? modify(r, query, NULL, pipeline, &document) : DIBS_NO_MEMORY;
  if (item->status == DIBS_INVALID || item->status == DIBS_UNAVAILABLE)
    snprintf(r->op->why, sizeof r->op->why, "%.199s", r->c.result->text);
  if (item->status == DIBS_OK && !document) answer_missed(r, item);
  if (document && r->op->op.verb == DIBS__TASK_EXTEND) answer_extended(r, item, document);
  bson_destroy(document);
  bson_destroy(pipeline);
  bson_destroy(query);
}

static bool is_failure(dibs__status status) {
  return status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE || status == DIBS_DENIED || status == DIBS_NO_MEMORY;
}

static void run_change(struct run *r) {
  task_op *op = r->op;
  bool any = false; /* one has its answer from the server */
  for (uint32_t i = 0; i < op->count; i++) {
    item_t *item = &op->items[i];
    if (dibs__task_table_refuses_item(op, item)) continue;
    item->status = DIBS_UNAVAILABLE;
    if (!r->c.link->broken && dibs__tick_before(dibs__tick_now(), r->c.by)) change_item(r, item);
    if (item->status == DIBS_UNKNOWN || (is_failure(item->status) && !any)) {
      fail_op(r, item->status);
      return;
    }
    if (is_failure(item->status)) item->status = DIBS_UNAVAILABLE;
    any = true;
  }
  op->op.status = DIBS_OK;
}

/* ---- Listing ---- */

struct types {
  const table_t *table;
  uint32_t types, count;
};

static bool note_type(void *user, const bson_t *document) {
  struct types *t = user;
  t->types |= dibs__mt_type_in(t->table, document);
  t->count++;
  return true;
}

/* The type of the key after which the listing goes on.  A text of digits may be a number or a text: that of the
 * document with this key, and if it was removed, that of the other keys.  0: unclear, or no document comes after it.
 */
static dibs__status type_of_after(struct run *r, uint32_t *type, bool *none) {
  uint32_t types = dibs__mf_types_of(r->op->filter.after_key);
  struct types t = {.table = r->table};
  *none = types == 0;
  *type = types;
  if ((types & (types - 1)) == 0) return DIBS_OK;
  dibs__status status = look(r, dibs__mf_filter_same(r->table, r->op->filter.after_key), true, 3, note_type, &t);
  for (uint32_t bit = 1; bit <= DIBS__MF_OID && status == DIBS_OK && t.count == 0 && types; bit <<= 1) {
    struct types one = {.table = r->table};
    if (types & bit) status = look(r, dibs__mf_filter_type(r->table, bit), true, 1, note_type, &one);
    if (one.count == 0) types &= ~bit;
  }
  *type = t.count ? t.types : types;
  *none = *type == 0;
  if (*type & (*type - 1)) *type = 0;
  return status;
}

static void run_list(struct run *r) {
  const struct dibs__task_filter *filter = &r->op->filter;
  uint32_t type = 0;
  bool none = false;
  dibs__status status = DIBS_OK;
  set_answer(r, DIBS_OK, "");
  if (filter->states && !(filter->states & (1u << DIBS__TASK_READY | 1u << DIBS__TASK_CLAIMED))) return;
  if (filter->key.len && dibs__mf_types_of(filter->key) == 0) return;
  if (filter->after_key.len) status = type_of_after(r, &type, &none);
  if (status == DIBS_OK && none) return;
  if (status == DIBS_OK && filter->after_key.len && !type) {
    set_answer(r, DIBS_INVALID, "");
    snprintf(r->op->why, sizeof r->op->why, "\"%.60s\" is a key of several types: list from the beginning",
             filter->after_key.p);
    return;
  }
  if (status == DIBS_OK) status = look(r, dibs__mt_filter_list(r->op, type), true, r->op->most, keep_document, r);
  if (status == DIBS_OK)
    hand_out(r);
  else
    fail_op(r, status);
}

/* ---- One operation ---- */

static bool phases_are_texts(const task_op *op) {
  bool fine = !op->filter.phase.len || bson_utf8_validate(op->filter.phase.p, op->filter.phase.len, false);
  for (uint32_t i = 0; i < op->phase_count && fine; i++)
    fine = !op->phases[i].len || bson_utf8_validate(op->phases[i].p, op->phases[i].len, false);
  return fine;
}

static void run_verb(struct run *r) {
  switch (r->op->op.verb) {
  case DIBS__TASK_CLAIM:
    run_claim(r);
    return;
  case DIBS__TASK_LIST:
    run_list(r);
    return;
  default:
    run_change(r);
  }
}

/* The first document makes the collection.  (findAndModify fails in a missing one on some servers.) */
static void answer_without_collection(struct run *r, const char *why) {
  task_op *op = r->op;
  set_answer(r, DIBS_OK, why);
  if (op->op.verb == DIBS__TASK_CLAIM || op->op.verb == DIBS__TASK_LIST) return;
  for (uint32_t i = 0; i < op->count; i++)
    if (!dibs__task_table_refuses_item(op, &op->items[i])) op->items[i].status = DIBS_NOT_FOUND;
}

void dibs__mongo_run_task(struct dibs__mongo_session *session, task_op *op, dibs__tick by,
                          struct dibs__result *result) {
  struct run r = {.c = {.session = session, .table = op->table, .result = result}, .table = op->table, .op = op};
  char why[sizeof op->why] = "";
  if (dibs__task_table_refuses(op)) return;
  r.c.by = op->op.by.ns ? dibs__tick_min(by, op->op.by) : by;
  dibs__status status = phases_are_texts(op) ? dibs__mongo_collection_open(&r.c, why, sizeof why) : DIBS_INVALID;
  if (status == DIBS_OK)
    run_verb(&r);
  else if (status == DIBS_NOT_FOUND)
    answer_without_collection(&r, why);
  else
    set_answer(&r, status, status == DIBS_NO_MEMORY ? "out of memory" : *why ? why : "a phase is not UTF-8");
  for (size_t i = 0; i < r.found_count; i++) bson_destroy(r.found[i]);
  free(r.found);
  dibs__mongo_collection_close(&r.c);
}
