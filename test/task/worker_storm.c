/* SPDX-License-Identifier: MIT */
/*
 * A storm on workers by lane: processes that join, leave, are stopped for longer than their ttl, and killed, while
 * tasks of many keys are added and the number of lanes changes.
 *
 *   worker_storm [--seconds N] [--unguarded] URI     "sqlite:" is a file of its own
 *   worker_storm member URI FILE [unguarded]         a worker, which the first form starts
 *
 * The tasks of a key are numbered.  The function of the worker reads the record of the key under the lane's lease,
 * which seals it, and writes its own number there, under the lease.  It logs:
 *
 *   O key number last    the record has another number than the one before: the order is broken
 *   A key number fence   the store has acknowledged that it wrote its number, under this fence
 *
 * Now and then it answers that it wants another try, before or after the write.  In the end each number of each key was written
 * exactly once, with fences that never decrease, and every task is done.
 *
 * --unguarded writes without the lease: then numbers must be written twice, or the storm proves nothing (exit 0 when
 * they are).
 */
#include "base/port.h"
#include "dibs/lane.h"
#include "dibs/task.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  TTL_MS = 1000, /* of lanes and of claims */
  KEYS = 40,
  NUMBERS_MAX = 20000, /* of a key */
  BACKLOG = 15,        /* of each key, more are not added */
  ADD_EACH_MS = 20,
  THREADS = 3,
  RUNNING_MAX = 4, /* see disturb() */
  MEMBERS_MAX = 1000,
  LANES_FIRST = 8,
  CALM_MS = 60000
};

static _Noreturn void die(const char *what, const char *why) {
  fprintf(stderr, "worker_storm: %s: %s\n", what, why);
  exit(2);
}

static uint32_t draw(uint32_t below) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return drawn % below;
}

/* ---- A worker ---- */

static struct {
  dibs_store *store;
  int log;
  bool unguarded;
  volatile sig_atomic_t leaves;
} me;

static void say(char what, uint64_t a, uint64_t b, uint64_t c) {
  char line[128];
  int length = snprintf(line, sizeof line, "%c %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", what, a, b, c);
  if (write(me.log, line, (size_t)length) != length) die("writing the log", strerror(errno));
}

static dibs_status read_key(dibs_lease *lease, const char *name, uint64_t *number) {
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  dibs_record *record = NULL;
  dibs_status status = dibs_record_get(me.store, name, &options, &record, NULL);
  *number = status == DIBS_OK && record->values[0].data ? strtoull(record->values[0].data, NULL, 10) : 0;
  if (status == DIBS_OK) dibs_record_free(record);
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

static dibs_status write_key(dibs_lease *lease, const char *name, uint64_t number) {
  char text[24];
  int length = snprintf(text, sizeof text, "%" PRIu64, number);
  dibs_value value = {text, (size_t)length};
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  if (me.unguarded) options.flags = DIBS_UNCHECKED;
  return dibs_record_put(me.store, name, &value, 1, &options, NULL, NULL);
}

static dibs_verdict another_try(dibs_work_reply *reply) {
  reply->delay_ms = draw(30);
  return (dibs_verdict[]){DIBS_END_FAIL, DIBS_END_NEXT, DIBS_END_WAIT, DIBS_END_RELEASE}[draw(4)];
}

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)user;
  uint64_t key = strtoull(task->serial + 4, NULL, 10), number = strtoull(task->payload, NULL, 10), last;
  dibs_lease *lease = me.unguarded ? NULL : dibs_lane_lease(task->lane);
  if (draw(16) == 0) return another_try(reply);
  if (read_key(lease, task->serial, &last) != DIBS_OK) return DIBS_END_NEXT; /* the lane is lost, for example */
  if (last >= number) return DIBS_END_DONE;                                  /* its verdict was lost */
  if (last + 1 != number) {
    say('O', key, number, last);
    return DIBS_END_FAIL;
  }
  if (me.unguarded) dibs__nap_ms(60); /* so that it is often stopped here */
  if (write_key(lease, task->serial, number) != DIBS_OK) return DIBS_END_NEXT;
  say('A', key, number, dibs_lane_fence(task->lane).value);
  return draw(32) == 0 ? another_try(reply) : DIBS_END_DONE;
}

