/* SPDX-License-Identifier: MIT */
/* Opening and closing a store for the rooms above; the small things of core.h. */
#include "store/core_inside.h"

#include <stdlib.h>
#include <string.h>

const char *dibs__core_uri(const struct dibs__core *core) {
  return core->uri.shown;
}
uint32_t dibs__core_caps(const struct dibs__core *core) {
  return core->identity.caps;
}
uint32_t dibs__core_families(const struct dibs__core *core) {
  return core->identity.families;
}

static bool one_at_a_time(const struct dibs__core *core) {
  return !(core->identity.caps & DIBS__CAP_PARALLEL);
}

dibs__status dibs__core_connect(struct dibs__core *core, dibs__tick by, struct dibs__session **session,
                                struct dibs__said *said) {
  struct dibs__identity identity;
  if (one_at_a_time(core)) dibs__mutex_lock(&core->connecting);
  dibs__status status = core->store->driver->connect(core->store, by, session, &identity, said);
  if (one_at_a_time(core)) dibs__mutex_unlock(&core->connecting);
  return status;
}

void dibs__core_disconnect(struct dibs__core *core, struct dibs__session *session) {
  if (one_at_a_time(core)) dibs__mutex_lock(&core->connecting);
  core->store->driver->disconnect(session);
  if (one_at_a_time(core)) dibs__mutex_unlock(&core->connecting);
}

static void free_seats(struct dibs__core *core) {
  for (uint32_t s = 0; s < core->seat_count; s++) {
    dibs__seat_drop(core, &core->seats[s]);
    free(core->seats[s].ops);
  }
}

/* With room for a whole batch, so that carrying one never needs memory.  false: out of memory. */
static bool make_seats(struct dibs__core *core) {
  bool parallel = (core->identity.caps & DIBS__CAP_PARALLEL) && core->identity.max_sessions > 1;
  uint32_t room = core->identity.max_batch ? core->identity.max_batch : BATCH_DEFAULT;
  core->seat_count = 1;
  if (parallel) core->seat_count = core->identity.max_sessions < SEATS_MAX ? core->identity.max_sessions : SEATS_MAX;
  for (uint32_t s = 0; s < core->seat_count; s++) {
    struct seat *seat = &core->seats[s]; /* the first has the session that exists */
    seat->urgent_only = parallel && s == 1;
    seat->ordinary_only = parallel && s != 1;
    seat->room = room;
    seat->ops = calloc(room, sizeof(struct dibs__op *));
    if (!seat->ops) return false;
  }
  return true;
}

dibs__status dibs__core_open(const char *uri, const char *module_path, const struct dibs__core_hooks *hooks,
                             struct dibs__core **out, struct dibs__said *said) {
  *out = NULL;
  struct dibs__core *core = calloc(1, sizeof *core);
  if (!core) return DIBS_NO_MEMORY;
  dibs__mutex_init(&core->connecting);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  dibs__status status = dibs__uri_parse(uri, &core->uri, said);
  if (status != DIBS_OK) goto no_uri;
  core->uri.module_path = module_path;
  core->uri.owner = hooks->owner;
  status = dibs__chain_open(&core->uri, module_path, by, &core->chain, said);
  if (status != DIBS_OK) goto no_chain;
  core->store = core->chain.stores[0];
  status = core->store->driver->connect(core->store, by, &core->seats[0].session, &core->identity, said);
  if (status != DIBS_OK) goto no_session;
  if (!make_seats(core)) {
    status = DIBS_NO_MEMORY;
    dibs__say(said, "no memory for the sessions of %s", core->uri.shown);
    goto no_seats;
  }
  core->hooks = *hooks;
  dibs__mutex_init(&core->lock);
  dibs__mutex_init(&core->list_lock);
  for (size_t b = 0; b < DIBS__BUCKETS; b++) core->mandates[b] = core->identity.mandate;
  *out = core;
  return DIBS_OK;

no_seats:
  free_seats(core);
no_session:
  dibs__chain_close(&core->chain);
no_chain:
  dibs__uri_free(&core->uri);
no_uri:
  free(core);
  return status;
}

void dibs__core_close(struct dibs__core *core) {
  if (core->direct) { /* all but the session is another core's */
    core->store->driver->disconnect(core->direct);
  } else {
    dibs__core_tidy(core);
    if (core->list_session) core->store->driver->disconnect(core->list_session);
    free_seats(core);
    dibs__chain_close(&core->chain);
    dibs__uri_free(&core->uri);
  }
  dibs__mutex_destroy(&core->lock);
  dibs__mutex_destroy(&core->list_lock);
  dibs__mutex_destroy(&core->connecting);
  free(core);
}

void dibs__core_tidy(struct dibs__core *core) {
  if (core->store->driver->tidy) core->store->driver->tidy(core->store);
}

void dibs__core_count(struct dibs__core *core, struct dibs__core_counts *counts) {
  dibs__mutex_lock(&core->lock);
  *counts = core->counts;
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_trouble(struct dibs__core *core, char *text, size_t size) {
  dibs__mutex_lock(&core->lock);
  size_t length = strnlen(core->trouble, sizeof core->trouble - 1);
  if (length >= size) length = size - 1;
  memcpy(text, core->trouble, length);
  text[length] = '\0';
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_head(struct dibs__core *core, struct dibs__op *op, uint16_t family, uint16_t verb, uint16_t flags,
                     uint16_t bucket, void (*done)(struct dibs__op *)) {
  (void)core;
  op->family = family;
  op->verb = verb;
  op->flags = flags;
  op->bucket = bucket;
  op->mandate = (dibs__mandate){0}; /* filled from what is known when it is handed in */
  op->by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  op->done = done;
  op->next = NULL;
}

dibs__status dibs__core_list(struct dibs__core *core, const struct dibs__list *list, struct dibs__said *said) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  dibs__status status = DIBS_OK;
  dibs__mutex_lock(&core->list_lock);
  if (!core->list_session) status = dibs__core_connect(core, by, &core->list_session, said);
  if (status == DIBS_OK) {
    status = core->store->driver->list(core->list_session, list, by, said);
    if (said->dead) {
      dibs__core_disconnect(core, core->list_session);
      core->list_session = NULL;
    }
  }
  dibs__mutex_unlock(&core->list_lock);
  return status;
}
