/* SPDX-License-Identifier: MIT */
/* Runs a history on two stores and compares their answers. */
#include "history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOO_LONG_MS = 400, TOLERANCE_MS = 450 };

struct run {
  uint64_t nr;
  struct side sides[2];
  struct verdict *verdict;
  bool one_by_one;      /* an epoch may end within a batch, and engines may restart the whole batch or a part of it */
  bool records, groups; /* both stores serve records */
  char names[NAMES][40];
  uint8_t offered_name, offered_id; /* the last offer that the reference reported */
};

union any_op {
  struct dibs__op op;
  struct dibs__lease_op lease;
  struct dibs__record_op record;
  struct dibs__anchor_op anchor;
};

static const char *const owners[IDS] = {"id 0", "id 1", "id 2", "id 3", "id 4", "id 5", "id 6", "id 7", "id 8"};

static void differ(struct run *r, size_t at, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void differ(struct run *r, size_t at, const char *format, ...) {
  va_list args;
  if (r->verdict->differs) return;
  r->verdict->differs = true;
  r->verdict->at = at;
  va_start(args, format);
  vsnprintf(r->verdict->text, sizeof r->verdict->text, format, args);
  va_end(args);
}

static dibs__str text_of(const struct run *r, uint8_t name) {
  return dibs__str_of(r->names[name], strlen(r->names[name]));
}

/* ---- The two sides ---- */

static void side_join(struct side *s, size_t nr) {
  s->parties[nr] = party_at(s->uri);
  if (s->target->own_clocks && s->moved) s->target->skew(innermost(s->parties[nr]), s->moved);
}

static void side_begin(struct run *r, struct side *s) {
  for (size_t i = 0; i < PARTIES; i++) side_join(s, i);
  for (uint8_t n = 0; n < NAMES; n++) {
    s->mandates[n] = anchor_read(s->parties[0], dibs__bucket(text_of(r, n))).current;
    s->first_epoch[n] = s->mandates[n].epoch;
  }
}

static bool both(const struct run *r, uint32_t families, uint32_t caps) {
  bool have = true;
  for (int i = 0; i < 2; i++) {
    const struct dibs__identity *identity = &r->sides[i].parties[0]->identity;
    have = have && (identity->families & families) == families && (identity->caps & caps) == caps;
  }
  return have;
}

static void side_end(struct side *s) {
  for (size_t i = 0; i < PARTIES; i++) close_party(s->parties[i]);
}

static void side_move(struct side *s, int64_t ms) {
  s->moved += ms;
  if (!s->target->own_clocks) s->target->skew(innermost(s->parties[0]), ms);
  for (size_t i = 0; s->target->own_clocks && i < PARTIES; i++) s->target->skew(innermost(s->parties[i]), ms);
}

/* An orderly close removes waiters and offers on both sides; the two may notice a killed client at different times. */
static void side_close(struct side *s, size_t nr) {
  close_party(s->parties[nr]);
  side_join(s, nr);
}

/* ---- Requests ---- */

/* Ids differ between names, so that an event identifies both. */
static dibs__id id_for(uint8_t name, uint8_t id) {
  return id_of(name * IDS + id);
}

static dibs__fence pick_fence(const struct side *s, const struct step *step) {
  dibs__fence fence = s->grants[step->name][step->id].last;
  if (step->fence == FENCE_BEFORE) fence = s->grants[step->name][step->id].before;
  if (step->fence == FENCE_OFFERED) fence = s->grants[step->name][step->id].offered;
  if (step->fence == FENCE_OF_ANOTHER) fence = s->grants[step->name][(step->id + 1) % IDS].last;
  if (step->fence == FENCE_NONE || fence.v == 0) return DIBS__FENCE_NONE;
  /* By order: except within a block, the next number after a fence may be a fence of one store and not of the other. */
  bool within =
      step->kind < STEP_LOAD && step->fence == FENCE_LAST && step->fence_plus < s->grants[step->name][step->id].block;
  bool exact = s->by_order && !within;
  return dibs__fence_nth(fence, exact ? 0 : step->fence_plus);
}

static dibs__mandate pick_mandate(const struct side *s, const struct step *step) {
  dibs__mandate mandate = s->mandates[step->name];
  if (step->mandate == MANDATE_OLDER) mandate.epoch--;
  if (step->mandate == MANDATE_STRANGER) mandate.incarnation.b[3] ^= 0x55;
  if (step->mandate == MANDATE_NONE) mandate = (dibs__mandate){0};
  return mandate;
}

static void make_lease(const struct run *r, const struct side *s, const struct step *step, struct dibs__lease_op *op) {
  op->op.family = DIBS__FAM_LEASE;
  op->op.verb = (uint16_t)step->kind; /* the first five kinds have the order of the verbs */
  op->op.mandate = pick_mandate(s, step);
  op->name = text_of(r, step->name);
  op->owner = dibs__str_of(owners[step->id], strlen(owners[step->id]));
  op->id = id_for(step->name, step->id);
  op->mode = step->mode;
  op->slots = step->slots;
  op->ttl_ms = step->ttl_ms;
  op->want_block = step->block;
  op->queue = !step->try_only;
  op->now = step->now;
  if (step->kind == STEP_RENEW || step->kind == STEP_RELEASE) op->fence = pick_fence(s, step);
  if (step->with_ticket) op->ticket = s->grants[step->name][step->id].ticket;
}

static void make_record(const struct run *r, const struct side *s, const struct step *step,
                        struct dibs__record_op *op) {
  static const char *const data[] = {"", "one", "two", "three", "four", "five"};
  op->op.family = DIBS__FAM_RECORD;
  op->op.verb = (uint16_t)(step->kind - STEP_LOAD);
  op->guards = step->kind == STEP_SAVE ? DIBS__IF_FENCE : 0;
  op->op.flags = step->kind == STEP_LOAD ? DIBS__OP_READS : 0;
  op->key = text_of(r, step->name);
  op->id = id_for(step->name, step->id);
  op->fence = pick_fence(s, step);
  op->data = dibs__str_of(data[step->fence_plus], strlen(data[step->fence_plus]));
}

static void make(const struct run *r, const struct side *s, const struct step *step, union any_op *op) {
  memset(op, 0, sizeof *op);
  if (step->kind <= STEP_BREAK)
    make_lease(r, s, step, &op->lease);
  else
    make_record(r, s, step, &op->record);
  op->op.bucket = dibs__bucket(text_of(r, step->name));
  op->op.group = step->group && r->groups && !r->one_by_one ? BATCH_GROUP : 0;
  op->op.by = dibs__tick_add_ms(dibs__tick_now(), 5000);
}

static void learn(const struct run *r, struct side *s, const struct step *step, const union any_op *op) {
  dibs__fence *last = &s->grants[step->name][step->id].last;
  if (op->op.status == DIBS__MOVED) s->mandates[step->name] = op->op.has;
  if (op->op.family != DIBS__FAM_LEASE || step->kind > STEP_RENEW) return;
  if (step->group && r->groups && !r->one_by_one && op->op.status != DIBS_OK) return; /* the group was undone */
  if (op->op.status == DIBS__QUEUED) s->grants[step->name][step->id].ticket = op->lease.ticket;
  if (op->op.status != DIBS_OK || op->lease.fence.v == last->v) return;
  s->grants[step->name][step->id].before = *last;
  s->grants[step->name][step->id].block = op->lease.got_block;
  *last = op->lease.fence;
}

/* ---- Comparing ---- */

/* The position of this fence among those seen, and whether it was the largest when it was first seen. */
static uint64_t position_of(struct side *s, uint8_t name, dibs__fence fence) {
  size_t at = 0;
  bool largest = true;
  for (; at < s->seen_count[name] && s->seen[name][at].fence.v != fence.v; at++)
    largest = largest && dibs__fence_below(s->seen[name][at].fence, fence);
  if (at == s->seen_count[name]) {
    assert_true(at < SEEN);
    s->seen[name][at].fence = fence;
    s->seen[name][at].largest = largest;
    s->seen_count[name]++;
  }
  return 2 * at + s->seen[name][at].largest;
}

/* A fence relative to the first one seen in its bucket: stores begin at different numbers. */
static uint64_t relative(struct side *s, uint8_t name, dibs__fence fence) {
  uint32_t epoch = dibs__fence_epoch(fence), seq = dibs__fence_seq(fence);
  if (fence.v == 0) return 0;
  if (s->by_order) return position_of(s, name, fence);
  if (epoch == s->first_epoch[name] && s->first_seq[name] == 0) s->first_seq[name] = seq;
  if (epoch == s->first_epoch[name]) seq = seq - s->first_seq[name] + 1;
  return dibs__fence_make(epoch - s->first_epoch[name] + 1, seq).v;
}

static bool near(int64_t a, int64_t b) {
  return a - b <= TOLERANCE_MS && b - a <= TOLERANCE_MS;
}

/* The remaining time until then; INT64_MAX is unchanged. */
static int64_t left(const struct side *s, const struct step *step, dibs__when when) {
  return when.ms == INT64_MAX ? INT64_MAX : when.ms - s->parties[step->party]->reported.now.ms;
}

#define SAME(what, x, y)                                                                                               \
  do {                                                                                                                 \
    if ((x) != (y)) differ(r, at, "%s: %" PRIu64 " and %" PRIu64, what, (uint64_t)(x), (uint64_t)(y));                 \
  } while (0)
#define NEAR(what, x, y)                                                                                               \
  do {                                                                                                                 \
    int64_t x_ = (x), y_ = (y);                                                                                        \
    if (!near(x_, y_)) differ(r, at, "%s: in %" PRId64 " and in %" PRId64 " ms", what, x_, y_);                        \
  } while (0)

static void compare_lease(struct run *r, size_t at, const struct step *step, const struct dibs__lease_op *a,
                          const struct dibs__lease_op *b) {
  struct side *s = r->sides;
  bool granted = a->op.status == DIBS_OK && (step->kind == STEP_ACQUIRE || step->kind == STEP_RENEW);
  if (granted) {
    SAME("fence", relative(&s[0], step->name, a->fence), relative(&s[1], step->name, b->fence));
    SAME("block", a->got_block, b->got_block);
    SAME("slot", a->slot, b->slot);
    SAME("waiting", a->waiting, b->waiting);
    NEAR("until", left(&s[0], step, a->until), left(&s[1], step, b->until));
  }
  if (step->kind == STEP_BREAK && a->op.status == DIBS_OK)
    NEAR("until", left(&s[0], step, a->until), left(&s[1], step, b->until));
  if (step->kind == STEP_CANCEL) SAME("was", a->was, b->was);
  if (a->op.status == DIBS__QUEUED) SAME("a ticket", a->ticket != 0, b->ticket != 0);
  if (a->op.status == DIBS__QUEUED || a->op.status == DIBS_HELD)
    NEAR("recheck", left(&s[0], step, a->recheck), left(&s[1], step, b->recheck));
}

static void compare_record(struct run *r, size_t at, const struct step *step, const struct dibs__record_op *a,
                           const struct dibs__record_op *b) {
  if (a->op.status == DIBS_OK || a->op.status == DIBS_STALE)
    SAME("seen", relative(&r->sides[0], step->name, a->seen), relative(&r->sides[1], step->name, b->seen));
  SAME("version", a->version, b->version);
  SAME("data", a->got != NULL, b->got != NULL);
  if (a->got && b->got && (a->got_len != b->got_len || memcmp(a->got, b->got, a->got_len + 1) != 0))
    differ(r, at, "data: \"%s\" and \"%s\"", a->got, b->got);
}

static void compare(struct run *r, size_t at, const struct step *step, const union any_op *a, const union any_op *b) {
  r->verdict->run_count[step->kind]++;
  if (a->op.status >= 0 && a->op.status < 104) r->verdict->answered[a->op.status]++;
  if (a->op.status != b->op.status) differ(r, at, "%s and %s", status_name(a->op.status), status_name(b->op.status));
  if (r->verdict->differs) return;
  if (a->op.status == DIBS__MOVED)
    SAME("epoch", a->op.has.epoch - r->sides[0].first_epoch[step->name],
         b->op.has.epoch - r->sides[1].first_epoch[step->name]);
  if (a->op.family == DIBS__FAM_LEASE) compare_lease(r, at, step, &a->lease, &b->lease);
  if (a->op.family == DIBS__FAM_RECORD) compare_record(r, at, step, &a->record, &b->record);
}

/* ---- Offers ---- */

static void note_offer(struct run *r, struct side *s, const struct dibs__event *event) {
  for (uint8_t n = 0; n < NAMES; n++)
    for (uint8_t i = 0; i < IDS; i++) {
      if (event->what != DIBS__EV_OFFER || !dibs__id_equal(event->id, id_for(n, i))) continue;
      s->grants[n][i].offered = event->fence;
      if (s != &r->sides[0]) continue;
      r->offered_name = n;
      r->offered_id = i;
    }
}

static size_t index_of_seen(const struct side *s, uint8_t name, dibs__fence fence) {
  size_t at = 0;
  while (at < s->seen_count[name] && s->seen[name][at].fence.v != fence.v) at++;
  return at;
}

/* By order: one of the two may be old, and must not count as seen now. */
static bool same_offer(struct run *r, uint8_t name, dibs__fence a, dibs__fence b) {
  struct side *s = r->sides;
  if (s[0].by_order && index_of_seen(&s[0], name, a) != index_of_seen(&s[1], name, b)) return false;
  return relative(&s[0], name, a) == relative(&s[1], name, b);
}

/* Receives the events of both.  An offer that one of them did not report, or reported before, is forgotten. */
static void receive_offers(struct run *r) {
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < PARTIES; k++) {
      struct dibs__dstore *store = store_of(r->sides[i].parties[k]);
      struct dibs__event events[16];
      size_t count = 0;
      dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 1000);
      do {
        store->driver->wake(store); /* so that events() does not sleep */
        if (store->driver->events(store, events, 16, &count, by) != DIBS_OK) break;
        for (size_t e = 0; e < count; e++) note_offer(r, &r->sides[i], &events[e]);
      } while (count == 16);
    }
  for (uint8_t n = 0; n < NAMES; n++)
    for (uint8_t i = 0; i < IDS; i++) {
      dibs__fence *a = &r->sides[0].grants[n][i].offered, *b = &r->sides[1].grants[n][i].offered;
      if (a->v && b->v && same_offer(r, n, *a, *b)) continue;
      *a = *b = DIBS__FENCE_NONE;
    }
}

