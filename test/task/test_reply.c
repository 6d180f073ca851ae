/* SPDX-License-Identifier: MIT */
#include "task/reply.h"
#include "unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOV_6_1994 INT64_C(784111777000) /* 08:49:37 */

static struct dibs__reply judge(int status, const char *retry_after, const char *date, const char *body) {
  struct dibs__http_answer answer = {.status = status};
  struct dibs__reply reply;
  snprintf(answer.retry_after, sizeof answer.retry_after, "%s", retry_after);
  snprintf(answer.date, sizeof answer.date, "%s", date);
  answer.length = strlen(body);
  memcpy(answer.body, body, answer.length);
  dibs__reply_judge(&answer, NOV_6_1994, &reply);
  return reply;
}

static void status_decides(void **state) {
  (void)state;
  static const struct {
    int from, to;
    enum dibs__reply_verdict verdict;
  } cases[] = {{100, 199, DIBS__REPLY_FAIL}, {200, 299, DIBS__REPLY_DONE}, {300, 407, DIBS__REPLY_DEAD},
               {408, 408, DIBS__REPLY_FAIL}, {409, 424, DIBS__REPLY_DEAD}, {425, 425, DIBS__REPLY_FAIL},
               {426, 428, DIBS__REPLY_DEAD}, {429, 429, DIBS__REPLY_FAIL}, {430, 499, DIBS__REPLY_DEAD},
               {500, 999, DIBS__REPLY_FAIL}};
  for (size_t i = 0; i < COUNT_OF(cases); i++)
    for (int status = cases[i].from; status <= cases[i].to; status++)
      if (judge(status, "", "", "").verdict != cases[i].verdict) fail_msg("%d", status);
}

static void no_response_is_a_failed_try_with_its_reason(void **state) {
  (void)state;
  struct dibs__http_answer answer = {.trouble = "connection refused\n"};
  struct dibs__reply reply;
  dibs__reply_judge(&answer, 0, &reply);
  assert_int_equal(reply.verdict, DIBS__REPLY_FAIL);
  assert_int_equal(reply.least_ms, 0);
  assert_string_equal(reply.text, "connection refused");
}

static void the_beginning_of_the_body_is_printable(void **state) {
  (void)state;
  assert_string_equal(judge(500, "", "", "").text, "HTTP 500");
  assert_string_equal(judge(500, "", "", "\r\n out of\tluck\x1b[31m \xff\xc3\xa9\n").text,
                      "HTTP 500: out of luck [31m ?\xc3\xa9");
  struct dibs__http_answer answer = {.status = 404, .length = 4};
  struct dibs__reply reply;
  memcpy(answer.body, "a\0b\0", 4);
  dibs__reply_judge(&answer, 0, &reply);
  assert_string_equal(reply.text, "HTTP 404: a b");
}

/* The text is the longest if each byte is kept: nothing of 1 KiB is lost. */
static void a_full_body_fits(void **state) {
  (void)state;
  struct dibs__http_answer answer = {.status = 308, .length = sizeof answer.body};
  struct dibs__reply reply;
  memset(answer.body, 'x', sizeof answer.body);
  memset(answer.location, '\1', sizeof answer.location - 1);
  memcpy(answer.location, "https://b/c\r", 12);
  dibs__reply_judge(&answer, 0, &reply);
  assert_int_equal(reply.verdict, DIBS__REPLY_DEAD);
  assert_non_null(strstr(reply.text, "redirect, which is not followed; to: https://b/c"));
  const char *body = strstr(reply.text, "xxx");
  assert_non_null(body);
  assert_int_equal(strlen(body), sizeof answer.body);
}

