/* SPDX-License-Identifier: MIT */
#include "info/info.h"
#include "history/history.h"

#include <string.h>

/* ---- Tasks ---- */

static const char *const states[DIBS_TASK_STATES] = {"arrived", "ready", "claimed", "waiting",  "blocked",
                                                     "parked",  "done",  "dead",    "cancelled"};
enum {
  FINISHED = 1 << DIBS_TASK_DONE | 1 << DIBS_TASK_DEAD | 1 << DIBS_TASK_CANCELLED,
  UNFINISHED = (1 << DIBS_TASK_STATES) - 1 - FINISHED
};

const char *dibs__info_task_state(uint32_t state) {
  return state < DIBS_TASK_STATES ? states[state] : "unknown";
}

static bool is_word(const char *text, size_t length, const char *word) {
  return length == strlen(word) && strncmp(text, word, length) == 0;
}

static uint32_t bits_of(const char *text, size_t length) {
  for (uint32_t i = 0; i < DIBS_TASK_STATES; i++)
    if (is_word(text, length, states[i])) return 1u << i;
  if (is_word(text, length, "finished")) return FINISHED;
  return is_word(text, length, "unfinished") ? UNFINISHED : 0;
}

const char *dibs__info_task_states(const char *list, uint32_t *bits, size_t *length) {
  *bits = 0;
  for (; *list; list += *length + (list[*length] == ',')) {
    *length = strcspn(list, ",");
    uint32_t more = bits_of(list, *length);
    if (more == 0) return list;
    *bits |= more;
  }
  return NULL;
}

void dibs__info_task(struct dibs__json *j, const dibs_task_info *info) {
  dibs__json_uint(j, "task", info->nr);
  dibs__json_text(j, "kind", info->kind);
  dibs__json_text(j, "state", dibs__info_task_state(info->state));
  dibs__json_text(j, "phase", info->phase);
  dibs__json_text(j, "key", info->serial);
  dibs__json_text(j, "unique", info->unique);
  dibs__json_int(j, "priority", info->priority);
  dibs__json_known(j, "fence", (int64_t)info->fence.value, info->fence.value != 0);
  dibs__json_uint(j, "attempts", info->attempts);
  dibs__json_uint(j, "failures", info->fails);
  dibs__json_uint(j, "max_failures", info->tries);
  dibs__json_text(j, "owner", info->owner);
  dibs__json_int(j, "added_at_ms", info->made_ms);
  dibs__json_known(j, "due_at_ms", info->due_ms, info->due_ms != 0);
  dibs__json_known(j, "claimed_at_ms", info->began_ms, info->began_ms != 0);
  dibs__json_int(j, "changed_at_ms", info->at_ms);
  dibs__json_bytes(j, "text", info->text, info->text_length);
}

/* ---- Runs ---- */

void dibs__info_run(struct dibs__json *j, const dibs_run_info *run) {
  dibs__json_text(j, "name", run->name);
  dibs__json_text(j, "kind", run->kind);
  dibs__json_text(j, "outcome", dibs__history_end_name(run->how));
  dibs__json_int(j, "code", run->code);
  dibs__json_int(j, "started_at_ms", run->began_ms);
  dibs__json_int(j, "ended_at_ms", run->ended_ms);
  dibs__json_int(j, "duration_ms", run->ended_ms - run->began_ms);
  dibs__json_text(j, "host", run->host);
  dibs__json_known(j, "fence", (int64_t)run->fence.value, run->fence.value != 0);
  dibs__json_known(j, "task", (int64_t)run->task, run->task != 0);
  dibs__json_text(j, "command", run->command);
  dibs__json_bytes(j, "output", run->output, run->output_length);
}

void dibs__info_cron_job(struct dibs__json *j, const dibs_cron_info *job) {
  bool ran = job->last_ms >= 0;
  dibs__json_text(j, "name", job->name);
  dibs__json_text(j, "schedule", job->schedule);
  dibs__json_text(j, "zone", job->zone);
  dibs__json_text(j, "command", job->command);
  dibs__json_known(j, "next_at_ms", job->next_ms, job->next_ms >= 0);
  dibs__json_known(j, "last_at_ms", job->last_ms, ran);
  dibs__json_text(j, "last_outcome", ran ? dibs__history_end_name(job->last_how) : NULL);
  dibs__json_known(j, "last_code", job->last_code, ran);
  dibs__json_uint(j, "missed", job->missed);
  dibs__json_known(j, "last_missed_at_ms", job->last_missed_ms, job->last_missed_ms >= 0);
  dibs__json_uint(j, "skipped", job->skipped);
}

/* ---- Tiers ---- */

