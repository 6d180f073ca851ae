/* SPDX-License-Identifier: MIT */
/*
 * Runs a history of tasks by lane and compares each answer with a model.
 *
 * The model has the last claim of each task.  A claim is in doubt when its time is over, when a later fence of its lane
 * or of another number of lanes was named, or when that of an earlier task of its key is in doubt: a store may end it
 * at once or when a CLAIM looks at it (R109).  So a late END may be OK or STALE, and the model follows the answer.  A
 * CLAIM may take such a task, but never one under a claim that is not in doubt.
 */
#include "base/slot.h"
#include "lane_history.h"
#include "store/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWNERS = 3, LANES = 8, KEYS = 7, RECENT = 24, NAMED = 4096, SOON_MS = 1, PAUSE_MS = 4, FAR_MS = 3600000 };

enum task_state { FREE, CLAIMED, WAITING, PARKED, DONE, CANCELLED, PURGED };

struct lane_name {
  uint32_t of, lane;
  uint64_t fence;
};

struct model_task {
  uint64_t nr;
  uint32_t key; /* KEYS: none */
  enum task_state state;
  uint64_t fence;        /* of its latest claim */
  struct lane_name name; /* of its latest claim */
  int id;                /* of its latest claim */
  bool over;             /* the time of its claim or wait */
  bool maybe;            /* its claim may have ended */
  uint64_t ended;        /* the last fence that was ended, and how */
  uint32_t verdict;
  bool taken; /* by the CLAIM that is looked at */
};

struct owner {
  struct party *party;
  uint32_t of, from;
  uint64_t fences[LANES]; /* 0: not its lane, as far as it knows */
  struct dibs__task_lane lanes[LANES];
  uint32_t lane_count, last_of; /* of its last CLAIM */
  int last_id;
};

struct run {
  struct owner owners[OWNERS];
  uint32_t of, owner_of[LANES];
  uint64_t fences[LANES], last_fence;
  struct lane_name named[NAMED];
  size_t named_count;
  struct model_task *tasks, stranger; /* a task that the model does not know */
  size_t task_count, at;
  struct {
    size_t task;
    uint64_t fence;
  } recent[RECENT]; /* claims; number n is at n % RECENT */
  size_t recent_count;
  dibs__str keys[KEYS];
  int last_id;
  bool soon, prints;
  struct history_verdict *verdict;
};

#define differ(r, ...) history_differ((r)->verdict, (r)->at, __VA_ARGS__)

/* ---- The model ---- */

static uint32_t slot_of(const struct run *r, uint32_t key) {
  return dibs__slot(r->keys[key].p, r->keys[key].len);
}

/* R108, by the letter. */
static bool is_stale(const struct run *r, struct lane_name name) {
  for (size_t i = 0; i < r->named_count; i++) {
    const struct lane_name *n = &r->named[i];
    if ((n->of != name.of || n->lane == name.lane) && n->fence > name.fence) return true;
  }
  return false;
}

static bool unfinished(const struct model_task *t) {
  return t->state <= PARKED;
}

static bool same_lane(const struct model_task *t, struct lane_name name) {
  return t->state == CLAIMED && t->name.of == name.of && t->name.lane == name.lane && t->name.fence == name.fence;
}

/* Its claim has ended for a CLAIM of its lane. */
static bool has_ended(const struct run *r, const struct model_task *t) {
  return t->state == CLAIMED && (t->over || is_stale(r, t->name));
}

static bool in_doubt_itself(const struct run *r, const struct model_task *t) {
  return t->state == CLAIMED && (t->maybe || has_ended(r, t));
}

static bool is_in_doubt(const struct run *r, const struct model_task *t) {
  if (in_doubt_itself(r, t)) return true;
  for (const struct model_task *e = r->tasks; e < t; e++)
    if (e->key == t->key && same_lane(e, t->name) && in_doubt_itself(r, e)) return true;
  return false;
}

static bool is_behind(const struct run *r, const struct model_task *t) {
  for (const struct model_task *e = r->tasks; e < t; e++)
    if (e->key == t->key && unfinished(e)) return true;
  return false;
}

