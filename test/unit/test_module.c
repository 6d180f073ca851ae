/* SPDX-License-Identifier: MIT */
/*
 * Modules through libdibs.so and through the command, as users load them.  This program is linked to libdibs.so and
 * knows nothing of its internals.  Arguments: the folder of the modules, the command.
 */
#include "dibs.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *modules, *command;
static char file[] = "/tmp/dibs-module-XXXXXX", traced[65536];

static int make_file(void **state) {
  (void)state;
  memcpy(file + sizeof file - 7, "XXXXXX", 6);
  int fd = mkstemp(file);
  if (fd >= 0) close(fd);
  return fd < 0;
}

static int remove_file(void **state) {
  (void)state;
  return unlink(file);
}

static void read_trace(void) {
  FILE *f = fopen(file, "r");
  assert_non_null(f);
  traced[fread(traced, 1, sizeof traced - 1, f)] = '\0';
  fclose(f);
}

static void library_loads_modules(void **state) {
  (void)state;
  char uri[128];
  dibs_error error = {DIBS_OK, ""};
  dibs_store *store;
  dibs_lease *lease;
  dibs_store_options options = {.size = sizeof options, .module_path = modules};
  snprintf(uri, sizeof uri, "trace+latency+fault+memory:?trace.file=%s&latency.ms=1", file);
  if (dibs_open(uri, &options, &store, &error) != DIBS_OK) fail_msg("%s", error.text);
  assert_int_equal(dibs_acquire(store, "nightly", NULL, &lease, &error), DIBS_OK);
  assert_int_equal(dibs_release(lease, &error), DIBS_OK);
  dibs_lease_free(lease);
  dibs_close(store);
  read_trace();
  assert_non_null(strstr(traced, "\"op\":\"lease.acquire\",\"name\":\"nightly\""));
  assert_non_null(strstr(traced, "\"inner\":\"latency\""));
}

static void command_loads_modules(void **state) {
  (void)state;
  char line[1024];
  setenv("DIBS_MODULE_PATH", modules, 1);
  snprintf(line, sizeof line, "%s run --store 'trace+memory:?trace.file=%s' nightly -- true", command, file);
  assert_int_equal(system(line), 0);
  unsetenv("DIBS_MODULE_PATH");
  read_trace();
  assert_non_null(strstr(traced, "\"op\":\"lease.acquire\",\"name\":\"nightly\""));
}

/* Without DIBS_MODULE_PATH, and without an installed dibs. */
static void build_tree_finds_its_own_modules(void **state) {
  (void)state;
  char line[1024], uri[128];
  snprintf(line, sizeof line, "%s run --store 'trace+memory:?trace.file=%s' nightly -- true", command, file);
  assert_int_equal(system(line), 0);
  read_trace();
  assert_non_null(strstr(traced, "\"op\":\"lease.acquire\",\"name\":\"nightly\""));
  dibs_error error = {DIBS_OK, ""};
  dibs_store *store;
  snprintf(uri, sizeof uri, "trace+memory:?trace.file=%s", file);
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) fail_msg("%s", error.text);
  dibs_close(store);
}

static void misspelt_scheme_names_the_near_one(void **state) {
  (void)state;
  static const char *const pairs[][2] = {{"postgre://h/d", "\"postgres:\""},
                                         {"mysq://h/d", "\"mysql:\""},
                                         {"sqlit:x", "\"sqlite:\""},
                                         {"reddis:", "\"redis:\""}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    dibs_error error;
    dibs_store *store;
    assert_int_equal(dibs_open(pairs[i][0], NULL, &store, &error), DIBS_UNSUPPORTED);
    if (!strstr(error.text, pairs[i][1]) || !strstr(error.text, "did you mean")) fail_msg("%s", error.text);
  }
}

static void missing_module_is_an_answer(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store;
  assert_int_equal(dibs_open("nothing+memory:", NULL, &store, &error), DIBS_UNSUPPORTED);
  assert_null(store);
  assert_non_null(strstr(error.text, "dibs-driver-nothing.so"));
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  modules = argv[1];
  command = argv[2];
  unsetenv("DIBS_MODULE_PATH");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(library_loads_modules, make_file, remove_file),
      cmocka_unit_test_setup_teardown(command_loads_modules, make_file, remove_file),
      cmocka_unit_test_setup_teardown(build_tree_finds_its_own_modules, make_file, remove_file),
      cmocka_unit_test(misspelt_scheme_names_the_near_one),
      cmocka_unit_test(missing_module_is_an_answer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
