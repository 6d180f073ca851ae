/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_BENCH_H
#define DIBS_CLI_BENCH_H
/*
 * `dibs bench lease`: what a lease costs, against the floor that the same machine sets in the same minute.
 *
 * A case has sides (dibs, and floors) and aims.  A round runs each side once, in order, so that all sides see the same
 * drift; an aim is judged by the median over the rounds of what is compared within each round.  A side opens what it
 * needs, warms it up, measures for `ms`, and closes it.
 */
#include "base/hist.h"
#include "base/port.h"
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { BENCH_ROUNDS_MAX = 100, BENCH_SIDES_MAX = 4, BENCH_AIMS_MAX = 4, BENCH_THREADS = 20 };
/* Processes of a side, and of one that has many. */
enum { BENCH_PROCESSES = 4, BENCH_PROCESSES_MANY = 20 };

/* What a side may measure; latencies in microseconds.  NAN: does not apply. */
enum bench_metric {
  BENCH_RATE, /* per second: pairs of acquire and release, turns, or calls */
  BENCH_P50,
  BENCH_P99,
  BENCH_P999,
  BENCH_MAX,
  BENCH_TX,     /* store transactions a grant */
  BENCH_TX_ALL, /* store transactions a round of renewing everything */
  BENCH_HEAP,   /* bytes of heap an item */
  BENCH_RSS,    /* bytes of anonymous memory an item */
  BENCH_THREADS_USED,
  BENCH_UNFAIR,    /* points by which the share of a process is off its fair share, at worst */
  BENCH_CPU,       /* microseconds of processor time of this side's client, each */
  BENCH_STORE,     /* bytes of the server's memory a lease */
  BENCH_KEYS,      /* keys that are left at the server after all was released */
  BENCH_OVERTAKEN, /* percent of grants that overtook somebody who had asked clearly before */
  BENCH_GAP,       /* milliseconds, the longest, in which nobody was granted anything */
  BENCH_OTHERS,    /* percent of all processors that others used meanwhile */
  BENCH_METRICS
};

struct bench_sample {
  double value[BENCH_METRICS];
};

/* How much to do; --smoke makes all of it tiny. */
struct bench_size {
  uint32_t rounds;
  int64_t ms;       /* of one side in one round */
  uint32_t many;    /* leases held and waiting in the memory case */
  int64_t ttl_ms;   /* of those held: they are renewed at a third of it */
  uint32_t million; /* leases held at once at a server, to weigh them there */
  uint32_t calls;   /* of a command in one round */
  double calm;      /* percent that others may use in a round, else it is run again; 0: any */
};

struct bench {
  const char *store; /* the URI that is measured */
  char shown[4096];  /* the same without a password */
  const char *floor; /* a program that measures the store's server without dibs; NULL: none */
  const char *upset; /* a command that does harm to the store; NULL: none */
  char folder[4000]; /* for the files of the floors: beside the store's own where it has any */
  struct bench_size size;
  char why[700]; /* what broke, for people */
};

struct bench_side {
  const char *name;
  /* false: b->why says what broke, and the whole bench ends. */
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
  double scale; /* what is shown and compared is the value times this */
  const char *unit;
};

/* Which stores a case is for, unless it is asked for by its name. */
enum bench_where {
  BENCH_IN_FILE,  /* no floor was given: one of this machine's own */
  BENCH_AT_SQL,   /* a server, against b->floor */
  BENCH_AT_REDIS, /* as above */
  BENCH_IN_TIERS, /* several stores behind one URI */
  BENCH_ASKED     /* none: it is large */
};

struct bench_case {
  const char *key;                          /* for --only */
  const char *title;                        /* what one turn is, and what the latencies are of */
  struct bench_side sides[BENCH_SIDES_MAX]; /* up to the first without a name */
  struct bench_aim aims[BENCH_AIMS_MAX];
  enum bench_where where;
  bool once; /* one round is enough: it counts things and does not race the clock */
};

/* All cases; the last has no key. */
extern const struct bench_case dibs__bench_cases[];

/* What came of a case: sample[side][round]. */
struct bench_result {
  const struct bench_case *test;
  uint32_t rounds;
  uint32_t noisy; /* rounds in which others used more than was let pass */
  struct bench_sample sample[BENCH_SIDES_MAX][BENCH_ROUNDS_MAX];
};

/* Median, lowest and highest over the rounds; all NAN when nothing was measured. */
struct bench_range {
  double median, low, high;
};
struct bench_range dibs__bench_range_of(const struct bench_result *result, size_t side, enum bench_metric metric);
struct bench_range dibs__bench_judge(const struct bench_result *result, const struct bench_aim *aim, bool *met);

/* ---- For sides ---- */

void dibs__bench_sample_clear(struct bench_sample *sample);
void dibs__bench_sample_hist(struct bench_sample *sample, const struct dibs__hist *hist);
/* Keeps the text, and returns false. */
bool dibs__bench_fail(struct bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dibs__bench_open(struct bench *b, uint32_t flags, dibs_store **store);
/* The first store of several behind one URI, without those that stand behind it. */
bool dibs__bench_open_first(struct bench *b, uint32_t flags, dibs_store **store);
/* The length of the first of several URIs with commas between; that of all of it when there is one alone. */
size_t dibs__bench_first(const char *uri);
/* The embedded store in `file` of the bench's folder.  false: too long. */
bool dibs__bench_file_uri(const struct bench *b, const char *file, char *uri, size_t size);
dibs_stats dibs__bench_stats(dibs_store *store);
/* Store transactions a grant since `before`. */
void dibs__bench_sample_stats(struct bench_sample *sample, const dibs_stats *before, dibs_store *store);
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
/* Gives the sample its BENCH_OTHERS. */
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
bool dibs__bench_side_command(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_COMMAND_DIBS, BENCH_COMMAND_FLOCK };

bool dibs__bench_side_floor(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_FLOOR_OWN, BENCH_FLOOR_SHARED, BENCH_FLOOR_ONE, BENCH_FLOOR_16, BENCH_FLOOR_64 };
/* While b->upset does harm. */
bool dibs__bench_side_gap(struct bench *b, uint32_t arg, struct bench_sample *sample);
bool dibs__bench_side_million(struct bench *b, uint32_t arg, struct bench_sample *sample);
enum { BENCH_MILLION_DIBS, BENCH_MILLION_FLOOR };
/* What the floor's program says about the server: memory and keys.  With `hold`, also what so many of its own leases
 * add, a lease. */
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
  /* One turn: does it, and records its latency in member->hist.  false: member->why says what broke. */
  bool (*turn)(struct bench_member *member);
  void *what;
  bool one_name; /* all members want the same: check exclusion and the order of fences */
  dibs__word go;
  atomic_bool stop;
  atomic_uint inside;
  _Atomic uint64_t fence;
};
bool dibs__bench_crew_run(struct bench *b, struct bench_crew *crew, struct bench_sample *sample);

/* ---- Processes ---- */

#define DIBS__BENCH_SELF "/proc/self/exe" /* this program, whatever became of its file */
bool dibs__bench_spawn(struct bench *b, const char *program, char *const argv[], pid_t *pid);
/* `dibs bench helper FD N`: one of the processes that a side starts; not for people. */
int dibs__bench_helper(int argc, char **argv);

/* ---- What people and machines read ---- */

void dibs__bench_print_head(const struct bench *b, FILE *out);
void dibs__bench_print(const struct bench_result *result, FILE *out);
void dibs__bench_json(const struct bench *b, const struct bench_result *results, size_t count, FILE *out);

#endif
