/* SPDX-License-Identifier: MIT */
/*
 * Counter: users add 1 to one number as fast as they can, at each level of dibs' counters and as programs do it by
 * hand. Then their process is killed (SIGKILL) in the middle of its work.  The number must have every addition whose
 * call had returned, and no more than those that had begun.
 *
 * The users are threads of a process of their own, a helper, and each way has a new one.  They count in shared memory
 * what they have begun and what was acknowledged.  The ways with a Redis use one of the lab's own.
 */
#include "dibs/counter.h"
#include "lab/locks.h"
#include "lab/own.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum {
  START_MS = 60000, /* until all users are connected */
  STEP_MS = 30000,
  LOOK_MS = 10,
  SAMPLES_MAX = 2000,
  LINE_MS = 100,          /* between two flushes of the scheduler */
  LATE_MS = 10000,        /* what a buffer may lose: its second, and the time of a slow write */
  SHARED_LATE_MS = 15000, /* what a Redis that forgets may lose: three seconds, and the same */
  CONNECT_MS = 30000,
  TEXT_MAX = 400
};
static const char redis_key[] = "lab:counter", redis_field[] = "n";

/* ---- The ways ---- */

enum how { BUFFERED, DURABLE, UPDATE, LOCKED, READ_WRITE, INCR, FLUSHED, SHARED };
enum promise {
  KEEPS_ALL,    /* every acknowledged addition, once */
  LOSES_LAST,   /* the additions of the last moments before the process is killed */
  KEEPS_NOTHING /* expected to break */
};
static const struct way {
  const char *title, *text;
  enum how how;
  enum promise promise;
  bool kills_redis;   /* also, and starts it again, empty */
  bool between_steps; /* killed after the scheduler's UPDATE, before its DEL */
} ways[] = {
    {"buffered", "dibs_counter_add at the level buffered: the process writes its sums each second", BUFFERED,
     LOSES_LAST, false, false},
    {"durable", "dibs_counter_add at the level durable: the users of a process share commits", DURABLE, KEEPS_ALL,
     false, false},
    {"shared",
     "dibs_counter_add at the level shared, in the Redis and an embedded store of the lab's own; the users' "
     "process is killed",
     SHARED, KEEPS_ALL, false, false},
    {"shared, and Redis is killed, too", "it is started again, empty; every 3 s its sums are written to the store",
     SHARED, LOSES_LAST, true, false},
    {"UPDATE n = n + 1", "by hand: one statement, one commit for each addition", UPDATE, KEEPS_ALL, false, false},
    {"SELECT FOR UPDATE, then UPDATE", "by hand: the row is locked, read and written in one transaction", LOCKED,
     KEEPS_ALL, false, false},
    {"read, then write", "by hand: the sum is computed from a value that may be old", READ_WRITE, KEEPS_NOTHING, false,
     false},
    {"Redis INCR", "by hand, in a Redis without persistence; the users' process is killed", INCR, KEEPS_ALL, false,
     false},
    {"Redis INCR, and Redis is killed, too", "it is started again, empty", INCR, KEEPS_NOTHING, true, false},
    {"HINCRBY; HGETALL, UPDATE, DEL",
     "by hand: a scheduler writes the sums to the database; what is added between its "
     "HGETALL and its DEL is lost",
     FLUSHED, KEEPS_NOTHING, false, false},
    {"the same, killed before DEL", "the next scheduler writes the same sums again", FLUSHED, KEEPS_NOTHING, false,
     true},
};
enum { WAYS = sizeof ways / sizeof *ways };

static const struct lab_column columns[] = {
    {"method", "method", LAB_TEXT},   {"per_second", "additions/s", LAB_RATE},     {"p50_ms", "p50 ms", LAB_MS},
    {"p99_ms", "p99 ms", LAB_MS},     {"acknowledged", "acknowledged", LAB_COUNT}, {"counted", "counted", LAB_COUNT},
    {"lost", "lost", LAB_COUNT},      {"twice", "counted twice", LAB_COUNT},       {"lost_ms", "lost, ms", LAB_COUNT},
    {"verdict", "verdict", LAB_TEXT},
};

