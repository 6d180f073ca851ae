/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MYSQL_MYSQL_IMPL_H
#define DIBS_DRIVERS_MYSQL_MYSQL_IMPL_H
/*
 * What the files of src/drivers/mysql share: MariaDB and MySQL through Connector/C.
 *
 *   mysql.c       the engine and the driver; how processes notify each other
 *   connect.c     the URI, connections
 *   tasks.c       waking the workers of other processes
 *   wire.c        packets and their answers, statements as text, the server's errors
 *   statements.c  fast statements for uncontended leases; session locks
 */
#include "drivers/server/server.h"

#include <mysql.h>

enum { DIBS__MYSQL_HOSTS = 8, DIBS__MYSQL_PORT = 3306 };

struct dibs__mysql_buffer {
  char *p;
  size_t len, capacity;
};

struct dibs__mysql_cell {
  const char *p; /* NULL: NULL */
  uint32_t len;
};

struct dibs__mysql_answer {
  MYSQL_RES *result;           /* owns what the cells point to */
  size_t rows, columns, first; /* its cells begin at `first` */
  uint64_t changed;
};

/* A connection.  Used by one thread at a time. */
struct dibs__mysql_wire {
  struct dibs__sql_wire base;
  MYSQL *my;
  bool ours;  /* false: the caller's own */
  bool maria; /* else MySQL */
  bool dead;  /* closed, or to be closed */
  bool late;  /* the deadline passed while we waited for the server */
  bool many;  /* takes several statements a packet */
  bool found; /* the server counts rows that matched, not rows that changed */
  bool tls;
  bool read_only; /* its server is, so it is not used */
  /* Of a server that was checked (connect.c): when the connection dies, the other hosts are asked again.  Else NULL. */
  struct dibs__mysql_tasks *trusted;
  bool unblocked;             /* we shut down its socket */
  int lock_want, lock_failed; /* of a lock that is waited for: the connector's state; 0: no wait */
  size_t packet_max;          /* statements are sent together up to so many bytes */
  size_t packet_limit;        /* the server takes no more */
  /* The statements put since the latest go. */
  struct dibs__mysql_buffer text;
  size_t *starts; /* where each statement begins */
  size_t start_capacity;
  size_t commit_at; /* which of them commits; SIZE_MAX: none */
  size_t least;     /* the least bytes that the answers take; 0: unknown */
  /* Answers to the latest go. */
  struct dibs__mysql_answer *answers;
  size_t answered, answer_capacity;
  struct dibs__mysql_cell *cells;
  size_t cell_count, cell_capacity;
};

struct dibs__mysql_host {
  const char *name; /* NULL: the socket */
  unsigned port;    /* 0: the usual one, and "localhost" is the socket */
};

/* Of connect.c. */
enum dibs__mysql_texts {
  DIBS__MYSQL_MAIL_CLEAN, /* mail for sessions that are gone */
  DIBS__MYSQL_MAIL_SLEEP, /* sleeps unless there is mail */
  DIBS__MYSQL_MAIL_READ,
  DIBS__MYSQL_MAIL_DROP,
  DIBS__MYSQL_MAIL_PUT,
  DIBS__MYSQL_NAME,
  DIBS__MYSQL_FLOOR, /* of a bucket's seq: dibs__sql_draw */
  DIBS__MYSQL_LEAD,
  DIBS__MYSQL_TEXTS
};

enum {
  DIBS__MYSQL_KINDS = 8,           /* that a process waits for; for more it polls */
  DIBS__MYSQL_SLOTS = 4,           /* processes that are woken for tasks of a kind; the others poll */
  DIBS__MYSQL_TASKS_PAUSE_MS = 20, /* between two wake-ups of a process */
};

