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
  struct bed second; /* the same with a wire of its own */
  uint32_t cases;
  /* Of a case. */
  char seats[KEY], tables[KEY], claim[KEY], old[OLD][KEY];
} s;

static struct dibs__stock_op run(const struct bed_client *c, enum dibs__stock_verb verb, const char *key,
                                 const char *claim, int64_t amount) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .amount = amount};
  op.key = dibs__str_of(key, strlen(key));
  op.claim = dibs__str_of(claim, strlen(claim));
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  (void)bed_run(c, &op.op, NULL);
  return op;
}

static struct dibs__stock_op ask(enum dibs__stock_verb verb, const char *key, const char *claim, int64_t amount) {
  return run(&bed.other, verb, key, claim, amount);
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
  snprintf(host, sizeof host, "mongodb://%s:%u", bed.host, bed.port);
  snprintf(name, sizeof name, "%s%s", s.bed.prefix, kind);
  mongoc_client_t *client = mongoc_client_new(host);
  return (struct raw){client, mongoc_client_get_collection(client, bed.database, name)};
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

struct play {
  enum scene scene;
  enum next next;
  dibs__status first, second; /* what the clients were answered */
};

static void begin(void *user) {
  begin_case(((const struct play *)user)->scene);
}

static void act(const struct bed_client *c, void *user) {
  struct play *p = user;
  bool takes = p->scene <= TAKES_BOUND;
  p->first = p->scene == MOVES
                 ? run(c, DIBS__STOCK_SET, s.seats, "", OLD + UNITS).op.status
                 : run(c, takes ? DIBS__STOCK_TAKE : DIBS__STOCK_GIVE, s.seats, s.claim, takes ? UNITS : 0).op.status;
}

/* ---- What another client does then ---- */

/* Until what the other client has changed is outside, too. */
static void move_all_out(void) {
  char none[KEY];
  for (int i = 0; i < OLD; i++) {
    snprintf(none, sizeof none, "none%u-%d", s.cases, i);
    assert_int_equal(ask(DIBS__STOCK_GIVE, s.seats, none, 0).op.status, DIBS_NOT_FOUND);
  }
  assert_int_equal(ask(DIBS__STOCK_SET, s.seats, "", OLD + UNITS).op.status, DIBS_OK);
}

static void continue_with(void *user) {
  struct play *p = user;
  if (!bed.ended) assert_int_equal(p->first, DIBS_OK);
  p->second = p->next == BACK ? ask(DIBS__STOCK_GIVE, s.seats, s.claim, 0).op.status
                              : ask(DIBS__STOCK_TAKE, p->next == OTHER ? s.tables : s.seats, s.claim, UNITS).op.status;
  if (p->scene == MOVES) move_all_out();
}

/* Is what it was answered possible, and what does the claim hold now? */
static bool is_right(const struct play *p, int64_t seats, int64_t tables) {
  enum next next = p->next;
  bool moves = p->scene == MOVES, takes = p->scene <= TAKES_BOUND || moves, first_done = p->first == DIBS_OK && !moves;
  bool counted = p->second == DIBS_OK || p->second == DIBS_REPLAY;
  if (next == SAME && takes) return counted && seats == UNITS && tables == 0;
  if (next == SAME && counted) return seats == (first_done ? 0 : UNITS) && tables == 0; /* given back after that */
  if (next == SAME) return p->second == DIBS_CONFLICT && seats == 0 && tables == 0;
  if (next == OTHER && takes)
    return counted && !moves ? seats == 0 && tables == UNITS && !first_done
                             : p->second == DIBS_CONFLICT && seats == UNITS && tables == 0;
  if (next == OTHER)
    return p->second == DIBS_CONFLICT && (seats == 0 || (seats == UNITS && !first_done)) && tables == 0;
  if (first_done && takes && p->second != DIBS_OK) return false;
  return (counted || (takes && p->second == DIBS_NOT_FOUND)) && seats == 0 && tables == 0;
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

static void check(void *user) {
  const struct play *p = user;
  int64_t old = p->scene >= GIVES_MOVED ? OLD - 1 : OLD;
  int64_t seats = used(s.seats) - old, tables = used(s.tables);
  if (!is_right(p, seats, tables))
    fail_msg("%s, ended at step %d (%d); then another client %s: answers %d and %d, the claim holds %lld and %lld",
             scene_names[p->scene], bed.step, (int)bed.how, next_names[p->next], (int)p->first, (int)p->second,
             (long long)seats, (long long)tables);
  give_all_back();
}

static void end_at_each_step(enum wire_end how) {
  for (enum scene scene = 0; scene < SCENES; scene++)
    for (enum next next = 0; next < NEXTS; next++) {
      struct play p = {.scene = scene, .next = next};
      bed_end_at_each(how, 2, STEPS, &(struct bed_scene){begin, act, continue_with, check, &p});
    }
}

int main(int argc, char **argv) {
  return bed_main(argc, argv, "mongodb steps", end_at_each_step);
}
