/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_FIRING_H
#define DIBS_TASK_FIRING_H
/*
 * Firings in a store: tasks of the kind cron:SPACE, which the nodes of one crontab share; and what the nodes know
 * together, in the record cron:SPACE.
 *
 * A firing is added under a token of its job and instant: the token's row and the task are one transaction, so it is
 * added once, whichever nodes decide it.  Nothing here needs a leader.
 */
#include "dibs.h"
#include "history/history.h"
#include "task/cron.h"

enum { DIBS__CRON_SPACE_MAX = DIBS_CRON_NAME_MAX, DIBS__CRON_PAYLOAD_MAX = DIBS__CRONTAB_NAME + 64 };

void dibs__cron_kind(const char *space, char kind[DIBS_NAME_MAX + 1]);
/* Adds a firing, unless a node has added it.  *skipped: there is none, because the job was still running and its
 * firings do not overlap; each node gets the same answer.  By hand: it has no instant, and each token adds one
 * (`by_hand`: 64 digits; NULL: by its schedule).  Blocks for I/O.  OK; or a failure of the store, which may have added
 * it: repeat the call. */
dibs_status dibs__cron_fire(dibs_store *store, const char *space, const struct dibs__cron_job *job,
                            const struct dibs__cron_due *due, const char *by_hand, bool *skipped, uint64_t *nr,
                            dibs_error *error);

/* What a task says that is a firing. */
struct dibs__cron_said {
  char job[DIBS__CRONTAB_NAME + 1];
  int64_t at_ms;
  bool by_hand;
};
/* false: it is not a firing. */
bool dibs__cron_read_payload(const char *payload, size_t length, struct dibs__cron_said *said);

/* The store's clock, which decides what is due.  Every store that keeps tasks has it; UNSUPPORTED: this one does not.
 */
dibs_status dibs__cron_clock(dibs_store *store, struct dibs__store_clock *clock, dibs_error *error);

/* Reads what the nodes know; nothing yet is OK.  Free the state in any case. */
dibs_status dibs__cron_load(dibs_store *store, const char *space, struct dibs__cron_state *state, dibs_error *error);
/* Adds decisions: a later decided_ms replaces an earlier one, and its counts are added; an earlier one is dropped, for
 * another node has kept it.  *kept: how many were the first.  *state (empty, or from a load) is what all know now; free
 * it in any case.  now_ms: the store's clock. */
dibs_status dibs__cron_save(dibs_store *store, const char *space, const struct dibs__cron_line *changes, size_t count,
                            int64_t now_ms, struct dibs__cron_state *state, size_t *kept, dibs_error *error);

#endif
