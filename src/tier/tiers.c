/* SPDX-License-Identifier: MIT */
/* A tiered store: locks that are held across calls to stores, listing, the stores and sessions of tiers, and the table.
 */
#include "store/family.h"
#include "tier/tiers_impl.h"

#include <assert.h>
#include <stdio.h>

enum { ALL = INT32_MAX };

bool dibs__timed_lock_take(struct timed_lock *timed_lock, dibs__tick by) {
  for (;;) {
    dibs__mutex_lock(&timed_lock->lock);
    bool mine = !timed_lock->taken;
    timed_lock->taken = true;
    uint32_t seen = atomic_load(&timed_lock->word);
    dibs__mutex_unlock(&timed_lock->lock);
    if (mine) return true;
    if (!dibs__word_wait(&timed_lock->word, seen, by, false)) return false;
  }
}

void dibs__timed_lock_release(struct timed_lock *timed_lock) {
  dibs__mutex_lock(&timed_lock->lock);
  assert(timed_lock->taken);
  timed_lock->taken = false;
  atomic_fetch_add(&timed_lock->word, 1);
  dibs__mutex_unlock(&timed_lock->lock);
  /* All of them: a single one may just be giving up. */
  dibs__word_wake(&timed_lock->word, ALL, false);
}

/*
 * ---- Listing ----
 *
 * Each name is listed by the tier that has its bucket; what another tier remembers of it is not a lease any more.  With
 * one tier in use the rows are passed on; with several they are collected, sorted by name, and then passed on.
 */

struct row {
  struct dibs__lease_row row; /* its texts are in the same memory */
  size_t nth;
  char text[];
};

struct listing {
  struct tiers *t;
  const struct dibs__list *list;
  uint32_t tier;
  bool keeps, no_memory;
  uint32_t names; /* of this tier, in `rows` */
  int stopped;
  struct row **rows;
  size_t count, capacity;
};

static bool keep_row(struct listing *l, const struct dibs__lease_row *row) {
  if (l->count == l->capacity) {
    size_t capacity = l->capacity ? 2 * l->capacity : 64;
    struct row **more = realloc(l->rows, capacity * sizeof(struct row *));
    if (!more) return false;
    l->rows = more;
    l->capacity = capacity;
  }
  struct row *made = malloc(sizeof *made + row->name.len + row->owner.len + 1);
  if (!made) return false;
  made->row = *row;
  made->nth = l->count;
  memcpy(made->text, row->name.p, row->name.len);
  if (row->owner.len) memcpy(made->text + row->name.len, row->owner.p, row->owner.len);
  made->row.name.p = made->text;
  made->row.owner.p = made->text + row->name.len;
  l->rows[l->count++] = made;
  return true;
}

static const char *tier_name(const struct tier *tier) {
  return tier->uri ? tier->uri->shown : "the memory of this process";
}

static int take_row(const struct dibs__lease_row *row, void *user) {
  struct listing *l = user;
  dibs__mutex_lock(&l->t->lock);
  const struct here *here = &l->t->here[dibs__bucket(row->name)];
  bool theirs = here->tier == l->tier || (here->left.epoch && here->left_tier == l->tier);
  dibs__mutex_unlock(&l->t->lock);
  if (!theirs) return 0;
  struct dibs__lease_row own = *row;
  own.tier = tier_name(&l->t->tiers[l->tier]);
  if (!l->keeps) return l->stopped = l->list->row(&own, l->list->user);
  const struct row *last = l->names ? l->rows[l->count - 1] : NULL;
  if (!last || !dibs__str_equal(last->row.name, row->name)) l->names++;
  if (l->list->most && l->names > l->list->most) return 1;
  l->no_memory = l->no_memory || !keep_row(l, &own);
  return l->no_memory;
}

static int by_name(const void *a, const void *b) {
  const struct row *x = *(struct row *const *)a, *y = *(struct row *const *)b;
  size_t len = x->row.name.len < y->row.name.len ? x->row.name.len : y->row.name.len;
  int order = memcmp(x->row.name.p, y->row.name.p, len);
  if (order == 0 && x->row.name.len != y->row.name.len) order = x->row.name.len < y->row.name.len ? -1 : 1;
  return order ? order : x->nth < y->nth ? -1 : 1;
}

