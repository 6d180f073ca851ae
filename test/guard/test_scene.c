/* SPDX-License-Identifier: MIT */
/*
 * Gateways that nodes create and delete step by step, in a table of the user's (scene.h).  One node is killed in the
 * middle of a step, and one is stopped past its timeout and then goes on: no step takes effect twice, and every gateway
 * ends in the right phase.
 */
#include "scene.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NODES = 5, DELETIONS = 8, CREATIONS = 4, PATIENCE_S = 40, POLL_MS = 5 };

static const char *program;
static pid_t nodes[NODES];

static void start_node(int number, const char *how) {
  char digits[12];
  snprintf(digits, sizeof digits, "%d", number);
  nodes[number] = fork();
  assert_true(nodes[number] >= 0);
  if (nodes[number] > 0) return;
  execl(program, program, case_uri(), digits, how, (char *)NULL);
  _exit(127);
}

static void kill_node(int number) {
  int how;
  if (nodes[number] <= 0) return;
  kill(nodes[number], SIGKILL);
  assert_int_equal(waitpid(nodes[number], &how, 0), nodes[number]);
  nodes[number] = 0;
}

static int scene_end(void **state) {
  for (int i = 0; i < NODES; i++) kill_node(i);
  return tasks_end(state);
}

static long count(const char *query) {
  return strtol(cell("%s", query), NULL, 10);
}

/* Waits until the query answers more than 0. */
static bool comes(const char *query, int seconds) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), (int64_t)seconds * 1000);
  for (; count(query) <= 0; dibs__nap_ms(POLL_MS)) {
    for (int i = 0; i < NODES; i++)
      if (nodes[i] > 0 && waitpid(nodes[i], NULL, WNOHANG) != 0) fail_msg("node %d has ended by itself", i);
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
  }
  return true;
}

static void wait_for(const char *query) {
  if (!comes(query, PATIENCE_S)) fail_msg("never: %s", query);
}

static void make_scene(void) {
  scene_type();
  make_table("gateway",
             "id INTEGER PRIMARY KEY, name VARCHAR(40), phase VARCHAR(20) NOT NULL, locked_at %s NOT NULL DEFAULT %s,"
             " updated_at %s NOT NULL, fence %s, step INTEGER NOT NULL DEFAULT 0, ready %s",
             type->name, type->never, type->name, engine->number, engine->number);
  make_table("attempt", "gateway INTEGER, step INTEGER, node INTEGER, fence %s", engine->number);
  make_table("accepted", "gateway INTEGER, step INTEGER, node INTEGER");
  make_table("refused", "gateway INTEGER, step INTEGER, node INTEGER");
  sql("CREATE INDEX gateway_oldest ON gateway (phase, locked_at, updated_at)");
  for (int i = 0; i < DELETIONS + CREATIONS; i++)
    sql("INSERT INTO gateway (id, name, phase, updated_at, ready) VALUES (%d, 'gateway %d', '%s', %s, %s + %d)", i, i,
        i < DELETIONS ? "Deleting" : "Creating", ago(0), SCENE_NOW_MS, SCENE_CERTIFICATE_MS);
}

#define BEGUN                                                                                                          \
  "FROM attempt a WHERE node = %d AND NOT EXISTS (SELECT 1 FROM accepted b WHERE b.gateway = a.gateway AND"            \
  " b.step = a.step AND b.node = a.node) AND NOT EXISTS (SELECT 1 FROM refused c WHERE c.gateway = a.gateway AND"      \
  " c.step = a.step AND c.node = a.node)"

/* Until this node is in the middle of a step; returns the gateway. */
static long wait_for_step(int node) {
  char query[512];
  snprintf(query, sizeof query, "SELECT COUNT(*) " BEGUN, node);
  wait_for(query);
  const char *gateway = cell("SELECT MAX(gateway) " BEGUN, node);
  return gateway ? strtol(gateway, NULL, 10) : -1;
}

