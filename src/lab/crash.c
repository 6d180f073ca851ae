/* SPDX-License-Identifier: MIT */
/*
 * Crash: a worker claims a task, moves it to its second phase, has the effect of that phase, and is killed before its
 * verdict.  When the time of the claim is over, another worker gets the task, in the phase that it had reached, under a
 * larger fence, and does the phase again.  The effect is a booking: without an id of its own it happens twice; under a
 * claim id that belongs to the task, the second one is a replay.
 *
 * The worker that is killed is a process of its own; it reports its steps in a page of shared memory.
 */
#include "dibs/task.h"
#include "lab/lab.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEATS = 10, STEP_MS = 30000, TEXT_MAX = 700 };
static const char first_phase[] = "reserve", second_phase[] = "charge";

struct guard {
  const char *key, *title, *text;
  bool has_id; /* the effect has an id that belongs to the task and its phase */
};
static const struct guard guards[] = {
    {"plain", "An effect without an id", "The task is done again from its phase, and so is its effect.", false},
    {"claim", "An effect under the task's own id",
     "The booking has a claim id that is made of the task's number and its phase: the store finds the first one.",
     true},
};
enum { GUARDS = sizeof guards / sizeof *guards };

static const struct lab_column columns[] = {
    {"guard", "guard", LAB_TEXT},      {"phase", "continues in", LAB_TEXT},
    {"attempt", "attempt", LAB_COUNT}, {"free_ms", "free after, ms", LAB_COUNT},
    {"effects", "effects", LAB_COUNT}, {"should_be", "should be", LAB_COUNT},
    {"verdict", "verdict", LAB_TEXT},
};

enum { STARTING, CLAIMED, STEPPED, ACTED, FAILED };
struct page {
  /* Immutable once the worker runs. */
  uint32_t guard;
  int64_t timeout_ms;
  char kind[64], key[LAB_KEY_MAX], event[LAB_TABLE_MAX], applicant[LAB_TABLE_MAX];
  /* The worker's. */
  dibs__word state;
  uint64_t nr, fence;
  char why[512];
};

struct scene {
  struct lab *lab;
  const struct guard *guard;
  struct page *page;
  int fd, pid;
  dibs_store *store;
  dibs_table *table;
  dibs_task *task; /* of the next worker */
  struct lab_timeline *timeline;
  int64_t waited_ms;
  bool right; /* phase, fence and attempt are those that they should be */
};

/* ---- Both workers ---- */

static dibs_status claim_task(dibs_store *store, const struct page *page, int64_t wait_ms, dibs_task **task,
                              dibs_error *error) {
  size_t count;
  dibs_claim_options options = {
      .size = sizeof options, .timeout_ms = page->timeout_ms, .wait_ms = wait_ms, .owner = "lab"};
  *task = NULL;
  return dibs_tasks_claim(store, page->kind, &options, task, &count, error);
}

static dibs_status have_effect(dibs_store *store, const dibs_table *table, const struct page *page,
                               const dibs_task *task, dibs_error *error) {
  char claim[64];
  dibs_stock_options options = {.size = sizeof options, .table = table, .owner = "lab"};
  snprintf(claim, sizeof claim, "lab-%" PRIu64 "-%s", task->nr, task->phase);
  if (guards[page->guard].has_id) options.claim = claim;
  return dibs_stock_take(store, page->key, 1, &options, NULL, error);
}

/* ---- The worker that is killed ---- */

static void say_state(struct page *page, uint32_t state) {
  atomic_store(&page->state, state);
  dibs__word_wake(&page->state, 1, true);
}

static dibs_status work(struct page *page, dibs_store **store, dibs_task **task, dibs_error *error) {
  dibs_table *table = dibs__lab_declare(page->event, page->applicant, error);
  if (!table) return DIBS_INVALID;
  dibs_status status = dibs_open(secure_getenv("DIBS_STORE"), NULL, store, error);
  if (status == DIBS_OK) status = claim_task(*store, page, STEP_MS, task, error);
  if (status == DIBS_OK) {
    page->nr = (*task)->nr;
    page->fence = (*task)->fence.value;
    say_state(page, CLAIMED);
    status = dibs_task_step(*task, second_phase, error);
  }
  if (status == DIBS_OK) {
    say_state(page, STEPPED);
    status = have_effect(*store, table, page, *task, error);
  }
  dibs_table_free(table);
  return status;
}

