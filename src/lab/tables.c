/* SPDX-License-Identifier: MIT */
/*
 * The lab's tables: counted rows, `event`, and the rows of those who booked, `applicant`, with a foreign key.  Made
 * anew for each crew, because emptying a million rows costs more than dropping them.  Their names have a number drawn
 * for the run, so that two labs on one database do not meet.
 */
#include "base/text.h"
#include "lab/lab.h"
#include "store/uri.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 1024, ROWS_AT_ONCE = 500, BACK_MS = 30000 };

bool dibs__lab_fail(struct lab *lab, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(lab->why, sizeof lab->why, format, args);
  va_end(args);
  return false;
}

bool dibs__lab_fail_line(struct lab *lab, const struct lab_line *line, const char *doing) {
  return dibs__lab_fail(lab, "can't %s at %s: %s", doing, dibs__lab_door_shown(lab->door), line->wire->words);
}

void dibs__lab_key(char key[LAB_KEY_MAX], uint32_t run, uint32_t nth) {
  snprintf(key, LAB_KEY_MAX, "lab-%u-%u", run, nth);
}

/* A store without SQL: its name for people is all that is known of it. */
static bool open_plain(struct lab *lab) {
  struct dibs__uri uri;
  struct dibs__said said = {0};
  if (dibs__uri_parse(lab->uri, &uri, &said) != DIBS_OK) return dibs__lab_fail(lab, "%s", said.text);
  bool own = strcmp(uri.scheme, "memory") == 0;
  dibs__lab_fact(&lab->sheet, "store", "Store", "%s", uri.shown);
  dibs__uri_free(&uri);
  if (own && lab->processes)
    return dibs__lab_fail(lab, "a store in memory is its process's own; leave --processes out, or name another store");
  dibs__lab_note(&lab->sheet,
                 "This store has no tables of SQL: its own stock is taken from, and what needs plain SQL is "
                 "left out.");
  return true;
}

