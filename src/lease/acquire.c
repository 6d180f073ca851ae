/* SPDX-License-Identifier: MIT */
/*
 * Requests to the store, and the effect of their answers.  The thread that carried a request delivers its answer, with
 * no lock held.  If the caller has left in the meantime (phase OVER), the answer gives back what the store granted.
 */
#include "lease/lease_impl.h"

#include <assert.h>
#include <string.h>

static void request_answered(struct dibs__op *op);

static struct dibs__op *send_request_locked(struct grant *grant, enum requested requested, uint16_t verb,
                                            uint16_t flags) {
  struct dibs__lease_op *op = &grant->op;
  dibs__mandate mandate = op->op.mandate;
  assert(grant->requested == REQUEST_NOTHING);
  grant->requester = grant->lease;
  dibs__lease_hold(grant->requester);
  op->name = dibs__str_of(grant->requester->name, strlen(grant->requester->name));
  if (grant->adopted) flags |= DIBS__OP_FOLLOWS;
  dibs__core_head(grant->store->core, &op->op, DIBS__FAM_LEASE, verb, flags, dibs__bucket(op->name), request_answered);
  op->op.mandate = mandate;
  op->ahead = 0; /* not every driver answers it */
  grant->requested = requested;
  grant->store->in_flight++;
  return &op->op;
}

struct dibs__op *dibs__send_acquire_locked(struct grant *grant) {
  dibs_lease *lease = grant->lease;
  struct dibs__lease_op *op = &grant->op;
  const char *owner = lease->owner ? lease->owner : grant->store->owner;
  uint16_t flags = DIBS__OP_FOLLOWS;
  if (grant->waits) flags |= DIBS__OP_URGENT; /* a confirm */
  op->owner = dibs__str_of(owner, strlen(owner));
  op->mode = lease->mode;
  op->slots = lease->slots;
  op->queue = !lease->tries;
  op->want_block = grant->cohort && grant->cohort->first ? RUN_MAX : 1;
  grant->ttl_ms = lease->ttl_ms + (op->want_block > 1 ? RUN_EXTRA_MS : 0);
  op->ttl_ms = (uint32_t)grant->ttl_ms;
  grant->again = false;
  return send_request_locked(grant, REQUEST_ACQUIRE, DIBS__ACQUIRE, flags);
}

static void set_until_locked(struct grant *grant, dibs__tick until) {
  grant->until = until;
  if (!grant_parked(grant) && atomic_load(&grant->lease->phase) == LEASE_HELD)
    atomic_store(&grant->lease->until_ns, until.ns);
}

/* A renewal for less time than the grant has: the store may shorten it as soon as the request is sent, whether or not
 * the answer arrives. */
static void shorten_until_locked(struct grant *grant, dibs__tick now) {
  dibs__tick until = dibs__sure_until(now, grant->ttl_ms);
  grant->until_else = grant->until;
  if (!grant->held || !dibs__tick_before(until, grant->until)) return;
  set_until_locked(grant, until);
  dibs__watch_loss_locked(grant);
}

struct dibs__op *dibs__send_renew_locked(struct grant *grant, int64_t ttl_ms, uint32_t want_block) {
  dibs__tick now = dibs__tick_now();
  grant->ttl_ms = ttl_ms + (want_block > 0 ? RUN_EXTRA_MS : 0);
  grant->op.ttl_ms = (uint32_t)grant->ttl_ms;
  grant->op.fence = grant->fence;
  grant->op.want_block = want_block;
  shorten_until_locked(grant, now);
  struct dibs__op *op = send_request_locked(grant, REQUEST_RENEW, DIBS__RENEW, DIBS__OP_URGENT);
  /* Half of what remains, so that there is time for a second try. */
  int64_t half = dibs__tick_left_ms(now, grant->until) / 2;
  if (grant->held) op->by = dibs__tick_min(op->by, dibs__tick_add_ms(now, half > 0 ? half : 1));
  return op;
}

