/* SPDX-License-Identifier: MIT */
/*
 * The sides of `dibs bench task` that measure what claims cost beside other rows: rows of the same kind that wait or
 * are finished, dead rows that a snapshot keeps, keys; and what remains after a crash.
 *
 * A million rows would take minutes to add by calls, so these sides insert them by SQL of their own, and delete them
 * afterwards.
 */
#include "lab/bench_task.h"
#include "lab/lab.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { CLAIM_OF = 10, CLAIMS_LEAST = 50, KEYS_BATCH = 100, SQL_MS = 300000, SQL_TEXT = 600 };
#define LATER "4102444800000" /* 2100: neither due nor to be purged in this run */

/* ---- Rows by SQL ---- */

struct rows {
  struct bench_queue queue;
  struct lab_connection *connection;
  struct lab_line line, snapshot; /* for inserting; holds a snapshot */
};

static bool run_sql(struct rows *r, struct lab_line *line, const char *text) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SQL_MS);
  if (dibs__lab_run_sql_by(line, text, NULL, 0, by, false) == DIBS__SQL_OK) return true;
  return dibs__bench_fail(r->queue.b, "%.80s...: %s", text, line->wire->message);
}

/* Rows of the kind: one, and then as many again as are there.  `numbered`: the table does not count its column nr, and
 * these have numbers far above those that the store gives. */
static bool insert(struct rows *r, const char *table, bool numbered, const char *columns, const char *values,
                   uint32_t count) {
  char text[SQL_TEXT], number[32] = "";
  const char *kind = r->queue.kind, *nr = numbered ? "nr, " : "";
  snprintf(text, sizeof text, "INSERT INTO %s (kind, %s%s) VALUES ('%s', %s%s)", table, nr, columns, kind,
           numbered ? "1000000000000000, " : "", values);
  if (!run_sql(r, &r->line, text)) return false;
  for (uint32_t have = 1, more; have < count; have += more) {
    more = count - have < have ? count - have : have;
    if (numbered) snprintf(number, sizeof number, "nr + %u, ", have);
    snprintf(text, sizeof text, "INSERT INTO %s (kind, %s%s) SELECT kind, %s%s FROM %s WHERE kind = '%s' LIMIT %u",
             table, nr, columns, number, columns, table, kind, more);
    if (!run_sql(r, &r->line, text)) return false;
  }
  return true;
}

static bool insert_waiting(struct rows *r, uint32_t count) {
  return insert(r, "dibs_task", false, "state, due", "3, " LATER, count);
}

static bool insert_finished(struct rows *r, uint32_t count) {
  return insert(r, "dibs_task_done", true, "state, until, fence, attempts, fails, tries, priority, made, at, phase",
                "6, " LATER ", 1, 1, 0, 10, 0, 1, 1, ''", count);
}

static bool is_postgres(const struct rows *r) {
  return strcmp(r->line.wire->engine->name, "PostgreSQL") == 0;
}

/* So that a claim has the same plan whenever the server last looked at the table. */
static bool settle(struct rows *r) {
  if (!is_postgres(r)) return true;
  return run_sql(r, &r->line, "VACUUM ANALYZE dibs_task") && run_sql(r, &r->line, "VACUUM ANALYZE dibs_task_done");
}

static bool hold_snapshot(struct rows *r) {
  struct dibs__result result;
  if (dibs__lab_line_open(r->connection, &r->snapshot, &result)) return dibs__bench_fail(r->queue.b, "%s", result.text);
  bool mysql = !r->snapshot.own && !is_postgres(r);
  const char *begin = mysql            ? "START TRANSACTION WITH CONSISTENT SNAPSHOT"
                      : is_postgres(r) ? "BEGIN ISOLATION LEVEL REPEATABLE READ"
                                       : "BEGIN";
  return run_sql(r, &r->snapshot, begin) && run_sql(r, &r->snapshot, "SELECT max(nr) FROM dibs_task");
}

static bool rows_open(struct bench *b, struct rows *r) {
  struct dibs__result result;
  if (!dibs__bench_queue_open(b, &r->queue)) return false;
  if (dibs__lab_connection_open(b->store, &r->connection, &result) ||
      dibs__lab_line_open(r->connection, &r->line, &result))
    return dibs__bench_fail(b, "this case needs a store with SQL: %s", result.text);
  return true;
}

static bool rows_close(struct rows *r, bool done) {
  char text[SQL_TEXT];
  dibs__lab_line_close(&r->snapshot);
  for (int i = 0; r->line.wire && i < 2; i++) {
    snprintf(text, sizeof text, "DELETE FROM %s WHERE kind = '%s'", i ? "dibs_task_done" : "dibs_task", r->queue.kind);
    done = run_sql(r, &r->line, text) && done;
  }
  if (r->line.wire) done = settle(r) && done;
  dibs__lab_line_close(&r->line);
  dibs__lab_connection_close(r->connection);
  return dibs__bench_queue_close(&r->queue, done);
}

