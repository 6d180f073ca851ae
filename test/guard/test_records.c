/* SPDX-License-Identifier: MIT */
/* Records by version, in dibs' own table and in tables of the user's. */
#include "record_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- dibs' own table ---- */

static void the_current_version_is_replaced(void **state) {
  (void)state;
  dibs_store *s = store_open();
  put(s, "doc", VALUES("one"), DIBS_OK, .flags = DIBS_IF_ABSENT);
  assert_string_equal(result.version, "1");
  const dibs_record *was = get(s, "doc", DIBS_OK);
  assert_string_equal(was->version, "1");
  assert_int_equal(was->count, 1);
  assert_string_equal(was->values[0].data, "one");
  put(s, "doc", VALUES("two"), DIBS_OK, .if_version = was->version);
  assert_string_equal(result.version, "2");
  put(s, "doc", VALUES("late"), DIBS_CONFLICT, .if_version = was->version);
  assert_string_equal(result.version, "2");
  assert_message("at version \"2\", not \"1\"");
  put(s, "doc", VALUES("late"), DIBS_CONFLICT, .flags = DIBS_IF_ABSENT);
  assert_message("is there already, at version \"2\"");
  assert_string_equal(get(s, "doc", DIBS_OK)->values[0].data, "two");
  put(s, "none", VALUES("x"), DIBS_NOT_FOUND, .if_version = "1");
  take_away(s, "doc", DIBS_CONFLICT, .if_version = "1");
  take_away(s, "doc", DIBS_OK, .if_version = "2");
  get(s, "doc", DIBS_NOT_FOUND);
  take_away(s, "doc", DIBS_NOT_FOUND, .flags = DIBS_UNCHECKED);
  put(s, "doc", VALUES("again"), DIBS_OK, .flags = DIBS_UNCHECKED);
  put(s, "doc", VALUES("late"), DIBS_CONFLICT, .if_version = "1");
}

static void a_late_writer_gets_the_fence_in_the_message(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_lease *old = lease_of(s, "job");
  put(s, "doc", VALUES("one"), DIBS_OK, .lease = old);
  assert_int_equal(dibs_release(old, &reported), DIBS_OK);
  dibs_lease *held = lease_of(s, "job");
  const dibs_record *sealed = get(s, "doc", DIBS_OK, .lease = held);
  assert_int_equal(sealed->fence.value, dibs_lease_fence(held).value);
  put(s, "doc", VALUES("late"), DIBS_STALE, .lease = old);
  assert_int_equal(result.fence.value, dibs_lease_fence(held).value);
  assert_message("somebody newer holds the lease");
  put(s, "doc", VALUES("late"), DIBS_STALE, .lease = old, .if_version = sealed->version);
  take_away(s, "doc", DIBS_STALE, .lease = old);
  put(s, "doc", VALUES("two"), DIBS_OK, .lease = held, .if_version = sealed->version);
  take_away(s, "doc", DIBS_OK, .lease = held);
  put(s, "doc", VALUES("late"), DIBS_STALE, .lease = old, .flags = DIBS_IF_ABSENT);
  assert_string_equal(get(s, "doc", DIBS_OK, .lease = held)->version, "0");
  assert_null(get(s, "doc", DIBS_OK, .lease = held)->values[0].data);
}

static void a_write_needs_a_guard(void **state) {
  (void)state;
  dibs_store *s = store_open();
  put(s, "doc", VALUES("x"), DIBS_INVALID);
  assert_message("say how it is guarded");
  put(s, "doc", VALUES("x"), DIBS_INVALID, .if_version = "1", .flags = DIBS_IF_ABSENT);
  put(s, "doc", VALUES("x"), DIBS_INVALID, .if_version = "1", .flags = DIBS_UNCHECKED);
  take_away(s, "doc", DIBS_INVALID, .flags = DIBS_IF_ABSENT);
  take_away(s, "doc", DIBS_INVALID);
  put(s, "doc", VALUES("x", "y"), DIBS_INVALID, .flags = DIBS_UNCHECKED);
  assert_message("2 values were given and 1 are wanted");
  put(s, "doc", VALUES(NULL), DIBS_INVALID, .flags = DIBS_UNCHECKED);
  put(s, "", VALUES("x"), DIBS_INVALID, .flags = DIBS_UNCHECKED);
  put(s, "\1tiers", VALUES("x"), DIBS_INVALID, .flags = DIBS_UNCHECKED); /* the record of the tiers' state */
  get(s, "\1tiers", DIBS_INVALID);
  get(s, "doc", DIBS_INVALID, .if_version = "1");
  get(s, "doc", DIBS_NOT_FOUND);
}

