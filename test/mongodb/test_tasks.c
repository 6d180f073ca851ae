/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's own collections (R77): every verb, every form of instants, every type of keys, documents of wrong
 * content, and programs without dibs that claim the same documents by findAndModify.
 *
 *   test_tasks URI
 */
#include "task_bed.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(const char *id, const char *phase, const char *locked, const char *updated) {
  insert("{'_id':%s,'phase':'%s','state':{'step':3},'lockedAt':%s,'createdAt':1,'updatedAt':%s}", id, phase, locked,
         updated);
}

/* ---- Claims ---- */

static void a_claim_sets_the_lock_and_the_fence_and_nothing_else(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("7", "Deleting", never(), ago(90000));
    const struct dibs__task_row *row = claim_row(t, "7");
    assert_string_equal(row->phase.p, "Deleting");
    assert_string_equal(row->kind.p, "gateway");
    assert_int_equal(row->fence.v, 1);
    assert_int_equal(row->state, DIBS__TASK_CLAIMED);
    assert_int_equal(row->due_ms, row->began_ms + LONG_MS);
    assert_in_range(row->began_ms - row->at_ms, 88000, 95000);
    assert_true(locked_about("7", 0));
    assert_int_equal(count("{'_id':7,'phase':'Deleting','state':{'step':3},'createdAt':1,'fence':1,"
                           "'updatedAt':{'$gte':%s,'$lte':%s}}",
                           ago(96000), ago(89000)),
                     1);
    assert_null(strstr(shown("{}"), "dibs"));
    claim_none(t);
  }
}

static void claims_take_the_oldest_locked_at_then_the_oldest_updated_at(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("1", "a", ago(100000), ago(500000));
    add("2", "a", never(), ago(300000));
    add("3", "a", ago(200000), ago(100000));
    add("4", "a", never(), ago(400000));
    add("5", "a", ago(10000), ago(900000)); /* claimed by a program without dibs */
    static const char *const order[] = {"4", "2", "3", "1"};
    const struct dibs__task_op *op = claim_for(t, 3, LONG_MS, NULL, NULL);
    assert_int_equal(op->got_count, 3);
    for (uint32_t i = 0; i < 3; i++) assert_string_equal(row_of(op, i)->key.p, order[i]);
    claim_row(t, "1");
    claim_none(t);
  }
}

static void a_claim_names_its_phases_byte_by_byte(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "Creating", never(), never());
  add("2", "creating", never(), never());
  add("3", "Deleting", never(), never());
  add("4", "$phase", never(), never());
  insert("{'_id':5,'phase':null,'lockedAt':%s}", never());
  insert("{'_id':6,'lockedAt':%s}", never());
  assert_int_equal(claim_for(t, 9, LONG_MS, "Creating ", "'}")->got_count, 0);
  assert_int_equal(claim_for(t, 9, LONG_MS, "Creating", "Deleting")->got_count, 2);
  assert_int_equal(claim_for(t, 9, LONG_MS, "Creating", NULL)->got_count, 0);
  const struct dibs__task_op *op = claim_for(t, 9, LONG_MS, "$phase", NULL);
  end_with(t, row_of(op, 0), DIBS__TASK_END_NEXT, "$lockedAt", 0, DIBS_OK);
  assert_int_equal(count("{'_id':4,'phase':'$lockedAt'}"), 1);
  assert_int_equal(claim_for(t, 9, LONG_MS, NULL, NULL)->got_count, 2); /* without a phase it is no task */
  assert_int_equal(count("{'fence':null}"), 2);
}

