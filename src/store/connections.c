/* SPDX-License-Identifier: MIT */
/*
 * The sessions of slots, and the threads that lead when no caller does.
 *
 * A process works with one session as long as this is enough.  The second session, for urgent operations only, is
 * opened when such operations have waited briefly for the first one: then an operation on it waits for a row lock, or
 * its batch is large.  If the server gives no second connection, urgent operations use the first one as soon as it is
 * idle.  A connection is not bound to a slot: if the first slot loses its session, it takes over that of another.
 *
 * The receiver is one thread at a time.  It leads what no other thread leads, runs the timers of the layer above, and
 * sleeps in the driver's events().  A thread that waits anyway takes this role, so that the engine itself wakes a
 * single waiter, without a second thread.  As soon as a second thread waits or an operation completes later, the
 * service thread takes the role for good; a waiting thread that has it keeps it until its own wait ends.
 *
 * If several sessions can be busy at once, carriers lead in place of the service thread: an operation that completes
 * later must not wait for a slow batch on another session; neither must events and timers.
 */
#include "store/combiner_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- Can the store be reached? ---- */

bool dibs__core_is_cut_off(const struct dibs__core *core) {
  return atomic_load(&core->cut_off);
}

/* A connection that ends shows nothing: the next attempt to connect does. */
void dibs__core_learn(struct dibs__core *core, dibs__status status, bool dead, dibs__tick began, dibs__tick by) {
  dibs__tick now = dibs__tick_now();
  bool hung = !dibs__tick_before(now, dibs__tick_add_ms(began, LATE_MS));
  bool failed = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
  if (status == DIBS_OK) atomic_store(&core->cut_off, false);
  if (failed && (hung || (!dead && dibs__tick_before(now, by)))) atomic_store(&core->cut_off, true);
}

/* ---- Sessions of slots ---- */

static dibs__tick later_tick(dibs__tick a, dibs__tick b) {
  return dibs__tick_before(a, b) ? b : a;
}

dibs__tick dibs__slot_opens_at_locked(const struct dibs__core *core, const struct slot *slot, bool urgent) {
  const struct slot *first = &core->slots[0];
  if (!urgent || !first->busy || !first->open) return slot->retry_at;
  return later_tick(slot->retry_at, dibs__tick_add_ms(first->since, URGENT_AFTER_MS));
}

/* Random, so that processes do not retry in step: the server may have refused all of them together. */
static void connect_failed_locked(struct slot *slot) {
  int64_t pause = RETRY_MIN_MS;
  uint32_t draw;
  for (uint32_t i = 0; i < slot->failures && pause < RETRY_MAX_MS; i++) pause *= 2;
  if (pause > RETRY_MAX_MS) pause = RETRY_MAX_MS;
  dibs__random(&draw, sizeof draw);
  slot->failures++;
  slot->retry_at = dibs__tick_add_ms(dibs__tick_now(), pause / 2 + (int64_t)(draw % (uint32_t)(pause / 2 + 1)));
}

static dibs__status connect_slot(struct dibs__core *core, struct slot *slot, dibs__tick by,
                                 struct dibs__result *result) {
  dibs__status status = dibs__core_connect(core, by, &slot->session, result);
  dibs__mutex_lock(&core->lock);
  if (status == DIBS_OK)
    slot->failures = 0;
  else
    connect_failed_locked(slot);
  slot->open = slot->session != NULL;
  slot->proven = false;
  dibs__mutex_unlock(&core->lock);
  return status;
}

bool dibs__slot_open_locked(struct dibs__core *core, struct slot *slot, struct dibs__call *mine) {
  dibs__shield shield;
  struct dibs__result result = {0};
  if (mine) mine->away = true;
  dibs__mutex_unlock(&core->lock);
  dibs__shield_raise(&shield);
  dibs__status status = connect_slot(core, slot, dibs__tick_add_ms(dibs__tick_now(), CONNECT_MS), &result);
  /* A thread has to close it later. */
  if (status == DIBS_OK && core->hooks.untidy) core->hooks.untidy(core->hooks.context);
  dibs__shield_lower(&shield);
  dibs__mutex_lock(&core->lock);
  if (mine) mine->away = false;
  return status == DIBS_OK;
}

