/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_PARTS_H
#define DIBS_DRIVERS_SQLITE_PARTS_H
/*
 * What the files of the SQLite driver share.
 *
 *   sqlite.c        the table of the driver; open, connect, events
 *   sqlite_file.c   is it a file of ours; making a new one
 *   sqlite_life.c   incarnations and epochs
 *   sqlite_text.c   the statements
 *   sqlite_link.c   a connection: statements, errors, transactions
 *   sqlite_rows.c   rows to structs and back: the dialect of src/sql
 *   sqlite_crowd.c  the same for shared holders and waiters
 *   sqlite_fast.c   acquire, renew, release of exclusive leases by one statement each
 *   sqlite_wire.c   the connection as a wire, for guarded writes (src/sql/guard.h)
 *   sqlite_guard.c  guarded writes; the user's own connection
 *   sqlite_run.c    a batch
 *   sqlite_list.c   listing
 *   sqlite_tidy.c   checkpoints and sweeping
 *
 * Locks, in order: the gate or the writer queue of the side file, then SQLite's own write lock, then what is inside
 * sqlite_side*.  A link is used by one thread at a time and guarded by that.
 */
#include "drivers/sqlite.h"
#include "drivers/sqlite_side.h"
#include "sql/guard.h"

#include <sqlite3.h>

/* "dibs" in the file's header. */
#define DIBS__LITE_APPLICATION 0x64696273

/* What SQLite calls the types of the schema. */
#define DIBS__LITE_WORDS                                                                                               \
  {                                                                                                                    \
    .number = "INTEGER", .name = "TEXT", .text = "TEXT", .id = "TEXT", .bytes = "BLOB", .tail = " WITHOUT ROWID",      \
    .some = " WHERE "                                                                                                  \
  }

enum {
  DIBS__LITE_LOG_PAGES = 2000, /* of the log: more is worth a checkpoint.  See sqlite_tidy.c */
  DIBS__LITE_LOG_LAST = 128,   /* for the last process that leaves: an open reads each page of it, 1.5 us apiece */
  DIBS__LITE_BATCH = 16384,
  DIBS__LITE_PAGE = 2048,
  DIBS__LITE_HEAD_COLUMNS = 21, /* of a head, in a select */
  /* Hints kept until commit.  From HINTS_PLAIN on a session gets one "look at all" instead of more of its own; there
   * are at most DIBS__SIDE_SLOTS sessions, so it is always enough. */
  DIBS__LITE_HINTS_PLAIN = 256,
  DIBS__LITE_HINTS = DIBS__LITE_HINTS_PLAIN + DIBS__SIDE_SLOTS
};

/* For use in texts.  How many names a step of sweeping looks at; DIBS__SQL_SHALLOW. */
#define DIBS__LITE_SWEEP 64
#define DIBS__LITE_SHALLOW 32

/* Every statement is prepared when first used and kept.  The texts are in sqlite_text.c, in the same order. */
enum dibs__lite_text {
  DIBS__LITE_BEGIN,
  DIBS__LITE_BEGIN_READ,
  DIBS__LITE_COMMIT,
  DIBS__LITE_ROLLBACK,
  DIBS__LITE_SAVE,
  DIBS__LITE_SAVE_UNDO,
  DIBS__LITE_SAVE_END,
  DIBS__LITE_APPLICATION_ID,
  DIBS__LITE_USER_VERSION,
  DIBS__LITE_META,
  DIBS__LITE_META_SET,
  DIBS__LITE_BUCKET,
  DIBS__LITE_BUCKET_ADD,
  DIBS__LITE_BUCKET_SET,
  DIBS__LITE_BUCKET_SERVE,
  DIBS__LITE_BUCKETS_SET,
  DIBS__LITE_TAKE,
  DIBS__LITE_KEPT,
  DIBS__LITE_KEEP,
  DIBS__LITE_GIVE,
  DIBS__LITE_HEAD,
  DIBS__LITE_HEAD_ADD,
  DIBS__LITE_HEAD_SET,
  DIBS__LITE_HEAD_QUEUE,
  DIBS__LITE_HEAD_DROP,
  DIBS__LITE_HOLDER,
  DIBS__LITE_HOLDER_ADD,
  DIBS__LITE_HOLDER_SET,
  DIBS__LITE_HOLDER_DROP,
  DIBS__LITE_HOLDERS,
  DIBS__LITE_HOLDERS_EXPIRE,
  DIBS__LITE_HOLDERS_BREAK,
  DIBS__LITE_HOLDERS_DROP,
  DIBS__LITE_HOLDERS_UNTIL,
  DIBS__LITE_SLOTS,
  DIBS__LITE_WAITER,
  DIBS__LITE_WAITER_SHALLOW,
  DIBS__LITE_DEEP,
  DIBS__LITE_DEEP_ADD,
  DIBS__LITE_DEEP_DROP,
  DIBS__LITE_WAITER_NEXT,
  DIBS__LITE_WAITER_OFFERED,
  DIBS__LITE_WAITER_ADD,
  DIBS__LITE_WAITER_SET,
  DIBS__LITE_WAITER_DROP,
  DIBS__LITE_WAITERS,
  DIBS__LITE_OFFERS_EXPIRE,
  DIBS__LITE_OFFERS_UNTIL,
  DIBS__LITE_BREAK_ADD,
  DIBS__LITE_BREAK_TRIM,
  DIBS__LITE_BREAKS,
  DIBS__LITE_BREAKS_OLD,
  DIBS__LITE_RECORD,
  DIBS__LITE_RECORD_SEAL,
  DIBS__LITE_RECORD_SAVE,
  DIBS__LITE_NAMES,
  DIBS__LITE_NAMES_FROM,
  DIBS__LITE_NAMES_OF,
  DIBS__LITE_TEXTS
};
extern const char *const dibs__lite_texts[DIBS__LITE_TEXTS];

