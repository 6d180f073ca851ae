/* SPDX-License-Identifier: MIT */
/*
 * Processes on a server that gives them few connections: held leases stay held, and waiters wait for a connection, too.
 * Also the number of connections of a process.
 */
#include "bed.h"
#include "dibs/admin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TTL_MS = 1200, LONG_MS = 20000, SOON_MS = 3500, AT_ONCE_MS = 700 };

#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    dibs__tick until_by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);                                                \
    while (!(condition)) {                                                                                             \
      if (!dibs__tick_before(dibs__tick_now(), until_by)) fail_msg("this never became true: %s", #condition);          \
      dibs__nap_ms(2);                                                                                                 \
    }                                                                                                                  \
  } while (0)

static void expect(dibs_status got, dibs_status want) {
  if (got != want) fail_msg("%s, expected %s: %s", dibs_status_name(got), dibs_status_name(want), reported.text);
}

static void give(dibs_lease *lease) {
  expect(dibs_release(lease, &reported), DIBS_OK);
  dibs_lease_free(lease);
}

/* The lease stays held for several ttls, with the same fence. */
static void stays_held(dibs_lease *lease, int ttls) {
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), ttls * TTL_MS);
  while (dibs__tick_before(dibs__tick_now(), until)) {
    assert_int_equal(dibs_lease_alive(lease), 1);
    dibs__nap_ms(5);
  }
  assert_true(dibs_lease_fence(lease).value == fence);
}

/* ---- How many ---- */

static int row(const dibs_lease_info *row, void *user) {
  (void)row;
  ++*(int *)user;
  return 0;
}

static void idle_handle_has_one_connection(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(8));
  int rows = 0;
  assert_int_equal(connections(), 1);
  for (int i = 0; i < 20; i++) give(take(store, "a", TTL_MS));
  expect(dibs_list(store, NULL, row, &rows, &reported), DIBS_OK);
  assert_int_equal(connections(), 1);
}

static void holder_has_one_connection_and_a_waiter_two(void **state) {
  (void)state;
  const char *uri = limited(8);
  dibs_store *store = open_at(uri);
  dibs_lease *lease = take(store, "a", TTL_MS);
  stays_held(lease, 2);
  assert_int_equal(connections(), 1);
  dibs_store *other = open_at(uri);
  dibs_lease_options how = {.size = sizeof how, .wait_ms = 300};
  dibs_lease *none = NULL;
  expect(dibs_acquire(other, "a", &how, &none, &reported), DIBS_TIMEOUT);
  /* A waiter receives notifications on a connection of its own; on MariaDB on two. */
  assert_true(connections() <= (strcmp(server->scheme, "mysql") == 0 ? 4 : 3));
  give(lease);
}

enum { CHILDREN = 125 };

static void a_hundred_processes_share_a_server(void **state) {
  (void)state;
  const char *uri = limited(server->is_sql ? 280 : 1000);
  uint32_t most = 0;
  int left = CHILDREN, failed = 0, gate[2];
  assert_int_equal(pipe(gate), 0);
  for (int i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) continue;
    close(gate[1]);
    dibs_store *store = NULL;
    dibs_lease *lease = NULL;
    dibs_lease_options how = {.size = sizeof how, .ttl_ms = 10000, .wait_ms = LONG_MS};
    char name[32];
    snprintf(name, sizeof name, "own-%d", i);
    dibs_status status = dibs_open(uri, NULL, &store, &reported);
    if (status == DIBS_OK) status = dibs_acquire(store, name, &how, &lease, &reported);
    while (read(gate[0], name, 1) < 0) continue; /* until all have started */
    dibs__nap_ms(1500);                          /* and half a ttl */
    if (status == DIBS_OK) status = dibs_release(lease, &reported);
    if (status != DIBS_OK) fprintf(stderr, "child %d: %s\n", i, reported.text);
    _exit(status == DIBS_OK ? 0 : 1);
  }
  dibs__tick late = dibs__tick_add_ms(dibs__tick_now(), 2 * LONG_MS); /* a process without a connection reports it after
                                                                       * the gate */
  while (left > 0) {
    int how;
    uint32_t now = connections();
    if (now > most) most = now;
    if ((now >= CHILDREN || !dibs__tick_before(dibs__tick_now(), late)) && gate[1] >= 0) {
      dibs__nap_ms(1500);
      close(gate[1]);
      gate[1] = -1;
    }
    for (; waitpid(-1, &how, WNOHANG) > 0; left--) failed += !WIFEXITED(how) || WEXITSTATUS(how);
    dibs__nap_ms(20);
  }
  close(gate[0]);
  print_message("    %d processes had at most %u connections\n", CHILDREN, most);
  assert_int_equal(failed, 0);
  assert_true(most <= 2 * CHILDREN);
}

