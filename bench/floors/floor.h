/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BENCH_FLOORS_FLOOR_H
#define DIBS_BENCH_FLOORS_FLOOR_H
/*
 * What a careful C programmer gets from an engine without dibs: bookings on one hot row, and leases on a row.  One
 * program an engine; an engine's file holds its statements, all else is shared.
 *
 * A booking checks the limit of the counted row, counts one up, inserts a claim row (unique claim id, foreign key to
 * the counted row) and commits durably.
 */
#include "base/hist.h"
#include "base/port.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  FLOOR_BATCH_MOST = 4096, /* claims in one transaction: above any number of users that makes sense on one machine */
  FLOOR_WHY = 512
};

enum floor_answer {
  FLOOR_DONE = 1,
  FLOOR_FULL,     /* does not fit below the limit; nothing changed */
  FLOOR_CONFLICT, /* somebody else was faster; nothing changed, try again */
  FLOOR_DEADLOCK, /* the engine took this transaction back; try again */
  FLOOR_BROKEN    /* failed in another way: the engine's own words are in floor_link.why */
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
  FLOOR_ALONE,       /* each user books on a connection of its own */
  FLOOR_TOGETHER,    /* one writer books for all who wait */
  FLOOR_LEASE_OWN,   /* each user acquires and releases a name of its own */
  FLOOR_LEASE_SHARED /* all users try for one name until they have it, and release it at once */
};

struct floor_strategy {
  const char *name, *what;
  enum floor_kind kind;
  bool unsafe;       /* loses updates: the point of showing it */
  unsigned prepared; /* for the engine: a bit for each statement that a connection prepares */
  uint32_t pairs;    /* FLOOR_LEASE_OWN: so many pairs travel together; 0: each operation alone */
  enum floor_answer (*book)(struct floor_link *link, const struct floor_claim *claim); /* FLOOR_ALONE */
  /* FLOOR_TOGETHER: all of them or, when they do not fit together, FLOOR_FULL and none. */
  enum floor_answer (*book_all)(struct floor_link *link, const struct floor_claim *const claims[], size_t count);
};

/* What the tables say after a run. */
struct floor_audit {
  int64_t used, limit, claims, amount; /* amount: the sum of all claims */
  int64_t fences, held;                /* of the leases: the sum of fences, names with an owner */
};

/* What a server says of itself. */
struct floor_weight {
  int64_t bytes, keys, commands; /* memory used; keys there; commands served since it was started */
};

struct floor_engine {
  const char *name, *example;
  const char *variable; /* of the environment: the URI of a server for tests; NULL: a file of its own */
  const struct floor_strategy *strategies; /* up to one without a name */
  /* NULL: `why` tells, without a password.  strategy NULL: for setup and audit. */
  struct floor_link *(*open)(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]);
  void (*close)(struct floor_link *link);
  /* Drops and makes the tables anew, with one counted row (id 1) and `names` lease rows, 0 to names - 1. */
  bool (*setup)(struct floor_link *link, int64_t limit, int32_t names);
  bool (*audit)(struct floor_link *link, struct floor_audit *audit);
  bool (*room)(struct floor_link *link, int64_t *room); /* limit - used */
  enum floor_answer (*acquire)(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence);
  enum floor_answer (*release)(struct floor_link *link, int32_t name, int32_t owner);
  /* Where a strategy has pairs: acquires and releases `count` names from `name` on, in one trip. */
  enum floor_answer (*pairs)(struct floor_link *link, int32_t name, uint32_t count, int32_t owner);
  /* Both or none.  Acquires `count` names from `name` on for ten minutes, in one trip; tells what the server uses. */
  bool (*hold)(struct floor_link *link, int32_t name, uint32_t count, int32_t owner);
  bool (*weigh)(struct floor_link *link, struct floor_weight *weight);
  const char *(*version)(struct floor_link *link);
};

struct floor_run {
  const struct floor_engine *engine;
  const struct floor_strategy *strategy;
  const char *uri;
  uint32_t users;
  double seconds;
  int64_t limit;
};

struct floor_result {
  struct dibs__hist times; /* of what was done */
  uint64_t done, full, conflicts, deadlocks, errors;
  uint64_t batches; /* transactions of the writer */
  bool reached;     /* the engine could be connected to at all */
  bool shared;      /* two held one name at the same time */
  double seconds;
  double cpu_seconds; /* of this process, meanwhile */
  struct floor_audit audit;
  bool right;
  char version[64];
  char why[FLOOR_WHY]; /* the first error, or what is not right */
};

/* Sets up the tables, runs, and looks at the tables.  false: it could not, or some call failed; result->why tells. */
bool floor_run(const struct floor_run *run, struct floor_result *result);

/* ---- What leases weigh (hold.c) ---- */

/* Says as JSON what the server uses, and with `count` also what that many held leases add to it; exit status. */
int floor_hold(const struct floor_engine *engine, const char *uri, int32_t count);

/* ---- One writer for all (batch.c) ---- */

struct floor_batch;
struct floor_ask { /* one user's; alive until the writer has ended */
  struct floor_claim claim;
  struct floor_ask *next;     /* in the queue */
  struct floor_ask *wakes[2]; /* whom this user wakes when it wakes up itself */
  dibs__word answer;          /* 0: none yet */
};
struct floor_batch *floor_batch_start(const struct floor_run *run, struct floor_link *link); /* NULL: out of memory */
/* Blocks until the writer has answered. */
enum floor_answer floor_batch_book(struct floor_batch *batch, struct floor_ask *ask);
/* Waits for the writer's end and frees it. Nobody may be in floor_batch_book.  Number of transactions. */
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
