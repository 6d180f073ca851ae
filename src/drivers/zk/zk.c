/* SPDX-License-Identifier: MIT */
/*
 * The driver of zk://: a module, loaded when its scheme is first used; and what this process knows of its leases.
 *
 * A lease ends with its session, and no server knows its ttl: its process deletes the node of a lease that was not
 * renewed (sweep), when it next uses the store and in tidy.
 *
 * When is a session certainly alive?  A server ends it T after it last heard of it.  A client's requests reach the
 * leader's clock through its server, which reports to the leader twice a tick which sessions were active.  So what the
 * leader knows may be older than a request that it has just done: by the library's pause between two pings, T / 3, and
 * by half a tick, and T is at least two ticks.  From the moment when a write was sent that was done, at least
 * T - T / 3 - T / 4 = T * 5 / 12 is left.  (A read proves nothing: a server that is cut off still answers it.)  A new
 * leader counts T from its beginning.
 */
#include "drivers/zk/zk_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk store_t;
typedef struct dibs__zk_hold hold;

#define CLOCK_BASE_MS INT64_C(1767225600000) /* 2026-01-01 */
enum { FENCES_PER_MS = 1024, SWEEP_BATCH = 64, GUARD_BATCH = 256 };

/* ---- Time, fences ---- */

int64_t dibs__zk_life_ms(const store_t *store) {
  int64_t t = store->zh ? zoo_recv_timeout(store->zh) : 0;
  return t * 5 / 12;
}

int64_t dibs__zk_until(const store_t *store, int64_t from, uint32_t ttl_ms) {
  int64_t lives = store->proof.ns / DIBS__NS_PER_MS + dibs__zk_life_ms(store), until = from + ttl_ms;
  return until < lives ? until : lives;
}

/* Zxids have one order: the leader numbers what it does (32 bits) within its epoch (32 bits), and a new leader's epoch
 * is above all before it.  They begin at the instant when ROOT was created, in ms times 1024: so an ensemble that lost
 * everything gives larger fences again, unless it had elected a leader more often than every 70 minutes. */
uint64_t dibs__zk_fence(const store_t *store, int64_t czxid) {
  int64_t ms = store->root_ms > CLOCK_BASE_MS ? store->root_ms - CLOCK_BASE_MS : 0;
  uint64_t fence = (uint64_t)ms * FENCES_PER_MS + (uint64_t)(czxid - store->root_czxid);
  return fence > DIBS__FENCE_MAX ? 0 : fence;
}

/* ---- Being busy ---- */

bool dibs__zk_enter(store_t *store, dibs__tick by) {
  for (;;) {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&store->gate, &none, 1)) return true;
    if (!dibs__word_wait(&store->gate, 1, by, false) && !dibs__tick_before(dibs__tick_now(), by)) return false;
  }
}

void dibs__zk_leave(store_t *store) {
  atomic_store(&store->gate, 0);
  dibs__word_wake(&store->gate, 1, false);
}

void dibs__zk_changed(store_t *store) {
  atomic_fetch_add(&store->changes, 1);
  dibs__word_wake(&store->changes, UINT32_MAX, false);
}

/* ---- Holds ---- */

/* The id is random: some of its bytes serve as a hash. */
static uint64_t key_of(dibs__str name, dibs__id id) {
  uint64_t some;
  memcpy(&some, id.b, sizeof some);
  return dibs__hash(name.p, name.len) ^ some;
}

static uint64_t scatter(uint64_t ticket) {
  return dibs__hash(&ticket, sizeof ticket);
}

hold *dibs__zk_hold_new(store_t *store, const struct dibs__lease_op *op) {
  hold *h = calloc(1, sizeof *h + op->name.len + 1);
  if (!h) return NULL;
  h->id = op->id;
  h->mode = op->mode;
  h->ttl_ms = op->ttl_ms;
  h->owner_len = op->owner.len;
  if (op->owner.len) memcpy(h->owner, op->owner.p, op->owner.len);
  h->len = op->name.len;
  memcpy(h->name, op->name.p, op->name.len);
  snprintf(h->digest, sizeof h->digest, "%016llx", (unsigned long long)dibs__id_digest(op->id));
  h->ticket = ++store->tickets;
  h->since = dibs__zk_now();
  h->ends = INT64_MAX;
  dibs__mutex_lock(&store->lock);
  dibs__map_add(&store->by_key, &h->by_key, key_of(op->name, op->id));
  dibs__map_add(&store->by_ticket, &h->by_ticket, scatter(h->ticket));
  h->next = store->all;
  h->link_back = &store->all;
  if (h->next) h->next->link_back = &h->next;
  store->all = h;
  dibs__mutex_unlock(&store->lock);
  return h;
}

