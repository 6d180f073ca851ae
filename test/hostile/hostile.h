/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_HOSTILE_H
#define DIBS_TEST_HOSTILE_H
/*
 * The strings that all round trips use as names, keys, owners, claims and values.  A string that once broke something
 * is added here and is then tried everywhere: test/contract/texts.c (every driver), test/guard/test_texts.c (the
 * library), test/e2e/texts_test.sh (the command, through the program `hostile`).
 */
#include <stdbool.h>
#include <stddef.h>

struct hostile {
  const char *p;
  size_t len; /* length of NUL-terminated texts; texts of hostile_raw may contain a NUL */
};

/* Valid as a name, a key, a claim, an owner; all are distinct. */
extern const struct hostile hostile_short[]; /* at most HOSTILE_SHORT bytes */
extern const size_t hostile_short_count;
extern const struct hostile hostile_long[]; /* up to 255 bytes */
extern const size_t hostile_long_count;
/* Valid for nothing: each call answers INVALID. */
extern const struct hostile hostile_bad[];
extern const size_t hostile_bad_count;
/* Not possible as a C string: only for calls that take a length. */
extern const struct hostile hostile_raw[];
extern const size_t hostile_raw_count;

enum { HOSTILE_SHORT = 48 };

#endif
