/* SPDX-License-Identifier: MIT */
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct bed bed;

static const struct dibs__driver *const driver = &dibs__mongodb_driver;

/* A client at this port of the server. */
static bool connect_at(uint16_t port, struct bed_client *c) {
  char text[256];
  struct dibs__uri uri;
  struct dibs__result result = {.text = ""};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  snprintf(text, sizeof text, "mongodb://%s:%u/%s?claims=2&prefix=%s", bed.host, port, bed.database, bed.prefix);
  memset(c, 0, sizeof *c);
  if (dibs__uri_parse(text, &uri, &result) != DIBS_OK) return false;
  bool fine = driver->open(&uri, NULL, 0, by, &c->store, &result) == DIBS_OK;
  dibs__uri_free(&uri);
  if (fine) c->store->driver = driver;
  fine = fine && driver->connect(c->store, by, &c->session, &c->identity, &result) == DIBS_OK;
  if (!fine) fprintf(stderr, "steps: %s\n", result.text);
  return fine;
}

static void disconnect(struct bed_client *c) {
  if (c->session) driver->disconnect(c->session);
  if (c->store) driver->close(c->store);
}

dibs__status bed_run(const struct bed_client *c, struct dibs__op *op, struct dibs__result *result) {
  struct dibs__op *ops[] = {op};
  struct dibs__result unused;
  op->by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op->status = DIBS_UNKNOWN;
  (void)driver->run(c->session, ops, 1, op->by, result ? result : &unused);
  return op->status;
}

/* ---- A client that ends ---- */

struct acting {
  struct bed_client client;
  const struct bed_scene *scene;
  _Atomic bool done;
};

static void run_acting(void *arg) {
  struct acting *acting = arg;
  acting->scene->act(&acting->client, acting->scene->user);
  atomic_store(&acting->done, true);
}

/* false: the client ended before that step. */
static bool play(const struct bed_scene *scene) {
  struct acting acting = {.scene = scene};
  scene->begin(scene->user);
  wire_arm(bed.wire, bed.how, 0);
  assert_true(connect_at(wire_port(bed.wire), &acting.client));
  wire_arm(bed.wire, bed.how, bed.step);
  dibs__thread *thread = dibs__thread_start("client", run_acting, &acting);
  assert_non_null(thread);
  while (!atomic_load(&acting.done) && !(bed.how == WIRE_STOP && wire_ended(bed.wire))) dibs__nap_ms(1);
  bed.ended = wire_ended(bed.wire);
  scene->next(scene->user);
  wire_release(bed.wire);
  dibs__thread_join(thread);
  scene->check(scene->user);
  disconnect(&acting.client);
  return bed.ended;
}

void bed_end_at_each(enum wire_end how, int least, int most, const struct bed_scene *scene) {
  bed.how = how;
  bed.step = 1;
  while (bed.step < most && play(scene)) bed.step++;
  assert_in_range(bed.step, least, most - 1);
}

/* ---- Programs ---- */

int bed_open(void **state) {
  uint64_t random;
  struct dibs__uri uri;
  struct dibs__result result;
  (void)state;
  mongoc_init();
  if (dibs__uri_parse(bed.server, &uri, &result) != DIBS_OK) return -1;
  bool fine = sscanf(uri.hosts, "%63[^:]:%hu", bed.host, &bed.port) == 2;
  snprintf(bed.database, sizeof bed.database, "%s", uri.path[0] == '/' ? uri.path + 1 : uri.path);
  dibs__uri_free(&uri);
  dibs__random(&random, sizeof random);
  snprintf(bed.prefix, sizeof bed.prefix, "s%llx_", (unsigned long long)random);
  if (fine) bed.wire = wire_open(bed.host, bed.port);
  return bed.wire && connect_at(bed.port, &bed.other) ? 0 : -1;
}

int bed_close(void **state) {
  (void)state;
  disconnect(&bed.other);
  wire_close(bed.wire);
  return 0;
}

static void (*play_all)(enum wire_end how);

static void a_client_is_killed_after_each_step(void **state) {
  (void)state;
  play_all(WIRE_KILL);
}
static void a_client_is_stopped_at_each_step_and_continues(void **state) {
  (void)state;
  play_all(WIRE_STOP);
}

int bed_main(int argc, char **argv, const char *name, void (*all)(enum wire_end how)) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_client_is_killed_after_each_step),
      cmocka_unit_test(a_client_is_stopped_at_each_step_and_continues),
  };
  if (argc != 2) return 2;
  bed.server = argv[1];
  play_all = all;
  return cmocka_run_group_tests_name(name, tests, bed_open, bed_close);
}
