/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_SQL_IMPL_H
#define DIBS_SQL_SQL_IMPL_H
/*
 * What the files of src/sql share: stock, then records in the user's tables.
 *
 *   stock.c        a batch, sorted by row; the careful way: the row is locked, the claims are looked up, each operation
 *                  is decided, the changes are written; setting and reading; old claims
 *   stock_rows.c   the fast way: one packet, a conditional update of the counted row, and the claims if it matched;
 *                  what a lookup found, and the result of each operation
 *   stock_text.c   the statements, with their values
 *   table.c        whether a user's table fits, before it is used on a connection
 *
 * Order of locks: the counted row, then its claims; rows in the order of their keys.
 *
 * `ops` of a run have one row, in the order of the requests.  A function that returns OK has answered all of them;
 * FAILED: the wire is dead or there is no memory, and unanswered ones are still UNKNOWN.
 */
#include "base/text.h"
#include "sql/wire.h"

typedef enum dibs__sql_rc dibs__stock_step;

struct dibs__stock_run {
  struct dibs__stock_op *const *ops;
  size_t count;
};

/* ---- stock_text.c ---- */

/* Puts a statement about the table (NULL: dibs' own); `text` is a template of text.h. */
dibs__stock_step dibs__stock_put(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *text,
                                 const struct dibs__sql_value *values, size_t count);
dibs__stock_step dibs__stock_put_rows(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *text,
                                      const struct dibs__sql_value *values, size_t count,
                                      const struct dibs__sql_value *rows, size_t columns, size_t row_count);
/* Inserts the claims, `rows` of them.  $1 of `when` (" WHERE ...", or "") and of the values is the counted row's
 * key. */
dibs__stock_step dibs__stock_put_new(struct dibs__sql_guard *guard, const struct dibs__table *table,
                                     const struct dibs__sql_value *values, size_t count,
                                     const struct dibs__sql_value *rows, size_t row_count, const char *when);
/* $1 is the key; `text` ends with a WHERE or AND, and the condition for these claims follows it. */
dibs__stock_step dibs__stock_put_claims(struct dibs__sql_guard *guard, const struct dibs__table *table,
                                        const char *text, dibs__str key, const dibs__str *claims, size_t count);

/* The claims as rows: claim, amount, given, taker. */
enum { DIBS__STOCK_COLUMNS = 4 };
#define DIBS__STOCK_ROWS "dibsrows(claim, amount, given, taker) AS ($rows)"
#define DIBS__STOCK_INTO "INSERT INTO @C (@^c, @^s@[a, @^a@]@[g, @^g@]@[t, @^t@]@[w, @^w@]) "
#define DIBS__STOCK_FROM "@[a, dibsrows.amount@]@[g, dibsrows.given@]@[t, dibsrows.taker@]@[w, @{now}@] FROM "
void dibs__stock_row(struct dibs__sql_value row[DIBS__STOCK_COLUMNS], dibs__str claim, int64_t amount, bool given,
                     dibs__str taker);

static inline struct dibs__sql_value dibs__stock_key(dibs__str key) {
  return dibs__sql_text(key.p, key.len);
}

/* ---- stock_rows.c ---- */

/* A claim of the operations of a run. */
struct dibs__stock_claim {
  dibs__str claim, taker;
  bool there;       /* it was found */
  bool fresh, mark; /* to be inserted; to be marked as given */
  bool ours;        /* the claim belongs to this row */
  bool given;
  int64_t amount;
  const char *column, *wrong; /* of the claim's row: what is wrong with it; NULL: nothing */
};

struct dibs__stock_decision {
  dibs__status status;
  int64_t got, used;
  const char *column, *wrong; /* with INVALID */
  bool of_claim;
};

struct dibs__stock_lookup {
  /* The claim of a single take is not looked up but assumed new: its unique key checks that, in the packet that is sent
   * anyway.  Any other result is looked up again. */
  bool blind;
  /* The counted row as it was found. */
  bool found;
  int64_t used, limit;
  uint64_t fence, owner;
  const char *column, *wrong; /* what is wrong with it; NULL: nothing */
  /* The result of the operations. */
  int64_t used_after;
  bool fenced; /* the fence must be written */
  size_t fresh, marks;
  struct dibs__stock_decision *decisions; /* one for each operation */
  struct dibs__stock_claim *claims;       /* the claims of the operations */
  size_t claim_count;
  uint32_t *claim_of; /* an operation's claim */
  dibs__str *names;   /* of the claims */
  uint32_t *slots;    /* of a hash table of claims: number + 1 */
  size_t mask;
  void *memory;
};

