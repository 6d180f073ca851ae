/* SPDX-License-Identifier: MIT */
/*
 * The combiner; opening and closing a store for the layers above; the smaller functions of combiner.h.
 *
 * There are two queues, urgent and ordinary, and a few slots (each for one session).  A thread that finds a slot free
 * leads one batch on it.  Then it passes the slot to the first blocking caller whose operation waits for it; if only
 * operations without a waiting caller are left, it leaves the slot free and rouses the receiver.  Only after that does
 * it deliver answers.
 *
 * Invariant, whenever the lock is free: if an operation is pending and has a free slot, a thread is about to lead it:
 * its caller, which inspects the queues before it sleeps, or the receiver, which was roused and inspects them before it
 * sleeps.
 */
#include "store/combiner_impl.h"
#include "store/family.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *dibs__core_uri(const struct dibs__core *core) {
  return core->uri.shown;
}
uint32_t dibs__core_caps(const struct dibs__core *core) {
  return core->identity.caps;
}
uint32_t dibs__core_families(const struct dibs__core *core) {
  return core->identity.families;
}

const struct dibs__identity *dibs__core_identity(const struct dibs__core *core) {
  return &core->identity;
}

static bool one_at_a_time(const struct dibs__core *core) {
  return !(core->identity.caps & DIBS__CAP_PARALLEL);
}

dibs__status dibs__core_connect(struct dibs__core *core, dibs__tick by, struct dibs__session **session,
                                struct dibs__result *result) {
  struct dibs__identity identity;
  if (one_at_a_time(core)) dibs__mutex_lock(&core->connecting);
  dibs__tick began = dibs__tick_now();
  dibs__status status = core->store->driver->connect(core->store, by, session, &identity, result);
  if (one_at_a_time(core)) dibs__mutex_unlock(&core->connecting);
  dibs__core_learn(core, status, false, began, by);
  return status;
}

void dibs__core_disconnect(struct dibs__core *core, struct dibs__session *session) {
  if (one_at_a_time(core)) dibs__mutex_lock(&core->connecting);
  core->store->driver->disconnect(session);
  if (one_at_a_time(core)) dibs__mutex_unlock(&core->connecting);
}

static void free_slots(struct dibs__core *core) {
  for (uint32_t s = 0; s < core->slot_count; s++) {
    dibs__slot_drop(core, &core->slots[s]);
    free(core->slots[s].ops);
  }
}

/* Each slot has memory for a whole batch, so that carrying one never allocates.  false: out of memory. */
static bool make_slots(struct dibs__core *core) {
  bool parallel = (core->identity.caps & DIBS__CAP_PARALLEL) && core->identity.max_sessions > 0;
  uint32_t capacity = core->identity.max_batch ? core->identity.max_batch : BATCH_DEFAULT;
  core->slot_count = 1;
  if (parallel)
    core->slot_count = core->identity.max_sessions < CONN_SLOTS_MAX ? core->identity.max_sessions : CONN_SLOTS_MAX;
  core->slots[0].open = true;
  for (uint32_t s = 0; s < core->slot_count; s++) {
    struct slot *slot = &core->slots[s]; /* the first slot has the session that open made */
    slot->urgent_only = parallel && s == 1;
    slot->ordinary_only = parallel && s != 1;
    slot->capacity = capacity;
    slot->ops = calloc(capacity, sizeof(struct dibs__op *));
    if (!slot->ops) return false;
  }
  return true;
}

dibs__status dibs__core_open(const char *uri, const char *module_path, const struct dibs__core_hooks *hooks,
                             struct dibs__core **out, struct dibs__result *result) {
  *out = NULL;
  struct dibs__core *core = calloc(1, sizeof *core);
  if (!core) return DIBS_NO_MEMORY;
  dibs__mutex_init(&core->connecting);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  if (hooks->open_by.ns) by = dibs__tick_min(by, hooks->open_by);
  dibs__status status = dibs__uri_parse(uri, &core->uri, result);
  if (status != DIBS_OK) goto no_uri;
  core->uri.module_path = module_path;
  core->uri.owner = hooks->owner;
  status = dibs__chain_open(&core->uri, module_path, by, &core->chain, result);
  if (status != DIBS_OK) goto no_chain;
  core->store = core->chain.stores[0];
  status = core->store->driver->connect(core->store, by, &core->slots[0].session, &core->identity, result);
  if (status != DIBS_OK) goto no_session;
  if (!make_slots(core)) {
    status = DIBS_NO_MEMORY;
    dibs__set_message(result, "out of memory for the sessions of %s", core->uri.shown);
    goto no_slots;
  }
  core->hooks = *hooks;
  dibs__mutex_init(&core->lock);
  dibs__mutex_init(&core->list_lock);
  for (size_t b = 0; b < DIBS__BUCKETS; b++) core->mandates[b] = core->identity.mandate;
  *out = core;
  return DIBS_OK;

no_slots:
  free_slots(core);
no_session:
  dibs__chain_close(&core->chain);
no_chain:
  dibs__uri_free(&core->uri);
no_uri:
  free(core);
  return status;
}

