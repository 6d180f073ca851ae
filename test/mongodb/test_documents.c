/* SPDX-License-Identifier: MIT */
/*
 * Documents that clients with stores of their own replace at the same time, many in a batch: no version of a record is
 * written twice, no name is granted twice, and an answer says what happened.
 *
 *   test_documents URI
 *   test_documents URI COLLECTION ID|DOCUMENT     adds a document that is none of dibs'
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CLIENTS = 4, RECORDS = 8, SAVES = 12, ROUNDS = 10, NAMES = 16, VERSIONS = CLIENTS * SAVES + 1, KEY = 40 };

static const char *server;

struct client {
  pthread_t thread;
  uint32_t number;
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
};

static struct {
  char prefix[17];
  struct client clients[CLIENTS];
  pthread_barrier_t barrier;
  _Atomic uint32_t written[RECORDS][VERSIONS + 1]; /* the client that wrote this version */
  _Atomic uint32_t holders[NAMES], doubts, failures;
} bed;

static dibs__tick soon(void) {
  return dibs__tick_add_ms(dibs__tick_now(), 20000);
}

static int open_clients(void **state) {
  uint64_t random;
  (void)state;
  memset(&bed, 0, sizeof bed);
  dibs__random(&random, sizeof random);
  snprintf(bed.prefix, sizeof bed.prefix, "%016llx", (unsigned long long)random);
  pthread_barrier_init(&bed.barrier, NULL, CLIENTS);
  for (uint32_t i = 0; i < CLIENTS; i++) {
    struct client *c = &bed.clients[i];
    struct dibs__uri uri;
    struct dibs__result result = {.text = ""};
    c->number = i;
    assert_int_equal(dibs__uri_parse(server, &uri, &result), DIBS_OK);
    if (dibs__mongodb_driver.open(&uri, NULL, 0, soon(), &c->store, &result) != DIBS_OK) fail_msg("%s", result.text);
    dibs__uri_free(&uri);
    c->store->driver = &dibs__mongodb_driver;
    assert_int_equal(dibs__mongodb_driver.connect(c->store, soon(), &c->session, &c->identity, &result), DIBS_OK);
  }
  return 0;
}

static int close_clients(void **state) {
  (void)state;
  for (uint32_t i = 0; i < CLIENTS; i++) {
    dibs__mongodb_driver.disconnect(bed.clients[i].session);
    dibs__mongodb_driver.close(bed.clients[i].store);
  }
  pthread_barrier_destroy(&bed.barrier);
  return 0;
}

static void run_clients(void *(*work)(void *)) {
  for (uint32_t i = 0; i < CLIENTS; i++)
    assert_int_equal(pthread_create(&bed.clients[i].thread, NULL, work, &bed.clients[i]), 0);
  for (uint32_t i = 0; i < CLIENTS; i++) pthread_join(bed.clients[i].thread, NULL);
}

/* cmocka's asserts are for the main thread only. */
static void complain(const char *what, uint32_t of, int status) {
  if (atomic_fetch_add(&bed.failures, 1) < 10) print_error("%s %u: status %d\n", what, of, status);
}

/* ---- Records ---- */

static struct dibs__record_op record_op(enum dibs__record_verb verb, uint32_t nth, char key[KEY]) {
  struct dibs__record_op op = {.op = {.family = DIBS__FAM_RECORD, .verb = (uint16_t)verb, .by = soon()}};
  int len = snprintf(key, KEY, "%s-%u", bed.prefix, nth);
  op.key = dibs__str_of(key, (size_t)len);
  op.op.bucket = dibs__bucket(op.key);
  op.op.flags = verb == DIBS__RECORD_LOAD ? DIBS__OP_READS : 0;
  return op;
}