/* Stops the node in the middle of a step; returns the gateway. */
static long stop_in_a_step(int node) {
  for (;;) {
    long gateway = wait_for_step(node);
    assert_int_equal(kill(nodes[node], SIGSTOP), 0);
    const char *still = cell("SELECT MAX(gateway) " BEGUN, node);
    if (still && strtol(still, NULL, 10) == gateway) return gateway;
    assert_int_equal(kill(nodes[node], SIGCONT), 0);
  }
}

/* After the timeout another node claims the gateway and does the step, and then the stopped one goes on: what it does
 * is refused.  (The claim that has expired has its turn after those that are free since 1970.) */
static void go_on_after_a_takeover(int node, long gateway) {
  char query[256];
  snprintf(query, sizeof query,
           "SELECT COUNT(*) FROM attempt a JOIN accepted b ON a.gateway = b.gateway AND a.step = b.step"
           " WHERE a.node = %d AND b.node <> %d AND a.gateway = %ld",
           node, node, gateway);
  wait_for(query);
  assert_int_equal(kill(nodes[node], SIGCONT), 0);
  snprintf(query, sizeof query, "SELECT COUNT(*) FROM refused WHERE node = %d AND gateway = %ld", node, gateway);
  wait_for(query);
}

static void kill_in_a_step(int node) {
  wait_for_step(node);
  kill_node(node);
}

static void wait_for_the_end(void) {
  char query[256];
  snprintf(query, sizeof query,
           "SELECT CASE WHEN COUNT(*) = %d THEN 1 ELSE 0 END FROM gateway WHERE phase IN ('Created', 'Deleted')"
           " AND locked_at = %s",
           DELETIONS + CREATIONS, type->never);
  wait_for(query);
  for (int i = 0; i < NODES; i++) kill_node(i);
}

static void every_step_was_accepted_once(void) {
  for (int i = 0; i < DELETIONS + CREATIONS; i++) {
    bool deleted = i < DELETIONS;
    assert_string_equal(cell("SELECT phase FROM gateway WHERE id = %d", i), deleted ? "Deleted" : "Created");
    for (int step = deleted ? 0 : SCENE_CREATED; step < (deleted ? SCENE_STEPS : SCENE_CREATED + 1); step++)
      assert_string_equal(cell("SELECT COUNT(*) FROM accepted WHERE gateway = %d AND step = %d", i, step), "1");
  }
  assert_int_equal(count("SELECT COUNT(*) FROM accepted"), DELETIONS * SCENE_STEPS + CREATIONS);
}

static void nodes_die_and_stop_and_no_step_takes_effect_twice(void **state) {
  (void)state;
  make_scene();
  for (int i = 0; i < 4; i++) start_node(i, "fence");
  kill_in_a_step(1);
  long gateway = stop_in_a_step(2);
  go_on_after_a_takeover(2, gateway);
  wait_for_the_end();
  every_step_was_accepted_once();
}

static void programs_without_dibs_share_the_work(void **state) {
  (void)state;
  make_scene();
  for (int i = 0; i < NODES; i++) start_node(i, i < 2 ? "shared" : "plain");
  kill_in_a_step(3);
  long first = stop_in_a_step(2), second = stop_in_a_step(0);
  go_on_after_a_takeover(2, first);
  go_on_after_a_takeover(0, second);
  wait_for_the_end();
  every_step_was_accepted_once();
  assert_true(count("SELECT COUNT(*) FROM accepted WHERE node < 2") > 0);
  assert_true(count("SELECT COUNT(*) FROM accepted WHERE node >= 2") > 0);
}

#define SCENE(f) cmocka_unit_test_setup_teardown(f, case_begin, scene_end)

int main(int argc, char *argv[]) {
  if (argc < 3) return 2;
  program = argv[1];
  bed_begin(argc - 1, argv + 1);
  const struct CMUnitTest tests[] = {
      SCENE(nodes_die_and_stop_and_no_step_takes_effect_twice),
      SCENE(programs_without_dibs_share_the_work),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
