/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_SHEET_H
#define DIBS_LAB_SHEET_H
/*
 * The results of an experiment: tables, plots, timelines, and texts.  Experiments fill it and know no format; the
 * command prints it as a table or as JSON, page.c as a page.  Texts are copied.  When memory runs out, the sheet sets
 * `full` and drops everything that is added later.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum lab_kind {
  LAB_TEXT,
  LAB_COUNT, /* a whole number */
  LAB_RATE,  /* a second */
  LAB_MS,    /* milliseconds */
  LAB_TIMES  /* a ratio */
};
enum lab_mood { LAB_PLAIN, LAB_GOOD, LAB_EXPECTED /* LAB_EXPECTED: broke, as expected */, LAB_BAD };

/* A table's column: immutable, not copied. */
struct lab_column {
  const char *key, *head; /* for programs; for people */
  enum lab_kind kind;
};
struct lab_cell {
  bool none; /* nothing was measured */
  double number;
  char *text;
  enum lab_mood mood;
};
struct lab_table {
  const char *key; /* not copied */
  char *title, *text;
  const struct lab_column *columns;
  size_t column_count;
  struct lab_cell *cells; /* row by row */
  size_t count, capacity;
};

struct lab_series {
  char *name;
  enum lab_mood mood; /* LAB_EXPECTED and LAB_BAD are drawn as failures */
  unsigned hue; /* the same for the same name in all plots of a sheet: up to a comma, without "bare " and digits at the
                   end */
  bool faint;   /* only for comparison */
  double *x, *y;
  size_t count, capacity;
};
enum lab_shape {
  LAB_BARS,  /* one bar for each series: its first y */
  LAB_LINES, /* y over x */
  LAB_HILLS  /* one strip for each series: y, a density, over x; marks at `mark` */
};
enum { LAB_SERIES_MAX = 24 };
struct lab_plot {
  const char *key; /* not copied */
  enum lab_shape shape;
  char *title, *text;
  const char *x_title, *y_title; /* not copied */
  bool log_x, log_y;
  struct lab_series series[LAB_SERIES_MAX];
  double mark[LAB_SERIES_MAX][2]; /* HILLS: the median and the 99th percentile */
  size_t count;
};

/* Two sessions beside each other, step by step. */
struct lab_step {
  int side; /* 0, 1; -1: across both */
  enum lab_mood mood;
  char *does, *gets;
};
struct lab_timeline {
  const char *key; /* not copied */
  char *title, *text, *heads[2];
  struct lab_step *steps;
  size_t count, capacity;
};

enum lab_part_kind { LAB_PART_TABLE, LAB_PART_PLOT, LAB_PART_TIMELINE };
struct lab_part {
  enum lab_part_kind kind;
  union {
    struct lab_table table;
    struct lab_plot plot;
    struct lab_timeline timeline;
  } as;
};

enum { LAB_FACTS_MAX = 24, LAB_FACT_NUMBERS_MAX = 16, LAB_NOTES_MAX = 64, LAB_HUES_MAX = 24 };
struct lab_fact {
  const char *key, *head; /* not copied */
  char *text;
  double numbers[LAB_FACT_NUMBERS_MAX];
  size_t count; /* of numbers; 0: a text */
  bool is_list; /* for programs: a list, also with one number */
};
struct lab_sheet {
  const char *experiment; /* "race"; not copied */
  char *title, *intro;
  struct lab_fact facts[LAB_FACTS_MAX];
  size_t fact_count;
  struct lab_part **parts;
  size_t part_count, part_capacity;
  char *hues[LAB_HUES_MAX];
  unsigned hue_count;
  char *notes[LAB_NOTES_MAX];
  size_t note_count;
  bool broken;      /* a promise was broken */
  bool interrupted; /* the experiment is incomplete */
  char *failed;     /* why it could not run; NULL: it ran */
  bool has_index;   /* its page is one of several, below index.html */
  bool full;
};

