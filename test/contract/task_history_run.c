/* SPDX-License-Identifier: MIT */
/* Runs a history of tasks on two stores and compares their answers. */
#include "store/family.h"
#include "task_history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 2, PARTIES = 2, TOKENS = 4, IDS = 5, RECENT = 6, PHASES = 3, CLAIMS = 64, FAR_MS = 100000 };

/* The tasks have the same indexes on both sides; their numbers may differ. */
struct side {
  struct party *parties[PARTIES];
  uint64_t *nrs;
  uint64_t *fences; /* of their latest claims */
};

struct run {
  struct side sides[2];
  size_t task_count, at;
  struct claim {
    size_t task;
    uint64_t fences[2]; /* on each side */
  } claims[CLAIMS];     /* the latest; number n is at n % CLAIMS */
  size_t claim_count;
  char kinds[KINDS][40];
  bool prints;
  struct history_verdict *verdict;
};

/* One operation, as both sides run it: the second with its own numbers. */
struct pair {
  task_op ops[2];
  task_new news[2][HISTORY_ITEMS];
  task_item items[2][HISTORY_ITEMS];
  dibs__str phases[PHASES];
  size_t tasks[HISTORY_ITEMS]; /* of the items */
};

static const char *const phases[PHASES] = {"", "a", "b"};
static const char *const serials[] = {"", "", "s", "t"};
static const char *const uniques[] = {"", "", "", "", "u", "v"};
static const char *const texts[] = {"", "it failed", "no disk", "late"};
static const char *const payloads[] = {"", "one", "two"};
static const char *const owners[] = {"first", "second"};
static const char *const verdicts[] = {"done", "next", "wait", "fail", "dead", "give"};

#define PICK(from, drawn) str_of((from)[(drawn) % (sizeof(from) / sizeof((from)[0]))])

#define differ(r, ...) history_differ((r)->verdict, (r)->at, __VA_ARGS__)

#define SAME(what, x, y)                                                                                               \
  do {                                                                                                                 \
    if ((x) != (y)) differ(r, "%s: %" PRId64 " and %" PRId64, what, (int64_t)(x), (int64_t)(y));                       \
  } while (0)

static void same_text(struct run *r, const char *what, dibs__str a, dibs__str b) {
  if (!dibs__str_equal(a, b)) differ(r, "%s: \"%.*s\" and \"%.*s\"", what, (int)a.len, a.p, (int)b.len, b.p);
}

/* ---- Drawing an operation ---- */

/* The index of a task; of a number that is unknown, the count. */
static size_t index_of(const struct run *r, int side, uint64_t nr) {
  size_t i = 0;
  while (i < r->task_count && r->sides[side].nrs[i] != nr) i++;
  return i;
}

/* Index 0 of no tasks means a number that no task has. */
static uint64_t nr_of(const struct run *r, int side, size_t task) {
  return task < r->task_count ? r->sides[side].nrs[task] : UINT64_C(1) << 40;
}

static size_t pick_task(const struct run *r, uint32_t drawn) {
  size_t count = r->task_count, back = count < RECENT ? count : RECENT;
  if (count == 0) return 0;
  return drawn % 2 ? count - 1 - drawn / 2 % back : drawn / 2 % count;
}

static int64_t draw_delay(uint32_t drawn) {
  static const int64_t delays[] = {0, 0, 0, SOON_MS, 3600000};
  return delays[drawn % 5];
}

