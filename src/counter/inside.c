/* SPDX-License-Identifier: MIT */
/*
 * An addition in the user's own transaction.  It goes alone, over their connection: it joins no batch, because the
 * others of a batch must not wait for this transaction, and it has no id, because its outcome is that of the
 * transaction.  It is never repeated: what failed may have ended the transaction.
 */
#include "counter/counter_impl.h"
#include "handle/request.h"

#include <string.h>

static struct dibs__request *make_request(dibs_store *store, const char *key, const struct dibs__table *table,
                                          int64_t delta) {
  size_t len = strlen(key);
  struct dibs__request *request =
      dibs__request_make(store, DIBS__FAM_COUNTER, table, sizeof(struct dibs__counter_item) + len + 1);
  if (!request) return NULL;
  struct dibs__counter_op *op = &request->counter;
  op->table = request->table;
  op->count = 1;
  op->items = dibs__request_array(request, sizeof *op->items);
  op->items[0] = (struct dibs__counter_item){.key = dibs__request_keep(request, key, len), .delta = delta};
  return request;
}

dibs_status dibs__count_inside(dibs_store *store, const char *key, const struct dibs__table *table, int64_t delta,
                               dibs__tick by, dibs_error *error) {
  struct dibs__request *request = make_request(store, key, table, delta);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for an addition to \"%s\"", key);
  dibs_status status = dibs__request_carry(request, DIBS__COUNTER_ADD, by);
  const char *why = dibs__request_is_answered(request) ? request->counter.why : "";
  if (status == DIBS_OK) status = (dibs_status)request->counter.items[0].status;
  if (status == DIBS_OK || why[0] || status == DIBS_FULL || status == DIBS_NOT_FOUND)
    status = dibs__count_explain(store, key, table, status, why, error);
  else
    (void)dibs__explain(store, status, "adding to", key, error);
  dibs__request_drop(request);
  return status;
}
