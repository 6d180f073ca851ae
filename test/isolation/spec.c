/* SPDX-License-Identifier: MIT */
/* Reads a spec. */
#include "isolation.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void spec_copy(char *to, size_t size, const char *from) {
  snprintf(to, size, "%s", from);
}

static char *word(char **at) {
  char *from = *at + strspn(*at, " \t");
  char *to = from + strcspn(from, " \t");
  *at = *to ? to + 1 : to;
  *to = '\0';
  return from;
}

static bool keep(struct lines *lines, const char *text) {
  if (lines->count == LINES_MAX || strlen(text) >= TEXT_MAX) return false;
  spec_copy(lines->text[lines->count++], TEXT_MAX, text);
  return true;
}

struct step *spec_step(struct spec *spec, const char *name, size_t len) {
  for (size_t i = 0; i < spec->step_count; i++)
    if (strlen(spec->steps[i].name) == len && strncmp(spec->steps[i].name, name, len) == 0) return &spec->steps[i];
  return NULL;
}

static bool add_step(struct spec *spec, char *line) {
  char *colon = strchr(line, ':');
  if (!colon || spec->session_count == 0 || spec->step_count == STEPS_MAX) return false;
  *colon = '\0';
  const char *words = colon + 1 + strspn(colon + 1, " ");
  if (strlen(line) >= WORD_MAX || strlen(words) >= TEXT_MAX || spec_step(spec, line, strlen(line))) return false;
  struct step *step = &spec->steps[spec->step_count++];
  spec_copy(step->name, sizeof step->name, line);
  spec_copy(step->words, sizeof step->words, words);
  step->session = (int)spec->session_count - 1;
  return true;
}

static bool add_session(struct spec *spec, const char *name) {
  if (spec->session_count == SESSIONS_MAX || strlen(name) >= WORD_MAX || !*name) return false;
  spec_copy(spec->sessions[spec->session_count++], WORD_MAX, name);
  return true;
}

static bool add_lease(struct spec *spec, char *rest) {
  const char *name = word(&rest), *fence = word(&rest);
  if (spec->lease_count == SESSIONS_MAX || strlen(name) >= WORD_MAX || !*fence) return false;
  struct lease_of *lease = &spec->leases[spec->lease_count++];
  spec_copy(lease->name, sizeof lease->name, name);
  lease->fence = strtoull(fence, NULL, 10);
  return lease->fence > 0;
}

static bool add_table(struct spec *spec, const char *rest) {
  if (strlen(spec->table) + strlen(rest) + 2 >= sizeof spec->table) return false;
  size_t len = strlen(spec->table);
  snprintf(spec->table + len, sizeof spec->table - len, " %s", rest);
  return true;
}

static bool read_line(struct spec *spec, char *line) {
  char copy[TEXT_MAX], *rest = copy;
  if (strlen(line) >= sizeof copy) return false;
  spec_copy(copy, sizeof copy, line);
  const char *first = word(&rest);
  if (strcmp(first, "on") == 0) return keep(&spec->engines, rest);
  if (strcmp(first, "setup") == 0) return keep(&spec->setup, rest);
  if (strcmp(first, "teardown") == 0) return keep(&spec->teardown, rest);
  if (strcmp(first, "only") == 0) return keep(&spec->only, rest);
  if (strcmp(first, "expect") == 0) return keep(&spec->expect, rest);
  if (strcmp(first, "some") == 0) return keep(&spec->some, rest);
  if (strcmp(first, "table") == 0) return add_table(spec, rest);
  if (strcmp(first, "session") == 0) return add_session(spec, word(&rest));
  if (strcmp(first, "lease") == 0) return add_lease(spec, rest);
  return add_step(spec, line);
}

bool spec_read(const char *path, struct spec *spec) {
  char line[2 * TEXT_MAX];
  FILE *file = fopen(path, "re");
  int nr = 0;
  bool fine = file != NULL;
  spec->path = path;
  while (fine && fgets(line, sizeof line, file)) {
    nr++;
    char *from = line + strspn(line, " \t");
    size_t len = strlen(from);
    while (len && isspace((unsigned char)from[len - 1])) from[--len] = '\0';
    if (!*from || *from == '#') continue;
    fine = read_line(spec, from);
  }
  if (file) fclose(file);
  if (!fine) printf("Bail out! %s:%d: unknown line in a spec\n", path, nr);
  if (fine && spec->expect.count == 0) {
    printf("Bail out! %s has no expectation\n", path);
    return false;
  }
  return fine;
}