void dibs__core_close(struct dibs__core *core) {
  if (core->direct) { /* everything but the session belongs to another core */
    core->store->driver->disconnect(core->direct);
  } else {
    dibs__core_tidy(core);
    if (core->list_session) core->store->driver->disconnect(core->list_session);
    free_slots(core);
    dibs__chain_close(&core->chain);
    dibs__uri_free(&core->uri);
  }
  dibs__mutex_destroy(&core->lock);
  dibs__mutex_destroy(&core->list_lock);
  dibs__mutex_destroy(&core->connecting);
  free(core);
}

bool dibs__core_tidy(struct dibs__core *core) {
  if (core->store->driver->tidy) core->store->driver->tidy(core->store);
  return dibs__slots_close_idle(core);
}

void dibs__core_count(struct dibs__core *core, struct dibs__core_counts *counts) {
  dibs__mutex_lock(&core->lock);
  *counts = core->counts;
  counts->pending = core->pending;
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_trouble(struct dibs__core *core, char *text, size_t size) {
  dibs__mutex_lock(&core->lock);
  size_t length = strnlen(core->trouble, sizeof core->trouble - 1);
  if (length >= size) length = size - 1;
  memcpy(text, core->trouble, length);
  text[length] = '\0';
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_head(struct dibs__core *core, struct dibs__op *op, uint16_t family, uint16_t verb, uint16_t flags,
                     uint16_t bucket, void (*done)(struct dibs__op *)) {
  (void)core;
  op->family = family;
  op->verb = verb;
  op->flags = flags | (dibs__op_reads(op) ? DIBS__OP_READS : 0);
  op->bucket = bucket;
  op->mandate = (dibs__mandate){0}; /* set from the known mandate when the operation is queued */
  op->by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  op->done = done;
  op->next = NULL;
}

/*
 * ---- Queues, and which operation a slot may carry ----
 */

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

static bool lane_travels_locked(const struct dibs__core *core, const struct slot *but, uint32_t lane) {
  if (lane == 0 || core->slot_count == 1) return false;
  for (uint32_t s = 0; s < core->slot_count; s++) {
    const struct slot *slot = &core->slots[s];
    if (slot == but) continue;
    for (uint32_t i = 0; i < slot->count; i++)
      if (slot->ops[i]->lane == lane) return true;
  }
  return false;
}

static bool slot_serves_locked(const struct dibs__core *core, const struct slot *slot, bool urgent) {
  if (!urgent) return !slot->urgent_only;
  return !slot->ordinary_only || (slot == &core->slots[0] && !core->slots[1].open);
}

/* The operation after `op` and its group, whose members were queued as one list. */
static struct dibs__op *after_group(const struct dibs__op *op) {
  struct dibs__op *next = op->next;
  while (op->group != 0 && next && next->group == op->group) next = next->next;
  return next;
}

/* An operation and its group wait for the lanes of all of them. */
static bool must_wait_locked(const struct dibs__core *core, const struct slot *but, const struct dibs__op *op) {
  for (const struct dibs__op *end = after_group(op); op != end; op = op->next)
    if (lane_travels_locked(core, but, op->lane)) return true;
  return false;
}

/* Skips many waiters for one lane with one comparison each. */
static struct dibs__op *first_free_locked(struct dibs__core *core, const struct slot *slot, struct dibs__op *op) {
  uint32_t travels = 0;
  for (; op; op = after_group(op)) {
    if (travels != 0 && op->lane == travels) continue;
    if (!must_wait_locked(core, slot, op)) return op;
    travels = op->group == 0 ? op->lane : 0;
  }
  return NULL;
}

/* The first operation that this slot could carry now. */
static struct dibs__op *eligible_locked(struct dibs__core *core, const struct slot *slot) {
  struct dibs__op *op = slot_serves_locked(core, slot, true) ? first_free_locked(core, slot, core->urgent.first) : NULL;
  if (!op && slot_serves_locked(core, slot, false)) op = first_free_locked(core, slot, core->ordinary.first);
  return op;
}

/* A batch with twice as many operations costs little more than one; two batches side by side cost the server twice the
 * work.  So an operation without a lane waits for a running batch of its kind, unless this takes long.  Returns the
 * instant until which it waits. */
static dibs__tick split_at_locked(const struct dibs__core *core, const struct slot *slot, const struct dibs__op *op) {
  dibs__tick at = DIBS__TICK_ZERO;
  if (is_urgent(op)) return at;
  for (uint32_t s = 0; s < core->slot_count && op->lane == 0; s++) {
    const struct slot *other = &core->slots[s];
    if (other == slot || !other->busy || other->urgent_only != slot->urgent_only) continue;
    dibs__tick split = {other->since.ns + other->split_ns};
    if (dibs__tick_before(at, split)) at = split;
  }
  return at;
}

static struct slot *find_locked(struct dibs__core *core, dibs__tick *held_back) {
  *held_back = DIBS__TICK_NEVER;
  if (!core->urgent.first && !core->ordinary.first) return NULL;
  for (uint32_t s = 0; s < core->slot_count; s++) {
    struct slot *slot = &core->slots[s];
    const struct dibs__op *op = slot->busy ? NULL : eligible_locked(core, slot);
    if (!op) continue;
    dibs__tick split = split_at_locked(core, slot, op);
    dibs__tick opens = s == 0 || slot->open ? split : dibs__slot_opens_at_locked(core, slot, is_urgent(op));
    if (dibs__tick_before(split, opens)) split = opens;
    if (split.ns == 0 || !dibs__tick_before(dibs__tick_now(), split)) return slot;
    *held_back = dibs__tick_min(*held_back, split);
  }
  return NULL;
}

struct slot *dibs__slot_find_locked(struct dibs__core *core) {
  dibs__tick held_back;
  return find_locked(core, &held_back);
}

dibs__tick dibs__held_back_locked(struct dibs__core *core) {
  dibs__tick held_back;
  return find_locked(core, &held_back) ? DIBS__TICK_ZERO : held_back;
}

/* It may take a driver seconds, and a driver carries it before all else: see store/engine.h. */
static bool is_alone(const struct dibs__op *op) {
  return op->family == DIBS__FAM_ENGINE;
}

static void take_from_locked(struct dibs__core *core, struct slot *slot, struct dibs__queue *queue) {
  struct dibs__op *before = NULL;
  for (struct dibs__op *op = queue->first; op;) {
    struct dibs__op *end = after_group(op);
    uint32_t size = 0;
    for (const struct dibs__op *one = op; one != end; one = one->next) size++;
    assert(size <= slot->capacity);
    if (slot->count + size > slot->capacity || (slot->count > 0 && is_alone(slot->ops[0]))) return;
    if (slot->count > 0 && is_alone(op)) return;
    if (must_wait_locked(core, slot, op)) {
      for (before = op; before->next != end;) before = before->next;
      op = end;
      continue;
    }
    for (; size > 0; size--) {
      op = queue_take(queue, before);
      core->pending--;
      op->state = OP_SENT | (op->state & ~0xffu);
      op->status = DIBS_UNKNOWN;
      op->at = (dibs__when){0};
      slot->frees = slot->frees || op->lane != 0;
      slot->ops[slot->count++] = op;
    }
    op = end;
  }
}

static void take_batch_locked(struct dibs__core *core, struct slot *slot) {
  if (slot_serves_locked(core, slot, true)) take_from_locked(core, slot, &core->urgent);
  /* A slot that carries both kinds for a while carries them one after the other. */
  if (slot->ordinary_only && slot->count > 0) return;
  if (slot_serves_locked(core, slot, false)) take_from_locked(core, slot, &core->ordinary);
}

/* Threads that were answered together return together, a moment after each other.  A leader that sent its batch at once
 * would carry one operation in each transaction.  So it waits until as many callers have come as lately: it yields the
 * processor up to that many times, or, where a batch is expensive (a server), as long as they keep coming, each within
 * a small part of its cost after the one before.  It does not wait if it is the only caller, or if a batch costs less
 * than the wait. */
static void gather_locked(struct dibs__core *core, struct slot *slot) {
  if (slot->solo_ns < SOLO_NS || slot->brief || core->pending >= slot->callers) return;
  int64_t patience = slot->solo_ns / GATHER_PART < GATHER_NS ? slot->solo_ns / GATHER_PART : GATHER_NS;
  dibs__tick now = dibs__tick_now(), latest = {now.ns + GATHER_NS}, until = {now.ns + patience};
  for (uint32_t turns = 0; core->pending < slot->callers; turns++) {
    if (turns >= slot->callers && !dibs__tick_before(now, dibs__tick_min(until, latest))) return;
    uint32_t before = core->pending;
    dibs__mutex_unlock(&core->lock);
    dibs__yield();
    dibs__mutex_lock(&core->lock);
    now = dibs__tick_now();
    if (core->pending > before) until.ns = now.ns + patience;
  }
}

static void count_callers_locked(struct dibs__core *core, struct slot *slot) {
  uint32_t came = 0;
  for (uint32_t i = 0; i < slot->count; i++) came += slot->ops[i]->call != NULL;
  came += core->pending;
  if (came >= slot->callers) {
    slot->callers = came < CALLERS_MAX ? came : CALLERS_MAX;
    slot->thin = 0;
  } else if (++slot->thin >= CALLERS_FEW) {
    slot->thin = 0;
    slot->callers -= (slot->callers - came + 3) / 4;
  }
  if (slot->callers == 1) slot->callers = 0;
}

static dibs__tick batch_deadline(const struct slot *slot, dibs__tick now) {
  dibs__tick by = dibs__tick_add_ms(now, DIBS__IO_MS);
  for (uint32_t i = 0; i < slot->count; i++) by = dibs__tick_min(by, slot->ops[i]->by);
  /* An operation that waited past its own deadline must not starve the others: it gets one more short attempt with
   * them. */
  return dibs__tick_before(by, dibs__tick_add_ms(now, 10)) ? dibs__tick_add_ms(now, 10) : by;
}

/* Moves towards the median: a leader that was preempted during its batch must not count for more than one. */
static void time_solo(struct slot *slot, int64_t took_ns) {
  int64_t step = slot->solo_ns / 16 + 100;
  if (slot->solo_ns == 0) slot->solo_ns = took_ns;
  slot->solo_ns += took_ns > slot->solo_ns ? step : -step;
}

/* A driver may report it for the whole batch, or for each operation. */
static bool was_not_done(const struct slot *slot, dibs__status status) {
  if (status == DIBS_UNAVAILABLE) return true;
  for (uint32_t i = 0; i < slot->count; i++)
    if (slot->ops[i]->status != DIBS_UNAVAILABLE) return false;
  return status == DIBS_UNKNOWN;
}

static void run_batch(struct dibs__core *core, struct slot *slot, struct dibs__result *result) {
  dibs__tick now = dibs__tick_now();
  dibs__tick by = batch_deadline(slot, now);
  if (slot->brief) by = dibs__tick_min(by, dibs__tick_add_ms(now, LEND_MS));
  *result = (struct dibs__result){0};
  slot->sent = now;
  dibs__status status = dibs__slot_connect(core, slot, now, by, result);
  bool sent = status == DIBS_OK;
  if (sent) status = core->store->driver->run(slot->session, slot->ops, slot->count, by, result);
  int64_t took = dibs__tick_now().ns - now.ns;
  /* An operation of a large batch costs no more than a single one. */
  if (slot->count == 1 || took / slot->count > slot->solo_ns) time_solo(slot, took / slot->count);
  bool proven = slot->proven;
  if (status == DIBS_OK) slot->proven = true;
  if (sent && (status == DIBS_OK || !slot->brief)) dibs__core_learn(core, status, result->dead, now, by);
  if (sent && result->dead) dibs__slot_drop(core, slot);
  if (status == DIBS_OK) return;
  slot->put_back = slot->brief && status == DIBS_UNAVAILABLE && !result->dead;
  /* The server has closed this connection since: another one carries its operations. */
  if (sent && result->dead && proven && was_not_done(slot, status)) slot->put_back = true;
  for (uint32_t i = 0; i < slot->count; i++)
    if (!sent || status != DIBS_UNKNOWN) slot->ops[i]->status = status;
}

/* Must the operation be repeated under the mandate that its answer has? */
static bool must_repeat(struct dibs__op *op) {
  if (op->status != DIBS__MOVED || !(op->flags & DIBS__OP_FOLLOWS) || op->has.epoch == 0) return false;
  uint32_t moves = op->state >> 8;
  return moves < MOVES_MAX;
}

/* Another session has locked its row, or it needs more steps than an event loop may wait for: not done yet, and it has
 * time left, which the receiver has, too. */
static bool is_for_receiver(const struct slot *slot, const struct dibs__op *op) {
  return slot->brief && op->status == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), op->by);
}

