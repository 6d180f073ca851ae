/* SPDX-License-Identifier: MIT */
/*
 * Statements for MariaDB and MySQL: fast statements for uncontended leases, session locks.
 *
 * Fast statements.  A block for all acquires of a batch, three statements for its renewals, one for its releases, in
 * one packet.  If the mandate of one is not valid, nothing is done for any operation of its verb.
 *
 * Acquires of names that already have a head are answered as held, and draw nothing: a try for a held name costs no
 * flush and no fence.  Otherwise the block is a transaction of two statements, and one to the server: it answers with
 * the rows and an end.  With an answer for each statement the client would wake for each; that halved the rate of 20
 * threads on two processors.  The first statement raises the buckets' counters, which locks them, and leaves them in
 * variables, with the clock; the second inserts the heads with fences computed from these, and fails if a bucket was
 * not found under its mandate or is used up.  The unique key decides whether a name is free.  Buckets come before
 * heads, and both are sorted, as everywhere.  (An INSERT ... SELECT over a table of values and the buckets takes 200
 * us more of the server's time, however few rows it has: temporary tables.)
 *
 * Renewals and releases need no transaction of their own: each row is decided by itself, once it is locked.  A later
 * read shows which renewals matched; a change between the two can only make a renewal look as if it had failed, and
 * then it is decided on rows.  (A third statement counts the rows that matched: in the millisecond of the grant its
 * row looks renewed already, also to a renewal under another mandate.)  The mandates are read without a lock: a
 * renewal that slightly overtakes a new epoch might have come before it, because heads outlive the epochs under which
 * they were granted.
 *
 * Session locks: lock=named.  A name's key is dibs. and the first 48 digits of the SHA-256 of DATABASE.PREFIX:NAME:
 *
 *   GET_LOCK(CONCAT('dibs.', LEFT(SHA2('orders.dibs_:nightly', 256), 48)), 10)
 *
 * Such locks belong to the whole server, and their names have at most 64 characters, without regard to case: hashed,
 * they are all short and distinct.  The database is spelled as the server does (DATABASE()), or in small letters
 * where case makes no difference.  A wait that the server ends by itself (after a day) is started again.
 */
#include "drivers/mysql/mysql_impl.h"
#include "drivers/session_lock/session_lock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- Fast statements ---- */

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__mysql_buffer buffer;
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
  const struct dibs__server *store;
  struct dibs__sql_wire *wire;
  uint64_t session;
  buffer b;
};

/* ---- Text ---- */

static bool add_text(buffer *b, const char *p) {
  return dibs__mysql_add(b, p, strlen(p));
}

static bool add_number(buffer *b, int64_t n) {
  struct dibs__sql_value v = dibs__sql_number(n);
  return dibs__mysql_add_value(b, &v);
}

static bool add_bytes(buffer *b, const void *p, size_t len) {
  struct dibs__sql_value v = dibs__sql_bytes(p, len);
  return dibs__mysql_add_value(b, &v);
}

static bool add_str(buffer *b, dibs__str s) {
  struct dibs__sql_value v = dibs__sql_text(s.p, s.len);
  return dibs__mysql_add_value(b, &v);
}

/* The table of names, with our prefix. */
static bool add_table_name(struct packet *p) {
  const struct dibs__mysql_location *location = p->store->location;
  return add_text(&p->b, location->texts[DIBS__MYSQL_NAME]);
}

static sql_rc put_packet(struct packet *p, bool fine) {
  sql_rc end = fine ? dibs__mysql_put_whole(p->wire, &p->b)
                    : dibs__mysql_broke(dibs__my(p->wire), DIBS__SQL_NO_SPACE, "out of memory");
  p->b.len = 0;
  return end;
}

static lease *nth_of(const struct set *set, size_t *at) {
  while (*at < set->count && set->ops[*at]->op.verb != set->verb) ++*at;
  return *at < set->count ? set->ops[(*at)++] : NULL;
}

/* ---- Buckets ---- */

/* The distinct buckets of the set, with how many fences each must draw. */
struct bucket {
  const lease *first;
  int64_t total;
};

