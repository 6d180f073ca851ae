/* SPDX-License-Identifier: MIT */
#include "task/cron_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CLOCK_MS = 10000, /* between two reads of the store's clock */
  AGAIN_MS = 1000,  /* after a failure of the store */
  FOLLOW_MS = 250,  /* at most, behind the nodes that are faster */
  SAVE_AFTER = 500  /* firings; then the decisions are kept, so that other nodes need not make them, too */
};

typedef struct dibs__cron_node node_t;

/* ---- The store's clock ---- */

static int64_t store_now(const node_t *n) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + n->offset_ms;
}

static void read_clock(node_t *n) {
  struct dibs__store_clock clock;
  dibs_status status = dibs__cron_clock(n->store, &clock, &n->clock_error);
  n->clock_at = dibs__tick_add_ms(dibs__tick_now(), status == DIBS_OK ? CLOCK_MS : AGAIN_MS);
  if (status != DIBS_OK) return;
  n->clock_error = (dibs_error){0};
  /* Never ahead of the store: an instant may fire a little late, and not early. */
  n->offset_ms = clock.ms - clock.after.ns / DIBS__NS_PER_MS - 1;
  n->has_clock = true;
}

/* ---- What is known ---- */

static void plan_job(node_t *n, size_t i) {
  struct dibs__cron_plan *plan = &n->plans[i];
  const struct dibs__cron_line *line = dibs__cron_state_find(&n->known, plan->digest);
  plan->next_ms = line ? dibs__cron_next(&n->tab->jobs[i], line->decided_ms) : 0;
}

/* The first instant of all jobs that is not decided; 0: a job is new. */
static int64_t first_due(const node_t *n) {
  int64_t first = INT64_MAX;
  for (size_t i = 0; i < n->tab->job_count; i++)
    if (n->plans[i].next_ms < first) first = n->plans[i].next_ms;
  return first;
}

static int64_t decided_of(const struct dibs__cron_state *state, uint64_t job) {
  const struct dibs__cron_line *line = dibs__cron_state_find(state, job);
  return line ? line->decided_ms : -1;
}

/* Replaces what this node knows by what all know, but never by an earlier decision of a job.  *all is taken over. */
static void learn(node_t *n, struct dibs__cron_state *all) {
  struct dibs__cron_state before = n->known;
  for (size_t i = 0; i < before.count; i++) {
    struct dibs__cron_line *line = dibs__cron_state_find(all, before.lines[i].job);
    if (line && line->decided_ms < before.lines[i].decided_ms) line->decided_ms = before.lines[i].decided_ms;
  }
  n->known = *all;
  *all = (struct dibs__cron_state){0};
  for (size_t i = 0; i < n->tab->job_count; i++)
    if (decided_of(&before, n->plans[i].digest) != decided_of(&n->known, n->plans[i].digest)) plan_job(n, i);
  dibs__cron_state_free(&before);
}

/* ---- Deciding ---- */

struct deciding {
  node_t *node;
  int64_t now_ms;
  struct dibs__cron_line *changes;
  size_t count, fired; /* since they were kept */
  bool kept;           /* some decision was this node's */
};

/* Whether all firings of the decision are in the store.  If only some are, the next decision finds their tokens. */
static bool fire_job(struct deciding *d, const struct dibs__cron_job *job, const struct dibs__cron_decision *decision,
                     struct dibs__cron_line *change) {
  node_t *n = d->node;
  for (size_t i = 0; i < decision->count; i++) {
    bool skipped;
    uint64_t nr;
    if (dibs__cron_fire(n->store, n->space, job, &decision->due[i], NULL, &skipped, &nr, &n->add_error) != DIBS_OK)
      return false;
    change->skipped += skipped;
    d->fired++;
    n->decided++;
  }
  return true;
}

/* A new job does not fire for the past.  false: the store failed, and nothing of this job is decided. */
static bool decide_job(struct deciding *d, size_t i) {
  struct dibs__cron_decision decision;
  const struct dibs__cron_job *job = &d->node->tab->jobs[i];
  const struct dibs__cron_plan *plan = &d->node->plans[i];
  struct dibs__cron_line change = {.job = plan->digest, .decided_ms = d->now_ms};
  if (plan->next_ms > d->now_ms) return true;
  if (plan->next_ms > 0) {
    dibs__cron_decide(job, decided_of(&d->node->known, plan->digest), d->now_ms, &decision);
    change.decided_ms = decision.decided_ms;
    change.missed = decision.missed;
    change.last_missed = decision.last_missed;
    if (!fire_job(d, job, &decision, &change)) return false;
  }
  d->changes[d->count++] = change;
  return true;
}

