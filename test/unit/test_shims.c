/* SPDX-License-Identifier: MIT */
/* The shims, linked in, over the memory driver. */
#include "drivers/memory/memory.h"
#include "drivers/wrap/fault.h"
#include "store/family.h"
#include "store/registry.h"
#include "store/task.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct bed {
  struct dibs__chain chain;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;
};

static dibs__tick in_ms(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

static dibs__status try_open(struct bed *bed, const char *text) {
  struct dibs__uri uri;
  *bed = (struct bed){.session = NULL};
  assert_int_equal(dibs__uri_parse(text, &uri, &bed->reported), DIBS_OK);
  dibs__status status = dibs__chain_open(&uri, "/nowhere", in_ms(LONG_MS), &bed->chain, &bed->reported);
  dibs__uri_free(&uri);
  return status;
}

static dibs__status try_connect(struct bed *bed, struct dibs__session **session, dibs__tick by) {
  struct dibs__dstore *store = bed->chain.stores[0];
  return store->driver->connect(store, by, session, &bed->identity, &bed->reported);
}

static void open_bed(struct bed *bed, const char *text) {
  dibs__status status = try_open(bed, text);
  if (status != DIBS_OK) fail_msg("%s: %s", text, bed->reported.text);
  assert_int_equal(try_connect(bed, &bed->session, in_ms(LONG_MS)), DIBS_OK);
}

static void disconnect(struct dibs__session *session) {
  session->store->driver->disconnect(session);
}

static void close_bed(struct bed *bed) {
  if (bed->session) disconnect(bed->session);
  dibs__chain_close(&bed->chain);
}

static dibs__status run_on(struct dibs__session *session, struct dibs__op *op, dibs__tick by,
                           struct dibs__result *reported) {
  return session->store->driver->run(session, &op, 1, by, reported);
}

static dibs__status run(struct bed *bed, struct dibs__op *op) {
  return run_on(bed->session, op, in_ms(LONG_MS), &bed->reported);
}

/* Calls the store under the shims directly. */
static dibs__status run_inside(struct bed *bed, struct dibs__op *op) {
  struct dibs__dstore *store = bed->chain.stores[bed->chain.count - 1];
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;
  assert_int_equal(store->driver->connect(store, in_ms(LONG_MS), &session, &identity, &reported), DIBS_OK);
  dibs__status status = run_on(session, op, in_ms(LONG_MS), &reported);
  disconnect(session);
  return status;
}

static struct dibs__lease_op lease_op(struct bed *bed, enum dibs__lease_verb verb, const char *name, uint8_t id) {
  struct dibs__lease_op op = {.name = dibs__str_of(name, strlen(name)), .owner = {"test", 4}, .ttl_ms = 60000};
  memset(op.id.b, id, sizeof op.id.b);
  op.op.family = DIBS__FAM_LEASE;
  op.op.verb = (uint16_t)verb;
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = bed->identity.mandate;
  op.op.status = DIBS_UNKNOWN;
  op.queue = true;
  return op;
}

/* 1 while a client holds it in the store. */
static bool held_inside(struct bed *bed, const char *name) {
  struct dibs__lease_op op = lease_op(bed, DIBS__BREAK, name, 0);
  assert_int_equal(run_inside(bed, &op.op), DIBS_OK);
  return op.op.status == DIBS_OK;
}

/* ---- All of them ---- */

static void shims_pass_everything_through(void **state) {
  (void)state;
  struct bed plain, wrapped;
  open_bed(&plain, "memory:");
  open_bed(&wrapped, "fault+trace+memory:?trace.file=/dev/null");
  assert_int_equal(wrapped.identity.caps, plain.identity.caps);
  close_bed(&wrapped);
  open_bed(&wrapped, "fault+latency+trace+memory:?trace.file=/dev/null");
  assert_int_equal(wrapped.identity.caps, plain.identity.caps & ~(uint32_t)DIBS__CAP_BRIEF); /* far in the future */
  assert_int_equal(wrapped.identity.families, plain.identity.families);
  assert_int_equal(wrapped.identity.max_batch, plain.identity.max_batch);
  assert_int_equal(wrapped.identity.max_sessions, plain.identity.max_sessions);
  assert_int_not_equal(wrapped.identity.session, 0);
  struct dibs__lease_op op = lease_op(&wrapped, DIBS__ACQUIRE, "a", 1);
  assert_int_equal(run(&wrapped, &op.op), DIBS_OK);
  assert_int_equal(op.op.status, DIBS_OK);
  assert_true(op.fence.v != 0);
  assert_int_equal(wrapped.reported.commits, 1);
  assert_true(wrapped.reported.now.ms != 0);
  wrapped.chain.stores[0]->driver->tidy(wrapped.chain.stores[0]);
  close_bed(&plain);
  close_bed(&wrapped);
}

static void waking_reaches_the_innermost(void **state) {
  (void)state;
  struct bed bed;
  struct dibs__event events[4];
  size_t count = 9;
  open_bed(&bed, "fault+latency+trace+memory:?trace.file=/dev/null&latency.events=10");
  struct dibs__dstore *store = bed.chain.stores[0];
  store->driver->wake(store);
  assert_int_equal(store->driver->events(store, events, 4, &count, in_ms(10 * LONG_MS)), DIBS_OK);
  assert_int_equal(count, 0);
  close_bed(&bed);
}

static void parameters_are_checked(void **state) {
  (void)state;
  static const char *const bad[] = {
      "fault+memory:?fault.rate=1001", "fault+memory:?fault.on=runs",       "fault+memory:?fault.on=run,",
      "fault+memory:?fault.on=",       "fault+memory:?fault.how=badly",     "fault+memory:?fault.forever=2",
      "fault+memory:?fault.what=1",    "latency+memory:?latency.ms=-1",     "latency+memory:?latency.ms=1s",
      "latency+memory:?latency.s=1",   "trace+memory:?trace.path=/dev/null"};
  for (size_t i = 0; i < COUNT_OF(bad); i++) {
    struct bed bed;
    if (try_open(&bed, bad[i]) != DIBS_INVALID) fail_msg("%s: %s", bad[i], bed.reported.text);
    assert_non_null(strstr(bed.reported.text, "."));
  }
}

/* ---- fault ---- */

static void nth_call_fails_once(void **state) {
  (void)state;
  struct bed bed;
  open_bed(&bed, "fault+memory:?fault.nth=2");
  for (int i = 1; i <= 4; i++) {
    struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
    assert_int_equal(run(&bed, &op.op), i == 2 ? DIBS_UNAVAILABLE : DIBS_OK);
    assert_int_equal(op.op.status, i == 2 ? DIBS_UNKNOWN : DIBS_OK);
    assert_false(bed.reported.dead);
    assert_int_equal(bed.reported.text[0] != '\0', i == 2);
  }
  close_bed(&bed);
}

static void the_nth_call_and_all_later_ones_fail(void **state) {
  (void)state;
  struct bed bed;
  open_bed(&bed, "fault+memory:?fault.nth=2&fault.forever=1");
  for (int i = 1; i <= 4; i++) {
    struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
    assert_int_equal(run(&bed, &op.op), i >= 2 ? DIBS_UNAVAILABLE : DIBS_OK);
  }
  close_bed(&bed);
}

struct how_case {
  const char *how;
  dibs__status status;
  bool done, dead;
};

static void each_kind_of_failure_does_what_it_promises(void **state) {
  (void)state;
  static const struct how_case cases[] = {{"unavailable", DIBS_UNAVAILABLE, false, false},
                                          {"unknown-before", DIBS_UNKNOWN, false, false},
                                          {"unknown-after", DIBS_UNKNOWN, true, false},
                                          {"dead", DIBS_UNAVAILABLE, false, true},
                                          {"dead-after", DIBS_UNKNOWN, true, true}};
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    struct bed bed;
    char uri[128];
    snprintf(uri, sizeof uri, "fault+memory:?fault.nth=1&fault.how=%s", cases[i].how);
    open_bed(&bed, uri);
    struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
    assert_int_equal(run(&bed, &op.op), cases[i].status);
    assert_int_equal(op.op.status, DIBS_UNKNOWN);
    assert_true(op.fence.v == 0);
    assert_int_equal(op.got_block, 0);
    assert_true(op.until.ms == 0);
    assert_int_equal(bed.reported.dead, cases[i].dead);
    if (cases[i].dead) { /* and stays dead; another session works */
      assert_int_equal(run(&bed, &op.op), DIBS_UNAVAILABLE);
      assert_true(bed.reported.dead);
      disconnect(bed.session);
      assert_int_equal(try_connect(&bed, &bed.session, in_ms(LONG_MS)), DIBS_OK);
    }
    assert_int_equal(held_inside(&bed, "a"), cases[i].done);
    close_bed(&bed);
  }
}

