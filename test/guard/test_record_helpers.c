/* SPDX-License-Identifier: MIT */
/* The retry of dibs_record_update, declared tables, and records in the user's transactions. */
#include "dibs/mysql.h"
#include "dibs/postgres.h"
#include "dibs/sqlite.h"
#include "record_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- dibs_record_update ---- */

struct counting {
  char text[32];
  _Atomic int calls;
  dibs_status end;
  void (*between)(void);
};

static dibs_status count_up(const dibs_record *record, dibs_value *values, size_t count, void *user) {
  struct counting *c = user;
  assert_int_equal(count, 1);
  c->calls++;
  if (c->between) c->between();
  if (c->end != DIBS_OK) return c->end;
  snprintf(c->text, sizeof c->text, "%d", record ? atoi(record->values[0].data) + 1 : 1);
  values[0] = (dibs_value){c->text, strlen(c->text)};
  return DIBS_OK;
}

static dibs_status leave_it(const dibs_record *record, dibs_value *values, size_t count, void *user) {
  (void)record, (void)values, (void)count, (void)user;
  return DIBS_OK;
}

static dibs_status update(dibs_store *s, const char *key, dibs_update_options o, dibs_record_fn fn, void *user) {
  o.size = sizeof o;
  result.size = sizeof result;
  return dibs_record_update(s, key, &o, fn, user, &result, &reported);
}

static dibs_table *counters(void) {
  make_table("counter", "id %s PRIMARY KEY, n %s, version %s, fence %s, holder %s", engine->text, engine->number,
             engine->number, engine->number, engine->number);
  return TABLE(.table = "counter", .key = "id", .version = "version", .fence = "fence", .owner = "holder",
               .columns = "n");
}

enum { WAITERS = 4, EACH = 25 };
struct member {
  dibs_store *store;
  dibs_table *table;
  uint32_t tries;
};

static void *count_in_a_waiters(void *arg) {
  struct member *m = arg;
  for (int i = 0; i < EACH; i++) {
    struct counting c = {.end = DIBS_OK};
    dibs_update_options o = {.size = sizeof o, .table = m->table, .flags = DIBS_IF_ABSENT, .wait_ms = 60000};
    dibs_record_result mine = {.size = sizeof mine};
    dibs_error error;
    if (dibs_record_update(m->store, "hits", &o, count_up, &c, &mine, &error) != DIBS_OK) {
      fprintf(stderr, "%s\n", error.text);
      abort();
    }
    m->tries += mine.tries;
  }
  return NULL;
}

static void waiters(dibs_store *s, dibs_table *t) {
  pthread_t threads[WAITERS];
  struct member members[WAITERS];
  uint32_t tries = 0;
  for (int i = 0; i < WAITERS; i++) {
    members[i] = (struct member){s, t, 0};
    assert_int_equal(pthread_create(&threads[i], NULL, count_in_a_waiters, &members[i]), 0);
  }
  for (int i = 0; i < WAITERS; i++) {
    pthread_join(threads[i], NULL);
    tries += members[i].tries;
  }
  const dibs_record *got = get(s, "hits", DIBS_OK, .table = t);
  assert_int_equal(atoi(got->values[0].data), WAITERS * EACH);
  assert_int_equal(atoi(got->version), WAITERS * EACH);
  assert_true(tries >= WAITERS * EACH);
}

static void concurrent_updates_lose_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  waiters(s, t);
  waiters(s, NULL);
}

static void somebody_else(void) {
  sql("UPDATE counter SET n = n + 100, version = version + 1");
}

static void an_update_is_bounded_and_counted(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  struct counting c = {.between = NULL};
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t}, count_up, &c), DIBS_NOT_FOUND);
  assert_int_equal(c.calls, 0);
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t, .flags = DIBS_IF_ABSENT}, count_up, &c), DIBS_OK);
  assert_int_equal(result.tries, 1);
  c = (struct counting){.between = somebody_else};
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t, .tries = 3}, count_up, &c), DIBS_CONFLICT);
  assert_int_equal(result.tries, 3);
  assert_int_equal(c.calls, 3);
  assert_message("each of 3 times");
  assert_string_equal(cell("SELECT n FROM counter"), "301");
  c = (struct counting){.between = somebody_else};
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t, .wait_ms = 50}, count_up, &c), DIBS_TIMEOUT);
  assert_true(c.calls > 1);
  c = (struct counting){.end = DIBS_FULL};
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t}, count_up, &c), DIBS_FULL);
  assert_int_equal(c.calls, 1);
  char before[32];
  snprintf(before, sizeof before, "%s", cell("SELECT version FROM counter"));
  assert_int_equal(update(s, "a", (dibs_update_options){.table = t}, leave_it, NULL), DIBS_OK);
  assert_string_equal(cell("SELECT version FROM counter"), before);
  assert_string_equal(result.version, before);
}

