/* SPDX-License-Identifier: MIT */
/*
 * A worker: threads that run the user's function, a claimer, and a keeper of what is claimed.
 *
 *   claimer:  claim -> ready list -> worker threads -> ends list -> keeper: one END for all that are there
 *                                                                   keeper: one EXTEND for all claims that are due
 *
 * The claimer sleeps while no thread could begin more, and while the store has nothing: until a listener is woken
 * (this process added a task, or the store reports one), the time of a waiting task has come, or poll_ms has passed.
 *
 * While an END is under way, further ends are collected for the next one; a single end is sent at once.
 * An END or EXTEND that is not answered is sent again, and neither holds up the other for longer than one request.
 *
 * worker->lock guards what has no other comment.  It is never held across a request or the user's function.
 */
#include "task/worker_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  THREADS_DEFAULT = 1,
  POLL_MS = 1000,
  EXTEND_PART = 3,  /* a claim is extended when this part of its time has passed */
  REQUEST_PART = 4, /* a request of the keeper takes at most this part of a claim's time */
  REQUEST_MIN_MS = 50,
  GATHER_PART = 2, /* an extension is made for all claims that are due within this part of EXTEND_PART */
  HELD_PART = 30,  /* after this part of its time, a claim is extended again whose row another session held */
  RETRY_MS = 20,   /* before a request that was not answered is sent again */
  RETRY_MOST_MS = 1000,
  LAST_CLAIMS = 3 /* when it stops: tries to learn what an unanswered claim has */
};

typedef struct dibs_worker worker_t;

/* ---- What is held ---- */

static void hold_locked(worker_t *w, struct dibs__held *held) {
  held->extend_at = dibs__tick_add_ms(held->began, w->timeout_ms / EXTEND_PART);
  held->before = NULL;
  held->after = w->held;
  if (w->held) w->held->before = held;
  w->held = held;
  w->counts.held++;
}

static void drop_locked(worker_t *w, struct dibs__held *held) {
  if (held->before)
    held->before->after = held->after;
  else
    w->held = held->after;
  if (held->after) held->after->before = held->before;
  if (held->lane) dibs__lanes_drop_locked(w, held);
  if (--w->counts.held == 0) dibs__worker_rouse(&w->held_word, UINT32_MAX);
  dibs_task_free(&held->task);
}

static void push_ready_locked(worker_t *w, struct dibs__held *held) {
  held->next = NULL;
  if (w->ready_last)
    w->ready_last->next = held;
  else
    w->ready_first = held;
  w->ready_last = held;
  w->ready++;
}

static struct dibs__held *pop_ready_locked(worker_t *w) {
  struct dibs__held *held = w->ready_first;
  if (!held) return NULL;
  w->ready_first = held->next;
  if (!w->ready_first) w->ready_last = NULL;
  w->ready--;
  return held;
}

static void push_end_locked(worker_t *w, struct dibs__worker_end *e) {
  e->next = NULL;
  e->held->ending = true;
  if (w->ends_last)
    w->ends_last->next = e;
  else
    w->ends_first = e;
  w->ends_last = e;
  w->ends++;
}

static struct dibs__worker_end *make_end(worker_t *w, struct dibs__held *held, dibs_verdict verdict,
                                         const dibs_work_reply *reply) {
  size_t phase = reply ? strnlen(reply->phase, DIBS_NAME_MAX) : 0,
         text = reply ? strnlen(reply->text, DIBS_TASK_TEXT_MAX) : 0;
  struct dibs__worker_end *e = malloc(sizeof *e + phase + text + 2);
  if (!e) return NULL;
  e->held = held;
  e->refused = false;
  e->give_up_at = dibs__tick_add_ms(dibs__tick_now(), w->timeout_ms);
  e->end = (dibs_task_end){.size = sizeof e->end, .task = &held->task, .verdict = verdict, .delay_ms = -1};
  if (phase > 0) memcpy(e->texts, reply->phase, phase);
  e->texts[phase] = '\0';
  if (text > 0) memcpy(e->texts + phase + 1, reply->text, text);
  e->texts[phase + 1 + text] = '\0';
  if (phase > 0) e->end.phase = e->texts;
  if (text > 0) e->end.text = e->texts + phase + 1;
  if (reply) {
    e->end.delay_ms = reply->delay_ms;
    e->end.least_ms = reply->least_ms;
    e->end.tries = reply->tries;
  }
  e->end.delay_ms = dibs__task_pause_ms(&e->end);
  return e;
}

/* Gives back what was not begun.  A claim that the store already refused has nothing to give back.  Without memory the
 * claim ends by its time.  In both cases no answer of the store wakes the claimer later, which may have waited for this
 * task to begin. */
