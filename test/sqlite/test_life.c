/* SPDX-License-Identifier: MIT */
/* R10 beyond one life of the file: a copy, an older file put back, another boot.  Fences grow across all of them. */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dibs__fence taken(struct seat *seat, const char *name, int id) {
  struct dibs__lease_op op = seat_acquire(seat, name, id);
  if (op.op.status != DIBS_OK) fail_msg("acquire %s: %d: %s", name, op.op.status, seat->said.text);
  return op.fence;
}

static void give(struct seat *seat, const char *name, int id, dibs__fence fence) {
  assert_int_equal(seat_release(seat, name, id, fence).op.status, DIBS_OK);
}

static dibs__fence turn(struct seat *seat, const char *name, int id) {
  dibs__fence fence = taken(seat, name, id);
  give(seat, name, id, fence);
  return fence;
}

static bool other_life(dibs__mandate a, dibs__mandate b) {
  return memcmp(a.life.b, b.life.b, sizeof a.life.b) != 0;
}

static void reopening_goes_on(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  dibs__mandate first = seat_mandate(&seat, "n");
  dibs__fence fence = taken(&seat, "n", 1);
  seat_close(&seat);
  seat_open(bed, &seat);
  dibs__mandate second = seat_mandate(&seat, "n");
  assert_true(dibs__mandate_equal(&first, &second));
  assert_int_equal(seat_acquire(&seat, "n", 2).op.status, DIBS_HELD);
  struct dibs__lease_op again = seat_acquire(&seat, "n", 1);
  assert_int_equal(again.op.status, DIBS_OK);
  assert_true(again.fence.v == fence.v);
  seat_close(&seat);
}

static void copy_is_another_life(void **state) {
  struct bed *bed = *state;
  struct seat here, there;
  char copy[200], side[200], to[210];
  seat_open(bed, &here);
  dibs__fence fence = taken(&here, "n", 1);
  bed_checkpoint(bed->path);
  snprintf(copy, sizeof copy, "%s/copy.db", bed->folder);
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  snprintf(to, sizeof to, "%s-dibs", copy);
  bed_copy(bed->path, copy);
  bed_copy(side, to); /* a whole folder copied: its side file remembers another file */
  assert_int_equal(seat_try_at(bed, copy, &there), DIBS_OK);
  dibs__mandate a = seat_mandate(&here, "n"), b = seat_mandate(&there, "n");
  assert_true(other_life(a, b) && b.epoch > a.epoch);
  assert_true(taken(&there, "n", 2).v > fence.v);
  assert_int_equal(seat_acquire(&here, "n", 2).op.status, DIBS_HELD);
  seat_close(&there);
  seat_close(&here);
}

static void older_file_put_back_is_another_life(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char older[200], log[200];
  dibs__fence fence = {0};
  snprintf(older, sizeof older, "%s/older.db", bed->folder);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  seat_open(bed, &seat);
  turn(&seat, "n", 1);
  dibs__mandate first = seat_mandate(&seat, "n");
  bed_checkpoint(bed->path);
  bed_copy(bed->path, older);
  for (int i = 2; i < 10; i++) fence = turn(&seat, "n", i);
  seat_close(&seat);
  unlink(log);
  bed_copy(older, bed->path); /* in place: the same inode */
  seat_open(bed, &seat);
  dibs__mandate second = seat_mandate(&seat, "n");
  assert_true(other_life(first, second) && second.epoch > first.epoch);
  assert_true(taken(&seat, "n", 20).v > fence.v);
  seat_close(&seat);
}

static void file_that_lost_its_log_is_another_life(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char log[200];
  snprintf(log, sizeof log, "%s-wal", bed->path);
  seat_open(bed, &seat);
  dibs__fence fence = turn(&seat, "n", 1);
  seat_close(&seat);
  assert_int_equal(unlink(log), 0);
  seat_open(bed, &seat);
  assert_true(taken(&seat, "n", 2).v > fence.v);
  seat_close(&seat);
}

