/* SPDX-License-Identifier: MIT */
/*
 * Reads what all parties saw and looks for broken rules.
 *
 * A grant claims its name from when the caller had it until it was about to let go, or until the last instant that
 * alive() had promised, whichever came first; nothing after that is its claim, so who was stopped or killed claims what
 * it was promised and no more.
 */
#include "checker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int broken(struct check *check, const char *rule, const char *format, ...) {
  va_list args;
  if (++check->broken > 20) return check->broken; /* the first ones tell */
  printf("BROKEN  %s: ", rule);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  return check->broken;
}

/* ---- Exclusion, fences ---- */

static int by_grant(const void *a, const void *b) {
  const struct life *x = *(struct life *const *)a, *y = *(struct life *const *)b;
  return x->grant_at < y->grant_at ? -1 : x->grant_at > y->grant_at;
}
static int by_fence(const void *a, const void *b) {
  const struct life *x = *(struct life *const *)a, *y = *(struct life *const *)b;
  return x->fence < y->fence ? -1 : x->fence > y->fence;
}
static int by_ask(const void *a, const void *b) {
  const struct life *x = *(struct life *const *)a, *y = *(struct life *const *)b;
  return x->ask_at < y->ask_at ? -1 : x->ask_at > y->ask_at;
}

static bool claims(const struct life *life) {
  return life->grant_at != 0 && life->claim_end > life->grant_at;
}

static void overlap(struct check *check, uint16_t name, const struct life *first, const struct life *second) {
  broken(check, "exclusion",
         "name-%u: party %u lease %u (mode %u, fence %llu) was promised it until %.3f ms, party %u lease %u (mode %u, "
         "fence %llu) had it at %.3f ms",
         name, first->party, first->number, first->mode, (unsigned long long)first->fence,
         check_ms(check, first->claim_end), second->party, second->number, second->mode,
         (unsigned long long)second->fence, check_ms(check, second->grant_at));
}

/* `lives` in the order of their grants. */
static void check_exclusion(struct check *check, uint16_t name, struct life **lives, size_t count) {
  const struct life *exclusive = NULL, *any = NULL, *slots[SLOTS] = {NULL};
  for (size_t i = 0; i < count; i++) {
    struct life *life = lives[i];
    if (!claims(life)) continue;
    const struct life *before = life->mode == DIBS_EXCLUSIVE ? any : exclusive;
    if (before && before->claim_end > life->grant_at) overlap(check, name, before, life);
    if (life->mode == DIBS_COUNTED) {
      if (life->slot < 0 || life->slot >= SLOTS) {
        broken(check, "slots", "name-%u: slot %lld", name, (long long)life->slot);
        continue;
      }
      const struct life **slot = &slots[life->slot];
      if (*slot && (*slot)->claim_end > life->grant_at) overlap(check, name, *slot, life);
      if (!*slot || (*slot)->claim_end < life->claim_end) *slot = life;
    }
    if (life->mode == DIBS_EXCLUSIVE && (!exclusive || exclusive->claim_end < life->claim_end)) exclusive = life;
    if (!any || any->claim_end < life->claim_end) any = life;
  }
}

static void check_fences(struct check *check, uint16_t name, struct life **lives, size_t count) {
  struct life **byfence = check_copy(lives, count), **byask = check_copy(lives, count);
  qsort(byfence, count, sizeof *byfence, by_fence);
  qsort(byask, count, sizeof *byask, by_ask);
  const struct life *before = NULL, *claimed = NULL;
  for (size_t i = 0; i < count; i++) {
    struct life *life = byfence[i];
    if (life->grant_at == 0 || life->mode != DIBS_EXCLUSIVE) continue;
    if (life->fence == 0 || life->fence >= UINT64_C(1) << 53 || (before && before->fence == life->fence))
      broken(check, "fences", "name-%u: fence %llu given twice, or none", name, (unsigned long long)life->fence);
    before = life;
    if (!claims(life)) continue;
    if (claimed && claimed->claim_end > life->grant_at) overlap(check, name, claimed, life);
    claimed = life;
  }
  /* Whoever asks after a grant was seen gets a larger one. */
  uint64_t largest = 0;
  for (size_t a = 0, g = 0; a < count; a++) {
    for (; g < count && lives[g]->grant_at < byask[a]->ask_at; g++)
      if (lives[g]->mode == DIBS_EXCLUSIVE && lives[g]->grant_at != 0 && lives[g]->fence > largest)
        largest = lives[g]->fence;
    if (byask[a]->grant_at != 0 && byask[a]->mode == DIBS_EXCLUSIVE && byask[a]->fence <= largest)
      broken(check, "fences", "name-%u: fence %llu was given to who asked after %llu was seen", name,
             (unsigned long long)byask[a]->fence, (unsigned long long)largest);
  }
  free(byfence);
  free(byask);
}

/* ---- Waking, turns ---- */

/* Records how often others who asked later were served before: the line inside a process and its runs allow some. */
static void count_overtakes(struct check *check, struct life **lives, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct life *life = lives[i];
    if (life->grant_at == 0 || life->mode != DIBS_EXCLUSIVE || check_disturbed(check, life)) continue;
    uint32_t overtaken = 0;
    for (size_t j = i; j-- > 0 && lives[j]->grant_at > life->ask_at;)
      overtaken += lives[j]->grant_at != 0 && lives[j]->party != life->party &&
                   lives[j]->ask_at > life->ask_at + 50 * DIBS__NS_PER_MS;
    if (overtaken > check->overtaken) check->overtaken = overtaken;
  }
}

