/* SPDX-License-Identifier: MIT */
/*
 * Incarnations: one life of the store's memory.
 *
 * A new one begins when the database may not be the one that granted last: another boot (the log is not pressed to
 * disk at each grant), another file or machine (a copy), or fences below those that the side file has seen (an older
 * file put back).  Then everything that was granted, waited for or broken is forgotten, since it was another time
 * line, and every bucket begins an epoch above all that anybody has seen.  But one that is served for an anchor
 * elsewhere begins none: what was installed in it is void, and the anchor's clients are told so.
 *
 * Order of writing: database (pressed to disk), then the side file.  A crash in between leaves a database whose life
 * the side file does not know, and the next opener begins one more.
 */
#include "drivers/sqlite_parts.h"

#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

step dibs__lite_meta_load(link_t *l, struct dibs__lite_meta *meta) {
  bool found;
  memset(meta, 0, sizeof *meta);
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_META);
  step end = dibs__lite_row(l, st, &found);
  if (end != DIBS__SQL_FINE) return end;
  if (!found) return dibs__lite_wrong(l);
  meta->version = (uint32_t)sqlite3_column_int64(st, 0);
  const void *life = sqlite3_column_blob(st, 1);
  bool whole = life && sqlite3_column_bytes(st, 1) == (int)sizeof meta->life.b;
  if (whole) memcpy(meta->life.b, life, sizeof meta->life.b);
  meta->device = (uint64_t)sqlite3_column_int64(st, 2);
  meta->inode = (uint64_t)sqlite3_column_int64(st, 3);
  dibs__str boot = dibs__lite_read_text(st, 4);
  if (boot.len < sizeof meta->boot) memcpy(meta->boot, boot.p, boot.len);
  sqlite3_reset(st);
  return whole ? DIBS__SQL_FINE : dibs__lite_wrong(l);
}

static step meta_save(link_t *l, const dibs__life *life, uint64_t device, uint64_t inode) {
  char boot[37] = "";
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_META_SET);
  if (!st) return DIBS__SQL_BROKE;
  (void)dibs__boot_id(boot);
  sqlite3_bind_int64(st, 1, DIBS__SQL_SCHEMA);
  sqlite3_bind_blob(st, 2, life->b, sizeof life->b, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, (sqlite3_int64)device);
  sqlite3_bind_int64(st, 4, (sqlite3_int64)inode);
  sqlite3_bind_text(st, 5, boot, -1, SQLITE_STATIC);
  return dibs__lite_do(l, st);
}

step dibs__lite_first_life(link_t *l, uint32_t epoch, uint64_t device, uint64_t inode) {
  dibs__life life;
  dibs__random(&life, sizeof life);
  step end = meta_save(l, &life, device, inode);
  for (int bucket = 0; bucket < DIBS__BUCKETS && end == DIBS__SQL_FINE; bucket++) {
    sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_BUCKET_ADD);
    if (!st) return DIBS__SQL_BROKE;
    sqlite3_bind_int64(st, 1, bucket);
    sqlite3_bind_blob(st, 2, life.b, sizeof life.b, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, epoch);
    end = dibs__lite_do(l, st);
  }
  return end;
}

/* Whatever it knows, also of another life: it is read to be above it. */
static step largest_epoch(link_t *l, uint32_t *epoch) {
  struct dibs__sql_bucket *row;
  *epoch = dibs__side_epoch(l->store->side);
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++) {
    step end = dibs__lite_bucket_get(l, bucket, &row);
    if (end != DIBS__SQL_FINE && end != DIBS__SQL_OTHER) return end;
    if (row->mandate.epoch > *epoch) *epoch = row->mandate.epoch;
    uint32_t marked = dibs__fence_epoch(dibs__side_marked(l->store->side, bucket));
    /* Of an older file: what was installed last is remembered all the same. */
    if (row->served != DIBS__SQL_OWN && marked > row->mandate.epoch) {
      row->mandate.epoch = marked;
      (void)dibs__lite_bucket_put(l, bucket);
    }
    if (marked > *epoch) *epoch = marked;
  }
  return DIBS__SQL_FINE;
}

static step rewrite(link_t *l, const dibs__life *life, uint32_t epoch) {
  step end = dibs__lite_say(l, "DELETE FROM dibs_holder; DELETE FROM dibs_deep; DELETE FROM dibs_break;"
                               "DELETE FROM dibs_name WHERE name <> ''");
  if (end != DIBS__SQL_FINE) return end;
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_BUCKETS_SET);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_blob(st, 1, life->b, sizeof life->b, SQLITE_STATIC);
  sqlite3_bind_int64(st, 2, epoch);
  end = dibs__lite_do(l, st);
  if (end != DIBS__SQL_FINE) return end;
  if (sqlite3_changes(l->db) != DIBS__BUCKETS) return dibs__lite_wrong(l);
  return meta_save(l, life, l->store->device, l->store->inode);
}

