/* SPDX-License-Identifier: MIT */
/*
 * Contend: the same users on more and more rows, so that they collide less and less.  Optimistic writing pays for each
 * collision by repeating the work, locking by waiting, coalescing with nothing: at which number of rows do they cross?
 */
#include "lab/lab.h"
#include "lab/own.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEATS = 1000000000, WAYS_MAX = 8 };

static const struct lab_column columns[] = {
    {"rows", "rows", LAB_COUNT},           {"strategy", "strategy", LAB_TEXT}, {"per_second", "bookings/s", LAB_RATE},
    {"p50_ms", "p50 ms", LAB_MS},          {"p99_ms", "p99 ms", LAB_MS},       {"conflicts", "conflicts", LAB_COUNT},
    {"deadlocks", "deadlocks", LAB_COUNT}, {"gave_up", "gave up", LAB_COUNT},  {"verdict", "verdict", LAB_TEXT},
};
static const struct lab_column best_columns[] = {
    {"rows", "rows", LAB_COUNT},
    {"best", "ahead", LAB_TEXT},
    {"per_second", "bookings/s", LAB_RATE},
    {"times", "of the last one", LAB_TIMES},
    {"last", "last", LAB_TEXT},
};

struct contend {
  struct lab *lab;
  const struct lab_way *way[WAYS_MAX];
  size_t ways;
  double rate[LAB_LIST_MAX][WAYS_MAX];
  bool done[LAB_LIST_MAX][WAYS_MAX];
};

static void choose(struct contend *c) {
  static const char *const usual[] = {"coalesced", "atomic", "pessimistic", "optimistic"};
  for (size_t i = 0; i < dibs__lab_way_count && c->ways < WAYS_MAX; i++) {
    const struct lab_way *way = &dibs__lab_ways[i];
    bool wanted = c->lab->strategies != NULL;
    for (size_t n = 0; n < sizeof usual / sizeof *usual; n++) wanted = wanted || strcmp(usual[n], way->name) == 0;
    if (wanted && dibs__lab_way_wanted(c->lab, way)) c->way[c->ways++] = way;
  }
}

static bool run_strategy(struct contend *c, size_t nth, size_t w, struct lab_table *table, struct lab_series *series) {
  struct lab *lab = c->lab;
  struct lab_sheet *s = &lab->sheet;
  struct lab_audit audit;
  struct lab_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__lab_fail(lab, "out of memory");
  crew->way = c->way[w];
  crew->users = lab->users[0];
  crew->rows = lab->rows[nth];
  crew->ms = lab->ms;
  bool fine = dibs__lab_try(lab, crew, SEATS, &audit);
  if (fine) {
    struct lab_verdict verdict = dibs__lab_judge(lab, crew, &audit);
    c->rate[nth][w] = (double)crew->done / crew->seconds;
    c->done[nth][w] = crew->done > 0;
    dibs__lab_put(s, table, crew->rows);
    dibs__lab_put_text(s, table, LAB_PLAIN, crew->way->name);
    dibs__lab_put(s, table, c->rate[nth][w]);
    dibs__lab_put(s, table, (double)dibs__hist_percentile(&crew->hist, 50) / 1e6);
    dibs__lab_put(s, table, (double)dibs__hist_percentile(&crew->hist, 99) / 1e6);
    dibs__lab_put(s, table, (double)crew->conflicts);
    dibs__lab_put(s, table, (double)crew->deadlocks);
    dibs__lab_put(s, table, (double)(crew->given_up + crew->absent));
    dibs__lab_put_text(s, table, verdict.mood, verdict.text);
    if (crew->done) dibs__lab_point(s, series, crew->rows, c->rate[nth][w]);
    if (crew->why[0]) dibs__lab_note(s, "%s on %u rows: %s", crew->way->name, crew->rows, crew->why);
  }
  free(crew);
  return fine;
}

