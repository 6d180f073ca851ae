/* SPDX-License-Identifier: MIT */
/*
 * Rows to structs and back: the dialect of src/sql that servers share.  Reads are answered from what far_load.c brought
 * in the first packet and what was changed since; writes are put, and travel with COMMIT or before the next read that
 * has to ask.  Holders and waiters are in far_crowd.c.
 */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_head head;
typedef struct dibs__sql_value value;

/* The columns of DIBS__FAR_AHEAD. */
enum column {
  PLACE,
  STATE,
  ID,
  SESSION,
  MODE,
  SLOTS,
  UNTIL,
  DEEP,
  TTL,
  SINCE,
  OWNER,
  FIRST,
  GRANTED,
  BLOCK,
  BROKEN,
  WAITERS,
  HOLDERS,
  OFFERS,
  TICKETS,
  FRONT,
  REACH,
  LOW_SLOT,
  DUE,
  ALIVE
};

static int64_t number(const session *s, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(s->wire, nth, row, column);
}
static uint32_t small(const session *s, size_t nth, size_t row, size_t column) {
  return (uint32_t)number(s, nth, row, column);
}

void dibs__far_read_bytes(const session *s, size_t nth, size_t row, size_t column, void *to, size_t size) {
  value cell = s->wire->engine->cell(s->wire, nth, row, column, DIBS__SQL_BYTES);
  if (cell.kind == DIBS__SQL_BYTES && cell.len == size)
    memcpy(to, cell.p, size);
  else
    memset(to, 0, size);
}

static void read_label(const session *s, size_t nth, size_t row, size_t column, struct dibs__sql_label *label) {
  value cell = s->wire->engine->cell(s->wire, nth, row, column, DIBS__SQL_TEXT);
  label->len = 0;
  if (cell.kind != DIBS__SQL_TEXT) return;
  label->len = cell.len <= DIBS_OWNER_MAX ? cell.len : DIBS_OWNER_MAX;
  memcpy(label->text, cell.p, label->len);
}

/* ---- Sessions ---- */

int64_t dibs__far_where(const session *s, uint64_t who, bool *known) {
  *known = true;
  for (size_t i = 0; i < s->other_count; i++)
    if (s->others[i].session == who) return s->others[i].where;
  *known = false;
  return 0;
}

void dibs__far_know(session *s, uint64_t who, int64_t where) {
  bool known;
  (void)dibs__far_where(s, who, &known);
  if (known) return;
  if (s->other_count == s->other_room) {
    size_t room = s->other_room ? 2 * s->other_room : 16;
    struct dibs__far_known *more = realloc(s->others, room * sizeof *more);
    if (!more) return; /* it is asked again, then */
    s->others = more;
    s->other_room = room;
  }
  s->others[s->other_count++] = (struct dibs__far_known){who, where};
}

/* ---- Buckets ---- */

step dibs__far_read_bucket(session *s, size_t nth, uint16_t bucket) {
  struct dibs__sql_bucket *b = &s->buckets[bucket];
  if (s->wire->engine->rows(s->wire, nth) != 1)
    return dibs__sql_broke(s->wire, DIBS__SQL_DAMAGED, "a bucket's row is missing");
  dibs__far_read_bytes(s, nth, 0, 0, b->mandate.life.b, sizeof b->mandate.life.b);
  int64_t epoch = number(s, nth, 0, 1);
  b->mandate.epoch = (uint32_t)epoch;
  b->seq = small(s, nth, 0, 2);
  b->served = (enum dibs__sql_served)small(s, nth, 0, 3);
  if (epoch <= 0 || epoch > DIBS__EPOCH_MAX || b->served > DIBS__SQL_VOID)
    return dibs__sql_broke(s->wire, DIBS__SQL_DAMAGED, "a bucket's row makes no sense");
  s->known[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_FINE;
}

static step bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row) {
  session *s = to;
  *row = &s->buckets[bucket];
  if (!(s->known[bucket / 64] >> bucket % 64 & 1)) {
    step end = dibs__far_lock_bucket(s, bucket);
    if (end != DIBS__SQL_FINE) return end;
  }
  bool same = memcmp((*row)->mandate.life.b, s->life.b, sizeof s->life.b) == 0;
  return same ? DIBS__SQL_FINE : DIBS__SQL_OTHER;
}

