/* SPDX-License-Identifier: MIT */
/* The names of a topic's leases, and the lane of a key.  None of this may ever change: processes of several versions
 * share topics. */
#include "base/slot.h"
#include "base/text.h"
#include "lane/lane_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

dibs_status dibs__lane_check_topic(const char *topic, dibs_error *error) {
  if (dibs__check_text(topic, DIBS_TOPIC_MAX, "the topic", error) != DIBS_OK) return DIBS_INVALID;
  if (!strchr(topic, '#')) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "the topic \"%s\" contains '#': use another character", topic);
}

void dibs__lane_prefix(const char *topic, char to[DIBS_NAME_MAX + 1]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, DIBS_NAME_MAX + 1);
  dibs__text_addf(&text, "lane/%s#", topic);
  assert(!text.cut);
}

void dibs__lane_members_name(const char *topic, char to[DIBS_NAME_MAX + 1]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, DIBS_NAME_MAX + 1);
  dibs__text_addf(&text, "lane/%s#members", topic);
  assert(!text.cut);
}

void dibs__lane_record_key(const char *topic, char to[DIBS_NAME_MAX + 1]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, DIBS_NAME_MAX + 1);
  dibs__text_addf(&text, "lane:%s", topic);
  assert(!text.cut);
}

static uint16_t bucket_of(const char *name) {
  return dibs__bucket(dibs__str_of(name, strlen(name)));
}

/* One of a hundred values of K is right, so the loop ends: 10,000 wrong ones have a probability of e^-100. */
void dibs__lane_name(const char *topic, uint32_t lanes, uint32_t number, char to[DIBS_NAME_MAX + 1]) {
  char members[DIBS_NAME_MAX + 1];
  dibs__lane_members_name(topic, members);
  uint16_t bucket = bucket_of(members);
  for (uint32_t k = 0; k < UINT16_MAX; k++) {
    struct dibs__text text;
    dibs__text_begin(&text, to, DIBS_NAME_MAX + 1);
    dibs__text_addf(&text, "lane/%s#%" PRIu32 ".%" PRIu32 "-%" PRIx32, topic, lanes, number, k);
    assert(!text.cut);
    if (bucket_of(to) == bucket) return;
  }
}

/* Digits without a leading zero; *at: after them. */
static bool read_number(const char **at, uint32_t least, uint32_t most, uint32_t *number) {
  const char *from = *at;
  uint32_t value = 0;
  for (; **at >= '0' && **at <= '9'; (*at)++) {
    value = value * 10 + (uint32_t)(**at - '0');
    if (value > most) return false;
  }
  *number = value;
  return *at > from && value >= least && (*from != '0' || *at == from + 1);
}

bool dibs__lane_name_read(const char *at, uint32_t *lanes, uint32_t *number) {
  if (!read_number(&at, 1, DIBS_LANES_MAX, lanes) || *at++ != '.') return false;
  return read_number(&at, 0, *lanes - 1, number) && *at == '-';
}

uint32_t dibs_lane_of(const void *key, size_t length, uint32_t lanes) {
  return lanes > 1 ? dibs__slot_lane(dibs__slot(key, length), lanes) : 0;
}
