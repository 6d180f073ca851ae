/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MEMORY_MEMORY_IMPL_H
#define DIBS_DRIVERS_MEMORY_MEMORY_IMPL_H
/*
 * What the files of the memory driver share.  One lock guards a whole memory; every function here expects it to be
 * held, except where its comment differs.  `now` is the instant of the store's clock at which the batch happens.
 */
#include "base/map.h"
#include "drivers/memory/memory.h"

enum {
  DIBS__MEM_BREAKS = 16,    /* recorded breaks kept a name: enough to see repeated ones */
  DIBS__MEM_EVENTS = 1024,  /* events kept an open: beyond that "check everything" costs less than the list */
  DIBS__MEM_BATCH = 1024,   /* operations a batch */
  DIBS__MEM_SESSIONS = 1024 /* sessions an open; they cost nothing */
};
/* How long a name without holders and waiters is kept for its recorded breaks. */
#define DIBS__MEM_BREAK_KEEP_MS (INT64_C(7) * 86400000)

/* The state of an id with a name. */
enum dibs__mem_state {
  DIBS__MEM_HOLDS,
  DIBS__MEM_BREAKING, /* holds until released or expired, but can't renew */
  DIBS__MEM_OFFERED,  /* counts as a holder */
  DIBS__MEM_WAITING,
  DIBS__MEM_ASLEEP /* did not confirm: keeps its ticket, and is skipped until it requests again */
};

/* One id that holds a name, has an offer of it, or waits for it. */
struct dibs__mem_claim {
  struct dibs__map_node link; /* of memory.claims; first, so that a link is a claim */
  struct dibs__mem_claim *before, *after;
  struct dibs__mem_name *name;
  dibs__id id;
  enum dibs__mem_state state;
  uint32_t mode, slots, slot, ttl_ms;
  uint64_t session, ticket;
  dibs__fence granted;            /* the first fence of the grant */
  dibs__fence first;              /* of the current block */
  uint32_t block;                 /* 0: shared, counted */
  int64_t until;                  /* of a holder or an offer */
  int64_t since, requested_since; /* granted; first asked */
  uint32_t owner_len;
  char owner[];
};

struct dibs__mem_row {
  struct dibs__mem_claim *first, *last;
  uint32_t count;
};

struct dibs__mem_break {
  int64_t at;
  dibs__fence fence;
  uint32_t mode, owner_len;
  char owner[DIBS__BREAK_OWNER_MAX];
};

struct dibs__mem_name {
  struct dibs__map_node link; /* of memory.names; first */
  struct dibs__mem_row holders, offered, waiting, asleep;
  int64_t soonest; /* no holder or offer expires before; exactly then if `exact` */
  bool exact;
  uint32_t break_count; /* the next is at break_count % DIBS__MEM_BREAKS */
  struct dibs__mem_break *breaks;
  uint32_t len;
  char text[];
};

struct dibs__mem_record {
  struct dibs__map_node link; /* of memory.records; first */
  dibs__fence fence;
  uint64_t digest, version;
  char *data;
  uint32_t data_len, key_len;
  char key[];
};

/* A once key: the latest attempt, and its answer if `data` is not NULL. */
struct dibs__mem_once {
  struct dibs__map_node link; /* of memory.onces; first */
  dibs__fence fence;
  uint64_t owner; /* a digest; 0: no attempt runs */
  int64_t made, until;
  char *data;
  uint32_t data_len, key_len;
  char key[];
};

struct dibs__mem_stock {
  struct dibs__map_node link; /* of memory.stocks; first */
  int64_t used, limit;
  dibs__fence fence;
  uint64_t owner; /* a digest */
  uint32_t len;
  char key[];
};

/* A claim on a stock, from its take until some time after it is given back. */
struct dibs__mem_taken {
  struct dibs__map_node link; /* of memory.taken; first */
  const struct dibs__mem_stock *stock;
  int64_t amount, at;
  uint64_t nth; /* in the order in which they were added */
  bool given;
  /* Of a scratch memory, for its owner: the claim is kept elsewhere, where it was given back. */
  bool elsewhere, was_given;
  uint32_t len;
  char claim[];
};
#define DIBS__MEM_TAKEN_KEEP_MS (INT64_C(30) * 86400000) /* R54 */

/* A bucket of tokens. */
struct dibs__mem_rate {
  struct dibs__map_node link; /* of memory.rates; first */
  int64_t full_ns;            /* when it would be full again */
  uint32_t len;
  char key[];
};

/* The mandates under which a bucket grants (R35); a mandate of another incarnation is VOID; LEFT: it moves to another
 * tier (R46). */
enum dibs__mem_served { DIBS__MEM_OWN, DIBS__MEM_SERVED, DIBS__MEM_VOID, DIBS__MEM_LEFT };

