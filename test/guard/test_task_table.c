/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's own table (R77): every verb, every type of column, wrong content and wrong tables, and programs
 * without dibs that claim the same rows by statements of their own.
 */
#include "task_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Claims ---- */

static void a_claim_sets_the_lock_and_the_fence_and_nothing_else(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(7, "Deleting", type->never, ago(90));
    char *updated = strdup(cell("SELECT updated_at FROM gateway"));
    const struct dibs__task_row *row = claim_row(s, t, "7");
    assert_string_equal(row->phase.p, "Deleting");
    assert_string_equal(row->kind.p, "gateway");
    assert_int_equal(row->fence.v, 1);
    assert_int_equal(row->state, DIBS__TASK_CLAIMED);
    assert_int_equal(row->due_ms, row->began_ms + LONG_MS);
    assert_in_range(row->began_ms - row->at_ms, 88000, 92500);
    assert_true(locked_between(7, 3, -2));
    assert_string_equal(cell("SELECT updated_at FROM gateway"), updated);
    assert_string_equal(cell("SELECT fence FROM gateway"), "1");
    assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE name = 'n' AND phase = 'Deleting' AND step = 's'"),
                        "1");
    claim_none(s, t);
    free(updated);
    sql("DROP TABLE gateway");
  }
}

static void claims_take_the_oldest_locked_at_then_the_oldest_updated_at(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "a", ago(100), ago(500));
    add(2, "a", type->never, ago(300));
    add(3, "a", ago(200), ago(100));
    add(4, "a", type->never, ago(400));
    add(5, "a", ago(10), ago(900)); /* claimed by a program without dibs */
    static const char *const order[] = {"4", "2", "3", "1"};
    const struct dibs__task_op *op = claim_for(s, t, 3, LONG_MS, NULL, NULL);
    assert_int_equal(op->got_count, 3);
    for (uint32_t i = 0; i < 3; i++) assert_string_equal(row_of(op, i)->key.p, order[i]);
    claim_row(s, t, "1");
    claim_none(s, t);
    sql("DROP TABLE gateway");
  }
}

static void a_claim_names_its_phases_byte_by_byte(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "Creating", type->never, type->never);
  add(2, "creating", type->never, type->never);
  add(3, "Deleting", type->never, type->never);
  add(4, "Deleted", type->never, type->never);
  sql("INSERT INTO gateway (id, phase, locked_at) VALUES (5, NULL, %s)", type->never);
  assert_int_equal(claim_for(s, t, 9, LONG_MS, "Creating ", "'; --")->got_count, 0);
  const struct dibs__task_op *op = claim_for(s, t, 9, LONG_MS, "Creating", "Deleting");
  assert_int_equal(op->got_count, 2);
  assert_int_equal(claim_for(s, t, 9, LONG_MS, "Creating", NULL)->got_count, 0);
  assert_int_equal(claim_for(s, t, 9, LONG_MS, NULL, NULL)->got_count, 2); /* a row without a phase is no task */
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE fence IS NULL"), "1");
}

static void a_row_without_instants_and_fence_is_free(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    if (strstr(type->name, "NOT NULL")) continue;
    dibs_table *t = gateway();
    add(1, "a", ago(100), ago(100));
    add(2, "a", "NULL", ago(100));
    const struct dibs__task_row *row = claim_row(s, t, "2");
    assert_int_equal(row->fence.v, 1);
    assert_true(locked_between(2, 3, -2));
    end_with(s, t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    assert_true(is_never(2));
    assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE id = 2 AND updated_at >= %s", ago(3)), "1");
    sql("UPDATE gateway SET locked_at = NULL, updated_at = NULL WHERE id = 2");
    end_with(s, t, claim_row(s, t, "2"), DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    sql("DROP TABLE gateway");
  }
}

static void a_claim_without_tasks_answers_when_one_is_free(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    assert_int_equal(claim_for(s, t, 1, LONG_MS, NULL, NULL)->next_ms, -1);
    add(1, "a", ago(20), ago(20));
    add(2, "a", ago(5), ago(20));
    add(3, "b", ago(25), ago(20));
    const struct dibs__task_op *op = claim_for(s, t, 1, LONG_MS, "a", NULL);
    assert_int_equal(op->got_count, 0);
    assert_in_range(op->next_ms, 6000, 11000);
    sql("DROP TABLE gateway");
  }
}