/* The operation, which this slot carried, returns to the queue. */
static void put_first_locked(struct dibs__core *core, struct slot *slot, struct dibs__op *op) {
  queue_put_first(is_urgent(op) ? &core->urgent : &core->ordinary, op);
  core->pending++;
  slot->frees = true;
}

/* Nothing was done: the operations return to the queue, in their order. */
static void put_back_locked(struct dibs__core *core, struct slot *slot) {
  while (slot->count > 0) {
    struct dibs__op *op = slot->ops[--slot->count];
    op->state = OP_PENDING | (op->state & ~0xffu);
    put_first_locked(core, slot, op);
  }
  slot->put_back = false;
}

static void count_batch_locked(struct dibs__core *core, uint32_t size, uint64_t transactions) {
  struct dibs__core_counts *counts = &core->counts;
  counts->batches++;
  counts->operations += size;
  counts->transactions += transactions;
  if (size > counts->largest) counts->largest = size;
  for (unsigned i = 0; i < DIBS__CORE_SIZES; i++) counts->at_most[i] += size <= 1u << i;
}

/* Separates the batch into operations to repeat, and answers to deliver (a list, in order). */
static struct dibs__op *sort_answers_locked(struct dibs__core *core, struct slot *slot,
                                            const struct dibs__result *result) {
  struct dibs__queue answered = {0};
  count_batch_locked(core, slot->count, result->commits);
  count_callers_locked(core, slot);
  if (slot->put_back) {
    put_back_locked(core, slot);
    return NULL;
  }
  if (result->text[0]) memcpy(core->trouble, result->text, sizeof core->trouble);
  for (uint32_t i = 0; i < slot->count; i++) {
    struct dibs__op *op = slot->ops[i];
    if (op->at.ms == 0) op->at = result->now;
    op->sent = slot->sent;
    if (op->status == DIBS__MOVED && op->has.epoch != 0) core->mandates[op->bucket] = op->has;
    if (must_repeat(op) || is_for_receiver(slot, op)) continue;
    op->state = OP_ANSWERED;
    queue_put(&answered, op);
  }
  for (uint32_t i = slot->count; i-- > 0;) { /* from the last one, so that they keep their order */
    struct dibs__op *op = slot->ops[i];
    if (op->state == OP_ANSWERED) continue;
    bool moved = op->status == DIBS__MOVED;
    if (moved) op->mandate = op->has;
    op->state = OP_PENDING | ((op->state & ~0xffu) + (moved ? 0x100u : 0));
    put_first_locked(core, slot, op);
  }
  slot->count = 0;
  return answered.first;
}

