/* SPDX-License-Identifier: MIT */
/*
 * Housekeeping, on a connection of its own and off the path of callers.
 *
 * Checkpoints are passive, and hold the writers only for the little that came while they copied: a log that is wholly
 * copied is begun anew by the next writer.  A short log is a fast one: each page that another process has changed is
 * looked up in the log's index, where all versions of a page stand in one chain (a contended release took 29 us with
 * 4000 pages, 25 with 1000, and no less with 300).  But each checkpoint is felt, so there are to be few.
 *
 * Sweeping goes through the names in small steps, each one place in the writer queue: what time ended long ago goes,
 * and so do waiters whose process is gone.
 */
#include "drivers/sqlite_bind.h"

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

enum {
  SWEEP_EVERY_MS = 120000,
  SWEEP_STEPS = 64,               /* a round */
  SWEEP_NAMES = DIBS__LITE_SWEEP, /* a step */
  WRITE_MS = 1000                 /* how long a step may wait for its turn */
};
/* What ended less than this ago is left to those who come for the name. */
#define SWEEP_AGE_MS INT64_C(60000)

static link_t *tidier(struct dibs__lite *store) {
  struct dibs__said said;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  if (!store->tidier) (void)dibs__lite_link_open(store, store->path, by, &store->tidier, &said);
  if (store->tidier) store->tidier->by = by;
  return store->tidier;
}

/* ---- Checkpoints ---- */

void dibs__lite_checkpoint(struct dibs__lite *store) {
  int pages = 0, copied = 0;
  if (atomic_load(&store->log_pages) < DIBS__LITE_LOG_PAGES) return;
  link_t *l = tidier(store);
  if (!l) return;
  sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  /* Under steady writing more came meanwhile, and a log that is never wholly copied never begins anew: 400 MB after ten
   * seconds of one caller in a loop.  So the last few pages are copied with the writers held. */
  if (!dibs__side_write_begin(store->side, dibs__tick_add_ms(dibs__tick_now(), WRITE_MS))) return;
  sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  /* Until a commit says otherwise.  Copied only in part, because somebody reads an old state: again the next time. */
  if (pages == copied) atomic_store(&store->log_pages, 0);
  dibs__side_write_end(store->side);
}

/* The last process to leave takes the log along when it has grown: whoever comes next and is alone reads all of it
 * before anything else, and a passive checkpoint would be forgotten by then.  SQLite knows whether it is the last. */
void dibs__lite_checkpoint_last(struct dibs__lite *store) {
  link_t *const links[] = {store->spare, store->tidier};
  if (atomic_load(&store->log_pages) < DIBS__LITE_LOG_LAST) return;
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
    if (links[i]) sqlite3_db_config(links[i]->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
}

/* ---- Sweeping ---- */

struct found {
  struct dibs__lite_place at; /* the last that was looked at */
  size_t looked, count;
  struct dibs__lite_place names[SWEEP_NAMES];
};

struct dead {
  uint64_t from; /* tickets after this one were not looked at */
  size_t count;
  struct dibs__sql_waiter waiters[SWEEP_NAMES];
};

/* What there is to look after behind the last name looked at.  Reads alone, so that writers need not wait: whatever it
 * finds is decided anew when it is looked after. */
static step find(link_t *l, enum dibs__lite_text text, int64_t argument, struct found *found) {
  struct dibs__lite_place *at = &found->at;
  bool row;
  step end;
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (!st) return DIBS__SQL_BROKE;
  struct dibs__lite_place from = *at;
  found->count = found->looked = 0;
  sqlite3_bind_int64(st, 1, from.bucket);
  sqlite3_bind_text(st, 2, from.text, (int)from.len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, argument);
  for (end = dibs__lite_row(l, st, &row); row; end = dibs__lite_row(l, st, &row)) {
    dibs__str name = dibs__lite_read_text(st, 1);
    found->looked++;
    if (name.len > DIBS_NAME_MAX) continue;
    at->bucket = (uint16_t)sqlite3_column_int64(st, 0);
    at->len = name.len;
    memcpy(at->text, name.p, name.len);
    if (found->count < SWEEP_NAMES && sqlite3_column_int(st, 2)) found->names[found->count++] = *at;
  }
  return end;
}

/* Some of the name's waiters that are gone, wherever they stand. */
static step find_dead(struct dibs__sql *s, const struct dibs__sql_head *h, struct dead *dead) {
  link_t *l = s->to;
  bool row;
  step end;
  sqlite3_stmt *st = dibs__lite_about(l, DIBS__LITE_WAITERS, h);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_int64(st, 3, (sqlite3_int64)dead->from);
  dead->count = 0;
  for (end = dibs__lite_row(l, st, &row); row; end = dibs__lite_row(l, st, &row)) {
    struct dibs__sql_waiter *w = &dead->waiters[dead->count];
    dibs__lite_read_waiter(st, w);
    dead->from = w->ticket;
    if (s->alive(l, w->session)) continue;
    if (++dead->count < SWEEP_NAMES) continue;
    sqlite3_reset(st);
    break;
  }
  return end;
}

/* Those at the front are passed over anyway; this is also for who is offered, fell asleep or stands behind. */
static step drop_dead(struct dibs__sql *s, struct dibs__sql_head *h) {
  struct dead dead = {.from = 0};
  bool some = false;
  step end = DIBS__SQL_FINE;
  do {
    if (h->waiters) end = find_dead(s, h, &dead);
    for (size_t i = 0; i < dead.count && end == DIBS__SQL_FINE; i++) end = dibs__sql_waiter_out(s, h, &dead.waiters[i]);
    some = some || dead.count > 0;
  } while (end == DIBS__SQL_FINE && dead.count == SWEEP_NAMES && h->waiters);
  return end == DIBS__SQL_FINE && some ? dibs__sql_pass_on(s, h) : end;
}

static step sweep_names(struct dibs__sql *s, const struct found *found) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < found->count && end == DIBS__SQL_FINE; i++) {
    const struct dibs__lite_place *n = &found->names[i];
    struct dibs__sql_head h = {.bucket = n->bucket, .name = dibs__str_of(n->text, n->len)};
    end = dibs__sql_enter(s, &h);
    if (end == DIBS__SQL_FINE && h.exists) end = drop_dead(s, &h);
    if (end == DIBS__SQL_FINE) end = dibs__sql_leave(s, &h);
  }
  return end;
}

