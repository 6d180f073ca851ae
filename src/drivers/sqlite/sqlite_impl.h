/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SQLITE_IMPL_H
#define DIBS_DRIVERS_SQLITE_SQLITE_IMPL_H
/*
 * What the files of the SQLite driver share.
 *
 *   sqlite.c      the table of the driver; open, connect, events; a connection: statements, errors, transactions
 *   database.c    the file: checking it, making a new one; incarnations and epochs
 *   rows.c        the statements; the dialect of src/sql, over sql/rows.c
 *   run.c         a batch; fast statements for exclusive leases; guarded writes; the user's own connection
 *   wire.c        the connection as a wire, for guarded writes (src/sql/wire.h)
 *   transactor.c  connections for transactions of users
 *   list.c        listing, checkpoints, sweeping
 *   path.c        the path of the database; file systems that are refused
 *   side.c        the side file; side_queue.c: the writers' queue, mailboxes
 *
 * Locks, in order: the gate or the writer queue of the side file, then SQLite's own write lock, then the locks inside
 * side.c.  A link is used by one thread at a time and guarded by that.
 */
#include "drivers/sqlite/side.h"
#include "drivers/sqlite/sqlite.h"
#include "sql/wire.h"
#include "store/engine.h"

#include <sqlite3.h>
#include <string.h>

/* "dibs" in the file's header. */
#define DIBS__SQLITE_APPLICATION 0x64696273

/* SQLite's names of the types of the schema. */
#define DIBS__SQLITE_NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)"
#define DIBS__SQLITE_WORDS                                                                                             \
  {                                                                                                                    \
    .number = "INTEGER", .name = "TEXT", .text = "TEXT", .id = "TEXT", .bytes = "BLOB", .tail = " WITHOUT ROWID",      \
    .some = " WHERE ", .counted = "INTEGER PRIMARY KEY AUTOINCREMENT", .now = " DEFAULT (" DIBS__SQLITE_NOW_MS ")",    \
    .checks = ", CHECK (nr > 0), CHECK (typeof(kind) = 'text' AND typeof(phase) = 'text' AND typeof(serial) IN "       \
              "('text', 'null')"                                                                                       \
              " AND typeof(uniq) IN ('text', 'null'))"                                                                 \
  }

enum {
  DIBS__SQLITE_LOG_PAGES = 2000, /* of the log: beyond that a checkpoint pays.  See list.c */
  DIBS__SQLITE_LOG_LAST = 128,   /* for the last process that closes: an open reads each page of it, 1.5 us apiece */
  DIBS__SQLITE_BATCH = 16384,
  DIBS__SQLITE_PAGE = 2048,
  DIBS__SQLITE_HEAD_COLUMNS = 21, /* of a head, in a select */
  /* Hints kept until commit.  From HINTS_PLAIN on a session gets one "check everything" instead of more of its own;
   * there are at most DIBS__SIDE_SLOTS sessions, so it is always enough. */
  DIBS__SQLITE_HINTS_PLAIN = 256,
  DIBS__SQLITE_HINTS = DIBS__SQLITE_HINTS_PLAIN + DIBS__SIDE_SLOTS
};

/* For use in texts: how many names a step of sweeping reads. */
#define DIBS__SQLITE_SWEEP 64
/* Names that a listing reads before all others: a page of a dashboard, which has 50. */
#define DIBS__SQLITE_FIRST 128
#define DIBS__SQLITE_LAST_BUCKET 99
_Static_assert(DIBS__SQLITE_LAST_BUCKET == (int)DIBS__BUCKETS - 1, "listing");

/* SQLite's own statements (rows.c), behind those of every engine.  Each is prepared when first used, and kept. */
enum dibs__sqlite_text {
  DIBS__SQLITE_BEGIN = DIBS__ROWS_TEXTS,
  DIBS__SQLITE_BEGIN_READ,
  DIBS__SQLITE_COMMIT,
  DIBS__SQLITE_ROLLBACK,
  DIBS__SQLITE_SAVE,
  DIBS__SQLITE_SAVE_UNDO,
  DIBS__SQLITE_SAVE_END,
  DIBS__SQLITE_APPLICATION_ID,
  DIBS__SQLITE_USER_VERSION,
  DIBS__SQLITE_META,
  DIBS__SQLITE_META_SET,
  DIBS__SQLITE_BUCKET,
  DIBS__SQLITE_BUCKET_SET,
  DIBS__SQLITE_BUCKETS_SET,
  DIBS__SQLITE_TAKE,
  DIBS__SQLITE_KEPT,
  DIBS__SQLITE_KEEP,
  DIBS__SQLITE_GIVE,
  DIBS__SQLITE_RECORD_SEAL,
  DIBS__SQLITE_RECORD_SAVE,
  DIBS__SQLITE_NAMES_FIRST,
  DIBS__SQLITE_NAMES,
  DIBS__SQLITE_NAMES_FROM,
  DIBS__SQLITE_NAMES_OF,
  DIBS__SQLITE_TEXTS
};
extern const char *const dibs__sqlite_texts[DIBS__SQLITE_TEXTS];

