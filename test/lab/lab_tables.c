/* SPDX-License-Identifier: MIT */
/* lab_tables: how many tables of the lab there are in the store $DIBS_STORE. */
#include "lab/door.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  struct lab_door *door;
  struct lab_line line;
  struct dibs__said said = {0};
  int64_t count = -1;
  if (dibs__lab_door_open(secure_getenv("DIBS_STORE"), &door, &said) != DIBS_OK ||
      dibs__lab_line_open(door, &line, &said) != DIBS_OK) {
    fprintf(stderr, "lab_tables: %s\n", said.text);
    return 1;
  }
  const char *text =
      line.wire->engine->sessions
          ? "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'dibs!_lab!_%' ESCAPE '!'"
          : "SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'dibs!_lab!_%' ESCAPE '!' AND type = 'table'";
  if (dibs__lab_number(&line, text, -1, &count) != DIBS__SQL_FINE) fprintf(stderr, "%s\n", line.wire->words);
  dibs__lab_line_close(&line);
  dibs__lab_door_close(door);
  printf("%" PRId64 "\n", count);
  return count < 0;
}
