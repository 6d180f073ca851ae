/* SPDX-License-Identifier: MIT */
/* Holders, waiters and breaks: kept, and printed as a table or as JSON.  Used by ls, show and watch. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *dibs__cli_state_name(uint32_t state) {
  static const char *const names[] = {
      [DIBS_HOLDS] = "holds",       [DIBS_WAITS] = "waits",   [DIBS_OFFERED] = "offered",
      [DIBS_BREAKING] = "breaking", [DIBS_BROKEN] = "broken",
  };
  return state < sizeof names / sizeof *names ? names[state] : "?";
}

const char *dibs__cli_mode_name(dibs_mode mode) {
  switch (mode) {
  case DIBS_EXCLUSIVE:
    return "exclusive";
  case DIBS_SHARED:
    return "shared";
  case DIBS_COUNTED:
    return "counted";
  }
  return "?";
}

int dibs__cli_rows_add(const dibs_lease_info *info, void *user) {
  struct cli_rows *rows = user;
  if (rows->count == rows->room) {
    size_t room = rows->room == 0 ? 64 : rows->room * 2;
    struct cli_row *row = realloc(rows->row, room * sizeof *row);
    if (row == NULL) goto full;
    rows->row = row;
    rows->room = room;
  }
  struct cli_row *row = &rows->row[rows->count];
  row->info = *info;
  row->name = strdup(info->name);
  row->owner = strdup(info->owner != NULL ? info->owner : "");
  if (row->name == NULL || row->owner == NULL) {
    free(row->name);
    free(row->owner);
    goto full;
  }
  row->info.name = row->name;
  row->info.owner = row->owner;
  rows->count++;
  return 0;
full:
  rows->full = true;
  return 1;
}

void dibs__cli_rows_free(struct cli_rows *rows) {
  for (size_t i = 0; i < rows->count; i++) {
    free(rows->row[i].name);
    free(rows->row[i].owner);
  }
  free(rows->row);
  *rows = (struct cli_rows){0};
}

static void state_cell(char *to, size_t size, const dibs_lease_info *info) {
  if (info->state == DIBS_WAITS)
    snprintf(to, size, "waits, #%" PRIu32, info->ahead + 1);
  else
    snprintf(to, size, "%s", dibs__cli_state_name(info->state));
}

static void mode_cell(char *to, size_t size, const dibs_lease_info *info) {
  bool has_slot = info->state == DIBS_HOLDS || info->state == DIBS_BREAKING;
  if (info->mode != DIBS_COUNTED)
    snprintf(to, size, "%s", dibs__cli_mode_name(info->mode));
  else if (has_slot)
    snprintf(to, size, "slot %" PRIu32 " of %" PRIu32, info->slot, info->slots);
  else
    snprintf(to, size, "of %" PRIu32, info->slots);
}

static bool add_row(struct cli_table *table, const dibs_lease_info *info) {
  char state[32], mode[48], pid[16] = "-", fence[24] = "-", ttl[24] = "-", left[24] = "-", age[24];
  state_cell(state, sizeof state, info);
  mode_cell(mode, sizeof mode, info);
  if (info->pid != 0) snprintf(pid, sizeof pid, "%" PRIu32, info->pid);
  if (info->fence != 0) snprintf(fence, sizeof fence, "%" PRIu64, info->fence);
  if (info->ttl_ms > 0) dibs__cli_span(ttl, sizeof ttl, info->ttl_ms);
  if (info->state != DIBS_WAITS && info->state != DIBS_BROKEN) dibs__cli_span(left, sizeof left, info->left_ms);
  dibs__cli_span(age, sizeof age, info->age_ms);
  const char *const cells[] = {info->name, state, mode, info->owner, pid, fence, ttl, left, age};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(table, cells[i])) return false;
  return true;
}

void dibs__cli_rows_table(const struct cli_rows *rows, size_t columns, FILE *out) {
  static const char *const heads[] = {"*NAME",  "STATE", "-MODE", "*OWNER", ">-PID",
                                      ">FENCE", ">-TTL", ">LEFT", ">AGE",   NULL};
  struct cli_table *table = dibs__cli_table_new(heads);
  bool fine = table != NULL;
  for (size_t i = 0; fine && i < rows->count; i++) fine = add_row(table, &rows->row[i].info);
  if (table != NULL) dibs__cli_table_print(table, columns, out);
  if (!fine) fputs("(out of memory: not all is shown)\n", out);
  dibs__cli_table_free(table);
}

void dibs__cli_row_json(struct cli_json *json, const struct cli_row *row, const char *event, int64_t at_ms) {
  const dibs_lease_info *info = &row->info;
  dibs__cli_json_open(json, NULL, '{');
  if (event != NULL) {
    dibs__cli_json_text(json, "event", event);
    dibs__cli_json_int(json, "at_ms", at_ms);
  }
  dibs__cli_json_text(json, "name", info->name);
  dibs__cli_json_text(json, "state", dibs__cli_state_name(info->state));
  dibs__cli_json_text(json, "mode", dibs__cli_mode_name(info->mode));
  dibs__cli_json_text(json, "owner", info->owner);
  dibs__cli_json_uint(json, "pid", info->pid);
  dibs__cli_json_uint(json, "fence", info->fence);
  dibs__cli_json_uint(json, "slots", info->slots);
  dibs__cli_json_uint(json, "slot", info->slot);
  dibs__cli_json_uint(json, "ahead", info->ahead);
  dibs__cli_json_int(json, "ttl_ms", info->ttl_ms);
  dibs__cli_json_int(json, "left_ms", info->left_ms);
  dibs__cli_json_int(json, "age_ms", info->age_ms);
  dibs__cli_json_close(json, '}');
}
