/* SPDX-License-Identifier: MIT */
#include "cli/job.h"
#include "base/duration.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PHASE_FILE_MAX = 65536, JOB_NAME_MAX = 100 };

struct job {
  struct run run; /* first */
  struct job_pool *pool;
  dibs_task *task;
  struct tail_pipe tail;
  size_t slot;
  char phase_file[96];
};

/* ---- What the command gets ---- */

/* What guards the writes of the command: the lease of the lane, whose fence grows with each owner of the key. */
static void add_lane(const struct job *job, char to[MINDER_TEXT_MAX], size_t *length) {
  const dibs_lane *lane = job->task->lane;
  dibs_lease *lease = dibs_lane_lease(lane);
  char number[32], id[33] = "";
  (void)!dibs_lease_id(lease, id, NULL); /* of a lost lease: the command is ended before it begins */
  dibs__cli_run_variable(to, length, "DIBS_TOPIC", job->pool->topic);
  snprintf(number, sizeof number, "%" PRIu32, dibs_lane_number(lane));
  dibs__cli_run_variable(to, length, "DIBS_LANE", number);
  snprintf(number, sizeof number, "%" PRIu32, dibs_lane_lanes(lane));
  dibs__cli_run_variable(to, length, "DIBS_LANES", number);
  dibs__cli_run_variable(to, length, "DIBS_NAME", dibs_lease_name(lease));
  dibs__cli_run_variable(to, length, "DIBS_LEASE", id);
  snprintf(number, sizeof number, "%" PRIu64, dibs_lane_fence(lane).value);
  dibs__cli_run_variable(to, length, "DIBS_FENCE", number);
  snprintf(number, sizeof number, "%" PRId64 "ms", job->pool->lane_ttl_ms);
  dibs__cli_run_variable(to, length, "DIBS_TTL", number);
}

/* The variables of a lease that dibs itself may run under are removed.  DIBS_FENCE is that of the claim, or of the
 * lane. */
static size_t job_environment(const struct job *job, char to[MINDER_TEXT_MAX]) {
  static const char *const removed[] = {"DIBS_NAME", "DIBS_LEASE", "DIBS_SLOT", "DIBS_TTL"};
  const dibs_task *task = job->task;
  char number[32];
  size_t length = 0;
  for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
    if (task->lane == NULL || strcmp(removed[i], "DIBS_SLOT") == 0) dibs__cli_run_variable(to, &length, removed[i], "");
  if (task->lane != NULL) add_lane(job, to, &length);
  bool own = job->pool->table != NULL;
  snprintf(number, sizeof number, "%" PRIu64, task->nr);
  dibs__cli_run_variable(to, &length, "DIBS_TASK", own ? task->key : number);
  snprintf(number, sizeof number, "%" PRIu64, task->fence.value);
  if (task->lane == NULL) dibs__cli_run_variable(to, &length, "DIBS_FENCE", number);
  snprintf(number, sizeof number, "%" PRIu32, task->attempt);
  dibs__cli_run_variable(to, &length, "DIBS_ATTEMPT", own ? "" : number);
  dibs__cli_run_variable(to, &length, "DIBS_KIND", task->kind);
  dibs__cli_run_variable(to, &length, "DIBS_PHASE", task->phase);
  dibs__cli_run_variable(to, &length, "DIBS_KEY", own ? task->key : task->serial);
  dibs__cli_run_variable(to, &length, "DIBS_NEXT_PHASE", job->phase_file);
  dibs__cli_run_variable(to, &length, "DIBS_STORE", job->pool->store_uri);
  return length;
}

/* ---- Its outcome ---- */

/* The end of the output, below a line about the end of the command ("": none). */
static void write_text(const struct job *job, const char *line, char to[DIBS_TASK_TEXT_MAX + 1]) {
  char output[DIBS__RUN_OUTPUT_MAX];
  size_t length = dibs__cli_last_read(&job->tail.tail, output);
  size_t at = strlen(line), capacity = DIBS_TASK_TEXT_MAX - at - 1, from = length > capacity ? length - capacity : 0;
  bool whole = from == 0 && job->tail.tail.seen == length;
  /* Not from the middle of a character on. */
  while (!whole && from < length && ((unsigned char)output[from] & 0xc0) == 0x80) from++;
  memcpy(to, line, at);
  if (at > 0 && from < length) to[at++] = '\n';
  for (; from < length; from++) to[at++] = output[from] ? output[from] : ' ';
  while (at > 0 && to[at - 1] == '\n') at--;
  to[at] = '\0';
}

