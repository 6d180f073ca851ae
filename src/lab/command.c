/* SPDX-License-Identifier: MIT */
/*
 * The program dibs-lab, which `dibs lab` and `dibs bench` become, with the same arguments (dibs-lab lab race); and the
 * options of `dibs lab`.
 */
#include "base/duration.h"
#include "cli/cli.h"
#include "lab/bench.h"
#include "lab/lab.h"
#include "lab/locks.h"
#include "lab/own.h"
#include "lab/print.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct experiment {
  const char *name;
  bool (*run)(struct lab *lab);
  const char *uses; /* options, by the letters below; --html and --help are for all */
};
static const struct experiment experiments[] = {
    {"race", dibs__lab_race, "ugalpkx"},        {"throughput", dibs__lab_throughput, "ugsalrpfkx"},
    {"contend", dibs__lab_contend, "ugslwpkx"}, {"deadlock", dibs__lab_deadlock, "k"},
    {"pause", dibs__lab_pause, "tGx"},          {"crash", dibs__lab_crash, "tkx"},
    {"failover", dibs__lab_failover, "us"},     {"amnesia", dibs__lab_amnesia, "x"},
    {"counter", dibs__lab_counter, "uskx"},     {"phases", dibs__lab_phases, "tkx"}};
enum { EXPERIMENTS = sizeof experiments / sizeof *experiments };

struct lab_requested {
  const struct experiment *experiment;
  const char *html;
  bool all, help, seats; /* given */
  uint32_t options;      /* a bit for each that was given, in the order of lab_options */
};

static int cli_lab_help(const struct cli_globals *globals) {
  puts("usage: dibs lab EXPERIMENT|all [OPTION...]\n\n"
       "Runs classic experiments on a row that many clients change, with every strategy, also with those that are\n"
       "expected to break.  Creates tables dibs_lab_... in the store and drops them at the end.  Without --store and\n"
       "$DIBS_STORE it uses a temporary embedded store in $TMPDIR.\n\n"
       "  race        many applicants for few seats, all at once\n"
       "  throughput  users that book on one row, as fast as they can\n"
       "  contend     the same load on 1 to 10,000 rows: where strategies cross\n"
       "  deadlock    the deadlock of a foreign key, step by step, and how to avoid it\n"
       "  pause       a holder that is stopped past its ttl and writes late\n"
       "  crash       a worker that is killed half way in a phase of its task\n"
       "  failover    a Redis, of the lab's own, that is killed under load; the next tier takes over\n"
       "  amnesia     a Redis, of the lab's own, that forgets who holds a lock\n"
       "  counter     additions to one number, by dibs and by hand; then their process is killed\n"
       "  phases      rows that nodes take from phase to phase, while one is killed and one is stopped; with dibs'\n"
       "              claims and polled by hand (in a table of SQLite, PostgreSQL, MariaDB or MySQL, or in MongoDB)\n"
       "  all         each of them; with --html DIR a page for each, and an index\n");
  puts("  --users N[,N...]      number of concurrent users (race 100, otherwise 20)\n"
       "  --strategies S[,S...] run only these strategies (all that need no --locks)\n"
       "  --locks URI           also run the strategies that lock in another store than that of the rows: "
       "redis://HOST,\n"
       "                        redlock://HOST,HOST,HOST, mysql://HOST/DB?lock=named, "
       "postgres://HOST/DB?lock=advisory;\n"
       "                        may be given up to 4 times\n"
       "  --seconds TIME        how long each strategy runs: 2s, 1m, or seconds (throughput 60, contend 3, counter 5); "
       "failover:\n"
       "                        in all (12)\n"
       "  --seats N             number of seats in race (50) and throughput (1000000000)\n"
       "  --rows N[,N...]       numbers of rows in contend (1,10,100,1000,10000)\n"
       "  --rounds R            number of alternating rounds; the medians count (1)\n"
       "  --processes N         run the users in N processes, instead of threads of one process\n"
       "  --floor PROGRAM       in each round also run a bare client (bench/floors); it gets the store by --uri\n"
       "  --ttl TIME            ttl of the lease in pause, of the claim in crash and phases (1s)\n"
       "  --gate URL            in pause: also a service behind a gate; GET answers a number, PUT sets it\n"
       "  --html FILE           write a report with plots, as one self-contained file; with all: a folder\n"
       "  --keep                keep the tables\n"
       "  --strict              fail also if a strategy breaks that is expected to break\n\nStrategies:");
  for (size_t i = 0; i < dibs__lab_way_count; i++)
    printf("  %-18s %s%s\n", dibs__lab_ways[i].name, dibs__lab_ways[i].what,
           dibs__lab_ways[i].promised ? "" : "; expected to break");
  puts("\nExit codes: 0 done, and every promise held; 116 a promise was broken; others as in dibs help exits.");
  return dibs__cli_flush(globals);
}

