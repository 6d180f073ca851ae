/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_MONGODB_IMPL_H
#define DIBS_DRIVERS_MONGODB_MONGODB_IMPL_H
/*
 * The driver of mongodb://: a module, loaded when its scheme is first used.
 *
 *   location.c   the URI
 *   srv.c        the hosts of mongodb+srv://
 *   link.c       one connection: commands with deadlines, the server's clock
 *   document.c   what a document of each kind says, as the memory driver has it
 *   run.c        a batch
 *   claim.c      the claims of stocks, inside and outside of the stock's document
 *   stock.c      the document of a stock; listing stocks
 *   counter.c    counters
 *   ledger.c     their ledger
 *   history.c    runs
 *   report.c     reports
 *   index.c      indexes
 *   mailbox.c    events: each process has a document with its notices
 *   list.c       listing
 *   collection.c the user's own collections
 *   field.c      fields of their documents
 *   table_key.c, table_value.c   keys and values of their documents
 *   table_record.c, table_stock.c   records and stock in them
 *   task.c       tasks in them
 *   task_text.c  their filters and updates, and what their documents say
 *   kind.c       dibs' own tasks: how the tasks of a kind change together
 *   row.c        their documents
 *   own.c        what is done with them
 *   page.c       what people read and change of them
 *   mongodb.c    the driver's table
 *
 * The whole state of a name is one document, and so is that of a record and of a once key.  An operation is decided by
 * the memory driver's own code (drivers/memory), on a copy of the document, and the new document replaces it only if
 * its version is still that which was read (`v`, drawn at random for each version).  A single document is atomic on
 * every server, so no multi-document transaction is needed.  A batch reads its documents in one round trip, unless they
 * are remembered from the last write, and replaces them in one.
 *
 * Time is the server's.  A link knows it between two bounds, which differ by the round trip in which it was read.  What
 * expires is decided by the lower bound, and such a write also requires that the server's $$NOW has reached it. `until`
 * is counted from the upper bound, and so is `at` (R37).
 *
 * A session has one link, and is used by one thread at a time.
 */
#include "drivers/memory/memory_impl.h"
#include "store/engine.h"
#include "store/task.h"
#include "store/uri.h"
#include "store/values.h"

#include <mongoc/mongoc.h>

enum { DIBS__MONGO_WORD_MAX = 64, DIBS__MONGO_BATCH = 256 };
/* Claims inside of the document of their stock, which is written whole: each has some 80 bytes. */
enum { DIBS__MONGO_CLAIMS = 100, DIBS__MONGO_CLAIMS_MAX = 1000 };

struct dibs__mongo_location {
  char *srv;         /* the name in mongodb+srv://, without a dot at its end; NULL: mongodb:// */
  char *head, *tail; /* of the connection string, before and after the hosts; with the password */
  dibs__mutex lock;
  mongoc_uri_t *uri; /* with `srv`: as it was looked up last, guarded by lock; NULL: not yet */
  char *database;
  char prefix[DIBS__MONGO_WORD_MAX + 1];
  uint32_t connections;
  uint32_t claims; /* that stay inside of the document of their stock */
  char shown[256];
};

/* The kinds of documents, each with a collection. */
enum dibs__mongo_kind {
  DIBS__MONGO_LEASE,
  DIBS__MONGO_RECORD,
  DIBS__MONGO_ONCE,
  DIBS__MONGO_STOCK,
  DIBS__MONGO_RATE,
  DIBS__MONGO_DOCUMENTS, /* those before it: run.c decides about them */
  DIBS__MONGO_SESSION = DIBS__MONGO_DOCUMENTS,
  DIBS__MONGO_META,
  DIBS__MONGO_CLAIM,      /* of stocks */
  DIBS__MONGO_COUNTER,    /* counters: counter.c */
  DIBS__MONGO_SOURCE_ROW, /* their ledger */
  DIBS__MONGO_RUN,
  DIBS__MONGO_REPORT,
  DIBS__MONGO_TASK, /* dibs' own tasks: kind.c */
  DIBS__MONGO_TASK_KIND,
  DIBS__MONGO_TOKEN,
  DIBS__MONGO_KINDS
};

/* ---- location.c ---- */

dibs__status dibs__mongo_location(const struct dibs__uri *uri, struct dibs__mongo_location **location,
                                  struct dibs__result *result);
void dibs__mongo_location_free(struct dibs__mongo_location *location); /* accepts NULL */
/* For a new connection; the caller destroys it.  May block until `by`, or for a second if less is left.  OK;
 * UNAVAILABLE, ...: the lookup failed. */
dibs__status dibs__mongo_uri_now(struct dibs__mongo_location *location, dibs__tick by, mongoc_uri_t **uri,
                                 struct dibs__result *result);

