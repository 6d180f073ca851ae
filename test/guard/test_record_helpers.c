/* SPDX-License-Identifier: MIT */
/* What stands around records: the retry, several writes with their undo, declared tables, transactions of the user's.
 */
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
  return dibs_record_update(s, key, &o, fn, user, &result, &said);
}

static dibs_table *counters(void) {
  make_table("counter", "id %s PRIMARY KEY, n %s, version %s, fence %s, holder %s", engine->text, engine->number,
             engine->number, engine->number, engine->number);
  return TABLE(.table = "counter", .key = "id", .version = "version", .fence = "fence", .owner = "holder",
               .columns = "n");
}

enum { CROWD = 4, EACH = 25 };
struct member {
  dibs_store *store;
  dibs_table *table;
  uint32_t tries;
};

static void *count_in_a_crowd(void *arg) {
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

static void crowd(dibs_store *s, dibs_table *t) {
  pthread_t threads[CROWD];
  struct member members[CROWD];
  uint32_t tries = 0;
  for (int i = 0; i < CROWD; i++) {
    members[i] = (struct member){s, t, 0};
    assert_int_equal(pthread_create(&threads[i], NULL, count_in_a_crowd, &members[i]), 0);
  }
  for (int i = 0; i < CROWD; i++) {
    pthread_join(threads[i], NULL);
    tries += members[i].tries;
  }
  const dibs_record *got = get(s, "hits", DIBS_OK, .table = t);
  assert_int_equal(atoi(got->values[0].data), CROWD * EACH);
  assert_int_equal(atoi(got->version), CROWD * EACH);
  assert_true(tries >= CROWD * EACH);
}

static void a_crowd_loses_no_update(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = counters();
  crowd(s, t);
  crowd(s, NULL);
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
  assert_says("each of 3 times");
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
  assert_int_equal(dibs_release(old, &said), DIBS_OK);
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

/* ---- dibs_steps ---- */

struct act {
  const char *name;
  dibs_status does, undoes;
  int undo_fails; /* UNAVAILABLE so often first */
};
static char story[256];

static void tell(char sign, const char *name) {
  size_t len = strlen(story);
  snprintf(story + len, sizeof story - len, "%c%s", sign, name);
}

static dibs_status act(void *user, dibs_error *error) {
  const struct act *a = user;
  tell('+', a->name);
  if (a->does != DIBS_OK) snprintf(error->text, sizeof error->text, "%s does not work", a->name);
  return a->does;
}

static dibs_status undo(void *user, dibs_error *error) {
  struct act *a = user;
  tell('-', a->name);
  if (a->undo_fails-- > 0) return DIBS_UNAVAILABLE;
  if (a->undoes != DIBS_OK) snprintf(error->text, sizeof error->text, "%s stays", a->name);
  return a->undoes;
}

static dibs_steps_result in_steps(struct act *acts, size_t count, dibs_status want) {
  dibs_step steps[8];
  dibs_steps_result r = {.size = sizeof r};
  story[0] = '\0';
  for (size_t i = 0; i < count; i++)
    steps[i] = (dibs_step){acts[i].name, act, acts[i].undoes == DIBS_UNSUPPORTED ? NULL : undo, &acts[i]};
  dibs_status got = dibs_steps(steps, count, 100, &r, &said);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), said.text);
  return r;
}

static void steps_are_done_or_taken_back(void **state) {
  (void)state;
  struct act all[] = {{.name = "a"}, {.name = "b", .does = DIBS_REPLAY}, {.name = "c"}};
  dibs_steps_result r = in_steps(all, 3, DIBS_OK);
  assert_string_equal(story, "+a+b+c");
  assert_int_equal(r.done, 3);
  struct act fails[] = {
      {.name = "a"}, {.name = "b", .undo_fails = 2, .undoes = DIBS_NOT_FOUND}, {"c", DIBS_CONFLICT, 0, 0}};
  r = in_steps(fails, 3, DIBS_CONFLICT);
  assert_string_equal(story, "+a+b+c-b-b-b-a");
  assert_int_equal(r.done, 2);
  assert_int_equal(r.left, 0);
  assert_int_equal(r.undo_tries, 4);
  assert_says("step 3, \"c\", failed: CONFLICT: c does not work");
  assert_says("all that was done before is undone");
}

