/* SPDX-License-Identifier: MIT */
/*
 * ZooKeeper through the same client library: only leases.  The usual recipe, with calls that wait for their answers:
 * create an ephemeral sequential node, read the children, hold the name if the node is the first; else watch the one
 * before it and read the children again when it is gone.  The fence is the node's number plus one.
 */
#include "floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef THREADED
#define THREADED
#endif
#include <zookeeper/zookeeper.h>

enum { SESSION_MS = 10000, CONNECT_MS = 10000, PATIENCE_MS = 10000, PATH = 96, NODE = 128 };
#define ROOT "/floor"

struct link {
  struct floor_link base;
  zhandle_t *zh;
  dibs__word connected, gone; /* gone: counts the deletions of watched nodes */
  int32_t names;              /* that setup created */
  char held[NODE];
};

static enum floor_answer broken(struct link *l, const char *what, int rc) {
  snprintf(l->base.why, sizeof l->base.why, "%s: %s", what, zerror(rc));
  return FLOOR_BROKEN;
}

static void session_watcher(zhandle_t *zh, int type, int state, const char *path, void *context) {
  struct link *l = context;
  (void)zh, (void)path;
  if (type != ZOO_SESSION_EVENT || state != ZOO_CONNECTED_STATE) return;
  atomic_store(&l->connected, 1);
  dibs__word_wake(&l->connected, 1, false);
}

static void node_watcher(zhandle_t *zh, int type, int state, const char *path, void *context) {
  struct link *l = context;
  (void)zh, (void)state, (void)path;
  if (type == ZOO_SESSION_EVENT) return;
  atomic_fetch_add(&l->gone, 1);
  dibs__word_wake(&l->gone, 1, false);
}

static void ignore_log(const char *message) {
  (void)message;
}

static void path_of(char to[PATH], int32_t name) {
  snprintf(to, PATH, ROOT "/%d", name);
}

/* The last child before `mine`, or an empty text. */
static void find_before(const struct String_vector *children, const char *mine, char to[NODE]) {
  to[0] = '\0';
  for (int32_t i = 0; i < children->count; i++)
    if (strcmp(children->data[i], mine) < 0 && strcmp(children->data[i], to) > 0)
      snprintf(to, NODE, "%s", children->data[i]);
}

static enum floor_answer await_turn(struct link *l, const char *path, const char *mine) {
  for (;;) {
    struct String_vector children = {0};
    char before[NODE], watched[PATH + NODE];
    struct Stat stat;
    int rc = zoo_get_children(l->zh, path, 0, &children);
    if (rc != ZOK) return broken(l, "get children", rc);
    find_before(&children, mine, before);
    deallocate_String_vector(&children);
    if (!before[0]) return FLOOR_DONE;
    snprintf(watched, sizeof watched, "%s/%s", path, before);
    uint32_t seen = atomic_load(&l->gone);
    rc = zoo_wexists(l->zh, watched, node_watcher, l, &stat);
    if (rc == ZNONODE) continue;
    if (rc != ZOK) return broken(l, "watch", rc);
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
    while (atomic_load(&l->gone) == seen)
      if (!dibs__word_wait(&l->gone, seen, by, false)) return broken(l, "no notification", ZOPERATIONTIMEOUT);
  }
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  char path[PATH], prefix[PATH + 8];
  (void)owner;
  path_of(path, name);
  snprintf(prefix, sizeof prefix, "%s/n-", path);
  int rc = zoo_create(l->zh, prefix, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, l->held, sizeof l->held);
  if (rc != ZOK) return broken(l, "create", rc);
  *fence = strtoll(l->held + strlen(prefix), NULL, 10) + 1;
  return await_turn(l, path, strrchr(l->held, '/') + 1);
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  (void)name, (void)owner;
  int rc = zoo_delete(l->zh, l->held, -1);
  return rc == ZOK ? FLOOR_DONE : broken(l, "delete", rc);
}

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  if (l->zh) zookeeper_close(l->zh);
  free(l);
}

static struct floor_link *link_open(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  (void)strategy;
  struct floor_uri at;
  char host[300];
  struct link *l = floor_uri_cut(uri, &at) ? calloc(1, sizeof *l) : NULL;
  if (!l) {
    snprintf(why, FLOOR_WHY, "not a URI of a ZooKeeper, or out of memory");
    return NULL;
  }
  snprintf(host, sizeof host, "%s:%u", at.host[0] ? at.host : "127.0.0.1", at.port ? at.port : 2181);
  l->zh = zookeeper_init2(host, session_watcher, SESSION_MS, NULL, l, ZOO_NO_LOG_CLIENTENV, ignore_log);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CONNECT_MS);
  while (l->zh && !atomic_load(&l->connected) && dibs__word_wait(&l->connected, 0, by, false)) continue;
  if (l->zh && atomic_load(&l->connected)) return &l->base;
  snprintf(why, FLOOR_WHY, "no connection to %s", host);
  link_close(&l->base);
  return NULL;
}

/* Removes the nodes of the names, and their children. */
static bool clear(struct link *l) {
  struct String_vector names = {0};
  char path[PATH];
  int rc = zoo_get_children(l->zh, ROOT, 0, &names);
  for (int32_t i = 0; rc == ZOK && i < names.count; i++) {
    snprintf(path, sizeof path, ROOT "/%.40s", names.data[i]);
    (void)zoo_delete(l->zh, path, -1);
  }
  deallocate_String_vector(&names);
  return rc == ZOK || rc == ZNONODE;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  struct link *l = (struct link *)link;
  (void)limit; /* no bookings here */
  if (!clear(l)) return false;
  (void)zoo_create(l->zh, ROOT, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0);
  for (int32_t name = 0; name < names; name++) {
    char path[PATH];
    path_of(path, name);
    int rc = zoo_create(l->zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0);
    if (rc != ZOK && rc != ZNODEEXISTS) return broken(l, "create a name", rc) == FLOOR_DONE;
  }
  l->names = names;
  return true;
}

/* A parent's cversion counts the creations and the deletions of its children.  Also removes the nodes. */
static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  memset(a, 0, sizeof *a);
  for (int32_t name = 0; name < l->names; name++) {
    char path[PATH];
    struct Stat stat;
    path_of(path, name);
    int rc = zoo_exists(l->zh, path, 0, &stat);
    if (rc != ZOK) return broken(l, "read a name", rc) == FLOOR_DONE;
    a->held += stat.numChildren;
    a->fences += (stat.cversion + stat.numChildren) / 2;
  }
  return clear(l);
}

static const char *version(struct floor_link *link) {
  (void)link;
  return "client 3.8";
}

static const struct floor_strategy strategies[] = {
    {"lease-own", "acquire and release a name of the user's own", .kind = FLOOR_LEASE_OWN},
    {"lease-shared", "all users queue for one name, each watches the one before it", .kind = FLOOR_LEASE_SHARED},
    {.name = NULL}};

static const struct floor_engine engine = {.name = "zookeeper",
                                           .example = "zk://host:port",
                                           .variable = "DIBS_TEST_ZOOKEEPER",
                                           .strategies = strategies,
                                           FLOOR_CALLS};

int main(int argc, char **argv) {
  return floor_main(&engine, argc, argv);
}