static uint32_t tier_of_bucket(const struct tiers *t, const struct here *here) {
  /* These stores are no tiers yet: clients that open the anchor alone hold there. */
  bool supposed = t->version == 0 && t->confirmed.ns != 0;
  uint32_t set = here->mandate.epoch || supposed ? 1u << here->tier : 0;
  return here->left.epoch ? set | 1u << here->left_tier : set;
}

/* The tiers that can have rows of this listing. */
static uint32_t tiers_to_list(struct listing *l) {
  uint32_t set = 0;
  dibs__mutex_lock(&l->t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) set |= tier_of_bucket(l->t, &l->t->here[b]);
  if (l->list->name.len) set = tier_of_bucket(l->t, &l->t->here[dibs__bucket(l->list->name)]);
  dibs__mutex_unlock(&l->t->lock);
  return set;
}

static dibs__status list_tier(struct listing *l, struct tiers_session *s, dibs__tick by, struct dibs__result *result) {
  struct tier *tier = &l->t->tiers[l->tier];
  struct dibs__session **inner = &s->inner[l->tier];
  struct dibs__list list = *l->list;
  l->names = 0;
  list.row = take_row;
  list.user = l;
  dibs__status status = *inner ? DIBS_OK : dibs__tier_call(tier, inner, NULL, 0, by, result);
  if (status == DIBS_OK) status = tier->store->driver->list(*inner, &list, by, result);
  if (status != DIBS_OK && result->dead) dibs__tier_hang_up(tier, inner);
  result->dead = false;
  return status;
}

static dibs__status tiers_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                               struct dibs__result *result) {
  struct listing l = {.t = tiers_of(session->store), .list = list};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  uint32_t set = tiers_to_list(&l);
  dibs__status status = DIBS_OK;
  l.keeps = (set & (set - 1)) != 0;
  for (l.tier = 0; l.tier < TIERS_ALL && status == DIBS_OK && !l.stopped; l.tier++)
    if (set >> l.tier & 1) status = list_tier(&l, (struct tiers_session *)session, by, result);
  if (status == DIBS_OK && l.no_memory) status = DIBS_NO_MEMORY;
  if (l.count > 0) qsort(l.rows, l.count, sizeof l.rows[0], by_name);
  for (size_t i = 0; i < l.count; i++) {
    if (status == DIBS_OK && !l.stopped) l.stopped = list->row(&l.rows[i]->row, list->user);
    free(l.rows[i]);
  }
  free(l.rows);
  return status;
}

/*
 * ---- A tier's store and sessions, behind its breaker ----
 *
 * A store that could not be opened is tried again at the next call that the breaker allows; after that it stays open.
 *
 * The breaker never prevents calls to the anchor: without it no bucket can move, and a slow call may be a hot row.
 */

static bool forced_locked(const struct tier *tier) {
  const struct tiers *t = tier->all;
  if (tier->nth >= t->last) return true;
  return t->known && (!t->state.breaker || t->state.tiers[tier->nth].hand == DIBS__HAND_CLOSED);
}

bool dibs__tier_open_locked(const struct tier *tier) {
  return forced_locked(tier) || tier->breaker.state == DIBS__BREAKER_CLOSED;
}

/* May it be called?  *counted: the breaker must get the result. */
static bool breaker_allows(struct tier *tier, dibs__tick now, bool *counted) {
  struct tiers *t = tier->all;
  dibs__mutex_lock(&t->lock);
  *counted = dibs__breaker_may(&tier->breaker, now);
  bool may = *counted || forced_locked(tier);
  dibs__mutex_unlock(&t->lock);
  return may;
}

