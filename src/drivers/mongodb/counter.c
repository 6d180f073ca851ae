/* SPDX-License-Identifier: MIT */
/*
 * Counters (R86 to R92).  Each has a document, and a batch changes many of them:
 *
 *   counters  {_id: KEY, v, number, done: [{source, sequence, full, at}]}
 *
 *  1. The documents of the batch's counters are read.
 *  2. The batch is written into the document of its source in the ledger (ledger.c).  From now on it counts.
 *  3. Each counter's document is replaced, if it is still as it was read: the new one has the number, and in `done`
 * that this batch was applied, or that the sum did not fit (`full`).
 *  4. The ledger gets the sequence number, and loses the batch.
 *
 * A client that dies between these steps has applied a part.  The repeat of its batch applies the rest; so does the
 * next batch of its source; and every client that adds looks for batches that were begun 10 s ago (recover).
 *
 * Nothing is applied twice.  What a document of a counter says in `done` is removed only after step 4, which the ledger
 * shows.  A client that reads a counter without this mark therefore looks into the ledger after that (unless it wrote
 * step 2 after that): as long as the batch is there, the mark was not removed before the counter was read.  The
 * replacement requires the version that was read, so a client that was stopped in between changes nothing.
 *
 * A batch under a guard (R89) raises the guard between 2 and 3.  If the guard has a larger fence by then, the batch is
 * removed from the ledger, and nothing was applied.
 */
#include "drivers/mongodb/counter_impl.h"

#include <stdlib.h>
#include <string.h>

enum { OLD_MARKS = 64, RECOVERED = 16, PAUSE_MAX_MS = 20 };

/* A test sets it to 0. */
int64_t dibs__mongo_late_ms = 10000;

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_ledger ledger;
typedef struct dibs__counter_op counter_op;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

/* The counter of an item. */
struct row {
  bson_t *seen; /* NULL: there is none */
  bool open;    /* the item is not applied yet */
};

/* A mark whose batch may be settled. */
struct mark {
  char source[DIBS__MONGO_SOURCE];
  uint64_t sequence;
  bool seen, settled;
};

/* A batch that is applied. */
struct work {
  batch *b;
  counter_op *op;
  ledger *l;
  struct row *rows;
  char source[DIBS__MONGO_SOURCE];
  bool current; /* the counters were read before the ledger was written or read */
  struct mark marks[OLD_MARKS];
  uint32_t mark_count;
};

static bool in_time(const batch *b) {
  return dibs__tick_before(dibs__tick_now(), link_of(b)->by);
}

static void pause_a_moment(void) {
  uint8_t at_random;
  dibs__random(&at_random, sizeof at_random);
  dibs__nap_ms(at_random % PAUSE_MAX_MS);
}

/* ---- Reading counters ---- */

static int compare_key(const void *key, const void *item) {
  const dibs__str *a = key, *b = &((const struct dibs__counter_item *)item)->key;
  return dibs__str_before(*a, *b) ? -1 : dibs__str_before(*b, *a);
}

/* The items of a batch are in the order of their keys. */
static bool see_counter(void *user, const bson_t *row) {
  const struct work *w = user;
  dibs__str key = dibs__mongo_bytes_in(row, "_id");
  const struct dibs__counter_item *item = bsearch(&key, w->op->items, w->op->count, sizeof *w->op->items, compare_key);
  if (item && !w->rows[item - w->op->items].seen) w->rows[item - w->op->items].seen = bson_copy(row);
  return true;
}

static bool put_keys(bson_t *filter, const struct dibs__counter_item *items, uint32_t count, const struct row *rows) {
  bson_t in, keys;
  uint32_t some = 0;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  for (uint32_t i = 0; i < count; i++) {
    char index[12];
    const char *at;
    if ((rows && !rows[i].open) || !dibs__mongo_is_text(items[i].key)) continue;
    bson_uint32_to_string(some++, &at, index, sizeof index);
    bson_append_utf8(&keys, at, -1, items[i].key.p, (int)items[i].key.len);
  }
  bson_append_array_end(&in, &keys);
  bson_append_document_end(filter, &in);
  return some > 0;
}

