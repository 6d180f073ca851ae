/* SPDX-License-Identifier: MIT */
/*
 * The strings of test/hostile through dibs.h: bytes that are not text are refused and change nothing; everything else
 * is returned unchanged, also inside a transaction on a connection with settings of its own.
 */
#include "dibs/admin.h"
#include "hostile/hostile.h"
#include "record_bed.h"
#include "support/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void refused(const char *what, const char *text, dibs_status got) {
  if (got != DIBS_INVALID) fail_msg("%s: %s, expected INVALID: %s", what, dibs_status_name(got), reported.text);
  if (!strstr(reported.text, "; give 1 to ")) fail_msg("%s: \"%s\" does not name the valid form", what, reported.text);
  for (const char *c = reported.text; *c; c++)
    if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
      fail_msg("%s: the message contains control characters", what);
  if (strlen(text) > 3 && strstr(reported.text, text)) fail_msg("%s: the message repeats the text", what);
  memset(&reported, 0, sizeof reported);
}

static int count_rows(const dibs_lease_info *info, void *user) {
  (void)info;
  ++*(int *)user;
  return 0;
}

static dibs_status never_run(dibs_lease *lease, char **answer, size_t *length, void *user) {
  (void)lease, (void)answer, (void)length, (void)user;
  fail_msg("it ran");
  return DIBS_OK;
}

static void never_done(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  (void)lease, (void)status, (void)user;
  fail_msg("done was called");
}

static void refused_by_leases(dibs_store *s, const char *bad) {
  static const char id[] = "0123456789abcdef0123456789abcdef";
  dibs_lease *lease = NULL, *two[2] = {NULL, NULL};
  const char *names[] = {"fine", bad};
  int rows = 0;
  dibs_lease_options as = {.size = sizeof as, .owner = bad};
  dibs_break_options who = {.size = sizeof who, .who = bad};
  dibs_store_options opened = {.size = sizeof opened, .owner = bad};
  dibs_store *other = NULL;
  refused("acquire", bad, dibs_acquire(s, bad, NULL, &lease, &reported));
  refused("acquire, owner", bad, dibs_acquire(s, "n", &as, &lease, &reported));
  refused("acquire many", bad, dibs_acquire_many(s, names, 2, NULL, two, &reported));
  refused("acquire start", bad, dibs_acquire_start(s, bad, NULL, never_done, NULL, &lease, &reported));
  refused("adopt", bad, dibs_lease_adopt(s, bad, id, (dibs_fence){1}, NULL, &lease, &reported));
  refused("show", bad, dibs_show(s, bad, count_rows, &rows, &reported));
  if (*bad) refused("list", bad, dibs_list(s, bad, count_rows, &rows, &reported));
  refused("break", bad, dibs_break(s, bad, NULL, &reported));
  refused("break, who", bad, dibs_break(s, "n", &who, &reported));
  refused("open, owner", bad, dibs_open(case_uri(), &opened, &other, &reported));
  assert_null(lease);
  assert_null(two[0]);
  assert_null(other);
  assert_int_equal(rows, 0);
}

static void refused_by_writes(dibs_store *s, dibs_lease *lease, const char *bad) {
  dibs_record *record = NULL;
  dibs_value v = {"x", 1};
  dibs_record_options force = {.size = sizeof force, .flags = DIBS_UNCHECKED};
  dibs_stock_options claim = {.size = sizeof claim, .claim = bad}, owner = {.size = sizeof owner, .owner = bad};
  char *data = NULL;
  size_t length;
  refused("seal", bad, record_seal(s, bad, lease, &data, &length, &reported));
  refused("save", bad, record_save(s, bad, lease, "x", 1, &reported));
  refused("get", bad, dibs_record_get(s, bad, NULL, &record, &reported));
  refused("put", bad, dibs_record_put(s, bad, &v, 1, &force, NULL, &reported));
  refused("remove", bad, dibs_record_remove(s, bad, &force, NULL, &reported));
  refused("stock set", bad, dibs_stock_set(s, bad, 1, NULL, NULL, &reported));
  refused("stock show", bad, dibs_stock_show(s, bad, NULL, NULL, &reported));
  refused("take", bad, dibs_stock_take(s, bad, 1, NULL, NULL, &reported));
  refused("take, claim", bad, dibs_stock_take(s, "seats", 1, &claim, NULL, &reported));
  refused("take, owner", bad, dibs_stock_take(s, "seats", 1, &owner, NULL, &reported));
  refused("give", bad, dibs_stock_give(s, bad, "c", NULL, NULL, &reported));
  refused("give, claim", bad, dibs_stock_give(s, "seats", bad, NULL, NULL, &reported));
  refused("once", bad, dibs_once(s, bad, NULL, never_run, NULL, &data, &length, &reported));
  refused("forget", bad, dibs_once_forget(s, bad, &reported));
  assert_null(record);
  assert_null(data);
}