static void add_fastest(struct contend *c, struct lab_table *table) {
  struct lab_sheet *s = &c->lab->sheet;
  for (size_t n = 0; n < c->lab->rows_count; n++) {
    size_t first = WAYS_MAX, last = WAYS_MAX;
    for (size_t w = 0; w < c->ways; w++) {
      if (!c->done[n][w]) continue;
      if (first == WAYS_MAX || c->rate[n][w] > c->rate[n][first]) first = w;
      if (last == WAYS_MAX || c->rate[n][w] < c->rate[n][last]) last = w;
    }
    if (first == WAYS_MAX) continue;
    dibs__lab_put(s, table, c->lab->rows[n]);
    dibs__lab_put_text(s, table, LAB_PLAIN, c->way[first]->name);
    dibs__lab_put(s, table, c->rate[n][first]);
    dibs__lab_put(s, table, c->rate[n][first] / c->rate[n][last]);
    dibs__lab_put_text(s, table, LAB_PLAIN, c->way[last]->name);
  }
}

/* The numbers of rows between which two strategies change places. */
static void crossings(struct contend *c) {
  for (size_t a = 0; a < c->ways; a++)
    for (size_t b = a + 1; b < c->ways; b++)
      for (size_t n = 1; n < c->lab->rows_count; n++) {
        if (!c->done[n - 1][a] || !c->done[n - 1][b] || !c->done[n][a] || !c->done[n][b]) continue;
        bool before = c->rate[n - 1][a] > c->rate[n - 1][b], after = c->rate[n][a] > c->rate[n][b];
        if (before == after) continue;
        dibs__lab_note(&c->lab->sheet, "%s and %s cross between %u and %u rows.", c->way[a]->name, c->way[b]->name,
                       c->lab->rows[n - 1], c->lab->rows[n]);
      }
}

bool dibs__lab_contend(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  struct contend c = {.lab = lab};
  struct lab_series *series[WAYS_MAX];
  bool fine = true;
  s->experiment = "contend";
  dibs__lab_title(
      s, "From one row to many",
      "The same users book seats of random rows. On one row all of them meet; on ten thousand rows hardly any do.");
  dibs__lab_fact_number(s, "users", "Users", lab->users[0], "");
  dibs__lab_fact_number(s, "seconds", "Seconds each", (double)lab->ms / 1000, "");
  if (!dibs__lab_locks_ready(lab)) return false;
  choose(&c);
  struct lab_plot *plot =
      dibs__lab_plot(s, "rate", LAB_LINES, "Bookings per second, by the number of rows",
                     "On the left all users book on the same row; on the right each has almost a row of its own.");
  if (plot) {
    plot->x_title = "rows";
    plot->y_title = "bookings/s";
    plot->log_x = plot->log_y = true;
  }
  struct lab_table *ahead =
      dibs__lab_table(s, "ahead", "The fastest", "", best_columns, sizeof best_columns / sizeof *best_columns);
  struct lab_table *table = dibs__lab_table(s, "contend", "All runs", "", columns, sizeof columns / sizeof *columns);
  for (size_t w = 0; w < c.ways; w++) series[w] = dibs__lab_series(s, plot, c.way[w]->name, LAB_PLAIN);
  lab->steps = (uint32_t)(c.ways * lab->rows_count);
  for (size_t n = 0; fine && n < lab->rows_count; n++)
    for (size_t w = 0; fine && w < c.ways && !dibs__lab_ended(lab); w++) {
      lab->step++;
      fine = run_strategy(&c, n, w, table, series[w]) || dibs__lab_ended(lab);
    }
  add_fastest(&c, ahead);
  crossings(&c);
  return fine;
}

/*
 * A crew of users.  They connect first; when all are ready they start at once.  One thread of the lab observes them: it
 * samples the rate, reports progress, and sets stop.
 */

enum {
  READY_MS = 120000, /* a thousand connections to a server on a busy machine take a while */
  LOOK_MS = 100,
  ONCE_MS = 120000, /* for a race to end */
  END_MS = 60000    /* for users to return from their last booking */
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
  b->sql = lab->connection != NULL;
  b->by_hand = dibs__lab_by_hand(work->crew->way);
  b->wait_ms = 10000;
  const char *locks = work->crew->way->lock ? dibs__lab_lock_uri(lab, work->crew->way) : NULL;
  snprintf(b->locks, sizeof b->locks, "%s", locks ? locks : "");
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
  if (argc > 1 && strcmp(argv[0], "crash") == 0) return dibs__lab_crash_helper(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[0], "counter") == 0) return dibs__lab_counter_helper(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[0], "phases") == 0) return dibs__lab_phases_helper(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[0], "redis") == 0) return dibs__lab_own_redis_helper(argc - 1, argv + 1);
  if (argc < 5 || strcmp(argv[0], "crew") != 0) return 1;
  /* The lab ends its helpers; a signal of the keyboard reaches all of them. */
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