/* ---- srv.c ---- */

/* Can it be a name in mongodb+srv://? */
bool dibs__mongo_srv_valid(const char *name);
/* Its hosts, "a:1,b:2", and the options of its TXT record that are not in `given`, "&key=value&..."; malloc'd.  Blocks
 * as dibs__mongo_uri_now.  UNAVAILABLE: no answer, no such name, or records that can't be right; UNSUPPORTED. */
dibs__status dibs__mongo_srv(const char *name, const char *given, const char *shown, dibs__tick by, char **hosts,
                             char **options, struct dibs__result *result);

/* ---- link.c ---- */

struct dibs__mongo_link {
  const struct dibs__mongo_location *location;
  mongoc_client_t *client;
  mongoc_collection_t *collections[DIBS__MONGO_KINDS];
  dibs__tick by; /* of the call that uses it: its streams wait no longer */
  /* The server's clock was `server_ms` between these instants. */
  dibs__tick clock_sent, clock_received;
  dibs__tick clock_read; /* when it was read last, perhaps with worse bounds */
  int64_t server_ms;
  uint32_t clock_member; /* whose clock it is */
  uint32_t member;       /* that got the last command */
  uint32_t moves;        /* how often this was another one than before, of a replica set */
  uint32_t started;      /* how often the command that runs was sent: libmongoc may repeat it, at another member */
  bool repeated;         /* the last write was */
  uint32_t term;         /* of the election of the primary; 0: none (a single server) */
  bool replicated;       /* a replica set or a sharded cluster */
  bool routed;           /* by a mongos: any of them gets a command, and none says which member answers */
  bool broken;           /* it can't be used any more: its client waits seconds before it connects again */
  dibs__incarnation incarnation;
};

dibs__status dibs__mongo_connect(struct dibs__mongo_location *location, dibs__tick by, struct dibs__mongo_link **link,
                                 struct dibs__result *result);
void dibs__mongo_disconnect(struct dibs__mongo_link *link); /* accepts NULL */
/* Reads the clock and the term again if that is due, or if another member is the primary now. */
dibs__status dibs__mongo_clock(struct dibs__mongo_link *link, bool now, struct dibs__result *result);
int64_t dibs__mongo_earliest(const struct dibs__mongo_link *link); /* the server's clock is not before this */
int64_t dibs__mongo_latest(const struct dibs__mongo_link *link);   /* nor after this */
/* The epoch of fences: one more for each election. */
static inline uint32_t dibs__mongo_epoch(const struct dibs__mongo_link *link) {
  return 1 + (link->term < DIBS__EPOCH_MAX - 1 ? link->term : DIBS__EPOCH_MAX - 1);
}
/* An election changes no mandate: what the majority has confirmed is still there, and so are all leases. */
static inline dibs__mandate dibs__mongo_mandate(const struct dibs__mongo_link *link) {
  return (dibs__mandate){1, link->incarnation};
}
/* Runs a command that writes, with the majority's confirmation.  OK: `reply`, which the caller destroys, has the
 * answer, perhaps with writeErrors.  Otherwise UNAVAILABLE (nothing was done), UNKNOWN, DENIED, ... with a message.
 * If the link says `repeated`, the answer may be that of a repeat, after the write was done: what it did not find, it
 * may have changed itself.  (MongoDB remembers the first answer; servers that ignore txnNumber do not.) */
dibs__status dibs__mongo_write(struct dibs__mongo_link *link, const bson_t *command, bson_t *reply,
                               struct dibs__result *result);
/* The same in another database.  INVALID: the server refuses this very command, and nothing was done. */
dibs__status dibs__mongo_write_in(struct dibs__mongo_link *link, const char *database, const bson_t *command,
                                  bson_t *reply, struct dibs__result *result);
/* What an error means.  `sent`: the command may have had an effect. */
dibs__status dibs__mongo_explain(struct dibs__mongo_link *link, const bson_error_t *error, const bson_t *reply,
                                 bool sent, struct dibs__result *result);
/* Documents of a collection by a filter, sorted by _id.  Calls `row` for each until it answers false. */
typedef bool dibs__mongo_row(void *user, const bson_t *document);
dibs__status dibs__mongo_find(struct dibs__mongo_link *link, enum dibs__mongo_kind kind, const bson_t *filter,
                              int64_t most, bool linearizable, dibs__mongo_row *row, void *user,
                              struct dibs__result *result);

/* The same in any collection, with options of its own, to which it adds the read concern. */
dibs__status dibs__mongo_find_in(struct dibs__mongo_link *link, mongoc_collection_t *collection, const bson_t *filter,
                                 bson_t *options, bool linearizable, dibs__mongo_row *row, void *user,
                                 struct dibs__result *result);
