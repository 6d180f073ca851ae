/* SPDX-License-Identifier: MIT */
#include "base/port.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static dibs__tick in_ms(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

/* Waits until the word is `wanted`; fails the test if that does not happen. */
static void await(dibs__word *word, uint32_t wanted) {
  dibs__tick by = in_ms(LONG_MS);
  for (uint32_t seen; (seen = atomic_load(word)) != wanted;)
    if (!dibs__word_wait(word, seen, by, false)) fail_msg("still %u, not %u", seen, wanted);
}

static void set(dibs__word *word, uint32_t value) {
  atomic_store(word, value);
  dibs__word_wake(word, UINT32_MAX, false);
}

/* ---- Time ---- */

static void ticks_advance_and_are_rounded_up(void **state) {
  (void)state;
  dibs__tick a = dibs__tick_now(), b = dibs__tick_now();
  assert_false(dibs__tick_before(b, a));
  dibs__tick at = {5 * DIBS__NS_PER_MS};
  assert_int_equal(dibs__tick_left_ms(at, at), 0);
  assert_int_equal(dibs__tick_left_ms(at, (dibs__tick){at.ns - 1}), 0);
  assert_int_equal(dibs__tick_left_ms(at, (dibs__tick){at.ns + 1}), 1);
  assert_int_equal(dibs__tick_left_ms(at, dibs__tick_add_ms(at, 7)), 7);
  assert_int_equal(dibs__tick_left_ms(at, (dibs__tick){at.ns + 7 * DIBS__NS_PER_MS + 1}), 8);
  assert_true(dibs__tick_left_ms(at, DIBS__TICK_NEVER) == INT64_MAX);
  assert_true(dibs__tick_add_ms(at, INT64_MAX / DIBS__NS_PER_MS).ns == INT64_MAX);
  assert_true(dibs__tick_add_ms(at, -1).ns == INT64_MAX);
}

static void boots_and_clocks_are_distinguished(void **state) {
  (void)state;
  char id[37], again[37];
  assert_true(dibs__boot_id(id));
  assert_true(dibs__boot_id(again));
  assert_string_equal(id, again);
  assert_int_equal(strlen(id), 36);
  assert_int_equal(id[8], '-');
  assert_true(dibs__boot_clock_offset_ns() == dibs__boot_clock_offset_ns());
}

static void nap_lasts_as_long_as_it_is_reported(void **state) {
  (void)state;
  dibs__tick since = dibs__tick_now();
  dibs__nap_ms(30);
  assert_true(dibs__tick_now().ns - since.ns >= 30 * DIBS__NS_PER_MS);
  since = dibs__tick_now();
  dibs__nap_ms(0);
  dibs__nap_ms(-5);
  assert_true(dibs__tick_now().ns - since.ns < LONG_MS * DIBS__NS_PER_MS);
}

/* ---- Random bytes and forks ---- */

static void random_bytes_differ(void **state) {
  (void)state;
  enum { MANY = 2000, SIZE = 16 };
  static uint8_t drawn[MANY][SIZE];
  unsigned ones = 0;
  for (size_t i = 0; i < MANY; i++) dibs__random(drawn[i], SIZE);
  for (size_t i = 0; i < MANY; i++)
    for (size_t j = i + 1; j < MANY; j++) assert_memory_not_equal(drawn[i], drawn[j], SIZE);
  for (size_t i = 0; i < MANY * SIZE; i++) ones += (unsigned)__builtin_popcount(drawn[i / SIZE][i % SIZE]);
  assert_in_range(ones, MANY * SIZE * 4 * 98 / 100, MANY * SIZE * 4 * 102 / 100);
  uint8_t large[1000] = {0}, nothing[1000] = {0};
  dibs__random(large, sizeof large);
  assert_memory_not_equal(large, nothing, 500);
  assert_memory_not_equal(large + 500, nothing, 500);
}

struct drawn {
  uint64_t generation;
  uint32_t process;
  uint8_t bytes[64];
};

static struct drawn draw(void) {
  struct drawn drawn = {dibs__process_generation(), dibs__process_id(), {0}};
  dibs__random(drawn.bytes, sizeof drawn.bytes);
  return drawn;
}

