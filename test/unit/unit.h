/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_UNIT_H
#define DIBS_TEST_UNIT_H
/* The headers that cmocka.h needs before it, and a name for its tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits longer than this for a condition. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

#endif
