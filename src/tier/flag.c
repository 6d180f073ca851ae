/* SPDX-License-Identifier: MIT */
/*
 * Flags, and a client's report about itself:
 *
 *     1 a-wc,ad-o 12,0,3 user@host:pid
 *
 * The version; for each tier whether it is active, down, well, and its breaker (closed, open, half-open); the counts,
 * up to the last that is not 0; and, to the end of the line, the owner.
 */
#include "base/text.h"
#include "tier/state.h"

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
  if (dibs__name_check(report->owner, owner, DIBS_OWNER_MAX, NULL) == DIBS__NAME_OK)
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
  if (dibs__name_check(words.at, owner, DIBS_OWNER_MAX, NULL) != DIBS__NAME_OK) return false;
  memcpy(report->owner, words.at, owner);
  return true;
}

/*
 * ---- Flags: names over the fields of the state ----
 *
 * SCHEME is a tier's name; a second tier with the same scheme is SCHEME-2, and so on.
 */

enum { NAME_MAX_HERE = 64 };

static const char breaker_name[] = "circuit-breaker.enabled";
static const char least_strict_name[] = "least-strict.enabled";

/* The name of a tier in its flag. */
static void add_tier_name(const struct dibs__tiers_state *state, uint32_t tier, const char *end,
                          struct dibs__text *to) {
  uint32_t nth = 1;
  for (uint32_t i = 0; i < tier; i++) nth += strcmp(state->tiers[i].scheme, state->tiers[tier].scheme) == 0;
  dibs__text_adds(to, state->tiers[tier].scheme);
  if (nth > 1) dibs__text_addf(to, "-%" PRIu32, nth);
  dibs__text_adds(to, end);
}

const char *dibs__tiers_tier_name(const struct dibs__tiers_state *state, uint32_t tier, char *to, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, to, size);
  add_tier_name(state, tier, "", &text);
  return text.cut ? NULL : to;
}

static bool is_flag_of(const struct dibs__tiers_state *state, uint32_t tier, const char *end, const char *name) {
  char own[NAME_MAX_HERE];
  struct dibs__text text;
  dibs__text_begin(&text, own, sizeof own);
  add_tier_name(state, tier, end, &text);
  return !text.cut && strcmp(own, name) == 0;
}

const char *dibs__tiers_flag_name(const struct dibs__tiers_state *state, size_t nth, char *to, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, to, size);
  size_t tiers = state->count - 1;
  if (nth < tiers)
    add_tier_name(state, (uint32_t)nth, ".enabled", &text);
  else if (nth == tiers)
    dibs__text_adds(&text, breaker_name);
  else if (nth == tiers + 1)
    add_tier_name(state, state->count - 1, "-fallback.enabled", &text);
  else if (nth == tiers + 2)
    dibs__text_adds(&text, least_strict_name);
  else
    return NULL;
  return text.cut ? NULL : to;
}

/* ---- The meaning of a name ---- */

enum what { NOTHING, TIER, ANCHOR, BREAKER, FALLBACK, LEAST_STRICT };

static enum what find_flag(const struct dibs__tiers_state *state, const char *name, uint32_t *tier) {
  *tier = 0;
  if (strcmp(name, breaker_name) == 0) return BREAKER;
  if (strcmp(name, least_strict_name) == 0) return LEAST_STRICT;
  if (strcmp(name, "fallback.enabled") == 0) return FALLBACK;
  for (uint32_t i = 0; i < state->count; i++) {
    *tier = i;
    if (is_flag_of(state, i, ".enabled", name)) return i + 1 < state->count ? TIER : ANCHOR;
    if ((i > 0 || state->count == 1) && is_flag_of(state, i, "-fallback.enabled", name)) return FALLBACK;
  }
  return NOTHING;
}

static dibs__status refuse_unknown_flag(const struct dibs__tiers_state *state, const char *name,
                                        struct dibs__result *result) {
  char all[200], one[NAME_MAX_HERE];
  struct dibs__text text;
  dibs__text_begin(&text, all, sizeof all);
  for (size_t n = 0; dibs__tiers_flag_name(state, n, one, sizeof one); n++)
    dibs__text_addf(&text, "%s%s", n ? ", " : "", one);
  dibs__set_message(result, "there is no flag \"%.40s\"; the flags are: %s", name, all);
  return DIBS_INVALID;
}

static dibs__status set_switch(const char *name, uint32_t percent, bool *flag, struct dibs__result *result) {
  if (percent != 0 && percent != 100) {
    dibs__set_message(result, "flag %s is on (100) or off (0), not %" PRIu32 " percent", name, percent);
    return DIBS_INVALID;
  }
  *flag = percent == 100;
  return DIBS_OK;
}

dibs__status dibs__tiers_flag_set(struct dibs__tiers_state *state, const char *name, uint32_t percent,
                                  struct dibs__result *result) {
  uint32_t tier;
  enum what what = find_flag(state, name, &tier);
  if (what == NOTHING) return refuse_unknown_flag(state, name, result);
  if (percent > 100) {
    dibs__set_message(result, "flag %s is 0 to 100 percent, not %" PRIu32, name, percent);
    return DIBS_INVALID;
  }
  switch (what) {
  case BREAKER:
    return set_switch(name, percent, &state->breaker, result);
  case LEAST_STRICT:
    return set_switch(name, percent, &state->least_strict, result);
  case FALLBACK:
    state->fallback = percent;
    return DIBS_OK;
  case ANCHOR:
    if (percent == 100) return DIBS_OK;
    dibs__set_message(
        result, "cannot set %s: the last tier is the anchor, which serves the names that no other tier serves", name);
    return DIBS_INVALID;
  case TIER:
    state->tiers[tier].percent = percent;
    return DIBS_OK;
  case NOTHING:
    break;
  }
  assert(!"found above");
  return DIBS_INVALID;
}

dibs__status dibs__tiers_flag_get(const struct dibs__tiers_state *state, const char *name, uint32_t *percent,
                                  struct dibs__result *result) {
  uint32_t tier;
  *percent = 0;
  switch (find_flag(state, name, &tier)) {
  case BREAKER:
    *percent = state->breaker ? 100 : 0;
    return DIBS_OK;
  case LEAST_STRICT:
    *percent = state->least_strict ? 100 : 0;
    return DIBS_OK;
  case FALLBACK:
    *percent = state->fallback;
    return DIBS_OK;
  case ANCHOR:
    *percent = 100;
    return DIBS_OK;
  case TIER:
    *percent = state->tiers[tier].percent;
    return DIBS_OK;
  case NOTHING:
    break;
  }
  return refuse_unknown_flag(state, name, result);
}
