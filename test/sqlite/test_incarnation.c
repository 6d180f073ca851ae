/* SPDX-License-Identifier: MIT */
/* R10 across incarnations of the file: a copy, a restored older file, another boot.  Fences grow across all of them. */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dibs__fence taken(struct slot *slot, const char *name, int id) {
  struct dibs__lease_op op = slot_acquire(slot, name, id);
  if (op.op.status != DIBS_OK) fail_msg("acquire %s: %d: %s", name, op.op.status, slot->reported.text);
  return op.fence;
}

static void give(struct slot *slot, const char *name, int id, dibs__fence fence) {
  assert_int_equal(slot_release(slot, name, id, fence).op.status, DIBS_OK);
}

static dibs__fence hold_once(struct slot *slot, const char *name, int id) {
  dibs__fence fence = taken(slot, name, id);
  give(slot, name, id, fence);
  return fence;
}

static bool other_incarnation(dibs__mandate a, dibs__mandate b) {
  return memcmp(a.incarnation.b, b.incarnation.b, sizeof a.incarnation.b) != 0;
}

static void reopening_continues_the_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  dibs__mandate first = slot_mandate(&slot, "n");
  dibs__fence fence = taken(&slot, "n", 1);
  slot_close(&slot);
  slot_open(bed, &slot);
  dibs__mandate second = slot_mandate(&slot, "n");
  assert_true(dibs__mandate_equal(&first, &second));
  assert_int_equal(slot_acquire(&slot, "n", 2).op.status, DIBS_HELD);
  struct dibs__lease_op again = slot_acquire(&slot, "n", 1);
  assert_int_equal(again.op.status, DIBS_OK);
  assert_true(again.fence.v == fence.v);
  slot_close(&slot);
}

static void a_copy_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot here, there;
  char copy[200], side[200], to[210];
  slot_open(bed, &here);
  dibs__fence fence = taken(&here, "n", 1);
  bed_checkpoint(bed->path);
  snprintf(copy, sizeof copy, "%s/copy.db", bed->folder);
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  snprintf(to, sizeof to, "%s-dibs", copy);
  bed_copy(bed->path, copy);
  bed_copy(side, to); /* a copy of the whole folder: its side file remembers another file */
  assert_int_equal(slot_try_at(bed, copy, &there), DIBS_OK);
  dibs__mandate a = slot_mandate(&here, "n"), b = slot_mandate(&there, "n");
  assert_true(other_incarnation(a, b) && b.epoch > a.epoch);
  assert_true(taken(&there, "n", 2).v > fence.v);
  assert_int_equal(slot_acquire(&here, "n", 2).op.status, DIBS_HELD);
  slot_close(&there);
  slot_close(&here);
}

static void a_restored_older_file_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char older[200], log[200];
  dibs__fence fence = {0};
  snprintf(older, sizeof older, "%s/older.db", bed->folder);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  slot_open(bed, &slot);
  hold_once(&slot, "n", 1);
  dibs__mandate first = slot_mandate(&slot, "n");
  bed_checkpoint(bed->path);
  bed_copy(bed->path, older);
  for (int i = 2; i < 10; i++) fence = hold_once(&slot, "n", i);
  slot_close(&slot);
  unlink(log);
  bed_copy(older, bed->path); /* in place: the same inode */
  slot_open(bed, &slot);
  dibs__mandate second = slot_mandate(&slot, "n");
  assert_true(other_incarnation(first, second) && second.epoch > first.epoch);
  assert_true(taken(&slot, "n", 20).v > fence.v);
  slot_close(&slot);
}

static void file_that_lost_its_log_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char log[200];
  snprintf(log, sizeof log, "%s-wal", bed->path);
  slot_open(bed, &slot);
  dibs__fence fence = hold_once(&slot, "n", 1);
  slot_close(&slot);
  assert_int_equal(unlink(log), 0);
  slot_open(bed, &slot);
  assert_true(taken(&slot, "n", 2).v > fence.v);
  slot_close(&slot);
}