static void make_add(struct run *r, const struct task_step *s, struct pair *pair) {
  static const int32_t priorities[] = {0, 0, 0, 0, 1, -1, 2, DIBS__TASK_PRIORITY + 1};
  static const char *const tokens[TOKENS] = {"token 0", "token 1", "token 2", "token 3"};
  for (int i = 0; i < 2; i++) {
    task_op *op = &pair->ops[i];
    op->count = 1 + s->drawn[0] % HISTORY_ITEMS;
    op->news = pair->news[i];
    if (s->drawn[1] % 4 == 0) op->token = name_of(tokens[s->drawn[2] % TOKENS]);
    op->token_ms = s->drawn[3] % 3 ? TASK_LONG_MS : SOON_MS;
    op->wants_new = s->drawn[4] % 2;
    for (uint32_t n = 0; n < op->count; n++) {
      const uint32_t *drawn = s->items[n];
      op->news[n] = (task_new){.phase = PICK(phases, drawn[0]),
                               .serial = PICK(serials, drawn[1]),
                               .unique = PICK(uniques, drawn[2]),
                               .payload = PICK(payloads, drawn[3]),
                               .priority = priorities[drawn[4] % 8],
                               .delay_ms = draw_delay(drawn[5]),
                               .tries = 1 + drawn[3] / 8 % 3};
    }
  }
  (void)r;
}

static void make_claim(struct run *r, const struct task_step *s, struct pair *pair) {
  uint32_t count = s->drawn[2] % 2 ? 0 : 1 + s->drawn[2] / 2 % PHASES;
  for (uint32_t i = 0; i < count; i++) pair->phases[i] = str_of(phases[(s->drawn[3] + i) % PHASES]);
  for (int i = 0; i < 2; i++) {
    task_op *op = &pair->ops[i];
    op->most = s->drawn[0] % 3 ? 1 : 1 + s->drawn[0] / 3 % HISTORY_ITEMS;
    op->id = id_of((int)(s->drawn[1] % IDS) + s->of * IDS);
    op->again = s->drawn[4] % 3 == 0;
    op->by = str_of(owners[s->drawn[1] % IDS % 2]); /* a repeat has the same */
    op->timeout_ms = s->drawn[5] % 6 == 0 ? SOON_MS : 3600000;
    op->phases = pair->phases;
    op->phase_count = count;
  }
  (void)r;
}

/* Usually of a recent claim; two items of one operation are of two tasks.  A store may read its clock again for the
 * next task of a serial text, so all items are done, or none of several is. */
static void make_items(struct run *r, const struct task_step *s, struct pair *pair) {
  uint32_t count = 0, wanted = 1 + s->drawn[0] % 3;
  bool all_done = s->drawn[2] % 3 == 0;
  for (uint32_t n = 0; n < wanted; n++) {
    const uint32_t *drawn = s->items[n];
    size_t back = r->claim_count < RECENT ? r->claim_count : RECENT;
    bool of_claim = back && drawn[0] % 8 != 0, twice = false;
    struct claim claim = {pick_task(r, drawn[1]), {1 + drawn[2] % 3, 1 + drawn[2] % 3}};
    if (of_claim) claim = r->claims[(r->claim_count - 1 - drawn[1] % back) % CLAIMS];
    for (int i = 0; i < 2 && drawn[2] % 16 == 0; i++) claim.fences[i] += drawn[2] / 16 % 2 ? 1 : (uint64_t)-1;
    for (uint32_t k = 0; k < count; k++) twice = twice || pair->tasks[k] == claim.task;
    if (twice) continue;
    pair->tasks[count] = claim.task;
    for (int i = 0; i < 2; i++) {
      task_item *item = &pair->items[i][count];
      *item = (task_item){.nr = nr_of(r, i, claim.task), .fence = {claim.fences[i]}, .verdict = drawn[3] % 6};
      if (wanted > 1 && all_done) item->verdict = DIBS__TASK_END_DONE;
      if (wanted > 1 && !all_done && item->verdict == DIBS__TASK_END_DONE) item->verdict = DIBS__TASK_END_NEXT;
      if (drawn[3] / 8 % 8 == 0) item->verdict = DIBS__TASK_END_GIVE + 1; /* invalid */
      item->phase = drawn[4] % 3 ? str_of("") : PICK(phases, drawn[4] / 3);
      item->text = PICK(texts, drawn[5]);
      item->tries = drawn[5] / 4 % 8 == 0 ? 2 : 0;
      item->delay_ms = draw_delay(drawn[5] / 32);
    }
    count++;
  }
  for (int i = 0; i < 2; i++) {
    pair->ops[i].items = pair->items[i];
    pair->ops[i].count = count;
    pair->ops[i].timeout_ms = s->drawn[1] % 4 ? 3600000 : SOON_MS;
  }
}

