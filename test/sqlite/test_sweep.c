/* SPDX-License-Identifier: MIT */
/* Housekeeping: what nobody asks for any more goes, what somebody has stays; the log does not grow for ever. */
#include "bed.h"

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

static void later(struct seat *seat, int64_t ms) {
  dibs__sqlite_skew(seat->store, ms);
}

static void what_ended_long_ago_goes(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char name[16];
  seat_open(bed, &seat);
  for (int i = 0; i < NAMES; i++) {
    snprintf(name, sizeof name, "n%d", i);
    assert_int_equal(seat_acquire(&seat, name, i).op.status, DIBS_OK);
  }
  later(&seat, LATER_MS);
  struct dibs__lease_op kept = seat_acquire(&seat, "kept", 1);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), NAMES + 1);
  seat.store->driver->tidy(seat.store);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), 1);
  assert_int_equal(seat_renew(&seat, "kept", 1, kept.fence).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_name WHERE name = ''"), DIBS__BUCKETS);
  seat_close(&seat);
}

static void fill(const struct bed *bed, const char *text) {
  sqlite3 *db;
  assert_int_equal(sqlite3_open_v2(bed->path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_busy_timeout(db, 10000), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* More than one step takes; those that are kept stand among them. */
static void answers_whose_time_is_over_go(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  fill(bed, "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 350) INSERT INTO dibs_once"
            " (name, fence, owner, made, until, data) SELECT 'k' || n, 1, 1, 0,"
            " (CAST(strftime('%s', 'now') AS INTEGER) + CASE WHEN n % 7 = 0 THEN 3600 ELSE -5 END) * 1000, 'x' FROM n");
  assert_int_equal(rows(bed, "dibs_once"), 350);
  later(&seat, LATER_MS);
  seat.store->driver->tidy(seat.store);
  assert_int_equal(rows(bed, "dibs_once"), 50);
  seat_close(&seat);
}

/* A process that queues, says so, and stands still. */
static pid_t queue_in_a_child(struct bed *bed, const char *name, int id) {
  int told[2];
  char byte;
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct seat seat;
    byte = seat_try(bed, &seat) == DIBS_OK && seat_queue(&seat, name, id).op.status == DIBS__QUEUED ? 'q' : 'x';
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

static void sleeper_of_a_dead_process_goes(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  dibs__fence fence = seat_acquire(&seat, "n", 1).fence;
  pid_t child = queue_in_a_child(bed, "n", 2);
  assert_int_equal(seat_release(&seat, "n", 1, fence).op.status, DIBS_OK); /* it is offered now */
  assert_int_equal(seat_acquire(&seat, "n", 3).op.status, DIBS_HELD);
  end_child(child);
  later(&seat, DIBS__OFFER_MS + 1);
  assert_int_equal(seat_acquire(&seat, "n", 3).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place > 0"), 1);
  later(&seat, LATER_MS);
  assert_int_equal(seat_acquire(&seat, "n", 4).op.status, DIBS_OK);
  seat.store->driver->tidy(seat.store);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place > 0"), 0);
  assert_int_equal(rows(bed, "dibs_name WHERE name = 'n' AND place = 0 AND waiters = 0"), 1);
  seat_close(&seat);
}

static void deep_queue_leaves_nothing_behind(void **state) {
  enum { CROWD = 100 };
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  struct dibs__lease_op held = seat_acquire(&seat, "n", 0);
  uint64_t tickets[CROWD];
  for (int i = 1; i < CROWD; i++) {
    struct dibs__lease_op op = seat_queue(&seat, "n", i);
    assert_int_equal(op.op.status, DIBS__QUEUED);
    tickets[i] = op.ticket;
  }
  assert_true(rows(bed, "dibs_deep") > 0);
  for (int i = 1; i < CROWD; i++) { /* asked again by id alone, the same place is found */
    struct dibs__lease_op op = seat_queue(&seat, "n", i);
    assert_int_equal(op.op.status, DIBS__QUEUED);
    assert_true(op.ticket == tickets[i]);
  }
  for (int i = 1; i < CROWD; i++) {
    assert_int_equal(seat_release(&seat, "n", i - 1, held.fence).op.status, DIBS_OK);
    held = seat_queue(&seat, "n", i);
    assert_int_equal(held.op.status, DIBS_OK);
  }
  assert_int_equal(seat_release(&seat, "n", CROWD - 1, held.fence).op.status, DIBS_OK);
  assert_int_equal(rows(bed, "dibs_deep"), 0);
  assert_int_equal(rows(bed, "dibs_name WHERE name <> ''"), 0);
  seat_close(&seat);
}

static void old_breaks_are_forgotten(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  assert_int_equal(seat_acquire(&seat, "n", 1).op.status, DIBS_OK);
  struct dibs__lease_op op = {.op.family = DIBS__FAM_LEASE, .op.verb = DIBS__BREAK, .now = true};
  op.name = dibs__str_of("n", 1);
  op.owner = dibs__str_of("me", 2);
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = seat_mandate(&seat, "n");
  assert_int_equal(seat_run(&seat, &op.op), DIBS_OK);
  assert_int_equal(op.op.status, DIBS_OK);
  later(&seat, LATER_MS);
  seat.store->driver->tidy(seat.store);
  assert_int_equal(rows(bed, "dibs_break"), 1);
  later(&seat, INT64_C(8) * 86400000);
  seat.store->driver->tidy(seat.store);
  assert_int_equal(rows(bed, "dibs_break"), 0);
  seat_close(&seat);
}

static void log_begins_anew(void **state) {
  enum { TURNS = 30000, MOST_BYTES = 32 << 20 };
  struct bed *bed = *state;
  struct seat seat;
  struct stat st;
  char log[200];
  seat_open(bed, &seat);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  int told = 0;
  for (int i = 0; i < TURNS; i++) {
    struct dibs__lease_op op = seat_acquire(&seat, "n", i);
    assert_int_equal(seat_release(&seat, "n", i, op.fence).op.status, DIBS_OK);
    if (!seat.said.untidy) continue;
    told++;
    seat.store->driver->tidy(seat.store);
  }
  assert_true(told > 1);
  assert_int_equal(stat(log, &st), 0);
  assert_true(st.st_size < MOST_BYTES);
  seat_close(&seat);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(what_ended_long_ago_goes),         CASE(answers_whose_time_is_over_go), CASE(sleeper_of_a_dead_process_goes),
      CASE(deep_queue_leaves_nothing_behind), CASE(old_breaks_are_forgotten),      CASE(log_begins_anew),
  };
  return cmocka_run_group_tests_name("sqlite housekeeping", tests, NULL, NULL);
}