struct dibs__lite;
struct dibs__lite_wire;

struct dibs__lite_hint {
  uint64_t session;
  struct dibs__event event;
};

/* A connection. */
struct dibs__lite_link {
  struct dibs__lite *store;
  sqlite3 *db;
  sqlite3_stmt *statements[DIBS__LITE_TEXTS];
  struct dibs__lite_wire *wire; /* NULL until somebody wants it */
  bool inside;                  /* the user's own connection, in a transaction of theirs */
  dibs__tick by;                /* of the call that goes on: the busy handler gives up then */
  int failed;                   /* SQLite's code of what made a step BROKE */
  char words[160];              /* and its words */
  uint16_t spent;               /* the bucket of DIBS__SQL_SPENT */
  /* The buckets as they were at `version` of the data, and with what this transaction changed. */
  bool versioned;
  uint32_t version;
  uint64_t known[2], changed[2]; /* bit a bucket */
  struct dibs__sql_bucket buckets[DIBS__BUCKETS];
  /* Bit a bucket: somebody waited for a name of it when last asked, so a fast statement would hardly do. */
  uint64_t crowded[2];
  size_t hint_count;
  struct dibs__lite_hint hints[DIBS__LITE_HINTS];
};

/* A name among all. */
struct dibs__lite_place {
  uint16_t bucket;
  uint32_t len;
  char text[DIBS_NAME_MAX];
};

struct dibs__lite {
  struct dibs__dstore base;
  /* Immutable after open. */
  char *path;
  struct dibs__side *side;
  uint64_t device, inode;
  bool write_sync; /* guarded writes are pressed to disk at their commits */
  bool as_tier;
  /* Any thread. */
  _Atomic int64_t skew_ms;
  _Atomic bool queued;   /* this store has had waiters */
  _Atomic int log_pages; /* of the log after our last commit */
  /* Of the thread that opens and connects. */
  struct dibs__lite_link *spare; /* opened by open for the first session, or left by the last one */
  /* Of the thread that tidies. */
  struct dibs__lite_link *tidier;
  int64_t swept_ms; /* when, by the store's clock */
  struct dibs__lite_place swept_to;
  char swept_claim[DIBS__SQL_CLAIM_MAX + 1];
};

struct dibs__lite_session {
  struct dibs__session base;
  struct dibs__lite_link *link;
};

/* ---- sqlite_link.c ---- */

/* Opens a connection to the store's file. */
dibs__status dibs__lite_link_open(struct dibs__lite *store, const char *path, dibs__tick by,
                                  struct dibs__lite_link **link, struct dibs__said *said);
void dibs__lite_link_close(struct dibs__lite_link *link); /* NULL is fine */
/* The statement, ready to be bound; NULL: link->failed tells. */
sqlite3_stmt *dibs__lite_ready(struct dibs__lite_link *link, enum dibs__lite_text text);
/* One step of a statement that gives rows.  *row: there is one; else it is reset. */
enum dibs__sql_step dibs__lite_row(struct dibs__lite_link *link, sqlite3_stmt *statement, bool *row);
/* To its end, and resets it. */
enum dibs__sql_step dibs__lite_do(struct dibs__lite_link *link, sqlite3_stmt *statement);
/* Text without parameters, not kept. */
enum dibs__sql_step dibs__lite_say(struct dibs__lite_link *link, const char *text);
/* A kept one without parameters. */
enum dibs__sql_step dibs__lite_plain(struct dibs__lite_link *link, enum dibs__lite_text text);
enum dibs__sql_step dibs__lite_broke(struct dibs__lite_link *link, int code);
/* Rows that contradict each other. */
enum dibs__sql_step dibs__lite_wrong(struct dibs__lite_link *link);
/* What link->failed means to a caller, with words for people; `doing` continues "can't". */
dibs__status dibs__lite_excuse(const struct dibs__lite_link *link, const char *doing, struct dibs__said *said);
dibs__status dibs__lite_excuse_code(const char *path, int code, const char *words, const char *doing,
                                    struct dibs__said *said);