/* Draws in a child, and in its child. */
static void draw_after_forks(int to, int depth) {
  pid_t child = fork();
  if (child == 0) {
    struct drawn drawn = draw();
    if (write(to, &drawn, sizeof drawn) != sizeof drawn) _exit(1);
    if (depth > 1) draw_after_forks(to, depth - 1);
    _exit(0);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(1);
}

static void child_has_another_generation_and_other_random_bytes(void **state) {
  (void)state;
  int ends[2];
  struct drawn drawn[3];
  draw(); /* a buffer exists that could be returned twice */
  assert_int_equal(pipe(ends), 0);
  draw_after_forks(ends[1], 2);
  assert_int_equal(read(ends[0], &drawn[1], sizeof drawn[1]), sizeof drawn[1]);
  assert_int_equal(read(ends[0], &drawn[2], sizeof drawn[2]), sizeof drawn[2]);
  drawn[0] = draw();
  for (size_t i = 0; i < 3; i++)
    for (size_t j = i + 1; j < 3; j++) {
      assert_true(drawn[i].generation != drawn[j].generation);
      assert_int_not_equal(drawn[i].process, drawn[j].process);
      assert_memory_not_equal(drawn[i].bytes, drawn[j].bytes, 16);
    }
  assert_int_equal(drawn[0].process, getpid());
  close(ends[0]);
  close(ends[1]);
}

/* ---- Threads ---- */

struct seen {
  sigset_t mask;
  char name[32];
  uintptr_t self;
};

static void look(void *arg) {
  struct seen *seen = arg;
  pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
  pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
  seen->self = dibs__thread_self();
}

static void thread_blocks_signals_and_has_its_name(void **state) {
  (void)state;
  struct seen seen = {.self = 0};
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  dibs__thread *thread = dibs__thread_start("dibs-a-name-that-is-long", look, &seen);
  assert_non_null(thread);
  dibs__thread_join(thread);
  static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGPIPE};
  for (size_t i = 0; i < COUNT_OF(signals); i++) assert_int_equal(sigismember(&seen.mask, signals[i]), 1);
  assert_string_equal(seen.name, "dibs-a-name-tha");
  assert_int_not_equal(seen.self, 0);
  assert_int_not_equal(seen.self, dibs__thread_self());
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  for (int i = 1; i <= SIGRTMAX; i++) /* this thread's signals are unchanged */
    assert_int_equal(sigismember(&before, i), sigismember(&after, i));
  dibs__thread_join(NULL);
}

