/* SPDX-License-Identifier: MIT */
/* Lanes over HTTP: topics, who owns which lane, the lane of a key, and becoming a member.  What a member does from then
 * on is in lane_member.c. */
#include "lane/lane.h"
#include "base/text.h"
#include "dibs/admin.h"
#include "serve/page.h"
#include "serve/turn.h"

#include <inttypes.h>
#include <string.h>

/* ---- Topics ---- */

static int add_topic(const struct dibs__lane_topic_row *row, void *user) {
  struct page_rows *rows = user;
  if (strlen(row->topic) > DIBS_TOPIC_MAX) return 0; /* another lease with such a name */
  if (!dibs__rows_add(rows, "topic", row->topic)) return 1;
  dibs__json_uint(rows->json, "lanes", row->lanes);
  dibs__json_uint(rows->json, "members", row->members);
  dibs__json_uint(rows->json, "owned", row->owned);
  dibs__json_uint(rows->json, "leaving", row->leaving);
  dibs__json_close(rows->json, '}');
  return 0;
}

static const struct field topics_fields[] = {{.name = "prefix",
                                              .place = FIELD_QUERY,
                                              .at = offsetof(struct page, prefix),
                                              .most = DIBS_TOPIC_MAX,
                                              .help = "only topics that begin so"},
                                             {.name = "after",
                                              .place = FIELD_QUERY,
                                              .at = offsetof(struct page, after),
                                              .most = DIBS_TOPIC_MAX,
                                              .help = "only topics after this one: the `next` of the page before"},
                                             PAGE_LIMIT(offsetof(struct page, limit)),
                                             {.name = NULL}};

static void list_topics(struct request *r) {
  const struct page *page = r->in;
  struct page_rows rows;
  dibs_error error = {0};
  dibs__rows_begin(r, &rows, "topics", page->limit);
  dibs_status status = dibs__lane_topics(r->server->store, page->prefix, page->after, add_topic, &rows, &error);
  dibs__rows_end(r, &rows, status, &error);
}

static void get_topics(struct request *r) {
  dibs__pool_run(r, list_topics, NULL);
}

/* ---- One topic ---- */

static void write_owned(struct dibs__json *j, const dibs_lane_info *lane) {
  bool owned = lane->owner != NULL;
  dibs__json_uint(j, "lane", lane->lane);
  dibs__json_uint(j, "lanes", lane->lanes);
  dibs__json_text(j, "owner", lane->owner);
  dibs__json_known(j, "fence", (int64_t)lane->fence.value, owned);
  dibs__json_known(j, "left_ms", lane->left_ms, owned);
  dibs__json_known(j, "age_ms", lane->age_ms, owned && lane->age_ms >= 0);
}

static int add_lane(const dibs_lane_info *lane, void *user) {
  struct dibs__json *j = user;
  dibs__json_open(j, NULL, '{');
  write_owned(j, lane);
  dibs__json_close(j, '}');
  return 0;
}

static int add_member(const dibs_lease_info *info, void *user) {
  struct dibs__json *j = user;
  uint32_t lanes = dibs__lane_member_lanes(info->slots);
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN || lanes == 0) return 0;
  dibs__json_open(j, NULL, '{');
  dibs__json_uint(j, "slot", info->slot);
  dibs__json_uint(j, "lanes", lanes);
  dibs__json_text(j, "owner", info->owner);
  dibs__json_int(j, "left_ms", info->left_ms);
  dibs__json_known(j, "age_ms", info->age_ms, info->age_ms >= 0);
  dibs__json_close(j, '}');
  return 0;
}

