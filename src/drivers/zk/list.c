/* SPDX-License-Identifier: MIT */
/*
 * Breaking and listing.
 *
 * A break at once deletes the holders' nodes.  Any other marks their data: the version of the node is then another
 * one than its holder knows, so its next renewal reads the mark and is LOST, and the node stays until it is released or
 * its time is over.  The last breaks of a name are lines of a node of their own.
 *
 * Only the process that holds a lease knows exactly when it ends.  For others a listing counts from the node's last
 * change, by the servers' clock as this process saw it with its last write: good enough for people.
 */
#include "drivers/zk/zk_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk store_t;
typedef struct dibs__zk_hold hold;
typedef struct dibs__zk_round round_t;
typedef struct dibs__zk_slot slot_t;

enum { BREAKS = 16, TRIES = 8, TOGETHER = 200 };

/* For people alone.  A process that has written nothing yet has not seen the servers' clock, and takes its own. */
static int64_t server_now(const store_t *store) {
  return store->server_ms ? store->server_ms + dibs__zk_now() - store->local_ms : dibs__wall_ms();
}

/* The children of a node as of now; NULL: no memory. */
static round_t *children_of(store_t *store, const char *path, dibs__tick by) {
  round_t *round = dibs__zk_round_new(2);
  if (!round) return NULL;
  dibs__zk_put_sync(store, round, path);
  dibs__zk_put_children(store, round, path, NULL, 0);
  dibs__zk_go(store, round, by);
  return round;
}

static hold *hold_of_node(const store_t *store, dibs__str name, const char *node) {
  for (hold *h = store->all; h; h = h->next)
    if (strcmp(h->node, node) == 0 && dibs__str_equal(dibs__zk_hold_name(h), name)) return h;
  return NULL;
}

/* ---- Breaking ---- */

struct breaking {
  store_t *store;
  struct dibs__lease_op *op;
  struct dibs__result *result;
  dibs__tick by;
  int64_t now, last;
  uint64_t fence;
  uint32_t mode, broken;
  bool fresh, any_from;
  char from[DIBS_OWNER_MAX + 1];
  int rc; /* a failure */
};

/* A node with a name as ours keeps others out, whatever its data: so people see it, and break it. */
static void read_any_data(const char *node, const slot_t *slot, struct dibs__zk_data *data) {
  static const char owner[] = "not written by dibs";
  struct dibs__zk_child child;
  if (dibs__zk_read_data(slot->text, slot->len, data)) return;
  if (!dibs__zk_child_read(node, &child)) child = (struct dibs__zk_child){.mode = DIBS_EXCLUSIVE};
  *data = (struct dibs__zk_data){.mode = child.mode, .slots = child.slots, .slot = DIBS__ZK_NO_SLOT};
  data->owner = dibs__str_of(owner, sizeof owner - 1);
}

static void note_holder(struct breaking *k, const hold *h, const struct dibs__zk_data *data, const struct Stat *stat) {
  char owner[DIBS_OWNER_MAX + 1];
  snprintf(owner, sizeof owner, "%.*s", (int)data->owner.len, data->owner.p);
  if (!k->any_from || strcmp(owner, k->from) < 0) memcpy(k->from, owner, sizeof owner);
  k->any_from = true;
  k->mode = data->mode;
  if (k->broken++ == 0) k->fence = data->mode == DIBS_EXCLUSIVE ? dibs__zk_fence(k->store, stat->czxid) : 0;
  k->fresh = k->fresh || k->op->now || !data->broken;
  int64_t until = h && h->until ? h->until : k->now + data->ttl_ms;
  if (until > k->last) k->last = until;
}

static void mark_own(struct breaking *k, hold *h) {
  if (!h) return;
  dibs__mutex_lock(&k->store->lock);
  h->broken = true;
  dibs__zk_hold_tell_locked(k->store, h);
  if (k->op->now) {
    h->state = DIBS__ZK_GONE;
    dibs__zk_end_locked(k->store, h, k->now + DIBS__ZK_GONE_MS);
  }
  dibs__mutex_unlock(&k->store->lock);
  dibs__zk_changed(k->store);
}

