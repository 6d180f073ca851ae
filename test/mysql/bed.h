/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MYSQL_BED_H
#define DIBS_TEST_MYSQL_BED_H
/* A connection as the driver makes it, without a store around it. */
#include "drivers/mysql/mysql_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits longer than this for a condition. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

extern const char *bed_uri; /* main sets it */

struct bed {
  struct dibs__uri uri;
  struct dibs__server store;
  struct dibs__result reported;
};

void bed_make(struct bed *bed, const char *uri);
void bed_drop(struct bed *bed);
/* The URI with `more` appended. */
const char *bed_with(const char *more);
struct dibs__sql_wire *bed_connect(struct bed *bed);
/* Adds one statement to the packet. */
void put(struct dibs__sql_wire *wire, const char *text);
/* Adds it and sends the packet, which must succeed. */
void run(struct dibs__sql_wire *wire, const char *text);
/* Sends the packet, which must fail with this. */
void breaks(struct dibs__sql_wire *wire, enum dibs__sql_trouble trouble);
int64_t number(struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column);

#endif
