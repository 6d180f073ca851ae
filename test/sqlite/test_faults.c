/* SPDX-License-Identifier: MIT */
/*
 * Every call that SQLite makes to its files, and every allocation that it makes, fails in turn, once and for ever
 * after, until all comes through: a clear status, nothing leaked (the sanitizer looks), nothing granted twice, and a
 * healthy file afterwards.
 */
#include "bed.h"
#include "faultmem.h"
#include "faultvfs.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 5 }; /* who waits for a lock that fails for ever waits so long */
enum { MOST_CALLS = 5000 };

static int begin(void **state) {
  faultvfs_install();
  return bed_begin(state);
}

static int end(void **state) {
  int result = bed_end(state);
  faultvfs_remove();
  return result;
}

static bool of_memory; /* else of files */

static void arm(unsigned nth, bool for_ever) {
  bed_ms = SHORT_MS;
  if (of_memory)
    faultmem_arm(nth, for_ever);
  else
    faultvfs_arm(nth, for_ever);
}

/* True when none failed: that was the last round. */
static bool disarm(void) {
  bool none = (of_memory ? faultmem_failed() : faultvfs_failed()) == 0;
  faultvfs_arm(0, false);
  faultmem_arm(0, false);
  bed_ms = BED_MS;
  return none;
}

static void expect_trouble(dibs__status status, const char *text) {
  if (of_memory && status == DIBS_NO_MEMORY) return;
  if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) fail_msg("status %d: %s", status, text);
}

static void expect_whole(const struct bed *bed) {
  sqlite3 *db;
  sqlite3_stmt *st;
  assert_int_equal(sqlite3_open_v2(bed->path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &st, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(st), SQLITE_ROW);
  assert_string_equal((const char *)sqlite3_column_text(st, 0), "ok");
  sqlite3_finalize(st);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void empty(const struct bed *bed) {
  static const char *const parts[] = {"", "-wal", "-shm", "-journal", "-dibs", "-new"};
  char path[200];
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    snprintf(path, sizeof path, "%s%s", bed->path, parts[i]);
    unlink(path);
  }
}

/* ---- Opening ---- */

static bool has(const struct bed *bed, const char *part) {
  char path[200];
  snprintf(path, sizeof path, "%s%s", bed->path, part);
  return access(path, F_OK) == 0;
}

static bool make_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct seat seat;
  empty(bed);
  arm(nth, for_ever);
  dibs__status status = seat_try(bed, &seat);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->said.text);
    /* Connecting may fail after opening came through: then there is a store, whole. */
    assert_int_equal(has(bed, "-new"), false);
    if (!has(bed, "")) assert_int_equal(bed_sight(bed).files, 0);
    seat_open(bed, &seat);
  }
  assert_int_equal(seat_acquire(&seat, "n", 1).op.status, DIBS_OK);
  seat_close(&seat);
  expect_whole(bed);
  return last;
}

static bool fill_with(struct bed *bed, unsigned nth, bool for_ever) {
  empty(bed);
  bed_write(bed->path, "", 0);
  struct seat seat;
  arm(nth, for_ever);
  dibs__status status = seat_try(bed, &seat);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->said.text);
    seat_open(bed, &seat);
  }
  assert_int_equal(seat_acquire(&seat, "n", 1).op.status, DIBS_OK);
  seat_close(&seat);
  expect_whole(bed);
  return last;
}

static bool reopen_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct seat seat;
  empty(bed);
  seat_open(bed, &seat);
  dibs__fence fence = seat_acquire(&seat, "n", 1).fence;
  seat_close(&seat);
  arm(nth, for_ever);
  dibs__status status = seat_try(bed, &seat);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->said.text);
    seat_open(bed, &seat);
  }
  struct dibs__lease_op again = seat_acquire(&seat, "n", 1);
  assert_int_equal(again.op.status, DIBS_OK);
  assert_true(again.fence.v == fence.v); /* trouble with reading is no new life */
  assert_int_equal(seat_acquire(&seat, "n", 2).op.status, DIBS_HELD);
  seat_close(&seat);
  return last;
}

