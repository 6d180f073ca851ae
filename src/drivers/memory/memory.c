/* SPDX-License-Identifier: MIT */
/*
 * The memory driver: the reference of the contract in store/store.h.  It decides everything in plain C, under one
 * lock, so that what SQL and Lua decide can be compared with it.
 *
 * A memory is what opens of one name share: buckets with their mandates, names with their holders and waiters,
 * records, tasks.  An open is a session of the store: its waiters live as long as it does, its leases until their ttl.
 *
 * A batch runs each operation in its order, at one instant, under the lock; groups as one.
 *
 * A listing copies everything under the lock, then sorts and returns it without the lock, so that it is one instant
 * of the store (R19) and its caller may call back.
 *
 * Locks: `named_lock` (the list of named memories), then memory.lock (everything else).  Code that holds them calls
 * only these files and src/base.
 */
#include "drivers/memory/memory_impl.h"
#include "store/family.h"
#include "store/task.h"
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

static int64_t mem_clock(const struct dibs__memory *m) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + m->origin;
}

DIBS__MODULE_API struct dibs__map_node *dibs__mem_next(const struct dibs__map *map, const struct dibs__map_node *node) {
  if (node && node->next) return node->next;
  for (size_t i = node ? (node->hash & (map->capacity - 1)) + 1 : 0; i < map->capacity; i++)
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
  dibs__map_free(&m->runs);
  dibs__map_free(&m->counters);
  dibs__map_free(&m->sources);
  dibs__map_free(&m->rates);
  dibs__mem_tasks_free(m->tasks);
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
  enough = dibs__map_init(&m->runs) && enough;
  enough = dibs__map_init(&m->counters) && dibs__map_init(&m->sources) && enough;
  enough = dibs__map_init(&m->rates) && enough;
  if (*called) m->called = strdup(called);
  if (!enough || (*called && !m->called)) {
    memory_free(m);
    return NULL;
  }
  uint32_t server;
  dibs__incarnation incarnation;
  dibs__random(&server, sizeof server);
  dibs__random(&incarnation, sizeof incarnation);
  m->origin = server; /* a caller that takes the store's clock for another one must notice */
  m->run_wall_ms = dibs__wall_ms() - mem_clock(m);
  m->run_keep_ms = -1;
  m->tasks = dibs__mem_tasks_new(mem_clock(m));
  if (!m->tasks) {
    memory_free(m);
    return NULL;
  }
  for (size_t i = 0; i < DIBS__BUCKETS; i++) m->buckets[i].mandate = (dibs__mandate){1, incarnation};
  return m;
}

static void forget_all(struct dibs__memory *m);

DIBS__MODULE_API struct dibs__memory *dibs__mem_scratch_new(const struct dibs__mem_hooks *hooks) {
  struct dibs__memory *m = memory_new("");
  if (m) m->hooks = hooks;
  return m;
}

DIBS__MODULE_API void dibs__mem_scratch_empty(struct dibs__memory *m) {
  forget_all(m);
}

