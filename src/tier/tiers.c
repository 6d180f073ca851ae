/* SPDX-License-Identifier: MIT */
/* The table of a tiered store: opening, sessions, closing. */
#include "tier/tiers_parts.h"

#include <assert.h>
#include <stdio.h>

/* ---- Parameters ---- */

static const char *const known[] = {"tiers.strictness",
                                    "tiers.timeout",
                                    "tiers.window",
                                    "tiers.min_calls",
                                    "tiers.failure",
                                    "tiers.slow",
                                    "tiers.slow_ms",
                                    "tiers.wait",
                                    "tiers.probes",
                                    "tiers.dwell",
                                    NULL};

static dibs__status strictness(struct tiers *t, const struct dibs__uri *uri, struct dibs__said *said) {
  const char *value = dibs__uri_param(uri, "tiers.strictness");
  t->strictness = -1;
  if (!value) return DIBS_OK;
  t->strictness = strcmp(value, "strict") == 0 ? DIBS__STRICT : DIBS__FENCED;
  t->least_strict = strcmp(value, "least-strict") == 0;
  if (t->strictness == DIBS__STRICT || t->least_strict || strcmp(value, "fenced") == 0) return DIBS_OK;
  dibs__say(said, "tiers.strictness is fenced, strict or least-strict, not \"%.40s\"", value);
  return DIBS_INVALID;
}

static dibs__status numbers(struct tiers *t, const struct dibs__uri *uri, struct dibs__breaker_options *b,
                            struct dibs__said *said) {
  struct {
    const char *key;
    int64_t min, max, otherwise, got;
  } n[] = {{"tiers.timeout", 10, 60000, TIERS_TIMEOUT_MS, 0},
           {"tiers.window", 1, DIBS__BREAKER_WINDOW, 0, 0},
           {"tiers.min_calls", 1, DIBS__BREAKER_WINDOW, 0, 0},
           {"tiers.failure", 1, 100, 0, 0},
           {"tiers.slow", 1, 100, 0, 0},
           {"tiers.slow_ms", 1, 60000, 0, 0},
           {"tiers.wait", 10, 3600000, 0, 0},
           {"tiers.probes", 1, 100, 0, 0},
           {"tiers.dwell", 0, 86400000, DIBS__TIERS_DWELL_MS, 0}};
  for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) {
    dibs__status status = dibs__uri_number(uri, n[i].key, n[i].min, n[i].max, n[i].otherwise, &n[i].got, said);
    if (status != DIBS_OK) return status;
  }
  t->timeout_ms = n[0].got;
  t->dwell_ms = n[8].got;
  *b = (struct dibs__breaker_options){.window = (uint32_t)n[1].got,
                                      .min_calls = (uint32_t)n[2].got,
                                      .failure_percent = (uint32_t)n[3].got,
                                      .slow_percent = (uint32_t)n[4].got,
                                      .slow_ms = n[5].got,
                                      .wait_ms = n[6].got,
                                      .probes = (uint32_t)n[7].got};
  return DIBS_OK;
}

static dibs__status settings(struct tiers *t, const struct dibs__uri *uri, struct dibs__breaker_options *b,
                             struct dibs__said *said) {
  for (size_t i = 0; i < uri->param_count; i++) {
    const char *key = uri->params[i].key;
    bool is = strncmp(key, "tiers.", 6) != 0;
    for (size_t k = 0; known[k] && !is; k++) is = strcmp(known[k], key) == 0;
    if (is) continue;
    dibs__say(said,
              "tiers have no parameter %.64s; they have strictness, timeout, window, min_calls, failure, slow, "
              "slow_ms, wait, probes, dwell, as in tiers.timeout=500",
              key);
    return DIBS_INVALID;
  }
  dibs__status status = strictness(t, uri, said);
  return status == DIBS_OK ? numbers(t, uri, b, said) : status;
}

/* ---- Opening ---- */

static void free_tiers(struct tiers *t) {
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    dibs__tier_close(&t->tiers[i]);
    dibs__mutex_destroy(&t->tiers[i].gate.lock);
  }
  dibs__mutex_destroy(&t->control.lock);
  dibs__mutex_destroy(&t->lock);
  dibs__mutex_destroy(&t->ears);
  dibs__uri_free(&t->kept_uri);
  free(t->module_path);
  free(t);
}

