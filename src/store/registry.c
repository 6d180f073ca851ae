/* SPDX-License-Identifier: MIT */
/*
 * Drivers by their scheme.  The list of loaded modules is process-wide, because dlopen is; it only grows, and a driver
 * that was found is never taken away.  Lock: `list_lock`, held while a module is loaded so that two threads do not
 * load it at once; nothing but the dynamic linker and the module's one function runs under it.
 */
#include "store/registry.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCHEME_MAX = 32 };

extern const struct dibs__driver dibs__sqlite_driver, dibs__memory_driver, dibs__tiers_driver;
static const struct dibs__driver *const built_in[] = {&dibs__sqlite_driver, &dibs__memory_driver, &dibs__tiers_driver};

struct entry {
  const struct dibs__driver *driver;
  struct entry *next;
};

static dibs__mutex list_lock = {PTHREAD_MUTEX_INITIALIZER};
static struct entry *loaded; /* guarded by list_lock; entries are immutable and stay */

/* ---- What is there already ---- */

static bool serves(const struct dibs__driver *driver, const char *scheme) {
  for (const char *const *s = driver->schemes; *s; s++)
    if (strcmp(*s, scheme) == 0) return true;
  return false;
}

static const struct dibs__driver *find_built_in(const char *scheme) {
  for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
    if (serves(built_in[i], scheme)) return built_in[i];
  return NULL;
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

/* Of another size or abi nothing behind these two numbers may be looked at. */
static dibs__status check_module(const struct dibs__driver *driver, const char *file, const char *scheme,
                                 struct dibs__said *said) {
  if (!driver) {
    dibs__say(said, "%s is no driver module: its %s gives nothing", file, DIBS__MODULE_SYMBOL);
    return DIBS_UNSUPPORTED;
  }
  if (driver->size != sizeof *driver || driver->abi != DIBS__DRIVER_ABI) {
    dibs__say(said,
              "%s has driver abi %u of size %u, this libdibs %s wants abi %u of size %zu; install the module that "
              "belongs to it",
              file, driver->abi, driver->size, dibs_version(), DIBS__DRIVER_ABI, sizeof *driver);
    return DIBS_UNSUPPORTED;
  }
  bool whole = driver->name && driver->schemes && driver->open && driver->close && driver->connect &&
               driver->disconnect && driver->run && driver->events && driver->wake && driver->list;
  if (!whole || !serves(driver, scheme)) {
    dibs__say(said, "%s is not a driver for \"%s\"; reinstall it", file, scheme);
    return DIBS_UNSUPPORTED;
  }
  return DIBS_OK;
}

static dibs__status load_locked(const char *file, const char *scheme, const struct dibs__driver **driver,
                                struct dibs__said *said) {
  void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *why = dlerror();
    dibs__say(said, "can't load the driver module: %s", why ? why : file);
    return DIBS_UNSUPPORTED;
  }
  void *symbol = dlsym(handle, DIBS__MODULE_SYMBOL);
  dibs__module_fn *module = NULL;
  if (symbol) memcpy(&module, &symbol, sizeof module); /* ISO C has no cast from one to the other */
  dibs__status status = DIBS_UNSUPPORTED;
  if (module)
    status = check_module(module(), file, scheme, said);
  else
    dibs__say(said, "%s is no driver module: it has no %s", file, DIBS__MODULE_SYMBOL);
  if (status == DIBS_OK && !remember_locked(module())) {
    dibs__say(said, "no memory for the driver module %s", file);
    status = DIBS_NO_MEMORY;
  }
  if (status == DIBS_OK)
    *driver = module();
  else
    dlclose(handle);
  return status;
}

/* Looks for the module in the folders of `path`, ':' between.  true: it is there, as `file`. */
static bool find_in(const char *path, const char *scheme, char *file, size_t size) {
  while (path && *path) {
    size_t len = strcspn(path, ":");
    int n = snprintf(file, size, "%.*s/dibs-driver-%s.so", (int)len, path, scheme);
    if (len > 0 && n > 0 && (size_t)n < size && access(file, F_OK) == 0) return true;
    path += len + (path[len] == ':');
  }
  return false;
}

