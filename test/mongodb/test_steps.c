/* SPDX-License-Identifier: MIT */
/*
 * A change of a stock in MongoDB has several steps, each a request.  A client is killed or stopped at each of them,
 * then another one continues with the same claim, on the same stock or another one; what was stopped arrives after
 * that. Whatever happens, no claim counts twice, none is lost, and `used` is the sum of what the claims hold.
 *
 *   test_steps URI
 */
#include "drivers/mongodb/mongodb_impl.h"
#include "wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, OLD = 3, UNITS = 5, STEPS = 24, KEY = 48 };

static const char *server;

struct client {
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
};

static struct {
  char host[64], database[64], prefix[40];
  uint16_t port;
  struct wire *wire;
  struct client other;
  uint32_t cases;
  /* Of a case. */
  char seats[KEY], tables[KEY], claim[KEY], old[OLD][KEY];
} bed;

static const struct dibs__driver *const driver = &dibs__mongodb_driver;

/* ---- Clients ---- */

/* Two claims stay inside of a document, so that others are moved out. */
static bool open_client(struct client *c, uint16_t port) {
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
  if (!fine) print_error("%s\n", result.text);
  return fine;
}

static void close_client(struct client *c) {
  if (c->session) driver->disconnect(c->session);
  if (c->store) driver->close(c->store);
}

static struct dibs__stock_op run(const struct client *c, enum dibs__stock_verb verb, const char *key, const char *claim,
                                 int64_t amount, int64_t ms) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .amount = amount};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), ms);
  op.op.status = DIBS_UNKNOWN;
  op.key = dibs__str_of(key, strlen(key));
  op.claim = dibs__str_of(claim, strlen(claim));
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  (void)driver->run(c->session, ops, 1, op.op.by, &result);
  return op;
}

static struct dibs__stock_op ask(enum dibs__stock_verb verb, const char *key, const char *claim, int64_t amount) {
  return run(&bed.other, verb, key, claim, amount, PATIENCE_MS);
}

static int64_t used(const char *key) {
  struct dibs__stock_op op = ask(DIBS__STOCK_READ, key, "", 0);
  assert_int_equal(op.op.status, DIBS_OK);
  return op.used;
}

/* ---- What the client was doing ---- */

enum scene { TAKES, TAKES_BOUND, GIVES_INSIDE, GIVES_MOVED, MOVES, SCENES };
static const char *const scene_names[] = {"a take", "a take of a claim that is bound to another stock",
                                          "giving back what is inside", "giving back what was moved out", "moving out"};
enum next { SAME, OTHER, BACK, NEXTS };
static const char *const next_names[] = {"takes it", "takes it from another stock", "gives it back"};

static void take_old(int count) {
  for (int i = 0; i < count; i++) assert_int_equal(ask(DIBS__STOCK_TAKE, bed.seats, bed.old[i], 1).op.status, DIBS_OK);
}

/* As a client leaves it that was killed after its first step. */
static void bind_to_tables(void) {
  char name[80], host[320];
  bson_error_t error;
  snprintf(host, sizeof host, "mongodb://%s:%u", bed.host, bed.port);
  mongoc_client_t *client = mongoc_client_new(host);
  snprintf(name, sizeof name, "%sclaims", bed.prefix);
  mongoc_collection_t *to = mongoc_client_get_collection(client, bed.database, name);
  bson_t document = BSON_INITIALIZER;
  BSON_APPEND_UTF8(&document, "_id", bed.claim);
  BSON_APPEND_INT64(&document, "v", 4711);
  BSON_APPEND_UTF8(&document, "stock", bed.tables);
  BSON_APPEND_UTF8(&document, "state", "bound");
  if (!mongoc_collection_insert_one(to, &document, NULL, NULL, &error)) fail_msg("%s", error.message);
  bson_destroy(&document);
  mongoc_collection_destroy(to);
  mongoc_client_destroy(client);
}

