/* SPDX-License-Identifier: MIT */
/*
 * Gateways that nodes create and delete step by step, in a collection of the user's (scene.h).  Nodes are killed in the
 * middle of a step, and stopped past their timeout and continued: no step takes effect twice, and every gateway ends in
 * the right phase.  Some nodes are programs without dibs, which poll the collection as they always did.
 *
 *   test_scene NODE URI
 */
#include "scene.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NODES = 5, DELETIONS = 6, CREATIONS = 3, PATIENCE_S = 60, POLL_MS = 5 };

static const char *program;
static pid_t nodes[NODES];

static void start_node(int number, const char *how) {
  char digits[12];
  snprintf(digits, sizeof digits, "%d", number);
  nodes[number] = fork();
  assert_true(nodes[number] >= 0);
  if (nodes[number] > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* also if the test is killed */
  execl(program, program, case_uri(), gateways(), digits, how, (char *)NULL);
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
  return case_end(state);
}

/* Waits until so many documents match. */
static void wait_for(int64_t want, const char *filter) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_S * INT64_C(1000));
  for (; count("%s", filter) < want; dibs__nap_ms(POLL_MS)) {
    for (int i = 0; i < NODES; i++) {
      if (nodes[i] <= 0 || waitpid(nodes[i], NULL, WNOHANG) == 0) continue;
      nodes[i] = 0;
      fail_msg("node %d has ended by itself", i);
    }
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("never: %s: %s", filter, shown("%s", filter));
  }
}

static void make_scene(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  assert_true(command(
      "{'createIndexes':'%s','indexes':[{'key':{'phase':1,'lockedAt':1,'updatedAt':1},'name':'oldest'}]}", gateways()));
  for (int i = 0; i < DELETIONS + CREATIONS; i++)
    insert("{'_id':%d,'phase':'%s','state':0,'lockedAt':%s,'createdAt':%s,'updatedAt':%s,"
           "'certificate':{'$numberLong':'%" PRId64 "'}}",
           i, i < DELETIONS ? "Deleting" : "Creating", never(), ago(0), ago(0),
           (int64_t)now.tv_sec * 1000 + SCENE_CERTIFICATE_MS);
}

struct step {
  int gateway, step;
};

/* The step in whose middle this node is.  false: in none. */
static bool step_of(int node, struct step *is) {
  char key[24];
  snprintf(key, sizeof key, "busy.n%d", node);
  const char *text = shown("{'%s':{'$exists':true}}", key);
  if (!*text) return false;
  bson_error_t error;
  bson_iter_t at, in;
  bson_t *document = bson_new_from_json((const uint8_t *)text, -1, &error);
  assert_non_null(document);
  assert_true(bson_iter_init_find(&at, document, "_id"));
  is->gateway = (int)bson_iter_as_int64(&at);
  assert_true(bson_iter_init(&at, document) && bson_iter_find_descendant(&at, key, &in));
  is->step = (int)bson_iter_as_int64(&in);
  bson_destroy(document);
  return true;
}

static struct step wait_for_step(int node) {
  char filter[64];
  struct step is;
  snprintf(filter, sizeof filter, "{'busy.n%d':{'$exists':true}}", node);
  do wait_for(1, filter);
  while (!step_of(node, &is));
  return is;
}

/* Stops the node in the middle of a step. */
static struct step stop_in_a_step(int node) {
  for (;;) {
    struct step is = wait_for_step(node), still;
    assert_int_equal(kill(nodes[node], SIGSTOP), 0);
    dibs__nap_ms(20); /* an update that it had sent takes effect */
    if (step_of(node, &still) && still.gateway == is.gateway && still.step == is.step) return is;
    assert_int_equal(kill(nodes[node], SIGCONT), 0);
  }
}

/* After the timeout another node claims the gateway and does the step, and then the stopped one goes on: what it does
 * is refused. */
static void go_on_after_a_takeover(int node, struct step is) {
  char filter[160];
  snprintf(filter, sizeof filter, "{'_id':%d,'done':{'$elemMatch':{'step':%d,'node':{'$ne':%d}}}}", is.gateway, is.step,
           node);
  wait_for(1, filter);
  assert_int_equal(kill(nodes[node], SIGCONT), 0);
  snprintf(filter, sizeof filter, "{'_id':%d,'refused.by':%d}", is.gateway, node);
  wait_for(1, filter);
}

static void kill_in_a_step(int node) {
  (void)wait_for_step(node);
  kill_node(node);
}

static void wait_for_the_end(void) {
  char filter[160];
  snprintf(filter, sizeof filter, "{'phase':{'$in':['Created','Deleted']},'lockedAt':%s}", never());
  wait_for(DELETIONS + CREATIONS, filter);
  for (int i = 0; i < NODES; i++) kill_node(i);
}

static void every_step_took_effect_once(void) {
  for (int i = 0; i < DELETIONS + CREATIONS; i++) {
    bool deleted = i < DELETIONS;
    int64_t size = deleted ? SCENE_STEPS : 1;
    if (count("{'_id':%d,'phase':'%s','done':{'$size':%" PRId64 "}}", i, deleted ? "Deleted" : "Created", size) != 1)
      fail_msg("gateway %d: %s", i, shown("{'_id':%d}", i));
    for (int step = deleted ? 0 : SCENE_CREATED; step < (deleted ? SCENE_STEPS : SCENE_CREATED + 1); step++)
      assert_int_equal(count("{'_id':%d,'done.step':%d}", i, step), 1);
  }
}

static void nodes_die_and_stop_and_no_step_takes_effect_twice(void **state) {
  (void)state;
  make_scene();
  for (int i = 0; i < 4; i++) start_node(i, "fence");
  kill_in_a_step(1);
  struct step is = stop_in_a_step(2);
  go_on_after_a_takeover(2, is);
  wait_for_the_end();
  every_step_took_effect_once();
}

static void programs_without_dibs_share_the_work(void **state) {
  (void)state;
  make_scene();
  for (int i = 0; i < NODES; i++) start_node(i, i < 2 ? "shared" : "polled");
  kill_in_a_step(3);
  struct step first = stop_in_a_step(2), second = stop_in_a_step(0);
  go_on_after_a_takeover(2, first);
  go_on_after_a_takeover(0, second);
  wait_for_the_end();
  every_step_took_effect_once();
  assert_true(count("{'done.node':{'$lt':2}}") > 0);
  assert_true(count("{'done.node':{'$gte':2}}") > 0);
}

#define SCENE(f) cmocka_unit_test_setup_teardown(f, case_begin, scene_end)

int main(int argc, char *argv[]) {
  if (argc != 3) return 2;
  program = argv[1];
  bed_begin(argv[2]);
  const struct CMUnitTest tests[] = {
      SCENE(nodes_die_and_stop_and_no_step_takes_effect_twice),
      SCENE(programs_without_dibs_share_the_work),
  };
  return cmocka_run_group_tests_name("mongodb scene", tests, NULL, NULL);
}
