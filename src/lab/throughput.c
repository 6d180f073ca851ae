/* SPDX-License-Identifier: MIT */
/*
 * Throughput: users book on one row for some time.  With several rounds, all strategies (and the bare client) run in
 * each round, one after the other, and medians count: the speed of a machine drifts by a third within an hour, the
 * ratios of neighbours do not.
 */
#include "lab/lab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct lab_column columns[] = {
    {"strategy", "strategy", LAB_TEXT},     {"users", "users", LAB_COUNT},
    {"per_second", "bookings/s", LAB_RATE}, {"p50_ms", "p50 ms", LAB_MS},
    {"p99_ms", "p99 ms", LAB_MS},           {"max_ms", "max ms", LAB_MS},
    {"conflicts", "conflicts", LAB_COUNT},  {"deadlocks", "deadlocks", LAB_COUNT},
    {"gave_up", "gave up", LAB_COUNT},      {"verdict", "verdict", LAB_TEXT},
};
static const struct lab_column range_columns[] = {
    {"strategy", "strategy", LAB_TEXT},
    {"users", "users", LAB_COUNT},
    {"median", "median", LAB_RATE},
    {"low", "lowest", LAB_RATE},
    {"high", "highest", LAB_RATE},
    {"to_floor", "divided by the bare client's", LAB_TIMES},
    {"to_best", "divided by the best other's", LAB_TIMES},
};

/* A strategy, or one of the bare client, at one number of users. */
struct member {
  const struct lab_way *way; /* NULL: the bare client's */
  char name[48];
  uint32_t users;
  struct member *floor; /* of a way: the bare client with the same strategy */
  /* Gathered over rounds. */
  size_t rounds;
  double rate[LAB_ROUNDS_MAX], p50[LAB_ROUNDS_MAX], p99[LAB_ROUNDS_MAX], max[LAB_ROUNDS_MAX];
  uint64_t done, conflicts, deadlocks, given_up;
  struct lab_verdict verdict; /* the worst */
  struct dibs__hist hist;
  double at[LAB_SAMPLES], over_time[LAB_SAMPLES]; /* of the last round */
  size_t samples;
};

