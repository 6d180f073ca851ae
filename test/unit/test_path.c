/* SPDX-License-Identifier: MIT */
/* The path of the embedded store, and whether it may be there. */
#include "drivers/sqlite/path.h"

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
  struct dibs__location location;
  struct dibs__result reported;
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
  dibs__location_free(&bed->location);
  dibs__uri_free(&bed->uri);
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", bed->folder);
  int r = system(command);
  free(bed);
  return r;
}

static dibs__status resolve(struct bed *bed, const char *uri) {
  dibs__location_free(&bed->location);
  dibs__uri_free(&bed->uri);
  memset(&bed->reported, 0, sizeof bed->reported);
  assert_int_equal(dibs__uri_parse(uri, &bed->uri, &bed->reported), DIBS_OK);
  return dibs__location_resolve(&bed->uri, &bed->location, &bed->reported);
}

static dibs__status prepare(struct bed *bed, const char *format, const char *folder) {
  char uri[256];
  snprintf(uri, sizeof uri, "sqlite://%s%s", folder, format);
  dibs__status status = resolve(bed, uri);
  if (status == DIBS_OK) status = dibs__location_make_folder(&bed->location, &bed->reported);
  return status;
}

static uint32_t mode_of(const char *path) {
  struct stat s;
  return stat(path, &s) == 0 ? s.st_mode & 07777 : 0;
}

/* ---- Functions without files ---- */

static void a_mode_is_octal_with_owner_write_and_without_execute(void **state) {
  (void)state;
  uint32_t mode;
  const struct {
    const char *text;
    uint32_t mode;
  } fine[] = {{"0600", 0600}, {"600", 0600}, {"0660", 0660}, {"0640", 0640}, {"0644", 0644}, {"664", 0664}};
  for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
    assert_true(dibs__location_mode(fine[i].text, &mode));
    assert_int_equal(mode, fine[i].mode);
  }
  const char *const wrong[] = {"",     "0",    "06",   "0400",  "0200", "0060", "0666", "0602", "0700", "0610", "0601",
                               "0680", "1600", "4600", "00600", "0x60", "-600", " 600", "600 ", "rw-",  "+600"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    mode = 77;
    assert_false(dibs__location_mode(wrong[i], &mode));
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
    assert_non_null(dibs__location_fs_flaw(network[i], &perhaps));
    assert_false(perhaps);
  }
  assert_string_equal(dibs__location_fs_flaw(0x6969, &perhaps), "NFS");
  assert_string_equal(dibs__location_fs_flaw(0x65735546, &perhaps), "FUSE");
  assert_true(perhaps);
  /* ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs, 0 */
  const uint64_t local[] = {0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0x2fc12fc1, 0xf2f52010, 0};
  for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
    perhaps = true;
    assert_null(dibs__location_fs_flaw(local[i], &perhaps));
    assert_false(perhaps);
  }
}

/* ---- A path in the URI ---- */

static void a_named_file_is_used_unchanged(void **state) {
  struct bed *bed = *state;
  assert_int_equal(resolve(bed, "sqlite:///a/b/x.db"), DIBS_OK);
  assert_string_equal(bed->location.path, "/a/b/x.db");
  assert_string_equal(bed->location.folder, "/a/b");
  assert_false(bed->location.standard);
  assert_int_equal(bed->location.file_mode, 0600);
  assert_int_equal(bed->location.folder_mode, 0700);
  assert_int_equal(resolve(bed, "sqlite:///x.db?mode=0660"), DIBS_OK);
  assert_string_equal(bed->location.folder, "/");
  assert_int_equal(bed->location.file_mode, 0660);
  assert_int_equal(bed->location.folder_mode, 0770);
  assert_int_equal(resolve(bed, "sqlite:x.db?mode=0640&fs=any"), DIBS_OK);
  assert_string_equal(bed->location.folder, ".");
  assert_int_equal(bed->location.folder_mode, 0750);
  assert_true(bed->location.any_fs);
}

static void wrong_uris_have_a_message(void **state) {
  struct bed *bed = *state;
  const char *const wrong[][2] = {{"sqlite:///a?mode=0777", "mode=0777"},
                                  {"sqlite:///a?mode=", "mode="},
                                  {"sqlite:///a?fs=nfs", "fs=nfs"},
                                  {"sqlite://host/a", "host"},
                                  {"sqlite:///a/", "/a/"},
                                  {"sqlite:///a/..", "/a/.."}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(resolve(bed, wrong[i][0]), DIBS_INVALID);
    assert_non_null(strstr(bed->reported.text, wrong[i][1]));
    assert_null(bed->location.path);
  }
}