static void forget_rows(const struct work *w) {
  for (uint32_t i = 0; i < w->op->count; i++) {
    bson_destroy(w->rows[i].seen);
    w->rows[i].seen = NULL;
  }
}

static dibs__status read_rows(struct work *w) {
  bson_t filter = BSON_INITIALIZER;
  dibs__status status = DIBS_OK;
  forget_rows(w);
  if (put_keys(&filter, w->op->items, w->op->count, w->rows))
    status = dibs__mongo_find(link_of(w->b), DIBS__MONGO_COUNTER, &filter, 0, false, see_counter, w, w->b->result);
  bson_destroy(&filter);
  return status;
}

/* ---- Marks ---- */

/* Calls `each` for every mark of a counter, until it answers false. */
typedef bool each_mark(struct work *w, const bson_t *mark, void *user);

static bool all_marks(struct work *w, const bson_t *row, each_mark *each, void *user) {
  bson_iter_t at, in;
  if (!row || !bson_iter_init_find(&at, row, "done") || !BSON_ITER_HOLDS_ARRAY(&at) || !bson_iter_recurse(&at, &in))
    return true;
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t one;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) continue;
    bson_iter_document(&in, &len, &bytes);
    if (bson_init_static(&one, bytes, len) && !each(w, &one, user)) return false;
  }
  return true;
}

static bool is_source(const bson_t *mark, const char *source) {
  return dibs__str_equal(dibs__mongo_bytes_in(mark, "source"), dibs__str_of(source, strlen(source)));
}

static struct mark *find_mark(struct work *w, const bson_t *mark) {
  for (uint32_t i = 0; i < w->mark_count; i++)
    if (is_source(mark, w->marks[i].source) &&
        w->marks[i].sequence == (uint64_t)dibs__mongo_number_in(mark, "sequence", 0))
      return &w->marks[i];
  return NULL;
}

/* Old marks of other sources: their batches are probably settled. */
static bool gather_mark(struct work *w, const bson_t *mark, void *user) {
  (void)user;
  dibs__str source = dibs__mongo_bytes_in(mark, "source");
  if (w->mark_count == OLD_MARKS) return false;
  if (source.len != DIBS__MONGO_SOURCE - 1 || is_source(mark, w->source) || find_mark(w, mark)) return true;
  if (dibs__mongo_number_in(mark, "at", 0) > w->b->now - dibs__mongo_late_ms) return true;
  struct mark *m = &w->marks[w->mark_count++];
  *m = (struct mark){.sequence = (uint64_t)dibs__mongo_number_in(mark, "sequence", 0)};
  memcpy(m->source, source.p, source.len);
  return true;
}

static bool see_source(void *user, const bson_t *row) {
  struct work *w = user;
  dibs__str source = dibs__mongo_bytes_in(row, "_id");
  for (uint32_t i = 0; i < w->mark_count; i++) {
    struct mark *m = &w->marks[i];
    if (!dibs__str_equal(source, dibs__str_of(m->source, strlen(m->source)))) continue;
    m->seen = true;
    m->settled = (uint64_t)dibs__mongo_number_in(row, "sequence", 0) >= m->sequence;
  }
  return true;
}

/* After the counters were read: which of their old marks are not needed any more? */
static dibs__status settle_marks(struct work *w) {
  bson_t filter = BSON_INITIALIZER, in, keys;
  w->mark_count = 0;
  for (uint32_t i = 0; i < w->op->count; i++) (void)all_marks(w, w->rows[i].seen, gather_mark, NULL);
  if (w->mark_count == 0) {
    bson_destroy(&filter);
    return DIBS_OK;
  }
  BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
  BSON_APPEND_ARRAY_BEGIN(&in, "$in", &keys);
  for (uint32_t i = 0; i < w->mark_count; i++) {
    char index[12];
    const char *at;
    bson_uint32_to_string(i, &at, index, sizeof index);
    BSON_APPEND_UTF8(&keys, at, w->marks[i].source);
  }
  bson_append_array_end(&in, &keys);
  bson_append_document_end(&filter, &in);
  dibs__status status =
      dibs__mongo_find(link_of(w->b), DIBS__MONGO_SOURCE_ROW, &filter, 0, false, see_source, w, w->b->result);
  /* The ledger forgets a source long after its last batch. */
  for (uint32_t i = 0; i < w->mark_count; i++) w->marks[i].settled = w->marks[i].settled || !w->marks[i].seen;
  bson_destroy(&filter);
  return status;
}

