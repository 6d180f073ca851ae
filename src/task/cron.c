/* SPDX-License-Identifier: MIT */
#include "task/cron.h"
#include "base/sha256.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__cron_line line_t;
typedef struct dibs__cron_state state_t;

/* ---- Digests ---- */

static void add_text(struct dibs__sha256 *hash, const char *text) {
  dibs__sha256_add(hash, text, strlen(text) + 1); /* with its NUL: no two lists of texts are the same bytes */
}

static void add_instant(struct dibs__sha256 *hash, int64_t at_ms) {
  char digits[32];
  snprintf(digits, sizeof digits, "%" PRId64, at_ms);
  add_text(hash, digits);
}

/* The first 64 bits. */
static uint64_t number_of(struct dibs__sha256 *hash) {
  char hex[65];
  dibs__sha256_end(hash, hex);
  hex[16] = '\0';
  return strtoull(hex, NULL, 16);
}

void dibs__cron_token(const char *space, const char *job, int64_t at_ms, char hex[65]) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  add_text(&hash, space);
  add_text(&hash, job);
  add_instant(&hash, at_ms);
  dibs__sha256_end(&hash, hex);
}

uint64_t dibs__cron_job_digest(const struct dibs__cron_job *job) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  add_text(&hash, job->name);
  add_text(&hash, job->text);
  add_text(&hash, job->zone_name ? job->zone_name : "");
  return number_of(&hash);
}

int64_t dibs__cron_start(const struct dibs__cron_job *job, int64_t at_ms) {
  struct dibs__sha256 hash;
  if (job->jitter_ms <= 0) return at_ms;
  dibs__sha256_begin(&hash);
  add_text(&hash, job->name);
  add_instant(&hash, at_ms);
  return at_ms + (int64_t)(number_of(&hash) % (uint64_t)job->jitter_ms);
}

/* ---- Decisions ---- */

/* Rounds down, also below 0. */
static int64_t second_of(int64_t ms) {
  return ms / 1000 - (ms % 1000 < 0);
}

int64_t dibs__cron_next(const struct dibs__cron_job *job, int64_t after_ms) {
  int64_t next = dibs__schedule_next(&job->schedule, job->zone, second_of(after_ms));
  return next > INT64_MAX / 1000 ? INT64_MAX : next * 1000;
}

static void add_due(struct dibs__cron_decision *to, const struct dibs__cron_job *job, int64_t at_ms) {
  assert(to->count < DIBS__CRON_DUE);
  to->due[to->count++] = (struct dibs__cron_due){at_ms, dibs__cron_start(job, at_ms)};
}

static void add_missed(struct dibs__cron_decision *to, int64_t at_ms) {
  to->missed++;
  to->last_missed = at_ms;
}

/* The oldest instant that may still fire. */
static int64_t horizon_of(const struct dibs__cron_job *job, int64_t now_ms) {
  int64_t window_ms = job->catch_up == DIBS_CATCH_UP_NONE ? 0 : job->window_ms;
  return now_ms - (window_ms > DIBS__CRON_IN_TIME_MS ? window_ms : DIBS__CRON_IN_TIME_MS);
}

/* Instants that are too old for the window.  Answers the first instant that is not too old, or INT64_MAX. */
static int64_t pass_old(const struct dibs__cron_job *job, int64_t decided_ms, int64_t horizon_ms,
                        struct dibs__cron_decision *to) {
  int64_t at_ms = dibs__cron_next(job, decided_ms);
  while (at_ms < horizon_ms && to->missed < DIBS__CRON_LOOKED_MAX) {
    add_missed(to, at_ms);
    at_ms = dibs__cron_next(job, at_ms);
  }
  return at_ms < horizon_ms ? dibs__cron_next(job, horizon_ms - 1) : at_ms;
}

void dibs__cron_decide(const struct dibs__cron_job *job, int64_t decided_ms, int64_t now_ms,
                       struct dibs__cron_decision *to) {
  int64_t made_up = 0; /* the latest missed instant, of a job that makes up for the last one */
  *to = (struct dibs__cron_decision){.decided_ms = decided_ms};
  if (decided_ms >= now_ms) return;
  int64_t at_ms = pass_old(job, decided_ms, horizon_of(job, now_ms), to);
  for (; at_ms <= now_ms && to->count < DIBS__CRON_DUE; at_ms = dibs__cron_next(job, at_ms)) {
    bool in_time = at_ms >= now_ms - DIBS__CRON_IN_TIME_MS;
    to->decided_ms = at_ms;
    if (in_time || job->catch_up == DIBS_CATCH_UP_ALL) {
      add_due(to, job, at_ms);
    } else if (job->catch_up == DIBS_CATCH_UP_LAST) {
      if (made_up) add_missed(to, made_up);
      made_up = at_ms;
    } else {
      add_missed(to, at_ms);
    }
  }
  if (at_ms > now_ms) to->decided_ms = now_ms;
  if (!made_up) return;
  /* A later firing makes up for it. */
  if (to->count > 0)
    add_missed(to, made_up);
  else
    add_due(to, job, made_up);
}