void dibs__slot_inherit_locked(struct dibs__core *core, struct slot *slot) {
  for (uint32_t s = core->slot_count; s-- > 1 && !slot->open;) {
    struct slot *other = &core->slots[s];
    if (!other->open || other->busy) continue;
    slot->session = other->session;
    slot->proven = other->proven;
    slot->open = true;
    other->session = NULL;
    other->open = false;
  }
}

dibs__status dibs__slot_connect(struct dibs__core *core, struct slot *slot, dibs__tick now, dibs__tick by,
                                struct dibs__result *result) {
  if (slot->session) return DIBS_OK;
  if (!dibs__tick_before(now, slot->retry_at)) return connect_slot(core, slot, by, result);
  dibs__set_message(result, "%s is unreachable; dibs tries again in %lld ms", core->uri.shown,
                    (long long)dibs__tick_left_ms(now, slot->retry_at));
  return DIBS_UNAVAILABLE;
}

void dibs__slot_drop(struct dibs__core *core, struct slot *slot) {
  if (!slot->session) return;
  dibs__core_disconnect(core, slot->session);
  slot->session = NULL;
}

/* ---- Sessions that are not needed now ---- */

struct dibs__session *dibs__slot_lend(struct dibs__core *core) {
  struct dibs__session *session = NULL;
  dibs__mutex_lock(&core->lock);
  for (uint32_t s = core->slot_count; s-- > 0 && !session;) {
    struct slot *slot = &core->slots[s];
    if (!slot->ordinary_only && !slot->urgent_only) break; /* the engine has one session for all operations */
    if (!slot->open || slot->busy) continue;
    session = slot->session;
    slot->session = NULL;
    slot->open = false;
  }
  dibs__mutex_unlock(&core->lock);
  return session;
}

bool dibs__slot_take_back(struct dibs__core *core, struct dibs__session *session) {
  struct slot *slot = &core->slots[0];
  dibs__mutex_lock(&core->lock);
  bool takes = !slot->busy && !slot->open && slot->ordinary_only;
  if (takes) {
    slot->session = session;
    slot->open = true;
    slot->failures = 0;
    slot->retry_at = DIBS__TICK_ZERO;
  }
  dibs__mutex_unlock(&core->lock);
  return takes;
}

dibs__status dibs__core_list(struct dibs__core *core, const struct dibs__list *list, struct dibs__result *result) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  dibs__status status = DIBS_OK;
  dibs__mutex_lock(&core->list_lock);
  if (!core->list_session) core->list_session = dibs__slot_lend(core);
  if (!core->list_session) status = dibs__core_connect(core, by, &core->list_session, result);
  if (status == DIBS_OK) {
    dibs__tick began = dibs__tick_now();
    status = core->store->driver->list(core->list_session, list, by, result);
    dibs__core_learn(core, status, result->dead, began, by);
    /* The session of an embedded engine is kept; a server's connection is not. */
    bool kept = !result->dead && !(core->identity.caps & (DIBS__CAP_PARALLEL | DIBS__CAP_SESSION));
    if (!kept && (result->dead || !dibs__slot_take_back(core, core->list_session)))
      dibs__core_disconnect(core, core->list_session);
    if (!kept) core->list_session = NULL;
  }
  dibs__mutex_unlock(&core->list_lock);
  return status;
}

bool dibs__slots_close_idle(struct dibs__core *core) {
  bool some = false;
  for (uint32_t s = 1; s < core->slot_count; s++) {
    struct slot *slot = &core->slots[s];
    struct dibs__session *idle = NULL;
    dibs__mutex_lock(&core->lock);
    if (slot->open && !slot->busy && !dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(slot->needed, IDLE_MS))) {
      idle = slot->session;
      slot->session = NULL;
      slot->open = false;
    }
    some = some || slot->open;
    dibs__mutex_unlock(&core->lock);
    if (idle) dibs__core_disconnect(core, idle);
  }
  return some;
}

bool dibs__core_ready(struct dibs__core *core) {
  bool ready = true;
  dibs__mutex_lock(&core->lock);
  const struct slot *first = &core->slots[0], *second = &core->slots[1];
  if (first->ordinary_only && !second->open) {
    ready = first->open && second->failures == 0;
    for (uint32_t i = 0; i < first->count && ready; i++) ready = first->ops[i]->family == DIBS__FAM_LEASE;
  }
  dibs__mutex_unlock(&core->lock);
  return ready;
}

