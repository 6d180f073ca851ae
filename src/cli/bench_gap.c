/* SPDX-License-Identifier: MIT */
/*
 * How long nobody is granted anything when the preferred tier goes away under load: twenty clients, each with a store
 * of its own as twenty processes would have, take and give their own names; once the first tier serves them a command
 * is run that does the harm.  What fails is tried again.  The gap goes from the last grant of the first tier to the
 * first one of another, of any client: it holds all of it, noticing, the breaker, the vote, the move.  Tiers are told
 * apart by their schemes.
 */
#include "cli/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { BEFORE_MS = 30000 /* for the first tier to serve: it may have been left lately */, LOOK_MS = 10 };
enum { PAUSE_MS = 1, AFTER_MS = 8000 /* of looking, behind the harm */ };

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
  if (dibs_lease_fence(lease) <= c->fence) snprintf(c->why, sizeof c->why, "a fence of %s did not grow", c->name);
  c->fence = dibs_lease_fence(lease);
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
  return status == 0 || dibs__bench_fail(b, "%s did not end well", b->upset);
}

static bool clients_start(struct gap *g) {
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    struct client *c = &g->clients[i];
    c->gap = g;
    dibs__bench_name(c->name, i);
    if (!dibs__bench_open(g->b, 0, &c->store)) return false;
    c->thread = dibs__thread_start("bench", client_main, c);
    if (!c->thread) return dibs__bench_fail(g->b, "the system gives no thread number %u", i + 1);
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
  if (!other) return dibs__bench_fail(g->b, "no other tier has granted anything %d s after the harm", AFTER_MS / 1000);
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
  return dibs__bench_fail(g->b, "the first tier did not serve within %d s", BEFORE_MS / 1000);
}

bool dibs__bench_side_gap(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  if (!b->upset) return dibs__bench_fail(b, "this case needs --upset COMMAND: what takes the first tier away");
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