static void make_filter(struct run *r, const struct task_step *s, struct pair *pair) {
  static const uint32_t states[] = {BIT(DIBS__TASK_READY),   BIT(DIBS__TASK_CLAIMED),
                                    BIT(DIBS__TASK_WAITING), BIT(DIBS__TASK_BLOCKED) | BIT(DIBS__TASK_PARKED),
                                    BIT(DIBS__TASK_DONE),    BIT(DIBS__TASK_DEAD) | BIT(DIBS__TASK_PARKED),
                                    DIBS__TASK_UNFINISHED,   DIBS__TASK_FINISHED};
  for (int i = 0; i < 2; i++) {
    task_op *op = &pair->ops[i];
    struct dibs__task_filter *f = &op->filter;
    f->kind = op->kind;
    op->most = s->drawn[0] % 3 ? 1 + s->drawn[0] / 3 % 5 : DIBS__TASK_ITEMS;
    if (s->drawn[1] % 3 == 0) f->nr = nr_of(r, i, pick_task(r, s->drawn[2]));
    f->states = DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED;
    if (s->drawn[1] % 3 == 1) f->states = states[s->drawn[2] % 8];
    if (s->drawn[3] % 6 == 0) f->after = nr_of(r, i, pick_task(r, s->drawn[2] / 8));
    if (s->drawn[3] / 6 % 6 == 0) f->phase = PICK(phases, s->drawn[4]);
    if (s->drawn[3] / 36 % 6 == 0) f->serial = PICK(serials, s->drawn[4] / 8);
    if (s->drawn[3] / 216 % 8 == 0) f->text = PICK(texts, s->drawn[4] / 64);
    op->change = s->drawn[5] % 3;
    /* For the same reason: of one table. */
    if (s->kind == STEP_CHANGE && op->change == DIBS__TASK_RETRY)
      f->states = s->drawn[5] / 4 % 2 ? DIBS__TASK_UNFINISHED : DIBS__TASK_FINISHED;
    op->dry = s->drawn[6] % 4 == 0;
    op->payloads = s->drawn[6] % 2;
    op->errors = s->kind == STEP_ERRORS;
    if (op->errors) f->nr = nr_of(r, i, pick_task(r, s->drawn[2]));
  }
}

static void make_settings(const struct task_step *s, struct pair *pair) {
  for (int i = 0; i < 2; i++) {
    task_op *op = &pair->ops[i];
    op->set = 1 + s->drawn[0] % (DIBS__TASK_SET_RUNNING | DIBS__TASK_SET_PAUSED);
    op->running = s->drawn[1] % 3 ? 1 + s->drawn[1] / 3 % 4 : 0;
    op->paused = s->drawn[2] % 3 == 0;
  }
}

static void make(struct run *r, const struct task_step *s, struct pair *pair) {
  static const enum dibs__task_verb verbs[] = {
      [STEP_ADD] = DIBS__TASK_ADD,     [STEP_CLAIM] = DIBS__TASK_CLAIM,   [STEP_EXTEND] = DIBS__TASK_EXTEND,
      [STEP_END] = DIBS__TASK_END,     [STEP_CHANGE] = DIBS__TASK_CHANGE, [STEP_LIST] = DIBS__TASK_LIST,
      [STEP_ERRORS] = DIBS__TASK_LIST, [STEP_COUNT] = DIBS__TASK_COUNT,   [STEP_KIND] = DIBS__TASK_KIND};
  memset(pair, 0, sizeof *pair);
  for (int i = 0; i < 2; i++) pair->ops[i] = task_call(verbs[s->kind], r->kinds[s->of]);
  if (s->kind == STEP_ADD) make_add(r, s, pair);
  if (s->kind == STEP_CLAIM) make_claim(r, s, pair);
  if (s->kind == STEP_EXTEND || s->kind == STEP_END) make_items(r, s, pair);
  if (s->kind == STEP_CHANGE || s->kind == STEP_LIST || s->kind == STEP_ERRORS) make_filter(r, s, pair);
  if (s->kind == STEP_KIND) make_settings(s, pair);
}

