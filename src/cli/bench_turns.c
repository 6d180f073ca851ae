/* SPDX-License-Identifier: MIT */
/*
 * Processes that take turns on one name, on dibs and on flock(2).
 *
 * A hand-off is what happens when a process that had called acquire before the last holder called release gets the
 * name: it takes from the holder's call of release to the return of the next holder's acquire.  Both read the one
 * boot-time clock of the machine and meet in shared memory.  A process that comes when the name is free, or overtakes
 * (flock lets it), makes no hand-off.
 *
 * The processes think for 50 us between turns, and hold the name as long: then those who wait are asleep when it is
 * handed over.  Without holding, flock's critical section is under 1 us, nobody ever sleeps, and a hand-off is two
 * calls that happen to collide, 2 to 10 us from run to run; that is shown beside, but no floor to divide by.
 *
 * With 200 us held and no thinking, what is recorded is the wait beyond the fair turn: what acquire took, less the time
 * that the other processes together hold when each has one turn.
 */
#include "bench/floor.h"
#include "cli/bench_page.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Who asked so much earlier was surely in the queue before; less may be a processor that somebody else had. */
enum { CLEARLY_NS = 2000000 };
enum { THINK_US = 50, HOLD_US = 50, HOLD_LONG_US = 200, PRECISE_NS = 1000, STUCK_MS = 20000 };

struct turns {
  struct bench_page *page;
  struct bench_child *child;
  dibs_store *store; /* NULL: flock */
  char name[64];
  int fd;
};

/* Sleeps: on a machine with fewer processors than processes, thinking must not keep the holder from running. */
static void think(int64_t us) {
  dibs__word never = 0;
  dibs__tick until = {dibs__tick_now().ns + us * 1000};
  while (dibs__word_wait(&never, 0, until, false)) continue;
}

/* Works: a holder that slept would make the hand-off wait for a sleeping processor. */
static void hold(int64_t us) {
  dibs__tick until = {dibs__tick_now().ns + us * 1000};
  while (dibs__tick_before(dibs__tick_now(), until)) continue;
}

/* Does somebody wait who had asked clearly before this holder did? */
static bool overtakes(struct bench_page *page, dibs__tick asked) {
  for (uint32_t i = 0; i < page->count; i++) {
    int64_t other = atomic_load_explicit(&page->asked_ns[i], memory_order_relaxed);
    if (other && other < asked.ns - CLEARLY_NS) return true;
  }
  return false;
}

/* What the holder does between acquire and release. */
static bool in_turn(struct turns *turns, dibs__tick asked, dibs__tick granted, uint64_t fence) {
  struct bench_page *page = turns->page;
  if (atomic_fetch_add(&page->inside, 1) != 0)
    return dibs__bench_child_fail(turns->child, "two processes hold %s", turns->name);
  if (atomic_exchange(&page->fence, fence) >= fence) {
    return dibs__bench_child_fail(turns->child, "a fence of %s did not grow: %llu", turns->name,
                                  (unsigned long long)fence);
  }
  int64_t released = atomic_load(&page->released_ns);
  if (page->beyond) {
    int64_t beyond = granted.ns - asked.ns - (int64_t)(page->count - 1) * page->hold_us * 1000;
    dibs__hist_add(&turns->child->hist, beyond > 0 ? beyond : 0);
  } else if (page->waits) {
    dibs__hist_add(&turns->child->hist, granted.ns - asked.ns);
    turns->child->overtaken += overtakes(page, asked);
  } else if (released > asked.ns) {
    dibs__hist_add(&turns->child->hist, granted.ns - released);
  }
  hold(page->hold_us);
  atomic_fetch_sub(&page->inside, 1);
  atomic_store(&page->released_ns, dibs__tick_now().ns);
  return true;
}

static bool turn_dibs(struct turns *turns) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = STUCK_MS};
  dibs_error error;
  dibs_lease *lease;
  _Atomic int64_t *mine = &turns->page->asked_ns[turns->child - turns->page->child];
  dibs__tick asked = dibs__tick_now();
  atomic_store(mine, asked.ns);
  if (dibs_acquire(turns->store, turns->name, &options, &lease, &error)) {
    return dibs__bench_child_fail(turns->child, "acquire %s: %s", turns->name, error.text);
  }
  dibs__tick granted = dibs__tick_now();
  atomic_store(mine, 0);
  bool fine = in_turn(turns, asked, granted, dibs_lease_fence(lease));
  if (dibs_release(lease, &error) && fine)
    fine = dibs__bench_child_fail(turns->child, "release %s: %s", turns->name, error.text);
  dibs_lease_free(lease);
  return fine;
}

