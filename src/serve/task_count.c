/* SPDX-License-Identifier: MIT */
/*
 * Counters of tasks that were added, claimed and ended, for /metrics and for the phases of a kind.  Each row also has
 * its counts at the latest steps, which begin every ten seconds (series.c): the difference is what happened in the
 * window of about a minute.
 */
#include "serve/task_count.h"
#include "base/map.h"
#include "base/port.h"
#include "serve/kinds.h"
#include "serve/meter.h"
#include "serve/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
  ROWS_MAX = 400, /* of up to 700 bytes, and a line of a scrape; what comes later counts for METER_OTHERS */
  STEPS = 6
};

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
  uint64_t before[STEPS]; /* `count` when the latest steps began; 0: the row was made later */
  enum task_deed deed;
  const char *detail; /* in `texts`, behind the kind */
  char texts[];
};

struct task_counts {
  dibs__mutex lock; /* guards what follows */
  struct dibs__map map;
  struct row *first;
  uint32_t rows;
  uint32_t oldest;         /* of the steps: where `before` and `began` begin */
  dibs__tick began[STEPS]; /* of a step that was not yet: when the server began */
  uint64_t others[TASK_DEEDS];
};

bool dibs__task_counts_open(struct server *server) {
  struct task_counts *c = server->task_counts = calloc(1, sizeof *c);
  if (!c) return false;
  dibs__mutex_init(&c->lock);
  for (size_t i = 0; i < STEPS; i++) c->began[i] = dibs__tick_now();
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

void dibs__task_counts_step(struct server *server) {
  struct task_counts *c = server->task_counts;
  dibs__mutex_lock(&c->lock);
  for (struct row *row = c->first; row; row = row->next) row->before[c->oldest] = row->count;
  c->began[c->oldest] = dibs__tick_now();
  c->oldest = (c->oldest + 1) % STEPS;
  dibs__mutex_unlock(&c->lock);
}

/* ---- The phases of a kind ---- */

struct phase {
  const char *name; /* in a row, which lasts as long as the server */
  uint64_t counts[2], lately[2];
};

static int compare_phases(const void *a, const void *b) {
  return strcmp(((const struct phase *)a)->name, ((const struct phase *)b)->name);
}

/* Up to ROWS_MAX of them, by name. */
static size_t find_phases_locked(const struct task_counts *c, const char *kind, struct phase *phases) {
  static_assert(TASK_ADDED == 0 && TASK_CLAIMED == 1, "they have a phase, and are the indexes of its counts");
  size_t count = 0;
  for (const struct row *row = c->first; row; row = row->next) {
    if (row->deed > TASK_CLAIMED || strcmp(row->texts, kind) != 0) continue;
    size_t at = 0;
    while (at < count && strcmp(phases[at].name, row->detail) != 0) at++;
    if (at == count) phases[count++] = (struct phase){.name = row->detail};
    phases[at].counts[row->deed] = row->count;
    phases[at].lately[row->deed] = row->count - row->before[c->oldest];
  }
  qsort(phases, count, sizeof *phases, compare_phases);
  return count;
}

static void get_phases(struct request *r) {
  if (!dibs__is_kind(r)) return;
  struct task_counts *c = r->server->task_counts;
  struct phase *phases = calloc(ROWS_MAX, sizeof *phases);
  if (!phases) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  dibs__mutex_lock(&c->lock);
  size_t count = find_phases_locked(c, r->param[0], phases);
  int64_t window_ms = dibs__tick_left_ms(c->began[c->oldest], dibs__tick_now());
  dibs__mutex_unlock(&c->lock);
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_open(j, "phases", '[');
  for (size_t i = 0; i < count; i++) {
    dibs__json_open(j, NULL, '{');
    dibs__json_text(j, "phase", phases[i].name);
    dibs__json_uint(j, "added", phases[i].counts[TASK_ADDED]);
    dibs__json_uint(j, "claimed", phases[i].counts[TASK_CLAIMED]);
    dibs__json_uint(j, "added_in_window", phases[i].lately[TASK_ADDED]);
    dibs__json_uint(j, "claimed_in_window", phases[i].lately[TASK_CLAIMED]);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
  dibs__json_int(j, "window_ms", window_ms);
  dibs__json_close(j, '}');
  free(phases);
  dibs__answer_end(r);
}

const struct route dibs__phase_routes[] = {
    {METHOD_GET, "/v1/kinds/{kind}/phases", SCOPE_READ, get_phases, 0, NULL, "listPhases", "200",
     "How many tasks of a kind were added and claimed in each phase",
     "Through this daemon since it began, and in the last `window_ms`, a minute or less.  The store is not asked.",
     NULL},
    {.path = NULL}};