void dibs__worker_give_back_locked(worker_t *w, struct dibs__held *held) {
  struct dibs__worker_end *e = held->lost ? NULL : make_end(w, held, DIBS_END_RELEASE, NULL);
  if (e) {
    push_end_locked(w, e);
    return;
  }
  if (!held->lost && held->lane) dibs__lanes_doubt_locked(w, held);
  drop_locked(w, held);
  dibs__worker_rouse_claimer_locked(w);
}

static void give_back_ready_locked(worker_t *w) {
  struct dibs__held *held;
  while ((held = pop_ready_locked(w)) != NULL) dibs__worker_give_back_locked(w, held);
  dibs__worker_rouse(&w->keep_word, 1);
}

/* A row of the user's that no claim takes; or why a claim got nothing although there is something to do (R108). */
static void keep_why_locked(worker_t *w, size_t count) {
  if (w->table)
    snprintf(w->trouble.text, sizeof w->trouble.text, "%s", w->claim.why);
  else if (count == 0 && w->claim.why[0])
    (void)dibs__fail(&w->trouble, DIBS_NOT_FOUND, "no task of kind \"%s\" is ready; %s", w->kind, w->claim.why);
}

static void keep_trouble_locked(worker_t *w, dibs_status status, const char *doing, const char *why) {
  if (status == DIBS_OK)
    (void)dibs__fine(&w->trouble);
  else
    (void)dibs__task_explain(w->store, w->table, status, doing, w->kind, why, &w->trouble);
}

/* ---- The claimer ---- */

/* How many tasks to claim now; 0: wait until some have been begun.  It claims when at most half of what is claimed in
 * advance is left, so that claims stay large; what waits for its end is bounded, too. */
static uint32_t wanted_locked(const worker_t *w) {
  if (w->lanes) return dibs__lanes_wanted_locked(w);
  uint32_t most = w->threads + w->prefetch, busy = w->ready + w->running;
  if (w->stopping || busy >= most || w->ready > w->prefetch / 2 || w->counts.held >= 2 * (uint64_t)most) return 0;
  return most - busy < DIBS_TASKS_MAX ? most - busy : DIBS_TASKS_MAX;
}

/* If it has something to do, or to wait for. */
void dibs__worker_rouse_claimer_locked(worker_t *w) {
  if (wanted_locked(w) == 0 && !w->stopping) return;
  w->roused++;
  dibs__worker_rouse(&w->listener.word, 1);
}

/* *count: then only those that may begin. */
static void take_claimed_locked(worker_t *w, dibs_status status, dibs_task **tasks, size_t *count) {
  size_t claimed = *count;
  for (size_t i = 0; i < claimed; i++) {
    struct dibs__held *held = dibs__held_of(tasks[i]);
    hold_locked(w, held);
    if (w->lanes) continue;
    if (w->stopping)
      dibs__worker_give_back_locked(w, held);
    else
      push_ready_locked(w, held);
  }
  w->counts.claimed += claimed;
  if (w->lanes) dibs__lanes_take_locked(w, status, tasks, count);
  if (claimed == 0) return;
  dibs__worker_rouse(&w->work_word, (uint32_t)claimed);
  dibs__worker_rouse(&w->keep_word, 1); /* it extends them, or gives them back */
}

/* When to look again after a claim that got fewer tasks than it wanted: a random part before and after poll_ms, so that
 * workers that were started together do not send their claims together. */
static dibs__tick next_look(const worker_t *w, dibs_status status) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  int64_t ms = w->poll_ms / 2 + w->poll_ms / 4 + (int64_t)drawn % (w->poll_ms / 2 + 1);
  if (status == DIBS_OK && w->claim.more) ms = 0;
  if (status == DIBS_OK && w->claim.next_ms >= 0 && w->claim.next_ms < ms)
    ms = w->claim.next_ms > 0 ? w->claim.next_ms : 1;
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

static dibs_status claim_some(worker_t *w, uint32_t want, size_t *count) {
  dibs_task *tasks[DIBS_TASKS_MAX];
  *count = 0;
  dibs_status status = dibs__enter(w->store, "a worker", NULL);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&w->lock);
  dibs__tick by = dibs__tick_min(dibs__tick_add_ms(dibs__tick_now(), DIBS__TASK_WAIT_MS), w->give_up_at);
  bool names = !w->lanes || dibs__lanes_name_locked(w);
  dibs__mutex_unlock(&w->lock);
  if (!names) { /* no lane is left */
    w->claim.next_ms = -1;
    w->claim.more = false;
    dibs__exit(w->store);
    return DIBS_OK;
  }
  status = dibs__claim_once(&w->claim, want, tasks, count, by);
  dibs__mutex_lock(&w->lock);
  w->counts.requests++;
  if (status == DIBS_OK && *count == 0 && !w->claim.more) w->counts.idle++;
  keep_trouble_locked(w, status, "claiming tasks of kind", w->claim.why);
  if (status == DIBS_OK) keep_why_locked(w, *count);
  take_claimed_locked(w, status, tasks, count);
  dibs__mutex_unlock(&w->lock);
  dibs__exit(w->store);
  return status;
}

