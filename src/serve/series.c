/* SPDX-License-Identifier: MIT */
/*
 * GET /v1/series: the last hour in points, for charts.  One thread reads the counters of this server's handle and the
 * tasks of each kind every STEP_MS; what it keeps is bounded.
 */
#include "dibs/admin.h"
#include "serve/kinds.h"
#include "serve/server.h"
#include "serve/task_count.h"

#include <stdlib.h>
#include <string.h>

enum {
  STEP_MS = 10000,
  POINTS = 360,      /* an hour */
  KEPT = POINTS + 1, /* with that of the step that is being taken */
  LINES_MAX = 200    /* of 3 KiB */
};

/* The lines of each kind of tasks. */
enum { OF_KIND = 5 };
static const char *const kind_words[OF_KIND] = {"tasks_ready", "tasks_claimed", "tasks_dead", "tasks_done",
                                                "tasks_oldest_ms"};
/* The lines of each tier. */
static const char *const tier_words[] = {"tier_buckets", "tier_down", "tier_breaker", "tier_clients_down",
                                         "tier_failures"};

struct line {
  char name[40], of[DIBS_NAME_MAX + 1]; /* of: a kind or a tier; "": the whole */
  int64_t points[KEPT];                 /* by step modulo KEPT */
  uint64_t from, last;                  /* steps that have a point */
};

struct series {
  struct server *server;
  dibs__thread *thread;
  dibs__word word;
  atomic_bool stopping;
  dibs__mutex lock; /* guards what follows */
  struct line *lines[LINES_MAX];
  size_t count;
  uint64_t step;   /* the newest that is complete; 0: none */
  int64_t wall_ms; /* its instant */
  /* The latest answer: until the next step, all that want as many points get the same. */
  struct dibs__json answer;
  uint64_t answer_step, answer_points; /* of it; 0: there is none */
};

/* ---- Keeping ---- */

/* NULL: there are too many, or the kind was written by SQL and is longer than names are. */
static struct line *find_line_locked(struct series *series, const char *name, const char *of) {
  for (size_t i = 0; i < series->count; i++)
    if (strcmp(series->lines[i]->name, name) == 0 && strcmp(series->lines[i]->of, of) == 0) return series->lines[i];
  if (series->count == LINES_MAX || strlen(name) >= sizeof series->lines[0]->name ||
      strlen(of) >= sizeof series->lines[0]->of)
    return NULL;
  struct line *line = calloc(1, sizeof *line);
  if (!line) return NULL;
  memcpy(line->name, name, strlen(name) + 1);
  memcpy(line->of, of, strlen(of) + 1);
  series->lines[series->count++] = line;
  return line;
}

static void add_point(struct series *series, const char *name, const char *of, int64_t value) {
  dibs__mutex_lock(&series->lock);
  struct line *line = find_line_locked(series, name, of);
  uint64_t step = series->step + 1;
  if (line) {
    if (line->last + 1 != step) line->from = step;
    line->last = step;
    line->points[step % KEPT] = value;
  }
  dibs__mutex_unlock(&series->lock);
}

/* Lines that had no point for an hour make way for others. */
static void end_step(struct series *series) {
  dibs__mutex_lock(&series->lock);
  series->step++;
  series->wall_ms = dibs__wall_ms();
  for (size_t i = 0; i < series->count; i++) {
    if (series->lines[i]->last + POINTS > series->step) continue;
    free(series->lines[i]);
    series->lines[i--] = series->lines[--series->count];
  }
  dibs__mutex_unlock(&series->lock);
}

/* ---- Reading ---- */

static bool keeps_of_tier(const char *name) {
  for (size_t i = 0; i < sizeof tier_words / sizeof *tier_words; i++)
    if (strcmp(tier_words[i], name) == 0) return true;
  return false;
}

static int add_metric(const dibs_metric *metric, void *user) {
  if (metric->kind <= DIBS_GAUGE && (!metric->tier || keeps_of_tier(metric->name)))
    add_point(user, metric->name, metric->tier ? metric->tier : "", (int64_t)metric->value);
  return 0;
}

static bool add_kind(const struct kind_row *row, void *user) {
  const int64_t values[OF_KIND] = {(int64_t)row->states[DIBS_TASK_READY], (int64_t)row->states[DIBS_TASK_CLAIMED],
                                   (int64_t)row->states[DIBS_TASK_DEAD], (int64_t)row->states[DIBS_TASK_DONE],
                                   row->oldest_ms > 0 ? row->oldest_ms : 0};
  for (size_t i = 0; i < OF_KIND; i++) add_point(user, kind_words[i], row->kind, values[i]);
  return true;
}

