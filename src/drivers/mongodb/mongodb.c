/* SPDX-License-Identifier: MIT */
/* The driver's table. */
#include "drivers/mongodb/mongodb_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FENCES_APART | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
         DIBS__CAP_EVENTS | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS | DIBS__CAP_ALONE
};

enum { TIDY_MS = 1500 };

/* Results have all messages. */
static void log_nothing(mongoc_log_level_t level, const char *domain, const char *message, void *user) {
  (void)level, (void)domain, (void)message, (void)user;
}

/* libmongoc counts in a file of /dev/shm.  A process that is killed would leave it there, and the next process with its
 * number would print a warning.  The memory stays, without its name. */
static void unlink_counters(void) {
  char name[32];
  snprintf(name, sizeof name, "/mongoc-%u", dibs__process_id());
  (void)shm_unlink(name);
}

/* Once a process; libmongoc needs no end. */
static void begin_library(void) {
  static dibs__mutex once = {PTHREAD_MUTEX_INITIALIZER};
  static bool begun;
  dibs__mutex_lock(&once);
  if (!begun) {
    mongoc_init();
    mongoc_log_set_handler(log_nothing, NULL);
    unlink_counters();
  }
  begun = true;
  dibs__mutex_unlock(&once);
}

static void disconnect_session(struct dibs__session *base) {
  struct dibs__mongo_session *s = (struct dibs__mongo_session *)base;
  dibs__mongo_batch_free(s->batch);
  free(s->seen);
  dibs__mongo_disconnect(s->link);
  free(s);
}

static void close_store(struct dibs__dstore *base) {
  struct dibs__mongo *store = (struct dibs__mongo *)base;
  if (store->tidier) disconnect_session(store->tidier);
  dibs__mongo_mailbox_close(store);
  dibs__mongo_disconnect(store->spare);
  dibs__mongo_location_free(store->location);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner, (void)count;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (uri->as_tier) {
    dibs__set_message(result, "%s:// can't be one of several tiers; use it alone", uri->scheme);
    return DIBS_UNSUPPORTED;
  }
  begin_library();
  struct dibs__mongo *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  do dibs__random(&store->session, sizeof store->session);
  while (store->session == 0);
  store->session &= INT64_MAX; /* a number of BSON */
  dibs__status status = dibs__mongo_location(uri, &store->location, result);
  if (status == DIBS_OK) status = dibs__mongo_mailbox_open(store);
  if (status == DIBS_OK) status = dibs__mongo_connect(store->location, by, &store->spare, result);
  if (status == DIBS_OK)
    *out = &store->base;
  else
    close_store(&store->base);
  return status;
}

static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__mongo *store = (struct dibs__mongo *)base;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__mongo_session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  dibs__mutex_lock(&store->lock);
  s->link = store->spare;
  store->spare = NULL;
  dibs__mutex_unlock(&store->lock);
  dibs__status status = DIBS_OK;
  if (!s->link) status = dibs__mongo_connect(store->location, by, &s->link, result);
  if (status == DIBS_OK) {
    s->batch = dibs__mongo_batch_new(s);
    if (!s->batch) status = DIBS_NO_MEMORY;
  }
  if (status != DIBS_OK) {
    disconnect_session(&s->base);
    return status;
  }
  *identity = (struct dibs__identity){
      .mandate = dibs__mongo_mandate(s->link),
      .caps = CAPS,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_ONCE |
                  1u << DIBS__FAM_STOCK | 1u << DIBS__FAM_COUNTER | 1u << DIBS__FAM_RUN | 1u << DIBS__FAM_REPORT |
                  1u << DIBS__FAM_ENGINE | 1u << DIBS__FAM_TASK,
      .max_batch = DIBS__MONGO_BATCH,
      .max_sessions = store->location->connections,
      .session = store->session};
  result->now = (dibs__when){dibs__mongo_latest(s->link)};
  *out = &s->base;
  return DIBS_OK;
}

/* Every few seconds, not all processes at once.  A process that ends before the first time leaves it to others. */
static void tidy_store(struct dibs__dstore *base) {
  struct dibs__mongo *store = (struct dibs__mongo *)base;
  dibs__tick now = dibs__tick_now();
  struct dibs__identity identity;
  struct dibs__result result;
  uint16_t at_random;
  if (!atomic_load(&store->has_tasks) || dibs__tick_before(now, store->tidied)) return;
  bool first = store->tidied.ns == 0;
  dibs__random(&at_random, sizeof at_random);
  store->tidied = dibs__tick_add_ms(now, TIDY_MS + at_random % TIDY_MS);
  if (first) return;
  dibs__tick by = dibs__tick_add_ms(now, TIDY_MS);
  if (!store->tidier && connect_session(base, by, &store->tidier, &identity, &result) != DIBS_OK) {
    store->tidier = NULL;
    return;
  }
  struct dibs__mongo_session *s = (struct dibs__mongo_session *)store->tidier;
  s->link->by = by;
  dibs__mongo_tasks_tidy(s, &result);
  if (!s->link->broken) return;
  disconnect_session(store->tidier);
  store->tidier = NULL;
}

static const char *const schemes[] = {"mongodb", "mongodb+srv", NULL};

const struct dibs__driver dibs__mongodb_driver = {.size = sizeof(struct dibs__driver),
                                                  .abi = DIBS__DRIVER_ABI,
                                                  .name = "mongodb",
                                                  .schemes = schemes,
                                                  .open = open_store,
                                                  .close = close_store,
                                                  .connect = connect_session,
                                                  .disconnect = disconnect_session,
                                                  .run = dibs__mongo_run,
                                                  .events = dibs__mongo_events,
                                                  .wake = dibs__mongo_wake,
                                                  .list = dibs__mongo_list,
                                                  .tidy = tidy_store};