static void a_repeated_claim_claims_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "a", type->never, type->never);
  struct dibs__task_op *op = task_make(s, t);
  op->again = true;
  assert_int_equal(task_carry(op, DIBS__TASK_CLAIM, DIBS_OK)->got_count, 0);
  claim_row(s, t, "1");
}

/* ---- Ending and extending ---- */

static void next_frees_the_row_and_sets_the_phase(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "Deleting", ago(50), ago(100));
    const struct dibs__task_row *row = claim_row(s, t, "1");
    end_with(s, t, row, DIBS__TASK_END_NEXT, "Deleted", 0, DIBS_OK);
    assert_true(is_never(1));
    assert_string_equal(cell("SELECT phase FROM gateway WHERE updated_at >= %s", ago(3)), "Deleted");
    end_with(s, t, row, DIBS__TASK_END_NEXT, "Creating", 0, DIBS_STALE);
    row = claim_row(s, t, "1");
    assert_int_equal(row->fence.v, 2);
    end_with(s, t, row, DIBS__TASK_END_NEXT, "", 0, DIBS_OK);
    assert_string_equal(cell("SELECT phase FROM gateway"), "Deleted");
    claim_row(s, t, "1");
    sql("DROP TABLE gateway");
  }
}

static void wait_and_fail_free_the_row_after_the_delay(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "a", type->never, ago(100));
    const struct dibs__task_row *row = claim_row(s, t, "1");
    end_with(s, t, row, DIBS__TASK_END_WAIT, "", 10000, DIBS_OK);
    assert_true(locked_between(1, 23, 17)); /* free for a program that compares with 30 s in 10 s */
    assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE updated_at < %s", ago(90)), "1");
    const struct dibs__task_op *op = claim_for(s, t, 1, LONG_MS, NULL, NULL);
    assert_int_equal(op->got_count, 0);
    assert_in_range(op->next_ms, 7000, 11000);
    op = claim_for(s, t, 1, 15000, NULL, NULL);
    row = row_of(op, 0);
    assert_int_equal(row->fence.v, 2);
    end_with(s, t, row, DIBS__TASK_END_FAIL, "b", 40000, DIBS_OK);
    assert_true(locked_between(1, -7, -13));
    assert_string_equal(cell("SELECT phase FROM gateway WHERE updated_at >= %s", ago(3)), "b");
    end_with(s, t, row, DIBS__TASK_END_FAIL, "c", 0, DIBS_STALE);
    sql("DROP TABLE gateway");
  }
}

static void give_frees_the_row_as_it_was(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "a", ago(60), ago(100));
  end_with(s, t, claim_row(s, t, "1"), DIBS__TASK_END_GIVE, "", 0, DIBS_OK);
  assert_true(is_never(1));
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE updated_at < %s AND phase = 'a'", ago(90)), "1");
}

static void extend_moves_the_lock_and_answers_it(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "a", type->never, ago(100));
    const struct dibs__task_row *row = claim_row(s, t, "1");
    struct dibs__task_item first = item_of(row), item = first;
    dibs__nap_ms(type->coarse ? 1100 : 5);
    item.phase = dibs__str_of("b", 1);
    change(s, t, DIBS__TASK_EXTEND, &item, DIBS_OK);
    assert_string_not_equal(item.locked_now, row->locked.p);
    assert_true(item.due_ms > row->due_ms);
    assert_string_equal(cell("SELECT phase FROM gateway WHERE fence = 1"), "b");
    change(s, t, DIBS__TASK_EXTEND, &first, DIBS_STALE); /* under the locked_at of before */
    char locked[40];
    memcpy(locked, item.locked_now, sizeof locked);
    struct dibs__task_item next = item_of(row);
    next.locked = dibs__str_of(locked, strlen(locked));
    next.verdict = DIBS__TASK_END_NEXT;
    change(s, t, DIBS__TASK_END, &next, DIBS_OK);
    sql("DROP TABLE gateway");
  }
}

