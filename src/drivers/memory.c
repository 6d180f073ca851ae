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

static struct dibs__mem_open *open_of(struct dibs__dstore *store) {
  return (struct dibs__mem_open *)store;
}

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
  dibs__mutex_destroy(&m->lock);
  free(m->called);
  free(m);
}

static struct dibs__memory *memory_new(const char *called) {
  struct dibs__memory *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  dibs__mutex_init(&m->lock);
  bool enough = dibs__map_init(&m->names) && dibs__map_init(&m->claims) && dibs__map_init(&m->records);
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
  if (bucket->mandate.epoch >= DIBS__EPOCH_MAX) return false;
  bucket->mandate.epoch++;
  bucket->seq = 0;
  return true;
}

/* ---- Sessions and their events ---- */

static struct dibs__mem_open *find_open(const struct dibs__memory *m, uint64_t session) {
  struct dibs__mem_open *open = m->opens;
  while (open && open->session != session) open = open->next;
  return open && !open->dead ? open : NULL;
}

bool dibs__mem_alive(const struct dibs__memory *m, uint64_t session) {
  return find_open(m, session) != NULL;
}

static void ring(struct dibs__mem_open *open) {
  atomic_fetch_add(&open->bell, 1);
  dibs__word_wake(&open->bell, 1, false);
}

static void put_event(struct dibs__mem_open *open, struct dibs__event event) {
  if (open->count == DIBS__MEM_EVENTS)
    open->overflow = true;
  else
    open->ring[(open->head + open->count++) % DIBS__MEM_EVENTS] = event;
  ring(open);
}

void dibs__mem_post(struct dibs__memory *m, uint64_t session, enum dibs__event_what what, dibs__id id) {
  dibs__mem_post_event(m, session, &(struct dibs__event){.what = what, .id = id});
}

void dibs__mem_post_event(struct dibs__memory *m, uint64_t session, const struct dibs__event *event) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  if (m->hush) {
    /* One more than there is room for stands for "look again". */
    if (m->held_count < cap) m->held_events[m->held_count] = (struct dibs__mem_hushed){session, *event};
    if (m->held_count <= cap) m->held_count++;
    return;
  }
  struct dibs__mem_open *open = find_open(m, session);
  if (open) put_event(open, *event);
}

void dibs__mem_post_all(struct dibs__memory *m, enum dibs__event_what what) {
  for (struct dibs__mem_open *open = m->opens; open; open = open->next)
    put_event(open, (struct dibs__event){.what = what});
}

static void speak_up(struct dibs__memory *m, bool committed) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  m->hush = false;
  for (size_t i = 0; committed && i < m->held_count && i < cap; i++)
    dibs__mem_post_event(m, m->held_events[i].session, &m->held_events[i].event);
  if (committed && m->held_count > cap) dibs__mem_post_all(m, DIBS__EV_RECHECK);
  m->held_count = 0;
}

static dibs__status memory_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                  dibs__tick by) {
  struct dibs__mem_open *open = open_of(store);
  *count = 0;
  for (;;) {
    dibs__mutex_lock(&open->memory->lock);
    uint32_t seen = atomic_load(&open->bell); /* before looking: what rings later ends the sleep */
    bool up = open->woken;
    open->woken = false;
    while (*count < cap && open->count) {
      events[(*count)++] = open->ring[open->head];
      open->head = (open->head + 1) % DIBS__MEM_EVENTS;
      open->count--;
    }
    if (*count < cap && open->overflow) {
      events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
      open->overflow = false;
    }
    dibs__mutex_unlock(&open->memory->lock);
    if (*count || up || cap == 0) return DIBS_OK;
    if (!dibs__word_wait(&open->bell, seen, by, false)) return DIBS_OK;
  }
}

static void memory_wake(struct dibs__dstore *store) {
  struct dibs__mem_open *open = open_of(store);
  dibs__mutex_lock(&open->memory->lock);
  open->woken = true;
  dibs__mutex_unlock(&open->memory->lock);
  ring(open);
}

/* ---- A batch ---- */

static void anchor(struct dibs__memory *m, struct dibs__anchor_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_NEXT) {
    op->op.status = DIBS_INVALID;
    return;
  }
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  op->op.status = DIBS_OK;
  if (op->op.verb == DIBS__ANCHOR_NEXT) {
    if (!dibs__mandate_equal(&op->op.mandate, &bucket->mandate))
      op->op.status = DIBS_CONFLICT;
    else if (!dibs__mem_next_epoch(bucket))
      op->op.status = DIBS_UNAVAILABLE;
  }
  op->stands = bucket->mandate;
}

/* MOVED did nothing: when an epoch may turn out to be used up, what time did to the name meanwhile is undone as well.
 */