static void the_memory_store_has_no_users_tables(void **state) {
  (void)state;
  dibs_store *s = memory_open();
  dibs_table *t = TABLE(.table = "event", .key = "id", .columns = "title");
  get(s, "1", DIBS_UNSUPPORTED, .table = t);
  assert_message("use a SQL store");
  put(s, "doc", VALUES("one"), DIBS_OK, .flags = DIBS_IF_ABSENT);
  put(s, "doc", VALUES("two"), DIBS_CONFLICT, .if_version = "7");
}

/* ---- Tables with numbers ---- */

static dibs_table *events(void) {
  make_table("event", "id %s PRIMARY KEY, title %s, body %s, version %s, fence %s, holder %s", engine->number,
             engine->text, engine->long_text, engine->number, engine->number, engine->number);
  return TABLE(.table = "event", .key = "id", .version = "version", .fence = "fence", .owner = "holder",
               .columns = "title, body");
}

static void a_number_version_is_incremented(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  sql("INSERT INTO event (id, title, body, version) VALUES (7, 'Ball', NULL, 3)");
  const dibs_record *was = get(s, "7", DIBS_OK, .table = t);
  assert_int_equal(was->count, 2);
  assert_string_equal(was->values[0].data, "Ball");
  assert_null(was->values[1].data);
  assert_string_equal(was->version, "3");
  assert_int_equal(was->fence.value, 0);
  put(s, "7", VALUES(KEEP, "long"), DIBS_OK, .table = t, .if_version = "3");
  assert_string_equal(result.version, "4");
  assert_string_equal(cell("SELECT title FROM event WHERE id = 7 AND version = 4 AND body = 'long'"), "Ball");
  put(s, "7", VALUES("late", "late"), DIBS_CONFLICT, .table = t, .if_version = "3");
  assert_string_equal(result.version, "4");
  assert_message("at version \"4\", not \"3\"");
  put(s, "7", VALUES("odd", "odd"), DIBS_CONFLICT, .table = t, .if_version = "abc");
  put(s, "8", VALUES("x", "y"), DIBS_NOT_FOUND, .table = t, .if_version = "3");
  assert_message("in table event");
  put(s, "7", VALUES(NULL, ""), DIBS_OK, .table = t, .if_version = "4");
  assert_null(get(s, "7", DIBS_OK, .table = t)->values[0].data);
  assert_string_equal(get(s, "7", DIBS_OK, .table = t)->values[1].data, "");
  put(s, "7", VALUES("Last", KEEP), DIBS_OK, .table = t, .flags = DIBS_UNCHECKED);
  assert_string_equal(result.version, "6");
  take_away(s, "7", DIBS_CONFLICT, .table = t, .if_version = "5");
  take_away(s, "7", DIBS_OK, .table = t, .if_version = "6");
  assert_string_equal(cell("SELECT COUNT(*) FROM event"), "0");
  take_away(s, "7", DIBS_NOT_FOUND, .table = t, .flags = DIBS_UNCHECKED);
}

static void a_row_without_a_version_has_version_0(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  sql("INSERT INTO event (id, title) VALUES (7, 'Ball')");
  assert_string_equal(get(s, "7", DIBS_OK, .table = t)->version, "0");
  put(s, "7", VALUES("x", KEEP), DIBS_CONFLICT, .table = t, .if_version = "1");
  put(s, "7", VALUES("x", KEEP), DIBS_OK, .table = t, .if_version = "0");
  assert_string_equal(cell("SELECT version FROM event"), "1");
}

