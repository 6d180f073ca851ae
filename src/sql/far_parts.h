/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_FAR_PARTS_H
#define DIBS_SQL_FAR_PARTS_H
/* What far_*.c share. */
#include "sql/batch.h"
#include "sql/far.h"

#include <stdlib.h>
#include <string.h>

/* In the order of far_text.c. */
enum dibs__far_texts {
  DIBS__FAR_META,
  DIBS__FAR_META_LOCK,
  DIBS__FAR_META_ADD,
  DIBS__FAR_META_VERSION,
  DIBS__FAR_META_LIFE,
  DIBS__FAR_BUCKET_ADD,
  DIBS__FAR_BUCKET,
  DIBS__FAR_BUCKET_LOCK,
  DIBS__FAR_BUCKET_SET,
  DIBS__FAR_BUCKET_SERVE,
  DIBS__FAR_BUCKET_DRAW,
  DIBS__FAR_BUCKETS_LOCK,
  DIBS__FAR_BUCKETS_SET,
  DIBS__FAR_NOW,
  DIBS__FAR_AHEAD_OF,
  DIBS__FAR_HEAD_ADD,
  DIBS__FAR_HEAD_SET,
  DIBS__FAR_HEAD_QUEUE,
  DIBS__FAR_HEAD_DROP,
  DIBS__FAR_HOLDER,
  DIBS__FAR_HOLDER_ADD,
  DIBS__FAR_HOLDER_SET,
  DIBS__FAR_HOLDER_DROP,
  DIBS__FAR_HOLDERS,
  DIBS__FAR_HOLDERS_EXPIRE,
  DIBS__FAR_HOLDERS_BREAK,
  DIBS__FAR_HOLDERS_DROP,
  DIBS__FAR_HOLDERS_UNTIL,
  DIBS__FAR_SLOTS,
  DIBS__FAR_WAITER,
  DIBS__FAR_WAITER_SHALLOW,
  DIBS__FAR_DEEP,
  DIBS__FAR_DEEP_ADD,
  DIBS__FAR_DEEP_DROP,
  DIBS__FAR_WAITER_NEXT,
  DIBS__FAR_WAITER_OFFERED,
  DIBS__FAR_WAITER_ADD,
  DIBS__FAR_WAITER_SET,
  DIBS__FAR_WAITER_DROP,
  DIBS__FAR_OFFERS_EXPIRE,
  DIBS__FAR_OFFERS_UNTIL,
  DIBS__FAR_BREAK_ADD,
  DIBS__FAR_BREAK_TRIM,
  DIBS__FAR_BREAKS,
  DIBS__FAR_BREAKS_OLD,
  DIBS__FAR_RECORD,
  DIBS__FAR_RECORD_LOCK,
  DIBS__FAR_RECORD_STUB,
  DIBS__FAR_RECORD_SEAL,
  DIBS__FAR_RECORD_SAVE,
  DIBS__FAR_LIST_NAMES,
  DIBS__FAR_LIST_ROWS,
  DIBS__FAR_SWEEP_NAMES,
  DIBS__FAR_SWEEP_OURS,
  DIBS__FAR_WAITERS_ALL,
  DIBS__FAR_ALIVE,
  DIBS__FAR_TEXTS
};

/* Columns of a head and a waiter as DIBS__FAR_AHEAD and the waiter's texts give them: place, state, ... alive. */
enum { DIBS__FAR_COLUMNS = 24, DIBS__FAR_ALIVE_AT = DIBS__FAR_COLUMNS - 1 };

/* What was loaded of a name, and has been changed since in this transaction. */
struct dibs__far_name {
  dibs__str name; /* the operation's */
  uint16_t bucket;
  bool loaded;
  struct dibs__sql_head head;
  /* Its waiters up to the ticket `upto` are these. */
  uint64_t upto;
  size_t count;
  struct dibs__sql_waiter *waiters; /* DIBS__FAR_AHEAD of them, from the pool */
};

struct dibs__far_known {
  uint64_t session;
  int64_t where;
};

struct dibs__far_record {
  dibs__str key;
  bool found;
  bool writes;                 /* some operation of the batch may: it is locked */
  struct dibs__sql_record row; /* `data` is ours */
  char *data;
};

