/* SPDX-License-Identifier: MIT */
/*
 * The schema, step by step, and the statements about its rows that are the same on every engine.  Columns that are
 * compared come first: an engine reads a row from its beginning.  Numbers that are mostly 0 cost a byte or none.  NULL
 * always means "none".
 */
#include "sql/sql.h"
#include "sql/wire.h"

#include <assert.h>
#include <string.h>

/* #n number, #k name, #t text, #i up to 64 bytes, fit for a key, #b bytes, #z the tail of a table, #a a key that counts
 * up, #d the default of a number: now, #c more conditions of a row that people insert.  ? at the beginning: only where
 * an index can have some of the rows; !: only where it can't. */
static const char *const made[] = {
    /* One row.  `device`, `inode`: of the file; `boot`: of the machine it was last begun on, and in a server the kind
     * of its leases: rows, locks, NULL before the first one. */
    "CREATE TABLE dibs_meta (one #n PRIMARY KEY, version #n, life #i, device #n, inode #n, boot #t)",

    "CREATE TABLE dibs_name (bucket #n NOT NULL, name #k NOT NULL, place #n NOT NULL,"
    /* the bucket's own row; its `state`: enum dibs__sql_served */
    " life #i, epoch #n, seq #n,"
    /* the exclusive holder, or a waiter; a head's `state` is 1 when new waiters go to the index */
    " id #i, until #n, granted #n, first #n, block #n, broken #n, waiters #n, state #n,"
    " ttl #n, since #n, session #n, owner #t, mode #n, slots #n,"
    /* a head */
    " holders #n, offers #n, tickets #n, front #n, reach #n, low_slot #n, due #n,"
    /* a waiter */
    " deep #n,"
    " PRIMARY KEY (bucket, name, place))#z",
    /* The position of a deep waiter: a table, not a partial index, because every write to dibs_name would have to
     * check that (and some engines have none). */
    "CREATE TABLE dibs_deep (bucket #n NOT NULL, name #k NOT NULL, id #i NOT NULL, place #n,"
    " PRIMARY KEY (bucket, name, id))#z",

    "CREATE TABLE dibs_holder (bucket #n NOT NULL, name #k NOT NULL, id #i NOT NULL,"
    " slot #n, until #n, broken #n, ttl #n, since #n, session #n, owner #t, PRIMARY KEY (bucket, name, id))#z",
    "CREATE INDEX dibs_holder_slot ON dibs_holder (bucket, name, slot)#(slot IS NOT NULL)",

    "CREATE TABLE dibs_break (bucket #n NOT NULL, name #k NOT NULL, nr #n NOT NULL,"
    " at #n, fence #n, mode #n, owner #t, PRIMARY KEY (bucket, name, nr))#z",

    "CREATE TABLE dibs_record (name #k NOT NULL PRIMARY KEY, fence #n, digest #n, version #n, data #b)",
};

static const char *const guarded[] = {
    "CREATE TABLE dibs_stock (name #k NOT NULL PRIMARY KEY, used #n NOT NULL, most #n NOT NULL, fence #n, owner #n)#z",
    /* `given`: 0 taken, 1 given back.  No index: each take would have to write it. */
    "CREATE TABLE dibs_claim (claim #k NOT NULL PRIMARY KEY, stock #k NOT NULL, amount #n NOT NULL, given #n NOT NULL,"
    " taker #t, taken #n NOT NULL)#z",

    "CREATE TABLE dibs_once (name #k NOT NULL PRIMARY KEY, fence #n, owner #n, made #n NOT NULL, until #n NOT NULL,"
    " data #b)",
    "CREATE INDEX dibs_once_until ON dibs_once (until)",
};

/* A bucket that is served for an anchor elsewhere has that in its row's `state`, which older programs do not read: a
 * new version makes them refuse the store. */
static const char *const served[] = {
    "CREATE TABLE dibs_report (id #i NOT NULL PRIMARY KEY, seen #n NOT NULL, data #b)#z",
};

/* People insert into dibs_task by statements of their own: what has a default, or may be NULL, they need not name.  A
 * row that would make a later statement about the whole kind fail, or would never be claimed, is refused when it is
 * inserted.  COUNTS fit in 32 bits; sums of two numbers up to FAR in 64. */
