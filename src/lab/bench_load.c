/* SPDX-License-Identifier: MIT */
/*
 * The longest time without a grant when the preferred tier becomes unreachable under load: twenty clients, each with
 * its own store as twenty processes would have, acquire and release their own names; once the first tier serves them, a
 * command makes it unreachable.  A failed call is tried again.  The gap is the time from the last grant of the first
 * tier to the first grant of another, over all clients: it includes detection, the breaker, the vote, the move.  Tiers
 * are distinguished by their schemes.
 */
#include "bench/floor.h"
#include "lab/bench.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BEFORE_MS = 30000 /* for the first tier to serve: names may have left it recently */, LOOK_MS = 10 };
enum { PAUSE_MS = 1, AFTER_MS = 8000 /* of observation, after --upset */ };

struct gap {
  struct bench *b;
  size_t scheme;                      /* of the first tier: bytes of the URI, with the colon */
  _Atomic int64_t first_ns, other_ns; /* of all clients: the latest grant of the first tier, the next one of another */
  _Atomic uint64_t failed;
  dibs__word go, stop;
  struct client {
    struct gap *gap;
    dibs__thread *thread;
    dibs_store *store;
    uint64_t turns, fence;
    struct dibs__hist hist; /* ns from one grant to the next */
    char name[64];
    char why[640]; /* "" unless a promise was broken, or nothing worked at all */
  } clients[BENCH_THREADS];
};

static void granted(struct client *c, dibs__tick *before, const dibs_lease *lease) {
  struct gap *g = c->gap;
  dibs__tick now = dibs__tick_now();
  if (!strncmp(dibs_lease_tier(lease), g->b->store, g->scheme)) {
    atomic_store(&g->first_ns, now.ns);
    atomic_store(&g->other_ns, 0);
  } else {
    int64_t none = 0;
    atomic_compare_exchange_strong(&g->other_ns, &none, now.ns);
  }
  if (dibs_lease_fence(lease).value <= c->fence) snprintf(c->why, sizeof c->why, "a fence of %s did not grow", c->name);
  c->fence = dibs_lease_fence(lease).value;
  dibs__hist_add(&c->hist, now.ns - before->ns);
  *before = now;
  c->turns++;
}

static void client_main(void *arg) {
  struct client *c = arg;
  struct gap *g = c->gap;
  dibs_lease_options options = {.size = sizeof options};
  while (!atomic_load(&g->go)) dibs__word_wait(&g->go, 0, DIBS__TICK_NEVER, false);
  dibs__tick before = dibs__tick_now();
  while (!atomic_load(&g->stop) && !c->why[0]) {
    dibs_lease *lease;
    dibs_error error;
    dibs_status status = dibs_acquire(c->store, c->name, &options, &lease, &error);
    if (status == DIBS_OK) {
      granted(c, &before, lease);
      status = dibs_release(lease, &error);
    }
    dibs_lease_free(lease);
    if (status == DIBS_OK) continue;
    atomic_fetch_add(&g->failed, 1);
    dibs__nap_ms(PAUSE_MS);
  }
}

static bool do_harm(struct bench *b) {
  char command[4096], shell[] = "sh", say[] = "-c";
  pid_t pid;
  int status = 0;
  snprintf(command, sizeof command, "%s", b->upset);
  if (!dibs__bench_spawn(b, shell, (char *[]){shell, say, command, NULL}, &pid)) return false;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status == 0 || dibs__bench_fail(b, "%s failed", b->upset);
}

static bool clients_start(struct gap *g) {
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    struct client *c = &g->clients[i];
    c->gap = g;
    dibs__bench_name(c->name, i);
    if (!dibs__bench_open(g->b, 0, &c->store)) return false;
    c->thread = dibs__thread_start("bench", client_main, c);
    if (!c->thread) return dibs__bench_fail(g->b, "cannot start thread number %u", i + 1);
  }
  return true;
}

static bool gather(struct gap *g, struct bench_sample *sample, int64_t ns) {
  uint64_t turns = 0;
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    struct client *c = &g->clients[i];
    if (c->why[0]) return dibs__bench_fail(g->b, "%s", c->why);
    if (!c->turns) return dibs__bench_fail(g->b, "%s was never granted", c->name);
    turns += c->turns;
    if (i) dibs__hist_merge(&g->clients[0].hist, &c->hist);
  }
  dibs__bench_sample_hist(sample, &g->clients[0].hist);
  sample->value[BENCH_RATE] = (double)turns * 1e9 / (double)ns;
  int64_t first = atomic_load(&g->first_ns), other = atomic_load(&g->other_ns);
  if (!other) return dibs__bench_fail(g->b, "no other tier granted a lease within %d s after --upset", AFTER_MS / 1000);
  sample->value[BENCH_GAP] = (double)(other - first) / 1e6;
  return true;
}

