/* SPDX-License-Identifier: MIT */
/*
 * A server's rows: the dialect of src/sql (struct dibs__sql_rows) that PostgreSQL and MariaDB share.
 *
 * The first packet of a batch locks and loads what it needs, in the order that all decisions on rows use: the buckets
 * in order, then records, then the clock, then each name's head with its first waiters, in order.  Reads are answered
 * from what was loaded and what was changed since.  Writes are queued, and travel with COMMIT or before the next read
 * that needs the server.
 */
#include "drivers/server/server_impl.h"

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;
typedef struct dibs__sql_value value;
typedef struct dibs__sql_waiter waiter;

static sql_rc no_memory(session *s) {
  return dibs__sql_fail(s->rows.wire, DIBS__SQL_NO_SPACE, "out of memory");
}

void dibs__server_fresh(session *s) {
  memset(s->known, 0, sizeof s->known);
  memset(s->changed, 0, sizeof s->changed);
  for (size_t i = 0; i < s->record_count; i++) free(s->records[i].data);
  s->name_count = s->record_count = s->other_count = s->notice_count = 0;
  s->rows.wrote = s->notifier_wanted = false;
}

/* ---- Names ---- */

struct dibs__server_name *dibs__server_name_find(session *s, uint16_t bucket, dibs__str name) {
  for (size_t i = 0, at = s->name_last; i < s->name_count; i++, at++) {
    if (at >= s->name_count) at = 0;
    struct dibs__server_name *n = &s->names[at];
    if (n->bucket != bucket || !dibs__str_equal(n->name, name)) continue;
    s->name_last = at;
    return n;
  }
  return NULL;
}

static sql_rc name_add(session *s, uint16_t bucket, dibs__str name, struct dibs__server_name **out) {
  if (s->name_count == s->name_capacity) {
    size_t capacity = s->name_capacity ? 2 * s->name_capacity : 32;
    struct dibs__server_name *names = realloc(s->names, capacity * sizeof *names);
    if (names) s->names = names;
    struct dibs__sql_waiter *pool = names ? realloc(s->pool, capacity * DIBS__SERVER_AHEAD * sizeof *pool) : NULL;
    if (!pool) return no_memory(s);
    s->pool = pool;
    s->name_capacity = capacity;
    for (size_t i = 0; i < s->name_count; i++) s->names[i].waiters = s->pool + i * DIBS__SERVER_AHEAD;
  }
  *out = &s->names[s->name_count];
  **out = (struct dibs__server_name){.name = name, .bucket = bucket};
  (*out)->waiters = s->pool + s->name_count++ * DIBS__SERVER_AHEAD;
  return DIBS__SQL_OK;
}

static sql_rc put_ahead(session *s, const struct dibs__server_name *n) {
  value v[] = {dibs__sql_number(n->bucket), dibs__sql_text(n->name.p, n->name.len),
               dibs__sql_number(DIBS__SERVER_AHEAD + 1)};
  return dibs__rows_put(&s->rows, DIBS__SERVER_AHEAD_OF, v, 3);
}

static sql_rc read_ahead(session *s, size_t nth, struct dibs__server_name *n) {
  size_t rows = s->rows.wire->engine->rows(s->rows.wire, nth);
  n->loaded = true;
  n->head = (struct dibs__sql_head){.bucket = n->bucket};
  n->count = 0;
  n->upto = UINT64_MAX;
  if (rows == 0) return DIBS__SQL_OK;
  /* Waiters without a head: the head was deleted between the two locks, which a bucket's lock prevents. */
  bool whole = dibs__sql_cell_number(s->rows.wire, nth, 0, 0) == 0 && dibs__rows_read_head(&s->rows, nth, 0, &n->head);
  if (!whole) return dibs__sql_fail(s->rows.wire, DIBS__SQL_DAMAGED, "the rows of dibs contradict each other");
  n->head.exists = true;
  for (size_t i = 1; i < rows && n->count < DIBS__SERVER_AHEAD; i++)
    dibs__rows_read_waiter(&s->rows, nth, i, &n->waiters[n->count++]);
  if (rows > DIBS__SERVER_AHEAD) n->upto = n->waiters[n->count - 1].ticket;
  return DIBS__SQL_OK;
}