/*
 * Chooses the next leader on the slot.  *woken: a call to wake.  true: the receiver must be roused.
 *
 * No thread is about to lead another slot for an operation that waited for a lane of this batch, or for an urgent one
 * that this slot put back: it may have taken it before the slot for urgent operations had a session.
 */
static bool pass_slot_locked(struct dibs__core *core, struct slot *slot, struct dibs__call **woken) {
  *woken = NULL;
  bool others = slot->frees && dibs__slot_find_locked(core) != NULL;
  slot->frees = false;
  struct dibs__queue *queues[2] = {slot_serves_locked(core, slot, true) ? &core->urgent : NULL,
                                   slot_serves_locked(core, slot, false) ? &core->ordinary : NULL};
  for (int q = 0; q < 2; q++) {
    for (struct dibs__op *op = queues[q] ? queues[q]->first : NULL; op; op = after_group(op)) {
      if (must_wait_locked(core, slot, op)) continue;
      if (!op->call || op->call->away) {
        others = true;
      } else if (!op->call->slot) {
        if (slot->open || slot == &core->slots[0])
          op->call->slot = slot;
        else
          slot->busy = false; /* it searches for a slot that has a session */
        *woken = op->call;
        atomic_fetch_add(&op->call->word, CALL_STEP);
        return others;
      }
    }
  }
  slot->busy = false;
  return others;
}

