/* SPDX-License-Identifier: MIT */
/* Work that a decision under the lock leaves for later: requests to carry, threads to wake.  Callbacks.  The threads
 * that renew, and that notice losses. */
#include "lease/lease_impl.h"

#include <stdlib.h>

static void append_op(struct dibs__op **first, struct dibs__op **last, struct dibs__op *op) {
  op->next = NULL;
  if (*last)
    (*last)->next = op;
  else
    *first = op;
  *last = op;
}

void dibs__deferred_mine(struct deferred *deferred, struct dibs__op *op) {
  append_op(&deferred->mine, &deferred->mine_last, op);
}

void dibs__deferred_finish(struct deferred *deferred, struct dibs__op *op) {
  append_op(&deferred->rest, &deferred->rest_last, op);
}

void dibs__deferred_wake(dibs_store *store, struct deferred *deferred, dibs__word *word) {
  atomic_fetch_add(word, 1);
  if (deferred->wake_count < WAKES_MAX)
    deferred->wakes[deferred->wake_count++] = word;
  else
    dibs__core_wake(store->core, word); /* too many to note: wake under the lock, which is slower but correct */
}

void dibs__deferred_tell(struct deferred *deferred, dibs_lease *lease) {
  /* Race: a caller reads the lease, this thread raises the word, the caller goes to sleep.  Closed by the order: the
   * caller counts itself before the kernel compares the word, and the word is raised before the count is read. */
  atomic_fetch_add(&lease->word, 1);
  if (atomic_load(&lease->sleepers) > 0) dibs__deferred_wake(lease->store, deferred, &lease->word);
}

bool dibs__lease_sleep(dibs_lease *lease, uint32_t seen, dibs__tick by) {
  dibs__batch_flush(lease->store);
  atomic_fetch_add(&lease->sleepers, 1);
  bool in_time = dibs__word_wait(&lease->word, seen, by, false);
  atomic_fetch_sub(&lease->sleepers, 1);
  return in_time;
}

bool dibs__deferred(dibs_store *store, struct deferred *deferred, dibs__tick by) {
  bool answered = true;
  for (uint32_t i = 0; i < deferred->wake_count; i++) dibs__core_wake(store->core, deferred->wakes[i]);
  dibs__start(store, deferred->rest);
  dibs__calls_handed(store);
  if (deferred->mine) answered = dibs__core_run(store->core, deferred->mine, by);
  *deferred = (struct deferred){0};
  return answered;
}

static void finish(dibs_store *store, struct deferred *deferred, void (*start)(dibs_store *store, struct dibs__op *)) {
  for (uint32_t i = 0; i < deferred->wake_count; i++) dibs__core_wake(store->core, deferred->wakes[i]);
  start(store, deferred->mine);
  start(store, deferred->rest);
  if (deferred->due.ns != 0) dibs__core_rouse(store->core, deferred->due);
  *deferred = (struct deferred){0};
}

void dibs__deferred_start(dibs_store *store, struct deferred *deferred) {
  finish(store, deferred, dibs__start);
  dibs__calls_handed(store);
}

/* Not left for the end of a batch: a callback may be in the middle of it, and have received the answer itself. */
static void start_now(dibs_store *store, struct dibs__op *list) {
  if (list) dibs__core_start(store->core, list);
}

void dibs__deferred_answer(dibs_store *store, struct deferred *deferred) {
  finish(store, deferred, start_now);
}

static struct renewal **find_done_renewal_locked(dibs_lease *lease) {
  struct renewal **at = &lease->renewals;
  while (*at && ((*at)->state != RENEWAL_DONE || (*at)->blocking)) at = &(*at)->next;
  return at;
}

struct call {
  dibs_lease_fn fn; /* NULL: none */
  void *user;
  dibs_status status;
  const char *doing;
};

