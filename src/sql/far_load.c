/* SPDX-License-Identifier: MIT */
/*
 * What a batch needs, locked and loaded in its first packet: the buckets in order, then records, then the clock, then
 * each name's head with its first waiters, in order.  Whoever decides on rows takes them in this order.
 */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_value value;

static step no_memory(session *s) {
  return dibs__sql_broke(s->wire, DIBS__SQL_NO_SPACE, "out of memory");
}

void dibs__far_fresh(session *s) {
  memset(s->known, 0, sizeof s->known);
  memset(s->changed, 0, sizeof s->changed);
  for (size_t i = 0; i < s->record_count; i++) free(s->records[i].data);
  s->name_count = s->record_count = s->other_count = s->ring_count = 0;
  s->wrote = s->bell_wanted = false;
}

/* ---- Names ---- */

struct dibs__far_name *dibs__far_name_find(session *s, uint16_t bucket, dibs__str name) {
  for (size_t i = 0, at = s->name_last; i < s->name_count; i++, at++) {
    if (at >= s->name_count) at = 0;
    struct dibs__far_name *n = &s->names[at];
    if (n->bucket != bucket || !dibs__str_equal(n->name, name)) continue;
    s->name_last = at;
    return n;
  }
  return NULL;
}

static step name_add(session *s, uint16_t bucket, dibs__str name, struct dibs__far_name **out) {
  if (s->name_count == s->name_room) {
    size_t room = s->name_room ? 2 * s->name_room : 32;
    struct dibs__far_name *names = realloc(s->names, room * sizeof *names);
    if (names) s->names = names;
    struct dibs__sql_waiter *pool = names ? realloc(s->pool, room * DIBS__FAR_AHEAD * sizeof *pool) : NULL;
    if (!pool) return no_memory(s);
    s->pool = pool;
    s->name_room = room;
    for (size_t i = 0; i < s->name_count; i++) s->names[i].waiters = s->pool + i * DIBS__FAR_AHEAD;
  }
  *out = &s->names[s->name_count];
  **out = (struct dibs__far_name){.name = name, .bucket = bucket};
  (*out)->waiters = s->pool + s->name_count++ * DIBS__FAR_AHEAD;
  return DIBS__SQL_FINE;
}

static step put_ahead(session *s, const struct dibs__far_name *n) {
  value v[] = {dibs__sql_number(n->bucket), dibs__sql_text(n->name.p, n->name.len),
               dibs__sql_number(DIBS__FAR_AHEAD + 1)};
  return dibs__far_put(s, DIBS__FAR_AHEAD_OF, v, 3);
}

static step read_ahead(session *s, size_t nth, struct dibs__far_name *n) {
  size_t rows = s->wire->engine->rows(s->wire, nth);
  n->loaded = true;
  n->head = (struct dibs__sql_head){.bucket = n->bucket};
  n->count = 0;
  n->upto = UINT64_MAX;
  if (rows == 0) return DIBS__SQL_FINE;
  /* Waiters without a head: it was taken away between their locks, which a bucket's lock prevents. */
  bool whole = dibs__sql_cell_number(s->wire, nth, 0, 0) == 0 && dibs__far_read_head(s, nth, 0, &n->head);
  if (!whole) return dibs__sql_broke(s->wire, DIBS__SQL_DAMAGED, "rows of dibs contradict each other");
  n->head.exists = true;
  for (size_t i = 1; i < rows && n->count < DIBS__FAR_AHEAD; i++)
    dibs__far_read_waiter(s, nth, i, &n->waiters[n->count++]);
  if (rows > DIBS__FAR_AHEAD) n->upto = n->waiters[n->count - 1].ticket;
  return DIBS__SQL_FINE;
}

step dibs__far_load_name(session *s, uint16_t bucket, dibs__str name, struct dibs__far_name **out) {
  *out = dibs__far_name_find(s, bucket, name);
  step end = *out ? DIBS__SQL_FINE : name_add(s, bucket, name, out);
  size_t nth = s->wire->put;
  if (end == DIBS__SQL_FINE) end = put_ahead(s, *out);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  return end == DIBS__SQL_FINE ? read_ahead(s, nth, *out) : end;
}

