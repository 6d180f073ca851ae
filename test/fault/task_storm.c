/* SPDX-License-Identifier: MIT */
/*
 * Nodes that claim tasks of several steps, and a parent that kills and stops them in the middle, past the time of their
 * claims, and with --server also the server.  All of them note in shared memory what they begin, and which verdicts the
 * store accepted.
 *
 *   task_storm URI [--nodes N] [--tasks N] [--seconds S] [--seed X] [--server]
 *
 * The rules:
 *
 *   - no step of a task is accepted twice, and each is accepted once, but for those whose answer nobody received;
 *   - each claim of a task that begins has a larger fence than all before it, and from then on no verdict with a
 *     smaller one is accepted;
 *   - a task with a serial text does not begin before all earlier ones with this text have finished;
 *   - at the end every task is done, once.
 *
 * Exit status 0: no rule was broken.
 */
#include "base/port.h"
#include "dibs.h"
#include "dibs/task.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  NODES_MAX = 16,
  TASKS_MAX = 5000,
  THREADS = 4,      /* of a node that is a worker */
  SERIALS = 5,      /* every third task has one of so many serial texts */
  CLAIM_MS = 600,   /* how long a claim lasts */
  WORK_MS = 12,     /* at most, of most steps */
  TOGETHER = 8,     /* tasks that a node claims at once */
  RESTART_EACH = 8, /* of --server: every eighth harm */
  HARM_MS = 150,    /* between two kills or stops, on average */
  REST_S = 90,      /* for the rest, after the harm */
  TRIES = 100000,   /* no task dies */
  PATIENCE_MS = 60000
};
static const char *const steps[] = {"trigger", "function", "stage", "domain", "database"};
enum { STEPS = sizeof steps / sizeof steps[0] };
static const char kind[] = "gateway";

/* One step of one task. */
struct step {
  _Atomic uint32_t accepted, doubtful; /* verdicts: OK; of which nobody received the answer */
};
struct task_notes {
  _Atomic uint64_t fence; /* the largest that began */
  _Atomic bool finishing; /* a DONE was sent */
  struct step steps[STEPS];
};
/* What a thread of a node is about to send: if the node is killed, its parent counts these as doubtful. */
struct sending {
  _Atomic uint32_t task, step; /* the task's number from 1; 0: nothing */
};
struct notes {
  _Atomic bool over, broken;
  _Atomic uint32_t added;
  _Atomic uint64_t begun, accepted, refused, unanswered, waits, fails, released, slow;
  char why[256];
  struct sending sending[NODES_MAX][TOGETHER];
  struct task_notes tasks[TASKS_MAX];
};

static struct {
  const char *uri;
  uint32_t nodes, tasks, seconds;
  uint64_t seed;
  bool server;
} plan = {.nodes = 5, .tasks = 600, .seconds = 15, .seed = 1};
static struct notes *notes;
static uint32_t own; /* the number of this node */

/* ---- Chance, and what breaks ---- */

