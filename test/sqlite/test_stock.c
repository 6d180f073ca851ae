/* SPDX-License-Identifier: MIT */
/*
 * Guarded writes on the embedded store.  A file of an older schema is migrated and keeps its content, also if the
 * migration is interrupted; every call to the files and every allocation fails in turn during batches; and a user's own
 * connection.
 */
#include "base/text.h"
#include "bed.h"
#include "faultmem.h"
#include "faultvfs.h"
#include "sql/sql.h"
#include "sql/wire.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_MS = 50, MOST_CALLS = 4000, TAKES = 7, LIMIT = 1000000 };

static int begin(void **state) {
  faultvfs_install();
  return bed_begin(state);
}

static int end(void **state) {
  int result = bed_end(state);
  faultvfs_remove();
  return result;
}

/* ---- One-line operations ---- */

struct claims {
  char names[TAKES][33];
};

static struct dibs__stock_op stock_op(enum dibs__stock_verb verb, int64_t amount, const char *claim) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .amount = amount};
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.key = dibs__str_of("seats", 5);
  op.claim = dibs__str_of(claim, strlen(claim));
  op.op.bucket = dibs__bucket(op.key);
  return op;
}

static struct dibs__stock_op one(struct slot *slot, enum dibs__stock_verb verb, int64_t amount, const char *claim) {
  struct dibs__stock_op op = stock_op(verb, amount, claim);
  slot_run(slot, &op.op);
  return op;
}

static dibs__status take_some(struct slot *slot, const struct claims *claims, dibs__status statuses[TAKES]) {
  struct dibs__stock_op ops[TAKES];
  struct dibs__op *list[TAKES];
  for (size_t i = 0; i < TAKES; i++) {
    ops[i] = stock_op(DIBS__STOCK_TAKE, 1, claims->names[i]);
    ops[i].op.status = DIBS_UNKNOWN;
    list[i] = &ops[i].op;
  }
  dibs__status status = slot->store->driver->run(slot->session, list, TAKES, bed_by(), &slot->reported);
  for (size_t i = 0; i < TAKES; i++) statuses[i] = status == DIBS_OK ? ops[i].op.status : status;
  return status;
}

static struct claims claims_of(unsigned nr) {
  struct claims c;
  for (size_t i = 0; i < TAKES; i++) snprintf(c.names[i], sizeof c.names[i], "claim-%u-%zu", nr, i);
  return c;
}

static int64_t number(const char *path, const char *text) {
  sqlite3 *db;
  sqlite3_stmt *st;
  assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  if (sqlite3_prepare_v2(db, text, -1, &st, NULL) != SQLITE_OK) fail_msg("%s: %s", text, sqlite3_errmsg(db));
  assert_int_equal(sqlite3_step(st), SQLITE_ROW);
  int64_t got = sqlite3_column_int64(st, 0);
  sqlite3_finalize(st);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
  return got;
}

/* ---- A file of an older schema ---- */

/* Checks the schema of this version as SQLite stores it. */
static void expect_steps(const char *path, uint32_t version) {
  static const struct dibs__sql_words words = {.number = "INTEGER",
                                               .name = "TEXT",
                                               .text = "TEXT",
                                               .id = "TEXT",
                                               .bytes = "BLOB",
                                               .tail = " WITHOUT ROWID",
                                               .some = " WHERE ",
                                               .counted = "INTEGER PRIMARY KEY AUTOINCREMENT",
                                               .now = ""};
  char text[2048], query[4096];
  size_t all = 0;
  for (uint32_t step = 0; step < version; step++)
    for (size_t nth = 0; dibs__sql_schema(&words, step, nth, text, sizeof text); nth++, all++) {
      snprintf(query, sizeof query, "SELECT count(*) FROM sqlite_master WHERE sql = '%s'", text);
      if (strchr(text, '\'')) continue;
      if (number(path, query) != 1) fail_msg("not there: %s", text);
    }
  assert_int_equal(
      number(path, "SELECT count(*) FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"), all);
}