static void leave(int signo) {
  (void)signo;
  me.leaves = 1;
}

static int be_member(int argc, char *argv[]) {
  dibs_error error;
  if (argc < 4) die("member", "usage");
  me.log = open(argv[3], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  me.unguarded = argc > 4;
  if (me.log < 0) die(argv[3], strerror(errno));
  struct sigaction on_term = {.sa_handler = leave};
  sigaction(SIGTERM, &on_term, NULL);
  dibs_status status;
  while ((status = dibs_open(argv[2], NULL, &me.store, &error)) == DIBS_UNAVAILABLE && !me.leaves) dibs__nap_ms(50);
  if (status != DIBS_OK) die("opening", error.text);
  dibs_worker_options o = {.size = sizeof o,
                           .threads = me.unguarded ? 8 : THREADS,
                           .prefetch = 20,
                           .timeout_ms = TTL_MS,
                           .work = work,
                           .topic = "storm",
                           .lane_ttl_ms = TTL_MS};
  dibs_worker *worker = NULL;
  while ((status = dibs_worker_start(me.store, "storm", &o, &worker, &error)) != DIBS_OK) {
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) die("starting the worker", error.text);
    if (me.leaves) return 0;
    dibs__nap_ms(50);
  }
  while (!me.leaves) dibs__nap_ms(10);
  if (dibs_worker_stop(worker, CALM_MS, &error) != DIBS_OK) die("stopping the worker", error.text);
  dibs_worker_free(worker);
  dibs_close(me.store);
  return 0;
}

/* ---- Processes ---- */

struct process {
  pid_t pid; /* 0: none */
  bool stopped;
  dibs__tick until; /* it is continued then */
};

static struct {
  const char *self, *uri;
  char folder[64];
  bool unguarded;
  uint32_t started, killed, stopped, left, resized;
  struct process running[RUNNING_MAX];
  atomic_bool over;
  uint32_t added; /* numbers of each key; of the thread that adds, until it has ended */
} storm;

static void start(struct process *p) {
  char path[256], member[] = "member", unguarded[] = "unguarded", uri[1024];
  if (storm.started == MEMBERS_MAX) return;
  snprintf(path, sizeof path, "%s/%u", storm.folder, storm.started++);
  snprintf(uri, sizeof uri, "%s", storm.uri);
  char *argv[] = {(char *)(uintptr_t)storm.self, member, uri, path, storm.unguarded ? unguarded : NULL, NULL};
  *p = (struct process){.pid = 0};
  if (posix_spawn(&p->pid, storm.self, NULL, NULL, argv, environ) != 0) die("starting", strerror(errno));
}

static void end_process(struct process *p, int signo) {
  int status = 0;
  kill(p->pid, signo);
  if (p->stopped) kill(p->pid, SIGCONT);
  while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) die("a member", "it ended with an error");
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM) die("a member", "it crashed");
  p->pid = 0;
}

static void disturb(dibs_store *store) {
  static const uint32_t sizes[] = {LANES_FIRST, 5, 13, 16};
  struct process *p = &storm.running[draw(RUNNING_MAX)];
  uint32_t what = storm.unguarded ? 7 : draw(10);
  if (p->pid == 0) {
    start(p);
  } else if (p->stopped) {
    return;
  } else if (what < 3) {
    storm.left++;
    end_process(p, SIGTERM);
  } else if (what < 5) {
    storm.killed++;
    end_process(p, SIGKILL);
  } else if (what < 8) {
    if (storm.unguarded &&
        storm.running[0].stopped + storm.running[1].stopped + storm.running[2].stopped + storm.running[3].stopped >= 2)
      return; /* others are to get its lanes */
    storm.stopped++;
    kill(p->pid, SIGSTOP);
    p->stopped = true;
    /* Unguarded: until others have surely got its lanes. */
    p->until = dibs__tick_add_ms(dibs__tick_now(), (storm.unguarded ? 3 : 1) * TTL_MS + (int64_t)draw(TTL_MS));
  } else {
    dibs_status status = dibs_lane_resize(store, "storm", sizes[draw(4)], 0, NULL);
    storm.resized += status == DIBS_OK || status == DIBS_TIMEOUT;
  }
}

