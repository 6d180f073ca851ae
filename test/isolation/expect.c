/* SPDX-License-Identifier: MIT */
/* Checks the expectations of a spec for a permutation that was run. */
#include "isolation.h"

#include <stdlib.h>
#include <string.h>

static bool wrong(char *why, size_t size, const char *expectation, const char *saw) {
  snprintf(why, size, "%s: %s", expectation, saw);
  return false;
}

/* DEADLOCK is a status here: of a statement that the engine ended because of a deadlock. */
static bool answers(const struct step *step, const char *status, size_t len) {
  const char *name = step->deadlock ? "DEADLOCK" : dibs_status_name(step->status);
  return strlen(name) == len && strncmp(name, status, len) == 0;
}

static bool answers_one_of(const struct step *step, const char *statuses) {
  for (const char *at = statuses; *at; at += strcspn(at, "|"), at += *at == '|')
    if (answers(step, at, strcspn(at, "|"))) return true;
  return false;
}

static void describe(const struct step *step, char *to, size_t size) {
  snprintf(to, size, "%s answered %s%s%s", step->name, step->deadlock ? "DEADLOCK" : dibs_status_name(step->status),
           step->why[0] ? ": " : "", step->why);
}

static int count_of(struct spec *spec, const char *status, const char *names, bool *known) {
  int count = 0;
  *known = true;
  for (const char *at = names + strspn(names, " ,"); *at; at += strspn(at, " ,")) {
    size_t len = strcspn(at, " ,");
    const struct step *step = spec_step(spec, at, len);
    if (!step)
      *known = false;
    else
      count += answers(step, status, strlen(status));
    at += len;
  }
  return count;
}

/* Replaces $ok(a,b) and $got(a) in an expectation. */
static bool fill_in(struct spec *spec, const char *from, char *to, size_t size) {
  size_t len = 0;
  while (*from && len + TEXT_MAX < size) {
    bool ok = strncmp(from, "$ok(", 4) == 0, got = strncmp(from, "$got(", 5) == 0;
    if (!ok && !got) {
      to[len++] = *from++;
      continue;
    }
    char names[TEXT_MAX];
    bool known = true;
    from += ok ? 4 : 5;
    size_t inside = strcspn(from, ")");
    snprintf(names, sizeof names, "%.*s", (int)inside, from);
    from += inside + (from[inside] == ')');
    if (ok) {
      len += (size_t)snprintf(to + len, size - len, "%d", count_of(spec, "OK", names, &known));
    } else {
      const struct step *step = spec_step(spec, names, strlen(names));
      known = step != NULL;
      if (known) len += (size_t)snprintf(to + len, size - len, "%s", step->got);
    }
    if (!known) return false;
  }
  to[len] = '\0';
  return true;
}

static bool value_holds(struct play *play, struct spec *spec, const char *rest, const char *all, char *why,
                        size_t size) {
  char requested[TEXT_MAX], sql[4 * TEXT_MAX], want[4 * TEXT_MAX], have[TEXT_MAX], saw[3 * TEXT_MAX];
  const char *equals = NULL;
  for (const char *at = rest; (at = strstr(at, " = ")); at++) equals = at; /* the last one */
  if (!equals || !fill_in(spec, equals + 3, want, sizeof want)) return wrong(why, size, all, "makes no sense");
  snprintf(requested, sizeof requested, "%.*s", (int)(equals - rest), rest);
  if (!fill_in(spec, requested, sql, sizeof sql)) return wrong(why, size, all, "makes no sense");
  if (!play_value(play, sql, have, sizeof have)) return wrong(why, size, all, have);
  if (strcmp(want, have) == 0) return true;
  snprintf(saw, sizeof saw, "it is \"%s\", expected \"%.300s\"", have, want);
  return wrong(why, size, all, saw);
}

static bool count_holds(struct spec *spec, const char *all, char *why, size_t size) {
  char status[WORD_MAX], saw[64];
  const char *at = all;
  char relation = '=';
  if (*at == '<' || *at == '>') relation = *at, at += 2;
  char *end;
  long want = strtol(at, &end, 10);
  int used = 0;
  bool known = false;
  if (end == at || sscanf(end, " %31s of %n", status, &used) != 1 || used == 0)
    return wrong(why, size, all, "makes no sense");
  int have = count_of(spec, status, end + used, &known);
  if (!known) return wrong(why, size, all, "there is no such step");
  bool holds = relation == '=' ? have == want : relation == '<' ? have <= want : have >= want;
  snprintf(saw, sizeof saw, "there are %d", have);
  return holds || wrong(why, size, all, saw);
}

bool expect_holds(struct play *play, struct spec *spec, const char *all, char *why, size_t size) {
  char step_name[WORD_MAX], rest[TEXT_MAX], saw[2 * TEXT_MAX];
  if (sscanf(all, "if %31s %399s then ", step_name, rest) == 2 && strncmp(all, "if ", 3) == 0) {
    const char *then = strstr(all, " then ");
    const struct step *step = spec_step(spec, step_name, strlen(step_name));
    if (!step || !then) return wrong(why, size, all, "makes no sense");
    return !answers_one_of(step, rest) || expect_holds(play, spec, then + 6, why, size);
  }
  if (strncmp(all, "value ", 6) == 0) return value_holds(play, spec, all + 6, all, why, size);
  if (sscanf(all, "%31s is %399s", step_name, rest) == 2) {
    const struct step *step = spec_step(spec, step_name, strlen(step_name));
    if (!step) return wrong(why, size, all, "there is no such step");
    if (answers_one_of(step, rest)) return true;
    describe(step, saw, sizeof saw);
    return wrong(why, size, all, saw);
  }
  return count_holds(spec, all, why, size);
}
