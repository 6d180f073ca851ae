/* SPDX-License-Identifier: MIT */
/* Where the embedded store is, and whether it may be there. */
#include "drivers/sqlite_place.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

struct bed {
  char folder[64];
  char home[80];
  struct dibs__uri uri;
  struct dibs__place place;
  struct dibs__said said;
};

static int bed_make(void **state) {
  struct bed *bed = calloc(1, sizeof *bed);
  if (!bed) return -1;
  snprintf(bed->folder, sizeof bed->folder, "/tmp/dibs-place-XXXXXX");
  if (!mkdtemp(bed->folder)) return -1;
  snprintf(bed->home, sizeof bed->home, "%s/home", bed->folder);
  *state = bed;
  return mkdir(bed->home, 0700);
}

static int bed_clear(void **state) {
  struct bed *bed = *state;
  dibs__place_free(&bed->place);
  dibs__uri_free(&bed->uri);
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", bed->folder);
  int r = system(command);
  free(bed);
  return r;
}

static dibs__status resolve(struct bed *bed, const char *uri) {
  dibs__place_free(&bed->place);
  dibs__uri_free(&bed->uri);
  memset(&bed->said, 0, sizeof bed->said);
  assert_int_equal(dibs__uri_parse(uri, &bed->uri, &bed->said), DIBS_OK);
  return dibs__place_resolve(&bed->uri, &bed->place, &bed->said);
}

static dibs__status prepare(struct bed *bed, const char *format, const char *folder) {
  char uri[256];
  snprintf(uri, sizeof uri, "sqlite://%s%s", folder, format);
  dibs__status status = resolve(bed, uri);
  if (status == DIBS_OK) status = dibs__place_make_folder(&bed->place, &bed->said);
  return status;
}

static uint32_t mode_of(const char *path) {
  struct stat s;
  return stat(path, &s) == 0 ? s.st_mode & 07777 : 0;
}

/* ---- Pure ---- */

static void mode_is_octal_and_lets_the_owner_write_and_nobody_execute(void **state) {
  (void)state;
  uint32_t mode;
  const struct {
    const char *text;
    uint32_t mode;
  } fine[] = {{"0600", 0600}, {"600", 0600}, {"0660", 0660}, {"0640", 0640}, {"0644", 0644}, {"664", 0664}};
  for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
    assert_true(dibs__place_mode(fine[i].text, &mode));
    assert_int_equal(mode, fine[i].mode);
  }
  const char *const wrong[] = {"",     "0",    "06",   "0400",  "0200", "0060", "0666", "0602", "0700", "0610", "0601",
                               "0680", "1600", "4600", "00600", "0x60", "-600", " 600", "600 ", "rw-",  "+600"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    mode = 77;
    assert_false(dibs__place_mode(wrong[i], &mode));
    assert_int_equal(mode, 77);
  }
}

static void network_file_systems_have_a_flaw_and_local_ones_none(void **state) {
  (void)state;
  bool perhaps;
  const uint64_t network[] = {0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x01021997, 0x00c36400, 0x5346414f,
                              0x6b414653, 0x73757245, 0x564c,     0x7461636f, 0x01161970, 0x0bd00bd0};
  for (size_t i = 0; i < sizeof network / sizeof *network; i++) {
    perhaps = true;
    assert_non_null(dibs__place_fs_flaw(network[i], &perhaps));
    assert_false(perhaps);
  }
  assert_string_equal(dibs__place_fs_flaw(0x6969, &perhaps), "NFS");
  assert_string_equal(dibs__place_fs_flaw(0x65735546, &perhaps), "FUSE");
  assert_true(perhaps);
  /* ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs, 0 */
  const uint64_t local[] = {0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0x2fc12fc1, 0xf2f52010, 0};
  for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
    perhaps = true;
    assert_null(dibs__place_fs_flaw(local[i], &perhaps));
    assert_false(perhaps);
  }
}

/* ---- A place that was named ---- */