static void lost_answers_free_their_memory(void **state) {
  (void)state;
  struct bed bed;
  open_bed(&bed, "fault+memory:?fault.nth=3&fault.how=unknown-after");
  struct dibs__lease_op grant = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
  assert_int_equal(run(&bed, &grant.op), DIBS_OK);
  struct dibs__record_op op = {.key = {"k", 1}, .id = grant.id, .fence = grant.fence, .data = {"text", 4}};
  op.op.family = DIBS__FAM_RECORD;
  op.op.verb = DIBS__RECORD_PUT;
  op.guards = DIBS__IF_FENCE;
  op.op.status = DIBS_UNKNOWN;
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  assert_int_equal(op.op.status, DIBS_OK);
  struct dibs__record_op load = {.key = {"k", 1}};
  load.op.family = DIBS__FAM_RECORD;
  load.op.verb = DIBS__RECORD_LOAD;
  load.op.status = DIBS_UNKNOWN;
  assert_int_equal(run(&bed, &load.op), DIBS_UNKNOWN);
  assert_int_equal(load.op.status, DIBS_UNKNOWN);
  assert_null(load.got); /* its memory is freed: leak checkers verify that */
  assert_int_equal(load.version, 0);
  assert_int_equal(load.got_len, 0);
  struct dibs__anchor_op anchor = {.op = {.family = DIBS__FAM_ANCHOR, .verb = DIBS__ANCHOR_READ}};
  assert_int_equal(run(&bed, &anchor.op), DIBS_OK);
  assert_true(dibs__mandate_equal(&anchor.current, &bed.identity.mandate));
  close_bed(&bed);
}

