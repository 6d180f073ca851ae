/* SPDX-License-Identifier: MIT */
#include "faultmem.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stddef.h>

static sqlite3_mem_methods real;
static atomic_uint calls, at, failures;
static atomic_bool lasting;

void faultmem_arm(unsigned nth, bool for_ever) {
  atomic_store(&at, 0);
  atomic_store(&calls, 0);
  atomic_store(&failures, 0);
  atomic_store(&lasting, for_ever);
  atomic_store(&at, nth);
}

unsigned faultmem_failed(void) {
  return atomic_load(&failures);
}

static bool fails(void) {
  unsigned nth = atomic_load(&at);
  if (nth == 0) return false;
  unsigned call = atomic_fetch_add(&calls, 1) + 1;
  bool now = call == nth || (call > nth && atomic_load(&lasting));
  if (now) atomic_fetch_add(&failures, 1);
  return now;
}

static void *mem_malloc(int size) {
  return fails() ? NULL : real.xMalloc(size);
}
static void *mem_realloc(void *p, int size) {
  return fails() ? NULL : real.xRealloc(p, size);
}

void faultmem_install(void) {
  sqlite3_mem_methods mine;
  int code = sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real);
  mine = real;
  mine.xMalloc = mem_malloc;
  mine.xRealloc = mem_realloc;
  if (code == SQLITE_OK) code = sqlite3_config(SQLITE_CONFIG_MALLOC, &mine);
  assert(code == SQLITE_OK);
  (void)code;
}