/* BEGIN IMMEDIATE, and a look whether others wrote. */
enum dibs__sql_step dibs__lite_begin(struct dibs__lite_link *link);
/* Writes changed buckets, COMMIT.  BROKE: nothing stands, unless *unsure. */
enum dibs__sql_step dibs__lite_commit(struct dibs__lite_link *link, bool *unsure);
void dibs__lite_rollback(struct dibs__lite_link *link);
/* Not even that worked: a transaction stands open, and only closing the connection ends it. */
bool dibs__lite_stuck(const struct dibs__lite_link *link);
/* How hard a commit is pressed to disk: FULL for epochs and saved records, else NORMAL. */
enum dibs__sql_step dibs__lite_full(struct dibs__lite_link *link, bool full);
int64_t dibs__lite_clock(const struct dibs__lite *store);

/* ---- sqlite_rows.c ---- */

extern const struct dibs__sql_rows dibs__lite_rows;
enum dibs__sql_step dibs__lite_bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row);
enum dibs__sql_step dibs__lite_bucket_put(void *to, uint16_t bucket);
struct dibs__sql dibs__lite_sql(struct dibs__lite_link *link, int64_t now);
/* Reads columns that both listing and deciding need. */
void dibs__lite_read_holder(sqlite3_stmt *st, struct dibs__sql_holder *x);
void dibs__lite_read_waiter(sqlite3_stmt *st, struct dibs__sql_waiter *w);
bool dibs__lite_read_head(sqlite3_stmt *st, struct dibs__sql_head *head); /* false: it contradicts itself */
dibs__str dibs__lite_read_text(sqlite3_stmt *st, int column);

/* ---- sqlite_crowd.c: see struct dibs__sql_rows ---- */

enum dibs__sql_step dibs__lite_holder_find(void *to, const struct dibs__sql_head *headead, dibs__id id,
                                           struct dibs__sql_holder *x, bool *found);
enum dibs__sql_step dibs__lite_holder_add(void *to, const struct dibs__sql_head *headead,
                                          const struct dibs__sql_holder *x);
enum dibs__sql_step dibs__lite_holder_set(void *to, const struct dibs__sql_head *headead,
                                          const struct dibs__sql_holder *x);
enum dibs__sql_step dibs__lite_holder_drop(void *to, const struct dibs__sql_head *headead, dibs__id id);
enum dibs__sql_step dibs__lite_holders_expire(void *to, const struct dibs__sql_head *headead, int64_t now,
                                              uint32_t *gone);
enum dibs__sql_step dibs__lite_holders_each(void *to, const struct dibs__sql_head *headead,
                                            void (*each)(void *arg, const struct dibs__sql_holder *holder), void *arg);
enum dibs__sql_step dibs__lite_holders_break(void *to, const struct dibs__sql_head *headead);
enum dibs__sql_step dibs__lite_holders_drop(void *to, const struct dibs__sql_head *headead);
enum dibs__sql_step dibs__lite_holders_first_until(void *to, const struct dibs__sql_head *headead, int64_t *until);
enum dibs__sql_step dibs__lite_slot_free(void *to, const struct dibs__sql_head *headead, uint32_t *slot);
enum dibs__sql_step dibs__lite_waiter_find(void *to, const struct dibs__sql_head *headead, dibs__id id, uint64_t ticket,
                                           struct dibs__sql_waiter *w, bool *found);
enum dibs__sql_step dibs__lite_waiter_next(void *to, const struct dibs__sql_head *headead, struct dibs__sql_waiter *w,
                                           bool *found);
enum dibs__sql_step dibs__lite_waiter_offered(void *to, const struct dibs__sql_head *headead,
                                              struct dibs__sql_waiter *w, bool *found);
