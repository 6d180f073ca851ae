/* SPDX-License-Identifier: MIT */
/*
 * Rows over a wire: from rows to structs and back, for every SQL engine.  A dialect adds what differs: how it loads a
 * head, buckets, records, and what it knows without its engine.
 */
#include "sql/wire.h"

#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__rows rows_t;
typedef struct dibs__sql_head head;
typedef struct dibs__sql_holder holder;
typedef struct dibs__sql_waiter waiter;
typedef struct dibs__sql_value value;

/* The columns of a waiter, then of a head. */
enum column {
  POSITION,
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
  ALIVE,
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
  DUE
};

/* Values that begin with bucket and name. */
#define ABOUT(h, ...)                                                                                                  \
  { dibs__sql_number((h)->bucket), dibs__sql_text((h)->name.p, (h)->name.len), ##__VA_ARGS__ }

/* ---- Statements ---- */

sql_rc dibs__rows_put(rows_t *r, unsigned text, const value *values, size_t count) {
  if (r->run) return r->run(r, text, values, count, false);
  r->wrote = r->wrote || r->texts[text][0] != 'S';
  return r->wire->engine->put(r->wire, r->texts[text], values, count);
}

static sql_rc request(rows_t *r, unsigned text, const value *values, size_t count, bool first, size_t *nth) {
  *nth = 0;
  if (r->run) return r->run(r, text, values, count, first);
  *nth = r->wire->put;
  sql_rc end = dibs__rows_put(r, text, values, count);
  return end == DIBS__SQL_OK ? r->wire->engine->go(r->wire, false) : end;
}
sql_rc dibs__rows_request(rows_t *r, unsigned text, const value *values, size_t count, size_t *nth) {
  return request(r, text, values, count, false, nth);
}
sql_rc dibs__rows_request_first(rows_t *r, unsigned text, const value *values, size_t count, size_t *nth) {
  return request(r, text, values, count, true, nth);
}

static size_t row_count(const rows_t *r, size_t nth) {
  return r->wire->engine->rows(r->wire, nth);
}

/* ---- Cells ---- */

static int64_t cell_number(const rows_t *r, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(r->wire, nth, row, column);
}
static uint64_t cell_u64(const rows_t *r, size_t nth, size_t row, size_t column) {
  return (uint64_t)cell_number(r, nth, row, column);
}
static uint32_t cell_u32(const rows_t *r, size_t nth, size_t row, size_t column) {
  return (uint32_t)cell_number(r, nth, row, column);
}

void dibs__rows_read_bytes(const rows_t *r, size_t nth, size_t row, size_t column, void *to, size_t size) {
  value cell = r->wire->engine->cell(r->wire, nth, row, column, DIBS__SQL_BYTES);
  if (cell.kind == DIBS__SQL_BYTES && cell.len == size)
    memcpy(to, cell.p, size);
  else
    memset(to, 0, size);
}

static void read_label(const rows_t *r, size_t nth, size_t row, size_t column, struct dibs__sql_label *label) {
  value cell = r->wire->engine->cell(r->wire, nth, row, column, DIBS__SQL_TEXT);
  label->len = 0;
  if (cell.kind != DIBS__SQL_TEXT) return;
  label->len = cell.len <= DIBS_OWNER_MAX ? cell.len : DIBS_OWNER_MAX;
  memcpy(label->text, cell.p, label->len);
}

static value bytes_of(const dibs__id *id) {
  return dibs__sql_bytes(id->b, sizeof id->b);
}

/* ---- Heads ---- */

bool dibs__rows_read_head(const rows_t *r, size_t nth, size_t row, head *h) {
  h->waiters = cell_u32(r, nth, row, WAITERS);
  h->mode = cell_u32(r, nth, row, MODE);
  h->slots = cell_u32(r, nth, row, SLOTS);
  h->holders = cell_u32(r, nth, row, HOLDERS);
  h->offers = cell_u32(r, nth, row, OFFERS);
  h->tickets = cell_u64(r, nth, row, TICKETS);
  h->front = cell_u64(r, nth, row, FRONT);
  h->reach = cell_u64(r, nth, row, REACH);
  h->low_slot = cell_u32(r, nth, row, LOW_SLOT);
  h->deep = cell_number(r, nth, row, STATE) != 0;
  h->due = cell_number(r, nth, row, DUE);
  if (h->mode > DIBS_COUNTED || h->offers > h->waiters) return false;
  if (!dibs__sql_inline(h)) return true;
  if (h->holders != 1) return false;
  dibs__rows_read_bytes(r, nth, row, ID, h->x.id.b, sizeof h->x.id.b);
  h->x.until = cell_number(r, nth, row, UNTIL);
  h->x.granted = cell_u64(r, nth, row, GRANTED);
  h->x.first = cell_u64(r, nth, row, FIRST);
  h->x.block = cell_u32(r, nth, row, BLOCK);
  h->x.broken = cell_number(r, nth, row, BROKEN) != 0;
  h->x.ttl_ms = cell_u32(r, nth, row, TTL);
  h->x.since = cell_number(r, nth, row, SINCE);
  h->x.session = cell_u64(r, nth, row, SESSION);
  h->x.slot = 0;
  read_label(r, nth, row, OWNER, &h->x.owner);
  return true;
}

bool dibs__rows_read_broken(const rows_t *r, size_t nth, size_t row) {
  return cell_number(r, nth, row, BROKEN) != 0;
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
  const holder *x = &h->x;
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

static sql_rc head_write(rows_t *r, unsigned text, const head *h) {
  value v[23], q[11];
  v[0] = dibs__sql_number(h->bucket);
  v[1] = dibs__sql_text(h->name.p, h->name.len);
  for (size_t i = 2; i < 13; i++) v[i] = dibs__sql_null();
  if (dibs__sql_inline(h)) inline_values(h, v);
  (void)queue_values(h, q);
  v[8] = q[0];
  memcpy(v + 13, q + 1, 10 * sizeof q[0]);
  return dibs__rows_put(r, text, v, 23);
}

sql_rc dibs__rows_head_add(void *to, const head *h) {
  return head_write(to, DIBS__ROWS_HEAD_ADD, h);
}
sql_rc dibs__rows_head_set(void *to, const head *h) {
  return head_write(to, DIBS__ROWS_HEAD_SET, h);
}
sql_rc dibs__rows_head_set_queue(void *to, const head *h) {
  value v[13] = ABOUT(h);
  (void)queue_values(h, v + 2);
  return dibs__rows_put(to, DIBS__ROWS_HEAD_QUEUE, v, 13);
}
sql_rc dibs__rows_head_drop(void *to, const head *h) {
  value v[] = ABOUT(h);
  return dibs__rows_put(to, DIBS__ROWS_HEAD_DROP, v, 2);
}

/* ---- Holders ---- */

void dibs__rows_read_holder(const rows_t *r, size_t nth, size_t row, holder *x) {
  *x = (holder){.block = 0};
  dibs__rows_read_bytes(r, nth, row, 0, x->id.b, sizeof x->id.b);
  x->slot = cell_u32(r, nth, row, 1);
  x->until = cell_number(r, nth, row, 2);
  x->broken = cell_number(r, nth, row, 3) != 0;
  x->ttl_ms = cell_u32(r, nth, row, 4);
  x->since = cell_number(r, nth, row, 5);
  x->session = cell_u64(r, nth, row, 6);
  read_label(r, nth, row, 7, &x->owner);
}

sql_rc dibs__rows_holder_find(void *to, const head *h, dibs__id id, holder *x, bool *found) {
  value v[] = ABOUT(h, bytes_of(&id));
  size_t nth;
  sql_rc end = dibs__rows_request_first(to, DIBS__ROWS_HOLDER, v, 3, &nth);
  *found = end == DIBS__SQL_OK && row_count(to, nth) > 0;
  if (*found) dibs__rows_read_holder(to, nth, 0, x);
  return end;
}

sql_rc dibs__rows_holder_add(void *to, const head *h, const holder *x) {
  value v[] = ABOUT(h, bytes_of(&x->id), h->mode == DIBS_COUNTED ? dibs__sql_number(x->slot) : dibs__sql_null(),
                    dibs__sql_number(x->until), dibs__sql_number(x->broken), dibs__sql_number(x->ttl_ms),
                    dibs__sql_number(x->since), dibs__sql_number((int64_t)x->session),
                    dibs__sql_text(x->owner.text, x->owner.len));
  return dibs__rows_put(to, DIBS__ROWS_HOLDER_ADD, v, 10);
}

sql_rc dibs__rows_holder_set(void *to, const head *h, const holder *x) {
  value v[] = ABOUT(h, bytes_of(&x->id), dibs__sql_number(x->until), dibs__sql_number(x->ttl_ms),
                    dibs__sql_number((int64_t)x->session));
  return dibs__rows_put(to, DIBS__ROWS_HOLDER_SET, v, 6);
}

sql_rc dibs__rows_holder_drop(void *to, const head *h, dibs__id id) {
  value v[] = ABOUT(h, bytes_of(&id));
  return dibs__rows_put(to, DIBS__ROWS_HOLDER_DROP, v, 3);
}

sql_rc dibs__rows_holders_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  rows_t *r = to;
  value v[] = ABOUT(h, dibs__sql_number(now));
  size_t nth;
  sql_rc end = dibs__rows_request(r, DIBS__ROWS_HOLDERS_EXPIRE, v, 3, &nth);
  if (end == DIBS__SQL_OK) *gone = (uint32_t)r->wire->engine->changed(r->wire, nth);
  return end;
}

sql_rc dibs__rows_holders_each(void *to, const head *h, void (*each)(void *arg, const holder *holder), void *arg) {
  value v[] = ABOUT(h);
  size_t nth;
  sql_rc end = dibs__rows_request(to, DIBS__ROWS_HOLDERS, v, 2, &nth);
  for (size_t i = 0; end == DIBS__SQL_OK && i < row_count(to, nth); i++) {
    holder x;
    dibs__rows_read_holder(to, nth, i, &x);
    each(arg, &x); /* only queues, so that it sends nothing */
  }
  return end;
}

sql_rc dibs__rows_holders_break(void *to, const head *h) {
  value v[] = ABOUT(h);
  return dibs__rows_put(to, DIBS__ROWS_HOLDERS_BREAK, v, 2);
}
sql_rc dibs__rows_holders_drop(void *to, const head *h) {
  value v[] = ABOUT(h);
  return dibs__rows_put(to, DIBS__ROWS_HOLDERS_DROP, v, 2);
}

/* One number, or INT64_MAX. */
static sql_rc first_until(rows_t *r, unsigned text, const value *v, size_t count, int64_t *until) {
  size_t nth;
  *until = INT64_MAX;
  sql_rc end = dibs__rows_request_first(r, text, v, count, &nth);
  if (end != DIBS__SQL_OK || row_count(r, nth) == 0) return end;
  value cell = r->wire->engine->cell(r->wire, nth, 0, 0, DIBS__SQL_NUMBER);
  if (cell.kind == DIBS__SQL_NUMBER) *until = cell.number;
  return end;
}

sql_rc dibs__rows_holders_first_until(void *to, const head *h, int64_t *until) {
  value v[] = ABOUT(h);
  return first_until(to, DIBS__ROWS_HOLDERS_UNTIL, v, 2, until);
}

sql_rc dibs__rows_slot_free(void *to, const head *h, uint32_t *slot) {
  value v[] = ABOUT(h, dibs__sql_number(h->low_slot));
  size_t nth;
  *slot = h->low_slot;
  sql_rc end = dibs__rows_request(to, DIBS__ROWS_SLOTS, v, 3, &nth);
  for (size_t i = 0; end == DIBS__SQL_OK && i < row_count(to, nth); i++) {
    if ((uint32_t)dibs__sql_cell_number(((rows_t *)to)->wire, nth, i, 0) != *slot) break;
    ++*slot;
  }
  return end;
}

/* ---- Waiters ---- */

void dibs__rows_read_waiter(rows_t *r, size_t nth, size_t row, waiter *w) {
  w->ticket = cell_u64(r, nth, row, POSITION);
  w->state = (enum dibs__sql_waits)cell_u32(r, nth, row, STATE);
  dibs__rows_read_bytes(r, nth, row, ID, w->id.b, sizeof w->id.b);
  w->session = cell_u64(r, nth, row, SESSION);
  w->mode = cell_u32(r, nth, row, MODE);
  w->slots = cell_u32(r, nth, row, SLOTS);
  w->until = cell_number(r, nth, row, UNTIL);
  w->deep = cell_number(r, nth, row, DEEP) != 0;
  w->ttl_ms = cell_u32(r, nth, row, TTL);
  w->since = cell_number(r, nth, row, SINCE);
  read_label(r, nth, row, OWNER, &w->owner);
  w->first = cell_u64(r, nth, row, FIRST);
  if (r->seen) r->seen(r, w->session, cell_number(r, nth, row, ALIVE));
}

static sql_rc one_waiter(rows_t *r, unsigned text, const value *v, size_t count, waiter *w, bool *found) {
  size_t nth;
  sql_rc end = dibs__rows_request_first(r, text, v, count, &nth);
  *found = end == DIBS__SQL_OK && row_count(r, nth) > 0;
  if (*found) dibs__rows_read_waiter(r, nth, 0, w);
  return end;
}

static sql_rc waiter_at(rows_t *r, const head *h, const dibs__id *id, uint64_t ticket, waiter *w, bool *found) {
  value v[] = ABOUT(h, bytes_of(id), dibs__sql_number((int64_t)ticket));
  return one_waiter(r, DIBS__ROWS_WAITER_AT, v, 4, w, found);
}

static sql_rc waiter_deep(rows_t *r, const head *h, const dibs__id *id, waiter *w, bool *found) {
  value v[] = ABOUT(h, bytes_of(id));
  size_t nth;
  *found = false;
  sql_rc end = dibs__rows_request_first(r, DIBS__ROWS_DEEP, v, 3, &nth);
  if (end != DIBS__SQL_OK || row_count(r, nth) == 0) return end;
  return waiter_at(r, h, id, (uint64_t)dibs__sql_cell_number(r->wire, nth, 0, 0), w, found);
}

sql_rc dibs__rows_waiter_find(void *to, const head *h, dibs__id id, uint64_t ticket, waiter *w, bool *found) {
  sql_rc end = DIBS__SQL_OK;
  value v[] = ABOUT(h, bytes_of(&id));
  *found = false;
  if (ticket) end = waiter_at(to, h, &id, ticket, w, found);
  if (end == DIBS__SQL_OK && !*found && h->deep) end = waiter_deep(to, h, &id, w, found);
  return end == DIBS__SQL_OK && !*found ? one_waiter(to, DIBS__ROWS_WAITER_SHALLOW, v, 3, w, found) : end;
}

sql_rc dibs__rows_waiter_next_from(void *to, const head *h, uint64_t from, waiter *w, bool *found) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)from));
  return one_waiter(to, DIBS__ROWS_WAITER_NEXT, v, 3, w, found);
}