/* ---- Shared with the helper ---- */

enum scheduler { RUNS, SHOULD_END, HAS_ENDED };
struct slot {
  _Alignas(64) _Atomic uint64_t begun, done;
  struct dibs__hist hist; /* ns; of BUFFERED none */
};
struct page {
  /* Immutable once the helper runs. */
  uint32_t way, users;
  char key[LAB_KEY_MAX], event[LAB_TABLE_MAX];
  struct lab_own_redis own;
  /* The helper's. */
  dibs__word ready; /* users that are ready, or can't become ready */
  dibs__word troubled;
  char why[LAB_WHY_MAX]; /* set by the first that has a trouble */
  /* The lab's. */
  dibs__word go, scheduler; /* enum scheduler; the helper answers HAS_ENDED */
  struct slot slot[LAB_USERS_MAX];
};

/* ---- A user ---- */

struct process {
  struct page *page;
  const struct way *way;
  dibs_store *store;
  dibs_table *table;
  struct lab_connection *connection;
};
struct user {
  struct process *of;
  struct slot *slot;
  struct lab_line line;
  struct lab_redis *redis;
};

static void say_why(struct page *page, const char *text) {
  uint32_t nobody = 0;
  if (!atomic_compare_exchange_strong(&page->troubled, &nobody, 1)) return;
  snprintf(page->why, sizeof page->why, "%s", text && *text ? text : "no reason is known");
  atomic_store(&page->troubled, 2); /* it can be read */
}

static bool run_sql(struct user *u, const char *text) {
  if (dibs__lab_run_sql(&u->line, text, NULL, 0) == DIBS__SQL_OK) return true;
  return false;
}

static bool read_number(struct user *u, const char *lock, int64_t *number) {
  char text[TEXT_MAX];
  const struct page *page = u->of->page;
  snprintf(text, sizeof text, "SELECT used FROM %s WHERE id = '%s'%s", page->event, page->key, lock);
  return dibs__lab_number(&u->line, text, 0, number) == DIBS__SQL_OK;
}

static bool write_number(struct user *u, const char *number) {
  char text[TEXT_MAX];
  const struct page *page = u->of->page;
  snprintf(text, sizeof text, "UPDATE %s SET used = %s WHERE id = '%s'", page->event, number, page->key);
  return run_sql(u, text);
}

static bool lock_and_write(struct user *u) {
  char number[24];
  int64_t seen;
  const struct dibs__sql_engine *e = u->line.wire->engine;
  bool fine = run_sql(u, e->begin) && read_number(u, e->for_update, &seen);
  if (fine) snprintf(number, sizeof number, "%" PRId64, seen + 1);
  return fine && write_number(u, number) && run_sql(u, "COMMIT");
}

static bool read_and_write(struct user *u) {
  char number[24];
  int64_t seen;
  if (!read_number(u, "", &seen)) return false;
  snprintf(number, sizeof number, "%" PRId64, seen + 1);
  return write_number(u, number);
}

static bool run_redis(struct lab_redis *redis, const char *const words[], size_t count, char answer[LAB_WHY_MAX]) {
  return dibs__lab_redis_run(redis, words, count, answer, LAB_WHY_MAX) != LAB_REDIS_FAILED;
}

/* The same, where only a failure is of interest. */
static bool tell_redis(struct lab_redis *redis, const char *const words[], size_t count, char why[LAB_WHY_MAX]) {
  char answer[LAB_WHY_MAX];
  if (run_redis(redis, words, count, answer)) return true;
  snprintf(why, LAB_WHY_MAX, "%s", answer);
  return false;
}