/*
 * ---- The receiver and the carriers ----
 */

enum { EVENTS_AT_ONCE = 64 };

/* Leads on the slot that it received, then on any free slot for the operations that wait. */
static void carrier_thread(void *arg) {
  struct carrier *carrier = arg;
  struct dibs__core *core = carrier->core;
  dibs__mutex_lock(&core->lock);
  for (;;) {
    struct slot *slot = carrier->slot ? carrier->slot : dibs__slot_find_locked(core);
    carrier->slot = NULL;
    if (slot) {
      dibs__lead_locked(core, slot, NULL);
      dibs__mutex_lock(&core->lock);
      continue;
    }
    if (core->stopping) break;
    carrier->busy = false;
    uint32_t seen = atomic_load(&carrier->word);
    dibs__mutex_unlock(&core->lock);
    dibs__word_wait(&carrier->word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&core->lock);
  }
  dibs__mutex_unlock(&core->lock);
}

/* The carrier that takes the slot, to be woken; NULL: none is available, or none is needed. */
static struct carrier *delegate_locked(struct dibs__core *core, struct slot *slot) {
  if (core->slot_count == 1 || !core->service) return NULL;
  for (size_t i = 0; i < CONN_SLOTS_MAX; i++) {
    struct carrier *carrier = &core->carriers[i];
    if (carrier->busy) continue;
    carrier->core = core;
    carrier->slot = slot;
    carrier->busy = true;
    if (!carrier->thread) carrier->thread = dibs__thread_start("dibs-carrier", carrier_thread, carrier);
    if (carrier->thread) {
      slot->busy = true;
      slot->since = dibs__tick_now(); /* its leading begins now: with an older time other threads would take its batch
                                         for a long one */
      atomic_fetch_add(&carrier->word, 1);
      return carrier;
    }
    carrier->slot = NULL;
    carrier->busy = false;
    return NULL;
  }
  return NULL;
}

static void lead_all(struct dibs__core *core) {
  for (;;) {
    dibs__mutex_lock(&core->lock);
    struct slot *slot = dibs__slot_find_locked(core);
    struct carrier *carrier = slot ? delegate_locked(core, slot) : NULL;
    if (slot && !carrier) {
      dibs__lead_locked(core, slot, NULL);
      continue;
    }
    dibs__mutex_unlock(&core->lock);
    if (!slot) return;
    dibs__word_wake(&carrier->word, 1, false);
  }
}

static uint64_t rouse_mark(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  uint64_t roused = core->roused;
  dibs__mutex_unlock(&core->lock);
  return roused;
}

/* May the receiver sleep?  true: no rouse came since `mark`, nothing waits for a leader, and *word is still `seen`. */
static bool may_sleep(struct dibs__core *core, uint64_t mark, dibs__word *word, uint32_t seen, dibs__tick *until) {
  dibs__mutex_lock(&core->lock);
  bool may = core->roused == mark && !dibs__slot_find_locked(core) && atomic_load(word) == seen && !core->stopping;
  *until = dibs__tick_min(*until, dibs__held_back_locked(core));
  core->asleep = may;
  core->asleep_until = *until;
  dibs__mutex_unlock(&core->lock);
  return may;
}

/* One cycle of the receiver: returns when *word changed, an event arrived, or at `by`. */
static void receiver_cycle(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  struct dibs__event events[EVENTS_AT_ONCE];
  size_t count = 0;
  uint64_t mark = rouse_mark(core);
  lead_all(core);
  dibs__tick due = core->hooks.timers(core->hooks.context, dibs__tick_now());
  lead_all(core); /* operations that the timers started */
  due = dibs__tick_min(due, by);
  if (!may_sleep(core, mark, word, seen, &due)) return;
  dibs__status status = core->store->driver->events(core->store, events, EVENTS_AT_ONCE, &count, due);
  dibs__mutex_lock(&core->lock);
  core->asleep = false;
  dibs__mutex_unlock(&core->lock);
  if (status != DIBS_OK) dibs__word_wait(word, seen, dibs__tick_add_ms(dibs__tick_now(), RETRY_MIN_MS), false);
  for (size_t i = 0; i < count; i++) core->hooks.event(core->hooks.context, &events[i]);
  lead_all(core);
}

