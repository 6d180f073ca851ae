/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_BENCH_H
#define DIBS_LAB_BENCH_H
/*
 * `dibs bench lease`, `task` and `counter`: the cost of a lease, a task or an addition, compared with the floor of the
 * same machine in the same minute.
 *
 * A case has sides (dibs, and floors) and aims.  A round runs each side once, in order, so that all sides see the same
 * drift; an aim is judged by the median over the rounds of the comparisons within each round.  A side opens what it
 * needs, warms it up, measures for `ms`, and closes it.
 */
#include "base/hist.h"
#include "base/port.h"
#include "dibs/admin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { BENCH_ROUNDS_MAX = 100, BENCH_SIDES_MAX = 5, BENCH_AIMS_MAX = 4, BENCH_THREADS = 20 };
/* Processes of a side, and of a side with many. */
enum { BENCH_PROCESSES = 4, BENCH_PROCESSES_MANY = 20 };
enum { BENCH_TASK_CLIENTS = 4 }; /* that drain a queue; the floor has as many connections */

/* The metrics of a side; latencies in microseconds.  NAN: does not apply. */
enum bench_metric {
  BENCH_RATE, /* per second: pairs of acquire and release, turns, or calls */
  BENCH_P50,
  BENCH_P99,
  BENCH_P999,
  BENCH_MAX,
  BENCH_TX,     /* store transactions for each grant */
  BENCH_TX_ALL, /* store transactions a round of renewing everything */
  BENCH_HEAP,   /* bytes of heap an item */
  BENCH_RSS,    /* bytes of anonymous memory an item */
  BENCH_THREADS_USED,
  BENCH_UNFAIR,    /* the largest distance of a process's share from its fair share, in points */
  BENCH_CPU,       /* microseconds of processor time of this side's client, for each operation */
  BENCH_STORE,     /* bytes of the server's memory for each lease */
  BENCH_KEYS,      /* keys that remain on the server after the release of all leases */
  BENCH_OVERTAKEN, /* percent of grants that overtook a waiter that had clearly requested earlier */
  BENCH_GAP,       /* the longest time without a grant, in milliseconds */
  BENCH_LOST,      /* tasks that were not done after a crash */
  BENCH_TWICE,     /* tasks that were done twice */
  BENCH_OTHERS,    /* percent of all processors that other processes used meanwhile */
  BENCH_METRICS
};

struct bench_sample {
  double value[BENCH_METRICS];
  bool skipped; /* the side needs something that was not given; then its values, and the aims of it, are not shown */
};

/* How much to do; --smoke makes all of it tiny. */
struct bench_size {
  uint32_t rounds;
  int64_t ms;                   /* of one side in one round */
  uint32_t many;                /* leases held and waiting in the memory case */
  int64_t ttl_ms;               /* of the held leases, which are renewed at a third of it */
  uint32_t million;             /* leases held at once at a server, to measure its memory */
  uint32_t calls;               /* of a command in one round */
  uint32_t tasks_least;         /* of a drain */
  uint32_t lives, crash;        /* tasks that are added one at a time; of a crash: BENCH_EFFECTS / 4 at most */
  uint32_t rows_few, rows_many; /* other rows beside the claims of a grown table */
  uint32_t rows;                /* dead or finished ones */
  uint32_t keys, parked;
  double calm; /* percent that others may use in a round; above it the round runs again; 0: any */
};

struct bench_case;

/* What `dibs bench NAME` measures. */
struct bench_subject {
  const char *name, *what;
  const struct bench_case *cases; /* the last has no key */
};

struct bench {
  const struct bench_subject *subject;
  const char *store; /* the URI that is measured */
  char shown[4096];  /* the same without a password */
  const char *floor; /* a program that measures the store's server without dibs; NULL: none */
  const char *upset; /* a command that makes the store's first tier unreachable; NULL: none */
  char folder[4000]; /* for the files of the floors: beside the store's own file, if it has one */
  struct bench_size size;
  char why[700]; /* the reason of a failure, for people */
};

struct bench_side {
  const char *name;
  /* false: b->why has the reason, and the whole bench ends. */
  bool (*run)(struct bench *b, uint32_t arg, struct bench_sample *sample);
  uint32_t arg;
};

enum bench_how {
  BENCH_VALUE, /* the value of `of` */
  BENCH_RATIO, /* `of` divided by `by` */
  BENCH_MORE   /* `of` less `by` */
};

struct bench_aim {
  const char *what;
  enum bench_how how;
  enum bench_metric metric;
  uint8_t of, by; /* sides */
  bool at_most;   /* else at least */
  double bound;
  double scale; /* the value times this is shown and compared */
  const char *unit;
};

/* The stores for which a case runs, unless --only names it. */
enum bench_where {
  BENCH_IN_FILE,      /* without --floor: one of this machine's own */
  BENCH_AT_SQL,       /* a server, against b->floor */
  BENCH_AT_REDIS,     /* as above */
  BENCH_AT_ETCD,      /* as above */
  BENCH_AT_MONGODB,   /* as above */
  BENCH_AT_ZOOKEEPER, /* as above */
  BENCH_IN_TIERS,     /* several stores behind one URI */
  BENCH_ANYWHERE,     /* every store */
  BENCH_REQUESTED     /* none: it is large */
};

