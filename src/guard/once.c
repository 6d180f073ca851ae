/* SPDX-License-Identifier: MIT */
/*
 * Once: the work of a key is done once in the fleet, and its answer kept.
 *
 * Outside of a transaction the key's lease makes others wait, and its fence, which the row remembers from `begin` on,
 * keeps a late attempt from storing over a newer one.  Inside a transaction of the user's there are no leases: the row
 * itself, inserted and not committed yet, makes others wait, and goes away if it is rolled back.
 */
#include "base/text.h"
#include "guard/guard.h"
#include "handle/request.h"
#include "lease/lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HASH_DIGITS = 17 }; /* with the prefix */

/* The grant of an attempt; fence 0: inside a transaction. */
struct who {
  dibs__id id;
  dibs__fence fence;
};

static const char prefix[] = "once:";

/* FNV-1a 64.  Every process must compute the same name. */
static uint64_t digest(const char *p, size_t len) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < len; i++) hash = (hash ^ (uint8_t)p[i]) * UINT64_C(0x100000001b3);
  return hash;
}

void dibs__once_name(const char *key, char name[DIBS_NAME_MAX + 1]) {
  size_t len = strlen(key), head = sizeof prefix - 1;
  memcpy(name, prefix, head);
  if (head + len <= DIBS_NAME_MAX) {
    memcpy(name + head, key, len + 1);
    return;
  }
  /* Two keys with the same hash and beginning would wait for each other, and nothing worse. */
  size_t kept = dibs__utf8_cut(key, DIBS_NAME_MAX - head - HASH_DIGITS);
  memcpy(name + head, key, kept);
  snprintf(name + head + kept, HASH_DIGITS + 1, "~%016" PRIx64, digest(key, len));
}

/* ---- One question ---- */

static bool is_inside(dibs_store *store) {
  return store->outer != NULL;
}

static dibs_status explain(dibs_store *store, dibs_status status, const char *what, const char *key,
                           dibs_error *error) {
  char trouble[256] = "";
  switch (status) {
  case DIBS_OK:
  case DIBS_REPLAY:
    dibs__fine(error);
    return status;
  case DIBS_NOT_FOUND:
    return dibs__fail(error, status,
                      "there is no result of \"%s\": it was never done, or its result was deleted or expired", key);
  case DIBS_STALE:
    return dibs__fail(
        error, status,
        "a newer attempt at \"%s\" has begun, so the result of this one is not stored; call again for the result", key);
  case DIBS_HELD:
    return dibs__fail(error, status,
                      "an attempt at \"%s\" outside of a transaction has not ended; roll back and call again later, or "
                      "use the key either only inside of transactions or only outside",
                      key);
  case DIBS_INVALID:
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    return dibs__fail(error, status, "%s \"%s\" at %s: the store refused it%s%s", what, key, store->shown,
                      trouble[0] ? ": " : "", trouble);
  default:
    return dibs__explain(store, status, what, key, error);
  }
}

/* NULL: no memory. */
static struct dibs__request *make_request(dibs_store *store, const char *key, const struct who *who, int64_t keep_ms,
                                          const char *data, size_t length) {
  size_t key_len = strlen(key);
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_ONCE, NULL, key_len + length);
  if (!request) return NULL;
  request->once.key = dibs__request_keep(request, key, key_len);
  request->once.data = dibs__request_keep(request, data, length);
  request->once.keep_ms = keep_ms;
  if (who) {
    request->once.id = who->id;
    request->once.fence = who->fence;
  }
  return request;
}

static void take_answer(struct dibs__request *request, struct dibs__once_answer *answer) {
  answer->data = request->once.got;
  answer->length = request->once.got_len;
  answer->age_ms = request->once.age_ms;
  answer->left_ms = request->once.left_ms;
  request->once.got = NULL;
}

/* Carries one operation; what was answered goes to `answer` (may be NULL). */
static dibs_status send_request(dibs_store *store, uint16_t verb, const char *key, const struct who *who,
                                int64_t keep_ms, const char *data, size_t length, struct dibs__once_answer *answer,
                                dibs_error *error) {
  struct dibs__request *request = make_request(store, key, who, keep_ms, data, length);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the once key \"%s\"", key);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  bool reads = verb == DIBS__ONCE_READ;
  dibs_status status = reads ? dibs__request_carry(request, verb, by) : dibs__request_carry_until(request, verb, by);
  if (answer && dibs__request_is_answered(request)) take_answer(request, answer);
  dibs__request_drop(request);
  return status;
}

