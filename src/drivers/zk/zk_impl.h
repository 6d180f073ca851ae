/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_ZK_ZK_IMPL_H
#define DIBS_DRIVERS_ZK_ZK_IMPL_H
/*
 * What the files of src/drivers/zk share.  doc/internals/zookeeper.md.
 *
 *   location.c   the URI; paths of nodes
 *   wire.c       requests in rounds, the session and its end
 *   zk.c         the driver: opening, events, housekeeping; what this process knows of its leases (holds)
 *   watch.c      watches of waiters and of holders
 *   queue.c      the children of a name: who holds, who waits, what to watch
 *   lease.c      leases, in stretches of a batch
 *   run.c        a batch
 *   record.c     records
 *   list.c       listing, breaking
 *
 * Nodes.  ROOT is PATH/dibs of the URI, ID the czxid of ROOT in hexadecimal digits, so that a client which still knows
 * a removed ROOT finds none of its nodes in the next one:
 *
 *   ROOT                               "dibs 1"
 *   ROOT/ID/l/BB/NAME                  a container; BB is the bucket, NAME the name, %-encoded
 *   ROOT/ID/l/BB/NAME/DIGEST-x-SEQ     ephemeral, sequential: a lease, or a client that waits for one; s: shared, c5:
 *                                      counted, of 5 slots.
 *                                      DIGEST of the lease's id, by which a client finds its node after a lost answer
 *   ROOT/ID/l/BB/NAME/slot-K           ephemeral: a counted lease has slot K; it is made and deleted with the lease
 *   ROOT/ID/b/NAME                     the last breaks of the name
 *   ROOT/ID/r/BB/KEY                   a record
 *
 * One session of ZooKeeper for each open store.  Its end is the end of all its nodes.
 *
 * Locks: `gate` (a flag with a word to wait on) belongs to the busy thread: run, list, tidy, close.  It alone makes,
 * moves and frees holds, sends requests, and opens and closes the session.  A batch of leases leaves the gate while it
 * waits for answers, so that another batch can travel meanwhile; its holds are `taken`, and nobody else frees them or
 * decides about them.  `lock`, inside it, is never held during a request: threads of the client library (completions,
 * watches) take only that one, and mark: offered, gone.
 */
#include "base/map.h"
#include "store/engine.h"
#include "store/uri.h"

#ifndef THREADED
#define THREADED /* the functions of the multi-threaded library */
#endif
#include <zookeeper/zookeeper.h>

#define DIBS__ZK_NO_SLOT UINT32_MAX

enum {
  DIBS__ZK_BATCH = 256,
  DIBS__ZK_PATH = 2048,        /* a path of ours: of a prefix of at most 1000 bytes, and a name, each byte as %XX */
  DIBS__ZK_DATA = 512,         /* of a lease's node */
  DIBS__ZK_OFFER_MS = 3000,    /* an offer that is not confirmed is given up; a waiter asks each second */
  DIBS__ZK_GONE_MS = 10000,    /* for so long a loss is reported */
  DIBS__ZK_PATIENCE_MS = 1000, /* the housekeeping of one call */
  DIBS__ZK_GUARD_MS = 100,     /* a lease that lasts longer has a watch over its node */
  DIBS__ZK_SLOT_NODE = 16,     /* "slot-65534" */
  DIBS__ZK_LOST = ZOPERATIONTIMEOUT /* of a slot: no answer yet */
};

/* ---- location.c ---- */

struct dibs__zk_location {
  char hosts[1024]; /* "h1:2181,h2:2181", as the library wants them */
  char root[1024];
  char credentials[512]; /* "user:password", or "" */
  int session_ms;        /* that is requested */
  char shown[512];
};
dibs__status dibs__zk_location(const struct dibs__uri *uri, struct dibs__zk_location *location,
                               struct dibs__result *result);