static bool next_bucket(const struct set *set, size_t *at, struct bucket *bucket) {
  *bucket = (struct bucket){nth_of(set, at), 0};
  if (!bucket->first) return false;
  bucket->total = dibs__sql_wanted_fences(bucket->first);
  for (size_t ahead = *at; ahead < set->count; *at = ahead) {
    const lease *op = nth_of(set, &ahead);
    if (!op || op->op.bucket != bucket->first->op.bucket) break;
    bucket->total += dibs__sql_wanted_fences(op);
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

/* " name = '' AND place = 0 AND life = x'..' AND epoch = 1 AND bucket IN (2,3) AND state IS NULL", and how many there
 * are. */
static bool add_bucket_condition(struct packet *p, const struct set *set, const dibs__incarnation *incarnation,
                                 int64_t *count) {
  buffer *b = &p->b;
  bool alike = one_epoch(set);
  size_t at = 0;
  struct bucket one;
  bool fine =
      add_text(b, " name = '' AND place = 0 AND life = ") && add_bytes(b, incarnation->b, sizeof incarnation->b);
  for (*count = 0; fine && next_bucket(set, &at, &one); ++*count) {
    if (!alike)
      fine = add_text(b, *count ? " OR (bucket = " : " AND ((bucket = ") && add_number(b, one.first->op.bucket) &&
             add_text(b, " AND epoch = ") && add_number(b, one.first->op.mandate.epoch) && add_text(b, ")");
    else if (*count)
      fine = add_text(b, ",") && add_number(b, one.first->op.bucket);
    else
      fine = add_text(b, " AND epoch = ") && add_number(b, one.first->op.mandate.epoch) &&
             add_text(b, " AND bucket IN (") && add_number(b, one.first->op.bucket);
  }
  return fine && add_text(b, ") AND coalesce(state, 0) ") && add_text(b, dibs__sql_ours(p->store->opened));
}

/* ---- Acquires ---- */

/* " WHEN 17 THEN @dibs_17 := ": the new value of a bucket's seq (dibs__sql_draw).  NULL if it would exceed its end, or
 * lead the clock by too much: then it is decided on rows. */
static bool add_seq(struct packet *p, const struct bucket *one) {
  buffer *b = &p->b;
  const struct dibs__mysql_location *location = p->store->location;
  bool fine = add_text(b, " WHEN ") && add_number(b, one->first->op.bucket) && add_text(b, " THEN @dibs_") &&
              add_number(b, one->first->op.bucket) && add_text(b, " := ");
  return fine && add_text(b, "IF(seq > ") && add_text(b, location->texts[DIBS__MYSQL_LEAD]) && add_text(b, " - ") &&
         add_number(b, one->total) && add_text(b, ", NULL, ") && add_text(b, location->texts[DIBS__MYSQL_FLOOR]) &&
         add_text(b, " + ") && add_number(b, one->total) && add_text(b, ")");
}

static bool add_draw(struct packet *p, const struct set *set, const dibs__incarnation *incarnation, int64_t *buckets) {
  buffer *b = &p->b;
  struct bucket one;
  size_t at = 0;
  bool fine =
      add_text(b, "UPDATE ") && add_table_name(p) && add_text(b, " FORCE INDEX (PRIMARY) SET seq = CASE bucket");
  while (fine && next_bucket(set, &at, &one)) fine = add_seq(p, &one);
  return fine && add_text(b, " END + 0 * (@dibs_now := " CLOCK ") WHERE") &&
         add_bucket_condition(p, set, incarnation, buckets);
}

/* (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since, session, owner, mode, slots,
 * holders); `left`: how many of the bucket's fences this row and the later ones need. */
static bool add_acquire_row(struct packet *p, const lease *op, int64_t left, int64_t buckets) {
  buffer *b = &p->b;
  int64_t adds = (int64_t)dibs__fence_make(op->op.mandate.epoch, 0).v - left + 1;
  bool fine = add_text(b, "(") && add_number(b, op->op.bucket) && add_text(b, ",") && add_str(b, op->name) &&
              add_text(b, ",IF(ROW_COUNT() = ") && add_number(b, buckets) && add_text(b, " AND @dibs_") &&
              add_number(b, op->op.bucket) && add_text(b, " < ") && add_number(b, (int64_t)DIBS__FENCE_MAX) &&
              add_text(b, ", 0, NULL),") && add_bytes(b, op->id.b, sizeof op->id.b) && add_text(b, ",@dibs_now + ") &&
              add_number(b, op->ttl_ms);
  for (int i = 0; i < 2 && fine; i++)
    fine = add_text(b, ",@dibs_") && add_number(b, op->op.bucket) && add_text(b, " + ") && add_number(b, adds);
  return fine && add_text(b, ",") && add_number(b, dibs__sql_wanted_fences(op)) && add_text(b, ",0,0,") &&
         add_number(b, op->ttl_ms) && add_text(b, ",@dibs_now,") && add_number(b, (int64_t)p->session) &&
         add_text(b, ",") && add_str(b, op->owner) && add_text(b, ",0,0,1)");
}

/* " place = 0 AND (bucket, name) IN ((1,'a'),(2,'b'))" */
static bool add_head_condition(struct packet *p, const struct set *set) {
  buffer *b = &p->b;
  size_t at = 0;
  bool fine = add_text(b, " place = 0 AND (bucket, name) IN (");
  const char *between = "(";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = ",(")
    fine = add_text(b, between) && add_number(b, op->op.bucket) && add_text(b, ",") && add_str(b, op->name) &&
           add_text(b, ")");
  return fine && add_text(b, ")");
}

static bool put_held_lookup(struct packet *p, const struct set *set) {
  return add_text(&p->b, "BEGIN NOT ATOMIC IF EXISTS (SELECT 1 FROM ") && add_table_name(p) &&
         add_text(&p->b, " WHERE") && add_head_condition(p, set) &&
         add_text(&p->b, ") THEN SELECT bucket, name FROM ") && add_table_name(p) && add_text(&p->b, " WHERE") &&
         add_head_condition(p, set) && add_text(&p->b, "; ELSE START TRANSACTION;");
}

static sql_rc put_acquires(struct packet *p, struct set *set, const dibs__incarnation *incarnation) {
  buffer *b = &p->b;
  struct bucket one = {0};
  int64_t buckets = 0, left = 0;
  size_t at = 0, bucket_at = 0;
  bool fine =
      put_held_lookup(p, set) && add_draw(p, set, incarnation, &buckets) && add_text(b, ";INSERT INTO ") &&
      add_table_name(p) &&
      add_text(b, " (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since, session,"
                  " owner, mode, slots, holders) VALUES ");
  const char *between = "";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = ",") {
    if (left == 0 && next_bucket(set, &bucket_at, &one)) left = one.total;
    fine = add_text(b, between) && add_acquire_row(p, op, left, buckets);
    left -= dibs__sql_wanted_fences(op);
  }
  /* An existing row stays as it is; its `since` shows that it is not ours. */
  fine = fine && add_text(b, " ON DUPLICATE KEY UPDATE place = VALUES(place)"
                             " RETURNING id, first, until, since, block, @dibs_now; COMMIT; END IF; END");
  set->nth = p->wire->put;
  return put_packet(p, fine);
}