static void the_same_seed_causes_the_same_failures(void **state) {
  (void)state;
  enum { CALLS = 1000 };
  static const char *const uris[] = {"fault+memory:?fault.rate=250&fault.seed=5",
                                     "fault+memory:?fault.rate=250&fault.seed=5",
                                     "fault+memory:?fault.rate=250&fault.seed=6"};
  static bool failed[3][CALLS];
  int counts[3] = {0};
  for (size_t i = 0; i < 3; i++) {
    struct bed bed;
    open_bed(&bed, uris[i]);
    for (size_t call = 0; call < CALLS; call++) {
      struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
      failed[i][call] = run(&bed, &op.op) != DIBS_OK;
      counts[i] += failed[i][call];
    }
    close_bed(&bed);
    assert_in_range(counts[i], 200, 300);
  }
  assert_memory_equal(failed[0], failed[1], sizeof failed[0]);
  assert_memory_not_equal(failed[0], failed[2], sizeof failed[0]);
}

static int count_row(const struct dibs__lease_row *row, void *user) {
  (void)row;
  ++*(int *)user;
  return 0;
}

static void other_calls_fail_on_request(void **state) {
  (void)state;
  struct bed bed;
  assert_int_equal(try_open(&bed, "fault+memory:?fault.on=open&fault.nth=1"), DIBS_UNAVAILABLE);
  assert_int_equal(try_open(&bed, "fault+memory:?fault.on=connect,list&fault.nth=1&fault.forever=1"), DIBS_OK);
  assert_int_equal(try_connect(&bed, &bed.session, in_ms(LONG_MS)), DIBS_UNAVAILABLE);
  assert_null(bed.session);
  close_bed(&bed);

  open_bed(&bed, "fault+memory:?fault.on=list&fault.nth=1");
  struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  int rows = 0;
  struct dibs__list list = {.row = count_row, .user = &rows};
  assert_int_equal(bed.session->store->driver->list(bed.session, &list, in_ms(LONG_MS), &bed.reported),
                   DIBS_UNAVAILABLE);
  assert_int_equal(rows, 0);
  assert_int_equal(bed.session->store->driver->list(bed.session, &list, in_ms(LONG_MS), &bed.reported), DIBS_OK);
  assert_int_equal(rows, 1);
  close_bed(&bed);
}