static void an_update_under_a_lease_seals(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  dibs_lease *old = lease_of(s, "counting");
  assert_int_equal(dibs_release(old, &reported), DIBS_OK);
  dibs_lease *held = lease_of(s, "counting");
  struct counting c = {.between = NULL};
  for (int own = 0; own < 2; own++) {
    dibs_table *table = own ? NULL : t;
    dibs_update_options o = {.table = table, .lease = held, .flags = DIBS_IF_ABSENT};
    assert_int_equal(update(s, "b", o, count_up, &c), DIBS_OK);
    assert_int_equal(update(s, "b", o, count_up, &c), DIBS_OK);
    assert_string_equal(get(s, "b", DIBS_OK, .table = table)->values[0].data, "2");
    o.lease = old;
    assert_int_equal(update(s, "b", o, count_up, &c), DIBS_STALE);
  }
  assert_int_equal(c.calls, 4);
}

/* ---- Declaring ---- */

static void declares(dibs_status want, const char *words, const dibs_table_options *o) {
  dibs_table *t = NULL;
  dibs_status got = dibs_table_declare(o, &t, &reported);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), reported.text);
  assert_true((t != NULL) == (want == DIBS_OK));
  if (words) assert_message(words);
  dibs_table_free(t);
}
#define DECLARES(want, words, ...)                                                                                     \
  declares(want, words, &(dibs_table_options){.size = sizeof(dibs_table_options), __VA_ARGS__})

static void only_identifiers_are_accepted(void **state) {
  (void)state;
  DECLARES(DIBS_OK, NULL, .table = "event", .key = "id");
  DECLARES(DIBS_OK, NULL, .table = "a.b", .key = "_$", .columns = " a,b c ,, d ");
  DECLARES(DIBS_INVALID, "table and key are missing", .table = "event");
  DECLARES(DIBS_INVALID, "table and key are missing", .table = "event", .key = "");
  DECLARES(DIBS_INVALID, "table \"a b\" has other characters", .table = "a b", .key = "id");
  DECLARES(DIBS_INVALID, "\"x\"\" has other characters", .table = "x\"", .key = "id");
  DECLARES(DIBS_INVALID, "has other characters", .table = "a.b.c", .key = "id");
  DECLARES(DIBS_INVALID, "is empty", .table = "a.", .key = "id");
  DECLARES(DIBS_INVALID, "is empty", .table = ".a", .key = "id");
  DECLARES(DIBS_INVALID, "key \"a.b\" has other characters", .table = "event", .key = "a.b");
  DECLARES(DIBS_INVALID, "before a letter or digit", .table = "event", .key = "a$1");
  DECLARES(DIBS_INVALID, "before a letter or digit", .table = "event", .key = "$rows");
  DECLARES(DIBS_INVALID, "longer than 64", .table = "event",
           .key = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
  DECLARES(DIBS_INVALID, "has other characters", .table = "event", .key = "id", .columns = "a, `b`");
  DECLARES(DIBS_INVALID, "\"A\" is named twice", .table = "event", .key = "id", .version = "a", .columns = "b, A");
  DECLARES(DIBS_INVALID, "version_kind 3 does not exist", .table = "event", .key = "id",
           .version_kind = (dibs_version_kind)3);
  DECLARES(DIBS_INVALID, "needs a version column", .table = "event", .key = "id", .version_kind = DIBS_VERSION_TIME);
  DECLARES(DIBS_INVALID, "hash needs columns", .table = "event", .key = "id", .version_kind = DIBS_VERSION_HASH);
  DECLARES(DIBS_INVALID, "needs a fence column", .table = "event", .key = "id", .owner = "o");
  DECLARES(DIBS_INVALID, "need each other", .table = "event", .key = "id", .used = "u");
  DECLARES(DIBS_INVALID, "need claim and", .table = "event", .key = "id", .claims = "c");
  DECLARES(DIBS_INVALID, "need claims", .table = "event", .key = "id", .claim = "c");
  DECLARES(DIBS_OK, NULL, .table = "event", .key = "id", .used = "u", .limit = "l", .claims = "c", .claim = "id",
           .claim_stock = "event");
  char many[33 * 4 + 1] = "";
  for (size_t i = 0; i < 33; i++) snprintf(many + i * 4, sizeof many - i * 4, "c%02zu ", i);
  DECLARES(DIBS_INVALID, "more than 32", .table = "event", .key = "id", .columns = many);
  many[32 * 4] = '\0';
  DECLARES(DIBS_OK, NULL, .table = "event", .key = "id", .columns = many);
}

static void reads(const char *text, const char *section, dibs_status want, const char *words) {
  char file[] = "/tmp/dibs-ini-XXXXXX";
  int fd = mkstemp(file);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  dibs_table *t = NULL;
  dibs_status got = dibs_table_read(file, section, &t, &reported);
  unlink(file);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), reported.text);
  assert_true((t != NULL) == (want == DIBS_OK));
  if (words) assert_message(words);
  dibs_table_free(t);
}