sql_rc dibs__rows_waiter_offered(void *to, const head *h, waiter *w, bool *found) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach));
  return one_waiter(to, DIBS__ROWS_WAITER_OFFERED, v, 3, w, found);
}

sql_rc dibs__rows_waiter_add(void *to, const head *h, const waiter *w) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket), dibs__sql_number(w->state), bytes_of(&w->id),
                    dibs__sql_number((int64_t)w->session), dibs__sql_number(w->mode), dibs__sql_number(w->slots),
                    dibs__sql_number(w->until), dibs__sql_number(w->deep), dibs__sql_number(w->ttl_ms),
                    dibs__sql_number(w->since), dibs__sql_text(w->owner.text, w->owner.len));
  value d[] = ABOUT(h, bytes_of(&w->id), dibs__sql_number((int64_t)w->ticket));
  sql_rc end = dibs__rows_put(to, DIBS__ROWS_WAITER_ADD, v, 13);
  return end == DIBS__SQL_OK && w->deep ? dibs__rows_put(to, DIBS__ROWS_DEEP_ADD, d, 4) : end;
}

sql_rc dibs__rows_waiter_set(void *to, const head *h, const waiter *w) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket), dibs__sql_number(w->state), dibs__sql_number(w->until),
                    dibs__sql_number((int64_t)w->session), dibs__sql_number((int64_t)w->first));
  return dibs__rows_put(to, DIBS__ROWS_WAITER_SET, v, 7);
}

