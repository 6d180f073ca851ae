/* SPDX-License-Identifier: MIT */
/*
 * Once over HTTP: the work of a key is done once, by one of the clients that begin it, and its answer kept.
 *
 *   POST    reads the answer; if there is none it acquires the lease of the key and begins an attempt
 *   PATCH   renews that lease
 *   PUT     renews the lease, stores the answer under its fence, and releases it
 *   DELETE  renews the lease, ends the attempt without an answer, and releases it
 *
 * An attempt belongs to the caller that has the id of the lease; this daemon keeps nothing of it.  PUT and DELETE renew
 * first, because only the store knows whether the id has the lease, and under which fence: a fence that a client
 * invents could keep all later attempts out.
 */
#include "base/text.h"
#include "guard/guard.h"
#include "handle/handle.h"
#include "lease/lease.h"
#include "serve/turn.h"

#include <inttypes.h>
#include <string.h>

/* PUT and DELETE, which do not know the ttl of the attempt, renew it for so long: time to repeat them. */
enum { END_MS = 600000 };

struct once_in {
  const char *key, *id, *owner;
  int64_t ttl_ms, wait_ms, keep_ms;
  struct field_data answer;
  /* Not of the request. */
  char name[DIBS_NAME_MAX + 1]; /* of the lease */
  bool was_held;                /* by another attempt; its answer may be there by now */
  uint32_t tries;               /* of the step that runs */
};

#define IN(member) offsetof(struct once_in, member)
#define KEY_FIELD                                                                                                      \
  {                                                                                                                    \
    .name = "Idempotency-Key", .place = FIELD_HEADER, .at = IN(key), .least = 1, .most = DIBS_NAME_MAX,                \
    .needed = true, .help = "the key: one text for one piece of work, the same in each repetition"                     \
  }
#define ID_FIELD                                                                                                       \
  {                                                                                                                    \
    .name = "Dibs-Lease", .place = FIELD_HEADER, .kind = FIELD_ID, .at = IN(id), .least = 32, .most = 32,              \
    .needed = true, .help = "the id of the attempt, as POST answered it"                                               \
  }
#define TTL_FIELD(help_)                                                                                               \
  {                                                                                                                    \
    .name = "ttl", .kind = FIELD_DURATION, .at = IN(ttl_ms), .least = DIBS_TTL_MIN_MS, .most = DIBS_TTL_MAX_MS,        \
    .help = (help_)                                                                                                    \
  }
