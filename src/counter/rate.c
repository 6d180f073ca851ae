/* SPDX-License-Identifier: MIT */
/* Quotas: a bucket of tokens, which the store keeps. */
#include "counter/counter_impl.h"
#include "handle/request.h"

#include <string.h>

enum { SEND_MS = 5000 };

static dibs_status check_options(const dibs_rate_options *given, dibs_rate_options *o, dibs_error *error) {
  *o = (dibs_rate_options){.size = sizeof *o};
  if (!given) return dibs__fail(error, DIBS_INVALID, "dibs_rate: options is NULL: give limit and per_ms");
  dibs_status status = dibs__check_size(given->size, sizeof *o, "dibs_rate_options", error);
  if (status != DIBS_OK) return status;
  memcpy(o, given, given->size);
  if (o->amount == 0) o->amount = 1;
  if (o->limit < 1 || o->limit > DIBS__RATE_LIMIT_MAX)
    return dibs__fail(error, DIBS_INVALID, "limit is %lld: give 1 to a billion", (long long)o->limit);
  if (o->per_ms < 1 || o->per_ms > DIBS__RATE_PER_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "per_ms is %lld: give 1 ms to 31 days", (long long)o->per_ms);
  if (o->amount < 1 || o->amount > o->limit)
    return dibs__fail(error, DIBS_INVALID, "amount is %lld: give 1 to the limit, which is %lld", (long long)o->amount,
                      (long long)o->limit);
  if (o->wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                      (long long)o->wait_ms);
  return DIBS_OK;
}

static dibs_status take_once(dibs_store *store, const char *key, const dibs_rate_options *o, int64_t *retry_ms) {
  size_t len = strlen(key);
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_COUNTER, NULL, len);
  *retry_ms = 0;
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__counter_op *op = &request->counter;
  op->key = dibs__request_keep(request, key, len);
  op->amount = o->amount;
  op->limit = o->limit;
  op->per_ms = o->per_ms;
  dibs_status status =
      dibs__request_carry_until(request, DIBS__COUNTER_TAKE, dibs__tick_add_ms(dibs__tick_now(), SEND_MS));
  if (status == DIBS_FULL) *retry_ms = op->wait_ms;
  dibs__request_drop(request);
  return status;
}

/* Refused, and there is time to try again: sleeps. */
static bool wait_for_more(dibs_store *store, dibs_status status, int64_t retry_ms, dibs__tick by) {
  enum { NAP_MS = 100 }; /* how soon a closing store is noticed */
  int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
  if (status != DIBS_FULL || retry_ms > left_ms) return false;
  dibs__tick end = dibs__tick_add_ms(dibs__tick_now(), retry_ms);
  for (int64_t nap_ms; !store->closing && (nap_ms = dibs__tick_left_ms(dibs__tick_now(), end)) > 0;)
    dibs__nap_ms(nap_ms < NAP_MS ? nap_ms : NAP_MS);
  return !store->closing;
}

static dibs_status take(dibs_store *store, const char *key, const dibs_rate_options *o, int64_t *retry_ms,
                        dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), o->wait_ms);
  dibs_status status;
  do status = take_once(store, key, o, retry_ms);
  while (wait_for_more(store, status, *retry_ms, by));
  if (status == DIBS_OK) return dibs__fine(error);
  if (status != DIBS_FULL) return dibs__explain(store, status, "taking from the quota", key, error);
  return dibs__fail(error, status, "the quota \"%s\" has less than %lld left; try again in %lld ms", key,
                    (long long)o->amount, (long long)*retry_ms);
}

dibs_status dibs_rate(dibs_store *store, const char *key, const dibs_rate_options *options, int64_t *retry_ms,
                      dibs_error *error) {
  dibs_rate_options o;
  int64_t unused;
  if (!retry_ms) retry_ms = &unused;
  *retry_ms = 0;
  dibs_status status = check_options(options, &o, error);
  if (status == DIBS_OK) status = dibs__check_text(key, DIBS_NAME_MAX, "the key of the quota", error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_rate", error);
  if (status != DIBS_OK) return status;
  status = dibs__count_check_outside(store, "dibs_rate", error);
  if (status == DIBS_OK) status = take(store, key, &o, retry_ms, error);
  dibs__exit(store);
  return status;
}
