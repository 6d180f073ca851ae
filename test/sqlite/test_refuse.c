/* SPDX-License-Identifier: MIT */
/* R20: the driver refuses what it cannot serve, gives the reason, and changes nothing; it leaves no other file. */
#include "bed.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_refused(struct bed *bed, dibs__status want, const char *words) {
  struct slot slot;
  struct sight before = bed_sight(bed);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(slot_try(bed, &slot), want);
    if (!strstr(bed->reported.text, bed->path) && !strstr(bed->reported.text, bed->folder))
      fail_msg("%s", bed->reported.text);
    if (!strstr(bed->reported.text, words)) fail_msg("%s", bed->reported.text);
    expect_same_sight(bed, &before);
  }
}

static void make_store(struct bed *bed) {
  struct slot slot;
  slot_open(bed, &slot);
  assert_int_equal(slot_acquire(&slot, "n", 1).op.status, DIBS_OK);
  slot_close(&slot);
}

/* Keeps only the database file, without log and side file, as after a copy by mail. */
static void make_lone_file(struct bed *bed) {
  char other[200];
  make_store(bed);
  bed_checkpoint(bed->path);
  snprintf(other, sizeof other, "%s-dibs", bed->path);
  assert_int_equal(unlink(other), 0);
}

static void text_is_not_a_database(void **state) {
  struct bed *bed = *state;
  char text[5000];
  memset(text, 'x', sizeof text);
  bed_write(bed->path, text, sizeof text);
  expect_refused(bed, DIBS_CORRUPT, "not a database of dibs");
}

static void short_file_is_not_a_database(void **state) {
  struct bed *bed = *state;
  bed_write(bed->path, "SQLite format 3", 16);
  expect_refused(bed, DIBS_CORRUPT, "not a database of dibs");
}

static void foreign_database_is_refused(void **state) {
  struct bed *bed = *state;
  bed_sql(bed->path, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO accounts VALUES (1, 'a')");
  expect_refused(bed, DIBS_CORRUPT, "of another program");
}

static void foreign_database_with_a_log_is_refused(void **state) {
  struct bed *bed = *state;
  sqlite3 *db;
  assert_int_equal(sqlite3_open(bed->path, &db), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, "PRAGMA journal_mode=WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)", 0, 0, 0),
                   0);
  expect_refused(bed, DIBS_CORRUPT, "of another program");
  sqlite3_close(db);
}

static void foreign_database_of_the_same_shape_is_refused(void **state) {
  struct bed *bed = *state;
  make_lone_file(bed);
  bed_sql(bed->path, "PRAGMA application_id=1");
  bed_checkpoint(bed->path);
  expect_refused(bed, DIBS_CORRUPT, "of another program");
}

static void newer_schema_is_refused(void **state) {
  struct bed *bed = *state;
  make_lone_file(bed);
  bed_sql(bed->path, "PRAGMA user_version=1000");
  bed_checkpoint(bed->path);
  expect_refused(bed, DIBS_TOO_NEW, "1000");
}

static void folder_is_refused(void **state) {
  struct bed *bed = *state;
  assert_int_equal(mkdir(bed->path, 0700), 0);
  expect_refused(bed, DIBS_INVALID, "not a plain file");
}

static void damaged_tables_are_refused(void **state) {
  struct bed *bed = *state;
  unsigned char data[65536];
  make_lone_file(bed);
  FILE *file = fopen(bed->path, "r+b");
  assert_non_null(file);
  size_t size = fread(data, 1, sizeof data, file);
  assert_true(size > 4096);
  memset(data, 0x5a, size - 100);
  assert_int_equal(fseek(file, 100, SEEK_SET), 0);
  assert_int_equal(fwrite(data, 1, size - 100, file), size - 100);
  fclose(file);
  expect_refused(bed, DIBS_CORRUPT, "damaged");
}

static void missing_bucket_is_refused(void **state) {
  struct bed *bed = *state;
  make_lone_file(bed);
  bed_sql(bed->path, "DELETE FROM dibs_name WHERE bucket = 7 AND name = ''");
  bed_checkpoint(bed->path);
  expect_refused(bed, DIBS_CORRUPT, "contradict");
}

/* Root may write everywhere, so this runs in a process of another user. */
static void in_a_child(struct bed *bed, void (*what)(struct bed *bed)) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(77);
    what(bed);
    _exit(0);
  }
  int how;
  assert_int_equal(waitpid(child, &how, 0), child);
  if (WIFEXITED(how) && WEXITSTATUS(how) == 77) skip();
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* A child does not use cmocka: its exit status reports the failure. */
static void expect_denied(struct bed *bed) {
  struct slot slot;
  dibs__status status = slot_try(bed, &slot);
  if (status != DIBS_DENIED || !strstr(bed->reported.text, bed->folder)) {
    fprintf(stderr, "status %d: %s\n", status, bed->reported.text);
    _exit(1);
  }
}

static void read_only_file_is_denied(void **state) {
  struct bed *bed = *state;
  make_lone_file(bed);
  assert_int_equal(chmod(bed->path, 0444), 0);
  assert_int_equal(chmod(bed->folder, 0777), 0);
  struct sight before = bed_sight(bed);
  in_a_child(bed, expect_denied);
  expect_same_sight(bed, &before);
}

static void read_only_folder_is_denied(void **state) {
  struct bed *bed = *state;
  assert_int_equal(chmod(bed->folder, 0555), 0);
  struct sight before = bed_sight(bed);
  in_a_child(bed, expect_denied);
  expect_same_sight(bed, &before);
  assert_int_equal(chmod(bed->folder, 0755), 0);
}

/* ---- Accepted files ---- */

static void an_empty_file_is_accepted_and_keeps_its_mode(void **state) {
  struct bed *bed = *state;
  struct stat before, after;
  bed_write(bed->path, "", 0);
  assert_int_equal(chmod(bed->path, 0640), 0);
  assert_int_equal(stat(bed->path, &before), 0);
  make_store(bed);
  assert_int_equal(stat(bed->path, &after), 0);
  assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
  make_store(bed); /* the same again: the lease still exists */
}

static void a_disabled_log_is_enabled(void **state) {
  struct bed *bed = *state;
  unsigned char header[100];
  make_store(bed);
  bed_sql(bed->path, "PRAGMA journal_mode=DELETE");
  make_store(bed);
  FILE *file = fopen(bed->path, "rb");
  assert_non_null(file);
  assert_int_equal(fread(header, 1, sizeof header, file), sizeof header);
  fclose(file);
  assert_int_equal(header[18], 2);
}

static void the_files_of_a_killed_creator_do_not_prevent_opening(void **state) {
  struct bed *bed = *state;
  char other[200];
  snprintf(other, sizeof other, "%s-new", bed->path);
  bed_write(other, "half", 4);
  make_store(bed);
  assert_int_equal(access(other, F_OK), -1);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(text_is_not_a_database),
      CASE(short_file_is_not_a_database),
      CASE(foreign_database_is_refused),
      CASE(foreign_database_with_a_log_is_refused),
      CASE(foreign_database_of_the_same_shape_is_refused),
      CASE(newer_schema_is_refused),
      CASE(folder_is_refused),
      CASE(damaged_tables_are_refused),
      CASE(missing_bucket_is_refused),
      CASE(read_only_file_is_denied),
      CASE(read_only_folder_is_denied),
      CASE(an_empty_file_is_accepted_and_keeps_its_mode),
      CASE(a_disabled_log_is_enabled),
      CASE(the_files_of_a_killed_creator_do_not_prevent_opening),
  };
  return cmocka_run_group_tests_name("sqlite refuses", tests, NULL, NULL);
}