/* One addition.  false: it was not acknowledged, and `why`. */
static bool add_once(struct user *u, char why[LAB_WHY_MAX]) {
  const char *incr[] = {"INCR", redis_key}, *hincr[] = {"HINCRBY", redis_key, redis_field, "1"};
  dibs_counter_options o = {.size = sizeof o, .table = u->of->table, .wait_ms = STEP_MS};
  static const dibs_count_level levels[] = {DIBS_COUNT_DURABLE, DIBS_COUNT_BUFFERED, DIBS_COUNT_SHARED};
  dibs_error error = {0};
  bool fine = false;
  switch (u->of->way->how) {
  case BUFFERED:
  case DURABLE:
  case SHARED:
    o.level = levels[u->of->way->how == SHARED ? 2 : u->of->way->how == BUFFERED];
    fine = dibs_counter_add(u->of->store, u->of->page->key, 1, &o, &error) == DIBS_OK;
    if (!fine) snprintf(why, LAB_WHY_MAX, "%s", error.text);
    return fine;
  case INCR:
    return tell_redis(u->redis, incr, 2, why);
  case FLUSHED:
    return tell_redis(u->redis, hincr, 4, why);
  case UPDATE:
    fine = write_number(u, "used + 1");
    break;
  case LOCKED:
    fine = lock_and_write(u);
    break;
  case READ_WRITE:
    fine = read_and_write(u);
    break;
  }
  if (fine) return true;
  snprintf(why, LAB_WHY_MAX, "%s", u->line.wire->message);
  bool again = u->line.wire->trouble == DIBS__SQL_DEADLOCK || u->line.wire->trouble == DIBS__SQL_LOCKED;
  if (u->of->way->how == LOCKED && !dibs__sql_dead(u->line.wire)) dibs__sql_rollback(u->line.wire);
  if (again) why[0] = '\0'; /* the next call tries again */
  return false;
}

static bool connect_user(struct user *u, char why[LAB_WHY_MAX]) {
  enum how how = u->of->way->how;
  if (how == INCR || how == FLUSHED)
    return (u->redis = dibs__lab_redis_open(u->of->page->own.uri, why, LAB_WHY_MAX)) != NULL;
  if (how == BUFFERED || how == DURABLE || how == SHARED) return true;
  struct dibs__result result = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CONNECT_MS);
  while (dibs__lab_line_open(u->of->connection, &u->line, &result) !=
         DIBS_OK) { /* a server may refuse many at a time */
    snprintf(why, LAB_WHY_MAX, "%s", result.text);
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__nap_ms(50);
  }
  return true;
}

/* Until the process is killed, or an addition fails. */
static void add_for_ever(struct user *u) {
  struct slot *slot = u->slot;
  bool timed = u->of->way->how != BUFFERED; /* two looks at the clock take longer than such an addition */
  char why[LAB_WHY_MAX] = "";
  for (uint64_t n = 0; !why[0];) {
    dibs__tick from = timed ? dibs__tick_now() : DIBS__TICK_ZERO;
    atomic_store_explicit(&slot->begun, n + 1, memory_order_relaxed);
    if (!add_once(u, why)) continue;
    if (timed) dibs__hist_add(&slot->hist, dibs__tick_now().ns - from.ns);
    atomic_store_explicit(&slot->done, ++n, memory_order_release);
  }
  say_why(u->of->page, why);
}

static void user_body(void *arg) {
  struct user *u = arg;
  struct page *page = u->of->page;
  char why[LAB_WHY_MAX] = "";
  bool here = connect_user(u, why);
  if (!here) say_why(page, why);
  atomic_fetch_add(&page->ready, 1);
  dibs__word_wake(&page->ready, 1, true);
  while (atomic_load(&page->go) == 0) dibs__word_wait(&page->go, 0, DIBS__TICK_NEVER, true);
  if (here) add_for_ever(u);
}

/* ---- The scheduler of FLUSHED ---- */

/* HGETALL and UPDATE; then DEL, unless `between`. */
static bool flush_once(struct user *u, bool between, char why[LAB_WHY_MAX]) {
  const char *all[] = {"HGETALL", redis_key}, *del[] = {"DEL", redis_key};
  char sum[LAB_WHY_MAX], plus[40];
  if (!run_redis(u->redis, all, 2, sum)) {
    snprintf(why, LAB_WHY_MAX, "%s", sum);
    return false;
  }
  if (!sum[0]) return true;
  snprintf(plus, sizeof plus, "used + %" PRId64, (int64_t)strtoll(sum, NULL, 10));
  if (!write_number(u, plus)) {
    snprintf(why, LAB_WHY_MAX, "%s", u->line.wire->message);
    return false;
  }
  return between || tell_redis(u->redis, del, 2, why);
}

