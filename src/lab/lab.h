/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_LAB_H
#define DIBS_LAB_LAB_H
/*
 * Plain SQL on the engine of a store, beside dibs: the lab creates its own tables, counts their rows, and runs what
 * people write without dibs.  It uses the wires of the drivers; a store without SQL has no lines.
 */
#include "base/hist.h"
#include "base/port.h"
#include "dibs.h"
#include "lab/sheet.h"
#include "sql/wire.h"

enum { LAB_LINE_MS = 15000 }; /* for a statement: longer than a server needs to find a deadlock */

struct lab_connection;
/* Opens another connection to the engine at `uri`.  OK; NOT_FOUND: it has no SQL.  Close *connection. */
dibs__status dibs__lab_connection_open(const char *uri, struct lab_connection **connection,
                                       struct dibs__result *result);
void dibs__lab_connection_close(struct lab_connection *connection);              /* after its lines; NULL is allowed */
const char *dibs__lab_connection_shown(const struct lab_connection *connection); /* the URI without password */

/* A connection.  One thread at a time. */
struct lab_line {
  struct lab_connection *connection;
  struct dibs__sql_wire *wire;
  void *own; /* the engine's */
};
dibs__status dibs__lab_line_open(struct lab_connection *connection, struct lab_line *line, struct dibs__result *result);
void dibs__lab_line_close(struct lab_line *line); /* also a line that was not opened */

/* One statement in one packet.  Its answer is number 0.  DIBS__SQL_FAILED: line->wire has the reason; a transaction
 * remains open. */
enum dibs__sql_rc dibs__lab_run_sql(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                    size_t count);
/* The same, with deadline and `commits`. */
enum dibs__sql_rc dibs__lab_run_sql_by(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                       size_t count, dibs__tick by, bool commits);
/* A statement that gives one number; `otherwise` without a row. */
enum dibs__sql_rc dibs__lab_number(struct lab_line *line, const char *text, int64_t otherwise, int64_t *number);
/* The engine's own: "MariaDB 10.11.6". */
void dibs__lab_version(struct lab_line *line, char *to, size_t size);

/*
 * The lab: classic experiments with a row that many clients change, with every strategy, also with those that break.
 *
 *   strategies.c  the strategies
 *   tables.c      the results as data, and the lab's tables
 *   page.c        the results as a page
 *   connection.c  plain SQL on the store's engine
 *   user.c        a user
 *   locks.c redis.c       locks in another store than the row
 *   race.c        crews of users, in threads or processes
 *   own.c         a Redis and an embedded store of the lab's own
 *   race.c throughput.c deadlock.c pause.c crash.c failover.c amnesia.c counter.c   the experiments
 *   phases.c phases_node.c   another one, and its nodes
 *   phases_sql.c phases_mongodb.c   their rows
 *
 * A user books: it takes one of a counted row's seats, which inserts its own row beside it, with a foreign key to the
 * counted one.  A broken promise sets lab->sheet.broken; a strategy that breaks as expected is only shown.
 */

enum {
  LAB_USERS_MAX = 4096,
  LAB_LIST_MAX = 16, /* of --users */
  LAB_ROUNDS_MAX = 25,
  LAB_PROCESSES_MAX = 64,
  LAB_ROWS_MAX = 100000,
  LAB_SEATS_MAX = 1000000000, /* also the default where seats must not run out */
  LAB_KEY_MAX = 64,
  LAB_TABLE_MAX = 48,
  LAB_LOCKS_MAX = 4,
  LAB_URI_MAX = 4096, /* as DIBS__URI_MAX */
  LAB_WHY_MAX = 640
};

/* ---- The request ---- */

struct lab_progress {
  const char *experiment, *what; /* the strategy, or another activity */
  uint32_t users, step, steps;
  int64_t ms, of_ms; /* of this step; of_ms 0: its duration is not known */
  uint64_t done;
  double rate;
};

