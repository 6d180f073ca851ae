/* SPDX-License-Identifier: MIT */
/*
 * isolation URI SPEC...      TAP: one case for each permutation
 *
 * URI: a SQLite file, which is created if necessary, or a server's.
 */
#include "isolation.h"

#include <stdlib.h>
#include <string.h>

struct run {
  struct spec *spec;
  struct play *play;
  int cases, failed;
  bool some[LINES_MAX]; /* which of spec->some have occurred */
};

static void name_order(const struct run *run, const int order[], char *to, size_t size) {
  size_t len = 0;
  to[0] = '\0';
  for (size_t i = 0; i < run->spec->step_count && len < size; i++)
    len += (size_t)snprintf(to + len, size - len, " %s", run->spec->steps[order[i]].name);
}

static void tell_answers(const struct run *run, const int order[]) {
  for (size_t i = 0; i < run->spec->step_count; i++) {
    const struct step *step = &run->spec->steps[order[i]];
    printf("#   %s: %s -> %s%s \"%s\" %s\n", step->name, step->words, step->deadlock ? "DEADLOCK " : "",
           dibs_status_name(step->status), step->got, step->why);
  }
}

/* STATUS of STEP ... is the expectation ">=1 STATUS of ...". */
static void look_for_some(struct run *run) {
  char text[TEXT_MAX + 8], why[3 * TEXT_MAX];
  for (size_t i = 0; i < run->spec->some.count; i++) {
    snprintf(text, sizeof text, ">=1 %s", run->spec->some.text[i]);
    if (!run->some[i]) run->some[i] = expect_holds(run->play, run->spec, text, why, sizeof why);
  }
}

static void run_order(struct run *run, const int order[]) {
  char name[STEPS_MAX * (WORD_MAX + 1)], why[3 * TEXT_MAX] = "";
  name_order(run, order, name, sizeof name);
  bool fine = play_run(run->play, order, run->spec->step_count);
  for (size_t i = 0; i < run->spec->expect.count && fine; i++)
    fine = expect_holds(run->play, run->spec, run->spec->expect.text[i], why, sizeof why);
  look_for_some(run);
  run->failed += !fine;
  printf("%s %d - %s:%s\n", fine ? "ok" : "not ok", ++run->cases, strrchr(run->spec->path, '/') + 1, name);
  if (!fine) printf("# %s\n", why);
  if (!fine) tell_answers(run, order);
  fflush(stdout);
}

/* All orders that mix the sessions' steps and keep each session's own order. */
static void mix(struct run *run, int order[], size_t at, size_t taken[]) {
  if (at == run->spec->step_count) {
    run_order(run, order);
    return;
  }
  for (size_t s = 0; s < run->spec->session_count; s++) {
    size_t skip = taken[s];
    for (size_t i = 0; i < run->spec->step_count; i++) {
      if (run->spec->steps[i].session != (int)s || skip-- > 0) continue;
      order[at] = (int)i;
      taken[s]++;
      mix(run, order, at + 1, taken);
      taken[s]--;
      break;
    }
  }
}

static void only(struct run *run, const char *names) {
  int order[STEPS_MAX] = {0};
  size_t count = 0;
  for (const char *name = names + strspn(names, " "); *name; name += strspn(name, " ")) {
    size_t len = strcspn(name, " ");
    const struct step *step = spec_step(run->spec, name, len);
    if (!step || count == STEPS_MAX) {
      printf("Bail out! %s: no step %.*s\n", run->spec->path, (int)len, name);
      exit(1);
    }
    order[count++] = (int)(step - run->spec->steps);
    name += len;
  }
  if (count != run->spec->step_count) {
    printf("Bail out! %s: an order must name every step\n", run->spec->path);
    exit(1);
  }
  run_order(run, order);
}

static bool serves(const struct spec *spec, const char *uri) {
  static const char *const words[][2] = {
      {"sqlite", "sqlite"}, {"postgres", "postgres"}, {"mysql", "mysql"}, {"mysql", "mariadb"}};
  if (spec->engines.count == 0) return true;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strncmp(uri, words[i][1], strlen(words[i][1])) == 0 && strstr(spec->engines.text[0], words[i][0])) return true;
  return false;
}

static void run_spec(struct run *run, const char *uri) {
  int order[STEPS_MAX] = {0};
  size_t taken[SESSIONS_MAX] = {0};
  run->play = play_new(run->spec, uri);
  if (!run->play) {
    printf("not ok %d - %s: the setup failed\n", ++run->cases, run->spec->path);
    run->failed++;
    return;
  }
  memset(run->some, 0, sizeof run->some);
  for (size_t i = 0; i < run->spec->only.count; i++) only(run, run->spec->only.text[i]);
  if (run->spec->only.count == 0) mix(run, order, 0, taken);
  for (size_t i = 0; i < run->spec->some.count; i++) {
    run->failed += !run->some[i];
    printf("%s %d - %s: in some order, %s\n", run->some[i] ? "ok" : "not ok", ++run->cases,
           strrchr(run->spec->path, '/') + 1, run->spec->some.text[i]);
  }
  play_free(run->play);
}

int main(int argc, char **argv) {
  struct run run = {.cases = 0};
  if (argc < 3) {
    fprintf(stderr, "usage: isolation URI SPEC...\n");
    return 2;
  }
  for (int i = 2; i < argc; i++) {
    run.spec = calloc(1, sizeof *run.spec);
    if (!run.spec || !strchr(argv[i], '/') || !spec_read(argv[i], run.spec)) return 1;
    if (serves(run.spec, argv[1]))
      run_spec(&run, argv[1]);
    else
      printf("ok %d - %s # SKIP not for this engine\n", ++run.cases, argv[i]);
    free(run.spec);
  }
  printf("1..%d\n", run.cases);
  return run.failed > 0;
}
