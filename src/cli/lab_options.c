/* SPDX-License-Identifier: MIT */
/* The options of `dibs lab`. */
#include "cli/lab.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char *const experiments[] = {"race", "throughput", "deadlock", "pause", "contend"};

int dibs__cli_lab_help(const struct cli_globals *globals) {
  puts("usage: dibs lab race|throughput|deadlock|pause|contend [OPTION...]\n\n"
       "Runs classic experiments with a row that many want, on the store, every strategy beside the others and the\n"
       "broken ones shown broken.  Makes tables of its own, dibs_lab_..., and drops them at the end.  Without --store\n"
       "and $DIBS_STORE in an embedded store of its own in $TMPDIR.\n\n"
       "  race        applicants for too few seats, all at once\n"
       "  throughput  users that book on one row, as fast as they can\n"
       "  deadlock    the deadlock of a foreign key, step by step, and how to avoid it\n"
       "  pause       a holder that is stopped past its ttl and writes late\n"
       "  contend     the same load on 1 to 10,000 rows: where strategies cross\n\n"
       "  --users N[,N...]      how many at once (race 100, throughput 20, contend 20)\n"
       "  --strategies S[,S...] some of them (all)\n"
       "  --seconds T           how long each runs (throughput 60, contend 3)\n"
       "  --seats N             in the race (50)\n"
       "  --rows N[,N...]       of contend (1,10,100,1000,10000)\n"
       "  --rounds R            alternating rounds, whose medians count (1)\n"
       "  --processes N         users in N processes, instead of threads of one\n"
       "  --floor PROGRAM       a bare client (bench/floors) runs beside in each round; it is told the store by --uri\n"
       "  --ttl TIME            of the lease in pause (1s)\n"
       "  --html FILE           a report with plots, one file that needs nothing else\n"
       "  --keep                leave the tables behind\n"
       "  --strict              what is expected to break fails, too\n\nStrategies:");
  for (size_t i = 0; i < dibs__lab_way_count; i++)
    printf("  %-12s %s%s\n", dibs__lab_ways[i].name, dibs__lab_ways[i].what,
           dibs__lab_ways[i].promised ? "" : "; expected to break");
  puts("\nExit codes: 0 done, and what is promised held; 116 a promise was broken; others as in dibs help exits.");
  return dibs__cli_flush(globals);
}

static int wrong(const struct cli_globals *g, const char *option, const char *value, const char *wanted) {
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: --%s: '%.40s' is not %s", option, value, wanted);
}

static bool number(const char *text, size_t length, uint64_t least, uint64_t most, uint32_t *to) {
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
    if (*count == LAB_LIST_MAX || !number(at, length, 1, most, &list[*count])) return false;
    ++*count;
    at += length;
    if (!*at) return true;
  }
}

static bool seconds(const char *text, int64_t *ms) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !(value >= 0.05 && value <= 86400)) return false;
  *ms = (int64_t)(value * 1000 + 0.5);
  return true;
}

static int take(const struct cli_globals *g, int option, const char *name, const char *value, struct lab *lab,
                struct lab_asked *asked) {
  char why[64];
  switch (option) {
  case 'u':
    if (numbers(value, LAB_USERS_MAX, lab->users, &lab->users_count)) return CLI_DONE;
    return wrong(g, name, value, "a list of up to 16 numbers from 1 to 4096");
  case 'w':
    if (numbers(value, LAB_ROWS_MAX, lab->rows, &lab->rows_count)) return CLI_DONE;
    return wrong(g, name, value, "a list of up to 16 numbers from 1 to 100000");
  case 's':
    if (seconds(value, &lab->ms)) return CLI_DONE;
    return wrong(g, name, value, "a number of seconds from 0.05 on");
  case 'g':
    lab->strategies = value;
    if (dibs__lab_ways_known(value, why, sizeof why)) return CLI_DONE;
    return wrong(g, name, why, "one of the strategies; dibs lab --help lists them");
  case 'a':
    return number(value, strlen(value), 0, 1000000, &lab->seats) ? CLI_DONE : wrong(g, name, value, "up to 1000000");
  case 'r':
    return number(value, strlen(value), 1, LAB_ROUNDS_MAX, &lab->rounds) ? CLI_DONE
                                                                         : wrong(g, name, value, "from 1 to 25");
  case 'p':
    return number(value, strlen(value), 1, LAB_PROCESSES_MAX, &lab->processes) ? CLI_DONE
                                                                               : wrong(g, name, value, "from 1 to 64");
  case 't':
    if (dibs__cli_duration(value, &lab->ttl_ms, why, sizeof why) && lab->ttl_ms >= 500 && lab->ttl_ms <= 60000)
      return CLI_DONE;
    return wrong(g, name, value, "from 500ms to 60s");
  case 'f':
    lab->floor = value;
    return CLI_DONE;
  case 'h':
    asked->html = value;
    return CLI_DONE;
  case 'k':
    lab->keep = true;
    return CLI_DONE;
  case 'x':
    lab->strict = true;
    return CLI_DONE;
  default:
    asked->help = true;
    return CLI_DONE;
  }
}

/* What was not given. */
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

int dibs__cli_lab_options(int argc, char **argv, const struct cli_globals *g, struct lab *lab,
                          struct lab_asked *asked) {
  static const struct option options[] = {{"users", required_argument, NULL, 'u'},
                                          {"strategies", required_argument, NULL, 'g'},
                                          {"seconds", required_argument, NULL, 's'},
                                          {"seats", required_argument, NULL, 'a'},
                                          {"rows", required_argument, NULL, 'w'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"processes", required_argument, NULL, 'p'},
                                          {"floor", required_argument, NULL, 'f'},
                                          {"ttl", required_argument, NULL, 't'},
                                          {"html", required_argument, NULL, 'h'},
                                          {"keep", no_argument, NULL, 'k'},
                                          {"strict", no_argument, NULL, 'x'},
                                          {"help", no_argument, NULL, '?' + 128},
                                          {NULL, 0, NULL, 0}};
  *lab = (struct lab){.seats = 50};
  opterr = 0;
  optind = 1;
  int index = 0;
  for (int got; (got = getopt_long(argc, argv, ":", options, &index)) != -1;) {
    if (got == ':')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: %s needs a value; see dibs lab --help", argv[optind - 1]);
    if (got == '?')
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "lab: there is no option %s; see dibs lab --help",
                            argv[optind - 1]);
    int code = take(g, got, options[index].name, optarg, lab, asked);
    if (code) return code;
  }
  if (asked->help) return CLI_DONE;
  for (size_t i = 0; optind == argc - 1 && i < sizeof experiments / sizeof *experiments; i++)
    if (strcmp(argv[optind], experiments[i]) == 0) asked->experiment = experiments[i];
  if (!asked->experiment)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "lab: which experiment? race, throughput, deadlock, pause or contend; see dibs lab --help");
  defaults(lab, asked->experiment);
  return CLI_DONE;
}