static void a_file_declares_tables(void **state) {
  (void)state;
  static const char two[] = "# ours\n[event]\r\ntable = booking.event ; theirs\n\tkey=id\n"
                            "version = version\nversion_kind = number\ncolumns = title, body\n\n[b]\ntable=b\nkey=k";
  reads(two, "event", DIBS_OK, NULL);
  reads(two, "b", DIBS_OK, NULL);
  reads(two, NULL, DIBS_INVALID, "has 2 sections: name the section");
  reads(two, "c", DIBS_NOT_FOUND, "no section [c]");
  reads("\xef\xbb\xbf[a]\ntable=a\nkey=b\n", NULL, DIBS_OK, NULL);
  reads("", NULL, DIBS_INVALID, "has 0 sections");
  reads("[a]\ntable = x y\nkey = k\n", "a", DIBS_INVALID, ":1: table \"x y\" has other characters");
  reads("[a]\ntable = x\nkey = a#b;c\n", "a", DIBS_INVALID, ":1: key \"a#b;c\" has other characters");
  reads("[a]\ntable = x\nky = k\n", "a", DIBS_INVALID, ":3: the key is unknown");
  reads("[a]\ntable = x\ntable = y\n", "a", DIBS_INVALID, ":3: 'table' occurs twice");
  reads("[a]\ntable = x\n[b]\n[a]\n", "a", DIBS_INVALID, ":4: the section [a] already exists above");
  reads("[a]\ntable\n", "a", DIBS_INVALID, ":2: 'table' is neither");
  reads("table = x\n", "a", DIBS_INVALID, ":1: 'table' is outside of a section");
  reads("[a\n", "a", DIBS_INVALID, ":1: '[a' begins a section but");
  reads("[]\n", "a", DIBS_INVALID, ":1: '' is not a section name");
  reads("[a]\ntable = a\nkey = b\nversion = v\nversion_kind = time\n", "a", DIBS_OK, NULL);
  reads("[a]\ntable = a\nkey = b\nversion_kind = time\n", "a", DIBS_INVALID, "needs a version column");
  reads("[a]\nversion_kind = uuid\n", "b", DIBS_INVALID, ":2: version_kind is number, time or hash");
  reads("[a]\nversion_kind =\n", "a", DIBS_INVALID, ":2: a key has no value");
  reads("[a]\nkey =\n", "a", DIBS_INVALID, ":2: a key has no value");
  reads("[a]\nkey = \xff\n", "a", DIBS_INVALID, ":2: the line is not UTF-8");
  reads("[a]\nkey = \x01\n", "a", DIBS_INVALID, ":2: the line contains a control character");
  assert_int_equal(dibs_table_read("/nowhere/at.all", NULL, &(dibs_table *){NULL}, &reported), DIBS_UNAVAILABLE);
  assert_message("can't open /nowhere/at.all");
}

/* ---- In a transaction of the user's ---- */

