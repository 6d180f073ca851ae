/* SPDX-License-Identifier: MIT */
#include "store/module.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Without a folder: the linker searches for it, in a build tree first in the folder of its own modules
 * (build_rpath of meson, which installing removes). */
static enum dibs__module_found load(const char *symbol, struct dibs__module *module, char *why, size_t size) {
  const char *file = module->file;
  struct dibs__text text;
  dibs__text_begin(&text, why, size);
  module->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!module->handle) {
    const char *error = dlerror();
    dibs__text_addf(&text, "can't load the module: %s", error ? error : file);
    bool missing = !strchr(file, '/') && (!error || strncmp(error, file, strlen(file)) == 0);
    return missing ? DIBS__MODULE_MISSING : DIBS__MODULE_BROKEN;
  }
  union {
    void *object;
    dibs__module_fn_any *function;
  } found = {dlsym(module->handle, symbol)}; /* ISO C has no cast from an object to a function */
  module->function = found.function;
  if (module->function) return DIBS__MODULE_LOADED;
  dibs__text_addf(&text, "%s is not a module for this: it has no %s", file, symbol);
  dibs__module_unload(module);
  return DIBS__MODULE_BROKEN;
}

static bool find_in(const char *path, const char *name, char *file, size_t size) {
  while (path && *path) {
    size_t len = strcspn(path, ":");
    int n = snprintf(file, size, "%.*s/%s", (int)len, path, name);
    if (len > 0 && n > 0 && (size_t)n < size && access(file, F_OK) == 0) return true;
    path += len + (path[len] == ':');
  }
  return false;
}

enum dibs__module_found dibs__module_load(const char *name, const char *symbol, const char *path,
                                          struct dibs__module *module, char *why, size_t size) {
  const char *given = secure_getenv("DIBS_MODULE_PATH");
  char *file = module->file;
  module->handle = NULL;
  module->function = NULL;
  if (find_in(path, name, file, sizeof module->file) || find_in(given, name, file, sizeof module->file))
    return load(symbol, module, why, size);
  snprintf(file, sizeof module->file, "%s", name);
  enum dibs__module_found found = load(symbol, module, why, size);
  if (found != DIBS__MODULE_MISSING) return found;
  if (find_in(DIBS__MODULE_DIR, name, file, sizeof module->file)) return load(symbol, module, why, size);
  struct dibs__text text;
  dibs__text_begin(&text, why, size);
  if (path && *path) dibs__text_addf(&text, "%s, ", path);
  if (given && *given) dibs__text_addf(&text, "%s, ", given);
  dibs__text_adds(&text, DIBS__MODULE_DIR);
  return DIBS__MODULE_MISSING;
}

void dibs__module_unload(struct dibs__module *module) {
  if (module->handle) dlclose(module->handle);
  module->handle = NULL;
  module->function = NULL;
}

const struct dibs__module_head *dibs__module_load_part(const struct dibs__module_part *part,
                                                       struct dibs__module *module, char *why, size_t size) {
  char text[512];
  switch (dibs__module_load(part->file, part->symbol, NULL, module, text, sizeof text)) {
  case DIBS__MODULE_LOADED:
    break;
  case DIBS__MODULE_BROKEN:
    snprintf(why, size, "%s", text);
    return NULL;
  case DIBS__MODULE_MISSING:
    snprintf(why, size, "this dibs %s: %s is not in %s; install the package %s, or build dibs with %s", part->lacks,
             part->file, text, part->package, part->library);
    return NULL;
  }
  const struct dibs__module_head *head = ((dibs__module_part_fn *)module->function)();
  if (head != NULL && head->abi == part->head.abi && head->size == part->head.size) return head;
  snprintf(why, size, "%s is of another version of dibs; install the one of this version", module->file);
  dibs__module_unload(module);
  return NULL;
}