static int fail_option(const struct cli_globals *g, const char *option, const char *value, const char *wanted) {
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: --%s: '%.40s' is not %s", option, value, wanted);
}

static bool parse_number(const char *text, size_t length, uint64_t least, uint64_t most, uint32_t *to) {
  char own[24];
  uint64_t n;
  if (length >= sizeof own) return false;
  memcpy(own, text, length);
  own[length] = '\0';
  if (!dibs__cli_number(own, most, &n) || n < least) return false;
  *to = (uint32_t)n;
  return true;
}

static bool numbers(const char *text, uint64_t most, uint32_t *list, size_t *count) {
  *count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    if (*count == LAB_LIST_MAX || !parse_number(at, length, 1, most, &list[*count])) return false;
    ++*count;
    at += length;
    if (!*at) return true;
  }
}

/* "2", "0.5", or with a unit, like other durations. */
static bool parse_seconds(const char *text, int64_t *ms) {
  char *end, why[160];
  if (dibs__duration_read(text, ms, why, sizeof why)) return *ms >= 50 && *ms <= 86400000;
  double value = strtod(text, &end);
  if (end == text || *end || !(value >= 0.05 && value <= 86400)) return false;
  *ms = (int64_t)(value * 1000 + 0.5);
  return true;
}

static bool lock_store(const char *uri) {
  return dibs__lab_lock_fits(LAB_LOCK_LEASE, uri) || dibs__lab_lock_fits(LAB_LOCK_QUORUM, uri) ||
         dibs__lab_lock_fits(LAB_LOCK_SERVER, uri);
}

/* Without the text: it may contain a password. */
static int fail_locks(const struct cli_globals *g, const char *uri) {
  size_t scheme = strcspn(uri, ":");
  return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                        "lab: --locks: '%.*s:...' is not a store for locks: up to %d of redis://HOST, "
                        "redlock://HOST,HOST,HOST, mysql://HOST/DATABASE?lock=named, "
                        "postgres://HOST/DATABASE?lock=advisory",
                        (int)(scheme < 20 ? scheme : 20), uri, (int)LAB_LOCKS_MAX);
}

/* flat: a case for each option */
static int set_option(const struct cli_globals *g, int option, const char *name, const char *value, struct lab *lab,
                      struct lab_requested *requested) {
  char why[64];
  switch (option) {
  case 'u':
    if (numbers(value, LAB_USERS_MAX, lab->users, &lab->users_count)) return CLI_DONE;
    return fail_option(g, name, value, "a list of up to 16 numbers from 1 to 4096");
  case 'w':
    if (numbers(value, LAB_ROWS_MAX, lab->rows, &lab->rows_count)) return CLI_DONE;
    return fail_option(g, name, value, "a list of up to 16 numbers from 1 to 100000");
  case 's':
    if (parse_seconds(value, &lab->ms)) return CLI_DONE;
    return fail_option(g, name, value, "a time from 50ms to 24h: 2s, 1m, or a number of seconds");
  case 'g':
    lab->strategies = value;
    if (dibs__lab_ways_known(value, why, sizeof why)) return CLI_DONE;
    return fail_option(g, name, why, "one of the strategies; dibs lab --help lists them");
  case 'a':
    requested->seats = true;
    return parse_number(value, strlen(value), 0, LAB_SEATS_MAX, &lab->seats)
               ? CLI_DONE
               : fail_option(g, name, value, "up to 1000000000");
  case 'l':
    if (lab->locks_count < LAB_LOCKS_MAX && strlen(value) <= LAB_URI_MAX && lock_store(value)) {
      lab->locks[lab->locks_count++] = value;
      return CLI_DONE;
    }
    return fail_locks(g, value);
  case 'r':
    return parse_number(value, strlen(value), 1, LAB_ROUNDS_MAX, &lab->rounds)
               ? CLI_DONE
               : fail_option(g, name, value, "from 1 to 25");
  case 'p':
    return parse_number(value, strlen(value), 1, LAB_PROCESSES_MAX, &lab->processes)
               ? CLI_DONE
               : fail_option(g, name, value, "from 1 to 64");
  case 't':
    if (dibs__duration_read(value, &lab->ttl_ms, why, sizeof why) && lab->ttl_ms >= 500 && lab->ttl_ms <= 60000)
      return CLI_DONE;
    return fail_option(g, name, value, "from 500ms to 60s");
  case 'f':
    lab->floor = value;
    return CLI_DONE;
  case 'G':
    lab->gate = value;
    return strlen(value) <= LAB_URL_MAX && strncmp(value, "http", 4) == 0
               ? CLI_DONE
               : fail_option(g, name, value, "a URL, as http://127.0.0.1:7381/value");
  case 'h':
    requested->html = value;
    return CLI_DONE;
  case 'k':
    lab->keep = true;
    return CLI_DONE;
  case 'x':
    lab->strict = true;
    return CLI_DONE;
  default:
    requested->help = true;
    return CLI_DONE;
  }
}

