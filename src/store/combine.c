/* SPDX-License-Identifier: MIT */
/*
 * The combiner.  Two queues, urgent and ordinary; a few seats (sessions).  Whoever finds a seat free leads one batch on
 * it, then passes the seat to the first blocking caller whose operation waits for it, or leaves it free and rouses the
 * receiver if only operations without a waiting caller are left; only then are answers handed out.
 *
 * Invariant, whenever the lock is free: an operation that is pending and has a free seat has somebody on the way to
 * lead it: its caller, which looks before it sleeps, or the receiver, which was roused and looks before it sleeps.
 */
#include "store/core_inside.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool is_urgent(const struct dibs__op *op) {
  return (op->flags & DIBS__OP_URGENT) != 0;
}

static void queue_put(struct dibs__queue *queue, struct dibs__op *op) {
  op->next = NULL;
  if (queue->last)
    queue->last->next = op;
  else
    queue->first = op;
  queue->last = op;
}

static void queue_put_first(struct dibs__queue *queue, struct dibs__op *op) {
  op->next = queue->first;
  queue->first = op;
  if (!queue->last) queue->last = op;
}

static struct dibs__op *queue_take(struct dibs__queue *queue, struct dibs__op *before) {
  struct dibs__op *op = before ? before->next : queue->first;
  if (before)
    before->next = op->next;
  else
    queue->first = op->next;
  if (queue->last == op) queue->last = before;
  op->next = NULL;
  return op;
}

static bool lane_travels_locked(const struct dibs__core *core, const struct seat *but, uint32_t lane) {
  if (lane == 0 || core->seat_count == 1) return false;
  for (uint32_t s = 0; s < core->seat_count; s++) {
    const struct seat *seat = &core->seats[s];
    if (seat == but) continue;
    for (uint32_t i = 0; i < seat->count; i++)
      if (seat->ops[i]->lane == lane) return true;
  }
  return false;
}

static bool seat_serves(const struct seat *seat, bool urgent) {
  return urgent ? !seat->ordinary_only : !seat->urgent_only;
}

/* What follows the operation and its group, which was handed in as one list. */
static struct dibs__op *behind(const struct dibs__op *op) {
  struct dibs__op *next = op->next;
  while (op->group != 0 && next && next->group == op->group) next = next->next;
  return next;
}

/* An operation and its group wait for the lanes of all of them. */
static bool must_wait_locked(const struct dibs__core *core, const struct seat *but, const struct dibs__op *op) {
  for (const struct dibs__op *end = behind(op); op != end; op = op->next)
    if (lane_travels_locked(core, but, op->lane)) return true;
  return false;
}

/* A crowd that waits for one lane is passed over by a comparison each. */
static struct dibs__op *first_free_locked(struct dibs__core *core, const struct seat *seat, struct dibs__op *op) {
  uint32_t travels = 0;
  for (; op; op = behind(op)) {
    if (travels != 0 && op->lane == travels) continue;
    if (!must_wait_locked(core, seat, op)) return op;
    travels = op->group == 0 ? op->lane : 0;
  }
  return NULL;
}

/* The first operation that could travel on this seat now. */
static struct dibs__op *eligible_locked(struct dibs__core *core, const struct seat *seat) {
  struct dibs__op *op = seat_serves(seat, true) ? first_free_locked(core, seat, core->urgent.first) : NULL;
  if (!op && seat_serves(seat, false)) op = first_free_locked(core, seat, core->ordinary.first);
  return op;
}

/* A batch with twice as many costs little more than one; two batches side by side cost the server twice the work.  So
 * what has no lane waits for a batch of its kind that is under way, unless that takes long.  From when on it need not.
 */
static dibs__tick split_at_locked(const struct dibs__core *core, const struct seat *seat, const struct dibs__op *op) {
  dibs__tick at = DIBS__TICK_ZERO;
  for (uint32_t s = 0; s < core->seat_count && op->lane == 0; s++) {
    const struct seat *other = &core->seats[s];
    if (other == seat || !other->busy || other->urgent_only != seat->urgent_only) continue;
    dibs__tick split = {other->since.ns + other->split_ns};
    if (dibs__tick_before(at, split)) at = split;
  }
  return at;
}

