/* SPDX-License-Identifier: MIT */
/* The loop that guards a command: it asks how long the lease lasts before it ends the command. */
#include "cli/run.h"
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

/* Other parts of the command want these. */
const struct cli_program dibs__cli_program = {"test", "a test", NULL};
const struct cli_command dibs__cli_commands[] = {{.name = NULL}};

static const struct cli_globals globals;

/* A lease with `first_ms` left, which is renewed once: at `renewed_at` ms there are `then_ms` left. */
static struct { int64_t first_ms, renewed_at, then_ms; } plan;

static int64_t left_ms(const struct run *run) {
  int64_t ms = dibs__tick_left_ms(run->began, dibs__tick_now());
  int64_t left = ms < plan.renewed_at ? plan.first_ms - ms : plan.then_ms - (ms - plan.renewed_at);
  return left > 0 ? left : 0;
}

/* Runs `sleep`, which takes no notice of a lease. */
static struct run run_sleep(const char *seconds, int64_t ttl_ms, int64_t grace_ms) {
  char *argv[] = {(char[]){"sleep"}, (char *)(uintptr_t)seconds, NULL};
  struct minder_plan minder = {.globals = &globals,
                               .name = "test",
                               .argv = argv,
                               .grace_ms = grace_ms,
                               .tty = -1,
                               .in = -1,
                               .out = -1,
                               .err = -1};
  struct run run = {.globals = &globals,
                    .name = "test",
                    .argv = argv,
                    .grace_ms = grace_ms,
                    .signals = {.fd = -1},
                    .tty = -1,
                    .end_fd = -1,
                    .left_ms = left_ms,
                    .alarm = dibs__cli_alarm_open()};
  run.options.ttl_ms = ttl_ms;
  assert_true(run.alarm >= 0);
  assert_int_equal(dibs__cli_minder_start(&minder, &run.minder), CLI_DONE);
  run.began = dibs__tick_now();
  dibs__cli_run_loop(&run, "", 0);
  close(run.minder.fd);
  close(run.alarm);
  waitpid(run.minder.pid, NULL, 0);
  assert_true(run.over);
  return run;
}

static void expect_unharmed(const struct run *run) {
  assert_false(run->lost || run->late || run->end_sent);
  assert_int_equal(run->status, 0);
}

/* TERM is due after 7,475 ms.  Each 2.5 seconds the minder gets the deadline: after 5,000 ms, which is too early, and
 * 7,500. */
static void a_renewal_between_the_last_telling_and_the_term_counts(void **state) {
  (void)state;
  plan.first_ms = 16475;
  plan.renewed_at = 5125;
  plan.then_ms = 28500;
  struct run run = run_sleep("9", 30000, 7500);
  expect_unharmed(&run);
}

static void a_claim_that_begins_with_little_left_and_is_extended_goes_on(void **state) {
  (void)state;
  plan.first_ms = 1500;
  plan.renewed_at = 50;
  plan.then_ms = 29400;
  struct run run = run_sleep("2", 30000, 2000);
  expect_unharmed(&run);
  assert_int_equal(run.lasts_ms, 30000);
  assert_int_equal(run.grace_ms, 2000);
}

/* And the grace fits to what is left, so that the command has some of it. */
static void a_claim_that_is_not_extended_ends_the_command_in_time(void **state) {
  (void)state;
  plan.first_ms = 1500;
  plan.renewed_at = INT64_MAX;
  struct run run = run_sleep("60", 30000, 2000);
  assert_true(run.lost && run.late);
  assert_true(WIFSIGNALED(run.status));
  int64_t took_ms = dibs__tick_left_ms(run.began, run.ended);
  assert_true(took_ms >= 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_renewal_between_the_last_telling_and_the_term_counts),
      cmocka_unit_test(a_claim_that_begins_with_little_left_and_is_extended_goes_on),
      cmocka_unit_test(a_claim_that_is_not_extended_ends_the_command_in_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