void dibs__zk_hold_drop(store_t *store, hold *h) {
  dibs__mutex_lock(&store->lock);
  dibs__map_remove(&store->by_key, &h->by_key);
  dibs__map_remove(&store->by_ticket, &h->by_ticket);
  *h->link_back = h->next;
  if (h->next) h->next->link_back = h->link_back;
  if (h->tell) store->tells--;
  dibs__mutex_unlock(&store->lock);
  free(h);
}

hold *dibs__zk_hold_find(store_t *store, dibs__str name, dibs__id id) {
  uint64_t key = key_of(name, id);
  hold *found = NULL;
  dibs__mutex_lock(&store->lock);
  for (struct dibs__map_node *n = dibs__map_head(&store->by_key, key); n && !found; n = n->next) {
    hold *h = (hold *)((char *)n - offsetof(hold, by_key));
    if (n->hash == key && dibs__id_equal(h->id, id) && dibs__str_equal(dibs__zk_hold_name(h), name)) found = h;
  }
  dibs__mutex_unlock(&store->lock);
  return found;
}

static hold *with_ticket_locked(const store_t *store, uint64_t ticket) {
  uint64_t key = scatter(ticket);
  for (struct dibs__map_node *n = dibs__map_head(&store->by_ticket, key); n; n = n->next) {
    hold *h = (hold *)((char *)n - offsetof(hold, by_ticket));
    if (n->hash == key && h->ticket == ticket) return h;
  }
  return NULL;
}

void dibs__zk_hold_tell_locked(store_t *store, hold *h) {
  if (!h->tell) store->tells++;
  h->tell = true;
}

const char *dibs__zk_dir(const store_t *store, dibs__str name, char to[DIBS__ZK_PATH]) {
  char encoded[3 * DIBS_NAME_MAX + 1];
  dibs__zk_encode(name, encoded);
  snprintf(to, DIBS__ZK_PATH, "%s/l/%02u/%s", store->path, dibs__bucket(name), encoded);
  return to;
}

const char *dibs__zk_node(const store_t *store, const hold *h, char to[DIBS__ZK_PATH]) {
  dibs__zk_dir(store, dibs__zk_hold_name(h), to);
  size_t len = strlen(to);
  snprintf(to + len, DIBS__ZK_PATH - len, "/%s", h->node);
  return to;
}

/* One line for programs, then the owner: people read it with zkCli. */
size_t dibs__zk_hold_data(const hold *h, char to[DIBS__ZK_DATA]) {
  int n = snprintf(to, DIBS__ZK_DATA, "dibs 1 %u %u %u %c\n%s", h->mode, h->ttl_ms, dibs__process_id(),
                   h->broken ? 'b' : '-', h->owner);
  return n < 0 ? 0 : (size_t)n;
}

bool dibs__zk_read_data(const char *text, int len, struct dibs__zk_data *data) {
  char state;
  const char *line = len > 0 ? memchr(text, '\n', (size_t)len) : NULL;
  if (!line || sscanf(text, "dibs 1 %u %u %u %c", &data->mode, &data->ttl_ms, &data->pid, &state) != 4) return false;
  data->broken = state == 'b';
  data->owner = dibs__str_of(line + 1, (size_t)(text + len - line - 1));
  return data->owner.len <= DIBS_OWNER_MAX;
}

/* ---- Watches: in a thread of the library ---- */

struct look {
  store_t *store;
  uint64_t ticket;
};

static struct look *new_look(store_t *store, uint64_t ticket) {
  struct look *look = malloc(sizeof *look);
  if (look) *look = (struct look){store, ticket};
  return look;
}

static void offer_locked(store_t *store, hold *h) {
  h->state = DIBS__ZK_OFFERED;
  dibs__zk_end_locked(store, h, dibs__zk_now() + DIBS__ZK_OFFER_MS);
  dibs__zk_hold_tell_locked(store, h);
}

