/* SPDX-License-Identifier: MIT */
/*
 * A member of a topic, as a client of HTTP: one request renews its membership and its lanes, gets new ones, and says
 * which are to be given back.  The member lease and those of the lanes belong to the client, which has their ids.  The
 * daemon keeps nothing between two requests, so any daemon on the same store can take the next one.
 *
 *   renew the membership -> look (in the pool) -> renew, release, acquire lanes -> prove the membership -> answer
 *                            ^                                                          |
 *                            +------------------- nothing to say yet: wait -------------+
 *
 * lane/lane.h says why the membership is proved again before a lane is answered that the client did not have before.
 * Requests with one member id are done one after the other (turn.h).
 */
#include "base/sha256.h"
#include "base/text.h"
#include "handle/handle.h"
#include "lane/lane.h"
#include "serve/field.h"
#include "serve/stale.h"
#include "serve/turn.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
  LOOK_PART = 10, /* of the ttl: how often a request that waits looks, as members in a process do */
  LOOK_MOST_MS = 1000,
  LOOK_LEAST_MS = 100,
  WAIT_PART = 2 /* of the ttl: a request waits no longer, because it renews only when it begins */
};

/* ---- The request ---- */

struct row_in {
  int64_t lane, lanes, fence, left_ms;
  const char *id, *name;
  int64_t keep;
};
#define IN(member) offsetof(struct row_in, member)
static const struct field row_fields[] = {
    {.name = "lane",
     .kind = FIELD_NUMBER,
     .at = IN(lane),
     .most = DIBS_LANES_MAX - 1,
     .needed = true,
     .help = "its number"},
    {.name = "lanes",
     .kind = FIELD_NUMBER,
     .at = IN(lanes),
     .least = 1,
     .most = DIBS_LANES_MAX,
     .needed = true,
     .help = "how many lanes there are"},
    {.name = "id",
     .kind = FIELD_ID,
     .at = IN(id),
     .least = 32,
     .most = 32,
     .needed = true,
     .help = "of the lease of the lane"},
    {.name = "fence",
     .kind = FIELD_NUMBER,
     .at = IN(fence),
     .least = 1,
     .most = (INT64_C(1) << 53) - 1,
     .needed = true,
     .help = "of that lease"},
    {.name = "keep", .kind = FIELD_SWITCH, .at = IN(keep), .help = "as the answer had it; true if it is not given"},
    {.name = "name", .at = IN(name), .most = DIBS_NAME_MAX, .help = "as the answer had it; it is not read"},
    {.name = "left_ms",
     .kind = FIELD_NUMBER,
     .at = IN(left_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "as the answer had it; it is not read"},
    {.name = NULL}};

struct visit;

struct member_in {
  const char *id, *key;
  int64_t ttl_ms, wait_ms;
  bool leave;
  struct json_t *held, *release;
  struct visit *visit; /* not a field */
};
#undef IN
#define IN(member) offsetof(struct member_in, member)
static const struct field member_fields[] = {
    {.name = "Dibs-Lease",
     .place = FIELD_HEADER,
     .kind = FIELD_ID,
     .at = IN(id),
     .least = 32,
     .most = 32,
     .needed = true,
     .help = "the id of the member"},
    {.name = "Idempotency-Key",
     .place = FIELD_HEADER,
     .at = IN(key),
     .least = 1,
     .most = DIBS_NAME_MAX,
     .help =
         "a new text for each request: if there was no answer, the same request again finds the lanes that it got.  "
         "Without it such lanes have no owner until their leases end"},
    {.name = "ttl",
     .kind = FIELD_DURATION,
     .at = IN(ttl_ms),
     .least = DIBS_TTL_MIN_MS,
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the membership and the lanes last from now on; 30s if it is not given"},
    {.name = "wait",
     .kind = FIELD_DURATION,
     .at = IN(wait_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the request may wait for a change, half of the ttl at most; 0, the default: not at all"},
    {.name = "leave",
     .kind = FIELD_FLAG,
     .at = IN(leave),
     .help = "the member gets no more lanes, and has left as soon as a request has no lanes in `held`"},
    {.name = "held",
     .kind = FIELD_ITEMS,
     .at = IN(held),
     .most = DIBS_LANES_MAX,
     .items = row_fields,
     .help = "the lanes that the client works on, as an answer had them: they are renewed"},
    {.name = "release",
     .kind = FIELD_ITEMS,
     .at = IN(release),
     .most = DIBS_LANES_MAX,
     .items = row_fields,
     .help = "lanes that the client has stopped to work on: others may have them"},
    {.name = NULL}};

/* ---- What a request does ---- */

/* A lane that the request has or gets. */
struct row {
  struct visit *visit;
  uint32_t lane, lanes;
  uint64_t fence;
  dibs_lease *lease;  /* while an operation runs; of a lane that is new, until the answer */
  dibs__tick until;   /* surely the member's until then */
  bool keep, keep_in; /* to say; as the client knows it */
  bool is_new, releases, gone, lost;
  char id[33];
};

struct visit {
  struct request *request;
  struct turn *turn;
  uint32_t slot;
  dibs__tick until; /* of the membership */
  dibs__tick by, look_at;
  int64_t look_ms;
  struct row *rows;
  size_t count, capacity;
  uint32_t pending; /* operations of rows */
  bool renewed;     /* the rows of the request were */
  bool waits, busy; /* in the list of the server; it looks now */
  bool left_topic, resized;
  struct visit *before, *after; /* those that wait */
  dibs_status status;           /* of the look; the first failure of a row */
  dibs_error error;
  struct dibs__lane_share share;
  char name[DIBS_NAME_MAX + 1]; /* of the members' lease */
};

struct visits {
  struct visit *first;
  dibs__tick next; /* of those that wait: the first one is due */
};

static struct visit *visit_of(const struct request *r) {
  return ((const struct member_in *)r->in)->visit;
}

static void free_visit(struct request *r) {
  struct visit *visit = visit_of(r);
  if (!visit) return;
  assert(!visit->waits && !visit->busy && visit->pending == 0);
  free(visit->rows);
  free(visit);
}

static bool has_lane(const struct visit *visit, uint32_t lane, uint32_t lanes) {
  for (size_t i = 0; i < visit->count; i++) {
    const struct row *row = &visit->rows[i];
    if (row->lane == lane && row->lanes == lanes && !row->gone) return true;
  }
  return false;
}

static bool has_id(const struct visit *visit, const char *id) {
  for (size_t i = 0; i < visit->count; i++)
    if (strcmp(visit->rows[i].id, id) == 0) return true;
  return false;
}

/* ---- The end of a request ---- */

static void leave_list(struct visit *visit) {
  struct visits *all = visit->request->server->visits;
  if (!visit->waits) return;
  visit->waits = false;
  if (visit->before)
    visit->before->after = visit->after;
  else
    all->first = visit->after;
  if (visit->after) visit->after->before = visit->before;
}

/* New lanes that nobody learns of: the same request finds them again if it has a key; otherwise freeing the handle
 * releases them. */
static void drop_new_lanes(struct visit *visit) {
  bool keyed = ((const struct member_in *)visit->request->in)->key != NULL;
  for (size_t i = 0; i < visit->count; i++) {
    struct row *row = &visit->rows[i];
    if (!row->is_new || !row->lease) continue;
    if (keyed) dibs__turn_let_go(row->lease);
    dibs_lease_free(row->lease);
    row->lease = NULL;
  }
}

static void fail(struct visit *visit, dibs_status status, const dibs_error *error) {
  leave_list(visit);
  drop_new_lanes(visit);
  dibs__turn_fail(visit->turn, status, error);
}

static void write_row(struct dibs__json *j, const struct visit *visit, const struct row *row, dibs__tick now) {
  char name[DIBS_NAME_MAX + 1];
  dibs__lane_name(visit->request->param[0], row->lanes, row->lane, name);
  dibs__json_open(j, NULL, '{');
  dibs__json_uint(j, "lane", row->lane);
  dibs__json_uint(j, "lanes", row->lanes);
  dibs__json_text(j, "name", name);
  dibs__json_text(j, "id", row->id);
  dibs__json_uint(j, "fence", row->fence);
  dibs__json_int(j, "left_ms", dibs__tick_left_ms(now, row->until));
  dibs__json_bool(j, "keep", row->keep);
  dibs__json_close(j, '}');
}

static void write_lost(struct dibs__json *j, const struct visit *visit) {
  dibs__json_open(j, "lost", '[');
  for (size_t i = 0; i < visit->count; i++) {
    if (!visit->rows[i].lost) continue;
    dibs__json_open(j, NULL, '{');
    dibs__json_uint(j, "lane", visit->rows[i].lane);
    dibs__json_uint(j, "lanes", visit->rows[i].lanes);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
}

/* From now on they are the client's. */
static void pass_new_lanes(struct visit *visit) {
  for (size_t i = 0; i < visit->count; i++) {
    struct row *row = &visit->rows[i];
    const char *name = dibs_lease_name(row->lease);
    dibs__id id;
    if (!row->lease) continue;
    if (dibs__hex_read(row->id, id.b))
      dibs__stale_granted(visit->request->server, &id, dibs__str_of(name, strlen(name)));
    if (dibs_lease_detach(row->lease, NULL) != DIBS_OK) row->gone = true; /* it has ended meanwhile */
    dibs_lease_free(row->lease);
    row->lease = NULL;
  }
}

static void answer(struct visit *visit) {
  struct request *r = visit->request;
  dibs__tick now = dibs__tick_now();
  leave_list(visit);
  pass_new_lanes(visit);
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "topic", r->param[0]);
  dibs__json_uint(j, "slot", visit->slot);
  dibs__json_text(j, "state", visit->left_topic ? "left" : visit->resized ? "resized" : "member");
  dibs__json_known(j, "lanes", visit->share.lanes, visit->share.lanes > 0);
  dibs__json_uint(j, "members", visit->share.members);
  dibs__json_int(j, "left_ms", visit->left_topic ? 0 : dibs__tick_left_ms(now, visit->until));
  dibs__json_open(j, "held", '[');
  for (size_t i = 0; i < visit->count; i++)
    if (!visit->rows[i].gone) write_row(j, visit, &visit->rows[i], now);
  dibs__json_close(j, ']');
  write_lost(j, visit);
  dibs__json_close(j, '}');
  dibs__answer_end(r);
  dibs__turn_end(visit->turn);
}

/* ---- The membership ---- */

/* Makes the handle of the membership again.  false: the request was answered. */
static bool adopt_membership(struct visit *visit) {
  const struct member_in *in = visit->request->in;
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW, .ttl_ms = in->ttl_ms};
  dibs_error error = {0};
  dibs_status status = dibs_lease_adopt(visit->request->server->store, visit->name, visit->turn->id, (dibs_fence){0},
                                        &options, &visit->turn->lease, &error);
  if (status == DIBS_OK) return true;
  if (status == DIBS_INVALID) status = DIBS_UNAVAILABLE; /* another handle has the id, and ends soon */
  fail(visit, status, &error);
  return false;
}

static void note_membership(struct visit *visit, dibs_lease *lease) {
  visit->until = dibs__tick_add_ms(dibs__tick_now(), dibs_lease_left_ms(lease));
  dibs__turn_let_go(lease);
  dibs_lease_free(lease);
  visit->turn->lease = NULL;
}

static void left_topic(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct visit *visit = user;
  if (status != DIBS_OK && status != DIBS_LOST) {
    dibs__turn_let_go(lease);
    fail(visit, status, error);
    return;
  }
  dibs_lease_free(lease);
  visit->turn->lease = NULL;
  visit->left_topic = true;
  answer(visit);
}

static void leave_topic(struct visit *visit) {
  dibs_error error = {0};
  if (!adopt_membership(visit)) return;
  dibs_status status = dibs_release_start(visit->turn->lease, left_topic, visit, &error);
  if (status != DIBS_OK) fail(visit, status, &error);
}

/* ---- After the operations of the rows ---- */

static void look(struct visit *visit);

/* The client hung up, its token was removed, or the daemon stops. */
static void end_wait(struct request *r) {
  struct visit *visit = visit_of(r);
  if (!visit->busy) fail(visit, DIBS_CANCELLED, NULL);
}

static void join_list(struct visit *visit) {
  struct request *r = visit->request;
  struct visits *all = r->server->visits;
  visit->look_at = dibs__tick_add_ms(dibs__tick_now(), visit->look_ms);
  all->next = dibs__tick_min(all->next, dibs__tick_min(visit->look_at, visit->by));
  if (visit->waits) return;
  visit->waits = true;
  visit->before = NULL;
  visit->after = all->first;
  if (visit->after) visit->after->before = visit;
  all->first = visit;
  dibs__wait_begin(r, end_wait);
}

static bool is_empty(const struct visit *visit) {
  for (size_t i = 0; i < visit->count; i++)
    if (!visit->rows[i].gone) return false;
  return true;
}

/* Has the client to learn something? */
static bool has_news(struct visit *visit) {
  const struct dibs__lane_share *share = &visit->share;
  const struct member_in *in = visit->request->in;
  bool news = in->leave || (visit->resized && is_empty(visit));
  for (size_t i = 0; i < visit->count; i++) {
    struct row *row = &visit->rows[i];
    /* A store that does not show the member now does not say either what is to be its own. */
    row->keep = share->lanes == 0 && !in->leave
                    ? row->keep_in
                    : !in->leave && !visit->resized && row->lanes == share->lanes && share->mine[row->lane];
    if (row->lost || (!row->gone && (row->is_new || row->keep != row->keep_in))) news = true;
  }
  return news;
}

static void decide(struct visit *visit) {
  struct request *r = visit->request;
  const struct member_in *in = r->in;
  visit->busy = false;
  if (r->left)
    fail(visit, DIBS_CANCELLED, NULL);
  else if (in->leave && is_empty(visit))
    leave_topic(visit);
  else if (has_news(visit) || r->server->stopping || !dibs__tick_before(dibs__tick_now(), visit->by))
    answer(visit);
  else
    join_list(visit);
}

/* The membership was asked of the store after the lanes had been granted. */
static void proved(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct visit *visit = user;
  if (status != DIBS_OK) {
    dibs__turn_let_go(lease);
    visit->busy = false;
    fail(visit, status, error);
    return;
  }
  note_membership(visit, lease);
  decide(visit);
}

static void prove(struct visit *visit) {
  const struct member_in *in = visit->request->in;
  dibs_error error = {0};
  if (!adopt_membership(visit)) return;
  dibs_status status = dibs_renew_start(visit->turn->lease, in->ttl_ms, proved, visit, &error);
  if (status == DIBS_OK) return;
  dibs__turn_let_go(visit->turn->lease);
  fail(visit, status, &error);
}

static void rows_done(struct visit *visit) {
  bool gained = false;
  for (size_t i = 0; i < visit->count; i++) gained = gained || (visit->rows[i].is_new && visit->rows[i].lease);
  visit->renewed = true;
  if (visit->status != DIBS_OK || gained) visit->busy = false;
  if (visit->status != DIBS_OK) {
    fail(visit, visit->status, &visit->error);
  } else if (gained) {
    leave_list(visit);
    dibs__wait_end(visit->request);
    prove(visit);
  } else {
    decide(visit);
  }
}

static void one_done(struct visit *visit) {
  if (--visit->pending == 0) rows_done(visit);
}

/* ---- The lanes ---- */

static void keep_failure(struct visit *visit, dibs_status status, const dibs_error *error) {
  if (visit->status != DIBS_OK) return;
  visit->status = status;
  if (error) visit->error = *error;
}

static void renewed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct row *row = user;
  row->lost = row->gone = status == DIBS_LOST;
  if (status != DIBS_OK && status != DIBS_LOST) keep_failure(row->visit, status, error);
  row->until = dibs__tick_add_ms(dibs__tick_now(), dibs_lease_left_ms(lease));
  dibs__turn_let_go(lease);
  dibs_lease_free(lease);
  row->lease = NULL;
  one_done(row->visit);
}

static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct row *row = user;
  if (status != DIBS_OK) dibs__turn_let_go(lease);
  if (status != DIBS_OK && status != DIBS_LOST) keep_failure(row->visit, status, error);
  dibs_lease_free(lease);
  row->lease = NULL;
  row->gone = true;
  one_done(row->visit);
}

/* A lane that is not free now is tried again at the next look. */
static void acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct row *row = user;
  (void)error;
  if (status == DIBS_OK) {
    row->fence = dibs_lease_fence(lease).value;
    row->until = dibs__tick_add_ms(dibs__tick_now(), dibs_lease_left_ms(lease));
  } else {
    row->gone = true;
    dibs_lease_free(lease);
    row->lease = NULL;
  }
  one_done(row->visit);
}

