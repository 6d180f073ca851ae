/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_LAB_H
#define DIBS_LAB_LAB_H
/*
 * The lab: classic experiments with a row that many want, every strategy beside the others, the broken ones shown
 * broken.
 *
 *   sheet.c       what came of it, as data          report.c, plot.c   the same as a page
 *   door.c        plain SQL on the store's engine   tables.c           the lab's tables
 *   ways.c        the strategies                    crew.c, user.c     users: threads or processes
 *   race.c throughput.c contend.c deadlock.c pause.c                   the experiments
 *
 * A user books: it takes one of a counted row's seats, which inserts its own row beside it, with a foreign key to the
 * counted one.  What is promised and breaks makes lab->sheet.broken true; what is expected to break is only shown.
 */
#include "base/hist.h"
#include "base/port.h"
#include "dibs.h"
#include "lab/door.h"
#include "lab/sheet.h"

enum {
  LAB_USERS_MAX = 4096,
  LAB_LIST_MAX = 16, /* of --users */
  LAB_ROUNDS_MAX = 25,
  LAB_PROCESSES_MAX = 64,
  LAB_ROWS_MAX = 100000,
  LAB_KEY_MAX = 64,
  LAB_TABLE_MAX = 48,
  LAB_WHY_MAX = 640
};

/* ---- What is asked for ---- */

struct lab_progress {
  const char *experiment, *what; /* the strategy, or what else is going on */
  uint32_t users, step, steps;
  int64_t ms, of_ms; /* of this step; of_ms 0: it takes as long as it takes */
  uint64_t done;
  double rate;
};

struct lab {
  /* Immutable while an experiment runs. */
  const char *uri;        /* the store's */
  const char *strategies; /* names with commas; NULL: all */
  const char *floor;      /* a bare client to run beside; NULL: none */
  uint32_t users[LAB_LIST_MAX], rows[LAB_LIST_MAX];
  size_t users_count, rows_count;
  uint32_t seats, rounds, processes; /* processes 0: threads of this one */
  int64_t ms, ttl_ms;
  bool keep;                                                         /* the tables */
  bool strict;                                                       /* what is expected to break fails as well */
  atomic_int *interrupted;                                           /* the signal that ends it; 0: go on */
  void (*progress)(const struct lab_progress *progress, void *user); /* NULL: none */
  void *user;

  /* The lab's own. */
  struct lab_door *door; /* NULL: the store speaks no SQL */
  struct lab_line line;  /* for making and counting */
  char event[LAB_TABLE_MAX], applicant[LAB_TABLE_MAX];
  bool tables;  /* are there */
  uint32_t run; /* counted */
  uint32_t step, steps;
  struct lab_sheet sheet;
  char why[LAB_WHY_MAX]; /* what kept an experiment from being done */
};

/* Each runs to its end, or until *interrupted.  false: lab->why tells.  The sheet holds what there is in any case. */
bool dibs__lab_race(struct lab *lab);
bool dibs__lab_throughput(struct lab *lab);
bool dibs__lab_deadlock(struct lab *lab);
bool dibs__lab_pause(struct lab *lab);
bool dibs__lab_contend(struct lab *lab);

/* Opens the store's engine and its facts for the sheet. */
bool dibs__lab_open(struct lab *lab);
/* Drops the tables unless they are kept. */
void dibs__lab_close(struct lab *lab);
/* What a helper process of the lab runs: `dibs lab helper ARG...`.  Returns its exit status. */
int dibs__lab_helper(int argc, char **argv);
int dibs__lab_pause_helper(int argc, char **argv);

