/* SPDX-License-Identifier: MIT */
/*
 * Listing, checkpoints, sweeping.
 *
 * Listing is one read transaction, so it is one instant (R19); readers block no writer.  The core lists on a session
 * of its own.  It shows neither expired leases, swept or not, nor waiters whose process is gone.
 *
 * Checkpoints and sweeping run on a connection of their own, outside of callers' operations.
 *
 * Checkpoints are passive, and block the writers only for the few pages that were written while they copied: the next
 * writer starts a log that is wholly copied again from its beginning.  A short log is a fast one: each page that
 * another process has changed is looked up in the log's index, where all versions of a page are in one chain (a
 * contended release took 29 us with 4000 pages, 25 with 1000, and no less with 300).  But each checkpoint delays
 * callers, so there must be few.
 *
 * Sweeping goes through the names in small steps, each with its own turn in the writer queue, and deletes long
 * expired leases and waiters whose process is gone.
 */
#include "drivers/sqlite/sqlite_impl.h"

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sqlite_link link_t;

struct listing {
  link_t *l;
  const struct dibs__list *list;
  int64_t now;
  bool enough; /* the caller wants no more */
};

static void show_row(struct listing *g, struct dibs__lease_row *row, uint64_t session) {
  row->pid = session ? dibs__side_pid(g->l->store->side, session) : 0;
  g->enough = g->list->row(row, g->list->user) != 0;
}

static void show_holder(struct listing *g, const struct dibs__sql_head *h, const struct dibs__sql_holder *x) {
  if (x->until + g->list->ended_ms <= g->now || g->enough) return;
  struct dibs__lease_row row = {.name = h->name, .owner = dibs__str_of(x->owner.text, x->owner.len)};
  row.state = x->broken ? DIBS__BREAKING : DIBS__HOLDS;
  row.mode = h->mode;
  row.slots = h->mode == DIBS_COUNTED ? h->slots : 0;
  row.slot = x->slot;
  row.ttl_ms = x->ttl_ms;
  row.fence.v = x->first;
  row.left_ms = x->until - g->now;
  row.age_ms = g->now - x->since;
  show_row(g, &row, x->session);
}

static void show_waiter(struct listing *g, const struct dibs__sql_head *h, const struct dibs__sql_waiter *w,
                        uint32_t *ahead) {
  bool offered = w->state == DIBS__SQL_OFFERED && w->until > g->now;
  if (!offered && !dibs__side_alive(g->l->store->side, w->session)) return;
  struct dibs__lease_row row = {.name = h->name, .owner = dibs__str_of(w->owner.text, w->owner.len)};
  row.state = offered ? DIBS__OFFERED : DIBS__WAITS;
  row.mode = w->mode;
  row.slots = w->slots;
  row.ttl_ms = w->ttl_ms;
  row.ahead = (*ahead)++;
  row.left_ms = offered ? w->until - g->now : 0;
  row.age_ms = g->now - w->since;
  show_row(g, &row, w->session);
}

static sql_rc show_holders(struct listing *g, const struct dibs__sql_head *h) {
  struct dibs__rows *rows = &g->l->rows;
  struct dibs__sql_value v[] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len)};
  size_t nth;
  sql_rc end = dibs__rows_request(rows, DIBS__ROWS_HOLDERS, v, 2, &nth);
  size_t count = end == DIBS__SQL_OK ? rows->wire->engine->rows(rows->wire, nth) : 0;
  for (size_t i = 0; i < count && !g->enough; i++) {
    struct dibs__sql_holder x;
    dibs__rows_read_holder(rows, nth, i, &x);
    show_holder(g, h, &x);
  }
  return end;
}

static sql_rc show_waiters(struct listing *g, const struct dibs__sql_head *h) {
  struct dibs__rows *rows = &g->l->rows;
  struct dibs__sql_waiter w = {.ticket = 0};
  uint32_t ahead = 0;
  sql_rc end = DIBS__SQL_OK;
  for (size_t count = DIBS__SQL_PAGE, nth; end == DIBS__SQL_OK && count == DIBS__SQL_PAGE && !g->enough;) {
    struct dibs__sql_value v[] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len),
                                  dibs__sql_number((int64_t)w.ticket)};
    end = dibs__rows_request(rows, DIBS__ROWS_WAITERS, v, 3, &nth);
    count = end == DIBS__SQL_OK ? rows->wire->engine->rows(rows->wire, nth) : 0;
    for (size_t i = 0; i < count && !g->enough; i++) {
      dibs__rows_read_waiter(rows, nth, i, &w);
      show_waiter(g, h, &w, &ahead);
    }
  }
  return end;
}

