/* SPDX-License-Identifier: MIT */
/*
 * A crew of users.  They connect first; when all stand ready they are let go at once.  One thread of the lab looks on:
 * it samples the rate, tells of progress, and says stop.
 */
#include "lab/lab.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  READY_MS = 120000, /* a thousand connections to a server on a busy machine take a while */
  LOOK_MS = 100,
  ONCE_MS = 120000, /* for a race to end */
  END_MS = 60000    /* for users to come back from their last booking */
};

struct crew_at_work {
  struct lab *lab;
  struct lab_crew *crew;
  struct lab_board *board;
  size_t size;
  int fd; /* of the board, for helpers; -1 */
  dibs__thread *thread;
  int pid[LAB_PROCESSES_MAX];
};

static void in_process(void *arg) {
  struct crew_at_work *work = arg;
  dibs__lab_users_run(work->board, work->lab->uri, 0, work->board->users);
}

static struct lab_board *board_new(struct crew_at_work *work) {
  struct lab *lab = work->lab;
  uint32_t users = work->crew->users;
  work->size = sizeof(struct lab_board) + users * sizeof(struct lab_user);
  work->fd = -1;
  int flags = MAP_SHARED | MAP_ANONYMOUS;
  if (lab->processes) {
    work->fd = memfd_create("dibs-lab", 0); /* not close-on-exec: the helpers inherit it */
    if (work->fd < 0 || ftruncate(work->fd, (off_t)work->size)) return NULL;
    flags = MAP_SHARED;
  }
  /* cppcheck-suppress invalidFunctionArg ; -1 goes with MAP_ANONYMOUS */
  void *at = mmap(NULL, work->size, PROT_READ | PROT_WRITE, flags, work->fd, 0);
  if (at == MAP_FAILED) return NULL;
  struct lab_board *b = at;
  b->users = users;
  b->processes = lab->processes;
  b->way = (uint32_t)(work->crew->way - dibs__lab_ways);
  b->rows = work->crew->rows;
  b->run = lab->run;
  b->once = work->crew->once;
  b->sql = lab->door != NULL;
  /* An embedded engine's driver has its writers stand in line: without a guard is without dibs there. */
  b->by_hand = work->crew->way->kind == LAB_CHILD_FIRST ||
               (work->crew->way->strategy == DIBS_UNGUARDED && b->sql && !lab->line.wire->engine->sessions);
  b->wait_ms = 10000;
  snprintf(b->event, sizeof b->event, "%s", lab->event);
  snprintf(b->applicant, sizeof b->applicant, "%s", lab->applicant);
  return b;
}

/* ---- Helpers ---- */

static bool helpers_start(struct crew_at_work *work) {
  char verb[] = "crew", fd[16], size[24], from[16], to[16];
  uint32_t users = work->board->users, count = work->lab->processes;
  if (count > users) count = users;
  snprintf(fd, sizeof fd, "%d", work->fd);
  snprintf(size, sizeof size, "%zu", work->size);
  for (uint32_t i = 0; i < count; i++) {
    snprintf(from, sizeof from, "%u", (uint32_t)((uint64_t)users * i / count));
    snprintf(to, sizeof to, "%u", (uint32_t)((uint64_t)users * (i + 1) / count));
    char *args[] = {verb, fd, size, from, to, NULL};
    if (!dibs__lab_spawn(work->lab->uri, args, &work->pid[i], work->lab->why, sizeof work->lab->why)) return false;
  }
  return true;
}

/* false: one has ended too early. */
static bool helpers_live(struct crew_at_work *work) {
  for (size_t i = 0; i < LAB_PROCESSES_MAX; i++) {
    int status;
    if (!work->pid[i] || waitpid(work->pid[i], &status, WNOHANG) != work->pid[i]) continue;
    work->pid[i] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    return dibs__lab_fail(work->lab, "a helper of the lab ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return true;
}

static void helpers_end(struct crew_at_work *work, bool kill_them) {
  for (size_t i = 0; i < LAB_PROCESSES_MAX; i++) {
    if (!work->pid[i]) continue;
    if (kill_them) kill(work->pid[i], SIGKILL);
    while (waitpid(work->pid[i], NULL, 0) < 0 && errno == EINTR) continue;
    work->pid[i] = 0;
  }
}

int dibs__lab_helper(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[0], "pause") == 0) return dibs__lab_pause_helper(argc - 1, argv + 1);
  if (argc < 5 || strcmp(argv[0], "crew") != 0) return 1;
  /* The lab ends its helpers; the keyboard's signal goes to all of them. */
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGINT, &ignore, NULL);
  sigaction(SIGTERM, &ignore, NULL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int fd = (int)strtol(argv[1], NULL, 10);
  size_t size = (size_t)strtoull(argv[2], NULL, 10);
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return 1;
  close(fd);
  dibs__lab_users_run(at, secure_getenv("DIBS_STORE"), (uint32_t)strtoul(argv[3], NULL, 10),
                      (uint32_t)strtoul(argv[4], NULL, 10));
  munmap(at, size);
  return 0;
}

/* ---- Looking on ---- */

static uint64_t done_so_far(const struct lab_board *b) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < b->users; i++) done += atomic_load_explicit(&b->user[i].done, memory_order_relaxed);
  return done;
}

