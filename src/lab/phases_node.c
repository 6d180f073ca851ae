/* SPDX-License-Identifier: MIT */
/*
 * A node of the experiment `phases`.  It claims a row, does its next step, and frees it in the phase that follows.
 *
 * By hand it claims as programs do that poll a table: the free row that was locked first, taken by an UPDATE that
 * compares locked_at.  Then it has the effect, and then writes the row.  By dibs the claim has a fence, and the effect
 * and the row are written by one transaction that compares it.
 */
#include "dibs/task.h"
#include "lab/phases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_MS = 20, TICK_MS = 10, WAIT_MS = 100, RETRY_MS = 10000, TEXT_MAX = 600 };
enum { KILLED_AFTER = 3, STOPPED_BEFORE = 4 /* the number of its effect, from 1 on */ };

const char *const dibs__phases_steps[PHASES_STEPS] = {"order the certificate", "create", "delete the trigger",
                                                      "delete the stage", "delete the database"};

struct node {
  struct phases_page *page;
  struct phases_slot *slot;
  uint32_t number;
  struct lab_connection *connection;
  struct lab_line line;
  dibs_store *store; /* NULL: by hand */
  dibs_table *table;
};
struct claimed {
  char id[LAB_KEY_MAX], phase[24];
  uint32_t nth;
  int64_t state, certificate;
  int64_t mine;    /* what a guard compares: the fence, or locked_at */
  dibs_task *task; /* NULL: by hand */
};

static bool has_trouble(const struct node *n, const char *doing, const char *why) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&n->page->troubled, &none, 1)) return false;
  snprintf(n->page->why, sizeof n->page->why, "node %u: %s: %.400s", n->number + 1, doing, why);
  atomic_store(&n->page->troubled, 2);
  return false;
}

/* ---- Statements ---- */

static bool may_repeat(const struct lab_line *line) {
  enum dibs__sql_trouble trouble = line->wire->trouble;
  return trouble == DIBS__SQL_DEADLOCK || trouble == DIBS__SQL_LOCKED;
}

/* A statement that commits by itself; again after a deadlock. */
static bool run(struct node *n, const char *doing, const char *text, const struct dibs__sql_value *values,
                size_t count) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), RETRY_MS);
  while (dibs__lab_run_sql(&n->line, text, values, count) != DIBS__SQL_OK) {
    if (!may_repeat(&n->line) || !dibs__tick_before(dibs__tick_now(), by))
      return has_trouble(n, doing, n->line.wire->message);
    dibs__nap_ms(TICK_MS);
  }
  return true;
}

static bool has_changed(const struct node *n) {
  return n->line.wire->engine->changed(n->line.wire, 0) > 0;
}

static size_t effect_text(const struct node *n, const struct claimed *c, char text[TEXT_MAX],
                          struct dibs__sql_value values[6]) {
  snprintf(text, TEXT_MAX,
           "INSERT INTO %s (row_id, step, node, late) SELECT id, $2, $3, CASE WHEN %s = $4 THEN 0 ELSE 1 END FROM %s "
           "WHERE id = $1",
           n->page->effects, n->store ? "fence" : "locked_at", n->page->rows);
  values[0] = dibs__sql_text(c->id, strlen(c->id));
  values[1] = dibs__sql_number(c->state);
  values[2] = dibs__sql_number(n->number);
  values[3] = dibs__sql_number(c->mine);
  return 4;
}

/* What a row is after a step; by hand also its phase, and it is free. */
static size_t row_text(const struct node *n, const struct claimed *c, const char *phase, char text[TEXT_MAX],
                       struct dibs__sql_value values[6]) {
  const char *guard = n->store ? "fence" : "locked_at";
  snprintf(text, TEXT_MAX,
           "UPDATE %s SET late = late + CASE WHEN %s = $2 THEN 0 ELSE 1 END, state = $3, certificate = $4%s "
           "WHERE id = $1%s%s%s",
           n->page->rows, guard, n->store ? "" : ", phase = $5, locked_at = 0, updated_at = $6",
           n->page->method == PHASES_POLLED ? "" : " AND ", n->page->method == PHASES_POLLED ? "" : guard,
           n->page->method == PHASES_POLLED ? "" : " = $2");
  values[0] = dibs__sql_text(c->id, strlen(c->id));
  values[1] = dibs__sql_number(c->mine);
  values[2] = dibs__sql_number(c->state);
  values[3] = dibs__sql_number(c->certificate);
  values[4] = dibs__sql_text(phase, strlen(phase));
  values[5] = dibs__sql_number(dibs__wall_ms());
  return n->store ? 4 : 6;
}