static void note_save(const struct client *c, const struct dibs__record_op *op, uint32_t nth, uint64_t *version) {
  if (op->op.status == DIBS_OK) {
    bool is_next = op->version == *version + 1 && op->version <= VERSIONS;
    if (!is_next) complain("not the next version of record", nth, (int)op->version);
    if (is_next && atomic_exchange(&bed.written[nth][op->version], c->number + 1) != 0)
      complain("a version was written twice, of record", nth, (int)op->version);
    *version = op->version;
  } else if (op->op.status == DIBS_CONFLICT) {
    *version = op->version;
  } else if (op->op.status == DIBS_UNKNOWN) {
    atomic_fetch_add(&bed.doubts, 1);
  } else {
    complain("record", nth, (int)op->op.status);
  }
}

static void *save_all(void *arg) {
  struct client *c = arg;
  struct dibs__record_op ops[RECORDS];
  struct dibs__op *batch[RECORDS];
  struct dibs__result result;
  char keys[RECORDS][KEY], texts[RECORDS][24];
  uint64_t versions[RECORDS] = {0};
  for (uint32_t turn = 0; turn < SAVES; turn++) {
    for (uint32_t i = 0; i < RECORDS; i++) {
      uint32_t nth = (i + c->number) % RECORDS; /* in another order than the other clients */
      ops[nth] = record_op(DIBS__RECORD_PUT, nth, keys[nth]);
      ops[nth].guards = DIBS__IF_VERSION;
      ops[nth].if_version = dibs__str_of(
          texts[nth], (size_t)snprintf(texts[nth], sizeof texts[nth], "%llu", (unsigned long long)versions[nth]));
      ops[nth].data = dibs__str_of("data", 4);
      batch[i] = &ops[nth].op;
    }
    (void)dibs__mongodb_driver.run(c->session, batch, RECORDS, soon(), &result);
    for (uint32_t i = 0; i < RECORDS; i++) note_save(c, &ops[i], i, &versions[i]);
  }
  return NULL;
}

static void a_version_of_a_record_is_written_once(void **state) {
  struct client *c = &bed.clients[0];
  (void)state;
  run_clients(save_all);
  assert_int_equal(atomic_load(&bed.failures), 0);
  for (uint32_t i = 0; i < RECORDS; i++) {
    char key[KEY];
    struct dibs__result result;
    struct dibs__record_op op = record_op(DIBS__RECORD_LOAD, i, key);
    struct dibs__op *batch[] = {&op.op};
    uint32_t told = 0;
    assert_int_equal(dibs__mongodb_driver.run(c->session, batch, 1, soon(), &result), DIBS_OK);
    free(op.got);
    for (uint32_t v = 1; v <= VERSIONS; v++) told += atomic_load(&bed.written[i][v]) != 0;
    /* Each save that nobody knows of was in doubt. */
    assert_in_range(op.version, told, told + atomic_load(&bed.doubts));
    assert_in_range(told, 1, VERSIONS);
  }
}

/* ---- Leases ---- */

static struct dibs__lease_op lease_op(const struct client *c, enum dibs__lease_verb verb, uint32_t nth, char key[KEY]) {
  struct dibs__lease_op op = {.op = {.family = DIBS__FAM_LEASE, .verb = (uint16_t)verb, .by = soon()}};
  int len = snprintf(key, KEY, "%s-%u", bed.prefix, nth);
  op.name = dibs__str_of(key, (size_t)len);
  op.owner = dibs__str_of("test", 4);
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = c->identity.mandate;
  op.mode = DIBS_EXCLUSIVE;
  op.ttl_ms = 120000;
  memcpy(op.id.b, &nth, sizeof nth);
  op.id.b[8] = (uint8_t)(c->number + 1);
  return op;
}

struct turn {
  struct client *client;
  uint32_t first; /* the first name of the round */
  struct dibs__lease_op ops[NAMES];
  char keys[NAMES][KEY];
};

