/* SPDX-License-Identifier: MIT */
/*
 * Listing: one read transaction, so that it is one instant (R19); readers hold up no writer.  The core lists on a
 * session of its own.
 *
 * What time has ended is not shown, whether or not somebody has swept it yet; nor are waiters whose process is gone.
 */
#include "drivers/sqlite_bind.h"

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

struct listing {
  link_t *l;
  const struct dibs__list *list;
  int64_t now;
  bool enough; /* the caller wants no more */
};

static void show(struct listing *g, struct dibs__lease_row *row, uint64_t session) {
  row->pid = session ? dibs__side_pid(g->l->store->side, session) : 0;
  g->enough = g->list->row(row, g->list->user) != 0;
}

static void show_holder(struct listing *g, const struct dibs__sql_head *h, const struct dibs__sql_holder *x) {
  if (x->until <= g->now || g->enough) return;
  struct dibs__lease_row row = {.name = h->name, .owner = dibs__str_of(x->owner.text, x->owner.len)};
  row.state = x->broken ? DIBS_BREAKING : DIBS_HOLDS;
  row.mode = h->mode;
  row.slots = h->mode == DIBS_COUNTED ? h->slots : 0;
  row.slot = x->slot;
  row.ttl_ms = x->ttl_ms;
  row.fence.v = x->first;
  row.left_ms = x->until - g->now;
  row.age_ms = g->now - x->since;
  show(g, &row, x->session);
}

static void show_waiter(struct listing *g, const struct dibs__sql_head *h, const struct dibs__sql_waiter *w,
                        uint32_t *ahead) {
  if (!dibs__side_alive(g->l->store->side, w->session)) return;
  bool offered = w->state == DIBS__SQL_OFFERED && w->until > g->now;
  struct dibs__lease_row row = {.name = h->name, .owner = dibs__str_of(w->owner.text, w->owner.len)};
  row.state = offered ? DIBS_OFFERED : DIBS_WAITS;
  row.mode = w->mode;
  row.slots = w->slots;
  row.ttl_ms = w->ttl_ms;
  row.ahead = (*ahead)++;
  row.left_ms = offered ? w->until - g->now : 0;
  row.age_ms = g->now - w->since;
  show(g, &row, w->session);
}

static step show_name(struct listing *g, const struct dibs__sql_head *h) {
  struct dibs__sql_holder x;
  struct dibs__sql_waiter w;
  uint32_t ahead = 0;
  bool row;
  step end = DIBS__SQL_FINE;
  if (dibs__sql_inline(h)) show_holder(g, h, &h->x);
  sqlite3_stmt *st = NULL;
  if (h->holders && !dibs__sql_inline(h)) {
    st = dibs__lite_about(g->l, DIBS__LITE_HOLDERS, h);
    for (end = dibs__lite_row(g->l, st, &row); row && !g->enough; end = dibs__lite_row(g->l, st, &row)) {
      dibs__lite_read_holder(st, &x);
      show_holder(g, h, &x);
    }
    sqlite3_reset(st);
  }
  if (end != DIBS__SQL_FINE || g->enough || !h->waiters) return end;
  st = dibs__lite_about(g->l, DIBS__LITE_WAITERS, h);
  if (st) sqlite3_bind_int64(st, 3, 0);
  for (end = dibs__lite_row(g->l, st, &row); row && !g->enough; end = dibs__lite_row(g->l, st, &row)) {
    dibs__lite_read_waiter(st, &w);
    show_waiter(g, h, &w, &ahead);
  }
  sqlite3_reset(st);
  return end;
}

static step show_breaks(struct listing *g, const struct dibs__sql_head *h) {
  bool found;
  sqlite3_stmt *st = dibs__lite_about(g->l, DIBS__LITE_BREAKS, h);
  step end = dibs__lite_row(g->l, st, &found);
  for (; found && !g->enough; end = dibs__lite_row(g->l, st, &found)) {
    struct dibs__lease_row row = {.name = h->name, .state = DIBS_BROKEN};
    row.age_ms = g->now - sqlite3_column_int64(st, 0);
    row.fence.v = (uint64_t)sqlite3_column_int64(st, 1);
    row.mode = (uint32_t)sqlite3_column_int64(st, 2);
    row.owner = dibs__lite_read_text(st, 3);
    show(g, &row, 0);
  }
  sqlite3_reset(st);
  return end;
}

static step list_one(struct listing *g) {
  struct dibs__sql_head h = {.bucket = dibs__bucket(g->list->name), .name = g->list->name};
  step end = dibs__lite_rows.head_load(g->l, &h);
  if (end == DIBS__SQL_FINE && h.exists) end = show_name(g, &h);
  return end == DIBS__SQL_FINE && !g->enough ? show_breaks(g, &h) : end;
}

static step list_all(struct listing *g) {
  struct dibs__sql_head h;
  dibs__str prefix = g->list->prefix;
  bool row;
  step end;
  sqlite3_stmt *st = dibs__lite_ready(g->l, DIBS__LITE_NAMES);
  if (st) sqlite3_bind_text(st, 1, prefix.p ? prefix.p : "", (int)prefix.len, SQLITE_STATIC);
  for (end = dibs__lite_row(g->l, st, &row); row; end = dibs__lite_row(g->l, st, &row)) {
    if (!dibs__lite_read_head(st, &h)) {
      end = dibs__lite_wrong(g->l);
      break;
    }
    h.bucket = (uint16_t)sqlite3_column_int64(st, DIBS__LITE_HEAD_COLUMNS);
    h.name = dibs__lite_read_text(st, DIBS__LITE_HEAD_COLUMNS + 1);
    if (h.name.len < prefix.len || (prefix.len && memcmp(h.name.p, prefix.p, prefix.len) != 0)) break;
    end = show_name(g, &h);
    if (end != DIBS__SQL_FINE || g->enough) break;
  }
  sqlite3_reset(st);
  return end;
}

static step list_within(struct listing *g) {
  bool unsure;
  struct dibs__sql_bucket *bucket;
  step end = dibs__lite_plain(g->l, DIBS__LITE_BEGIN_READ);
  if (end != DIBS__SQL_FINE) return end;
  /* The snapshot is taken by the first read, and the clock is read after it: nothing in it is from later. */
  memset(g->l->known, 0, sizeof g->l->known);
  end = dibs__lite_bucket_get(g->l, 0, &bucket);
  if (end == DIBS__SQL_OTHER) end = DIBS__SQL_FINE; /* the next writer sees to it */
  g->now = dibs__lite_clock(g->l->store);
  if (end == DIBS__SQL_FINE) end = g->list->name.len ? list_one(g) : list_all(g);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(g->l, &unsure);
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(g->l);
  return end;
}

dibs__status dibs__lite_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                             struct dibs__said *said) {
  link_t *l = ((struct dibs__lite_session *)session)->link;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  l->by = by;
  struct listing g = {.l = l, .list = list};
  step end = list_within(&g);
  said->now.ms = g.now;
  return end == DIBS__SQL_FINE ? DIBS_OK : dibs__lite_excuse(l, "list", said);
}
