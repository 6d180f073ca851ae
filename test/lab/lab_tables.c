/* SPDX-License-Identifier: MIT */
/* lab_tables: prints how many tables of the lab exist in the store $DIBS_STORE. */
#include "lab/lab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  struct lab_connection *connection;
  struct lab_line line;
  struct dibs__result reported = {0};
  int64_t count = -1;
  if (dibs__lab_connection_open(secure_getenv("DIBS_STORE"), &connection, &reported) != DIBS_OK ||
      dibs__lab_line_open(connection, &line, &reported) != DIBS_OK) {
    fprintf(stderr, "lab_tables: %s\n", reported.text);
    return 1;
  }
  /* Of this database only: a user of MariaDB sees those of other tests, too. */
  const struct dibs__sql_engine *engine = line.wire->engine;
  const char *text = "SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'dibs!_lab!_%' ESCAPE '!' AND type = 'table'";
  if (engine->sessions)
    text = strcmp(engine->name, "PostgreSQL") == 0
               ? "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'dibs!_lab!_%' ESCAPE '!'"
               : "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'dibs!_lab!_%' ESCAPE '!' AND "
                 "table_schema = DATABASE()";
  if (dibs__lab_number(&line, text, -1, &count) != DIBS__SQL_OK) fprintf(stderr, "%s\n", line.wire->message);
  dibs__lab_line_close(&line);
  dibs__lab_connection_close(connection);
  printf("%" PRId64 "\n", count);
  return count < 0;
}
