/* SPDX-License-Identifier: MIT */
#include "tier/words.h"

#include <string.h>

dibs__str dibs__words_next(struct dibs__words *words) {
  if (!words->at) return (dibs__str){NULL, 0};
  const char *begin = words->at, *blank = memchr(begin, ' ', (size_t)(words->end - begin));
  words->at = blank ? blank + 1 : NULL;
  return dibs__str_of(begin, (size_t)((blank ? blank : words->end) - begin));
}

bool dibs__words_is(dibs__str word, const char *text) {
  size_t len = strlen(text);
  return word.len == len && memcmp(word.p ? word.p : "", text, len) == 0;
}

bool dibs__words_number(dibs__str word, uint64_t most, uint64_t *number) {
  *number = 0;
  if (word.len == 0 || (word.len > 1 && word.p[0] == '0')) return false;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < word.len; i++) {
    if (word.p[i] < '0' || word.p[i] > '9') return false;
    uint64_t digit = (uint64_t)(word.p[i] - '0');
    if (sum > (most - digit) / 10 || digit > most) return false;
    sum = sum * 10 + digit;
  }
  *number = sum;
  return true;
}