struct lab {
  /* Immutable while an experiment runs. */
  const char *uri;                  /* the store's */
  const char *strategies;           /* names with commas; NULL: all */
  const char *floor;                /* a bare client to run beside; NULL: none */
  const char *locks[LAB_LOCKS_MAX]; /* stores for the locks of strategies that lock elsewhere */
  size_t locks_count;
  uint32_t users[LAB_LIST_MAX], rows[LAB_LIST_MAX];
  size_t users_count, rows_count;
  uint32_t seats, rounds, processes; /* processes 0: threads of this one */
  const char *gate;                  /* a number at a service behind a gate: its URL; NULL: none */
  int64_t ms, ttl_ms;
  bool keep;               /* the tables */
  bool strict;             /* a strategy that breaks as expected fails the lab, too */
  atomic_int *interrupted; /* the signal that ends it; 0: go on */
  void (*progress)(const struct lab_progress *progress, void *user); /* NULL: none */
  void *user;

  /* The lab's own. */
  struct lab_connection *connection; /* NULL: the store has no SQL */
  struct lab_line line;              /* for making and counting */
  char event[LAB_TABLE_MAX], applicant[LAB_TABLE_MAX];
  bool tables;  /* exist; without SQL: stocks, or what an experiment drops itself */
  bool server;  /* the store is a database server, with locks of its own */
  uint32_t run; /* counted */
  uint32_t step, steps;
  struct lab_sheet sheet;
  char why[LAB_WHY_MAX]; /* the reason why an experiment could not run, */
  dibs_status trouble;   /* and its status */
};

/* Each runs to its end, or until *interrupted.  false: lab->why has the reason.  The sheet has the results so far in
 * any case. */
bool dibs__lab_race(struct lab *lab);
bool dibs__lab_throughput(struct lab *lab);
bool dibs__lab_deadlock(struct lab *lab);
bool dibs__lab_pause(struct lab *lab);
bool dibs__lab_contend(struct lab *lab);
bool dibs__lab_crash(struct lab *lab);
bool dibs__lab_failover(struct lab *lab);
bool dibs__lab_amnesia(struct lab *lab);
bool dibs__lab_counter(struct lab *lab);
bool dibs__lab_phases(struct lab *lab);

/* Opens the store's engine and its facts for the sheet. */
bool dibs__lab_open(struct lab *lab);
/* For experiments with strategies that lock elsewhere: their locks are there, and can be taken.  Those without a store
 * for their lock become notes. */
bool dibs__lab_locks_ready(struct lab *lab);
/* Drops the tables unless they are kept. */
void dibs__lab_close(struct lab *lab);
/* The main function of a helper process: `dibs lab helper ARG...`.  Returns its exit status. */
int dibs__lab_helper(int argc, char **argv);
int dibs__lab_pause_helper(int argc, char **argv);
int dibs__lab_crash_helper(int argc, char **argv);
int dibs__lab_counter_helper(int argc, char **argv);
int dibs__lab_phases_helper(int argc, char **argv);

