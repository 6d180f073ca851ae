/* SPDX-License-Identifier: MIT */
/*
 * The rows of SQLite: its own statements, and the SQLite dialect of src/sql.  Heads, holders, waiters and breaks go
 * over the wire, as on every engine (sql/rows.c); what is on the path of each operation, buckets and records, and the
 * fast statements (run.c) bind and read here.  ?1 is the bucket and ?2 the name wherever a statement needs both.
 */
#include "drivers/sqlite/sqlite_impl.h"

#include <stdlib.h>

#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)

#define OF_NAME " WHERE bucket = ?1 AND name = ?2"
#define OF_HEAD OF_NAME " AND place = 0"
#define HEAD                                                                                                           \
  "id, until, granted, first, block, broken, waiters, ttl, since, session, owner, mode, slots, holders, offers, "      \
  "tickets, front, reach, low_slot, state, due"

#define LAST_BUCKET QUOTED(DIBS__SQLITE_LAST_BUCKET)

const char *const dibs__sqlite_texts[DIBS__SQLITE_TEXTS] = {
    [DIBS__SQLITE_BEGIN] = "BEGIN IMMEDIATE",
    [DIBS__SQLITE_BEGIN_READ] = "BEGIN",
    [DIBS__SQLITE_COMMIT] = "COMMIT",
    [DIBS__SQLITE_ROLLBACK] = "ROLLBACK",
    [DIBS__SQLITE_SAVE] = "SAVEPOINT dibs",
    [DIBS__SQLITE_SAVE_UNDO] = "ROLLBACK TO dibs",
    [DIBS__SQLITE_SAVE_END] = "RELEASE dibs",

    [DIBS__SQLITE_APPLICATION_ID] = "PRAGMA application_id",
    [DIBS__SQLITE_USER_VERSION] = "PRAGMA user_version",
    [DIBS__SQLITE_META] = "SELECT version, life, device, inode, boot FROM dibs_meta WHERE one = 1",
    [DIBS__SQLITE_META_SET] = "INSERT OR REPLACE INTO dibs_meta (one, version, life, device, inode, boot)"
                              " VALUES (1, ?1, ?2, ?3, ?4, ?5)",
    [DIBS__SQLITE_BUCKET] =
        "SELECT life, epoch, seq, state FROM dibs_name WHERE bucket = ?1 AND name = '' AND place = 0",
    [DIBS__SQLITE_BUCKET_SET] =
        "UPDATE dibs_name SET epoch = ?2, seq = ?3 WHERE bucket = ?1 AND name = '' AND place = 0",
    /* DIBS__SQL_VOID */
    [DIBS__SQLITE_BUCKETS_SET] =
        "UPDATE dibs_name SET life = ?1, epoch = CASE WHEN state IS NULL THEN ?2 ELSE epoch END,"
        " seq = CASE WHEN seq > 0 THEN 1 ELSE 0 END,"
        " state = CASE WHEN state IS NULL THEN NULL ELSE 2 END WHERE name = ''",

    /* One statement does everything, or nothing.  (Two for KEEP: RETURNING costs SQLite more than a second
     * statement.) */
    [DIBS__SQLITE_TAKE] =
        "INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl,"
        " since, session, owner, mode, slots, holders)"
        " VALUES (?1, ?2, 0, ?3, ?4, ?5, ?5, ?6, 0, 0, ?7, ?8, ?9, ?10, 0, 0, 1) ON CONFLICT DO NOTHING",
    [DIBS__SQLITE_KEPT] = "SELECT first, block FROM dibs_name" OF_HEAD
                          " AND id = ?3 AND until > ?4 AND granted <= ?5 AND first + block > ?5 AND broken = 0"
                          " AND waiters = 0",
    [DIBS__SQLITE_KEEP] = "UPDATE dibs_name SET until = ?3, ttl = ?4, session = ?5" OF_HEAD,
    [DIBS__SQLITE_GIVE] = "DELETE FROM dibs_name" OF_HEAD
                          " AND id = ?3 AND until > ?4 AND granted <= ?5 AND first + block > ?5 AND waiters = 0",

    [DIBS__SQLITE_RECORD_SEAL] = "INSERT INTO dibs_record (name, fence, digest, version) VALUES (?1, ?2, ?3, 0)"
                                 " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, digest = excluded.digest",
    [DIBS__SQLITE_RECORD_SAVE] =
        "INSERT INTO dibs_record (name, fence, digest, version, data) VALUES (?1, ?2, ?3, ?4, ?5)"
        " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, digest = excluded.digest,"
        " version = excluded.version, data = excluded.data",

    /* The first names: of each bucket so many, because names are in order within a bucket only.  A page of 100,000
     * names takes 7 ms; to sort them all took 140. */
    [DIBS__SQLITE_NAMES_FIRST] =
        "WITH RECURSIVE b (nr) AS (VALUES (0) UNION ALL SELECT nr + 1 FROM b WHERE nr < " LAST_BUCKET "),"
        " page (of, named) AS (SELECT bucket, name FROM b CROSS JOIN dibs_name WHERE bucket = b.nr AND place = 0"
        " AND name IN (SELECT d.name FROM dibs_name d WHERE d.bucket = b.nr AND d.name >= ?1 AND d.name <> ''"
        " AND d.place = 0 ORDER BY d.name LIMIT ?2) ORDER BY name LIMIT ?2) SELECT " HEAD ", bucket, name"
        " FROM page CROSS JOIN dibs_name WHERE bucket = of AND name = named AND place = 0 ORDER BY name",
    [DIBS__SQLITE_NAMES] = "SELECT " HEAD ", bucket, name FROM dibs_name WHERE name >= ?1 AND name <> '' AND place = 0"
                           " ORDER BY name",
    /* Which of them may time or a gone process have changed? */
    [DIBS__SQLITE_NAMES_FROM] = "SELECT bucket, name, until <= ?3 OR (due > 0 AND due <= ?3) OR waiters > 0"
                                " FROM dibs_name WHERE (bucket, name) > (?1, ?2) AND place = 0"
                                " ORDER BY bucket, name LIMIT " QUOTED(DIBS__SQLITE_SWEEP),
    [DIBS__SQLITE_NAMES_OF] = "SELECT DISTINCT bucket, name, 1 FROM dibs_name WHERE (bucket, name) > (?1, ?2)"
                              " AND place > 0 AND session = ?3 ORDER BY bucket, name LIMIT " QUOTED(DIBS__SQLITE_SWEEP),
};