static void a_document_without_instants_and_fence_is_free(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("1", "a", ago(100000), ago(100000));
    insert("{'_id':2,'phase':'a','updatedAt':%s}", ago(100000));
    const struct dibs__task_row *row = claim_row(t, "2");
    assert_int_equal(row->fence.v, 1);
    assert_true(locked_about("2", 0)); /* in the form of its other instant */
    end_with(t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    assert_true(is_never("2"));
    assert_int_equal(count("{'_id':2,'updatedAt':{'$gte':%s}}", ago(5000)), 1);
    update("{'_id':2}", "{'$set':{'lockedAt':null},'$unset':{'updatedAt':1}}");
    end_with(t, claim_row(t, "2"), DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    assert_int_equal(count("{'_id':2,'lockedAt':{'$gte':{'$date':{'$numberLong':'0'}}},'updatedAt':{'$gte':{'$date':{'$"
                           "numberLong':'5'}}},'fence':2}"),
                     1);
  }
}

static void a_claim_without_tasks_answers_when_one_is_free(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    insert("{'other':1}");
    assert_int_equal(claim_none(t)->next_ms, -1);
    add("1", "a", ago(20000), ago(20000));
    add("2", "a", ago(5000), ago(20000));
    add("3", "b", ago(25000), ago(20000));
    const struct dibs__task_op *op = claim_for(t, 1, LONG_MS, "a", NULL);
    assert_int_equal(op->got_count, 0);
    assert_in_range(op->next_ms, 5000, 11000);
  }
}

/* As somebody writes it who means "never". */
static void the_latest_instant_of_all_is_not_over(void **state) {
  (void)state;
  dibs_table *t = gateway();
  insert("{'_id':1,'phase':'a','lockedAt':{'$numberLong':'9223372036854775807'},'updatedAt':{'$numberLong':'-"
         "9223372036854775808'}}");
  assert_true(claim_none(t)->next_ms > LONG_MS);
  struct dibs__task_op *op = task_carry(task_make(t), DIBS__TASK_LIST, DIBS_OK);
  assert_int_equal(op->got_count, 1);
  assert_true(row_of(op, 0)->due_ms > 0);
  assert_true(row_of(op, 0)->at_ms < 0);
}

static void a_repeated_claim_claims_nothing(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", never(), never());
  struct dibs__task_op *op = task_make(t);
  op->again = true;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_OK);
  assert_int_equal(op->got_count, 0);
  assert_int_equal(op->next_ms, 0);
  claim_row(t, "1");
}

/* ---- Ends ---- */

static void next_frees_the_document_and_sets_the_phase(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("1", "a", ago(100000), ago(100000));
    const struct dibs__task_row *row = claim_row(t, "1");
    end_with(t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    assert_true(is_never("1"));
    assert_int_equal(count("{'phase':'b','updatedAt':{'$gte':%s},'fence':1,'state':{'step':3}}", ago(5000)), 1);
    end_with(t, row, DIBS__TASK_END_NEXT, "c", 0, DIBS_STALE); /* the claim is over */
    row = claim_row(t, "1");
    assert_int_equal(row->fence.v, 2);
    end_with(t, row, DIBS__TASK_END_NEXT, "", 0, DIBS_OK);
    assert_int_equal(count("{'phase':'b'}"), 1);
  }
}

static void wait_and_fail_free_the_document_after_the_delay(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    for (int fails = 0; fails < 2; fails++) {
      add(fails ? "2" : "1", "a", ago(100000), ago(100000));
      const struct dibs__task_row *row = claim_row(t, fails ? "2" : "1");
      end_with(t, row, fails ? DIBS__TASK_END_FAIL : DIBS__TASK_END_WAIT, "", 10000, DIBS_OK);
      assert_true(locked_about(fails ? "2" : "1", LONG_MS - 10000));
      struct dibs__task_op *op = claim_none(t);
      assert_in_range(op->next_ms, 1, 12000);
    }
    assert_int_equal(count("{'updatedAt':{'$lte':%s},'phase':'a'}", ago(99000)), 2);
  }
}

static void give_frees_the_document_as_it_was(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", ago(100000), ago(100000));
  end_with(t, claim_row(t, "1"), DIBS__TASK_END_GIVE, "", 0, DIBS_OK);
  assert_true(is_never("1"));
  assert_int_equal(count("{'updatedAt':{'$lte':%s},'phase':'a'}", ago(99000)), 1);
}