/* ---- Observing ---- */

static uint64_t done_so_server(const struct lab_board *b) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < b->users; i++) done += atomic_load_explicit(&b->user[i].done, memory_order_relaxed);
  return done;
}

/* Waits until the word has reached `value`, or `ms` have passed, or a helper died; `may_end`: or the lab is
 * interrupted. */
static bool await_word(struct crew_at_work *work, dibs__word *word, uint32_t value, int64_t ms, bool may_end) {
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

/* Runs for the given time, with as many samples as fit. */
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
    uint64_t done = done_so_server(b);
    sample(crew, last, now, done - before);
    dibs__lab_report_progress(work->lab, crew->way->name, crew->users, (int64_t)(now * 1000), crew->once ? 0 : crew->ms,
                              done, (double)(done - before) / (now - last));
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
  bool ready = await_word(work, &b->ready, b->users, READY_MS, true);
  if (!ready && !lab->why[0] && !dibs__lab_ended(lab))
    dibs__lab_fail(lab, "not all of %u users were ready in time", b->users);
  if (!ready) atomic_store(&b->stop, true);
  dibs__tick from = dibs__tick_now();
  atomic_store(&b->go, 1);
  dibs__word_wake(&b->go, UINT32_MAX / 2, true);
  if (ready) look_on(work, from);
  work->crew->seconds = seconds_since(from);
  uint64_t done = done_so_server(b);
  atomic_store(&b->stop, true);
  bool ended = await_word(work, &b->ended, b->users, END_MS, false);
  if (!ended && !lab->why[0]) dibs__lab_fail(lab, "users of %s did not end in time", work->crew->way->name);
  gather(work);
  /* Bookings in progress at the end of the time lasted longer than it. */
  if (!work->crew->once && done) work->crew->seconds *= (double)work->crew->done / (double)done;
  return ready && ended;
}

/* Users become ready, start at once, book.  false: lab->why. */
static bool lab_crew_run(struct lab *lab, struct lab_crew *crew) {
  struct crew_at_work work = {.lab = lab, .crew = crew, .fd = -1};
  lab->why[0] = '\0';
  crew->samples = 0;
  work.board = board_new(&work);
  bool fine = work.board != NULL;
  if (!fine) {
    if (work.fd >= 0) close(work.fd);
    return dibs__lab_fail(lab, "out of memory for %u users: %s", crew->users, strerror(errno));
  }
  dibs__lab_report_progress(lab, crew->way->name, crew->users, 0, crew->once ? 0 : crew->ms, 0, 0);
  if (lab->processes)
    fine = helpers_start(&work);
  else
    fine = (work.thread = dibs__thread_start("dibs-lab-crew", in_process, &work)) != NULL ||
           dibs__lab_fail(lab, "cannot start another thread");
  if (fine) fine = work_through(&work);
  helpers_end(&work, !fine);
  dibs__thread_join(work.thread);
  munmap(work.board, work.size);
  if (work.fd >= 0) close(work.fd);
  return fine;
}

/* Shared by the experiments: a crew on new tables, the verdict, and plots of the results. */

void dibs__lab_report_progress(struct lab *lab, const char *what, uint32_t users, int64_t ms, int64_t of_ms,
                               uint64_t done, double rate) {
  if (!lab->progress) return;
  struct lab_progress progress = {.experiment = lab->sheet.experiment,
                                  .what = what,
                                  .users = users,
                                  .step = lab->step,
                                  .steps = lab->steps,
                                  .ms = ms,
                                  .of_ms = of_ms,
                                  .done = done,
                                  .rate = rate};
  lab->progress(&progress, lab->user);
}

bool dibs__lab_try(struct lab *lab, struct lab_crew *crew, int64_t seats, struct lab_audit *audit) {
  if (!dibs__lab_tables_make(lab, crew->rows, seats)) return false;
  if (!lab_crew_run(lab, crew)) return false;
  return dibs__lab_audit(lab, crew->rows, seats, audit);
}