/* ---- What is held ---- */

static void held_on_the_only_connection(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(1));
  dibs_lease *lease = take(store, "a", TTL_MS);
  assert_int_equal(fill(), 0);
  stays_held(lease, 3);
  give(lease);
}

static void leases_stay_held_while_others_have_all_connections(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(3));
  dibs_lease *lease = take(store, "a", TTL_MS);
  assert_int_equal(fill(), 2);
  stays_held(lease, 3);
  give(lease);
}

/* A put that waits for a row lock that another client holds. */
struct stuck {
  dibs_store *store;
  pthread_t thread;
  dibs_status status;
  _Atomic int over;
};
static void *put_it(void *arg) {
  struct stuck *stuck = arg;
  dibs_record_options how = {.size = sizeof how, .flags = DIBS_UNCHECKED, .wait_ms = LONG_MS};
  dibs_value value = {"x", 1};
  stuck->status = dibs_record_put(stuck->store, "row", &value, 1, &how, NULL, NULL);
  stuck->over = 1;
  return NULL;
}
static void stick(struct stuck *stuck, dibs_store *store) {
  *stuck = (struct stuck){.store = store};
  put_it(stuck);
  expect(stuck->status, DIBS_OK);
  stuck->over = 0;
  server->say(locker(), "BEGIN");
  /* The MariaDB database and the PostgreSQL schema have the same name here. */
  assert_int_equal(server->say(locker(), "SELECT 1 FROM dibs.dibs_record WHERE name = 'row' FOR UPDATE"), 1);
  assert_int_equal(pthread_create(&stuck->thread, NULL, put_it, stuck), 0);
}
static void unstick(struct stuck *stuck) {
  server->say(locker(), "COMMIT");
  pthread_join(stuck->thread, NULL);
  expect(stuck->status, DIBS_OK);
}

static void renewals_pass_a_row_lock_by_a_connection_of_their_own(void **state) {
  (void)state;
  if (!server->is_sql) skip();
  dibs_store *store = open_at(limited(4));
  struct stuck stuck;
  dibs_lease *lease = take(store, "a", TTL_MS);
  stick(&stuck, store);
  stays_held(lease, 3);
  assert_int_equal(stuck.over, 0);
  assert_int_equal(connections(), 2);
  unstick(&stuck);
  UNTIL(connections() == 1); /* no test needs it any more */
  give(lease);
}

static void R52_renewals_outlive_the_death_of_their_connection(void **state) {
  (void)state;
  if (!server->is_sql) skip();
  dibs_store *store = open_at(limited(3));
  struct stuck stuck;
  dibs_lease *lease = take(store, "a", TTL_MS);
  stick(&stuck, store);
  UNTIL(connections() == 2);
  stays_held(lease, 1);
  unstick(&stuck);
  /* The server ends the younger connection, and other clients take the free ones. */
  assert_int_equal(fill(), 1);
  server->kill(admin(), user(), false);
  fill();
  assert_int_equal(connections(), 1);
  stays_held(lease, 3);
  give(lease);
}

static void renewals_share_the_connection_with_a_row_lock_if_they_must(void **state) {
  (void)state;
  if (!server->is_sql) skip();
  char uri[600];
  const char *given = limited(1);
  snprintf(uri, sizeof uri, "%s%clock_timeout=100", given, strchr(given, '?') ? '&' : '?');
  dibs_store *store = open_at(uri);
  struct stuck stuck;
  dibs_lease *lease = take(store, "a", TTL_MS);
  stick(&stuck, store);
  stays_held(lease, 3);
  assert_int_equal(stuck.over, 0);
  unstick(&stuck);
  give(lease);
}

/* ---- Waiters ---- */

struct waiter {
  dibs_store *store;
  int64_t wait_ms;
  dibs_lease *lease;
  pthread_t thread;
  dibs_status status;
  dibs_error error;
  dibs__tick ended;
  _Atomic int over;
};
static void *acquire_in_thread(void *arg) {
  struct waiter *w = arg;
  dibs_lease_options how = {.size = sizeof how, .wait_ms = w->wait_ms, .ttl_ms = TTL_MS};
  w->status = dibs_acquire(w->store, "a", &how, &w->lease, &w->error);
  w->ended = dibs__tick_now();
  w->over = 1;
  return NULL;
}
static void waiter_start(struct waiter *w, dibs_store *store, int64_t wait_ms) {
  *w = (struct waiter){.store = store, .wait_ms = wait_ms};
  assert_int_equal(pthread_create(&w->thread, NULL, acquire_in_thread, w), 0);
}
static void waiter_join(struct waiter *w) {
  pthread_join(w->thread, NULL);
  reported = w->error;
}

