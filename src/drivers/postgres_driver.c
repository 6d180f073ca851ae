/* SPDX-License-Identifier: MIT */
/* The driver's table: what servers share, over PostgreSQL. */
#include "drivers/postgres_parts.h"

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  (void)inner;
  (void)count;
  return dibs__far_open(&dibs__pg_engine, uri, by, store, said);
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
