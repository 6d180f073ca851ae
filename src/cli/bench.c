/* SPDX-License-Identifier: MIT */
/* `dibs bench lease`: parses what is asked for, finds a place for the files, runs the cases in rounds. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "store/uri.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct bench_size whole = {
    .rounds = 5, .ms = 1000, .many = 10000, .ttl_ms = 3000, .million = 1000000, .calls = 50};
static const struct bench_size smoke = {.rounds = 1, .ms = 50, .many = 200, .ttl_ms = 1500, .million = 500, .calls = 3};
enum { ROUND_MS_MIN = 10, ROUND_MS_MAX = 600000, TRIES = 10 /* of a round, where others are to be calm */ };

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
  interrupted = number;
}

/* ---- What sides share ---- */

void dibs__bench_sample_clear(struct bench_sample *sample) {
  for (size_t i = 0; i < BENCH_METRICS; i++) sample->value[i] = (double)NAN;
}

void dibs__bench_sample_hist(struct bench_sample *sample, const struct dibs__hist *hist) {
  if (!hist->count) return;
  sample->value[BENCH_P50] = (double)dibs__hist_percentile(hist, 50) / 1000;
  sample->value[BENCH_P99] = (double)dibs__hist_percentile(hist, 99) / 1000;
  sample->value[BENCH_P999] = (double)dibs__hist_percentile(hist, 99.9) / 1000;
  sample->value[BENCH_MAX] = (double)hist->max / 1000;
}

void dibs__bench_sample_stats(struct bench_sample *sample, const dibs_stats *before, dibs_store *store) {
  dibs_stats now = dibs__bench_stats(store);
  uint64_t granted = now.granted - before->granted;
  if (granted) sample->value[BENCH_TX] = (double)(now.transactions - before->transactions) / (double)granted;
}

dibs_stats dibs__bench_stats(dibs_store *store) {
  dibs_stats stats = {.size = sizeof stats};
  dibs_store_stats(store, &stats);
  return stats;
}

bool dibs__bench_open(struct bench *b, uint32_t flags, dibs_store **store) {
  dibs_store_options options = {.size = sizeof options, .flags = flags};
  dibs_error error;
  if (!dibs_open(b->store, &options, store, &error)) return true;
  return dibs__bench_fail(b, "%s", error.text);
}

/* store/uri.h: a comma, a scheme, a colon, and no digit behind it begin the next one. */
size_t dibs__bench_first(const char *uri) {
  for (const char *comma = strchr(uri, ','); comma; comma = strchr(comma + 1, ',')) {
    size_t scheme = strspn(comma + 1, "abcdefghijklmnopqrstuvwxyz0123456789+.-");
    const char *colon = comma + 1 + scheme;
    if (scheme && *colon == ':' && !(colon[1] >= '0' && colon[1] <= '9')) return (size_t)(comma - uri);
  }
  return strlen(uri);
}

bool dibs__bench_open_first(struct bench *b, uint32_t flags, dibs_store **store) {
  char first[sizeof b->shown];
  const char *all = b->store;
  snprintf(first, sizeof first, "%.*s", (int)dibs__bench_first(all), all);
  /* What serves for an anchor refuses who comes alone: beside it, under another prefix. */
  size_t used = strlen(first);
  if (!strncmp(first, "redis", 5))
    snprintf(first + used, sizeof first - used, "%cprefix=bench-alone", strchr(first, '?') ? '&' : '?');
  b->store = first;
  bool opened = dibs__bench_open(b, flags, store);
  b->store = all;
  return opened;
}

void dibs__bench_name_of(char name[64], uint32_t run, uint32_t n) {
  snprintf(name, 64, "bench/%u/%u", run, n);
}

void dibs__bench_name(char name[64], uint32_t n) {
  dibs__bench_name_of(name, dibs__process_id(), n);
}

/* ---- A place for the files ---- */

