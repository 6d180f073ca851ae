/* SPDX-License-Identifier: MIT */
/* From the histories of a run over tiers to grants, steps and troubles. */
#include "tiers_check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 16 };

static void *grow(void *all, size_t count, size_t size) {
  if (count & (count - 1)) return all; /* room is the next power of two */
  void *more = realloc(all, (count ? count * 2 : 1) * size);
  if (!more) abort();
  return more;
}
#define ADD(array, count)                                                                                              \
  ((array) = grow((array), (count), sizeof *(array)), memset(&(array)[count], 0, sizeof *(array)), &(array)[(count)++])

/* What a thread is at: its things follow each other.  Places from 1 on; 0: nothing. */
struct thread {
  size_t grant, step;
  int64_t ask_at;
};

static void begin_step(struct tiers_check *check, struct thread *thread, uint32_t party, const struct said *said,
                       enum tiers_step_kind kind) {
  struct tiers_step *step = ADD(check->steps, check->step_count);
  *step = (struct tiers_step){.kind = kind, .party = party, .lease = said->lease, .name = said->name};
  step->fence = said->fence;
  step->number = said->value;
  step->began = said->at;
  step->ended = INT64_MAX;
  step->status = DIBS_UNKNOWN;
  thread->step = check->step_count;
}

static void end_step(struct tiers_check *check, struct thread *thread, const struct said *said) {
  if (thread->step == 0) return;
  struct tiers_step *step = &check->steps[thread->step - 1];
  step->ended = said->at;
  step->number = said->value;
  step->status = said->extra;
  thread->step = 0;
}

static void grant(struct tiers_check *check, struct thread *thread, uint32_t party, const struct said *said) {
  struct tiers_grant *grant = ADD(check->grants, check->grant_count);
  *grant = (struct tiers_grant){.party = party, .name = said->name, .ask_at = thread->ask_at, .at = said->at};
  grant->until = said->value;
  grant->fence = said->fence;
  thread->grant = check->grant_count;
}

static void read_said(struct tiers_check *check, struct thread *thread, uint32_t party, const struct said *said) {
  switch ((enum what)atomic_load(&said->what)) {
  case SAID_ASK:
    thread->ask_at = said->at;
    thread->grant = thread->step = 0;
    check->sums->asks++;
    if (check->began == 0 || said->at < check->began) check->began = said->at;
    break;
  case SAID_GRANT:
    grant(check, thread, party, said);
    break;
  case SAID_LETTING:
    if (thread->grant > 0) check->grants[thread->grant - 1].letting_at = said->at;
    break;
  case SAID_SEALING:
    begin_step(check, thread, party, said, STEP_SEAL);
    break;
  case SAID_SAVING:
    begin_step(check, thread, party, said, STEP_SAVE);
    break;
  case SAID_ADDING:
    begin_step(check, thread, party, said, STEP_ADD);
    break;
  case SAID_SEALED:
  case SAID_SAVED:
  case SAID_ADDED:
    end_step(check, thread, said);
    break;
  default:
    break;
  }
}

static void read_parent(struct tiers_check *check, const struct said *said) {
  struct tiers_trouble *trouble;
  switch ((enum what)atomic_load(&said->what)) {
  case SAID_STOP:
    trouble = ADD(check->troubles, check->trouble_count);
    *trouble = (struct tiers_trouble){.party = said->lease, .from = said->at, .to = INT64_MAX};
    check->sums->stops += said->lease != 0;
    break;
  case SAID_GO_ON:
    for (size_t i = check->trouble_count; i-- > 0;)
      if (check->troubles[i].party == said->lease && check->troubles[i].to == INT64_MAX)
        check->troubles[i].to = said->at;
    break;
  case SAID_MARK:
    check->well = said->at;
    break;
  case SAID_OVER:
    check->over = said->at;
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
    struct thread threads[THREADS] = {{0, 0, 0}};
    if (!history && party <= check->bounds->parties) return false;
    if (!history) continue;
    uint32_t count = atomic_load(&history->count);
    if (count >= HISTORY_ROOM) check->full = true;
    for (uint32_t i = 0; i < count && i < HISTORY_ROOM; i++) {
      const struct said *said = &history->said[i];
      if (said->name >= TIERS_NAMES) continue;
      if (party == 0)
        read_parent(check, said);
      else
        read_said(check, &threads[said->thread % THREADS], party, said);
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