struct dibs__mem_bucket {
  dibs__mandate mandate; /* its incarnation is always the memory's current one */
  uint32_t seq;          /* the last drawn */
  enum dibs__mem_served served;
};

struct dibs__mem_report {
  struct dibs__map_node link; /* of memory.reports; first */
  dibs__id id;
  int64_t seen;
  uint32_t len;
  char data[DIBS__REPORT_MAX];
};

/* One open: a session store-wide.  Guarded by the memory's lock, except for the notifier. */
struct dibs__mem_open {
  struct dibs__dstore base;
  struct dibs__memory *memory;
  struct dibs__mem_open *next;
  uint64_t session;
  bool as_tier, as_anchor; /* immutable after open */
  bool dead;               /* killed by a test */
  dibs__word notifier;
  bool woken, overflow;
  uint32_t head, count; /* of the ring buffer */
  struct dibs__event notice[DIBS__MEM_EVENTS];
};

/* A memory that another driver fills with the state of a few names for one batch, to have it decided here
 * (dibs__mem_scratch_new).  That driver knows the sessions, and draws the fences. */
struct dibs__mem_hooks {
  bool (*alive)(void *user, uint64_t session);
  void (*post)(void *user, uint64_t session, const struct dibs__event *event);
  /* Fences for the name that is decided at the moment: at most `want`, at least one.  false: none is left. */
  bool (*draw)(void *user, uint32_t want, dibs__fence *first, uint32_t *block);
  void *user;
};

/* The state that all opens of one name share. */
struct dibs__memory {
  const struct dibs__mem_hooks *hooks; /* NULL, but of a scratch memory */
  struct dibs__memory *next;           /* of the named ones; guarded by their own lock */
  char *called;                        /* NULL: private */
  dibs__mutex lock;
  int64_t origin; /* of the store's clock, less the tick's */
  uint64_t last_session, last_ticket;
  struct dibs__mem_open *opens;
  struct dibs__mem_bucket buckets[DIBS__BUCKETS];
  struct dibs__map names, claims, records;
  struct dibs__map onces;
  size_t onces_swept;             /* how many were left by the latest search for expired ones */
  struct dibs__map stocks, taken; /* taken: by claim */
  size_t taken_swept;             /* as onces_swept */
  uint64_t taken_last;            /* nth of the claim that was added last */
  struct dibs__map reports;
  struct dibs__map runs;
  struct dibs__map rates;
  size_t rates_swept;
  struct dibs__map counters, sources; /* sources: the ledger of counters */
  size_t sources_swept;               /* as onces_swept */
  int64_t run_keep_ms;                /* the setting of the store; -1: the default */
  int64_t run_wall_ms;                /* ms since 1970, less the store's clock */
  struct dibs__mem_tasks *tasks;
  bool hush; /* a group is being tried: events wait for its end, see held_events */
  struct dibs__mem_hushed {
    uint64_t session;
    struct dibs__event event;
  } held_events[64];
  uint32_t held_count;
};

static inline struct dibs__mem_open *dibs__mem_open_of(struct dibs__dstore *store) {
  return (struct dibs__mem_open *)store;
}

/* Begins the next epoch of a bucket, and its sequence from the start.  false: none is left.  A bucket that is served
 * begins none. */
bool dibs__mem_next_epoch(struct dibs__mem_bucket *bucket);
/* All nodes of a map, in no order: NULL begins, NULL ends.  A node may be removed once the next one is known. */
struct dibs__map_node *dibs__mem_next(const struct dibs__map *map, const struct dibs__map_node *node);

/* memory.c */
bool dibs__mem_alive(const struct dibs__memory *memory, uint64_t session);
void dibs__mem_post(struct dibs__memory *memory, uint64_t session, enum dibs__event_what what, dibs__id id);
/* Takes the lock itself.  `now` -1: the memory's own clock. */
dibs__status dibs__mem_list_at(struct dibs__memory *memory, const struct dibs__list *list, int64_t now,
                               struct dibs__result *result);
void dibs__mem_post_event(struct dibs__memory *memory, uint64_t session, const struct dibs__event *event);

/* memory.c: an empty memory with hooks; NULL: no memory.  Only the caller's thread uses it. */
struct dibs__memory *dibs__mem_scratch_new(const struct dibs__mem_hooks *hooks);
void dibs__mem_scratch_empty(struct dibs__memory *memory); /* removes all names, records, once keys, ... */
void dibs__mem_scratch_free(struct dibs__memory *memory);  /* accepts NULL */

/* lease.c: holders and waiters */
struct dibs__mem_name *dibs__mem_name_get(struct dibs__memory *memory, dibs__str text); /* NULL: no memory */
struct dibs__mem_name *dibs__mem_name_find(const struct dibs__memory *memory, dibs__str text);
void dibs__mem_name_drop_if_idle(struct dibs__memory *memory, struct dibs__mem_name *name);
void dibs__mem_claim_remove(struct dibs__memory *memory, struct dibs__mem_claim *claim);
void dibs__mem_claim_link(struct dibs__memory *memory, struct dibs__mem_claim *claim);
/* Applies what time has done to it, then pass_on. */
void dibs__mem_settle(struct dibs__memory *memory, struct dibs__mem_name *name, int64_t now);
/* Removes waiters and offers of `session`, or of every session that is gone (0); if there were any, settles and passes
 * on. */