/* A started renewal that is done, taken out of its list. */
static struct call take_renewed_locked(dibs_lease *lease) {
  struct renewal **at = find_done_renewal_locked(lease), *renewal = *at;
  if (!renewal) return (struct call){.fn = NULL};
  struct call call = {renewal->done, renewal->user, renewal->status, "renewing"};
  *at = renewal->next;
  free(renewal);
  if (*find_done_renewal_locked(lease)) lease->calls |= CALL_RENEWED;
  return call;
}

/* The first that is due: granted first, also when lost since. */
static struct call take_call_locked(dibs_lease *lease) {
  uint32_t first = lease->calls & (0 - lease->calls);
  lease->calls &= ~first;
  if (first == CALL_GRANTED) return (struct call){lease->done, lease->done_user, lease->waited, "acquiring"};
  if (first == CALL_RENEWED) return take_renewed_locked(lease);
  if (first == CALL_RELEASED)
    return (struct call){lease->release_done, lease->release_user, lease->released, "releasing"};
  /* Checked as late as here: an earlier callback may have freed the last handle, and with it what on_lost uses. */
  bool has_handle = atomic_load(&lease->handles) > 0;
  return (struct call){has_handle ? lease->on_lost : NULL, lease->lost_user, DIBS_LOST, "holding"};
}

/* The text is that of the blocking call, except what that call would read from the store. */
static void call_with_error(dibs_lease *lease, const struct call *call) {
  dibs_error error;
  if (call->status == DIBS_OK)
    dibs__fine(&error);
  else if (call->status == DIBS_INVALID)
    dibs__held_otherwise(lease, (struct held_as){0}, &error);
  else
    dibs__explain(lease->store, call->status, call->doing, lease->name, &error);
  call->fn(lease, call->status, &error, call->user);
}

/* One callback: it may dispatch until the next one of this lease has come. */
static bool call_lease_locked(dibs_store *store, struct dibs__due_call *due) {
  dibs_lease *lease = (dibs_lease *)((char *)due - offsetof(dibs_lease, due));
  struct call call = take_call_locked(lease);
  if (lease->calls != 0) {
    dibs__lease_hold(lease);
    dibs__calls_again_locked(store, due);
  }
  if (call.fn) {
    dibs__mutex_unlock(&store->lock);
    call_with_error(lease, &call);
    dibs__mutex_lock(&store->lock);
  }
  dibs__lease_drop_locked(lease);
  return call.fn != NULL;
}

void dibs__call_locked(dibs_lease *lease, uint32_t call) {
  bool queued = lease->calls != 0;
  lease->calls |= call;
  if (queued) return;
  dibs__lease_hold(lease);
  lease->due.run_locked = call_lease_locked;
  dibs__calls_queue_locked(lease->store, &lease->due);
}

/*
 * Two threads a store, started with its first held lease.  The watchdog renews everything that is due in one batch, at
 * a third of the ttl, and does the engine's housekeeping.  The loss timer only reads the clock, so that a
 * watchdog that is stuck in a dead network can't hide a loss.
 *
 * A lease that is over in a moment costs one thread, not three: the loss timer starts the watchdog when the first
 * renewal is due, and has the store served when a lease with on_lost has been held for SERVE_MS.
 *
 * One connection that hangs must not cost other leases: if the watchdog does not come back in STUCK_MS, the loss timer
 * starts the renewals that become due meanwhile, which the core carries on another connection.
 *
 * Both sleep at most a second while a lease is held: a futex sleeps by a clock that stops while the machine
 * is suspended, and new leases, which end later than that, need not wake them.
 */

enum { LOOK_MS = 1000, SERVE_MS = 20, AGAIN_MS = 20, STUCK_MS = 20 };

static void run_watchdog(void *arg);
static struct dibs__op *due_renewals_locked(dibs_store *store, dibs__tick now, dibs__tick *by, bool *begun);

static dibs__thread *start_watchdog_locked(dibs_store *store) {
  if (!store->leases->watchdog) store->leases->watchdog = dibs__thread_start("dibs-watchdog", run_watchdog, store);
  return store->leases->watchdog;
}

