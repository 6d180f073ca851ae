/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDLOCK_REDLOCK_IMPL_H
#define DIBS_DRIVERS_REDLOCK_REDLOCK_IMPL_H
/*
 * What the files of src/drivers/redlock share: a lease that a majority of several independent Redis grants.
 * doc/internals/redlock.md has the protocol and its assumptions.
 *
 *   redlock.c            the URI; the store: opening, closing, sleeping; connections to the nodes; a round with all of
 * them run.c                a batch, in rounds; the votes of an acquire, counted votes.c              the commands to
 * the nodes, their replies, the answers list.c               listing
 *   ../redis/redlock_NAME.lua   what one node does
 *
 * Keys, beside those of redis:// with the same prefix:
 *
 *   dibs:rl:mark       vanishes with the node's memory: its incarnation, since when it is known, whether it counts
 *   dibs:rl:{17}       the highest fence of the bucket
 *   dibs:rl:n:NAME     the holder of a name; expires with the lease
 *   dibs:rl:b:NAME     its breaks; expire after a day
 *
 * The store's timeline is our boot-time clock: `until` is counted from before the first request to the nodes.
 */
#include "drivers/redis/redis_impl.h"
#include "store/engine.h"

enum {
  DIBS__REDLOCK_NODES = DIBS__REDIS_HOSTS,
  DIBS__REDLOCK_BATCH = 256,
  DIBS__REDLOCK_WORDS = 12,
  DIBS__REDLOCK_KEY = 64 + 16 + 256 /* prefix, kind, name */
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

/* No session of the store tries a node that failed, for a while. */
struct dibs__redlock_node {
  dibs__tick retry_at;
  uint32_t failures;
  char why[64]; /* for people; "" when it works */
};

/* Immutable after open, except for what its lock guards and the wake-up. */
struct dibs__redlock {
  struct dibs__dstore base;
  struct dibs__redis_location *location;
  size_t count, majority;
  int64_t node_timeout_ms, max_ttl_ms, drift_permille, retries;
  dibs__mandate mandate;
  uint64_t session;
  char shown[256];
  struct dibs__redis_script scripts[DIBS__REDLOCK_SCRIPTS];

  dibs__mutex lock;
  /* Guarded by the lock. */
  struct dibs__redlock_node nodes[DIBS__REDLOCK_NODES];
  uint64_t highest, from; /* fences: the highest seen of any node; by the nodes' clocks, */
  dibs__tick from_at;     /* at this instant of ours */

