/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_BREAKER_H
#define DIBS_TIER_BREAKER_H
/*
 * Decides whether this process calls a tier.  Closed: it calls.  Open: it does not, for wait_ms.  Half-open: it allows
 * a few probes; if all of them succeed it closes, if one fails it opens again.
 *
 * The decision uses the latest `window` calls that are not older than window_ms, if there are at least min_calls: it
 * opens when the failed part reaches failure_percent, or the part that took slow_ms or longer reaches slow_percent.  A
 * call counts as many times as it had operations, at most WEIGHT_MAX.  Only a tier that does not answer fails
 * (UNAVAILABLE, UNKNOWN of a whole run); the answers of a healthy store (HELD, STALE, MOVED, ...) are no failures.
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
  struct dibs__breaker_options options; /* with the defaults */
  enum dibs__breaker_state state;
  dibs__tick changed;       /* when it entered this state */
  uint32_t requested, well; /* probes since half-open: allowed; successful */
  uint32_t first, count;    /* the ring */
  struct {
    dibs__tick at;
    bool failed, slow;
  } calls[DIBS__BREAKER_WINDOW];
};

void dibs__breaker_begin(struct dibs__breaker *breaker, const struct dibs__breaker_options *options, dibs__tick now);
/* Is a call allowed?  After such a call you must call `done`, with this `now` as `began`.  (Half-open: a probe that
 * does not end within wait_ms is ignored, and others are allowed.) */
bool dibs__breaker_may(struct dibs__breaker *breaker, dibs__tick now);
/* The result of a call.  A call that began before the latest change of state is ignored.  A probe succeeds if it
 * neither failed nor was slow.  true: the state changed. */
bool dibs__breaker_done(struct dibs__breaker *breaker, dibs__tick began, dibs__tick now, uint32_t operations,
                        bool failed);
/* The failed and slow parts of the window, in percent; *calls: the number of calls in it. */
void dibs__breaker_rates(const struct dibs__breaker *breaker, dibs__tick now, uint32_t *calls, uint32_t *failed_percent,
                         uint32_t *slow_percent);

#endif