/* Creates a store of an older dibs with a held lease and a record. */
static dibs__fence make_version(struct bed *bed, uint32_t version) {
  char text[200];
  struct slot slot;
  slot_open(bed, &slot);
  struct dibs__lease_op held = slot_acquire(&slot, "n", 1);
  assert_int_equal(held.op.status, DIBS_OK);
  assert_int_equal(slot_save(&slot, "r", 1, held.fence, "kept").op.status, DIBS_OK);
  slot_close(&slot);
  bed_sql(bed->path, "DROP INDEX dibs_task_slot; ALTER TABLE dibs_task DROP COLUMN slot;"
                     "ALTER TABLE dibs_task DROP COLUMN lane; ALTER TABLE dibs_task_kind DROP COLUMN topic;"
                     "DROP TABLE dibs_lane");
  if (version < 6) bed_sql(bed->path, "DROP INDEX dibs_run_nr");
  if (version < 5) bed_sql(bed->path, "DROP TABLE dibs_counter; DROP TABLE dibs_counter_source; DROP TABLE dibs_rate");
  if (version < 4)
    bed_sql(bed->path, "DROP TABLE dibs_task; DROP TABLE dibs_task_serial; DROP TABLE dibs_task_done;"
                       "DROP TABLE dibs_task_error; DROP TABLE dibs_task_kind; DROP TABLE dibs_task_token;"
                       "DROP TABLE dibs_run; DROP TABLE dibs_setting");
  if (version < 3) bed_sql(bed->path, "DROP TABLE dibs_report");
  if (version < 2) bed_sql(bed->path, "DROP TABLE dibs_stock; DROP TABLE dibs_claim; DROP TABLE dibs_once");
  snprintf(text, sizeof text, "UPDATE dibs_meta SET version = %u; PRAGMA user_version = %u", version, version);
  bed_sql(bed->path, text);
  bed_checkpoint(bed->path);
  expect_steps(bed->path, version);
  return held.fence;
}

static void expect_all_there(struct bed *bed, struct slot *slot, dibs__fence fence) {
  assert_int_equal(slot_acquire(slot, "n", 2).op.status, DIBS_HELD);
  struct dibs__lease_op again = slot_acquire(slot, "n", 1);
  assert_int_equal(again.op.status, DIBS_OK);
  assert_true(again.fence.v == fence.v);
  struct dibs__record_op got = slot_load(slot, "r");
  assert_int_equal(got.op.status, DIBS_OK);
  assert_string_equal(got.got, "kept");
  free(got.got);
  assert_int_equal(number(bed->path, "PRAGMA user_version"), DIBS__SQL_SCHEMA);
  assert_int_equal(number(bed->path, "SELECT version FROM dibs_meta"), DIBS__SQL_SCHEMA);
  assert_int_equal(one(slot, DIBS__STOCK_SET, 5, "").op.status, DIBS_OK);
  struct dibs__stock_op taken = one(slot, DIBS__STOCK_TAKE, 5, "c");
  assert_true(taken.op.status == DIBS_OK || taken.op.status == DIBS_REPLAY);
  assert_int_equal(number(bed->path, "SELECT count(*) FROM dibs_report"), 0);
  assert_int_equal(number(bed->path, "SELECT count(*) FROM dibs_name WHERE name = '' AND state IS NULL"),
                   DIBS__BUCKETS);
}

static void an_older_file_keeps_its_content(void **state) {
  struct bed *bed = *state;
  struct slot slot, second;
  for (uint32_t version = 1; version < DIBS__SQL_SCHEMA; version++) {
    dibs__fence fence = make_version(bed, version);
    slot_open(bed, &slot);
    expect_all_there(bed, &slot, fence);
    slot_open(bed, &second);
    expect_all_there(bed, &second, fence);
    slot_close(&second);
    assert_int_equal(slot_release(&slot, "n", 1, fence).op.status, DIBS_OK);
    slot_close(&slot);
  }
}

