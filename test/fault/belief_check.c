/* SPDX-License-Identifier: MIT */
/*
 * At no instant may two clients both believe to hold what only one of them can have.
 *
 * A belief begins with the first look that returned true.  It ends at the earliest of these instants; none is later
 * than what was measured or claimed, so that a slow machine cannot break a rule:
 *
 *   - the instant before the client released or left the lease;
 *   - the instant until which the lease claimed to be alive.  This claim stays valid if the process is killed or
 * stopped: the store must keep the name for it;
 *   - the latest look that returned true, if an event that the client learned of cut the claim short: see cut_short.
 *
 * Exceptions, each a promise of doc/guarantees.md:
 *
 *   one client  Handles of one id are one client.  If one handle releases the lease, or renews it for less time, this
 *               applies to all; the others learn it at their next renewal.
 *   break       A broken lease ends when its holder learns of it, which a look sees.  With DIBS_BREAK_NOW the next
 * holder does not wait for that: both may believe until the claim that the holder had at the break ends. session     A
 * session lock passes on when the server ends its connection; the holder learns it a moment later.  So two may believe
 * if the server was unreachable, or if the first process was stopped, cut off or killed. moves       A fenced store of
 * several tiers grants at once after a move, under a newer epoch: two may believe under fences of different epochs.
 * Shared and counted leases have no fence that shows their mandate: once a server was unreachable, they prove nothing.
 */
#include "belief.h"
#include "store/fence.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHOWN_MAX = 20, FILES_MAX = 4096, NEAR_MS = 50, BREAK_MS = 10000 };

struct span {
  const struct belief *belief;
  int64_t end;
  bool alone; /* no other request for this name has its id */
};

struct check {
  const struct belief_rules *rules;
  struct belief_sums *sums;
  const struct belief_file *files[FILES_MAX];
  size_t file_count, count;
  struct span *spans; /* by name and id, then by name and begin */
  int64_t began;
};

static double ms(const struct check *check, int64_t at) {
  return (double)(at - check->began) / (double)DIBS__NS_PER_MS;
}

