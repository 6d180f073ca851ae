/* SPDX-License-Identifier: MIT */
/*
 * Listing: some names at a time, each lot in one statement, which is one instant (R19).  The core lists on a session of
 * its own.  What time has ended is not shown, whether or not somebody has swept it yet; nor are waiters whose process
 * is gone.
 */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_value value;

/* Behind the columns of a row. */
enum { NAME = DIBS__FAR_COLUMNS, KIND, SLOT, NOW };
enum { IS_HEAD, IS_HOLDER, IS_WAITER };

struct listing {
  session *s;
  const struct dibs__list *list;
  struct dibs__sql_head head; /* of the name that is shown */
  char name[DIBS_NAME_MAX];
  uint32_t ahead;
  bool enough; /* the caller wants no more */
};

static void show(struct listing *g, const struct dibs__lease_row *row) {
  g->enough = g->enough || g->list->row(row, g->list->user) != 0;
}

static void show_holder(struct listing *g, const struct dibs__sql_holder *x) {
  int64_t now = g->s->now;
  if (x->until <= now) return;
  struct dibs__lease_row row = {.name = g->head.name, .owner = dibs__str_of(x->owner.text, x->owner.len)};
  row.state = x->broken ? DIBS_BREAKING : DIBS_HOLDS;
  row.mode = g->head.mode;
  row.slots = g->head.mode == DIBS_COUNTED ? g->head.slots : 0;
  row.slot = x->slot;
  row.ttl_ms = x->ttl_ms;
  row.fence.v = x->first;
  row.left_ms = x->until - now;
  row.age_ms = now - x->since;
  show(g, &row);
}

static void show_waiter(struct listing *g, const struct dibs__sql_waiter *w) {
  bool known;
  int64_t now = g->s->now;
  if (w->session != g->s->store->session && dibs__far_where(g->s, w->session, &known) <= 0) return;
  bool offered = w->state == DIBS__SQL_OFFERED && w->until > now;
  struct dibs__lease_row row = {.name = g->head.name, .owner = dibs__str_of(w->owner.text, w->owner.len)};
  row.state = offered ? DIBS_OFFERED : DIBS_WAITS;
  row.mode = w->mode;
  row.slots = w->slots;
  row.ttl_ms = w->ttl_ms;
  row.ahead = g->ahead++;
  row.left_ms = offered ? w->until - now : 0;
  row.age_ms = now - w->since;
  show(g, &row);
}

static step show_head(struct listing *g, size_t nth, size_t row) {
  value name = g->s->wire->engine->cell(g->s->wire, nth, row, NAME, DIBS__SQL_TEXT);
  bool whole = dibs__far_read_head(g->s, nth, row, &g->head) && name.len <= sizeof g->name;
  if (!whole) return dibs__sql_broke(g->s->wire, DIBS__SQL_DAMAGED, "rows of dibs contradict each other");
  memcpy(g->name, name.p, name.len);
  g->head.name = dibs__str_of(g->name, name.len);
  g->ahead = 0;
  if (dibs__sql_inline(&g->head)) show_holder(g, &g->head.x);
  return DIBS__SQL_FINE;
}

/* A holder's columns stand where a row's do. */
static void show_crowd(struct listing *g, size_t nth, size_t row, int64_t kind) {
  struct dibs__sql_waiter w;
  dibs__far_read_waiter(g->s, nth, row, &w);
  if (kind == IS_WAITER) {
    show_waiter(g, &w);
    return;
  }
  struct dibs__sql_holder x = {.until = w.until, .ttl_ms = w.ttl_ms, .since = w.since, .session = w.session};
  x.owner = w.owner;
  x.slot = (uint32_t)dibs__sql_cell_number(g->s->wire, nth, row, SLOT);
  x.broken = dibs__far_read_broken(g->s, nth, row);
  show_holder(g, &x);
}

static step show_rows(struct listing *g, dibs__str from, dibs__str to) {
  const struct dibs__sql_engine *engine = g->s->wire->engine;
  value v[] = {dibs__sql_text(from.p, from.len), dibs__sql_text(to.p, to.len)};
  size_t nth;
  step end = dibs__far_ask(g->s, DIBS__FAR_LIST_ROWS, v, 2, &nth);
  size_t rows = end == DIBS__SQL_FINE ? engine->rows(g->s->wire, nth) : 0;
  bool headed = false;
  for (size_t i = 0; i < rows && end == DIBS__SQL_FINE && !g->enough; i++) {
    int64_t now = dibs__sql_cell_number(g->s->wire, nth, i, NOW),
            kind = dibs__sql_cell_number(g->s->wire, nth, i, KIND);
    if (now) g->s->now = now;
    if (kind == IS_HEAD) {
      end = show_head(g, nth, i);
      headed = true;
    } else if (headed) {
      show_crowd(g, nth, i, kind);
    }
  }
  return end;
}