static void claim_forever(worker_t *w) {
  dibs__tick look_at = DIBS__TICK_ZERO; /* not before, unless tasks were added */
  uint32_t looked = 0;                  /* how much was added before the latest claim */
  for (;;) {
    dibs__mutex_lock(&w->lock);
    uint32_t seen = atomic_load(&w->listener.word), added = seen - w->roused;
    uint32_t want = wanted_locked(w);
    dibs__tick due = want > 0 ? dibs__tick_min(look_at, w->look_at) : DIBS__TICK_NEVER;
    bool over = w->stopping, now = want > 0 && (added != looked || !dibs__tick_before(dibs__tick_now(), due));
    if (now) w->look_at = DIBS__TICK_NEVER;
    dibs__mutex_unlock(&w->lock);
    if (over) return;
    if (!now) {
      (void)dibs__word_wait(&w->listener.word, seen, due, false);
      continue;
    }
    size_t count = 0;
    dibs_status status = claim_some(w, want, &count);
    looked = added;
    /* As many as wanted: there may be more. */
    look_at = status == DIBS_OK && count == want ? DIBS__TICK_ZERO : next_look(w, status);
  }
}

/* A store that does not answer must not hold up the process until the time of a claim is over, a day at most. */
static void give_up_soon_locked(worker_t *w) {
  w->give_up_at = dibs__tick_add_ms(dibs__tick_now(), DIBS__TASK_WAIT_MS);
}

static bool gives_up(worker_t *w) {
  dibs__mutex_lock(&w->lock);
  bool over = !dibs__tick_before(dibs__tick_now(), w->give_up_at);
  dibs__mutex_unlock(&w->lock);
  return over;
}

static void run_claimer(void *arg) {
  worker_t *w = arg;
  claim_forever(w);
  dibs__mutex_lock(&w->lock);
  if (w->give_up_at.ns != DIBS__TICK_NEVER.ns) give_up_soon_locked(w); /* the request before may have taken the time */
  dibs__mutex_unlock(&w->lock);
  size_t count;
  for (int i = 0; i < LAST_CLAIMS && w->claim.unsure && !gives_up(w); i++)
    if (claim_some(w, 1, &count) != DIBS_OK) dibs__nap_ms(RETRY_MS);
  dibs__mutex_lock(&w->lock);
  if (w->lanes) dibs__lanes_end_claims_locked(w);
  w->claiming = false;
  dibs__worker_rouse(&w->held_word, UINT32_MAX);
  dibs__worker_rouse(&w->keep_word, 1);
  dibs__mutex_unlock(&w->lock);
}

/* ---- The worker threads ---- */

static dibs_verdict call_work(worker_t *w, struct dibs__held *held, dibs_work_reply *reply) {
  *reply = (dibs_work_reply){.size = sizeof *reply, .delay_ms = -1};
  dibs_verdict verdict = w->work(&held->task, reply, w->user);
  reply->phase[DIBS_NAME_MAX] = reply->text[DIBS_TASK_TEXT_MAX] = '\0';
  bool known = (int)verdict >= DIBS_END_DONE && verdict <= DIBS_END_RELEASE;
  if (w->table && (verdict == DIBS_END_DONE || verdict == DIBS_END_DEAD))
    return DIBS_END_FAIL; /* the row is the user's */
  if (known) return verdict;
  memcpy(reply->text, "the worker's function returned no verdict", sizeof "the worker's function returned no verdict");
  return DIBS_END_FAIL;
}

static void count_end_locked(worker_t *w, dibs_verdict verdict, dibs_status answer) {
  uint64_t *const counters[] = {
      [DIBS_END_DONE] = &w->counts.done,   [DIBS_END_NEXT] = &w->counts.next, [DIBS_END_WAIT] = &w->counts.waits,
      [DIBS_END_FAIL] = &w->counts.failed, [DIBS_END_DEAD] = &w->counts.dead, [DIBS_END_RELEASE] = &w->counts.released};
  uint64_t *other = answer == DIBS_UNKNOWN ? &w->counts.unsent : &w->counts.refused;
  ++*(answer == DIBS_OK ? counters[verdict] : other);
}