/* ---- Buckets ---- */

static step put_bucket(session *s, uint16_t bucket, bool lock) {
  value v = dibs__sql_number(bucket);
  return dibs__far_put(s, lock ? DIBS__FAR_BUCKET_LOCK : DIBS__FAR_BUCKET, &v, 1);
}

step dibs__far_lock_bucket(session *s, uint16_t bucket) {
  size_t nth = s->wire->put;
  step end = put_bucket(s, bucket, true);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  return end == DIBS__SQL_FINE ? dibs__far_read_bucket(s, nth, bucket) : end;
}

/* ---- Records ---- */

static step put_record(session *s, const struct dibs__far_record *r, bool lock) {
  value v = dibs__sql_text(r->key.p, r->key.len);
  return dibs__far_put(s, lock ? DIBS__FAR_RECORD_LOCK : DIBS__FAR_RECORD, &v, 1);
}

static step read_record(session *s, size_t nth, struct dibs__far_record *r) {
  const struct dibs__sql_engine *engine = s->wire->engine;
  free(r->data);
  *r = (struct dibs__far_record){.key = r->key, .writes = r->writes};
  if (engine->rows(s->wire, nth) == 0) return DIBS__SQL_FINE;
  r->row.fence = (uint64_t)dibs__sql_cell_number(s->wire, nth, 0, 0);
  r->row.digest = (uint64_t)dibs__sql_cell_number(s->wire, nth, 0, 1);
  r->row.version = (uint64_t)dibs__sql_cell_number(s->wire, nth, 0, 2);
  value cell = engine->cell(s->wire, nth, 0, 3, DIBS__SQL_BYTES);
  /* A stub, made so that there is a row to lock. */
  r->found = r->row.fence != 0 || r->row.version != 0;
  if (cell.kind != DIBS__SQL_BYTES) return DIBS__SQL_FINE;
  r->data = malloc((size_t)cell.len + 1);
  if (!r->data) return no_memory(s);
  if (cell.len) memcpy(r->data, cell.p, cell.len);
  r->row.data = r->data;
  r->row.len = cell.len;
  return DIBS__SQL_FINE;
}

step dibs__far_load_record(session *s, dibs__str key, struct dibs__far_record **out) {
  *out = dibs__far_record_find(s, key);
  if (!*out) {
    if (s->record_count == s->record_room) {
      size_t room = s->record_room ? 2 * s->record_room : 16;
      struct dibs__far_record *more = realloc(s->records, room * sizeof *more);
      if (!more) return no_memory(s);
      s->records = more;
      s->record_room = room;
    }
    *out = &s->records[s->record_count++];
    **out = (struct dibs__far_record){.key = key};
    if (!s->asks) return DIBS__SQL_FINE; /* it goes with the rest */
  }
  size_t nth = s->wire->put;
  step end = put_record(s, *out, true);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  return end == DIBS__SQL_FINE ? read_record(s, nth, *out) : end;
}

/* ---- A batch ---- */

static bool well_formed(const struct dibs__lease_op *op) {
  return op->op.bucket < DIBS__BUCKETS && op->name.len >= 1 && op->name.len <= DIBS_NAME_MAX;
}

static step think_of(session *s, const struct dibs__op *op, uint64_t buckets[2]) {
  struct dibs__far_name *n;
  struct dibs__far_record *r;
  step end = DIBS__SQL_FINE;
  if (op->family == DIBS__FAM_RECORD) {
    const struct dibs__record_op *record = (const struct dibs__record_op *)op;
    if (record->key.len < 1 || record->key.len > DIBS_NAME_MAX) return end;
    end = dibs__far_load_record(s, record->key, &r);
    if (end == DIBS__SQL_FINE && op->verb != DIBS__RECORD_LOAD) r->writes = true;
    return end;
  }
  if (op->bucket >= DIBS__BUCKETS) return end;
  if (op->family == DIBS__FAM_LEASE) {
    const struct dibs__lease_op *lease = (const struct dibs__lease_op *)op;
    if (!well_formed(lease)) return end;
    if (!dibs__far_name_find(s, op->bucket, lease->name)) end = name_add(s, op->bucket, lease->name, &n);
  }
  buckets[op->bucket / 64] |= UINT64_C(1) << op->bucket % 64;
  return end;
}