static void bytes_that_are_not_text_are_refused_and_change_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_lease *lease = lease_of(s, "held");
  dibs_stock_result stock = {.size = sizeof stock};
  int rows = 0, before = 0;
  assert_int_equal(dibs_stock_set(s, "seats", 100000, NULL, NULL, &reported), DIBS_OK);
  assert_int_equal(dibs_stock_show(s, "seats", NULL, &stock, &reported), DIBS_OK);
  int64_t used = stock.used;
  assert_int_equal(dibs_list(s, NULL, count_rows, &before, &reported), DIBS_OK);
  for (size_t i = 0; i < hostile_bad_count; i++) {
    refused_by_leases(s, hostile_bad[i].p);
    refused_by_writes(s, lease, hostile_bad[i].p);
  }
  assert_int_equal(dibs_list(s, NULL, count_rows, &rows, &reported), DIBS_OK);
  assert_int_equal(rows, before);
  assert_int_equal(dibs_stock_show(s, "seats", NULL, &stock, &reported), DIBS_OK);
  assert_int_equal(stock.used, used);
}

/* ---- Valid texts ---- */

static const char *fit(size_t i) {
  return i < hostile_short_count ? hostile_short[i].p : hostile_long[i - hostile_short_count].p;
}
static size_t fit_count(void) {
  return hostile_short_count + hostile_long_count;
}
static const char *label(size_t i) {
  return hostile_short[(i * 7 + 3) % hostile_short_count].p;
}

struct expected {
  const char *name, *owner;
  size_t rows;
};

static int see(const dibs_lease_info *info, void *user) {
  struct expected *e = user;
  if (info->state == DIBS_BROKEN) return 0; /* of another case */
  e->rows++;
  if (strcmp(info->name, e->name) != 0) fail_msg("\"%s\" became \"%s\"", e->name, info->name);
  if (strcmp(info->owner, e->owner) != 0) fail_msg("the owner \"%s\" became \"%s\"", e->owner, info->owner);
  return 0;
}

static void each_name_is_held_separately(void **state) {
  (void)state;
  dibs_store *s = store_open(), *other = store_open();
  dibs_lease **held = calloc(fit_count(), sizeof(dibs_lease *)), *none;
  assert_non_null(held);
  for (size_t i = 0; i < fit_count(); i++) {
    dibs_lease_options o = {.size = sizeof o, .owner = label(i)};
    if (dibs_acquire(s, fit(i), &o, &held[i], &reported) != DIBS_OK) fail_msg("\"%s\": %s", fit(i), reported.text);
  }
  for (size_t i = 0; i < fit_count(); i++) {
    struct expected e = {fit(i), label(i), 0};
    assert_int_equal(dibs_show(other, fit(i), see, &e, &reported), DIBS_OK);
    assert_int_equal(e.rows, 1);
    assert_int_equal(dibs_acquire(other, fit(i), NULL, &none, &reported), DIBS_HELD);
    if (dibs_renew(held[i], 0, &reported) != DIBS_OK) fail_msg("\"%s\": %s", fit(i), reported.text);
  }
  for (size_t i = 0; i < fit_count(); i++) {
    assert_int_equal(dibs_release(held[i], &reported), DIBS_OK);
    dibs_lease_free(held[i]);
  }
  free(held);
}

static dibs_status write_label(dibs_lease *lease, char **answer, size_t *length, void *user) {
  (void)lease;
  *answer = strdup(user);
  *length = strlen(user);
  return *answer ? DIBS_OK : DIBS_NO_MEMORY;
}

/* Stores keep once keys and claims beyond the case: this makes those of each round unique. */
static const char *salted(const char *round, size_t i) {
  static char text[128];
  snprintf(text, sizeof text, i % 2 ? "%s%s" : "%2$s%1$s", round, hostile_short[i].p);
  return text;
}

static const char *new_round(void) {
  static char text[24];
  static unsigned nr;
  snprintf(text, sizeof text, "%05x%02x", (unsigned)getpid() & 0xfffff, nr++ & 0xff);
  return text;
}

/* Every `step`th text, from `first` on. */
static void write_all(dibs_store *s, const char *round, size_t first, size_t step) {
  for (size_t i = first; i < hostile_short_count; i += step) {
    dibs_stock_options claim = {.size = sizeof claim, .claim = salted(round, i), .owner = label(i)};
    dibs_value v = {label(i), strlen(label(i))};
    dibs_record_options force = {.size = sizeof force, .flags = DIBS_UNCHECKED};
    char *answer = NULL, mine[128];
    size_t length;
    snprintf(mine, sizeof mine, "%s", label(i));
    if (dibs_stock_take(s, "seats", 1, &claim, NULL, &reported) != DIBS_OK ||
        dibs_record_put(s, salted(round, i), &v, 1, &force, NULL, &reported) != DIBS_OK ||
        dibs_once(s, salted(round, i), NULL, write_label, mine, &answer, &length, &reported) != DIBS_OK)
      fail_msg("\"%s\": %s", salted(round, i), reported.text);
    free(answer);
  }
}