static void an_expired_claim_is_refused_after_the_next_claim(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "a", type->never, ago(100));
    const struct dibs__task_row *first = row_of(claim_for(s, t, 1, 50, NULL, NULL), 0), *second = NULL;
    for (int i = 0; i < 400 && !second; i++) {
      const struct dibs__task_op *op = claim_for(s, t, 1, 50, NULL, NULL);
      if (op->got_count) second = row_of(op, 0);
      dibs__nap_ms(10);
    }
    assert_non_null(second);
    assert_int_equal(second->fence.v, 2);
    /* In one second both may have the same locked_at: the fence decides. */
    struct dibs__task_item item = item_of(first);
    change(s, t, DIBS__TASK_EXTEND, &item, DIBS_STALE);
    end_with(s, t, first, DIBS__TASK_END_NEXT, "x", 0, DIBS_STALE);
    end_with(s, t, second, DIBS__TASK_END_NEXT, "y", 0, DIBS_OK);
    assert_string_equal(cell("SELECT phase FROM gateway"), "y");
    sql("DROP TABLE gateway");
  }
}

static void a_program_without_dibs_that_took_the_row_over_wins(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "a", type->never, ago(100));
    const struct dibs__task_row *row = claim_row(s, t, "1");
    sql("UPDATE gateway SET locked_at = %s WHERE id = 1", ago(-5));
    struct dibs__task_item item = item_of(row);
    change(s, t, DIBS__TASK_EXTEND, &item, DIBS_STALE);
    for (uint32_t v = DIBS__TASK_END_NEXT; v <= DIBS__TASK_END_GIVE; v++)
      if (v != DIBS__TASK_END_DEAD) end_with(s, t, row, (enum dibs__task_verdict)v, "x", 0, DIBS_STALE);
    /* It has ended, too: what it freed is not ended again by the claim of before. */
    sql("UPDATE gateway SET locked_at = %s WHERE id = 1", type->never);
    end_with(s, t, row, DIBS__TASK_END_NEXT, "x", 0, DIBS_STALE);
    assert_string_equal(cell("SELECT phase FROM gateway"), "a");
    claim_row(s, t, "1");
    sql("DROP TABLE gateway");
  }
}

static void a_row_that_was_deleted_is_not_found(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "a", type->never, ago(100));
  const struct dibs__task_row *row = claim_row(s, t, "1");
  sql("DELETE FROM gateway");
  struct dibs__task_item item = item_of(row);
  change(s, t, DIBS__TASK_EXTEND, &item, DIBS_NOT_FOUND);
  end_with(s, t, row, DIBS__TASK_END_NEXT, "", 0, DIBS_NOT_FOUND);
  item.key = dibs__str_of("not a number", 12);
  change(s, t, DIBS__TASK_EXTEND, &item, DIBS_NOT_FOUND);
}

static void a_bad_item_does_not_harm_the_others(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  for (int i = 1; i <= 5; i++) add(i, "a", type->never, ago(100 - i));
  if (on_engine("sqlite"))
    sql("CREATE TRIGGER short BEFORE UPDATE ON gateway WHEN length(new.phase) > 20 BEGIN"
        " SELECT RAISE(ABORT, 'the phase is too long'); END");
  const struct dibs__task_op *claimed = claim_for(s, t, 5, LONG_MS, NULL, NULL);
  struct dibs__task_item items[5];
  for (uint32_t i = 0; i < 5; i++) {
    items[i] = item_of(row_of(claimed, i));
    items[i].verdict = DIBS__TASK_END_NEXT;
  }
  items[1].phase = dibs__str_of("longer than twenty bytes", 24);
  items[2].fence.v++;
  items[3].verdict = DIBS__TASK_END_DONE;
  struct dibs__task_op *op = task_make(s, t);
  op->items = items;
  op->count = 5;
  task_carry(op, DIBS__TASK_END, DIBS_OK);
  static const dibs_status want[] = {DIBS_OK, DIBS_INVALID, DIBS_STALE, DIBS_UNSUPPORTED, DIBS_OK};
  for (int i = 0; i < 5; i++) assert_int_equal(items[i].status, want[i]);
  assert_true(is_never(1) && is_never(5) && !is_never(2) && !is_never(3) && !is_never(4));
}

/* ---- Many ---- */

