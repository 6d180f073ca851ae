/* SPDX-License-Identifier: MIT */
/*
 * A change of a stock in MongoDB has several steps, each a request.  A client is killed or stopped at each of them,
 * then another one continues with the same claim, on the same stock or another one; what was stopped arrives after
 * that. In every case no claim counts twice, none is lost, and `used` is the sum of what the claims hold.  The same
 * holds when two clients that take one claim are stopped, and one of them continues first.
 *
 *   test_steps URI
 */
#include "drivers/mongodb/mongodb_impl.h"
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OLD = 3, UNITS = 5, STEPS = 24, KEY = 48 };

static struct {
  struct bed bed;
  struct bed second; /* the same with a wire of its own */
  uint32_t cases;
  /* Of a case. */
  char seats[KEY], tables[KEY], claim[KEY], old[OLD][KEY];
} s;

static struct dibs__stock_op run(const struct bed_client *c, enum dibs__stock_verb verb, const char *key,
                                 const char *claim, int64_t amount, int64_t ms) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .amount = amount};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), ms);
  op.op.status = DIBS_UNKNOWN;
  op.key = dibs__str_of(key, strlen(key));
  op.claim = dibs__str_of(claim, strlen(claim));
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  return op;
}

static struct dibs__stock_op ask(enum dibs__stock_verb verb, const char *key, const char *claim, int64_t amount) {
  return run(&s.bed.other, verb, key, claim, amount, PATIENCE_MS);
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
  for (int i = 0; i < count; i++) assert_int_equal(ask(DIBS__STOCK_TAKE, s.seats, s.old[i], 1).op.status, DIBS_OK);
}

/* A collection of dibs, without dibs. */
struct raw {
  mongoc_client_t *client;
  mongoc_collection_t *collection;
};

static struct raw open_raw(const char *kind) {
  char name[80], host[320];
  snprintf(host, sizeof host, "mongodb://%s:%u", s.bed.host, s.bed.port);
  snprintf(name, sizeof name, "%s%s", s.bed.prefix, kind);
  mongoc_client_t *client = mongoc_client_new(host);
  return (struct raw){client, mongoc_client_get_collection(client, s.bed.database, name)};
}

static void close_raw(struct raw raw) {
  mongoc_collection_destroy(raw.collection);
  mongoc_client_destroy(raw.client);
}

/* As a client leaves it that was killed after its first step. */
static void bind_to_tables(void) {
  struct raw claims = open_raw("claims");
  bson_error_t error;
  bson_t document = BSON_INITIALIZER;
  BSON_APPEND_UTF8(&document, "_id", s.claim);
  BSON_APPEND_INT64(&document, "v", 4711);
  BSON_APPEND_UTF8(&document, "stock", s.tables);
  BSON_APPEND_UTF8(&document, "state", "bound");
  if (!mongoc_collection_insert_one(claims.collection, &document, NULL, NULL, &error)) fail_msg("%s", error.message);
  bson_destroy(&document);
  close_raw(claims);
}

/* How many claims are inside of the document of `seats`. */
static uint32_t count_inside(void) {
  struct raw stocks = open_raw("stocks");
  bson_t filter = BSON_INITIALIZER;
  const bson_t *document;
  bson_iter_t at, in;
  uint32_t inside = 0;
  BSON_APPEND_UTF8(&filter, "_id", s.seats);
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(stocks.collection, &filter, NULL, NULL);
  assert_true(mongoc_cursor_next(cursor, &document));
  assert_true(bson_iter_init_find(&at, document, "claims") && bson_iter_recurse(&at, &in));
  while (bson_iter_next(&in)) inside++;
  mongoc_cursor_destroy(cursor);
  bson_destroy(&filter);
  close_raw(stocks);
  return inside;
}

/* Stocks of their own for each case: OLD claims of 1 unit in `seats`, in which UNITS more fit, as in `tables`. */
static void begin_case(enum scene scene) {
  uint32_t nth = s.cases++;
  snprintf(s.seats, KEY, "seats%u", nth);
  snprintf(s.tables, KEY, "tables%u", nth);
  snprintf(s.claim, KEY, "claim%u", nth);
  for (int i = 0; i < OLD; i++) snprintf(s.old[i], KEY, "old%u-%d", nth, i);
  assert_int_equal(ask(DIBS__STOCK_SET, s.seats, "", OLD + UNITS).op.status, DIBS_OK);
  assert_int_equal(ask(DIBS__STOCK_SET, s.tables, "", UNITS).op.status, DIBS_OK);
  if (scene >= GIVES_MOVED) assert_int_equal(ask(DIBS__STOCK_TAKE, s.seats, s.claim, UNITS).op.status, DIBS_OK);
  take_old(scene == MOVES ? OLD - 1 : OLD); /* with `claim` one too many inside */
  if (scene == GIVES_MOVED) {               /* the next change moves it out */
    assert_int_equal(ask(DIBS__STOCK_GIVE, s.seats, s.old[0], 0).op.status, DIBS_OK);
    assert_int_equal(ask(DIBS__STOCK_SET, s.seats, "", OLD + UNITS).op.status, DIBS_OK);
  }
  if (scene == GIVES_INSIDE) assert_int_equal(ask(DIBS__STOCK_TAKE, s.seats, s.claim, UNITS).op.status, DIBS_OK);
  if (scene == TAKES_BOUND) bind_to_tables();
}

