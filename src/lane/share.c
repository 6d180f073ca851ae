/* SPDX-License-Identifier: MIT */
/* The share of one member, read from a listing of the topic's leases; and all topics.  See lane.h. */
#include "base/text.h"
#include "dibs/admin.h"
#include "lane/lane.h"
#include "lane/lane_impl.h"
#include "lease/lease.h"

#include <stdlib.h>
#include <string.h>

uint32_t dibs__lane_member_slots(uint32_t lanes) {
  return MEMBERS_BASE + lanes;
}

uint32_t dibs__lane_member_lanes(uint32_t slots) {
  return slots > MEMBERS_BASE && slots <= MEMBERS_BASE + DIBS_LANES_MAX ? slots - MEMBERS_BASE : 0;
}

dibs_status dibs__lane_enter(dibs_store *store, const char *topic, uint32_t lanes, uint32_t *number,
                             dibs_error *error) {
  struct lane_topic at = {.lanes = 0};
  *number = 0;
  dibs_status status = dibs__lane_check_topic(topic, error);
  if (status == DIBS_OK) status = dibs__lane_topic_open(store, topic, lanes, &at, error);
  if (status == DIBS_OK) *number = at.lanes;
  return status;
}

/* ---- The share of one member ---- */

/* Members may have different numbers of lanes for a moment only if a tier answers late: only those of the slot's own
 * number are kept, so both kinds are noted until the slot was seen. */
struct noted {
  uint32_t slot, lanes;
};

struct reading {
  size_t prefix;
  uint32_t slot;
  char *owner; /* of the member in that slot */
  struct noted *members;
  size_t count, capacity;
  bool used[DIBS_LANES_MAX + 1]; /* by the number of lanes: a lane of it is owned */
  bool no_memory;
};

static bool note_member(struct reading *reading, const dibs_lease_info *info, uint32_t lanes) {
  if (reading->count == reading->capacity) {
    size_t capacity = reading->capacity ? 2 * reading->capacity : 16;
    struct noted *more = realloc(reading->members, capacity * sizeof *more);
    if (!more) return false;
    reading->members = more;
    reading->capacity = capacity;
  }
  reading->members[reading->count++] = (struct noted){info->slot, lanes};
  if (info->slot == reading->slot) memcpy(reading->owner, info->owner, strnlen(info->owner, DIBS_OWNER_MAX) + 1);
  return true;
}

static int read_row(const dibs_lease_info *info, void *user) {
  struct reading *reading = user;
  const char *behind = info->name + reading->prefix;
  uint32_t lanes, number;
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN) return 0;
  if (dibs__lane_name_read(behind, &lanes, &number))
    reading->used[lanes] = true;
  else if (strcmp(behind, "members") == 0 && (lanes = dibs__lane_member_lanes(info->slots)) > 0)
    reading->no_memory = !note_member(reading, info, lanes);
  return reading->no_memory;
}

static int smaller_first(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* The slots of the members with so many lanes, sorted; the caller's, for free.  NULL: no memory. */
static uint32_t *slots_of(const struct reading *reading, uint32_t lanes, size_t *count) {
  uint32_t *slots = malloc((reading->count + 1) * sizeof *slots);
  *count = 0;
  for (size_t i = 0; slots && i < reading->count; i++)
    if (reading->members[i].lanes == lanes) slots[(*count)++] = reading->members[i].slot;
  if (slots) qsort(slots, *count, sizeof *slots, smaller_first);
  return slots;
}

/* false: no memory. */
static bool compute(const struct reading *reading, uint32_t slot, struct dibs__lane_share *share) {
  size_t count = 0;
  uint32_t own = 0;
  for (size_t i = 0; i < reading->count; i++)
    if (reading->members[i].slot == slot) share->lanes = reading->members[i].lanes;
  if (share->lanes == 0) return true;
  for (uint32_t lanes = 1; lanes <= DIBS_LANES_MAX; lanes++)
    if (lanes != share->lanes && reading->used[lanes]) share->clear = false;
  uint32_t *slots = slots_of(reading, share->lanes, &count);
  uint32_t *owners = calloc(share->lanes, sizeof *owners);
  bool fine = slots && owners && dibs__lane_assign(slots, count, share->lanes, owners);
  while (fine && slots[own] != slot) own++;
  for (uint32_t lane = 0; fine && lane < share->lanes; lane++) share->mine[lane] = owners[lane] == own;
  share->members = (uint32_t)count;
  free(slots);
  free(owners);
  return fine;
}

dibs_status dibs__lane_share(dibs_store *store, const char *topic, uint32_t slot, struct dibs__lane_share *share,
                             dibs_error *error) {
  char prefix[DIBS_NAME_MAX + 1];
  struct lane_topic at;
  *share = (struct dibs__lane_share){.clear = true};
  struct reading *reading = calloc(1, sizeof *reading);
  if (!reading) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lanes of \"%s\"", topic);
  dibs__lane_prefix(topic, prefix);
  reading->prefix = strlen(prefix);
  reading->slot = slot;
  reading->owner = share->owner;
  dibs_status status = dibs__lane_topic_read(store, topic, &at, error);
  if (status == DIBS_OK) share->topic_lanes = at.lanes;
  if (status == DIBS_OK) status = dibs_list(store, prefix, read_row, reading, error);
  if (status == DIBS_OK && (reading->no_memory || !compute(reading, slot, share)))
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lanes of \"%s\"", topic);
  free(reading->members);
  free(reading);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