static dibs_status begin_row(struct row *row, dibs_error *error) {
  struct visit *visit = row->visit;
  struct request *r = visit->request;
  const struct member_in *in = r->in;
  char name[DIBS_NAME_MAX + 1];
  dibs__lane_name(r->param[0], row->lanes, row->lane, name);
  dibs_lease_options options = {.size = sizeof options,
                                .flags = DIBS_NO_RENEW,
                                .ttl_ms = in->ttl_ms,
                                .owner = visit->share.owner[0] ? visit->share.owner : NULL,
                                .id = row->id};
  if (row->is_new) return dibs_acquire_start(r->server->store, name, &options, acquired, row, &row->lease, error);
  dibs_status status =
      dibs_lease_adopt(r->server->store, name, row->id, (dibs_fence){row->fence}, &options, &row->lease, error);
  if (status == DIBS_INVALID) return DIBS_UNAVAILABLE; /* another handle has the id, and ends soon */
  if (status != DIBS_OK) return status;
  status = row->releases ? dibs_release_start(row->lease, released, row, error)
                         : dibs_renew_start(row->lease, in->ttl_ms, renewed, row, error);
  if (status != DIBS_OK) dibs__turn_let_go(row->lease);
  return status;
}

static void start_row(struct row *row) {
  struct visit *visit = row->visit;
  dibs_error error = {0};
  visit->pending++;
  dibs_status status = begin_row(row, &error);
  if (status == DIBS_OK) return;
  dibs_lease_free(row->lease);
  row->lease = NULL;
  if (row->is_new)
    row->gone = true;
  else
    keep_failure(visit, status, &error);
  one_done(visit);
}