DIBS__MODULE_API void dibs__mem_scratch_free(struct dibs__memory *m) {
  if (!m) return;
  forget_all(m);
  memory_free(m);
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

static void forget_all(struct dibs__memory *m) {
  forget_claims(m);
  forget_records(m);
  dibs__mem_onces_forget(m, INT64_MAX);
  dibs__mem_stocks_forget(m);
  dibs__mem_reports_forget(m, INT64_MAX, 0);
  dibs__mem_runs_forget(m, INT64_MAX);
  dibs__mem_counters_forget(m);
}

bool dibs__mem_next_epoch(struct dibs__mem_bucket *bucket) {
  if (bucket->served != DIBS__MEM_OWN || bucket->mandate.epoch >= DIBS__EPOCH_MAX) return false;
  bucket->mandate.epoch++;
  bucket->seq = 0;
  return true;
}

/* ---- Sessions and events ---- */

static struct dibs__mem_open *find_open(const struct dibs__memory *m, uint64_t session) {
  struct dibs__mem_open *open = m->opens;
  while (open && open->session != session) open = open->next;
  return open && !open->dead ? open : NULL;
}

bool dibs__mem_alive(const struct dibs__memory *m, uint64_t session) {
  if (m->hooks) return m->hooks->alive(m->hooks->user, session);
  return find_open(m, session) != NULL;
}

static void notify_open(struct dibs__mem_open *open) {
  atomic_fetch_add(&open->notifier, 1);
  dibs__word_wake(&open->notifier, 1, false);
}

static void put_event(struct dibs__mem_open *open, struct dibs__event event) {
  uint32_t last = (uint32_t)((open->head + open->count + DIBS__MEM_EVENTS - 1) % DIBS__MEM_EVENTS);
  if (open->count && event.what == DIBS__EV_TASKS && open->notice[last].what == DIBS__EV_TASKS) return;
  if (open->count == DIBS__MEM_EVENTS)
    open->overflow = true;
  else
    open->notice[(open->head + open->count++) % DIBS__MEM_EVENTS] = event;
  notify_open(open);
}

void dibs__mem_post(struct dibs__memory *m, uint64_t session, enum dibs__event_what what, dibs__id id) {
  dibs__mem_post_event(m, session, &(struct dibs__event){.what = what, .id = id});
}

void dibs__mem_post_event(struct dibs__memory *m, uint64_t session, const struct dibs__event *event) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  if (m->hooks) {
    m->hooks->post(m->hooks->user, session, event);
    return;
  }
  if (m->hush) {
    /* One more than the capacity means "check everything". */
    if (m->held_count < cap) m->held_events[m->held_count] = (struct dibs__mem_hushed){session, *event};
    if (m->held_count <= cap) m->held_count++;
    return;
  }
  struct dibs__mem_open *open = find_open(m, session);
  if (open) put_event(open, *event);
}

static void post_all(struct dibs__memory *m, enum dibs__event_what what) {
  for (struct dibs__mem_open *open = m->opens; open; open = open->next)
    put_event(open, (struct dibs__event){.what = what});
}

/* It may have made tasks ready. */
static bool wakes_workers(const struct dibs__op *op) {
  return op->verb == DIBS__TASK_ADD || op->verb == DIBS__TASK_END || op->verb == DIBS__TASK_CHANGE;
}

/* A group has ended: its events are sent, or dropped. */
static void release_held_events(struct dibs__memory *m, bool committed) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  m->hush = false;
  for (size_t i = 0; committed && i < m->held_count && i < cap; i++)
    dibs__mem_post_event(m, m->held_events[i].session, &m->held_events[i].event);
  if (committed && m->held_count > cap) post_all(m, DIBS__EV_RECHECK);
  m->held_count = 0;
}

static dibs__status mem_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  *count = 0;
  for (;;) {
    dibs__mutex_lock(&open->memory->lock);
    uint32_t seen = atomic_load(&open->notifier); /* before the check: a later notification ends the sleep */
    bool up = open->woken;
    open->woken = false;
    while (*count < cap && open->count) {
      events[(*count)++] = open->notice[open->head];
      open->head = (open->head + 1) % DIBS__MEM_EVENTS;
      open->count--;
    }
    if (*count < cap && open->overflow) {
      events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
      open->overflow = false;
    }
    dibs__mutex_unlock(&open->memory->lock);
    if (*count || up || cap == 0) return DIBS_OK;
    if (!dibs__word_wait(&open->notifier, seen, by, false)) return DIBS_OK;
  }
}

/* The driver's table; these and run take the lock themselves. */
static void mem_wake(struct dibs__dstore *store) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  dibs__mutex_lock(&open->memory->lock);
  open->woken = true;
  dibs__mutex_unlock(&open->memory->lock);
  notify_open(open);
}

/* ---- Listing ---- */

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;

struct line {
  struct dibs__lease_row row;
  int64_t order; /* within its name and kind */
  char text[];   /* name, owner */
};

struct lines {
  struct line **at;
  size_t count, cap;
};

