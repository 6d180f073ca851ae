/* SPDX-License-Identifier: MIT */
/*
 * Leases over HTTP.  A lease belongs to the caller that has its id, not to this daemon: after the grant the daemon
 * keeps nothing of it, and any daemon on the same store can renew and release it.
 */
#include "lease/lease.h"
#include "base/sha256.h"
#include "base/text.h"
#include "dibs/admin.h"
#include "serve/stale.h"
#include "serve/turn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is said of a lease ---- */

static void write_lease(struct turn *turn, int status, int64_t left_ms) {
  struct request *r = turn->request;
  const dibs_lease *lease = turn->lease;
  uint64_t fence = dibs_lease_fence(lease).value;
  const char *name = dibs_lease_name(lease);
  dibs__id id;
  if (dibs__hex_read(turn->id, id.b)) dibs__stale_granted(r->server, &id, dibs__str_of(name, strlen(name)));
  struct dibs__json *j = dibs__answer_begin(r, status);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", name);
  dibs__json_text(j, "id", turn->id);
  dibs__json_known(j, "fence", (int64_t)fence, fence > 0);
  dibs__json_int(j, "left_ms", left_ms > 0 ? left_ms : 0);
  dibs__json_uint(j, "slot", dibs_lease_slot(lease));
  dibs__json_text(j, "tier", dibs_lease_tier(lease));
  dibs__json_close(j, '}');
  dibs__answer_header(r, "Dibs-Lease", "%s", turn->id);
  if (fence > 0) dibs__answer_header(r, "Dibs-Fence", "%" PRIu64, fence);
}

/* ---- Acquiring ---- */

struct acquire_in {
  int64_t ttl_ms, wait_ms, delay_ms, slots;
  int32_t mode;
  const char *owner, *id, *key;
};

static const char *const modes[] = {"exclusive", "shared", "counted", NULL};

