/* SPDX-License-Identifier: MIT */
/* Calls that complete later: their callbacks, what a callback may do, the user's own loop, and closing. */
#include "help.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>

/* ---- A callback may call any function ---- */

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

static void release_it(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  finish(user, status == DIBS_OK ? dibs_release(lease, NULL) : status);
}

static void free_it(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  dibs_lease_free(lease);
  finish(user, status);
}

static void take_another(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct scene *scene = user;
  options how = HOW(.wait_ms = LONG_MS);
  (void)lease, (void)status;
  finish(scene, dibs_acquire(scene->store, "another", &how, &scene->inner, NULL));
}

static void release_lost(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
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
  assert_int_equal(send_request(scene.store, "n", .wait_ms = LONG_MS), DIBS_OK);

  lease = start(scene.store, "n", take_another, &scene);
  UNTIL(scene.calls == 3);
  assert_int_equal(scene.status, DIBS_OK);
  give(lease);
  give(scene.inner);
}

/* A callback that waits for a lease that only another thread can release does not block other callbacks for ever. */
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

static void a_lost_lease_is_released_by_its_callback(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct scene scene = {.store = one};
  dibs_lease *lease = take(one, "n", .on_lost = release_lost, .user = &scene);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  UNTIL(scene.calls == 1);
  assert_int_equal(scene.status, DIBS_LOST);
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
  dibs_lease_free(lease);
}