static void work_on(worker_t *w, struct dibs__held *held, dibs_work_reply *reply) {
  dibs_verdict verdict = call_work(w, held, reply);
  struct dibs__worker_end *e = held->ended ? NULL : make_end(w, held, verdict, reply);
  dibs__mutex_lock(&w->lock);
  w->running--;
  w->counts.running--;
  if (e) {
    if (held->lane) dibs__lanes_judge_locked(w, held, verdict);
    push_end_locked(w, e);
    dibs__worker_rouse(&w->keep_word, 1);
  } else {
    if (held->ended)
      count_end_locked(w, held->verdict, held->answer);
    else
      w->counts.unsent++; /* no memory */
    if (held->lane) dibs__lanes_end_locked(w, held, held->verdict, held->ended ? held->answer : DIBS_UNKNOWN);
    drop_locked(w, held);
  }
  dibs__worker_rouse_claimer_locked(w);
  dibs__mutex_unlock(&w->lock);
}

/* A ready task begins.  The claimer may have waited for that: other threads may be free, and tasks may be ready
 * in the store. */
static void begin_locked(worker_t *w) {
  w->running++;
  w->counts.running++;
  w->counts.begun++;
  if (w->lanes || w->ready == w->prefetch / 2) dibs__worker_rouse_claimer_locked(w);
}

/* The next task to begin.  Those whose claim is over already are given back.  NULL: the worker stops. */
static struct dibs__held *next_task(worker_t *w) {
  struct dibs__held *held = NULL;
  dibs__mutex_lock(&w->lock);
  for (;;) {
    uint32_t seen = atomic_load(&w->work_word);
    if (w->stopping) break;
    held = w->lanes ? dibs__lanes_begin_locked(w) : pop_ready_locked(w);
    if (held && dibs_task_left_ms(&held->task) > 0) break;
    if (held) {
      dibs__worker_give_back_locked(w, held);
      dibs__worker_rouse(&w->keep_word, 1);
      continue;
    }
    dibs__mutex_unlock(&w->lock);
    (void)dibs__word_wait(&w->work_word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&w->lock);
  }
  if (held) begin_locked(w);
  dibs__mutex_unlock(&w->lock);
  return held;
}

static void run_worker(void *arg) {
  worker_t *w = ((struct worker_thread *)arg)->worker;
  struct dibs__held *held;
  dibs_work_reply reply;
  while ((held = next_task(w)) != NULL) work_on(w, held, &reply);
}

/* ---- The keeper ---- */

/* When ends are given up although their claims may last longer; NEVER: not. */
static dibs__tick closing_by_locked(const worker_t *w) {
  return w->closing ? w->give_up_at : DIBS__TICK_NEVER;
}

/* So that a slow store does not let other claims end. */
static dibs__tick request_by_locked(const worker_t *w) {
  int64_t ms = w->timeout_ms / REQUEST_PART;
  if (ms < REQUEST_MIN_MS) ms = REQUEST_MIN_MS;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms < DIBS__TASK_WAIT_MS ? ms : DIBS__TASK_WAIT_MS);
  return dibs__tick_min(by, closing_by_locked(w));
}

static void note_answer_locked(worker_t *w, dibs_status status, const char *doing, const char *why) {
  w->counts.requests++;
  keep_trouble_locked(w, status, doing, why);
  w->failed = status == DIBS_OK ? 0 : w->failed + 1;
  int64_t ms = RETRY_MS;
  for (uint32_t i = 1; i < w->failed && ms < RETRY_MOST_MS; i++) ms *= 2;
  w->retry_at = status == DIBS_OK ? DIBS__TICK_ZERO : dibs__tick_add_ms(dibs__tick_now(), ms);
}

/* Single tasks that the store could not end or extend now: another session has locked their rows, for example.  They
 * are sent again, and not at once. */
static void note_items_locked(worker_t *w, const dibs_status *statuses, size_t count, const char *doing,
                              const char *why) {
  size_t i = 0;
  while (i < count && statuses[i] != DIBS_UNAVAILABLE) i++;
  if (i == count) return;
  keep_trouble_locked(w, DIBS_UNAVAILABLE, doing, why);
  w->retry_at = dibs__tick_add_ms(dibs__tick_now(), RETRY_MS);
}

/* Tasks may be ready again after this end: others with its serial text, or the task itself. */
static void look_after_locked(worker_t *w, const struct dibs__worker_end *e) {
  bool again = e->end.verdict != DIBS_END_DONE && e->end.verdict != DIBS_END_DEAD;
  if (!again && !e->held->task.serial[0]) return;
  /* With lanes: what is given back of a broken key is claimed again when all is. */
  if (e->end.verdict == DIBS_END_RELEASE && !dibs__lanes_is_last_locked(e->held)) return;
  w->look_at = dibs__tick_min(w->look_at, dibs__tick_add_ms(dibs__tick_now(), e->end.delay_ms));
}

