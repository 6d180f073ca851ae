/* SPDX-License-Identifier: MIT */
/*
 * Events: a thread that polls the daemon, from the first waiter or the first call of events() on.  The poll also shows
 * that this client lives, so it goes on while nobody is in events().
 */
#include "drivers/http/http_impl.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>

enum {
  POLL_MS = 25000, /* less than the time after which proxies give up */
  LATE_MS = 10000, /* how long an answer may take beyond that */
  REST_MS = 100,   /* after a failed poll; doubled up to */
  REST_MAX_MS = 2000,
  READY_MS = 2000,  /* how long the first waiter waits for the first poll */
  PARTING_MS = 2000 /* closing waits so long for the daemon, which cancels our waiters */
};

/* ---- The queue ---- */

void dibs__http_recheck(struct dibs__http *store) {
  dibs__mutex_lock(&store->lock);
  store->recheck = true;
  dibs__mutex_unlock(&store->lock);
  dibs__notifier_raise(store->notifier);
}

static void add_events(struct dibs__http *store, struct dibs__reader *r) {
  struct dibs__event event;
  dibs__mutex_lock(&store->lock);
  for (uint64_t count = dibs__read_number(r, UINT32_MAX); count > 0 && !r->bad; count--) {
    dibs__read_event(r, &event);
    if (r->bad) break;
    if (store->event_count < DIBS__HTTP_EVENTS)
      store->events[store->event_count++] = event;
    else
      store->recheck = true;
  }
  store->recheck = store->recheck || r->bad;
  bool any = store->event_count > 0 || store->recheck;
  dibs__mutex_unlock(&store->lock);
  if (any) dibs__notifier_raise(store->notifier);
}

static size_t take_events(struct dibs__http *store, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  if (store->recheck && cap > 0) {
    events[count++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    store->recheck = false;
  }
  size_t some = store->event_count < cap - count ? store->event_count : cap - count;
  for (size_t i = 0; i < some; i++) events[count++] = store->events[i];
  store->event_count -= some;
  for (size_t i = 0; i < store->event_count; i++) store->events[i] = store->events[i + some];
  bool more = store->event_count > 0 || store->recheck;
  dibs__mutex_unlock(&store->lock);
  if (more) dibs__notifier_raise(store->notifier);
  return count;
}

/* ---- The thread ---- */

static dibs__status poll_once(struct dibs__http *store) {
  struct dibs__writer w = {0};
  struct dibs__http_answer answer;
  struct dibs__message_hello hello;
  struct dibs__result result = {.text = ""};
  uint32_t format;
  dibs__message_begin(&w, DIBS__MESSAGE_EVENTS);
  dibs__write_bytes(&w, store->number.b, sizeof store->number.b);
  dibs__write_number(&w, POLL_MS);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), POLL_MS + LATE_MS);
  dibs__status status = dibs__http_post(store->polling, &w, by, &answer, &store->polls, &result);
  if (status == DIBS_OK) {
    struct dibs__reader r = {answer.bytes, answer.bytes + answer.length, false};
    r.bad = dibs__message_kind(&r, &format) != DIBS__MESSAGE_EVENTS;
    add_events(store, &r);
  }
  bool unknown = answer.no_session && !atomic_load(&store->leaving);
  dibs__writer_free(&w);
  dibs__http_answer_free(&answer);
  by = dibs__tick_add_ms(dibs__tick_now(), READY_MS);
  return unknown ? dibs__http_hello(store->polling, by, &hello, &result) : status;
}

static void poll_body(void *arg) {
  struct dibs__http *store = arg;
  bool missed = false;
  for (int64_t rest_ms = REST_MS; !atomic_load(&store->leaving);) {
    if (poll_once(store) == DIBS_OK) {
      if (missed) dibs__http_recheck(store);
      missed = false;
      rest_ms = REST_MS;
      continue;
    }
    missed = true;
    atomic_fetch_add(&store->polls, 1); /* the first waiter does not wait for it any longer */
    dibs__word_wake(&store->polls, 1, false);
    if (!atomic_load(&store->leaving)) dibs__http_link_rest(store->polling, rest_ms);
    rest_ms = rest_ms * 2 < REST_MAX_MS ? rest_ms * 2 : REST_MAX_MS;
  }
}

static bool ensure_polling(struct dibs__http *store) {
  dibs__mutex_lock(&store->lock);
  if (!store->polling) store->polling = dibs__http_link_open(store);
  if (store->polling && !store->thread) store->thread = dibs__thread_start("dibs-http", poll_body, store);
  bool runs = store->thread != NULL;
  dibs__mutex_unlock(&store->lock);
  return runs;
}

dibs__status dibs__http_poll_ready(struct dibs__http *store, dibs__tick by) {
  if (atomic_load(&store->polls) != 0) return DIBS_OK;
  if (!ensure_polling(store)) return DIBS_NO_MEMORY;
  by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), READY_MS));
  while (atomic_load(&store->polls) == 0)
    if (!dibs__word_wait(&store->polls, 0, by, false)) break;
  return DIBS_OK;
}

/* The daemon cancels our waiters, and answers the poll. */
static void say_bye(struct dibs__http *store) {
  struct dibs__http_link *link = dibs__http_link_open(store);
  if (!link) return;
  struct dibs__writer w = {0};
  struct dibs__http_answer answer;
  struct dibs__result result;
  dibs__message_begin(&w, DIBS__MESSAGE_BYE);
  dibs__write_bytes(&w, store->number.b, sizeof store->number.b);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PARTING_MS);
  (void)dibs__http_post(link, &w, by, &answer, NULL, &result);
  dibs__writer_free(&w);
  dibs__http_answer_free(&answer);
  dibs__http_link_close(link);
}

void dibs__http_poll_stop(struct dibs__http *store) {
  if (!store->polling) return;
  atomic_store(&store->leaving, true);
  if (store->thread) say_bye(store);
  atomic_store(&store->stopping, true);
  dibs__http_link_wake(store->polling);
  dibs__thread_join(store->thread);
  dibs__http_link_close(store->polling);
}

/* ---- The driver's functions ---- */

dibs__status dibs__http_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by) {
  struct dibs__http *store = (struct dibs__http *)base;
  struct pollfd fd = {.fd = store->notifier, .events = POLLIN};
  *count = 0;
  if (!ensure_polling(store)) return DIBS_UNAVAILABLE;
  for (;;) {
    *count = take_events(store, events, cap);
    if (*count > 0) return DIBS_OK;
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    int got = poll(&fd, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got == 0 && left >= 0) return DIBS_OK;
    if (got <= 0) continue;
    dibs__notifier_lower(store->notifier);
    *count = take_events(store, events, cap);
    return DIBS_OK;
  }
}

void dibs__http_wake(struct dibs__dstore *base) {
  dibs__notifier_raise(((struct dibs__http *)base)->notifier);
}