static struct step resolved(const struct run *r, const struct step *step) {
  struct step to = *step;
  if (!to.to_offered) return to;
  to.name = r->offered_name;
  to.id = r->offered_id;
  return to;
}

/* ---- Steps ---- */

/* The steps that both stores can run. */
static size_t resolve(const struct run *r, const struct step drawn[], size_t count, struct step steps[]) {
  size_t kept = 0;
  for (size_t k = 0; k < count; k++)
    if (r->records || drawn[k].kind <= STEP_BREAK) steps[kept++] = resolved(r, &drawn[k]);
  return kept;
}

static void run_joined(struct run *r, const struct step drawn[], size_t at, size_t count) {
  union any_op ops[2][JOINED_MAX];
  struct step steps[JOINED_MAX];
  count = resolve(r, drawn + at, count, steps);
  if (!count) return;
  for (int i = 0; i < 2; i++) {
    struct dibs__op *batch[JOINED_MAX];
    for (size_t k = 0; k < count; k++) {
      make(r, &r->sides[i], &steps[k], &ops[i][k]);
      batch[k] = &ops[i][k].op;
    }
    run_batch(r->sides[i].parties[steps[0].party], batch, count);
  }
  for (size_t k = 0; k < count; k++) compare(r, at + k, &steps[k], &ops[0][k], &ops[1][k]);
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < count; k++) {
      learn(r, &r->sides[i], &steps[k], &ops[i][k]);
      if (ops[i][k].op.family == DIBS__FAM_RECORD) free(ops[i][k].record.got);
    }
}

