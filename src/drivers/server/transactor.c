/* SPDX-License-Identifier: MIT */
/* Connections for transactions of users: a wire of the engine for the beginning and the end, whose connection the core
 * adopts for operations in between, and users for statements. */
#include "drivers/server/server_impl.h"

#include <stdlib.h>

struct lent {
  struct dibs__transactor base;
  struct dibs__server *server;
  struct dibs__sql_wire *wire;
};

static dibs__status explain(const struct lent *t, const char *doing, struct dibs__result *result) {
  const struct dibs__sql_wire *w = t->wire;
  dibs__status status = dibs__sql_explain(w, doing, t->server->shown, result);
  if (w->unsure) return DIBS_UNKNOWN;
  switch (w->trouble) {
  case DIBS__SQL_DEADLOCK:
    return DIBS_CONFLICT;
  case DIBS__SQL_TWICE:
  case DIBS__SQL_ORPHAN:
  case DIBS__SQL_REFUSED:
  case DIBS__SQL_MISSING:
  case DIBS__SQL_ODD:
    return DIBS_INVALID;
  default:
    return status;
  }
}

DIBS__MODULE_API void dibs__server_transactor_close(struct dibs__transactor *base) {
  struct lent *t = (struct lent *)base;
  if (t->wire) t->server->engine->close(t->wire); /* the server rolls back */
  free(t);
}

DIBS__MODULE_API dibs__status dibs__server_transactor_open(struct dibs__dstore *base, dibs__tick by,
                                                           struct dibs__transactor **out, struct dibs__result *result) {
  struct dibs__server *store = (struct dibs__server *)base;
  struct lent *t = calloc(1, sizeof *t);
  if (!t) {
    dibs__set_message(result, "out of memory for a connection to %s", store->shown);
    return DIBS_NO_MEMORY;
  }
  t->base.store = base;
  t->server = store;
  dibs__status status = store->engine->connect(store, by, &t->wire, result);
  if (status == DIBS_OK) {
    t->wire->by = by;
    if (store->engine->lend(store, t->wire, &t->base.connection) != DIBS__SQL_OK)
      status = explain(t, "set up a connection to", result);
  }
  if (status != DIBS_OK) {
    dibs__server_transactor_close(&t->base);
    return status;
  }
  *out = &t->base;
  return DIBS_OK;
}

static dibs__status ended(struct dibs__result *result) {
  dibs__set_message(result, "the transaction has ended: a statement ended it, or the server rolled it back");
  return DIBS_INVALID;
}

DIBS__MODULE_API dibs__status dibs__server_transact(struct dibs__transactor *base, enum dibs__transact what,
                                                    const char *sql, dibs__tick by, struct dibs__result *result) {
  struct lent *t = (struct lent *)base;
  const struct dibs__server_engine *engine = t->server->engine;
  struct dibs__sql_wire *w = t->wire;
  enum dibs__sql_rc end = DIBS__SQL_FAILED;
  w->by = by;
  w->unsure = false;
  w->undone = dibs__sql_dead(w);
  switch (what) {
  case DIBS__TRANSACT_BEGIN:
    end = engine->script(w, w->engine->begin);
    return end == DIBS__SQL_OK ? DIBS_OK : explain(t, "begin a transaction at", result);
  case DIBS__TRANSACT_SQL:
    /* Outside a transaction the statement would take effect at once. */
    if (!dibs__sql_dead(w) && !engine->in_transaction(w)) return ended(result);
    end = engine->script(w, sql);
    if (end == DIBS__SQL_OK && !engine->in_transaction(w)) return ended(result);
    return end == DIBS__SQL_OK ? DIBS_OK : explain(t, "run a statement at", result);
  case DIBS__TRANSACT_COMMIT:
    if (!dibs__sql_dead(w) && !engine->in_transaction(w)) return ended(result);
    end = engine->script(w, "COMMIT");
    /* Without an answer nobody knows, unless the connection had ended before. */
    if (end != DIBS__SQL_OK && dibs__sql_dead(w) && !w->undone) w->unsure = true;
    if (end != DIBS__SQL_OK) return explain(t, "commit at", result);
    return DIBS_OK;
  case DIBS__TRANSACT_ROLLBACK:
    break;
  }
  if (!engine->in_transaction(w) || engine->script(w, "ROLLBACK") == DIBS__SQL_OK) return DIBS_OK;
  dibs__status status = explain(t, "roll back at", result);
  result->dead = true;
  return status;
}
