/* SPDX-License-Identifier: MIT */
/*
 * Fenced increments.  Each writer seals the record, reads it, and saves the next number.  Acknowledged numbers never
 * repeat, grow with their fences, and are all in the final number.  A read without a fence returns no less than the
 * numbers that were acknowledged before it began, and no more than the numbers whose save had begun.
 */
#include "checker.h"

#include <stdlib.h>

static int by_name_and_fence(const void *a, const void *b) {
  const struct write *x = a, *y = b;
  if (x->name != y->name) return x->name < y->name ? -1 : 1;
  return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static void check_order(struct check *check) {
  const struct write *before = NULL;
  for (size_t i = 0; i < check->write_count; i++) {
    const struct write *write = &check->writes[i];
    if (write->status != DIBS_OK) continue;
    if (before && before->name == write->name && before->number >= write->number)
      broken(check, "records", "record-%u: %lld was saved with fence %llu, then %lld with %llu", write->name,
             (long long)before->number, (unsigned long long)before->fence, (long long)write->number,
             (unsigned long long)write->fence);
    before = write;
  }
}

static void check_finals(struct check *check) {
  int64_t saved[HISTORY_NAMES] = {0}, largest[HISTORY_NAMES] = {0}, unsure[HISTORY_NAMES] = {0};
  for (size_t i = 0; i < check->write_count; i++) {
    const struct write *write = &check->writes[i];
    if (write->status == DIBS_OK) {
      saved[write->name]++;
      if (write->number > largest[write->name]) largest[write->name] = write->number;
    } else if (write->status != DIBS_STALE && write->status != DIBS_UNAVAILABLE) {
      unsure[write->name]++;
    }
  }
  for (uint16_t name = 0; name < HISTORY_NAMES; name++) {
    int64_t final = check->finals[name];
    if (final < largest[name] || final < saved[name] || final > saved[name] + unsure[name])
      broken(check, "records",
             "record-%u is %lld: %lld increments were acknowledged, up to %lld, %lld may have happened", name,
             (long long) final, (long long)saved[name], (long long)largest[name], (long long)unsure[name]);
  }
}

static void check_look(struct check *check, const struct look *look) {
  int64_t least = 0, most = 0;
  for (size_t i = 0; i < check->write_count; i++) {
    const struct write *write = &check->writes[i];
    if (write->name != look->name) continue;
    if (write->status == DIBS_OK && write->ended < look->began && write->number > least) least = write->number;
    if (write->began < look->ended && write->status != DIBS_STALE && write->number > most) most = write->number;
  }
  if (look->number < least || look->number > most)
    broken(check, "looks", "record-%u was %lld at %.3f ms: %lld was acknowledged, %lld begun", look->name,
           (long long)look->number, check_ms(check, look->ended), (long long)least, (long long)most);
}

void check_records(struct check *check) {
  if (check->write_count > 0) qsort(check->writes, check->write_count, sizeof *check->writes, by_name_and_fence);
  check_order(check);
  check_finals(check);
  for (size_t i = 0; i < check->look_count; i++) check_look(check, &check->looks[i]);
}
