/* SPDX-License-Identifier: MIT */
/* A topic as the store has it: the record of P, and who owns which lane.  See lane_impl.h. */
#include "base/text.h"
#include "dibs/admin.h"
#include "lane/lane_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CREATE_TRIES = 5, LOOK_AGAIN_MS = 50, WRITE_TRIES = 3 };

/* ---- The record ---- */

static const char head[] = "{\"lanes\":";

static bool read_content(const dibs_record *record, uint32_t *lanes) {
  if (record->count != 1 || !record->values[0].data) return false;
  const char *at = record->values[0].data;
  if (strncmp(at, head, sizeof head - 1) != 0) return false;
  uint32_t number = 0;
  for (at += sizeof head - 1; *at >= '0' && *at <= '9' && number <= DIBS_LANES_MAX; at++)
    number = number * 10 + (uint32_t)(*at - '0');
  *lanes = number;
  return strcmp(at, "}") == 0 && number >= 1 && number <= DIBS_LANES_MAX;
}

dibs_status dibs__lane_topic_read(dibs_store *store, const char *topic, struct lane_topic *at, dibs_error *error) {
  char key[DIBS_NAME_MAX + 1];
  dibs_record_options options = {.size = sizeof options, .wait_ms = LANE_TOPIC_WAIT_MS};
  dibs_record *record = NULL;
  *at = (struct lane_topic){.recorded = true};
  dibs__lane_record_key(topic, key);
  dibs_status status = dibs_record_get(store, key, &options, &record, error);
  if (status == DIBS_UNSUPPORTED) at->recorded = false;
  if (status == DIBS_UNSUPPORTED || status == DIBS_NOT_FOUND) return dibs__fine(error);
  if (status != DIBS_OK) return status;
  bool fine = read_content(record, &at->lanes);
  memcpy(at->version, record->version, strnlen(record->version, DIBS_VERSION_MAX) + 1);
  dibs_record_free(record);
  if (fine) return dibs__fine(error);
  return dibs__fail(error, DIBS_CORRUPT,
                    "the record \"%s\" is not the number of lanes of a topic: something else has written it; end all "
                    "members, and delete it with dibs record rm",
                    key);
}

/* With the version "" only if there is no record. */
static dibs_status write_record(dibs_store *store, const char *topic, const char *version, uint32_t lanes,
                                dibs_error *error) {
  char key[DIBS_NAME_MAX + 1], content[40];
  struct dibs__text text;
  dibs__lane_record_key(topic, key);
  dibs__text_begin(&text, content, sizeof content);
  dibs__text_addf(&text, "%s%" PRIu32 "}", head, lanes);
  dibs_value value = {content, text.len};
  dibs_record_options options = {
      .size = sizeof options, .flags = version[0] ? 0 : DIBS_IF_ABSENT, .if_version = version[0] ? version : NULL};
  return dibs_record_put(store, key, &value, 1, &options, NULL, error);
}

static dibs_status refuse_other(const char *topic, const struct lane_topic *at, uint32_t lanes, dibs_error *error) {
  return dibs__fail(error, DIBS_INVALID,
                    "the topic \"%s\" has %" PRIu32 " lanes, and not %" PRIu32 ": use its number, or %s", topic,
                    at->lanes, lanes,
                    at->recorded ? "change it for all members with dibs lane resize"
                                 : "end all members and start them with another one");
}

static int find_members(const dibs_lease_info *info, void *user) {
  uint32_t *lanes = user;
  if (info->mode == DIBS_COUNTED && info->slots > MEMBERS_BASE && info->slots <= MEMBERS_BASE + DIBS_LANES_MAX &&
      info->state != DIBS_WAITS && info->state != DIBS_BROKEN)
    *lanes = info->slots - MEMBERS_BASE;
  return *lanes != 0;
}

dibs_status dibs__lane_topic_by_members(dibs_store *store, const char *topic, uint32_t *lanes, dibs_error *error) {
  char name[DIBS_NAME_MAX + 1];
  *lanes = 0;
  dibs__lane_members_name(topic, name);
  dibs_status status = dibs_show(store, name, find_members, lanes, error);
  return status == DIBS_NOT_FOUND ? dibs__fine(error) : status;
}

static dibs_status no_topic(const char *topic, dibs_error *error) {
  return dibs__fail(error, DIBS_NOT_FOUND,
                    "there is no topic \"%s\" yet; its first member gives the number of lanes: dibs lane run or dibs "
                    "worker with --lanes P",
                    topic);
}

