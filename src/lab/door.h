/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_DOOR_H
#define DIBS_LAB_DOOR_H
/*
 * Plain SQL on the engine of a store, beside dibs: the lab makes tables of its own, counts what is in them, and plays
 * what people do by hand.  Leads to the wires of the drivers; a store that speaks no SQL has no lines.
 */
#include "sql/wire.h"

enum { LAB_LINE_MS = 15000 }; /* for a statement: longer than a server needs to find a deadlock */

struct lab_door;
/* Opens the engine at `uri` once more.  OK; NOT_FOUND: it speaks no SQL.  *door is for close. */
dibs__status dibs__lab_door_open(const char *uri, struct lab_door **door, struct dibs__said *said);
void dibs__lab_door_close(struct lab_door *door);              /* after its lines; NULL is fine */
const char *dibs__lab_door_shown(const struct lab_door *door); /* the URI without password */

/* A connection.  One thread at a time. */
struct lab_line {
  struct lab_door *door;
  struct dibs__sql_wire *wire;
  void *own; /* the engine's */
};
dibs__status dibs__lab_line_open(struct lab_door *door, struct lab_line *line, struct dibs__said *said);
void dibs__lab_line_close(struct lab_line *line); /* also one that was not opened */

/* One statement in one packet.  Its answer is number 0.  BROKE: line->wire tells; a transaction stands open still. */
enum dibs__sql_step dibs__lab_say(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                  size_t count);
/* The same, with deadline and `commits`. */
enum dibs__sql_step dibs__lab_say_by(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                     size_t count, dibs__tick by, bool commits);
/* A statement that gives one number; `otherwise` without a row. */
enum dibs__sql_step dibs__lab_number(struct lab_line *line, const char *text, int64_t otherwise, int64_t *number);
/* The engine's own: "MariaDB 10.11.6". */
void dibs__lab_version(struct lab_line *line, char *to, size_t size);

#endif