/* ---- The state ---- */

static const char head[] = "dibs-cron/1\n";

void dibs__cron_state_free(state_t *state) {
  free(state->lines);
  *state = (state_t){0};
}

/* Where the job is, or would be. */
static size_t place_of(const state_t *state, uint64_t job) {
  size_t low = 0, high = state->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (state->lines[middle].job < job)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

line_t *dibs__cron_state_find(const state_t *state, uint64_t job) {
  size_t at = place_of(state, job);
  return at < state->count && state->lines[at].job == job ? &state->lines[at] : NULL;
}

line_t *dibs__cron_state_add(state_t *state, uint64_t job, int64_t decided_ms) {
  size_t at = place_of(state, job);
  if (at < state->count && state->lines[at].job == job) return &state->lines[at];
  if (state->count == state->capacity) {
    size_t capacity = state->capacity * 2 + 16;
    line_t *lines = realloc(state->lines, capacity * sizeof *lines);
    if (!lines) return NULL;
    state->lines = lines;
    state->capacity = capacity;
  }
  memmove(state->lines + at + 1, state->lines + at, (state->count - at) * sizeof *state->lines);
  state->count++;
  state->lines[at] = (line_t){.job = job, .decided_ms = decided_ms};
  return &state->lines[at];
}

static bool read_line(state_t *state, const char *text, bool *no_memory) {
  line_t line;
  char rest;
  if (sscanf(text, "%16" SCNx64 " %" SCNd64 " %" SCNu64 " %" SCNu64 " %" SCNd64 "%c", &line.job, &line.decided_ms,
             &line.missed, &line.skipped, &line.last_missed, &rest) != 5)
    return false;
  line_t *to = dibs__cron_state_add(state, line.job, line.decided_ms);
  if (to) *to = line;
  *no_memory = !to;
  return to != NULL;
}

bool dibs__cron_state_read(state_t *state, const char *text, size_t length, bool *no_memory) {
  size_t at = sizeof head - 1;
  *state = (state_t){0};
  *no_memory = false;
  if (length < at || memcmp(text, head, at) != 0) return false;
  while (at < length) {
    char line[160];
    const char *end = memchr(text + at, '\n', length - at);
    size_t len = end ? (size_t)(end - (text + at)) : sizeof line;
    if (len < sizeof line) {
      memcpy(line, text + at, len);
      line[len] = '\0';
    }
    if (len >= sizeof line || !read_line(state, line, no_memory)) {
      dibs__cron_state_free(state);
      return false;
    }
    at += len + 1;
  }
  return true;
}

/* malloc'd: the lines that were decided in the last `kept_ms`. */
static char *write_lines(const state_t *state, int64_t now_ms, int64_t kept_ms, size_t *length) {
  enum { LINE_MAX_BYTES = 16 + 4 * 21 + 1 };
  size_t capacity = sizeof head + state->count * LINE_MAX_BYTES, at = sizeof head - 1;
  char *text = malloc(capacity);
  if (!text) return NULL;
  memcpy(text, head, sizeof head);
  for (size_t i = 0; i < state->count; i++) {
    const line_t *l = &state->lines[i];
    if (l->decided_ms < now_ms - kept_ms) continue;
    int n = snprintf(text + at, capacity - at, "%016" PRIx64 " %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n",
                     l->job, l->decided_ms, l->missed, l->skipped, l->last_missed);
    assert(n > 0 && (size_t)n < capacity - at);
    at += (size_t)n;
  }
  *length = at;
  return text;
}

char *dibs__cron_state_write(const state_t *state, int64_t now_ms, size_t *length) {
  char *text = write_lines(state, now_ms, DIBS__CRON_FORGET_MS, length);
  /* Too many: those of jobs that other tables had.  All lines of one table fit. */
  for (int64_t kept_ms = DIBS__CRON_FORGET_MS / 2; text && *length > DIBS_RECORD_MAX; kept_ms /= 2) {
    free(text);
    text = write_lines(state, now_ms, kept_ms, length);
    if (kept_ms == 0) break;
  }
  return text;
}
