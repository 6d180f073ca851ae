/* SPDX-License-Identifier: MIT */
/*
 * Columns that are compared come first: an engine reads a row from its beginning.  Numbers that are mostly 0 cost a
 * byte or none.  NULL never means anything but "no such thing here".
 */
#include "sql/schema.h"
#include "sql/sql.h"

#include <assert.h>
#include <string.h>

/* #n number, #k name, #t text, #i up to 64 bytes, fit for a key, #b bytes, #z the tail of a table */
static const char *const made[] = {
    /* One row.  `device`, `inode`: of the file; `boot`: of the machine it was last begun on. */
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
    /* Where a deep waiter stands: a table, not an index on some rows, because every write to dibs_name would look at
     * that (and not every engine has them). */
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

/* That a bucket is served for an anchor elsewhere is its row's `state`, which older programs do not look at: they are
 * to refuse what has it. */
static const char *const served[] = {
    "CREATE TABLE dibs_report (id #i NOT NULL PRIMARY KEY, seen #n NOT NULL, data #b)#z",
};

static const char *const *const steps[DIBS__SQL_SCHEMA] = {made, guarded, served};
static const size_t counts[DIBS__SQL_SCHEMA] = {sizeof made / sizeof made[0], sizeof guarded / sizeof guarded[0],
                                                sizeof served / sizeof served[0]};

static size_t add(char *to, size_t size, size_t len, const char *from, size_t n) {
  assert(len + n < size);
  memcpy(to + len, from, n);
  return len + n;
}

static const char *word(const struct dibs__sql_words *words, char which) {
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
  default:
    return words->tail;
  }
}

bool dibs__sql_schema(const struct dibs__sql_words *words, uint32_t version, size_t nth, char *to, size_t size) {
  assert(version < DIBS__SQL_SCHEMA && size > 0);
  if (nth >= counts[version]) return false;
  size_t len = 0;
  const char *at = steps[version][nth];
  for (const char *mark; (mark = strchr(at, '#')); at = mark + 2) {
    len = add(to, size, len, at, (size_t)(mark - at));
    if (mark[1] != '(') {
      const char *w = word(words, mark[1]);
      len = add(to, size, len, w, strlen(w));
      continue;
    }
    /* The rest is a condition for an index on some rows. */
    if (words->some) {
      len = add(to, size, len, words->some, strlen(words->some));
      len = add(to, size, len, mark + 1, strlen(mark + 1));
    }
    at = "";
    break;
  }
  len = add(to, size, len, at, strlen(at));
  to[len] = '\0';
  return true;
}
