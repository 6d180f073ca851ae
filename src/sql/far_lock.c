/* SPDX-License-Identifier: MIT */
/*
 * A store of session locks: what this process knows of its leases.
 *
 * A lock of the server's may be taken again by the connection that has it, so the tables here decide first: who asks
 * for a name that a lease of ours has is refused, or waits on a connection of its own like anybody.
 *
 * The server knows no ttl.  A lease that nobody renews is given back by us when its time is over: as long as this
 * process runs, and lives.
 */
#include "sql/far_lock_parts.h"

#include "base/sha256.h"

#include <stdio.h>

/* ---- Holds ---- */

static uint64_t hash_of(dibs__str name) {
  return dibs__hash(name.p, name.len);
}

/* The id is drawn by chance: some of its bytes are as good as a hash of them. */
static uint64_t hash_with(dibs__str name, dibs__id id) {
  uint64_t some;
  memcpy(&some, id.b, sizeof some);
  return hash_of(name) ^ some;
}

void dibs__lock_key(const struct dibs__far_locks *locks, dibs__str name, struct dibs__far_key *key) {
  struct dibs__sha256 sum;
  char hex[65];
  dibs__sha256_begin(&sum);
  dibs__sha256_add(&sum, locks->space, strlen(locks->space));
  dibs__sha256_add(&sum, ":", 1);
  dibs__sha256_add(&sum, name.p, name.len);
  dibs__sha256_end(&sum, hex);
  locks->how->key(hex, key);
}

struct dibs__hold *dibs__hold_new(struct dibs__far_locks *locks, const struct dibs__lease_op *op) {
  struct dibs__hold *h = calloc(1, sizeof *h + op->name.len + 1);
  if (!h) return NULL;
  h->id = op->id;
  h->mode = op->mode;
  h->ttl_ms = op->ttl_ms;
  h->owner.len = op->owner.len;
  if (op->owner.len) memcpy(h->owner.text, op->owner.p, op->owner.len);
  h->len = op->name.len;
  memcpy(h->name, op->name.p, op->name.len);
  dibs__lock_key(locks, op->name, &h->key);
  return h;
}

void dibs__hold_add_locked(struct dibs__far_locks *locks, struct dibs__hold *h) {
  dibs__map_add(&locks->by_id, &h->by_id, hash_with(dibs__hold_name(h), h->id));
  dibs__map_add(&locks->by_name, &h->by_name, hash_of(dibs__hold_name(h)));
  h->next = locks->all;
  h->link_back = &locks->all;
  if (h->next) h->next->link_back = &h->next;
  locks->all = h;
}

void dibs__hold_drop_locked(struct dibs__far_locks *locks, struct dibs__hold *h) {
  dibs__map_remove(&locks->by_id, &h->by_id);
  dibs__map_remove(&locks->by_name, &h->by_name);
  *h->link_back = h->next;
  if (h->next) h->next->link_back = h->link_back;
  if (h->tell) locks->tells--;
  free(h);
}

struct dibs__hold *dibs__hold_find_locked(const struct dibs__far_locks *locks, dibs__str name, dibs__id id) {
  uint64_t hash = hash_with(name, id);
  for (struct dibs__map_node *node = dibs__map_head(&locks->by_id, hash); node; node = node->next) {
    struct dibs__hold *h = (struct dibs__hold *)((char *)node - offsetof(struct dibs__hold, by_id));
    if (node->hash == hash && dibs__id_equal(h->id, id) && dibs__str_equal(dibs__hold_name(h), name)) return h;
  }
  return NULL;
}

void dibs__hold_tell_locked(struct dibs__far_locks *locks, struct dibs__hold *h) {
  if (!h->tell) locks->tells++;
  h->tell = true;
}

struct dibs__lock_ours dibs__lock_ours_locked(const struct dibs__far_locks *locks, dibs__str name) {
  struct dibs__lock_ours ours = {0};
  uint64_t hash = hash_of(name);
  for (struct dibs__map_node *node = dibs__map_head(&locks->by_name, hash); node; node = node->next) {
    struct dibs__hold *h = (struct dibs__hold *)((char *)node - offsetof(struct dibs__hold, by_name));
    if (node->hash != hash || (h->state != DIBS__HOLD_HOLDS && h->state != DIBS__HOLD_OFFERED)) continue;
    if (!dibs__str_equal(dibs__hold_name(h), name)) continue;
    if (h->mode == DIBS_EXCLUSIVE)
      ours.exclusive++;
    else
      ours.shared++;
    if (ours.until == 0 || h->until < ours.until) ours.until = h->until;
  }
  return ours;
}

/* ---- What is over ---- */

static int64_t ends_at(const struct dibs__hold *h) {
  switch (h->state) {
  case DIBS__HOLD_HOLDS:
  case DIBS__HOLD_OFFERED:
    return h->until;
  case DIBS__HOLD_GONE:
    return h->tell ? h->until : 0;
  default:
    return INT64_MAX;
  }
}