/* BETWEEN the steps it flushes once, at the end: so that no addition is lost, and what is counted twice is visible. */
static void scheduler_body(void *arg) {
  struct user *u = arg;
  struct page *page = u->of->page;
  bool between = u->of->way->between_steps;
  char why[LAB_WHY_MAX] = "";
  struct dibs__result result = {0};
  if (dibs__lab_line_open(u->of->connection, &u->line, &result) != DIBS_OK) say_why(page, result.text);
  u->redis = u->line.wire ? dibs__lab_redis_open(page->own.uri, why, sizeof why) : NULL;
  while (u->redis && !why[0] && atomic_load(&page->scheduler) == RUNS) {
    if (!between && !flush_once(u, false, why)) break;
    dibs__word_wait(&page->scheduler, RUNS, dibs__tick_add_ms(dibs__tick_now(), LINE_MS), true);
  }
  if (u->redis && !why[0] && between) (void)flush_once(u, true, why);
  if (why[0]) say_why(page, why);
  atomic_store(&page->scheduler, HAS_ENDED);
  dibs__word_wake(&page->scheduler, INT32_MAX, true);
}

/* ---- The helper ---- */

static bool open_process(struct process *p, char why[LAB_WHY_MAX]) {
  const char *uri = secure_getenv("DIBS_STORE");
  dibs_table_options options = {.size = sizeof options, .table = p->page->event, .key = "id", .count = "used"};
  dibs_error error = {0};
  struct dibs__result result = {0};
  bool levels = p->way->how == BUFFERED || p->way->how == DURABLE;
  bool fine = uri != NULL;
  if (fine && p->way->how == SHARED)
    fine = dibs__lab_own_tiers_open(&p->page->own, &p->store, &error) == DIBS_OK;
  else if (fine && levels)
    fine = dibs_open(uri, NULL, &p->store, &error) == DIBS_OK &&
           dibs_table_declare(&options, &p->table, &error) == DIBS_OK;
  else if (fine)
    fine = dibs__lab_connection_open(uri, &p->connection, &result) == DIBS_OK;
  if (!fine) snprintf(why, LAB_WHY_MAX, "%s", error.text[0] ? error.text : result.text);
  return fine;
}

/* It never ends by itself: the lab kills it. */
int dibs__lab_counter_helper(int argc, char **argv) {
  struct page *page = dibs__lab_shared_of(argc, argv, sizeof *page);
  if (!page) return 1;
  struct process process = {.page = page, .way = &ways[page->way]};
  char why[LAB_WHY_MAX] = "";
  struct user *users = calloc(page->users + 1, sizeof *users);
  bool fine = users && open_process(&process, why);
  for (uint32_t i = 0; fine && i < page->users; i++) {
    users[i] = (struct user){.of = &process, .slot = &page->slot[i]};
    fine = dibs__thread_start("dibs-lab-user", user_body, &users[i]) != NULL;
  }
  if (fine && process.way->how == FLUSHED) {
    users[page->users] = (struct user){.of = &process};
    fine = dibs__thread_start("dibs-lab-flush", scheduler_body, &users[page->users]) != NULL;
  }
  if (!fine) say_why(page, why[0] ? why : "cannot start its threads");
  for (dibs__word never = 0;;) dibs__word_wait(&never, 0, DIBS__TICK_NEVER, false);
}

/* ---- The lab's side ---- */

struct sample {
  dibs__tick at;
  uint64_t done;
};
struct scene {
  struct lab *lab;
  const struct way *way;
  struct lab_own_redis *own;
  struct page *page;
  int fd, pid;
  struct sample sample[SAMPLES_MAX];
  size_t samples;
  dibs__tick from, end; /* of the additions; `end`: the kill */
  int64_t done, begun, counted;
  struct dibs__hist hist;
};