/* Stocks of their own for each case: OLD claims of 1 unit in `seats`, in which UNITS more fit, as in `tables`. */
static void begin_case(enum scene scene) {
  uint32_t nth = bed.cases++;
  snprintf(bed.seats, KEY, "seats%u", nth);
  snprintf(bed.tables, KEY, "tables%u", nth);
  snprintf(bed.claim, KEY, "claim%u", nth);
  for (int i = 0; i < OLD; i++) snprintf(bed.old[i], KEY, "old%u-%d", nth, i);
  assert_int_equal(ask(DIBS__STOCK_SET, bed.seats, "", OLD + UNITS).op.status, DIBS_OK);
  assert_int_equal(ask(DIBS__STOCK_SET, bed.tables, "", UNITS).op.status, DIBS_OK);
  if (scene >= GIVES_MOVED) assert_int_equal(ask(DIBS__STOCK_TAKE, bed.seats, bed.claim, UNITS).op.status, DIBS_OK);
  take_old(scene == MOVES ? OLD - 1 : OLD); /* with `claim` one too many inside */
  if (scene == GIVES_MOVED) {               /* the next change moves it out */
    assert_int_equal(ask(DIBS__STOCK_GIVE, bed.seats, bed.old[0], 0).op.status, DIBS_OK);
    assert_int_equal(ask(DIBS__STOCK_SET, bed.seats, "", OLD + UNITS).op.status, DIBS_OK);
  }
  if (scene == GIVES_INSIDE) assert_int_equal(ask(DIBS__STOCK_TAKE, bed.seats, bed.claim, UNITS).op.status, DIBS_OK);
  if (scene == TAKES_BOUND) bind_to_tables();
}

static dibs__status act(const struct client *c, enum scene scene) {
  bool takes = scene <= TAKES_BOUND;
  if (scene == MOVES) return run(c, DIBS__STOCK_SET, bed.seats, "", OLD + UNITS, PATIENCE_MS).op.status;
  return run(c, takes ? DIBS__STOCK_TAKE : DIBS__STOCK_GIVE, bed.seats, bed.claim, takes ? UNITS : 0, PATIENCE_MS)
      .op.status;
}

/* ---- What another client does then ---- */

struct outcome {
  dibs__status first, second;
};

/* Until what the other client has changed is outside, too. */
static void move_all_out(void) {
  char none[KEY];
  for (int i = 0; i < OLD; i++) {
    snprintf(none, sizeof none, "none%u-%d", bed.cases, i);
    assert_int_equal(ask(DIBS__STOCK_GIVE, bed.seats, none, 0).op.status, DIBS_NOT_FOUND);
  }
  assert_int_equal(ask(DIBS__STOCK_SET, bed.seats, "", OLD + UNITS).op.status, DIBS_OK);
}

static dibs__status continue_with(enum next next) {
  if (next == BACK) return ask(DIBS__STOCK_GIVE, bed.seats, bed.claim, 0).op.status;
  return ask(DIBS__STOCK_TAKE, next == OTHER ? bed.tables : bed.seats, bed.claim, UNITS).op.status;
}

/* Is what it was answered possible, and what does the claim hold now? */
static bool is_right(enum scene scene, enum wire_end how, enum next next, const struct outcome *o, int64_t seats,
                     int64_t tables) {
  bool takes = scene <= TAKES_BOUND || scene == MOVES, first_done = o->first == DIBS_OK && scene != MOVES;
  bool counted = o->second == DIBS_OK || o->second == DIBS_REPLAY;
  if (next == SAME && takes) return counted && seats == UNITS && tables == 0;
  if (next == SAME && counted) /* what arrives late may give it back after that */
    return (seats == UNITS || (seats == 0 && how == WIRE_HOLD)) && !first_done && tables == 0;
  if (next == SAME) return o->second == DIBS_CONFLICT && seats == 0 && tables == 0;
  if (next == OTHER && takes)
    return counted && scene != MOVES ? seats == 0 && tables == UNITS && !first_done
                                     : o->second == DIBS_CONFLICT && seats == UNITS && tables == 0;
  if (next == OTHER)
    return o->second == DIBS_CONFLICT && (seats == 0 || (seats == UNITS && !first_done)) && tables == 0;
  if (first_done && takes && o->second != DIBS_OK) return false;
  return (counted || (takes && o->second == DIBS_NOT_FOUND)) && seats == 0 && tables == 0;
}

