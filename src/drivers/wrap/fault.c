/* SPDX-License-Identifier: MIT */
/* See fault.h.  A call's number is drawn when it begins; whether it fails depends on that number and the plan alone. */
#include "drivers/wrap/fault.h"

#include <assert.h>
#include <string.h>

enum { TWICE = 16 /* events that can be owed at once; further ones are delivered once */ };

struct plan_state {
  struct dibs__fault_plan plan;
  uint64_t calls, struck;
};

struct fault {
  struct dibs__shim shim;
  uint32_t events_rate; /* immutable after open, as is what the URI says in own.plan */
  dibs__mutex lock;
  struct plan_state own; /* guarded by lock */
  /* Of the caller of events(), one at a time. */
  uint64_t events_seen;
  struct dibs__event twice[TWICE];
  size_t twice_count;
};

struct session {
  struct dibs__shim_session shim;
  bool dead;
};

static struct {
  dibs__mutex lock; /* taken alone */
  bool armed;
  struct plan_state state;
} hook = {.lock = {PTHREAD_MUTEX_INITIALIZER}};

/* ---- Whether a call fails ---- */

static bool plan_fails_call(struct plan_state *state, enum dibs__fault_call call) {
  const struct dibs__fault_plan *plan = &state->plan;
  if (!(plan->on & call)) return false;
  uint64_t n = ++state->calls;
  bool strike = n == plan->nth || (plan->forever && state->struck > 0) ||
                (plan->rate > 0 && dibs__shim_draw(plan->seed, n) % 1000 < plan->rate);
  if (strike) state->struck++;
  return strike;
}

static bool call_fails(struct fault *fault, enum dibs__fault_call call, enum dibs__fault_how *how) {
  dibs__mutex_lock(&hook.lock);
  bool armed = hook.armed;
  bool strike = armed && plan_fails_call(&hook.state, call);
  if (armed) *how = hook.state.plan.how;
  dibs__mutex_unlock(&hook.lock);
  if (armed) return strike;

  dibs__mutex_lock(&fault->lock);
  strike = plan_fails_call(&fault->own, call);
  *how = fault->own.plan.how;
  dibs__mutex_unlock(&fault->lock);
  return strike;
}

void dibs__fault_arm(const struct dibs__fault_plan *plan) {
  dibs__mutex_lock(&hook.lock);
  hook.armed = plan != NULL;
  hook.state = (struct plan_state){.calls = 0};
  if (plan) hook.state.plan = *plan;
  dibs__mutex_unlock(&hook.lock);
}

uint64_t dibs__fault_calls(void) {
  dibs__mutex_lock(&hook.lock);
  uint64_t calls = hook.state.calls;
  dibs__mutex_unlock(&hook.lock);
  return calls;
}

uint64_t dibs__fault_struck(void) {
  dibs__mutex_lock(&hook.lock);
  uint64_t struck = hook.state.struck;
  dibs__mutex_unlock(&hook.lock);
  return struck;
}

static dibs__status fail_call(struct dibs__result *result, dibs__status status, const char *what) {
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__set_message(result, "the fault shim made this %s fail", what);
  return status;
}

/* ---- The table ---- */

struct word {
  const char *word;
  uint32_t value;
};

/* The value of the word in [p, p + len), or -1. */
static int64_t value_of(const struct word *words, size_t count, const char *p, size_t len) {
  for (size_t i = 0; i < count; i++)
    if (strlen(words[i].word) == len && memcmp(words[i].word, p, len) == 0) return words[i].value;
  return -1;
}

static dibs__status read_words(const struct dibs__uri *uri, struct dibs__fault_plan *plan,
                               struct dibs__result *result) {
  static const struct word calls[] = {{"run", DIBS__FAULT_RUN},
                                      {"connect", DIBS__FAULT_CONNECT},
                                      {"list", DIBS__FAULT_LIST},
                                      {"open", DIBS__FAULT_OPEN}};
  static const struct word hows[] = {{"unavailable", DIBS__FAULT_UNAVAILABLE},
                                     {"unknown-before", DIBS__FAULT_UNKNOWN_BEFORE},
                                     {"unknown-after", DIBS__FAULT_UNKNOWN_AFTER},
                                     {"dead", DIBS__FAULT_DEAD},
                                     {"dead-after", DIBS__FAULT_DEAD_AFTER}};
  const char *on = dibs__uri_param(uri, "fault.on");
  if (!on) on = "run";
  for (;;) {
    size_t len = strcspn(on, ",");
    int64_t call = value_of(calls, sizeof calls / sizeof calls[0], on, len);
    if (call < 0) {
      dibs__set_message(result, "fault.on of the store URI takes run, connect, list and open, separated by commas");
      return DIBS_INVALID;
    }
    plan->on |= (uint32_t)call;
    if (on[len] == '\0') break;
    on += len + 1;
  }
  const char *how = dibs__uri_param(uri, "fault.how");
  int64_t value = how ? value_of(hows, sizeof hows / sizeof hows[0], how, strlen(how)) : DIBS__FAULT_UNAVAILABLE;
  if (value < 0) {
    dibs__set_message(
        result, "fault.how of the store URI is not unavailable, unknown-before, unknown-after, dead or dead-after");
    return DIBS_INVALID;
  }
  plan->how = (enum dibs__fault_how)value;
  return DIBS_OK;
}

