/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_REGISTRY_H
#define DIBS_STORE_REGISTRY_H
/*
 * Finds the driver of a scheme: a built-in one, or a module (module.h) that is loaded when its scheme is first used,
 * dibs-driver-SCHEME.so.  A module exports one symbol, `dibs__module`, a function that returns its struct dibs__driver.
 * A driver with another size or abi is refused, with both numbers.  Modules stay loaded until the process ends.
 */
#include "store/uri.h"

#define DIBS__MODULE_SYMBOL "dibs__module"
typedef const struct dibs__driver *dibs__module_fn(void);

/* The drivers that are part of the library, NULL at the end: drivers/built_in.c. */
extern const struct dibs__driver *const dibs__built_in_drivers[];

/* UNSUPPORTED: no such driver; result.text has the name of the file and where it was searched. */
dibs__status dibs__driver_find(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                               struct dibs__result *result);

/* Is the driver of this scheme a part of the library?  Such a driver needs no server. */
bool dibs__driver_built_in(const char *scheme);

/* Adds a driver that is linked into the program (a test's, a simulator's), which is found before any module.  It must
 * exist until the process ends.  false: no memory. */
bool dibs__driver_add(const struct dibs__driver *driver);

/* A store with its shims: stores[0] is the outermost one, which the core calls. */
struct dibs__chain {
  struct dibs__dstore *stores[DIBS__URI_SHIMS + 1];
  size_t count;
};
dibs__status dibs__chain_open(const struct dibs__uri *uri, const char *module_path, dibs__tick by,
                              struct dibs__chain *chain, struct dibs__result *result);
void dibs__chain_close(struct dibs__chain *chain);

#endif