/* The last line of the file.  false: there is none, or it can't be a phase. */
static bool read_phase(const char *path, char phase[DIBS_NAME_MAX + 1]) {
  char *text = malloc(PHASE_FILE_MAX);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* the command may have made a pipe of it */
  ssize_t got = text != NULL && fd >= 0 ? read(fd, text, PHASE_FILE_MAX) : -1;
  size_t length = got > 0 ? (size_t)got : 0;
  if (fd >= 0) close(fd);
  while (length > 0 && text[length - 1] == '\n') length--;
  size_t at = length;
  while (at > 0 && text[at - 1] != '\n') at--;
  bool fine = length > at && dibs__name_check(text + at, length - at, DIBS_NAME_MAX, NULL) == DIBS__NAME_OK;
  if (fine) {
    memcpy(phase, text + at, length - at);
    phase[length - at] = '\0';
  }
  free(text);
  return fine;
}

/* In a table of the user's, where nothing is done or dead: the row is free for its next step. */
static dibs_verdict next_step(const struct job *job, dibs_work_reply *reply) {
  (void)read_phase(job->phase_file, reply->phase);
  return DIBS_END_NEXT;
}

/* `line` is empty at first, and stays so for a command that ended as it should. */
static dibs_verdict judge_status(const struct job *job, dibs_work_reply *reply, char *line, size_t size) {
  int status = job->run.status;
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == JOB_DONE) return job->pool->table != NULL ? next_step(job, reply) : DIBS_END_DONE;
  if (job->pool->zero_or_failed) {
    dibs__cli_run_describe(line, size, status);
    return job->run.stopped && !job->run.overtime ? DIBS_END_NEXT : DIBS_END_FAIL;
  }
  if (code == JOB_WAIT) return DIBS_END_WAIT;
  if (code == JOB_AGAIN) return DIBS_END_NEXT;
  if (code == JOB_NEXT && read_phase(job->phase_file, reply->phase)) return DIBS_END_NEXT;
  if (code == JOB_NEXT)
    snprintf(line, size, "the command exited with %d and wrote no phase to the file of DIBS_NEXT_PHASE", JOB_NEXT);
  else
    dibs__cli_run_describe(line, size, status);
  if (code == JOB_DEAD && job->pool->table == NULL) return DIBS_END_DEAD;
  /* It was ended to stop dibs: nothing failed. */
  return job->run.stopped && !job->run.overtime ? DIBS_END_NEXT : DIBS_END_FAIL;
}

static dibs_verdict judge(const struct job *job, dibs_work_reply *reply) {
  const struct run *run = &job->run;
  char line[300] = "", max[24];
  dibs_verdict verdict = DIBS_END_FAIL;
  if (run->start_error != 0) {
    snprintf(line, sizeof line, "cannot run '%.60s': %s", run->argv[0], strerror(run->start_error));
  } else if (run->orphaned) {
    snprintf(line, sizeof line, "the minder of the command was killed, and dibs ended the command");
  } else if (run->lost || run->late) {
    snprintf(line, sizeof line, "the claim ended before the command, and dibs ended the command");
  } else if (run->overtime) {
    dibs__duration_write(max, sizeof max, run->max_ms);
    snprintf(line, sizeof line, "the command ran longer than --max %s, and dibs ended it", max);
  } else {
    verdict = judge_status(job, reply, line, sizeof line);
  }
  reply->tries = job->pool->tries;
  write_text(job, line, reply->text);
  return verdict;
}

/* ---- Running it ---- */

static int64_t claim_left(const struct run *run) {
  return dibs_task_left_ms(((const struct job *)(const void *)run)->task);
}

/* After an extension and a renewal: a claim by lane ends with the lane's lease. */
static int64_t claim_lasts(const struct job_pool *pool) {
  return pool->topic != NULL && pool->lane_ttl_ms < pool->timeout_ms ? pool->lane_ttl_ms : pool->timeout_ms;
}

/* A new file: what the command before it has left there is removed.  The folder is made again if it is gone: systems
 * remove files of /tmp that were not used for days.  -1 and errno. */
