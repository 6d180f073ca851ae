/* SPDX-License-Identifier: MIT */
/*
 * The record of the tiers is written only over the content that was read.  After the restore of a backup versions are
 * used again: a person's change may have the version that a client has read before.
 *
 * usage: test_saving [URI OF THE ANCHOR]
 */
#include "base/text.h"
#include "store/registry.h"
#include "tier/tiers_impl.h"
#include "tiers_bed.h"

#include <sqlite3.h>
#include <unistd.h>

enum { PATIENCE_MS = 60000, OF_A_PERSON = 70, OF_THE_CLIENT = 40 };

static char folder[] = "/tmp/dibs-saving-XXXXXX";
static const char *anchor;

/* The only record of the anchor. */
static void replace_content(const char *text, size_t length) {
  struct dibs__text to;
  size_t size = 2 * length + 512;
  char *sql = malloc(size);
  assert_non_null(sql);
  dibs__text_begin(&to, sql, size);
  dibs__text_addf(&to, "UPDATE dibs_record SET data = %s", anchor ? "decode('" : "x'");
  for (size_t i = 0; i < length; i++) dibs__text_addf(&to, "%02x", (unsigned char)text[i]);
  dibs__text_addf(&to, "%s", anchor ? "', 'hex')" : "'");
  if (anchor) {
    char run[512], path[64];
    snprintf(path, sizeof path, "%s/change.sql", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(sql, file) >= 0 && fclose(file) == 0);
    snprintf(run, sizeof run, "psql -q -v ON_ERROR_STOP=1 -f '%s' '%s'", path, anchor);
    command(run);
  } else {
    char path[64];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/last.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_busy_timeout(db, PATIENCE_MS), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    sqlite3_close(db);
  }
  free(sql);
}

/* Called between reading and writing.  The first time, a person changes the restored record meanwhile. */
static dibs__status change(struct dibs__tiers_state *state, void *arg, struct dibs__result *result) {
  int *calls = arg;
  (void)result;
  if ((*calls)++ == 0) {
    struct dibs__tiers_state *theirs = malloc(sizeof *theirs);
    size_t length;
    assert_non_null(theirs);
    *theirs = *state;
    theirs->tiers[0].percent = OF_A_PERSON;
    char *text = dibs__tiers_write(theirs, &length);
    assert_non_null(text);
    replace_content(text, length);
    free(text);
    free(theirs);
  }
  state->fallback = OF_THE_CLIENT;
  return DIBS_OK;
}

static dibs__status keep(struct dibs__tiers_state *state, void *arg, struct dibs__result *result) {
  (void)result;
  *(struct dibs__tiers_state *)arg = *state;
  return DIBS_CANCELLED;
}

static dibs__status begin_fleet(struct dibs__tiers_state *state, void *arg, struct dibs__result *result) {
  (void)arg, (void)result;
  state->fallback = 100;
  return DIBS_OK;
}

static void a_persons_change_of_the_same_version_stays(void **state) {
  (void)state;
  char text[1024];
  struct dibs__uri uri;
  struct dibs__chain chain;
  struct dibs__result result = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  if (anchor)
    snprintf(text, sizeof text, "sqlite://%s/first.db,%s", folder, anchor);
  else
    snprintf(text, sizeof text, "sqlite://%s/first.db,sqlite://%s/last.db", folder, folder);
  assert_int_equal(dibs__uri_parse(text, &uri, &result), DIBS_OK);
  assert_int_equal(dibs__chain_open(&uri, getenv("DIBS_MODULE_PATH"), by, &chain, &result), DIBS_OK);
  struct tiers *t = tiers_of(chain.stores[0]);
  struct heal *why = calloc(1, sizeof *why);
  struct dibs__tiers_state *is = calloc(1, sizeof *is);
  int calls = 0;
  assert_true(why && is);
  assert_int_equal(dibs__tiers_ready(t, by, &result), DIBS_OK);
  assert_int_equal(dibs__tiers_control_take(t, by, &result), DIBS_OK);
  assert_int_equal(dibs__tiers_change(t, why, begin_fleet, NULL, by, &result), DIBS_OK);
  assert_int_equal(dibs__tiers_change(t, why, change, &calls, by, &result), DIBS_OK);
  assert_int_equal(dibs__tiers_change(t, why, keep, is, by, &result), DIBS_CANCELLED);
  dibs__timed_lock_release(&t->control);
  assert_int_equal(is->tiers[0].percent, OF_A_PERSON);
  assert_int_equal(is->fallback, OF_THE_CLIENT);
  assert_true(calls > 1);
  dibs__chain_close(&chain);
  dibs__uri_free(&uri);
  free(why);
  free(is);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_persons_change_of_the_same_version_stays)};
  if (argc > 1) anchor = argv[1];
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char text[64];
  snprintf(text, sizeof text, "rm -r '%s'", folder);
  command(text);
  return failed;
}
