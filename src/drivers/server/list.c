/* SPDX-License-Identifier: MIT */
/*
 * Listing and sweeping at a server, on sessions of their own.
 *
 * A listing reads a batch of names in one statement, which is one instant (R19).  It shows neither expired leases,
 * swept or not, nor waiters whose process is gone.
 */
#include "drivers/server/server_impl.h"

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;
typedef struct dibs__sql_value value;

/* The columns that follow those of a row. */
enum { NAME = DIBS__SERVER_COLUMNS, KIND, SLOT, NOW };
enum { IS_HEAD, IS_HOLDER, IS_WAITER };

struct listing {
  session *s;
  const struct dibs__list *list;
  struct dibs__sql_head head; /* of the name that is shown */
  char name[DIBS_NAME_MAX];
  uint32_t ahead;
  bool enough; /* the caller wants no more */
};

static void show_row(struct listing *g, const struct dibs__lease_row *row) {
  g->enough = g->enough || g->list->row(row, g->list->user) != 0;
}

static void show_holder(struct listing *g, const struct dibs__sql_holder *x) {
  int64_t now = g->s->now;
  if (x->until + g->list->ended_ms <= now) return;
  struct dibs__lease_row row = {.name = g->head.name, .owner = dibs__str_of(x->owner.text, x->owner.len)};
  row.state = x->broken ? DIBS__BREAKING : DIBS__HOLDS;
  row.mode = g->head.mode;
  row.slots = g->head.mode == DIBS_COUNTED ? g->head.slots : 0;
  row.slot = x->slot;
  row.ttl_ms = x->ttl_ms;
  row.fence.v = x->first;
  row.left_ms = x->until - now;
  row.age_ms = now - x->since;
  show_row(g, &row);
}

static void show_waiter(struct listing *g, const struct dibs__sql_waiter *w) {
  bool known;
  int64_t now = g->s->now;
  bool offered = w->state == DIBS__SQL_OFFERED && w->until > now;
  bool alive = w->session == g->s->store->session || dibs__server_where(g->s, w->session, &known) > 0;
  if (!offered && !alive) return;
  struct dibs__lease_row row = {.name = g->head.name, .owner = dibs__str_of(w->owner.text, w->owner.len)};
  row.state = offered ? DIBS__OFFERED : DIBS__WAITS;
  row.mode = w->mode;
  row.slots = w->slots;
  row.ttl_ms = w->ttl_ms;
  row.ahead = g->ahead++;
  row.left_ms = offered ? w->until - now : 0;
  row.age_ms = now - w->since;
  show_row(g, &row);
}

static sql_rc show_head(struct listing *g, size_t nth, size_t row) {
  value name = g->s->rows.wire->engine->cell(g->s->rows.wire, nth, row, NAME, DIBS__SQL_TEXT);
  bool whole = dibs__rows_read_head(&g->s->rows, nth, row, &g->head) && name.len <= sizeof g->name;
  if (!whole) return dibs__sql_fail(g->s->rows.wire, DIBS__SQL_DAMAGED, "the rows of dibs contradict each other");
  memcpy(g->name, name.p, name.len);
  g->head.name = dibs__str_of(g->name, name.len);
  g->ahead = 0;
  if (dibs__sql_inline(&g->head)) show_holder(g, &g->head.x);
  return DIBS__SQL_OK;
}

/* A holder's columns are in the same positions as a row's. */
static void show_waiters(struct listing *g, size_t nth, size_t row, int64_t kind) {
  struct dibs__sql_waiter w;
  dibs__rows_read_waiter(&g->s->rows, nth, row, &w);
  if (kind == IS_WAITER) {
    show_waiter(g, &w);
    return;
  }
  struct dibs__sql_holder x = {.until = w.until, .ttl_ms = w.ttl_ms, .since = w.since, .session = w.session};
  x.owner = w.owner;
  x.slot = (uint32_t)dibs__sql_cell_number(g->s->rows.wire, nth, row, SLOT);
  x.broken = dibs__rows_read_broken(&g->s->rows, nth, row);
  show_holder(g, &x);
}