static const struct field post_fields[] = {
    KEY_FIELD,
    TTL_FIELD("how long the attempt lasts without renewal; 30s if it is not given"),
    {.name = "wait",
     .kind = FIELD_DURATION,
     .at = IN(wait_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the request may wait for an attempt of another client; 0, the default: not at all"},
    {.name = "owner",
     .at = IN(owner),
     .least = 1,
     .most = DIBS_OWNER_MAX,
     .help = "a label for people; that of the token if it is not given"},
    {.name = "id",
     .kind = FIELD_ID,
     .at = IN(id),
     .least = 32,
     .most = 32,
     .help = "32 random hexadecimal digits of the caller; a request that is repeated with it finds its own attempt"},
    {.name = NULL}};
static const struct field patch_fields[] = {
    KEY_FIELD, ID_FIELD, TTL_FIELD("how long it lasts from now on; 30s if it is not given"), {.name = NULL}};
static const struct field put_fields[] = {KEY_FIELD,
                                          ID_FIELD,
                                          {.name = "answer",
                                           .kind = FIELD_DATA,
                                           .at = IN(answer),
                                           .most = DIBS_RECORD_MAX,
                                           .help = "any text, or {\"base64\": ...}"},
                                          {.name = "keep",
                                           .kind = FIELD_DURATION,
                                           .at = IN(keep_ms),
                                           .least = 1,
                                           .most = DIBS__ONCE_KEEP_MAX_MS,
                                           .help = "how long the answer is kept; 1d if it is not given"},
                                          {.name = NULL}};
static const struct field delete_fields[] = {KEY_FIELD, ID_FIELD, {.name = NULL}};
static const struct field get_fields[] = {KEY_FIELD, {.name = NULL}};

/* ---- Answers ---- */

static void write_answer(struct request *r, const struct dibs__once_answer *answer) {
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", ((const struct once_in *)r->in)->key);
  dibs__payload_write(j, "answer", answer->data ? answer->data : "", answer->length);
  dibs__json_int(j, "age_ms", answer->age_ms);
  dibs__json_int(j, "left_ms", answer->left_ms);
  dibs__json_close(j, '}');
  dibs__answer_header(r, "Idempotent-Replayed", "true");
  dibs__answer_end(r);
}

/* The attempt is the caller's. */
static void write_attempt(struct turn *turn, int status, int64_t left_ms) {
  struct request *r = turn->request;
  uint64_t fence = dibs_lease_fence(turn->lease).value;
  struct dibs__json *j = dibs__answer_begin(r, status);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", ((const struct once_in *)r->in)->key);
  dibs__json_text(j, "id", turn->id);
  dibs__json_uint(j, "fence", fence);
  dibs__json_int(j, "left_ms", left_ms > 0 ? left_ms : 0);
  dibs__json_close(j, '}');
  dibs__answer_header(r, "Dibs-Lease", "%s", turn->id);
  dibs__answer_header(r, "Dibs-Fence", "%" PRIu64, fence);
  dibs__answer_end(r);
}

/* Freeing a handle that holds releases the lease. */
static void end_turn(struct turn *turn) {
  dibs_lease_free(turn->lease);
  dibs__turn_end(turn);
}

/* The id keeps the lease, which ends with its ttl, or by the repeated request. */
static void fail_and_keep(struct turn *turn, dibs_status status, const dibs_error *error) {
  dibs__turn_let_go(turn->lease);
  dibs__turn_fail(turn, status, error);
}

/* ---- Steps ---- */

/* One request to the store about the key.  `done` gets the turn. */
static dibs_status start_step(struct turn *turn, enum dibs__once_verb verb, dibs__once_step_fn done,
                              dibs_error *error) {
  const struct once_in *in = turn->request->in;
  int64_t keep_ms = verb == DIBS__ONCE_STORE ? in->keep_ms : DIBS__ONCE_KEEP_MS;
  bool stores = verb == DIBS__ONCE_STORE;
  return dibs__once_start(turn->request->server->store, verb, in->key, verb == DIBS__ONCE_READ ? NULL : turn->lease,
                          keep_ms, stores && in->answer.p ? in->answer.p : "", stores ? in->answer.length : 0, done,
                          turn, error);
}

/* May the step be sent again?  Its outcome is unknown, and to repeat it changes nothing. */
static bool may_repeat(struct turn *turn, dibs_status status) {
  struct once_in *in = turn->request->in;
  return status == DIBS_UNKNOWN && ++in->tries < DIBS__ONCE_TRIES;
}

static void left(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  (void)status, (void)answer, (void)error, (void)user;
}

/* ---- POST ---- */

static void begun(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user);

static void start_attempt(struct turn *turn) {
  dibs_error error = {0};
  dibs_status status = start_step(turn, DIBS__ONCE_BEGIN, begun, &error);
  if (status != DIBS_OK) dibs__turn_fail(turn, status, &error);
}

/* Nobody waits for the attempt; with an id of its own the client may have it by another daemon. */
static void abandon(struct turn *turn) {
  const struct once_in *in = turn->request->in;
  if (in->id)
    dibs__turn_let_go(turn->lease);
  else /* as well as it can: the next attempt has a larger fence in any case */
    (void)dibs__once_start(turn->request->server->store, DIBS__ONCE_LEAVE, in->key, turn->lease, 0, NULL, 0, left, NULL,
                           NULL);
  dibs__turn_fail(turn, DIBS_CANCELLED, NULL);
}

static void begun(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct turn *turn = user;
  if (status == DIBS_REPLAY && turn->request->left) {
    dibs__turn_fail(turn, DIBS_CANCELLED, NULL);
  } else if (status == DIBS_REPLAY) {
    write_answer(turn->request, answer);
    end_turn(turn);
  } else if (may_repeat(turn, status)) {
    start_attempt(turn);
  } else if (status != DIBS_OK) {
    dibs__turn_fail(turn, status, error);
  } else if (turn->request->left) {
    abandon(turn);
  } else {
    int64_t left_ms = dibs_lease_left_ms(turn->lease);
    if (dibs_lease_detach(turn->lease, NULL) != DIBS_OK) {
      dibs__turn_fail(turn, DIBS_LOST, NULL);
      return;
    }
    write_attempt(turn, 201, left_ms);
    end_turn(turn);
  }
}

static void read_key(struct turn *turn);

static void acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  struct once_in *in = turn->request->in;
  (void)lease;
  dibs__wait_end(turn->request);
  if (status == DIBS_OK && turn->request->left) {
    abandon(turn);
  } else if (status == DIBS_OK) {
    start_attempt(turn);
  } else if (status == DIBS_HELD || status == DIBS_TIMEOUT) {
    in->was_held = true;
    read_key(turn);
  } else {
    dibs__turn_fail(turn, status, error);
  }
}

static void stop_acquiring(struct request *r) {
  dibs_acquire_cancel(((struct turn *)r->work)->lease);
}

static void acquire(struct turn *turn) {
  struct request *r = turn->request;
  const struct once_in *in = r->in;
  dibs_error error = {0};
  dibs_lease_options options = {.size = sizeof options,
                                .flags = DIBS_NO_RENEW,
                                .ttl_ms = in->ttl_ms,
                                .wait_ms = in->wait_ms,
                                .owner = in->owner  ? in->owner
                                         : r->token ? dibs__auth_label(r)
                                                    : NULL,
                                .id = turn->id};
  dibs_status status = DIBS_CANCELLED; /* a server that stops has ended all waits, and begins no others */
  if (!r->left && !r->server->stopping)
    status = dibs_acquire_start(r->server->store, turn->name, &options, acquired, turn, &turn->lease, &error);
  if (status != DIBS_OK) {
    dibs__turn_fail(turn, status, &error);
    return;
  }
  if (in->id) dibs__lease_share_id(turn->lease);
  if (in->wait_ms > 0) dibs__wait_begin(r, stop_acquiring);
}

static void refuse_held(struct turn *turn) {
  dibs__answer_refuse(turn->request, 409, "held",
                      "another client works on \"%s\"; repeat the request, or give it a \"wait\", to get its answer",
                      ((const struct once_in *)turn->request->in)->key);
  end_turn(turn);
}

static void key_read(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct turn *turn = user;
  const struct once_in *in = turn->request->in;
  if (turn->request->left) {
    dibs__turn_fail(turn, DIBS_CANCELLED, NULL);
  } else if (status == DIBS_OK) {
    write_answer(turn->request, answer);
    end_turn(turn);
  } else if (status != DIBS_NOT_FOUND) {
    dibs__turn_fail(turn, status, error);
  } else if (in->was_held) {
    refuse_held(turn);
  } else {
    acquire(turn);
  }
}

static void read_key(struct turn *turn) {
  dibs_error error = {0};
  dibs_status status = start_step(turn, DIBS__ONCE_READ, key_read, &error);
  if (status != DIBS_OK) dibs__turn_fail(turn, status, &error);
}

static bool begin_post(struct turn *turn) {
  dibs_error error = {0};
  dibs_status status = start_step(turn, DIBS__ONCE_READ, key_read, &error);
  return status == DIBS_OK || dibs__turn_refuse(turn, status, &error);
}

/* ---- PATCH, PUT and DELETE: first the lease ---- */

static bool begin_held(struct turn *turn, dibs_lease_fn renewed) {
  const struct once_in *in = turn->request->in;
  dibs_error error = {0};
  if (!dibs__turn_adopt(turn, 0, in->ttl_ms)) return false;
  dibs_status status = dibs_renew_start(turn->lease, in->ttl_ms, renewed, turn, &error);
  if (status == DIBS_OK) return true;
  dibs__turn_let_go(turn->lease);
  return dibs__turn_refuse(turn, status, &error);
}

static void fail_lost(struct turn *turn) {
  dibs_error error = {0};
  dibs_status status =
      dibs__fail(&error, DIBS_LOST,
                 "the attempt at \"%s\" has ended, by its ttl or by a request; nothing is stored of it,"
                 " and another client may work on the key",
                 ((const struct once_in *)turn->request->in)->key);
  fail_and_keep(turn, status, &error);
}

static void renewed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  if (status == DIBS_LOST) {
    fail_lost(turn);
  } else if (status != DIBS_OK) {
    fail_and_keep(turn, status, error);
  } else {
    write_attempt(turn, 200, dibs_lease_left_ms(lease));
    dibs__turn_let_go(lease);
    end_turn(turn);
  }
}