struct dibs__far_session {
  struct dibs__session base;
  struct dibs__far *store;
  struct dibs__sql_wire *wire;
  dibs__life life; /* of the server, as this connection knows it */
  /* ---- Of the transaction that goes on ---- */
  int64_t now;
  uint64_t known[2], changed[2]; /* bit a bucket */
  struct dibs__sql_bucket buckets[DIBS__BUCKETS];
  struct dibs__far_name *names;
  size_t name_count, name_room, name_last;
  struct dibs__sql_waiter *pool; /* DIBS__FAR_AHEAD for each name that has room */
  struct dibs__far_record *records;
  size_t record_count, record_room;
  struct dibs__far_known *others; /* sessions that we know about */
  size_t other_count, other_room;
  struct dibs__far_ring *rings;
  size_t ring_count, ring_room;
  bool asks;        /* what is loaded now is asked for at once */
  bool wrote;       /* something was put that changes rows */
  bool bell_wanted; /* somebody is to be queued, and we have no bell yet */
  uint16_t spent;
  uint64_t crowded[2]; /* bit a bucket: somebody waited for a name of it when last asked */
};

enum { DIBS__FAR_LOCAL_EVENTS = 64 };
/* For use in texts: names that a step of sweeping looks at; waiters of a short queue; names listed at once. */
#define DIBS__FAR_SWEEP 64
#define DIBS__FAR_SHALLOW 32
#define DIBS__FAR_LOT 1024

struct dibs__far_inside {
  dibs__mutex opening; /* who has it may open a bell; before `lock` */
  dibs__mutex lock;    /* guards what follows, to `events` */
  void *bell;
  bool woken;
  size_t event_count; /* for ourselves */
  struct dibs__event events[DIBS__FAR_LOCAL_EVENTS];
  dibs__word bell_word; /* sleeps of events() without a bell */
  /* Any thread. */
  _Atomic bool queued;             /* this store has had waiters */
  struct dibs__far_session *spare; /* guarded by the lock: opened by open for the first session */
  /* Of the thread that tidies. */
  struct dibs__far_session *tidier;
  dibs__tick sweep_at;
  uint16_t swept_bucket;
  uint32_t swept_len;
  char swept_name[DIBS_NAME_MAX];
  char swept_claim[DIBS__SQL_CLAIM_MAX + 1];
};

/* ---- far_text.c ---- */
bool dibs__far_texts_make(struct dibs__far *store);
void dibs__far_texts_free(struct dibs__far *store);
/* Puts one of our texts. */
enum dibs__sql_step dibs__far_put(struct dibs__far_session *s, enum dibs__far_texts text,
                                  const struct dibs__sql_value *values, size_t count);
/* Puts it, and goes with whatever was put before; its answers have the number *nth. */
enum dibs__sql_step dibs__far_ask(struct dibs__far_session *s, enum dibs__far_texts text,
                                  const struct dibs__sql_value *values, size_t count, size_t *nth);

/* ---- far_rows.c, far_crowd.c ---- */
extern const struct dibs__sql_rows dibs__far_rows;
struct dibs__sql dibs__far_sql(struct dibs__far_session *s);
/* Row `row` of answer `nth`, as DIBS__FAR_AHEAD gives it. */
bool dibs__far_read_head(const struct dibs__far_session *s, size_t nth, size_t row, struct dibs__sql_head *head);
void dibs__far_read_waiter(struct dibs__far_session *s, size_t nth, size_t row, struct dibs__sql_waiter *waiter);
bool dibs__far_read_broken(const struct dibs__far_session *s, size_t nth, size_t row);
void dibs__far_read_holder(const struct dibs__far_session *s, size_t nth, size_t row, struct dibs__sql_holder *holder);
enum dibs__sql_step dibs__far_read_bucket(struct dibs__far_session *s, size_t nth, uint16_t bucket);
struct dibs__far_name *dibs__far_name_find(struct dibs__far_session *s, uint16_t bucket, dibs__str name);
void dibs__far_read_bytes(const struct dibs__far_session *s, size_t nth, size_t row, size_t column, void *to,
                          size_t size);
