/* SPDX-License-Identifier: MIT */
/*
 * A node of the experiment `phases`.  It claims a row, does its next step, and frees it in the phase that follows.
 *
 * By hand it claims as programs do that poll a table: the free row that was locked first, taken if its locked_at is
 * still the same.  Then it has the effect, and then writes the row.  With dibs the claim has a fence, and one guarded
 * write has both, the effect and the row.
 */
#include "dibs/task.h"
#include "lab/phases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_MS = 20, TICK_MS = 10, WAIT_MS = 100, RETRY_MS = 10000 };
enum { KILLED_AFTER = 3, STOPPED_BEFORE = 4 /* the number of its effect, from 1 on */ };

const char *const dibs__phases_steps[PHASES_STEPS] = {"order the certificate", "create", "delete the trigger",
                                                      "delete the stage", "delete the database"};

struct node {
  struct phases_page *page;
  struct phases_slot *slot;
  uint32_t number;
  struct phases_db db;
  dibs_store *store; /* NULL: by hand */
  dibs_table *table;
};
struct claimed {
  struct phases_row row;
  uint32_t nth;
  dibs_task *task; /* NULL: by hand */
};

static bool has_trouble(const struct node *n, const char *doing, const char *why) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&n->page->troubled, &none, 1)) return false;
  snprintf(n->page->why, sizeof n->page->why, "node %u: %s: %.400s", n->number + 1, doing, why);
  atomic_store(&n->page->troubled, 2);
  return false;
}

/* ---- The scene ---- */

/* Here the lab kills or stops this node. */
static void hold(struct node *n, const struct claimed *c) {
  struct phases_slot *slot = n->slot;
  slot->row = c->nth;
  slot->step = (uint32_t)c->row.state;
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
  const char *digits = strchr(c->row.id, '-');
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
static struct phases_row advanced(const struct claimed *c) {
  struct phases_row next = c->row;
  next.state++;
  if (c->row.state == 0) next.certificate = dibs__wall_ms() + (c->nth % 2 ? PHASES_CERTIFICATE_MS : 0);
  return next;
}

static bool step_by_hand(struct node *n, const struct claimed *c) {
  struct phases_row next = advanced(c);
  if (n->db.engine->effect(&n->db, &c->row) != DIBS_OK) return has_trouble(n, "the effect", n->db.why);
  atomic_fetch_add(&n->slot->effects, 1);
  hold_after(n, c);
  dibs_status status = n->db.engine->write(&n->db, &next, phase_at(next.state));
  if (status == DIBS_STALE) atomic_fetch_add(&n->slot->refused, 1);
  return status == DIBS_OK || status == DIBS_STALE || has_trouble(n, "write the row", n->db.why);
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
  struct phases_row next = advanced(c);
  dibs_status status = n->db.engine->commit(&n->db, &c->row, &next);
  if (status == DIBS_STALE) {
    atomic_fetch_add(&n->slot->refused, 1);
    status = end_claim(n, c, DIBS_END_NEXT, NULL);
    if (status == DIBS_OK) return has_trouble(n, "end the claim", "the claim was over, and its end was accepted");
    return status != DIBS_INVALID;
  }
  if (status != DIBS_OK) return has_trouble(n, "the effect", n->db.why);
  atomic_fetch_add(&n->slot->effects, 1);
  hold_after(n, c);
  return end_claim(n, c, DIBS_END_NEXT, phase_at(next.state)) != DIBS_INVALID;
}

/* Frees the row without a step: it waits, or the node before died between the last step of a phase and its end. */
static bool free_row(struct node *n, struct claimed *c, bool waits) {
  const char *phase = waits ? c->row.phase : phase_at(c->row.state);
  if (waits) atomic_fetch_add(&n->slot->waits, 1);
  if (c->task) return end_claim(n, c, waits ? DIBS_END_WAIT : DIBS_END_NEXT, waits ? NULL : phase) != DIBS_INVALID;
  if (waits) dibs__nap_ms(TICK_MS);
  dibs_status status = n->db.engine->write(&n->db, &c->row, phase);
  return status == DIBS_OK || status == DIBS_STALE || has_trouble(n, "free the row", n->db.why);
}

static bool work(struct node *n, struct claimed *c) {
  dibs_error error = {0};
  const struct phases_row *row = &c->row;
  bool creates = strcmp(row->phase, "Creating") == 0;
  if (row->state >= PHASES_STEPS || (creates && row->state >= PHASES_CREATED)) return free_row(n, c, false);
  if (creates && row->state == 1 && dibs__wall_ms() < row->certificate) return free_row(n, c, true);
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
  snprintf(c->row.id, sizeof c->row.id, "%s", c->task->key);
  snprintf(c->row.phase, sizeof c->row.phase, "%s", c->task->phase);
  c->row.mine = (int64_t)c->task->fence.value;
  note_claim(n, c);
  return n->db.engine->read(&n->db, &c->row) == DIBS_OK || has_trouble(n, "read the row", n->db.why);
}

static bool claim_by_hand(struct node *n, struct claimed *c, bool *got) {
  dibs_status status = n->db.engine->claim(&n->db, &c->row);
  *got = status == DIBS_OK;
  if (*got) note_claim(n, c);
  return *got || status == DIBS_NOT_FOUND || has_trouble(n, "claim", n->db.why);
}

/* ---- The process ---- */

static bool declare(struct node *n) {
  const struct phases_engine *engine = n->db.engine;
  dibs_error error = {0};
  dibs_table_options o = {.size = sizeof o,
                          .table = n->page->rows,
                          .key = engine->id,
                          .fence = engine->fence,
                          .phase = engine->phase,
                          .locked_at = engine->locked_at,
                          .updated_at = engine->updated_at};
  if (dibs_table_declare(&o, &n->table, &error) == DIBS_OK && dibs_open(n->db.uri, NULL, &n->store, &error) == DIBS_OK)
    return true;
  return has_trouble(n, "open the store", error.text);
}

static bool open_node(struct node *n) {
  const char *uri = secure_getenv("DIBS_STORE");
  if (!uri) return has_trouble(n, "connect", "the lab has named no store");
  char why[LAB_WHY_MAX];
  const struct phases_engine *engine = n->page->mongodb ? dibs__phases_mongodb(why, sizeof why) : &dibs__phases_sql;
  if (!engine) return has_trouble(n, "connect", why);
  n->db = (struct phases_db){.engine = engine,
                             .uri = uri,
                             .rows = n->page->rows,
                             .effects = n->page->effects,
                             .method = n->page->method,
                             .node = n->number,
                             .timeout_ms = n->page->timeout_ms};
  if (dibs__phases_open(&n->db) != DIBS_OK) return has_trouble(n, "connect", n->db.why);
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