static uint64_t done_so_far(const struct page *page) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < page->users; i++) done += atomic_load_explicit(&page->slot[i].done, memory_order_acquire);
  return done;
}

/* false: the process has a trouble or has ended, or the lab ends. */
static bool is_well(struct scene *s) {
  if (dibs__lab_ended(s->lab)) return false;
  if (atomic_load(&s->page->troubled) == 2) return dibs__lab_fail(s->lab, "%s: %s", s->way->title, s->page->why);
  if (waitpid(s->pid, NULL, WNOHANG) != s->pid) return true;
  s->pid = 0;
  return dibs__lab_fail(s->lab, "%s: the users' process ended too early", s->way->title);
}

static bool start_process(struct scene *s) {
  struct lab *lab = s->lab;
  if (!(s->page = dibs__lab_shared_make(lab, sizeof *s->page, &s->fd))) return false;
  s->page->way = (uint32_t)(s->way - ways);
  s->page->users = lab->users[0];
  dibs__lab_key(s->page->key, lab->run, 1);
  snprintf(s->page->event, sizeof s->page->event, "%s", lab->event);
  s->page->own = *s->own;
  if (!dibs__lab_spawn_sharing(lab, "counter", s->fd, &s->pid)) return false;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), START_MS);
  while (atomic_load(&s->page->ready) < s->page->users) {
    if (!is_well(s)) return false;
    dibs__tick now = dibs__tick_now();
    if (!dibs__tick_before(now, by)) return dibs__lab_fail(lab, "%s: the users did not start in time", s->way->title);
    dibs__word_wait(&s->page->ready, atomic_load(&s->page->ready), dibs__tick_add_ms(now, LOOK_MS), true);
  }
  return is_well(s);
}

/* Samples what is done, until the time is over. */
static bool look_on(struct scene *s) {
  struct lab *lab = s->lab;
  int64_t each_ms = lab->ms / SAMPLES_MAX + LOOK_MS, shown_ms = 0;
  s->from = dibs__tick_now();
  dibs__tick by = dibs__tick_add_ms(s->from, lab->ms);
  atomic_store(&s->page->go, 1);
  dibs__word_wake(&s->page->go, INT32_MAX, true);
  while (dibs__tick_before(dibs__tick_now(), by)) {
    if (!is_well(s)) return false;
    struct sample now = {dibs__tick_now(), done_so_far(s->page)};
    if (s->samples < SAMPLES_MAX) s->sample[s->samples++] = now;
    int64_t ms = (now.at.ns - s->from.ns) / DIBS__NS_PER_MS, left = dibs__tick_left_ms(dibs__tick_now(), by);
    if (ms - shown_ms > 100) dibs__lab_report_progress(lab, s->way->title, s->page->users, ms, lab->ms, now.done, 0);
    if (ms - shown_ms > 100) shown_ms = ms;
    dibs__nap_ms(left < each_ms ? left : each_ms);
  }
  return is_well(s);
}

/* The scheduler ends between two flushes, or between its steps. */
static bool end_scheduler(struct scene *s) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
  uint32_t runs = RUNS;
  if (s->way->how != FLUSHED) return true;
  (void)atomic_compare_exchange_strong(&s->page->scheduler, &runs, SHOULD_END);
  dibs__word_wake(&s->page->scheduler, INT32_MAX, true);
  while (atomic_load(&s->page->scheduler) == SHOULD_END) {
    if (!is_well(s)) return false;
    if (!dibs__tick_before(dibs__tick_now(), by)) return dibs__lab_fail(s->lab, "the scheduler did not end in time");
    dibs__word_wait(&s->page->scheduler, SHOULD_END, dibs__tick_add_ms(dibs__tick_now(), LOOK_MS), true);
  }
  return is_well(s);
}

