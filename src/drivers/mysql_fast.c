/* SPDX-License-Identifier: MIT */
/*
 * Leases that nobody else wants: two statements for all acquires of a batch, two for its renewals, one for its
 * releases, in one packet.
 *
 * An acquire's first statement raises the buckets' counters, which locks them, and reads the clock; the second inserts
 * the heads of those buckets that still are under the asked mandate, with the fences that were drawn.  (It reads the
 * buckets without a lock, but those that count are locked by us; a bucket that was under another mandate a moment ago
 * can't have come back to ours.)  Whether a name is free is decided by its unique key.  Buckets come before heads, and
 * both are sorted, as everywhere.
 *
 * Renewals and releases need no transaction of their own: each row is decided by itself, as it is once it is locked.
 * Which renewals hit is read afterwards; what happens between the two makes one at most look as if it had not, and then
 * it is asked again on rows.
 */
#include "base/text.h"
#include "drivers/mysql_parts.h"

#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_buffer buffer;
typedef struct dibs__lease_op lease;

#define CLOCK "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)"

struct set {
  lease *const *ops; /* all of the batch */
  size_t count;      /* of the batch */
  uint16_t verb;
  size_t some; /* how many have this verb */
  size_t nth;  /* the statement that answers */
};

struct packet {
  const struct dibs__far *store;
  struct dibs__sql_wire *wire;
  uint64_t session;
  buffer b;
};

/* ---- Text ---- */

static bool text(buffer *b, const char *p) {
  return dibs__my_add(b, p, strlen(p));
}

static bool number(buffer *b, int64_t n) {
  struct dibs__sql_value v = dibs__sql_number(n);
  return dibs__my_add_value(b, &v);
}

static bool bytes(buffer *b, const void *p, size_t len) {
  struct dibs__sql_value v = dibs__sql_bytes(p, len);
  return dibs__my_add_value(b, &v);
}

static bool str(buffer *b, dibs__str s) {
  struct dibs__sql_value v = dibs__sql_text(s.p, s.len);
  return dibs__my_add_value(b, &v);
}

/* The table of names; with our prefix. */
static bool names(struct packet *p) {
  const struct dibs__my_place *place = p->store->place;
  return text(&p->b, place->texts[DIBS__MY_NAME]);
}

static step put(struct packet *p, bool fine) {
  fine = fine && dibs__my_add(&p->b, "", 1);
  step end = fine ? dibs__my_put(p->wire, p->b.p, NULL, 0)
                  : dibs__my_broke(dibs__my(p->wire), DIBS__SQL_NO_SPACE, "out of memory");
  p->b.len = 0;
  return end;
}

static lease *nth_of(const struct set *set, size_t *at) {
  while (*at < set->count && set->ops[*at]->op.verb != set->verb) ++*at;
  return *at < set->count ? set->ops[(*at)++] : NULL;
}

static uint32_t wanted(const lease *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}

/* ---- Acquires ---- */

/* "bucket = 7 AND epoch = 2", and how many fences it is to give. */
static bool each_bucket(struct packet *p, const struct set *set, bool counts) {
  bool fine = true;
  size_t at = 0;
  const lease *op = nth_of(set, &at);
  for (const char *between = ""; op && fine; between = counts ? "" : " OR ") {
    int64_t total = 0;
    const lease *first = op;
    for (; op && op->op.bucket == first->op.bucket; op = nth_of(set, &at)) total += wanted(op);
    if (counts)
      fine = text(&p->b, " WHEN ") && number(&p->b, first->op.bucket) && text(&p->b, " THEN ") && number(&p->b, total);
    else
      fine = text(&p->b, between) && text(&p->b, "(bucket = ") && number(&p->b, first->op.bucket) &&
             text(&p->b, " AND epoch = ") && number(&p->b, first->op.mandate.epoch) && text(&p->b, ")");
  }
  return fine;
}

/* A counter never goes beyond its end: one that reaches it draws no more, and the next epoch is made on rows. */
static step put_draw(struct packet *p, const struct set *set, const dibs__life *life) {
  bool fine =
      text(&p->b, "UPDATE ") && names(p) && text(&p->b, " FORCE INDEX (PRIMARY) SET seq = LEAST(seq + CASE bucket") &&
      each_bucket(p, set, true) && text(&p->b, " END, ") && number(&p->b, DIBS__SEQ_MAX) &&
      text(&p->b, ") + 0 * (@dibs_now := " CLOCK ") WHERE name = '' AND place = 0 AND life = ") &&
      bytes(&p->b, life->b, sizeof life->b) && text(&p->b, " AND (") && each_bucket(p, set, false) && text(&p->b, ")");
  return put(p, fine);
}