dibs_status dibs__once_check(dibs_store *store, const char *key, dibs_error *error) {
  dibs_status status = dibs__enter(store, "dibs_once", error);
  if (status != DIBS_OK) return status;
  status = dibs__request_check(store, DIBS__FAM_ONCE, "once key", key, error);
  dibs__exit(store);
  return status;
}

/* ---- The steps ---- */

dibs_status dibs__once_read(dibs_store *store, const char *key, struct dibs__once_answer *answer, dibs_error *error) {
  *answer = (struct dibs__once_answer){0};
  dibs_status status = dibs__enter(store, "dibs_once", error);
  if (status != DIBS_OK) return status;
  status = send_request(store, DIBS__ONCE_READ, key, NULL, 0, NULL, 0, answer, error);
  status = explain(store, status, "reading the result of", key, error);
  dibs__exit(store);
  return status;
}

static dibs_status begin_once(dibs_store *store, const char *key, const struct who *who,
                              struct dibs__once_answer *answer, dibs_error *error) {
  dibs_status status = DIBS_UNKNOWN;
  for (int i = 0; i < DIBS__ONCE_TRIES && status == DIBS_UNKNOWN; i++)
    status = send_request(store, DIBS__ONCE_BEGIN, key, who, DIBS__ONCE_KEEP_MS, NULL, 0, answer, error);
  return explain(store, status, "beginning", key, error);
}

/* Nothing that went wrong means "nothing was done" any more: the work was. */
static dibs_status store_answer(dibs_store *store, const char *key, const struct who *who, int64_t keep_ms,
                                const char *data, size_t length, struct dibs__once_answer *answer, dibs_error *error) {
  dibs_status status = DIBS_UNKNOWN;
  for (int i = 0; i < DIBS__ONCE_TRIES && (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE); i++)
    status = send_request(store, DIBS__ONCE_STORE, key, who, keep_ms, data, length, answer, error);
  if (status == DIBS_UNAVAILABLE) status = DIBS_UNKNOWN;
  return explain(store, status, "storing the result of", key, error);
}

static dibs_status who_holds(dibs_lease *lease, struct who *who, dibs_error *error) {
  bool lost = false;
  dibs_status status = dibs__lease_grant(lease, &who->id, &who->fence, &lost, error);
  if (status == DIBS_OK && !dibs_lease_alive(lease)) status = DIBS_LOST;
  if (status == DIBS_LOST)
    dibs__fail(
        error, status,
        "the lease of \"%s\" was lost while it ran; its result is not stored, and the next attempt has a larger fence",
        dibs_lease_name(lease));
  return status;
}