/* The claims of later tasks of its key under this fence end with its own.  `maybe`: if it has ended. */
static void end_later(struct run *r, const struct model_task *t, struct lane_name name, bool maybe) {
  for (struct model_task *e = r->tasks + (t - r->tasks) + 1; e < r->tasks + r->task_count; e++) {
    if (e->key != t->key || !same_lane(e, name) || e->taken) continue;
    e->maybe = maybe;
    if (!maybe) e->state = FREE;
  }
}

static struct model_task *find(struct run *r, uint64_t nr) {
  for (size_t i = 0; i < r->task_count; i++)
    if (r->tasks[i].nr == nr) return &r->tasks[i];
  r->stranger = (struct model_task){.key = KEYS, .state = PURGED};
  return &r->stranger;
}

/* What a CLAIM of this lane certainly may take now, or NULL. */
static const struct model_task *claimable(const struct run *r, uint32_t key, struct lane_name name) {
  for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++) {
    if (t->key != key || !unfinished(t)) continue;
    if (t->state == FREE || (t->state == WAITING && t->over) || has_ended(r, t)) return t;
    if (!same_lane(t, name) || t->maybe) return NULL;
  }
  return NULL;
}

/* ---- ADD ---- */

static int64_t draw_delay(struct run *r, uint32_t drawn) {
  static const int64_t delays[] = {0, 0, 0, 0, 0, SOON_MS, FAR_MS};
  int64_t delay = delays[drawn % 7];
  r->soon = r->soon || delay == SOON_MS;
  return delay;
}

static void run_add(struct run *r, const struct lane_step *s) {
  task_new news[LANE_ITEMS] = {{.nr = 0}};
  uint8_t token[16];
  uint32_t keys[LANE_ITEMS];
  task_op op = task_call(DIBS__TASK_ADD, "k");
  dibs__random(token, sizeof token);
  op.token = dibs__str_of((const char *)token, sizeof token);
  op.token_ms = DIBS__TASK_TOKEN_MS;
  op.news = news;
  op.count = 1 + s->drawn[0] % LANE_ITEMS;
  for (uint32_t i = 0; i < op.count; i++) {
    keys[i] = s->items[i][0] % 16 ? s->items[i][1] % KEYS : KEYS;
    news[i] = (task_new){.tries = 100000, .delay_ms = draw_delay(r, s->items[i][2])};
    if (keys[i] < KEYS) news[i].serial = r->keys[keys[i]];
  }
  op = run_task(r->owners[0].party, op);
  if (op.op.status != DIBS_OK) differ(r, "add: %s", status_name(op.op.status));
  for (uint32_t i = 0; i < op.count && !r->verdict->differs; i++) {
    if (r->prints) printf("  #%zu key %u delay %" PRId64 "\n", r->task_count, keys[i], news[i].delay_ms);
    if (r->task_count && news[i].nr <= r->tasks[r->task_count - 1].nr) differ(r, "numbers do not grow");
    r->tasks[r->task_count++] =
        (struct model_task){.nr = news[i].nr, .key = keys[i], .state = news[i].delay_ms ? WAITING : FREE};
    if (news[i].delay_ms == SOON_MS) r->tasks[r->task_count - 1].over = true;
  }
}

/* ---- CLAIM ---- */

static void take(struct run *r, struct model_task *t, const task_row *row, struct lane_name name, int id, bool soon) {
  struct model_task before = *t;
  if (row->fence.v <= t->fence) differ(r, "the fence of #%td did not grow", t - r->tasks);
  if (row->state != DIBS__TASK_CLAIMED) differ(r, "#%td was taken and is in state %u", t - r->tasks, row->state);
  r->verdict->counts[LANE_CLAIMED]++;
  r->verdict->counts[LANE_TAKEN_OVER] += t->state == CLAIMED;
  t->state = CLAIMED;
  t->fence = row->fence.v;
  t->name = name;
  t->id = id;
  t->over = soon;
  t->maybe = false;
  if (before.state == CLAIMED) end_later(r, t, before.name, false);
  r->recent[r->recent_count].task = (size_t)(t - r->tasks);
  r->recent[r->recent_count].fence = t->fence;
  r->recent_count = (r->recent_count + 1) % RECENT;
}

