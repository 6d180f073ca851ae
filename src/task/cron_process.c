/* SPDX-License-Identifier: MIT */
/*
 * A process of a fleet that shares jobs: a thread that is a node (cron_node.h), and a worker whose function looks up
 * the job of a claimed firing and calls the user's.
 *
 * A firing that ran is done, however it ended: a schedule is no retry.  Its end is sent by the thread that ran it, and
 * then its row for the history, so that the claim lasts no longer than the work.
 */
#include "task/cron_node.h"
#include "task/cron_table.h"
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  HISTORY_MS = 1000,
  HISTORY_LOST_MS = 200,    /* after a loss: mostly the store does not answer */
  UNKNOWN_JOB_MS = 3600000, /* how long a firing waits for a process that knows its job: since it was added, */
  UNKNOWN_JOB_CLAIMS = 100, /* and so many claims, with pauses of up to 30 s: it may have been ready much later */
  ENDING_MS = 100           /* how long the thread may take to end if it has nothing to wait for */
};

struct dibs_cron {
  /* Immutable after the start. */
  dibs_store *store; /* held */
  uint32_t flags;
  dibs_firing_fn work;
  void *user;
  dibs_worker *worker;
  dibs__thread *thread;

  struct dibs__cron_node node;         /* of the thread */
  struct dibs__cron_table *node_table; /* held: the jobs of the node */
  _Atomic bool stopping;
  dibs__word word;       /* wakes the thread: another table, or the end */
  dibs__word ended_word; /* goes up when the thread has ended */

  dibs__mutex lock; /* guards what follows */
  struct dibs__cron_table *table;
  bool ended; /* the thread */
  dibs_cron_counts counts;
  dibs_error trouble; /* of the node */
};

typedef struct dibs_cron cron_t;

static void rouse(dibs__word *word) {
  atomic_fetch_add(word, 1);
  dibs__word_wake(word, UINT32_MAX, false);
}

static struct dibs__cron_table *hold_table(cron_t *c) {
  dibs__mutex_lock(&c->lock);
  struct dibs__cron_table *table = dibs__cron_table_hold(c->table);
  dibs__mutex_unlock(&c->lock);
  return table;
}

/* ---- A firing ---- */

struct running {
  dibs_firing firing; /* first */
  dibs__tick began, ended, max_at;
  struct dibs__cron_said said;
};

int64_t dibs_firing_left_ms(const dibs_firing *firing) {
  if (!firing) return 0;
  const struct running *r = (const struct running *)firing;
  int64_t claim_ms = dibs_task_left_ms(firing->task), left_ms = dibs__tick_left_ms(dibs__tick_now(), r->max_at);
  return claim_ms < left_ms ? claim_ms : left_ms;
}

static void count(cron_t *c, uint64_t *counter) {
  dibs__mutex_lock(&c->lock);
  ++*counter;
  dibs__mutex_unlock(&c->lock);
}

/* This process does not know the job, or the task is no firing: for another one, or nobody. */
static dibs_verdict decline(cron_t *c, const dibs_task *task, bool is_firing, dibs_work_reply *reply) {
  count(c, &c->counts.declined);
  if (is_firing && (task->age_ms <= UNKNOWN_JOB_MS || task->attempt <= UNKNOWN_JOB_CLAIMS)) return DIBS_END_WAIT;
  snprintf(reply->text, sizeof reply->text, "%s",
           is_firing ? "no process of the fleet has this job" : "this is no firing of dibs cron");
  return DIBS_END_DEAD;
}

static void describe(const struct running *r, dibs_verdict verdict, const dibs_firing_reply *reply, bool lost,
                     struct dibs__run_row *row) {
  row->how = reply->how;
  row->code = reply->code;
  if (reply->how != DIBS_RUN_DONE && reply->how != DIBS_RUN_FAILED) return;
  if (lost)
    row->how = DIBS__RUN_LOST;
  else if (!dibs__tick_before(r->ended, r->max_at))
    row->how = DIBS__RUN_OVERTIME;
  else if (verdict != DIBS_END_DONE)
    row->how = DIBS__RUN_FAILED;
}