static void release_completes_later(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later released = {.status = -1};
  dibs_lease *lease = take(one, "n");
  assert_int_equal(dibs_release_start(lease, later_done, &released, NULL), DIBS_OK);
  assert_int_equal(later_wait(&released), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  struct later never = {.status = -1};
  assert_int_equal(dibs_release_start(lease, later_done, &never, NULL), DIBS_LOST);
  assert_int_equal(never.calls, 0);
  dibs_lease_free(lease);
  /* The handle may be freed first. */
  lease = take(one, "n");
  struct later last = {.status = -1};
  assert_int_equal(dibs_release_start(lease, later_done, &last, NULL), DIBS_OK);
  dibs_lease_free(lease);
  assert_int_equal(later_wait(&last), DIBS_OK);
}

static void start_fails_at_once_or_completes_later(void **state) {
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

/* A lease that is lost before `done` is called was still granted; the loss is reported separately. */
static void done_reports_the_grant_of_a_lease_that_was_lost_since(void **state) {
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

static void callbacks_run_when_the_loop_dispatches(void **state) {
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

/* The next waiter is of this process, or the freed handle itself waits: nothing is sent to the store. */
static void freeing_wakes_the_loop(void **state) {
  (void)state;
  enum { SOON_MS = 200 }; /* its renewals, which would also wake it, are rarer */
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct later line[2];
  dibs_lease *lease = take(loop, "n");
  for (int i = 0; i < 2; i++) later_start(&line[i], loop, "n", HOW(.wait_ms = DIBS_FOREVER));
  dibs__nap_ms(SOON_MS); /* the store has queued them */
  while (dibs_dispatch(loop, 0) > 0) continue;
  dibs_lease_free(line[1].lease);
  assert_true(readable(loop, SOON_MS));
  dibs_dispatch(loop, 0);
  assert_int_equal(later_wait(&line[1]), DIBS_CANCELLED);
  dibs_lease_free(lease);
  UNTIL((readable(loop, SOON_MS), dibs_dispatch(loop, 0), line[0].calls > 0));
  assert_int_equal(later_wait(&line[0]), DIBS_OK);
  give(line[0].lease);
}

/* ---- A callback that dispatches ---- */

struct inner {
  dibs_store *loop;
  struct later own;
  bool came;
};

static void take_another_and_wait(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct inner *inner = user;
  (void)lease, (void)status, (void)error;
  later_start(&inner->own, inner->loop, "inner", HOW(.flags = DIBS_NO_RENEW));
  for (int i = 0; i < LONG_MS && !inner->came; i++) {
    inner->came = inner->own.calls > 0;
    if (dibs_dispatch(inner->loop, 0) == 0) dibs__nap_ms(1);
  }
}

static void a_callback_may_dispatch_until_another_comes(void **state) {
  (void)state;
  struct inner inner = {.loop = open_uri(case_uri(), DIBS_STORE_LOOP)};
  options how = HOW(.flags = DIBS_NO_RENEW);
  dibs_lease *lease;
  assert_int_equal(dibs_acquire_start(inner.loop, "n", &how, take_another_and_wait, &inner, &lease, NULL), DIBS_OK);
  UNTIL(dibs_dispatch(inner.loop, 0) > 0);
  assert_true(inner.came);
  assert_int_equal(later_wait(&inner.own), DIBS_OK);
  give(inner.own.lease);
  give(lease);
}

/* ---- A callback that waits for what it has begun ---- */

enum then { RENEWS, RELEASES, DETACHES, WORKS, WORKS_BESIDE, GIVES_UP };

struct begun {
  dibs_store *loop, *two;
  enum then then;
  _Atomic bool renewing;
  _Atomic int status;
  int64_t took_ms;
  uint32_t waits_still;
};

static void renew_and_wait_for_it(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct begun *begun = user;
  options how = HOW(.wait_ms = 50);
  dibs_lease *none;
  (void)status, (void)error;
  dibs__nap_ms(50); /* the thread that carried the grant sleeps again, and does not find the renewal by chance */
  dibs__tick began = dibs__tick_now();
  if (begun->then != GIVES_UP) assert_int_equal(dibs_renew_start(lease, 0, NULL, NULL, NULL), DIBS_OK);
  begun->renewing = true;
  if (begun->then == RENEWS) status = dibs_renew(lease, 0, NULL);
  if (begun->then == RELEASES) status = dibs_release(lease, NULL);
  if (begun->then == DETACHES) status = dibs_lease_detach(lease, NULL);
  if (begun->then == WORKS) dibs__nap_ms(4500);
  if (begun->then == WORKS_BESIDE) UNTIL(begun->status >= 0);
  if (begun->then == GIVES_UP) {
    status = dibs_acquire(begun->loop, "held", &how, &none, NULL);
    for (int i = 0; i < 2000 && (begun->waits_still = rows_of(begun->two, "held", DIBS_WAITS)) > 0; i++)
      dibs__nap_ms(1);
  }
  begun->took_ms = ms_since(began);
  if (begun->then != WORKS_BESIDE) begun->status = (int)status;
}

static struct begun begin_and(enum then then, int ttl_ms, dibs_lease **lease) {
  struct begun begun = {.loop = open_uri(case_uri(), DIBS_STORE_LOOP), .two = open_store(), .then = then, .status = -1};
  options how = HOW(.ttl_ms = ttl_ms);
  assert_int_equal(dibs_acquire_start(begun.loop, "n", &how, renew_and_wait_for_it, &begun, lease, NULL), DIBS_OK);
  UNTIL(dibs_dispatch(begun.loop, 0) > 0);
  return begun;
}

/* The renewal that the callback has begun is sent at the end of the dispatch, unless something waits for it. */
static void a_callback_may_wait_for_what_it_has_begun(void **state) {
  (void)state;
  enum { SOON_MS = 4000 }; /* sooner than the deadline of a request */
  const dibs_break_options now = {.size = sizeof now, .flags = DIBS_BREAK_NOW};
  for (enum then then = RENEWS; then <= DETACHES; then++) {
    dibs_lease *lease;
    struct begun begun = begin_and(then, 20000, &lease);
    assert_int_equal(begun.status, DIBS_OK);
    assert_true(begun.took_ms < SOON_MS);
    if (then == RENEWS) assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
    dibs_lease_free(lease);
    close_store(begun.loop);
    if (then == DETACHES) assert_int_equal(dibs_break(begun.two, "n", &now, NULL), DIBS_OK);
    close_store(begun.two);
  }
}

static void a_callback_that_gives_up_waits_no_more(void **state) {
  (void)state;
  dibs_store *other = open_store();
  dibs_lease *held = take(other, "held"), *lease;
  struct begun begun = begin_and(GIVES_UP, 20000, &lease);
  assert_int_equal(begun.status, DIBS_TIMEOUT);
  assert_int_equal(begun.waits_still, 0);
  give(lease);
  give(held);
}

static void a_renewal_that_a_long_callback_began_keeps_the_lease(void **state) {
  (void)state;
  dibs_lease *lease;
  (void)begin_and(WORKS, 3000, &lease);
  assert_int_equal(dibs_lease_alive(lease), 1);
  give(lease);
}

struct beside {
  dibs_lease *lease;
  struct begun *begun;
};

static void *renew_beside(void *arg) {
  struct beside *beside = arg;
  UNTIL(beside->begun->renewing);
  beside->begun->status = (int)dibs_renew(beside->lease, 0, NULL);
  return NULL;
}

static void another_thread_does_not_wait_for_the_callback(void **state) {
  (void)state;
  struct begun begun = {.loop = open_uri(case_uri(), DIBS_STORE_LOOP), .then = WORKS_BESIDE, .status = -1};
  options how = HOW(.ttl_ms = 20000);
  struct beside beside = {.begun = &begun};
  pthread_t thread;
  assert_int_equal(dibs_acquire_start(begun.loop, "n", &how, renew_and_wait_for_it, &begun, &beside.lease, NULL),
                   DIBS_OK);
  assert_int_equal(pthread_create(&thread, NULL, renew_beside, &beside), 0);
  UNTIL(dibs_dispatch(begun.loop, 0) > 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(begun.status, DIBS_OK);
  give(beside.lease);
}

/* ---- Several callbacks of one lease ---- */

struct series {
  dibs_store *loop;
  dibs_lease *lease;
  char order[8]; /* the callbacks that have come */
  bool waits;    /* in the first one, until that of the release has come */
};

static void note(struct series *series, char what) {
  series->order[strlen(series->order)] = what;
  if (!series->waits) return;
  series->waits = false;
  dibs__tick began = dibs__tick_now();
  while (!strchr(series->order, 'e') && ms_since(began) < LONG_MS / 3)
    if (dibs_dispatch(series->loop, 0) == 0) dibs__nap_ms(1);
  series->order[strlen(series->order)] = '.'; /* here it returns */
}

static void note_grant(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)status, (void)error;
  note(user, 'g');
}
static void note_renewal(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)status, (void)error;
  note(user, 'r');
}
static void note_loss(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)status, (void)error;
  note(user, 'l');
}
static void note_release(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)status, (void)error;
  note(user, 'e');
}

/* It was granted, renewed twice, lost, and released; all its callbacks are due. */
static void make_callbacks_due(struct series *series) {
  options how = HOW(.ttl_ms = 2000, .flags = DIBS_NO_RENEW, .on_lost = note_loss, .user = series);
  series->loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  assert_int_equal(dibs_acquire_start(series->loop, "n", &how, note_grant, series, &series->lease, NULL), DIBS_OK);
  UNTIL(stats_of(series->loop).held == 1);
  for (int i = 0; i < 2; i++) assert_int_equal(dibs_renew_start(series->lease, 0, note_renewal, series, NULL), DIBS_OK);
  UNTIL(stats_of(series->loop).lost == 1);
  assert_int_equal(dibs_release_start(series->lease, note_release, series, NULL), DIBS_OK);
  dibs__nap_ms(100); /* the store has answered */
}

static void dispatch_runs_as_many_as_it_says(void **state) {
  (void)state;
  struct series series = {.waits = false};
  make_callbacks_due(&series);
  for (size_t i = 1; i <= 5; i++) {
    UNTIL(dibs_dispatch(series.loop, 1) == 1);
    assert_int_equal(strlen(series.order), i);
  }
  assert_string_equal(series.order, "grrle");
  assert_int_equal(dibs_dispatch(series.loop, 0), 0);
  dibs_lease_free(series.lease);
}

static void a_callback_may_dispatch_until_another_of_its_lease_comes(void **state) {
  (void)state;
  struct series series = {.waits = true};
  make_callbacks_due(&series);
  UNTIL(dibs_dispatch(series.loop, 0) > 0);
  assert_string_equal(series.order, "grrle.");
  dibs_lease_free(series.lease);
}

/* ---- Closing ---- */

static void close_cancels_waiters(void **state) {
  (void)state;
  for (uint32_t flags = 0; flags <= DIBS_STORE_LOOP; flags++) {
    dibs_store *one = open_store(), *two = open_uri(case_uri(), flags);
    dibs_lease *lease = take(one, "n"), *mine = take(two, "m");
    struct later server, near, local;
    struct caller caller, second;
    later_start(&server, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    later_start(&near, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    later_start(&local, two, "m", HOW(.wait_ms = DIBS_FOREVER));
    caller_start(&caller, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    caller_start(&second, two, "s", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
    assert_int_equal(caller_join(&second), DIBS_OK);
    dibs_lease *shared = second.lease;
    caller_start(&second, two, "m", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
    /* One of each name waits in the store; the others are listed, too, once they have waited for a second. */
    UNTIL(stats_of(two).waiting == 5 && rows_of(one, "n", DIBS_WAITS) >= 1 && rows_of(one, "m", DIBS_WAITS) >= 1);
    close_store(two);
    assert_int_equal(server.calls + near.calls + local.calls, 3);
    assert_int_equal(later_wait(&server), DIBS_CANCELLED);
    assert_int_equal(later_wait(&near), DIBS_CANCELLED);
    assert_int_equal(later_wait(&local), DIBS_CANCELLED);
    assert_int_equal(caller_join(&caller), DIBS_CANCELLED);
    assert_int_equal(caller_join(&second), DIBS_CANCELLED);
    assert_int_equal(rows_of(one, "n", DIBS_WAITS), 0);
    assert_int_equal(send_request(one, "m"), DIBS_OK);
    assert_int_equal(send_request(one, "s"), DIBS_OK);
    dibs_lease_free(server.lease);
    dibs_lease_free(near.lease);
    dibs_lease_free(local.lease);
    dibs_lease_free(mine);
    dibs_lease_free(shared);
    give(lease);
    close_store(one);
  }
}

/* The engine wakes the only waiting thread: closing does not free the store while that thread uses it. */
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

static void a_cancelled_waiter_is_not_listed(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later later;
  dibs_lease *held = take(one, "n");
  for (int i = 0; i < 20; i++) {
    later_start(&later, two, "n", HOW(.wait_ms = i % 4 == 3 ? 20 : LONG_MS));
    if (i % 2) UNTIL(rows_of(one, "n", DIBS_WAITS) == 1 || atomic_load(&later.calls) > 0);
    dibs__tick left = dibs__tick_now();
    if (i % 4 != 3) dibs_acquire_cancel(later.lease);
    assert_int_equal(later_wait(&later), i % 4 == 3 ? DIBS_TIMEOUT : DIBS_CANCELLED);
    /* close does not wait for a store that takes longer than 100 ms to answer. */
    if (ms_since(left) >= 100) UNTIL(rows_of(one, "n", DIBS_WAITS) == 0);
    assert_int_equal(rows_of(one, "n", DIBS_WAITS), 0);
    assert_int_equal(rows_of(one, "n", DIBS_OFFERED), 0);
    dibs_lease_free(later.lease);
  }
  give(held);
}

/* A release arrives while a waiter leaves: its offer or grant passes on. */
static void the_offer_of_a_leaving_waiter_passes_on(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later later;
  for (int i = 0; i < 40; i++) {
    dibs_lease *held = take(one, "n", .wait_ms = LONG_MS);
    later_start(&later, two, "n", HOW(.wait_ms = LONG_MS));
    UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
    assert_int_equal(dibs_release_start(held, NULL, NULL, NULL), DIBS_OK);
    if (i % 2) dibs__nap_ms(1);
    dibs_acquire_cancel(later.lease);
    dibs_status status = later_wait(&later);
    if (status == DIBS_OK)
      give(later.lease);
    else
      dibs_lease_free(later.lease);
    assert_true(status == DIBS_OK || status == DIBS_CANCELLED);
    dibs_lease_free(held);
  }
  dibs__tick before = dibs__tick_now();
  assert_int_equal(send_request(one, "n", .wait_ms = LONG_MS), DIBS_OK);
  assert_true(ms_since(before) < 10000); /* sooner than the end of a ttl */
}

/* A call that is inside may not wait yet. */
struct entering {
  dibs_store *store;
  _Atomic bool go;
  _Atomic uint32_t over;
};

static void *enter_late(void *arg) {
  struct entering *e = arg;
  options how = HOW(.ttl_ms = LONG_MS, .wait_ms = DIBS_FOREVER);
  dibs_lease *lease = NULL;
  while (!atomic_load(&e->go)) sched_yield();
  if (dibs_acquire(e->store, "n", &how, &lease, NULL) == DIBS_OK) dibs_lease_free(lease);
  atomic_fetch_add(&e->over, 1);
  return NULL;
}

static void close_ends_waits_that_are_just_beginning(void **state) {
  (void)state;
  enum { CALLERS = 2 };
  int rounds = case_at_server() ? 50 : 500;
  dibs_store *two = open_store();
  dibs_lease *held = take(two, "n", .ttl_ms = 10 * LONG_MS);
  for (int round = 0; round < rounds; round++) {
    struct entering e = {.store = open_store()};
    pthread_t threads[CALLERS];
    char name[16];
    snprintf(name, sizeof name, "k%d", round);
    dibs_lease *keep = take(e.store, name); /* a caller may arrive after the close: its memory stays */
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, enter_late, &e), 0);
    dibs__nap_ms(1); /* all callers have started */
    dibs__tick until = {dibs__tick_now().ns + round % 60 * 500};
    atomic_store(&e.go, true);
    while (dibs__tick_before(dibs__tick_now(), until)) sched_yield();
    close_store(e.store);
    UNTIL(e.over == CALLERS);
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    dibs_lease_free(keep);
  }
  give(held);
}

struct owner {
  _Atomic uint32_t calls, lost_after;
};

static void free_when_done(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct owner *owner = user;
  (void)status, (void)error;
  dibs_lease_free(lease);
  owner->calls++;
}

static void count_loss_after(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)status, (void)error;
  ((struct owner *)user)->lost_after += ((struct owner *)user)->calls;
}

/* A callback that frees the handle may free what on_lost uses, too; both are due at once. */
static void a_handle_that_was_freed_is_not_told_of_a_loss(void **state) {
  (void)state;
  struct owner owner = {.calls = 0};
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  options how = HOW(.ttl_ms = 300, .flags = DIBS_NO_RENEW, .on_lost = count_loss_after, .user = &owner);
  dibs_lease *lease = take_as(loop, "n", how);
  assert_int_equal(dibs_renew_start(lease, 0, free_when_done, &owner, NULL), DIBS_OK);
  dibs_lease *granted;
  assert_int_equal(dibs_acquire_start(loop, "m", &how, free_when_done, &owner, &granted, NULL), DIBS_OK);
  UNTIL(stats_of(loop).lost == 2);
  assert_int_equal(dibs_dispatch(loop, 0), 2);
  assert_int_equal(owner.calls, 2);
  assert_int_equal(owner.lost_after, 0);
}

static void a_release_in_flight_is_no_lease_that_was_never_held(void **state) {
  (void)state;
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=200"), 0);
  struct later later = {.status = -1};
  dibs_lease *lease = take(slow, "n");
  assert_int_equal(dibs_release_start(lease, later_done, &later, NULL), DIBS_OK);
  assert_int_equal(dibs_release_start(lease, later_done, &later, NULL), DIBS_LOST);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_int_equal(later_wait(&later), DIBS_OK);
  dibs_lease_free(lease);
  close_store(slow);
  assert_int_equal(later.calls, 1);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(a_cancelled_waiter_is_not_listed),
      TEST(the_offer_of_a_leaving_waiter_passes_on),
      TEST(callbacks_may_call_anything),
      TEST(callback_waits_for_what_a_thread_releases),
      TEST(a_lost_lease_is_released_by_its_callback),
      TEST(release_completes_later),
      TEST(start_fails_at_once_or_completes_later),
      TEST(done_reports_the_grant_of_a_lease_that_was_lost_since),
      TEST(callbacks_run_when_the_loop_dispatches),
      TEST(blocking_calls_work_beside_a_loop),
      TEST(freeing_wakes_the_loop),
      TEST(a_callback_may_dispatch_until_another_comes),
      TEST(a_callback_may_wait_for_what_it_has_begun),
      TEST(a_callback_that_gives_up_waits_no_more),
      TEST(a_renewal_that_a_long_callback_began_keeps_the_lease),
      TEST(another_thread_does_not_wait_for_the_callback),
      TEST(dispatch_runs_as_many_as_it_says),
      TEST(a_callback_may_dispatch_until_another_of_its_lease_comes),
      TEST(close_ends_waits_that_are_just_beginning),
      TEST(close_cancels_waiters),
      TEST(close_waits_for_the_only_waiting_thread),
      TEST(a_handle_that_was_freed_is_not_told_of_a_loss),
      TEST(a_release_in_flight_is_no_lease_that_was_never_held),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
