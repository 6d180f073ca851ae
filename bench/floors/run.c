/* SPDX-License-Identifier: MIT */
/*
 * One run: users are threads in a closed loop, each with a connection of its own unless one writer books for all.
 * Connections are opened one after the other before the gate opens: a thousand at once overflow a listen queue.
 */
#include "floor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A refused try sleeps for a random time below a bound that doubles with each try, between these. */
enum { TASKS_A_SECOND = 20000 /* of one in each batch */, TASKS_A_SECOND_MOST = 500000 };
enum { BACKOFF_FIRST_US = 500, BACKOFF_MOST_US = 512000, BACKOFF_DOUBLES = 10 };

struct waiters;

struct user {
  struct waiters *waiters;
  dibs__thread *thread;
  struct floor_link *link; /* NULL when a writer books */
  int32_t number;          /* from 0 */
  /* belongs to the thread until it is joined */
  struct floor_request request;
  uint64_t seed;
  struct dibs__hist times;
  uint64_t full, conflicts, deadlocks, errors;
  dibs__tick ended;
  char why[FLOOR_WHY];
};

struct waiters {
  const struct floor_run *run;
  struct floor_batch *batch; /* NULL unless a writer books */
  dibs__word gate;           /* 1: open */
  dibs__tick end;            /* written before the gate opens */
  _Atomic uint32_t inside;   /* holders of the shared name */
  _Atomic bool shared;       /* two users held it at once */
  struct user *users;
};

/* ---- Small things ---- */

static uint64_t draw(uint64_t *seed) {
  uint64_t x = *seed;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *seed = x;
}

static void back_off(struct user *u, unsigned tries) {
  uint64_t most_us = (uint64_t)BACKOFF_FIRST_US << (tries < BACKOFF_DOUBLES ? tries : BACKOFF_DOUBLES);
  if (most_us > BACKOFF_MOST_US) most_us = BACKOFF_MOST_US;
  dibs__tick by = dibs__tick_now();
  by.ns += (int64_t)(draw(&u->seed) % (most_us * 1000));
  by = dibs__tick_min(by, u->waiters->end);
  dibs__word never = 0;
  while (dibs__word_wait(&never, 0, by, false)) continue;
}

/* ---- What a user does ---- */

static enum floor_answer book(struct user *u) {
  const struct floor_run *run = u->waiters->run;
  dibs__random(u->request.claim.id, sizeof u->request.claim.id);
  for (unsigned tries = 0;; tries++) {
    enum floor_answer got = u->waiters->batch ? floor_batch_book(u->waiters->batch, &u->request)
                                              : run->strategy->book(u->link, &u->request.claim);
    if (got != FLOOR_CONFLICT && got != FLOOR_DEADLOCK) return got;
    *(got == FLOOR_CONFLICT ? &u->conflicts : &u->deadlocks) += 1;
    back_off(u, tries);
    if (!dibs__tick_before(dibs__tick_now(), u->waiters->end))
      return got; /* given up: the tables contain nothing of it */
  }
}

static enum floor_answer lease(struct user *u, bool shared) {
  struct waiters *c = u->waiters;
  const struct floor_engine *engine = c->run->engine;
  int32_t name = shared ? 0 : u->number;
  int64_t fence = 0;
  enum floor_answer got;
  while ((got = engine->acquire(u->link, name, u->number + 1, &fence)) == FLOOR_CONFLICT || got == FLOOR_DEADLOCK) {
    *(got == FLOOR_CONFLICT ? &u->conflicts : &u->deadlocks) += 1;
    if (dibs__tick_before(c->end, dibs__tick_now())) return got;
  }
  if (got != FLOOR_DONE) return got;
  if (shared && atomic_fetch_add(&c->inside, 1) != 0) atomic_store(&c->shared, true);
  if (shared) atomic_fetch_sub(&c->inside, 1);
  do got = engine->release(u->link, name, u->number + 1);
  while (got == FLOOR_DEADLOCK);
  return got == FLOOR_DONE ? got : FLOOR_BROKEN;
}

static uint32_t pairs_of(const struct floor_run *run) {
  return run->strategy->pairs ? run->strategy->pairs : 1;
}