/* An unconfirmed grant may still be an offer, or may be asleep by then: a cancel removes it in each case. */
struct dibs__op *dibs__send_release_locked(struct grant *grant) {
  grant->op.fence = grant->fence;
  bool by_id = grant->adopted && grant->fence.v == 0; /* a release names the fence, which is not known yet */
  grant->op.only_waits = grant->lease->id_shared && !by_id;
  if (grant->unconfirmed || by_id) return send_request_locked(grant, REQUEST_RELEASE, DIBS__CANCEL, DIBS__OP_URGENT);
  return send_request_locked(grant, REQUEST_RELEASE, DIBS__RELEASE, DIBS__OP_URGENT);
}

/* After a try that found its id in the queue, the id may have been granted to another process by now. */
struct dibs__op *dibs__send_cancel_locked(struct grant *grant) {
  grant->op.only_waits = grant->lease->id_shared || grant->lease->waited == DIBS_HELD;
  return send_request_locked(grant, REQUEST_CANCEL, DIBS__CANCEL, DIBS__OP_URGENT);
}

/* The store granted or renewed it: before the returned instant it is surely ours.  The one place that sets a deadline
 * from an answer.
 *
 * The remaining time counts from before the request was sent, less the margin.  It is the time that the store reports,
 * never a ttl that the store did not grant: a repeated request, of which the first answer was lost, finds the first
 * grant, and the end of that grant does not move. */
static dibs__tick sure_until_of_answer(struct grant *grant) {
  int64_t left_ms = grant->op.until.ms - grant->op.op.at.ms;
  if (left_ms < 0) left_ms = 0;
  grant->store_until = dibs__tick_add_ms(dibs__tick_now(), left_ms);
  if (left_ms < grant->ttl_ms) grant->ttl_ms = left_ms;
  return dibs__sure_until(grant->op.op.sent, grant->ttl_ms);
}

static bool is_past(dibs__tick until) {
  return !dibs__tick_before(dibs__tick_now(), until);
}

/* The grant was never made, or has lost its position in the queue. */
static void grant_ended_locked(struct grant *grant, dibs_status status, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  grant->waits = grant->held = false;
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
  if (atomic_load(&lease->phase) < LEASE_HELD && !lease_left(lease)) dibs__wait_over_locked(lease, status, deferred);
  dibs__grant_end_locked(grant, deferred);
}

/* A repeated request finds the first grant, also if it names another mode: a reader's grant is no exclusive lease.
 */
static bool is_granted_otherwise(const struct grant *grant) {
  return grant->lease->own_id && (grant->lease->mode == DIBS_EXCLUSIVE) != (grant->op.fence.v != 0);
}

/* Its caller left.  Did it learn that it may have the grant, or has another caller the same id?  Then a repeat of the
 * request must find the grant. */
static bool may_be_repeated(const dibs_lease *lease) {
  dibs_status answer = atomic_load(&lease->phase) == LEASE_OVER ? lease->status : lease->leaves;
  return lease->own_id && (answer == DIBS_UNKNOWN || lease->id_shared);
}

static void granted_locked(struct grant *grant, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  if (is_granted_otherwise(grant)) { /* the grant stays: its id has it */
    grant_ended_locked(grant, DIBS_INVALID, deferred);
    return;
  }
  grant->waits = false;
  grant->op.ticket = 0;
  grant->slot = grant->op.slot;
  grant->tier = grant->op.tier;
  if (atomic_load(&lease->phase) < LEASE_HELD && !lease_left(lease)) {
    dibs__tick until = sure_until_of_answer(grant);
    if (!is_past(until)) {
      dibs__hold_locked(grant, grant->op.fence, grant->op.got_block, until, deferred);
      return;
    }
    /* Less than the margin is left: nearly all of an earlier grant's time has passed, or the answer took as long as the
     * lease lasts.  It is renewed before the caller gets it. */
    grant->fence = grant->op.fence;
    grant->left = grant->op.got_block;
    dibs__deferred_finish(deferred, dibs__send_renew_locked(grant, lease->ttl_ms, 0));
    return;
  }
  grant->held = true;
  grant->fence = grant->op.fence;
  if (may_be_repeated(lease))
    dibs__grant_end_locked(grant, deferred);
  else
    dibs__give_up_locked(grant, deferred, false);
}