/* What changes while the store is open.  Any thread. */
struct dibs__mysql_tasks {
  /* When the other hosts were asked whether they accept writes, and the digest of the server for which they were; 0:
   * never, or a connection was lost since. */
  _Atomic int64_t asked_ns;
  _Atomic uint64_t asked_for;
  /* What the workers of this process wait for. */
  struct {
    _Atomic uint64_t digest; /* of the kind; 0: none so far */
    _Atomic bool wanted;     /* since the latest wake-up a claim has found less than it wanted */
  } kinds[DIBS__MYSQL_KINDS];
  _Atomic int64_t notifier; /* its connection; 0: none */
};

/* Immutable: what the URI said. */
struct dibs__mysql_location {
  struct dibs__mysql_host hosts[DIBS__MYSQL_HOSTS];
  size_t host_count;
  const char *user, *password, *database, *socket;
  const char *ssl_ca, *ssl_cert, *ssl_key;
  enum { DIBS__MYSQL_SSL_OFF, DIBS__MYSQL_SSL_PREFER, DIBS__MYSQL_SSL_ON, DIBS__MYSQL_SSL_VERIFY } ssl;
  char *memory;                   /* all of the texts */
  char *texts[DIBS__MYSQL_TEXTS]; /* statements, with the prefix put in */
  struct dibs__mysql_tasks *tasks;
};

/* ---- connect.c ---- */
extern const char *const dibs__mysql_params[];
dibs__status dibs__mysql_prepare(const struct dibs__uri *uri, struct dibs__server *store, void **location,
                                 struct dibs__result *result);
void dibs__mysql_forget(void *location);

/* ---- connect.c ---- */
dibs__status dibs__mysql_connect(struct dibs__server *store, dibs__tick by, struct dibs__sql_wire **wire,
                                 struct dibs__result *result);
void dibs__mysql_close(struct dibs__sql_wire *wire);
dibs__status dibs__mysql_adopt(struct dibs__server *store, void *connection, struct dibs__sql_wire **wire,
                               struct dibs__result *result);

/* What another host of the URI is. */
enum dibs__mysql_host_is {
  DIBS__MYSQL_HOST_SILENT, /* or it refused us: see `result` */
  DIBS__MYSQL_HOST_READ_ONLY,
  DIBS__MYSQL_HOST_WRITES,
  DIBS__MYSQL_HOST_HERE /* the server of `here` */
};
enum dibs__mysql_host_is dibs__mysql_ask_host(struct dibs__server *store, const struct dibs__mysql_host *host,
                                              struct dibs__mysql_wire *here, dibs__tick by,
                                              struct dibs__result *result);

/* ---- describe.c ---- */
void dibs__mysql_describe(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__findings *to);

/* Transactions of users. */
enum dibs__sql_rc dibs__mysql_lend(struct dibs__server *store, struct dibs__sql_wire *wire, void **connection);
enum dibs__sql_rc dibs__mysql_script(struct dibs__sql_wire *wire, const char *sql);
bool dibs__mysql_in_transaction(const struct dibs__sql_wire *wire);

/* ---- wire.c ---- */
enum dibs__sql_rc dibs__mysql_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                  size_t count);
enum dibs__sql_rc dibs__mysql_put_rows(struct dibs__sql_wire *wire, const char *text,
                                       const struct dibs__sql_value *values, size_t count,
                                       const struct dibs__sql_value *rows, size_t columns, size_t row_count);
/* A complete statement, with its values as literals: it is not searched for marks, because a value may look like
 * one. */
enum dibs__sql_rc dibs__mysql_put_whole(struct dibs__sql_wire *wire, const struct dibs__mysql_buffer *text);
/* For statements that are built piece by piece; false: no memory. */
bool dibs__mysql_add(struct dibs__mysql_buffer *to, const char *p, size_t len);
bool dibs__mysql_add_value(struct dibs__mysql_buffer *to, const struct dibs__sql_value *value);

/* ---- statements.c ---- */
extern const char *const dibs__mysql_schemes[];
extern const struct dibs__server_engine dibs__mysql_engine; /* its wires' engine on MariaDB */
extern const struct dibs__sql_engine dibs__mysql_mysql;     /* on MySQL */

