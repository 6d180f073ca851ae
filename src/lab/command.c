/* SPDX-License-Identifier: MIT */
/*
 * The program dibs-lab, which `dibs lab` and `dibs bench` become, with the same arguments (dibs-lab lab race); and the
 * options of `dibs lab`.
 */
#include "base/duration.h"
#include "cli/cli.h"
#include "lab/bench.h"
#include "lab/lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct lab_requested {
  const char *experiment, *html;
  bool help;
};

static const char *const experiment_names[] = {"race", "throughput", "deadlock", "pause", "contend"};

static int cli_lab_help(const struct cli_globals *globals) {
  puts("usage: dibs lab race|throughput|deadlock|pause|contend [OPTION...]\n\nRuns classic experiments on a row that "
       "many clients change, with every strategy, also with those that are\nexpected to break.  Creates tables "
       "dibs_lab_... in the store and drops them at the end.  Without --store and\n$DIBS_STORE it uses a temporary "
       "embedded store in $TMPDIR.\n\n  race        many applicants for few seats, all at once\n  throughput  users "
       "that book on one row, as fast as they can\n  deadlock    the deadlock of a foreign key, step by step, and how "
       "to avoid it\n  pause       a holder that is stopped past its ttl and writes late\n  contend     the same load "
       "on 1 to 10,000 rows: where strategies cross\n\n  --users N[,N...]      number of concurrent users (race 100, "
       "throughput 20, contend 20)\n  --strategies S[,S...] run only these strategies (all)\n  --seconds TIME        "
       "how long each strategy runs: 2s, 1m, or seconds (throughput 60, contend 3)\n  --seats N             number of "
       "seats in the race (50)\n  --rows N[,N...]       numbers of rows in contend (1,10,100,1000,10000)\n  --rounds R "
       "           number of alternating rounds; the medians count (1)\n  --processes N         run the users in N "
       "processes, instead of threads of one process\n  --floor PROGRAM       in each round also run a bare client "
       "(bench/floors); it gets the store by --uri\n  --ttl TIME            ttl of the lease in pause (1s)\n  --gate "
       "URL            in pause: also a "
       "service behind a gate; GET answers a number, PUT sets it\n  --html "
       "FILE           write a report with plots, as one self-contained file\n  --keep                keep the "
       "tables\n  --strict              fail also if a strategy breaks that is expected to break\n\nStrategies:");
  for (size_t i = 0; i < dibs__lab_way_count; i++)
    printf("  %-12s %s%s\n", dibs__lab_ways[i].name, dibs__lab_ways[i].what,
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
    return parse_number(value, strlen(value), 0, 1000000, &lab->seats) ? CLI_DONE
                                                                       : fail_option(g, name, value, "up to 1000000");
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
static void defaults(struct lab *lab, const char *experiment) {
  static const uint32_t rows[] = {1, 10, 100, 1000, 10000};
  bool race = strcmp(experiment, "race") == 0, contend = strcmp(experiment, "contend") == 0;
  if (!lab->users_count) lab->users[lab->users_count++] = race ? 100 : 20;
  if (!lab->rows_count) {
    memcpy(lab->rows, rows, sizeof rows);
    lab->rows_count = sizeof rows / sizeof *rows;
  }
  if (!lab->ms) lab->ms = contend ? 3000 : 60000;
  if (!lab->rounds) lab->rounds = 1;
  if (!lab->ttl_ms) lab->ttl_ms = 1000;
}

/* CLI_DONE, or CLI_USAGE after a message.  Sets defaults. */
static int cli_lab_options(int argc, char **argv, const struct cli_globals *g, struct lab *lab,
                           struct lab_requested *requested) {
  static const struct option options[] = {{"users", required_argument, NULL, 'u'},
                                          {"strategies", required_argument, NULL, 'g'},
                                          {"seconds", required_argument, NULL, 's'},
                                          {"seats", required_argument, NULL, 'a'},
                                          {"rows", required_argument, NULL, 'w'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"processes", required_argument, NULL, 'p'},
                                          {"floor", required_argument, NULL, 'f'},
                                          {"ttl", required_argument, NULL, 't'},
                                          {"gate", required_argument, NULL, 'G'},
                                          {"html", required_argument, NULL, 'h'},
                                          {"keep", no_argument, NULL, 'k'},
                                          {"strict", no_argument, NULL, 'x'},
                                          {"help", no_argument, NULL, '?' + 128},
                                          {NULL, 0, NULL, 0}};
  *lab = (struct lab){.seats = 50, .trouble = DIBS_UNAVAILABLE};
  opterr = 0;
  optind = 1;
  int index = 0;
  for (int got; (got = getopt_long(argc, argv, ":", options, &index)) != -1;) {
    if (got == ':')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: %s needs a value; see dibs lab --help", argv[optind - 1]);
    if (got == '?')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: there is no option %s; see dibs lab --help",
                            argv[optind - 1]);
    int code = set_option(g, got, options[index].name, optarg, lab, requested);
    if (code) return code;
  }
  if (requested->help) return CLI_DONE;
  for (size_t i = 0; optind == argc - 1 && i < sizeof experiment_names / sizeof *experiment_names; i++)
    if (strcmp(argv[optind], experiment_names[i]) == 0) requested->experiment = experiment_names[i];
  if (!requested->experiment)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "lab: which experiment? race, throughput, deadlock, pause or contend; see dibs lab --help");
  defaults(lab, requested->experiment);
  return CLI_DONE;
}