/* false: no memory. */
bool dibs__stock_lookup_make(struct dibs__stock_lookup *lookup, const struct dibs__stock_run *run);
void dibs__stock_lookup_free(struct dibs__stock_lookup *lookup);
/* Puts the statements of the lookup, locking the row or not; sends nothing. */
dibs__stock_step dibs__stock_lookup_put(struct dibs__sql_guard *guard, struct dibs__stock_lookup *lookup,
                                        const struct dibs__stock_run *run, bool lock, size_t *first);
/* Reads their answers, of which the first statement is `first`, and decides. */
void dibs__stock_decide(struct dibs__sql_guard *guard, struct dibs__stock_lookup *lookup,
                        const struct dibs__stock_run *run, size_t first);
/* It was decided blindly, and needs a lookup before it is answered: of the claim too, from now on. */
bool dibs__stock_lookups_again(struct dibs__stock_lookup *lookup);
/* A single take may begin blindly. */
static inline bool dibs__stock_may_be_blind(const struct dibs__stock_run *run) {
  const struct dibs__stock_op *op = run->ops[0];
  return run->count == 1 && op->op.verb == DIBS__STOCK_TAKE &&
         (op->strategy == DIBS_PESSIMISTIC || op->strategy == DIBS_OPTIMISTIC);
}
/* The claims to insert, as rows; malloc'd.  NULL: no memory. */
struct dibs__sql_value *dibs__stock_fresh(const struct dibs__stock_lookup *lookup);
bool dibs__stock_changes(const struct dibs__stock_lookup *lookup);
/* The decisions were carried out: answers the operations. */
void dibs__stock_answer(const struct dibs__stock_lookup *lookup, const struct dibs__stock_run *run);

/* ---- stock_rows.c ---- */

/* Coalesced takes of whole rows, all in one transaction; or one single take, ATOMIC or FENCED. */
dibs__stock_step dibs__stock_fast(struct dibs__sql_guard *guard, const struct dibs__stock_run *runs);

/* The conditional update with its claims; dibs__stock_matched reads the result of the last statement.  `when` is a
 * condition on the row; `set` more columns to set. */
dibs__stock_step dibs__stock_put_if(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *set,
                                    const char *when, const struct dibs__sql_value *values, size_t count,
                                    const struct dibs__sql_value *rows, size_t row_count, size_t *first);
/* Did it match?  *used and *limit are set where they are known. */
bool dibs__stock_matched(struct dibs__sql_guard *guard, size_t first, int64_t *used, int64_t *limit);
/* Does dibs__stock_put_if need BEGIN and COMMIT around it? */
bool dibs__stock_two_statements(const struct dibs__sql_guard *guard);

/* ---- stock.c ---- */

dibs__stock_step dibs__stock_careful(struct dibs__sql_guard *guard, const struct dibs__stock_run *run);

/* After a failed packet: rolls back an open transaction.  *dead: nothing more can be done.  *again: another try is
 * worthwhile, after a pause; counted. */
void dibs__stock_broke(struct dibs__sql_guard *guard, const struct dibs__stock_run *run, bool open, bool *dead,
                       bool *again);
/* Answers them with the wire's error. */
void dibs__stock_refuse(struct dibs__sql_guard *guard, const struct dibs__stock_run *run);
/* Answers INVALID: the column of this row has a wrong value. */
void dibs__stock_is_wrong(struct dibs__stock_op *op, bool of_claim, const char *column, const char *wrong);
/* Errors that may be one operation's fault. */
bool dibs__stock_is_one(enum dibs__sql_trouble trouble);

/* ---- Operations on the user's tables (table.c): each in a transaction, or a savepoint; `begun`: it is open ---- */

enum dibs__sql_rc dibs__table_begin(struct dibs__sql_guard *guard, bool *begun);
/* Sends what was put.  `commits`: with the end of the transaction, or without one. */
enum dibs__sql_rc dibs__table_go(struct dibs__sql_guard *guard, bool *begun, bool commits);
enum dibs__sql_rc dibs__table_commit(struct dibs__sql_guard *guard, bool *begun);
/* Nothing was changed. */
enum dibs__sql_rc dibs__table_rollback(struct dibs__sql_guard *guard, bool *begun);
/* The status of a failed statement that is the request's own. */
dibs__status dibs__table_status(enum dibs__sql_trouble trouble);

/*
 * ---- Records in the user's tables ----
 *
 *   table_record.c   which statements, and the meaning of their answers
 *   table_text.c     the statements, with their values
 *   version.c        versions: instants that grow, hashes of contents
 *
 * A write whose guards hold is one statement.  Only if it matched nothing, the row is read to find the reason; if it
 * would match by now, it is tried again.  Where the statement itself can't make the new version (instants, hashes of
 * what the engine made of the values) the row is locked and read first, and written in a later statement.
 */