/* The same step as an anchor elsewhere does it. */
static struct dibs__anchor_op install_next(struct party *p, uint16_t bucket, dibs__mandate from) {
  from.epoch++;
  return anchor_install(p, bucket, from);
}

static void run_anchor(struct run *r, const struct step *step, size_t at) {
  struct dibs__anchor_op got[2];
  for (int i = 0; i < 2; i++) {
    struct side *s = &r->sides[i];
    uint16_t bucket = dibs__bucket(text_of(r, step->name));
    struct party *p = s->parties[step->party];
    if (step->kind == STEP_ANCHOR_READ)
      got[i] = anchor_read(p, bucket);
    else if (open_as_tier())
      got[i] = install_next(p, bucket, pick_mandate(s, step));
    else
      got[i] = anchor_next(p, bucket, pick_mandate(s, step));
  }
  r->verdict->run_count[step->kind]++;
  SAME("status", got[0].op.status, got[1].op.status);
  SAME("epoch", got[0].current.epoch - r->sides[0].first_epoch[step->name],
       got[1].current.epoch - r->sides[1].first_epoch[step->name]);
  SAME("served", got[0].served, got[1].served);
}

struct lines {
  const struct run *r;
  struct side *side;
  size_t count;
  struct line {
    char text[160];
    int64_t left_ms;
  } at[NAMES * (IDS + 16 + 1)];
};

