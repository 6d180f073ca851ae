/* SPDX-License-Identifier: MIT */
/*
 * Cron through dibs/cron.h: processes of a fleet share jobs, and each firing happens once, also while one of them is
 * stopped or killed.
 *   test_cron_api [STORE]
 */
#include "bed.h"
#include "dibs/cron.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RUNS = 20000, CLAIM_MS = 2000, THREADS = 4, PATIENCE_MS = 60000 };

/* Until `condition`, which takes some seconds of firings. */
#define SOON(condition)                                                                                                \
  do {                                                                                                                 \
    int64_t soon_by = now_ms() + PATIENCE_MS;                                                                          \
    while (!(condition) && now_ms() < soon_by) nap_ms(1);                                                              \
    assert_true(condition);                                                                                            \
  } while (0)

/* What ran, in memory that the processes of a test share. */
struct log {
  _Atomic uint32_t count;
  _Atomic uint32_t flaws, running, most_running, kept_off, lefts;
  struct {
    char job[32], command[32];
    int64_t at_ms, began_ms;
    uint64_t fence;
    uint32_t attempt, by_hand;
    pid_t pid;
    _Atomic bool whole;
  } runs[RUNS];
};
static struct log *ran;
static char fleet[100];

static pid_t children[2];
static size_t child_count;

static void end_children(void) {
  for (; child_count > 0; child_count--) {
    kill(children[child_count - 1], SIGKILL);
    waitpid(children[child_count - 1], NULL, 0);
  }
}

static int end_fleet(void **state) {
  end_children();
  return close_bed(state);
}

static int begin_fleet(void **state) {
  memset(ran, 0, sizeof *ran);
  if (open_bed(state) != 0) return -1;
  snprintf(fleet, sizeof fleet, "%s", kind);
  return 0;
}

/* "nap 500": it takes so long; "until 0": until no time is left; "fail 3", "wait 300", "how 4", "dead". */
static dibs_verdict work(const dibs_firing *f, dibs_firing_reply *reply, void *user) {
  (void)user;
  uint32_t nth = atomic_fetch_add(&ran->count, 1);
  if (nth >= RUNS) return DIBS_END_DONE;
  snprintf(ran->runs[nth].job, sizeof ran->runs[nth].job, "%s", f->job);
  snprintf(ran->runs[nth].command, sizeof ran->runs[nth].command, "%s", f->command);
  ran->runs[nth].at_ms = f->at_ms;
  ran->runs[nth].began_ms = now_ms();
  ran->runs[nth].fence = f->task->fence.value;
  ran->runs[nth].attempt = f->task->attempt;
  ran->runs[nth].by_hand = f->by_hand;
  ran->runs[nth].pid = getpid();
  ran->runs[nth].whole = true;
  uint32_t running = atomic_fetch_add(&ran->running, 1) + 1;
  if (running > ran->most_running) ran->most_running = running;
  dibs_verdict verdict = DIBS_END_DONE;
  int number = 0;
  if (sscanf(f->command, "nap %d", &number) == 1) nap_ms(number);
  if (strcmp(f->command, "until 0") == 0) {
    while (dibs_firing_left_ms(f) > 0) nap_ms(5);
    ran->lefts++;
  }
  if (sscanf(f->command, "fail %d", &number) == 1) {
    verdict = DIBS_END_FAIL;
    reply->code = number;
    snprintf(reply->text, sizeof reply->text, "it failed");
  }
  if (sscanf(f->command, "wait %d", &number) == 1 && f->task->attempt < 3) {
    verdict = DIBS_END_WAIT;
    reply->delay_ms = number;
  }
  if (sscanf(f->command, "how %d", &number) == 1) reply->how = (dibs_run_end)number;
  if (strcmp(f->command, "dead") == 0) verdict = DIBS_END_DEAD;
  ran->running--;
  return verdict;
}

static void flaw(uint32_t line, const char *message, void *user) {
  (void)message;
  ran->flaws += 1 + line * 100;
  if (user) *(uint32_t *)user = line;
}

static dibs_cron_table table_of(const char *text) {
  return (dibs_cron_table){
      .size = sizeof(dibs_cron_table), .text = text, .length = strlen(text), .zone = "UTC", .on_error = flaw};
}

