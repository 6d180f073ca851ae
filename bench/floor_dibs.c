/* SPDX-License-Identifier: MIT */
/*
 * The statements of dibs without dibs: those that the driver runs for an uncontended exclusive lease, in the same
 * order. The texts are the driver's own, so that the floor follows changes; the tables are those of a store that dibs
 * created.
 */
#include "bench/floor_sqlite.h"
#include "drivers/sqlite/sqlite_impl.h"

#include <stdlib.h>
#include <string.h>

#define NAME "bench/0/0"
#define OWNER "bench@floor:1"

struct own {
  sqlite3_stmt *take, *bucket_set, *give;
  int bucket;
  int64_t fence;
  unsigned char id[16];
};

static bool dibs_open_floor(sqlite3 *db, void **to) {
  struct own *own = calloc(1, sizeof *own);
  *to = own;
  if (!own) return false;
  own->bucket = dibs__bucket(dibs__str_of(NAME, strlen(NAME)));
  own->fence = INT64_C(1) << 40; /* above all granted fences, with as many digits as a real one */
  memset(own->id, 0x5a, sizeof own->id);
  return dibs__floor_prepare(db, dibs__sqlite_texts[DIBS__SQLITE_TAKE], &own->take) &&
         dibs__floor_prepare(db, dibs__sqlite_texts[DIBS__SQLITE_BUCKET_SET], &own->bucket_set) &&
         dibs__floor_prepare(db, dibs__sqlite_texts[DIBS__SQLITE_GIVE], &own->give);
}

static void dibs_close_floor(void *from) {
  struct own *own = from;
  if (!own) return;
  sqlite3_finalize(own->take);
  sqlite3_finalize(own->bucket_set);
  sqlite3_finalize(own->give);
  free(own);
}

static void bind_name(sqlite3_stmt *st, const struct own *own) {
  sqlite3_bind_int(st, 1, own->bucket);
  sqlite3_bind_text(st, 2, NAME, (int)strlen(NAME), SQLITE_STATIC);
  sqlite3_bind_blob(st, 3, own->id, sizeof own->id, SQLITE_STATIC);
}

static bool dibs_acquire_floor(void *from, int64_t now_ms) {
  struct own *own = from;
  own->fence++;
  bind_name(own->take, own);
  sqlite3_bind_int64(own->take, 4, now_ms + 30000);
  sqlite3_bind_int64(own->take, 5, own->fence);
  sqlite3_bind_int64(own->take, 6, 1);
  sqlite3_bind_int64(own->take, 7, 30000);
  sqlite3_bind_int64(own->take, 8, now_ms);
  sqlite3_bind_int64(own->take, 9, 1);
  sqlite3_bind_text(own->take, 10, OWNER, (int)strlen(OWNER), SQLITE_STATIC);
  sqlite3_bind_int(own->bucket_set, 1, own->bucket);
  sqlite3_bind_int64(own->bucket_set, 2, 1);
  sqlite3_bind_int64(own->bucket_set, 3, own->fence & UINT32_MAX);
  return dibs__floor_change(own->take) && dibs__floor_change(own->bucket_set);
}

static bool dibs_release_floor(void *from, int64_t now_ms) {
  struct own *own = from;
  bind_name(own->give, own);
  sqlite3_bind_int64(own->give, 4, now_ms);
  sqlite3_bind_int64(own->give, 5, own->fence);
  return dibs__floor_change(own->give);
}

const struct floor_statements dibs__floor_dibs_statements = {dibs_open_floor, dibs_close_floor, dibs_acquire_floor,
                                                             dibs_release_floor};
