/* SPDX-License-Identifier: MIT */
/* Housekeeping: rows that no client needs are removed, others stay; the log does not grow for ever. */
#include "bed.h"
#include "drivers/sqlite/sqlite_impl.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LATER_MS = 200000, NAMES = 300 };

static int rows(const struct bed *bed, const char *where) {
  sqlite3 *db;
  sqlite3_stmt *st;
  char text[200];
  snprintf(text, sizeof text, "SELECT count(*) FROM %s", where);
  assert_int_equal(sqlite3_open_v2(bed->path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_prepare_v2(db, text, -1, &st, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(st), SQLITE_ROW);
  int count = sqlite3_column_int(st, 0);
  sqlite3_finalize(st);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
  return count;
}

static void later(struct slot *slot, int64_t ms) {
  dibs__sqlite_skew(slot->store, ms);
}

static void leases_that_ended_long_ago_are_removed(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char name[16];
  slot_open(bed, &slot);
  for (int i = 0; i < NAMES; i++) {
    snprintf(name, sizeof name, "n%d", i);
    assert_int_equal(slot_acquire(&slot, name, i).op.status, DIBS_OK);
  }
  later(&slot, LATER_MS);
  struct dibs__lease_op kept = slot_acquire(&slot, "kept", 1);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), NAMES + 1);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), 1);
  assert_int_equal(slot_renew(&slot, "kept", 1, kept.fence).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_name WHERE name = ''"), DIBS__BUCKETS);
  slot_close(&slot);
}

