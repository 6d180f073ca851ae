/* SPDX-License-Identifier: MIT */
/*
 * Increments.  Each writer reads a number and writes the next.  Every acknowledged write has a number of its own; a
 * number up to the final number without an acknowledgement was written with an unknown outcome. A lost increment is a
 * number that was acknowledged twice or exceeds the final number.
 */
#include "tiers_check.h"

#include <stdlib.h>
#include <string.h>

/* All attempts under one lease: it wrote one number, perhaps several times. */
struct write {
  uint16_t name;
  uint32_t party, lease;
  uint64_t fence;
  int64_t number;
  int64_t status; /* OK: a write was acknowledged; UNKNOWN: none was, but one may have happened */
};

static int by_lease(const void *a, const void *b) {
  const struct tiers_step *x = a, *y = b;
  if (x->name != y->name) return x->name < y->name ? -1 : 1;
  if (x->party != y->party) return x->party < y->party ? -1 : 1;
  if (x->lease != y->lease) return x->lease < y->lease ? -1 : 1;
  return x->began < y->began ? -1 : x->began > y->began;
}
static int by_fence(const void *a, const void *b) {
  const struct write *x = a, *y = b;
  if (x->name != y->name) return x->name < y->name ? -1 : 1;
  return x->fence < y->fence ? -1 : x->fence > y->fence;
}
static int by_number(const void *a, const void *b) {
  const struct write *x = a, *y = b;
  if (x->name != y->name) return x->name < y->name ? -1 : 1;
  return x->number < y->number ? -1 : x->number > y->number;
}

static struct write *collect(struct tiers_check *check, enum tiers_step_kind kind, size_t *count) {
  struct write *writes = calloc(check->step_count + 1, sizeof *writes);
  if (!writes) abort();
  *count = 0;
  if (check->step_count > 0) qsort(check->steps, check->step_count, sizeof *check->steps, by_lease);
  for (size_t i = 0; i < check->step_count; i++) {
    const struct tiers_step *step = &check->steps[i];
    if (step->kind != kind) continue;
    struct write *last = *count > 0 ? &writes[*count - 1] : NULL;
    if (!last || last->name != step->name || last->party != step->party || last->lease != step->lease) {
      last = &writes[(*count)++];
      *last = (struct write){.name = step->name, .party = step->party, .lease = step->lease, .status = step->status};
    }
    last->fence = step->fence;
    last->number = step->number;
    if (last->status != DIBS_OK && (step->status == DIBS_OK || step->status == DIBS_UNKNOWN))
      last->status = step->status;
  }
  return writes;
}

/* A larger fence has the larger number. */
static void check_order(struct tiers_check *check, struct write *writes, size_t count) {
  const struct write *before = NULL;
  if (count > 0) qsort(writes, count, sizeof *writes, by_fence);
  for (size_t i = 0; i < count; i++) {
    const struct write *write = &writes[i];
    if (write->status != DIBS_OK) continue;
    if (before && before->name == write->name && before->number >= write->number)
      tiers_broken(check, TIERS_NUMBERS,
                   "record-%u: %lld was saved with fence %llu by party %u, then %lld with %llu by party %u",
                   write->name, (long long)before->number, (unsigned long long)before->fence, before->party,
                   (long long)write->number, (unsigned long long)write->fence, write->party);
    before = write;
  }
}

struct tally {
  uint64_t acknowledged, unknown, twice, above;
  int64_t unexplained; /* the first number that no worker can have written; 0: none */
};

/* `writes` of one name, by number. */
static struct tally count_numbers(const struct write *writes, size_t count, int64_t final) {
  struct tally tally = {0};
  int64_t next = 1;
  const struct write *before = NULL; /* acknowledged */
  for (size_t i = 0; i < count; i++) {
    const struct write *write = &writes[i];
    if (write->status != DIBS_OK && write->status != DIBS_UNKNOWN) continue;
    if (write->number > next && next <= final && tally.unexplained == 0) tally.unexplained = next;
    if (write->number >= next) next = write->number + 1;
    tally.unknown += write->status == DIBS_UNKNOWN;
    if (write->status != DIBS_OK) continue;
    tally.acknowledged++;
    tally.twice += before && before->number == write->number;
    tally.above += write->number > final;
    before = write;
  }
  if (next <= final && tally.unexplained == 0) tally.unexplained = next;
  return tally;
}

static void check_finals(struct tiers_check *check, struct write *writes, size_t count, bool plain) {
  struct tiers_sums *sums = check->sums;
  size_t from = 0;
  if (count > 0) qsort(writes, count, sizeof *writes, by_number);
  for (uint16_t name = 0; name < TIERS_NAMES; name++) {
    int64_t final = (plain ? check->plains : check->finals)[name];
    size_t to = from;
    while (to < count && writes[to].name == name) to++;
    struct tally tally = count_numbers(writes + from, to - from, final);
    uint64_t lost = tally.twice + tally.above;
    from = to;
    *(plain ? &sums->plain : &sums->acknowledged) += tally.acknowledged;
    *(plain ? &sums->plain_lost : &sums->lost) += lost;
    if (!plain) sums->unknown += tally.unknown;
    if (!(plain ? check->bounds->plain : check->bounds->how == HOW_FENCED)) continue;
    if (lost > 0)
      tiers_broken(
          check, plain ? TIERS_PLAIN : TIERS_FINAL,
          "%s-%u is %lld: of %llu acknowledged increments %llu have a number that another one has, too, %llu are above",
          plain ? "plain" : "record", name, (long long) final, (unsigned long long)tally.acknowledged,
          (unsigned long long)tally.twice, (unsigned long long)tally.above);
    if (tally.unexplained != 0)
      tiers_broken(check, plain ? TIERS_PLAIN : TIERS_FINAL, "%s-%u is %lld, and no worker has written %lld",
                   plain ? "plain" : "record", name, (long long) final, (long long)tally.unexplained);
  }
}

void tiers_check_numbers(struct tiers_check *check) {
  size_t count;
  struct write *writes = collect(check, STEP_SAVE, &count);
  for (size_t i = 0; i < count; i++)
    check->sums->refused += writes[i].status != DIBS_OK && writes[i].status != DIBS_UNKNOWN;
  if (check->bounds->how == HOW_FENCED) check_order(check, writes, count);
  check_finals(check, writes, count, false);
  free(writes);
  writes = collect(check, STEP_ADD, &count);
  check_finals(check, writes, count, true);
  free(writes);
}
