/* SPDX-License-Identifier: MIT */
/*
 * Users' tables with wrong content or columns: NULLs, values that are not numbers, misspelt columns, wrong types, keys
 * that are not unique, collations.  For every content of a table, its capacity is not exceeded, or the answer is
 * INVALID.
 */
#include "record_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRATEGIES = 6 };

static dibs_stock_result r;

static dibs_status took(dibs_store *s, const char *key, int64_t amount, dibs_stock_options o) {
  o.size = sizeof o;
  r.size = sizeof r;
  return dibs_stock_take(s, key, amount, &o, &r, &reported);
}
static dibs_status gave(dibs_store *s, const char *key, const char *claim, dibs_stock_options o) {
  o.size = sizeof o;
  r.size = sizeof r;
  return dibs_stock_give(s, key, claim, &o, &r, &reported);
}
static dibs_status shown(dibs_store *s, const char *key, dibs_stock_options o) {
  o.size = sizeof o;
  r.size = sizeof r;
  return dibs_stock_show(s, key, &o, &r, &reported);
}

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want))                                                                                          \
      fail_msg("line %d: %s: %s, not %s: %s", __LINE__, #call, dibs_status_name(expect_got), dibs_status_name(want),   \
               reported.text);                                                                                         \
  } while (0)

static bool on(const char *scheme) {
  return strcmp(engine->scheme, scheme) == 0;
}

/* A pool and its claims with these types for the given columns; NULL: the correct type. */
struct types {
  int nothing; /* so that initializers may omit leading fields */
  const char *key, *used, *most, *seen, *claim, *stock, *amount, *gone, *came;
};

static const char *type(const char *given, const char *otherwise) {
  return given ? given : otherwise;
}

static dibs_table *pool_of(struct types t) {
  const char *n = engine->number;
  make_table("pool", "id %s, used %s, most %s, seen %s, holder %s", type(t.key, "VARCHAR(40) PRIMARY KEY"),
             type(t.used, n), type(t.most, n), type(t.seen, n), n);
  make_table("ticket", "claim %s, pool %s, amount %s, gone %s, came %s", type(t.claim, "VARCHAR(64) PRIMARY KEY"),
             type(t.stock, "VARCHAR(40)"), type(t.amount, n), type(t.gone, n), type(t.came, n));
  return TABLE(.table = "pool", .key = "id", .used = "used", .limit = "most", .fence = "seen", .owner = "holder",
               .claims = "ticket", .claim = "claim", .claim_stock = "pool", .claim_amount = "amount",
               .claim_given = "gone", .claim_time = "came");
}
#define POOL(...) pool_of((struct types){.nothing = 0, ##__VA_ARGS__})

/* ---- The content of columns ---- */

/* With this `used` and `limit` every take is refused, and the message names the column. */
static void refuses_all(dibs_store *s, dibs_table *t, const char *used, const char *most, const char *column) {
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    sql("DELETE FROM ticket");
    sql("DELETE FROM pool");
    sql("INSERT INTO pool VALUES ('p', %s, %s, NULL, NULL)", used, most);
    for (int again = 0; again < 2; again++) {
      EXPECT(took(s, "p", 3, o), DIBS_INVALID);
      assert_message("pool");
      assert_message("\"p\"");
      assert_message(column);
    }
    o.flags = DIBS_TAKE_PARTIAL;
    EXPECT(took(s, "p", 3, o), DIBS_INVALID);
    assert_string_equal(cell("SELECT COUNT(*) FROM ticket"), "0");
  }
  EXPECT(shown(s, "p", (dibs_stock_options){.table = t}), DIBS_INVALID);
  assert_message(column);
}

static void a_null_or_negative_number_refuses_every_take(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = POOL(.used = NULL);
  refuses_all(s, t, "NULL", "5", "used");
  refuses_all(s, t, "0", "NULL", "most");
  refuses_all(s, t, "NULL", "NULL", "used");
  refuses_all(s, t, "-5", "5", "used");
  refuses_all(s, t, "0", "-1", "most");
}

