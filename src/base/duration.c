/* SPDX-License-Identifier: MIT */
#include "base/duration.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *unit;
  int64_t ms;
} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
enum { UNITS = sizeof units / sizeof *units };

static bool refuse_text(char *wrong, size_t wrong_size, const char *text, const char *why) {
  struct dibs__text t;
  dibs__text_begin(&t, wrong, wrong_size);
  dibs__text_addf(&t, "'%.40s' %s", text, why);
  return false;
}

/* "29.1" with a unit of 1000 ms: 29100.  *text moves past the number.  false: there is none, or it is too large. */
static bool parse_decimal(const char **text, int64_t *whole, int64_t *thousandths) {
  *whole = *thousandths = 0;
  const char *at = *text;
  for (; *at >= '0' && *at <= '9'; at++)
    if (__builtin_mul_overflow(*whole, 10, whole) || __builtin_add_overflow(*whole, *at - '0', whole)) return false;
  if (*at == '.') {
    int64_t scale = 100;
    for (at++; *at >= '0' && *at <= '9'; at++, scale /= 10) *thousandths += (*at - '0') * scale;
  }
  *text = at;
  return true;
}

bool dibs__duration_read(const char *text, int64_t *ms, char *wrong, size_t wrong_size) {
  *ms = 0;
  int64_t sum = 0;
  size_t last = UNITS; /* units come from long to short, each once, as dibs__duration_write prints them */
  for (const char *at = text; at == text || *at != '\0';) {
    if (*at < '0' || *at > '9')
      return refuse_text(wrong, wrong_size, text, "is not a duration; write 500ms, 30s, 2m05s, 1h or 7d");
    int64_t whole, thousandths, part;
    if (!parse_decimal(&at, &whole, &thousandths)) return refuse_text(wrong, wrong_size, text, "is too long");
    size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz"), unit = 0;
    if (length == 0) {
      struct dibs__text t;
      dibs__text_begin(&t, wrong, wrong_size);
      dibs__text_addf(&t, "'%.40s' has no unit; write %.20ss for seconds, %.20sms for milliseconds", text, text, text);
      return false;
    }
    while (unit < UNITS && (strlen(units[unit].unit) != length || strncmp(at, units[unit].unit, length) != 0)) unit++;
    if (unit == UNITS)
      return refuse_text(wrong, wrong_size, text, "has an unknown unit; write 500ms, 30s, 2m05s, 1h or 7d");
    if (unit >= last)
      return refuse_text(wrong, wrong_size, text, "has its units in the wrong order; write the longest first");
    last = unit;
    at += length;
    if (__builtin_mul_overflow(whole, units[unit].ms, &part) || __builtin_add_overflow(sum, part, &sum) ||
        __builtin_add_overflow(sum, units[unit].ms * thousandths / 1000, &sum))
      return refuse_text(wrong, wrong_size, text, "is too long");
  }
  *ms = sum;
  return true;
}

void dibs__duration_write(char *to, size_t size, int64_t ms) {
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
