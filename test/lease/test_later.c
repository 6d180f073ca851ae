/* SPDX-License-Identifier: MIT */
/* Calls that complete later: their callbacks, what a callback may do, the user's own loop, and closing. */
#include "help.h"

#include <poll.h>

/* ---- What a callback may do: anything ---- */

struct scene {
  dibs_store *store;
  dibs_lease *inner;
  _Atomic int status;
  _Atomic uint32_t calls;
};

static void finish(struct scene *scene, dibs_status status) {
  atomic_store(&scene->status, (int)status);
  atomic_fetch_add(&scene->calls, 1);
}

static void release_it(dibs_lease *lease, dibs_status status, void *user) {
  finish(user, status == DIBS_OK ? dibs_release(lease, NULL) : status);
}

static void free_it(dibs_lease *lease, dibs_status status, void *user) {
  dibs_lease_free(lease);
  finish(user, status);
}

static void take_another(dibs_lease *lease, dibs_status status, void *user) {
  struct scene *scene = user;
  options how = HOW(.wait_ms = LONG_MS);
  (void)lease, (void)status;
  finish(scene, dibs_acquire(scene->store, "another", &how, &scene->inner, NULL));
}

static void release_lost(dibs_lease *lease, dibs_status status, void *user) {
  assert_int_equal(status, DIBS_LOST);
  finish(user, dibs_release(lease, NULL));
}

static dibs_lease *start(dibs_store *store, const char *name, dibs_lease_fn done, void *user) {
  options how = HOW(.wait_ms = LONG_MS);
  dibs_lease *lease = NULL;
  assert_int_equal(dibs_acquire_start(store, name, &how, done, user, &lease, NULL), DIBS_OK);
  assert_non_null(lease);
  return lease;
}

static void callbacks_may_call_anything(void **state) {
  (void)state;
  struct scene scene = {.store = open_store()};
  dibs_lease *lease = start(scene.store, "n", release_it, &scene);
  UNTIL(scene.calls == 1);
  assert_int_equal(scene.status, DIBS_OK);
  dibs_lease_free(lease);

  start(scene.store, "n", free_it, &scene);
  UNTIL(scene.calls == 2);
  assert_int_equal(ask(scene.store, "n", .wait_ms = LONG_MS), DIBS_OK);

  lease = start(scene.store, "n", take_another, &scene);
  UNTIL(scene.calls == 3);
  assert_int_equal(scene.status, DIBS_OK);
  give(lease);
  give(scene.inner);
}

/* Another callback is not held up for ever by one that waits for what only a third can release. */
static void callback_waits_for_what_a_thread_releases(void **state) {
  (void)state;
  struct scene scene = {.store = open_store()};
  dibs_lease *held = take(scene.store, "another");
  dibs_lease *lease = start(scene.store, "n", take_another, &scene);
  UNTIL(stats_of(scene.store).waiting == 1 && stats_of(scene.store).held == 2);
  give(held);
  UNTIL(scene.calls == 1);
  assert_int_equal(scene.status, DIBS_OK);
  give(lease);
  give(scene.inner);
}

static void lost_one_is_released_by_its_callback(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct scene scene = {.store = one};
  dibs_lease *lease = take(one, "n", .on_lost = release_lost, .user = &scene);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  UNTIL(scene.calls == 1);
  assert_int_equal(scene.status, DIBS_LOST);
  assert_int_equal(ask(two, "n", .wait_ms = LONG_MS), DIBS_OK);
  dibs_lease_free(lease);
}

static void release_completes_later(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later released = {.status = -1};
  dibs_lease *lease = take(one, "n");
  assert_int_equal(dibs_release_start(lease, later_done, &released, NULL), DIBS_OK);
  assert_int_equal(later_wait(&released), DIBS_OK);
  assert_int_equal(ask(two, "n"), DIBS_OK);
  struct later never = {.status = -1};
  assert_int_equal(dibs_release_start(lease, later_done, &never, NULL), DIBS_LOST);
  assert_int_equal(never.calls, 0);
  dibs_lease_free(lease);
  /* The handle may go first. */
  lease = take(one, "n");
  struct later last = {.status = -1};
  assert_int_equal(dibs_release_start(lease, later_done, &last, NULL), DIBS_OK);
  dibs_lease_free(lease);
  assert_int_equal(later_wait(&last), DIBS_OK);
}

static void start_is_refused_at_once_or_not_at_all(void **state) {
  (void)state;
  dibs_store *store = open_store();
  struct later never = {.status = -1};
  dibs_lease *lease = (dibs_lease *)store;
  options how = HOW(.ttl_ms = 1);
  assert_int_equal(dibs_acquire_start(store, "n", &how, later_done, &never, &lease, NULL), DIBS_INVALID);
  assert_null(lease);
  assert_int_equal(dibs_acquire_start(store, "n", NULL, NULL, NULL, &lease, NULL), DIBS_INVALID);
  dibs_lease *held = take(store, "n");
  struct later tried, other;
  later_start(&tried, store, "n", HOW(.wait_ms = 0));
  assert_int_equal(later_wait(&tried), DIBS_HELD);
  dibs_store *two = open_store();
  later_start(&other, two, "n", HOW(.wait_ms = 0));
  assert_int_equal(later_wait(&other), DIBS_HELD);
  assert_int_equal(never.calls, 0);
  dibs_lease_free(tried.lease);
  dibs_lease_free(other.lease);
  give(held);
}