static void extend_moves_the_lock_and_answers_it(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("1", "a", never(), ago(100000));
    const struct dibs__task_row *row = claim_row(t, "1");
    struct dibs__task_item item = item_of(row);
    dibs__nap_ms(form->coarse ? 1100 : 3);
    change(t, DIBS__TASK_EXTEND, &item, DIBS_OK);
    assert_true(item.due_ms > row->due_ms);
    assert_string_not_equal(item.locked_now, row->locked.p);
    struct dibs__task_item old = item_of(row);
    change(t, DIBS__TASK_EXTEND, &old, DIBS_STALE);
    item.locked = dibs__str_of(item.locked_now, strlen(item.locked_now));
    char kept[40];
    memcpy(kept, item.locked_now, sizeof kept);
    item.locked.p = kept;
    item.phase = dibs__str_of("b", 1);
    change(t, DIBS__TASK_EXTEND, &item, DIBS_OK);
    assert_int_equal(count("{'phase':'b','updatedAt':{'$gte':%s},'fence':1}", ago(5000)), 1);
  }
}

/* A step writes its own document, and may make it none that is a task. */
static void an_extension_does_not_depend_on_what_a_step_wrote(void **state) {
  (void)state;
  static const char *const changes[] = {"{'$set':{'phase':null}}", "{'$unset':{'phase':1,'updatedAt':1}}",
                                        "{'$set':{'phase':3,'updatedAt':'soon'}}"};
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) FOR_EACH_FORM {
      dibs_table *t = gateway();
      char locked[40];
      add("1", "a", never(), ago(100000));
      const struct dibs__task_row *row = claim_row(t, "1");
      assert_int_equal(update("{'_id':1}", changes[i]), 1);
      struct dibs__task_item item = item_of(row);
      change(t, DIBS__TASK_EXTEND, &item, DIBS_OK);
      assert_true(item.due_ms >= row->due_ms);
      memcpy(locked, item.locked_now, sizeof locked);
      item.locked = dibs__str_of(locked, strlen(locked));
      item.verdict = DIBS__TASK_END_NEXT;
      change(t, DIBS__TASK_END, &item, DIBS_OK);
      assert_true(is_never("1"));
    }
}

static void an_expired_claim_is_refused_after_the_next_claim(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", never(), never());
  const struct dibs__task_row *first = row_of(claim_for(t, 1, 200, NULL, NULL), 0), *second = NULL;
  while (!second) {
    const struct dibs__task_op *op = claim_for(t, 1, 200, NULL, NULL);
    if (op->got_count) second = row_of(op, 0);
    dibs__nap_ms(20);
  }
  assert_int_equal(second->fence.v, 2);
  assert_true(second->began_ms >= first->began_ms + 200);
  struct dibs__task_item item = item_of(first);
  change(t, DIBS__TASK_EXTEND, &item, DIBS_STALE);
  end_with(t, first, DIBS__TASK_END_NEXT, "b", 0, DIBS_STALE);
  assert_int_equal(count("{'phase':'a','fence':2}"), 1);
  end_with(t, second, DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
}

/* It counts no fence: the locked_at of the claim says that it is another one. */
static void a_program_without_dibs_that_took_the_document_over_wins(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    add("1", "a", never(), ago(100000));
    const struct dibs__task_row *row = claim_row(t, "1");
    char *later = strdup(ago(form->coarse ? -2000 : -5));
    bson_t *got = find_and_modify("{'findAndModify':'%s','query':{'_id':1},'update':{'$set':{'lockedAt':%s}}}",
                                  gateways(), later);
    assert_non_null(got);
    bson_destroy(got);
    end_with(t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_STALE);
    struct dibs__task_item item = item_of(row);
    change(t, DIBS__TASK_EXTEND, &item, DIBS_STALE);
    assert_int_equal(count("{'phase':'a','lockedAt':%s}", later), 1);
    free(later);
  }
}

static void a_document_that_was_removed_is_not_found(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", never(), never());
  insert("{'other':1}");
  const struct dibs__task_row *row = claim_row(t, "1");
  assert_true(command("{'delete':'%s','deletes':[{'q':{'_id':1},'limit':1}]}", gateways()));
  end_with(t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_NOT_FOUND);
}

