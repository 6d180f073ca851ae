/* SPDX-License-Identifier: MIT */
/*
 * Threads, each with its own session, claim and end tasks at the same time (R60, R62, R66, R68, R69).  The payload of a
 * task is its index in the arrays of the test.  The threads call nothing of cmocka: they count failures, and the test
 * checks the counts at the end.
 */
#include "task_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RACERS = 4, TASKS = 240, SERIALS = 6, TEXTS = 40, MOST = 5 };

struct race {
  const char *kind;
  uint32_t limit;     /* of the kind; 0: none */
  int64_t timeout_ms; /* of claims */
  bool serial;        /* task i has the serial text i % SERIALS */
  bool some_vanish;   /* every third claim of a thread is never ended */
  _Atomic int claimed[TASKS], done[TASKS];
  _Atomic uint64_t fences[TASKS]; /* of the latest claim */
  _Atomic int running, ended;
  _Atomic int next[SERIALS]; /* index of the next task */
  /* Failures. */
  _Atomic int two_at_once, over_limit, out_of_order, fences_fell, refused, gave_up;
};

struct racer {
  struct race *race;
  struct party *p;
  dibs__thread *thread;
  dibs__str kind;
  int nr, claims;
};

static int index_of(task_row row) {
  int i = 0;
  for (uint32_t k = 0; k < row.payload.len; k++) i = i * 10 + (row.payload.p[k] - '0');
  return i < TASKS ? i : 0;
}

static task_op claim_of(struct racer *r) {
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_CLAIM}};
  op.kind = r->kind;
  op.op.bucket = dibs__bucket(r->kind);
  op.id = id_of(r->nr * 1000000 + r->claims++);
  op.again = true;
  op.by = str_of("racer");
  op.timeout_ms = r->race->timeout_ms;
  op.most = MOST;
  return op;
}

/*
 * A claim whose answer came before the claim could end has the highest fence.  An answer that came later may be noted
 * after the next claim of the same task.
 */
static void note_claim(struct race *race, int i, dibs__fence fence, dibs__tick sent) {
  uint64_t highest = atomic_load(&race->fences[i]);
  while (highest < fence.v && !atomic_compare_exchange_weak(&race->fences[i], &highest, fence.v)) {
  }
  bool may_have_ended = !dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(sent, race->timeout_ms));
  if (highest == fence.v || (highest > fence.v && !may_have_ended)) race->fences_fell++;
  if (race->some_vanish) return; /* an earlier claimant may be at work */
  if (atomic_fetch_add(&race->claimed[i], 1) != 0) race->two_at_once++;
  if (race->limit && atomic_fetch_add(&race->running, 1) >= (int)race->limit) race->over_limit++;
  if (race->serial && atomic_load(&race->next[i % SERIALS]) != i) race->out_of_order++;
}

/* Before the claim ends, so that the next claimant finds it. */
static void note_end(struct race *race, int i, bool done) {
  if (race->some_vanish) return;
  if (race->limit) atomic_fetch_sub(&race->running, 1);
  if (race->serial && done) atomic_fetch_add(&race->next[i % SERIALS], SERIALS);
  atomic_fetch_sub(&race->claimed[i], 1);
}

static bool end_claims(struct racer *r, const task_row *rows, uint32_t count) {
  struct race *race = r->race;
  task_item items[MOST];
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_END}, .kind = r->kind};
  op.op.bucket = dibs__bucket(r->kind);
  op.items = items;
  op.count = count;
  for (uint32_t k = 0; k < count; k++) {
    int i = index_of(rows[k]);
    bool done = rows[k].fence.v > 1 || i % 3 != 0;
    items[k] = (task_item){.nr = rows[k].nr, .fence = rows[k].fence};
    items[k].verdict = done ? DIBS__TASK_END_DONE : DIBS__TASK_END_NEXT;
    note_end(race, i, done);
  }
  uint32_t sent = sent_task(r->p, &op, false);
  if (!sent || op.op.status != DIBS_OK) return false;
  for (uint32_t k = 0; k < count; k++) {
    /* When an END is repeated, another thread may have ended the task under the next fence. */
    bool overtaken = sent > 1 && items[k].verdict == DIBS__TASK_END_NEXT;
    bool late = (race->some_vanish || overtaken) && items[k].status == DIBS_STALE;
    if (items[k].status != DIBS_OK && !late) race->refused++;
    if (items[k].status != DIBS_OK || items[k].verdict != DIBS__TASK_END_DONE) continue;
    race->done[index_of(rows[k])]++;
    race->ended++;
  }
  return true;
}

