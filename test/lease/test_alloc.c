/* SPDX-License-Identifier: MIT */
/*
 * Every allocation fails in turn, once, and then from there on for ever: the status is clear, nothing is lost that
 * could be kept, no name has two holders, no memory leaks (the address sanitizer checks), no wait hangs.
 *
 * The linker puts our malloc between the library and the C library; allocations of the C library and the engines
 * themselves are not affected.
 */
#include "help.h"
#include "support/records.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* ---- Allocations ---- */

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
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t size) {
  return fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
  return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *old, size_t size) {
  return fails() ? NULL : __real_realloc(old, size);
}
char *__wrap_strdup(const char *text) {
  return fails() ? NULL : __real_strdup(text);
}

static void arm(uint64_t at, bool ever) {
  atomic_store(&requested, 0);
  atomic_store(&failed, 0);
  atomic_store(&fails_at, at);
  atomic_store(&for_ever, ever);
  atomic_store(&armed, true);
}

/* How many failed. */
static uint64_t disarm(void) {
  atomic_store(&armed, false);
  return atomic_load(&failed);
}

/* ---- The loop ---- */

enum { TTL_MS = 200, HANG_S = 60 };
static const char *const names[] = {"a", "b", "c"};

static void hung(int number) {
  (void)number;
  static const char text[] = "it hangs\n";
  if (write(2, text, sizeof text - 1) > 0) abort();
}

/* Nothing remains: each name can be acquired again, once. */
static void names_are_free(void) {
  dibs_store *store = open_store();
  for (int i = 0; i < 3; i++) {
    dibs_lease *lease = take(store, names[i], .wait_ms = LONG_MS);
    dibs_store *other = open_store();
    assert_int_equal(send_request(other, names[i]), DIBS_HELD);
    close_store(other);
    give(lease);
  }
  close_store(store);
}

/* Runs the scene with the first, second, ... allocation failing, until no allocation fails. */
static void fail_each(void (*scene)(void)) {
  signal(SIGALRM, hung);
  for (int ever = 0; ever < 2; ever++) {
    uint64_t at = 1, struck = 1;
    for (; struck > 0; at++) {
      alarm(HANG_S);
      arm(at, ever);
      scene();
      struck = disarm();
      names_are_free();
    }
    print_message("%llu allocations, failing %s\n", (unsigned long long)at - 2, ever ? "for ever" : "once");
    assert_true(at > 2);
  }
  alarm(0);
}

/* ---- Scenes ---- */

static dibs_status expect(dibs_status status, dibs_status fine) {
  if (status != fine && status != DIBS_NO_MEMORY && status != DIBS_UNAVAILABLE)
    fail_msg("%s", dibs_status_name(status));
  return status;
}

/* The library needs no memory for a release; a driver that must connect may, and then the lease ends with its ttl. */
static void release_quietly(dibs_lease *lease) {
  dibs_status status = dibs_release(lease, NULL);
  if (status != DIBS_LOST) expect(status, DIBS_OK);
}

static dibs_store *open_quietly(uint32_t flags) {
  dibs_store_options o = {.size = sizeof o, .flags = flags};
  dibs_store *store = NULL;
  dibs_error error;
  dibs_status status = dibs_open(case_uri(), &o, &store, &error);
  expect(status, DIBS_OK);
  assert_int_equal(status == DIBS_OK, store != NULL);
  assert_int_equal(error.status, status);
  if (status != DIBS_OK) assert_true(error.text[0] != '\0');
  return store;
}

static dibs_lease *take_quietly(dibs_store *store, const char *name, options how) {
  dibs_lease *lease = NULL;
  dibs_error error;
  how.size = sizeof how;
  if (how.ttl_ms == 0) how.ttl_ms = TTL_MS;
  dibs_status status = dibs_acquire(store, name, &how, &lease, &error);
  if (status != DIBS_HELD && status != DIBS_TIMEOUT) expect(status, DIBS_OK);
  assert_int_equal(status == DIBS_OK, lease != NULL);
  assert_int_equal(error.status, status);
  return lease;
}