/* Until the first tier has served for a while. */
static bool first_serves(struct gap *g) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BEFORE_MS);
  for (; dibs__tick_before(dibs__tick_now(), by); dibs__nap_ms(LOOK_MS)) {
    if (!atomic_load(&g->first_ns) || atomic_load(&g->other_ns)) continue;
    dibs__nap_ms(g->b->size.ms);
    if (!atomic_load(&g->other_ns)) return true;
  }
  return dibs__bench_fail(g->b, "the first tier did not grant a lease within %d s", BEFORE_MS / 1000);
}

bool dibs__bench_side_gap(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  if (!b->upset) return dibs__bench_fail(b, "this case needs --upset COMMAND, which makes the first tier unreachable");
  struct gap *g = calloc(1, sizeof *g);
  if (!g) return dibs__bench_fail(b, "out of memory");
  g->b = b;
  g->scheme = strcspn(b->store, ":") + 1;
  bool done = clients_start(g);
  dibs__tick from = dibs__tick_now();
  if (!done) atomic_store(&g->stop, 1);
  atomic_store(&g->go, 1);
  dibs__word_wake(&g->go, UINT32_MAX, false);
  if (done) done = first_serves(g) && do_harm(b);
  if (done) dibs__nap_ms(AFTER_MS);
  atomic_store(&g->stop, 1);
  for (uint32_t i = 0; i < BENCH_THREADS; i++) dibs__thread_join(g->clients[i].thread);
  if (done) done = gather(g, sample, dibs__tick_now().ns - from.ns);
  for (uint32_t i = 0; i < BENCH_THREADS; i++) dibs_close(g->clients[i].store);
  free(g);
  return done;
}

/* Many calls in flight from one thread, as in an event loop: each answer starts the next call of its slot, and the
 * thread sleeps in poll() when there is none. */

struct loop;
struct position {
  struct loop *loop;
  dibs_lease *lease; /* NULL between two turns */
  dibs__tick requested;
  char name[64];
};

struct loop {
  struct bench *b;
  dibs_store *store;
  dibs__tick until;
  uint32_t busy;
  uint64_t turns;
  bool failed;
  struct dibs__hist hist;
  struct position places[BENCH_THREADS];
};

static void location_fail(struct position *position, const char *what, const char *text) {
  position->loop->failed = true;
  dibs__bench_fail(position->loop->b, "%s %s: %s", what, position->name, text);
}

static void position_end(struct position *position) {
  dibs_lease_free(position->lease);
  position->lease = NULL;
  position->loop->busy--;
}

static void position_start(struct position *position);

static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease;
  struct position *position = user;
  struct loop *loop = position->loop;
  dibs__tick now = dibs__tick_now();
  if (status) location_fail(position, "release", error->text);
  position_end(position);
  dibs__hist_add(&loop->hist, now.ns - position->requested.ns);
  loop->turns++;
  if (!loop->failed && dibs__tick_before(now, loop->until)) position_start(position);
}

static void acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct position *position = user;
  dibs_error wrong;
  if (status) {
    location_fail(position, "acquire", error->text);
    position_end(position);
  } else if (dibs_release_start(lease, released, position, &wrong)) {
    location_fail(position, "release", wrong.text);
    position_end(position);
  }
}

static void position_start(struct position *position) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  dibs_error error;
  position->requested = dibs__tick_now();
  position->loop->busy++;
  if (dibs_acquire_start(position->loop->store, position->name, &options, acquired, position, &position->lease,
                         &error)) {
    location_fail(position, "acquire", error.text);
    position_end(position);
  }
}

/* Until no slot has a call in flight; false when no answer came for ten seconds. */
static bool loop_turn_all(struct loop *loop) {
  struct pollfd ready = {.fd = dibs_fd(loop->store), .events = POLLIN};
  while (loop->busy) {
    if (dibs_dispatch(loop->store, 0)) continue;
    if (poll(&ready, 1, 10000) == 0)
      return dibs__bench_fail(loop->b, "%u calls in flight, and no answer in 10 s", loop->busy);
  }
  return !loop->failed;
}