/* A waiter repeats its request at the end of the holder or offer, and at least each second: a lost notification delays
 * it, and never hangs it.  A waiter far from the front leaves the end of the holder to those before it, and repeats
 * at random, so that thousands do not come together. */
static int64_t recheck_in_ms(const struct dibs__lease_op *op) {
  if (op->ahead >= AHEAD_FAR) {
    uint32_t draw;
    dibs__random(&draw, sizeof draw);
    return RECHECK_FAR_MS / 2 + (int64_t)(draw % (RECHECK_FAR_MS / 2 + 1));
  }
  int64_t in_ms = op->recheck.ms - op->op.at.ms + 1;
  if (op->recheck.ms == 0 || in_ms > RECHECK_MS) return RECHECK_MS;
  return in_ms > 1 ? in_ms : 1;
}

static void queued_locked(struct grant *grant, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  dibs_store *store = grant->store;
  grant->waits = true;
  grant->fails = 0;
  if (lease_left(lease)) {
    dibs__give_up_locked(grant, deferred, false);
    return;
  }
  if (lease->tries) { /* its id waits since another request, perhaps of another process; a try must not wait */
    if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
    dibs__wait_over_locked(lease, DIBS_HELD, deferred);
    dibs__give_up_locked(grant, deferred, false);
    return;
  }
  if (atomic_load(&lease->phase) == LEASE_REQUESTING) atomic_store(&lease->phase, LEASE_QUEUED);
  if (grant->again) {
    dibs__deferred_finish(deferred, dibs__send_acquire_locked(grant));
    return;
  }
  dibs__tick at = dibs__tick_add_ms(dibs__tick_now(), recheck_in_ms(&grant->op));
  dibs__heap_set(&store->leases->rechecks, &grant->recheck, at);
  deferred->due = at;
}

/* Within the wait an unreachable store may return, and a full server may have a connection again.  Nothing
 * happens twice: the id is the same.  The pause is random, so that waiters do not retry in step. */
static void send_later_locked(struct grant *grant, struct deferred *deferred) {
  int64_t pause = RETRY_FIRST_MS;
  uint32_t draw;
  for (uint32_t i = 0; i < grant->fails && pause < RECHECK_MS; i++) pause *= 2;
  if (pause > RECHECK_MS) pause = RECHECK_MS;
  dibs__random(&draw, sizeof draw);
  if (grant->fails < UINT32_MAX) grant->fails++;
  deferred->due = dibs__tick_add_ms(dibs__tick_now(), pause / 2 + (int64_t)(draw % (uint32_t)(pause / 2 + 1)));
  dibs__heap_set(&grant->store->leases->rechecks, &grant->recheck, deferred->due);
}

static void acquire_trouble_locked(struct grant *grant, dibs__status status, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  bool left = lease_left(lease);
  if (status == DIBS_UNKNOWN && lease->leaves == DIBS_TIMEOUT) lease->leaves = DIBS_UNKNOWN; /* it may be granted */
  /* It was not sent in time: a caller without a wait of its own gets its answer now. */
  if (status == DIBS__MOVED || (status == DIBS_TIMEOUT && (lease->tries || lease->wait.at.ns == INT64_MAX)))
    status = DIBS_UNAVAILABLE;
  bool passing = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_TIMEOUT;
  if (passing && !left && !grant->store->closing && !lease->tries) {
    if (status == DIBS_UNKNOWN)
      grant->waits = true; /* it may have a position or the lease, which a cancel removes if the caller leaves */
    send_later_locked(grant, deferred);
    return;
  }
  bool may_have = status == DIBS_UNKNOWN || (passing && left && grant->waits);
  if (may_have && (left ? !may_be_repeated(lease) : !lease->own_id)) { /* nobody repeats this id: remove what it has */
    grant->waits = true;
    if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
    if (!left) dibs__wait_over_locked(lease, DIBS_UNKNOWN, deferred);
    dibs__give_up_locked(grant, deferred, false);
    return;
  }
  grant_ended_locked(grant, (dibs_status)status, deferred);
}