/* A name or key as one component of a path, at most 3 times as long; terminated. */
void dibs__zk_encode(dibs__str name, char to[3 * DIBS_NAME_MAX + 1]);
/* false: encode makes no such text. */
bool dibs__zk_decode(const char *from, char to[DIBS_NAME_MAX + 1], uint32_t *len);

/* ---- wire.c ---- */

struct dibs__zk;

/* One request.  Until it is answered only the library's thread writes to it, except `rc`; the round's last reference
 * frees it. */
struct dibs__zk_slot {
  struct dibs__zk_round *round;
  atomic_bool answered;
  int answer;
  int rc; /* for the caller, after dibs__zk_go: the answer, or DIBS__ZK_LOST */
  bool writes;
  struct Stat stat;
  char *text; /* the path of a new node, data */
  int len;
  const char *const *names; /* children */
  void *memory;             /* of the names */
  int count;
  zoo_op_result_t results[2]; /* of two requests that are done together */
};

/* Requests that travel together. */
struct dibs__zk_round {
  _Atomic uint32_t refs;
  dibs__word left; /* unanswered */
  dibs__tick sent;
  size_t used, capacity;
  struct dibs__zk_slot slots[];
};

struct dibs__zk_round *dibs__zk_round_new(size_t capacity); /* NULL: no memory */
void dibs__zk_round_drop(struct dibs__zk_round *round);     /* NULL: nothing */
/* Each sends one request and returns its slot's index.  Requests of one round are answered in their order. */
size_t dibs__zk_put_create(struct dibs__zk *store, struct dibs__zk_round *round, const char *path, const char *data,
                           size_t len, int mode);
size_t dibs__zk_put_children(struct dibs__zk *store, struct dibs__zk_round *round, const char *path, watcher_fn watcher,
                             uint64_t ticket);
size_t dibs__zk_put_get(struct dibs__zk *store, struct dibs__zk_round *round, const char *path);
/* The watch fires at each change of the data, too. */
size_t dibs__zk_put_watch_data(struct dibs__zk *store, struct dibs__zk_round *round, const char *path,
                               watcher_fn watcher, uint64_t ticket);
size_t dibs__zk_put_set(struct dibs__zk *store, struct dibs__zk_round *round, const char *path, const char *data,
                        size_t len, int version);
size_t dibs__zk_put_delete(struct dibs__zk *store, struct dibs__zk_round *round, const char *path, int version);
/* Two requests that are done together or not at all.  The rc is that of the request which can't be done.
 */
size_t dibs__zk_put_set_and_create(struct dibs__zk *store, struct dibs__zk_round *round, const char *path,
                                   const char *data, size_t len, int version, const char *also, const char *also_data);
size_t dibs__zk_put_delete_both(struct dibs__zk *store, struct dibs__zk_round *round, const char *also,
                                const char *path, int version);
/* What follows it in the round sees all that any client wrote before. */
size_t dibs__zk_put_sync(struct dibs__zk *store, struct dibs__zk_round *round, const char *path);
/* Waits for the answers; those that are missing have the rc DIBS__ZK_LOST.  The caller stays busy. */
void dibs__zk_go(struct dibs__zk *store, struct dibs__zk_round *round, dibs__tick by);
/* The same, but the caller is not busy meanwhile.  If another session was opened, all answers are lost. */
void dibs__zk_go_aside(struct dibs__zk *store, struct dibs__zk_round *round, dibs__tick by);
/* The answer was lost: the request may have been done.  (After an answer that it does not understand the library ends
 * the connection, and answers ZRUNTIMEINCONSISTENCY to all that was sent.) */
static inline bool dibs__zk_lost(int rc) {
  return rc == ZCONNECTIONLOSS || rc == ZRUNTIMEINCONSISTENCY || rc == ZOPERATIONTIMEOUT || rc == ZSESSIONMOVED ||
         rc == ZCLOSING || rc == ZINVALIDSTATE || rc == ZTHROTTLEDOP;
}
/* The status of an answer that no caller expects, with a message. */
dibs__status dibs__zk_explain(const struct dibs__zk *store, int rc, const char *what, struct dibs__result *result);