/* ---- Applying ---- */

struct found {
  bool there, full;
};

static bool find_own(struct work *w, const bson_t *mark, void *user) {
  struct found *f = user;
  bson_iter_t at;
  if (!is_source(mark, w->source) || (uint64_t)dibs__mongo_number_in(mark, "sequence", 0) != w->op->sequence)
    return true;
  f->there = true;
  f->full = bson_iter_init_find(&at, mark, "full") && bson_iter_as_bool(&at);
  return false;
}

struct copying {
  bson_t *to;
  uint32_t count;
  bool fine;
};

static bool copy_mark(struct work *w, const bson_t *mark, void *user) {
  struct copying *c = user;
  char index[12];
  const char *at;
  const struct mark *m = find_mark(w, mark);
  if (is_source(mark, w->source) || (m && m->settled)) return true;
  bson_uint32_to_string(c->count++, &at, index, sizeof index);
  c->fine = c->fine && bson_append_document(c->to, at, -1, mark);
  return true;
}

/* The new document of an item's counter. */
static bool put_counter(struct work *w, bson_t *to, const struct dibs__counter_item *item, const bson_t *seen,
                        int64_t number) {
  struct copying copying = {.fine = true};
  bson_t marks, one;
  int64_t version;
  char index[12];
  const char *at;
  do dibs__random(&version, sizeof version);
  while (version == 0);
  bool fine = bson_append_utf8(to, "_id", -1, item->key.p, (int)item->key.len) && BSON_APPEND_INT64(to, "v", version) &&
              BSON_APPEND_INT64(to, "number", number) && BSON_APPEND_ARRAY_BEGIN(to, "done", &marks);
  copying.to = &marks;
  if (fine) (void)all_marks(w, seen, copy_mark, &copying);
  bson_uint32_to_string(copying.count, &at, index, sizeof index);
  fine = fine && copying.fine && bson_append_document_begin(&marks, at, -1, &one) &&
         BSON_APPEND_UTF8(&one, "source", w->source) && BSON_APPEND_INT64(&one, "sequence", (int64_t)w->op->sequence) &&
         BSON_APPEND_INT64(&one, "at", w->b->now);
  if (item->status == DIBS_FULL) fine = fine && BSON_APPEND_BOOL(&one, "full", true);
  return fine && bson_append_document_end(&marks, &one) && bson_append_array_end(to, &marks);
}

/* Adds {q: {_id, v}, u: document} to the updates, or the document to those that are inserted. */
static bool put_item(struct work *w, struct dibs__counter_item *item, const struct row *row, bson_t *list,
                     uint32_t nth) {
  int64_t number = row->seen ? dibs__mongo_number_in(row->seen, "number", 0) : 0, sum;
  bson_t one, q, document = BSON_INITIALIZER;
  char index[12];
  const char *at;
  bson_uint32_to_string(nth, &at, index, sizeof index);
  item->status = __builtin_add_overflow(number, item->delta, &sum) ? DIBS_FULL : DIBS_OK;
  bool fine = put_counter(w, &document, item, row->seen, item->status == DIBS_OK ? sum : number);
  if (fine && row->seen)
    fine = bson_append_document_begin(list, at, -1, &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q) &&
           bson_append_utf8(&q, "_id", -1, item->key.p, (int)item->key.len) &&
           BSON_APPEND_INT64(&q, "v", dibs__mongo_number_in(row->seen, "v", 0)) && bson_append_document_end(&one, &q) &&
           BSON_APPEND_DOCUMENT(&one, "u", &document) && bson_append_document_end(list, &one);
  else
    fine = fine && bson_append_document(list, at, -1, &document);
  bson_destroy(&document);
  return fine;
}

/* When there are new counters: the ledger forgets sources, and finds batches that were begun long ago. */
static void index_ledger(batch *b) {
  dibs__mongo_index(b, DIBS__MONGO_SOURCE_ROW, "until", true);
  dibs__mongo_index(b, DIBS__MONGO_SOURCE_ROW, "since", false);
}