static const struct dibs__task_lane *lane_of(const struct run *r, const struct owner *o, const struct model_task *t) {
  uint32_t lane = dibs__slot_lane(slot_of(r, t->key), o->last_of);
  for (uint32_t i = 0; i < o->lane_count; i++)
    if (o->lanes[i].lane == lane && o->lanes[i].status == DIBS_OK) return &o->lanes[i];
  return NULL;
}

static struct lane_name name_of_lane(const struct owner *o, const struct dibs__task_lane *lane) {
  return lane ? (struct lane_name){o->last_of, lane->lane, lane->fence.v} : (struct lane_name){0};
}

/* An answer to a repetition: these were taken by the first. */
static void check_repeat(struct run *r, const struct owner *o, const task_op *op) {
  const task_row *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    const struct model_task *t = find(r, rows[i].nr);
    const struct dibs__task_lane *lane = t->key < KEYS ? lane_of(r, o, t) : NULL;
    if (!lane || t->id != o->last_id || t->fence != rows[i].fence.v || !same_lane(t, name_of_lane(o, lane)))
      differ(r, "a repetition answers task %" PRIu64 ", which the first did not take", rows[i].nr);
  }
}

static void check_taken(struct run *r, const struct owner *o, const task_op *op, bool soon) {
  const task_row *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    struct model_task *t = find(r, rows[i].nr);
    const struct dibs__task_lane *lane = t->key < KEYS ? lane_of(r, o, t) : NULL;
    if (!lane) differ(r, "task %" PRIu64 " was taken, which is not of these lanes", rows[i].nr);
    if (t->taken) differ(r, "#%td was taken twice", t - r->tasks);
    t->taken = true;
    for (uint32_t n = 0; n < i && lane; n++) {
      const struct model_task *other = find(r, rows[n].nr);
      if (other->key == t->key && other > t) differ(r, "#%td is behind a later one", t - r->tasks);
    }
    if (r->prints) printf("  got #%td\n", t - r->tasks);
  }
  for (uint32_t i = 0; i < op->got_count && !r->verdict->differs; i++) {
    const struct model_task *t = find(r, rows[i].nr);
    bool may = t->state == FREE || (t->state == WAITING && t->over) || is_in_doubt(r, t);
    struct lane_name name = name_of_lane(o, lane_of(r, o, t));
    if (!may) differ(r, "#%td was taken in state %d", t - r->tasks, (int)t->state);
    for (const struct model_task *e = r->tasks; e < t; e++)
      if (e->key == t->key && unfinished(e) && !e->taken && (!same_lane(e, name) || has_ended(r, e)))
        differ(r, "#%td was taken before #%td", t - r->tasks, e - r->tasks);
  }
  for (uint32_t i = 0; i < op->got_count && !r->verdict->differs; i++) {
    struct model_task *t = find(r, rows[i].nr);
    take(r, t, &rows[i], name_of_lane(o, lane_of(r, o, t)), o->last_id, soon);
  }
  for (size_t i = 0; i < r->task_count; i++) r->tasks[i].taken = false;
}

/* Nothing that it certainly could take remains. */
static void check_none_left(struct run *r, const struct owner *o) {
  for (uint32_t key = 0; key < KEYS; key++) {
    const struct model_task of_key = {.key = key};
    const struct dibs__task_lane *lane = lane_of(r, o, &of_key);
    const struct model_task *t = lane ? claimable(r, key, name_of_lane(o, lane)) : NULL;
    if (t) differ(r, "#%td could be taken, and was not", t - r->tasks);
  }
}

