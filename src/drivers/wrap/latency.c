/* SPDX-License-Identifier: MIT */
/*
 * A distant store: run, list and connect take latency.ms, half of it before and half of it after the call, and up to
 * latency.jitter more; events come latency.events later.  Callers sleep on their own, and hold nothing meanwhile:
 * several sessions overlap as they would over a network.
 *
 * A call whose deadline passes on the way there was not done (UNAVAILABLE); on the way back, its answers are lost
 * (UNKNOWN), as with a network.
 */
#include "drivers/wrap/shim.h"

#include <assert.h>

/* Events that can be under way at once; if there are more, the newest becomes "check everything again". */
enum { UNDER_WAY = 256, LONGEST_MS = 600000 };

struct late_event {
  struct dibs__event event;
  dibs__tick due;
};

struct latency {
  struct dibs__shim shim;
  int64_t ms, jitter_ms, events_ms; /* immutable after open */
  _Atomic uint64_t drawn;
  /* Of the caller of events(), one at a time. */
  struct late_event under_way[UNDER_WAY];
  size_t first, count;
};

struct trip {
  int64_t there_ms, back_ms;
};

static struct trip trip_of(struct latency *latency) {
  int64_t ms = latency->ms;
  if (latency->jitter_ms > 0) {
    uint64_t drawn = dibs__shim_draw(1, atomic_fetch_add(&latency->drawn, 1));
    ms += (int64_t)(drawn % (uint64_t)(latency->jitter_ms + 1));
  }
  return (struct trip){ms / 2, ms - ms / 2};
}

/* Sleeps for `ms`.  false: `by` came first; it is `by` now. */
static bool sleep_latency(int64_t ms, dibs__tick by) {
  dibs__tick now = dibs__tick_now();
  dibs__tick due = dibs__tick_add_ms(now, ms);
  bool late = dibs__tick_before(by, due);
  if (late) due = by;
  while (dibs__tick_before(now, due)) {
    dibs__nap_ms(dibs__tick_left_ms(now, due));
    now = dibs__tick_now();
  }
  return !late;
}

static dibs__status never_sent(struct dibs__result *result, dibs__tick sent, const char *what) {
  *result = (struct dibs__result){.sent = sent};
  dibs__set_message(result, "the latency shim: the deadline passed before the %s arrived", what);
  return DIBS_UNAVAILABLE;
}

static dibs__status latency_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                                 dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  static const char *const known[] = {"latency.ms", "latency.jitter", "latency.events", NULL};
  (void)by;
  assert(count == 1);
  (void)count;
  *store = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  int64_t ms, jitter, events;
  dibs__status status = dibs__uri_only(uri, "latency", known, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "latency.ms", 0, LONGEST_MS, 0, &ms, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "latency.jitter", 0, LONGEST_MS, 0, &jitter, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "latency.events", 0, LONGEST_MS, 0, &events, result);
  if (status != DIBS_OK) return status;
  struct latency *latency = (struct latency *)dibs__shim_new(sizeof *latency, &dibs__latency_driver, inner[0], result);
  if (!latency) return DIBS_NO_MEMORY;
  latency->ms = ms;
  latency->jitter_ms = jitter;
  latency->events_ms = events;
  *store = &latency->shim.base;
  return DIBS_OK;
}

static dibs__status latency_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct trip trip = trip_of((struct latency *)store);
  dibs__tick sent = dibs__tick_now();
  *session = NULL;
  if (!sleep_latency(trip.there_ms, by)) return never_sent(result, sent, "connect");
  dibs__status status = dibs__shim_connect(store, by, session, identity, result);
  if (status == DIBS_OK) identity->caps &= ~(uint32_t)DIBS__CAP_BRIEF;
  result->sent = sent;
  if (!sleep_latency(trip.back_ms, by) && status == DIBS_OK) {
    dibs__shim_disconnect(*session);
    *session = NULL;
    status = DIBS_UNAVAILABLE;
    dibs__set_message(result, "the latency shim: the deadline passed before the session was open");
  }
  return status;
}