/* Sends the updates, or the inserts, of all items that are open.  `all`: each of them was done. */
static dibs__status write_items(struct work *w, bool inserts, bool *all) {
  bson_t command = BSON_INITIALIZER, list, reply;
  bson_iter_t at;
  uint32_t count = 0;
  bool fine = BSON_APPEND_UTF8(&command, inserts ? "insert" : "update",
                               mongoc_collection_get_name(link_of(w->b)->collections[DIBS__MONGO_COUNTER])) &&
              BSON_APPEND_BOOL(&command, "ordered", false) &&
              BSON_APPEND_ARRAY_BEGIN(&command, inserts ? "documents" : "updates", &list);
  for (uint32_t i = 0; i < w->op->count && fine; i++)
    if (w->rows[i].open && (w->rows[i].seen == NULL) == inserts)
      fine = put_item(w, &w->op->items[i], &w->rows[i], &list, count++);
  fine = fine && bson_append_array_end(&command, &list);
  dibs__status status = fine ? DIBS_OK : DIBS_NO_MEMORY;
  if (fine && count > 0) {
    status = dibs__mongo_write(link_of(w->b), &command, &reply, w->b->result);
    w->b->result->commits++;
    if (inserts && status == DIBS_OK) index_ledger(w->b);
    if (status != DIBS_OK || !bson_iter_init_find(&at, &reply, "n") || bson_iter_as_int64(&at) != count) *all = false;
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status;
}

/* A document that was changed by hand is none: the item is refused by itself (INVALID). */
static bool is_counter(const bson_t *row) {
  bson_iter_t at;
  return bson_iter_init_find(&at, row, "number") && BSON_ITER_HOLDS_NUMBER(&at) && bson_iter_init_find(&at, row, "v") &&
         BSON_ITER_HOLDS_INT64(&at);
}

/* Items that were applied already, or can't be. */
static bool close_applied(struct work *w) {
  bool open = false;
  for (uint32_t i = 0; i < w->op->count; i++) {
    struct found found = {0};
    struct row *row = &w->rows[i];
    if (!row->open) continue;
    (void)all_marks(w, row->seen, find_own, &found);
    bool is_bad = row->seen && !is_counter(row->seen);
    row->open = !found.there && !is_bad;
    if (is_bad)
      w->op->items[i].status = DIBS_INVALID;
    else if (found.there)
      w->op->items[i].status = found.full ? DIBS_FULL : DIBS_OK;
    open = open || row->open;
  }
  return open;
}

/* Step 3.  `gone`: somebody else has settled the batch. */
static dibs__status apply_items(struct work *w, bool *gone) {
  *gone = false;
  for (uint32_t i = 0; i < w->op->count; i++) {
    w->rows[i].open = dibs__mongo_is_text(w->op->items[i].key);
    w->op->items[i].status = w->rows[i].open ? DIBS_UNKNOWN : DIBS_INVALID;
  }
  for (dibs__status status = DIBS_OK;; pause_a_moment()) {
    if (!in_time(w->b)) return DIBS_UNAVAILABLE;
    if (!w->current) status = read_rows(w);
    if (status == DIBS_OK && !w->current) {
      status = dibs__mongo_ledger_load(w->b, &w->op->source, w->l);
      *gone = status == DIBS_OK && (!w->l->applies || w->l->batch_sequence != w->op->sequence);
    }
    if (status == DIBS_OK && !*gone) status = settle_marks(w);
    if (status != DIBS_OK || *gone || !close_applied(w)) return status;
    bool all = true;
    status = write_items(w, false, &all);
    if (status == DIBS_OK) status = write_items(w, true, &all);
    if (status != DIBS_OK || all) return status;
    w->current = false; /* some of them are marked now; which ones, the next reading shows */
  }
}

/* ---- A batch ---- */

/* R89.  STALE: the guard has a larger fence. */
static dibs__status raise_guard(struct work *w) {
  ledger guard = {0};
  dibs__status status = DIBS_OK;
  for (bool done = false; status == DIBS_OK && !done;) {
    if (!in_time(w->b)) status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK) status = dibs__mongo_ledger_load(w->b, &w->op->guard, &guard);
    if (status == DIBS_OK && guard.sequence > w->op->fence.v) status = DIBS_STALE;
    if (status != DIBS_OK) break;
    struct dibs__mongo_entry entry = {.sequence = w->op->fence.v, .keep_ms = dibs__counter_keep_ms(w->op)};
    status = dibs__mongo_ledger_write(w->b, &w->op->guard, &guard, &entry, &done);
  }
  dibs__mongo_ledger_clear(&guard);
  return status;
}