static uint64_t draw(uint64_t *seed) {
  uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static uint32_t below(uint64_t *seed, uint32_t n) {
  return (uint32_t)(draw(seed) % n);
}
static uint32_t chance(uint32_t n) { /* of any thread */
  uint32_t got;
  dibs__random(&got, sizeof got);
  return got % n;
}

static void breaks(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void breaks(const char *format, ...) {
  if (atomic_exchange(&notes->broken, true)) return;
  va_list args;
  va_start(args, format);
  vsnprintf(notes->why, sizeof notes->why, format, args);
  va_end(args);
}

/* ---- One task of a node ---- */

static bool has_serial(uint32_t number) {
  return number % 3 == 0;
}

static uint32_t step_of(const dibs_task *task) {
  for (uint32_t i = 0; i < STEPS; i++)
    if (!strcmp(task->phase, steps[i])) return i;
  breaks("task %" PRIu64 " is in the phase \"%s\"", task->nr, task->phase);
  return 0;
}

/* The number from 1 that its payload has. */
static uint32_t number_of(const dibs_task *task) {
  unsigned long number = strtoul(task->payload, NULL, 10);
  if (number >= 1 && number <= plan.tasks) return (uint32_t)number;
  breaks("task %" PRIu64 " has the payload \"%.20s\"", task->nr, task->payload);
  return 1;
}

static void begin_task(const dibs_task *task, uint32_t number) {
  struct task_notes *t = &notes->tasks[number - 1];
  uint64_t before = atomic_load(&t->fence);
  atomic_fetch_add(&notes->begun, 1);
  /* (A node that was stopped right here may note an old fence late: only an equal one is wrong then.) */
  while (before < task->fence.value && !atomic_compare_exchange_weak(&t->fence, &before, task->fence.value)) continue;
  if (before == task->fence.value) breaks("the fence %" PRIu64 " of task %u began twice", before, number);
  for (uint32_t i = has_serial(number) ? number : 0; i > 3 * SERIALS;) {
    i -= 3 * SERIALS;
    if (!atomic_load(&notes->tasks[i - 1].finishing))
      breaks("task %u began before task %u with the same serial text had finished", number, i);
  }
}

static dibs_verdict decide(uint32_t step, int64_t *delay_ms) {
  uint32_t dice = chance(100);
  *delay_ms = 40;
  if (dice < 3) {
    atomic_fetch_add(&notes->slow, 1);
    dibs__nap_ms(CLAIM_MS + chance(CLAIM_MS / 2)); /* a worker extends its claims meanwhile */
  } else {
    dibs__nap_ms(chance(WORK_MS));
  }
  if (dice < 7) return DIBS_END_WAIT;
  if (dice < 12) return DIBS_END_FAIL;
  if (dice < 14) return DIBS_END_RELEASE;
  return step + 1 == STEPS ? DIBS_END_DONE : DIBS_END_NEXT;
}

static void count_answer(dibs_status status, dibs_verdict verdict, uint32_t number, uint32_t step) {
  struct step *s = &notes->tasks[number - 1].steps[step];
  bool ends_step = verdict == DIBS_END_DONE || verdict == DIBS_END_NEXT;
  if (status == DIBS_STALE || status == DIBS_NOT_FOUND) {
    atomic_fetch_add(&notes->refused, 1);
  } else if (status != DIBS_OK) {
    atomic_fetch_add(&notes->unanswered, 1);
    if (ends_step) atomic_fetch_add(&s->doubtful, 1);
  } else if (ends_step) {
    atomic_fetch_add(&notes->accepted, 1);
    if (atomic_fetch_add(&s->accepted, 1) > 0) breaks("step %s of task %u was accepted twice", steps[step], number);
  } else {
    atomic_fetch_add(verdict == DIBS_END_WAIT   ? &notes->waits
                     : verdict == DIBS_END_FAIL ? &notes->fails
                                                : &notes->released,
                     1);
  }
}

/* ---- A node that claims by itself ---- */

static void end_task(dibs_task *task, struct sending *sending) {
  uint32_t number = number_of(task), step = step_of(task);
  dibs_task_end end = {.size = sizeof end, .task = task};
  begin_task(task, number);
  end.verdict = decide(step, &end.delay_ms);
  if (end.verdict == DIBS_END_NEXT) end.phase = steps[step + 1];
  if (end.verdict == DIBS_END_FAIL) end.text = "as planned";
  bool ends_step = end.verdict == DIBS_END_DONE || end.verdict == DIBS_END_NEXT;
  if (end.verdict == DIBS_END_DONE) atomic_store(&notes->tasks[number - 1].finishing, true);
  if (ends_step) {
    atomic_store(&sending->step, step);
    atomic_store(&sending->task, number);
  }
  uint64_t newest = atomic_load(&notes->tasks[number - 1].fence);
  dibs_status status = DIBS_UNKNOWN;
  bool in_doubt = false;
  do {
    status = dibs_task_end_many(NULL, &end, 1, NULL);
    if (status == DIBS_OK) status = end.status;
    in_doubt = in_doubt || status == DIBS_UNKNOWN;
  } while ((status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) && dibs_task_left_ms(task) > 0);
  /* The attempt without an answer may have been accepted before another client claimed the task. */
  if (in_doubt && (status == DIBS_STALE || status == DIBS_NOT_FOUND)) status = DIBS_UNKNOWN;
  if (status == DIBS_OK && newest > task->fence.value)
    breaks("a verdict of task %u was accepted with the fence %" PRIu64 ", though %" PRIu64 " had begun", number,
           task->fence.value, newest);
  count_answer(status, end.verdict, number, step);
  atomic_store(&sending->task, 0);
}

static void claim_tasks(dibs_store *store) {
  dibs_claim_options options = {.size = sizeof options, .timeout_ms = CLAIM_MS, .wait_ms = 200};
  dibs_task *tasks[TOGETHER];
  size_t count = 0;
  dibs_error error;
  options.most = 1 + chance(3);
  dibs_status status = dibs_tasks_claim(store, kind, &options, tasks, &count, &error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND && status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE)
    breaks("claim: %s", error.text);
  for (size_t i = 0; i < count; i++) end_task(tasks[i], &notes->sending[own][0]);
  for (size_t i = 0; i < count; i++) dibs_task_free(tasks[i]);
}

/* ---- A node that is a worker ---- */

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)reply, (void)user;
  static _Atomic uint32_t threads;
  static _Thread_local struct sending *sending; /* each thread has its own: a slow one still uses it */
  if (!sending) sending = &notes->sending[own][atomic_fetch_add(&threads, 1) % TOGETHER];
  end_task(task, sending);
  return DIBS_END_RELEASE; /* without an effect: the claim was ended */
}

