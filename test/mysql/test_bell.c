/* SPDX-License-Identifier: MIT */
/* Bells against a real server: heard once, soon, and never lost, whenever the ring comes. */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bed bed;
static uint64_t session; /* of the case: the bell of one that failed may sleep for long */

enum { RINGERS = 3, RINGS = 300 };

static int begin(void **state) {
  (void)state;
  bed_make(&bed, bed_uri);
  struct dibs__sql_wire *w = bed_connect(&bed);
  run(w, "DROP TABLE IF EXISTS dibs_mail");
  run(w, dibs__my_engine.schema(0, 0));
  dibs__my_close(w);
  dibs__random(&session, sizeof session);
  /* A ring that is lost would be found when the sleep ends: not within what a test waits. */
  dibs__my_nap_ms = 10 * LONG_MS;
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__my_nap_ms = 30000;
  bed_drop(&bed);
  return 0;
}

static void *open_bell(void) {
  void *bell = NULL;
  dibs__status status =
      dibs__my_bell_open(&bed.store, session, dibs__tick_add_ms(dibs__tick_now(), LONG_MS), &bell, &bed.said);
  if (status != DIBS_OK) print_error("%s\n", bed.said.text);
  assert_int_equal(status, DIBS_OK);
  return bell;
}

static int64_t where(struct dibs__sql_wire *w) {
  char text[96];
  snprintf(text, sizeof text, "SELECT IS_USED_LOCK(CONCAT('dibs.s.', %lld))", (long long)session);
  run(w, text);
  return number(w, 0, 0, 0);
}

static void ring(struct dibs__sql_wire *w, uint64_t to, uint64_t nth, int64_t at) {
  struct dibs__far_ring r[2] = {{.session = to, .event.what = DIBS__EV_OFFER}, {.session = 1}};
  int64_t wheres[2] = {at, 4000000000};
  memcpy(r[0].event.id.b, &nth, sizeof nth);
  w->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  assert_int_equal(dibs__sql_begin(w), DIBS__SQL_FINE);
  assert_int_equal(dibs__my_ring_within(&bed.store, w, r, 1), DIBS__SQL_FINE);
  assert_int_equal(dibs__sql_commit(w), DIBS__SQL_FINE);
  /* With one that is gone beside it. */
  assert_int_equal(dibs__my_ring_after(&bed.store, w, r, wheres, 1 + nth % 2), DIBS__SQL_FINE);
  if (w->engine->go(w, true) != DIBS__SQL_FINE) fail_msg("%s", w->words);
}

static size_t hear(void *bell, struct dibs__event *events, size_t cap) {
  size_t count;
  assert_int_equal(dibs__my_bell_wait(bell, events, cap, &count, dibs__tick_add_ms(dibs__tick_now(), LONG_MS)),
                   DIBS_OK);
  return count;
}

static uint64_t nth_of(const struct dibs__event *event) {
  uint64_t nth;
  memcpy(&nth, event->id.b, sizeof nth);
  return nth;
}

static void a_ring_is_heard_once(void **state) {
  (void)state;
  struct dibs__event events[8];
  struct dibs__sql_wire *w = bed_connect(&bed);
  assert_int_equal(where(w), 0);
  void *bell = open_bell();
  int64_t at = where(w);
  assert_true(at > 0);
  ring(w, session + 1, 1, at); /* not for us */
  ring(w, session, 2, at);
  assert_int_equal(hear(bell, events, 8), 1);
  assert_int_equal(nth_of(&events[0]), 2);
  assert_int_equal(events[0].what, DIBS__EV_OFFER);
  dibs__my_bell_wake(bell);
  assert_int_equal(hear(bell, events, 8), 0);
  /* Nobody is left in the dark by few places for what was heard. */
  for (uint64_t i = 0; i < 40; i++) ring(w, session, 100 + i, at);
  uint64_t sum = 0;
  for (size_t heard = 0; heard < 40;) {
    size_t n = hear(bell, events, 3);
    for (size_t i = 0; i < n; i++) sum += nth_of(&events[i]) - 100;
    heard += n;
  }
  assert_int_equal(sum, 39 * 40 / 2);
  dibs__my_bell_close(bell);
  dibs__my_close(w);
}

