/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_CLUSTER_H
#define DIBS_DRIVERS_REDIS_CLUSTER_H
/*
 * cluster=1: a Redis Cluster as one store.  Each node that dibs has seen is a store of its own (struct dibs__redis with
 * is_node): its link, batch and notifier are those of a lone Redis.  The cluster only decides which node an operation
 * goes to.
 *
 * All keys of a bucket have one slot, so that a bucket has one node at any time; reports have one slot more.  The map
 * says which node has which; a node that does not have it answers MOVED, and has done nothing.  While a slot is moved
 * its node answers TRYAGAIN (redis/lease.lua), and has done nothing either.
 *
 * Each node has an incarnation of its own (master_replid): the mandate of a bucket is that of its node.  A bucket that
 * moves to another node changes its incarnation, and keeps its holders and fences.
 *
 * Locks: the map's lock guards it for short times; `reading` is held while one thread reads the slots from a node.
 */
#include "drivers/redis/redis_impl.h"

enum {
  DIBS__REDIS_REPORTS = DIBS__BUCKETS,    /* where reports are, beside the buckets */
  DIBS__REDIS_PLACES = DIBS__BUCKETS + 1, /* the slots that the map knows, and the most masters that matter */
  DIBS__REDIS_NODES = 1024                /* addresses in the life of a store; a number each, which stays */
};

struct dibs__redis_node {
  struct dibs__redis redis; /* first.  Its location is its own */
  /* Guarded by the map's lock: no session tries a node that failed, for a while. */
  dibs__tick retry_at;
  uint32_t failures;
};

struct dibs__redis_cluster {
  int changed; /* immutable; raised when the map has changed: there may be another node to listen to */
  dibs__mutex reading;
  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__redis_node *nodes[DIBS__REDIS_NODES]; /* each stays until the store is closed */
  size_t count;
  uint16_t of[DIBS__REDIS_PLACES]; /* the number of the node */
  uint64_t version;                /* of `of`; grows with every change */
  dibs__tick read_again;           /* the slots are not read before */
};

/* The place of an operation: its bucket, or that of reports. */
static inline size_t dibs__redis_place(const struct dibs__op *op) {
  return op->family == DIBS__FAM_REPORT ? DIBS__REDIS_REPORTS : op->bucket;
}
/* The hash slot of a place with that prefix's keys: CRC16 of the hash tag. */
uint16_t dibs__redis_slot(size_t place);

/* cluster_map.c */
dibs__status dibs__redis_map_open(struct dibs__redis *store, dibs__tick by, struct dibs__result *result);
void dibs__redis_map_close(struct dibs__redis *store);
/* Reads the slots from a node that answers, unless another thread has since `version`. */
dibs__status dibs__redis_map_read(struct dibs__redis *store, uint64_t version, dibs__tick by,
                                  struct dibs__result *result);
/* An answer MOVED SLOT HOST:PORT, from this node. */
void dibs__redis_map_moved(struct dibs__redis *store, const char *words, const struct dibs__redis_node *from);
/* Copies the map; returns its version. */
uint64_t dibs__redis_map_copy(struct dibs__redis *store, uint16_t of[DIBS__REDIS_PLACES]);
struct dibs__redis_node *dibs__redis_map_node(struct dibs__redis *store, uint16_t number);
/* May the node be tried now? */
bool dibs__redis_map_may_try(struct dibs__redis *store, struct dibs__redis_node *node);
void dibs__redis_map_learn(struct dibs__redis *store, struct dibs__redis_node *node, bool failed);

/* cluster.c */
dibs__status dibs__redis_cluster_open(struct dibs__redis *store, dibs__tick by, struct dibs__result *result);
void dibs__redis_cluster_close(struct dibs__redis *store);
dibs__status dibs__redis_cluster_connect(struct dibs__redis_session *session, dibs__tick by,
                                         struct dibs__result *result);
void dibs__redis_cluster_disconnect(struct dibs__redis_session *session);
dibs__status dibs__redis_cluster_run(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                                     dibs__tick by, struct dibs__result *result);
dibs__status dibs__redis_cluster_events(struct dibs__redis *store, struct dibs__event *events, size_t cap,
                                        size_t *count, dibs__tick by);
/* Reads: sends to the nodes of `count` places, at most DIBS__REDIS_PLACES, the `each` commands that `put` puts for the
 * nth, and waits for all replies; again, with all of them, while slots are moved.  replies has count * each.  OK: each
 * is there, and no redirection; valid until the next request of the session.  UNAVAILABLE, NO_MEMORY. */
typedef bool dibs__redis_put_for(void *user, struct dibs__redis_link *link, size_t nth);
dibs__status dibs__redis_cluster_read(struct dibs__redis_session *session, const size_t places[], size_t count,
                                      size_t each, dibs__redis_put_for *put, void *user, const redisReply *replies[],
                                      dibs__tick by, struct dibs__result *result);
/* The session at that node, connected; NULL: it cannot be reached now. */
struct dibs__redis_session *dibs__redis_cluster_at(struct dibs__redis_session *session, uint16_t number, dibs__tick by,
                                                   struct dibs__result *result);

#endif