static bool new_life_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct seat seat;
  empty(bed);
  seat_open(bed, &seat);
  dibs__fence fence = seat_acquire(&seat, "n", 1).fence;
  seat_close(&seat);
  bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  arm(nth, for_ever);
  dibs__status status = seat_try(bed, &seat);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->said.text);
    seat_open(bed, &seat);
  }
  struct dibs__lease_op next = seat_acquire(&seat, "n", 2);
  assert_int_equal(next.op.status, DIBS_OK);
  assert_true(next.fence.v > fence.v);
  seat_close(&seat);
  expect_whole(bed);
  return last;
}

/* ---- Operations ---- */

/* What one that is certain of its own state may say of another's trouble: OK means held, UNAVAILABLE means not. */
static void expect_seen(struct seat *other, const char *name, dibs__status said) {
  struct dibs__lease_op look = seat_acquire(other, name, 77);
  if (said == DIBS_OK) assert_int_equal(look.op.status, DIBS_HELD);
  if (said == DIBS_UNAVAILABLE || said == DIBS_NO_MEMORY) assert_int_equal(look.op.status, DIBS_OK);
  if (look.op.status == DIBS_OK)
    assert_int_equal(seat_release(other, name, 77, look.fence).op.status, DIBS_OK);
  else
    assert_int_equal(look.op.status, DIBS_HELD);
}

struct play {
  struct seat *seat, *other;
  struct dibs__lease_op held, waits;
  dibs__status first, record, end;
};

static void act(struct play *p) {
  struct seat *s = p->seat;
  p->held = seat_acquire(s, "n", 1);
  p->first = p->held.op.status;
  if (p->first != DIBS_OK) return;
  struct dibs__lease_op renewed = seat_renew(s, "n", 1, p->held.fence);
  if (renewed.op.status != DIBS_OK) expect_trouble(renewed.op.status, s->said.text);
  if (!seat_renewed(s)) return;
  p->waits = seat_queue(s, "n", 2);
  if (p->waits.op.status != DIBS__QUEUED) expect_trouble(p->waits.op.status, s->said.text);
  if (!seat_renewed(s)) return;
  p->record = seat_save(s, "r", 1, p->held.fence, "new").op.status;
  if (p->record != DIBS_OK) expect_trouble(p->record, s->said.text);
  if (!seat_renewed(s)) return;
  p->end = seat_release(s, "n", 1, p->held.fence).op.status;
  if (p->end != DIBS_OK) expect_trouble(p->end, s->said.text);
}