static dibs_store *inside_of(dibs_store *s, void *connection) {
  dibs_store *inside = NULL;
  if (engine->inside(s, connection, &inside, &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return inside;
}

static void a_write_inside_commits_with_the_transaction(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  for (int commits = 0; commits < 2; commits++) {
    sql("BEGIN");
    sql("INSERT INTO counter (id, n, version) VALUES ('i', 1, 1)");
    dibs_store *inside = inside_of(s, connection());
    put(inside, "doc-inside", VALUES("one"), DIBS_OK, .flags = DIBS_IF_ABSENT);
    put(inside, "doc-inside", VALUES("two"), DIBS_OK, .if_version = result.version);
    put(inside, "doc-inside", VALUES("late"), DIBS_CONFLICT, .if_version = "77");
    put(inside, "i", VALUES("5"), DIBS_OK, .table = t, .if_version = "1");
    put(inside, "i", VALUES("6"), DIBS_CONFLICT, .table = t, .if_version = "1");
    put(inside, "i", VALUES("6"), DIBS_CONFLICT, .table = t, .flags = DIBS_IF_ABSENT);
    put(inside, "j", VALUES("1"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
    assert_string_equal(get(inside, "i", DIBS_OK, .table = t)->values[0].data, "5");
    assert_string_equal(get(inside, "doc-inside", DIBS_OK)->values[0].data, "two");
    /* The user's transaction is intact. */
    sql("UPDATE counter SET n = n + 1 WHERE id = 'i'");
    dibs_close(inside);
    sql(commits ? "COMMIT" : "ROLLBACK");
    get(s, "doc-inside", commits ? DIBS_OK : DIBS_NOT_FOUND);
    get(s, "j", commits ? DIBS_OK : DIBS_NOT_FOUND, .table = t);
  }
  assert_string_equal(get(s, "i", DIBS_OK, .table = t)->values[0].data, "6");
  take_away(s, "doc-inside", DIBS_OK, .flags = DIBS_UNCHECKED);
}

static void a_fence_holds_inside_too(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  dibs_lease *old = lease_of(s, "inside");
  assert_int_equal(dibs_release(old, &reported), DIBS_OK);
  dibs_lease *held = lease_of(s, "inside");
  sql("BEGIN");
  dibs_store *inside = inside_of(s, connection());
  get(inside, "doc-fence", DIBS_OK, .lease = held);
  put(inside, "doc-fence", VALUES("late"), DIBS_STALE, .lease = old);
  put(inside, "x", VALUES("1"), DIBS_OK, .table = t, .lease = held, .flags = DIBS_IF_ABSENT);
  put(inside, "x", VALUES("2"), DIBS_STALE, .table = t, .lease = old);
  dibs_close(inside);
  sql("COMMIT");
  put(s, "doc-fence", VALUES("late"), DIBS_STALE, .lease = old);
}

static void a_handle_inside_has_no_leases(void **state) {
  (void)state;
  dibs_store *s = store_open();
  sql("BEGIN");
  dibs_store *inside = inside_of(s, connection()), *twice = NULL;
  dibs_lease *lease = NULL;
  assert_int_equal(dibs_acquire(inside, "n", NULL, &lease, &reported), DIBS_INVALID);
  assert_message("a handle inside a transaction has no leases");
  assert_null(lease);
  assert_int_equal(dibs_break(inside, "n", NULL, &reported), DIBS_INVALID);
  assert_int_equal(engine->inside(inside, connection(), &twice, &reported), DIBS_INVALID);
  assert_null(twice);
  dibs_close(inside);
  sql("ROLLBACK");
  assert_int_equal(engine->inside(s, NULL, &twice, &reported), DIBS_INVALID);
  dibs_store *m = memory_open();
  assert_int_equal(engine->inside(m, connection(), &twice, &reported), DIBS_UNSUPPORTED);
}

/* A wrong call would hand the connection of one engine to the client library of another. */
static void a_connection_of_another_engine_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = s;
  static const char *const engines[] = {"postgres", "mysql", "sqlite"};
  for (size_t i = 0; i < 3; i++) {
    const char *driver = engines[i];
    if (strcmp(driver, engine->scheme) == 0) continue;
    dibs_status status = i == 0   ? dibs_inside_postgres(s, connection(), &inside, &reported)
                         : i == 1 ? dibs_inside_mysql(s, connection(), &inside, &reported)
                                  : dibs_inside_sqlite(s, connection(), &inside, &reported);
    assert_int_equal(status, DIBS_INVALID);
    assert_null(inside);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "the connection is one of %s, and the store one of %s", driver, engine->scheme);
    assert_message(wanted);
  }
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(concurrent_updates_lose_nothing),
      TEST(an_update_is_bounded_and_counted),
      TEST(an_update_under_a_lease_seals),
      TEST(only_identifiers_are_accepted),
      TEST(a_file_declares_tables),
      TEST(a_write_inside_commits_with_the_transaction),
      TEST(a_fence_holds_inside_too),
      TEST(a_handle_inside_has_no_leases),
      TEST(a_connection_of_another_engine_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