/* When the loss timer must see to a renewal that is due at `at`: there is no watchdog yet, or it does not come back. */
static dibs__tick help_at_locked(const dibs_store *store, dibs__tick at) {
  dibs__tick stuck_at = store->leases->stuck_at;
  if (!store->leases->watchdog) return at;
  if (stuck_at.ns == 0) return DIBS__TICK_NEVER;
  return dibs__tick_before(at, stuck_at) ? stuck_at : at;
}

/* When the loss timer must start another thread, or renewals. */
static dibs__tick helpers_due_locked(dibs_store *store, dibs__tick now) {
  struct dibs__heap_node *renewal = dibs__heap_first(&store->leases->renewals);
  dibs__tick due = store->leases->serve_at.ns ? store->leases->serve_at : DIBS__TICK_NEVER;
  if (renewal) due = dibs__tick_min(due, help_at_locked(store, renewal->at));
  if (store->calls.first && !dibs__calls_ready_locked(store)) due = DIBS__TICK_ZERO;
  struct dibs__heap_node *wait = store->leases->leaving ? dibs__heap_first(&store->leases->waits) : NULL;
  if (wait) due = dibs__tick_min(due, wait->at);
  if (store->leases->lines_at.ns) due = dibs__tick_min(due, store->leases->lines_at);
  /* If no thread could be started just now: not again at once. */
  return dibs__tick_before(due, now) ? dibs__tick_add_ms(now, AGAIN_MS) : due;
}

static void start_helpers_locked(dibs_store *store, dibs__tick now) {
  struct dibs__heap_node *renewal = dibs__heap_first(&store->leases->renewals);
  if (renewal && !dibs__tick_before(now, renewal->at)) start_watchdog_locked(store);
  if (store->leases->serve_at.ns == 0 || dibs__tick_before(now, store->leases->serve_at)) return;
  store->leases->serve_at = DIBS__TICK_ZERO;
  dibs__core_serve(store->core);
}

/* true: a renewal that is due was begun before, and may not be sent yet. */
static bool renew_for_watchdog_locked(dibs_store *store, dibs__tick now, struct deferred *deferred) {
  dibs__tick stuck_at = store->leases->stuck_at, by;
  bool begun;
  if (stuck_at.ns == 0 || dibs__tick_before(now, stuck_at)) return false;
  for (struct dibs__op *op = due_renewals_locked(store, now, &by, &begun), *next; op; op = next) {
    next = op->next;
    dibs__deferred_finish(deferred, op);
  }
  return begun;
}

static void do_due_of_loss_timer(dibs_store *store, dibs__tick now) {
  struct deferred deferred = {0};
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->leases->losses)) && !dibs__tick_before(now, node->at))
    dibs__lose_locked((struct grant *)((char *)node - offsetof(struct grant, loss)), &deferred);
  bool begun = renew_for_watchdog_locked(store, now, &deferred);
  if (store->leases->leaving) dibs__end_waits_locked(store, now, &deferred);
  if (store->leases->lines_at.ns && !dibs__tick_before(now, store->leases->lines_at))
    dibs__lines_publish_locked(store, now, &deferred);
  dibs__mutex_unlock(&store->lock);
  if (begun) dibs__batch_flush(store);
  dibs__deferred_start(store, &deferred);
  dibs__mutex_lock(&store->lock);
}

/* How long to sleep: to the first in the heap, a second at most; for ever if the last second was idle too. */
static dibs__tick next_check(const struct dibs__heap *heap, dibs__tick now, bool *idle) {
  struct dibs__heap_node *first = dibs__heap_first(heap);
  dibs__tick at = dibs__tick_add_ms(now, LOOK_MS);
  if (first) {
    *idle = false;
    return dibs__tick_min(at, first->at);
  }
  if (*idle) return DIBS__TICK_NEVER;
  *idle = true;
  return at;
}