/* Deletes or marks one node, as it was read.  ZBADVERSION: it was renewed meanwhile.  A slot is deleted with its lease,
 * by the version of the data that names it: so it is no slot that another lease has taken meanwhile. */
static int change_node(struct breaking *k, const char *path, const struct dibs__zk_data *data,
                       const struct Stat *stat) {
  char text[DIBS__ZK_DATA], slot_node[DIBS__ZK_SLOT_NODE], slot[DIBS__ZK_PATH + DIBS__ZK_SLOT_NODE];
  struct dibs__zk_data broken = *data;
  round_t *round = dibs__zk_round_new(1);
  if (!round) return ZSYSTEMERROR;
  broken.broken = true;
  if (!k->op->now) {
    dibs__zk_put_set(k->store, round, path, text, dibs__zk_write_data(&broken, text), stat->version);
  } else if (data->mode == DIBS_COUNTED && data->slot != DIBS__ZK_NO_SLOT) {
    int folder = (int)(strrchr(path, '/') - path);
    snprintf(slot, sizeof slot, "%.*s/%s", folder, path, dibs__zk_slot_node(data->slot, slot_node));
    dibs__zk_put_delete_both(k->store, round, slot, path, stat->version);
  } else {
    dibs__zk_put_delete(k->store, round, path, -1);
  }
  dibs__zk_go(k->store, round, k->by);
  int rc = round->slots[0].rc;
  dibs__zk_round_drop(round);
  return rc;
}

static void break_node(struct breaking *k, const char *node) {
  char path[DIBS__ZK_PATH];
  hold *h = hold_of_node(k->store, k->op->name, node);
  dibs__zk_dir(k->store, k->op->name, path);
  size_t len = strlen(path);
  snprintf(path + len, sizeof path - len, "/%s", node);
  int rc = ZBADVERSION;
  for (int i = 0; i < TRIES && rc == ZBADVERSION; i++) {
    struct dibs__zk_data data;
    round_t *round = dibs__zk_round_new(1);
    if (!round) {
      k->rc = ZSYSTEMERROR;
      return;
    }
    dibs__zk_put_get(k->store, round, path);
    dibs__zk_go(k->store, round, k->by);
    const slot_t *slot = &round->slots[0];
    rc = slot->rc;
    if (rc == ZOK) {
      read_any_data(node, slot, &data);
      bool offered = data.mode == DIBS_COUNTED && data.slot == DIBS__ZK_NO_SLOT; /* not granted yet: not broken */
      rc = offered ? ZNONODE : change_node(k, path, &data, &slot->stat);
      if (rc == ZOK) note_holder(k, h, &data, &slot->stat);
    }
    dibs__zk_round_drop(round);
  }
  if (rc == ZOK) mark_own(k, h);
  if (rc != ZOK && rc != ZNONODE) k->rc = rc;
}

static const char *breaks_path(const store_t *store, dibs__str name, char to[DIBS__ZK_PATH]) {
  char encoded[3 * DIBS_NAME_MAX + 1];
  dibs__zk_encode(name, encoded);
  snprintf(to, DIBS__ZK_PATH, "%s/b/%s", store->path, encoded);
  return to;
}

/* Where the last `keep` lines of a text begin. */
static const char *last_lines(const char *text, int keep) {
  const char *at = text + strlen(text);
  for (int lines = 0; at > text; at--)
    if (at[-1] == '\n' && lines++ == keep) return at;
  return text;
}

