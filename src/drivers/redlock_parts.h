/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDLOCK_PARTS_H
#define DIBS_DRIVERS_REDLOCK_PARTS_H
/*
 * What redlock*.c share: a lease that a majority of several Redis grants, which know nothing of each other.
 * doc/internals/redlock.md has the protocol and what it assumes.
 *
 *   redlock.c        the store: opening, closing, sleeping; the table
 *   redlock_uri.c    what a URI says
 *   redlock_nodes.c  connections to the nodes, a round with all of them, who did not answer
 *   redlock_run.c    a batch, in rounds
 *   redlock_ask.c    what is asked of the nodes
 *   redlock_judge.c  what they said, and the answers
 *   redlock_take.c   the votes of an acquire, counted
 *   redlock_list.c   listing
 *   redis/redlock_NAME.lua   what one node does
 *
 * Keys, beside those of redis:// with the same prefix:
 *
 *   dibs:rl:mark       goes with the node's memory: which life it has, since when it is known, whether it counts
 *   dibs:rl:{17}       the highest fence of the bucket
 *   dibs:rl:n:NAME     who has a name; ends with the lease
 *   dibs:rl:b:NAME     its breaks; end after a day
 *
 * The store's timeline is our boot-time clock: `until` is counted from before the nodes were asked.
 */
#include "drivers/redis_parts.h"

enum {
  DIBS__REDLOCK_NODES = DIBS__REDIS_HOSTS,
  DIBS__REDLOCK_BATCH = 256,
  DIBS__REDLOCK_WORDS = 12,
  DIBS__REDLOCK_KEY = 64 + 16 + 256 /* prefix, what kind, name */
};

enum dibs__redlock_script {
  DIBS__REDLOCK_TAKE,
  DIBS__REDLOCK_SEAL,
  DIBS__REDLOCK_RENEW,
  DIBS__REDLOCK_HEAL,
  DIBS__REDLOCK_DROP,
  DIBS__REDLOCK_BREAK,
  DIBS__REDLOCK_SHOW,
  DIBS__REDLOCK_MARK,
  DIBS__REDLOCK_SCRIPTS
};

/* A node that failed is let alone for a while, by all sessions of a store. */
struct dibs__redlock_node {
  dibs__tick retry_at;
  uint32_t failures;
  char why[64]; /* for people; "" when it is well */
};

/* Immutable after open, but for what its lock guards and the bell. */
struct dibs__redlock {
  struct dibs__dstore base;
  struct dibs__redis_place *place;
  size_t count, majority;
  int64_t node_timeout_ms, max_ttl_ms, drift_permille, retries;
  dibs__mandate mandate;
  uint64_t session;
  char shown[256];
  struct dibs__redis_script scripts[DIBS__REDLOCK_SCRIPTS];

  dibs__mutex lock;
  /* Guarded by the lock. */
  struct dibs__redlock_node nodes[DIBS__REDLOCK_NODES];
  uint64_t highest, from; /* fences: seen of any node; by the nodes' clocks, */
  dibs__tick from_at;     /* at this instant of ours */

  int bell;
  _Atomic bool woken;
};

struct dibs__redlock_doing;
/* Used by one thread at a time. */
struct dibs__redlock_session {
  struct dibs__session base;
  struct dibs__redlock *store;
  struct dibs__redis_link *links[DIBS__REDLOCK_NODES]; /* NULL: none */
  struct dibs__redlock_doing *doing;                   /* room for a batch */
  size_t twin, twin_of;                                /* two nodes that turned out to be one server; equal: none */
};

/* ---- redlock_uri.c ---- */
dibs__status dibs__redlock_place(const struct dibs__uri *uri, struct dibs__redlock *store, struct dibs__said *said);
/* How much longer than `ttl_ms` a node holds, so that the lease surely lasts that long whatever its clock's rate. */
int64_t dibs__redlock_drift_ms(const struct dibs__redlock *store, int64_t ttl_ms);

/* ---- redlock_nodes.c ---- */

/* A command's words. */
struct dibs__redlock_words {
  const char *p[DIBS__REDLOCK_WORDS];
  size_t len[DIBS__REDLOCK_WORDS];
  size_t count, keys;
  size_t used;
  char text[2 * DIBS__REDLOCK_KEY + 256];
};
void dibs__redlock_word(struct dibs__redlock_words *words, const void *p, size_t len);
void dibs__redlock_number(struct dibs__redlock_words *words, uint64_t number);
/* The key PREFIX:rl:KIND and the tail; keys come first. */
void dibs__redlock_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, const char *kind,
                       dibs__str tail);
