/* SPDX-License-Identifier: MIT */
/*
 * The role of the receiver: one thread at a time that leads what nobody else leads, runs the room's timers, and sleeps
 * in the driver's events().  A thread that waits anyway takes it, so that a lone waiter is woken by the engine itself
 * and not by a second thread.  As soon as a second thread waits or something completes later, the service thread takes
 * the role for good; a waiting thread that has it keeps it until its own wait is over.
 *
 * Where several sessions can be busy at once, carriers lead in place of the service thread: what completes later must
 * not wait behind a slow batch on another session, nor must events and timers.
 */
#include "store/core_inside.h"

enum { EVENTS_AT_ONCE = 64 };

/* Leads on the seat that it was given, then on any that is free for what waits. */
static void carry(void *arg) {
  struct carrier *carrier = arg;
  struct dibs__core *core = carrier->core;
  dibs__mutex_lock(&core->lock);
  for (;;) {
    struct seat *seat = carrier->seat ? carrier->seat : dibs__seat_find_locked(core);
    carrier->seat = NULL;
    if (seat) {
      dibs__lead_locked(core, seat, NULL);
      dibs__mutex_lock(&core->lock);
      continue;
    }
    if (core->stopping) break;
    carrier->busy = false;
    uint32_t seen = atomic_load(&carrier->word);
    dibs__mutex_unlock(&core->lock);
    dibs__word_wait(&carrier->word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&core->lock);
  }
  dibs__mutex_unlock(&core->lock);
}

/* A carrier that takes the seat, to be woken; NULL: there is none to be had, or no need of one. */
static struct carrier *delegate_locked(struct dibs__core *core, struct seat *seat) {
  if (core->seat_count == 1 || !core->service) return NULL;
  for (size_t i = 0; i < SEATS_MAX; i++) {
    struct carrier *carrier = &core->carriers[i];
    if (carrier->busy) continue;
    carrier->core = core;
    carrier->seat = seat;
    carrier->busy = true;
    if (!carrier->thread) carrier->thread = dibs__thread_start("dibs-carrier", carry, carrier);
    if (carrier->thread) {
      seat->busy = true;
      atomic_fetch_add(&carrier->word, 1);
      return carrier;
    }
    carrier->seat = NULL;
    carrier->busy = false;
    return NULL;
  }
  return NULL;
}

static void lead_all(struct dibs__core *core) {
  for (;;) {
    dibs__mutex_lock(&core->lock);
    struct seat *seat = dibs__seat_find_locked(core);
    struct carrier *carrier = seat ? delegate_locked(core, seat) : NULL;
    if (seat && !carrier) {
      dibs__lead_locked(core, seat, NULL);
      continue;
    }
    dibs__mutex_unlock(&core->lock);
    if (!seat) return;
    dibs__word_wake(&carrier->word, 1, false);
  }
}

static uint64_t rouse_mark(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  uint64_t roused = core->roused;
  dibs__mutex_unlock(&core->lock);
  return roused;
}

/* Whether the receiver may sleep: nothing was roused since `mark`, nothing waits for a leader, the word stands. */
static bool may_sleep(struct dibs__core *core, uint64_t mark, dibs__word *word, uint32_t seen, dibs__tick *until) {
  dibs__mutex_lock(&core->lock);
  bool may = core->roused == mark && !dibs__seat_find_locked(core) && atomic_load(word) == seen && !core->stopping;
  *until = dibs__tick_min(*until, dibs__held_back_locked(core));
  core->asleep = may;
  core->asleep_until = *until;
  dibs__mutex_unlock(&core->lock);
  return may;
}

/* One turn of the receiver: comes back when *word changed, something happened, or `by`. */
static void receive(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  struct dibs__event events[EVENTS_AT_ONCE];
  size_t count = 0;
  uint64_t mark = rouse_mark(core);
  lead_all(core);
  dibs__tick due = core->hooks.timers(core->hooks.room, dibs__tick_now());
  lead_all(core); /* what the timers began */
  due = dibs__tick_min(due, by);
  if (!may_sleep(core, mark, word, seen, &due)) return;
  dibs__status status = core->store->driver->events(core->store, events, EVENTS_AT_ONCE, &count, due);
  dibs__mutex_lock(&core->lock);
  core->asleep = false;
  dibs__mutex_unlock(&core->lock);
  if (status != DIBS_OK) dibs__word_wait(word, seen, dibs__tick_add_ms(dibs__tick_now(), RETRY_MIN_MS), false);
  for (size_t i = 0; i < count; i++) core->hooks.event(core->hooks.room, &events[i]);
  lead_all(core);
}

