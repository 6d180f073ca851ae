/* SPDX-License-Identifier: MIT */
/* One of several workers, a process with a few threads.  tiers.h describes its work; it runs until SIGTERM. */
#include "tiers_worker.h"
#include "belief.h"
#include "dibs.h"
#include "support/records.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { WAIT_MS = 1500, TRIES = 4, AGAIN_MS = 2000 };

static struct tiers_job job;
static struct history *history;
static struct beliefs *beliefs;
static dibs_store *store;
static _Atomic bool stopped; /* by a signal; lock-free */

static void stop(int signal) {
  (void)signal;
  atomic_store(&stopped, true);
}

/* ---- Chance ---- */

static uint64_t draw(uint64_t *seed) {
  uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static int64_t below(uint64_t *seed, int64_t n) {
  return n > 0 ? (int64_t)(draw(seed) % (uint64_t)n) : 0;
}

void tiers_key(char key[TIERS_KEY], const char *what, const char *folder, uint16_t name) {
  const char *tag = strrchr(folder, '-'); /* mkdtemp's */
  snprintf(key, TIERS_KEY, "%s%.16s-%u", what, tag ? tag : "", name);
}

/* ---- One round ---- */

struct turn {
  uint64_t *seed;
  struct reported reported; /* the fields that all records of this round share */
  char name[TIERS_KEY], record[TIERS_KEY], plain[TIERS_KEY];
  dibs_lease *lease;
  struct belief *belief; /* NULL: the file was full */
};

static void append(const struct turn *turn, enum what what, int64_t value, int64_t extra) {
  struct reported reported = turn->reported;
  reported.what = what;
  reported.at = dibs__tick_now().ns;
  reported.value = value;
  reported.extra = extra;
  history_say(history, reported);
}

static dibs_status acquire(struct turn *turn) {
  static const char digits[] = "0123456789abcdef";
  char id[33] = "";
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = job.ttl_ms, .wait_ms = WAIT_MS};
  /* A lease with its own id is never handed to another thread of this process without the store. */
  if (below(turn->seed, 2) == 0) {
    for (size_t i = 0; i < 32; i++) id[i] = digits[below(turn->seed, 16)];
    how.id = id;
  }
  dibs_status status = DIBS_UNKNOWN;
  struct belief request = {
      .name = turn->reported.name, .renews = 1, .ttl_ms = (uint32_t)job.ttl_ms, .handle = job.party};
  request.mode = turn->reported.mode;
  dibs__random(request.id,
               sizeof request.id); /* the checker identifies the request by this id; the store may have another */
  for (int i = 0; i < TRIES && status == DIBS_UNKNOWN && !stopped; i++) {
    turn->belief = belief_request(beliefs, &request);
    status = dibs_acquire(store, turn->name, &how, &turn->lease, NULL);
    if (turn->belief && status == DIBS_OK) belief_granted(beliefs, turn->belief, turn->lease);
    if (turn->belief && status != DIBS_OK) belief_refused(turn->belief, true);
    if (!how.id) break; /* a repetition would be another request */
  }
  return status;
}

static int64_t number_of(char *data) {
  int64_t number = data ? strtoll(data, NULL, 10) : 0;
  free(data);
  return number;
}

