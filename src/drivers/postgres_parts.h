/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_POSTGRES_PARTS_H
#define DIBS_DRIVERS_POSTGRES_PARTS_H
/*
 * A store in PostgreSQL, through libpq.
 *
 *   postgres.c           the engine; postgres_driver.c: the driver
 *   postgres_place.c     the URI as connection parameters
 *   postgres_connect.c   a connection with its settings; what is refused
 *   postgres_wire.c      put and go: packets
 *   postgres_cell.c      answers
 *   postgres_texts.c     prepared statements
 *   postgres_values.c    what they are sent with
 *   postgres_words.c     SQLSTATEs
 *   postgres_fast.c      leases that nobody else wants, one packet a batch
 *   postgres_bell.c      LISTEN, NOTIFY
 *   postgres_lock.c      session locks
 *
 * A packet is libpq's pipeline up to a sync.  Where a COMMIT stands in its middle, what follows (rings) stands behind a
 * sync of its own: its failure is nobody's trouble.
 */
#include "sql/far.h"

#include <libpq-fe.h>

/* The types that we send, and those whose binary form we read. */
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

typedef enum dibs__sql_step step_t;

enum {
  DIBS__PG_VALUES = 96, /* of one statement, columns of $rows included */
  DIBS__PG_TEXTS = 256, /* prepared statements that a connection keeps */
  DIBS__PG_FAST_TEXTS = 8
};

/* ---- Prepared statements (postgres_texts.c) ---- */

enum dibs__pg_answers { DIBS__PG_UNSEEN, DIBS__PG_BINARY, DIBS__PG_AS_TEXT };

/* A statement of one connection.  Its parameters have the types that the first values had: a number is an int8, bytes
 * are a bytea, and the server finds a type for text and NULL where they stand. */
struct dibs__pg_text {
  struct dibs__pg_text *next; /* of equal hashes */
  uint64_t hash;
  const char *key;   /* as it was put; all three lie behind this struct */
  const char *kinds; /* of the columns of $rows, a letter each; "" without */
  const char *sql;   /* as it is sent */
  uint32_t nr;       /* its name is d and this */
  uint32_t packet;   /* it was last put in */
  bool ready;        /* the server has it, or will when it reads the packet that is being put */
  bool bound;        /* types of the parameters are known */
  bool worked;       /* it has, as it is prepared */
  bool stale;        /* the table is another, it may be: to be prepared anew */
  enum dibs__pg_answers answers;
  uint8_t count;
  Oid types[DIBS__PG_VALUES];
};

struct dibs__pg_texts {
  struct dibs__pg_text *heads[DIBS__PG_TEXTS];
  size_t count;
  struct { /* by where the text lies: the same one is put again and again */
    const char *at;
    struct dibs__pg_text *text;
  } near[64];
  uint32_t drawn; /* names */
  /* Forgotten here, and not yet by the server. */
  uint32_t *gone;
  size_t gone_count, gone_room;
};

/* The values of one statement as libpq wants them. */
struct dibs__pg_values {
  int count;
  const char *at[DIBS__PG_VALUES]; /* once ended */
  size_t offsets[DIBS__PG_VALUES];
  int lengths[DIBS__PG_VALUES], formats[DIBS__PG_VALUES];
  Oid types[DIBS__PG_VALUES];
  char *room; /* what `at` points into */
  size_t size, used;
};

/* ---- The wire (postgres_wire.c) ---- */

enum dibs__pg_what { DIBS__PG_PREPARES, DIBS__PG_STATEMENT, DIBS__PG_FORGETS, DIBS__PG_WIDENS, DIBS__PG_SYNC };

/* What an answer is expected to. */
struct dibs__pg_expected {
  enum dibs__pg_what what;
  bool commit;
  uint32_t nth; /* STATEMENT; FORGETS: the name */
  struct dibs__pg_text *text;
};

struct dibs__pg_wire {
  struct dibs__sql_wire wire; /* first */
  struct dibs__far *store;
  PGconn *pg;
  char last_words[200]; /* the server's, before it ended the connection */
  bool dead;            /* GONE or LATE was answered */
  bool nameless;        /* nothing is left in the server: inside a user's connection, and while it may be a pooler's */
  bool narrow;          /* the search path is not what it is to be yet */
  bool blocking;        /* inside: what to go back to */
  bool piping;          /* in pipeline mode */
  bool began;           /* something of a packet was put */
  bool committed;       /* the packet that is being put has a COMMIT */
  bool lock_got, lock_ended; /* of a lock that is waited for: what was answered so far */
  uint32_t packet;
  struct dibs__pg_texts texts;
  struct dibs__pg_values values;
  struct dibs__pg_expected *expected;
  size_t expected_count, expected_room;
  PGresult **results; /* of the latest go, by statement */
  struct dibs__pg_text **result_texts;
  size_t result_count, result_room;
};

/* Takes pg over, unless it is inside a user's; NULL: no memory. */
struct dibs__pg_wire *dibs__pg_wire_new(PGconn *pg, const struct dibs__sql_engine *engine, bool inside);
void dibs__pg_wire_free(struct dibs__pg_wire *w); /* and its connection, unless it is inside; NULL is fine */