/* The caller is busy, except while it waits for a connection: connected, in a session that has not ended, and ROOT is
 * known.  Opens another session if needed. UNAVAILABLE, DENIED, CORRUPT, TOO_NEW, NO_MEMORY; nothing was sent. */
dibs__status dibs__zk_ready(struct dibs__zk *store, dibs__tick by, struct dibs__result *result);
void dibs__zk_end_session(struct dibs__zk *store);
/* The session ended: nothing of it is held any more. */
void dibs__zk_all_gone_locked(struct dibs__zk *store);

/* ---- describe.c ---- */

/* What doctor asks.  The caller is not busy. */
void dibs__zk_describe(struct dibs__zk *store, dibs__tick by, struct dibs__findings *to);

/* ---- zk.c ---- */

enum dibs__zk_state {
  DIBS__ZK_UNSURE, /* a node may exist; it must be searched for */
  DIBS__ZK_WAITS,
  DIBS__ZK_OFFERED, /* no node that excludes it is before it; not confirmed */
  DIBS__ZK_HOLDS,
  DIBS__ZK_GONE
};

/* What a waiter watches. */
enum dibs__zk_watch {
  DIBS__ZK_WATCH_NOTHING,
  DIBS__ZK_WATCH_GONE,    /* a node that excludes it: until it is deleted */
  DIBS__ZK_WATCH_BEFORE,  /* the counted one before it: until it is granted or deleted */
  DIBS__ZK_WATCH_CHILDREN /* all of the name; renewed by its watcher */
};

struct dibs__zk_hold {
  struct dibs__map_node by_key, by_ticket;
  struct dibs__zk_hold *next, **link_back; /* in `all` */
  /* Guarded by lock. */
  enum dibs__zk_state state;
  bool tell; /* events() owes an event */
  bool broken;
  bool ended; /* GONE with its session, and so is its slot */
  enum dibs__zk_watch watches;
  bool last;             /* the watched node alone excludes this one */
  uint32_t offered_slot; /* counted, OFFERED: it was free; or NO_SLOT */
  int32_t seq, watched;  /* the number of the watched node */
  int64_t until, ends;   /* ms of our boot-time clock; at `ends` the node is deleted */
  /* Of the busy thread. */
  int64_t since;
  uint64_t fence;
  int32_t version; /* of the node's data */
  uint32_t ahead;
  bool taken;       /* a batch that has left the gate works on it */
  bool guarded;     /* a watch reports that the node was deleted */
  bool waiting;     /* a client waited when it was granted */
  bool slot_unsure; /* the answer of the request for a slot was lost: the node's data has it, or it has none */
  uint32_t slot;    /* counted; NO_SLOT: none yet.  Also guarded by lock, for others than the busy thread */
  uint32_t ttl_ms;
  char node[48]; /* "": not known */
  char watched_node[48];
  /* Immutable. */
  dibs__id id;
  uint64_t ticket;
  uint32_t mode, slots, owner_len;
  char digest[17];
  char owner[DIBS_OWNER_MAX + 1];
  uint32_t len;
  char name[];
};

struct dibs__zk {
  struct dibs__dstore base;
  /* Immutable after open. */
  struct dibs__zk_location location;
  uint64_t session;

