/* SPDX-License-Identifier: MIT */
/*
 * What the store has to say before a request goes on, and after it was answered.
 *
 * The fence is checked and remembered in one step of the store (fence.c).  No gate remembers anything of its own.
 *
 * Passed is not done: a request that passed may still be on its way to the service when a newer fence passes.  With
 * --order the gate holds a lease of the name from before the check until the service has answered, so the newer one
 * waits.
 */
#include "gate/fence_record.h"
#include "gate/gate_impl.h"
#include "handle/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ends ---- */

void dibs__guard_release(struct exchange *e) {
  dibs_lease_free(e->order_lease);
  dibs_lease_free(e->key_lease);
  e->order_lease = e->key_lease = NULL;
}

static void left(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  (void)status, (void)answer, (void)error, (void)user;
}

static void end_attempt(struct exchange *e) {
  e->attempts = false;
  /* As well as it can: otherwise the next attempt refuses what this one stores. */
  (void)dibs__once_start(e->gate->server->store, DIBS__ONCE_LEAVE, e->key, e->key_lease, 0, NULL, 0, left, NULL, NULL);
}

void dibs__guard_leave(struct exchange *e) {
  if (e->attempts && e->step != STEP_STORE) end_attempt(e);
}

/* Nothing was sent to the service. */
static void refuse(struct exchange *e, dibs_status status, const dibs_error *error) {
  bool stops = e->gate->server->stopping;
  if (!stops && (status == DIBS_HELD || status == DIBS_TIMEOUT || status == DIBS_INVALID)) {
    if (e->request && !e->request->answered) dibs__answer_problem(e->request, status, error);
  } else if (stops) {
    dibs__exchange_refuse(e, 503, "stopping", "this gate is stopping; nothing was sent to the service");
  } else {
    dibs__exchange_refuse(e, 503, "unavailable", "nothing was sent to the service: %.300s",
                          error && error->text[0] ? error->text : dibs_status_text(status));
  }
  dibs__guard_leave(e);
  dibs__exchange_end(e);
}

static void refuse_stale(struct exchange *e, uint64_t seen) {
  struct request *r = e->request;
  dibs_error error = {0};
  e->stale = true;
  if (r && !r->answered) {
    dibs__fail(&error, DIBS_STALE,
               "fence %" PRIu64 " of \"%s\" was refused: a gate has seen fence %" PRIu64
               "; somebody newer holds the lease, and nothing was sent to the service",
               e->fence, e->name, seen);
    struct dibs__json *j = dibs__answer_problem_begin(r, DIBS_STALE, &error);
    dibs__json_uint(j, "fence", e->fence);
    dibs__json_uint(j, "seen_fence", seen);
    dibs__answer_header(r, "Dibs-Fence", "%" PRIu64, seen);
    dibs__answer_problem_end(r);
  }
  dibs__guard_leave(e);
  dibs__exchange_end(e);
}

/* --check-lease: the lease is not held under this fence. */
static void refuse_lost(struct exchange *e, const dibs_error *error) {
  if (e->request && !e->request->answered) dibs__answer_problem(e->request, DIBS_LOST, error);
  dibs__guard_leave(e);
  dibs__exchange_end(e);
}

/* Of each step before the service: true: the exchange has ended. */
static bool ends(struct exchange *e, dibs_status status, const dibs_error *error) {
  if (status == DIBS_OK && !e->gone && !e->gate->server->stopping) return false;
  refuse(e, status == DIBS_OK ? DIBS_CANCELLED : status, error);
  return true;
}

/* ---- The service ---- */

static void pass_on(struct exchange *e) {
  if ((e->order_lease && !dibs_lease_alive(e->order_lease)) || (e->key_lease && !dibs_lease_alive(e->key_lease))) {
    refuse(e, DIBS_LOST, NULL);
    return;
  }
  e->step = STEP_UPSTREAM;
  if (!dibs__upstream_start(e)) {
    refuse(e, DIBS_NO_MEMORY, NULL);
    return;
  }
  /* Requests of this name wait for the rest of the body: its client has --read to send it. */
  if (e->order_lease && !e->up.ended && e->request) dibs__connection_stage(e->request->on, STAGE_READING);
  dibs__exchange_wake(e);
}

/* ---- The fence ---- */

void dibs__guard_fence_checked(struct exchange *e, dibs_status status, uint64_t seen, const dibs_error *error) {
  if (status == DIBS_STALE && !e->gone)
    refuse_stale(e, seen);
  else if (status == DIBS_LOST && !e->gone)
    refuse_lost(e, error);
  else if (!ends(e, status, error))
    pass_on(e);
}

static void check_fence(struct exchange *e) {
  if (e->fence > 0)
    dibs__fence_check(e);
  else
    pass_on(e);
}

/* ---- Leases ---- */

/* If --waiters others wait already, it gets the lease only if that is free. */
static bool wait_for_lease(struct exchange *e, const char *name, dibs_lease_fn done, dibs_lease **lease) {
  struct gate *gate = e->gate;
  e->in_line = gate->waiters < gate->config.serve.waiters;
  dibs_lease_options options = {.size = sizeof options,
                                .ttl_ms = GATE_TTL_MS,
                                .wait_ms = e->in_line ? gate->config.wait_ms : 0,
                                .owner = "dibs gate"};
  dibs_error error = {0};
  dibs_status status = dibs_acquire_start(e->gate->server->store, name, &options, done, e, lease, &error);
  if (status != DIBS_OK) refuse(e, status, &error);
  e->waits_for = status == DIBS_OK ? *lease : NULL;
  if (e->waits_for && e->in_line) gate->waiters++;
  return status == DIBS_OK;
}