/* ---- Rows to structs and back ---- */

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sqlite_link link_t;
typedef struct dibs__sql_head head;

dibs__str dibs__sqlite_read_text(sqlite3_stmt *st, int column) {
  const char *p = sqlite3_column_blob(st, column);
  return (dibs__str){p ? p : "", (uint32_t)sqlite3_column_bytes(st, column)};
}

/* ---- Buckets ---- */

/* Below what was granted: the file was replaced by an older one. */
static sql_rc same_memory(const link_t *l, uint16_t bucket) {
  const struct dibs__sql_bucket *b = &l->buckets[bucket];
  bool below = dibs__fence_below(dibs__sql_last(b), dibs__side_marked(l->store->side, bucket));
  return below ? DIBS__SQL_OTHER : DIBS__SQL_OK;
}

sql_rc dibs__sqlite_bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row) {
  link_t *l = to;
  struct dibs__sql_bucket *b = &l->buckets[bucket];
  bool found;
  *row = b;
  if (l->known[bucket / 64] >> bucket % 64 & 1) return same_memory(l, bucket);
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_BUCKET);
  if (!st) return DIBS__SQL_FAILED;
  dibs__sqlite_bind_number(st, 1, bucket);
  sql_rc end = dibs__sqlite_row(l, st, &found);
  if (end != DIBS__SQL_OK) return end;
  if (!found) return dibs__sqlite_wrong(l);
  dibs__sqlite_read_bytes(st, 0, b->mandate.incarnation.b, sizeof b->mandate.incarnation.b);
  b->mandate.epoch = dibs__sqlite_small(st, 1);
  b->seq = dibs__sqlite_small(st, 2);
  b->served = (enum dibs__sql_served)dibs__sqlite_small(st, 3);
  bool whole = sqlite3_column_bytes(st, 0) == (int)sizeof b->mandate.incarnation.b && b->mandate.epoch > 0 &&
               b->mandate.epoch <= DIBS__EPOCH_MAX && sqlite3_column_int64(st, 1) <= DIBS__EPOCH_MAX &&
               b->served <= DIBS__SQL_LEFT;
  sqlite3_reset(st);
  if (!whole) return dibs__sqlite_wrong(l);
  l->known[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return same_memory(l, bucket);
}

