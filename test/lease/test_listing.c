/* SPDX-License-Identifier: MIT */
/* Lists of holders and waiters; fenced records; several names at once. */
#include "drivers/wrap/fault.h"
#include "help.h"
#include "lease/lease_impl.h"
#include "support/records.h"

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

static void show_lists_the_holder_and_the_queue(void **state) {
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
  assert_int_equal(holder->fence.value, dibs_lease_fence(lease).value);
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
    assert_int_equal(waiter->fence.value, 0);
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
    assert_int_equal(view.rows[i].info.fence.value, 0);
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
    uint64_t fence = dibs_lease_fence(lease).value;
    assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
    UNTIL(!dibs_lease_alive(lease));
    dibs_lease_free(lease);
    UNTIL(rows_of(two, "n", DIBS_BREAKING) == 0);
    struct view view = {.count = 0};
    assert_int_equal(dibs_show(two, "n", keep, &view, NULL), DIBS_OK);
    assert_int_equal(view.count, i + 1);
    size_t mine = view.rows[0].info.fence.value == fence ? 0 : view.count - 1;
    assert_int_equal(view.rows[mine].info.state, DIBS_BROKEN);
    assert_int_equal(view.rows[mine].info.fence.value, fence);
    assert_string_equal(view.rows[mine].owner, who[i] ? who[i] : "the store");
    assert_true(view.rows[mine].info.age_ms < LONG_MS);
  }
  struct view view = {.count = 0};
  assert_int_equal(dibs_list(two, NULL, keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 0); /* the name has no holder */
  dibs_close(two);
}

/* ---- Breaks that wait, and a store that fails meanwhile ---- */

struct answer {
  _Atomic int status;
};

static void note_status(dibs_status status, const dibs_error *error, void *user) {
  assert_int_equal(error->status, status);
  ((struct answer *)user)->status = (int)status;
}

static dibs_status break_it(dibs_store *store, bool later, int64_t wait_ms) {
  dibs_break_options how = {.size = sizeof how, .wait_ms = wait_ms};
  struct answer answer = {.status = -1};
  if (!later) return dibs_break(store, "n", &how, NULL);
  assert_int_equal(dibs_break_start(store, "n", &how, note_status, &answer, NULL), DIBS_OK);
  UNTIL(answer.status >= 0);
  return (dibs_status)answer.status;
}