static void only_an_absent_row_is_created(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  put(s, "7", VALUES("Ball", NULL), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  assert_string_equal(result.version, "1");
  put(s, "7", VALUES("late", NULL), DIBS_CONFLICT, .table = t, .flags = DIBS_IF_ABSENT);
  assert_string_equal(result.version, "1");
  assert_string_equal(cell("SELECT title FROM event WHERE version = 1 AND body IS NULL"), "Ball");
  /* The refused write creates no row. */
  dibs_lease *lease = lease_of(s, "event/8");
  put(s, "8", VALUES("x", NULL), DIBS_NOT_FOUND, .table = t, .lease = lease);
  put(s, "8", VALUES("x", NULL), DIBS_NOT_FOUND, .table = t, .flags = DIBS_UNCHECKED);
  get(s, "8", DIBS_NOT_FOUND, .table = t, .lease = lease);
  put(s, "8", VALUES("x", NULL), DIBS_OK, .table = t, .lease = lease, .flags = DIBS_IF_ABSENT);
  assert_int_equal(get(s, "8", DIBS_OK, .table = t)->fence.value, dibs_lease_fence(lease).value);
}

static void another_unique_key_is_not_the_key(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("event", "id %s PRIMARY KEY, title %s UNIQUE, version %s", engine->number, engine->text, engine->number);
  dibs_table *t = TABLE(.table = "event", .key = "id", .version = "version", .columns = "title");
  put(s, "7", VALUES("Ball"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  put(s, "8", VALUES("Ball"), DIBS_INVALID, .table = t, .flags = DIBS_IF_ABSENT);
  put(s, "8", VALUES("Gala"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  put(s, "8", VALUES("Ball"), DIBS_INVALID, .table = t, .if_version = "1");
  assert_string_equal(get(s, "8", DIBS_OK, .table = t)->values[0].data, "Gala");
}

static void the_row_remembers_the_fence(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  sql("INSERT INTO event (id, title, version) VALUES (7, 'Ball', 3)");
  dibs_lease *old = lease_of(s, "event/7");
  put(s, "7", VALUES("one", KEEP), DIBS_OK, .table = t, .lease = old);
  assert_string_equal(result.version, "4");
  assert_int_equal(dibs_release(old, &reported), DIBS_OK);
  dibs_lease *held = lease_of(s, "event/7");
  const dibs_record *sealed = get(s, "7", DIBS_OK, .table = t, .lease = held);
  assert_string_equal(sealed->values[0].data, "one");
  assert_string_equal(sealed->version, "4");
  assert_int_equal(sealed->fence.value, dibs_lease_fence(held).value);
  put(s, "7", VALUES("late", KEEP), DIBS_STALE, .table = t, .lease = old);
  assert_int_equal(result.fence.value, dibs_lease_fence(held).value);
  put(s, "7", VALUES("late", KEEP), DIBS_STALE, .table = t, .lease = old, .if_version = "4");
  take_away(s, "7", DIBS_STALE, .table = t, .lease = old);
  assert_string_equal(cell("SELECT title FROM event"), "one");
  put(s, "7", VALUES("late", KEEP), DIBS_CONFLICT, .table = t, .lease = held, .if_version = "3");
  put(s, "7", VALUES("two", KEEP), DIBS_OK, .table = t, .lease = held, .if_version = "4");
  /* The same number from another lease: the owner column decides. */
  sql("UPDATE event SET holder = holder + 1");
  put(s, "7", VALUES("other", KEEP), DIBS_STALE, .table = t, .lease = held);
  get(s, "7", DIBS_STALE, .table = t, .lease = held);
  assert_string_equal(cell("SELECT title FROM event"), "two");
}

static void a_lost_lease_reads_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  sql("INSERT INTO event (id, title, version) VALUES (7, 'Ball', 3)");
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = 200, .flags = DIBS_NO_RENEW};
  dibs_lease *lease = NULL;
  assert_int_equal(dibs_acquire(s, "short", &o, &lease, &reported), DIBS_OK);
  dibs_break_options now = {.size = sizeof now, .flags = DIBS_BREAK_NOW};
  assert_int_equal(dibs_break(s, "short", &now, &reported), DIBS_OK);
  assert_int_equal(dibs_renew(lease, 0, &reported), DIBS_LOST);
  get(s, "7", DIBS_LOST, .table = t, .lease = lease);
  dibs_lease_free(lease);
}

/* ---- Instants and hashes ---- */

static void instants_grow_at_any_column_precision(void **state) {
  (void)state;
  dibs_store *s = store_open();
  for (size_t i = 0; i < 3; i++) {
    static const char *const docs[] = {"doc_us", "doc_ms", "doc_s"};
    make_table(docs[i], "id %s PRIMARY KEY, body %s, changed %s", engine->text, engine->text, engine->instants[i]);
    dibs_table *t = TABLE(.table = docs[i], .key = "id", .version = "changed", .version_kind = DIBS_VERSION_TIME,
                          .columns = "body");
    char was[DIBS_VERSION_MAX + 1] = "";
    put(s, "a", VALUES("0"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
    for (int n = 0; n < 5; n++) {
      const dibs_record *r = get(s, "a", DIBS_OK, .table = t);
      assert_string_equal(r->version, result.version);
      assert_true(strcmp(was, r->version) < 0);
      snprintf(was, sizeof was, "%s", r->version);
      put(s, "a", VALUES("n"), DIBS_OK, .table = t, .if_version = was);
      put(s, "a", VALUES("late"), DIBS_CONFLICT, .table = t, .if_version = was);
    }
    take_away(s, "a", DIBS_CONFLICT, .table = t, .if_version = was);
    take_away(s, "a", DIBS_OK, .table = t, .if_version = get(s, "a", DIBS_OK, .table = t)->version);
    get(s, "a", DIBS_NOT_FOUND, .table = t);
  }
}

static void an_instant_in_the_future_still_grows(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("doc", "id %s PRIMARY KEY, body %s, changed %s", engine->text, engine->text, engine->instants[0]);
  dibs_table *t =
      TABLE(.table = "doc", .key = "id", .version = "changed", .version_kind = DIBS_VERSION_TIME, .columns = "body");
  sql("INSERT INTO doc VALUES ('a', 'x', '2099-12-31 23:59:59.999999')");
  sql("INSERT INTO doc VALUES ('b', 'x', NULL)");
  const char *was = get(s, "a", DIBS_OK, .table = t)->version;
  put(s, "a", VALUES("y"), DIBS_OK, .table = t, .if_version = was);
  assert_int_equal(strncmp(result.version, "2100-01-01 00:00:00", 19), 0);
  assert_string_equal(get(s, "b", DIBS_OK, .table = t)->version, "");
  put(s, "b", VALUES("y"), DIBS_OK, .table = t, .if_version = "");
  assert_true(strlen(result.version) >= 19);
}

static void a_hash_distinguishes_contents(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("page", "id %s PRIMARY KEY, a %s, b %s, tag %s", engine->text, engine->text, engine->text, engine->text);
  for (int stored = 0; stored < 2; stored++) {
    sql("DELETE FROM page");
    sql("INSERT INTO page (id, a, b) VALUES ('x', 'one', NULL)");
    dibs_table *t = TABLE(.table = "page", .key = "id", .version = stored ? "tag" : NULL,
                          .version_kind = DIBS_VERSION_HASH, .columns = "a b");
    const dibs_record *was = get(s, "x", DIBS_OK, .table = t);
    assert_int_equal(strlen(was->version), stored ? 0 : 64);
    put(s, "x", VALUES("two", KEEP), DIBS_OK, .table = t, .if_version = was->version);
    char version[DIBS_VERSION_MAX + 1];
    snprintf(version, sizeof version, "%s", result.version);
    assert_int_equal(strlen(version), 64);
    assert_string_equal(get(s, "x", DIBS_OK, .table = t)->version, version);
    put(s, "x", VALUES("late", "late"), DIBS_CONFLICT, .table = t, .if_version = was->version);
    assert_string_equal(result.version, version);
    put(s, "x", VALUES("two", ""), DIBS_OK, .table = t, .if_version = version);
    assert_string_not_equal(result.version, version); /* NULL is not "" */
    put(s, "x", VALUES("two", NULL), DIBS_OK, .table = t, .if_version = result.version);
    assert_string_equal(result.version, version); /* the same content, the same version */
    take_away(s, "x", DIBS_CONFLICT, .table = t, .if_version = was->version);
    take_away(s, "x", DIBS_OK, .table = t, .if_version = version);
    put(s, "x", VALUES("two", NULL), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
    assert_string_equal(result.version, version);
  }
  /* SHA-256 of "a", NUL, "3:two", "b", NUL, "-". */
  assert_string_equal(result.version, "36fe11a811dc08fb1c6206377c9ba7a0237592b3181d981f7560f39a0c4baf70");
}

/* ---- Tables without some columns ---- */

static void a_missing_column_is_named(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_lease *lease = lease_of(s, "x");
  make_table("bare", "id %s PRIMARY KEY, a %s", engine->text, engine->text);
  sql("INSERT INTO bare VALUES ('x', 'one')");
  dibs_table *t = TABLE(.table = "bare", .key = "id", .columns = "a");
  assert_string_equal(get(s, "x", DIBS_OK, .table = t)->version, "");
  put(s, "x", VALUES("two"), DIBS_UNSUPPORTED, .table = t, .if_version = "1");
  assert_message("bare was declared without a version column");
  put(s, "x", VALUES("two"), DIBS_UNSUPPORTED, .table = t, .lease = lease);
  assert_message("bare was declared without a fence column");
  get(s, "x", DIBS_UNSUPPORTED, .table = t, .lease = lease);
  put(s, "x", VALUES("two"), DIBS_OK, .table = t, .flags = DIBS_UNCHECKED);
  put(s, "y", VALUES("two"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  assert_string_equal(cell("SELECT COUNT(*) FROM bare WHERE a = 'two'"), "2");
}

static void a_wrong_name_is_named(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)events();
  sql("INSERT INTO event (id, title, version) VALUES (7, 'Ball', 3)");
  dibs_table *version = TABLE(.table = "event", .key = "id", .version = "versoin", .columns = "title");
  dibs_table *column = TABLE(.table = "event", .key = "id", .version = "version", .columns = "titel");
  dibs_table *table = TABLE(.table = "evnt", .key = "id", .version = "version", .columns = "title");
  put(s, "7", VALUES("x"), DIBS_INVALID, .table = version, .if_version = "3");
  assert_message("versoin");
  assert_message("event");
  get(s, "7", DIBS_INVALID, .table = version);
  assert_message("versoin");
  get(s, "7", DIBS_INVALID, .table = column);
  assert_message("titel");
  put(s, "7", VALUES("x"), DIBS_INVALID, .table = column, .if_version = "3");
  put(s, "8", VALUES("x"), DIBS_INVALID, .table = column, .flags = DIBS_IF_ABSENT);
  assert_message("titel");
  take_away(s, "7", DIBS_INVALID, .table = version, .if_version = "3");
  get(s, "7", DIBS_INVALID, .table = table);
  assert_message("evnt");
  assert_string_equal(cell("SELECT title FROM event WHERE id = 7"), "Ball");
}

static void a_table_may_be_altered_while_it_is_used(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("altered", "id %s PRIMARY KEY, a %s, version %s", engine->number, engine->number, engine->number);
  dibs_table *t = TABLE(.table = "altered", .key = "id", .version = "version", .columns = "a");
  put(s, "1", VALUES("5"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  for (int i = 0; i < 3; i++) {
    const dibs_record *was = get(s, "1", DIBS_OK, .table = t);
    put(s, "1", VALUES("6"), DIBS_OK, .table = t, .if_version = was->version);
  }
  sql("DROP TABLE altered");
  sql("CREATE TABLE altered (id %s PRIMARY KEY, a %s, version %s)", engine->text, engine->text, engine->number);
  sql("INSERT INTO altered VALUES ('1', 'text', 1)");
  assert_string_equal(get(s, "1", DIBS_OK, .table = t)->values[0].data, "text");
  /* The first call may fail, because its statement was prepared for the old table; later ones succeed. */
  dibs_record_options o = {.size = sizeof o, .table = t, .if_version = "1"};
  dibs_value value = {"x", 1};
  if (dibs_record_put(s, "1", &value, 1, &o, NULL, &reported) != DIBS_OK)
    put(s, "1", VALUES("x"), DIBS_OK, .table = t, .if_version = "1");
  put(s, "1", VALUES("y"), DIBS_OK, .table = t, .if_version = "2");
}

/* ---- Names and keys ---- */

static void a_table_may_be_in_a_schema(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)connection(); /* this engine has schemas */
  char name[100];
  snprintf(name, sizeof name, "%s.event_2", engine->schema);
  make_table(name, "id %s PRIMARY KEY, title %s, version %s", engine->number, engine->text, engine->number);
  dibs_table *t = TABLE(.table = name, .key = "id", .version = "version", .columns = "title");
  put(s, "1", VALUES("a"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  put(s, "1", VALUES("b"), DIBS_OK, .table = t, .if_version = "1");
  assert_string_equal(get(s, "1", DIBS_OK, .table = t)->values[0].data, "b");
  take_away(s, "1", DIBS_OK, .table = t, .if_version = "2");
}

static void keys_of_each_kind(void **state) {
  (void)state;
  dibs_store *s = store_open();
  const char *kinds[] = {engine->number, engine->text, engine->uuid};
  const char *keys[] = {"9007199254740993", "O'Neil; -- \\ \xc3\xa9", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"};
  for (size_t i = 0; i < 3; i++) {
    static const char *const tables[] = {"key_number", "key_text", "key_uuid"};
    make_table(tables[i], "id %s PRIMARY KEY, a %s, version %s", kinds[i], engine->text, engine->number);
    dibs_table *t = TABLE(.table = tables[i], .key = "id", .version = "version", .columns = "a");
    get(s, keys[i], DIBS_NOT_FOUND, .table = t);
    put(s, keys[i], VALUES("one"), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
    put(s, keys[i], VALUES("two"), DIBS_OK, .table = t, .if_version = "1");
    assert_string_equal(get(s, keys[i], DIBS_OK, .table = t)->values[0].data, "two");
    put(s, keys[i], VALUES("late"), DIBS_CONFLICT, .table = t, .if_version = "1");
    take_away(s, keys[i], DIBS_OK, .table = t, .if_version = "2");
  }
}

static void a_key_that_is_not_a_number_matches_no_row(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  sql("INSERT INTO event (id, title, version) VALUES (12, 'twelve', 1)");
  sql("INSERT INTO event (id, title, version) VALUES (0, 'zero', 1)");
  static const char *const wrong[] = {"12abc", "abc", "12.4"};
  for (size_t i = 0; i < 3; i++) {
    dibs_record_options o = {.size = sizeof o, .table = t};
    dibs_record *record = NULL;
    dibs_status status = dibs_record_get(s, wrong[i], &o, &record, &reported);
    assert_true(status == DIBS_NOT_FOUND || status == DIBS_INVALID);
    o.if_version = "1";
    dibs_value values[2] = {{"x", 1}, {"y", 1}};
    status = dibs_record_put(s, wrong[i], values, 2, &o, NULL, &reported);
    assert_true(status == DIBS_NOT_FOUND || status == DIBS_INVALID);
    status = dibs_record_remove(s, wrong[i], &o, NULL, &reported);
    assert_true(status == DIBS_NOT_FOUND || status == DIBS_INVALID);
  }
  assert_string_equal(cell("SELECT COUNT(*) FROM event WHERE version = 1 AND title IN ('twelve', 'zero')"), "2");
}

static void a_value_has_at_most_a_megabyte(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = events();
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  memset(big, 'x', DIBS_RECORD_MAX);
  big[DIBS_RECORD_MAX] = '\0';
  put(s, "7", VALUES(NULL, big), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
  put(s, "7", VALUES("y", big), DIBS_INVALID, .table = t, .if_version = "1");
  big[0] = 'y';
  put(s, "7", VALUES(NULL, big), DIBS_OK, .table = t, .if_version = "1");
  const dibs_record *got = get(s, "7", DIBS_OK, .table = t);
  assert_int_equal(got->values[1].length, DIBS_RECORD_MAX);
  assert_memory_equal(got->values[1].data, big, DIBS_RECORD_MAX);
  put(s, "own", VALUES(big), DIBS_OK, .flags = DIBS_IF_ABSENT);
  assert_int_equal(get(s, "own", DIBS_OK)->values[0].length, DIBS_RECORD_MAX);
  free(big);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(the_current_version_is_replaced),
      TEST(a_late_writer_gets_the_fence_in_the_message),
      TEST(a_write_needs_a_guard),
      TEST(the_memory_store_has_no_users_tables),
      TEST(a_number_version_is_incremented),
      TEST(a_row_without_a_version_has_version_0),
      TEST(only_an_absent_row_is_created),
      TEST(another_unique_key_is_not_the_key),
      TEST(the_row_remembers_the_fence),
      TEST(a_lost_lease_reads_nothing),
      TEST(instants_grow_at_any_column_precision),
      TEST(an_instant_in_the_future_still_grows),
      TEST(a_hash_distinguishes_contents),
      TEST(a_missing_column_is_named),
      TEST(a_wrong_name_is_named),
      TEST(a_table_may_be_altered_while_it_is_used),
      TEST(a_table_may_be_in_a_schema),
      TEST(keys_of_each_kind),
      TEST(a_key_that_is_not_a_number_matches_no_row),
      TEST(a_value_has_at_most_a_megabyte),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