struct acting {
  struct bed_client client;
  enum scene scene;
  dibs__status status;
};

static void act(void *user) {
  struct acting *a = user;
  bool takes = a->scene <= TAKES_BOUND;
  if (a->scene == MOVES)
    a->status = run(&a->client, DIBS__STOCK_SET, s.seats, "", OLD + UNITS, PATIENCE_MS).op.status;
  else
    a->status =
        run(&a->client, takes ? DIBS__STOCK_TAKE : DIBS__STOCK_GIVE, s.seats, s.claim, takes ? UNITS : 0, PATIENCE_MS)
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
    snprintf(none, sizeof none, "none%u-%d", s.cases, i);
    assert_int_equal(ask(DIBS__STOCK_GIVE, s.seats, none, 0).op.status, DIBS_NOT_FOUND);
  }
  assert_int_equal(ask(DIBS__STOCK_SET, s.seats, "", OLD + UNITS).op.status, DIBS_OK);
}

static dibs__status continue_with(enum next next) {
  if (next == BACK) return ask(DIBS__STOCK_GIVE, s.seats, s.claim, 0).op.status;
  return ask(DIBS__STOCK_TAKE, next == OTHER ? s.tables : s.seats, s.claim, UNITS).op.status;
}

/* Is what it was answered possible, and what does the claim hold now? */
static bool is_right(enum scene scene, enum next next, const struct outcome *o, int64_t seats, int64_t tables) {
  bool takes = scene <= TAKES_BOUND || scene == MOVES, first_done = o->first == DIBS_OK && scene != MOVES;
  bool counted = o->second == DIBS_OK || o->second == DIBS_REPLAY;
  if (next == SAME && takes) return counted && seats == UNITS && tables == 0;
  if (next == SAME && counted) return seats == (first_done ? 0 : UNITS) && tables == 0; /* given back after that */
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
    dibs__status status = ask(DIBS__STOCK_GIVE, s.seats, s.old[i], 0).op.status;
    assert_true(status == DIBS_OK || status == DIBS_REPLAY || status == DIBS_NOT_FOUND);
  }
  dibs__status status = ask(DIBS__STOCK_GIVE, s.seats, s.claim, 0).op.status;
  if (status == DIBS_CONFLICT) status = ask(DIBS__STOCK_GIVE, s.tables, s.claim, 0).op.status;
  assert_true(status == DIBS_OK || status == DIBS_REPLAY || status == DIBS_NOT_FOUND);
  assert_int_equal(used(s.seats), 0);
  assert_int_equal(used(s.tables), 0);
}