static dibs__status find_module_locked(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                                       struct dibs__said *said) {
  const char *places[] = {module_path, secure_getenv("DIBS_MODULE_PATH"), DIBS__MODULE_DIR};
  char file[PATH_MAX];
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
    if (find_in(places[i], scheme, file, sizeof file)) return load_locked(file, scheme, driver, said);

  const char *first = places[0] && *places[0] ? places[0] : "";
  const char *second = places[1] && *places[1] ? places[1] : "";
  dibs__say(said, "no driver for \"%s\": dibs-driver-%s.so is not in %s%s%s%s%s", scheme, scheme, first,
            *first ? ", " : "", second, *second ? ", " : "", DIBS__MODULE_DIR);
  return DIBS_UNSUPPORTED;
}

/* A scheme becomes part of a file's name: nothing in it may lead elsewhere. */
static bool is_scheme(const char *scheme) {
  size_t len = strlen(scheme);
  return len > 0 && len <= SCHEME_MAX && strspn(scheme, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

dibs__status dibs__driver_find(const char *scheme, const char *module_path, const struct dibs__driver **driver,
                               struct dibs__said *said) {
  *driver = NULL;
  if (!is_scheme(scheme)) {
    dibs__say(said, "\"%.40s\" can't be the name of a driver", scheme);
    return DIBS_UNSUPPORTED;
  }
  *driver = find_built_in(scheme);
  if (*driver) return DIBS_OK;
  dibs__mutex_lock(&list_lock);
  *driver = find_loaded_locked(scheme);
  dibs__status status = *driver ? DIBS_OK : find_module_locked(scheme, module_path, driver, said);
  dibs__mutex_unlock(&list_lock);
  return status;
}

/* ---- Chains ---- */

/* drivers[0] is the outermost, drivers[shim_count] the engine. */
static dibs__status find_chain(const struct dibs__uri *uri, const char *module_path,
                               const struct dibs__driver *drivers[], struct dibs__said *said) {
  for (size_t i = 0; i <= uri->shim_count; i++) {
    bool engine = i == uri->shim_count;
    const char *scheme = engine ? uri->scheme : uri->shims[i];
    dibs__status status = dibs__driver_find(scheme, module_path, &drivers[i], said);
    if (status != DIBS_OK) return status;
    if (engine && drivers[i]->inner_min > 0) {
      dibs__say(said, "%s wraps another store: write %s+SCHEME:", scheme, scheme);
      return DIBS_INVALID;
    }
    if (!engine && (drivers[i]->inner_min > 1 || drivers[i]->inner_max < 1)) {
      dibs__say(said, "%s can't wrap another store: nothing comes behind it with +", scheme);
      return DIBS_INVALID;
    }
  }
  return DIBS_OK;
}

dibs__status dibs__chain_open(const struct dibs__uri *uri, const char *module_path, dibs__tick by,
                              struct dibs__chain *chain, struct dibs__said *said) {
  const struct dibs__driver *drivers[DIBS__URI_SHIMS + 1];
  struct dibs__dstore *opened[DIBS__URI_SHIMS + 1] = {NULL};
  *chain = (struct dibs__chain){.count = 0};
  *said = (struct dibs__said){.text = ""};
  assert(uri->shim_count <= DIBS__URI_SHIMS);
  dibs__status status = find_chain(uri, module_path, drivers, said);
  if (status != DIBS_OK) return status;

  size_t at = uri->shim_count + 1;
  while (status == DIBS_OK && at > 0) {
    at--;
    bool engine = at == uri->shim_count;
    status = drivers[at]->open(uri, engine ? NULL : &opened[at + 1], engine ? 0 : 1, by, &opened[at], said);
    assert(status != DIBS_OK || opened[at]);
    /* A driver may have chosen another table for what the URI asks. */
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