/* Until the word has come to `value`, or `ms` have passed, or a helper died; `may_end`: or the lab is interrupted. */
static bool await(struct crew_at_work *work, dibs__word *word, uint32_t value, int64_t ms, bool may_end) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t seen = atomic_load(word);
    dibs__tick now = dibs__tick_now();
    if (seen >= value) return true;
    if (!dibs__tick_before(now, by) || (may_end && dibs__lab_ended(work->lab))) return false;
    if (work->fd >= 0 && !helpers_live(work)) return false;
    dibs__word_wait(word, seen, dibs__tick_min(by, dibs__tick_add_ms(now, LOOK_MS)), true);
  }
}

static void sample(struct lab_crew *crew, double from, double to, uint64_t done) {
  if (crew->samples == LAB_SAMPLES || to <= from) return;
  crew->at[crew->samples] = (from + to) / 2;
  crew->rate[crew->samples++] = (double)done / (to - from);
}

static double seconds_since(dibs__tick from) {
  return (double)(dibs__tick_now().ns - from.ns) / 1e9;
}

/* Lets them work for their time.  Samples are taken as often as there is room for them. */
static void look_on(struct crew_at_work *work, dibs__tick from) {
  struct lab_crew *crew = work->crew;
  struct lab_board *b = work->board;
  int64_t each = crew->once ? LOOK_MS : crew->ms / (LAB_SAMPLES - 20);
  if (each < 50) each = 50;
  double last = 0, end = crew->once ? (double)ONCE_MS / 1000 : (double)crew->ms / 1000;
  uint64_t before = 0;
  while (!dibs__lab_ended(work->lab) && atomic_load(&b->ended) < b->users) {
    double now = seconds_since(from);
    if (now >= end || (work->fd >= 0 && !helpers_live(work))) break;
    double nap = end - now < (double)each / 1000 ? end - now : (double)each / 1000;
    uint32_t seen = atomic_load(&b->ended);
    if (seen < b->users)
      dibs__word_wait(&b->ended, seen, dibs__tick_add_ms(dibs__tick_now(), (int64_t)(nap * 1000) + 1), true);
    now = seconds_since(from);
    if (now - last < (double)each / 1000 * 0.9) continue;
    uint64_t done = done_so_far(b);
    sample(crew, last, now, done - before);
    dibs__lab_tell(work->lab, crew->way->name, crew->users, (int64_t)(now * 1000), crew->once ? 0 : crew->ms, done,
                   (double)(done - before) / (now - last));
    last = now;
    before = done;
  }
}

static void gather(struct crew_at_work *work) {
  struct lab_crew *crew = work->crew;
  const struct lab_board *b = work->board;
  crew->absent = atomic_load(&b->absent);
  crew->unsupported = atomic_load(&b->unsupported);
  for (uint32_t i = 0; i < b->users; i++) {
    const struct lab_user *u = &b->user[i];
    crew->full += u->full;
    crew->conflicts += u->conflicts;
    crew->deadlocks += u->deadlocks;
    crew->given_up += u->given_up;
    crew->unknown += u->unknown;
    dibs__hist_merge(&crew->hist, &u->hist);
  }
  crew->done = crew->hist.count;
  if (atomic_load(&b->troubled)) snprintf(crew->why, sizeof crew->why, "%s", b->why);
}

static bool work_through(struct crew_at_work *work) {
  struct lab *lab = work->lab;
  struct lab_board *b = work->board;
  bool ready = await(work, &b->ready, b->users, READY_MS, true);
  if (!ready && !lab->why[0] && !dibs__lab_ended(lab))
    dibs__lab_fail(lab, "not all of %u users were ready in time", b->users);
  if (!ready) atomic_store(&b->stop, true);
  dibs__tick from = dibs__tick_now();
  atomic_store(&b->go, 1);
  dibs__word_wake(&b->go, UINT32_MAX / 2, true);
  if (ready) look_on(work, from);
  work->crew->seconds = seconds_since(from);
  uint64_t done = done_so_far(b);
  atomic_store(&b->stop, true);
  bool ended = await(work, &b->ended, b->users, END_MS, false);
  if (!ended && !lab->why[0]) dibs__lab_fail(lab, "users of %s did not come to an end", work->crew->way->name);
  gather(work);
  /* Those that were on their way when the time was over took longer than it. */
  if (!work->crew->once && done) work->crew->seconds *= (double)work->crew->done / (double)done;
  return ready && ended;
}

bool dibs__lab_crew_run(struct lab *lab, struct lab_crew *crew) {
  struct crew_at_work work = {.lab = lab, .crew = crew, .fd = -1};
  lab->why[0] = '\0';
  crew->samples = 0;
  work.board = board_new(&work);
  bool fine = work.board != NULL;
  if (!fine) {
    if (work.fd >= 0) close(work.fd);
    return dibs__lab_fail(lab, "no memory for %u users: %s", crew->users, strerror(errno));
  }
  dibs__lab_tell(lab, crew->way->name, crew->users, 0, crew->once ? 0 : crew->ms, 0, 0);
  if (lab->processes)
    fine = helpers_start(&work);
  else
    fine = (work.thread = dibs__thread_start("dibs-lab-crew", in_process, &work)) != NULL ||
           dibs__lab_fail(lab, "the system has no thread left");
  if (fine) fine = work_through(&work);
  helpers_end(&work, !fine);
  dibs__thread_join(work.thread);
  munmap(work.board, work.size);
  if (work.fd >= 0) close(work.fd);
  return fine;
}