static void a_bad_item_does_not_harm_the_others(void **state) {
  (void)state;
  enum { ITEMS = 8 };
  dibs_table *t = gateway();
  char id[12];
  for (int i = 0; i < ITEMS; i++) {
    snprintf(id, sizeof id, "%d", i + 1);
    add(id, "a", never(), ago(1000 * (100 - i)));
  }
  const struct dibs__task_op *claimed = claim_for(t, ITEMS, LONG_MS, NULL, NULL);
  struct dibs__task_item items[ITEMS];
  for (uint32_t i = 0; i < ITEMS; i++) {
    items[i] = item_of(row_of(claimed, i));
    items[i].verdict = DIBS__TASK_END_NEXT;
    items[i].phase = dibs__str_of("b", 1);
  }
  items[0].fence.v = 0;
  items[1].verdict = DIBS__TASK_END_DONE;
  items[2].fence.v = 7;
  items[3].key = dibs__str_of("99", 2);
  items[4].phase = dibs__str_of("\xff", 1);
  items[5].locked = dibs__str_of("nx5", 3);
  items[6].verdict = DIBS__TASK_END_WAIT;
  items[6].delay_ms = -1;
  static const dibs_status want[ITEMS] = {DIBS_INVALID, DIBS_UNSUPPORTED, DIBS_STALE,   DIBS_NOT_FOUND,
                                          DIBS_INVALID, DIBS_STALE,       DIBS_INVALID, DIBS_OK};
  struct dibs__task_op *op = task_make(t);
  op->items = items;
  op->count = ITEMS;
  task_carry(op, DIBS__TASK_END, DIBS_OK);
  for (uint32_t i = 0; i < ITEMS; i++) assert_int_equal(items[i].status, want[i]);
  assert_int_equal(count("{'phase':'b'}"), 1);
  assert_int_equal(count("{'_id':8,'phase':'b'}"), 1);
}

/* ---- Many claimers ---- */

enum { CLAIMERS = 6, DOCUMENTS = 120 };
static struct {
  dibs_table *table;
  _Atomic int claims[DOCUMENTS], failures;
} race;

/* Dibs, with a store of its own. */
static void *claim_by_dibs(void *arg) {
  dibs_claim_options o = DIBS_CLAIM_OPTIONS_INIT;
  dibs_store *own = arg;
  dibs_error error;
  o.table = race.table;
  o.most = 3;
  for (;;) {
    dibs_task *tasks[3];
    size_t n;
    dibs_status status = dibs_tasks_claim(own, NULL, &o, tasks, &n, &error);
    if (status == DIBS_NOT_FOUND) return NULL;
    if (status != DIBS_OK && atomic_fetch_add(&race.failures, 1) < 3) print_error("claim: %s\n", error.text);
    if (status != DIBS_OK) return NULL;
    for (size_t i = 0; i < n; i++) atomic_fetch_add(&race.claims[strtol(tasks[i]->key, NULL, 10)], 1);
    for (size_t i = 0; i < n; i++) dibs_task_free(tasks[i]);
  }
}

/* As a program without dibs does it. */
static void *claim_by_hand(void *arg) {
  bson_error_t error;
  mongoc_uri_t *uri = mongoc_uri_new(case_uri());
  (void)arg;
  mongoc_client_t *own = mongoc_client_new_from_uri(uri);
  mongoc_client_set_error_api(own, MONGOC_ERROR_API_VERSION_2);
  mongoc_collection_t *of = mongoc_client_get_collection(own, mongoc_uri_get_database(uri), gateways());
  for (;;) {
    bson_iter_t at;
    bson_t reply;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    bson_t *query = BCON_NEW("phase", "a", "lockedAt", "{", "$lte", BCON_DATE_TIME(ms - LONG_MS), "}");
    bson_t *change_it = BCON_NEW("$set", "{", "lockedAt", BCON_DATE_TIME(ms), "}");
    bson_t *sort = BCON_NEW("lockedAt", BCON_INT32(1), "updatedAt", BCON_INT32(1));
    bool done = mongoc_collection_find_and_modify(of, query, sort, change_it, NULL, false, false, true, &reply, &error);
    bool got = done && bson_iter_init(&at, &reply) && bson_iter_find_descendant(&at, "value._id", &at);
    if (got) atomic_fetch_add(&race.claims[bson_iter_as_int64(&at)], 1);
    bool met = !done && met_another(&error);
    if (!done && !met && atomic_fetch_add(&race.failures, 1) < 3) print_error("%s\n", error.message);
    bson_destroy(&reply);
    bson_destroy(query);
    bson_destroy(sort);
    bson_destroy(change_it);
    if (!got && !met) break;
  }
  mongoc_collection_destroy(of);
  mongoc_client_destroy(own);
  mongoc_uri_destroy(uri);
  return NULL;
}

