/* SPDX-License-Identifier: MIT */
/*
 * Stock and records in a collection of the user's: a client is killed or stopped at each of its requests; then another
 * one continues with the same claim, or with the version that it has read; what was stopped arrives after that.  No
 * claim counts twice, none is lost, what is used is the sum of what the claims hold, and no version is written twice.
 *
 *   test_table_steps URI
 */
#include "drivers/mongodb/mongodb_impl.h"
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OLD = 6, UNITS = 4, SEATS = OLD + UNITS, STEPS = 16, KEY = 24, NAME = 64 };

static struct {
  struct bed bed;
  uint32_t cases;
  char collection[NAME];
  dibs_table *table;
  mongoc_client_t *client; /* of a program without dibs */
  char key[KEY];
} s;

/* ---- Operations ---- */

static struct dibs__stock_op ask_for(const struct bed_client *c, enum dibs__stock_verb verb, const char *claim,
                                     int64_t amount, bool partial) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .amount = amount};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.op.status = DIBS_UNKNOWN;
  op.table = (const struct dibs__table *)s.table;
  op.key = dibs__str_of(s.key, strlen(s.key));
  op.claim = dibs__str_of(claim, strlen(claim));
  op.partial = partial;
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  return op;
}

static struct dibs__stock_op ask_at(const struct bed_client *c, enum dibs__stock_verb verb, const char *claim,
                                    int64_t amount) {
  return ask_for(c, verb, claim, amount, false);
}

static struct dibs__record_op put_at(const struct bed_client *c, const char *version, const char *title) {
  struct dibs__record_op op = {.op = {.family = DIBS__FAM_RECORD, .verb = DIBS__RECORD_PUT},
                               .guards = DIBS__IF_VERSION};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  dibs_value value = {title, strlen(title)};
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.op.status = DIBS_UNKNOWN;
  op.table = (const struct dibs__table *)s.table;
  op.key = dibs__str_of(s.key, strlen(s.key));
  op.if_version = dibs__str_of(version, strlen(version));
  op.values = &value;
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  return op;
}

/* ---- The document, as a program without dibs sees it ---- */

struct seen {
  int64_t used, version, held; /* by all claims that were not given back */
  int64_t mine;                /* of these by "a" */
  uint32_t entries;            /* of "a" */
  char title[8];
};

static void see_claim(const bson_t *entry, struct seen *seen) {
  dibs__str id = dibs__mongo_bytes_in(entry, "id");
  bson_iter_t at;
  bool is_mine = dibs__str_equal(id, dibs__str_of("a", 1));
  bool given = bson_iter_init_find(&at, entry, "gone") && bson_iter_as_bool(&at);
  int64_t amount = given ? 0 : dibs__mongo_number_in(entry, "n", -1000);
  seen->entries += is_mine;
  seen->held += amount;
  if (is_mine) seen->mine += amount;
}

static struct seen look(void) {
  struct seen seen = {.used = -1};
  bson_t filter = BSON_INITIALIZER;
  bson_iter_t at, in;
  const bson_t *document;
  BSON_APPEND_UTF8(&filter, "_id", s.key);
  mongoc_collection_t *from = mongoc_client_get_collection(s.client, s.bed.database, s.collection);
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(from, &filter, NULL, NULL);
  assert_true(mongoc_cursor_next(cursor, &document));
  seen.used = dibs__mongo_number_in(document, "used", -1);
  seen.version = dibs__mongo_number_in(document, "version", 0);
  dibs__str title = dibs__mongo_bytes_in(document, "title");
  snprintf(seen.title, sizeof seen.title, "%.*s", (int)title.len, title.p ? title.p : "");
  assert_true(bson_iter_init_find(&at, document, "claims") && bson_iter_recurse(&at, &in));
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t entry;
    bson_iter_document(&in, &len, &bytes);
    assert_true(bson_init_static(&entry, bytes, len));
    see_claim(&entry, &seen);
  }
  mongoc_cursor_destroy(cursor);
  mongoc_collection_destroy(from);
  bson_destroy(&filter);
  return seen;
}