static step bucket_put(void *to, uint16_t bucket) {
  session *s = to;
  s->changed[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_FINE;
}

static step bucket_serve(void *to, uint16_t bucket) {
  session *s = to;
  value v[] = {dibs__sql_number(bucket), dibs__sql_number(s->buckets[bucket].served)};
  return dibs__far_put(s, DIBS__FAR_BUCKET_SERVE, v, 2);
}

/* ---- Heads ---- */

bool dibs__far_read_head(const session *s, size_t nth, size_t row, head *h) {
  h->waiters = small(s, nth, row, WAITERS);
  h->mode = small(s, nth, row, MODE);
  h->slots = small(s, nth, row, SLOTS);
  h->holders = small(s, nth, row, HOLDERS);
  h->offers = small(s, nth, row, OFFERS);
  h->tickets = (uint64_t)number(s, nth, row, TICKETS);
  h->front = (uint64_t)number(s, nth, row, FRONT);
  h->reach = (uint64_t)number(s, nth, row, REACH);
  h->low_slot = small(s, nth, row, LOW_SLOT);
  h->deep = number(s, nth, row, STATE) != 0;
  h->due = number(s, nth, row, DUE);
  if (h->mode > DIBS_COUNTED || h->offers > h->waiters) return false;
  if (!dibs__sql_inline(h)) return true;
  if (h->holders != 1) return false;
  dibs__far_read_bytes(s, nth, row, ID, h->x.id.b, sizeof h->x.id.b);
  h->x.until = number(s, nth, row, UNTIL);
  h->x.granted = (uint64_t)number(s, nth, row, GRANTED);
  h->x.first = (uint64_t)number(s, nth, row, FIRST);
  h->x.block = small(s, nth, row, BLOCK);
  h->x.broken = number(s, nth, row, BROKEN) != 0;
  h->x.ttl_ms = small(s, nth, row, TTL);
  h->x.since = number(s, nth, row, SINCE);
  h->x.session = (uint64_t)number(s, nth, row, SESSION);
  h->x.slot = 0;
  read_label(s, nth, row, OWNER, &h->x.owner);
  return true;
}

void dibs__far_read_waiter(session *s, size_t nth, size_t row, struct dibs__sql_waiter *w) {
  w->ticket = (uint64_t)number(s, nth, row, PLACE);
  w->state = (enum dibs__sql_waits)small(s, nth, row, STATE);
  dibs__far_read_bytes(s, nth, row, ID, w->id.b, sizeof w->id.b);
  w->session = (uint64_t)number(s, nth, row, SESSION);
  w->mode = small(s, nth, row, MODE);
  w->slots = small(s, nth, row, SLOTS);
  w->until = number(s, nth, row, UNTIL);
  w->deep = number(s, nth, row, DEEP) != 0;
  w->ttl_ms = small(s, nth, row, TTL);
  w->since = number(s, nth, row, SINCE);
  read_label(s, nth, row, OWNER, &w->owner);
  w->first = (uint64_t)number(s, nth, row, FIRST);
  dibs__far_know(s, w->session, number(s, nth, row, ALIVE));
}

bool dibs__far_read_broken(const session *s, size_t nth, size_t row) {
  return number(s, nth, row, BROKEN) != 0;
}

void dibs__far_read_holder(const session *s, size_t nth, size_t row, struct dibs__sql_holder *x) {
  *x = (struct dibs__sql_holder){.block = 0};
  dibs__far_read_bytes(s, nth, row, 0, x->id.b, sizeof x->id.b);
  x->slot = small(s, nth, row, 1);
  x->until = number(s, nth, row, 2);
  x->broken = number(s, nth, row, 3) != 0;
  x->ttl_ms = small(s, nth, row, 4);
  x->since = number(s, nth, row, 5);
  x->session = (uint64_t)number(s, nth, row, 6);
  read_label(s, nth, row, 7, &x->owner);
}

static step head_load(void *to, head *h) {
  session *s = to;
  struct dibs__far_name *n = dibs__far_name_find(s, h->bucket, h->name);
  step end = DIBS__SQL_FINE;
  if (!n || !n->loaded) end = dibs__far_load_name(s, h->bucket, h->name, &n);
  if (end != DIBS__SQL_FINE) return end;
  dibs__str name = h->name;
  *h = n->head;
  h->name = name;
  h->queue_changed = h->holder_changed = false;
  return DIBS__SQL_FINE;
}

/* As it is from now on. */
static void head_keep(session *s, const head *h, bool exists) {
  struct dibs__far_name *n = dibs__far_name_find(s, h->bucket, h->name);
  if (!n) return;
  if (exists)
    n->head = *h;
  else
    n->head = (head){.bucket = h->bucket};
  n->head.exists = exists;
}

static size_t queue_values(const head *h, value *v) {
  v[0] = dibs__sql_number(h->waiters);
  v[1] = dibs__sql_number(h->mode);
  v[2] = dibs__sql_number(h->slots);
  v[3] = dibs__sql_number(h->holders);
  v[4] = dibs__sql_number(h->offers);
  v[5] = dibs__sql_number((int64_t)h->tickets);
  v[6] = dibs__sql_number((int64_t)h->front);
  v[7] = dibs__sql_number((int64_t)h->reach);
  v[8] = dibs__sql_number(h->low_slot);
  v[9] = dibs__sql_number(h->deep);
  v[10] = dibs__sql_number(h->due);
  return 11;
}

/* Values 3 to 8 and 10 to 13 of HEAD_ADD and HEAD_SET. */
static void inline_values(const head *h, value *v) {
  const struct dibs__sql_holder *x = &h->x;
  v[2] = dibs__sql_bytes(x->id.b, sizeof x->id.b);
  v[3] = dibs__sql_number(x->until);
  v[4] = dibs__sql_number((int64_t)x->granted);
  v[5] = dibs__sql_number((int64_t)x->first);
  v[6] = dibs__sql_number(x->block);
  v[7] = dibs__sql_number(x->broken);
  v[9] = dibs__sql_number(x->ttl_ms);
  v[10] = dibs__sql_number(x->since);
  v[11] = dibs__sql_number((int64_t)x->session);
  v[12] = dibs__sql_text(x->owner.text, x->owner.len);
}

static step head_write(session *s, enum dibs__far_texts text, const head *h) {
  value v[23], q[11];
  v[0] = dibs__sql_number(h->bucket);
  v[1] = dibs__sql_text(h->name.p, h->name.len);
  for (size_t i = 2; i < 13; i++) v[i] = dibs__sql_null();
  if (dibs__sql_inline(h)) inline_values(h, v);
  (void)queue_values(h, q);
  v[8] = q[0];
  memcpy(v + 13, q + 1, 10 * sizeof q[0]);
  head_keep(s, h, true);
  return dibs__far_put(s, text, v, 23);
}

static step head_add(void *to, const head *h) {
  return head_write(to, DIBS__FAR_HEAD_ADD, h);
}
static step head_set(void *to, const head *h) {
  return head_write(to, DIBS__FAR_HEAD_SET, h);
}
static step head_set_queue(void *to, const head *h) {
  value v[13] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len)};
  (void)queue_values(h, v + 2);
  head_keep(to, h, true);
  return dibs__far_put(to, DIBS__FAR_HEAD_QUEUE, v, 13);
}
static step head_drop(void *to, const head *h) {
  value v[2] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len)};
  head_keep(to, h, false);
  return dibs__far_put(to, DIBS__FAR_HEAD_DROP, v, 2);
}