/* A sheet as tables for people and as JSON for machines, and the line of progress. */

enum { BAR = 22, SIDE_MIN = 24 };

/* ---- Tables ---- */

/* Copies of heads: the table needs a mark before those of numbers. */
static void print_table(const struct lab_table *table, FILE *out) {
  char heads[CLI_CELLS_MAX][48], text[256];
  const char *list[CLI_CELLS_MAX + 1];
  size_t columns = table->column_count < CLI_CELLS_MAX ? table->column_count : CLI_CELLS_MAX;
  for (size_t i = 0; i < columns; i++) {
    snprintf(heads[i], sizeof heads[i], "%s%s", table->columns[i].kind == LAB_TEXT ? "" : ">", table->columns[i].head);
    list[i] = heads[i];
  }
  list[columns] = NULL;
  struct cli_table *shown = dibs__cli_table_new(list);
  bool fine = shown != NULL;
  for (size_t i = 0; fine && table->column_count && i < table->count; i++) {
    if (i % table->column_count >= columns) continue;
    dibs__lab_figure(text, sizeof text, table->columns[i % table->column_count].kind, &table->cells[i]);
    fine = dibs__cli_table_add(shown, text);
  }
  fprintf(out, "\n%s\n", table->title ? table->title : "");
  if (fine) dibs__cli_table_print(shown, dibs__cli_columns(fileno(out)), out);
  dibs__cli_table_free(shown);
}

static const char *mood_mark(enum lab_mood mood) {
  return mood == LAB_BAD ? "! " : mood == LAB_EXPECTED ? "~ " : "  ";
}

static void print_step(const struct lab_step *step, size_t side, FILE *out) {
  const char *texts[] = {step->does, step->gets};
  for (size_t i = 0; i < 2; i++) {
    if (!texts[i] || !*texts[i]) continue;
    const char *before = i ? "-> " : "";
    if (step->side < 0)
      fprintf(out, "%s%s%s\n", mood_mark(step->mood), before, texts[i]);
    else
      fprintf(out, "%s%*s%s%s\n", mood_mark(step->mood), step->side ? (int)side : 0, "", before, texts[i]);
  }
}

