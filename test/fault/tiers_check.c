/* SPDX-License-Identifier: MIT */
/*
 * Reads what all workers saw and looks for broken rules (tiers.h lists them).
 *
 * The histories share the machine's clock, so "before" is certain if one call had returned when another began; calls
 * that overlap may have happened in either order, and prove nothing.
 */
#include "tiers_check.h"
#include "belief.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MAX = 20, LAG_MS = 3000 };

const char *tiers_rule_name(enum tiers_rule rule) {
  static const char *const names[] = {
#define TIERS_RULE(name, text) #name,
      TIERS_RULES(TIERS_RULE)
#undef TIERS_RULE
  };
  return names[rule];
}

const char *tiers_rule_text(enum tiers_rule rule) {
  static const char *const texts[] = {
#define TIERS_RULE(name, text) text,
      TIERS_RULES(TIERS_RULE)
#undef TIERS_RULE
  };
  return texts[rule];
}

void tiers_broken(struct tiers_check *check, enum tiers_rule rule, const char *format, ...) {
  va_list args;
  if (++check->sums->broken[rule] > SHOWN_MAX) return; /* the first ones are enough */
  printf("BROKEN  %s: ", tiers_rule_text(rule));
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
}

/* ---- Fences ---- */

static int compare(int64_t a, int64_t b) {
  return a < b ? -1 : a > b;
}
static int by_name_and_fence(const void *a, const void *b) {
  const struct tiers_grant *x = *(struct tiers_grant *const *)a, *y = *(struct tiers_grant *const *)b;
  return x->name != y->name ? compare(x->name, y->name) : x->fence < y->fence ? -1 : x->fence > y->fence;
}
static int by_name_and_request(const void *a, const void *b) {
  const struct tiers_grant *x = *(struct tiers_grant *const *)a, *y = *(struct tiers_grant *const *)b;
  return x->name != y->name ? compare(x->name, y->name) : compare(x->request_at, y->request_at);
}
static int by_name_and_at(const void *a, const void *b) {
  const struct tiers_grant *x = *(struct tiers_grant *const *)a, *y = *(struct tiers_grant *const *)b;
  return x->name != y->name ? compare(x->name, y->name) : compare(x->at, y->at);
}
static int by_at(const void *a, const void *b) {
  const struct tiers_grant *x = *(struct tiers_grant *const *)a, *y = *(struct tiers_grant *const *)b;
  return compare(x->at, y->at);
}

static const struct tiers_grant **sorted(const struct tiers_check *check, size_t count,
                                         int (*by)(const void *, const void *)) {
  const struct tiers_grant **grants = calloc(count + 1, sizeof *grants);
  if (!grants) abort();
  for (size_t i = 0; i < count; i++) grants[i] = &check->grants[i];
  qsort(grants, count, sizeof *grants, by);
  return grants;
}

static void check_twice(struct tiers_check *check) {
  const struct tiers_grant **grants = sorted(check, check->fenced_count, by_name_and_fence), *before = NULL;
  uint32_t epochs = 0;
  for (size_t i = 0; i < check->fenced_count; i++) {
    const struct tiers_grant *grant = grants[i];
    bool first = !before || before->name != grant->name;
    if (grant->fence == 0 || grant->fence >> 53 != 0)
      tiers_broken(check, TIERS_TWICE, "name-%u: fence %llu", grant->name, (unsigned long long)grant->fence);
    if (!first && before->fence == grant->fence)
      tiers_broken(check, TIERS_TWICE,
                   "name-%u: fence %llu was granted to party %u at %.3f ms and to party %u at %.3f ms", grant->name,
                   (unsigned long long)grant->fence, before->party, tiers_ms(check, before->at), grant->party,
                   tiers_ms(check, grant->at));
    epochs = first ? 1 : epochs + (tiers_epoch(before->fence) != tiers_epoch(grant->fence));
    if (epochs > check->sums->epochs) check->sums->epochs = epochs;
    if (grant->fence > check->sums->highest) check->sums->highest = grant->fence;
    if (check->bounds->still && !first && grant->at >= check->bounds->still_from &&
        tiers_epoch(before->fence) != tiers_epoch(grant->fence))
      tiers_broken(check, TIERS_STILL, "name-%u: fence %llu has another epoch than %llu", grant->name,
                   (unsigned long long)grant->fence, (unsigned long long)before->fence);
    before = grant;
  }
  free(grants);
}

static bool was_disturbed(const struct tiers_check *check, const struct tiers_grant *grant, int64_t lag) {
  for (size_t i = 0; i < check->trouble_count; i++) {
    const struct tiers_trouble *trouble = &check->troubles[i];
    if (trouble->party != 0 && trouble->party != grant->party) continue;
    if (trouble->from <= grant->at && (trouble->to == INT64_MAX || trouble->to + lag >= grant->request_at)) return true;
  }
  return false;
}

