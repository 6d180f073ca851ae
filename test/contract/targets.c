/* SPDX-License-Identifier: MIT */
/* The engines whose clock, sessions and memory the contract's tests can manipulate, by scheme. */
#include "drivers/memory/memory.h"
#include "drivers/server/server.h"
#include "drivers/sqlite/sqlite.h"
#include "drivers/sqlite/sqlite_impl.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void memory_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  dibs__memory_use_up(innermost(p), bucket, left);
}

/* On a session of its own, because `p` may use shims. */
static void sqlite_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  struct dibs__dstore *store = innermost(p);
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  assert_int_equal(store->driver->connect(store, by, &session, &identity, &reported), DIBS_OK);
  dibs__status status = dibs__sqlite_use_up(session, bucket, left, by, &reported);
  store->driver->disconnect(session);
  if (status != DIBS_OK) fail_msg("%s", reported.text);
}

static void memory_reborn(struct party *p, uint16_t bucket) {
  (void)bucket;
  dibs__memory_forget(innermost(p));
}

/* The side file has seen a fence that the database does not know, as after an older file was restored. */
static void sqlite_reborn(struct party *p, uint16_t bucket) {
  uint32_t epoch = anchor_read(p, bucket).current.epoch;
  dibs__side_mark(((struct dibs__lite *)innermost(p))->side, bucket, dibs__fence_make(epoch, DIBS__SEQ_MAX),
                  (dibs__when){0});
}

/* For a server: runs SQL on a connection of its own.  Returns the first cell of the answer, or 0. */
static int64_t server_run_sql(struct dibs__server *store, const char *text, const struct dibs__sql_value *values,
                              size_t count) {
  const struct dibs__server_engine *engine = store->engine;
  struct dibs__sql_wire *wire;
  struct dibs__result reported = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  char *made = dibs__server_text(store, text);
  assert_non_null(made);
  if (engine->connect(store, by, &wire, &reported) != DIBS_OK) fail_msg("%s", reported.text);
  wire->by = by;
  bool done = engine->sql.put(wire, made, values, count) == DIBS__SQL_OK && engine->sql.go(wire, true) == DIBS__SQL_OK;
  if (!done) print_error("%s\n", wire->message);
  int64_t cell = done && engine->sql.rows(wire, 0) ? dibs__sql_cell_number(wire, 0, 0, 0) : 0;
  engine->close(wire);
  free(made);
  assert_true(done);
  return cell;
}

static void server_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  struct dibs__sql_value v[] = {dibs__sql_number(bucket), dibs__sql_number((int64_t)(DIBS__SEQ_MAX - left))};
  server_run_sql((struct dibs__server *)innermost(p),
                 "UPDATE dibs_name SET seq = $2 WHERE bucket = $1 AND name = '' AND place = 0", v, 2);
}

static void server_restore(struct party *p, uint16_t bucket, bool back) {
  static const char *const columns[] = {"SELECT epoch FROM dibs_name WHERE bucket = $1 AND name = ''",
                                        "SELECT seq FROM dibs_name WHERE bucket = $1 AND name = ''",
                                        "SELECT coalesce(since, 0) FROM dibs_name WHERE bucket = $1 AND name = ''"};
  static struct dibs__sql_value kept[4];
  struct dibs__server *store = (struct dibs__server *)innermost(p);
  kept[0] = dibs__sql_number(bucket);
  for (int i = 0; i < 3 && !back; i++) kept[i + 1] = dibs__sql_number(server_run_sql(store, columns[i], kept, 1));
  if (!back) return;
  server_run_sql(store,
                 "UPDATE dibs_name SET epoch = $2, seq = $3, since = nullif($4, 0) WHERE bucket = $1 AND name = ''",
                 kept, 4);
}

/* As if another server had written the rows. */
static void server_reborn(struct party *p, uint16_t bucket) {
  static const uint8_t other[20] = "another server";
  struct dibs__sql_value v = dibs__sql_bytes(other, sizeof other);
  (void)bucket;
  server_run_sql((struct dibs__server *)innermost(p), "UPDATE dibs_name SET life = $1 WHERE name = '' AND place = 0",
                 &v, 1);
  server_run_sql((struct dibs__server *)innermost(p), "UPDATE dibs_meta SET life = $1", &v, 1);
}

static void server_aged(struct party *p) {
  server_run_sql((struct dibs__server *)innermost(p), "DROP TABLE dibs_report", NULL, 0);
  server_run_sql((struct dibs__server *)innermost(p), "UPDATE dibs_meta SET version = 2", NULL, 0);
}

static void server_bury(struct dibs__dstore *store, dibs__id id) {
  struct dibs__sql_value v = dibs__sql_bytes(id.b, sizeof id.b);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 10000);
  while (server_run_sql((struct dibs__server *)store, "SELECT max(@{alive}) FROM dibs_name WHERE id = $1 AND place > 0",
                        &v, 1) > 0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    dibs__nap_ms(1);
  }
}

/* For a server whose clock test/postgres/skewed.sh has replaced. */
static void server_skew(struct dibs__dstore *store, int64_t ms) {
  struct dibs__sql_value v = dibs__sql_number(ms);
  server_run_sql((struct dibs__server *)store, "UPDATE test_clock SET ms = ms + $1", &v, 1);
}