static sql_rc show_rows(struct listing *g, dibs__str from, dibs__str to) {
  const struct dibs__sql_engine *engine = g->s->rows.wire->engine;
  value v[] = {dibs__sql_text(from.p, from.len), dibs__sql_text(to.p, to.len)};
  size_t nth;
  sql_rc end = dibs__rows_request(&g->s->rows, DIBS__SERVER_LIST_ROWS, v, 2, &nth);
  size_t rows = end == DIBS__SQL_OK ? engine->rows(g->s->rows.wire, nth) : 0;
  bool headed = false;
  for (size_t i = 0; i < rows && end == DIBS__SQL_OK && !g->enough; i++) {
    int64_t now = dibs__sql_cell_number(g->s->rows.wire, nth, i, NOW),
            kind = dibs__sql_cell_number(g->s->rows.wire, nth, i, KIND);
    if (now) g->s->now = now;
    if (kind == IS_HEAD) {
      end = show_head(g, nth, i);
      headed = true;
    } else if (headed) {
      show_waiters(g, nth, i, kind);
    }
  }
  return end;
}

static sql_rc show_breaks(struct listing *g) {
  dibs__str name = g->list->name;
  value v[] = {dibs__sql_number(dibs__bucket(name)), dibs__sql_text(name.p, name.len)};
  size_t now, nth;
  now = g->s->rows.wire->put;
  sql_rc end = dibs__rows_put(&g->s->rows, DIBS__SERVER_NOW, NULL, 0);
  if (end == DIBS__SQL_OK) end = dibs__rows_request(&g->s->rows, DIBS__ROWS_BREAKS, v, 2, &nth);
  if (end != DIBS__SQL_OK) return end;
  g->s->now = dibs__sql_cell_number(g->s->rows.wire, now, 0, 0);
  for (size_t i = 0; i < g->s->rows.wire->engine->rows(g->s->rows.wire, nth) && !g->enough; i++) {
    struct dibs__lease_row row = {.name = name, .state = DIBS__BROKEN};
    row.age_ms = g->s->now - dibs__sql_cell_number(g->s->rows.wire, nth, i, 0);
    row.fence.v = (uint64_t)dibs__sql_cell_number(g->s->rows.wire, nth, i, 1);
    row.mode = (uint32_t)dibs__sql_cell_number(g->s->rows.wire, nth, i, 2);
    value owner = g->s->rows.wire->engine->cell(g->s->rows.wire, nth, i, 3, DIBS__SQL_TEXT);
    row.owner = dibs__str_of(owner.p, owner.len);
    show_row(g, &row);
  }
  return end;
}

enum { LOT_GROWTH = 4 };

/* The next batch of names: from the first name to the last name with the prefix. */
struct lot {
  size_t count;
  uint32_t most; /* names in a batch */
  uint32_t from_len, to_len;
  char from[DIBS_NAME_MAX + 1], to[DIBS_NAME_MAX + 1];
};

static sql_rc find_lot(struct listing *g, struct lot *lot) {
  value v[] = {dibs__sql_text(lot->from, lot->from_len), dibs__sql_number(lot->most)};
  size_t nth;
  lot->count = 0;
  sql_rc end = dibs__rows_request(&g->s->rows, DIBS__SERVER_LIST_NAMES, v, 2, &nth);
  size_t rows = end == DIBS__SQL_OK ? g->s->rows.wire->engine->rows(g->s->rows.wire, nth) : 0;
  for (; lot->count < rows; lot->count++) {
    value name = g->s->rows.wire->engine->cell(g->s->rows.wire, nth, lot->count, 0, DIBS__SQL_TEXT);
    if (name.len > DIBS_NAME_MAX) /* written by SQL */
      return dibs__sql_fail(g->s->rows.wire, DIBS__SQL_DAMAGED, "the rows of dibs contradict each other");
    if (!dibs__list_has(g->list, dibs__str_of(name.p, name.len))) break;
    memcpy(lot->to, name.p, name.len);
    lot->to_len = name.len;
  }
  return end;
}