/* An epoch goes into the database itself soon: who copies that file alone, without its log, gets it too. */
static void into_the_file(link_t *l) {
  (void)sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

step dibs__lite_new_life(link_t *l) {
  uint32_t epoch;
  dibs__life life;
  bool unsure;
  step end = dibs__lite_full(l, true);
  if (end == DIBS__SQL_FINE) end = dibs__lite_begin(l);
  if (end == DIBS__SQL_FINE) end = largest_epoch(l, &epoch);
  if (end == DIBS__SQL_FINE && epoch >= DIBS__EPOCH_MAX) end = dibs__lite_broke(l, SQLITE_RANGE);
  dibs__random(&life, sizeof life);
  if (end == DIBS__SQL_FINE) end = rewrite(l, &life, epoch + 1);
  memset(l->known, 0, sizeof l->known);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) return end;
  dibs__side_begin(l->store->side, &life, epoch + 1);
  into_the_file(l);
  return DIBS__SQL_FINE;
}

step dibs__lite_next_epoch(link_t *l, uint16_t bucket) {
  struct dibs__sql_bucket *row;
  bool unsure;
  step end = dibs__lite_full(l, true);
  if (end == DIBS__SQL_FINE) end = dibs__lite_begin(l);
  if (end == DIBS__SQL_FINE) end = dibs__lite_bucket_get(l, bucket, &row);
  if (end != DIBS__SQL_FINE) return end;
  if (!dibs__sql_next_epoch(row)) return dibs__lite_broke(l, SQLITE_RANGE);
  end = dibs__lite_bucket_put(l, bucket);
  dibs__fence mark = dibs__fence_make(row->mandate.epoch, row->seq);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) return end;
  dibs__side_mark(l->store->side, bucket, mark, (dibs__when){0});
  into_the_file(l);
  return DIBS__SQL_FINE;
}

/* Is a bucket below what the side file had seen granted before this look at the database began?  Others may grant, and
 * mark it, while we look: what they mark now says nothing about what we see. */
static step below_marks(link_t *l, const dibs__fence marked[DIBS__BUCKETS], bool *below) {
  struct dibs__sql_bucket *row;
  *below = false;
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++) {
    step end = dibs__lite_bucket_get(l, bucket, &row);
    if (end != DIBS__SQL_FINE && end != DIBS__SQL_OTHER) return end;
    if (dibs__fence_below(dibs__fence_make(row->mandate.epoch, row->seq), marked[bucket])) *below = true;
  }
  return DIBS__SQL_FINE;
}

static step is_other(link_t *l, const struct dibs__side_memory *memory, struct dibs__lite_meta *meta, bool *other) {
  char boot[37] = "";
  bool below = false, unsure;
  dibs__fence marked[DIBS__BUCKETS];
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++)
    marked[bucket] = dibs__side_marked(l->store->side, bucket);
  step end = dibs__lite_plain(l, DIBS__LITE_BEGIN_READ);
  if (end == DIBS__SQL_FINE) end = dibs__lite_meta_load(l, meta);
  if (end == DIBS__SQL_FINE) end = below_marks(l, marked, &below);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  memset(l->known, 0, sizeof l->known);
  (void)dibs__boot_id(boot);
  *other = memory->life == DIBS__SIDE_NEW || below ||
           memcmp(meta->life.b, memory->incarnation.b, sizeof meta->life.b) != 0 || meta->device != l->store->device ||
           meta->inode != l->store->inode || strcmp(meta->boot, boot) != 0;
  return end;
}

step dibs__lite_settle_life(link_t *l, bool made, const struct dibs__side_memory *memory) {
  struct dibs__lite_meta meta;
  bool other;
  step end = is_other(l, memory, &meta, &other);
  if (end != DIBS__SQL_FINE) return end;
  if (made) dibs__side_begin(l->store->side, &meta.life, l->buckets[0].mandate.epoch);
  if (made || !other) return DIBS__SQL_FINE;
  /* It would take everybody's leases away, so once more while nobody can grant. */
  if (!dibs__side_write_begin(l->store->side, l->by)) return dibs__lite_broke(l, SQLITE_BUSY);
  end = is_other(l, memory, &meta, &other);
  if (end == DIBS__SQL_FINE && other) end = dibs__lite_new_life(l);
  dibs__side_write_end(l->store->side);
  return end == DIBS__SQL_FINE ? dibs__lite_full(l, false) : end;
}
