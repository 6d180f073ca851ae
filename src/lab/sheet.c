/* SPDX-License-Identifier: MIT */
/* Filling a sheet. */
#include "lab/sheet.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *keep(struct lab_sheet *sheet, const char *text) {
  char *copy = strdup(text ? text : "");
  if (!copy) sheet->full = true;
  return copy;
}

/* One more place of `size` bytes, cleared; NULL when memory ran out. */
static void *one_more(struct lab_sheet *sheet, void *array, size_t count, size_t *room, size_t size) {
  if (count < *room) return array;
  size_t wanted = *room ? *room * 2 : 16;
  void *more = reallocarray(array, wanted, size);
  if (!more) {
    sheet->full = true;
    return NULL;
  }
  memset((char *)more + *room * size, 0, (wanted - *room) * size);
  *room = wanted;
  return more;
}

void dibs__lab_title(struct lab_sheet *sheet, const char *title, const char *intro) {
  free(sheet->title);
  free(sheet->intro);
  sheet->title = keep(sheet, title);
  sheet->intro = keep(sheet, intro);
}

void dibs__lab_fact(struct lab_sheet *sheet, const char *key, const char *head, const char *format, ...) {
  if (sheet->fact_count == LAB_FACTS_MAX) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  size_t n = sheet->fact_count++;
  sheet->facts[n].key = key;
  sheet->facts[n].head = head;
  sheet->facts[n].text = keep(sheet, text);
}

void dibs__lab_note(struct lab_sheet *sheet, const char *format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  for (size_t i = 0; i < sheet->note_count; i++)
    if (sheet->notes[i] && strcmp(sheet->notes[i], text) == 0) return;
  if (sheet->note_count < LAB_NOTES_MAX) sheet->notes[sheet->note_count++] = keep(sheet, text);
}

static struct lab_part *part(struct lab_sheet *sheet, enum lab_part_kind kind) {
  struct lab_part **parts = one_more(sheet, sheet->parts, sheet->part_count, &sheet->part_room, sizeof *sheet->parts);
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
  struct lab_part *made = part(sheet, LAB_PART_TABLE);
  if (!made) return NULL;
  struct lab_table *table = &made->as.table;
  table->key = key;
  table->title = keep(sheet, title);
  table->text = keep(sheet, text);
  table->columns = columns;
  table->column_count = count;
  return table;
}

struct lab_plot *dibs__lab_plot(struct lab_sheet *sheet, const char *key, enum lab_shape shape, const char *title,
                                const char *text) {
  struct lab_part *made = part(sheet, LAB_PART_PLOT);
  if (!made) return NULL;
  struct lab_plot *plot = &made->as.plot;
  plot->key = key;
  plot->shape = shape;
  plot->title = keep(sheet, title);
  plot->text = keep(sheet, text);
  plot->x_title = plot->y_title = "";
  return plot;
}

struct lab_timeline *dibs__lab_timeline(struct lab_sheet *sheet, const char *key, const char *title, const char *text,
                                        const char *left, const char *right) {
  struct lab_part *made = part(sheet, LAB_PART_TIMELINE);
  if (!made) return NULL;
  struct lab_timeline *timeline = &made->as.timeline;
  timeline->key = key;
  timeline->title = keep(sheet, title);
  timeline->text = keep(sheet, text);
  timeline->heads[0] = keep(sheet, left);
  timeline->heads[1] = keep(sheet, right);
  return timeline;
}

static void put(struct lab_sheet *sheet, struct lab_table *table, struct lab_cell cell) {
  struct lab_cell *cells =
      table ? one_more(sheet, table->cells, table->count, &table->room, sizeof *table->cells) : NULL;
  if (!cells) {
    free(cell.text);
    return;
  }
  table->cells = cells;
  table->cells[table->count++] = cell;
}

void dibs__lab_put(struct lab_sheet *sheet, struct lab_table *table, double number) {
  put(sheet, table, (struct lab_cell){.number = number, .none = !isfinite(number)});
}

void dibs__lab_put_none(struct lab_sheet *sheet, struct lab_table *table) {
  put(sheet, table, (struct lab_cell){.none = true});
}

void dibs__lab_put_text(struct lab_sheet *sheet, struct lab_table *table, enum lab_mood mood, const char *text) {
  put(sheet, table, (struct lab_cell){.text = keep(sheet, text), .mood = mood});
}

void dibs__lab_mood(struct lab_table *table, enum lab_mood mood) {
  if (table && table->count) table->cells[table->count - 1].mood = mood;
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
  sheet->hues[sheet->hue_count] = keep(sheet, key);
  return sheet->hue_count++;
}

struct lab_series *dibs__lab_series(struct lab_sheet *sheet, struct lab_plot *plot, const char *name,
                                    enum lab_mood mood) {
  if (!plot || plot->count == LAB_SERIES_MAX) return NULL;
  struct lab_series *series = &plot->series[plot->count++];
  series->name = keep(sheet, name);
  series->mood = mood;
  series->hue = hue_of(sheet, name);
  return series;
}

void dibs__lab_point(struct lab_sheet *sheet, struct lab_series *series, double x, double y) {
  if (!series || !isfinite(x) || !isfinite(y)) return;
  size_t room = series->room;
  double *xs = one_more(sheet, series->x, series->count, &room, sizeof *xs);
  if (!xs) return;
  series->x = xs;
  room = series->room;
  double *ys = one_more(sheet, series->y, series->count, &room, sizeof *ys);
  if (!ys) return;
  series->y = ys;
  series->room = room;
  series->x[series->count] = x;
  series->y[series->count++] = y;
}

void dibs__lab_step(struct lab_sheet *sheet, struct lab_timeline *timeline, int side, enum lab_mood mood,
                    const char *does, const char *gets) {
  struct lab_step *steps =
      timeline ? one_more(sheet, timeline->steps, timeline->count, &timeline->room, sizeof *steps) : NULL;
  if (!steps) return;
  timeline->steps = steps;
  struct lab_step *step = &steps[timeline->count++];
  step->side = side;
  step->mood = mood;
  step->does = keep(sheet, does);
  step->gets = keep(sheet, gets);
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
  *sheet = (struct lab_sheet){0};
}

/* ---- Figures ---- */

/* Thousands apart. */
static void whole(char *to, size_t size, double number) {
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
    whole(to, size, n);
  } else {
    snprintf(to, size, fabs(n) < 10 ? "%.2f%s" : "%.1f%s", n, kind == LAB_TIMES ? "x" : "");
  }
}