  dibs__word gate; /* 0: nobody is busy */
  /* Of the busy thread. */
  zhandle_t *zh;
  _Atomic bool closing;        /* any thread: the library loses the memory of a request that is made while it closes */
  bool rooted;                 /* the rest is known */
  int64_t root_czxid, root_ms; /* of ROOT: when it was created, by the servers' clock */
  char path[1100];             /* ROOT/ID */
  dibs__mandate mandate;
  uint64_t tickets, generation; /* generation: counts sessions */
  dibs__word freed;             /* counts the holds that were taken and are not any more */
  dibs__tick other_at;          /* a new session that no server has accepted by then asks another one */
  uint32_t tries;               /* how many of them in vain */
  dibs__tick proof;             /* the session was alive when a request that was sent then arrived */
  int64_t server_ms, local_ms;  /* the servers' clock at an instant of ours; for listings */

  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__map by_key, by_ticket;
  struct dibs__zk_hold *all;
  uint32_t tells;
  int64_t due; /* no hold ends before */
  bool connected, ended, denied, recheck, new_incarnation, woken;
  bool accepted;       /* the session exists: it was connected once */
  dibs__tick guard_at; /* then events() watches over the nodes of new leases */
  dibs__word changes;  /* what events() and ready() wait on */
};

static inline int64_t dibs__zk_now(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}
static inline dibs__str dibs__zk_hold_name(const struct dibs__zk_hold *h) {
  return dibs__str_of(h->name, h->len);
}
bool dibs__zk_enter(struct dibs__zk *store, dibs__tick by); /* busy; false: another thread was, until `by` */
void dibs__zk_leave(struct dibs__zk *store);
void dibs__zk_changed(struct dibs__zk *store); /* `changes` */

struct dibs__zk_hold *dibs__zk_hold_new(struct dibs__zk *store, const struct dibs__lease_op *op); /* in the tables */
void dibs__zk_hold_drop(struct dibs__zk *store, struct dibs__zk_hold *h);
struct dibs__zk_hold *dibs__zk_hold_find(struct dibs__zk *store, dibs__str name, dibs__id id); /* takes `lock` */
static inline void dibs__zk_end_locked(struct dibs__zk *store, struct dibs__zk_hold *h, int64_t ends) {
  h->ends = ends;
  if (ends < store->due) store->due = ends;
}
void dibs__zk_hold_tell_locked(struct dibs__zk *store, struct dibs__zk_hold *h);
/* The paths of a name and of a hold's node.  Returns `to`. */
const char *dibs__zk_dir(const struct dibs__zk *store, dibs__str name, char to[DIBS__ZK_PATH]);
const char *dibs__zk_node(const struct dibs__zk *store, const struct dibs__zk_hold *h, char to[DIBS__ZK_PATH]);
const char *dibs__zk_slot_path(const struct dibs__zk *store, const struct dibs__zk_hold *h, uint32_t slot,
                               char to[DIBS__ZK_PATH]);
void dibs__zk_set_slot(struct dibs__zk *store, struct dibs__zk_hold *h, uint32_t slot);
/* Of a lease whose node is not there: does it have a slot that may be there?  Deletes that slot if it is still its own.
 */
bool dibs__zk_leaves_slot(struct dibs__zk *store, const struct dibs__zk_hold *h);
void dibs__zk_free_slot(struct dibs__zk *store, struct dibs__zk_hold *h, dibs__tick by);
/* One request for its node, and its slot if it has one. */
size_t dibs__zk_put_delete_hold(struct dibs__zk *store, struct dibs__zk_round *round, const struct dibs__zk_hold *h,
                                bool with_slot);
/* The data of its node; the length. */
size_t dibs__zk_hold_data(const struct dibs__zk_hold *h, char to[DIBS__ZK_DATA]);
struct dibs__zk_data {
  uint32_t mode, ttl_ms, pid;
  uint32_t slots, slot; /* counted; slot: NO_SLOT before it is granted */
  bool broken;
  dibs__str owner; /* in the text that was read */
};
size_t dibs__zk_write_data(const struct dibs__zk_data *data, char to[DIBS__ZK_DATA]);
bool dibs__zk_read_data(const char *text, int len, struct dibs__zk_data *data);
/* For how long a session is certainly alive after a proof. */
int64_t dibs__zk_life_ms(const struct dibs__zk *store);
/* The end of a lease that begins or is renewed at `from`. */
int64_t dibs__zk_until(const struct dibs__zk *store, int64_t from, uint32_t ttl_ms);
uint64_t dibs__zk_fence(const struct dibs__zk *store, int64_t czxid);
bool dibs__zk_is_ours(const struct dibs__zk *store, const struct Stat *stat); /* a node of this session */
/* Deletes the nodes of holds that have ended, and forgets them.  A lease that is gone leaves its slot. */
void dibs__zk_sweep(struct dibs__zk *store, dibs__tick by);