static bool run_worker(dibs_store *store) {
  dibs_worker_options options = {
      .size = sizeof options, .threads = THREADS, .timeout_ms = CLAIM_MS, .poll_ms = 200, .work = work};
  dibs_worker *worker = NULL;
  dibs_error error;
  if (dibs_worker_start(store, kind, &options, &worker, &error) != DIBS_OK) {
    breaks("worker: %s", error.text);
    return false;
  }
  while (!notes->over && !notes->broken) dibs__nap_ms(50);
  dibs_worker_free(worker);
  return true;
}

static dibs_store *open_store(void) {
  dibs_store *store = NULL;
  dibs_error error;
  for (dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS); !store && !notes->over && !notes->broken;) {
    dibs_status status = dibs_open(plan.uri, NULL, &store, &error);
    if (status == DIBS_OK) break;
    /* UNKNOWN: the server was killed while the tables were made. */
    bool away = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
    if (!away || !dibs__tick_before(dibs__tick_now(), by)) breaks("open: %s", error.text);
    dibs__nap_ms(50);
  }
  return store;
}

static int node_main(void) {
  dibs_store *store = open_store();
  if (!store) return notes->broken ? 1 : 0;
  if (own % 2)
    run_worker(store);
  else
    while (!notes->over && !notes->broken) claim_tasks(store);
  dibs_close(store);
  return notes->broken ? 1 : 0;
}

/* ---- Adding ---- */

static void add_task(dibs_store *store, uint32_t number) {
  char payload[16], serial[16], unique[16];
  dibs_error error;
  snprintf(payload, sizeof payload, "%u", number);
  snprintf(serial, sizeof serial, "s%u", number / 3 % SERIALS);
  snprintf(unique, sizeof unique, "u%u", number);
  dibs_task_options options = {.size = sizeof options,
                               .phase = steps[0],
                               .unique = unique,
                               .serial = has_serial(number) ? serial : NULL,
                               .tries = TRIES,
                               .wait_ms = PATIENCE_MS};
  dibs_status status = dibs_task_add(store, kind, payload, strlen(payload), &options, NULL, &error);
  if (status != DIBS_OK) breaks("adding task %u: %s", number, error.text);
  atomic_store(&notes->added, number);
}

static int add_main(void) {
  dibs_store *store = open_store();
  for (uint32_t i = 1; store && i <= plan.tasks && !notes->broken; i++) {
    add_task(store, i);
    if (i % 8 == 0) dibs__nap_ms((int64_t)plan.seconds * 1000 * 8 / plan.tasks / 2);
  }
  dibs_close(store);
  return notes->broken ? 1 : 0;
}

/* ---- The parent ---- */

static pid_t start(int (*body)(void), uint32_t number) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid != 0) return pid;
  own = number;
  _exit(body());
}

static void end_node(pid_t pid, uint32_t node) {
  kill(pid, SIGKILL);
  kill(pid, SIGCONT);
  waitpid(pid, NULL, 0);
  for (uint32_t i = 0; i < TOGETHER; i++) {
    struct sending *sending = &notes->sending[node][i];
    uint32_t task = atomic_exchange(&sending->task, 0);
    if (task) atomic_fetch_add(&notes->tasks[task - 1].steps[atomic_load(&sending->step)].doubtful, 1);
  }
}

static bool server(const char *verb) {
  char command[512];
  snprintf(command, sizeof command, "\"$DIBS_TEST_SERVERS_SCRIPT\" %s --dir \"$DIBS_TEST_SERVERS_DIR\" >/dev/null",
           verb);
  return system(command) == 0;
}

static struct { uint32_t kills, stops, restarts; } harm;

static void do_harm(pid_t *nodes, uint64_t *seed) {
  uint32_t node = below(seed, plan.nodes), dice = below(seed, 100);
  uint32_t nth = harm.kills + harm.stops + harm.restarts;
  if (plan.server && nth % RESTART_EACH == RESTART_EACH / 2) {
    harm.restarts++;
    if (!server("kill") || !server("start")) breaks("the server can't be restarted");
  } else if (dice < 50) {
    harm.kills++;
    end_node(nodes[node], node);
    nodes[node] = start(node_main, node);
  } else {
    harm.stops++;
    kill(nodes[node], SIGSTOP);
    dibs__nap_ms(CLAIM_MS / 2 + below(seed, CLAIM_MS * 3 / 2));
    kill(nodes[node], SIGCONT);
  }
}

