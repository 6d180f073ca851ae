/* SPDX-License-Identifier: MIT */
/*
 * Stock in the user's own collections: claims in an array of the document, documents of wrong content, and programs
 * without dibs that change the same numbers.
 *
 *   test_stocks URI
 */
#include "record_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs_table *gigs(void) {
  return TABLE(.key = "_id", .used = "booked", .limit = "seats", .fence = "fence", .owner = "holder",
               .claims = "bookings", .claim = "id", .claim_amount = "n", .claim_given = "cancelled",
               .claim_owner = "who", .claim_time = "at");
}

static dibs_stock_result took; /* of the latest call */

static void expect(const char *what, const char *key, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("%s \"%s\": %s, not %s: %s", what, key, dibs_status_name(got), dibs_status_name(want), reported.text);
}

static void take_as(const char *key, int64_t amount, dibs_stock_options o, dibs_status want) {
  o.size = sizeof o;
  o.wait_ms = 30000;
  took.size = sizeof took;
  expect("take", key, dibs_stock_take(store(), key, amount, &o, &took, &reported), want);
}
#define take(key, amount, name, want, in, ...)                                                                         \
  take_as(key, amount, (dibs_stock_options){.table = in, .claim = name, ##__VA_ARGS__}, want)

static void give(const char *key, const char *claim, dibs_status want, dibs_table *t) {
  dibs_stock_options o = {.size = sizeof o, .table = t, .wait_ms = 30000};
  took.size = sizeof took;
  expect("give", key, dibs_stock_give(store(), key, claim, &o, &took, &reported), want);
}

static void set(const char *key, int64_t limit, dibs_status want, dibs_table *t) {
  dibs_stock_options o = {.size = sizeof o, .table = t, .wait_ms = 30000};
  took.size = sizeof took;
  expect("set", key, dibs_stock_set(store(), key, limit, &o, &took, &reported), want);
}

static void show(const char *key, dibs_status want, dibs_table *t) {
  dibs_stock_options o = {.size = sizeof o, .table = t, .wait_ms = 30000};
  took.size = sizeof took;
  expect("show", key, dibs_stock_show(store(), key, &o, &took, &reported), want);
}

/* ---- Claims ---- */

static void a_claim_counts_once_and_is_given_back_once(void **state) {
  (void)state;
  dibs_table *t = gigs();
  insert("{'_id':7,'band':'x','booked':1,'seats':5,'bookings':[{'id':'theirs','n':1}]}");
  take("7", 2, "a", DIBS_OK, t, .owner = "ann");
  assert_int_equal(took.got, 2);
  assert_int_equal(took.used, 3);
  assert_int_equal(took.limit, 5);
  take("7", 2, "a", DIBS_REPLAY, t);
  take("7", 1, "theirs", DIBS_REPLAY, t);
  assert_int_equal(took.got, 1);
  take("7", 3, "b", DIBS_FULL, t);
  take("7", 2, "c", DIBS_OK, t); /* a smaller one fits */
  take("7", 1, "d", DIBS_FULL, t, .flags = DIBS_TAKE_PARTIAL);
  give("7", "a", DIBS_OK, t);
  assert_int_equal(took.got, 2);
  assert_int_equal(took.used, 3);
  give("7", "a", DIBS_REPLAY, t);
  assert_int_equal(took.got, 2);
  take("7", 2, "a", DIBS_CONFLICT, t);
  take("7", 9, "d", DIBS_OK, t, .flags = DIBS_TAKE_PARTIAL);
  assert_int_equal(took.got, 2);
  give("7", "late", DIBS_NOT_FOUND, t);
  take("7", 1, "late", DIBS_CONFLICT, t);
  give("7", "late", DIBS_REPLAY, t);
  give("7", "theirs", DIBS_OK, t);
  show("7", DIBS_OK, t);
  assert_int_equal(took.used, 4);
  assert_int_equal(
      count("{'_id':7,'band':'x','booked':4,'seats':5,'bookings':{'$elemMatch':{'id':'a','n':2,'who':'ann',"
            "'cancelled':true,'at':{'$gte':%s,'$lte':%s}}}}",
            ago(60000), ago(-60000)),
      1);
  assert_int_equal(count("{'bookings':{'$size':5}}"), 1);
  assert_null(strstr(shown("{}"), "dibs"));
}

static void a_limit_is_set_but_not_below_what_is_used(void **state) {
  (void)state;
  dibs_table *t = gigs();
  show("7", DIBS_INVALID, t);
  assert_message("there is no collection");
  set("7", 3, DIBS_OK, t);
  assert_int_equal(count("{'_id':7,'booked':0,'seats':3,'bookings':[]}"), 1);
  take("7", 2, "a", DIBS_OK, t);
  set("7", 1, DIBS_FULL, t);
  assert_int_equal(took.used, 2);
  set("7", 2, DIBS_OK, t);
  take("7", 1, "b", DIBS_FULL, t);
  show("8", DIBS_NOT_FOUND, t);
  take("8", 1, "b", DIBS_NOT_FOUND, t);
  give("8", "b", DIBS_NOT_FOUND, t);
  set("9", 3000000000, DIBS_OK, t);
  take("9", 2999999999, "a", DIBS_OK, t);
  take("9", INT64_MAX, "b", DIBS_FULL, t);
  take("9", INT64_MAX, "b", DIBS_OK, t, .flags = DIBS_TAKE_PARTIAL);
  assert_int_equal(took.got, 1);
  assert_int_equal(update("{'_id':7}", "{'$set':{'seats':1}}"), 1);
  take("7", 1, "c", DIBS_FULL, t);
  give("7", "a", DIBS_OK, t);
  take("7", 1, "c", DIBS_OK, t);
}

static void claims_are_their_bytes(void **state) {
  (void)state;
  dibs_table *t = gigs();
  static const char *const names[] = {"$booked", "A", "a", "a ", "'\"\\", "gr\xc3\xbc\xc3\x9f", "@I", "{}", "7"};
  enum { NAMES = sizeof names / sizeof names[0] };
  insert("{'_id':'x','booked':0,'seats':9.0}");
  for (size_t i = 0; i < NAMES; i++) take("x", 1, names[i], DIBS_OK, t, .owner = names[i]);
  for (size_t i = 0; i < NAMES; i++) take("x", 1, names[i], DIBS_REPLAY, t);
  for (size_t i = 0; i < NAMES; i++) give("x", names[i], DIBS_OK, t);
  assert_int_equal(took.used, 0);
  assert_int_equal(count("{'bookings':{'$size':9},'bookings.who':'$booked'}"), 1);
}

static void claims_without_amounts_times_and_marks(void **state) {
  (void)state;
  dibs_error error;
  dibs_table *t = TABLE(.key = "_id", .used = "booked", .limit = "seats", .claims = "who", .claim = "id");
  insert("{'_id':7,'booked':0,'seats':2,'who':null}");
  take("7", 1, "a", DIBS_OK, t);
  take("7", 2, "b", DIBS_INVALID, t);
  assert_message("claim_amount");
  take("7", 1, "a", DIBS_REPLAY, t);
  give("7", "a", DIBS_INVALID, t);
  assert_message("claim_given");
  assert_int_equal(count("{'booked':1,'who':[{'id':'a'}]}"), 1);
  dibs_table *marks =
      TABLE(.key = "_id", .used = "booked", .limit = "seats", .claims = "who", .claim = "id", .claim_given = "gone");
  give("7", "a", DIBS_OK, marks);
  assert_int_equal(count("{'booked':0,'who':[{'id':'a','gone':true}]}"), 1);
  dibs_table *bare = TABLE(.key = "_id", .used = "booked", .limit = "seats");
  set("7", 4, DIBS_OK, bare);
  dibs_stock_options o = {.size = sizeof o, .table = bare};
  assert_int_equal(dibs_stock_take(store(), "7", 1, &o, NULL, &error), DIBS_INVALID);
}

static void old_claims_that_were_given_back_are_left_out(void **state) {
  (void)state;
  dibs_table *t = gigs();
  const int64_t day = INT64_C(86400000);
  insert("{'_id':7,'booked':1,'seats':5,'bookings':[{'id':'old','n':1,'cancelled':true,'at':%s},"
         "{'id':'young','n':1,'cancelled':true,'at':%s},{'id':'held','n':1,'at':%s},"
         "{'id':'odd','n':1,'cancelled':true,'at':5}]}",
         ago(31 * day), ago(29 * day), ago(31 * day));
  take("7", 1, "old", DIBS_CONFLICT, t); /* nothing was written yet */
  take("7", 1, "new", DIBS_OK, t);
  assert_int_equal(count("{'bookings':{'$size':4},'bookings.id':{'$ne':'old'}}"), 1);
  take("7", 1, "young", DIBS_CONFLICT, t);
  take("7", 1, "odd", DIBS_CONFLICT, t);
  take("7", 1, "old", DIBS_OK, t); /* a new claim */
}

static void a_document_has_at_most_5000_claims(void **state) {
  (void)state;
  dibs_table *t = gigs();
  insert("{'_id':7,'booked':4999,'seats':9999}");
  assert_true(command("{'update':'%s','updates':[{'q':{'_id':7},'u':[{'$set':{'bookings':{'$map':{'input':{'$range':[0,"
                      "4999]},'as':'i','in':{'id':{'$toString':'$$i'},'n':1}}}}}]}]}",
                      gateways()));
  take("7", 1, "last", DIBS_OK, t);
  take("7", 1, "more", DIBS_INVALID, t);
  assert_message("less than 5000 claims");
  take("7", 1, "4711", DIBS_REPLAY, t);
  give("7", "4711", DIBS_OK, t);
  assert_int_equal(count("{'booked':4999}"), 1);
  take("7", 1, "more", DIBS_INVALID, t);
  assert_int_equal(update("{'bookings.id':'4711'}", "{'$set':{'bookings.4711.at':{'$date':'2020-01-02T00:00:00Z'}}}"),
                   1);
  take("7", 1, "more", DIBS_OK, t); /* there is room for one again */
  assert_int_equal(count("{'booked':5000,'bookings':{'$size':5000}}"), 1);
}

/* ---- Fences ---- */

static void a_stale_holder_takes_nothing(void **state) {
  (void)state;
  dibs_table *t = gigs();
  insert("{'_id':7,'booked':0,'seats':5}");
  take("7", 1, "a", DIBS_OK, t, .strategy = DIBS_FENCED);
  assert_int_equal(count("{'fence':{'$gt':0},'holder':{'$ne':null}}"), 1);
  assert_int_equal(update("{}", "{'$set':{'fence':{'$numberLong':'9007199254740990'}}}"), 1);
  take("7", 1, "b", DIBS_STALE, t, .strategy = DIBS_FENCED);
  take("7", 1, "a", DIBS_REPLAY, t, .strategy = DIBS_FENCED); /* it was done before */
  assert_int_equal(count("{'booked':1,'bookings':{'$size':1}}"), 1);
  take("7", 1, "b", DIBS_OK, t);
  assert_int_equal(update("{}", "{'$set':{'fence':'x'}}"), 1);
  take("7", 1, "c", DIBS_INVALID, t, .strategy = DIBS_FENCED);
  assert_message("\"fence\"");
}

/* ---- Odd documents ---- */

static void odd_documents_are_invalid_and_stay_as_they_are(void **state) {
  (void)state;
  dibs_table *t = gigs();
  static const char *const odd[] = {
      "'booked':'1','seats':5",
      "'booked':-1,'seats':5",
      "'booked':1.5,'seats':5",
      "'booked':null,'seats':5",
      "'booked':[0],'seats':5",
      "'seats':5",
      "'booked':0",
      "'booked':0,'seats':'5'",
      "'booked':0,'seats':{'$numberDecimal':'5'}",
      "'booked':1,'seats':5,'bookings':'a'",
      "'booked':1,'seats':5,'bookings':{'id':'a'}",
      "'booked':2,'seats':5,'bookings':[{'id':'a','n':1},{'id':'a','n':1}]",
      "'booked':2,'seats':5,'bookings':[{'id':'a'}]",
      "'booked':2,'seats':5,'bookings':[{'id':'a','n':1.5}]",
      "'booked':2,'seats':5,'bookings':[{'id':'a','n':-1}]",
      "'booked':2,'seats':5,'bookings':[{'id':'a','n':'1'}]",
      "'booked':2,'seats':5,'bookings':[{'id':'a','n':3}]",
  };
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    char key[12];
    snprintf(key, sizeof key, "%zu", i);
    insert("{'_id':%zu,%s}", i, odd[i]);
    give(key, "a", DIBS_INVALID, t);
    if (reported.text[0] == '\0') fail_msg("no reason: %s", odd[i]);
    take(key, 1, "a", DIBS_INVALID, t);
    assert_message("correct it there");
    char *was = strdup(shown("{'_id':%zu}", i));
    take(key, 1, "a", DIBS_INVALID, t, .flags = DIBS_TAKE_PARTIAL);
    assert_string_equal(shown("{'_id':%zu}", i), was);
    free(was);
    assert_int_equal(count("{'_id':%zu,'bookings.cancelled':true}", i), 0);
    if (strstr(odd[i], "bookings")) {
      set(key, 7, DIBS_OK, t); /* no claim is needed for that */
      assert_int_equal(took.limit, 7);
    } else {
      set(key, 7, DIBS_INVALID, t);
      show(key, DIBS_INVALID, t);
    }
  }
  /* Entries of other programs do not matter. */
  insert("{'_id':'fine','booked':3.0,'seats':{'$numberLong':'5'},'bookings':[1,null,[{'id':'a'}],{'id':1},{'id':['a']},"
         "{}]}");
  take("fine", 1, "a", DIBS_OK, t);
  give("fine", "a", DIBS_OK, t);
  assert_int_equal(count("{'_id':'fine','booked':3,'bookings':{'$size':7}}"), 1);
}

static void what_a_collection_can_not_have_is_named(void **state) {
  (void)state;
  insert("{'_id':7,'booked':0,'seats':2}");
  dibs_table *apart =
      TABLE(.key = "_id", .used = "booked", .limit = "seats", .claims = "others", .claim = "id", .claim_stock = "gig");
  take("7", 1, "a", DIBS_UNSUPPORTED, apart);
  assert_message("leave out claim_stock");
  dibs_table *dotted = TABLE(.key = "_id", .used = "booked", .limit = "seats", .claims = "o.b", .claim = "id");
  take("7", 1, "a", DIBS_UNSUPPORTED, dotted);
  dibs_table *dollar = TABLE(.key = "_id", .used = "booked", .limit = "seats$", .claims = "b", .claim = "id");
  take("7", 1, "a", DIBS_INVALID, dollar);
  assert_message("seats$");
}

static void a_mark_of_another_type_does_not_mean_given_back(void **state) {
  (void)state;
  dibs_table *t = gigs();
  insert("{'_id':7,'booked':5,'seats':9,'bookings':[{'id':'a','n':2,'cancelled':{'$numberDecimal':'1'}},"
         "{'id':'b','n':2,'cancelled':1.0},{'id':'c','n':1,'cancelled':'true'}]}");
  give("7", "a", DIBS_OK, t);
  give("7", "b", DIBS_REPLAY, t);
  give("7", "c", DIBS_OK, t);
  assert_int_equal(took.used, 2);
}

static void no_stock_is_made_after_the_index_of_its_key_was_dropped(void **state) {
  (void)state;
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'slug':1},'name':'s','unique':true}]}", gateways()));
  dibs_table *t = TABLE(.key = "slug", .used = "booked", .limit = "seats", .claims = "bookings", .claim = "id");
  set("a", 5, DIBS_OK, t);
  assert_true(command("{'dropIndexes':'%s','index':'s'}", gateways()));
  set("b", 5, DIBS_INVALID, t);
  assert_message("no unique index of its own");
  assert_int_equal(count("{}"), 1);
}