static sql_rc load_name(session *s, uint16_t bucket, dibs__str name, struct dibs__server_name **out) {
  *out = dibs__server_name_find(s, bucket, name);
  sql_rc end = *out ? DIBS__SQL_OK : name_add(s, bucket, name, out);
  size_t nth = s->rows.wire->put;
  if (end == DIBS__SQL_OK) end = put_ahead(s, *out);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
  return end == DIBS__SQL_OK ? read_ahead(s, nth, *out) : end;
}

/* ---- Buckets ---- */

static sql_rc put_bucket(session *s, uint16_t bucket, bool lock) {
  value v = dibs__sql_number(bucket);
  return dibs__rows_put(&s->rows, lock ? DIBS__SERVER_BUCKET_LOCK : DIBS__SERVER_BUCKET, &v, 1);
}

sql_rc dibs__server_lock_bucket(session *s, uint16_t bucket) {
  size_t nth = s->rows.wire->put;
  sql_rc end = put_bucket(s, bucket, true);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
  return end == DIBS__SQL_OK ? dibs__server_read_bucket(s, nth, bucket) : end;
}

/* ---- Records ---- */

static sql_rc put_record(session *s, const struct dibs__server_record *r, bool lock) {
  value v = dibs__sql_text(r->key.p, r->key.len);
  return dibs__rows_put(&s->rows, lock ? DIBS__SERVER_RECORD_LOCK : DIBS__ROWS_RECORD, &v, 1);
}

static sql_rc read_record(session *s, size_t nth, struct dibs__server_record *r) {
  const struct dibs__sql_engine *engine = s->rows.wire->engine;
  free(r->data);
  *r = (struct dibs__server_record){.key = r->key, .writes = r->writes};
  if (engine->rows(s->rows.wire, nth) == 0) return DIBS__SQL_OK;
  r->row.fence = (uint64_t)dibs__sql_cell_number(s->rows.wire, nth, 0, 0);
  r->row.digest = (uint64_t)dibs__sql_cell_number(s->rows.wire, nth, 0, 1);
  r->row.version = (uint64_t)dibs__sql_cell_number(s->rows.wire, nth, 0, 2);
  value cell = engine->cell(s->rows.wire, nth, 0, 3, DIBS__SQL_BYTES);
  /* A stub, inserted so that there is a row to lock. */
  r->found = r->row.fence != 0 || r->row.version != 0;
  if (cell.kind != DIBS__SQL_BYTES) return DIBS__SQL_OK;
  r->data = malloc((size_t)cell.len + 1);
  if (!r->data) return no_memory(s);
  if (cell.len) memcpy(r->data, cell.p, cell.len);
  r->row.data = r->data;
  r->row.len = cell.len;
  return DIBS__SQL_OK;
}

static struct dibs__server_record *record_find(session *s, dibs__str key) {
  for (size_t i = 0; i < s->record_count; i++)
    if (dibs__str_equal(s->records[i].key, key)) return &s->records[i];
  return NULL;
}

static sql_rc load_record(session *s, dibs__str key, struct dibs__server_record **out) {
  *out = record_find(s, key);
  if (!*out) {
    if (s->record_count == s->record_capacity) {
      size_t capacity = s->record_capacity ? 2 * s->record_capacity : 16;
      struct dibs__server_record *more = realloc(s->records, capacity * sizeof *more);
      if (!more) return no_memory(s);
      s->records = more;
      s->record_capacity = capacity;
    }
    *out = &s->records[s->record_count++];
    **out = (struct dibs__server_record){.key = key};
    if (!s->requests) return DIBS__SQL_OK; /* it is sent with the rest */
  }
  size_t nth = s->rows.wire->put;
  sql_rc end = put_record(s, *out, true);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
  return end == DIBS__SQL_OK ? read_record(s, nth, *out) : end;
}

/* ---- A batch ---- */

static bool well_formed(const struct dibs__lease_op *op) {
  return op->op.bucket < DIBS__BUCKETS && op->name.len >= 1 && op->name.len <= DIBS_NAME_MAX;
}