/* reserve_rows came before: no row is moved while its address is in an operation. */
static struct row *add_row(struct visit *visit, uint32_t lane, uint32_t lanes) {
  assert(visit->count < visit->capacity);
  struct row *row = &visit->rows[visit->count++];
  *row = (struct row){.visit = visit, .lane = lane, .lanes = lanes, .keep = true, .keep_in = true};
  return row;
}

/* The id of a lane that is new: of the request's key, or drawn. */
static void make_id(const struct visit *visit, struct row *row) {
  const struct member_in *in = visit->request->in;
  uint8_t bytes[16];
  char name[DIBS_NAME_MAX + 1], hex[65];
  if (!in->key) {
    dibs__random(bytes, sizeof bytes);
    dibs__hex_write(bytes, row->id);
    return;
  }
  struct dibs__sha256 hash;
  dibs__lane_name(visit->request->param[0], row->lanes, row->lane, name);
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, visit->turn->id, 32);
  dibs__sha256_add(&hash, name, strlen(name) + 1);
  dibs__sha256_add(&hash, in->key, strlen(in->key));
  dibs__sha256_end(&hash, hex);
  memcpy(row->id, hex, 32);
  row->id[32] = '\0';
}

/* false: no memory. */
static bool reserve_rows(struct visit *visit, size_t more) {
  if (visit->count + more <= visit->capacity) return true;
  struct row *rows = realloc(visit->rows, (visit->count + more) * sizeof *rows);
  if (!rows) return false;
  visit->rows = rows;
  visit->capacity = visit->count + more;
  return true;
}