void dibs__lab_sheet_free(struct lab_sheet *sheet);
void dibs__lab_title(struct lab_sheet *sheet, const char *title, const char *intro);
void dibs__lab_fact(struct lab_sheet *sheet, const char *key, const char *head, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A number, with its unit for people ("" for none). */
void dibs__lab_fact_number(struct lab_sheet *sheet, const char *key, const char *head, double number, const char *unit);
void dibs__lab_fact_list(struct lab_sheet *sheet, const char *key, const char *head, const uint32_t *numbers,
                         size_t count);
void dibs__lab_fail_sheet(struct lab_sheet *sheet, const char *why);
void dibs__lab_note(struct lab_sheet *sheet, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Each adds a part at the end; NULL when memory ran out, which all functions below accept. */
struct lab_table *dibs__lab_table(struct lab_sheet *sheet, const char *key, const char *title, const char *text,
                                  const struct lab_column *columns, size_t count);
struct lab_plot *dibs__lab_plot(struct lab_sheet *sheet, const char *key, enum lab_shape shape, const char *title,
                                const char *text);
struct lab_timeline *dibs__lab_timeline(struct lab_sheet *sheet, const char *key, const char *title, const char *text,
                                        const char *left, const char *right);

/* The next cell of the row. */
void dibs__lab_put(struct lab_sheet *sheet, struct lab_table *table, double number);
void dibs__lab_put_text(struct lab_sheet *sheet, struct lab_table *table, enum lab_mood mood, const char *text);
/* The mood of the last cell. */
void dibs__lab_mood(struct lab_table *table, enum lab_mood mood);
/* The end of a scene with a late write to a sum: a step of the timeline, and a row with the title, whether the late
 * write was accepted, the value, what the acknowledged additions make, what is lost, and the verdict. */
void dibs__lab_put_sum(struct lab_sheet *sheet, struct lab_timeline *timeline, struct lab_table *table,
                       const char *title, bool late, int64_t value, int64_t should, enum lab_mood mood);

/* NULL when there are LAB_SERIES_MAX. */
struct lab_series *dibs__lab_series(struct lab_sheet *sheet, struct lab_plot *plot, const char *name,
                                    enum lab_mood mood);
void dibs__lab_point(struct lab_sheet *sheet, struct lab_series *series, double x, double y);

void dibs__lab_step(struct lab_sheet *sheet, struct lab_timeline *timeline, int side, enum lab_mood mood,
                    const char *does, const char *gets);

/* A number as people read it: "12,345", "3.2", "1.4x"; "-" for none. */
void dibs__lab_figure(char *to, size_t size, enum lab_kind kind, const struct lab_cell *cell);

/* A sheet as one self-contained page: it loads nothing, plots are SVG, and each has a table. */

/* ferror(out) tells whether it was written. */
void dibs__lab_report(const struct lab_sheet *sheet, FILE *out);

/* ---- The page of several sheets (index.c) ---- */

enum { LAB_INDEX_MAX = 16 };
struct lab_index {
  struct lab_index_entry {
    const char *experiment; /* its page is experiment.html; not copied */
    char *title, *summary;
    enum lab_mood mood;
  } entries[LAB_INDEX_MAX];
  size_t count;
  struct lab_sheet facts; /* those of the first sheet that are true for all */
};
/* Adds what the sheet shows. */
void dibs__lab_index_add(struct lab_index *index, const struct lab_sheet *sheet);
/* ferror(out) tells whether it was written. */
void dibs__lab_index_write(const struct lab_index *index, FILE *out);
void dibs__lab_index_free(struct lab_index *index);

/* ---- Inside the writer ---- */

void dibs__lab_page_head(const char *title, FILE *out);
void dibs__lab_page_tail(FILE *out);
void dibs__lab_page_facts(const struct lab_sheet *sheet, FILE *out);

/* Text in HTML or an attribute: escaped; invalid UTF-8 and control characters are replaced. */
void dibs__lab_escape(FILE *out, const char *text);

#endif