static void print_timeline(const struct lab_timeline *timeline, FILE *out) {
  size_t columns = dibs__cli_columns(fileno(out)), side = SIDE_MIN;
  for (size_t i = 0; i < timeline->count; i++) {
    const struct lab_step *step = &timeline->steps[i];
    size_t width = step->side == 0 && step->does ? dibs__cli_width(step->does) + 2 : 0;
    if (width > side) side = width;
  }
  if (columns && side > columns / 2) side = columns / 2;
  fprintf(out, "\n%s\n", timeline->title ? timeline->title : "");
  if (timeline->text && *timeline->text) fprintf(out, "%s\n", timeline->text);
  fprintf(out, "  %-*s%s\n", (int)side, timeline->heads[0] ? timeline->heads[0] : "",
          timeline->heads[1] ? timeline->heads[1] : "");
  for (size_t i = 0; i < timeline->count; i++) print_step(&timeline->steps[i], side, out);
}

static void cli_lab_print(const struct lab_sheet *sheet, FILE *out) {
  fprintf(out, "%s\n", sheet->title ? sheet->title : "");
  for (size_t i = 0; i < sheet->fact_count; i++)
    fprintf(out, "%s%s: %s", i ? ", " : "", sheet->facts[i].head, sheet->facts[i].text ? sheet->facts[i].text : "");
  if (sheet->fact_count) putc('\n', out);
  for (size_t i = 0; i < sheet->part_count; i++) {
    if (sheet->parts[i]->kind == LAB_PART_TABLE) print_table(&sheet->parts[i]->as.table, out);
    if (sheet->parts[i]->kind == LAB_PART_TIMELINE) print_timeline(&sheet->parts[i]->as.timeline, out);
  }
  if (sheet->interrupted) fputs("\nEnded early: these are the results until then.\n", out);
  if (sheet->note_count) putc('\n', out);
  for (size_t i = 0; i < sheet->note_count; i++) {
    fputs("- ", out);
    dibs__cli_put(out, sheet->notes[i] ? sheet->notes[i] : "", 0);
    putc('\n', out);
  }
}

/* ---- JSON ---- */

static const char *mood_name(enum lab_mood mood) {
  static const char *const names[] = {
      [LAB_PLAIN] = "", [LAB_GOOD] = "good", [LAB_EXPECTED] = "expected", [LAB_BAD] = "bad"};
  return names[mood];
}

static void json_table(struct dibs__json *json, const struct lab_table *table) {
  dibs__json_open(json, table->key, '[');
  for (size_t i = 0; i < table->count; i++) {
    const struct lab_column *column = &table->columns[i % table->column_count];
    const struct lab_cell *cell = &table->cells[i];
    if (i % table->column_count == 0) dibs__json_open(json, NULL, '{');
    if (cell->text || cell->none)
      dibs__json_text(json, column->key, cell->none ? NULL : cell->text);
    else if (column->kind == LAB_COUNT)
      dibs__json_int(json, column->key, (int64_t)cell->number);
    else
      dibs__json_real(json, column->key, cell->number);
    if (strcmp(column->key, "verdict") == 0) dibs__json_text(json, "mood", mood_name(cell->mood));
    if ((i + 1) % table->column_count == 0) dibs__json_close(json, '}');
  }
  dibs__json_close(json, ']');
}

static void json_plot(struct dibs__json *json, const struct lab_plot *plot) {
  dibs__json_open(json, NULL, '{');
  dibs__json_text(json, "plot", plot->key);
  dibs__json_text(json, "title", plot->title);
  dibs__json_open(json, "series", '[');
  for (size_t i = 0; i < plot->count; i++) {
    const struct lab_series *s = &plot->series[i];
    dibs__json_open(json, NULL, '{');
    dibs__json_text(json, "name", s->name);
    dibs__json_open(json, "points", '[');
    for (size_t n = 0; n < s->count; n++) {
      dibs__json_open(json, NULL, '[');
      dibs__json_real(json, NULL, s->x[n]);
      dibs__json_real(json, NULL, s->y[n]);
      dibs__json_close(json, ']');
    }
    dibs__json_close(json, ']');
    dibs__json_close(json, '}');
  }
  dibs__json_close(json, ']');
  dibs__json_close(json, '}');
}

