/* SPDX-License-Identifier: MIT */
/*
 * From the fast store to the database.  One process of the fleet does it for a partition at a time: it holds the lease
 * counter/SPACE#PART, and each write carries that lease's fence.
 *
 *   seal    the sums are renamed, so that nothing is added to them any more; sums that an earlier flusher has sealed
 *           come first.  They have a source and a number
 *   apply   one transaction of the database adds them all in the order of their keys, and notes source and number in
 *           the ledger.  Applied before: REPLAY, and nothing changes.  The fence is too old: STALE, and nothing changes
 *   drop    the sealed sums are removed, if they are still those of this source and number; what the database refused
 *           is put aside
 *
 * A flusher that dies at any step leaves the sums sealed, and the next one begins with them.  A flusher that was
 * paused finds its number in the ledger, or another number in the fast store.
 */
#include "base/sha256.h"
#include "counter/counter_impl.h"
#include "dibs.h"
#include "handle/request.h"

#include <stdio.h>
#include <string.h>

enum { SEND_MS = 10000, NAME_MAX = 64, NO_LEASE = -1 };

typedef struct dibs__counters counters_t;
typedef struct dibs__count_group group_t;

/* A partition that is being written. */
struct flush {
  group_t *group;
  uint32_t part;
  dibs__fence fence;
  dibs__id guard;
  dibs__tick by;
  char text[DIBS__COUNT_TEXT]; /* why it did not end */
};

/* It never changes: the fence of the ledger is remembered under it. */
static dibs__id guard_of(const char *name) {
  struct dibs__sha256 hash;
  char hex[65];
  dibs__id guard;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, "guard ", strlen("guard "));
  dibs__sha256_add(&hash, name, strlen(name));
  dibs__sha256_end(&hash, hex);
  memcpy(guard.b, hex, sizeof guard.b);
  return guard;
}

static struct dibs__request *request_of(const struct flush *f, size_t more) {
  struct dibs__request *request = dibs__count_shared_request(f->group, more);
  if (request) request->shared.part = f->part;
  return request;
}

static void set_text(struct flush *f, dibs_status status, const char *what, const char *why) {
  char trouble[256] = "";
  if (!why[0]) dibs__core_trouble(f->group->counters->store->core, trouble, sizeof trouble);
  const char *reason = why[0] ? why : trouble[0] ? trouble : dibs_status_text(status);
  snprintf(f->text, sizeof f->text, "%s: %s", what, reason);
}

/* ---- Steps ---- */

static dibs_status seal(struct flush *f, struct dibs__request **sealed) {
  *sealed = request_of(f, 0);
  if (!*sealed) return DIBS_NO_MEMORY;
  dibs_status status = dibs__request_carry(*sealed, DIBS__SHARED_SEAL, f->by);
  if (status == DIBS_OK) return status;
  if (status != DIBS_NOT_FOUND) set_text(f, status, "sums can't be read from the fast store", "");
  dibs__request_drop(*sealed);
  *sealed = NULL;
  return status;
}

/* One batch for the database, with room for the keys of these sums. */
static struct dibs__request *make_batch(const struct flush *f, const struct dibs__shared_op *sums) {
  size_t bytes = sums->got_count * sizeof(struct dibs__counter_item);
  for (uint32_t i = 0; i < sums->got_count; i++) bytes += (size_t)sums->got[i].key.len + 1;
  struct dibs__request *request =
      dibs__request_make(f->group->counters->store, DIBS__FAM_COUNTER, f->group->table, bytes);
  if (!request) return NULL;
  struct dibs__counter_op *op = &request->counter;
  op->table = request->table;
  op->source = sums->source;
  op->sequence = sums->sequence;
  op->guard = f->guard;
  op->fence = f->fence;
  op->count = sums->got_count;
  op->items = dibs__request_array(request, op->count * sizeof *op->items);
  for (uint32_t i = 0; i < op->count; i++)
    op->items[i] = (struct dibs__counter_item){
        .key = dibs__request_keep(request, sums->got[i].key.p, sums->got[i].key.len), .delta = sums->got[i].sum};
  memcpy(&request->op.lane, sums->source.b, sizeof request->op.lane);
  if (request->op.lane == 0) request->op.lane = 1;
  return request;
}

/* OK: the status of each sum is that of its addition. */
static dibs_status apply(struct flush *f, struct dibs__shared_op *sums) {
  if (sums->age_ms > DIBS__SHARED_OLDEST_MS) {
    for (uint32_t i = 0; i < sums->got_count; i++) sums->got[i].status = DIBS_UNKNOWN;
    return DIBS_OK;
  }
  if (sums->got_count == 0) return DIBS_OK; /* none of its additions fitted */
  struct dibs__request *request = make_batch(f, sums);
  if (!request) return DIBS_NO_MEMORY;
  dibs_status status = dibs__request_carry(request, DIBS__COUNTER_ADD, f->by);
  bool applied = status == DIBS_OK || status == DIBS_REPLAY;
  for (uint32_t i = 0; i < sums->got_count && applied; i++) sums->got[i].status = request->counter.items[i].status;
  if (!applied) {
    bool answered = dibs__request_is_answered(request);
    const char *why = status == DIBS_STALE ? "another process writes this partition now" : "";
    set_text(f, status, "sums can't be written to the database", answered && !why[0] ? request->counter.why : why);
  }
  dibs__request_drop(request);
  return applied ? DIBS_OK : status;
}