/* What is wrong with a URI is said now; what is wrong with a server may pass. */
static dibs__status open_member(struct tier *tier, dibs__tick by, struct dibs__said *said) {
  struct tiers *t = tier->all;
  /* One that hangs must not keep us from the others; the anchor neither, they know enough to begin. */
  dibs__tick now = dibs__tick_now();
  int64_t for_ms = tier->nth < t->last ? t->timeout_ms : dibs__tick_left_ms(now, by) / 3;
  by = dibs__tick_min(by, dibs__tick_add_ms(now, for_ms));
  dibs__status status = dibs__chain_open(tier->uri, t->module_path, by, &tier->chain, said);
  if (status == DIBS_OK) tier->store = tier->chain.stores[0];
  bool may_pass = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_DENIED;
  return may_pass ? DIBS_OK : status;
}

/* The memory of the process, for least-strict. */
static dibs__status open_local(struct tiers *t, dibs__tick by, struct dibs__said *said) {
  struct tier *tier = &t->tiers[DIBS__TIER_LOCAL];
  struct dibs__uri uri;
  struct dibs__identity identity;
  dibs__status status = dibs__uri_parse("memory:", &uri, said);
  if (status != DIBS_OK) return status;
  status = dibs__chain_open(&uri, NULL, by, &tier->chain, said);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) return status;
  tier->store = tier->chain.stores[0];
  status = tier->store->driver->connect(tier->store, by, &t->own[DIBS__TIER_LOCAL], &identity, said);
  atomic_store(&tier->caps, identity.caps);
  t->local_mandate = identity.mandate;
  return status;
}

static dibs__status tiers_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  struct dibs__breaker_options options;
  (void)inner, (void)count;
  *store = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (uri->member_count < 2) {
    dibs__say(said, "tiers are named by their URIs, with commas between: redis://cache,mysql://db/app");
    return DIBS_INVALID;
  }
  struct tiers *t = calloc(1, sizeof *t);
  if (!t) return DIBS_NO_MEMORY;
  if (dibs__uri_copy(uri, &t->kept_uri) != DIBS_OK) {
    free(t);
    return DIBS_NO_MEMORY;
  }
  uri = t->uri = &t->kept_uri;
  if (uri->module_path) t->module_path = strdup(uri->module_path);
  t->base.driver = &dibs__tiers_driver;
  t->count = (uint32_t)uri->member_count;
  t->last = t->count - 1;
  dibs__random(t->client.b, sizeof t->client.b);
  snprintf(t->owner, sizeof t->owner, "%.*s", DIBS_OWNER_MAX, uri->owner ? uri->owner : "");
  dibs__mutex_init(&t->control.lock);
  dibs__mutex_init(&t->lock);
  dibs__mutex_init(&t->ears);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    dibs__mutex_init(&t->tiers[i].gate.lock);
    t->tiers[i].all = t;
    t->tiers[i].nth = i;
  }
  dibs__status status = settings(t, &uri->members[t->last], &options, said);
  for (uint32_t i = 0; i < t->count && status == DIBS_OK; i++) {
    t->tiers[i].uri = &uri->members[i];
    t->schemes[i] = dibs__tiers_scheme(uri->members[i].scheme);
    dibs__breaker_begin(&t->tiers[i].breaker, &options, dibs__tick_now());
    status = open_member(&t->tiers[i], by, said);
  }
  if (status == DIBS_OK) status = open_local(t, by, said);
  if (status == DIBS_OK)
    *store = &t->base;
  else
    free_tiers(t);
  return status;
}

static void tiers_close(struct dibs__dstore *store) {
  if (!store) return;
  struct tiers *t = tiers_of(store);
  dibs__tiers_control_stop(t);
  dibs__tiers_listen_stop(t);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    dibs__tier_hang_up(&t->tiers[i], &t->own[i]);
    dibs__tier_hang_up(&t->tiers[i], &t->probes[i]);
  }
  free_tiers(t);
}

/* ---- Sessions ---- */

enum { GUARDS = 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_STOCK | 1u << DIBS__FAM_ONCE };

/* Of leases what every tier can; of the rest what the anchor can. */
static void describe(struct tiers *t, struct dibs__identity *identity) {
  const uint32_t of_leases = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
                             DIBS__CAP_EVENTS | DIBS__CAP_BLOCKS | DIBS__CAP_OFFERS_LAST;
  uint32_t caps = of_leases, any = 0;
  for (uint32_t i = 0; i < t->count; i++) {
    uint32_t has = atomic_load(&t->tiers[i].caps);
    if (has == 0) continue; /* not reached yet: it refuses itself what it can't */
    caps &= has;
    any |= has;
  }
  uint32_t families = atomic_load(&t->tiers[t->last].families);
  if (!families) families = GUARDS;
  *identity = (struct dibs__identity){
      .caps = caps | (any & DIBS__CAP_VOLATILE) | (any & DIBS__CAP_SESSION) | DIBS__CAP_PARALLEL | DIBS__CAP_ANCHOR,
      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_TIERS | (families & GUARDS),
      .schema = DIBS__TIERS_FORMAT,
      .max_batch = TIERS_BATCH,
      .max_sessions = TIERS_SESSIONS};
  memcpy(&identity->session, t->client.b, sizeof identity->session);
}