static dibs_status load(const char *key, int64_t *number) {
  char *data = NULL;
  size_t length;
  dibs_status status = record_load(store, key, &data, &length, NULL, NULL);
  *number = number_of(data);
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

static dibs_status put_unchecked(const char *key, const char *text) {
  dibs_record_options how = {.size = sizeof how, .flags = DIBS_UNCHECKED};
  dibs_value value = {text, strlen(text)};
  return dibs_record_put(store, key, &value, 1, &how, NULL, NULL);
}

static dibs_status open_record(struct turn *turn, int64_t *number) {
  char *data = NULL;
  size_t length;
  dibs_status status;
  append(turn, REPORTED_SEALING, 0, 0);
  if (job.how == HOW_FENCED) {
    status = record_seal(store, turn->record, turn->lease, &data, &length, NULL);
    *number = number_of(data);
  } else {
    status = load(turn->record, number);
  }
  append(turn, REPORTED_SEALED, *number, status);
  return status;
}

static dibs_status write_record(struct turn *turn, const char *text) {
  if (job.how == HOW_NO_FENCE) return put_unchecked(turn->record, text);
  return record_save(store, turn->record, turn->lease, text, strlen(text), NULL);
}

/* Saves also if the lease was lost meanwhile: the fence must refuse it.  Repeats a save with an unknown outcome. */
static void save(struct turn *turn, int64_t number) {
  char text[24];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MS);
  dibs_status status;
  snprintf(text, sizeof text, "%lld", (long long)number);
  do {
    append(turn, REPORTED_SAVING, number, 0);
    status = write_record(turn, text);
    append(turn, REPORTED_SAVED, number, status);
    bool again = job.how == HOW_FENCED && (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    if (!again || stopped) return;
    dibs__nap_ms(20);
  } while (dibs__tick_before(dibs__tick_now(), by));
}

static void add_plain(struct turn *turn, int64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%lld", (long long)number);
  if (dibs_lease_left_ms(turn->lease) < job.ttl_ms / 2)
    return; /* the write must land before another client may have
             * the lease */
  append(turn, REPORTED_ADDING, number, 0);
  append(turn, REPORTED_ADDED, number, put_unchecked(turn->plain, text));
}

/* Occasionally so long that the lease must be renewed; this tests beliefs after a renewal, too. */
static void hold(struct turn *turn) {
  int64_t kind = below(turn->seed, 100);
  if (kind < 2)
    dibs__nap_ms(job.ttl_ms * 5 / 4);
  else if (kind < 50)
    dibs__nap_ms(1 + below(turn->seed, job.hold_ms));
}

static void work(struct turn *turn) {
  int64_t number = 0, plain = 0;
  if (open_record(turn, &number) != DIBS_OK) return;
  dibs_status status = load(turn->plain, &plain);
  append(turn, REPORTED_READ, plain, status);
  if (job.how != HOW_FENCED)
    dibs__nap_ms(job.hold_ms / 2 + below(turn->seed, job.hold_ms / 2)); /* so that two workers do this at once if that
                                                                         * is possible */
  else
    hold(turn);
  save(turn, number + 1);
  if (status == DIBS_OK) add_plain(turn, plain + 1);
}

static void run_round(uint32_t thread, uint64_t *seed) {
  struct turn turn = {.seed = seed};
  uint16_t name = (uint16_t)below(seed, job.names);
  turn.reported = (struct reported){
      .name = name, .thread = thread, .lease = atomic_fetch_add(&history->requests, 1) + 1, .mode = DIBS_EXCLUSIVE};
  tiers_key(turn.name, "name", job.folder, name);
  tiers_key(turn.record, "record", job.folder, name);
  tiers_key(turn.plain, "plain", job.folder, name);
  append(&turn, REPORTED_REQUEST, WAIT_MS, job.ttl_ms);
  dibs_status status = acquire(&turn);
  if (status != DIBS_OK) {
    append(&turn, REPORTED_GONE, status, 0);
    dibs__nap_ms(20);
    return;
  }
  turn.reported.fence = dibs_lease_fence(turn.lease).value;
  append(&turn, REPORTED_GRANT, 0, 0);
  work(&turn);
  if (turn.belief) belief_end(beliefs, turn.belief, turn.lease, true);
  status = dibs_release(turn.lease, NULL);
  if (turn.belief && (status == DIBS_OK || status == DIBS_LOST)) belief_given(turn.belief);
  append(&turn, REPORTED_RELEASED, status, 0);
  dibs_lease_free(turn.lease);
}

static void *run_thread(void *arg) {
  uint32_t thread = *(const uint32_t *)arg;
  uint64_t seed = job.seed * 1000003 + job.party * 101 + thread;
  while (!stopped) {
    run_round(thread, &seed);
    dibs__nap_ms(below(&seed, job.pause_ms + 1));
  }
  return NULL;
}

/* ---- The process ---- */

/* An unreachable server returns, and a wrong password may be corrected. */
static bool open_store(void) {
  dibs_error error, told = {.status = DIBS_OK};
  while (!stopped && dibs_open(job.uri, NULL, &store, &error) != DIBS_OK) {
    if (error.status != told.status) fprintf(stderr, "worker %u: %s\n", job.party, error.text);
    told = error;
    if (error.status == DIBS_INVALID || error.status == DIBS_UNSUPPORTED) return false;
    dibs__nap_ms(50);
  }
  return true;
}

int tiers_worker(const struct tiers_job *given) {
  pthread_t threads[TIERS_THREADS];
  uint32_t numbers[TIERS_THREADS], started = 0;
  job = *given;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
  history = history_make(job.folder, job.party);
  beliefs = beliefs_open(job.folder, job.party, true);
  if (!history || !beliefs || !open_store()) return 2;
  for (; store && started < job.threads; started++) {
    numbers[started] = started + 1;
    if (pthread_create(&threads[started], NULL, run_thread, &numbers[started]) != 0) return 2;
  }
  for (uint32_t t = 0; t < started; t++) pthread_join(threads[t], NULL);
  dibs_close(store);
  beliefs_close(beliefs);
  return 0;
}