/* Removes rows of lanes that were tried and not got. */
static void drop_failed_rows(struct visit *visit) {
  size_t kept = 0;
  for (size_t i = 0; i < visit->count; i++)
    if (!visit->rows[i].is_new || !visit->rows[i].gone) visit->rows[kept++] = visit->rows[i];
  visit->count = kept;
}

/* Adds rows for the lanes that the member is to have, and does not have.  false: no memory. */
static bool add_new_lanes(struct visit *visit) {
  const struct dibs__lane_share *share = &visit->share;
  const struct member_in *in = visit->request->in;
  size_t count = 0;
  visit->resized = share->lanes > 0 && share->topic_lanes > 0 && share->lanes != share->topic_lanes;
  if (in->leave || visit->resized || !share->clear) return true;
  for (uint32_t lane = 0; lane < share->lanes; lane++) count += share->mine[lane];
  if (!reserve_rows(visit, count)) return false;
  for (uint32_t lane = 0; lane < share->lanes; lane++) {
    if (!share->mine[lane] || has_lane(visit, lane, share->lanes)) continue;
    struct row *row = add_row(visit, lane, share->lanes);
    row->is_new = true;
    make_id(visit, row);
  }
  return true;
}

/* ---- Looking ---- */

static void look_in_pool(struct request *r) {
  struct visit *visit = visit_of(r);
  visit->status = dibs__lane_share(r->server->store, r->param[0], visit->slot, &visit->share, &visit->error);
}