static void named_file_is_taken_as_it_is(void **state) {
  struct bed *bed = *state;
  assert_int_equal(resolve(bed, "sqlite:///a/b/x.db"), DIBS_OK);
  assert_string_equal(bed->place.path, "/a/b/x.db");
  assert_string_equal(bed->place.folder, "/a/b");
  assert_false(bed->place.standard);
  assert_int_equal(bed->place.file_mode, 0600);
  assert_int_equal(bed->place.folder_mode, 0700);
  assert_int_equal(resolve(bed, "sqlite:///x.db?mode=0660"), DIBS_OK);
  assert_string_equal(bed->place.folder, "/");
  assert_int_equal(bed->place.file_mode, 0660);
  assert_int_equal(bed->place.folder_mode, 0770);
  assert_int_equal(resolve(bed, "sqlite:x.db?mode=0640&fs=any"), DIBS_OK);
  assert_string_equal(bed->place.folder, ".");
  assert_int_equal(bed->place.folder_mode, 0750);
  assert_true(bed->place.any_fs);
}

static void wrong_uris_say_what_is_wrong(void **state) {
  struct bed *bed = *state;
  const char *const wrong[][2] = {{"sqlite:///a?mode=0777", "mode=0777"},
                                  {"sqlite:///a?mode=", "mode="},
                                  {"sqlite:///a?fs=nfs", "fs=nfs"},
                                  {"sqlite://host/a", "host"},
                                  {"sqlite:///a/", "/a/"},
                                  {"sqlite:///a/..", "/a/.."}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(resolve(bed, wrong[i][0]), DIBS_INVALID);
    assert_non_null(strstr(bed->said.text, wrong[i][1]));
    assert_null(bed->place.path);
  }
}

static void folder_of_a_named_file_is_not_made(void **state) {
  struct bed *bed = *state;
  assert_int_equal(prepare(bed, "/none/x.db", bed->folder), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->said.text, "/none does not exist"));
  char path[128];
  snprintf(path, sizeof path, "%s/none", bed->folder);
  assert_int_equal(access(path, F_OK), -1);
}

static void two_ways_to_one_file_are_one_place(void **state) {
  struct bed *bed = *state;
  char path[128], link_path[128];
  snprintf(path, sizeof path, "%s/real.db", bed->home);
  assert_int_equal(prepare(bed, "/real.db", bed->home), DIBS_OK);
  bool made;
  assert_int_equal(dibs__place_make_file(&bed->place, &made, &bed->said), DIBS_OK);
  assert_true(made);
  snprintf(link_path, sizeof link_path, "%s/folder", bed->folder);
  assert_int_equal(symlink(bed->home, link_path), 0);
  assert_int_equal(prepare(bed, "/folder/../folder/./real.db", bed->folder), DIBS_OK);
  assert_string_equal(bed->place.path, path);
  assert_string_equal(bed->place.folder, bed->home);
  snprintf(link_path, sizeof link_path, "%s/link.db", bed->folder);
  assert_int_equal(symlink(path, link_path), 0);
  assert_int_equal(prepare(bed, "/link.db", bed->folder), DIBS_OK);
  assert_string_equal(bed->place.path, path);
  assert_string_equal(bed->place.folder, bed->home);
}

static void relative_path_becomes_absolute(void **state) {
  struct bed *bed = *state;
  char before[4096];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(bed->home), 0);
  assert_int_equal(resolve(bed, "sqlite:x.db"), DIBS_OK);
  dibs__status status = dibs__place_make_folder(&bed->place, &bed->said);
  assert_int_equal(chdir(before), 0);
  assert_int_equal(status, DIBS_OK);
  char want[128];
  snprintf(want, sizeof want, "%s/x.db", bed->home);
  assert_string_equal(bed->place.path, want);
}

static void what_is_no_plain_file_is_refused(void **state) {
  struct bed *bed = *state;
  assert_int_equal(prepare(bed, "/home", bed->folder), DIBS_INVALID);
  char path[128];
  snprintf(path, sizeof path, "%s/fifo", bed->folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(prepare(bed, "/fifo", bed->folder), DIBS_INVALID);
  snprintf(path, sizeof path, "%s/dangling", bed->folder);
  assert_int_equal(symlink("/nowhere/at/all", path), 0);
  assert_int_equal(prepare(bed, "/dangling", bed->folder), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->said.text, "symbolic link"));
}