const char *const dibs__info_breakers[] = {"closed", "open", "half-open"};
const char *const dibs__info_breaker_hands[] = {"auto", "open", "closed", NULL};
static const char *const counts[DIBS_TIERS_COUNTED] = {[DIBS_TIERS_ACQUIRED] = "acquired",
                                                       [DIBS_TIERS_BUSY] = "busy",
                                                       [DIBS_TIERS_LOST] = "lost",
                                                       [DIBS_TIERS_FALLBACK] = "fallback",
                                                       [DIBS_TIERS_FAILED] = "failed",
                                                       [DIBS_TIERS_STALE] = "stale",
                                                       [DIBS_TIERS_MOVES] = "moves",
                                                       [DIBS_TIERS_EPOCHS] = "epochs",
                                                       [DIBS_TIERS_TURNS] = "breaker_opened",
                                                       [DIBS_TIERS_LEAST_STRICT] = "least_strict",
                                                       [DIBS_TIERS_WENT_BACK] = "anchor_rollbacks"};

const char *dibs__info_strictness(dibs_strictness strictness) {
  static const char *const names[] = {"fenced", "strict", "least-strict"};
  return names[strictness];
}

const char *dibs__info_count_name(size_t nth) {
  return nth < DIBS_TIERS_COUNTED ? counts[nth] : NULL;
}

void dibs__info_counts(struct dibs__json *j, const uint64_t values[DIBS_TIERS_COUNTS]) {
  dibs__json_open(j, "counts", '{');
  for (size_t i = 0; i < DIBS_TIERS_COUNTED; i++) dibs__json_uint(j, counts[i], values[i]);
  dibs__json_close(j, '}');
}

/* What this process sees of it. */
static void write_local(struct dibs__json *j, const dibs_tier_info *tier) {
  dibs__json_open(j, "local", '{');
  dibs__json_text(j, "breaker", dibs__info_breakers[tier->breaker]);
  dibs__json_bool(j, "reachable", tier->reached);
  dibs__json_text(j, "last_error", tier->trouble);
  dibs__json_uint(j, "calls", tier->calls);
  dibs__json_uint(j, "failed_percent", tier->failed_percent);
  dibs__json_uint(j, "slow_percent", tier->slow_percent);
  dibs__json_uint(j, "operations", tier->operations);
  dibs__json_uint(j, "failures", tier->failures);
  dibs__json_known(j, "p50_ns", (int64_t)tier->p50_ns, tier->p50_ns > 0);
  dibs__json_known(j, "p99_ns", (int64_t)tier->p99_ns, tier->p99_ns > 0);
  dibs__json_known(j, "max_ns", (int64_t)tier->max_ns, tier->max_ns > 0);
  dibs__json_close(j, '}');
}

void dibs__info_tier(struct dibs__json *j, const dibs_tier_info *tier) {
  dibs__json_bool(j, "down", tier->down);
  dibs__json_text(j, "breaker_mode", dibs__info_breaker_hands[tier->hand]);
  dibs__json_uint(j, "rollout_percent", tier->percent);
  dibs__json_uint(j, "buckets", tier->buckets);
  dibs__json_uint(j, "buckets_wanted", tier->wanted);
  dibs__json_uint(j, "buckets_leaving", tier->leaving);
  dibs__json_known(j, "state_age_ms", tier->turned_ms, tier->turned_ms >= 0);
  dibs__json_int(j, "min_down_ms", tier->dwell_ms);
  dibs__json_uint(j, "clients_active", tier->active);
  dibs__json_uint(j, "clients_down", tier->clients_down);
  dibs__json_uint(j, "clients_up", tier->clients_well);
  write_local(j, tier);
}

void dibs__info_tier_client(struct dibs__json *j, const dibs_tier_client *client, dibs__info_tier_name *name_of,
                            const void *tiers) {
  dibs__json_text(j, "owner", client->owner);
  dibs__json_bool(j, "self", client->us);
  dibs__json_int(j, "age_ms", client->age_ms);
  dibs__json_open(j, "tiers", '[');
  const char *name;
  for (uint32_t i = 0; i < client->tiers && (name = name_of(tiers, i)); i++) {
    dibs__json_open(j, NULL, '{');
    dibs__json_text(j, "name", name);
    dibs__json_bool(j, "active", client->active[i]);
    dibs__json_bool(j, "down", client->down[i]);
    dibs__json_bool(j, "up", client->well[i]);
    dibs__json_text(j, "breaker", dibs__info_breakers[client->breaker[i]]);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
  dibs__info_counts(j, client->counts);
}

void dibs__info_tiers(struct dibs__json *j, const dibs_tiers_info *info, dibs__info_tier_name *name_of,
                      const void *tiers) {
  dibs__json_text(j, "strictness", dibs__info_strictness(info->strictness));
  dibs__json_text(j, "pinned", info->pinned >= 0 ? name_of(tiers, (size_t)info->pinned) : NULL);
  dibs__json_bool(j, "all_tiers_down", info->on_their_own);
  dibs__json_known(j, "anchor_confirmed_age_ms", info->confirmed_ms, info->confirmed_ms >= 0);
  dibs__json_known(j, "anchor_rollback_age_ms", info->restored_ms, info->restored_ms >= 0);
  dibs__json_uint(j, "epochs_left_percent", info->epochs_left_percent);
}
