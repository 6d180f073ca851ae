/* SPDX-License-Identifier: MIT */
#include "lab/floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_MAX = 16384, OUT_MAX = 8192 };

/* Is it a strategy that the program's help lists?  Each stands at the beginning of a line, behind two blanks. */
static bool offers(const char *help, const char *name) {
  size_t length = strlen(name);
  for (const char *at = help; (at = strstr(at, "\n  ")); at++)
    if (strncmp(at + 3, name, length) == 0 && strchr(" \n", at[3 + length])) return true;
  return false;
}

static const char *known(const char *help, const char *way) {
  /* In few packets where there is such a one: that is the better way to send it. */
  static const char *const names[][3] = {{"coalesced", "coalesced1", "coalesced"},
                                         {"atomic", "atomic1", "atomic"},
                                         {"pessimistic", "pessimistic1", "pessimistic"},
                                         {"optimistic", "optimistic1", "optimistic"},
                                         {"named", "getlock1", "mutex"},
                                         {"none", "none", "none"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i][0], way) != 0) continue;
    for (size_t n = 1; n < 3; n++)
      if (offers(help, names[i][n])) return names[i][n];
  }
  return NULL;
}

const char *dibs__lab_floor_name(const char *program, const char *way) {
  static char help[HELP_MAX];
  static const char *of;
  char why[LAB_WHY_MAX];
  if (of != program) {
    char option[] = "--help", *own = strdup(program);
    if (!own || !dibs__lab_capture((char *[]){own, option, NULL}, help, sizeof help, why, sizeof why)) help[0] = '\0';
    free(own);
    of = program;
  }
  return known(help, way);
}

static bool number(const char *json, const char *key, double *to) {
  char wanted[48];
  snprintf(wanted, sizeof wanted, "\"%s\":", key);
  const char *at = strstr(json, wanted);
  if (at) *to = strtod(at + strlen(wanted), NULL);
  return at != NULL;
}

bool dibs__lab_floor_run(struct lab *lab, const char *strategy, uint32_t users, struct lab_floor_result *result) {
  char out[OUT_MAX], count[16], seconds[32], why[LAB_WHY_MAX];
  char o_uri[] = "--uri", o_strategy[] = "--strategy", o_users[] = "--users", o_seconds[] = "--seconds",
       o_json[] = "--json";
  snprintf(count, sizeof count, "%u", users);
  snprintf(seconds, sizeof seconds, "%.3f", (double)lab->ms / 1000);
  char *program = strdup(lab->floor), *uri = strdup(lab->uri), *wanted = strdup(strategy);
  bool fine = program && uri && wanted;
  if (!fine) dibs__lab_fail(lab, "out of memory");
  char *argv[] = {program, o_uri, uri, o_strategy, wanted, o_users, count, o_seconds, seconds, o_json, NULL};
  /* It ends with a status of its own when it found its count wrong; what it printed says so too. */
  if (fine && !dibs__lab_capture(argv, out, sizeof out, why, sizeof why) && !strchr(out, '{'))
    fine = dibs__lab_fail(lab, "%s, %s: %s", lab->floor, strategy, why);
  if (fine && (!number(out, "per_second", &result->per_second) || !number(out, "p50_ns", &result->p50_ns) ||
               !number(out, "p99_ns", &result->p99_ns) || !number(out, "max_ns", &result->max_ns) ||
               !number(out, "conflicts", &result->conflicts) || !number(out, "deadlocks", &result->deadlocks)))
    fine = dibs__lab_fail(lab, "%s printed no figures of %s", lab->floor, strategy);
  if (fine) result->correct = strstr(out, "\"correct\":true") != NULL;
  if (fine) result->expected = strstr(out, "\"expected\":true") != NULL;
  free(program);
  free(uri);
  free(wanted);
  return fine;
}
