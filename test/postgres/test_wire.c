/* SPDX-License-Identifier: MIT */
/* A wire to PostgreSQL alone: values, packets, deadlines, and errors. */
#include "base/port.h"
#include "drivers/postgres/postgres_impl.h"
#include "store/uri.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *server;

struct bed {
  struct dibs__server store;
  struct dibs__uri uri;
  struct dibs__sql_wire *w, *other;
  struct dibs__result reported;
};

static dibs__tick soon(void) {
  return dibs__tick_add_ms(dibs__tick_now(), 10000);
}

static dibs__status open_store(struct bed *b, const char *uri) {
  b->reported = (struct dibs__result){.text = ""};
  dibs__status status = dibs__uri_parse(uri, &b->uri, &b->reported);
  if (status != DIBS_OK) return status;
  b->store.engine = &dibs__pg_engine;
  snprintf(b->store.options.schema, sizeof b->store.options.schema, "wire_test");
  snprintf(b->store.options.prefix, sizeof b->store.options.prefix, "dibs_");
  b->store.options.lock_timeout_ms = 2000;
  b->store.options.lease_sync = true;
  snprintf(b->store.shown, sizeof b->store.shown, "%s", b->uri.shown);
  return dibs__pg_prepare(&b->uri, &b->store, &b->store.location, &b->reported);
}

static void close_store(struct bed *b) {
  dibs__pg_forget(b->store.location);
  dibs__uri_free(&b->uri);
}

static struct dibs__sql_wire *connect_wire(struct bed *b) {
  struct dibs__sql_wire *w;
  dibs__status status = dibs__pg_connect(&b->store, soon(), &w, &b->reported);
  if (status != DIBS_OK) fail_msg("connect: %d %s", (int)status, b->reported.text);
  w->by = soon();
  return w;
}

static int setup(void **state) {
  struct bed *b = calloc(1, sizeof *b);
  assert_non_null(b);
  assert_int_equal(open_store(b, server), DIBS_OK);
  b->w = connect_wire(b);
  b->other = connect_wire(b);
  *state = b;
  return 0;
}

static int teardown(void **state) {
  struct bed *b = *state;
  dibs__pg_close(b->w);
  dibs__pg_close(b->other);
  close_store(b);
  free(b);
  return 0;
}

static void put(struct dibs__sql_wire *w, const char *text) {
  if (w->engine->put(w, text, NULL, 0) != DIBS__SQL_OK) fail_msg("put %s: %s", text, w->message);
}

static void go(struct dibs__sql_wire *w) {
  w->by = soon();
  if (w->engine->go(w, false) != DIBS__SQL_OK) fail_msg("go: %s (%d, %zu)", w->message, (int)w->trouble, w->failed_at);
}

static void say(struct dibs__sql_wire *w, const char *text) {
  put(w, text);
  go(w);
}

static void breaks(struct dibs__sql_wire *w, bool commits, enum dibs__sql_trouble trouble, size_t at) {
  w->by = soon();
  assert_int_equal(w->engine->go(w, commits), DIBS__SQL_FAILED);
  if (w->trouble != trouble || w->failed_at != at)
    fail_msg("%d at %zu (%s), not %d at %zu", (int)w->trouble, w->failed_at, w->message, (int)trouble, at);
}

static int64_t number(struct dibs__sql_wire *w, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(w, nth, row, column);
}

static int64_t send_request(struct dibs__sql_wire *w, const char *text) {
  say(w, text);
  return number(w, 0, 0, 0);
}

static bool is_text(struct dibs__sql_value v, const char *text) {
  return v.kind == DIBS__SQL_TEXT && v.len == strlen(text) && memcmp(v.p, text, v.len) == 0;
}

/* ---- Values ---- */