/* ---- What the client was doing, and what another one does then ---- */

enum scene { TAKES, TAKES_SOME, GIVES, GIVES_UNKNOWN, SCENES };
static const char *const scene_names[] = {"a take", "a partial take", "giving back", "giving back what was not taken"};
enum next { SAME, TAKE, GIVE, NEXTS };
static const char *const next_names[] = {"repeats it", "takes", "gives back"};

struct acting {
  struct bed_client client;
  enum scene scene;
  dibs__status status;
};

static dibs__status do_scene(const struct bed_client *c, enum scene scene) {
  if (scene >= GIVES) return ask_at(c, DIBS__STOCK_GIVE, "a", 0).op.status;
  bool some = scene == TAKES_SOME; /* more than there is */
  return ask_for(c, DIBS__STOCK_TAKE, "a", some ? SEATS : UNITS, some).op.status;
}

static void act(void *user) {
  struct acting *a = user;
  a->status = do_scene(&a->client, a->scene);
}

static void begin_case(enum scene scene) {
  snprintf(s.key, KEY, "case %u", s.cases++);
  assert_int_equal(ask_at(&s.bed.other, DIBS__STOCK_SET, "", SEATS).op.status, DIBS_OK);
  assert_int_equal(ask_at(&s.bed.other, DIBS__STOCK_TAKE, "old", OLD).op.status, DIBS_OK);
  if (scene == GIVES) assert_int_equal(ask_at(&s.bed.other, DIBS__STOCK_TAKE, "a", UNITS).op.status, DIBS_OK);
}

/* Is it possible after these answers?  A client that was killed has no answer, and its request was done or not; one
 * that was stopped has one, and was done last. */
static bool is_right(enum scene scene, enum next next, dibs__status first, dibs__status second,
                     const struct seen *seen) {
  bool doubtful = first == DIBS_UNKNOWN || first == DIBS_UNAVAILABLE,
       counted = second == DIBS_OK || second == DIBS_REPLAY;
  if (seen->used != seen->held || seen->held != OLD + seen->mine || seen->used > SEATS || seen->entries != 1)
    return false;
  if (scene < GIVES && next != GIVE) return seen->mine == UNITS && counted;
  if (scene < GIVES) /* a take that comes after is refused */
    return seen->mine == 0 && (counted || (second == DIBS_NOT_FOUND && (doubtful || first == DIBS_CONFLICT)));
  if (next != TAKE) return seen->mine == 0 && (counted || second == DIBS_NOT_FOUND);
  if (second == DIBS_CONFLICT) return seen->mine == 0;
  return counted && seen->mine == (doubtful ? UNITS : 0) && (doubtful || first == DIBS_OK);
}

static dibs__status continue_with(enum scene scene, enum next next) {
  if (next == SAME) return do_scene(&s.bed.other, scene);
  return ask_at(&s.bed.other, next == TAKE ? DIBS__STOCK_TAKE : DIBS__STOCK_GIVE, "a", UNITS).op.status;
}