static struct line *add_line(struct lines *lines, const name *n, const char *owner, uint32_t owner_len) {
  if (lines->count == lines->cap) {
    size_t cap = lines->cap ? lines->cap * 2 : 64;
    struct line **wider = realloc(lines->at, cap * sizeof(struct line *));
    if (!wider) return NULL;
    lines->at = wider;
    lines->cap = cap;
  }
  struct line *line = calloc(1, sizeof *line + n->len + owner_len + 1);
  if (!line) return NULL;
  memcpy(line->text, n->text, n->len);
  if (owner_len) memcpy(line->text + n->len, owner, owner_len);
  line->row.name = dibs__str_of(line->text, n->len);
  line->row.owner = dibs__str_of(line->text + n->len, owner_len);
  lines->at[lines->count++] = line;
  return line;
}

static bool add_line_of_claim(const struct dibs__memory *m, struct lines *lines, const claim *c, int64_t now) {
  bool holds = c->state == DIBS__MEM_HOLDS || c->state == DIBS__MEM_BREAKING;
  bool offered = c->state == DIBS__MEM_OFFERED && c->until > now;
  if (holds && c->until <= now) return true;
  if (!holds && !offered && !dibs__mem_alive(m, c->session)) return true;
  struct line *line = add_line(lines, c->name, c->owner, c->owner_len);
  if (!line) return false;
  struct dibs__lease_row *row = &line->row;
  row->state = DIBS__WAITS;
  if (holds) row->state = c->state == DIBS__MEM_HOLDS ? DIBS__HOLDS : DIBS__BREAKING;
  if (offered) row->state = DIBS__OFFERED;
  row->mode = c->mode;
  row->slots = c->slots;
  row->slot = c->slot;
  row->ttl_ms = c->ttl_ms;
  row->fence = holds ? c->first : DIBS__FENCE_NONE;
  row->left_ms = holds || offered ? c->until - now : 0;
  row->age_ms = now - (holds ? c->since : c->requested_since);
  row->pid = !m->hooks && dibs__mem_alive(m, c->session) ? dibs__process_id() : 0;
  line->order = (int64_t)c->ticket;
  return true;
}

static bool add_lines_of_row(const struct dibs__memory *m, struct lines *lines, const struct dibs__mem_row *row,
                             int64_t now) {
  for (const claim *c = row->first; c; c = c->after)
    if (!add_line_of_claim(m, lines, c, now)) return false;
  return true;
}

static bool add_lines_of_breaks(struct lines *lines, const name *n, int64_t now) {
  uint32_t count = n->break_count < DIBS__MEM_BREAKS ? n->break_count : DIBS__MEM_BREAKS;
  for (uint32_t i = 0; n->breaks && i < count; i++) {
    uint32_t nth = n->break_count - count + i;
    const struct dibs__mem_break *broke = &n->breaks[nth % DIBS__MEM_BREAKS];
    struct line *line = add_line(lines, n, broke->owner, broke->owner_len);
    if (!line) return false;
    line->row.state = DIBS__BROKEN;
    line->row.mode = broke->mode;
    line->row.fence = broke->fence;
    line->row.age_ms = now - broke->at;
    line->order = nth;
  }
  return true;
}

static bool add_lines_of_name(const struct dibs__memory *m, struct lines *lines, const name *n, int64_t now) {
  return add_lines_of_row(m, lines, &n->holders, now) && add_lines_of_row(m, lines, &n->offered, now) &&
         add_lines_of_row(m, lines, &n->waiting, now) && add_lines_of_row(m, lines, &n->asleep, now);
}

static bool gather_lines(struct dibs__memory *m, const struct dibs__list *list, struct lines *lines, int64_t now) {
  if (list->name.len) {
    const name *n = dibs__mem_name_find(m, list->name);
    return !n || (add_lines_of_name(m, lines, n, now) && add_lines_of_breaks(lines, n, now));
  }
  for (struct dibs__map_node *link = NULL; (link = dibs__mem_next(&m->names, link));) {
    const name *n = (const name *)link;
    if (dibs__list_has(list, dibs__str_of(n->text, n->len)) && !add_lines_of_name(m, lines, n, now)) return false;
  }
  return true;
}