/* The defaults of options. */
static void defaults(struct lab *lab, const struct lab_requested *requested, const char *experiment) {
  static const uint32_t rows[] = {1, 10, 100, 1000, 10000};
  bool race = strcmp(experiment, "race") == 0, contend = strcmp(experiment, "contend") == 0;
  bool failover = strcmp(experiment, "failover") == 0, counter = strcmp(experiment, "counter") == 0;
  if (!lab->users_count) lab->users[lab->users_count++] = race ? 100 : 20;
  if (!lab->rows_count) {
    memcpy(lab->rows, rows, sizeof rows);
    lab->rows_count = sizeof rows / sizeof *rows;
  }
  if (!lab->ms) lab->ms = contend ? 3000 : counter ? 5000 : failover ? 12000 : requested->all ? 10000 : 60000;
  /* With few seats for all, those of a race, users of the other experiments would have nothing to do. */
  if (!requested->seats || (requested->all && !race)) lab->seats = race ? 50 : LAB_SEATS_MAX;
  if (!lab->rounds) lab->rounds = 1;
  if (!lab->ttl_ms) lab->ttl_ms = 1000;
}

static const struct option lab_options[] = {
    {"users", required_argument, NULL, 'u'},   {"strategies", required_argument, NULL, 'g'},
    {"seconds", required_argument, NULL, 's'}, {"seats", required_argument, NULL, 'a'},
    {"locks", required_argument, NULL, 'l'},   {"rows", required_argument, NULL, 'w'},
    {"rounds", required_argument, NULL, 'r'},  {"processes", required_argument, NULL, 'p'},
    {"floor", required_argument, NULL, 'f'},   {"ttl", required_argument, NULL, 't'},
    {"gate", required_argument, NULL, 'G'},    {"html", required_argument, NULL, 'h'},
    {"keep", no_argument, NULL, 'k'},          {"strict", no_argument, NULL, 'x'},
    {"help", no_argument, NULL, '?' + 128},    {NULL, 0, NULL, 0}};

/* An option without an effect would be a figure of something else than was requested. */
static int check_used(const struct cli_globals *g, const struct lab *lab, const struct lab_requested *requested) {
  const struct experiment *e = requested->experiment;
  for (size_t i = 0; lab_options[i].name; i++) {
    if (!(requested->options >> i & 1) || lab_options[i].val == 'h') continue;
    if (!strchr(e->uses, lab_options[i].val))
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: %s does not use --%s; see dibs lab --help", e->name,
                            lab_options[i].name);
  }
  if (lab->users_count > 1 && e->run != dibs__lab_throughput)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: %s takes one number of --users; throughput takes several",
                          e->name);
  return CLI_DONE;
}

