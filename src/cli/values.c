/* SPDX-License-Identifier: MIT */
/* Words of the command line to values, and which word a misspelt one may have meant.  Fuzzed by test/fuzz/fuzz_cli.c.
 */
#include "base/text.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

/* Longer words are nobody's misspelling. */
enum { WORD_MAX = 24 };

static const struct {
  const char *unit;
  int64_t ms;
} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

static bool refuse(char *wrong, size_t wrong_size, const char *text, const char *why) {
  struct dibs__text t;
  dibs__text_begin(&t, wrong, wrong_size);
  dibs__text_addf(&t, "'%.40s' %s", text, why);
  return false;
}

bool dibs__cli_number(const char *text, uint64_t most, uint64_t *out) {
  *out = 0;
  if (*text == '\0') return false;
  uint64_t n = 0;
  for (; *text != '\0'; text++) {
    if (*text < '0' || *text > '9') return false;
    uint64_t digit = (uint64_t)(*text - '0');
    if (n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  if (n > most) return false;
  *out = n;
  return true;
}

bool dibs__cli_duration(const char *text, int64_t *ms, char *wrong, size_t wrong_size) {
  *ms = 0;
  size_t digits = strspn(text, "0123456789");
  if (digits == 0) return refuse(wrong, wrong_size, text, "is no duration; write 500ms, 30s, 2m or 1h");
  const char *unit = text + digits;
  if (*unit == '\0') {
    struct dibs__text t;
    dibs__text_begin(&t, wrong, wrong_size);
    dibs__text_addf(&t, "'%.40s' has no unit; write %.20ss for seconds, %.20sms for milliseconds", text, text, text);
    return false;
  }
  int64_t n = 0;
  for (size_t i = 0; i < digits; i++)
    if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, text[i] - '0', &n))
      return refuse(wrong, wrong_size, text, "is too long");
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (strcmp(unit, units[i].unit) == 0) {
      if (__builtin_mul_overflow(n, units[i].ms, ms)) {
        *ms = 0;
        return refuse(wrong, wrong_size, text, "is too long");
      }
      return true;
    }
  return refuse(wrong, wrong_size, text, "has no unit that is known; write 500ms, 30s, 2m or 1h");
}

void dibs__cli_span(char *to, size_t size, int64_t ms) {
  if (ms < 0) ms = 0;
  if (ms < 1000)
    snprintf(to, size, "%" PRId64 "ms", ms);
  else if (ms < 60000 && ms % 1000 == 0)
    snprintf(to, size, "%" PRId64 "s", ms / 1000);
  else if (ms < 60000)
    snprintf(to, size, "%" PRId64 ".%" PRId64 "s", ms / 1000, ms % 1000 / 100);
  else if (ms < 3600000)
    snprintf(to, size, "%" PRId64 "m%02" PRId64 "s", ms / 60000, ms / 1000 % 60);
  else if (ms < 86400000)
    snprintf(to, size, "%" PRId64 "h%02" PRId64 "m", ms / 3600000, ms / 60000 % 60);
  else
    snprintf(to, size, "%" PRId64 "d%02" PRId64 "h", ms / 86400000, ms / 3600000 % 24);
}

bool dibs__cli_is_id(const char *text) {
  uint8_t id[16];
  return dibs__hex_read(text, id);
}

/* Edits between two words: change, insert, delete, swap of neighbours. */
static size_t distance(const char *a, const char *b) {
  size_t rows = strlen(a), columns = strlen(b);
  if (rows > WORD_MAX || columns > WORD_MAX) return WORD_MAX;
  size_t d[WORD_MAX + 1][WORD_MAX + 1];
  for (size_t i = 0; i <= rows; i++) d[i][0] = i;
  for (size_t j = 0; j <= columns; j++) d[0][j] = j;
  for (size_t i = 1; i <= rows; i++)
    for (size_t j = 1; j <= columns; j++) {
      size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
      if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
        best = d[i - 2][j - 2] + 1;
      d[i][j] = best;
    }
  return d[rows][columns];
}

const char *dibs__cli_nearest(const char *wrong, const char *(*nth)(size_t i, const void *arg), const void *arg) {
  const char *near = NULL;
  size_t least = strlen(wrong) / 2 < 3 ? strlen(wrong) / 2 + 1 : 4;
  const char *word;
  for (size_t i = 0; (word = nth(i, arg)) != NULL; i++) {
    size_t d = distance(wrong, word);
    size_t length = strlen(wrong);
    /* "own" for "owner": a beginning is a good guess as well. */
    if (d >= least && length >= 2 && strncmp(wrong, word, length) == 0) d = least - 1;
    if (d < least) {
      least = d;
      near = word;
    }
  }
  return near;
}
