/* SPDX-License-Identifier: MIT */
#include "task/firing.h"
#include "base/text.h"
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVE_TRIES = 8 };

/* A token is kept for longer than a node may decide its instant again: the window, a pause of a node, and a restored
 * backup.  A job that fires each second would keep millions of tokens for that long, so it keeps the last ones. */
#define TOKEN_LEAST_MS (INT64_C(2) * 86400000)
#define TOKEN_MOST_MS (INT64_C(40) * 86400000)
enum { TOKENS = 100000 };

struct firing {
  dibs_store *store;
  const struct dibs__cron_job *job;
  char kind[DIBS_NAME_MAX + 1], token[65], payload[DIBS__CRON_PAYLOAD_MAX];
  int64_t start_ms, token_ms;
  dibs__tick by;
  bool skipped;
  uint64_t nr;
};

void dibs__cron_kind(const char *space, char kind[DIBS_NAME_MAX + 1]) {
  snprintf(kind, DIBS_NAME_MAX + 1, "cron:%.*s", DIBS__CRON_SPACE_MAX, space);
}

/* "1700000000000 nightly", by hand "hand 1700000000000 nightly". */
static const char hand[] = "hand ";

bool dibs__cron_read_payload(const char *payload, size_t length, struct dibs__cron_said *said) {
  char text[DIBS__CRON_PAYLOAD_MAX], rest;
  int name = 0;
  if (length >= sizeof text) return false;
  memcpy(text, payload, length);
  text[length] = '\0';
  said->by_hand = strncmp(text, hand, sizeof hand - 1) == 0;
  const char *at = said->by_hand ? text + sizeof hand - 1 : text;
  if (sscanf(at, "%" SCNd64 " %n%c", &said->at_ms, &name, &rest) != 2) return false;
  size_t len = strlen(at + name);
  if (len > DIBS__CRONTAB_NAME) return false;
  memcpy(said->job, at + name, len + 1);
  return true;
}

dibs_status dibs__cron_clock(dibs_store *store, struct dibs__store_clock *clock, dibs_error *error) {
  dibs_status status = dibs__history_clock(store, clock, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS), error);
  if (status == DIBS_UNSUPPORTED)
    return dibs__fail(error, status, "%s keeps no tasks, which the firings are: %s", dibs_store_uri(store),
                      dibs__database_advice(store));
  return status;
}

static int64_t token_ms_of(const struct dibs__cron_job *job, int64_t at_ms) {
  int64_t next_ms = dibs__cron_next(job, at_ms);
  int64_t ms = next_ms == INT64_MAX ? TOKEN_MOST_MS : (next_ms - at_ms) * TOKENS;
  if (ms > TOKEN_MOST_MS) ms = TOKEN_MOST_MS;
  if (ms < TOKEN_LEAST_MS) ms = TOKEN_LEAST_MS;
  return ms + job->window_ms;
}

static dibs_status fire_once(void *arg) {
  struct firing *f = arg;
  size_t name = strlen(f->job->name), payload = strlen(f->payload), kind = strlen(f->kind);
  struct dibs__request *request = dibs__request_make(f->store, DIBS__FAM_TASK, NULL,
                                                     sizeof(struct dibs__task_new) + kind + name + payload + 64 + 16);
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__task_op *op = &request->task;
  op->news = dibs__request_array(request, sizeof *op->news);
  op->count = 1;
  op->kind = dibs__request_keep(request, f->kind, kind);
  op->token = dibs__request_keep(request, f->token, 64);
  op->token_ms = f->token_ms;
  op->news[0].payload = dibs__request_keep(request, f->payload, payload);
  if (f->job->overlap == DIBS_OVERLAP_SKIP) op->news[0].unique = dibs__request_keep(request, f->job->name, name);
  if (f->job->overlap == DIBS_OVERLAP_QUEUE) op->news[0].serial = dibs__request_keep(request, f->job->name, name);
  op->news[0].at_ms = f->start_ms;
  dibs_status status = dibs__request_carry(request, DIBS__TASK_ADD, f->by);
  if (status == DIBS_OK) {
    f->nr = op->news[0].nr;
    f->skipped = op->news[0].status == DIBS_REPLAY;
    if (op->news[0].status == DIBS_INVALID) status = DIBS_INVALID;
  }
  dibs__request_drop(request);
  return status;
}