/* CLI_DONE, or CLI_USAGE after a message. */
static int cli_lab_options(int argc, char **argv, const struct cli_globals *g, struct lab *lab,
                           struct lab_requested *requested) {
  *lab = (struct lab){.trouble = DIBS_UNAVAILABLE};
  opterr = 0;
  optind = 1;
  int index = 0;
  for (int got; (got = getopt_long(argc, argv, ":", lab_options, &index)) != -1;) {
    if (got == ':')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: %s needs a value; see dibs lab --help", argv[optind - 1]);
    if (got == '?')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: there is no option %s; see dibs lab --help",
                            argv[optind - 1]);
    int code = set_option(g, got, lab_options[index].name, optarg, lab, requested);
    if (code) return code;
    requested->options |= 1u << index;
  }
  if (requested->help) return CLI_DONE;
  requested->all = optind == argc - 1 && strcmp(argv[optind], "all") == 0;
  for (size_t i = 0; optind == argc - 1 && i < EXPERIMENTS; i++)
    if (strcmp(argv[optind], experiments[i].name) == 0) requested->experiment = &experiments[i];
  if (requested->experiment) return check_used(g, lab, requested);
  if (requested->all) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                        "lab: which experiment? race, throughput, contend, deadlock, pause, crash, failover, amnesia, "
                        "counter, phases or all; see dibs lab --help");
}

/* `dibs lab`: finds the store, runs the experiment, prints the results. */

enum { PATH_BYTES = 4096 };

static atomic_int interrupted;

/* The first signal ends the experiment, the second one the lab. */
static void on_signal(int number) {
  atomic_store(&interrupted, number);
}

/* ---- A temporary store ---- */

static bool own_store(char folder[LAB_FOLDER_MAX], char *uri, size_t size) {
  if (!dibs__lab_folder_make(folder)) return false;
  snprintf(uri, size, "sqlite://%s/lab.db", folder);
  return true;
}

/* ---- Printing ---- */

/* The file of --html is opened before the experiment, so that a run of minutes does not end without its report.  What
 * it contained stays until the report is written. */
struct page {
  const char *path; /* NULL: none is wanted */
  FILE *file;
  bool created;
};

static int page_open(const struct cli_globals *globals, const char *path, struct page *page) {
  *page = (struct page){.path = path};
  if (path == NULL) return CLI_DONE;
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  page->created = fd >= 0;
  if (fd < 0 && errno == EEXIST) fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd >= 0) page->file = fdopen(fd, "w");
  if (page->file != NULL) return CLI_DONE;
  int error = errno;
  if (fd >= 0) close(fd);
  return dibs__cli_fail(globals, CLI_FAILED, "", "lab: cannot write the report to %s: %s; nothing was run", path,
                        strerror(error));
}

static int page_write(const struct cli_globals *globals, const struct lab_sheet *sheet, struct page *page) {
  struct stat st;
  bool bad = fstat(fileno(page->file), &st) != 0;
  if (!bad && S_ISREG(st.st_mode)) bad = ftruncate(fileno(page->file), 0) != 0;
  if (!bad) dibs__lab_report(sheet, page->file);
  if (ferror(page->file)) bad = true;
  if (fclose(page->file)) bad = true;
  page->file = NULL;
  if (!bad) return CLI_DONE;
  return dibs__cli_fail(globals, CLI_FAILED, "", "lab: cannot write the report to %s: %s", page->path, strerror(errno));
}

static void page_close(struct page *page) {
  if (page->file == NULL) return;
  fclose(page->file);
  if (page->created) unlink(page->path);
}

/* ---- One experiment ---- */

static int print_sheet(const struct cli_globals *globals, const struct lab *lab, struct page *page) {
  struct dibs__json json = {.out = stdout};
  if (globals->json)
    dibs__lab_json(&json, &lab->sheet);
  else
    dibs__lab_print(&lab->sheet, stdout);
  int code = dibs__cli_flush(globals);
  if (!code && page->file) code = page_write(globals, &lab->sheet, page);
  if (!code && page->path) dibs__cli_note(globals, "the report is in %s", page->path);
  return code;
}

/* false: `why`, which holds LAB_WHY_MAX. */
static bool perform(struct lab *lab, const struct experiment *experiment, char *why) {
  lab->sheet.experiment = experiment->name;
  bool done = dibs__lab_open(lab) && experiment->run(lab);
  snprintf(why, LAB_WHY_MAX, "%s", lab->why); /* closing may have troubles of its own */
  lab->sheet.interrupted = !done || dibs__lab_ended(lab);
  dibs__lab_close(lab);
  if (lab->progress) dibs__cli_progress(NULL);
  return done;
}

