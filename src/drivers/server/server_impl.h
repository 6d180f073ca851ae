/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SERVER_SERVER_IMPL_H
#define DIBS_DRIVERS_SERVER_SERVER_IMPL_H
/* What the files of src/drivers/server share. */
#include "drivers/server/server.h"
#include "sql/wire.h"

#include <stdlib.h>
#include <string.h>

/* The servers' own statements (text.c), behind those of every engine. */
enum dibs__server_texts {
  DIBS__SERVER_META = DIBS__ROWS_TEXTS,
  DIBS__SERVER_META_LOCK,
  DIBS__SERVER_META_ADD,
  DIBS__SERVER_META_VERSION,
  DIBS__SERVER_META_INCARNATION,
  DIBS__SERVER_META_NOTED,
  DIBS__SERVER_META_NOTE,
  DIBS__SERVER_META_KIND,
  DIBS__SERVER_LIVE,
  DIBS__SERVER_BUCKET,
  DIBS__SERVER_BUCKET_LOCK,
  DIBS__SERVER_BUCKET_SET,
  DIBS__SERVER_BUCKET_DRAW,
  DIBS__SERVER_BUCKETS_LOCK,
  DIBS__SERVER_BUCKETS_SET,
  DIBS__SERVER_NOW,
  DIBS__SERVER_AHEAD_OF,
  DIBS__SERVER_RECORD_LOCK,
  DIBS__SERVER_RECORD_STUB,
  DIBS__SERVER_RECORD_SEAL,
  DIBS__SERVER_RECORD_SAVE,
  DIBS__SERVER_LIST_NAMES,
  DIBS__SERVER_LIST_ROWS,
  DIBS__SERVER_SWEEP_NAMES,
  DIBS__SERVER_SWEEP_OURS,
  DIBS__SERVER_ALIVE,
  DIBS__SERVER_TEXTS
};

/* Columns of a head and a waiter as DIBS__SERVER_AHEAD_OF gives them. */
enum { DIBS__SERVER_COLUMNS = 24 };

/* The loaded rows of a name, and their changes in this transaction. */
struct dibs__server_name {
  dibs__str name; /* the operation's */
  uint16_t bucket;
  bool loaded;
  struct dibs__sql_head head;
  /* Its waiters up to the ticket `upto` are these. */
  uint64_t upto;
  size_t count;
  struct dibs__sql_waiter *waiters; /* DIBS__SERVER_AHEAD of them, from the pool */
};

struct dibs__server_known {
  uint64_t session;
  int64_t where;
};

struct dibs__server_record {
  dibs__str key;
  bool found;
  bool writes;                 /* an operation of the batch may change it: it is locked */
  struct dibs__sql_record row; /* `data` is malloc'd */
  char *data;
};

/* A cohort requests a little more than the ttl (25 ms): so much more may a lease last than failover_wait. */
enum { DIBS__SERVER_COHORT_MS = 100 };

struct dibs__server_session {
  struct dibs__session base;
  struct dibs__server *store;
  struct dibs__rows rows;        /* what src/sql gets as `to` */
  dibs__incarnation incarnation; /* the server's, as this connection knows it */
  /* ---- Of the current transaction ---- */
  int64_t now;
  uint64_t known[2], changed[2]; /* bit a bucket */
  struct dibs__sql_bucket buckets[DIBS__BUCKETS];
  struct dibs__server_name *names;
  size_t name_count, name_capacity, name_last;
  struct dibs__sql_waiter *pool; /* DIBS__SERVER_AHEAD for each name that has space */
  struct dibs__server_record *records;
  size_t record_count, record_capacity;
  struct dibs__server_known *others; /* sessions whose state is known */
  size_t other_count, other_capacity;
  struct dibs__server_notice *notices;
  size_t notice_count, notice_capacity;
  bool connected;
  bool requests;        /* what is loaded now is requested at once */
  bool notifier_wanted; /* a waiter is to be queued, and there is no notifier yet */
  bool deaf;            /* of a batch: no notifier can be opened, so nobody is queued */
  uint16_t spent;
  uint64_t has_waiters[2]; /* bit a bucket: a name of it had waiters at the latest check */
};

enum { DIBS__SERVER_LOCAL_EVENTS = 64 };
/* For use in texts: names that a step of sweeping checks; waiters of a short queue; names listed at once. */
#define DIBS__SERVER_SWEEP 64
#define DIBS__SERVER_SHALLOW 32
#define DIBS__SERVER_LOT 1024

