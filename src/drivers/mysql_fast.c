/* SPDX-License-Identifier: MIT */
/*
 * Leases that nobody else wants: a block for all acquires of a batch, three statements for its renewals, one for its
 * releases, in one packet.  When the mandate of one does not stand, nothing is done for any of its verb.
 *
 * Who asks for names that have a head already is told so, and nothing is drawn for them: a try for what is held costs
 * no flush and no fence.  Else the block is a transaction of two statements, and one to the server: it answers with the
 * rows and an end.  Told of each statement, the client wakes for each; that halved the rate of 20 threads on two
 * processors.  Its first raises the buckets' counters, which locks them, and leaves them in variables, with the clock;
 * its second inserts the heads with fences out of these, and fails when a bucket was not found under its mandate or is
 * used up.  Whether a name is free is decided by its unique key.  Buckets come before heads, and both are sorted, as
 * everywhere.  (An INSERT ... SELECT over a table of values and the buckets takes 200 us more of the server's time,
 * however few rows it has: temporary tables.)
 *
 * Renewals and releases need no transaction of their own: each row is decided by itself, as it is once it is locked.
 * Which renewals hit is read afterwards; what happens between the two makes one at most look as if it had not, and then
 * it is asked again on rows.  (That any did is asked too: in the millisecond of the grant its row looks renewed
 * already, also to who asks under another mandate.)  The mandates are read without a lock: one that overtakes a new
 * epoch by so little might have come before it just as well, because heads outlive the epochs under which they were
 * granted.
 */
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

/* ---- Buckets ---- */

/* The buckets of the set, each once, with how many fences are wanted of it. */
struct bucket {
  const lease *first;
  int64_t total;
};

static bool next_bucket(const struct set *set, size_t *at, struct bucket *bucket) {
  *bucket = (struct bucket){nth_of(set, at), 0};
  if (!bucket->first) return false;
  bucket->total = wanted(bucket->first);
  for (size_t ahead = *at; ahead < set->count; *at = ahead) {
    const lease *op = nth_of(set, &ahead);
    if (!op || op->op.bucket != bucket->first->op.bucket) break;
    bucket->total += wanted(op);
  }
  return true;
}

static bool one_epoch(const struct set *set) {
  size_t at = 0;
  const lease *first = nth_of(set, &at);
  for (const lease *op = first; op; op = nth_of(set, &at))
    if (op->op.mandate.epoch != first->op.mandate.epoch) return false;
  return true;
}

/* " name = '' AND place = 0 AND life = x'..' AND epoch = 1 AND bucket IN (2,3) AND state IS NULL" and how many they
 * are.
 */
static bool their_buckets(struct packet *p, const struct set *set, const dibs__life *life, int64_t *count) {
  buffer *b = &p->b;
  bool alike = one_epoch(set);
  size_t at = 0;
  struct bucket one;
  bool fine = text(b, " name = '' AND place = 0 AND life = ") && bytes(b, life->b, sizeof life->b);
  for (*count = 0; fine && next_bucket(set, &at, &one); ++*count) {
    if (!alike)
      fine = text(b, *count ? " OR (bucket = " : " AND ((bucket = ") && number(b, one.first->op.bucket) &&
             text(b, " AND epoch = ") && number(b, one.first->op.mandate.epoch) && text(b, ")");
    else if (*count)
      fine = text(b, ",") && number(b, one.first->op.bucket);
    else
      fine = text(b, " AND epoch = ") && number(b, one.first->op.mandate.epoch) && text(b, " AND bucket IN (") &&
             number(b, one.first->op.bucket);
  }
  return fine && text(b, p->store->as_tier ? ") AND state = 1" : ") AND state IS NULL");
}

/* ---- Acquires ---- */

/* A counter never goes beyond its end: one that reaches it gives nothing more, and the next epoch is made on rows. */
static bool add_draw(struct packet *p, const struct set *set, const dibs__life *life, int64_t *buckets) {
  buffer *b = &p->b;
  struct bucket one;
  size_t at = 0;
  bool fine = text(b, "UPDATE ") && names(p) && text(b, " FORCE INDEX (PRIMARY) SET seq = CASE bucket");
  while (fine && next_bucket(set, &at, &one))
    fine = text(b, " WHEN ") && number(b, one.first->op.bucket) && text(b, " THEN @dibs_") &&
           number(b, one.first->op.bucket) && text(b, " := LEAST(seq + ") && number(b, one.total) && text(b, ", ") &&
           number(b, DIBS__SEQ_MAX) && text(b, ")");
  return fine && text(b, " END + 0 * (@dibs_now := " CLOCK ") WHERE") && their_buckets(p, set, life, buckets);
}

/* (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since, session, owner, mode, slots,
 * holders); `left`: of the bucket's fences, for this one and those behind it. */