/* ---- watch.c ---- */

watcher_fn dibs__zk_watcher(enum dibs__zk_watch watch);
struct dibs__zk_hold *dibs__zk_hold_with_ticket_locked(const struct dibs__zk *store, uint64_t ticket);
/* Watches over the nodes of leases that last. */
void dibs__zk_guard_holds(struct dibs__zk *store);

/* ---- queue.c ---- */

struct dibs__zk_child {
  const char *name;
  char digest[17];
  uint32_t mode, slots;
  int32_t seq;
};
/* false: not a node of a lease. */
bool dibs__zk_child_read(const char *name, struct dibs__zk_child *child);
/* The hold's node, if it knows its name; else the last one for its id, before `below` unless that is NULL.  Its name is
 * in the hold then; false: there is none. */
bool dibs__zk_pick_node(const struct dibs__zk_slot *children, struct dibs__zk_hold *h, const int32_t *below);
/* The node is another session's, which has a lease with the same id: the next one to be picked is before it. */
bool dibs__zk_pass_over(struct dibs__zk_hold *h, int32_t *below);
const char *dibs__zk_slot_node(uint32_t slot, char to[DIBS__ZK_SLOT_NODE]);
/* Is a before b?  Numbers of a name run in a circle. */
static inline bool dibs__zk_before(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)b) < 0;
}

struct dibs__zk_position {
  bool exists;               /* its node is among them */
  bool free;                 /* it may hold the name; a counted one, if a slot is free */
  bool waiting;              /* it excludes a node after it */
  bool unlike;               /* the holders are counted, of another number of slots */
  uint32_t blockers;         /* nodes before it that exclude it */
  uint32_t ahead;            /* waiters before it */
  uint32_t slot;             /* a free one for it, or NO_SLOT */
  enum dibs__zk_watch watch; /* what a waiter watches, and of which node */
  struct dibs__zk_child watched;
};
/* Of the node with self's mode, slots and number. */
void dibs__zk_position(const struct dibs__zk_slot *children, const struct dibs__zk_child *self,
                       struct dibs__zk_position *position);
static inline void dibs__zk_position_of_hold(const struct dibs__zk_slot *children, const struct dibs__zk_hold *h,
                                             struct dibs__zk_position *position) {
  struct dibs__zk_child self = {.mode = h->mode, .slots = h->slots, .seq = h->seq};
  dibs__zk_position(children, &self, position);
}
/* The children of ours, in their order; returns their number.  The first *holders of them hold the name. */
size_t dibs__zk_sorted(const struct dibs__zk_slot *children, struct dibs__zk_child **sorted, size_t *holders);

/* ---- lease.c, run.c, record.c, list.c ---- */

struct dibs__zk_session {
  struct dibs__session base;
};

dibs__driver_run dibs__zk_run;
dibs__driver_list dibs__zk_list;
/* Leases of different names.  The caller is busy; `failed`: a status of UNAVAILABLE or UNKNOWN is also that of run().
 */
void dibs__zk_leases(struct dibs__zk *store, struct dibs__lease_op *const ops[], size_t count, int64_t now,
                     dibs__tick by, struct dibs__result *result);
void dibs__zk_records(struct dibs__zk *store, struct dibs__record_op *ops[], size_t count, dibs__tick by,
                      struct dibs__result *result);
void dibs__zk_break(struct dibs__zk *store, struct dibs__lease_op *op, dibs__tick by, struct dibs__result *result);

#endif
