/* SPDX-License-Identifier: MIT */
/*
 * Stock: take, give, show, set.  A thin layer: the store decides.  What is done here: the claim is drawn, so that a
 * call that comes to UNKNOWN can be repeated with it, and is, as long as the caller's time allows; who wants a lease
 * around it gets one; and operations of one row get one lane, so that they travel together and never in two batches at
 * once.
 */
#include "base/map.h"
#include "base/text.h"
#include "guard/asking.h"
#include "guard/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
  WAIT_MS = 5000,
  CLAIM_MAX = 64,
  TIME_BYTES = 6,     /* of a claim that is drawn here */
  PAUSE_MS = 5,       /* before the second try, doubled before each further one */
  PAUSE_MAX_MS = 320, /* so that a server that comes back is noticed soon */
  HASH_DIGITS = 17    /* with what stands before them */
};

/* One call. */
struct call {
  dibs_store *store;
  const char *key;
  uint16_t verb;
  int64_t amount;
  dibs_stock_options options;
  const struct dibs__table *table;
  char claim[CLAIM_MAX + 1];
  bool drawn; /* the claim was, here */
  dibs__tick by;
  dibs_lease *lease; /* NAMED, FENCED */
  dibs_error *error;
  dibs_stock_result result;
  dibs_status second; /* what it was answered when it was asked again, with UNKNOWN; else OK */
};

/* ---- Is it well-formed? ---- */

static dibs_status check_size(size_t given, size_t most, const char *what, dibs_error *error) {
  if (given >= sizeof(size_t) && given <= most) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "%s.size is %zu: set it to sizeof(dibs_stock_%s)", what, given, what);
}

static dibs_status check_text(const char *text, size_t most, const char *what, const char *key, dibs_error *error) {
  if (!text) return DIBS_OK;
  enum dibs__name_flaw flaw = dibs__name_check(text, strlen(text), most, NULL);
  if (flaw == DIBS__NAME_FINE) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "the %s of the stock \"%s\" %s", what, key, dibs__name_flaw_text(flaw));
}

static dibs_status lacks(const struct call *call, const char *part) {
  return dibs__fail(call->error, DIBS_INVALID, "the table \"%s\" was declared without %s", call->table->table, part);
}

static dibs_status check_table(const struct call *call) {
  const struct dibs__table *t = call->table;
  bool moves = call->verb == DIBS__STOCK_TAKE || call->verb == DIBS__STOCK_GIVE;
  if (!t) return DIBS_OK;
  if (!t->used || !t->limit) return lacks(call, "used and limit, so it has no stock");
  if (!moves) return DIBS_OK;
  if (!t->claims || !t->claim || !t->stock) return lacks(call, "claims, claim and claim_stock");
  if (call->verb == DIBS__STOCK_GIVE && !t->given) return lacks(call, "claim_given: nothing is ever given back");
  if (call->verb == DIBS__STOCK_TAKE && !t->amount && call->amount != 1)
    return lacks(call, "claim_amount, so each take is 1");
  if (call->options.strategy == DIBS_FENCED && !t->fence) return lacks(call, "fence");
  return DIBS_OK;
}

static bool has_leases(const dibs_store *store) {
  return (dibs__core_families(store->core) & (1u << DIBS__FAM_LEASE)) != 0;
}

static dibs_status check_strategy(const struct call *call) {
  int strategy = (int)call->options.strategy;
  if (strategy < DIBS_COALESCED || strategy > DIBS_UNGUARDED)
    return dibs__fail(call->error, DIBS_INVALID, "there is no strategy %d", strategy);
  if ((strategy == DIBS_NAMED || strategy == DIBS_FENCED) && !has_leases(call->store))
    return dibs__fail(call->error, DIBS_UNSUPPORTED,
                      "the stock \"%s\": inside a transaction of yours there are no leases", call->key);
  return DIBS_OK;
}

static dibs_status check(const struct call *call) {
  const dibs_stock_options *o = &call->options;
  dibs_status status = dibs__asking_check(call->store, DIBS__FAM_STOCK, "stock", call->key, call->error);
  if (status == DIBS_OK) status = check_strategy(call);
  if (status == DIBS_OK) status = check_text(o->claim, CLAIM_MAX, "claim", call->key, call->error);
  if (status == DIBS_OK) status = check_text(o->owner, DIBS_OWNER_MAX, "owner", call->key, call->error);
  if (status == DIBS_OK && o->flags & ~(uint32_t)DIBS_TAKE_PARTIAL)
    status = dibs__fail(call->error, DIBS_INVALID, "flags is %u: only DIBS_TAKE_PARTIAL is known", o->flags);
  if (status == DIBS_OK && o->wait_ms < DIBS_FOREVER)
    status = dibs__fail(call->error, DIBS_INVALID, "wait_ms is %lld", (long long)o->wait_ms);
  return status == DIBS_OK ? check_table(call) : status;
}

