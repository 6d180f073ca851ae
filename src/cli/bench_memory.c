/* SPDX-License-Identifier: MIT */
/*
 * Many leases in one process: what one that is held, and one that waits, costs in memory; how many transactions renew
 * all that are held; how many threads it takes.  A helper does it, so that the heap holds nothing else.
 */
#include "cli/bench_page.h"

#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MS = 60000, LOOK_MS = 10, SETTLE_MS = 200, WAIT_NAMES = 100, ROUNDS = 3 };

struct crowd {
  struct bench_page *page;
  struct bench_child *child;
  dibs_store *store;
  uint32_t waiting; /* for an answer */
  bool pass_on;     /* release what is granted at once */
  bool failed;
  struct seat {
    struct crowd *crowd;
    dibs_lease *lease;
  } * seats;
  uint64_t *fences; /* the last of each name */
};

/* ---- What the process uses ---- */

struct usage {
  double heap, anonymous, threads;
};

/* The number behind `key` in /proc/self/status; 0 when there is none. */
static double status_of(const char *key) {
  FILE *file = fopen("/proc/self/status", "re");
  if (!file) return 0;
  char line[256];
  size_t length = strlen(key);
  double found = 0;
  while (fgets(line, sizeof line, file)) {
    if (!strncmp(line, key, length)) found = strtod(line + length, NULL);
  }
  fclose(file);
  return found;
}

static struct usage usage_now(void) {
  struct mallinfo2 info = mallinfo2();
  return (struct usage){(double)(info.uordblks + info.hblkhd), status_of("RssAnon:") * 1024, status_of("Threads:")};
}

static void usage_sample(struct crowd *crowd, const struct usage *before) {
  struct usage now = usage_now();
  double *value = crowd->child->sample.value;
  value[BENCH_HEAP] = (now.heap - before->heap) / crowd->page->many;
  value[BENCH_RSS] = (now.anonymous - before->anonymous) / crowd->page->many;
  value[BENCH_THREADS_USED] = now.threads;
}

/* ---- Starting, and hearing what came of it ---- */

static void crowd_fail(struct crowd *crowd, dibs_lease *lease, const char *what, const char *text) {
  crowd->failed = true;
  dibs__bench_child_fail(crowd->child, "%s %s: %s", what, dibs_lease_name(lease), text);
}

static void released(dibs_lease *lease, dibs_status status, void *user) {
  struct crowd *crowd = ((struct seat *)user)->crowd;
  crowd->waiting--;
  if (status) crowd_fail(crowd, lease, "release", dibs_status_text(status));
}

static void seat_release(struct seat *seat) {
  dibs_error error;
  if (!dibs_release_start(seat->lease, released, seat, &error)) {
    seat->crowd->waiting++;
  } else {
    crowd_fail(seat->crowd, seat->lease, "release", error.text);
  }
}

static void granted(dibs_lease *lease, dibs_status status, void *user) {
  struct seat *seat = user;
  struct crowd *crowd = seat->crowd;
  crowd->waiting--;
  if (status) {
    crowd_fail(crowd, lease, "acquire", dibs_status_text(status));
    return;
  }
  uint64_t *last = &crowd->fences[(size_t)(seat - crowd->seats) % crowd->page->names];
  if (dibs_lease_fence(lease) <= *last) crowd_fail(crowd, lease, "fence", "it did not grow");
  *last = dibs_lease_fence(lease);
  if (crowd->pass_on) seat_release(seat);
}

static bool crowd_start(struct crowd *crowd) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER, .ttl_ms = crowd->page->ttl_ms};
  for (uint32_t i = 0; i < crowd->page->many; i++) {
    struct seat *seat = &crowd->seats[i];
    char name[64];
    dibs_error error;
    dibs__bench_name_of(name, crowd->page->run, i % crowd->page->names);
    seat->crowd = crowd;
    if (dibs_acquire_start(crowd->store, name, &options, granted, seat, &seat->lease, &error)) {
      return dibs__bench_child_fail(crowd->child, "acquire %s: %s", name, error.text);
    }
    crowd->waiting++;
  }
  return true;
}

static bool crowd_hear_all(struct crowd *crowd) {
  struct pollfd ready = {.fd = dibs_fd(crowd->store), .events = POLLIN};
  while (crowd->waiting && !crowd->failed) {
    if (dibs_dispatch(crowd->store, 0)) continue;
    if (poll(&ready, 1, ANSWER_MS) > 0) continue;
    return dibs__bench_child_fail(crowd->child, "%u calls outstanding, and no answer in a minute", crowd->waiting);
  }
  return !crowd->failed;
}

static bool crowd_open(struct crowd *crowd, struct bench_page *page, struct bench_child *child) {
  *crowd = (struct crowd){.page = page, .child = child};
  crowd->seats = calloc(page->many, sizeof *crowd->seats);
  crowd->fences = calloc(page->names, sizeof *crowd->fences);
  if (!crowd->seats || !crowd->fences) return dibs__bench_child_fail(child, "out of memory");
  memset(crowd->seats, 0, page->many * sizeof *crowd->seats); /* resident before anything is measured */
  dibs_store_options options = {.size = sizeof options, .flags = DIBS_STORE_LOOP};
  dibs_error error;
  if (dibs_open(page->store, &options, &crowd->store, &error)) return dibs__bench_child_fail(child, "%s", error.text);
  return true;
}

static void crowd_close(struct crowd *crowd) {
  for (uint32_t i = 0; crowd->seats && i < crowd->page->many; i++) dibs_lease_free(crowd->seats[i].lease);
  dibs_close(crowd->store);
  free(crowd->seats);
  free(crowd->fences);
}