static struct seat *find_locked(struct dibs__core *core, dibs__tick *held_back) {
  *held_back = DIBS__TICK_NEVER;
  if (!core->urgent.first && !core->ordinary.first) return NULL;
  for (uint32_t s = 0; s < core->seat_count; s++) {
    struct seat *seat = &core->seats[s];
    const struct dibs__op *op = seat->busy ? NULL : eligible_locked(core, seat);
    if (!op) continue;
    dibs__tick split = split_at_locked(core, seat, op);
    if (split.ns == 0 || !dibs__tick_before(dibs__tick_now(), split)) return seat;
    *held_back = dibs__tick_min(*held_back, split);
  }
  return NULL;
}

struct seat *dibs__seat_find_locked(struct dibs__core *core) {
  dibs__tick held_back;
  return find_locked(core, &held_back);
}

dibs__tick dibs__held_back_locked(struct dibs__core *core) {
  dibs__tick held_back;
  return find_locked(core, &held_back) ? DIBS__TICK_ZERO : held_back;
}

static void take_from_locked(struct dibs__core *core, struct seat *seat, struct dibs__queue *queue) {
  struct dibs__op *before = NULL;
  for (struct dibs__op *op = queue->first; op;) {
    struct dibs__op *end = behind(op);
    uint32_t size = 0;
    for (const struct dibs__op *one = op; one != end; one = one->next) size++;
    assert(size <= seat->room);
    if (seat->count + size > seat->room) return;
    if (must_wait_locked(core, seat, op)) {
      for (before = op; before->next != end;) before = before->next;
      op = end;
      continue;
    }
    for (; size > 0; size--) {
      op = queue_take(queue, before);
      core->pending--;
      op->state = OP_SENT | (op->state & ~0xffu);
      op->status = DIBS_UNKNOWN;
      seat->laned = seat->laned || op->lane != 0;
      seat->ops[seat->count++] = op;
    }
    op = end;
  }
}

static void take_batch_locked(struct dibs__core *core, struct seat *seat) {
  if (seat_serves(seat, true)) take_from_locked(core, seat, &core->urgent);
  if (seat_serves(seat, false)) take_from_locked(core, seat, &core->ordinary);
}

/* Threads that were answered together come back together, a moment after each other.  A leader that left at once would
 * carry one operation a transaction; so it lets as many come as came lately, by giving the processor away that often,
 * or, where a batch is dear (a server), for a small part of what it costs.  A caller alone is a crowd of one: it never
 * does; nor is it done where a batch costs less than the wait. */
static void gather_locked(struct dibs__core *core, struct seat *seat) {
  if (seat->solo_ns < SOLO_NS || seat->brief || core->pending >= seat->crowd) return;
  int64_t patience = seat->solo_ns / GATHER_PART < GATHER_NS ? seat->solo_ns / GATHER_PART : GATHER_NS;
  dibs__tick until = {dibs__tick_now().ns + patience};
  for (uint32_t turns = 0; core->pending < seat->crowd; turns++) {
    if (turns >= seat->crowd && !dibs__tick_before(dibs__tick_now(), until)) return;
    dibs__mutex_unlock(&core->lock);
    dibs__yield();
    dibs__mutex_lock(&core->lock);
  }
}

static void count_crowd_locked(struct dibs__core *core, struct seat *seat) {
  uint32_t came = 0;
  for (uint32_t i = 0; i < seat->count; i++) came += seat->ops[i]->call != NULL;
  came += core->pending;
  if (came >= seat->crowd) {
    seat->crowd = came < CROWD_MAX ? came : CROWD_MAX;
    seat->thin = 0;
  } else if (++seat->thin >= CROWD_THIN) {
    seat->thin = 0;
    seat->crowd -= (seat->crowd - came + 3) / 4;
  }
  if (seat->crowd == 1) seat->crowd = 0;
}