static bool loop_for(struct loop *loop, int64_t ms) {
  loop->turns = 0;
  dibs__hist_clear(&loop->hist);
  loop->until = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (size_t i = 0; i < BENCH_THREADS && !loop->failed; i++) position_start(&loop->places[i]);
  return loop_turn_all(loop);
}

bool dibs__bench_side_loop(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct loop loop = {.b = b};
  if (!(arg & BENCH_FIRST_TIER ? dibs__bench_open_first : dibs__bench_open)(b, DIBS_STORE_LOOP, &loop.store))
    return false;
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    loop.places[i].loop = &loop;
    dibs__bench_name(loop.places[i].name, i);
  }
  bool done = loop_for(&loop, 0); /* one turn each, to warm up */
  struct bench_counts before = dibs__bench_counts(loop.store);
  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (done) done = loop_for(&loop, b->size.ms);
  int64_t ns = dibs__tick_now().ns - from.ns;
  cpu = dibs__bench_cpu() - cpu;
  if (done) {
    dibs__bench_sample_hist(sample, &loop.hist);
    dibs__bench_sample_counts(sample, &before, loop.store);
    sample->value[BENCH_RATE] = (double)loop.turns * 1e9 / (double)ns;
    sample->value[BENCH_CPU] = cpu * 1e6 / (double)loop.turns;
  }
  dibs_close(loop.store);
  return done;
}

/*
 * Processes that take turns on one name, on dibs and on flock(2).
 *
 * A hand-off happens when a process gets the name that called acquire before the last holder called release: its
 * duration is from the holder's call of release to the return of the next holder's acquire.  Both read the boot-time
 * clock of the machine and meet in shared memory.  A process that comes when the name is free, or overtakes (flock
 * allows it), makes no hand-off.
 *
 * The processes think for 50 us between turns, and hold the name as long: then the waiters are asleep when the name is
 * handed over.  Without holding, flock's critical section is under 1 us, no process ever sleeps, and a hand-off is two
 * calls that happen to collide, 2 to 10 us from run to run; that is shown as well, but is no floor for a ratio.
 *
 * With 200 us held and no thinking, the bench records the wait in excess of a fair one: the duration of acquire, less
 * the time that the other processes together hold the name when each has one turn.
 */

/* A process that requested so much earlier was surely in the queue before; a smaller difference may come from a busy
 * processor. */
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
static void think_for(int64_t us) {
  dibs__word never = 0;
  dibs__tick until = {dibs__tick_now().ns + us * 1000};
  while (dibs__word_wait(&never, 0, until, false)) continue;
}

/* Busy: a holder that slept would make the hand-off wait for a sleeping processor. */
static void hold_for(int64_t us) {
  dibs__tick until = {dibs__tick_now().ns + us * 1000};
  while (dibs__tick_before(dibs__tick_now(), until)) continue;
}

/* Does a process wait that had clearly requested before this holder? */
static bool overtakes(struct bench_page *page, dibs__tick requested) {
  for (uint32_t i = 0; i < page->count; i++) {
    int64_t other = atomic_load_explicit(&page->requested_ns[i], memory_order_relaxed);
    if (other && other < requested.ns - CLEARLY_NS) return true;
  }
  return false;
}

/* The holder's work between acquire and release. */
static bool in_turn(struct turns *turns, dibs__tick requested, dibs__tick granted, uint64_t fence) {
  struct bench_page *page = turns->page;
  if (atomic_fetch_add(&page->inside, 1) != 0)
    return dibs__bench_child_fail(turns->child, "two processes hold %s", turns->name);
  if (atomic_exchange(&page->fence, fence) >= fence) {
    return dibs__bench_child_fail(turns->child, "a fence of %s did not grow: %llu", turns->name,
                                  (unsigned long long)fence);
  }
  int64_t released = atomic_load(&page->released_ns);
  if (page->beyond) {
    int64_t beyond = granted.ns - requested.ns - (int64_t)(page->count - 1) * page->hold_us * 1000;
    dibs__hist_add(&turns->child->hist, beyond > 0 ? beyond : 0);
  } else if (page->waits) {
    dibs__hist_add(&turns->child->hist, granted.ns - requested.ns);
    turns->child->overtaken += overtakes(page, requested);
  } else if (released > requested.ns) {
    dibs__hist_add(&turns->child->hist, granted.ns - released);
  }
  hold_for(page->hold_us);
  atomic_fetch_sub(&page->inside, 1);
  atomic_store(&page->released_ns, dibs__tick_now().ns);
  return true;
}

