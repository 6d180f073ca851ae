/* SPDX-License-Identifier: MIT */
/*
 * The breaker's ring holds the latest calls in the order in which they ended; a call is in it as often as its weight.
 *
 * A call that began before the latest change of state is ignored: an answer that took long must neither open a breaker
 * that has just closed, nor count as a probe's.
 */
#include "tier/breaker.h"

#include <assert.h>

static uint32_t or_else(uint32_t value, uint32_t otherwise) {
  return value ? value : otherwise;
}

static int64_t or_else_ms(int64_t value, int64_t otherwise) {
  return value > 0 ? value : otherwise;
}

static uint32_t at_most(uint32_t value, uint32_t most) {
  return value < most ? value : most;
}

static void transition(struct dibs__breaker *breaker, enum dibs__breaker_state state, dibs__tick now) {
  breaker->state = state;
  breaker->changed = now;
  breaker->requested = breaker->well = 0;
  /* Closing clears the ring: old failures would open it again. */
  if (state == DIBS__BREAKER_CLOSED) breaker->first = breaker->count = 0;
}

void dibs__breaker_begin(struct dibs__breaker *breaker, const struct dibs__breaker_options *options, dibs__tick now) {
  struct dibs__breaker_options o = options ? *options : (struct dibs__breaker_options){0};
  o.window = at_most(or_else(o.window, 20), DIBS__BREAKER_WINDOW);
  o.min_calls = at_most(or_else(o.min_calls, 5), o.window); /* otherwise it could never open */
  o.failure_percent = at_most(or_else(o.failure_percent, 50), 100);
  o.slow_percent = at_most(or_else(o.slow_percent, 80), 100);
  o.probes = or_else(o.probes, 3);
  o.window_ms = or_else_ms(o.window_ms, 10000);
  o.slow_ms = or_else_ms(o.slow_ms, 1000);
  o.wait_ms = or_else_ms(o.wait_ms, 2000);
  *breaker = (struct dibs__breaker){.options = o};
  transition(breaker, DIBS__BREAKER_CLOSED, now);
}

static bool wait_is_over(const struct dibs__breaker *breaker, dibs__tick now) {
  return !dibs__tick_before(now, dibs__tick_add_ms(breaker->changed, breaker->options.wait_ms));
}

bool dibs__breaker_may(struct dibs__breaker *breaker, dibs__tick now) {
  switch (breaker->state) {
  case DIBS__BREAKER_CLOSED:
    return true;
  case DIBS__BREAKER_OPEN:
    if (!wait_is_over(breaker, now)) return false;
    transition(breaker, DIBS__BREAKER_HALF_OPEN, now);
    break;
  case DIBS__BREAKER_HALF_OPEN:
    /* A probe that never ends (its caller is gone) would keep it half-open for ever: start another round. */
    if (breaker->requested == breaker->options.probes && wait_is_over(breaker, now))
      transition(breaker, DIBS__BREAKER_HALF_OPEN, now);
    break;
  }
  if (breaker->requested == breaker->options.probes) return false;
  breaker->requested++;
  return true;
}

static void remember(struct dibs__breaker *breaker, dibs__tick now, bool failed, bool slow) {
  uint32_t window = breaker->options.window;
  uint32_t at = (breaker->first + breaker->count) % window;
  breaker->calls[at].at = now;
  breaker->calls[at].failed = failed;
  breaker->calls[at].slow = slow;
  if (breaker->count < window)
    breaker->count++;
  else
    breaker->first = (breaker->first + 1) % window;
}

struct seen {
  uint32_t calls, failed, slow;
};

static struct seen count_window(const struct dibs__breaker *breaker, dibs__tick now) {
  struct seen seen = {0};
  for (uint32_t i = 0; i < breaker->count; i++) {
    uint32_t at = (breaker->first + i) % breaker->options.window;
    if (dibs__tick_before(dibs__tick_add_ms(breaker->calls[at].at, breaker->options.window_ms), now)) continue;
    seen.calls++;
    seen.failed += breaker->calls[at].failed;
    seen.slow += breaker->calls[at].slow;
  }
  return seen;
}

static bool exceeds_limit(const struct dibs__breaker *breaker, dibs__tick now) {
  const struct dibs__breaker_options *o = &breaker->options;
  struct seen seen = count_window(breaker, now);
  return seen.calls >= o->min_calls &&
         (seen.failed * 100 >= o->failure_percent * seen.calls || seen.slow * 100 >= o->slow_percent * seen.calls);
}

static bool probe_done(struct dibs__breaker *breaker, dibs__tick now, bool fine) {
  if (!fine) {
    transition(breaker, DIBS__BREAKER_OPEN, now);
    return true;
  }
  if (++breaker->well < breaker->options.probes) return false;
  transition(breaker, DIBS__BREAKER_CLOSED, now);
  return true;
}

bool dibs__breaker_done(struct dibs__breaker *breaker, dibs__tick began, dibs__tick now, uint32_t operations,
                        bool failed) {
  assert(breaker->options.window > 0);
  if (dibs__tick_before(began, breaker->changed) || breaker->state == DIBS__BREAKER_OPEN) return false;
  bool slow = !dibs__tick_before(now, dibs__tick_add_ms(began, breaker->options.slow_ms));
  if (breaker->state == DIBS__BREAKER_HALF_OPEN) return probe_done(breaker, now, !failed && !slow);
  uint32_t weight = at_most(or_else(operations, 1), DIBS__BREAKER_WEIGHT);
  while (weight-- > 0) remember(breaker, now, failed, slow);
  /* A good call cannot exceed a limit: the healthy path counts nothing. */
  if ((!failed && !slow) || !exceeds_limit(breaker, now)) return false;
  transition(breaker, DIBS__BREAKER_OPEN, now);
  return true;
}

void dibs__breaker_rates(const struct dibs__breaker *breaker, dibs__tick now, uint32_t *calls, uint32_t *failed_percent,
                         uint32_t *slow_percent) {
  struct seen seen = count_window(breaker, now);
  *calls = seen.calls;
  *failed_percent = seen.calls ? seen.failed * 100 / seen.calls : 0;
  *slow_percent = seen.calls ? seen.slow * 100 / seen.calls : 0;
}
