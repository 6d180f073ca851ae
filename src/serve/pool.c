/* SPDX-License-Identifier: MIT */
/* Threads for work that blocks. */
#include "serve/server.h"

#include <stdlib.h>

struct queue {
  struct request *first, *last;
};

struct pool {
  dibs__mutex lock; /* guards what follows */
  struct queue todo, done;
  uint32_t queued; /* not finished by dibs__pool_finish */
  uint32_t begun;  /* of these, by a thread */
  bool stopping;
  dibs__word word; /* goes up when there is something to do */
  int notifier;    /* readable while something is done */
  uint32_t count;
  dibs__thread *threads[];
};

static void enqueue(struct queue *queue, struct request *r) {
  r->next = NULL;
  if (queue->last)
    queue->last->next = r;
  else
    queue->first = r;
  queue->last = r;
}

static struct request *dequeue(struct queue *queue) {
  struct request *r = queue->first;
  if (!r) return NULL;
  queue->first = r->next;
  if (!queue->first) queue->last = NULL;
  return r;
}

static void work(void *arg) {
  struct pool *pool = arg;
  dibs__mutex_lock(&pool->lock);
  while (!pool->stopping) {
    struct request *r = dequeue(&pool->todo);
    uint32_t seen = atomic_load(&pool->word);
    pool->begun += r != NULL;
    dibs__mutex_unlock(&pool->lock);
    if (r)
      r->block(r);
    else
      dibs__word_wait(&pool->word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&pool->lock);
    if (!r) continue;
    enqueue(&pool->done, r);
    dibs__notifier_raise(pool->notifier);
  }
  dibs__mutex_unlock(&pool->lock);
}

static void free_pool(struct pool *pool) {
  dibs__notifier_close(pool->notifier);
  dibs__mutex_destroy(&pool->lock);
  free(pool);
}

struct pool *dibs__pool_open(uint32_t threads, int *done_fd) {
  struct pool *pool = calloc(1, sizeof *pool + threads * sizeof *pool->threads);
  if (!pool) return NULL;
  dibs__mutex_init(&pool->lock);
  pool->notifier = *done_fd = dibs__notifier_open();
  for (uint32_t i = 0; i < threads && pool->notifier >= 0; i++)
    if ((pool->threads[pool->count] = dibs__thread_start("dibs-serve", work, pool))) pool->count++;
  if (pool->count > 0) return pool;
  free_pool(pool);
  return NULL;
}

bool dibs__pool_try(struct request *r, void (*block)(struct request *r), void (*drop)(struct request *r)) {
  struct pool *pool = r->server->pool;
  dibs__mutex_lock(&pool->lock);
  bool takes = pool->queued < r->server->config.queue && !pool->stopping;
  if (takes) {
    pool->queued++;
    r->block = block;
    r->drop = drop;
    r->in_pool = true;
    enqueue(&pool->todo, r);
    atomic_fetch_add(&pool->word, 1);
  }
  dibs__mutex_unlock(&pool->lock);
  if (takes) dibs__word_wake(&pool->word, 1, false);
  return takes;
}

void dibs__pool_refuse(struct request *r) {
  if (r->server->stopping)
    dibs__answer_refuse(r, 503, "stopping", "dibs is stopping; repeat the request");
  else
    dibs__answer_refuse(r, 503, "overload", "%u requests wait for a thread already (--queue); repeat it later",
                        r->server->config.queue);
}

static void refuse(struct request *r, void (*drop)(struct request *r)) {
  dibs__pool_refuse(r);
  if (drop) drop(r);
}

void dibs__pool_run(struct request *r, void (*block)(struct request *r), void (*drop)(struct request *r)) {
  if (!r->connection) { /* of the watcher, whose thread may block */
    block(r);
    return;
  }
  if (!dibs__pool_try(r, block, drop)) refuse(r, drop);
}

void dibs__pool_finish(struct server *server) {
  struct pool *pool = server->pool;
  dibs__notifier_lower(pool->notifier);
  dibs__mutex_lock(&pool->lock);
  struct request *r;
  while ((r = dequeue(&pool->done))) {
    pool->queued--;
    pool->begun--;
    dibs__mutex_unlock(&pool->lock);
    r->in_pool = false;
    void (*then)(struct request *) = r->then;
    r->then = NULL;
    if (then)
      then(r);
    else
      dibs__answer_end(r);
    dibs__mutex_lock(&pool->lock);
  }
  dibs__mutex_unlock(&pool->lock);
}

uint32_t dibs__pool_waiting(const struct server *server) {
  struct pool *pool = server->pool;
  dibs__mutex_lock(&pool->lock);
  uint32_t waiting = pool->queued - pool->begun;
  dibs__mutex_unlock(&pool->lock);
  return waiting;
}

static void stop_threads(struct pool *pool) {
  dibs__mutex_lock(&pool->lock);
  pool->stopping = true;
  atomic_fetch_add(&pool->word, 1);
  dibs__mutex_unlock(&pool->lock);
  dibs__word_wake(&pool->word, pool->count, false);
  for (uint32_t i = 0; i < pool->count; i++) dibs__thread_join(pool->threads[i]);
}

void dibs__pool_close(struct server *server) {
  struct pool *pool = server->pool;
  if (!pool) return;
  stop_threads(pool);
  dibs__pool_finish(server);
  for (struct request *r; (r = dequeue(&pool->todo));) {
    r->in_pool = false;
    refuse(r, r->drop);
  }
  free_pool(pool);
  server->pool = NULL;
}
