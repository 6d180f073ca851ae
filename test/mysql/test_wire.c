/* SPDX-License-Identifier: MIT */
/* The wire on a real server: values, rows, packets, deadlines, errors. */
#include "bed.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct dibs__sql_wire wire_t;
typedef struct dibs__sql_value value;

static struct bed bed;
static wire_t *w;

static int begin(void **state) {
  (void)state;
  bed_make(&bed, bed_uri);
  w = bed_connect(&bed);
  run(w, "DROP TABLE IF EXISTS wire_child, wire");
  run(w, "CREATE TABLE wire (name VARBINARY(255) PRIMARY KEY, n BIGINT, t VARCHAR(200), b LONGBLOB, CHECK (n <> 13))");
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__mysql_close(w);
  bed_drop(&bed);
  return 0;
}

static bool same(value got, const char *p, size_t len) {
  return got.p && got.len == len && memcmp(got.p, p, len) == 0;
}

static void values_are_returned_unchanged(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "plain",
                                      "it's",
                                      "back\\slash \\' x",
                                      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x8d\xba",
                                      "\xff\xfe no utf-8",
                                      "a\nb\tc\x1a",
                                      "$1 $rows ; -- /* */ ?",
                                      "\"q\" `b`",
                                      "blank "};
  static const int64_t numbers[] = {0, 1, -1, 42, INT64_MAX, INT64_MIN, 1000000007};
  char all[256];
  for (size_t i = 0; i < sizeof all; i++) all[i] = (char)i;
  for (int mode = 0; mode < 2; mode++) {
    if (mode) run(w, "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,STRICT_ALL_TABLES'");
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
      value v[] = {dibs__sql_text(texts[i], strlen(texts[i])), dibs__sql_number(numbers[i % COUNT_OF(numbers)]),
                   dibs__sql_bytes(all, i * 25), dibs__sql_null()};
      assert_int_equal(w->engine->put(w, "SELECT $1, $2, $3, $4, 7 -$2", v, 4 - (i == 99)), DIBS__SQL_OK);
      assert_int_equal(w->engine->put(w, "DELETE FROM wire", NULL, 0), DIBS__SQL_OK);
      assert_int_equal(w->engine->put(w, "INSERT INTO wire (name, n, b) VALUES ($1, $2, $3)", v, 3), DIBS__SQL_OK);
      assert_int_equal(w->engine->put(w, "SELECT name, n, b FROM wire WHERE name = $1", v, 1), DIBS__SQL_OK);
      if (numbers[i % COUNT_OF(numbers)] == INT64_MIN) { /* 7 - INT64_MIN is out of range, which is an error */
        breaks(w, DIBS__SQL_REFUSED);
        continue;
      }
      assert_int_equal(w->engine->go(w, false), DIBS__SQL_OK);
      assert_true(same(w->engine->cell(w, 0, 0, 0, DIBS__SQL_TEXT), texts[i], strlen(texts[i])));
      assert_int_equal(number(w, 0, 0, 1), numbers[i % COUNT_OF(numbers)]);
      assert_true(same(w->engine->cell(w, 0, 0, 2, DIBS__SQL_BYTES), all, i * 25));
      assert_int_equal(w->engine->cell(w, 0, 0, 3, DIBS__SQL_NUMBER).kind, DIBS__SQL_NULL);
      assert_int_equal(w->engine->rows(w, 3), 1);
      assert_true(same(w->engine->cell(w, 3, 0, 0, DIBS__SQL_TEXT), texts[i], strlen(texts[i])));
      assert_true(same(w->engine->cell(w, 3, 0, 2, DIBS__SQL_BYTES), all, i * 25));
    }
  }
}