static void a_stock_above_its_limit_is_full(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = POOL(.used = NULL);
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    sql("DELETE FROM ticket");
    sql("DELETE FROM pool");
    sql("INSERT INTO pool VALUES ('p', 7, 5, NULL, NULL), ('q', 9223372036854775806, 9223372036854775807, NULL, NULL)");
    EXPECT(took(s, "p", 1, o), DIBS_FULL);
    EXPECT(took(s, "q", 5, o), DIBS_FULL);
    EXPECT(took(s, "q", 1, o), DIBS_OK);
    EXPECT(took(s, "q", 1, o), DIBS_FULL);
  }
}

static void a_value_that_is_not_a_number_refuses_every_take(void **state) {
  (void)state;
  dibs_store *s = store_open();
  if (on("sqlite")) {
    static const char *const odd[] = {"'abc'", "1.5", "9.3e18", "x'31'", "''"};
    dibs_table *t = POOL(.used = "", .most = "");
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
      refuses_all(s, t, odd[i], "5", "used");
      refuses_all(s, t, "0", odd[i], "most");
    }
    refuses_all(s, t, "0", "'50'", "most");
  } else if (on("mysql")) {
    dibs_table *t = POOL(.used = "BIGINT UNSIGNED", .most = "BIGINT UNSIGNED");
    refuses_all(s, t, "18446744073709551615", "18446744073709551615", "used");
    refuses_all(s, t, "0", "18446744073709551615", "most");
  }
}

/* A column that is too small for the sum: no claim is stored without its units. */
static void a_narrow_column_never_counts_less(void **state) {
  (void)state;
  dibs_store *s = store_open();
  if (on("sqlite")) return;
  dibs_table *t = POOL(.used = "SMALLINT");
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    sql("DELETE FROM ticket");
    sql("DELETE FROM pool");
    sql("INSERT INTO pool VALUES ('p', 32766, 100000, NULL, NULL)");
    EXPECT(took(s, "p", 1, o), DIBS_OK);
    EXPECT(took(s, "p", 1, o), DIBS_INVALID);
    assert_string_equal(cell("SELECT COUNT(*) FROM ticket"), "1");
    assert_string_equal(cell("SELECT used FROM pool"), "32767");
  }
}

/* Rows of claims that the user's program wrote. */
static void odd_claims_are_not_given_back(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = POOL(.used = NULL);
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    sql("DELETE FROM ticket");
    sql("DELETE FROM pool");
    sql("INSERT INTO pool VALUES ('p', 3, 5, NULL, NULL), ('q', NULL, 5, NULL, NULL)");
    sql("INSERT INTO ticket VALUES ('null', 'p', NULL, 0, 0), ('minus', 'p', -2, 0, 0), ('much', 'p', 4, 0, 0),"
        " ('fine', 'p', 3, NULL, 0), ('q', 'q', 2, 0, 0)");
    EXPECT(gave(s, "p", "null", o), DIBS_INVALID);
    assert_message("amount");
    assert_message("\"null\"");
    EXPECT(gave(s, "p", "minus", o), DIBS_INVALID);
    assert_message("amount");
    EXPECT(gave(s, "p", "much", o), DIBS_INVALID);
    assert_message("used");
    EXPECT(gave(s, "q", "q", o), DIBS_INVALID);
    assert_message("used");
    assert_string_equal(cell("SELECT used FROM pool WHERE id = 'p'"), "3");
    assert_string_equal(cell("SELECT COUNT(*) FROM ticket WHERE gone = 1"), "0");
    EXPECT(gave(s, "p", "fine", o), DIBS_OK);
    assert_string_equal(cell("SELECT used FROM pool WHERE id = 'p'"), "0");
  }
}