/* Steps 3 and 4, of the batch that the ledger has.  OK; STALE: it was refused, and removed; UNAVAILABLE: not yet, or
 * somebody else has settled it, which the ledger shows. */
static dibs__status settle_batch(struct work *w) {
  struct dibs__mongo_entry entry = {.sequence = w->l->sequence, .keep_ms = dibs__counter_keep_ms(w->op)};
  uint8_t refused[DIBS__COUNTER_REFUSED_MAX];
  bool done = true, gone = false;
  dibs__status status = DIBS_OK;
  if (w->op->fence.v && !w->l->sure) {
    status = raise_guard(w);
    entry.refused = w->l->refused;
    if (status == DIBS_STALE) {
      status = dibs__mongo_ledger_write(w->b, &w->op->source, w->l, &entry, &done);
      return status == DIBS_OK && done ? DIBS_STALE : status == DIBS_OK ? DIBS_UNAVAILABLE : status;
    }
    entry.op = w->op;
    entry.sure = true;
    if (status == DIBS_OK) status = dibs__mongo_ledger_write(w->b, &w->op->source, w->l, &entry, &done);
    if (status != DIBS_OK || !done) return status == DIBS_OK ? DIBS_UNAVAILABLE : status;
  }
  status = apply_items(w, &gone);
  if (status != DIBS_OK || gone) return status == DIBS_OK ? DIBS_UNAVAILABLE : status;
  entry.op = NULL;
  entry.sequence = w->op->sequence;
  entry.refused = dibs__str_of((const char *)refused, dibs__counter_write_refused(w->op, refused));
  status = dibs__mongo_ledger_write(w->b, &w->op->source, w->l, &entry, &done);
  return status == DIBS_OK && !done ? DIBS_UNAVAILABLE : status;
}

/* Settles the batch that a ledger has, which is another one. */
static dibs__status settle_other(batch *b, ledger *l) {
  counter_op op;
  ledger source = {0}; /* has the texts of the operation */
  dibs__mongo_ledger_read(&source, l->seen);
  bool fine = dibs__mongo_ledger_op(&source, &op);
  struct work w = {.b = b, .op = &op, .l = l, .rows = calloc(DIBS__COUNTER_ITEMS, sizeof *w.rows)};
  dibs__status status = !fine ? DIBS_CORRUPT : w.rows ? DIBS_OK : DIBS_NO_MEMORY;
  dibs__mongo_source_text(&op.source, w.source);
  if (status == DIBS_OK) status = settle_batch(&w);
  if (fine && w.rows) forget_rows(&w);
  free(w.rows);
  free(op.items);
  dibs__mongo_ledger_clear(&source);
  return status == DIBS_STALE ? DIBS_OK : status;
}

static bool replays(const struct work *w) {
  const ledger *l = w->l;
  if (l->sequence < w->op->sequence) return false;
  bool latest = l->sequence == w->op->sequence;
  dibs__counter_read_refused(w->op, (const uint8_t *)l->refused.p, latest ? l->refused.len : 0);
  w->op->op.status = DIBS_REPLAY;
  return true;
}

/* Step 2.  `began`: it may have been written. */
static dibs__status begin_batch(struct work *w, bool *began) {
  ledger guard = {0};
  dibs__status status = DIBS_OK;
  if (w->op->fence.v) {
    status = dibs__mongo_ledger_load(w->b, &w->op->guard, &guard);
    if (status == DIBS_OK && guard.sequence > w->op->fence.v) status = DIBS_STALE;
    dibs__mongo_ledger_clear(&guard);
  }
  for (uint32_t i = 0; i < w->op->count; i++) w->rows[i].open = true;
  if (status == DIBS_OK) status = read_rows(w);
  if (status != DIBS_OK) return status;
  struct dibs__mongo_entry entry = {.sequence = w->l->sequence,
                                    .refused = w->l->refused, /* of the batch before */
                                    .keep_ms = dibs__counter_keep_ms(w->op),
                                    .op = w->op,
                                    .sure = w->op->fence.v == 0};
  status = dibs__mongo_ledger_write(w->b, &w->op->source, w->l, &entry, &w->current);
  *began = w->current || status == DIBS_UNKNOWN;
  return status;
}