/* Gives everything back, each claim once: nothing is used then. */
static void give_all_back(void) {
  for (int i = 0; i < OLD; i++) {
    dibs__status status = ask(DIBS__STOCK_GIVE, bed.seats, bed.old[i], 0).op.status;
    assert_true(status == DIBS_OK || status == DIBS_REPLAY || status == DIBS_NOT_FOUND);
  }
  dibs__status status = ask(DIBS__STOCK_GIVE, bed.seats, bed.claim, 0).op.status;
  if (status == DIBS_CONFLICT) status = ask(DIBS__STOCK_GIVE, bed.tables, bed.claim, 0).op.status;
  assert_true(status == DIBS_OK || status == DIBS_REPLAY || status == DIBS_NOT_FOUND);
  assert_int_equal(used(bed.seats), 0);
  assert_int_equal(used(bed.tables), 0);
}

/* false: the client ended before that step. */
static bool play(enum scene scene, enum wire_end how, enum next next, int step) {
  struct client c;
  struct outcome o;
  begin_case(scene);
  wire_arm(bed.wire, how, 0);
  assert_true(open_client(&c, wire_port(bed.wire)));
  wire_arm(bed.wire, how, step);
  o.first = act(&c, scene);
  bool ended = wire_ended(bed.wire);
  if (!ended) assert_int_equal(o.first, DIBS_OK);
  o.second = continue_with(next);
  if (scene == MOVES) move_all_out();
  wire_release(bed.wire);
  int64_t old = scene >= GIVES_MOVED ? OLD - 1 : OLD;
  int64_t seats = used(bed.seats) - old, tables = used(bed.tables);
  if (!is_right(scene, how, next, &o, seats, tables))
    fail_msg("%s, ended at step %d (%d); then another client %s: answers %d and %d, the claim holds %lld and %lld",
             scene_names[scene], step, (int)how, next_names[next], (int)o.first, (int)o.second, (long long)seats,
             (long long)tables);
  give_all_back();
  close_client(&c);
  return ended;
}

static void end_at_each_step(enum wire_end how) {
  for (enum scene scene = 0; scene < SCENES; scene++)
    for (enum next next = 0; next < NEXTS; next++) {
      int step = 1;
      while (step < STEPS && play(scene, how, next, step)) step++;
      assert_in_range(step, 2, STEPS - 1);
    }
}

static void a_client_is_killed_after_each_step(void **state) {
  (void)state;
  end_at_each_step(WIRE_KILL);
}
static void a_client_is_stopped_at_each_step_and_continues_late(void **state) {
  (void)state;
  end_at_each_step(WIRE_HOLD);
}

/* ---- */

static int open_bed(void **state) {
  (void)state;
  uint64_t random;
  struct dibs__uri uri;
  struct dibs__result result;
  mongoc_init();
  assert_int_equal(dibs__uri_parse(server, &uri, &result), DIBS_OK);
  assert_int_equal(sscanf(uri.hosts, "%63[^:]:%hu", bed.host, &bed.port), 2);
  snprintf(bed.database, sizeof bed.database, "%s", uri.path[0] == '/' ? uri.path + 1 : uri.path);
  dibs__uri_free(&uri);
  dibs__random(&random, sizeof random);
  snprintf(bed.prefix, sizeof bed.prefix, "s%llx_", (unsigned long long)random);
  bed.wire = wire_open(bed.host, bed.port);
  assert_non_null(bed.wire);
  assert_true(open_client(&bed.other, bed.port));
  return 0;
}

static int close_bed(void **state) {
  (void)state;
  close_client(&bed.other);
  wire_close(bed.wire);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_client_is_killed_after_each_step),
      cmocka_unit_test(a_client_is_stopped_at_each_step_and_continues_late),
  };
  if (argc != 2) return 2;
  server = argv[1];
  return cmocka_run_group_tests_name("mongodb steps", tests, open_bed, close_bed);
}
