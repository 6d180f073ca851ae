/* SPDX-License-Identifier: MIT */
#include "gate.h"

#include "store/combiner_impl.h"

struct gate_store {
  struct dibs__dstore base;
  dibs__word notifier;
};
struct gate_session {
  struct dibs__session base;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct gate_plan plan;
static struct gate_batch batches[GATE_BATCHES];
static size_t seen;
static uint32_t connects;

/* ---- The driver ---- */

static dibs__status gate_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *reported) {
  (void)by;
  *reported = (struct dibs__result){.sent = dibs__tick_now(), .commits = 1};
  pthread_mutex_lock(&lock);
  assert_true(seen < GATE_BATCHES && count <= GATE_OPS);
  struct gate_batch *batch = &batches[seen++];
  *batch = (struct gate_batch){.session = session, .count = count, .thread = dibs__thread_self(), .open = !plan.shut};
  memcpy(batch->ops, ops, count * sizeof(struct dibs__op *));
  while (!batch->open) pthread_cond_wait(&moved, &lock);
  batch->left = true;
  struct gate_plan now = plan;
  pthread_mutex_unlock(&lock);
  reported->dead = now.dead;
  if (now.run != DIBS_OK && now.run != DIBS_UNKNOWN) return now.run;
  for (size_t i = 0; i < count; i++) {
    if (now.answer)
      now.answer(ops[i]);
    else
      ops[i]->status = DIBS_OK;
  }
  return now.run;
}

static dibs__status gate_opens(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *reported);

static void gate_closes(struct dibs__dstore *store) {
  free(store);
}

static dibs__status gate_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__result *reported) {
  (void)by;
  *reported = (struct dibs__result){.sent = dibs__tick_now()};
  pthread_mutex_lock(&lock);
  connects++;
  bool refused = plan.refuse_connects > 0;
  if (refused) plan.refuse_connects--;
  *identity = (struct dibs__identity){.caps = plan.caps,
                                      .families = 1u << DIBS__FAM_LEASE,
                                      .max_batch = plan.max_batch,
                                      .max_sessions = plan.max_sessions,
                                      .session = 1};
  pthread_mutex_unlock(&lock);
  if (refused) return DIBS_UNAVAILABLE;
  struct gate_session *made = calloc(1, sizeof *made);
  if (!made) return DIBS_NO_MEMORY;
  made->base.store = store;
  *session = &made->base;
  return DIBS_OK;
}

static void gate_disconnect(struct dibs__session *session) {
  free(session);
}

static dibs__status gate_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                dibs__tick by) {
  struct gate_store *store = (struct gate_store *)base;
  (void)events, (void)cap;
  *count = 0;
  if (atomic_exchange(&store->notifier, 0) == 0) dibs__word_wait(&store->notifier, 0, by, false);
  return DIBS_OK;
}

static void gate_wake(struct dibs__dstore *base) {
  struct gate_store *store = (struct gate_store *)base;
  atomic_store(&store->notifier, 1);
  dibs__word_wake(&store->notifier, 1, false);
}

static dibs__status gate_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                              struct dibs__result *reported) {
  (void)session, (void)list, (void)by, (void)reported;
  return DIBS_OK;
}

static const char *const schemes[] = {"gate", NULL};
static const struct dibs__driver driver = {.size = sizeof(struct dibs__driver),
                                           .abi = DIBS__DRIVER_ABI,
                                           .name = "gate",
                                           .schemes = schemes,
                                           .open = gate_opens,
                                           .close = gate_closes,
                                           .connect = gate_connect,
                                           .disconnect = gate_disconnect,
                                           .run = gate_run,
                                           .events = gate_events,
                                           .wake = gate_wake,
                                           .list = gate_list};

static dibs__status gate_opens(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *reported) {
  (void)uri, (void)inner, (void)count, (void)by;
  *reported = (struct dibs__result){.sent = dibs__tick_now()};
  struct gate_store *made = calloc(1, sizeof *made);
  if (!made) return DIBS_NO_MEMORY;
  made->base.driver = &driver;
  *store = &made->base;
  return DIBS_OK;
}