/* With lanes: DONE is also refused while an earlier task of the key is unfinished, which a person has retried; then the
 * claim is still there, and is given back.  In other cases there is none to give back. */
static bool give_back_refused_locked(worker_t *w, struct dibs__worker_end *e) {
  if (e->end.verdict == DIBS_END_RELEASE && e->end.status == DIBS_STALE) e->end.status = DIBS_OK; /* it is free */
  if (e->end.verdict != DIBS_END_DONE || e->end.status != DIBS_STALE) return false;
  dibs__lanes_judge_locked(w, e->held, DIBS_END_RELEASE);
  e->refused = true;
  e->end.verdict = DIBS_END_RELEASE;
  e->end.text = NULL;
  push_end_locked(w, e);
  return true;
}

/* Takes the answers; what was not answered is sent again until its claim is certainly over, or the worker that is freed
 * gives up. */
static void take_ends_locked(worker_t *w, struct dibs__worker_end *list, dibs_status status) {
  dibs__tick now = dibs__tick_now(), closing_by = closing_by_locked(w);
  struct dibs__worker_end *next;
  for (struct dibs__worker_end *e = list; e; e = next) {
    next = e->next;
    bool answered = status == DIBS_OK && e->end.status != DIBS_UNAVAILABLE;
    dibs__tick by = dibs__tick_min(e->give_up_at, closing_by);
    if (!answered && dibs__tick_before(now, by) && status != DIBS_INVALID) {
      push_end_locked(w, e);
      continue;
    }
    if (answered && e->held->lane && give_back_refused_locked(w, e)) continue;
    if (answered)
      count_end_locked(w, e->refused ? DIBS_END_DONE : e->end.verdict, e->refused ? DIBS_STALE : e->end.status);
    else
      w->counts.unsent++;
    if (answered && e->end.status == DIBS_OK) look_after_locked(w, e);
    if (e->held->lane) dibs__lanes_end_locked(w, e->held, e->end.verdict, answered ? e->end.status : DIBS_UNKNOWN);
    drop_locked(w, e->held);
    free(e);
  }
}

static void send_ends(worker_t *w) {
  dibs_task_end ends[DIBS_TASKS_MAX];
  dibs_status statuses[DIBS_TASKS_MAX];
  struct dibs__worker_end *list = NULL, **tail = &list;
  size_t count = 0;
  char why[DIBS__TASK_WHY] = "";
  dibs__mutex_lock(&w->lock);
  while (w->ends_first && count < DIBS_TASKS_MAX) {
    struct dibs__worker_end *e = w->ends_first;
    w->ends_first = e->next;
    if (!w->ends_first) w->ends_last = NULL;
    w->ends--;
    e->next = NULL;
    *tail = e;
    tail = &e->next;
    ends[count++] = e->end;
  }
  dibs__tick by = request_by_locked(w);
  dibs__mutex_unlock(&w->lock);
  if (count == 0) return;
  dibs_status status = dibs__enter(w->store, "a worker", NULL);
  if (status == DIBS_OK) {
    status = dibs__end_once(w->store, ends, count, by, why);
    dibs__exit(w->store);
  }
  size_t i = 0;
  for (struct dibs__worker_end *e = list; e; e = e->next, i++) e->end.status = statuses[i] = ends[i].status;
  dibs__mutex_lock(&w->lock);
  note_answer_locked(w, status, "ending tasks of kind", why);
  if (status == DIBS_OK) note_items_locked(w, statuses, count, "ending tasks of kind", why);
  bool answers = false;
  for (i = 0; i < count && status == DIBS_OK; i++) answers = answers || statuses[i] != DIBS_UNAVAILABLE;
  if (w->closing && answers) give_up_soon_locked(w); /* the rest has its time, too */
  take_ends_locked(w, list, status);
  dibs__worker_rouse_claimer_locked(w);
  dibs__mutex_unlock(&w->lock);
}

static bool is_extended_locked(const struct dibs__held *held) {
  return !held->lost && !held->ending && !held->ended;
}

/* When the first claim is due to be extended. */
static dibs__tick extension_due_locked(const worker_t *w) {
  dibs__tick due = DIBS__TICK_NEVER;
  for (const struct dibs__held *h = w->held; h; h = h->after)
    if (is_extended_locked(h)) due = dibs__tick_min(due, h->extend_at);
  return due;
}