/* ---- The scene ---- */

/* Here the lab kills or stops this node. */
static void hold(struct node *n, const struct claimed *c) {
  struct phases_slot *slot = n->slot;
  slot->row = c->nth;
  slot->step = (uint32_t)c->state;
  atomic_store(&slot->held, 1);
  dibs__word_wake(&slot->held, INT32_MAX, true);
  while (!atomic_load(&slot->release)) dibs__word_wait(&slot->release, 0, DIBS__TICK_NEVER, true);
}

static void hold_before(struct node *n, const struct claimed *c) {
  if (n->number == PHASES_STOPPED && atomic_load(&n->slot->effects) + 1 == STOPPED_BEFORE) hold(n, c);
}

static void hold_after(struct node *n, const struct claimed *c) {
  if (n->number == PHASES_KILLED && atomic_load(&n->slot->effects) == KILLED_AFTER) hold(n, c);
}

static void note_claim(const struct node *n, struct claimed *c) {
  const char *digits = strchr(c->id, '-');
  int64_t none = 0;
  c->nth = digits ? (uint32_t)strtoul(digits + 1, NULL, 10) : 0;
  if (c->nth && c->nth == atomic_load(&n->page->killed_row))
    (void)atomic_compare_exchange_strong(&n->page->continued_ns, &none, dibs__tick_now().ns);
}

/* ---- A step ---- */

static const char *phase_at(int64_t state) {
  return state < PHASES_CREATED    ? "Creating"
         : state == PHASES_CREATED ? "Ready"
         : state < PHASES_STEPS    ? "Deleting"
                                   : "Deleted";
}

/* The next state, with what belongs to it. */
static struct claimed advanced(const struct claimed *c) {
  struct claimed next = *c;
  next.state++;
  if (c->state == 0) next.certificate = dibs__wall_ms() + (c->nth % 2 ? PHASES_CERTIFICATE_MS : 0);
  return next;
}

static bool step_by_hand(struct node *n, const struct claimed *c) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[6];
  struct claimed next = advanced(c);
  if (!run(n, "the effect", text, values, effect_text(n, c, text, values))) return false;
  atomic_fetch_add(&n->slot->effects, 1);
  hold_after(n, c);
  if (!run(n, "write the row", text, values, row_text(n, &next, phase_at(next.state), text, values))) return false;
  if (!has_changed(n)) atomic_fetch_add(&n->slot->refused, 1);
  return true;
}

/* OK; STALE: the claim is over, and nothing was changed; UNAVAILABLE: try again; UNKNOWN: n->line.wire->message. */
static dibs_status transact(struct node *n, const struct claimed *c) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[6];
  struct claimed next = advanced(c);
  size_t count = row_text(n, &next, "", text, values);
  enum dibs__sql_rc step = dibs__lab_run_sql(&n->line, n->line.wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&n->line, text, values, count);
  if (step == DIBS__SQL_OK && !has_changed(n)) {
    dibs__sql_rollback(n->line.wire);
    return DIBS_STALE;
  }
  count = effect_text(n, c, text, values);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&n->line, text, values, count);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&n->line, "COMMIT", NULL, 0);
  if (step == DIBS__SQL_OK) return DIBS_OK;
  bool again = may_repeat(&n->line);
  if (again) dibs__sql_rollback(n->line.wire);
  return again ? DIBS_UNAVAILABLE : DIBS_UNKNOWN;
}

/* OK; STALE: the claim was over; UNKNOWN: the row is free when the time of the claim is over, at the latest; INVALID:
 * trouble. */
static dibs_status end_claim(struct node *n, struct claimed *c, dibs_verdict verdict, const char *phase) {
  dibs_error error = {0};
  dibs_task_end end = {.size = sizeof end, .task = c->task, .verdict = verdict, .phase = phase, .delay_ms = WAIT_MS};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), RETRY_MS);
  for (;; dibs__nap_ms(TICK_MS)) {
    dibs_status status = dibs_task_end_many(NULL, &end, 1, &error);
    if (status == DIBS_OK) status = end.status;
    if (status == DIBS_OK || status == DIBS_STALE || status == DIBS_UNKNOWN) return status;
    if (status == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), by)) continue;
    (void)has_trouble(n, "end the claim", error.text[0] ? error.text : dibs_status_text(status));
    return DIBS_INVALID;
  }
}