#define IN(member) offsetof(struct acquire_in, member)
static const struct field post_fields[] = {
    {.name = "ttl",
     .kind = FIELD_DURATION,
     .at = IN(ttl_ms),
     .least = DIBS_TTL_MIN_MS,
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the lease lasts without renewal; 30s if it is not given"},
    {.name = "wait",
     .kind = FIELD_DURATION,
     .at = IN(wait_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the request may wait for the name; 0, the default: not at all"},
    {.name = "delay",
     .kind = FIELD_DURATION,
     .at = IN(delay_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the name stays held after the lease has ended by itself; a release ends it at once"},
    {.name = "mode",
     .kind = FIELD_WORD,
     .at = IN(mode),
     .words = modes,
     .help = "exclusive, the default; shared; counted"},
    {.name = "slots",
     .kind = FIELD_NUMBER,
     .at = IN(slots),
     .least = 1,
     .most = DIBS_SLOTS_MAX,
     .help = "of a counted lease: how many may hold it"},
    {.name = "owner",
     .at = IN(owner),
     .least = 1,
     .most = DIBS_OWNER_MAX,
     .help = "a label for people; if it is not given, that of the token, or else of the daemon"},
    {.name = "id",
     .kind = FIELD_ID,
     .at = IN(id),
     .least = 32,
     .most = 32,
     .help = "32 random hexadecimal digits of the caller; a request that is repeated with it finds its own grant"},
    {.name = "Idempotency-Key",
     .place = FIELD_HEADER,
     .at = IN(key),
     .least = 1,
     .most = DIBS_NAME_MAX,
     .help =
         "in place of the id, which the daemon computes from the name and this text: random and secret, too; with an "
         "id it has no effect"},
    {.name = NULL}};

static void acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  struct request *r = turn->request;
  const struct acquire_in *in = r->in;
  dibs__wait_end(r);
  int64_t left_ms = dibs_lease_left_ms(lease) - in->delay_ms;
  if (status == DIBS_OK && !r->left && dibs_lease_detach(lease, NULL) == DIBS_OK) {
    write_lease(turn, 201, left_ms);
    dibs__answer_end(r);
    dibs_lease_free(lease);
    dibs__turn_end(turn);
    return;
  }
  /* Nobody waits here for what was granted.  With an id of its own the client may have it by another daemon: it ends
   * with its ttl.  Otherwise freeing the handle releases it. */
  if (status == DIBS_OK && (in->id || in->key)) dibs__turn_let_go(lease);
  dibs__turn_fail(turn, status == DIBS_OK ? DIBS_CANCELLED : status, error);
}

static void stop_acquiring(struct request *r) {
  dibs_acquire_cancel(((struct turn *)r->work)->lease);
}

static bool begin_acquire(struct turn *turn) {
  struct request *r = turn->request;
  const struct acquire_in *in = r->in;
  dibs_error error = {0};
  dibs_lease_options options = {.size = sizeof options,
                                .mode = (dibs_mode)in->mode,
                                .slots = (uint32_t)in->slots,
                                .flags = DIBS_NO_RENEW,
                                .ttl_ms = in->ttl_ms + in->delay_ms,
                                .wait_ms = in->wait_ms,
                                .owner = dibs__auth_owner(r, in->owner),
                                .id = turn->id};
  dibs_status status =
      dibs_acquire_start(r->server->store, r->param[0], &options, acquired, turn, &turn->lease, &error);
  if (status != DIBS_OK) return dibs__turn_refuse(turn, status, &error);
  if (in->id || in->key) dibs__lease_share_id(turn->lease);
  if (in->wait_ms > 0) dibs__wait_begin(r, stop_acquiring);
  return true;
}

/* The same for the same caller's text, name and nothing else. */
static void id_of_key(const char *name, const char *key, char id[33]) {
  struct dibs__sha256 hash;
  char hex[65];
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, name, strlen(name) + 1);
  dibs__sha256_add(&hash, key, strlen(key));
  dibs__sha256_end(&hash, hex);
  memcpy(id, hex, 32);
  id[32] = '\0';
}

static void post_lease(struct request *r) {
  struct acquire_in *in = r->in;
  char id[33];
  uint8_t bytes[16];
  if (in->ttl_ms == FIELD_UNSET) in->ttl_ms = DIBS_TTL_DEFAULT_MS;
  if (in->wait_ms == FIELD_UNSET) in->wait_ms = 0;
  if (in->delay_ms == FIELD_UNSET) in->delay_ms = 0;
  if (in->slots == FIELD_UNSET) in->slots = 0;
  if (in->ttl_ms + in->delay_ms > DIBS_TTL_MAX_MS) {
    dibs__answer_refuse(r, 400, "invalid", "ttl and delay together are more than a day");
    return;
  }
  if (in->wait_ms > 0 && !dibs__may_wait(r)) return;
  dibs__random(bytes, sizeof bytes);
  dibs__hex_write(bytes, id);
  if (in->key) id_of_key(r->param[0], in->key, id);
  dibs__turn_take(r, r->param[0], in->id ? in->id : id, begin_acquire);
}

/* ---- Renewing and releasing: by the id alone ---- */

struct held_in {
  const char *id;
  int64_t fence, ttl_ms, delay_ms, keep_ms, at_least_ms;
};

#undef IN
#define IN(member) offsetof(struct held_in, member)
#define ID_FIELD                                                                                                       \
  {                                                                                                                    \
    .name = "Dibs-Lease", .place = FIELD_HEADER, .kind = FIELD_ID, .at = IN(id), .least = 32, .most = 32,              \
    .needed = true, .help = "the id of the lease"                                                                      \
  }
#define FENCE_FIELD                                                                                                    \
  {                                                                                                                    \
    .name = "Dibs-Fence", .place = FIELD_HEADER, .kind = FIELD_NUMBER, .at = IN(fence),                                \
    .most = (INT64_C(1) << 53) - 1, .help = "its fence, if the caller knows it: saves a step"                          \
  }
static const struct field patch_fields[] = {ID_FIELD,
                                            FENCE_FIELD,
                                            {.name = "ttl",
                                             .kind = FIELD_DURATION,
                                             .at = IN(ttl_ms),
                                             .least = DIBS_TTL_MIN_MS,
                                             .most = DIBS_TTL_MAX_MS,
                                             .help = "how long it lasts from now on; 30s if it is not given"},
                                            {.name = "delay",
                                             .kind = FIELD_DURATION,
                                             .at = IN(delay_ms),
                                             .most = DIBS_TTL_MAX_MS,
                                             .help = "how long the name stays held after that"},
                                            {.name = NULL}};
static const struct field delete_fields[] = {
    ID_FIELD,
    FENCE_FIELD,
    {.name = "keep",
     .place = FIELD_QUERY,
     .kind = FIELD_DURATION,
     .at = IN(keep_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the name stays held from now on; 0, the default: it is free at once"},
    {.name = "at_least",
     .place = FIELD_QUERY,
     .kind = FIELD_DURATION,
     .at = IN(at_least_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "the name stays held until the lease was held for so long; with `keep` the later end counts"},
    {.name = NULL}};

static uint64_t fence_of(const struct held_in *in) {
  return in->fence == FIELD_UNSET ? 0 : (uint64_t)in->fence;
}

static void renewed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  const struct held_in *in = turn->request->in;
  if (status != DIBS_OK) {
    dibs__turn_let_go(lease);
    dibs__turn_fail(turn, status, error);
    return;
  }
  write_lease(turn, 200, dibs_lease_left_ms(lease) - in->delay_ms);
  dibs__answer_end(turn->request);
  dibs__turn_let_go(lease);
  dibs_lease_free(lease);
  dibs__turn_end(turn);
}

static bool begin_renewal(struct turn *turn) {
  const struct held_in *in = turn->request->in;
  dibs_error error = {0};
  int64_t ttl_ms = in->ttl_ms + in->delay_ms;
  if (!dibs__turn_adopt(turn, fence_of(in), ttl_ms)) return false;
  dibs_status status = dibs_renew_start(turn->lease, ttl_ms, renewed, turn, &error);
  if (status == DIBS_OK) return true;
  dibs__turn_let_go(turn->lease);
  return dibs__turn_refuse(turn, status, &error);
}

static void patch_lease(struct request *r) {
  struct held_in *in = r->in;
  if (in->ttl_ms == FIELD_UNSET) in->ttl_ms = DIBS_TTL_DEFAULT_MS;
  if (in->delay_ms == FIELD_UNSET) in->delay_ms = 0;
  if (in->ttl_ms + in->delay_ms > DIBS_TTL_MAX_MS)
    dibs__answer_refuse(r, 400, "invalid", "ttl and delay together are more than a day");
  else
    dibs__turn_take(r, r->param[0], in->id, begin_renewal);
}

static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  if (status != DIBS_OK) {
    dibs__turn_let_go(lease); /* the caller repeats the request, maybe elsewhere: no release in the background */
    dibs__turn_fail(turn, status, error);
    return;
  }
  dibs__answer_begin(turn->request, 204);
  dibs__answer_end(turn->request);
  dibs_lease_free(lease);
  dibs__turn_end(turn);
}

/* The name stays held for a while, as a lease that nobody has. */
static void kept(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  if (status == DIBS_OK) dibs__turn_let_go(lease);
  released(lease, status, error, user);
}

static bool begin_release(struct turn *turn) {
  const struct held_in *in = turn->request->in;
  dibs_error error = {0};
  int64_t keep_ms = in->keep_ms <= 0 ? 0 : in->keep_ms < DIBS_TTL_MIN_MS ? DIBS_TTL_MIN_MS : in->keep_ms;
  if (!dibs__turn_adopt(turn, fence_of(in), keep_ms)) return false;
  dibs_status status = keep_ms > 0 ? dibs_renew_start(turn->lease, keep_ms, kept, turn, &error)
                                   : dibs_release_start(turn->lease, released, turn, &error);
  return status == DIBS_OK || dibs__turn_refuse(turn, status, &error);
}

static void take_release(struct request *r) {
  dibs__turn_take(r, r->param[0], ((struct held_in *)r->in)->id, begin_release);
}

/* -1: there was none yet. */
static int find_youngest(const dibs_lease_info *info, void *user) {
  int64_t *age_ms = user;
  if (info->state == DIBS_HOLDS && info->age_ms >= 0 && (*age_ms < 0 || info->age_ms < *age_ms)) *age_ms = info->age_ms;
  return 0;
}

/* Only the store knows when it granted the lease.  Of several holders, which no list distinguishes by their ids, the
 * youngest one counts: a name may be held for longer than at_least, and never for less.  The age is read before the
 * renewal, which counts from later on.  Without a holder the release finds that the lease is lost. */
static void keep_at_least(struct request *r) {
  struct held_in *in = r->in;
  dibs_error error = {0};
  int64_t age_ms = -1;
  dibs_status status = dibs_show(r->server->store, r->param[0], find_youngest, &age_ms, &error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) dibs__answer_problem(r, status, &error);
  if (age_ms >= 0 && in->at_least_ms - age_ms > in->keep_ms) in->keep_ms = in->at_least_ms - age_ms;
}

static void age_read(struct request *r) {
  if (r->answer.status != 0)
    dibs__answer_end(r);
  else
    take_release(r);
}

static void delete_lease(struct request *r) {
  if (((struct held_in *)r->in)->at_least_ms <= 0) { /* FIELD_UNSET, or 0 */
    take_release(r);
    return;
  }
  r->then = age_read;
  dibs__pool_run(r, keep_at_least, NULL);
}

/* ---- Who holds it ---- */

int dibs__lease_row_write(const dibs_lease_info *info, void *user) {
  static const char *const states[] = {"holds", "waits", "offered", "breaking", "broken"};
  struct dibs__json *j = user;
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", info->name);
  dibs__json_text(j, "state", states[info->state]);
  dibs__json_text(j, "owner", info->owner);
  dibs__json_text(j, "mode", modes[info->mode]);
  dibs__json_known(j, "fence", (int64_t)info->fence.value, info->fence.value > 0);
  dibs__json_known(j, "ttl_ms", info->ttl_ms, info->ttl_ms > 0);
  dibs__json_int(j, "left_ms", info->left_ms);
  dibs__json_known(j, "age_ms", info->age_ms, info->age_ms >= 0);
  dibs__json_uint(j, "ahead", info->ahead);
  dibs__json_uint(j, "slots", info->slots);
  dibs__json_text(j, "tier", *info->tier ? info->tier : NULL);
  if (info->state == DIBS_BROKEN) dibs__json_text(j, "taken_from", info->from);
  dibs__json_close(j, '}');
  return 0;
}

static void show(struct request *r) {
  dibs_error error = {0};
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", r->param[0]);
  dibs__json_open(j, "leases", '[');
  dibs_status status = dibs_show(r->server->store, r->param[0], dibs__lease_row_write, j, &error);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_lease(struct request *r) {
  dibs__pool_run(r, show, NULL);
}

/* ---- The routes ---- */

const struct route dibs__lease_routes[] = {
    {METHOD_POST, "/v1/leases/{name}", SCOPE_USE, post_lease, sizeof(struct acquire_in), post_fields, "acquireLease",
     "201 409 410", "Acquire the lease of a name",
     "With `wait` the request waits in the queue of the name, first come, first served.  A client that hangs up leaves "
     "the queue.",
     NULL},
    {METHOD_PATCH, "/v1/leases/{name}", SCOPE_USE, patch_lease, sizeof(struct held_in), patch_fields, "renewLease",
     "200 410", "Renew a lease", "", NULL},
    {METHOD_DELETE, "/v1/leases/{name}", SCOPE_USE, delete_lease, sizeof(struct held_in), delete_fields, "releaseLease",
     "204 410", "Release a lease", "", NULL},
    {METHOD_GET, "/v1/leases/{name}", SCOPE_READ, get_lease, 0, NULL, "showLease", "200 404",
     "The holders of a name, and its waiters", "", NULL},
    {.path = NULL}};