static void kill_process(struct scene *s) {
  if (!s->pid) return;
  kill(s->pid, SIGKILL);
  while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) continue;
  s->pid = 0;
  s->end = dibs__tick_now();
  for (uint32_t i = 0; i < s->page->users; i++) {
    s->done += (int64_t)atomic_load(&s->page->slot[i].done);
    s->begun += (int64_t)atomic_load(&s->page->slot[i].begun);
    dibs__hist_merge(&s->hist, &s->page->slot[i].hist);
  }
}

/* Of the Redis; 0: there is no such key. */
static bool redis_number(struct scene *s, int64_t *number) {
  const char *get[] = {"GET", redis_key}, *hget[] = {"HGET", redis_key, redis_field};
  char answer[LAB_WHY_MAX] = "";
  bool hash = s->way->how == FLUSHED;
  struct lab_redis *redis = dibs__lab_redis_open(s->own->uri, answer, sizeof answer);
  bool fine = redis && run_redis(redis, hash ? hget : get, hash ? 3 : 2, answer);
  *number = fine ? strtoll(answer, NULL, 10) : 0;
  dibs__lab_redis_close(redis);
  return fine || dibs__lab_fail(s->lab, "the lab's own Redis: %s", answer);
}

/* A transaction of the process that was killed may still commit, or be rolled back: the lab waits for the row. */
static bool database_number(struct scene *s, int64_t *number) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "UPDATE %s SET holder = holder + 1 WHERE id = '%s'", s->lab->event, s->page->key);
  bool fine = dibs__lab_run_sql(&s->lab->line, text, NULL, 0) == DIBS__SQL_OK;
  snprintf(text, sizeof text, "SELECT used FROM %s WHERE id = '%s'", s->lab->event, s->page->key);
  fine = fine && dibs__lab_number(&s->lab->line, text, -1, number) == DIBS__SQL_OK;
  return fine || dibs__lab_fail(s->lab, "reading the counter: %s", s->lab->line.wire->message);
}

/* Written to the store of the lab's own: a Redis that was started again may need a moment. */
static bool shared_number(struct scene *s, int64_t *number) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = STEP_MS};
  dibs_counter_value value = {.size = sizeof value};
  dibs_error error = {0};
  dibs_store *store = NULL;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
  dibs_status status = dibs__lab_own_tiers_open(s->own, &store, &error);
  while (status == DIBS_OK && (status = dibs_counter_flush(store, &o, &error)) != DIBS_OK &&
         dibs__tick_before(dibs__tick_now(), by) && !dibs__lab_ended(s->lab)) {
    dibs__nap_ms(100);
    status = DIBS_OK;
  }
  if (status == DIBS_OK) status = dibs_counter_read(store, s->page->key, &o, &value, &error);
  if (status == DIBS_NOT_FOUND) status = DIBS_OK; /* none was written before Redis was killed */
  *number = value.stored;
  dibs_close(store);
  return status == DIBS_OK || dibs__lab_fail(s->lab, "%s: %s", s->way->title, error.text);
}

static bool count(struct scene *s) {
  int64_t stored = 0, waiting = 0;
  if (s->way->kills_redis) {
    dibs__lab_own_redis_kill(s->own);
    if (!dibs__lab_own_redis_start(s->lab, s->own)) return false;
  }
  if (s->way->how == SHARED) return shared_number(s, &s->counted);
  bool uses_redis = s->way->how == INCR || s->way->how == FLUSHED;
  if (!database_number(s, &stored) || (uses_redis && !redis_number(s, &waiting))) return false;
  s->counted = stored + waiting; /* the next scheduler adds what waits */
  return true;
}

/* How long before the kill the users had acknowledged what is counted. */
static int64_t lost_ms_of(const struct scene *s) {
  dibs__tick at = s->from;
  for (size_t i = 0; i < s->samples && (int64_t)s->sample[i].done <= s->counted; i++) at = s->sample[i].at;
  return (s->end.ns - at.ns) / DIBS__NS_PER_MS;
}