dibs_status dibs__cron_fire(dibs_store *store, const char *space, const struct dibs__cron_job *job,
                            const struct dibs__cron_due *due, const char *by_hand, bool *skipped, uint64_t *nr,
                            dibs_error *error) {
  struct firing f = {.store = store, .job = job, .start_ms = due->start_ms};
  *skipped = false;
  *nr = 0;
  dibs_status status = dibs__enter(store, "dibs cron", error);
  if (status != DIBS_OK) return status;
  status = dibs__task_served(store, NULL, error);
  dibs__cron_kind(space, f.kind);
  dibs__cron_token(space, job->name, due->at_ms, f.token);
  f.token_ms = token_ms_of(job, due->at_ms);
  if (by_hand) {
    memcpy(f.token, by_hand, sizeof f.token);
    f.start_ms = 0;
    f.token_ms = DIBS__TASK_KEY_MS;
  }
  snprintf(f.payload, sizeof f.payload, "%s%" PRId64 " %s", by_hand ? hand : "", due->at_ms, job->name);
  f.by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  if (status == DIBS_OK) {
    status = dibs__task_repeat(store, f.by, DIBS__AFTER_UNKNOWN, fire_once, &f);
    if (status == DIBS_OK)
      dibs__rouse_listeners(store, f.kind);
    else
      dibs__explain(store, status, "adding a firing of", job->name, error);
  }
  dibs__exit(store);
  *skipped = f.skipped;
  *nr = f.nr;
  return status;
}

/* ---- What the nodes know together ---- */

static dibs_status load(dibs_store *store, const char *key, struct dibs__cron_state *state, char *version, size_t size,
                        dibs_error *error) {
  dibs_record *record = NULL;
  bool no_memory = false;
  *state = (struct dibs__cron_state){0};
  *version = '\0';
  dibs_status status = dibs_record_get(store, key, NULL, &record, error);
  if (status == DIBS_NOT_FOUND) return DIBS_OK;
  if (status != DIBS_OK) return status;
  snprintf(version, size, "%s", record->version);
  if (!dibs__cron_state_read(state, record->values[0].data, record->values[0].length, &no_memory))
    status = no_memory
                 ? dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the state of \"%s\"", key)
                 : dibs__fail(error, DIBS_CORRUPT,
                              "the record \"%s\" is not what dibs cron writes; remove it with dibs record rm", key);
  dibs_record_free(record);
  return status;
}

dibs_status dibs__cron_load(dibs_store *store, const char *space, struct dibs__cron_state *state, dibs_error *error) {
  char key[DIBS_NAME_MAX + 1], version[DIBS_VERSION_MAX + 1];
  dibs__cron_kind(space, key);
  return load(store, key, state, version, sizeof version, error);
}

/* false: no memory. */
static bool apply(struct dibs__cron_state *state, const struct dibs__cron_line *changes, size_t count, size_t *kept) {
  *kept = 0;
  for (size_t i = 0; i < count; i++) {
    const struct dibs__cron_line *c = &changes[i];
    bool known = dibs__cron_state_find(state, c->job) != NULL;
    struct dibs__cron_line *line = dibs__cron_state_add(state, c->job, c->decided_ms);
    if (!line) return false;
    if (known && line->decided_ms >= c->decided_ms) continue;
    line->decided_ms = c->decided_ms;
    line->missed += c->missed;
    line->skipped += c->skipped;
    ++*kept;
    if (c->missed) line->last_missed = c->last_missed;
  }
  return true;
}

static dibs_status put(dibs_store *store, const char *key, const struct dibs__cron_state *state, const char *version,
                       int64_t now_ms, dibs_error *error) {
  dibs_record_options options = {.size = sizeof options};
  size_t length;
  char *text = dibs__cron_state_write(state, now_ms, &length);
  if (!text) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the state of \"%s\"", key);
  dibs_value value = {text, length};
  if (*version)
    options.if_version = version;
  else
    options.flags = DIBS_IF_ABSENT;
  dibs_status status = dibs_record_put(store, key, &value, 1, &options, NULL, error);
  free(text);
  return status;
}

dibs_status dibs__cron_save(dibs_store *store, const char *space, const struct dibs__cron_line *changes, size_t count,
                            int64_t now_ms, struct dibs__cron_state *state, size_t *kept, dibs_error *error) {
  char key[DIBS_NAME_MAX + 1], version[DIBS_VERSION_MAX + 1];
  dibs_status status = DIBS_CONFLICT;
  *kept = 0;
  dibs__cron_kind(space, key);
  /* NOT_FOUND: it was removed in between. */
  for (int i = 0; i < SAVE_TRIES && (status == DIBS_CONFLICT || status == DIBS_NOT_FOUND); i++) {
    dibs__cron_state_free(state);
    status = load(store, key, state, version, sizeof version, error);
    if (status == DIBS_OK && !apply(state, changes, count, kept))
      status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the state of \"%s\"", key);
    if (status == DIBS_OK && *kept > 0) status = put(store, key, state, version, now_ms, error);
  }
  return status;
}