/* Uses SQLite's own locks, as its backup does, while the store is open. */
static void older_state_restored_under_an_open_store_moves_it(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char text[500];
  slot_open(bed, &slot);
  hold_once(&slot, "n", 1);
  snprintf(text, sizeof text, "VACUUM INTO '%s/older.db'", bed->folder);
  bed_sql(bed->path, text);
  dibs__fence held = taken(&slot, "n", 2);
  dibs__mandate first = slot_mandate(&slot, "n");
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
  assert_int_equal(slot_run(&slot, &renew.op), DIBS_OK);
  assert_int_equal(renew.op.status, DIBS__MOVED);
  assert_true(other_incarnation(first, renew.op.has) && renew.op.has.epoch > first.epoch);
  assert_true(taken(&slot, "n", 3).v > held.v);
  slot_close(&slot);
}

static void other_boot_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  slot_open(bed, &slot);
  dibs__fence fence = taken(&slot, "n", 1);
  struct dibs__record_op saved = slot_save(&slot, "r", 1, fence, "kept");
  assert_int_equal(saved.op.status, DIBS_OK);
  slot_close(&slot);
  bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  slot_open(bed, &slot);
  /* A holder from before the reboot no longer holds the lease, and cannot write once its successor has sealed. */
  dibs__fence next = taken(&slot, "n", 2);
  assert_true(next.v > fence.v);
  struct dibs__record_op record = slot_load(&slot, "r");
  assert_int_equal(record.op.status, DIBS_OK);
  assert_string_equal(record.got, "kept");
  free(record.got);
  assert_int_equal(slot_save(&slot, "r", 2, next, "newer").op.status, DIBS_OK);
  assert_int_equal(slot_save(&slot, "r", 1, fence, "late").op.status, DIBS_STALE);
  slot_close(&slot);
}

static void lost_side_file_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char side[200];
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  slot_open(bed, &slot);
  dibs__fence fence = hold_once(&slot, "n", 1);
  slot_close(&slot);
  assert_int_equal(unlink(side), 0);
  slot_open(bed, &slot);
  assert_true(taken(&slot, "n", 2).v > fence.v);
  slot_close(&slot);
}

static void fences_grow_across_all_of_them(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  char side[200], log[200];
  dibs__fence last = {0};
  snprintf(side, sizeof side, "%s-dibs", bed->path);
  snprintf(log, sizeof log, "%s-wal", bed->path);
  for (int round = 0; round < 12; round++) {
    slot_open(bed, &slot);
    for (int i = 0; i < 3; i++) {
      dibs__fence fence = hold_once(&slot, "n", round * 10 + i);
      assert_true(fence.v > last.v);
      last = fence;
    }
    if (round % 4 == 3) bed_checkpoint(bed->path);
    slot_close(&slot);
    if (round % 4 == 0) unlink(log);
    if (round % 4 == 1) unlink(side);
    if (round % 4 == 2) bed_sql(bed->path, "UPDATE dibs_meta SET boot = 'another'");
  }
}

static void a_used_up_epoch_is_followed_by_the_next(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  dibs__str name = dibs__str_of("n", 1);
  slot_open(bed, &slot);
  dibs__fence fence = hold_once(&slot, "n", 1);
  assert_int_equal(dibs__sqlite_use_up(slot.session, dibs__bucket(name), 2, bed_by(), &slot.reported), DIBS_OK);
  for (int i = 2; i < 8; i++) {
    dibs__fence next = hold_once(&slot, "n", i);
    assert_true(next.v > fence.v);
    fence = next;
  }
  assert_int_equal(dibs__fence_epoch(fence), slot_mandate(&slot, "n").epoch);
  slot_close(&slot);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(reopening_continues_the_incarnation),
      CASE(a_copy_is_another_incarnation),
      CASE(a_restored_older_file_is_another_incarnation),
      CASE(file_that_lost_its_log_is_another_incarnation),
      CASE(older_state_restored_under_an_open_store_moves_it),
      CASE(other_boot_is_another_incarnation),
      CASE(lost_side_file_is_another_incarnation),
      CASE(fences_grow_across_all_of_them),
      CASE(a_used_up_epoch_is_followed_by_the_next),
  };
  return cmocka_run_group_tests_name("sqlite lives", tests, NULL, NULL);
}
