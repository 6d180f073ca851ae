/* SPDX-License-Identifier: MIT */
/* The drivers that are part of the library: no server is needed for them.  Others are modules. */
#include "store/registry.h"

extern const struct dibs__driver dibs__sqlite_driver, dibs__memory_driver, dibs__tiers_driver;

const struct dibs__driver *const dibs__built_in_drivers[] = {&dibs__sqlite_driver, &dibs__memory_driver,
                                                             &dibs__tiers_driver, NULL};
