/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_BED_H
#define DIBS_TEST_FAULT_TIERS_BED_H
/*
 * The servers and processes of a run over tiers: Redis servers of its own, the anchor's server that it was given, and
 * workers, each with a proxy of its own before each server.
 */
#include "dibs.h"
#include "proxy.h"
#include "tiers_worker.h"

#include <sys/types.h>

enum { REDIS_COUNT = 2, TEXT = 512, NUMBERS = 65536, TIERS_POLL_MS = 20 };

/* The servers that a worker reaches through a proxy of its own. */
enum side { SIDE_REDIS, SIDE_ANCHOR, SIDES };

struct redis {
  char dir[96]; /* folder of script/servers; "": the server does not run */
  char admin[TEXT];
  uint16_t port;
};

struct worker {
  pid_t pid;
  struct proxied *proxied[SIDES]; /* NULL: this anchor has no proxy */
  char uri[1536];
};

struct run {
  char folder[64];      /* histories, and the servers of the run */
  char anchor[TEXT];    /* its URI without a proxy */
  char parameters[256]; /* "tiers.dwell=2000&..." */
  bool lone;            /* the anchor alone, no tiers */
  bool least;           /* each worker continues alone while all servers are unreachable */
  uint32_t odd;         /* one bit for each side on which worker 1 has a user of its own, "odd" */
  bool most_odd;        /* and so have all workers but the last */
  int64_t soon_ms;      /* the limit for a wait */
  int64_t phase_ms;     /* the duration of a phase of load */
  uint64_t chance;      /* for random scenes */
  uint32_t workers;     /* including killed ones */
  uint32_t gone;        /* one bit for each worker that was killed */
  struct tiers_job job; /* the options that they share */
  struct redis redis[REDIS_COUNT];
  struct worker at[TIERS_PARTIES]; /* from 1 on */
  struct history *mine;
  struct beliefs *notes; /* when the run failed */
  const struct history *seen[TIERS_PARTIES];
  struct watched {
    uint32_t from; /* the records that were read so far */
    uint64_t grants, saves;
    uint32_t epoch;                       /* of the latest grant */
    int64_t requested[TIERS_THREADS + 1]; /* by thread */
    int64_t granted_request;              /* when the latest granted request began, and when it was granted */
    int64_t granted_at;
  } watched[TIERS_PARTIES];
  bool written[TIERS_NAMES][NUMBERS]; /* acknowledged numbers of records */
  uint64_t twice;                     /* and those that were acknowledged twice */
  dibs_store *observer;               /* the tiered store without proxies */
  dibs__tick began;
  bool failed; /* an action of a scene failed */
};

/* Prints the reason to stdout and marks the run as failed. */
bool bed_fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the seconds since the run began and the current action to stdout. */
void bed_print(const struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- Servers ---- */

bool bed_redis_start(struct run *run, size_t nth);                  /* the first time */
bool bed_redis(struct run *run, size_t nth, const char *verb);      /* script/servers: kill, start, pause, resume */
bool bed_redis_cli(struct run *run, size_t nth, const char *words); /* runs redis-cli as administrator; the text is
                                                                     * shell words */
bool bed_anchor(struct run *run, const char *verb);                 /* of with.sh --private */
bool bed_anchor_sql(struct run *run, const char *sql);              /* as administrator */
bool bed_shell(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The tiered store without proxies; bed_end closes it.  NULL: the run has failed. */
dibs_store *bed_observer(struct run *run);

/* ---- Workers ---- */

bool bed_begin(struct run *run);
bool bed_spawn(struct run *run);
/* Sends a command to the proxy of worker `party` (0: of all workers). */
bool bed_proxy(struct run *run, enum side side, uint32_t party, const char *line);
int64_t bed_fired(struct run *run, enum side side); /* requests that its proxies have broken */
/* Directs new connections to the nth Redis; `cut`: and ends the existing ones. */
bool bed_aim(struct run *run, uint32_t party, size_t nth, bool cut);
/* Adds a record to the parent's history. */
void bed_note(struct run *run, enum what what, uint32_t party);
/* Stops worker `party` for `ms`. */
bool bed_stop(struct run *run, uint32_t party, int64_t ms);
/* Kills the worker and starts another one as the last; does nothing if too many have been started. */
bool bed_kill(struct run *run, uint32_t party);
/* Ends the workers cleanly; returns how many did not end with status 0. */
int bed_end_workers(struct run *run);
void bed_end(struct run *run, bool keep);

/* ---- Progress of the workers ---- */

uint64_t bed_grants(struct run *run, uint32_t party); /* so far; 0: of all workers */
uint64_t bed_saves(struct run *run, uint32_t party);
uint64_t bed_twice(struct run *run); /* acknowledged numbers that another worker had, too */
/* The epoch of the latest grant; for all workers, the highest of these. */
uint32_t bed_epoch(struct run *run, uint32_t party);
/* Waits until each live worker has another acknowledged increment. */
bool bed_all_add(struct run *run, int64_t within_ms);
/* Waits until a request that begins from now on is granted.  Returns the ms that this took; -1: it did not happen. */
int64_t bed_next_grant(struct run *run, int64_t within_ms);
bool bed_load(struct run *run);    /* a phase of load; false: the run has failed */
bool bed_granted(struct run *run); /* waits until a new request is granted within soon_ms, and prints how long it
                                    * took */
/* Waits until this worker (0: any) holds leases of a newer epoch than `epoch`. */
bool bed_newer(struct run *run, uint32_t party, uint32_t than);

#endif
