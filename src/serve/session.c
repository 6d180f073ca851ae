/* SPDX-License-Identifier: MIT */
/* Sessions of remote clients, their events, and what happens when they end: see session.h. */
#include "serve/session.h"
#include "handle/handle.h"

#include <stdlib.h>
#include <string.h>

enum {
  GRACE_MS = 10000,  /* a client polls again at once; a request that was lost on its way is repeated within this time */
  CANCEL_MS = 60000, /* how long a waiter of an ended session is cancelled again after a failure */
  TICK_MS = 1000,
  QUEUED_MAX = 4096 /* events that the loop has not looked at; if there are more, everybody checks again */
};

#define FOR_ALL(what) (1u << (what))

struct sessions {
  struct dibs__map by_number, by_id;
  struct session *first;
  uint32_t count;
  dibs__tick next_tick;
  struct source source;
  int notifier;
  dibs__mutex lock; /* guards what follows: the store's threads add events */
  uint32_t for_all;
  size_t event_count;
  struct dibs__event events[QUEUED_MAX];
};

static uint64_t hash_of(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

/* ---- Ids ---- */

static struct interest *find_interest(const struct sessions *all, const dibs__id *id) {
  uint64_t hash = hash_of(id);
  for (struct dibs__map_node *node = dibs__map_head(&all->by_id, hash); node; node = node->next)
    if (node->hash == hash && dibs__id_equal(((struct interest *)node)->id, *id)) return (struct interest *)node;
  return NULL;
}

static void drop_interest(struct sessions *all, struct interest *interest) {
  struct session *session = interest->session;
  dibs__map_remove(&all->by_id, &interest->by_id);
  if (interest->before)
    interest->before->after = interest->after;
  else
    session->first = interest->after;
  if (interest->after) interest->after->before = interest->before;
  session->ids--;
  free(interest);
}

static struct interest *add_interest(struct sessions *all, struct session *session, const struct dibs__lease_op *op,
                                     uint32_t most) {
  if (session->ids >= most) return NULL;
  struct interest *interest = calloc(1, sizeof *interest + op->name.len);
  if (!interest) return NULL;
  interest->id = op->id;
  interest->session = session;
  interest->length = op->name.len;
  memcpy(interest->name, op->name.p, op->name.len);
  interest->after = session->first;
  if (interest->after) interest->after->before = interest;
  session->first = interest;
  session->ids++;
  dibs__map_add(&all->by_id, &interest->by_id, hash_of(&op->id));
  return interest;
}

/* The latest session that uses an id has it: a client that lost its session continues with another. */
static struct interest *take_interest(struct server *server, struct session *session, const struct dibs__lease_op *op) {
  struct sessions *all = server->sessions;
  struct interest *interest = find_interest(all, &op->id);
  if (interest && interest->session == session && interest->length == op->name.len &&
      memcmp(interest->name, op->name.p, op->name.len) == 0)
    return interest;
  if (interest) drop_interest(all, interest);
  return add_interest(all, session, op, server->config.session_ids);
}

bool dibs__session_expects(struct server *server, struct session *session, const struct dibs__lease_op *op) {
  struct interest *interest = take_interest(server, session, op);
  if (interest) interest->waits = true;
  return interest != NULL;
}

/* ---- Cancelling what a client that is gone waits for ---- */

struct cancel {
  struct dibs__lease_op op; /* first */
  struct dibs__due_call due;
  struct session *session;
  dibs_store *store;
  dibs__tick until;
  char name[];
};

static void free_if_unused(struct session *session) {
  if (!session->ended || session->running > 0 || session->cancels > 0) return;
  struct request *ender = session->ender;
  free(session);
  if (ender) dibs__store_bye(ender);
}

static void send_cancel(struct cancel *cancel);

/* In the loop. */
static bool cancel_due_locked(dibs_store *store, struct dibs__due_call *due) {
  struct cancel *cancel = (struct cancel *)((char *)due - offsetof(struct cancel, due));
  struct session *session = cancel->session;
  dibs__status status = cancel->op.op.status;
  bool again = (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_TIMEOUT) && !store->closing &&
               dibs__tick_before(dibs__tick_now(), cancel->until);
  dibs__mutex_unlock(&store->lock);
  if (again) {
    send_cancel(cancel);
  } else {
    free(cancel);
    session->cancels--;
    free_if_unused(session);
  }
  dibs__mutex_lock(&store->lock);
  return true;
}

/* Any thread that leads. */
static void cancel_answered(struct dibs__op *op) {
  struct cancel *cancel = (struct cancel *)op;
  dibs_store *store = cancel->store;
  dibs__mutex_lock(&store->lock);
  dibs__calls_queue_locked(store, &cancel->due);
  store->in_flight--;
  dibs__mutex_unlock(&store->lock);
}

static void send_cancel(struct cancel *cancel) {
  dibs_store *store = cancel->store;
  struct dibs__op *op = &cancel->op.op;
  dibs__core_head(store->core, op, DIBS__FAM_LEASE, DIBS__CANCEL, DIBS__OP_FOLLOWS, dibs__bucket(cancel->op.name),
                  cancel_answered);
  op->by = cancel->until; /* thousands may leave together */
  dibs__mutex_lock(&store->lock);
  store->in_flight++;
  dibs__mutex_unlock(&store->lock);
  dibs__start(store, op);
}

/* Without memory the waiter stays until it does not confirm an offer, or the daemon ends. */
static void cancel_waiter(struct server *server, struct session *session, const dibs__id *id, dibs__str name) {
  dibs_store *store = server->store;
  struct cancel *cancel = store->closing ? NULL : calloc(1, sizeof *cancel + name.len);
  if (!cancel) return;
  cancel->due.run_locked = cancel_due_locked;
  cancel->session = session;
  cancel->store = store;
  cancel->until = dibs__tick_add_ms(dibs__tick_now(), CANCEL_MS);
  memcpy(cancel->name, name.p, name.len);
  cancel->op.name = dibs__str_of(cancel->name, name.len);
  cancel->op.id = *id;
  cancel->op.only_waits = true; /* not a lease: the client may have it by another daemon */
  session->cancels++;
  send_cancel(cancel);
}

static bool may_wait(const struct dibs__lease_op *op) {
  switch (op->op.status) {
  case DIBS__QUEUED:
    return true;
  case DIBS_UNKNOWN:
  case DIBS_UNAVAILABLE: /* it was repeated, or may be */
    return op->queue;
  default:
    return false;
  }
}

void dibs__session_learns(struct server *server, struct session *session, const struct dibs__lease_op *op) {
  struct sessions *all = server->sessions;
  bool acquire = op->op.verb == DIBS__ACQUIRE, waits = acquire && may_wait(op);
  bool holds = (acquire || op->op.verb == DIBS__RENEW) && op->op.status == DIBS_OK;
  if (op->op.verb == DIBS__BREAK) return;
  if (session->ended) {
    if (waits) cancel_waiter(server, session, &op->id, op->name);
    return;
  }
  if (op->op.status == DIBS_TIMEOUT) return; /* it was never sent */
  if (!acquire && (op->op.status == DIBS_UNKNOWN || op->op.status == DIBS_UNAVAILABLE)) return;
  if (waits || holds) {
    struct interest *interest = take_interest(server, session, op);
    if (interest) interest->waits = waits;
    return;
  }
  struct interest *interest = find_interest(all, &op->id);
  if (interest && interest->session == session) drop_interest(all, interest);
}

/* ---- Sessions ---- */

struct session *dibs__session_find(struct server *server, const dibs__id *number) {
  uint64_t hash = hash_of(number);
  for (struct dibs__map_node *node = dibs__map_head(&server->sessions->by_number, hash); node; node = node->next) {
    struct session *session = (struct session *)node;
    if (node->hash != hash || !dibs__id_equal(session->number, *number)) continue;
    session->seen = dibs__tick_now();
    return session;
  }
  return NULL;
}

struct session *dibs__session_make(struct server *server, const dibs__id *number) {
  struct sessions *all = server->sessions;
  struct session *session = dibs__session_find(server, number);
  if (session) return session;
  session = all->count < server->config.connections ? calloc(1, sizeof *session) : NULL;
  if (!session) return NULL;
  session->number = *number;
  session->seen = dibs__tick_now();
  session->after = all->first;
  if (session->after) session->after->before = session;
  all->first = session;
  all->count++;
  dibs__map_add(&all->by_number, &session->by_number, hash_of(number));
  return session;
}

void dibs__session_answered(struct server *server, struct session *session) {
  (void)server;
  session->running--;
  free_if_unused(session);
}

static void answer_poll(struct session *session);

void dibs__session_end(struct server *server, struct session *session, struct request *ender) {
  struct sessions *all = server->sessions;
  dibs__map_remove(&all->by_number, &session->by_number);
  if (session->before)
    session->before->after = session->after;
  else
    all->first = session->after;
  if (session->after) session->after->before = session->before;
  all->count--;
  if (session->poll) answer_poll(session);
  while (session->first) {
    struct interest *interest = session->first;
    if (interest->waits) cancel_waiter(server, session, &interest->id, dibs__str_of(interest->name, interest->length));
    drop_interest(all, interest);
  }
  session->ended = true;
  session->ender = ender;
  free_if_unused(session);
}

/* ---- Events of a session ---- */

static void add_event(struct session *session, const struct dibs__event *event) {
  if (session->event_count < SESSION_EVENTS)
    session->events[session->event_count++] = *event;
  else
    session->for_all |= FOR_ALL(DIBS__EV_RECHECK);
}

static void answer_poll(struct session *session) {
  struct request *r = session->poll;
  struct dibs__writer w = {0};
  uint32_t all = 0;
  session->poll = NULL;
  session->seen = dibs__tick_now();
  for (uint32_t bits = session->for_all; bits; bits &= bits - 1) all++;
  dibs__message_begin(&w, DIBS__MESSAGE_EVENTS);
  dibs__write_number(&w, session->event_count + all);
  for (uint32_t what = 0; what <= DIBS__EV_TASKS; what++)
    if (session->for_all & FOR_ALL(what))
      dibs__write_event(&w, &(struct dibs__event){.what = (enum dibs__event_what)what});
  for (size_t i = 0; i < session->event_count; i++) dibs__write_event(&w, &session->events[i]);
  session->event_count = 0;
  session->for_all = 0;
  dibs__store_answer(r, &w);
  dibs__answer_end(r);
}

/* The client has hung up, or the daemon stops. */
static void poll_ends(struct request *r) {
  struct session *session = r->work;
  struct server *server = r->server;
  session->poll = NULL;
  r->work = NULL;
  if (server->stopping) {
    dibs__answer_refuse(r, 503, "stopping", "this daemon is stopping");
    return;
  }
  dibs__answer_problem(r, DIBS_CANCELLED, NULL);
  dibs__session_end(server, session, NULL);
}

void dibs__session_poll(struct session *session, struct request *r, int64_t wait_ms) {
  if (session->poll) answer_poll(session); /* its client has lost that connection, or made another one */
  session->poll = r;
  session->poll_until = dibs__tick_add_ms(dibs__tick_now(), wait_ms);
  if (wait_ms == 0 || session->event_count > 0 || session->for_all) {
    answer_poll(session);
    return;
  }
  r->work = session;
  r->listens = true;
  dibs__wait_begin(r, poll_ends);
}

/* ---- Events of the store ---- */

/* Any thread of the store's. */
static void store_event(void *context, const struct dibs__event *event) {
  struct sessions *all = context;
  bool has_id = event->what == DIBS__EV_OFFER || event->what == DIBS__EV_LOST;
  dibs__mutex_lock(&all->lock);
  bool first = all->event_count == 0 && all->for_all == 0;
  if (!has_id)
    all->for_all |= FOR_ALL(event->what);
  else if (all->event_count < QUEUED_MAX)
    all->events[all->event_count++] = *event;
  else
    all->for_all |= FOR_ALL(DIBS__EV_RECHECK);
  dibs__mutex_unlock(&all->lock);
  if (first) dibs__notifier_raise(all->notifier);
}

static void pass_event(struct sessions *all, const struct dibs__event *event) {
  struct interest *interest = find_interest(all, &event->id);
  if (!interest) return;
  add_event(interest->session, event);
  if (interest->session->poll) answer_poll(interest->session);
}

static void pass_events(struct server *server, struct source *source) {
  struct sessions *all = server->sessions;
  (void)source;
  dibs__notifier_lower(all->notifier);
  for (;;) {
    struct dibs__event some[64];
    dibs__mutex_lock(&all->lock);
    size_t count = all->event_count < 64 ? all->event_count : 64;
    uint32_t for_all = all->for_all;
    memcpy(some, all->events, count * sizeof *some);
    all->event_count -= count;
    memmove(all->events, all->events + count, all->event_count * sizeof *some);
    all->for_all = 0;
    dibs__mutex_unlock(&all->lock);
    if (count == 0 && for_all == 0) return;
    for (size_t i = 0; i < count; i++) pass_event(all, &some[i]);
    for (struct session *session = all->first; for_all && session; session = session->after) {
      session->for_all |= for_all;
      if (session->poll) answer_poll(session);
    }
  }
}

/* ---- Time ---- */

void dibs__sessions_tick(struct server *server, dibs__tick now) {
  struct sessions *all = server->sessions;
  if (server->stopping || dibs__tick_before(now, all->next_tick)) return;
  all->next_tick = dibs__tick_add_ms(now, TICK_MS);
  for (struct session *session = all->first, *next; session; session = next) {
    next = session->after;
    if (session->poll && !dibs__tick_before(now, session->poll_until)) answer_poll(session);
    if (session->poll || session->running > 0) continue;
    if (!dibs__tick_before(now, dibs__tick_add_ms(session->seen, GRACE_MS))) dibs__session_end(server, session, NULL);
  }
}

bool dibs__sessions_open(struct server *server) {
  struct sessions *all = calloc(1, sizeof *all);
  if (!all) return false;
  server->sessions = all;
  dibs__mutex_init(&all->lock);
  all->notifier = dibs__notifier_open();
  if (all->notifier < 0 || !dibs__map_init(&all->by_number) || !dibs__map_init(&all->by_id)) return false;
  dibs__store_watch(server->store, store_event, all);
  return dibs__loop_add(server, &all->source, all->notifier, pass_events);
}

void dibs__sessions_close(struct server *server) {
  struct sessions *all = server->sessions;
  if (!all) return;
  for (struct session *session; (session = all->first);) {
    all->first = session->after;
    while (session->first) drop_interest(all, session->first);
    free(session);
  }
  dibs__map_free(&all->by_number);
  dibs__map_free(&all->by_id);
  if (all->notifier >= 0) dibs__notifier_close(all->notifier);
  dibs__mutex_destroy(&all->lock);
  free(all);
}
