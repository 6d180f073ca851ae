/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the anchor's record of its tiers, unchanged and with a correct checksum: refused, or a state that
 * supports decisions and is written the same again.  And any bytes as a client's report.
 */
#include "fuzz.h"
#include "tier/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) abort();                                                                                              \
  while (0)

static void read_state(const char *text, size_t len) {
  static struct dibs__tiers_state state, again;
  struct dibs__result reported = {0};
  char capacity[64];
  dibs__status status = dibs__tiers_read(text, len, &state, &reported);
  CHECK(status == DIBS_OK || status == DIBS_CORRUPT || status == DIBS_TOO_NEW);
  if (status != DIBS_OK) {
    CHECK(reported.text[0] != '\0');
    return;
  }
  size_t written, rewritten;
  char *first = dibs__tiers_write(&state, &written);
  CHECK(first && dibs__tiers_read(first, written, &again, &reported) == DIBS_OK);
  char *second = dibs__tiers_write(&again, &rewritten);
  CHECK(second && written == rewritten && memcmp(first, second, written) == 0);
  uint32_t to;
  dibs__tiers_astray(&state, &to);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) CHECK(dibs__tiers_wanted(&state, b) < state.count);
  for (size_t n = 0; dibs__tiers_flag_name(&state, n, capacity, sizeof capacity); n++) {
    uint32_t percent;
    CHECK(dibs__tiers_flag_get(&state, capacity, &percent, &reported) == DIBS_OK && percent <= 100);
  }
  free(first);
  free(second);
}

/* A correct checksum lets changed lines reach the parser. */
static void read_summed(const char *text, size_t len) {
  size_t lines = len;
  for (const char *end = text; (end = memchr(end, '\n', (size_t)(text + len - end))); end++)
    if ((size_t)(text + len - end) > 4 && memcmp(end, "\nend ", 5) == 0) lines = (size_t)(end - text) + 1;
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < lines; i++) sum = (sum ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
  char end[32];
  int size = snprintf(end, sizeof end, "end %016" PRIx64 "\n", sum);
  char *whole = malloc(lines + (size_t)size);
  CHECK(whole);
  memcpy(whole, text, lines);
  memcpy(whole + lines, end, (size_t)size);
  read_state(whole, lines + (size_t)size);
  free(whole);
}

static void read_report(const char *text, size_t len) {
  struct dibs__tiers_report report, again;
  struct dibs__tiers_tally tally;
  char first[DIBS__REPORT_MAX + 1], second[DIBS__REPORT_MAX + 1];
  if (!dibs__tiers_report_read(dibs__str_of(text, len), &report)) return;
  size_t written = dibs__tiers_report_write(&report, first, sizeof first);
  CHECK(written > 0 && dibs__tiers_report_read(dibs__str_of(first, written), &again));
  CHECK(dibs__tiers_report_write(&again, second, sizeof second) == written && memcmp(first, second, written) == 0);
  dibs__tiers_tally(&report, 1, &tally);
  for (uint32_t i = 0; i < DIBS__URI_TIERS; i++) CHECK(tally.down[i] <= tally.active[i] && tally.active[i] <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  CHECK(text);
  if (size > 0) memcpy(text, data, size);
  char *exact = size > 0 ? realloc(text, size) : text; /* of exactly this size, so that a sanitizer reports reads beyond
                                                        * it */
  CHECK(exact);
  read_state(exact, size);
  read_summed(exact, size);
  read_report(exact, size);
  free(exact);
  return 0;
}