/* The loop of a fail-until-ok test: each call fails in turn, once and for ever, until a round has no call to fail. */
static void armed_plan_fails_each_call_in_turn(void **state) {
  (void)state;
  for (int forever = 0; forever < 2; forever++) {
    uint64_t rounds = 0;
    for (bool struck = true; struck; rounds++) {
      struct dibs__fault_plan plan = {.on = DIBS__FAULT_OPEN | DIBS__FAULT_CONNECT | DIBS__FAULT_RUN,
                                      .nth = rounds + 1,
                                      .how = DIBS__FAULT_UNAVAILABLE,
                                      .forever = forever != 0};
      struct bed bed;
      dibs__fault_arm(&plan);
      if (try_open(&bed, "fault+memory:?fault.nth=1") == DIBS_OK) {
        if (try_connect(&bed, &bed.session, in_ms(LONG_MS)) == DIBS_OK)
          for (int i = 0; i < 3; i++) {
            struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
            run(&bed, &op.op);
          }
        close_bed(&bed);
      }
      struck = dibs__fault_struck() > 0;
      if (!struck) assert_int_equal(dibs__fault_calls(), 5);
    }
    assert_int_equal(rounds, 6);
  }
  dibs__fault_arm(NULL);
  assert_int_equal(dibs__fault_calls(), 0);
  struct bed bed;
  open_bed(&bed, "fault+memory:?fault.nth=1"); /* the URI's own plan again */
  struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
  assert_int_equal(run(&bed, &op.op), DIBS_UNAVAILABLE);
  close_bed(&bed);
}

static size_t all_events(struct bed *bed, size_t cap) {
  struct dibs__dstore *store = bed->chain.stores[0];
  struct dibs__event events[64];
  size_t all = 0;
  for (;;) {
    size_t count;
    assert_int_equal(store->driver->events(store, events, cap, &count, in_ms(1)), DIBS_OK);
    assert_true(count <= cap);
    if (count == 0) return all;
    all += count;
  }
}

static void events_are_lost_or_arrive_twice(void **state) {
  (void)state;
  size_t heard = 0, lost = 0, twice = 0;
  struct bed bed;
  open_bed(&bed, "fault+memory:?fault.events=500&fault.seed=3");
  for (int i = 0; i < 200; i++) {
    dibs__memory_skew(bed.chain.stores[1], 0); /* one event */
    size_t count = all_events(&bed, 4);
    assert_in_range(count, 0, 2);
    heard += count;
    lost += count == 0;
    twice += count == 2;
  }
  assert_in_range(lost, 20, 90);
  assert_in_range(twice, 20, 90);
  assert_in_range(heard, 150, 250);
  close_bed(&bed);
  open_bed(&bed, "fault+memory:?fault.events=1000");
  for (int i = 0; i < 64; i++) dibs__memory_skew(bed.chain.stores[1], 0);
  assert_in_range(all_events(&bed, 64), 1, 63); /* no more is pending than the buffer can hold */
  close_bed(&bed);
}

/* ---- latency ---- */