static void an_odd_fence_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = POOL(.seen = on("sqlite") ? "" : NULL);
  dibs_stock_options o = {.strategy = DIBS_FENCED, .table = t};
  sql("INSERT INTO pool VALUES ('p', 0, 5, -1, NULL), ('n', 0, 5, NULL, NULL)");
  EXPECT(took(s, "p", 1, o), DIBS_INVALID);
  assert_message("seen");
  EXPECT(took(s, "n", 1, o), DIBS_OK);
  if (!on("sqlite")) return;
  sql("INSERT INTO pool VALUES ('q', 0, 5, 'abc', NULL)");
  EXPECT(took(s, "q", 1, o), DIBS_INVALID);
  assert_message("seen");
}

/* ---- Names and types of columns ---- */

static void refuses_to_begin(dibs_store *s, dibs_table *t, const char *words) {
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    EXPECT(took(s, "p", 1, o), DIBS_INVALID);
    assert_message(words);
    EXPECT(gave(s, "p", "c", o), DIBS_INVALID);
    assert_message(words);
  }
}

static void a_misspelt_column_is_named(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)POOL(.used = NULL);
  sql("INSERT INTO pool VALUES ('p', 0, 5, NULL, NULL)");
  dibs_table_options fine = {.size = sizeof fine,
                             .table = "pool",
                             .key = "id",
                             .used = "used",
                             .limit = "most",
                             .fence = "seen",
                             .claims = "ticket",
                             .claim = "claim",
                             .claim_stock = "pool",
                             .claim_amount = "amount",
                             .claim_given = "gone"};
  const char **parts[] = {&fine.key,   &fine.used,        &fine.limit,        &fine.fence,
                          &fine.claim, &fine.claim_stock, &fine.claim_amount, &fine.claim_given};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    const char *was = *parts[i];
    *parts[i] = "misspelt";
    refuses_to_begin(s, declare(&fine), "misspelt");
    *parts[i] = was;
  }
  fine.limit = "misspelt";
  EXPECT(shown(s, "p", (dibs_stock_options){.table = declare(&fine)}), DIBS_INVALID);
  assert_message("misspelt");
  fine.limit = "most";
  fine.claims = "tickets";
  refuses_to_begin(s, declare(&fine), "tickets");
  fine.claims = "ticket";
  fine.table = "pools";
  refuses_to_begin(s, declare(&fine), "pools");
  assert_string_equal(cell("SELECT COUNT(*) FROM ticket"), "0");
}

static void a_column_of_a_wrong_type_is_refused_at_the_first_call(void **state) {
  (void)state;
  dibs_store *s = store_open();
  const char *instant = on("postgres") ? "timestamp" : "DATETIME", *real = on("postgres") ? "real" : "FLOAT";
  const char *text = on("sqlite") ? "TEXT" : "VARCHAR(20)";
  refuses_to_begin(s, POOL(.used = text), "used");
  refuses_to_begin(s, POOL(.most = real), "most");
  refuses_to_begin(s, POOL(.seen = text), "seen");
  refuses_to_begin(s, POOL(.claim = on("sqlite") ? "INTEGER PRIMARY KEY" : "BIGINT PRIMARY KEY"), "claim");
  refuses_to_begin(s, POOL(.amount = "DECIMAL(10,2)"), "amount");
  refuses_to_begin(s, POOL(.gone = instant), "gone");
  assert_message(on("sqlite") ? "DATETIME" : on("mysql") ? "datetime" : "timestamp");
  refuses_to_begin(s, POOL(.came = instant), "came");
  if (on("postgres")) refuses_to_begin(s, POOL(.gone = "boolean"), "boolean");
  if (!on("sqlite")) refuses_to_begin(s, POOL(.seen = "INT"), "seen");
  if (on("mysql")) refuses_to_begin(s, POOL(.claim = "BINARY(64) PRIMARY KEY"), "claim");
  if (on("postgres")) refuses_to_begin(s, POOL(.claim = "character(64) PRIMARY KEY"), "claim");
}

