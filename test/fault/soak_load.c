/* SPDX-License-Identifier: MIT */
/*
 * The load of a soak: leases of contended names and of names that are used once; waits that end in a grant, a timeout
 * or a cancel; records, stock, once keys that expire, tasks, lists, and handles that are opened and closed.  Dibs keeps
 * a bounded amount of it: names are new each time and must disappear again, and so must once keys, in a run that is
 * long enough for several sweeps.  Records, stocks and claims are always the same, because a claim that was given back
 * is kept for 30 days and a new one each time would grow.  So are most tasks: they go through phases, waits and failed
 * tries again and again, and only some are done and replaced by a new one, because the store remembers each call that
 * added one for an hour.
 */
#include "soak.h"

#include "dibs/admin.h"
#include "dibs/task.h"
#include "support/records.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_NAMES = 8, RECORDS = 16, STOCKS = 4, CLAIMS = 16, KEEP_MS = 500, PAUSE_MS = 2 };
enum {
  TASKS = 4,      /* of each client; of the texts of failed tries each task keeps 32 */
  TOGETHER = 3,   /* tasks in a claim */
  TRIES = 1000000 /* no task dies */
};
static const char task_kind[] = "soak";

static struct soak_job job;
static struct soak_done *done;
static dibs_store *store;

struct client {
  pthread_t thread;
  uint32_t number;
  uint64_t seed, turns;
  uint32_t tasks; /* how many it has added at first */
};

static uint32_t below(struct client *client, uint32_t n) {
  client->seed = client->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(client->seed >> 33) % n;
}

static void count(enum soak_kind kind, dibs_status status) {
  switch (status) {
  case DIBS_UNSUPPORTED: /* this store does not support it */
    break;
  case DIBS_UNAVAILABLE:
  case DIBS_UNKNOWN:
    atomic_fetch_add(&done->failed, 1);
    break;
  default:
    atomic_fetch_add(&done->done[kind], 1);
  }
}

/* ---- The operations ---- */

static void lease(struct client *client) {
  char name[64];
  dibs_lease *lease = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = 1000 + below(client, 2000)};
  if (below(client, 2) == 0)
    snprintf(name, sizeof name, "once-%u-%u-%llu", job.process, client->number, (unsigned long long)client->turns);
  else
    snprintf(name, sizeof name, "name-%u", below(client, SHARED_NAMES));
  if (below(client, 4) == 0) how.mode = DIBS_SHARED;
  if (below(client, 4) == 0) how.flags = DIBS_NO_RENEW;
  dibs_status status = dibs_acquire(store, name, &how, &lease, NULL);
  count(SOAK_leases, status);
  if (status != DIBS_OK) return;
  if (below(client, 8) == 0 && dibs_renew(lease, 0, NULL) != DIBS_OK) atomic_fetch_add(&done->failed, 1);
  if (below(client, 4) > 0) count(SOAK_leases, dibs_release(lease, NULL));
  dibs_lease_free(lease);
}

struct wait {
  dibs__word over;
  dibs_status status;
};
static void completed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct wait *wait = user;
  (void)lease;
  wait->status = status;
  atomic_store(&wait->over, 1);
  dibs__word_wake(&wait->over, 1, false);
}

static void wait_for(struct client *client) {
  dibs_lease *lease = NULL;
  struct wait wait = {.status = DIBS_OK};
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = 1000, .wait_ms = below(client, 2) ? 20 : 500};
  dibs_status status = dibs_acquire_start(store, "contended", &how, completed, &wait, &lease, NULL);
  if (status != DIBS_OK) return;
  if (below(client, 4) == 0) dibs_acquire_cancel(lease);
  while (atomic_load(&wait.over) == 0) dibs__word_wait(&wait.over, 0, DIBS__TICK_NEVER, false);
  count(SOAK_waits, wait.status);
  if (wait.status == DIBS_OK) dibs__nap_ms(below(client, 10));
  dibs_lease_free(lease);
}

static void record(struct client *client) {
  char key[32], *data = NULL;
  size_t length;
  dibs_lease *lease = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = 5000, .wait_ms = 200};
  snprintf(key, sizeof key, "record-%u", below(client, RECORDS));
  if (dibs_acquire(store, key, &how, &lease, NULL) != DIBS_OK) return;
  dibs_status status = record_seal(store, key, lease, &data, &length, NULL);
  if (status == DIBS_OK) status = record_save(store, key, lease, "saved", 5, NULL);
  count(SOAK_records, status);
  free(data);
  dibs_lease_free(lease);
}

static void stock(struct client *client) {
  char key[32], claim[64];
  snprintf(key, sizeof key, "stock-%u", below(client, STOCKS));
  snprintf(claim, sizeof claim, "%s-%u", key, below(client, CLAIMS));
  dibs_stock_options how = {.size = sizeof how, .claim = claim};
  dibs_status status = dibs_stock_set(store, key, CLAIMS / 2, NULL, NULL, NULL);
  if (status == DIBS_OK || status == DIBS_FULL) status = dibs_stock_take(store, key, 1, &how, NULL, NULL);
  if (below(client, 16) == 0) status = dibs_stock_give(store, key, claim, &how, NULL, NULL);
  count(SOAK_stock, status);
}

static dibs_status answer(dibs_lease *lease, char **data, size_t *length, void *user) {
  (void)lease;
  (void)user;
  *data = strdup("answer");
  *length = *data ? strlen(*data) : 0;
  return *data ? DIBS_OK : DIBS_NO_MEMORY;
}

