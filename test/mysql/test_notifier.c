/* SPDX-License-Identifier: MIT */
/* Notifiers on a real server: a notice arrives once and soon, and is never lost, whenever it is sent. */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bed bed;
static uint64_t session; /* unique to the case: the notifier of a failed case may sleep for long */

enum { RINGERS = 3, NOTICES = 300 };

static int begin(void **state) {
  (void)state;
  bed_make(&bed, bed_uri);
  struct dibs__sql_wire *w = bed_connect(&bed);
  run(w, "DROP TABLE IF EXISTS dibs_mail");
  run(w, dibs__mysql_engine.schema(0, 0));
  dibs__mysql_close(w);
  dibs__random(&session, sizeof session);
  /* A lost notice would be found when the sleep ends, which is longer than a test waits. */
  dibs__mysql_nap_ms = 10 * LONG_MS;
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__mysql_nap_ms = 30000;
  bed_drop(&bed);
  return 0;
}

static void *open_notifier(void) {
  void *notifier = NULL;
  dibs__status status = dibs__mysql_notifier_open(&bed.store, session, dibs__tick_add_ms(dibs__tick_now(), LONG_MS),
                                                  &notifier, &bed.reported);
  if (status != DIBS_OK) print_error("%s\n", bed.reported.text);
  assert_int_equal(status, DIBS_OK);
  return notifier;
}

static int64_t where(struct dibs__sql_wire *w) {
  char text[96];
  snprintf(text, sizeof text, "SELECT IS_USED_LOCK(CONCAT('dibs.s.', %lld))", (long long)session);
  run(w, text);
  return number(w, 0, 0, 0);
}

static void notice(struct dibs__sql_wire *w, uint64_t to, uint64_t nth, int64_t at) {
  struct dibs__server_notice r[2] = {{.session = to, .event.what = DIBS__EV_OFFER}, {.session = 1}};
  int64_t wheres[2] = {at, 4000000000};
  memcpy(r[0].event.id.b, &nth, sizeof nth);
  w->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  assert_int_equal(dibs__sql_begin(w), DIBS__SQL_OK);
  assert_int_equal(dibs__mysql_notify_within(&bed.store, w, r, 1), DIBS__SQL_OK);
  assert_int_equal(dibs__sql_commit(w), DIBS__SQL_OK);
  /* Beside a notifier that has ended. */
  assert_int_equal(dibs__mysql_notify_after(&bed.store, w, r, wheres, 1 + nth % 2), DIBS__SQL_OK);
  if (w->engine->go(w, true) != DIBS__SQL_OK) fail_msg("%s", w->message);
}

static size_t receive(void *notifier, struct dibs__event *events, size_t cap) {
  size_t count;
  assert_int_equal(
      dibs__mysql_notifier_wait(notifier, events, cap, &count, dibs__tick_add_ms(dibs__tick_now(), LONG_MS)), DIBS_OK);
  return count;
}

static uint64_t nth_of(const struct dibs__event *event) {
  uint64_t nth;
  memcpy(&nth, event->id.b, sizeof nth);
  return nth;
}

static void a_notice_arrives_once(void **state) {
  (void)state;
  struct dibs__event events[8];
  struct dibs__sql_wire *w = bed_connect(&bed);
  assert_int_equal(where(w), 0);
  void *notifier = open_notifier();
  int64_t at = where(w);
  assert_true(at > 0);
  notice(w, session + 1, 1, at); /* not for this notifier */
  notice(w, session, 2, at);
  assert_int_equal(receive(notifier, events, 8), 1);
  assert_int_equal(nth_of(&events[0]), 2);
  assert_int_equal(events[0].what, DIBS__EV_OFFER);
  dibs__mysql_notifier_wake(notifier);
  assert_int_equal(receive(notifier, events, 8), 0);
  /* A small buffer for events loses no notice. */
  for (uint64_t i = 0; i < 40; i++) notice(w, session, 100 + i, at);
  uint64_t sum = 0;
  for (size_t heard = 0; heard < 40;) {
    size_t n = receive(notifier, events, 3);
    for (size_t i = 0; i < n; i++) sum += nth_of(&events[i]) - 100;
    heard += n;
  }
  assert_int_equal(sum, 39 * 40 / 2);
  dibs__mysql_notifier_close(notifier);
  dibs__mysql_close(w);
}