static void claim_and_end(void *arg) {
  struct racer *r = arg;
  struct race *race = r->race;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 2 * TASK_PATIENCE_MS);
  while (atomic_load(&race->ended) < TASKS) {
    task_op op = claim_of(r);
    dibs__tick sent = dibs__tick_now();
    if (!dibs__tick_before(sent, by) || !sent_task(r->p, &op, true) || op.op.status != DIBS_OK) {
      race->gave_up++;
      return;
    }
    const task_row *rows = op.got;
    for (uint32_t k = 0; k < op.got_count; k++) note_claim(race, index_of(rows[k]), rows[k].fence, sent);
    bool vanishes = race->some_vanish && r->claims % 3 == 0;
    if (op.got_count == 0) dibs__nap_ms(1);
    if (op.got_count && !vanishes && !end_claims(r, rows, op.got_count)) race->gave_up++;
    free(op.got);
  }
}

static void add_tasks(struct party *p, const struct race *race) {
  static char payloads[TASKS][8], serials[SERIALS][8];
  static task_new news[TASKS];
  for (int i = 0; i < TASKS; i++) {
    snprintf(payloads[i], sizeof payloads[i], "%d", i);
    snprintf(serials[i % SERIALS], sizeof serials[i % SERIALS], "s%d", i % SERIALS);
    news[i] = (task_new){.payload = str_of(payloads[i]), .tries = 1000000};
    if (race->serial) news[i].serial = str_of(serials[i % SERIALS]);
  }
  task_op op = task_call(DIBS__TASK_ADD, race->kind);
  op.news = news;
  op.count = TASKS;
  op.token = name_of("tasks");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
}

static void run_race(struct race *race, void (*run)(void *)) {
  static struct racer racers[RACERS];
  struct party *p = task_party();
  race->kind = "k";
  if (!race->timeout_ms) race->timeout_ms = TASK_LONG_MS;
  for (int i = 0; i < SERIALS; i++) race->next[i] = i;
  if (race->limit) set_kind(p, race->kind, race->limit, false, -1);
  add_tasks(p, race);
  for (int i = 0; i < RACERS; i++)
    racers[i] = (struct racer){.race = race, .p = i ? party() : p, .nr = i, .kind = name_of(race->kind)};
  for (int i = 0; i < RACERS; i++) {
    racers[i].thread = dibs__thread_start("racer", run, &racers[i]);
    assert_non_null(racers[i].thread);
  }
  for (int i = 0; i < RACERS; i++) dibs__thread_join(racers[i].thread);
  assert_int_equal(race->gave_up, 0);
  assert_int_equal(race->two_at_once, 0);
  assert_int_equal(race->over_limit, 0);
  assert_int_equal(race->out_of_order, 0);
  assert_int_equal(race->fences_fell, 0);
  assert_int_equal(race->refused, 0);
  for (int i = 0; i < TASKS; i++) assert_int_equal(race->done[i], 1);
  assert_int_equal(count_of(p, race->kind).states[DIBS__TASK_DONE], TASKS);
}

static void R60_threads_never_claim_a_task_twice(void **state) {
  (void)state;
  static struct race race;
  race = (struct race){.limit = 0};
  run_race(&race, claim_and_end);
}