static void what_remains_is_said(void **state) {
  (void)state;
  struct act acts[] = {{"a", DIBS_OK, DIBS_DENIED, 0},
                       {"b", DIBS_OK, DIBS_OK, 0},
                       {"c", DIBS_OK, DIBS_UNSUPPORTED, 0},
                       {"d", DIBS_FULL, DIBS_OK, 0}};
  dibs_steps_result r = in_steps(acts, 4, DIBS_FULL);
  assert_string_equal(story, "+a+b+c+d-b-a");
  assert_int_equal(r.left, 2);
  assert_int_equal(r.first_left, 0);
  assert_int_equal(r.undo, DIBS_DENIED);
  assert_says("by hand: \"c\" (it has no undo), \"a\" (DENIED: a stays)");
  struct act down[] = {{"a", DIBS_OK, DIBS_OK, 1000}, {"b", DIBS_CONFLICT, DIBS_OK, 0}};
  r = in_steps(down, 2, DIBS_CONFLICT);
  assert_int_equal(r.left, 1);
  assert_int_equal(r.undo, DIBS_UNAVAILABLE);
  assert_true(r.undo_tries > 2);
}

static void a_step_of_unknown_outcome_is_taken_back_too(void **state) {
  (void)state;
  struct act acts[] = {{"a", DIBS_OK, DIBS_OK, 0}, {"b", DIBS_UNKNOWN, DIBS_NOT_FOUND, 0}};
  dibs_steps_result r = in_steps(acts, 2, DIBS_UNKNOWN);
  assert_string_equal(story, "+a+b-b-a");
  assert_int_equal(r.left, 0);
}

/* ---- Declaring ---- */

static void declares(dibs_status want, const char *words, const dibs_table_options *o) {
  dibs_table *t = NULL;
  dibs_status got = dibs_table_declare(o, &t, &said);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), said.text);
  assert_true((t != NULL) == (want == DIBS_OK));
  if (words) assert_says(words);
  dibs_table_free(t);
}
#define DECLARES(want, words, ...)                                                                                     \
  declares(want, words, &(dibs_table_options){.size = sizeof(dibs_table_options), __VA_ARGS__})

static void only_names_are_names(void **state) {
  (void)state;
  DECLARES(DIBS_OK, NULL, .table = "event", .key = "id");
  DECLARES(DIBS_OK, NULL, .table = "a.b", .key = "_$", .columns = " a,b c ,, d ");
  DECLARES(DIBS_INVALID, "table and its key", .table = "event");
  DECLARES(DIBS_INVALID, "table and its key", .table = "event", .key = "");
  DECLARES(DIBS_INVALID, "table \"a b\" has something else", .table = "a b", .key = "id");
  DECLARES(DIBS_INVALID, "\"x\"\" has something else", .table = "x\"", .key = "id");
  DECLARES(DIBS_INVALID, "has something else", .table = "a.b.c", .key = "id");
  DECLARES(DIBS_INVALID, "is empty", .table = "a.", .key = "id");
  DECLARES(DIBS_INVALID, "is empty", .table = ".a", .key = "id");
  DECLARES(DIBS_INVALID, "key \"a.b\" has something else", .table = "event", .key = "a.b");
  DECLARES(DIBS_INVALID, "before a letter or digit", .table = "event", .key = "a$1");
  DECLARES(DIBS_INVALID, "before a letter or digit", .table = "event", .key = "$rows");
  DECLARES(DIBS_INVALID, "longer than 64", .table = "event",
           .key = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
  DECLARES(DIBS_INVALID, "has something else", .table = "event", .key = "id", .columns = "a, `b`");
  DECLARES(DIBS_INVALID, "\"A\" is named twice", .table = "event", .key = "id", .version = "a", .columns = "b, A");
  DECLARES(DIBS_INVALID, "none of number, time, hash", .table = "event", .key = "id", .version_kind = "uuid");
  DECLARES(DIBS_INVALID, "without a version column", .table = "event", .key = "id", .version_kind = "time");
  DECLARES(DIBS_INVALID, "a hash is one of columns", .table = "event", .key = "id", .version_kind = "hash");
  DECLARES(DIBS_INVALID, "no fence column", .table = "event", .key = "id", .owner = "o");
  DECLARES(DIBS_INVALID, "go together", .table = "event", .key = "id", .used = "u");
  DECLARES(DIBS_INVALID, "need claim and", .table = "event", .key = "id", .claims = "c");
  DECLARES(DIBS_INVALID, "without claims", .table = "event", .key = "id", .claim = "c");
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
  dibs_status got = dibs_table_read(file, section, &t, &said);
  unlink(file);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), said.text);
  assert_true((t != NULL) == (want == DIBS_OK));
  if (words) assert_says(words);
  dibs_table_free(t);
}