static struct lab_verdict judge_scene(const struct scene *s, int64_t lost, int64_t twice) {
  static char text[80];
  int64_t lost_ms = lost ? lost_ms_of(s) : 0;
  bool right = lost == 0 && twice == 0 && s->done > 0;
  if (right && s->way->promise == KEEPS_NOTHING) return (struct lab_verdict){LAB_PLAIN, "did not break this time"};
  if (right) return (struct lab_verdict){LAB_GOOD, "correct"};
  if (s->way->promise == LOSES_LAST && twice == 0 && s->done > 0 &&
      lost_ms <= (s->way->how == SHARED ? SHARED_LATE_MS : LATE_MS)) {
    snprintf(text, sizeof text, "lost the last %" PRId64 " ms, as documented", lost_ms);
    return (struct lab_verdict){LAB_EXPECTED, text};
  }
  if (s->way->promise == KEEPS_NOTHING && !s->lab->strict)
    return (struct lab_verdict){LAB_EXPECTED, "broken, as expected"};
  return (struct lab_verdict){LAB_BAD, "BROKEN"};
}

static struct lab_verdict add_row(struct scene *s, struct lab_table *table) {
  struct lab_sheet *sheet = &s->lab->sheet;
  int64_t lost = s->done > s->counted ? s->done - s->counted : 0;
  int64_t twice = s->counted > s->begun ? s->counted - s->begun : 0;
  struct lab_verdict verdict = judge_scene(s, lost, twice);
  bool timed = s->hist.count > 0;
  if (verdict.mood == LAB_BAD) sheet->broken = true;
  dibs__lab_put_text(sheet, table, LAB_PLAIN, s->way->title);
  dibs__lab_put(sheet, table, (double)s->done * 1e9 / (double)(s->end.ns - s->from.ns));
  dibs__lab_put(sheet, table, timed ? (double)dibs__hist_percentile(&s->hist, 50) / 1e6 : (double)NAN);
  dibs__lab_put(sheet, table, timed ? (double)dibs__hist_percentile(&s->hist, 99) / 1e6 : (double)NAN);
  dibs__lab_put(sheet, table, (double)s->done);
  dibs__lab_put(sheet, table, (double)s->counted);
  dibs__lab_put(sheet, table, (double)lost);
  if (lost) dibs__lab_mood(table, verdict.mood);
  dibs__lab_put(sheet, table, (double)twice);
  if (twice) dibs__lab_mood(table, verdict.mood);
  dibs__lab_put(sheet, table, lost && s->way->promise == LOSES_LAST ? (double)lost_ms_of(s) : (double)NAN);
  dibs__lab_put_text(sheet, table, verdict.mood, verdict.text);
  return verdict;
}

/* ---- The plots ---- */

struct plots {
  struct lab_plot *rate, *latency, *over_time;
};

static void make_plots(struct lab *lab, struct plots *p) {
  struct lab_sheet *s = &lab->sheet;
  p->rate = dibs__lab_plot(s, "rate", LAB_BARS, "Additions per second", "Longer is better.");
  p->over_time = dibs__lab_plot(s, "over_time", LAB_LINES, "Acknowledged additions", "Until the process is killed.");
  p->latency = dibs__lab_plot(s, "latency", LAB_HILLS, "How long an addition takes",
                              "The height of a hill is the number of additions that took so long; further left is "
                              "better. The marks are the median and the 99th percentile. An addition at the level "
                              "buffered takes less than a microsecond.");
  if (p->over_time) {
    p->over_time->x_title = "seconds";
    p->over_time->y_title = "additions";
    p->over_time->log_y = true;
  }
  if (!p->latency) return;
  p->latency->x_title = "milliseconds";
  p->latency->log_x = true;
}