static dibs__status latency_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count,
                                dibs__tick by, struct dibs__result *result) {
  struct trip trip = trip_of((struct latency *)session->store);
  dibs__tick sent = dibs__tick_now();
  if (!sleep_latency(trip.there_ms, by)) return never_sent(result, sent, "batch");
  struct dibs__shim_before *before = dibs__shim_remember(ops, count);
  if (!before) {
    *result = (struct dibs__result){.sent = sent};
    dibs__set_message(result, "out of memory for the latency shim");
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = dibs__shim_run(session, ops, count, by, result);
  result->sent = sent;
  if (!sleep_latency(trip.back_ms, by) && status == DIBS_OK) {
    dibs__shim_drop_answers(before, ops, count);
    status = DIBS_UNKNOWN;
    dibs__set_message(result, "the latency shim: the deadline passed before the answers arrived");
  }
  dibs__shim_forget(before);
  return status;
}

static dibs__status latency_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                 struct dibs__result *result) {
  struct trip trip = trip_of((struct latency *)session->store);
  dibs__tick sent = dibs__tick_now();
  /* Rows are passed on as they come, so all of the latency comes before them. */
  if (!sleep_latency(trip.there_ms + trip.back_ms, by)) return never_sent(result, sent, "list");
  dibs__status status = dibs__shim_list(session, list, by, result);
  result->sent = sent;
  return status;
}

/* ---- Events ---- */

static void queue_event(struct latency *latency, struct dibs__event event, dibs__tick due) {
  if (latency->count == UNDER_WAY) {
    struct late_event *newest = &latency->under_way[(latency->first + latency->count - 1) % UNDER_WAY];
    newest->event = (struct dibs__event){.what = DIBS__EV_RECHECK};
    newest->due = due;
    return;
  }
  latency->under_way[(latency->first + latency->count++) % UNDER_WAY] = (struct late_event){event, due};
}

static size_t take_due_events(struct latency *latency, struct dibs__event *events, size_t cap) {
  dibs__tick now = dibs__tick_now();
  size_t got = 0;
  while (got < cap && latency->count > 0 && !dibs__tick_before(now, latency->under_way[latency->first].due)) {
    events[got++] = latency->under_way[latency->first].event;
    latency->first = (latency->first + 1) % UNDER_WAY;
    latency->count--;
  }
  return got;
}

/* The inner store sleeps, until the next event under way is due; so its wake() ends that sleep as well. */
static dibs__status latency_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by) {
  struct latency *latency = (struct latency *)store;
  if (latency->events_ms == 0) return dibs__shim_events(store, events, cap, count, by);
  for (;;) {
    *count = take_due_events(latency, events, cap);
    if (*count > 0 || cap == 0) return DIBS_OK;
    dibs__tick until = latency->count ? dibs__tick_min(by, latency->under_way[latency->first].due) : by;
    size_t got = 0;
    dibs__status status = dibs__shim_events(store, events, cap, &got, until);
    dibs__tick now = dibs__tick_now();
    for (size_t i = 0; i < got; i++) queue_event(latency, events[i], dibs__tick_add_ms(now, latency->events_ms));
    if (status != DIBS_OK || !dibs__tick_before(now, by)) {
      *count = take_due_events(latency, events, cap);
      return status;
    }
    /* The inner store may have been woken: certainly if it returned early without an event, and perhaps if it had
     * events, which are not due yet.  Returning without an event is always correct; sleeping on is not. */
    if (dibs__tick_before(now, until)) return DIBS_OK;
  }
}

static const char *const schemes[] = {"latency", NULL};

const struct dibs__driver dibs__latency_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "latency",
    .schemes = schemes,
    .inner_min = 1,
    .inner_max = 1,
    .open = latency_open,
    .close = dibs__shim_close,
    .connect = latency_connect,
    .disconnect = dibs__shim_disconnect,
    .run = latency_run,
    .events = latency_events,
    .wake = dibs__shim_wake,
    .list = latency_list,
    .tidy = dibs__shim_tidy,
};
