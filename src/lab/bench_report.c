/* SPDX-License-Identifier: MIT */
/* How much of the machine other processes used while a side ran: a figure that was measured beside a compiler measures
 * both. */
#include "bench/floor.h"
#include "cli/cli.h"
#include "lab/bench.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FIELDS = 8, IDLE = 3, IOWAIT = 4 }; /* of the first line of /proc/stat */

/* Seconds of all processors: used, and in total. */
static bool machine_cpu_seconds(double *used, double *all) {
  uint64_t field[FIELDS] = {0};
  FILE *file = fopen("/proc/stat", "re");
  if (!file) return false;
  int got =
      fscanf(file, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
             &field[0], &field[1], &field[2], &field[3], &field[4], &field[5], &field[6], &field[7]);
  fclose(file);
  if (got != FIELDS) return false;
  double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
  *used = *all = 0;
  for (int i = 0; i < FIELDS; i++) {
    *all += (double)field[i] * tick;
    if (i != IDLE && i != IOWAIT) *used += (double)field[i] * tick;
  }
  return true;
}

static double seconds(struct timeval time) {
  return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

double dibs__bench_cpu(void) {
  struct rusage self;
  getrusage(RUSAGE_SELF, &self);
  return seconds(self.ru_utime) + seconds(self.ru_stime);
}

/* Used by this process and the helpers that have ended. */
static double own_cpu_seconds(void) {
  struct rusage children;
  getrusage(RUSAGE_CHILDREN, &children);
  return dibs__bench_cpu() + seconds(children.ru_utime) + seconds(children.ru_stime);
}

void dibs__bench_noise_begin(struct bench_noise *noise) {
  noise->known = machine_cpu_seconds(&noise->used, &noise->all);
  noise->own = own_cpu_seconds();
}

void dibs__bench_noise_end(const struct bench_noise *noise, struct bench_sample *sample) {
  double used, all;
  if (!noise->known || !machine_cpu_seconds(&used, &all) || !(all > noise->all)) return;
  double others = used - noise->used - (own_cpu_seconds() - noise->own);
  if (others < 0) others = 0; /* the machine counts by ticks */
  sample->value[BENCH_OTHERS] = 100 * others / (all - noise->all);
}

/* The results of the cases, judged, as a table for people and as JSON for machines. */

enum { TABLE_WIDTH = 79, SIDE_WIDTH = 34, SIDE_LEAST = 12 };
enum { NOISE_PERCENT = 3 }; /* used by others, from which on it deserves a line */

/* ---- Judging ---- */

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static struct bench_range range_of(double *values, size_t count) {
  if (!count) return (struct bench_range){(double)NAN, (double)NAN, (double)NAN};
  qsort(values, count, sizeof *values, by_size);
  double median = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
  return (struct bench_range){median, values[0], values[count - 1]};
}

static struct bench_range bench_range_of(const struct bench_result *result, size_t side, enum bench_metric metric) {
  double values[BENCH_ROUNDS_MAX];
  size_t count = 0;
  for (size_t i = 0; i < result->rounds; i++) {
    double value = result->sample[side][i].value[metric];
    if (!isnan(value)) values[count++] = value;
  }
  return range_of(values, count);
}

static struct bench_range bench_judge(const struct bench_result *result, const struct bench_aim *aim, bool *met) {
  double values[BENCH_ROUNDS_MAX];
  size_t count = 0;
  for (size_t i = 0; i < result->rounds; i++) {
    double of = result->sample[aim->of][i].value[aim->metric], by = result->sample[aim->by][i].value[aim->metric];
    double value = aim->how == BENCH_RATIO ? of / by : aim->how == BENCH_MORE ? of - by : of;
    if (isfinite(value)) values[count++] = value * aim->scale;
  }
  struct bench_range range = range_of(values, count);
  *met = aim->at_most ? range.median <= aim->bound : range.median >= aim->bound; /* NAN is not met */
  return range;
}

/* ---- For people ---- */

static bool side_skipped(const struct bench_result *result, size_t side) {
  return result->sample[side][0].skipped;
}

/* Nothing to compare with. */
static bool aim_skipped(const struct bench_result *result, const struct bench_aim *aim) {
  return side_skipped(result, aim->of) || side_skipped(result, aim->by);
}

/* A number of a few digits, with separators for thousands; "-" for a metric that was not measured. */
static const char *format_number(char text[32], double value) {
  if (isnan(value)) return "-";
  if (value < 1000) {
    snprintf(text, 32, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
    return text;
  }
  char digits[32];
  int length = snprintf(digits, sizeof digits, "%.0f", value), at = 0;
  for (int i = 0; i < length && at < 30; i++) {
    if (i && (length - i) % 3 == 0) text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = 0;
  return text;
}

static int side_width(void) {
  int columns = (int)dibs__cli_columns(STDOUT_FILENO);
  if (columns <= 0 || columns >= TABLE_WIDTH) return SIDE_WIDTH;
  int width = SIDE_WIDTH - (TABLE_WIDTH - columns);
  return width < SIDE_LEAST ? SIDE_LEAST : width;
}

/* More than the columns, where a server does the work. */
static void print_server(const struct bench_result *result, size_t side, FILE *out) {
  char cpu[32], most[32], text[32];
  enum bench_where where = result->test->where;
  struct bench_range used = bench_range_of(result, side, BENCH_CPU);
  struct bench_range bytes = bench_range_of(result, side, BENCH_STORE);
  struct bench_range late = bench_range_of(result, side, BENCH_OVERTAKEN);
  if (!isnan(used.median) && (where == BENCH_AT_REDIS || where == BENCH_IN_TIERS))
    fprintf(out, "    %s us of the client's processor time each (%s at most)\n", format_number(cpu, used.median),
            format_number(most, used.high));
  if (!isnan(bytes.median))
    fprintf(out, "    %s bytes of the server's memory each\n", format_number(text, bytes.median));
  if (!isnan(late.median))
    fprintf(out, "    %s%% of the grants overtook another waiter\n", format_number(text, late.median));
}

static void print_side(const struct bench_result *result, size_t side, FILE *out) {
  static const enum bench_metric columns[] = {BENCH_RATE, BENCH_P50, BENCH_P99, BENCH_MAX, BENCH_TX};
  static const int widths[] = {10, 9, 8, 9, 6};
  char text[32];
  int width = side_width();
  fprintf(out, "  %-*.*s", width, width, result->test->sides[side].name);
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    fprintf(out, " %*s", widths[i], format_number(text, bench_range_of(result, side, columns[i]).median));
  }
  fputc('\n', out);
  print_server(result, side, out);
  struct bench_range heap = bench_range_of(result, side, BENCH_HEAP);
  struct bench_range resident = bench_range_of(result, side, BENCH_RSS);
  if (!isnan(heap.median) && isnan(resident.median)) fprintf(out, "    %.0f bytes of heap each\n", heap.median);
  if (isnan(heap.median) || isnan(resident.median)) return;
  fprintf(out, "    %.0f bytes of heap each, %.0f resident; %.0f threads\n", heap.median, resident.median,
          bench_range_of(result, side, BENCH_THREADS_USED).median);
}

static void print_aim(const struct bench_result *result, const struct bench_aim *aim, FILE *out) {
  bool met;
  struct bench_range range = bench_judge(result, aim, &met);
  char median[32], low[32], high[32];
  int width = side_width() - 2;
  fprintf(out, "  %-*.*s %8s %-6s", width, width, aim->what, format_number(median, range.median), aim->unit);
  if (result->rounds > 1) fprintf(out, " %s .. %s", format_number(low, range.low), format_number(high, range.high));
  fprintf(out, "  aim %s %g: %s\n", aim->at_most ? "<=" : ">=", aim->bound, met ? "yes" : "NO");
}

static void print_noise(const struct bench_result *result, FILE *out) {
  double worst = 0;
  for (size_t i = 0; i < BENCH_SIDES_MAX && result->test->sides[i].name; i++) {
    double others = bench_range_of(result, i, BENCH_OTHERS).median;
    if (others > worst) worst = others;
  }
  if (worst >= NOISE_PERCENT)
    fprintf(out, "  (other processes used up to %.0f%% of the processors meanwhile)\n", worst);
}

void dibs__bench_print(const struct bench_result *result, FILE *out) {
  const struct bench_case *test = result->test;
  fprintf(out, "\n%s: %s\n", test->key, test->title);
  int width = side_width();
  fprintf(out, "  %-*s %10s %9s %8s %9s %6s\n", width, "", "per second", "p50 us", "p99 us", "max us", "tx/op");
  for (size_t i = 0; i < BENCH_SIDES_MAX && test->sides[i].name; i++)
    if (!side_skipped(result, i)) print_side(result, i, out);
  for (size_t i = 0; i < BENCH_AIMS_MAX && test->aims[i].what; i++)
    if (!aim_skipped(result, &test->aims[i])) print_aim(result, &test->aims[i], out);
  print_noise(result, out);
  fflush(out);
}

static int processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
}

void dibs__bench_print_head(const struct bench *b, FILE *out) {
  struct utsname system;
  if (uname(&system)) system.release[0] = 0;
  fprintf(out, "dibs %s, SQLite %s, Linux %s, %d processors\n", dibs_version(), dibs__floor_sqlite_version(),
          system.release, processors());
  fprintf(out, "%s\n", b->shown);
  fprintf(out, "Medians of %u rounds; in each round the sides run one after the other, each for %g s.\n",
          b->size.rounds, (double)b->size.ms / 1000);
  fflush(out);
}

/* ---- For machines ---- */

static void json_range(struct dibs__json *json, const char *key, struct bench_range range) {
  if (isnan(range.median)) return;
  dibs__json_open(json, key, '{');
  dibs__json_real(json, "median", range.median);
  dibs__json_real(json, "low", range.low);
  dibs__json_real(json, "high", range.high);
  dibs__json_close(json, '}');
}

static void json_side(struct dibs__json *json, const struct bench_result *result, size_t side) {
  static const char *const keys[BENCH_METRICS] = {[BENCH_RATE] = "per_second",
                                                  [BENCH_P50] = "p50_us",
                                                  [BENCH_P99] = "p99_us",
                                                  [BENCH_P999] = "p999_us",
                                                  [BENCH_MAX] = "max_us",
                                                  [BENCH_TX] = "transactions_per_grant",
                                                  [BENCH_TX_ALL] = "transactions_per_renewal_of_all",
                                                  [BENCH_HEAP] = "heap_bytes_each",
                                                  [BENCH_RSS] = "resident_bytes_each",
                                                  [BENCH_THREADS_USED] = "threads",
                                                  [BENCH_UNFAIR] = "share_off_points",
                                                  [BENCH_CPU] = "cpu_us_each",
                                                  [BENCH_STORE] = "server_bytes_each",
                                                  [BENCH_KEYS] = "server_keys_left",
                                                  [BENCH_OVERTAKEN] = "overtaken_percent",
                                                  [BENCH_GAP] = "gap_ms",
                                                  [BENCH_LOST] = "lost",
                                                  [BENCH_TWICE] = "done_twice",
                                                  [BENCH_OTHERS] = "others_percent"};
  dibs__json_open(json, NULL, '{');
  dibs__json_text(json, "name", result->test->sides[side].name);
  for (size_t i = 0; i < BENCH_METRICS; i++)
    json_range(json, keys[i], bench_range_of(result, side, (enum bench_metric)i));
  dibs__json_close(json, '}');
}

static void json_aim(struct dibs__json *json, const struct bench_result *result, const struct bench_aim *aim) {
  bool met;
  struct bench_range range = bench_judge(result, aim, &met);
  dibs__json_open(json, NULL, '{');
  dibs__json_text(json, "what", aim->what);
  dibs__json_text(json, "unit", aim->unit);
  json_range(json, "seen", range);
  dibs__json_real(json, aim->at_most ? "at_most" : "at_least", aim->bound);
  dibs__json_bool(json, "met", met);
  dibs__json_close(json, '}');
}

static void json_result(struct dibs__json *json, const struct bench_result *result) {
  const struct bench_case *test = result->test;
  dibs__json_open(json, NULL, '{');
  dibs__json_text(json, "case", test->key);
  dibs__json_text(json, "title", test->title);
  dibs__json_uint(json, "rounds", result->rounds);
  dibs__json_uint(json, "noisy_rounds", result->noisy);
  dibs__json_open(json, "sides", '[');
  for (size_t i = 0; i < BENCH_SIDES_MAX && test->sides[i].name; i++)
    if (!side_skipped(result, i)) json_side(json, result, i);
  dibs__json_close(json, ']');
  dibs__json_open(json, "aims", '[');
  for (size_t i = 0; i < BENCH_AIMS_MAX && test->aims[i].what; i++)
    if (!aim_skipped(result, &test->aims[i])) json_aim(json, result, &test->aims[i]);
  dibs__json_close(json, ']');
  dibs__json_close(json, '}');
}

void dibs__bench_json(const struct bench *b, const struct bench_result *results, size_t count, FILE *out) {
  struct dibs__json json = {.out = out};
  struct utsname system;
  dibs__json_open(&json, NULL, '{');
  dibs__json_text(&json, "bench", b->subject->name);
  dibs__json_text(&json, "dibs", dibs_version());
  dibs__json_text(&json, "sqlite", dibs__floor_sqlite_version());
  dibs__json_text(&json, "linux", uname(&system) ? NULL : system.release);
  dibs__json_int(&json, "processors", processors());
  dibs__json_text(&json, "store", b->shown);
  dibs__json_real(&json, "seconds", (double)b->size.ms / 1000);
  dibs__json_open(&json, "cases", '[');
  for (size_t i = 0; i < count; i++) json_result(&json, &results[i]);
  dibs__json_close(&json, ']');
  dibs__json_close(&json, '}');
  fputc('\n', out);
}
