/* SPDX-License-Identifier: MIT */
/*
 * What the clients of a storm do: acquire, blocking or not; repeat a request with an id of their own, at once, later in
 * the ttl, after its end, after the release, from another thread or process; use one id for two names; renew by hand
 * for more and for less time; adopt; let leases expire; detach; break.  The seed decides everything.
 */
#include "storm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STORES = 2, SHOWN = 32, TTL_LEAST_MS = 200, TTL_SPAN_MS = 500, STEP_MS = 8, TRIES = 4 };

/* Ids that the clients of all processes share.  A torn read gives an id that no client has. */
struct board {
  struct shown {
    _Atomic uint64_t id[2], fence;
    _Atomic uint32_t name, ttl_ms;
  } at[SHOWN];
};

static struct storm_job job;
static dibs_store *stores[STORES];
static struct beliefs *beliefs;
static struct board *board;

struct client {
  pthread_t thread;
  uint64_t seed;
};

/* A request and its lease. */
struct hold {
  struct client *client;
  dibs_store *store;
  uint16_t name;
  bool own; /* the client chose the id */
  char id[33], text[16];
  dibs_lease_options how;
  struct belief request, *belief;
  dibs_lease *lease;
  /* For an acquisition that completes later. */
  dibs__word over;
  dibs_status status;
};

uint64_t storm_draw(uint64_t *seed) {
  uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static uint32_t below(struct client *client, uint32_t n) {
  return storm_below(&client->seed, n);
}
static bool chance(struct client *client, uint32_t percent) {
  return below(client, 100) < percent;
}
static bool continues(void) {
  return dibs__tick_before(dibs__tick_now(), job.deadline);
}

/* ---- Requests ---- */

static void set_id(struct hold *hold, uint64_t high, uint64_t low) {
  hold->own = true;
  hold->request.id[0] = high;
  hold->request.id[1] = low;
  snprintf(hold->id, sizeof hold->id, "%016" PRIx64 "%016" PRIx64, high, low);
}

/* A request for `name` with a random mode, ttl and wait. */
static void draw_request(struct hold *hold, struct client *client, uint16_t name) {
  uint32_t waits = below(client, 100);
  *hold = (struct hold){.client = client, .store = stores[below(client, STORES)], .name = name};
  hold->how = (dibs_lease_options){.size = sizeof hold->how, .mode = storm_mode(&job, name)};
  hold->how.ttl_ms = TTL_LEAST_MS + below(client, TTL_SPAN_MS);
  hold->how.wait_ms = waits < 20 ? 0 : waits < 60 ? 20 + below(client, 300) : 1000;
  if (chance(client, 60)) hold->how.flags = DIBS_NO_RENEW;
  if (hold->how.mode == DIBS_SHARED && chance(client, 30)) hold->how.mode = DIBS_EXCLUSIVE;
  if (job.counted && name % 2 && chance(client, 15)) hold->how.mode = DIBS_EXCLUSIVE;
  if (hold->how.mode == DIBS_COUNTED) hold->how.slots = BELIEF_SLOTS;
  dibs__random(hold->request.id, sizeof hold->request.id); /* the checker identifies the request by this id; the store
                                                            * has another */
}

static void completed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct hold *hold = user;
  (void)lease;
  hold->status = status;
  atomic_store(&hold->over, 1);
  dibs__word_wake(&hold->over, 1, false);
}

static bool begin_request(struct hold *hold) {
  snprintf(hold->text, sizeof hold->text, "name-%u", hold->name);
  hold->how.id = hold->own ? hold->id : NULL;
  hold->request.name = hold->name;
  hold->request.mode = (uint8_t)hold->how.mode;
  hold->request.renews = !(hold->how.flags & DIBS_NO_RENEW);
  hold->request.ttl_ms = (uint32_t)hold->how.ttl_ms;
  hold->request.handle = job.process * STORES + (hold->store == stores[1]);
  hold->lease = NULL;
  atomic_store(&hold->over, 0);
  hold->belief = belief_request(beliefs, &hold->request);
  return hold->belief != NULL;
}

/* Writes down the outcome of the request. */
static dibs_status end_request(struct hold *hold, dibs_status status) {
  if (status == DIBS_OK)
    belief_granted(beliefs, hold->belief, hold->lease);
  else
    belief_refused(hold->belief, status != DIBS_INVALID && status != DIBS_UNSUPPORTED);
  if (status == DIBS_CORRUPT || status == DIBS_TOO_NEW || status == DIBS_STALE) {
    printf("BROKEN  acquiring %s: %s\n", hold->text, dibs_status_name(status));
    belief_event(beliefs, BELIEF_WRONG, job.process, hold->name);
  }
  return status;
}

