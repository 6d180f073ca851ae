/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_TASK_H
#define DIBS_TASK_TASK_H
/* What the daemon needs of tasks beyond dibs/task.h. */
#include "dibs/cron.h"
#include "dibs/task.h"

/* A handle for a claim of a client elsewhere, which passes what it got with its claim: nothing is sent.  Extensions
 * last timeout_ms if their call does not say; 0: 30 s.  For dibs_task_free; it is not alive until an extension
 * succeeds. NULL: no memory. */
dibs_task *dibs__task_adopt(dibs_store *store, const char *kind, uint64_t nr, dibs_fence fence, int64_t timeout_ms,
                            uint32_t fails, int64_t age_ms);

/* After NOT_FOUND of dibs_tasks_claim: why there is no task, though some are in the store; NULL: no such reason. */
const char *dibs__task_claim_why(const dibs_error *error);

/* The part of dibs_worker_free that blocks: then its counts are final.  dibs_worker_free, dibs_worker_count and
 * dibs_worker_trouble may follow. */
void dibs__worker_end(dibs_worker *worker);

/* After dibs_task_end_many answered OK for it: an earlier call had ended it in the same way. */
bool dibs__task_end_repeated(const dibs_task *task);

/*
 * Adding once for a token, which the caller computes from a key of its client: a repeat adds nothing and answers as the
 * first request did, for a day, also after the task has finished.  Of another number of tasks it is INVALID.
 */
enum { DIBS__TASK_KEY_DIGITS = 64 };
/* Of what is added (a kind, or a fleet and a job) and a key of the client.  One scope each. */
void dibs__task_key_token(const char *scope, const char *what, const char *key, char token[DIBS__TASK_KEY_DIGITS + 1]);
/* dibs_task_add_many.  token NULL: each request adds.  *repeated: an earlier call had added them. */
dibs_status dibs__task_add_once(dibs_store *store, const char *kind, dibs_task_new *tasks, size_t count,
                                const char *token, bool *repeated, dibs_error *error);
/* dibs_cron_fire; a repeat answers HELD if the first one did. */
dibs_status dibs__cron_fire_once(dibs_store *store, const char *name, const dibs_cron_table *table, const char *job,
                                 const char *token, uint64_t *nr, dibs_error *error);

#endif
