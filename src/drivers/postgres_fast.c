/* SPDX-License-Identifier: MIT */
/*
 * Leases that nobody else wants: a statement each for acquires, renewals and releases, in one packet that is one
 * transaction.
 *
 * An acquire's statement raises the buckets' counters, which locks them, and inserts the heads.  That is one statement
 * with one snapshot, and yet sound: the counter is read from the row as it is once it is locked, and whether a name is
 * free is decided by the unique key, which knows no snapshot.  A renewal or release is decided on the head's row as it
 * is once it is locked.  Buckets come before heads, and both are sorted, as everywhere.
 *
 * The mandate of a renewal or release is read without a lock.  One that overtakes a new epoch by so little might have
 * come before it just as well: heads outlive the epochs under which they were granted.
 */
#include "drivers/postgres_parts.h"

#include <stdlib.h>
#include <string.h>

enum { TAKE, KEEP, GIVE, TAKE_MANY, TEXTS, SETS = TAKE_MANY };
_Static_assert((int)TEXTS <= (int)DIBS__PG_FAST_TEXTS, "they have room");

enum { TAKE_COLUMNS = 8, KEEP_COLUMNS = 6, GIVE_COLUMNS = 5, COLUMNS_MOST = TAKE_COLUMNS };

/* $1: the life of the mandates; $2: our session. */
#define OURS                                                                                                           \
  " WHERE d.bucket = r.bucket AND d.name = r.name AND d.place = 0 AND d.id = r.id AND d.until > @now"                  \
  " AND d.granted <= r.fence AND d.first + d.block > r.fence AND d.waiters = 0"                                        \
  " AND EXISTS (SELECT FROM dibs_name b WHERE b.bucket = r.bucket AND b.name = '' AND b.place = 0"                     \
  " AND b.epoch = r.epoch AND b.life = $1 AND b.state @ours)"

/* Names that are held draw no fence: seen by the snapshot, so one that is taken at this moment does. */
#define NOBODY_HAS(q)                                                                                                  \
  " NOT EXISTS (SELECT FROM dibs_name h WHERE h.bucket = " q ".bucket AND h.name = " q ".name AND h.place = 0)"
#define DRAW(of, total)                                                                                                \
  "UPDATE dibs_name d SET seq = d.seq + " total " FROM " of " WHERE d.bucket = " of ".bucket AND d.name = ''"          \
  " AND d.place = 0 AND d.epoch = " of ".epoch AND d.life = $1 AND d.seq <= 4294967295 - " total " AND d.state @ours"
#define INSERT                                                                                                         \
  " INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since,"        \
  " session, owner, mode, slots, holders)"                                                                             \
  " SELECT x.bucket, x.name, 0, x.id, x.now + x.ttl, x.fence, x.fence, x.want, 0, 0, x.ttl, x.now, $2,"                \
  " x.owner, 0, 0, 1 FROM "
#define UNLESS_TAKEN " x ON CONFLICT DO NOTHING RETURNING id, first, until, since"

static const char *const texts[TEXTS] = {
    /* Of buckets that differ. */
    [TAKE] = "WITH r(bucket, epoch, nr, name, id, want, ttl, owner) AS ($rows),"
             " b AS (" DRAW("r", "r.want") " AND" NOBODY_HAS(
                 "r") " RETURNING r.*, (d.epoch << 32) + d.seq - r.want + 1 AS fence)" INSERT
                      "(SELECT b.*, @now AS now FROM b OFFSET 0)" UNLESS_TAKEN,
    [TAKE_MANY] =
        "WITH q(bucket, epoch, nr, name, id, want, ttl, owner) AS ($rows),"
        " r AS (SELECT q.*, sum(q.want::int) OVER (PARTITION BY q.bucket, q.epoch ORDER BY q.nr) AS upto"
        " FROM q WHERE" NOBODY_HAS(
            "q") "),"
                 " t AS (SELECT bucket, epoch, max(upto) AS total FROM r GROUP BY bucket, epoch ORDER BY bucket),"
                 " b AS (" DRAW(
                     "t",
                     "t.total") " RETURNING d.bucket, d.epoch, d.seq - t.total AS drawn)" INSERT
                                "(SELECT r.*, (r.epoch << 32) + b.drawn + r.upto - r.want + 1 AS fence, @now AS now"
                                " FROM b JOIN r ON r.bucket = b.bucket AND r.epoch = b.epoch OFFSET 0)" UNLESS_TAKEN,
    [KEEP] = "WITH r(bucket, epoch, name, id, fence, ttl) AS ($rows)"
             " UPDATE dibs_name d SET until = @now + r.ttl, ttl = r.ttl, session = $2 FROM r" OURS
             " AND d.broken = 0 RETURNING d.id, d.first, d.until, d.until - d.ttl, d.block",
    [GIVE] = "WITH r(bucket, epoch, name, id, fence) AS ($rows)"
             " DELETE FROM dibs_name d USING r" OURS " RETURNING d.id, 0, 0, @now",
};
_Static_assert(DIBS__SEQ_MAX == 4294967295, "as in TAKE");

bool dibs__pg_fast_prepare(struct dibs__pg_place *p, struct dibs__far *store) {
  for (size_t i = 0; i < TEXTS; i++) {
    p->fast[i] = dibs__far_text(store, texts[i]);
    if (!p->fast[i]) return false;
  }
  return true;
}

void dibs__pg_fast_forget(struct dibs__pg_place *p) {
  for (size_t i = 0; i < TEXTS; i++) free(p->fast[i]);
}

/* ---- Putting ---- */

struct set {
  struct dibs__lease_op *ops[DIBS__FAR_BATCH];
  size_t count;
  size_t nth; /* its statement */
};

