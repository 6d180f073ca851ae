/* SPDX-License-Identifier: MIT */
/*
 * Stock: take, give, show, set.  A thin layer: the store decides.  This file draws the claim, so that a
 * call that answers UNKNOWN can be repeated with it, and repeats it as long as the caller's time allows; it acquires
 * the lease that a strategy needs; and operations of one row get one lane, so that they travel together and never in
 * two batches at once.
 */
#include "base/map.h"
#include "base/text.h"
#include "guard/guard.h"
#include "handle/request.h"
#include "lease/lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  WAIT_MS = 5000,
  CLAIM_MAX = 64,
  TIME_BYTES = 6,  /* of a claim that is drawn here */
  HASH_DIGITS = 17 /* with the prefix */
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
  char why[200];      /* what the store said of the latest answer */
  dibs_status second; /* what it was answered when it was asked again, with UNKNOWN; else OK */
};

/* ---- Is it well-formed? ---- */

static dibs_status check_size(size_t given, size_t most, const char *what, dibs_error *error) {
  if (given >= sizeof(size_t) && given <= most) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "%s.size is %zu: set it to sizeof(dibs_stock_%s)", what, given, what);
}

static dibs_status check_text(const char *text, size_t most, const char *what, const char *key, dibs_error *error) {
  if (!text) return DIBS_OK;
  char subject[DIBS_NAME_MAX + 64];
  snprintf(subject, sizeof subject, "the %s of the stock \"%s\"", what, key);
  return dibs__check_text(text, most, subject, error);
}

static dibs_status lacks(const struct call *call, const char *part) {
  return dibs__fail(call->error, DIBS_INVALID, "the table \"%s\" was declared without %s", call->table->table, part);
}

static dibs_status check_table(const struct call *call) {
  const struct dibs__table *t = call->table;
  bool moves = call->verb == DIBS__STOCK_TAKE || call->verb == DIBS__STOCK_GIVE;
  if (!t) return DIBS_OK;
  if (!t->used || !t->limit) return lacks(call, "used and limit, which a stock needs");
  if (!moves) return DIBS_OK;
  if (!t->claims || !t->claim) return lacks(call, "claims and claim");
  if (call->verb == DIBS__STOCK_GIVE && !t->given) return lacks(call, "claim_given, which giving back needs");
  if (call->verb == DIBS__STOCK_TAKE && !t->amount && call->amount != 1)
    return lacks(call, "claim_amount, so a take of more than 1 is not possible");
  if (call->options.strategy == DIBS_FENCED && !t->fence) return lacks(call, "fence");
  return DIBS_OK;
}

static bool has_leases(const dibs_store *store) {
  return (dibs__core_families(store->core) & (1u << DIBS__FAM_LEASE)) != 0;
}

static dibs_status check_strategy(const struct call *call) {
  int strategy = (int)call->options.strategy;
  if (strategy < DIBS_COALESCED || strategy > DIBS_FENCED)
    return dibs__fail(call->error, DIBS_INVALID, "there is no strategy %d", strategy);
  if ((strategy == DIBS_NAMED || strategy == DIBS_FENCED) && !has_leases(call->store))
    return dibs__fail(
        call->error, DIBS_UNSUPPORTED,
        "the stock \"%s\": this strategy needs a lease, which a handle inside a transaction does not have", call->key);
  return DIBS_OK;
}