/* What doctor asks (describe.c), by link->by. */
void dibs__mongo_describe(struct dibs__mongo_link *link, struct dibs__findings *to);
/* Reads a cursor, and destroys it. */
dibs__status dibs__mongo_read(struct dibs__mongo_link *link, mongoc_cursor_t *cursor, dibs__mongo_row *row, void *user,
                              struct dibs__result *result);

/* ---- document.c ---- */

/* One document during a batch, and beyond. */
struct dibs__mongo_document {
  struct dibs__mongo_document *next;
  enum dibs__mongo_kind kind;
  bson_t *seen;    /* as it was read or written last; NULL: there is none */
  bson_t *made;    /* to be written; NULL: unchanged */
  int64_t version; /* of `seen` */
  int64_t made_version;
  bool loaded;     /* `seen` is from this batch, or from a write of this link */
  bool fresh;      /* it was read in this batch */
  bool reads_only; /* no operation of this batch on it writes */
  bool checked;    /* it is looked at to see who wrote it */
  bool deferred;   /* a stock: not in this round */
  bool moves;      /* a stock: the claims that `seen` has inside were copied, and leave it now */
  /* A lease: sessions that are gone; what sleeps for them is left out. */
  const uint64_t *gone;
  size_t gone_count;
  int64_t expired; /* the latest `until` that was over when it was decided; INT64_MIN: none */
  /* Of a lease, while it is decided: */
  uint64_t fence;   /* the last drawn */
  uint64_t tickets; /* the last given */
  uint32_t key_len;
  char key[];
};

/* Fills the scratch memory.  CORRUPT: the document is not one of ours. */
dibs__status dibs__mongo_decode(struct dibs__memory *memory, struct dibs__mongo_document *document);
/* The document that the scratch memory now has, without its version.  NULL: no memory. */
bson_t *dibs__mongo_encode(struct dibs__memory *memory, const struct dibs__mongo_document *document);
/* The key of an operation's document.  false: this driver has none for its family. */
bool dibs__mongo_place(const struct dibs__op *op, enum dibs__mongo_kind *kind, dibs__str *key);
int64_t dibs__mongo_number_in(const bson_t *from, const char *field, int64_t otherwise);
dibs__str dibs__mongo_bytes_in(const bson_t *from, const char *field); /* text or bytes, which stay in the document */
bool dibs__mongo_put_bytes(bson_t *to, const char *field, dibs__str data);

/* ---- stock.c ---- */

dibs__status dibs__mongo_stock_decode(struct dibs__memory *memory, const struct dibs__mongo_document *document);
bool dibs__mongo_stock_encode(bson_t *to, const struct dibs__memory *memory,
                              const struct dibs__mongo_document *document);
/* It is not decided on a document of dibs: it lists, or names a collection of the user's (table_stock.c). */
bool dibs__mongo_stock_is_apart(struct dibs__stock_op *op);
/* Adds to a filter where _id may begin to have this prefix, and be larger than `after`.  Both are texts. */
void dibs__mongo_put_range(bson_t *filter, dibs__str prefix, dibs__str after);
bool dibs__mongo_is_text(dibs__str text);

/* ---- mailbox.c ---- */

struct dibs__mongo;
dibs__status dibs__mongo_mailbox_open(struct dibs__mongo *store);
void dibs__mongo_mailbox_close(struct dibs__mongo *store);
/* Before a waiter of this process is queued: other processes see that it lives. */
dibs__status dibs__mongo_mailbox_ready(struct dibs__mongo *store, struct dibs__mongo_link *link,
                                       struct dibs__result *result);
void dibs__mongo_mailbox_waits(struct dibs__mongo *store); /* a waiter of this process was queued just now */
dibs__driver_events dibs__mongo_events;
dibs__driver_wake dibs__mongo_wake;
/* A CLAIM of this process found no task: it wants to know of new ones. */
void dibs__mongo_mailbox_wants_tasks(struct dibs__mongo *store);
/* Tells all processes that want to know. */
void dibs__mongo_tell_tasks(struct dibs__mongo *store, struct dibs__mongo_link *link);
struct dibs__mongo_notice {
  uint64_t session;
  struct dibs__event event;
};
/* Sends them; an error changes nothing, because waiters look again. */
void dibs__mongo_send(struct dibs__mongo *store, struct dibs__mongo_link *link,
                      const struct dibs__mongo_notice *notices, size_t count);
/* Sets `alive` for each of the sessions. */
dibs__status dibs__mongo_alive(struct dibs__mongo_link *link, const uint64_t *sessions, bool *alive, size_t count,
                               struct dibs__result *result);