static void looked(struct request *r) {
  struct visit *visit = visit_of(r);
  drop_failed_rows(visit);
  if (visit->status == DIBS_OK && !add_new_lanes(visit)) visit->status = DIBS_NO_MEMORY;
  if (visit->status != DIBS_OK || r->left) {
    visit->busy = false;
    fail(visit, r->left ? DIBS_CANCELLED : visit->status, &visit->error);
    return;
  }
  visit->pending = 1; /* until all are started */
  for (size_t i = 0; i < visit->count; i++)
    if (!visit->renewed || visit->rows[i].is_new) start_row(&visit->rows[i]);
  one_done(visit);
}

/* The pool is full or ends, and has answered the request. */
static void drop_look(struct request *r) {
  struct visit *visit = visit_of(r);
  visit->busy = false;
  leave_list(visit);
  dibs__turn_end(visit->turn);
}

static void look(struct visit *visit) {
  struct request *r = visit->request;
  visit->busy = true;
  r->then = looked;
  if (!visit->waits)
    dibs__pool_run(r, look_in_pool, drop_look);
  else if (!dibs__pool_try(r, look_in_pool, drop_look))
    visit->busy = false; /* the next tick tries again */
}

/* ---- The beginning ---- */

static void membership_renewed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  struct visit *visit = visit_of(turn->request);
  dibs_error other;
  if (status == DIBS_OK && dibs_lease_slot(lease) != visit->slot) {
    status = dibs__fail(&other, DIBS_INVALID, "the member with this id has the slot %" PRIu32 ", not %" PRIu32,
                        dibs_lease_slot(lease), visit->slot);
    error = &other;
  }
  if (status != DIBS_OK) {
    dibs__turn_let_go(lease);
    dibs__turn_fail(turn, status, error);
    return;
  }
  visit->turn = turn;
  note_membership(visit, lease);
  look(visit);
}

