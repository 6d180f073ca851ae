/* SPDX-License-Identifier: MIT */
/*
 * scene_node URI NUMBER fence|shared|plain: a node of the scene (scene.h), which ticks until it is killed.
 *
 *   fence    claims through dibs; guards its own statements by the fence
 *   shared   the same, by the fence and by locked_at: programs without dibs work on the same table
 *   plain    without dibs: claims by a SELECT and an UPDATE, and guards its statements by locked_at
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
  int number;
  bool shared, plain;
  dibs_store *store;
  dibs_table *table;
};

/* A row that this node has claimed. */
struct claimed {
  char key[24], phase[24], locked[48];
  uint64_t fence;
  int64_t waited_ms;
  int step;
};

static void keep(char *to, size_t size, const char *from) {
  snprintf(to, size, "%s", from ? from : "");
}

/* ---- Claims ---- */

static struct dibs__request *request_of(const struct node *n) {
  struct dibs__request *r = dibs__request_make(n->store, DIBS__FAM_TASK, n->table, 64);
  assert_non_null(r);
  r->task.table = n->table;
  r->task.kind = dibs__request_keep(r, "gateway", 7);
  r->task.timeout_ms = SCENE_TIMEOUT_S * 1000;
  return r;
}

static void carry_it(struct dibs__request *r, enum dibs__task_verb verb) {
  dibs_status status = dibs__request_carry(r, (uint16_t)verb, dibs__tick_add_ms(dibs__tick_now(), 20000));
  if (status != DIBS_OK) fail_msg("verb %d: %s: %s", verb, dibs_status_name(status), r->task.why);
}

static bool claim_by_dibs(const struct node *n, struct claimed *c) {
  static const dibs__str phases[] = {{"Creating", 8}, {"Deleting", 8}};
  struct dibs__request *r = request_of(n);
  r->task.most = 1;
  r->task.phases = phases;
  r->task.phase_count = 2;
  carry_it(r, DIBS__TASK_CLAIM);
  bool got = r->task.got_count > 0;
  if (got) {
    const struct dibs__task_row *row = r->task.got;
    keep(c->key, sizeof c->key, row->key.p);
    keep(c->phase, sizeof c->phase, row->phase.p);
    keep(c->locked, sizeof c->locked, row->locked.p);
    c->fence = row->fence.v;
    c->waited_ms = row->began_ms - row->at_ms;
  }
  dibs__request_drop(r);
  return got;
}

static bool claim_by_sql(struct claimed *c) {
  char was[48];
  keep(c->key, sizeof c->key,
       cell("SELECT id FROM gateway WHERE phase IN ('Creating', 'Deleting') AND locked_at < %s"
            " ORDER BY locked_at, updated_at LIMIT 1",
            ago(SCENE_TIMEOUT_S)));
  if (c->key[0] == '\0') return false;
  keep(was, sizeof was,
       cell("SELECT locked_at FROM gateway WHERE id = %s AND locked_at < %s", c->key, ago(SCENE_TIMEOUT_S)));
  if (was[0] == '\0' ||
      sql("UPDATE gateway SET locked_at = %s WHERE id = %s AND locked_at = '%s'", ago(0), c->key, was) == 0)
    return false;
  keep(c->locked, sizeof c->locked, cell("SELECT locked_at FROM gateway WHERE id = %s", c->key));
  keep(c->phase, sizeof c->phase, cell("SELECT phase FROM gateway WHERE id = %s", c->key));
  return true;
}

/* The condition that the claim is still this node's. */
static const char *mine(const struct node *n, const struct claimed *c) {
  static char text[160];
  char fence[40] = "", locked[80] = "";
  if (!n->plain) snprintf(fence, sizeof fence, " AND fence = %llu", (unsigned long long)c->fence);
  if (n->plain || n->shared) snprintf(locked, sizeof locked, " AND locked_at = '%s'", c->locked);
  snprintf(text, sizeof text, "id = %s%s%s", c->key, fence, locked);
  return text;
}

/* ---- Work ---- */

