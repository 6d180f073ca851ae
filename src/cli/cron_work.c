/* SPDX-License-Identifier: MIT */
/* The firings that a node has claimed, and their commands: see cron.h. */
#include "cli/cron.h"
#include "history/history.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  GRACE_MS = 2000,
  EXTEND_PART = 3,
  REPORT_AGAIN_MS = 1000,
  HISTORY_MS = 1000,
  UNKNOWN_JOB_MS = 3600000, /* how long a firing waits for a node that knows its job */
  OWN_VARIABLES = 6,
  READS = 64 /* of a pipe's buffer in one step */
};

typedef struct cron_work work_t;
typedef struct cron_works works_t;

/* ---- Starting ---- */

static const struct dibs__cron_job *find_job(const struct dibs__crontab *tab, const char *name) {
  for (size_t i = 0; i < tab->job_count; i++)
    if (strcmp(tab->jobs[i].name, name) == 0) return &tab->jobs[i];
  return NULL;
}

static void write_instant(char *to, size_t size, int64_t at_ms) {
  time_t at = (time_t)(at_ms / 1000);
  struct tm utc;
  if (gmtime_r(&at, &utc) == NULL || strftime(to, size, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) *to = '\0';
}

/* The variables of the crontab, then dibs' own.  The pointers are valid as long as `own` and the job are. */
struct variables {
  char own[OWN_VARIABLES][DIBS__CRONTAB_NAME + 4200];
  const char **list;
};

static bool make_variables(struct variables *v, const works_t *works, const struct dibs__cron_job *job,
                           const dibs_task *task, int64_t at_ms) {
  char instant[40];
  size_t count = 0;
  while (job->environment && job->environment[count] != NULL) count++;
  v->list = calloc(count + OWN_VARIABLES + 1, sizeof *v->list);
  if (v->list == NULL) return false;
  for (size_t i = 0; i < count; i++) v->list[i] = job->environment[i];
  write_instant(instant, sizeof instant, at_ms);
  snprintf(v->own[0], sizeof v->own[0], "DIBS_TASK=%" PRIu64, task->nr);
  snprintf(v->own[1], sizeof v->own[1], "DIBS_FENCE=%" PRIu64, task->fence.value);
  snprintf(v->own[2], sizeof v->own[2], "DIBS_ATTEMPT=%" PRIu32, task->attempt);
  snprintf(v->own[3], sizeof v->own[3], "DIBS_JOB=%s", job->name);
  snprintf(v->own[4], sizeof v->own[4], "DIBS_INSTANT=%s", instant);
  snprintf(v->own[5], sizeof v->own[5], "DIBS_STORE=%s", works->store_uri);
  for (size_t i = 0; i < OWN_VARIABLES; i++) v->list[count + i] = v->own[i];
  return true;
}

static const char *shell_of(const struct dibs__cron_job *job) {
  for (const char *const *v = job->environment; v != NULL && *v != NULL; v++)
    if (strncmp(*v, "SHELL=", 6) == 0 && (*v)[6] != '\0') return *v + 6;
  return "/bin/sh";
}

/* What the crontab has after the first %, or nothing. */
static int open_input(const struct dibs__cron_job *job) {
  if (job->input == NULL) return open("/dev/null", O_RDONLY | O_CLOEXEC);
  int fd = memfd_create("dibs-input", MFD_CLOEXEC);
  size_t length = strlen(job->input);
  for (size_t at = 0; fd >= 0 && at < length;) {
    ssize_t sent = write(fd, job->input + at, length - at);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      close(fd);
      return -1;
    }
    at += (size_t)sent;
  }
  if (fd >= 0) lseek(fd, 0, SEEK_SET);
  return fd;
}

/* The deadline of the claim, for the minder. */
static dibs__tick deadline_of(const work_t *w) {
  return dibs__tick_add_ms(dibs__tick_now(), dibs_task_left_ms(w->task));
}

static void tell(const work_t *w, enum minder_word word, dibs__tick at) {
  struct minder_head head = {.word = word, .ns = at.ns};
  if (w->minder >= 0) (void)dibs__cli_minder_send(w->minder, &head, NULL, 0);
}

/* 0, or errno. */
static int launch(works_t *works, work_t *w, const struct dibs__cron_job *job, const char *const *variables) {
  const char *const argv[] = {shell_of(job), "-c", job->command, NULL};
  int ends[2], error = 0, in = open_input(job);
  if (in < 0) return errno;
  if (pipe2(ends, O_CLOEXEC) != 0) {
    error = errno;
    close(in);
    return error;
  }
  const struct launch plan = {
      .name = w->job, .argv = argv, .environment = variables, .grace_ms = GRACE_MS, .in = in, .out = ends[1]};
  struct minder minder;
  if (!dibs__cli_launch(works->launcher, &plan, &minder)) error = errno;
  w->minder = minder.fd;
  close(in);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return error;
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  w->output = ends[0];
  tell(w, MINDER_START, deadline_of(w));
  return 0;
}