static void a_thousand_rows_are_claimed_extended_and_ended_at_once(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  for (int i = 0; i < 1000; i += 100) {
    char text[8192];
    size_t len = (size_t)snprintf(text, sizeof text, "INSERT INTO gateway (id, phase, locked_at) VALUES ");
    for (int j = i; j < i + 100; j++)
      len += (size_t)snprintf(text + len, sizeof text - len, "%s(%d, 'a', %s)", j > i ? "," : "", j, type->never);
    engine->run(connection(), text, NULL);
  }
  const struct dibs__task_op *claimed = claim_for(s, t, 1000, LONG_MS, NULL, NULL);
  assert_int_equal(claimed->got_count, 1000);
  struct dibs__task_item *items = calloc(1000, sizeof *items);
  for (uint32_t i = 0; i < 1000; i++) items[i] = item_of(row_of(claimed, i));
  struct dibs__task_op *op = task_make(s, t);
  op->items = items;
  op->count = 1000;
  task_carry(op, DIBS__TASK_EXTEND, DIBS_OK);
  char(*locked)[40] = calloc(1000, sizeof *locked);
  for (uint32_t i = 0; i < 1000; i++) {
    assert_int_equal(items[i].status, DIBS_OK);
    memcpy(locked[i], items[i].locked_now, sizeof locked[i]);
    items[i].locked = dibs__str_of(locked[i], strlen(locked[i]));
    items[i].verdict = DIBS__TASK_END_NEXT;
    items[i].phase = dibs__str_of("b", 1);
  }
  op = task_make(s, t);
  op->items = items;
  op->count = 1000;
  task_carry(op, DIBS__TASK_END, DIBS_OK);
  for (uint32_t i = 0; i < 1000; i++) assert_int_equal(items[i].status, DIBS_OK);
  assert_string_equal(
      cell("SELECT COUNT(*) FROM gateway WHERE phase = 'b' AND fence = 1 AND locked_at = %s", type->never), "1000");
  free(locked);
  free(items);
}

enum { RACERS = 4, RACED = 200 };
static _Atomic int claims_of[RACED];
static _Atomic int raced;

struct racer {
  dibs_store *store;
  dibs_table *table;
  bool broken;
};

static void *race(void *arg) {
  struct racer *me = arg;
  while (raced < RACED && !me->broken) {
    struct dibs__request *r = dibs__request_make(me->store, DIBS__FAM_TASK, me->table, 64);
    r->task.table = me->table;
    r->task.kind = dibs__request_keep(r, "gateway", 7);
    r->task.timeout_ms = LONG_MS;
    r->task.most = 3;
    dibs_status status = dibs__request_carry(r, DIBS__TASK_CLAIM, dibs__tick_add_ms(dibs__tick_now(), 20000));
    if (status != DIBS_OK) me->broken = true;
    for (uint32_t i = 0; status == DIBS_OK && i < r->task.got_count; i++) {
      claims_of[strtol(((struct dibs__task_row *)r->task.got)[i].key.p, NULL, 10)]++;
      raced++;
    }
    if (status == DIBS_OK && r->task.got_count == 0 && raced < RACED) dibs__nap_ms(1);
    dibs__request_drop(r);
  }
  return NULL;
}