static void of_many_claimers_one_gets_each_document(void **state) {
  (void)state;
  pthread_t threads[CLAIMERS];
  dibs_store *own[CLAIMERS] = {NULL};
  dibs_error error;
  memset(&race, 0, sizeof race);
  race.table = gateway();
  for (int i = 0; i < DOCUMENTS; i++) {
    char id[12];
    snprintf(id, sizeof id, "%d", i);
    add(id, "a", never(), ago(100000 + i));
  }
  for (int i = 0; i < CLAIMERS; i++) {
    bool by_hand = i % 3 == 2;
    if (!by_hand && dibs_open(case_uri(), NULL, &own[i], &error) != DIBS_OK) fail_msg("%s", error.text);
    assert_int_equal(pthread_create(&threads[i], NULL, by_hand ? claim_by_hand : claim_by_dibs, own[i]), 0);
  }
  for (int i = 0; i < CLAIMERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < CLAIMERS; i++) dibs_close(own[i]);
  assert_int_equal(atomic_load(&race.failures), 0);
  for (int i = 0; i < DOCUMENTS; i++) assert_int_equal(atomic_load(&race.claims[i]), 1);
  assert_int_equal(count("{'fence':{'$gt':1}}"), 0);
}

/* ---- Keys ---- */

#define OID "6b07c9f57dd4a3ff267ca355"

/* A number and a text of the same digits are two keys. */
static void a_claim_knows_the_type_of_its_key(void **state) {
  (void)state;
  dibs_table *t = gateway();
  static const char *const ids[] = {"7",   "'7'",   "{'$oid':'" OID "'}",  "'" OID "'",
                                    "8.0", "'a b'", "'gr\xc3\xbc\xc3\x9f'"};
  enum { IDS = sizeof ids / sizeof ids[0] };
  for (size_t i = 0; i < IDS; i++) add(ids[i], "a", never(), ago(1000 * (100 - (int)i)));
  const struct dibs__task_op *op = claim_for(t, IDS, LONG_MS, NULL, NULL);
  static const char *const keys[] = {"7", "7", OID, OID, "8", "a b", "gr\xc3\xbc\xc3\x9f"};
  assert_int_equal(op->got_count, IDS);
  for (uint32_t i = 0; i < IDS; i++) assert_string_equal(row_of(op, i)->key.p, keys[i]);
  for (uint32_t i = 0; i < IDS; i++) {
    char phase[8];
    snprintf(phase, sizeof phase, "p%u", i);
    end_with(t, row_of(op, i), DIBS__TASK_END_NEXT, phase, 0, DIBS_OK);
  }
  for (uint32_t i = 0; i < IDS; i++) assert_int_equal(count("{'_id':%s,'phase':'p%u'}", ids[i], i), 1);
}

static void another_field_may_be_the_key_if_it_is_unique(void **state) {
  (void)state;
  dibs_table *t = table_with(gateways(), "name");
  insert("{'name':'g1','phase':'a','lockedAt':%s}", never());
  assert_non_null(strstr(task_carry(task_make(t), DIBS__TASK_CLAIM, DIBS_INVALID)->why, "unique"));
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'phase':1,'name':1},'name':'two','unique':true}]}",
                      gateways()));
  assert_non_null(strstr(task_carry(task_make(t), DIBS__TASK_CLAIM, DIBS_INVALID)->why, "unique"));
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'name':1},'name':'one','unique':true}]}", gateways()));
  end_with(t, claim_row(t, "g1"), DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
  assert_int_equal(count("{'name':'g1','phase':'b'}"), 1);
}

static void a_collection_may_be_in_another_database(void **state) {
  (void)state;
  char name[80];
  snprintf(name, sizeof name, "dibs_test_other.%s", gateways());
  dibs_table *t = table_with(name, "_id");
  add("1", "a", never(), never()); /* in the database of the URI */
  struct dibs__task_op *op = claim_none(t);
  assert_non_null(strstr(op->why, "dibs_test_other"));
  struct dibs__task_item item = {.key = dibs__str_of("1", 1), .fence = {1}, .locked = dibs__str_of("nd5", 3)};
  change(t, DIBS__TASK_EXTEND, &item, DIBS_NOT_FOUND);
  assert_true(command("{'aggregate':'%s','pipeline':[{'$out':{'db':'dibs_test_other','coll':'%s'}}],'cursor':{}}",
                      gateways(), gateways()));
  claim_row(t, "1");
  assert_int_equal(count("{'fence':1}"), 0);
}