static dibs__status add_once(struct work *w, bool *began) {
  dibs__status status = dibs__mongo_ledger_load(w->b, &w->op->source, w->l);
  if (status != DIBS_OK || replays(w)) return status;
  w->current = false;
  if (w->l->applies && w->l->batch_sequence < w->op->sequence) {
    status = settle_other(w->b, w->l);
    return status == DIBS_OK ? DIBS_UNAVAILABLE : status; /* once more */
  }
  if (w->l->applies && w->l->batch_sequence > w->op->sequence) {
    dibs__counter_read_refused(w->op, NULL, 0);
    w->op->op.status = DIBS_REPLAY;
    return DIBS_OK;
  }
  bool mine = !w->l->applies;
  if (mine) {
    status = begin_batch(w, began);
    if (status != DIBS_OK || !w->current) return status == DIBS_OK ? DIBS_UNAVAILABLE : status;
  } else {
    *began = true;
  }
  status = settle_batch(w);
  if (status == DIBS_OK) w->op->op.status = mine ? DIBS_OK : DIBS_REPLAY;
  return status;
}

/* OK: it has its answer. */
static dibs__status add_batch(batch *b, counter_op *op) {
  ledger l = {0};
  struct work w = {.b = b, .op = op, .l = &l, .rows = calloc(op->count, sizeof *w.rows)};
  bool began = false, once = false;
  dibs__status status = w.rows ? DIBS_UNAVAILABLE : DIBS_NO_MEMORY;
  dibs__mongo_source_text(&op->source, w.source);
  while (status == DIBS_UNAVAILABLE && in_time(b) && !link_of(b)->broken) {
    if (once) pause_a_moment();
    once = true;
    status = add_once(&w, &began);
  }
  if (status == DIBS_STALE) {
    op->op.status = DIBS_STALE;
    status = DIBS_OK;
  }
  if (w.rows) forget_rows(&w);
  free(w.rows);
  dibs__mongo_ledger_clear(&l);
  return status != DIBS_OK && began ? DIBS_UNKNOWN : status;
}

/* ---- Batches of clients that are gone ---- */

struct late {
  bson_t *rows[RECOVERED];
  size_t count;
};

static bool see_late(void *user, const bson_t *row) {
  struct late *late = user;
  if (late->count == RECOVERED) return false;
  late->rows[late->count++] = bson_copy(row);
  return true;
}

/* Now and then; what fails here is tried again by somebody else. */
static void recover(batch *b) {
  bson_t filter = BSON_INITIALIZER, range;
  struct late late = {.count = 0};
  struct dibs__result result = {.text = ""};
  if (b->recovered.ns && dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(b->recovered, dibs__mongo_late_ms))) {
    bson_destroy(&filter);
    return;
  }
  b->recovered = dibs__tick_now();
  BSON_APPEND_DOCUMENT_BEGIN(&filter, "since", &range);
  BSON_APPEND_INT64(&range, "$lte", b->now - dibs__mongo_late_ms);
  bson_append_document_end(&filter, &range);
  dibs__status status =
      dibs__mongo_find(link_of(b), DIBS__MONGO_SOURCE_ROW, &filter, RECOVERED, false, see_late, &late, &result);
  for (size_t i = 0; i < late.count; i++) {
    ledger l = {0};
    dibs__mongo_ledger_read(&l, late.rows[i]);
    if (status == DIBS_OK && l.applies && !link_of(b)->broken) (void)settle_other(b, &l);
    dibs__mongo_ledger_clear(&l);
    bson_destroy(late.rows[i]);
  }
  bson_destroy(&filter);
}

/* ---- Reading and listing ---- */