static sql_rc plan_load(session *s, const struct dibs__op *op, uint64_t buckets[2]) {
  struct dibs__server_name *n;
  struct dibs__server_record *r;
  sql_rc end = DIBS__SQL_OK;
  if (op->family == DIBS__FAM_RECORD) {
    const struct dibs__record_op *record = (const struct dibs__record_op *)op;
    if (record->key.len < 1 || record->key.len > DIBS_NAME_MAX) return end;
    end = load_record(s, record->key, &r);
    if (end == DIBS__SQL_OK && op->verb != DIBS__RECORD_LOAD) r->writes = true;
    return end;
  }
  if (op->bucket >= DIBS__BUCKETS) return end;
  if (op->family == DIBS__FAM_LEASE) {
    const struct dibs__lease_op *lease = (const struct dibs__lease_op *)op;
    if (!well_formed(lease)) return end;
    if (!dibs__server_name_find(s, op->bucket, lease->name)) end = name_add(s, op->bucket, lease->name, &n);
  }
  buckets[op->bucket / 64] |= UINT64_C(1) << op->bucket % 64;
  return end;
}

static int by_name(const void *a, const void *b) {
  const struct dibs__server_name *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  uint32_t common = x->name.len < y->name.len ? x->name.len : y->name.len;
  int order = memcmp(x->name.p, y->name.p, common);
  return order ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static int by_key(const void *a, const void *b) {
  dibs__str x = ((const struct dibs__server_record *)a)->key, y = ((const struct dibs__server_record *)b)->key;
  int order = memcmp(x.p, y.p, x.len < y.len ? x.len : y.len);
  return order ? order : (x.len > y.len) - (x.len < y.len);
}

static void sort_names_and_records(session *s) {
  if (s->name_count > 1) qsort(s->names, s->name_count, sizeof *s->names, by_name);
  for (size_t i = 0; i < s->name_count; i++) s->names[i].waiters = s->pool + i * DIBS__SERVER_AHEAD;
  if (s->record_count > 1) qsort(s->records, s->record_count, sizeof *s->records, by_key);
}

static sql_rc put_buckets(session *s, const uint64_t buckets[2], bool lock) {
  sql_rc end = DIBS__SQL_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++)
    if (buckets[b / 64] >> b % 64 & 1) end = put_bucket(s, b, lock);
  return end;
}

static sql_rc put_records(session *s) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < s->record_count && end == DIBS__SQL_OK; i++) {
    const struct dibs__server_record *r = &s->records[i];
    value v = dibs__sql_text(r->key.p, r->key.len);
    if (r->writes) end = dibs__rows_put(&s->rows, DIBS__SERVER_RECORD_STUB, &v, 1);
    if (end == DIBS__SQL_OK) end = put_record(s, r, r->writes);
  }
  return end;
}

static sql_rc read_all(session *s, size_t nth, const uint64_t buckets[2]) {
  sql_rc end = DIBS__SQL_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++)
    if (buckets[b / 64] >> b % 64 & 1) end = dibs__server_read_bucket(s, nth++, b);
  for (size_t i = 0; i < s->record_count && end == DIBS__SQL_OK; i++) {
    nth += s->records[i].writes; /* the stub */
    end = read_record(s, nth++, &s->records[i]);
  }
  if (end == DIBS__SQL_OK) s->now = dibs__sql_cell_number(s->rows.wire, nth++, 0, 0);
  for (size_t i = 0; i < s->name_count && end == DIBS__SQL_OK; i++) end = read_ahead(s, nth++, &s->names[i]);
  return end;
}

sql_rc dibs__server_load(session *s, struct dibs__op *const ops[], size_t count, bool writes) {
  uint64_t buckets[2] = {0, 0};
  sql_rc end = DIBS__SQL_OK;
  dibs__server_fresh(s);
  s->requests = false;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = plan_load(s, ops[i], buckets);
  s->requests = true;
  if (end != DIBS__SQL_OK) return end;
  sort_names_and_records(s);
  size_t nth = s->rows.wire->put + writes;
  if (writes) end = dibs__sql_begin(s->rows.wire);
  if (end == DIBS__SQL_OK) end = put_buckets(s, buckets, writes);
  if (end == DIBS__SQL_OK) end = put_records(s);
  if (end == DIBS__SQL_OK) end = dibs__rows_put(&s->rows, DIBS__SERVER_NOW, NULL, 0);
  for (size_t i = 0; i < s->name_count && end == DIBS__SQL_OK; i++) end = put_ahead(s, &s->names[i]);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
  return end == DIBS__SQL_OK ? read_all(s, nth, buckets) : end;
}

/* ---- Rows to structs and back ---- */

typedef struct dibs__sql_head head;

static int64_t cell_number(const session *s, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(s->rows.wire, nth, row, column);
}

static uint32_t cell_u32(const session *s, size_t nth, size_t row, size_t column) {
  return (uint32_t)cell_number(s, nth, row, column);
}