/* ---- Claims beside them ---- */

static bool make_dead(struct rows *r, uint32_t count) {
  struct bench_queue *q = &r->queue;
  char why[640];
  if (!hold_snapshot(r) || !dibs__bench_queue_add(q, count, NULL, 0)) return false;
  for (size_t some = 1; some > 0;) {
    dibs__tick claimed;
    some = 0;
    if (!dibs__bench_batch(q->store, q->kind, NULL, BENCH_BATCH_MAX, 0, &some, &claimed, NULL, NULL, why, sizeof why))
      return dibs__bench_fail(q->b, "%s", why);
  }
  return true;
}

static bool prepare(struct rows *r, uint32_t arg) {
  const struct bench_size *size = &r->queue.b->size;
  switch (arg) {
  case BENCH_ROWS_FEW:
  case BENCH_ROWS_MANY: {
    uint32_t count = (arg == BENCH_ROWS_FEW ? size->rows_few : size->rows_many) / 2;
    return insert_waiting(r, count) && insert_finished(r, count) && settle(r);
  }
  case BENCH_ROWS_DEAD:
    return settle(r) && make_dead(r, size->rows);
  case BENCH_ROWS_FINISHED:
    return insert_finished(r, size->rows) && settle(r);
  default:
    return settle(r);
  }
}

bool dibs__bench_side_rows(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct rows r = {.connection = NULL};
  struct bench_drain drain = {.queue = &r.queue, .clients = 1, .batch = CLAIM_OF, .claims = true};
  uint32_t tasks = (uint32_t)(b->size.ms * 2) + CLAIMS_LEAST * CLAIM_OF;
  bool done = rows_open(b, &r) && prepare(&r, arg) && dibs__bench_queue_add(&r.queue, tasks, NULL, 0) &&
              dibs__bench_drain(&drain, sample);
  return rows_close(&r, done);
}

/* ---- Keys ---- */

/* The first tasks of so many keys fail for good, which parks these keys. */
static bool park(struct bench_queue *queue, uint32_t count) {
  dibs_claim_options options = {.size = sizeof options, .most = count};
  dibs_task *tasks[BENCH_BATCH_MAX];
  dibs_task_end ends[BENCH_BATCH_MAX];
  dibs_error error;
  size_t got;
  if (dibs_tasks_claim(queue->store, queue->kind, &options, tasks, &got, &error))
    return dibs__bench_fail(queue->b, "cannot claim: %s", error.text);
  for (size_t i = 0; i < got; i++)
    ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_DEAD, .text = "poisoned"};
  dibs_status status = dibs_task_end_many(NULL, ends, got, &error);
  for (size_t i = 0; i < got; i++) dibs_task_free(tasks[i]);
  uint64_t parked = 0;
  if (status) return dibs__bench_fail(queue->b, "cannot end tasks: %s", error.text);
  if (!dibs__bench_queue_count(queue, DIBS_TASK_PARKED, &parked)) return false;
  return parked == count || dibs__bench_fail(queue->b, "%" PRIu64 " keys of %u are parked", parked, count);
}

/* A claim with lanes, so that the kind is by lane when its tasks are added. */
static bool begin_lanes(struct bench_queue *queue) {
  struct bench_lanes lanes = {.member = NULL}, *member = &lanes;
  size_t count;
  dibs__tick claimed;
  char why[640] = "";
  bool done = dibs__bench_lanes_join(queue->b, queue->store, queue->kind, &lanes) &&
              dibs__bench_lanes_settle(queue->b, &member, 1);
  if (done &&
      !dibs__bench_batch(queue->store, queue->kind, &lanes, 1, 0, &count, &claimed, NULL, NULL, why, sizeof why))
    done = dibs__bench_fail(queue->b, "%s", why);
  dibs__bench_lanes_leave(&lanes);
  return done;
}

bool dibs__bench_side_keys(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct bench_queue queue;
  struct bench_drain drain = {
      .queue = &queue, .clients = BENCH_TASK_CLIENTS, .batch = KEYS_BATCH, .by_lane = arg == BENCH_KEYS_LANES};
  uint32_t tasks = (uint32_t)(b->size.ms * 50), keys = arg == BENCH_KEYS_NONE ? 0 : b->size.keys;
  bool done = dibs__bench_queue_open(b, &queue);
  if (done && keys) done = dibs__bench_queue_add(&queue, keys, NULL, keys) && park(&queue, b->size.parked);
  if (done && drain.by_lane) done = begin_lanes(&queue);
  done = done && dibs__bench_queue_add(&queue, tasks, NULL, keys) && dibs__bench_drain(&drain, sample);
  return dibs__bench_queue_close(&queue, done);
}