/* Each task is done once, although claims end while their claimants work. */
static void R62_threads_do_late_tasks_once(void **state) {
  (void)state;
  static struct race race;
  race = (struct race){.some_vanish = true, .timeout_ms = 15};
  run_race(&race, claim_and_end);
}

static void R68_threads_keep_the_order_of_each_serial_text(void **state) {
  (void)state;
  static struct race race;
  race = (struct race){.serial = true};
  run_race(&race, claim_and_end);
}

static void R69_threads_never_exceed_the_limit(void **state) {
  (void)state;
  static struct race race;
  race = (struct race){.limit = 7};
  run_race(&race, claim_and_end);
}

/* ---- Unique texts ---- */

static _Atomic uint64_t first_nrs[TEXTS];
static _Atomic int first_count[TEXTS], other_numbers, not_added;

static void add_texts(void *arg) {
  struct racer *r = arg;
  for (int i = 0; i < TEXTS; i++) {
    char text[8], token[16];
    uint64_t none = 0;
    int n = (i * 7 + r->nr * 3) % TEXTS;
    snprintf(text, sizeof text, "u%d", n);
    snprintf(token, sizeof token, ".%d.%d", r->nr, n);
    task_new item = {.unique = str_of(text)};
    task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_ADD}, .kind = r->kind, .news = &item, .count = 1};
    char own[DIBS__TASK_TOKEN_MAX + 1];
    snprintf(own, sizeof own, "%.*s%s", (int)(r->kind.len < 40 ? r->kind.len : 40), r->kind.p, token);
    op.op.bucket = dibs__bucket(r->kind);
    op.token = str_of(own);
    op.token_ms = TASK_LONG_MS;
    if (!sent_task(r->p, &op, false) || (item.status != DIBS_OK && item.status != DIBS_REPLAY)) {
      not_added++;
      return;
    }
    if (item.status == DIBS_OK) first_count[n]++;
    if (!atomic_compare_exchange_strong(&first_nrs[n], &none, item.nr) && none != item.nr) other_numbers++;
  }
}

static void R66_threads_add_a_unique_text_once(void **state) {
  (void)state;
  struct party *p = task_party();
  static struct racer racers[RACERS];
  other_numbers = not_added = 0;
  for (int i = 0; i < TEXTS; i++) first_nrs[i] = 0;
  for (int i = 0; i < TEXTS; i++) first_count[i] = 0;
  for (int i = 0; i < RACERS; i++) racers[i] = (struct racer){.p = i ? party() : p, .nr = i, .kind = name_of("k")};
  for (int i = 0; i < RACERS; i++) {
    racers[i].thread = dibs__thread_start("racer", add_texts, &racers[i]);
    assert_non_null(racers[i].thread);
  }
  for (int i = 0; i < RACERS; i++) dibs__thread_join(racers[i].thread);
  assert_int_equal(not_added, 0);
  assert_int_equal(other_numbers, 0);
  for (int i = 0; i < TEXTS; i++) assert_int_equal(first_count[i], 1);
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_READY], TEXTS);
}

/* ---- Listing ---- */

static _Atomic bool listed;

static void add_and_cancel(void *arg) {
  struct racer *r = arg;
  while (!atomic_load(&listed)) {
    task_new item = {.priority = 0};
    task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_ADD}, .kind = r->kind, .news = &item, .count = 1};
    op.op.bucket = dibs__bucket(r->kind);
    if (!sent_task(r->p, &op, false)) return;
    op.op.verb = DIBS__TASK_CHANGE;
    op.change = DIBS__TASK_CANCEL;
    op.most = 1;
    op.filter = (struct dibs__task_filter){.kind = r->kind};
    if (!sent_task(r->p, &op, false)) return; /* also of the tasks that are listed: they move */
  }
}

