/* SPDX-License-Identifier: MIT */
#include "task/http.h"
#include "store/module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 100 /* between two calls of `gone` */, STEP_MS = 1000 };

struct dibs__http {
  /* Immutable after open. */
  struct dibs__module module;
  const struct dibs__http_module *calls;
  struct dibs__transfers *transfers;
  dibs__thread *thread;
  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__http_request *first, *last; /* not started */
  bool stop, cancels;                      /* cancels: some request is given up */
  /* The client's thread only. */
  struct dibs__http_request *running;
};

/* ---- The client's thread ---- */

/* The caller may free the request as soon as the lock is free. */
static void answer(struct dibs__http *http, struct dibs__http_request *request) {
  dibs__mutex_lock(&http->lock);
  request->over = 1;
  dibs__word_wake(&request->over, 1, false);
  dibs__mutex_unlock(&http->lock);
}

static void forget_running(struct dibs__http *http, const struct dibs__http_request *request) {
  struct dibs__http_request **at = &http->running;
  while (*at != request) at = &(*at)->next;
  *at = request->next;
}

static void start_requests(struct dibs__http *http, struct dibs__http_request *request) {
  while (request != NULL) {
    struct dibs__http_request *next = request->next;
    if (http->calls->start(http->transfers, request)) {
      request->next = http->running;
      http->running = request;
    } else {
      snprintf(request->answer.trouble, sizeof request->answer.trouble, "out of memory");
      answer(http, request);
    }
    request = next;
  }
}

static struct dibs__http_request *find_cancelled(struct dibs__http *http) {
  dibs__mutex_lock(&http->lock);
  struct dibs__http_request *request = http->running;
  while (request != NULL && !request->cancelled) request = request->next;
  dibs__mutex_unlock(&http->lock);
  return request;
}

static void cancel_requests(struct dibs__http *http) {
  for (struct dibs__http_request *request; (request = find_cancelled(http)) != NULL;) {
    forget_running(http, request);
    http->calls->cancel(http->transfers, request);
    snprintf(request->answer.trouble, sizeof request->answer.trouble, "it was given up");
    answer(http, request);
  }
}

static void run_client(void *arg) {
  struct dibs__http *http = arg;
  for (bool stop = false; !stop;) {
    dibs__mutex_lock(&http->lock);
    struct dibs__http_request *fresh = http->first;
    bool cancels = http->cancels;
    http->first = http->last = NULL;
    http->cancels = false;
    stop = http->stop;
    dibs__mutex_unlock(&http->lock);
    start_requests(http, fresh);
    if (cancels) cancel_requests(http);
    for (struct dibs__http_request *request = http->calls->step(http->transfers, stop ? 0 : STEP_MS); request != NULL;
         request = http->calls->step(http->transfers, 0)) {
      forget_running(http, request);
      answer(http, request);
    }
  }
  assert(http->running == NULL);
}

/* ---- Sending ---- */

void dibs__http_send(struct dibs__http *http, struct dibs__http_request *request, bool (*gone)(void *arg), void *arg) {
  memset(&request->answer, 0, sizeof request->answer);
  request->over = 0;
  request->cancelled = false;
  request->next = NULL;
  dibs__mutex_lock(&http->lock);
  assert(request->body != NULL && !http->stop);
  if (http->last != NULL)
    http->last->next = request;
  else
    http->first = request;
  http->last = request;
  dibs__mutex_unlock(&http->lock);
  http->calls->wake(http->transfers);
  for (bool cancelled = false; request->over == 0;) {
    if (dibs__word_wait(&request->over, 0, dibs__tick_add_ms(dibs__tick_now(), LOOK_MS), false) || cancelled) continue;
    if (request->over != 0 || !gone(arg)) continue;
    dibs__mutex_lock(&http->lock);
    request->cancelled = http->cancels = cancelled = true;
    dibs__mutex_unlock(&http->lock);
    http->calls->wake(http->transfers);
  }
  /* The client's thread has left the request when it has left the lock. */
  dibs__mutex_lock(&http->lock);
  dibs__mutex_unlock(&http->lock);
}

/* ---- Opening ---- */

static const struct dibs__module_part module_part = {.file = DIBS__HTTP_MODULE_FILE,
                                                     .symbol = DIBS__HTTP_MODULE_SYMBOL,
                                                     .lacks = "can't send HTTP",
                                                     .package = "libdibs-http",
                                                     .library = "libcurl",
                                                     .head = {sizeof(struct dibs__http_module), DIBS__HTTP_MODULE_ABI}};

bool dibs__http_open(const struct dibs__http_options *options, struct dibs__http **http, char *why, size_t size) {
  assert(options->connections > 0 && options->connections <= DIBS__HTTP_CONNECTIONS);
  struct dibs__http *made = calloc(1, sizeof *made);
  *http = NULL;
  snprintf(why, size, "out of memory");
  if (made == NULL) return false;
  dibs__mutex_init(&made->lock);
  made->calls = (const struct dibs__http_module *)dibs__module_load_part(&module_part, &made->module, why, size);
  if (made->calls != NULL) made->transfers = made->calls->open(options, why, size);
  if (made->transfers != NULL) {
    made->thread = dibs__thread_start("dibs-http", run_client, made);
    if (made->thread == NULL) snprintf(why, size, "no thread can be started");
  }
  if (made->thread != NULL) {
    *http = made;
    return true;
  }
  dibs__http_close(made);
  return false;
}

void dibs__http_close(struct dibs__http *http) {
  if (http == NULL) return;
  if (http->thread != NULL) {
    dibs__mutex_lock(&http->lock);
    assert(http->first == NULL);
    http->stop = true;
    dibs__mutex_unlock(&http->lock);
    http->calls->wake(http->transfers);
    dibs__thread_join(http->thread);
  }
  if (http->transfers != NULL) http->calls->close(http->transfers);
  /* The module stays loaded: libcurl has no safe end while other threads may use its libraries. */
  dibs__mutex_destroy(&http->lock);
  free(http);
}