static bool begin_patch(struct turn *turn) {
  return begin_held(turn, renewed);
}

/* The answer is stored in any case: a lease that could not be released ends with its ttl. */
static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  (void)error;
  if (status != DIBS_OK) dibs__turn_let_go(lease);
  dibs__answer_begin(turn->request, 204);
  dibs__answer_end(turn->request);
  end_turn(turn);
}

static void release(struct turn *turn) {
  dibs_status status = dibs_release_start(turn->lease, released, turn, NULL);
  if (status != DIBS_OK) released(turn->lease, status, NULL, turn);
}

static void stored(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user);

static void store(struct turn *turn) {
  dibs_error error = {0};
  dibs_status status = start_step(turn, DIBS__ONCE_STORE, stored, &error);
  if (status != DIBS_OK) fail_and_keep(turn, status, &error);
}

static void stored(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct turn *turn = user;
  if (status == DIBS_OK) {
    release(turn);
  } else if (may_repeat(turn, status)) {
    store(turn);
  } else if (status == DIBS_REPLAY) {
    write_answer(turn->request, answer);
    end_turn(turn);
  } else {
    fail_and_keep(turn, status, error);
  }
}

/* The attempt has ended: maybe because this request came before, and its answer was lost. */
static void read_after_end(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct turn *turn = user;
  if (status == DIBS_OK) {
    write_answer(turn->request, answer);
    dibs__turn_let_go(turn->lease);
    end_turn(turn);
  } else if (status == DIBS_NOT_FOUND) {
    fail_lost(turn);
  } else {
    fail_and_keep(turn, status, error);
  }
}