static dibs_cron *started(dibs_store *on, const char *text, uint32_t threads) {
  dibs_cron_table table = table_of(text);
  dibs_cron_options o = {.size = sizeof o, .table = &table, .threads = threads, .claim_ms = CLAIM_MS, .work = work};
  dibs_cron *cron = NULL;
  EXPECT(dibs_cron_start(on, fleet, &o, &cron, &error), DIBS_OK);
  return cron;
}

static void stopped(dibs_cron *cron) {
  EXPECT(dibs_cron_stop(cron, PATIENCE_MS, &error), DIBS_OK);
  dibs_cron_free(cron);
}

/* A process of the fleet, for a test that kills it.  It has nothing of this one but the log. */
static pid_t spawned(const char *text) {
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid > 0) return children[child_count++] = pid;
  dibs_store *own;
  dibs_cron_table table = table_of(text);
  dibs_cron_options o = {.size = sizeof o, .table = &table, .threads = THREADS, .claim_ms = CLAIM_MS, .work = work};
  dibs_cron *cron;
  if (dibs_open(uri, NULL, &own, &error) != DIBS_OK || dibs_cron_start(own, fleet, &o, &cron, &error) != DIBS_OK) {
    fprintf(stderr, "%s\n", error.text);
    _exit(1);
  }
  for (;;) pause();
}

static uint32_t runs_of(const char *job, pid_t pid) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < ran->count && i < RUNS; i++)
    count += ran->runs[i].whole && (!job || strcmp(ran->runs[i].job, job) == 0) && (!pid || ran->runs[i].pid == pid);
  return count;
}

/* Runs of the job at the instant; those of its first attempt, or all. */
static uint32_t runs_at(const char *job, int64_t at_ms, bool first) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < ran->count && i < RUNS; i++)
    count += ran->runs[i].whole && strcmp(ran->runs[i].job, job) == 0 && ran->runs[i].at_ms == at_ms &&
             (!first || ran->runs[i].attempt == 1);
  return count;
}

static void span_of(const char *job, int64_t *first_ms, int64_t *last_ms) {
  *first_ms = INT64_MAX;
  *last_ms = 0;
  for (uint32_t i = 0; i < ran->count && i < RUNS; i++) {
    if (!ran->runs[i].whole || strcmp(ran->runs[i].job, job) != 0) continue;
    if (ran->runs[i].at_ms < *first_ms) *first_ms = ran->runs[i].at_ms;
    if (ran->runs[i].at_ms > *last_ms) *last_ms = ran->runs[i].at_ms;
  }
}

/* Each second from the first firing to the last one, once. */
static void assert_whole(const char *job, int64_t seconds) {
  int64_t first_ms, last_ms;
  span_of(job, &first_ms, &last_ms);
  assert_true(last_ms - first_ms >= (seconds - 1) * 1000);
  for (int64_t at_ms = first_ms; at_ms <= last_ms; at_ms += 1000)
    if (runs_at(job, at_ms, true) != 1)
      fail_msg("%s at %lld: %u firings", job, (long long)at_ms, runs_at(job, at_ms, true));
}

static dibs_cron_counts counted(dibs_cron *cron) {
  dibs_cron_counts counts = DIBS_CRON_COUNTS_INIT;
  EXPECT(dibs_cron_count(cron, &counts, &error), DIBS_OK);
  return counts;
}

/* ---- One fleet, several processes ---- */

static void each_firing_happens_once_in_two_stores(void **state) {
  (void)state;
  static const char text[] = "* * * * * * name=tick overlap=allow x\n";
  dibs_store *other;
  EXPECT(dibs_open(uri, NULL, &other, &error), DIBS_OK);
  dibs_cron *a = started(store, text, THREADS), *b = started(other, text, THREADS);
  SOON(runs_of("tick", 0) >= 5);
  stopped(a);
  stopped(b);
  dibs_close(other);
  assert_whole("tick", 5);
}

/* Processes have no part in a store in memory. */
static bool in_memory(void) {
  return strncmp(uri, "memory:", 7) == 0;
}

