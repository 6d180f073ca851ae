/* SPDX-License-Identifier: MIT */
/*
 * Reads what all parties saw and looks for broken rules: fences, wake-ups, fairness, records, answers.  The check that
 * no two clients hold one name uses beliefs (belief.h).
 */
#include "checker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int broken(struct check *check, const char *rule, const char *format, ...) {
  va_list args;
  if (++check->broken > 20) return check->broken; /* the first ones are enough */
  printf("BROKEN  %s: ", rule);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  return check->broken;
}

/* ---- Fences ---- */

static int by_grant(const void *a, const void *b) {
  const struct incarnation *x = *(struct incarnation *const *)a, *y = *(struct incarnation *const *)b;
  return x->grant_at < y->grant_at ? -1 : x->grant_at > y->grant_at;
}
static int by_fence(const void *a, const void *b) {
  const struct incarnation *x = *(struct incarnation *const *)a, *y = *(struct incarnation *const *)b;
  return x->fence < y->fence ? -1 : x->fence > y->fence;
}
static int by_request(const void *a, const void *b) {
  const struct incarnation *x = *(struct incarnation *const *)a, *y = *(struct incarnation *const *)b;
  return x->request_at < y->request_at ? -1 : x->request_at > y->request_at;
}

static void check_fences(struct check *check, uint16_t name, struct incarnation **lives, size_t count) {
  struct incarnation **byfence = check_copy(lives, count), **byask = check_copy(lives, count);
  qsort(byfence, count, sizeof *byfence, by_fence);
  qsort(byask, count, sizeof *byask, by_request);
  const struct incarnation *before = NULL;
  for (size_t i = 0; i < count; i++) {
    struct incarnation *incarnation = byfence[i];
    if (incarnation->grant_at == 0 || incarnation->mode != DIBS_EXCLUSIVE) continue;
    if (incarnation->fence == 0 || incarnation->fence >= UINT64_C(1) << 53 ||
        (before && before->fence == incarnation->fence))
      broken(check, "fences", "name-%u: fence %llu granted twice, or none", name,
             (unsigned long long)incarnation->fence);
    before = incarnation;
  }
  /* A request that begins after a grant was seen gets a larger fence. */
  uint64_t largest = 0;
  for (size_t a = 0, g = 0; a < count; a++) {
    for (; g < count && lives[g]->grant_at < byask[a]->request_at; g++)
      if (lives[g]->mode == DIBS_EXCLUSIVE && lives[g]->grant_at != 0 && lives[g]->fence > largest)
        largest = lives[g]->fence;
    if (byask[a]->grant_at != 0 && byask[a]->mode == DIBS_EXCLUSIVE && byask[a]->fence <= largest)
      broken(check, "fences", "name-%u: fence %llu was granted to a request that began after %llu was seen", name,
             (unsigned long long)byask[a]->fence, (unsigned long long)largest);
  }
  free(byfence);
  free(byask);
}

/* ---- Wake-ups, fairness ---- */

/* Counts for each request how many later requests were served first: the queue inside a process and its runs allow
 * some. */
static void count_overtakes(struct check *check, struct incarnation **lives, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct incarnation *incarnation = lives[i];
    if (incarnation->grant_at == 0 || incarnation->mode != DIBS_EXCLUSIVE || check_disturbed(check, incarnation))
      continue;
    uint32_t overtaken = 0;
    for (size_t j = i; j-- > 0 && lives[j]->grant_at > incarnation->request_at;)
      overtaken += lives[j]->grant_at != 0 && lives[j]->party != incarnation->party &&
                   lives[j]->request_at > incarnation->request_at + 50 * DIBS__NS_PER_MS;
    if (overtaken > check->overtaken) check->overtaken = overtaken;
  }
}

static void check_shares(struct check *check, uint16_t name, struct incarnation **lives, size_t count) {
  enum { PARTIES = 64 };
  int64_t first[PARTIES] = {0}, last[PARTIES] = {0}, from = 0, to = INT64_MAX;
  uint32_t turns[PARTIES] = {0}, all = 0, parties = check->bounds->parties;
  for (size_t i = 0; i < count; i++) {
    if (lives[i]->grant_at == 0 || lives[i]->party >= PARTIES) continue;
    if (first[lives[i]->party] == 0) first[lives[i]->party] = lives[i]->grant_at;
    last[lives[i]->party] = lives[i]->grant_at;
  }
  for (uint32_t p = 1; p <= parties; p++) {
    from = first[p] > from ? first[p] : from;
    to = last[p] < to ? last[p] : to;
  }
  for (size_t i = 0; i < count; i++) {
    bool counts = lives[i]->party < PARTIES && lives[i]->grant_at >= from && lives[i]->grant_at <= to;
    if (counts) turns[lives[i]->party]++;
    all += counts;
  }
  for (uint32_t p = 1; p <= parties; p++) {
    double share = all ? (double)turns[p] * parties / all : 0;
    printf("        party %u had %.1f %% of %u grants\n", p, share * 100 / parties, all);
    if (share < check->bounds->share_least)
      broken(check, "shares", "name-%u: party %u had %.2f of an even share", name, p, share);
  }
}

/* ---- One lease ---- */