static sql_rc show_name(struct listing *g, const struct dibs__sql_head *h) {
  sql_rc end = DIBS__SQL_OK;
  if (dibs__sql_inline(h))
    show_holder(g, h, &h->x);
  else if (h->holders)
    end = show_holders(g, h);
  return end == DIBS__SQL_OK && h->waiters && !g->enough ? show_waiters(g, h) : end;
}

static sql_rc show_breaks(struct listing *g, const struct dibs__sql_head *h) {
  bool found;
  sqlite3_stmt *st = dibs__sqlite_about(g->l, DIBS__ROWS_BREAKS, h);
  sql_rc end = dibs__sqlite_row(g->l, st, &found);
  for (; found && !g->enough; end = dibs__sqlite_row(g->l, st, &found)) {
    struct dibs__lease_row row = {.name = h->name, .state = DIBS__BROKEN};
    row.age_ms = g->now - sqlite3_column_int64(st, 0);
    row.fence.v = (uint64_t)sqlite3_column_int64(st, 1);
    row.mode = (uint32_t)sqlite3_column_int64(st, 2);
    row.owner = dibs__sqlite_read_text(st, 3);
    show_row(g, &row, 0);
  }
  sqlite3_reset(st);
  return end;
}

static sql_rc list_one(struct listing *g) {
  struct dibs__sql_head h = {.bucket = dibs__bucket(g->list->name), .name = g->list->name};
  sql_rc end = dibs__sqlite_rows.head_load(g->l, &h);
  if (end == DIBS__SQL_OK && h.exists) end = show_name(g, &h);
  return end == DIBS__SQL_OK && !g->enough ? show_breaks(g, &h) : end;
}

/* The names from this one on, in their order; `most`: the statement reads no more, 0: it reads all.  *count: how many
 * rows there were; *last: the latest name. */
static sql_rc list_from(struct listing *g, unsigned statement, dibs__str from, uint32_t most, size_t *count,
                        char last[DIBS_NAME_MAX + 1]) {
  struct dibs__sql_head h;
  bool row;
  sql_rc end;
  sqlite3_stmt *st = dibs__sqlite_ready(g->l, statement);
  if (st) sqlite3_bind_text(st, 1, from.p, (int)from.len, SQLITE_TRANSIENT);
  if (st && most) sqlite3_bind_int64(st, 2, most);
  for (end = dibs__sqlite_row(g->l, st, &row); row; end = dibs__sqlite_row(g->l, st, &row)) {
    if (!dibs__sqlite_read_head(st, &h)) {
      end = dibs__sqlite_wrong(g->l);
      break;
    }
    h.bucket = (uint16_t)sqlite3_column_int64(st, DIBS__SQLITE_HEAD_COLUMNS);
    h.name = dibs__sqlite_read_text(st, DIBS__SQLITE_HEAD_COLUMNS + 1);
    if (h.name.len > DIBS_NAME_MAX) { /* written by SQL */
      end = dibs__sqlite_wrong(g->l);
      break;
    }
    if (!dibs__list_has(g->list, h.name)) {
      g->enough = true;
      break;
    }
    memcpy(last, h.name.p, h.name.len);
    last[h.name.len] = '\0';
    ++*count;
    end = show_name(g, &h);
    if (end != DIBS__SQL_OK || g->enough) break;
  }
  sqlite3_reset(st);
  return end;
}

/* Most callers want a page, so the first names are read by a statement that reads no others. */
static sql_rc list_all(struct listing *g) {
  char least[DIBS_NAME_MAX + 1], last[DIBS_NAME_MAX + 1] = "";
  size_t count = 0;
  uint32_t most = g->list->most ? g->list->most : DIBS__SQLITE_FIRST;
  if (!dibs__sqlite_wire(g->l)) return DIBS__SQL_FAILED;
  sql_rc end = list_from(g, DIBS__SQLITE_NAMES_FIRST, dibs__list_from(g->list, least), most, &count, last);
  if (end != DIBS__SQL_OK || g->enough || count < most) return end;
  struct dibs__list rest = {.after = dibs__str_of(last, strlen(last))};
  return list_from(g, DIBS__SQLITE_NAMES, dibs__list_from(&rest, least), 0, &count, last);
}