/* One name and back, so that what every store needs once is there before anything is measured. */
static bool crowd_warm_up(struct crowd *crowd) {
  dibs_lease_options options = {.size = sizeof options};
  dibs_error error;
  dibs_lease *lease;
  char name[64];
  dibs__bench_name_of(name, crowd->page->run, crowd->page->many);
  dibs_status status = dibs_acquire(crowd->store, name, &options, &lease, &error);
  if (!status) status = dibs_release(lease, &error);
  dibs_lease_free(lease);
  return !status || dibs__bench_child_fail(crowd->child, "%s: %s", name, error.text);
}

/* ---- Held ---- */

/* Waits until `more` renewals have happened since `from`. */
static bool renewed_since(struct crowd *crowd, const dibs_stats *from, uint64_t more, dibs_stats *now) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ANSWER_MS);
  for (;;) {
    *now = dibs__bench_stats(crowd->store);
    if (now->lost) return dibs__bench_child_fail(crowd->child, "%llu leases were lost", (unsigned long long)now->lost);
    if (now->renewed - from->renewed >= more) return true;
    if (!dibs__tick_before(dibs__tick_now(), by)) return dibs__bench_child_fail(crowd->child, "renewals did not come");
    dibs__nap_ms(LOOK_MS);
  }
}

static bool watch_renewals(struct crowd *crowd) {
  uint64_t many = crowd->page->many;
  dibs_stats none = {.size = sizeof none}, first, last;
  if (!renewed_since(crowd, &none, many, &first)) return false;
  if (!renewed_since(crowd, &first, many * crowd->page->rounds, &last)) return false;
  double rounds = (double)(last.renewed - first.renewed) / (double)many;
  crowd->child->sample.value[BENCH_TX_ALL] = (double)(last.transactions - first.transactions) / rounds;
  return true;
}

bool dibs__bench_role_held(struct bench_page *page, struct bench_child *child) {
  struct crowd crowd;
  dibs__bench_sample_clear(&child->sample);
  bool done = crowd_open(&crowd, page, child) && crowd_warm_up(&crowd);
  if (done) dibs__bench_child_ready(page);
  struct usage before = usage_now();
  dibs__tick from = dibs__tick_now();
  if (done) done = crowd_start(&crowd) && crowd_hear_all(&crowd);
  child->sample.value[BENCH_RATE] = page->many * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  if (done) usage_sample(&crowd, &before);
  if (done) done = watch_renewals(&crowd);
  for (uint32_t i = 0; done && i < page->many; i++) seat_release(&crowd.seats[i]);
  if (done) done = crowd_hear_all(&crowd);
  crowd_close(&crowd);
  return done;
}

/* ---- Waiting ---- */

bool dibs__bench_role_waiting(struct bench_page *page, struct bench_child *child) {
  struct crowd crowd;
  dibs__bench_sample_clear(&child->sample);
  bool done = crowd_open(&crowd, page, child) && crowd_warm_up(&crowd);
  struct usage before = usage_now();
  crowd.pass_on = true;
  if (done) done = crowd_start(&crowd);
  if (done && dibs__bench_stats(crowd.store).waiting != page->many) {
    done = dibs__bench_child_fail(child, "%u were started, but %llu wait", page->many,
                                  (unsigned long long)dibs__bench_stats(crowd.store).waiting);
  }
  if (done) {
    dibs__nap_ms(SETTLE_MS); /* so that what goes to the store in the background is counted */
    usage_sample(&crowd, &before);
    dibs__bench_child_ready(page);
    dibs__tick from = dibs__tick_now();
    done = crowd_hear_all(&crowd);
    child->sample.value[BENCH_RATE] = page->many * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  }
  crowd_close(&crowd);
  return done;
}

/* ---- In the bench ---- */

/* Holds what the helper is to wait for. */
struct block {
  dibs_store *store;
  dibs_lease *leases[WAIT_NAMES];
};

static bool block_hold(struct bench *b, struct block *block) {
  dibs_lease_options options = {.size = sizeof options};
  dibs_error error;
  if (!dibs__bench_open(b, 0, &block->store)) return false;
  for (uint32_t i = 0; i < WAIT_NAMES; i++) {
    char name[64];
    dibs__bench_name(name, i);
    if (dibs_acquire(block->store, name, &options, &block->leases[i], &error)) {
      return dibs__bench_fail(b, "acquire %s: %s", name, error.text);
    }
  }
  return true;
}

static bool block_release(struct bench *b, struct block *block) {
  bool done = true;
  for (uint32_t i = 0; i < WAIT_NAMES; i++) {
    dibs_error error;
    if (block->leases[i] && dibs_release(block->leases[i], &error))
      done = dibs__bench_fail(b, "release: %s", error.text);
    dibs_lease_free(block->leases[i]);
    block->leases[i] = NULL;
  }
  return done;
}

bool dibs__bench_side_memory(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  int fd;
  struct bench_page *page = dibs__bench_page_new(b, &fd);
  if (!page) return false;
  bool waiting = arg == BENCH_MEMORY_WAITING;
  struct block block = {.store = NULL};
  page->role = waiting ? BENCH_ROLE_WAITING : BENCH_ROLE_HELD;
  page->many = b->size.many;
  page->names = waiting ? WAIT_NAMES : b->size.many;
  page->ttl_ms = b->size.ttl_ms;
  page->rounds = ROUNDS;
  bool done = !waiting || block_hold(b, &block);
  if (done) {
    done = dibs__bench_children_start(b, page, fd, 1);
    bool freed = !waiting || block_release(b, &block);
    if (done) {
      dibs__bench_children_go(page);
      done = dibs__bench_children_end(b, page, 1) && freed;
    }
  }
  if (done) *sample = page->child[0].sample;
  block_release(b, &block);
  dibs_close(block.store);
  dibs__bench_page_free(page, fd);
  return done;
}