static dibs_status stock_check(const struct call *call) {
  const dibs_stock_options *o = &call->options;
  dibs_status status = dibs__request_check(call->store, DIBS__FAM_STOCK, "stock", call->key, call->error);
  if (status == DIBS_OK) status = check_strategy(call);
  if (status == DIBS_OK) status = check_text(o->claim, CLAIM_MAX, "claim", call->key, call->error);
  if (status == DIBS_OK) status = check_text(o->owner, DIBS_OWNER_MAX, "owner", call->key, call->error);
  if (status == DIBS_OK && o->flags & ~(uint32_t)DIBS_TAKE_PARTIAL)
    status = dibs__fail(call->error, DIBS_INVALID, "flags is %u: give 0 or DIBS_TAKE_PARTIAL", o->flags);
  if (status == DIBS_OK && o->wait_ms < DIBS_FOREVER)
    status = dibs__fail(call->error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                        (long long)o->wait_ms);
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

static struct dibs__request *question(struct call *call) {
  const char *owner = call->options.owner ? call->options.owner : call->store->owner;
  size_t key = strlen(call->key), claim = strlen(call->claim), label = strnlen(owner, DIBS_OWNER_MAX);
  struct dibs__request *request = dibs__request_make(call->store, DIBS__FAM_STOCK, call->table, key + claim + label);
  if (!request) return NULL;
  struct dibs__stock_op *op = &request->stock;
  op->table = request->table;
  op->strategy = strategy_of(call);
  op->partial = (call->options.flags & DIBS_TAKE_PARTIAL) != 0;
  op->key = dibs__request_keep(request, call->key, key);
  op->claim = dibs__request_keep(request, call->claim, claim);
  op->owner = dibs__request_keep(request, owner, label);
  op->amount = call->amount;
  op->tries = call->options.tries;
  return request;
}

static void take_answers(struct call *call, const struct dibs__stock_op *op) {
  dibs_stock_result *r = &call->result;
  r->got = op->got;
  r->used = op->used;
  r->limit = op->limit;
  snprintf(call->why, sizeof call->why, "%s", op->why);
  r->retries += op->retries;
  r->deadlocks += op->deadlocks;
}

/* ---- Completed later ---- */

/* A call of dibs__stock_start: its own memory, until it is answered. */
struct started {
  struct call call;
  dibs_error error;
  dibs__stock_fn done;
  void *user;
};

static dibs_status explain(const struct call *call, dibs_status status);

static void finish_started(struct dibs__request *request, dibs_status status) {
  struct started *s = request->user;
  struct call *call = &s->call;
  call->key = request->stock.key.p;
  call->error = &s->error;
  take_answers(call, &request->stock);
  status = explain(call, status);
  call->result.size = sizeof call->result;
  memcpy(call->result.claim, call->claim, sizeof call->claim);
  s->done(status, &call->result, &s->error, s->user);
  dibs__request_drop(request);
  free(s);
}

/* ---- In the caller's thread ---- */

static dibs_status send_request(struct call *call) {
  struct dibs__request *request = question(call);
  bool lost = false;
  if (!request) return DIBS_NO_MEMORY;
  dibs_status status = DIBS_OK;
  if (call->options.strategy == DIBS_FENCED && call->lease)
    status = dibs__lease_grant(call->lease, &request->stock.id, &request->stock.fence, &lost, call->error);
  if (status == DIBS_OK && lost) status = DIBS_LOST;
  if (status == DIBS_OK) {
    request->op.lane = lane_of(call);
    status = dibs__request_carry(request, call->verb, call->by);
    if (dibs__request_is_answered(request)) take_answers(call, &request->stock);
  }
  dibs__request_drop(request);
  return status;
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
static dibs_status request_until(struct call *call) {
  bool unsure = false;
  for (uint32_t nth = 1;; nth++) {
    dibs_status status = send_request(call);
    if (status == DIBS_REPLAY && unsure && call->drawn) return DIBS_OK; /* nobody else knows the claim: it was we */
    bool passing = status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE;
    if (status == DIBS_UNKNOWN) unsure = true;
    if (unsure && call->verb != DIBS__STOCK_READ && !is_last_word(call, status)) {
      call->second = status;
      status = DIBS_UNKNOWN;
    }
    if (!passing || !has_leases(call->store) || !dibs__tick_before(dibs__tick_now(), call->by)) return status;
    if (call->options.tries && call->result.retries + 1 >= call->options.tries) return status;
    dibs__request_pause(nth, call->by);
    call->result.retries++;
  }
}

/* ---- A lease around it ---- */

/* FNV-1a 64: every process must compute the same name. */
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
  status = request_until(call);
  (void)dibs_release(call->lease, NULL); /* else it ends by itself */
  dibs_lease_free(call->lease);
  call->lease = NULL;
  return status;
}

/* ---- Explaining the answer ---- */

static dibs_status explain_full(const struct call *call) {
  const dibs_stock_result *r = &call->result;
  if (call->verb == DIBS__STOCK_SET)
    return dibs__fail(call->error, DIBS_FULL, "cannot set the limit of \"%s\" to %lld: %lld are used", call->key,
                      (long long)call->amount, (long long)r->used);
  if (r->limit < 0)
    return dibs__fail(call->error, DIBS_FULL, "fewer than %lld are left of \"%s\"", (long long)call->amount, call->key);
  return dibs__fail(call->error, DIBS_FULL, "fewer than %lld are left of \"%s\": %lld of %lld are used",
                    (long long)call->amount, call->key, (long long)r->used, (long long)r->limit);
}

static dibs_status explain_conflict(const struct call *call) {
  if (call->options.strategy == DIBS_OPTIMISTIC && call->verb == DIBS__STOCK_TAKE && call->result.retries > 0)
    return dibs__fail(call->error, DIBS_CONFLICT, "\"%s\" changed between reading and writing in each of %u tries",
                      call->key, call->result.retries);
  if (call->why[0])
    return dibs__fail(call->error, DIBS_CONFLICT, "the claim \"%s\" took nothing: %s", call->claim, call->why);
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
      return dibs__fail(call->error, status, "\"%s\" has no claim \"%s\": nothing was taken under that id", call->key,
                        call->claim);
    return dibs__fail(call->error, status, "there is no stock \"%s\"; %s", call->key,
                      call->why[0] ? call->why : "set its limit first");
  case DIBS_STALE:
    return dibs__fail(call->error, status, "\"%s\" has seen a newer fence: somebody else holds its lease now",
                      call->key);
  case DIBS_INVALID: {
    char trouble[256] = "";
    if (call->why[0]) return dibs__fail(call->error, status, "%s \"%s\": %s", doing[call->verb], call->key, call->why);
    dibs__core_trouble(call->store->core, trouble, sizeof trouble);
    return dibs__fail(call->error, status, "%s \"%s\" at %s was refused%s%s", doing[call->verb], call->key,
                      call->store->shown, trouble[0] ? ": " : "", trouble);
  }
  case DIBS_UNKNOWN:
    if (call->second != DIBS_OK && call->second != DIBS_UNKNOWN && call->second != DIBS_UNAVAILABLE)
      return dibs__fail(call->error, status,
                        "%s \"%s\": the repetition after a broken connection answered: %s.  The first try may still "
                        "take effect; repeat it with the claim \"%s\"",
                        doing[call->verb], call->key, dibs_status_text(call->second), call->claim);
    return dibs__explain(call->store, status, doing[call->verb], call->key, call->error);
  default:
    if (status == DIBS_UNSUPPORTED && call->why[0])
      return dibs__fail(call->error, status, "%s \"%s\": %s", doing[call->verb], call->key, call->why);
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
    return dibs__fail(call->error, DIBS_INVALID, "the stock \"%s\": the claim to give back is missing", call->key);
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
  dibs_status status = stock_check(call);
  if (status == DIBS_OK && moves) status = draw_claim(call);
  if (status != DIBS_OK) return status;
  int64_t wait = call->options.wait_ms ? call->options.wait_ms : WAIT_MS;
  call->by = wait == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), wait);
  bool leased = call->options.strategy == DIBS_NAMED || call->options.strategy == DIBS_FENCED;
  if (!moves || !leased) return explain(call, request_until(call));
  status = under_lease(call);
  /* The failure of its lease has its text already. */
  return status == DIBS_HELD || status == DIBS_TIMEOUT ? status : explain(call, status);
}

