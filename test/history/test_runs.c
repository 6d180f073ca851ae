/* SPDX-License-Identifier: MIT */
/* The history as a program sees it: dibs_runs, dibs_runs_add, dibs_runs_keep. */
#include "dibs/admin.h"
#include "unit.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MANY = 450 /* several pages */ };

static dibs_store *opened(void) {
  dibs_store *store;
  dibs_store_options options = {.size = sizeof options, .owner = "ann@here:1"};
  dibs_error error;
  if (dibs_open("memory:", &options, &store, &error) != DIBS_OK) fail_msg("%s", error.text);
  return store;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static dibs_run_info run_of(const char *name) {
  return (dibs_run_info){.size = sizeof(dibs_run_info), .name = name, .kind = "import"};
}

static void add(dibs_store *store, dibs_run_info run) {
  dibs_error error;
  if (dibs_runs_add(store, &run, &error) != DIBS_OK) fail_msg("%s", error.text);
}

struct seen {
  size_t count, stop_at;
  int64_t last_ms;
  char name[64], host[64], command[600], output[64];
  dibs_run_info info;
};

static int see(const dibs_run_info *run, void *user) {
  struct seen *seen = user;
  if (seen->count > 0) assert_true(run->ended_ms <= seen->last_ms);
  seen->last_ms = run->ended_ms;
  seen->info = *run;
  snprintf(seen->name, sizeof seen->name, "%s", run->name);
  snprintf(seen->host, sizeof seen->host, "%s", run->host);
  snprintf(seen->command, sizeof seen->command, "%s", run->command);
  snprintf(seen->output, sizeof seen->output, "%s", run->output);
  return ++seen->count == seen->stop_at;
}

static struct seen list(dibs_store *store, dibs_runs_options options) {
  struct seen seen = {0};
  dibs_error error;
  options.size = sizeof options;
  if (dibs_runs(store, &options, see, &seen, &error) != DIBS_OK) fail_msg("%s", error.text);
  return seen;
}

static void a_run_is_kept_as_it_was_given(void **state) {
  (void)state;
  dibs_store *store = opened();
  int64_t now = now_ms();
  dibs_run_info run = run_of("nightly");
  run.command = "./import --all";
  run.output = "done\n";
  run.output_length = 5;
  run.fence.value = 7;
  run.task = 9;
  run.how = DIBS_RUN_FAILED;
  run.code = 3;
  run.began_ms = now - 5000;
  run.ended_ms = now - 2000;
  add(store, run);
  struct seen seen = list(store, (dibs_runs_options){.name = "nightly"});
  assert_int_equal(seen.count, 1);
  assert_string_equal(seen.name, "nightly");
  assert_string_equal(seen.host, "ann@here:1");
  assert_string_equal(seen.command, "./import --all");
  assert_string_equal(seen.output, "done\n");
  assert_int_equal(seen.info.output_length, 5);
  assert_int_equal(seen.info.fence.value, 7);
  assert_int_equal(seen.info.task, 9);
  assert_int_equal(seen.info.how, DIBS_RUN_FAILED);
  assert_int_equal(seen.info.code, 3);
  assert_int_equal(seen.info.ended_ms - seen.info.began_ms, 3000);
  assert_in_range(seen.info.ended_ms - (now - 2000) + 1000, 0, 2000);
  dibs_close(store);
}

static void a_task_has_its_runs(void **state) {
  (void)state;
  dibs_store *store = opened();
  dibs_error error;
  for (uint64_t nr = 1; nr <= 3; nr++) {
    dibs_run_info run = run_of("mail");
    run.task = nr;
    assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_OK);
    if (nr == 2) assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_OK);
  }
  struct seen seen = list(store, (dibs_runs_options){.task = 2});
  assert_int_equal(seen.count, 2);
  assert_int_equal(seen.info.task, 2);
  assert_int_equal(list(store, (dibs_runs_options){.task = 4}).count, 0);
  /* A program that was compiled before there was this member. */
  dibs_runs_options options = {.size = offsetof(dibs_runs_options, task), .task = 2};
  seen = (struct seen){0};
  assert_int_equal(dibs_runs(store, &options, see, &seen, &error), DIBS_OK);
  assert_int_equal(seen.count, 4);
  dibs_close(store);
}

static void without_instants_it_ends_now(void **state) {
  (void)state;
  dibs_store *store = opened();
  add(store, run_of("now"));
  struct seen seen = list(store, (dibs_runs_options){.since_ms = now_ms() - 60000});
  assert_int_equal(seen.count, 1);
  assert_int_equal(seen.info.began_ms, seen.info.ended_ms);
  assert_int_equal(list(store, (dibs_runs_options){.until_ms = now_ms() - 60000}).count, 0);
  dibs_close(store);
}