/* Holders, then the queue, then breaks. */
static int line_kind(uint32_t state) {
  if (state == DIBS__BROKEN) return 2;
  return state == DIBS__WAITS || state == DIBS__OFFERED;
}

static int compare_lines(const void *left, const void *right) {
  const struct line *a = *(struct line *const *)left, *b = *(struct line *const *)right;
  uint32_t len = a->row.name.len < b->row.name.len ? a->row.name.len : b->row.name.len;
  int by_name = memcmp(a->row.name.p, b->row.name.p, len);
  if (by_name) return by_name;
  if (a->row.name.len != b->row.name.len) return a->row.name.len < b->row.name.len ? -1 : 1;
  if (line_kind(a->row.state) != line_kind(b->row.state)) return line_kind(a->row.state) - line_kind(b->row.state);
  return (a->order > b->order) - (a->order < b->order);
}

static void hand_out_lines(const struct lines *lines, const struct dibs__list *list) {
  uint32_t ahead = 0;
  for (size_t i = 0; i < lines->count; i++) {
    struct dibs__lease_row *row = &lines->at[i]->row;
    if (i == 0 || !dibs__str_equal(row->name, lines->at[i - 1]->row.name)) ahead = 0;
    if (line_kind(row->state) == 1) row->ahead = ahead++;
    if (list->row(row, list->user)) return;
  }
}

DIBS__MODULE_API dibs__status dibs__mem_list_at(struct dibs__memory *m, const struct dibs__list *list, int64_t now,
                                                struct dibs__result *result) {
  struct lines lines = {0};
  dibs__mutex_lock(&m->lock);
  if (now < 0) now = mem_clock(m);
  bool enough = gather_lines(m, list, &lines, now);
  dibs__mutex_unlock(&m->lock);
  result->now = (dibs__when){now};
  if (!enough) dibs__set_message(result, "out of memory for a list of %zu lines", lines.count);
  if (enough && lines.count) {
    qsort(lines.at, lines.count, sizeof(struct line *), compare_lines);
    hand_out_lines(&lines, list);
  }
  for (size_t i = 0; i < lines.count; i++) free(lines.at[i]);
  free(lines.at);
  return enough ? DIBS_OK : DIBS_NO_MEMORY;
}

/* ---- A batch ---- */

static dibs__fence last_of(const struct dibs__mem_bucket *bucket) {
  return dibs__fence_make(bucket->mandate.epoch, bucket->seq);
}

