/* SPDX-License-Identifier: MIT */
#include "task_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 4096 };

static struct dibs__request *requests[REQUESTS];
static size_t request_count;

int tasks_end(void **state) {
  while (request_count > 0) dibs__request_drop(requests[--request_count]);
  return case_end(state);
}
bool on_engine(const char *scheme) {
  return strcmp(engine->scheme, scheme) == 0;
}

/* ---- Types of columns ---- */

#define SQLITE_AT(form)                                                                                                \
  { "strftime('" form "', 'now', '", " seconds')" }
#define SQLITE_NOW "strftime('%s', 'now') - "
#define PG_NOW "clock_timestamp() - interval '"
#define PG_EPOCH "floor(extract(epoch FROM clock_timestamp()) - "
#define UTC "UTC_TIMESTAMP(6) - INTERVAL "
#define EPOCH_Z "1970-01-01T00:00:00.000Z"
const struct type all_types[] = {
    {"sqlite", "TEXT", DIBS_TIME_MS, false, SQLITE_AT("%Y-%m-%d %H:%M:%f"), "'1970-01-01 00:00:00.000'"},
    {"sqlite", "DATETIME", DIBS_TIME_MS, false, SQLITE_AT("%Y-%m-%dT%H:%M:%fZ"), "'" EPOCH_Z "'"},
    {"sqlite", "TIMESTAMP", DIBS_TIME_MS, true, SQLITE_AT("%Y-%m-%d %H:%M:%S"), "'1970-01-01 00:00:00'"},
    {"sqlite", "INTEGER", DIBS_TIME_MS, false, {"1000 * (" SQLITE_NOW, ")"}, "0"},
    {"sqlite", "INTEGER", DIBS_TIME_S, true, {SQLITE_NOW, ""}, "0"},
    {"postgres", "timestamptz", DIBS_TIME_MS, false, {PG_NOW, " s'"}, "to_timestamp(0)"},
    {"postgres", "timestamp(3)", DIBS_TIME_MS, false, {"(" PG_NOW, " s') AT TIME ZONE 'UTC'"}, "'1970-01-01'"},
    {"postgres", "timestamptz(0)", DIBS_TIME_MS, true, {PG_NOW, " s'"}, "to_timestamp(0)"},
    {"postgres", "bigint", DIBS_TIME_MS, false, {"1000 * " PG_EPOCH, ")"}, "0"},
    {"postgres", "integer", DIBS_TIME_S, true, {PG_EPOCH, ")"}, "0"},
    {"mysql", "DATETIME(6)", DIBS_TIME_MS, false, {UTC, " SECOND"}, "'1970-01-01'"},
    {"mysql", "DATETIME", DIBS_TIME_MS, true, {UTC, " SECOND"}, "'1970-01-01'"},
    {"mysql", "TIMESTAMP(3) NULL", DIBS_TIME_MS, false, {"NOW(6) - INTERVAL ", " SECOND"}, "FROM_UNIXTIME(1)"},
    {"mysql",
     "TIMESTAMP NOT NULL DEFAULT NOW() ON UPDATE NOW()",
     DIBS_TIME_MS,
     true,
     {"NOW() - INTERVAL ", " SECOND"},
     "FROM_UNIXTIME(1)"},
    {"mysql", "BIGINT UNSIGNED", DIBS_TIME_MS, false, {"1000 * (UNIX_TIMESTAMP() - ", ")"}, "0"},
    {"mysql", "INT", DIBS_TIME_S, true, {"UNIX_TIMESTAMP() - ", ""}, "0"},
};
_Static_assert(TYPES == sizeof all_types / sizeof all_types[0], "they are counted in task_bed.h");

const struct type *type;

/* Valid until the fourth call after this one. */
const char *ago(int seconds) {
  static char texts[4][128];
  static size_t at;
  char *to = texts[at++ % 4];
  bool text = on_engine("sqlite") && type->never[0] == '\''; /* it takes what is to be added */
  snprintf(to, sizeof texts[0], text ? "%s%+d%s" : "%s%d%s", type->ago[0], text ? -seconds : seconds, type->ago[1]);
  return to;
}

dibs_table *gateway_with(const char *key) {
  make_table("gateway",
             "id %s, name VARCHAR(80), phase VARCHAR(20), locked_at %s, updated_at %s, fence %s, step VARCHAR(20)", key,
             type->name, type->name, engine->number);
  return TABLE(.table = "gateway", .key = "id", .phase = "phase", .locked_at = "locked_at", .updated_at = "updated_at",
               .fence = "fence", .time_unit = type->unit);
}

dibs_table *gateway(void) {
  return gateway_with(on_engine("sqlite") ? "INTEGER PRIMARY KEY" : "BIGINT PRIMARY KEY");
}