static void waits_for_a_connection(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(2));
  struct waiter w;
  take_over();
  waiter_start(&w, store, DIBS_FOREVER);
  dibs__nap_ms(1500);
  assert_int_equal(w.over, 0);
  dibs__tick freed = dibs__tick_now();
  give_all_back();
  waiter_join(&w);
  expect(w.status, DIBS_OK);
  int64_t ms = (w.ended.ns - freed.ns) / DIBS__NS_PER_MS;
  print_message("    granted %lld ms after a connection was free\n", (long long)ms);
  assert_true(ms < SOON_MS);
  give(w.lease);
}

static void the_first_retry_is_soon(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(2));
  struct waiter w;
  take_over();
  waiter_start(&w, store, DIBS_FOREVER);
  dibs__nap_ms(60);
  give_all_back();
  dibs__tick freed = dibs__tick_now();
  waiter_join(&w);
  expect(w.status, DIBS_OK);
  assert_true((w.ended.ns - freed.ns) / DIBS__NS_PER_MS < AT_ONCE_MS);
  give(w.lease);
}

static void bounded_waits_end_in_time(void **state) {
  (void)state;
  dibs_store *store = open_at(limited(2));
  dibs_lease *lease = NULL;
  take_over();
  for (int64_t wait_ms = 0; wait_ms <= 900; wait_ms += 300) {
    dibs_lease_options how = {.size = sizeof how, .wait_ms = wait_ms};
    dibs__tick began = dibs__tick_now();
    dibs_status status = dibs_acquire(store, "a", &how, &lease, &reported);
    int64_t took = ms_since(began);
    bool lost = wait_ms == 0 && !server->is_sql && status == DIBS_UNKNOWN; /* on a connection that has ended */
    if (status != DIBS_UNAVAILABLE && !lost && (wait_ms == 0 || status != DIBS_TIMEOUT))
      fail_msg("wait_ms %lld: %s", (long long)wait_ms, dibs_status_name(status));
    assert_true(took >= wait_ms && took < wait_ms + AT_ONCE_MS);
    assert_null(lease);
  }
}

static void waits_end_when_their_store_closes(void **state) {
  (void)state;
  dibs_store *store = NULL;
  const char *uri = limited(2);
  expect(dibs_open(uri, NULL, &store, &reported), DIBS_OK);
  struct waiter w;
  take_over();
  waiter_start(&w, store, DIBS_FOREVER);
  dibs__nap_ms(300);
  dibs_close(store);
  waiter_join(&w);
  assert_int_equal(w.status, DIBS_CANCELLED);
}

/* All connections are in use: a waiter gets no connection for notifications, so it polls. */
static void waits_without_notifications(void **state) {
  (void)state;
  const char *uri = limited(2);
  dibs_store *holder = open_at(uri), *store = open_at(uri);
  dibs_lease *lease = take(holder, "a", TTL_MS);
  struct waiter w, late;
  waiter_start(&w, store, DIBS_FOREVER);
  stays_held(lease, 1);
  assert_int_equal(w.over, 0);
  assert_int_equal(connections(), 2);
  waiter_start(&late, store, 200);
  waiter_join(&late);
  assert_true(late.status == DIBS_UNAVAILABLE || late.status == DIBS_TIMEOUT);
  dibs__tick given = dibs__tick_now();
  give(lease);
  waiter_join(&w);
  expect(w.status, DIBS_OK);
  assert_true((w.ended.ns - given.ns) / DIBS__NS_PER_MS < SOON_MS);
  stays_held(w.lease, 2);
  give(w.lease);
}

static dibs_status work(dibs_lease *lease, char **answer, size_t *length, void *ran) {
  (void)lease;
  *answer = strdup("done");
  *length = 4;
  ++*(int *)ran;
  return DIBS_OK;
}

static void *free_later(void *arg) {
  (void)arg;
  dibs__nap_ms(600);
  give_all_back();
  return NULL;
}