static uint32_t wanted(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}

static void take_rows(const struct set *set, struct dibs__sql_value *v) {
  for (size_t i = 0; i < set->count; i++, v += TAKE_COLUMNS) {
    const struct dibs__lease_op *op = set->ops[i];
    v[0] = dibs__sql_number(op->op.bucket);
    v[1] = dibs__sql_number(op->op.mandate.epoch);
    v[2] = dibs__sql_number((int64_t)i);
    v[3] = dibs__sql_text(op->name.p, op->name.len);
    v[4] = dibs__sql_bytes(op->id.b, sizeof op->id.b);
    v[5] = dibs__sql_number(wanted(op));
    v[6] = dibs__sql_number(op->ttl_ms);
    v[7] = dibs__sql_text(op->owner.p, op->owner.len);
  }
}

/* They are sorted by bucket. */
static int take_text(const struct set *set) {
  for (size_t i = 1; i < set->count; i++)
    if (set->ops[i - 1]->op.bucket == set->ops[i]->op.bucket) return TAKE_MANY;
  return TAKE;
}

static void grant_rows(const struct set *set, struct dibs__sql_value *v, size_t columns) {
  for (size_t i = 0; i < set->count; i++, v += columns) {
    const struct dibs__lease_op *op = set->ops[i];
    v[0] = dibs__sql_number(op->op.bucket);
    v[1] = dibs__sql_number(op->op.mandate.epoch);
    v[2] = dibs__sql_text(op->name.p, op->name.len);
    v[3] = dibs__sql_bytes(op->id.b, sizeof op->id.b);
    v[4] = dibs__sql_number((int64_t)op->fence.v);
    if (columns == KEEP_COLUMNS) v[5] = dibs__sql_number(op->ttl_ms);
  }
}

static step_t put_set(struct dibs__sql_wire *wire, const char *text, struct set *set, size_t columns,
                      struct dibs__sql_value *rows, const struct dibs__sql_value *values, size_t count) {
  if (set->count == 0) return DIBS__SQL_FINE;
  if (columns == TAKE_COLUMNS)
    take_rows(set, rows);
  else
    grant_rows(set, rows, columns);
  set->nth = wire->put;
  return dibs__pg_put_rows(wire, text, values, count, rows, columns, set->count);
}

/* ---- Answers ---- */

/* The one that the answer's row is about: they mostly come in the order in which they were asked. */
static struct dibs__lease_op *whose(const struct set *set, struct dibs__sql_value id, size_t *from) {
  for (size_t i = 0; i < set->count; i++) {
    size_t at = *from + i < set->count ? *from + i : *from + i - set->count;
    if (id.len != sizeof set->ops[at]->id.b || memcmp(set->ops[at]->id.b, id.p, id.len) != 0) continue;
    *from = at + 1 < set->count ? at + 1 : 0;
    return set->ops[at];
  }
  return NULL;
}

static void answer(const struct dibs__sql_wire *wire, const struct set *set, int kind, int64_t *now) {
  size_t from = 0, rows = set->count ? dibs__pg_rows(wire, set->nth) : 0;
  for (size_t row = 0; row < rows; row++) {
    struct dibs__lease_op *op = whose(set, dibs__pg_cell(wire, set->nth, row, 0, DIBS__SQL_BYTES), &from);
    if (!op) continue;
    op->op.status = DIBS_OK;
    op->waiting = false;
    *now = dibs__sql_cell_number(wire, set->nth, row, 3);
    if (kind == GIVE) continue;
    op->fence = (dibs__fence){(uint64_t)dibs__sql_cell_number(wire, set->nth, row, 1)};
    op->until.ms = dibs__sql_cell_number(wire, set->nth, row, 2);
    op->got_block = kind == TAKE ? wanted(op) : (uint32_t)dibs__sql_cell_number(wire, set->nth, row, 4);
    op->slot = 0;
  }
}

step_t dibs__pg_fast(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session,
                     struct dibs__lease_op *const ops[], size_t count, int64_t *now) {
  const struct dibs__pg_place *p = store->place;
  struct dibs__sql_value few[16 * COLUMNS_MOST], *rows = few;
  struct set sets[SETS];
  for (int kind = TAKE; kind < SETS; kind++) sets[kind].count = 0;
  for (size_t i = 0; i < count; i++) {
    struct set *set = &sets[ops[i]->op.verb == DIBS__ACQUIRE ? TAKE : ops[i]->op.verb == DIBS__RENEW ? KEEP : GIVE];
    set->ops[set->count++] = ops[i];
  }
  if (count > sizeof few / sizeof few[0] / COLUMNS_MOST) {
    rows = malloc(count * COLUMNS_MOST * sizeof *rows);
    if (!rows) return dibs__sql_broke(wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  struct dibs__sql_value values[] = {dibs__sql_bytes(ops[0]->op.mandate.life.b, sizeof ops[0]->op.mandate.life.b),
                                     dibs__sql_number((int64_t)session)};
  step_t end = put_set(wire, p->fast[take_text(&sets[TAKE])], &sets[TAKE], TAKE_COLUMNS, rows, values, 2);
  if (end == DIBS__SQL_FINE) end = put_set(wire, p->fast[KEEP], &sets[KEEP], KEEP_COLUMNS, rows, values, 2);
  if (end == DIBS__SQL_FINE) end = put_set(wire, p->fast[GIVE], &sets[GIVE], GIVE_COLUMNS, rows, values, 1);
  if (end == DIBS__SQL_FINE) end = dibs__pg_go(wire, true);
  for (int kind = TAKE; kind < SETS && end == DIBS__SQL_FINE; kind++) answer(wire, &sets[kind], kind, now);
  if (rows != few) free(rows);
  return end;
}