static inline bool dibs__lab_ended(const struct lab *lab) {
  return lab->interrupted && atomic_load(lab->interrupted) != 0;
}
/* Keeps the text and returns false. */
bool dibs__lab_fail(struct lab *lab, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dibs__lab_fail_line(struct lab *lab, const struct lab_line *line, const char *doing);

/* ---- The strategies (ways.c) ---- */

enum lab_way_kind {
  LAB_OWN_STORE,   /* each user has a store, so a connection, of its own */
  LAB_ONE_STORE,   /* all users of a process share one */
  LAB_CHILD_FIRST, /* by hand: the applicant's row before the counted one */
};
struct lab_way {
  const char *name, *what;
  enum lab_way_kind kind;
  dibs_strategy strategy;
  bool promised; /* to count right */
};
extern const struct lab_way dibs__lab_ways[];
extern const size_t dibs__lab_way_count;
/* Every word of the list is a way. */
bool dibs__lab_ways_known(const char *list, char *wrong, size_t size);
/* Is it asked for, and can it be done on this store? */
bool dibs__lab_way_wanted(const struct lab *lab, const struct lab_way *way);

/* ---- The tables (tables.c) ---- */

/* Makes the tables anew: `rows` counted rows of `seats` seats, the nth (from 1) called dibs__lab_key(n).  Without SQL:
 * stocks of dibs' own, under a new name for each run. */
bool dibs__lab_tables_make(struct lab *lab, uint32_t rows, int64_t seats);
bool dibs__lab_tables_drop(struct lab *lab);
void dibs__lab_key(char key[LAB_KEY_MAX], uint32_t run, uint32_t nth);
/* The tables of that name as dibs knows them; NULL and `error` when it does not take them. */
dibs_table *dibs__lab_declare(const char *event, const char *applicant, dibs_error *error);

struct lab_audit {
  int64_t counted; /* the sum of `used` */
  int64_t claims;  /* -1: the store does not tell */
  int64_t over;    /* claims beyond the seats, over all rows */
  int64_t off;     /* rows whose count is not that of their claims */
};
bool dibs__lab_audit(struct lab *lab, uint32_t rows, int64_t seats, struct lab_audit *audit);

/* ---- Users (crew.c, user.c) ---- */

/* One user's; written by it alone, and read by others when it has ended, but for `done`. */
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
  /* Any user. */
  dibs__word ready;  /* how many are, or will never be */
  dibs__word absent; /* of those: could not connect */
  dibs__word go, ended;
  _Atomic bool stop;
  _Atomic uint32_t troubled; /* who says `why`, is the first: 1 */
  _Atomic bool unsupported;  /* the store can't do it so */
  char why[LAB_WHY_MAX];
  struct lab_user user[];
};

enum { LAB_SAMPLES = 120 };
struct lab_crew {
  /* Asked. */
  const struct lab_way *way;
  uint32_t users, rows;
  bool once;
  int64_t ms; /* how long; not with `once` */
  /* Answered. */
  double seconds;
  uint64_t done, full, conflicts, deadlocks, given_up, unknown;
  uint32_t absent;
  bool unsupported;
  struct dibs__hist hist;
  double at[LAB_SAMPLES], rate[LAB_SAMPLES]; /* seconds since the start, bookings a second */
  size_t samples;
  char why[LAB_WHY_MAX]; /* the first trouble of a user; "" */
};
/* Users stand ready, start at once, book.  false: lab->why. */
bool dibs__lab_crew_run(struct lab *lab, struct lab_crew *crew);

/* user.c: users `from` to `to` - 1 of the board, in this process, until they have ended.  The store is $DIBS_STORE, or
 * `uri`. */
void dibs__lab_users_run(struct lab_board *board, const char *uri, uint32_t from, uint32_t to);
void dibs__lab_trouble(struct lab_board *board, const char *text);

/* ---- Processes (spawn.c) ---- */

/* `dibs lab helper ARG...` with $DIBS_STORE set.  false: `why`. */
bool dibs__lab_spawn(const char *uri, char *const args[], int *pid, char *why, size_t size);
/* Runs a program to its end; what it printed is in `out`, cut to its size.  false: `why`. */
bool dibs__lab_capture(char *const argv[], char *out, size_t size, char *why, size_t why_size);

/* ---- For experiments (judge.c) ---- */

struct lab_verdict {
  enum lab_mood mood;
  const char *text;
};
/* What the crew did and what the tables say. */
struct lab_verdict dibs__lab_judge(struct lab *lab, const struct lab_crew *crew, const struct lab_audit *audit);
/* Runs one crew on fresh tables and counts after it. */
bool dibs__lab_try(struct lab *lab, struct lab_crew *crew, int64_t seats, struct lab_audit *audit);
void dibs__lab_tell(struct lab *lab, const char *what, uint32_t users, int64_t ms, int64_t of_ms, uint64_t done,
                    double rate);
/* The hill of a histogram: bookings by latency in ms, on a logarithmic axis. */
void dibs__lab_hill(struct lab *lab, struct lab_plot *plot, const char *name, enum lab_mood mood,
                    const struct dibs__hist *hist);

#endif
