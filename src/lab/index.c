/* SPDX-License-Identifier: MIT */
/* The page that lists the pages of several experiments, with the result of each. */
#include "lab/sheet.h"

#include <stdlib.h>
#include <string.h>

static void count_moods(const struct lab_sheet *sheet, size_t moods[LAB_BAD + 1]) {
  for (size_t i = 0; i < sheet->part_count; i++) {
    const struct lab_table *table = &sheet->parts[i]->as.table;
    if (sheet->parts[i]->kind != LAB_PART_TABLE) continue;
    for (size_t n = 0; n < table->count; n++)
      if (strcmp(table->columns[n % table->column_count].key, "verdict") == 0) moods[table->cells[n].mood]++;
  }
}

static void add_part(char *text, size_t size, size_t count, const char *what) {
  size_t length = strlen(text);
  if (count) snprintf(text + length, size - length, "%s%zu %s", length ? "; " : "", count, what);
}

void dibs__lab_index_add(struct lab_index *index, const struct lab_sheet *sheet) {
  static const char *const shared[] = {"date", "version", "machine", "store", "engine", "durability", "locks"};
  if (index->count == LAB_INDEX_MAX) return;
  struct lab_index_entry *entry = &index->entries[index->count++];
  size_t moods[LAB_BAD + 1] = {0};
  char text[600] = "";
  count_moods(sheet, moods);
  entry->experiment = sheet->experiment;
  entry->mood = sheet->broken ? LAB_BAD : sheet->failed || sheet->interrupted ? LAB_EXPECTED : LAB_GOOD;
  if (sheet->failed) {
    snprintf(text, sizeof text, "Not run: %s", sheet->failed);
  } else {
    add_part(text, sizeof text, moods[LAB_BAD], "BROKEN");
    add_part(text, sizeof text, moods[LAB_GOOD], "correct");
    add_part(text, sizeof text, moods[LAB_EXPECTED], "broken, as expected");
    add_part(text, sizeof text, moods[LAB_PLAIN], "that did not break this time");
    if (sheet->interrupted) snprintf(text + strlen(text), sizeof text - strlen(text), "; ended early");
  }
  entry->title = strdup(sheet->title ? sheet->title : sheet->experiment);
  entry->summary = strdup(text);
  if (!entry->title || !entry->summary) index->facts.full = true;
  for (size_t i = 0; i < sheet->fact_count; i++)
    for (size_t n = 0; n < sizeof shared / sizeof *shared; n++) {
      const struct lab_fact *fact = &sheet->facts[i];
      bool here = strcmp(shared[n], fact->key) == 0;
      for (size_t k = 0; k < index->facts.fact_count; k++)
        here = here && strcmp(index->facts.facts[k].key, fact->key) != 0;
      if (here && fact->text) dibs__lab_fact(&index->facts, fact->key, fact->head, "%s", fact->text);
    }
}

static void write_entry(const struct lab_index_entry *entry, FILE *out) {
  static const char *const classes[] = {"", "good", "expected", "bad"};
  fprintf(out, "<section class=\"card\">\n<h2><a href=\"%s.html\">", entry->experiment);
  dibs__lab_escape(out, entry->title ? entry->title : "");
  fprintf(out, "</a></h2>\n<p>dibs lab %s</p>\n<p class=\"verdict %s\">", entry->experiment, classes[entry->mood]);
  dibs__lab_escape(out, entry->mood == LAB_BAD        ? "\xe2\x9c\x95 "
                        : entry->mood == LAB_EXPECTED ? "\xe2\x9a\xa0\xef\xb8\x8e "
                                                      : "\xe2\x9c\x93 ");
  dibs__lab_escape(out, entry->summary ? entry->summary : "");
  fputs("</p>\n</section>\n", out);
}

void dibs__lab_index_write(const struct lab_index *index, FILE *out) {
  bool broken = false;
  for (size_t i = 0; i < index->count; i++) broken = broken || index->entries[i].mood == LAB_BAD;
  dibs__lab_page_head("All experiments", out);
  fputs("<header>\n<p class=\"kicker\">dibs lab all</p>\n<h1>All experiments</h1>\n", out);
  fprintf(out, "<p class=\"verdict %s\">%s</p>\n", broken ? "bad" : "good",
          broken ? "\xe2\x9c\x95 A promise was broken: see the experiment." : "\xe2\x9c\x93 Every promise held.");
  dibs__lab_page_facts(&index->facts, out);
  fputs("</header>\n<div class=\"grid\">\n", out);
  for (size_t i = 0; i < index->count; i++) write_entry(&index->entries[i], out);
  fputs("</div>\n<footer><p>These pages load nothing from elsewhere.</p></footer>\n", out);
  dibs__lab_page_tail(out);
}

void dibs__lab_index_free(struct lab_index *index) {
  for (size_t i = 0; i < index->count; i++) {
    free(index->entries[i].title);
    free(index->entries[i].summary);
  }
  dibs__lab_sheet_free(&index->facts);
  *index = (struct lab_index){0};
}
