/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_STOCK_PARTS_H
#define DIBS_SQL_STOCK_PARTS_H
/*
 * What stock*.c share.
 *
 *   stock.c         a batch: sorted by row, given to those below; reading and setting
 *   stock_fast.c    one packet: a conditional update of the counted row, and the claims if it went through
 *   stock_careful.c the row is locked, the claims are looked up, each operation is decided, what changes is written
 *   stock_look.c    what a look found, and what the operations come to
 *   stock_other.c   optimistic, unguarded; old claims
 *   stock_text.c    the statements, with a table's names put in
 *
 * Order of locks everywhere but in `unguarded`: the counted row, then its claims; rows in the order of their keys.
 *
 * `ops` of a run are about one row, in the order in which they were asked.  A function that answers FINE has answered
 * all of them; BROKE: the wire is dead or there is no memory, and what was not answered still says UNKNOWN.
 */
#include "sql/guard.h"

typedef enum dibs__sql_step dibs__stock_step;

struct dibs__stock_run {
  struct dibs__stock_op *const *ops;
  size_t count;
};

/* ---- stock_text.c ---- */

/* Puts a statement about the table (NULL: dibs' own).  In its text:
 *   @S the counted rows' table, @k @u @m @f @o its key, used, limit, fence, owner
 *   @C the claims' table, @c @s @a @g @t @w its claim, stock, amount, given, taker, time
 *   @n the server's clock, @L the words that lock a row; @@ is one @
 *   [a ...] if the table has that column (a g t w f o), [!a ...] if not */
dibs__stock_step dibs__stock_put(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *text,
                                 const struct dibs__sql_value *values, size_t count);
dibs__stock_step dibs__stock_put_rows(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *text,
                                      const struct dibs__sql_value *values, size_t count,
                                      const struct dibs__sql_value *rows, size_t columns, size_t row_count);
/* Inserts the claims, `rows` of them.  $1 of `when` (" WHERE ...", or "") and of the values is the counted row's key.
 */
dibs__stock_step dibs__stock_put_new(struct dibs__sql_guard *guard, const struct dibs__table *table,
                                     const struct dibs__sql_value *values, size_t count,
                                     const struct dibs__sql_value *rows, size_t row_count, const char *when);
/* $1 is the key; `text` ends with a WHERE or AND, which is then about these claims. */
dibs__stock_step dibs__stock_put_claims(struct dibs__sql_guard *guard, const struct dibs__table *table,
                                        const char *text, dibs__str key, const dibs__str *claims, size_t count);

/* The claims as rows: claim, amount, given, taker. */
enum { DIBS__STOCK_COLUMNS = 4 };
#define DIBS__STOCK_ROWS "r(claim, amount, given, taker) AS ($rows)"
#define DIBS__STOCK_INTO "INSERT INTO @C (@c, @s[a, @a][g, @g][t, @t][w, @w]) "
#define DIBS__STOCK_FROM "[a, r.amount][g, r.given][t, r.taker][w, @n] FROM "
void dibs__stock_row(struct dibs__sql_value row[DIBS__STOCK_COLUMNS], dibs__str claim, int64_t amount, bool given,
                     dibs__str taker);

static inline struct dibs__sql_value dibs__stock_key(dibs__str key) {
  return dibs__sql_text(key.p, key.len);
}

/* ---- stock_look.c ---- */

/* A claim that operations of a run are about. */
struct dibs__stock_claim {
  dibs__str claim, taker;
  bool there;       /* it was found */
  bool fresh, mark; /* to be inserted; to be marked as given */
  bool ours;        /* of this row */
  bool given;
  int64_t amount;
};

struct dibs__stock_decision {
  dibs__status status;
  int64_t got, used;
};

struct dibs__stock_look {
  /* The claim of a take by itself is not looked for but taken for new: that is what its unique key tells, in the packet
   * that is sent anyway.  Whatever comes to anything else is looked at again. */
  bool blind;
  /* The counted row as it was found. */
  bool found;
  int64_t used, limit;
  uint64_t fence, owner;
  /* What the operations make of it. */
  int64_t used_after;
  bool fenced; /* the fence is to be written */
  size_t fresh, marks;
  struct dibs__stock_decision *decisions; /* one an operation */
  struct dibs__stock_claim *claims;       /* those that they are about */
  size_t claim_count;
  uint32_t *claim_of; /* an operation's claim */
  dibs__str *names;   /* of the claims */
  uint32_t *slots;    /* of a hash table of claims: number + 1 */
  size_t mask;
  void *memory;
};

