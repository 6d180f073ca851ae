/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_POSTGRES_POSTGRES_IMPL_H
#define DIBS_DRIVERS_POSTGRES_POSTGRES_IMPL_H
/*
 * A store in PostgreSQL, through libpq.
 *
 *   postgres.c    the engine and the driver; LISTEN, NOTIFY
 *   connect.c     the URI as connection parameters; a connection with its settings; what is refused
 *   wire.c        packets, answers, values, SQLSTATEs
 *   statements.c  prepared statements; fast statements for uncontended leases, one packet a batch; session locks
 *
 * A packet is libpq's pipeline up to a sync.  If a COMMIT is in its middle, what follows (notifications) has a sync
 * of its own: its failure changes nothing.
 */
#include "drivers/server/server.h"

#include <libpq-fe.h>

/* The types of parameters, and those whose binary form is read. */
enum dibs__pg_oid {
  DIBS__PG_BOOL = 16,
  DIBS__PG_BYTEA = 17,
  DIBS__PG_NAME = 19,
  DIBS__PG_INT8 = 20,
  DIBS__PG_INT2 = 21,
  DIBS__PG_INT4 = 23,
  DIBS__PG_TEXT = 25,
  DIBS__PG_OID = 26,
  DIBS__PG_BPCHAR = 1042,
  DIBS__PG_VARCHAR = 1043
};

typedef enum dibs__sql_rc sql_rc;

enum {
  DIBS__PG_VALUES = 96, /* of one statement, columns of $rows included */
  DIBS__PG_TEXTS = 256, /* prepared statements that a connection keeps */
  DIBS__PG_FAST_TEXTS = 8
};

/* ---- Prepared statements (statements.c) ---- */

enum dibs__pg_answers { DIBS__PG_UNSEEN, DIBS__PG_BINARY, DIBS__PG_AS_TEXT };

/* A statement of one connection.  Its parameters have the types of the first values: a number is an int8, bytes are a
 * bytea, and the server infers the type of text and NULL from their position. */
struct dibs__pg_text {
  struct dibs__pg_text *next; /* with the same hash */
  uint64_t hash;
  const char *key;   /* as it was put; all three are stored after this struct */
  const char *kinds; /* of the columns of $rows, a letter each; "" without */
  const char *sql;   /* as it is sent */
  uint32_t nr;       /* its name is d and this */
  uint32_t packet;   /* the latest packet that had it */
  bool ready;        /* the server has it, or will have it when it reads the packet that is being built */
  bool bound;        /* types of the parameters are known */
  bool worked;       /* of its parameters, as it is prepared */
  bool stale;        /* the table may have changed: prepare it again */
  enum dibs__pg_answers answers;
  uint8_t count;
  Oid types[DIBS__PG_VALUES];
};

struct dibs__pg_texts {
  struct dibs__pg_text *heads[DIBS__PG_TEXTS];
  size_t count;
  struct { /* by the address of the text: the same one is put again and again */
    const char *at;
    struct dibs__pg_text *text;
  } near[64];
  uint32_t drawn; /* names */
  /* Forgotten here, and not yet by the server. */
  uint32_t *gone;
  size_t gone_count, gone_capacity;
};

/* The values of one statement as libpq wants them. */
struct dibs__pg_values {
  int count;
  const char *at[DIBS__PG_VALUES]; /* valid after values_end */
  size_t offsets[DIBS__PG_VALUES];
  int lengths[DIBS__PG_VALUES], formats[DIBS__PG_VALUES];
  Oid types[DIBS__PG_VALUES];
  char *memory; /* what `at` points into */
  size_t size, used;
};

/* ---- The wire (wire.c) ---- */

enum dibs__pg_what { DIBS__PG_PREPARES, DIBS__PG_STATEMENT, DIBS__PG_FORGETS, DIBS__PG_WIDENS, DIBS__PG_SYNC };

/* What an answer belongs to. */
struct dibs__pg_expected {
  enum dibs__pg_what what;
  bool commit;
  uint32_t nth; /* STATEMENT; FORGETS: the name */
  struct dibs__pg_text *text;
};

struct dibs__pg_wire {
  struct dibs__sql_wire wire; /* first */
  struct dibs__server *store;
  PGconn *pg;
  char last_message[200];    /* the server's last error, before it ended the connection */
  bool dead;                 /* GONE or LATE was answered */
  bool trusted;              /* its server was checked: when it dies, the other hosts are asked again */
  bool nameless;             /* nothing is left in the server: on a user's connection, and while it may be a pooler's */
  bool narrow;               /* the search path is not set yet */
  bool blocking;             /* inside: the search path to restore */
  bool piping;               /* in pipeline mode */
  bool began;                /* part of a packet is written */
  bool committed;            /* the packet that is being built has a COMMIT */
  bool lock_got, lock_ended; /* of a lock that is waited for: the answers so far */
  uint32_t packet;
  struct dibs__pg_texts texts;
  struct dibs__pg_values values;
  struct dibs__pg_expected *expected;
  size_t expected_count, expected_capacity;
  PGresult **results; /* of the latest go, by statement */
  struct dibs__pg_text **result_texts;
  size_t result_count, result_capacity;
};

