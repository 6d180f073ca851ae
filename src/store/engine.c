/* SPDX-License-Identifier: MIT */
/* The findings of a driver about its servers, as they are collected and answered. */
#include "store/engine.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROWS_BY = 16 };

struct dibs__finding_text {
  enum dibs__finding_level level;
  char check[DIBS__ENGINE_CHECK_MAX + 1], found[DIBS__ENGINE_TEXT_MAX + 1], next[DIBS__ENGINE_TEXT_MAX + 1];
};

static struct dibs__finding_text *next_row(struct dibs__findings *to) {
  if (to->no_memory || to->count == DIBS__ENGINE_FINDINGS) return NULL;
  if (to->count == to->capacity) {
    void *grown = realloc(to->rows, (to->capacity + GROWS_BY) * sizeof *to->rows);
    to->no_memory = !grown;
    if (!grown) return NULL;
    to->rows = grown;
    to->capacity += GROWS_BY;
  }
  return &to->rows[to->count++];
}

/* A server may be any program: what it calls itself reaches a terminal. */
static void clean(char *text) {
  size_t len = dibs__utf8_cut(text, strlen(text));
  text[len] = '\0';
  for (size_t at = 0; at < len;) {
    uint32_t code;
    size_t size = dibs__utf8_next(text + at, len - at, &code);
    if (size == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0)) memset(text + at, '?', size ? size : 1);
    at += size ? size : 1;
  }
}

static void __attribute__((format(printf, 5, 0)))
add(struct dibs__findings *to, enum dibs__finding_level level, const char *check, const char *next, const char *format,
    va_list args) {
  struct dibs__finding_text *row = next_row(to);
  if (!row) return;
  row->level = level;
  vsnprintf(row->found, sizeof row->found, format, args);
  snprintf(row->check, sizeof row->check, "%s", check);
  snprintf(row->next, sizeof row->next, "%s", next);
  clean(row->found);
  clean(row->next);
}

DIBS__MODULE_API void dibs__find(struct dibs__findings *to, const char *check, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add(to, DIBS__FINDING_FINE, check, "", format, args);
  va_end(args);
}

DIBS__MODULE_API void dibs__find_warning(struct dibs__findings *to, const char *check, const char *next,
                                         const char *format, ...) {
  va_list args;
  va_start(args, format);
  add(to, DIBS__FINDING_WARNING, check, next, format, args);
  va_end(args);
}

DIBS__MODULE_API void dibs__find_trouble(struct dibs__findings *to, const char *check, const char *next,
                                         const char *format, ...) {
  va_list args;
  va_start(args, format);
  add(to, DIBS__FINDING_TROUBLE, check, next, format, args);
  va_end(args);
}

DIBS__MODULE_API void dibs__find_hidden(struct dibs__findings *to, const char *check, const char *what) {
  dibs__find(to, check, "%s: not visible to this user", what);
}

DIBS__MODULE_API void dibs__findings_move(struct dibs__findings *from, struct dibs__findings *to) {
  to->no_memory = to->no_memory || from->no_memory;
  for (size_t i = 0; i < from->count; i++) {
    struct dibs__finding_text *row = next_row(to);
    if (row) *row = from->rows[i];
  }
  free(from->rows);
  *from = (struct dibs__findings){0};
}

static void copy(char *to, size_t size, dibs__str from) {
  snprintf(to, size, "%.*s", (int)from.len, from.p ? from.p : "");
  clean(to);
}

DIBS__MODULE_API void dibs__findings_take(struct dibs__engine_op *from, struct dibs__findings *to) {
  for (uint32_t i = 0; i < from->got_count; i++) {
    struct dibs__finding_text *row = next_row(to);
    if (!row) break;
    row->level = from->got[i].level > DIBS__FINDING_TROUBLE ? DIBS__FINDING_TROUBLE : from->got[i].level;
    copy(row->check, sizeof row->check, from->got[i].check);
    copy(row->found, sizeof row->found, from->got[i].found);
    copy(row->next, sizeof row->next, from->got[i].next);
  }
  free(from->got);
  from->got = NULL;
  from->got_count = 0;
}

static dibs__str keep(char **at, const char *text) {
  size_t len = strlen(text);
  memcpy(*at, text, len + 1);
  dibs__str kept = dibs__str_of(*at, len);
  *at += len + 1;
  return kept;
}

DIBS__MODULE_API dibs__status dibs__findings_answer(struct dibs__findings *from, struct dibs__op *base) {
  struct dibs__engine_op *op = (struct dibs__engine_op *)base;
  size_t bytes = 1;
  for (size_t i = 0; i < from->count; i++)
    bytes +=
        sizeof *op->got + strlen(from->rows[i].check) + strlen(from->rows[i].found) + strlen(from->rows[i].next) + 3;
  op->got = from->no_memory ? NULL : malloc(bytes);
  op->got_count = 0;
  base->status = op->got ? DIBS_OK : DIBS_NO_MEMORY;
  char *at = op->got ? (char *)(op->got + from->count) : NULL;
  for (size_t i = 0; op->got && i < from->count; i++) {
    const struct dibs__finding_text *row = &from->rows[i];
    op->got[op->got_count++] =
        (struct dibs__finding){keep(&at, row->check), keep(&at, row->found), keep(&at, row->next), row->level};
  }
  free(from->rows);
  *from = (struct dibs__findings){0};
  return base->status;
}

DIBS__MODULE_API dibs__tick dibs__engine_node_by(dibs__tick by, size_t left) {
  dibs__tick now = dibs__tick_now();
  int64_t ms = (dibs__tick_left_ms(now, by) - DIBS__ENGINE_LEAVE_MS) / (int64_t)(left ? left : 1);
  if (ms > DIBS__ENGINE_NODE_MS) ms = DIBS__ENGINE_NODE_MS;
  return dibs__tick_add_ms(now, ms < 0 ? 0 : ms);
}