struct throughput {
  struct lab *lab;
  struct member *member;
  size_t count;
};

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const double *values, size_t count) {
  double sorted[LAB_ROUNDS_MAX];
  if (!count) return (double)NAN;
  memcpy(sorted, values, count * sizeof *values);
  qsort(sorted, count, sizeof *sorted, by_size);
  return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static double lowest(const double *values, size_t count) {
  double low = count ? values[0] : (double)NAN;
  for (size_t i = 1; i < count; i++) low = fmin(low, values[i]);
  return low;
}

static double highest(const double *values, size_t count) {
  double high = count ? values[0] : (double)NAN;
  for (size_t i = 1; i < count; i++) high = fmax(high, values[i]);
  return high;
}

/* The median of the ratios within each round. */
static double ratio(const struct member *of, const struct member *by) {
  double values[LAB_ROUNDS_MAX];
  size_t count = of->rounds < by->rounds ? of->rounds : by->rounds;
  for (size_t i = 0; i < count; i++) values[i] = by->rate[i] > 0 ? of->rate[i] / by->rate[i] : (double)NAN;
  return median(values, count);
}

/* ---- The members ---- */

static struct member *add_member(struct throughput *t, const struct lab_way *way, uint32_t users) {
  struct member *m = &t->member[t->count++];
  m->way = way;
  m->users = users;
  m->verdict = (struct lab_verdict){LAB_GOOD, "correct"};
  if (way) snprintf(m->name, sizeof m->name, "%s", way->name);
  return m;
}

static void invite(struct throughput *t) {
  struct lab *lab = t->lab;
  for (size_t n = 0; n < lab->users_count; n++)
    for (size_t i = 0; i < dibs__lab_way_count; i++) {
      const struct lab_way *way = &dibs__lab_ways[i];
      /* Plain SQL is for the race; here it would measure how the lab sends it. */
      if (!dibs__lab_way_wanted(lab, way) || (way->kind == LAB_CHILD_FIRST && !lab->strategies)) continue;
      struct member *m = add_member(t, way, lab->users[n]);
      const char *bare = lab->floor ? dibs__lab_floor_name(lab->floor, way->name) : NULL;
      if (!bare) continue;
      m->floor = add_member(t, NULL, lab->users[n]);
      snprintf(m->floor->name, sizeof m->floor->name, "bare %s", bare);
    }
}

/* ---- A round ---- */

static void keep_worst(struct member *m, struct lab_verdict verdict) {
  if (verdict.mood == LAB_BAD || (m->verdict.mood != LAB_BAD && verdict.mood != LAB_GOOD)) m->verdict = verdict;
}

static bool run_way(struct lab *lab, struct member *m) {
  struct lab_audit audit;
  struct lab_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__lab_fail(lab, "out of memory");
  crew->way = m->way;
  crew->users = m->users;
  crew->rows = 1;
  crew->ms = lab->ms;
  bool fine = dibs__lab_try(lab, crew, lab->seats, &audit);
  if (fine) {
    size_t n = m->rounds++;
    m->rate[n] = (double)crew->done / crew->seconds;
    m->p50[n] = (double)dibs__hist_percentile(&crew->hist, 50) / 1e6;
    m->p99[n] = (double)dibs__hist_percentile(&crew->hist, 99) / 1e6;
    m->max[n] = (double)crew->hist.max / 1e6;
    m->done += crew->done;
    m->conflicts += crew->conflicts;
    m->deadlocks += crew->deadlocks;
    m->given_up += crew->given_up;
    dibs__hist_merge(&m->hist, &crew->hist);
    memcpy(m->at, crew->at, sizeof m->at);
    memcpy(m->over_time, crew->rate, sizeof m->over_time);
    m->samples = crew->samples;
    keep_worst(m, dibs__lab_judge(lab, crew, &audit));
    if (crew->absent) {
      dibs__lab_note(&lab->sheet, "%s, %u users: %u could not connect: %s", m->name, m->users, crew->absent, crew->why);
      keep_worst(m, (struct lab_verdict){LAB_BAD, "not all connected"});
    } else if (crew->why[0]) {
      dibs__lab_note(&lab->sheet, "%s, %u users: %s", m->name, m->users, crew->why);
    }
  }
  free(crew);
  return fine;
}

static bool run_floor(struct lab *lab, struct member *m) {
  struct lab_floor_result result;
  dibs__lab_report_progress(lab, m->name, m->users, 0, lab->ms, 0, 0);
  if (!dibs__lab_floor_run(lab, m->name + strlen("bare "), m->users, &result)) return false;
  size_t n = m->rounds++;
  m->rate[n] = result.per_second;
  m->p50[n] = result.p50_ns / 1e6;
  m->p99[n] = result.p99_ns / 1e6;
  m->max[n] = result.max_ns / 1e6;
  m->conflicts += (uint64_t)result.conflicts;
  m->deadlocks += (uint64_t)result.deadlocks;
  if (!result.correct && result.expected) keep_worst(m, (struct lab_verdict){LAB_EXPECTED, "broken, as expected"});
  if (!result.correct && !result.expected)
    keep_worst(m, (struct lab_verdict){LAB_BAD, "wrong"}); /* not a promise of dibs */
  return true;
}

static bool run_rounds(struct throughput *t) {
  struct lab *lab = t->lab;
  lab->steps = (uint32_t)t->count * lab->rounds;
  for (uint32_t round = 0; round < lab->rounds; round++)
    for (size_t i = 0; i < t->count; i++) {
      lab->step++;
      struct member *m = &t->member[i];
      bool fine = m->way ? run_way(lab, m) : run_floor(lab, m);
      if (dibs__lab_ended(lab)) return true;
      if (!fine) return false;
    }
  return true;
}

/* ---- The results ---- */

static const struct member *best_other_member(const struct throughput *t, const struct member *of) {
  const struct member *best = NULL;
  for (size_t i = 0; i < t->count; i++) {
    const struct member *m = &t->member[i];
    if (m == of || !m->way || !m->way->promised || m->way->kind != LAB_OWN_STORE || !m->rounds) continue;
    if (m->users != of->users) continue;
    if (!best || median(m->rate, m->rounds) > median(best->rate, best->rounds)) best = m;
  }
  return best;
}

static enum lab_mood drawn(const struct member *m) {
  return m->verdict.mood == LAB_GOOD ? LAB_PLAIN : m->verdict.mood;
}

static void tables(struct throughput *t) {
  struct lab_sheet *s = &t->lab->sheet;
  struct lab_table *table = dibs__lab_table(s, "throughput", "Bookings", "", columns, sizeof columns / sizeof *columns);
  for (size_t i = 0; i < t->count; i++) {
    const struct member *m = &t->member[i];
    if (!m->rounds) continue;
    dibs__lab_put_text(s, table, LAB_PLAIN, m->name);
    dibs__lab_put(s, table, m->users);
    dibs__lab_put(s, table, median(m->rate, m->rounds));
    dibs__lab_put(s, table, median(m->p50, m->rounds));
    dibs__lab_put(s, table, median(m->p99, m->rounds));
    dibs__lab_put(s, table, highest(m->max, m->rounds));
    dibs__lab_put(s, table, (double)m->conflicts);
    dibs__lab_put(s, table, (double)m->deadlocks);
    dibs__lab_put(s, table, (double)m->given_up);
    dibs__lab_put_text(s, table, m->verdict.mood, m->verdict.text);
  }
  if (t->lab->rounds < 2 && !t->lab->floor) return;
  table = dibs__lab_table(s, "rounds", "Bookings per second over the rounds",
                          "Each ratio is the median of the ratios within each round.", range_columns,
                          sizeof range_columns / sizeof *range_columns);
  for (size_t i = 0; i < t->count; i++) {
    const struct member *m = &t->member[i], *other = best_other_member(t, m);
    if (!m->rounds) continue;
    dibs__lab_put_text(s, table, LAB_PLAIN, m->name);
    dibs__lab_put(s, table, m->users);
    dibs__lab_put(s, table, median(m->rate, m->rounds));
    dibs__lab_put(s, table, lowest(m->rate, m->rounds));
    dibs__lab_put(s, table, highest(m->rate, m->rounds));
    dibs__lab_put(s, table, m->floor && m->floor->rounds ? ratio(m, m->floor) : (double)NAN);
    dibs__lab_put(s, table, m->way && other ? ratio(m, other) : (double)NAN);
  }
}

static void plots_of(struct throughput *t, uint32_t users) {
  struct lab *lab = t->lab;
  char title[128];
  const char *many = lab->users_count > 1 ? ", " : "";
  char count[32] = "";
  if (*many) snprintf(count, sizeof count, "%u users", users);
  snprintf(title, sizeof title, "How long a booking takes%s%s", many, count);
  struct lab_plot *hills = dibs__lab_plot(&lab->sheet, "latency", LAB_HILLS, title,
                                          "The height of a hill is the number of bookings that took so long; further "
                                          "left is better. The marks are the median and the 99th percentile.");
  snprintf(title, sizeof title, "Bookings per second over time%s%s", many, count);
  struct lab_plot *lines = dibs__lab_plot(&lab->sheet, "over_time", LAB_LINES, title, "");
  if (!hills || !lines) return;
  hills->x_title = "milliseconds";
  hills->log_x = true;
  lines->x_title = "seconds";
  lines->y_title = "bookings/s";
  lines->log_y = true;
  for (size_t i = 0; i < t->count; i++) {
    const struct member *m = &t->member[i];
    if (!m->way || m->users != users || !m->hist.count) continue;
    dibs__lab_hill(lab, hills, m->name, drawn(m), &m->hist);
    struct lab_series *series = dibs__lab_series(&lab->sheet, lines, m->name, drawn(m));
    for (size_t n = 0; n < m->samples; n++)
      if (m->over_time[n] > 0) dibs__lab_point(&lab->sheet, series, m->at[n], m->over_time[n]);
  }
}

static void bars_of(struct throughput *t, uint32_t users) {
  struct lab *lab = t->lab;
  char title[64] = "Bookings per second";
  if (lab->users_count > 1) snprintf(title, sizeof title, "Bookings per second, %u users", users);
  struct lab_plot *bars = dibs__lab_plot(&lab->sheet, "rate", LAB_BARS, title, "Longer is better.");
  for (size_t i = 0; bars && i < t->count; i++) {
    const struct member *m = &t->member[i];
    if (!m->rounds || m->users != users) continue;
    struct lab_series *series = dibs__lab_series(&lab->sheet, bars, m->name, drawn(m));
    if (series) series->faint = m->way == NULL;
    dibs__lab_point(&lab->sheet, series, 0, median(m->rate, m->rounds));
  }
}

static void by_users(struct throughput *t) {
  struct lab *lab = t->lab;
  struct lab_plot *plot = dibs__lab_plot(
      &lab->sheet, "by_users", LAB_LINES, "Bookings per second, by the number of users",
      "Requests that wait together are decided together: only this strategy gets faster with more users.");
  if (!plot) return;
  plot->x_title = "users";
  plot->y_title = "bookings/s";
  plot->log_x = plot->log_y = true;
  for (size_t i = 0; i < t->count; i++) {
    const struct member *first = &t->member[i];
    if (!first->way || first->users != lab->users[0]) continue;
    struct lab_series *series = dibs__lab_series(&lab->sheet, plot, first->name, drawn(first));
    for (size_t n = 0; n < t->count; n++) {
      const struct member *m = &t->member[n];
      if (m->way == first->way && m->done) dibs__lab_point(&lab->sheet, series, m->users, median(m->rate, m->rounds));
    }
  }
}

static void plots(struct throughput *t) {
  const struct lab *lab = t->lab;
  if (lab->users_count > 1) by_users(t);
  for (size_t n = 0; n < lab->users_count; n++) {
    bars_of(t, lab->users[n]);
    plots_of(t, lab->users[n]);
  }
}

bool dibs__lab_throughput(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  struct throughput t = {.lab = lab};
  s->experiment = "throughput";
  dibs__lab_title(
      s, "Throughput on one row",
      "All users book seats of the same row, as fast as they can. A booking is acknowledged when it is durable; at the "
      "end the row's count, the number of booked rows and the number of acknowledged bookings must be equal.");
  dibs__lab_fact_list(s, "users", "Users", lab->users, lab->users_count);
  dibs__lab_fact_number(s, "seconds", "Seconds each", (double)lab->ms / 1000, "");
  dibs__lab_fact_number(s, "rounds", "Rounds", lab->rounds, "");
  dibs__lab_fact_number(s, "seats", "Seats", lab->seats, "");
  if (!dibs__lab_locks_ready(lab)) return false;
  t.member = calloc(lab->users_count * dibs__lab_way_count * 2, sizeof *t.member);
  if (!t.member) return dibs__lab_fail(lab, "out of memory");
  invite(&t);
  bool fine = run_rounds(&t);
  tables(&t);
  plots(&t);
  free(t.member);
  return fine;
}
