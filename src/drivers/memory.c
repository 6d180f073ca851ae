/* SPDX-License-Identifier: MIT */
/*
 * The memory driver: the reference of the contract in store/store.h.  Everything that a store decides is here in plain
 * C, under one lock, so that what SQL and Lua decide can be compared with it.
 *
 * A memory is what opens of one name share: buckets with their mandates, names with who holds and waits, records.  An
 * open is a session of the store: its waiters live as long as it does, its leases until their ttl.
 *
 * Locks: `named_lock` (the list of named memories), then memory.lock (all else).  Nothing is called with them held but
 * what stands in these files and src/base.
 */
#include "drivers/memory_parts.h"
#include "store/uri.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct session {
  struct dibs__session base;
};

static dibs__mutex named_lock = {PTHREAD_MUTEX_INITIALIZER};
static struct dibs__memory *named;

/* ---- A memory ---- */

int64_t dibs__mem_clock(const struct dibs__memory *m) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + m->origin;
}

struct dibs__map_node *dibs__mem_next(const struct dibs__map *map, const struct dibs__map_node *node) {
  if (node && node->next) return node->next;
  for (size_t i = node ? (node->hash & (map->room - 1)) + 1 : 0; i < map->room; i++)
    if (map->heads[i]) return map->heads[i];
  return NULL;
}

static void memory_free(struct dibs__memory *m) {
  if (!m) return;
  assert(!m->claims.heads || m->claims.count == 0);
  dibs__map_free(&m->names);
  dibs__map_free(&m->claims);
  dibs__map_free(&m->records);
  dibs__map_free(&m->onces);
  dibs__map_free(&m->stocks);
  dibs__map_free(&m->taken);
  dibs__map_free(&m->reports);
  dibs__mutex_destroy(&m->lock);
  free(m->called);
  free(m);
}

static struct dibs__memory *memory_new(const char *called) {
  struct dibs__memory *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  dibs__mutex_init(&m->lock);
  bool enough = dibs__map_init(&m->names) && dibs__map_init(&m->claims) && dibs__map_init(&m->records);
  enough = dibs__map_init(&m->onces) && dibs__map_init(&m->stocks) && dibs__map_init(&m->taken) && enough;
  enough = dibs__map_init(&m->reports) && enough;
  if (*called) m->called = strdup(called);
  if (!enough || (*called && !m->called)) {
    memory_free(m);
    return NULL;
  }
  uint32_t far;
  dibs__life life;
  dibs__random(&far, sizeof far);
  dibs__random(&life, sizeof life);
  m->origin = far; /* whoever takes the store's clock for another one is to notice */
  for (size_t i = 0; i < DIBS__BUCKETS; i++) m->buckets[i].mandate = (dibs__mandate){1, life};
  return m;
}

static void forget_claims(struct dibs__memory *m) {
  struct dibs__map_node *node, *next;
  for (node = dibs__mem_next(&m->claims, NULL); node; node = next) {
    next = dibs__mem_next(&m->claims, node);
    dibs__mem_claim_remove(m, (struct dibs__mem_claim *)node);
  }
  for (node = dibs__mem_next(&m->names, NULL); node; node = next) {
    struct dibs__mem_name *name = (struct dibs__mem_name *)node;
    next = dibs__mem_next(&m->names, node);
    free(name->breaks);
    name->breaks = NULL;
    dibs__mem_name_drop_if_idle(m, name);
  }
}

static void forget_records(struct dibs__memory *m) {
  struct dibs__map_node *node, *next;
  for (node = dibs__mem_next(&m->records, NULL); node; node = next) {
    next = dibs__mem_next(&m->records, node);
    dibs__mem_record_remove(m, (struct dibs__mem_record *)node);
  }
}

bool dibs__mem_next_epoch(struct dibs__mem_bucket *bucket) {
  if (bucket->served != DIBS__MEM_OWN || bucket->mandate.epoch >= DIBS__EPOCH_MAX) return false;
  bucket->mandate.epoch++;
  bucket->seq = 0;
  return true;
}

/* ---- Opening and closing ---- */

/* The named memory, made if it is not there. */
static struct dibs__memory *memory_named(const char *called) {
  dibs__mutex_lock(&named_lock);
  struct dibs__memory *m = named;
  while (m && strcmp(m->called, called) != 0) m = m->next;
  if (!m && (m = memory_new(called))) {
    m->next = named;
    named = m;
  }
  dibs__mutex_unlock(&named_lock);
  return m;
}

static dibs__status memory_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                                dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  static const char *const none[] = {NULL};
  (void)inner, (void)count, (void)by;
  *store = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (*uri->hosts || uri->user) {
    dibs__say(said, "a memory store has no host: write memory: or memory:NAME, not \"%s\"", uri->shown);
    return DIBS_INVALID;
  }
  dibs__status status = dibs__uri_only(uri, NULL, none, said);
  if (status != DIBS_OK) return status;
  struct dibs__mem_open *open = calloc(1, sizeof *open);
  struct dibs__memory *m = NULL;
  if (open) m = *uri->path ? memory_named(uri->path) : memory_new("");
  if (!m) {
    free(open);
    dibs__say(said, "no memory for %s", uri->shown);
    return DIBS_NO_MEMORY;
  }
  open->base.driver = &dibs__memory_driver;
  open->memory = m;
  open->as_tier = uri->as_tier;
  dibs__mutex_lock(&m->lock);
  open->session = ++m->last_session;
  open->next = m->opens;
  m->opens = open;
  said->now = (dibs__when){dibs__mem_clock(m)};
  dibs__mutex_unlock(&m->lock);
  *store = &open->base;
  return DIBS_OK;
}