/* Adds one line to the last ones.  ZBADVERSION, ZNODEEXISTS: another client did the same at this instant. */
static int add_line(struct breaking *k, const char *line) {
  char path[DIBS__ZK_PATH], *text = NULL;
  round_t *read = dibs__zk_round_new(1), *write = dibs__zk_round_new(1);
  int rc = ZSYSTEMERROR;
  if (!read || !write) goto out;
  dibs__zk_put_get(k->store, read, breaks_path(k->store, k->op->name, path));
  dibs__zk_go(k->store, read, k->by);
  rc = read->slots[0].rc;
  if (rc != ZOK && rc != ZNONODE) goto out;
  const char *old = rc == ZOK ? last_lines(read->slots[0].text, BREAKS - 1) : "";
  size_t size = strlen(old) + strlen(line) + 1;
  text = malloc(size);
  if (!text) goto out;
  snprintf(text, size, "%s%s", old, line);
  if (rc == ZOK)
    dibs__zk_put_set(k->store, write, path, text, size - 1, read->slots[0].stat.version);
  else
    dibs__zk_put_create(k->store, write, path, text, size - 1, ZOO_PERSISTENT);
  dibs__zk_go(k->store, write, k->by);
  rc = write->slots[0].rc;
out:
  free(text);
  dibs__zk_round_drop(read);
  dibs__zk_round_drop(write);
  return rc;
}

static void record_break(struct breaking *k) {
  char owner[DIBS__BREAK_OWNER_MAX], line[DIBS__BREAK_OWNER_MAX + 100];
  dibs__str both = dibs__break_owner(owner, k->op->owner, dibs__str_of(k->from, strlen(k->from)));
  snprintf(line, sizeof line, "%u %" PRIu64 " %" PRId64 " %.*s\n", k->mode, k->fence, server_now(k->store),
           (int)both.len, both.p);
  int rc = ZBADVERSION;
  for (int i = 0; i < TRIES && (rc == ZBADVERSION || rc == ZNODEEXISTS); i++) rc = add_line(k, line);
  if (rc != ZOK) k->rc = rc;
}

void dibs__zk_break(store_t *store, struct dibs__lease_op *op, dibs__tick by, struct dibs__result *result) {
  char path[DIBS__ZK_PATH];
  struct breaking k = {.store = store, .op = op, .result = result, .by = by, .now = op->op.at.ms};
  struct dibs__zk_child *sorted = NULL;
  size_t holders;
  k.last = k.now;
  op->op.status = dibs__zk_ready(store, by, result);
  if (op->op.status != DIBS_OK) return;
  round_t *round = children_of(store, dibs__zk_dir(store, op->name, path), by);
  op->op.status = round ? DIBS_NOT_FOUND : DIBS_NO_MEMORY;
  const slot_t *slot = round ? &round->slots[1] : NULL;
  if (slot && slot->rc == ZOK && dibs__zk_sorted(slot, &sorted, &holders))
    for (size_t i = 0; i < holders; i++) break_node(&k, sorted[i].name);
  else if (slot && slot->rc != ZOK && slot->rc != ZNONODE)
    k.rc = slot->rc;
  free(sorted);
  dibs__zk_round_drop(round);
  if (k.broken && k.fresh && !k.rc) record_break(&k);
  result->commits++;
  if (k.rc)
    op->op.status = dibs__zk_explain(store, k.rc, "break a lease in", result);
  else if (k.broken)
    op->op.status = DIBS_OK;
  if (k.broken) op->until.ms = op->now ? k.now : k.last;
}

/* ---- Listing ---- */

struct name {
  uint32_t len;
  char text[DIBS_NAME_MAX + 1];
};

struct listing {
  store_t *store;
  const struct dibs__list *list;
  dibs__tick by;
  struct name *names;
  size_t count, capacity, rows;
  bool enough;
  int rc;
};

static int by_name(const void *a, const void *b) {
  const struct name *x = a, *y = b;
  uint32_t least = x->len < y->len ? x->len : y->len;
  int order = memcmp(x->text, y->text, least);
  return order ? order : (x->len > y->len) - (x->len < y->len);
}

static void add_name(struct listing *l, const char *text, uint32_t len) {
  if (l->count == l->capacity) {
    size_t capacity = l->capacity ? 2 * l->capacity : 64;
    struct name *names = realloc(l->names, capacity * sizeof *names);
    if (!names) {
      l->rc = ZSYSTEMERROR;
      return;
    }
    l->names = names;
    l->capacity = capacity;
  }
  l->names[l->count].len = len;
  memcpy(l->names[l->count].text, text, len);
  l->names[l->count++].text[len] = '\0';
}