/* The folder of a SQLite store that was given, so that the floors meet the same file system; else that for temporary
 * files. */
static void parent_folder(struct bench *b, const struct cli_globals *globals, char *to, size_t size) {
  const char *temporary = getenv("TMPDIR");
  snprintf(to, size, "%s", temporary && temporary[0] == '/' ? temporary : "/tmp");
  struct dibs__uri uri;
  struct dibs__said said;
  if (!globals->store_given || dibs__uri_parse(globals->store, &uri, &said)) return;
  snprintf(b->shown, sizeof b->shown, "%s", uri.shown);
  const char *slash = strrchr(uri.path, '/');
  if (!strcmp(uri.scheme, "sqlite")) {
    if (slash)
      snprintf(to, size, "%.*s", slash > uri.path ? (int)(slash - uri.path) : 1, uri.path);
    else
      snprintf(to, size, ".");
  }
  dibs__uri_free(&uri);
}

static bool folder_make(struct bench *b, const struct cli_globals *globals) {
  char parent[sizeof b->folder - 32];
  parent_folder(b, globals, parent, sizeof parent);
  snprintf(b->folder, sizeof b->folder, "%s/dibs-bench-XXXXXX", parent);
  if (mkdtemp(b->folder)) return true;
  return dibs__bench_fail(b, "no folder for the bench's files in %s: %s", parent, strerror(errno));
}

static void folder_remove(const char *folder) {
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

bool dibs__bench_file_uri(const struct bench *b, const char *file, char *uri, size_t size) {
  size_t at = (size_t)snprintf(uri, size, "sqlite://");
  for (const char *p = b->folder; *p && at + 32 < size; p++) {
    bool plain = strchr("%?#&", *p) == NULL;
    at += (size_t)snprintf(uri + at, size - at, plain ? "%c" : "%%%02X", (unsigned char)*p);
  }
  int last = snprintf(uri + at, size - at, "/%s", file);
  return last > 0 && (size_t)last < size - at;
}

/* ---- Rounds ---- */

static void progress(const struct bench_result *result, uint32_t round, const char *side) {
  if (!isatty(STDERR_FILENO)) return;
  fputs("\r\033[K", stderr);
  if (side) fprintf(stderr, "%s: round %u of %u, %.40s", result->test->key, round + 1, result->rounds, side);
  fflush(stderr);
}

/* All sides once.  *noisy: others used more than is let pass. */
static bool round_run(struct bench *b, struct bench_result *result, uint32_t round, bool *noisy) {
  const struct bench_case *test = result->test;
  *noisy = false;
  for (size_t i = 0; i < BENCH_SIDES_MAX && test->sides[i].name; i++) {
    const struct bench_side *side = &test->sides[i];
    struct bench_sample *sample = &result->sample[i][round];
    struct bench_noise noise;
    dibs__bench_sample_clear(sample);
    progress(result, round, side->name);
    dibs__bench_noise_begin(&noise);
    bool done = side->run(b, side->arg, sample);
    dibs__bench_noise_end(&noise, sample);
    progress(result, round, NULL);
    if (interrupted) return dibs__bench_fail(b, "ended by signal %d", (int)interrupted);
    if (!done) return false;
    if (b->size.calm > 0 && sample->value[BENCH_OTHERS] > b->size.calm) *noisy = true;
  }
  return true;
}

static bool case_run(struct bench *b, struct bench_result *result) {
  uint32_t wanted = result->test->once ? 1 : b->size.rounds;
  uint32_t tries = wanted * TRIES;
  result->rounds = wanted; /* for the progress line */
  for (uint32_t round = 0; round < wanted;) {
    bool noisy;
    if (!round_run(b, result, round, &noisy)) return false;
    tries--;
    bool again = noisy && tries >= wanted - round;
    if (!again) round++;
    result->noisy += noisy && !again;
  }
  return true;
}

/* ---- The command ---- */

struct asked {
  const char *only;
  const char *out;
  const char *floor, *upset;
  bool smoke, help;
  int64_t rounds, ms; /* 0: not given */
  double calm;
};

/* Is `key` one of the words of a list with commas?  A NULL list has them all. */
static bool listed(const char *list, const char *key) {
  if (!list) return true;
  size_t length = strlen(key);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    if (!strncmp(at, key, length) && (at[length] == 0 || at[length] == ',')) return true;
  }
  return false;
}

