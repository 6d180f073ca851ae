/* SPDX-License-Identifier: MIT */
#include "serve/probe.h"
#include "dibs/admin.h"
#include "serve/server.h"

#include <stdlib.h>

enum {
  FRESH_MS = 1000,
  FOLLOWERS_MAX = 1000 /* requests that wait for one probe: they count as running ones */
};

struct probe {
  dibs__mutex asking; /* held by the thread that asks the store; taken before the lock */
  dibs__mutex lock;   /* guards `up`, `known` and `fresh_until` */
  bool up, known;
  dibs__tick fresh_until;
  /* The loop alone: */
  struct request *asker;          /* in the pool; NULL: none */
  struct request *first_follower; /* those that wait for its result, linked by `next` */
  uint32_t followers;
  void (*answer)(struct request *r, bool up);
};

/* ---- Opening ---- */

bool dibs__probe_open(struct server *server) {
  struct probe *probe = server->probe = calloc(1, sizeof *probe);
  if (!probe) return false;
  dibs__mutex_init(&probe->asking);
  dibs__mutex_init(&probe->lock);
  return true;
}

void dibs__probe_close(struct server *server) {
  struct probe *probe = server->probe;
  if (!probe) return;
  dibs__mutex_destroy(&probe->asking);
  dibs__mutex_destroy(&probe->lock);
  free(probe);
}

/* ---- The result ---- */

/* false: there is none, or it is too old. */
static bool read_result(struct probe *probe, bool *up) {
  dibs__mutex_lock(&probe->lock);
  bool fresh = probe->known && dibs__tick_before(dibs__tick_now(), probe->fresh_until);
  *up = probe->up;
  dibs__mutex_unlock(&probe->lock);
  return fresh;
}

static int see_nothing(const dibs_lease_info *info, void *user) {
  (void)info, (void)user;
  return 1;
}

/* The reason is for the operator: it may name the database and its user, so no answer to a client without a token has
 * it. */
static void keep_result(struct server *server, bool up, const dibs_error *error) {
  struct probe *probe = server->probe;
  dibs__mutex_lock(&probe->lock);
  bool turned = probe->known ? probe->up != up : !up;
  probe->up = up;
  probe->known = true;
  probe->fresh_until = dibs__tick_add_ms(dibs__tick_now(), FRESH_MS);
  dibs__mutex_unlock(&probe->lock);
  if (!turned) return;
  if (up)
    server->config.note("the store answers again");
  else
    server->config.note("the store does not answer: %s", error->text);
}

bool dibs__probe_store_is_up(struct server *server) {
  struct probe *probe = server->probe;
  dibs_error error = {0};
  bool up;
  if (read_result(probe, &up)) return up;
  dibs__mutex_lock(&probe->asking);
  if (!read_result(probe, &up)) { /* nobody asked meanwhile */
    dibs_status status = dibs_show(server->store, "dibs-serve", see_nothing, NULL, &error);
    up = status == DIBS_OK || status == DIBS_NOT_FOUND;
    keep_result(server, up, &error);
  }
  dibs__mutex_unlock(&probe->asking);
  return up;
}

/* ---- Requests ---- */

static struct request *take_followers(struct probe *probe) {
  struct request *first = probe->first_follower;
  probe->asker = probe->first_follower = NULL;
  probe->followers = 0;
  return first;
}

static void ask_in_pool(struct request *r) {
  (void)dibs__probe_store_is_up(r->server);
}

static void asked(struct request *r) {
  struct probe *probe = r->server->probe;
  bool up;
  (void)read_result(probe, &up); /* of a moment ago, however old it may be */
  for (struct request *follower = take_followers(probe), *next; follower; follower = next) {
    next = follower->next;
    probe->answer(follower, up);
  }
  probe->answer(r, up);
}

/* The asker was answered 503: the pool is full, or the server stops. */
static void drop_asker(struct request *r) {
  for (struct request *follower = take_followers(r->server->probe), *next; follower; follower = next) {
    next = follower->next;
    dibs__answer_problem(follower, DIBS_CANCELLED, NULL);
  }
}

void dibs__probe_run(struct request *r, void (*answer)(struct request *r, bool up)) {
  struct probe *probe = r->server->probe;
  bool up;
  probe->answer = answer;
  if (read_result(probe, &up)) {
    answer(r, up);
  } else if (!probe->asker) {
    probe->asker = r;
    r->then = asked;
    dibs__pool_run(r, ask_in_pool, drop_asker);
  } else if (probe->followers < FOLLOWERS_MAX) {
    probe->followers++;
    r->next = probe->first_follower;
    probe->first_follower = r;
  } else {
    dibs__answer_refuse(r, 503, "overload", "%d requests wait for the store's answer already", FOLLOWERS_MAX);
  }
}
