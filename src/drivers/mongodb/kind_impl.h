/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MONGODB_KIND_IMPL_H
#define DIBS_DRIVERS_MONGODB_KIND_IMPL_H
/*
 * Dibs' own tasks: the document of a kind and its commits (kind.c), documents of tasks (row.c), the verbs (own.c), and
 * what people read and change (page.c).
 *
 * A commit of a kind is one replacement of the kind's document, which has the new states of all tasks that the commit
 * changes.  See the head of kind.c.
 */
#include "drivers/memory/task_impl.h"
#include "drivers/mongodb/batch_impl.h"

/* A commit takes place at most so long after the clock was read, and the fences of its claims are above that (R61). */
enum { DIBS__MONGO_GUARD_MS = 5000 };

/* Of an ADD: documents of tasks that no commit has made tasks yet.  They are kept from one try to the next. */
struct dibs__mongo_drafts {
  uint64_t first; /* of the numbers that it has; 0: none yet */
  uint32_t count;
  int64_t version;
  uint64_t *nrs; /* the number of each item as it was written; 0: it has none; NULL: nothing was written */
};

struct dibs__mongo_loaded {
  uint64_t nr;
  int64_t version; /* of its document */
  bson_t *was;     /* its state when it was read; NULL: a draft that belongs to nobody */
  bool ready;      /* it was ready then */
  uint32_t errors; /* that it has in the scratch memory */
};

/* One try to decide and to commit something of one kind. */
struct dibs__mongo_try {
  struct dibs__mongo_batch *b;
  dibs__str name;
  int64_t now, sure; /* the server's clock: not after, not before */
  uint32_t moves;    /* the link's, when the kind's document was read */
  bson_t *head;      /* the kind's document; NULL: there is none */
  int64_t version;
  bool has_settings; /* as it was read; `kind` always has some, so that the memory driver keeps it */
  int64_t next;      /* no task waits or is claimed until before this instant; INT64_MAX: none is at all */
  struct dibs__mem_tasks *tasks;
  struct dibs__mem_kind *kind;
  struct dibs__mongo_loaded *rows;
  size_t count, capacity;
  dibs__status status; /* of reading rows */
  /* What the commit needs: */
  bool sets;                  /* the settings may be others */
  bool again;                 /* after this commit the verb goes on with another */
  struct dibs__task_op *adds; /* an ADD, whose token is written */
  struct dibs__mongo_drafts *drafts;
};

/* ---- kind.c ---- */

/* Loads what the verb needs, and decides.  It may be called several times, each time with a new try. */
typedef dibs__status dibs__mongo_decide(struct dibs__mongo_try *t, void *user);
/* Decides and commits until no other client came in between.  UNAVAILABLE: nothing is committed. */
dibs__status dibs__mongo_kind_run(struct dibs__mongo_batch *b, dibs__str kind, dibs__mongo_decide *decide, void *user);
/* Writes the drafts of new tasks; removes those that were not needed. */
dibs__status dibs__mongo_drafts_number(struct dibs__mongo_try *t);
void dibs__mongo_drafts_remove(struct dibs__mongo_batch *b, struct dibs__mongo_drafts *drafts);

/* ---- row.c ---- */

/* Which documents of tasks are read, and how. */
struct dibs__mongo_pick {
  bson_t *filter;            /* destroyed */
  const char *const *sort;   /* fields, until NULL; of numbers that grow.  NULL: by _id */
  int64_t most;              /* 0: all */
  bool payloads, all_errors; /* of errors only the latest one is read otherwise */
};
/* Into the scratch memory.  Those that are there already are left out; drafts too. */
dibs__status dibs__mongo_rows_load(struct dibs__mongo_try *t, struct dibs__mongo_pick pick);
/* Calls `row` for each. */
dibs__status dibs__mongo_rows_read(struct dibs__mongo_batch *b, struct dibs__mongo_pick pick, dibs__mongo_row *row,
                                   void *user);
/* Adds one document to the scratch memory, as of this kind.  NULL: t->status says why, or it is a draft. */
struct dibs__mem_task *dibs__mongo_row_decode(struct dibs__mongo_try *t, struct dibs__mem_kind *kind,
                                              const bson_t *from);
bool dibs__mongo_row_put_state(bson_t *to, const struct dibs__mem_task *t);
bool dibs__mongo_row_put_draft(bson_t *to, const struct dibs__mem_task *t, int64_t version);
/* {kind: NAME, ...}; a NULL kind: no such member. */
bson_t *dibs__mongo_rows_of(dibs__str kind);
void dibs__mongo_put_states(bson_t *filter, uint32_t states);
void dibs__mongo_put_nrs(bson_t *filter, const char *operator, const uint64_t * nrs, size_t count);
void dibs__mongo_put_compare(bson_t *filter, const char *field, const char *operator, int64_t value);
void dibs__mongo_put_texts(bson_t *filter, const char *field, const dibs__str *texts, size_t count);

/* ---- own.c, page.c ---- */

dibs__status dibs__mongo_task_list(struct dibs__mongo_batch *b, struct dibs__task_op *op);
dibs__status dibs__mongo_task_count(struct dibs__mongo_batch *b, struct dibs__task_op *op);
dibs__status dibs__mongo_task_change(struct dibs__mongo_batch *b, struct dibs__task_op *op);
/* The kinds of these tasks but `known`, each once: calls `each` with the positions of those that it has.  0: no task.
 */
typedef dibs__status dibs__mongo_of_kind(void *user, dibs__str kind, const uint32_t *which, uint32_t count);
dibs__status dibs__mongo_by_kind(struct dibs__mongo_batch *b, const uint64_t *nrs, uint32_t count, dibs__str known,
                                 dibs__mongo_of_kind *each, void *user);
/* The next one of a serial text, of those that are blocked and not loaded yet. */
dibs__status dibs__mongo_load_next(struct dibs__mongo_try *t, dibs__str serial);

#endif