/* A claim whose answer never reached its user may exist or not. */
static bool counted_right(const struct lab_crew *crew, const struct lab_audit *audit) {
  int64_t told = (int64_t)crew->done, untold = (int64_t)crew->given_up, there = audit->claims;
  if (there < 0) there = audit->counted;
  return audit->over == 0 && audit->off == 0 && there >= told && there <= told + untold;
}

static struct lab_verdict fails(struct lab *lab, const char *text) {
  lab->sheet.broken = true;
  return (struct lab_verdict){LAB_BAD, text};
}

struct lab_verdict dibs__lab_judge(struct lab *lab, const struct lab_crew *crew, const struct lab_audit *audit) {
  bool fine = counted_right(crew, audit);
  if (crew->unsupported && !crew->done) return (struct lab_verdict){LAB_PLAIN, "not supported"};
  if (fine && !crew->done && !crew->full) return fails(lab, "no bookings");
  if (crew->way->promised) return fine ? (struct lab_verdict){LAB_GOOD, "correct"} : fails(lab, "BROKEN");
  if (fine) return (struct lab_verdict){LAB_PLAIN, "did not break this time"};
  return lab->strict ? fails(lab, "BROKEN") : (struct lab_verdict){LAB_EXPECTED, "broken, as expected"};
}

/* ---- Hills ---- */

enum { PER_DECADE = 12 };

/* The largest value of the step, in ns; as in hist.c. */
static double top_of(size_t step) {
  if (step < DIBS__HIST_STEPS) return (double)step + 1;
  unsigned shift = (unsigned)(step / DIBS__HIST_STEPS) - 1;
  return ldexp((double)(DIBS__HIST_STEPS + step % DIBS__HIST_STEPS + 1), (int)shift);
}

void dibs__lab_hill(struct lab *lab, struct lab_plot *plot, const char *name, enum lab_mood mood,
                    const struct dibs__hist *hist) {
  if (!hist->count) return;
  enum { BINS = PER_DECADE * 10 }; /* 100 ns to 1000 s */
  double bin[BINS + 1] = {0};
  int first = BINS, last = 0;
  for (size_t i = 0; i < DIBS__HIST_STEPS * DIBS__HIST_OCTAVES; i++) {
    if (!hist->steps[i]) continue;
    int at = (int)floor((log10(top_of(i)) - 2) * PER_DECADE);
    if (at < 0) at = 0;
    if (at >= BINS) at = BINS - 1;
    bin[at] += (double)hist->steps[i];
    if (at < first) first = at;
    if (at > last) last = at;
  }
  size_t nth = plot ? plot->count : 0;
  struct lab_series *series = dibs__lab_series(&lab->sheet, plot, name, mood);
  if (!series) return;
  plot->mark[nth][0] = (double)dibs__hist_percentile(hist, 50) / 1e6;
  plot->mark[nth][1] = (double)dibs__hist_percentile(hist, 99) / 1e6;
  for (int i = first - 1; i <= last + 1; i++) {
    double share = i < 0 || i > BINS ? 0 : bin[i] / (double)hist->count;
    double at = pow(10, 2 + (i + 0.5) / PER_DECADE) / 1e6;
    dibs__lab_point(&lab->sheet, series, at, share);
  }
}

/* Race: many applicants for few seats, at once. */

static const struct lab_column race_columns[] = {
    {"strategy", "strategy", LAB_TEXT},
    {"accepted", "accepted", LAB_COUNT},
    {"counted", "counted", LAB_COUNT},
    {"over_capacity", "over capacity", LAB_COUNT},
    {"lost_updates", "lost updates", LAB_COUNT},
    {"deadlocks", "deadlocks", LAB_COUNT},
    {"retries", "retries", LAB_COUNT},
    {"refused", "refused", LAB_COUNT},
    {"gave_up", "gave up", LAB_COUNT},
    {"ms", "ms", LAB_MS},
    {"verdict", "verdict", LAB_TEXT},
};