static bool turn_dibs(struct turns *turns) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = STUCK_MS};
  dibs_error error;
  dibs_lease *lease;
  _Atomic int64_t *mine = &turns->page->requested_ns[turns->child - turns->page->child];
  dibs__tick requested = dibs__tick_now();
  atomic_store(mine, requested.ns);
  if (dibs_acquire(turns->store, turns->name, &options, &lease, &error)) {
    return dibs__bench_child_fail(turns->child, "acquire %s: %s", turns->name, error.text);
  }
  dibs__tick granted = dibs__tick_now();
  atomic_store(mine, 0);
  bool fine = in_turn(turns, requested, granted, dibs_lease_fence(lease).value);
  if (dibs_release(lease, &error) && fine)
    fine = dibs__bench_child_fail(turns->child, "release %s: %s", turns->name, error.text);
  dibs_lease_free(lease);
  return fine;
}

static bool turn_flock(struct turns *turns) {
  dibs__tick requested = dibs__tick_now();
  if (!dibs__floor_flock_lock(turns->fd)) return dibs__bench_child_fail(turns->child, "flock: %s", strerror(errno));
  dibs__tick granted = dibs__tick_now();
  bool fine = in_turn(turns, requested, granted, atomic_load(&turns->page->fence) + 1);
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
  return turn_dibs(turns); /* warms up; also the first name for which all of them contend */
}

/* At least one: on a busy machine a short time may end before this process runs. */
static bool turns_take(struct turns *turns) {
  struct bench_page *page = turns->page;
  do {
    if (!(page->role == BENCH_ROLE_FLOCK ? turn_flock(turns) : turn_dibs(turns))) return false;
    turns->child->turns++;
    if (page->think_us) think_for(page->think_us);
  } while (!atomic_load(&page->stop));
  return true;
}

bool dibs__bench_role_turns(struct bench_page *page, struct bench_child *child) {
  struct turns turns = {.page = page, .child = child, .fd = -1};
  /* By default the kernel may end a sleep 50 us late, which would double the think time. */
  prctl(PR_SET_TIMERSLACK, PRECISE_NS);
  dibs__bench_name_of(turns.name, page->run, 0);
  bool done = turns_open(&turns);
  dibs__hist_clear(&child->hist);
  child->overtaken = 0;
  struct bench_counts before = {0};
  if (done && turns.store) before = dibs__bench_counts(turns.store);
  if (done) dibs__bench_child_ready(page);
  done = done && turns_take(&turns);
  if (turns.store) child->transactions = dibs__bench_counts(turns.store).transactions - before.transactions;
  dibs_close(turns.store);
  if (turns.fd >= 0) close(turns.fd);
  return done;
}

/* ---- In the bench ---- */

static void turns_gather(struct bench_page *page, int64_t ns, struct bench_sample *sample) {
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
    if (done) turns_gather(page, ns, sample);
    if (done && !(sample->value[BENCH_RATE] > 0))
      done = dibs__bench_fail(b, "%u processes completed no turn in %lld ms", count, (long long)b->size.ms);
  }
  dibs__bench_page_free(page, fd);
  return done;
}

/* Threads that take turns until the time is over, and their turns: on dibs, on the SQLite floor, on the mutex floor.
 * Each member has its own count and histogram, so that measuring causes no contention. */

bool dibs__bench_fail(struct bench *b, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(b->why, sizeof b->why, format, list);
  va_end(list);
  return false;
}

static bool member_fail(struct bench_member *member, const char *what, const char *text) {
  snprintf(member->why, sizeof member->why, "%s %s: %s", what, member->name, text);
  return false;
}

static void member_body(void *arg) {
  struct bench_member *member = arg;
  struct bench_crew *crew = member->crew;
  while (!atomic_load(&crew->go)) dibs__word_wait(&crew->go, 0, DIBS__TICK_NEVER, false);
  /* At least one turn: on a busy machine a short time may end before this thread runs. */
  do {
    if (!crew->turn(member)) {
      member->failed = true;
      return;
    }
    member->turns++;
  } while (!atomic_load_explicit(&crew->stop, memory_order_relaxed));
}

/* For threads that were started when others could not be. */
static bool turn_nothing(struct bench_member *member) {
  (void)member;
  return true;
}