/* false: no memory. */
bool dibs__stock_look_make(struct dibs__stock_look *look, const struct dibs__stock_run *run);
void dibs__stock_look_free(struct dibs__stock_look *look);
/* Puts the statements that look, locking the row or not; nothing goes. */
dibs__stock_step dibs__stock_look_put(struct dibs__sql_guard *guard, struct dibs__stock_look *look,
                                      const struct dibs__stock_run *run, bool lock, size_t *first);
/* Takes their answers, of which the first statement is `first`, and decides. */
void dibs__stock_decide(struct dibs__sql_guard *guard, struct dibs__stock_look *look, const struct dibs__stock_run *run,
                        size_t first);
/* It was decided blindly, and must be looked at before it is answered: the claim too, from now on. */
bool dibs__stock_looks_again(struct dibs__stock_look *look);
/* A take by itself may begin blindly. */
static inline bool dibs__stock_may_be_blind(const struct dibs__stock_run *run) {
  const struct dibs__stock_op *op = run->ops[0];
  return run->count == 1 && op->op.verb == DIBS__STOCK_TAKE &&
         (op->strategy == DIBS_PESSIMISTIC || op->strategy == DIBS_OPTIMISTIC);
}
/* The claims that are to be inserted, as rows; malloc'd.  NULL: no memory. */
struct dibs__sql_value *dibs__stock_fresh(const struct dibs__stock_look *look);
bool dibs__stock_changes(const struct dibs__stock_look *look);
/* What was decided is so: the operations are answered. */
void dibs__stock_answer(const struct dibs__stock_look *look, const struct dibs__stock_run *run);

/* ---- stock_fast.c ---- */

/* Coalesced takes of whole rows, all in one transaction; or one take by itself, ATOMIC or FENCED. */
dibs__stock_step dibs__stock_fast(struct dibs__sql_guard *guard, const struct dibs__stock_run *runs);

/* The conditional update with its claims; the last statement's number tells what came of it, see matched.  `when` is a
 * condition on the row; `set` more to set. */
dibs__stock_step dibs__stock_put_if(struct dibs__sql_guard *guard, const struct dibs__table *table, const char *set,
                                    const char *when, const struct dibs__sql_value *values, size_t count,
                                    const struct dibs__sql_value *rows, size_t row_count, size_t *first);
/* Did it go through?  *used and *limit are set where they are known. */
bool dibs__stock_matched(struct dibs__sql_guard *guard, size_t first, int64_t *used, int64_t *limit);
/* Does put_if need BEGIN and COMMIT around it? */
bool dibs__stock_two_statements(const struct dibs__sql_guard *guard);

/* ---- stock_careful.c ---- */

dibs__stock_step dibs__stock_careful(struct dibs__sql_guard *guard, const struct dibs__stock_run *run);

/* ---- stock_other.c ---- */

dibs__stock_step dibs__stock_optimistic(struct dibs__sql_guard *guard, struct dibs__stock_op *op);
dibs__stock_step dibs__stock_unguarded(struct dibs__sql_guard *guard, struct dibs__stock_op *op);

/* ---- stock.c ---- */

/* After a packet broke: undoes what stands open.  *dead: there is nothing more to be done.  *again: it is worth another
 * try, after a pause; counted. */
void dibs__stock_broke(struct dibs__sql_guard *guard, const struct dibs__stock_run *run, bool open, bool *dead,
                       bool *again);
/* They are answered with what the wire says. */
void dibs__stock_refuse(struct dibs__sql_guard *guard, const struct dibs__stock_run *run);
/* What may be one operation's fault. */
bool dibs__stock_is_one(enum dibs__sql_trouble trouble);
/* A pause before the nth try, of chance length. */
void dibs__stock_pause(uint32_t nth, dibs__tick by);

#endif
