/* SPDX-License-Identifier: MIT */
/* Opening and closing; words for people. */
#include "lease/room.h"
#include "store/locate.h"

#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEE_OUT_MS = 20 }; /* between two looks for who is still inside while closing */

dibs_status dibs__fail(dibs_error *error, dibs_status status, const char *format, ...) {
  if (!error) return status;
  va_list args;
  va_start(args, format);
  error->status = status;
  vsnprintf(error->text, sizeof error->text, format, args);
  va_end(args);
  return status;
}

dibs_status dibs__fine(dibs_error *error) {
  if (error) {
    error->status = DIBS_OK;
    error->text[0] = '\0';
  }
  return DIBS_OK;
}

dibs_status dibs__explain(dibs_store *store, dibs_status status, const char *what, const char *name,
                          dibs_error *error) {
  char trouble[256] = "";
  switch (status) {
  case DIBS_HELD:
    return dibs__fail(error, status, "\"%s\" is held by somebody else; wait for it, or see who with `dibs show`", name);
  case DIBS_TIMEOUT:
    return dibs__fail(error, status, "\"%s\" was not free within the wait; see who holds it with `dibs show`", name);
  case DIBS_LOST:
    return dibs__fail(error, status,
                      "the lease of \"%s\" is lost: it ended, was broken or was released before; "
                      "stop the work that it guarded",
                      name);
  case DIBS_INVALID:
    return dibs__fail(error, status, "\"%s\" is held with another number of slots; ask with that number", name);
  case DIBS_CANCELLED:
    return dibs__fail(error, status, "%s \"%s\" was cancelled", what, name);
  default:
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    return dibs__fail(error, status, "%s \"%s\" at %s: %s%s%s", what, name, store->shown, dibs_status_text(status),
                      trouble[0] ? ": " : "", trouble);
  }
}

dibs_status dibs__store_usable(dibs_store *store, const char *call, dibs_error *error) {
  if (!store) return dibs__fail(error, DIBS_INVALID, "%s: the store is NULL", call);
  if (store->generation != dibs__process_generation())
    return dibs__fail(error, DIBS_INVALID,
                      "%s: the store was opened by another process; after fork() the child must open its own", call);
  if (store->closing || (store->outer && store->outer->closing))
    return dibs__fail(error, DIBS_INVALID, "%s: the store is closed", call);
  return DIBS_OK;
}

dibs_status dibs__store_leases(dibs_store *store, const char *name, dibs_error *error) {
  if (!store->outer) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID,
                    "\"%s\": inside a transaction of yours there are no leases; ask the store itself", name);
}

dibs_status dibs__enter(dibs_store *store, const char *call, dibs_error *error) {
  dibs_status status = dibs__store_usable(store, call, error);
  if (status != DIBS_OK) return status;
  atomic_fetch_add(&store->callers, 1);
  if (!store->closing) return DIBS_OK; /* dibs_close counts callers after it said so */
  dibs__exit(store);
  return dibs__fail(error, DIBS_INVALID, "%s: the store is closed", call);
}

void dibs__exit(dibs_store *store) {
  bool closing = store->closing; /* if it begins right now, dibs_close looks again by itself */
  if (atomic_fetch_sub(&store->callers, 1) == 1 && closing) dibs__word_wake(&store->callers, 1, false);
}

void dibs__store_drop(dibs_store *store) {
  if (atomic_fetch_sub(&store->refs, 1) != 1) return;
  while (store->spares) {
    struct grant *next = store->spares->spare_next;
    free(store->spares);
    store->spares = next;
  }
  dibs__heap_free(&store->waits);
  dibs__heap_free(&store->rechecks);
  dibs__heap_free(&store->renewals);
  dibs__heap_free(&store->losses);
  dibs__map_free(&store->grants);
  dibs__map_free(&store->cohorts);
  dibs__mutex_destroy(&store->lock);
  dibs__bell_close(store->bell);
  free(store->owner);
  free(store->shown);
  dibs_store *outer = store->outer;
  free(store);
  if (outer) dibs__store_drop(outer);
}