static dibs__tick batch_deadline(const struct seat *seat, dibs__tick now) {
  dibs__tick by = dibs__tick_add_ms(now, DIBS__IO_MS);
  for (uint32_t i = 0; i < seat->count; i++) by = dibs__tick_min(by, seat->ops[i]->by);
  /* What waited past its own deadline must not starve its neighbours: it gets one more short try with them. */
  return dibs__tick_before(by, dibs__tick_add_ms(now, 10)) ? dibs__tick_add_ms(now, 10) : by;
}

static dibs__status seat_connect(struct dibs__core *core, struct seat *seat, dibs__tick now, dibs__tick by,
                                 struct dibs__said *said) {
  if (seat->session) return DIBS_OK;
  if (dibs__tick_before(now, seat->retry_at)) {
    dibs__say(said, "%s can't be reached; the next attempt is in %lld ms", core->uri.shown,
              (long long)dibs__tick_left_ms(now, seat->retry_at));
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = dibs__core_connect(core, by, &seat->session, said);
  if (status == DIBS_OK) {
    seat->failures = 0;
    return DIBS_OK;
  }
  int64_t pause = RETRY_MIN_MS;
  for (uint32_t i = 0; i < seat->failures && pause < RETRY_MAX_MS; i++) pause *= 2;
  seat->failures++;
  seat->retry_at = dibs__tick_add_ms(dibs__tick_now(), pause);
  return status;
}

void dibs__seat_drop(struct dibs__core *core, struct seat *seat) {
  if (!seat->session) return;
  dibs__core_disconnect(core, seat->session);
  seat->session = NULL;
}

/* Towards the median: a leader that was preempted in the middle must not count for more than one. */
static void time_solo(struct seat *seat, int64_t took_ns) {
  int64_t step = seat->solo_ns / 16 + 100;
  if (seat->solo_ns == 0) seat->solo_ns = took_ns;
  seat->solo_ns += took_ns > seat->solo_ns ? step : -step;
}

static void carry(struct dibs__core *core, struct seat *seat, struct dibs__said *said) {
  dibs__tick now = dibs__tick_now();
  dibs__tick by = batch_deadline(seat, now);
  if (seat->brief) by = dibs__tick_min(by, dibs__tick_add_ms(now, LEND_MS));
  *said = (struct dibs__said){0};
  seat->sent = now;
  dibs__status status = seat_connect(core, seat, now, by, said);
  bool sent = status == DIBS_OK;
  if (sent) status = core->store->driver->run(seat->session, seat->ops, seat->count, by, said);
  int64_t took = dibs__tick_now().ns - now.ns;
  /* Many cost no more apiece than one alone does. */
  if (seat->count == 1 || took / seat->count > seat->solo_ns) time_solo(seat, took / seat->count);
  if (status == DIBS_OK) return;
  seat->put_back = seat->brief && status == DIBS_UNAVAILABLE && !said->dead;
  for (uint32_t i = 0; i < seat->count; i++)
    if (!sent || status != DIBS_UNKNOWN) seat->ops[i]->status = status;
  if (sent && said->dead) dibs__seat_drop(core, seat);
}

/* Whether the operation is to be asked again under the mandate that it was told. */
static bool follows(struct dibs__op *op) {
  if (op->status != DIBS__MOVED || !(op->flags & DIBS__OP_FOLLOWS) || op->has.epoch == 0) return false;
  uint32_t moves = op->state >> 8;
  return moves < MOVES_MAX;
}

/* Nothing was done: as if it had never left, in the same order. */
static void put_back_locked(struct dibs__core *core, struct seat *seat) {
  while (seat->count > 0) {
    struct dibs__op *op = seat->ops[--seat->count];
    op->state = OP_PENDING | (op->state & ~0xffu);
    queue_put_first(is_urgent(op) ? &core->urgent : &core->ordinary, op);
    core->pending++;
  }
  seat->put_back = false;
}

/* Sorts what came back: to be asked again, or to be handed out (as a list, in order). */
static struct dibs__op *sort_locked(struct dibs__core *core, struct seat *seat, const struct dibs__said *said) {
  struct dibs__queue answered = {0};
  core->counts.batches++;
  core->counts.operations += seat->count;
  core->counts.transactions += said->commits;
  count_crowd_locked(core, seat);
  if (seat->put_back) {
    put_back_locked(core, seat);
    return NULL;
  }
  if (said->text[0]) memcpy(core->trouble, said->text, sizeof core->trouble);
  for (uint32_t i = 0; i < seat->count; i++) {
    struct dibs__op *op = seat->ops[i];
    op->at = said->now;
    op->sent = seat->sent;
    if (op->status == DIBS__MOVED && op->has.epoch != 0) core->mandates[op->bucket] = op->has;
    if (follows(op)) continue;
    op->state = OP_ANSWERED;
    queue_put(&answered, op);
  }
  for (uint32_t i = seat->count; i-- > 0;) { /* from the last on, so that they keep their order */
    struct dibs__op *op = seat->ops[i];
    if (op->state == OP_ANSWERED) continue;
    op->mandate = op->has;
    op->state = OP_PENDING | ((op->state & ~0xffu) + 0x100u);
    queue_put_first(is_urgent(op) ? &core->urgent : &core->ordinary, op);
    core->pending++;
  }
  seat->count = 0;
  return answered.first;
}

/* Names who leads next on the seat.  *woken: a call to wake.  true: the receiver must be roused.
 *
 * A lane that came back may be what an operation on another seat waited for: nobody is on the way to lead that. */
static bool pass_locked(struct dibs__core *core, struct seat *seat, struct dibs__call **woken) {
  *woken = NULL;
  bool others = seat->laned && dibs__seat_find_locked(core) != NULL;
  seat->laned = false;
  struct dibs__queue *queues[2] = {seat_serves(seat, true) ? &core->urgent : NULL,
                                   seat_serves(seat, false) ? &core->ordinary : NULL};
  for (int q = 0; q < 2; q++) {
    for (struct dibs__op *op = queues[q] ? queues[q]->first : NULL; op; op = behind(op)) {
      if (must_wait_locked(core, seat, op)) continue;
      if (!op->call) {
        others = true;
      } else if (!op->call->seat) {
        op->call->seat = seat;
        *woken = op->call;
        atomic_fetch_add(&op->call->word, CALL_STEP);
        return others;
      }
    }
  }
  seat->busy = false;
  return others;
}

/* All of them are done; the last one first.  Waking is most of the work of answering a crowd: of a large one each
 * caller wakes the next of its chain, who was marked before.  Only addresses are used of those that are marked: they
 * may be gone. */
static void wake_all(struct dibs__call *last, uint32_t count) {
  uint32_t chain = count >= CHAIN_FROM ? CHAIN : 1, at = 0;
  struct dibs__call *behind = NULL;
  for (struct dibs__call *call = last; call; behind = call, call = call->before, at++)
    if (at % chain != 0) call->then = &behind->word;
  at = 0;
  for (struct dibs__call *call = last, *before; call; call = before) {
    before = call->before;
    bool head = ++at % chain == 0 || !before;
    dibs__word *word = &call->word;
    atomic_fetch_or(word, CALL_DONE);
    if (head) dibs__word_wake(word, 1, false);
  }
}

/* `mine` is the leader's own call: it need not be woken. */
static void hand_out(struct dibs__op *list, const struct dibs__call *mine) {
  struct dibs__call *last = NULL;
  uint32_t count = 0;
  for (struct dibs__op *op = list, *next; op; op = next) {
    next = op->next;
    struct dibs__call *call = op->call;
    op->call = NULL;
    op->next = NULL;
    op->state = OP_IDLE;
    op->done(op); /* the operation may be handed in again, or be gone, from here on */
    if (!call || atomic_fetch_sub(&call->left, 1) != 1) continue;
    if (call == mine) {
      atomic_fetch_or(&call->word, CALL_DONE);
      continue;
    }
    call->before = last;
    last = call;
    count++;
  }
  wake_all(last, count);
}

/* The caller has seen that it is done. */
static void wake_next(const struct dibs__call *call) {
  if (call->then) dibs__word_wake(call->then, 1, false);
}

static void pass_on(struct dibs__core *core, struct seat *seat) {
  struct dibs__call *woken;
  dibs__mutex_lock(&core->lock);
  bool rouse = pass_locked(core, seat, &woken);
  dibs__mutex_unlock(&core->lock);
  if (woken) dibs__word_wake(&woken->word, 1, false);
  if (rouse) dibs__service_rouse(core, DIBS__TICK_ZERO);
}

void dibs__lead_locked(struct dibs__core *core, struct seat *seat, const struct dibs__call *mine) {
  dibs__shield shield;
  struct dibs__said said;
  struct dibs__call *woken;
  seat->busy = true;
  seat->since = dibs__tick_now();
  seat->split_ns = SPLIT_SOLOS * seat->solo_ns;
  if (seat->split_ns < SPLIT_MIN_MS * DIBS__NS_PER_MS) seat->split_ns = SPLIT_MIN_MS * DIBS__NS_PER_MS;
  if (seat->split_ns > SPLIT_MAX_MS * DIBS__NS_PER_MS) seat->split_ns = SPLIT_MAX_MS * DIBS__NS_PER_MS;
  gather_locked(core, seat);
  take_batch_locked(core, seat);
  if (seat->count == 0) { /* somebody else carried it meanwhile */
    seat->brief = false;
    dibs__mutex_unlock(&core->lock);
    pass_on(core, seat);
    return;
  }
  dibs__mutex_unlock(&core->lock);
  dibs__shield_raise(&shield);
  carry(core, seat, &said);

  dibs__mutex_lock(&core->lock);
  struct dibs__op *answered = sort_locked(core, seat, &said);
  seat->brief = false;
  bool rouse = pass_locked(core, seat, &woken);
  dibs__mutex_unlock(&core->lock);
  /* The successor runs while we hand out answers.  `woken` can't have returned: one of its operations is pending. */
  if (woken) dibs__word_wake(&woken->word, 1, false);
  if (rouse) dibs__service_rouse(core, DIBS__TICK_ZERO);
  if (said.untidy && core->hooks.untidy) core->hooks.untidy(core->hooks.room);
  hand_out(answered, mine);
  core->hooks.handed(core->hooks.room);
  dibs__shield_lower(&shield);
}

/* Two callers may have chosen the same number. */
static void number_groups_locked(struct dibs__core *core, struct dibs__op *list) {
  uint32_t given = 0, drawn = 0;
  for (struct dibs__op *op = list; op; op = op->next) {
    if (op->group != 0 && op->group != given) {
      drawn = ++core->groups;
      if (drawn == 0) drawn = ++core->groups;
    }
    given = op->group;
    if (given != 0) op->group = drawn;
  }
}

static uint32_t enqueue_locked(struct dibs__core *core, struct dibs__op *list, struct dibs__call *call) {
  uint32_t count = 0;
  number_groups_locked(core, list);
  for (struct dibs__op *op = list, *next; op; op = next) {
    next = op->next;
    assert((op->state & 0xff) == OP_IDLE);
    op->state = OP_PENDING;
    op->call = call;
    if (op->mandate.epoch == 0) op->mandate = core->mandates[op->bucket];
    queue_put(is_urgent(op) ? &core->urgent : &core->ordinary, op);
    core->pending++;
    count++;
  }
  return count;
}

/* The caller leaves: takes back what was not sent, lets go of what was.  What is just being handed out stays ours. */
static struct dibs__op *leave_queue_locked(struct dibs__core *core, struct dibs__queue *queue, struct dibs__call *call,
                                           uint32_t *taken) {
  struct dibs__queue back = {0};
  struct dibs__op *before = NULL;
  for (struct dibs__op *op = queue->first; op;) {
    if (op->call != call) {
      before = op;
      op = op->next;
      continue;
    }
    op = queue_take(queue, before);
    core->pending--;
    op->status = DIBS_TIMEOUT;
    op->state = OP_IDLE;
    op->call = NULL;
    queue_put(&back, op);
    (*taken)++;
    op = before ? before->next : queue->first;
  }
  return back.first;
}

static uint32_t leave_seats_locked(struct dibs__core *core, struct dibs__call *call) {
  uint32_t left = 0;
  for (uint32_t s = 0; s < core->seat_count; s++)
    for (uint32_t i = 0; i < core->seats[s].count; i++)
      if (core->seats[s].ops[i]->call == call) {
        core->seats[s].ops[i]->call = NULL;
        left++;
      }
  return left;
}

static void call_done(struct dibs__op *list) {
  for (struct dibs__op *op = list, *next; op; op = next) {
    next = op->next;
    op->next = NULL;
    op->done(op);
  }
}

/* false: all were answered after all. */
static bool leave(struct dibs__core *core, struct dibs__call *call) {
  uint32_t gone = 0;
  dibs__mutex_lock(&core->lock);
  struct dibs__op *urgent = leave_queue_locked(core, &core->urgent, call, &gone);
  struct dibs__op *ordinary = leave_queue_locked(core, &core->ordinary, call, &gone);
  gone += leave_seats_locked(core, call);
  struct seat *seat = call->seat;
  call->seat = NULL;
  dibs__mutex_unlock(&core->lock);
  if (seat) pass_on(core, seat);
  call_done(urgent);
  call_done(ordinary);
  if (gone == 0) return false;
  /* The rest is being handed out this moment by a thread that will touch the call until CALL_DONE. */
  if (atomic_fetch_sub(&call->left, gone) == gone) return true;
  while (!(atomic_load(&call->word) & CALL_DONE)) {
    uint32_t seen = atomic_load(&call->word);
    if (!(seen & CALL_DONE)) dibs__word_wait(&call->word, seen, DIBS__TICK_NEVER, false);
  }
  wake_next(call);
  return true;
}

bool dibs__core_run(struct dibs__core *core, struct dibs__op *list, dibs__tick by) {
  struct dibs__call call = {0};
  if (core->direct) {
    dibs__core_direct(core, list);
    return true;
  }
  dibs__mutex_lock(&core->lock);
  atomic_store_explicit(&call.left, enqueue_locked(core, list, &call), memory_order_relaxed);
  for (;;) {
    /* Lock held.  A seat that was given, or any that is free for what waits. */
    dibs__tick look = DIBS__TICK_NEVER;
    struct seat *seat = call.seat ? call.seat : find_locked(core, &look);
    call.seat = NULL;
    if (seat) {
      dibs__lead_locked(core, seat, &call);
    } else {
      uint32_t seen = atomic_load(&call.word);
      dibs__mutex_unlock(&core->lock);
      while (atomic_load(&call.word) == seen && !(seen & CALL_DONE)) {
        if (dibs__word_wait(&call.word, seen, dibs__tick_min(by, look), false)) continue;
        if (dibs__tick_before(look, by)) break; /* and leads, if it has to */
        if (leave(core, &call)) return false;
        by = DIBS__TICK_NEVER; /* the answers are on their way */
      }
    }
    if (atomic_load(&call.word) & CALL_DONE) break;
    dibs__mutex_lock(&core->lock);
  }
  /* A seat given for an operation that another leader carried meanwhile.  No lock: it was given before the operation
   * was taken, and CALL_DONE came after that. */
  wake_next(&call);
  if (call.seat) pass_on(core, call.seat);
  return true;
}

void dibs__core_leave(struct dibs__core *core, struct dibs__op *list) {
  dibs__mutex_lock(&core->lock);
  enqueue_locked(core, list, NULL);
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_lend(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  struct seat *seat = dibs__seat_find_locked(core);
  if (seat && (core->identity.caps & DIBS__CAP_BRIEF)) {
    seat->brief = true;
    dibs__lead_locked(core, seat, NULL);
    return;
  }
  dibs__tick look = seat ? DIBS__TICK_ZERO : dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
}

void dibs__core_start(struct dibs__core *core, struct dibs__op *list) {
  dibs__mutex_lock(&core->lock);
  enqueue_locked(core, list, NULL);
  dibs__tick look = dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look); /* else whoever leads now will */
}
