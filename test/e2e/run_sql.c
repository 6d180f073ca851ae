/* SPDX-License-Identifier: MIT */
/* run_sql FILE STATEMENT...: a user's own program, which uses the same file without dibs. Prints each row's first
 * cell. */
#include <sqlite3.h>
#include <stdio.h>

static int print(void *arg, int count, char **cells, char **names) {
  (void)arg, (void)names;
  if (count > 0) puts(cells[0] ? cells[0] : "NULL");
  return 0;
}

int main(int argc, char *argv[]) {
  sqlite3 *db = NULL;
  if (argc < 3 || sqlite3_open(argv[1], &db) != SQLITE_OK) return 2;
  sqlite3_busy_timeout(db, 10000);
  int code = 0;
  for (int i = 2; i < argc && code == 0; i++) {
    char *words = NULL;
    if (sqlite3_exec(db, argv[i], print, NULL, &words) != SQLITE_OK) code = 1;
    if (words) fprintf(stderr, "%s\n", words);
    sqlite3_free(words);
  }
  sqlite3_close(db);
  return code;
}