static void a_column_that_the_engine_computes_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  char column[100];
  snprintf(column, sizeof column, "%s GENERATED ALWAYS AS (0) STORED", engine->number);
  refuses_to_begin(s, POOL(.used = column), "used");
}

static void keys_and_claims_must_be_unique(void **state) {
  (void)state;
  dibs_store *s = store_open();
  refuses_to_begin(s, POOL(.key = "VARCHAR(40)"), "unique");
  assert_message("id");
  refuses_to_begin(s, POOL(.claim = "VARCHAR(64)"), "unique");
  assert_message("claim");
  dibs_table *t = POOL(.key = "VARCHAR(40)");
  sql("CREATE UNIQUE INDEX two ON pool (id, used)"); /* over two columns */
  refuses_to_begin(s, t, "unique");
  if (on("postgres") || on("sqlite")) {
    sql("CREATE UNIQUE INDEX part ON pool (id) WHERE used > 0");
    refuses_to_begin(s, t, "unique");
  }
  sql("CREATE UNIQUE INDEX one ON pool (id)");
  sql("INSERT INTO pool VALUES ('p', 0, 5, NULL, NULL)");
  EXPECT(took(s, "p", 1, (dibs_stock_options){.table = t}), DIBS_OK);
}

static void a_view_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)POOL(.used = NULL);
  sql("INSERT INTO pool VALUES ('p', 0, 5, NULL, NULL)");
  sql("DROP VIEW IF EXISTS pool_view");
  sql("CREATE VIEW pool_view AS SELECT * FROM pool");
  dibs_table *t = TABLE(.table = "pool_view", .key = "id", .used = "used", .limit = "most", .fence = "seen",
                        .claims = "ticket", .claim = "claim", .claim_stock = "pool", .claim_given = "gone");
  refuses_to_begin(s, t, "unique");
  sql("DROP VIEW pool_view");
}

/* ---- Texts that an engine treats as equal ---- */

static const char *const alike[] = {"aB3x", "Ab3X",
                                    "\xc3\xa4"
                                    "B3x",
                                    "aB3x ",
                                    "a\xcc\x88"
                                    "B3x"};
enum { ALIKE = sizeof alike / sizeof alike[0] };

/* Each claim is distinct, or the message names the index that treats two as equal; no claim counts as another. */
static void claims_are_distinct(dibs_store *s, dibs_table *t, bool all) {
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    int64_t held = 0;
    bool in[ALIKE] = {false};
    sql("DELETE FROM ticket");
    sql("DELETE FROM pool");
    sql("INSERT INTO pool VALUES ('p', 0, 100, NULL, NULL)");
    for (size_t i = 0; i < ALIKE; i++) {
      o.claim = alike[i];
      dibs_status status = took(s, "p", (int64_t)i + 1, o);
      in[i] = status == DIBS_OK;
      if (in[i]) held += (int64_t)i + 1;
      if (status != DIBS_OK) EXPECT(status, DIBS_CONFLICT);
      if (status != DIBS_OK) assert_message("collation");
      if (i == 0 || all) assert_true(in[i]);
    }
    assert_int_equal(strtoll(cell("SELECT used FROM pool"), NULL, 10), held);
    for (size_t i = 0; i < ALIKE; i++) {
      o.claim = alike[i];
      EXPECT(took(s, "p", 50, o), in[i] ? DIBS_REPLAY : DIBS_CONFLICT);
      if (in[i]) assert_int_equal(r.got, (int64_t)i + 1);
    }
    for (size_t i = ALIKE; i-- > 0;) {
      EXPECT(gave(s, "p", alike[i], o), in[i] ? DIBS_OK : DIBS_CONFLICT);
      if (in[i]) held -= (int64_t)i + 1;
      assert_int_equal(strtoll(cell("SELECT used FROM pool"), NULL, 10), held);
    }
  }
}

