/* SPDX-License-Identifier: MIT */
/* The parts of the etcd driver that need no server: fences at the end of an epoch. */
#include "drivers/etcd/etcd_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EPOCH = 7, BASE = 1000, REVISIONS = 1 << 22 }; /* of an epoch: 2^32 fences, 1024 for each revision */

static const char name[] = "n";

struct bed {
  struct dibs__etcd store;
  struct dibs__lease_op op;
  struct dibs__result result;
  struct dibs__etcd_batch batch;
  struct dibs__etcd_element element;
};

/* A tier whose bucket an anchor serves in this epoch, and a client that acquires a name. */
static int make_bed(void **state) {
  struct bed *bed = calloc(1, sizeof *bed);
  if (!bed) return -1;
  struct dibs__etcd *store = &bed->store;
  dibs__mutex_init(&store->lock);
  store->as_tier = true;
  store->meta_known = true;
  store->meta = (struct dibs__etcd_meta){.mod = 1, .epoch = 1, .incarnation = {{1}}};
  if (!dibs__map_init(&store->holds) || dibs__etcd_watches_open(store) != DIBS_OK) return -1;
  bed->op.name = dibs__str_of(name, 1);
  bed->op.ttl_ms = 1000;
  bed->op.want_block = 1;
  bed->op.op.family = DIBS__FAM_LEASE;
  bed->op.op.verb = DIBS__ACQUIRE;
  bed->op.op.bucket = dibs__bucket(bed->op.name);
  bed->op.op.mandate = (dibs__mandate){.epoch = EPOCH, .incarnation = store->meta.incarnation};
  store->buckets[bed->op.op.bucket] = (struct dibs__etcd_bucket){
      .mod = 2, .base = BASE, .epoch = EPOCH, .served = DIBS__ETCD_SERVED, .used = true, .known = true};
  bed->batch = (struct dibs__etcd_batch){.store = store, .result = &bed->result, .count = 1};
  bed->element.op = &bed->op.op;
  bed->batch.elements = &bed->element;
  *state = bed;
  return 0;
}

static int free_bed(void **state) {
  struct bed *bed = *state;
  dibs__etcd_watches_close(&bed->store);
  dibs__etcd_holds_free(&bed->store);
  dibs__etcd_name_free(&bed->element.name);
  dibs__mutex_destroy(&bed->store.lock);
  free(bed);
  return 0;
}

static void begin_at(struct bed *bed, uint64_t revision) {
  bed->store.revision = revision;
  bed->batch.revision = 0; /* none was read yet */
  bed->element.done = false;
  dibs__etcd_lease_begin(&bed->batch, &bed->element);
  assert_false(bed->element.done);
}

static void a_served_epoch_that_is_used_up_grants_without_a_look_at_it_no_more(void **state) {
  struct bed *bed = *state;
  begin_at(bed, BASE + REVISIONS / 2);
  assert_int_equal(bed->element.plan, DIBS__ETCD_GUESS);
  begin_at(bed, BASE + REVISIONS);
  assert_int_equal(bed->element.plan, DIBS__ETCD_READ);
}

/* As etcd answers a transaction that has put the holder's key. */
static void granted_at(struct bed *bed, uint64_t revision) {
  json_t *answer = json_pack("{s:b, s:[{s:{}}]}", "succeeded", 1, "responses", "response_put");
  assert_non_null(answer);
  begin_at(bed, BASE + 1);
  assert_int_equal(bed->element.plan, DIBS__ETCD_GUESS);
  bed->element.block = 1;
  bed->element.item = (struct dibs__etcd_item){.id = 5, .ttl_s = 2, .class_s = 2, .from = dibs__tick_now()};
  bed->element.sent = dibs__tick_now();
  bed->batch.revision = revision;
  dibs__etcd_lease_take(&bed->batch, &bed->element, answer);
  json_decref(answer);
}

/* Another program has made revisions since this process has seen one. */
static void a_fence_of_the_next_epoch_is_given_to_nobody(void **state) {
  struct bed *bed = *state;
  granted_at(bed, BASE + REVISIONS - 1);
  assert_true(bed->element.done);
  assert_int_equal(bed->op.op.status, DIBS_OK);
  assert_int_equal(dibs__fence_epoch(bed->op.fence), EPOCH);
  dibs__etcd_hold_drop(&bed->store, bed->op.name, bed->op.id);
  granted_at(bed, BASE + REVISIONS);
  assert_false(bed->element.done);
  assert_int_equal(bed->element.plan, DIBS__ETCD_REMOVE);
  assert_int_equal(bed->element.mod, BASE + REVISIONS);
  assert_int_equal(bed->store.spare_count, 0); /* a key is on its lease of etcd */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_served_epoch_that_is_used_up_grants_without_a_look_at_it_no_more, make_bed,
                                      free_bed),
      cmocka_unit_test_setup_teardown(a_fence_of_the_next_epoch_is_given_to_nobody, make_bed, free_bed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