static void account(struct tier *tier, dibs__tick began, bool counted, dibs__status status, size_t operations,
                    const struct dibs__result *result) {
  struct tiers *t = tier->all;
  dibs__tick now = dibs__tick_now();
  bool failed = status != DIBS_OK;
  dibs__mutex_lock(&t->lock);
  enum dibs__breaker_state before = tier->breaker.state;
  bool changed =
      counted && dibs__breaker_done(&tier->breaker, began, now, (uint32_t)(operations ? operations : 1), failed);
  tier->operations += operations;
  tier->reached = !failed;
  tier->ours = tiers_config_trouble(status);
  tier->latest = status;
  if (failed) {
    tier->failures += operations;
    memcpy(tier->trouble, result->text, sizeof tier->trouble - 1);
  } else {
    tier->answered = now;
    tier->trouble[0] = '\0';
    if (operations) dibs__hist_add(&tier->took, now.ns - began.ns);
  }
  if (changed && before == DIBS__BREAKER_CLOSED) tiers_count(t, DIBS__M_TURNS, 1);
  if (changed) dibs__tiers_local_locked(t);
  dibs__mutex_unlock(&t->lock);
  if (failed) tiers_count(t, DIBS__M_FAILED, operations);
  if (changed) dibs__tiers_kick(t);
}

/* The gate is held. */
static dibs__status open_store(struct tier *tier, dibs__tick by, struct dibs__result *result) {
  struct tiers *t = tier->all;
  if (tier->store) return DIBS_OK;
  dibs__status status = dibs__chain_open(tier->uri, t->module_path, by, &tier->chain, result);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&t->lock);
  tier->store = tier->chain.stores[0];
  dibs__mutex_unlock(&t->lock);
  return DIBS_OK;
}

static dibs__status connect_tier(struct tier *tier, struct dibs__session **session, dibs__tick by,
                                 struct dibs__result *result) {
  struct dibs__identity identity;
  bool gated = !(atomic_load(&tier->caps) & DIBS__CAP_PARALLEL);
  if (gated && !dibs__timed_lock_take(&tier->gate, by)) return DIBS_UNAVAILABLE;
  dibs__status status = tier->store ? DIBS_OK : open_store(tier, by, result);
  if (status == DIBS_OK) status = tier->store->driver->connect(tier->store, by, session, &identity, result);
  if (gated) dibs__timed_lock_release(&tier->gate);
  if (status != DIBS_OK) return status;
  atomic_store(&tier->sessions, identity.caps & DIBS__CAP_PARALLEL ? identity.max_sessions : 0);
  atomic_store(&tier->caps, identity.caps);
  atomic_store(&tier->families, identity.families); /* last: where they are known, so are its capabilities */
  return DIBS_OK;
}

void dibs__tier_hang_up(struct tier *tier, struct dibs__session **session) {
  if (!*session) return;
  bool gated = !(atomic_load(&tier->caps) & DIBS__CAP_PARALLEL);
  if (gated) (void)dibs__timed_lock_take(&tier->gate, DIBS__TICK_NEVER);
  tier->store->driver->disconnect(*session);
  if (gated) dibs__timed_lock_release(&tier->gate);
  *session = NULL;
}

/* A driver's message gets the name of the tier. */
static void add_tier_name(const struct tier *tier, struct dibs__result *result) {
  char words[sizeof result->text];
  if (!result->text[0]) {
    dibs__set_message(result, "%s does not answer", tier_name(tier));
    return;
  }
  if (strstr(result->text, tier_name(tier))) return;
  memcpy(words, result->text, sizeof words);
  dibs__set_message(result, "%.100s: %.140s", tier_name(tier), words);
}

/* Nothing was done.  An error of our own (a password, a setting) is returned unchanged, so that no client waits for its
 * end. */
static dibs__status refuse_all(struct dibs__op *const ops[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) ops[i]->status = status;
  return status;
}

/* The breaker is open: no call.  The cause may be an error of our own. */
static dibs__status not_requested(struct tier *tier, struct dibs__op *const ops[], size_t count,
                                  struct dibs__result *result) {
  struct tiers *t = tier->all;
  char why[TIERS_TROUBLE];
  dibs__mutex_lock(&t->lock);
  dibs__status status = tier->ours ? tier->latest : DIBS_UNAVAILABLE;
  memcpy(why, tier->trouble, sizeof why);
  dibs__mutex_unlock(&t->lock);
  if (status == DIBS_UNAVAILABLE)
    dibs__set_message(result, "%s gets no requests now: its breaker is open", tier_name(tier));
  else
    dibs__set_message(result, "%s", why);
  return refuse_all(ops, count, status);
}