/* The step, and the record of it, take effect together if the claim is still this node's. */
static bool do_step(const struct node *n, const struct claimed *c, int step) {
  sql("INSERT INTO attempt VALUES (%s, %d, %d, %llu)", c->key, step, n->number, (unsigned long long)c->fence);
  dibs__nap_ms(SCENE_WORK_MS);
  sql(on_engine("sqlite") ? "BEGIN IMMEDIATE" : "BEGIN");
  bool accepted = sql("UPDATE gateway SET step = %d WHERE %s", step + 1, mine(n, c)) > 0;
  sql("INSERT INTO %s VALUES (%s, %d, %d)", accepted ? "accepted" : "refused", c->key, step, n->number);
  sql("COMMIT");
  return accepted;
}

static dibs_status end_by_dibs(const struct node *n, const struct claimed *c, enum dibs__task_verdict verdict,
                               const char *phase) {
  struct dibs__request *r = request_of(n);
  struct dibs__task_item item = {.key = dibs__str_of(c->key, strlen(c->key)),
                                 .fence = {c->fence},
                                 .locked = dibs__str_of(c->locked, strlen(c->locked)),
                                 .phase = dibs__str_of(phase, strlen(phase)),
                                 .verdict = verdict,
                                 .delay_ms = c->waited_ms > 0 ? c->waited_ms / 10 : 0};
  r->task.items = &item;
  r->task.count = 1;
  carry_it(r, DIBS__TASK_END);
  if (item.status != DIBS_OK && item.status != DIBS_STALE) fail_msg("end: %s", r->task.why);
  dibs__request_drop(r);
  return (dibs_status)item.status;
}

/* dibs refuses what the node's own statement refused. */
static bool do_step_and_compare(const struct node *n, const struct claimed *c, int step) {
  if (do_step(n, c, step)) return true;
  if (!n->plain && end_by_dibs(n, c, DIBS__TASK_END_NEXT, "Lost") != DIBS_STALE) fail_msg("a stale end was accepted");
  return false;
}

static void unlock(const struct node *n, const struct claimed *c, const char *phase) {
  if (!n->plain) {
    (void)end_by_dibs(n, c, DIBS__TASK_END_NEXT, phase);
    return;
  }
  if (*phase) sql("UPDATE gateway SET phase = '%s' WHERE %s", phase, mine(n, c));
  sql("UPDATE gateway SET locked_at = %s, updated_at = %s WHERE %s", type->never, ago(0), mine(n, c));
}

/* A creation waits for its certificate: the longer it has waited, the later it looks again. */
static void create(const struct node *n, const struct claimed *c) {
  bool ready =
      strcmp(cell("SELECT COUNT(*) FROM gateway WHERE id = %s AND ready <= %s", c->key, SCENE_NOW_MS), "1") == 0;
  if (ready) {
    if (do_step_and_compare(n, c, SCENE_CREATED)) unlock(n, c, "Created");
  } else if (n->plain) {
    unlock(n, c, "");
  } else {
    (void)end_by_dibs(n, c, DIBS__TASK_END_WAIT, "");
  }
}

static void delete_one(const struct node *n, const struct claimed *c) {
  int step = (int)strtol(cell("SELECT step FROM gateway WHERE id = %s", c->key), NULL, 10);
  /* A node before this one may have died between its last step and the end of its claim. */
  if (step < SCENE_STEPS && !do_step_and_compare(n, c, step++)) return;
  unlock(n, c, step >= SCENE_STEPS ? "Deleted" : "");
}

static void tick(const struct node *n) {
  struct claimed c = {.key = ""};
  bool got = n->plain ? claim_by_sql(&c) : claim_by_dibs(n, &c);
  if (got && strcmp(c.phase, "Creating") == 0)
    create(n, &c);
  else if (got)
    delete_one(n, &c);
}

int main(int argc, char *argv[]) {
  if (argc != 4) return 2;
  struct node n = {.number = (int)strtol(argv[2], NULL, 10),
                   .shared = strcmp(argv[3], "shared") == 0,
                   .plain = strcmp(argv[3], "plain") == 0};
  char *uri_alone[] = {argv[0], argv[1], NULL};
  bed_begin(2, uri_alone);
  (void)case_begin(NULL);
  scene_type();
  if (!n.plain) {
    n.store = store_open();
    n.table = TABLE(.table = "gateway", .key = "id", .phase = "phase", .locked_at = "locked_at",
                    .updated_at = "updated_at", .fence = "fence");
  }
  (void)connection();
  for (;; dibs__nap_ms(SCENE_TICK_MS)) tick(&n);
}
