/* SPDX-License-Identifier: MIT */
/*
 * The driver of etcd:// and etcds://: a module, loaded when its scheme is first used.
 *
 * Every write is one transaction that compares what it was decided on, so any number of sessions work in parallel, and
 * none has a state of its own.
 */
#include "drivers/etcd/etcd_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_EVENTS |
         DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS | DIBS__CAP_ANCHOR,
  FAMILIES = 1 << DIBS__FAM_LEASE | 1 << DIBS__FAM_ANCHOR | 1 << DIBS__FAM_RECORD | 1 << DIBS__FAM_REPORT |
             1 << DIBS__FAM_ENGINE,
  MAX_BATCH = 128
};

static dibs__mutex curl_lock = {PTHREAD_MUTEX_INITIALIZER};

/* Once; never undone, because another library in this process may use it. */
static bool curl_ready(void) {
  static bool ready;
  dibs__mutex_lock(&curl_lock);
  if (!ready) ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  bool is = ready;
  dibs__mutex_unlock(&curl_lock);
  return is;
}

static void close_store(struct dibs__dstore *base) {
  struct dibs__etcd *store = dibs__etcd_of(base);
  dibs__etcd_keeper_stop(store);
  dibs__etcd_watches_close(store);
  dibs__etcd_holds_free(store);
  dibs__etcd_reports_free(store);
  dibs__etcd_location_free(&store->location);
  dibs__mutex_destroy(&store->lock);
  dibs__mutex_destroy(&store->starting);
  explicit_bzero(store->token, sizeof store->token);
  free(store);
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner;
  (void)count;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__etcd *store = curl_ready() ? calloc(1, sizeof *store) : NULL;
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  dibs__mutex_init(&store->starting);
  store->as_tier = uri->as_tier;
  store->as_anchor = uri->as_anchor;
  do dibs__random(&store->number, sizeof store->number);
  while (store->number == 0);
  dibs__status status = dibs__map_init(&store->holds) ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = dibs__etcd_location(uri, &store->location, result);
  if (status == DIBS_OK) status = dibs__etcd_watches_open(store);
  struct dibs__etcd_link *link = status == DIBS_OK ? dibs__etcd_link_open(store) : NULL;
  if (status == DIBS_OK) status = link ? dibs__etcd_meta_ready(store, link, by, result) : DIBS_NO_MEMORY;
  dibs__etcd_link_close(link);
  if (status == DIBS_OK)
    *out = &store->base;
  else
    close_store(&store->base);
  return status;
}

/* Each reads the buckets: a mandate may have changed since the last session. */
static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__etcd *store = dibs__etcd_of(base);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__etcd_session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  s->link = dibs__etcd_link_open(store);
  dibs__status status = s->link ? dibs__etcd_meta_ready(store, s->link, by, result) : DIBS_NO_MEMORY;
  if (status != DIBS_OK) {
    dibs__etcd_link_close(s->link);
    free(s);
    return status;
  }
  struct dibs__etcd_meta meta = dibs__etcd_meta_of(store);
  *identity = (struct dibs__identity){.mandate = {.epoch = meta.epoch, .incarnation = meta.incarnation},
                                      .caps = CAPS,
                                      .families = FAMILIES,
                                      .max_batch = MAX_BATCH,
                                      .max_sessions = store->location.connections,
                                      .session = store->number};
  if (store->as_tier && !store->as_anchor) identity->mandate.epoch = 0;
  result->now.ms = dibs__etcd_ms(result->sent);
  *out = &s->base;
  return DIBS_OK;
}

static void disconnect_session(struct dibs__session *base) {
  struct dibs__etcd_session *s = (struct dibs__etcd_session *)base;
  dibs__etcd_link_close(s->link);
  free(s);
}

static const char *const schemes[] = {"etcd", "etcds", NULL};

const struct dibs__driver dibs__etcd_driver = {.size = sizeof(struct dibs__driver),
                                               .abi = DIBS__DRIVER_ABI,
                                               .name = "etcd",
                                               .schemes = schemes,
                                               .open = open_store,
                                               .close = close_store,
                                               .connect = connect_session,
                                               .disconnect = disconnect_session,
                                               .run = dibs__etcd_run,
                                               .events = dibs__etcd_events,
                                               .wake = dibs__etcd_wake,
                                               .list = dibs__etcd_list};