static void another_unique_index_is_named(void **state) {
  (void)state;
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'seats':1},'name':'s','unique':true}]}", gateways()));
  dibs_table *t = gigs();
  set("a", 5, DIBS_OK, t);
  set("b", 5, DIBS_INVALID, t);
  set("b", 6, DIBS_OK, t);
  set("b", 5, DIBS_INVALID, t);
  assert_int_equal(count("{}"), 2);
}

/* ---- Many clients ---- */

enum { BUYERS = 4, TRIES = 20, SEATS = 50 };
static struct {
  dibs_table *table;
  _Atomic int sold, failures;
} race;

static void *buy_by_dibs(void *arg) {
  dibs_store *own = arg;
  dibs_error error;
  for (int i = 0; i < TRIES; i++) {
    dibs_stock_options o = {.size = sizeof o, .table = race.table, .wait_ms = 60000};
    dibs_stock_result r = {.size = sizeof r};
    dibs_status status = dibs_stock_take(own, "7", 1 + i % 2, &o, &r, &error);
    if (status == DIBS_OK) atomic_fetch_add(&race.sold, (int)r.got);
    if (status == DIBS_OK && i % 5 == 0) {
      char claim[65];
      memcpy(claim, r.claim, sizeof claim);
      status = dibs_stock_give(own, "7", claim, &o, &r, &error);
      if (status == DIBS_OK) atomic_fetch_sub(&race.sold, (int)r.got);
    }
    if (status != DIBS_OK && status != DIBS_FULL && atomic_fetch_add(&race.failures, 1) < 3)
      print_error("%s\n", error.text);
  }
  return NULL;
}