/* ---- One question ---- */

/* Coalesced operations of a row travel together; never 0. */
static uint32_t lane_of(const struct call *call) {
  if (call->options.strategy != DIBS_COALESCED || call->verb == DIBS__STOCK_READ) return 0;
  uint64_t hash = dibs__hash(call->key, strlen(call->key));
  if (call->table) hash ^= call->table->nr * UINT64_C(0x9e3779b97f4a7c15);
  uint32_t lane = (uint32_t)(hash ^ hash >> 32);
  return lane ? lane : 1;
}

/* Inside of its lease a take is a conditional statement like any other: whatever becomes of the lease, no more is taken
 * than there is. */
static uint32_t strategy_of(const struct call *call) {
  return call->options.strategy == DIBS_NAMED ? DIBS_ATOMIC : (uint32_t)call->options.strategy;
}

static struct dibs__asking *question(struct call *call) {
  const char *owner = call->options.owner ? call->options.owner : call->store->owner;
  size_t key = strlen(call->key), claim = strlen(call->claim), label = strnlen(owner, DIBS_OWNER_MAX);
  struct dibs__asking *asking = dibs__asking_make(call->store, DIBS__FAM_STOCK, call->table, key + claim + label);
  if (!asking) return NULL;
  struct dibs__stock_op *op = &asking->stock;
  op->table = asking->table;
  op->strategy = strategy_of(call);
  op->partial = (call->options.flags & DIBS_TAKE_PARTIAL) != 0;
  op->key = dibs__asking_keep(asking, call->key, key);
  op->claim = dibs__asking_keep(asking, call->claim, claim);
  op->owner = dibs__asking_keep(asking, owner, label);
  op->amount = call->amount;
  op->tries = call->options.tries;
  return asking;
}

static void take_answers(struct call *call, const struct dibs__stock_op *op) {
  dibs_stock_result *r = &call->result;
  r->got = op->got;
  r->used = op->used;
  r->limit = op->limit;
  r->retries += op->retries;
  r->deadlocks += op->deadlocks;
}

static dibs_status ask(struct call *call) {
  struct dibs__asking *asking = question(call);
  bool lost = false;
  if (!asking) return DIBS_NO_MEMORY;
  dibs_status status = DIBS_OK;
  if (call->options.strategy == DIBS_FENCED && call->lease)
    status = dibs__asking_grant(call->lease, &asking->stock.id, &asking->stock.fence, &lost, call->error);
  if (status == DIBS_OK && lost) status = DIBS_LOST;
  if (status == DIBS_OK) {
    uint16_t flags = call->verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
    status = dibs__asking_carry(asking, call->verb, flags, lane_of(call), call->by);
    if (dibs__asking_is_answered(asking)) take_answers(call, &asking->stock);
  }
  dibs__asking_drop(asking);
  return status;
}

static void pause_before(uint32_t nth, dibs__tick by) {
  int64_t most = PAUSE_MS;
  uint32_t chance;
  for (uint32_t i = 1; i < nth && most < PAUSE_MAX_MS; i++) most *= 2;
  dibs__random(&chance, sizeof chance);
  int64_t ms = most / 2 + (int64_t)(chance % (uint32_t)(most / 2 + 1));
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
  dibs__nap_ms(ms < left ? ms : left);
}

/* Whether an answer to the same question asked again holds for the first one too, which may still be on its way: what
 * was full may have room when that lands.  A claim that is there, or marked as given, and a newer fence stay. */
static bool is_last_word(const struct call *call, dibs_status status) {
  switch (status) {
  case DIBS_OK:
  case DIBS_REPLAY:
  case DIBS_STALE:
    return true;
  case DIBS_CONFLICT:
    return call->options.strategy != DIBS_OPTIMISTIC || call->verb == DIBS__STOCK_GIVE;
  case DIBS_NOT_FOUND:
    return call->verb == DIBS__STOCK_GIVE;
  default:
    return false;
  }
}

/* Asks, and again after what may have been done, or was not: the claim makes it the same question. */
static dibs_status ask_until(struct call *call) {
  bool unsure = false;
  for (uint32_t nth = 1;; nth++) {
    dibs_status status = ask(call);
    if (status == DIBS_REPLAY && unsure && call->drawn) return DIBS_OK; /* nobody else knows the claim: it was we */
    bool passing = status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE;
    if (status == DIBS_UNKNOWN) unsure = true;
    if (unsure && call->verb != DIBS__STOCK_READ && !is_last_word(call, status)) {
      call->second = status;
      status = DIBS_UNKNOWN;
    }
    if (!passing || !has_leases(call->store) || !dibs__tick_before(dibs__tick_now(), call->by)) return status;
    if (call->options.tries && call->result.retries + 1 >= call->options.tries) return status;
    pause_before(nth, call->by);
    call->result.retries++;
  }
}