static void take_extensions_locked(worker_t *w, dibs_task *const *tasks, const dibs_status *statuses, size_t count,
                                   dibs__tick sent) {
  for (size_t i = 0; i < count; i++) {
    struct dibs__held *held = dibs__held_of(tasks[i]);
    if (statuses[i] == DIBS_OK) {
      w->counts.extended++;
      held->extend_at = dibs__tick_add_ms(sent, w->timeout_ms / EXTEND_PART);
    } else if (statuses[i] == DIBS_UNAVAILABLE) { /* another session holds its row */
      held->extend_at = dibs__tick_add_ms(dibs__tick_now(), w->timeout_ms / HELD_PART);
    } else if (is_extended_locked(held)) { /* else it was ended meanwhile */
      held->lost = true;
      w->counts.lost++;
      if (held->lane) dibs__lanes_lose_locked(w, held);
    }
  }
}

/* Every claim that is due soon, in one request.  Only this thread drops claims whose ends it sends; those that a worker
 * thread drops (ended by the user's function) are kept by a reference of their batch. */
static void extend_claims(worker_t *w) {
  dibs_task *tasks[DIBS_TASKS_MAX];
  dibs_status statuses[DIBS_TASKS_MAX];
  char why[DIBS__TASK_WHY] = "";
  size_t count = 0;
  dibs__tick sent = dibs__tick_now();
  dibs__tick until = dibs__tick_add_ms(sent, w->timeout_ms / EXTEND_PART / GATHER_PART);
  dibs__mutex_lock(&w->lock);
  for (struct dibs__held *h = w->held; h && count < DIBS_TASKS_MAX; h = h->after) {
    if (!is_extended_locked(h) || !dibs__tick_before(h->extend_at, until)) continue;
    atomic_fetch_add(&h->batch->refs, 1);
    tasks[count++] = &h->task;
  }
  dibs__tick by = request_by_locked(w);
  dibs__mutex_unlock(&w->lock);
  if (count == 0) return;
  dibs_status status = dibs__enter(w->store, "a worker", NULL);
  if (status == DIBS_OK) {
    status = dibs__extend_once(w->store, tasks, count, w->timeout_ms, NULL, statuses, by, why);
    dibs__exit(w->store);
  }
  dibs__mutex_lock(&w->lock);
  note_answer_locked(w, status, "extending the claims of tasks of kind", why);
  if (status == DIBS_OK) note_items_locked(w, statuses, count, "extending the claims of tasks of kind", why);
  if (status == DIBS_OK) take_extensions_locked(w, tasks, statuses, count, sent);
  dibs__mutex_unlock(&w->lock);
  for (size_t i = 0; i < count; i++) dibs_task_free(tasks[i]);
}

static void run_keeper(void *arg) {
  worker_t *w = arg;
  for (;;) {
    uint32_t seen = atomic_load(&w->keep_word);
    dibs__mutex_lock(&w->lock);
    bool ends = w->ends_first != NULL;
    bool over = w->closing && !w->claiming && w->counts.held == 0;
    dibs__tick due = extension_due_locked(w), retry_at = dibs__tick_min(w->retry_at, closing_by_locked(w));
    dibs__mutex_unlock(&w->lock);
    if (over) return;
    dibs__tick now = dibs__tick_now();
    if (dibs__tick_before(now, retry_at)) {
      (void)dibs__word_wait(&w->keep_word, seen, retry_at, false);
      continue;
    }
    if (!ends && dibs__tick_before(now, due)) {
      (void)dibs__word_wait(&w->keep_word, seen, due, false);
      continue;
    }
    if (!dibs__tick_before(now, due)) extend_claims(w);
    if (ends) send_ends(w);
  }
}

/* ---- From the start to the end ---- */

static void free_worker(worker_t *w) {
  for (uint32_t i = 0; w->phases && i < w->phase_count; i++) free(w->phases[i]);
  free(w->phases);
  free(w->workers);
  free(w->kind);
  free(w->owner);
  if (w->store) dibs__store_drop(w->store);
  dibs__table_drop(w->table);
  dibs__mutex_destroy(&w->lock);
  free(w);
}