static sql_rc list_all(struct listing *g) {
  struct lot lot = {.most = g->list->most && g->list->most < DIBS__SERVER_LOT ? g->list->most : DIBS__SERVER_LOT};
  sql_rc end = DIBS__SQL_OK;
  if (g->list->prefix.len > DIBS_NAME_MAX) return end;
  lot.from_len = dibs__list_from(g->list, lot.from).len;
  bool more = true;
  while (more && !g->enough) {
    end = find_lot(g, &lot);
    if (end != DIBS__SQL_OK || lot.count == 0) break;
    end = show_rows(g, dibs__str_of(lot.from, lot.from_len), dibs__str_of(lot.to, lot.to_len));
    /* A key greater than the last name: no name holds a NUL. */
    memcpy(lot.from, lot.to, lot.to_len);
    lot.from[lot.to_len] = '\1';
    lot.from_len = lot.to_len + 1;
    more = end == DIBS__SQL_OK && lot.count == lot.most;
    /* It is not enough: a store of several tiers takes only the names that this one serves, perhaps few of many. */
    lot.most = lot.most < DIBS__SERVER_LOT / LOT_GROWTH ? lot.most * LOT_GROWTH : DIBS__SERVER_LOT;
  }
  return end;
}

DIBS__MODULE_API dibs__status dibs__server_list(struct dibs__session *base, const struct dibs__list *list,
                                                dibs__tick by, struct dibs__result *result) {
  session *s = (session *)base;
  struct listing g = {.s = s, .list = list};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  s->rows.wire->by = by;
  dibs__server_fresh(s);
  sql_rc end = list->name.len ? show_rows(&g, list->name, list->name) : list_all(&g);
  if (end == DIBS__SQL_OK && list->name.len && !g.enough) end = show_breaks(&g);
  result->now.ms = s->now;
  return end == DIBS__SQL_OK ? DIBS_OK : dibs__server_explain(s, "list", result);
}

/*
 * ---- Sweeping ----
 *
 * Deletes long expired leases, waiters whose process is gone, old breaks, and answers and claims past their time to
 * be kept.  Every process sweeps a little from time to time; each decision is made again under the locks that every
 * operation takes.
 */

enum {
  SWEEP_EVERY_MS = 120000,
  SWEEP_AGAIN_MS = 500, /* after a round that did not delete all that is over */
  SWEEP_STEPS = 16,     /* in a round */
  STEP_MS = 2000        /* how long a step may take */
};
/* What ended less than this ago is left to the next acquire of the name. */
#define SWEEP_AGE_MS INT64_C(60000)

struct found {
  uint16_t bucket; /* the last that was swept */
  uint32_t len;
  char name[DIBS_NAME_MAX];
  size_t looked, count;
  struct {
    uint16_t bucket;
    uint32_t len;
    char name[DIBS_NAME_MAX];
  } names[DIBS__SERVER_SWEEP];
};

static void set_step_deadline(session *s) {
  s->rows.wire->by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
}

static sql_rc find_names(session *s, unsigned text, int64_t argument, struct found *f) {
  const struct dibs__sql_engine *engine = s->rows.wire->engine;
  value v[] = {dibs__sql_number(f->bucket), dibs__sql_text(f->name, f->len), dibs__sql_number(argument)};
  size_t nth;
  f->looked = f->count = 0;
  set_step_deadline(s);
  sql_rc end = dibs__rows_request(&s->rows, text, v, 3, &nth);
  size_t rows = end == DIBS__SQL_OK ? engine->rows(s->rows.wire, nth) : 0;
  for (size_t i = 0; i < rows && f->looked < DIBS__SERVER_SWEEP; i++) {
    value name = engine->cell(s->rows.wire, nth, i, 1, DIBS__SQL_TEXT);
    f->looked++;
    if (name.len > DIBS_NAME_MAX) continue;
    f->bucket = (uint16_t)dibs__sql_cell_number(s->rows.wire, nth, i, 0);
    f->len = name.len;
    memcpy(f->name, name.p, name.len);
    if (!dibs__sql_cell_number(s->rows.wire, nth, i, 2)) continue;
    f->names[f->count].bucket = f->bucket;
    f->names[f->count].len = f->len;
    memcpy(f->names[f->count++].name, name.p, name.len);
  }
  return end;
}