/* ---- Printing ---- */

static void print_items(const struct pair *pair, const task_op *op) {
  for (uint32_t n = 0; n < op->count; n++)
    printf("%s #%zu fence %" PRIu64 " %s phase \"%s\" delay %" PRId64 " tries %u", n ? "," : "", pair->tasks[n],
           op->items[n].fence.v, op->items[n].verdict < 6 ? verdicts[op->items[n].verdict] : "?", op->items[n].phase.p,
           op->items[n].delay_ms, op->items[n].tries);
}

static void print_step(const struct run *r, const struct task_step *s, const struct pair *pair) {
  static const char *const names[] = {"add", "claim", "extend", "end", "change", "list", "errors", "count", "kind"};
  static const char *const changes[] = {"retry", "cancel", "purge"};
  const task_op *op = &pair->ops[0];
  printf("%4zu  kind %u: %s", r->at, s->of, names[s->kind]);
  if (s->kind == STEP_ADD) printf(" token \"%.*s\"", (int)op->token.len, op->token.len ? op->token.p : "");
  for (uint32_t n = 0; s->kind == STEP_ADD && n < op->count; n++)
    printf("%s phase \"%s\" serial \"%s\" unique \"%s\" priority %d delay %" PRId64 " tries %u", n ? "," : "",
           op->news[n].phase.p, op->news[n].serial.p, op->news[n].unique.p, op->news[n].priority, op->news[n].delay_ms,
           op->news[n].tries);
  if (s->kind == STEP_CLAIM) printf(" most %u id %u%s, phases:", op->most, op->id.b[12], op->again ? " again" : "");
  for (uint32_t n = 0; n < op->phase_count; n++) printf(" \"%s\"", op->phases[n].p);
  if (s->kind == STEP_EXTEND || s->kind == STEP_END) print_items(pair, op);
  if (s->kind == STEP_CLAIM || s->kind == STEP_EXTEND) printf(" for %" PRId64 " ms", op->timeout_ms);
  if (s->kind == STEP_CHANGE) printf(" %s%s", changes[op->change], op->dry ? " dry" : "");
  if (s->kind == STEP_CHANGE || s->kind == STEP_LIST)
    printf(" most %u nr #%zu after #%zu states %x", op->most, index_of(r, 0, op->filter.nr),
           index_of(r, 0, op->filter.after), op->filter.states);
  if (s->kind == STEP_KIND) printf(" set %u running %u paused %d", op->set, op->running, op->paused);
  printf("\n");
}

/* ---- Comparing ---- */

static bool far_away(int64_t ms) {
  return ms > FAR_MS;
}

static void same_index(struct run *r, const char *what, uint64_t a, uint64_t b) {
  SAME(what, index_of(r, 0, a), index_of(r, 1, b));
}

/* Fences are instants (R61): each is compared with that of the latest claim on its side. */
static int fence_order(const struct run *r, int side, const task_row *row) {
  uint64_t latest = r->sides[side].fences[index_of(r, side, row->nr)];
  return (row->fence.v > latest) - (row->fence.v < latest);
}