/* ---- A lease around it ---- */

/* FNV-1a 64: every process has to come to the same name. */
static uint64_t digest(const char *p) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *p; p++) hash = (hash ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
  return hash;
}

static void lease_name(const struct call *call, char name[DIBS_NAME_MAX + 1]) {
  char whole[2 * DIBS_NAME_MAX + 256];
  const struct dibs__table *table = call->table;
  int len = snprintf(whole, sizeof whole, "stock:%s%s%s", table ? table->table : "", table ? ":" : "", call->key);
  if (len <= DIBS_NAME_MAX) {
    memcpy(name, whole, (size_t)len + 1);
    return;
  }
  size_t kept = dibs__utf8_cut(whole, DIBS_NAME_MAX - HASH_DIGITS);
  memcpy(name, whole, kept);
  snprintf(name + kept, HASH_DIGITS + 1, "~%016" PRIx64, digest(whole));
}

static dibs_status under_lease(struct call *call) {
  char name[DIBS_NAME_MAX + 1];
  dibs_lease_options options = {.size = sizeof options, .owner = call->options.owner};
  options.wait_ms = call->by.ns == INT64_MAX ? DIBS_FOREVER : dibs__tick_left_ms(dibs__tick_now(), call->by);
  lease_name(call, name);
  dibs_status status = dibs_acquire(call->store, name, &options, &call->lease, call->error);
  if (status != DIBS_OK) return status;
  status = ask_until(call);
  (void)dibs_release(call->lease, NULL); /* else it ends by itself */
  dibs_lease_free(call->lease);
  call->lease = NULL;
  return status;
}

/* ---- What it came to ---- */

static dibs_status explain_full(const struct call *call) {
  const dibs_stock_result *r = &call->result;
  if (call->verb == DIBS__STOCK_SET)
    return dibs__fail(call->error, DIBS_FULL, "the limit of \"%s\" can't be %lld: %lld are used", call->key,
                      (long long)call->amount, (long long)r->used);
  if (r->limit < 0)
    return dibs__fail(call->error, DIBS_FULL, "there are no %lld left of \"%s\"", (long long)call->amount, call->key);
  return dibs__fail(call->error, DIBS_FULL, "there are no %lld left of \"%s\": %lld of %lld are used",
                    (long long)call->amount, call->key, (long long)r->used, (long long)r->limit);
}

static dibs_status explain_conflict(const struct call *call) {
  if (call->options.strategy == DIBS_OPTIMISTIC && call->verb == DIBS__STOCK_TAKE && call->result.retries > 0)
    return dibs__fail(call->error, DIBS_CONFLICT, "\"%s\" was changed in between %u times, and the tries are used up",
                      call->key, call->result.retries);
  return dibs__fail(call->error, DIBS_CONFLICT,
                    "the claim \"%s\" was given back before, or belongs to another stock than \"%s\"", call->claim,
                    call->key);
}

static dibs_status explain(const struct call *call, dibs_status status) {
  static const char *const doing[] = {[DIBS__STOCK_TAKE] = "taking of",
                                      [DIBS__STOCK_GIVE] = "giving back to",
                                      [DIBS__STOCK_READ] = "reading",
                                      [DIBS__STOCK_SET] = "setting the limit of"};
  switch (status) {
  case DIBS_OK:
  case DIBS_REPLAY:
    (void)dibs__fine(call->error);
    return status;
  case DIBS_FULL:
    return explain_full(call);
  case DIBS_CONFLICT:
    return explain_conflict(call);
  case DIBS_NOT_FOUND:
    if (call->verb == DIBS__STOCK_GIVE && call->result.limit >= 0)
      return dibs__fail(call->error, status, "nothing was taken of \"%s\" under the claim \"%s\"", call->key,
                        call->claim);
    return dibs__fail(call->error, status, "there is no stock \"%s\"; set its limit first", call->key);
  case DIBS_STALE:
    return dibs__fail(call->error, status, "\"%s\" has seen a newer fence: somebody else holds its lease now",
                      call->key);
  case DIBS_INVALID: {
    char trouble[256] = "";
    dibs__core_trouble(call->store->core, trouble, sizeof trouble);
    return dibs__fail(call->error, status, "%s \"%s\" at %s was refused%s%s", doing[call->verb], call->key,
                      call->store->shown, trouble[0] ? ": " : "", trouble);
  }
  case DIBS_UNKNOWN:
    if (call->second != DIBS_OK && call->second != DIBS_UNKNOWN && call->second != DIBS_UNAVAILABLE)
      return dibs__fail(
          call->error, status,
          "%s \"%s\": %s, when it was asked again after a broken connection; the first try may still come "
          "through: repeat it with the claim \"%s\"",
          doing[call->verb], call->key, dibs_status_text(call->second), call->claim);
    return dibs__explain(call->store, status, doing[call->verb], call->key, call->error);
  default:
    return dibs__explain(call->store, status, doing[call->verb], call->key, call->error);
  }
}

