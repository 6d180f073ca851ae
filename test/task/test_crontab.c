/* SPDX-License-Identifier: MIT */
#include "task/crontab.h"
#include "unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory that runs out: the linker redirects the calls ---- */

static int calls_left = -1; /* of those that succeed; -1: all */

static bool spent(void) {
  if (calls_left == 0) return true;
  if (calls_left > 0) calls_left--;
  return false;
}
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size) {
  return spent() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
  return spent() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *p, size_t size) {
  return spent() ? NULL : __real_realloc(p, size);
}

/* ---- Files ---- */

static struct dibs__crontab *read_tab(const char *text) {
  /* Exactly as long as the text, so that a read beyond it is noticed. */
  size_t length = strlen(text);
  char *copy = malloc(length + 1);
  assert_non_null(copy);
  memcpy(copy, text, length);
  char *exact = realloc(copy, length ? length : 1);
  assert_non_null(exact);
  struct dibs__crontab *tab = dibs__crontab_read(exact, length, "UTC");
  assert_non_null(tab);
  free(exact);
  return tab;
}

static const struct dibs__cron_job *job_of(const struct dibs__crontab *tab, const char *name) {
  for (size_t i = 0; i < tab->flaw_count; i++)
    print_message("line %u: %s\n", tab->flaws[i].line, tab->flaws[i].message);
  for (size_t i = 0; i < tab->job_count; i++)
    if (strcmp(tab->jobs[i].name, name) == 0) return &tab->jobs[i];
  fail_msg("no job '%s'", name);
  abort(); /* not reached; the compiler does not know that */
}

static const char full[] =
    "# comment\n"
    "\n"
    "  # another\r\n"
    "PATH=/usr/bin:/bin\n"
    "*/10 * * * * name=early ./early\r\n"
    "CRON_TZ = Europe/Berlin\n"
    " MESSAGE = \" two words \" \n"
    "PATH='/opt/bin'\n"
    "EMPTY=\n"
    "30 2 * * *\t name=nightly  catch-up=all:6h\toverlap=queue timeout=2h30m jitter=5m  ./report  --all -x\n"
    "0 0 1 jan mon-fri zone=Asia/Tokyo catch-up=none overlap=allow ./by-name A=b\n"
    "*/5 0 12 * * sun ./with-seconds\n"
    "@daily mail -s 100\\% root%Dear root,%all is well\n"
    "0 4 * * * LANG=C ./rotate   ";

static void lines_become_jobs(void **state) {
  (void)state;
  struct dibs__crontab *tab = read_tab(full);
  assert_int_equal(tab->flaw_count, 0);
  assert_int_equal(tab->job_count, 6);
  const struct dibs__cron_job *job = job_of(tab, "early");
  assert_int_equal(job->line, 5);
  assert_string_equal(job->zone_name, "UTC");
  assert_string_equal(job->command, "./early");
  assert_null(job->input);
  assert_string_equal(job->environment[0], "PATH=/usr/bin:/bin");
  assert_null(job->environment[1]);
  assert_int_equal(job->catch_up, DIBS_CATCH_UP_LAST);
  assert_int_equal(job->window_ms, 3600000);
  assert_int_equal(job->overlap, DIBS_OVERLAP_SKIP);
  assert_int_equal(job->timeout_ms, 0);
  assert_int_equal(job->jitter_ms, 0);

  job = job_of(tab, "nightly");
  assert_string_equal(job->text, "30 2 * * *");
  assert_string_equal(job->zone_name, "Europe/Berlin");
  assert_string_equal(job->command, "./report  --all -x");
  assert_int_equal(job->catch_up, DIBS_CATCH_UP_ALL);
  assert_int_equal(job->window_ms, 6 * 3600000);
  assert_int_equal(job->overlap, DIBS_OVERLAP_QUEUE);
  assert_int_equal(job->timeout_ms, 9000000);
  assert_int_equal(job->jitter_ms, 300000);
  assert_string_equal(job->environment[0], "PATH=/opt/bin");
  assert_string_equal(job->environment[1], "MESSAGE= two words ");
  assert_string_equal(job->environment[2], "EMPTY=");
  assert_null(job->environment[3]);

  job = job_of(tab, "./by-name A=b");
  assert_string_equal(job->zone_name, "Asia/Tokyo");
  assert_int_equal(job->catch_up, DIBS_CATCH_UP_NONE);
  assert_int_equal(job->overlap, DIBS_OVERLAP_ALLOW);

  job = job_of(tab, "./with-seconds");
  assert_string_equal(job->text, "*/5 0 12 * * sun");
  job = job_of(tab, "mail -s 100% root");
  assert_string_equal(job->input, "Dear root,\nall is well\n");
  job = job_of(tab, "LANG=C ./rotate");
  assert_string_equal(job->text, "0 4 * * *");
  dibs__crontab_free(tab);
}