static int make_phase_file(const struct job *job) {
  struct stat st;
  const char *folder = job->pool->folder;
  if (mkdir(folder, 0700) != 0 && errno != EEXIST) return -1;
  if (lstat(folder, &st) != 0) return -1;
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid()) { /* another user was faster */
    errno = EACCES;
    return -1;
  }
  unlink(job->phase_file);
  return open(job->phase_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/* false, and errno: nothing was started. */
static bool start_minder(struct job *job) {
  int ends[2] = {-1, -1};
  int in = dibs__cli_input_file(job->task->payload, job->task->length);
  int file = in >= 0 ? make_phase_file(job) : -1;
  bool fine = in >= 0 && file >= 0 && pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  if (fine) {
    job->tail.from = ends[0];
    const struct launch launch = {.name = job->pool->kind, .grace_ms = job->run.grace_ms, .in = in, .out = ends[1]};
    fine = dibs__cli_launch(&job->pool->slots.list[job->slot].launcher, &launch, &job->run.minder);
    if (!fine && errno == EPIPE) job->pool->broken = true;
  }
  int error = errno;
  if (in >= 0) close(in);
  if (file >= 0) close(file);
  if (ends[1] >= 0) close(ends[1]);
  errno = error;
  return fine;
}

static const char *name_job(const struct job *job, char to[JOB_NAME_MAX]) {
  if (job->pool->table != NULL)
    snprintf(to, JOB_NAME_MAX, "row %.80s", job->task->key);
  else
    snprintf(to, JOB_NAME_MAX, "task %" PRIu64, job->task->nr);
  return to;
}

static dibs_verdict give_back(const struct job *job, int error) {
  struct job_pool *pool = job->pool;
  char name[JOB_NAME_MAX];
  dibs__cli_slots_pause(&pool->slots, pool->globals, name_job(job, name), error, pool->broken ? -1 : pool->end_fd);
  return DIBS_END_RELEASE;
}

static dibs_verdict run_job(struct job *job, dibs_work_reply *reply) {
  char environment[MINDER_TEXT_MAX];
  struct run *run = &job->run;
  run->began = dibs__tick_now();
  if (run->alarm < 0 || !start_minder(job)) return give_back(job, errno);
  size_t length = job_environment(job, environment);
  dibs__cli_run_loop(run, environment, length);
  dibs__cli_tail_pipe_read(&job->tail);
  if (dibs__cli_run_lacks_means(run)) return give_back(job, run->start_error);
  job->pool->slots.start_error = 0;
  return judge(job, reply);
}

static void print_verdict(const struct job *job, dibs_verdict verdict, const dibs_work_reply *reply) {
  static const char *const words[] = {
      [DIBS_END_DONE] = "done",   [DIBS_END_NEXT] = "again", [DIBS_END_WAIT] = "waits",
      [DIBS_END_FAIL] = "failed", [DIBS_END_DEAD] = "dead",  [DIBS_END_RELEASE] = "given back"};
  char took[24];
  dibs__duration_write(took, sizeof took, dibs__tick_left_ms(job->run.began, dibs__tick_now()));
  bool bad = verdict == DIBS_END_FAIL || verdict == DIBS_END_DEAD;
  /* Of a row of the user's the text is kept nowhere else. */
  int line = !bad ? 0 : job->pool->table != NULL ? DIBS_TASK_TEXT_MAX : (int)strcspn(reply->text, "\n");
  char name[JOB_NAME_MAX];
  dibs__cli_note(job->run.globals, "%s: %s%s%s after %s%s%.*s", name_job(job, name), words[verdict],
                 reply->phase[0] != '\0' ? ", next phase " : "", reply->phase, took, bad ? ": " : "", line,
                 reply->text);
}

static void keep_history(const struct job *job, dibs_verdict verdict) {
  const struct run_task task = {.nr = job->task->nr,
                                .fence = job->task->fence.value,
                                .failed = verdict == DIBS_END_FAIL || verdict == DIBS_END_DEAD};
  if (job->pool->history != NULL && verdict != DIBS_END_RELEASE)
    dibs__cli_history_add(job->pool->history, &job->run, &task);
}

dibs_verdict dibs__cli_job(dibs_task *task, dibs_work_reply *reply, void *user) {
  struct job_pool *pool = user;
  uint64_t nth = atomic_fetch_add(&pool->begun, 1) + 1;
  if (pool->broken || (pool->max_tasks > 0 && nth > pool->max_tasks)) return DIBS_END_RELEASE;
  struct job job = {.pool = pool, .task = task, .tail = {.from = -1}, .slot = dibs__cli_slot_take(&pool->slots)};
  job.run = dibs__cli_slot_run(&pool->slots, job.slot, pool->globals, &job.tail, pool->end_fd);
  job.run.name = pool->kind;
  job.run.argv = pool->argv;
  job.run.options.ttl_ms = claim_lasts(pool);
  job.run.grace_ms = dibs__cli_run_grace(job.run.options.ttl_ms);
  job.run.max_ms = pool->max_ms;
  job.run.left_ms = claim_left;
  snprintf(job.phase_file, sizeof job.phase_file, "%s/%zu", pool->folder, job.slot);
  dibs_verdict verdict = run_job(&job, reply);
  keep_history(&job, verdict);
  /* A command that can't be started fails every task, and its cause is the call of dibs. */
  if (pool->verbose || (job.run.start_error != 0 && verdict != DIBS_END_RELEASE) ||
      (pool->table != NULL && verdict == DIBS_END_FAIL))
    print_verdict(&job, verdict, reply);
  if (job.run.minder.fd >= 0) close(job.run.minder.fd);
  if (job.run.alarm >= 0) close(job.run.alarm);
  if (job.tail.from >= 0) close(job.tail.from);
  dibs__cli_slot_free(&pool->slots, job.slot);
  if (pool->broken || nth == pool->max_tasks) dibs__notifier_raise(pool->wake_fd);
  return verdict;
}
