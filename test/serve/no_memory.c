/* SPDX-License-Identifier: MIT */
/* Loaded into a daemon by LD_PRELOAD: there is no memory for an answer of more than half a megabyte. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

enum { MOST = 512 * 1024 };

__attribute__((visibility("default"))) void *realloc(void *memory, size_t size) {
  static void *(*real)(void *memory, size_t size);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "realloc");
  if (size <= MOST) return real(memory, size);
  errno = ENOMEM;
  return NULL;
}