static void a_file_declares_tables(void **state) {
  (void)state;
  static const char two[] = "# ours\n[event]\r\ntable = booking.event ; theirs\n\tkey=id\n"
                            "version = version\nversion_kind = number\ncolumns = title, body\n\n[b]\ntable=b\nkey=k";
  reads(two, "event", DIBS_OK, NULL);
  reads(two, "b", DIBS_OK, NULL);
  reads(two, NULL, DIBS_INVALID, "has 2 sections: say which");
  reads(two, "c", DIBS_NOT_FOUND, "no section [c]");
  reads("\xef\xbb\xbf[a]\ntable=a\nkey=b\n", NULL, DIBS_OK, NULL);
  reads("", NULL, DIBS_INVALID, "has 0 sections");
  reads("[a]\ntable = x y\nkey = k\n", "a", DIBS_INVALID, ":1: table \"x y\" has something else");
  reads("[a]\ntable = x\nkey = a#b;c\n", "a", DIBS_INVALID, ":1: key \"a#b;c\" has something else");
  reads("[a]\ntable = x\nky = k\n", "a", DIBS_INVALID, ":3: there is no such key");
  reads("[a]\ntable = x\ntable = y\n", "a", DIBS_INVALID, ":3: 'table' is there twice");
  reads("[a]\ntable = x\n[b]\n[a]\n", "a", DIBS_INVALID, ":4: there is a section [a] above");
  reads("[a]\ntable\n", "a", DIBS_INVALID, ":2: 'table' is neither");
  reads("table = x\n", "a", DIBS_INVALID, ":1: 'table' stands in no section");
  reads("[a\n", "a", DIBS_INVALID, ":1: '[a' begins a section but");
  reads("[]\n", "a", DIBS_INVALID, ":1: '' is no name of a section");
  reads("[a]\nkey =\n", "a", DIBS_INVALID, ":2: a key without a value");
  reads("[a]\nkey = \xff\n", "a", DIBS_INVALID, ":2: the line is no UTF-8");
  reads("[a]\nkey = \x01\n", "a", DIBS_INVALID, ":2: there is a control character");
  assert_int_equal(dibs_table_read("/nowhere/at.all", NULL, &(dibs_table *){NULL}, &said), DIBS_UNAVAILABLE);
  assert_says("/nowhere/at.all can't be opened");
}

/* ---- In a transaction of the user's ---- */

static dibs_store *inside_of(dibs_store *s, void *connection) {
  dibs_store *inside = NULL;
  if (dibs_inside(s, connection, &inside, &said) != DIBS_OK) fail_msg("%s", said.text);
  return inside;
}

static void what_is_done_inside_stands_when_it_commits(void **state) {
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
    /* The transaction is theirs, and unharmed. */
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
  assert_int_equal(dibs_release(old, &said), DIBS_OK);
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

static void there_are_no_leases_inside(void **state) {
  (void)state;
  dibs_store *s = store_open();
  sql("BEGIN");
  dibs_store *inside = inside_of(s, connection()), *twice = NULL;
  dibs_lease *lease = NULL;
  assert_int_equal(dibs_acquire(inside, "n", NULL, &lease, &said), DIBS_INVALID);
  assert_says("inside a transaction of yours there are no leases");
  assert_null(lease);
  assert_int_equal(dibs_break(inside, "n", NULL, &said), DIBS_INVALID);
  assert_int_equal(dibs_inside(inside, connection(), &twice, &said), DIBS_INVALID);
  assert_null(twice);
  dibs_close(inside);
  sql("ROLLBACK");
  assert_int_equal(dibs_inside(s, NULL, &twice, &said), DIBS_INVALID);
  dibs_store *m = memory_open();
  assert_int_equal(dibs_inside(m, connection(), &twice, &said), DIBS_UNSUPPORTED);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(a_crowd_loses_no_update),
      TEST(an_update_is_bounded_and_counted),
      TEST(an_update_under_a_lease_seals),
      TEST(steps_are_done_or_taken_back),
      TEST(what_remains_is_said),
      TEST(a_step_of_unknown_outcome_is_taken_back_too),
      TEST(only_names_are_names),
      TEST(a_file_declares_tables),
      TEST(what_is_done_inside_stands_when_it_commits),
      TEST(a_fence_holds_inside_too),
      TEST(there_are_no_leases_inside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