/* For a server whose clock test/servers/skewed.sh has replaced. */
static void file_skew(struct dibs__dstore *store, int64_t ms) {
  const char *path = getenv("DIBS_TEST_CLOCK");
  int64_t skew = 0;
  (void)store;
  FILE *file = path ? fopen(path, "r+b") : NULL;
  assert_non_null(file);
  assert_int_equal(fread(&skew, sizeof skew, 1, file), 1);
  skew += ms;
  rewind(file);
  assert_int_equal(fwrite(&skew, sizeof skew, 1, file), 1);
  assert_int_equal(fclose(file), 0);
}

static int see_ghost(const struct dibs__lease_row *row, void *user) {
  bool *waits = user;
  bool is_waiter = row->state == DIBS__WAITS || row->state == DIBS__OFFERED;
  *waits = *waits || (is_waiter && dibs__str_equal(row->owner, dibs__str_of("ghost", 5)));
  return 0;
}

/* The daemon cancels the waiters of a client that has hung up; MongoDB counts a process as dead that gives no sign of
 * life. */
static void waiter_bury(struct dibs__dstore *store, dibs__id id) {
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 15000);
  bool waits = true;
  struct dibs__list list = {.prefix = name_of(""), .row = see_ghost, .user = &waits};
  (void)id; /* a listing has none */
  assert_int_equal(store->driver->connect(store, by, &session, &identity, &reported), DIBS_OK);
  while (waits) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    waits = false;
    assert_int_equal(store->driver->list(session, &list, by, &reported), DIBS_OK);
    if (waits) dibs__nap_ms(1);
  }
  store->driver->disconnect(session);
}

/* The server notices a closed connection before it accepts later ones, such as that of the party given here. */
static void redis_bury(struct dibs__dstore *store, dibs__id id) {
  (void)store, (void)id;
}

static const struct contract_target targets[] = {
    {.scheme = "tiers",
     .no_tier = true,
     .slack_ms = 1,
     .told_ms = 1, /* two clients of a tier read its clock at different instants */
     .strides = true},
    {.scheme = "memory",
     .local = true,
     .skew = dibs__memory_skew,
     .kill = dibs__memory_kill,
     .forget = dibs__memory_forget,
     .reborn = memory_reborn,
     .use_up = memory_use_up},
    {.scheme = "sqlite",
     .local = true,
     .is_file = true,
     .own_clocks = true,
     .skew = dibs__sqlite_skew,
     .reborn = sqlite_reborn,
     .use_up = sqlite_use_up},
    {.scheme = "postgres",
     .clocked = true,
     .aged = server_aged,
     .reborn = server_reborn,
     .use_up = server_use_up,
     .restore = server_restore,
     .bury = server_bury},
    {.scheme = "postgresql",
     .clocked = true,
     .aged = server_aged,
     .reborn = server_reborn,
     .use_up = server_use_up,
     .restore = server_restore,
     .bury = server_bury,
     .skew = server_skew}, /* through skewed.sh */
    {.scheme = "mysql",
     .clocked = true,
     .aged = server_aged,
     .reborn = server_reborn,
     .use_up = server_use_up,
     .restore = server_restore,
     .bury = server_bury},
    {.scheme = "redis", .apart = true, .lazy_close = true, .bury = redis_bury},
    {.scheme = "zk", .apart = true, .no_tier = true, .lazy_close = true},
    {.scheme = "rediss", .apart = true, .lazy_close = true, .bury = redis_bury},
    {.scheme = "mongodb",
     .no_tier = true,
     .no_lanes = true,
     .clocked = true,
     .apart = true,
     .lazy_close = true,
     .bury = waiter_bury,
     .most_waiters = 500, /* all claims of a name are one document */
     .told_ms = 20,       /* a client knows the server's clock between two bounds */
     .slack_ms = 20},     /* the same */
    {.scheme = "http", .no_tier = true, .clocked = true, .one_session = true, .bury = waiter_bury},
    /* Its leases have whole seconds, and live for one or two more than the ttl. */
    {.scheme = "etcd",
     .clocked = true,
     .strides = true,
     .apart = true,
     .ttl_ms = 8000,
     .told_ms = 2000,
     .by_revision = true,
     .slack_ms = 2500,
     .late_ms = 2500,
     .offer_ms = 1500,
     .most_waiters = 300,
     .bury = waiter_bury},
    {.scheme = "redlock",
     .no_tier = true,
     .told_ms = 20,    /* a client that has not asked the nodes itself allows for less drift if less time is left */
     .slack_ms = 100}, /* the clocks of nodes may differ, and an answer takes time */
    {.scheme = "mariadb",
     .clocked = true,
     .aged = server_aged,
     .reborn = server_reborn,
     .use_up = server_use_up,
     .restore = server_restore,
     .bury = server_bury,
     .skew = file_skew}, /* through skewed.sh */
};

/* Through test/servers/skewed.sh. */
static const struct contract_target redis_skewed = {
    .scheme = "redis", .lazy_close = true, .bury = redis_bury, .skew = file_skew};

static const struct contract_target unknown = {.scheme = "?"};

const struct contract_target *contract_target_of(const char *scheme) {
  if (strcmp(scheme, redis_skewed.scheme) == 0 && getenv("DIBS_TEST_CLOCK")) return &redis_skewed;
  for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
    if (strcmp(targets[i].scheme, scheme) == 0) return &targets[i];
  return &unknown;
}