dibs__status dibs__tier_call(struct tier *tier, struct dibs__session **session, struct dibs__op *const ops[],
                             size_t count, dibs__tick by, struct dibs__result *result) {
  struct tiers *t = tier->all;
  dibs__tick began = dibs__tick_now();
  bool counted = false;
  *result = (struct dibs__result){.sent = began};
  if (tier->uri && !breaker_allows(tier, began, &counted)) return not_requested(tier, ops, count, result);
  if (tier->nth < t->last) by = dibs__tick_min(by, dibs__tick_add_ms(began, t->timeout_ms));
  bool connected = *session != NULL;
  dibs__status status = connected ? DIBS_OK : connect_tier(tier, session, by, result);
  bool sent = status == DIBS_OK;
  if (sent && count) {
    status = tier->store->driver->run(*session, ops, count, by, result);
    if (status != DIBS_OK && result->dead) dibs__tier_hang_up(tier, session);
  }
  /* A connection that died while it was idle is no failure of the tier: one more attempt, on a new one. */
  if (sent && connected && status == DIBS_UNAVAILABLE && !*session) {
    status = connect_tier(tier, session, by, result);
    for (size_t i = 0; i < count; i++) ops[i]->status = DIBS_UNKNOWN; /* as before the first attempt */
    if (status == DIBS_OK) status = tier->store->driver->run(*session, ops, count, by, result);
    if (status != DIBS_OK && result->dead && *session) dibs__tier_hang_up(tier, session);
  }
  if (status != DIBS_OK) add_tier_name(tier, result);
  /* The caller had almost no time: this is no failure of the tier. */
  bool cut = status != DIBS_OK && !dibs__tick_before(dibs__tick_now(), by) &&
             dibs__tick_before(by, dibs__tick_add_ms(began, t->timeout_ms / 5));
  account(tier, began, counted && !cut, status, count, result);
  return status == DIBS_OK || status == DIBS_UNKNOWN ? status : refuse_all(ops, count, status);
}

static void tier_close(struct tier *tier) {
  if (tier->store) dibs__chain_close(&tier->chain);
  tier->store = NULL;
}

/* ---- The table: opening, sessions, closing ---- */

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

static dibs__status parse_strictness(struct tiers *t, const struct dibs__uri *uri, struct dibs__result *result) {
  const char *value = dibs__uri_param(uri, "tiers.strictness");
  t->strictness = -1;
  if (!value) return DIBS_OK;
  t->strictness = strcmp(value, "strict") == 0 ? DIBS__STRICT : DIBS__FENCED;
  t->least_strict = strcmp(value, "least-strict") == 0;
  if (t->strictness == DIBS__STRICT || t->least_strict || strcmp(value, "fenced") == 0) return DIBS_OK;
  dibs__set_message(result, "tiers.strictness is fenced, strict or least-strict, not \"%.40s\"", value);
  return DIBS_INVALID;
}

static dibs__status numbers(struct tiers *t, const struct dibs__uri *uri, struct dibs__breaker_options *b,
                            struct dibs__result *result) {
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
    dibs__status status = dibs__uri_number(uri, n[i].key, n[i].min, n[i].max, n[i].otherwise, &n[i].got, result);
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
                             struct dibs__result *result) {
  for (size_t i = 0; i < uri->param_count; i++) {
    const char *key = uri->params[i].key;
    bool is = strncmp(key, "tiers.", 6) != 0;
    for (size_t k = 0; known[k] && !is; k++) is = strcmp(known[k], key) == 0;
    if (is) continue;
    dibs__set_message(result,
                      "tiers have no parameter %.64s; they have strictness, timeout, window, min_calls, failure, slow, "
                      "slow_ms, wait, probes, dwell, as in tiers.timeout=500",
                      key);
    return DIBS_INVALID;
  }
  dibs__status status = parse_strictness(t, uri, result);
  return status == DIBS_OK ? numbers(t, uri, b, result) : status;
}