static char *default_owner(void) {
  char host[65] = "?", text[DIBS_OWNER_MAX + 1];
  const char *user = secure_getenv("USER");
  if (gethostname(host, sizeof host - 1) != 0) memcpy(host, "?", 2);
  if (!user || !*user) user = geteuid() == 0 ? "root" : "?";
  snprintf(text, sizeof text, "%.40s@%.60s:%u", user, host, dibs__process_id());
  return strdup(text);
}

static const struct dibs__core_hooks hooks = {
    .event = dibs__room_event, .timers = dibs__room_timers, .handed = dibs__room_handed, .untidy = dibs__room_untidy};

static dibs_status prepare(dibs_store *store, const dibs_store_options *o, dibs_error *error) {
  store->refs = 1;
  store->flags = o->flags;
  store->generation = dibs__process_generation();
  store->bell = -1;
  store->owner = o->owner ? strdup(o->owner) : default_owner();
  /* Both, so that both can be freed. */
  bool maps = dibs__map_init(&store->grants);
  if (!dibs__map_init(&store->cohorts)) maps = false;
  dibs__mutex_init(&store->lock);
  if (o->flags & DIBS_STORE_LOOP) store->bell = dibs__bell_open();
  if (!store->owner || !maps) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  if ((o->flags & DIBS_STORE_LOOP) && store->bell < 0)
    return dibs__fail(error, DIBS_NO_MEMORY, "no descriptor left for the store's bell");
  return DIBS_OK;
}

dibs_status dibs_open(const char *uri, const dibs_store_options *given, dibs_store **out, dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_open: no place for the store was given");
  *out = NULL;
  dibs_store_options options = {.size = sizeof options};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_store_options)", given->size);
  if (given) memcpy(&options, given, given->size);
  if (options.flags & ~(uint32_t)DIBS_STORE_LOOP)
    return dibs__fail(error, DIBS_INVALID, "unknown flags in the options");
  if (options.owner && strlen(options.owner) > DIBS_OWNER_MAX)
    return dibs__fail(error, DIBS_INVALID, "the owner must be at most %d bytes", DIBS_OWNER_MAX);
  if (!uri || !*uri) uri = secure_getenv("DIBS_STORE");
  if (!uri || !*uri) uri = "sqlite:";
  char *place = NULL;
  dibs_store *store = calloc(1, sizeof *store);
  if (!store) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  struct dibs__said said = {0};
  struct dibs__core_hooks mine = hooks;
  mine.room = store;
  dibs_status status = prepare(store, &options, error);
  if (status != DIBS_OK) goto fail;
  mine.owner = store->owner;
  status = (dibs_status)dibs__locate(uri, &place, &said);
  bool located = status == DIBS_OK;
  if (located) status = (dibs_status)dibs__core_open(place, options.module_path, &mine, &store->core, &said);
  dibs__locate_free(place);
  if (status != DIBS_OK) {
    /* Who named a section never saw the URI. */
    bool named = status == DIBS_INVALID && located && dibs__locate_is_file(uri);
    dibs__fail(error, status, "%s%s%s", named ? uri : "", named ? ": " : "",
               said.text[0] ? said.text : dibs_status_text(status));
    goto fail;
  }
  store->shown = strdup(dibs__core_uri(store->core));
  if (!store->shown) {
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
    dibs__core_close(store->core);
    goto fail;
  }
  store->cohorts_allowed = (dibs__core_caps(store->core) & DIBS__CAP_BLOCKS) != 0;
  *out = store;
  return dibs__fine(error);

fail:
  dibs__store_drop(store);
  return status;
}