static void commands_that_look_like_more(void **state) {
  (void)state;
  static const char *const commands[] = {"php /var/www/cron.php",
                                         "git gc",
                                         "apt-get update",
                                         "tar cf x y",
                                         "env date=$(date) ./x",
                                         "http_proxy=x ./x",
                                         "PATH=/bin ./x",
                                         "Mode=1 ./x",
                                         "x1=1 ./x",
                                         "./sun",
                                         "name",
                                         "_x=1 ./x",
                                         "./x name=y",
                                         "./x mode=fast"};
  char text[128];
  for (size_t i = 0; i < COUNT_OF(commands); i++) {
    snprintf(text, sizeof text, "*/5 * * * 1-5 %s\n", commands[i]);
    struct dibs__crontab *tab = read_tab(text);
    if (tab->flaw_count) fail_msg("%s: %s", commands[i], tab->flaws[0].message);
    assert_string_equal(tab->jobs[0].command, commands[i]);
    assert_string_equal(tab->jobs[0].text, "*/5 * * * 1-5");
    dibs__crontab_free(tab);
  }
}

static void a_bad_zone_makes_the_jobs_below_bad(void **state) {
  (void)state;
  struct dibs__crontab *tab = read_tab("@daily above\nCRON_TZ=Europe/Berln\n@daily below\n@daily zone=UTC name=own x\n"
                                       "CRON_TZ=UTC\n@daily last\nCRON_TZ=\n");
  assert_int_equal(tab->flaw_count, 3);
  assert_int_equal(tab->flaws[0].line, 2);
  assert_non_null(strstr(tab->flaws[0].message, "there is no time zone 'Europe/Berln'"));
  assert_int_equal(tab->flaws[1].line, 3);
  assert_int_equal(tab->flaws[2].line, 7);
  assert_non_null(strstr(tab->flaws[2].message, "is not the name of a time zone"));
  assert_int_equal(tab->job_count, 3);
  assert_string_equal(tab->jobs[1].name, "own");
  assert_string_equal(tab->jobs[2].name, "last");
  dibs__crontab_free(tab);
}

static void a_job_uses_its_own_zone(void **state) {
  (void)state;
  struct dibs__crontab *tab = read_tab("0 0 1 1 * zone=Asia/Tokyo name=tokyo x\n0 0 1 1 * name=utc x\n");
  const struct dibs__cron_job *tokyo = job_of(tab, "tokyo"), *utc = job_of(tab, "utc");
  int64_t a = dibs__schedule_next(&tokyo->schedule, tokyo->zone, 1700000000);
  int64_t b = dibs__schedule_next(&utc->schedule, utc->zone, 1700000000);
  assert_int_equal(b - a, 9 * 3600);
  dibs__crontab_free(tab);
}

