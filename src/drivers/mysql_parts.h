/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MYSQL_PARTS_H
#define DIBS_DRIVERS_MYSQL_PARTS_H
/*
 * What mysql*.c share: MariaDB and MySQL through Connector/C.
 *
 *   mysql.c          the driver's table
 *   mysql_engine.c   what src/sql asks of an engine
 *   mysql_uri.c      what the URI said
 *   mysql_connect.c  connections
 *   mysql_wire.c     packets and their answers
 *   mysql_put.c      statements as text
 *   mysql_error.c    what the server's errors come to
 *   mysql_fast.c     leases that nobody else wants
 *   mysql_bell.c     waking each other
 *   mysql_lock.c     session locks
 */
#include "sql/far.h"

#include <mysql.h>

enum { DIBS__MY_HOSTS = 8, DIBS__MY_PORT = 3306 };

struct dibs__my_buffer {
  char *p;
  size_t len, room;
};

struct dibs__my_cell {
  const char *p; /* NULL: NULL */
  uint32_t len;
};

struct dibs__my_answer {
  MYSQL_RES *result;           /* owns what the cells point to */
  size_t rows, columns, first; /* its cells stand from `first` on */
  uint64_t changed;
};

/* A connection.  Used by one thread at a time. */
struct dibs__my_wire {
  struct dibs__sql_wire base;
  MYSQL *my;
  bool ours;  /* false: the caller's own */
  bool maria; /* else MySQL */
  bool dead;  /* closed, or to be closed */
  bool late;  /* the deadline came while we waited for the server */
  bool many;  /* takes several statements a packet */
  bool found; /* the server counts rows that matched, not rows that changed */
  bool tls;
  bool unblocked;             /* its socket, by us */
  int lock_want, lock_failed; /* of a lock that is waited for: the connector's state; 0: none is */
  size_t packet_max;          /* statements are sent together up to so many bytes */
  size_t packet_limit;        /* the server takes no more */
  /* What was put since the latest go. */
  struct dibs__my_buffer text;
  size_t *starts; /* where each statement begins */
  size_t start_room;
  size_t commit_at; /* which of them commits; SIZE_MAX: none */
  size_t least;     /* bytes that the answers take at least; 0: no matter */
  /* Answers to the latest go. */
  struct dibs__my_answer *answers;
  size_t answered, answer_room;
  struct dibs__my_cell *cells;
  size_t cell_count, cell_room;
};

struct dibs__my_host {
  const char *name; /* NULL: the socket */
  unsigned port;    /* 0: the usual one, and "localhost" is the socket */
};

/* Of mysql_uri.c. */
enum dibs__my_texts {
  DIBS__MY_MAIL_CLEAN, /* mail of sessions that are gone */
  DIBS__MY_MAIL_SLEEP, /* sleeps unless there is mail */
  DIBS__MY_MAIL_READ,
  DIBS__MY_MAIL_DROP,
  DIBS__MY_MAIL_PUT,
  DIBS__MY_NAME,
  DIBS__MY_TEXTS
};

/* Immutable: what the URI said. */
struct dibs__my_place {
  struct dibs__my_host hosts[DIBS__MY_HOSTS];
  size_t host_count;
  const char *user, *password, *database, *socket;
  const char *ssl_ca, *ssl_cert, *ssl_key;
  enum { DIBS__MY_SSL_OFF, DIBS__MY_SSL_PREFER, DIBS__MY_SSL_ON, DIBS__MY_SSL_VERIFY } ssl;
  char *memory;                /* all of the texts */
  char *texts[DIBS__MY_TEXTS]; /* statements, with the prefix put in */
};

/* ---- mysql_uri.c ---- */
extern const char *const dibs__my_params[];
dibs__status dibs__my_prepare(const struct dibs__uri *uri, struct dibs__far *store, void **place,
                              struct dibs__said *said);
void dibs__my_forget(void *place);

/* ---- mysql_connect.c ---- */
dibs__status dibs__my_connect(struct dibs__far *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__said *said);
void dibs__my_close(struct dibs__sql_wire *wire);
dibs__status dibs__my_adopt(struct dibs__far *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__said *said);

/* ---- mysql_put.c ---- */
enum dibs__sql_step dibs__my_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                 size_t count);
enum dibs__sql_step dibs__my_put_rows(struct dibs__sql_wire *wire, const char *text,
                                      const struct dibs__sql_value *values, size_t count,
                                      const struct dibs__sql_value *rows, size_t columns, size_t row_count);
/* For statements that are put together piece by piece; false: no memory. */
bool dibs__my_add(struct dibs__my_buffer *to, const char *p, size_t len);
bool dibs__my_add_value(struct dibs__my_buffer *to, const struct dibs__sql_value *value);

/* ---- mysql_engine.c ---- */
extern const struct dibs__far_engine dibs__my_engine; /* its wires' engine on MariaDB */
extern const struct dibs__sql_engine dibs__my_mysql;  /* on MySQL */

/* ---- mysql_wire.c ---- */
enum dibs__sql_step dibs__my_go(struct dibs__sql_wire *wire, bool commits);
size_t dibs__my_rows(const struct dibs__sql_wire *wire, size_t nth);
uint64_t dibs__my_changed(const struct dibs__sql_wire *wire, size_t nth);
struct dibs__sql_value dibs__my_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as);
/* Waits until the connector can go on with `want` (MYSQL_WAIT_...), by wire->by; what mysql_..._cont is given. */
int dibs__my_await(struct dibs__my_wire *w, int want);
void dibs__my_clear(struct dibs__my_wire *w);
/* For who sends by itself: takes all answers of a packet whose first has arrived; what the connector's failing came
 * to. */
enum dibs__sql_step dibs__my_take(struct dibs__my_wire *w, bool commits);
enum dibs__sql_step dibs__my_failed(struct dibs__my_wire *w);

/* ---- mysql_bell.c ---- */
extern int dibs__my_nap_ms; /* how long a bell sleeps at a time; tests change it */
dibs__status dibs__my_bell_open(struct dibs__far *store, uint64_t session, dibs__tick by, void **bell,
                                struct dibs__said *said);
void dibs__my_bell_close(void *bell);
dibs__status dibs__my_bell_wait(void *bell, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by);
void dibs__my_bell_wake(void *bell);
enum dibs__sql_step dibs__my_ring_within(struct dibs__far *store, struct dibs__sql_wire *wire,
                                         const struct dibs__far_ring *rings, size_t count);
enum dibs__sql_step dibs__my_ring_after(struct dibs__far *store, struct dibs__sql_wire *wire,
                                        const struct dibs__far_ring *rings, const int64_t *where, size_t count);

/* ---- mysql_fast.c ---- */
enum dibs__sql_step dibs__my_fast(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session,
                                  struct dibs__lease_op *const ops[], size_t count, int64_t *now);

/* ---- mysql_lock.c ---- */
extern const struct dibs__far_locking dibs__my_locking;

/* ---- mysql_error.c ---- */
enum dibs__sql_trouble dibs__my_trouble(unsigned error);
enum dibs__sql_step dibs__my_broke(struct dibs__my_wire *w, enum dibs__sql_trouble trouble, const char *words);

static inline struct dibs__my_wire *dibs__my(struct dibs__sql_wire *wire) {
  return (struct dibs__my_wire *)wire;
}
static inline const struct dibs__my_wire *dibs__my_of(const struct dibs__sql_wire *wire) {
  return (const struct dibs__my_wire *)wire;
}

#endif