static void a_table_of_values_is_read_inserted_and_joined(void **state) {
  (void)state;
  char wide[201];
  memset(wide, 'x', sizeof wide);
  value rows[] = {
      dibs__sql_text("a", 1),  dibs__sql_null(),     dibs__sql_null(),          dibs__sql_null(),
      dibs__sql_text("b ", 2), dibs__sql_number(-5), dibs__sql_text(wide, 200), dibs__sql_bytes("\0\1", 2),
      dibs__sql_text("b", 1),  dibs__sql_number(5),  dibs__sql_text("s", 1),    dibs__sql_bytes(wide, 150),
  };
  value one = dibs__sql_number(1);
  assert_int_equal(w->engine->put_rows(w,
                                       "INSERT INTO wire (name, n, t, b) WITH r(k, n, t, b) AS ($rows)"
                                       " SELECT k, n + $1, t, b FROM r",
                                       &one, 1, rows, 4, 3),
                   DIBS__SQL_OK);
  assert_int_equal(w->engine->put_rows(w,
                                       "WITH r(k, n, t, b) AS ($rows) SELECT wire.name, r.n, wire.t, r.b"
                                       " FROM r JOIN wire ON wire.name = r.k ORDER BY wire.name FOR UPDATE",
                                       NULL, 0, rows, 4, 3),
                   DIBS__SQL_OK);
  assert_int_equal(w->engine->put_rows(w,
                                       "UPDATE wire JOIN (WITH r(k, n, t, b) AS ($rows) SELECT * FROM r) r ON"
                                       " wire.name = r.k SET wire.n = 99",
                                       NULL, 0, rows, 4, 3),
                   DIBS__SQL_OK);
  put(w, "UPDATE wire SET n = 99");
  if (w->engine->go(w, false) != DIBS__SQL_OK) fail_msg("%s", w->message);
  assert_int_equal(w->engine->changed(w, 0), 3);
  assert_int_equal(w->engine->rows(w, 1), 3);
  assert_true(same(w->engine->cell(w, 1, 0, 0, DIBS__SQL_TEXT), "a", 1));
  assert_int_equal(w->engine->cell(w, 1, 0, 1, DIBS__SQL_NUMBER).kind, DIBS__SQL_NULL);
  assert_true(same(w->engine->cell(w, 1, 1, 0, DIBS__SQL_TEXT), "b", 1));
  assert_true(same(w->engine->cell(w, 1, 1, 3, DIBS__SQL_BYTES), wide, 150));
  assert_true(same(w->engine->cell(w, 1, 2, 2, DIBS__SQL_TEXT), wide, 200));
  assert_int_equal(w->engine->changed(w, 2), 3);
  assert_int_equal(w->engine->changed(w, 3), 3); /* matched, although nothing changed */
}

static void an_error_ends_a_packet(void **state) {
  (void)state;
  put(w, "START TRANSACTION");
  put(w, "INSERT INTO wire (name) VALUES ('k')");
  put(w, "INSERT INTO wire (name) VALUES ('k')");
  put(w, "COMMIT");
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_FAILED);
  assert_int_equal(w->trouble, DIBS__SQL_TWICE);
  assert_int_equal(w->failed_at, 2);
  assert_false(w->unsure);
  assert_int_equal(w->engine->changed(w, 1), 1);
  dibs__sql_rollback(w);
  assert_int_equal(w->trouble, DIBS__SQL_TWICE);
  run(w, "SELECT count(*) FROM wire");
  assert_int_equal(number(w, 0, 0, 0), 0);
}

static void an_error_after_a_commit_is_ignored(void **state) {
  (void)state;
  put(w, "START TRANSACTION");
  put(w, "INSERT INTO wire (name) VALUES ('k')");
  put(w, "COMMIT");
  put(w, "KILL QUERY 4000000000");
  put(w, "SELECT 5");
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_OK);
  assert_int_equal(w->engine->rows(w, 4), 0);
  run(w, "SELECT count(*) FROM wire");
  assert_int_equal(number(w, 0, 0, 0), 1);
}

static void errors_have_their_kinds(void **state) {
  (void)state;
  static const struct {
    const char *text;
    enum dibs__sql_trouble trouble;
  } cases[] = {
      {"INSERT INTO wire (name, n) VALUES ('x', 13)", DIBS__SQL_REFUSED},
      {"INSERT INTO wire (name, n) VALUES ('x', 9223372036854775808)", DIBS__SQL_REFUSED},
      {"INSERT INTO wire (name, t) VALUES ('x', REPEAT('y', 201))", DIBS__SQL_REFUSED},
      {"INSERT INTO wire (name) VALUES (NULL)", DIBS__SQL_REFUSED},
      {"INSERT INTO wire_child VALUES ('nobody')", DIBS__SQL_ORPHAN},
      {"SELECT * FROM no_such_table", DIBS__SQL_MISSING},
      {"SELECT no_such_column FROM wire", DIBS__SQL_MISSING},
      {"SELECT * FROM mysql.global_priv", DIBS__SQL_DENIED},
      {"SET GLOBAL max_connections = 5", DIBS__SQL_DENIED},
      {"no sql", DIBS__SQL_ODD},
  };
  run(w, "CREATE TABLE wire_child (parent VARBINARY(255), FOREIGN KEY (parent) REFERENCES wire (name))");
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    put(w, cases[i].text);
    breaks(w, cases[i].trouble);
    assert_true(*w->message);
  }
  run(w, "SELECT 1");
}