static dibs_status show_members(struct request *r, struct dibs__json *j, dibs_error *error) {
  char name[DIBS_NAME_MAX + 1];
  dibs__lane_members_name(r->param[0], name);
  dibs__json_open(j, "members", '[');
  dibs_status status = dibs_show(r->server->store, name, add_member, j, error);
  dibs__json_close(j, ']');
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

static void write_topic(struct dibs__json *j, const char *topic, const dibs_lane_topic_info *info) {
  dibs__json_text(j, "topic", topic);
  dibs__json_uint(j, "lanes", info->lanes);
  dibs__json_uint(j, "leaving", info->leaving);
  dibs__json_bool(j, "recorded", info->recorded != 0);
}

static void show_topic(struct request *r) {
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  dibs_error error = {0};
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_open(j, "owners", '[');
  dibs_status status = dibs_lane_list(r->server->store, r->param[0], &info, add_lane, j, &error);
  dibs__json_close(j, ']');
  if (status == DIBS_OK) status = show_members(r, j, &error);
  write_topic(j, r->param[0], &info);
  dibs__json_close(j, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_topic(struct request *r) {
  dibs__pool_run(r, show_topic, NULL);
}

/* ---- The lane of a key ---- */

struct key_lane {
  struct dibs__json *json;
  uint32_t lane, lanes;
  bool written;
};

static int write_lane_of_key(const dibs_lane_info *lane, void *user) {
  struct key_lane *of = user;
  if (lane->lane != of->lane || lane->lanes != of->lanes) return 0;
  write_owned(of->json, lane);
  of->written = true;
  return 1;
}

/* P may change between the two listings. */
static void show_key(struct request *r) {
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  dibs_error error = {0};
  dibs_status status = dibs_lane_list(r->server->store, r->param[0], &info, NULL, NULL, &error);
  struct key_lane of = {.json = dibs__answer_begin(r, 200),
                        .lane = dibs_lane_of(r->param[1], strlen(r->param[1]), info.lanes),
                        .lanes = info.lanes};
  dibs__json_open(of.json, NULL, '{');
  dibs__json_text(of.json, "topic", r->param[0]);
  dibs__json_text(of.json, "key", r->param[1]);
  if (status == DIBS_OK) status = dibs_lane_list(r->server->store, r->param[0], NULL, write_lane_of_key, &of, &error);
  if (status == DIBS_OK && !of.written)
    write_owned(of.json, &(dibs_lane_info){.size = sizeof(dibs_lane_info), .lane = of.lane, .lanes = of.lanes});
  dibs__json_close(of.json, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_key(struct request *r) {
  dibs__pool_run(r, show_key, NULL);
}

/* ---- Another number of lanes ---- */

struct resize_in {
  int64_t lanes;
};
#define IN(member) offsetof(struct resize_in, member)
static const struct field resize_fields[] = {{.name = "lanes",
                                              .kind = FIELD_NUMBER,
                                              .at = IN(lanes),
                                              .least = 1,
                                              .most = DIBS_LANES_MAX,
                                              .needed = true,
                                              .help = "how many lanes the topic has from now on"},
                                             {.name = NULL}};

static void resize(struct request *r) {
  const struct resize_in *in = r->in;
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  dibs_error error = {0};
  dibs_status status = dibs_lane_resize(r->server->store, r->param[0], (uint32_t)in->lanes, 0, &error);
  if (status == DIBS_OK || status == DIBS_TIMEOUT)
    status = dibs_lane_list(r->server->store, r->param[0], &info, NULL, NULL, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  write_topic(j, r->param[0], &info);
  dibs__json_close(j, '}');
}

static void patch_topic(struct request *r) {
  dibs__pool_run(r, resize, NULL);
}

/* ---- Becoming a member ---- */

struct join_in {
  int64_t ttl_ms, lanes;
  const char *owner, *id;
  uint32_t number;              /* of lanes; not a field */
  char name[DIBS_NAME_MAX + 1]; /* of the members' lease; not a field */
};
#undef IN
#define IN(member) offsetof(struct join_in, member)
static const struct field join_fields[] = {
    {.name = "ttl",
     .kind = FIELD_DURATION,
     .at = IN(ttl_ms),
     .least = DIBS_TTL_MIN_MS,
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the membership lasts without a PATCH; 30s if it is not given"},
    {.name = "lanes",
     .kind = FIELD_NUMBER,
     .at = IN(lanes),
     .least = 1,
     .most = DIBS_LANES_MAX,
     .help = "how many lanes the topic has.  The first member creates the topic with it; from others it must be the "
             "number of the topic, or absent"},
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
     .help = "32 random hexadecimal digits of the caller; a request that is repeated with it finds its own membership"},
    {.name = NULL}};

static void joined(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct turn *turn = user;
  struct request *r = turn->request;
  const struct join_in *in = r->in;
  int64_t left_ms = dibs_lease_left_ms(lease);
  uint32_t slot = dibs_lease_slot(lease);
  if (status == DIBS_INVALID) { /* the members' lease has another number of slots */
    dibs__answer_refuse(r, 409, "lanes",
                        "members of \"%s\" with another number of lanes than %" PRIu32
                        " have not left yet; repeat the request soon",
                        r->param[0], in->number);
    dibs_lease_free(lease);
    dibs__turn_end(turn);
    return;
  }
  if (status == DIBS_OK && dibs_lease_detach(lease, NULL) != DIBS_OK) status = DIBS_LOST;
  if (status != DIBS_OK) {
    dibs__turn_fail(turn, status, error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 201);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "topic", r->param[0]);
  dibs__json_uint(j, "slot", slot);
  dibs__json_text(j, "id", turn->id);
  dibs__json_uint(j, "lanes", in->number);
  dibs__json_int(j, "left_ms", left_ms > 0 ? left_ms : 0);
  dibs__json_close(j, '}');
  dibs__answer_header(r, "Dibs-Lease", "%s", turn->id);
  dibs__answer_end(r);
  dibs_lease_free(lease);
  dibs__turn_end(turn);
}

static bool begin_join(struct turn *turn) {
  struct request *r = turn->request;
  const struct join_in *in = r->in;
  dibs_error error = {0};
  dibs_lease_options options = {.size = sizeof options,
                                .mode = DIBS_COUNTED,
                                .slots = dibs__lane_member_slots(in->number),
                                .flags = DIBS_NO_RENEW,
                                .ttl_ms = in->ttl_ms,
                                .owner = dibs__auth_owner(r, in->owner),
                                .id = turn->id};
  dibs_status status = dibs_acquire_start(r->server->store, in->name, &options, joined, turn, &turn->lease, &error);
  return status == DIBS_OK || dibs__turn_refuse(turn, status, &error);
}

static void enter_topic(struct request *r) {
  struct join_in *in = r->in;
  dibs_error error = {0};
  dibs_status status =
      dibs__lane_enter(r->server->store, r->param[0], (uint32_t)dibs__given_or(in->lanes, 0), &in->number, &error);
  if (status == DIBS_INVALID) /* all else was checked before */
    dibs__answer_refuse(r, 409, "lanes", "%s", error.text);
  else if (status != DIBS_OK) /* CONFLICT: others created it at the same time, again and again */
    dibs__answer_problem(r, status == DIBS_CONFLICT ? DIBS_UNAVAILABLE : status, &error);
}

static void entered(struct request *r) {
  const struct join_in *in = r->in;
  char id[33];
  uint8_t bytes[16];
  if (r->answer.status != 0) {
    dibs__answer_end(r);
    return;
  }
  dibs__random(bytes, sizeof bytes);
  dibs__hex_write(bytes, id);
  dibs__turn_take(r, in->name, in->id ? in->id : id, begin_join);
}

static void post_member(struct request *r) {
  struct join_in *in = r->in;
  dibs_error error = {0};
  if (dibs__lane_check_topic(r->param[0], &error) != DIBS_OK) {
    dibs__answer_problem(r, error.status, &error);
    return;
  }
  in->ttl_ms = dibs__given_or(in->ttl_ms, DIBS_TTL_DEFAULT_MS);
  dibs__lane_members_name(r->param[0], in->name);
  r->then = entered;
  dibs__pool_run(r, enter_topic, NULL);
}

/* ---- The routes ---- */

const struct route dibs__lane_routes[] = {
    {METHOD_GET, "/v1/lanes", SCOPE_READ, get_topics, sizeof(struct page), topics_fields, "listTopics", "200",
     "Topics that have members or owned lanes, page by page", "", NULL},
    {METHOD_GET, "/v1/lanes/{topic}", SCOPE_READ, get_topic, 0, NULL, "showTopic", "200 404",
     "The lanes of a topic with their owners, and its members", "", NULL},
    {METHOD_PATCH, "/v1/lanes/{topic}", SCOPE_ADMIN, patch_topic, sizeof(struct resize_in), resize_fields,
     "resizeTopic", "200 404 412", "Change the number of lanes",
     "It is changed when the answer comes.  Members of the old number leave, and `leaving` says how many have not yet: "
     "no lane of the new number has an owner until then.",
     NULL},
    {METHOD_GET, "/v1/lanes/{topic}/keys/{key}", SCOPE_READ, get_key, 0, NULL, "showLaneOfKey", "200 404",
     "The lane of a key, and its owner", "", NULL},
    {METHOD_POST, "/v1/lanes/{topic}/members", SCOPE_USE, post_member, sizeof(struct join_in), join_fields, "joinTopic",
     "201 404 409 410", "Become a member of a topic",
     "The answer has the member's `slot`, and its `id` in the header Dibs-Lease: a PATCH with both gets lanes.", NULL},
    {.path = NULL}};