enum { DIBS__TABLE_TEXT = 16384, DIBS__TABLE_VALUES = DIBS__TABLE_COLUMNS + 8 };

/* A statement under construction. */
struct dibs__table_text {
  const struct dibs__sql_engine *engine;
  const struct dibs__record_op *op;
  struct dibs__text text;
  struct dibs__sql_value values[DIBS__TABLE_VALUES];
  size_t count;
  char memory[DIBS__TABLE_TEXT];
};

/* The columns of a read, in this order; the table's own follow. */
enum {
  DIBS__TABLE_KEY,
  DIBS__TABLE_VERSION,
  DIBS__TABLE_FENCE,
  DIBS__TABLE_OWNER,
  DIBS__TABLE_SAME,
  DIBS__TABLE_FIRST
};

/* Each begins the text from the start.  `lock`: this transaction writes the row. */
void dibs__table_select(struct dibs__table_text *t, bool columns, bool lock);
/* `version`: the new one, as text; NULL: counted up, or there is none.  `guarded`: only if the operation's guards hold,
 * as far as the engine can check them.  `returning`: with the columns of dibs__table_select, where the engine has that.
 */
void dibs__table_update(struct dibs__table_text *t, const char *version, bool guarded, bool returning);
void dibs__table_seal(struct dibs__table_text *t, bool returning);
void dibs__table_insert(struct dibs__table_text *t, const char *version);
void dibs__table_delete(struct dibs__table_text *t, bool guarded);
enum dibs__sql_rc dibs__table_put(struct dibs__table_text *t, struct dibs__sql_wire *wire);

/* ---- Versions ---- */

/* The server's clock (ms since 1970, UTC) as an instant, but at least `step_us` after `old`, in the form of `old` ("":
 * none; then in UTC).  false: `old` is not an instant in a known form. */
bool dibs__table_instant(const char *old, int64_t now_ms, int64_t step_us, char *to, size_t size);

/*
 * ---- Tasks in the user's tables ----
 *
 *   task_table.c        which statements, and the meaning of their answers
 *   task_table_text.c   the statements, with their values
 *
 * A claim is one statement on an engine whose UPDATE returns rows and whose rows can be locked one by one; elsewhere it
 * selects and locks the rows first, and writes them in a second packet of the same transaction.  What ends or extends a
 * claim is one UPDATE for each, all in one packet; only for those that matched nothing, the row is looked up.
 */

enum { DIBS__TASK_VALUES = 2 * DIBS__TASK_PHASES + 16 };

struct dibs__task_text {
  const struct dibs__sql_engine *engine;
  const struct dibs__table *table;
  const struct dibs__sql_shape *shape;
  bool inside; /* the session is a user's */
  struct dibs__text text;
  struct dibs__sql_value values[DIBS__TASK_VALUES];
  size_t count;
  char memory[DIBS__TABLE_TEXT];
};

/* The columns of an answer with tasks. */
enum {
  DIBS__TT_KEY,
  DIBS__TT_PHASE,
  DIBS__TT_FENCE,
  DIBS__TT_LOCKED,
  DIBS__TT_LOCKED_MS,
  DIBS__TT_UPDATED_MS,
  DIBS__TT_FREE /* of a listing */
};

/* Each begins the text from the start. */
/* Claims, in one statement. */
void dibs__tt_claim(struct dibs__task_text *t, const struct dibs__task_op *op);
/* The keys of rows to claim, locked; then claims one of them. */
void dibs__tt_free(struct dibs__task_text *t, const struct dibs__task_op *op);
void dibs__tt_take(struct dibs__task_text *t, dibs__str key);
void dibs__tt_row(struct dibs__task_text *t, dibs__str key);
/* The row that is free first: its ms, NULL if it always was, and the clock. */
void dibs__tt_next(struct dibs__task_text *t, const struct dibs__task_op *op);
/* The key of a row that can't be claimed, because the engine stores any value in any column.  false: there is none. */
bool dibs__tt_unusable(struct dibs__task_text *t, const struct dibs__task_op *op);
/* Ends or extends a claim. */
void dibs__tt_change(struct dibs__task_text *t, const struct dibs__task_op *op, const struct dibs__task_item *item);
void dibs__tt_list(struct dibs__task_text *t, const struct dibs__task_op *op);
enum dibs__sql_rc dibs__tt_put(struct dibs__task_text *t, struct dibs__sql_wire *wire);

#endif