/* Columns: bucket, name, id, `adds` (what the counter lacks to the fence), block, ttl, owner, epoch */
static bool take_rows(struct packet *p, const struct set *set) {
  size_t at = 0, ahead = 0;
  bool fine = true;
  const lease *before = NULL;
  int64_t left = 0;
  for (const lease *op; fine && (op = nth_of(set, &at)); before = op) {
    if (!before || before->op.bucket != op->op.bucket) {
      const lease *next = op;
      ahead = at;
      for (left = 0; next && next->op.bucket == op->op.bucket; next = nth_of(set, &ahead)) left += wanted(next);
    }
    int64_t adds = (int64_t)dibs__fence_make(op->op.mandate.epoch, 0).v - left + 1;
    left -= wanted(op);
    buffer *b = &p->b;
    fine = text(b, before ? ",(" : "(") && number(b, op->op.bucket) && text(b, ",") && str(b, op->name) &&
           text(b, ",") && bytes(b, op->id.b, sizeof op->id.b) && text(b, ",") && number(b, adds) && text(b, ",") &&
           number(b, wanted(op)) && text(b, ",") && number(b, op->ttl_ms) && text(b, ",") && str(b, op->owner) &&
           text(b, ",") && number(b, op->op.mandate.epoch) && text(b, ")");
  }
  return fine;
}

static step put_take(struct packet *p, struct set *set, const dibs__life *life) {
  buffer *b = &p->b;
  step end = put_draw(p, set, life);
  if (end != DIBS__SQL_FINE) return end;
  bool fine =
      text(b, "INSERT INTO ") && names(p) &&
      text(b, " (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since, session, owner,"
              " mode, slots, holders) WITH r(bucket, name, id, adds, block, ttl, owner, epoch) AS (VALUES ") &&
      take_rows(p, set) &&
      text(b, ") SELECT r.bucket, r.name, 0, r.id, @dibs_now + r.ttl, b.seq + r.adds, b.seq + r.adds, r.block, 0, 0,"
              " r.ttl, @dibs_now, ") &&
      number(b, (int64_t)p->session) && text(b, ", r.owner, 0, 0, 1 FROM r STRAIGHT_JOIN ") && names(p) &&
      text(b, " b ON b.bucket = r.bucket AND b.name = '' AND b.place = 0 AND b.epoch = r.epoch AND b.life = ") &&
      bytes(b, life->b, sizeof life->b) && text(b, " AND b.seq < ") && number(b, DIBS__SEQ_MAX) &&
      /* The row that is there already is given back as it is, and seen by its `since` not to be ours. */
      text(b, " ON DUPLICATE KEY UPDATE place = VALUES(place) RETURNING id, first, until, since, block, @dibs_now");
  set->nth = p->wire->put;
  return put(p, fine);
}

/* ---- Renewals, releases ---- */

#define OURS                                                                                                           \
  " d.bucket = r.bucket AND d.name = r.name AND d.place = 0 AND d.id = r.id AND d.granted <= r.fence"                  \
  " AND d.first + d.block > r.fence AND d.waiters = 0 AND d.broken = 0"

static bool under(struct packet *p, const char *bucket, const char *epoch, const dibs__life *life) {
  return text(&p->b, " AND EXISTS (SELECT 1 FROM ") && names(p) && text(&p->b, " b WHERE b.bucket = ") &&
         text(&p->b, bucket) && text(&p->b, " AND b.name = '' AND b.place = 0 AND b.epoch = ") && text(&p->b, epoch) &&
         text(&p->b, " AND b.life = ") && bytes(&p->b, life->b, sizeof life->b) && text(&p->b, ")");
}

/* " JOIN (WITH r(...) AS (VALUES ...) SELECT * FROM r) r ON ..." */
static bool keep_rows(struct packet *p, const struct set *set) {
  size_t at = 0;
  buffer *b = &p->b;
  bool fine = text(b, "(WITH r(bucket, name, id, fence, ttl, epoch) AS (VALUES ");
  for (const lease *op, *before = NULL; fine && (op = nth_of(set, &at)); before = op)
    fine = text(b, before ? ",(" : "(") && number(b, op->op.bucket) && text(b, ",") && str(b, op->name) &&
           text(b, ",") && bytes(b, op->id.b, sizeof op->id.b) && text(b, ",") && number(b, (int64_t)op->fence.v) &&
           text(b, ",") && number(b, op->ttl_ms) && text(b, ",") && number(b, op->op.mandate.epoch) && text(b, ")");
  return fine && text(b, ") SELECT * FROM r) r STRAIGHT_JOIN ") && names(p) && text(b, " d");
}

static step put_keep(struct packet *p, struct set *set, const dibs__life *life) {
  buffer *b = &p->b;
  step end = put(p, text(b, "SET @dibs_now = " CLOCK));
  if (end == DIBS__SQL_FINE)
    end = put(p, text(b, "UPDATE ") && keep_rows(p, set) &&
                     text(b, " SET d.until = @dibs_now + r.ttl, d.ttl = r.ttl, d.session = ") &&
                     number(b, (int64_t)p->session) && text(b, " WHERE" OURS " AND d.until > @dibs_now") &&
                     under(p, "r.bucket", "r.epoch", life));
  set->nth = p->wire->put;
  if (end == DIBS__SQL_FINE)
    end = put(p, text(b, "SELECT d.id, d.first, d.until, d.until - d.ttl, d.block, @dibs_now FROM ") &&
                     keep_rows(p, set) && text(b, " WHERE" OURS " AND d.until = @dibs_now + r.ttl AND d.session = ") &&
                     number(b, (int64_t)p->session));
  return end;
}

