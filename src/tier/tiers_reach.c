/* SPDX-License-Identifier: MIT */
/*
 * A tier's store and sessions, behind its breaker.  A store that could not be opened is tried again at the next call
 * that the breaker lets through; once open it stays so.
 *
 * The anchor is never kept from being asked: without it nothing moves, and what is slow there may be a hot row.
 */
#include "tier/tiers_parts.h"

static bool forced_locked(const struct tier *tier) {
  const struct tiers *t = tier->all;
  if (tier->nth >= t->last) return true;
  return t->known && (!t->state.breaker || t->state.tiers[tier->nth].hand == DIBS__HAND_CLOSED);
}

bool dibs__tier_open_locked(const struct tier *tier) {
  return forced_locked(tier) || tier->breaker.state == DIBS__BREAKER_CLOSED;
}

/* May it be asked?  *probes: the breaker is to be told how it went. */
static bool may(struct tier *tier, dibs__tick now, bool *counted) {
  struct tiers *t = tier->all;
  dibs__mutex_lock(&t->lock);
  *counted = dibs__breaker_may(&tier->breaker, now);
  bool may = *counted || forced_locked(tier);
  dibs__mutex_unlock(&t->lock);
  return may;
}

static void account(struct tier *tier, dibs__tick began, bool counted, dibs__status status, size_t operations,
                    const struct dibs__said *said) {
  struct tiers *t = tier->all;
  dibs__tick now = dibs__tick_now();
  bool failed = status != DIBS_OK;
  dibs__mutex_lock(&t->lock);
  enum dibs__breaker_state before = tier->breaker.state;
  bool turned =
      counted && dibs__breaker_done(&tier->breaker, began, now, (uint32_t)(operations ? operations : 1), failed);
  tier->operations += operations;
  tier->reached = !failed;
  tier->ours = tiers_config_trouble(status);
  tier->latest = status;
  if (failed) {
    tier->failures += operations;
    memcpy(tier->trouble, said->text, sizeof tier->trouble - 1);
  } else {
    tier->answered = now;
    tier->trouble[0] = '\0';
    if (operations) dibs__hist_add(&tier->took, now.ns - began.ns);
  }
  if (turned && before == DIBS__BREAKER_CLOSED) tiers_count(t, DIBS__M_TURNS, 1);
  if (turned) dibs__tiers_local_locked(t);
  dibs__mutex_unlock(&t->lock);
  if (failed) tiers_count(t, DIBS__M_FAILED, operations);
  if (turned) dibs__tiers_kick(t);
}

/* The gate is held. */
static dibs__status open_store(struct tier *tier, dibs__tick by, struct dibs__said *said) {
  struct tiers *t = tier->all;
  if (tier->store) return DIBS_OK;
  dibs__status status = dibs__chain_open(tier->uri, t->module_path, by, &tier->chain, said);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&t->lock);
  tier->store = tier->chain.stores[0];
  dibs__mutex_unlock(&t->lock);
  return DIBS_OK;
}

static dibs__status connect_tier(struct tier *tier, struct dibs__session **session, dibs__tick by,
                                 struct dibs__said *said) {
  struct dibs__identity identity;
  bool gated = !(atomic_load(&tier->caps) & DIBS__CAP_PARALLEL);
  if (gated && !dibs__turn_take(&tier->gate, by)) return DIBS_UNAVAILABLE;
  dibs__status status = tier->store ? DIBS_OK : open_store(tier, by, said);
  if (status == DIBS_OK) status = tier->store->driver->connect(tier->store, by, session, &identity, said);
  if (gated) dibs__turn_end(&tier->gate);
  if (status != DIBS_OK) return status;
  atomic_store(&tier->families, identity.families);
  atomic_store(&tier->caps, identity.caps);
  return DIBS_OK;
}