static void database_is_made_once_with_its_permissions_whatever_the_umask(void **state) {
  struct bed *bed = *state;
  mode_t before = umask(0077);
  bool made;
  assert_int_equal(prepare(bed, "/x.db?mode=0660", bed->home), DIBS_OK);
  assert_int_equal(dibs__place_make_file(&bed->place, &made, &bed->said), DIBS_OK);
  umask(before);
  assert_true(made);
  assert_int_equal(mode_of(bed->place.path), 0660);
  assert_int_equal(prepare(bed, "/x.db?mode=0600", bed->home), DIBS_OK);
  assert_int_equal(dibs__place_make_file(&bed->place, &made, &bed->said), DIBS_OK);
  assert_false(made);
  assert_int_equal(mode_of(bed->place.path), 0660);
}

static void local_file_system_is_fine(void **state) {
  struct bed *bed = *state;
  struct dibs__place place;
  char uri[128];
  snprintf(uri, sizeof uri, "sqlite://%s/x.db", bed->home);
  assert_int_equal(dibs__uri_parse(uri, &bed->uri, &bed->said), DIBS_OK);
  assert_int_equal(dibs__place_prepare(&bed->uri, &place, &bed->said), DIBS_OK);
  dibs__place_free(&place);
  dibs__place_free(&place); /* twice is fine */
}

/* ---- The standard place: of a user, in a process of its own (the tests may run as root) ---- */

static int as_user(struct bed *bed, int (*body)(struct bed *bed)) {
  if (geteuid() == 0) {
    assert_int_equal(chown(bed->folder, NOBODY, NOBODY), 0);
    assert_int_equal(chown(bed->home, NOBODY, NOBODY), 0);
  }
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(99);
    setenv("HOME", bed->home, 1);
    unsetenv("XDG_STATE_HOME");
    umask(0077);
    _exit(body(bed));
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

/* In the child: 0 when it went as it should, else the line. */
#define WANT(condition)                                                                                                \
  if (!(condition)) return __LINE__ % 250 + 1

static dibs__status standard(struct bed *bed, const char *uri) {
  dibs__place_free(&bed->place);
  dibs__uri_free(&bed->uri);
  if (dibs__uri_parse(uri, &bed->uri, &bed->said) != DIBS_OK) return DIBS_INVALID;
  return dibs__place_prepare(&bed->uri, &bed->place, &bed->said);
}

static int in_home(struct bed *bed) {
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  char path[128];
  snprintf(path, sizeof path, "%s/.local/state/dibs/dibs.db", bed->home);
  WANT(strcmp(bed->place.path, path) == 0);
  WANT(mode_of(bed->place.folder) == 0700);
  snprintf(path, sizeof path, "%s/.local/state", bed->home);
  WANT(mode_of(path) == 0700);
  WANT(standard(bed, "sqlite:") == DIBS_OK); /* and again */
  return 0;
}

static int in_state_home(struct bed *bed) {
  char state[128], path[160];
  snprintf(state, sizeof state, "%s/deep/er/state/", bed->home);
  setenv("XDG_STATE_HOME", state, 1);
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_OK);
  snprintf(path, sizeof path, "%sdibs/dibs.db", state);
  WANT(strcmp(bed->place.path, path) == 0);
  WANT(mode_of(bed->place.folder) == 0770); /* though the umask is 0077 */
  setenv("XDG_STATE_HOME", "relative", 1);  /* not to be looked at */
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  WANT(strstr(bed->place.path, "/.local/state/dibs/dibs.db"));
  return 0;
}

static int without_home(struct bed *bed) {
  unsetenv("HOME");
  dibs__status status = standard(bed, "sqlite:");
  /* The password file says: a home that is there, one that can't be made, or none. */
  WANT(status == DIBS_OK || bed->said.text[0] != '\0');
  WANT(status == DIBS_OK || status == DIBS_INVALID || status == DIBS_DENIED || status == DIBS_UNAVAILABLE);
  return 0;
}