/* The wait has ended, with this status.  true: the exchange, too. */
static bool end_wait(struct exchange *e, dibs_status status, const dibs_error *error) {
  uint32_t most = e->gate->config.serve.waiters;
  e->waits_for = NULL;
  if (e->in_line) {
    e->gate->waiters--;
  } else if (status == DIBS_HELD && e->gate->config.wait_ms > 0 && !e->gate->server->stopping) {
    dibs__exchange_refuse(e, 503, "overload",
                          "the request must wait for those before it, and %" PRIu32
                          " others wait at this gate already (--waiters); repeat it later",
                          most);
    dibs__guard_leave(e);
    dibs__exchange_end(e);
    return true;
  }
  return ends(e, status, error);
}

void dibs__guard_cancel(struct exchange *e) {
  if (e->waits_for) dibs_acquire_cancel(e->waits_for);
}

static void name_acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct exchange *e = user;
  (void)lease;
  if (!end_wait(e, status, error)) check_fence(e);
}

static void take_order(struct exchange *e) {
  char name[DIBS_NAME_MAX + 1];
  if (!e->gate->config.order || !e->name[0]) {
    check_fence(e);
    return;
  }
  dibs__fence_key(e->name, 0, name);
  (void)wait_for_lease(e, name, name_acquired, &e->order_lease);
}

/* ---- The key ---- */

static void replay(struct exchange *e, const struct dibs__once_answer *answer) {
  switch (dibs__kept_read(e, answer->data, answer->length)) {
  case KEPT_FINE:
    e->ready = e->replayed = true;
    break;
  case KEPT_LARGE:
    dibs__exchange_refuse(
        e, 409, "answer-not-kept",
        "this request was done before and answered %d; the answer was not kept, because it was larger "
        "than about 1 MiB or --bodies left no memory for it",
        e->status);
    break;
  case KEPT_OTHER_REQUEST:
    dibs__exchange_refuse(e, 422, "key-reused",
                          "this Idempotency-Key was used for another request: give each request a key of its own, and "
                          "repeat it unchanged");
    break;
  case KEPT_DAMAGED:
    dibs__exchange_refuse(e, 503, "unavailable", "the stored answer of this Idempotency-Key cannot be read");
  }
  dibs__exchange_end(e);
}

static void begun(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct exchange *e = user;
  if (status == DIBS_REPLAY) {
    replay(e, answer);
    return;
  }
  e->attempts = status == DIBS_OK || status == DIBS_UNKNOWN;
  if (!ends(e, status, error)) take_order(e);
}

static void key_acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct exchange *e = user;
  dibs_error failure = {0};
  if (end_wait(e, status, error)) return;
  status = dibs__once_start(e->gate->server->store, DIBS__ONCE_BEGIN, e->key, lease, DIBS__ONCE_KEEP_MS, NULL, 0, begun,
                            e, &failure);
  if (status != DIBS_OK) refuse(e, status, &failure);
}

static void key_read(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct exchange *e = user;
  char name[DIBS_NAME_MAX + 1];
  if (status == DIBS_OK) {
    replay(e, answer);
    return;
  }
  if (ends(e, status == DIBS_NOT_FOUND ? DIBS_OK : status, error)) return;
  dibs__once_name(e->key, name);
  (void)wait_for_lease(e, name, key_acquired, &e->key_lease);
}

void dibs__guard_begin(struct exchange *e) {
  dibs_error error = {0};
  e->step = STEP_GUARD;
  if (!e->key[0]) {
    take_order(e);
    return;
  }
  dibs_status status =
      dibs__once_start(e->gate->server->store, DIBS__ONCE_READ, e->key, NULL, 0, NULL, 0, key_read, e, &error);
  if (status != DIBS_OK) refuse(e, status, &error);
}

/* ---- Storing the answer ---- */

/* A large answer goes on from the service to the client; others are complete. */
static void let_go(struct exchange *e) {
  e->ready = true;
  dibs__exchange_wake(e);
  if (e->step == STEP_STORE)
    dibs__exchange_end(e);
  else
    dibs__upstream_continue(e);
}

static void stored(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct exchange *e = user;
  (void)answer, (void)error;
  e->attempts = false;
  if ((status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) && ++e->store_tries < DIBS__ONCE_TRIES) {
    dibs__guard_store(e);
    dibs__exchange_unref(e);
    return;
  }
  e->not_kept = status != DIBS_OK && status != DIBS_REPLAY;
  let_go(e);
  dibs__exchange_unref(e);
}

void dibs__guard_store(struct exchange *e) {
  struct gate *gate = e->gate;
  struct stream data = {0};
  dibs_status status = DIBS_NO_MEMORY;
  if (!dibs__kept_is_final(e->status)) {
    end_attempt(e);
    let_go(e);
    return;
  }
  if (dibs__kept_write(e, &data))
    status = dibs__once_start(gate->server->store, DIBS__ONCE_STORE, e->key, e->key_lease, gate->config.keep_ms,
                              data.memory, data.length, stored, e, NULL);
  dibs__stream_free(&data);
  if (status == DIBS_OK) {
    e->refs++; /* the transfer of a large answer may fail meanwhile */
    return;
  }
  e->not_kept = true;
  let_go(e);
}

/* ---- Opening ---- */

bool dibs__guard_check(const struct gate *gate, dibs_error *error) {
  dibs_record *record = NULL;
  dibs_status status = dibs_record_get(gate->server->store, "gate:", NULL, &record, error);
  dibs_record_free(record);
  return status == DIBS_OK || status == DIBS_NOT_FOUND;
}
