/* SPDX-License-Identifier: MIT */
/* The results as data, and the tables of the lab. */
#include "base/text.h"
#include "lab/lab.h"
#include "lab/sheet.h"
#include "store/uri.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Filling a sheet. */

static char *copy_text(struct lab_sheet *sheet, const char *text) {
  char *copy = strdup(text ? text : "");
  if (!copy) sheet->full = true;
  return copy;
}

/* One more element of `size` bytes, cleared; NULL when memory ran out. */
static void *one_more(struct lab_sheet *sheet, void *array, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return array;
  size_t wanted = *capacity ? *capacity * 2 : 16;
  void *more = reallocarray(array, wanted, size);
  if (!more) {
    sheet->full = true;
    return NULL;
  }
  memset((char *)more + *capacity * size, 0, (wanted - *capacity) * size);
  *capacity = wanted;
  return more;
}

void dibs__lab_title(struct lab_sheet *sheet, const char *title, const char *intro) {
  free(sheet->title);
  free(sheet->intro);
  sheet->title = copy_text(sheet, title);
  sheet->intro = copy_text(sheet, intro);
}

void dibs__lab_fact(struct lab_sheet *sheet, const char *key, const char *head, const char *format, ...) {
  if (sheet->fact_count == LAB_FACTS_MAX) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  size_t n = sheet->fact_count++;
  sheet->facts[n] = (struct lab_fact){.key = key, .head = head, .text = copy_text(sheet, text)};
}

static void add_numbers(struct lab_sheet *sheet, const char *key, const char *head, const double *numbers, size_t count,
                        const char *unit, bool is_list) {
  if (sheet->fact_count == LAB_FACTS_MAX) return;
  struct lab_fact *fact = &sheet->facts[sheet->fact_count++];
  char text[512];
  size_t length = 0;
  *fact = (struct lab_fact){.key = key, .head = head, .is_list = is_list};
  for (size_t i = 0; i < count && i < LAB_FACT_NUMBERS_MAX; i++) {
    char figure[64];
    struct lab_cell cell = {.number = numbers[i]};
    dibs__lab_figure(figure, sizeof figure, numbers[i] == floor(numbers[i]) ? LAB_COUNT : LAB_RATE, &cell);
    fact->numbers[fact->count++] = numbers[i];
    length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", i ? ", " : "", figure);
    if (length >= sizeof text) length = sizeof text - 1;
  }
  snprintf(text + length, sizeof text - length, "%s%s", *unit ? " " : "", unit);
  fact->text = copy_text(sheet, text);
}

void dibs__lab_fact_number(struct lab_sheet *sheet, const char *key, const char *head, double number,
                           const char *unit) {
  const double numbers[] = {number};
  add_numbers(sheet, key, head, numbers, 1, unit, false);
}

void dibs__lab_fact_list(struct lab_sheet *sheet, const char *key, const char *head, const uint32_t *numbers,
                         size_t count) {
  double all[LAB_FACT_NUMBERS_MAX];
  if (count > LAB_FACT_NUMBERS_MAX) count = LAB_FACT_NUMBERS_MAX;
  for (size_t i = 0; i < count; i++) all[i] = numbers[i];
  add_numbers(sheet, key, head, all, count, "", true);
}

void dibs__lab_fail_sheet(struct lab_sheet *sheet, const char *why) {
  free(sheet->failed);
  sheet->failed = copy_text(sheet, why);
}

void dibs__lab_note(struct lab_sheet *sheet, const char *format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  for (size_t i = 0; i < sheet->note_count; i++)
    if (sheet->notes[i] && strcmp(sheet->notes[i], text) == 0) return;
  if (sheet->note_count < LAB_NOTES_MAX) sheet->notes[sheet->note_count++] = copy_text(sheet, text);
}

static struct lab_part *add_part(struct lab_sheet *sheet, enum lab_part_kind kind) {
  struct lab_part **parts =
      one_more(sheet, sheet->parts, sheet->part_count, &sheet->part_capacity, sizeof *sheet->parts);
  if (!parts) return NULL;
  sheet->parts = parts;
  struct lab_part *made = calloc(1, sizeof *made);
  if (!made) {
    sheet->full = true;
    return NULL;
  }
  made->kind = kind;
  sheet->parts[sheet->part_count++] = made;
  return made;
}