void dibs__lock_sweep(struct dibs__far *store, dibs__tick by) {
  struct dibs__far_locks *locks = store->locks;
  int64_t now = dibs__lock_now(), due = INT64_MAX;
  dibs__link_tidy(locks);
  if (now < locks->due) return;
  dibs__mutex_lock(&locks->lock);
  for (struct dibs__hold *h = locks->all, *next; h; h = next) {
    int64_t end = ends_at(h);
    next = h->next;
    if (end > now) {
      if (end < due) due = end;
      continue;
    }
    if (h->link) dibs__link_put_drop(locks, h);
    dibs__hold_drop_locked(locks, h);
  }
  locks->due = due;
  dibs__mutex_unlock(&locks->lock);
  dibs__link_go(locks, by);
}

/* ---- The store ---- */

static void free_locks(struct dibs__far_locks *locks) {
  if (!locks) return;
  while (locks->all) dibs__hold_drop_locked(locks, locks->all);
  dibs__map_free(&locks->by_id);
  dibs__map_free(&locks->by_name);
  dibs__mutex_destroy(&locks->busy);
  dibs__mutex_destroy(&locks->lock);
  if (locks->bell >= 0) dibs__bell_close(locks->bell);
  free(locks->space);
  free(locks->draws);
  free(locks);
}

/* What the keys are made of beside the names, by the server's own word: how it was spelled in the URI does not matter.
 */
static dibs__status read_space(struct dibs__far *store, struct dibs__far_locks *locks, dibs__tick by,
                               struct dibs__said *said) {
  struct dibs__sql_wire *wire = store->inside->spare->wire;
  char text[256];
  size_t nth = wire->put;
  wire->by = by;
  struct dibs__sql_value schema = dibs__sql_text(store->options.schema, strlen(store->options.schema));
  enum dibs__sql_step end = wire->engine->put(wire, locks->how->space, &schema, 1);
  if (end == DIBS__SQL_FINE) end = wire->engine->go(wire, false);
  if (end != DIBS__SQL_FINE) return dibs__sql_excuse(wire, "ask for the name of", store->shown, said);
  struct dibs__sql_value cell = wire->engine->cell(wire, nth, 0, 0, DIBS__SQL_TEXT);
  int len = snprintf(text, sizeof text, "%.*s.%s", (int)cell.len, cell.p ? cell.p : "", store->options.prefix);
  locks->space = len > 0 && (size_t)len < sizeof text ? strdup(text) : NULL;
  return locks->space ? DIBS_OK : DIBS_NO_MEMORY;
}

static dibs__status begin(struct dibs__far *store, const struct dibs__far_locking *how, dibs__tick by,
                          struct dibs__said *said) {
  struct dibs__far_locks *locks = store->locks = calloc(1, sizeof *locks);
  if (!locks) return DIBS_NO_MEMORY;
  locks->how = how;
  locks->due = INT64_MAX;
  locks->most = store->options.lock_waiters;
  dibs__mutex_init(&locks->busy);
  dibs__mutex_init(&locks->lock);
  locks->bell = dibs__bell_open();
  locks->draws = calloc(DIBS__FAR_BATCH, sizeof *locks->draws);
  if (!locks->draws) return DIBS_NO_MEMORY;
  if (!dibs__map_init(&locks->by_id) || !dibs__map_init(&locks->by_name)) return DIBS_NO_MEMORY;
  if (locks->bell < 0) {
    dibs__say(said, "no descriptor left for the bell of %s", store->shown);
    return DIBS_UNAVAILABLE;
  }
  return read_space(store, locks, by, said);
}

DIBS__MODULE_API dibs__status dibs__far_lock_open(struct dibs__dstore *base, const struct dibs__far_locking *how,
                                                  const struct dibs__driver *driver, dibs__tick by,
                                                  struct dibs__said *said) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__status status = begin(store, how, by, said);
  base->driver = driver;
  if (status != DIBS_OK) dibs__far_lock_close(base);
  return status;
}

DIBS__MODULE_API void dibs__far_lock_close(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  if (store->locks) dibs__link_close_all(store);
  free_locks(store->locks);
  store->locks = NULL;
  dibs__far_close(base);
}

DIBS__MODULE_API dibs__status dibs__far_lock_connect(struct dibs__dstore *base, dibs__tick by,
                                                     struct dibs__session **session, struct dibs__identity *identity,
                                                     struct dibs__said *said) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__status status = dibs__far_connect(base, by, session, identity, said);
  if (status != DIBS_OK) return status;
  identity->caps = DIBS__CAP_SESSION | DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_BLOCKS;
  if (store->locks->how->shared) identity->caps |= DIBS__CAP_SHARED;
  identity->max_sessions = 1;
  return DIBS_OK;
}

DIBS__MODULE_API void dibs__far_lock_tidy(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__mutex_lock(&store->locks->busy);
  dibs__lock_sweep(store, dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS));
  dibs__mutex_unlock(&store->locks->busy);
  dibs__far_tidy(base);
}