static sql_rc list_within(struct listing *g) {
  bool unsure;
  struct dibs__sql_bucket *bucket;
  sql_rc end = dibs__sqlite_plain(g->l, DIBS__SQLITE_BEGIN_READ);
  if (end != DIBS__SQL_OK) return end;
  /* The snapshot is taken by the first read, and the clock is read after it: nothing in it is from later. */
  memset(g->l->known, 0, sizeof g->l->known);
  end = dibs__sqlite_bucket_get(g->l, 0, &bucket);
  if (end == DIBS__SQL_OTHER) end = DIBS__SQL_OK; /* the next writer begins the new incarnation */
  g->now = dibs__sqlite_clock(g->l->store);
  if (end == DIBS__SQL_OK) end = g->list->name.len ? list_one(g) : list_all(g);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(g->l, &unsure);
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(g->l);
  return end;
}

dibs__status dibs__sqlite_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                               struct dibs__result *result) {
  link_t *l = ((struct dibs__sqlite_session *)session)->link;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  l->by = by;
  struct listing g = {.l = l, .list = list};
  sql_rc end = list_within(&g);
  result->now.ms = g.now;
  return end == DIBS__SQL_OK ? DIBS_OK : dibs__sqlite_excuse(l, "list", result);
}

/* ---- Checkpoints and sweeping ---- */

enum {
  SWEEP_EVERY_MS = 120000,
  SWEEP_AGAIN_MS = 500,             /* after a round that did not delete all that is over */
  SWEEP_STEPS = 64,                 /* in a round */
  SWEEP_NAMES = DIBS__SQLITE_SWEEP, /* in a step */
  WRITE_MS = 1000                   /* how long a step may wait in the queue */
};
/* What ended less than this ago is left to the next acquire of the name. */
#define SWEEP_AGE_MS INT64_C(60000)

static link_t *sweep_link(struct dibs__lite *store) {
  struct dibs__result result;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  if (!store->tidier) (void)dibs__sqlite_link_open(store, store->path, by, &store->tidier, &result);
  if (store->tidier) store->tidier->by = by;
  return store->tidier;
}

/* ---- Checkpoints ---- */

static void copy_log(struct dibs__lite *store, link_t *l) {
  int pages, copied;
  sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
  /* Under steady writing new pages came meanwhile, and a log that is never wholly copied never starts again: 400 MB
   * after ten seconds of one caller in a loop.  So the last few pages are copied while the writers wait. */
  if (!dibs__side_write_begin(store->side, dibs__tick_add_ms(dibs__tick_now(), WRITE_MS))) return;
  int code = sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  /* Until a later commit sets it.  If only a part was copied, because a reader uses an old state: again the next
   * time. */
  if (code == SQLITE_OK && pages == copied) {
    dibs__side_copied(store->side);
    atomic_store(&store->log_pages, 0);
  }
  dibs__side_write_end(store->side);
}

void dibs__sqlite_checkpoint(struct dibs__lite *store) {
  if (atomic_load(&store->log_pages) < DIBS__SQLITE_LOG_PAGES) return;
  link_t *l = sweep_link(store);
  if (!l || !dibs__side_copy_begin(store->side, atomic_load(&store->copies))) return;
  copy_log(store, l);
  dibs__side_copy_end(store->side);
}

/* The last process to close removes a log that has grown: a single next process would read all of it before anything
 * else, and nothing but this would have copied it.  SQLite knows which process is the last. */
void dibs__sqlite_checkpoint_last(struct dibs__lite *store) {
  link_t *const links[] = {store->spare, store->tidier};
  if (atomic_load(&store->log_pages) < DIBS__SQLITE_LOG_LAST) return;
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
    if (links[i]) sqlite3_db_config(links[i]->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
}

/* ---- Sweeping ---- */

struct found {
  struct dibs__sqlite_position at; /* the last that was read */
  size_t looked, count;
  struct dibs__sqlite_position names[SWEEP_NAMES];
};

/* Finds names to sweep after the last one found.  It only reads, so that writers need not wait: each decision is made
 * again in the sweep's transaction. */
static sql_rc find_names(link_t *l, enum dibs__sqlite_text text, int64_t argument, struct found *found) {
  struct dibs__sqlite_position *at = &found->at;
  bool row;
  sql_rc end;
  sqlite3_stmt *st = dibs__sqlite_ready(l, text);
  if (!st) return DIBS__SQL_FAILED;
  struct dibs__sqlite_position from = *at;
  found->count = found->looked = 0;
  sqlite3_bind_int64(st, 1, from.bucket);
  sqlite3_bind_text(st, 2, from.text, (int)from.len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, argument);
  for (end = dibs__sqlite_row(l, st, &row); row; end = dibs__sqlite_row(l, st, &row)) {
    dibs__str name = dibs__sqlite_read_text(st, 1);
    found->looked++;
    if (name.len > DIBS_NAME_MAX) continue;
    at->bucket = (uint16_t)sqlite3_column_int64(st, 0);
    at->len = name.len;
    memcpy(at->text, name.p, name.len);
    if (found->count < SWEEP_NAMES && sqlite3_column_int(st, 2)) found->names[found->count++] = *at;
  }
  return end;
}

static sql_rc sweep_names(struct dibs__sql *s, const struct found *found) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < found->count && end == DIBS__SQL_OK; i++) {
    const struct dibs__sqlite_position *n = &found->names[i];
    struct dibs__sql_head h = {.bucket = n->bucket, .name = dibs__str_of(n->text, n->len)};
    end = dibs__sql_enter(s, &h);
    if (end == DIBS__SQL_OK && h.exists) end = dibs__rows_drop_dead(s, &h);
    if (end == DIBS__SQL_OK) end = dibs__sql_leave(s, &h);
  }
  return end;
}