static inline bool dibs__lab_ended(const struct lab *lab) {
  return lab->interrupted && atomic_load(lab->interrupted) != 0;
}
/* Keeps the text and returns false. */
bool dibs__lab_fail(struct lab *lab, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- The strategies (strategies.c) ---- */

enum lab_way_kind {
  LAB_OWN_STORE, /* each user has its own store, so its own connection */
  LAB_ONE_STORE, /* all users of a process share one */
  /* Plain SQL on the user's own connection: */
  LAB_CHILD_FIRST, /* the applicant's row before the counted one */
  LAB_UNGUARDED,   /* reads, then writes as if alone */
  LAB_LOCKED       /* the same under a lock in another store */
};
/* A lock beside the row (locks.h). */
enum lab_lock_kind {
  LAB_NO_LOCK,
  LAB_LOCK_SPIN,    /* by hand, in a Redis */
  LAB_LOCK_LEASE,   /* dibs' lease in a Redis */
  LAB_LOCK_QUORUM,  /* dibs' lease in a majority of them */
  LAB_LOCK_SESSION, /* dibs' lease as a lock of a database server */
  LAB_LOCK_SERVER,  /* by hand, a lock of a database server */
  LAB_LOCK_ANY      /* SPIN, or else SERVER */
};
/* When the lock is taken and released. */
enum lab_order {
  LAB_AROUND, /* around the transaction */
  LAB_EARLY,  /* before the transaction begins, and released before its commit */
  LAB_INSIDE  /* after the transaction's first read, and released before its commit */
};
struct lab_way {
  const char *name, *what;
  enum lab_way_kind kind;
  dibs_strategy strategy; /* of the first two kinds */
  bool promised;          /* to count right */
  enum lab_lock_kind lock;
  enum lab_order order;
};
extern const struct lab_way dibs__lab_ways[];
extern const size_t dibs__lab_way_count;
static inline bool dibs__lab_by_hand(const struct lab_way *way) {
  return way->kind != LAB_OWN_STORE && way->kind != LAB_ONE_STORE;
}
/* The URI of the strategy's lock: of --locks, or the store's own.  NULL: there is none. */
const char *dibs__lab_lock_uri(const struct lab *lab, const struct lab_way *way);
/* Every word of the list is a strategy. */
bool dibs__lab_ways_known(const char *list, char *wrong, size_t size);
/* Does the request include it, and does this store support it? */
bool dibs__lab_way_wanted(const struct lab *lab, const struct lab_way *way);

/* ---- The tables (tables.c) ---- */

/* Creates the tables: `rows` counted rows of `seats` seats, the nth (from 1) with the key dibs__lab_key(n).  Without
 * SQL: stocks of dibs, under a new name for each run. */
bool dibs__lab_tables_make(struct lab *lab, uint32_t rows, int64_t seats);
void dibs__lab_key(char key[LAB_KEY_MAX], uint32_t run, uint32_t nth);
/* The tables of that name as dibs knows them; NULL and `error` if dibs does not accept them. */
dibs_table *dibs__lab_declare(const char *event, const char *applicant, dibs_error *error);

struct lab_audit {
  int64_t counted; /* the sum of `used` */
  int64_t claims;  /* -1: the store does not report it */
  int64_t over;    /* claims beyond the seats, over all rows */
  int64_t off;     /* rows whose count is not that of their claims */
};
bool dibs__lab_audit(struct lab *lab, uint32_t rows, int64_t seats, struct lab_audit *audit);

/* ---- What figures depend on (machine.c) ---- */

void dibs__lab_machine(struct lab_sheet *sheet);
/* The settings of the store's engine that decide what a commit survives. */
void dibs__lab_durability(struct lab *lab);
/* Those of a Redis in --locks. */
void dibs__lab_lock_durability(struct lab *lab);

/* ---- Users (race.c, user.c) ---- */

/* Of one user, which alone writes it; others read it after the user's end, except `done`. */
struct lab_user {
  _Alignas(64) _Atomic uint64_t done; /* acknowledged */
  uint64_t full, conflicts, deadlocks, given_up, unknown;
  struct dibs__hist hist; /* of what was done, ns */
};

/* Shared by all processes of a crew. */
struct lab_board {
  /* Immutable once users start. */
  uint32_t users, processes, way, rows, run;
  bool once; /* each user books once; else until `stop` */
  bool sql;
  bool by_hand; /* plain SQL on the user's own connection */
  int64_t wait_ms;
  char event[LAB_TABLE_MAX], applicant[LAB_TABLE_MAX];
  char locks[LAB_URI_MAX + 1]; /* of the strategy's lock; "": none */
  /* Any user. */
  dibs__word ready;  /* users that are ready, or can't become ready */
  dibs__word absent; /* of those, users that could not connect */
  dibs__word go, ended;
  _Atomic bool stop;
  _Atomic uint32_t troubled; /* 1: a user has set `why`; only the first one does */
  _Atomic bool unsupported;  /* the store does not support this strategy */
  char why[LAB_WHY_MAX];
  struct lab_user user[];
};

enum { LAB_SAMPLES = 120 };
struct lab_crew {
  /* The request. */
  const struct lab_way *way;
  uint32_t users, rows;
  bool once;
  int64_t ms; /* duration; not with `once` */
  /* The result. */
  double seconds;
  uint64_t done, full, conflicts, deadlocks, given_up, unknown;
  uint32_t absent;
  bool unsupported;
  struct dibs__hist hist;
  double at[LAB_SAMPLES], rate[LAB_SAMPLES]; /* seconds since the start, bookings a second */
  size_t samples;
  char why[LAB_WHY_MAX]; /* the first trouble of a user; "" */
};

/* user.c: runs the users `from` to `to` - 1 of the board, in this process, until they have ended.  The store is
 * $DIBS_STORE, or `uri`. */
void dibs__lab_users_run(struct lab_board *board, const char *uri, uint32_t from, uint32_t to);

/* ---- Processes (process.c) ---- */

/* `dibs lab helper ARG...` with $DIBS_STORE set.  false: `why`. */
bool dibs__lab_spawn(const char *uri, char *const args[], int *pid, char *why, size_t size);
/* Runs a program to its end; its output is in `out`, cut to its size.  false: `why`. */
bool dibs__lab_capture(char *const argv[], char *out, size_t size, char *why, size_t why_size);

/* Memory that a helper shares with the lab: the lab makes it, starts `dibs lab helper WHAT` with it, and drops it.
 * NULL, false: lab->why is set. */
void *dibs__lab_shared_make(struct lab *lab, size_t size, int *fd);
bool dibs__lab_spawn_sharing(struct lab *lab, const char *what, int fd, int *pid);
void dibs__lab_shared_drop(void *shared, size_t size, int fd); /* NULL and -1 are fine */
/* Of the helper, which from now on ends with the lab.  NULL: there is none. */
void *dibs__lab_shared_of(int argc, char **argv, size_t size);

/* ---- A number at a service behind a gate (service.c) ---- */

enum { LAB_URL_MAX = 1000 };

struct lab_service {
  const char *url, *name;
  uint64_t fence; /* 0: a request without a fence */
};
/* GET.  OK; STALE: the gate has refused the fence; UNAVAILABLE. */
dibs_status dibs__lab_service_read(const struct lab_service *service, int64_t *value, dibs_error *error);
/* PUT.  The same. */
dibs_status dibs__lab_service_write(const struct lab_service *service, int64_t value, dibs_error *error);

/* ---- For experiments (race.c) ---- */

struct lab_verdict {
  enum lab_mood mood;
  const char *text;
};
/* Compares the results of the crew with the tables. */
struct lab_verdict dibs__lab_judge(struct lab *lab, const struct lab_crew *crew, const struct lab_audit *audit);
/* Runs one crew on new tables, and counts afterwards. */
bool dibs__lab_try(struct lab *lab, struct lab_crew *crew, int64_t seats, struct lab_audit *audit);
void dibs__lab_report_progress(struct lab *lab, const char *what, uint32_t users, int64_t ms, int64_t of_ms,
                               uint64_t done, double rate);
/* The hill of a histogram: bookings by latency in ms, on a logarithmic axis. */
void dibs__lab_hill(struct lab *lab, struct lab_plot *plot, const char *name, enum lab_mood mood,
                    const struct dibs__hist *hist);

/* A bare client (bench/floors) as a further member of a round: run as a process, its figures read from its JSON. */

struct lab_floor_result {
  double per_second, p50_ns, p99_ns, max_ns, conflicts, deadlocks;
  bool correct, expected; /* it counted right; or wrong, as expected */
};
/* The program's name for the strategy that corresponds to `way`; NULL: it has none. */
const char *dibs__lab_floor_name(const char *program, const char *way);
bool dibs__lab_floor_run(struct lab *lab, const char *strategy, uint32_t users, struct lab_floor_result *result);

/* A database session with its own thread, so that its statement may wait while another session continues. */

enum { LAB_SQL_MAX = 512 };

struct lab_session {
  struct lab_line line;
  dibs__thread *thread;
  /* Request and answer: the session's thread may read the request once `requested` has grown; the other side may read
   * the answer when `answered` is equal to it. */
  dibs__word requested, answered;
  char text[LAB_SQL_MAX];
  bool leave;
  enum dibs__sql_rc step;
  enum dibs__sql_trouble trouble;
  uint64_t changed;
  int64_t number; /* the first cell, for a statement that gives a number */
  char message[200];
};
bool dibs__lab_session_open(struct lab *lab, struct lab_session *session);
void dibs__lab_session_close(
    struct lab_session *session); /* waits for a statement in progress; also for a session that was not opened */
/* Sends a statement; none may be in progress. */
void dibs__lab_session_request(struct lab_session *session, const char *text);
/* true: the answer is here and may be read. */
bool dibs__lab_session_wait(struct lab_session *session, int64_t ms);

#endif