static bool take_row(struct packet *p, const lease *op, int64_t left, int64_t buckets) {
  buffer *b = &p->b;
  int64_t adds = (int64_t)dibs__fence_make(op->op.mandate.epoch, 0).v - left + 1;
  bool fine = text(b, "(") && number(b, op->op.bucket) && text(b, ",") && str(b, op->name) &&
              text(b, ",IF(ROW_COUNT() = ") && number(b, buckets) && text(b, " AND @dibs_") &&
              number(b, op->op.bucket) && text(b, " < ") && number(b, DIBS__SEQ_MAX) && text(b, ", 0, NULL),") &&
              bytes(b, op->id.b, sizeof op->id.b) && text(b, ",@dibs_now + ") && number(b, op->ttl_ms);
  for (int i = 0; i < 2 && fine; i++)
    fine = text(b, ",@dibs_") && number(b, op->op.bucket) && text(b, " + ") && number(b, adds);
  return fine && text(b, ",") && number(b, wanted(op)) && text(b, ",0,0,") && number(b, op->ttl_ms) &&
         text(b, ",@dibs_now,") && number(b, (int64_t)p->session) && text(b, ",") && str(b, op->owner) &&
         text(b, ",0,0,1)");
}

/* " place = 0 AND (bucket, name) IN ((1,'a'),(2,'b'))" */
static bool their_heads(struct packet *p, const struct set *set) {
  buffer *b = &p->b;
  size_t at = 0;
  bool fine = text(b, " place = 0 AND (bucket, name) IN (");
  const char *between = "(";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = ",(")
    fine = text(b, between) && number(b, op->op.bucket) && text(b, ",") && str(b, op->name) && text(b, ")");
  return fine && text(b, ")");
}

static bool look_for_heads(struct packet *p, const struct set *set) {
  return text(&p->b, "BEGIN NOT ATOMIC IF EXISTS (SELECT 1 FROM ") && names(p) && text(&p->b, " WHERE") &&
         their_heads(p, set) && text(&p->b, ") THEN SELECT bucket, name FROM ") && names(p) && text(&p->b, " WHERE") &&
         their_heads(p, set) && text(&p->b, "; ELSE START TRANSACTION;");
}

static step put_take(struct packet *p, struct set *set, const dibs__life *life) {
  buffer *b = &p->b;
  struct bucket one = {0};
  int64_t buckets = 0, left = 0;
  size_t at = 0, bucket_at = 0;
  bool fine = look_for_heads(p, set) && add_draw(p, set, life, &buckets) && text(b, ";INSERT INTO ") && names(p) &&
              text(b, " (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since, session,"
                      " owner, mode, slots, holders) VALUES ");
  const char *between = "";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = ",") {
    if (left == 0 && next_bucket(set, &bucket_at, &one)) left = one.total;
    fine = text(b, between) && take_row(p, op, left, buckets);
    left -= wanted(op);
  }
  /* The row that is there already is given back as it is, and seen by its `since` not to be ours. */
  fine = fine && text(b, " ON DUPLICATE KEY UPDATE place = VALUES(place)"
                         " RETURNING id, first, until, since, block, @dibs_now; COMMIT; END IF; END");
  set->nth = p->wire->put;
  return put(p, fine);
}

/* ---- Renewals, releases ---- */

#define OURS                                                                                                           \
  " d.bucket = r.bucket AND d.name = r.name AND d.place = 0 AND d.id = r.id AND d.granted <= r.fence"                  \
  " AND d.first + d.block > r.fence AND d.waiters = 0 AND d.broken = 0"

static bool under_mandate(struct packet *p, const struct set *set, const dibs__life *life) {
  int64_t count;
  return text(&p->b, " AND (SELECT COUNT(*) FROM ") && names(p) && text(&p->b, " b WHERE") &&
         their_buckets(p, set, life, &count) && text(&p->b, ") = ") && number(&p->b, count);
}

/* " JOIN (WITH r(...) AS (VALUES ...) SELECT * FROM r) r ON ..." */
static bool keep_rows(struct packet *p, const struct set *set) {
  size_t at = 0;
  buffer *b = &p->b;
  bool fine = text(b, "(WITH r(bucket, name, id, fence, ttl) AS (VALUES ");
  for (const lease *op, *before = NULL; fine && (op = nth_of(set, &at)); before = op)
    fine = text(b, before ? ",(" : "(") && number(b, op->op.bucket) && text(b, ",") && str(b, op->name) &&
           text(b, ",") && bytes(b, op->id.b, sizeof op->id.b) && text(b, ",") && number(b, (int64_t)op->fence.v) &&
           text(b, ",") && number(b, op->ttl_ms) && text(b, ")");
  return fine && text(b, ") SELECT * FROM r) r STRAIGHT_JOIN ") && names(p) && text(b, " d");
}

