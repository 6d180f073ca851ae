/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_UNIT_H
#define DIBS_TEST_UNIT_H
/* What cmocka.h wants to be included before it, and a name for its tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits for longer than this for what must come. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

#endif