static void continue_stopped(bool all) {
  for (size_t i = 0; i < RUNNING_MAX; i++) {
    struct process *p = &storm.running[i];
    if (p->pid == 0 || !p->stopped || (!all && dibs__tick_before(dibs__tick_now(), p->until))) continue;
    kill(p->pid, SIGCONT);
    p->stopped = false;
  }
}

/* ---- Tasks ---- */

static int take_states(const dibs_task_kind *kind, void *user) {
  memcpy(user, kind->states, sizeof kind->states);
  return 0;
}

static void count_states(dibs_store *store, uint64_t states[DIBS_TASK_STATES]) {
  dibs_error error;
  memset(states, 0, DIBS_TASK_STATES * sizeof *states);
  for (int i = 0; dibs_tasks_count(store, "storm", take_states, states, &error) != DIBS_OK; i++) {
    if (i == 100) die("counting", error.text);
    dibs__nap_ms(50);
  }
}

static uint64_t unfinished(dibs_store *store) {
  uint64_t states[DIBS_TASK_STATES], sum = 0;
  count_states(store, states);
  for (int i = DIBS_TASK_ARRIVED; i <= DIBS_TASK_PARKED; i++) sum += states[i];
  return sum;
}

/* The next number of each key, in one request. */
static void add_numbers(dibs_store *store) {
  static char serials[KEYS][16];
  dibs_task_new tasks[KEYS];
  dibs_error error;
  char number[16];
  snprintf(number, sizeof number, "%" PRIu32, storm.added + 1);
  for (uint32_t key = 0; key < KEYS; key++) {
    snprintf(serials[key], sizeof serials[key], "key-%" PRIu32, key);
    tasks[key] = (dibs_task_new){.size = sizeof tasks[key],
                                 .payload = number,
                                 .length = strlen(number),
                                 .serial = serials[key],
                                 .tries = 1000000};
  }
  if (dibs_task_add_many(store, "storm", tasks, KEYS, CALM_MS, &error) != DIBS_OK) die("adding", error.text);
  storm.added++;
}

/* ---- The judgement ---- */

struct facts {
  uint64_t effects, twice, missing, backward, disordered;
};

static uint64_t written[KEYS][NUMBERS_MAX + 1]; /* the fence; 0: not written */

static void read_log(const char *path, struct facts *f) {
  FILE *log = fopen(path, "r");
  char what;
  uint64_t key, number, third;
  if (!log) die(path, strerror(errno));
  while (fscanf(log, " %c %" SCNu64 " %" SCNu64 " %" SCNu64, &what, &key, &number, &third) == 4) {
    if (key >= KEYS || number > NUMBERS_MAX) die(path, "the log is damaged");
    f->disordered += what == 'O';
    if (what != 'A') continue;
    f->twice += written[key][number] != 0;
    f->effects++;
    written[key][number] = third;
  }
  fclose(log);
}

/* A write whose answer was lost is not in a log; the next one shows that it took place. */
static void look_at_keys(struct facts *f) {
  for (uint32_t key = 0; key < KEYS; key++) {
    char name[16];
    uint64_t last = 0, fence = 0;
    snprintf(name, sizeof name, "key-%" PRIu32, key);
    for (int i = 0; read_key(NULL, name, &last) != DIBS_OK; i++) {
      if (i == 100) die("reading a record", name);
      dibs__nap_ms(50);
    }
    f->missing += storm.added - last;
    for (uint32_t number = 1; number <= storm.added; number++) {
      if (written[key][number] == 0) continue;
      f->backward += written[key][number] < fence;
      fence = written[key][number];
    }
  }
}