static void keep_history(cron_t *c, const struct running *r, const dibs_firing_reply *reply,
                         struct dibs__run_row *row) {
  dibs__tick now = dibs__tick_now();
  const dibs_task *task = r->firing.task;
  if (c->flags & DIBS_CRON_NO_HISTORY) return;
  row->name = dibs__str_of(r->firing.job, strlen(r->firing.job));
  row->kind = dibs__str_of("cron", strlen("cron"));
  row->command = dibs__str_of(r->firing.command, strlen(r->firing.command));
  row->fence = (dibs__fence){task->fence.value};
  row->nr = task->nr;
  row->began_ms = dibs__tick_left_ms(r->began, now);
  row->ended_ms = dibs__tick_left_ms(r->ended, now);
  size_t length = reply->length ? reply->length : strnlen(reply->text, DIBS_TASK_TEXT_MAX);
  row->output = dibs__str_of(reply->text, length < DIBS_TASK_TEXT_MAX ? length : DIBS_TASK_TEXT_MAX);
  dibs__tick by = dibs__tick_add_ms(now, row->how == DIBS__RUN_LOST ? HISTORY_LOST_MS : HISTORY_MS);
  dibs_status status = dibs__history_put(c->store, row, by, NULL);
  if (status != DIBS_OK && status != DIBS_UNSUPPORTED) count(c, &c->counts.history_lost);
}

/* The firing is done.  The verdict for the worker, which repeats it if the store has not answered. */
static dibs_verdict finish(cron_t *c, const struct running *r, dibs_verdict verdict, const dibs_firing_reply *reply,
                           dibs_work_reply *to) {
  dibs_task *task = r->firing.task;
  struct dibs__run_row row = {.nr = 0};
  bool own = dibs__held_of(task)->ended; /* the user's function has ended the claim */
  bool lost = !own && dibs_task_left_ms(task) == 0;
  describe(r, verdict, reply, lost, &row);
  if (verdict == DIBS_END_DEAD) {
    size_t length = strnlen(reply->text, DIBS_TASK_TEXT_MAX);
    memcpy(to->text, reply->text, length);
    to->text[length] = '\0';
  } else {
    snprintf(to->text, sizeof to->text, "%s %" PRId32, dibs__history_end_name(row.how), row.code);
    verdict = DIBS_END_DONE;
  }
  dibs_status status = DIBS_OK;
  if (!own && !lost)
    status = verdict == DIBS_END_DEAD ? dibs_task_dead(task, to->text, NULL) : dibs_task_done(task, to->text, NULL);
  lost = lost || status == DIBS_STALE || status == DIBS_NOT_FOUND;
  if (lost) describe(r, verdict, reply, lost, &row);
  count(c, lost                                 ? &c->counts.refused
           : verdict == DIBS_END_DEAD           ? &c->counts.dead
           : row.how == (uint32_t)DIBS_RUN_DONE ? &c->counts.done
                                                : &c->counts.failed);
  keep_history(c, r, reply, &row);
  return verdict;
}

static dibs_verdict settle(cron_t *c, const struct running *r, dibs_verdict verdict, dibs_firing_reply *reply,
                           dibs_work_reply *to) {
  static const char no_verdict[] = "the function of the firing returned no verdict";
  static const char no_how[] = "the function of the firing gave no value of dibs_run_end";
  reply->text[DIBS_TASK_TEXT_MAX] = '\0';
  if ((uint32_t)reply->how > DIBS_RUN_NOT_RUN) {
    reply->how = DIBS_RUN_FAILED;
    reply->length = 0;
    memcpy(reply->text, no_how, sizeof no_how);
  }
  switch (verdict) {
  case DIBS_END_DONE:
  case DIBS_END_FAIL:
  case DIBS_END_DEAD:
    return finish(c, r, verdict, reply, to);
  case DIBS_END_WAIT:
    to->delay_ms = reply->delay_ms;
    count(c, &c->counts.repeated);
    return verdict;
  case DIBS_END_NEXT:
    count(c, &c->counts.repeated);
    return verdict;
  case DIBS_END_RELEASE:
    count(c, &c->counts.declined);
    return verdict;
  }
  memcpy(reply->text, no_verdict, sizeof no_verdict);
  reply->length = 0;
  return finish(c, r, DIBS_END_FAIL, reply, to);
}

static dibs_verdict run_firing(cron_t *c, const struct dibs__cron_job *job, struct running *r, dibs_work_reply *to) {
  dibs_firing_reply reply = {.size = sizeof reply, .delay_ms = -1};
  r->firing.size = sizeof r->firing;
  r->firing.job = job->name;
  r->firing.command = job->command;
  r->firing.input = job->input;
  r->firing.environment = job->environment;
  r->firing.at_ms = r->said.at_ms;
  r->firing.by_hand = r->said.by_hand;
  r->firing.timeout_ms = job->timeout_ms;
  r->began = dibs__tick_now();
  r->max_at = job->timeout_ms > 0 ? dibs__tick_add_ms(r->began, job->timeout_ms) : DIBS__TICK_NEVER;
  dibs__mutex_lock(&c->lock);
  c->counts.begun++;
  c->counts.running++;
  dibs__mutex_unlock(&c->lock);
  dibs_verdict verdict = c->work(&r->firing, &reply, c->user);
  r->ended = dibs__tick_now();
  verdict = settle(c, r, verdict, &reply, to);
  dibs__mutex_lock(&c->lock);
  c->counts.running--;
  dibs__mutex_unlock(&c->lock);
  return verdict;
}