static void of_many_claimers_one_gets_each_row(void **state) {
  (void)state;
  dibs_table *t = plain_gateway();
  struct racer racers[RACERS];
  pthread_t threads[RACERS];
  for (int i = 0; i < RACED; i++) add(i, "a", type->never, ago(RACED - i));
  for (int i = 0; i < RACERS; i++) racers[i] = (struct racer){store_open(), t, false};
  for (int i = 0; i < RACERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
  for (int i = 0; i < RACERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < RACERS; i++) assert_false(racers[i].broken);
  for (int i = 0; i < RACED; i++) assert_int_equal(claims_of[i], 1);
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE fence = 1"), "200");
}

/* A row that another session has locked is skipped, without waiting. */
static void a_locked_row_is_skipped(void **state) {
  (void)state;
  if (on_engine("sqlite")) return;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  sql("CREATE INDEX oldest ON gateway (phase, locked_at, updated_at)");
  add(1, "a", type->never, ago(200));
  add(2, "a", type->never, ago(100));
  sql("BEGIN");
  sql("SELECT 1 FROM gateway WHERE id = 1 FOR UPDATE");
  const struct dibs__task_row *row = row_of(claim_for(s, t, 1, LONG_MS, "a", NULL), 0);
  assert_string_equal(row->key.p, "2");
  const struct dibs__task_op *op = claim_for(s, t, 1, LONG_MS, "a", NULL);
  assert_int_equal(op->got_count, 0);
  assert_in_range(op->next_ms, 1, 1000);
  sql("COMMIT");
  claim_row(s, t, "1");
}

/* ---- Keys ---- */

static void keys_are_their_bytes(void **state) {
  (void)state;
  static const char *const keys[] = {"it's", "\"q\" \\ `b`", "gr\xc3\xbc\xc3\x9f", "gruss", "GRUSS", "1", "01", "a b",
                                     "$1"};
  enum { KEYS = sizeof keys / sizeof keys[0] };
  dibs_store *s = store_open();
  for (type = all_types; strcmp(type->scheme, engine->scheme) != 0;) type++;
  dibs_table *t =
      gateway_with(on_engine("mysql") ? "VARCHAR(40) COLLATE utf8mb4_bin PRIMARY KEY" : "VARCHAR(40) PRIMARY KEY");
  if (on_engine("mysql")) sql("SET sql_mode = 'NO_BACKSLASH_ESCAPES'");
  if (on_engine("mysql")) sql("SET NAMES utf8mb4");
  for (size_t i = 0; i < KEYS; i++)
    sql("INSERT INTO gateway (id, phase, locked_at, updated_at) VALUES ('%s', 'a', %s, %s)", i == 0 ? "it''s" : keys[i],
        type->never, ago(500 - (int)i));
  for (size_t i = 0; i < KEYS; i++) {
    const struct dibs__task_row *row = claim_row(s, t, keys[i]);
    struct dibs__task_item item = item_of(row);
    dibs__nap_ms(2);
    change(s, t, DIBS__TASK_EXTEND, &item, DIBS_OK);
  }
  struct dibs__task_item item = {.key = dibs__str_of("Gruss", 5), .fence = {1}, .locked = dibs__str_of("1", 1)};
  change(s, t, DIBS__TASK_EXTEND, &item, DIBS_NOT_FOUND);
}

static void a_uuid_may_be_the_key(void **state) {
  (void)state;
  if (on_engine("sqlite")) return;
  dibs_store *s = store_open();
  for (type = all_types; strcmp(type->scheme, engine->scheme) != 0;) type++;
  dibs_table *t = gateway_with(on_engine("mysql") ? "UUID PRIMARY KEY" : "uuid PRIMARY KEY");
  static const char id[] = "6ccd780c-baba-1026-9564-5b8c656024db";
  sql("INSERT INTO gateway (id, phase, locked_at, updated_at) VALUES ('%s', 'a', %s, %s)", id, type->never, ago(5));
  end_with(s, t, claim_row(s, t, id), DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
}

/* ---- Listing ---- */

static struct dibs__task_op *list(dibs_store *s, dibs_table *t, struct dibs__task_filter filter, uint32_t most) {
  struct dibs__task_op *op = task_make(s, t);
  op->filter = filter;
  op->most = most;
  return task_carry(op, DIBS__TASK_LIST, DIBS_OK);
}

static void a_list_has_each_row_once(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  for (int i = 1; i <= 25; i++) add(i, i % 5 ? "a" : "b", i % 2 ? type->never : ago(1), ago(i * 10));
  dibs__str after = {"", 0};
  uint32_t seen = 0;
  for (struct dibs__task_op *op; (op = list(s, t, (struct dibs__task_filter){.after_key = after}, 10))->got_count;) {
    for (uint32_t i = 0; i < op->got_count; i++) {
      const struct dibs__task_row *row = row_of(op, i);
      assert_int_equal(strtol(row->key.p, NULL, 10), ++seen);
      assert_int_equal(row->state, seen % 2 ? DIBS__TASK_READY : DIBS__TASK_CLAIMED);
      assert_string_equal(row->phase.p, seen % 5 ? "a" : "b");
    }
    after = row_of(op, op->got_count - 1)->key;
  }
  assert_int_equal(seen, 25);
  struct dibs__task_filter filter = {.phase = dibs__str_of("b", 1)};
  assert_int_equal(list(s, t, filter, 100)->got_count, 5);
  filter.states = 1u << DIBS__TASK_READY;
  assert_int_equal(list(s, t, filter, 100)->got_count, 3);
  filter.states = 1u << DIBS__TASK_CLAIMED;
  assert_int_equal(list(s, t, filter, 100)->got_count, 2);
  filter.states = 1u << DIBS__TASK_DEAD;
  assert_int_equal(list(s, t, filter, 100)->got_count, 0);
  filter = (struct dibs__task_filter){.older_ms = 195000};
  assert_int_equal(list(s, t, filter, 100)->got_count, 6);
  filter = (struct dibs__task_filter){.key = dibs__str_of("7", 1)};
  assert_string_equal(row_of(list(s, t, filter, 100), 0)->key.p, "7");
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE fence IS NULL"), "25");
}

/* ---- What is refused ---- */

static void verbs_of_dibs_own_table_are_unsupported(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  static const enum dibs__task_verb verbs[] = {DIBS__TASK_ADD, DIBS__TASK_CHANGE, DIBS__TASK_COUNT, DIBS__TASK_KIND};
  for (size_t i = 0; i < 4; i++)
    assert_non_null(strstr(task_carry(task_make(s, t), verbs[i], DIBS_UNSUPPORTED)->why, "gateway"));
  struct dibs__task_op *op = task_make(s, t);
  op->errors = true;
  task_carry(op, DIBS__TASK_LIST, DIBS_UNSUPPORTED);
  t = TABLE(.table = "gateway", .key = "id", .fence = "fence");
  assert_non_null(strstr(task_carry(task_make(s, t), DIBS__TASK_CLAIM, DIBS_UNSUPPORTED)->why, "locked_at"));
}

static void refuses(dibs_store *s, dibs_table *t, const char *words) {
  const char *why = task_carry(task_make(s, t), DIBS__TASK_CLAIM, DIBS_INVALID)->why;
  if (!strstr(why, words)) fail_msg("\"%s\" is not in \"%s\"", words, why);
}

static void a_table_that_does_not_fit_is_refused_with_its_column(void **state) {
  (void)state;
  dibs_store *s = store_open();
  for (type = all_types; strcmp(type->scheme, engine->scheme) != 0;) type++;
  dibs_table_options fine = {.size = sizeof fine,
                             .table = "gateway",
                             .key = "id",
                             .phase = "phase",
                             .locked_at = "locked_at",
                             .updated_at = "updated_at",
                             .fence = "fence"};
  gateway();
  const char **parts[] = {&fine.key, &fine.phase, &fine.locked_at, &fine.updated_at, &fine.fence};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    const char *was = *parts[i];
    *parts[i] = "misspelt";
    refuses(s, declare(&fine), "misspelt");
    *parts[i] = was;
  }
  fine.locked_at = "fence";
  fine.fence = "step";
  refuses(s, declare(&fine), "step");
  fine.fence = "fence";
  fine.locked_at = on_engine("sqlite") ? "amount" : "step"; /* text has no order there */
  sql("ALTER TABLE gateway ADD COLUMN amount REAL");
  refuses(s, declare(&fine), fine.locked_at);
  fine.locked_at = "locked_at";
  sql("DROP TABLE gateway");
  gateway_with(engine->number);
  refuses(s, declare(&fine), "unique");
  sql("DROP TABLE gateway");
  if (on_engine("sqlite")) return;
  make_table("gateway", "id BIGINT PRIMARY KEY, phase VARCHAR(20), locked_at date, updated_at integer, fence BIGINT");
  refuses(s, declare(&fine), "locked_at");
  fine.locked_at = "updated_at"; /* 32 bits do not hold ms */
  fine.updated_at = "locked_at";
  refuses(s, declare(&fine), "64 bits");
}

static void a_declaration_needs_all_roles_of_tasks(void **state) {
  (void)state;
  dibs_table *t;
  dibs_table_options o = {
      .size = sizeof o, .table = "t", .key = "id", .phase = "p", .locked_at = "l", .updated_at = "u"};
  assert_int_equal(dibs_table_declare(&o, &t, &reported), DIBS_INVALID);
  assert_message("fence");
  o.fence = "f";
  o.updated_at = NULL;
  assert_int_equal(dibs_table_declare(&o, &t, &reported), DIBS_INVALID);
  assert_message("updated_at");
  o.updated_at = "P";
  assert_int_equal(dibs_table_declare(&o, &t, &reported), DIBS_INVALID);
  assert_message("twice");
  o.updated_at = "u";
  o.time_unit = (dibs_time_unit)2;
  assert_int_equal(dibs_table_declare(&o, &t, &reported), DIBS_INVALID);
  assert_message("time_unit");
}

static void read_ini(const char *text, dibs_status want) {
  char path[] = "/tmp/dibs-tasks-XXXXXX";
  int fd = mkstemp(path);
  dibs_table *t = NULL;
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  dibs_status got = dibs_table_read(path, NULL, &t, &reported);
  unlink(path);
  if (got != want) fail_msg("%s: %s", dibs_status_name(got), reported.text);
  if (t) assert_int_equal(t->time_unit, DIBS__TIME_S);
  if (t) assert_string_equal(t->updated_at, "u");
  dibs_table_free(t);
}

static void a_file_declares_the_roles_of_tasks(void **state) {
  (void)state;
  read_ini("[t]\ntable = t\nkey = id\nfence = f\nphase = p\nlocked_at = l\nupdated_at = u\ntime_unit = s\n", DIBS_OK);
  read_ini("[t]\ntable = t\nkey = id\nfence = f\nphase = p\nlocked_at = l\nupdated_at = u\ntime_unit = min\n",
           DIBS_INVALID);
  assert_message("time_unit is ms or s");
  read_ini("[t]\ntable = t\nkey = id\ntime_unit = s\n", DIBS_INVALID);
  assert_message("locked_at");
}

static void wrong_arguments_are_invalid(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  struct dibs__task_op *op = task_make(s, t);
  op->timeout_ms = 0;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_INVALID);
  op = task_make(s, t);
  op->most = 1001;
  task_carry(op, DIBS__TASK_CLAIM, DIBS_INVALID);
  op = task_make(s, t);
  op->timeout_ms = INT64_MAX;
  task_carry(op, DIBS__TASK_EXTEND, DIBS_INVALID);
  struct dibs__task_item item = {.key = dibs__str_of("1", 1), .fence = {1}};
  item.verdict = DIBS__TASK_END_NEXT;
  change(s, t, DIBS__TASK_END, &item, DIBS_INVALID); /* without locked_at */
  item.locked = dibs__str_of("x", 1);
  item.verdict = DIBS__TASK_END_WAIT;
  item.delay_ms = INT64_MAX;
  change(s, t, DIBS__TASK_END, &item, DIBS_INVALID);
}