/* ---- The calls ---- */

static dibs_status draw_claim(struct call *call) {
  uint8_t bytes[16];
  if (call->options.claim) {
    memcpy(call->claim, call->options.claim, strlen(call->options.claim) + 1); /* its length was checked */
    return DIBS_OK;
  }
  if (call->verb == DIBS__STOCK_GIVE)
    return dibs__fail(call->error, DIBS_INVALID, "the stock \"%s\": which claim is to be given back?", call->key);
  /* Time first, so that what is written one after the other lies side by side: claims by chance alone cost an engine a
   * page each, which is 4 to 6 times the work.  Nothing depends on it: the rest is chance enough. */
  int64_t ms = dibs__wall_ms();
  dibs__random(bytes, sizeof bytes);
  for (int i = 0; i < TIME_BYTES; i++) bytes[i] = (uint8_t)(ms >> 8 * (TIME_BYTES - 1 - i));
  dibs__hex_write(bytes, call->claim);
  call->drawn = true;
  return DIBS_OK;
}

static dibs_status carry_out(struct call *call) {
  bool moves = call->verb == DIBS__STOCK_TAKE || call->verb == DIBS__STOCK_GIVE;
  dibs_status status = check(call);
  if (status == DIBS_OK && moves) status = draw_claim(call);
  if (status != DIBS_OK) return status;
  int64_t wait = call->options.wait_ms ? call->options.wait_ms : WAIT_MS;
  call->by = wait == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), wait);
  bool leased = call->options.strategy == DIBS_NAMED || call->options.strategy == DIBS_FENCED;
  if (!moves || !leased) return explain(call, ask_until(call));
  status = under_lease(call);
  /* What its lease came to is explained already. */
  return status == DIBS_HELD || status == DIBS_TIMEOUT ? status : explain(call, status);
}

static dibs_status run(struct call *call, const char *name, const dibs_stock_options *options,
                       dibs_stock_result *result) {
  dibs_status status = DIBS_OK;
  if (options) status = check_size(options->size, sizeof *options, "options", call->error);
  if (status == DIBS_OK && result) status = check_size(result->size, sizeof *result, "result", call->error);
  if (status != DIBS_OK) return status;
  const char *claim = call->options.claim;
  if (options) memcpy(&call->options, options, options->size);
  if (call->verb == DIBS__STOCK_GIVE) call->options.claim = claim;
  call->table = dibs__table_of(call->options.table);
  call->result = (dibs_stock_result){.used = -1, .limit = -1};
  status = dibs__enter(call->store, name, call->error);
  if (status == DIBS_OK) {
    status = carry_out(call);
    dibs__exit(call->store);
  }
  if (!result) return status;
  call->result.size = result->size;
  memcpy(call->result.claim, call->claim, sizeof call->claim);
  memcpy(result, &call->result, result->size);
  return status;
}

dibs_status dibs_stock_take(dibs_store *store, const char *key, int64_t amount, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_TAKE, .amount = amount, .error = error};
  if (amount < 1)
    return dibs__fail(error, DIBS_INVALID, "dibs_stock_take: the amount is %lld; it is at least 1", (long long)amount);
  return run(&call, "dibs_stock_take", options, result);
}

dibs_status dibs_stock_give(dibs_store *store, const char *key, const char *claim, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_GIVE, .error = error};
  call.options.claim = claim;
  return run(&call, "dibs_stock_give", options, result);
}

dibs_status dibs_stock_show(dibs_store *store, const char *key, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_READ, .error = error};
  return run(&call, "dibs_stock_show", options, result);
}

dibs_status dibs_stock_set(dibs_store *store, const char *key, int64_t limit, const dibs_stock_options *options,
                           dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_SET, .amount = limit, .error = error};
  if (limit < 0)
    return dibs__fail(error, DIBS_INVALID, "dibs_stock_set: the limit is %lld; it is at least 0", (long long)limit);
  return run(&call, "dibs_stock_set", options, result);
}