static step show_breaks(struct listing *g) {
  dibs__str name = g->list->name;
  value v[] = {dibs__sql_number(dibs__bucket(name)), dibs__sql_text(name.p, name.len)};
  size_t now, nth;
  now = g->s->wire->put;
  step end = dibs__far_put(g->s, DIBS__FAR_NOW, NULL, 0);
  if (end == DIBS__SQL_FINE) end = dibs__far_ask(g->s, DIBS__FAR_BREAKS, v, 2, &nth);
  if (end != DIBS__SQL_FINE) return end;
  g->s->now = dibs__sql_cell_number(g->s->wire, now, 0, 0);
  for (size_t i = 0; i < g->s->wire->engine->rows(g->s->wire, nth) && !g->enough; i++) {
    struct dibs__lease_row row = {.name = name, .state = DIBS_BROKEN};
    row.age_ms = g->s->now - dibs__sql_cell_number(g->s->wire, nth, i, 0);
    row.fence.v = (uint64_t)dibs__sql_cell_number(g->s->wire, nth, i, 1);
    row.mode = (uint32_t)dibs__sql_cell_number(g->s->wire, nth, i, 2);
    value owner = g->s->wire->engine->cell(g->s->wire, nth, i, 3, DIBS__SQL_TEXT);
    row.owner = dibs__str_of(owner.p, owner.len);
    show(g, &row);
  }
  return end;
}

/* The next lot of names: from the first of them to the last that begins so. */
struct lot {
  size_t count;
  uint32_t from_len, to_len;
  char from[DIBS_NAME_MAX + 1], to[DIBS_NAME_MAX + 1];
};

static bool begins(dibs__str name, dibs__str prefix) {
  return name.len >= prefix.len && (prefix.len == 0 || memcmp(name.p, prefix.p, prefix.len) == 0);
}

static step find_lot(struct listing *g, struct lot *lot) {
  value v = dibs__sql_text(lot->from, lot->from_len);
  size_t nth;
  lot->count = 0;
  step end = dibs__far_ask(g->s, DIBS__FAR_LIST_NAMES, &v, 1, &nth);
  size_t rows = end == DIBS__SQL_FINE ? g->s->wire->engine->rows(g->s->wire, nth) : 0;
  for (; lot->count < rows; lot->count++) {
    value name = g->s->wire->engine->cell(g->s->wire, nth, lot->count, 0, DIBS__SQL_TEXT);
    if (name.len > DIBS_NAME_MAX || !begins(dibs__str_of(name.p, name.len), g->list->prefix)) break;
    memcpy(lot->to, name.p, name.len);
    lot->to_len = name.len;
  }
  return end;
}

static step list_all(struct listing *g) {
  struct lot lot = {.from_len = g->list->prefix.len};
  step end = DIBS__SQL_FINE;
  if (lot.from_len > DIBS_NAME_MAX) return end;
  if (lot.from_len) memcpy(lot.from, g->list->prefix.p, lot.from_len);
  do {
    end = find_lot(g, &lot);
    if (end != DIBS__SQL_FINE || lot.count == 0) break;
    end = show_rows(g, dibs__str_of(lot.from, lot.from_len), dibs__str_of(lot.to, lot.to_len));
    /* Behind the last one: no name holds a NUL. */
    memcpy(lot.from, lot.to, lot.to_len);
    lot.from[lot.to_len] = '\1';
    lot.from_len = lot.to_len + 1;
  } while (end == DIBS__SQL_FINE && !g->enough && lot.count == DIBS__FAR_LOT);
  return end;
}

DIBS__MODULE_API dibs__status dibs__far_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                                             struct dibs__said *said) {
  session *s = (session *)base;
  struct listing g = {.s = s, .list = list};
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  s->wire->by = by;
  dibs__far_fresh(s);
  step end = list->name.len ? show_rows(&g, list->name, list->name) : list_all(&g);
  if (end == DIBS__SQL_FINE && list->name.len && !g.enough) end = show_breaks(&g);
  said->now.ms = s->now;
  return end == DIBS__SQL_FINE ? DIBS_OK : dibs__far_excuse(s, "list", said);
}