static void gather_names(struct listing *l) {
  char path[DIBS__ZK_PATH];
  round_t *round = dibs__zk_round_new(DIBS__BUCKETS + 1);
  if (!round) {
    l->rc = ZSYSTEMERROR;
    return;
  }
  dibs__zk_put_sync(l->store, round, l->store->path);
  for (unsigned bucket = 0; bucket < DIBS__BUCKETS; bucket++) {
    snprintf(path, sizeof path, "%s/l/%02u", l->store->path, bucket);
    dibs__zk_put_children(l->store, round, path, NULL, 0);
  }
  dibs__zk_go(l->store, round, l->by);
  for (size_t i = 1; i < round->used; i++) {
    const slot_t *slot = &round->slots[i];
    char text[DIBS_NAME_MAX + 1];
    uint32_t len;
    if (slot->rc != ZOK && slot->rc != ZNONODE) l->rc = slot->rc;
    for (int n = 0; slot->rc == ZOK && n < slot->count && !l->rc; n++)
      if (dibs__zk_decode(slot->names[n], text, &len) && dibs__list_has(l->list, dibs__str_of(text, len)))
        add_name(l, text, len);
  }
  dibs__zk_round_drop(round);
  if (l->count) qsort(l->names, l->count, sizeof *l->names, by_name);
}

static void fill_times(const store_t *store, const hold *h, const struct Stat *stat, struct dibs__lease_row *row) {
  int64_t now = dibs__zk_now(), there = server_now(store);
  bool holds = row->state == DIBS__HOLDS || row->state == DIBS__BREAKING;
  int64_t age = h ? now - h->since : there - stat->ctime;
  int64_t left = h && h->until ? h->until - now : row->ttl_ms - (there - stat->mtime);
  row->age_ms = age > 0 ? age : 0;
  row->left_ms = !holds || left < 0 ? 0 : left < row->ttl_ms ? left : row->ttl_ms;
}

static void show_node(struct listing *l, const struct name *name, const struct dibs__zk_child *child,
                      const slot_t *slot, bool holds, uint32_t ahead) {
  struct dibs__zk_data data;
  if (slot->rc == ZNONODE || l->enough) return; /* it ended during the listing */
  if (slot->rc != ZOK) {
    l->rc = slot->rc;
    return;
  }
  read_any_data(child->name, slot, &data);
  dibs__str text = dibs__str_of(name->text, name->len);
  const hold *h = hold_of_node(l->store, text, child->name);
  dibs__mutex_lock(&l->store->lock);
  bool offered = h && h->state == DIBS__ZK_OFFERED;
  dibs__mutex_unlock(&l->store->lock);
  struct dibs__lease_row row = {.name = text, .owner = data.owner, .mode = data.mode, .ttl_ms = data.ttl_ms};
  bool granted = data.mode != DIBS_COUNTED || data.slot != DIBS__ZK_NO_SLOT;
  row.pid = data.pid;
  row.slots = data.slots;
  row.slot = granted && data.mode == DIBS_COUNTED ? data.slot : 0;
  row.state = !holds ? DIBS__WAITS : offered || !granted ? DIBS__OFFERED : data.broken ? DIBS__BREAKING : DIBS__HOLDS;
  row.ahead = ahead;
  row.fence.v = holds && data.mode == DIBS_EXCLUSIVE ? dibs__zk_fence(l->store, slot->stat.czxid) : 0;
  fill_times(l->store, h, &slot->stat, &row);
  l->enough = l->list->row(&row, l->list->user) != 0;
  l->rows++;
}

/* The nodes of one name, in their order. */
static void show_name(struct listing *l, const struct name *name, const slot_t *children) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_child *sorted;
  size_t holders, count = dibs__zk_sorted(children, &sorted, &holders);
  dibs__zk_dir(l->store, dibs__str_of(name->text, name->len), path);
  size_t len = strlen(path);
  for (size_t from = 0; from < count && !l->rc && !l->enough; from += TOGETHER) {
    size_t most = count - from < TOGETHER ? count - from : TOGETHER;
    round_t *round = dibs__zk_round_new(most);
    if (!round) {
      l->rc = ZSYSTEMERROR;
      break;
    }
    for (size_t i = 0; i < most; i++) {
      snprintf(path + len, sizeof path - len, "/%s", sorted[from + i].name);
      dibs__zk_put_get(l->store, round, path);
    }
    dibs__zk_go(l->store, round, l->by);
    for (size_t i = 0; i < most && !l->rc; i++) {
      size_t nth = from + i;
      show_node(l, name, &sorted[nth], &round->slots[i], nth < holders, nth < holders ? 0 : (uint32_t)(nth - holders));
    }
    dibs__zk_round_drop(round);
  }
  free(sorted);
}