static void a_lock_timeout_breaks_the_statement(void **state) {
  (void)state;
  wire_t *other = bed_connect(&bed);
  run(w, "INSERT INTO wire (name, n) VALUES ('k', 1), ('l', 1)");
  run(other, "START TRANSACTION");
  run(other, "UPDATE wire SET n = 2 WHERE name = 'k'");
  run(w, "START TRANSACTION");
  run(w, "UPDATE wire SET n = 2 WHERE name = 'l'");
  put(w, "UPDATE wire SET n = 3 WHERE name = 'k'");
  breaks(w, DIBS__SQL_LOCKED);
  dibs__mysql_close(other);
  dibs__sql_rollback(w);
}

/* Its client is stopped, or the network between them is cut.  MySQL has no such limit. */
static void a_transaction_that_idles_is_ended_by_the_server(void **state) {
  (void)state;
  run(w, "SELECT VERSION() LIKE '%MariaDB%'");
  if (number(w, 0, 0, 0) == 0) skip();
  wire_t *other = bed_connect(&bed);
  run(w, "INSERT INTO wire (name, n) VALUES ('idle', 1)");
  run(other, "START TRANSACTION");
  run(other, "UPDATE wire SET n = 2 WHERE name = 'idle'");
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  enum dibs__sql_rc end = DIBS__SQL_FAILED;
  while (end != DIBS__SQL_OK && dibs__tick_before(dibs__tick_now(), by)) {
    w->by = by;
    put(w, "UPDATE wire SET n = 3 WHERE name = 'idle'"); /* waits for a second */
    end = w->engine->go(w, false);
  }
  assert_int_equal(end, DIBS__SQL_OK);
  put(other, "COMMIT");
  breaks(other, DIBS__SQL_GONE);
  dibs__mysql_close(other);
}

static void a_deadline_is_kept_and_ends_the_connection(void **state) {
  (void)state;
  put(w, "SELECT SLEEP(20)");
  w->by = dibs__tick_add_ms(dibs__tick_now(), 50);
  breaks(w, DIBS__SQL_LATE);
  assert_true(dibs__tick_left_ms(w->by, dibs__tick_now()) < 200);
  assert_true(dibs__sql_dead(w));
  w->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  put(w, "SELECT 1");
  breaks(w, DIBS__SQL_GONE);
  assert_false(w->unsure);
}

static void a_late_commit_is_unknown(void **state) {
  (void)state;
  put(w, "START TRANSACTION");
  put(w, "INSERT INTO wire (name, n) VALUES ('late', SLEEP(0.3))");
  put(w, "COMMIT");
  w->by = dibs__tick_add_ms(dibs__tick_now(), 50);
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_FAILED);
  assert_int_equal(w->trouble, DIBS__SQL_LATE);
  assert_true(w->unsure);
}

static void a_killed_connection_is_noticed_before_sending(void **state) {
  (void)state;
  char text[128];
  wire_t *other = bed_connect(&bed);
  run(other, "SELECT CONNECTION_ID()");
  snprintf(text, sizeof text, "KILL %lld", (long long)number(other, 0, 0, 0));
  run(w, text);
  /* Waits until the server has closed it. */
  snprintf(text, sizeof text, "SELECT count(*) FROM information_schema.processlist WHERE id = %lld",
           (long long)number(other, 0, 0, 0));
  do run(w, text);
  while (number(w, 0, 0, 0) != 0);
  put(other, "INSERT INTO wire (name) VALUES ('never')");
  put(other, "COMMIT");
  assert_int_equal(other->engine->go(other, true), DIBS__SQL_FAILED);
  assert_int_equal(other->trouble, DIBS__SQL_GONE);
  assert_false(other->unsure);
  dibs__mysql_close(other);
}