/* All of these calls are done; `last` is the last of them.  Waking is most of the work of answering many callers: of a
 * large number, each caller wakes the next one of its chain, which was marked before.  Only the addresses of marked
 * calls are used: the calls themselves may have ended. */
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

/* `mine` is the leader's own call, which needs no wake. */
static void deliver(struct dibs__op *list, const struct dibs__call *mine) {
  struct dibs__call *last = NULL;
  uint32_t count = 0;
  for (struct dibs__op *op = list, *next; op; op = next) {
    next = op->next;
    struct dibs__call *call = op->call;
    op->call = NULL;
    op->next = NULL;
    op->state = OP_IDLE;
    op->done(op); /* from here on the operation may be queued again, or freed */
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

/* The caller has seen that its call is done. */
static void wake_next(const struct dibs__call *call) {
  if (call->then) dibs__word_wake(call->then, 1, false);
}

static void pass_slot_on(struct dibs__core *core, struct slot *slot) {
  struct dibs__call *woken;
  dibs__mutex_lock(&core->lock);
  bool rouse = pass_slot_locked(core, slot, &woken);
  dibs__mutex_unlock(&core->lock);
  if (woken) dibs__word_wake(&woken->word, 1, false);
  if (rouse) dibs__service_rouse(core, DIBS__TICK_ZERO);
}

static bool carries(const struct slot *slot, const struct dibs__call *call) {
  for (uint32_t i = 0; i < slot->count; i++)
    if (slot->ops[i]->call == call) return true;
  return false;
}

/* Until the batch is answered its thread leads on no other slot: a slot that was passed to it meanwhile is passed on,
 * and another thread leads its own operations if the batch has none of them.  Releases the lock. */
static void leave_with_batch_locked(struct dibs__core *core, const struct slot *slot, struct dibs__call *mine) {
  struct slot *given = mine ? mine->slot : NULL;
  dibs__tick look = mine && !carries(slot, mine) ? dibs__held_back_locked(core) : DIBS__TICK_NEVER;
  if (mine) mine->slot = NULL;
  if (mine) mine->away = true;
  dibs__mutex_unlock(&core->lock);
  if (given) pass_slot_on(core, given);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
}

void dibs__lead_locked(struct dibs__core *core, struct slot *slot, struct dibs__call *mine) {
  dibs__shield shield;
  struct dibs__result result;
  struct dibs__call *woken;
  /* An operation that the first slot could have carried is no reason to keep another session. */
  if (core->slots[0].busy) slot->needed = dibs__tick_now();
  slot->busy = true;
  if (!slot->open && slot != &core->slots[0] && !dibs__slot_open_locked(core, slot, mine)) {
    slot->busy = false;
    /* When it may be tried again somebody must look: a carrier has no timer, and a caller may have its answer. */
    dibs__tick look = dibs__held_back_locked(core);
    dibs__mutex_unlock(&core->lock);
    if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
    return;
  }
  if (!slot->open && slot == &core->slots[0]) dibs__slot_inherit_locked(core, slot);
  slot->since = dibs__tick_now();
  slot->split_ns = SPLIT_SOLOS * slot->solo_ns;
  if (slot->split_ns < SPLIT_MIN_MS * DIBS__NS_PER_MS) slot->split_ns = SPLIT_MIN_MS * DIBS__NS_PER_MS;
  if (slot->split_ns > SPLIT_MAX_MS * DIBS__NS_PER_MS) slot->split_ns = SPLIT_MAX_MS * DIBS__NS_PER_MS;
  gather_locked(core, slot);
  take_batch_locked(core, slot);
  if (slot->count == 0) { /* another thread carried the operations meanwhile */
    slot->brief = false;
    dibs__mutex_unlock(&core->lock);
    pass_slot_on(core, slot);
    return;
  }
  leave_with_batch_locked(core, slot, mine);
  dibs__shield_raise(&shield);
  run_batch(core, slot, &result);

  dibs__mutex_lock(&core->lock);
  if (mine) mine->away = false;
  slot->open = slot->session != NULL;
  struct dibs__op *answered = sort_answers_locked(core, slot, &result);
  slot->brief = false;
  bool rouse = pass_slot_locked(core, slot, &woken);
  dibs__mutex_unlock(&core->lock);
  /* The successor runs while we deliver answers.  `woken` cannot have returned: one of its operations is pending. */
  if (woken) dibs__word_wake(&woken->word, 1, false);
  if (rouse) dibs__service_rouse(core, DIBS__TICK_ZERO);
  if (result.untidy && core->hooks.untidy) core->hooks.untidy(core->hooks.context);
  deliver(answered, mine);
  core->hooks.handed(core->hooks.context);
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

/* The caller leaves: it takes back operations that were not sent, and detaches from those that were.  Operations whose
 * answers are being delivered stay attached. */
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

static uint32_t leave_slots_locked(struct dibs__core *core, struct dibs__call *call) {
  uint32_t left = 0;
  for (uint32_t s = 0; s < core->slot_count; s++)
    for (uint32_t i = 0; i < core->slots[s].count; i++)
      if (core->slots[s].ops[i]->call == call) {
        core->slots[s].ops[i]->call = NULL;
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

/* false: all were answered in the meantime. */
static bool leave_call(struct dibs__core *core, struct dibs__call *call) {
  uint32_t gone = 0;
  dibs__mutex_lock(&core->lock);
  struct dibs__op *urgent = leave_queue_locked(core, &core->urgent, call, &gone);
  struct dibs__op *ordinary = leave_queue_locked(core, &core->ordinary, call, &gone);
  gone += leave_slots_locked(core, call);
  struct slot *slot = call->slot;
  call->slot = NULL;
  /* A leader may have woken this call in place of the receiver, to search for a slot, now or when it may be opened
   * (pass_slot_locked): what is left in the queue must not wait for the next request. */
  dibs__tick look = slot ? DIBS__TICK_NEVER : dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (slot) pass_slot_on(core, slot);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
  call_done(urgent);
  call_done(ordinary);
  if (gone == 0) return false;
  /* A thread is delivering the other answers now, and uses the call until CALL_DONE. */
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
    /* Lock held.  The slot that was passed to this call, or any free one for the operations that wait. */
    dibs__tick look = DIBS__TICK_NEVER;
    struct slot *slot = call.slot ? call.slot : find_locked(core, &look);
    call.slot = NULL;
    if (slot) {
      dibs__lead_locked(core, slot, &call);
    } else {
      uint32_t seen = atomic_load(&call.word);
      dibs__mutex_unlock(&core->lock);
      while (atomic_load(&call.word) == seen && !(seen & CALL_DONE)) {
        if (dibs__word_wait(&call.word, seen, dibs__tick_min(by, look), false)) continue;
        if (dibs__tick_before(look, by)) break; /* and leads, if necessary */
        if (leave_call(core, &call)) return false;
        by = DIBS__TICK_NEVER; /* the answers will arrive */
      }
    }
    if (atomic_load(&call.word) & CALL_DONE) break;
    dibs__mutex_lock(&core->lock);
  }
  /* A slot that was passed for an operation which another leader carried meanwhile.  Needs no lock: it was passed
   * before the operation was taken, and CALL_DONE came after that. */
  wake_next(&call);
  if (call.slot) pass_slot_on(core, call.slot);
  return true;
}

void dibs__core_leave(struct dibs__core *core, struct dibs__op *list) {
  dibs__mutex_lock(&core->lock);
  enqueue_locked(core, list, NULL);
  dibs__mutex_unlock(&core->lock);
}

void dibs__core_lend(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  struct slot *slot = dibs__slot_find_locked(core);
  if (slot && (core->identity.caps & DIBS__CAP_BRIEF)) {
    slot->brief = true;
    dibs__lead_locked(core, slot, NULL);
    return;
  }
  dibs__tick look = slot ? DIBS__TICK_ZERO : dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
}

void dibs__core_start(struct dibs__core *core, struct dibs__op *list) {
  dibs__mutex_lock(&core->lock);
  enqueue_locked(core, list, NULL);
  dibs__tick look = dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look); /* otherwise the present leader will do it */
}