static uint8_t number_of_name(const struct run *r, dibs__str name) {
  uint8_t n = 0;
  while (n < NAMES - 1 && !dibs__str_equal(name, text_of(r, n))) n++;
  return n;
}

static int add_line(const struct dibs__lease_row *row, void *user) {
  struct lines *l = user;
  if (l->count == sizeof l->at / sizeof l->at[0]) return 1;
  struct line *to = &l->at[l->count++];
  uint8_t n = number_of_name(l->r, row->name);
  dibs__str owner = row->owner;
  snprintf(to->text, sizeof to->text, "name %u %.*s state %u mode %u slots %u slot %u ttl %u ahead %u fence %" PRIx64,
           n, (int)owner.len, owner.p, row->state, row->mode, row->slots, row->slot, row->ttl_ms, row->ahead,
           relative(l->side, n, row->fence));
  to->left_ms = row->left_ms;
  return 0;
}

static void read_lines(struct run *r, struct side *s, const struct step *step, struct lines *l) {
  struct party *p = s->parties[step->party];
  char prefix[40];
  snprintf(prefix, sizeof prefix, "%s", r->names[0]);
  struct dibs__list list = {.row = add_line, .user = l};
  if (step->kind == STEP_LIST_NAME)
    list.name = text_of(r, step->name);
  else
    list.prefix = dibs__str_of(prefix, strlen(prefix) - 1); /* the name without its digit */
  dibs__status status = DIBS_UNAVAILABLE;
  for (int i = 0; i < 500 && status == DIBS_UNAVAILABLE; i++) {
    l->count = 0;
    status = store_of(p)->driver->list(p->session, &list, dibs__tick_add_ms(dibs__tick_now(), 5000), &p->reported);
  }
  if (status != DIBS_OK) fail_msg("list: %s: %s", status_name(status), p->reported.text);
}