static dibs__status read_plan(const struct dibs__uri *uri, struct dibs__fault_plan *plan, uint32_t *events_rate,
                              struct dibs__result *result) {
  static const char *const known[] = {"fault.on",      "fault.rate", "fault.seed",   "fault.nth",
                                      "fault.forever", "fault.how",  "fault.events", NULL};
  int64_t seed, rate, nth, forever, events;
  dibs__status status = dibs__uri_only(uri, "fault", known, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "fault.seed", 0, INT64_MAX, 1, &seed, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "fault.rate", 0, 1000, 0, &rate, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "fault.nth", 0, INT64_MAX, 0, &nth, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "fault.forever", 0, 1, 0, &forever, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "fault.events", 0, 1000, 0, &events, result);
  if (status != DIBS_OK) return status;
  *plan = (struct dibs__fault_plan){
      .nth = (uint64_t)nth, .rate = (uint32_t)rate, .seed = (uint64_t)seed, .forever = forever != 0};
  *events_rate = (uint32_t)events;
  return read_words(uri, plan, result);
}

static void fault_close(struct dibs__dstore *store) {
  struct fault *fault = (struct fault *)store;
  if (!fault) return;
  dibs__mutex_destroy(&fault->lock);
  dibs__shim_close(store);
}

static dibs__status fault_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  (void)by;
  assert(count == 1);
  (void)count;
  *store = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__fault_plan plan;
  uint32_t events_rate;
  dibs__status status = read_plan(uri, &plan, &events_rate, result);
  if (status != DIBS_OK) return status;
  struct fault *fault = (struct fault *)dibs__shim_new(sizeof *fault, &dibs__fault_driver, inner[0], result);
  if (!fault) return DIBS_NO_MEMORY;
  dibs__mutex_init(&fault->lock);
  fault->own.plan = plan;
  fault->events_rate = events_rate;
  enum dibs__fault_how how;
  if (call_fails(fault, DIBS__FAULT_OPEN, &how)) {
    fault_close(&fault->shim.base);
    return fail_call(result, DIBS_UNAVAILABLE, "open");
  }
  *store = &fault->shim.base;
  return DIBS_OK;
}

static dibs__status fault_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                  struct dibs__identity *identity, struct dibs__result *result) {
  enum dibs__fault_how how;
  *session = NULL;
  if (call_fails((struct fault *)store, DIBS__FAULT_CONNECT, &how))
    return fail_call(result, DIBS_UNAVAILABLE, "connect");
  return dibs__shim_connect_sized(sizeof(struct session), store, by, session, identity, result);
}

/* It is done, and the caller gets no answer. */
static dibs__status run_and_lose(struct session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                                 struct dibs__result *result) {
  struct dibs__shim_before *before = dibs__shim_remember(ops, count);
  if (!before) return fail_call(result, DIBS_UNKNOWN, "run");
  dibs__status status = dibs__shim_run(&session->shim.base, ops, count, by, result);
  if (status == DIBS_OK) {
    dibs__shim_drop_answers(before, ops, count);
    status = fail_call(result, DIBS_UNKNOWN, "run");
  }
  dibs__shim_forget(before);
  return status;
}

static dibs__status fault_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                              struct dibs__result *result) {
  struct session *session = (struct session *)base;
  enum dibs__fault_how how = DIBS__FAULT_DEAD;
  dibs__status status;
  if (!session->dead && !call_fails((struct fault *)base->store, DIBS__FAULT_RUN, &how))
    return dibs__shim_run(base, ops, count, by, result);
  if (session->dead) how = DIBS__FAULT_DEAD;
  switch (how) {
  case DIBS__FAULT_UNKNOWN_BEFORE:
    return fail_call(result, DIBS_UNKNOWN, "run");
  case DIBS__FAULT_UNKNOWN_AFTER:
    return run_and_lose(session, ops, count, by, result);
  case DIBS__FAULT_DEAD_AFTER:
    status = run_and_lose(session, ops, count, by, result);
    result->dead = session->dead = true;
    return status;
  case DIBS__FAULT_DEAD:
    status = fail_call(result, DIBS_UNAVAILABLE, "run");
    result->dead = session->dead = true;
    return status;
  case DIBS__FAULT_UNAVAILABLE:
    break;
  }
  return fail_call(result, DIBS_UNAVAILABLE, "run");
}

static dibs__status fault_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                               struct dibs__result *result) {
  enum dibs__fault_how how;
  if (!call_fails((struct fault *)base->store, DIBS__FAULT_LIST, &how)) return dibs__shim_list(base, list, by, result);
  if (how == DIBS__FAULT_UNKNOWN_AFTER || how == DIBS__FAULT_DEAD_AFTER) dibs__shim_list(base, list, by, result);
  return fail_call(result, DIBS_UNAVAILABLE, "list");
}

static dibs__status fault_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                 dibs__tick by) {
  struct fault *fault = (struct fault *)store;
  *count = 0;
  if (fault->twice_count > 0 && cap > 0) {
    events[(*count)++] = fault->twice[--fault->twice_count];
    return DIBS_OK;
  }
  size_t got = 0;
  dibs__status status = dibs__shim_events(store, events, cap, &got, by);
  for (size_t i = 0; i < got; i++) {
    uint64_t drawn = dibs__shim_draw(fault->own.plan.seed, fault->events_seen++);
    bool strike = drawn % 1000 < fault->events_rate;
    bool twice = strike && (drawn >> 32 & 1);
    if (twice && fault->twice_count < TWICE) fault->twice[fault->twice_count++] = events[i];
    if (!strike || twice) events[(*count)++] = events[i];
  }
  return status;
}

static const char *const schemes[] = {"fault", NULL};

const struct dibs__driver dibs__fault_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "fault",
    .schemes = schemes,
    .inner_min = 1,
    .inner_max = 1,
    .open = fault_open,
    .close = fault_close,
    .connect = fault_connect,
    .disconnect = dibs__shim_disconnect,
    .run = fault_run,
    .events = fault_events,
    .wake = dibs__shim_wake,
    .list = fault_list,
    .tidy = dibs__shim_tidy,
};
