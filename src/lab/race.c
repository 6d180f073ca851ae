/* SPDX-License-Identifier: MIT */
/* Race: many applicants for few seats, at once. */
#include "lab/lab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct lab_column columns[] = {
    {"strategy", "strategy", LAB_TEXT},
    {"accepted", "accepted", LAB_COUNT},
    {"counted", "counted", LAB_COUNT},
    {"over_capacity", "over capacity", LAB_COUNT},
    {"lost_updates", "lost updates", LAB_COUNT},
    {"deadlocks", "deadlocks", LAB_COUNT},
    {"retries", "retries", LAB_COUNT},
    {"refused", "refused", LAB_COUNT},
    {"gave_up", "gave up", LAB_COUNT},
    {"ms", "ms", LAB_MS},
    {"verdict", "verdict", LAB_TEXT},
};

static void row(struct lab *lab, struct lab_table *table, const struct lab_crew *crew, const struct lab_audit *audit,
                struct lab_verdict verdict) {
  struct lab_sheet *s = &lab->sheet;
  enum lab_mood wrong = crew->way->promised ? LAB_BAD : LAB_EXPECTED;
  int64_t claims = audit->claims >= 0 ? audit->claims : (int64_t)crew->done;
  int64_t lost = claims - audit->counted;
  dibs__lab_put_text(s, table, LAB_PLAIN, crew->way->name);
  dibs__lab_put(s, table, (double)claims);
  dibs__lab_put(s, table, (double)audit->counted);
  dibs__lab_put(s, table, (double)audit->over);
  if (audit->over) dibs__lab_mood(table, wrong);
  dibs__lab_put(s, table, lost > 0 ? (double)lost : 0);
  if (lost) dibs__lab_mood(table, wrong);
  dibs__lab_put(s, table, (double)crew->deadlocks);
  if (crew->deadlocks) dibs__lab_mood(table, LAB_EXPECTED);
  dibs__lab_put(s, table, (double)(crew->conflicts + crew->deadlocks));
  dibs__lab_put(s, table, (double)crew->full);
  dibs__lab_put(s, table, (double)(crew->given_up + crew->absent));
  dibs__lab_put(s, table, crew->seconds * 1000);
  dibs__lab_put_text(s, table, verdict.mood, verdict.text);
}

static bool one(struct lab *lab, const struct lab_way *way, struct lab_table *table, struct lab_plot *times,
                struct lab_plot *seats) {
  struct lab_audit audit;
  struct lab_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__lab_fail(lab, "out of memory");
  crew->way = way;
  crew->users = lab->users[0];
  crew->rows = 1;
  crew->once = true;
  bool fine = dibs__lab_try(lab, crew, lab->seats, &audit);
  if (fine) {
    struct lab_verdict verdict = dibs__lab_judge(lab, crew, &audit);
    enum lab_mood mood = verdict.mood == LAB_GOOD ? LAB_PLAIN : verdict.mood;
    row(lab, table, crew, &audit, verdict);
    dibs__lab_point(&lab->sheet, dibs__lab_series(&lab->sheet, times, way->name, mood), 0, crew->seconds * 1000);
    int64_t claims = audit.claims >= 0 ? audit.claims : (int64_t)crew->done;
    dibs__lab_point(&lab->sheet, dibs__lab_series(&lab->sheet, seats, way->name, mood), lab->seats, (double)claims);
    if (crew->why[0]) dibs__lab_note(&lab->sheet, "%s: %s", way->name, crew->why);
    if (crew->absent) dibs__lab_note(&lab->sheet, "%s: %u applicants could not connect", way->name, crew->absent);
  }
  free(crew);
  return fine;
}

bool dibs__lab_race(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  char intro[400];
  s->experiment = "race";
  snprintf(
      intro, sizeof intro,
      "%u applicants at once for %u seats. Each inserts its own row, with a foreign key to the row that counts the "
      "seats. Nobody may be counted who has no row, and no more may get in than there are seats.",
      lab->users[0], lab->seats);
  dibs__lab_title(s, "Race for seats", intro);
  dibs__lab_fact(s, "applicants", "Applicants", "%u", lab->users[0]);
  dibs__lab_fact(s, "seats", "Seats", "%u", lab->seats);
  struct lab_table *table = dibs__lab_table(s, "race", "Who got in", "", columns, sizeof columns / sizeof *columns);
  struct lab_plot *seats = dibs__lab_plot(s, "accepted", LAB_BARS, "Applicants that got in",
                                          "The line is the number of seats; a bar beyond it is a seat sold twice.");
  struct lab_plot *times = dibs__lab_plot(s, "time", LAB_BARS, "Until all had their answer",
                                          "From the moment when all were let go, in milliseconds. Shorter is better.");
  if (times) times->y_title = "ms";
  for (size_t i = 0; i < dibs__lab_way_count; i++) lab->steps += dibs__lab_way_wanted(lab, &dibs__lab_ways[i]);
  for (size_t i = 0; i < dibs__lab_way_count; i++) {
    if (!dibs__lab_way_wanted(lab, &dibs__lab_ways[i])) continue;
    lab->step++;
    bool fine = one(lab, &dibs__lab_ways[i], table, times, seats);
    if (dibs__lab_ended(lab)) break;
    if (!fine) return false;
  }
  return true;
}