static void fill(const struct bed *bed, const char *text) {
  sqlite3 *db;
  assert_int_equal(sqlite3_open_v2(bed->path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_busy_timeout(db, 10000), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* More rows than one step removes, mixed with rows that are kept. */
static void expired_answers_are_removed(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  fill(bed, "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 350) INSERT INTO dibs_once"
            " (name, fence, owner, made, until, data) SELECT 'k' || n, 1, 1, 0,"
            " (CAST(strftime('%s', 'now') AS INTEGER) + CASE WHEN n % 7 = 0 THEN 3600 ELSE -5 END) * 1000, 'x' FROM n");
  assert_int_equal(rows(bed, "dibs_once"), 350);
  later(&slot, LATER_MS);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(rows(bed, "dibs_once"), 50);
  slot_close(&slot);
}

static uint64_t copies(const struct slot *slot) {
  return dibs__side_copies(((struct dibs__lite *)slot->store)->side);
}

/* A copy that began when another one was whole could lose commits (the comment of dibs__side_copy_begin). */
static void the_log_is_copied_again_only_after_a_commit(void **state) {
  struct bed *bed = *state;
  struct slot one, two;
  char name[16];
  slot_open(bed, &one);
  slot_open(bed, &two);
  for (int i = 0; i < DIBS__SQLITE_LOG_PAGES; i++) {
    snprintf(name, sizeof name, "n%d", i);
    assert_int_equal(slot_acquire(i % 2 ? &one : &two, name, i).op.status, DIBS_OK);
  }
  uint64_t before = copies(&one);
  one.store->driver->tidy(one.store);
  assert_int_equal(copies(&one), before + 1);
  two.store->driver->tidy(two.store);
  assert_int_equal(copies(&two), before + 1);
  assert_int_equal(slot_acquire(&two, "later", 1).op.status, DIBS_OK);
  atomic_store(&((struct dibs__lite *)two.store)->log_pages, DIBS__SQLITE_LOG_PAGES);
  assert_true(dibs__side_copy_begin(((struct dibs__lite *)one.store)->side, before + 1));
  two.store->driver->tidy(two.store); /* another store copies it now */
  assert_int_equal(copies(&two), before + 1);
  dibs__side_copy_end(((struct dibs__lite *)one.store)->side);
  two.store->driver->tidy(two.store);
  assert_int_equal(copies(&two), before + 2);
  slot_close(&two);
  slot_close(&one);
}

/* A process that queues, reports it, and waits. */
static pid_t queue_in_a_child(struct bed *bed, const char *name, int id) {
  int told[2];
  char byte;
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct slot slot;
    byte = slot_try(bed, &slot) == DIBS_OK && slot_queue(&slot, name, id).op.status == DIBS__QUEUED ? 'q' : 'x';
    if (write(told[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(told[1]);
  assert_int_equal(read(told[0], &byte, 1), 1);
  assert_int_equal(byte, 'q');
  close(told[0]);
  return child;
}

static void end_child(pid_t child) {
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, NULL, 0), child);
}

static void the_sleeper_of_a_dead_process_is_removed(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  dibs__fence fence = slot_acquire(&slot, "n", 1).fence;
  pid_t child = queue_in_a_child(bed, "n", 2);
  assert_int_equal(slot_release(&slot, "n", 1, fence).op.status, DIBS_OK); /* the name is offered to it now */
  assert_int_equal(slot_acquire(&slot, "n", 3).op.status, DIBS_HELD);
  end_child(child);
  later(&slot, DIBS__OFFER_MS + 1);
  assert_int_equal(slot_acquire(&slot, "n", 3).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place > 0"), 1);
  later(&slot, LATER_MS);
  assert_int_equal(slot_acquire(&slot, "n", 4).op.status, DIBS_OK);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place > 0"), 0);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place = 0 AND waiters = 0"), 1);
  slot_close(&slot);
}

static void a_long_queue_leaves_no_rows(void **state) {
  enum { WAITERS = 100 };
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  struct dibs__lease_op held = slot_acquire(&slot, "n", 0);
  uint64_t tickets[WAITERS];
  for (int i = 1; i < WAITERS; i++) {
    struct dibs__lease_op op = slot_queue(&slot, "n", i);
    assert_int_equal(op.op.status, DIBS__QUEUED);
    tickets[i] = op.ticket;
  }
  assert_true(rows(bed, "dibs_deep") > 0);
  for (int i = 1; i < WAITERS; i++) { /* a repetition with only the id finds the same position */
    struct dibs__lease_op op = slot_queue(&slot, "n", i);
    assert_int_equal(op.op.status, DIBS__QUEUED);
    assert_true(op.ticket == tickets[i]);
  }
  for (int i = 1; i < WAITERS; i++) {
    assert_int_equal(slot_release(&slot, "n", i - 1, held.fence).op.status, DIBS_OK);
    held = slot_queue(&slot, "n", i);
    assert_int_equal(held.op.status, DIBS_OK);
  }
  assert_int_equal(slot_release(&slot, "n", WAITERS - 1, held.fence).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_deep"), 0);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), 0);
  slot_close(&slot);
}

static void old_breaks_are_removed(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  assert_int_equal(slot_acquire(&slot, "n", 1).op.status, DIBS_OK);
  struct dibs__lease_op op = {.op.family = DIBS__FAM_LEASE, .op.verb = DIBS__BREAK, .now = true};
  op.name = dibs__str_of("n", 1);
  op.owner = dibs__str_of("me", 2);
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = slot_mandate(&slot, "n");
  assert_int_equal(slot_run(&slot, &op.op), DIBS_OK);
  assert_int_equal(op.op.status, DIBS_OK);
  later(&slot, LATER_MS);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(rows(bed, "dibs_break"), 1);
  later(&slot, INT64_C(8) * 86400000);
  slot.store->driver->tidy(slot.store);
  assert_int_equal(rows(bed, "dibs_break"), 0);
  slot_close(&slot);
}

static void the_log_is_reused(void **state) {
  enum { TURNS = 30000, MOST_BYTES = 32 << 20 };
  struct bed *bed = *state;
  struct slot slot;
  struct stat st;
  char log[200];
  slot_open(bed, &slot);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  int told = 0;
  for (int i = 0; i < TURNS; i++) {
    struct dibs__lease_op op = slot_acquire(&slot, "n", i);
    assert_int_equal(slot_release(&slot, "n", i, op.fence).op.status, DIBS_OK);
    if (!slot.reported.untidy) continue;
    told++;
    slot.store->driver->tidy(slot.store);
  }
  assert_true(told > 1);
  assert_int_equal(stat(log, &st), 0);
  assert_true(st.st_size < MOST_BYTES);
  slot_close(&slot);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(leases_that_ended_long_ago_are_removed),
      CASE(expired_answers_are_removed),
      CASE(the_sleeper_of_a_dead_process_is_removed),
      CASE(a_long_queue_leaves_no_rows),
      CASE(old_breaks_are_removed),
      CASE(the_log_is_reused),
      CASE(the_log_is_copied_again_only_after_a_commit),
  };
  return cmocka_run_group_tests_name("sqlite housekeeping", tests, NULL, NULL);
}