static void firings_survive_a_kill_and_a_stop(void **state) {
  static const char text[] = "* * * * * * name=tick overlap=allow catch-up=all:1h nap 20\n";
  if (in_memory()) return;
  (void)close_bed(state); /* a child must not have its connections */
  pid_t killed = spawned(text), paused = spawned(text);
  assert_int_equal(open_bed(state), 0);
  SOON(runs_of("tick", 0) >= 3);
  kill(paused, SIGSTOP);
  kill(killed, SIGKILL);
  dibs_cron *rest = started(store, text, THREADS);
  nap_ms(2 * CLAIM_MS); /* the claims of the stopped one end.  (If it is in a write to SQLite, the others wait.) */
  kill(paused, SIGCONT);
  uint32_t later = runs_of("tick", 0);
  SOON(runs_of("tick", 0) >= later + 3 && runs_of("tick", getpid()) >= 3);
  end_children();
  /* What the killed one had claimed runs again. */
  int64_t first_ms, last_ms;
  SOON((span_of("tick", &first_ms, &last_ms), last_ms - first_ms >= 8000));
  stopped(rest);
  for (int64_t at_ms = first_ms; at_ms <= last_ms - 4000; at_ms += 1000) {
    if (runs_at("tick", at_ms, true) > 1) fail_msg("%lld: added twice", (long long)at_ms);
    if (runs_at("tick", at_ms, false) == 0) fail_msg("%lld: missing", (long long)at_ms);
  }
  /* A second run has a larger fence. */
  for (uint32_t i = 0; i < ran->count; i++) assert_true(ran->runs[i].fence >= ran->runs[i].attempt);
}

/* ---- Jobs ---- */

static void missed_firings_are_made_up_for_as_the_job_says(void **state) {
  (void)state;
  static const char text[] = "* * * * * * name=all overlap=allow catch-up=all:1h x\n"
                             "* * * * * * name=none overlap=allow catch-up=none x\n";
  dibs_cron *cron = started(store, text, THREADS);
  SOON(runs_of("all", 0) >= 2 && runs_of("none", 0) >= 2);
  stopped(cron);
  nap_ms(13000); /* more than firings may be late */
  cron = started(store, text, THREADS);
  int64_t first_ms, last_ms;
  SOON((span_of("all", &first_ms, &last_ms), last_ms - first_ms >= 17000));
  stopped(cron);
  assert_whole("all", 17);
  span_of("none", &first_ms, &last_ms);
  assert_true(runs_of("none", 0) < (last_ms - first_ms) / 1000 + 1);
}

static void overlap_is_as_the_job_says(void **state) {
  (void)state;
  dibs_cron *cron = started(store, "* * * * * * name=skip overlap=skip nap 2500\n", THREADS);
  SOON(runs_of("skip", 0) >= 3);
  assert_int_equal(ran->most_running, 1);
  EXPECT(dibs_cron_stop(cron, PATIENCE_MS, &error), DIBS_OK);
  dibs_cron_free(cron);
  int64_t first_ms, last_ms;
  span_of("skip", &first_ms, &last_ms);
  assert_true(last_ms - first_ms >= 4000);

  ran->most_running = 0;
  cron = started(store, "* * * * * * name=queue overlap=queue nap 1100\n", THREADS);
  SOON(runs_of("queue", 0) >= 4);
  assert_int_equal(ran->most_running, 1);
  stopped(cron);
  assert_whole("queue", 4);

  cron = started(store, "* * * * * * name=allow overlap=allow nap 2500\n", THREADS);
  SOON(ran->most_running >= 2);
  stopped(cron);
}

struct last {
  dibs_cron_info info;
  char name[32];
  uint32_t count;
};

static int see(const dibs_cron_info *info, void *user) {
  struct last *last = user;
  last->count++;
  if (strcmp(info->name, last->name) == 0) last->info = *info;
  return 0;
}

static dibs_cron_info listed(const char *text, const char *job) {
  dibs_cron_table table = table_of(text);
  struct last last = {.count = 0};
  snprintf(last.name, sizeof last.name, "%s", job);
  EXPECT(dibs_cron_list(store, fleet, &table, see, &last, &error), DIBS_OK);
  assert_true(last.info.size > 0);
  return last.info;
}

static void a_firing_learns_that_its_timeout_is_over(void **state) {
  (void)state;
  char text[128];
  snprintf(text, sizeof text, "* * * * * * name=slow-%s timeout=300ms until 0\n", kind);
  char *job = strstr(text, "slow-"), name[64] = "";
  sscanf(job, "%63s", name);
  dibs_cron *cron = started(store, text, 1);
  SOON(ran->lefts >= 1);
  stopped(cron);
  dibs_cron_info info = listed(text, name);
  assert_int_equal(info.last_how, DIBS_RUN_OVERTIME);
  assert_true(info.last_ms > 0);
}