static sql_rc forget_old_breaks(link_t *l, int64_t now) {
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__ROWS_BREAKS_OLD);
  if (st) sqlite3_bind_int64(st, 1, now - DIBS__SQL_BREAK_KEEP_MS);
  return dibs__sqlite_do(l, st);
}

static bool alive_but_us(void *to, uint64_t session) {
  struct dibs__side *side = ((link_t *)to)->store->side;
  return session != dibs__side_session(side) && dibs__side_alive(side, session);
}

/* Sweeps the found names in a transaction.  `leaving`: our own waiters leave. */
static sql_rc sweep_found(link_t *l, bool leaving, const struct found *found) {
  bool unsure;
  sql_rc end = dibs__sqlite_begin(l);
  if (end != DIBS__SQL_OK) return end;
  int64_t now = dibs__sqlite_clock(l->store);
  struct dibs__sql s = dibs__sqlite_sql(l, now);
  if (leaving)
    s.alive = alive_but_us;
  else
    end = forget_old_breaks(l, now);
  if (end == DIBS__SQL_OK) end = sweep_names(&s, found);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  for (size_t i = 0; i < l->hint_count; i++) dibs__side_post(l->store->side, l->hints[i].session, &l->hints[i].event);
  l->hint_count = 0;
  return end;
}

static sql_rc sweep_step(link_t *l, bool leaving, bool first, struct found *found) {
  struct dibs__side *side = l->store->side;
  sql_rc end;
  l->by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  if (leaving)
    end = find_names(l, DIBS__SQLITE_NAMES_OF, (int64_t)dibs__side_session(side), found);
  else
    end = find_names(l, DIBS__SQLITE_NAMES_FROM, dibs__sqlite_clock(l->store) - SWEEP_AGE_MS, found);
  if (end != DIBS__SQL_OK || (found->count == 0 && !first)) return end;
  if (!dibs__side_write_begin(side, l->by)) return DIBS__SQL_FAILED;
  end = sweep_found(l, leaving, found);
  dibs__side_write_end(side);
  return end;
}

/* true: answers expire faster than a round deletes them. */
static bool sweep(struct dibs__lite *store) {
  link_t *l = sweep_link(store);
  bool more = false;
  struct found found = {.at = store->swept_to};
  sql_rc end = l ? DIBS__SQL_OK : DIBS__SQL_FAILED;
  for (int i = 0; i < SWEEP_STEPS && end == DIBS__SQL_OK; i++) {
    end = sweep_step(l, false, i == 0, &found);
    if (found.looked < SWEEP_NAMES)
      found.at = (struct dibs__sqlite_position){.len = 0}; /* that was all: start from the first */
    if (found.looked < SWEEP_NAMES) break;
  }
  store->swept_to = found.at;
  if (l && end == DIBS__SQL_OK) more = dibs__sqlite_sweep_guarded(l);
  if (!l || !dibs__sqlite_stuck(l)) return more;
  dibs__sqlite_link_close(l);
  store->tidier = NULL;
  return false;
}

void dibs__sqlite_leave(struct dibs__lite *store) {
  if (!atomic_load(&store->queued)) return;
  link_t *l = store->spare ? store->spare : sweep_link(store);
  struct found found = {.at = {.len = 0}};
  sql_rc end = l ? DIBS__SQL_OK : DIBS__SQL_FAILED;
  do {
    if (end == DIBS__SQL_OK) end = sweep_step(l, true, false, &found);
  } while (end == DIBS__SQL_OK && found.looked == SWEEP_NAMES);
}

void dibs__sqlite_tidy(struct dibs__dstore *base) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  dibs__sqlite_checkpoint(store);
  int64_t now = dibs__sqlite_clock(store);
  if (now - store->swept_ms < SWEEP_EVERY_MS) return;
  store->swept_ms = sweep(store) ? now - SWEEP_EVERY_MS + SWEEP_AGAIN_MS : now;
}
