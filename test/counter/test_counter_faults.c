/* SPDX-License-Identifier: MIT */
/*
 * Answers of the store are lost, and connections break, in every third call: the stored sums are those that were
 * acknowledged.
 * test_counter_faults HOW...   the kinds of faults, as fault.how names them
 */
#include "dibs/counter.h"
#include "drivers/wrap/shim.h"
#include "store/registry.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4, ADDS = 60, KEYS = 5, WAIT_MS = 100000 };

static char folder[] = "/tmp/dibs-counter-XXXXXX", path[64], direct[80], faulty[160];
static const char *kind;

static dibs_store *open_at(const char *uri) {
  dibs_store *s = NULL;
  dibs_error error = {0};
  for (int tries = 0; tries < 50; tries++)
    if (dibs_open(uri, NULL, &s, &error) == DIBS_OK) return s;
  fail_msg("%s: %s", uri, error.text);
  return NULL;
}

struct adder {
  dibs_store *store;
  dibs_count_level level;
  int nr;
  int64_t acknowledged;
};

static void *add_on(void *arg) {
  struct adder *a = arg;
  const dibs_counter_options o = {.size = sizeof o, .level = a->level, .wait_ms = WAIT_MS};
  char key[32];
  for (int i = 0; i < ADDS; i++) {
    snprintf(key, sizeof key, "key%d", (i + a->nr) % KEYS);
    if (dibs_counter_add(a->store, key, i + 1, &o, NULL) == DIBS_OK) a->acknowledged += i + 1;
    if (a->level == DIBS_COUNT_BUFFERED && a->nr == 0 && i % 4 == 0) (void)!dibs_counter_flush(a->store, &o, NULL);
  }
  return NULL;
}

static int add_up(const char *key, int64_t stored, void *user) {
  (void)key;
  *(int64_t *)user += stored;
  return 0;
}

/* Every case has a file of its own: what SQLite has beside a file must not outlive it. */
static void next_file(void) {
  static int files;
  snprintf(path, sizeof path, "%s/%d.db", folder, ++files);
  snprintf(direct, sizeof direct, "sqlite://%s", path);
  snprintf(faulty, sizeof faulty, "fault+sqlite://%s?fault.rate=333&fault.how=%s", path, kind);
}

static void run_level(dibs_count_level level) {
  struct adder adders[THREADS];
  pthread_t threads[THREADS];
  int64_t acknowledged = 0, stored = 0;
  dibs_error error = {0};
  next_file();
  dibs_store *s = open_at(faulty);
  for (int i = 0; i < THREADS; i++) {
    adders[i] = (struct adder){.store = s, .level = level, .nr = i};
    assert_int_equal(pthread_create(&threads[i], NULL, add_on, &adders[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    acknowledged += adders[i].acknowledged;
  }
  const dibs_counter_options patient = {.size = sizeof patient, .wait_ms = WAIT_MS};
  if (dibs_counter_flush(s, &patient, &error) != DIBS_OK) fail_msg("flush: %s", error.text);
  dibs_close(s);
  dibs_store *plain = open_at(direct);
  assert_int_equal(dibs_counter_list(plain, NULL, add_up, &stored, &error), DIBS_OK);
  dibs_close(plain);
  assert_int_equal(acknowledged, THREADS * ADDS * (ADDS + 1) / 2); /* the time was enough for all */
  assert_int_equal(stored, acknowledged);
}

/* Callers with little time, beside a patient caller: what was answered UNAVAILABLE is never added. */
struct impatient {
  dibs_store *store;
  int nr;
  int64_t acknowledged, unknown;
};

static void *add_impatiently(void *arg) {
  struct impatient *a = arg;
  for (int i = 0; i < ADDS; i++) {
    const dibs_counter_options o = {.size = sizeof o, .wait_ms = a->nr == 0 ? WAIT_MS : 1 + (i * 7 + a->nr) % 12};
    dibs_status status = dibs_counter_add(a->store, "hot", 1, &o, NULL);
    a->acknowledged += status == DIBS_OK;
    a->unknown += status == DIBS_UNKNOWN;
  }
  return NULL;
}

static void impatient_callers_are_told_the_truth(void **state) {
  (void)state;
  struct impatient adders[THREADS];
  pthread_t threads[THREADS];
  int64_t acknowledged = 0, unknown = 0, stored = 0;
  dibs_error error = {0};
  next_file();
  dibs_store *s = open_at(faulty);
  for (int i = 0; i < THREADS; i++) {
    adders[i] = (struct impatient){.store = s, .nr = i};
    assert_int_equal(pthread_create(&threads[i], NULL, add_impatiently, &adders[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    acknowledged += adders[i].acknowledged;
    unknown += adders[i].unknown;
  }
  dibs_close(s);
  dibs_store *plain = open_at(direct);
  assert_int_equal(dibs_counter_list(plain, "hot", add_up, &stored, &error), DIBS_OK);
  dibs_close(plain);
  print_message("acknowledged %lld, unknown %lld, stored %lld\n", (long long)acknowledged, (long long)unknown,
                (long long)stored);
  assert_true(acknowledged <= stored && stored <= acknowledged + unknown);
}

static void durable_additions_count_once(void **state) {
  (void)state;
  run_level(DIBS_COUNT_DURABLE);
}

static void buffered_additions_count_once(void **state) {
  (void)state;
  run_level(DIBS_COUNT_BUFFERED);
}

int main(int argc, char *argv[]) {
  int failed = 0;
  if (!mkdtemp(folder) || !dibs__driver_add(&dibs__fault_driver)) return 2;
  for (int i = 1; i < argc; i++) {
    kind = argv[i];
    printf("%s\n", kind);
    const struct CMUnitTest tests[] = {cmocka_unit_test(durable_additions_count_once),
                                       cmocka_unit_test(buffered_additions_count_once),
                                       cmocka_unit_test(impatient_callers_are_told_the_truth)};
    failed += cmocka_run_group_tests(tests, NULL, NULL);
  }
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command) != 0 || failed ? 1 : 0;
}