static void check_lanes(struct run *r, const struct owner *o) {
  for (uint32_t i = 0; i < o->lane_count; i++) {
    bool stale = is_stale(r, name_of_lane(o, &o->lanes[i]));
    if ((o->lanes[i].status == DIBS_STALE) != stale)
      differ(r, "lane %u of %u under %" PRIu64 ": %s", o->lanes[i].lane, o->last_of, o->lanes[i].fence.v,
             status_name(o->lanes[i].status));
    r->verdict->answered[o->lanes[i].status]++;
  }
  for (uint32_t i = 0; i < o->lane_count; i++) {
    struct lane_name name = name_of_lane(o, &o->lanes[i]);
    bool known = false;
    for (size_t n = 0; n < r->named_count && !known; n++)
      known = r->named[n].of == name.of && r->named[n].lane == name.lane && r->named[n].fence == name.fence;
    if (o->lanes[i].status == DIBS_OK && !known && r->named_count < NAMED) r->named[r->named_count++] = name;
  }
}

static bool answers_a_repetition(struct run *r, const task_op *op) {
  const task_row *rows = op->got;
  return op->got_count && find(r, rows[0].nr)->fence == rows[0].fence.v;
}

/* What its last CLAIM certainly still has. */
static bool has_claims(const struct run *r, const struct owner *o) {
  for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++)
    if (t->state == CLAIMED && t->id == o->last_id && lane_of(r, o, t) &&
        same_lane(t, name_of_lane(o, lane_of(r, o, t))) && !is_in_doubt(r, t))
      return true;
  return false;
}

/* The lanes of o->lanes, under the id o->last_id. */
static void send_claim(struct run *r, struct owner *o, uint32_t most, bool soon, bool repeats) {
  task_op op = task_call(DIBS__TASK_CLAIM, "k");
  op.lanes = o->lanes;
  op.lane_count = o->lane_count;
  op.of_lanes = o->last_of;
  op.topic = str_of("topic");
  op.most = most;
  op.from = o->from;
  op.timeout_ms = soon ? SOON_MS : FAR_MS;
  op.id = id_of(o->last_id);
  op.again = true;
  op.by = str_of("owner");
  r->soon = r->soon || soon;
  op = run_task(o->party, op);
  o->from = op.from;
  if (op.op.status != DIBS_OK) differ(r, "claim: %s: %s", status_name(op.op.status), op.why);
  if (r->verdict->differs) return;
  check_lanes(r, o);
  bool old = answers_a_repetition(r, &op);
  if (repeats && !old && has_claims(r, o)) differ(r, "a repetition does not find what the first took");
  if (old && !repeats) differ(r, "a claim answers tasks of an earlier one");
  if (old)
    check_repeat(r, o, &op);
  else
    check_taken(r, o, &op, soon);
  if (op.got_count == 0 && !op.more) check_none_left(r, o);
}

static void run_claim(struct run *r, const struct lane_step *s, bool repeats) {
  struct owner *o = &r->owners[s->drawn[0] % OWNERS];
  bool soon = s->drawn[1] % 5 == 0;
  if (!repeats) {
    o->lane_count = 0;
    o->last_of = o->of;
    o->last_id = ++r->last_id;
    for (uint32_t i = 0; i < o->of; i++)
      if (o->fences[i] && (s->drawn[2] % 3 || s->drawn[3] >> i % 32 & 1))
        o->lanes[o->lane_count++] = (struct dibs__task_lane){.lane = i, .fence = {o->fences[i]}};
  }
  if (r->prints)
    printf("  owner %td of %u lanes, id %d%s:", o - r->owners, o->last_of, o->last_id, soon ? ", short" : "");
  for (uint32_t i = 0; i < o->lane_count && r->prints; i++)
    printf(" %u under %" PRIu64, o->lanes[i].lane, o->lanes[i].fence.v);
  if (r->prints) printf("\n");
  if (o->lane_count) send_claim(r, o, 1 + s->drawn[4] % 6, soon, repeats);
}

static void run_without(struct run *r) {
  task_op op = task_call(DIBS__TASK_CLAIM, "k");
  op.id = id_of(++r->last_id);
  op.again = true;
  op.by = str_of("worker");
  op.most = 2;
  op.timeout_ms = FAR_MS;
  op = run_task(r->owners[1].party, op);
  if (op.op.status != DIBS_OK) differ(r, "claim without lanes: %s", status_name(op.op.status));
  const task_row *rows = op.got;
  for (uint32_t i = 0; i < op.got_count; i++) {
    struct model_task *t = find(r, rows[i].nr);
    if (t->key < KEYS || (t->state != FREE && t->state != WAITING))
      differ(r, "task %" PRIu64 " was taken without lanes", rows[i].nr);
    else
      *t = (struct model_task){.nr = t->nr, .key = t->key, .state = CLAIMED, .fence = rows[i].fence.v};
  }
}