/* ---- Renewals, releases ---- */

#define OURS                                                                                                           \
  " d.bucket = r.bucket AND d.name = r.name AND d.place = 0 AND d.id = r.id AND d.granted <= r.fence"                  \
  " AND d.first + d.block > r.fence AND d.waiters = 0 AND d.broken = 0"

static bool under_mandate(struct packet *p, const struct set *set, const dibs__incarnation *incarnation) {
  int64_t count;
  return add_text(&p->b, " AND (SELECT COUNT(*) FROM ") && add_table_name(p) && add_text(&p->b, " b WHERE") &&
         add_bucket_condition(p, set, incarnation, &count) && add_text(&p->b, ") = ") && add_number(&p->b, count);
}

/* " JOIN (WITH r(...) AS (VALUES ...) SELECT * FROM r) r ON ..." */
static bool add_renewal_rows(struct packet *p, const struct set *set) {
  size_t at = 0;
  buffer *b = &p->b;
  bool fine = add_text(b, "(WITH r(bucket, name, id, fence, ttl) AS (VALUES ");
  for (const lease *op, *before = NULL; fine && (op = nth_of(set, &at)); before = op)
    fine = add_text(b, before ? ",(" : "(") && add_number(b, op->op.bucket) && add_text(b, ",") &&
           add_str(b, op->name) && add_text(b, ",") && add_bytes(b, op->id.b, sizeof op->id.b) && add_text(b, ",") &&
           add_number(b, (int64_t)op->fence.v) && add_text(b, ",") && add_number(b, op->ttl_ms) && add_text(b, ")");
  return fine && add_text(b, ") SELECT * FROM r) r STRAIGHT_JOIN ") && add_table_name(p) && add_text(b, " d");
}

