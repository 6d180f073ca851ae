/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_WORDS_H
#define DIBS_TIER_WORDS_H
/* Words with one blank between, of text that is not terminated: what the state and reports are made of. */
#include "store/store.h"

struct dibs__words {
  const char *at, *end; /* at NULL: nothing is left */
};

/* Up to the next blank.  An empty one, and one behind the end, is empty. */
dibs__str dibs__words_next(struct dibs__words *words);
bool dibs__words_is(dibs__str word, const char *text);
/* Decimal digits alone, no zero before others, at most `most`. */
bool dibs__words_number(dibs__str word, uint64_t most, uint64_t *number);

#endif
