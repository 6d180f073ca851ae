/* SPDX-License-Identifier: MIT */
/*
 * redlock://: exclusive leases, granted by a majority of several Redis.  There is no queue and there are no events: who
 * waits asks again after a while drawn by chance.
 */
#include "drivers/redlock_parts.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>

extern const char dibs__redis_lua_redlock_take[], dibs__redis_lua_redlock_seal[], dibs__redis_lua_redlock_renew[],
    dibs__redis_lua_redlock_heal[], dibs__redis_lua_redlock_drop[], dibs__redis_lua_redlock_break[],
    dibs__redis_lua_redlock_show[], dibs__redis_lua_redlock_mark[];

enum { SESSIONS = 8 };

static void redlock_close(struct dibs__dstore *base) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  dibs__redis_place_free(store->place);
  if (store->bell >= 0) dibs__bell_close(store->bell);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

static void name_scripts(struct dibs__redlock *store) {
  const char *const texts[DIBS__REDLOCK_SCRIPTS] = {
      [DIBS__REDLOCK_TAKE] = dibs__redis_lua_redlock_take,   [DIBS__REDLOCK_SEAL] = dibs__redis_lua_redlock_seal,
      [DIBS__REDLOCK_RENEW] = dibs__redis_lua_redlock_renew, [DIBS__REDLOCK_HEAL] = dibs__redis_lua_redlock_heal,
      [DIBS__REDLOCK_DROP] = dibs__redis_lua_redlock_drop,   [DIBS__REDLOCK_BREAK] = dibs__redis_lua_redlock_break,
      [DIBS__REDLOCK_SHOW] = dibs__redis_lua_redlock_show,   [DIBS__REDLOCK_MARK] = dibs__redis_lua_redlock_mark};
  for (size_t i = 0; i < DIBS__REDLOCK_SCRIPTS; i++) {
    store->scripts[i].text = texts[i];
    dibs__redis_script_name(&store->scripts[i]);
  }
}

static dibs__status redlock_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                                 dibs__tick by, struct dibs__dstore **out, struct dibs__said *said) {
  (void)inner;
  (void)count;
  (void)by;
  *out = NULL;
  struct dibs__redlock *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  store->base.driver = &dibs__redlock_driver;
  name_scripts(store);
  while (store->session == 0) dibs__random(&store->session, sizeof store->session);
  store->bell = dibs__bell_open();
  dibs__status status = dibs__redlock_place(uri, store, said);
  if (status == DIBS_OK && store->bell < 0) {
    status = DIBS_UNAVAILABLE;
    dibs__say(said, "no descriptor left for the bell of %s", store->shown);
  }
  if (status == DIBS_OK)
    *out = &store->base;
  else
    redlock_close(&store->base);
  return status;
}

static void redlock_disconnect(struct dibs__session *base) {
  struct dibs__redlock_session *s = (struct dibs__redlock_session *)base;
  for (size_t i = 0; i < s->store->count; i++) dibs__redlock_unlink(s, i);
  dibs__redlock_doing_free(s->doing);
  free(s);
}

static void identify(const struct dibs__redlock *store, struct dibs__identity *identity) {
  *identity = (struct dibs__identity){.mandate = store->mandate,
                                      .caps = DIBS__CAP_VOLATILE | DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS,
                                      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR,
                                      .schema = 1,
                                      .max_batch = DIBS__REDLOCK_BATCH,
                                      .max_sessions = SESSIONS,
                                      .session = store->session};
}

/* A majority at least. */
static dibs__status reach(struct dibs__redlock_session *s, dibs__tick by, struct dibs__said *said) {
  const struct dibs__redlock *store = s->store;
  size_t linked = dibs__redlock_links(s, by);
  if (s->twin != s->twin_of) {
    dibs__say(said, "%.80s:%u and %.80s:%u are the same server: it would have two votes",
              store->place->hosts[s->twin].host, (unsigned)store->place->hosts[s->twin].port,
              store->place->hosts[s->twin_of].host, (unsigned)store->place->hosts[s->twin_of].port);
    return DIBS_INVALID;
  }
  if (linked >= store->majority) return DIBS_OK;
  int64_t waits[DIBS__REDLOCK_NODES] = {0};
  uint32_t there = 0;
  for (size_t i = 0; i < store->count; i++) there |= (uint32_t)(s->links[i] != NULL) << i;
  dibs__redlock_say_no_quorum(s, there, waits, said);
  return DIBS_UNAVAILABLE;
}

static dibs__status redlock_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **session,
                                    struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  struct dibs__redlock_session *s = calloc(1, sizeof *s);
  *session = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  said->now.ms = said->sent.ns / DIBS__NS_PER_MS;
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  s->store = store;
  s->doing = dibs__redlock_doing_new();
  if (!s->doing) {
    free(s);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = reach(s, by, said);
  if (status != DIBS_OK) {
    redlock_disconnect(&s->base);
    return status;
  }
  identify(store, identity);
  *session = &s->base;
  return DIBS_OK;
}

static dibs__status redlock_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  (void)events;
  (void)cap;
  *count = 0;
  while (!atomic_exchange(&store->woken, false)) {
    struct pollfd fd = {.fd = store->bell, .events = POLLIN};
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    if (left == 0) break;
    int got = poll(&fd, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0) dibs__bell_lower(store->bell);
  }
  return DIBS_OK;
}

static void redlock_wake(struct dibs__dstore *base) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  atomic_store(&store->woken, true);
  dibs__bell_raise(store->bell);
}

static const char *const schemes[] = {"redlock", NULL};

const struct dibs__driver dibs__redlock_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "redlock",
    .schemes = schemes,
    .open = redlock_open,
    .close = redlock_close,
    .connect = redlock_connect,
    .disconnect = redlock_disconnect,
    .run = dibs__redlock_run,
    .events = redlock_events,
    .wake = redlock_wake,
    .list = dibs__redlock_list,
};