static sql_rc put_renewals(struct packet *p, struct set *set, const dibs__incarnation *incarnation) {
  buffer *b = &p->b;
  sql_rc end = put_packet(p, add_text(b, "SET @dibs_now = " CLOCK));
  if (end == DIBS__SQL_OK)
    end =
        put_packet(p, add_text(b, "UPDATE ") && add_renewal_rows(p, set) &&
                          add_text(b, " SET d.until = @dibs_now + r.ttl, d.ttl = r.ttl, d.session = ") &&
                          add_number(b, (int64_t)p->session) && add_text(b, " WHERE" OURS " AND d.until > @dibs_now") &&
                          under_mandate(p, set, incarnation));
  set->nth = p->wire->put;
  if (end == DIBS__SQL_OK)
    end = put_packet(
        p, add_text(b, "SELECT d.id, d.first, d.until, d.until - d.ttl, d.block, @dibs_now FROM ") &&
               add_renewal_rows(p, set) &&
               add_text(b, " WHERE ROW_COUNT() > 0 AND" OURS " AND d.until = @dibs_now + r.ttl AND d.session = ") &&
               add_number(b, (int64_t)p->session));
  return end;
}

static sql_rc put_releases(struct packet *p, struct set *set, const dibs__incarnation *incarnation) {
  buffer *b = &p->b;
  size_t at = 0;
  bool fine = add_text(b, "DELETE FROM ") && add_table_name(p) &&
              add_text(b, " WHERE place = 0 AND waiters = 0 AND until > " CLOCK " AND (");
  const char *between = "(bucket = ";
  for (const lease *op; fine && (op = nth_of(set, &at)); between = " OR (bucket = ")
    fine = add_text(b, between) && add_number(b, op->op.bucket) && add_text(b, " AND name = ") &&
           add_str(b, op->name) && add_text(b, " AND id = ") && add_bytes(b, op->id.b, sizeof op->id.b) &&
           add_text(b, " AND granted <= ") && add_number(b, (int64_t)op->fence.v) &&
           add_text(b, " AND first + block > ") && add_number(b, (int64_t)op->fence.v) && add_text(b, ")");
  fine = fine && add_text(b, ")") && under_mandate(p, set, incarnation) &&
         add_text(b, " RETURNING id, 0, 0, 0, 0, " CLOCK);
  set->nth = p->wire->put;
  return put_packet(p, fine);
}

/* ---- Answers ---- */

/* Rows mostly arrive in the order of the requests. */
static lease *op_of_row(const struct set *set, struct dibs__sql_value id, size_t *from) {
  for (size_t i = 0; i < set->count; i++) {
    size_t at = *from + i < set->count ? *from + i : *from + i - set->count;
    lease *op = set->ops[at];
    if (op->op.verb != set->verb || id.len != sizeof op->id.b || memcmp(op->id.b, id.p, id.len) != 0) continue;
    *from = at + 1 < set->count ? at + 1 : 0;
    return op;
  }
  return NULL;
}

static void read_answers(struct dibs__sql_wire *wire, const struct set *set, int64_t *now) {
  size_t from = 0, rows = set->some ? dibs__mysql_rows(wire, set->nth) : 0;
  for (size_t row = 0; row < rows; row++) {
    lease *op = op_of_row(set, dibs__mysql_cell(wire, set->nth, row, 0, DIBS__SQL_BYTES), &from);
    int64_t clock = dibs__sql_cell_number(wire, set->nth, row, 5);
    int64_t until = dibs__sql_cell_number(wire, set->nth, row, 2);
    if (!op) continue;
    if (op->op.verb == DIBS__ACQUIRE &&
        (dibs__sql_cell_number(wire, set->nth, row, 3) != clock || until != clock + op->ttl_ms))
      continue; /* it existed before */
    op->op.at.ms = *now = clock;
    op->op.status = DIBS_OK;
    op->waiting = false;
    if (op->op.verb == DIBS__RELEASE) continue;
    op->fence = (dibs__fence){(uint64_t)dibs__sql_cell_number(wire, set->nth, row, 1)};
    op->until.ms = until;
    op->got_block = (uint32_t)dibs__sql_cell_number(wire, set->nth, row, 4);
    op->slot = 0;
  }
}