static dibs_status drop(struct flush *f, const struct dibs__shared_op *sums) {
  size_t bytes = 0, refused = 0;
  for (uint32_t i = 0; i < sums->got_count; i++) {
    if (sums->got[i].status == DIBS_OK) continue;
    bytes += sizeof(struct dibs__counter_item) + sums->got[i].key.len + 1;
    refused++;
  }
  struct dibs__request *request = request_of(f, bytes);
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__shared_op *op = &request->shared;
  op->source = sums->source;
  op->sequence = sums->sequence;
  op->items = refused ? dibs__request_array(request, refused * sizeof *op->items) : NULL;
  for (uint32_t i = 0; i < sums->got_count; i++) {
    const struct dibs__shared_row *row = &sums->got[i];
    if (row->status == DIBS_OK) continue;
    op->items[op->count++] = (struct dibs__counter_item){
        .key = dibs__request_keep(request, row->key.p, row->key.len), .delta = row->sum, .status = row->status};
  }
  dibs_status status = dibs__request_carry(request, DIBS__SHARED_DROP, f->by);
  dibs__request_drop(request);
  if (status == DIBS_NOT_FOUND) status = DIBS_OK; /* an attempt whose answer was lost, or another flusher, did it */
  if (status != DIBS_OK) set_text(f, status, "written sums can't be removed from the fast store", "");
  return status;
}

/* The first `batches` ones: everything that was there when they were counted.  Sums that are added meanwhile
 * wait for the next flush, so that this ends. */
static dibs_status write_sums(struct flush *f, uint32_t batches) {
  dibs_status status = DIBS_OK;
  for (uint32_t i = 0; i < batches && status == DIBS_OK; i++) {
    struct dibs__request *sealed;
    status = seal(f, &sealed);
    if (status == DIBS_NOT_FOUND) return DIBS_OK;
    if (status == DIBS_OK) status = apply(f, &sealed->shared);
    if (status == DIBS_OK) status = drop(f, &sealed->shared);
    dibs__request_drop(sealed);
  }
  return status;
}

/* ---- A partition ---- */

/* wait_ms 0: HELD if another process writes it. */
static dibs_status flush_part(group_t *group, uint32_t part, uint32_t batches, int64_t wait_ms, dibs__tick by,
                              char text[DIBS__COUNT_TEXT]) {
  char name[NAME_MAX];
  dibs_error error = {.status = DIBS_OK};
  dibs_lease *lease = NULL;
  snprintf(name, sizeof name, "counter/%s#%u", group->space, part);
  const dibs_lease_options options = {.size = sizeof options, .ttl_ms = DIBS__COUNT_SHARED_TTL_MS, .wait_ms = wait_ms};
  dibs_status status = dibs_acquire(group->counters->store, name, &options, &lease, &error);
  if (status != DIBS_OK) {
    snprintf(text, DIBS__COUNT_TEXT, "the lease \"%s\": %.300s", name, error.text);
    return status == DIBS_TIMEOUT || status == DIBS_CANCELLED ? DIBS_UNAVAILABLE : status;
  }
  struct flush f = {
      .group = group, .part = part, .fence = {dibs_lease_fence(lease).value}, .guard = guard_of(name), .by = by};
  status = write_sums(&f, batches);
  if (status != DIBS_OK) memcpy(text, f.text, DIBS__COUNT_TEXT);
  (void)dibs_release(lease, NULL);
  dibs_lease_free(lease);
  return status == DIBS_STALE ? DIBS_UNAVAILABLE : status;
}

/* ---- On request ---- */

/* What the database has refused waits for somebody. */
static dibs_status refused_status(group_t *group, const struct dibs__shared_part parts[DIBS__SHARED_PARTS],
                                  dibs_error *error) {
  uint64_t refused = 0;
  for (uint32_t part = 0; part < DIBS__SHARED_PARTS; part++) refused += parts[part].refused;
  if (refused == 0) return dibs__fine(error);
  return dibs__fail(error, DIBS_NOT_FOUND,
                    "%llu shared sums were refused by the database at %s: see dibs_counter_refused_shared",
                    (unsigned long long)refused, group->counters->store->shown);
}

dibs_status dibs__count_flush_shared(group_t *group, dibs__tick by, dibs_error *error) {
  struct dibs__shared_part parts[DIBS__SHARED_PARTS] = {{.age_ms = -1}};
  char text[DIBS__COUNT_TEXT] = "";
  dibs_store *store = group->counters->store;
  dibs_status status = DIBS_UNAVAILABLE;
  for (uint32_t nth = 1; status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_HELD; nth++) {
    status = dibs__count_shared_look(group, by, parts);
    for (uint32_t part = 0; part < DIBS__SHARED_PARTS && status == DIBS_OK; part++)
      if (parts[part].age_ms >= 0)
        status = flush_part(group, part, parts[part].batches, dibs__tick_left_ms(dibs__tick_now(), by), by, text);
    if (status == DIBS_OK) status = dibs__count_shared_look(group, by, parts);
    if (status == DIBS_OK) return refused_status(group, parts, error);
    if (store->closing || !dibs__tick_before(dibs__tick_now(), by)) break;
    dibs__request_pause(nth, by);
  }
  if (!text[0]) dibs__core_trouble(store->core, text, sizeof text);
  return dibs__fail(error, status, "shared sums are not all written to %s: %s", store->shown,
                    text[0] ? text : dibs_status_text(status));
}