static int run_one(const struct cli_globals *globals, struct lab *lab, const struct lab_requested *requested) {
  char why[LAB_WHY_MAX];
  struct page page;
  int code = page_open(globals, requested->html, &page);
  if (code) return code;
  defaults(lab, requested, requested->experiment->name);
  bool done = perform(lab, requested->experiment, why);
  int signal = atomic_load(&interrupted);
  if (done || lab->sheet.part_count) code = print_sheet(globals, lab, &page);
  page_close(&page);
  if (code) return code;
  if (lab->sheet.full) return dibs__cli_fail(globals, CLI_FAILED, "NO_MEMORY", "lab: out of memory");
  if (lab->sheet.broken) return dibs__cli_fail(globals, CLI_TROUBLE, "", "lab: a promise was broken; see the table");
  if (signal) return CLI_SIGNAL + signal;
  if (done) return CLI_DONE;
  return dibs__cli_fail(globals, dibs__cli_exit_of(lab->trouble), dibs_status_name(lab->trouble), "lab: %s", why);
}

/* ---- All experiments ---- */

struct tour {
  const struct cli_globals *globals;
  const struct lab_requested *requested;
  struct dibs__json json;
  struct lab_index index;
  size_t ran;
  bool broken, full;
  dibs_status trouble; /* of the first experiment that could not run, and why */
  char why[LAB_WHY_MAX];
};

static int open_in_folder(const struct tour *tour, const char *name, struct page *page, char path[PATH_BYTES]) {
  if (!tour->requested->html) return page_open(tour->globals, NULL, page);
  snprintf(path, PATH_BYTES, "%s/%s.html", tour->requested->html, name);
  return page_open(tour->globals, path, page);
}

static int visit(struct tour *tour, struct lab *lab, const struct experiment *experiment) {
  char path[PATH_BYTES], why[LAB_WHY_MAX];
  struct page page;
  int code = open_in_folder(tour, experiment->name, &page, path);
  if (code) return code;
  defaults(lab, tour->requested, experiment->name);
  lab->sheet.has_index = page.path != NULL;
  bool done = perform(lab, experiment, why);
  if (!done && !lab->sheet.part_count && !dibs__lab_ended(lab)) dibs__lab_fail_sheet(&lab->sheet, why);
  if (!done && lab->sheet.part_count && why[0]) dibs__lab_note(&lab->sheet, "%s", why);
  if (!done && tour->trouble == DIBS_OK) {
    tour->trouble = lab->trouble;
    snprintf(tour->why, sizeof tour->why, "%s", why);
  }
  tour->ran += done;
  tour->broken = tour->broken || lab->sheet.broken;
  if (tour->globals->json)
    dibs__lab_json(&tour->json, &lab->sheet);
  else
    dibs__lab_print(&lab->sheet, stdout);
  if (!tour->globals->json) putchar('\n');
  if (page.file) dibs__lab_index_add(&tour->index, &lab->sheet);
  tour->full = tour->full || lab->sheet.full || tour->index.facts.full;
  if (page.file) code = page_write(tour->globals, &lab->sheet, &page);
  page_close(&page);
  return code;
}

static int write_index(struct tour *tour, struct page *page) {
  if (!page->file) return CLI_DONE;
  if (ftruncate(fileno(page->file), 0) == 0) dibs__lab_index_write(&tour->index, page->file);
  bool bad = ferror(page->file) != 0;
  if (fclose(page->file)) bad = true;
  page->file = NULL;
  if (bad)
    return dibs__cli_fail(tour->globals, CLI_FAILED, "", "lab: cannot write %s: %s", page->path, strerror(errno));
  dibs__cli_note(tour->globals, "the reports are in %s", page->path);
  return CLI_DONE;
}