struct dibs__lite;
struct dibs__sqlite_wire;

struct dibs__sqlite_hint {
  uint64_t session;
  struct dibs__event event;
};

/* A connection. */
struct dibs__sqlite_link {
  struct dibs__rows rows; /* first: what src/sql gets as `to`; of the wire, once that is open */
  struct dibs__lite *store;
  sqlite3 *db;
  sqlite3_stmt *statements[DIBS__SQLITE_TEXTS];
  sqlite3_stmt *at_row;           /* the one whose first row is being read over the wire */
  struct dibs__sqlite_wire *wire; /* NULL until first used */
  bool inside;                    /* the user's own connection, in a transaction of theirs */
  dibs__tick by;                  /* of the current call: the busy handler gives up then */
  int failed;                     /* SQLite's code of the step that FAILED */
  char message[160];              /* and its message */
  uint16_t spent;                 /* the bucket of DIBS__SQL_EXHAUSTED */
  /* The buckets as they were at `version` of the data, and with the changes of this transaction. */
  bool versioned;
  uint32_t version;
  uint64_t known[2], changed[2]; /* bit a bucket */
  struct dibs__sql_bucket buckets[DIBS__BUCKETS];
  /* Bit a bucket: a name of it had waiters at the latest check, so a fast statement would hardly match. */
  uint64_t has_waiters[2];
  size_t hint_count;
  struct dibs__sqlite_hint hints[DIBS__SQLITE_HINTS];
};

/* A position in the order of names. */
struct dibs__sqlite_position {
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
  bool write_sync; /* guarded writes are synced to disk at their commits */
  struct dibs__sql_opened opened;
  /* Any thread. */
  _Atomic int64_t skew_ms;
  _Atomic bool queued;     /* this store has had waiters */
  _Atomic int log_pages;   /* of the log after our last commit */
  _Atomic uint64_t copies; /* dibs__side_copies at our last commit */
  /* Of the thread that opens and connects. */
  struct dibs__sqlite_link *spare; /* opened by open for the first session, or left by the last one */
  /* Of the thread that sweeps. */
  struct dibs__sqlite_link *tidier;
  int64_t swept_ms; /* when, by the store's clock */
  struct dibs__sqlite_position swept_to;
  char swept_claim[DIBS__SQL_CLAIM_MAX + 1];
};

struct dibs__sqlite_session {
  struct dibs__session base;
  struct dibs__sqlite_link *link;
};

/* ---- sqlite.c ---- */

/* Opens a connection to the store's file. */
dibs__status dibs__sqlite_link_open(struct dibs__lite *store, const char *path, dibs__tick by,
                                    struct dibs__sqlite_link **link, struct dibs__result *result);
void dibs__sqlite_link_close(struct dibs__sqlite_link *link); /* NULL is fine */
/* The statement (DIBS__ROWS_... or DIBS__SQLITE_...), ready to be bound; NULL: see link->failed.  Ends the reading of a
 * first row. */
sqlite3_stmt *dibs__sqlite_ready(struct dibs__sqlite_link *link, unsigned text);
/* One step of a statement that gives rows.  *row: there is one; else it is reset. */
enum dibs__sql_rc dibs__sqlite_row(struct dibs__sqlite_link *link, sqlite3_stmt *statement, bool *row);
/* To its end, and resets it. */
enum dibs__sql_rc dibs__sqlite_do(struct dibs__sqlite_link *link, sqlite3_stmt *statement);
/* Runs a text without parameters, which is not kept. */
enum dibs__sql_rc dibs__sqlite_message(struct dibs__sqlite_link *link, const char *text);
/* Runs a kept one without parameters. */
enum dibs__sql_rc dibs__sqlite_plain(struct dibs__sqlite_link *link, unsigned text);
enum dibs__sql_rc dibs__sqlite_broke(struct dibs__sqlite_link *link, int code);
/* Rows that contradict each other. */
enum dibs__sql_rc dibs__sqlite_wrong(struct dibs__sqlite_link *link);
/* The meaning of link->failed for a caller, with a message for people; `doing` continues "can't". */
dibs__status dibs__sqlite_excuse(const struct dibs__sqlite_link *link, const char *doing, struct dibs__result *result);
dibs__status dibs__sqlite_excuse_code(const char *path, int code, const char *message, const char *doing,
                                      struct dibs__result *result);