static void take_renew_release(void) {
  dibs_store *store = open_quietly(0);
  if (!store) return;
  struct told told = {.calls = 0};
  dibs_lease *lease = take_quietly(store, "a", HOW(.on_lost = count_loss, .user = &told, .owner = "somebody"));
  if (lease) {
    assert_int_equal(dibs_lease_alive(lease), 1);
    expect(dibs_renew(lease, 0, NULL), DIBS_OK);
    release_quietly(lease);
    dibs_lease_free(lease);
  }
  lease = take_quietly(store, "b", HOW(.mode = DIBS_COUNTED, .slots = 2));
  dibs_lease_free(lease);
  lease = take_quietly(store, "c", HOW());
  dibs_close(store); /* also releases it */
  dibs_lease_free(lease);
}

static void wait_and_complete_later(uint32_t flags) {
  dibs_store *one = open_quietly(0), *two = open_quietly(flags);
  dibs_lease *lease = one ? take_quietly(one, "a", HOW(.ttl_ms = TTL_MS)) : NULL;
  struct later line[3];
  bool started[3] = {false};
  for (int i = 0; i < 3 && two; i++) {
    options how = HOW(.wait_ms = i == 2 ? 50 : LONG_MS, .ttl_ms = TTL_MS);
    line[i] = (struct later){.status = -1};
    dibs_status status = dibs_acquire_start(two, "a", &how, later_done, &line[i], &line[i].lease, NULL);
    started[i] = expect(status, DIBS_OK) == DIBS_OK;
    assert_int_equal(started[i], line[i].lease != NULL);
  }
  if (two && started[1]) dibs_acquire_cancel(line[1].lease);
  if (lease) release_quietly(lease);
  dibs_lease_free(lease);
  for (int i = 0; i < 3; i++) {
    if (!two || !started[i]) continue;
    while (line[i].calls == 0) { /* exactly once, for every failing allocation */
      dibs_dispatch(two, 0);
      dibs__nap_ms(1);
    }
    assert_int_equal(line[i].calls, 1);
    if (line[i].status == DIBS_OK) {
      dibs_status status = dibs_release_start(line[i].lease, NULL, NULL, NULL);
      assert_true(status == DIBS_OK || status == DIBS_LOST);
    }
    dibs_lease_free(line[i].lease);
  }
  dibs_close(two);
  dibs_close(one);
}

static void wait_with_a_thread_for_callbacks(void) {
  wait_and_complete_later(0);
}
static void wait_with_an_event_loop(void) {
  wait_and_complete_later(DIBS_STORE_LOOP);
}

static int keep_listing(const dibs_lease_info *info, void *user) {
  (void)info, (void)user;
  return 0;
}

static void look_and_break(void) {
  dibs_store *store = open_quietly(0);
  if (!store) return;
  dibs_lease *lease = take_quietly(store, "a", HOW());
  expect(dibs_list(store, NULL, keep_listing, NULL, NULL), DIBS_OK);
  dibs_status status = dibs_show(store, "a", keep_listing, NULL, NULL);
  if (status != DIBS_NOT_FOUND || lease) expect(status, DIBS_OK);
  status = dibs_break(store, "a", NULL, NULL);
  if (status != DIBS_NOT_FOUND || lease) expect(status, DIBS_OK);
  dibs_lease_free(lease);
  dibs_close(store);
}

static void ended(dibs_status status, const dibs_error *error, void *user) {
  assert_int_equal(error->status, status);
  atomic_fetch_add((_Atomic uint32_t *)user, 1);
}

