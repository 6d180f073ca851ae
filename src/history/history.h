/* SPDX-License-Identifier: MIT */
#ifndef DIBS_HISTORY_HISTORY_H
#define DIBS_HISTORY_HISTORY_H
/*
 * What ran: for dibs_runs, dibs_runs_add and dibs_runs_keep, and for the commands that keep their own runs.
 */
#include "dibs/admin.h"
#include "store/run.h"

/* Keeps a run.  Its id is drawn; its instants are how many ms ago; `host` empty: the owner of the store.  A command
 * that is too long is cut at its end, output at its beginning.  Blocks until `by` at most.
 * OK; UNSUPPORTED (the store keeps no history); INVALID; or a failure of the store. */
dibs_status dibs__history_put(dibs_store *store, const struct dibs__run_row *row, dibs__tick by, dibs_error *error);
/* dibs_runs; *off: the store is set to keep no runs. */
dibs_status dibs__history_list(dibs_store *store, const dibs_runs_options *options, dibs_run_fn fn, void *user,
                               bool *off, dibs_error *error);
/* A position in a listing: behind this run. */
struct dibs__run_at {
  int64_t ended_ms; /* 0: before the first */
  dibs__id id;
};
/* The same from *at on; *at becomes the position of the last run that was listed. */
dibs_status dibs__history_page(dibs_store *store, const dibs_runs_options *options, struct dibs__run_at *at,
                               dibs_run_fn fn, void *user, bool *off, dibs_error *error);
/* The store's clock, in ms since 1970, at an instant between `before` and `after`.  Statuses as dibs__history_put. */
struct dibs__store_clock {
  int64_t ms;
  dibs__tick before, after;
};
dibs_status dibs__history_clock(dibs_store *store, struct dibs__store_clock *clock, dibs__tick by, dibs_error *error);
/* "done", "failed", ...; NULL: there is no such end. */
const char *dibs__history_end_name(uint32_t how);

#endif