static void json_timeline(struct dibs__json *json, const struct lab_timeline *timeline) {
  dibs__json_open(json, timeline->key, '[');
  for (size_t i = 0; i < timeline->count; i++) {
    const struct lab_step *step = &timeline->steps[i];
    dibs__json_open(json, NULL, '{');
    if (step->side >= 0) dibs__json_text(json, "who", timeline->heads[step->side]);
    dibs__json_text(json, "does", step->does);
    dibs__json_text(json, "gets", step->gets);
    dibs__json_text(json, "mood", mood_name(step->mood));
    dibs__json_close(json, '}');
  }
  dibs__json_close(json, ']');
}

static void cli_lab_json(const struct lab_sheet *sheet, FILE *out) {
  struct dibs__json json = {.out = out};
  dibs__json_open(&json, NULL, '{');
  dibs__json_text(&json, "lab", sheet->experiment);
  dibs__json_text(&json, "dibs", dibs_version());
  for (size_t i = 0; i < sheet->fact_count; i++) dibs__json_text(&json, sheet->facts[i].key, sheet->facts[i].text);
  dibs__json_bool(&json, "held", !sheet->broken);
  dibs__json_bool(&json, "complete", !sheet->interrupted);
  for (size_t i = 0; i < sheet->part_count; i++) {
    if (sheet->parts[i]->kind == LAB_PART_TABLE) json_table(&json, &sheet->parts[i]->as.table);
    if (sheet->parts[i]->kind == LAB_PART_TIMELINE) json_timeline(&json, &sheet->parts[i]->as.timeline);
  }
  dibs__json_open(&json, "plots", '[');
  for (size_t i = 0; i < sheet->part_count; i++)
    if (sheet->parts[i]->kind == LAB_PART_PLOT) json_plot(&json, &sheet->parts[i]->as.plot);
  dibs__json_close(&json, ']');
  dibs__json_open(&json, "notes", '[');
  for (size_t i = 0; i < sheet->note_count; i++) dibs__json_text(&json, NULL, sheet->notes[i]);
  dibs__json_close(&json, ']');
  dibs__json_close(&json, '}');
}

/* ---- Progress ---- */

/* A lab's progress function. */
static void cli_lab_progress(const struct lab_progress *p, void *user) {
  (void)user;
  char line[256], bar[BAR + 1], span[24], of[24], users[24] = "";
  double share = p->steps ? ((double)(p->step ? p->step - 1 : 0)) / p->steps : 0;
  double within = p->of_ms ? (double)p->ms / (double)p->of_ms : 0;
  if (p->steps) share += (within < 1 ? within : 1) / p->steps;
  int full = (int)(share * BAR + 0.5);
  for (int i = 0; i < BAR; i++) bar[i] = i < full ? '#' : '.';
  bar[BAR] = '\0';
  dibs__duration_write(span, sizeof span, p->ms);
  dibs__duration_write(of, sizeof of, p->of_ms);
  if (p->users) snprintf(users, sizeof users, ", %u users", p->users);
  int length = snprintf(line, sizeof line, "%s [%s] %u/%u %s%s  %s%s%s", p->experiment, bar, p->step, p->steps, p->what,
                        users, span, p->of_ms ? "/" : "", p->of_ms ? of : "");
  if (p->rate > 0 && length > 0 && (size_t)length < sizeof line) {
    char rate[48];
    struct lab_cell cell = {.number = p->rate};
    dibs__lab_figure(rate, sizeof rate, LAB_RATE, &cell);
    snprintf(line + length, sizeof line - (size_t)length, "  %s/s", rate);
  }
  dibs__cli_progress(line);
}

/* `dibs lab`: finds the store, runs the experiment, prints the results. */