/* Each that began is called back once. */
static void look_break_and_renew_later(uint32_t flags) {
  dibs_store *store = open_quietly(flags);
  if (!store) return;
  dibs_lease *lease = take_quietly(store, "a", HOW(.ttl_ms = TTL_MS));
  struct later renewed = {.status = -1};
  _Atomic uint32_t calls = 0;
  uint32_t begun = 0;
  if (lease) {
    dibs_status status = dibs_renew_start(lease, 0, later_done, &renewed, NULL);
    bool begins = expect(status, DIBS_OK) == DIBS_OK;
    begun += expect(dibs_show_start(store, "a", keep_listing, ended, &calls, NULL), DIBS_OK) == DIBS_OK;
    begun += expect(dibs_break_start(store, "other", NULL, ended, &calls, NULL), DIBS_OK) == DIBS_OK;
    while (renewed.calls < begins || calls < begun) {
      dibs_dispatch(store, 0);
      dibs__nap_ms(1);
    }
    expect(dibs_release_after(lease, DIBS_TTL_MIN_MS, NULL), DIBS_OK);
    dibs_lease_free(lease);
  }
  dibs_close(store);
  assert_int_equal(calls, begun);
}

static void complete_later_with_threads(void) {
  look_break_and_renew_later(0);
}
static void complete_later_with_an_event_loop(void) {
  look_break_and_renew_later(DIBS_STORE_LOOP);
}

static void seal_and_save(void) {
  dibs_store *store = open_quietly(0);
  dibs_lease *lease = store ? take_quietly(store, "a", HOW()) : NULL;
  char *data = NULL;
  size_t length;
  if (lease) {
    expect(record_seal(store, "r", lease, &data, &length, NULL), DIBS_OK);
    free(data);
    dibs_status saved = record_save(store, "r", lease, "text", 4, NULL);
    expect(saved, DIBS_OK);
    dibs_status status = record_load(store, "r", &data, &length, NULL, NULL);
    if (status != DIBS_NOT_FOUND || saved == DIBS_OK) expect(status, DIBS_OK);
    if (status == DIBS_OK && saved == DIBS_OK) assert_string_equal(data, "text");
    free(data);
  }
  dibs_lease_free(lease);
  dibs_close(store);
}

/* A table that exists in every SQL store, used as a user's table. */
static void in_a_table(dibs_store *store) {
  dibs_table_options columns = {.size = sizeof columns, .table = "dibs_stock", .key = "name", .columns = "used, most"};
  dibs_table *table = NULL;
  dibs_record *record = NULL;
  const dibs_value values[] = {{"1", 1}, {"5", 1}};
  if (expect(dibs_table_declare(&columns, &table, NULL), DIBS_OK) != DIBS_OK) return;
  dibs_record_options o = {.size = sizeof o, .table = table, .flags = DIBS_UNCHECKED};
  dibs_status status = dibs_record_remove(store, "s", &o, NULL, NULL);
  if (status != DIBS_NOT_FOUND) expect(status, DIBS_OK);
  o.flags = DIBS_IF_ABSENT;
  dibs_status made = dibs_record_put(store, "s", values, 2, &o, NULL, NULL);
  if (made != DIBS_CONFLICT || status == DIBS_OK || status == DIBS_NOT_FOUND) expect(made, DIBS_OK);
  o.flags = 0;
  status = dibs_record_get(store, "s", &o, &record, NULL);
  if (status != DIBS_NOT_FOUND || made == DIBS_OK) expect(status, DIBS_OK);
  if (record) assert_string_equal(record->values[1].data, "5");
  dibs_record_free(record);
  dibs_table_free(table);
}

static void put_by_version(void) {
  dibs_store *store = open_quietly(0);
  dibs_record *record = NULL;
  const dibs_value text = {"text", 4};
  if (store) {
    dibs_record_options o = {.size = sizeof o, .flags = DIBS_UNCHECKED};
    dibs_status put = expect(dibs_record_put(store, "v", &text, 1, &o, NULL, NULL), DIBS_OK);
    dibs_status got = dibs_record_get(store, "v", NULL, &record, NULL);
    if (got != DIBS_NOT_FOUND || put == DIBS_OK) expect(got, DIBS_OK);
    o = (dibs_record_options){.size = sizeof o, .if_version = record ? record->version : "0"};
    if (record) expect(dibs_record_remove(store, "v", &o, NULL, NULL), DIBS_OK);
    dibs_record_free(record);
    if (!case_in_memory()) in_a_table(store);
  }
  dibs_close(store);
}

