/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MYSQL_BED_H
#define DIBS_TEST_MYSQL_BED_H
/* A connection as the driver makes it, without a store around it. */
#include "drivers/mysql_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits for longer than this for what must come. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

extern const char *bed_uri; /* set by main */

struct bed {
  struct dibs__uri uri;
  struct dibs__far store;
  struct dibs__said said;
};

void bed_make(struct bed *bed, const char *uri);
void bed_drop(struct bed *bed);
/* The URI with `more` behind it. */
const char *bed_with(const char *more);
struct dibs__sql_wire *bed_connect(struct bed *bed);
/* Puts one statement. */
void put(struct dibs__sql_wire *wire, const char *text);
/* Puts it and goes, which must succeed. */
void run(struct dibs__sql_wire *wire, const char *text);
/* Goes, which must break like this. */
void breaks(struct dibs__sql_wire *wire, enum dibs__sql_trouble trouble);
int64_t number(struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column);

#endif