static void large_content_uses_several_packets(void **state) {
  (void)state;
  enum { SIZE = 3000000, COUNT = 8 };
  run(w, "SELECT @@max_allowed_packet");
  assert_true(number(w, 0, 0, 0) < (int64_t)SIZE * 2 * COUNT);
  assert_true(number(w, 0, 0, 0) > (int64_t)SIZE * 2);
  char *big = malloc((size_t)SIZE * COUNT);
  assert_non_null(big);
  memset(big, 0xa7, (size_t)SIZE * COUNT);
  for (int64_t i = 0; i < COUNT; i++) {
    char name = (char)('a' + i);
    value v[] = {dibs__sql_text(&name, 1), dibs__sql_bytes(big, SIZE)};
    assert_int_equal(w->engine->put(w, "INSERT INTO wire (name, b) VALUES ($1, $2)", v, 2), DIBS__SQL_OK);
  }
  put(w, "SELECT count(*), sum(length(b)) FROM wire");
  assert_int_equal(w->engine->go(w, false), DIBS__SQL_OK);
  assert_int_equal(number(w, COUNT, 0, 0), COUNT);
  assert_int_equal(number(w, COUNT, 0, 1), (int64_t)SIZE * COUNT);
  /* A single statement that is too long is refused, and the connection stays usable. */
  value v = dibs__sql_bytes(big, (size_t)SIZE * COUNT);
  assert_int_equal(w->engine->put(w, "SELECT length($1)", &v, 1), DIBS__SQL_OK);
  breaks(w, DIBS__SQL_REFUSED);
  run(w, "SELECT 1");
  free(big);
}

static void the_clock_advances_within_a_packet(void **state) {
  (void)state;
  char text[128];
  snprintf(text, sizeof text, "SELECT %s, SLEEP(0.01), %s", w->engine->now_ms, w->engine->now_ms);
  run(w, text);
  int64_t first = number(w, 0, 0, 0), last = number(w, 0, 0, 2);
  assert_true(last - first >= 9);
  assert_true(llabs(first - dibs__wall_ms()) < 60000);
}

static MYSQL *users_own(unsigned long flags) {
  const struct dibs__mysql_location *p = bed.store.location;
  MYSQL *my = mysql_init(NULL);
  assert_non_null(
      mysql_real_connect(my, p->hosts[0].name, p->user, p->password, p->database, p->hosts[0].port, p->socket, flags));
  return my;
}

static void a_users_connection_is_used_and_restored(void **state) {
  (void)state;
  wire_t *inside = NULL;
  MYSQL *my = users_own(0);
  assert_int_equal(dibs__mysql_adopt(&bed.store, my, &inside, &bed.reported), DIBS_INVALID);
  assert_null(inside);
  assert_int_equal(mysql_query(my, "SET NAMES latin1"), 0);
  assert_int_equal(mysql_query(my, "START TRANSACTION"), 0);
  assert_int_equal(dibs__mysql_adopt(&bed.store, my, &inside, &bed.reported), DIBS_OK);
  inside->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  value v = dibs__sql_text("\xc3\xa4'", 3);
  assert_int_equal(dibs__sql_begin(inside), DIBS__SQL_OK);
  assert_int_equal(inside->engine->put(inside, "INSERT INTO wire (name, n) VALUES ($1, 3)", &v, 1), DIBS__SQL_OK);
  put(inside, "UPDATE wire SET n = 3");
  assert_int_equal(dibs__sql_commit(inside), DIBS__SQL_OK);
  assert_int_equal(inside->engine->go(inside, true), DIBS__SQL_OK);
  assert_int_equal(inside->engine->changed(inside, 2), 1);
  assert_int_equal(inside->engine->put(inside, "SELECT n FROM wire WHERE name = $1", &v, 1), DIBS__SQL_OK);
  assert_int_equal(inside->engine->go(inside, false), DIBS__SQL_OK);
  assert_int_equal(number(inside, 0, 0, 0), 3);
  /* The savepoint is rolled back; the transaction continues. */
  assert_int_equal(dibs__sql_begin(inside), DIBS__SQL_OK);
  put(inside, "DELETE FROM wire");
  put(inside, "INSERT INTO wire (name) VALUES (NULL)");
  breaks(inside, DIBS__SQL_REFUSED);
  dibs__sql_rollback(inside);
  dibs__mysql_close(inside);
  assert_int_equal(mysql_query(my, "SELECT 1; SELECT 2"), 1); /* several statements are an error again */
  run(w, "SELECT count(*) FROM wire");
  assert_int_equal(number(w, 0, 0, 0), 0);
  assert_int_equal(mysql_query(my, "COMMIT"), 0);
  run(w, "SELECT count(*) FROM wire");
  assert_int_equal(number(w, 0, 0, 0), 1);
  mysql_close(my);
}