static void guarded_writes_wait_for_a_connection(void **state) {
  (void)state;
  if (!server->is_sql) skip();
  dibs_store *store = open_at(limited(2));
  pthread_t thread;
  char *answer = NULL;
  size_t length = 0;
  int ran = 0;
  for (int i = 0; i < 3; i++) {
    take_over();
    assert_int_equal(pthread_create(&thread, NULL, free_later, NULL), 0);
    dibs_record_options how = {.size = sizeof how, .flags = DIBS_UNCHECKED, .wait_ms = LONG_MS};
    dibs_stock_options set = {.size = sizeof set, .wait_ms = LONG_MS};
    dibs_once_options once = {.size = sizeof once, .wait_ms = LONG_MS};
    dibs_value value = {"x", 1};
    if (i == 0) expect(dibs_record_put(store, "r", &value, 1, &how, NULL, &reported), DIBS_OK);
    if (i == 1) expect(dibs_stock_set(store, "s", 5, &set, NULL, &reported), DIBS_OK);
    if (i == 2) expect(dibs_once(store, "o", &once, work, &ran, &answer, &length, &reported), DIBS_OK);
    pthread_join(thread, NULL);
  }
  assert_int_equal(ran, 1);
  free(answer);
}

/* A wrong password is not a shortage. */
static void refusals_are_not_retried(void **state) {
  (void)state;
  if (!server->is_sql) skip();
  dibs_store *store = open_at(limited(2));
  char text[256];
  snprintf(text, sizeof text,
           strcmp(server->scheme, "mysql") == 0 ? "ALTER USER %s@'127.0.0.1' IDENTIFIED BY 'other'"
                                                : "ALTER ROLE %s PASSWORD 'other'",
           user());
  server->say(admin(), text);
  server->kill(admin(), user(), true);
  dibs_lease_options how = {.size = sizeof how, .wait_ms = LONG_MS};
  dibs_lease *lease = NULL;
  dibs__tick began = dibs__tick_now();
  expect(dibs_acquire(store, "a", &how, &lease, &reported), DIBS_DENIED);
  assert_true(ms_since(began) < SOON_MS);
}

/* ---- Answers that were OK ---- */

struct user_of {
  const char *uri;
  _Atomic int *stop, *lost, *turns;
};
static void *use(void *arg) {
  struct user_of *u = arg;
  dibs_store *store = NULL;
  dibs_error error;
  while (!*u->stop && dibs_open(u->uri, NULL, &store, &error) != DIBS_OK) dibs__nap_ms(5);
  while (!*u->stop && store) {
    dibs_lease_options how = {.size = sizeof how, .ttl_ms = 30000, .wait_ms = 500};
    dibs_lease *lease = NULL;
    if (dibs_acquire(store, "hot", &how, &lease, &error) != DIBS_OK) continue;
    dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), 2 + *u->turns % 3 * 10);
    if (++*u->turns % 8 == 0) until = dibs__tick_add_ms(dibs__tick_now(), 700); /* longer than an offer lasts */
    while (dibs__tick_before(dibs__tick_now(), until)) {
      if (!dibs_lease_alive(lease)) {
        ++*u->lost;
        break;
      }
      dibs__nap_ms(1);
    }
    (void)dibs_release(lease, &error);
    dibs_lease_free(lease);
  }
  dibs_close(store);
  return NULL;
}

enum { USERS = 4 };

static void granted_leases_are_confirmed_during_a_shortage(void **state) {
  (void)state;
  const char *uri = limited(USERS + 2); /* not enough for all connections that they request */
  _Atomic int stop = 0, lost = 0, turns = 0;
  struct user_of u = {uri, &stop, &lost, &turns};
  pthread_t threads[USERS];
  for (int i = 0; i < USERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, &u), 0);
  for (int i = 0; i < 60; i++) { /* another client sometimes takes a connection that becomes free */
    dibs__nap_ms(100);
    if (i % 5 == 0) fill();
    if (i % 5 == 3) give_all_back();
  }
  stop = 1;
  give_all_back();
  for (int i = 0; i < USERS; i++) pthread_join(threads[i], NULL);
  print_message("    %d turns, %d lost\n", turns, lost);
  assert_true(turns > 10);
  assert_int_equal(lost, 0);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  const struct CMUnitTest tests[] = {
      TEST(idle_handle_has_one_connection),
      TEST(holder_has_one_connection_and_a_waiter_two),
      TEST(held_on_the_only_connection),
      TEST(leases_stay_held_while_others_have_all_connections),
      TEST(renewals_pass_a_row_lock_by_a_connection_of_their_own),
      TEST(R52_renewals_outlive_the_death_of_their_connection),
      TEST(renewals_share_the_connection_with_a_row_lock_if_they_must),
      TEST(waits_for_a_connection),
      TEST(the_first_retry_is_soon),
      TEST(bounded_waits_end_in_time),
      TEST(waits_end_when_their_store_closes),
      TEST(waits_without_notifications),
      TEST(guarded_writes_wait_for_a_connection),
      TEST(refusals_are_not_retried),
      TEST(granted_leases_are_confirmed_during_a_shortage),
      TEST(a_hundred_processes_share_a_server),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