  int notifier;
  _Atomic bool woken;
};

struct dibs__redlock_doing;
/* Used by one thread at a time. */
struct dibs__redlock_session {
  struct dibs__session base;
  struct dibs__redlock *store;
  struct dibs__redis_link *links[DIBS__REDLOCK_NODES]; /* NULL: none */
  struct dibs__redlock_doing *doing;                   /* space for a batch */
  size_t twin, twin_of;                                /* two nodes that turned out to be one server; equal: none */
};

/* ---- redlock.c ---- */
/* How much longer than `ttl_ms` a node holds, so that the lease lasts at least that long whatever its clock's rate. */
int64_t dibs__redlock_drift_ms(const struct dibs__redlock *store, int64_t ttl_ms);

/* ---- redlock.c ---- */

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

/* The position of a node's answer: which of the link's replies, or none. */
enum { DIBS__REDLOCK_UNASKED = UINT16_MAX };
struct dibs__redlock_requested {
  uint16_t nth[DIBS__REDLOCK_NODES];
};

/* Connects to all nodes that can be reached; to those that failed lately only after their pause, or if there is no
 * majority without them.  Gives their number. */
size_t dibs__redlock_links(struct dibs__redlock_session *s, dibs__tick by);
/* Queues a command for every linked node whose bit is set. */
void dibs__redlock_put(struct dibs__redlock_session *s, uint32_t nodes, enum dibs__redlock_script script,
                       const struct dibs__redlock_words *words, struct dibs__redlock_requested *requested);
/* Sends all commands, waits for the answers for as long as a node may take, and closes the links of nodes that did not
 * answer. */
void dibs__redlock_go(struct dibs__redlock_session *s, dibs__tick by);
/* NULL: no answer, or an error. */
const redisReply *dibs__redlock_reply(struct dibs__redlock_session *s, const struct dibs__redlock_requested *requested,
                                      size_t node);
/* "no quorum: 1 of 3 nodes answered; ..." with the nodes that did not, and those that do not count yet: `waits[node]`
 * ms are left of its quarantine, or 0. */
void dibs__redlock_say_no_quorum(struct dibs__redlock_session *s, uint32_t answered, const int64_t waits[],
                                 struct dibs__result *result);
/* Nodes without a mark count at once if all answer and none ever had one.  true: it is so. */
bool dibs__redlock_found(struct dibs__redlock_session *s, dibs__tick by);
int64_t dibs__redlock_int(const redisReply *reply, size_t nth);
dibs__str dibs__redlock_text(const redisReply *reply, size_t nth);

/* ---- describe.c ---- */
void dibs__redlock_describe(struct dibs__redlock_session *s, dibs__tick by, struct dibs__findings *to);

/* ---- run.c ---- */

/* The nodes' replies to the first round of an acquire, together. */
struct dibs__redlock_votes {
  uint32_t took;    /* nodes that granted the name now: a bit each */
  uint32_t written; /* of these, those that have the fence that was proposed */
  uint32_t mine;    /* nodes that granted the id the name before */
  uint32_t counts;  /* nodes whose vote counts */
  uint32_t answered, held;
  int64_t wait[DIBS__REDLOCK_NODES]; /* of the quarantine of those that do not count */
  int64_t left[DIBS__REDLOCK_NODES]; /* of other holders */
  uint32_t left_count;
  bool broken;  /* one of the holders is of this store */
  uint64_t top; /* the highest proposal of a node */
  /* A grant of ours that a majority has. */
  bool found;
  uint64_t first, block;
  int64_t found_until; /* in our timeline */
};
enum dibs__redlock_verdict {
  DIBS__REDLOCK_FOUND,   /* it has had it since an earlier call */
  DIBS__REDLOCK_GRANTED, /* a majority has the fence that was proposed */
  DIBS__REDLOCK_WON,     /* the second round may begin */
  DIBS__REDLOCK_BROKEN,
  DIBS__REDLOCK_BUSY,
  DIBS__REDLOCK_SPLIT, /* nobody can have a majority */
  DIBS__REDLOCK_NO_QUORUM
};
enum dibs__redlock_verdict dibs__redlock_count(struct dibs__redlock_session *s,
                                               const struct dibs__redlock_requested *requested, int64_t sent_ms,
                                               struct dibs__redlock_votes *votes);
/* A fence that is probably above all that the nodes have seen; 0: unknown yet.  Marks `many` of them as used. */
uint64_t dibs__redlock_propose_fence(struct dibs__redlock *store, uint32_t many);
/* When a majority may be free; in ms from now. */
int64_t dibs__redlock_free_in(const struct dibs__redlock *store, const struct dibs__redlock_votes *votes);
static inline size_t dibs__redlock_bits(uint32_t nodes) {
  return (size_t)__builtin_popcount(nodes);
}

/* ---- the driver's ---- */
dibs__driver_run dibs__redlock_run;
dibs__driver_list dibs__redlock_list;

/* What run.c and votes.c share. */

enum dibs__redlock_stage {
  STAGE_DONE,
  STAGE_FIRST,   /* sent in the first round */
  STAGE_SEAL,    /* an acquire that won */
  STAGE_RETURN,  /* an acquire that did not win: the nodes that granted it drop it */
  STAGE_TIDY,    /* granted before: nodes that granted it again just now drop that */
  STAGE_UNDO,    /* an acquire that won, and could not write the fence back: the nodes drop it */
  STAGE_RENEWED, /* a renewal that draws a fence, or updates nodes that lack it */
};

struct dibs__redlock_doing {
  struct dibs__lease_op *op;
  enum dibs__redlock_stage stage;
  enum dibs__redlock_verdict verdict;
  struct dibs__redlock_requested requested;
  struct dibs__redlock_votes votes;
  uint64_t fence, proposed;
  uint32_t renewed, behind; /* nodes */
  uint64_t first, granted, block;
  dibs__str owner, pid, since; /* as a node sent it; valid until the next round */
  char told[DIBS_OWNER_MAX + 64];
};

struct dibs__redlock_batch {
  struct dibs__redlock_session *s;
  struct dibs__redlock *store;
  struct dibs__result *result;
  dibs__tick by;
  int64_t now; /* in ms of our boot-time clock */
  struct dibs__redlock_doing *all;
  size_t count;
  bool lacked, doubt, founded;
};

static inline int64_t dibs__redlock_now(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}
static inline uint32_t dibs__redlock_all(const struct dibs__redlock_batch *b) {
  return (uint32_t)(UINT64_C(1) << b->store->count) - 1;
}
static inline uint32_t dibs__redlock_wanted(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}
/* Random; less than `most`, and at least 0. */
int64_t dibs__redlock_by_chance(int64_t most);

/* ---- votes.c: commands to the nodes ---- */
/* The commands of the first round, to all nodes. */
void dibs__redlock_put_first(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
/* `which`: "all", or NULL: the grant with this fence, and what was not granted yet. */
void dibs__redlock_put_drop(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t nodes,
                            const char *which, uint64_t fence);
/* Writes d->fence back.  `renews`: the first grant stays. */
void dibs__redlock_put_seal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t nodes, bool renews);
/* Updates the nodes that lack the grant. */
void dibs__redlock_put_heal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);

/* ---- votes.c: the nodes' replies; the answer, or the next stage ---- */
void dibs__redlock_judge_first(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
void dibs__redlock_judge_seal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
void dibs__redlock_judge_renewed(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
/* UNAVAILABLE: no quorum. */
void dibs__redlock_lack(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t answered);
/* HELD or QUEUED. */
void dibs__redlock_answer_busy(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);

#endif