static void start(works_t *works, work_t *w, const struct dibs__cron_job *job, int64_t at_ms) {
  struct variables *v = malloc(sizeof *v);
  w->began = dibs__tick_now();
  w->extend_at = dibs__tick_add_ms(w->began, CRON_CLAIM_MS / EXTEND_PART);
  w->max_at = job->timeout_ms > 0 ? dibs__tick_add_ms(w->began, job->timeout_ms) : DIBS__TICK_NEVER;
  snprintf(w->command, sizeof w->command, "%s", job->command);
  if (v == NULL || !make_variables(v, works, job, w->task, at_ms))
    w->start_error = ENOMEM;
  else
    w->start_error = launch(works, w, job, v->list);
  if (v != NULL) free(v->list);
  free(v);
  works->broken = works->broken || w->start_error == EPIPE;
  if (w->start_error == 0) return;
  w->over = true;
  w->ended = w->began;
}

/* This node does not know the job, or the task is no firing: for another node, or nobody. */
static void decline(dibs_task *task, bool firing) {
  if (!firing || task->age_ms > UNKNOWN_JOB_MS)
    (void)!dibs_task_dead(task, firing ? "no node has this job in its crontab" : "this is no firing of dibs cron",
                          NULL);
  else
    (void)!dibs_task_relock(task, -1, NULL);
  dibs_task_free(task);
}

static void take(works_t *works, const struct dibs__crontab *tab, dibs_task *task) {
  char name[DIBS__CRONTAB_NAME + 1];
  int64_t at_ms;
  bool firing = dibs__cron_read_payload(task->payload, task->length, name, &at_ms);
  const struct dibs__cron_job *job = firing ? find_job(tab, name) : NULL;
  work_t *w = job != NULL ? calloc(1, sizeof *w) : NULL;
  if (w == NULL) {
    decline(task, firing);
    return;
  }
  w->task = task;
  w->minder = w->output = -1;
  snprintf(w->job, sizeof w->job, "%s", name);
  w->next = works->first;
  works->first = w;
  works->count++;
  start(works, w, job, at_ms);
}

dibs_status dibs__cli_cron_claim(works_t *works, const struct dibs__crontab *tab, bool *more, dibs_error *error) {
  enum { AT_ONCE = 16 };
  dibs_task *tasks[AT_ONCE];
  size_t count = 0, room = works->most - works->count;
  dibs_claim_options options = {.size = sizeof options, .timeout_ms = CRON_CLAIM_MS};
  *more = false;
  if (room == 0) return DIBS_OK;
  options.most = (uint32_t)(room < AT_ONCE ? room : AT_ONCE);
  dibs_status status = dibs_tasks_claim(works->store, works->kind, &options, tasks, &count, error);
  if (status == DIBS_NOT_FOUND) return DIBS_OK;
  if (status != DIBS_OK) return status;
  *more = count == options.most;
  for (size_t i = 0; i < count; i++) take(works, tab, tasks[i]);
  return DIBS_OK;
}

/* ---- While it runs ---- */

static void read_output(work_t *w) {
  char bytes[4096];
  for (int i = 0; i < READS && w->output >= 0; i++) {
    ssize_t got = read(w->output, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      close(w->output);
      w->output = -1;
      return;
    }
    dibs__cli_last_add(&w->tail, bytes, (size_t)got);
  }
}

static void end_over(work_t *w, int status) {
  w->over = true;
  w->status = status;
  w->ended = dibs__tick_now();
  close(w->minder);
  w->minder = -1;
  read_output(w);
  if (w->output >= 0) close(w->output);
  w->output = -1;
}

static void hear(work_t *w) {
  struct minder_head head;
  int heard;
  while (!w->over && (heard = dibs__cli_minder_receive(w->minder, &head, NULL, NULL)) != 0) {
    if (heard < 0) {
      w->killed = true; /* the minder, and the kernel has killed the command */
      end_over(w, SIGKILL);
    } else if (head.word == MINDER_NOT_STARTED) {
      w->start_error = head.number;
      end_over(w, 0);
    } else if (head.word == MINDER_ENDED) {
      end_over(w, head.number);
    } else if (head.word == MINDER_ENDING && head.number != 0) {
      w->lost = true; /* by itself: this node was stopped, or the store did not answer */
    }
  }
}

static void end_command(work_t *w) {
  if (!w->end_sent) tell(w, MINDER_END, DIBS__TICK_ZERO);
  w->end_sent = true;
}

void dibs__cli_cron_end_all(works_t *works) {
  for (work_t *w = works->first; w != NULL; w = w->next)
    if (!w->over) end_command(w);
}