/* The children after a watched node was deleted.  If others are before ours, the waiter requests again, and watches. */
static void looked_again(int rc, const struct String_vector *strings, const void *data) {
  struct look *look = (struct look *)(uintptr_t)data;
  store_t *store = look->store;
  struct dibs__zk_position position = {.exists = false};
  dibs__mutex_lock(&store->lock);
  hold *h = with_ticket_locked(store, look->ticket);
  if (h && h->state == DIBS__ZK_WAITS) {
    struct dibs__zk_slot children = {.count = rc == ZOK && strings ? strings->count : 0};
    if (children.count) children.names = (const char *const *)strings->data;
    dibs__zk_position(&children, h->seq, h->mode == DIBS_SHARED, &position);
    if (position.exists && position.blockers == 0)
      offer_locked(store, h);
    else
      dibs__zk_hold_tell_locked(store, h);
  }
  dibs__mutex_unlock(&store->lock);
  free(look);
  dibs__zk_changed(store);
}

/* The node before a waiter's was deleted.  Nodes come only at the end: if no other excluded it, the name is ours; else
 * the children are read here, so that the waiter is woken once. */
static void node_before_gone(zhandle_t *zh, int type, int state, const char *path, void *context) {
  store_t *store = (store_t *)(uintptr_t)zoo_get_context(zh);
  char folder[DIBS__ZK_PATH];
  const char *slash = path ? strrchr(path, '/') : NULL;
  struct look *look = NULL;
  (void)state;
  if (type != ZOO_DELETED_EVENT) return;
  dibs__mutex_lock(&store->lock);
  hold *h = with_ticket_locked(store, (uintptr_t)context);
  bool waits = h && h->state == DIBS__ZK_WAITS;
  if (waits) h->watches = false;
  if (waits && h->last)
    offer_locked(store, h);
  else if (waits && slash && (size_t)(slash - path) < sizeof folder)
    look = new_look(store, h->ticket);
  if (waits && !h->last && !look) dibs__zk_hold_tell_locked(store, h);
  dibs__mutex_unlock(&store->lock);
  if (look) {
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    if (!atomic_load(&store->closing) && zoo_aget_children(zh, folder, 0, looked_again, look) == ZOK) return;
    looked_again(ZSYSTEMERROR, NULL, look);
  }
  dibs__zk_changed(store);
}

watcher_fn dibs__zk_watcher(void) {
  return node_before_gone;
}

/* The node of a lease was deleted, by another client's break or by the end of the session. */
static void lose(store_t *store, uint64_t ticket) {
  dibs__mutex_lock(&store->lock);
  hold *h = with_ticket_locked(store, ticket);
  if (h && h->state == DIBS__ZK_HOLDS) {
    h->state = DIBS__ZK_GONE;
    dibs__zk_end_locked(store, h, dibs__zk_now() + DIBS__ZK_GONE_MS);
    dibs__zk_hold_tell_locked(store, h);
  }
  dibs__mutex_unlock(&store->lock);
  dibs__zk_changed(store);
}

static void own_node_gone(zhandle_t *zh, int type, int state, const char *path, void *context) {
  (void)state;
  (void)path;
  if (type == ZOO_DELETED_EVENT) lose((store_t *)(uintptr_t)zoo_get_context(zh), (uintptr_t)context);
}

/* The watch over a node was set, or the node is gone already. */
static void node_guarded(int rc, const struct String_vector *strings, const void *data) {
  struct look *guard = (struct look *)(uintptr_t)data;
  (void)strings;
  if (rc == ZNONODE) lose(guard->store, guard->ticket);
  free(guard);
}

/* ---- Housekeeping ---- */

static size_t ended_holds(store_t *store, hold *due[SWEEP_BATCH]) {
  int64_t now = dibs__zk_now(), next = INT64_MAX;
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  for (hold *h = store->due <= now ? store->all : NULL; h; h = h->next) {
    if (h->ends <= now && !h->taken && count < SWEEP_BATCH)
      due[count++] = h;
    else if (h->ends < next)
      next = h->ends;
  }
  if (store->due <= now) store->due = count ? now : next; /* a node that can't be deleted now stays due */
  dibs__mutex_unlock(&store->lock);
  return count;
}

/* A node that may exist is searched for by the lease's digest. */
static bool search_node(store_t *store, hold *h, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_child child;
  struct dibs__zk_round *round = dibs__zk_round_new(2);
  if (!round) return false;
  dibs__zk_put_sync(store, round, dibs__zk_dir(store, dibs__zk_hold_name(h), path));
  size_t nth = dibs__zk_put_children(store, round, path, NULL, 0);
  dibs__zk_go(store, round, by);
  const struct dibs__zk_slot *slot = &round->slots[nth];
  bool known = slot->rc == ZOK || slot->rc == ZNONODE;
  for (int i = 0; slot->rc == ZOK && i < slot->count; i++)
    if (dibs__zk_child_read(slot->names[i], &child) && strcmp(child.digest, h->digest) == 0)
      snprintf(h->node, sizeof h->node, "%s", child.name);
  dibs__zk_round_drop(round);
  return known;
}

