/* SPDX-License-Identifier: MIT */
/* Counts rows and keys without dibs, through the engine's own client. */
#include "soak.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 4096 };

static void add(struct soak_rows *rows, const char *table, int64_t count) {
  for (uint32_t t = 0; t < rows->tables; t++)
    if (strcmp(rows->table[t], table) == 0) {
      rows->count[t] += count;
      return;
    }
  if (rows->tables == SOAK_TABLES) return;
  snprintf(rows->table[rows->tables], SOAK_TABLE, "%s", table);
  rows->count[rows->tables++] = count;
}

/* ---- SQLite ---- */

static int add_row(void *user, int columns, char **values, char **names) {
  (void)names;
  if (columns == 2 && values[0] && values[1]) add(user, values[0], strtoll(values[1], NULL, 10));
  return 0;
}
static int add_query(void *user, int columns, char **values, char **names) {
  char *text = user;
  size_t length = strlen(text);
  (void)names;
  if (columns == 1 && values[0])
    snprintf(text + length, TEXT - length, "%sSELECT '%s', COUNT(*) FROM %s", length ? " UNION ALL " : "", values[0],
             values[0]);
  return 0;
}

static bool count_sqlite(const char *path, struct soak_rows *rows) {
  sqlite3 *db = NULL;
  char text[TEXT] = "";
  if (access(path, F_OK) != 0) return true; /* no process has opened the store so far */
  bool fine = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK;
  sqlite3_busy_timeout(db, 2000);
  fine = fine && sqlite3_exec(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'dibs%'",
                              add_query, text, NULL) == SQLITE_OK;
  fine = fine && (!text[0] || sqlite3_exec(db, text, add_row, rows, NULL) == SQLITE_OK);
  if (!fine) fprintf(stderr, "%s: %s (%d)\n", path, sqlite3_errmsg(db), sqlite3_extended_errcode(db));
  sqlite3_close(db);
  return fine;
}

/* ---- Servers: lines of "TABLE COUNT" that a command prints ---- */

static bool count_lines(const char *command, struct soak_rows *rows) {
  char line[256], table[SOAK_TABLE];
  long long count;
  FILE *file = popen(command, "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "%39s %lld", table, &count) == 2) add(rows, table, count);
  return file && pclose(file) == 0;
}

/* One statement writes the other: SELECT 'dibs_name', COUNT(*) FROM dibs_name UNION ALL ... */
static bool count_postgres(const char *uri, struct soak_rows *rows) {
  char command[TEXT];
  snprintf(command, sizeof command,
           "q() { timeout 20 psql -X -q -A -t -F ' ' '%.*s' -c \"$1\" 2>/dev/null; }; "
           "q \"$(q \"SELECT string_agg(format('SELECT %%L, COUNT(*) FROM %%I', tablename, tablename), ' UNION ALL ') "
           "FROM pg_tables WHERE tablename LIKE 'dibs%%'\")\"",
           (int)strcspn(uri, "?"), uri);
  return count_lines(command, rows);
}

static bool count_mysql(const char *uri, struct soak_rows *rows) {
  char command[TEXT], user[64], password[64], host[64], database[80];
  unsigned port;
  if (sscanf(uri, "%*[a-z]://%63[^:]:%63[^@]@%63[^:]:%u/%79[^?]", user, password, host, &port, database) != 5)
    return false;
  snprintf(
      command, sizeof command,
      "q() { MYSQL_PWD='%s' timeout 20 mariadb --no-defaults -N -B -h %s -P %u -u %s %s -e \"$1\" 2>/dev/null; }; "
      "q \"$(q \"SET group_concat_max_len = 4096; SELECT GROUP_CONCAT('SELECT ''', table_name, ''', COUNT(*) FROM ', "
      "table_name SEPARATOR ' UNION ALL ') FROM information_schema.tables WHERE table_schema = DATABASE() AND "
      "table_name LIKE 'dibs%%'\")\"",
      password, host, port, user, database);
  return count_lines(command, rows);
}

static bool count_redis(const char *credentials, const char *host, struct soak_rows *rows) {
  char command[TEXT];
  snprintf(
      command, sizeof command,
      "echo keys $(timeout 20 redis-cli -e -u 'redis://%s@%s/0' --no-auth-warning DBSIZE 2>/dev/null | tr -dc 0-9)",
      credentials, host);
  return count_lines(command, rows);
}

/* redis://user:password@host:port/0, and redlock://user:password@host:port,host:port/0 */
static bool count_redises(const char *uri, struct soak_rows *rows) {
  char credentials[128], hosts[512];
  if (sscanf(uri, "%*[a-z]://%127[^@]@%511[^/]", credentials, hosts) != 2) return false;
  bool fine = true;
  char *rest = NULL;
  for (char *host = strtok_r(hosts, ",", &rest); host; host = strtok_r(NULL, ",", &rest))
    fine = count_redis(credentials, host, rows) && fine;
  return fine;
}

static bool count_one(const char *uri, struct soak_rows *rows) {
  if (strncmp(uri, "memory:", 7) == 0) return true;
  if (strncmp(uri, "sqlite:", 7) == 0) return count_sqlite(uri + 7, rows);
  if (strncmp(uri, "postgres", 8) == 0) return count_postgres(uri, rows);
  if (strncmp(uri, "mysql", 5) == 0) return count_mysql(uri, rows);
  return count_redises(uri, rows);
}

bool soak_rows(const char *uri, struct soak_rows *rows) {
  const char *second = strstr(uri, ",mysql:");
  if (!second) second = strstr(uri, ",postgres:");
  if (!second) second = strstr(uri, ",sqlite:");
  char first[SOAK_URI];
  *rows = (struct soak_rows){.tables = 0};
  snprintf(first, sizeof first, "%.*s", (int)(second ? second - uri : (long)strlen(uri)), uri);
  return count_one(first, rows) && (!second || count_one(second + 1, rows));
}