struct lab_table *dibs__lab_table(struct lab_sheet *sheet, const char *key, const char *title, const char *text,
                                  const struct lab_column *columns, size_t count) {
  struct lab_part *made = add_part(sheet, LAB_PART_TABLE);
  if (!made) return NULL;
  struct lab_table *table = &made->as.table;
  table->key = key;
  table->title = copy_text(sheet, title);
  table->text = copy_text(sheet, text);
  table->columns = columns;
  table->column_count = count;
  return table;
}

struct lab_plot *dibs__lab_plot(struct lab_sheet *sheet, const char *key, enum lab_shape shape, const char *title,
                                const char *text) {
  struct lab_part *made = add_part(sheet, LAB_PART_PLOT);
  if (!made) return NULL;
  struct lab_plot *plot = &made->as.plot;
  plot->key = key;
  plot->shape = shape;
  plot->title = copy_text(sheet, title);
  plot->text = copy_text(sheet, text);
  plot->x_title = plot->y_title = "";
  return plot;
}

struct lab_timeline *dibs__lab_timeline(struct lab_sheet *sheet, const char *key, const char *title, const char *text,
                                        const char *left, const char *right) {
  struct lab_part *made = add_part(sheet, LAB_PART_TIMELINE);
  if (!made) return NULL;
  struct lab_timeline *timeline = &made->as.timeline;
  timeline->key = key;
  timeline->title = copy_text(sheet, title);
  timeline->text = copy_text(sheet, text);
  timeline->heads[0] = copy_text(sheet, left);
  timeline->heads[1] = copy_text(sheet, right);
  return timeline;
}

static void add_cell(struct lab_sheet *sheet, struct lab_table *table, struct lab_cell cell) {
  struct lab_cell *cells =
      table ? one_more(sheet, table->cells, table->count, &table->capacity, sizeof *table->cells) : NULL;
  if (!cells) {
    free(cell.text);
    return;
  }
  table->cells = cells;
  table->cells[table->count++] = cell;
}

void dibs__lab_put(struct lab_sheet *sheet, struct lab_table *table, double number) {
  add_cell(sheet, table, (struct lab_cell){.number = number, .none = !isfinite(number)});
}

void dibs__lab_put_text(struct lab_sheet *sheet, struct lab_table *table, enum lab_mood mood, const char *text) {
  add_cell(sheet, table, (struct lab_cell){.text = copy_text(sheet, text), .mood = mood});
}

void dibs__lab_mood(struct lab_table *table, enum lab_mood mood) {
  if (table && table->count) table->cells[table->count - 1].mood = mood;
}

void dibs__lab_put_sum(struct lab_sheet *sheet, struct lab_timeline *timeline, struct lab_table *table,
                       const char *title, bool late, int64_t value, int64_t should, enum lab_mood mood) {
  char text[LAB_WHY_MAX];
  snprintf(text, sizeof text, "The value is %" PRId64 "; the acknowledged additions make %" PRId64 ".", value, should);
  dibs__lab_step(sheet, timeline, -1, mood == LAB_GOOD ? LAB_PLAIN : mood, text, "");
  dibs__lab_put_text(sheet, table, LAB_PLAIN, title);
  dibs__lab_put_text(sheet, table, late ? mood : LAB_PLAIN, late ? "accepted" : "refused");
  dibs__lab_put(sheet, table, (double)value);
  dibs__lab_put(sheet, table, (double)should);
  dibs__lab_put(sheet, table, (double)(should - value));
  if (should != value) dibs__lab_mood(table, mood);
  dibs__lab_put_text(sheet, table, mood,
                     mood == LAB_GOOD       ? "correct"
                     : mood == LAB_EXPECTED ? "broken, as expected"
                                            : "BROKEN");
}

static unsigned hue_of(struct lab_sheet *sheet, const char *name) {
  char key[64];
  if (strncmp(name, "bare ", 5) == 0) name += 5;
  size_t length = strcspn(name, ",");
  while (length > 1 && strchr("0123456789", name[length - 1])) length--;
  snprintf(key, sizeof key, "%.*s", (int)length, name);
  for (unsigned i = 0; i < sheet->hue_count; i++)
    if (sheet->hues[i] && strcmp(sheet->hues[i], key) == 0) return i;
  if (sheet->hue_count == LAB_HUES_MAX) return 0;
  sheet->hues[sheet->hue_count] = copy_text(sheet, key);
  return sheet->hue_count++;
}

