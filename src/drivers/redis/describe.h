/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_DESCRIBE_H
#define DIBS_DRIVERS_REDIS_DESCRIBE_H
/* What doctor asks a Redis: describe.c, for the drivers of Redis, of a cluster, and of several independent servers. */
#include "drivers/redis/redis_impl.h"
#include "store/engine.h"

/* What INFO and CONFIG say of one server. */
struct dibs__redis_facts {
  char name[16], version[32], mode[16], role[16], master[300], policy[32], aof[8], fsync[16], aof_write[16], save[16];
  uint32_t replicas;
  uint64_t used, limit; /* bytes of memory; limit 0: none */
  bool info, config;    /* was it allowed to see them? */
};

/* Asks; false: no answer, see `result`.  `replicas`, which may be NULL, gets a finding for each replica. */
bool dibs__redis_ask(struct dibs__redis_link *link, dibs__tick by, struct dibs__redis_facts *facts,
                     struct dibs__findings *replicas, struct dibs__result *result);
/* "Redis 7.0.15". */
const char *dibs__redis_named(const struct dibs__redis_facts *facts, char to[64]);
/* The settings on which promises depend.  `of`: "", or " of HOST:PORT".  `waits`: a server that starts without its
 * memory counts only after all leases of before have ended. */
void dibs__redis_find_settings(const struct dibs__redis_facts *facts, const char *of, bool waits,
                               struct dibs__findings *to);
void dibs__redis_find_tls(const struct dibs__redis_link *link, struct dibs__findings *to);

void dibs__redis_describe(struct dibs__redis_session *session, dibs__tick by, struct dibs__findings *to);

#endif