static void service_thread(void *arg) {
  struct dibs__core *core = arg;
  dibs__mutex_lock(&core->lock);
  while (!core->stopping) {
    uint32_t seen = atomic_load(&core->service_word);
    dibs__word *other = atomic_load(&core->receiver);
    if (!other) atomic_store(&core->receiver, &core->service_word);
    dibs__mutex_unlock(&core->lock);
    if (other && other != &core->service_word)
      dibs__word_wait(&core->service_word, seen, DIBS__TICK_NEVER, false);
    else
      receiver_cycle(core, &core->service_word, seen, DIBS__TICK_NEVER);
    dibs__mutex_lock(&core->lock);
  }
  atomic_store(&core->receiver, NULL);
  dibs__mutex_unlock(&core->lock);
}

static bool serve_locked(struct dibs__core *core) {
  if (core->service || core->stopping) return core->service != NULL;
  core->service = dibs__thread_start("dibs-service", service_thread, core);
  return core->service != NULL;
}

bool dibs__core_serve(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  bool serves = serve_locked(core);
  dibs__mutex_unlock(&core->lock);
  return serves;
}

static bool rouse_locked(struct dibs__core *core, dibs__tick due) {
  bool wake = core->asleep && dibs__tick_before(due, core->asleep_until);
  if (wake) core->asleep = false;
  core->roused++;
  return wake;
}

void dibs__service_rouse(struct dibs__core *core, dibs__tick due) {
  dibs__mutex_lock(&core->lock);
  bool wake = rouse_locked(core, due);
  bool alone = !atomic_load(&core->receiver) && !serve_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
  if (alone) lead_all(core); /* no thread could be started: this caller leads */
}

void dibs__core_rouse(struct dibs__core *core, dibs__tick due) {
  dibs__mutex_lock(&core->lock);
  bool wake = rouse_locked(core, due);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
}

void dibs__core_wake(struct dibs__core *core, dibs__word *word) {
  /* The word was changed before.  Either we see that its thread is the receiver, or it becomes the receiver later and
   * reads the word before it sleeps. */
  if (atomic_load(&core->receiver) == word)
    core->store->driver->wake(core->store);
  else
    dibs__word_wake(word, 1, false);
}

static void wait_as_receiver(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  while (atomic_load(word) == seen && dibs__tick_before(dibs__tick_now(), by)) receiver_cycle(core, word, seen, by);
  dibs__mutex_lock(&core->lock);
  atomic_store(&core->receiver, NULL);
  bool service = core->service != NULL;
  if (service) atomic_fetch_add(&core->service_word, 1);
  /* dibs__core_start saw a receiver and left to it the operations that were started while this thread had the role,
   * after its last check.  Without a service thread no other thread would lead them, and dibs_close would wait for
   * ever. */
  dibs__tick look = service ? DIBS__TICK_NEVER : dibs__held_back_locked(core);
  dibs__mutex_unlock(&core->lock);
  if (service) dibs__word_wake(&core->service_word, 1, false);
  if (look.ns != DIBS__TICK_NEVER.ns) dibs__service_rouse(core, look);
}

void dibs__core_wait(struct dibs__core *core, dibs__word *word, uint32_t seen, dibs__tick by) {
  dibs__mutex_lock(&core->lock);
  if (!core->service && !atomic_load(&core->receiver)) {
    atomic_store(&core->receiver, word);
    dibs__mutex_unlock(&core->lock);
    wait_as_receiver(core, word, seen, by);
    return;
  }
  /* Operations that an event loop queued, to carry at its end, must not be delayed by a wait in its middle. */
  if (!serve_locked(core)) by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), RETRY_MIN_MS));
  /* What an event loop queued, to be carried at its end, must not wait until a wait in the middle of it ends. */
  bool wake = dibs__slot_find_locked(core) && rouse_locked(core, DIBS__TICK_ZERO);
  dibs__mutex_unlock(&core->lock);
  if (wake) core->store->driver->wake(core->store);
  while (atomic_load(word) == seen)
    if (!dibs__word_wait(word, seen, by, false)) return;
}