/* The lease is broken before the first listing: a listing that fails does not mean that nothing changed. */
static void a_break_that_took_effect_is_not_called_unavailable(void **state) {
  (void)state;
  dibs_store *faulty = open_uri(shimmed("fault", ""), 0), *two = open_store();
  struct dibs__fault_plan plan = {.on = DIBS__FAULT_LIST, .how = DIBS__FAULT_UNAVAILABLE, .nth = 1};
  for (int later = 0; later < 2; later++) {
    dibs_lease *lease = take(two, "n", .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
    plan.forever = false;
    dibs__fault_arm(&plan);
    assert_int_equal(break_it(faulty, later, LONG_MS), DIBS_OK); /* the ttl has ended */
    assert_true(dibs__fault_calls() > 1);
    dibs_lease_free(lease);
    lease = take(two, "n", .ttl_ms = LONG_MS, .flags = DIBS_NO_RENEW);
    plan.forever = true;
    dibs__fault_arm(&plan);
    assert_int_equal(break_it(faulty, later, 300), DIBS_UNKNOWN);
    dibs__fault_arm(NULL);
    assert_int_equal(rows_of(two, "n", DIBS_BREAKING), 1);
    (void)!dibs_release(lease, NULL);
    dibs_lease_free(lease);
  }
}

/* ---- Functions that are called for each row ---- */

struct nested {
  dibs_store *store;
  uint32_t rows;
  _Atomic uint32_t shown;
};

static void count_shown(dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  assert_int_equal(status, DIBS_OK);
  ((struct nested *)user)->shown++;
}

static int skip_row(const dibs_lease_info *info, void *user) {
  (void)info, (void)user;
  return 0;
}

static int call_anything(const dibs_lease_info *info, void *user) {
  struct nested *nested = user;
  dibs_break_options waits = {.size = sizeof waits, .wait_ms = 50};
  nested->rows++;
  assert_int_equal(rows_of(nested->store, info->name, DIBS_HOLDS), 1);
  assert_int_equal(dibs_list(nested->store, NULL, skip_row, NULL, NULL), DIBS_OK);
  assert_int_equal(dibs_show_start(nested->store, info->name, skip_row, count_shown, nested, NULL), DIBS_OK);
  UNTIL(nested->shown == nested->rows);
  /* The text has the number of slots, which is read from the store. */
  assert_int_equal(send_request(nested->store, info->name, .mode = DIBS_COUNTED, .slots = 3), DIBS_INVALID);
  assert_int_equal(dibs_break(nested->store, info->name, &waits, NULL), DIBS_TIMEOUT);
  return 0;
}

static void a_row_may_lead_to_other_calls(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct nested nested = {.store = two};
  dibs_lease *a = take(one, "a", .mode = DIBS_COUNTED, .slots = 2, .flags = DIBS_NO_RENEW),
             *b = take(one, "b", .mode = DIBS_COUNTED, .slots = 2, .flags = DIBS_NO_RENEW);
  assert_int_equal(dibs_show(two, "a", call_anything, &nested, NULL), DIBS_OK);
  assert_int_equal(nested.rows, 1);
  nested = (struct nested){.store = two};
  assert_int_equal(dibs_list(two, "b", call_anything, &nested, NULL), DIBS_OK);
  assert_int_equal(nested.rows, 1);
  dibs_lease_free(a);
  dibs_lease_free(b);
}

/* ---- Records ---- */

static void save(dibs_store *store, dibs_lease *lease, const char *text) {
  dibs_error error;
  if (record_save(store, "r", lease, text, strlen(text), &error) != DIBS_OK) fail_msg("saving: %s", error.text);
}

static void a_record_refuses_late_writers(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *one = open_store(), *two = open_store();
  char *data = NULL;
  size_t length = 99;
  uint64_t fence = 99;
  assert_int_equal(record_load(one, "r", &data, &length, &fence, NULL), DIBS_NOT_FOUND);
  assert_null(data);
  assert_int_equal(length + fence, 0);
  dibs_lease *late = take(one, "n", .ttl_ms = 300, .flags = DIBS_NO_RENEW);
  assert_int_equal(record_seal(one, "r", late, &data, &length, NULL), DIBS_OK);
  assert_null(data);
  save(one, late, "first");
  dibs_lease *rightful = take(two, "n", .wait_ms = DIBS_FOREVER);
  assert_int_equal(record_seal(two, "r", rightful, &data, &length, NULL), DIBS_OK);
  assert_string_equal(data, "first");
  assert_int_equal(length, 5);
  free(data);
  /* After the seal no older lease can write, although no newer one has written yet. */
  dibs_error error;
  assert_int_equal(record_save(one, "r", late, "late", 4, &error), DIBS_STALE);
  assert_non_null(strstr(error.text, "\"r\""));
  assert_int_equal(record_seal(one, "r", late, &data, &length, NULL), DIBS_LOST);
  save(two, rightful, "second");
  assert_int_equal(record_load(one, "r", &data, &length, &fence, NULL), DIBS_OK);
  assert_string_equal(data, "second");
  assert_int_equal(fence, dibs_lease_fence(rightful).value);
  free(data);
  dibs_lease_free(late);
  /* The lease is released and no newer one has sealed: its write is still the latest. */
  assert_int_equal(dibs_release(rightful, NULL), DIBS_OK);
  save(two, rightful, "third");
  dibs_lease_free(rightful);
}

/* The fence alone is not enough: the lease must match, too. */
static void record_refuses_the_same_fence_of_another_lease(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n"), *forged = NULL;
  save(store, lease, "mine");
  assert_int_equal(
      dibs_lease_adopt(store, "n", "00112233445566778899aabbccddeeff", dibs_lease_fence(lease), NULL, &forged, NULL),
      DIBS_OK);
  assert_int_equal(record_save(store, "r", forged, "forged", 6, NULL), DIBS_STALE);
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
  assert_int_equal(record_seal(store, "r", shared, &data, &length, NULL), DIBS_INVALID);
  assert_int_equal(record_save(store, "r", shared, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(record_save(store, "r", NULL, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(record_save(store, "", lease, "x", 1, NULL), DIBS_INVALID);
  assert_int_equal(record_save(store, "r", lease, NULL, 1, NULL), DIBS_INVALID);
  assert_int_equal(dibs_record_get(store, "r", NULL, NULL, NULL), DIBS_INVALID);
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  memset(big, 'x', DIBS_RECORD_MAX + 1);
  assert_int_equal(record_save(store, "r", lease, big, DIBS_RECORD_MAX + 1, NULL), DIBS_INVALID);
  big[77] = '\0';
  assert_int_equal(record_save(store, "r", lease, big, DIBS_RECORD_MAX, NULL), DIBS_OK);
  assert_int_equal(record_load(store, "r", &data, &length, NULL, NULL), DIBS_OK);
  assert_int_equal(length, DIBS_RECORD_MAX);
  assert_memory_equal(data, big, DIBS_RECORD_MAX);
  assert_int_equal(data[length], '\0');
  free(data);
  free(big);
  assert_int_equal(record_save(store, "r", lease, "", 0, NULL), DIBS_OK);
  assert_int_equal(record_load(store, "r", &data, &length, NULL, NULL), DIBS_OK);
  assert_non_null(data);
  assert_int_equal(length, 0);
  free(data);
  give(shared);
  give(lease);
}

/* ---- Several names at once ---- */

static void several_names_are_acquired_all_or_none(void **state) {
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
  held = take(two, "c"); /* the last name in sorted order */
  assert_int_equal(dibs_acquire_many(one, names, 3, &how, leases, NULL), DIBS_HELD);
  for (int i = 0; i < 3; i++) assert_null(leases[i]);
  assert_int_equal(send_request(two, "a"), DIBS_OK);
  assert_int_equal(send_request(two, "b"), DIBS_OK);
  how.wait_ms = 200;
  dibs__tick began = dibs__tick_now();
  dibs_error error;
  assert_int_equal(dibs_acquire_many(one, names, 3, &how, leases, &error), DIBS_TIMEOUT);
  assert_int_equal(error.status, DIBS_TIMEOUT);
  assert_true(ms_since(began) >= 200 && ms_since(began) < LONG_MS / 3);
  assert_int_equal(send_request(two, "a"), DIBS_OK);
  give(held);
}

static void several_names_are_checked_before_any_is_acquired(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  const char *const twice[] = {"b", "a", "b"}, *const hole[] = {"a", NULL};
  dibs_lease *leases[3], *held = take(two, "a");
  options how = HOW(.wait_ms = DIBS_FOREVER);
  dibs_error error;
  /* It would wait for "a" for ever if it checked the names later. */
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
  _Atomic int *at_table; /* the philosopher with all forks */
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

struct line {
  uint32_t waiters, ahead[8];
  char owners[8][16];
};

static int sees_queue(const dibs_lease_info *info, void *user) {
  struct line *line = user;
  if (info->state != DIBS_WAITS) return 0;
  assert_true(line->waiters < 8);
  line->ahead[line->waiters] = info->ahead;
  snprintf(line->owners[line->waiters++], sizeof line->owners[0], "%s", info->owner);
  return 0;
}

/* A waiter for a lease of its own process is not in the store's queue; its process lists it nevertheless. */
static void waiters_of_the_holders_process_are_listed(void **state) {
  (void)state;
  dibs_store *store = open_store();
  struct later later[3];
  dibs_lease *held = take(store, "n"), *other = take(store, "a");
  const char *owners[] = {"first", "second", "third"};
  for (int i = 0; i < 3; i++) {
    later_start(&later[i], store, "n", HOW(.wait_ms = LONG_MS, .owner = owners[i]));
    UNTIL(rows_of(store, "n", DIBS_WAITS) == (uint32_t)i + 1);
  }
  for (int how = 0; how < 2; how++) {
    struct line line = {0};
    dibs_status status =
        how ? dibs_list(store, "", sees_queue, &line, NULL) : dibs_show(store, "n", sees_queue, &line, NULL);
    assert_int_equal(status, DIBS_OK);
    assert_int_equal(line.waiters, 3);
    for (uint32_t i = 0; i < 3; i++) {
      assert_int_equal(line.ahead[i], i);
      assert_string_equal(line.owners[i], owners[i]);
    }
  }
  struct line line = {0};
  assert_int_equal(dibs_list(store, "a", sees_queue, &line, NULL), DIBS_OK);
  assert_int_equal(line.waiters, 0);
  give(held);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(later_wait(&later[i]), DIBS_OK);
    assert_int_equal(rows_of(store, "n", DIBS_WAITS), 2 - (uint32_t)i);
    give(later[i].lease);
  }
  give(other);
}

/* ---- Queues of other processes ---- */

enum { IN_LINE = 3, CALLERS = 40, SHOWN_OLD_MS = 1000 };

static int64_t youngest_of(const struct view *view) {
  int64_t least = INT64_MAX;
  for (size_t i = 0; i < view->count; i++)
    if (view->rows[i].info.state == DIBS_WAITS && view->rows[i].info.age_ms < least) least = view->rows[i].info.age_ms;
  return least;
}

/* A hand-off within the process must not hide them: each handle acts as another process. */
static void waiters_in_the_queue_of_another_process_are_listed(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *holds = open_store(), *looks = open_store();
  static const char *const owners[IN_LINE] = {"Mary", "Grace Hopper", "Edith"};
  struct later later[IN_LINE], brief;
  dibs_lease *held = take(holds, "n/1", .ttl_ms = 20000), *other = take(holds, "m");
  for (int i = 0; i < IN_LINE; i++)
    later_start(&later[i], holds, "n/1", HOW(.wait_ms = LONG_MS, .owner = owners[i], .ttl_ms = 7000 + i));
  later_start(&brief, holds, "n/1", HOW(.wait_ms = 3 * SHOWN_OLD_MS));
  UNTIL(rows_of(looks, "n/1", DIBS_WAITS) == IN_LINE + 1);
  for (int how = 0; how < 2; how++) {
    struct view view = {.count = 0};
    assert_int_equal(how ? dibs_list(looks, "n", keep, &view, NULL) : dibs_show(looks, "n/1", keep, &view, NULL),
                     DIBS_OK);
    assert_int_equal(view.count, 1 + IN_LINE + 1);
    assert_int_equal(view.rows[0].info.state, DIBS_HOLDS);
    for (uint32_t i = 0; i < IN_LINE; i++) {
      const dibs_lease_info *waiter = &view.rows[1 + i].info;
      assert_string_equal(view.rows[1 + i].name, "n/1");
      assert_string_equal(view.rows[1 + i].owner, owners[i]);
      assert_int_equal(waiter->state, DIBS_WAITS);
      assert_int_equal(waiter->mode, DIBS_EXCLUSIVE);
      assert_int_equal(waiter->ahead, i);
      assert_int_equal(waiter->ttl_ms, 7000 + i);
      assert_int_equal(waiter->fence.value, 0);
      assert_in_range(waiter->age_ms, SHOWN_OLD_MS - 100, LONG_MS);
    }
    assert_string_equal(view.rows[1 + IN_LINE].owner, view.rows[0].owner);
    assert_int_equal(view.rows[1 + IN_LINE].info.ahead, IN_LINE);
  }
  assert_int_equal(rows_of(looks, "m", DIBS_WAITS), 0);
  assert_int_equal(rows_of(holds, "n/1", DIBS_WAITS), IN_LINE + 1); /* not twice: a handle knows its own waiters */
  assert_int_equal(later_wait(&brief), DIBS_TIMEOUT);
  UNTIL(rows_of(looks, "n/1", DIBS_WAITS) == IN_LINE);
  dibs_lease_free(brief.lease);
  give(held);
  for (int i = 0; i < IN_LINE; i++) {
    assert_int_equal(later_wait(&later[i]), DIBS_OK);
    give(later[i].lease);
  }
  UNTIL(rows_of(looks, "n/1", DIBS_WAITS) == 0);
  give(other);
}

/* All are counted; the ages of the oldest are known. */
static void a_long_queue_of_another_process_is_counted(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *holds = open_store(), *looks = open_store();
  struct later later[CALLERS], second;
  dibs_lease *held = take(holds, "n"), *also = take(holds, "o");
  for (int i = 0; i < CALLERS; i++) later_start(&later[i], holds, "n", HOW(.wait_ms = LONG_MS));
  later_start(&second, holds, "o", HOW(.wait_ms = LONG_MS));
  UNTIL(rows_of(looks, "n", DIBS_WAITS) == CALLERS);
  UNTIL(rows_of(looks, "o", DIBS_WAITS) == 1);
  struct view view = {.count = 0};
  assert_int_equal(dibs_list(looks, NULL, keep, &view, NULL), DIBS_OK);
  assert_int_equal(view.count, 1 + CALLERS + 2);
  assert_int_equal(view.rows[CALLERS].info.ahead, CALLERS - 1);
  assert_true(view.rows[1].info.age_ms > 0);
  assert_int_equal(youngest_of(&view), -1); /* not known for later ones */
  assert_int_equal(view.rows[CALLERS].info.age_ms, -1);
  assert_string_equal(view.rows[CALLERS].owner, view.rows[0].owner);
  close_store(holds); /* removes the published report, and ends all waits */
  assert_int_equal(rows_of(looks, "n", DIBS_WAITS) + rows_of(looks, "o", DIBS_WAITS), 0);
  for (int i = 0; i < CALLERS; i++) {
    assert_int_equal(later_wait(&later[i]), DIBS_CANCELLED);
    dibs_lease_free(later[i].lease);
  }
  assert_int_equal(later_wait(&second), DIBS_CANCELLED);
  dibs_lease_free(second.lease);
  dibs_lease_free(held);
  dibs_lease_free(also);
}

/* A name that is handed on quickly always has a queue, and no report of it goes to the store. */
static void a_moving_queue_is_not_published(void **state) {
  (void)state;
  dibs_store *store = open_store(), *looks = open_store();
  struct later later[2];
  dibs_lease *held = take(store, "n");
  dibs__tick began = dibs__tick_now();
  for (int i = 0; ms_since(began) < 2 * SHOWN_OLD_MS; i = !i) {
    later_start(&later[i], store, "n", HOW(.wait_ms = LONG_MS));
    dibs__nap_ms(20);
    assert_int_equal(rows_of(looks, "n", DIBS_WAITS), 0);
    give(held);
    assert_int_equal(later_wait(&later[i]), DIBS_OK);
    held = later[i].lease;
  }
  give(held);
}

struct post {
  struct dibs__report_op op; /* first */
  dibs__word answered;
};

static void posted(struct dibs__op *op) {
  atomic_store(&((struct post *)op)->answered, 1);
}

/* A report of another process about its queues, or of another version of dibs. */
static void post(dibs_store *store, const char *text, size_t len) {
  struct post *post = calloc(1, sizeof *post);
  assert_non_null(post);
  post->op.id.b[0] = 1;
  post->op.data = dibs__str_of(text, len);
  post->op.keep_ms = DIBS__REPORT_KEEP_MS;
  dibs__core_head(store->core, &post->op.op, DIBS__FAM_REPORT, DIBS__REPORT_PUT, 0, 0, posted);
  assert_true(dibs__core_run(store->core, &post->op.op, dibs__tick_add_ms(dibs__tick_now(), LONG_MS)));
  assert_true(atomic_load(&post->answered));
  assert_int_equal(post->op.op.status, DIBS_OK);
  free(post);
}

/* A reader skips a malformed report up to its end; it neither crashes nor invents waiters. */
static void reports_about_queues_are_validated(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  static const struct {
    const char *text;
    uint32_t n, m; /* waiters listed of each name */
  } reported[] = {
      {"L1\nn\n2\nAda\n9 8\n7 6 Mary Ann\n\nm\n1\nAda\n5 5\n\n", 2, 1},
      {"L1\nn\n5\nAda\n9 8\n\n", 5, 0},
      {"L1\nn\n1\nAda\n9 8\n9 8\n9 8\n\n", 3, 0}, /* more than the count */
      {"L1\nn\n0\nAda\n\n", 0, 0},
      {"", 0, 0},
      {"L1\n", 0, 0},
      {"L2\nn\n2\nAda\n9 8\n\n", 0, 0},
      {"1 a-wc 12 Ada", 0, 0},
      {"L1\nn\n2\nAda\n9 8\n", 1, 0}, /* truncated: the complete part */
      {"L1\nn\n2\nAda", 0, 0},
      {"L1\nn\n2\n", 0, 0},
      {"L1\n\n2\nAda\n9 8\n\nn\n1\nAda\n9 8\n\n", 0, 0},
      {"L1\nn\nx\nAda\n9 8\n\n", 0, 0},
      {"L1\nn\n-2\nAda\n9 8\n\n", 0, 0},
      {"L1\nn\n2x\nAda\n9 8\n\n", 0, 0},
      {"L1\nn\n2\n\n9 8\n\n", 0, 0},
      {"L1\nn\n2\nA\x01\n9 8\n\n", 0, 0},
      {"L1\nn\xff\n2\nAda\n9 8\n\n", 0, 0},
      {"L1\nn\n2\nAda\n9\n\n", 0, 0},
      {"L1\nn\n2\nAda\n9 8 \n\n", 0, 0},
      {"L1\nn\n2\nAda\n9 8x\n\n", 0, 0},
      {"L1\nn\n2\nAda\n9999999999999999999999 8\n\n", 0, 0},
      {"L1\nm\n1\nAda\n9 8\n\nn\n?\nAda\n9 8\n\n", 0, 1},
  };
  dibs_store *one = open_store(), *two = open_store();
  for (size_t i = 0; i < sizeof reported / sizeof *reported; i++) {
    post(one, reported[i].text, strlen(reported[i].text));
    assert_int_equal(rows_of(two, "n", DIBS_WAITS), reported[i].n);
    assert_int_equal(rows_of(two, "m", DIBS_WAITS), reported[i].m);
  }
  static const char with_nul[] = "L1\nn\n1\nAda\n9 8 a\0b\n\n";
  post(one, with_nul, sizeof with_nul - 1);
  struct view view = {.count = 0};
  (void)!dibs_show(two, "n", keep, &view, NULL);
  assert_true(view.count <= 1);
  char *most = strdup("L1\nn\n999999999999\nAda\n9 8\n\n");
  assert_non_null(most);
  post(one, most, strlen(most));
  free(most);
  assert_in_range(rows_of(two, "n", DIBS_WAITS), 1, 100000); /* within the bound */
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(waiters_of_the_holders_process_are_listed),
      TEST(waiters_in_the_queue_of_another_process_are_listed),
      TEST(a_long_queue_of_another_process_is_counted),
      TEST(a_moving_queue_is_not_published),
      TEST(reports_about_queues_are_validated),
      TEST(show_lists_the_holder_and_the_queue),
      TEST(list_is_sorted_and_filtered),
      TEST(breaks_are_recorded),
      TEST(a_break_that_took_effect_is_not_called_unavailable),
      TEST(a_row_may_lead_to_other_calls),
      TEST(a_record_refuses_late_writers),
      TEST(record_refuses_the_same_fence_of_another_lease),
      TEST(record_takes_an_exclusive_lease_and_a_bounded_text),
      TEST(several_names_are_acquired_all_or_none),
      TEST(several_names_are_checked_before_any_is_acquired),
      TEST(opposite_orders_do_not_deadlock),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
