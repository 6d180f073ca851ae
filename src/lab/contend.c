/* SPDX-License-Identifier: MIT */
/*
 * Contend: the same users on more and more rows, so that they meet less and less.  Optimistic writing pays for each
 * meeting with work done again, locking with waiting, coalescing with nothing: where do they cross?
 */
#include "lab/lab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEATS = 1000000000, WAYS_MAX = 8 };

static const struct lab_column columns[] = {
    {"rows", "rows", LAB_COUNT},           {"strategy", "strategy", LAB_TEXT}, {"per_second", "bookings/s", LAB_RATE},
    {"p50_ms", "p50 ms", LAB_MS},          {"p99_ms", "p99 ms", LAB_MS},       {"conflicts", "conflicts", LAB_COUNT},
    {"deadlocks", "deadlocks", LAB_COUNT}, {"gave_up", "gave up", LAB_COUNT},  {"verdict", "verdict", LAB_TEXT},
};
static const struct lab_column best_columns[] = {
    {"rows", "rows", LAB_COUNT},
    {"best", "ahead", LAB_TEXT},
    {"per_second", "bookings/s", LAB_RATE},
    {"times", "of the last one", LAB_TIMES},
    {"last", "last", LAB_TEXT},
};

struct contend {
  struct lab *lab;
  const struct lab_way *way[WAYS_MAX];
  size_t ways;
  double rate[LAB_LIST_MAX][WAYS_MAX];
  bool done[LAB_LIST_MAX][WAYS_MAX];
};

static void choose(struct contend *c) {
  static const char *const usual[] = {"coalesced", "atomic", "pessimistic", "optimistic"};
  for (size_t i = 0; i < dibs__lab_way_count && c->ways < WAYS_MAX; i++) {
    const struct lab_way *way = &dibs__lab_ways[i];
    bool wanted = c->lab->strategies != NULL;
    for (size_t n = 0; n < sizeof usual / sizeof *usual; n++) wanted = wanted || strcmp(usual[n], way->name) == 0;
    if (wanted && dibs__lab_way_wanted(c->lab, way)) c->way[c->ways++] = way;
  }
}

static bool one(struct contend *c, size_t nth, size_t w, struct lab_table *table, struct lab_series *series) {
  struct lab *lab = c->lab;
  struct lab_sheet *s = &lab->sheet;
  struct lab_audit audit;
  struct lab_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__lab_fail(lab, "out of memory");
  crew->way = c->way[w];
  crew->users = lab->users[0];
  crew->rows = lab->rows[nth];
  crew->ms = lab->ms;
  bool fine = dibs__lab_try(lab, crew, SEATS, &audit);
  if (fine) {
    struct lab_verdict verdict = dibs__lab_judge(lab, crew, &audit);
    c->rate[nth][w] = (double)crew->done / crew->seconds;
    c->done[nth][w] = crew->done > 0;
    dibs__lab_put(s, table, crew->rows);
    dibs__lab_put_text(s, table, LAB_PLAIN, crew->way->name);
    dibs__lab_put(s, table, c->rate[nth][w]);
    dibs__lab_put(s, table, (double)dibs__hist_percentile(&crew->hist, 50) / 1e6);
    dibs__lab_put(s, table, (double)dibs__hist_percentile(&crew->hist, 99) / 1e6);
    dibs__lab_put(s, table, (double)crew->conflicts);
    dibs__lab_put(s, table, (double)crew->deadlocks);
    dibs__lab_put(s, table, (double)(crew->given_up + crew->absent));
    dibs__lab_put_text(s, table, verdict.mood, verdict.text);
    if (crew->done) dibs__lab_point(s, series, crew->rows, c->rate[nth][w]);
    if (crew->why[0]) dibs__lab_note(s, "%s on %u rows: %s", crew->way->name, crew->rows, crew->why);
  }
  free(crew);
  return fine;
}

static void best(struct contend *c, struct lab_table *table) {
  struct lab_sheet *s = &c->lab->sheet;
  for (size_t n = 0; n < c->lab->rows_count; n++) {
    size_t first = WAYS_MAX, last = WAYS_MAX;
    for (size_t w = 0; w < c->ways; w++) {
      if (!c->done[n][w]) continue;
      if (first == WAYS_MAX || c->rate[n][w] > c->rate[n][first]) first = w;
      if (last == WAYS_MAX || c->rate[n][w] < c->rate[n][last]) last = w;
    }
    if (first == WAYS_MAX) continue;
    dibs__lab_put(s, table, c->lab->rows[n]);
    dibs__lab_put_text(s, table, LAB_PLAIN, c->way[first]->name);
    dibs__lab_put(s, table, c->rate[n][first]);
    dibs__lab_put(s, table, c->rate[n][first] / c->rate[n][last]);
    dibs__lab_put_text(s, table, LAB_PLAIN, c->way[last]->name);
  }
}

/* Between which numbers of rows two strategies change places. */
static void crossings(struct contend *c) {
  for (size_t a = 0; a < c->ways; a++)
    for (size_t b = a + 1; b < c->ways; b++)
      for (size_t n = 1; n < c->lab->rows_count; n++) {
        if (!c->done[n - 1][a] || !c->done[n - 1][b] || !c->done[n][a] || !c->done[n][b]) continue;
        bool before = c->rate[n - 1][a] > c->rate[n - 1][b], after = c->rate[n][a] > c->rate[n][b];
        if (before == after) continue;
        dibs__lab_note(&c->lab->sheet, "%s and %s cross between %u and %u rows.", c->way[a]->name, c->way[b]->name,
                       c->lab->rows[n - 1], c->lab->rows[n]);
      }
}

bool dibs__lab_contend(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  struct contend c = {.lab = lab};
  struct lab_series *series[WAYS_MAX];
  bool fine = true;
  s->experiment = "contend";
  dibs__lab_title(
      s, "From one row to many",
      "The same users book seats of rows that are drawn by lot. On one row all meet; on ten thousand hardly "
      "anybody does.");
  dibs__lab_fact(s, "users", "Users", "%u", lab->users[0]);
  dibs__lab_fact(s, "seconds", "Seconds each", "%g", (double)lab->ms / 1000);
  choose(&c);
  struct lab_plot *plot = dibs__lab_plot(s, "rate", LAB_LINES, "Bookings a second, by how many rows are fought over",
                                         "To the left all want the same row; to the right each has nearly its own.");
  if (plot) {
    plot->x_title = "rows";
    plot->y_title = "bookings/s";
    plot->log_x = plot->log_y = true;
  }
  struct lab_table *ahead =
      dibs__lab_table(s, "ahead", "Who is ahead", "", best_columns, sizeof best_columns / sizeof *best_columns);
  struct lab_table *table = dibs__lab_table(s, "contend", "All runs", "", columns, sizeof columns / sizeof *columns);
  for (size_t w = 0; w < c.ways; w++) series[w] = dibs__lab_series(s, plot, c.way[w]->name, LAB_PLAIN);
  lab->steps = (uint32_t)(c.ways * lab->rows_count);
  for (size_t n = 0; fine && n < lab->rows_count; n++)
    for (size_t w = 0; fine && w < c.ways && !dibs__lab_ended(lab); w++) {
      lab->step++;
      fine = one(&c, n, w, table, series[w]) || dibs__lab_ended(lab);
    }
  best(&c, ahead);
  crossings(&c);
  return fine;
}