static void a_bad_line_is_reported_and_the_rest_is_read(void **state) {
  (void)state;
  static const struct {
    const char *line, *why;
  } lines[] = {
      {"61 * * * * ./x", "the minute '61'"},
      {"* * * * ./x", "the weekday './x' is not understood"},
      {"0 0 3 * * ? ./x", "the weekday '?' is not understood; write *"},
      {"0 0 3 * * 6L ./x", "the weekday '6L' is not understood"},
      {"0 0 3 * * fri#3 ./x", "the weekday 'fri#3' is not understood"},
      {"0 0 3 * * FRIL ./x", "the weekday 'FRIL' is not understood"},
      {"* * *", "five fields"},
      {"@often ./x", "'@often' is not a schedule"},
      {"@reboot ./x", "service manager"},
      {"* * * * *", "the job has no command"},
      {"* * * * * name=x", "the job has no command"},
      {"* * * * * name=x %input", "the job has no command"},
      {"report at noon", "is neither a schedule nor NAME=VALUE"},
      {"RANDOM_DELAY=5", "write jitter=5m"},
      {"* * * * * zone=/etc/passwd ./x", "is not the name of a time zone"},
      {"* * * * * name= ./x", "the job's name '' is empty"},
      {"* * * * * name=a\x01 ./x", "the job's name"},
      {"* * * * * timeout=2 ./x", "timeout=: '2' has no unit"},
      {"* * * * * timeout=0s ./x", "timeout=0s has to be longer than 0"},
      {"* * * * * jitter=soon ./x", "jitter=: 'soon' is not a duration"},
      {"* * * * * catch-up=some ./x", "catch-up=some is not known"},
      {"* * * * * catch-up=none:1h ./x", "has no window"},
      {"* * * * * catch-up=all: ./x", "is not a duration"},
      {"* * * * * catch-up=last:1h:2h ./x", "is not a duration"},
      {"* * * * * overlap=maybe ./x", "overlap=maybe is not known"},
      {"* * * * * timout=2h ./x", "did you mean timeout=?"},
      {"* * * * * names=x ./x", "did you mean name=?"},
      {"* * * * * nmae=x ./x", "did you mean name=?"},
      {"* * * * * catch_up=none ./x", "did you mean catch-up=?"},
      {"* * * * * home=/ ./x", "for the command, write env home=..."},
      {"* * * * * retries=5 ./x", "(name, zone, catch-up, overlap, timeout, jitter)"},
      {"* * * * * name=x name=y ./x", "name= occurs twice"},
      {"* * * * * name=\"a b\" ./x", "without quotes"},
      {"* * * * * name=$(hostname) ./x", "not for the shell"},
      {"* * * * * timeout=367d ./x", "is longer than 366d"},
      {"* * * * * name=\xff\xff ./x", "is not UTF-8"},
      {"* * * * * catchup=none ./x", "did you mean catch-up=?"},
      {"* * * * * ./good", "the job './good' already exists on line 1"},
      {"* * * * * %s%n%s", "the job has no command"},
  };
  char text[256];
  for (size_t i = 0; i < COUNT_OF(lines); i++) {
    snprintf(text, sizeof text, "* * * * * ./good\n%s\n@daily name=last ./last", lines[i].line);
    struct dibs__crontab *tab = read_tab(text);
    if (tab->flaw_count != 1) fail_msg("%s: %zu flaws", lines[i].line, tab->flaw_count);
    if (!strstr(tab->flaws[0].message, lines[i].why)) fail_msg("%s: %s", lines[i].line, tab->flaws[0].message);
    assert_int_equal(tab->flaws[0].line, 2);
    assert_int_equal(tab->job_count, 2);
    assert_string_equal(tab->jobs[1].name, "last");
    assert_int_equal(tab->jobs[1].line, 3);
    dibs__crontab_free(tab);
  }
}