static void a_bell_that_is_closed_is_gone_at_once(void **state) {
  (void)state;
  struct dibs__event events[1];
  size_t count;
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *bell = open_bell();
  assert_int_equal(dibs__my_bell_wait(bell, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), 20)), DIBS_OK);
  assert_true(where(w) > 0);
  dibs__my_bell_close(bell);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  while (where(w) != 0) assert_true(dibs__tick_before(dibs__tick_now(), by));
  dibs__my_close(w);
}

static void a_bell_whose_connection_is_killed_says_so(void **state) {
  (void)state;
  struct dibs__event events[1];
  char text[64];
  size_t count;
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *bell = open_bell();
  assert_int_equal(dibs__my_bell_wait(bell, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), 20)), DIBS_OK);
  snprintf(text, sizeof text, "KILL %lld", (long long)where(w));
  run(w, text);
  assert_int_equal(dibs__my_bell_wait(bell, events, 1, &count, dibs__tick_add_ms(dibs__tick_now(), LONG_MS)),
                   DIBS_UNAVAILABLE);
  dibs__my_bell_close(bell);
  bell = open_bell();
  dibs__my_bell_close(bell);
  dibs__my_close(w);
}

/* ---- Many rings at any moment ---- */

static dibs__tick rung[RINGERS * RINGS];
static int64_t bell_at;

static void ringer(void *arg) {
  uint64_t first = (uint64_t)(uintptr_t)arg * RINGS;
  struct dibs__sql_wire *w = bed_connect(&bed);
  for (uint64_t i = first; i < first + RINGS; i++) {
    /* At all distances from the ring before, down to none. */
    uint8_t pause;
    dibs__random(&pause, 1);
    if (pause % 4) dibs__nap_ms(pause % 4);
    rung[i] = dibs__tick_now();
    ring(w, session, i, bell_at);
  }
  dibs__my_close(w);
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void no_ring_is_lost(void **state) {
  (void)state;
  static int64_t took[RINGERS * RINGS];
  static bool heard[RINGERS * RINGS];
  struct dibs__event events[16];
  struct dibs__thread *threads[RINGERS];
  struct dibs__sql_wire *w = bed_connect(&bed);
  void *bell = open_bell();
  bell_at = where(w);
  for (uintptr_t i = 0; i < RINGERS; i++) threads[i] = dibs__thread_start("ringer", ringer, (void *)i);
  for (size_t all = 0; all < RINGERS * RINGS;) {
    size_t n = hear(bell, events, COUNT_OF(events));
    if (n == 0) fail_msg("%zu of %d rings were lost", RINGERS * RINGS - all, RINGERS * RINGS);
    for (size_t i = 0; i < n; i++) {
      uint64_t nth = nth_of(&events[i]);
      if (nth >= RINGERS * RINGS || heard[nth]) fail_msg("ring %llu twice", (unsigned long long)nth);
      heard[nth] = true;
      took[all++] = dibs__tick_now().ns - rung[nth].ns;
    }
  }
  for (size_t i = 0; i < RINGERS; i++) dibs__thread_join(threads[i]);
  qsort(took, COUNT_OF(took), sizeof took[0], by_size);
  print_message("from before the transaction to the hearing: p50 %lld us, p99 %lld us, max %lld us\n",
                (long long)took[COUNT_OF(took) / 2] / 1000, (long long)took[COUNT_OF(took) * 99 / 100] / 1000,
                (long long)took[COUNT_OF(took) - 1] / 1000);
  dibs__my_bell_close(bell);
  dibs__my_close(w);
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  bed_uri = argv[1];
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(a_ring_is_heard_once),
      CASE(a_bell_that_is_closed_is_gone_at_once),
      CASE(a_bell_whose_connection_is_killed_says_so),
      CASE(no_ring_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
