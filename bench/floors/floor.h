/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BENCH_FLOORS_FLOOR_H
#define DIBS_BENCH_FLOORS_FLOOR_H
/*
 * The results of a careful C programmer with an engine and without dibs: bookings on one hot row, and leases on a row.
 * One program for each engine; an engine's file has its statements, everything else is shared.
 *
 * A booking checks the limit of the counted row, increments the count, inserts a claim row (unique claim id, foreign
 * key to the counted row) and commits durably.
 */
#include "base/hist.h"
#include "base/port.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  FLOOR_TASKS_MOST = 1000, /* of one drain */
  FLOOR_BATCH_MOST = 4096, /* claims in one transaction: above any number of users that makes sense on one machine */
  FLOOR_WHY = 512
};

enum floor_answer {
  FLOOR_DONE = 1,
  FLOOR_FULL,     /* does not fit below the limit; nothing changed */
  FLOOR_CONFLICT, /* another user was faster; nothing changed, try again */
  FLOOR_DEADLOCK, /* the engine rolled this transaction back; try again */
  FLOOR_BROKEN    /* failed in another way: floor_link.why has the engine's message */
};

struct floor_claim {
  uint8_t id[16];
  int32_t owner;
};

/* An engine's connection begins with this. */
struct floor_link {
  char why[FLOOR_WHY];
};

enum floor_kind {
  FLOOR_ALONE,        /* each user books on a connection of its own */
  FLOOR_TOGETHER,     /* one writer books for all waiting users */
  FLOOR_LEASE_OWN,    /* each user acquires and releases a name of its own */
  FLOOR_LEASE_SHARED, /* all users try to acquire one name until they have it, and release it at once */
  FLOOR_TASKS         /* the users drain a queue, `pairs` tasks at a time: claimed, then deleted */
};

struct floor_strategy {
  const char *name, *what;
  enum floor_kind kind;
  bool unsafe;       /* loses updates: the strategy shows that */
  unsigned prepared; /* for the engine: a bit for each statement that a connection prepares */
  uint32_t pairs;    /* FLOOR_LEASE_OWN: this many pairs share a round trip; 0: each operation alone.  FLOOR_TASKS */
  enum floor_answer (*book)(struct floor_link *link, const struct floor_claim *claim); /* FLOOR_ALONE */
  /* FLOOR_TOGETHER: all of them, or FLOOR_FULL and none if they do not all fit. */
  enum floor_answer (*book_all)(struct floor_link *link, const struct floor_claim *const claims[], size_t count);
};

/* The content of the tables after a run. */
struct floor_audit {
  int64_t used, limit, claims, amount; /* amount: the sum of all claims */
  int64_t fences, held;                /* of the leases: the sum of fences, names with an owner */
};

/* The statistics of a server. */
struct floor_weight {
  int64_t bytes, keys, commands; /* memory used; keys there; commands served since it was started */
};

struct floor_engine {
  const char *name, *example;
  const char *variable; /* of the environment: the URI of a server for tests; NULL: a file of its own */
  const struct floor_strategy *strategies; /* up to one without a name */
  /* NULL: `why` has the reason, without a password.  strategy NULL: for setup and audit. */
  struct floor_link *(*open)(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]);
  void (*close)(struct floor_link *link);
  /* Drops and creates the tables, with one counted row (id 1) and `names` lease rows, 0 to names - 1. */
  bool (*setup)(struct floor_link *link, int64_t limit, int32_t names);
  bool (*audit)(struct floor_link *link, struct floor_audit *audit);
  bool (*capacity)(struct floor_link *link, int64_t *capacity); /* limit - used */
  enum floor_answer (*acquire)(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence);
  enum floor_answer (*release)(struct floor_link *link, int32_t name, int32_t owner);
  /* For strategies with pairs: acquires and releases `count` names from `name` on, in one round trip. */
  enum floor_answer (*pairs)(struct floor_link *link, int32_t name, uint32_t count, int32_t owner);
  /* For FLOOR_TASKS: creates a queue with so many tasks; claims and deletes `count` of them, FLOOR_FULL: there are
   * fewer (which are left claimed). */
  bool (*fill)(struct floor_link *link, int64_t tasks);
  enum floor_answer (*drain)(struct floor_link *link, uint32_t count);
  bool (*tasks)(struct floor_link *link, int64_t *left);
  /* An engine has both or none. Acquires `count` names from `name` on for ten minutes, in one round trip; reports the
   * memory of the server. */
  bool (*hold)(struct floor_link *link, int32_t name, uint32_t count, int32_t owner);
  bool (*weigh)(struct floor_link *link, struct floor_weight *weight);
  const char *(*version)(struct floor_link *link);
};
/* In the table of an engine: these functions have the same names in each engine's file. */
#define FLOOR_CALLS                                                                                                    \
  .open = link_open, .close = link_close, .setup = setup, .audit = audit, .acquire = acquire, .release = release,      \
  .version = version
/* Of engines with bookings and tasks. */
#define FLOOR_BOOKINGS .capacity = capacity, .fill = fill, .drain = drain, .tasks = count_tasks

struct floor_run {
  const struct floor_engine *engine;
  const struct floor_strategy *strategy;
  const char *uri;
  uint32_t users;
  double seconds;
  int64_t limit;
};

struct floor_result {
  struct dibs__hist times; /* of successful operations */
  uint64_t done, full, conflicts, deadlocks, errors;
  uint64_t batches; /* transactions of the writer */
  bool reached;     /* a connection to the engine succeeded */
  bool shared;      /* two held one name at the same time */
  double seconds;
  double cpu_seconds; /* of this process, meanwhile */
  struct floor_audit audit;
  bool right;
  char version[64];
  char why[FLOOR_WHY]; /* the first error, or the mistake in the tables */
};

/* Sets up the tables, runs, and checks the tables.  false: the setup or a call failed; result->why has the reason. */
bool floor_run(const struct floor_run *run, struct floor_result *result);

/* ---- The memory of leases (hold.c) ---- */

/* Prints as JSON the memory of the server, and with `count` also how much this many held leases add; returns the exit
 * status. */
int floor_hold(const struct floor_engine *engine, const char *uri, int32_t count);

/* ---- One writer for all (guard.c) ---- */

struct floor_batch;
struct floor_request { /* of one user; valid until the writer has ended */
  struct floor_claim claim;
  struct floor_request *next;     /* in the queue */
  struct floor_request *wakes[2]; /* the users that this user wakes when it wakes up */
  dibs__word answer;              /* 0: none yet */
};
struct floor_batch *floor_batch_start(const struct floor_run *run, struct floor_link *link); /* NULL: out of memory */
/* Blocks until the writer has answered. */
enum floor_answer floor_batch_book(struct floor_batch *batch, struct floor_request *request);
/* Waits for the writer's end and frees it. No thread may be in floor_batch_book. Returns the number of transactions. */
uint64_t floor_batch_stop(struct floor_batch *batch);

/* ---- For the engines ---- */

/* The parts of a URI scheme://user:password@host:port/path?key=value&..., decoded; "" when absent. */
struct floor_uri {
  char user[128], password[256], host[256], path[1024], query[1024];
  unsigned port;
};
bool floor_uri_cut(const char *text, struct floor_uri *uri);
/* The value of a parameter of uri->query into `to`; false when it has none. */
bool floor_uri_param(const struct floor_uri *uri, const char *key, char *to, size_t size);
/* 32 lower-case hex digits and a NUL. */
void floor_hex(const uint8_t id[16], char to[33]);

int floor_main(const struct floor_engine *engine, int argc, char **argv);

#endif