/* The node does not ask whether its claim is over: the store has the last word. */
static bool step_by_dibs(struct node *n, struct claimed *c) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), RETRY_MS);
  dibs_status status;
  while ((status = transact(n, c)) == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), by))
    dibs__nap_ms(TICK_MS);
  if (status == DIBS_STALE) {
    atomic_fetch_add(&n->slot->refused, 1);
    status = end_claim(n, c, DIBS_END_NEXT, NULL);
    if (status == DIBS_OK) return has_trouble(n, "end the claim", "the claim was over, and its end was accepted");
    return status != DIBS_INVALID;
  }
  if (status != DIBS_OK) return has_trouble(n, "the effect", n->line.wire->message);
  atomic_fetch_add(&n->slot->effects, 1);
  hold_after(n, c);
  return end_claim(n, c, DIBS_END_NEXT, phase_at(c->state + 1)) != DIBS_INVALID;
}

/* Frees the row without a step: it waits, or the node before died between the last step of a phase and its end. */
static bool free_row(struct node *n, struct claimed *c, bool waits) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[6];
  const char *phase = waits ? c->phase : phase_at(c->state);
  if (waits) atomic_fetch_add(&n->slot->waits, 1);
  if (c->task) return end_claim(n, c, waits ? DIBS_END_WAIT : DIBS_END_NEXT, waits ? NULL : phase) != DIBS_INVALID;
  if (waits) dibs__nap_ms(TICK_MS);
  return run(n, "free the row", text, values, row_text(n, c, phase, text, values));
}

static bool work(struct node *n, struct claimed *c) {
  dibs_error error = {0};
  bool creates = strcmp(c->phase, "Creating") == 0;
  if (c->state >= PHASES_STEPS || (creates && c->state >= PHASES_CREATED)) return free_row(n, c, false);
  if (creates && c->state == 1 && dibs__wall_ms() < c->certificate) return free_row(n, c, true);
  dibs__nap_ms(WORK_MS);
  if (c->task) {
    dibs_status status = dibs_task_extend(c->task, 0, &error); /* if not, the guard of the write decides */
    if (status == DIBS_INVALID || status == DIBS_UNSUPPORTED) return has_trouble(n, "extend the claim", error.text);
  }
  hold_before(n, c);
  bool was_held = n->number == PHASES_STOPPED && atomic_load(&n->slot->held) && !atomic_load(&n->slot->late_over);
  bool fine = c->task ? step_by_dibs(n, c) : step_by_hand(n, c);
  if (was_held) atomic_store(&n->slot->late_over, true);
  return fine;
}

/* ---- Claims ---- */

static void copy_cell(const struct node *n, size_t column, char *to, size_t size) {
  const struct dibs__sql_wire *wire = n->line.wire;
  struct dibs__sql_value cell = wire->engine->cell(wire, 0, 0, column, DIBS__SQL_TEXT);
  snprintf(to, size, "%.*s", (int)cell.len, cell.p ? cell.p : "");
}

/* The state of the row that was claimed by dibs.  false: trouble. */
static bool read_row(struct node *n, struct claimed *c) {
  char text[TEXT_MAX];
  struct dibs__sql_value id = dibs__sql_text(c->id, strlen(c->id));
  const struct dibs__sql_wire *wire = n->line.wire;
  snprintf(text, sizeof text, "SELECT state, certificate FROM %s WHERE id = $1", n->page->rows);
  if (!run(n, "read the row", text, &id, 1)) return false;
  if (wire->engine->rows(wire, 0) == 0) return has_trouble(n, "read the row", "it is missing");
  c->state = dibs__sql_cell_number(wire, 0, 0, 0);
  c->certificate = dibs__sql_cell_number(wire, 0, 0, 1);
  return true;
}

/* *got: a row was claimed.  false: trouble. */
static bool claim_by_dibs(struct node *n, struct claimed *c, bool *got) {
  static const char *const phases[] = {"Creating", "Deleting"};
  dibs_error error = {0};
  size_t count = 0;
  dibs_claim_options o = {.size = sizeof o,
                          .phases = phases,
                          .phase_count = 2,
                          .timeout_ms = n->page->timeout_ms,
                          .table = n->table,
                          .owner = "lab"};
  dibs_status status = dibs_tasks_claim(n->store, NULL, &o, &c->task, &count, &error);
  *got = status == DIBS_OK;
  if (status == DIBS_NOT_FOUND || status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) return true;
  if (status != DIBS_OK) return has_trouble(n, "claim", error.text);
  snprintf(c->id, sizeof c->id, "%s", c->task->key);
  snprintf(c->phase, sizeof c->phase, "%s", c->task->phase);
  c->mine = (int64_t)c->task->fence.value;
  note_claim(n, c);
  return read_row(n, c);
}