static sql_rc sweep_name(struct dibs__sql *sql, uint16_t bucket, dibs__str name) {
  struct dibs__sql_head h = {.bucket = bucket, .name = name};
  struct dibs__sql_bucket *row;
  sql_rc end = sql->rows->bucket_get(sql->to, bucket, &row);
  if (end == DIBS__SQL_OK) end = dibs__sql_enter(sql, &h);
  if (end == DIBS__SQL_OK && h.exists) end = dibs__rows_drop_dead(sql, &h);
  return end == DIBS__SQL_OK ? dibs__sql_leave(sql, &h) : end;
}

static bool alive_but_us(void *to, uint64_t who) {
  const session *s = dibs__server_of(to);
  bool known;
  return who != s->store->session && dibs__server_where(s, who, &known) > 0;
}

/* Each name has a transaction of its own, so that none waits for the lock of another. */
static sql_rc sweep_found(session *s, bool leaving, const struct found *f) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < f->count && end == DIBS__SQL_OK; i++) {
    set_step_deadline(s);
    end = dibs__server_load(s, NULL, 0, true);
    struct dibs__sql sql = dibs__server_sql(s);
    if (leaving) sql.alive = alive_but_us;
    if (end == DIBS__SQL_OK)
      end = sweep_name(&sql, f->names[i].bucket, dibs__str_of(f->names[i].name, f->names[i].len));
    if (end == DIBS__SQL_OK) end = dibs__server_commit(s);
    if (end == DIBS__SQL_OK || dibs__sql_dead(s->rows.wire)) continue;
    dibs__sql_rollback(s->rows.wire);
    end = dibs__sql_dead(s->rows.wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK; /* another session works on it */
  }
  return end;
}

static session *sweep_session(struct dibs__server *store) {
  struct dibs__result result;
  struct dibs__server_inside *in = store->inside;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
  if (in->tidier && dibs__sql_dead(in->tidier->rows.wire)) {
    dibs__server_session_close(in->tidier);
    in->tidier = NULL;
  }
  if (!in->tidier) (void)dibs__server_session_open(store, by, &in->tidier, &result);
  return in->tidier;
}

static sql_rc forget_breaks(session *s) {
  value v = dibs__sql_number(s->now - DIBS__SQL_BREAK_KEEP_MS);
  set_step_deadline(s);
  sql_rc end = dibs__rows_put(&s->rows, DIBS__ROWS_BREAKS_OLD, &v, 1);
  return end == DIBS__SQL_OK ? s->rows.wire->engine->go(s->rows.wire, false) : end;
}