static bool turn_flock(struct turns *turns) {
  dibs__tick asked = dibs__tick_now();
  if (!dibs__floor_flock_lock(turns->fd)) return dibs__bench_child_fail(turns->child, "flock: %s", strerror(errno));
  dibs__tick granted = dibs__tick_now();
  bool fine = in_turn(turns, asked, granted, atomic_load(&turns->page->fence) + 1);
  if (!dibs__floor_flock_unlock(turns->fd)) return dibs__bench_child_fail(turns->child, "flock: %s", strerror(errno));
  return fine;
}

static bool turns_open(struct turns *turns) {
  struct bench_page *page = turns->page;
  if (page->role == BENCH_ROLE_FLOCK) {
    turns->fd = dibs__floor_flock_open(page->file);
    return turns->fd >= 0 || dibs__bench_child_fail(turns->child, "%s: %s", page->file, strerror(errno));
  }
  dibs_error error;
  if (dibs_open(page->store, NULL, &turns->store, &error))
    return dibs__bench_child_fail(turns->child, "%s", error.text);
  return turn_dibs(turns); /* warms up; also the first that all of them contend for */
}

/* One at least: on a busy machine a short time may be over before we run. */
static bool turns_take(struct turns *turns) {
  struct bench_page *page = turns->page;
  do {
    if (!(page->role == BENCH_ROLE_FLOCK ? turn_flock(turns) : turn_dibs(turns))) return false;
    turns->child->turns++;
    if (page->think_us) think(page->think_us);
  } while (!atomic_load(&page->stop));
  return true;
}

bool dibs__bench_role_turns(struct bench_page *page, struct bench_child *child) {
  struct turns turns = {.page = page, .child = child, .fd = -1};
  /* The kernel may end a sleep 50 us late unless told otherwise, which would double the think time. */
  prctl(PR_SET_TIMERSLACK, PRECISE_NS);
  dibs__bench_name_of(turns.name, page->run, 0);
  bool done = turns_open(&turns);
  dibs__hist_clear(&child->hist);
  child->overtaken = 0;
  dibs_stats before = {.size = 0};
  if (done && turns.store) before = dibs__bench_stats(turns.store);
  if (done) dibs__bench_child_ready(page);
  done = done && turns_take(&turns);
  if (turns.store) child->transactions = dibs__bench_stats(turns.store).transactions - before.transactions;
  dibs_close(turns.store);
  if (turns.fd >= 0) close(turns.fd);
  return done;
}

/* ---- In the bench ---- */

static void gather(struct bench_page *page, int64_t ns, struct bench_sample *sample) {
  uint64_t turns = 0, transactions = 0, overtaken = 0;
  double unfair = 0;
  for (size_t i = 0; i < page->count; i++) {
    turns += page->child[i].turns;
    transactions += page->child[i].transactions;
    overtaken += page->child[i].overtaken;
    if (i) dibs__hist_merge(&page->child[0].hist, &page->child[i].hist);
  }
  for (size_t i = 0; turns && i < page->count; i++) {
    double off = 100.0 * (double)page->child[i].turns / (double)turns - 100.0 / page->count;
    if (off < 0) off = -off;
    if (off > unfair) unfair = off;
  }
  dibs__bench_sample_hist(sample, &page->child[0].hist);
  sample->value[BENCH_RATE] = (double)turns * 1e9 / (double)ns;
  sample->value[BENCH_UNFAIR] = unfair;
  if (page->waits && turns) sample->value[BENCH_OVERTAKEN] = 100.0 * (double)overtaken / (double)turns;
  if (transactions && turns) sample->value[BENCH_TX] = (double)transactions / (double)turns;
}

bool dibs__bench_side_turns(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  int fd;
  struct bench_page *page = dibs__bench_page_new(b, &fd);
  if (!page) return false;
  page->role = arg & BENCH_TURNS_FLOCK ? BENCH_ROLE_FLOCK : BENCH_ROLE_DIBS;
  page->beyond = arg & BENCH_TURNS_LONG;
  page->waits = arg & BENCH_TURNS_WAITS;
  page->think_us = page->beyond ? 0 : THINK_US;
  page->hold_us = page->beyond ? HOLD_LONG_US : arg & BENCH_TURNS_BRIEF ? 0 : HOLD_US;
  uint32_t count = BENCH_PROCESSES;
  if (arg & BENCH_TURNS_MANY) {
    count = BENCH_PROCESSES_MANY;
    page->think_us = page->hold_us = 0;
  }
  bool done = dibs__bench_children_start(b, page, fd, count);
  if (done) {
    dibs__tick from = dibs__tick_now();
    dibs__bench_children_go(page);
    dibs__nap_ms(b->size.ms);
    int64_t ns = dibs__tick_now().ns - from.ns;
    done = dibs__bench_children_end(b, page, count);
    if (done) gather(page, ns, sample);
    if (done && !(sample->value[BENCH_RATE] > 0))
      done = dibs__bench_fail(b, "%u processes made no turn in %lld ms", count, (long long)b->size.ms);
  }
  dibs__bench_page_free(page, fd);
  return done;
}