static void a_thread_that_cannot_start_is_reported(void **state) {
  (void)state;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    pthread_attr_t large; /* a stack larger than the address space */
    struct seen seen;
    if (pthread_attr_init(&large) || pthread_attr_setstacksize(&large, (size_t)1 << 50) ||
        pthread_setattr_default_np(&large))
      _exit(2);
    _exit(dibs__thread_start("none", look, &seen) ? 1 : 0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

struct counter {
  dibs__mutex lock;
  int count;
};

static void count(void *arg) {
  struct counter *counter = arg;
  for (int i = 0; i < 10000; i++) {
    dibs__mutex_lock(&counter->lock);
    counter->count++;
    dibs__mutex_unlock(&counter->lock);
  }
}

static void a_mutex_admits_one_thread(void **state) {
  (void)state;
  struct counter counter = {.count = 0};
  dibs__thread *threads[4];
  dibs__mutex_init(&counter.lock);
  for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = dibs__thread_start("counter", count, &counter);
  for (size_t i = 0; i < COUNT_OF(threads); i++) dibs__thread_join(threads[i]);
  assert_int_equal(counter.count, 40000);
  dibs__mutex_destroy(&counter.lock);
}

/* ---- Words ---- */

static void wait_ends_at_its_deadline(void **state) {
  (void)state;
  dibs__word word = 7;
  for (int across = 0; across < 2; across++) {
    dibs__tick by = in_ms(20);
    while (dibs__word_wait(&word, 7, by, across)) assert_true(dibs__tick_before(dibs__tick_now(), in_ms(1)));
    assert_false(dibs__tick_before(dibs__tick_now(), by));
  }
}

static void a_wait_with_a_past_deadline_only_checks(void **state) {
  (void)state;
  dibs__word word = 7;
  assert_false(dibs__word_wait(&word, 7, DIBS__TICK_ZERO, false));
  assert_false(dibs__word_wait(&word, 8, dibs__tick_now(), false));
}

static void a_wait_ends_at_once_if_the_word_differs(void **state) {
  (void)state;
  dibs__word word = 8;
  errno = 77;
  assert_true(dibs__word_wait(&word, 7, DIBS__TICK_NEVER, false));
  assert_true(dibs__word_wait(&word, 7, in_ms(LONG_MS), true));
  assert_int_equal(errno, 77);
}

struct pair {
  dibs__word there, back;
};

static void answer(void *arg) {
  struct pair *pair = arg;
  for (uint32_t i = 1; i <= 1000; i++) {
    await(&pair->there, i);
    set(&pair->back, i);
  }
}

static void no_wake_up_is_lost(void **state) {
  (void)state;
  struct pair pair = {0, 0};
  dibs__thread *thread = dibs__thread_start("answer", answer, &pair);
  assert_non_null(thread);
  for (uint32_t i = 1; i <= 1000; i++) {
    set(&pair.there, i);
    await(&pair.back, i);
  }
  dibs__thread_join(thread);
}

static void words_wake_other_processes(void **state) {
  (void)state;
  struct pair *pair = mmap(NULL, sizeof *pair, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(pair, MAP_FAILED);
  fflush(NULL);
  dibs__tick by = in_ms(LONG_MS);
  pid_t child = fork();
  if (child == 0) {
    for (uint32_t i = 1; i <= 500; i++) {
      for (uint32_t seen; (seen = atomic_load(&pair->there)) != i;)
        if (!dibs__word_wait(&pair->there, seen, by, true)) _exit(1);
      atomic_store(&pair->back, i);
      dibs__word_wake(&pair->back, 1, true);
    }
    _exit(0);
  }
  for (uint32_t i = 1; i <= 500; i++) {
    atomic_store(&pair->there, i);
    dibs__word_wake(&pair->there, 1, true);
    for (uint32_t seen; (seen = atomic_load(&pair->back)) != i;)
      assert_true(dibs__word_wait(&pair->back, seen, by, true));
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  munmap(pair, sizeof *pair);
}

/* ---- Notifiers and shields ---- */

static bool notices(int fd) {
  struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
  return poll(&poll_fd, 1, 0) == 1;
}

static void a_notifier_is_readable_until_lowered(void **state) {
  (void)state;
  int notifier = dibs__notifier_open();
  assert_true(notifier >= 0);
  assert_true(fcntl(notifier, F_GETFD) & FD_CLOEXEC);
  assert_false(notices(notifier));
  dibs__notifier_raise(notifier);
  dibs__notifier_raise(notifier);
  assert_true(notices(notifier));
  assert_true(notices(notifier));
  dibs__notifier_lower(notifier);
  assert_false(notices(notifier));
  dibs__notifier_lower(notifier); /* does not block */
  dibs__notifier_raise(notifier);
  assert_true(notices(notifier));
  dibs__notifier_close(notifier);
  dibs__notifier_close(-1);
}

static volatile sig_atomic_t caught;

static void on_signal(int number) {
  (void)number;
  caught++;
}

static void a_shield_blocks_signals_until_lowered(void **state) {
  (void)state;
  struct sigaction action = {.sa_handler = on_signal}, before;
  sigaction(SIGUSR1, &action, &before);
  dibs__shield outer, inner;
  caught = 0;
  dibs__shield_raise(&outer);
  dibs__shield_raise(&inner);
  pthread_kill(pthread_self(), SIGUSR1);
  assert_int_equal(caught, 0);
  dibs__shield_lower(&inner);
  assert_int_equal(caught, 0);
  dibs__shield_lower(&outer);
  assert_int_equal(caught, 1);
  sigaction(SIGUSR1, &before, NULL);
}

struct torn {
  dibs__word inside, cancelled, left;
};

static void *under_shield(void *arg) {
  struct torn *torn = arg;
  dibs__shield shield;
  dibs__shield_raise(&shield);
  set(&torn->inside, 1);
  await(&torn->cancelled, 1);
  pthread_testcancel(); /* would end it here without the shield */
  set(&torn->left, 1);
  dibs__shield_lower(&shield);
  pthread_testcancel();
  set(&torn->left, 2);
  return NULL;
}

static void a_shield_blocks_cancellation_until_lowered(void **state) {
  (void)state;
  struct torn torn = {0, 0, 0};
  pthread_t thread;
  void *result;
  assert_int_equal(pthread_create(&thread, NULL, under_shield, &torn), 0);
  await(&torn.inside, 1);
  assert_int_equal(pthread_cancel(thread), 0);
  set(&torn.cancelled, 1);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_ptr_equal(result, PTHREAD_CANCELED);
  assert_int_equal(torn.left, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ticks_advance_and_are_rounded_up),
      cmocka_unit_test(boots_and_clocks_are_distinguished),
      cmocka_unit_test(nap_lasts_as_long_as_it_is_reported),
      cmocka_unit_test(random_bytes_differ),
      cmocka_unit_test(child_has_another_generation_and_other_random_bytes),
      cmocka_unit_test(thread_blocks_signals_and_has_its_name),
      cmocka_unit_test(a_thread_that_cannot_start_is_reported),
      cmocka_unit_test(a_mutex_admits_one_thread),
      cmocka_unit_test(wait_ends_at_its_deadline),
      cmocka_unit_test(a_wait_with_a_past_deadline_only_checks),
      cmocka_unit_test(a_wait_ends_at_once_if_the_word_differs),
      cmocka_unit_test(no_wake_up_is_lost),
      cmocka_unit_test(words_wake_other_processes),
      cmocka_unit_test(a_notifier_is_readable_until_lowered),
      cmocka_unit_test(a_shield_blocks_signals_until_lowered),
      cmocka_unit_test(a_shield_blocks_cancellation_until_lowered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