/* As doc/mongodb.md shows it. */
static int buy_by_hand(int nth) {
  bson_t *got = find_and_modify(
      "{'findAndModify':'%s','query':{'_id':7,'bookings.id':{'$ne':'hand-%d'},'$expr':{'$lt':['$booked','$seats']}},"
      "'update':{'$inc':{'booked':1},'$push':{'bookings':{'id':'hand-%d','n':1}}}}",
      gateways(), nth, nth);
  int sold = got != NULL;
  bson_destroy(got);
  return sold;
}

static void nothing_is_oversold(void **state) {
  (void)state;
  pthread_t threads[BUYERS];
  dibs_store *own[BUYERS];
  dibs_error error;
  int by_hand = 0;
  memset(&race, 0, sizeof race);
  race.table = gigs();
  insert("{'_id':7,'booked':0,'seats':%d,'bookings':[]}", SEATS);
  for (int i = 0; i < BUYERS; i++) {
    if (dibs_open(case_uri(), NULL, &own[i], &error) != DIBS_OK) fail_msg("%s", error.text);
    assert_int_equal(pthread_create(&threads[i], NULL, buy_by_dibs, own[i]), 0);
  }
  for (int i = 0; i < TRIES; i++) by_hand += buy_by_hand(i);
  for (int i = 0; i < BUYERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < BUYERS; i++) dibs_close(own[i]);
  assert_int_equal(atomic_load(&race.failures), 0);
  show("7", DIBS_OK, race.table);
  assert_int_equal(took.used, atomic_load(&race.sold) + by_hand);
  assert_in_range(took.used, SEATS - 1, SEATS);
  if (count("{'$expr':{'$eq':['$booked',{'$sum':{'$map':{'input':'$bookings','as':'c','in':{'$cond':['$$c.cancelled',0,"
            "'$$c.n']}}}}]}}") != 1)
    fail_msg("%s", shown("{}"));
}

int main(int argc, char *argv[]) {
  if (argc != 2) return 2;
  bed_begin(argv[1]);
  const struct CMUnitTest tests[] = {
      RECORDS(a_claim_counts_once_and_is_given_back_once),
      RECORDS(a_limit_is_set_but_not_below_what_is_used),
      RECORDS(claims_are_their_bytes),
      RECORDS(claims_without_amounts_times_and_marks),
      RECORDS(old_claims_that_were_given_back_are_left_out),
      RECORDS(a_document_has_at_most_5000_claims),
      RECORDS(a_stale_holder_takes_nothing),
      RECORDS(odd_documents_are_invalid_and_stay_as_they_are),
      RECORDS(what_a_collection_can_not_have_is_named),
      RECORDS(a_mark_of_another_type_does_not_mean_given_back),
      RECORDS(no_stock_is_made_after_the_index_of_its_key_was_dropped),
      RECORDS(another_unique_index_is_named),
      RECORDS(nothing_is_oversold),
  };
  return cmocka_run_group_tests_name("mongodb stocks", tests, NULL, NULL);
}