bool dibs__lab_open(struct lab *lab) {
  struct dibs__said said = {0};
  uint32_t number;
  char version[128];
  dibs__random(&number, sizeof number);
  lab->run = number % 1000000 * 100; /* the runs of this lab count from here */
  snprintf(lab->event, sizeof lab->event, "dibs_lab_event_%06u", number % 1000000);
  snprintf(lab->applicant, sizeof lab->applicant, "dibs_lab_applicant_%06u", number % 1000000);
  dibs__status status = dibs__lab_door_open(lab->uri, &lab->door, &said);
  if (status == DIBS_NOT_FOUND) return open_plain(lab);
  if (status != DIBS_OK)
    return dibs__lab_fail(lab, "%s", said.text[0] ? said.text : dibs_status_text((dibs_status)status));
  dibs__lab_fact(&lab->sheet, "store", "Store", "%s", dibs__lab_door_shown(lab->door));
  if (dibs__lab_line_open(lab->door, &lab->line, &said) != DIBS_OK) return dibs__lab_fail(lab, "%s", said.text);
  dibs__lab_version(&lab->line, version, sizeof version);
  dibs__lab_fact(&lab->sheet, "engine", "Engine", "%s", version);
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

static bool say(struct lab *lab, const char *doing, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool say(struct lab *lab, const char *doing, const char *format, ...) {
  char text[TEXT_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (dibs__lab_say(&lab->line, text, NULL, 0) == DIBS__SQL_FINE) return true;
  return dibs__lab_fail_line(lab, &lab->line, doing);
}

/* The lab's own connection may have been lost with the server's last life: it comes back, for some time. */
static bool line_ready(struct lab *lab) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BACK_MS);
  struct dibs__said said = {0};
  int64_t one;
  if (lab->line.wire && dibs__lab_number(&lab->line, "SELECT 1", 0, &one) == DIBS__SQL_FINE) return true;
  for (;;) {
    dibs__lab_line_close(&lab->line);
    if (dibs__lab_line_open(lab->door, &lab->line, &said) == DIBS_OK) return true;
    if (dibs__lab_ended(lab) || !dibs__tick_before(dibs__tick_now(), by)) return dibs__lab_fail(lab, "%s", said.text);
    dibs__nap_ms(200);
  }
}

bool dibs__lab_tables_drop(struct lab *lab) {
  bool fine = say(lab, "drop the lab's tables", "DROP TABLE IF EXISTS %s", lab->applicant) &&
              say(lab, "drop the lab's tables", "DROP TABLE IF EXISTS %s", lab->event);
  if (fine) lab->tables = false;
  return fine;
}

void dibs__lab_close(struct lab *lab) {
  if (lab->door && lab->tables) {
    if (lab->keep)
      dibs__lab_note(&lab->sheet, "The tables %s and %s were kept.", lab->event, lab->applicant);
    else if (!line_ready(lab) || !dibs__lab_tables_drop(lab))
      dibs__lab_note(&lab->sheet, "%s; drop the tables %s and %s by hand.", lab->why, lab->applicant, lab->event);
  }
  dibs__lab_line_close(&lab->line);
  dibs__lab_door_close(lab->door);
  lab->door = NULL;
}

static bool make(struct lab *lab) {
  const struct dibs__sql_words *w = &lab->line.wire->engine->words;
  const char *doing = "make the lab's tables";
  return say(lab, doing,
             "CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, used %s NOT NULL, seats %s NOT NULL, "
             "version %s NOT NULL, fence %s NOT NULL, holder %s NOT NULL)",
             lab->event, w->name, w->number, w->number, w->number, w->number, w->number) &&
         say(lab, doing,
             "CREATE TABLE %s (claim %s NOT NULL PRIMARY KEY, event %s NOT NULL, amount %s NOT NULL, "
             "given %s NOT NULL, who %s, at %s, FOREIGN KEY (event) REFERENCES %s (id))",
             lab->applicant, w->name, w->name, w->number, w->number, w->name, w->number, lab->event);
}

static bool fill(struct lab *lab, uint32_t rows, int64_t seats) {
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
    if (engine->put_rows(wire, text, NULL, 0, cells, 6, count) != DIBS__SQL_FINE ||
        engine->go(wire, true) != DIBS__SQL_FINE)
      return dibs__lab_fail_line(lab, &lab->line, "fill the lab's tables");
    at += count;
  }
  return true;
}

/* Without SQL: dibs' own stock. */
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
  if (!lab->door) return make_stocks(lab, rows, seats);
  if (!line_ready(lab)) return false;
  lab->line.wire->by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  if (lab->tables && !dibs__lab_tables_drop(lab)) return false;
  lab->tables = true; /* perhaps one of them */
  return make(lab) && fill(lab, rows, seats);
}

/* ---- Counting ---- */

static bool number(struct lab *lab, const char *text, int64_t *to) {
  if (dibs__lab_number(&lab->line, text, 0, to) == DIBS__SQL_FINE) return true;
  return dibs__lab_fail_line(lab, &lab->line, "count in the lab's tables");
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
  if (!lab->door) return audit_stocks(lab, rows, audit);
  if (!line_ready(lab)) return false;
  char text[TEXT_MAX];
  *audit = (struct lab_audit){0};
  struct lab_line *line = &lab->line;
  /* Row by row, because a sum is of another type with each engine. */
  snprintf(text, sizeof text,
           "SELECT e.used, COALESCE(a.n, 0) FROM %s e LEFT JOIN (SELECT event, COUNT(*) AS n FROM %s WHERE given = 0 "
           "GROUP BY event) a ON a.event = e.id",
           lab->event, lab->applicant);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 10 * LAB_LINE_MS);
  if (dibs__lab_say_by(line, text, NULL, 0, by, false) != DIBS__SQL_FINE)
    return dibs__lab_fail_line(lab, line, "count in the lab's tables");
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
  if (!number(lab, text, &there)) return false;
  return there == rows || dibs__lab_fail(lab, "there are %" PRId64 " counted rows, not %u", there, rows);
}