/* ---- END, EXTEND ---- */

static void apply_verdict(struct run *r, struct model_task *t, const task_item *item) {
  struct lane_name name = t->name;
  t->ended = item->fence.v;
  t->verdict = item->verdict;
  t->over = item->delay_ms == SOON_MS;
  t->maybe = false;
  bool waits = item->verdict == DIBS__TASK_END_WAIT || item->verdict == DIBS__TASK_END_FAIL;
  t->state = waits && item->delay_ms ? WAITING : FREE;
  if (item->verdict == DIBS__TASK_END_DONE) t->state = DONE;
  if (item->verdict == DIBS__TASK_END_DEAD) t->state = PARKED;
  r->verdict->counts[LANE_DONE] += t->state == DONE;
  if (t->state != DONE) end_later(r, t, name, false);
}

static void learn_that_it_ended(struct run *r, struct model_task *t) {
  t->state = FREE;
  end_later(r, t, t->name, false);
}

static void check_end(struct run *r, const task_item *item) {
  struct model_task *t = find(r, item->nr);
  dibs__status s = item->status;
  r->verdict->answered[s]++;
  if (r->prints)
    printf("  #%td under %" PRIu64 " verdict %u delay %" PRId64 ": %s\n", t - r->tasks, item->fence.v, item->verdict,
           item->delay_ms, status_name(s));
  bool repeated = t->ended == item->fence.v && t->verdict == item->verdict, ok = s == DIBS_OK;
  bool present = t->state == CLAIMED && t->fence == item->fence.v;
  if (t->state == PURGED) {
    if (s != DIBS_NOT_FOUND) differ(r, "the end of a purged task: %s", status_name(s));
  } else if (s != DIBS_OK && s != DIBS_STALE) {
    differ(r, "the end of #%td: %s", t - r->tasks, status_name(s));
  } else if (repeated) {
    if (!ok || !item->repeated) differ(r, "a repeated end of #%td: %s", t - r->tasks, status_name(s));
  } else if (!present || (item->verdict == DIBS__TASK_END_DONE && is_behind(r, t))) {
    if (ok)
      differ(r, "the end of #%td is OK, %s", t - r->tasks, present ? "before an earlier one" : "without its claim");
  } else if (!ok && !is_in_doubt(r, t)) {
    differ(r, "the end of #%td is STALE", t - r->tasks);
  } else if (ok) {
    apply_verdict(r, t, item);
  } else {
    learn_that_it_ended(r, t);
  }
}

static void run_end(struct run *r, const struct lane_step *s) {
  static const uint32_t verdicts[] = {DIBS__TASK_END_DONE, DIBS__TASK_END_DONE, DIBS__TASK_END_DONE,
                                      DIBS__TASK_END_DONE, DIBS__TASK_END_DONE, DIBS__TASK_END_DONE,
                                      DIBS__TASK_END_NEXT, DIBS__TASK_END_WAIT, DIBS__TASK_END_FAIL,
                                      DIBS__TASK_END_GIVE, DIBS__TASK_END_DEAD};
  task_item items[LANE_ITEMS];
  task_op op = task_call(DIBS__TASK_END, "k");
  op.count = 0;
  for (uint32_t i = 0; i < 1 + s->drawn[0] % LANE_ITEMS; i++) {
    /* One claim after the other, with gaps and repetitions. */
    size_t at = (s->drawn[1] + (s->drawn[2] % 4 ? i : s->items[i][0])) % RECENT, task = r->recent[at].task;
    if (r->recent[at].fence == 0) continue;
    task_item *item = &items[op.count++];
    *item = (task_item){.nr = r->tasks[task].nr, .fence = {r->recent[at].fence}};
    item->verdict = verdicts[s->items[i][1] % (sizeof verdicts / sizeof verdicts[0])];
    bool waits = item->verdict == DIBS__TASK_END_WAIT || item->verdict == DIBS__TASK_END_FAIL;
    if (waits) item->delay_ms = draw_delay(r, s->items[i][2]);
  }
  if (op.count == 0) return;
  op.items = items;
  op = run_task(r->owners[s->drawn[3] % OWNERS].party, op);
  if (op.op.status != DIBS_OK) differ(r, "end: %s", status_name(op.op.status));
  bool unsure = in_doubt(&op.op); /* what is repeated now was ended by the first attempt */
  for (uint32_t i = 0; i < op.count && !r->verdict->differs; i++) {
    if (unsure && items[i].repeated) items[i].repeated = find(r, items[i].nr)->ended == items[i].fence.v;
    check_end(r, &items[i]);
  }
}