static void delete_all(store_t *store, hold *due[], size_t count, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  size_t nth[SWEEP_BATCH];
  struct dibs__zk_round *round = dibs__zk_round_new(count);
  if (!round) return;
  for (size_t i = 0; i < count; i++) nth[i] = dibs__zk_put_delete(store, round, dibs__zk_node(store, due[i], path), -1);
  dibs__zk_go(store, round, by);
  for (size_t i = 0; i < count; i++) {
    int rc = round->slots[nth[i]].rc;
    if (rc == ZOK || rc == ZNONODE) dibs__zk_hold_drop(store, due[i]);
  }
  dibs__zk_round_drop(round);
}

void dibs__zk_sweep(store_t *store, dibs__tick by) {
  hold *due[SWEEP_BATCH], *found[SWEEP_BATCH];
  size_t count = ended_holds(store, due), nodes = 0;
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), DIBS__ZK_PATIENCE_MS));
  for (size_t i = 0; i < count; i++) {
    bool unsure = due[i]->state == DIBS__ZK_UNSURE && !due[i]->node[0];
    if (unsure && !search_node(store, due[i], by)) continue;
    if (due[i]->state != DIBS__ZK_GONE && due[i]->node[0])
      found[nodes++] = due[i];
    else
      dibs__zk_hold_drop(store, due[i]);
  }
  if (nodes) delete_all(store, found, nodes, by);
}

/* Watches over the nodes of leases that last.  No request waits for it; if it is lost, a renewal finds out. */
static void guard_holds(store_t *store) {
  char path[DIBS__ZK_PATH];
  hold *new[GUARD_BATCH];
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  for (hold *h = store->all; h && count < GUARD_BATCH; h = h->next)
    if (h->state == DIBS__ZK_HOLDS && !h->guarded) new[count++] = h;
  if (count == GUARD_BATCH) store->guard_at = dibs__tick_now(); /* more are left */
  dibs__mutex_unlock(&store->lock);
  for (size_t i = 0; i < count; i++) { /* only the busy thread frees holds */
    struct look *guard = new_look(store, new[i]->ticket);
    if (!guard) continue;
    new[i]->guarded = true;
    int rc = zoo_awget_children(store->zh, dibs__zk_node(store, new[i], path), own_node_gone,
                                (void *)(uintptr_t) new[i]->ticket, node_guarded, guard);
    if (rc != ZOK) free(guard);
  }
}

static void tidy_store(struct dibs__dstore *base) {
  store_t *store = (store_t *)base;
  struct dibs__result result = {.text = ""};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__ZK_PATIENCE_MS);
  if (!dibs__zk_enter(store, by)) return;
  dibs__mutex_lock(&store->lock);
  bool usable = store->connected && !store->ended, any = store->all != NULL;
  dibs__mutex_unlock(&store->lock);
  if (usable && any && store->zh && dibs__zk_ready(store, by, &result) == DIBS_OK) {
    dibs__zk_sweep(store, by);
    guard_holds(store);
  }
  dibs__zk_leave(store);
}

/* ---- Events ---- */

