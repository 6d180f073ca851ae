/* SPDX-License-Identifier: MIT */
/* Without hiredis: see redis.c. */
#include "lab/locks.h"

#include <stdio.h>

static const char reason[] = "this dibs-lab was built without hiredis";

bool dibs__lab_redis_built(void) {
  return false;
}

struct lab_redis *dibs__lab_redis_open(const char *uri, char *why, size_t size) {
  (void)uri;
  snprintf(why, size, "%s", reason);
  return NULL;
}

void dibs__lab_redis_close(struct lab_redis *redis) {
  (void)redis;
}

enum lab_redis_answer dibs__lab_redis_run(struct lab_redis *redis, const char *const words[], size_t count,
                                          char *answer, size_t size) {
  (void)redis;
  (void)words;
  (void)count;
  snprintf(answer, size, "%s", reason);
  return LAB_REDIS_FAILED;
}