/* false: the client ended before that step. */
static bool play(enum scene scene, enum wire_end how, enum next next, int step) {
  struct acting a = {.scene = scene};
  struct bed_acting acting = {.act = act, .user = &a};
  begin_case(scene);
  wire_arm(s.bed.wire, how, 0);
  assert_true(bed_connect(&s.bed, &a.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, how, step);
  assert_true(bed_begin(&s.bed, &acting, how));
  bool ended = wire_ended(s.bed.wire);
  dibs__status second = continue_with(scene, next);
  bed_finish(&s.bed, &acting);
  struct seen seen = look();
  if (!is_right(scene, next, a.status, second, &seen))
    fail_msg(
        "%s, ended at step %d (%d); then another client %s: answers %d and %d; %lld used, %lld held, %lld by the claim",
        scene_names[scene], step, (int)how, next_names[next], (int)a.status, (int)second, (long long)seen.used,
        (long long)seen.held, (long long)seen.mine);
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

static void a_client_is_killed_after_each_request(void **state) {
  (void)state;
  end_at_each_step(WIRE_KILL);
}
static void a_client_is_stopped_at_each_request_and_continues(void **state) {
  (void)state;
  end_at_each_step(WIRE_STOP);
}

/* ---- Records ---- */

struct putting {
  struct bed_client client;
  dibs__status status;
};

static void put_first(void *user) {
  struct putting *p = user;
  p->status = put_at(&p->client, "0", "first").op.status;
}

/* false: the client ended before that step. */
static bool play_put(enum wire_end how, int step) {
  struct putting p = {.status = DIBS_UNKNOWN};
  struct bed_acting acting = {.act = put_first, .user = &p};
  begin_case(TAKES);
  wire_arm(s.bed.wire, how, 0);
  assert_true(bed_connect(&s.bed, &p.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, how, step);
  assert_true(bed_begin(&s.bed, &acting, how));
  bool ended = wire_ended(s.bed.wire);
  dibs__status second = put_at(&s.bed.other, "0", "second").op.status;
  bed_finish(&s.bed, &acting);
  struct seen seen = look();
  bool first_wrote = strcmp(seen.title, "first") == 0, second_wrote = strcmp(seen.title, "second") == 0;
  if (seen.version != 1 || first_wrote == second_wrote || second_wrote != (second == DIBS_OK) ||
      (second_wrote && p.status == DIBS_OK) || (first_wrote && second != DIBS_CONFLICT) ||
      (first_wrote && p.status != DIBS_OK && p.status != DIBS_UNKNOWN))
    fail_msg("ended at step %d (%d): answers %d and %d, version %lld, \"%s\"", step, (int)how, (int)p.status,
             (int)second, (long long)seen.version, seen.title);
  bed_disconnect(&p.client);
  return ended;
}

static void a_version_of_a_record_is_written_once(void **state) {
  (void)state;
  for (int how = WIRE_KILL; how <= WIRE_DAMAGE; how++) {
    int step = 1;
    while (step < STEPS && play_put((enum wire_end)how, step)) step++;
    assert_in_range(step, 2, STEPS - 1);
  }
}

/* ---- Keys of digits, which are numbers or texts ---- */

struct creating {
  struct bed_client client;
  dibs__status status;
};

static dibs__status create_at(const struct bed_client *c, const char *key) {
  struct dibs__record_op op = {.op = {.family = DIBS__FAM_RECORD, .verb = DIBS__RECORD_PUT}, .guards = DIBS__IF_ABSENT};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  dibs_value value = {"x", 1};
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.op.status = DIBS_UNKNOWN;
  op.table = (const struct dibs__table *)s.table;
  op.key = dibs__str_of(key, strlen(key));
  op.values = &value;
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  return op.op.status;
}

static void act_create(void *user) {
  struct creating *a = user;
  a->status = create_at(&a->client, "7");
}

static int64_t count_sevens(mongoc_collection_t *in) {
  bson_error_t error;
  bson_t *filter = bson_new_from_json((const uint8_t *)"{\"_id\": {\"$in\": [7, \"7\"]}}", -1, &error);
  int64_t count = mongoc_collection_count_documents(in, filter, NULL, NULL, NULL, &error);
  bson_destroy(filter);
  return count;
}

/* The first client finds no keys, so that 7 is a number; then another one finds a text, and creates the text "7". */
static bool play_creation(int step) {
  struct creating first = {.status = DIBS_UNKNOWN};
  struct bed_acting acting = {.act = act_create, .user = &first};
  mongoc_collection_t *in = mongoc_client_get_collection(s.client, s.bed.database, s.collection);
  (void)mongoc_collection_delete_many(in, &(bson_t)BSON_INITIALIZER, NULL, NULL, NULL);
  wire_arm(s.bed.wire, WIRE_STOP, 0);
  assert_true(bed_connect(&s.bed, &first.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, WIRE_STOP, step);
  assert_true(bed_begin(&s.bed, &acting, WIRE_STOP));
  bool ended = wire_ended(s.bed.wire);
  print_message("two clients create a key of digits, step %d\n", step);
  assert_int_equal(create_at(&s.bed.other, "a text"), DIBS_OK);
  dibs__status second = create_at(&s.bed.other, "7");
  bed_finish(&s.bed, &acting);
  if (first.status == DIBS_OK && second == DIBS_OK) fail_msg("both have created it");
  assert_true(first.status == DIBS_OK || second == DIBS_OK);
  assert_int_equal(count_sevens(in), 1);
  bed_disconnect(&first.client);
  mongoc_collection_destroy(in);
  return ended;
}

static void a_key_of_digits_is_created_once(void **state) {
  (void)state;
  int step = 1;
  while (step < STEPS && play_creation(step)) step++;
  assert_in_range(step, 3, STEPS - 1);
}

/* ---- A document is removed while another client creates it ---- */

struct creator {
  struct creating creating;
  const char *key;
};

static void act_create_key(void *user) {
  struct creator *c = user;
  c->creating.status = create_at(&c->creating.client, c->key);
}

/* It is there at first.  false: the client ended before that step. */
static bool play_removal(const char *key, int step) {
  struct creator c = {.creating = {.status = DIBS_UNKNOWN}, .key = key};
  struct bed_acting acting = {.act = act_create_key, .user = &c};
  mongoc_collection_t *in = mongoc_client_get_collection(s.client, s.bed.database, s.collection);
  (void)mongoc_collection_delete_many(in, &(bson_t)BSON_INITIALIZER, NULL, NULL, NULL);
  assert_int_equal(create_at(&s.bed.other, key), DIBS_OK);
  wire_arm(s.bed.wire, WIRE_STOP, 0);
  assert_true(bed_connect(&s.bed, &c.creating.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, WIRE_STOP, step);
  assert_true(bed_begin(&s.bed, &acting, WIRE_STOP));
  bool ended = wire_ended(s.bed.wire);
  (void)mongoc_collection_delete_many(in, &(bson_t)BSON_INITIALIZER, NULL, NULL, NULL);
  bed_finish(&s.bed, &acting);
  if (c.creating.status != DIBS_CONFLICT && !(ended && c.creating.status == DIBS_OK))
    fail_msg("removed at step %d: creating \"%s\" answers %d", step, key, (int)c.creating.status);
  bed_disconnect(&c.creating.client);
  mongoc_collection_destroy(in);
  return ended;
}

static void creating_what_is_removed_meanwhile_is_not_refused(void **state) {
  (void)state;
  static const char *const keys[] = {"7", "a text"};
  for (int i = 0; i < 2; i++) {
    int step = 1;
    while (step < STEPS && play_removal(keys[i], step)) step++;
    assert_in_range(step, 2, STEPS - 1);
  }
}

/* ---- */

static int open_all(void **state) {
  char host[320];
  dibs_error error;
  (void)state;
  if (!bed_open(&s.bed)) return -1;
  snprintf(s.collection, sizeof s.collection, "%sgigs", s.bed.prefix);
  snprintf(host, sizeof host, "mongodb://%s:%u", s.bed.host, s.bed.port);
  s.client = mongoc_client_new(host);
  dibs_table_options o = {.size = sizeof o,
                          .table = s.collection,
                          .key = "_id",
                          .version = "version",
                          .columns = "title",
                          .used = "used",
                          .limit = "seats",
                          .claims = "claims",
                          .claim = "id",
                          .claim_amount = "n",
                          .claim_given = "gone",
                          .claim_time = "at"};
  return dibs_table_declare(&o, &s.table, &error) == DIBS_OK ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  dibs_table_free(s.table);
  mongoc_client_destroy(s.client);
  bed_close(&s.bed);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_client_is_killed_after_each_request),
      cmocka_unit_test(a_client_is_stopped_at_each_request_and_continues),
      cmocka_unit_test(a_version_of_a_record_is_written_once),
      cmocka_unit_test(a_key_of_digits_is_created_once),
      cmocka_unit_test(creating_what_is_removed_meanwhile_is_not_refused),
  };
  if (argc != 2) return 2;
  s.bed.server = argv[1];
  return cmocka_run_group_tests_name("mongodb table steps", tests, open_all, close_all);
}
