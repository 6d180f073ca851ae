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
enum { FENCES_PER_MS = 1024, SWEEP_BATCH = 64 };

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
  h->slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  h->slot = h->offered_slot = DIBS__ZK_NO_SLOT;
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

hold *dibs__zk_hold_with_ticket_locked(const store_t *store, uint64_t ticket) {
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

const char *dibs__zk_slot_path(const store_t *store, const hold *h, uint32_t slot, char to[DIBS__ZK_PATH]) {
  char node[DIBS__ZK_SLOT_NODE];
  dibs__zk_dir(store, dibs__zk_hold_name(h), to);
  size_t len = strlen(to);
  snprintf(to + len, DIBS__ZK_PATH - len, "/%s", dibs__zk_slot_node(slot, node));
  return to;
}

void dibs__zk_set_slot(store_t *store, hold *h, uint32_t slot) {
  dibs__mutex_lock(&store->lock);
  h->slot = slot;
  dibs__mutex_unlock(&store->lock);
}

/* With a slot: both, or neither.  Without one: not if the data has changed, because a request for a slot, whose answer
 * was lost, has been done late. */
size_t dibs__zk_put_delete_hold(store_t *store, struct dibs__zk_round *round, const hold *h, bool with_slot) {
  char path[DIBS__ZK_PATH], slot[DIBS__ZK_PATH];
  dibs__zk_node(store, h, path);
  if (h->mode == DIBS_COUNTED && h->slot == DIBS__ZK_NO_SLOT)
    return dibs__zk_put_delete(store, round, path, h->version);
  if (!with_slot || h->slot == DIBS__ZK_NO_SLOT) return dibs__zk_put_delete(store, round, path, -1);
  return dibs__zk_put_delete_both(store, round, dibs__zk_slot_path(store, h, h->slot, slot), path, -1);
}

/* One line for programs, then the owner: people read it with zkCli.  A counted lease has its slots and its slot at the
 * end of the line, the slot when it is granted. */
size_t dibs__zk_write_data(const struct dibs__zk_data *data, char to[DIBS__ZK_DATA]) {
  char counted[32] = "";
  if (data->mode == DIBS_COUNTED && data->slot != DIBS__ZK_NO_SLOT)
    snprintf(counted, sizeof counted, " %u %u", data->slots, data->slot);
  else if (data->mode == DIBS_COUNTED)
    snprintf(counted, sizeof counted, " %u", data->slots);
  int n = snprintf(to, DIBS__ZK_DATA, "dibs 1 %u %u %u %c%s\n%.*s", data->mode, data->ttl_ms, data->pid,
                   data->broken ? 'b' : '-', counted, (int)data->owner.len, data->owner.p);
  return n < 0 ? 0 : (size_t)n;
}

size_t dibs__zk_hold_data(const hold *h, char to[DIBS__ZK_DATA]) {
  struct dibs__zk_data data = {.mode = h->mode, .ttl_ms = h->ttl_ms, .pid = dibs__process_id(), .slots = h->slots};
  data.slot = h->slot;
  data.broken = h->broken;
  data.owner = dibs__str_of(h->owner, h->owner_len);
  return dibs__zk_write_data(&data, to);
}

bool dibs__zk_read_data(const char *text, int len, struct dibs__zk_data *data) {
  char state, first[128];
  const char *line = len > 0 ? memchr(text, '\n', (size_t)len) : NULL;
  if (!line || (size_t)(line - text) >= sizeof first) return false;
  memcpy(first, text, (size_t)(line - text)); /* the owner may begin with digits */
  first[line - text] = '\0';
  data->slots = 0;
  data->slot = DIBS__ZK_NO_SLOT;
  int got = sscanf(first, "dibs 1 %u %u %u %c %u %u", &data->mode, &data->ttl_ms, &data->pid, &state, &data->slots,
                   &data->slot);
  if (got < 4) return false;
  data->broken = state == 'b';
  data->owner = dibs__str_of(line + 1, (size_t)(text + len - line - 1));
  return data->owner.len <= DIBS_OWNER_MAX;
}

/* ---- Housekeeping ---- */

/* A lease that is gone, and may have left its slot. */
static bool leaves_slot_locked(const hold *h) {
  return h->state == DIBS__ZK_GONE && h->slot != DIBS__ZK_NO_SLOT && !h->ended;
}

static size_t ended_holds(store_t *store, hold *due[SWEEP_BATCH]) {
  int64_t now = dibs__zk_now(), next = INT64_MAX;
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  for (hold *h = store->due <= now ? store->all : NULL; h; h = h->next) {
    if ((h->ends <= now || leaves_slot_locked(h)) && !h->taken && count < SWEEP_BATCH)
      due[count++] = h;
    else if (h->ends < next)
      next = h->ends;
  }
  if (store->due <= now) store->due = count ? now : next; /* a node that can't be deleted now stays due */
  dibs__mutex_unlock(&store->lock);
  return count;
}

bool dibs__zk_is_ours(const store_t *store, const struct Stat *stat) {
  return store->zh && stat->ephemeralOwner == zoo_client_id(store->zh)->client_id;
}

/* The next node that may be the hold's.  ZNONODE: there is none. */
static int next_node(store_t *store, hold *h, const int32_t *below, struct Stat *stat, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_round *round = dibs__zk_round_new(2), *read = dibs__zk_round_new(1);
  int rc = ZSYSTEMERROR;
  if (!round || !read) goto out;
  dibs__zk_put_sync(store, round, dibs__zk_dir(store, dibs__zk_hold_name(h), path));
  const struct dibs__zk_slot *children = &round->slots[dibs__zk_put_children(store, round, path, NULL, 0)];
  dibs__zk_go(store, round, by);
  rc = children->rc;
  if (rc == ZOK && !dibs__zk_pick_node(children, h, below)) rc = ZNONODE;
  if (rc != ZOK) goto out;
  dibs__zk_put_get(store, read, dibs__zk_node(store, h, path));
  dibs__zk_go(store, read, by);
  rc = read->slots[0].rc;
  *stat = read->slots[0].stat;
out:
  dibs__zk_round_drop(round);
  dibs__zk_round_drop(read);
  return rc;
}

/* A node that may exist is searched for by the lease's digest.  Other sessions may have nodes for the same id. */
static bool search_node(store_t *store, hold *h, dibs__tick by) {
  struct Stat stat = {.czxid = 0};
  int32_t below = 0;
  bool others = false;
  for (;;) {
    int rc = next_node(store, h, others ? &below : NULL, &stat, by);
    if (rc == ZOK && dibs__zk_is_ours(store, &stat)) return true;
    bool asked = h->node[0] != '\0';
    others = dibs__zk_pass_over(h, &below);
    if (!asked || (rc != ZOK && rc != ZNONODE)) return rc == ZNONODE;
  }
}

/* Whether the request for a slot was done, whose answer was lost: the node's data has the slot then. */
static bool find_slot(store_t *store, hold *h, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_data data;
  struct dibs__zk_round *round = dibs__zk_round_new(2);
  if (!round) return false;
  dibs__zk_put_sync(store, round, dibs__zk_node(store, h, path));
  size_t nth = dibs__zk_put_get(store, round, path);
  dibs__zk_go(store, round, by);
  const struct dibs__zk_slot *slot = &round->slots[nth];
  bool known = slot->rc == ZOK || slot->rc == ZNONODE;
  if (slot->rc == ZOK && dibs__zk_read_data(slot->text, slot->len, &data)) dibs__zk_set_slot(store, h, data.slot);
  if (slot->rc == ZOK) h->version = slot->stat.version;
  if (known) h->slot_unsure = false;
  dibs__zk_round_drop(round);
  return known;
}

bool dibs__zk_leaves_slot(store_t *store, const hold *h) {
  dibs__mutex_lock(&store->lock);
  bool leaves = h->slot != DIBS__ZK_NO_SLOT && !h->ended;
  dibs__mutex_unlock(&store->lock);
  return leaves;
}

/* The slot and the node of a lease are not both there.  A slot that names a node which is gone is left over from a node
 * that somebody else deleted; only its own process deletes it, so nobody takes it in between.  Otherwise the slot was
 * freed with the node by a break, or with the session, and may belong to another lease. */
void dibs__zk_free_slot(store_t *store, hold *h, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_round *read = dibs__zk_round_new(2), *write = dibs__zk_round_new(1);
  if (!read || !write) goto out;
  dibs__zk_put_sync(store, read, dibs__zk_slot_path(store, h, h->slot, path));
  const struct dibs__zk_slot *slot = &read->slots[dibs__zk_put_get(store, read, path)];
  dibs__zk_go(store, read, by);
  int rc = slot->rc;
  if (rc == ZOK && strcmp(slot->text, h->node) == 0) {
    dibs__zk_put_delete(store, write, path, -1);
    dibs__zk_go(store, write, by);
    rc = write->slots[0].rc;
  }
  if (rc == ZOK || rc == ZNONODE) dibs__zk_set_slot(store, h, DIBS__ZK_NO_SLOT);
out:
  dibs__zk_round_drop(read);
  dibs__zk_round_drop(write);
}

static void delete_all(store_t *store, hold *due[], size_t count, dibs__tick by) {
  size_t nth[SWEEP_BATCH];
  struct dibs__zk_round *round = dibs__zk_round_new(count);
  if (!round) return;
  for (size_t i = 0; i < count; i++) nth[i] = dibs__zk_put_delete_hold(store, round, due[i], true);
  dibs__zk_go(store, round, by);
  for (size_t i = 0; i < count; i++) {
    int rc = round->slots[nth[i]].rc;
    if (rc == ZNONODE && due[i]->slot != DIBS__ZK_NO_SLOT)
      dibs__zk_free_slot(store, due[i], by); /* the next sweep finds out whether the node is there */
    else if (rc == ZBADVERSION)
      due[i]->slot_unsure = true;
    else if (rc == ZOK || rc == ZNONODE)
      dibs__zk_hold_drop(store, due[i]);
  }
  dibs__zk_round_drop(round);
}

void dibs__zk_sweep(store_t *store, dibs__tick by) {
  hold *due[SWEEP_BATCH], *found[SWEEP_BATCH];
  size_t count = ended_holds(store, due), nodes = 0;
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), DIBS__ZK_PATIENCE_MS));
  for (size_t i = 0; i < count; i++) {
    hold *h = due[i];
    bool gone = h->state == DIBS__ZK_GONE;
    if (gone && dibs__zk_leaves_slot(store, h)) dibs__zk_free_slot(store, h, by);
    if (gone && (dibs__zk_leaves_slot(store, h) || h->ends > dibs__zk_now())) continue;
    bool unsure = h->state == DIBS__ZK_UNSURE && !h->node[0];
    if (unsure && !search_node(store, h, by)) continue;
    if (!gone && h->node[0] && h->slot_unsure && !find_slot(store, h, by)) continue;
    if (!gone && h->node[0])
      found[nodes++] = h;
    else
      dibs__zk_hold_drop(store, h);
  }
  if (nodes) delete_all(store, found, nodes, by);
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
    dibs__zk_guard_holds(store);
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
  if (usable && store->zh && store->rooted) dibs__zk_guard_holds(store);
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
  *identity = (struct dibs__identity){.mandate = store->mandate,
                                      .caps = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_EVENTS |
                                              DIBS__CAP_SESSION | DIBS__CAP_PARALLEL | DIBS__CAP_ALONE,
                                      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR |
                                                  1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_ENGINE,
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