sql_rc dibs__sqlite_bucket_put(void *to, uint16_t bucket) {
  link_t *l = to;
  l->changed[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_OK;
}

static sql_rc bucket_serve(void *to, uint16_t bucket) {
  const link_t *l = to;
  sqlite3_stmt *st = dibs__sqlite_ready(to, DIBS__ROWS_BUCKET_SERVE);
  if (!st) return DIBS__SQL_FAILED;
  dibs__sqlite_bind_number(st, 1, bucket);
  dibs__sqlite_bind_number(st, 2, l->buckets[bucket].served);
  return dibs__sqlite_do(to, st);
}

/* ---- Heads ---- */

bool dibs__sqlite_read_head(sqlite3_stmt *st, head *h) {
  h->waiters = dibs__sqlite_small(st, 6);
  h->mode = dibs__sqlite_small(st, 11);
  h->slots = dibs__sqlite_small(st, 12);
  h->holders = dibs__sqlite_small(st, 13);
  h->offers = dibs__sqlite_small(st, 14);
  h->tickets = dibs__sqlite_number(st, 15);
  h->front = dibs__sqlite_number(st, 16);
  h->reach = dibs__sqlite_number(st, 17);
  h->low_slot = dibs__sqlite_small(st, 18);
  h->deep = dibs__sqlite_small(st, 19) != 0;
  h->due = sqlite3_column_int64(st, 20);
  if (h->mode > DIBS_COUNTED || h->offers > h->waiters) return false;
  if (!dibs__sql_inline(h)) return true;
  if (h->holders != 1 || sqlite3_column_bytes(st, 0) != (int)sizeof h->x.id.b) return false;
  dibs__sqlite_read_bytes(st, 0, h->x.id.b, sizeof h->x.id.b);
  h->x.until = sqlite3_column_int64(st, 1);
  h->x.granted = dibs__sqlite_number(st, 2);
  h->x.first = dibs__sqlite_number(st, 3);
  h->x.block = dibs__sqlite_small(st, 4);
  h->x.broken = dibs__sqlite_small(st, 5) != 0;
  h->x.ttl_ms = dibs__sqlite_small(st, 7);
  h->x.since = sqlite3_column_int64(st, 8);
  h->x.session = dibs__sqlite_number(st, 9);
  h->x.slot = 0;
  dibs__sqlite_read_label(st, 10, &h->x.owner);
  return true;
}

/* The rows are used over the wire from here on: each operation loads its head first. */
static sql_rc head_load(void *to, head *h) {
  link_t *l = to;
  size_t nth;
  if (!dibs__sqlite_wire(l)) return DIBS__SQL_FAILED;
  struct dibs__sql_value v[] = {dibs__sql_number(h->bucket), dibs__sql_text(h->name.p, h->name.len)};
  uint16_t bucket = h->bucket;
  dibs__str name = h->name;
  sql_rc end = dibs__rows_request_first(&l->rows, DIBS__ROWS_HEAD, v, 2, &nth);
  if (end != DIBS__SQL_OK) return end;
  *h = (head){.bucket = bucket, .name = name, .exists = l->rows.wire->engine->rows(l->rows.wire, nth) > 0};
  return !h->exists || dibs__rows_read_head(&l->rows, nth, 0, h) ? DIBS__SQL_OK : dibs__sqlite_wrong(l);
}

/* ---- Waiters ---- */

/* They may be of our own sessions from now on. */
static void note_queue(const link_t *l) {
  atomic_store_explicit(&l->store->queued, true, memory_order_relaxed);
}

static sql_rc waiter_add(void *to, const head *h, const struct dibs__sql_waiter *w) {
  note_queue(to);
  return dibs__rows_waiter_add(to, h, w);
}

static sql_rc waiter_set(void *to, const head *h, const struct dibs__sql_waiter *w) {
  note_queue(to);
  return dibs__rows_waiter_set(to, h, w);
}

static sql_rc waiter_next(void *to, const head *h, struct dibs__sql_waiter *w, bool *found) {
  return dibs__rows_waiter_next_from(to, h, h->front, w, found);
}

/* ---- Records ---- */

static sqlite3_stmt *about_record(link_t *l, unsigned text, dibs__str key) {
  sqlite3_stmt *st = dibs__sqlite_ready(l, text);
  if (st) dibs__sqlite_bind_text(st, 1, key.p, key.len);
  return st;
}

/* The statement stays at its row, whose data the caller reads; record_put and the end of the transaction reset it. */
static sql_rc record_load(void *to, dibs__str key, struct dibs__sql_record *r, bool *found) {
  link_t *l = to;
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__ROWS_RECORD);
  if (st) sqlite3_reset(st);
  st = about_record(l, DIBS__ROWS_RECORD, key);
  sql_rc end = dibs__sqlite_row(l, st, found);
  if (!*found) return end;
  r->fence = dibs__sqlite_number(st, 0);
  r->digest = dibs__sqlite_number(st, 1);
  r->version = dibs__sqlite_number(st, 2);
  r->data = sqlite3_column_blob(st, 3);
  r->len = (uint32_t)sqlite3_column_bytes(st, 3);
  if (r->len && !r->data) return dibs__sqlite_broke(l, SQLITE_NOMEM);
  return end;
}