static int by_text(const void *a, const void *b) {
  return strcmp(((const struct line *)a)->text, ((const struct line *)b)->text);
}

/* `ahead` gives the order of waiters; holders have no order. */
static void run_list(struct run *r, const struct step *step, size_t at) {
  struct lines both[2] = {{.r = r, .side = &r->sides[0]}, {.r = r, .side = &r->sides[1]}};
  for (int i = 0; i < 2; i++) {
    read_lines(r, &r->sides[i], step, &both[i]);
    qsort(both[i].at, both[i].count, sizeof both[i].at[0], by_text);
  }
  r->verdict->run_count[step->kind]++;
  for (size_t i = 0; i < both[0].count && i < both[1].count; i++) {
    const struct line *a = &both[0].at[i], *b = &both[1].at[i];
    if (strcmp(a->text, b->text) != 0) differ(r, at, "line %zu: %s\n          and %s", i, a->text, b->text);
    NEAR("left", a->left_ms, b->left_ms);
  }
  SAME("lines", both[0].count, both[1].count);
}

static void run_one(struct run *r, const struct step *step, size_t at) {
  struct side *s = r->sides;
  switch (step->kind) {
  case STEP_ANCHOR_READ:
  case STEP_ANCHOR_NEXT:
    run_anchor(r, step, at);
    return;
  case STEP_LIST_NAME:
  case STEP_LIST_ALL:
    run_list(r, step, at);
    return;
  case STEP_TIME:
    for (int i = 0; i < 2; i++) side_move(&s[i], step->ms);
    break;
  case STEP_CLOSE:
    if (s[1].target->lazy_close) return;
    for (int i = 0; i < 2; i++) side_close(&s[i], step->party);
    break;
  case STEP_USE_UP:
    r->one_by_one = true;
    for (int i = 0; i < 2 && s[0].target->use_up && s[1].target->use_up && !s[0].by_order; i++)
      s[i].target->use_up(s[i].parties[step->party], dibs__bucket(text_of(r, step->name)), step->fence_plus);
    break;
  default:
    fail_msg("no function runs step %d", (int)step->kind);
  }
  r->verdict->run_count[step->kind]++;
}