static dibs_status start(struct hold *hold) {
  if (!begin_request(hold)) return DIBS_NO_MEMORY;
  dibs_status status = dibs_acquire_start(hold->store, hold->text, &hold->how, completed, hold, &hold->lease, NULL);
  if (status != DIBS_OK) {
    hold->lease = NULL;
    end_request(hold, status);
  }
  return status;
}

static dibs_status finish(struct hold *hold) {
  while (atomic_load(&hold->over) == 0) dibs__word_wait(&hold->over, 0, DIBS__TICK_NEVER, false);
  if (hold->status == DIBS_OK) return end_request(hold, DIBS_OK);
  dibs_lease_free(hold->lease);
  hold->lease = NULL;
  return end_request(hold, hold->status);
}

static dibs_status acquire_once(struct hold *hold) {
  if (chance(hold->client, 25)) {
    dibs_status status = start(hold);
    if (status != DIBS_OK) return status;
    if (chance(hold->client, 25)) {
      dibs__nap_ms(below(hold->client, 20));
      dibs_acquire_cancel(hold->lease);
    }
    return finish(hold);
  }
  if (!begin_request(hold)) return DIBS_NO_MEMORY;
  return end_request(hold, dibs_acquire(hold->store, hold->text, &hold->how, &hold->lease, NULL));
}

/* If the outcome is unknown, repeats the request: at once, or after part of the ttl. */
static dibs_status acquire(struct hold *hold) {
  dibs_status status = DIBS_UNKNOWN;
  for (int i = 0; i < TRIES && status == DIBS_UNKNOWN && continues(); i++) {
    if (i > 0 && chance(hold->client, 50)) dibs__nap_ms(below(hold->client, (uint32_t)hold->how.ttl_ms));
    status = acquire_once(hold);
    if (!hold->own) break; /* a repetition would be another request */
  }
  return status;
}

/* ---- Leases that are held ---- */

static void release(struct hold *hold) {
  belief_end(beliefs, hold->belief, hold->lease, true);
  dibs_status status = chance(hold->client, 80) ? dibs_release(hold->lease, NULL) : DIBS_UNKNOWN;
  if (status == DIBS_OK || status == DIBS_LOST) belief_given(hold->belief);
  dibs_lease_free(hold->lease); /* released in the background if it is still held */
  hold->lease = NULL;
}

/* Detaches the lease.  A session lock cannot be detached. */
static bool detach_lease(struct hold *hold) {
  belief_end(beliefs, hold->belief, hold->lease, false);
  bool fine = dibs_lease_detach(hold->lease, NULL) == DIBS_OK;
  if (!fine) atomic_store(&hold->belief->gave_back, dibs__tick_now().ns);
  dibs_lease_free(hold->lease);
  hold->lease = NULL;
  return fine;
}

static void renew(struct hold *hold) {
  uint32_t ttl_ms = TTL_LEAST_MS + below(hold->client, TTL_SPAN_MS);
  belief_renewing(beliefs, hold->belief, hold->lease, ttl_ms);
  if (dibs_renew(hold->lease, ttl_ms, NULL) == DIBS_OK) hold->how.ttl_ms = ttl_ms;
  belief_renewed(beliefs, hold->belief, hold->lease);
}

/* Uses the id of a held lease for another name in the same process: the request is refused, and neither name is
 * disturbed. With `waits` the lease is released while that request may wait. */
static bool use_for_another_name(struct hold *hold, bool waits) {
  struct hold other;
  if (job.names < 2) return true;
  draw_request(&other, hold->client, (uint16_t)((hold->name + 1 + below(hold->client, job.names - 1)) % job.names));
  other.store = hold->store;
  set_id(&other, hold->request.id[0], hold->request.id[1]);
  other.how.wait_ms = waits ? 400 : 0;
  bool alive = belief_look(beliefs, hold->belief, hold->lease);
  if (start(&other) != DIBS_OK) return true;
  if (waits) {
    dibs__nap_ms(below(hold->client, 40));
    release(hold);
  }
  dibs_status status = finish(&other);
  if (status != DIBS_OK) return !waits;
  if (!waits && alive && belief_look(beliefs, hold->belief, hold->lease)) {
    printf("BROKEN  one id holds %s and %s\n", hold->text, other.text);
    belief_event(beliefs, BELIEF_WRONG, job.process, hold->name);
  }
  dibs__nap_ms(below(hold->client, 60));
  release(&other);
  return !waits;
}

/* Repeats the same request while the lease is held. */
static void repeat_beside(struct hold *hold) {
  struct hold again = *hold;
  again.store = stores[below(hold->client, STORES)];
  again.how.wait_ms = below(hold->client, 2) * 50;
  if (acquire_once(&again) != DIBS_OK) return;
  dibs__nap_ms(below(hold->client, 30));
  if (chance(hold->client, 50))
    detach_lease(&again);
  else
    release(&again);
}

