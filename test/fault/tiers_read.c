/* SPDX-License-Identifier: MIT */
/* Converts the histories of a run over tiers to grants, steps and disturbances. */
#include "tiers_check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 16 };

static void *grow(void *all, size_t count, size_t size) {
  if (count & (count - 1)) return all; /* the capacity is the next power of two */
  void *more = realloc(all, (count ? count * 2 : 1) * size);
  if (!more) abort();
  return more;
}
#define ADD(array, count)                                                                                              \
  ((array) = grow((array), (count), sizeof *(array)), memset(&(array)[count], 0, sizeof *(array)), &(array)[(count)++])

/* The current grant and step of a thread: its actions follow each other.  Indexes from 1 on; 0: none. */
struct thread {
  size_t step;
  int64_t request_at;
};

static void begin_step(struct tiers_check *check, struct thread *thread, uint32_t party,
                       const struct reported *reported, enum tiers_step_kind kind) {
  struct tiers_step *step = ADD(check->steps, check->step_count);
  *step = (struct tiers_step){.kind = kind, .party = party, .lease = reported->lease, .name = reported->name};
  step->fence = reported->fence;
  step->number = reported->value;
  step->began = reported->at;
  step->ended = INT64_MAX;
  step->status = DIBS_UNKNOWN;
  thread->step = check->step_count;
}

static void end_step(struct tiers_check *check, struct thread *thread, const struct reported *reported) {
  if (thread->step == 0) return;
  struct tiers_step *step = &check->steps[thread->step - 1];
  step->ended = reported->at;
  step->number = reported->value;
  step->status = reported->extra;
  thread->step = 0;
}

static void grant(struct tiers_check *check, struct thread *thread, uint32_t party, const struct reported *reported) {
  struct tiers_grant *grant = ADD(check->grants, check->grant_count);
  *grant = (struct tiers_grant){
      .party = party, .name = reported->name, .request_at = thread->request_at, .at = reported->at};
  grant->fence = reported->fence;
}

static void read_reported(struct tiers_check *check, struct thread *thread, uint32_t party,
                          const struct reported *reported) {
  switch ((enum what)atomic_load(&reported->what)) {
  case REPORTED_REQUEST:
    thread->request_at = reported->at;
    thread->step = 0;
    check->sums->requests++;
    if (check->began == 0 || reported->at < check->began) check->began = reported->at;
    break;
  case REPORTED_GRANT:
    grant(check, thread, party, reported);
    break;
  case REPORTED_SEALING:
    begin_step(check, thread, party, reported, STEP_SEAL);
    break;
  case REPORTED_SAVING:
    begin_step(check, thread, party, reported, STEP_SAVE);
    break;
  case REPORTED_ADDING:
    begin_step(check, thread, party, reported, STEP_ADD);
    break;
  case REPORTED_SEALED:
  case REPORTED_SAVED:
  case REPORTED_ADDED:
    end_step(check, thread, reported);
    break;
  default:
    break;
  }
}

static void read_parent(struct tiers_check *check, const struct reported *reported) {
  struct tiers_trouble *trouble;
  switch ((enum what)atomic_load(&reported->what)) {
  case REPORTED_STOP:
    trouble = ADD(check->troubles, check->trouble_count);
    *trouble = (struct tiers_trouble){.party = reported->lease, .from = reported->at, .to = INT64_MAX};
    check->sums->stops += reported->lease != 0;
    break;
  case REPORTED_GO_ON:
    for (size_t i = check->trouble_count; i-- > 0;)
      if (check->troubles[i].party == reported->lease && check->troubles[i].to == INT64_MAX)
        check->troubles[i].to = reported->at;
    break;
  case REPORTED_MARK:
    check->well = reported->at;
    break;
  case REPORTED_OVER:
    check->over = reported->at;
    break;
  default:
    break;
  }
}

/* Epochs of an anchor are far above 1. */
static void part(struct tiers_check *check) {
  for (size_t i = 0; i < check->grant_count; i++) {
    struct tiers_grant grant = check->grants[i];
    if (check->bounds->least && tiers_epoch(grant.fence) == 1) continue;
    check->grants[i] = check->grants[check->fenced_count];
    check->grants[check->fenced_count++] = grant;
  }
  check->sums->alone = check->grant_count - check->fenced_count;
}

bool tiers_read(struct tiers_check *check, const char *folder) {
  for (uint32_t party = 0; party < TIERS_PARTIES; party++) {
    const struct history *history = history_look(folder, party);
    struct thread threads[THREADS] = {{0, 0}};
    if (!history && party <= check->bounds->parties) return false;
    if (!history) continue;
    uint32_t count = atomic_load(&history->count);
    if (count >= HISTORY_CAPACITY) check->full = true;
    for (uint32_t i = 0; i < count && i < HISTORY_CAPACITY; i++) {
      const struct reported *reported = &history->reported[i];
      if (reported->name >= TIERS_NAMES) continue;
      if (party == 0)
        read_parent(check, reported);
      else
        read_reported(check, &threads[reported->thread % THREADS], party, reported);
    }
    munmap((void *)(uintptr_t)history, sizeof *history);
  }
  part(check);
  return check->over != 0;
}

void tiers_free(struct tiers_check *check) {
  free(check->grants);
  free(check->steps);
  free(check->troubles);
}
