/* SPDX-License-Identifier: MIT */
/*
 * Claiming tasks over HTTP, and waiting for them.
 *
 * Each kind and phase has a queue of waiting requests.  One claim at a time is made for it: for as many of the first
 * ones as can share it, and its tasks are divided among them in their order.  So ten thousand idle workers cost as much
 * as one, and a hundred busy ones a few commits.
 */
#include "base/map.h"
#include "base/text.h"
#include "handle/handle.h"
#include "serve/server.h"
#include "serve/task_count.h"
#include "task/task.h"

#include <stdlib.h>
#include <string.h>

enum {
  POLL_MS = 1000, /* the first of a queue claims at least so often */
  TICK_MS = 10    /* between two looks at all that wait */
};

/* One for each kind and phase for which requests wait. */
struct queues {
  struct dibs__map map; /* by kind and phase */
  struct queue *first;
  dibs__tick tick_at;
};

/* ---- Claiming ---- */

struct claim_in {
  int64_t most, wait_ms, timeout_ms;
  const char *phase, *owner;
};

#define IN(member) offsetof(struct claim_in, member)
static const struct field claim_fields[] = {
    {.name = "limit",
     .kind = FIELD_NUMBER,
     .at = IN(most),
     .least = 1,
     .most = DIBS_TASKS_MAX,
     .help = "how many tasks at most; 1 if it is not given"},
    {.name = "wait",
     .kind = FIELD_DURATION,
     .at = IN(wait_ms),
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the request may wait for a task; 0, the default: not at all"},
    {.name = "timeout",
     .kind = FIELD_DURATION,
     .at = IN(timeout_ms),
     .least = DIBS_TTL_MIN_MS,
     .most = DIBS_TTL_MAX_MS,
     .help = "how long the claim lasts if it is not extended; 30s if it is not given"},
    {.name = "phase", .at = IN(phase), .least = 1, .most = DIBS_NAME_MAX, .help = "only tasks in this phase"},
    {.name = "owner",
     .at = IN(owner),
     .least = 1,
     .most = DIBS_OWNER_MAX,
     .help = "a label for people; the label of the token if it is not given"},
    {.name = NULL}};

/* Text where it is text, else {"base64": ...}. */
void dibs__payload_write(struct dibs__json *j, const char *key, const char *p, size_t length) {
  bool text = true;
  uint32_t code;
  for (size_t at = 0, size; at < length && text; at += size) {
    size = dibs__utf8_next(p + at, length - at, &code);
    text = size > 0 && code != 0;
  }
  if (text) {
    dibs__json_bytes(j, key, p, length);
    return;
  }
  dibs__json_open(j, key, '{');
  dibs__json_base64(j, "base64", p, length);
  dibs__json_close(j, '}');
}

static void write_task(struct dibs__json *j, const dibs_task *task) {
  dibs__json_open(j, NULL, '{');
  dibs__json_uint(j, "task", task->nr);
  dibs__json_text(j, "kind", task->kind);
  dibs__json_uint(j, "fence", task->fence.value);
  dibs__json_text(j, "phase", task->phase);
  dibs__json_text(j, "key", task->serial);
  dibs__payload_write(j, "payload", task->payload, task->length);
  dibs__json_uint(j, "attempt", task->attempt);
  dibs__json_uint(j, "failures", task->fails);
  dibs__json_uint(j, "max_failures", task->tries);
  dibs__json_int(j, "age_ms", task->age_ms);
  dibs__json_int(j, "left_ms", dibs_task_left_ms(task));
  if (*task->error) dibs__json_text(j, "error", task->error);
  dibs__json_close(j, '}');
}

/* A request for tasks; while it waits, it is in the queue of its kind and phase. */
struct claiming {
  struct request *request;
  struct queue *queue; /* NULL: it does not wait */
  struct claiming *next;
  dibs__tick by; /* until then it waits */
  bool called;   /* the claim on its way is for it, too */
  bool tried;    /* one was made for it */
  dibs_task **tasks;
  size_t count;
  dibs_status status;
  dibs_error error;
};

struct queue {
  struct dibs__map_node by_name;
  struct queue *next; /* in server->queues */
  struct claiming *first, *last;
  bool busy;  /* a claim for the first ones is on its way, with the request of the very first */
  bool again; /* tasks became ready since that was sent */
  bool dry;   /* the last claim found none, and no task was added since */
  dibs__tick poll_at;
  dibs__tick over_at; /* no wait ends before it */
  const char *phase;  /* NULL: any */
  /* Of the claim on its way. */
  uint32_t called, most;
  dibs_task **tasks;
  size_t task_count;
  struct dibs__listener listener;
  char texts[];
};

static uint32_t most_of(const struct request *r) {
  return (uint32_t)dibs__given_or(((const struct claim_in *)r->in)->most, 1);
}

/* Of one request, or of all that are called in its queue: those have its options. */
static void claim_in_pool(struct request *r) {
  const struct claim_in *in = r->in;
  struct claiming *a = r->work;
  struct queue *queue = a->queue;
  dibs_claim_options options = {.size = sizeof options,
                                .phases = in->phase ? &in->phase : NULL,
                                .phase_count = in->phase != NULL,
                                .most = queue ? queue->most : most_of(r),
                                .timeout_ms = dibs__given_or(in->timeout_ms, 0),
                                .owner = dibs__auth_owner(r, in->owner)};
  a->status = dibs_tasks_claim(r->server->store, r->param[0], &options, queue ? queue->tasks : a->tasks,
                               queue ? &queue->task_count : &a->count, &a->error);
}

static void free_claiming(struct claiming *a) {
  for (size_t i = 0; i < a->count; i++) dibs_task_free(a->tasks[i]);
  free(a->tasks);
  free(a);
}

static void answer_claiming(struct claiming *a) {
  struct request *r = a->request;
  if (a->status == DIBS_OK || a->status == DIBS_NOT_FOUND) {
    struct dibs__json *j = dibs__answer_begin(r, 200);
    dibs__json_open(j, NULL, '{');
    dibs__json_open(j, "tasks", '[');
    for (size_t i = 0; i < a->count; i++) write_task(j, a->tasks[i]);
    dibs__json_close(j, ']');
    const char *why = a->count == 0 ? dibs__task_claim_why(&a->error) : NULL;
    if (why) dibs__json_text(j, "why", why);
    dibs__json_close(j, '}');
    for (size_t i = 0; i < a->count; i++) dibs__task_count_one(r, TASK_CLAIMED, a->tasks[i]->kind, a->tasks[i]->phase);
    dibs__answer_end(r);
  } else {
    dibs__answer_problem(r, a->status, &a->error);
  }
  free_claiming(a);
}

/* The client left while its tasks were claimed: others get them. */
static void give_back_in_pool(struct request *r) {
  struct claiming *a = r->work;
  for (size_t i = 0; i < a->count; i++) a->status = dibs_task_release(a->tasks[i], NULL);
}

static void gave_back(struct request *r) {
  struct claiming *a = r->work;
  dibs__answer_problem(r, DIBS_CANCELLED, NULL);
  free_claiming(a);
}

/* ---- Waiting ---- */

static void claim_for_first_ones(struct queue *queue);

static void roused(struct dibs__listener *listener) {
  struct queue *queue = (struct queue *)((char *)listener - offsetof(struct queue, listener));
  queue->again = true;
  queue->dry = false;
  claim_for_first_ones(queue);
}

static uint64_t hash_of(const char *kind, const char *phase) {
  return dibs__hash(kind, strlen(kind)) * 31 + (phase ? dibs__hash(phase, strlen(phase)) : 0);
}

static bool is_queue_of(const struct queue *queue, const char *kind, const char *phase) {
  if (strcmp(queue->listener.kind, kind) != 0 || !queue->phase != !phase) return false;
  return !phase || strcmp(queue->phase, phase) == 0;
}

static struct queue *make_queue(struct server *server, const char *kind, const char *phase) {
  struct queues *queues = server->queues;
  size_t kind_size = strlen(kind) + 1, phase_size = phase ? strlen(phase) + 1 : 0;
  struct queue *queue = calloc(1, sizeof *queue + kind_size + phase_size);
  if (!queue) return NULL;
  memcpy(queue->texts, kind, kind_size);
  if (phase) queue->phase = memcpy(queue->texts + kind_size, phase, phase_size);
  queue->listener.kind = queue->texts;
  queue->listener.roused = roused;
  queue->over_at = DIBS__TICK_NEVER;
  queue->next = queues->first;
  queues->first = queue;
  dibs__map_add(&queues->map, &queue->by_name, hash_of(kind, phase));
  dibs__listen(server->store, &queue->listener);
  return queue;
}

/* NULL: nobody waits there. */
static struct queue *find_queue(struct server *server, const char *kind, const char *phase) {
  uint64_t hash = hash_of(kind, phase);
  for (struct dibs__map_node *node = dibs__map_head(&server->queues->map, hash); node; node = node->next)
    if (node->hash == hash && is_queue_of((struct queue *)node, kind, phase)) return (struct queue *)node;
  return NULL;
}

static void leave_queue(struct claiming *a) {
  struct queue *queue = a->queue;
  struct claiming **at = &queue->first, *before = NULL;
  while (*at != a) {
    before = *at;
    at = &(*at)->next;
  }
  *at = a->next;
  if (queue->last == a) queue->last = before;
  a->queue = NULL;
  dibs__wait_end(a->request);
}

/* The client has left, the time is over, or the server stops. */
static void end_claiming(struct request *r) {
  struct claiming *a = r->work;
  if (a->called) return; /* its answer ends it */
  leave_queue(a);
  a->status = r->left ? DIBS_CANCELLED : DIBS_NOT_FOUND;
  answer_claiming(a);
}

static void join_queue(struct claiming *a) {
  struct request *r = a->request;
  const struct claim_in *in = r->in;
  struct queue *queue = NULL;
  if (dibs__may_wait(r)) {
    queue = find_queue(r->server, r->param[0], in->phase);
    if (!queue) queue = make_queue(r->server, r->param[0], in->phase);
  }
  if (!queue) {
    if (!r->answered) dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    free_claiming(a);
    return;
  }
  a->queue = queue;
  a->next = NULL;
  if (queue->last)
    queue->last->next = a;
  else
    queue->first = a;
  queue->last = a;
  if (dibs__tick_before(a->by, queue->over_at)) queue->over_at = a->by;
  dibs__wait_begin(r, end_claiming);
  if (!a->tried && !queue->dry)
    claim_for_first_ones(queue);
  else if (queue->first == a) /* once more, soon: a task may have been added before the queue listened */
    queue->poll_at = dibs__tick_now();
}

/* ---- Claiming ---- */

static void drop_claiming(struct request *r) {
  free_claiming(r->work);
}

static bool is_over(const struct claiming *a) {
  return a->request->left || a->request->server->stopping || !dibs__tick_before(dibs__tick_now(), a->by);
}

/* It has all that it gets. */
static void finish_claiming(struct claiming *a) {
  struct request *r = a->request;
  /* It would wait longer. */
  if (a->status == DIBS_NOT_FOUND && dibs__tick_before(dibs__tick_now(), a->by)) a->status = DIBS_CANCELLED;
  if (r->left && a->count > 0) {
    r->then = gave_back;
    dibs__pool_run(r, give_back_in_pool, drop_claiming);
  } else {
    answer_claiming(a);
  }
}

/* Of a claim without a queue. */
static void claim_ended(struct request *r) {
  struct claiming *a = r->work;
  a->tried = true;
  if (a->status == DIBS_NOT_FOUND && !is_over(a))
    join_queue(a);
  else
    finish_claiming(a);
}

static void give_tasks(struct queue *queue, size_t *given, bool left) {
  struct claiming *a = queue->first;
  for (uint32_t i = 0; i < queue->called; i++, a = a->next)
    while (a->request->left == left && *given < queue->task_count && a->count < most_of(a->request))
      a->tasks[a->count++] = queue->tasks[(*given)++];
}

/* In the order of the queue.  Those whose clients have left get what is over, and give it back. */
static void divide_tasks(struct queue *queue) {
  size_t given = 0;
  give_tasks(queue, &given, false);
  give_tasks(queue, &given, true);
  free(queue->tasks);
  queue->tasks = NULL;
}

static void shared_claim_ended(struct request *r) {
  struct claiming *first = r->work;
  struct queue *queue = first->queue;
  dibs_status status = first->status;
  dibs_error error = first->error;
  bool none = status == DIBS_NOT_FOUND;
  queue->busy = false;
  queue->dry = none && !queue->again;
  queue->poll_at = dibs__tick_add_ms(dibs__tick_now(), POLL_MS);
  divide_tasks(queue);
  struct claiming *a = queue->first;
  for (struct claiming *next; queue->called > 0; queue->called--, a = next) {
    next = a->next;
    a->called = false;
    a->tried = true;
    a->status = status == DIBS_OK && a->count == 0 ? DIBS_NOT_FOUND : status;
    a->error = error;
    if (a->status == DIBS_NOT_FOUND && !is_over(a)) continue;
    leave_queue(a);
    finish_claiming(a);
  }
  if (!none || queue->again) claim_for_first_ones(queue);
}

/* The pool closes, and has answered the first request. */
static void drop_shared_claim(struct request *r) {
  struct claiming *first = r->work;
  struct queue *queue = first->queue;
  struct claiming *a = first->next;
  free(queue->tasks);
  queue->tasks = NULL;
  queue->busy = false;
  leave_queue(first);
  free_claiming(first);
  for (struct claiming *next; queue->called > 1; queue->called--, a = next) {
    next = a->next;
    a->called = false;
    if (is_over(a)) end_claiming(a->request);
  }
  queue->called = 0;
}

static bool same_text(const char *a, const char *b) {
  return a == b || (a && b && strcmp(a, b) == 0);
}

/* Can one claim be for both? */
static bool share_a_claim(const struct request *r, const struct request *s) {
  const struct claim_in *in = r->in, *other = s->in;
  return in->timeout_ms == other->timeout_ms &&
         same_text(dibs__auth_owner(r, in->owner), dibs__auth_owner(s, other->owner));
}

/* Counts the first requests, which share a claim, and their tasks.  false: no memory. */
static bool call_first_ones(struct queue *queue) {
  const struct request *r = queue->first->request;
  queue->called = queue->most = 0;
  for (const struct claiming *a = queue->first; a; a = a->next) {
    uint32_t most = queue->most + most_of(a->request);
    if (queue->called > 0 && (most > DIBS_TASKS_MAX || !share_a_claim(r, a->request))) break;
    queue->called++;
    queue->most = most;
  }
  queue->task_count = 0;
  queue->tasks = calloc(queue->most, sizeof *queue->tasks);
  return queue->tasks != NULL;
}

static void claim_for_first_ones(struct queue *queue) {
  if (queue->busy || !queue->first) return;
  struct request *r = queue->first->request;
  r->then = shared_claim_ended;
  queue->busy = call_first_ones(queue) && dibs__pool_try(r, claim_in_pool, drop_shared_claim);
  if (queue->busy) {
    struct claiming *a = queue->first;
    queue->again = false;
    for (uint32_t i = 0; i < queue->called; i++, a = a->next) a->called = true;
  } else {
    free(queue->tasks);
    queue->tasks = NULL;
    queue->called = 0;
    queue->poll_at = dibs__tick_now(); /* the pool is full, or no memory: the next tick tries again */
  }
}

static void end_those_whose_time_is_over(struct queue *queue, dibs__tick now) {
  dibs__tick soonest = DIBS__TICK_NEVER;
  for (struct claiming *a = queue->first, *next; a; a = next) {
    next = a->next;
    if (dibs__tick_before(a->by, soonest)) soonest = a->by;
    if (!dibs__tick_before(now, a->by) && (a->tried || queue->dry)) end_claiming(a->request);
  }
  queue->over_at = dibs__tick_before(now, soonest) ? soonest : now; /* a request whose claim is on its way ends later */
}

static void tick_queue(struct queue *queue, dibs__tick now) {
  if (!dibs__tick_before(now, queue->over_at)) end_those_whose_time_is_over(queue, now);
  if (queue->first && !dibs__tick_before(now, queue->poll_at)) claim_for_first_ones(queue);
}

/* Nobody waits in the first one of a list, which has it no more. */
static void free_queue(struct server *server, struct queue **at) {
  struct queue *queue = *at;
  *at = queue->next;
  dibs__map_remove(&server->queues->map, &queue->by_name);
  dibs__listen_no_more(server->store, &queue->listener);
  free(queue);
}

bool dibs__tasks_open(struct server *server) {
  server->queues = calloc(1, sizeof *server->queues);
  return server->queues && dibs__map_init(&server->queues->map);
}

bool dibs__tasks_wait(const struct server *server) {
  return server->queues->first != NULL;
}

void dibs__tasks_tick(struct server *server, dibs__tick now) {
  struct queues *queues = server->queues;
  if (dibs__tick_before(now, queues->tick_at)) return;
  queues->tick_at = dibs__tick_add_ms(now, TICK_MS);
  for (struct queue **at = &queues->first; *at;) {
    tick_queue(*at, now);
    if ((*at)->first)
      at = &(*at)->next;
    else
      free_queue(server, at);
  }
}

void dibs__tasks_close(struct server *server) {
  if (!server->queues) return;
  while (server->queues->first) free_queue(server, &server->queues->first);
  dibs__map_free(&server->queues->map);
  free(server->queues);
}

/* While nobody gets a task, the next one joins the queue without a claim: ten thousand workers may come at once. */
static bool is_dry(const struct request *r) {
  const struct queue *queue = find_queue(r->server, r->param[0], ((const struct claim_in *)r->in)->phase);
  return queue && queue->first && queue->dry;
}

static void post_claim(struct request *r) {
  const struct claim_in *in = r->in;
  struct claiming *a = calloc(1, sizeof *a);
  if (a) a->tasks = calloc(most_of(r), sizeof *a->tasks);
  if (!a || !a->tasks) {
    free(a);
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  a->request = r;
  a->by = dibs__tick_add_ms(dibs__tick_now(), dibs__given_or(in->wait_ms, 0));
  r->work = a;
  r->then = claim_ended;
  /* With as many waiters as may be, it still gets a task that is ready. */
  bool may_wait = r->server->waiting < r->server->config.waiters;
  if (dibs__given_or(in->wait_ms, 0) == 0 || (!may_wait && !is_dry(r)))
    dibs__pool_run(r, claim_in_pool, drop_claiming);
  else
    join_queue(a);
}

/* ---- The route ---- */

const struct route dibs__claim_routes[] = {
    {METHOD_POST, "/v1/kinds/{kind}/claims", SCOPE_USE, post_claim, sizeof(struct claim_in), claim_fields, "claimTasks",
     "200", "Claim ready tasks of a kind", "With `wait` the request waits until there is one.", NULL},
    {.path = NULL}};