dibs_status dibs__store_inside(dibs_store *outer, struct dibs__core *core, dibs_store **out, dibs_error *error) {
  dibs_store *store = calloc(1, sizeof *store);
  if (!store) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  dibs_status status = prepare(store, &(dibs_store_options){.owner = outer->owner}, error);
  store->shown = strdup(outer->shown);
  if (status == DIBS_OK && !store->shown) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  if (status != DIBS_OK) {
    dibs__store_drop(store);
    return status;
  }
  store->core = core;
  store->outer = outer;
  atomic_fetch_add(&outer->refs, 1);
  *out = store;
  return dibs__fine(error);
}

/* Ends every wait, releases what is held: what is left flying is waited for, some seconds at most by its deadline. */
static void end_all(dibs_store *store) {
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  for (dibs_lease *lease = store->all, *next; lease; lease = next) {
    next = lease->all_next; /* stays: dropping others' references never frees the lease after this one */
    dibs__lease_hold(lease);
    if (next) dibs__lease_hold(next);
    if (atomic_load(&lease->phase) < LEASE_HELD) dibs__leave_locked(lease, DIBS_CANCELLED, &after);
    if (next) dibs__lease_drop_locked(next);
    dibs__lease_drop_locked(lease);
  }
  for (dibs_lease *lease = store->all; lease; lease = lease->all_next)
    if (atomic_load(&lease->phase) == LEASE_HELD && lease->grant) dibs__release_locked(lease, &after);
  store->closing = true;
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  dibs__mutex_lock(&store->lock);
  while (store->flying > 0) {
    uint32_t seen = atomic_load(&store->landed);
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&store->landed, seen, dibs__tick_add_ms(dibs__tick_now(), 100), false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

/* Who was blocked has been told, and goes; nobody new comes in. */
static void see_callers_out(dibs_store *store) {
  for (uint32_t inside; (inside = atomic_load(&store->callers)) > 0;)
    dibs__word_wait(&store->callers, inside, dibs__tick_add_ms(dibs__tick_now(), SEE_OUT_MS), false);
}

/* What never came to be asked of the store (adopted, lost): its grants go, so that nothing points at the core. */
static void end_grants(dibs_store *store) {
  dibs__mutex_lock(&store->lock);
  for (dibs_lease *lease = store->all, *next; lease; lease = next) {
    next = lease->all_next;
    if (next) dibs__lease_hold(next);
    if (lease->grant) dibs__grant_end_locked(lease->grant);
    if (next) dibs__lease_drop_locked(next);
  }
  dibs__mutex_unlock(&store->lock);
}

void dibs_close(dibs_store *store) {
  if (!store) return;
  if (store->generation != dibs__process_generation()) return; /* the parent's: nothing here is ours to end */
  end_all(store);
  see_callers_out(store);
  dibs__watch_stop(store);
  if (!store->outer) dibs__core_stop(store->core);
  end_grants(store);
  dibs__dispatch_stop(store);
  dibs__core_close(store->core);
  store->core = NULL;
  dibs__store_drop(store);
}

const char *dibs_store_uri(const dibs_store *store) {
  return store ? store->shown : "";
}
int dibs_fd(dibs_store *store) {
  return store ? store->bell : -1;
}

void dibs_store_stats(dibs_store *store, dibs_stats *stats) {
  size_t size = stats ? stats->size : 0;
  if (size < sizeof(size_t) || dibs__enter(store, "dibs_store_stats", NULL) != DIBS_OK) return;
  struct dibs__core_counts counts;
  dibs__core_count(store->core, &counts);
  dibs__mutex_lock(&store->lock);
  dibs_stats all = {.size = size,
                    .batches = counts.batches,
                    .operations = counts.operations,
                    .transactions = counts.transactions,
                    .granted = store->granted,
                    .handed_off = store->handed_off,
                    .lost = store->lost,
                    .renewed = store->renewed,
                    .waiting = store->waiting,
                    .held = store->held,
                    .busy = store->busy,
                    .timeouts = store->timeouts,
                    .failed = store->failed,
                    .stale = store->stale};
  dibs__mutex_unlock(&store->lock);
  memcpy(stats, &all, size < sizeof all ? size : sizeof all);
  dibs__exit(store);
}