static void run_extend(struct run *r, const struct lane_step *s) {
  size_t at = s->drawn[0] % RECENT;
  if (r->recent[at].fence == 0) return;
  struct model_task *t = &r->tasks[r->recent[at].task];
  bool soon = s->drawn[1] % 4 == 0;
  task_item item = {.nr = t->nr, .fence = {r->recent[at].fence}};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = &item;
  op.count = 1;
  op.timeout_ms = soon ? SOON_MS : FAR_MS;
  op = run_task(r->owners[0].party, op);
  if (r->prints) printf("  #%td%s: %s\n", t - r->tasks, soon ? " short" : "", status_name(item.status));
  bool present = t->state == CLAIMED && t->fence == item.fence.v;
  r->soon = r->soon || soon;
  if (op.op.status != DIBS_OK || (item.status == DIBS_OK && !present))
    differ(r, "extend of #%td: %s", t - r->tasks, status_name(item.status));
  if (item.status != DIBS_OK && present && !is_in_doubt(r, t)) differ(r, "extend of #%td is STALE", t - r->tasks);
  if (!present) return;
  if (item.status == DIBS_OK)
    t->over = soon;
  else
    learn_that_it_ended(r, t);
}

/* ---- CHANGE, LIST ---- */

static void apply_change(struct run *r, struct model_task *t, enum dibs__task_change change) {
  bool doubt = is_in_doubt(r, t);
  if (change == DIBS__TASK_CANCEL && unfinished(t)) {
    if (t->state == CLAIMED && doubt) end_later(r, t, t->name, true);
    t->state = CANCELLED;
  } else if (change == DIBS__TASK_RETRY && (t->state == WAITING || t->state == PARKED || t->state == CANCELLED)) {
    t->state = FREE;
  } else if (change == DIBS__TASK_PURGE && t->state >= PARKED) {
    t->state = PURGED;
  }
}

static void run_change(struct run *r, const struct lane_step *s) {
  if (r->task_count == 0) return;
  struct model_task *t =
      &r->tasks[s->drawn[0] % 3 ? r->task_count - 1 - s->drawn[1] % r->task_count % 12 : s->drawn[1] % r->task_count];
  static const enum dibs__task_change changes[] = {DIBS__TASK_RETRY, DIBS__TASK_RETRY, DIBS__TASK_RETRY,
                                                   DIBS__TASK_CANCEL, DIBS__TASK_PURGE};
  enum dibs__task_change change = changes[s->drawn[2] % 5];
  task_op op = task_call(DIBS__TASK_CHANGE, "");
  op.change = change;
  op.filter.nr = t->nr;
  op.most = 1;
  op = run_task(r->owners[1].party, op);
  enum task_state before = t->state;
  /* It may be free by now, or blocked. */
  bool unsure = in_doubt(&op.op) || (t->state == WAITING && (t->over || is_behind(r, t)));
  if (!unsure || op.changed || change != DIBS__TASK_RETRY || in_doubt(&op.op)) apply_change(r, t, change);
  if (r->prints) printf("  change %d of #%td: %" PRIu64 "\n", (int)change, t - r->tasks, op.changed);
  if (op.op.status != DIBS_OK) differ(r, "change: %s", status_name(op.op.status));
  if (!unsure && op.changed != (before != t->state)) differ(r, "change %d of #%td", (int)change, t - r->tasks);
}