static void row(struct lab *lab, struct lab_table *table, const struct lab_crew *crew, const struct lab_audit *audit,
                struct lab_verdict verdict) {
  struct lab_sheet *s = &lab->sheet;
  enum lab_mood wrong = crew->way->promised ? LAB_BAD : LAB_EXPECTED;
  int64_t claims = audit->claims >= 0 ? audit->claims : (int64_t)crew->done;
  int64_t lost = claims - audit->counted;
  dibs__lab_put_text(s, table, LAB_PLAIN, crew->way->name);
  dibs__lab_put(s, table, (double)claims);
  dibs__lab_put(s, table, (double)audit->counted);
  dibs__lab_put(s, table, (double)audit->over);
  if (audit->over) dibs__lab_mood(table, wrong);
  dibs__lab_put(s, table, lost > 0 ? (double)lost : 0);
  if (lost) dibs__lab_mood(table, wrong);
  dibs__lab_put(s, table, (double)crew->deadlocks);
  if (crew->deadlocks) dibs__lab_mood(table, LAB_EXPECTED);
  dibs__lab_put(s, table, (double)(crew->conflicts + crew->deadlocks));
  dibs__lab_put(s, table, (double)crew->full);
  dibs__lab_put(s, table, (double)(crew->given_up + crew->absent));
  dibs__lab_put(s, table, crew->seconds * 1000);
  dibs__lab_put_text(s, table, verdict.mood, verdict.text);
}

static bool race_one(struct lab *lab, const struct lab_way *way, struct lab_table *table, struct lab_plot *times,
                     struct lab_plot *seats) {
  struct lab_audit audit;
  struct lab_crew *crew = calloc(1, sizeof *crew);
  if (!crew) return dibs__lab_fail(lab, "out of memory");
  crew->way = way;
  crew->users = lab->users[0];
  crew->rows = 1;
  crew->once = true;
  bool fine = dibs__lab_try(lab, crew, lab->seats, &audit);
  if (fine) {
    struct lab_verdict verdict = dibs__lab_judge(lab, crew, &audit);
    enum lab_mood mood = verdict.mood == LAB_GOOD ? LAB_PLAIN : verdict.mood;
    row(lab, table, crew, &audit, verdict);
    dibs__lab_point(&lab->sheet, dibs__lab_series(&lab->sheet, times, way->name, mood), 0, crew->seconds * 1000);
    int64_t claims = audit.claims >= 0 ? audit.claims : (int64_t)crew->done;
    dibs__lab_point(&lab->sheet, dibs__lab_series(&lab->sheet, seats, way->name, mood), lab->seats, (double)claims);
    if (crew->why[0]) dibs__lab_note(&lab->sheet, "%s: %s", way->name, crew->why);
    if (crew->absent) dibs__lab_note(&lab->sheet, "%s: %u applicants could not connect", way->name, crew->absent);
  }
  free(crew);
  return fine;
}

bool dibs__lab_race(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  char intro[400];
  s->experiment = "race";
  snprintf(intro, sizeof intro,
           "%u applicants at once for %u seats. Each inserts its own row, with a foreign key to the row that counts "
           "the seats. The count must equal the number of rows, and must not exceed the seats.",
           lab->users[0], lab->seats);
  dibs__lab_title(s, "Race for seats", intro);
  dibs__lab_fact_number(s, "applicants", "Applicants", lab->users[0], "");
  dibs__lab_fact_number(s, "seats", "Seats", lab->seats, "");
  if (!dibs__lab_locks_ready(lab)) return false;
  struct lab_table *table =
      dibs__lab_table(s, "race", "Successful applicants", "", race_columns, sizeof race_columns / sizeof *race_columns);
  struct lab_plot *seats =
      dibs__lab_plot(s, "accepted", LAB_BARS, "Successful applicants",
                     "The line is the number of seats; a bar that crosses it means that seats were sold twice.");
  struct lab_plot *times = dibs__lab_plot(s, "time", LAB_BARS, "Time until all had their answer",
                                          "From the common start, in milliseconds. Shorter is better.");
  if (times) times->y_title = "ms";
  for (size_t i = 0; i < dibs__lab_way_count; i++) lab->steps += dibs__lab_way_wanted(lab, &dibs__lab_ways[i]);
  for (size_t i = 0; i < dibs__lab_way_count; i++) {
    if (!dibs__lab_way_wanted(lab, &dibs__lab_ways[i])) continue;
    lab->step++;
    bool fine = race_one(lab, &dibs__lab_ways[i], table, times, seats);
    if (dibs__lab_ended(lab)) break;
    if (!fine) return false;
  }
  return true;
}
