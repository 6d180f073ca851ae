/* SPDX-License-Identifier: MIT */
#include "serve/task_count.h"
#include "base/map.h"
#include "base/port.h"
#include "serve/meter.h"
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 400 /* of up to 600 bytes, and a line of a scrape; what comes later counts for METER_OTHERS */ };

static const struct {
  const char *family, *help, *detail; /* detail: the name of its label; NULL: none */
} deeds[TASK_DEEDS] = {
    [TASK_ADDED] = {"tasks.added", "tasks that were added through this daemon", "phase"},
    [TASK_CLAIMED] = {"tasks.claimed", "tasks that were claimed through this daemon", "phase"},
    [TASK_ENDED] = {"tasks.ended", "claims that were ended through this daemon", "outcome"},
    [TASK_REFUSED] = {"tasks.refused", "ends and extensions of clients that did not have the claim any more", NULL}};

struct row {
  struct dibs__map_node by_name;
  struct row *next;
  uint64_t count, client; /* client: the hash of its label; of the one for which the row was made */
  enum task_deed deed;
  const char *detail; /* in `texts`, behind the kind */
  char texts[];
};

struct task_counts {
  dibs__mutex lock; /* guards what follows */
  struct dibs__map map;
  struct row *first;
  uint32_t rows;
  uint64_t others[TASK_DEEDS];
};

bool dibs__task_counts_open(struct server *server) {
  struct task_counts *c = server->task_counts = calloc(1, sizeof *c);
  if (!c) return false;
  dibs__mutex_init(&c->lock);
  return dibs__map_init(&c->map);
}

void dibs__task_counts_close(struct server *server) {
  struct task_counts *c = server->task_counts;
  if (!c) return;
  for (struct row *row = c->first, *next; row; row = next) {
    next = row->next;
    dibs__map_remove(&c->map, &row->by_name);
    free(row);
  }
  dibs__map_free(&c->map);
  dibs__mutex_destroy(&c->lock);
  free(c);
}

static struct row *find_row_locked(struct task_counts *c, uint64_t hash, enum task_deed deed, const char *kind,
                                   const char *detail) {
  for (struct dibs__map_node *node = dibs__map_head(&c->map, hash); node; node = node->next) {
    struct row *row = (struct row *)node;
    if (node->hash == hash && row->deed == deed && strcmp(row->texts, kind) == 0 && strcmp(row->detail, detail) == 0)
      return row;
  }
  return NULL;
}

/* Clients invent kinds and phases.  Each token leaves as many rows to the others as it has: the first may make half of
 * all rows, the next one half of the rest.  Without tokens all clients are one. */
static bool may_make_row_locked(const struct task_counts *c, const struct server *server, uint64_t client) {
  uint32_t own = 0;
  for (const struct row *row = c->first; row && server->tokens; row = row->next) own += row->client == client;
  return own < ROWS_MAX - c->rows;
}

/* NULL: there are too many, or no memory. */
static struct row *make_row_locked(struct task_counts *c, uint64_t hash, enum task_deed deed, const char *kind,
                                   const char *detail) {
  size_t kind_size = strlen(kind) + 1, detail_size = strlen(detail) + 1;
  struct row *row = calloc(1, sizeof *row + kind_size + detail_size);
  if (!row) return NULL;
  row->deed = deed;
  memcpy(row->texts, kind, kind_size);
  row->detail = memcpy(row->texts + kind_size, detail, detail_size);
  row->next = c->first;
  c->first = row;
  c->rows++;
  dibs__map_add(&c->map, &row->by_name, hash);
  return row;
}

void dibs__task_count_one(struct request *r, enum task_deed deed, const char *kind, const char *detail) {
  struct server *server = r->server;
  struct task_counts *c = server->task_counts;
  const char *label = dibs__auth_label(r);
  uint64_t client = dibs__hash(label, strlen(label));
  if (!detail) detail = "";
  uint64_t hash = (dibs__hash(kind, strlen(kind)) * 31 + dibs__hash(detail, strlen(detail))) * TASK_DEEDS + deed;
  dibs__mutex_lock(&c->lock);
  struct row *row = find_row_locked(c, hash, deed, kind, detail);
  if (!row && strcmp(kind, METER_OTHERS) != 0 && may_make_row_locked(c, server, client)) {
    row = make_row_locked(c, hash, deed, kind, detail);
    if (row) row->client = client;
  }
  if (row)
    row->count++;
  else
    c->others[deed]++;
  dibs__mutex_unlock(&c->lock);
}

static void add_count(struct meter *meter, enum task_deed deed, const char *kind, const char *detail, uint64_t count) {
  struct label labels[] = {{"kind", kind}, {deeds[deed].detail, detail}, {NULL, NULL}};
  dibs__meter_add(meter, deeds[deed].family, DIBS_COUNTER, deeds[deed].help, labels, (double)count);
}

void dibs__task_counts_add(struct server *server, struct meter *meter) {
  struct task_counts *c = server->task_counts;
  dibs__mutex_lock(&c->lock);
  for (const struct row *row = c->first; row; row = row->next)
    add_count(meter, row->deed, row->texts, row->detail, row->count);
  for (unsigned i = 0; i < TASK_DEEDS; i++)
    if (c->others[i] > 0) add_count(meter, (enum task_deed)i, METER_OTHERS, METER_OTHERS, c->others[i]);
  dibs__mutex_unlock(&c->lock);
}
