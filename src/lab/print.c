/* SPDX-License-Identifier: MIT */
/* A sheet as tables for people and as JSON for programs, and the line of progress. */
#include "lab/print.h"
#include "base/duration.h"
#include "cli/cli.h"

#include <string.h>

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

void dibs__lab_print(const struct lab_sheet *sheet, FILE *out) {
  fprintf(out, "%s\n", sheet->title ? sheet->title : sheet->experiment);
  for (size_t i = 0; i < sheet->fact_count; i++)
    fprintf(out, "%s: %s\n", sheet->facts[i].head, sheet->facts[i].text ? sheet->facts[i].text : "");
  for (size_t i = 0; i < sheet->part_count; i++) {
    if (sheet->parts[i]->kind == LAB_PART_TABLE) print_table(&sheet->parts[i]->as.table, out);
    if (sheet->parts[i]->kind == LAB_PART_TIMELINE) print_timeline(&sheet->parts[i]->as.timeline, out);
  }
  if (sheet->failed) {
    fputs("\nNot run: ", out);
    dibs__cli_put(out, sheet->failed, 0);
    putc('\n', out);
    return;
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

static void json_fact(struct dibs__json *json, const struct lab_fact *fact) {
  if (!fact->count) dibs__json_text(json, fact->key, fact->text);
  if (fact->is_list) dibs__json_open(json, fact->key, '[');
  for (size_t i = 0; i < fact->count; i++) {
    const char *key = fact->is_list ? NULL : fact->key;
    double number = fact->numbers[i];
    if (number == (double)(int64_t)number)
      dibs__json_int(json, key, (int64_t)number);
    else
      dibs__json_real(json, key, number);
  }
  if (fact->is_list) dibs__json_close(json, ']');
}

void dibs__lab_json(struct dibs__json *json, const struct lab_sheet *sheet) {
  dibs__json_open(json, NULL, '{');
  dibs__json_text(json, "lab", sheet->experiment);
  dibs__json_text(json, "dibs", dibs_version());
  for (size_t i = 0; i < sheet->fact_count; i++) json_fact(json, &sheet->facts[i]);
  dibs__json_bool(json, "held", !sheet->broken);
  dibs__json_bool(json, "complete", !sheet->interrupted);
  if (sheet->failed) dibs__json_text(json, "error", sheet->failed);
  for (size_t i = 0; i < sheet->part_count; i++) {
    if (sheet->parts[i]->kind == LAB_PART_TABLE) json_table(json, &sheet->parts[i]->as.table);
    if (sheet->parts[i]->kind == LAB_PART_TIMELINE) json_timeline(json, &sheet->parts[i]->as.timeline);
  }
  dibs__json_open(json, "plots", '[');
  for (size_t i = 0; i < sheet->part_count; i++)
    if (sheet->parts[i]->kind == LAB_PART_PLOT) json_plot(json, &sheet->parts[i]->as.plot);
  dibs__json_close(json, ']');
  dibs__json_open(json, "notes", '[');
  for (size_t i = 0; i < sheet->note_count; i++) dibs__json_text(json, NULL, sheet->notes[i]);
  dibs__json_close(json, ']');
  dibs__json_close(json, '}');
}

/* ---- Progress ---- */

void dibs__lab_progress(const struct lab_progress *p, void *user) {
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
