/* SPDX-License-Identifier: MIT */
/*
 * Statements for PostgreSQL: prepared statements, fast statements for uncontended leases, session locks.
 *
 * Prepared statements.  A connection finds them by their text.  $rows becomes "SELECT * FROM unnest($3::bigint[],
 * $4::text[])": an array a column, so that any number of rows is one statement.  A column with only NULLs has no
 * kind: it gets the kind of an earlier packet, else it is a number, which text parameters accept, too.
 *
 * Fast statements.  One statement each for acquires, renewals and releases, in one packet that is one transaction.
 * An acquire's statement raises the buckets' counters, which locks them, and inserts the heads.  It is one statement
 * with one snapshot, and still correct: the counter is read from the row once it is locked, and the unique key, which
 * does not depend on a snapshot, decides whether a name is free.  A renewal or release is decided on the head's row
 * once that is locked.  Buckets come before heads, and both are sorted, as everywhere.  The mandate of a renewal or
 * release is read without a lock.  A renewal that slightly overtakes a new epoch might have come before it: heads
 * outlive the epochs under which they were granted.
 *
 * Session locks: lock=advisory.  A name's key is the first 8 bytes of the SHA-256 of SCHEMA.PREFIX:NAME, as a bigint:
 *
 *   pg_advisory_lock(('x' || left(encode(sha256('dibs.dibs_:nightly'), 'hex'), 16))::bit(64)::bigint)
 *
 * Advisory locks belong to a database, and so does the name space.
 */
#include "drivers/postgres/postgres_impl.h"
#include "drivers/session_lock/session_lock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MARK = 5 }; /* characters of "$rows" */

uint64_t dibs__pg_hash(const char *key, const char *kinds) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *key; key++) hash = (hash ^ (unsigned char)*key) * UINT64_C(0x100000001b3);
  for (; *kinds; kinds++) hash = (hash ^ (unsigned char)*kinds) * UINT64_C(0x100000001b3);
  return hash ^ (hash >> 32);
}

static const char *type_of(char kind) {
  return kind == 't' ? "text" : kind == 'b' ? "bytea" : "bigint";
}

/* Writes the text with $rows replaced; gives its length, also if `to` is NULL. */
static size_t expand_rows(char *to, const char *key, const char *kinds, size_t before) {
  size_t len = 0;
  const char *mark = *kinds ? strstr(key, "$rows") : NULL;
  if (!mark) {
    len = strlen(key);
    if (to) memcpy(to, key, len + 1);
    return len;
  }
  len = (size_t)(mark - key);
  if (to) memcpy(to, key, len);
  char piece[64];
  for (const char *k = kinds; *k; k++) {
    int n = snprintf(piece, sizeof piece, "%s$%zu::%s[]%s", k == kinds ? "SELECT * FROM unnest(" : ", ",
                     before + 1 + (size_t)(k - kinds), type_of(*k), k[1] ? "" : ")");
    if (to) memcpy(to + len, piece, (size_t)n);
    len += (size_t)n;
  }
  size_t rest = strlen(mark + ROWS_MARK);
  if (to) memcpy(to + len, mark + ROWS_MARK, rest + 1);
  return len + rest;
}

static bool is_text_of(const struct dibs__pg_text *t, const char *key, const char *kinds) {
  return strcmp(t->kinds, kinds) == 0 && strcmp(t->key, key) == 0;
}

static struct dibs__pg_text *make_statement(const char *key, const char *kinds, size_t before) {
  size_t key_size = strlen(key) + 1, kinds_size = strlen(kinds) + 1,
         sql_size = expand_rows(NULL, key, kinds, before) + 1;
  struct dibs__pg_text *t = calloc(1, sizeof *t + key_size + kinds_size + sql_size);
  if (!t) return NULL;
  char *at = (char *)(t + 1);
  t->key = memcpy(at, key, key_size);
  t->kinds = memcpy(at + key_size, kinds, kinds_size);
  expand_rows(at + key_size + kinds_size, key, kinds, before);
  t->sql = at + key_size + kinds_size;
  return t;
}

static void unlink_text(struct dibs__pg_texts *texts, struct dibs__pg_text *t) {
  struct dibs__pg_text **at = &texts->heads[t->hash % DIBS__PG_TEXTS];
  while (*at != t) at = &(*at)->next;
  *at = t->next;
  texts->count--;
  for (size_t i = 0; i < sizeof texts->near / sizeof texts->near[0]; i++)
    if (texts->near[i].text == t) texts->near[i].text = NULL;
}