void dibs__tier_hang_up(struct tier *tier, struct dibs__session **session) {
  if (!*session) return;
  bool gated = !(atomic_load(&tier->caps) & DIBS__CAP_PARALLEL);
  if (gated) (void)dibs__turn_take(&tier->gate, DIBS__TICK_NEVER);
  tier->store->driver->disconnect(*session);
  if (gated) dibs__turn_end(&tier->gate);
  *session = NULL;
}

static const char *shown(const struct tier *tier) {
  return tier->uri ? tier->uri->shown : "the memory of this process";
}

/* Whatever the driver's words are, they name the tier. */
static void name_it(const struct tier *tier, struct dibs__said *said) {
  char words[sizeof said->text];
  if (!said->text[0]) {
    dibs__say(said, "%s does not answer", shown(tier));
    return;
  }
  if (strstr(said->text, shown(tier))) return;
  memcpy(words, said->text, sizeof words);
  dibs__say(said, "%.100s: %.140s", shown(tier), words);
}

/* Nothing was done.  What is our own fault (a password, a setting) is said as it is, so that nobody waits for it. */
static dibs__status refuse(struct dibs__op *const ops[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) ops[i]->status = status;
  return status;
}

/* The breaker is open: no call.  Why it is so may be our own fault. */
static dibs__status not_asked(struct tier *tier, struct dibs__op *const ops[], size_t count, struct dibs__said *said) {
  struct tiers *t = tier->all;
  char why[TIERS_TROUBLE];
  dibs__mutex_lock(&t->lock);
  dibs__status status = tier->ours ? tier->latest : DIBS_UNAVAILABLE;
  memcpy(why, tier->trouble, sizeof why);
  dibs__mutex_unlock(&t->lock);
  if (status == DIBS_UNAVAILABLE)
    dibs__say(said, "%s is not asked now: its breaker is open", shown(tier));
  else
    dibs__say(said, "%s", why);
  return refuse(ops, count, status);
}

dibs__status dibs__tier_call(struct tier *tier, struct dibs__session **session, struct dibs__op *const ops[],
                             size_t count, dibs__tick by, struct dibs__said *said) {
  struct tiers *t = tier->all;
  dibs__tick began = dibs__tick_now();
  bool counted = false;
  *said = (struct dibs__said){.sent = began};
  if (tier->uri && !may(tier, began, &counted)) return not_asked(tier, ops, count, said);
  if (tier->nth < t->last) by = dibs__tick_min(by, dibs__tick_add_ms(began, t->timeout_ms));
  bool connected = *session != NULL;
  dibs__status status = connected ? DIBS_OK : connect_tier(tier, session, by, said);
  bool sent = status == DIBS_OK;
  if (sent && count) {
    status = tier->store->driver->run(*session, ops, count, by, said);
    if (status != DIBS_OK && said->dead) dibs__tier_hang_up(tier, session);
  }
  /* A connection that died while it was idle says nothing about the tier: one more try, on a new one. */
  if (sent && connected && status == DIBS_UNAVAILABLE && !*session) {
    status = connect_tier(tier, session, by, said);
    for (size_t i = 0; i < count; i++) ops[i]->status = DIBS_UNKNOWN; /* as if they had never been asked */
    if (status == DIBS_OK) status = tier->store->driver->run(*session, ops, count, by, said);
    if (status != DIBS_OK && said->dead && *session) dibs__tier_hang_up(tier, session);
  }
  if (status != DIBS_OK) name_it(tier, said);
  /* The caller had next to no time: that is not the tier's fault. */
  bool cut = status != DIBS_OK && !dibs__tick_before(dibs__tick_now(), by) &&
             dibs__tick_before(by, dibs__tick_add_ms(began, t->timeout_ms / 5));
  account(tier, began, counted && !cut, status, count, said);
  return status == DIBS_OK || status == DIBS_UNKNOWN ? status : refuse(ops, count, status);
}

void dibs__tier_close(struct tier *tier) {
  if (tier->store) dibs__chain_close(&tier->chain);
  tier->store = NULL;
}