static void copy_all(struct bed *bed, const char *from, const char *to) {
  static const char *const parts[] = {"", "-dibs"};
  char a[300], b[300];
  for (size_t i = 0; i < 2; i++) {
    snprintf(a, sizeof a, "%s%s%s", bed->path, from, parts[i]);
    snprintf(b, sizeof b, "%s%s%s", bed->path, to, parts[i]);
    bed_copy(a, b);
  }
}

/* Each call fails once: the store opens or it does not, and opens at the next attempt. */
static void an_interrupted_migration_has_the_old_or_the_new_schema(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  dibs__fence fence = make_version(bed, 1);
  copy_all(bed, "", ".v1");
  bool came_through = false;
  for (unsigned nth = 1; !came_through; nth++) {
    assert_true(nth < MOST_CALLS);
    char part[300];
    snprintf(part, sizeof part, "%s-wal", bed->path);
    remove(part);
    snprintf(part, sizeof part, "%s-shm", bed->path);
    remove(part);
    copy_all(bed, ".v1", "");
    bed_ms = SHORT_MS;
    faultvfs_arm(nth, nth % 2);
    dibs__status status = slot_try(bed, &slot);
    came_through = faultvfs_failed() == 0;
    faultvfs_arm(0, false);
    bed_ms = BED_MS;
    if (status == DIBS_OK) slot_close(&slot);
    int64_t version = number(bed->path, "PRAGMA user_version");
    int64_t tables = number(
        bed->path,
        "SELECT count(*) FROM sqlite_master WHERE name IN ('dibs_stock', 'dibs_claim',"
        "'dibs_once', 'dibs_report', 'dibs_task', 'dibs_run', 'dibs_counter', 'dibs_counter_source', 'dibs_rate',"
        "'dibs_lane')");
    assert_true((version == 1 && tables == 0) || (version == DIBS__SQL_SCHEMA && tables == 10));
    slot_open(bed, &slot);
    expect_all_there(bed, &slot, fence);
    slot_close(&slot);
  }
}

/* ---- Failures while batches are taken ---- */

/* An acknowledged take has one claim; another take has one or none; the count equals the claims. `before`: it was taken
 * before. */
static void expect_consistent(const char *path, const struct claims *claims, const dibs__status statuses[TAKES],
                              int before) {
  char text[200];
  for (size_t i = 0; i < TAKES; i++) {
    snprintf(text, sizeof text, "SELECT count(*) FROM dibs_claim WHERE claim = '%s'", claims->names[i]);
    int64_t there = number(path, text);
    if (statuses[i] == DIBS_OK || statuses[i] == DIBS_REPLAY) assert_int_equal(there, 1);
    if ((int)i != before && (statuses[i] == DIBS_UNAVAILABLE || statuses[i] == DIBS_NO_MEMORY))
      assert_int_equal(there, 0);
  }
  assert_int_equal(number(path, "SELECT used - (SELECT sum(amount) FROM dibs_claim) FROM dibs_stock"), 0);
}