#define COUNTS "4294967295"
#define FAR "4611686018427387904"
static const char *const tasks[] = {
    /* `state`: enum dibs__task_state.  `rank`: of a ready one its negative priority, else 0.  `due`: since when it is
     * ready; until when it is claimed or waits; of a blocked one 0.  `since`: of a claimed one since when it was ready;
     * of a blocked one when it wants to run.  `queue`: of a ready one its phase (if it has any), of a blocked one its
     * serial text, else NULL.  `claim`: a digest of the id of the claim.  `ended`: the last fence that ended by a
     * verdict, `verdict` this verdict. */
    "CREATE TABLE dibs_task (nr #a, kind #k NOT NULL, state #n NOT NULL DEFAULT 0, rank #n NOT NULL DEFAULT 0,"
    " due #n NOT NULL#d, since #n, queue #k, fence #n NOT NULL DEFAULT 0, claim #n, ended #n, verdict #n,"
    " attempts #n NOT NULL DEFAULT 0, fails #n NOT NULL DEFAULT 0, tries #n NOT NULL DEFAULT 0,"
    " priority #n NOT NULL DEFAULT 0, made #n NOT NULL#d, at #n NOT NULL#d, began #n, phase #k NOT NULL DEFAULT '',"
    " serial #k, uniq #k, owner #t, payload #b,"
    " CHECK (length(kind) BETWEEN 1 AND 255), CHECK (length(phase) <= 255), CHECK (length(serial) <= 255),"
    " CHECK (state BETWEEN 0 AND 5), CHECK (state > 0 OR rank = 0), CHECK (priority BETWEEN -1000 AND 1000),"
    " CHECK (tries BETWEEN 0 AND " COUNTS "), CHECK (fails BETWEEN 0 AND " COUNTS "),"
    " CHECK (attempts BETWEEN 0 AND " COUNTS "), CHECK (fence BETWEEN 0 AND " FAR "),"
    " CHECK (due BETWEEN -" FAR " AND " FAR "), CHECK (made BETWEEN -" FAR " AND " FAR ")#c)",
    /* Two indexes, because PostgreSQL must not find a task by its number in one of them: after a vacuum of the empty
     * table it expects no row for a minute, takes every index for equally good, and reads all of one for each number.
     * It can't use these two for a statement that names neither state. */
    "?CREATE INDEX dibs_task_ready ON dibs_task (kind, rank, due, nr)#(state = 1)",
    "?CREATE INDEX dibs_task_busy ON dibs_task (kind, state, due, nr)#(state <> 1)",
    "!CREATE INDEX dibs_task_ready ON dibs_task (kind, state, rank, due, nr)",
    "CREATE INDEX dibs_task_queue ON dibs_task (kind, queue, state, rank, due, nr)#(queue IS NOT NULL)",
    "CREATE UNIQUE INDEX dibs_task_uniq ON dibs_task (kind, uniq)#(uniq IS NOT NULL)",
    /* Arrived tasks, in the order in which they are admitted. */
    "?CREATE INDEX dibs_task_plain ON dibs_task (kind, due, nr)#(state = 0 AND serial IS NULL)",
    "?CREATE INDEX dibs_task_keyed ON dibs_task (kind, nr)#(state = 0 AND serial IS NOT NULL)",
    /* Of each serial text with unfinished tasks: which one runs, or runs next.  The row with serial '' is locked while
     * arrived tasks of its kind are admitted to their serial texts. */
    "CREATE TABLE dibs_task_serial (kind #k NOT NULL, serial #k NOT NULL, nr #n NOT NULL, PRIMARY KEY (kind, "
    "serial))#z",
    /* `until`: NULL for a dead one, which is kept until a person purges it. */
    "CREATE TABLE dibs_task_done (nr #n NOT NULL PRIMARY KEY, kind #k NOT NULL, state #n NOT NULL, until #n,"
    " fence #n NOT NULL, ended #n, verdict #n, attempts #n NOT NULL, fails #n NOT NULL, tries #n NOT NULL, priority #n "
    "NOT NULL,"
    " made #n NOT NULL, at #n NOT NULL, began #n, phase #k NOT NULL, serial #k, uniq #k, owner #t, text #b,"
    " payload #b)",
    "CREATE INDEX dibs_task_done_until ON dibs_task_done (until)#(until IS NOT NULL)",
    "CREATE INDEX dibs_task_done_bad ON dibs_task_done (kind, nr)#(state > 6)",
    "CREATE TABLE dibs_task_error (nr #n NOT NULL, fence #n NOT NULL, at #n NOT NULL, owner #t, text #b,"
    " PRIMARY KEY (nr, fence))#z",
    "CREATE TABLE dibs_task_kind (kind #k NOT NULL PRIMARY KEY, running #n NOT NULL, paused #n NOT NULL, keep #n)",
    /* The numbers that were added under a token, as text. */
    "CREATE TABLE dibs_task_token (token #i NOT NULL PRIMARY KEY, until #n NOT NULL, nrs #b)",
    "CREATE INDEX dibs_task_token_until ON dibs_task_token (until)",
    "CREATE TABLE dibs_run (id #i NOT NULL PRIMARY KEY, ended #n NOT NULL, began #n NOT NULL, until #n NOT NULL,"
    " name #k NOT NULL, kind #k NOT NULL, host #t, fence #n, nr #n, how #n NOT NULL, code #n NOT NULL, command #b,"
    " output #b)",
    "CREATE INDEX dibs_run_ended ON dibs_run (ended)",
    "CREATE INDEX dibs_run_name ON dibs_run (name, ended)",
    "CREATE INDEX dibs_run_until ON dibs_run (until)",
    "CREATE TABLE dibs_setting (name #k NOT NULL PRIMARY KEY, number #n)",
};

