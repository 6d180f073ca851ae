/* SPDX-License-Identifier: MIT */
/* The driver for MariaDB and MySQL: a module, loaded when its scheme is first used. */
#include "drivers/mysql_parts.h"

extern const struct dibs__driver dibs__mysql_driver;

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  (void)inner;
  (void)count;
  return dibs__far_open(&dibs__my_engine, uri, by, store, said);
}

static const char *const schemes[] = {"mysql", "mariadb", NULL};

const struct dibs__driver dibs__mysql_driver = {.size = sizeof(struct dibs__driver),
                                                .abi = DIBS__DRIVER_ABI,
                                                .name = "mysql",
                                                .schemes = schemes,
                                                .open = open_store,
                                                .close = dibs__far_close,
                                                .connect = dibs__far_connect,
                                                .disconnect = dibs__far_disconnect,
                                                .attach = dibs__far_attach,
                                                .run = dibs__far_run,
                                                .events = dibs__far_events,
                                                .wake = dibs__far_wake,
                                                .list = dibs__far_list,
                                                .tidy = dibs__far_tidy};
