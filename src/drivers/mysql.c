/* SPDX-License-Identifier: MIT */
/*
 * The driver for MariaDB and MySQL: a module, loaded when its scheme is first used.  With lock=named leases are the
 * server's own locks.
 */
#include "drivers/mysql_parts.h"
#include "sql/far_lock.h"

#include <string.h>

extern const struct dibs__driver dibs__mysql_driver;

static const char *const schemes[] = {"mysql", "mariadb", NULL};

static const struct dibs__driver session_locks = {.size = sizeof(struct dibs__driver),
                                                  .abi = DIBS__DRIVER_ABI,
                                                  .name = "mysql",
                                                  .schemes = schemes,
                                                  .close = dibs__far_lock_close,
                                                  .connect = dibs__far_lock_connect,
                                                  .disconnect = dibs__far_disconnect,
                                                  .attach = dibs__far_attach,
                                                  .run = dibs__far_lock_run,
                                                  .events = dibs__far_lock_events,
                                                  .wake = dibs__far_lock_wake,
                                                  .list = dibs__far_lock_list,
                                                  .tidy = dibs__far_lock_tidy};

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__said *said) {
  const char *lock = dibs__uri_param(uri, "lock");
  (void)inner;
  (void)count;
  dibs__status status = dibs__far_open(&dibs__my_engine, uri, by, store, said);
  if (status != DIBS_OK || !lock || strcmp(lock, "named") != 0) return status;
  return dibs__far_lock_open(*store, &dibs__my_locking, &session_locks, by, said);
}

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