struct lab_series *dibs__lab_series(struct lab_sheet *sheet, struct lab_plot *plot, const char *name,
                                    enum lab_mood mood) {
  if (!plot || plot->count == LAB_SERIES_MAX) return NULL;
  struct lab_series *series = &plot->series[plot->count++];
  series->name = copy_text(sheet, name);
  series->mood = mood;
  series->hue = hue_of(sheet, name);
  return series;
}

void dibs__lab_point(struct lab_sheet *sheet, struct lab_series *series, double x, double y) {
  if (!series || !isfinite(x) || !isfinite(y)) return;
  size_t capacity = series->capacity;
  double *xs = one_more(sheet, series->x, series->count, &capacity, sizeof *xs);
  if (!xs) return;
  series->x = xs;
  capacity = series->capacity;
  double *ys = one_more(sheet, series->y, series->count, &capacity, sizeof *ys);
  if (!ys) return;
  series->y = ys;
  series->capacity = capacity;
  series->x[series->count] = x;
  series->y[series->count++] = y;
}

void dibs__lab_step(struct lab_sheet *sheet, struct lab_timeline *timeline, int side, enum lab_mood mood,
                    const char *does, const char *gets) {
  struct lab_step *steps =
      timeline ? one_more(sheet, timeline->steps, timeline->count, &timeline->capacity, sizeof *steps) : NULL;
  if (!steps) return;
  timeline->steps = steps;
  struct lab_step *step = &steps[timeline->count++];
  step->side = side;
  step->mood = mood;
  step->does = copy_text(sheet, does);
  step->gets = copy_text(sheet, gets);
}

/* ---- Freeing ---- */

static void part_free(struct lab_part *part) {
  if (part->kind == LAB_PART_TABLE) {
    struct lab_table *table = &part->as.table;
    for (size_t i = 0; i < table->count; i++) free(table->cells[i].text);
    free(table->cells);
    free(table->title);
    free(table->text);
  } else if (part->kind == LAB_PART_PLOT) {
    struct lab_plot *plot = &part->as.plot;
    for (size_t i = 0; i < plot->count; i++) {
      free(plot->series[i].name);
      free(plot->series[i].x);
      free(plot->series[i].y);
    }
    free(plot->title);
    free(plot->text);
  } else {
    struct lab_timeline *timeline = &part->as.timeline;
    for (size_t i = 0; i < timeline->count; i++) {
      free(timeline->steps[i].does);
      free(timeline->steps[i].gets);
    }
    free(timeline->steps);
    free(timeline->title);
    free(timeline->text);
    free(timeline->heads[0]);
    free(timeline->heads[1]);
  }
  free(part);
}

void dibs__lab_sheet_free(struct lab_sheet *sheet) {
  for (size_t i = 0; i < sheet->part_count; i++) part_free(sheet->parts[i]);
  free(sheet->parts);
  for (size_t i = 0; i < sheet->fact_count; i++) free(sheet->facts[i].text);
  for (size_t i = 0; i < sheet->note_count; i++) free(sheet->notes[i]);
  for (unsigned i = 0; i < sheet->hue_count; i++) free(sheet->hues[i]);
  free(sheet->title);
  free(sheet->intro);
  free(sheet->failed);
  *sheet = (struct lab_sheet){0};
}

/* ---- Figures ---- */

/* With separators for thousands. */
static void format_whole(char *to, size_t size, double number) {
  char digits[40];
  int length = snprintf(digits, sizeof digits, "%.0f", fabs(number));
  size_t at = 0;
  if (number < 0 && size > 1) to[at++] = '-';
  for (int i = 0; i < length && at + 2 < size; i++) {
    if (i && (length - i) % 3 == 0) to[at++] = ',';
    to[at++] = digits[i];
  }
  to[at] = '\0';
}

void dibs__lab_figure(char *to, size_t size, enum lab_kind kind, const struct lab_cell *cell) {
  double n = cell->number;
  if (cell->none) {
    snprintf(to, size, "-");
  } else if (cell->text) {
    snprintf(to, size, "%s", cell->text);
  } else if (kind == LAB_COUNT || (kind != LAB_TIMES && fabs(n) >= 100)) {
    format_whole(to, size, n);
  } else {
    snprintf(to, size, fabs(n) < 10 ? "%.2f%s" : "%.1f%s", n, kind == LAB_TIMES ? "x" : "");
  }
}