dibs_status dibs__lane_topic_open(dibs_store *store, const char *topic, uint32_t lanes, struct lane_topic *at,
                                  dibs_error *error) {
  dibs_status status = DIBS_CONFLICT;
  for (int i = 0; i < CREATE_TRIES && (status == DIBS_CONFLICT || status == DIBS_UNKNOWN); i++) {
    status = dibs__lane_topic_read(store, topic, at, error);
    if (status == DIBS_OK && !at->recorded) status = dibs__lane_topic_by_members(store, topic, &at->lanes, error);
    if (status != DIBS_OK) return status;
    if (at->lanes && lanes && at->lanes != lanes) return refuse_other(topic, at, lanes, error);
    if (at->lanes) return DIBS_OK;
    if (!lanes) return no_topic(topic, error);
    at->lanes = lanes;
    if (!at->recorded) return DIBS_OK;
    status = write_record(store, topic, "", lanes, error);
  }
  return status;
}

/* ---- Who owns what ---- */

struct owned {
  uint32_t lane, lanes;
  char *owner;
  dibs_fence fence;
  int64_t left_ms, age_ms;
};

struct view {
  size_t prefix;
  uint32_t by_slots[DIBS_LANES_MAX + 1]; /* members, by their P */
  struct owned *list;
  size_t count, capacity;
  bool no_memory;
};

static bool add_owned(struct view *view, const dibs_lease_info *info, uint32_t lane, uint32_t lanes) {
  if (view->count == view->capacity) {
    size_t capacity = view->capacity ? 2 * view->capacity : 64;
    struct owned *more = realloc(view->list, capacity * sizeof *more);
    if (!more) return false;
    view->list = more;
    view->capacity = capacity;
  }
  struct owned *to = &view->list[view->count];
  *to = (struct owned){lane, lanes, strdup(info->owner), info->fence, info->left_ms, info->age_ms};
  view->count += to->owner != NULL;
  return to->owner != NULL;
}

static int add_row(const dibs_lease_info *info, void *user) {
  struct view *view = user;
  uint32_t lane, lanes;
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN) return 0;
  if (dibs__lane_name_read(info->name + view->prefix, &lanes, &lane))
    view->no_memory = !add_owned(view, info, lane, lanes);
  else if (strcmp(info->name + view->prefix, "members") == 0 && info->slots > MEMBERS_BASE &&
           info->slots <= MEMBERS_BASE + DIBS_LANES_MAX)
    view->by_slots[info->slots - MEMBERS_BASE]++;
  return view->no_memory;
}

static void free_view(struct view *view) {
  for (size_t i = 0; i < view->count; i++) free(view->list[i].owner);
  free(view->list);
  free(view);
}

/* *view is the caller's, for free_view; NULL unless OK. */
static dibs_status read_view(dibs_store *store, const char *topic, struct view **out, dibs_error *error) {
  char prefix[DIBS_NAME_MAX + 1];
  struct view *view = *out = calloc(1, sizeof *view);
  dibs__lane_prefix(topic, prefix);
  if (view) view->prefix = strlen(prefix);
  dibs_status status = view ? dibs_list(store, prefix, add_row, view, error) : DIBS_NO_MEMORY;
  if (!view || view->no_memory)
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lanes of \"%s\"", topic);
  if (status == DIBS_OK) return DIBS_OK;
  if (view) free_view(view);
  *out = NULL;
  return status;
}

/* The members' P, where no record has it. */
static uint32_t lanes_of_view(const struct view *view) {
  for (uint32_t lanes = 1; lanes <= DIBS_LANES_MAX; lanes++)
    if (view->by_slots[lanes]) return lanes;
  return 0;
}

/* Members and owners of another P than this one. */
static uint32_t count_others(const struct view *view, uint32_t lanes) {
  uint32_t count = 0;
  for (uint32_t p = 1; p <= DIBS_LANES_MAX; p++) count += p == lanes ? 0 : view->by_slots[p];
  if (count) return count;
  for (size_t i = 0; i < view->count; i++) count += view->list[i].lanes != lanes;
  return count;
}

static int give(const struct owned *owned, dibs_lane_list_fn fn, void *user) {
  dibs_lane_info info = {.size = sizeof info,
                         .lane = owned->lane,
                         .lanes = owned->lanes,
                         .owner = owned->owner,
                         .fence = owned->fence,
                         .left_ms = owned->left_ms,
                         .age_ms = owned->age_ms};
  return fn(&info, user);
}

/* The owned lanes of another P first, then all of this one. */
static void give_lanes(const struct view *view, uint32_t lanes, dibs_lane_list_fn fn, void *user) {
  const struct owned *by_lane[DIBS_LANES_MAX] = {NULL};
  int stop = 0;
  for (size_t i = 0; i < view->count && !stop; i++) {
    if (view->list[i].lanes == lanes)
      by_lane[view->list[i].lane] = &view->list[i];
    else
      stop = give(&view->list[i], fn, user);
  }
  for (uint32_t lane = 0; lane < lanes && !stop; lane++) {
    const struct owned nobody = {.lane = lane, .lanes = lanes};
    stop = give(by_lane[lane] ? by_lane[lane] : &nobody, fn, user);
  }
}