/* NULL: no memory. */
static worker_t *make_worker(dibs_store *store, const char *kind, const dibs_worker_options *o) {
  worker_t *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  dibs__mutex_init(&w->lock);
  atomic_fetch_add(&store->refs, 1);
  w->store = store;
  w->table = o->table ? dibs__table_hold(o->table) : NULL;
  w->threads = o->threads ? o->threads : THREADS_DEFAULT;
  w->prefetch = o->flags & DIBS_WORKER_NO_PREFETCH ? 0 : o->prefetch ? o->prefetch : w->threads;
  w->timeout_ms = o->timeout_ms;
  w->poll_ms = o->poll_ms ? o->poll_ms : POLL_MS;
  w->work = o->work;
  w->user = o->user;
  w->look_at = w->give_up_at = DIBS__TICK_NEVER;
  w->claiming = true;
  w->kind = strdup(dibs__own_kind(kind, o->table));
  w->owner = strdup(o->owner ? o->owner : store->owner);
  w->phases = calloc(o->phase_count + 1, sizeof *w->phases);
  w->workers = calloc(w->threads, sizeof *w->workers);
  bool made = w->kind && w->owner && w->phases && w->workers;
  for (; made && w->phase_count < o->phase_count; w->phase_count += made)
    made = (w->phases[w->phase_count] = strdup(o->phases[w->phase_count])) != NULL;
  if (!made) {
    free_worker(w);
    return NULL;
  }
  w->listener.kind = w->kind;
  w->claim = (struct dibs__claim){.store = store,
                                  .table = w->table,
                                  .kind = w->kind,
                                  .owner = w->owner,
                                  .phases = (const char *const *)w->phases,
                                  .phase_count = w->phase_count,
                                  .timeout_ms = w->timeout_ms};
  return w;
}

static void stop_claiming(worker_t *w) {
  dibs__mutex_lock(&w->lock);
  w->stopping = true;
  give_back_ready_locked(w);
  dibs__worker_rouse_claimer_locked(w);
  dibs__mutex_unlock(&w->lock);
  if (w->lanes) dibs__lanes_stop(w);
  dibs__worker_rouse(&w->work_word, UINT32_MAX);
}

void dibs__worker_end(dibs_worker *w) {
  if (w->ended) return;
  w->ended = true;
  dibs__mutex_lock(&w->lock);
  give_up_soon_locked(w); /* the last claims; ends are still sent again while the function runs */
  dibs__mutex_unlock(&w->lock);
  stop_claiming(w);
  dibs__thread_join(w->claimer);
  for (uint32_t i = 0; i < w->threads; i++) dibs__thread_join(w->workers[i].thread);
  dibs__mutex_lock(&w->lock);
  w->claiming = false; /* if its thread could not be started */
  w->closing = true;
  give_up_soon_locked(w);
  dibs__mutex_unlock(&w->lock);
  dibs__worker_rouse(&w->keep_word, 1);
  dibs__thread_join(w->keeper);
}

void dibs_worker_free(dibs_worker *w) {
  if (!w || !dibs__is_of_this_process(w->store)) return; /* a child's copy has no threads to join */
  dibs__worker_end(w);
  dibs__listen_no_more(w->store, &w->listener);
  dibs__lanes_free(w);
  free_worker(w);
}

static bool start_threads(worker_t *w) {
  w->keeper = dibs__thread_start("dibs-keep", run_keeper, w);
  bool started = w->keeper != NULL;
  for (uint32_t i = 0; i < w->threads && started; i++) {
    w->workers[i].worker = w;
    w->workers[i].thread = dibs__thread_start("dibs-work", run_worker, &w->workers[i]);
    started = w->workers[i].thread != NULL;
  }
  if (started) w->claimer = dibs__thread_start("dibs-claim", run_claimer, w);
  return started && w->claimer;
}

static dibs_status check_worker(dibs_store *store, const char *kind, dibs_worker_options *o, dibs_error *error) {
  if (!o->work) return dibs__fail(error, DIBS_INVALID, "dibs_worker_start: work is NULL");
  if (o->threads > DIBS_WORKER_THREADS || o->prefetch > DIBS_WORKER_PREFETCH)
    return dibs__fail(error, DIBS_INVALID, "dibs_worker_start: give up to %d threads, and a prefetch of up to %d",
                      DIBS_WORKER_THREADS, DIBS_WORKER_PREFETCH);
  if (o->poll_ms < 0 || o->flags & ~(uint32_t)DIBS_WORKER_NO_PREFETCH)
    return dibs__fail(error, DIBS_INVALID, "dibs_worker_start: poll_ms is negative, or a flag is not known");
  if (store->outer)
    return dibs__fail(error, DIBS_UNSUPPORTED, "a worker can't run inside a transaction: use the store itself");
  if (o->timeout_ms == 0) o->timeout_ms = DIBS__TASK_TIMEOUT_MS;
  dibs_claim_options claim = {.size = sizeof claim,
                              .phases = o->phases,
                              .phase_count = o->phase_count,
                              .most = 1,
                              .timeout_ms = o->timeout_ms,
                              .owner = o->owner,
                              .table = o->table};
  dibs_status status = dibs__claim_check(store, kind, &claim, error);
  if (status != DIBS_OK) return status;
  if (o->reserved != 0 || (!o->topic && (o->lanes || o->lane_ttl_ms)))
    return dibs__fail(error, DIBS_INVALID,
                      "dibs_worker_start: `reserved` is not 0, or lanes are given without a topic");
  if (o->topic && (o->table || o->phase_count > 0))
    return dibs__fail(error, DIBS_INVALID, "a worker by lane claims tasks of all phases, and of dibs' own table");
  return DIBS_OK;
}