sql_rc dibs__rows_waiter_drop(void *to, const head *h, const waiter *w) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket));
  value d[] = ABOUT(h, bytes_of(&w->id));
  sql_rc end = dibs__rows_put(to, DIBS__ROWS_WAITER_DROP, v, 3);
  return end == DIBS__SQL_OK && w->deep ? dibs__rows_put(to, DIBS__ROWS_DEEP_DROP, d, 3) : end;
}

sql_rc dibs__rows_offers_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  rows_t *r = to;
  value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach), dibs__sql_number(now));
  size_t nth;
  sql_rc end = dibs__rows_request(r, DIBS__ROWS_OFFERS_EXPIRE, v, 4, &nth);
  if (end == DIBS__SQL_OK) *gone = (uint32_t)r->wire->engine->changed(r->wire, nth);
  return end;
}

sql_rc dibs__rows_offers_first_until(void *to, const head *h, int64_t *until) {
  value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach));
  return first_until(to, DIBS__ROWS_OFFERS_UNTIL, v, 3, until);
}

/* ---- Breaks ---- */

sql_rc dibs__rows_break_add(void *to, const head *h, const struct dibs__sql_break *row) {
  value v[6] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len),
                dibs__sql_number(row->at),   dibs__sql_number((int64_t)row->fence),
                dibs__sql_number(row->mode), dibs__sql_text(row->owner.p, row->owner.len)};
  sql_rc end = dibs__rows_put(to, DIBS__ROWS_BREAK_ADD, v, 6);
  v[2] = dibs__sql_number(DIBS__SQL_BREAKS);
  return end == DIBS__SQL_OK ? dibs__rows_put(to, DIBS__ROWS_BREAK_TRIM, v, 3) : end;
}