/* A dibs_work_fn. */
static dibs_verdict take_firing(dibs_task *task, dibs_work_reply *reply, void *user) {
  cron_t *c = user;
  struct running r = {.firing = {.task = task}};
  struct dibs__cron_table *table = hold_table(c);
  bool is_firing = dibs__cron_read_payload(task->payload, task->length, &r.said);
  const struct dibs__cron_job *job = is_firing ? dibs__crontab_find(table->tab, r.said.job) : NULL;
  dibs_verdict verdict = job ? run_firing(c, job, &r, reply) : decline(c, task, is_firing, reply);
  dibs__cron_table_drop(table);
  return verdict;
}

/* ---- The thread ---- */

static void note_state(cron_t *c) {
  const struct dibs__cron_node *n = &c->node;
  dibs__mutex_lock(&c->lock);
  c->trouble = n->clock_error.status != DIBS_OK ? n->clock_error : n->add_error;
  c->counts.decided = n->decided;
  dibs__mutex_unlock(&c->lock);
}

static void run_node(void *arg) {
  cron_t *c = arg;
  while (!c->stopping) {
    uint32_t seen = atomic_load(&c->word);
    struct dibs__cron_table *table = hold_table(c);
    if (table != c->node_table && dibs__cron_node_take(&c->node, table->tab)) {
      struct dibs__cron_table *before = c->node_table;
      c->node_table = table;
      table = before;
    }
    dibs__cron_table_drop(table);
    dibs__tick due = dibs__cron_node_step(&c->node);
    note_state(c);
    if (!c->stopping) (void)dibs__word_wait(&c->word, seen, due, false);
  }
  dibs__mutex_lock(&c->lock);
  c->ended = true;
  dibs__mutex_unlock(&c->lock);
  rouse(&c->ended_word);
}

/* ---- From the start to the end ---- */

static void free_cron(cron_t *c) {
  dibs_worker_free(c->worker);
  dibs__thread_join(c->thread);
  dibs__cron_node_close(&c->node);
  dibs__cron_table_drop(c->node_table);
  dibs__cron_table_drop(c->table);
  dibs__store_drop(c->store);
  dibs__mutex_destroy(&c->lock);
  free(c);
}

/* NULL: no memory. */
static cron_t *make_cron(dibs_store *store, const char *name, const dibs_cron_options *o,
                         struct dibs__cron_table *table) {
  cron_t *c = calloc(1, sizeof *c);
  if (!c) {
    dibs__cron_table_drop(table);
    return NULL;
  }
  dibs__mutex_init(&c->lock);
  atomic_fetch_add(&store->refs, 1);
  c->store = store;
  c->flags = o->flags;
  c->work = o->work;
  c->user = o->user;
  c->table = table;
  c->node_table = dibs__cron_table_hold(table);
  c->counts.jobs = table->tab->job_count;
  dibs__cron_node_open(&c->node, store, name, &c->stopping);
  if (dibs__cron_node_take(&c->node, table->tab)) return c;
  free_cron(c);
  return NULL;
}

static dibs_status start_worker(cron_t *c, const dibs_cron_options *o, const char *name, dibs_error *error) {
  char kind[DIBS_NAME_MAX + 1];
  /* A firing that waits here could begin elsewhere. */
  dibs_worker_options worker = {.size = sizeof worker,
                                .threads = o->threads,
                                .flags = DIBS_WORKER_NO_PREFETCH,
                                .timeout_ms = o->claim_ms,
                                .owner = o->owner,
                                .work = take_firing,
                                .user = c};
  dibs__cron_kind(name, kind);
  return dibs_worker_start(c->store, kind, &worker, &c->worker, error);
}

static dibs_status check_options(const char *name, const dibs_cron_options *o, dibs_error *error) {
  if (!o->work) return dibs__fail(error, DIBS_INVALID, "dibs_cron_start: work is NULL");
  if (o->flags & ~(uint32_t)DIBS_CRON_NO_HISTORY)
    return dibs__fail(error, DIBS_INVALID, "dibs_cron_start: a flag is not known");
  return dibs__cron_check_name(name, error);
}

