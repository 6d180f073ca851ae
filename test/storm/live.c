/* SPDX-License-Identifier: MIT */
/* One process of the storm. */
#include "storm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const storm_names[STORM_NAMES] = {"x0", "x1", "c"};

enum { TTL_MS = 400, WORK_MAX_MS = 3 };

struct worker {
  struct storm *storm;
  struct storm_log *log;
  dibs_store *store;
  uint64_t random;
  dibs__thread *thread;
};

uint64_t storm_draw(uint64_t *state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *state = x;
}

/* A process that is stopped in the middle of a transaction keeps the file: others may be told so, and nothing more. */
static void trouble(struct storm_log *log, const char *what, const dibs_error *error) {
  if (error->status == DIBS_UNKNOWN || error->status == DIBS_UNAVAILABLE) {
    atomic_fetch_add(&log->unsure, 1);
    return;
  }
  if (atomic_fetch_add(&log->trouble, 1) == 0)
    snprintf(log->words, sizeof log->words, "%s: %s: %.120s", what, dibs_status_name(error->status), error->text);
}

static struct storm_hold *hold_new(struct worker *w) {
  uint32_t at = atomic_fetch_add(&w->log->count, 1);
  return at < STORM_HOLDS ? &w->log->holds[at] : NULL;
}

/* What was surely held grows as far as alive() says. */
static bool still_mine(const dibs_lease *lease, struct storm_hold *hold) {
  int64_t now = dibs__tick_now().ns;
  if (!dibs_lease_alive(lease)) return false;
  atomic_store(&hold->until_ns, now);
  return true;
}

/* Seal, read, think, write one more. */
static void increment(struct worker *w, dibs_lease *lease) {
  dibs_error error;
  char *data, text[32];
  size_t length;
  dibs_status status = dibs_record_seal(w->store, "counter", lease, &data, &length, &error);
  if (status == DIBS_STALE || status == DIBS_LOST) return;
  if (status != DIBS_OK) {
    trouble(w->log, "seal", &error);
    return;
  }
  uint64_t value = data ? strtoull(data, NULL, 10) : 0;
  free(data);
  if (storm_draw(&w->random) % 4 == 0) dibs__nap_ms(1);
  snprintf(text, sizeof text, "%" PRIu64, value + 1);
  atomic_fetch_add(&w->log->tried, 1);
  status = dibs_record_save(w->store, "counter", lease, text, strlen(text), &error);
  if (status == DIBS_OK)
    atomic_fetch_add(&w->log->acknowledged, 1);
  else if (status == DIBS_STALE)
    atomic_fetch_add(&w->log->stale, 1);
  else
    trouble(w->log, "save", &error);
}

static void use(struct worker *w, dibs_lease *lease, struct storm_hold *hold) {
  dibs_error error;
  int64_t ms = (int64_t)(storm_draw(&w->random) % (WORK_MAX_MS + 1));
  still_mine(lease, hold);
  if (hold->name == 0 && hold->mode == DIBS_EXCLUSIVE) increment(w, lease);
  while (ms-- > 0 && still_mine(lease, hold)) dibs__nap_ms(1);
  still_mine(lease, hold);
  dibs_status status = dibs_release(lease, &error);
  if (status == DIBS_LOST)
    atomic_fetch_add(&w->log->lost, 1);
  else if (status != DIBS_OK)
    trouble(w->log, "release", &error);
  dibs_lease_free(lease);
}

static dibs_lease_options choose(struct worker *w, uint32_t *name) {
  uint64_t drawn = storm_draw(&w->random);
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = TTL_MS};
  *name = drawn % 10 < 6 ? 0 : drawn % 10 < 8 ? 1 : STORM_COUNTED;
  if (*name == STORM_COUNTED) {
    how.mode = DIBS_COUNTED;
    how.slots = STORM_SLOTS;
  } else if (drawn / 10 % 5 == 0) {
    how.mode = DIBS_SHARED;
  }
  uint64_t wait = drawn / 50 % 4;
  how.wait_ms = wait == 0 ? 0 : wait == 1 ? 20 : wait == 2 ? 2000 : DIBS_FOREVER;
  return how;
}

static void turn(struct worker *w) {
  dibs_error error;
  dibs_lease *lease;
  struct storm_hold *hold = hold_new(w);
  if (!hold) {
    dibs__nap_ms(10); /* the log is full; the storm is nearly over */
    return;
  }
  dibs_lease_options how = choose(w, &hold->name);
  hold->mode = (uint32_t)how.mode;
  hold->waits = how.wait_ms == DIBS_FOREVER;
  hold->asked_ns = dibs__tick_now().ns;
  dibs_status status = dibs_acquire(w->store, storm_names[hold->name], &how, &lease, &error);
  int64_t now = dibs__tick_now().ns;
  atomic_store(&hold->until_ns, now);
  if (status == DIBS_OK) {
    hold->fence = dibs_lease_fence(lease);
    /* A process that was stopped before this line may hold no more: then nothing was surely held. */
    hold->from_ns = dibs_lease_alive(lease) ? now : 0;
    use(w, lease, hold);
  } else if (status != DIBS_HELD && status != DIBS_TIMEOUT) {
    trouble(w->log, "acquire", &error);
  }
}

static void work(void *arg) {
  struct worker *w = arg;
  while (!atomic_load(&w->storm->over)) turn(w);
}

int storm_live(struct storm *storm, struct storm_log *log, const char *uri, uint32_t threads) {
  dibs_error error;
  dibs_store *store;
  struct worker workers[16] = {0};
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) {
    trouble(log, "open", &error);
    return 1;
  }
  for (uint32_t i = 0; i < threads && i < 16; i++) {
    uint64_t seed = (storm->seed + (uint64_t)log->began_ns) * 31 + i * UINT64_C(0x9e3779b97f4a7c15) + 1;
    workers[i] = (struct worker){storm, log, store, seed, NULL};
    workers[i].thread = dibs__thread_start("storm", work, &workers[i]);
  }
  for (uint32_t i = 0; i < threads && i < 16; i++) dibs__thread_join(workers[i].thread);
  dibs_close(store);
  return 0;
}
