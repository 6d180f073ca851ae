/* SPDX-License-Identifier: MIT */
/* The driver of redis://: a module, loaded when its scheme is first used.  Leases, and nothing else: what a Redis keeps
 * may be lost while it is up. */
#include "drivers/redis_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SESSIONS = 5, BATCH = 1024, SCHEMA = 1 };
enum {
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_EVENTS |
         DIBS__CAP_VOLATILE | DIBS__CAP_PARALLEL | DIBS__CAP_OFFERS_LAST | DIBS__CAP_BLOCKS
};

/* What open found out is not asked again by the first session. */
struct store {
  struct dibs__redis redis; /* first */
  dibs__mutex lock;
  struct dibs__redis_link *spare; /* guarded by lock */
};

static void close_store(struct dibs__dstore *base) {
  struct store *store = (struct store *)base;
  dibs__redis_disconnect(store->spare);
  dibs__redis_bell_close(&store->redis);
  dibs__redis_place_free(store->redis.place);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

/* No hiredis that we are built with speaks TLS by itself (that came with 1.0), and to go on without would show
 * everybody what was to be hidden. */
static dibs__status refuse_tls(const struct dibs__uri *uri, struct dibs__said *said) {
  if (strcmp(uri->scheme, "rediss") != 0) return DIBS_OK;
  dibs__say(said,
            "rediss://: the libhiredis of this system (%d.%d) has no TLS; use redis:// over a Unix socket,"
            " loopback or a private network, or through a TLS tunnel (stunnel)",
            HIREDIS_MAJOR, HIREDIS_MINOR);
  return DIBS_UNSUPPORTED;
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__said *said) {
  (void)inner;
  (void)count;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__status status = refuse_tls(uri, said);
  if (status != DIBS_OK) return status;
  struct store *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  store->redis.as_tier = uri->as_tier;
  do dibs__random(&store->redis.session, sizeof store->redis.session);
  while (store->redis.session == 0);
  status = dibs__redis_place(uri, &store->redis.place, said);
  if (status == DIBS_OK) status = dibs__redis_bell_open(&store->redis);
  if (status == DIBS_OK) status = dibs__redis_connect(store->redis.place, 0, by, &store->spare, said);
  if (status == DIBS_OK) {
    dibs__redis_bell_life(&store->redis, &store->spare->life);
    *out = &store->redis.base;
  } else {
    close_store(&store->redis.base);
  }
  return status;
}

static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__said *said) {
  struct store *store = (struct store *)base;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  struct dibs__redis_session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  dibs__mutex_lock(&store->lock);
  s->link = store->spare;
  store->spare = NULL;
  dibs__mutex_unlock(&store->lock);
  dibs__status status = DIBS_OK;
  if (!s->link) status = dibs__redis_connect(store->redis.place, 0, by, &s->link, said);
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  s->base.store = base;
  s->life = s->link->life;
  dibs__redis_bell_life(&store->redis, &s->life);
  *identity = (struct dibs__identity){.mandate = {.epoch = 0, .life = s->life},
                                      .caps = CAPS,
                                      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR,
                                      .schema = SCHEMA,
                                      .max_batch = BATCH,
                                      .max_sessions = SESSIONS,
                                      .session = store->redis.session};
  if (!store->redis.as_tier) identity->mandate.epoch = 1;
  *out = &s->base;
  return DIBS_OK;
}

static void disconnect_session(struct dibs__session *base) {
  struct dibs__redis_session *s = (struct dibs__redis_session *)base;
  dibs__redis_disconnect(s->link);
  dibs__redis_scratch_free(s->scratch);
  free(s);
}

static dibs__status events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                           dibs__tick by) {
  return dibs__redis_bell_events((struct dibs__redis *)base, events, cap, count, by);
}

static void wake(struct dibs__dstore *base) {
  dibs__redis_bell_wake((struct dibs__redis *)base);
}

static const char *const schemes[] = {"redis", "rediss", NULL};

const struct dibs__driver dibs__redis_driver = {.size = sizeof(struct dibs__driver),
                                                .abi = DIBS__DRIVER_ABI,
                                                .name = "redis",
                                                .schemes = schemes,
                                                .open = open_store,
                                                .close = close_store,
                                                .connect = connect_session,
                                                .disconnect = disconnect_session,
                                                .run = dibs__redis_run,
                                                .events = events,
                                                .wake = wake,
                                                .list = dibs__redis_list};