/* Did the block answer with the names that have heads? */
static bool answered_held(const struct dibs__sql_wire *wire, const struct set *set) {
  const struct dibs__mysql_wire *w = dibs__mysql_of(wire);
  return set->nth < w->answered && w->answers[set->nth].columns == 2;
}

/* The acquires whose names have no head; none when there was no such answer. */
static size_t without_held(struct dibs__sql_wire *wire, const struct set *set, lease **to) {
  size_t rows = dibs__mysql_rows(wire, set->nth), left = 0;
  if (rows == 0 || !answered_held(wire, set)) return 0;
  for (size_t i = 0; i < set->count; i++) {
    lease *op = set->ops[i];
    bool held = op->op.verb != set->verb;
    for (size_t row = 0; row < rows && !held; row++) {
      struct dibs__sql_value name = dibs__mysql_cell(wire, set->nth, row, 1, DIBS__SQL_TEXT);
      held = dibs__sql_cell_number(wire, set->nth, row, 0) == op->op.bucket && name.len == op->name.len &&
             memcmp(name.p, op->name.p, name.len) == 0;
    }
    if (!held) to[left++] = op;
  }
  return left;
}

static sql_rc run_fast_packet(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session,
                              lease *const ops[], size_t count, int64_t *now, lease **rest, size_t *left) {
  struct packet p = {.store = store, .wire = wire, .session = session};
  struct set sets[] = {{.verb = DIBS__ACQUIRE}, {.verb = DIBS__RENEW}, {.verb = DIBS__RELEASE}};
  const dibs__incarnation *incarnation = &ops[0]->op.mandate.incarnation;
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < 3; i++) {
    sets[i].ops = ops;
    sets[i].count = count;
    for (size_t j = 0; j < count; j++) sets[i].some += ops[j]->op.verb == sets[i].verb;
  }
  if (sets[0].some) end = put_acquires(&p, &sets[0], incarnation);
  if (end == DIBS__SQL_OK && sets[1].some) end = put_renewals(&p, &sets[1], incarnation);
  if (end == DIBS__SQL_OK && sets[2].some) end = put_releases(&p, &sets[2], incarnation);
  free(p.b.p);
  /* The block has two answers: its rows, and its end. */
  if (sets[0].some) sets[1].nth++, sets[2].nth++;
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(wire, true);
  if (end != DIBS__SQL_OK) return end;
  if (sets[0].some) *left = without_held(wire, &sets[0], rest);
  if (sets[0].some && answered_held(wire, &sets[0])) sets[0].some = 0;
  for (size_t i = 0; i < 3; i++) read_answers(wire, &sets[i], now);
  return end;
}

sql_rc dibs__mysql_fast(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session, lease *const ops[],
                        size_t count, int64_t *now) {
  lease *rest[DIBS__SERVER_BATCH], *none[DIBS__SERVER_BATCH];
  size_t left = 0, ignored = 0;
  if (!dibs__my(wire)->maria) return DIBS__SQL_OK;
  sql_rc end = run_fast_packet(store, wire, session, ops, count, now, rest, &left);
  if (end == DIBS__SQL_OK && left) end = run_fast_packet(store, wire, session, rest, left, now, none, &ignored);
  return end;
}

/* ---- Session locks ---- */

typedef struct dibs__mysql_wire wire_t;

enum { DIGITS = 48, ANSWER_MS = 1000 };

static void lock_key(const char hex[65], struct dibs__server_key *to) {
  int len = snprintf(to->text, sizeof to->text, "dibs.%.*s", DIGITS, hex);
  to->value = dibs__sql_text(to->text, (size_t)len);
}

#define WAITING_A "SELECT GET_LOCK("
#define WAITING_B ", 86400)"