struct dibs__far_record *dibs__far_record_find(struct dibs__far_session *s, dibs__str key);
int64_t dibs__far_where(const struct dibs__far_session *s, uint64_t session, bool *known);
void dibs__far_know(struct dibs__far_session *s, uint64_t session, int64_t where);

enum dibs__sql_step dibs__far_holder_find(void *to, const struct dibs__sql_head *head, dibs__id id,
                                          struct dibs__sql_holder *x, bool *found);
enum dibs__sql_step dibs__far_holder_add(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *x);
enum dibs__sql_step dibs__far_holder_set(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *x);
enum dibs__sql_step dibs__far_holder_drop(void *to, const struct dibs__sql_head *head, dibs__id id);
enum dibs__sql_step dibs__far_holders_expire(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
enum dibs__sql_step dibs__far_holders_each(void *to, const struct dibs__sql_head *head,
                                           void (*each)(void *arg, const struct dibs__sql_holder *holder), void *arg);
enum dibs__sql_step dibs__far_holders_break(void *to, const struct dibs__sql_head *head);
enum dibs__sql_step dibs__far_holders_drop(void *to, const struct dibs__sql_head *head);
enum dibs__sql_step dibs__far_holders_first_until(void *to, const struct dibs__sql_head *head, int64_t *until);
enum dibs__sql_step dibs__far_slot_free(void *to, const struct dibs__sql_head *head, uint32_t *slot);
enum dibs__sql_step dibs__far_waiter_find(void *to, const struct dibs__sql_head *head, dibs__id id, uint64_t ticket,
                                          struct dibs__sql_waiter *w, bool *found);
enum dibs__sql_step dibs__far_waiter_next(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *w,
                                          bool *found);
enum dibs__sql_step dibs__far_waiter_offered(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *w,
                                             bool *found);
enum dibs__sql_step dibs__far_waiter_add(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__far_waiter_set(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__far_waiter_drop(void *to, const struct dibs__sql_head *head,
                                          const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__far_offers_expire(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
enum dibs__sql_step dibs__far_offers_first_until(void *to, const struct dibs__sql_head *head, int64_t *until);

/* ---- far_load.c ---- */
/* Forgets the transaction before. */
void dibs__far_fresh(struct dibs__far_session *s);
/* BEGIN, locks, and whatever the operations are about; sent and read. */
enum dibs__sql_step dibs__far_load(struct dibs__far_session *s, struct dibs__op *const ops[], size_t count,
                                   bool writes);
enum dibs__sql_step dibs__far_load_record(struct dibs__far_session *s, dibs__str key, struct dibs__far_record **out);
/* A name that was not thought of before. */
enum dibs__sql_step dibs__far_load_name(struct dibs__far_session *s, uint16_t bucket, dibs__str name,
                                        struct dibs__far_name **out);
enum dibs__sql_step dibs__far_lock_bucket(struct dibs__far_session *s, uint16_t bucket);

/* ---- far_open.c ---- */
/* Begins a new incarnation if the store's memory is another than the one that this connection sees. */
enum dibs__sql_step dibs__far_settle_life(struct dibs__far_session *s);
enum dibs__sql_step dibs__far_next_epoch(struct dibs__far_session *s, uint16_t bucket);
dibs__status dibs__far_session_open(struct dibs__far *store, dibs__tick by, struct dibs__far_session **out,
                                    struct dibs__said *said);
void dibs__far_session_close(struct dibs__far_session *s);
dibs__status dibs__far_excuse(struct dibs__far_session *s, const char *doing, struct dibs__said *said);

/* ---- far_run.c ---- */
/* Writes changed buckets and rings, COMMIT; sent and answered.  FINE: it stands, and who is ours was told. */
enum dibs__sql_step dibs__far_commit(struct dibs__far_session *s);

/* ---- far_bell.c ---- */
bool dibs__far_bell_there(struct dibs__far *store);
dibs__status dibs__far_bell_ensure(struct dibs__far *store, dibs__tick by, struct dibs__said *said);
void dibs__far_bell_close(struct dibs__far *store);
void dibs__far_tell_us(struct dibs__far *store, const struct dibs__event *event);

/* ---- far_sweep.c ---- */
void dibs__far_leave(struct dibs__far *store);

#endif