static bool see_number(void *user, const bson_t *row) {
  counter_op *op = user;
  dibs__str key = dibs__mongo_bytes_in(row, "_id");
  for (uint32_t i = 0; i < op->count; i++) {
    if (!dibs__str_equal(op->items[i].key, key)) continue;
    op->items[i].status = is_counter(row) ? DIBS_OK : DIBS_INVALID;
    op->items[i].number = dibs__mongo_number_in(row, "number", 0);
  }
  return true;
}

static dibs__status read_numbers(batch *b, counter_op *op) {
  bson_t filter = BSON_INITIALIZER;
  dibs__status status = DIBS_OK;
  dibs__counter_set_all(op, DIBS_NOT_FOUND);
  if (put_keys(&filter, op->items, op->count, NULL))
    status = dibs__mongo_find(link_of(b), DIBS__MONGO_COUNTER, &filter, 0, true, see_number, op, b->result);
  bson_destroy(&filter);
  if (status == DIBS_OK) op->op.status = DIBS_OK;
  return status;
}

struct listing {
  struct dibs__list which;
  struct dibs__counter_row *rows;
  char *keys; /* DIBS_NAME_MAX bytes for each row */
  size_t count, most;
};

static bool list_row(void *user, const bson_t *from) {
  struct listing *l = user;
  dibs__str key = dibs__mongo_bytes_in(from, "_id");
  if (!dibs__list_has(&l->which, key)) return false; /* behind the last one with this prefix */
  if (key.len < 1 || key.len > DIBS_NAME_MAX || l->count == l->most) return true;
  char *copy = l->keys + l->count * DIBS_NAME_MAX;
  memcpy(copy, key.p, key.len);
  l->rows[l->count++] =
      (struct dibs__counter_row){dibs__str_of(copy, key.len), dibs__mongo_number_in(from, "number", 0)};
  return true;
}

static dibs__status list_numbers(batch *b, counter_op *op) {
  bson_t filter = BSON_INITIALIZER;
  struct listing l = {.which = {.prefix = op->prefix, .after = op->after}, .most = op->most};
  l.rows = calloc(l.most, sizeof *l.rows);
  l.keys = malloc(l.most * DIBS_NAME_MAX);
  dibs__status status = l.rows && l.keys ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK && dibs__mongo_is_text(op->prefix) && dibs__mongo_is_text(op->after)) {
    dibs__mongo_put_range(&filter, op->prefix, op->after);
    status = dibs__mongo_find(link_of(b), DIBS__MONGO_COUNTER, &filter, op->most, false, list_row, &l, b->result);
  }
  if (status == DIBS_OK) dibs__counter_answer(op, l.rows, l.count);
  free(l.rows);
  free(l.keys);
  bson_destroy(&filter);
  return status;
}

/* ---- The family ---- */

bool dibs__mongo_counter_is_apart(counter_op *op) {
  if (!dibs__counter_valid(op, false)) return true;
  if (op->table) {
    snprintf(op->why, sizeof op->why,
             "a counter in MongoDB is in dibs' own collection, not in one of yours: leave out the table, or use a SQL "
             "store");
    op->op.status = DIBS_UNSUPPORTED;
    return true;
  }
  op->op.status = DIBS_UNKNOWN;
  return op->op.verb != DIBS__COUNTER_TAKE;
}

void dibs__mongo_counters(batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    counter_op *op = (counter_op *)b->elements[i].op;
    if (op->op.family != DIBS__FAM_COUNTER || op->op.verb == DIBS__COUNTER_TAKE || op->op.status != DIBS_UNKNOWN)
      continue;
    bool adds = op->op.verb == DIBS__COUNTER_ADD;
    dibs__status status = DIBS_UNAVAILABLE;
    if (adds && in_time(b) && !link_of(b)->broken) recover(b);
    if (in_time(b) && !link_of(b)->broken)
      status = adds ? add_batch(b, op) : op->op.verb == DIBS__COUNTER_READ ? read_numbers(b, op) : list_numbers(b, op);
    if (status == DIBS_UNKNOWN && !adds) status = DIBS_UNAVAILABLE;
    if (status != DIBS_OK) op->op.status = status;
  }
}
