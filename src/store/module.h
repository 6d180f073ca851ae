/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_MODULE_H
#define DIBS_STORE_MODULE_H
/*
 * Modules: parts of dibs that need a library which most users do not, so they are loaded when they are first used.  A
 * module is a file, NAME.so, with one function.
 *
 * It is loaded from the first of: the caller's path, DIBS_MODULE_PATH (not when setuid), the folder of the build tree
 * if the program runs there, the installed folder.
 */
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef void dibs__module_fn_any(void); /* to be cast to its own type */

struct dibs__module {
  void *handle;
  dibs__module_fn_any *function;
  char file[PATH_MAX]; /* for messages */
};

enum dibs__module_found {
  DIBS__MODULE_LOADED,
  DIBS__MODULE_MISSING, /* `why`: the folders that do not have it, for a sentence: "it is not in %s" */
  DIBS__MODULE_BROKEN   /* `why`: a sentence */
};

/* `file` is a name without a folder, `symbol` that of its function, `path` folders separated by ':' or NULL. */
enum dibs__module_found dibs__module_load(const char *file, const char *symbol, const char *path,
                                          struct dibs__module *module, char *why, size_t size);
void dibs__module_unload(struct dibs__module *module);

/* A module that is no driver: its function returns a struct of functions, which begins with this. */
struct dibs__module_head {
  uint32_t size, abi; /* of that struct */
};
typedef const struct dibs__module_head *dibs__module_part_fn(void);

struct dibs__module_part {
  const char *file, *symbol;
  const char *lacks, *package, *library; /* "has no Kafka", and what to install or to build with */
  struct dibs__module_head head;         /* of this version */
};
/* Loads the module, and returns its struct.  NULL: `why`, a sentence. */
const struct dibs__module_head *dibs__module_load_part(const struct dibs__module_part *part,
                                                       struct dibs__module *module, char *why, size_t size);

#endif
