/* SPDX-License-Identifier: MIT */
/*
 * Housekeeping, on a connection of its own and off the path of callers.
 *
 * Checkpoints are passive: they wait for nobody and nobody waits for them.  A log that is wholly copied is begun anew
 * by the next writer.  Sweeping goes through the names in small steps, each one place in the writer queue: what time
 * ended long ago goes, and so do waiters whose process is gone.
 */
#include "drivers/sqlite_parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

enum {
  SWEEP_EVERY_MS = 120000,
  SWEEP_STEPS = 16, /* a round; of 64 names each */
  SWEEP_NAMES = 64,
  WRITE_MS = 1000 /* how long a step may wait for its turn */
};
/* What ended less than this ago is left to those who come for the name. */
#define SWEEP_AGE_MS INT64_C(60000)

static link_t *tidier(struct dibs__lite *store) {
  struct dibs__said said;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  if (!store->tidier) (void)dibs__lite_link_open(store, store->path, true, by, &store->tidier, &said);
  if (store->tidier) store->tidier->by = by;
  return store->tidier;
}

/* ---- Checkpoints ---- */

static bool log_is_long(const struct dibs__lite *store) {
  char path[4200];
  struct stat st;
  if (snprintf(path, sizeof path, "%s-wal", store->path) >= (int)sizeof path) return false;
  return stat(path, &st) == 0 && st.st_size >= (off_t)DIBS__LITE_WAL_PAGES * DIBS__LITE_PAGE;
}

void dibs__lite_checkpoint(struct dibs__lite *store) {
  int pages, copied;
  /* The file does not shrink when the log begins anew, so this may be once too often; it is cheap then. */
  if (!log_is_long(store)) return;
  link_t *l = tidier(store);
  if (l) sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
}

/* ---- Sweeping ---- */

struct found {
  size_t count;
  struct {
    uint16_t bucket;
    uint32_t len;
    char text[DIBS_NAME_MAX];
  } names[SWEEP_NAMES];
};

static step find(link_t *l, int64_t now, struct found *found) {
  struct dibs__lite *store = l->store;
  bool row;
  step end;
  found->count = 0;
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_NAMES_FROM);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_int64(st, 1, store->sweep_bucket);
  sqlite3_bind_text(st, 2, store->sweep_name, (int)store->sweep_len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, now - SWEEP_AGE_MS);
  for (end = dibs__lite_row(l, st, &row); row; end = dibs__lite_row(l, st, &row)) {
    dibs__str name = dibs__lite_read_text(st, 1);
    if (found->count == SWEEP_NAMES || name.len > DIBS_NAME_MAX) continue;
    found->names[found->count].bucket = (uint16_t)sqlite3_column_int64(st, 0);
    found->names[found->count].len = name.len;
    memcpy(found->names[found->count++].text, name.p, name.len);
  }
  return end;
}

/* Those at the front are passed over anyway; this is for who fell asleep or stands behind. */
static step drop_dead(struct dibs__sql *s, struct dibs__sql_head *h) {
  link_t *l = s->to;
  struct dibs__sql_waiter w, dead[SWEEP_NAMES];
  size_t count = 0;
  bool row;
  step end = DIBS__SQL_FINE;
  if (!h->waiters) return end;
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_WAITERS);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_int64(st, 1, h->bucket);
  sqlite3_bind_text(st, 2, h->name.p, (int)h->name.len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, 0);
  for (end = dibs__lite_row(l, st, &row); row; end = dibs__lite_row(l, st, &row)) {
    dibs__lite_read_waiter(st, &w);
    if (count < SWEEP_NAMES && !s->alive(l, w.session)) dead[count++] = w;
  }
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) end = dibs__sql_waiter_out(s, h, &dead[i]);
  return end == DIBS__SQL_FINE && count ? dibs__sql_pass_on(s, h) : end;
}

static step sweep_names(link_t *l, int64_t now, const struct found *found) {
  struct dibs__sql s = dibs__lite_sql(l, now);
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < found->count && end == DIBS__SQL_FINE; i++) {
    struct dibs__sql_head h = {.bucket = found->names[i].bucket,
                               .name = dibs__str_of(found->names[i].text, found->names[i].len)};
    end = dibs__sql_enter(&s, &h);
    if (end == DIBS__SQL_FINE && h.exists) end = drop_dead(&s, &h);
    if (end == DIBS__SQL_FINE) end = dibs__sql_leave(&s, &h);
  }
  return end;
}

/* One step under the writer queue.  *more: there may be names behind these. */
static step sweep_step(link_t *l, struct found *found) {
  struct dibs__lite *store = l->store;
  bool unsure;
  step end = dibs__lite_begin(l);
  if (end != DIBS__SQL_FINE) return end;
  int64_t now = dibs__lite_clock(store);
  end = find(l, now, found);
  if (end == DIBS__SQL_FINE) end = sweep_names(l, now, found);
  sqlite3_stmt *old = dibs__lite_ready(l, DIBS__LITE_BREAKS_OLD);
  if (old) sqlite3_bind_int64(old, 1, now - DIBS__SQL_BREAK_KEEP_MS);
  if (end == DIBS__SQL_FINE) end = dibs__lite_do(l, old);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) return end;
  for (size_t i = 0; i < l->hint_count; i++) dibs__side_post(store->side, l->hints[i].session, &l->hints[i].event);
  l->hint_count = 0;
  return end;
}

static void sweep(struct dibs__lite *store) {
  struct found found;
  link_t *l = tidier(store);
  for (int i = 0; l && i < SWEEP_STEPS; i++) {
    if (!dibs__side_write_begin(store->side, l->by)) return;
    step end = sweep_step(l, &found);
    if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
    dibs__side_write_end(store->side);
    store->sweep_bucket = 0;
    store->sweep_len = 0;
    if (end != DIBS__SQL_FINE || found.count < SWEEP_NAMES) return;
    store->sweep_bucket = found.names[found.count - 1].bucket;
    store->sweep_len = found.names[found.count - 1].len;
    memcpy(store->sweep_name, found.names[found.count - 1].text, store->sweep_len);
    l->by = dibs__tick_add_ms(dibs__tick_now(), WRITE_MS);
  }
}

void dibs__lite_tidy(struct dibs__dstore *base) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  dibs__tick now = dibs__tick_now();
  dibs__lite_checkpoint(store);
  if (dibs__tick_before(now, dibs__tick_add_ms(store->swept, SWEEP_EVERY_MS))) return;
  store->swept = now;
  sweep(store);
}