/* ---- What only SQLite stores ---- */

static void values_that_are_no_instant_are_never_claimed_and_named(void **state) {
  (void)state;
  if (!on_engine("sqlite")) return;
  dibs_store *s = store_open();
  static const char *const odd[] = {"'soon'", "''", "x'00'", "'now'", "2460000.5"};
  FOR_EACH_TYPE {
    bool text = type->never[0] == '\'';
    dibs_table *t = gateway();
    for (int i = 0; i < 5; i++) add(i, "a", odd[i], type->never);
    add(9, "a", type->never, type->never);
    claim_row(s, t, "9");
    for (int i = 0; i < 5; i++) {
      const struct dibs__task_op *op = claim_for(s, t, 9, LONG_MS, NULL, NULL);
      assert_int_equal(op->got_count, 0);
      assert_non_null(strstr(op->why, "locked_at"));
    }
    sql("UPDATE gateway SET locked_at = %s, fence = 'abc'", type->never);
    assert_int_equal(claim_for(s, t, 9, LONG_MS, NULL, NULL)->got_count, 0);
    sql("UPDATE gateway SET fence = NULL, locked_at = %s", text ? "'2001-02-03'" : "5");
    assert_int_equal(claim_for(s, t, 9, LONG_MS, NULL, NULL)->got_count, 6);
    sql("DROP TABLE gateway");
  }
}