enum dibs__sql_step dibs__pg_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                 size_t count);
enum dibs__sql_step dibs__pg_put_rows(struct dibs__sql_wire *wire, const char *text,
                                      const struct dibs__sql_value *values, size_t count,
                                      const struct dibs__sql_value *rows, size_t columns, size_t row_count);
enum dibs__sql_step dibs__pg_go(struct dibs__sql_wire *wire, bool commits);
size_t dibs__pg_rows(const struct dibs__sql_wire *wire, size_t nth);
uint64_t dibs__pg_changed(const struct dibs__sql_wire *wire, size_t nth);
struct dibs__sql_value dibs__pg_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as);

/* Sleeps until the connection can be read or written, whichever is asked, or `by`: false. */
bool dibs__pg_wait_for(PGconn *pg, bool reading, bool writing, dibs__tick by);

/* (postgres_texts.c)  `before`: how many values stand before those of $rows.  May forget another, which is not of this
 * packet: see `gone`.  NULL: no memory. */
struct dibs__pg_text *dibs__pg_text_find(struct dibs__pg_texts *texts, const char *key, const char *kinds,
                                         size_t before, uint32_t packet);
void dibs__pg_texts_free(struct dibs__pg_texts *texts);

/* (postgres_values.c)  add: false: no memory.  `types`: what the statement was prepared with; NULL: it was not. */
void dibs__pg_values_begin(struct dibs__pg_values *values);
void dibs__pg_values_end(struct dibs__pg_values *values);
bool dibs__pg_values_add(struct dibs__pg_values *values, const struct dibs__sql_value *value, const Oid *types);
bool dibs__pg_values_add_column(struct dibs__pg_values *values, char kind, const struct dibs__sql_value *rows,
                                size_t columns, size_t column, size_t row_count);
/* The letters of the columns. */
void dibs__pg_kinds(char *kinds, const struct dibs__sql_value *rows, size_t columns, size_t row_count);

/* (postgres_cell.c)  Which form a statement's answers can have from now on; makes bytes of what came as text. */
enum dibs__pg_answers dibs__pg_answers_of(const PGresult *result);
bool dibs__pg_result_ready(PGresult *result); /* false: bytes in a form that we don't read */

/* ---- The place (postgres_place.c) ---- */

enum { DIBS__PG_KEYWORDS = 32, DIBS__PG_HOSTS = 16 };

struct dibs__pg_host {
  char *name, *port; /* NULL: libpq's default */
};

struct dibs__pg_place {
  /* Immutable once prepared. */
  const char *keywords[DIBS__PG_KEYWORDS];
  char *values[DIBS__PG_KEYWORDS];
  size_t count;
  struct dibs__pg_host hosts[DIBS__PG_HOSTS];
  size_t host_count, host_room;
  char *fast[DIBS__PG_FAST_TEXTS];
  /* Any thread. */
  _Atomic bool pooler_fine; /* there is one, and it keeps a server process for each of us */
};

extern const struct dibs__far_engine dibs__pg_engine;
extern const char *const dibs__pg_params[], *const dibs__pg_schemes[];
dibs__status dibs__pg_prepare(const struct dibs__uri *uri, struct dibs__far *store, void **place,
                              struct dibs__said *said);
void dibs__pg_forget(void *place);
bool dibs__pg_wants_locks(const struct dibs__uri *uri); /* lock=advisory */

/* ---- Connections (postgres_connect.c) ---- */

dibs__status dibs__pg_open_wire(struct dibs__far *store, dibs__tick by, struct dibs__pg_wire **wire,
                                struct dibs__said *said);
dibs__status dibs__pg_connect(struct dibs__far *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__said *said);
/* Sends what makes the search path what it is to be. */
bool dibs__pg_widen(struct dibs__pg_wire *w);
void dibs__pg_close(struct dibs__sql_wire *wire);
dibs__status dibs__pg_adopt(struct dibs__far *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__said *said);

/* ---- Fast statements (postgres_fast.c) ---- */

bool dibs__pg_fast_prepare(struct dibs__pg_place *place, struct dibs__far *store);
void dibs__pg_fast_forget(struct dibs__pg_place *place);
step_t dibs__pg_fast(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session,
                     struct dibs__lease_op *const ops[], size_t count, int64_t *now);

/* ---- Bells (postgres_bell.c) ---- */

dibs__status dibs__pg_bell_open(struct dibs__far *store, uint64_t session, dibs__tick by, void **bell,
                                struct dibs__said *said);
void dibs__pg_bell_close(void *bell);
dibs__status dibs__pg_bell_wait(void *bell, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by);
void dibs__pg_bell_wake(void *bell);
step_t dibs__pg_ring_after(struct dibs__far *store, struct dibs__sql_wire *wire, const struct dibs__far_ring *rings,
                           const int64_t *where, size_t count);

/* (postgres_lock.c) */
extern const struct dibs__far_locking dibs__pg_locking;

/* (postgres_words.c) */
enum dibs__sql_trouble dibs__pg_trouble(const char *state);
/* The primary message of a result, else the connection's, on one line. */
void dibs__pg_say(char *to, size_t size, const PGresult *result, const PGconn *pg);

#endif
