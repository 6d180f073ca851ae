/* SPDX-License-Identifier: MIT */
/*
 * Processes take from a stock, give back and count; they are killed and stopped at any moment, and so is the server.
 * Each writes into shared memory what it begins and what it was answered.  In the end each claim that was acknowledged
 * holds what it was answered, `used` is the sum of what all claims hold, and each counter has what was acknowledged,
 * and at most what was attempted.
 *
 *   test_storm URI SECONDS      (with.sh --private)
 *   test_storm URI SECONDS on   the server runs on; election_storm.py does something to it
 */
#include "dibs/counter.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHILDREN = 3, CLAIMS = 6000, LIMIT = 40, STEP_MS = 60, WAIT_MS = 20000, STOCKS = 2 };

enum state { NEVER, TAKING, TAKEN, GIVING, GIVEN };
static const char *const stocks[STOCKS] = {"seats", "tables"};
static const char *const counters[] = {"a", "b"};

static const char *uri;
static int seconds;
static bool runs_on;
static struct {
  _Atomic uint32_t next; /* claim */
  struct {
    _Atomic uint32_t state, stock;
    _Atomic int64_t got;
  } claims[CLAIMS];
  _Atomic int64_t attempted[2], acknowledged[2], took, full;
  _Atomic uint32_t wrong;
} * said;

static unsigned roll(uint64_t *seed) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (unsigned)(*seed >> 40);
}

static void claim_text(uint32_t nth, char to[24]) {
  snprintf(to, 24, "claim-%u", nth);
}

static dibs_store *open_store(void) {
  dibs_error error;
  dibs_store *store = NULL;
  for (time_t end = time(NULL) + 60; time(NULL) < end; usleep(50000))
    if (dibs_open(uri, NULL, &store, &error) == DIBS_OK) return store;
  fprintf(stderr, "test_storm: %s\n", error.text);
  return NULL;
}

/* ---- A child ---- */

static void complain(const char *what, uint32_t claim, dibs_status status, const dibs_error *error) {
  fprintf(stderr, "test_storm: %s claim %u: %s (%s)\n", what, claim, dibs_status_text(status), error->text);
  atomic_fetch_add(&said->wrong, 1);
}

static bool in_doubt(dibs_status status) {
  return status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE || status == DIBS_TIMEOUT;
}

static void take_and_give(dibs_store *store, unsigned dice) {
  dibs_error error;
  dibs_stock_result result = {.size = sizeof result};
  uint32_t nth = atomic_fetch_add(&said->next, 1);
  if (nth >= CLAIMS) return;
  char claim[24];
  claim_text(nth, claim);
  dibs_stock_options options = {.size = sizeof options, .claim = claim, .wait_ms = 2000};
  const char *stock = stocks[dice % STOCKS];
  atomic_store(&said->claims[nth].stock, dice % STOCKS);
  atomic_store(&said->claims[nth].state, TAKING);
  dibs_status status = dibs_stock_take(store, stock, 1 + dice / 2 % 3, &options, &result, &error);
  if (status == DIBS_FULL) {
    atomic_fetch_add(&said->full, 1);
    atomic_store(&said->claims[nth].state, NEVER);
  } else if (status == DIBS_OK || status == DIBS_REPLAY) {
    atomic_store(&said->claims[nth].got, result.got);
    atomic_store(&said->claims[nth].state, TAKEN);
    atomic_fetch_add(&said->took, 1);
  } else if (!in_doubt(status)) {
    complain("taking", nth, status, &error);
  }
  if (atomic_load(&said->claims[nth].state) != TAKEN || dice % 8 == 0) return; /* some are kept */
  atomic_store(&said->claims[nth].state, GIVING);
  status = dibs_stock_give(store, stock, claim, &options, &result, &error);
  if (status == DIBS_OK || status == DIBS_REPLAY)
    atomic_store(&said->claims[nth].state, GIVEN);
  else if (!in_doubt(status))
    complain("giving back", nth, status, &error);
}

static void count(dibs_store *store, unsigned dice) {
  dibs_error error;
  dibs_counter_options options = {.size = sizeof options, .wait_ms = 2000};
  unsigned nth = dice % 2;
  atomic_fetch_add(&said->attempted[nth], 1);
  dibs_status status = dibs_counter_add(store, counters[nth], 1, &options, &error);
  if (status == DIBS_OK) atomic_fetch_add(&said->acknowledged[nth], 1);
  if (status != DIBS_OK && !in_doubt(status)) complain("counting", nth, status, &error);
}

static void work(uint64_t seed) {
  dibs_store *store = open_store();
  if (!store) _exit(1);
  for (;;) {
    unsigned dice = roll(&seed);
    if (dice % 3)
      take_and_give(store, dice / 3);
    else
      count(store, dice / 3);
  }
}

static pid_t start_child(uint64_t seed) {
  pid_t child = fork();
  if (child == 0) work(seed);
  return child;
}

/* ---- The trouble ---- */