static step forget_old_breaks(link_t *l, int64_t now) {
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_BREAKS_OLD);
  if (st) sqlite3_bind_int64(st, 1, now - DIBS__SQL_BREAK_KEEP_MS);
  return dibs__lite_do(l, st);
}

static bool alive_but_us(void *to, uint64_t session) {
  struct dibs__side *side = ((link_t *)to)->store->side;
  return session != dibs__side_session(side) && dibs__side_alive(side, session);
}

/* What was found, in a transaction.  `leaving`: it is our own waiters that go. */
static step sweep_found(link_t *l, bool leaving, const struct found *found) {
  bool unsure;
  step end = dibs__lite_begin(l);
  if (end != DIBS__SQL_FINE) return end;
  int64_t now = dibs__lite_clock(l->store);
  struct dibs__sql s = dibs__lite_sql(l, now);
  if (leaving)
    s.alive = alive_but_us;
  else
    end = forget_old_breaks(l, now);
  if (end == DIBS__SQL_FINE) end = sweep_names(&s, found);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  for (size_t i = 0; i < l->hint_count; i++) dibs__side_post(l->store->side, l->hints[i].session, &l->hints[i].event);
  l->hint_count = 0;
  return end;
}

static step sweep_step(link_t *l, bool leaving, bool first, struct found *found) {
  struct dibs__side *side = l->store->side;
  step end;
  l->by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  if (leaving)
    end = find(l, DIBS__LITE_NAMES_OF, (int64_t)dibs__side_session(side), found);
  else
    end = find(l, DIBS__LITE_NAMES_FROM, dibs__lite_clock(l->store) - SWEEP_AGE_MS, found);
  if (end != DIBS__SQL_FINE || (found->count == 0 && !first)) return end;
  if (!dibs__side_write_begin(side, l->by)) return DIBS__SQL_BROKE;
  end = sweep_found(l, leaving, found);
  dibs__side_write_end(side);
  return end;
}

static void sweep(struct dibs__lite *store) {
  link_t *l = tidier(store);
  struct found found = {.at = store->swept_to};
  step end = l ? DIBS__SQL_FINE : DIBS__SQL_BROKE;
  for (int i = 0; i < SWEEP_STEPS && end == DIBS__SQL_FINE; i++) {
    end = sweep_step(l, false, i == 0, &found);
    if (found.looked < SWEEP_NAMES) found.at = (struct dibs__lite_place){.len = 0}; /* that was all: from the first */
    if (found.looked < SWEEP_NAMES) break;
  }
  store->swept_to = found.at;
  if (l && end == DIBS__SQL_FINE) dibs__lite_sweep_guarded(l);
  if (!l || !dibs__lite_stuck(l)) return;
  dibs__lite_link_close(l);
  store->tidier = NULL;
}

void dibs__lite_leave(struct dibs__lite *store) {
  if (!atomic_load(&store->queued)) return;
  link_t *l = store->spare ? store->spare : tidier(store);
  struct found found = {.at = {.len = 0}};
  step end = l ? DIBS__SQL_FINE : DIBS__SQL_BROKE;
  do {
    if (end == DIBS__SQL_FINE) end = sweep_step(l, true, false, &found);
  } while (end == DIBS__SQL_FINE && found.looked == SWEEP_NAMES);
}

void dibs__lite_tidy(struct dibs__dstore *base) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  dibs__lite_checkpoint(store);
  int64_t now = dibs__lite_clock(store);
  if (now - store->swept_ms < SWEEP_EVERY_MS) return;
  store->swept_ms = now;
  sweep(store);
}