/* What the store does not answer has no point in this step. */
static void take_step(struct series *series) {
  int64_t age_ms;
  dibs__task_counts_step(series->server);
  (void)!dibs_metrics(series->server->store, add_metric, series, NULL);
  dibs__kinds_count(series->server);
  (void)!dibs__kinds_read(series->server, add_kind, series, &age_ms, NULL);
  end_step(series);
}

static void keep_hour(void *arg) {
  struct series *series = arg;
  dibs__tick due = dibs__tick_now();
  while (!atomic_load(&series->stopping)) {
    uint32_t seen = atomic_load(&series->word);
    if (!dibs__tick_before(dibs__tick_now(), due)) {
      take_step(series);
      due = dibs__tick_add_ms(due, STEP_MS);
      if (dibs__tick_before(due, dibs__tick_now())) due = dibs__tick_now();
    } else if (!atomic_load(&series->stopping)) {
      dibs__word_wait(&series->word, seen, due, false);
    }
  }
}

/* ---- The request ---- */

struct series_in {
  int64_t points;
};
static const struct field series_fields[] = {{.name = "points",
                                              .place = FIELD_QUERY,
                                              .kind = FIELD_NUMBER,
                                              .at = offsetof(struct series_in, points),
                                              .least = 1,
                                              .most = POINTS,
                                              .help = "only the newest; all, an hour, if it is not given"},
                                             {.name = NULL}};

static void write_line(struct dibs__json *j, const struct line *line, uint64_t from, uint64_t to) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", line->name);
  dibs__json_text(j, "label", *line->of ? line->of : NULL);
  dibs__json_open(j, "points", '[');
  for (uint64_t step = from; step <= to; step++)
    dibs__json_known(j, NULL, line->points[step % KEPT], step >= line->from && step <= line->last);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
}

static void write_answer_locked(struct series *series, uint64_t most) {
  struct dibs__json *j = &series->answer;
  dibs__json_free(j);
  *j = (struct dibs__json){0};
  uint64_t from = series->step > most ? series->step - most + 1 : 1;
  dibs__json_open(j, NULL, '{');
  dibs__json_int(j, "step_ms", STEP_MS);
  dibs__json_uint(j, "step", series->step);
  dibs__json_int(j, "at_ms", series->wall_ms);
  dibs__json_open(j, "series", '[');
  for (size_t i = 0; i < series->count; i++) write_line(j, series->lines[i], from, series->step);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
  series->answer_step = j->failed ? 0 : series->step;
  series->answer_points = most;
}

static void write_series(struct request *r) {
  const struct series_in *in = r->in;
  struct series *series = r->server->series;
  uint64_t most = in->points == FIELD_UNSET ? POINTS : (uint64_t)in->points;
  struct dibs__json *to = dibs__answer_begin(r, 200);
  dibs__mutex_lock(&series->lock);
  if (series->answer_step != series->step || series->answer_points != most) write_answer_locked(series, most);
  dibs__json_put(to, series->answer.text, series->answer.length);
  to->failed = to->failed || series->answer.failed;
  dibs__mutex_unlock(&series->lock);
}

/* In a thread: an hour of 200 lines has 72,000 numbers, and the loop would do nothing else meanwhile. */
static void get_series(struct request *r) {
  dibs__pool_run(r, write_series, NULL);
}

bool dibs__series_open(struct server *server) {
  struct series *series = server->series = calloc(1, sizeof *series);
  if (!series) return false;
  dibs__mutex_init(&series->lock);
  series->server = server;
  series->thread = dibs__thread_start("dibs-series", keep_hour, series);
  return series->thread != NULL;
}

void dibs__series_close(struct server *server) {
  struct series *series = server->series;
  if (!series) return;
  atomic_store(&series->stopping, true);
  atomic_fetch_add(&series->word, 1);
  dibs__word_wake(&series->word, 1, false);
  dibs__thread_join(series->thread);
  for (size_t i = 0; i < series->count; i++) free(series->lines[i]);
  dibs__json_free(&series->answer);
  dibs__mutex_destroy(&series->lock);
  free(series);
  server->series = NULL;
}

const struct route dibs__series_routes[] = {
    {METHOD_GET, "/v1/series", SCOPE_READ, get_series, sizeof(struct series_in), series_fields, "getSeries", "200",
     "The last hour, a point every ten seconds",
     "Of this daemon: its counters (`acquired`, `lost` and others, since it began) and of each kind the tasks that are "
     "ready, claimed, done and dead.  A point is null when it was not read.",
     NULL},
    {.path = NULL}};