static void proven_to_store(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  dibs_error failure = {0};
  (void)lease;
  if (status == DIBS_OK) {
    store(turn);
    return;
  }
  if (status == DIBS_LOST) {
    status = start_step(turn, DIBS__ONCE_READ, read_after_end, &failure);
    if (status == DIBS_OK) return;
    error = &failure;
  }
  fail_and_keep(turn, status, error);
}

static bool begin_put(struct turn *turn) {
  return begin_held(turn, proven_to_store);
}

static void given_up(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  struct turn *turn = user;
  (void)answer;
  if (status == DIBS_OK || status == DIBS_NOT_FOUND) /* NOT_FOUND: it was ended before */
    release(turn);
  else
    fail_and_keep(turn, status, error);
}

static void proven_to_leave(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  dibs_error failure = {0};
  (void)lease;
  if (status == DIBS_LOST) {
    fail_lost(turn);
    return;
  }
  if (status == DIBS_OK) {
    status = start_step(turn, DIBS__ONCE_LEAVE, given_up, &failure);
    if (status == DIBS_OK) return;
    error = &failure;
  }
  fail_and_keep(turn, status, error);
}

static bool begin_delete(struct turn *turn) {
  return begin_held(turn, proven_to_leave);
}

/* ---- Requests ---- */