static void acquire_answered_locked(struct grant *grant, struct deferred *deferred) {
  dibs__status status = grant->op.op.status;
  grant->adopted = false;
  if (status == DIBS_OK)
    granted_locked(grant, deferred);
  else if (status == DIBS__QUEUED)
    queued_locked(grant, deferred);
  else
    acquire_trouble_locked(grant, status, deferred);
}

/* An adopted grant of which only the id was known: the answer has its fences.  It gets the last one of the block: the
 * process that acquired it may have given the earlier ones to other leases, and released those (cohort.c). */
static void learn_fence_locked(struct grant *grant) {
  if (!grant->adopted || grant->fence.v != 0 || grant->op.fence.v == 0) return;
  uint32_t block = grant->op.got_block;
  grant->fence = dibs__fence_nth(grant->op.fence, block > 0 ? block - 1 : 0);
  atomic_store(&grant->lease->fence, grant->fence.v);
}

/* The renewal of a grant whose answer came too late to be used (granted_locked). */
static void late_renewed_locked(struct grant *grant, struct deferred *deferred) {
  dibs__status status = grant->op.op.status;
  if (status == DIBS__MOVED || status == DIBS_LOST) { /* it has ended: acquire it again */
    dibs__deferred_finish(deferred, dibs__send_acquire_locked(grant));
    return;
  }
  dibs__tick until = status == DIBS_OK ? sure_until_of_answer(grant) : DIBS__TICK_ZERO;
  if (!is_past(until)) {
    dibs__hold_locked(grant, grant->fence, grant->left, until, deferred);
    return;
  }
  if (status != DIBS_OK) {
    acquire_trouble_locked(grant, DIBS_UNKNOWN, deferred);
    return;
  }
  /* Each answer takes longer than the lease lasts. */
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
  dibs__wait_over_locked(grant->lease, DIBS_UNAVAILABLE, deferred);
  grant->held = true;
  dibs__give_up_locked(grant, deferred, false);
}

static void renewed_locked(struct grant *grant, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  grant->store->leases->renewed++;
  learn_fence_locked(grant);
  if (grant->adopted) lease->slot = grant->op.slot;
  grant->adopted = grant->unconfirmed = false;
  grant->op.ticket = 0;
  grant->fails = 0;
  if (grant->op.want_block > 0 && grant->op.got_block > 0) {
    grant->fresh = grant->op.fence;
    grant->fresh_left = grant->op.got_block;
  }
  bool lost = !grant->held && atomic_load(&lease->phase) == LEASE_OVER;
  if (!lost && dibs__renewal_keeps_locked(lease)) {
    dibs__leave_to_store_locked(grant, deferred);
    return;
  }
  if (!lost) {
    grant->held = true;
    grant->until = sure_until_of_answer(grant);
    if (!grant_parked(grant) && atomic_load(&lease->phase) == LEASE_HELD) {
      atomic_store(&lease->until_ns, grant->until.ns);
      atomic_store(&lease->store_until_ns, grant->store_until.ns);
    }
    dibs__watch_locked(grant);
  }
  dibs__renewals_end_locked(lease, lost ? DIBS_LOST : DIBS_OK, false, deferred);
  dibs__renewals_send_locked(lease, deferred, false);
  if (grant->cohort) dibs__cohort_renewed_locked(grant->cohort, grant->op.waiting, deferred);
}