static enum floor_answer once(struct user *u) {
  switch (u->waiters->run->strategy->kind) {
  case FLOOR_ALONE:
  case FLOOR_TOGETHER:
    return book(u);
  case FLOOR_LEASE_OWN:
    if (pairs_of(u->waiters->run) == 1) return lease(u, false);
    return u->waiters->run->engine->pairs(u->link, u->number * (int32_t)pairs_of(u->waiters->run),
                                          pairs_of(u->waiters->run), u->number + 1);
  case FLOOR_LEASE_SHARED:
    return lease(u, true);
  case FLOOR_TASKS:
    return u->waiters->run->engine->drain(u->link, pairs_of(u->waiters->run));
  }
  assert(!"a kind");
  return FLOOR_BROKEN;
}

static void user_main(void *arg) {
  struct user *u = arg;
  struct waiters *c = u->waiters;
  while (!atomic_load(&c->gate)) dibs__word_wait(&c->gate, 0, DIBS__TICK_NEVER, false);
  for (dibs__tick now = dibs__tick_now(); dibs__tick_before(now, c->end);) {
    dibs__tick before = now;
    enum floor_answer got = once(u);
    now = dibs__tick_now();
    if (got == FLOOR_DONE) {
      dibs__hist_add(&u->times, now.ns - before.ns);
      continue;
    }
    if (got == FLOOR_FULL) u->full++;
    if (got == FLOOR_BROKEN) {
      u->errors++;
      if (u->link) memcpy(u->why, u->link->why, sizeof u->why);
    }
    if (got == FLOOR_FULL || got == FLOOR_BROKEN) break; /* no user gives back: full stays full */
  }
  u->ended = dibs__tick_now();
}

/* ---- The run ---- */

static bool users_open(struct waiters *c, struct floor_result *result) {
  const struct floor_run *run = c->run;
  for (uint32_t i = 0; i < run->users; i++) {
    struct user *u = &c->users[i];
    u->waiters = c;
    u->number = (int32_t)i;
    u->request.claim.owner = u->number + 1;
    dibs__random(&u->seed, sizeof u->seed);
    u->seed |= 1; /* the generator stays at 0 for ever */
    if (run->strategy->kind == FLOOR_TOGETHER) continue;
    char why[FLOOR_WHY] = "";
    u->link = run->engine->open(run->uri, run->strategy, why);
    if (u->link) continue;
    snprintf(result->why, sizeof result->why, "connection %" PRIu32 " of %" PRIu32 ": %.400s", i + 1, run->users, why);
    return false;
  }
  return true;
}

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* Ends when all users have ended; returns the seconds from the opening of the gate to the end of the last user. */
static bool users_run(struct waiters *c, struct floor_result *result) {
  uint32_t started = 0;
  for (; started < c->run->users; started++) {
    struct user *u = &c->users[started];
    u->thread = dibs__thread_start("user", user_main, u);
    if (!u->thread) break;
  }
  double cpu = cpu_seconds();
  dibs__tick start = dibs__tick_now();
  c->end = start;
  if (started == c->run->users) c->end.ns += (int64_t)(c->run->seconds * 1e9);
  atomic_store(&c->gate, 1);
  dibs__word_wake(&c->gate, UINT32_MAX >> 1, false);
  dibs__tick last = start;
  for (uint32_t i = 0; i < started; i++) {
    struct user *u = &c->users[i];
    dibs__thread_join(u->thread);
    if (dibs__tick_before(last, u->ended)) last = u->ended;
    dibs__hist_merge(&result->times, &u->times);
    result->full += u->full;
    result->conflicts += u->conflicts;
    result->deadlocks += u->deadlocks;
    result->errors += u->errors;
    if (u->why[0] && !result->why[0]) memcpy(result->why, u->why, sizeof result->why);
  }
  result->cpu_seconds = cpu_seconds() - cpu;
  result->done = result->times.count * pairs_of(c->run);
  result->seconds = (double)(last.ns - start.ns) / 1e9;
  result->shared = atomic_load(&c->shared);
  if (started < c->run->users)
    snprintf(result->why, sizeof result->why, "only %" PRIu32 " threads could be started", started);
  return started == c->run->users;
}