/* ---- Sessions ---- */

int64_t dibs__server_where(const session *s, uint64_t who, bool *known) {
  *known = true;
  for (size_t i = 0; i < s->other_count; i++)
    if (s->others[i].session == who) return s->others[i].where;
  *known = false;
  return 0;
}

void dibs__server_know(session *s, uint64_t who, int64_t where) {
  bool known;
  (void)dibs__server_where(s, who, &known);
  if (known) return;
  if (s->other_count == s->other_capacity) {
    size_t capacity = s->other_capacity ? 2 * s->other_capacity : 16;
    struct dibs__server_known *more = realloc(s->others, capacity * sizeof *more);
    if (!more) return; /* the server looks it up again then */
    s->others = more;
    s->other_capacity = capacity;
  }
  s->others[s->other_count++] = (struct dibs__server_known){who, where};
}

/* ---- Buckets ---- */

sql_rc dibs__server_read_bucket(session *s, size_t nth, uint16_t bucket) {
  struct dibs__sql_bucket *b = &s->buckets[bucket];
  if (s->rows.wire->engine->rows(s->rows.wire, nth) != 1)
    return dibs__sql_fail(s->rows.wire, DIBS__SQL_DAMAGED, "the row of a bucket is missing");
  dibs__rows_read_bytes(&s->rows, nth, 0, 0, b->mandate.incarnation.b, sizeof b->mandate.incarnation.b);
  int64_t epoch = cell_number(s, nth, 0, 1);
  b->mandate.epoch = (uint32_t)epoch;
  b->seq = (uint64_t)cell_number(s, nth, 0, 2);
  b->served = (enum dibs__sql_served)cell_u32(s, nth, 0, 3);
  b->clock_base = cell_number(s, nth, 0, 4);
  if (epoch <= 0 || epoch > DIBS__EPOCH_MAX || b->served > DIBS__SQL_LEFT)
    return dibs__sql_fail(s->rows.wire, DIBS__SQL_DAMAGED, "the row of a bucket is invalid");
  s->known[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_OK;
}

static sql_rc bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row) {
  session *s = dibs__server_of(to);
  *row = &s->buckets[bucket];
  if (!(s->known[bucket / 64] >> bucket % 64 & 1)) {
    sql_rc end = dibs__server_lock_bucket(s, bucket);
    if (end != DIBS__SQL_OK) return end;
  }
  bool same = memcmp((*row)->mandate.incarnation.b, s->incarnation.b, sizeof s->incarnation.b) == 0;
  return same ? DIBS__SQL_OK : DIBS__SQL_OTHER;
}

sql_rc dibs__server_put_bucket(session *s, uint16_t bucket) {
  const struct dibs__sql_bucket *b = &s->buckets[bucket];
  value v[] = {dibs__sql_number(bucket), dibs__sql_number(b->mandate.epoch), dibs__sql_number((int64_t)b->seq),
               dibs__sql_number(b->clock_base)};
  return dibs__rows_put(&s->rows, DIBS__SERVER_BUCKET_SET, v, 4);
}