/*
 * The lab's tables: counted rows, `event`, and the rows of the booked users, `applicant`, with a foreign key.  They are
 * created again for each crew, because emptying a million rows costs more than dropping the tables.  Their names
 * contain a random number, so that two labs on one database do not collide.
 */

enum { TEXT_MAX = 1024, ROWS_AT_ONCE = 500, BACK_MS = 30000 };

bool dibs__lab_fail(struct lab *lab, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(lab->why, sizeof lab->why, format, args);
  va_end(args);
  return false;
}

static bool lab_fail_line(struct lab *lab, const struct lab_line *line, const char *doing) {
  return dibs__lab_fail(lab, "can't %s at %s: %s", doing, dibs__lab_connection_shown(lab->connection),
                        line->wire->message);
}

void dibs__lab_key(char key[LAB_KEY_MAX], uint32_t run, uint32_t nth) {
  snprintf(key, LAB_KEY_MAX, "lab-%u-%u", run, nth);
}

/* Every experiment takes from a stock or writes a record. */
static bool keeps_stock(struct lab *lab, const char *shown) {
  dibs_error error = {0};
  dibs_store *store;
  dibs_stock_result result = {.size = sizeof result};
  lab->trouble = dibs_open(lab->uri, NULL, &store, &error);
  if (lab->trouble != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  lab->trouble = dibs_stock_show(store, "dibs.lab", NULL, &result, &error);
  dibs_close(store);
  if (lab->trouble == DIBS_OK || lab->trouble == DIBS_NOT_FOUND) {
    lab->trouble = DIBS_UNAVAILABLE;
    return true;
  }
  if (lab->trouble != DIBS_UNSUPPORTED) return dibs__lab_fail(lab, "%s", error.text);
  return dibs__lab_fail(lab, "%s keeps no stock, and every experiment needs one or a row; name an SQL store", shown);
}

/* A store without SQL: only its name for people is known. */
static bool open_plain(struct lab *lab) {
  struct dibs__uri uri;
  struct dibs__result result = {0};
  if (dibs__uri_parse(lab->uri, &uri, &result) != DIBS_OK) return dibs__lab_fail(lab, "%s", result.text);
  bool own = strcmp(uri.scheme, "memory") == 0;
  char shown[LAB_WHY_MAX];
  snprintf(shown, sizeof shown, "%s", uri.shown);
  dibs__lab_fact(&lab->sheet, "store", "Store", "%s", uri.shown);
  dibs__uri_free(&uri);
  if (own && lab->processes)
    return dibs__lab_fail(lab, "a store in memory belongs to its process; omit --processes, or name another store");
  if (!keeps_stock(lab, shown)) return false;
  dibs__lab_note(
      &lab->sheet,
      "This store has no SQL: the experiment takes from a stock of dibs, and omits the strategies that need SQL.");
  return true;
}

bool dibs__lab_open(struct lab *lab) {
  struct dibs__result result = {0};
  dibs__lab_machine(&lab->sheet);
  uint32_t number;
  char version[128];
  dibs__random(&number, sizeof number);
  lab->run = number % 1000000 * 100; /* the runs of this lab count from here */
  snprintf(lab->event, sizeof lab->event, "dibs_lab_event_%06u", number % 1000000);
  snprintf(lab->applicant, sizeof lab->applicant, "dibs_lab_applicant_%06u", number % 1000000);
  dibs__status status = dibs__lab_connection_open(lab->uri, &lab->connection, &result);
  if (status == DIBS_NOT_FOUND) return open_plain(lab);
  if (status != DIBS_OK) {
    lab->trouble = (dibs_status)status;
    return dibs__lab_fail(lab, "%s", result.text[0] ? result.text : dibs_status_text((dibs_status)status));
  }
  dibs__lab_fact(&lab->sheet, "store", "Store", "%s", dibs__lab_connection_shown(lab->connection));
  if (dibs__lab_line_open(lab->connection, &lab->line, &result) != DIBS_OK)
    return dibs__lab_fail(lab, "%s", result.text);
  dibs__lab_version(&lab->line, version, sizeof version);
  dibs__lab_fact(&lab->sheet, "engine", "Engine", "%s", version);
  lab->server = lab->line.wire->engine->sessions;
  dibs__lab_durability(lab);
  return true;
}

dibs_table *dibs__lab_declare(const char *event, const char *applicant, dibs_error *error) {
  dibs_table_options options = {.size = sizeof options,
                                .table = event,
                                .key = "id",
                                .version = "version",
                                .fence = "fence",
                                .owner = "holder",
                                .used = "used",
                                .limit = "seats",
                                .claims = applicant,
                                .claim = "claim",
                                .claim_stock = "event",
                                .claim_amount = "amount",
                                .claim_given = "given",
                                .claim_owner = "who",
                                .claim_time = "at"};
  dibs_table *table = NULL;
  return dibs_table_declare(&options, &table, error) == DIBS_OK ? table : NULL;
}

/* ---- Making ---- */

static bool run_sql(struct lab *lab, const char *doing, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool run_sql(struct lab *lab, const char *doing, const char *format, ...) {
  char text[TEXT_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (dibs__lab_run_sql(&lab->line, text, NULL, 0) == DIBS__SQL_OK) return true;
  return lab_fail_line(lab, &lab->line, doing);
}

/* The lab's own connection may have been lost with a restart of the server: it tries again, for some time. */
static bool line_ready(struct lab *lab) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BACK_MS);
  struct dibs__result result = {0};
  int64_t one;
  if (lab->line.wire && dibs__lab_number(&lab->line, "SELECT 1", 0, &one) == DIBS__SQL_OK) return true;
  for (;;) {
    dibs__lab_line_close(&lab->line);
    if (dibs__lab_line_open(lab->connection, &lab->line, &result) == DIBS_OK) return true;
    if (dibs__lab_ended(lab) || !dibs__tick_before(dibs__tick_now(), by)) return dibs__lab_fail(lab, "%s", result.text);
    dibs__nap_ms(200);
  }
}

static bool lab_tables_drop(struct lab *lab) {
  bool fine = run_sql(lab, "drop the lab's tables", "DROP TABLE IF EXISTS %s", lab->applicant) &&
              run_sql(lab, "drop the lab's tables", "DROP TABLE IF EXISTS %s", lab->event);
  if (fine) lab->tables = false;
  return fine;
}

void dibs__lab_close(struct lab *lab) {
  if (lab->connection && lab->tables) {
    if (lab->keep)
      dibs__lab_note(&lab->sheet, "The tables %s and %s were kept.", lab->event, lab->applicant);
    else if (!line_ready(lab) || !lab_tables_drop(lab))
      dibs__lab_note(&lab->sheet, "%s; drop the tables %s and %s by hand.", lab->why, lab->applicant, lab->event);
  }
  dibs__lab_line_close(&lab->line);
  dibs__lab_connection_close(lab->connection);
  lab->connection = NULL;
}

static bool create_tables(struct lab *lab) {
  const struct dibs__sql_words *w = &lab->line.wire->engine->words;
  const char *doing = "make the lab's tables";
  return run_sql(lab, doing,
                 "CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, used %s NOT NULL, seats %s NOT NULL, "
                 "version %s NOT NULL, fence %s NOT NULL, holder %s NOT NULL)",
                 lab->event, w->name, w->number, w->number, w->number, w->number, w->number) &&
         run_sql(lab, doing,
                 "CREATE TABLE %s (claim %s NOT NULL PRIMARY KEY, event %s NOT NULL, amount %s NOT NULL, "
                 "given %s NOT NULL, who %s, at %s, FOREIGN KEY (event) REFERENCES %s (id))",
                 lab->applicant, w->name, w->name, w->number, w->number, w->name, w->number, lab->event);
}

static bool fill_tables(struct lab *lab, uint32_t rows, int64_t seats) {
  char key[LAB_KEY_MAX], text[TEXT_MAX];
  struct dibs__sql_value cells[ROWS_AT_ONCE * 6];
  char keys[ROWS_AT_ONCE][LAB_KEY_MAX];
  const struct dibs__sql_engine *engine = lab->line.wire->engine;
  struct dibs__sql_wire *wire = lab->line.wire;
  snprintf(text, sizeof text,
           "INSERT INTO %s (id, used, seats, version, fence, holder) WITH r(a, b, c, d, e, f) AS ($rows) "
           "SELECT a, b, c, d, e, f FROM r",
           lab->event);
  for (uint32_t at = 0; at < rows;) {
    uint32_t count = rows - at < ROWS_AT_ONCE ? rows - at : ROWS_AT_ONCE;
    for (uint32_t i = 0; i < count; i++) {
      dibs__lab_key(key, lab->run, at + i + 1);
      memcpy(keys[i], key, sizeof key);
      cells[i * 6] = dibs__sql_text(keys[i], strlen(keys[i]));
      for (uint32_t c = 1; c < 6; c++) cells[i * 6 + c] = dibs__sql_number(c == 2 ? seats : 0);
    }
    if (engine->put_rows(wire, text, NULL, 0, cells, 6, count) != DIBS__SQL_OK ||
        engine->go(wire, true) != DIBS__SQL_OK)
      return lab_fail_line(lab, &lab->line, "fill the lab's tables");
    at += count;
  }
  return true;
}

/* Without SQL: a stock of dibs. */
static bool make_stocks(struct lab *lab, uint32_t rows, int64_t seats) {
  dibs_store *store;
  dibs_error error = {0};
  if (dibs_open(lab->uri, NULL, &store, &error) != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  dibs_stock_options options = {.size = sizeof options};
  dibs_status status = DIBS_OK;
  for (uint32_t i = 1; i <= rows && status == DIBS_OK; i++) {
    char key[LAB_KEY_MAX];
    dibs__lab_key(key, lab->run, i);
    status = dibs_stock_set(store, key, seats, &options, NULL, &error);
  }
  dibs_close(store);
  return status == DIBS_OK || dibs__lab_fail(lab, "%s", error.text);
}

bool dibs__lab_tables_make(struct lab *lab, uint32_t rows, int64_t seats) {
  lab->run++;
  if (!lab->connection) return make_stocks(lab, rows, seats);
  if (!line_ready(lab)) return false;
  lab->line.wire->by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  if (lab->tables && !lab_tables_drop(lab)) return false;
  lab->tables = true; /* perhaps only one of them */
  return create_tables(lab) && fill_tables(lab, rows, seats);
}

/* ---- Counting ---- */

static bool query_number(struct lab *lab, const char *text, int64_t *to) {
  if (dibs__lab_number(&lab->line, text, 0, to) == DIBS__SQL_OK) return true;
  return lab_fail_line(lab, &lab->line, "count in the lab's tables");
}

static bool audit_stocks(struct lab *lab, uint32_t rows, struct lab_audit *audit) {
  dibs_store *store;
  dibs_error error = {0};
  *audit = (struct lab_audit){.claims = -1};
  if (dibs_open(lab->uri, NULL, &store, &error) != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  dibs_stock_options options = {.size = sizeof options};
  dibs_status status = DIBS_OK;
  for (uint32_t i = 1; i <= rows && status == DIBS_OK; i++) {
    char key[LAB_KEY_MAX];
    dibs_stock_result result = {.size = sizeof result};
    dibs__lab_key(key, lab->run, i);
    status = dibs_stock_show(store, key, &options, &result, &error);
    if (status != DIBS_OK) break;
    audit->counted += result.used;
    if (result.used > result.limit) audit->over += result.used - result.limit;
  }
  dibs_close(store);
  return status == DIBS_OK || dibs__lab_fail(lab, "%s", error.text);
}

bool dibs__lab_audit(struct lab *lab, uint32_t rows, int64_t seats, struct lab_audit *audit) {
  if (!lab->connection) return audit_stocks(lab, rows, audit);
  if (!line_ready(lab)) return false;
  char text[TEXT_MAX];
  *audit = (struct lab_audit){0};
  struct lab_line *line = &lab->line;
  /* Row by row, because the type of a sum differs between engines. */
  snprintf(text, sizeof text,
           "SELECT e.used, COALESCE(a.n, 0) FROM %s e LEFT JOIN (SELECT event, COUNT(*) AS n FROM %s WHERE given = 0 "
           "GROUP BY event) a ON a.event = e.id",
           lab->event, lab->applicant);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 10 * LAB_LINE_MS);
  if (dibs__lab_run_sql_by(line, text, NULL, 0, by, false) != DIBS__SQL_OK)
    return lab_fail_line(lab, line, "count in the lab's tables");
  size_t got = line->wire->engine->rows(line->wire, 0);
  for (size_t i = 0; i < got; i++) {
    int64_t used = dibs__sql_cell_number(line->wire, 0, i, 0), claims = dibs__sql_cell_number(line->wire, 0, i, 1);
    audit->counted += used;
    audit->claims += claims;
    audit->off += used != claims;
    if (claims > seats) audit->over += claims - seats;
  }
  int64_t there;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s", lab->event);
  if (!query_number(lab, text, &there)) return false;
  return there == rows || dibs__lab_fail(lab, "there are %" PRId64 " counted rows, not %u", there, rows);
}