void dibs__core_stop(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  core->stopping = true;
  dibs__thread *service = core->service;
  atomic_fetch_add(&core->service_word, 1);
  dibs__mutex_unlock(&core->lock);
  dibs__word_wake(&core->service_word, 1, false);
  core->store->driver->wake(core->store);
  dibs__thread_join(service);
  for (size_t i = 0; i < CONN_SLOTS_MAX; i++) {
    struct carrier *carrier = &core->carriers[i];
    atomic_fetch_add(&carrier->word, 1);
    dibs__word_wake(&carrier->word, 1, false);
    dibs__thread_join(carrier->thread);
    carrier->thread = NULL;
  }
  dibs__mutex_lock(&core->lock);
  core->service = NULL;
  dibs__mutex_unlock(&core->lock);
}

/* ---- A core on the caller's own connection ---- */

dibs__status dibs__core_inside(struct dibs__core *outer, const char *driver_name, void *connection,
                               struct dibs__core **out, struct dibs__result *result) {
  const struct dibs__driver *driver = outer->store->driver;
  *out = NULL;
  if (!driver->attach) {
    dibs__set_message(result, "%s can't join a transaction of yours", outer->uri.shown);
    return DIBS_UNSUPPORTED;
  }
  if (driver_name && strcmp(driver->name, driver_name) != 0) {
    dibs__set_message(result, "the connection is one of %s, and the store one of %s: open the store of that connection",
                      driver_name, driver->name);
    return DIBS_INVALID;
  }
  struct dibs__core *core = calloc(1, sizeof *core);
  if (!core) return DIBS_NO_MEMORY;
  dibs__status status = driver->attach(outer->store, connection, &core->direct, &core->identity, result);
  if (status != DIBS_OK) {
    free(core);
    return status;
  }
  core->store = outer->store;
  dibs__mutex_init(&core->lock);
  dibs__mutex_init(&core->list_lock);
  dibs__mutex_init(&core->connecting);
  *out = core;
  return DIBS_OK;
}

dibs__status dibs__core_transactor_open(struct dibs__core *core, dibs__tick by, struct dibs__transactor **transactor,
                                        struct dibs__result *result) {
  const struct dibs__driver *driver = core->store->driver;
  *transactor = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (driver->transactor_open) return driver->transactor_open(core->store, by, transactor, result);
  dibs__set_message(result, "it has no transactions for statements of yours: use a SQL database");
  return DIBS_UNSUPPORTED;
}

dibs__status dibs__core_transact(struct dibs__core *core, struct dibs__transactor *transactor, enum dibs__transact what,
                                 const char *sql, dibs__tick by, struct dibs__result *result) {
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  return core->store->driver->transact(transactor, what, sql, by, result);
}

void dibs__core_transactor_close(struct dibs__core *core, struct dibs__transactor *transactor) {
  if (transactor) core->store->driver->transactor_close(transactor);
}

static void count_batch(struct dibs__core *core, size_t operations, const struct dibs__result *result) {
  dibs__mutex_lock(&core->lock);
  core->counts.batches++;
  core->counts.operations += operations;
  if (result->text[0]) memcpy(core->trouble, result->text, sizeof core->trouble);
  dibs__mutex_unlock(&core->lock);
}

/* Carries up to one batch of the list; returns the rest. */
static struct dibs__op *inside_carry(struct dibs__core *core, struct dibs__op *list) {
  struct dibs__op *ops[BATCH_DEFAULT];
  struct dibs__result result = {0};
  dibs__tick now = dibs__tick_now(), by = dibs__tick_add_ms(now, DIBS__IO_MS);
  size_t n = 0;
  for (; list && n < BATCH_DEFAULT; list = list->next) {
    list->status = DIBS_UNKNOWN;
    by = dibs__tick_min(by, list->by);
    ops[n++] = list;
  }
  dibs__status status = core->store->driver->run(core->direct, ops, n, by, &result);
  count_batch(core, n, &result);
  for (size_t i = 0; i < n; i++) {
    if (status != DIBS_OK && status != DIBS_UNKNOWN) ops[i]->status = status;
    ops[i]->sent = now;
    ops[i]->at = result.now;
    ops[i]->next = NULL;
    ops[i]->done(ops[i]);
  }
  return list;
}

void dibs__core_direct(struct dibs__core *core, struct dibs__op *list) {
  while (list) list = inside_carry(core, list);
}