/* Which cases are run when none is named. */
static enum bench_where where(const struct bench *b) {
  if (b->store[dibs__bench_first(b->store)]) return BENCH_IN_TIERS;
  if (!b->floor) return BENCH_IN_FILE;
  return strncmp(b->store, "redis", 5) == 0 ? BENCH_AT_REDIS : BENCH_AT_SQL;
}

static bool chosen(const struct bench_case *test, const char *only, enum bench_where here) {
  return only ? listed(only, test->key) : test->where == here;
}

static size_t count_cases(const char *only, enum bench_where here) {
  size_t count = 0;
  for (const struct bench_case *test = dibs__bench_cases; test->key; test++) count += chosen(test, only, here);
  return count;
}

/* Every word of the list is a case, and there is one. */
static bool cases_known(const char *only) {
  size_t words = 1;
  for (const char *at = only; at && *at; at++) words += *at == ',';
  return only ? count_cases(only, BENCH_ASKED) == words : true;
}

static int parse(int argc, char **argv, struct asked *asked, const struct cli_globals *globals) {
  static const struct option options[] = {
      {"rounds", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 's'},
      {"only", required_argument, NULL, 'o'},   {"out", required_argument, NULL, 'w'},
      {"calm", required_argument, NULL, 'c'},   {"floor", required_argument, NULL, 'f'},
      {"upset", required_argument, NULL, 'u'},  {"smoke", no_argument, NULL, 'k'},
      {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  opterr = 0;
  optind = 1;
  for (int got; (got = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    char *end = NULL;
    if (got == 'r')
      asked->rounds = strtoll(optarg, &end, 10);
    else if (got == 's')
      asked->ms = (int64_t)(strtod(optarg, &end) * 1000 + 0.5);
    else if (got == 'c')
      asked->calm = strtod(optarg, &end);
    else if (got == 'o')
      asked->only = optarg;
    else if (got == 'w')
      asked->out = optarg;
    else if (got == 'f')
      asked->floor = optarg;
    else if (got == 'u')
      asked->upset = optarg;
    else if (got == 'h')
      asked->help = true;
    else if (got == 'k')
      asked->smoke = true;
    else
      return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: %s is no option of it", argv[optind - 1]);
    if (end && (*end || end == optarg))
      return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: %s is no number", optarg);
  }
  if (asked->help) return CLI_DONE;
  if (optind != argc - 1 || strcmp(argv[optind], "lease") != 0) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: say what to measure: dibs bench lease");
  }
  if (asked->rounds < 0 || asked->rounds > BENCH_ROUNDS_MAX) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: 1 to %d rounds", BENCH_ROUNDS_MAX);
  }
  if (asked->ms && (asked->ms < ROUND_MS_MIN || asked->ms > ROUND_MS_MAX)) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID", "bench: 0.01 to 600 seconds");
  }
  if (!cases_known(asked->only)) {
    return dibs__cli_fail(globals, CLI_USAGE, "INVALID",
                          "bench: %s is not a list of cases; `dibs bench lease --help` names them", asked->only);
  }
  return CLI_DONE;
}

static bool write_out(struct bench *b, const char *path, const struct bench_result *results, size_t count) {
  FILE *file = fopen(path, "we");
  if (!file) return dibs__bench_fail(b, "%s can't be written: %s", path, strerror(errno));
  dibs__bench_json(b, results, count, file);
  bool bad = ferror(file);
  if (fclose(file) || bad) return dibs__bench_fail(b, "%s can't be written: %s", path, strerror(errno));
  return true;
}