static bool forget_on_server(struct dibs__pg_texts *texts, const struct dibs__pg_text *t) {
  if (!t->ready) return true;
  if (texts->gone_count == texts->gone_capacity) {
    size_t capacity = texts->gone_capacity ? texts->gone_capacity * 2 : 16;
    uint32_t *more = realloc(texts->gone, capacity * sizeof *more);
    if (!more) return false;
    texts->gone = more;
    texts->gone_capacity = capacity;
  }
  texts->gone[texts->gone_count++] = t->nr;
  return true;
}

/* Gives the statement another name; the types of its parameters and answers are read again. */
static bool rename_statement(struct dibs__pg_texts *texts, struct dibs__pg_text *t) {
  if (!forget_on_server(texts, t)) return false;
  t->nr = ++texts->drawn;
  t->ready = t->bound = t->worked = t->stale = false;
  t->answers = DIBS__PG_UNSEEN;
  return true;
}

/* Forgets the least recently used statement: none of the packet that is being built, and none of the latest packet,
 * whose answers are still read. */
static bool forget_one(struct dibs__pg_texts *texts, uint32_t packet) {
  struct dibs__pg_text *oldest = NULL;
  for (size_t i = 0; i < DIBS__PG_TEXTS; i++)
    for (struct dibs__pg_text *t = texts->heads[i]; t; t = t->next)
      if (packet - t->packet > 1 && (!oldest || packet - t->packet > packet - oldest->packet)) oldest = t;
  if (!oldest) return true; /* a packet of very many: the limit is exceeded once */
  if (!forget_on_server(texts, oldest)) return false;
  unlink_text(texts, oldest);
  free(oldest);
  return true;
}

struct dibs__pg_text *dibs__pg_text_find(struct dibs__pg_texts *texts, const char *key, const char *kinds,
                                         size_t before, uint32_t packet) {
  size_t near = ((uintptr_t)key >> 3) % (sizeof texts->near / sizeof texts->near[0]);
  struct dibs__pg_text *t = texts->near[near].text;
  /* The same address may hold another text by now. */
  if (t && texts->near[near].at == key && is_text_of(t, key, kinds)) {
    if (t->stale && !rename_statement(texts, t)) return NULL;
    t->packet = packet;
    return t;
  }
  uint64_t hash = dibs__pg_hash(key, kinds);
  for (t = texts->heads[hash % DIBS__PG_TEXTS]; t; t = t->next)
    if (t->hash == hash && is_text_of(t, key, kinds)) break;
  if (!t) {
    if (texts->count >= DIBS__PG_TEXTS && !forget_one(texts, packet)) return NULL;
    t = make_statement(key, kinds, before);
    if (!t) return NULL;
    t->hash = hash;
    t->nr = ++texts->drawn;
    t->next = texts->heads[hash % DIBS__PG_TEXTS];
    texts->heads[hash % DIBS__PG_TEXTS] = t;
    texts->count++;
  }
  if (t->stale && !rename_statement(texts, t)) return NULL;
  texts->near[near].at = key;
  texts->near[near].text = t;
  t->packet = packet;
  return t;
}

void dibs__pg_texts_free(struct dibs__pg_texts *texts) {
  for (size_t i = 0; i < DIBS__PG_TEXTS; i++)
    for (struct dibs__pg_text *t = texts->heads[i], *next; t; t = next) {
      next = t->next;
      free(t);
    }
  free(texts->gone);
  *texts = (struct dibs__pg_texts){.count = 0};
}

/* ---- Fast statements ---- */

enum { TAKE, KEEP, GIVE, TAKE_MANY, TEXTS, SETS = TAKE_MANY };
_Static_assert((int)TEXTS <= (int)DIBS__PG_FAST_TEXTS, "they have room");

enum { TAKE_COLUMNS = 8, KEEP_COLUMNS = 6, GIVE_COLUMNS = 5, COLUMNS_MOST = TAKE_COLUMNS };

/* $1: the incarnation of the mandates; $2: our session. */
#define OURS                                                                                                           \
  " WHERE d.bucket = r.bucket AND d.name = r.name AND d.place = 0 AND d.id = r.id AND d.until > @{now}"                \
  " AND d.granted <= r.fence AND d.first + d.block > r.fence AND d.waiters = 0"                                        \
  " AND EXISTS (SELECT FROM dibs_name b WHERE b.bucket = r.bucket AND b.name = '' AND b.place = 0"                     \
  " AND b.epoch = r.epoch AND b.life = $1 AND coalesce(b.state, 0) @{ours})"