static void compare_row(struct run *r, const task_row *a, const task_row *b) {
  same_index(r, "task", a->nr, b->nr);
  SAME("fence after the latest claim", fence_order(r, 0, a), fence_order(r, 1, b));
  SAME("state", a->state, b->state);
  SAME("attempts", a->attempts, b->attempts);
  SAME("fails", a->fails, b->fails);
  SAME("tries", a->tries, b->tries);
  SAME("priority", a->priority, b->priority);
  SAME("has an end", a->due_ms != 0, b->due_ms != 0);
  if (a->due_ms) SAME("ends late", far_away(a->due_ms - a->at_ms), far_away(b->due_ms - b->at_ms));
  SAME("was claimed", a->began_ms != 0, b->began_ms != 0);
  SAME("has a time", a->made_ms != 0, b->made_ms != 0);
  same_text(r, "kind", a->kind, b->kind);
  same_text(r, "phase", a->phase, b->phase);
  same_text(r, "serial", a->serial, b->serial);
  same_text(r, "unique", a->unique, b->unique);
  same_text(r, "payload", a->payload, b->payload);
  same_text(r, "by", a->by, b->by);
  same_text(r, "text", a->text, b->text);
}

static void compare_rows(struct run *r, const task_op *a, const task_op *b) {
  const task_row *x = a->got, *y = b->got;
  for (uint32_t i = 0; i < a->got_count && i < b->got_count; i++) compare_row(r, &x[i], &y[i]);
  SAME("rows", a->got_count, b->got_count);
}

static void compare_counts(struct run *r, const task_op *a, const task_op *b) {
  const struct dibs__task_kind *x = a->got, *y = b->got;
  SAME("kinds", a->got_count, b->got_count);
  if (a->got_count != 1 || b->got_count != 1) return;
  for (int i = 0; i <= DIBS__TASK_CANCELLED; i++)
    if (x->states[i] != y->states[i])
      differ(r, "tasks in state %d: %" PRIu64 " and %" PRIu64, i, x->states[i], y->states[i]);
  SAME("running", x->running, y->running);
  SAME("paused", x->paused, y->paused);
  SAME("keep_ms", x->keep_ms, y->keep_ms);
  SAME("has an oldest one", x->oldest_ms >= 0, y->oldest_ms >= 0);
}

/* Both sides learn the numbers of new tasks. */
static void compare_news(struct run *r, const task_op *a, const task_op *b) {
  for (uint32_t n = 0; n < a->count; n++) {
    const task_new *x = &a->news[n], *y = &b->news[n];
    if (x->status != y->status) differ(r, "item %u: %s and %s", n, status_name(x->status), status_name(y->status));
    r->verdict->answered[x->status]++;
    SAME("has a number", x->nr != 0, y->nr != 0);
    if (r->verdict->differs) return;
    if (x->nr && index_of(r, 0, x->nr) == r->task_count && index_of(r, 1, y->nr) == r->task_count) {
      r->sides[0].nrs[r->task_count] = x->nr;
      r->sides[1].nrs[r->task_count] = y->nr;
      r->task_count++;
    }
    if (x->nr) same_index(r, "number", x->nr, y->nr);
  }
}

static void compare_items(struct run *r, const task_op *a, const task_op *b) {
  for (uint32_t n = 0; n < a->count; n++) {
    dibs__status x = a->items[n].status, y = b->items[n].status;
    if (x != y) differ(r, "item %u: %s and %s", n, status_name(x), status_name(y));
    r->verdict->answered[x]++;
  }
}

static void learn_claims(struct run *r, const task_op *a, const task_op *b) {
  const task_row *x = a->got, *y = b->got;
  for (uint32_t i = 0; i < a->got_count; i++) {
    size_t task = index_of(r, 0, x[i].nr);
    r->sides[0].fences[task] = x[i].fence.v;
    r->sides[1].fences[task] = y[i].fence.v;
    r->claims[r->claim_count++ % CLAIMS] = (struct claim){task, {x[i].fence.v, y[i].fence.v}};
  }
}