static void not_renewed_locked(struct grant *grant, dibs_status status, struct deferred *deferred) {
  if (grant->held && status == DIBS_UNAVAILABLE) set_until_locked(grant, grant->until_else); /* nothing changed */
  dibs__renewals_end_locked(grant->lease, status, false, deferred);
  grant->fails++;
  if (grant->held) dibs__watch_locked(grant); /* soon again */
  if (grant_parked(grant)) {                  /* no lease holds it: the next in line requests its own grant */
    dibs__cohort_part_locked(grant, deferred, false);
    dibs__give_up_locked(grant, deferred, false);
    return;
  }
  dibs__renewals_send_locked(grant->lease, deferred, false);
}

static void renew_answered_locked(struct grant *grant, struct deferred *deferred) {
  dibs__status status = grant->op.op.status;
  if (atomic_load(&grant->lease->phase) < LEASE_HELD) {
    late_renewed_locked(grant, deferred);
    return;
  }
  if (status == DIBS_OK)
    renewed_locked(grant, deferred);
  else if (status == DIBS__MOVED || status == DIBS_LOST)
    dibs__lose_locked(grant, deferred);
  else
    not_renewed_locked(grant, status == DIBS_TIMEOUT ? DIBS_UNAVAILABLE : (dibs_status)status, deferred);
}

static void release_answered_locked(struct grant *grant, struct deferred *deferred) {
  dibs__status status = grant->op.op.status;
  dibs_lease *lease = grant->lease;
  bool had =
      grant->op.op.verb == DIBS__RELEASE || grant->op.was == DIBS__WAS_OFFERED || grant->op.was == DIBS__WAS_HELD;
  if (status == DIBS__MOVED || status == DIBS_NOT_FOUND || (status == DIBS_OK && !had)) status = DIBS_LOST;
  if (status == DIBS_TIMEOUT) status = DIBS_UNAVAILABLE;
  bool waited = atomic_load(&lease->phase) < LEASE_HELD; /* granted while it left */
  if (!grant_parked(grant) && !waited) dibs__released_locked(lease, (dibs_status)status, deferred);
  dibs__grant_end_locked(grant, deferred);
}

static void request_answered(struct dibs__op *op) {
  struct grant *grant = (struct grant *)((char *)op - offsetof(struct grant, op));
  dibs_store *store = grant->store;
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  enum requested requested = grant->requested;
  dibs_lease *requester = grant->requester;
  grant->requested = REQUEST_NOTHING;
  store->in_flight--;
  /* A release that was requested in the meantime; it follows the effect of the answer itself. */
  bool release = grant->then_release;
  grant->then_release = false;
  switch (requested) {
  case REQUEST_ACQUIRE:
    acquire_answered_locked(grant, &deferred);
    break;
  case REQUEST_RENEW:
    if (release && dibs__stays_with_others(grant)) {
      dibs__grant_end_locked(grant, &deferred);
    } else if (release) {
      dibs__deferred_finish(&deferred, dibs__send_release_locked(grant));
    } else {
      renew_answered_locked(grant, &deferred);
    }
    break;
  case REQUEST_RELEASE:
    release_answered_locked(grant, &deferred);
    break;
  case REQUEST_CANCEL:
    dibs__grant_end_locked(grant, &deferred);
    break;
  case REQUEST_NOTHING:
    assert(!"an answer without a request");
  }
  dibs__lease_drop_locked(requester);
  if (store->closing && store->in_flight == 0) dibs__deferred_wake(store, &deferred, &store->none_in_flight);
  /* The store outlives this: dibs_close waits for all requests in flight, and `deferred` contains only such requests.
   */
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_answer(store, &deferred);
}

/* ---- Requesting a lease and waiting for it: blocking, or completed later ---- */

static bool forms_cohort(const dibs_lease *lease) {
  return (dibs__core_caps(lease->store->core) & DIBS__CAP_BLOCKS) && lease->mode == DIBS_EXCLUSIVE && !lease->own_id &&
         !(lease->flags & DIBS_NO_RENEW);
}