static void control_server(const char *what) {
  char command[512];
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT");
  assert_non_null(script);
  pid_t child = fork();
  if (child == 0) {
    snprintf(command, sizeof command, "exec \"%s\" %s mongodb >/dev/null 2>&1", script, what);
    execl("/bin/bash", "bash", "-c", command, (char *)NULL);
    _exit(127);
  }
  int how = 0;
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void make_trouble(pid_t children[CHILDREN]) {
  uint64_t seed = (uint64_t)getpid();
  time_t end = time(NULL) + seconds;
  bool killed = false;
  for (int turn = 0; time(NULL) < end; turn++) {
    unsigned nth = roll(&seed) % CHILDREN;
    usleep(STEP_MS * 1000);
    if (turn % 3 == 0) {
      kill(children[nth], SIGSTOP);
      usleep(STEP_MS * 3000);
      kill(children[nth], SIGCONT);
    } else if (turn % 3 == 1) {
      kill(children[nth], SIGKILL);
      (void)waitpid(children[nth], NULL, 0);
      children[nth] = start_child(roll(&seed));
    }
    if (!killed && !runs_on && time(NULL) >= end - seconds / 2) {
      control_server("kill");
      control_server("start");
      killed = true;
    }
  }
}

/* ---- The end ---- */

static int64_t counter_of(dibs_store *store, const char *key) {
  dibs_error error;
  dibs_counter_options options = {.size = sizeof options, .wait_ms = WAIT_MS};
  dibs_counter_value value = {.size = sizeof value};
  dibs_status status = dibs_counter_read(store, key, &options, &value, &error);
  if (status != DIBS_OK) fail_msg("%s", error.text);
  return value.stored;
}

/* Gives each claim back, and counts at least and at most how much was used before: the last request of a killed client
 * may have arrived meanwhile. */
static void settle_claims(dibs_store *store, int64_t least[STOCKS], int64_t most[STOCKS]) {
  uint32_t count = atomic_load(&said->next) < CLAIMS ? atomic_load(&said->next) : CLAIMS;
  for (uint32_t i = 0; i < count; i++) {
    dibs_error error;
    dibs_stock_result result = {.size = sizeof result};
    char claim[24];
    uint32_t state = atomic_load(&said->claims[i].state), stock = atomic_load(&said->claims[i].stock);
    if (state == NEVER) continue;
    claim_text(i, claim);
    dibs_stock_options options = {.size = sizeof options, .claim = claim, .wait_ms = WAIT_MS};
    dibs_status status = dibs_stock_give(store, stocks[stock], claim, &options, &result, &error);
    if (status == DIBS_OK) most[stock] += result.got;
    if (status == DIBS_OK && state != TAKING) least[stock] += result.got;
    if (status == DIBS_REPLAY && state == GIVING) most[stock] += atomic_load(&said->claims[i].got);
    bool right = (state == TAKEN && status == DIBS_OK && result.got == atomic_load(&said->claims[i].got)) ||
                 (state == GIVEN && status == DIBS_REPLAY) ||
                 (state == GIVING && (status == DIBS_OK || status == DIBS_REPLAY)) ||
                 (state == TAKING && (status == DIBS_OK || status == DIBS_NOT_FOUND));
    if (!right) fail_msg("claim %u in state %u: giving back: %s", i, state, dibs_status_text(status));
  }
}

static void nothing_is_lost_oversold_or_counted_twice(void **state) {
  (void)state;
  pid_t children[CHILDREN];
  dibs_error error;
  dibs_store *store = open_store();
  assert_non_null(store);
  for (int i = 0; i < STOCKS; i++)
    assert_int_equal(dibs_stock_set(store, stocks[i], LIMIT, NULL, NULL, &error), DIBS_OK);
  dibs_close(store);
  for (int i = 0; i < CHILDREN; i++) children[i] = start_child((uint64_t)i + 1);
  make_trouble(children);
  for (int i = 0; i < CHILDREN; i++) {
    kill(children[i], SIGKILL);
    (void)waitpid(children[i], NULL, 0);
  }
  store = open_store();
  assert_non_null(store);
  int64_t used[STOCKS], least[STOCKS] = {0}, most[STOCKS] = {0};
  for (int i = 0; i < STOCKS; i++) {
    dibs_stock_result result = {.size = sizeof result};
    assert_int_equal(dibs_stock_show(store, stocks[i], NULL, &result, &error), DIBS_OK);
    used[i] = result.used;
    assert_in_range(used[i], 0, LIMIT);
  }
  settle_claims(store, least, most);
  for (int i = 0; i < STOCKS; i++) {
    dibs_stock_result result = {.size = sizeof result};
    assert_in_range(used[i], least[i], most[i]);
    assert_int_equal(dibs_stock_show(store, stocks[i], NULL, &result, &error), DIBS_OK);
    assert_int_equal(result.used, 0);
  }
  for (int i = 0; i < 2; i++) {
    int64_t stored = counter_of(store, counters[i]);
    print_message("%s: acknowledged %lld, stored %lld, attempted %lld\n", counters[i], (long long)said->acknowledged[i],
                  (long long)stored, (long long)said->attempted[i]);
    assert_in_range(stored, said->acknowledged[i], said->attempted[i]);
    assert_true(said->acknowledged[i] > 0);
  }
  print_message("%u claims, %lld took something, %lld times full\n", said->next, (long long)said->took,
                (long long)said->full);
  assert_int_equal(said->wrong, 0);
  assert_true(said->took > 0);
  dibs_close(store);
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_lost_oversold_or_counted_twice)};
  if (argc < 3) return 2;
  runs_on = argc > 3;
  uri = argv[1];
  seconds = (int)strtol(argv[2], NULL, 10);
  said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (said == MAP_FAILED) return 1;
  return cmocka_run_group_tests_name("mongodb storm", tests, NULL, NULL);
}