static int by_name(const void *a, const void *b) {
  const struct dibs__far_name *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  uint32_t common = x->name.len < y->name.len ? x->name.len : y->name.len;
  int order = memcmp(x->name.p, y->name.p, common);
  return order ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static int by_key(const void *a, const void *b) {
  dibs__str x = ((const struct dibs__far_record *)a)->key, y = ((const struct dibs__far_record *)b)->key;
  int order = memcmp(x.p, y.p, x.len < y.len ? x.len : y.len);
  return order ? order : (x.len > y.len) - (x.len < y.len);
}

static void sort(session *s) {
  if (s->name_count > 1) qsort(s->names, s->name_count, sizeof *s->names, by_name);
  for (size_t i = 0; i < s->name_count; i++) s->names[i].waiters = s->pool + i * DIBS__FAR_AHEAD;
  if (s->record_count > 1) qsort(s->records, s->record_count, sizeof *s->records, by_key);
}

static step put_buckets(session *s, const uint64_t buckets[2], bool lock) {
  step end = DIBS__SQL_FINE;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++)
    if (buckets[b / 64] >> b % 64 & 1) end = put_bucket(s, b, lock);
  return end;
}

static step put_records(session *s) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < s->record_count && end == DIBS__SQL_FINE; i++) {
    const struct dibs__far_record *r = &s->records[i];
    value v = dibs__sql_text(r->key.p, r->key.len);
    if (r->writes) end = dibs__far_put(s, DIBS__FAR_RECORD_STUB, &v, 1);
    if (end == DIBS__SQL_FINE) end = put_record(s, r, r->writes);
  }
  return end;
}

static step read_all(session *s, size_t nth, const uint64_t buckets[2]) {
  step end = DIBS__SQL_FINE;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++)
    if (buckets[b / 64] >> b % 64 & 1) end = dibs__far_read_bucket(s, nth++, b);
  for (size_t i = 0; i < s->record_count && end == DIBS__SQL_FINE; i++) {
    nth += s->records[i].writes; /* the stub */
    end = read_record(s, nth++, &s->records[i]);
  }
  if (end == DIBS__SQL_FINE) s->now = dibs__sql_cell_number(s->wire, nth++, 0, 0);
  for (size_t i = 0; i < s->name_count && end == DIBS__SQL_FINE; i++) end = read_ahead(s, nth++, &s->names[i]);
  return end;
}

step dibs__far_load(session *s, struct dibs__op *const ops[], size_t count, bool writes) {
  uint64_t buckets[2] = {0, 0};
  step end = DIBS__SQL_FINE;
  dibs__far_fresh(s);
  s->asks = false;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) end = think_of(s, ops[i], buckets);
  s->asks = true;
  if (end != DIBS__SQL_FINE) return end;
  sort(s);
  size_t nth = s->wire->put + writes;
  if (writes) end = dibs__sql_begin(s->wire);
  if (end == DIBS__SQL_FINE) end = put_buckets(s, buckets, writes);
  if (end == DIBS__SQL_FINE) end = put_records(s);
  if (end == DIBS__SQL_FINE) end = dibs__far_put(s, DIBS__FAR_NOW, NULL, 0);
  for (size_t i = 0; i < s->name_count && end == DIBS__SQL_FINE; i++) end = put_ahead(s, &s->names[i]);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  return end == DIBS__SQL_FINE ? read_all(s, nth, buckets) : end;
}
