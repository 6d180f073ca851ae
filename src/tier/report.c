/* SPDX-License-Identifier: MIT */
/*
 * What a client says of itself:
 *
 *   1 a-wc,ad-o 12,0,3 user@host:pid
 *
 * The version; of each tier whether it is active, down, well, and its breaker (closed, open, half-open); the counts, up
 * to the last that is not 0; and, to the end of the line, the owner.
 */
#include "base/text.h"
#include "tier/state.h"
#include "tier/words.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static const char breakers[] = "coh";

size_t dibs__tiers_report_write(const struct dibs__tiers_report *report, char *to, size_t size) {
  assert(report->count >= 1 && report->count <= DIBS__URI_TIERS && size > 0);
  struct dibs__text text;
  dibs__text_begin(&text, to, size);
  dibs__text_adds(&text, "1");
  for (uint32_t i = 0; i < report->count; i++)
    dibs__text_addf(&text, "%c%c%c%c%c", i ? ',' : ' ', report->tiers[i].active ? 'a' : '-',
                    report->tiers[i].down ? 'd' : '-', report->tiers[i].well ? 'w' : '-',
                    breakers[report->tiers[i].breaker]);
  size_t counts = DIBS__TIERS_COUNTS_MAX;
  while (counts > 1 && report->counts[counts - 1] == 0) counts--;
  for (size_t i = 0; i < counts; i++) dibs__text_addf(&text, "%c%" PRIu64, i ? ',' : ' ', report->counts[i]);
  size_t owner = strnlen(report->owner, sizeof report->owner);
  dibs__text_adds(&text, " ");
  if (dibs__name_check(report->owner, owner, DIBS_OWNER_MAX, NULL) == DIBS__NAME_FINE)
    dibs__text_add(&text, report->owner, owner);
  assert(text.cut || text.len <= DIBS__REPORT_MAX);
  return text.cut ? 0 : text.len;
}

static bool read_flag(char c, char yes, bool *flag) {
  *flag = c == yes;
  return c == yes || c == '-';
}

static bool read_tiers(dibs__str word, struct dibs__tiers_report *report) {
  enum { EACH = 4 };
  for (uint32_t at = 0;; at += EACH + 1) {
    if (report->count == DIBS__URI_TIERS || word.len < at + EACH) return false;
    const char *p = word.p + at, *breaker = p[3] ? strchr(breakers, p[3]) : NULL;
    uint32_t i = report->count++;
    if (!read_flag(p[0], 'a', &report->tiers[i].active) || !read_flag(p[1], 'd', &report->tiers[i].down) ||
        !read_flag(p[2], 'w', &report->tiers[i].well) || !breaker)
      return false;
    report->tiers[i].breaker = breaker == breakers       ? DIBS__SEEN_CLOSED
                               : breaker == breakers + 1 ? DIBS__SEEN_OPEN
                                                         : DIBS__SEEN_HALF_OPEN;
    if (word.len == at + EACH) return true;
    if (p[EACH] != ',') return false;
  }
}

static bool read_counts(dibs__str word, struct dibs__tiers_report *report) {
  const char *at = word.p, *end = word.p + word.len;
  if (word.len == 0) return false;
  for (size_t i = 0; i < DIBS__TIERS_COUNTS_MAX; i++) {
    const char *comma = memchr(at, ',', (size_t)(end - at)), *stop = comma ? comma : end;
    if (!dibs__words_number(dibs__str_of(at, (size_t)(stop - at)), UINT64_MAX, &report->counts[i])) return false;
    if (!comma) return true;
    at = comma + 1;
  }
  return false;
}

bool dibs__tiers_report_read(dibs__str text, struct dibs__tiers_report *report) {
  *report = (struct dibs__tiers_report){0};
  if (text.len == 0 || text.len > DIBS__REPORT_MAX) return false;
  struct dibs__words words = {text.p, text.p + text.len};
  if (!dibs__words_is(dibs__words_next(&words), "1") || !read_tiers(dibs__words_next(&words), report) ||
      !read_counts(dibs__words_next(&words), report) || !words.at)
    return false;
  size_t owner = (size_t)(words.end - words.at);
  if (owner == 0) return true;
  if (dibs__name_check(words.at, owner, DIBS_OWNER_MAX, NULL) != DIBS__NAME_FINE) return false;
  memcpy(report->owner, words.at, owner);
  return true;
}