static dibs_status list_topic(dibs_store *store, const char *topic, dibs_lane_topic_info *info, dibs_lane_list_fn fn,
                              void *user, dibs_error *error) {
  struct lane_topic at;
  struct view *view;
  dibs_status status = dibs__lane_topic_read(store, topic, &at, error);
  if (status != DIBS_OK) return status;
  status = read_view(store, topic, &view, error);
  if (status != DIBS_OK) return status;
  if (!at.lanes) at.lanes = lanes_of_view(view);
  if (at.lanes) {
    info->lanes = at.lanes;
    info->members = view->by_slots[at.lanes];
    info->leaving = count_others(view, at.lanes);
    info->recorded = at.recorded;
    if (fn) give_lanes(view, at.lanes, fn, user);
  }
  free_view(view);
  return at.lanes ? dibs__fine(error) : no_topic(topic, error);
}

dibs_status dibs_lane_list(dibs_store *store, const char *topic, dibs_lane_topic_info *given, dibs_lane_list_fn fn,
                           void *user, dibs_error *error) {
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  size_t size = given ? given->size : sizeof info;
  if (dibs__check_size(size, sizeof info, "dibs_lane_topic_info", error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__enter(store, "dibs_lane_list", error);
  if (status != DIBS_OK) return status;
  status = dibs__lane_check_topic(topic, error);
  if (status == DIBS_OK) status = list_topic(store, topic, &info, fn, user, error);
  dibs__exit(store);
  info.size = size;
  if (given) memcpy(given, &info, size);
  return status;
}

/* ---- Changing P ---- */

static dibs_status change(dibs_store *store, const char *topic, uint32_t lanes, dibs_error *error) {
  struct lane_topic at;
  dibs_status status = DIBS_UNKNOWN;
  for (int i = 0; i < WRITE_TRIES && status == DIBS_UNKNOWN; i++) {
    status = dibs__lane_topic_read(store, topic, &at, error);
    if (status != DIBS_OK) return status;
    if (!at.recorded)
      return dibs__fail(error, DIBS_UNSUPPORTED,
                        "%s keeps no records, so the topic \"%s\" has its lanes only as long as it has members: end "
                        "all of them, then start them with another number",
                        store->shown, topic);
    if (!at.lanes) return no_topic(topic, error);
    if (at.lanes == lanes) return DIBS_OK;
    status = write_record(store, topic, at.version, lanes, error);
  }
  return status;
}

static dibs_status wait_until_changed(dibs_store *store, const char *topic, uint32_t lanes, dibs__tick by,
                                      dibs_error *error) {
  for (;;) {
    struct view *view;
    dibs_status status = read_view(store, topic, &view, error);
    if (status != DIBS_OK) return status;
    uint32_t others = count_others(view, lanes);
    free_view(view);
    if (!others) return DIBS_OK;
    if (store->closing) return dibs__fail(error, DIBS_CANCELLED, "the store is being closed");
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__fail(error, DIBS_TIMEOUT,
                        "the topic \"%s\" has %" PRIu32
                        " lanes from now on; members or lanes of the old number that have not ended yet: %" PRIu32,
                        topic, lanes, others);
    dibs__nap_ms(LOOK_AGAIN_MS);
  }
}

dibs_status dibs_lane_resize(dibs_store *store, const char *topic, uint32_t lanes, int64_t wait_ms, dibs_error *error) {
  dibs_status status = dibs__enter(store, "dibs_lane_resize", error);
  if (status != DIBS_OK) return status;
  status = dibs__lane_check_topic(topic, error);
  if (status == DIBS_OK && (lanes < 1 || lanes > DIBS_LANES_MAX))
    status = dibs__fail(error, DIBS_INVALID, "a topic has 1 to %d lanes, not %" PRIu32, DIBS_LANES_MAX, lanes);
  if (status == DIBS_OK && wait_ms < DIBS_FOREVER)
    status =
        dibs__fail(error, DIBS_INVALID, "wait_ms is %" PRId64 ": give 0, a positive time or DIBS_FOREVER", wait_ms);
  dibs__tick by =
      wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), wait_ms > 0 ? wait_ms : 0);
  if (status == DIBS_OK) status = change(store, topic, lanes, error);
  if (status == DIBS_OK) status = wait_until_changed(store, topic, lanes, by, error);
  dibs__exit(store);
  return status == DIBS_OK ? dibs__fine(error) : status;
}