static void run_loss_timer(void *arg) {
  dibs_store *store = arg;
  bool idle = false;
  dibs__mutex_lock(&store->lock);
  while (!store->leases->stopping) {
    dibs__tick now = dibs__tick_now();
    uint32_t seen =
        atomic_load(&store->leases->loss_word); /* before the lock is released: dibs__watch_stop may run there */
    do_due_of_loss_timer(store, now);
    start_helpers_locked(store, now);
    dibs__tick until = dibs__tick_min(next_check(&store->leases->losses, now, &idle), helpers_due_locked(store, now));
    store->leases->loss_until = until;
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&store->leases->loss_word, seen, until, false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

/* Everything that is due, and what would be soon: one transaction a round, not one a lease.  *begun: the request of
 * another grant that is due has been begun before, and may not be sent yet. */
static struct dibs__op *due_renewals_locked(dibs_store *store, dibs__tick now, dibs__tick *by, bool *begun) {
  struct dibs__op *first = NULL, **end = &first;
  struct dibs__heap_node *node;
  *by = DIBS__TICK_NEVER;
  bool any = *begun = false;
  while ((node = dibs__heap_first(&store->leases->renewals))) {
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, renewal));
    dibs__tick from = any ? dibs__tick_add_ms(now, grant->ttl_ms / 12) : now;
    if (dibs__tick_before(from, node->at)) break;
    dibs__heap_remove(&store->leases->renewals, node);
    *begun = *begun || grant->requested != REQUEST_NOTHING;
    if (grant->requested != REQUEST_NOTHING) continue; /* its answer sets the timer again */
    any = true;
    bool line = grant->cohort && grant->cohort->first && !grant->shown;
    *end = dibs__send_renew_locked(grant, grant->lease->ttl_ms, line ? RUN_MAX : 0);
    *by = dibs__tick_min(*by, (*end)->by);
    end = &(*end)->next;
  }
  return first;
}

static void watchdog_leaves_locked(dibs_store *store, dibs__tick now) {
  const struct dibs__heap_node *next = dibs__heap_first(&store->leases->renewals);
  store->leases->stuck_at = dibs__tick_add_ms(now, STUCK_MS);
  if (next) dibs__watch_by_locked(store, help_at_locked(store, next->at));
}