static void values_are_returned_unchanged(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  static const char bytes[] = {0, 1, '\\', (char)0xff, 'x'};
  struct dibs__sql_value v[] = {dibs__sql_number(INT64_MIN), dibs__sql_text("a'b\\ \xc3\xa4", 7),
                                dibs__sql_bytes(bytes, sizeof bytes), dibs__sql_null(), dibs__sql_bytes("", 0)};
  /* The first answers are text, later ones binary; the values are the same. */
  for (int i = 0; i < 3; i++) {
    assert_int_equal(w->engine->put(w, "SELECT $1, $2::text, $3, $4::bigint, $5", v, 5), DIBS__SQL_OK);
    go(w);
    assert_int_equal(w->engine->rows(w, 0), 1);
    assert_true(number(w, 0, 0, 0) == INT64_MIN);
    assert_true(is_text(w->engine->cell(w, 0, 0, 1, DIBS__SQL_TEXT), "a'b\\ \xc3\xa4"));
    struct dibs__sql_value got = w->engine->cell(w, 0, 0, 2, DIBS__SQL_BYTES);
    assert_int_equal(got.kind, DIBS__SQL_BYTES);
    assert_int_equal(got.len, sizeof bytes);
    assert_memory_equal(got.p, bytes, sizeof bytes);
    assert_int_equal(w->engine->cell(w, 0, 0, 3, DIBS__SQL_NUMBER).kind, DIBS__SQL_NULL);
    got = w->engine->cell(w, 0, 0, 4, DIBS__SQL_BYTES);
    assert_int_equal(got.kind, DIBS__SQL_BYTES);
    assert_int_equal(got.len, 0);
  }
}

static void texts_are_converted_to_the_type_of_the_column(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  say(w, "CREATE TEMP TABLE odd (i int, u uuid, t timestamptz, s smallint, n numeric, v varchar(10))");
  struct dibs__sql_value v[] = {dibs__sql_text("7", 1),
                                dibs__sql_text("00000000-0000-0000-0000-0000000000ff", 36),
                                dibs__sql_text("2020-01-02 03:04:05+00", 22),
                                dibs__sql_number(-3),
                                dibs__sql_text("1.50", 4),
                                dibs__sql_text("word", 4)};
  assert_int_equal(w->engine->put(w, "INSERT INTO odd VALUES ($1, $2, $3, $4, $5, $6)", v, 6), DIBS__SQL_OK);
  go(w);
  assert_int_equal(w->engine->changed(w, 0), 1);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(w->engine->put(w, "SELECT i, s, v FROM odd WHERE u = $1", &v[1], 1), DIBS__SQL_OK);
    put(w, "SELECT u, t, n, i FROM odd");
    go(w);
    assert_int_equal(number(w, 0, 0, 0), 7);
    assert_int_equal(number(w, 0, 0, 1), -3);
    assert_true(is_text(w->engine->cell(w, 0, 0, 0, DIBS__SQL_TEXT), "7"));
    assert_true(is_text(w->engine->cell(w, 1, 0, 0, DIBS__SQL_TEXT), "00000000-0000-0000-0000-0000000000ff"));
    assert_true(is_text(w->engine->cell(w, 1, 0, 1, DIBS__SQL_TEXT), "2020-01-02 03:04:05+00"));
    assert_true(is_text(w->engine->cell(w, 1, 0, 2, DIBS__SQL_TEXT), "1.50"));
    assert_int_equal(number(w, 1, 0, 3), 7);
  }
}

static void null_may_come_first(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  say(w, "CREATE TEMP TABLE thin (i int, b bytea)");
  struct dibs__sql_value none[] = {dibs__sql_null(), dibs__sql_null()};
  struct dibs__sql_value some[] = {dibs__sql_number(12), dibs__sql_bytes("\0\1", 2)};
  const char *text = "INSERT INTO thin VALUES ($1, $2)";
  assert_int_equal(w->engine->put(w, text, none, 2), DIBS__SQL_OK);
  assert_int_equal(w->engine->put(w, text, some, 2), DIBS__SQL_OK);
  assert_int_equal(w->engine->put(w, text, none, 2), DIBS__SQL_OK);
  go(w);
  assert_int_equal(send_request(w, "SELECT count(*) FROM thin WHERE i = 12 AND b = '\\x0001'"), 1);
  assert_int_equal(send_request(w, "SELECT count(*) FROM thin WHERE i IS NULL AND b IS NULL"), 2);
}