static bool cases_run(struct bench *b, const struct asked *asked, bool json) {
  struct bench_result *results = calloc(count_cases(asked->only, where(b)), sizeof *results);
  if (!results) return dibs__bench_fail(b, "out of memory");
  size_t count = 0;
  bool done = true;
  if (!json) dibs__bench_print_head(b, stdout);
  for (const struct bench_case *test = dibs__bench_cases; done && test->key; test++) {
    if (!chosen(test, asked->only, where(b))) continue;
    results[count].test = test;
    done = case_run(b, &results[count]);
    if (done && !json) dibs__bench_print(&results[count], stdout);
    count += done;
  }
  if (done && json) dibs__bench_json(b, results, count, stdout);
  if (done && asked->out) done = write_out(b, asked->out, results, count);
  free(results);
  return done;
}

static int help(const struct cli_globals *globals) {
  puts("usage: dibs bench lease [--rounds N] [--seconds S] [--calm P] [--only CASE[,CASE]]\n"
       "                        [--floor PROGRAM] [--upset COMMAND] [--smoke] [--out FILE] [--json]\n\n"
       "Measures what leases cost on this machine, each case against a floor that is measured in the same\n"
       "rounds: the bare transactions, a mutex, flock(2).  Without --store in a folder of its own in $TMPDIR.\n\n"
       "  --rounds N    alternating rounds, of which the median counts (5)\n"
       "  --seconds S   of each side in each round (1)\n"
       "  --calm P      run a round again, some times, if others used more than P percent of the processors\n"
       "  --only CASES  some of the cases\n"
       "  --floor PROG  with --store of a server: a program that measures it without dibs, as bench/floors has them;\n"
       "                then the cases are those that begin with server-, or with redis- where that is the store.\n"
       "                With a --store of several tiers they are those that begin with tiers-\n"
       "  --upset CMD   for tiers-fallback: what takes the first tier away\n"
       "  --smoke       everything very small: does it work at all?\n"
       "  --out FILE    the figures as JSON in FILE, beside the table\n"
       "  --json        the figures as JSON instead of the table\n\nCases:");
  for (const struct bench_case *test = dibs__bench_cases; test->key; test++)
    printf("  %-16s %s\n", test->key, test->title);
  return dibs__cli_flush(globals);
}

int dibs_cli_bench(int argc, char **argv, const struct cli_globals *globals) {
  if (argc > 1 && !strcmp(argv[1], "helper")) return dibs__bench_helper(argc - 2, argv + 2);
  struct asked asked = {.only = NULL};
  int code = parse(argc, argv, &asked, globals);
  if (code) return code;
  if (asked.help) return help(globals);

  static struct bench b;
  char own[sizeof b.folder + 64];
  b.size = asked.smoke ? smoke : whole;
  if (asked.rounds) b.size.rounds = (uint32_t)asked.rounds;
  if (asked.ms) b.size.ms = asked.ms;
  b.size.calm = asked.calm;
  b.floor = asked.floor;
  b.upset = asked.upset;
  if (!folder_make(&b, globals)) return dibs__cli_fail(globals, CLI_FAILED, "", "bench: %s", b.why);
  b.store = globals->store_given ? globals->store : own;
  bool done = globals->store_given || dibs__bench_file_uri(&b, "lease.db", own, sizeof own) ||
              dibs__bench_fail(&b, "%s is too long", b.folder);
  if (!globals->store_given) snprintf(b.shown, sizeof b.shown, "%s", own);

  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  setenv("DIBS_STORE", b.store, 1); /* for `dibs run` */
  if (done) done = cases_run(&b, &asked, globals->json);
  folder_remove(b.folder);
  if (interrupted) return CLI_SIGNAL + interrupted;
  return done ? dibs__cli_flush(globals) : dibs__cli_fail(globals, CLI_FAILED, "", "bench: %s", b.why);
}