static bool state_fits(const struct run *r, const struct model_task *t, const task_row *row) {
  static const uint32_t states[] = {[FREE] = BIT(DIBS__TASK_ARRIVED) | BIT(DIBS__TASK_READY) | BIT(DIBS__TASK_BLOCKED),
                                    [CLAIMED] = BIT(DIBS__TASK_CLAIMED),
                                    [WAITING] =
                                        BIT(DIBS__TASK_ARRIVED) | BIT(DIBS__TASK_WAITING) | BIT(DIBS__TASK_BLOCKED),
                                    [PARKED] = BIT(DIBS__TASK_PARKED),
                                    [DONE] = BIT(DIBS__TASK_DONE),
                                    [CANCELLED] = BIT(DIBS__TASK_CANCELLED)};
  uint32_t may = states[t->state];
  if (t->state == WAITING && t->over) may |= states[FREE];
  if (is_in_doubt(r, t)) may |= states[FREE];
  return (may & BIT(row->state)) && (t->state != CLAIMED || row->fence.v == t->fence);
}

static void run_list(struct run *r, const struct lane_step *s) {
  if (r->task_count == 0) return;
  const struct model_task *t = &r->tasks[s->drawn[0] % r->task_count];
  task_op op = task_call(DIBS__TASK_LIST, "");
  op.filter.nr = t->nr;
  op = run_task(r->owners[2].party, op);
  if (op.op.status != DIBS_OK || op.got_count != (t->state != PURGED))
    differ(r, "list of #%td: %s", t - r->tasks, status_name(op.op.status));
  else if (op.got_count && !state_fits(r, t, op.got))
    differ(r, "#%td is in state %u, not %d", t - r->tasks, ((const task_row *)op.got)->state, (int)t->state);
}

/* ---- Lanes ---- */

static void pass_lane(struct run *r, uint32_t lane, uint32_t to) {
  struct owner *o = &r->owners[to];
  r->owner_of[lane] = to;
  r->fences[lane] = ++r->last_fence;
  if (o->of != r->of) memset(o->fences, 0, sizeof o->fences);
  o->of = r->of;
  o->fences[lane] = r->fences[lane];
}

static void run_learn(struct run *r, uint32_t who) {
  r->owners[who].of = r->of;
  for (uint32_t i = 0; i < LANES; i++) r->owners[who].fences[i] = i < r->of && r->owner_of[i] == who ? r->fences[i] : 0;
}

/* The owners have the lanes by now; they learn it one after the other. */
static void run_number(struct run *r, const struct lane_step *s) {
  static const uint32_t numbers[] = {1, 2, 3, LANES};
  r->of = numbers[s->drawn[0] % 4];
  for (uint32_t i = 0; i < r->of; i++) {
    r->owner_of[i] = s->drawn[1] / (i + 1) % OWNERS;
    r->fences[i] = ++r->last_fence;
  }
  run_learn(r, r->owner_of[0]);
}

/* ---- A run ---- */

static void run_step(struct run *r, const struct lane_step *s) {
  static const char *const names[] = {"add",  "claim", "repeat", "end",     "extend", "change",
                                      "pass", "learn", "number", "without", "list"};
  if (r->prints) printf("%4zu  %s\n", r->at, names[s->kind]);
  r->soon = false;
  if (s->kind == LANE_ADD) run_add(r, s);
  if (s->kind == LANE_CLAIM) run_claim(r, s, false);
  if (s->kind == LANE_REPEAT) run_claim(r, s, true);
  if (s->kind == LANE_END) run_end(r, s);
  if (s->kind == LANE_EXTEND) run_extend(r, s);
  if (s->kind == LANE_CHANGE) run_change(r, s);
  if (s->kind == LANE_PASS) pass_lane(r, s->drawn[0] % r->of, s->drawn[1] % OWNERS);
  if (s->kind == LANE_LEARN) run_learn(r, s->drawn[0] % OWNERS);
  if (s->kind == LANE_NUMBER) run_number(r, s);
  if (s->kind == LANE_WITHOUT) run_without(r);
  if (s->kind == LANE_LIST) run_list(r, s);
  if (r->soon) dibs__nap_ms(PAUSE_MS);
}

