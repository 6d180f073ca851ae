/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_BED_H
#define DIBS_TEST_FAULT_TIERS_BED_H
/*
 * What a run over tiers stands on: Redis servers of its own, the anchor's server that it was given, and workers, each
 * with a proxy of its own before each of them.
 */
#include "dibs.h"
#include "proxy.h"
#include "tiers_worker.h"

#include <sys/types.h>

enum { REDIS_COUNT = 2, TEXT = 512, NUMBERS = 65536, TIERS_POLL_MS = 20 };

/* Where a worker's connections go through a proxy of its own. */
enum side { SIDE_REDIS, SIDE_ANCHOR, SIDES };

struct redis {
  char dir[96]; /* of script/servers; "": it does not run */
  char admin[TEXT];
  uint16_t port;
};

struct worker {
  pid_t pid;
  struct proxied *proxied[SIDES]; /* NULL: there is none before this anchor */
  char uri[1536];
};

struct run {
  char folder[64];      /* histories, and the servers of the run */
  char anchor[TEXT];    /* its URI, straight */
  char parameters[256]; /* "tiers.dwell=2000&..." */
  bool lone;            /* the anchor alone, no tiers */
  bool least;           /* each goes on alone when all is away */
  uint32_t odd;         /* bit a side: there worker 1 is a user of its own, "odd" */
  bool most_odd;        /* so are all but the last */
  int64_t soon_ms;      /* until what must come has come */
  int64_t phase_ms;     /* a time of load */
  uint64_t chance;      /* of scenes that draw */
  uint32_t workers;     /* those that were killed, too */
  uint32_t gone;        /* bit a worker: it was killed */
  struct tiers_job job; /* what they have in common */
  struct redis redis[REDIS_COUNT];
  struct worker at[TIERS_PARTIES]; /* from 1 on */
  struct history *mine;
  const struct history *seen[TIERS_PARTIES];
  struct watched {
    uint32_t from; /* what was looked at so far */
    uint64_t grants, saves;
    uint32_t epoch;                   /* of the latest grant */
    int64_t asked[TIERS_THREADS + 1]; /* by thread */
    int64_t granted_ask;              /* when the latest one that was granted was asked, and granted */
    int64_t granted_at;
  } watched[TIERS_PARTIES];
  bool written[TIERS_NAMES][NUMBERS]; /* numbers of records that were acknowledged */
  uint64_t twice;                     /* and those that were so twice */
  dibs_store *observer;               /* the tiered store, straight */
  dibs__tick began;
  bool failed; /* something that a scene wanted could not be done */
};

/* Says why on stdout, and that the run has failed. */
bool bed_fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Seconds since the run began, and what is done, on stdout. */
void bed_tell(const struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- Servers ---- */

bool bed_redis_start(struct run *run, size_t nth);                  /* the first time */
bool bed_redis(struct run *run, size_t nth, const char *verb);      /* script/servers: kill, start, pause, resume */
bool bed_redis_say(struct run *run, size_t nth, const char *words); /* redis-cli, as administrator; words of a shell */
bool bed_anchor(struct run *run, const char *verb);                 /* of with.sh --private */
bool bed_anchor_say(struct run *run, const char *sql);              /* as administrator */
bool bed_shell(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The tiered store, straight; closed by bed_end.  NULL: the run has failed. */
dibs_store *bed_observer(struct run *run);

/* ---- Workers ---- */

bool bed_begin(struct run *run);
bool bed_spawn(struct run *run);
/* Tells the proxy of worker `party` (0: of all). */
bool bed_proxy(struct run *run, enum side side, uint32_t party, const char *line);
int64_t bed_fired(struct run *run, enum side side); /* requests that its proxies have broken */
/* To the nth Redis go new connections; `cut`: and those that there are end. */
bool bed_aim(struct run *run, uint32_t party, size_t nth, bool cut);
/* In the parent's history. */
void bed_note(struct run *run, enum what what, uint32_t party);
/* Stops worker `party` for `ms`. */
bool bed_stop(struct run *run, uint32_t party, int64_t ms);
/* Kills it, and starts another, which is the last then.  Not when there have been too many. */
bool bed_kill(struct run *run, uint32_t party);
/* Ends them in order; how many did not end as they should. */
int bed_see_off(struct run *run);
void bed_end(struct run *run, bool keep);

/* ---- What they do meanwhile ---- */

uint64_t bed_grants(struct run *run, uint32_t party); /* so far; 0: of all */
uint64_t bed_saves(struct run *run, uint32_t party);
uint64_t bed_twice(struct run *run); /* acknowledged numbers that another one had */
/* Of the latest grant; of all, the highest of these. */
uint32_t bed_epoch(struct run *run, uint32_t party);
/* Until each worker that was not killed has had another acknowledged increment. */
bool bed_all_add(struct run *run, int64_t within_ms);
/* Until somebody is granted something that was asked for from now on; ms that took, -1: it did not come. */
int64_t bed_next_grant(struct run *run, int64_t within_ms);
bool bed_load(struct run *run);    /* a time of load; false: the run has failed */
bool bed_granted(struct run *run); /* somebody asks and is granted something; within soon_ms, and tells it */
/* Until leases of a newer epoch than that are had, by this worker (0: by any). */
bool bed_newer(struct run *run, uint32_t party, uint32_t than);

#endif