static bool begin_visit(struct turn *turn) {
  const struct member_in *in = turn->request->in;
  dibs_error error = {0};
  if (!dibs__turn_adopt(turn, 0, in->ttl_ms)) return false;
  dibs_status status = dibs_renew_start(turn->lease, in->ttl_ms, membership_renewed, turn, &error);
  if (status == DIBS_OK) return true;
  dibs__turn_let_go(turn->lease);
  return dibs__turn_refuse(turn, status, &error);
}

/* false: the request was answered. */
static bool read_rows(struct visit *visit, struct json_t *list, bool releases) {
  struct request *r = visit->request;
  size_t count = list ? json_array_size(list) : 0;
  for (size_t i = 0; i < count; i++) {
    struct row_in in = {.id = NULL};
    uint8_t bytes[16];
    char id[33];
    if (!dibs__fields_read_item(r, row_fields, json_array_get(list, i), &in)) return false;
    if (in.lane >= in.lanes || has_lane(visit, (uint32_t)in.lane, (uint32_t)in.lanes)) {
      dibs__answer_refuse(r, 400, "invalid", "%s: lane %" PRId64 " of %" PRId64 " %s", releases ? "release" : "held",
                          in.lane, in.lanes, in.lane >= in.lanes ? "does not exist" : "is there twice");
      return false;
    }
    (void)dibs__hex_read(in.id, bytes); /* checked; either case is the same id */
    dibs__hex_write(bytes, id);
    if (has_id(visit, id)) {
      dibs__answer_refuse(r, 400, "invalid", "%s: the id %s is there twice; each lane has its own",
                          releases ? "release" : "held", id);
      return false;
    }
    struct row *row = add_row(visit, (uint32_t)in.lane, (uint32_t)in.lanes);
    row->fence = (uint64_t)in.fence;
    row->keep_in = dibs__given_or(in.keep, 1) != 0;
    row->releases = releases;
    memcpy(row->id, id, sizeof id);
  }
  return true;
}