static int bad_folders(struct bed *bed) {
  char state[128], folder[160], target[128];
  snprintf(state, sizeof state, "%s/s", bed->home);
  snprintf(folder, sizeof folder, "%s/dibs", state);
  snprintf(target, sizeof target, "%s/target", bed->home);
  setenv("XDG_STATE_HOME", state, 1);
  WANT(mkdir(state, 0700) == 0 && mkdir(target, 0700) == 0);
  WANT(symlink(target, folder) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->said.text, folder) && strstr(bed->said.text, "symbolic link"));
  WANT(bed->place.path == NULL);
  WANT(unlink(folder) == 0);

  FILE *file = fopen(folder, "w");
  WANT(file && fclose(file) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(unlink(folder) == 0);

  WANT(mkdir(folder, 0700) == 0 && chmod(folder, 0770) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->said.text, "chmod g-w"));
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_OK);
  WANT(chmod(folder, 0777) == 0);
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_DENIED);
  WANT(strstr(bed->said.text, "chmod o-w"));
  WANT(chmod(folder, 0755) == 0); /* others may look at its name, not more */
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  WANT(chmod(folder, 0700) == 0 && rmdir(folder) == 0);

  WANT(chmod(state, 0500) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->said.text, folder));
  WANT(chmod(state, 0700) == 0);
  return 0;
}

static int foreign_folder(struct bed *bed) {
  char state[128];
  snprintf(state, sizeof state, "%s/foreign", bed->folder);
  setenv("XDG_STATE_HOME", state, 1);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->said.text, "belongs to user 0"));
  return 0;
}

static void user_has_a_folder_of_its_own_below_home(void **state) {
  assert_int_equal(as_user(*state, in_home), 0);
}

static void state_home_and_its_parents_are_made(void **state) {
  assert_int_equal(as_user(*state, in_state_home), 0);
}

static void missing_home_is_looked_up_or_said(void **state) {
  assert_int_equal(as_user(*state, without_home), 0);
}

static void standard_folder_that_others_could_write_or_swap_is_refused(void **state) {
  assert_int_equal(as_user(*state, bad_folders), 0);
}

static void folder_of_somebody_else_is_refused(void **state) {
  struct bed *bed = *state;
  if (geteuid() != 0) skip(); /* nobody else to be had */
  char path[128];
  snprintf(path, sizeof path, "%s/foreign", bed->folder);
  assert_int_equal(mkdir(path, 0755), 0);
  snprintf(path, sizeof path, "%s/foreign/dibs", bed->folder);
  assert_int_equal(mkdir(path, 0777), 0);
  assert_int_equal(chmod(path, 0755), 0);
  assert_int_equal(as_user(bed, foreign_folder), 0);
}

static void root_has_one_place_whatever_its_environment_says(void **state) {
  struct bed *bed = *state;
  if (geteuid() != 0) skip();
  const char *before = getenv("XDG_STATE_HOME");
  char *kept = before ? strdup(before) : NULL;
  setenv("XDG_STATE_HOME", bed->home, 1);
  dibs__status status = resolve(bed, "sqlite:");
  if (kept)
    setenv("XDG_STATE_HOME", kept, 1);
  else
    unsetenv("XDG_STATE_HOME");
  free(kept);
  assert_int_equal(status, DIBS_OK);
  assert_string_equal(bed->place.path, "/var/lib/dibs/dibs.db");
  assert_true(bed->place.standard);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, bed_make, bed_clear)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(mode_is_octal_and_lets_the_owner_write_and_nobody_execute),
      CASE(network_file_systems_have_a_flaw_and_local_ones_none),
      CASE(named_file_is_taken_as_it_is),
      CASE(wrong_uris_say_what_is_wrong),
      CASE(folder_of_a_named_file_is_not_made),
      CASE(two_ways_to_one_file_are_one_place),
      CASE(relative_path_becomes_absolute),
      CASE(what_is_no_plain_file_is_refused),
      CASE(database_is_made_once_with_its_permissions_whatever_the_umask),
      CASE(local_file_system_is_fine),
      CASE(user_has_a_folder_of_its_own_below_home),
      CASE(state_home_and_its_parents_are_made),
      CASE(missing_home_is_looked_up_or_said),
      CASE(standard_folder_that_others_could_write_or_swap_is_refused),
      CASE(folder_of_somebody_else_is_refused),
      CASE(root_has_one_place_whatever_its_environment_says),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