/* Lost before its `done` could be called: it was granted all the same, and the loss is told apart from it. */
static void done_says_granted_also_when_lost_since(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct later granted;
  later_start(&granted, loop, "n", HOW(.ttl_ms = 100, .flags = DIBS_NO_RENEW));
  UNTIL(stats_of(loop).lost == 1);
  assert_int_equal(granted.calls, 0);
  UNTIL(dibs_dispatch(loop, 0) > 0);
  assert_int_equal(later_wait(&granted), DIBS_OK);
  assert_int_equal(dibs_lease_alive(granted.lease), 0);
  dibs_lease_free(granted.lease);
}

/* ---- The user's own loop ---- */

static bool readable(dibs_store *store, int wait_ms) {
  struct pollfd fd = {.fd = dibs_fd(store), .events = POLLIN};
  assert_true(fd.fd >= 0);
  int n = poll(&fd, 1, wait_ms);
  return n == 1 && (fd.revents & POLLIN);
}

static void loop_runs_callbacks_when_told(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP), *two = open_store();
  assert_false(readable(loop, 0));
  assert_int_equal(dibs_dispatch(loop, 0), 0);
  struct later line[3];
  const char *names[] = {"a", "b", "c"};
  dibs_lease *held[3];
  for (int i = 0; i < 3; i++) held[i] = take(two, names[i]);
  for (int i = 0; i < 3; i++) later_start(&line[i], loop, names[i], HOW(.wait_ms = DIBS_FOREVER));
  for (int i = 0; i < 3; i++) give(held[i]);
  UNTIL(stats_of(loop).held == 3);
  assert_true(readable(loop, LONG_MS));
  assert_int_equal(line[0].calls + line[1].calls + line[2].calls, 0);
  assert_int_equal(dibs_dispatch(loop, 1), 1);
  assert_int_equal(line[0].calls + line[1].calls + line[2].calls, 1);
  assert_true(readable(loop, 0));
  assert_int_equal(dibs_dispatch(loop, 0), 2);
  assert_false(readable(loop, 0));
  for (int i = 0; i < 3; i++) assert_int_equal(later_wait(&line[i]), DIBS_OK);
  for (int i = 0; i < 3; i++) give(line[i].lease);
}

static void blocking_calls_work_beside_a_loop(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP), *two = open_store();
  struct caller caller;
  struct later later;
  dibs_lease *lease = take(two, "n"), *other = take(two, "m");
  caller_start(&caller, loop, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(two, "n", DIBS_WAITS) == 1);
  later_start(&later, loop, "m", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(two, "m", DIBS_WAITS) == 1);
  give(lease);
  give(other);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  while (later.calls == 0) {
    assert_true(readable(loop, LONG_MS));
    dibs_dispatch(loop, 0);
  }
  assert_int_equal(later_wait(&later), DIBS_OK);
  give(later.lease);
  give(caller.lease);
}

/* ---- Closing ---- */

static void close_cancels_who_waits(void **state) {
  (void)state;
  for (uint32_t flags = 0; flags <= DIBS_STORE_LOOP; flags++) {
    dibs_store *one = open_store(), *two = open_uri(case_uri(), flags);
    dibs_lease *lease = take(one, "n"), *mine = take(two, "m");
    struct later far, near, local;
    struct caller caller, second;
    later_start(&far, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    later_start(&near, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    later_start(&local, two, "m", HOW(.wait_ms = DIBS_FOREVER));
    caller_start(&caller, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    caller_start(&second, two, "s", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
    assert_int_equal(caller_join(&second), DIBS_OK);
    dibs_lease *shared = second.lease;
    caller_start(&second, two, "m", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
    UNTIL(stats_of(two).waiting == 5 && rows_of(one, "n", DIBS_WAITS) == 1 && rows_of(one, "m", DIBS_WAITS) == 1);
    close_store(two);
    assert_int_equal(far.calls + near.calls + local.calls, 3);
    assert_int_equal(later_wait(&far), DIBS_CANCELLED);
    assert_int_equal(later_wait(&near), DIBS_CANCELLED);
    assert_int_equal(later_wait(&local), DIBS_CANCELLED);
    assert_int_equal(caller_join(&caller), DIBS_CANCELLED);
    assert_int_equal(caller_join(&second), DIBS_CANCELLED);
    assert_int_equal(rows_of(one, "n", DIBS_WAITS), 0);
    assert_int_equal(ask(one, "m"), DIBS_OK);
    assert_int_equal(ask(one, "s"), DIBS_OK);
    dibs_lease_free(far.lease);
    dibs_lease_free(near.lease);
    dibs_lease_free(local.lease);
    dibs_lease_free(mine);
    dibs_lease_free(shared);
    give(lease);
    close_store(one);
  }
}

/* A thread that waits alone is the one that the engine wakes: closing takes the store away under nobody. */
static void close_waits_for_the_only_waiting_thread(void **state) {
  (void)state;
  dibs_store *one = open_store();
  dibs_lease *lease = take(one, "n");
  for (int round = 0; round < 20; round++) {
    dibs_store *two = open_store();
    struct caller caller;
    caller_start(&caller, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    UNTIL(stats_of(two).waiting == 1);
    if (round % 2) UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
    close_store(two);
    assert_int_equal(caller_join(&caller), DIBS_CANCELLED);
  }
  give(lease);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(callbacks_may_call_anything),
      TEST(callback_waits_for_what_a_thread_releases),
      TEST(lost_one_is_released_by_its_callback),
      TEST(release_completes_later),
      TEST(start_is_refused_at_once_or_not_at_all),
      TEST(done_says_granted_also_when_lost_since),
      TEST(loop_runs_callbacks_when_told),
      TEST(blocking_calls_work_beside_a_loop),
      TEST(close_cancels_who_waits),
      TEST(close_waits_for_the_only_waiting_thread),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