/* Those that serve something must be reached once, for what they can.  One that can't is told of by what is asked of
 * it; whoever comes to move names away from it must be let in. */
static void reach_those_in_use(struct tiers *t, struct tiers_session *s, dibs__tick by, struct dibs__said *said) {
  uint32_t used = 0;
  dibs__mutex_lock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (t->here[b].mandate.epoch) used |= 1u << t->here[b].tier;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++)
    if ((used >> i & 1) && !atomic_load(&t->tiers[i].caps))
      (void)dibs__tier_call(&t->tiers[i], &s->inner[i], NULL, 0, by, said);
}

static void tiers_disconnect(struct dibs__session *session) {
  struct tiers_session *s = (struct tiers_session *)session;
  struct tiers *t = tiers_of(session->store);
  for (uint32_t i = 0; i < TIERS_ALL; i++) dibs__tier_hang_up(&t->tiers[i], &s->inner[i]);
  free(s);
}

static struct tiers_session *new_session(struct dibs__dstore *store, struct dibs__said *said) {
  struct tiers_session *s = calloc(1, sizeof *s);
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (s)
    s->base.store = store;
  else
    dibs__say(said, "no memory for a session of %s", tiers_of(store)->uri->shown);
  return s;
}

static dibs__status tiers_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                  struct dibs__identity *identity, struct dibs__said *said) {
  struct tiers *t = tiers_of(store);
  *session = NULL;
  struct tiers_session *s = new_session(store, said);
  if (!s) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_ready(t, by, said);
  /* Later ones, which may be in a hurry, need not wait for that. */
  bool first = !atomic_load(&t->runs);
  if (status == DIBS_OK && first) reach_those_in_use(t, s, by, said);
  if (status == DIBS_OK && first && !dibs__tiers_control_start(t, by)) {
    dibs__say(said, "no thread is to be had for %s", t->uri->shown);
    status = DIBS_UNAVAILABLE;
  }
  if (status != DIBS_OK) {
    tiers_disconnect(&s->base);
    return status;
  }
  describe(t, identity);
  said->text[0] = '\0';
  said->now = (dibs__when){tiers_ms(dibs__tick_now())};
  *session = &s->base;
  return DIBS_OK;
}

static dibs__status tiers_attach(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__said *said) {
  struct tiers *t = tiers_of(store);
  struct tier *anchor = &t->tiers[t->last];
  *session = NULL;
  struct tiers_session *s = new_session(store, said);
  if (!s) return DIBS_NO_MEMORY;
  dibs__mutex_lock(&t->lock);
  struct dibs__dstore *inner = anchor->store;
  dibs__mutex_unlock(&t->lock);
  dibs__status status = DIBS_UNAVAILABLE;
  if (!inner)
    dibs__say(said, "%s was never reached", anchor->uri->shown);
  else if (!inner->driver->attach)
    status = DIBS_UNSUPPORTED;
  else
    status = inner->driver->attach(inner, connection, &s->inner[t->last], identity, said);
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  s->inside = true;
  *session = &s->base;
  return DIBS_OK;
}

static void tiers_tidy(struct dibs__dstore *store) {
  struct tiers *t = tiers_of(store);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    dibs__mutex_lock(&t->lock);
    struct dibs__dstore *inner = t->tiers[i].store;
    dibs__mutex_unlock(&t->lock);
    if (inner && inner->driver->tidy) inner->driver->tidy(inner);
  }
}

static const char *const schemes[] = {"tiers", NULL};

const struct dibs__driver dibs__tiers_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "tiers",
    .schemes = schemes,
    .open = tiers_open,
    .close = tiers_close,
    .connect = tiers_connect,
    .disconnect = tiers_disconnect,
    .attach = tiers_attach,
    .run = dibs__tiers_run,
    .events = dibs__tiers_events,
    .wake = dibs__tiers_wake,
    .list = dibs__tiers_list,
    .tidy = tiers_tidy,
};