static dibs__status next_epoch(struct dibs__mem_bucket *bucket, const dibs__mandate *from) {
  if (bucket->served != DIBS__MEM_OWN || !dibs__mandate_equal(from, &bucket->mandate)) return DIBS_CONFLICT;
  return dibs__mem_next_epoch(bucket) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status install_mandate(struct dibs__mem_bucket *bucket, const dibs__mandate *what) {
  bool here = memcmp(what->incarnation.b, bucket->mandate.incarnation.b, sizeof what->incarnation.b) == 0;
  if (what->epoch > DIBS__EPOCH_MAX) return DIBS_INVALID;
  if (!here || what->epoch <= bucket->mandate.epoch) return DIBS_CONFLICT;
  *bucket = (struct dibs__mem_bucket){.mandate = *what, .served = DIBS__MEM_SERVED};
  return DIBS_OK;
}

static dibs__status raise_epoch(struct dibs__mem_bucket *bucket, dibs__fence above) {
  if (bucket->served != DIBS__MEM_OWN) return DIBS_CONFLICT;
  if (dibs__fence_epoch(above) > bucket->mandate.epoch) bucket->mandate.epoch = dibs__fence_epoch(above);
  return dibs__mem_next_epoch(bucket) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status dissolve_tier(struct dibs__mem_bucket *bucket, dibs__fence above) {
  struct dibs__mem_bucket own = *bucket;
  if (bucket->served == DIBS__MEM_OWN && !dibs__fence_below(last_of(bucket), above)) return DIBS_OK;
  own.served = DIBS__MEM_OWN;
  dibs__status status = raise_epoch(&own, above);
  if (status == DIBS_OK) *bucket = own;
  return status;
}

static dibs__status leave_bucket(struct dibs__mem_bucket *bucket, const dibs__mandate *what) {
  if (bucket->served == DIBS__MEM_VOID || !dibs__mandate_equal(what, &bucket->mandate)) return DIBS_CONFLICT;
  bucket->served = DIBS__MEM_LEFT;
  return DIBS_OK;
}

static dibs__status open_to_all(struct dibs__mem_bucket *bucket, const dibs__mandate *what) {
  bool fits = bucket->served == DIBS__MEM_OWN || bucket->served == DIBS__MEM_SERVED;
  if (!fits || !dibs__mandate_equal(what, &bucket->mandate)) return DIBS_CONFLICT;
  bucket->served = DIBS__MEM_OWN;
  return DIBS_OK;
}

static void run_anchor(struct dibs__memory *m, struct dibs__anchor_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_OPEN || op->above.v > DIBS__FENCE_MAX) {
    op->op.status = DIBS_INVALID;
    return;
  }
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  op->op.status = DIBS_OK;
  if (op->op.verb == DIBS__ANCHOR_NEXT) op->op.status = next_epoch(bucket, &op->op.mandate);
  if (op->op.verb == DIBS__ANCHOR_INSTALL) op->op.status = install_mandate(bucket, &op->op.mandate);
  if (op->op.verb == DIBS__ANCHOR_ALONE) op->op.status = dissolve_tier(bucket, op->above);
  if (op->op.verb == DIBS__ANCHOR_RAISE) op->op.status = raise_epoch(bucket, op->above);
  if (op->op.verb == DIBS__ANCHOR_LEAVE) op->op.status = leave_bucket(bucket, &op->op.mandate);
  if (op->op.verb == DIBS__ANCHOR_OPEN) op->op.status = open_to_all(bucket, &op->op.mandate);
  op->current = bucket->mandate;
  op->served = bucket->served != DIBS__MEM_OWN;
  op->left = bucket->served == DIBS__MEM_LEFT;
  op->last = op->served && !op->left ? DIBS__FENCE_NONE : last_of(bucket);
  op->used = bucket->served == DIBS__MEM_OWN && bucket->seq > 0;
}

/* MOVED did nothing: if an epoch may be used up, what time did to the name meanwhile is undone as well. */
static void run_lease(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__lease_op *op,
                      int64_t now) {
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
    run_lease(m, from, (struct dibs__lease_op *)op, now);
    break;
  case DIBS__FAM_ANCHOR:
    run_anchor(m, (struct dibs__anchor_op *)op);
    break;
  case DIBS__FAM_RECORD:
    dibs__mem_record(m, (struct dibs__record_op *)op);
    break;
  case DIBS__FAM_ONCE:
    dibs__mem_once(m, (struct dibs__once_op *)op, now);
    break;
  case DIBS__FAM_STOCK:
    dibs__mem_stock(m, (struct dibs__stock_op *)op, now);
    break;
  case DIBS__FAM_REPORT:
    dibs__mem_report(m, (struct dibs__report_op *)op, now);
    break;
  case DIBS__FAM_RUN:
    dibs__mem_run(m, (struct dibs__run_op *)op, now);
    break;
  case DIBS__FAM_COUNTER:
    dibs__mem_counter(m, (struct dibs__counter_op *)op, now);
    break;
  case DIBS__FAM_TASK:
    dibs__mem_task(m->tasks, (struct dibs__task_op *)op, now);
    if (op->status == DIBS_OK && wakes_workers(op)) post_all(m, DIBS__EV_TASKS);
    break;
  default:
    op->status = DIBS_UNSUPPORTED;
  }
}