/* ---- Opening ---- */

static void free_tiers(struct tiers *t) {
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    tier_close(&t->tiers[i]);
    dibs__mutex_destroy(&t->tiers[i].gate.lock);
  }
  dibs__mutex_destroy(&t->control.lock);
  dibs__mutex_destroy(&t->lock);
  dibs__mutex_destroy(&t->event_lock);
  dibs__uri_free(&t->kept_uri);
  free(t->module_path);
  free(t);
}

/* An error in a URI is reported now; an error of a server may end. */
static dibs__status open_member(struct tier *tier, dibs__tick by, struct dibs__result *result) {
  struct tiers *t = tier->all;
  /* A tier that hangs must not delay the others; nor must the anchor, as the others know enough to begin. */
  dibs__tick now = dibs__tick_now();
  int64_t for_ms = tier->nth < t->last ? t->timeout_ms : dibs__tick_left_ms(now, by) / 3;
  by = dibs__tick_min(by, dibs__tick_add_ms(now, for_ms));
  dibs__status status = dibs__chain_open(tier->uri, t->module_path, by, &tier->chain, result);
  if (status == DIBS_OK) tier->store = tier->chain.stores[0];
  bool may_pass = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_DENIED;
  return may_pass ? DIBS_OK : status;
}

/* The memory of the process, for least-strict. */
static dibs__status open_local(struct tiers *t, dibs__tick by, struct dibs__result *result) {
  struct tier *tier = &t->tiers[DIBS__TIER_LOCAL];
  struct dibs__uri uri;
  struct dibs__identity identity;
  dibs__status status = dibs__uri_parse("memory:", &uri, result);
  if (status != DIBS_OK) return status;
  status = dibs__chain_open(&uri, NULL, by, &tier->chain, result);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) return status;
  tier->store = tier->chain.stores[0];
  status = tier->store->driver->connect(tier->store, by, &t->own[DIBS__TIER_LOCAL], &identity, result);
  atomic_store(&tier->caps, identity.caps);
  t->local_mandate = identity.mandate;
  return status;
}

