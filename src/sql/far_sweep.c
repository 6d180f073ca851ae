/* SPDX-License-Identifier: MIT */
/*
 * Housekeeping at a server, on a session of its own: what time ended long ago goes, and so do waiters whose process is
 * gone, old breaks, answers and claims that are not kept any longer.  Every process does some of it now and then; what
 * is found is decided anew under the locks that everybody takes.
 */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_value value;

enum {
  SWEEP_EVERY_MS = 120000,
  SWEEP_STEPS = 16, /* a round */
  STEP_MS = 2000    /* how long a step may take */
};
/* What ended less than this ago is left to those who come for the name. */
#define SWEEP_AGE_MS INT64_C(60000)

struct found {
  uint16_t bucket; /* the last that was looked at */
  uint32_t len;
  char name[DIBS_NAME_MAX];
  size_t looked, count;
  struct {
    uint16_t bucket;
    uint32_t len;
    char name[DIBS_NAME_MAX];
  } names[DIBS__FAR_SWEEP];
};

static void hurry(session *s) {
  s->wire->by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
}

static step find(session *s, enum dibs__far_texts text, int64_t argument, struct found *f) {
  const struct dibs__sql_engine *engine = s->wire->engine;
  value v[] = {dibs__sql_number(f->bucket), dibs__sql_text(f->name, f->len), dibs__sql_number(argument)};
  size_t nth;
  f->looked = f->count = 0;
  hurry(s);
  step end = dibs__far_ask(s, text, v, 3, &nth);
  size_t rows = end == DIBS__SQL_FINE ? engine->rows(s->wire, nth) : 0;
  for (size_t i = 0; i < rows && f->looked < DIBS__FAR_SWEEP; i++) {
    value name = engine->cell(s->wire, nth, i, 1, DIBS__SQL_TEXT);
    f->looked++;
    if (name.len > DIBS_NAME_MAX) continue;
    f->bucket = (uint16_t)dibs__sql_cell_number(s->wire, nth, i, 0);
    f->len = name.len;
    memcpy(f->name, name.p, name.len);
    if (!dibs__sql_cell_number(s->wire, nth, i, 2)) continue;
    f->names[f->count].bucket = f->bucket;
    f->names[f->count].len = f->len;
    memcpy(f->names[f->count++].name, name.p, name.len);
  }
  return end;
}

/* Some of the name's waiters that are gone, wherever they stand. */
static step find_dead(struct dibs__sql *sql, const struct dibs__sql_head *h, uint64_t *from,
                      struct dibs__sql_waiter *dead, size_t *count, bool *more) {
  session *s = sql->to;
  value v[] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len), dibs__sql_number((int64_t)*from)};
  size_t nth;
  *count = 0;
  step end = dibs__far_ask(s, DIBS__FAR_WAITERS_ALL, v, 3, &nth);
  size_t rows = end == DIBS__SQL_FINE ? s->wire->engine->rows(s->wire, nth) : 0;
  *more = rows == DIBS__FAR_SWEEP;
  for (size_t i = 0; i < rows && i < DIBS__FAR_SWEEP; i++) {
    struct dibs__sql_waiter *w = &dead[*count];
    dibs__far_read_waiter(s, nth, i, w);
    *from = w->ticket;
    *count += !sql->alive(s, w->session);
  }
  return end;
}

/* Those at the front are passed over anyway; this is also for who is offered, fell asleep or stands behind. */
static step drop_dead(struct dibs__sql *sql, struct dibs__sql_head *h) {
  struct dibs__sql_waiter dead[DIBS__FAR_SWEEP];
  uint64_t from = 0;
  size_t count = 0;
  bool some = false, more = h->waiters > 0;
  step end = DIBS__SQL_FINE;
  while (more && end == DIBS__SQL_FINE && h->waiters) {
    end = find_dead(sql, h, &from, dead, &count, &more);
    for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) end = dibs__sql_waiter_out(sql, h, &dead[i]);
    some = some || count > 0;
  }
  return end == DIBS__SQL_FINE && some ? dibs__sql_pass_on(sql, h) : end;
}

static step sweep_name(struct dibs__sql *sql, uint16_t bucket, dibs__str name) {
  struct dibs__sql_head h = {.bucket = bucket, .name = name};
  struct dibs__sql_bucket *row;
  step end = sql->rows->bucket_get(sql->to, bucket, &row);
  if (end == DIBS__SQL_FINE) end = dibs__sql_enter(sql, &h);
  if (end == DIBS__SQL_FINE && h.exists) end = drop_dead(sql, &h);
  return end == DIBS__SQL_FINE ? dibs__sql_leave(sql, &h) : end;
}

static bool alive_but_us(void *to, uint64_t who) {
  session *s = to;
  bool known;
  return who != s->store->session && dibs__far_where(s, who, &known) > 0;
}

