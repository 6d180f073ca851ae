/* SPDX-License-Identifier: MIT */
/*
 * A server that is killed in the middle of writes by version.  Each writer has a row of its own, so it knows the
 * correct version: the new one after OK, the old one after UNAVAILABLE, one of the two after UNKNOWN.
 */
#include "record_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WRITERS = 4, KILLS = 3, KILLS_MAX = 20 /* until one had an effect */, BETWEEN = 60, LONG_S = 60 };

struct writer {
  dibs_store *store;
  dibs_table *table;
  char key[16];
  long stands;
  long unknown, unavailable;
};
static _Atomic long written;
static _Atomic long doubtful; /* writes that ended with UNKNOWN or UNAVAILABLE */
static _Atomic bool over;
static char broken[512]; /* the first wrong state that a writer saw */
static _Atomic bool is_broken;

static void breaks(const struct writer *w, const char *what, long got) {
  if (atomic_exchange(&is_broken, true)) return;
  snprintf(broken, sizeof broken, "row %s: %s: version %ld exists, expected %ld", w->key, what, got, w->stands);
}

static void nap(void) {
  nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Reads until it gets an answer.  -1: no answer in time. */
static long look(const struct writer *w) {
  dibs_record_options o = {.size = sizeof o, .table = w->table};
  for (time_t end = time(NULL) + LONG_S; time(NULL) < end; nap()) {
    dibs_record *record = NULL;
    dibs_error error;
    dibs_status status = dibs_record_get(w->store, w->key, &o, &record, &error);
    long version = status == DIBS_OK ? strtol(record->version, NULL, 10) : -1;
    dibs_record_free(record);
    if (status == DIBS_OK) return version;
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) {
      fprintf(stderr, "get: %s\n", error.text);
      return -1;
    }
  }
  return -1;
}

static void write_once(struct writer *w) {
  char version[32];
  dibs_value value = {w->key, strlen(w->key)};
  dibs_record_result told = {.size = sizeof told};
  dibs_error error;
  snprintf(version, sizeof version, "%ld", w->stands);
  dibs_record_options o = {.size = sizeof o, .table = w->table, .if_version = version};
  dibs_status status = dibs_record_put(w->store, w->key, &value, 1, &o, &told, &error);
  if (status == DIBS_OK) {
    w->stands++;
    if (strtol(told.version, NULL, 10) != w->stands) breaks(w, "OK", strtol(told.version, NULL, 10));
    atomic_fetch_add(&written, 1);
    return;
  }
  if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) fprintf(stderr, "put: %s\n", error.text);
  long stands = look(w);
  bool may = stands == w->stands || (status == DIBS_UNKNOWN && stands == w->stands + 1);
  if (!may || (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN)) breaks(w, dibs_status_name(status), stands);
  atomic_fetch_add(&doubtful, 1);
  if (status == DIBS_UNKNOWN)
    w->unknown++;
  else
    w->unavailable++;
  w->stands = stands;
}

static void *write_on(void *arg) {
  struct writer *w = arg;
  while (!over && !is_broken) write_once(w);
  if (!is_broken && look(w) != w->stands) breaks(w, "at the end", look(w));
  return NULL;
}

static void server(const char *verb) {
  char command[512];
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *folder = getenv("DIBS_TEST_SERVERS_DIR");
  assert_non_null(script);
  assert_non_null(folder);
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, folder);
  assert_int_equal(system(command), 0);
}

static void wait_for(long more) {
  long until = written + more;
  for (time_t end = time(NULL) + LONG_S; written < until && !is_broken; nap())
    if (time(NULL) >= end) fail_msg("only %ld of %ld were written", (long)written, until);
}

static void acknowledged_writes_are_durable(void **state) {
  (void)state;
  struct writer writers[WRITERS];
  pthread_t threads[WRITERS];
  dibs_store *s = store_open();
  make_table("crashed", "id %s PRIMARY KEY, body %s, version %s", engine->text, engine->text, engine->number);
  dibs_table *t = TABLE(.table = "crashed", .key = "id", .version = "version", .columns = "body");
  for (int i = 0; i < WRITERS; i++) {
    writers[i] = (struct writer){.store = s, .table = i % 2 ? t : NULL, .stands = 1};
    snprintf(writers[i].key, sizeof writers[i].key, "row-%d", i);
    put(s, writers[i].key, VALUES("0"), DIBS_OK, .table = writers[i].table, .flags = DIBS_IF_ABSENT);
  }
  for (int i = 0; i < WRITERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, write_on, &writers[i]), 0);
  for (int i = 0; i < KILLS || (doubtful == 0 && i < KILLS_MAX); i++) {
    wait_for(BETWEEN);
    server("kill");
    server("start");
  }
  wait_for(BETWEEN);
  over = true;
  long unknown = 0, unavailable = 0;
  for (int i = 0; i < WRITERS; i++) {
    pthread_join(threads[i], NULL);
    unknown += writers[i].unknown;
    unavailable += writers[i].unavailable;
  }
  print_message("%ld written, %ld unknown, %ld unavailable\n", (long)written, unknown, unavailable);
  if (is_broken) fail_msg("%s", broken);
  assert_true(unknown + unavailable > 0); /* the kills had an effect */
  bed_reconnect();
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {TEST(acknowledged_writes_are_durable)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