/* Takes ownership of pg, unless it is inside a user's transaction; NULL: no memory. */
struct dibs__pg_wire *dibs__pg_wire_new(PGconn *pg, const struct dibs__sql_engine *engine, bool inside);
void dibs__pg_wire_free(struct dibs__pg_wire *w); /* also closes its connection, unless it is inside; NULL is fine */

enum dibs__sql_rc dibs__pg_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                               size_t count);
enum dibs__sql_rc dibs__pg_put_rows(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                    size_t count, const struct dibs__sql_value *rows, size_t columns, size_t row_count);
enum dibs__sql_rc dibs__pg_go(struct dibs__sql_wire *wire, bool commits);
size_t dibs__pg_rows(const struct dibs__sql_wire *wire, size_t nth);
uint64_t dibs__pg_changed(const struct dibs__sql_wire *wire, size_t nth);
struct dibs__sql_value dibs__pg_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as);

/* Sleeps until the connection can be read or written, as requested; false: `by` has passed. */
bool dibs__pg_wait_for(PGconn *pg, bool reading, bool writing, dibs__tick by);

uint64_t dibs__pg_hash(const char *a, const char *b); /* of two texts (statements.c) */
/* (statements.c)  `before`: how many values precede those of $rows.  May forget another statement, which is not of this
 * packet: see `gone`.  NULL: no memory. */
struct dibs__pg_text *dibs__pg_text_find(struct dibs__pg_texts *texts, const char *key, const char *kinds,
                                         size_t before, uint32_t packet);
void dibs__pg_texts_free(struct dibs__pg_texts *texts);

/* ---- The location (connect.c) ---- */

enum { DIBS__PG_KEYWORDS = 32, DIBS__PG_HOSTS = 16 };

struct dibs__pg_host {
  char *name, *port; /* NULL: libpq's default */
};

struct dibs__pg_location {
  /* Immutable once prepared. */
  const char *keywords[DIBS__PG_KEYWORDS];
  char *values[DIBS__PG_KEYWORDS];
  size_t count;
  struct dibs__pg_host hosts[DIBS__PG_HOSTS];
  size_t host_count, host_capacity;
  char *fast[DIBS__PG_FAST_TEXTS];
  /* Any thread. */
  _Atomic bool pooler_fine; /* there is one, and it keeps a server process for each client */
  /* The newest timeline that a connection of this store has seen, and the digest of its system identifier; 0: none.
   * `asked`: when the other hosts had to name theirs; 0: never, or a connection was lost since. */
  _Atomic uint64_t system, timeline;
  _Atomic int64_t asked_ns;
};

extern const struct dibs__server_engine dibs__pg_engine;
extern const char *const dibs__pg_params[], *const dibs__pg_schemes[];
dibs__status dibs__pg_prepare(const struct dibs__uri *uri, struct dibs__server *store, void **location,
                              struct dibs__result *result);
void dibs__pg_forget(void *location);

/* ---- Connections (connect.c) ---- */

/* A client that stops in the middle of a transaction blocks every name of the same bucket. */
#define DIBS__PG_IDLE_MS "5000"

dibs__status dibs__pg_open_wire(struct dibs__server *store, dibs__tick by, struct dibs__pg_wire **wire,
                                struct dibs__result *result);
dibs__status dibs__pg_connect(struct dibs__server *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__result *result);
/* Sends the statement that sets the search path. */
bool dibs__pg_widen(struct dibs__pg_wire *w);
void dibs__pg_close(struct dibs__sql_wire *wire);
/* A connection to the nth host, whatever it is, for questions; dibs__pg_wire_free it.  NULL: see `result`. */
struct dibs__pg_wire *dibs__pg_open_any(struct dibs__server *store, size_t nth, dibs__tick by,
                                        struct dibs__result *result);
/* A statement: the system's identifier, as text, and the number of the timeline. */
extern const char dibs__pg_timeline[];

/* ---- What doctor asks (describe.c) ---- */

void dibs__pg_describe(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__findings *to);

dibs__status dibs__pg_adopt(struct dibs__server *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__result *result);

/* ---- Transactions of users (script.c) ---- */

enum dibs__sql_rc dibs__pg_lend(struct dibs__server *store, struct dibs__sql_wire *wire, void **connection);
enum dibs__sql_rc dibs__pg_script(struct dibs__sql_wire *wire, const char *sql);
bool dibs__pg_in_transaction(const struct dibs__sql_wire *wire);

/* ---- Fast statements (statements.c) ---- */

bool dibs__pg_fast_prepare(struct dibs__pg_location *location, struct dibs__server *store);
void dibs__pg_fast_forget(struct dibs__pg_location *location);
sql_rc dibs__pg_fast(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session,
                     struct dibs__lease_op *const ops[], size_t count, int64_t *now);

/* (statements.c) */
extern const struct dibs__session_locking dibs__pg_locking;

/* (wire.c) */
enum dibs__sql_trouble dibs__pg_trouble(const char *state);

#endif
