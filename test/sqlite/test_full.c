/* SPDX-License-Identifier: MIT */
/*
 * A full disk: operations change nothing and report it, nothing is lost, and all work again once there is free space.
 */
#include "bed.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Root gets a small file system of its own; other users a limit on the size of a file. */
static bool own_mounts;

static void ballast_path(const struct bed *bed, char path[200]) {
  snprintf(path, 200, "%s/ballast", bed->folder);
}

static void fill_up(const struct bed *bed) {
  static const char block[4096];
  char path[200];
  ballast_path(bed, path);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  while (write(fd, block, sizeof block) == (ssize_t)sizeof block) continue;
  close(fd);
}

static void limit_files(rlim_t size) {
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = size;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void no_more_capacity(const struct bed *bed, off_t file_may_have) {
  if (own_mounts)
    fill_up(bed);
  else
    limit_files((rlim_t)file_may_have);
}

static void capacity_again(const struct bed *bed) {
  char path[200];
  ballast_path(bed, path);
  if (own_mounts)
    assert_int_equal(unlink(path), 0);
  else
    limit_files(RLIM_INFINITY);
}

static int begin(void **state) {
  if (bed_begin(state) != 0) return -1;
  const struct bed *bed = *state;
  return own_mounts ? mount("dibs", bed->folder, "tmpfs", 0, "size=2m,mode=0700") : 0;
}

static int end(void **state) {
  const struct bed *bed = *state;
  if (!own_mounts)
    limit_files(RLIM_INFINITY);
  else if (umount(bed->folder) != 0)
    return -1;
  return bed_end(state);
}

static off_t log_size(const struct bed *bed) {
  char path[200];
  struct stat st;
  snprintf(path, sizeof path, "%s-wal", bed->path);
  return stat(path, &st) == 0 ? st.st_size : 0;
}

static void full_disk_refuses_and_nothing_is_lost(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  dibs__fence fences[4000], last = {0};
  char name[16];
  int held = 0;
  slot_open(bed, &slot);
  no_more_capacity(bed, log_size(bed) + 200000);
  struct dibs__lease_op op = {.op.status = DIBS_OK};
  for (; held < 4000; held++) {
    snprintf(name, sizeof name, "n%d", held);
    op = slot_acquire(&slot, name, held);
    if (op.op.status != DIBS_OK) break;
    fences[held] = op.fence;
  }
  assert_int_equal(op.op.status, DIBS_UNAVAILABLE);
  assert_non_null(strstr(slot.reported.text, bed->path));
  assert_true(slot_mandate_followed(&slot));
  assert_int_equal(slot_acquire(&slot, name, held).op.status, DIBS_UNAVAILABLE); /* the lease is still held */
  assert_true(slot_mandate_followed(&slot));
  capacity_again(bed);

  op = slot_acquire(&slot, name, held);
  assert_int_equal(op.op.status, DIBS_OK);
  fences[held++] = op.fence;
  for (int i = 0; i < held; i++) {
    snprintf(name, sizeof name, "n%d", i);
    assert_int_equal(slot_acquire(&slot, name, 9999).op.status, DIBS_HELD);
    assert_int_equal(slot_release(&slot, name, i, fences[i]).op.status, DIBS_OK);
    op = slot_acquire(&slot, name, 9999);
    assert_int_equal(op.op.status, DIBS_OK);
    assert_true(op.fence.v > fences[i].v);
    if (op.fence.v > last.v) last = op.fence;
  }
  slot_close(&slot);
  slot_open(bed, &slot);
  assert_int_equal(slot_acquire(&slot, name, 1).op.status, DIBS_HELD);
  slot_close(&slot);
}

static void a_full_disk_creates_no_store(void **state) {
  struct bed *bed = *state;
  struct slot slot;
  no_more_capacity(bed, 8192);
  struct sight before = bed_sight(bed);
  assert_int_equal(slot_try(bed, &slot), DIBS_UNAVAILABLE);
  expect_same_sight(bed, &before);
  capacity_again(bed);
  slot_open(bed, &slot);
  assert_int_equal(slot_acquire(&slot, "n", 1).op.status, DIBS_OK);
  slot_close(&slot);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(full_disk_refuses_and_nothing_is_lost),
      CASE(a_full_disk_creates_no_store),
  };
  signal(SIGXFSZ, SIG_IGN);
  own_mounts = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
  return cmocka_run_group_tests_name("sqlite on a full disk", tests, NULL, NULL);
}