struct dibs__server_inside {
  dibs__mutex opening;        /* its owner may open a notifier; before `lock` */
  dibs__tick notifier_at;     /* guarded by opening: the time of the next try, and */
  uint32_t notifier_pause_ms; /* the pause before that */
  dibs__mutex lock;           /* guards what follows, to `events` */
  void *notifier;
  bool woken;
  bool seen_any; /* `seen`: the incarnation that the latest session saw */
  dibs__incarnation seen;
  size_t event_count; /* for our own waiters */
  struct dibs__event events[DIBS__SERVER_LOCAL_EVENTS];
  dibs__word notifier_word; /* sleeps of events() without a notifier */
  /* Any thread. */
  _Atomic bool queued;                /* this store has had waiters */
  _Atomic uint32_t sessions;          /* that are connected */
  _Atomic bool yields;                /* the only connections are the notifier's, and a session finds no free one */
  _Atomic bool moved;                 /* sessions use another server than the notifier may */
  struct dibs__server_session *spare; /* guarded by the lock: opened by open for the first session */
  _Atomic char kind;                  /* server.c: the kind of leases here, once known */
  /* Of the thread that sweeps. */
  struct dibs__server_session *tidier;
  dibs__tick sweep_at;
  uint16_t swept_bucket;
  uint32_t swept_len;
  char swept_name[DIBS_NAME_MAX];
  char swept_claim[DIBS__SQL_CLAIM_MAX + 1];
};

static inline struct dibs__server_session *dibs__server_of(void *to) {
  return (struct dibs__server_session *)((char *)to - offsetof(struct dibs__server_session, rows));
}

/* ---- server.c ---- */
enum dibs__server_kind { DIBS__SERVER_UNDECIDED, DIBS__SERVER_ROWS = 'r', DIBS__SESSION_LOCKS = 'l' };
/* Before leases are granted: checks that they are of this kind.  If not, the acquires and their groups are answered
 * DENIED.  After the first time it costs nothing. */
enum dibs__sql_rc dibs__server_settle_kind(struct dibs__server_session *s, struct dibs__op *const ops[], size_t count,
                                           struct dibs__result *result);

/* ---- text.c ---- */
bool dibs__server_texts_make(struct dibs__server *store);
void dibs__server_texts_free(struct dibs__server *store);

/* ---- rows.c ---- */
extern const struct dibs__sql_rows dibs__server_rows;
struct dibs__sql dibs__server_sql(struct dibs__server_session *s);
enum dibs__sql_rc dibs__server_read_bucket(struct dibs__server_session *s, size_t nth, uint16_t bucket);
enum dibs__sql_rc dibs__server_put_bucket(struct dibs__server_session *s, uint16_t bucket);
struct dibs__server_name *dibs__server_name_find(struct dibs__server_session *s, uint16_t bucket, dibs__str name);
int64_t dibs__server_where(const struct dibs__server_session *s, uint64_t session, bool *known);
void dibs__server_know(struct dibs__server_session *s, uint64_t session, int64_t where);

/* ---- rows.c ---- */
/* Forgets the transaction before. */
void dibs__server_fresh(struct dibs__server_session *s);
/* BEGIN, locks, and the rows that the operations are about; sent and read. */
enum dibs__sql_rc dibs__server_load(struct dibs__server_session *s, struct dibs__op *const ops[], size_t count,
                                    bool writes);
/* A name that the load did not include. */
enum dibs__sql_rc dibs__server_lock_bucket(struct dibs__server_session *s, uint16_t bucket);

/* ---- server.c ---- */
/* Begins a new incarnation if the store's rows remember another one than this connection sees. */
enum dibs__sql_rc dibs__server_settle_incarnation(struct dibs__server_session *s);
enum dibs__sql_rc dibs__server_next_epoch(struct dibs__server_session *s, uint16_t bucket);
dibs__status dibs__server_session_open(struct dibs__server *store, dibs__tick by, struct dibs__server_session **out,
                                       struct dibs__result *result);
void dibs__server_session_close(struct dibs__server_session *s);
dibs__status dibs__server_explain(struct dibs__server_session *s, const char *doing, struct dibs__result *result);

/* ---- run.c ---- */
/* Writes changed buckets and notifications, COMMIT; sent and answered.  OK: it is committed, and our own waiters have
 * their events. */
enum dibs__sql_rc dibs__server_commit(struct dibs__server_session *s);

/* ---- server.c ---- */
bool dibs__server_notifier_there(struct dibs__server *store);
dibs__status dibs__server_notifier_ensure(struct dibs__server *store, dibs__tick by, struct dibs__result *result);
void dibs__server_tell_us(struct dibs__server *store, const struct dibs__event *event);

/* ---- list.c ---- */
void dibs__server_leave(struct dibs__server *store);

#endif