static void begin_wait_locked(dibs_lease *lease) {
  lease->store->leases->waiting++;
  lease->counted = true;
  if (!lease->blocking && lease->wait.at.ns != INT64_MAX)
    dibs__heap_set(&lease->store->leases->waits, &lease->wait, lease->wait.at);
}

/* Joins a line, or prepares the request.  A caller that does not wait gets HELD at once if this process holds it.
 * Not OK: the wait has not begun. */
static dibs_status begin_acquire_locked(dibs_lease *lease, struct deferred *deferred, dibs_error *error) {
  dibs_store *store = lease->store;
  struct grant *before = NULL;
  bool local = false;
  /* Closing has ended all waits: nothing would end a wait that begins now. */
  if (store->closing) return dibs__fail(error, DIBS_INVALID, "\"%s\": the store is being closed", lease->name);
  enum id_use use = lease->own_id ? dibs__id_use_locked(store, lease->name, &lease->id, &before) : ID_FREE;
  if (use > ID_ENDING) return dibs__id_refused(use, lease->name, error);
  atomic_store(&lease->phase, LEASE_REQUESTING);
  begin_wait_locked(lease);
  if (forms_cohort(lease)) {
    if (lease->tries && dibs__cohort_has_locked(store, lease->name)) {
      dibs__wait_over_locked(lease, DIBS_HELD, deferred);
      return DIBS_OK;
    }
    if (!dibs__cohort_join_locked(lease, &local, deferred)) {
      dibs__wait_over_locked(lease, DIBS_NO_MEMORY, deferred);
      return DIBS_OK;
    }
  } else {
    dibs__grant_take_locked(lease);
  }
  if (local)
    atomic_store(&lease->phase, LEASE_LOCAL);
  else if (use == ID_ENDING)
    before->followed = lease->grant->follows = true;
  else
    dibs__deferred_mine(deferred, dibs__send_acquire_locked(lease->grant));
  return DIBS_OK;
}

static bool wait_goes_on(const dibs_lease *lease) {
  return atomic_load(&lease->phase) < LEASE_HELD;
}

static void wait_until_over(dibs_lease *lease) {
  dibs_store *store = lease->store;
  bool leaving = false;
  while (wait_goes_on(lease)) {
    atomic_fetch_add(&lease->sleepers, 1);
    uint32_t seen = atomic_load(&lease->word);
    /* A caller that leaves is not the receiver: it must return in time, whatever the store does. */
    if (wait_goes_on(lease) && leaving)
      dibs__lease_sleep(lease, seen, lease->wait.at);
    else if (wait_goes_on(lease))
      dibs__core_wait(store->core, &lease->word, seen, lease->wait.at);
    atomic_fetch_sub(&lease->sleepers, 1);
    if (!wait_goes_on(lease) || dibs__tick_before(dibs__tick_now(), lease->wait.at)) continue;
    struct deferred deferred = {0};
    dibs__mutex_lock(&store->lock);
    if (wait_goes_on(lease)) dibs__leave_locked(lease, DIBS_TIMEOUT, &deferred);
    leaving = lease->leaves != DIBS_OK;
    dibs__mutex_unlock(&store->lock);
    dibs__deferred_start(store, &deferred);
  }
}

/* When a blocking caller stops to wait for a store that does not answer. */
static dibs__tick answer_by(const dibs_lease *lease) {
  dibs__tick io = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  if (lease->tries || lease->wait.at.ns == INT64_MAX) return io;
  return dibs__tick_min(io, dibs__tick_add_ms(lease->wait.at, LEAVE_MS));
}

static void leave_unanswered(dibs_lease *lease) {
  struct deferred deferred = {0};
  dibs__mutex_lock(&lease->store->lock);
  /* A request that was taken back before it was sent is repeated within the wait. */
  bool over = lease->tries || !dibs__tick_before(dibs__tick_now(), lease->wait.at);
  bool travels = lease->grant && lease->grant->requested != REQUEST_NOTHING;
  if (atomic_load(&lease->phase) == LEASE_REQUESTING && (over || travels))
    dibs__leave_now_locked(lease, DIBS_TIMEOUT, &deferred);
  dibs__mutex_unlock(&lease->store->lock);
  dibs__deferred_start(lease->store, &deferred);
}