static int count_done(const dibs_task_kind *k, void *user) {
  *(uint64_t *)user = k->states[DIBS_TASK_DONE];
  for (int i = 0; i < DIBS_TASK_DONE; i++) ((uint64_t *)user)[1] += k->states[i];
  return 0;
}

static int wait_for_all(void) {
  dibs_store *store = open_store();
  uint64_t counts[2] = {0, 0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), INT64_C(1000) * REST_S);
  while (store && counts[0] < plan.tasks && !notes->broken) {
    counts[1] = 0;
    /* (After a failure: once more.) */
    dibs_status ignored = dibs_tasks_count(store, kind, count_done, counts, NULL);
    (void)ignored;
    if (!dibs__tick_before(dibs__tick_now(), by))
      breaks("only %" PRIu64 " of %u tasks are done, %" PRIu64 " are not", counts[0], plan.tasks, counts[1]);
    dibs__nap_ms(100);
  }
  dibs_close(store);
  return notes->broken ? 1 : 0;
}

static void check_steps(void) {
  for (uint32_t i = 0; i < plan.tasks; i++)
    for (uint32_t s = 0; s < STEPS; s++) {
      const struct step *step = &notes->tasks[i].steps[s];
      if (step->accepted == 0 && step->doubtful == 0)
        breaks("task %u is done, but nobody did its step %s", i + 1, steps[s]);
    }
  if (notes->refused == 0) breaks("no verdict was refused: nothing was put to the test");
}

static bool options_read(int argc, char **argv) {
  if (argc < 2) return false;
  plan.uri = argv[1];
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "--server")) {
      plan.server = true;
      continue;
    }
    if (i + 1 == argc) return false;
    uint32_t number = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    if (!strcmp(argv[i], "--nodes"))
      plan.nodes = number;
    else if (!strcmp(argv[i], "--tasks"))
      plan.tasks = number;
    else if (!strcmp(argv[i], "--seconds"))
      plan.seconds = number;
    else if (!strcmp(argv[i], "--seed"))
      plan.seed = number;
    else
      return false;
    i++;
  }
  return plan.nodes >= 1 && plan.nodes <= NODES_MAX && plan.tasks >= 1 && plan.tasks <= TASKS_MAX;
}

int main(int argc, char **argv) {
  static char uri[64];
  char folder[] = "/tmp/dibs-task-storm-XXXXXX";
  if (!options_read(argc, argv)) {
    fputs("usage: task_storm URI [--nodes N] [--tasks N] [--seconds S] [--seed X] [--server]\n", stderr);
    return 2;
  }
  bool file = !strcmp(plan.uri, "sqlite:");
  if (file && !mkdtemp(folder)) return 1;
  if (file) {
    snprintf(uri, sizeof uri, "sqlite:%s/storm.db", folder);
    plan.uri = uri;
  }
  notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (notes == MAP_FAILED) return 1;
  pid_t nodes[NODES_MAX] = {0}, adder = start(add_main, 0);
  for (uint32_t i = 0; i < plan.nodes; i++) nodes[i] = start(node_main, i);
  uint64_t seed = plan.seed;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), INT64_C(1000) * plan.seconds);
  while (dibs__tick_before(dibs__tick_now(), by) && !notes->broken) {
    dibs__nap_ms(below(&seed, 2 * HARM_MS));
    do_harm(nodes, &seed);
  }
  waitpid(adder, NULL, 0);
  waitpid(start(wait_for_all, 0), NULL, 0);
  atomic_store(&notes->over, true);
  for (uint32_t i = 0; i < plan.nodes; i++) waitpid(nodes[i], NULL, 0);
  if (!notes->broken) check_steps();
  printf("%u tasks, %" PRIu64 " claims began, %" PRIu64 " steps accepted, %" PRIu64 " verdicts refused, %" PRIu64
         " without an answer, %" PRIu64 " waits, %" PRIu64 " fails, %" PRIu64 " given back, %u kills, %u stops, %u"
         " restarts of the server, seed %" PRIu64 "\n",
         notes->added, notes->begun, notes->accepted, notes->refused, notes->unanswered, notes->waits, notes->fails,
         notes->released, harm.kills, harm.stops, harm.restarts, plan.seed);
  if (notes->broken) fprintf(stderr, "task_storm: %s\n", notes->why);
  if (file) {
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) fputs("task_storm: the folder remains\n", stderr);
  }
  return notes->broken ? 1 : 0;
}