dibs_status dibs__once_begin(dibs_store *store, const char *key, dibs_lease *lease, struct dibs__once_answer *answer,
                             dibs_error *error) {
  struct who who;
  *answer = (struct dibs__once_answer){0};
  dibs_status status = dibs__enter(store, "dibs_once", error);
  if (status != DIBS_OK) return status;
  status = who_holds(lease, &who, error);
  if (status == DIBS_OK) status = begin_once(store, key, &who, answer, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs__once_store(dibs_store *store, const char *key, dibs_lease *lease, int64_t keep_ms, const char *data,
                             size_t length, struct dibs__once_answer *answer, dibs_error *error) {
  struct who who;
  *answer = (struct dibs__once_answer){0};
  dibs_status status = dibs__enter(store, "dibs_once", error);
  if (status != DIBS_OK) return status;
  status = who_holds(lease, &who, error);
  if (status == DIBS_OK) status = store_answer(store, key, &who, keep_ms, data, length, answer, error);
  dibs__exit(store);
  return status;
}

static void leave_claim(dibs_store *store, const char *key, const struct who *who) {
  (void)send_request(store, DIBS__ONCE_LEAVE, key, who, 0, NULL, 0, NULL, NULL);
}

void dibs__once_leave(dibs_store *store, const char *key, dibs_lease *lease) {
  struct who who;
  if (dibs__enter(store, "dibs_once", NULL) != DIBS_OK) return;
  if (who_holds(lease, &who, NULL) == DIBS_OK) leave_claim(store, key, &who);
  dibs__exit(store);
}

/* ---- Completed later ---- */

/* A call of dibs__once_start, until it is answered. */
struct started {
  dibs__once_step_fn done;
  void *user;
};

static const char *const doing[] = {[DIBS__ONCE_READ] = "reading the result of",
                                    [DIBS__ONCE_STORE] = "storing the result of",
                                    [DIBS__ONCE_FORGET] = "forgetting",
                                    [DIBS__ONCE_BEGIN] = "beginning",
                                    [DIBS__ONCE_LEAVE] = "leaving"};

static void finish_started(struct dibs__request *request, dibs_status status) {
  struct started *s = request->user;
  struct dibs__once_answer answer = {0};
  dibs_error error = {0};
  if (dibs__request_is_answered(request)) take_answer(request, &answer);
  status = explain(request->store, status, doing[request->op.verb], request->once.key.p, &error);
  s->done(status, &answer, &error, s->user);
  free(answer.data);
  dibs__request_drop(request);
  free(s);
}

dibs_status dibs__once_start(dibs_store *store, enum dibs__once_verb verb, const char *key, dibs_lease *lease,
                             int64_t keep_ms, const char *data, size_t length, dibs__once_step_fn done, void *user,
                             dibs_error *error) {
  struct who who;
  dibs_status status = dibs__enter(store, "a step of once", error);
  if (status != DIBS_OK) return status;
  status = dibs__request_check(store, DIBS__FAM_ONCE, "once key", key, error);
  if (status == DIBS_OK && lease) status = who_holds(lease, &who, error);
  if (status == DIBS_OK) {
    struct dibs__request *request = make_request(store, key, lease ? &who : NULL, keep_ms, data, length);
    struct started *s = request ? malloc(sizeof *s) : NULL;
    if (s) *s = (struct started){done, user};
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
    status = s ? dibs__request_start(request, (uint16_t)verb, by, finish_started, s) : DIBS_NO_MEMORY;
    if (status != DIBS_OK) {
      dibs__explain(store, status, doing[verb], key, error);
      dibs__request_drop(request);
      free(s);
    }
  }
  dibs__exit(store);
  return status;
}

/* ---- dibs_once ---- */

/* What the caller brought, and what it gets. */
struct call {
  dibs_store *store;
  const char *key;
  dibs_once_options options;
  dibs_once_fn fn;
  void *user;
  struct dibs__once_answer answer;
  dibs_error *error;
};

/* Runs it.  OK: `data` is its answer. */
static dibs_status work(struct call *call, dibs_lease *lease, char **data, size_t *length) {
  *data = NULL;
  *length = 0;
  dibs_status status = call->fn(lease, data, length, call->user);
  if (!*data) *length = 0;
  if (status == DIBS_OK && *length > DIBS_RECORD_MAX)
    status = dibs__fail(
        call->error, DIBS_INVALID,
        "the result of \"%s\" has %zu bytes, and at most %d can be stored; it ran, and the next call runs it again",
        call->key, *length, DIBS_RECORD_MAX);
  else if (status != DIBS_OK)
    dibs__fail(call->error, status, "\"%s\" ran and answered %s; nothing is stored", call->key,
               dibs_status_name(status));
  return status;
}

/* The function's own memory may have no NUL at its end. */
static dibs_status hand_out(struct call *call, const char *data, size_t length) {
  call->answer.data = malloc(length + 1);
  if (!call->answer.data)
    return dibs__fail(call->error, DIBS_NO_MEMORY,
                      "out of memory for the result of \"%s\", which is stored: call again", call->key);
  if (length) memcpy(call->answer.data, data, length);
  call->answer.data[length] = '\0';
  call->answer.length = length;
  return dibs__fine(call->error);
}

static dibs_status under_lease(struct call *call, dibs_lease *lease) {
  char *data;
  size_t length;
  dibs_status status = dibs__once_begin(call->store, call->key, lease, &call->answer, call->error);
  if (status != DIBS_OK) return status;
  status = work(call, lease, &data, &length);
  if (status == DIBS_OK)
    status = dibs__once_store(call->store, call->key, lease, call->options.keep_ms, data, length, &call->answer,
                              call->error);
  else
    dibs__once_leave(call->store, call->key, lease);
  if (status == DIBS_OK) status = hand_out(call, data, length);
  free(data);
  return status;
}

/* Within the wait: a server that is full may have a connection again. */
static dibs_status read_until(struct call *call, dibs__tick by) {
  for (uint32_t nth = 1;; nth++) {
    dibs_status status = dibs__once_read(call->store, call->key, &call->answer, call->error);
    if (status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), by)) return status;
    dibs__request_pause(nth, by);
  }
}

