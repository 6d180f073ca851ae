/* SPDX-License-Identifier: MIT */
/* Many waiters on one name, many names: the order holds, and the cost of an operation does not grow with the number of
 * waiters. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAITERS = 10000, TURNS = 300, LEFT_MS = 60000 };

static int bounded(int count) {
  return target()->most_waiters && target()->most_waiters < count ? target()->most_waiters : count;
}

/* Acquires with ids first ... first + count - 1, in batches; the end of the case frees the operations. */
static struct dibs__lease_op *request_all(struct party *p, const char *name, int first, int count, struct how how) {
  struct dibs__lease_op *ops = calloc((size_t)count, sizeof *ops);
  struct dibs__op **batch = calloc((size_t)count, sizeof *batch);
  size_t most = p->identity.max_batch;
  assert_true(ops && batch);
  free_at_end((char *)ops), free_at_end((char *)batch);
  for (int i = 0; i < count; i++) {
    ops[i] = lease_op(p, DIBS__ACQUIRE, name, first + i, how);
    batch[i] = &ops[i].op;
  }
  for (size_t at = 0; at < (size_t)count; at += most) {
    size_t left = (size_t)count - at;
    run_batch(p, batch + at, left < most ? left : most);
  }
  return ops;
}

static void R11_ten_thousand_wait_for_one_name(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  int waiters = bounded(WAITERS), turns = waiters > TURNS ? TURNS : waiters / 3;
  /* Longer than the slowest engine needs, so that only a release passes the lease on. */
  struct how how = {.ttl = 600000};
  struct dibs__lease_op held = acquire_as(p, "n", 0, how);
  struct dibs__lease_op *ops = request_all(q, "n", 1, waiters, how);
  for (int i = 0; i < waiters; i++) {
    expect(ops[i], DIBS__QUEUED);
    if (i) assert_int_not_equal(ops[i].ticket, ops[i - 1].ticket);
  }
  for (int i = 0; i < turns; i++) {
    expect(release(p, "n", i, held.fence), DIBS_OK);
    how.ticket = ops[i].ticket;
    struct dibs__lease_op next = acquire_as(q, "n", i + 1, how);
    expect(next, DIBS_OK);
    assert_true(next.waiting);
    assert_true(dibs__fence_below(held.fence, next.fence));
    held = next;
  }
  close_party(q);
  expect(release(p, "n", turns, held.fence), DIBS_OK);
  /* A daemon takes the waiters of a client that has left out of the line after it has answered. */
  bool later = strncmp(case_store_uri(), "http", 4) == 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), later ? LEFT_MS : 0);
  struct dibs__lease_op last = acquire(p, "n", waiters + 1, .try_only = true);
  while (last.op.status == DIBS_HELD && dibs__tick_before(dibs__tick_now(), by)) {
    dibs__nap_ms(20);
    last = acquire(p, "n", waiters + 1, .try_only = true);
  }
  expect(last, DIBS_OK);
}

static void R11_thousands_of_readers_are_granted_at_once(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party();
  int readers = bounded(3000);
  struct dibs__lease_op held = acquire(p, "n", 0, .ttl = 600000);
  struct how how = {.mode = DIBS_SHARED, .ttl = 600000};
  struct dibs__lease_op *ops = request_all(p, "n", 1, readers, how);
  for (int i = 0; i < readers; i++) expect(ops[i], DIBS__QUEUED);
  expect(release(p, "n", 0, held.fence), DIBS_OK);
  ops = request_all(p, "n", 1, readers, how);
  /* A reader that confirms too late is awake again because it repeats its request; all readers fit. */
  for (int i = 0; i < readers; i++) expect(ops[i], DIBS_OK);
  expect(acquire(p, "n", readers + 1, .try_only = true), DIBS_HELD);
}

static void R9_thousands_of_names_are_held(void **state) {
  (void)state;
  enum { MANY = 10000 };
  struct party *p = party();
  struct dibs__lease_op *ops = calloc(MANY, sizeof *ops);
  struct dibs__op **batch = calloc(MANY, sizeof *batch);
  char(*names)[40] = calloc(MANY, sizeof *names);
  assert_true(ops && batch && names);
  free_at_end((char *)ops), free_at_end((char *)batch), free_at_end((char *)names);
  dibs__str prefix = name_of("");
  for (int i = 0; i < MANY; i++) {
    int len = snprintf(names[i], sizeof names[i], "%.*s%d", (int)prefix.len, prefix.p, i);
    ops[i] = lease_op(p, DIBS__ACQUIRE, "", i, (struct how){.ttl = 600000});
    ops[i].name = dibs__str_of(names[i], (size_t)len);
    ops[i].op.bucket = dibs__bucket(ops[i].name);
    ops[i].op.mandate = mandate_for(p, ops[i].op.bucket);
    batch[i] = &ops[i].op;
  }
  for (int verb = DIBS__ACQUIRE; verb <= DIBS__RENEW; verb++) {
    for (size_t at = 0; at < MANY; at += p->identity.max_batch) {
      size_t left = MANY - at;
      for (size_t i = at; i < MANY; i++) ops[i].op.verb = (uint16_t)verb;
      run_batch(p, batch + at, left < p->identity.max_batch ? left : p->identity.max_batch);
    }
    for (int i = 0; i < MANY; i++) expect(ops[i], DIBS_OK);
  }
}

static const struct CMUnitTest contract_many_waiters_cases[] = {
    CASE(R11_ten_thousand_wait_for_one_name),
    CASE(R11_thousands_of_readers_are_granted_at_once),
    CASE(R9_thousands_of_names_are_held),
};
CONTRACT_TESTS(contract_many_waiters);