static dibs_status explain_result(dibs_lease *lease, dibs_error *error) {
  if (lease->waited == DIBS_OK) return dibs__fine(error); /* also if it was lost since */
  if (lease->waited == DIBS_INVALID) return dibs__held_otherwise(lease, dibs__held_as(lease), error);
  return dibs__explain(lease->store, lease->waited, "acquiring", lease->name, error);
}

static dibs_status acquire_and_wait(dibs_store *store, const char *name, const dibs_lease_options *given,
                                    dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  struct deferred deferred = {0};
  lease->blocking = true;
  dibs__mutex_lock(&store->lock);
  status = begin_acquire_locked(lease, &deferred, error);
  bool requests = deferred.mine != NULL;
  dibs__mutex_unlock(&store->lock);
  if (status != DIBS_OK) {
    dibs_lease_free(lease);
    return status;
  }
  if (!dibs__deferred(store, &deferred, requests ? answer_by(lease) : DIBS__TICK_NEVER)) leave_unanswered(lease);
  wait_until_over(lease);
  status = explain_result(lease, error);
  if (status == DIBS_OK)
    *out = lease;
  else
    dibs_lease_free(lease);
  return status;
}

dibs_status dibs_acquire(dibs_store *store, const char *name, const dibs_lease_options *given, dibs_lease **out,
                         dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_acquire: lease is NULL");
  *out = NULL;
  dibs_status status = dibs__enter(store, "dibs_acquire", error);
  if (status != DIBS_OK) return status;
  status = acquire_and_wait(store, name, given, out, error);
  dibs__exit(store);
  return status;
}

static dibs_status start_acquire(dibs_store *store, const char *name, const dibs_lease_options *given,
                                 dibs_lease_fn done, void *user, dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  lease->done = done;
  lease->done_user = user;
  *out = lease;
  dibs__mutex_lock(&store->lock);
  bool ready = dibs__calls_ready_locked(store);
  dibs__mutex_unlock(&store->lock);
  if (!ready || !dibs__core_serve(store->core)) {
    *out = NULL;
    dibs_lease_free(lease);
    return dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the store");
  }
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  status = begin_acquire_locked(lease, &deferred, error);
  dibs__tick due = lease->wait.position != 0 ? lease->wait.at : DIBS__TICK_NEVER;
  dibs__mutex_unlock(&store->lock);
  if (status != DIBS_OK) {
    *out = NULL;
    dibs_lease_free(lease);
    return status;
  }
  dibs__deferred_start(store, &deferred);
  /* It may have been called back and freed by now. */
  if (due.ns != INT64_MAX) dibs__core_rouse(store->core, due);
  return dibs__fine(error);
}

dibs_status dibs_acquire_start(dibs_store *store, const char *name, const dibs_lease_options *given, dibs_lease_fn done,
                               void *user, dibs_lease **out, dibs_error *error) {
  if (out) *out = NULL;
  if (!out || !done) return dibs__fail(error, DIBS_INVALID, "dibs_acquire_start: done or lease is NULL");
  dibs_status status = dibs__enter(store, "dibs_acquire_start", error);
  if (status != DIBS_OK) return status;
  status = start_acquire(store, name, given, done, user, out, error);
  dibs__exit(store);
  return status;
}

void dibs__lease_share_id(dibs_lease *lease) {
  dibs__mutex_lock(&lease->store->lock);
  lease->id_shared = true;
  dibs__mutex_unlock(&lease->store->lock);
}

void dibs_acquire_cancel(dibs_lease *lease) {
  if (dibs__lease_enter(lease, "dibs_acquire_cancel", NULL) != DIBS_OK) return;
  dibs_store *store = lease->store;
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  dibs__leave_locked(lease, DIBS_CANCELLED, &deferred);
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_start(store, &deferred);
  dibs__exit(store);
}