static const char *const counters[] = {
    "CREATE TABLE dibs_counter (name #k NOT NULL PRIMARY KEY, number #n NOT NULL)#z",
    /* The ledger: of a source its last batch, `mark` of the transaction that applied it, `refused` items of it.  Of a
     * guard, `seq` is its largest fence. */
    ("CREATE TABLE dibs_counter_source (id #i NOT NULL PRIMARY KEY, seq #n NOT NULL, mark #n, until #n NOT NULL,"
     " refused #b)"),
    "CREATE INDEX dibs_counter_source_until ON dibs_counter_source (until)",
    /* A bucket of tokens is full at `full_ns`, ns since 1970, and by `until` at the latest. */
    "CREATE TABLE dibs_rate (name #k NOT NULL PRIMARY KEY, full_ns #n NOT NULL, until #n NOT NULL)#z",
    "CREATE INDEX dibs_rate_until ON dibs_rate (until)",
};

/* Of runs of tasks alone: a condition that a listing repeats, because a value of a statement implies nothing. */
static const char *const runs_of_tasks[] = {
    "CREATE INDEX dibs_run_nr ON dibs_run (nr, ended)#(nr > 0)",
};

/* Of tasks by lane.  `slot`: dibs__slot() of the serial text in a kind by lane, or -1 - slot if the task is put aside:
 * it waits, is parked, is claimed without lanes, or comes behind such a task of its key; NULL: not by lane.  One in
 * state 4 that is not put aside is free from `due` on.  `lane`: of a claim by lane the fence of its lane.  `topic`: the
 * kind belongs to its lanes.  dibs_lane: the fence of each lane, and, as lanes below 0, what task_lane_kind.c names. */
static const char *const by_lane[] = {
    "ALTER TABLE dibs_task ADD COLUMN slot #n",
    "ALTER TABLE dibs_task ADD COLUMN lane #n",
    "ALTER TABLE dibs_task_kind ADD COLUMN topic #k",
    "CREATE INDEX dibs_task_slot ON dibs_task (kind, slot, nr)#(slot IS NOT NULL)",
    ("CREATE TABLE dibs_lane (kind #k NOT NULL, lane #n NOT NULL, lanes #n NOT NULL, fence #n NOT NULL,"
     " PRIMARY KEY (kind, lane))#z"),
};

static const struct {
  const char *const *texts;
  size_t count;
} steps[DIBS__SQL_SCHEMA] = {{made, sizeof made / sizeof made[0]},
                             {guarded, sizeof guarded / sizeof guarded[0]},
                             {served, sizeof served / sizeof served[0]},
                             {tasks, sizeof tasks / sizeof tasks[0]},
                             {counters, sizeof counters / sizeof counters[0]},
                             {runs_of_tasks, sizeof runs_of_tasks / sizeof runs_of_tasks[0]},
                             {by_lane, sizeof by_lane / sizeof by_lane[0]}};

static size_t append(char *to, size_t size, size_t len, const char *from, size_t n) {
  assert(len + n < size);
  memcpy(to + len, from, n);
  return len + n;
}