static int judge(dibs_store *store) {
  struct facts f = {0};
  uint64_t states[DIBS_TASK_STATES];
  me.store = store;
  for (uint32_t i = 0; i < storm.started; i++) {
    char path[256];
    snprintf(path, sizeof path, "%s/%u", storm.folder, i);
    if (access(path, F_OK) == 0) read_log(path, &f); /* else it was killed before it began */
  }
  look_at_keys(&f);
  count_states(store, states);
  uint64_t all = (uint64_t)storm.added * KEYS, unanswered = all > f.effects ? all - f.effects : 0;
  printf("members %u (left %u, killed %u, stopped %u), changes of P %u, tasks %" PRIu64 ", done %" PRIu64
         ", effects %" PRIu64 "\n",
         storm.started, storm.left, storm.killed, storm.stopped, storm.resized, all, states[DIBS_TASK_DONE], f.effects);
  printf("twice %" PRIu64 ", missing %" PRIu64 ", fences that went back %" PRIu64 ", out of order %" PRIu64 "\n",
         f.twice, f.missing, f.backward, f.disordered);
  if (storm.unguarded) return f.twice > 0 || f.backward > 0 || f.disordered > 0 ? 0 : 1;
  /* Each thread of a disturbed member may have left one write that was not answered. */
  if (unanswered > THREADS * ((uint64_t)storm.killed + storm.stopped)) return 1;
  return f.twice || f.missing || f.backward || f.disordered || states[DIBS_TASK_DONE] != all ? 1 : 0;
}

/* A thread of its own: on SQLite nobody can write while a process is stopped that was writing. */
static void *keep_adding(void *arg) {
  dibs_store *store = arg;
  while (!storm.over) {
    if (storm.added < NUMBERS_MAX && unfinished(store) < (uint64_t)BACKLOG * KEYS) add_numbers(store);
    dibs__nap_ms(ADD_EACH_MS);
  }
  return NULL;
}

static void wait_until_all_are_done(dibs_store *store) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CALM_MS);
  while (unfinished(store) > 0) {
    if (!dibs__tick_before(dibs__tick_now(), by)) die("in calm", "tasks are not done");
    dibs__nap_ms(100);
  }
}

static int run_storm(int64_t seconds) {
  dibs_store *store = NULL;
  dibs_error error;
  if (dibs_open(storm.uri, NULL, &store, &error) != DIBS_OK) die("opening", error.text);
  dibs_worker_options o = {
      .size = sizeof o, .work = work, .topic = "storm", .lanes = LANES_FIRST, .lane_ttl_ms = TTL_MS};
  dibs_worker *worker = NULL;
  if (dibs_worker_start(store, "storm", &o, &worker, &error) != DIBS_OK) die("creating the topic", error.text);
  dibs_worker_free(worker);
  for (int i = 0; i < 3; i++) start(&storm.running[i]);
  pthread_t adder;
  if (pthread_create(&adder, NULL, keep_adding, store) != 0) die("starting", "no thread");
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), seconds * 1000);
  while (dibs__tick_before(dibs__tick_now(), until)) {
    dibs__nap_ms(100 + draw(400));
    continue_stopped(false);
    disturb(store);
  }
  storm.over = true;
  continue_stopped(true);
  pthread_join(adder, NULL);
  for (int i = 0; i < 2; i++)
    if (storm.running[i].pid == 0) start(&storm.running[i]);
  if (!storm.unguarded) wait_until_all_are_done(store);
  for (size_t i = 0; i < RUNNING_MAX; i++)
    if (storm.running[i].pid != 0) end_process(&storm.running[i], storm.unguarded ? SIGKILL : SIGTERM);
  int code = judge(store);
  dibs_close(store);
  return code;
}

int main(int argc, char *argv[]) {
  char file[128], self[256];
  int64_t seconds = 8;
  if (argc > 1 && strcmp(argv[1], "member") == 0) return be_member(argc, argv);
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) die("self", strerror(errno));
  self[length] = '\0';
  storm.self = self;
  int at = 1;
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--unguarded") == 0)
      storm.unguarded = true;
    else if (strcmp(argv[at], "--seconds") == 0 && at + 1 < argc)
      seconds = strtoll(argv[++at], NULL, 10);
  }
  if (at + 1 != argc) die("usage", "worker_storm [--seconds N] [--unguarded] URI");
  snprintf(storm.folder, sizeof storm.folder, "/tmp/dibs-workers.XXXXXX");
  if (!mkdtemp(storm.folder)) die(storm.folder, strerror(errno));
  snprintf(file, sizeof file, "sqlite:%s/storm.db", storm.folder);
  storm.uri = strcmp(argv[at], "sqlite:") == 0 ? file : argv[at];
  int code = run_storm(seconds);
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", storm.folder);
  if (code == 0 && system(command) != 0) die(storm.folder, "can't be removed");
  if (code != 0) printf("FAILED: the logs are in %s\n", storm.folder);
  return code;
}