static void rounds(struct bed *bed, bool of_memory) {
  struct slot slot;
  bool came_through = false;
  slot_open(bed, &slot);
  assert_int_equal(one(&slot, DIBS__STOCK_SET, LIMIT, "").op.status, DIBS_OK);
  assert_int_equal(one(&slot, DIBS__STOCK_TAKE, 1, "first").op.status, DIBS_OK);
  for (unsigned nth = 1; !came_through; nth++) {
    assert_true(nth < MOST_CALLS);
    struct claims claims = claims_of(nth);
    dibs__status statuses[TAKES];
    int before = nth % 3 == 0 ? 3 : -1; /* one repeats: the driver decides each element separately */
    if (before >= 0) one(&slot, DIBS__STOCK_TAKE, 1, claims.names[before]);
    bed_ms = SHORT_MS;
    of_memory ? faultmem_arm(nth, false) : faultvfs_arm(nth, false);
    take_some(&slot, &claims, statuses);
    came_through = before >= 0 && (of_memory ? faultmem_failed() : faultvfs_failed()) == 0;
    faultmem_arm(0, false);
    faultvfs_arm(0, false);
    bed_ms = BED_MS;
    assert_true(slot_mandate_followed(&slot));
    expect_consistent(bed->path, &claims, statuses, before);
    assert_int_equal(take_some(&slot, &claims, statuses), DIBS_OK); /* repeated, each counts once */
    for (size_t i = 0; i < TAKES; i++) assert_true(statuses[i] == DIBS_OK || statuses[i] == DIBS_REPLAY);
    expect_consistent(bed->path, &claims, statuses, before);
  }
  slot_close(&slot);
}

static void every_file_call_fails_in_turn(void **state) {
  rounds(*state, false);
}

static void every_allocation_fails_in_turn(void **state) {
  rounds(*state, true);
}

/* ---- How long claims are kept ---- */

static void old_claims_are_removed_and_others_stay(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  assert_int_equal(one(&slot, DIBS__STOCK_SET, LIMIT, "").op.status, DIBS_OK);
  bed_sql(bed->path,
          "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO dibs_claim"
          " SELECT 'c' || i, 'seats', 1, i % 3 = 0, 'x', (julianday('now') - 2440587.5) * 86400000 -"
          " CASE WHEN i % 10 = 0 THEN 29.9 ELSE 30.1 END * 86400000 FROM n");
  dibs__sqlite_skew(slot.store, 3600000); /* the next cleaning is due */
  slot.store->driver->tidy(slot.store);
  assert_int_equal(number(bed->path, "SELECT count(*) FROM dibs_claim"), 2100);
  assert_int_equal(number(bed->path, "SELECT count(*) FROM dibs_claim WHERE given = 0"), 2000);
  assert_int_equal(number(bed->path, "SELECT count(*) FROM dibs_claim WHERE substr(claim, -1) = '0'"), 300);
  slot_close(&slot);
}

/* A claim that was held for a year and is then given back is kept for another month from that time. */
static void a_claim_is_kept_from_when_it_was_given_back(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  assert_int_equal(one(&slot, DIBS__STOCK_SET, 10, "").op.status, DIBS_OK);
  assert_int_equal(one(&slot, DIBS__STOCK_TAKE, 4, "held").op.status, DIBS_OK);
  assert_int_equal(one(&slot, DIBS__STOCK_TAKE, 3, "given").op.status, DIBS_OK);
  bed_sql(bed->path, "UPDATE dibs_claim SET taken = taken - 365 * 86400000");
  dibs__sqlite_skew(slot.store, 3600000);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(one(&slot, DIBS__STOCK_GIVE, 0, "given").op.status, DIBS_OK);
  dibs__sqlite_skew(slot.store, 2 * 3600000);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(one(&slot, DIBS__STOCK_TAKE, 3, "given").op.status, DIBS_CONFLICT);
  assert_int_equal(one(&slot, DIBS__STOCK_GIVE, 0, "given").op.status, DIBS_REPLAY);
  struct dibs__stock_op held = one(&slot, DIBS__STOCK_GIVE, 0, "held");
  assert_int_equal(held.op.status, DIBS_OK);
  assert_int_equal(held.got, 4);
  assert_int_equal(held.used, 0);
  slot_close(&slot);
}

/* ---- The user's own connection ---- */

struct theirs {
  sqlite3 *db;
  struct slot slot;
};

static void attach(struct slot *store, const char *path, struct theirs *t, dibs__status want) {
  assert_int_equal(sqlite3_open(path, &t->db), SQLITE_OK);
  t->slot = (struct slot){.bed = store->bed, .store = store->store};
  assert_int_equal(
      store->store->driver->attach(store->store, t->db, &t->slot.session, &t->slot.identity, &t->slot.reported), want);
}