static void verdicts_do_what_they_say(void **state) {
  (void)state;
  char text[512];
  snprintf(text, sizeof text, "@yearly name=fail-%s fail 3\n@yearly name=wait-%s wait 200\n@yearly name=dead-%s dead\n",
           kind, kind, kind);
  dibs_cron *cron = started(store, text, THREADS);
  dibs_cron_table table = table_of(text);
  char fails[80], waits[80], dead[80];
  snprintf(fails, sizeof fails, "fail-%s", kind);
  snprintf(waits, sizeof waits, "wait-%s", kind);
  snprintf(dead, sizeof dead, "dead-%s", kind);
  uint64_t nr;
  EXPECT(dibs_cron_fire(store, fleet, &table, fails, &nr, &error), DIBS_OK);
  EXPECT(dibs_cron_fire(store, fleet, &table, waits, NULL, &error), DIBS_OK);
  EXPECT(dibs_cron_fire(store, fleet, &table, waits, NULL, &error), DIBS_HELD);
  EXPECT(dibs_cron_fire(store, fleet, &table, dead, NULL, &error), DIBS_OK);
  EXPECT(dibs_cron_fire(store, fleet, &table, "unknown", NULL, &error), DIBS_NOT_FOUND);
  SOON(counted(cron).done == 1 && counted(cron).failed == 1 && counted(cron).dead == 1);
  assert_int_equal(counted(cron).repeated, 2);
  assert_int_equal(counted(cron).history_lost, 0);
  assert_int_equal(state_of(nr), DIBS_TASK_DONE); /* a schedule is no retry */
  stopped(cron);
  for (uint32_t i = 0; i < ran->count; i++) assert_true(ran->runs[i].by_hand == 1);
  dibs_cron_info info = listed(text, fails);
  assert_int_equal(info.last_how, DIBS_RUN_FAILED);
  assert_int_equal(info.last_code, 3);
  assert_int_equal(listed(text, waits).last_how, DIBS_RUN_DONE);
}

static void a_wrong_end_is_a_failure(void **state) {
  (void)state;
  char text[128], name[80];
  snprintf(name, sizeof name, "how-%s", kind);
  snprintf(text, sizeof text, "@yearly name=%s how 99\n", name);
  dibs_cron *cron = started(store, text, 1);
  dibs_cron_table table = table_of(text);
  EXPECT(dibs_cron_fire(store, fleet, &table, name, NULL, &error), DIBS_OK);
  SOON(counted(cron).failed == 1);
  stopped(cron);
  assert_int_equal(listed(text, name).last_how, DIBS_RUN_FAILED);
}

static void jobs_need_no_text(void **state) {
  (void)state;
  const dibs_cron_job jobs[] = {
      {.size = sizeof *jobs, .name = "tick", .schedule = "* * * * * *", .command = "x %"},
      {.size = sizeof *jobs, .name = "tick", .schedule = "@daily"},
      {.size = sizeof *jobs, .name = "bad", .schedule = "99 * * * *"},
      {.size = sizeof *jobs, .schedule = "@daily"},
      {.size = sizeof *jobs, .name = "zone", .schedule = "@daily", .zone = "No/Where"},
  };
  dibs_cron_table table = {.size = sizeof table, .jobs = jobs, .job_count = COUNT_OF(jobs), .on_error = flaw};
  dibs_cron_options o = {.size = sizeof o, .table = &table, .work = work};
  dibs_cron *cron;
  EXPECT(dibs_cron_start(store, fleet, &o, &cron, &error), DIBS_OK);
  assert_int_equal(ran->flaws, 4);
  assert_int_equal(counted(cron).jobs, 1);
  SOON(runs_of("tick", 0) >= 2);
  stopped(cron);
  assert_string_equal(ran->runs[0].command, "x %");
}