/* ---- Breaks and records ---- */

static step break_add(void *to, const head *h, const struct dibs__sql_break *row) {
  value v[6] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len),
                dibs__sql_number(row->at),   dibs__sql_number((int64_t)row->fence),
                dibs__sql_number(row->mode), dibs__sql_text(row->owner.p, row->owner.len)};
  step end = dibs__far_put(to, DIBS__FAR_BREAK_ADD, v, 6);
  v[2] = dibs__sql_number(DIBS__SQL_BREAKS);
  return end == DIBS__SQL_FINE ? dibs__far_put(to, DIBS__FAR_BREAK_TRIM, v, 3) : end;
}

struct dibs__far_record *dibs__far_record_find(session *s, dibs__str key) {
  for (size_t i = 0; i < s->record_count; i++)
    if (dibs__str_equal(s->records[i].key, key)) return &s->records[i];
  return NULL;
}

static step record_load(void *to, dibs__str key, struct dibs__sql_record *r, bool *found) {
  struct dibs__far_record *known = dibs__far_record_find(to, key);
  step end = known ? DIBS__SQL_FINE : dibs__far_load_record(to, key, &known);
  if (end != DIBS__SQL_FINE) return end;
  *found = known->found;
  *r = known->row;
  return DIBS__SQL_FINE;
}