static int run_all(const struct cli_globals *globals, const struct lab *request,
                   const struct lab_requested *requested) {
  static struct tour tour;
  static struct lab lab;
  char path[PATH_BYTES];
  struct page page;
  tour = (struct tour){.globals = globals, .requested = requested, .json = {.out = stdout}, .trouble = DIBS_OK};
  if (requested->html && mkdir(requested->html, 0777) != 0 && errno != EEXIST)
    return dibs__cli_fail(globals, CLI_FAILED, "", "lab: cannot create the folder %s: %s; nothing was run",
                          requested->html, strerror(errno));
  int code = open_in_folder(&tour, "index", &page, path);
  if (code) return code;
  if (globals->json) {
    dibs__json_open(&tour.json, NULL, '{');
    dibs__json_text(&tour.json, "lab", "all");
    dibs__json_open(&tour.json, "experiments", '[');
  }
  for (size_t i = 0; !code && i < EXPERIMENTS && !atomic_load(&interrupted); i++) {
    lab = *request;
    code = visit(&tour, &lab, &experiments[i]);
    dibs__lab_sheet_free(&lab.sheet);
  }
  if (globals->json) {
    dibs__json_close(&tour.json, ']');
    dibs__json_bool(&tour.json, "held", !tour.broken);
    dibs__json_close(&tour.json, '}');
  }
  int flushed = dibs__cli_flush(globals), signal = atomic_load(&interrupted);
  if (!code) code = flushed;
  if (!code) code = write_index(&tour, &page);
  page_close(&page);
  dibs__lab_index_free(&tour.index);
  if (code) return code;
  if (tour.full) return dibs__cli_fail(globals, CLI_FAILED, "NO_MEMORY", "lab: out of memory");
  if (tour.broken) return dibs__cli_fail(globals, CLI_TROUBLE, "", "lab: a promise was broken; see the tables");
  if (signal) return CLI_SIGNAL + signal;
  if (tour.ran) return CLI_DONE;
  return dibs__cli_fail(globals, dibs__cli_exit_of(tour.trouble), dibs_status_name(tour.trouble), "lab: %s", tour.why);
}

/* ---- The command ---- */

static int run_lab(struct cli_call *call) {
  const struct cli_globals *globals = &call->v.globals;
  int argc = call->nrest;
  char **argv = call->rest;
  if (argc > 1 && strcmp(argv[1], "helper") == 0) return dibs__lab_helper(argc - 2, argv + 2);
  static struct lab lab;
  struct lab_requested requested = {0};
  int code = cli_lab_options(argc, argv, globals, &lab, &requested);
  if (code) return code;
  if (requested.help) return cli_lab_help(globals);

  char folder[LAB_FOLDER_MAX] = "", uri[LAB_FOLDER_MAX + 32];
  lab.uri = globals->store;
  if (!lab.uri) {
    if (!own_store(folder, uri, sizeof uri))
      return dibs__cli_fail(globals, CLI_FAILED, "", "lab: cannot create a folder for a temporary store: %s",
                            strerror(errno));
    lab.uri = uri;
  }
  if (strcmp(lab.uri, "memory:") == 0)
    lab.uri = "memory:lab"; /* without a name each user would have a store of its own */
  lab.interrupted = &interrupted;
  if (dibs__cli_shows_progress(globals)) lab.progress = dibs__lab_progress;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  code = requested.all ? run_all(globals, &lab, &requested) : run_one(globals, &lab, &requested);
  dibs__lab_sheet_free(&lab.sheet);
  dibs__lab_folder_remove(folder);
  return code;
}

/* ---- The program ---- */

#define MAY_ALWAYS (CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(STORE) | CLI_MAY(USAGE))

/* flat: the table of commands; that of dibs has the same two, with more words */
const struct cli_command dibs__cli_commands[] = {
    {"bench", "lease [OPTION...]", "measure what a lease costs on this machine", 0, MAY_ALWAYS, 0, 0, false, true,
     dibs__bench_command, "", "dibs bench lease"},
    {"lab", "EXPERIMENT [OPTION...]", "compare strategies on a row that many clients change", 0,
     MAY_ALWAYS | CLI_MAY(TROUBLE) | CLI_MAY(SIGNAL), 0, 0, false, true, run_lab, "", "dibs lab race --html race.html"},
    {"help", "[COMMAND|exits]", "print help", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 1, false, false,
     dibs__cli_help, "", "dibs help lab"},
    {"version", "", "print the version", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 0, false, false,
     dibs__cli_version, "", "dibs-lab version --json"},
    {0}};

const struct cli_program dibs__cli_program = {"dibs-lab", "the experiments and benchmarks of dibs", NULL};

int main(int argc, char **argv) {
  return dibs__cli_main(argc, argv);
}