/* BEGIN IMMEDIATE, and a check whether others wrote. */
enum dibs__sql_rc dibs__sqlite_begin(struct dibs__sqlite_link *link);
/* Writes changed buckets, COMMIT.  FAILED: nothing is committed, unless *unsure. */
enum dibs__sql_rc dibs__sqlite_commit(struct dibs__sqlite_link *link, bool *unsure);
void dibs__sqlite_rollback(struct dibs__sqlite_link *link);
/* The rollback failed, too: a transaction is open, and only closing the connection ends it. */
bool dibs__sqlite_stuck(const struct dibs__sqlite_link *link);
/* How a commit is synced to disk: FULL for epochs and saved records, else NORMAL. */
enum dibs__sql_rc dibs__sqlite_full(struct dibs__sqlite_link *link, bool full);
int64_t dibs__sqlite_clock(const struct dibs__lite *store);

/* ---- rows.c ---- */

extern const struct dibs__sql_rows dibs__sqlite_rows;
enum dibs__sql_rc dibs__sqlite_bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row);
enum dibs__sql_rc dibs__sqlite_bucket_put(void *to, uint16_t bucket);
struct dibs__sql dibs__sqlite_sql(struct dibs__sqlite_link *link, int64_t now);
bool dibs__sqlite_read_head(sqlite3_stmt *st, struct dibs__sql_head *head); /* false: it contradicts itself */
dibs__str dibs__sqlite_read_text(sqlite3_stmt *st, int column);

/* ---- wire.c ---- */

extern const struct dibs__sql_engine dibs__sqlite_engine;
/* The link's connection as a wire, for the current call (link->by).  Writes happen under the writer queue.  NULL: see
 * link->failed. */
struct dibs__sql_wire *dibs__sqlite_wire(struct dibs__sqlite_link *link);
void dibs__sqlite_wire_close(struct dibs__sqlite_wire *wire); /* NULL is fine; before the connection is closed */

/* Deletes answers and claims past their time.  Of the thread that sweeps.  true: answers expire faster than a round
 * deletes them. */
bool dibs__sqlite_sweep_guarded(struct dibs__sqlite_link *link);
dibs__driver_attach dibs__sqlite_attach;

/* ---- transactor.c ---- */

dibs__driver_transactor_open dibs__sqlite_transactor_open;
dibs__driver_transact dibs__sqlite_transact;
dibs__driver_transactor_close dibs__sqlite_transactor_close;

/* ---- run.c, list.c ---- */

dibs__driver_run dibs__sqlite_run;
/* describe.c: what doctor asks */
void dibs__sqlite_describe(struct dibs__sqlite_link *l, struct dibs__findings *to);
dibs__driver_list dibs__sqlite_list;
dibs__driver_tidy dibs__sqlite_tidy;
/* A checkpoint that does not wait for readers, on a connection of its own. */
void dibs__sqlite_checkpoint(struct dibs__lite *store);
void dibs__sqlite_checkpoint_last(struct dibs__lite *store);
/* At an orderly close: our waiters and offers leave, and the next waiters are notified. */
void dibs__sqlite_leave(struct dibs__lite *store);

/* ---- database.c ---- */

/* PLAIN: ours, but without a log: it was switched off, or the filling of an empty file was interrupted. */
enum dibs__sqlite_kind { DIBS__SQLITE_ABSENT, DIBS__SQLITE_EMPTY, DIBS__SQLITE_PLAIN, DIBS__SQLITE_OURS };