static void read_all(dibs_store *s, const char *round, size_t first, size_t step) {
  for (size_t i = first; i < hostile_short_count; i += step) {
    dibs_stock_options claim = {.size = sizeof claim, .claim = salted(round, i)};
    char *answer = NULL;
    size_t length;
    assert_int_equal(dibs_stock_take(s, "seats", 1, &claim, NULL, &reported), DIBS_REPLAY);
    const dibs_record *r = get(s, salted(round, i), DIBS_OK);
    assert_string_equal(r->values[0].data, label(i));
    assert_int_equal(dibs_once(s, salted(round, i), NULL, never_run, NULL, &answer, &length, &reported), DIBS_REPLAY);
    assert_string_equal(answer, label(i));
    free(answer);
  }
}

static void each_key_and_claim_is_distinct(void **state) {
  (void)state;
  dibs_store *s = store_open();
  const char *round = new_round();
  dibs_stock_result stock = {.size = sizeof stock};
  assert_int_equal(dibs_stock_set(s, "seats", 100000, NULL, NULL, &reported), DIBS_OK);
  assert_int_equal(dibs_stock_show(s, "seats", NULL, &stock, &reported), DIBS_OK);
  int64_t before = stock.used;
  write_all(s, round, 0, 1);
  read_all(s, round, 0, 1);
  assert_int_equal(dibs_stock_show(s, "seats", NULL, &stock, &reported), DIBS_OK);
  assert_int_equal(stock.used - before, hostile_short_count);
}

static void the_same_inside_for_every_connection_setting(void **state) {
  (void)state;
  static const char *const of_mysql[] = {"SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'",
                                         "SET sql_mode = ''",
                                         "SET NAMES latin1",
                                         "SET NAMES gbk",
                                         "SET NAMES sjis",
                                         "SET sql_mode = 'PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE'"};
  static const char *const of_postgres[] = {"SET standard_conforming_strings = off", "SET quote_all_identifiers = on",
                                            "SET bytea_output = hex"};
  static const char *const of_sqlite[] = {"PRAGMA case_sensitive_like = 1"};
  bool mysql = strcmp(engine->scheme, "mysql") == 0, postgres = strcmp(engine->scheme, "postgres") == 0;
  const char *const *settings = mysql ? of_mysql : postgres ? of_postgres : of_sqlite;
  size_t count = mysql ? 6 : postgres ? 3 : 1;
  dibs_store *s = store_open();
  assert_int_equal(dibs_stock_set(s, "seats", 100000, NULL, NULL, &reported), DIBS_OK);
  for (size_t i = 0; i < count; i++) {
    const char *round = new_round();
    dibs_store *inside;
    sql("%s", settings[i]);
    sql("BEGIN");
    if (engine->inside(s, connection(), &inside, &reported) != DIBS_OK) fail_msg("%s: %s", settings[i], reported.text);
    write_all(inside, round, i, count);
    dibs_close(inside);
    sql("COMMIT");
    read_all(s, round, i, count);
  }
}

/* In a user's table a value is a text of the engine; the user's type decides the key. */
static void each_value_is_returned_from_a_users_table(void **state) {
  (void)state;
  make_table("note", "id %s PRIMARY KEY, body %s, version %s", engine->number, engine->long_text, engine->number);
  dibs_table *t = TABLE(.table = "note", .key = "id", .version = "version", .columns = "body");
  dibs_store *s = store_open();
  for (size_t i = 0; i < fit_count(); i++) {
    char key[24];
    snprintf(key, sizeof key, "%zu", i + 1);
    put(s, key, VALUES(fit(i)), DIBS_OK, .table = t, .flags = DIBS_IF_ABSENT);
    const dibs_record *r = get(s, key, DIBS_OK, .table = t);
    assert_string_equal(r->values[0].data, fit(i));
    put(s, key, VALUES(label(i)), DIBS_OK, .table = t, .if_version = r->version);
    r = get(s, key, DIBS_OK, .table = t);
    assert_string_equal(r->values[0].data, label(i));
  }
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(bytes_that_are_not_text_are_refused_and_change_nothing),
      TEST(each_name_is_held_separately),
      TEST(each_key_and_claim_is_distinct),
      TEST(the_same_inside_for_every_connection_setting),
      TEST(each_value_is_returned_from_a_users_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
