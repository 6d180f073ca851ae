/* SPDX-License-Identifier: MIT */
/*
 * Tables for people.  Columns are as wide as what stands in them; on a terminal that is too narrow the columns marked
 * with '*' are cut first, the widest first, down to a fair width, then to a least one, then the others; then
 * those marked with '-' are left out.
 */
#include "base/text.h"
#include "cli/cli.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { GAP = 2, LEAST_WIDTH = 6, FAIR_WIDTH = 14, PASSES = 3 };

struct cli_table {
  const char *head[CLI_CELLS_MAX];
  bool right[CLI_CELLS_MAX], cut_first[CLI_CELLS_MAX], may_go[CLI_CELLS_MAX];
  size_t columns;
  char **cell; /* row by row */
  size_t cells, room;
};

size_t dibs__cli_utf8(const char *text, size_t length, uint32_t *point) {
  size_t took = dibs__utf8_next(text, length, point);
  if (took > 0) return took;
  *point = 0xfffd;
  return 1;
}

/* Ranges that take two columns, or none, in the terminals of today. */
static const struct {
  uint32_t first, last;
  uint8_t width;
} wides[] = {
    {0x300, 0x36f, 0},     {0x483, 0x489, 0},     {0x591, 0x5bd, 0},     {0x610, 0x61a, 0},    {0x64b, 0x65f, 0},
    {0x1100, 0x115f, 2},   {0x1ab0, 0x1aff, 0},   {0x1dc0, 0x1dff, 0},   {0x200b, 0x200f, 0},  {0x2028, 0x202e, 0},
    {0x2060, 0x2064, 0},   {0x20d0, 0x20ff, 0},   {0x2e80, 0x303e, 2},   {0x3041, 0x33ff, 2},  {0x3400, 0x4dbf, 2},
    {0x4e00, 0x9fff, 2},   {0xa000, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},  {0xfe00, 0xfe0f, 0},
    {0xfe20, 0xfe2f, 0},   {0xfe30, 0xfe4f, 2},   {0xfeff, 0xfeff, 0},   {0xff00, 0xff60, 2},  {0xffe0, 0xffe6, 2},
    {0x1f300, 0x1f64f, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2}, {0xe0100, 0xe01ef, 0}};

static size_t width_of(uint32_t code) {
  for (size_t i = 0; i < sizeof wides / sizeof *wides; i++)
    if (code >= wides[i].first && code <= wides[i].last) return wides[i].width;
  return 1;
}

/* Would let a name or an owner take the terminal over, or turn the text around. */
static bool harmful(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0x2028 || code == 0x2029;
}

size_t dibs__cli_width(const char *text) {
  size_t width = 0, length = strlen(text);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += dibs__cli_utf8(text + at, length - at, &code);
    width += harmful(code) ? 1 : width_of(code);
  }
  return width;
}

void dibs__cli_put(FILE *out, const char *text, size_t width) {
  bool cut = width > 0 && dibs__cli_width(text) > width;
  size_t used = 0, length = strlen(text);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t took = dibs__cli_utf8(text + at, length - at, &code);
    size_t wide = harmful(code) ? 1 : width_of(code);
    if (cut && used + wide > width - 1) break;
    if (harmful(code))
      putc('?', out);
    else if (code == 0xfffd)
      fputs("\xef\xbf\xbd", out);
    else
      fwrite(text + at, 1, took, out);
    used += wide;
    at += took;
  }
  if (cut) fputs("\xe2\x80\xa6", out);
}

size_t dibs__cli_columns(int fd) {
  struct winsize size;
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 0 ? size.ws_col : 80;
}

struct cli_table *dibs__cli_table_new(const char *const *heads) {
  struct cli_table *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  for (; heads[table->columns] != NULL && table->columns < CLI_CELLS_MAX; table->columns++) {
    const char *head = heads[table->columns];
    for (; *head != '\0' && strchr(">*-", *head) != NULL; head++) {
      if (*head == '>')
        table->right[table->columns] = true;
      else if (*head == '*')
        table->cut_first[table->columns] = true;
      else
        table->may_go[table->columns] = true;
    }
    table->head[table->columns] = head;
  }
  return table;
}

bool dibs__cli_table_add(struct cli_table *table, const char *text) {
  if (table->cells == table->room) {
    size_t room = table->room == 0 ? 64 : table->room * 2;
    char **cell = realloc(table->cell, room * sizeof *cell);
    if (cell == NULL) return false;
    table->cell = cell;
    table->room = room;
  }
  char *copy = strdup(text);
  if (copy == NULL) return false;
  table->cell[table->cells++] = copy;
  return true;
}

/* Takes columns' width away until the row fits or nothing more may be taken. */
static void shrink(const struct cli_table *table, size_t *width, size_t most) {
  size_t total = (table->columns - 1) * GAP;
  for (size_t i = 0; i < table->columns; i++) total += width[i];
  for (int pass = 0; pass < PASSES; pass++)
    while (total > most) {
      size_t widest = table->columns, least = pass == 0 ? FAIR_WIDTH : LEAST_WIDTH;
      for (size_t i = 0; i < table->columns; i++) {
        bool may = pass + 1 == PASSES || table->cut_first[i];
        if (may && width[i] > least && (widest == table->columns || width[i] > width[widest])) widest = i;
      }
      if (widest == table->columns) break;
      width[widest]--;
      total--;
    }
  for (size_t i = table->columns; i-- > 0 && total > most;)
    if (table->may_go[i]) {
      total -= width[i] + GAP;
      width[i] = 0;
    }
}

static void print_row(const struct cli_table *table, const char *const *cell, const size_t *width, FILE *out) {
  for (size_t i = 0; i < table->columns; i++) {
    if (width[i] == 0) continue;
    size_t has = dibs__cli_width(cell[i]);
    if (has > width[i]) has = width[i];
    int pad = (int)(width[i] - has);
    if (table->right[i]) fprintf(out, "%*s", pad, "");
    dibs__cli_put(out, cell[i], width[i]);
    if (i + 1 == table->columns) break;
    fprintf(out, "%*s", GAP + (table->right[i] ? 0 : pad), "");
  }
  putc('\n', out);
}

void dibs__cli_table_print(const struct cli_table *table, size_t columns, FILE *out) {
  assert(table->columns > 0);
  if (table->columns == 0) return;
  size_t width[CLI_CELLS_MAX];
  for (size_t i = 0; i < table->columns; i++) width[i] = dibs__cli_width(table->head[i]);
  for (size_t i = 0; i < table->cells; i++) {
    size_t has = dibs__cli_width(table->cell[i]);
    if (has > width[i % table->columns]) width[i % table->columns] = has;
  }
  if (columns > 0) shrink(table, width, columns);
  print_row(table, table->head, width, out);
  for (size_t i = 0; i + table->columns <= table->cells; i += table->columns)
    print_row(table, (const char *const *)(table->cell + i), width, out);
}

void dibs__cli_table_free(struct cli_table *table) {
  if (table == NULL) return;
  for (size_t i = 0; i < table->cells; i++) free(table->cell[i]);
  free(table->cell);
  free(table);
}