/* false: the client ended before that step. */
static bool play(enum scene scene, enum wire_end how, enum next next, int step) {
  struct acting a = {.scene = scene};
  struct bed_acting acting = {.act = act, .user = &a};
  struct outcome o;
  begin_case(scene);
  wire_arm(s.bed.wire, how, 0);
  assert_true(bed_connect(&s.bed, &a.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, how, step);
  assert_true(bed_begin(&s.bed, &acting, how));
  bool ended = wire_ended(s.bed.wire);
  if (!ended) assert_int_equal(a.status, DIBS_OK);
  o.second = continue_with(next);
  if (scene == MOVES) move_all_out();
  bed_finish(&s.bed, &acting);
  o.first = a.status;
  int64_t old = scene >= GIVES_MOVED ? OLD - 1 : OLD;
  int64_t seats = used(s.seats) - old, tables = used(s.tables);
  if (!is_right(scene, next, &o, seats, tables))
    fail_msg("%s, ended at step %d (%d); then another client %s: answers %d and %d, the claim holds %lld and %lld",
             scene_names[scene], step, (int)how, next_names[next], (int)o.first, (int)o.second, (long long)seats,
             (long long)tables);
  give_all_back();
  bed_disconnect(&a.client);
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
static void a_client_is_stopped_at_each_step_and_continues(void **state) {
  (void)state;
  end_at_each_step(WIRE_STOP);
}

/* ---- Two clients take one claim ---- */

/* What happens after the first one, and before the second one continues. */
enum between { MOVED_OUT, GIVEN_BACK, GIVEN_AND_MOVED, BETWEENS };
static const char *const between_names[] = {"moved out", "given back", "given back and moved out"};

struct taking {
  struct bed_client client;
  const char *key;
  dibs__status status;
};

static void take_units(void *user) {
  struct taking *t = user;
  t->status = run(&t->client, DIBS__STOCK_TAKE, t->key, s.claim, UNITS, PATIENCE_MS).op.status;
}

static void begin_taking(struct bed *bed, struct taking *t, struct bed_acting *acting, const char *key,
                         enum wire_end how, int step) {
  *t = (struct taking){.key = key};
  *acting = (struct bed_acting){.act = take_units, .user = t};
  wire_arm(bed->wire, how, 0);
  assert_true(bed_connect(bed, &t->client, wire_port(bed->wire)));
  wire_arm(bed->wire, how, step);
  assert_true(bed_begin(bed, acting, how));
}

/* It is given back, or one of the stocks has it, and that one alone. */
static void check_claim(const char *what, bool given, const struct taking *first, const struct taking *second) {
  int64_t seats = used(s.seats) - OLD, tables = used(s.tables);
  dibs__status in_seats = ask(DIBS__STOCK_TAKE, s.seats, s.claim, UNITS).op.status;
  dibs__status in_tables = ask(DIBS__STOCK_TAKE, s.tables, s.claim, UNITS).op.status;
  bool has_seats = !given && seats == UNITS && tables == 0 && in_seats == DIBS_REPLAY && in_tables == DIBS_CONFLICT;
  bool has_tables = !given && seats == 0 && tables == UNITS && in_seats == DIBS_CONFLICT && in_tables == DIBS_REPLAY;
  bool has_none = given && seats == 0 && tables == 0 && in_seats == DIBS_CONFLICT && in_tables == DIBS_CONFLICT;
  bool twice = first->status == DIBS_OK && second->status == DIBS_OK;
  if (twice || !(has_seats || has_tables || has_none))
    fail_msg("%s: answers %d and %d; the claim holds %lld and %lld; another take answers %d and %d", what,
             (int)first->status, (int)second->status, (long long)seats, (long long)tables, (int)in_seats,
             (int)in_tables);
  give_all_back();
}

/* false: the second client ended before that step. */
static bool meet(bool same, enum between between, int first_step, int step) {
  char what[160];
  struct taking one, two;
  struct bed_acting first, second;
  begin_case(TAKES);
  begin_taking(&s.bed, &one, &first, s.seats, WIRE_STOP, first_step);
  begin_taking(&s.second, &two, &second, same ? s.seats : s.tables, WIRE_STOP, step);
  bool ended = wire_ended(s.second.wire);
  bed_finish(&s.bed, &first);
  dibs__status gave = between == MOVED_OUT ? DIBS_CONFLICT : ask(DIBS__STOCK_GIVE, s.seats, s.claim, 0).op.status;
  if (between != GIVEN_BACK) move_all_out();
  bed_finish(&s.second, &second);
  snprintf(what, sizeof what, "stopped at step %d, and for %s at step %d; it was %s", first_step,
           same ? "the same stock" : "another stock", step, between_names[between]);
  check_claim(what, gave != DIBS_CONFLICT, &one, &two);
  bed_disconnect(&one.client);
  bed_disconnect(&two.client);
  return ended;
}

static void two_clients_with_one_claim_are_stopped_and_continue(void **state) {
  (void)state;
  for (int first_step = 2; first_step <= 4; first_step += 2) /* the claim is bound; the stock is written */
    for (enum between between = 0; between < BETWEENS; between++)
      for (int same = 0; same < 2; same++) {
        int step = 1;
        while (step < STEPS && meet(same != 0, between, first_step, step)) step++;
        assert_in_range(step, 2, STEPS - 1);
      }
}

/* The second client was about to bind the claim to another stock, while the first one took it. */
static void what_a_killed_client_leaves_does_not_keep_claims_inside(void **state) {
  (void)state;
  bool ended = true;
  for (int step = 1; step < STEPS && ended; step++) {
    struct taking one, two;
    struct bed_acting first, second;
    begin_case(TAKES);
    begin_taking(&s.bed, &one, &first, s.seats, WIRE_STOP, 4);
    begin_taking(&s.second, &two, &second, s.tables, WIRE_KILL, step);
    ended = wire_ended(s.second.wire);
    bed_finish(&s.second, &second);
    bed_finish(&s.bed, &first);
    move_all_out();
    uint32_t inside = count_inside();
    if (inside > OLD) fail_msg("killed after step %d: %u claims stay inside", step, inside);
    bed_disconnect(&one.client);
    bed_disconnect(&two.client);
  }
}

/* ---- */

static int open_all(void **state) {
  (void)state;
  if (!bed_open(&s.bed)) return -1;
  s.second = s.bed;
  s.second.wire = wire_open(s.bed.host, s.bed.port);
  return s.second.wire ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  wire_close(s.second.wire);
  bed_close(&s.bed);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_client_is_killed_after_each_step),
      cmocka_unit_test(a_client_is_stopped_at_each_step_and_continues),
      cmocka_unit_test(two_clients_with_one_claim_are_stopped_and_continue),
      cmocka_unit_test(what_a_killed_client_leaves_does_not_keep_claims_inside),
  };
  if (argc != 2) return 2;
  s.bed.server = argv[1];
  return cmocka_run_group_tests_name("mongodb steps", tests, open_all, close_all);
}