/* ---- All topics ---- */

static const char head[] = "lane/";
enum { HEAD = sizeof head - 1 };

struct topics {
  dibs__lane_topic_fn fn;
  void *user;
  bool stopped;
  char topic[DIBS_NAME_MAX + 1]; /* of the rows so far; "": none yet */
  uint32_t members[DIBS_LANES_MAX + 1], owned[DIBS_LANES_MAX + 1];
};

/* The number of lanes with most members is the topic's; of a change the larger part is over, or has not begun. */
static uint32_t main_lanes(const struct topics *all) {
  uint32_t most = 0;
  for (uint32_t lanes = 1; lanes <= DIBS_LANES_MAX; lanes++)
    if (most == 0 || all->members[lanes] > all->members[most] ||
        (all->members[lanes] == all->members[most] && all->owned[lanes] > all->owned[most]))
      if (all->members[lanes] > 0 || all->owned[lanes] > 0) most = lanes;
  return most;
}

static void end_topic(struct topics *all) {
  uint32_t most = main_lanes(all);
  if (!all->topic[0] || most == 0) return;
  struct dibs__lane_topic_row row = {
      .topic = all->topic, .lanes = most, .members = all->members[most], .owned = all->owned[most]};
  for (uint32_t lanes = 1; lanes <= DIBS_LANES_MAX; lanes++)
    if (lanes != most) row.leaving += all->members[lanes] + all->owned[lanes];
  all->stopped = all->fn(&row, all->user) != 0;
}

static int add_topic_row(const dibs_lease_info *info, void *user) {
  struct topics *all = user;
  const char *topic = info->name + HEAD, *sign = strchr(topic, '#');
  uint32_t lanes = 0, number;
  if (!sign || sign == topic || info->state == DIBS_WAITS || info->state == DIBS_BROKEN) return 0;
  bool owned = dibs__lane_name_read(sign + 1, &lanes, &number);
  if (!owned && strcmp(sign + 1, "members") == 0) lanes = dibs__lane_member_lanes(info->slots);
  if (lanes == 0) return 0; /* another lease with such a name */
  size_t length = (size_t)(sign - topic);
  if (strncmp(all->topic, topic, length) != 0 || all->topic[length] != '\0') {
    end_topic(all);
    if (all->stopped) return 1;
    memset(all->members, 0, sizeof all->members);
    memset(all->owned, 0, sizeof all->owned);
    memcpy(all->topic, topic, length);
    all->topic[length] = '\0';
  }
  if (owned)
    all->owned[lanes]++;
  else
    all->members[lanes]++;
  return 0;
}

dibs_status dibs__lane_topics(dibs_store *store, const char *prefix, const char *after, dibs__lane_topic_fn fn,
                              void *user, dibs_error *error) {
  char whole[HEAD + DIBS_NAME_MAX + 1], behind[HEAD + DIBS_NAME_MAX + 2];
  struct dibs__text text;
  struct topics *all = calloc(1, sizeof *all);
  if (!all) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the topics");
  all->fn = fn;
  all->user = user;
  dibs__text_begin(&text, whole, sizeof whole);
  dibs__text_addf(&text, "%s%s", head, prefix ? prefix : "");
  dibs__text_begin(&text, behind, sizeof behind);
  /* Behind all names of that topic, which have a # there, and before all others. */
  if (after && *after) dibs__text_addf(&text, "%s%s%c", head, after, '#' + 1);
  dibs_status status = dibs__list_after(store, whole, text.len ? behind : NULL, 0, add_topic_row, all, error);
  if (status == DIBS_OK && !all->stopped) end_topic(all);
  free(all);
  return status;
}