static void lease(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__lease_op *op, int64_t now) {
  bool near_the_end = op->op.bucket < DIBS__BUCKETS && m->buckets[op->op.bucket].seq > DIBS__SEQ_MAX - DIBS__BLOCK_MAX;
  struct dibs__mem_saved *saved = NULL;
  if (near_the_end && !dibs__mem_save(m, &op->op, &saved)) {
    dibs__mem_forget_saved(&saved);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  dibs__mem_lease(m, from, op, now);
  if (op->op.status == DIBS__MOVED)
    dibs__mem_restore(m, &saved);
  else
    dibs__mem_forget_saved(&saved);
}

static void run_one(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__op *op, int64_t now) {
  switch (op->family) {
  case DIBS__FAM_LEASE:
    lease(m, from, (struct dibs__lease_op *)op, now);
    break;
  case DIBS__FAM_ANCHOR:
    anchor(m, (struct dibs__anchor_op *)op);
    break;
  case DIBS__FAM_RECORD:
    dibs__mem_record(m, (struct dibs__record_op *)op);
    break;
  default:
    op->status = DIBS_UNSUPPORTED;
  }
}

/* A group is served where its first element stands.  What an anchor did can't be undone, so none joins a group. */
static void run_group(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__op *const ops[],
                      size_t count, int64_t now) {
  struct dibs__mem_saved *saved = NULL;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  m->hush = true;
  for (size_t i = 0; i < count && !failed; i++) {
    if (ops[i]->group != group) continue;
    if (ops[i]->family != DIBS__FAM_LEASE && ops[i]->family != DIBS__FAM_RECORD)
      ops[i]->status = DIBS_INVALID;
    else if (!dibs__mem_save(m, ops[i], &saved))
      ops[i]->status = DIBS_NO_MEMORY;
    else
      run_one(m, from, ops[i], now);
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  speak_up(m, !failed);
  if (failed)
    dibs__mem_restore(m, &saved);
  else
    dibs__mem_forget_saved(&saved);
  for (size_t i = 0; i < count && failed; i++) {
    if (ops[i]->group != group || ops[i] == failed) continue;
    if (ops[i]->family == DIBS__FAM_RECORD && ops[i]->status == DIBS_OK) {
      struct dibs__record_op *record = (struct dibs__record_op *)ops[i];
      free(record->got);
      record->got = NULL;
      record->got_len = 0;
    }
    ops[i]->status = DIBS_CONFLICT;
  }
}

static bool first_of_its_group(struct dibs__op *const ops[], size_t at) {
  for (size_t i = 0; i < at; i++)
    if (ops[i]->group == ops[at]->group) return false;
  return true;
}

static dibs__status memory_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                               struct dibs__said *said) {
  struct dibs__mem_open *open = open_of(session->store);
  struct dibs__memory *m = open->memory;
  (void)by; /* nothing here waits for more than the other callers' batches */
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__mutex_lock(&m->lock);
  int64_t now = dibs__mem_clock(m);
  for (size_t i = 0; i < count; i++) {
    if (!(ops[i]->flags & DIBS__OP_READS)) said->commits = 1;
    if (!ops[i]->group)
      run_one(m, open, ops[i], now);
    else if (first_of_its_group(ops, i))
      run_group(m, open, ops + i, count - i, now);
  }
  dibs__mutex_unlock(&m->lock);
  said->now = (dibs__when){now};
  return DIBS_OK;
}

static dibs__status memory_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                struct dibs__said *said) {
  (void)by;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  return dibs__mem_list(open_of(session->store)->memory, list, said);
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
  struct dibs__mem_open *open = open_of(store);
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
    memory_free(m);
  }
  free(open);
}

static dibs__status memory_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                   struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__mem_open *open = open_of(store);
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
      .mandate = open->memory->buckets[0].mandate,
      .caps = DIBS__CAP_BRIEF | DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
              DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD,
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

static void memory_tidy(struct dibs__dstore *store) {
  struct dibs__memory *m = open_of(store)->memory;
  dibs__mutex_lock(&m->lock);
  sweep(m, 0);
  dibs__mutex_unlock(&m->lock);
}

/* ---- For tests ---- */

void dibs__memory_skew(struct dibs__dstore *store, int64_t ms) {
  struct dibs__memory *m = open_of(store)->memory;
  assert(ms >= 0);
  dibs__mutex_lock(&m->lock);
  m->origin += ms;
  dibs__mem_post_all(m, DIBS__EV_RECHECK);
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_kill(struct dibs__dstore *store) {
  struct dibs__memory *m = open_of(store)->memory;
  dibs__mutex_lock(&m->lock);
  open_of(store)->dead = true;
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_forget(struct dibs__dstore *store) {
  struct dibs__memory *m = open_of(store)->memory;
  dibs__life life;
  dibs__random(&life, sizeof life);
  dibs__mutex_lock(&m->lock);
  forget_claims(m);
  for (size_t i = 0; i < DIBS__BUCKETS; i++) {
    bool left = dibs__mem_next_epoch(&m->buckets[i]);
    assert(left);
    (void)left;
    m->buckets[i].mandate.life = life;
  }
  dibs__mem_post_all(m, DIBS__EV_NEW_LIFE);
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_use_up(struct dibs__dstore *store, uint16_t bucket, uint32_t left) {
  struct dibs__memory *m = open_of(store)->memory;
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
    .run = memory_run,
    .events = memory_events,
    .wake = memory_wake,
    .list = memory_list,
    .tidy = memory_tidy,
};