static const char *word_of_mark(const struct dibs__sql_words *words, char which) {
  switch (which) {
  case 'n':
    return words->number;
  case 'k':
    return words->name;
  case 't':
    return words->text;
  case 'i':
    return words->id;
  case 'b':
    return words->bytes;
  case 'a':
    return words->counted;
  case 'd':
    return words->now;
  case 'c':
    return words->checks ? words->checks : "";
  default:
    return words->tail;
  }
}

/* The nth text of a step that this engine has; NULL after the last one. */
static const char *text_of_step(const struct dibs__sql_words *words, uint32_t version, size_t nth) {
  for (size_t i = 0; i < steps[version].count; i++) {
    const char *text = steps[version].texts[i];
    bool with = *text == '?', without = *text == '!';
    if (words->some ? without : with) continue;
    if (nth-- == 0) return text + (with || without);
  }
  return NULL;
}

bool dibs__sql_schema(const struct dibs__sql_words *words, uint32_t version, size_t nth, char *to, size_t size) {
  assert(version < DIBS__SQL_SCHEMA && size > 0);
  size_t len = 0;
  const char *at = text_of_step(words, version, nth);
  if (!at) return false;
  for (const char *mark; (mark = strchr(at, '#')); at = mark + 2) {
    len = append(to, size, len, at, (size_t)(mark - at));
    if (mark[1] != '(') {
      const char *w = word_of_mark(words, mark[1]);
      len = append(to, size, len, w, strlen(w));
      continue;
    }
    /* The rest is a condition for a partial index. */
    if (words->some) {
      len = append(to, size, len, words->some, strlen(words->some));
      len = append(to, size, len, mark + 1, strlen(mark + 1));
    }
    at = "";
    break;
  }
  len = append(to, size, len, at, strlen(at));
  to[len] = '\0';
  return true;
}

/* ---- Statements ---- */

#define SHALLOW 32
#define PAGE 64
static_assert(SHALLOW == DIBS__SQL_SHALLOW && PAGE == DIBS__SQL_PAGE, "one number, written twice");
#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)
#define OF_NAME " WHERE bucket = $1 AND name = $2"
#define OF_HEAD OF_NAME " AND place = 0"
#define HOLDER "id, slot, until, broken, ttl, since, session, owner"