/* What the caller gave, with defaults; *claim is kept. */
static dibs_status read_options(struct call *call, const dibs_stock_options *options) {
  if (options && check_size(options->size, sizeof *options, "options", call->error) != DIBS_OK) return DIBS_INVALID;
  const char *claim = call->options.claim;
  if (options) memcpy(&call->options, options, options->size);
  if (call->verb == DIBS__STOCK_GIVE) call->options.claim = claim;
  call->table = dibs__table_of(call->options.table);
  call->result = (dibs_stock_result){.used = -1, .limit = -1};
  return DIBS_OK;
}

static dibs_status run_stock(struct call *call, const char *name, const dibs_stock_options *options,
                             dibs_stock_result *result) {
  dibs_status status = read_options(call, options);
  if (status == DIBS_OK && result) status = check_size(result->size, sizeof *result, "result", call->error);
  if (status != DIBS_OK) return status;
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

static dibs_status start_call(const struct call *call, dibs__stock_fn done, void *user) {
  struct started *s = malloc(sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  *s = (struct started){.call = *call, .done = done, .user = user};
  struct dibs__request *request = question(&s->call);
  dibs_status status = request ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK) {
    request->op.lane = lane_of(&s->call);
    status = dibs__request_start(request, s->call.verb, s->call.by, finish_started, s);
  }
  if (status == DIBS_OK) return status;
  dibs__request_drop(request);
  free(s);
  return status;
}

dibs_status dibs__stock_start(dibs_store *store, enum dibs__stock_verb verb, const char *key, int64_t amount,
                              const dibs_stock_options *options, dibs__stock_fn done, void *user, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = (uint16_t)verb, .amount = amount, .error = error};
  if (options) call.options.claim = options->claim;
  dibs_status status = read_options(&call, options);
  if (status == DIBS_OK) status = dibs__enter(store, "a request for a stock", error);
  if (status != DIBS_OK) return status;
  bool moves = verb == DIBS__STOCK_TAKE || verb == DIBS__STOCK_GIVE;
  status = stock_check(&call);
  if (status == DIBS_OK && moves) status = draw_claim(&call);
  if (status == DIBS_OK) {
    call.by = dibs__tick_add_ms(dibs__tick_now(), WAIT_MS);
    status = start_call(&call, done, user);
    if (status != DIBS_OK) status = dibs__explain(store, status, "starting a request for", key, error);
  }
  dibs__exit(store);
  return status;
}