static void check_shares(struct check *check, uint16_t name, struct life **lives, size_t count) {
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
    printf("        party %u had %.1f %% of %u turns\n", p, share * 100 / parties, all);
    if (share < check->bounds->share_least)
      broken(check, "shares", "name-%u: party %u had %.2f of an even share", name, p, share);
  }
}

/* ---- One lease ---- */

static void check_life(struct check *check, const struct life *life) {
  bool quiet = !check_disturbed(check, life);
  int64_t took_ms = (life->gone_at - life->ask_at) / DIBS__NS_PER_MS;
  if (life->losses > 1) broken(check, "loss", "party %u lease %u was told twice", life->party, life->number);
  if (life->losses && life->letting_at && life->lost_at < life->letting_at && life->released_at &&
      life->release_status == DIBS_OK)
    broken(check, "loss", "party %u lease %u was lost, and released as if it were not", life->party, life->number);
  if (life->gone_at == 0) return;
  switch (life->gone_status) {
  case DIBS_HELD:
    if (life->wait_ms != 0) broken(check, "waits", "party %u lease %u: HELD", life->party, life->number);
    break;
  case DIBS_TIMEOUT:
    if (took_ms < life->wait_ms || life->wait_ms == 0)
      broken(check, "waits", "party %u lease %u gave up after %lld of %lld ms", life->party, life->number,
             (long long)took_ms, (long long)life->wait_ms);
    break;
  case DIBS_CANCELLED:
    break;
  case DIBS_UNAVAILABLE:
  case DIBS_UNKNOWN:
    check->troubles++;
    break;
  default:
    broken(check, "answers", "party %u lease %u: status %lld", life->party, life->number, (long long)life->gone_status);
  }
  if (quiet && took_ms > life->wait_ms + check->bounds->wake_ms + 5000)
    broken(check, "waits", "party %u lease %u waited for %lld instead of %lld ms", life->party, life->number,
           (long long)took_ms, (long long)life->wait_ms);
}

/* ---- All ---- */

static void check_name(struct check *check, uint16_t name) {
  size_t count = 0;
  struct life **lives = check_lives_of(check, name, &count);
  if (count > 0) {
    qsort(lives, count, sizeof *lives, by_grant);
    check_exclusion(check, name, lives, count);
    check_fences(check, name, lives, count);
    check_wakes(check, name, lives, count);
    count_overtakes(check, lives, count);
    if (check->bounds->share_least > 0) check_shares(check, name, lives, count);
  }
  free(lives);
}

/* Somebody is served soon after the server was back, unless it went away again. */
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
    for (size_t j = 0; j < check->life_count; j++)
      if (check->lives[j].grant_at > d->to && check->lives[j].grant_at < first) first = check->lives[j].grant_at;
    int64_t took = (first < until ? first : until) - d->to;
    if (took > check->longest_return) check->longest_return = took;
    if (took > RETURN_MS * DIBS__NS_PER_MS || d->to >= check->over)
      broken(check, "going on", "the server was back at %.3f ms, and nobody had anything before %.3f ms",
             check_ms(check, d->to), check_ms(check, first < until ? first : until));
  }
}

static void summary(const struct check *check) {
  uint64_t granted = 0, saved = 0, stale = 0, lost = 0, timeouts = 0;
  for (size_t i = 0; i < check->life_count; i++) {
    const struct life *life = &check->lives[i];
    granted += life->grant_at != 0;
    lost += life->losses > 0;
    timeouts += life->gone_status == DIBS_TIMEOUT && life->gone_at != 0;
  }
  for (size_t i = 0; i < check->write_count; i++) {
    saved += check->writes[i].status == DIBS_OK;
    stale += check->writes[i].status == DIBS_STALE;
  }
  printf("checked: %zu asks of %u parties, %llu grants, %llu timed out, %llu lost, %u troubles; %u stops, %u kills\n",
         check->life_count, check->party_count, (unsigned long long)granted, (unsigned long long)timeouts,
         (unsigned long long)lost, check->troubles, check->stops, check->kills);
  if (check->outages > 0)
    printf("         %u times without the server; then it took %.0f ms at most until somebody had a lease\n",
           check->outages, (double)check->longest_return / (double)DIBS__NS_PER_MS);
  printf("         %llu increments saved, %llu refused as stale, %zu looks; longest sleep while free %.1f ms (bound "
         "%lld); "
         "overtaken %u times at most (bound %u)\n",
         (unsigned long long)saved, (unsigned long long)stale, check->look_count,
         (double)check->longest_sleep / (double)DIBS__NS_PER_MS, (long long)check->bounds->wake_ms, check->overtaken,
         check_overtake_bound(check));
}

int check_histories(const char *folder, const struct bounds *bounds, const int64_t finals[HISTORY_NAMES]) {
  struct check check = {.bounds = bounds, .finals = finals};
  if (!check_read(&check, folder)) {
    printf("BROKEN  the histories in %s can't be read\n", folder);
    check_free(&check);
    return -1;
  }
  for (uint16_t name = 0; name < HISTORY_NAMES; name++) check_name(&check, name);
  for (size_t i = 0; i < check.life_count; i++) check_life(&check, &check.lives[i]);
  check_records(&check);
  check_returns(&check);
  if (check.overtaken > check_overtake_bound(&check))
    broken(&check, "fairness", "somebody was overtaken %u times", check.overtaken);
  summary(&check);
  if (check.life_count == 0) broken(&check, "histories", "nothing happened");
  int result = check.broken;
  check_free(&check);
  return result;
}