/* A failure of one table does not keep the others from losing their old rows.  true: there is more to delete. */
static bool forget_old(session *s) {
  static const struct {
    sql_rc (*sweep)(struct dibs__sql_guard *, bool *);
    bool again; /* soon, if there is more */
  } tables[] = {{dibs__sql_once_sweep, true},
                {dibs__sql_task_sweep, true},
                {dibs__sql_claims_sweep, false},
                {dibs__sql_run_sweep, false},
                {dibs__sql_counter_sweep, false}};
  struct dibs__result result = {.dead = false};
  struct dibs__sql_guard guard = {.wire = s->rows.wire,
                                  .prefix = s->store->options.prefix,
                                  .store = s->store->shown,
                                  .result = &result,
                                  .swept = s->store->inside->swept_claim};
  bool again = false;
  sql_rc end = forget_breaks(s);
  for (size_t i = 0; i < sizeof tables / sizeof *tables && !dibs__sql_dead(s->rows.wire); i++) {
    if (end != DIBS__SQL_OK) dibs__sql_rollback(s->rows.wire);
    end = DIBS__SQL_OK;
    bool more = true;
    for (int step = 0; step < SWEEP_STEPS && more && end == DIBS__SQL_OK; step++) {
      set_step_deadline(s);
      end = tables[i].sweep(&guard, &more);
    }
    if (end == DIBS__SQL_OK && more && tables[i].again) again = true;
  }
  if (end != DIBS__SQL_OK && !dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return again;
}

static sql_rc read_clock(session *s) {
  size_t nth;
  set_step_deadline(s);
  sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_NOW, NULL, 0, &nth);
  if (end == DIBS__SQL_OK) s->now = dibs__sql_cell_number(s->rows.wire, nth, 0, 0);
  return end;
}

/* The session is used for some milliseconds every few minutes, so its connection is not kept. */
static void close_sweep_session(struct dibs__server *store) {
  dibs__server_session_close(store->inside->tidier);
  store->inside->tidier = NULL;
}

/* true: there is more to delete than one round does. */
static bool sweep(struct dibs__server *store) {
  struct dibs__server_inside *in = store->inside;
  session *s = sweep_session(store);
  if (!s) return false;
  struct found f = {.bucket = in->swept_bucket, .len = in->swept_len};
  memcpy(f.name, in->swept_name, in->swept_len);
  dibs__server_fresh(s);
  sql_rc end = read_clock(s);
  for (int i = 0; i < SWEEP_STEPS && end == DIBS__SQL_OK; i++) {
    end = find_names(s, DIBS__SERVER_SWEEP_NAMES, s->now - SWEEP_AGE_MS, &f);
    if (end == DIBS__SQL_OK) end = sweep_found(s, false, &f);
    if (f.looked < DIBS__SERVER_SWEEP) {
      f.bucket = 0; /* that was all: start from the first */
      f.len = 0;
      break;
    }
  }
  in->swept_bucket = f.bucket;
  in->swept_len = f.len;
  memcpy(in->swept_name, f.name, f.len);
  if (end == DIBS__SQL_OK) return forget_old(s);
  if (!dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return false;
}

void dibs__server_leave(struct dibs__server *store) {
  if (!atomic_load(&store->inside->queued)) return;
  session *s = sweep_session(store);
  struct found f = {.len = 0};
  sql_rc end = s ? DIBS__SQL_OK : DIBS__SQL_FAILED;
  do {
    if (end == DIBS__SQL_OK) end = find_names(s, DIBS__SERVER_SWEEP_OURS, (int64_t)store->session, &f);
    if (end == DIBS__SQL_OK) end = sweep_found(s, true, &f);
  } while (end == DIBS__SQL_OK && f.looked == DIBS__SERVER_SWEEP);
}

DIBS__MODULE_API void dibs__server_tidy(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__tick now = dibs__tick_now();
  uint32_t draw;
  /* The first round comes late, at a random time: several processes may have started together. */
  if (store->inside->sweep_at.ns && dibs__tick_before(now, store->inside->sweep_at)) return;
  dibs__random(&draw, sizeof draw);
  bool first = store->inside->sweep_at.ns == 0;
  store->inside->sweep_at = dibs__tick_add_ms(now, SWEEP_EVERY_MS / 2 + (int64_t)(draw % SWEEP_EVERY_MS));
  if (first) return;
  /* Otherwise answers that expire faster than a round deletes them would fill the table without bound. */
  if (sweep(store)) store->inside->sweep_at = dibs__tick_add_ms(dibs__tick_now(), SWEEP_AGAIN_MS);
  close_sweep_session(store);
}