static dibs_status start(dibs_store *store, const char *name, const dibs_cron_options *o, cron_t **cron,
                         dibs_error *error) {
  struct dibs__cron_table *table;
  dibs_status status = check_options(name, o, error);
  if (status != DIBS_OK) return status;
  status = dibs__cron_table_read(o->table, &table, error);
  if (status != DIBS_OK) return status;
  cron_t *c = make_cron(store, name, o, table);
  if (!c) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the jobs");
  status = start_worker(c, o, name, error);
  if (status == DIBS_OK && !(c->thread = dibs__thread_start("dibs-cron", run_node, c)))
    status = dibs__fail(error, DIBS_NO_MEMORY, "the system can't start one thread more");
  if (status == DIBS_OK)
    *cron = c;
  else
    free_cron(c);
  return status;
}

dibs_status dibs_cron_start(dibs_store *store, const char *name, const dibs_cron_options *given, dibs_cron **cron,
                            dibs_error *error) {
  dibs_cron_options o = DIBS_CRON_OPTIONS_INIT;
  if (!cron || !given)
    return dibs__fail(error, DIBS_INVALID, "dibs_cron_start: the options or the pointer for the result are NULL");
  *cron = NULL;
  if (dibs__check_size(given->size, sizeof o, "dibs_cron_options", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&o, given, given->size);
  dibs_status status = dibs__enter(store, "dibs_cron_start", error);
  if (status != DIBS_OK) return status;
  status = start(store, name, &o, cron, error);
  dibs__exit(store);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

dibs_status dibs_cron_replace(dibs_cron *c, const dibs_cron_table *given, dibs_error *error) {
  struct dibs__cron_table *table;
  if (!c) return dibs__fail(error, DIBS_INVALID, "dibs_cron_replace: cron is NULL");
  if (dibs__check_process(c->store, "dibs_cron_replace", "cron", error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__cron_table_read(given, &table, error);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&c->lock);
  struct dibs__cron_table *before = c->table;
  c->table = table;
  c->counts.jobs = table->tab->job_count;
  dibs__mutex_unlock(&c->lock);
  dibs__cron_table_drop(before);
  rouse(&c->word);
  return dibs__fine(error);
}

static void stop_adding(cron_t *c) {
  c->stopping = true;
  rouse(&c->word);
}

/* false: `by` has passed. */
static bool wait_for_thread(cron_t *c, dibs__tick by) {
  for (;;) {
    uint32_t seen = atomic_load(&c->ended_word);
    dibs__mutex_lock(&c->lock);
    bool ended = c->ended;
    dibs__mutex_unlock(&c->lock);
    if (ended) return true;
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    (void)dibs__word_wait(&c->ended_word, seen, by, false);
  }
}

dibs_status dibs_cron_stop(dibs_cron *c, int64_t wait_ms, dibs_error *error) {
  if (!c) return dibs__fail(error, DIBS_INVALID, "dibs_cron_stop: cron is NULL");
  if (wait_ms < 0 && wait_ms != DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %" PRId64 ": give 0, a time in ms, or DIBS_FOREVER", wait_ms);
  if (dibs__check_process(c->store, "dibs_cron_stop", "cron", error) != DIBS_OK) return DIBS_INVALID;
  dibs__tick now = dibs__tick_now();
  dibs__tick by =
      wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(now, wait_ms > ENDING_MS ? wait_ms : ENDING_MS);
  stop_adding(c);
  dibs_status status = dibs_worker_stop(c->worker, wait_ms, error);
  if (status != DIBS_OK || wait_for_thread(c, by)) return status;
  return dibs__fail(error, DIBS_TIMEOUT, "a request that adds firings is still under way");
}

void dibs_cron_free(dibs_cron *c) {
  if (!c || !dibs__is_of_this_process(c->store)) return; /* a child's copy has no threads to join */
  stop_adding(c);
  free_cron(c);
}

dibs_status dibs_cron_count(dibs_cron *c, dibs_cron_counts *counts, dibs_error *error) {
  if (!c || !counts) return dibs__fail(error, DIBS_INVALID, "dibs_cron_count: cron or counts is NULL");
  size_t size = counts->size;
  if (dibs__check_size(size, sizeof *counts, "dibs_cron_counts", error) != DIBS_OK) return DIBS_INVALID;
  if (dibs__check_process(c->store, "dibs_cron_count", "cron", error) != DIBS_OK) return DIBS_INVALID;
  dibs__mutex_lock(&c->lock);
  memcpy(counts, &c->counts, size);
  dibs__mutex_unlock(&c->lock);
  counts->size = size;
  return dibs__fine(error);
}

void dibs_cron_trouble(dibs_cron *c, dibs_error *error) {
  if (!error) return;
  dibs_worker_trouble(c ? c->worker : NULL, error);
  if (!c || error->status != DIBS_OK) return;
  dibs__mutex_lock(&c->lock);
  *error = c->trouble;
  dibs__mutex_unlock(&c->lock);
}