/* ---- Odd documents ---- */

static void odd_documents_are_named_and_do_not_block_the_rest(void **state) {
  (void)state;
  static const struct {
    const char *document, *field;
  } odd[] = {
      {"{'_id':'x','phase':'a','lockedAt':true}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':'soon'}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':'2020-01-01 00:00:00'}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':[{'$date':{'$numberLong':'0'}}]}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':[]}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':{'$numberDouble':'NaN'}}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':0.5}", "lockedAt"},
      {"{'_id':'x','phase':'a','lockedAt':{'at':0}}", "lockedAt"},
      {"{'_id':'x','phase':'a','fence':'abc'}", "fence"},
      {"{'_id':'x','phase':'a','fence':-1}", "fence"},
      {"{'_id':'x','phase':'a','fence':1.5}", "fence"},
      {"{'_id':'x','phase':'a','fence':[1]}", "fence"},
      {"{'_id':'x','phase':'a','fence':{'$numberLong':'9223372036854775807'}}", "fence"},
      {"{'_id':'x','phase':['a']}", "phase"},
      {"{'_id':{'a':1},'phase':'a'}", "_id"},
      {"{'_id':1.5,'phase':'a'}", "_id"},
      {"{'_id':'','phase':'a'}", "_id"},
      {"{'_id':true,'phase':'a'}", "_id"},
      {"{'_id':{'$date':{'$numberLong':'5'}},'phase':'a'}", "_id"},
  };
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++, case_next()) {
    dibs_table *t = gateway();
    insert("%s", odd[i].document);
    add("9", "a", never(), never());
    char *before = strdup(shown("{'_id':{'$ne':9}}"));
    const struct dibs__task_op *op = claim_for(t, 5, LONG_MS, "a", NULL);
    assert_int_equal(op->got_count, 1);
    assert_string_equal(row_of(op, 0)->key.p, "9");
    op = claim_for(t, 5, LONG_MS, "a", NULL);
    assert_int_equal(op->got_count, 0);
    if (!strstr(op->why, odd[i].field) || !strstr(op->why, gateways()))
      fail_msg("%s: \"%s\" is not named in \"%s\"", odd[i].document, odd[i].field, op->why);
    assert_int_equal(claim_none(t)->got_count, 0); /* of any phase */
    assert_string_equal(shown("{'_id':{'$ne':9}}"), before);
    struct dibs__task_op *listed = task_make(t);
    listed->most = 10;
    assert_int_equal(task_carry(listed, DIBS__TASK_LIST, DIBS_OK)->got_count, 1);
    free(before);
  }
}

/* Its next fence is that of another document, and the user's index wants them to differ. */
static void a_document_that_the_server_refuses_to_change_is_left_out(void **state) {
  (void)state;
  dibs_table *t = gateway();
  insert("{'_id':1,'phase':'a','lockedAt':%s,'updatedAt':%s,'fence':1}", never(), ago(9000));
  insert("{'_id':2,'phase':'b','lockedAt':%s,'updatedAt':%s,'fence':2}", never(), ago(9000));
  insert("{'_id':3,'phase':'a','lockedAt':%s,'updatedAt':%s,'fence':7}", never(), ago(5000));
  insert("{'_id':4,'phase':'a','lockedAt':%s,'updatedAt':%s,'fence':9}", never(), ago(4000));
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'fence':1},'name':'f','unique':true}]}", gateways()));
  const struct dibs__task_op *op = claim_for(t, 1, LONG_MS, "a", NULL);
  assert_string_equal(row_of(op, 0)->key.p, "3");
  op = claim_for(t, 9, LONG_MS, "a", NULL);
  assert_int_equal(op->got_count, 1);
  assert_string_equal(row_of(op, 0)->key.p, "4");
  op = claim_for(t, 9, LONG_MS, "a", NULL);
  assert_int_equal(op->got_count, 0);
  if (!strstr(op->why, "\"_id\" : 1") || !strstr(op->why, "can't be claimed")) fail_msg("%s", op->why);
  assert_int_equal(count("{'_id':1,'fence':1,'lockedAt':%s}", never()), 1);
}