void dibs__mem_sweep_name(struct dibs__memory *memory, struct dibs__mem_name *name, uint64_t session, int64_t now);

/* lease.c, guarded.c: one operation; status and answers are set */
void dibs__mem_lease(struct dibs__memory *memory, const struct dibs__mem_open *from, struct dibs__lease_op *op,
                     int64_t now);
void dibs__mem_record(struct dibs__memory *memory, struct dibs__record_op *op);
void dibs__mem_record_remove(struct dibs__memory *memory, struct dibs__mem_record *record);

/* guarded.c: a row; `get` adds it if it is missing, NULL: no memory */
struct dibs__mem_record *dibs__mem_record_find(const struct dibs__memory *memory, dibs__str key);
struct dibs__mem_record *dibs__mem_record_get(struct dibs__memory *memory, dibs__str key);
struct dibs__mem_once *dibs__mem_once_find(const struct dibs__memory *memory, dibs__str key);
struct dibs__mem_once *dibs__mem_once_get(struct dibs__memory *memory, dibs__str key);

/* guarded.c */
void dibs__mem_once(struct dibs__memory *memory, struct dibs__once_op *op, int64_t now);
/* Deletes those that expire before, or then. */
void dibs__mem_onces_forget(struct dibs__memory *memory, int64_t before);

/* guarded.c */
void dibs__mem_report(struct dibs__memory *memory, struct dibs__report_op *op, int64_t now);
/* Deletes those that are older. */
void dibs__mem_reports_forget(struct dibs__memory *memory, int64_t now, int64_t keep_ms);

/* run_rows.c */
struct dibs__run_op;
void dibs__mem_run(struct dibs__memory *memory, struct dibs__run_op *op, int64_t now);
/* Deletes those whose time is over before, or then. */
void dibs__mem_runs_forget(struct dibs__memory *memory, int64_t before);

/* counter_rows.c */
struct dibs__counter_op;
void dibs__mem_counter(struct dibs__memory *memory, struct dibs__counter_op *op, int64_t now);
struct dibs__mem_rate *dibs__mem_rate_find(const struct dibs__memory *memory, dibs__str key);
/* Adds it if it is missing; NULL: no memory. */
struct dibs__mem_rate *dibs__mem_rate_keep(struct dibs__memory *memory, dibs__str key, int64_t now);
/* Deletes rows of the ledger whose time is over before, or then. */
void dibs__mem_rates_forget(struct dibs__memory *memory, int64_t before); /* buckets that are full by then */
void dibs__mem_sources_forget(struct dibs__memory *memory, int64_t before);
void dibs__mem_counters_forget(struct dibs__memory *memory); /* all of them, and the ledger */

/* guarded.c */
void dibs__mem_stock(struct dibs__memory *memory, struct dibs__stock_op *op, int64_t now);
struct dibs__mem_stock *dibs__mem_stock_find(const struct dibs__memory *memory, dibs__str key);
struct dibs__mem_stock *dibs__mem_stock_add(struct dibs__memory *memory, dibs__str key); /* NULL: no memory */
struct dibs__mem_taken *dibs__mem_taken_find(const struct dibs__memory *memory, dibs__str claim);
struct dibs__mem_taken *dibs__mem_taken_add(struct dibs__memory *memory, dibs__str claim,
                                            const struct dibs__mem_stock *stock, int64_t at); /* NULL: no memory */
void dibs__mem_stocks_forget(struct dibs__memory *memory);                                    /* all of them */

/* task.c */
struct dibs__task_op;
struct dibs__mem_tasks *dibs__mem_tasks_new(int64_t now); /* NULL: no memory */
void dibs__mem_tasks_free(struct dibs__mem_tasks *tasks); /* accepts NULL */
void dibs__mem_task(struct dibs__mem_tasks *tasks, struct dibs__task_op *op, int64_t now);
/* Deletes the finished tasks and the tokens whose time is over. */
void dibs__mem_tasks_sweep(struct dibs__mem_tasks *tasks, int64_t now);

/* guarded.c: the state of a name or a record before a group began */
struct dibs__mem_saved;
/* Adds what `op` may change.  false: no memory. */
bool dibs__mem_save(struct dibs__memory *memory, const struct dibs__op *op, struct dibs__mem_saved **saved);
/* Restores everything. */
void dibs__mem_restore(struct dibs__memory *memory, struct dibs__mem_saved **saved);
void dibs__mem_forget_saved(struct dibs__mem_saved **saved);

#endif
