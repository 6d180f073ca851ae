/* SPDX-License-Identifier: MIT */
/*
 * Every allocation of an addition and a flush fails in turn, once, and then from there on until memory is back: what
 * was answered OK is stored once memory is back, and nothing else; no memory leaks (the address sanitizer checks).
 *
 * The linker puts our malloc between the library and the C library.
 */
#include "dibs/counter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SHORT_MS = 40, LONG_MS = 60000, MOST = 400 };

static _Atomic bool armed, for_ever;
static _Atomic uint64_t requested, fails_at, failed;

static bool fails(void) {
  if (!atomic_load(&armed)) return false;
  uint64_t n = atomic_fetch_add(&requested, 1) + 1;
  bool strike = n == atomic_load(&fails_at) || (n > atomic_load(&fails_at) && atomic_load(&for_ever));
  if (strike) atomic_fetch_add(&failed, 1);
  return strike;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_malloc(size_t size) {
  return fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
  return fails() ? NULL : __real_calloc(count, size);
}

/* What may be stored of a key. */
struct bounds {
  int64_t least, most;
};

static void add(dibs_store *s, const char *key, dibs_count_level level, struct bounds *bounds) {
  const dibs_counter_options o = {.size = sizeof o, .level = level, .wait_ms = SHORT_MS};
  dibs_status status = dibs_counter_add(s, key, 1, &o, NULL);
  bounds->least += status == DIBS_OK;
  bounds->most += status == DIBS_OK || status == DIBS_UNKNOWN;
  if (status != DIBS_OK && status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE && status != DIBS_NO_MEMORY)
    fail_msg("%s", dibs_status_name(status));
}

static int64_t stored(dibs_store *s, const char *key) {
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = LONG_MS};
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_status status = dibs_counter_read(s, key, &o, &value, NULL);
  if (status == DIBS_NOT_FOUND) return 0;
  assert_int_equal(status, DIBS_OK);
  assert_int_equal(value.buffered, 0);
  return value.stored;
}

/* false: no allocation failed. */
static bool fail_at(uint64_t nth, bool ever) {
  struct bounds durable = {0, 0}, buffered = {0, 0};
  const dibs_counter_options brief = {.size = sizeof brief, .wait_ms = SHORT_MS};
  const dibs_counter_options patient = {.size = sizeof patient, .wait_ms = LONG_MS};
  dibs_store *s = NULL;
  assert_int_equal(dibs_open("memory:", NULL, &s, NULL), DIBS_OK);
  atomic_store(&requested, 0);
  atomic_store(&failed, 0);
  atomic_store(&fails_at, nth);
  atomic_store(&for_ever, ever);
  atomic_store(&armed, true);
  for (int i = 0; i < 2; i++) {
    add(s, "durable", DIBS_COUNT_DURABLE, &durable);
    add(s, "a", DIBS_COUNT_BUFFERED, &buffered);
    (void)!dibs_counter_flush(s, &brief, NULL);
    add(s, "a", DIBS_COUNT_BUFFERED, &buffered);
  }
  atomic_store(&armed, false);
  assert_int_equal(dibs_counter_flush(s, &patient, NULL), DIBS_OK);
  int64_t got = stored(s, "durable");
  assert_true(durable.least <= got && got <= durable.most);
  got = stored(s, "a");
  assert_true(buffered.least == got);
  dibs_close(s);
  return atomic_load(&failed) > 0;
}

static void each_allocation_fails_once(void **state) {
  (void)state;
  uint64_t nth = 1;
  while (fail_at(nth, false)) assert_true(++nth < MOST);
  assert_true(nth > 10);
}

static void memory_is_used_up_for_a_while(void **state) {
  (void)state;
  uint64_t nth = 1;
  while (fail_at(nth, true)) assert_true(++nth < MOST);
  assert_true(nth > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_fails_once),
                                     cmocka_unit_test(memory_is_used_up_for_a_while)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
