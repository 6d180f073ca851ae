/* SPDX-License-Identifier: MIT */
/* Taking part in a transaction of the user's, on the connection that it stands open on. */
#include "lease/room.h"

static dibs_status inside(dibs_store *store, void *connection, dibs_store **out, dibs_error *error) {
  struct dibs__core *core = NULL;
  struct dibs__said said = {0};
  if (!connection) return dibs__fail(error, DIBS_INVALID, "dibs_inside: no connection was given");
  if (store->outer) return dibs__fail(error, DIBS_INVALID, "dibs_inside: this handle is inside a transaction already");
  dibs_status status = (dibs_status)dibs__core_inside(store->core, connection, &core, &said);
  if (status != DIBS_OK)
    return dibs__fail(error, status, "a transaction of yours at %s: %s", store->shown,
                      said.text[0] ? said.text : dibs_status_text(status));
  status = dibs__store_inside(store, core, out, error);
  if (status != DIBS_OK) dibs__core_close(core);
  return status;
}

dibs_status dibs_inside(dibs_store *store, void *connection, dibs_store **out, dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_inside: no place for the handle was given");
  *out = NULL;
  dibs_status status = dibs__enter(store, "dibs_inside", error);
  if (status != DIBS_OK) return status;
  status = inside(store, connection, out, error);
  dibs__exit(store);
  return status;
}