static step put_give(struct packet *p, struct set *set, const dibs__life *life) {
  const struct dibs__my_place *place = p->store->place;
  buffer *b = &p->b;
  size_t at = 0;
  bool fine = text(b, "DELETE FROM ") && names(p) && text(b, " WHERE place = 0 AND waiters = 0 AND until > ") &&
              text(b, CLOCK) && text(b, " AND (");
  for (const lease *op, *before = NULL; fine && (op = nth_of(set, &at)); before = op) {
    char epoch[16];
    struct dibs__text t;
    dibs__text_begin(&t, epoch, sizeof epoch);
    dibs__text_addf(&t, "%u", op->op.mandate.epoch);
    fine = text(b, before ? " OR (bucket = " : "(bucket = ") && number(b, op->op.bucket) && text(b, " AND name = ") &&
           str(b, op->name) && text(b, " AND id = ") && bytes(b, op->id.b, sizeof op->id.b) &&
           text(b, " AND granted <= ") && number(b, (int64_t)op->fence.v) && text(b, " AND first + block > ") &&
           number(b, (int64_t)op->fence.v) && under(p, place->texts[DIBS__MY_NAME_BUCKET], epoch, life) && text(b, ")");
  }
  fine = fine && text(b, ") RETURNING id, 0, 0, 0, 0, ") && text(b, CLOCK);
  set->nth = p->wire->put;
  return put(p, fine);
}

/* ---- Answers ---- */

/* They mostly come in the order in which they were asked. */
static lease *whose(const struct set *set, struct dibs__sql_value id, size_t *from) {
  for (size_t i = 0; i < set->count; i++) {
    size_t at = *from + i < set->count ? *from + i : *from + i - set->count;
    lease *op = set->ops[at];
    if (op->op.verb != set->verb || id.len != sizeof op->id.b || memcmp(op->id.b, id.p, id.len) != 0) continue;
    *from = at + 1 < set->count ? at + 1 : 0;
    return op;
  }
  return NULL;
}

static void answer(struct dibs__sql_wire *wire, const struct set *set, int64_t *now) {
  size_t from = 0, rows = set->some ? dibs__my_rows(wire, set->nth) : 0;
  for (size_t row = 0; row < rows; row++) {
    lease *op = whose(set, dibs__my_cell(wire, set->nth, row, 0, DIBS__SQL_BYTES), &from);
    int64_t clock = dibs__sql_cell_number(wire, set->nth, row, 5);
    int64_t until = dibs__sql_cell_number(wire, set->nth, row, 2);
    if (!op) continue;
    if (op->op.verb == DIBS__ACQUIRE &&
        (dibs__sql_cell_number(wire, set->nth, row, 3) != clock || until != clock + op->ttl_ms))
      continue; /* it was there before */
    *now = clock;
    op->op.status = DIBS_OK;
    op->waiting = false;
    if (op->op.verb == DIBS__RELEASE) continue;
    op->fence = (dibs__fence){(uint64_t)dibs__sql_cell_number(wire, set->nth, row, 1)};
    op->until.ms = until;
    op->got_block = (uint32_t)dibs__sql_cell_number(wire, set->nth, row, 4);
    op->slot = 0;
  }
}

step dibs__my_fast(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session, lease *const ops[],
                   size_t count, int64_t *now) {
  struct packet p = {.store = store, .wire = wire, .session = session};
  struct set sets[] = {{.verb = DIBS__ACQUIRE}, {.verb = DIBS__RENEW}, {.verb = DIBS__RELEASE}};
  const dibs__life *life = &ops[0]->op.mandate.life;
  step end = DIBS__SQL_FINE;
  if (!dibs__my(wire)->maria) return DIBS__SQL_FINE;
  for (size_t i = 0; i < 3; i++) {
    sets[i].ops = ops;
    sets[i].count = count;
    for (size_t j = 0; j < count; j++) sets[i].some += ops[j]->op.verb == sets[i].verb;
  }
  /* Acquires need a transaction; then all is part of it. */
  if (sets[0].some) end = dibs__sql_begin(wire);
  if (end == DIBS__SQL_FINE && sets[0].some) end = put_take(&p, &sets[0], life);
  if (end == DIBS__SQL_FINE && sets[1].some) end = put_keep(&p, &sets[1], life);
  if (end == DIBS__SQL_FINE && sets[2].some) end = put_give(&p, &sets[2], life);
  if (end == DIBS__SQL_FINE && sets[0].some) end = dibs__sql_commit(wire);
  free(p.b.p);
  if (end == DIBS__SQL_FINE) end = dibs__my_go(wire, true);
  for (size_t i = 0; i < 3 && end == DIBS__SQL_FINE; i++) answer(wire, &sets[i], now);
  return end;
}