static dibs_status outside(struct call *call) {
  char name[DIBS_NAME_MAX + 1];
  int64_t wait_ms = call->options.wait_ms;
  dibs__tick by = wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), wait_ms);
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = call->options.ttl_ms, .owner = call->options.owner};
  dibs_status status = read_until(call, by);
  if (status == DIBS_OK) return DIBS_REPLAY;
  if (status != DIBS_NOT_FOUND) return status;
  dibs_lease *lease = NULL;
  if (wait_ms > 0) wait_ms = dibs__tick_left_ms(dibs__tick_now(), by) + 1;
  options.wait_ms = wait_ms;
  dibs__once_name(call->key, name);
  status = dibs_acquire(call->store, name, &options, &lease, call->error);
  if (status == DIBS_OK) {
    status = under_lease(call, lease);
    (void)dibs_release(lease, NULL); /* it ends with its ttl, else */
    dibs_lease_free(lease);
    return status;
  }
  /* The other attempt may have ended by now, and its lease may not be released yet. */
  if ((status == DIBS_HELD || status == DIBS_TIMEOUT) &&
      dibs__once_read(call->store, call->key, &call->answer, NULL) == DIBS_OK)
    status = DIBS_REPLAY;
  return status;
}

static dibs_status inside(struct call *call) {
  struct who who = {.fence = DIBS__FENCE_NONE};
  char *data = NULL;
  size_t length = 0;
  dibs__random(who.id.b, sizeof who.id.b);
  dibs_status status = dibs__enter(call->store, "dibs_once", call->error);
  if (status != DIBS_OK) return status;
  status = begin_once(call->store, call->key, &who, &call->answer, call->error);
  if (status == DIBS_OK) {
    status = work(call, NULL, &data, &length);
    if (status == DIBS_OK)
      status =
          store_answer(call->store, call->key, &who, call->options.keep_ms, data, length, &call->answer, call->error);
    else
      leave_claim(call->store, call->key, &who);
    if (status == DIBS_OK) status = hand_out(call, data, length);
    free(data);
  }
  dibs__exit(call->store);
  return status;
}

static dibs_status check_options(const dibs_once_options *given, dibs_once_options *o, dibs_error *error) {
  *o = (dibs_once_options){.size = sizeof *o};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof *o))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_once_options)", given->size);
  if (given) memcpy(o, given, given->size);
  if (o->keep_ms == 0) o->keep_ms = DIBS__ONCE_KEEP_MS;
  if (o->keep_ms < 0 || o->keep_ms > DIBS__ONCE_KEEP_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "keep_ms is %lld: give 1 ms to 10 years", (long long)o->keep_ms);
  return DIBS_OK;
}

dibs_status dibs_once(dibs_store *store, const char *key, const dibs_once_options *options, dibs_once_fn fn, void *user,
                      char **answer, size_t *length, dibs_error *error) {
  if (answer) *answer = NULL;
  if (length) *length = 0;
  if (!fn || !answer || !length) return dibs__fail(error, DIBS_INVALID, "dibs_once: fn, answer or length is NULL");
  struct call call = {.store = store, .key = key, .fn = fn, .user = user, .error = error};
  dibs_status status = check_options(options, &call.options, error);
  if (status == DIBS_OK) status = dibs__once_check(store, key, error);
  if (status != DIBS_OK) return status;
  status = is_inside(store) ? inside(&call) : outside(&call);
  if (status != DIBS_OK && status != DIBS_REPLAY) {
    free(call.answer.data);
    return status;
  }
  dibs__fine(error);
  *answer = call.answer.data;
  *length = call.answer.length;
  return status;
}

dibs_status dibs_once_forget(dibs_store *store, const char *key, dibs_error *error) {
  dibs_status status = dibs__enter(store, "dibs_once_forget", error);
  if (status != DIBS_OK) return status;
  status = dibs__request_check(store, DIBS__FAM_ONCE, "once key", key, error);
  if (status == DIBS_OK) {
    status = send_request(store, DIBS__ONCE_FORGET, key, NULL, 0, NULL, 0, NULL, error);
    status = explain(store, status, "forgetting", key, error);
  }
  dibs__exit(store);
  return status;
}