/* A group runs at the position of its first element.  An anchor's epochs can't be undone, so none joins a group. */
static void run_group(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__op *const ops[],
                      size_t count, int64_t now) {
  struct dibs__mem_saved *saved = NULL;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  m->hush = true;
  for (size_t i = 0; i < count && !failed; i++) {
    if (ops[i]->group != group) continue;
    if (!dibs__family_of(ops[i])->joins_groups)
      ops[i]->status = DIBS_INVALID;
    else if (!dibs__mem_save(m, ops[i], &saved))
      ops[i]->status = DIBS_NO_MEMORY;
    else
      run_one(m, from, ops[i], now);
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  release_held_events(m, !failed);
  if (failed)
    dibs__mem_restore(m, &saved);
  else
    dibs__mem_forget_saved(&saved);
  for (size_t i = 0; i < count && failed; i++) {
    if (ops[i]->group != group || ops[i] == failed) continue;
    if (ops[i]->status == DIBS_OK) dibs__op_free_answer(ops[i]);
    ops[i]->status = DIBS_CONFLICT;
  }
}

static bool first_of_its_group(struct dibs__op *const ops[], size_t at) {
  for (size_t i = 0; i < at; i++)
    if (ops[i]->group == ops[at]->group) return false;
  return true;
}

static void explain_served(const struct dibs__memory *m, struct dibs__result *result) {
  dibs__set_message(result, "memory:%s is a tier; open it with all its tiers, as in --store FIRST,SECOND",
                    m->called ? m->called : "");
}

static dibs__status mem_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__result *result) {
  struct dibs__mem_open *open = dibs__mem_open_of(session->store);
  struct dibs__memory *m = open->memory;
  (void)by; /* this waits only for other callers' batches */
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__mutex_lock(&m->lock);
  int64_t now = mem_clock(m);
  for (size_t i = 0; i < count; i++) {
    if (!dibs__op_reads(ops[i])) result->commits = 1;
    if (!ops[i]->group)
      run_one(m, open, ops[i], now);
    else if (first_of_its_group(ops, i))
      run_group(m, open, ops + i, count - i, now);
    if (ops[i]->family == DIBS__FAM_LEASE && ops[i]->status == DIBS_DENIED) explain_served(m, result);
  }
  dibs__mutex_unlock(&m->lock);
  result->now = (dibs__when){now};
  return DIBS_OK;
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
                                dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  static const char *const none[] = {NULL};
  (void)inner, (void)count, (void)by;
  *store = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (*uri->hosts || uri->user) {
    dibs__set_message(result, "a memory store has no host: write memory: or memory:NAME, not \"%s\"", uri->shown);
    return DIBS_INVALID;
  }
  dibs__status status = dibs__uri_only(uri, NULL, none, result);
  if (status != DIBS_OK) return status;
  struct dibs__mem_open *open = calloc(1, sizeof *open);
  struct dibs__memory *m = NULL;
  if (open) m = *uri->path ? memory_named(uri->path) : memory_new("");
  if (!m) {
    free(open);
    dibs__set_message(result, "out of memory for %s", uri->shown);
    return DIBS_NO_MEMORY;
  }
  open->base.driver = &dibs__memory_driver;
  open->memory = m;
  open->as_tier = uri->as_tier;
  open->as_anchor = uri->as_anchor;
  dibs__mutex_lock(&m->lock);
  open->session = ++m->last_session;
  open->next = m->opens;
  m->opens = open;
  result->now = (dibs__when){mem_clock(m)};
  dibs__mutex_unlock(&m->lock);
  *store = &open->base;
  return DIBS_OK;
}

static void forget_old_breaks(name *n, int64_t now) {
  bool idle = !n->holders.count && !n->offered.count && !n->waiting.count && !n->asleep.count;
  if (!idle || !n->breaks) return;
  if (now - n->breaks[(n->break_count - 1) % DIBS__MEM_BREAKS].at <= DIBS__MEM_BREAK_KEEP_MS) return;
  free(n->breaks);
  n->breaks = NULL;
}

/* Removes waiters and offers of a session (0: of all that are gone). */
static void sweep(struct dibs__memory *m, uint64_t session) {
  int64_t now = mem_clock(m);
  struct dibs__map_node *next, *node = dibs__mem_next(&m->names, NULL);
  for (; node; node = next) {
    name *n = (name *)node;
    next = dibs__mem_next(&m->names, node);
    dibs__mem_sweep_name(m, n, session, now);
    if (!session) {
      dibs__mem_settle(m, n, now); /* also those that expired, which nobody has requested since */
      forget_old_breaks(n, now);
    }
    dibs__mem_name_drop_if_idle(m, n);
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
    forget_all(m);
    memory_free(m);
  }
  free(open);
}