/* ---- Listing ---- */

static struct dibs__task_op *list(dibs_table *t, struct dibs__task_filter filter, uint32_t most, dibs_status want) {
  struct dibs__task_op *op = task_make(t);
  op->filter = filter;
  op->most = most;
  return task_carry(op, DIBS__TASK_LIST, want);
}

static void a_list_has_each_document_once(void **state) {
  (void)state;
  FOR_EACH_FORM {
    dibs_table *t = gateway();
    enum { ROWS = 24 };
    int seen[ROWS] = {0};
    char id[48];
    dibs__str after = {"", 0};
    for (int i = 0; i < ROWS; i++) {
      snprintf(id, sizeof id, i % 3 == 0 ? "%d" : i % 3 == 1 ? "'%d'" : "{'$oid':'6b07c9f57dd4a3ff267ca3%02d'}", i);
      add(id, i % 4 ? "a" : "b", i % 2 ? never() : ago(1000), ago(10000 * (i + 1)));
    }
    for (struct dibs__task_op *op;
         (op = list(t, (struct dibs__task_filter){.after_key = after}, 5, DIBS_OK))->got_count;) {
      for (uint32_t i = 0; i < op->got_count; i++) {
        const struct dibs__task_row *row = row_of(op, i);
        long nr = strtol(row->key.len == 24 ? row->key.p + 22 : row->key.p, NULL, 10);
        assert_in_range(nr, 0, ROWS - 1);
        seen[nr]++;
        assert_int_equal(row->state, nr % 2 ? DIBS__TASK_READY : DIBS__TASK_CLAIMED);
        assert_string_equal(row->phase.p, nr % 4 ? "a" : "b");
      }
      after = row_of(op, op->got_count - 1)->key;
    }
    for (int i = 0; i < ROWS; i++) assert_int_equal(seen[i], 1);
    struct dibs__task_filter filter = {.phase = dibs__str_of("b", 1)};
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, 6);
    filter.states = 1u << DIBS__TASK_READY;
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, 0);
    filter.states = 1u << DIBS__TASK_CLAIMED;
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, 6);
    filter.states = 1u << DIBS__TASK_DEAD;
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, 0);
    filter = (struct dibs__task_filter){.states = 1u << DIBS__TASK_READY};
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, ROWS / 2);
    filter = (struct dibs__task_filter){.older_ms = 195000};
    assert_int_equal(list(t, filter, 100, DIBS_OK)->got_count, 5);
    filter = (struct dibs__task_filter){.key = dibs__str_of("7", 1)};
    assert_string_equal(row_of(list(t, filter, 100, DIBS_OK), 0)->key.p, "7");
    assert_int_equal(count("{'fence':null}"), ROWS);
  }
}

static void a_list_goes_on_behind_a_key_of_one_type_only(void **state) {
  (void)state;
  dibs_table *t = gateway();
  struct dibs__task_filter filter = {.after_key = dibs__str_of("7", 1)};
  add("7", "a", never(), never());
  add("9", "a", never(), never());
  assert_int_equal(list(t, filter, 9, DIBS_OK)->got_count, 1);
  add("'8'", "a", never(), never());
  assert_int_equal(list(t, filter, 9, DIBS_OK)->got_count, 2); /* numbers come first */
  add("'7'", "a", never(), never());
  assert_non_null(strstr(list(t, filter, 9, DIBS_INVALID)->why, "several types"));
  filter = (struct dibs__task_filter){.key = dibs__str_of("7", 1)};
  assert_int_equal(list(t, filter, 9, DIBS_OK)->got_count, 2);
}

/* ---- What is refused ---- */

static void verbs_of_dibs_own_table_are_unsupported(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", never(), never());
  static const enum dibs__task_verb verbs[] = {DIBS__TASK_ADD, DIBS__TASK_CHANGE, DIBS__TASK_COUNT, DIBS__TASK_KIND};
  for (size_t i = 0; i < 4; i++)
    assert_non_null(strstr(task_carry(task_make(t), verbs[i], DIBS_UNSUPPORTED)->why, gateways()));
  task_carry(task_make(NULL), DIBS__TASK_COUNT, DIBS_OK);
}

