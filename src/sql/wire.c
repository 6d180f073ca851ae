/* SPDX-License-Identifier: MIT */
/* What every user of a wire needs. */
#include "sql/wire.h"

#include <stdio.h>

typedef enum dibs__sql_step step;

DIBS__MODULE_API step dibs__sql_begin(struct dibs__sql_wire *w) {
  return w->engine->put(w, w->inside ? "SAVEPOINT dibs" : w->engine->begin, NULL, 0);
}

DIBS__MODULE_API step dibs__sql_commit(struct dibs__sql_wire *w) {
  return w->engine->put(w, w->inside ? "RELEASE SAVEPOINT dibs" : "COMMIT", NULL, 0);
}

DIBS__MODULE_API void dibs__sql_rollback(struct dibs__sql_wire *w) {
  /* What went wrong before is what the caller wants to know, unless the connection is gone now. */
  struct dibs__sql_wire was = *w;
  step end = w->engine->put(w, w->inside ? "ROLLBACK TO SAVEPOINT dibs" : "ROLLBACK", NULL, 0);
  if (end == DIBS__SQL_FINE) end = w->engine->go(w, false);
  bool dead = end != DIBS__SQL_FINE && dibs__sql_dead(w);
  w->unsure = was.unsure;
  w->broke_at = was.broke_at;
  if (dead) return;
  w->trouble = was.trouble;
  snprintf(w->words, sizeof w->words, "%s", was.words);
}

DIBS__MODULE_API step dibs__sql_broke(struct dibs__sql_wire *w, enum dibs__sql_trouble trouble, const char *words) {
  w->trouble = trouble;
  w->unsure = false;
  snprintf(w->words, sizeof w->words, "%s", words);
  return DIBS__SQL_BROKE;
}

static dibs__status status_of(enum dibs__sql_trouble trouble) {
  switch (trouble) {
  case DIBS__SQL_DENIED:
    return DIBS_DENIED;
  case DIBS__SQL_DAMAGED:
    return DIBS_CORRUPT;
  case DIBS__SQL_NO_SPACE:
    return DIBS_NO_MEMORY;
  case DIBS__SQL_MISSING:
  case DIBS__SQL_REFUSED:
    return DIBS_INVALID;
  default:
    return DIBS_UNAVAILABLE;
  }
}

DIBS__MODULE_API dibs__status dibs__sql_excuse(const struct dibs__sql_wire *w, const char *doing, const char *store,
                                               struct dibs__said *said) {
  const char *next = "";
  if (w->trouble == DIBS__SQL_LATE) next = ": no answer before the deadline";
  if (w->trouble == DIBS__SQL_LOCKED) next = "; somebody holds the row for long: see lock_timeout";
  dibs__say(said, "can't %s %s: %s%s", doing, store, w->words, next);
  said->dead = dibs__sql_dead(w);
  return w->unsure ? DIBS_UNKNOWN : status_of(w->trouble);
}