int dibs__lab_crash_helper(int argc, char **argv) {
  struct page *page = dibs__lab_shared_of(argc, argv, sizeof *page);
  if (!page) return 1;
  dibs_store *store = NULL;
  dibs_task *task = NULL;
  dibs_error error = {0};
  bool fine = work(page, &store, &task, &error) == DIBS_OK;
  snprintf(page->why, sizeof page->why, "%s", error.text);
  say_state(page, fine ? ACTED : FAILED);
  /* The verdict would be next; SIGKILL comes first. */
  while (fine && atomic_load(&page->state) == ACTED) dibs__word_wait(&page->state, ACTED, DIBS__TICK_NEVER, true);
  dibs_task_free(task);
  dibs_close(store);
  return 1;
}

/* ---- The lab's side ---- */

static void add_step(struct scene *s, int side, enum lab_mood mood, const char *does, const char *gets) {
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
}

static bool start_worker(struct scene *s) {
  struct lab *lab = s->lab;
  dibs_error error = {0};
  if (!(s->page = dibs__lab_shared_make(lab, sizeof *s->page, &s->fd))) return false;
  s->page->guard = (uint32_t)(s->guard - guards);
  s->page->timeout_ms = lab->ttl_ms;
  snprintf(s->page->kind, sizeof s->page->kind, "lab-%u-%s", lab->run, s->guard->key);
  dibs__lab_key(s->page->key, lab->run, 1);
  snprintf(s->page->event, sizeof s->page->event, "%s", lab->event);
  snprintf(s->page->applicant, sizeof s->page->applicant, "%s", lab->applicant);
  dibs_task_options options = {.size = sizeof options, .phase = first_phase};
  if (!(s->table = dibs__lab_declare(lab->event, lab->applicant, &error)) ||
      dibs_task_add(s->store, s->page->kind, "", 0, &options, NULL, &error) != DIBS_OK)
    return dibs__lab_fail(lab, "%s", error.text);
  return dibs__lab_spawn_sharing(lab, "crash", s->fd, &s->pid);
}

static bool await_worker(struct scene *s, uint32_t wanted) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS * 2);
  struct page *page = s->page;
  for (;;) {
    uint32_t state = atomic_load(&page->state);
    if (state == FAILED) return dibs__lab_fail(s->lab, "the worker: %s", page->why);
    if (state >= wanted) return true;
    dibs__tick now = dibs__tick_now();
    if (dibs__lab_ended(s->lab)) return false;
    if (!dibs__tick_before(now, by)) return dibs__lab_fail(s->lab, "the worker did not report in time");
    if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
      s->pid = 0;
      return dibs__lab_fail(s->lab, "the worker ended too early");
    }
    dibs__word_wait(&page->state, state, dibs__tick_add_ms(now, 100), true);
  }
}

static void kill_worker(struct scene *s) {
  if (!s->pid) return;
  kill(s->pid, SIGKILL);
  while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) continue;
  s->pid = 0;
}

static bool first_worker(struct scene *s) {
  char text[TEXT_MAX];
  if (!await_worker(s, ACTED)) return false;
  snprintf(text, sizeof text, "claims the task, fence %" PRIu64, s->page->fence);
  add_step(s, 0, LAB_PLAIN, text, "phase reserve, attempt 1");
  add_step(s, 0, LAB_PLAIN, "step to phase charge", "the task stays claimed");
  add_step(s, 0, LAB_PLAIN, "books a seat, the effect of this phase", "OK");
  kill_worker(s);
  add_step(s, 0, LAB_PLAIN, "SIGKILL", "before its verdict");
  return true;
}

static bool next_claims(struct scene *s) {
  struct lab *lab = s->lab;
  char text[TEXT_MAX], gets[TEXT_MAX];
  dibs_error error = {0};
  dibs__tick from = dibs__tick_now();
  dibs_status status = claim_task(s->store, s->page, lab->ttl_ms + STEP_MS, &s->task, &error);
  if (status != DIBS_OK) return dibs__lab_fail(lab, "the task of the worker that was killed: %s", error.text);
  s->waited_ms = (dibs__tick_now().ns - from.ns) / DIBS__NS_PER_MS;
  s->right = strcmp(s->task->phase, second_phase) == 0 && s->task->fence.value > s->page->fence &&
             s->task->attempt == 2 && s->task->nr == s->page->nr;
  snprintf(text, sizeof text, "waits %.1f s until the time of the claim is over, then claims the task, fence %" PRIu64,
           (double)s->waited_ms / 1000, s->task->fence.value);
  snprintf(gets, sizeof gets, "phase %s, attempt %u", s->task->phase, s->task->attempt);
  add_step(s, 1, s->right ? LAB_PLAIN : LAB_BAD, text, gets);
  return true;
}

