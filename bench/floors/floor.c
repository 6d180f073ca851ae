/* SPDX-License-Identifier: MIT */
/* The command line of the floors, their output, and their smoke size. */
#include "floor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };
enum { USERS_MOST = FLOOR_BATCH_MOST, LIST_MOST = 16 };

/* The smoke size: enough users for conflicts, and a limit that some strategies reach within it. */
enum { SMOKE_USERS = 8, SMOKE_LIMIT = 50 };
#define SMOKE_SECONDS 0.2

struct options {
  const char *uri, *strategies;
  uint32_t users[LIST_MOST];
  size_t users_count;
  double seconds;
  int64_t limit, hold; /* hold: -1: not requested */
  bool json, smoke;
};

/* ---- Reading ---- */

static void help(const struct floor_engine *engine, FILE *to) {
  fprintf(to,
          "usage: floor-%s --uri URI [--strategy S,...|all] [--users N,...] [--seconds T] [--limit N] [--json]\n"
          "       floor-%s --smoke [--uri URI]\n"
          "%s%s%s"
          "URI: %s.  The tables floor_* in it are dropped and created again.\n"
          "Defaults: all strategies, 20 users, 2 seconds, a limit that no run reaches.\n\nStrategies:\n",
          engine->name, engine->name, engine->weigh ? "       floor-" : "", engine->weigh ? engine->name : "",
          engine->weigh ? " --uri URI --hold N   (prints how much N held leases add to the server's memory)\n" : "",
          engine->example);
  for (const struct floor_strategy *s = engine->strategies; s->name; s++) fprintf(to, "  %-14s %s\n", s->name, s->what);
}

static bool number(const char *text, double least, double most, double *out) {
  char *end;
  errno = 0;
  *out = strtod(text, &end);
  return !errno && end != text && (*end == '\0' || *end == ',') && *out >= least && *out <= most;
}

static bool users_read(const char *text, struct options *o) {
  o->users_count = 0;
  for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    double value;
    if (o->users_count == LIST_MOST || !number(at, 1, USERS_MOST, &value)) return false;
    o->users[o->users_count++] = (uint32_t)value;
  }
  return true;
}

/* Whether the list names it. */
static bool chosen(const char *list, const char *name) {
  if (strcmp(list, "all") == 0) return true;
  size_t length = strlen(name);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, name, length) == 0 && (at[length] == '\0' || at[length] == ',')) return true;
  return false;
}

/* NULL, or the first part of the list that is not a strategy. */
static const char *unknown(const struct floor_engine *engine, const char *list) {
  if (strcmp(list, "all") == 0) return NULL;
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    bool found = false;
    for (const struct floor_strategy *s = engine->strategies; s->name && !found; s++)
      found = strcspn(at, ",") == strlen(s->name) && strncmp(at, s->name, strlen(s->name)) == 0;
    if (!found) return at;
  }
  return NULL;
}