static sql_rc start_lock_wait(struct dibs__sql_wire *wire, const struct dibs__server_key *at, bool shared) {
  wire_t *w = dibs__my(wire);
  (void)shared;
  sql_rc end = dibs__mysql_put(wire, WAITING_A "$1" WAITING_B, &at->value, 1);
  if (end != DIBS__SQL_OK) return end;
  dibs__mysql_clear(w);
  w->late = false;
  w->lock_failed = 0;
  w->lock_want = mysql_real_query_start(&w->lock_failed, w->my, w->text.p, (unsigned long)w->text.len);
  w->base.put = w->text.len = 0;
  return w->lock_want || !w->lock_failed ? DIBS__SQL_OK : dibs__mysql_failed(w);
}

static enum dibs__server_heard poll_lock_wait(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (w->lock_want) {
    struct pollfd fd = {.fd = mysql_get_socket(w->my)};
    if (w->lock_want & MYSQL_WAIT_READ) fd.events |= POLLIN;
    if (w->lock_want & MYSQL_WAIT_WRITE) fd.events |= POLLOUT;
    if (poll(&fd, 1, 0) <= 0) return DIBS__SERVER_NOT_YET;
    w->lock_want = mysql_real_query_cont(&w->lock_failed, w->my, w->lock_want & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE));
  }
  if (w->lock_want) return DIBS__SERVER_NOT_YET;
  /* The rest of an answer whose beginning has arrived. */
  w->base.by = dibs__tick_add_ms(dibs__tick_now(), ANSWER_MS);
  sql_rc end = w->lock_failed ? dibs__mysql_failed(w) : dibs__mysql_take(w, false);
  if (end != DIBS__SQL_OK) {
    bool ended = w->base.trouble == DIBS__SQL_LOCKED || w->base.trouble == DIBS__SQL_DEADLOCK;
    return ended ? DIBS__SERVER_AGAIN : DIBS__SERVER_FAILED;
  }
  if (dibs__mysql_rows(wire, 0) != 1) return DIBS__SERVER_FAILED;
  struct dibs__sql_value cell = dibs__mysql_cell(wire, 0, 0, 0, DIBS__SQL_NUMBER);
  if (cell.kind == DIBS__SQL_NULL) return DIBS__SERVER_FAILED;
  return cell.number == 1 ? DIBS__SERVER_GOT : DIBS__SERVER_AGAIN;
}

static int socket_of(const struct dibs__sql_wire *wire) {
  my_socket fd = mysql_get_socket(dibs__mysql_of(wire)->my);
  return fd == MARIADB_INVALID_SOCKET ? -1 : (int)fd;
}

/* A goodbye packet would wait for the end of the wait.  The connector learns that it is dead, so that it can clean
 * up. */
static void close_waiting(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (w->lock_want) {
    if (!w->dead) w->trusted = NULL; /* we end it: that says nothing about its server */
    w->dead = true;
    (void)shutdown(mysql_get_socket(w->my), SHUT_RDWR);
    while (w->lock_want) w->lock_want = mysql_real_query_cont(&w->lock_failed, w->my, MYSQL_WAIT_TIMEOUT);
  }
  dibs__mysql_close(wire);
}

const struct dibs__session_locking dibs__mysql_locking = {
    .mode = "named",
    .space = "SELECT IF(@@lower_case_table_names = 0, DATABASE(), LOWER(DATABASE()))",
    .ready = "SET SESSION wait_timeout = 31536000 /*M! , max_statement_time = 0 */",
    .self = "SELECT CONNECTION_ID()",
    .take = "SELECT GET_LOCK($1, 0)",
    .drop = "SELECT RELEASE_LOCK($1)",
    .drop_all = "SELECT RELEASE_ALL_LOCKS()",
    .holders = "SELECT IS_USED_LOCK($1)",
    /* Shows connections of the same user, unless the right PROCESS shows all. */
    .waiters = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO = CONCAT('" WAITING_A
               "', QUOTE($1), '" WAITING_B "') ORDER BY TIME_MS DESC, ID",
    .kill = "KILL $1",
    .ping = "SELECT NOT @@global.read_only",
    .key = lock_key,
    .wait = start_lock_wait,
    .heard = poll_lock_wait,
    .socket = socket_of,
    .abandon = close_waiting,
};