/* With the engine's finest type. */
dibs_table *plain_gateway(void) {
  for (type = all_types; strcmp(type->scheme, engine->scheme) != 0;) type++;
  return gateway();
}

void add(int id, const char *phase, const char *locked, const char *updated) {
  sql("INSERT INTO gateway (id, name, phase, locked_at, updated_at, step) VALUES (%d, 'n', '%s', %s, %s, 's')", id,
      phase, locked, updated);
}

/* ---- Operations ---- */

struct dibs__task_op *task_make(dibs_store *s, dibs_table *t) {
  struct dibs__request *r = dibs__request_make(s, DIBS__FAM_TASK, t, 4096);
  assert_non_null(r);
  assert_true(request_count < REQUESTS);
  requests[request_count++] = r;
  r->task.table = t;
  r->task.kind = dibs__request_keep(r, "gateway", 7);
  r->task.timeout_ms = LONG_MS;
  r->task.most = 1;
  return &r->task;
}

struct dibs__task_op *task_carry(struct dibs__task_op *op, enum dibs__task_verb verb, dibs_status want) {
  dibs_status got =
      dibs__request_carry((struct dibs__request *)op, (uint16_t)verb, dibs__tick_add_ms(dibs__tick_now(), 20000));
  if (got != want) fail_msg("verb %d: %s, not %s: %s", verb, dibs_status_name(got), dibs_status_name(want), op->why);
  return op;
}

/* Phases: up to two, NULL: none. */
struct dibs__task_op *claim_for(dibs_store *s, dibs_table *t, uint32_t most, int64_t timeout_ms, const char *one,
                                const char *two) {
  static dibs__str phases[2];
  struct dibs__task_op *op = task_make(s, t);
  op->most = most;
  op->timeout_ms = timeout_ms;
  phases[0] = dibs__str_of(one, one ? strlen(one) : 0);
  phases[1] = dibs__str_of(two, two ? strlen(two) : 0);
  op->phases = phases;
  op->phase_count = (uint32_t)(one != NULL) + (two != NULL);
  return task_carry(op, DIBS__TASK_CLAIM, DIBS_OK);
}

const struct dibs__task_row *row_of(const struct dibs__task_op *op, uint32_t i) {
  if (i >= op->got_count) fail_msg("%u tasks, not %u: %s", op->got_count, i + 1, op->why);
  return &((const struct dibs__task_row *)op->got)[i];
}

/* Claims exactly this row. */
const struct dibs__task_row *claim_row(dibs_store *s, dibs_table *t, const char *key) {
  const struct dibs__task_op *op = claim_for(s, t, 1, LONG_MS, NULL, NULL);
  const struct dibs__task_row *row = row_of(op, 0);
  assert_string_equal(row->key.p, key);
  return row;
}

void claim_none(dibs_store *s, dibs_table *t) {
  assert_int_equal(claim_for(s, t, 10, LONG_MS, NULL, NULL)->got_count, 0);
}

struct dibs__task_item item_of(const struct dibs__task_row *row) {
  return (struct dibs__task_item){.key = row->key, .fence = row->fence, .locked = row->locked};
}

void change(dibs_store *s, dibs_table *t, enum dibs__task_verb verb, struct dibs__task_item *item, dibs_status want) {
  struct dibs__task_op *op = task_make(s, t);
  op->items = item;
  op->count = 1;
  task_carry(op, verb, DIBS_OK);
  if (item->status != (dibs__status)want)
    fail_msg("verb %d: item: %s, not %s: %s", verb, dibs_status_name((dibs_status)item->status), dibs_status_name(want),
             op->why);
}

void end_with(dibs_store *s, dibs_table *t, const struct dibs__task_row *row, enum dibs__task_verdict verdict,
              const char *phase, int64_t delay_ms, dibs_status want) {
  struct dibs__task_item item = item_of(row);
  item.verdict = verdict;
  item.phase = dibs__str_of(phase, strlen(phase));
  item.delay_ms = delay_ms;
  change(s, t, DIBS__TASK_END, &item, want);
}

bool is_never(int id) {
  return strcmp(cell("SELECT COUNT(*) FROM gateway WHERE id = %d AND locked_at = %s", id, type->never), "1") == 0;
}

/* Is locked_at of this row between so many seconds ago, as a program without dibs compares it? */
bool locked_between(int id, int from_ago, int to_ago) {
  return strcmp(cell("SELECT COUNT(*) FROM gateway WHERE id = %d AND locked_at >= %s AND locked_at <= %s", id,
                     ago(from_ago), ago(to_ago)),
                "1") == 0;
}