static void texts_keep_their_form(void **state) {
  (void)state;
  if (!on_engine("sqlite")) return;
  static const struct {
    const char *was, *pattern, *never;
  } forms[] = {
      {"2026-01-02 03:04:05", "____-__-__ __:__:__", "1970-01-01 00:00:00"},
      {"2026-01-02T03:04:05", "____-__-__T__:__:__", "1970-01-01T00:00:00"},
      {"2026-01-02T03:04:05Z", "____-__-__T__:__:__Z", "1970-01-01T00:00:00Z"},
      {"2026-01-02 03:04:05.1", "____-__-__ __:__:__._", "1970-01-01 00:00:00.0"},
      {"2026-01-02T03:04:05.123Z", "____-__-__T__:__:__.___Z", "1970-01-01T00:00:00.000Z"},
      {"2026-01-02T03:04:05.123456Z", "____-__-__T__:__:__.___000Z", "1970-01-01T00:00:00.000000Z"},
      {"2026-01-02T03:04:05.123+02:00", "____-__-__T__:__:__.___+00:00", "1970-01-01T00:00:00.000+00:00"},
  };
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    sql("DELETE FROM gateway");
    sql("INSERT INTO gateway (id, phase, locked_at, updated_at) VALUES (1, 'a', '%s', '%s')", forms[i].was,
        forms[i].was);
    const struct dibs__task_row *row = claim_row(s, t, "1");
    assert_string_equal(cell("SELECT locked_at FROM gateway WHERE locked_at LIKE '%s'", forms[i].pattern),
                        row->locked.p);
    end_with(s, t, row, DIBS__TASK_END_NEXT, "", 0, DIBS_OK);
    assert_string_equal(cell("SELECT locked_at FROM gateway"), forms[i].never);
    assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE updated_at LIKE '%s'", forms[i].pattern), "1");
    claim_row(s, t, "1");
  }
}

