/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_TASK_CALLS_H
#define DIBS_TEST_CONTRACT_TASK_CALLS_H
/*
 * One-line operations on tasks, for the contract's tests.  Kinds belong to the case: name_of(kind).  ADD has a token
 * and CLAIM is `again`, so that they can be repeated after UNKNOWN.
 *
 * The clock of tasks cannot be moved on every engine, so these tests wait, some ten milliseconds at a time.
 */
#include "harness.h"
#include "store/task.h"

typedef struct dibs__task_op task_op;
typedef struct dibs__task_row task_row;
typedef struct dibs__task_new task_new;
typedef struct dibs__task_item task_item;

enum { TASK_LONG_MS = 600000, TASK_SHORT_MS = 30, TASK_PATIENCE_MS = 30000 };
#define BIT(state) (1u << (state))

struct party *task_party(void); /* skips the test if the store has no tasks */
struct party *lane_party(void); /* likewise, or no tasks by lane */
dibs__str str_of(const char *text);
task_op task_call(enum dibs__task_verb verb, const char *kind); /* not yet run; "" for no kind */
task_op run_task(struct party *p, task_op op);                  /* its answer is freed at the end of the case */
/* As run_task, but without a check of cmocka, for threads; frees the answer unless `keeps`.  Returns how often it was
 * sent; 0: it was not answered. */
uint32_t sent_task(struct party *p, task_op *op, bool keeps);

/* ADD of one task; its number. */
uint64_t added_as(struct party *p, const char *kind, task_new n);
#define added(p, kind, ...) added_as(p, kind, (task_new){.status = 0, ##__VA_ARGS__})
/* ADD of many equal ones, at most DIBS__TASK_ITEMS at a time. */
void added_many(struct party *p, const char *kind, uint32_t count, task_new n, uint64_t nrs[]);

struct claim_how {
  bool unused;   /* what the macro names before the arguments */
  uint32_t most; /* 0: 1 */
  int64_t timeout_ms;
  const char *phases[4];
  int id; /* 0: a new one */
  const char *by;
  bool first_try; /* the first request with its id: it does not look for what an earlier one took */
};
struct claimed {
  uint32_t count;
  const task_row *rows;
  int64_t next_ms;
  bool more;
  bool in_doubt; /* it answers a repetition: by number */
};
struct claimed claimed_as(struct party *p, const char *kind, struct claim_how how);
#define claimed(p, kind, ...) claimed_as(p, kind, (struct claim_how){.unused = false, ##__VA_ARGS__})
/* A CLAIM that takes nothing: of a phase that no task has.  After it no task of the kind is ARRIVED. */
void admit(struct party *p, const char *kind);
/* Claims again at once as long as the answer says that there is more. */
struct claimed claimed_at_last(struct party *p, const char *kind, struct claim_how how);
/* Claims until it got this one, whose time has to come. */
task_row claimed_in_time(struct party *p, const char *kind, uint64_t nr);
/* Until a claim of TASK_SHORT_MS, or such a delay, is over for every client. */
void nap_past_short(void);
/* The claim took exactly these, in this order. */
void expect_claimed(struct claimed got, uint32_t count, const uint64_t nrs[]);
#define expect_one(got, nr) expect_claimed(got, 1, (const uint64_t[]){nr})
#define expect_none_claimed(got) expect_claimed(got, 0, NULL)

/* ---- By lane ---- */

struct lanes_how {
  bool unused; /* likewise */
  uint32_t most, from;
  int64_t timeout_ms;
  const char *topic, *by; /* NULL: "topic", "owner" */
  int id;
  bool refused; /* the answer may be other than OK: `status` */
};
struct lanes_claimed {
  struct claimed got;
  dibs__status status;
  uint32_t from;
  char why[200];
};
/* CLAIM for the owner of these lanes of `of`, which get their answers. */
struct lanes_claimed lanes_claimed_as(struct party *p, const char *kind, struct dibs__task_lane *lanes, uint32_t count,
                                      uint32_t of, struct lanes_how how);
#define lanes_claimed(p, kind, lanes, count, of, ...)                                                                  \
  lanes_claimed_as(p, kind, lanes, count, of, (struct lanes_how){.unused = false, ##__VA_ARGS__})
/* With one lane of one, so of all keys, which is not STALE. */
struct claimed owned_as(struct party *p, const char *kind, uint64_t fence, struct lanes_how how);
#define owned(p, kind, fence, ...) owned_as(p, kind, fence, (struct lanes_how){.unused = false, ##__VA_ARGS__})
/* A text of this lane of `of`, another for each `nth`; until the end of the case. */
dibs__str text_of_lane(uint32_t lane, uint32_t of, uint32_t nth);
void texts_of_one_slot(dibs__str texts[2]); /* two */

struct end_how {
  bool unused; /* likewise */
  const char *phase, *text;
  uint32_t tries;
  int64_t delay_ms;
};
dibs__status ended_as(struct party *p, task_row row, enum dibs__task_verdict verdict, struct end_how how);
#define ended(p, row, verdict, ...) ended_as(p, row, verdict, (struct end_how){.unused = false, ##__VA_ARGS__})
dibs__status extended(struct party *p, task_row row, int64_t timeout_ms, const char *phase);
void end_done(struct party *p, struct claimed got); /* all of them, of the kind "k" */

static inline struct dibs__task_filter only(uint64_t nr) {
  return (struct dibs__task_filter){.nr = nr};
}

/* By LIST. */
bool task_exists(struct party *p, uint64_t nr);
task_row row_of(struct party *p, uint64_t nr);
uint32_t state_of(struct party *p, uint64_t nr);
task_op errors_of(struct party *p, uint64_t nr);
struct dibs__task_kind count_of(struct party *p, const char *kind);
task_op changed(struct party *p, enum dibs__task_change change, struct dibs__task_filter filter);
void set_kind(struct party *p, const char *kind, uint32_t running, bool paused, int64_t keep_ms);

/* ---- Cost ---- */

/* Times in ns of claims alone and beside many tasks; they are measured in turns, so that what else the machine does
 * slows both.  The margin is wide: it finds a claim that looks at all tasks. */
enum { TASK_MEASURED = 60 };
void expect_same_cost(int64_t took[2][TASK_MEASURED]);

#define expect_status(got, want) assert_string_equal(status_name(got), status_name(want))

#endif
