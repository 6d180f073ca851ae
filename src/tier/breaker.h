/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_BREAKER_H
#define DIBS_TIER_BREAKER_H
/*
 * Whether this process should go on asking a tier.  Closed: it asks.  Open: it does not, for wait_ms.  Half-open: a few
 * probes are let through; all of them well: closed; one of them not: open again.
 *
 * It turns on the latest `window` calls that are not older than window_ms, when there are at least min_calls: when the
 * part that failed reaches failure_percent, or the part that took slow_ms or longer reaches slow_percent.  A call
 * counts as many times as it had operations, at most WEIGHT_MAX.  Only a tier that does not answer fails (UNAVAILABLE,
 * UNKNOWN of a whole run); what a healthy store answers (HELD, STALE, MOVED, ...) never does.
 *
 * Pure: no clock, no lock; the caller has both.
 */
#include "base/port.h"

enum dibs__breaker_state { DIBS__BREAKER_CLOSED, DIBS__BREAKER_OPEN, DIBS__BREAKER_HALF_OPEN };

/* 0 means the default. */
struct dibs__breaker_options {
  uint32_t window;                        /* calls; 20, at most DIBS__BREAKER_WINDOW */
  uint32_t min_calls;                     /* 5 */
  uint32_t failure_percent, slow_percent; /* 50, 80 */
  uint32_t probes;                        /* 3 */
  int64_t window_ms;                      /* 10000 */
  int64_t slow_ms;                        /* 1000 */
  int64_t wait_ms;                        /* 2000 */
};

enum { DIBS__BREAKER_WINDOW = 128, DIBS__BREAKER_WEIGHT = 8 };

struct dibs__breaker {
  struct dibs__breaker_options options; /* defaults filled in */
  enum dibs__breaker_state state;
  dibs__tick turned;     /* into this state */
  uint32_t asked, well;  /* probes: let through, answered well, since half-open */
  uint32_t first, count; /* the ring */
  struct {
    dibs__tick at;
    bool failed, slow;
  } calls[DIBS__BREAKER_WINDOW];
};

void dibs__breaker_begin(struct dibs__breaker *breaker, const struct dibs__breaker_options *options, dibs__tick now);
/* May a call be made?  One that may must be followed by `done`, with this `now` as `began`.  (Half-open, a probe that
 * does not come back in wait_ms is given up, and other ones are let through.) */
bool dibs__breaker_may(struct dibs__breaker *breaker, dibs__tick now);
/* How it went.  A call that began before the latest turn says nothing, and is forgotten.  A probe is well if it neither
 * failed nor was slow.  true: the state turned. */
bool dibs__breaker_done(struct dibs__breaker *breaker, dibs__tick began, dibs__tick now, uint32_t operations,
                        bool failed);
/* The part of the window that failed, and was slow, in percent; *calls: how many there are. */
void dibs__breaker_rates(const struct dibs__breaker *breaker, dibs__tick now, uint32_t *calls, uint32_t *failed_percent,
                         uint32_t *slow_percent);

#endif