static void a_child_after_fork_does_not_wait_for_its_parents_cron(void **state) {
  (void)state;
  dibs_cron *cron = started(store, "* * * * * * name=tick x\n", 1);
  SOON(runs_of("tick", 0) >= 1);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dibs_cron_counts counts = DIBS_CRON_COUNTS_INIT;
    dibs_cron_table table = table_of("");
    dibs_error trouble = {0};
    alarm(LONG_MS / 1000);
    bool refused =
        dibs_cron_stop(cron, DIBS_FOREVER, NULL) == DIBS_INVALID && dibs_cron_stop(cron, 0, NULL) == DIBS_INVALID &&
        dibs_cron_count(cron, &counts, NULL) == DIBS_INVALID && dibs_cron_replace(cron, &table, NULL) == DIBS_INVALID;
    dibs_cron_trouble(cron, &trouble);
    dibs_cron_free(cron);
    dibs_close(store);
    _exit(refused && trouble.status == DIBS_INVALID ? 0 : 1);
  }
  int code = -1;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  uint32_t before = runs_of("tick", 0);
  SOON(runs_of("tick", 0) > before); /* the parent's goes on */
  stopped(cron);
}

static void bad_lines_are_reported_and_the_rest_fires(void **state) {
  (void)state;
  dibs_cron *cron = started(store, "this is no job\n* * * * * * name=tick x\n* * * * * * nmae=x x\n", 1);
  assert_int_equal(ran->flaws, 2 + 100 + 300);
  SOON(runs_of("tick", 0) >= 2);
  stopped(cron);
}

static void a_new_table_is_used_at_once(void **state) {
  (void)state;
  dibs_cron *cron = started(store, "* * * * * * name=old x\n* * * * * * name=both x\n", 1);
  SOON(runs_of("old", 0) >= 2);
  dibs_cron_table table = table_of("* * * * * * name=both x\n* * * * * * name=new x\nbad\n");
  EXPECT(dibs_cron_replace(cron, &table, &error), DIBS_OK);
  assert_int_equal(ran->flaws, 301);
  assert_int_equal(counted(cron).jobs, 2);
  SOON(runs_of("new", 0) >= 3);
  uint32_t old = runs_of("old", 0), both = runs_of("both", 0);
  SOON(runs_of("both", 0) >= both + 2);
  assert_int_equal(runs_of("old", 0), old);
  EXPECT(dibs_cron_replace(cron, NULL, &error), DIBS_INVALID);
  assert_int_equal(counted(cron).jobs, 2);
  stopped(cron);
  int64_t first_ms, last_ms;
  span_of("both", &first_ms, &last_ms);
  assert_whole("both", 4);
}

/* Before the thread of the node has begun, too. */
static void a_table_that_is_replaced_after_the_start_is_used(void **state) {
  (void)state;
  enum { FLEETS = 12 };
  dibs_cron *crons[FLEETS];
  dibs_cron_table never = table_of("0 0 0 1 1 * name=never x\n"), often = table_of("* * * * * * name=often x\n");
  dibs_cron_options o = {.size = sizeof o, .table = &never, .claim_ms = CLAIM_MS, .work = work};
  for (int i = 0; i < FLEETS; i++) {
    char name[64];
    snprintf(name, sizeof name, "%.40s-%d", fleet, i);
    EXPECT(dibs_cron_start(store, name, &o, &crons[i], &error), DIBS_OK);
    EXPECT(dibs_cron_replace(crons[i], &often, &error), DIBS_OK);
  }
  for (int i = 0; i < FLEETS; i++) SOON(counted(crons[i]).decided > 0);
  for (int i = 0; i < FLEETS; i++) stopped(crons[i]);
}

static void a_stop_has_a_bound(void **state) {
  (void)state;
  dibs_cron *cron = started(store, "* * * * * * name=long nap 3000\n", 1);
  SOON(ran->running == 1);
  EXPECT(dibs_cron_stop(cron, -2, &error), DIBS_INVALID); /* and nothing is stopped */
  uint64_t decided = counted(cron).decided;
  SOON(counted(cron).decided > decided);
  int64_t began_ms = now_ms();
  EXPECT(dibs_cron_stop(cron, 100, &error), DIBS_TIMEOUT);
  assert_true(now_ms() - began_ms < 2500);
  EXPECT(dibs_cron_stop(cron, PATIENCE_MS, &error), DIBS_OK);
  assert_int_equal(ran->running, 0);
  uint32_t count = ran->count;
  nap_ms(1500);
  assert_int_equal(ran->count, count);
  dibs_cron_free(cron);
}