static void run_watchdog(void *arg) {
  dibs_store *store = arg;
  bool idle = false, slept_out = false; /* it slept to the end: housekeeping, after the renewals that woke it */
  dibs__mutex_lock(&store->lock);
  while (!store->leases->stopping) {
    dibs__tick now = dibs__tick_now(), by;
    bool begun;
    struct dibs__op *due = due_renewals_locked(store, now, &by, &begun);
    bool untidy = store->leases->untidy || slept_out;
    store->leases->untidy = slept_out = false;
    if (due || untidy || begun) {
      watchdog_leaves_locked(store, now);
      dibs__mutex_unlock(&store->lock);
      if (begun) dibs__batch_flush(store);
      if (due) dibs__core_run(store->core, due, dibs__tick_add_ms(by, 5));
      if (untidy && dibs__core_tidy(store->core)) idle = false;
      dibs__mutex_lock(&store->lock);
      store->leases->stuck_at = DIBS__TICK_ZERO;
      continue;
    }
    uint32_t seen = atomic_load(&store->leases->watchdog_word);
    dibs__tick until = store->leases->watchdog_until = next_check(&store->leases->renewals, now, &idle);
    dibs__mutex_unlock(&store->lock);
    slept_out = !dibs__word_wait(&store->leases->watchdog_word, seen, until, false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

static void rouse_thread(dibs__word *word) {
  atomic_fetch_add(word, 1);
  dibs__word_wake(word, 1, false);
}

bool dibs__watch_ready_locked(dibs_store *store) {
  if (!store->leases->loss_timer) store->leases->loss_timer = dibs__thread_start("dibs-loss", run_loss_timer, store);
  return store->leases->loss_timer != NULL;
}

void dibs__watch_help_locked(dibs_store *store) {
  rouse_thread(&store->leases->loss_word);
}

void dibs__watch_loss_locked(struct grant *grant) {
  dibs_store *store = grant->store;
  dibs__heap_set(&store->leases->losses, &grant->loss, grant->until);
  if (dibs__tick_before(grant->until, store->leases->loss_until)) {
    store->leases->loss_until = grant->until;
    rouse_thread(&store->leases->loss_word);
  }
}

void dibs__watch_by_locked(dibs_store *store, dibs__tick by) {
  if (!dibs__tick_before(by, store->leases->loss_until)) return;
  store->leases->loss_until = by;
  rouse_thread(&store->leases->loss_word);
}

void dibs__watch_events_locked(dibs_lease *lease) {
  dibs_store *store = lease->store;
  if (!lease->on_lost || store->leases->served || !(dibs__core_caps(store->core) & DIBS__CAP_EVENTS)) return;
  store->leases->served = true;
  store->leases->serve_at = dibs__tick_add_ms(dibs__tick_now(), SERVE_MS);
  rouse_thread(&store->leases->loss_word);
}

/* After a failed renewal: a twelfth of the ttl, or less if the end is near.  Of the lease's own ttl: the request that
 * failed may have named another one. */
static int64_t retry_in_ms(const struct grant *grant, dibs__tick now) {
  int64_t pause = grant->lease->ttl_ms / 12, quarter = dibs__tick_left_ms(now, grant->until) / 4;
  if (quarter < pause) pause = quarter;
  return pause > AGAIN_MS ? pause : AGAIN_MS;
}

static void renew_at_locked(struct grant *grant, dibs__tick at) {
  dibs_store *store = grant->store;
  dibs__heap_set(&store->leases->renewals, &grant->renewal, at);
  dibs__watch_by_locked(store, help_at_locked(store, at));
  if (store->leases->watchdog && dibs__tick_before(at, store->leases->watchdog_until)) {
    store->leases->watchdog_until = at;
    rouse_thread(&store->leases->watchdog_word);
  }
}

void dibs__renew_soon_locked(struct grant *grant) {
  renew_at_locked(grant, dibs__tick_add_ms(dibs__tick_now(), SERVE_MS));
}

void dibs__watch_locked(struct grant *grant) {
  dibs_lease *lease = grant->lease;
  dibs__watch_loss_locked(grant);
  dibs__watch_events_locked(lease);
  if (lease->flags & DIBS_NO_RENEW) return;
  int64_t pause = grant->unconfirmed ? CONFIRM_MS : grant->ttl_ms / 3;
  dibs__tick at = dibs__tick_add_ms(grant->unconfirmed ? dibs__tick_now() : grant->op.op.sent, pause);
  if (grant->fails > 0) at = dibs__tick_add_ms(dibs__tick_now(), retry_in_ms(grant, dibs__tick_now()));
  renew_at_locked(grant, at);
}

void dibs__unwatch_locked(struct grant *grant) {
  dibs__heap_remove(&grant->store->leases->losses, &grant->loss);
  dibs__heap_remove(&grant->store->leases->renewals, &grant->renewal);
}

void dibs__lease_untidy(void *context) {
  dibs_store *store = context;
  dibs__mutex_lock(&store->lock);
  bool first = !store->leases->untidy;
  store->leases->untidy = true;
  if (!store->leases->stopping) start_watchdog_locked(store);
  dibs__mutex_unlock(&store->lock);
  if (first) rouse_thread(&store->leases->watchdog_word);
}

void dibs__watch_stop(dibs_store *store) {
  dibs__mutex_lock(&store->lock);
  store->leases->stopping = true;
  dibs__mutex_unlock(&store->lock);
  rouse_thread(&store->leases->watchdog_word);
  rouse_thread(&store->leases->loss_word);
  dibs__thread_join(store->leases->watchdog);
  dibs__thread_join(store->leases->loss_timer);
  store->leases->watchdog = store->leases->loss_timer = NULL;
}