static sql_rc record_put(void *to, dibs__str key, const struct dibs__sql_record *r, bool data) {
  link_t *l = to;
  sqlite3_reset(l->statements[DIBS__ROWS_RECORD]);
  sqlite3_stmt *st = about_record(l, data ? DIBS__SQLITE_RECORD_SAVE : DIBS__SQLITE_RECORD_SEAL, key);
  if (!st) return DIBS__SQL_FAILED;
  dibs__sqlite_bind_number(st, 2, r->fence);
  dibs__sqlite_bind_number(st, 3, r->digest);
  if (data) {
    dibs__sqlite_bind_number(st, 4, r->version);
    sqlite3_bind_blob(st, 5, r->data ? r->data : "", (int)r->len, SQLITE_STATIC);
  }
  return dibs__sqlite_do(l, st);
}

/* ---- The table ---- */

static sql_rc rows_contradict(void *to) {
  return dibs__sqlite_wrong(to);
}

const struct dibs__sql_rows dibs__sqlite_rows = {
    .wrong = rows_contradict,
    .bucket_get = dibs__sqlite_bucket_get,
    .bucket_put = dibs__sqlite_bucket_put,
    .bucket_serve = bucket_serve,
    .head_load = head_load,
    .head_add = dibs__rows_head_add,
    .head_set = dibs__rows_head_set,
    .head_set_queue = dibs__rows_head_set_queue,
    .head_drop = dibs__rows_head_drop,
    DIBS__ROWS_SHARED,
    .waiter_find = dibs__rows_waiter_find,
    .waiter_next = waiter_next,
    .waiter_offered = dibs__rows_waiter_offered,
    .waiter_add = waiter_add,
    .waiter_set = waiter_set,
    .waiter_drop = dibs__rows_waiter_drop,
    .offers_expire = dibs__rows_offers_expire,
    .offers_first_until = dibs__rows_offers_first_until,
    .record_load = record_load,
    .record_put = record_put,
};