static bool claim_by_hand(struct node *n, struct claimed *c, bool *got) {
  char text[TEXT_MAX];
  const struct dibs__sql_wire *wire = n->line.wire;
  int64_t now = dibs__wall_ms();
  struct dibs__sql_value oldest = dibs__sql_number(now - n->page->timeout_ms);
  snprintf(text, sizeof text,
           "SELECT id, phase, state, certificate, locked_at FROM %s WHERE phase IN ('Creating', 'Deleting') AND "
           "locked_at <= $1 ORDER BY locked_at, updated_at LIMIT 1",
           n->page->rows);
  *got = false;
  if (!run(n, "look for a row", text, &oldest, 1)) return false;
  if (wire->engine->rows(wire, 0) == 0) return true;
  copy_cell(n, 0, c->id, sizeof c->id);
  copy_cell(n, 1, c->phase, sizeof c->phase);
  c->state = dibs__sql_cell_number(wire, 0, 0, 2);
  c->certificate = dibs__sql_cell_number(wire, 0, 0, 3);
  int64_t locked = dibs__sql_cell_number(wire, 0, 0, 4);
  c->mine = now > locked ? now : locked + 1;
  struct dibs__sql_value values[] = {dibs__sql_text(c->id, strlen(c->id)), dibs__sql_number(locked),
                                     dibs__sql_number(c->mine)};
  snprintf(text, sizeof text, "UPDATE %s SET locked_at = $3 WHERE id = $1 AND locked_at = $2", n->page->rows);
  if (!run(n, "claim", text, values, 3)) return false;
  *got = has_changed(n);
  if (*got) note_claim(n, c);
  return true;
}

/* ---- The process ---- */

static bool declare(struct node *n) {
  dibs_error error = {0};
  dibs_table_options o = {.size = sizeof o,
                          .table = n->page->rows,
                          .key = "id",
                          .fence = "fence",
                          .phase = "phase",
                          .locked_at = "locked_at",
                          .updated_at = "updated_at"};
  if (dibs_table_declare(&o, &n->table, &error) == DIBS_OK &&
      dibs_open(secure_getenv("DIBS_STORE"), NULL, &n->store, &error) == DIBS_OK)
    return true;
  return has_trouble(n, "open the store", error.text);
}

static bool open_node(struct node *n) {
  struct dibs__result result = {0};
  if (dibs__lab_connection_open(secure_getenv("DIBS_STORE"), &n->connection, &result) != DIBS_OK ||
      dibs__lab_line_open(n->connection, &n->line, &result) != DIBS_OK)
    return has_trouble(n, "connect", result.text);
  return n->page->method != PHASES_DIBS || declare(n);
}

static void await(dibs__word *word) {
  while (!atomic_load(word)) dibs__word_wait(word, 0, DIBS__TICK_NEVER, true);
}

/* Until it is killed, or has a trouble. */
int dibs__lab_phases_helper(int argc, char **argv) {
  struct phases_page *page = dibs__lab_shared_of(argc, argv, sizeof *page);
  uint32_t number = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : PHASES_NODES;
  if (!page || number >= PHASES_NODES) return 1;
  struct node n = {.page = page, .slot = &page->slot[number], .number = number};
  bool fine = open_node(&n);
  atomic_fetch_add(&page->ready, 1);
  dibs__word_wake(&page->ready, INT32_MAX, true);
  await(number <= PHASES_STOPPED ? &page->begin : &page->join);
  while (fine) {
    struct claimed c = {0};
    bool got = false;
    fine = page->method == PHASES_DIBS ? claim_by_dibs(&n, &c, &got) : claim_by_hand(&n, &c, &got);
    if (fine && got)
      fine = work(&n, &c);
    else if (fine)
      dibs__nap_ms(TICK_MS);
    dibs_task_free(c.task);
  }
  for (dibs__word never = 0;;) dibs__word_wait(&never, 0, DIBS__TICK_NEVER, false);
}
