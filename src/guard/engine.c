/* SPDX-License-Identifier: MIT */
/* What the driver of a store sees of its servers, for `dibs doctor`: store/engine.h. */
#include "guard/guard.h"
#include "handle/request.h"

dibs_status dibs__guard_engine(dibs_store *store, int64_t ms, dibs__finding_fn *row, void *user, dibs_error *error) {
  dibs_status status = dibs__enter(store, "dibs doctor", error);
  if (status != DIBS_OK) return status;
  struct dibs__request *request = NULL;
  if (!(dibs__core_families(store->core) & 1u << DIBS__FAM_ENGINE)) {
    status = dibs__fail(error, DIBS_UNSUPPORTED, "%s says nothing of its servers", store->shown);
    goto out;
  }
  request = dibs__request_make(store, DIBS__FAM_ENGINE, NULL, 0);
  if (!request) {
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory");
    goto out;
  }
  status = dibs__request_carry(request, DIBS__ENGINE_DESCRIBE, dibs__tick_add_ms(dibs__tick_now(), ms));
  if (status != DIBS_OK) {
    char trouble[256] = "";
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    (void)dibs__fail(error, status, "cannot ask %s about its servers: %s%s%s", store->shown, dibs_status_text(status),
                     trouble[0] ? ": " : "", trouble);
    goto out;
  }
  for (uint32_t i = 0; i < request->engine.got_count; i++) row(&request->engine.got[i], user);
  status = dibs__fine(error);

out:
  dibs__request_drop(request);
  dibs__exit(store);
  return status;
}