static void latency_is_on_every_call(void **state) {
  (void)state;
  struct bed bed;
  dibs__tick since = dibs__tick_now();
  open_bed(&bed, "latency+memory:?latency.ms=31");
  assert_true(dibs__tick_now().ns - since.ns >= 31 * DIBS__NS_PER_MS);
  since = dibs__tick_now();
  struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "a", 1);
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  assert_true(dibs__tick_now().ns - since.ns >= 31 * DIBS__NS_PER_MS);
  /* A lease's local deadline counts from here. */
  assert_true(bed.reported.sent.ns - since.ns < 15 * DIBS__NS_PER_MS);
  close_bed(&bed);
}

static void latency_beyond_the_deadline_is_unavailable_or_unknown(void **state) {
  (void)state;
  struct bed bed;
  open_bed(&bed, "latency+memory:?latency.ms=200");
  struct dibs__lease_op op = lease_op(&bed, DIBS__ACQUIRE, "before", 1);
  dibs__tick by = in_ms(20);
  assert_int_equal(run_on(bed.session, &op.op, by, &bed.reported), DIBS_UNAVAILABLE);
  assert_false(dibs__tick_before(dibs__tick_now(), by));
  assert_int_equal(op.op.status, DIBS_UNKNOWN);
  assert_false(held_inside(&bed, "before"));

  op = lease_op(&bed, DIBS__ACQUIRE, "after", 1);
  by = in_ms(150);
  assert_int_equal(run_on(bed.session, &op.op, by, &bed.reported), DIBS_UNKNOWN);
  assert_false(dibs__tick_before(dibs__tick_now(), by));
  assert_int_equal(op.op.status, DIBS_UNKNOWN);
  assert_true(op.fence.v == 0);
  assert_true(held_inside(&bed, "after"));

  struct dibs__session *session = bed.session;
  assert_int_equal(try_connect(&bed, &session, in_ms(10)), DIBS_UNAVAILABLE);
  assert_null(session);
  assert_int_equal(try_connect(&bed, &session, in_ms(150)), DIBS_UNAVAILABLE);
  assert_null(session);
  close_bed(&bed);
}

struct traveller {
  struct bed *bed;
  struct dibs__session *session;
  dibs__thread *thread;
  dibs__status status;
};

static void travel(void *arg) {
  struct traveller *traveller = arg;
  struct dibs__result reported;
  struct dibs__lease_op op = lease_op(traveller->bed, DIBS__ACQUIRE, "a", (uint8_t)(uintptr_t)traveller->session);
  traveller->status = run_on(traveller->session, &op.op, in_ms(LONG_MS), &reported);
}

static void sessions_are_delayed_in_parallel(void **state) {
  (void)state;
  struct bed bed;
  struct traveller travellers[8];
  open_bed(&bed, "latency+memory:?latency.ms=100");
  for (size_t i = 0; i < COUNT_OF(travellers); i++) {
    travellers[i].bed = &bed;
    assert_int_equal(try_connect(&bed, &travellers[i].session, in_ms(LONG_MS)), DIBS_OK);
  }
  dibs__tick since = dibs__tick_now();
  for (size_t i = 0; i < COUNT_OF(travellers); i++)
    travellers[i].thread = dibs__thread_start("traveller", travel, &travellers[i]);
  for (size_t i = 0; i < COUNT_OF(travellers); i++) {
    dibs__thread_join(travellers[i].thread);
    assert_int_equal(travellers[i].status, DIBS_OK);
  }
  /* One after the other would be 800 ms. */
  assert_in_range((dibs__tick_now().ns - since.ns) / DIBS__NS_PER_MS, 100, 700);
  for (size_t i = 0; i < COUNT_OF(travellers); i++) disconnect(travellers[i].session);
  close_bed(&bed);
}