/* ---- Controls of the test ---- */

void gate_change(struct gate_plan to) {
  pthread_mutex_lock(&lock);
  plan = to;
  pthread_mutex_unlock(&lock);
}

void gate_begin(struct gate_plan to) {
  static bool added;
  if (!added) added = dibs__driver_add(&driver);
  pthread_mutex_lock(&lock);
  seen = 0;
  connects = 0;
  pthread_mutex_unlock(&lock);
  gate_change(to);
}

size_t gate_seen(void) {
  pthread_mutex_lock(&lock);
  size_t count = seen;
  pthread_mutex_unlock(&lock);
  return count;
}

struct gate_batch gate_batch(size_t at) {
  pthread_mutex_lock(&lock);
  struct gate_batch batch = batches[at];
  pthread_mutex_unlock(&lock);
  return batch;
}

void gate_let(size_t at) {
  pthread_mutex_lock(&lock);
  batches[at].open = true;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

void gate_open(void) {
  pthread_mutex_lock(&lock);
  plan.shut = false;
  for (size_t i = 0; i < seen; i++) batches[i].open = true;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

uint32_t gate_connects(void) {
  pthread_mutex_lock(&lock);
  uint32_t count = connects;
  pthread_mutex_unlock(&lock);
  return count;
}

uint32_t gate_pending(struct dibs__core *core) {
  dibs__mutex_lock(&core->lock);
  uint32_t count = core->pending;
  dibs__mutex_unlock(&core->lock);
  return count;
}

/* ---- Probes and runners ---- */

static void probe_done(struct dibs__op *op) {
  struct probe *probe = (struct probe *)op;
  struct dibs__op *next = probe->hand_in;
  probe->hand_in = NULL;
  atomic_store(&probe->status, (int)op->status);
  if (next) dibs__core_start(probe->core, next); /* itself, it may be */
  while (probe->hold && atomic_load(probe->hold) == 0) dibs__nap_ms(1);
  atomic_fetch_add(&probe->dones, 1);
}

void probe_make(struct probe *probe, struct dibs__core *core, uint16_t flags) {
  *probe = (struct probe){.core = core, .status = -1};
  dibs__core_head(core, &probe->op, DIBS__FAM_LEASE, DIBS__ACQUIRE, flags, 0, probe_done);
}

struct dibs__op *probe_list(struct probe *probes[], size_t count) {
  for (size_t i = 0; i < count; i++) probes[i]->op.next = i + 1 < count ? &probes[i + 1]->op : NULL;
  return &probes[0]->op;
}

static void *run(void *arg) {
  struct runner *runner = arg;
  runner->answered = dibs__core_run(runner->core, runner->list, runner->by);
  atomic_store(&runner->over, true);
  return NULL;
}

void runner_start(struct runner *runner, struct dibs__core *core, struct dibs__op *list, int64_t ms) {
  *runner = (struct runner){.core = core, .list = list, .by = dibs__tick_add_ms(dibs__tick_now(), ms)};
  assert_int_equal(pthread_create(&runner->thread, NULL, run, runner), 0);
}

bool runner_join(struct runner *runner) {
  UNTIL(atomic_load(&runner->over));
  assert_int_equal(pthread_join(runner->thread, NULL), 0);
  return runner->answered;
}

/* ---- A core with nothing above it ---- */

static void no_event(void *capacity, const struct dibs__event *event) {
  (void)capacity, (void)event;
}
static dibs__tick no_timers(void *capacity, dibs__tick now) {
  (void)capacity, (void)now;
  return DIBS__TICK_NEVER;
}
static void no_hand(void *capacity) {
  (void)capacity;
}

struct dibs__core *gate_core(void) {
  static const struct dibs__core_hooks hooks = {.event = no_event, .timers = no_timers, .handed = no_hand};
  struct dibs__core *core = NULL;
  struct dibs__result reported = {0};
  assert_int_equal(dibs__core_open("gate:", NULL, &hooks, &core, &reported), DIBS_OK);
  return core;
}

void gate_close(struct dibs__core *core) {
  gate_open();
  dibs__core_stop(core);
  dibs__core_close(core);
}