static void odd_files(void **state) {
  (void)state;
  struct dibs__crontab *tab = read_tab("");
  assert_int_equal(tab->job_count + tab->flaw_count, 0);
  dibs__crontab_free(tab);

  tab = read_tab("\xef\xbb\xbf@daily x");
  assert_int_equal(tab->flaw_count, 0);
  assert_string_equal(tab->jobs[0].name, "x");
  dibs__crontab_free(tab);

  tab = dibs__crontab_read("@daily a\0b\n@daily c", 19, "UTC");
  assert_non_null(tab);
  assert_int_equal(tab->flaw_count, 1);
  assert_non_null(strstr(tab->flaws[0].message, "zero byte"));
  assert_string_equal(tab->jobs[0].name, "c");
  dibs__crontab_free(tab);

  size_t size = DIBS__CRONTAB_MAX + 1;
  char *large = malloc(size + 1);
  assert_non_null(large);
  memset(large, '#', size);
  tab = dibs__crontab_read(large, size, "UTC");
  assert_int_equal(tab->flaw_count, 1);
  dibs__crontab_free(tab);
  memset(large, 'x', DIBS__CRONTAB_LINE + 1);
  memcpy(large, "@daily ", 7);
  memcpy(large + DIBS__CRONTAB_LINE + 1, "\n@hourly y", 10);
  tab = dibs__crontab_read(large, DIBS__CRONTAB_LINE + 11, "UTC");
  assert_int_equal(tab->flaw_count, 1);
  assert_non_null(strstr(tab->flaws[0].message, "longer than 8192"));
  assert_int_equal(tab->job_count, 1);
  dibs__crontab_free(tab);
  /* A long command needs a name. */
  large[7 + DIBS__CRONTAB_NAME] = '\0';
  tab = dibs__crontab_read(large, strlen(large), "UTC");
  assert_int_equal(tab->job_count, 1);
  dibs__crontab_free(tab);
  large[7 + DIBS__CRONTAB_NAME] = 'x';
  large[8 + DIBS__CRONTAB_NAME] = '\0';
  tab = dibs__crontab_read(large, strlen(large), "UTC");
  assert_int_equal(tab->job_count, 0);
  assert_non_null(strstr(tab->flaws[0].message, "write name=NAME"));
  dibs__crontab_free(tab);
  free(large);
}

static void many_lines_have_a_bound(void **state) {
  (void)state;
  enum { LINES = 300 };
  char *text = malloc(LINES * 32), *at = text;
  assert_non_null(text);
  for (int i = 0; i < LINES; i++) at += snprintf(at, 32, "V%d=%d\n", i, i);
  struct dibs__crontab *tab = dibs__crontab_read(text, (size_t)(at - text), "UTC");
  assert_non_null(tab);
  assert_int_equal(tab->flaw_count, LINES - 256);
  assert_non_null(strstr(tab->flaws[0].message, "more than 256 variables"));
  dibs__crontab_free(tab);
  /* Flaws, too. */
  for (size_t n = 0; n < LINES * 16; n++) memcpy(text + 2 * n, "a\n", 2);
  tab = dibs__crontab_read(text, LINES * 32, "UTC");
  assert_non_null(tab);
  assert_int_equal(tab->flaw_count, DIBS__CRONTAB_FLAWS);
  assert_string_equal(tab->flaws[DIBS__CRONTAB_FLAWS - 1].message, "this line and others below it are wrong, too");
  dibs__crontab_free(tab);
  free(text);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  int n = 0;
  for (bool whole = false; !whole; n++) {
    calls_left = n;
    struct dibs__crontab *tab = dibs__crontab_read(full, sizeof full - 1, "UTC");
    calls_left = -1;
    /* A zone that can't be loaded for lack of memory is a flaw of its line, like a missing one. */
    whole = tab && tab->flaw_count == 0 && tab->job_count == 6;
    dibs__crontab_free(tab);
    assert_true(n < 10000);
  }
  assert_true(n > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_become_jobs),
      cmocka_unit_test(commands_that_look_like_more),
      cmocka_unit_test(a_bad_zone_makes_the_jobs_below_bad),
      cmocka_unit_test(a_job_uses_its_own_zone),
      cmocka_unit_test(a_bad_line_is_reported_and_the_rest_is_read),
      cmocka_unit_test(odd_files),
      cmocka_unit_test(many_lines_have_a_bound),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