static sql_rc bucket_put(void *to, uint16_t bucket) {
  session *s = dibs__server_of(to);
  s->changed[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_OK;
}

static sql_rc bucket_serve(void *to, uint16_t bucket) {
  session *s = dibs__server_of(to);
  value v[] = {dibs__sql_number(bucket), dibs__sql_number(s->buckets[bucket].served)};
  return dibs__rows_put(&s->rows, DIBS__ROWS_BUCKET_SERVE, v, 2);
}

/* ---- Heads ---- */

static sql_rc head_load(void *to, head *h) {
  session *s = dibs__server_of(to);
  struct dibs__server_name *n = dibs__server_name_find(s, h->bucket, h->name);
  sql_rc end = DIBS__SQL_OK;
  if (!n || !n->loaded) end = load_name(s, h->bucket, h->name, &n);
  if (end != DIBS__SQL_OK) return end;
  dibs__str name = h->name;
  *h = n->head;
  h->name = name;
  h->queue_changed = h->holder_changed = false;
  return DIBS__SQL_OK;
}

/* Keeps the head as it is now. */
static void head_keep(session *s, const head *h, bool exists) {
  struct dibs__server_name *n = dibs__server_name_find(s, h->bucket, h->name);
  if (!n) return;
  if (exists)
    n->head = *h;
  else
    n->head = (head){.bucket = h->bucket};
  n->head.exists = exists;
}

static sql_rc head_add(void *to, const head *h) {
  head_keep(dibs__server_of(to), h, true);
  return dibs__rows_head_add(to, h);
}
static sql_rc head_set(void *to, const head *h) {
  head_keep(dibs__server_of(to), h, true);
  return dibs__rows_head_set(to, h);
}
static sql_rc head_set_queue(void *to, const head *h) {
  head_keep(dibs__server_of(to), h, true);
  return dibs__rows_head_set_queue(to, h);
}
static sql_rc head_drop(void *to, const head *h) {
  head_keep(dibs__server_of(to), h, false);
  return dibs__rows_head_drop(to, h);
}

/* ---- Records ---- */

static sql_rc record_load(void *to, dibs__str key, struct dibs__sql_record *r, bool *found) {
  session *s = dibs__server_of(to);
  struct dibs__server_record *known = record_find(s, key);
  sql_rc end = known ? DIBS__SQL_OK : load_record(s, key, &known);
  if (end != DIBS__SQL_OK) return end;
  *found = known->found;
  *r = known->row;
  return DIBS__SQL_OK;
}

static sql_rc record_put(void *to, dibs__str key, const struct dibs__sql_record *r, bool data) {
  session *s = dibs__server_of(to);
  struct dibs__server_record *known = record_find(s, key);
  value v[5] = {dibs__sql_text(key.p, key.len), dibs__sql_number((int64_t)r->fence),
                dibs__sql_number((int64_t)r->digest), dibs__sql_number((int64_t)r->version)};
  if (!known) return dibs__sql_fail(s->rows.wire, DIBS__SQL_ODD, "a record was not loaded");
  known->found = true;
  if (!data) {
    known->row.fence = r->fence;
    known->row.digest = r->digest;
    return dibs__rows_put(&s->rows, DIBS__SERVER_RECORD_SEAL, v, 3);
  }
  char *copy = malloc((size_t)r->len + 1);
  if (!copy) return dibs__sql_fail(s->rows.wire, DIBS__SQL_NO_SPACE, "out of memory");
  if (r->len) memcpy(copy, r->data, r->len);
  v[4] = dibs__sql_bytes(copy, r->len);
  sql_rc end = dibs__rows_put(&s->rows, DIBS__SERVER_RECORD_SAVE, v, 5);
  free(known->data);
  known->data = copy;
  known->row = *r;
  known->row.data = copy;
  return end;
}

/* ---- Waiters: those of the first packet, then the others ---- */

static struct dibs__server_name *ahead_of(session *s, const head *h) {
  return dibs__server_name_find(s, h->bucket, h->name);
}

static waiter *ahead_at(struct dibs__server_name *n, uint64_t ticket) {
  for (size_t i = 0; n && i < n->count; i++)
    if (n->waiters[i].ticket == ticket) return &n->waiters[i];
  return NULL;
}

/* Whether all waiters up to this ticket are loaded. */
static bool is_loaded(const struct dibs__server_name *n, uint64_t ticket) {
  return n && ticket <= n->upto;
}

static void forget_ahead(struct dibs__server_name *n) {
  if (!n) return;
  n->count = 0;
  n->upto = 0;
}

static sql_rc waiter_find(void *to, const head *h, dibs__id id, uint64_t ticket, waiter *w, bool *found) {
  const struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  *found = false;
  for (size_t i = 0; n && i < n->count && !*found; i++) {
    *found = dibs__id_equal(n->waiters[i].id, id);
    if (*found) *w = n->waiters[i];
  }
  if (*found || is_loaded(n, UINT64_MAX)) return DIBS__SQL_OK;
  return dibs__rows_waiter_find(to, h, id, ticket, w, found);
}

static sql_rc waiter_next(void *to, const head *h, waiter *w, bool *found) {
  struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  uint64_t from = h->front;
  *found = false;
  for (size_t i = 0; n && i < n->count; i++) {
    if (n->waiters[i].ticket < h->front || n->waiters[i].state != DIBS__SQL_WAITING) continue;
    *found = true;
    *w = n->waiters[i];
    return DIBS__SQL_OK;
  }
  if (is_loaded(n, UINT64_MAX)) return DIBS__SQL_OK;
  if (n && n->upto >= from) from = n->upto + 1;
  return dibs__rows_waiter_next_from(to, h, from, w, found);
}

static sql_rc waiter_offered(void *to, const head *h, waiter *w, bool *found) {
  struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  *found = false;
  if (is_loaded(n, h->reach)) {
    for (size_t i = 0; i < n->count && !*found; i++) {
      *found = n->waiters[i].state == DIBS__SQL_OFFERED;
      if (*found) *w = n->waiters[i];
    }
    return DIBS__SQL_OK;
  }
  return dibs__rows_waiter_offered(to, h, w, found);
}

/* ---- Changing them ---- */

static sql_rc waiter_add(void *to, const head *h, const waiter *w) {
  session *s = dibs__server_of(to);
  struct dibs__server_name *n = ahead_of(s, h);
  if (!dibs__server_notifier_there(s->store)) {
    s->notifier_wanted = true;
    return dibs__sql_fail(s->rows.wire, DIBS__SQL_ODD, "the notifier is not connected yet");
  }
  atomic_store_explicit(&s->store->inside->queued, true, memory_order_relaxed);
  if (is_loaded(n, UINT64_MAX)) {
    if (n->waiters && n->count < DIBS__SERVER_AHEAD)
      n->waiters[n->count++] = *w;
    else
      n->upto = w->ticket - 1;
  }
  return dibs__rows_waiter_add(to, h, w);
}

static sql_rc waiter_set(void *to, const head *h, const waiter *w) {
  session *s = dibs__server_of(to);
  waiter *known = ahead_at(ahead_of(s, h), w->ticket);
  atomic_store_explicit(&s->store->inside->queued, true,
                        memory_order_relaxed); /* it may be one of our sessions from now on */
  if (known) *known = *w;
  return dibs__rows_waiter_set(to, h, w);
}

static sql_rc waiter_drop(void *to, const head *h, const waiter *w) {
  struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  waiter *known = ahead_at(n, w->ticket);
  sql_rc end = dibs__rows_waiter_drop(to, h, w);
  if (known) { /* last: `w` may be it */
    size_t behind = (size_t)(n->waiters + n->count - (known + 1));
    n->count--;
    memmove(known, known + 1, behind * sizeof *known);
  }
  return end;
}

static sql_rc offers_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  *gone = 0;
  if (!is_loaded(n, h->reach)) {
    forget_ahead(n);
    return dibs__rows_offers_expire(to, h, now, gone);
  }
  for (size_t i = 0; i < n->count; i++) {
    waiter *w = &n->waiters[i];
    if (w->state != DIBS__SQL_OFFERED || w->until > now) continue;
    w->state = DIBS__SQL_ASLEEP;
    w->until = 0;
    ++*gone;
  }
  if (!*gone) return DIBS__SQL_OK;
  value v[] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len), dibs__sql_number((int64_t)h->reach),
               dibs__sql_number(now)};
  return dibs__rows_put(to, DIBS__ROWS_OFFERS_EXPIRE, v, 4);
}

