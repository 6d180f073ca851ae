/* SPDX-License-Identifier: MIT */
/*
 * Every call that SQLite makes to its files, and every allocation, fails in turn, once and then for ever after, until a
 * round has no failure: the status is clear, nothing leaks (the sanitizer checks), no name has two holders, and the
 * file is intact afterwards.
 */
#include "bed.h"
#include "faultmem.h"
#include "faultvfs.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 5 }; /* the time that a call waits for a lock that always fails */
enum { MOST_CALLS = 20000 };

static int begin(void **state) {
  faultvfs_install();
  return bed_begin(state);
}

static int end(void **state) {
  int result = bed_end(state);
  faultvfs_remove();
  return result;
}

static bool of_memory; /* otherwise of files */

static void arm(unsigned nth, bool for_ever) {
  bed_ms = SHORT_MS;
  if (of_memory)
    faultmem_arm(nth, for_ever);
  else
    faultvfs_arm(nth, for_ever);
}

/* True if no call failed: that was the last round. */
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
  struct slot slot;
  empty(bed);
  arm(nth, for_ever);
  dibs__status status = slot_try(bed, &slot);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->reported.text);
    /* Connecting may fail after opening succeeded: then the store exists and is intact. */
    assert_int_equal(has(bed, "-new"), false);
    if (!has(bed, "")) assert_int_equal(bed_sight(bed).files, 0);
    slot_open(bed, &slot);
  }
  assert_int_equal(slot_acquire(&slot, "n", 1).op.status, DIBS_OK);
  slot_close(&slot);
  expect_whole(bed);
  return last;
}

static bool fill_with(struct bed *bed, unsigned nth, bool for_ever) {
  empty(bed);
  bed_write(bed->path, "", 0);
  struct slot slot;
  arm(nth, for_ever);
  dibs__status status = slot_try(bed, &slot);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->reported.text);
    slot_open(bed, &slot);
  }
  assert_int_equal(slot_acquire(&slot, "n", 1).op.status, DIBS_OK);
  slot_close(&slot);
  expect_whole(bed);
  return last;
}

static bool reopen_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct slot slot;
  empty(bed);
  slot_open(bed, &slot);
  dibs__fence fence = slot_acquire(&slot, "n", 1).fence;
  slot_close(&slot);
  arm(nth, for_ever);
  dibs__status status = slot_try(bed, &slot);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->reported.text);
    slot_open(bed, &slot);
  }
  struct dibs__lease_op again = slot_acquire(&slot, "n", 1);
  assert_int_equal(again.op.status, DIBS_OK);
  assert_true(again.fence.v == fence.v); /* a failed read is not a new incarnation */
  assert_int_equal(slot_acquire(&slot, "n", 2).op.status, DIBS_HELD);
  slot_close(&slot);
  return last;
}

static bool new_incarnation_with(struct bed *bed, unsigned nth, bool for_ever) {
  struct slot slot;
  empty(bed);
  slot_open(bed, &slot);
  dibs__fence fence = slot_acquire(&slot, "n", 1).fence;
  slot_close(&slot);
  bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  arm(nth, for_ever);
  dibs__status status = slot_try(bed, &slot);
  bool last = disarm();
  if (status != DIBS_OK) {
    expect_trouble(status, bed->reported.text);
    slot_open(bed, &slot);
  }
  struct dibs__lease_op next = slot_acquire(&slot, "n", 2);
  assert_int_equal(next.op.status, DIBS_OK);
  assert_true(next.fence.v > fence.v);
  slot_close(&slot);
  expect_whole(bed);
  return last;
}

/* ---- Operations ---- */

/* A session that knows its own state observes another's failure: OK means held, UNAVAILABLE means not held. */
static void expect_seen(struct slot *other, const char *name, dibs__status reported) {
  struct dibs__lease_op look = slot_acquire(other, name, 77);
  if (reported == DIBS_OK) assert_int_equal(look.op.status, DIBS_HELD);
  if (reported == DIBS_UNAVAILABLE || reported == DIBS_NO_MEMORY) assert_int_equal(look.op.status, DIBS_OK);
  if (look.op.status == DIBS_OK)
    assert_int_equal(slot_release(other, name, 77, look.fence).op.status, DIBS_OK);
  else
    assert_int_equal(look.op.status, DIBS_HELD);
}

struct play {
  struct slot *slot, *other;
  struct dibs__lease_op held, waits;
  dibs__status first, record, end;
};

static void act(struct play *p) {
  struct slot *s = p->slot;
  p->held = slot_acquire(s, "n", 1);
  p->first = p->held.op.status;
  if (p->first != DIBS_OK) return;
  struct dibs__lease_op renewed = slot_renew(s, "n", 1, p->held.fence);
  if (renewed.op.status != DIBS_OK) expect_trouble(renewed.op.status, s->reported.text);
  if (!slot_mandate_followed(s)) return;
  p->waits = slot_queue(s, "n", 2);
  if (p->waits.op.status != DIBS__QUEUED) expect_trouble(p->waits.op.status, s->reported.text);
  if (!slot_mandate_followed(s)) return;
  p->record = slot_save(s, "r", 1, p->held.fence, "new").op.status;
  if (p->record != DIBS_OK) expect_trouble(p->record, s->reported.text);
  if (!slot_mandate_followed(s)) return;
  p->end = slot_release(s, "n", 1, p->held.fence).op.status;
  if (p->end != DIBS_OK) expect_trouble(p->end, s->reported.text);
}