static atomic_int interrupted;

/* The first signal ends the experiment, the second one the lab. */
static void on_signal(int number) {
  atomic_store(&interrupted, number);
}

static const struct {
  const char *name;
  bool (*run)(struct lab *lab);
} experiments[] = {{"race", dibs__lab_race},
                   {"throughput", dibs__lab_throughput},
                   {"contend", dibs__lab_contend},
                   {"deadlock", dibs__lab_deadlock},
                   {"pause", dibs__lab_pause}};

/* ---- A temporary store ---- */

static void folder_remove(const char *folder) {
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

static bool own_store(char *folder, size_t folder_size, char *uri, size_t size) {
  const char *temporary = secure_getenv("TMPDIR");
  bool plain = temporary && temporary[0] == '/' && !strpbrk(temporary, "%?#&");
  snprintf(folder, folder_size, "%s/dibs-lab-XXXXXX", plain ? temporary : "/tmp");
  if (!mkdtemp(folder)) return false;
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

static int print_sheet(const struct cli_globals *globals, const struct lab *lab, struct page *page) {
  if (globals->json)
    cli_lab_json(&lab->sheet, stdout);
  else
    cli_lab_print(&lab->sheet, stdout);
  int code = dibs__cli_flush(globals);
  if (!code && page->file) code = page_write(globals, &lab->sheet, page);
  if (!code && page->path) dibs__cli_note(globals, "the report is in %s", page->path);
  return code;
}

/* ---- The command ---- */

static int run_experiment(const struct cli_globals *globals, struct lab *lab, const struct lab_requested *requested,
                          struct page *page) {
  bool (*experiment)(struct lab *) = NULL;
  for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++)
    if (strcmp(experiments[i].name, requested->experiment) == 0) experiment = experiments[i].run;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  lab->sheet.experiment = requested->experiment;
  bool done = experiment && dibs__lab_open(lab) && experiment(lab);
  char why[LAB_WHY_MAX];
  snprintf(why, sizeof why, "%s", lab->why); /* closing may have troubles of its own */
  lab->sheet.interrupted = !done || dibs__lab_ended(lab);
  dibs__lab_close(lab);
  if (lab->progress) dibs__cli_progress(NULL);
  int signal = atomic_load(&interrupted), code = CLI_DONE;
  if (done || lab->sheet.part_count) code = print_sheet(globals, lab, page);
  if (code) return code;
  if (lab->sheet.full) return dibs__cli_fail(globals, CLI_FAILED, "NO_MEMORY", "lab: out of memory");
  if (lab->sheet.broken) return dibs__cli_fail(globals, CLI_TROUBLE, "", "lab: a promise was broken; see the table");
  if (signal) return CLI_SIGNAL + signal;
  if (done) return CLI_DONE;
  return dibs__cli_fail(globals, dibs__cli_exit_of(lab->trouble), dibs_status_name(lab->trouble), "lab: %s", why);
}

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
  struct page page;
  code = page_open(globals, requested.html, &page);
  if (code) return code;

  char folder[512] = "", uri[600];
  lab.uri = globals->store;
  if (!lab.uri) {
    if (!own_store(folder, sizeof folder, uri, sizeof uri)) {
      page_close(&page);
      return dibs__cli_fail(globals, CLI_FAILED, "", "lab: cannot create a folder for a temporary store: %s",
                            strerror(errno));
    }
    lab.uri = uri;
  }
  if (strcmp(lab.uri, "memory:") == 0)
    lab.uri = "memory:lab"; /* without a name each user would have a store of its own */
  lab.interrupted = &interrupted;
  if (dibs__cli_shows_progress(globals)) lab.progress = cli_lab_progress;
  code = run_experiment(globals, &lab, &requested, &page);
  page_close(&page);
  dibs__lab_sheet_free(&lab.sheet);
  if (folder[0]) folder_remove(folder);
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