/* Held names draw no fence.  The snapshot decides that, so a name acquired at this moment draws one. */
#define NOBODY_HAS(q)                                                                                                  \
  " NOT EXISTS (SELECT FROM dibs_name h WHERE h.bucket = " q ".bucket AND h.name = " q ".name AND h.place = 0)"
#define DRAW(of, total)                                                                                                \
  "UPDATE dibs_name d SET seq = @{floor} + " total " FROM " of " WHERE d.bucket = " of ".bucket AND d.name = ''"       \
  " AND d.place = 0 AND d.epoch = " of ".epoch AND d.life = $1 AND d.seq <= @{lead} - " total                          \
  " AND coalesce(d.state, 0) @{ours}"
#define INSERT                                                                                                         \
  " INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since,"        \
  " session, owner, mode, slots, holders)"                                                                             \
  " SELECT x.bucket, x.name, 0, x.id, x.now + x.ttl, x.fence, x.fence, x.want, 0, 0, x.ttl, x.now, $2,"                \
  " x.owner, 0, 0, 1 FROM "
#define UNLESS_TAKEN " x ON CONFLICT DO NOTHING RETURNING id, first, until, since"

static const char *const texts[TEXTS] = {
    /* The buckets are distinct. */
    [TAKE] = "WITH r(bucket, epoch, nr, name, id, want, ttl, owner) AS ($rows),"
             " b AS (" DRAW("r", "r.want") " AND" NOBODY_HAS(
                 "r") " RETURNING r.*, (d.epoch << 32) + d.seq - r.want + 1 AS fence)" INSERT
                      "(SELECT b.*, @{now} AS now FROM b OFFSET 0)" UNLESS_TAKEN,
    [TAKE_MANY] =
        "WITH q(bucket, epoch, nr, name, id, want, ttl, owner) AS ($rows),"
        " r AS (SELECT q.*, sum(q.want::int) OVER (PARTITION BY q.bucket, q.epoch ORDER BY q.nr) AS upto"
        " FROM q WHERE" NOBODY_HAS(
            "q") "),"
                 " t AS (SELECT bucket, epoch, max(upto) AS total FROM r GROUP BY bucket, epoch ORDER BY bucket),"
                 " b AS (" DRAW(
                     "t",
                     "t.total") " RETURNING d.bucket, d.epoch, d.seq - t.total AS drawn)" INSERT
                                "(SELECT r.*, (r.epoch << 32) + b.drawn + r.upto - r.want + 1 AS fence, @{now} AS now"
                                " FROM b JOIN r ON r.bucket = b.bucket AND r.epoch = b.epoch OFFSET 0)" UNLESS_TAKEN,
    [KEEP] = "WITH r(bucket, epoch, name, id, fence, ttl) AS ($rows)"
             " UPDATE dibs_name d SET until = @{now} + r.ttl, ttl = r.ttl, session = $2 FROM r" OURS
             " AND d.broken = 0 RETURNING d.id, d.first, d.until, d.until - d.ttl, d.block",
    [GIVE] = "WITH r(bucket, epoch, name, id, fence) AS ($rows)"
             " DELETE FROM dibs_name d USING r" OURS " RETURNING d.id, 0, 0, @{now}",
};
_Static_assert(DIBS__SEQ_MAX == 4294967295, "as in TAKE");

bool dibs__pg_fast_prepare(struct dibs__pg_location *p, struct dibs__server *store) {
  for (size_t i = 0; i < TEXTS; i++) {
    p->fast[i] = dibs__server_text(store, texts[i]);
    if (!p->fast[i]) return false;
  }
  return true;
}

void dibs__pg_fast_forget(struct dibs__pg_location *p) {
  for (size_t i = 0; i < TEXTS; i++) free(p->fast[i]);
}

/* ---- Queuing ---- */

struct set {
  struct dibs__lease_op *ops[DIBS__SERVER_BATCH];
  size_t count;
  size_t nth; /* its statement */
};

static void add_acquire_rows(const struct set *set, struct dibs__sql_value *v) {
  for (size_t i = 0; i < set->count; i++, v += TAKE_COLUMNS) {
    const struct dibs__lease_op *op = set->ops[i];
    v[0] = dibs__sql_number(op->op.bucket);
    v[1] = dibs__sql_number(op->op.mandate.epoch);
    v[2] = dibs__sql_number((int64_t)i);
    v[3] = dibs__sql_text(op->name.p, op->name.len);
    v[4] = dibs__sql_bytes(op->id.b, sizeof op->id.b);
    v[5] = dibs__sql_number(dibs__sql_wanted_fences(op));
    v[6] = dibs__sql_number(op->ttl_ms);
    v[7] = dibs__sql_text(op->owner.p, op->owner.len);
  }
}