static step record_put(void *to, dibs__str key, const struct dibs__sql_record *r, bool data) {
  session *s = to;
  struct dibs__far_record *known = dibs__far_record_find(s, key);
  value v[5] = {dibs__sql_text(key.p, key.len), dibs__sql_number((int64_t)r->fence),
                dibs__sql_number((int64_t)r->digest), dibs__sql_number((int64_t)r->version)};
  if (!known) return dibs__sql_broke(s->wire, DIBS__SQL_ODD, "a record was not loaded");
  known->found = true;
  if (!data) {
    known->row.fence = r->fence;
    known->row.digest = r->digest;
    return dibs__far_put(s, DIBS__FAR_RECORD_SEAL, v, 3);
  }
  char *copy = malloc((size_t)r->len + 1);
  if (!copy) return dibs__sql_broke(s->wire, DIBS__SQL_NO_SPACE, "out of memory");
  if (r->len) memcpy(copy, r->data, r->len);
  v[4] = dibs__sql_bytes(copy, r->len);
  step end = dibs__far_put(s, DIBS__FAR_RECORD_SAVE, v, 5);
  free(known->data);
  known->data = copy;
  known->row = *r;
  known->row.data = copy;
  return end;
}

/* ---- The table ---- */

static step wrong(void *to) {
  return dibs__sql_broke(((session *)to)->wire, DIBS__SQL_DAMAGED, "rows of dibs contradict each other");
}

const struct dibs__sql_rows dibs__far_rows = {
    .wrong = wrong,
    .bucket_get = bucket_get,
    .bucket_put = bucket_put,
    .bucket_serve = bucket_serve,
    .head_load = head_load,
    .head_add = head_add,
    .head_set = head_set,
    .head_set_queue = head_set_queue,
    .head_drop = head_drop,
    .holder_find = dibs__far_holder_find,
    .holder_add = dibs__far_holder_add,
    .holder_set = dibs__far_holder_set,
    .holder_drop = dibs__far_holder_drop,
    .holders_expire = dibs__far_holders_expire,
    .holders_each = dibs__far_holders_each,
    .holders_break = dibs__far_holders_break,
    .holders_drop = dibs__far_holders_drop,
    .holders_first_until = dibs__far_holders_first_until,
    .slot_free = dibs__far_slot_free,
    .waiter_find = dibs__far_waiter_find,
    .waiter_next = dibs__far_waiter_next,
    .waiter_offered = dibs__far_waiter_offered,
    .waiter_add = dibs__far_waiter_add,
    .waiter_set = dibs__far_waiter_set,
    .waiter_drop = dibs__far_waiter_drop,
    .offers_expire = dibs__far_offers_expire,
    .offers_first_until = dibs__far_offers_first_until,
    .break_add = break_add,
    .record_load = record_load,
    .record_put = record_put,
};