static void claims_are_their_bytes(void **state) {
  (void)state;
  dibs_store *s = store_open();
  if (on("mysql")) {
    claims_are_distinct(s, POOL(.claim = "VARCHAR(64) COLLATE utf8mb4_general_ci PRIMARY KEY"), false);
    claims_are_distinct(s, POOL(.claim = "VARCHAR(64) COLLATE utf8mb4_unicode_ci PRIMARY KEY"), false);
    claims_are_distinct(s, POOL(.claim = "VARCHAR(64) COLLATE utf8mb4_bin PRIMARY KEY"), false);
    claims_are_distinct(s, POOL(.claim = "VARCHAR(64) COLLATE utf8mb4_nopad_bin PRIMARY KEY"), true);
    claims_are_distinct(s, POOL(.claim = "VARBINARY(64) PRIMARY KEY"), true);
    claims_are_distinct(s, POOL(.claim = "CHAR(64) PRIMARY KEY"), false);
  } else if (on("postgres")) {
    sql("CREATE COLLATION IF NOT EXISTS loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)");
    refuses_to_begin(s, POOL(.claim = "text COLLATE loose PRIMARY KEY"), "claim");
    claims_are_distinct(s, POOL(.claim = "text PRIMARY KEY"), true);
    claims_are_distinct(s, POOL(.claim = "varchar(64) PRIMARY KEY"), true);
  } else {
    claims_are_distinct(s, POOL(.claim = "TEXT COLLATE NOCASE PRIMARY KEY"), false);
    claims_are_distinct(s, POOL(.claim = "TEXT COLLATE RTRIM PRIMARY KEY"), false);
    claims_are_distinct(s, POOL(.claim = "TEXT PRIMARY KEY"), true);
    dibs_table *t = POOL(.claim = "TEXT COLLATE NOCASE");
    sql("CREATE UNIQUE INDEX bytes ON ticket (claim COLLATE BINARY)");
    claims_are_distinct(s, t, true);
  }
}

/* A key matches only its exact text in the column, not other texts that the engine converts to it. */
static void not_there(dibs_store *s, dibs_table *t, const char *key) {
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t};
    dibs_status status = took(s, key, 1, o);
    if (status != DIBS_NOT_FOUND && status != DIBS_INVALID) fail_msg("\"%s\": %s", key, dibs_status_name(status));
  }
  dibs_status status = shown(s, key, (dibs_stock_options){.table = t});
  if (status != DIBS_NOT_FOUND && status != DIBS_INVALID) fail_msg("\"%s\": %s", key, dibs_status_name(status));
}

static void keys_of_stocks_are_exact(void **state) {
  (void)state;
  static const char *const numbers[] = {"1abc", "01", " 1", "1 ", "+1", "1.0", "1e0", "0x1", "-1", "\xef\xbc\x91"};
  dibs_store *s = store_open();
  char number[60];
  snprintf(number, sizeof number, "%s PRIMARY KEY", engine->number);
  dibs_table *t = POOL(.key = number, .stock = engine->number);
  sql("INSERT INTO pool VALUES (1, 0, 500, NULL, NULL)");
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) not_there(s, t, numbers[i]);
  assert_string_equal(cell("SELECT used FROM pool"), "0");
  EXPECT(took(s, "1", 1, (dibs_stock_options){.table = t}), DIBS_OK);
  EXPECT(dibs_stock_set(s, "1abc", 3, &(dibs_stock_options){.size = sizeof(dibs_stock_options), .table = t}, NULL,
                        &reported),
         DIBS_INVALID);
  assert_string_equal(cell("SELECT COUNT(*) FROM pool WHERE most = 500"), "1");
  const char *loose = on("mysql")    ? "VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY"
                      : on("sqlite") ? "TEXT COLLATE NOCASE PRIMARY KEY"
                                     : "text PRIMARY KEY";
  t = POOL(.key = loose);
  sql("INSERT INTO pool VALUES ('%s', 0, 500, NULL, NULL)", alike[0]);
  for (size_t i = 1; i < ALIKE; i++) not_there(s, t, alike[i]);
  assert_string_equal(cell("SELECT used FROM pool"), "0");
  EXPECT(took(s, alike[0], 1, (dibs_stock_options){.table = t}), DIBS_OK);
  if (!on("postgres")) return;
  t = POOL(.key = "character(10) PRIMARY KEY", .stock = "character(10)");
  sql("INSERT INTO pool VALUES ('p', 0, 500, NULL, NULL)");
  not_there(s, t, "p ");
  EXPECT(took(s, "p", 1, (dibs_stock_options){.table = t, .claim = "c"}), DIBS_OK);
  EXPECT(took(s, "p", 1, (dibs_stock_options){.table = t, .claim = "c"}), DIBS_REPLAY);
}