static void a_name_with_a_dollar_is_refused(void **state) {
  (void)state;
  insert("{'a':1}");
  assert_non_null(
      strstr(task_carry(task_make(table_with(gateways(), "key$")), DIBS__TASK_CLAIM, DIBS_INVALID)->why, "key$"));
}

static void wrong_arguments_are_invalid(void **state) {
  (void)state;
  dibs_table *t = gateway();
  add("1", "a", never(), never());
  struct dibs__task_op *op = task_make(t);
  op->timeout_ms = 0;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_INVALID);
  op = task_make(t);
  op->most = 1001;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_INVALID);
  static const dibs__str phase = {"\xff", 1};
  op = task_make(t);
  op->phases = &phase;
  op->phase_count = 1;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_INVALID);
}

/* ---- Through dibs/task.h ---- */

static void the_calls_of_the_library_work_on_it(void **state) {
  (void)state;
  const char *phases[] = {"Deleting"};
  dibs_claim_options o = DIBS_CLAIM_OPTIONS_INIT;
  dibs_task *task;
  dibs_error error;
  size_t n;
  o.table = gateway();
  o.phases = phases;
  o.phase_count = 1;
  add("{'$oid':'" OID "'}", "Deleting", never(), ago(120000));
  assert_int_equal(dibs_tasks_claim(store(), NULL, &o, &task, &n, &error), DIBS_OK);
  assert_string_equal(task->key, OID);
  assert_in_range(task->age_ms, 119000, 130000);
  assert_int_equal(dibs_task_extend(task, 0, &error), DIBS_OK);
  assert_int_equal(dibs_task_done(task, NULL, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_task_step(task, "Deleting2", &error), DIBS_OK);
  assert_int_equal(dibs_task_unlock(task, "Deleted", &error), DIBS_OK);
  dibs_task_free(task);
  assert_int_equal(count("{'phase':'Deleted','fence':1,'lockedAt':%s}", never()), 1);
  assert_int_equal(dibs_tasks_claim(store(), NULL, &o, &task, &n, &error), DIBS_NOT_FOUND);
}

int main(int argc, char *argv[]) {
  if (argc != 2) return 2;
  bed_begin(argv[1]);
  const struct CMUnitTest tests[] = {
      CASE(a_claim_sets_the_lock_and_the_fence_and_nothing_else),
      CASE(claims_take_the_oldest_locked_at_then_the_oldest_updated_at),
      CASE(a_claim_names_its_phases_byte_by_byte),
      CASE(a_document_without_instants_and_fence_is_free),
      CASE(a_claim_without_tasks_answers_when_one_is_free),
      CASE(the_latest_instant_of_all_is_not_over),
      CASE(a_repeated_claim_claims_nothing),
      CASE(next_frees_the_document_and_sets_the_phase),
      CASE(wait_and_fail_free_the_document_after_the_delay),
      CASE(give_frees_the_document_as_it_was),
      CASE(extend_moves_the_lock_and_answers_it),
      CASE(an_extension_does_not_depend_on_what_a_step_wrote),
      CASE(an_expired_claim_is_refused_after_the_next_claim),
      CASE(a_program_without_dibs_that_took_the_document_over_wins),
      CASE(a_document_that_was_removed_is_not_found),
      CASE(a_bad_item_does_not_harm_the_others),
      CASE(of_many_claimers_one_gets_each_document),
      CASE(a_claim_knows_the_type_of_its_key),
      CASE(another_field_may_be_the_key_if_it_is_unique),
      CASE(a_collection_may_be_in_another_database),
      CASE(odd_documents_are_named_and_do_not_block_the_rest),
      CASE(a_document_that_the_server_refuses_to_change_is_left_out),
      CASE(a_list_has_each_document_once),
      CASE(a_list_goes_on_behind_a_key_of_one_type_only),
      CASE(verbs_of_dibs_own_table_are_unsupported),
      CASE(a_name_with_a_dollar_is_refused),
      CASE(wrong_arguments_are_invalid),
      CASE(the_calls_of_the_library_work_on_it),
  };
  return cmocka_run_group_tests_name("mongodb tasks", tests, NULL, NULL);
}