static bool wants_value(const char *option) {
  static const char *const all[] = {"--uri", "--strategy", "--users", "--seconds", "--limit", "--hold"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (strcmp(option, all[i]) == 0) return true;
  return false;
}

static bool value_read(struct options *o, const char *option, const char *value) {
  double x = 0;
  if (strcmp(option, "--uri") == 0) o->uri = value;
  if (strcmp(option, "--strategy") == 0) o->strategies = value;
  if (strcmp(option, "--users") == 0) return users_read(value, o);
  if (strcmp(option, "--seconds") == 0) return number(value, 0.01, 3600, &o->seconds);
  if (strcmp(option, "--hold") == 0) {
    if (!number(value, 0, 1e8, &x)) return false;
    o->hold = (int64_t)x;
  }
  if (strcmp(option, "--limit") == 0) {
    if (!number(value, 0, 1e15, &x)) return false;
    o->limit = (int64_t)x;
  }
  return true;
}

/* -1: continue; otherwise the exit status. */
static int options_read(const struct floor_engine *engine, int argc, char **argv, struct options *o) {
  for (int i = 1; i < argc; i++) {
    const char *option = argv[i];
    if (strcmp(option, "--help") == 0) {
      help(engine, stdout);
      return 0;
    }
    if (strcmp(option, "--json") == 0) {
      o->json = true;
    } else if (strcmp(option, "--smoke") == 0) {
      o->smoke = true;
    } else if (!wants_value(option) || i + 1 == argc || !value_read(o, option, argv[i + 1])) {
      fprintf(stderr, "floor-%s: %s: %s; see floor-%s --help\n", engine->name, option,
              !wants_value(option) ? "unknown option" : "needs a valid value", engine->name);
      return EXIT_USAGE;
    } else {
      i++;
    }
  }
  const char *wrong = unknown(engine, o->strategies);
  if (wrong) {
    fprintf(stderr, "floor-%s: unknown strategy %.*s; see floor-%s --help\n", engine->name, (int)strcspn(wrong, ","),
            wrong, engine->name);
    return EXIT_USAGE;
  }
  return -1;
}

/* ---- Printing ---- */

static double ms(uint64_t ns) {
  return (double)ns / 1e6;
}

static void print_text(const char *text) {
  putchar('"');
  for (const char *c = text; *c; c++) {
    if (*c == '"' || *c == '\\') putchar('\\');
    if ((unsigned char)*c < 0x20)
      putchar(' ');
    else
      putchar(*c);
  }
  putchar('"');
}

static void print_json(const struct floor_run *run, const struct floor_result *r) {
  const struct dibs__hist *t = &r->times;
  printf("{\"engine\":\"%s\",\"version\":", run->engine->name);
  print_text(r->version);
  printf(",\"strategy\":\"%s\",\"users\":%" PRIu32 ",\"seconds\":%.3f,\"done\":%" PRIu64 ",\"per_second\":%.1f,",
         run->strategy->name, run->users, r->seconds, r->done, (double)r->done / r->seconds);
  printf("\"p50_ns\":%" PRIu64 ",\"p99_ns\":%" PRIu64 ",\"max_ns\":%" PRIu64 ",", dibs__hist_percentile(t, 50),
         dibs__hist_percentile(t, 99), t->max);
  printf("\"cpu_ns\":%.0f,", r->done ? r->cpu_seconds * 1e9 / (double)r->done : 0.0);
  printf("\"conflicts\":%" PRIu64 ",\"deadlocks\":%" PRIu64 ",\"full\":%" PRIu64 ",\"errors\":%" PRIu64
         ",\"transactions\":%" PRIu64 ",",
         r->conflicts, r->deadlocks, r->full, r->errors, r->batches);
  printf("\"used\":%" PRId64 ",\"limit\":%" PRId64 ",\"claims\":%" PRId64 ",\"correct\":%s,\"expected\":%s,\"why\":",
         r->audit.used, r->audit.limit, r->audit.claims, r->right ? "true" : "false",
         r->right || run->strategy->unsafe ? "true" : "false");
  print_text(r->why);
  puts("}");
  fflush(stdout);
}

static void print_line(const struct floor_run *run, const struct floor_result *r) {
  const struct dibs__hist *t = &r->times;
  printf("%-14s %4" PRIu32 " users %10.1f/s  p50 %8.3f  p99 %8.3f  max %8.1f ms  conflicts %-7" PRIu64
         " deadlocks %-5" PRIu64 " %s",
         run->strategy->name, run->users, (double)r->done / r->seconds, ms(dibs__hist_percentile(t, 50)),
         ms(dibs__hist_percentile(t, 99)), ms(t->max), r->conflicts, r->deadlocks,
         r->right                ? "correct"
         : run->strategy->unsafe ? "wrong, as expected"
                                 : "WRONG");
  if (!r->right) printf(" (%s)", r->why);
  if (r->batches > 0) printf("  %.1f a transaction", (double)r->done / (double)r->batches);
  putchar('\n');
  fflush(stdout);
}

/* ---- Running ---- */

/* Failed calls and wrong tables after a safe strategy fail; wrong tables are expected after an unsafe one. */
static bool run_one(const struct floor_run *run, bool json, bool quiet, struct floor_result *result) {
  if (!floor_run(run, result)) {
    fprintf(stderr, "floor-%s: %s, %" PRIu32 " users: %s\n", run->engine->name, run->strategy->name, run->users,
            result->why);
    return false;
  }
  if (!quiet) (json ? print_json : print_line)(run, result);
  return result->right || run->strategy->unsafe;
}

/* Each strategy twice, as TAP: without a limit to reach, and with a limit that is reached. */
static int smoke(const struct floor_engine *engine, const struct options *o) {
  char folder[] = "/tmp/floor-XXXXXX", uri[64];
  struct floor_run run = {.engine = engine, .uri = o->uri, .users = SMOKE_USERS, .seconds = SMOKE_SECONDS};
  if (!run.uri && engine->variable) run.uri = getenv(engine->variable);
  bool own = !run.uri && !engine->variable;
  if (own) {
    if (!mkdtemp(folder)) {
      perror(folder);
      return EXIT_WRONG;
    }
    snprintf(uri, sizeof uri, "%s://%s/floor.db", engine->name, folder);
    run.uri = uri;
  }
  if (!run.uri || !*run.uri) {
    printf("1..0 # SKIP %s is not set\n", engine->variable);
    return 0; /* TAP has a directive for it */
  }
  static struct floor_result result;
  unsigned count = 0;
  bool all = true;
  for (run.strategy = engine->strategies; run.strategy->name; run.strategy++) {
    const bool books = run.strategy->kind == FLOOR_ALONE || run.strategy->kind == FLOOR_TOGETHER;
    for (int small = 0; small <= (books && !run.strategy->unsafe ? 1 : 0); small++) {
      run.limit = small ? SMOKE_LIMIT : INT64_C(1000000000000);
      bool ok = run_one(&run, false, true, &result) && result.done > 0 && (!small || result.done <= SMOKE_LIMIT);
      printf("%sok %u - %s%s\n", ok ? "" : "not ", ++count, run.strategy->name, small ? " up to the limit" : "");
      if (result.why[0]) printf("# %s\n", result.why);
      fflush(stdout);
      all = all && ok;
    }
  }
  printf("1..%u\n", count);
  if (own) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < 3; i++) {
      char file[96];
      snprintf(file, sizeof file, "%s/floor.db%s", folder, ends[i]);
      unlink(file);
    }
    rmdir(folder);
  }
  return all ? 0 : EXIT_WRONG;
}

int floor_main(const struct floor_engine *engine, int argc, char **argv) {
  struct options o = {
      .strategies = "all", .users = {20}, .users_count = 1, .seconds = 2, .limit = 1000000000000, .hold = -1};
  int status = options_read(engine, argc, argv, &o);
  if (status >= 0) return status;
  if (o.smoke) return smoke(engine, &o);
  if (!o.uri) {
    fprintf(stderr, "floor-%s: --uri is missing; see floor-%s --help\n", engine->name, engine->name);
    return EXIT_USAGE;
  }
  if (o.hold >= 0 && engine->weigh) return floor_hold(engine, o.uri, (int32_t)o.hold);
  static struct floor_result result;
  bool all = true;
  for (size_t i = 0; i < o.users_count; i++)
    for (const struct floor_strategy *s = engine->strategies; s->name; s++) {
      if (!chosen(o.strategies, s->name)) continue;
      struct floor_run run = {engine, s, o.uri, o.users[i], o.seconds, o.limit};
      if (!run_one(&run, o.json, false, &result)) all = false;
      if (!result.reached) return EXIT_WRONG; /* the next one would fail in the same way */
    }
  return all ? 0 : EXIT_WRONG;
}
