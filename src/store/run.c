/* SPDX-License-Identifier: MIT */
/* What every driver that keeps runs does alike: see run.h. */
#include "store/run.h"

#include <stdlib.h>
#include <string.h>

static bool row_valid(const struct dibs__run_row *row) {
  if (row->name.len < 1 || row->name.len > DIBS_NAME_MAX || row->kind.len < 1 || row->kind.len > DIBS_NAME_MAX)
    return false;
  if (row->host.len > DIBS_OWNER_MAX || row->command.len > DIBS__RUN_COMMAND_MAX) return false;
  if (row->output.len > DIBS__RUN_OUTPUT_MAX || row->how > DIBS__RUN_NOT_RUN) return false;
  return row->ended_ms >= 0 && row->began_ms >= row->ended_ms;
}

DIBS__MODULE_API bool dibs__run_valid(struct dibs__run_op *op) {
  op->got = NULL;
  op->got_count = 0;
  op->off = false;
  op->now_ms = 0;
  op->op.status = DIBS_INVALID;
  switch (op->op.verb) {
  case DIBS__RUN_PUT:
    return op->keep_ms >= -1 && row_valid(&op->row);
  case DIBS__RUN_LIST:
    return op->most >= 1 && op->most <= DIBS__RUN_ROWS && op->name.len <= DIBS_NAME_MAX &&
           op->prefix.len <= DIBS_NAME_MAX && op->kind.len <= DIBS_NAME_MAX && op->nr <= INT64_MAX;
  case DIBS__RUN_SET:
    return op->keep_ms >= -1;
  default:
    return false;
  }
}

static size_t text_bytes(const struct dibs__run_row *row) {
  return (size_t)row->name.len + row->kind.len + row->host.len + row->command.len + row->output.len;
}

static dibs__str copy_text(char **to, dibs__str text) {
  char *at = *to;
  if (text.len) memcpy(at, text.p, text.len);
  *to += text.len;
  return (dibs__str){at, text.len};
}

DIBS__MODULE_API void dibs__run_answer(struct dibs__run_op *op, const struct dibs__run_row *rows, size_t count) {
  size_t bytes = 0;
  op->op.status = DIBS_OK;
  if (count == 0) return;
  for (size_t i = 0; i < count; i++) bytes += text_bytes(&rows[i]);
  op->got = malloc(count * sizeof *op->got + bytes);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *to = (char *)(op->got + count);
  for (size_t i = 0; i < count; i++) {
    struct dibs__run_row *row = &op->got[i];
    *row = rows[i];
    row->name = copy_text(&to, rows[i].name);
    row->kind = copy_text(&to, rows[i].kind);
    row->host = copy_text(&to, rows[i].host);
    row->command = copy_text(&to, rows[i].command);
    row->output = copy_text(&to, rows[i].output);
  }
  op->got_count = (uint32_t)count;
}