static void rows_are_one_statement(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  enum { ROWS = 1000 };
  static struct dibs__sql_value rows[ROWS][3];
  static char names[ROWS][16];
  for (size_t i = 0; i < ROWS; i++) {
    int len = snprintf(names[i], sizeof names[i], "name %zu", i);
    rows[i][0] = dibs__sql_number((int64_t)i);
    rows[i][1] = dibs__sql_text(names[i], (size_t)len);
    rows[i][2] = i % 2 ? dibs__sql_bytes(names[i], 3) : dibs__sql_null();
  }
  const char *text = "WITH r(i, t, b) AS ($rows) SELECT i + $1, t, b FROM r WHERE i >= $2";
  struct dibs__sql_value v[] = {dibs__sql_number(1), dibs__sql_number(0)};
  for (size_t n = ROWS; n > 0; n /= 10) {
    assert_int_equal(w->engine->put_rows(w, text, v, 2, rows[0], 3, n), DIBS__SQL_OK);
    go(w);
    assert_int_equal(w->engine->rows(w, 0), n);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(number(w, 0, i, 0), i + 1);
      assert_true(is_text(w->engine->cell(w, 0, i, 1, DIBS__SQL_TEXT), names[i]));
      assert_int_equal(w->engine->cell(w, 0, i, 2, DIBS__SQL_BYTES).kind, i % 2 ? DIBS__SQL_BYTES : DIBS__SQL_NULL);
    }
  }
  /* Two statements: with b as bytes, and with b as a number for the last call, where it had no type. */
  assert_int_equal(send_request(w, "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'WITH r%'"), 2);
}

static void a_nul_in_text_is_refused(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  struct dibs__sql_value v = dibs__sql_text("a\0b", 3);
  put(w, "SELECT 1");
  assert_int_equal(w->engine->put(w, "SELECT $1::text", &v, 1), DIBS__SQL_OK);
  breaks(w, false, DIBS__SQL_REFUSED, 1);
  assert_int_equal(send_request(w, "SELECT 5"), 5);
}

static void large_packets_do_not_deadlock(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  enum { SIZE = 1 << 20, TIMES = 24 };
  char *big = malloc(SIZE);
  assert_non_null(big);
  memset(big, 'y', SIZE);
  struct dibs__sql_value v = dibs__sql_bytes(big, SIZE);
  for (int i = 0; i < TIMES; i++) assert_int_equal(w->engine->put(w, "SELECT $1 || $1", &v, 1), DIBS__SQL_OK);
  go(w);
  for (size_t i = 0; i < TIMES; i++) assert_int_equal(w->engine->cell(w, i, 0, 0, DIBS__SQL_BYTES).len, 2 * SIZE);
  free(big);
}

/* ---- Prepared once ---- */

static void texts_are_prepared_once(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  char copy[64];
  for (int i = 0; i < 5; i++) {
    snprintf(copy, sizeof copy, "SELECT %s", "41 + 1"); /* at another address, the same text */
    put(w, copy);
    snprintf(copy, sizeof copy, "SELECT %d", i % 2); /* at the same address, another text */
    put(w, copy);
    put(w, "SELECT 41 + 1");
    go(w);
    assert_int_equal(number(w, 0, 0, 0), 42);
    assert_int_equal(number(w, 1, 0, 0), i % 2);
  }
  assert_int_equal(send_request(w, "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT 41%'"), 1);
}

static void prepared_texts_are_bounded(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  char text[64];
  for (int i = 0; i < 3 * DIBS__PG_TEXTS; i++) {
    snprintf(text, sizeof text, "SELECT %d", i);
    put(w, text);
    if (i % 7 == 3) put(w, "SELECT 1 / (1 - 1)");
    w->by = soon();
    sql_rc end = w->engine->go(w, false);
    assert_int_equal(end, i % 7 == 3 ? DIBS__SQL_FAILED : DIBS__SQL_OK);
    if (end == DIBS__SQL_OK) assert_int_equal(number(w, 0, 0, 0), i);
  }
  int64_t there = send_request(w, "SELECT count(*) FROM pg_prepared_statements");
  assert_in_range(there, 1, DIBS__PG_TEXTS + 1);
  assert_int_equal(send_request(w, "SELECT 0"), 0);
}

