/* SPDX-License-Identifier: MIT */
/* Looking at who holds and waits; fenced records; several names at once. */
#include "help.h"

#include <stdio.h>
#include <unistd.h>

/* ---- List and show ---- */

struct seen {
  char name[64], owner[64];
  dibs_lease_info info;
};
struct view {
  struct seen rows[64];
  size_t count, stop_at;
};

static int keep(const dibs_lease_info *info, void *user) {
  struct view *view = user;
  assert_true(view->count < 64);
  assert_int_equal(info->size, sizeof *info);
  struct seen *seen = &view->rows[view->count++];
  snprintf(seen->name, sizeof seen->name, "%s", info->name);
  snprintf(seen->owner, sizeof seen->owner, "%s", info->owner);
  seen->info = *info;
  return view->count == view->stop_at;
}

static void show_tells_of_holder_and_line(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later line[2];
  dibs_lease *lease = take(one, "n", .owner = "Ada", .ttl_ms = 20000);
  for (uint32_t i = 0; i < 2; i++) {
    later_start(&line[i], i ? two : open_store(), "n",
                HOW(.owner = i ? "Grace" : "Mary", .mode = i ? DIBS_SHARED : DIBS_EXCLUSIVE, .wait_ms = DIBS_FOREVER));
    UNTIL(rows_of(two, "n", DIBS_WAITS) == i + 1);
  }
  struct view view = {.count = 0};
  assert_int_equal(dibs_show(two, "n", keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 3);
  const dibs_lease_info *holder = &view.rows[0].info;
  assert_string_equal(view.rows[0].name, "n");
  assert_string_equal(view.rows[0].owner, "Ada");
  assert_int_equal(holder->state, DIBS_HOLDS);
  assert_int_equal(holder->mode, DIBS_EXCLUSIVE);
  assert_int_equal(holder->fence, dibs_lease_fence(lease));
  assert_int_equal(holder->ttl_ms, 20000);
  assert_true(holder->left_ms > 0 && holder->left_ms <= 20000);
  assert_true(holder->age_ms >= 0 && holder->age_ms < LONG_MS);
  assert_true(holder->pid == 0 || holder->pid == (uint32_t)getpid());
  for (uint32_t i = 0; i < 2; i++) {
    const dibs_lease_info *waiter = &view.rows[i + 1].info;
    assert_string_equal(view.rows[i + 1].owner, i ? "Grace" : "Mary");
    assert_int_equal(waiter->state, DIBS_WAITS);
    assert_int_equal(waiter->mode, i ? DIBS_SHARED : DIBS_EXCLUSIVE);
    assert_int_equal(waiter->ahead, i);
    assert_int_equal(waiter->fence, 0);
  }
  assert_int_equal(dibs_show(one, "nobody", keep, &view, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_show(one, "", keep, &view, NULL), DIBS_INVALID);
  assert_int_equal(dibs_show(one, "n", NULL, NULL, NULL), DIBS_INVALID);
  give(lease);
  assert_int_equal(later_wait(&line[0]), DIBS_OK);
  give(line[0].lease);
  assert_int_equal(later_wait(&line[1]), DIBS_OK);
  give(line[1].lease);
}

static void list_is_sorted_and_filtered(void **state) {
  (void)state;
  static const char *const names[] = {"b/2", "a", "b/1", "c", "b/10"};
  static const char *const sorted[] = {"b/1", "b/10", "b/2"};
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *leases[5];
  for (int i = 0; i < 5; i++) leases[i] = take(one, names[i], .mode = DIBS_COUNTED, .slots = 2);
  struct view view = {.count = 0};
  assert_int_equal(dibs_list(two, "b/", keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 3);
  for (int i = 0; i < 3; i++) {
    assert_string_equal(view.rows[i].name, sorted[i]);
    assert_int_equal(view.rows[i].info.slots, 2);
    assert_int_equal(view.rows[i].info.fence, 0);
  }
  view.count = 0;
  assert_int_equal(dibs_list(two, NULL, keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 5);
  view = (struct view){.stop_at = 2};
  assert_int_equal(dibs_list(two, NULL, keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 2);
  view = (struct view){.count = 0};
  assert_int_equal(dibs_list(two, "zzz", keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 0);
  for (int i = 0; i < 5; i++) give(leases[i]);
}

static void breaks_are_recorded(void **state) {
  (void)state;
  dibs_store_options so = {.size = sizeof so, .owner = "the store"};
  dibs_store *one = open_store(), *two = NULL;
  assert_int_equal(dibs_open(case_uri(), &so, &two, NULL), DIBS_OK);
  static const char *const who[] = {"an admin", NULL};
  for (int i = 0; i < 2; i++) {
    dibs_lease *lease = take(one, "n", .owner = "Ada");
    dibs_break_options bo = {.size = sizeof bo, .flags = i ? DIBS_BREAK_NOW : 0, .who = who[i]};
    uint64_t fence = dibs_lease_fence(lease);
    assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
    UNTIL(!dibs_lease_alive(lease));
    dibs_lease_free(lease);
    UNTIL(rows_of(two, "n", DIBS_BREAKING) == 0);
    struct view view = {.count = 0};
    assert_int_equal(dibs_show(two, "n", keep, &view, NULL), DIBS_OK);
    assert_int_equal(view.count, i + 1);
    size_t mine = view.rows[0].info.fence == fence ? 0 : view.count - 1;
    assert_int_equal(view.rows[mine].info.state, DIBS_BROKEN);
    assert_int_equal(view.rows[mine].info.fence, fence);
    assert_string_equal(view.rows[mine].owner, who[i] ? who[i] : "the store");
    assert_true(view.rows[mine].info.age_ms < LONG_MS);
  }
  struct view view = {.count = 0};
  assert_int_equal(dibs_list(two, NULL, keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 0); /* nobody is there */
  dibs_close(two);
}

/* ---- Records ---- */

static void save(dibs_store *store, dibs_lease *lease, const char *text) {
  dibs_error error;
  if (dibs_record_save(store, "r", lease, text, strlen(text), &error) != DIBS_OK) fail_msg("saving: %s", error.text);
}

static void record_refuses_who_is_late(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *one = open_store(), *two = open_store();
  char *data = NULL;
  size_t length = 99;
  uint64_t fence = 99;
  assert_int_equal(dibs_record_load(one, "r", &data, &length, &fence, NULL), DIBS_NOT_FOUND);
  assert_null(data);
  assert_int_equal(length + fence, 0);
  dibs_lease *late = take(one, "n", .ttl_ms = 300, .flags = DIBS_NO_RENEW);
  assert_int_equal(dibs_record_seal(one, "r", late, &data, &length, NULL), DIBS_OK);
  assert_null(data);
  save(one, late, "first");
  dibs_lease *rightful = take(two, "n", .wait_ms = DIBS_FOREVER);
  assert_int_equal(dibs_record_seal(two, "r", rightful, &data, &length, NULL), DIBS_OK);
  assert_string_equal(data, "first");
  assert_int_equal(length, 5);
  free(data);
  /* Sealed: nothing older can write any more, though nothing newer was written yet. */
  dibs_error error;
  assert_int_equal(dibs_record_save(one, "r", late, "late", 4, &error), DIBS_STALE);
  assert_non_null(strstr(error.text, "\"r\""));
  assert_int_equal(dibs_record_seal(one, "r", late, &data, &length, NULL), DIBS_LOST);
  save(two, rightful, "second");
  assert_int_equal(dibs_record_load(one, "r", &data, &length, &fence, NULL), DIBS_OK);
  assert_string_equal(data, "second");
  assert_int_equal(fence, dibs_lease_fence(rightful));
  free(data);
  dibs_lease_free(late);
  /* Released, and nobody newer has sealed: its write is still the latest. */
  assert_int_equal(dibs_release(rightful, NULL), DIBS_OK);
  save(two, rightful, "third");
  dibs_lease_free(rightful);
}

/* A fence alone is not enough: it must be that lease's. */
static void record_refuses_the_same_fence_of_another_lease(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n"), *forged = NULL;
  save(store, lease, "mine");
  assert_int_equal(
      dibs_lease_adopt(store, "n", "00112233445566778899aabbccddeeff", dibs_lease_fence(lease), NULL, &forged, NULL),
      DIBS_OK);
  assert_int_equal(dibs_record_save(store, "r", forged, "forged", 6, NULL), DIBS_STALE);
  dibs_lease_free(forged);
  give(lease);
}

static void record_takes_an_exclusive_lease_and_a_bounded_text(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *store = open_store();
  char *data = NULL;
  size_t length;
  dibs_lease *shared = take(store, "s", .mode = DIBS_SHARED), *lease = take(store, "n");
  assert_int_equal(dibs_record_seal(store, "r", shared, &data, &length, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_save(store, "r", shared, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_save(store, "r", NULL, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_save(store, "", lease, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_save(store, "r", lease, NULL, 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_seal(store, "r", lease, NULL, &length, NULL), DIBS_INVALID);
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  memset(big, 'x', DIBS_RECORD_MAX + 1);
  assert_int_equal(dibs_record_save(store, "r", lease, big, DIBS_RECORD_MAX + 1, NULL), DIBS_INVALID);
  big[77] = '\0';
  assert_int_equal(dibs_record_save(store, "r", lease, big, DIBS_RECORD_MAX, NULL), DIBS_OK);
  assert_int_equal(dibs_record_load(store, "r", &data, &length, NULL, NULL), DIBS_OK);
  assert_int_equal(length, DIBS_RECORD_MAX);
  assert_memory_equal(data, big, DIBS_RECORD_MAX);
  assert_int_equal(data[length], '\0');
  free(data);
  free(big);
  assert_int_equal(dibs_record_save(store, "r", lease, "", 0, NULL), DIBS_OK);
  assert_int_equal(dibs_record_load(store, "r", &data, &length, NULL, NULL), DIBS_OK);
  assert_non_null(data);
  assert_int_equal(length, 0);
  free(data);
  give(shared);
  give(lease);
}

/* ---- Several names at once ---- */

static void many_are_all_or_none(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  const char *const names[] = {"c", "a", "b"};
  dibs_lease *leases[3], *held;
  options how = HOW(.wait_ms = 0);
  assert_int_equal(dibs_acquire_many(one, names, 3, &how, leases, NULL), DIBS_OK);
  for (int i = 0; i < 3; i++) {
    assert_string_equal(dibs_lease_name(leases[i]), names[i]);
    assert_true(dibs_lease_alive(leases[i]));
    give(leases[i]);
  }
  held = take(two, "c"); /* the last in order */
  assert_int_equal(dibs_acquire_many(one, names, 3, &how, leases, NULL), DIBS_HELD);
  for (int i = 0; i < 3; i++) assert_null(leases[i]);
  assert_int_equal(ask(two, "a"), DIBS_OK);
  assert_int_equal(ask(two, "b"), DIBS_OK);
  how.wait_ms = 200;
  dibs__tick began = dibs__tick_now();
  dibs_error error;
  assert_int_equal(dibs_acquire_many(one, names, 3, &how, leases, &error), DIBS_TIMEOUT);
  assert_int_equal(error.status, DIBS_TIMEOUT);
  assert_true(ms_since(began) >= 200 && ms_since(began) < LONG_MS / 3);
  assert_int_equal(ask(two, "a"), DIBS_OK);
  give(held);
}

static void many_are_checked_before_anything_is_taken(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  const char *const twice[] = {"b", "a", "b"}, *const hole[] = {"a", NULL};
  dibs_lease *leases[3], *held = take(two, "a");
  options how = HOW(.wait_ms = DIBS_FOREVER);
  dibs_error error;
  /* Would wait for "a" for ever if it looked later. */
  assert_int_equal(dibs_acquire_many(one, twice, 3, &how, leases, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "\"b\""));
  for (int i = 0; i < 3; i++) assert_null(leases[i]);
  assert_int_equal(dibs_acquire_many(one, hole, 2, &how, leases, NULL), DIBS_INVALID);
  assert_int_equal(dibs_acquire_many(one, twice, 0, &how, leases, NULL), DIBS_INVALID);
  assert_int_equal(dibs_acquire_many(one, twice, DIBS_MANY_MAX + 1, &how, leases, NULL), DIBS_INVALID);
  assert_int_equal(dibs_acquire_many(one, NULL, 1, &how, leases, NULL), DIBS_INVALID);
  how.id = "00112233445566778899aabbccddeeff";
  assert_int_equal(dibs_acquire_many(one, twice, 2, &how, leases, NULL), DIBS_INVALID);
  how = HOW(.wait_ms = 0);
  how.size = sizeof how + 8;
  assert_int_equal(dibs_acquire_many(one, twice, 2, &how, leases, NULL), DIBS_INVALID);
  give(held);
}

enum { PHILOSOPHERS = 6, DINNERS = 25, FORKS = 4 };

struct philosopher {
  pthread_t thread;
  dibs_store *store;
  bool backwards;
  _Atomic int *at_table; /* who has all forks */
  bool ok;
};

static void *dine(void *arg) {
  struct philosopher *p = arg;
  const char *forth[FORKS] = {"f1", "f2", "f3", "f4"}, *back[FORKS] = {"f4", "f3", "f2", "f1"};
  options how = HOW(.wait_ms = LONG_MS);
  for (int i = 0; i < DINNERS; i++) {
    dibs_lease *forks[FORKS];
    if (dibs_acquire_many(p->store, p->backwards ? back : forth, FORKS, &how, forks, NULL) != DIBS_OK) return NULL;
    bool alone = atomic_fetch_add(p->at_table, 1) == 0;
    atomic_fetch_sub(p->at_table, 1);
    for (int f = 0; f < FORKS; f++) give(forks[f]);
    if (!alone) return NULL;
  }
  p->ok = true;
  return NULL;
}

static void opposite_orders_do_not_deadlock(void **state) {
  (void)state;
  struct philosopher table[PHILOSOPHERS];
  _Atomic int at_table = 0;
  dibs_store *stores[2] = {open_store(), open_store()};
  for (int i = 0; i < PHILOSOPHERS; i++) {
    table[i] = (struct philosopher){.store = stores[i / 2 % 2], .backwards = i % 2, .at_table = &at_table};
    assert_int_equal(pthread_create(&table[i].thread, NULL, dine, &table[i]), 0);
  }
  for (int i = 0; i < PHILOSOPHERS; i++) assert_int_equal(pthread_join(table[i].thread, NULL), 0);
  for (int i = 0; i < PHILOSOPHERS; i++) assert_true(table[i].ok);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(show_tells_of_holder_and_line),
      TEST(list_is_sorted_and_filtered),
      TEST(breaks_are_recorded),
      TEST(record_refuses_who_is_late),
      TEST(record_refuses_the_same_fence_of_another_lease),
      TEST(record_takes_an_exclusive_lease_and_a_bounded_text),
      TEST(many_are_all_or_none),
      TEST(many_are_checked_before_anything_is_taken),
      TEST(opposite_orders_do_not_deadlock),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