static sql_rc offers_first_until(void *to, const head *h, int64_t *until) {
  struct dibs__server_name *n = ahead_of(dibs__server_of(to), h);
  if (!is_loaded(n, h->reach)) return dibs__rows_offers_first_until(to, h, until);
  *until = INT64_MAX;
  for (size_t i = 0; i < n->count; i++)
    if (n->waiters[i].state == DIBS__SQL_OFFERED && n->waiters[i].until < *until) *until = n->waiters[i].until;
  return DIBS__SQL_OK;
}

/* ---- The table ---- */

static sql_rc rows_contradict(void *to) {
  return dibs__sql_fail(dibs__server_of(to)->rows.wire, DIBS__SQL_DAMAGED, "the rows of dibs contradict each other");
}

const struct dibs__sql_rows dibs__server_rows = {
    .wrong = rows_contradict,
    .bucket_get = bucket_get,
    .bucket_put = bucket_put,
    .bucket_serve = bucket_serve,
    .head_load = head_load,
    .head_add = head_add,
    .head_set = head_set,
    .head_set_queue = head_set_queue,
    .head_drop = head_drop,
    DIBS__ROWS_SHARED,
    .waiter_find = waiter_find,
    .waiter_next = waiter_next,
    .waiter_offered = waiter_offered,
    .waiter_add = waiter_add,
    .waiter_set = waiter_set,
    .waiter_drop = waiter_drop,
    .offers_expire = offers_expire,
    .offers_first_until = offers_first_until,
    .record_load = record_load,
    .record_put = record_put,
};
