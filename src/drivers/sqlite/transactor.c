/* SPDX-License-Identifier: MIT */
/*
 * Connections for transactions of users.  They wait for SQLite's write lock like a user's own connection, without a
 * position in the writers' queue of the side file: its gate belongs to one call, and their transactions last for
 * several.
 */
#include "drivers/sqlite/sqlite_impl.h"

#include <stdlib.h>

struct lent {
  struct dibs__transactor base;
  struct dibs__sqlite_link *link;
};

void dibs__sqlite_transactor_close(struct dibs__transactor *base) {
  struct lent *t = (struct lent *)base;
  dibs__sqlite_link_close(t->link); /* rolls back */
  free(t);
}

dibs__status dibs__sqlite_transactor_open(struct dibs__dstore *base, dibs__tick by, struct dibs__transactor **out,
                                          struct dibs__result *result) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  struct lent *t = calloc(1, sizeof *t);
  if (!t) {
    dibs__set_message(result, "out of memory for a connection to %s", store->path);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = dibs__sqlite_link_open(store, store->path, by, &t->link, result);
  if (status == DIBS_OK && dibs__sqlite_full(t->link, store->write_sync) != DIBS__SQL_OK)
    status = dibs__sqlite_excuse(t->link, "open", result);
  if (status != DIBS_OK) {
    dibs__sqlite_transactor_close(&t->base);
    return status;
  }
  t->base = (struct dibs__transactor){.store = base, .connection = t->link->db};
  *out = &t->base;
  return DIBS_OK;
}

/* A statement of the user's failed. */
static dibs__status judge(const struct dibs__sqlite_link *l, struct dibs__result *result) {
  switch (l->failed & 0xff) {
  case SQLITE_CONSTRAINT:
  case SQLITE_ERROR: /* a syntax error, a missing table */
  case SQLITE_MISMATCH:
  case SQLITE_TOOBIG:
  case SQLITE_RANGE:
    dibs__set_message(result, "%s refuses the statement: %s", l->store->path, l->message);
    return DIBS_INVALID;
  default:
    return dibs__sqlite_excuse(l, "write to", result);
  }
}

static dibs__status commit(struct dibs__sqlite_link *l, struct dibs__result *result) {
  if (dibs__sqlite_message(l, "COMMIT") == DIBS__SQL_OK) return DIBS_OK;
  /* Of these nothing is in the file; as for dibs__sqlite_commit. */
  bool nothing = l->failed == SQLITE_FULL || l->failed == SQLITE_IOERR_WRITE || l->failed == SQLITE_BUSY ||
                 (l->failed & 0xff) == SQLITE_CONSTRAINT; /* a deferred foreign key */
  dibs__status status = judge(l, result);
  if (!sqlite3_get_autocommit(l->db)) (void)dibs__sqlite_message(l, "ROLLBACK");
  return nothing ? status : DIBS_UNKNOWN;
}

dibs__status dibs__sqlite_transact(struct dibs__transactor *base, enum dibs__transact what, const char *sql,
                                   dibs__tick by, struct dibs__result *result) {
  struct dibs__sqlite_link *l = ((struct lent *)base)->link;
  bool open = !sqlite3_get_autocommit(l->db);
  l->by = by;
  if (what != DIBS__TRANSACT_BEGIN && !open) {
    dibs__set_message(result, "the transaction has ended: a statement ended it, or the database rolled it back");
    return what == DIBS__TRANSACT_ROLLBACK ? DIBS_OK : DIBS_INVALID;
  }
  switch (what) {
  case DIBS__TRANSACT_BEGIN:
    /* At once for writing: two transactions that read first could not both go on. */
    return dibs__sqlite_message(l, "BEGIN IMMEDIATE") == DIBS__SQL_OK ? DIBS_OK
                                                                      : dibs__sqlite_excuse(l, "write to", result);
  case DIBS__TRANSACT_SQL:
    if (dibs__sqlite_message(l, sql) != DIBS__SQL_OK) return judge(l, result);
    if (!sqlite3_get_autocommit(l->db)) return DIBS_OK;
    dibs__set_message(result, "a statement ended the transaction");
    return DIBS_INVALID;
  case DIBS__TRANSACT_COMMIT:
    return commit(l, result);
  case DIBS__TRANSACT_ROLLBACK:
    break;
  }
  if (dibs__sqlite_message(l, "ROLLBACK") == DIBS__SQL_OK) return DIBS_OK;
  result->dead = true;
  return dibs__sqlite_excuse(l, "roll back in", result);
}