/* ---- Inside the user's transaction ---- */

static void an_end_may_be_part_of_the_users_transaction(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  dibs_table *t = plain_gateway();
  add(1, "a", type->never, ago(100));
  const struct dibs__task_row *row = claim_row(s, t, "1");
  for (int commits = 0; commits < 2; commits++) {
    sql("BEGIN");
    sql("UPDATE gateway SET step = 'done'");
    assert_int_equal(engine->inside(s, connection(), &inside, &reported), DIBS_OK);
    end_with(inside, t, row, DIBS__TASK_END_NEXT, "b", 0, DIBS_OK);
    dibs_close(inside);
    sql(commits ? "COMMIT" : "ROLLBACK");
    assert_string_equal(cell("SELECT step FROM gateway"), commits ? "done" : "s");
    assert_string_equal(cell("SELECT phase FROM gateway"), commits ? "b" : "a");
    assert_int_equal(is_never(1), commits);
  }
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(a_claim_sets_the_lock_and_the_fence_and_nothing_else),
      CASE(claims_take_the_oldest_locked_at_then_the_oldest_updated_at),
      CASE(a_claim_names_its_phases_byte_by_byte),
      CASE(a_row_without_instants_and_fence_is_free),
      CASE(a_claim_without_tasks_answers_when_one_is_free),
      CASE(a_repeated_claim_claims_nothing),
      CASE(next_frees_the_row_and_sets_the_phase),
      CASE(wait_and_fail_free_the_row_after_the_delay),
      CASE(give_frees_the_row_as_it_was),
      CASE(extend_moves_the_lock_and_answers_it),
      CASE(an_expired_claim_is_refused_after_the_next_claim),
      CASE(a_program_without_dibs_that_took_the_row_over_wins),
      CASE(a_row_that_was_deleted_is_not_found),
      CASE(a_bad_item_does_not_harm_the_others),
      CASE(a_thousand_rows_are_claimed_extended_and_ended_at_once),
      CASE(of_many_claimers_one_gets_each_row),
      CASE(a_locked_row_is_skipped),
      CASE(keys_are_their_bytes),
      CASE(a_uuid_may_be_the_key),
      CASE(a_list_has_each_row_once),
      CASE(verbs_of_dibs_own_table_are_unsupported),
      CASE(a_table_that_does_not_fit_is_refused_with_its_column),
      CASE(a_declaration_needs_all_roles_of_tasks),
      CASE(a_file_declares_the_roles_of_tasks),
      CASE(wrong_arguments_are_invalid),
      CASE(values_that_are_no_instant_are_never_claimed_and_named),
      CASE(texts_keep_their_form),
      CASE(an_end_may_be_part_of_the_users_transaction),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