enum dibs__sql_step dibs__lite_waiter_add(void *to, const struct dibs__sql_head *headead,
                                          const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__lite_waiter_set(void *to, const struct dibs__sql_head *headead,
                                          const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__lite_waiter_drop(void *to, const struct dibs__sql_head *headead,
                                           const struct dibs__sql_waiter *w);
enum dibs__sql_step dibs__lite_offers_expire(void *to, const struct dibs__sql_head *headead, int64_t now,
                                             uint32_t *gone);
enum dibs__sql_step dibs__lite_offers_first_until(void *to, const struct dibs__sql_head *headead, int64_t *until);

/* ---- sqlite_fast.c ---- */

/* Answers the operation if one statement can; else *done is false and nothing was changed. */
enum dibs__sql_step dibs__lite_fast(struct dibs__sql *sql, struct dibs__lease_op *op, bool *done);

/* ---- sqlite_wire.c ---- */

struct dibs__sql_wire;
/* The link's connection as a wire, for the call that goes on (link->by).  Writes are made from within the writer queue.
 * NULL: link->failed tells. */
struct dibs__sql_wire *dibs__lite_wire(struct dibs__lite_link *link);
void dibs__lite_wire_close(struct dibs__lite_wire *wire); /* NULL is fine; before the connection is closed */

/* ---- sqlite_guard.c ---- */

/* Is it one for the wire? */
bool dibs__lite_guards(const struct dibs__op *op);
/* Those that are. */
dibs__status dibs__lite_run_guarded(struct dibs__lite_link *link, struct dibs__op *const ops[], size_t count,
                                    dibs__tick by, struct dibs__said *said);
/* Answers and claims that are not kept any longer.  Of the thread that tidies. */
void dibs__lite_sweep_guarded(struct dibs__lite_link *link);
dibs__status dibs__lite_run_inside(struct dibs__lite_link *link, struct dibs__op *const ops[], size_t count,
                                   struct dibs__said *said);
dibs__status dibs__lite_attach(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                               struct dibs__identity *identity, struct dibs__said *said);

/* ---- sqlite_run.c, sqlite_list.c, sqlite_tidy.c ---- */

dibs__status dibs__lite_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__said *said);
dibs__status dibs__lite_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                             struct dibs__said *said);
void dibs__lite_tidy(struct dibs__dstore *store);
/* A checkpoint that waits for nobody, on a connection of its own. */
void dibs__lite_checkpoint(struct dibs__lite *store);
void dibs__lite_checkpoint_last(struct dibs__lite *store);
/* At an orderly close: our waiters and offers leave, and who is next is told. */
void dibs__lite_leave(struct dibs__lite *store);

/* ---- sqlite_file.c ---- */

/* PLAIN: ours, but without a log: somebody switched it off, or an empty file was being filled when that was ended. */
enum dibs__lite_kind { DIBS__LITE_ABSENT, DIBS__LITE_EMPTY, DIBS__LITE_PLAIN, DIBS__LITE_OURS };

/* Looks at the file's header without changing anything.  CORRUPT: not a file of ours; TOO_NEW; DENIED. */
dibs__status dibs__lite_look(const char *path, enum dibs__lite_kind *kind, struct dibs__said *said);
/* Makes the file whole, under the name `path`, in one step that a crash can't halve.  Under the gate. */
dibs__status dibs__lite_make(struct dibs__lite *store, enum dibs__lite_kind kind, uint32_t mode, uint32_t epoch,
                             dibs__tick by, struct dibs__said *said);
/* A database of an older dibs becomes one of ours, in one transaction.  Under the gate. */
enum dibs__sql_step dibs__lite_migrate(struct dibs__lite_link *link);
/* Takes away SQLite's files beside the database, and the database itself if `all`. */
void dibs__lite_remove(const char *path, bool all);
bool dibs__lite_has_log(const char *path);
/* Device and inode of what the path leads to.  false: nothing. */
bool dibs__lite_stat(const char *path, uint64_t *device, uint64_t *inode);

/* ---- sqlite_life.c ---- */

/* What the database says of itself. */
struct dibs__lite_meta {
  uint32_t version;
  dibs__life life;
  uint64_t device, inode;
  char boot[37];
};
enum dibs__sql_step dibs__lite_meta_load(struct dibs__lite_link *link, struct dibs__lite_meta *meta);
/* Under the gate: if the database is not what the side file remembers, a new incarnation.  `made`: it was made just
 * now, above what the side file knew, and the side file is to remember it. */
enum dibs__sql_step dibs__lite_settle_life(struct dibs__lite_link *link, bool made,
                                           const struct dibs__side_memory *memory);
/* A new incarnation in a transaction of its own, above every epoch known. */
enum dibs__sql_step dibs__lite_new_life(struct dibs__lite_link *link);
/* The next epoch of one bucket, in a transaction of its own. */
enum dibs__sql_step dibs__lite_next_epoch(struct dibs__lite_link *link, uint16_t bucket);
/* The bucket rows and the meta row of a new database. */
enum dibs__sql_step dibs__lite_first_life(struct dibs__lite_link *link, uint32_t epoch, uint64_t device,
                                          uint64_t inode);

#endif