/* The mandates of buckets, for this open. */
static dibs__mandate hint_mandate(const struct dibs__mem_open *open) {
  const struct dibs__mem_bucket *bucket = &open->memory->buckets[0];
  dibs__mandate mandate = bucket->mandate;
  bool ours = bucket->served == DIBS__MEM_OWN ? !open->as_tier || open->as_anchor : open->as_tier;
  if (!ours || bucket->served == DIBS__MEM_LEFT) mandate.epoch = 0;
  return mandate;
}

static dibs__status memory_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                   struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  struct session *s = calloc(1, sizeof *s);
  (void)by;
  *session = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (!s) {
    dibs__set_message(result, "out of memory for a session of the memory store");
    return DIBS_NO_MEMORY;
  }
  s->base.store = store;
  dibs__mutex_lock(&open->memory->lock);
  *identity = (struct dibs__identity){
      .mandate = hint_mandate(open),
      .caps = DIBS__CAP_BRIEF | DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
              DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_ONCE |
                  1u << DIBS__FAM_STOCK | 1u << DIBS__FAM_REPORT | 1u << DIBS__FAM_RUN | 1u << DIBS__FAM_TASK |
                  1u << DIBS__FAM_COUNTER,
      .max_batch = DIBS__MEM_BATCH,
      .max_sessions = DIBS__MEM_SESSIONS,
      .session = open->session};
  result->now = (dibs__when){mem_clock(open->memory)};
  dibs__mutex_unlock(&open->memory->lock);
  *session = &s->base;
  return DIBS_OK;
}

static void memory_disconnect(struct dibs__session *session) {
  free(session);
}

static dibs__status memory_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                struct dibs__result *result) {
  (void)by;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  return dibs__mem_list_at(dibs__mem_open_of(session->store)->memory, list, -1, result);
}

static void memory_tidy(struct dibs__dstore *store) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  dibs__mutex_lock(&m->lock);
  sweep(m, 0);
  dibs__mem_onces_forget(m, mem_clock(m));
  dibs__mem_runs_forget(m, mem_clock(m));
  dibs__mem_sources_forget(m, mem_clock(m));
  dibs__mem_rates_forget(m, mem_clock(m));
  dibs__mem_tasks_sweep(m->tasks, mem_clock(m));
  dibs__mutex_unlock(&m->lock);
}

/* ---- For tests ---- */

void dibs__memory_skew(struct dibs__dstore *store, int64_t ms) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  assert(ms >= 0);
  dibs__mutex_lock(&m->lock);
  m->origin += ms;
  post_all(m, DIBS__EV_RECHECK);
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
  dibs__incarnation incarnation;
  dibs__random(&incarnation, sizeof incarnation);
  dibs__mutex_lock(&m->lock);
  forget_claims(m);
  for (size_t i = 0; i < DIBS__BUCKETS; i++) {
    bool own = m->buckets[i].served == DIBS__MEM_OWN, left = !own || dibs__mem_next_epoch(&m->buckets[i]);
    assert(left);
    (void)left;
    if (!own) m->buckets[i].served = DIBS__MEM_VOID;
    m->buckets[i].mandate.incarnation = incarnation;
  }
  post_all(m, DIBS__EV_NEW_INCARNATION);
  dibs__mutex_unlock(&m->lock);
}

void dibs__memory_use_up(struct dibs__dstore *store, uint16_t bucket, uint32_t left) {
  struct dibs__memory *m = dibs__mem_open_of(store)->memory;
  assert(bucket < DIBS__BUCKETS);
  dibs__mutex_lock(&m->lock);
  m->buckets[bucket].seq = DIBS__SEQ_MAX - left;
  dibs__mutex_unlock(&m->lock);
}

/* ---- The driver ---- */

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
    .run = mem_run,
    .events = mem_events,
    .wake = mem_wake,
    .list = memory_list,
    .tidy = memory_tidy,
};