static void events_arrive_later_and_in_order(void **state) {
  (void)state;
  struct bed bed;
  struct dibs__event events[4];
  size_t count;
  open_bed(&bed, "latency+memory:?latency.events=60");
  struct dibs__dstore *store = bed.chain.stores[0], *inner = bed.chain.stores[1];
  dibs__tick since = dibs__tick_now();
  dibs__memory_skew(inner, 0); /* a re-check, */
  dibs__memory_forget(inner);  /* then a new incarnation */
  assert_int_equal(store->driver->events(store, events, 4, &count, in_ms(10)), DIBS_OK);
  assert_int_equal(count, 0); /* still in flight */
  dibs__tick by = in_ms(LONG_MS);
  size_t all = 0;
  while (all < 2) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    assert_int_equal(store->driver->events(store, events + all, 4 - all, &count, by), DIBS_OK);
    all += count;
  }
  assert_true(dibs__tick_now().ns - since.ns >= 60 * DIBS__NS_PER_MS);
  assert_int_equal(events[0].what, DIBS__EV_RECHECK);
  assert_int_equal(events[1].what, DIBS__EV_NEW_INCARNATION);
  close_bed(&bed);
}

/* Sends more events than can be in flight, all before the first arrives.  false: this machine is too slow. */
static bool send_many(struct bed *bed, int64_t latency_ms) {
  char uri[96];
  struct dibs__event events[8];
  size_t count;
  snprintf(uri, sizeof uri, "latency+memory:?latency.events=%d", (int)latency_ms);
  open_bed(bed, uri);
  struct dibs__dstore *store = bed->chain.stores[0];
  dibs__tick first = in_ms(latency_ms);
  for (int i = 0; i < 40; i++) {
    for (int k = 0; k < 8; k++) dibs__memory_forget(bed->chain.stores[1]);
    store->driver->wake(store); /* so that events() does not sleep */
    assert_int_equal(store->driver->events(store, events, COUNT_OF(events), &count, in_ms(LONG_MS)), DIBS_OK);
  }
  return dibs__tick_before(dibs__tick_now(), first);
}

static void more_events_than_the_buffer_holds_become_a_recheck(void **state) {
  (void)state;
  struct bed bed;
  struct dibs__event events[512];
  size_t count = 0, all = 0;
  int64_t latency_ms = 300;
  for (; !send_many(&bed, latency_ms); latency_ms *= 2) close_bed(&bed);
  struct dibs__dstore *store = bed.chain.stores[0];
  dibs__tick by = in_ms(latency_ms + LONG_MS);
  enum dibs__event_what last = DIBS__EV_NEW_INCARNATION;
  while (last != DIBS__EV_RECHECK) {
    assert_int_equal(store->driver->events(store, events, COUNT_OF(events), &count, by), DIBS_OK);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("%zu events arrived, and no re-check", all);
    all += count;
    if (count) last = events[count - 1].what;
  }
  assert_int_equal(all, 256);
  close_bed(&bed);
}

/* ---- trace ---- */

static char traced[1 << 18];

/* The content of the file. */
static void read_trace(const char *file) {
  FILE *f = fopen(file, "r");
  assert_non_null(f);
  size_t n = fread(traced, 1, sizeof traced - 1, f);
  traced[n] = '\0';
  fclose(f);
}

static void assert_traced(const char *part) {
  if (!strstr(traced, part)) fail_msg("no %s in:\n%s", part, traced);
}

