/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_raw(const char *uri) {
  char user[64], password[64], host[64], database[80];
  unsigned port = 0;
  if (sscanf(uri, "%*[a-z]://%63[^:]:%63[^@]@%63[^:]:%u/%79[^?]", user, password, host, &port, database) != 5)
    fail_msg("%s is no URI of these tests", uri);
  MYSQL *my = mysql_init(NULL);
  assert_non_null(my);
  if (mysql_real_connect(my, host, user, password, database, port, NULL, 0)) return my;
  mysql_close(my);
  return NULL;
}

static void close_raw(void *raw) {
  mysql_close(raw);
}

static int64_t say(void *raw, const char *text) {
  if (mysql_query(raw, text) != 0) fail_msg("%s: %s", text, mysql_error(raw));
  MYSQL_RES *answer = mysql_store_result(raw);
  if (!answer) return 0;
  MYSQL_ROW row = mysql_fetch_row(answer);
  int64_t number = row && row[0] ? strtoll(row[0], NULL, 10) : 0;
  mysql_free_result(answer);
  return number;
}

static void limit(void *admin, const char *given, const char *user, uint32_t most, char *uri, size_t size) {
  char text[256];
  snprintf(text, sizeof text, "CREATE USER %s@'127.0.0.1' IDENTIFIED BY 'full' WITH MAX_USER_CONNECTIONS %u", user,
           most);
  say(admin, text);
  snprintf(text, sizeof text, "GRANT ALL PRIVILEGES ON dibs.* TO %s@'127.0.0.1'", user);
  say(admin, text);
  snprintf(uri, size, "mysql://%s:full%s", user, strchr(given, '@'));
}

static void unlimit(void *admin, const char *user) {
  char text[256];
  snprintf(text, sizeof text, "DROP USER %s@'127.0.0.1'", user);
  say(admin, text);
}

static uint32_t count(void *admin, const char *user) {
  char text[256];
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s'", user);
  return (uint32_t)say(admin, text);
}

static void kill_some(void *admin, const char *user, bool all) {
  char text[256];
  for (int i = 0; i < (all ? 16 : 1); i++) {
    snprintf(text, sizeof text,
             "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE user = '%s' AND command = 'Sleep'",
             user);
    int64_t id = say(admin, text);
    if (id == 0) return;
    snprintf(text, sizeof text, "KILL %lld", (long long)id);
    (void)mysql_query(admin, text); /* it may have ended by itself */
    snprintf(text, sizeof text, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %lld", (long long)id);
    for (int tries = 0; tries < 500 && say(admin, text); tries++) dibs__nap_ms(2);
  }
}

const struct server server_mysql = {"mysql", true, open_raw, close_raw, say, limit, unlimit, count, kill_some};