static void long_texts_are_cut(void **state) {
  (void)state;
  static char command[1000], output[6000];
  dibs_store *store = opened();
  memset(command, 'c', sizeof command - 1);
  memset(output, 'o', sizeof output);
  memcpy(output + sizeof output - 3, "end", 3);
  dibs_run_info run = run_of("long");
  run.command = command;
  run.output = output;
  run.output_length = sizeof output;
  add(store, run);
  struct seen seen = list(store, (dibs_runs_options){.name = "long"});
  assert_int_equal(strlen(seen.command), 512);
  assert_int_equal(seen.info.output_length, 4096);
  dibs_close(store);
}

static void all_pages_are_listed_and_a_caller_may_stop(void **state) {
  (void)state;
  dibs_store *store = opened();
  dibs_error error;
  for (int i = 0; i < MANY; i++) {
    dibs_run_info run = run_of(i % 2 ? "odd" : "even");
    run.how = i % 3 ? DIBS_RUN_DONE : DIBS_RUN_LOST;
    add(store, run);
  }
  assert_int_equal(list(store, (dibs_runs_options){0}).count, MANY);
  assert_int_equal(list(store, (dibs_runs_options){.prefix = "o"}).count, MANY / 2);
  assert_int_equal(list(store, (dibs_runs_options){.flags = DIBS_RUNS_FAILED}).count, MANY / 3);
  assert_int_equal(list(store, (dibs_runs_options){.kind = "other"}).count, 0);
  assert_int_equal(list(store, (dibs_runs_options){.most = 201}).count, 201);
  struct seen seen = {.stop_at = 205};
  assert_int_equal(dibs_runs(store, NULL, see, &seen, &error), DIBS_OK);
  assert_int_equal(seen.count, 205);
  dibs_close(store);
}

static void a_store_may_keep_none(void **state) {
  (void)state;
  dibs_store *store = opened();
  dibs_error error;
  assert_int_equal(dibs_runs_keep(store, 0, &error), DIBS_OK);
  add(store, run_of("off"));
  assert_int_equal(list(store, (dibs_runs_options){0}).count, 0);
  assert_int_equal(dibs_runs_keep(store, DIBS_RUNS_KEEP_DEFAULT, &error), DIBS_OK);
  add(store, run_of("on"));
  assert_int_equal(list(store, (dibs_runs_options){0}).count, 1);
  dibs_close(store);
}

static void mistakes_are_refused(void **state) {
  (void)state;
  dibs_store *store = opened();
  dibs_error error;
  dibs_run_info run = run_of("");
  assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_INVALID);
  run = run_of("x");
  run.how = (dibs_run_end)6;
  assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_INVALID);
  run = run_of("x");
  run.output_length = 1;
  assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_INVALID);
  run = run_of("x");
  run.size = 8;
  assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_INVALID);
  run = run_of("x");
  run.began_ms = 2000;
  run.ended_ms = 1000;
  assert_int_equal(dibs_runs_add(store, &run, &error), DIBS_INVALID);
  assert_int_equal(dibs_runs_add(store, NULL, &error), DIBS_INVALID);
  assert_int_equal(dibs_runs(store, NULL, NULL, NULL, &error), DIBS_INVALID);
  dibs_runs_options options = {.size = sizeof options, .flags = 2};
  struct seen seen = {0};
  assert_int_equal(dibs_runs(store, &options, see, &seen, &error), DIBS_INVALID);
  options = (dibs_runs_options){.size = sizeof options, .task = UINT64_MAX};
  assert_int_equal(dibs_runs(store, &options, see, &seen, &error), DIBS_INVALID);
  assert_int_equal(dibs_runs_keep(store, -2, &error), DIBS_INVALID);
  assert_int_equal(dibs_runs_keep(store, DIBS_RUNS_KEEP_MAX_MS + 1, &error), DIBS_INVALID);
  assert_int_equal(dibs_runs(NULL, NULL, see, &seen, &error), DIBS_INVALID);
  dibs_close(store);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_run_is_kept_as_it_was_given),
      cmocka_unit_test(a_task_has_its_runs),
      cmocka_unit_test(without_instants_it_ends_now),
      cmocka_unit_test(long_texts_are_cut),
      cmocka_unit_test(all_pages_are_listed_and_a_caller_may_stop),
      cmocka_unit_test(a_store_may_keep_none),
      cmocka_unit_test(mistakes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
