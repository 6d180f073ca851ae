/* SPDX-License-Identifier: MIT */
/* Loaded into a daemon by LD_PRELOAD: there is no memory for an answer of more than half a megabyte. */
#include <errno.h>
#include <stdlib.h>

enum { MOST = 512 * 1024 };

extern void *__libc_realloc(void *memory, size_t size);

__attribute__((visibility("default"))) void *realloc(void *memory, size_t size) {
  if (size <= MOST) return __libc_realloc(memory, size);
  errno = ENOMEM;
  return NULL;
}