void history_run(const char *reference, const char *other, uint64_t nr, const struct step steps[], size_t count,
                 struct verdict *verdict) {
  struct run *r = calloc(1, sizeof *r);
  assert_non_null(r);
  *verdict = (struct verdict){.differs = false};
  r->nr = nr;
  r->verdict = verdict;
  r->sides[0].label = "memory";
  r->sides[1].label = "other";
  r->sides[0].uri = reference;
  r->sides[1].uri = other;
  r->sides[0].target = contract_target_of("memory");
  r->sides[1].target = target();
  for (int i = 0; i < 2; i++) r->sides[i].by_order = target()->clocked;
  for (int n = 0; n < NAMES; n++) snprintf(r->names[n], sizeof r->names[n], "history.%" PRIu64 ".%d", nr, n);
  for (int i = 0; i < 2; i++) side_begin(r, &r->sides[i]);
  r->records = both(r, 1u << DIBS__FAM_RECORD, 0);
  r->groups = both(r, 0, DIBS__CAP_ATOMIC);
  dibs__tick began = dibs__tick_now();
  for (size_t at = 0, end; at < count && !verdict->differs; at = end) {
    for (end = at + 1; end < count && steps[end - 1].joins && !r->one_by_one;) end++;
    if (steps[at].kind <= STEP_SAVE)
      run_joined(r, steps, at, end - at);
    else
      run_one(r, &steps[at], at);
    receive_offers(r);
  }
  verdict->untimely = dibs__tick_left_ms(began, dibs__tick_now()) > TOO_LONG_MS;
  for (int i = 0; i < 2; i++) side_end(&r->sides[i]);
  free(r);
}