/* ---- A crash ---- */

/*
 * Two processes drain a queue.  For each task they count one effect in memory that outlives them, and then end it.  One
 * of them is killed when half is done.  The other continues, and claims what the first had when the time of those
 * claims is over.
 */
enum { CRASH_PROCESSES = 2, CRASH_BATCH = 100, CRASH_TIMEOUT_MS = 1000, CRASH_LOOK_MS = 1 };

static void count_effect(const dibs_task *task, void *user) {
  struct bench_page *page = user;
  uint64_t at = task->nr - page->first;
  if (at < BENCH_EFFECTS) atomic_fetch_add(&page->effects[at], 1);
}

bool dibs__bench_role_tasks(struct bench_page *page, struct bench_child *child) {
  dibs_store *store;
  dibs_error error;
  if (dibs_open(page->store, NULL, &store, &error)) return dibs__bench_child_fail(child, "%s", error.text);
  dibs__bench_child_ready(page);
  bool fine = true;
  while (fine && !atomic_load(&page->stop)) {
    size_t count = 0;
    dibs__tick claimed;
    fine = dibs__bench_batch(store, page->kind, NULL, CRASH_BATCH, CRASH_TIMEOUT_MS, &count, &claimed, count_effect,
                             page, child->why, sizeof child->why);
    if (fine && !count) dibs__nap_ms(CRASH_LOOK_MS);
  }
  dibs_close(store);
  return fine;
}

/* Of `tasks`: with an effect, and with more than one. */
static void effects_of(struct bench_page *page, uint32_t *some, uint32_t *more) {
  *some = *more = 0;
  for (uint32_t i = 0; i < BENCH_EFFECTS; i++) {
    unsigned effects = atomic_load_explicit(&page->effects[i], memory_order_relaxed);
    *some += effects > 0;
    *more += effects > 1;
  }
}

static bool crash_one(struct bench *b, struct bench_page *page, uint32_t tasks) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SQL_MS);
  for (uint32_t some = 0, more; some < tasks / 2; dibs__nap_ms(CRASH_LOOK_MS)) {
    effects_of(page, &some, &more);
    if (dibs__tick_before(by, dibs__tick_now())) return dibs__bench_fail(b, "half of the tasks were not done in time");
  }
  pid_t pid = page->child[0].pid;
  page->child[0].pid = 0;
  kill(pid, SIGKILL);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
  return true;
}

static bool all_ended(struct bench_queue *queue, uint64_t *done) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SQL_MS);
  do {
    if (!dibs__bench_queue_count(queue, DIBS_TASK_DONE, done)) return false;
    if (*done >= queue->added) return true;
    dibs__nap_ms(50);
  } while (dibs__tick_before(dibs__tick_now(), by));
  return true; /* what is missing is lost */
}

static bool crash_run(struct bench_queue *queue, struct bench_page *page, int fd, struct bench_sample *sample) {
  struct bench *b = queue->b;
  uint64_t ended = 0;
  uint32_t some, twice;
  snprintf(page->kind, sizeof page->kind, "%s", queue->kind);
  page->role = BENCH_ROLE_TASKS;
  page->first = queue->first;
  if (!dibs__bench_children_start(b, page, fd, CRASH_PROCESSES)) return false;
  dibs__tick from = dibs__tick_now();
  dibs__bench_children_go(page);
  bool done = crash_one(b, page, (uint32_t)queue->added) && all_ended(queue, &ended);
  int64_t ns = dibs__tick_now().ns - from.ns;
  done = dibs__bench_children_end(b, page, CRASH_PROCESSES) && done;
  effects_of(page, &some, &twice);
  uint64_t least = some < ended ? some : ended;
  sample->value[BENCH_RATE] = (double)ended * 1e9 / (double)ns;
  sample->value[BENCH_LOST] = (double)(queue->added - least);
  sample->value[BENCH_TWICE] = twice;
  return done;
}

bool dibs__bench_side_crash(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  struct bench_queue queue;
  int fd;
  struct bench_page *page = dibs__bench_page_new(b, &fd);
  if (!page) return false;
  bool done = dibs__bench_queue_open(b, &queue) && dibs__bench_queue_add(&queue, b->size.crash, NULL, 0) &&
              crash_run(&queue, page, fd, sample);
  dibs__bench_page_free(page, fd);
  return dibs__bench_queue_close(&queue, done);
}
