/* SPDX-License-Identifier: MIT */
/*
 * Drivers by their scheme.  The list of loaded modules is process-wide, because dlopen is; it only grows, and a driver
 * in it is never removed.  Lock: `list_lock`, held while a module is loaded so that two threads do not load it at once;
 * only the dynamic linker and the module's one function run under it.
 */
#include "store/registry.h"
#include "base/text.h"
#include "store/module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEME_MAX = 32 };

struct entry {
  const struct dibs__driver *driver;
  struct entry *next;
};

static dibs__mutex list_lock = {PTHREAD_MUTEX_INITIALIZER};
static struct entry *loaded; /* guarded by list_lock; entries are immutable and are never freed */

/* ---- Built-in and loaded drivers ---- */

static bool serves(const struct dibs__driver *driver, const char *scheme) {
  for (const char *const *s = driver->schemes; *s; s++)
    if (strcmp(*s, scheme) == 0) return true;
  return false;
}

static const struct dibs__driver *find_built_in(const char *scheme) {
  for (const struct dibs__driver *const *each = dibs__built_in_drivers; *each; each++)
    if (serves(*each, scheme)) return *each;
  return NULL;
}

bool dibs__driver_built_in(const char *scheme) {
  return find_built_in(scheme) != NULL;
}

static const struct dibs__driver *find_loaded_locked(const char *scheme) {
  for (const struct entry *e = loaded; e; e = e->next)
    if (serves(e->driver, scheme)) return e->driver;
  return NULL;
}

static bool remember_locked(const struct dibs__driver *driver) {
  struct entry *made = malloc(sizeof *made);
  if (!made) return false;
  *made = (struct entry){driver, loaded};
  loaded = made;
  return true;
}

bool dibs__driver_add(const struct dibs__driver *driver) {
  assert(driver->size == sizeof *driver && driver->abi == DIBS__DRIVER_ABI);
  dibs__mutex_lock(&list_lock);
  bool there = false;
  for (const struct entry *e = loaded; e && !there; e = e->next) there = e->driver == driver;
  there = there || remember_locked(driver);
  dibs__mutex_unlock(&list_lock);
  return there;
}

/* ---- Modules ---- */

/* If the size or abi differs, only these two numbers may be read. */
static dibs__status check_module(const struct dibs__driver *driver, const char *file, const char *scheme,
                                 struct dibs__result *result) {
  if (!driver) {
    dibs__set_message(result, "%s is not a driver module: its %s returns NULL", file, DIBS__MODULE_SYMBOL);
    return DIBS_UNSUPPORTED;
  }
  if (driver->size != sizeof *driver || driver->abi != DIBS__DRIVER_ABI) {
    dibs__set_message(result,
                      "%s has driver abi %u of size %u, this libdibs %s needs abi %u of size %zu; install the module "
                      "of the same version",
                      file, driver->abi, driver->size, dibs_version(), DIBS__DRIVER_ABI, sizeof *driver);
    return DIBS_UNSUPPORTED;
  }
  bool whole = driver->name && driver->schemes && driver->open && driver->close && driver->connect &&
               driver->disconnect && driver->run && driver->events && driver->wake && driver->list;
  if (!whole || !serves(driver, scheme)) {
    dibs__set_message(result, "%s is not a driver for \"%s\"; reinstall it", file, scheme);
    return DIBS_UNSUPPORTED;
  }
  return DIBS_OK;
}

static dibs__status accept_locked(struct dibs__module *module, const char *scheme, const struct dibs__driver **driver,
                                  struct dibs__result *result) {
  dibs__module_fn *function = (dibs__module_fn *)module->function;
  dibs__status status = check_module(function(), module->file, scheme, result);
  if (status == DIBS_OK && !remember_locked(function())) {
    dibs__set_message(result, "out of memory for the driver module %s", module->file);
    status = DIBS_NO_MEMORY;
  }
  if (status == DIBS_OK)
    *driver = function();
  else
    dibs__module_unload(module);
  return status;
}

static const char *nth_scheme(size_t i, const void *arg) {
  static const char *const schemes[] = {DIBS__SCHEMES};
  (void)arg;
  return i < sizeof schemes / sizeof schemes[0] ? schemes[i] : NULL;
}