static void retry_all(struct run *r) {
  for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++) {
    struct lane_step retry = {.kind = LANE_CHANGE, .drawn = {0, (uint32_t)(t - r->tasks), 0}};
    if (t->key < KEYS && (t->state == WAITING || t->state == PARKED)) run_change(r, &retry);
  }
}

static void end_taken(struct run *r) {
  task_item items[DIBS__TASK_ITEMS];
  task_op op = task_call(DIBS__TASK_END, "k");
  op.count = 0;
  for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++)
    if (t->state == CLAIMED && t->key < KEYS && !is_in_doubt(r, t) && op.count < DIBS__TASK_ITEMS)
      items[op.count++] = (task_item){.nr = t->nr, .fence = {t->fence}, .verdict = DIBS__TASK_END_DONE};
  op.items = items;
  op = run_task(r->owners[0].party, op);
  for (uint32_t i = 0; i < op.count; i++) {
    if (in_doubt(&op.op)) items[i].repeated = false;
    check_end(r, &items[i]);
  }
}

/* One owner of all lanes finishes all tasks: nothing was lost, nothing is stuck. */
static void drain(struct run *r) {
  struct owner *o = &r->owners[0];
  size_t left = 1, rounds = 0;
  r->of = 1;
  pass_lane(r, 0, 0);
  for (; left && !r->verdict->differs; rounds++) {
    retry_all(r);
    o->last_of = 1;
    o->lane_count = 1;
    o->lanes[0] = (struct dibs__task_lane){.lane = 0, .fence = {o->fences[0]}};
    o->last_id = ++r->last_id;
    send_claim(r, o, 40, false, false);
    if (!r->verdict->differs) end_taken(r);
    left = 0;
    for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++)
      left += t->key < KEYS && unfinished(t);
    if (rounds > 2 * r->task_count + 10) differ(r, "%zu tasks can't be finished", left);
  }
  struct dibs__task_kind count = count_of(o->party, "k");
  uint64_t done = 0, cancelled = 0;
  for (const struct model_task *t = r->tasks; t < r->tasks + r->task_count; t++) {
    done += t->state == DONE;
    cancelled += t->state == CANCELLED;
  }
  if (count.states[DIBS__TASK_DONE] != done || count.states[DIBS__TASK_CANCELLED] != cancelled)
    differ(r, "%" PRIu64 " are done and %" PRIu64 " cancelled, not %" PRIu64 " and %" PRIu64,
           count.states[DIBS__TASK_DONE], count.states[DIBS__TASK_CANCELLED], done, cancelled);
}

void lane_history_run(const char *uri, const struct lane_step steps[], size_t count, bool prints,
                      struct history_verdict *verdict) {
  struct run *r = calloc(1, sizeof *r);
  dibs__str pair[2];
  assert_non_null(r);
  r->prints = prints;
  r->verdict = verdict;
  r->tasks = calloc(count * LANE_ITEMS + 1, sizeof *r->tasks);
  assert_non_null(r->tasks);
  texts_of_one_slot(pair);
  for (uint32_t i = 0; i < KEYS; i++) r->keys[i] = i < 2 ? pair[i] : text_of_lane(i - 2, KEYS - 2, 0);
  for (int i = 0; i < OWNERS; i++) r->owners[i].party = party_at(uri);
  /* From the first CLAIM on the kind is by lane. */
  struct lane_step number = {.drawn = {2, 0}}, claim = {.drawn = {r->owner_of[0], 1, 1}};
  run_number(r, &number);
  run_claim(r, &claim, false);
  for (; r->at < count && !verdict->differs; r->at++) run_step(r, &steps[r->at]);
  if (verdict->differs) verdict->at = r->at - 1;
  if (count) r->at = count - 1;
  if (!verdict->differs) drain(r);
  free(r->tasks);
  free(r);
}