/* ---- The thread ---- */

static void add_lag(struct dibs__counter_lag *lag, const struct dibs__shared_part parts[DIBS__SHARED_PARTS]) {
  for (uint32_t part = 0; part < DIBS__SHARED_PARTS; part++) {
    if (parts[part].age_ms > lag->lag_ms) lag->lag_ms = parts[part].age_ms;
    lag->waiting += parts[part].batches;
    lag->refused += parts[part].refused;
  }
}

/* Those that are old enough.  Processes begin at different partitions, so that they share the work.  false: the fast
 * store did not answer. */
static bool flush_group(group_t *group, const counters_t *c, struct dibs__counter_lag *lag) {
  struct dibs__shared_part parts[DIBS__SHARED_PARTS];
  char text[DIBS__COUNT_TEXT];
  uint32_t from;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SEND_MS);
  dibs__random(&from, sizeof from);
  if (dibs__count_shared_look(group, by, parts) != DIBS_OK) return false;
  add_lag(lag, parts);
  for (uint32_t i = 0; i < DIBS__SHARED_PARTS && !c->store->closing; i++) {
    uint32_t part = (from + i) % DIBS__SHARED_PARTS;
    if (parts[part].age_ms < DIBS__COUNT_SHARED_AGE_MS) continue;
    /* Later, or by another process: the sums are safe where they are. */
    (void)flush_part(group, part, parts[part].batches, 0, dibs__tick_add_ms(dibs__tick_now(), SEND_MS), text);
  }
  return true;
}

static void look_and_flush(counters_t *c) {
  struct dibs__counter_lag lag = {.lag_ms = 0};
  dibs__tick began = dibs__tick_now();
  bool all = true;
  for (group_t *g = atomic_load(&c->groups); g && !c->store->closing; g = g->next)
    if (atomic_load(&g->is_shared)) all = flush_group(g, c, &lag) && all;
  if (!all) return;
  dibs__mutex_lock(&c->lock);
  c->lag = lag;
  c->lag_at = began;
  dibs__mutex_unlock(&c->lock);
}

static void run_flusher(void *arg) {
  counters_t *c = arg;
  while (!c->store->closing) {
    uint32_t seen = atomic_load(&c->shared_wake);
    if (c->store->closing) return;
    (void)dibs__word_wait(&c->shared_wake, seen, dibs__tick_add_ms(dibs__tick_now(), DIBS__COUNT_SHARED_LOOK_MS),
                          false);
    look_and_flush(c);
  }
}

bool dibs__count_flusher_start(group_t *group) {
  counters_t *c = group->counters;
  if (atomic_load(&group->is_shared)) return true;
  dibs__mutex_lock(&c->lock);
  if (!c->shared_flusher && !c->stopping) c->shared_flusher = dibs__thread_start("dibs-flusher", run_flusher, c);
  bool runs = c->shared_flusher != NULL;
  dibs__mutex_unlock(&c->lock);
  if (runs) atomic_store(&group->is_shared, true);
  return runs;
}

bool dibs__counter_serve(dibs_store *store) {
  dibs_error error;
  if (dibs__count_check_family(store, &error) != DIBS_OK || !dibs__count_has_shared(store)) return false;
  counters_t *c = dibs__counters_of(store);
  group_t *g = c ? dibs__count_group_of(c, NULL) : NULL;
  return g && dibs__count_flusher_start(g);
}

/* What waits grows older until the next look. */
bool dibs__counter_lag(dibs_store *store, struct dibs__counter_lag *lag) {
  counters_t *c = (counters_t *)atomic_load(&store->counters);
  *lag = (struct dibs__counter_lag){.lag_ms = 0};
  if (!c) return false;
  dibs__mutex_lock(&c->lock);
  bool looked = c->lag_at.ns != 0;
  if (looked) {
    *lag = c->lag;
    lag->age_ms = dibs__tick_left_ms(c->lag_at, dibs__tick_now());
    if (lag->waiting) lag->lag_ms += lag->age_ms;
  }
  dibs__mutex_unlock(&c->lock);
  return looked;
}

void dibs__count_flusher_stop(counters_t *c) {
  dibs__mutex_lock(&c->lock);
  c->stopping = true;
  dibs__thread *flusher = c->shared_flusher;
  dibs__mutex_unlock(&c->lock);
  atomic_fetch_add(&c->shared_wake, 1);
  dibs__word_wake(&c->shared_wake, 1, false);
  if (flusher) dibs__thread_join(flusher);
}