static void reckon(struct play *p) {
  struct seat *s = p->seat;
  assert_true(seat_renewed(s));
  if (p->first != DIBS_OK) {
    expect_trouble(p->first, s->said.text);
    expect_seen(p->other, "n", p->first);
    assert_int_equal(seat_acquire(s, "n", 1).op.status, DIBS_OK);
    return;
  }
  struct dibs__record_op record = seat_load(s, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  if (p->record == DIBS_OK) assert_string_equal(record.got, "new");
  if (p->record == DIBS_UNAVAILABLE || p->record == DIBS_NO_MEMORY || p->record == -1)
    assert_string_equal(record.got, "old");
  free(record.got);
  if (p->end == DIBS_OK) {
    assert_int_equal(seat_release(s, "n", 1, p->held.fence).op.status, DIBS_LOST);
  } else if (p->end != DIBS_UNKNOWN) { /* nothing was done, or it was not asked */
    assert_int_equal(seat_acquire(p->other, "n", 77).op.status, DIBS_HELD);
    struct dibs__lease_op again = seat_acquire(s, "n", 1);
    assert_int_equal(again.op.status, DIBS_OK);
    assert_true(again.fence.v == p->held.fence.v);
    assert_int_equal(seat_release(s, "n", 1, p->held.fence).op.status, DIBS_OK);
  } else {
    (void)seat_release(s, "n", 1, p->held.fence);
  }
  /* Whether or not it had come into the queue. */
  struct dibs__lease_op next = seat_queue(s, "n", 2);
  assert_int_equal(next.op.status, DIBS_OK);
  assert_true(next.fence.v > p->held.fence.v);
  assert_int_equal(seat_acquire(p->other, "n", 77).op.status, DIBS_HELD);
}

/* Everybody dies, and the machine's index of the log with them: what is in the log is found again. */
static void recover(struct bed *bed, struct seat *seat) {
  char path[200];
  snprintf(path, sizeof path, "%s-shm", bed->path);
  seat_close(seat);
  unlink(path);
  seat_open(bed, seat);
}

static bool operate(struct bed *bed, unsigned nth, bool for_ever, bool recovers) {
  struct seat seat, other;
  struct play p = {.seat = &seat, .other = &other, .record = -1, .end = -1};
  empty(bed);
  seat_open(bed, &seat);
  dibs__fence before = seat_acquire(&seat, "n", 5).fence;
  assert_int_equal(seat_save(&seat, "r", 5, before, "old").op.status, DIBS_OK);
  assert_int_equal(seat_release(&seat, "n", 5, before).op.status, DIBS_OK);
  if (!recovers) seat_open(bed, &other);
  arm(nth, for_ever);
  act(&p);
  bool last = disarm();
  if (recovers) {
    recover(bed, &seat);
    seat_open(bed, &other);
  }
  reckon(&p);
  seat_close(&seat);
  seat_close(&other);
  expect_whole(bed);
  return last;
}

static bool operate_with(struct bed *bed, unsigned nth, bool for_ever) {
  return operate(bed, nth, for_ever, false);
}
static bool operate_and_recover_with(struct bed *bed, unsigned nth, bool for_ever) {
  return operate(bed, nth, for_ever, true);
}

/* ---- Housekeeping ---- */

static bool tidy_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct seat seat;
  dibs__fence fence = {0};
  empty(bed);
  seat_open(bed, &seat);
  /* Enough for a checkpoint; one row a transaction would take too long. */
  static char data[DIBS_RECORD_MAX];
  fence = seat_acquire(&seat, "n", 1).fence;
  for (int i = 0; i < 9; i++) {
    memset(data, 'a' + i, sizeof data - 1);
    assert_int_equal(seat_save(&seat, "r", 1, fence, data).op.status, DIBS_OK);
  }
  assert_true(seat.said.untidy);
  arm(nth, for_ever);
  dibs__sqlite_driver.tidy(seat.store);
  seat_close(&seat);
  bool last = disarm();
  seat_open(bed, &seat);
  assert_int_equal(seat_acquire(&seat, "n", 2).op.status, DIBS_HELD);
  struct dibs__record_op record = seat_load(&seat, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  assert_int_equal(record.got_len, sizeof data - 1);
  free(record.got);
  seat_close(&seat);
  expect_whole(bed);
  return last;
}

/* ---- Until all comes through ---- */

static void until_ok(struct bed *bed, bool (*round)(struct bed *bed, unsigned nth, bool for_ever), unsigned step) {
  for (int for_ever = 0; for_ever < 2; for_ever++) {
    unsigned nth = 1;
    while (!round(bed, nth, for_ever)) {
      nth += step;
      assert_true(nth < MOST_CALLS);
    }
    assert_true(nth > 1); /* something did fail */
  }
}

static void files(struct bed *bed, bool (*round)(struct bed *bed, unsigned nth, bool for_ever), unsigned step) {
  of_memory = false;
  until_ok(bed, round, step);
}

static void memory(struct bed *bed, bool (*round)(struct bed *bed, unsigned nth, bool for_ever), unsigned step) {
  of_memory = true;
  until_ok(bed, round, step);
}

static void making_a_store(void **state) {
  files(*state, make_with, 1);
}
static void filling_an_empty_file(void **state) {
  files(*state, fill_with, 3);
}
static void opening_a_store(void **state) {
  files(*state, reopen_with, 1);
}
static void beginning_a_life(void **state) {
  files(*state, new_life_with, 1);
}
static void operating(void **state) {
  files(*state, operate_with, 1);
}
static void operating_before_all_die(void **state) {
  files(*state, operate_and_recover_with, 1);
}
static void tidying(void **state) {
  files(*state, tidy_with, 211);
}
static void making_a_store_without_memory(void **state) {
  memory(*state, make_with, 37);
}
static void opening_a_store_without_memory(void **state) {
  memory(*state, reopen_with, 13);
}
static void operating_without_memory(void **state) {
  memory(*state, operate_with, 11);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(making_a_store),
      CASE(filling_an_empty_file),
      CASE(opening_a_store),
      CASE(beginning_a_life),
      CASE(operating),
      CASE(operating_before_all_die),
      CASE(tidying),
      CASE(making_a_store_without_memory),
      CASE(opening_a_store_without_memory),
      CASE(operating_without_memory),
  };
  faultmem_install();
  return cmocka_run_group_tests_name("sqlite with failing files", tests, NULL, NULL);
}