/* Each name in a transaction of its own: none waits for another's lock. */
static step sweep_found(session *s, bool leaving, const struct found *f) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < f->count && end == DIBS__SQL_FINE; i++) {
    hurry(s);
    end = dibs__far_load(s, NULL, 0, true);
    struct dibs__sql sql = dibs__far_sql(s);
    if (leaving) sql.alive = alive_but_us;
    if (end == DIBS__SQL_FINE)
      end = sweep_name(&sql, f->names[i].bucket, dibs__str_of(f->names[i].name, f->names[i].len));
    if (end == DIBS__SQL_FINE) end = dibs__far_commit(s);
    if (end == DIBS__SQL_FINE || dibs__sql_dead(s->wire)) continue;
    dibs__sql_rollback(s->wire);
    end = dibs__sql_dead(s->wire) ? DIBS__SQL_BROKE : DIBS__SQL_FINE; /* somebody is at it */
  }
  return end;
}

static session *tidier(struct dibs__far *store) {
  struct dibs__said said;
  struct dibs__far_inside *in = store->inside;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
  if (in->tidier && dibs__sql_dead(in->tidier->wire)) {
    dibs__far_session_close(in->tidier);
    in->tidier = NULL;
  }
  if (!in->tidier) (void)dibs__far_session_open(store, by, &in->tidier, &said);
  return in->tidier;
}

static step forget_old(session *s) {
  struct dibs__said said = {.dead = false};
  struct dibs__sql_guard guard = {.wire = s->wire,
                                  .prefix = s->store->options.prefix,
                                  .store = s->store->shown,
                                  .said = &said,
                                  .swept = s->store->inside->swept_claim};
  bool more = true;
  value v = dibs__sql_number(s->now - DIBS__SQL_BREAK_KEEP_MS);
  hurry(s);
  step end = dibs__far_put(s, DIBS__FAR_BREAKS_OLD, &v, 1);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
  for (int i = 0; i < SWEEP_STEPS && more && end == DIBS__SQL_FINE; i++) {
    hurry(s);
    end = dibs__sql_once_sweep(&guard, &more);
  }
  more = true;
  for (int i = 0; i < SWEEP_STEPS && more && end == DIBS__SQL_FINE; i++) {
    hurry(s);
    end = dibs__sql_claims_sweep(&guard, &more);
  }
  return end;
}

static step read_clock(session *s) {
  size_t nth;
  hurry(s);
  step end = dibs__far_ask(s, DIBS__FAR_NOW, NULL, 0, &nth);
  if (end == DIBS__SQL_FINE) s->now = dibs__sql_cell_number(s->wire, nth, 0, 0);
  return end;
}

static void sweep(struct dibs__far *store) {
  struct dibs__far_inside *in = store->inside;
  session *s = tidier(store);
  if (!s) return;
  struct found f = {.bucket = in->swept_bucket, .len = in->swept_len};
  memcpy(f.name, in->swept_name, in->swept_len);
  dibs__far_fresh(s);
  step end = read_clock(s);
  for (int i = 0; i < SWEEP_STEPS && end == DIBS__SQL_FINE; i++) {
    end = find(s, DIBS__FAR_SWEEP_NAMES, s->now - SWEEP_AGE_MS, &f);
    if (end == DIBS__SQL_FINE) end = sweep_found(s, false, &f);
    if (f.looked < DIBS__FAR_SWEEP) {
      f.bucket = 0; /* that was all: from the first */
      f.len = 0;
      break;
    }
  }
  in->swept_bucket = f.bucket;
  in->swept_len = f.len;
  memcpy(in->swept_name, f.name, f.len);
  if (end == DIBS__SQL_FINE) end = forget_old(s);
  if (end != DIBS__SQL_FINE && !dibs__sql_dead(s->wire)) dibs__sql_rollback(s->wire);
}

void dibs__far_leave(struct dibs__far *store) {
  if (!atomic_load(&store->inside->queued)) return;
  session *s = tidier(store);
  struct found f = {.len = 0};
  step end = s ? DIBS__SQL_FINE : DIBS__SQL_BROKE;
  do {
    if (end == DIBS__SQL_FINE) end = find(s, DIBS__FAR_SWEEP_OURS, (int64_t)store->session, &f);
    if (end == DIBS__SQL_FINE) end = sweep_found(s, true, &f);
  } while (end == DIBS__SQL_FINE && f.looked == DIBS__FAR_SWEEP);
}

DIBS__MODULE_API void dibs__far_tidy(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__tick now = dibs__tick_now();
  uint32_t draw;
  /* The first round comes late, and no two processes keep step: they may all have begun together. */
  if (store->inside->sweep_at.ns && dibs__tick_before(now, store->inside->sweep_at)) return;
  dibs__random(&draw, sizeof draw);
  bool first = store->inside->sweep_at.ns == 0;
  store->inside->sweep_at = dibs__tick_add_ms(now, SWEEP_EVERY_MS / 2 + (int64_t)(draw % SWEEP_EVERY_MS));
  if (!first) sweep(store);
}
