/* SPDX-License-Identifier: MIT */
/* `dibs ls` and `dibs show`: who holds, who waits, who broke what. */
#include "cli/cli.h"

#include <unistd.h>

static void print(const struct cli_globals *g, const struct cli_rows *rows) {
  if (!g->json) {
    if (rows->count > 0) dibs__cli_rows_table(rows, dibs__cli_columns(STDOUT_FILENO), stdout);
    return;
  }
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '[');
  for (size_t i = 0; i < rows->count; i++) dibs__cli_row_json(&j, &rows->row[i], NULL, 0);
  dibs__cli_json_close(&j, ']');
}

static int finish(const struct cli_globals *g, dibs_status status, const dibs_error *error, struct cli_rows *rows,
                  const char *what) {
  int code = CLI_DONE;
  if (rows->full)
    code = dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; the list is not whole");
  else if (status != DIBS_OK)
    code = dibs__cli_fail_status(g, status, error, what);
  else
    print(g, rows);
  if (code == CLI_DONE) code = dibs__cli_flush(g);
  dibs__cli_rows_free(rows);
  return code;
}

int dibs__cli_ls(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  struct cli_rows rows = {0};
  dibs_error error = {0};
  dibs_status status = dibs_list(store, call->npos > 0 ? call->pos[0] : NULL, dibs__cli_rows_add, &rows, &error);
  bool none = status == DIBS_OK && rows.count == 0;
  code = finish(g, status, &error, &rows, "the list can't be read");
  if (code == CLI_DONE && none && isatty(STDOUT_FILENO)) dibs__cli_note(g, "nobody holds anything");
  dibs_close(store);
  return code;
}

int dibs__cli_show(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  struct cli_rows rows = {0};
  dibs_error error = {0};
  dibs_status status = dibs_show(store, call->pos[0], dibs__cli_rows_add, &rows, &error);
  /* Breaks may be recorded of a name that nobody holds: worth showing. */
  if (status == DIBS_NOT_FOUND && rows.count > 0) status = DIBS_OK;
  code = finish(g, status, &error, &rows, call->pos[0]);
  dibs_close(store);
  return code;
}