static void check_incarnation(struct check *check, const struct incarnation *incarnation) {
  bool quiet = !check_disturbed(check, incarnation);
  int64_t took_ms = (incarnation->gone_at - incarnation->request_at) / DIBS__NS_PER_MS;
  if (incarnation->losses > 1)
    broken(check, "loss", "party %u lease %u: the loss was reported twice", incarnation->party, incarnation->number);
  if (incarnation->losses && incarnation->letting_at && incarnation->lost_at < incarnation->letting_at &&
      incarnation->released_at && incarnation->release_status == DIBS_OK)
    broken(check, "loss", "party %u lease %u was lost, and its release succeeded", incarnation->party,
           incarnation->number);
  if (incarnation->gone_at == 0) return;
  switch (incarnation->gone_status) {
  case DIBS_HELD:
    if (incarnation->wait_ms != 0)
      broken(check, "waits", "party %u lease %u: HELD", incarnation->party, incarnation->number);
    break;
  case DIBS_TIMEOUT:
    if (took_ms < incarnation->wait_ms || incarnation->wait_ms == 0)
      broken(check, "waits", "party %u lease %u gave up after %lld of %lld ms", incarnation->party, incarnation->number,
             (long long)took_ms, (long long)incarnation->wait_ms);
    break;
  case DIBS_CANCELLED:
    break;
  case DIBS_UNAVAILABLE:
  case DIBS_UNKNOWN:
    check->troubles++;
    break;
  default:
    broken(check, "answers", "party %u lease %u: status %lld", incarnation->party, incarnation->number,
           (long long)incarnation->gone_status);
  }
  if (quiet && took_ms > incarnation->wait_ms + check->bounds->wake_ms + 5000)
    broken(check, "waits", "party %u lease %u waited %lld ms instead of %lld ms", incarnation->party,
           incarnation->number, (long long)took_ms, (long long)incarnation->wait_ms);
}

/* ---- All ---- */

static void check_name(struct check *check, uint16_t name) {
  size_t count = 0;
  struct incarnation **lives = check_lives_of(check, name, &count);
  if (count > 0) {
    qsort(lives, count, sizeof *lives, by_grant);
    check_fences(check, name, lives, count);
    check_wakes(check, name, lives, count);
    count_overtakes(check, lives, count);
    if (check->bounds->share_least > 0) check_shares(check, name, lives, count);
  }
  free(lives);
}

/* A client gets a grant soon after the server returned, unless the server disappeared again. */
static void check_returns(struct check *check) {
  enum { RETURN_MS = 5000 };
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    int64_t until = check->over, first = INT64_MAX;
    if (d->party != 0) continue;
    for (size_t j = 0; j < check->disturbance_count; j++) {
      const struct disturbance *next = &check->disturbances[j];
      if (next->party == 0 && next->from > d->to && next->from < until) until = next->from;
    }
    for (size_t j = 0; j < check->incarnation_count; j++)
      if (check->lives[j].grant_at > d->to && check->lives[j].grant_at < first) first = check->lives[j].grant_at;
    int64_t took = (first < until ? first : until) - d->to;
    if (took > check->longest_return) check->longest_return = took;
    if (took > RETURN_MS * DIBS__NS_PER_MS || d->to >= check->over)
      broken(check, "progress", "the server returned at %.3f ms, and no client had a grant before %.3f ms",
             check_ms(check, d->to), check_ms(check, first < until ? first : until));
  }
}

static void summary(const struct check *check) {
  uint64_t granted = 0, saved = 0, stale = 0, lost = 0, timeouts = 0;
  for (size_t i = 0; i < check->incarnation_count; i++) {
    const struct incarnation *incarnation = &check->lives[i];
    granted += incarnation->grant_at != 0;
    lost += incarnation->losses > 0;
    timeouts += incarnation->gone_status == DIBS_TIMEOUT && incarnation->gone_at != 0;
  }
  for (size_t i = 0; i < check->write_count; i++) {
    saved += check->writes[i].status == DIBS_OK;
    stale += check->writes[i].status == DIBS_STALE;
  }
  printf("checked: %zu requests of %u parties, %llu grants, %llu timed out, %llu lost, %u disturbances; %u stops, %u "
         "kills\n",
         check->incarnation_count, check->party_count, (unsigned long long)granted, (unsigned long long)timeouts,
         (unsigned long long)lost, check->troubles, check->stops, check->kills);
  if (check->outages > 0)
    printf("         %u times without the server; the first grant after its return took at most %.0f ms\n",
           check->outages, (double)check->longest_return / (double)DIBS__NS_PER_MS);
  printf("         %llu increments saved, %llu refused as stale, %zu looks; longest sleep while free %.1f ms (bound "
         "%lld); "
         "overtaken at most %u times (bound %u)\n",
         (unsigned long long)saved, (unsigned long long)stale, check->look_count,
         (double)check->longest_sleep / (double)DIBS__NS_PER_MS, (long long)check->bounds->wake_ms, check->overtaken,
         check_overtake_bound(check));
}

int check_histories(const char *folder, const struct bounds *bounds, const int64_t finals[HISTORY_NAMES]) {
  struct check check = {.bounds = bounds, .finals = finals};
  if (!check_read(&check, folder)) {
    printf("BROKEN  cannot read the histories in %s\n", folder);
    check_free(&check);
    return -1;
  }
  for (uint16_t name = 0; name < HISTORY_NAMES; name++) check_name(&check, name);
  for (size_t i = 0; i < check.incarnation_count; i++) check_incarnation(&check, &check.lives[i]);
  check_records(&check);
  check_returns(&check);
  if (check.overtaken > check_overtake_bound(&check))
    broken(&check, "fairness", "a request was overtaken %u times", check.overtaken);
  summary(&check);
  if (check.incarnation_count == 0) broken(&check, "histories", "nothing happened");
  int result = check.broken;
  check_free(&check);
  return result;
}