static void forget_old_breaks(struct dibs__mem_name *name, int64_t now) {
  bool idle = !name->holders.count && !name->offered.count && !name->waiting.count && !name->asleep.count;
  if (!idle || !name->breaks) return;
  if (now - name->breaks[(name->break_count - 1) % DIBS__MEM_BREAKS].at <= DIBS__MEM_BREAK_KEEP_MS) return;
  free(name->breaks);
  name->breaks = NULL;
}

/* Takes away waiters and offers of a session (0: of all that are gone). */
static void sweep(struct dibs__memory *m, uint64_t session) {
  int64_t now = dibs__mem_clock(m);
  struct dibs__map_node *next, *node = dibs__mem_next(&m->names, NULL);
  for (; node; node = next) {
    struct dibs__mem_name *name = (struct dibs__mem_name *)node;
    next = dibs__mem_next(&m->names, node);
    dibs__mem_sweep_name(m, name, session, now);
    if (!session) {
      dibs__mem_settle(m, name, now); /* also what time ended, which nobody asked for since */
      forget_old_breaks(name, now);
    }
    dibs__mem_name_drop_if_idle(m, name);
  }
}

static void memory_close(struct dibs__dstore *store) {
  if (!store) return;
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  struct dibs__memory *m = open->memory;
  dibs__mutex_lock(&m->lock);
  struct dibs__mem_open **at = &m->opens;
  while (*at != open) at = &(*at)->next;
  *at = open->next;
  if (m->called) sweep(m, open->session);
  dibs__mutex_unlock(&m->lock);
  if (!m->called) {
    forget_claims(m);
    forget_records(m);
    dibs__mem_onces_forget(m, INT64_MAX);
    dibs__mem_stocks_forget(m);
    dibs__mem_reports_forget(m, INT64_MAX, 0);
    memory_free(m);
  }
  free(open);
}

/* What buckets stand under, for this open. */
static dibs__mandate hint(const struct dibs__mem_open *open) {
  const struct dibs__mem_bucket *bucket = &open->memory->buckets[0];
  dibs__mandate mandate = bucket->mandate;
  if (open->as_tier == (bucket->served == DIBS__MEM_OWN)) mandate.epoch = 0;
  return mandate;
}

static dibs__status memory_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                   struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  struct session *s = calloc(1, sizeof *s);
  (void)by;
  *session = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (!s) {
    dibs__say(said, "no memory for a session of the memory store");
    return DIBS_NO_MEMORY;
  }
  s->base.store = store;
  dibs__mutex_lock(&open->memory->lock);
  *identity = (struct dibs__identity){
      .mandate = hint(open),
      .caps = DIBS__CAP_BRIEF | DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
              DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_ONCE |
                  1u << DIBS__FAM_STOCK | 1u << DIBS__FAM_REPORT,
      .schema = 1,
      .max_batch = DIBS__MEM_BATCH,
      .max_sessions = DIBS__MEM_SESSIONS,
      .session = open->session};
  said->now = (dibs__when){dibs__mem_clock(open->memory)};
  dibs__mutex_unlock(&open->memory->lock);
  *session = &s->base;
  return DIBS_OK;
}

static void memory_disconnect(struct dibs__session *session) {
  free(session);
}

static dibs__status memory_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                struct dibs__said *said) {
  (void)by;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  return dibs__mem_list(dibs__mem_open_of(session->store)->memory, list, said);
}

static void memory_tidy(struct dibs__dstore *store) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  dibs__mutex_lock(&m->lock);
  sweep(m, 0);
  dibs__mem_onces_forget(m, dibs__mem_clock(m));
  dibs__mutex_unlock(&m->lock);
}

/* ---- For tests ---- */

void dibs__memory_skew(struct dibs__dstore *store, int64_t ms) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  assert(ms >= 0);
  dibs__mutex_lock(&m->lock);
  m->origin += ms;
  dibs__mem_post_all(m, DIBS__EV_RECHECK);
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_kill(struct dibs__dstore *store) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  dibs__mutex_lock(&m->lock);
  dibs__mem_open_of(store)->dead = true;
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_forget(struct dibs__dstore *store) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  dibs__life life;
  dibs__random(&life, sizeof life);
  dibs__mutex_lock(&m->lock);
  forget_claims(m);
  for (size_t i = 0; i < DIBS__BUCKETS; i++) {
    bool own = m->buckets[i].served == DIBS__MEM_OWN, left = !own || dibs__mem_next_epoch(&m->buckets[i]);
    assert(left);
    (void)left;
    if (!own) m->buckets[i].served = DIBS__MEM_VOID;
    m->buckets[i].mandate.life = life;
  }
  dibs__mem_post_all(m, DIBS__EV_NEW_LIFE);
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_use_up(struct dibs__dstore *store, uint16_t bucket, uint32_t left) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  assert(bucket < DIBS__BUCKETS);
  dibs__mutex_lock(&m->lock);
  m->buckets[bucket].seq = DIBS__SEQ_MAX - left;
  dibs__mutex_unlock(&m->lock);
}

static const char *const schemes[] = {"memory", NULL};

const struct dibs__driver dibs__memory_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "memory",
    .schemes = schemes,
    .open = memory_open,
    .close = memory_close,
    .connect = memory_connect,
    .disconnect = memory_disconnect,
    .run = dibs__mem_run,
    .events = dibs__mem_events,
    .wake = dibs__mem_wake,
    .list = memory_list,
    .tidy = memory_tidy,
};