static void compare(struct run *r, const struct task_step *s, struct pair *pair) {
  const task_op *a = &pair->ops[0], *b = &pair->ops[1];
  if (a->op.status != b->op.status)
    differ(r, "%s and %s (%s)", status_name(a->op.status), status_name(b->op.status), b->why);
  r->verdict->answered[a->op.status]++;
  if (a->op.status != DIBS_OK || r->verdict->differs) return;
  if (s->kind == STEP_ADD) compare_news(r, a, b);
  if (s->kind == STEP_EXTEND || s->kind == STEP_END) compare_items(r, a, b);
  if (s->kind == STEP_CLAIM || s->kind == STEP_LIST || s->kind == STEP_ERRORS) compare_rows(r, a, b);
  if (s->kind == STEP_COUNT) compare_counts(r, a, b);
  if (s->kind == STEP_CLAIM && a->got_count == 0) {
    SAME("has a next time", a->next_ms >= 0, b->next_ms >= 0);
    SAME("waits long", far_away(a->next_ms), far_away(b->next_ms));
  }
  if (s->kind == STEP_CHANGE) {
    SAME("changed", a->changed, b->changed);
    same_index(r, "last", a->last, b->last);
    SAME("more", a->more, b->more);
  }
  if (s->kind == STEP_CLAIM && !r->verdict->differs) learn_claims(r, a, b);
}

/* ---- A run ---- */

/* The later instant is one for each client, also if it knows the store's clock between two bounds only. */
static void let_time_pass(void) {
  dibs__nap_ms(PAUSE_MS + target()->told_ms);
}

/* New tasks are admitted soon, because they may be ARRIVED on one side only.  What this step did is later than what
 * the steps before did, in the ms of both stores. */
static void run_step(struct run *r, const struct task_step *s) {
  struct pair pair;
  make(r, s, &pair);
  if (r->prints) print_step(r, s, &pair);
  for (int i = 0; i < 2; i++) {
    struct dibs__op *ops[] = {&pair.ops[i].op};
    run_batch(r->sides[i].parties[s->party], ops, 1);
  }
  compare(r, s, &pair);
  for (int i = 0; i < 2; i++) dibs__op_free_answer(&pair.ops[i].op);
  if (s->kind < STEP_LIST) let_time_pass();
  if (s->kind != STEP_ADD) return;
  for (int i = 0; i < 2; i++) admit(r->sides[i].parties[s->party], r->kinds[s->of]);
  let_time_pass();
}

/* In the end the stores have the same tasks. */
static void compare_all(struct run *r) {
  for (int k = 0; k < KINDS && !r->verdict->differs; k++) {
    struct task_step all = {.kind = STEP_LIST, .of = (uint8_t)k, .drawn = {0, 2, 0, 1 + 6 + 36 + 216, 0, 0, 1}};
    struct task_step count = {.kind = STEP_COUNT, .of = (uint8_t)k};
    run_step(r, &all);
    run_step(r, &count);
  }
}

void task_history_run(const char *reference, const char *other, const struct task_step steps[], size_t count,
                      bool prints, struct history_verdict *verdict) {
  struct run r = {.prints = prints, .verdict = verdict};
  for (int i = 0; i < 2; i++) {
    r.sides[i].nrs = calloc(count * HISTORY_ITEMS + 1, sizeof *r.sides[i].nrs);
    r.sides[i].fences = calloc(count * HISTORY_ITEMS + 1, sizeof *r.sides[i].fences);
    for (int p = 0; p < PARTIES; p++) r.sides[i].parties[p] = party_at(i ? other : reference);
    assert_non_null(r.sides[i].nrs);
    assert_non_null(r.sides[i].fences);
  }
  for (int k = 0; k < KINDS; k++) snprintf(r.kinds[k], sizeof r.kinds[k], "kind %d", k);
  for (; r.at < count && !verdict->differs; r.at++) run_step(&r, &steps[r.at]);
  if (verdict->differs) verdict->at = r.at - 1;
  if (count) r.at = count - 1;
  compare_all(&r);
  for (int i = 0; i < 2; i++) {
    free(r.sides[i].nrs);
    free(r.sides[i].fences);
  }
}
