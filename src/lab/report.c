/* SPDX-License-Identifier: MIT */
/* The page: what was asked, whether promises held, tables, plots, timelines, notes. */
#include "lab/report.h"

#include <string.h>

enum { NARROW = 5 }; /* columns of a table that fits beside a plot */

static const char *class_of(enum lab_mood mood) {
  static const char *const names[] = {
      [LAB_PLAIN] = "", [LAB_GOOD] = "good", [LAB_EXPECTED] = "expected", [LAB_BAD] = "bad"};
  return names[mood];
}

static void heading(const char *title, const char *text, FILE *out) {
  fputs("<h2>", out);
  dibs__lab_escape(out, title ? title : "");
  fputs("</h2>\n", out);
  if (!text || !*text) return;
  fputs("<p>", out);
  dibs__lab_escape(out, text);
  fputs("</p>\n", out);
}

static void write_cell(const struct lab_column *column, const struct lab_cell *cell, bool first, FILE *out) {
  char figure[256];
  bool number = column->kind != LAB_TEXT;
  const char *mood = class_of(cell->mood);
  const char *tag = first ? "th scope=\"row\"" : "td";
  dibs__lab_figure(figure, sizeof figure, column->kind, cell);
  fprintf(out, "<%s", tag);
  if (number || *mood) fprintf(out, " class=\"%s%s%s\"", number ? "n" : "", number && *mood ? " " : "", mood);
  fputc('>', out);
  dibs__lab_escape(out, cell->none ? "\xe2\x80\x93" : figure);
  fputs(first ? "</th>" : "</td>", out);
}

static void write_table(const struct lab_table *table, FILE *out) {
  fprintf(out, "<section class=\"card%s\">\n", table->column_count > NARROW ? " wide" : "");
  heading(table->title, table->text, out);
  fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", out);
  dibs__lab_escape(out, table->title ? table->title : "");
  fputs("\">\n<table>\n<thead><tr>", out);
  for (size_t i = 0; i < table->column_count; i++) {
    fprintf(out, "<th scope=\"col\"%s>", table->columns[i].kind == LAB_TEXT ? "" : " class=\"n\"");
    dibs__lab_escape(out, table->columns[i].head);
    fputs("</th>", out);
  }
  fputs("</tr></thead>\n<tbody>\n", out);
  for (size_t i = 0; i + table->column_count <= table->count; i += table->column_count) {
    fputs("<tr>", out);
    for (size_t c = 0; c < table->column_count; c++) write_cell(&table->columns[c], &table->cells[i + c], c == 0, out);
    fputs("</tr>\n", out);
  }
  fputs("</tbody>\n</table>\n</div>\n</section>\n", out);
}

/* Each step has a row of its own: what stands below happened later. */
static void write_step(const struct lab_timeline *timeline, size_t nth, FILE *out) {
  const struct lab_step *step = &timeline->steps[nth];
  const char *side = step->side < 0 ? "b" : step->side == 0 ? "l" : "r", *mood = class_of(step->mood);
  fprintf(out, "<li><div class=\"act %s%s%s\" style=\"grid-row:%zu\">", side, *mood ? " " : "", mood, nth + 2);
  if (step->side >= 0) {
    fputs("<span class=\"visually-hidden\">", out);
    dibs__lab_escape(out, timeline->heads[step->side] ? timeline->heads[step->side] : "");
    fputs(": </span>", out);
  }
  if (step->does && *step->does) {
    fputs(step->side < 0 ? "<span>" : "<code>", out);
    dibs__lab_escape(out, step->does);
    fputs(step->side < 0 ? "</span>" : "</code>", out);
  }
  if (step->gets && *step->gets) {
    fputs("<span class=\"gets\">", out);
    dibs__lab_escape(out, step->gets);
    fputs("</span>", out);
  }
  fputs("</div></li>\n", out);
}

static void write_timeline(const struct lab_timeline *timeline, FILE *out) {
  fputs("<section class=\"card wide\">\n", out);
  heading(timeline->title, timeline->text, out);
  fputs("<ol class=\"time\">\n<li aria-hidden=\"true\">", out);
  for (size_t i = 0; i < 2; i++) {
    fputs("<div class=\"who\">", out);
    dibs__lab_escape(out, timeline->heads[i] ? timeline->heads[i] : "");
    fputs("</div>", out);
  }
  fputs("</li>\n", out);
  for (size_t i = 0; i < timeline->count; i++) write_step(timeline, i, out);
  fputs("</ol>\n</section>\n", out);
}

static void write_facts(const struct lab_sheet *sheet, FILE *out) {
  if (!sheet->fact_count) return;
  fputs("<dl class=\"facts\">\n", out);
  for (size_t i = 0; i < sheet->fact_count; i++) {
    fputs("<div><dt>", out);
    dibs__lab_escape(out, sheet->facts[i].head);
    fputs("</dt><dd>", out);
    dibs__lab_escape(out, sheet->facts[i].text ? sheet->facts[i].text : "");
    fputs("</dd></div>\n", out);
  }
  fputs("</dl>\n", out);
}

static void write_notes(const struct lab_sheet *sheet, FILE *out) {
  if (!sheet->note_count) return;
  fputs("<section>\n<h2>Notes</h2>\n<ul class=\"notes\">\n", out);
  for (size_t i = 0; i < sheet->note_count; i++) {
    fputs("<li>", out);
    dibs__lab_escape(out, sheet->notes[i] ? sheet->notes[i] : "");
    fputs("</li>\n", out);
  }
  fputs("</ul>\n</section>\n", out);
}

static void write_head(const struct lab_sheet *sheet, FILE *out) {
  fputs("<header>\n<p class=\"kicker\">dibs lab", out);
  if (sheet->experiment) {
    fputc(' ', out);
    dibs__lab_escape(out, sheet->experiment);
  }
  fputs("</p>\n<h1>", out);
  dibs__lab_escape(out, sheet->title ? sheet->title : "");
  fputs("</h1>\n", out);
  if (sheet->intro && *sheet->intro) {
    fputs("<p class=\"lead\">", out);
    dibs__lab_escape(out, sheet->intro);
    fputs("</p>\n", out);
  }
  fprintf(out, "<p class=\"verdict %s\">%s</p>\n",
          sheet->broken        ? "bad"
          : sheet->interrupted ? "expected"
                               : "good",
          sheet->broken        ? "\xe2\x9c\x95 A promise was broken: see the table."
          : sheet->interrupted ? "\xe2\x9a\xa0\xef\xb8\x8e Ended early: this is what there was by then."
                               : "\xe2\x9c\x93 What was promised held.");
  write_facts(sheet, out);
  fputs("</header>\n", out);
}

void dibs__lab_report(const struct lab_sheet *sheet, FILE *out) {
  dibs__lab_page_head(sheet, out);
  write_head(sheet, out);
  fputs("<div class=\"grid\">\n", out);
  for (size_t i = 0; i < sheet->part_count; i++) {
    const struct lab_part *part = sheet->parts[i];
    if (part->kind == LAB_PART_TABLE)
      write_table(&part->as.table, out);
    else if (part->kind == LAB_PART_PLOT)
      dibs__lab_plot_write(&part->as.plot, i, out);
    else
      write_timeline(&part->as.timeline, out);
  }
  fputs("</div>\n", out);
  write_notes(sheet, out);
  fputs(
      "<footer><p>Nothing on this page is fetched from anywhere; each plot has its figures in a table.</p></footer>\n",
      out);
  dibs__lab_page_tail(out);
}