/* "7" -> 7. false: it is no slot. */
static bool read_slot(const char *text, uint32_t *slot) {
  size_t length = strspn(text, "0123456789");
  if (length == 0 || length > 5 || text[length] != '\0' || (text[0] == '0' && length > 1)) return false;
  *slot = (uint32_t)strtoul(text, NULL, 10);
  return *slot < DIBS_SLOTS_MAX;
}

/* NULL: no memory. */
static struct visit *make_visit(struct request *r) {
  struct member_in *in = r->in;
  size_t given = (in->held ? json_array_size(in->held) : 0) + (in->release ? json_array_size(in->release) : 0);
  struct visit *visit = in->visit = calloc(1, sizeof *visit);
  r->end = free_visit;
  if (!visit) return NULL;
  visit->request = r;
  return reserve_rows(visit, given + 1) ? visit : NULL;
}

static void patch_member(struct request *r) {
  struct member_in *in = r->in;
  dibs_error error = {0};
  uint32_t slot = 0;
  in->ttl_ms = dibs__given_or(in->ttl_ms, DIBS_TTL_DEFAULT_MS);
  in->wait_ms = dibs__given_or(in->wait_ms, 0);
  if (dibs__lane_check_topic(r->param[0], &error) != DIBS_OK) {
    dibs__answer_problem(r, error.status, &error);
    return;
  }
  if (!read_slot(r->param[1], &slot)) {
    dibs__answer_refuse(r, 400, "invalid", "the slot of a member is a number below %d, not \"%.40s\"", DIBS_SLOTS_MAX,
                        r->param[1]);
    return;
  }
  if (in->wait_ms > 0 && !dibs__may_wait(r)) return;
  struct visit *visit = make_visit(r);
  if (!visit) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  visit->slot = slot;
  visit->look_ms = in->ttl_ms / LOOK_PART;
  if (visit->look_ms > LOOK_MOST_MS) visit->look_ms = LOOK_MOST_MS;
  if (visit->look_ms < LOOK_LEAST_MS) visit->look_ms = LOOK_LEAST_MS;
  int64_t most_ms = in->ttl_ms / WAIT_PART;
  visit->by = dibs__tick_add_ms(dibs__tick_now(), in->wait_ms < most_ms ? in->wait_ms : most_ms);
  dibs__lane_members_name(r->param[0], visit->name);
  if (read_rows(visit, in->held, false) && read_rows(visit, in->release, true))
    dibs__turn_take(r, visit->name, in->id, begin_visit);
}

/* ---- For the loop ---- */

bool dibs__visits_open(struct server *server) {
  server->visits = calloc(1, sizeof *server->visits);
  if (server->visits) server->visits->next = DIBS__TICK_NEVER;
  return server->visits != NULL;
}

dibs__tick dibs__visits_next(const struct server *server) {
  return server->visits->next;
}

void dibs__visits_tick(struct server *server, dibs__tick now) {
  struct visits *all = server->visits;
  if (dibs__tick_before(now, all->next)) return;
  dibs__tick soonest = DIBS__TICK_NEVER;
  for (struct visit *visit = all->first, *next; visit; visit = next) {
    next = visit->after;
    if (visit->busy) continue;
    if (!dibs__tick_before(now, visit->by)) {
      answer(visit);
      continue;
    }
    if (!dibs__tick_before(now, visit->look_at)) {
      look(visit);
      if (!visit->busy) visit->look_at = dibs__tick_add_ms(now, LOOK_LEAST_MS);
    }
    if (!visit->busy) soonest = dibs__tick_min(soonest, dibs__tick_min(visit->look_at, visit->by));
  }
  all->next = soonest;
}

void dibs__visits_close(struct server *server) {
  free(server->visits);
  server->visits = NULL;
}

/* ---- The route ---- */

const struct route dibs__lane_member_routes[] = {
    {METHOD_PATCH, "/v1/lanes/{topic}/members/{slot}", SCOPE_USE, patch_member, sizeof(struct member_in), member_fields,
     "renewMember", "200 410", "Renew a member and its lanes, get lanes, give lanes back",
     "Work on the lanes in `held` of the answer, and send them in `held` of the next request, before half of `left_ms` "
     "is over.  A lane with `keep` false is to be another member's: finish what you have begun with it, and send it in "
     "`release`.  Stop at once what you do with a lane in `lost`, and with all lanes after 410.  In the state "
     "`resized` the topic has another number of lanes: release all, leave, and join again.",
     NULL},
    {.path = NULL}};