const char *const dibs__rows_texts[DIBS__ROWS_TEXTS] = {
    [DIBS__ROWS_BUCKET_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, life, epoch, seq) VALUES ($1, '', 0, $2, $3, 0)",
    [DIBS__ROWS_BUCKET_SERVE] =
        "UPDATE dibs_name SET state = nullif($2, 0) WHERE bucket = $1 AND name = '' AND place = 0",

    [DIBS__ROWS_HEAD] = "SELECT " DIBS__ROWS_WAITER ", NULL, " DIBS__ROWS_ONLY_HEAD " FROM dibs_name" OF_HEAD,
    [DIBS__ROWS_HEAD_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since,"
        " session, owner, mode, slots, holders, offers, tickets, front, reach, low_slot, state, due)"
        " VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,"
        " $22, $23)",
    [DIBS__ROWS_HEAD_SET] = "UPDATE dibs_name SET id = $3, until = $4, granted = $5, first = $6, block = $7,"
                            " broken = $8, waiters = $9, ttl = $10, since = $11, session = $12, owner = $13,"
                            " mode = $14, slots = $15, holders = $16, offers = $17, tickets = $18, front = $19,"
                            " reach = $20, low_slot = $21, state = $22, due = $23" OF_HEAD,
    [DIBS__ROWS_HEAD_QUEUE] = "UPDATE dibs_name SET waiters = $3, mode = $4, slots = $5, holders = $6, offers = $7,"
                              " tickets = $8, front = $9, reach = $10, low_slot = $11, state = $12, due = $13" OF_HEAD,
    [DIBS__ROWS_HEAD_DROP] = "DELETE FROM dibs_name" OF_HEAD,

    [DIBS__ROWS_HOLDER] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " AND id = $3",
    [DIBS__ROWS_HOLDER_ADD] =
        "INSERT INTO dibs_holder (bucket, name, " HOLDER ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    [DIBS__ROWS_HOLDER_SET] = "UPDATE dibs_holder SET until = $4, ttl = $5, session = $6" OF_NAME " AND id = $3",
    [DIBS__ROWS_HOLDER_DROP] = "DELETE FROM dibs_holder" OF_NAME " AND id = $3",
    [DIBS__ROWS_HOLDERS] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " ORDER BY slot, since, id",
    [DIBS__ROWS_HOLDERS_EXPIRE] = "DELETE FROM dibs_holder" OF_NAME " AND until <= $3",
    [DIBS__ROWS_HOLDERS_BREAK] = "UPDATE dibs_holder SET broken = 1" OF_NAME,
    [DIBS__ROWS_HOLDERS_DROP] = "DELETE FROM dibs_holder" OF_NAME,
    [DIBS__ROWS_HOLDERS_UNTIL] = "SELECT min(until) FROM dibs_holder" OF_NAME,

    [DIBS__ROWS_SLOTS] = "SELECT slot FROM dibs_holder@{by_slot}" OF_NAME " AND slot >= $3 ORDER BY slot",

    [DIBS__ROWS_WAITER_AT] = "SELECT " DIBS__ROWS_WAITER "@{seen} FROM dibs_name" OF_NAME " AND place = $4 AND id = $3",
    [DIBS__ROWS_WAITER_SHALLOW] =
        "SELECT " DIBS__ROWS_WAITER "@{seen} FROM (SELECT " DIBS__ROWS_WAITER " FROM dibs_name" OF_NAME
        " AND place > 0 ORDER BY place LIMIT " QUOTED(SHALLOW) ") w WHERE id = $3",
    [DIBS__ROWS_WAITER_NEXT] = "SELECT " DIBS__ROWS_WAITER "@{seen} FROM dibs_name" OF_NAME
                               " AND place >= $3 AND state = 0 ORDER BY place LIMIT 1",
    [DIBS__ROWS_WAITER_OFFERED] = "SELECT " DIBS__ROWS_WAITER "@{seen} FROM dibs_name" OF_NAME
                                  " AND place BETWEEN 1 AND $3 AND state = 1 ORDER BY place LIMIT 1",
    [DIBS__ROWS_WAITERS] = "SELECT " DIBS__ROWS_WAITER "@{seen} FROM dibs_name" OF_NAME
                           " AND place > $3 ORDER BY place LIMIT " QUOTED(PAGE),
    [DIBS__ROWS_DEEP] = "SELECT place FROM dibs_deep" OF_NAME " AND id = $3",
    [DIBS__ROWS_DEEP_ADD] = "INSERT INTO dibs_deep (bucket, name, id, place) VALUES ($1, $2, $3, $4)",
    [DIBS__ROWS_DEEP_DROP] = "DELETE FROM dibs_deep" OF_NAME " AND id = $3",
    [DIBS__ROWS_WAITER_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, state, id, session, mode, slots, until, deep, ttl, since, owner,"
        " first) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0)",
    [DIBS__ROWS_WAITER_SET] =
        "UPDATE dibs_name SET state = $4, until = $5, session = $6, first = $7" OF_NAME " AND place = $3",
    [DIBS__ROWS_WAITER_DROP] = "DELETE FROM dibs_name" OF_NAME " AND place = $3",
    [DIBS__ROWS_OFFERS_EXPIRE] =
        "UPDATE dibs_name SET state = 2, until = 0" OF_NAME " AND place BETWEEN 1 AND $3 AND state = 1 AND until <= $4",
    [DIBS__ROWS_OFFERS_UNTIL] = "SELECT min(until) FROM dibs_name" OF_NAME " AND place BETWEEN 1 AND $3 AND state = 1",

    [DIBS__ROWS_BREAK_ADD] = "INSERT INTO dibs_break (bucket, name, nr, at, fence, mode, owner)"
                             " SELECT $1, $2, coalesce(max(nr), 0) + 1, $3, $4, $5, $6 FROM dibs_break" OF_NAME,
    /* (In two layers, or MariaDB would not read the table that it deletes from.) */
    [DIBS__ROWS_BREAK_TRIM] =
        "DELETE FROM dibs_break" OF_NAME " AND nr <= (SELECT last FROM (SELECT max(nr) AS last FROM dibs_break" OF_NAME
        ") b) - $3",
    [DIBS__ROWS_BREAKS] = "SELECT at, fence, mode, owner FROM dibs_break" OF_NAME " ORDER BY nr",
    [DIBS__ROWS_BREAKS_OLD] = "DELETE FROM dibs_break WHERE at < $1",

    [DIBS__ROWS_RECORD] = "SELECT fence, digest, version, data FROM dibs_record WHERE name = $1",
};