/* With a topic, first: on_gain wakes no thread yet. */
static dibs_status start_working(worker_t *w, const dibs_worker_options *o, dibs_error *error) {
  dibs_status status = o->topic ? dibs__lanes_join(w, o, error) : DIBS_OK;
  if (status == DIBS_OK && !start_threads(w))
    status = dibs__fail(error, DIBS_NO_MEMORY, "the system can't start %u threads more", o->threads + 2);
  return status;
}

dibs_status dibs_worker_start(dibs_store *store, const char *kind, const dibs_worker_options *given,
                              dibs_worker **worker, dibs_error *error) {
  dibs_worker_options o = DIBS_WORKER_OPTIONS_INIT;
  if (!worker || !given)
    return dibs__fail(error, DIBS_INVALID, "dibs_worker_start: the options or the pointer for the worker are NULL");
  *worker = NULL;
  if (dibs__check_size(given->size, sizeof o, "dibs_worker_options", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&o, given, given->size);
  dibs_status status = dibs__enter(store, "dibs_worker_start", error);
  if (status != DIBS_OK) return status;
  status = check_worker(store, kind, &o, error);
  worker_t *w = status == DIBS_OK ? make_worker(store, kind, &o) : NULL;
  if (status == DIBS_OK && !w) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the worker");
  if (w) dibs__listen(store, &w->listener);
  if (w) status = start_working(w, &o, error);
  if (w && status != DIBS_OK) {
    dibs_worker_free(w);
    w = NULL;
  }
  dibs__exit(store);
  *worker = w;
  return status == DIBS_OK ? dibs__fine(error) : status;
}

dibs_status dibs_worker_stop(dibs_worker *w, int64_t wait_ms, dibs_error *error) {
  if (!w) return dibs__fail(error, DIBS_INVALID, "dibs_worker_stop: the worker is NULL");
  if (wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                      (long long)wait_ms);
  if (dibs__check_process(w->store, "dibs_worker_stop", "the worker", error) != DIBS_OK) return DIBS_INVALID;
  dibs__tick now = dibs__tick_now();
  dibs__tick by = wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(now, wait_ms);
  stop_claiming(w);
  for (;;) {
    uint32_t seen = atomic_load(&w->held_word);
    dibs__mutex_lock(&w->lock);
    uint64_t running = w->counts.running;
    bool over = w->counts.held == 0 && !w->claiming;
    dibs__mutex_unlock(&w->lock);
    if (over && dibs__lanes_have_left(w, by)) return dibs__fine(error);
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__fail(error, DIBS_TIMEOUT, "%" PRIu64 " tasks of kind \"%s\" still run", running, w->kind);
    (void)dibs__word_wait(&w->held_word, seen, by, false);
  }
}

dibs_status dibs_worker_count(dibs_worker *w, dibs_worker_counts *counts, dibs_error *error) {
  if (!w || !counts) return dibs__fail(error, DIBS_INVALID, "dibs_worker_count: the worker or counts is NULL");
  size_t size = counts->size;
  if (dibs__check_size(size, sizeof *counts, "dibs_worker_counts", error) != DIBS_OK) return DIBS_INVALID;
  if (dibs__check_process(w->store, "dibs_worker_count", "the worker", error) != DIBS_OK) return DIBS_INVALID;
  dibs__mutex_lock(&w->lock);
  dibs_worker_counts all = w->counts;
  dibs__mutex_unlock(&w->lock);
  dibs__lanes_count(w, &all);
  memcpy(counts, &all, size);
  counts->size = size;
  return dibs__fine(error);
}

void dibs_worker_trouble(dibs_worker *w, dibs_error *error) {
  if (!error) return;
  (void)dibs__fine(error);
  if (!w || dibs__check_process(w->store, "dibs_worker_trouble", "the worker", error) != DIBS_OK) return;
  dibs__mutex_lock(&w->lock);
  *error = w->trouble;
  dibs__mutex_unlock(&w->lock);
  if (error->status == DIBS_OK || error->status == DIBS_NOT_FOUND) dibs__lanes_trouble(w, error);
}
