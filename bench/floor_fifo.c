/* SPDX-License-Identifier: MIT */
/*
 * A ticket queue: a thread waits at the end of the queue on a condition variable of its own; an unlock hands the lock
 * to the first waiter, so no thread overtakes.  The signal is sent after the mutex is unlocked: otherwise the woken
 * thread blocks on it, which costs a tenth of the rate.
 */
#include "bench/floor.h"

#include <pthread.h>
#include <stdlib.h>

struct floor_fifo_waiter {
  pthread_cond_t turn;
  bool granted;
  struct floor_fifo_waiter *next;
};

struct floor_fifo {
  pthread_mutex_t mutex;
  bool held;
  struct floor_fifo_waiter *first, **last;
};

struct floor_fifo *dibs__floor_fifo_new(void) {
  struct floor_fifo *fifo = calloc(1, sizeof *fifo);
  if (!fifo) return NULL;
  pthread_mutex_init(&fifo->mutex, NULL);
  fifo->last = &fifo->first;
  return fifo;
}

void dibs__floor_fifo_free(struct floor_fifo *fifo) {
  if (!fifo) return;
  pthread_mutex_destroy(&fifo->mutex);
  free(fifo);
}

struct floor_fifo_waiter *dibs__floor_fifo_waiter_new(void) {
  struct floor_fifo_waiter *waiter = calloc(1, sizeof *waiter);
  if (waiter) pthread_cond_init(&waiter->turn, NULL);
  return waiter;
}

void dibs__floor_fifo_waiter_free(struct floor_fifo_waiter *waiter) {
  if (!waiter) return;
  pthread_cond_destroy(&waiter->turn);
  free(waiter);
}

void dibs__floor_fifo_lock(struct floor_fifo *fifo, struct floor_fifo_waiter *waiter) {
  pthread_mutex_lock(&fifo->mutex);
  if (fifo->held) {
    waiter->granted = false;
    waiter->next = NULL;
    *fifo->last = waiter;
    fifo->last = &waiter->next;
    while (!waiter->granted) pthread_cond_wait(&waiter->turn, &fifo->mutex);
  }
  fifo->held = true;
  pthread_mutex_unlock(&fifo->mutex);
}

void dibs__floor_fifo_unlock(struct floor_fifo *fifo) {
  pthread_mutex_lock(&fifo->mutex);
  struct floor_fifo_waiter *next = fifo->first;
  if (next) {
    fifo->first = next->next;
    if (!fifo->first) fifo->last = &fifo->first;
    next->granted = true;
  } else {
    fifo->held = false;
  }
  pthread_mutex_unlock(&fifo->mutex);
  if (next) pthread_cond_signal(&next->turn);
}