static bool crew_gather(struct bench *b, struct bench_crew *crew, struct bench_member *members, int64_t ns, double cpu,
                        struct bench_sample *sample) {
  struct dibs__hist *all = &members[0].hist;
  uint64_t turns = 0;
  for (uint32_t i = 0; i < crew->size; i++) {
    if (members[i].failed) return dibs__bench_fail(b, "%s", members[i].why);
    turns += members[i].turns;
    if (i) dibs__hist_merge(all, &members[i].hist);
  }
  dibs__bench_sample_hist(sample, all);
  sample->value[BENCH_RATE] = (double)turns * crew->pairs * 1e9 / (double)ns;
  if (turns) sample->value[BENCH_CPU] = cpu * 1e6 / (double)(turns * crew->pairs);
  return turns > 0 || dibs__bench_fail(b, "no turn was completed in %lld ms", (long long)(ns / 1000000));
}

static bool bench_crew_run(struct bench *b, struct bench_crew *crew, struct bench_sample *sample) {
  struct bench_member *members = calloc(crew->size, sizeof *members);
  dibs__thread **threads = calloc(crew->size, sizeof(dibs__thread *));
  bool done = members && threads;
  if (!done) dibs__bench_fail(b, "out of memory for %u threads", crew->size);

  uint32_t started = 0;
  for (; done && started < crew->size; started++) {
    struct bench_member *member = &members[started];
    member->crew = crew;
    member->number = started;
    dibs__bench_name(member->name, crew->one_name ? 0 : started);
    threads[started] = dibs__thread_start("bench", member_body, member);
    if (!threads[started]) done = dibs__bench_fail(b, "cannot start thread number %u", started + 1);
    if (!done) break;
  }

  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (!done) crew->turn = turn_nothing;
  if (!done) atomic_store(&crew->stop, true);
  atomic_store(&crew->go, 1);
  dibs__word_wake(&crew->go, UINT32_MAX, false);
  if (done) dibs__nap_ms(b->size.ms);
  atomic_store(&crew->stop, true);
  for (uint32_t i = 0; i < started; i++) dibs__thread_join(threads[i]);
  int64_t ns = dibs__tick_now().ns - from.ns;
  cpu = dibs__bench_cpu() - cpu;

  if (done) done = crew_gather(b, crew, members, ns, cpu, sample);
  free(threads);
  free(members);
  return done;
}

/* ---- Turns on dibs ---- */

static bool check_alone(struct bench_member *member, uint64_t fence) {
  struct bench_crew *crew = member->crew;
  if (atomic_fetch_add(&crew->inside, 1) != 0) return member_fail(member, "two threads hold", "exclusion is broken");
  if (atomic_exchange(&crew->fence, fence) >= fence) return member_fail(member, "a fence did not grow on", "order");
  return true;
}

static bool crew_turn_dibs(struct bench_member *member) {
  struct bench_crew *crew = member->crew;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  dibs_error error;
  dibs_lease *lease;
  dibs__tick requested = dibs__tick_now();
  if (dibs_acquire(crew->what, member->name, &options, &lease, &error)) {
    return member_fail(member, "acquire", error.text);
  }
  dibs__tick granted = crew->one_name ? dibs__tick_now() : requested;
  bool fine = !crew->one_name || check_alone(member, dibs_lease_fence(lease).value);
  if (crew->one_name) atomic_fetch_sub(&crew->inside, 1);
  if (dibs_release(lease, &error) && fine) fine = member_fail(member, "release", error.text);
  dibs_lease_free(lease);
  /* Without contention the cost is the whole pair; in a queue it is the wait. */
  int64_t ns = crew->one_name ? granted.ns - requested.ns : dibs__tick_now().ns - requested.ns;
  dibs__hist_add(&member->hist, ns);
  return fine;
}

/* Opens connections, prepares statements and starts threads outside of the measurement. */
static bool warm_up(struct bench *b, dibs_store *store) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  char name[64];
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    dibs_error error;
    dibs_lease *lease;
    dibs__bench_name(name, i);
    if (dibs_acquire(store, name, &options, &lease, &error))
      return dibs__bench_fail(b, "acquire %s: %s", name, error.text);
    dibs_status released = dibs_release(lease, &error);
    dibs_lease_free(lease);
    if (released) return dibs__bench_fail(b, "release %s: %s", name, error.text);
  }
  return true;
}

