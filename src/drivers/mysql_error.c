/* SPDX-License-Identifier: MIT */
/* What the server's and the connector's errors come to. */
#include "drivers/mysql_parts.h"

#include <stdio.h>

static const struct {
  unsigned error;
  enum dibs__sql_trouble trouble;
} known[] = {
    /* unique keys */
    {1062, DIBS__SQL_TWICE},
    {1586, DIBS__SQL_TWICE},
    {1169, DIBS__SQL_TWICE},
    /* foreign keys */
    {1216, DIBS__SQL_ORPHAN},
    {1452, DIBS__SQL_ORPHAN},
    {1217, DIBS__SQL_ORPHAN}, /* a parent that has children */
    {1451, DIBS__SQL_ORPHAN},
    /* null, range, length, check, wrong value, wrong text */
    {1048, DIBS__SQL_REFUSED},
    {1136, DIBS__SQL_REFUSED},
    {1153, DIBS__SQL_REFUSED}, /* the packet is too large */
    {1264, DIBS__SQL_REFUSED},
    {1265, DIBS__SQL_REFUSED},
    {1292, DIBS__SQL_REFUSED},
    {1300, DIBS__SQL_REFUSED},
    {1364, DIBS__SQL_REFUSED},
    {1366, DIBS__SQL_REFUSED},
    {1367, DIBS__SQL_REFUSED},
    {1406, DIBS__SQL_REFUSED},
    {1690, DIBS__SQL_REFUSED},
    {3819, DIBS__SQL_REFUSED},
    {4025, DIBS__SQL_REFUSED},
    {1644, DIBS__SQL_REFUSED}, /* SIGNAL, in a trigger of the user's */
    /* begin anew */
    {1213, DIBS__SQL_DEADLOCK},
    {1020, DIBS__SQL_DEADLOCK}, /* "record has changed": innodb_snapshot_isolation */
    {1637, DIBS__SQL_DEADLOCK}, /* too many transactions at once */
    {1205, DIBS__SQL_LOCKED},   /* only the statement is undone: who began must roll back */
    {3572, DIBS__SQL_LOCKED},   /* NOWAIT */
    {1969, DIBS__SQL_LOCKED},   /* max_statement_time */
    {3024, DIBS__SQL_LOCKED},   /* max_execution_time */
    {1317, DIBS__SQL_LOCKED},   /* KILL QUERY, by somebody who had enough of it */
    /* the connection, or the server, goes */
    {1053, DIBS__SQL_GONE},
    {1077, DIBS__SQL_GONE},
    {1079, DIBS__SQL_GONE},
    {1152, DIBS__SQL_GONE},
    {1158, DIBS__SQL_GONE},
    {1159, DIBS__SQL_GONE},
    {1160, DIBS__SQL_GONE},
    {1161, DIBS__SQL_GONE},
    {1184, DIBS__SQL_GONE},
    {1927, DIBS__SQL_GONE}, /* KILL CONNECTION */
    {3169, DIBS__SQL_GONE},
    {4031, DIBS__SQL_GONE}, /* MySQL's wait_timeout */
    {2000, DIBS__SQL_GONE},
    {2001, DIBS__SQL_GONE},
    {2002, DIBS__SQL_GONE},
    {2003, DIBS__SQL_GONE},
    {2005, DIBS__SQL_GONE},
    {2006, DIBS__SQL_GONE},
    {2012, DIBS__SQL_GONE},
    {2013, DIBS__SQL_GONE},
    {2026, DIBS__SQL_GONE},
    {2027, DIBS__SQL_GONE}, /* malformed: we no longer know where an answer begins */
    {2048, DIBS__SQL_GONE},
    {2055, DIBS__SQL_GONE},
    {2014, DIBS__SQL_ODD}, /* on a connection of the user's: it has answers that nobody read */
    {2008, DIBS__SQL_NO_SPACE},
    /* rights */
    {1044, DIBS__SQL_DENIED},
    {1045, DIBS__SQL_DENIED},
    {1095, DIBS__SQL_DENIED},
    {1130, DIBS__SQL_DENIED},
    {1129, DIBS__SQL_DENIED},
    {1142, DIBS__SQL_DENIED},
    {1143, DIBS__SQL_DENIED},
    {1227, DIBS__SQL_DENIED},
    {1251, DIBS__SQL_DENIED},
    {1290, DIBS__SQL_DENIED}, /* --read-only and its like */
    {1036, DIBS__SQL_DENIED},
    {1370, DIBS__SQL_DENIED},
    {1698, DIBS__SQL_DENIED},
    {1792, DIBS__SQL_DENIED}, /* a transaction that only reads */
    {1820, DIBS__SQL_DENIED}, /* the password has expired */
    {1836, DIBS__SQL_DENIED},
    {1862, DIBS__SQL_DENIED},
    {2059, DIBS__SQL_DENIED}, /* an authentication plugin that is not here */
    {3118, DIBS__SQL_DENIED}, /* the account is locked */
    {4151, DIBS__SQL_DENIED},
    /* what is not there */
    {1046, DIBS__SQL_MISSING},
    {1049, DIBS__SQL_MISSING},
    {1051, DIBS__SQL_MISSING},
    {1054, DIBS__SQL_MISSING},
    {1146, DIBS__SQL_MISSING},
    {1305, DIBS__SQL_MISSING},
    {1932, DIBS__SQL_MISSING},
    /* what is full */
    {1021, DIBS__SQL_FULL},
    {1037, DIBS__SQL_FULL},
    {1038, DIBS__SQL_FULL},
    {1040, DIBS__SQL_FULL},
    {1041, DIBS__SQL_FULL},
    {1114, DIBS__SQL_FULL},
    {1135, DIBS__SQL_FULL}, /* no thread */
    {1203, DIBS__SQL_FULL},
    {1206, DIBS__SQL_FULL},
    {1226, DIBS__SQL_FULL},
    {3, DIBS__SQL_FULL}, /* writing a file */
    /* tables that the server itself finds damaged */
    {1033, DIBS__SQL_DAMAGED},
    {1034, DIBS__SQL_DAMAGED},
    {1035, DIBS__SQL_DAMAGED},
    {1194, DIBS__SQL_DAMAGED},
    {1195, DIBS__SQL_DAMAGED},
    {1712, DIBS__SQL_DAMAGED},
    {1877, DIBS__SQL_DAMAGED},
};

enum dibs__sql_trouble dibs__my_trouble(unsigned error) {
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i].error == error) return known[i].trouble;
  return DIBS__SQL_ODD;
}

enum dibs__sql_step dibs__my_broke(struct dibs__my_wire *w, enum dibs__sql_trouble trouble, const char *words) {
  w->base.trouble = trouble;
  w->base.unsure = false;
  snprintf(w->base.words, sizeof w->base.words, "%s", words);
  return DIBS__SQL_BROKE;
}