static void a_firing_of_an_unknown_job_waits_for_a_process_that_knows_it(void **state) {
  (void)state;
  static const char own[] = "@yearly name=own x\n", others[] = "@yearly name=theirs x\n";
  dibs_cron *cron = started(store, own, 1);
  dibs_cron_table table = table_of(others);
  EXPECT(dibs_cron_fire(store, fleet, &table, "theirs", NULL, &error), DIBS_OK);
  SOON(counted(cron).declined >= 1);
  dibs_store *other;
  EXPECT(dibs_open(uri, NULL, &other, &error), DIBS_OK);
  dibs_cron *that = started(other, others, 1);
  SOON(runs_of("theirs", 0) == 1);
  stopped(cron);
  stopped(that);
  dibs_close(other);
}

static void wrong_calls_are_refused(void **state) {
  (void)state;
  dibs_cron_table table = table_of("@daily x\n");
  dibs_cron_options o = {.size = sizeof o, .table = &table, .work = work};
  dibs_cron *cron = (dibs_cron *)&o;
  EXPECT(dibs_cron_start(store, "", &o, &cron, &error), DIBS_INVALID);
  assert_null(cron);
  EXPECT(dibs_cron_start(store, fleet, NULL, &cron, &error), DIBS_INVALID);
  o.work = NULL;
  EXPECT(dibs_cron_start(store, fleet, &o, &cron, &error), DIBS_INVALID);
  o.work = work;
  o.claim_ms = 1;
  EXPECT(dibs_cron_start(store, fleet, &o, &cron, &error), DIBS_INVALID);
  o.claim_ms = 0;
  o.flags = 8;
  EXPECT(dibs_cron_start(store, fleet, &o, &cron, &error), DIBS_INVALID);
  o.flags = 0;
  o.table = NULL;
  EXPECT(dibs_cron_start(store, fleet, &o, &cron, &error), DIBS_INVALID);
  EXPECT(dibs_cron_stop(NULL, 0, &error), DIBS_INVALID);
  dibs_cron_free(NULL);
  assert_int_equal(dibs_firing_left_ms(NULL), 0);
}

static void the_next_instant_needs_no_store(void **state) {
  (void)state;
  int64_t next_ms = -1;
  EXPECT(dibs_cron_next("30 2 * * *", NULL, INT64_C(1700000000000), &next_ms, &error), DIBS_OK);
  assert_int_equal(next_ms, INT64_C(1700015400000)); /* 2023-11-15 02:30 UTC */
  EXPECT(dibs_cron_next("30 2 * * *", "Europe/Berlin", INT64_C(1700000000000), &next_ms, &error), DIBS_OK);
  assert_int_equal(next_ms, INT64_C(1700011800000));
  EXPECT(dibs_cron_next("0 0 30 2 *", NULL, 0, &next_ms, &error), DIBS_INVALID);
  EXPECT(dibs_cron_next("61 * * * *", NULL, 0, &next_ms, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "minute"));
  EXPECT(dibs_cron_next("@daily", "No/Where", 0, &next_ms, &error), DIBS_INVALID);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin_fleet, end_fleet)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      CASE(each_firing_happens_once_in_two_stores),
      CASE(firings_survive_a_kill_and_a_stop),
      CASE(missed_firings_are_made_up_for_as_the_job_says),
      CASE(overlap_is_as_the_job_says),
      CASE(a_firing_learns_that_its_timeout_is_over),
      CASE(verdicts_do_what_they_say),
      CASE(jobs_need_no_text),
      CASE(a_child_after_fork_does_not_wait_for_its_parents_cron),
      CASE(bad_lines_are_reported_and_the_rest_fires),
      CASE(a_new_table_is_used_at_once),
      CASE(a_table_that_is_replaced_after_the_start_is_used),
      CASE(a_wrong_end_is_a_failure),
      CASE(a_stop_has_a_bound),
      CASE(a_firing_of_an_unknown_job_waits_for_a_process_that_knows_it),
      CASE(wrong_calls_are_refused),
      CASE(the_next_instant_needs_no_store),
  };
  ran = mmap(NULL, sizeof *ran, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ran == MAP_FAILED) return 1;
  begin_bed(argc, argv);
  if (strcmp(uri, "memory:") == 0) uri = "memory:cron-api";
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}