/* ---- A server without TLS ---- */

struct bare_server {
  int listener, peer;
  char task[64]; /* result of the client's thread */
  size_t got;    /* bytes that the client sent */
};

static bool client_sleeps(const char *task) {
  char line[256] = "";
  FILE *file = fopen(task, "r");
  bool read = file && fgets(line, sizeof line, file);
  if (file) fclose(file);
  const char *state = read ? strrchr(line, ')') : NULL;
  return state && state[1] == ' ' && state[2] == 'S';
}

/* Sends the greeting of a MariaDB without TLS once the client waits for it; then reads to the end. */
static void *serve(void *arg) {
  static const char body[] = "\x0a"
                             "5.5.5-10.11.6-MariaDB\0"
                             "\1\0\0\0"
                             "abcdefgh\0"
                             "\xfe\xf7\x2d\2\0\xff\x81\x15"
                             "\0\0\0\0\0\0\7\0\0\0"
                             "ijklmnopqrst\0"
                             "mysql_native_password";
  struct bare_server *s = arg;
  char packet[4 + sizeof body], in[512];
  s->peer = accept(s->listener, NULL, NULL);
  if (s->peer < 0) return NULL;
  while (!client_sleeps(s->task)) dibs__yield();
  memcpy(packet, (char[]){(char)sizeof body, 0, 0, 0}, 4);
  memcpy(packet + 4, body, sizeof body);
  if (send(s->peer, packet, sizeof packet, MSG_NOSIGNAL) != (ssize_t)sizeof packet) return NULL;
  for (ssize_t n; (n = recv(s->peer, in, sizeof in, 0)) > 0;) {
    s->got += (size_t)n;
    shutdown(s->peer, SHUT_WR);
  }
  return NULL;
}

static size_t bytes_sent_to_bare(const char *word, dibs__status *status, struct dibs__result *reported) {
  struct bare_server s = {.peer = -1};
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  struct bed b;
  wire_t *wire = NULL;
  pthread_t thread;
  char uri[128];
  snprintf(s.task, sizeof s.task, "/proc/self/task/%ld/stat", (long)syscall(SYS_gettid));
  s.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(s.listener, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(s.listener, 1), 0);
  assert_int_equal(getsockname(s.listener, (struct sockaddr *)&at, &size), 0);
  assert_int_equal(pthread_create(&thread, NULL, serve, &s), 0);
  snprintf(uri, sizeof uri, "mysql://u:secret@127.0.0.1:%u/d%s", ntohs(at.sin_port), word);
  bed_make(&b, uri);
  *status = dibs__mysql_connect(&b.store, dibs__tick_add_ms(dibs__tick_now(), LONG_MS), &wire, &b.reported);
  *reported = b.reported;
  bed_drop(&b);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_null(wire);
  close(s.peer);
  close(s.listener);
  return s.got;
}

static void nothing_is_sent_to_a_server_without_tls_if_tls_is_required(void **state) {
  (void)state;
  dibs__status status;
  struct dibs__result reported;
  assert_int_not_equal(bytes_sent_to_bare("?ssl=prefer", &status, &reported), 0); /* the packet that the test would
                                                                                   * see */
  assert_int_equal(bytes_sent_to_bare("?ssl=on", &status, &reported), 0);
  assert_int_equal(status, DIBS_DENIED);
  assert_non_null(strstr(reported.text, "offers no TLS, which ssl=on requires"));
  assert_int_equal(bytes_sent_to_bare("?ssl=verify", &status, &reported), 0);
  assert_int_equal(status, DIBS_DENIED);
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  bed_uri = argv[1];
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(values_are_returned_unchanged),
      CASE(a_table_of_values_is_read_inserted_and_joined),
      CASE(an_error_ends_a_packet),
      CASE(an_error_after_a_commit_is_ignored),
      CASE(errors_have_their_kinds),
      CASE(a_lock_timeout_breaks_the_statement),
      CASE(a_transaction_that_idles_is_ended_by_the_server),
      CASE(a_deadline_is_kept_and_ends_the_connection),
      CASE(a_late_commit_is_unknown),
      CASE(a_killed_connection_is_noticed_before_sending),
      CASE(large_content_uses_several_packets),
      CASE(the_clock_advances_within_a_packet),
      CASE(a_users_connection_is_used_and_restored),
      CASE(nothing_is_sent_to_a_server_without_tls_if_tls_is_required),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
