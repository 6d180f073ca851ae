/* SPDX-License-Identifier: MIT */
/* What SQLSTATEs mean, and the engine's own words. */
#include "drivers/postgres_parts.h"

#include <string.h>

/* The first that fits: a whole state stands before its class. */
static const struct {
  const char *state;
  enum dibs__sql_trouble trouble;
} meanings[] = {
    {"23505", DIBS__SQL_TWICE},   {"23503", DIBS__SQL_ORPHAN},  {"23", DIBS__SQL_REFUSED}, /* other constraints */
    {"22", DIBS__SQL_REFUSED},                                                             /* values that don't fit */
    {"44000", DIBS__SQL_REFUSED},                                                          /* WITH CHECK OPTION */
    {"40003", DIBS__SQL_GONE},                                                             /* completion unknown */
    {"40", DIBS__SQL_DEADLOCK},                                /* 40001 serialization, 40P01 deadlock, 40002 */
    {"55P03", DIBS__SQL_LOCKED},  {"57014", DIBS__SQL_LOCKED}, /* statement_timeout, or somebody cancelled it */
    {"42501", DIBS__SQL_DENIED},  {"25006", DIBS__SQL_DENIED}, /* read-only transaction */
    {"28", DIBS__SQL_DENIED},                                  /* authorization */
    {"42P01", DIBS__SQL_MISSING}, {"42703", DIBS__SQL_MISSING}, {"3D000", DIBS__SQL_MISSING},
    {"3F000", DIBS__SQL_MISSING}, {"53200", DIBS__SQL_FULL},    {"53", DIBS__SQL_FULL},
    {"57P", DIBS__SQL_GONE},   /* shutdown, crash, database dropped, idle session ended */
    {"25P03", DIBS__SQL_GONE}, /* idle_in_transaction_session_timeout */
    {"25P04", DIBS__SQL_GONE}, /* transaction_timeout */
    {"26000", DIBS__SQL_GONE}, /* somebody took our prepared statements away: begin anew on another connection */
    {"08", DIBS__SQL_GONE},       {"XX001", DIBS__SQL_DAMAGED}, {"XX002", DIBS__SQL_DAMAGED},
};

enum dibs__sql_trouble dibs__pg_trouble(const char *state) {
  for (size_t i = 0; state && i < sizeof meanings / sizeof meanings[0]; i++)
    if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0) return meanings[i].trouble;
  return DIBS__SQL_ODD;
}

void dibs__pg_say(char *to, size_t size, const PGresult *result, const PGconn *pg) {
  const char *words = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
  if (!words && result) words = PQresultErrorMessage(result);
  if ((!words || !*words) && pg) words = PQerrorMessage(pg);
  if (!words || !*words) words = "the connection was lost";
  /* On one line; libpq ends its own with a newline, and indents the next. */
  size_t used = 0;
  while (*words && used + 1 < size) {
    if (*words == '\n' || *words == '\t') {
      words += strspn(words, "\n\t ");
      if (*words) to[used++] = ' ';
    } else {
      to[used++] = *words++;
    }
  }
  to[used] = '\0';
}