static void draw(struct scene *s, struct plots *p, enum lab_mood mood) {
  struct lab_sheet *sheet = &s->lab->sheet;
  enum lab_mood drawn = mood == LAB_GOOD ? LAB_PLAIN : mood;
  struct lab_series *bar = dibs__lab_series(sheet, p->rate, s->way->title, drawn);
  dibs__lab_point(sheet, bar, 0, (double)s->done * 1e9 / (double)(s->end.ns - s->from.ns));
  struct lab_series *line = dibs__lab_series(sheet, p->over_time, s->way->title, drawn);
  size_t each = 1 + s->samples / LAB_SAMPLES;
  for (size_t i = 0; i < s->samples; i += each)
    if (s->sample[i].done > 0)
      dibs__lab_point(sheet, line, (double)(s->sample[i].at.ns - s->from.ns) / 1e9, (double)s->sample[i].done);
  if (p->latency) dibs__lab_hill(s->lab, p->latency, s->way->title, drawn, &s->hist);
}

/* ---- The experiment ---- */

static bool empty_redis(struct scene *s) {
  const char *del[] = {"DEL", redis_key};
  char answer[LAB_WHY_MAX] = "";
  struct lab_redis *redis = dibs__lab_redis_open(s->own->uri, answer, sizeof answer);
  bool fine = redis && run_redis(redis, del, 2, answer);
  dibs__lab_redis_close(redis);
  return fine || dibs__lab_fail(s->lab, "the lab's own Redis: %s", answer);
}

static bool perform(struct scene *s, struct lab_table *table, struct plots *plots) {
  bool uses_redis = s->way->how == INCR || s->way->how == FLUSHED;
  bool fine = dibs__lab_tables_make(s->lab, 1, LAB_SEATS_MAX) && (!uses_redis || empty_redis(s)) && start_process(s) &&
              look_on(s) && end_scheduler(s);
  kill_process(s);
  if (fine && count(s)) {
    struct lab_verdict verdict = add_row(s, table);
    draw(s, plots, verdict.mood);
  } else {
    fine = false;
  }
  dibs__lab_shared_drop(s->page, sizeof *s->page, s->fd);
  return fine;
}

static bool run_ways(struct lab *lab, struct lab_own_redis *own, bool redis) {
  struct lab_sheet *sheet = &lab->sheet;
  struct scene *s = malloc(sizeof *s);
  struct plots plots;
  bool fine = s != NULL || dibs__lab_fail(lab, "out of memory");
  struct lab_table *table =
      dibs__lab_table(sheet, "counter", "Additions", "", columns, sizeof columns / sizeof *columns);
  make_plots(lab, &plots);
  for (size_t i = 0; i < WAYS; i++) lab->steps += redis || ways[i].how < INCR;
  for (size_t i = 0; fine && i < WAYS && !dibs__lab_ended(lab); i++) {
    if (ways[i].how >= INCR && !redis) continue;
    memset(s, 0, sizeof *s);
    *s = (struct scene){.lab = lab, .way = &ways[i], .own = own, .fd = -1};
    lab->step++;
    fine = perform(s, table, &plots);
    if (fine) dibs__lab_note(sheet, "%s: %s.", ways[i].title, ways[i].text);
  }
  free(s);
  return fine;
}

bool dibs__lab_counter(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  struct lab_own_redis own = {0};
  s->experiment = "counter";
  if (!lab->connection) return dibs__lab_fail(lab, "this store has no SQL, so it has no row to add to");
  dibs__lab_title(
      s, "A number that many add to",
      "Users add 1 to one number as fast as they can, and their process is killed in the middle of its work. "
      "Then the number must have each addition whose call had returned, once. The column of milliseconds "
      "says how much of the last time is missing.");
  dibs__lab_fact_number(s, "users", "Users", lab->users[0], "");
  dibs__lab_fact_number(s, "seconds", "Seconds each", (double)lab->ms / 1000, "");
  bool redis = dibs__lab_own_redis_start(lab, &own);
  if (redis) dibs__lab_note(s, "The lab started a Redis of its own, without persistence.");
  if (!redis && !dibs__lab_ended(lab)) dibs__lab_note(s, "The methods with a Redis are left out: %s.", lab->why);
  lab->why[0] = '\0';
  bool fine = run_ways(lab, &own, redis);
  dibs__lab_own_redis_end(&own);
  return fine || dibs__lab_ended(lab);
}