/* ---- Records ---- */

static void keys_of_records_are_exact(void **state) {
  (void)state;
  static const char *const numbers[] = {"1abc", "01", " 1", "1 ", "+1", "1.0", "1e0", "0x1"};
  dibs_store *s = store_open();
  make_table("doc", "id %s PRIMARY KEY, body VARCHAR(40), version %s", engine->number, engine->number);
  sql("INSERT INTO doc VALUES (1, 'a', 1)");
  dibs_table *t = TABLE(.table = "doc", .key = "id", .version = "version", .columns = "body");
  dibs_record_options o = {.size = sizeof o, .table = t, .flags = DIBS_UNCHECKED};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    dibs_value b = {"b", 1};
    dibs_record *record = NULL;
    dibs_status got = dibs_record_get(s, numbers[i], &o, &record, &reported);
    if (got != DIBS_NOT_FOUND && got != DIBS_INVALID) fail_msg("get \"%s\": %s", numbers[i], dibs_status_name(got));
    got = dibs_record_put(s, numbers[i], &b, 1, &o, NULL, &reported);
    if (got != DIBS_NOT_FOUND && got != DIBS_INVALID) fail_msg("put \"%s\": %s", numbers[i], dibs_status_name(got));
    got = dibs_record_remove(s, numbers[i], &o, NULL, &reported);
    if (got != DIBS_NOT_FOUND && got != DIBS_INVALID) fail_msg("remove \"%s\": %s", numbers[i], dibs_status_name(got));
  }
  put(s, "1", VALUES("b"), DIBS_CONFLICT, .table = t, .if_version = "01");
  put(s, "1", VALUES("b"), DIBS_CONFLICT, .table = t, .if_version = "1x");
  assert_string_equal(cell("SELECT body FROM doc"), "a");
  if (on("postgres")) return;
  make_table("page", "slug VARCHAR(40) %s PRIMARY KEY, body VARCHAR(40)",
             on("mysql") ? "COLLATE utf8mb4_general_ci" : "COLLATE NOCASE");
  t = TABLE(.table = "page", .key = "slug", .columns = "body");
  sql("INSERT INTO page VALUES ('%s', 'a')", alike[0]);
  for (size_t i = 1; i < ALIKE; i++) {
    get(s, alike[i], DIBS_NOT_FOUND, .table = t);
    put(s, alike[i], VALUES("b"), DIBS_NOT_FOUND, .table = t, .flags = DIBS_UNCHECKED);
    take_away(s, alike[i], DIBS_NOT_FOUND, .table = t, .flags = DIBS_UNCHECKED);
  }
  put(s, alike[0], VALUES("b"), DIBS_OK, .table = t, .flags = DIBS_UNCHECKED);
}