static dibs__status find_module_locked(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                                       struct dibs__result *result) {
  char file[SCHEME_MAX + sizeof "dibs-driver-.so"], why[sizeof result->text];
  struct dibs__module module = {.handle = NULL};
  snprintf(file, sizeof file, "dibs-driver-%s.so", scheme);
  switch (dibs__module_load(file, DIBS__MODULE_SYMBOL, module_path, &module, why, sizeof why)) {
  case DIBS__MODULE_LOADED:
    return accept_locked(&module, scheme, driver, result);
  case DIBS__MODULE_BROKEN:
    dibs__set_message(result, "%s", why);
    return DIBS_UNSUPPORTED;
  case DIBS__MODULE_MISSING:
    break;
  }
  const char *near = dibs__nearest(scheme, nth_scheme, NULL);
  if (strcmp(scheme, "unix") == 0) {
    dibs__set_message(result, "no driver for \"unix\": for a daemon at a Unix socket write http:/run/dibs/dibs.sock");
    return DIBS_UNSUPPORTED;
  }
  if (strcmp(scheme, "zookeeper") == 0) near = "zk"; /* people try it, and it resembles no scheme */
  if (near && strcmp(near, scheme) != 0)
    dibs__set_message(result, "no driver for \"%s:\"; did you mean \"%s:\"?", scheme, near);
  else
    dibs__set_message(result,
                      "no driver for \"%s\": %s is not in %s; install its package (libdibs-...), or name its folder in "
                      "DIBS_MODULE_PATH",
                      scheme, file, why);
  return DIBS_UNSUPPORTED;
}

/* A scheme becomes part of a file's name: it must contain nothing that leads to another folder. */
static bool is_scheme(const char *scheme) {
  size_t len = strlen(scheme);
  return len > 0 && len <= SCHEME_MAX && strspn(scheme, "abcdefghijklmnopqrstuvwxyz0123456789-+") == len;
}

dibs__status dibs__driver_find(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                               struct dibs__result *result) {
  *driver = NULL;
  if (!is_scheme(scheme)) {
    dibs__set_message(result, "\"%.40s\" can't be the name of a driver", scheme);
    return DIBS_UNSUPPORTED;
  }
  *driver = find_built_in(scheme);
  if (*driver) return DIBS_OK;
  dibs__mutex_lock(&list_lock);
  *driver = find_loaded_locked(scheme);
  dibs__status status = *driver ? DIBS_OK : find_module_locked(scheme, module_path, driver, result);
  dibs__mutex_unlock(&list_lock);
  return status;
}

/* ---- Chains ---- */

/* drivers[0] is the outermost, drivers[shim_count] the engine. */
static dibs__status find_chain(const struct dibs__uri *uri, const char *module_path,
                               const struct dibs__driver *drivers[], struct dibs__result *result) {
  for (size_t i = 0; i <= uri->shim_count; i++) {
    bool engine = i == uri->shim_count;
    const char *scheme = engine ? uri->scheme : uri->shims[i];
    dibs__status status = dibs__driver_find(scheme, module_path, &drivers[i], result);
    if (status != DIBS_OK) return status;
    if (engine && drivers[i]->inner_min > 0) {
      dibs__set_message(result, "%s wraps another store: write %s+SCHEME:", scheme, scheme);
      return DIBS_INVALID;
    }
    if (!engine && (drivers[i]->inner_min > 1 || drivers[i]->inner_max < 1)) {
      dibs__set_message(result, "%s can't wrap another store: write %s://..., without the + and what follows it",
                        scheme, scheme);
      return DIBS_INVALID;
    }
  }
  return DIBS_OK;
}

dibs__status dibs__chain_open(const struct dibs__uri *uri, const char *module_path, dibs__tick by,
                              struct dibs__chain *chain, struct dibs__result *result) {
  const struct dibs__driver *drivers[DIBS__URI_SHIMS + 1];
  struct dibs__dstore *opened[DIBS__URI_SHIMS + 1] = {NULL};
  *chain = (struct dibs__chain){.count = 0};
  *result = (struct dibs__result){.text = ""};
  assert(uri->shim_count <= DIBS__URI_SHIMS);
  dibs__status status = find_chain(uri, module_path, drivers, result);
  if (status != DIBS_OK) return status;

  size_t at = uri->shim_count + 1;
  while (status == DIBS_OK && at > 0) {
    at--;
    bool engine = at == uri->shim_count;
    status = drivers[at]->open(uri, engine ? NULL : &opened[at + 1], engine ? 0 : 1, by, &opened[at], result);
    assert(status != DIBS_OK || opened[at]);
    /* A driver may have chosen another table for this URI. */
    if (status == DIBS_OK && !opened[at]->driver) opened[at]->driver = drivers[at];
  }
  if (status != DIBS_OK) {
    for (size_t i = at + 1; i <= uri->shim_count; i++) drivers[i]->close(opened[i]);
    return status;
  }
  memcpy(chain->stores, opened, sizeof opened);
  chain->count = uri->shim_count + 1;
  return DIBS_OK;
}

void dibs__chain_close(struct dibs__chain *chain) {
  for (size_t i = 0; i < chain->count; i++) chain->stores[i]->driver->close(chain->stores[i]);
  *chain = (struct dibs__chain){.count = 0};
}