static void reckon(struct play *p) {
  struct slot *s = p->slot;
  assert_true(slot_mandate_followed(s));
  if (p->first != DIBS_OK) {
    expect_trouble(p->first, s->reported.text);
    expect_seen(p->other, "n", p->first);
    assert_int_equal(slot_acquire(s, "n", 1).op.status, DIBS_OK);
    return;
  }
  struct dibs__record_op record = slot_load(s, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  if (p->record == DIBS_OK) assert_string_equal(record.got, "new");
  if (p->record == DIBS_UNAVAILABLE || p->record == DIBS_NO_MEMORY || p->record == -1)
    assert_string_equal(record.got, "old");
  free(record.got);
  if (p->end == DIBS_OK) {
    assert_int_equal(slot_release(s, "n", 1, p->held.fence).op.status, DIBS_LOST);
  } else if (p->end != DIBS_UNKNOWN) { /* nothing was done, or the request was not sent */
    assert_int_equal(slot_acquire(p->other, "n", 77).op.status, DIBS_HELD);
    struct dibs__lease_op again = slot_acquire(s, "n", 1);
    assert_int_equal(again.op.status, DIBS_OK);
    assert_true(again.fence.v == p->held.fence.v);
    assert_int_equal(slot_release(s, "n", 1, p->held.fence).op.status, DIBS_OK);
  } else {
    (void)slot_release(s, "n", 1, p->held.fence);
  }
  /* In both cases: it entered the queue, or it did not. */
  struct dibs__lease_op next = slot_queue(s, "n", 2);
  assert_int_equal(next.op.status, DIBS_OK);
  assert_true(next.fence.v > p->held.fence.v);
  assert_int_equal(slot_acquire(p->other, "n", 77).op.status, DIBS_HELD);
}

/* All processes die, and with them the shared index of the log: the content of the log is recovered. */
static void recover(struct bed *bed, struct slot *slot) {
  char path[200];
  snprintf(path, sizeof path, "%s-shm", bed->path);
  slot_close(slot);
  unlink(path);
  slot_open(bed, slot);
}

static bool operate(struct bed *bed, unsigned nth, bool for_ever, bool recovers) {
  struct slot slot, other;
  struct play p = {.slot = &slot, .other = &other, .record = -1, .end = -1};
  empty(bed);
  slot_open(bed, &slot);
  dibs__fence before = slot_acquire(&slot, "n", 5).fence;
  assert_int_equal(slot_save(&slot, "r", 5, before, "old").op.status, DIBS_OK);
  assert_int_equal(slot_release(&slot, "n", 5, before).op.status, DIBS_OK);
  if (!recovers) slot_open(bed, &other);
  arm(nth, for_ever);
  act(&p);
  bool last = disarm();
  if (recovers) {
    recover(bed, &slot);
    slot_open(bed, &other);
  }
  reckon(&p);
  slot_close(&slot);
  slot_close(&other);
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
  struct slot slot;
  dibs__fence fence = {0};
  empty(bed);
  slot_open(bed, &slot);
  /* Enough rows for a checkpoint; one transaction for each row would take too long. */
  static char data[DIBS_RECORD_MAX];
  fence = slot_acquire(&slot, "n", 1).fence;
  for (int i = 0; i < 9; i++) {
    memset(data, 'a' + i, sizeof data - 1);
    assert_int_equal(slot_save(&slot, "r", 1, fence, data).op.status, DIBS_OK);
  }
  assert_true(slot.reported.untidy);
  arm(nth, for_ever);
  dibs__sqlite_driver.tidy(slot.store);
  slot_close(&slot);
  bool last = disarm();
  slot_open(bed, &slot);
  assert_int_equal(slot_acquire(&slot, "n", 2).op.status, DIBS_HELD);
  struct dibs__record_op record = slot_load(&slot, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  assert_int_equal(record.got_len, sizeof data - 1);
  free(record.got);
  slot_close(&slot);
  expect_whole(bed);
  return last;
}

/* ---- Rounds until no call fails ---- */

static void until_ok(struct bed *bed, bool (*round)(struct bed *bed, unsigned nth, bool for_ever), unsigned step) {
  for (int for_ever = 0; for_ever < 2; for_ever++) {
    unsigned nth = 1;
    while (!round(bed, nth, for_ever)) {
      nth += step;
      assert_true(nth < MOST_CALLS);
    }
    assert_true(nth > 1); /* a call did fail */
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

static void creating_a_store(void **state) {
  files(*state, make_with, 1);
}
static void filling_an_empty_file(void **state) {
  files(*state, fill_with, 3);
}
static void opening_a_store(void **state) {
  files(*state, reopen_with, 1);
}
static void beginning_an_incarnation(void **state) {
  files(*state, new_incarnation_with, 1);
}
static void operating(void **state) {
  files(*state, operate_with, 1);
}
static void operating_before_all_processes_die(void **state) {
  files(*state, operate_and_recover_with, 1);
}
static void tidying(void **state) {
  files(*state, tidy_with, 211);
}
static void creating_a_store_without_memory(void **state) {
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
      CASE(creating_a_store),
      CASE(filling_an_empty_file),
      CASE(opening_a_store),
      CASE(beginning_an_incarnation),
      CASE(operating),
      CASE(operating_before_all_processes_die),
      CASE(tidying),
      CASE(creating_a_store_without_memory),
      CASE(opening_a_store_without_memory),
      CASE(operating_without_memory),
  };
  faultmem_install();
  return cmocka_run_group_tests_name("sqlite with failing files", tests, NULL, NULL);
}