/* Extends the claims that are due, together. */
static void extend_all(works_t *works) {
  enum { AT_ONCE = 100 };
  dibs_task *tasks[AT_ONCE];
  dibs_status statuses[AT_ONCE];
  work_t *due[AT_ONCE];
  size_t count = 0;
  dibs__tick now = dibs__tick_now();
  for (work_t *w = works->first; w != NULL && count < AT_ONCE; w = w->next) {
    if (w->over || w->lost || dibs__tick_before(now, w->extend_at)) continue;
    due[count] = w;
    tasks[count++] = w->task;
  }
  if (count == 0) return;
  dibs_status status = dibs_tasks_extend(tasks, count, CRON_CLAIM_MS, statuses, NULL);
  for (size_t i = 0; i < count; i++) {
    work_t *w = due[i];
    w->extend_at = dibs__tick_add_ms(dibs__tick_now(), REPORT_AGAIN_MS);
    if (status != DIBS_OK) continue;
    if (statuses[i] == DIBS_STALE || statuses[i] == DIBS_NOT_FOUND) {
      w->lost = true;
      end_command(w);
    } else if (statuses[i] == DIBS_OK) {
      w->extend_at = dibs__tick_add_ms(dibs__tick_now(), CRON_CLAIM_MS / EXTEND_PART);
      tell(w, MINDER_DEADLINE, deadline_of(w));
    }
  }
}

/* ---- The outcome ---- */

static void describe(const work_t *w, struct dibs__run_row *row) {
  row->code = WIFSIGNALED(w->status) ? WTERMSIG(w->status) : WEXITSTATUS(w->status);
  if (w->start_error != 0) {
    row->how = DIBS__RUN_NOT_RUN;
    row->code = w->start_error == ENOENT ? CLI_NOCMD : CLI_NOEXEC;
  } else if (w->lost) {
    row->how = DIBS__RUN_LOST;
  } else if (w->overtime) {
    row->how = DIBS__RUN_OVERTIME;
  } else if (w->killed || WIFSIGNALED(w->status)) {
    row->how = DIBS__RUN_KILLED;
  } else {
    row->how = row->code == 0 ? DIBS__RUN_DONE : DIBS__RUN_FAILED;
  }
}

static void keep_history(const works_t *works, const work_t *w) {
  char output[DIBS__RUN_OUTPUT_MAX];
  dibs__tick now = dibs__tick_now();
  struct dibs__run_row row = {.name = dibs__str_of(w->job, strlen(w->job)),
                              .kind = dibs__str_of("cron", 4),
                              .command = dibs__str_of(w->command, strlen(w->command)),
                              .fence = {w->task->fence.value},
                              .nr = w->task->nr,
                              .began_ms = dibs__tick_left_ms(w->began, now),
                              .ended_ms = dibs__tick_left_ms(w->ended, now)};
  dibs_error error = {0};
  if (works->no_history || (works->broken && w->start_error != 0)) return;
  describe(w, &row);
  row.output = dibs__str_of(output, dibs__cli_last_read(&w->tail, output));
  dibs_status status = dibs__history_put(works->store, &row, dibs__tick_add_ms(now, HISTORY_MS), &error);
  if (status != DIBS_OK) dibs__cli_note(works->globals, "a run of '%s' is not in the history: %s", w->job, error.text);
}

/* A firing that ran is done, however its command ended: a schedule is no retry.  Only a node that dies in the middle
 * leaves it to another one.  true: it is settled. */
static bool report(const works_t *works, const work_t *w) {
  char result[80];
  struct dibs__run_row row = {.how = 0};
  if (w->lost || dibs_task_left_ms(w->task) == 0) return true; /* it is another node's */
  if (works->broken && w->start_error != 0) return dibs_task_release(w->task, NULL) != DIBS_UNAVAILABLE;
  describe(w, &row);
  snprintf(result, sizeof result, "%s %" PRId32, dibs__history_end_name(row.how), row.code);
  dibs_status status = dibs_task_done(w->task, result, NULL);
  return status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN;
}

/* true: nothing is left to do. */
static bool settle(const works_t *works, work_t *w) {
  dibs__tick now = dibs__tick_now();
  if (!w->over || dibs__tick_before(now, w->report_at)) return false;
  if (!report(works, w)) {
    w->report_at = dibs__tick_add_ms(now, REPORT_AGAIN_MS);
    return false;
  }
  keep_history(works, w);
  return true;
}

static void watch(work_t *w) {
  if (w->over) return;
  read_output(w);
  hear(w);
  if (w->over || dibs__tick_before(dibs__tick_now(), w->max_at) || w->end_sent) return;
  w->overtime = true;
  end_command(w);
}

void dibs__cli_cron_step(works_t *works) {
  for (work_t *w = works->first; w != NULL; w = w->next) watch(w);
  extend_all(works);
  for (work_t **at = &works->first; *at != NULL;) {
    work_t *w = *at;
    if (!settle(works, w)) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    works->count--;
    dibs_task_free(w->task);
    free(w);
  }
}

void dibs__cli_cron_request(const works_t *works, struct pollfd *polls) {
  for (const work_t *w = works->first; w != NULL; w = w->next, polls += CRON_POLLS) {
    polls[0] = (struct pollfd){.fd = w->minder, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = w->output, .events = POLLIN};
  }
}

dibs__tick dibs__cli_cron_due(const works_t *works) {
  dibs__tick due = DIBS__TICK_NEVER;
  for (const work_t *w = works->first; w != NULL; w = w->next) {
    if (w->over) {
      due = dibs__tick_min(due, w->report_at);
      continue;
    }
    if (!w->lost) due = dibs__tick_min(due, w->extend_at);
    if (!w->end_sent) due = dibs__tick_min(due, w->max_at);
  }
  return due;
}