/* ---- wire.c ---- */
enum dibs__sql_rc dibs__mysql_go(struct dibs__sql_wire *wire, bool commits);
size_t dibs__mysql_rows(const struct dibs__sql_wire *wire, size_t nth);
uint64_t dibs__mysql_changed(const struct dibs__sql_wire *wire, size_t nth);
struct dibs__sql_value dibs__mysql_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                        enum dibs__sql_kind as);
/* Waits until the connector can go on with `want` (MYSQL_WAIT_...), by wire->by; gives the argument of
 * mysql_..._cont. */
int dibs__mysql_await(struct dibs__mysql_wire *w, int want);
void dibs__mysql_clear(struct dibs__mysql_wire *w);
/* For callers that send by themselves: reads all answers of a packet whose first has arrived, and gives the result. */
enum dibs__sql_rc dibs__mysql_take(struct dibs__mysql_wire *w, bool commits);
enum dibs__sql_rc dibs__mysql_failed(struct dibs__mysql_wire *w);

/* ---- mysql.c ---- */
extern int dibs__mysql_nap_ms; /* how long a notifier sleeps at a time; tests change it */
dibs__status dibs__mysql_notifier_open(struct dibs__server *store, uint64_t session, dibs__tick by, void **notifier,
                                       struct dibs__result *result);
void dibs__mysql_notifier_close(void *notifier);
dibs__status dibs__mysql_notifier_wait(void *notifier, struct dibs__event *events, size_t cap, size_t *count,
                                       dibs__tick by);
void dibs__mysql_notifier_wake(void *notifier);
enum dibs__sql_rc dibs__mysql_notify_within(struct dibs__server *store, struct dibs__sql_wire *wire,
                                            const struct dibs__server_notice *notices, size_t count);
enum dibs__sql_rc dibs__mysql_notify_after(struct dibs__server *store, struct dibs__sql_wire *wire,
                                           const struct dibs__server_notice *notices, const int64_t *where,
                                           size_t count);

/* ---- tasks.c ---- */
bool dibs__mysql_expect_tasks(struct dibs__server *store, dibs__str kind);
enum dibs__sql_rc dibs__mysql_notify_tasks(struct dibs__server *store, struct dibs__sql_wire *wire,
                                           struct dibs__op *const ops[], size_t count);
/* For the notifier: statements about the locks of some kinds, given as bits.  free: a number above 0 if any is free.
 * take: a column for each kind, negative if none was free. */
enum dibs__sql_rc dibs__mysql_put_tasks_free(struct dibs__sql_wire *wire, const struct dibs__mysql_tasks *t,
                                             uint32_t kinds);
enum dibs__sql_rc dibs__mysql_put_tasks_take(struct dibs__sql_wire *wire, const struct dibs__mysql_tasks *t,
                                             uint32_t kinds);
enum dibs__sql_rc dibs__mysql_put_tasks_release(struct dibs__sql_wire *wire, const struct dibs__mysql_tasks *t,
                                                uint32_t kinds);

/* ---- statements.c ---- */
enum dibs__sql_rc dibs__mysql_fast(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session,
                                   struct dibs__lease_op *const ops[], size_t count, int64_t *now);

/* ---- statements.c ---- */
extern const struct dibs__session_locking dibs__mysql_locking;

/* ---- wire.c ---- */
enum dibs__sql_trouble dibs__mysql_trouble(unsigned error);
enum dibs__sql_rc dibs__mysql_broke(struct dibs__mysql_wire *w, enum dibs__sql_trouble trouble, const char *message);

static inline struct dibs__mysql_wire *dibs__my(struct dibs__sql_wire *wire) {
  return (struct dibs__mysql_wire *)wire;
}
static inline const struct dibs__mysql_wire *dibs__mysql_of(const struct dibs__sql_wire *wire) {
  return (const struct dibs__mysql_wire *)wire;
}

#endif