/* ---- Sweeping ---- */

static sql_rc find_dead(struct dibs__sql *sql, const head *h, uint64_t *from, waiter *dead, size_t *count, bool *more) {
  rows_t *r = sql->to;
  value v[] = ABOUT(h, dibs__sql_number((int64_t)*from));
  size_t nth;
  *count = 0;
  sql_rc end = dibs__rows_request(r, DIBS__ROWS_WAITERS, v, 3, &nth);
  size_t rows = end == DIBS__SQL_OK ? row_count(r, nth) : 0;
  *more = rows == DIBS__SQL_PAGE;
  for (size_t i = 0; i < rows && i < DIBS__SQL_PAGE; i++) {
    waiter *w = &dead[*count];
    dibs__rows_read_waiter(r, nth, i, w);
    *from = w->ticket;
    *count += !sql->alive(r, w->session);
  }
  return end;
}

sql_rc dibs__rows_drop_dead(struct dibs__sql *sql, head *h) {
  waiter dead[DIBS__SQL_PAGE];
  uint64_t from = 0;
  size_t count = 0;
  bool some = false, more = h->waiters > 0;
  sql_rc end = DIBS__SQL_OK;
  while (more && end == DIBS__SQL_OK && h->waiters) {
    end = find_dead(sql, h, &from, dead, &count, &more);
    for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = dibs__sql_waiter_out(sql, h, &dead[i]);
    some = some || count > 0;
  }
  return end == DIBS__SQL_OK && some ? dibs__sql_pass_on(sql, h) : end;
}