static void serve(void *arg) {
  struct dibs__core *core = arg;
  dibs__mutex_lock(&core->lock);
  while (!core->stopping) {
    uint32_t seen = atomic_load(&core->service_word);
    dibs__word *other = atomic_load(&core->receiver);
    if (!other) atomic_store(&core->receiver, &core->service_word);
    dibs__mutex_unlock(&core->lock);
    if (other && other != &core->service_word)
      dibs__word_wait(&core->service_word, seen, DIBS__TICK_NEVER, false);
    else
      receive(core, &core->service_word, seen, DIBS__TICK_NEVER);
    dibs__mutex_lock(&core->lock);
  }
  atomic_store(&core->receiver, NULL);
  dibs__mutex_unlock(&core->lock);
}

static bool serve_locked(struct dibs__core *core) {
  if (core->service || core->stopping) return core->service != NULL;
  core->service = dibs__thread_start("dibs-service", serve, core);
  return core->service != NULL;
}

bool dibs__core_serve(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  bool serves = serve_locked(core);
  dibs__mutex_unlock(&core->lock);
  return serves;
}

static bool rouse_locked(struct dibs__core *core, dibs__tick due) {
  bool wake = core->asleep && dibs__tick_before(due, core->asleep_until);
  if (wake) core->asleep = false;
  core->roused++;
  return wake;
}

void dibs__service_rouse(struct dibs__core *core, dibs__tick due) {
  dibs__mutex_lock(&core->lock);
  bool wake = rouse_locked(core, due);
  bool alone = !atomic_load(&core->receiver) && !serve_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
  if (alone) lead_all(core); /* no thread is to be had: whoever came leads */
}

void dibs__core_rouse(struct dibs__core *core, dibs__tick due) {
  dibs__mutex_lock(&core->lock);
  bool wake = rouse_locked(core, due);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
}

void dibs__core_wake(struct dibs__core *core, dibs__word *word) {
  /* The word was changed before.  Either we see that it is the receiver, or it becomes so later and looks at the word
   * before it sleeps. */
  if (atomic_load(&core->receiver) == word)
    core->store->driver->wake(core->store);
  else
    dibs__word_wake(word, 1, false);
}

static void wait_as_receiver(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  while (atomic_load(word) == seen && dibs__tick_before(dibs__tick_now(), by)) receive(core, word, seen, by);
  dibs__mutex_lock(&core->lock);
  atomic_store(&core->receiver, NULL);
  bool service = core->service != NULL;
  if (service) atomic_fetch_add(&core->service_word, 1);
  dibs__mutex_unlock(&core->lock);
  if (service) dibs__word_wake(&core->service_word, 1, false);
}

void dibs__core_wait(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  dibs__mutex_lock(&core->lock);
  if (!core->service && !atomic_load(&core->receiver)) {
    atomic_store(&core->receiver, word);
    dibs__mutex_unlock(&core->lock);
    wait_as_receiver(core, word, seen, by);
    return;
  }
  /* Two wait: from now on neither may be the one that the other depends on.  If there is no thread to be had they must
   * be: when the first leaves, another takes the role at its next look. */
  if (!serve_locked(core)) by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), RETRY_MIN_MS));
  /* What an event loop left to be carried at its end must not wait for a wait in the middle of it. */
  bool wake = dibs__seat_find_locked(core) && rouse_locked(core, DIBS__TICK_ZERO);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
  while (atomic_load(word) == seen)
    if (!dibs__word_wait(word, seen, by, false)) return;
}

void dibs__core_stop(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  core->stopping = true;
  dibs__thread *service = core->service;
  atomic_fetch_add(&core->service_word, 1);
  dibs__mutex_unlock(&core->lock);
  dibs__word_wake(&core->service_word, 1, false);
  core->store->driver->wake(core->store);
  dibs__thread_join(service);
  for (size_t i = 0; i < SEATS_MAX; i++) {
    struct carrier *carrier = &core->carriers[i];
    atomic_fetch_add(&carrier->word, 1);
    dibs__word_wake(&carrier->word, 1, false);
    dibs__thread_join(carrier->thread);
    carrier->thread = NULL;
  }
  dibs__mutex_lock(&core->lock);
  core->service = NULL;
  dibs__mutex_unlock(&core->lock);
}