static void show(struct hold *hold) {
  struct shown *shown = &board->at[below(hold->client, SHOWN)];
  atomic_store(&shown->id[0], hold->request.id[0]);
  atomic_store(&shown->id[1], hold->request.id[1]);
  atomic_store(&shown->fence, dibs_lease_fence(hold->lease).value);
  atomic_store(&shown->ttl_ms, (uint32_t)hold->how.ttl_ms);
  atomic_store(&shown->name, hold->name);
}

/* Works for a while: briefly in this percentage of cases, otherwise for part of the ttl or past it. false: the lease
 * was released meanwhile. */
static bool work(struct hold *hold, uint32_t shortly) {
  uint32_t kind = below(hold->client, 100), ttl_ms = (uint32_t)hold->how.ttl_ms;
  uint32_t for_ms = ttl_ms * 5 / 4;
  if (kind < shortly)
    for_ms = below(hold->client, 10);
  else if (chance(hold->client, 60))
    for_ms = below(hold->client, ttl_ms);
  dibs__tick end = dibs__tick_add_ms(dibs__tick_now(), for_ms);
  if (hold->own && chance(hold->client, 50)) show(hold);
  while (dibs__tick_before(dibs__tick_now(), end) && continues()) {
    dibs__nap_ms(1 + below(hold->client, STEP_MS));
    uint32_t step = below(hold->client, 100);
    if (step < 4) renew(hold);
    if (!hold->own) continue;
    if (step >= 4 && step < 7) repeat_beside(hold);
    if (step >= 7 && step < 10 && !use_for_another_name(hold, step == 9)) return false;
  }
  return true;
}

/* Repeats the request with the same id: to the store, a detached lease looks like one after a crash. */
static void repeat(struct hold *hold) {
  uint32_t ttl_ms = (uint32_t)hold->how.ttl_ms, when = below(hold->client, 4);
  dibs__nap_ms(when == 0 ? 0 : when == 3 ? ttl_ms * 11 / 10 : below(hold->client, ttl_ms));
  if (chance(hold->client, 50)) hold->how.ttl_ms = TTL_LEAST_MS + below(hold->client, TTL_SPAN_MS);
  if (acquire(hold) != DIBS_OK) return;
  if (work(hold, 30)) release(hold); /* its remaining time ends while the work lasts */
}

/* A client crashes early in its ttl, repeats its request late in it, and then works for a whole ttl, while its lease
 * claims to be alive. Meanwhile the first grant ends, and another client may acquire the name. */
static void crash_and_repeat(struct client *client) {
  struct hold hold;
  draw_request(&hold, client, (uint16_t)(chance(client, 50) ? 0 : below(client, job.names)));
  set_id(&hold, storm_draw(&client->seed) ^ hold.request.id[0], hold.request.id[1]);
  hold.how.flags = DIBS_NO_RENEW;
  if (acquire(&hold) != DIBS_OK || !detach_lease(&hold)) return;
  uint32_t ttl_ms = (uint32_t)hold.how.ttl_ms;
  dibs__nap_ms(ttl_ms / 2 + below(client, ttl_ms / 2));
  if (chance(client, 30)) hold.how.ttl_ms += below(client, TTL_SPAN_MS);
  if (acquire(&hold) != DIBS_OK) return;
  for (dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), hold.how.ttl_ms); dibs__tick_before(dibs__tick_now(), by);) {
    dibs__nap_ms(STEP_MS);
    if (!belief_look(beliefs, hold.belief, hold.lease)) break;
  }
  release(&hold);
}

static void end(struct hold *hold) {
  uint32_t how = below(hold->client, 100);
  if (how < 35 || !hold->own) {
    release(hold);
  } else if (how < 50) { /* the next request with this id is a new request */
    release(hold);
    repeat(hold);
  } else if (detach_lease(hold) && how < 95) {
    repeat(hold);
  }
}

/* ---- Others' leases ---- */

static bool pick_shared_id(struct client *client, struct hold *hold, bool adopts) {
  const struct shown *shown = &board->at[below(client, SHOWN)];
  uint64_t high = atomic_load(&shown->id[0]), low = atomic_load(&shown->id[1]);
  if (high == 0 || low == 0) return false;
  uint16_t name = (uint16_t)(atomic_load(&shown->name) % job.names);
  draw_request(hold, client, adopts || chance(client, 80) ? name : (uint16_t)below(client, job.names));
  if (hold->how.mode == DIBS_EXCLUSIVE && storm_mode(&job, name) == DIBS_SHARED) hold->how.mode = DIBS_SHARED;
  set_id(hold, high, low);
  if (chance(client, 50)) hold->how.ttl_ms = (int64_t)atomic_load(&shown->ttl_ms) + 1;
  hold->request.fence = atomic_load(&shown->fence);
  return true;
}