bool dibs__bench_side_threads(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  dibs_store *store = NULL;
  if (!(arg & BENCH_FIRST_TIER ? dibs__bench_open_first : dibs__bench_open)(b, 0, &store)) return false;
  arg &= ~(uint32_t)BENCH_FIRST_TIER;
  struct bench_crew crew = {.size = arg == BENCH_ONE_THREAD ? 1 : BENCH_THREADS,
                            .pairs = 1,
                            .turn = crew_turn_dibs,
                            .what = store,
                            .one_name = arg == BENCH_SAME_NAME};
  bool done = warm_up(b, store);
  struct bench_counts before = dibs__bench_counts(store);
  if (done) done = bench_crew_run(b, &crew, sample);
  if (done) dibs__bench_sample_counts(sample, &before, store);
  dibs_close(store);
  return done;
}

/* ---- Turns on the floors ---- */

static bool turn_sqlite(struct bench_member *member) {
  dibs__tick from = dibs__tick_now();
  uint32_t pairs = member->crew->pairs;
  int64_t now_ms = from.ns / DIBS__NS_PER_MS;
  if (!dibs__floor_sqlite_pairs(member->crew->what, pairs, pairs == 1, now_ms, member->why, sizeof member->why))
    return false;
  dibs__hist_add(&member->hist, dibs__tick_now().ns - from.ns);
  return true;
}

/* Makes dibs create the file whose tables the floor uses. */
static bool make_store(struct bench *b, const char *file) {
  char uri[sizeof b->folder + 64];
  dibs_error error;
  dibs_store *store;
  if (!dibs__bench_file_uri(b, file, uri, sizeof uri)) return dibs__bench_fail(b, "%s is too long", b->folder);
  if (dibs_open(uri, NULL, &store, &error)) return dibs__bench_fail(b, "%s", error.text);
  dibs_close(store);
  return true;
}

bool dibs__bench_side_sqlite(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  char path[sizeof b->folder + 16];
  snprintf(path, sizeof path, "%s/floor.db", b->folder);
  enum floor_kind kind = arg == BENCH_BARE_DIBS ? FLOOR_DIBS : FLOOR_NAIVE;
  if (kind == FLOOR_DIBS && !make_store(b, "floor.db")) return false;
  struct floor_sqlite *floor = dibs__floor_sqlite_open(path, kind, b->why, sizeof b->why);
  if (!floor) return false;
  struct bench_crew crew = {
      .size = 1, .pairs = arg == BENCH_BARE_NAIVE_64 ? 32 : 1, .turn = turn_sqlite, .what = floor};
  bool done = dibs__floor_sqlite_pairs(floor, 1, true, 1, b->why, sizeof b->why) && bench_crew_run(b, &crew, sample);
  sample->value[BENCH_TX] = crew.pairs == 1 ? 2.0 : 1.0 / crew.pairs;
  dibs__floor_sqlite_close(floor);
  return done;
}

struct fifo_floor {
  struct floor_fifo *fifo;
  struct floor_fifo_waiter *waiters[BENCH_THREADS];
};

static bool turn_fifo(struct bench_member *member) {
  struct fifo_floor *floor = member->crew->what;
  dibs__tick requested = dibs__tick_now();
  dibs__floor_fifo_lock(floor->fifo, floor->waiters[member->number]);
  dibs__hist_add(&member->hist, dibs__tick_now().ns - requested.ns);
  bool fine = check_alone(member, atomic_load(&member->crew->fence) + 1);
  atomic_fetch_sub(&member->crew->inside, 1);
  dibs__floor_fifo_unlock(floor->fifo);
  return fine;
}

bool dibs__bench_side_fifo(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  struct fifo_floor floor = {.fifo = dibs__floor_fifo_new()};
  bool done = floor.fifo;
  for (size_t i = 0; i < BENCH_THREADS; i++) {
    floor.waiters[i] = dibs__floor_fifo_waiter_new();
    done = done && floor.waiters[i];
  }
  struct bench_crew crew = {.size = BENCH_THREADS, .pairs = 1, .turn = turn_fifo, .what = &floor, .one_name = true};
  done = done ? bench_crew_run(b, &crew, sample) : dibs__bench_fail(b, "out of memory");
  for (size_t i = 0; i < BENCH_THREADS; i++) dibs__floor_fifo_waiter_free(floor.waiters[i]);
  dibs__floor_fifo_free(floor.fifo);
  return done;
}