void dibs__redlock_bucket_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, uint16_t bucket);

/* Where a node's answer is: which of the link's replies, or none. */
enum { DIBS__REDLOCK_UNASKED = UINT16_MAX };
struct dibs__redlock_asked {
  uint16_t nth[DIBS__REDLOCK_NODES];
};

/* Links to all nodes that can be had; to those that failed lately only when their time has come, or when there is no
 * majority without them.  How many there are. */
size_t dibs__redlock_links(struct dibs__redlock_session *s, dibs__tick by);
void dibs__redlock_unlink(struct dibs__redlock_session *s, size_t node);
/* Puts a command on every linked node whose bit is set. */
void dibs__redlock_put(struct dibs__redlock_session *s, uint32_t nodes, enum dibs__redlock_script script,
                       const struct dibs__redlock_words *words, struct dibs__redlock_asked *asked);
/* Sends all that was put, waits for the answers for as long as a node may take, and lets those go that did not answer.
 */
void dibs__redlock_go(struct dibs__redlock_session *s, dibs__tick by);
/* NULL: it did not answer, or by an error. */
const redisReply *dibs__redlock_reply(struct dibs__redlock_session *s, const struct dibs__redlock_asked *asked,
                                      size_t node);
/* "no quorum: 1 of 3 nodes answered; ..." with the nodes that did not, and those that do not count yet: `waits[node]`
 * ms are left of its quarantine, or 0. */
void dibs__redlock_say_no_quorum(struct dibs__redlock_session *s, uint32_t answered, const int64_t waits[],
                                 struct dibs__said *said);
/* Nodes without a mark count at once where all answer and none ever had one.  true: so it was. */
bool dibs__redlock_found(struct dibs__redlock_session *s, dibs__tick by);
int64_t dibs__redlock_int(const redisReply *reply, size_t nth);
dibs__str dibs__redlock_text(const redisReply *reply, size_t nth);

/* ---- redlock_take.c ---- */

/* What the nodes said to the first round of an acquire, together. */
struct dibs__redlock_votes {
  uint32_t took;    /* nodes that gave the name now: a bit each */
  uint32_t written; /* of these, those that have the fence that was hoped for */
  uint32_t mine;    /* that the id was granted it before */
  uint32_t counts;  /* whose vote counts */
  uint32_t answered, held;
  int64_t wait[DIBS__REDLOCK_NODES]; /* of those that do not count */
  int64_t left[DIBS__REDLOCK_NODES]; /* of holders that are others */
  uint32_t left_count;
  bool broken;  /* one of ours is */
  uint64_t top; /* the highest proposal */
  /* A grant of ours that stands on a majority. */
  bool found;
  uint64_t first, block;
  int64_t found_until; /* in our timeline */
};
enum dibs__redlock_verdict {
  DIBS__REDLOCK_FOUND,   /* it has it since before */
  DIBS__REDLOCK_GRANTED, /* the fence that was hoped for stands on a majority */
  DIBS__REDLOCK_WON,     /* the second round may begin */
  DIBS__REDLOCK_BROKEN,
  DIBS__REDLOCK_BUSY,
  DIBS__REDLOCK_SPLIT, /* nobody can have a majority */
  DIBS__REDLOCK_NO_QUORUM
};
enum dibs__redlock_verdict dibs__redlock_count(struct dibs__redlock_session *s, const struct dibs__redlock_asked *asked,
                                               int64_t sent_ms, struct dibs__redlock_votes *votes);
/* A fence that is likely above all that the nodes have seen; 0: nothing is known yet.  `many` of them are counted as
 * used. */
uint64_t dibs__redlock_hope(struct dibs__redlock *store, uint32_t many);
/* When a majority may be free; in ms from now. */
int64_t dibs__redlock_free_in(const struct dibs__redlock *store, const struct dibs__redlock_votes *votes);
static inline size_t dibs__redlock_bits(uint32_t nodes) {
  return (size_t)__builtin_popcount(nodes);
}

/* ---- the driver's ---- */
dibs__status dibs__redlock_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                               struct dibs__said *said);
dibs__status dibs__redlock_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                struct dibs__said *said);
struct dibs__redlock_doing *dibs__redlock_doing_new(void);
void dibs__redlock_doing_free(struct dibs__redlock_doing *doing);

#endif