/* The operations are sorted by bucket. */
static int acquire_text(const struct set *set) {
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

static sql_rc put_set(struct dibs__sql_wire *wire, const char *text, struct set *set, size_t columns,
                      struct dibs__sql_value *rows, const struct dibs__sql_value *values, size_t count) {
  if (set->count == 0) return DIBS__SQL_OK;
  if (columns == TAKE_COLUMNS)
    add_acquire_rows(set, rows);
  else
    grant_rows(set, rows, columns);
  set->nth = wire->put;
  return dibs__pg_put_rows(wire, text, values, count, rows, columns, set->count);
}

/* ---- Answers ---- */

/* The operation that the answer's row is about: rows mostly arrive in the order of the requests. */
static struct dibs__lease_op *op_of_row(const struct set *set, struct dibs__sql_value id, size_t *from) {
  for (size_t i = 0; i < set->count; i++) {
    size_t at = *from + i < set->count ? *from + i : *from + i - set->count;
    if (id.len != sizeof set->ops[at]->id.b || memcmp(set->ops[at]->id.b, id.p, id.len) != 0) continue;
    *from = at + 1 < set->count ? at + 1 : 0;
    return set->ops[at];
  }
  return NULL;
}

static void read_answers(const struct dibs__sql_wire *wire, const struct set *set, int kind, int64_t *now) {
  size_t from = 0, rows = set->count ? dibs__pg_rows(wire, set->nth) : 0;
  for (size_t row = 0; row < rows; row++) {
    struct dibs__lease_op *op = op_of_row(set, dibs__pg_cell(wire, set->nth, row, 0, DIBS__SQL_BYTES), &from);
    if (!op) continue;
    op->op.status = DIBS_OK;
    op->waiting = false;
    op->op.at.ms = *now = dibs__sql_cell_number(wire, set->nth, row, 3);
    if (kind == GIVE) continue;
    op->fence = (dibs__fence){(uint64_t)dibs__sql_cell_number(wire, set->nth, row, 1)};
    op->until.ms = dibs__sql_cell_number(wire, set->nth, row, 2);
    op->got_block =
        kind == TAKE ? dibs__sql_wanted_fences(op) : (uint32_t)dibs__sql_cell_number(wire, set->nth, row, 4);
    op->slot = 0;
  }
}

sql_rc dibs__pg_fast(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session,
                     struct dibs__lease_op *const ops[], size_t count, int64_t *now) {
  const struct dibs__pg_location *p = store->location;
  struct dibs__sql_value few[16 * COLUMNS_MOST], *rows = few;
  struct set sets[SETS];
  for (int kind = TAKE; kind < SETS; kind++) sets[kind].count = 0;
  for (size_t i = 0; i < count; i++) {
    struct set *set = &sets[ops[i]->op.verb == DIBS__ACQUIRE ? TAKE : ops[i]->op.verb == DIBS__RENEW ? KEEP : GIVE];
    set->ops[set->count++] = ops[i];
  }
  if (count > sizeof few / sizeof few[0] / COLUMNS_MOST) {
    rows = malloc(count * COLUMNS_MOST * sizeof *rows);
    if (!rows) return dibs__sql_fail(wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  struct dibs__sql_value values[] = {
      dibs__sql_bytes(ops[0]->op.mandate.incarnation.b, sizeof ops[0]->op.mandate.incarnation.b),
      dibs__sql_number((int64_t)session)};
  sql_rc end = put_set(wire, p->fast[acquire_text(&sets[TAKE])], &sets[TAKE], TAKE_COLUMNS, rows, values, 2);
  if (end == DIBS__SQL_OK) end = put_set(wire, p->fast[KEEP], &sets[KEEP], KEEP_COLUMNS, rows, values, 2);
  if (end == DIBS__SQL_OK) end = put_set(wire, p->fast[GIVE], &sets[GIVE], GIVE_COLUMNS, rows, values, 1);
  if (end == DIBS__SQL_OK) end = dibs__pg_go(wire, true);
  for (int kind = TAKE; kind < SETS && end == DIBS__SQL_OK; kind++) read_answers(wire, &sets[kind], kind, now);
  if (rows != few) free(rows);
  return end;
}

/* ---- Session locks ---- */

static struct dibs__pg_wire *pg_wire_of(struct dibs__sql_wire *wire) {
  return (struct dibs__pg_wire *)wire;
}

static void lock_key(const char hex[65], struct dibs__server_key *to) {
  snprintf(to->text, sizeof to->text, "%.16s", hex);
  to->value = dibs__sql_number((int64_t)strtoull(to->text, NULL, 16));
}

/* A wait may be long; the timeout for row locks stays as it is. */
#define WAITING "SELECT set_config('lock_timeout', '0', true), "

/* Runs outside of pipeline mode, in which the server answers nothing before the end of the packet. */
static sql_rc start_lock_wait(struct dibs__sql_wire *wire, const struct dibs__server_key *at, bool shared) {
  struct dibs__pg_wire *w = pg_wire_of(wire);
  char number[24];
  const char *values[] = {number};
  snprintf(number, sizeof number, "%" PRId64, at->value.number);
  w->lock_got = w->lock_ended = false;
  if (w->piping && PQexitPipelineMode(w->pg) != 1) return dibs__sql_fail(wire, DIBS__SQL_GONE, "it is busy");
  w->piping = false;
  const char *text = shared ? WAITING "pg_advisory_lock_shared($1::bigint)" : WAITING "pg_advisory_lock($1::bigint)";
  bool sent = PQsetnonblocking(w->pg, 1) == 0 && PQsendQueryParams(w->pg, text, 1, NULL, values, NULL, NULL, 0) == 1 &&
              PQflush(w->pg) >= 0;
  return sent ? DIBS__SQL_OK : dibs__sql_fail(wire, DIBS__SQL_GONE, "the connection was lost");
}

static enum dibs__server_heard poll_lock_wait(struct dibs__sql_wire *wire) {
  struct dibs__pg_wire *w = pg_wire_of(wire);
  if (PQflush(w->pg) < 0 || !PQconsumeInput(w->pg)) return DIBS__SERVER_FAILED;
  while (!PQisBusy(w->pg)) {
    PGresult *result = PQgetResult(w->pg);
    if (!result) return w->lock_got ? DIBS__SERVER_GOT : w->lock_ended ? DIBS__SERVER_AGAIN : DIBS__SERVER_FAILED;
    enum dibs__sql_trouble trouble = dibs__pg_trouble(PQresultErrorField(result, PG_DIAG_SQLSTATE));
    if (PQresultStatus(result) == PGRES_TUPLES_OK)
      w->lock_got = true;
    else
      w->lock_ended = trouble == DIBS__SQL_LOCKED || trouble == DIBS__SQL_DEADLOCK;
    PQclear(result);
    if (PQstatus(w->pg) != CONNECTION_OK) return DIBS__SERVER_FAILED;
  }
  return DIBS__SERVER_NOT_YET;
}

static int socket_of(const struct dibs__sql_wire *wire) {
  return PQsocket(((const struct dibs__pg_wire *)wire)->pg);
}

#define OF_KEY                                                                                                         \
  "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint)"  \
  " = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "

const struct dibs__session_locking dibs__pg_locking = {
    .mode = "advisory",
    .shared = true,
    .space = "SELECT $1::text",
    /* These make the server notice that a client is gone while it waits; some of them do not exist in every version. */
    .ready = "SELECT set_config(name, CASE name WHEN 'client_connection_check_interval' THEN '1000' ELSE '0' END, "
             "false) FROM pg_settings WHERE name IN ('statement_timeout', 'idle_session_timeout', "
             "'client_connection_check_interval')",
    .self = "SELECT pg_backend_pid()",
    .take = "SELECT CASE WHEN pg_try_advisory_lock($1) THEN 1 ELSE 0 END",
    .take_shared = "SELECT CASE WHEN pg_try_advisory_lock_shared($1) THEN 1 ELSE 0 END",
    .drop = "SELECT CASE WHEN pg_advisory_unlock($1) THEN 1 ELSE 0 END",
    .drop_shared = "SELECT CASE WHEN pg_advisory_unlock_shared($1) THEN 1 ELSE 0 END",
    .drop_all = "SELECT pg_advisory_unlock_all()",
    .holders = OF_KEY "granted",
    .waiters = OF_KEY "NOT granted ORDER BY pid",
    .kill = "SELECT CASE WHEN pg_terminate_backend($1::int) THEN 1 ELSE 0 END",
    .ping = "SELECT 1",
    .key = lock_key,
    .wait = start_lock_wait,
    .heard = poll_lock_wait,
    .socket = socket_of,
    .abandon = dibs__pg_close,
};