/* The largest fence of each epoch that was seen for a name so far: there are few epochs. */
struct seen {
  uint32_t epoch;
  uint64_t fence;
};
enum { EPOCHS_MAX = 4096 };

static void note_fence(struct seen seen[EPOCHS_MAX], size_t *count, uint64_t fence) {
  uint32_t epoch = tiers_epoch(fence);
  size_t i = 0;
  while (i < *count && seen[i].epoch != epoch) i++;
  if (i == *count && *count < EPOCHS_MAX) seen[(*count)++] = (struct seen){epoch, fence};
  if (i < *count && seen[i].fence < fence) seen[i].fence = fence;
}

static void check_requested(struct tiers_check *check, const struct seen *seen, size_t count,
                            const struct tiers_grant *grant, uint32_t newest_before_lag, int64_t lag) {
  uint32_t epoch = tiers_epoch(grant->fence), newest = 0;
  for (size_t i = 0; i < count; i++) {
    if (seen[i].epoch > newest) newest = seen[i].epoch;
    if (seen[i].epoch == epoch && seen[i].fence >= grant->fence)
      tiers_broken(
          check, TIERS_GROWS,
          "name-%u: fence %llu was granted to party %u, which requested it at %.3f ms, when %llu had been seen",
          grant->name, (unsigned long long)grant->fence, grant->party, tiers_ms(check, grant->request_at),
          (unsigned long long)seen[i].fence);
  }
  check->sums->behind += epoch < newest;
  if (epoch < newest_before_lag && !was_disturbed(check, grant, lag))
    tiers_broken(check, TIERS_FOLLOWS,
                 "name-%u: party %u made a request at %.3f ms and got fence %llu of epoch %u; epoch %u was seen more "
                 "than %lld ms before",
                 grant->name, grant->party, tiers_ms(check, grant->request_at), (unsigned long long)grant->fence, epoch,
                 newest_before_lag, (long long)(lag / DIBS__NS_PER_MS));
}

/* Walks through the requests of each name, with the grants seen before each request, and those seen a lag earlier. */
static void check_order(struct tiers_check *check) {
  const struct tiers_grant **requests = sorted(check, check->fenced_count, by_name_and_request),
                           **grants = sorted(check, check->fenced_count, by_name_and_at);
  int64_t lag = (check->bounds->lag_ms ? check->bounds->lag_ms : LAG_MS) * DIBS__NS_PER_MS;
  struct seen *seen = calloc(EPOCHS_MAX, sizeof *seen);
  size_t count = 0, now = 0, before = 0;
  uint32_t newest = 0;
  if (!seen) abort();
  for (size_t i = 0; i < check->fenced_count; i++) {
    const struct tiers_grant *request = requests[i];
    if (i > 0 && requests[i - 1]->name != request->name) {
      count = newest = 0;
      now = before = i; /* both orders have the names at the same positions */
    }
    for (; now < check->fenced_count && grants[now]->name == request->name && grants[now]->at < request->request_at;
         now++)
      note_fence(seen, &count, grants[now]->fence);
    for (; before < check->fenced_count && grants[before]->name == request->name &&
           grants[before]->at + lag < request->request_at;
         before++)
      if (tiers_epoch(grants[before]->fence) > newest) newest = tiers_epoch(grants[before]->fence);
    check_requested(check, seen, count, request, newest, lag);
  }
  free(seen);
  free(requests);
  free(grants);
}

/* ---- Records ---- */

static int steps_by_began(const void *a, const void *b) {
  const struct tiers_step *x = *(struct tiers_step *const *)a, *y = *(struct tiers_step *const *)b;
  return x->name != y->name ? compare(x->name, y->name) : compare(x->began, y->began);
}
static int steps_by_ended(const void *a, const void *b) {
  const struct tiers_step *x = *(struct tiers_step *const *)a, *y = *(struct tiers_step *const *)b;
  return x->name != y->name ? compare(x->name, y->name) : compare(x->ended, y->ended);
}