static void a_failed_prepare_is_repeated(void **state) {
  struct bed *b = *state;
  for (int i = 0; i < 3; i++) {
    put(b->w, "SELECT n FROM later");
    breaks(b->w, false, DIBS__SQL_MISSING, 0);
    put(b->w, "SELECT 1 / (1 - 1)");
    put(b->w, "SELECT 77"); /* skipped: not prepared either */
    breaks(b->w, false, DIBS__SQL_REFUSED, 0);
  }
  say(b->w, "CREATE TEMP TABLE later AS SELECT 5 AS n");
  assert_int_equal(send_request(b->w, "SELECT n FROM later"), 5);
  assert_int_equal(send_request(b->w, "SELECT 77"), 77);
}

/* ---- Trouble ---- */

static void errors_end_a_packet(void **state) {
  struct bed *b = *state;
  struct dibs__sql_wire *w = b->w;
  say(w, "CREATE TEMP TABLE one (n int PRIMARY KEY CHECK (n < 10))");
  put(w, "BEGIN");
  put(w, "INSERT INTO one VALUES (1)");
  put(w, "INSERT INTO one VALUES (1)");
  put(w, "INSERT INTO one VALUES (2)");
  put(w, "COMMIT");
  breaks(w, true, DIBS__SQL_TWICE, 2);
  assert_false(w->unsure);
  assert_non_null(strstr(w->message, "duplicate key"));
  dibs__sql_rollback(w);
  assert_int_equal(w->trouble, DIBS__SQL_TWICE);
  assert_int_equal(send_request(w, "SELECT count(*) FROM one"), 0);
  /* A packet without BEGIN is one transaction, too. */
  put(w, "INSERT INTO one VALUES (3)");
  put(w, "INSERT INTO one VALUES (30)");
  breaks(w, true, DIBS__SQL_REFUSED, 1);
  assert_int_equal(send_request(w, "SELECT count(*) FROM one"), 0);
}

static void a_transaction_that_failed_does_not_commit(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  say(w, "BEGIN");
  put(w, "SELECT 1 / (1 - 1)");
  breaks(w, false, DIBS__SQL_REFUSED, 0);
  put(w, "COMMIT");
  breaks(w, true, DIBS__SQL_ODD, 0);
  assert_false(w->unsure);
  assert_int_equal(send_request(w, "SELECT 1"), 1);
}

static void an_error_after_a_commit_is_ignored(void **state) {
  struct dibs__sql_wire *w = ((struct bed *)*state)->w;
  say(w, "CREATE TEMP TABLE kept (n int)");
  put(w, "BEGIN");
  put(w, "INSERT INTO kept VALUES (1)");
  put(w, "COMMIT");
  put(w, "SELECT 1 / (1 - 1)");
  w->by = soon();
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_OK);
  assert_int_equal(w->engine->changed(w, 1), 1);
  assert_int_equal(w->engine->rows(w, 3), 0);
  assert_int_equal(send_request(w, "SELECT count(*) FROM kept"), 1);
}

static void errors_are_classified(void **state) {
  struct bed *b = *state;
  struct dibs__sql_wire *w = b->w;
  say(w, "CREATE TEMP TABLE parent (n int PRIMARY KEY)");
  say(w, "CREATE TEMP TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)");
  say(w, "INSERT INTO parent VALUES (1)");
  put(w, "INSERT INTO child VALUES (9)"); /* detected at the commit */
  breaks(w, true, DIBS__SQL_ORPHAN, 1);
  assert_false(w->unsure);
  put(w, "BEGIN");
  put(w, "INSERT INTO child VALUES (9)");
  put(w, "COMMIT");
  breaks(w, true, DIBS__SQL_ORPHAN, 2);
  assert_false(w->unsure);
  put(w, "SELECT * FROM nowhere");
  breaks(w, false, DIBS__SQL_MISSING, 0);
  put(w, "SELECT nothing FROM parent");
  breaks(w, false, DIBS__SQL_MISSING, 0);
  put(w, "SELECT * FROM pg_authid");
  breaks(w, false, DIBS__SQL_DENIED, 0);
  put(w, "SELEC");
  breaks(w, false, DIBS__SQL_ODD, 0);
  put(w, "SET default_transaction_read_only = on");
  go(w);
  put(w, "CREATE TABLE nope (n int)");
  breaks(w, false, DIBS__SQL_DENIED, 0);
}

