/* SPDX-License-Identifier: MIT */
#ifndef DIBS_INFO_INFO_H
#define DIBS_INFO_INFO_H
/*
 * What listings return, as JSON and in words: the same in the output of the commands and in the answers of the daemon.
 * Programs link it; it is no part of libdibs.  Each function that takes a `dibs__json` adds members to the object that
 * is open.
 */
#include "base/json.h"
#include "dibs/admin.h"
#include "dibs/cron.h"
#include "dibs/task.h"

/* "ready", "claimed", ... */
const char *dibs__info_task_state(uint32_t state);
/* The bits of a list of states, with commas, also "finished" and "unfinished".  The first word of it that is no state,
 * with its length; NULL: all are. */
const char *dibs__info_task_states(const char *list, uint32_t *bits, size_t *length);
void dibs__info_task(struct dibs__json *json, const dibs_task_info *task);
void dibs__info_run(struct dibs__json *json, const dibs_run_info *run);
void dibs__info_cron_job(struct dibs__json *json, const dibs_cron_info *job);

extern const char *const dibs__info_breakers[];      /* by dibs_breaker */
extern const char *const dibs__info_breaker_hands[]; /* by dibs_hand; ended by NULL */
const char *dibs__info_strictness(dibs_strictness strictness);
/* Of the count at this position; NULL: there is none. */
const char *dibs__info_count_name(size_t nth);
/* All but its name and its store. */
void dibs__info_tier(struct dibs__json *json, const dibs_tier_info *tier);
/* The name of the tier at this position; NULL: there is none. */
typedef const char *dibs__info_tier_name(const void *tiers, size_t nth);
void dibs__info_tier_client(struct dibs__json *json, const dibs_tier_client *client, dibs__info_tier_name *name_of,
                            const void *tiers);
/* What concerns all tiers. */
void dibs__info_tiers(struct dibs__json *json, const dibs_tiers_info *info, dibs__info_tier_name *name_of,
                      const void *tiers);
/* As the member "counts". */
void dibs__info_counts(struct dibs__json *json, const uint64_t counts[DIBS_TIERS_COUNTS]);

#endif