static size_t tell_locked(store_t *store, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  if (count < cap && store->new_incarnation) {
    events[count++] = (struct dibs__event){.what = DIBS__EV_NEW_INCARNATION};
    store->new_incarnation = false;
  }
  if (count < cap && store->recheck) {
    events[count++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    store->recheck = false;
  }
  for (hold *h = store->all; h && store->tells && count < cap; h = h->next) {
    if (!h->tell) continue;
    h->tell = false;
    store->tells--;
    bool waits = h->state == DIBS__ZK_OFFERED || h->state == DIBS__ZK_WAITS;
    if (h->state != DIBS__ZK_HOLDS || h->broken)
      events[count++] = (struct dibs__event){.what = waits ? DIBS__EV_OFFER : DIBS__EV_LOST, .id = h->id};
  }
  return count;
}

/* Never waits for another thread: a little later is early enough. */
static void guard_if_due(store_t *store, dibs__tick now) {
  uint32_t none = 0;
  dibs__mutex_lock(&store->lock);
  bool due = !dibs__tick_before(now, store->guard_at);
  if (due) store->guard_at = dibs__tick_add_ms(now, DIBS__ZK_GUARD_MS);
  dibs__mutex_unlock(&store->lock);
  if (!due || !atomic_compare_exchange_strong(&store->gate, &none, 1)) return;
  dibs__mutex_lock(&store->lock);
  bool usable = store->connected && !store->ended;
  if (usable) store->guard_at = DIBS__TICK_NEVER;
  dibs__mutex_unlock(&store->lock);
  if (usable && store->zh && store->rooted) guard_holds(store);
  dibs__zk_leave(store);
}

static dibs__status collect_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by) {
  store_t *store = (store_t *)base;
  for (;;) {
    uint32_t seen = atomic_load(&store->changes);
    dibs__mutex_lock(&store->lock);
    *count = tell_locked(store, events, cap);
    bool woken = store->woken;
    store->woken = false;
    dibs__tick until = dibs__tick_min(by, store->guard_at), now = dibs__tick_now();
    dibs__mutex_unlock(&store->lock);
    if (*count || woken || !dibs__tick_before(now, by)) return DIBS_OK;
    if (dibs__tick_before(now, until))
      (void)dibs__word_wait(&store->changes, seen, until, false);
    else
      guard_if_due(store, now);
  }
}

static void wake_events(struct dibs__dstore *base) {
  store_t *store = (store_t *)base;
  dibs__mutex_lock(&store->lock);
  store->woken = true;
  dibs__mutex_unlock(&store->lock);
  dibs__zk_changed(store);
}

/* ---- The driver ---- */

static void free_store(store_t *store) {
  dibs__zk_end_session(store);
  while (store->all) dibs__zk_hold_drop(store, store->all);
  dibs__map_free(&store->by_key);
  dibs__map_free(&store->by_ticket);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

static void close_store(struct dibs__dstore *base) {
  free_store((store_t *)base);
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner;
  (void)count;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (uri->as_tier || uri->as_anchor) {
    dibs__set_message(result,
                      "%.200s can't be one of several tiers: its fences come from ZooKeeper itself, and follow "
                      "no epoch; use it alone",
                      uri->shown);
    return DIBS_UNSUPPORTED;
  }
  store_t *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  store->guard_at = DIBS__TICK_NEVER;
  do dibs__random(&store->session, sizeof store->session);
  while (store->session == 0);
  bool maps = dibs__map_init(&store->by_key);
  maps = dibs__map_init(&store->by_ticket) && maps;
  dibs__status status = maps ? dibs__zk_location(uri, &store->location, result) : DIBS_NO_MEMORY;
  (void)dibs__zk_enter(store, DIBS__TICK_NEVER); /* nobody else has it yet */
  if (status == DIBS_OK) status = dibs__zk_ready(store, by, result);
  dibs__zk_leave(store);
  if (status == DIBS_OK)
    *out = &store->base;
  else
    free_store(store);
  return status;
}

static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  store_t *store = (store_t *)base;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__zk_session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  dibs__status status = DIBS_UNAVAILABLE;
  if (dibs__zk_enter(store, by)) {
    status = dibs__zk_ready(store, by, result);
    dibs__zk_leave(store);
  } else {
    dibs__set_message(result, "%.200s did not answer in time", store->location.shown);
  }
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  s->base.store = base;
  *identity = (struct dibs__identity){
      .mandate = store->mandate,
      .caps = DIBS__CAP_SHARED | DIBS__CAP_EVENTS | DIBS__CAP_SESSION | DIBS__CAP_PARALLEL | DIBS__CAP_ALONE,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_ENGINE,
      .max_batch = DIBS__ZK_BATCH,
      .max_sessions = DIBS__CONNECTIONS,
      .session = store->session};
  *out = &s->base;
  return DIBS_OK;
}

static void disconnect_session(struct dibs__session *base) {
  free(base);
}

static const char *const schemes[] = {"zk", NULL};

const struct dibs__driver dibs__zk_driver = {.size = sizeof(struct dibs__driver),
                                             .abi = DIBS__DRIVER_ABI,
                                             .name = "zk",
                                             .schemes = schemes,
                                             .open = open_store,
                                             .close = close_store,
                                             .connect = connect_session,
                                             .disconnect = disconnect_session,
                                             .run = dibs__zk_run,
                                             .events = collect_events,
                                             .wake = wake_events,
                                             .list = dibs__zk_list,
                                             .tidy = tidy_store};