/* Sets `there` for each: it has ended, or was killed an hour ago, if it has no document. */
dibs__status dibs__mongo_there(struct dibs__mongo_link *link, const uint64_t *sessions, bool *there, size_t count,
                               struct dibs__result *result);

/* ---- run.c ---- */

struct dibs__mongo_batch;
struct dibs__mongo_seen;
struct dibs__mongo_session {
  struct dibs__session base;
  struct dibs__mongo_link *link;
  struct dibs__mongo_batch *batch; /* what is kept from one batch to the next */
  struct dibs__mongo_seen *seen;   /* the user's collections that it has checked; NULL: none yet */
};
struct dibs__mongo_batch *dibs__mongo_batch_new(struct dibs__mongo_session *session);
void dibs__mongo_batch_free(struct dibs__mongo_batch *batch); /* accepts NULL */
dibs__driver_run dibs__mongo_run;
/* Deletes finished tasks of dibs whose time is over. */
void dibs__mongo_tasks_tidy(struct dibs__mongo_session *session, struct dibs__result *result);

/* ---- list.c ---- */

dibs__driver_list dibs__mongo_list;

/* ---- task_text.c ---- */

enum { DIBS__MONGO_PROOF = 40, DIBS__MONGO_SHOWN = 64 };

/* What a document of the user's says as a task.  The texts are in the document. */
struct dibs__mongo_task {
  char key_text[24 + 1]; /* of an ObjectId or a number */
  dibs__str key, phase;
  dibs__fence fence;
  /* Its exact locked_at, and of which type this and its key are: "od1767225600000".  The caller shows it to nobody, and
   * END and EXTEND get it back. */
  char locked[DIBS__MONGO_PROOF];
  int64_t locked_ms, updated_ms; /* 0: it has none */
  bool free;                     /* of a listing */
};
bool dibs__mt_read(const struct dibs__table *table, const bson_t *document, struct dibs__mongo_task *task);
/* The key's type and locked_at alone, after an extension: the other fields may be anything by now. */
bool dibs__mt_read_lock(const struct dibs__table *table, const bson_t *document, struct dibs__mongo_task *task);
/* Which field makes that document none that can be claimed, and what it must be. */
void dibs__mt_explain(const struct dibs__table *table, const bson_t *document, char *why, size_t size);
/* That the server refuses to claim it. */
void dibs__mt_explain_refused(const struct dibs__table *table, const bson_t *document, const char *reason, char *why,
                              size_t size);

/* Filters; the caller destroys them.  Which ones: free and fit to be claimed, at a time of the server's clock that is
 * not after `latest_ms`; fit to be claimed, now or later; those that no claim takes. */
enum dibs__mt_which { DIBS__MT_FREE, DIBS__MT_FIT, DIBS__MT_ODD };
bson_t *dibs__mt_filter(const struct dibs__task_op *op, enum dibs__mt_which which, int64_t latest_ms);
/* The document of this item's claim; NULL: no document can be it. */
bson_t *dibs__mt_filter_item(const struct dibs__table *table, const struct dibs__task_item *item);
/* All documents with the key of that item. */
bson_t *dibs__mt_filter_key(const struct dibs__table *table, const struct dibs__task_item *item);
uint32_t dibs__mt_type_in(const struct dibs__table *table, const bson_t *document); /* the type of its key; 0: odd */
/* Of a listing; the key `after` has this type. */
bson_t *dibs__mt_filter_list(const struct dibs__task_op *op, uint32_t after_type);

/* Pipelines of updates. */
bson_t *dibs__mt_claim(const struct dibs__table *table);
bson_t *dibs__mt_change(const struct dibs__task_op *op, const struct dibs__task_item *item);
/* Which fields are read; of a listing also whether it is free. */
bson_t *dibs__mt_fields(const struct dibs__task_op *op);
bson_t *dibs__mt_sort(const struct dibs__table *table, bool by_key);

/* ---- task.c ---- */

/* Runs an operation on tasks in a table of the user's. */
void dibs__mongo_run_task(struct dibs__mongo_session *session, struct dibs__task_op *op, dibs__tick by,
                          struct dibs__result *result);

/* ---- mongodb.c ---- */

struct dibs__mongo {
  struct dibs__dstore base;
  struct dibs__mongo_location *location;
  uint64_t session;
  struct dibs__mongo_mailbox *mailbox;
  dibs__mutex lock;
  struct dibs__mongo_link *spare; /* guarded by lock: the connection with which the store was opened */
  _Atomic bool has_tasks;         /* it was used for dibs' own tasks */
  struct dibs__session *tidier;   /* tidy() alone; NULL: not yet */
  dibs__tick tidied;
  uint64_t tasks_busy; /* guarded by lock: a bit for the kinds with this hash, which a thread changes */
};

extern const struct dibs__driver dibs__mongodb_driver;

#endif