/* false: the request was answered. */
static bool is_served(struct request *r) {
  dibs_error error = {0};
  const char *key = ((const struct once_in *)r->in)->key;
  if (!dibs__auth_has(r, dibs__auth_key_scope(key, strlen(key)))) {
    dibs__answer_refuse(
        r, 403, "scope",
        "the token \"%s\" may not use the key \"%.255s\": gates keep answers under such keys, which needs"
        " the scope admin",
        dibs__auth_label(r), key);
    return false;
  }
  dibs_status status = dibs__once_check(r->server->store, key, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
  return status == DIBS_OK;
}

static void take_turn(struct request *r, const char *id, bool (*begin)(struct turn *turn)) {
  struct once_in *in = r->in;
  if (in->ttl_ms == FIELD_UNSET) in->ttl_ms = DIBS_TTL_DEFAULT_MS;
  if (in->ttl_ms == 0) in->ttl_ms = END_MS;
  if (!is_served(r)) return;
  dibs__once_name(in->key, in->name);
  dibs__turn_take(r, in->name, id, begin);
}

static void post_once(struct request *r) {
  struct once_in *in = r->in;
  char id[33];
  uint8_t bytes[16];
  if (in->wait_ms == FIELD_UNSET) in->wait_ms = 0;
  if (in->wait_ms > 0 && !dibs__may_wait(r)) return;
  dibs__random(bytes, sizeof bytes);
  dibs__hex_write(bytes, id);
  take_turn(r, in->id ? in->id : id, begin_post);
}

static void patch_once(struct request *r) {
  take_turn(r, ((const struct once_in *)r->in)->id, begin_patch);
}

static void put_once(struct request *r) {
  struct once_in *in = r->in;
  in->keep_ms = dibs__given_or(in->keep_ms, DIBS__ONCE_KEEP_MS);
  take_turn(r, in->id, begin_put);
}

static void delete_once(struct request *r) {
  take_turn(r, ((const struct once_in *)r->in)->id, begin_delete);
}

static void shown(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error, void *user) {
  if (status == DIBS_OK)
    write_answer(user, answer);
  else
    dibs__answer_problem(user, status, error);
}

static void get_once(struct request *r) {
  dibs_error error = {0};
  if (!is_served(r)) return;
  dibs_status status = dibs__once_start(r->server->store, DIBS__ONCE_READ, ((const struct once_in *)r->in)->key, NULL,
                                        0, NULL, 0, shown, r, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

/* ---- The routes ---- */

const struct route dibs__once_routes[] = {
    {METHOD_POST, "/v1/once", SCOPE_USE, post_once, sizeof(struct once_in), post_fields, "beginOnce", "200 201 409 410",
     "Begin the work of a key, or get its answer",
     "201: the work is yours; store its answer with PUT.  200: it was done, and this is its answer.  409: another "
     "client "
     "works on it.",
     NULL},
    {METHOD_PUT, "/v1/once", SCOPE_USE, put_once, sizeof(struct once_in), put_fields, "storeOnce", "200 204 409 410",
     "Store the answer of the work", "200: the key has an answer already, which this one did not replace.", NULL},
    {METHOD_PATCH, "/v1/once", SCOPE_USE, patch_once, sizeof(struct once_in), patch_fields, "renewOnce", "200 410",
     "Work for longer", "", NULL},
    {METHOD_DELETE, "/v1/once", SCOPE_USE, delete_once, sizeof(struct once_in), delete_fields, "leaveOnce",
     "204 409 410", "Give the work up: it has no answer, and another client may begin it", "", NULL},
    {METHOD_GET, "/v1/once", SCOPE_READ, get_once, sizeof(struct once_in), get_fields, "showOnce", "200 404",
     "The answer of a key", "404: the work was not done, or is being done.", NULL},
    {.path = NULL}};
