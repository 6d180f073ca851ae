/* SPDX-License-Identifier: MIT */
/* The driver's tables: what servers share, over PostgreSQL; with lock=advisory leases are the server's own locks. */
#include "drivers/postgres_parts.h"
#include "sql/far_lock.h"

static const struct dibs__driver session_locks = {
    .size = sizeof session_locks,
    .abi = DIBS__DRIVER_ABI,
    .name = "postgres",
    .schemes = dibs__pg_schemes,
    .close = dibs__far_lock_close,
    .connect = dibs__far_lock_connect,
    .disconnect = dibs__far_disconnect,
    .attach = dibs__far_attach,
    .run = dibs__far_lock_run,
    .events = dibs__far_lock_events,
    .wake = dibs__far_lock_wake,
    .list = dibs__far_lock_list,
    .tidy = dibs__far_lock_tidy,
};

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  (void)inner;
  (void)count;
  dibs__status status = dibs__far_open(&dibs__pg_engine, uri, by, store, said);
  if (status != DIBS_OK || !dibs__pg_wants_locks(uri)) return status;
  return dibs__far_lock_open(*store, &dibs__pg_locking, &session_locks, by, said);
}

extern const struct dibs__driver dibs__postgres_driver;
const struct dibs__driver dibs__postgres_driver = {
    .size = sizeof dibs__postgres_driver,
    .abi = DIBS__DRIVER_ABI,
    .name = "postgres",
    .schemes = dibs__pg_schemes,
    .open = open_store,
    .close = dibs__far_close,
    .connect = dibs__far_connect,
    .disconnect = dibs__far_disconnect,
    .attach = dibs__far_attach,
    .run = dibs__far_run,
    .events = dibs__far_events,
    .wake = dibs__far_wake,
    .list = dibs__far_list,
    .tidy = dibs__far_tidy,
};