static void locks_and_deadlocks(void **state) {
  struct bed *b = *state;
  static const struct dibs__sql_value key = {.kind = DIBS__SQL_NUMBER, .number = 0x6469627377697265};
  static const char *const text = "SELECT pg_advisory_xact_lock($1)";
  put(b->other, "BEGIN");
  assert_int_equal(b->other->engine->put(b->other, text, &key, 1), DIBS__SQL_OK);
  go(b->other);
  say(b->w, "SET lock_timeout = 100");
  assert_int_equal(b->w->engine->put(b->w, text, &key, 1), DIBS__SQL_OK);
  breaks(b->w, false, DIBS__SQL_LOCKED, 0);
  put(b->w, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$");
  breaks(b->w, false, DIBS__SQL_DEADLOCK, 0);
  put(b->w, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$");
  breaks(b->w, false, DIBS__SQL_DEADLOCK, 0);
}

static void a_deadline_is_kept(void **state) {
  struct bed *b = *state;
  put(b->w, "BEGIN");
  put(b->w, "SELECT pg_sleep(0.5)");
  put(b->w, "COMMIT");
  dibs__tick began = dibs__tick_now();
  b->w->by = dibs__tick_add_ms(began, 50);
  assert_int_equal(b->w->engine->go(b->w, true), DIBS__SQL_FAILED);
  assert_in_range(dibs__tick_left_ms(began, dibs__tick_now()), 50, 300);
  assert_int_equal(b->w->trouble, DIBS__SQL_LATE);
  assert_true(b->w->unsure);
  assert_true(dibs__sql_dead(b->w));
  assert_int_equal(b->w->engine->put(b->w, "SELECT 1", NULL, 0), DIBS__SQL_FAILED);
}

/* ---- Ends ---- */

static int64_t process(struct dibs__sql_wire *w) {
  return send_request(w, "SELECT pg_backend_pid()");
}

static void end_process(struct dibs__sql_wire *by, int64_t pid) {
  struct dibs__sql_value v = dibs__sql_number(pid);
  assert_int_equal(by->engine->put(by, "SELECT pg_terminate_backend($1::int, 5000)", &v, 1), DIBS__SQL_OK);
  go(by);
}

static void a_connection_that_ends_while_idle_is_unavailable(void **state) {
  struct bed *b = *state;
  end_process(b->other, process(b->w));
  sql_rc end = b->w->engine->put(b->w, "BEGIN", NULL, 0);
  if (end == DIBS__SQL_OK) end = b->w->engine->put(b->w, "COMMIT", NULL, 0);
  if (end == DIBS__SQL_OK) end = b->w->engine->go(b->w, true);
  assert_int_equal(end, DIBS__SQL_FAILED);
  assert_int_equal(b->w->trouble, DIBS__SQL_GONE);
  assert_false(b->w->unsure);
  assert_non_null(strstr(b->w->message, "terminating connection"));
}

struct killer {
  struct bed *bed;
  int64_t pid;
};

/* Waits until the other connection waits for a lock, then ends it. */
static void kill_when_waiting(void *arg) {
  struct killer *k = arg;
  struct dibs__sql_value v = dibs__sql_number(k->pid);
  struct dibs__sql_wire *w = k->bed->other;
  for (dibs__tick by = soon(); dibs__tick_before(dibs__tick_now(), by);) {
    w->by = by;
    if (w->engine->put(w, "SELECT count(*) FROM pg_locks WHERE pid = $1::int AND NOT granted", &v, 1) ||
        w->engine->go(w, false))
      return;
    if (number(w, 0, 0, 0)) break;
    dibs__nap_ms(1);
  }
  if (w->engine->put(w, "SELECT pg_terminate_backend($1::int)", &v, 1) == DIBS__SQL_OK) w->engine->go(w, false);
}

static void a_connection_that_ends_before_the_commits_answer_is_unknown(void **state) {
  struct bed *b = *state;
  struct dibs__sql_value key = dibs__sql_number(0x6469627377697267);
  put(b->other, "SET lock_timeout = 0");
  assert_int_equal(b->other->engine->put(b->other, "SELECT pg_advisory_lock($1)", &key, 1), DIBS__SQL_OK);
  go(b->other);
  struct killer k = {b, process(b->w)};
  dibs__thread *t = dibs__thread_start("killer", kill_when_waiting, &k);
  assert_non_null(t);
  put(b->w, "BEGIN");
  assert_int_equal(b->w->engine->put(b->w, "SELECT pg_advisory_xact_lock($1)", &key, 1), DIBS__SQL_OK);
  put(b->w, "COMMIT");
  breaks(b->w, true, DIBS__SQL_GONE, 1);
  assert_true(b->w->unsure);
  dibs__thread_join(t);
}

/* ---- Within the user's transaction ---- */

static void a_users_connection_is_unchanged(void **state) {
  struct bed *b = *state;
  struct dibs__pg_wire *lender = (struct dibs__pg_wire *)b->other;
  struct dibs__sql_wire *in;
  PGconn *pg = lender->pg;
  say(b->other, "CREATE TEMP TABLE mine (n int)");
  assert_int_equal(dibs__pg_adopt(&b->store, pg, &in, &b->reported), DIBS_INVALID); /* in pipeline mode */
  assert_int_equal(PQexitPipelineMode(pg), 1);
  assert_int_equal(PQsetnonblocking(pg, 0), 0);
  assert_int_equal(dibs__pg_adopt(&b->store, pg, &in, &b->reported), DIBS_INVALID); /* without a transaction */
  PQclear(PQexec(pg, "BEGIN"));
  assert_int_equal(PQsetClientEncoding(pg, "LATIN1"), 0);
  assert_int_equal(dibs__pg_adopt(&b->store, pg, &in, &b->reported), DIBS_INVALID); /* a name would be changed */
  assert_non_null(strstr(b->reported.text, "client_encoding LATIN1"));
  assert_int_equal(PQsetClientEncoding(pg, "UTF8"), 0);
  int64_t prepared = 0;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(dibs__pg_adopt(&b->store, pg, &in, &b->reported), DIBS_OK);
    in->by = soon();
    assert_int_equal(dibs__sql_begin(in), DIBS__SQL_OK);
    put(in, "INSERT INTO mine VALUES (1)");
    if (i == 0) {
      assert_int_equal(dibs__sql_commit(in), DIBS__SQL_OK);
      go(in);
      assert_int_equal(in->engine->changed(in, 1), 1);
    } else {
      put(in, "SELECT 1 / (1 - 1)");
      breaks(in, false, DIBS__SQL_REFUSED, 2);
      dibs__sql_rollback(in);
    }
    assert_int_equal(PQpipelineStatus(pg), PQ_PIPELINE_OFF);
    assert_false(PQisnonblocking(pg));
    assert_int_equal(PQtransactionStatus(pg), PQTRANS_INTRANS);
    dibs__pg_close(in);
    PGresult *got = PQexec(pg, "SELECT count(*), (SELECT count(*) FROM mine) FROM pg_prepared_statements");
    int64_t now = strtoll(PQgetvalue(got, 0, 0), NULL, 10);
    if (i == 0) prepared = now;
    assert_int_equal(now, prepared);
    assert_string_equal(PQgetvalue(got, 0, 1), "1");
    PQclear(got);
  }
  PQclear(PQexec(pg, "COMMIT"));
  lender->piping = false;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s postgres://...\n", argv[0]);
    return 2;
  }
  server = argv[1];
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(values_are_returned_unchanged),
      TEST(texts_are_converted_to_the_type_of_the_column),
      TEST(null_may_come_first),
      TEST(rows_are_one_statement),
      TEST(a_nul_in_text_is_refused),
      TEST(large_packets_do_not_deadlock),
      TEST(texts_are_prepared_once),
      TEST(prepared_texts_are_bounded),
      TEST(a_failed_prepare_is_repeated),
      TEST(errors_end_a_packet),
      TEST(a_transaction_that_failed_does_not_commit),
      TEST(an_error_after_a_commit_is_ignored),
      TEST(errors_are_classified),
      TEST(locks_and_deadlocks),
      TEST(a_deadline_is_kept),
      TEST(a_connection_that_ends_while_idle_is_unavailable),
      TEST(a_connection_that_ends_before_the_commits_answer_is_unknown),
      TEST(a_users_connection_is_unchanged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