/* By SQLite's own locks, as its backup does, while the store is open. */
static void older_state_restored_under_an_open_store_moves_it(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char text[500];
  seat_open(bed, &seat);
  turn(&seat, "n", 1);
  snprintf(text, sizeof text, "VACUUM INTO '%s/older.db'", bed->folder);
  bed_sql(bed->path, text);
  dibs__fence held = taken(&seat, "n", 2);
  dibs__mandate first = seat_mandate(&seat, "n");
  snprintf(text, sizeof text,
           "ATTACH '%s/older.db' AS older; BEGIN IMMEDIATE; DELETE FROM dibs_name;"
           "INSERT INTO dibs_name SELECT * FROM older.dibs_name; COMMIT",
           bed->folder);
  bed_sql(bed->path, text);
  struct dibs__lease_op renew = {.op.family = DIBS__FAM_LEASE, .op.verb = DIBS__RENEW, .ttl_ms = 1000};
  renew.name = dibs__str_of("n", 1);
  renew.op.bucket = dibs__bucket(renew.name);
  renew.op.mandate = first;
  renew.id = bed_id(2);
  renew.fence = held;
  assert_int_equal(seat_run(&seat, &renew.op), DIBS_OK);
  assert_int_equal(renew.op.status, DIBS__MOVED);
  assert_true(other_life(first, renew.op.has) && renew.op.has.epoch > first.epoch);
  assert_true(taken(&seat, "n", 3).v > held.v);
  seat_close(&seat);
}

static void other_boot_is_another_life(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  seat_open(bed, &seat);
  dibs__fence fence = taken(&seat, "n", 1);
  struct dibs__record_op saved = seat_save(&seat, "r", 1, fence, "kept");
  assert_int_equal(saved.op.status, DIBS_OK);
  seat_close(&seat);
  bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  seat_open(bed, &seat);
  /* Who held before the machine went down holds no more, and can't write any more once the next one sealed. */
  dibs__fence next = taken(&seat, "n", 2);
  assert_true(next.v > fence.v);
  struct dibs__record_op record = seat_load(&seat, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  assert_string_equal(record.got, "kept");
  free(record.got);
  assert_int_equal(seat_save(&seat, "r", 2, next, "newer").op.status, DIBS_OK);
  assert_int_equal(seat_save(&seat, "r", 1, fence, "late").op.status, DIBS_STALE);
  seat_close(&seat);
}

static void lost_side_file_is_another_life(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char side[200];
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  seat_open(bed, &seat);
  dibs__fence fence = turn(&seat, "n", 1);
  seat_close(&seat);
  assert_int_equal(unlink(side), 0);
  seat_open(bed, &seat);
  assert_true(taken(&seat, "n", 2).v > fence.v);
  seat_close(&seat);
}

static void fences_grow_across_all_of_them(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  char side[200], log[200];
  dibs__fence last = {0};
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  for (int round = 0; round < 12; round++) {
    seat_open(bed, &seat);
    for (int i = 0; i < 3; i++) {
      dibs__fence fence = turn(&seat, "n", round * 10 + i);
      assert_true(fence.v > last.v);
      last = fence;
    }
    if (round % 4 == 3) bed_checkpoint(bed->path);
    seat_close(&seat);
    if (round % 4 == 0) unlink(log);
    if (round % 4 == 1) unlink(side);
    if (round % 4 == 2) bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  }
}

static void used_up_epoch_is_followed_by_the_next(void **state) {
  struct bed *bed = *state;
  struct seat seat;
  dibs__str name = dibs__str_of("n", 1);
  seat_open(bed, &seat);
  dibs__fence fence = turn(&seat, "n", 1);
  assert_int_equal(dibs__sqlite_use_up(seat.session, dibs__bucket(name), 2, bed_by(), &seat.said), DIBS_OK);
  for (int i = 2; i < 8; i++) {
    dibs__fence next = turn(&seat, "n", i);
    assert_true(next.v > fence.v);
    fence = next;
  }
  assert_int_equal(dibs__fence_epoch(fence), seat_mandate(&seat, "n").epoch);
  seat_close(&seat);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(reopening_goes_on),
      CASE(copy_is_another_life),
      CASE(older_file_put_back_is_another_life),
      CASE(file_that_lost_its_log_is_another_life),
      CASE(older_state_restored_under_an_open_store_moves_it),
      CASE(other_boot_is_another_life),
      CASE(lost_side_file_is_another_life),
      CASE(fences_grow_across_all_of_them),
      CASE(used_up_epoch_is_followed_by_the_next),
  };
  return cmocka_run_group_tests_name("sqlite lives", tests, NULL, NULL);
}