static void check_accepts(struct tiers_check *check) {
  enum tiers_how how = check->bounds->how;
  const struct tiers_step **began = calloc(check->step_count + 1, sizeof *began),
                          **ended = calloc(check->step_count + 1, sizeof *ended), *highest = NULL;
  size_t count = 0, now = 0;
  if (!began || !ended) abort();
  for (size_t i = 0; i < check->step_count; i++) {
    const struct tiers_step *step = &check->steps[i];
    bool fenced = step->kind == STEP_SEAL ? how == HOW_FENCED : step->kind == STEP_SAVE && how != HOW_NO_FENCE;
    if (fenced && step->status == DIBS_OK) began[count] = ended[count] = step, count++;
  }
  qsort(began, count, sizeof *began, steps_by_began);
  qsort(ended, count, sizeof *ended, steps_by_ended);
  for (size_t i = 0; i < count; i++) {
    const struct tiers_step *step = began[i];
    if (i > 0 && began[i - 1]->name != step->name) {
      highest = NULL;
      now = i;
    }
    for (; now < count && ended[now]->name == step->name && ended[now]->ended < step->began; now++)
      if (!highest || ended[now]->fence > highest->fence) highest = ended[now];
    if (highest && step->fence < highest->fence)
      tiers_broken(
          check, TIERS_ACCEPTS,
          "record-%u accepted fence %llu of party %u at %.3f ms, although it had accepted %llu of party %u by %.3f ms",
          step->name, (unsigned long long)step->fence, step->party, tiers_ms(check, step->began),
          (unsigned long long)highest->fence, highest->party, tiers_ms(check, highest->ended));
  }
  free(began);
  free(ended);
}

/* ---- Time ---- */

/* How much of this period the anchor was reachable. */
static int64_t served(const struct tiers_check *check, int64_t from, int64_t to) {
  int64_t away = 0;
  for (size_t i = 0; i < check->trouble_count; i++) {
    const struct tiers_trouble *trouble = &check->troubles[i];
    int64_t begin = trouble->from > from ? trouble->from : from, end = trouble->to < to ? trouble->to : to;
    if (trouble->party == 0 && end > begin) away += end - begin;
  }
  return to - from - away;
}

static void check_idle(struct tiers_check *check) {
  const struct tiers_grant **grants = sorted(check, check->grant_count, by_at);
  int64_t last = check->began, longest = 0, at = 0, idle = 0;
  for (size_t i = 0; i <= check->grant_count; i++) {
    int64_t now = i < check->grant_count ? grants[i]->at : check->over;
    if (now > check->over) now = check->over;
    if (now - last > longest) {
      longest = now - last;
      at = last;
    }
    if (served(check, last, now) > idle) idle = served(check, last, now);
    last = now;
  }
  idle /= DIBS__NS_PER_MS;
  check->sums->idle_ms = longest / DIBS__NS_PER_MS;
  check->sums->idle_at_ms = (int64_t)tiers_ms(check, at);
  if (check->bounds->idle_ms > 0 && idle > check->bounds->idle_ms)
    tiers_broken(check, TIERS_IDLE,
                 "no worker got a lease for %lld ms while the anchor was reachable; the bound is %lld", (long long)idle,
                 (long long)check->bounds->idle_ms);
  free(grants);
}

static void check_all(struct tiers_check *check) {
  bool added[TIERS_PARTIES] = {false};
  for (size_t i = 0; i < check->step_count; i++) {
    const struct tiers_step *step = &check->steps[i];
    if (step->kind == STEP_SAVE && step->status == DIBS_OK && step->ended > check->well) added[step->party] = true;
  }
  for (uint32_t party = 1; party <= check->bounds->parties && party < TIERS_PARTIES; party++)
    if (!added[party] && !(check->bounds->excused >> party & 1))
      tiers_broken(check, TIERS_ALL, "party %u added nothing after %.3f ms", party, tiers_ms(check, check->well));
}

/* What the workers believed: belief.h. The scene counts as a period with an unreachable server. */
static void check_beliefs(struct tiers_check *check, const char *folder) {
  const struct tiers_bounds *bounds = check->bounds;
  struct belief_rules rules = {
      .session = bounds->session, .moves = !bounds->strict, .forgets = true, .alone = bounds->least};
  struct belief_sums sums;
  if (beliefs_check(folder, &rules, &sums) != 0) check->sums->broken[TIERS_BELIEFS]++;
  check->sums->believed = sums.believed;
  check->sums->followed = sums.followed;
}

/* ---- All ---- */

int tiers_check(const char *folder, const struct tiers_bounds *bounds, const int64_t finals[TIERS_NAMES],
                const int64_t plains[TIERS_NAMES], struct tiers_sums *sums) {
  struct tiers_check check = {.bounds = bounds, .finals = finals, .plains = plains, .sums = sums};
  int broken = 0;
  *sums = (struct tiers_sums){0};
  if (!tiers_read(&check, folder))
    tiers_broken(&check, TIERS_HISTORY, "the histories in %s are unreadable or incomplete", folder);
  if (check.full) tiers_broken(&check, TIERS_HISTORY, "a history is full");
  sums->grants = check.grant_count;
  check_twice(&check);
  check_order(&check);
  check_accepts(&check);
  check_idle(&check);
  check_all(&check);
  check_beliefs(&check, folder);
  tiers_check_numbers(&check);
  if (sums->acknowledged == 0) tiers_broken(&check, TIERS_HISTORY, "no increment was acknowledged");
  tiers_free(&check);
  for (int rule = 0; rule < TIERS_RULE_COUNT; rule++) broken += sums->broken[rule] > 0;
  return broken;
}