static void broken(struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void broken(struct check *check, const char *format, ...) {
  va_list args;
  if (++check->sums->broken > SHOWN_MAX) return; /* the first ones are enough */
  printf("BROKEN  ");
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
}

/* ---- Events ---- */

/* The first matching event from *file and *at on; NULL: no more. */
static const struct belief_event *next_event(const struct check *check, size_t *file, uint32_t *at) {
  for (; *file < check->file_count; ++*file, *at = 0) {
    const struct belief_file *from = check->files[*file];
    while (*at < from->event_count && *at < BELIEF_EVENTS_MAX) {
      const struct belief_event *event = &from->events[(*at)++];
      if (event->from != 0) return event;
    }
  }
  return NULL;
}

/* If the process died during the call, it may have taken effect for as long as a call lasts. */
static int64_t over(const struct belief_event *event) {
  if (event->to != 0) return event->to;
  bool breaks = event->kind == BELIEF_BREAK || event->kind == BELIEF_BREAK_NOW;
  return breaks ? event->from + BREAK_MS * DIBS__NS_PER_MS : INT64_MAX;
}

#define EACH_EVENT(check, event)                                                                                       \
  size_t file_ = 0;                                                                                                    \
  uint32_t at_ = 0;                                                                                                    \
  for (const struct belief_event *event; (event = next_event(check, &file_, &at_));)

/* ---- When a belief ends ---- */

/* An event may have ended the lease before its claim ended, and its holder learned it. */
static bool cut_short(const struct check *check, const struct belief *belief) {
  if (check->rules->session) return true; /* the claim of a session lock proves nothing */
  EACH_EVENT(check, event) {
    bool meets = event->from < belief->until && over(event) > belief->requested;
    bool breaks = event->kind == BELIEF_BREAK || event->kind == BELIEF_BREAK_NOW;
    if (meets && breaks && event->name == belief->name) return true;
  }
  return false;
}

/* Its tier may have forgotten it, or was left: its holder learned it, and no other client broke the claim before. */
static bool forgotten(const struct check *check, const struct belief *belief) {
  if (!check->rules->forgets) return false;
  EACH_EVENT(check, event) {
    if (event->kind == BELIEF_AWAY && event->from < belief->until) return true;
  }
  return false;
}

static int64_t least(int64_t a, int64_t b) {
  return b != 0 && b < a ? b : a;
}

/* How long the claim lasts beside another one of the same client. A background release (of a freed lease, of an
 * abandoned wait) may reach the store after a request through another handle, which then finds the old lease. A request
 * through the same handle must be safe from that: there the order of calls counts. */
static int64_t sibling_end(const struct belief *belief, const struct belief *other, int64_t end) {
  bool same = belief->fence == 0 || other->fence == 0 || belief->fence == other->fence;
  bool answered = other->answered; /* otherwise its process was killed during the request, and the request may have left
                                    * the queue */
  int64_t gave_back = answered ? other->gave_back : other->requested, given = answered ? other->given : 0;
  bool late = other->handle != belief->handle && (given == 0 || given > belief->requested);
  if (same && (late || gave_back > belief->requested)) end = least(end, gave_back);
  if (other->renews && other->ttl_ms < belief->ttl_ms && other->requested > belief->requested)
    end = least(end, other->requested);
  if (other->shortened > belief->requested) end = least(end, other->shortened);
  return end;
}

static void find_end(struct check *check, size_t from, size_t to, size_t at) {
  struct span *span = &check->spans[at];
  const struct belief *belief = span->belief;
  int64_t seen = belief->seen, claim = belief->until > seen ? belief->until : seen;
  bool early = belief->dead != 0 && belief->dead < belief->until, cut = cut_short(check, belief);
  int64_t end = early || cut ? seen : claim;
  span->alone = to - from == 1;
  if (belief->ended != 0) end = least(end, belief->ended);
  for (size_t i = from; i < to; i++)
    if (i != at) end = sibling_end(belief, check->spans[i].belief, end);
  span->end = end;
  if (!early) return;
  if (cut || forgotten(check, belief) || !span->alone || (belief->ended != 0 && belief->ended <= belief->dead)) {
    check->sums->lost++;
    return;
  }
  broken(check,
         "name-%u: process %u lost its lease at %.3f ms, which claimed to live until %.3f ms; "
         "no client broke it",
         belief->name, belief->process, ms(check, belief->dead), ms(check, belief->until));
}

/* ---- Two of them ---- */

static bool same_client(const struct belief *a, const struct belief *b) {
  return a->id[0] == b->id[0] && a->id[1] == b->id[1];
}

static bool conflicts(const struct belief *a, const struct belief *b) {
  if (a->mode == DIBS_EXCLUSIVE || b->mode == DIBS_EXCLUSIVE) return true;
  return a->mode == DIBS_COUNTED && b->mode == DIBS_COUNTED && a->slot == b->slot;
}

/* `victim` was broken with DIBS_BREAK_NOW while `other` acquired, and did not outlive its claim before the break. */
static bool broken_now(const struct check *check, const struct span *victim, const struct span *other) {
  EACH_EVENT(check, event) {
    if (event->kind != BELIEF_BREAK_NOW || event->name != victim->belief->name) continue;
    int64_t promised = over(event) + victim->belief->ttl_ms * DIBS__NS_PER_MS;
    if (victim->belief->requested < over(event) && other->belief->from > event->from && victim->end <= promised)
      return true;
  }
  return false;
}

/* The server may have ended the connection of `first` before the grant of `second`. */
static bool connection_ended(const struct check *check, const struct belief *first, const struct belief *second) {
  EACH_EVENT(check, event) {
    bool meets = event->from < second->from && over(event) > first->requested;
    if (meets && event->kind == BELIEF_AWAY) return true;
    if (meets && event->kind == BELIEF_STOPPED && event->process == first->process) return true;
  }
  return false;
}

static bool is_alone(const struct check *check, const struct belief *belief) {
  return check->rules->alone && dibs__fence_epoch((dibs__fence){belief->fence}) == 1;
}

static bool moved(const struct check *check, const struct belief *a, const struct belief *b) {
  if (a->mode == DIBS_EXCLUSIVE && b->mode == DIBS_EXCLUSIVE)
    return dibs__fence_epoch((dibs__fence){a->fence}) != dibs__fence_epoch((dibs__fence){b->fence});
  EACH_EVENT(check, event) {
    if (event->kind == BELIEF_AWAY && (event->from < a->from || event->from < b->from)) return true;
  }
  return false;
}

/* `first` began first. */
static void compare(struct check *check, const struct span *first, const struct span *second) {
  const struct belief *a = first->belief, *b = second->belief;
  if (same_client(a, b) || !conflicts(a, b) || is_alone(check, a) || is_alone(check, b)) return;
  bool excused = broken_now(check, first, second) || broken_now(check, second, first);
  if (check->rules->session) excused = excused || connection_ended(check, a, b) || connection_ended(check, b, a);
  if (check->rules->moves) excused = excused || moved(check, a, b);
  check->sums->excused += excused;
  if (excused) return;
  broken(check,
         "name-%u: process %u (mode %u, slot %u, fence %" PRIu64
         ", requested at %.3f ms, ttl %u ms) believed to hold it from "
         "%.3f to %.3f ms; process %u (mode %u, slot %u, fence %" PRIu64
         ", requested at %.3f ms, ttl %u ms) did from %.3f ms",
         a->name, a->process, a->mode, a->slot, a->fence, ms(check, a->requested), a->ttl_ms, ms(check, a->from),
         ms(check, first->end), b->process, b->mode, b->slot, b->fence, ms(check, b->requested), b->ttl_ms,
         ms(check, b->from));
}

/* ---- One name: spans by their begin ---- */

static void check_name(struct check *check, size_t from, size_t to) {
  struct span **lives = calloc(to - from + 1, sizeof *lives); /* spans that have not ended */
  size_t count = 0;
  if (!lives) abort();
  for (size_t i = from; i < to; i++) {
    struct span *span = &check->spans[i];
    const struct belief *belief = span->belief;
    if (belief->from == 0 || span->end <= belief->from) continue;
    check->sums->believed++;
    if (belief->mode == DIBS_COUNTED && belief->slot >= BELIEF_SLOTS)
      broken(check, "name-%u: process %u got slot %u", belief->name, belief->process, belief->slot);
    size_t kept = 0;
    bool near = false;
    for (size_t l = 0; l < count; l++) {
      if (lives[l]->end + NEAR_MS * DIBS__NS_PER_MS <= belief->from) continue;
      if (lives[l]->end > belief->from)
        compare(check, lives[l], span);
      else
        near = near || !same_client(lives[l]->belief, belief);
      lives[kept++] = lives[l];
    }
    count = kept;
    lives[count++] = span;
    check->sums->followed += near;
  }
  free(lives);
}

static int order(int64_t a, int64_t b) {
  return a < b ? -1 : a > b;
}
static int by_id(const void *a, const void *b) {
  const struct belief *x = ((const struct span *)a)->belief, *y = ((const struct span *)b)->belief;
  if (x->name != y->name) return order(x->name, y->name);
  int ids = memcmp(x->id, y->id, sizeof x->id);
  return ids ? ids : order(x->requested, y->requested);
}
static int by_begin(const void *a, const void *b) {
  const struct belief *x = ((const struct span *)a)->belief, *y = ((const struct span *)b)->belief;
  return x->name != y->name ? order(x->name, y->name) : order(x->from, y->from);
}
static int by_fence(const void *a, const void *b) {
  const struct belief *x = ((const struct span *)a)->belief, *y = ((const struct span *)b)->belief;
  if (x->name != y->name) return order(x->name, y->name);
  return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static void check_fences(struct check *check) {
  for (size_t i = 1; i < check->count; i++) {
    const struct belief *a = check->spans[i - 1].belief, *b = check->spans[i].belief;
    if (a->name == b->name && a->fence == b->fence && a->fence != 0 && !same_client(a, b) && !is_alone(check, a))
      broken(check, "name-%u: fence %" PRIu64 " was granted to process %u and to process %u", a->name, a->fence,
             a->process, b->process);
  }
}

/* ---- All ---- */

static bool read_file(struct check *check, const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct belief_file *file = MAP_FAILED;
  if (fd >= 0) file = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (file == MAP_FAILED || check->file_count == FILES_MAX) return false;
  check->files[check->file_count++] = file;
  uint32_t count = file->count < BELIEFS_MAX ? file->count : BELIEFS_MAX;
  struct span *more = realloc(check->spans, (check->count + count + 1) * sizeof *more);
  if (!more) abort();
  check->spans = more;
  for (uint32_t i = 0; i < count; i++) {
    if (!file->at[i].written) continue;
    check->spans[check->count++] = (struct span){.belief = &file->at[i]};
    if (check->began == 0 || file->at[i].requested < check->began) check->began = file->at[i].requested;
  }
  check->sums->processes += count > 0;
  for (uint32_t i = 0; i < file->event_count && i < BELIEF_EVENTS_MAX; i++)
    if (file->events[i].kind == BELIEF_WRONG) check->sums->broken++; /* the client that saw it printed it */
  return true;
}

static bool read_folder(struct check *check, const char *folder) {
  DIR *dir = opendir(folder);
  bool fine = dir != NULL;
  for (struct dirent *entry; fine && (entry = readdir(dir));) {
    char path[512];
    const char *dot = strstr(entry->d_name, ".beliefs");
    if (!dot || dot[strlen(".beliefs")] != '\0') continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    fine = read_file(check, path);
  }
  if (dir) closedir(dir);
  return fine;
}

/* For each run of spans that are `same`. */
static void each_client(struct check *check) {
  for (size_t from = 0, to; from < check->count; from = to) {
    const struct belief *first = check->spans[from].belief;
    for (to = from + 1; to < check->count && check->spans[to].belief->name == first->name &&
                        same_client(check->spans[to].belief, first);)
      to++;
    check->sums->repeated += to - from - 1;
    for (size_t i = from; i < to; i++)
      if (check->spans[i].belief->from != 0) find_end(check, from, to, i);
  }
}

static void each_name(struct check *check) {
  for (size_t from = 0, to; from < check->count; from = to) {
    for (to = from + 1; to < check->count && check->spans[to].belief->name == check->spans[from].belief->name;) to++;
    check_name(check, from, to);
  }
}

int beliefs_check(const char *folder, const struct belief_rules *rules, struct belief_sums *sums) {
  struct check check = {.rules = rules, .sums = sums};
  *sums = (struct belief_sums){0};
  bool fine = read_folder(&check, folder);
  if (!fine) printf("BROKEN  cannot read the beliefs in %s\n", folder);
  sums->requested = check.count;
  if (check.count > 0) {
    qsort(check.spans, check.count, sizeof *check.spans, by_id);
    each_client(&check);
    qsort(check.spans, check.count, sizeof *check.spans, by_begin);
    each_name(&check);
    qsort(check.spans, check.count, sizeof *check.spans, by_fence);
    check_fences(&check);
  }
  for (size_t i = 0; i < check.file_count; i++) munmap((void *)(uintptr_t)check.files[i], sizeof *check.files[i]);
  free(check.spans);
  return fine ? (int)sums->broken : -1;
}