static void adopt(struct client *client) {
  struct hold hold;
  if (!pick_shared_id(client, &hold, true)) return;
  if (hold.how.mode == DIBS_COUNTED || !begin_request(&hold)) return; /* an adopted lease does not know its slot */
  dibs_status status =
      dibs_lease_adopt(hold.store, hold.text, hold.id, (dibs_fence){hold.request.fence}, &hold.how, &hold.lease, NULL);
  if (status == DIBS_OK) status = dibs_renew(hold.lease, hold.how.ttl_ms, NULL);
  atomic_store(&hold.belief->shortened, hold.belief->requested);
  if (status != DIBS_OK) { /* freeing an adopted lease releases it in the background */
    belief_refused(hold.belief, hold.lease != NULL);
    dibs_lease_free(hold.lease);
    return;
  }
  belief_granted(beliefs, hold.belief, hold.lease);
  if (!work(&hold, 60)) return;
  if (chance(client, 50))
    release(&hold);
  else
    detach_lease(&hold);
}

static void break_one(struct client *client) {
  uint16_t name = (uint16_t)below(client, job.names);
  bool now = storm_breaks_now(name);
  char text[16];
  if (!now && !storm_breaks(name)) return;
  snprintf(text, sizeof text, "name-%u", name);
  dibs_break_options how = {.size = sizeof how, .flags = now ? DIBS_BREAK_NOW : 0, .wait_ms = below(client, 200)};
  struct belief_event *event = belief_event(beliefs, now ? BELIEF_BREAK_NOW : BELIEF_BREAK, job.process, name);
  if (!event) return;
  if (dibs_break(stores[below(client, STORES)], text, &how, NULL) == DIBS_NOT_FOUND) dibs__nap_ms(1);
  belief_event_over(event);
}

/* ---- A client ---- */

static void do_something(struct client *client) {
  struct hold hold;
  uint32_t kind = below(client, 100);
  if (kind < 4) {
    break_one(client);
    return;
  }
  if (kind < 10) {
    adopt(client);
    return;
  }
  if (kind < 22) {
    crash_and_repeat(client);
    return;
  }
  if (kind >= 35 || !pick_shared_id(client, &hold, false)) {
    draw_request(&hold, client, (uint16_t)(chance(client, 20) ? 0 : below(client, job.names)));
    if (chance(client, 65)) set_id(&hold, storm_draw(&client->seed) ^ hold.request.id[0], hold.request.id[1]);
  }
  dibs_status status = acquire(&hold);
  if (status == DIBS_UNAVAILABLE || status == DIBS_INVALID) dibs__nap_ms(5);
  if (status == DIBS_OK && work(&hold, 75)) end(&hold);
}

static void *run(void *arg) {
  struct client *client = arg;
  while (continues()) do_something(client);
  return NULL;
}

/* ---- The process ---- */

static bool open_board(void) {
  char path[128];
  snprintf(path, sizeof path, "%s/board", job.folder);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  bool fine = fd >= 0 && ftruncate(fd, sizeof *board) == 0;
  if (fine) board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  fine = fine && board != MAP_FAILED;
  if (!fine) perror(path);
  if (fd >= 0) close(fd);
  return fine;
}

/* An unreachable server returns. */
static bool open_stores(void) {
  dibs_error error;
  for (int i = 0; i < STORES; i++)
    while (dibs_open(job.uri, NULL, &stores[i], &error) != DIBS_OK) {
      bool away = error.status == DIBS_UNAVAILABLE || error.status == DIBS_UNKNOWN;
      if (!away) fprintf(stderr, "storm: cannot open: %s: %s\n", dibs_status_name(error.status), error.text);
      if (!away || !continues()) return away;
      dibs__nap_ms(20);
    }
  return true;
}

int storm_process(const struct storm_job *given) {
  static struct client clients[STORM_THREADS];
  job = *given;
  beliefs = beliefs_open(job.folder, job.process, true);
  if (!beliefs || !open_board() || !open_stores()) return 2;
  for (uint32_t c = 0; stores[STORES - 1] && c < job.threads; c++) {
    clients[c].seed = job.seed * 1000003 + job.process * 101 + c;
    errno = pthread_create(&clients[c].thread, NULL, run, &clients[c]);
    if (errno) perror("storm: cannot start a thread");
    if (errno) return 2;
  }
  for (uint32_t c = 0; stores[STORES - 1] && c < job.threads; c++) pthread_join(clients[c].thread, NULL);
  for (int i = 0; i < STORES; i++) dibs_close(stores[i]);
  beliefs_close(beliefs);
  return 0;
}