/* The batch has the names in another order than those of other clients. */
static void run_turn(struct turn *t, enum dibs__lease_verb verb) {
  struct client *c = t->client;
  struct dibs__op *batch[NAMES];
  struct dibs__result result;
  for (uint32_t i = 0; i < NAMES; i++) {
    dibs__fence fence = t->ops[i].fence;
    t->ops[i] = lease_op(c, verb, t->first + i, t->keys[i]);
    t->ops[i].fence = fence;
    batch[c->number % 2 ? NAMES - 1 - i : i] = &t->ops[i].op;
  }
  (void)dibs__mongodb_driver.run(c->session, batch, NAMES, soon(), &result);
}

static void note_grants(const struct turn *t) {
  for (uint32_t i = 0; i < NAMES; i++) {
    dibs__status status = t->ops[i].op.status;
    if (status == DIBS_OK && atomic_fetch_add(&bed.holders[i], 1) > 0)
      complain("two clients hold name", i, (int)t->first);
    if (status != DIBS_OK && status != DIBS_HELD && status != DIBS_UNKNOWN) complain("name", i, (int)status);
  }
}

/* Half of the names of a round are new: some documents are inserted, the others replaced, all in one batch. */
static void *take_turns(void *arg) {
  struct turn t = {.client = arg};
  for (uint32_t turn = 0; turn < ROUNDS; turn++) {
    t.first = turn * (NAMES / 2);
    pthread_barrier_wait(&bed.barrier);
    run_turn(&t, DIBS__ACQUIRE);
    note_grants(&t);
    pthread_barrier_wait(&bed.barrier);
    run_turn(&t, DIBS__CANCEL);
    for (uint32_t i = 0; i < NAMES; i++) atomic_store(&bed.holders[i], 0);
    pthread_barrier_wait(&bed.barrier);
    /* Now all clients remember the same versions of these documents, so they will meet. */
    run_turn(&t, DIBS__CANCEL);
    for (uint32_t i = 0; i < NAMES; i++)
      if (t.ops[i].op.status != DIBS_NOT_FOUND) complain("a cancelled name", i, (int)t.ops[i].op.status);
  }
  return NULL;
}

static void a_name_is_granted_once_in_each_round(void **state) {
  (void)state;
  run_clients(take_turns);
  assert_int_equal(atomic_load(&bed.failures), 0);
}

/* ---- A document of another program ---- */

/* `text`: an id, or a document as JSON; with "count" before it, prints how many documents it fits. */
static int put_foreign(const char *collection, const char *text) {
  bool counts = strncmp(text, "count", 5) == 0;
  mongoc_init();
  bson_error_t error;
  mongoc_uri_t *uri = mongoc_uri_new(server);
  mongoc_client_t *client = mongoc_client_new_from_uri(uri);
  mongoc_collection_t *to = mongoc_client_get_collection(client, mongoc_uri_get_database(uri), collection);
  if (counts) text += 5;
  bson_t *document = *text == '{' ? bson_new_from_json((const uint8_t *)text, -1, &error) : bson_new();
  if (document && *text != '{') BSON_APPEND_UTF8(document, "_id", text);
  if (document && *text != '{') BSON_APPEND_UTF8(document, "colour", "green");
  int64_t count = document && counts ? mongoc_collection_count_documents(to, document, NULL, NULL, NULL, &error) : 0;
  bool done = document && (counts ? count >= 0 : mongoc_collection_insert_one(to, document, NULL, NULL, &error));
  if (!done) fprintf(stderr, "test_documents: %s\n", error.message);
  if (done && counts) printf("%lld\n", (long long)count);
  bson_destroy(document);
  mongoc_collection_destroy(to);
  mongoc_client_destroy(client);
  mongoc_uri_destroy(uri);
  return done ? 0 : 1;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_version_of_a_record_is_written_once, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_name_is_granted_once_in_each_round, open_clients, close_clients),
  };
  if (argc != 2 && argc != 4) return 2;
  server = argv[1];
  if (argc == 4) return put_foreign(argv[2], argv[3]);
  return cmocka_run_group_tests_name("mongodb documents", tests, NULL, NULL);
}