/* Reads the file's header without changing anything.  CORRUPT: not a file of ours; TOO_NEW; DENIED. */
dibs__status dibs__sqlite_look(const char *path, enum dibs__sqlite_kind *kind, struct dibs__result *result);
/* Makes the file whole, under the name `path`, in one step that a crash can't split.  Under the gate. */
dibs__status dibs__sqlite_make(struct dibs__lite *store, enum dibs__sqlite_kind kind, uint32_t mode, uint32_t epoch,
                               dibs__tick by, struct dibs__result *result);
/* Migrates a database of an older dibs, in one transaction.  Under the gate. */
enum dibs__sql_rc dibs__sqlite_migrate(struct dibs__sqlite_link *link);
/* Removes SQLite's files beside the database, and the database itself if `all`. */
void dibs__sqlite_remove(const char *path, bool all);
bool dibs__sqlite_has_log(const char *path);
/* Device and inode of the file at the path.  false: none. */
bool dibs__sqlite_stat(const char *path, uint64_t *device, uint64_t *inode);

/* ---- database.c ---- */

/* The database's own row about itself. */
struct dibs__sqlite_meta {
  uint32_t version;
  dibs__incarnation incarnation;
  uint64_t device, inode;
  char boot[37];
};
/* Under the gate: if the database is not the one in the side file, a new incarnation.  `made`: it was made just now,
 * above the fences of the side file, and the side file must remember it. */
enum dibs__sql_rc dibs__sqlite_settle_incarnation(struct dibs__sqlite_link *link, bool made,
                                                  const struct dibs__side_memory *memory);
/* A new incarnation in a transaction of its own, above every epoch known. */
enum dibs__sql_rc dibs__sqlite_new_incarnation(struct dibs__sqlite_link *link);
/* The next epoch of one bucket, in a transaction of its own. */
enum dibs__sql_rc dibs__sqlite_next_epoch(struct dibs__sqlite_link *link, uint16_t bucket);

/*
 * Values into statements and out of rows.  Texts and ids are bound without a copy: nothing reads a parameter again
 * once a statement is at its first row, and it is bound again before it runs again.
 */

static inline void dibs__sqlite_bind_number(sqlite3_stmt *st, int at, uint64_t value) {
  sqlite3_bind_int64(st, at, (sqlite3_int64)value);
}
static inline void dibs__sqlite_bind_when(sqlite3_stmt *st, int at, int64_t value) {
  sqlite3_bind_int64(st, at, value);
}
static inline void dibs__sqlite_bind_text(sqlite3_stmt *st, int at, const char *p, uint32_t len) {
  sqlite3_bind_text(st, at, p ? p : "", (int)len, SQLITE_STATIC);
}
static inline void dibs__sqlite_bind_id(sqlite3_stmt *st, int at, const dibs__id *id) {
  sqlite3_bind_blob(st, at, id->b, sizeof id->b, SQLITE_STATIC);
}

static inline uint64_t dibs__sqlite_number(sqlite3_stmt *st, int column) {
  return (uint64_t)sqlite3_column_int64(st, column);
}
static inline uint32_t dibs__sqlite_small(sqlite3_stmt *st, int column) {
  return (uint32_t)sqlite3_column_int64(st, column);
}

static inline void dibs__sqlite_read_bytes(sqlite3_stmt *st, int column, void *to, size_t size) {
  const void *p = sqlite3_column_blob(st, column);
  if (p && (size_t)sqlite3_column_bytes(st, column) == size)
    memcpy(to, p, size);
  else
    memset(to, 0, size);
}

static inline void dibs__sqlite_read_label(sqlite3_stmt *st, int column, struct dibs__sql_label *label) {
  dibs__str text = dibs__sqlite_read_text(st, column);
  label->len = text.len <= DIBS_OWNER_MAX ? text.len : DIBS_OWNER_MAX;
  memcpy(label->text, text.p, label->len);
}

/* Nobody reads the first row any more. */
static inline void dibs__sqlite_let_go(struct dibs__sqlite_link *l) {
  if (l->at_row) sqlite3_reset(l->at_row);
  l->at_row = NULL;
}

/* A statement about a name, with bucket and name bound. */
static inline sqlite3_stmt *dibs__sqlite_about(struct dibs__sqlite_link *l, unsigned text,
                                               const struct dibs__sql_head *h) {
  sqlite3_stmt *st = dibs__sqlite_ready(l, text);
  if (!st) return NULL;
  dibs__sqlite_bind_number(st, 1, h->bucket);
  dibs__sqlite_bind_text(st, 2, h->name.p, h->name.len);
  return st;
}

#endif
