/* SPDX-License-Identifier: MIT */
/* The engines that the contract's tests know how to handle, by scheme. */
#include "drivers/memory.h"
#include "drivers/sqlite.h"
#include "harness.h"
#include "sql/far.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void memory_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  dibs__memory_use_up(innermost(p), bucket, left);
}

/* On a session of its own: `p` may talk through shims. */
static void sqlite_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  struct dibs__dstore *store = innermost(p);
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__said said = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  assert_int_equal(store->driver->connect(store, by, &session, &identity, &said), DIBS_OK);
  dibs__status status = dibs__sqlite_use_up(session, bucket, left, by, &said);
  store->driver->disconnect(session);
  if (status != DIBS_OK) fail_msg("%s", said.text);
}

/* Of a server: by hand, on a connection of its own.  The first cell of the answer, or 0. */
static int64_t far_say(struct dibs__far *store, const char *text, const struct dibs__sql_value *values, size_t count) {
  const struct dibs__far_engine *engine = store->engine;
  struct dibs__sql_wire *wire;
  struct dibs__said said = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  char *made = dibs__far_text(store, text);
  assert_non_null(made);
  if (engine->connect(store, by, &wire, &said) != DIBS_OK) fail_msg("%s", said.text);
  wire->by = by;
  bool done =
      engine->sql.put(wire, made, values, count) == DIBS__SQL_FINE && engine->sql.go(wire, true) == DIBS__SQL_FINE;
  if (!done) print_error("%s\n", wire->words);
  int64_t cell = done && engine->sql.rows(wire, 0) ? dibs__sql_cell_number(wire, 0, 0, 0) : 0;
  engine->close(wire);
  free(made);
  assert_true(done);
  return cell;
}

static void far_use_up(struct party *p, uint16_t bucket, uint32_t left) {
  struct dibs__sql_value v[] = {dibs__sql_number(bucket), dibs__sql_number((int64_t)(DIBS__SEQ_MAX - left))};
  far_say((struct dibs__far *)innermost(p),
          "UPDATE dibs_name SET seq = $2 WHERE bucket = $1 AND name = '' AND place = 0", v, 2);
}

static void far_bury(struct dibs__dstore *store, dibs__id id) {
  struct dibs__sql_value v = dibs__sql_bytes(id.b, sizeof id.b);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 10000);
  while (far_say((struct dibs__far *)store, "SELECT max(@alive) FROM dibs_name WHERE id = $1 AND place > 0", &v, 1) >
         0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    dibs__nap_ms(1);
  }
}

/* Where test/postgres/skewed.sh has put a clock of its own before the server's. */
static void far_skew(struct dibs__dstore *store, int64_t ms) {
  struct dibs__sql_value v = dibs__sql_number(ms);
  far_say((struct dibs__far *)store, "UPDATE test_clock SET ms = ms + $1", &v, 1);
}

/* Where test/mysql/skewed.sh has put a clock of its own before the server's. */
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

static const struct contract_target targets[] = {
    {.scheme = "memory",
     .local = true,
     .skew = dibs__memory_skew,
     .kill = dibs__memory_kill,
     .forget = dibs__memory_forget,
     .use_up = memory_use_up},
    {.scheme = "sqlite",
     .local = true,
     .is_file = true,
     .own_clocks = true,
     .skew = dibs__sqlite_skew,
     .use_up = sqlite_use_up},
    {.scheme = "postgres", .use_up = far_use_up, .bury = far_bury},
    {.scheme = "postgresql", .use_up = far_use_up, .bury = far_bury, .skew = far_skew}, /* through skewed.sh */
    {.scheme = "mysql", .use_up = far_use_up, .bury = far_bury},
    {.scheme = "redis"},
    {.scheme = "redlock", .slack_ms = 100}, /* the clocks of nodes may run apart, and an answer takes its time */
    {.scheme = "mariadb", .use_up = far_use_up, .bury = far_bury, .skew = file_skew}, /* through skewed.sh */
};

static const struct contract_target unknown = {.scheme = "?"};

const struct contract_target *contract_target_of(const char *scheme) {
  for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
    if (strcmp(targets[i].scheme, scheme) == 0) return &targets[i];
  return &unknown;
}