struct bench_case {
  const char *key;                          /* for --only */
  const char *title;                        /* what a turn is, and which latencies are measured */
  struct bench_side sides[BENCH_SIDES_MAX]; /* up to the first without a name */
  struct bench_aim aims[BENCH_AIMS_MAX];
  enum bench_where where;
  bool once; /* one round is enough: it counts things and measures no time */
};

extern const struct bench_case dibs__bench_task_cases[];
extern const struct bench_case dibs__bench_counter_cases[];

/* The result of a case: sample[side][round]. */
struct bench_result {
  const struct bench_case *test;
  uint32_t rounds;
  uint32_t noisy; /* rounds in which others used more than --calm allows */
  struct bench_sample sample[BENCH_SIDES_MAX][BENCH_ROUNDS_MAX];
};

/* Median, lowest and highest over the rounds; all NAN when nothing was measured. */
struct bench_range {
  double median, low, high;
};

/* ---- For sides ---- */

void dibs__bench_sample_clear(struct bench_sample *sample);
void dibs__bench_sample_hist(struct bench_sample *sample, const struct dibs__hist *hist);
/* Keeps the text, and returns false. */
bool dibs__bench_fail(struct bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dibs__bench_open(struct bench *b, uint32_t flags, dibs_store **store);
/* Opens the first of several stores of one URI, without the others. */
bool dibs__bench_open_first(struct bench *b, uint32_t flags, dibs_store **store);
/* The length of the first of several URIs with commas between; of a single one its whole length. */
size_t dibs__bench_first(const char *uri);
/* The embedded store in `file` of the bench's folder.  false: too long. */
bool dibs__bench_file_uri(const struct bench *b, const char *file, char *uri, size_t size);
/* What dibs_metrics has counted; zeros if the store does not answer. */
struct bench_counts {
  uint64_t acquired, waiting, lost, renewed, transactions;
};
struct bench_counts dibs__bench_counts(dibs_store *store);
/* Store transactions a grant since `before`. */
void dibs__bench_sample_counts(struct bench_sample *sample, const struct bench_counts *before, dibs_store *store);
/* A name nobody else uses: of this run of the bench, and number `n` in it. */
void dibs__bench_name(char name[64], uint32_t n);
void dibs__bench_name_of(char name[64], uint32_t run, uint32_t n);

/* Seconds of processor time that this process has used. */
double dibs__bench_cpu(void);

struct bench_noise {
  bool known;
  double used, all, own;
};
void dibs__bench_noise_begin(struct bench_noise *noise);
/* Sets BENCH_OTHERS of the sample. */
void dibs__bench_noise_end(const struct bench_noise *noise, struct bench_sample *sample);

/* The sides themselves, by what `arg` says. */
bool dibs__bench_side_threads(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_ONE_THREAD, BENCH_OWN_NAMES, BENCH_SAME_NAME, BENCH_FIRST_TIER = 16 /* beside one of these */ };
bool dibs__bench_side_sqlite(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_BARE_DIBS, BENCH_BARE_NAIVE, BENCH_BARE_NAIVE_64 };
bool dibs__bench_side_fifo(struct bench *b, uint32_t arg, struct bench_sample *sample);
bool dibs__bench_side_loop(struct bench *b, uint32_t arg, struct bench_sample *sample);
bool dibs__bench_side_turns(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum {
  BENCH_TURNS_DIBS = 0,
  BENCH_TURNS_FLOCK = 1,
  BENCH_TURNS_BRIEF = 2,
  BENCH_TURNS_LONG = 4,
  BENCH_TURNS_MANY = 8,
  BENCH_TURNS_WAITS = 16 /* latencies are of the wait, and overtaking is counted */
};
bool dibs__bench_side_memory(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_MEMORY_HELD, BENCH_MEMORY_WAITING };
enum { BENCH_COMMAND_DIBS, BENCH_COMMAND_FLOCK };

bool dibs__bench_side_floor(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_FLOOR_OWN, BENCH_FLOOR_SHARED, BENCH_FLOOR_ONE, BENCH_FLOOR_16, BENCH_FLOOR_64 };
/* A drain of so many tasks at a time.  Skipped without b->floor. */
bool dibs__bench_side_floor_tasks(struct bench *b, uint32_t batch, struct bench_sample *sample);
/* While b->upset makes the first tier unreachable. */
bool dibs__bench_side_gap(struct bench *b, uint32_t arg, struct bench_sample *sample);
bool dibs__bench_side_million(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_MILLION_DIBS, BENCH_MILLION_FLOOR };
/* The floor program's figures of the server: memory and keys.  With `hold`, also the memory of each of so many leases
 * of its own. */
bool dibs__bench_floor_weigh(struct bench *b, uint32_t hold, double *bytes, double *keys, struct bench_sample *sample);

/* ---- Threads that take turns until the time is over ---- */

struct bench_crew;
struct bench_member {
  struct bench_crew *crew;
  uint32_t number;
  bool failed;
  uint64_t turns;
  struct dibs__hist hist; /* ns */
  char name[64];
  char why[640];
};
struct bench_crew {
  uint32_t size;
  uint32_t pairs; /* that one turn counts for */
  /* Does one turn, and records its latency in member->hist.  false: member->why has the reason. */
  bool (*turn)(struct bench_member *member);
  void *what;
  bool one_name; /* all members want the same name: check exclusion and the order of fences */
  dibs__word go;
  atomic_bool stop;
  atomic_uint inside;
  _Atomic uint64_t fence;
};

/* ---- Processes ---- */

#define DIBS__BENCH_SELF "/proc/self/exe" /* this program, even if its file was replaced */
bool dibs__bench_spawn(struct bench *b, const char *program, char *const argv[], pid_t *pid);
/* The same with argv[0]; *out reads its standard output. */
bool dibs__bench_start(struct bench *b, char *const argv[], pid_t *pid, int *out);
/* `dibs bench helper FD N`: one of the processes that a side starts; not for people. */
int dibs__bench_helper(int argc, char **argv);

/* ---- Reports ---- */

void dibs__bench_print_head(const struct bench *b, FILE *out);
void dibs__bench_print(const struct bench_result *result, FILE *out);
void dibs__bench_json(const struct bench *b, const struct bench_result *results, size_t count, FILE *out);

/*
 * Shared memory of a side that measures several processes: a helper finds it under the descriptor with which it
 * starts.  A helper is a new process of the same program, because a store's handle does not survive a fork.  It
 * attaches, opens what it needs, reports ready, waits for `go`, works until `stop`, stores its results in its own slot
 * and ends with 0.
 */

enum bench_role { BENCH_ROLE_DIBS, BENCH_ROLE_FLOCK, BENCH_ROLE_HELD, BENCH_ROLE_WAITING, BENCH_ROLE_TASKS };

struct bench_child {
  pid_t pid; /* the parent's; 0 once it was waited for */
  uint64_t turns;
  uint64_t overtaken;     /* of these, while another process waited that had clearly requested earlier */
  uint64_t transactions;  /* of the store, for these turns */
  struct dibs__hist hist; /* ns: hand-offs, or waits beyond the fair turn */
  struct bench_sample sample;
  char why[640]; /* "" when all went well */
};

enum { BENCH_EFFECTS = 262144 };

struct bench_page {
  enum bench_role role;
  int64_t think_us, hold_us;
  uint32_t count;   /* helpers */
  bool beyond;      /* record waits beyond the fair turn, not hand-offs */
  bool waits;       /* record waits, and count who overtakes */
  uint32_t many;    /* leases to hold or to wait for */
  uint32_t names;   /* that the waiting ones share */
  uint32_t rounds;  /* of renewal to watch */
  int64_t ttl_ms;   /* of the held ones */
  uint32_t run;     /* names of this run of the bench: the parent's process id */
  char store[4096]; /* here and not in the arguments, which every user can read */
  char file[4096];  /* of flock */
  dibs__word ready, go, stop;
  /* Of the hand-off.  Written by the holder, read by the next. */
  _Atomic int64_t released_ns; /* when the last holder called release */
  _Atomic uint64_t fence;
  atomic_uint inside;
  _Atomic int64_t requested_ns[BENCH_PROCESSES_MANY]; /* since when each one waits; 0: it does not wait */
  /* Of tasks: how often the one with the number first + i was done. */
  char kind[64];
  uint64_t first;
  atomic_uchar effects[BENCH_EFFECTS];
  struct bench_child child[BENCH_PROCESSES_MANY];
};

struct bench_page *dibs__bench_page_new(struct bench *b, int *fd);
void dibs__bench_page_free(struct bench_page *page, int fd);
/* Starts `count` helpers and waits until they are ready.  false: none is left running. */
bool dibs__bench_children_start(struct bench *b, struct bench_page *page, int fd, uint32_t count);
/* Sets `go`. */
void dibs__bench_children_go(struct bench_page *page);
/* Sets `stop`, waits for all; false if one failed. */
bool dibs__bench_children_end(struct bench *b, struct bench_page *page, uint32_t count);

/* In the helper: `child` reports ready and sleeps until go. */
void dibs__bench_child_ready(struct bench_page *page);
bool dibs__bench_child_fail(struct bench_child *child, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dibs__bench_role_turns(struct bench_page *page, struct bench_child *child);
bool dibs__bench_role_held(struct bench_page *page, struct bench_child *child);
bool dibs__bench_role_waiting(struct bench_page *page, struct bench_child *child);
bool dibs__bench_role_tasks(struct bench_page *page, struct bench_child *child);

/* ---- bench.c ---- */
struct cli_call;
/* The command `dibs bench`.  Raw: call->rest[0] is "bench", without the globals. */
int dibs__bench_command(struct cli_call *call);

#endif
