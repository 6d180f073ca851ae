/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_REGISTRY_H
#define DIBS_STORE_REGISTRY_H
/*
 * Which driver serves a scheme: the built-in ones, else a module loaded when its scheme is first used,
 * dibs-driver-SCHEME.so, from the first of: the caller's path, DIBS_MODULE_PATH (not when setuid), the installed
 * folder.  A module exports one symbol, `dibs__module`, a function that returns its struct dibs__driver; another size
 * or abi is refused with both numbers.  Modules stay loaded until the process ends.
 */
#include "store/uri.h"

#define DIBS__MODULE_SYMBOL "dibs__module"
typedef const struct dibs__driver *dibs__module_fn(void);

/* UNSUPPORTED: no such driver; said names the file that was looked for and where. */
dibs__status dibs__driver_find(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                               struct dibs__said *said);

/* Offers a driver that is linked into the program (a test's, a simulator's) before any module is looked for.  It must
 * live as long as the process.  false: no memory. */
bool dibs__driver_add(const struct dibs__driver *driver);

/* A store with its shims: stores[0] is the outermost, what the core talks to. */
struct dibs__chain {
  struct dibs__dstore *stores[DIBS__URI_SHIMS + 1];
  size_t count;
};
dibs__status dibs__chain_open(const struct dibs__uri *uri, const char *module_path, dibs__tick by,
                              struct dibs__chain *chain, struct dibs__said *said);
void dibs__chain_close(struct dibs__chain *chain);

#endif
