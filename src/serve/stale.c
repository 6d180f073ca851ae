/* SPDX-License-Identifier: MIT */
#include "serve/stale.h"
#include "base/map.h"
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>

/* A power of two each: of leases that are kept (a new one takes the slot of an older one with the same hash), and of
 * names that are counted. */
enum { GRANTS = 1 << 14, NAMES = 1 << 10 };

struct grant {
  dibs__id id;
  char *name; /* NULL: the slot is free */
};

struct count {
  char *name; /* NULL: the slot is free */
  uint64_t refused;
};

struct stale {
  dibs__mutex lock; /* guards what follows */
  size_t names;
  struct grant grants[GRANTS];
  struct count counts[NAMES];
};

bool dibs__stale_open(struct server *server) {
  server->stale = calloc(1, sizeof *server->stale);
  if (!server->stale) return false;
  dibs__mutex_init(&server->stale->lock);
  return true;
}

void dibs__stale_close(struct server *server) {
  struct stale *s = server->stale;
  if (!s) return;
  for (size_t i = 0; i < GRANTS; i++) free(s->grants[i].name);
  for (size_t i = 0; i < NAMES; i++) free(s->counts[i].name);
  dibs__mutex_destroy(&s->lock);
  free(s);
  server->stale = NULL;
}

static struct grant *slot_of(struct stale *s, const dibs__id *id) {
  return &s->grants[dibs__hash(id->b, sizeof id->b) & (GRANTS - 1)];
}

/* The count of the name, or the free slot for it.  One slot is always free. */
static struct count *find_count_locked(struct stale *s, const char *name) {
  size_t at = dibs__hash(name, strlen(name)) & (NAMES - 1);
  while (s->counts[at].name && strcmp(s->counts[at].name, name) != 0) at = (at + 1) & (NAMES - 1);
  return &s->counts[at];
}

void dibs__stale_granted(struct server *server, const dibs__id *id, dibs__str name) {
  struct stale *s = server->stale;
  if (!s) return;
  dibs__mutex_lock(&s->lock);
  struct grant *grant = slot_of(s, id);
  if (!grant->name || memcmp(&grant->id, id, sizeof *id) != 0) {
    free(grant->name);
    grant->id = *id;
    grant->name = strndup(name.p, name.len);
  }
  dibs__mutex_unlock(&s->lock);
}

void dibs__stale_refused(struct server *server, const dibs__id *id) {
  struct stale *s = server->stale;
  if (!s) return;
  dibs__mutex_lock(&s->lock);
  const struct grant *grant = slot_of(s, id);
  bool known = grant->name && memcmp(&grant->id, id, sizeof *id) == 0;
  struct count *count = known ? find_count_locked(s, grant->name) : NULL;
  if (count && !count->name && s->names + 1 < NAMES && (count->name = strdup(grant->name))) s->names++;
  if (count && count->name) count->refused++;
  dibs__mutex_unlock(&s->lock);
}

uint64_t dibs__stale_count(struct server *server, const char *name) {
  struct stale *s = server->stale;
  if (!s) return 0;
  dibs__mutex_lock(&s->lock);
  uint64_t refused = s->names > 0 ? find_count_locked(s, name)->refused : 0;
  dibs__mutex_unlock(&s->lock);
  return refused;
}