static void a_closed_notifier_ends_at_once(void **state) {
  (void)state;
  struct dibs__event events[1];
  size_t count;
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *notifier = open_notifier();
  assert_int_equal(dibs__mysql_notifier_wait(notifier, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), 20)),
                   DIBS_OK);
  assert_true(where(w) > 0);
  dibs__mysql_notifier_close(notifier);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  while (where(w) != 0) assert_true(dibs__tick_before(dibs__tick_now(), by));
  dibs__mysql_close(w);
}

static void a_notifier_reports_that_its_connection_was_killed(void **state) {
  (void)state;
  struct dibs__event events[1];
  char text[64];
  size_t count;
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *notifier = open_notifier();
  assert_int_equal(dibs__mysql_notifier_wait(notifier, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), 20)),
                   DIBS_OK);
  snprintf(text, sizeof text, "KILL %lld", (long long)where(w));
  run(w, text);
  assert_int_equal(dibs__mysql_notifier_wait(notifier, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), LONG_MS)),
                   DIBS_UNAVAILABLE);
  dibs__mysql_notifier_close(notifier);
  notifier = open_notifier();
  dibs__mysql_notifier_close(notifier);
  dibs__mysql_close(w);
}

/* ---- Many notices at any moment ---- */

static dibs__tick rung[RINGERS * NOTICES];
static int64_t notifier_at;

static void notifying_thread(void *arg) {
  uint64_t first = (uint64_t)(uintptr_t)arg * NOTICES;
  struct dibs__sql_wire *w = bed_connect(&bed);
  for (uint64_t i = first; i < first + NOTICES; i++) {
    /* At all intervals after the previous notice, down to zero. */
    uint8_t pause;
    dibs__random(&pause, 1);
    if (pause % 4) dibs__nap_ms(pause % 4);
    rung[i] = dibs__tick_now();
    notice(w, session, i, notifier_at);
  }
  dibs__mysql_close(w);
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void no_notice_is_lost(void **state) {
  (void)state;
  static int64_t took[RINGERS * NOTICES];
  static bool heard[RINGERS * NOTICES];
  struct dibs__event events[16];
  struct dibs__thread *threads[RINGERS];
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *notifier = open_notifier();
  notifier_at = where(w);
  for (uintptr_t i = 0; i < RINGERS; i++) threads[i] = dibs__thread_start("ringer", notifying_thread, (void *)i);
  for (size_t all = 0; all < RINGERS * NOTICES;) {
    size_t n = receive(notifier, events, COUNT_OF(events));
    if (n == 0) fail_msg("%zu of %d notices were lost", RINGERS * NOTICES - all, RINGERS * NOTICES);
    for (size_t i = 0; i < n; i++) {
      uint64_t nth = nth_of(&events[i]);
      if (nth >= RINGERS * NOTICES || heard[nth]) fail_msg("notice %llu arrived twice", (unsigned long long)nth);
      heard[nth] = true;
      took[all++] = dibs__tick_now().ns - rung[nth].ns;
    }
  }
  for (size_t i = 0; i < RINGERS; i++) dibs__thread_join(threads[i]);
  qsort(took, COUNT_OF(took), sizeof took[0], by_size);
  print_message("from before the transaction to the event: p50 %lld us, p99 %lld us, max %lld us\n",
                (long long)took[COUNT_OF(took) / 2] / 1000, (long long)took[COUNT_OF(took) * 99 / 100] / 1000,
                (long long)took[COUNT_OF(took) - 1] / 1000);
  dibs__mysql_notifier_close(notifier);
  dibs__mysql_close(w);
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  bed_uri = argv[1];
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(a_notice_arrives_once),
      CASE(a_closed_notifier_ends_at_once),
      CASE(a_notifier_reports_that_its_connection_was_killed),
      CASE(no_notice_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
