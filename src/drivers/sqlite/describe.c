/* SPDX-License-Identifier: MIT */
/* What doctor asks SQLite, beside the file, at which the command looks itself. */
#include "drivers/sqlite/sqlite_impl.h"

#include <stdio.h>

/* One cell, as text; false: it can't be read, or a writer held the file until the deadline. */
static bool read_cell(struct dibs__sqlite_link *l, const char *text, char *to, size_t size) {
  sqlite3_stmt *statement = NULL;
  to[0] = '\0';
  if (sqlite3_prepare_v2(l->db, text, -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW) {
    const unsigned char *cell = sqlite3_column_text(statement, 0);
    snprintf(to, size, "%s", cell ? (const char *)cell : "");
  }
  sqlite3_finalize(statement);
  return to[0] != '\0';
}

void dibs__sqlite_describe(struct dibs__sqlite_link *l, struct dibs__findings *to) {
  char mode[16];
  dibs__find(to, "server", "SQLite %s, in this process", sqlite3_libversion());
  dibs__find(to, "role", "an embedded store: processes of this machine share its file");
  if (!read_cell(l, "PRAGMA journal_mode", mode, sizeof mode))
    dibs__find_trouble(to, "setting", "read the message, then try again", "journal_mode: %s", sqlite3_errmsg(l->db));
  else if (strcmp(mode, "wal") == 0)
    dibs__find(to, "setting", "journal_mode = wal; epochs, records and seals are synced to disk, leases need not be");
  else
    dibs__find_trouble(to, "setting", "find the program that changed it: dibs sets wal when it opens the file",
                       "journal_mode = %s", mode);
  if (!l->store->write_sync)
    dibs__find_warning(to, "setting", "remove write_sync=off",
                       "write_sync = off: a power failure may lose the latest of stock, once keys, tasks and counters");
}