static void the_folder_of_a_named_file_is_not_created(void **state) {
  struct bed *bed = *state;
  assert_int_equal(prepare(bed, "/none/x.db", bed->folder), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->reported.text, "/none does not exist"));
  char path[128];
  snprintf(path, sizeof path, "%s/none", bed->folder);
  assert_int_equal(access(path, F_OK), -1);
}

static void make_database(const char *name, const char *folder) {
  char uri[256];
  dibs_store *store;
  dibs_error error;
  snprintf(uri, sizeof uri, "sqlite://%s%s", folder, name);
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) fail_msg("%s", error.text);
  dibs_close(store);
}

static void two_ways_to_one_file_are_one_location(void **state) {
  struct bed *bed = *state;
  char path[128], link_path[128];
  snprintf(path, sizeof path, "%s/real.db", bed->home);
  assert_int_equal(prepare(bed, "/real.db", bed->home), DIBS_OK);
  make_database("/real.db", bed->home);
  snprintf(link_path, sizeof link_path, "%s/folder", bed->folder);
  assert_int_equal(symlink(bed->home, link_path), 0);
  assert_int_equal(prepare(bed, "/folder/../folder/./real.db", bed->folder), DIBS_OK);
  assert_string_equal(bed->location.path, path);
  assert_string_equal(bed->location.folder, bed->home);
  snprintf(link_path, sizeof link_path, "%s/link.db", bed->folder);
  assert_int_equal(symlink(path, link_path), 0);
  assert_int_equal(prepare(bed, "/link.db", bed->folder), DIBS_OK);
  assert_string_equal(bed->location.path, path);
  assert_string_equal(bed->location.folder, bed->home);
}

static void relative_path_becomes_absolute(void **state) {
  struct bed *bed = *state;
  char before[4096];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(bed->home), 0);
  assert_int_equal(resolve(bed, "sqlite:x.db"), DIBS_OK);
  dibs__status status = dibs__location_make_folder(&bed->location, &bed->reported);
  assert_int_equal(chdir(before), 0);
  assert_int_equal(status, DIBS_OK);
  char want[128];
  snprintf(want, sizeof want, "%s/x.db", bed->home);
  assert_string_equal(bed->location.path, want);
}

static void a_path_that_is_not_a_plain_file_is_refused(void **state) {
  struct bed *bed = *state;
  assert_int_equal(prepare(bed, "/home", bed->folder), DIBS_INVALID);
  char path[128];
  snprintf(path, sizeof path, "%s/fifo", bed->folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(prepare(bed, "/fifo", bed->folder), DIBS_INVALID);
  snprintf(path, sizeof path, "%s/dangling", bed->folder);
  assert_int_equal(symlink("/nowhere/at/all", path), 0);
  assert_int_equal(prepare(bed, "/dangling", bed->folder), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->reported.text, "symbolic link"));
}

static void a_database_is_created_once_with_its_permissions_under_any_umask(void **state) {
  struct bed *bed = *state;
  mode_t before = umask(0077);
  assert_int_equal(prepare(bed, "/x.db?mode=0660", bed->home), DIBS_OK);
  make_database("/x.db?mode=0660", bed->home);
  umask(before);
  assert_int_equal(mode_of(bed->location.path), 0660);
  make_database("/x.db?mode=0600", bed->home);
  assert_int_equal(mode_of(bed->location.path), 0660);
}

static void local_file_system_is_fine(void **state) {
  struct bed *bed = *state;
  struct dibs__location location;
  char uri[128];
  snprintf(uri, sizeof uri, "sqlite://%s/x.db", bed->home);
  assert_int_equal(dibs__uri_parse(uri, &bed->uri, &bed->reported), DIBS_OK);
  assert_int_equal(dibs__location_prepare(&bed->uri, &location, &bed->reported), DIBS_OK);
  dibs__location_free(&location);
  dibs__location_free(&location); /* twice is fine */
}

/* ---- The standard path of a user, in a process of its own (the tests may run as root) ---- */

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

/* Runs in the child: 0 on success, otherwise the line of the failure. */
#define WANT(condition)                                                                                                \
  if (!(condition)) return __LINE__ % 250 + 1

static dibs__status standard(struct bed *bed, const char *uri) {
  dibs__location_free(&bed->location);
  dibs__uri_free(&bed->uri);
  if (dibs__uri_parse(uri, &bed->uri, &bed->reported) != DIBS_OK) return DIBS_INVALID;
  return dibs__location_prepare(&bed->uri, &bed->location, &bed->reported);
}

static int in_home(struct bed *bed) {
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  char path[128];
  snprintf(path, sizeof path, "%s/.local/state/dibs/dibs.db", bed->home);
  WANT(strcmp(bed->location.path, path) == 0);
  WANT(mode_of(bed->location.folder) == 0700);
  snprintf(path, sizeof path, "%s/.local/state", bed->home);
  WANT(mode_of(path) == 0700);
  WANT(standard(bed, "sqlite:") == DIBS_OK); /* and a second time */
  return 0;
}