static void many_and_adopted(void) {
  dibs_store *store = open_quietly(0);
  if (!store) return;
  dibs_lease *leases[3], *adopted = NULL;
  options how = HOW(.ttl_ms = TTL_MS);
  char id[33];
  if (expect(dibs_acquire_many(store, names, 3, &how, leases, NULL), DIBS_OK) == DIBS_OK) {
    for (int i = 0; i < 3; i++) assert_int_equal(dibs_lease_alive(leases[i]), 1);
    assert_int_equal(dibs_lease_id(leases[0], id, NULL), DIBS_OK);
    uint64_t fence = dibs_lease_fence(leases[0]).value;
    assert_int_equal(dibs_lease_detach(leases[0], NULL), DIBS_OK);
    if (expect(dibs_lease_adopt(store, "a", id, (dibs_fence){fence}, NULL, &adopted, NULL), DIBS_OK) == DIBS_OK)
      expect(dibs_renew(adopted, 0, NULL), DIBS_OK);
    dibs_lease_free(adopted);
    for (int i = 0; i < 3; i++) dibs_lease_free(leases[i]);
  }
  dibs_close(store);
}

/* A thread waits before allocations fail. */
static void thread_waits(void) {
  dibs_store *one = open_quietly(0), *two = open_quietly(0);
  if (one && two) {
    dibs_lease *lease = take_quietly(one, "a", HOW(.ttl_ms = TTL_MS));
    struct caller near, server;
    caller_start(&near, one, "a", HOW(.wait_ms = LONG_MS, .ttl_ms = TTL_MS));
    caller_start(&server, two, "a", HOW(.wait_ms = LONG_MS, .ttl_ms = TTL_MS));
    dibs__nap_ms(5); /* whether they already wait or not */
    if (lease) release_quietly(lease);
    dibs_lease_free(lease);
    struct caller *callers[] = {&near, &server};
    for (int done = 0; done < 2;) {
      for (int i = 0; i < 2; i++) {
        if (!callers[i] || callers[i]->over == 0) continue;
        if (expect(caller_join(callers[i]), DIBS_OK) == DIBS_OK) release_quietly(callers[i]->lease);
        dibs_lease_free(callers[i]->lease);
        callers[i] = NULL;
        done++;
      }
      dibs__nap_ms(1);
    }
  }
  dibs_close(one);
  dibs_close(two);
}

#define SCENE(scene)                                                                                                   \
  static void scene##_without_memory(void **state) {                                                                   \
    (void)state;                                                                                                       \
    fail_each(scene);                                                                                                  \
  }
SCENE(take_renew_release)
SCENE(wait_with_a_thread_for_callbacks)
SCENE(wait_with_an_event_loop)
SCENE(look_and_break)
SCENE(complete_later_with_threads)
SCENE(complete_later_with_an_event_loop)
SCENE(seal_and_save)
SCENE(put_by_version)
SCENE(many_and_adopted)
SCENE(thread_waits)

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(take_renew_release_without_memory),
      TEST(wait_with_a_thread_for_callbacks_without_memory),
      TEST(wait_with_an_event_loop_without_memory),
      TEST(look_and_break_without_memory),
      TEST(complete_later_with_threads_without_memory),
      TEST(complete_later_with_an_event_loop_without_memory),
      TEST(seal_and_save_without_memory),
      TEST(put_by_version_without_memory),
      TEST(many_and_adopted_without_memory),
      TEST(thread_waits_without_memory),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
