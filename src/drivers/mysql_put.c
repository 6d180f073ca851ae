/* SPDX-License-Identifier: MIT */
/*
 * Statements as text: they are put into one buffer, values as literals, and travel as one packet.  Prepared statements
 * would take a packet each.
 *
 * A literal must mean the same under any sql_mode and character set, also on a connection of the user's: text that is
 * anything but plain ASCII without quotes and backslashes travels as hex digits.
 */
#include "base/text.h"
#include "drivers/mysql_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_buffer buffer;
typedef struct dibs__sql_value value;

static bool room(buffer *b, size_t more) {
  if (b->room - b->len >= more) return true;
  size_t size = b->room ? b->room * 2 : 4096;
  while (size - b->len < more) size *= 2;
  char *p = realloc(b->p, size);
  if (!p) return false;
  b->p = p;
  b->room = size;
  return true;
}

bool dibs__my_add(buffer *b, const char *p, size_t len) {
  if (!room(b, len)) return false;
  memcpy(b->p + b->len, p, len);
  b->len += len;
  return true;
}

static bool add_number(buffer *b, int64_t number) {
  char digits[24];
  size_t at = sizeof digits;
  uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
  /* In brackets: "a -$1" must not become a comment. */
  if (number < 0) digits[--at] = ')';
  do digits[--at] = (char)('0' + rest % 10);
  while (rest /= 10);
  if (number < 0) digits[--at] = '-';
  if (number < 0) digits[--at] = '(';
  return dibs__my_add(b, digits + at, sizeof digits - at);
}

static bool add_hex(buffer *b, const char *introducer, const char *p, size_t len) {
  static const char digits[] = "0123456789abcdef";
  if (!dibs__my_add(b, introducer, strlen(introducer)) || !room(b, 2 * len + 3)) return false;
  char *to = b->p + b->len;
  *to++ = 'x';
  *to++ = '\'';
  for (size_t i = 0; i < len; i++) {
    *to++ = digits[(uint8_t)p[i] >> 4];
    *to++ = digits[p[i] & 15];
  }
  *to++ = '\'';
  b->len = (size_t)(to - b->p);
  return true;
}

static bool add_text(buffer *b, const char *p, size_t len) {
  bool plain = true, utf8 = true;
  for (size_t i = 0; i < len && utf8;) {
    uint32_t code;
    size_t n = 1;
    if ((uint8_t)p[i] >= 0x80) {
      plain = false;
      n = dibs__utf8_next(p + i, len - i, &code);
      utf8 = n != 0;
    } else if (p[i] == '\'' || p[i] == '\\' || (uint8_t)p[i] < ' ') {
      plain = false;
    }
    i += n;
  }
  if (!plain) return add_hex(b, utf8 ? "_utf8mb4 " : "", p, len);
  if (!room(b, len + 2)) return false;
  b->p[b->len++] = '\'';
  memcpy(b->p + b->len, p, len);
  b->len += len;
  b->p[b->len++] = '\'';
  return true;
}

bool dibs__my_add_value(buffer *b, const value *v) {
  switch (v->kind) {
  case DIBS__SQL_NUMBER:
    return add_number(b, v->number);
  case DIBS__SQL_TEXT:
    return add_text(b, v->p, v->len);
  case DIBS__SQL_BYTES:
    return add_hex(b, "", v->p, v->len);
  default:
    return dibs__my_add(b, "NULL", 4);
  }
}

struct table {
  const value *cells;
  size_t columns, rows;
  const char *row; /* what a row begins with */
};

static bool add_table(buffer *b, const struct table *t) {
  if (!dibs__my_add(b, "VALUES ", 7)) return false;
  for (size_t i = 0; i < t->rows; i++) {
    if ((i && !dibs__my_add(b, ",", 1)) || !dibs__my_add(b, t->row, strlen(t->row))) return false;
    for (size_t j = 0; j < t->columns; j++) {
      if (j && !dibs__my_add(b, ",", 1)) return false;
      if (!dibs__my_add_value(b, &t->cells[i * t->columns + j])) return false;
    }
    if (!dibs__my_add(b, ")", 1)) return false;
  }
  return true;
}

/* The text with $1.. and $rows put in.  (Looking for '$' anew each time costs less than finding it in a cache.) */
static bool add_statement(buffer *b, const char *text, const value *values, size_t count, const struct table *table) {
  const char *mark;
  for (; (mark = strchr(text, '$'));) {
    if (!dibs__my_add(b, text, (size_t)(mark - text))) return false;
    text = mark + 1;
    if (*text >= '1' && *text <= '9') {
      size_t n = 0;
      for (; *text >= '0' && *text <= '9'; text++) n = n * 10 + (size_t)(*text - '0');
      assert(n <= count);
      if (n > count || !dibs__my_add_value(b, &values[n - 1])) return false;
    } else if (table && strncmp(text, "rows", 4) == 0) {
      text += 4;
      if (!add_table(b, table)) return false;
    } else if (!dibs__my_add(b, "$", 1)) {
      return false;
    }
  }
  return dibs__my_add(b, text, strlen(text));
}

static bool begin_statement(struct dibs__my_wire *w, const char *text) {
  if (w->base.put == w->start_room) {
    size_t size = w->start_room ? w->start_room * 2 : 16;
    size_t *starts = realloc(w->starts, size * sizeof *starts);
    if (!starts) return false;
    w->starts = starts;
    w->start_room = size;
  }
  if (w->base.put == 0) w->commit_at = SIZE_MAX;
  if (w->base.put && !dibs__my_add(&w->text, ";", 1)) return false;
  w->starts[w->base.put] = w->text.len;
  if (strcmp(text, "COMMIT") == 0) w->commit_at = w->base.put;
  return true;
}

static step put(struct dibs__my_wire *w, const char *text, const value *values, size_t count,
                const struct table *table) {
  if (begin_statement(w, text) && add_statement(&w->text, text, values, count, table)) {
    w->base.put++;
    return DIBS__SQL_FINE;
  }
  w->base.put = w->text.len = 0; /* half a packet is none */
  return dibs__my_broke(w, DIBS__SQL_NO_SPACE, "out of memory");
}

step dibs__my_put(struct dibs__sql_wire *wire, const char *text, const value *values, size_t count) {
  return put(dibs__my(wire), text, values, count, NULL);
}

step dibs__my_put_rows(struct dibs__sql_wire *wire, const char *text, const value *values, size_t count,
                       const value *rows, size_t columns, size_t row_count) {
  struct table table = {rows, columns, row_count, dibs__my(wire)->maria ? "(" : "ROW("};
  assert(columns > 0 && row_count > 0);
  return put(dibs__my(wire), text, values, count, &table);
}