static bool next_works(struct scene *s) {
  dibs_error error = {0};
  dibs_status status = have_effect(s->store, s->table, s->page, s->task, &error);
  bool replay = status == DIBS_REPLAY;
  if (status != DIBS_OK && !replay) return dibs__lab_fail(s->lab, "%s", error.text);
  add_step(s, 1,
           replay             ? LAB_GOOD
           : s->guard->has_id ? LAB_BAD
                              : LAB_EXPECTED,
           "books a seat, the effect of this phase",
           replay ? "REPLAY: this claim took a seat before" : "OK, a second time");
  if (dibs_task_done(s->task, NULL, &error) != DIBS_OK) return dibs__lab_fail(s->lab, "%s", error.text);
  add_step(s, 1, LAB_PLAIN, "the task is done", "OK");
  return true;
}

static bool judge(struct scene *s, struct lab_table *table) {
  struct lab *lab = s->lab;
  struct lab_sheet *sheet = &lab->sheet;
  struct lab_audit audit;
  if (!dibs__lab_audit(lab, 1, SEATS, &audit)) return false;
  bool once = audit.claims == 1 && audit.counted == 1, fine = once && s->right;
  enum lab_mood mood = fine ? LAB_GOOD : !s->right || s->guard->has_id || lab->strict ? LAB_BAD : LAB_EXPECTED;
  if (mood == LAB_BAD) sheet->broken = true;
  dibs__lab_put_text(sheet, table, LAB_PLAIN, s->guard->title);
  dibs__lab_put_text(sheet, table, LAB_PLAIN, s->task->phase);
  dibs__lab_put(sheet, table, s->task->attempt);
  dibs__lab_put(sheet, table, (double)s->waited_ms);
  dibs__lab_put(sheet, table, (double)audit.claims);
  if (!once) dibs__lab_mood(table, mood);
  dibs__lab_put(sheet, table, 1);
  dibs__lab_put_text(sheet, table, mood,
                     mood == LAB_GOOD       ? "correct"
                     : mood == LAB_EXPECTED ? "twice, as expected"
                                            : "BROKEN");
  return true;
}

static void end_scene(struct scene *s) {
  dibs_error error = {0};
  kill_worker(s);
  dibs_task_free(s->task);
  dibs_table_free(s->table);
  if (!s->page) return;
  /* A task that was not done is cancelled first, because only finished ones are deleted. */
  dibs_task_filter filter = {.size = sizeof filter, .kind = s->page->kind};
  if (dibs_tasks_change(s->store, DIBS_TASK_CANCEL, &filter, 0, 0, NULL, NULL, &error) != DIBS_OK ||
      dibs_tasks_change(s->store, DIBS_TASK_PURGE, &filter, 0, 0, NULL, NULL, &error) != DIBS_OK)
    dibs__lab_note(&s->lab->sheet, "Tasks of the kind %s could not be deleted: %s", s->page->kind, error.text);
  dibs__lab_shared_drop(s->page, sizeof *s->page, s->fd);
}

static bool perform(struct scene *s, struct lab_table *table) {
  struct lab *lab = s->lab;
  if (!dibs__lab_tables_make(lab, 1, SEATS)) return false;
  s->timeline = dibs__lab_timeline(&lab->sheet, s->guard->key, s->guard->title, s->guard->text,
                                   "the worker that is killed", "the next worker");
  return start_worker(s) && first_worker(s) && next_claims(s) && next_works(s) && judge(s, table);
}

bool dibs__lab_crash(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  dibs_error error = {0};
  dibs_store *store;
  bool fine = true;
  s->experiment = "crash";
  if (!lab->connection) return dibs__lab_fail(lab, "this store has no SQL, so it has no bookings");
  dibs__lab_title(s, "A worker that is killed half way",
                  "A task has two phases. A worker is killed in the second one, after its effect and before its "
                  "verdict. The next worker does this phase again.");
  dibs__lab_fact_number(s, "ttl_ms", "The time of a claim", (double)lab->ttl_ms, "ms");
  if (dibs_open(lab->uri, NULL, &store, &error) != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  struct lab_table *table = dibs__lab_table(s, "guards", "Effects", "", columns, sizeof columns / sizeof *columns);
  lab->steps = GUARDS;
  for (size_t i = 0; fine && i < GUARDS && !dibs__lab_ended(lab); i++) {
    struct scene scene = {.lab = lab, .guard = &guards[i], .fd = -1, .store = store};
    lab->step++;
    dibs__lab_report_progress(lab, guards[i].title, 2, 0, 0, 0, 0);
    fine = perform(&scene, table);
    end_scene(&scene);
  }
  dibs_close(store);
  return fine || dibs__lab_ended(lab);
}
