/* SPDX-License-Identifier: MIT */
#include "dibs/mysql.h"
#include "record_bed.h"

#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char database[80];

static void *open_it(const char *uri) {
  char user[64], password[64], host[64];
  unsigned port = 0;
  if (sscanf(uri, "%*[a-z]://%63[^:]:%63[^@]@%63[^:]:%u/%79[^?]", user, password, host, &port, database) != 5)
    fail_msg("%s is no URI of these tests", uri);
  MYSQL *my = mysql_init(NULL);
  assert_non_null(my);
  if (!mysql_real_connect(my, host, user, password, database, port, NULL, CLIENT_FOUND_ROWS))
    fail_msg("%s", mysql_error(my));
  return my;
}

static void close_it(void *connection) {
  mysql_close(connection);
}

static long run(void *connection, const char *text, char **cell) {
  if (mysql_query(connection, text) != 0) fail_msg("%s: %s", text, mysql_error(connection));
  MYSQL_RES *answer = mysql_store_result(connection);
  if (!answer) return (long)mysql_affected_rows(connection);
  MYSQL_ROW row = mysql_fetch_row(answer);
  if (cell && row && row[0]) *cell = strdup(row[0]);
  mysql_free_result(answer);
  return 0;
}

static dibs_status inside(dibs_store *store, void *connection, dibs_store **out, dibs_error *error) {
  return dibs_inside_mysql(store, connection, out, error);
}

const struct engine engine_mysql = {
    "mysql",  "BIGINT", "VARCHAR(100)", "LONGTEXT", "UUID", {"DATETIME(6)", "DATETIME(3)", "DATETIME"},
    database, open_it,  close_it,       run,        inside};
