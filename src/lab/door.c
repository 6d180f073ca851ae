/* SPDX-License-Identifier: MIT */
/*
 * The one file of the lab that knows which engines there are.  A driver that is a server's begins with a struct
 * dibs__far, whose engine makes connections; the embedded one has links, which have wires.
 */
#include "lab/door.h"

#include "drivers/sqlite_parts.h"
#include "sql/far.h"
#include "store/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_MS = 15000 };

struct lab_door {
  struct dibs__chain chain;
  struct dibs__dstore *engine; /* the innermost */
  bool embedded;
  char shown[512];
};

static bool is_server(const char *scheme) {
  static const char *const servers[] = {"postgres", "postgresql", "mysql", "mariadb"};
  for (size_t i = 0; i < sizeof servers / sizeof *servers; i++)
    if (strcmp(servers[i], scheme) == 0) return true;
  return false;
}

dibs__status dibs__lab_door_open(const char *uri, struct lab_door **out, struct dibs__said *said) {
  *out = NULL;
  struct dibs__uri parsed;
  dibs__status status = dibs__uri_parse(uri, &parsed, said);
  if (status != DIBS_OK) return status;
  struct lab_door *door = calloc(1, sizeof *door);
  if (!door) {
    status = DIBS_NO_MEMORY;
    goto out;
  }
  snprintf(door->shown, sizeof door->shown, "%s", parsed.shown);
  door->embedded = strcmp(parsed.scheme, "sqlite") == 0;
  if (!door->embedded && !is_server(parsed.scheme)) {
    dibs__say(said, "%s speaks no SQL", door->shown);
    status = DIBS_NOT_FOUND;
    goto out;
  }
  status = dibs__chain_open(&parsed, NULL, dibs__tick_add_ms(dibs__tick_now(), OPEN_MS), &door->chain, said);
  if (status == DIBS_OK) door->engine = door->chain.stores[door->chain.count - 1];
out:
  dibs__uri_free(&parsed);
  if (status == DIBS_OK)
    *out = door;
  else
    free(door);
  return status;
}

void dibs__lab_door_close(struct lab_door *door) {
  if (!door) return;
  dibs__chain_close(&door->chain);
  free(door);
}

const char *dibs__lab_door_shown(const struct lab_door *door) {
  return door->shown;
}

/* dibs gives up a lock soon, to try again; who writes by hand waits for the server to find the deadlock. */
static dibs__status be_patient(struct lab_line *line, struct dibs__said *said) {
  bool postgres = strcmp(line->wire->engine->name, "PostgreSQL") == 0;
  const char *text = postgres ? "SET lock_timeout = 10000" : "SET innodb_lock_wait_timeout = 10";
  if (dibs__lab_say(line, text, NULL, 0) == DIBS__SQL_FINE) return DIBS_OK;
  dibs__status status = dibs__sql_excuse(line->wire, "set up", line->door->shown, said);
  dibs__lab_line_close(line);
  return status;
}

dibs__status dibs__lab_line_open(struct lab_door *door, struct lab_line *line, struct dibs__said *said) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), OPEN_MS);
  *line = (struct lab_line){.door = door};
  if (!door->embedded) {
    struct dibs__far *far = (struct dibs__far *)door->engine;
    dibs__status opened = far->engine->connect(far, by, &line->wire, said);
    return opened == DIBS_OK ? be_patient(line, said) : opened;
  }
  struct dibs__lite *lite = (struct dibs__lite *)door->engine;
  struct dibs__lite_link *link;
  dibs__status status = dibs__lite_link_open(lite, lite->path, by, &link, said);
  if (status != DIBS_OK) return status;
  if (lite->write_sync) (void)dibs__lite_full(link, true); /* as durable as what dibs writes */
  line->wire = dibs__lite_wire(link);
  line->own = link;
  if (line->wire) return DIBS_OK;
  status = dibs__lite_excuse(link, "open", said);
  dibs__lab_line_close(line);
  return status;
}

void dibs__lab_line_close(struct lab_line *line) {
  if (line->own)
    dibs__lite_link_close(line->own);
  else if (line->wire)
    ((struct dibs__far *)line->door->engine)->engine->close(line->wire);
  line->own = NULL;
  line->wire = NULL;
}

enum dibs__sql_step dibs__lab_say_by(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                     size_t count, dibs__tick by, bool commits) {
  struct dibs__sql_wire *wire = line->wire;
  if (line->own) ((struct dibs__lite_link *)line->own)->by = by;
  wire->by = by;
  enum dibs__sql_step step = wire->engine->put(wire, text, values, count);
  return step == DIBS__SQL_FINE ? wire->engine->go(wire, commits) : step;
}

enum dibs__sql_step dibs__lab_say(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                  size_t count) {
  return dibs__lab_say_by(line, text, values, count, dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS),
                          strcmp(text, "COMMIT") == 0);
}

enum dibs__sql_step dibs__lab_number(struct lab_line *line, const char *text, int64_t otherwise, int64_t *number) {
  enum dibs__sql_step step = dibs__lab_say(line, text, NULL, 0);
  *number = otherwise;
  if (step == DIBS__SQL_FINE && line->wire->engine->rows(line->wire, 0) > 0)
    *number = dibs__sql_cell_number(line->wire, 0, 0, 0);
  return step;
}

void dibs__lab_version(struct lab_line *line, char *to, size_t size) {
  const struct dibs__sql_engine *engine = line->wire->engine;
  snprintf(to, size, "%s", engine->name);
  const char *text = line->own ? "SELECT sqlite_version()" : "SELECT version()";
  if (dibs__lab_say(line, text, NULL, 0) != DIBS__SQL_FINE || engine->rows(line->wire, 0) == 0) return;
  struct dibs__sql_value cell = engine->cell(line->wire, 0, 0, 0, DIBS__SQL_TEXT);
  /* "15.2 (Debian 15.2-1) on x86_64, compiled by ..." */
  uint32_t len = 0;
  while (len < cell.len && !strchr("(,", cell.p[len])) len++;
  while (len > 0 && cell.p[len - 1] == ' ') len--;
  cell.len = len;
  bool named = cell.len > strlen(engine->name) && strncmp(cell.p, engine->name, strlen(engine->name)) == 0;
  snprintf(to, size, "%s%s%.*s", named ? "" : engine->name, named ? "" : " ", (int)cell.len, cell.p);
}