static void two_rows_of_one_key_are_not_written(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("doc", "id VARCHAR(40), body VARCHAR(40), version %s, seen %s", engine->number, engine->number);
  sql("INSERT INTO doc VALUES ('d', 'a', 1, NULL), ('d', 'b', 1, NULL), ('e', 'e', 1, NULL)");
  dibs_table *t = TABLE(.table = "doc", .key = "id", .version = "version", .fence = "seen", .columns = "body");
  get(s, "d", DIBS_INVALID, .table = t);
  assert_message("unique");
  put(s, "d", VALUES("c"), DIBS_INVALID, .table = t, .flags = DIBS_UNCHECKED);
  assert_message("unique");
  put(s, "d", VALUES("c"), DIBS_INVALID, .table = t, .if_version = "1");
  put(s, "d", VALUES("c"), DIBS_INVALID, .table = t, .lease = lease_of(s, "two-rows"));
  take_away(s, "d", DIBS_INVALID, .table = t, .flags = DIBS_UNCHECKED);
  put(s, "e", VALUES("f"), DIBS_OK, .table = t, .if_version = "1");
  put(s, "f", VALUES("f"), DIBS_INVALID, .table = t, .flags = DIBS_IF_ABSENT);
  assert_message("unique");
  take_away(s, "d", DIBS_INVALID, .table = t, .if_version = "1");
  assert_string_equal(cell("SELECT COUNT(*) FROM doc WHERE id = 'd' AND body <> 'c' AND version = 1"), "2");
}

static void odd_versions_and_fences_of_records_are_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("doc", "id VARCHAR(40) PRIMARY KEY, body VARCHAR(40), version %s, seen %s",
             on("sqlite") ? "" : engine->number, on("sqlite") ? "" : engine->number);
  dibs_table *t = TABLE(.table = "doc", .key = "id", .version = "version", .fence = "seen", .columns = "body");
  sql("INSERT INTO doc VALUES ('null', 'a', NULL, NULL), ('minus', 'a', 1, -1)");
  put(s, "null", VALUES("b"), DIBS_OK, .table = t, .if_version = "0");
  dibs_lease *lease = lease_of(s, "odd-records");
  put(s, "minus", VALUES("b"), DIBS_INVALID, .table = t, .lease = lease);
  assert_message("seen");
  if (on("sqlite")) {
    sql("INSERT INTO doc VALUES ('t', 'a', 'abc', NULL), ('r', 'a', 1.5, NULL), ('s', 'a', 1, 'abc')");
    put(s, "t", VALUES("b"), DIBS_INVALID, .table = t, .flags = DIBS_UNCHECKED);
    assert_message("version");
    put(s, "r", VALUES("b"), DIBS_INVALID, .table = t, .flags = DIBS_UNCHECKED);
    put(s, "s", VALUES("b"), DIBS_INVALID, .table = t, .lease = lease);
    assert_message("seen");
  }
  assert_string_equal(cell("SELECT COUNT(*) FROM doc WHERE body = 'b'"), "1");
  t = TABLE(.table = "doc", .key = "id", .version = "body", .columns = "seen");
  put(s, "null", VALUES("1"), DIBS_INVALID, .table = t, .flags = DIBS_UNCHECKED);
  assert_message("body");
  t = TABLE(.table = "doc", .key = "id", .version = "versoin", .columns = "body");
  get(s, "null", DIBS_INVALID, .table = t);
  assert_message("versoin");
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(a_null_or_negative_number_refuses_every_take),
      TEST(a_stock_above_its_limit_is_full),
      TEST(a_value_that_is_not_a_number_refuses_every_take),
      TEST(a_narrow_column_never_counts_less),
      TEST(odd_claims_are_not_given_back),
      TEST(an_odd_fence_is_refused),
      TEST(a_misspelt_column_is_named),
      TEST(a_column_of_a_wrong_type_is_refused_at_the_first_call),
      TEST(a_column_that_the_engine_computes_is_refused),
      TEST(keys_and_claims_must_be_unique),
      TEST(a_view_is_refused),
      TEST(claims_are_their_bytes),
      TEST(keys_of_stocks_are_exact),
      TEST(keys_of_records_are_exact),
      TEST(two_rows_of_one_key_are_not_written),
      TEST(odd_versions_and_fences_of_records_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
