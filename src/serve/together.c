/* SPDX-License-Identifier: MIT */
/*
 * One group for each route and kind with a call in flight.  All in the loop, except the call itself, which reads the
 * list of its members and writes their answers: the loop does not touch these until the call has ended.
 */
#include "serve/together.h"
#include "base/map.h"
#include "dibs/task.h"

#include <stdlib.h>
#include <string.h>

struct group {
  struct dibs__map_node by_name;
  struct group *next; /* in server->groups */
  const struct sharing *sharing;
  struct member *sent;         /* the call in flight; its first request is the one of the pool */
  struct member *first, *last; /* these wait for it */
  char kind[];
};

struct groups {
  struct dibs__map map; /* by route and kind */
  struct group *first;
  uint32_t waiting; /* in all of them */
};

static uint64_t hash_of(const struct sharing *sharing, const char *kind) {
  return dibs__hash(kind, strlen(kind)) * 31 + (uint64_t)(uintptr_t)sharing;
}

static struct group *find_group(const struct groups *groups, const struct sharing *sharing, const char *kind) {
  uint64_t hash = hash_of(sharing, kind);
  for (struct dibs__map_node *node = dibs__map_head(&groups->map, hash); node; node = node->next) {
    struct group *group = (struct group *)node;
    if (node->hash == hash && group->sharing == sharing && strcmp(group->kind, kind) == 0) return group;
  }
  return NULL;
}

static struct group *make_group(struct groups *groups, const struct sharing *sharing, const char *kind) {
  size_t size = strlen(kind) + 1;
  struct group *group = calloc(1, sizeof *group + size);
  if (!group) return NULL;
  memcpy(group->kind, kind, size);
  group->sharing = sharing;
  group->next = groups->first;
  groups->first = group;
  dibs__map_add(&groups->map, &group->by_name, hash_of(sharing, kind));
  return group;
}

static void free_group(struct groups *groups, struct group *group) {
  struct group **at = &groups->first;
  while (*at != group) at = &(*at)->next;
  *at = group->next;
  dibs__map_remove(&groups->map, &group->by_name);
  free(group);
}

/* The next call: of the first members in the line. */
static void take_first(struct groups *groups, struct group *group) {
  size_t tasks = 0, bytes = 0;
  struct member **end = &group->first;
  while (*end && tasks + (*end)->tasks <= DIBS_TASKS_MAX && bytes + (*end)->bytes <= SHARED_BYTES) {
    tasks += (*end)->tasks;
    bytes += (*end)->bytes;
    groups->waiting--;
    end = &(*end)->next;
  }
  group->sent = group->first;
  group->first = *end;
  *end = NULL;
  if (!group->first) group->last = NULL;
}

/* The pool did not begin the call: it is full, or closes.  Its first request is answered by the caller. */
static void refuse_others(struct group *group) {
  for (struct member *m = group->sent->next, *next; m; m = next) {
    next = m->next;
    m->request->in_pool = false;
    dibs__pool_refuse(m->request);
    group->sharing->free(m);
  }
  group->sharing->free(group->sent);
  group->sent = NULL;
}

static void call_in_pool(struct request *r) {
  struct group *group = r->work;
  group->sharing->call(group->sent);
}

static void send_next(struct server *server, struct group *group);

static void drop_call(struct request *r) {
  struct group *group = r->work;
  struct server *server = r->server;
  refuse_others(group);
  send_next(server, group);
}

static void call_ended(struct request *r) {
  struct group *group = r->work;
  struct server *server = r->server;
  for (struct member *m = group->sent, *next; m; m = next) {
    struct request *one = m->request;
    next = m->next;
    one->in_pool = false;
    group->sharing->free(m);
    dibs__answer_end(one);
  }
  group->sent = NULL;
  send_next(server, group);
}

static void send_next(struct server *server, struct group *group) {
  while (group->first) {
    take_first(server->groups, group);
    struct request *r = group->sent->request;
    r->work = group;
    r->then = call_ended;
    if (dibs__pool_try(r, call_in_pool, drop_call)) return;
    r->in_pool = false;
    r->then = NULL;
    dibs__pool_refuse(r);
    refuse_others(group);
  }
  free_group(server->groups, group);
}

bool dibs__may_share(const struct member *member) {
  return member->tasks <= SHARED_TASKS && member->bytes <= SHARED_BYTES_ONE;
}

void dibs__together_run(struct member *member, const struct sharing *sharing) {
  struct request *r = member->request;
  struct groups *groups = r->server->groups;
  struct group *group = find_group(groups, sharing, r->param[0]);
  bool full = group && groups->waiting >= r->server->config.queue;
  bool begins = !group;
  if (begins) group = make_group(groups, sharing, r->param[0]);
  if (!group || full) {
    if (full)
      dibs__pool_refuse(r);
    else
      dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    sharing->free(member);
    return;
  }
  member->next = NULL;
  if (group->last)
    group->last->next = member;
  else
    group->first = member;
  group->last = member;
  groups->waiting++;
  r->in_pool = true; /* from now on it is answered by the end of its call */
  if (begins) send_next(r->server, group);
}

void dibs__alone_run(struct member *member, void (*block)(struct request *r), void (*drop)(struct request *r)) {
  member->next = NULL;
  member->request->work = member;
  dibs__pool_run(member->request, block, drop);
}

uint32_t dibs__together_waiting(const struct server *server) {
  return server->groups->waiting;
}

bool dibs__together_open(struct server *server) {
  server->groups = calloc(1, sizeof *server->groups);
  return server->groups && dibs__map_init(&server->groups->map);
}

/* After the pool, which has ended every call. */
void dibs__together_close(struct server *server) {
  if (!server->groups) return;
  while (server->groups->first) free_group(server->groups, server->groups->first);
  dibs__map_free(&server->groups->map);
  free(server->groups);
  server->groups = NULL;
}