static void once(struct client *client) {
  char key[64], *data = NULL;
  size_t length;
  dibs_once_options how = {.size = sizeof how, .keep_ms = KEEP_MS, .ttl_ms = 2000, .wait_ms = 100};
  unsigned long long nth = client->turns / 2;
  snprintf(key, sizeof key, "key-%u-%u-%llu", job.process, client->number, job.keys ? nth % job.keys : nth);
  count(SOAK_once, dibs_once(store, key, &how, answer, NULL, &data, &length, NULL));
  free(data);
}

static void add_task(struct client *client) {
  char serial[16];
  dibs_task_options how = {.size = sizeof how, .tries = TRIES, .priority = (int32_t)below(client, 3)};
  snprintf(serial, sizeof serial, "serial-%u", client->number);
  if (below(client, 2) == 0) how.serial = serial;
  count(SOAK_tasks, dibs_task_add(store, task_kind, "payload", 7, &how, NULL, NULL));
}

static dibs_task_end choose_end(struct client *client, dibs_task *task) {
  static const char *const phases[] = {"first", "second", "third"};
  uint32_t dice = below(client, 100);
  dibs_task_end end = {.size = sizeof end, .task = task, .delay_ms = below(client, 50)};
  end.verdict = dice < 2    ? DIBS_END_DONE
                : dice < 60 ? DIBS_END_NEXT
                : dice < 75 ? DIBS_END_WAIT
                : dice < 90 ? DIBS_END_FAIL
                            : DIBS_END_RELEASE;
  if (end.verdict == DIBS_END_NEXT) end.phase = phases[below(client, 3)];
  if (end.verdict == DIBS_END_FAIL) end.text = "as planned";
  return end;
}

static void task(struct client *client) {
  dibs_task *tasks[TOGETHER];
  dibs_task_end ends[TOGETHER];
  size_t found = 0;
  dibs_claim_options how = {.size = sizeof how, .most = TOGETHER, .timeout_ms = 1000};
  if (client->tasks < TASKS) {
    client->tasks++;
    add_task(client);
  }
  dibs_status status = dibs_tasks_claim(store, task_kind, &how, tasks, &found, NULL);
  if (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) count(SOAK_verdicts, status);
  for (size_t i = 0; i < found; i++) ends[i] = choose_end(client, tasks[i]);
  if (found > 0 && below(client, 8) > 0) { /* else these claims are over after their time */
    status = dibs_task_end_many(NULL, ends, found, NULL);
    for (size_t i = 0; i < found; i++) {
      dibs_status answer = status == DIBS_OK ? ends[i].status : status;
      count(SOAK_verdicts, answer);
      if (answer == DIBS_OK && ends[i].verdict == DIBS_END_DONE) add_task(client);
    }
  }
  for (size_t i = 0; i < found; i++) dibs_task_free(tasks[i]);
}

static int look(const dibs_lease_info *info, void *user) {
  (void)info;
  *(uint32_t *)user += 1;
  return 0;
}
static void list(struct client *client) {
  uint32_t seen = 0;
  count(SOAK_lists, below(client, 2) ? dibs_list(store, "name-", look, &seen, NULL)
                                     : dibs_show(store, "contended", look, &seen, NULL));
}

static void handle(void) {
  dibs_store *another = NULL;
  dibs_lease *lease = NULL;
  dibs_status status = dibs_open(job.uri, NULL, &another, NULL);
  if (status == DIBS_OK) status = dibs_acquire(another, "handle", NULL, &lease, NULL);
  count(SOAK_handles, status);
  dibs_close(another);
  dibs_lease_free(lease);
}

/* ---- The process ---- */

static void *run(void *arg) {
  struct client *client = arg;
  while (dibs__tick_before(dibs__tick_now(), job.deadline)) {
    uint32_t dice = below(client, 1000);
    client->turns++;
    if (dice < 400)
      lease(client);
    else if (dice < 600)
      wait_for(client);
    else if (dice < 750)
      record(client);
    else if (dice < 850)
      stock(client);
    else if (dice < 940)
      once(client);
    else if (dice < 980)
      task(client);
    else if (dice < 998)
      list(client);
    else
      handle();
    dibs__nap_ms(below(client, PAUSE_MS + 1));
  }
  return NULL;
}

int soak_load(const struct soak_job *given, struct soak_done *counts) {
  struct client clients[SOAK_THREADS] = {0};
  dibs_error error;
  job = *given;
  done = counts;
  while (dibs_open(job.uri, NULL, &store, &error) != DIBS_OK) {
    if (error.status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), job.deadline)) {
      fprintf(stderr, "soak: %s\n", error.text);
      return 2;
    }
    dibs__nap_ms(50);
  }
  /* Finished ones are deleted at once.  (If this fails, or the store keeps no tasks, the calls count it.) */
  dibs_kind_options keep = {.size = sizeof keep, .set = DIBS_KIND_KEEP, .keep_ms = 0};
  count(SOAK_tasks, dibs_task_kind_set(store, task_kind, &keep, NULL));
  for (uint32_t c = 0; c < job.threads; c++) {
    clients[c] = (struct client){.number = c, .seed = job.seed * 1000003 + job.process * 101 + c};
    if (pthread_create(&clients[c].thread, NULL, run, &clients[c]) != 0) return 2;
  }
  for (uint32_t c = 0; c < job.threads; c++) pthread_join(clients[c].thread, NULL);
  dibs_close(store);
  return 0;
}
