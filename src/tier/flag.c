/* SPDX-License-Identifier: MIT */
/*
 * What people switch: names over the fields of the state.  SCHEME is what a tier is called; a second one of the same
 * scheme is SCHEME-2, and so on.
 */
#include "base/text.h"
#include "tier/state.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

enum { NAME_MAX_HERE = 64 };

static const char breaker_name[] = "circuit-breaker.enabled";
static const char least_strict_name[] = "least-strict.enabled";

/* What a tier is called in its flag. */
static void call(const struct dibs__tiers_state *state, uint32_t tier, const char *end, struct dibs__text *to) {
  uint32_t nth = 1;
  for (uint32_t i = 0; i < tier; i++) nth += strcmp(state->tiers[i].scheme, state->tiers[tier].scheme) == 0;
  dibs__text_adds(to, state->tiers[tier].scheme);
  if (nth > 1) dibs__text_addf(to, "-%" PRIu32, nth);
  dibs__text_adds(to, end);
}

const char *dibs__tiers_tier_name(const struct dibs__tiers_state *state, uint32_t tier, char *room, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, room, size);
  call(state, tier, "", &text);
  return text.cut ? NULL : room;
}

static bool is_called(const struct dibs__tiers_state *state, uint32_t tier, const char *end, const char *name) {
  char room[NAME_MAX_HERE];
  struct dibs__text text;
  dibs__text_begin(&text, room, sizeof room);
  call(state, tier, end, &text);
  return !text.cut && strcmp(room, name) == 0;
}

const char *dibs__tiers_flag_name(const struct dibs__tiers_state *state, size_t nth, char *room, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, room, size);
  size_t tiers = state->count - 1;
  if (nth < tiers)
    call(state, (uint32_t)nth, ".enabled", &text);
  else if (nth == tiers)
    dibs__text_adds(&text, breaker_name);
  else if (nth == tiers + 1)
    call(state, state->count - 1, "-fallback.enabled", &text);
  else if (nth == tiers + 2)
    dibs__text_adds(&text, least_strict_name);
  else
    return NULL;
  return text.cut ? NULL : room;
}

/* ---- What a name stands for ---- */

enum what { NOTHING, TIER, ANCHOR, BREAKER, FALLBACK, LEAST_STRICT };

static enum what find(const struct dibs__tiers_state *state, const char *name, uint32_t *tier) {
  *tier = 0;
  if (strcmp(name, breaker_name) == 0) return BREAKER;
  if (strcmp(name, least_strict_name) == 0) return LEAST_STRICT;
  if (strcmp(name, "fallback.enabled") == 0) return FALLBACK;
  for (uint32_t i = 0; i < state->count; i++) {
    *tier = i;
    if (is_called(state, i, ".enabled", name)) return i + 1 < state->count ? TIER : ANCHOR;
    if ((i > 0 || state->count == 1) && is_called(state, i, "-fallback.enabled", name)) return FALLBACK;
  }
  return NOTHING;
}

static dibs__status unknown(const struct dibs__tiers_state *state, const char *name, struct dibs__said *said) {
  char all[200], one[NAME_MAX_HERE];
  struct dibs__text text;
  dibs__text_begin(&text, all, sizeof all);
  for (size_t n = 0; dibs__tiers_flag_name(state, n, one, sizeof one); n++)
    dibs__text_addf(&text, "%s%s", n ? ", " : "", one);
  dibs__say(said, "there is no flag \"%.40s\"; there are: %s", name, all);
  return DIBS_INVALID;
}

static dibs__status on_or_off(const char *name, uint32_t percent, bool *flag, struct dibs__said *said) {
  if (percent != 0 && percent != 100) {
    dibs__say(said, "flag %s is on (100) or off (0): it can't be %" PRIu32 " percent", name, percent);
    return DIBS_INVALID;
  }
  *flag = percent == 100;
  return DIBS_OK;
}

dibs__status dibs__tiers_flag_set(struct dibs__tiers_state *state, const char *name, uint32_t percent,
                                  struct dibs__said *said) {
  uint32_t tier;
  enum what what = find(state, name, &tier);
  if (what == NOTHING) return unknown(state, name, said);
  if (percent > 100) {
    dibs__say(said, "flag %s is 0 to 100 percent, not %" PRIu32, name, percent);
    return DIBS_INVALID;
  }
  switch (what) {
  case BREAKER:
    return on_or_off(name, percent, &state->breaker, said);
  case LEAST_STRICT:
    return on_or_off(name, percent, &state->least_strict, said);
  case FALLBACK:
    state->fallback = percent;
    return DIBS_OK;
  case ANCHOR:
    if (percent == 100) return DIBS_OK;
    dibs__say(said, "%s can't be set: the last tier is the anchor, which serves what no other tier does", name);
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
                                  struct dibs__said *said) {
  uint32_t tier;
  *percent = 0;
  switch (find(state, name, &tier)) {
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
  return unknown(state, name, said);
}