dibs_status dibs_stock_take(dibs_store *store, const char *key, int64_t amount, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_TAKE, .amount = amount, .error = error};
  if (amount < 1)
    return dibs__fail(error, DIBS_INVALID, "dibs_stock_take: the amount is %lld; give at least 1", (long long)amount);
  return run_stock(&call, "dibs_stock_take", options, result);
}

dibs_status dibs_stock_give(dibs_store *store, const char *key, const char *claim, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_GIVE, .error = error};
  call.options.claim = claim;
  return run_stock(&call, "dibs_stock_give", options, result);
}

dibs_status dibs_stock_show(dibs_store *store, const char *key, const dibs_stock_options *options,
                            dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_READ, .error = error};
  return run_stock(&call, "dibs_stock_show", options, result);
}

dibs_status dibs_stock_set(dibs_store *store, const char *key, int64_t limit, const dibs_stock_options *options,
                           dibs_stock_result *result, dibs_error *error) {
  struct call call = {.store = store, .key = key, .verb = DIBS__STOCK_SET, .amount = limit, .error = error};
  if (limit < 0)
    return dibs__fail(error, DIBS_INVALID, "dibs_stock_set: the limit is %lld; give at least 0", (long long)limit);
  return run_stock(&call, "dibs_stock_set", options, result);
}

/* ---- Listing ---- */

static dibs_status list_once(dibs_store *store, const char *prefix, const char *after, uint32_t most,
                             struct dibs__request **answered) {
  size_t prefix_size = prefix ? strlen(prefix) : 0, after_size = after ? strlen(after) : 0;
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_STOCK, NULL, prefix_size + after_size);
  if (!request) return DIBS_NO_MEMORY;
  request->stock.key = dibs__request_keep(request, prefix ? prefix : "", prefix_size);
  request->stock.claim = dibs__request_keep(request, after ? after : "", after_size);
  request->stock.amount = most;
  dibs_status status = dibs__request_carry(request, DIBS__STOCK_LIST, DIBS__TICK_NEVER);
  if (status == DIBS_OK)
    *answered = request;
  else
    dibs__request_drop(request);
  return status;
}

dibs_status dibs__stock_list(dibs_store *store, const char *prefix, const char *after, uint32_t most,
                             dibs__stock_row_fn fn, void *user, dibs_error *error) {
  struct dibs__request *answered = NULL;
  dibs_status status = dibs__enter(store, "dibs_stock_list", error);
  if (status != DIBS_OK) return status;
  status = dibs__request_check(store, DIBS__FAM_STOCK, "stock", prefix && *prefix ? prefix : "*", error);
  if (status == DIBS_OK && after && *after) status = check_text(after, DIBS_NAME_MAX, "start", "*", error);
  if (status == DIBS_OK) {
    status = list_once(store, prefix, after, most, &answered);
    if (status != DIBS_OK) status = dibs__explain(store, status, "listing the stocks", prefix ? prefix : "", error);
  }
  for (uint32_t i = 0; status == DIBS_OK && i < answered->stock.row_count; i++) {
    const struct dibs__stock_row *row = &answered->stock.rows[i];
    fn(row->key.p, row->used, row->limit, user);
  }
  dibs__request_drop(answered);
  dibs__exit(store);
  return status;
}
