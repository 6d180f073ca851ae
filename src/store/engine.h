/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_ENGINE_H
#define DIBS_STORE_ENGINE_H
/*
 * The family `engine`: what a driver sees of the servers that it uses, for people (`dibs doctor`).  A driver that serves
 * it has its bit in dibs__identity.families; other drivers, and daemons of earlier versions, never get such an operation.
 *
 * It is for people alone: no program decides by a finding.  The core sends the operation alone in a batch, so that a
 * driver may carry it before all that it does with others, and may take until the deadline.
 *
 * A driver reports, as far as its engine has it:
 *
 *   server    the name and version of the server that the session uses
 *   role      what that server is among others: primary, standby, replica of, one server
 *   node      a server of the whole, one finding each, also those that do not answer: a server that is silent costs
 *             DIBS__ENGINE_NODE_MS at most, and all of them together leave before the deadline
 *   tls       whether the connection is encrypted, and whether the server's identity was verified
 *   setting   one finding for each setting on which a promise depends
 *   alarm     an alarm that the server has raised itself
 *
 * What a user may not see is a finding, too ("...: not visible to this user"), and it is fine.  A warning: a setting
 * weakens a promise.  Trouble: something is broken, or is about to stop the store.
 */
#include "store/store.h"

enum dibs__engine_verb {
  DIBS__ENGINE_DESCRIBE /* OK: `got`, in the order in which people read it */
};

enum {
  DIBS__ENGINE_CHECK_MAX = 16, /* bytes */
  DIBS__ENGINE_TEXT_MAX = 800, /* bytes of `found`, and of `next` */
  DIBS__ENGINE_FINDINGS = 256, /* more nodes than that are not listed */
  DIBS__ENGINE_NODE_MS = 1000, /* how long one server may be silent */
  DIBS__ENGINE_LEAVE_MS = 300  /* before the deadline: no further server is asked */
};

enum dibs__finding_level { DIBS__FINDING_FINE, DIBS__FINDING_WARNING, DIBS__FINDING_TROUBLE };

struct dibs__finding {
  dibs__str check, found; /* with a NUL after them, as `next` */
  dibs__str next;         /* the advice; empty: all is fine */
  uint32_t level;
};

struct dibs__engine_op {
  struct dibs__op op; /* bucket and mandate have no effect */
  /* Answers. */
  struct dibs__finding *got; /* malloc'd, one allocation; NULL: none */
  uint32_t got_count;
};

/* ---- For drivers: findings as they are collected ---- */

struct dibs__findings {
  struct dibs__finding_text *rows;
  size_t count, capacity;
  bool no_memory;
};

/* Texts are cut at their limits; bytes that are no UTF-8, and control characters, become '?', because they come from
 * servers.  `next` is the advice. */
void dibs__find(struct dibs__findings *to, const char *check, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dibs__find_warning(struct dibs__findings *to, const char *check, const char *next, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void dibs__find_trouble(struct dibs__findings *to, const char *check, const char *next, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Something that this user may not see. */
void dibs__find_hidden(struct dibs__findings *to, const char *check, const char *what);
/* Answers `op` with them: OK or NO_MEMORY.  Frees them. */
dibs__status dibs__findings_answer(struct dibs__findings *from, struct dibs__op *op);
/* Appends what `from` has, and empties it. */
void dibs__findings_move(struct dibs__findings *from, struct dibs__findings *to);
/* Appends what an operation has answered, and empties its answer. */
void dibs__findings_take(struct dibs__engine_op *from, struct dibs__findings *to);
/* Is this the operation of the batch?  Then it is alone. */
static inline bool dibs__is_engine(struct dibs__op *const ops[], size_t count) {
  return count == 1 && ops[0]->family == DIBS__FAM_ENGINE;
}
/* Until when the next server may be silent, of `left` servers that were not asked yet. */
dibs__tick dibs__engine_node_by(dibs__tick by, size_t left);

#endif
