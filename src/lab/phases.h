/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_PHASES_H
#define DIBS_LAB_PHASES_H
/*
 * What the lab shares with the nodes of the experiment `phases`, and the rows in each engine.
 *
 *   phases.c          the lab's side
 *   phases_node.c     a node
 *   phases_sql.c      rows and effects as two tables
 *   phases_mongodb.c  rows as documents: a module, dibs-lab-mongodb.so, over libmongoc
 *
 * A row has its id, phase, state (the next step), certificate (an instant), and the columns of a claim: fence,
 * locked_at, updated_at.  An effect is what a step leaves: (row, step, node, late).  `late` is the lab's measure: the
 * writes of nodes whose claim was over.
 */
#include "lab/lab.h"
#include "store/module.h"

enum {
  PHASES_NODES = 4,
  PHASES_KILLED = 0,  /* this node is killed, */
  PHASES_STOPPED = 1, /* and this one is stopped past its timeout; the others begin after that */
  PHASES_ROWS = 12,
  PHASES_STEPS = 5,
  PHASES_CREATED = 2, /* steps of a creation; the others are of a deletion */
  PHASES_CERTIFICATE_MS = 500
};

enum phases_method { PHASES_POLLED, PHASES_COMPARED, PHASES_DIBS, PHASES_METHODS };

struct phases_slot {
  /* The node's. */
  dibs__word held;        /* it is in the middle of a step and waits to be killed or stopped */
  _Atomic bool late_over; /* what it wrote after it had been stopped has been answered */
  uint32_t row, step;     /* of `held` */
  _Atomic uint32_t effects, waits, refused;
  /* The lab's. */
  dibs__word release;
};

struct phases_page {
  /* Immutable once nodes run. */
  enum phases_method method;
  int64_t timeout_ms;
  bool mongodb; /* the rows are documents there */
  char rows[LAB_TABLE_MAX], effects[LAB_TABLE_MAX];
  /* Any node's. */
  dibs__word ready;
  _Atomic uint32_t troubled; /* 1: a node writes `why`; 2: it has */
  char why[LAB_WHY_MAX];
  _Atomic int64_t continued_ns; /* the first claim of killed_row after the kill; 0: none */
  struct phases_slot slot[PHASES_NODES];
  /* The lab's. */
  dibs__word begin, join;      /* the first two nodes may begin; the others, too */
  _Atomic uint32_t killed_row; /* 0: none */
};

/* The nth row from 1 on is a gateway if n is odd, else a domain. */
static inline void dibs__phases_id(char id[LAB_KEY_MAX], uint32_t nth) {
  snprintf(id, LAB_KEY_MAX, "%s-%02u", nth % 2 ? "gateway" : "domain", nth);
}
extern const char *const dibs__phases_steps[PHASES_STEPS];

/* ---- The rows ---- */

struct dibs__uri;
struct phases_row {
  char id[LAB_KEY_MAX], phase[24];
  int64_t state, certificate;
  int64_t mine; /* what a guard compares: with dibs the fence, by hand locked_at */
};
struct phases_counted {
  int64_t done;                    /* rows that are deleted, with all of their steps */
  int64_t effects, distinct, late; /* late: of effects and of rows */
};

/* A connection to the rows.  One thread at a time. */
struct phases_db {
  const struct phases_engine *engine;
  /* Immutable once it is open. */
  const char *uri, *rows, *effects; /* where they are: names of tables */
  enum phases_method method;
  uint32_t node;
  int64_t timeout_ms;
  const struct dibs__uri *parsed; /* the URI, while it opens */
  void *own;                      /* the engine's; NULL: not open */
  char why[LAB_WHY_MAX];          /* of the last operation that had a trouble */
};

/*
 * What the experiment does in an engine.  OK is success; answers that are no trouble are named; every other status is a
 * trouble, and db->why has its reason.  An operation that met another one, and did nothing, is repeated for a while.
 * A guard is the fence of a claim of dibs, or locked_at by hand; PHASES_POLLED has none.
 */
struct phases_engine {
  struct dibs__module_head head; /* of a module */
  const char *title[PHASES_METHODS], *text[PHASES_METHODS];
  const char *note;
  const char *id, *fence, *phase, *locked_at, *updated_at; /* columns, for dibs_table_declare */
  dibs_status (*open)(struct phases_db *db);
  void (*close)(struct phases_db *db); /* accepts a connection that is not open */

  /* The lab's. */
  dibs_status (*make)(struct phases_db *db); /* new rows; the old ones are dropped */
  dibs_status (*drop)(struct phases_db *db);
  dibs_status (*version)(struct phases_db *db, char *to, size_t size);
  dibs_status (*request_deletions)(struct phases_db *db); /* as the user does: what is ready is to be deleted */
  dibs_status (*probe)(struct phases_db *db); /* HELD: the stopped process locks all rows.  NULL: none can */
  dibs_status (*count_step)(struct phases_db *db, const char *id, uint32_t step, int64_t *to); /* its effects */
  dibs_status (*count_ended)(struct phases_db *db, int64_t *to); /* rows that are deleted and free */
  dibs_status (*count)(struct phases_db *db, struct phases_counted *to);

  /* A node's. */
  dibs_status (*claim)(struct phases_db *db, struct phases_row *row);        /* by hand.  NOT_FOUND: none is free */
  dibs_status (*read)(struct phases_db *db, struct phases_row *row);         /* state and certificate of row->id */
  dibs_status (*effect)(struct phases_db *db, const struct phases_row *row); /* by hand, of the step row->state */
  /* By hand: writes the row as it is after a step, in this phase and free.  STALE: the guard refused it. */
  dibs_status (*write)(struct phases_db *db, const struct phases_row *row, const char *phase);
  /* With dibs: the effect of the step row->state and the row as it is after it, both or nothing.  STALE: the guard
   * refused both. */
  dibs_status (*commit)(struct phases_db *db, const struct phases_row *row, const struct phases_row *next);
};
extern const struct phases_engine dibs__phases_sql;
/* Loads the module.  NULL: `why`. */
const struct phases_engine *dibs__phases_mongodb(char *why, size_t size);
/* Opens db->uri by db->engine. */
dibs_status dibs__phases_open(struct phases_db *db);

enum { PHASES_MODULE_ABI = 1 };

#endif