static void detach(struct theirs *t) {
  if (t->slot.session) t->slot.store->driver->disconnect(t->slot.session);
  assert_int_equal(sqlite3_close(t->db), SQLITE_OK); /* no statement of dibs remains */
}

static void say(struct theirs *t, const char *text) {
  if (sqlite3_exec(t->db, text, NULL, NULL, NULL) != SQLITE_OK) fail_msg("%s: %s", text, sqlite3_errmsg(t->db));
}

static void a_take_inside_commits_with_the_transaction(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  struct theirs t;
  slot_open(bed, &slot);
  assert_int_equal(one(&slot, DIBS__STOCK_SET, 5, "").op.status, DIBS_OK);
  attach(&slot, bed->path, &t, DIBS_OK);
  say(&t, "BEGIN IMMEDIATE");
  assert_int_equal(one(&t.slot, DIBS__STOCK_TAKE, 2, "a").op.status, DIBS_OK);
  assert_int_equal(one(&t.slot, DIBS__STOCK_TAKE, 9, "b").op.status, DIBS_FULL);
  assert_int_equal(one(&t.slot, DIBS__STOCK_TAKE, 2, "a").op.status, DIBS_REPLAY);
  assert_int_equal(one(&slot, DIBS__STOCK_READ, 0, "").used, 0); /* not committed yet */
  say(&t, "COMMIT");
  assert_int_equal(one(&slot, DIBS__STOCK_READ, 0, "").used, 2);
  say(&t, "BEGIN IMMEDIATE");
  assert_int_equal(one(&t.slot, DIBS__STOCK_TAKE, 3, "c").op.status, DIBS_OK);
  assert_int_equal(one(&t.slot, DIBS__STOCK_GIVE, 0, "a").op.status, DIBS_OK);
  say(&t, "ROLLBACK");
  assert_int_equal(one(&slot, DIBS__STOCK_READ, 0, "").used, 2);
  assert_int_equal(one(&slot, DIBS__STOCK_TAKE, 3, "c").op.status, DIBS_OK);
  detach(&t);
  slot_close(&slot);
}

static void inside_without_a_transaction_is_refused(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  struct theirs t;
  slot_open(bed, &slot);
  attach(&slot, bed->path, &t, DIBS_OK);
  struct dibs__stock_op set = stock_op(DIBS__STOCK_SET, 5, "");
  assert_int_equal(slot_run(&t.slot, &set.op), DIBS_INVALID);
  assert_non_null(strstr(t.slot.reported.text, "begin one first"));
  assert_int_equal(one(&slot, DIBS__STOCK_READ, 0, "").op.status, DIBS_NOT_FOUND);
  detach(&t);
  attach(&slot, ":memory:", &t, DIBS_INVALID);
  detach(&t);
  char other[200];
  snprintf(other, sizeof other, "%s/other.db", bed->folder);
  attach(&slot, other, &t, DIBS_INVALID);
  assert_non_null(strstr(t.slot.reported.text, bed->path));
  detach(&t);
  slot_close(&slot);
}

int main(void) {
  faultmem_install();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(an_older_file_keeps_its_content, begin, end),
      cmocka_unit_test_setup_teardown(an_interrupted_migration_has_the_old_or_the_new_schema, begin, end),
      cmocka_unit_test_setup_teardown(every_file_call_fails_in_turn, begin, end),
      cmocka_unit_test_setup_teardown(every_allocation_fails_in_turn, begin, end),
      cmocka_unit_test_setup_teardown(old_claims_are_removed_and_others_stay, begin, end),
      cmocka_unit_test_setup_teardown(a_claim_is_kept_from_when_it_was_given_back, begin, end),
      cmocka_unit_test_setup_teardown(a_take_inside_commits_with_the_transaction, begin, end),
      cmocka_unit_test_setup_teardown(inside_without_a_transaction_is_refused, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
