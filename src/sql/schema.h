/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_SCHEMA_H
#define DIBS_SQL_SCHEMA_H
/*
 * The schema, in portable text with the dialect's words put in.  Created on first use, migrated forward under a lock,
 * never dropped: step N takes a store from version N to N + 1, and DIBS__SQL_SCHEMA is what this build knows.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__sql_words {
  const char *number; /* 64 bits, signed */
  const char *name;   /* text, compared byte by byte, fit for a key */
  const char *text;   /* up to 127 characters */
  const char *id;     /* up to 64 bytes, fit for a key */
  const char *bytes;
  const char *tail; /* behind a table that lies in the order of its key */
  const char *some; /* before the condition of an index on some rows: " WHERE "; NULL where that is not known */
};

/* The nth statement of the step from `version` on; false when there are no more.  `to` gets it, terminated. */
bool dibs__sql_schema(const struct dibs__sql_words *words, uint32_t version, size_t nth, char *to, size_t size);

#endif