static step put_keep(struct packet *p, struct set *set, const dibs__life *life) {
  buffer *b = &p->b;
  step end = put(p, text(b, "SET @dibs_now = " CLOCK));
  if (end == DIBS__SQL_FINE)
    end = put(p, text(b, "UPDATE ") && keep_rows(p, set) &&
                     text(b, " SET d.until = @dibs_now + r.ttl, d.ttl = r.ttl, d.session = ") &&
                     number(b, (int64_t)p->session) && text(b, " WHERE" OURS " AND d.until > @dibs_now") &&
                     under_mandate(p, set, life));
  set->nth = p->wire->put;
  if (end == DIBS__SQL_FINE)
    end = put(p, text(b, "SELECT d.id, d.first, d.until, d.until - d.ttl, d.block, @dibs_now FROM ") &&
                     keep_rows(p, set) &&
                     text(b, " WHERE ROW_COUNT() > 0 AND" OURS " AND d.until = @dibs_now + r.ttl AND d.session = ") &&
                     number(b, (int64_t)p->session));
  return end;
}

static step put_give(struct packet *p, struct set *set, const dibs__life *life) {
  buffer *b = &p->b;
  size_t at = 0;
  bool fine =
      text(b, "DELETE FROM ") && names(p) && text(b, " WHERE place = 0 AND waiters = 0 AND until > " CLOCK " AND (");
  const char *between = "(bucket = ";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = " OR (bucket = ")
    fine = text(b, between) && number(b, op->op.bucket) && text(b, " AND name = ") && str(b, op->name) &&
           text(b, " AND id = ") && bytes(b, op->id.b, sizeof op->id.b) && text(b, " AND granted <= ") &&
           number(b, (int64_t)op->fence.v) && text(b, " AND first + block > ") && number(b, (int64_t)op->fence.v) &&
           text(b, ")");
  fine = fine && text(b, ")") && under_mandate(p, set, life) && text(b, " RETURNING id, 0, 0, 0, 0, " CLOCK);
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

/* The acquires that are left when those whose names have heads are taken out; none when there was no such answer. */
static size_t without_held(struct dibs__sql_wire *wire, const struct set *set, lease **to) {
  size_t rows = dibs__my_rows(wire, set->nth), left = 0;
  if (rows == 0 || dibs__my(wire)->answers[set->nth].columns != 2) return 0;
  for (size_t i = 0; i < set->count; i++) {
    lease *op = set->ops[i];
    bool held = op->op.verb != set->verb;
    for (size_t row = 0; row < rows && !held; row++) {
      struct dibs__sql_value name = dibs__my_cell(wire, set->nth, row, 1, DIBS__SQL_TEXT);
      held = dibs__sql_cell_number(wire, set->nth, row, 0) == op->op.bucket && name.len == op->name.len &&
             memcmp(name.p, op->name.p, name.len) == 0;
    }
    if (!held) to[left++] = op;
  }
  return left;
}

static step go(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session, lease *const ops[], size_t count,
               int64_t *now, lease **rest, size_t *left) {
  struct packet p = {.store = store, .wire = wire, .session = session};
  struct set sets[] = {{.verb = DIBS__ACQUIRE}, {.verb = DIBS__RENEW}, {.verb = DIBS__RELEASE}};
  const dibs__life *life = &ops[0]->op.mandate.life;
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < 3; i++) {
    sets[i].ops = ops;
    sets[i].count = count;
    for (size_t j = 0; j < count; j++) sets[i].some += ops[j]->op.verb == sets[i].verb;
  }
  if (sets[0].some) end = put_take(&p, &sets[0], life);
  if (end == DIBS__SQL_FINE && sets[1].some) end = put_keep(&p, &sets[1], life);
  if (end == DIBS__SQL_FINE && sets[2].some) end = put_give(&p, &sets[2], life);
  free(p.b.p);
  /* The block is answered twice: by its rows, and by its end. */
  if (sets[0].some) sets[1].nth++, sets[2].nth++;
  if (end == DIBS__SQL_FINE) end = dibs__my_go(wire, true);
  if (end != DIBS__SQL_FINE) return end;
  if (sets[0].some) *left = without_held(wire, &sets[0], rest);
  if (sets[0].some && dibs__my(wire)->answers[sets[0].nth].columns == 2) sets[0].some = 0;
  for (size_t i = 0; i < 3; i++) answer(wire, &sets[i], now);
  return end;
}

step dibs__my_fast(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session, lease *const ops[],
                   size_t count, int64_t *now) {
  lease *rest[DIBS__FAR_BATCH], *none[DIBS__FAR_BATCH];
  size_t left = 0, ignored = 0;
  if (!dibs__my(wire)->maria) return DIBS__SQL_FINE;
  step end = go(store, wire, session, ops, count, now, rest, &left);
  if (end == DIBS__SQL_FINE && left) end = go(store, wire, session, rest, left, now, none, &ignored);
  return end;
}