static void R76_a_listing_has_each_task_once_while_others_change(void **state) {
  (void)state;
  struct party *p = task_party();
  enum { COUNT = 120, PAGE = 7 };
  static uint64_t nrs[COUNT];
  added_many(p, "k", COUNT, (task_new){.nr = 0}, nrs);
  struct racer racer = {.p = party(), .kind = name_of("k")};
  listed = false;
  racer.thread = dibs__thread_start("racer", add_and_cancel, &racer);
  assert_non_null(racer.thread);
  int missing = 0;
  for (int round = 0; round < 5; round++) {
    uint64_t after = 0;
    for (int seen = 0; seen < COUNT;) {
      task_op op = task_call(DIBS__TASK_LIST, "");
      op.filter = (struct dibs__task_filter){.kind = name_of("k"), .after = after};
      op.most = PAGE;
      op = run_task(p, op);
      const task_row *rows = op.got;
      if (op.got_count == 0) break;
      for (uint32_t i = 0; i < op.got_count && seen < COUNT; i++, seen++) missing += rows[i].nr != nrs[seen];
      after = rows[op.got_count - 1].nr;
    }
  }
  listed = true;
  dibs__thread_join(racer.thread);
  assert_int_equal(missing, 0);
}

/* ---- Changing ---- */

enum { ENDED = 200, CANCELLED = 300, CHANGE_PAGE = 50 };

static uint64_t claimed_nrs[ENDED];
static dibs__fence claimed_fences[ENDED];

static void end_all(void *arg) {
  struct racer *r = arg;
  static task_item items[ENDED];
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_END}, .kind = r->kind};
  op.op.bucket = dibs__bucket(r->kind);
  op.items = items;
  op.count = ENDED;
  for (int i = 0; i < ENDED; i++) items[i] = (task_item){.nr = claimed_nrs[i], .fence = claimed_fences[i]};
  if (!sent_task(r->p, &op, false)) r->race->gave_up++;
}

/* Cancels tasks page by page while another client ends the first of them. */
static void R78_a_change_of_pages_leaves_out_no_task_while_others_end(void **state) {
  (void)state;
  struct party *p = task_party();
  static struct race race;
  race = (struct race){.kind = "k"};
  struct racer racer = {.race = &race, .p = party(), .kind = name_of("k")};
  for (int round = 0; round < 5; round++) {
    added_many(p, "k", CANCELLED, (task_new){.nr = 0}, NULL);
    struct claimed got = claimed(p, "k", .most = ENDED);
    assert_int_equal(got.count, ENDED);
    for (int i = 0; i < ENDED; i++) {
      claimed_nrs[i] = got.rows[i].nr;
      claimed_fences[i] = got.rows[i].fence;
    }
    racer.thread = dibs__thread_start("racer", end_all, &racer);
    assert_non_null(racer.thread);
    task_op op = {.more = true};
    for (uint64_t after = 0; op.more; after = op.last) {
      op = task_call(DIBS__TASK_CHANGE, "");
      op.change = DIBS__TASK_CANCEL;
      op.filter = (struct dibs__task_filter){.kind = name_of("k"), .after = after};
      op.most = CHANGE_PAGE;
      op = run_task(p, op);
      if (op.op.status != DIBS_OK) break;
    }
    dibs__thread_join(racer.thread);
    expect(op, DIBS_OK);
    assert_int_equal(race.gave_up, 0);
    struct dibs__task_kind k = count_of(p, "k");
    assert_int_equal(k.states[DIBS__TASK_DONE] + k.states[DIBS__TASK_CANCELLED], (round + 1) * CANCELLED);
  }
}

static const struct CMUnitTest contract_tasks_races_cases[] = {
    CASE(R60_threads_never_claim_a_task_twice),
    CASE(R62_threads_do_late_tasks_once),
    CASE(R66_threads_add_a_unique_text_once),
    CASE(R68_threads_keep_the_order_of_each_serial_text),
    CASE(R69_threads_never_exceed_the_limit),
    CASE(R76_a_listing_has_each_task_once_while_others_change),
    CASE(R78_a_change_of_pages_leaves_out_no_task_while_others_end),
};
CONTRACT_TESTS(contract_tasks_races);