static bool users_all(const struct floor_run *run, struct floor_link *writer, struct floor_result *result) {
  bool ok = false;
  struct waiters waiters = {.run = run, .users = calloc(run->users, sizeof *waiters.users)};
  if (!waiters.users) {
    snprintf(result->why, sizeof result->why, "out of memory");
    return false;
  }
  if (!users_open(&waiters, result)) goto out;
  if (writer && !(waiters.batch = floor_batch_start(run, writer))) goto out;
  ok = users_run(&waiters, result);
  if (waiters.batch) result->batches = floor_batch_stop(waiters.batch);
  if (result->errors > 0 && !result->why[0] && writer) memcpy(result->why, writer->why, sizeof result->why);
out:
  for (uint32_t i = 0; i < run->users; i++)
    if (waiters.users[i].link) run->engine->close(waiters.users[i].link);
  free(waiters.users);
  return ok && result->errors == 0;
}

/* More tasks than the users can drain in this time, as far as that can be known; else the run ends earlier. */
static int64_t tasks_of(const struct floor_run *run) {
  int64_t a_second = (int64_t)pairs_of(run) * TASKS_A_SECOND;
  if (a_second > TASKS_A_SECOND_MOST) a_second = TASKS_A_SECOND_MOST;
  return (int64_t)((double)a_second * (run->seconds < 0.2 ? 0.2 : run->seconds));
}

static bool look_tasks(const struct floor_run *run, int64_t left, struct floor_result *r) {
  int64_t done = (int64_t)r->done, all = tasks_of(run);
  if (done + left == all) return true;
  snprintf(r->why, sizeof r->why, "%" PRId64 " tasks of %" PRId64 " were done, %" PRId64 " remain", done, all, left);
  return false;
}

/* The tables contain each answered booking once, and nothing else. */
static bool look(const struct floor_run *run, struct floor_result *r) {
  const struct floor_audit *a = &r->audit;
  const int64_t done = (int64_t)r->done;
  if (run->strategy->kind == FLOOR_LEASE_OWN || run->strategy->kind == FLOOR_LEASE_SHARED) {
    if (a->fences == done && a->held == 0 && !r->shared) return true;
    snprintf(r->why, sizeof r->why, "%" PRId64 " grants, fences add up to %" PRId64 ", %" PRId64 " names still held%s",
             done, a->fences, a->held, r->shared ? ", two held one name at once" : "");
    return false;
  }
  /* No user gives back, so a full row caused each refusal. */
  const bool refused_early = r->full > 0 && a->used < a->limit;
  if (a->used == done && a->claims == done && a->amount == done && a->used <= a->limit && !refused_early) return true;
  snprintf(r->why, sizeof r->why, "%" PRId64 " granted, counted %" PRId64 " of %" PRId64 ", claims %" PRId64 "%s", done,
           a->used, a->limit, a->claims, refused_early ? ", refused too early" : "");
  return false;
}

/* The messages of some engines end in a line break. */
static void trim(char *text) {
  for (size_t n = strlen(text); n > 0 && text[n - 1] == '\n'; n--) text[n - 1] = '\0';
}

bool floor_run(const struct floor_run *run, struct floor_result *result) {
  memset(result, 0, sizeof *result);
  const struct floor_engine *engine = run->engine;
  bool ok = false;
  struct floor_link *writer = NULL;
  struct floor_link *link = engine->open(run->uri, NULL, result->why);
  if (!link) {
    trim(result->why);
    return false;
  }
  result->reached = true;
  snprintf(result->version, sizeof result->version, "%s", engine->version(link));
  if (!engine->setup(link, run->limit, (int32_t)(run->users * pairs_of(run)))) goto result;
  if (run->strategy->kind == FLOOR_TASKS && !engine->fill(link, tasks_of(run))) goto result;
  if (run->strategy->kind == FLOOR_TOGETHER && !(writer = engine->open(run->uri, run->strategy, result->why))) goto out;
  ok = users_all(run, writer, result);
  if (!ok) goto out;
  int64_t left = 0;
  bool tasks = run->strategy->kind == FLOOR_TASKS;
  ok = engine->audit(link, &result->audit) && (!tasks || engine->tasks(link, &left));
  if (!ok) goto result;
  result->right = tasks ? look_tasks(run, left, result) : look(run, result);
  goto out;
result:
  memcpy(result->why, link->why, sizeof result->why);
out:
  if (writer) engine->close(writer);
  engine->close(link);
  trim(result->why);
  return ok;
}