static void show_names(struct listing *l) {
  char path[DIBS__ZK_PATH];
  size_t shown = 0;
  for (size_t from = 0; from < l->count && !l->rc && !l->enough; from += TOGETHER) {
    size_t most = l->count - from < TOGETHER ? l->count - from : TOGETHER;
    round_t *round = dibs__zk_round_new(most + 1);
    if (!round) {
      l->rc = ZSYSTEMERROR;
      return;
    }
    dibs__zk_put_sync(l->store, round, l->store->path);
    for (size_t i = 0; i < most; i++) {
      const struct name *name = &l->names[from + i];
      dibs__zk_put_children(l->store, round, dibs__zk_dir(l->store, dibs__str_of(name->text, name->len), path), NULL,
                            0);
    }
    dibs__zk_go(l->store, round, l->by);
    for (size_t i = 0; i < most && !l->rc && !l->enough; i++) {
      const slot_t *slot = &round->slots[i + 1];
      if (slot->rc != ZOK && slot->rc != ZNONODE) l->rc = slot->rc;
      if (slot->rc != ZOK || slot->count == 0) continue;
      size_t rows = l->rows;
      show_name(l, &l->names[from + i], slot);
      shown += l->rows > rows; /* its leases may have ended meanwhile */
      if (l->list->most && shown >= l->list->most) l->enough = true;
    }
    dibs__zk_round_drop(round);
  }
}

static void show_breaks(struct listing *l) {
  char path[DIBS__ZK_PATH];
  round_t *round = dibs__zk_round_new(1);
  if (!round) {
    l->rc = ZSYSTEMERROR;
    return;
  }
  dibs__zk_put_get(l->store, round, breaks_path(l->store, l->list->name, path));
  dibs__zk_go(l->store, round, l->by);
  const slot_t *slot = &round->slots[0];
  if (slot->rc != ZOK && slot->rc != ZNONODE) l->rc = slot->rc;
  for (const char *at = slot->rc == ZOK ? slot->text : ""; *at && !l->enough;) {
    struct dibs__lease_row row = {.name = l->list->name, .state = DIBS__BROKEN};
    int64_t ms;
    int used = 0;
    size_t len = strcspn(at, "\n");
    if (sscanf(at, "%u %" SCNu64 " %" SCNd64 " %n", &row.mode, &row.fence.v, &ms, &used) == 3 && (size_t)used <= len) {
      row.owner = dibs__str_of(at + used, len - (size_t)used);
      row.age_ms = server_now(l->store) > ms ? server_now(l->store) - ms : 0;
      l->enough = l->list->row(&row, l->list->user) != 0;
    }
    at += len + (at[len] == '\n');
  }
  dibs__zk_round_drop(round);
}

dibs__status dibs__zk_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                           struct dibs__result *result) {
  store_t *store = (store_t *)base->store;
  struct listing l = {.store = store, .list = list, .by = by};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  result->now.ms = result->sent.ns / DIBS__NS_PER_MS;
  if (!dibs__zk_enter(store, by)) {
    dibs__set_message(result, "%.200s did not answer in time", store->location.shown);
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = dibs__zk_ready(store, by, result);
  if (status == DIBS_OK) {
    dibs__zk_sweep(store, by);
    if (list->name.len)
      add_name(&l, list->name.p, list->name.len);
    else
      gather_names(&l);
    if (!l.rc) show_names(&l);
    if (!l.rc && list->name.len && !l.enough) show_breaks(&l);
    if (l.rc) status = dibs__zk_explain(store, l.rc, "list", result);
    if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  }
  dibs__zk_leave(store);
  free(l.names);
  return status;
}