static void retry_after_is_the_least_pause(void **state) {
  (void)state;
  static const struct {
    const char *text, *date;
    int64_t ms;
  } cases[] = {{"0", "", 0},
               {"120", "", 120000},
               {"86400", "", DIBS__RETRY_AFTER_MAX_MS},
               {"86401", "", DIBS__RETRY_AFTER_MAX_MS},
               {"99999999999999999999999999999999999999", "", DIBS__RETRY_AFTER_MAX_MS},
               {"Sun, 06 Nov 1994 08:49:47 GMT", "", 10000},
               {"Sun, 06 Nov 1994 08:49:47 GMT", "Sun, 06 Nov 1994 08:49:45 GMT", 2000}, /* the receiver's clock */
               {"Sun, 06 Nov 1994 08:49:07 GMT", "", 0},
               {"Fri, 31 Dec 9999 23:59:59 GMT", "", DIBS__RETRY_AFTER_MAX_MS},
               {"30", "Sun, 06 Nov 1994 08:49:45 GMT", 30000},
               {"-1", "", 0},
               {"1.5", "", 0},
               {" 5", "", 0},
               {"soon", "", 0}};
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    int64_t ms = judge(503, cases[i].text, cases[i].date, "").least_ms;
    if (ms != cases[i].ms) fail_msg("%s: %lld", cases[i].text, (long long)ms);
  }
  assert_int_equal(judge(429, "7", "", "").least_ms, 7000);
  assert_int_equal(judge(200, "7", "", "").least_ms, 0);
  assert_int_equal(judge(404, "7", "", "").least_ms, 0);
}

static void dates_have_three_forms(void **state) {
  (void)state;
  static const char *const good[] = {"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
                                     "Sun Nov  6 08:49:37 1994", "Sun Nov 06 08:49:37 1994"};
  static const char *const bad[] = {"",
                                    "Sun",
                                    "Sun,",
                                    "Sun, ",
                                    "Sun, 6 Nov 1994 08:49:37 GMT",
                                    "Sun, 06 nov 1994 08:49:37 GMT",
                                    "Sun, 06 Nov 1994 08:49:37",
                                    "Sun, 06 Nov 1994 08:49:37 CET",
                                    "Sun, 06 Nov 1994 08:49:37 GMT ",
                                    "Sun, 00 Nov 1994 08:49:37 GMT",
                                    "Sun, 32 Nov 1994 08:49:37 GMT",
                                    "Sun, 06 Nov 1994 24:49:37 GMT",
                                    "Sun, 06 Nov 1994 08:60:37 GMT",
                                    "Sun, 06 Nov 1994 08:49:61 GMT",
                                    "Sunday, 06-Nov-1994 08:49:37 GMT",
                                    "Sun Nov  6 08:49:37 94",
                                    "1994-11-06T08:49:37Z"};
  for (size_t i = 0; i < COUNT_OF(good); i++) {
    int64_t ms;
    assert_true(dibs__http_date(good[i], &ms));
    assert_int_equal(ms, NOV_6_1994);
  }
  int64_t ms;
  assert_true(dibs__http_date("Thursday, 01-Jan-70 00:00:00 GMT", &ms));
  assert_int_equal(ms, 0);
  assert_true(dibs__http_date("Tuesday, 01-Jan-69 00:00:00 GMT", &ms));
  assert_int_equal(ms, INT64_C(3124224000000));
  for (size_t i = 0; i < COUNT_OF(bad); i++)
    if (dibs__http_date(bad[i], &ms)) fail_msg("%s", bad[i]);
  /* Each beginning of a good date is bad, and is not read beyond its end. */
  for (size_t length = 0; length < strlen(good[0]); length++) {
    char *cut = calloc(1, length + 1);
    assert_non_null(cut);
    memcpy(cut, good[0], length);
    assert_false(dibs__http_date(cut, &ms));
    free(cut);
  }
}

static void a_header_can_not_be_broken(void **state) {
  (void)state;
  char memory[64];
  struct dibs__text text;
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__header_add(&text, "a b%\r\nX: \0\xc3\xa9~", 13);
  assert_string_equal(memory, "a%20b%25%0D%0AX:%20%00%C3%A9~");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(status_decides),
      cmocka_unit_test(no_response_is_a_failed_try_with_its_reason),
      cmocka_unit_test(the_beginning_of_the_body_is_printable),
      cmocka_unit_test(a_full_body_fits),
      cmocka_unit_test(retry_after_is_the_least_pause),
      cmocka_unit_test(dates_have_three_forms),
      cmocka_unit_test(a_header_can_not_be_broken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