static dibs__status tiers_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  struct dibs__breaker_options options;
  (void)inner, (void)count;
  *store = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (uri->member_count < 2) {
    dibs__set_message(result, "name tiers by their URIs, separated by commas: redis://cache,mysql://db/app");
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
  dibs__mutex_init(&t->event_lock);
  for (uint32_t i = 0; i < TIERS_ALL; i++) {
    dibs__mutex_init(&t->tiers[i].gate.lock);
    t->tiers[i].all = t;
    t->tiers[i].nth = i;
  }
  dibs__status status = settings(t, &uri->members[t->last], &options, result);
  for (uint32_t i = 0; i < t->count && status == DIBS_OK; i++) {
    t->tiers[i].uri = &uri->members[i];
    if (i == t->last) t->kept_uri.members[i].as_anchor = true;
    t->schemes[i] = dibs__tiers_scheme(uri->members[i].scheme);
    dibs__breaker_begin(&t->tiers[i].breaker, &options, dibs__tick_now());
    status = open_member(&t->tiers[i], by, result);
  }
  if (status == DIBS_OK) status = open_local(t, by, result);
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

/* For leases, what every tier can do; for the rest, what the anchor can do. */
static void merge_capabilities(struct tiers *t, struct dibs__identity *identity) {
  const uint32_t of_leases = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT |
                             DIBS__CAP_EVENTS | DIBS__CAP_BLOCKS | DIBS__CAP_OFFERS_LAST;
  uint32_t caps = of_leases, any = 0, sessions = DIBS__CONNECTIONS_MAX;
  for (uint32_t i = 0; i < t->count; i++) {
    uint32_t has = atomic_load(&t->tiers[i].caps);
    if (has == 0) continue; /* not reached yet: the tier itself refuses what it cannot do */
    caps &= has;
    any |= has;
    uint32_t most = atomic_load(&t->tiers[i].sessions);
    if (most > 0 && most < sessions) sessions = most; /* each session reaches every tier */
  }
  uint32_t families = atomic_load(&t->tiers[t->last].families);
  uint32_t of_last = dibs__families_served(DIBS__SERVED_BY_LAST);
  if (!families) families = of_last;
  uint32_t first = atomic_load(&t->tiers[0].families), of_first = dibs__families_served(DIBS__SERVED_BY_FIRST);
  if (!first) first = of_first; /* not reached yet: it refuses what it does not serve */
  *identity = (struct dibs__identity){.caps = caps | (any & DIBS__CAP_SESSION) | DIBS__CAP_PARALLEL | DIBS__CAP_ANCHOR,
                                      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR |
                                                  1u << DIBS__FAM_TIERS | (families & of_last) | (first & of_first),
                                      .max_batch = TIERS_BATCH,
                                      .max_sessions = sessions};
  memcpy(&identity->session, t->client.b, sizeof identity->session);
}

/* Tiers that serve buckets must be reached once, so that their capabilities are known.  An unreachable one is no error
 * here: operations for it report that, and a client that moves names away from it must be able to open the store. */
static void reach_those_in_use(struct tiers *t, struct tiers_session *s, dibs__tick by, struct dibs__result *result) {
  uint32_t used = 0;
  dibs__mutex_lock(&t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (t->here[b].mandate.epoch) used |= 1u << t->here[b].tier;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++)
    if ((used >> i & 1) && !atomic_load(&t->tiers[i].caps))
      (void)dibs__tier_call(&t->tiers[i], &s->inner[i], NULL, 0, by, result);
}

static void tiers_disconnect(struct dibs__session *session) {
  struct tiers_session *s = (struct tiers_session *)session;
  struct tiers *t = tiers_of(session->store);
  for (uint32_t i = 0; i < TIERS_ALL; i++) dibs__tier_hang_up(&t->tiers[i], &s->inner[i]);
  free(s);
}

static struct tiers_session *new_session(struct dibs__dstore *store, struct dibs__result *result) {
  struct tiers_session *s = calloc(1, sizeof *s);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (s)
    s->base.store = store;
  else
    dibs__set_message(result, "out of memory for a session of %s", tiers_of(store)->uri->shown);
  return s;
}

static dibs__status tiers_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                  struct dibs__identity *identity, struct dibs__result *result) {
  struct tiers *t = tiers_of(store);
  *session = NULL;
  struct tiers_session *s = new_session(store, result);
  if (!s) return DIBS_NO_MEMORY;
  dibs__status status = dibs__tiers_ready(t, by, result);
  /* Later calls, which may have a short deadline, need not wait for that. */
  bool first = !atomic_load(&t->runs);
  if (status == DIBS_OK && first) reach_those_in_use(t, s, by, result);
  if (status == DIBS_OK && first && !dibs__tiers_control_start(t, by)) {
    dibs__set_message(result, "cannot start a thread for %s", t->uri->shown);
    status = DIBS_UNAVAILABLE;
  }
  if (status != DIBS_OK) {
    tiers_disconnect(&s->base);
    return status;
  }
  merge_capabilities(t, identity);
  result->text[0] = '\0';
  result->now = (dibs__when){tiers_ms(dibs__tick_now())};
  *session = &s->base;
  return DIBS_OK;
}

static dibs__status tiers_attach(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__result *result) {
  struct tiers *t = tiers_of(store);
  struct tier *anchor = &t->tiers[t->last];
  *session = NULL;
  struct tiers_session *s = new_session(store, result);
  if (!s) return DIBS_NO_MEMORY;
  dibs__mutex_lock(&t->lock);
  struct dibs__dstore *inner = anchor->store;
  dibs__mutex_unlock(&t->lock);
  dibs__status status = DIBS_UNAVAILABLE;
  if (!inner)
    dibs__set_message(result, "%s was never reachable", anchor->uri->shown);
  else if (!inner->driver->attach)
    status = DIBS_UNSUPPORTED;
  else
    status = inner->driver->attach(inner, connection, &s->inner[t->last], identity, result);
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
    .list = tiers_list,
    .tidy = tiers_tidy,
};