static void the_trace_has_each_call(void **state) {
  (void)state;
  char file[] = "/tmp/dibs-trace-XXXXXX", uri[128];
  int fd = mkstemp(file);
  assert_true(fd >= 0);
  close(fd);
  unlink(file);
  snprintf(uri, sizeof uri, "trace+fault+memory:?trace.file=%s&fault.nth=3", file);
  struct bed bed;
  open_bed(&bed, uri);
  struct stat st;
  assert_int_equal(stat(file, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);

  struct dibs__lease_op first = lease_op(&bed, DIBS__ACQUIRE, "odd \"name\"", 1);
  struct dibs__lease_op second = lease_op(&bed, DIBS__ACQUIRE, "odd \"name\"", 2);
  struct dibs__op *ops[] = {&first.op, &second.op};
  assert_int_equal(bed.session->store->driver->run(bed.session, ops, 2, in_ms(LONG_MS), &bed.reported), DIBS_OK);
  struct dibs__record_op save = {.key = {"k", 1}, .id = first.id, .fence = first.fence, .data = {"text", 4}};
  save.op.family = DIBS__FAM_RECORD;
  save.op.verb = DIBS__RECORD_PUT;
  save.guards = DIBS__IF_FENCE;
  assert_int_equal(run(&bed, &save.op), DIBS_OK);
  assert_int_equal(run(&bed, &save.op), DIBS_UNAVAILABLE);
  int rows = 0;
  struct dibs__list list = {.prefix = {"o", 1}, .row = count_row, .user = &rows};
  bed.session->store->driver->list(bed.session, &list, in_ms(LONG_MS), &bed.reported);
  dibs__memory_skew(bed.chain.stores[2], 0);
  all_events(&bed, 4);
  bed.chain.stores[0]->driver->tidy(bed.chain.stores[0]);
  close_bed(&bed);
  read_trace(file);
  unlink(file);

  char part[160];
  snprintf(part, sizeof part, "\"name\":\"odd \\\"name\\\"\",\"id\":\"%016llx\",\"fence\":%llu",
           (unsigned long long)dibs__id_digest(first.id), (unsigned long long)first.fence.v);
  assert_traced(part);
  assert_traced("{\"what\":\"open\",\"pid\":");
  assert_traced("\"inner\":\"fault\"}\n{\"what\":\"connect\"");
  assert_traced("\"status\":\"OK\",\"ops\":2,\"commits\":1,\"kinds\":{\"lease.acquire\":2},\"each\":[{\"op\":");
  assert_traced("\"status\":\"QUEUED\"}]}\n");
  assert_traced("{\"op\":\"record.put\",\"key\":\"k\"");
  assert_traced("\"bytes\":4,\"epoch\":0,\"status\":\"OK\"}");
  assert_traced("\"status\":\"UNAVAILABLE\",\"ops\":1,\"commits\":0");
  assert_traced("\"said\":\"the fault shim made this run fail\"}\n");
  assert_traced("\"prefix\":\"o\",\"rows\":2}\n");
  assert_traced("\"each\":[{\"what\":\"recheck\"}]}\n");
  assert_traced("{\"what\":\"tidy\"");
  assert_traced("{\"what\":\"disconnect\"");
  assert_traced("{\"what\":\"close\"");
  assert_null(strstr(traced, "0101010101")); /* ids are secret */
  assert_null(strstr(traced, "text"));       /* so may be data */
}

static void the_trace_has_kinds_and_verdicts_of_tasks(void **state) {
  (void)state;
  char file[] = "/tmp/dibs-trace-XXXXXX", uri[128];
  int fd = mkstemp(file);
  close(fd);
  snprintf(uri, sizeof uri, "trace+memory:?trace.file=%s", file);
  struct bed bed;
  open_bed(&bed, uri);
  struct dibs__task_new news[2] = {{.payload = {"secret", 6}}, {.payload = {"secret", 6}}};
  struct dibs__task_item items[2];
  struct dibs__task_op op = {.kind = {"mail", 4}, .news = news, .count = 2, .timeout_ms = 1000, .most = 5};
  op.op.family = DIBS__FAM_TASK;
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  op.op.verb = DIBS__TASK_CLAIM;
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  dibs__op_free_answer(&op.op);
  op.op.verb = DIBS__TASK_END;
  op.items = items;
  for (int i = 0; i < 2; i++) items[i] = (struct dibs__task_item){.nr = news[i].nr, .verdict = DIBS__TASK_END_FAIL};
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  items[1].verdict = DIBS__TASK_END_DONE;
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  op.op.verb = DIBS__TASK_CHANGE;
  op.change = DIBS__TASK_CANCEL;
  assert_int_equal(run(&bed, &op.op), DIBS_OK);
  close_bed(&bed);
  read_trace(file);
  unlink(file);
  assert_traced("{\"op\":\"task.add\",\"kind\":\"mail\",\"count\":2,");
  assert_traced("{\"op\":\"task.claim\",\"kind\":\"mail\",\"count\":2,");
  assert_traced("{\"op\":\"task.end\",\"kind\":\"mail\",\"count\":2,\"verdict\":\"fail\",");
  assert_traced("{\"op\":\"task.end\",\"kind\":\"mail\",\"count\":2,\"verdict\":\"various\",");
  assert_traced("{\"op\":\"task.change\",\"kind\":\"mail\",\"changed\":2,");
  assert_null(strstr(traced, "secret"));
}

static void trace_of_a_large_batch_is_one_line_of_bounded_length(void **state) {
  (void)state;
  enum { MANY = 1000 };
  char file[] = "/tmp/dibs-trace-XXXXXX", uri[128], name[256];
  int fd = mkstemp(file);
  close(fd);
  snprintf(uri, sizeof uri, "trace+memory:?trace.file=%s", file);
  struct bed bed;
  open_bed(&bed, uri);
  struct dibs__lease_op *ops = calloc(MANY, sizeof *ops);
  struct dibs__op **batch = calloc(MANY, sizeof *batch);
  memset(name, '"', 255);
  name[255] = '\0';
  for (size_t i = 0; i < MANY; i++) {
    ops[i] = lease_op(&bed, DIBS__ACQUIRE, name, (uint8_t)i);
    batch[i] = &ops[i].op;
  }
  assert_int_equal(bed.session->store->driver->run(bed.session, batch, MANY, in_ms(LONG_MS), &bed.reported), DIBS_OK);
  free(ops);
  free(batch);
  close_bed(&bed);
  read_trace(file);
  unlink(file);
  const char *line = strstr(traced, "{\"what\":\"run\"");
  assert_non_null(line);
  size_t len = strcspn(line, "\n");
  assert_in_range(len, 50000, 65536);
  unsigned left_out = 0;
  const char *tail = strstr(line, "],\"left_out\":");
  assert_non_null(tail);
  assert_int_equal(sscanf(tail, "],\"left_out\":%u}\n", &left_out), 1);
  assert_in_range(left_out, 800, 950);
}

static void a_trace_that_cannot_be_written_is_reported(void **state) {
  (void)state;
  struct bed bed;
  assert_int_equal(try_open(&bed, "trace+memory:?trace.file=/nowhere/at/all"), DIBS_UNAVAILABLE);
  assert_string_equal(bed.reported.text, "can't write trace.file /nowhere/at/all: No such file or directory");
}

int main(void) {
  if (!dibs__driver_add(&dibs__trace_driver) || !dibs__driver_add(&dibs__fault_driver) ||
      !dibs__driver_add(&dibs__latency_driver))
    return 2;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shims_pass_everything_through),
      cmocka_unit_test(waking_reaches_the_innermost),
      cmocka_unit_test(parameters_are_checked),
      cmocka_unit_test(nth_call_fails_once),
      cmocka_unit_test(the_nth_call_and_all_later_ones_fail),
      cmocka_unit_test(each_kind_of_failure_does_what_it_promises),
      cmocka_unit_test(lost_answers_free_their_memory),
      cmocka_unit_test(the_same_seed_causes_the_same_failures),
      cmocka_unit_test(other_calls_fail_on_request),
      cmocka_unit_test(armed_plan_fails_each_call_in_turn),
      cmocka_unit_test(events_are_lost_or_arrive_twice),
      cmocka_unit_test(latency_is_on_every_call),
      cmocka_unit_test(latency_beyond_the_deadline_is_unavailable_or_unknown),
      cmocka_unit_test(sessions_are_delayed_in_parallel),
      cmocka_unit_test(events_arrive_later_and_in_order),
      cmocka_unit_test(more_events_than_the_buffer_holds_become_a_recheck),
      cmocka_unit_test(the_trace_has_kinds_and_verdicts_of_tasks),
      cmocka_unit_test(the_trace_has_each_call),
      cmocka_unit_test(trace_of_a_large_batch_is_one_line_of_bounded_length),
      cmocka_unit_test(a_trace_that_cannot_be_written_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