/* Keeps the decisions up to here. */
static bool keep(struct deciding *d) {
  node_t *n = d->node;
  struct dibs__cron_state all = {0};
  size_t kept = 0;
  if (d->count == 0) return true;
  dibs_status status = dibs__cron_save(n->store, n->space, d->changes, d->count, d->now_ms, &all, &kept, &n->add_error);
  if (status == DIBS_OK) learn(n, &all);
  dibs__cron_state_free(&all);
  d->kept = d->kept || kept > 0;
  d->count = d->fired = 0;
  return status == DIBS_OK;
}

static bool decide_all(struct deciding *d) {
  bool fine = true;
  for (size_t i = 0; i < d->node->tab->job_count && fine && !*d->node->stop; i++) {
    fine = decide_job(d, i);
    if (fine && d->fired >= SAVE_AFTER) fine = keep(d);
  }
  return keep(d) && fine;
}

/* First what others have decided meanwhile is read; then the rest is decided, added, and kept.  If a node dies in
 * between, another one decides the same again.  true: done. */
static bool decide(node_t *n) {
  struct dibs__cron_state all;
  struct deciding d = {.node = n};
  dibs_status status = dibs__cron_load(n->store, n->space, &all, &n->add_error);
  if (status == DIBS_OK) learn(n, &all);
  dibs__cron_state_free(&all);
  if (status != DIBS_OK) return false;
  d.now_ms = store_now(n);
  n->follows = first_due(n) > d.now_ms; /* another node has decided all of it */
  if (n->follows) return true;
  d.changes = calloc(n->tab->job_count + 1, sizeof *d.changes);
  if (!d.changes) return false;
  bool fine = decide_all(&d);
  if (fine) n->follows = !d.kept;
  free(d.changes);
  return fine;
}

/* When to decide next, by this machine's clock. */
static void plan_decision(node_t *n) {
  int64_t due_ms = n->tab ? first_due(n) : INT64_MAX, behind_ms = 0;
  uint32_t draw;
  if (due_ms == INT64_MAX) {
    n->decide_at = DIBS__TICK_NEVER;
    return;
  }
  if (n->follows) {
    dibs__random(&draw, sizeof draw);
    behind_ms = (int64_t)(draw % FOLLOW_MS);
  }
  int64_t in_ms = due_ms - store_now(n) + behind_ms;
  n->decide_at = dibs__tick_add_ms(dibs__tick_now(), in_ms > 0 ? in_ms : 0);
}

/* ---- The node ---- */

void dibs__cron_node_open(node_t *n, dibs_store *store, const char *space, const _Atomic bool *stop) {
  *n = (node_t){.store = store, .stop = stop};
  snprintf(n->space, sizeof n->space, "%s", space);
}

void dibs__cron_node_close(node_t *n) {
  dibs__cron_state_free(&n->known);
  free(n->plans);
  *n = (node_t){0};
}

bool dibs__cron_node_take(node_t *n, const struct dibs__crontab *tab) {
  struct dibs__cron_plan *plans = calloc(tab->job_count + 1, sizeof *plans);
  if (!plans) return false;
  free(n->plans);
  n->plans = plans;
  n->tab = tab;
  for (size_t i = 0; i < tab->job_count; i++) {
    plans[i].digest = dibs__cron_job_digest(&tab->jobs[i]);
    plan_job(n, i);
  }
  plan_decision(n);
  return true;
}

dibs__tick dibs__cron_node_step(node_t *n) {
  if (!dibs__tick_before(dibs__tick_now(), n->clock_at)) {
    read_clock(n);
    if (n->decide_at.ns != DIBS__TICK_NEVER.ns) plan_decision(n);
  }
  if (n->has_clock && !*n->stop && !dibs__tick_before(dibs__tick_now(), n->decide_at)) {
    bool fine = decide(n);
    if (fine) n->add_error = (dibs_error){0};
    plan_decision(n);
    dibs__tick again = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MS);
    if (!fine && dibs__tick_before(n->decide_at, again)) n->decide_at = again;
  }
  return n->has_clock ? dibs__tick_min(n->clock_at, n->decide_at) : n->clock_at;
}