static int in_state_home(struct bed *bed) {
  char state[128], path[160];
  snprintf(state, sizeof state, "%s/deep/er/state/", bed->home);
  setenv("XDG_STATE_HOME", state, 1);
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_OK);
  snprintf(path, sizeof path, "%sdibs/dibs.db", state);
  WANT(strcmp(bed->location.path, path) == 0);
  WANT(mode_of(bed->location.folder) == 0770); /* although the umask is 0077 */
  setenv("XDG_STATE_HOME", "relative", 1);     /* must not be used */
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  WANT(strstr(bed->location.path, "/.local/state/dibs/dibs.db"));
  return 0;
}

static int without_home(struct bed *bed) {
  unsetenv("HOME");
  dibs__status status = standard(bed, "sqlite:");
  /* The password file has a home that exists, a home that cannot be created, or none. */
  WANT(status == DIBS_OK || bed->reported.text[0] != '\0');
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
  WANT(strstr(bed->reported.text, folder) && strstr(bed->reported.text, "symbolic link"));
  WANT(bed->location.path == NULL);
  WANT(unlink(folder) == 0);

  FILE *file = fopen(folder, "w");
  WANT(file && fclose(file) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(unlink(folder) == 0);

  WANT(mkdir(folder, 0700) == 0 && chmod(folder, 0770) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->reported.text, "chmod g-w"));
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_OK);
  WANT(chmod(folder, 0777) == 0);
  WANT(standard(bed, "sqlite:?mode=0660") == DIBS_DENIED);
  WANT(strstr(bed->reported.text, "chmod o-w"));
  WANT(chmod(folder, 0755) == 0); /* other users may only search it */
  WANT(standard(bed, "sqlite:") == DIBS_OK);
  WANT(chmod(folder, 0700) == 0 && rmdir(folder) == 0);

  WANT(chmod(state, 0500) == 0);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->reported.text, folder));
  WANT(chmod(state, 0700) == 0);
  return 0;
}

static int foreign_folder(struct bed *bed) {
  char state[128];
  snprintf(state, sizeof state, "%s/foreign", bed->folder);
  setenv("XDG_STATE_HOME", state, 1);
  WANT(standard(bed, "sqlite:") == DIBS_DENIED);
  WANT(strstr(bed->reported.text, "belongs to user 0"));
  return 0;
}

static void user_has_a_folder_of_its_own_below_home(void **state) {
  assert_int_equal(as_user(*state, in_home), 0);
}

static void state_home_and_its_parents_are_created(void **state) {
  assert_int_equal(as_user(*state, in_state_home), 0);
}

static void missing_home_is_looked_up_or_reported(void **state) {
  assert_int_equal(as_user(*state, without_home), 0);
}

static void standard_folder_that_others_could_write_or_swap_is_refused(void **state) {
  assert_int_equal(as_user(*state, bad_folders), 0);
}

static void a_folder_of_another_user_is_refused(void **state) {
  struct bed *bed = *state;
  if (geteuid() != 0) skip(); /* no other user is available */
  char path[128];
  snprintf(path, sizeof path, "%s/foreign", bed->folder);
  assert_int_equal(mkdir(path, 0755), 0);
  snprintf(path, sizeof path, "%s/foreign/dibs", bed->folder);
  assert_int_equal(mkdir(path, 0777), 0);
  assert_int_equal(chmod(path, 0755), 0);
  assert_int_equal(as_user(bed, foreign_folder), 0);
}

static void root_has_one_path_in_any_environment(void **state) {
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
  assert_string_equal(bed->location.path, "/var/lib/dibs/dibs.db");
  assert_true(bed->location.standard);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, bed_make, bed_clear)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_mode_is_octal_with_owner_write_and_without_execute),
      CASE(network_file_systems_have_a_flaw_and_local_ones_none),
      CASE(a_named_file_is_used_unchanged),
      CASE(wrong_uris_have_a_message),
      CASE(the_folder_of_a_named_file_is_not_created),
      CASE(two_ways_to_one_file_are_one_location),
      CASE(relative_path_becomes_absolute),
      CASE(a_path_that_is_not_a_plain_file_is_refused),
      CASE(a_database_is_created_once_with_its_permissions_under_any_umask),
      CASE(local_file_system_is_fine),
      CASE(user_has_a_folder_of_its_own_below_home),
      CASE(state_home_and_its_parents_are_created),
      CASE(missing_home_is_looked_up_or_reported),
      CASE(standard_folder_that_others_could_write_or_swap_is_refused),
      CASE(a_folder_of_another_user_is_refused),
      CASE(root_has_one_path_in_any_environment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
