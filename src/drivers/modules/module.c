/* SPDX-License-Identifier: MIT */
/* The one symbol of a driver module.  Compiled into each, with the driver that it gives as DIBS__MODULE_DRIVER. */
#include "store/registry.h"

extern const struct dibs__driver DIBS__MODULE_DRIVER;

DIBS__MODULE_API dibs__module_fn dibs__module;

const struct dibs__driver *dibs__module(void) {
  return &DIBS__MODULE_DRIVER;
}
