/* SPDX-License-Identifier: MIT */
/*
 * Requests in rounds, and the session.
 *
 * The library has a thread for the connection and one for completions and watches.  Requests of a round are sent at
 * once and answered in their order; the caller sleeps until the last answer, or its deadline.  A late answer fills a
 * slot that nobody reads, and frees the round.
 *
 * A lost connection is not the end of the session: the library connects to another server with the same session, and
 * the nodes are still there.  Requests in flight may have been done (dibs__zk_lost).  Only a server ends a session, or
 * dibs__zk_end_session.
 */
#include "drivers/zk/zk_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk_round round_t;
typedef struct dibs__zk_slot slot_t;

/* ---- Rounds ---- */

round_t *dibs__zk_round_new(size_t capacity) {
  round_t *round = calloc(1, sizeof *round + capacity * sizeof round->slots[0]);
  if (!round) return NULL;
  atomic_store(&round->refs, 1);
  round->capacity = capacity;
  round->sent = dibs__tick_now();
  return round;
}

void dibs__zk_round_drop(round_t *round) {
  if (!round || atomic_fetch_sub(&round->refs, 1) != 1) return;
  for (size_t i = 0; i < round->used; i++) {
    free(round->slots[i].text);
    free(round->slots[i].memory);
  }
  free(round);
}

static slot_t *begin_slot(round_t *round, bool writes) {
  slot_t *slot = &round->slots[round->used++];
  slot->round = round;
  slot->writes = writes;
  slot->rc = DIBS__ZK_LOST;
  atomic_fetch_add(&round->left, 1);
  atomic_fetch_add(&round->refs, 1);
  return slot;
}

static void end_slot(slot_t *slot, int rc) {
  round_t *round = slot->round;
  slot->answer = rc;
  atomic_store(&slot->answered, true);
  if (atomic_fetch_sub(&round->left, 1) == 1) dibs__word_wake(&round->left, 1, false);
  dibs__zk_round_drop(round);
}

static void keep_text(slot_t *slot, const char *text, int len) {
  if (!text || len < 0 || !(slot->text = malloc((size_t)len + 1))) return;
  memcpy(slot->text, text, (size_t)len);
  slot->text[len] = '\0';
  slot->len = len;
}

static void created(int rc, const char *path, const struct Stat *stat, const void *data) {
  slot_t *slot = (slot_t *)(uintptr_t)data;
  if (stat) slot->stat = *stat;
  if (path) keep_text(slot, path, (int)strlen(path));
  end_slot(slot, rc == ZOK && !slot->text ? ZSYSTEMERROR : rc);
}

static void got_data(int rc, const char *value, int len, const struct Stat *stat, const void *data) {
  slot_t *slot = (slot_t *)(uintptr_t)data;
  if (stat) slot->stat = *stat;
  keep_text(slot, value ? value : "", len < 0 ? 0 : len); /* -1: the node has no data */
  end_slot(slot, rc == ZOK && !slot->text ? ZSYSTEMERROR : rc);
}

static void got_stat(int rc, const struct Stat *stat, const void *data) {
  slot_t *slot = (slot_t *)(uintptr_t)data;
  if (stat) slot->stat = *stat;
  end_slot(slot, rc);
}

static void got_nothing(int rc, const void *data) {
  end_slot((slot_t *)(uintptr_t)data, rc);
}

static void got_string(int rc, const char *value, const void *data) {
  (void)value;
  end_slot((slot_t *)(uintptr_t)data, rc);
}

static bool keep_names(slot_t *slot, const struct String_vector *strings) {
  size_t size = 1;
  for (int32_t i = 0; i < strings->count; i++) size += sizeof(char *) + strlen(strings->data[i]) + 1;
  const char **names = slot->memory = malloc(size);
  if (!names) return false;
  char *to = (char *)(names + strings->count);
  for (int32_t i = 0; i < strings->count; i++) {
    size_t len = strlen(strings->data[i]) + 1;
    memcpy(to, strings->data[i], len);
    names[i] = to;
    to += len;
  }
  slot->names = names;
  slot->count = strings->count;
  return true;
}

static void got_names(int rc, const struct String_vector *strings, const void *data) {
  slot_t *slot = (slot_t *)(uintptr_t)data;
  bool kept = rc != ZOK || !strings || keep_names(slot, strings);
  end_slot(slot, kept ? rc : ZSYSTEMERROR);
}

/* ---- Requests ---- */

/* The library calls the completion only if it accepted the request. */
static size_t sent(slot_t *slot, int rc) {
  size_t nth = (size_t)(slot - slot->round->slots);
  if (rc != ZOK) end_slot(slot, rc);
  return nth;
}

static const struct ACL_vector *acl_of(const struct dibs__zk *store) {
  return store->location.credentials[0] ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
}

size_t dibs__zk_put_create(struct dibs__zk *store, round_t *round, const char *path, const char *data, size_t len,
                           int mode) {
  slot_t *slot = begin_slot(round, true);
  return sent(slot, zoo_acreate2(store->zh, path, data, (int)len, acl_of(store), mode, created, slot));
}

size_t dibs__zk_put_children(struct dibs__zk *store, round_t *round, const char *path, watcher_fn watcher,
                             uint64_t ticket) {
  slot_t *slot = begin_slot(round, false);
  void *context = (void *)(uintptr_t)ticket; /* a number: a watch may fire after its hold was freed */
  int rc = watcher ? zoo_awget_children(store->zh, path, watcher, context, got_names, slot)
                   : zoo_aget_children(store->zh, path, 0, got_names, slot);
  return sent(slot, rc);
}

size_t dibs__zk_put_get(struct dibs__zk *store, round_t *round, const char *path) {
  slot_t *slot = begin_slot(round, false);
  return sent(slot, zoo_aget(store->zh, path, 0, got_data, slot));
}

size_t dibs__zk_put_watch_data(struct dibs__zk *store, round_t *round, const char *path, watcher_fn watcher,
                               uint64_t ticket) {
  slot_t *slot = begin_slot(round, false);
  return sent(slot, zoo_awget(store->zh, path, watcher, (void *)(uintptr_t)ticket, got_data, slot));
}

size_t dibs__zk_put_set(struct dibs__zk *store, round_t *round, const char *path, const char *data, size_t len,
                        int version) {
  slot_t *slot = begin_slot(round, true);
  return sent(slot, zoo_aset(store->zh, path, data, (int)len, version, got_stat, slot));
}

size_t dibs__zk_put_delete(struct dibs__zk *store, round_t *round, const char *path, int version) {
  slot_t *slot = begin_slot(round, true);
  return sent(slot, zoo_adelete(store->zh, path, version, got_nothing, slot));
}

size_t dibs__zk_put_set_and_create(struct dibs__zk *store, round_t *round, const char *path, const char *data,
                                   size_t len, int version, const char *also, const char *also_data) {
  slot_t *slot = begin_slot(round, true);
  zoo_op_t ops[2];
  zoo_set_op_init(&ops[0], path, data, (int)len, version, &slot->stat);
  zoo_create_op_init(&ops[1], also, also_data, (int)strlen(also_data), acl_of(store), ZOO_EPHEMERAL, NULL, 0);
  return sent(slot, zoo_amulti(store->zh, 2, ops, slot->results, got_nothing, slot));
}

size_t dibs__zk_put_delete_both(struct dibs__zk *store, round_t *round, const char *also, const char *path,
                                int version) {
  slot_t *slot = begin_slot(round, true);
  zoo_op_t ops[2];
  zoo_delete_op_init(&ops[0], also, -1);
  zoo_delete_op_init(&ops[1], path, version);
  return sent(slot, zoo_amulti(store->zh, 2, ops, slot->results, got_nothing, slot));
}

size_t dibs__zk_put_sync(struct dibs__zk *store, round_t *round, const char *path) {
  slot_t *slot = begin_slot(round, false);
  return sent(slot, zoo_async(store->zh, path, got_string, slot));
}

static void await_answers(round_t *round, dibs__tick by) {
  for (uint32_t left; (left = atomic_load(&round->left)) != 0;)
    if (!dibs__word_wait(&round->left, left, by, false)) break;
}

/* The answers, for the caller; and what they show of the session and of the servers' clock. */
static void take_answers(struct dibs__zk *store, round_t *round) {
  for (size_t i = 0; i < round->used; i++) {
    slot_t *slot = &round->slots[i];
    slot->rc = atomic_load(&slot->answered) ? slot->answer : DIBS__ZK_LOST;
    if (!slot->writes || slot->rc != ZOK) continue;
    if (dibs__tick_before(store->proof, round->sent)) store->proof = round->sent;
    if (slot->stat.mtime > 0) {
      store->server_ms = slot->stat.mtime;
      store->local_ms = dibs__zk_now();
    }
  }
}

void dibs__zk_go(struct dibs__zk *store, round_t *round, dibs__tick by) {
  await_answers(round, by);
  take_answers(store, round);
}

void dibs__zk_go_aside(struct dibs__zk *store, round_t *round, dibs__tick by) {
  uint64_t generation = store->generation;
  dibs__zk_leave(store);
  await_answers(round, by);
  (void)dibs__zk_enter(store, DIBS__TICK_NEVER);
  if (generation == store->generation) take_answers(store, round); /* else rc says that they are lost */
}

dibs__status dibs__zk_explain(const struct dibs__zk *store, int rc, const char *what, struct dibs__result *result) {
  const char *shown = store->location.shown;
  if (dibs__zk_lost(rc)) {
    dibs__set_message(result, "%.200s: the connection was lost, or there was no answer in time (%s)", shown,
                      zerror(rc));
    return DIBS_UNKNOWN;
  }
  if (rc == ZNOAUTH || rc == ZAUTHFAILED) {
    dibs__set_message(result,
                      "can't %s %.200s: the access rights of a node do not allow it; give the user and the "
                      "password of its owner, zk://USER:PASSWORD@HOST/PATH",
                      what, shown);
    return DIBS_DENIED;
  }
  dibs__set_message(result, "can't %s %.200s: %s", what, shown, zerror(rc));
  return rc == ZSYSTEMERROR ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
}

/* ---- The session ---- */

/* The library's own log goes nowhere: what matters is in the answers. */
static void ignore_log(const char *message) {
  (void)message;
}

static void ignore_result(int rc, const void *data) {
  (void)rc;
  (void)data;
}

void dibs__zk_all_gone_locked(struct dibs__zk *store) {
  int64_t now = dibs__zk_now();
  for (struct dibs__zk_hold *h = store->all; h; h = h->next) {
    h->ended = true;
    if (h->state == DIBS__ZK_GONE) continue;
    if (h->state == DIBS__ZK_HOLDS)
      dibs__zk_hold_tell_locked(store, h);
    else
      store->recheck = true; /* a waiter requests again */
    h->state = DIBS__ZK_GONE;
    dibs__zk_end_locked(store, h, now + DIBS__ZK_GONE_MS);
  }
}

/* Of the session itself.  Runs in a thread of the library. */
static void session_watcher(zhandle_t *zh, int type, int state, const char *path, void *context) {
  struct dibs__zk *store = context;
  (void)zh;
  (void)path;
  if (type != ZOO_SESSION_EVENT) return;
  dibs__mutex_lock(&store->lock);
  store->connected = state == ZOO_CONNECTED_STATE;
  store->accepted = store->accepted || store->connected;
  if (state == ZOO_AUTH_FAILED_STATE) store->denied = true;
  if (state == ZOO_EXPIRED_SESSION_STATE || state == ZOO_AUTH_FAILED_STATE) {
    store->ended = true;
    dibs__zk_all_gone_locked(store);
  }
  dibs__mutex_unlock(&store->lock);
  dibs__zk_changed(store);
}

void dibs__zk_end_session(struct dibs__zk *store) {
  atomic_store(&store->closing, true);
  if (store->zh) (void)zookeeper_close(store->zh);
  atomic_store(&store->closing, false);
  store->zh = NULL;
  store->generation++;
  store->rooted = false;
  store->proof = DIBS__TICK_ZERO;
  dibs__mutex_lock(&store->lock);
  dibs__zk_all_gone_locked(store);
  store->connected = store->ended = store->denied = store->accepted = false;
  dibs__mutex_unlock(&store->lock);
}

/* The library chooses a server by chance, and gives a silent one two thirds of the session's timeout.  So a session
 * that nobody accepts begins again: once with all servers, then without each of them in turn, which soon leaves out the
 * silent one.  (If most servers live, one of the others does.)  Slow servers get more time in each further round. */
enum { PATIENCE_MS = 1000 };

static void choose_servers(struct dibs__zk *store, char hosts[sizeof store->location.hosts]) {
  const char *all = store->location.hosts;
  uint32_t count = 1, nth = 0;
  int64_t patience_ms = PATIENCE_MS;
  size_t used = 0;
  for (const char *c = all; *c; c++) count += *c == ',';
  for (uint32_t round = store->tries / (count + 1); round && patience_ms < store->location.session_ms; round--)
    patience_ms *= 2;
  store->other_at = dibs__tick_add_ms(dibs__tick_now(), patience_ms);
  uint32_t without = count > 1 ? store->tries % (count + 1) : 0; /* from 1 on; 0: none */
  for (const char *c = all; *c;) {
    size_t length = strcspn(c, ",");
    if (++nth != without) {
      if (used) hosts[used++] = ',';
      memcpy(hosts + used, c, length);
      used += length;
    }
    c += length;
    if (*c) c++;
  }
  hosts[used] = '\0';
}

/* Otherwise the thread of the connection resolves all host names before each request and each answer, and sends no sign
 * of life while a name server is silent.  For a new connection it resolves them in any case. */
static void resolve_seldom(zhandle_t *zh) {
#ifdef DIBS__ZK_HAS_RESOLUTION_DELAY
  (void)zoo_set_servers_resolution_delay(zh, -1);
#else
  (void)zh;
#endif
}

static dibs__status begin_session(struct dibs__zk *store, struct dibs__result *result) {
  dibs__shield shield;
  char hosts[sizeof store->location.hosts];
  choose_servers(store, hosts);
  dibs__shield_raise(&shield); /* the library's threads take no signal of the program's */
  store->zh = zookeeper_init2(hosts, session_watcher, store->location.session_ms, NULL, store, ZOO_NO_LOG_CLIENTENV,
                              ignore_log);
  int error = errno;
  dibs__shield_lower(&shield);
  if (!store->zh) {
    /* The library resolves all names here, and sets ENOENT for a name that nobody knows. */
    dibs__set_message(result, "can't connect to %.200s: %s; check the host names", store->location.shown,
                      error == ENOENT ? "a host is unknown" : strerror(error));
    return error == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
  }
  resolve_seldom(store->zh);
  const char *credentials = store->location.credentials;
  if (credentials[0])
    (void)zoo_add_auth(store->zh, "digest", credentials, (int)strlen(credentials), ignore_result, NULL);
  return DIBS_OK;
}

static dibs__status await_connection(struct dibs__zk *store, dibs__tick by, struct dibs__result *result) {
  for (;;) {
    uint32_t seen = atomic_load(&store->changes);
    dibs__mutex_lock(&store->lock);
    bool connected = store->connected, ended = store->ended, denied = store->denied, accepted = store->accepted;
    dibs__mutex_unlock(&store->lock);
    if (store->zh && !accepted && !dibs__tick_before(dibs__tick_now(), store->other_at)) {
      ended = true;
      store->tries++;
    }
    if (denied) {
      dibs__set_message(result, "%.200s refused the credentials", store->location.shown);
      dibs__zk_end_session(store);
      return DIBS_DENIED;
    }
    if (ended) dibs__zk_end_session(store);
    dibs__status status = store->zh ? DIBS_OK : begin_session(store, result);
    if (status != DIBS_OK) return status;
    if (connected && !ended) {
      store->tries = 0;
      return DIBS_OK;
    }
    dibs__tick until = !accepted && dibs__tick_before(store->other_at, by) ? store->other_at : by;
    dibs__zk_leave(store); /* other threads have deadlines of their own */
    bool in_time = dibs__word_wait(&store->changes, seen, until, false) || dibs__tick_before(dibs__tick_now(), by);
    (void)dibs__zk_enter(store, DIBS__TICK_NEVER);
    if (!in_time) break;
  }
  dibs__set_message(result, "%.200s: no server answers, or those that answer have no majority", store->location.shown);
  return DIBS_UNAVAILABLE;
}

/* ---- ROOT ---- */

static const char format[] = "dibs 1";
enum { PARTS_MAX = 64 };
static const char *const folders[] = {"", "/l", "/b", "/r"};
enum { FOLDERS = sizeof folders / sizeof folders[0] };

/* Creates ROOT and what is above it.  An answer may be "no right" for a node that exists. */
static int make_root(struct dibs__zk *store, dibs__tick by) {
  char path[sizeof store->location.root];
  const char *root = store->location.root;
  round_t *round = dibs__zk_round_new(PARTS_MAX);
  if (!round) return ZSYSTEMERROR;
  for (size_t i = 1; root[i - 1]; i++) {
    if (root[i] != '/' && root[i] != '\0') continue;
    memcpy(path, root, i);
    path[i] = '\0';
    if (round->used < PARTS_MAX)
      dibs__zk_put_create(store, round, path, format, root[i] ? 0 : sizeof format - 1, ZOO_PERSISTENT);
    if (!root[i]) break;
  }
  dibs__zk_go(store, round, by);
  int rc = round->slots[round->used - 1].rc;
  dibs__zk_round_drop(round);
  return rc == ZNODEEXISTS ? ZOK : rc;
}

static int make_folders(struct dibs__zk *store, dibs__tick by) {
  char path[DIBS__ZK_PATH];
  round_t *round = dibs__zk_round_new(FOLDERS);
  if (!round) return ZSYSTEMERROR;
  for (size_t i = 0; i < FOLDERS; i++) {
    snprintf(path, sizeof path, "%s%s", store->path, folders[i]);
    dibs__zk_put_create(store, round, path, "", 0, ZOO_PERSISTENT);
  }
  dibs__zk_go(store, round, by);
  int rc = round->slots[FOLDERS - 1].rc;
  dibs__zk_round_drop(round);
  return rc == ZNODEEXISTS ? ZOK : rc;
}

/* Reads one node; the caller drops the round, which has the answer in slot 0 unless it is NULL. */
static round_t *read_node(struct dibs__zk *store, const char *path, dibs__tick by) {
  round_t *round = dibs__zk_round_new(1);
  if (!round) return NULL;
  dibs__zk_put_get(store, round, path);
  dibs__zk_go(store, round, by);
  return round;
}

/* A node that somebody made for us, empty, becomes ours. */
static dibs__status check_format(struct dibs__zk *store, const slot_t *slot, dibs__tick by,
                                 struct dibs__result *result) {
  unsigned version;
  char rest;
  if (strcmp(slot->text, format) == 0) return DIBS_OK;
  if (slot->len == 0 && slot->stat.numChildren == 0) {
    round_t *round = dibs__zk_round_new(1);
    if (!round) return DIBS_NO_MEMORY;
    dibs__zk_put_set(store, round, store->location.root, format, sizeof format - 1, slot->stat.version);
    dibs__zk_go(store, round, by);
    int rc = round->slots[0].rc;
    dibs__zk_round_drop(round);
    if (rc == ZOK || rc == ZBADVERSION) return DIBS_OK;
    dibs__status status = dibs__zk_explain(store, rc, "write to", result);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  }
  bool newer = sscanf(slot->text, "dibs %u%c", &version, &rest) == 1 && version > 1;
  dibs__set_message(result,
                    newer ? "the node %.200s of %.200s was made by a newer version of dibs"
                          : "the node %.200s of %.200s belongs to another program: choose another path, or prefix=",
                    store->location.root, store->location.shown);
  return newer ? DIBS_TOO_NEW : DIBS_CORRUPT;
}

static void adopt_root(struct dibs__zk *store, const struct Stat *stat) {
  dibs__mandate mandate = {.epoch = 1};
  memcpy(mandate.incarnation.b, &stat->czxid, sizeof stat->czxid);
  memcpy(mandate.incarnation.b + sizeof stat->czxid, &stat->ctime, sizeof stat->ctime);
  store->root_czxid = stat->czxid;
  store->root_ms = stat->ctime;
  snprintf(store->path, sizeof store->path, "%s/%llx", store->location.root, (unsigned long long)stat->czxid);
  bool other = store->mandate.epoch && !dibs__mandate_equal(&mandate, &store->mandate);
  store->mandate = mandate;
  if (!other) return;
  dibs__mutex_lock(&store->lock);
  dibs__zk_all_gone_locked(store); /* their nodes were removed with the other ROOT */
  store->new_incarnation = true;
  dibs__mutex_unlock(&store->lock);
  dibs__zk_changed(store);
}

static dibs__status failed(const struct dibs__zk *store, int rc, struct dibs__result *result) {
  dibs__status status = dibs__zk_explain(store, rc, "open", result);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

static dibs__status find_root(struct dibs__zk *store, dibs__tick by, struct dibs__result *result) {
  round_t *round = read_node(store, store->location.root, by);
  if (round && round->slots[0].rc == ZNONODE) {
    int rc = make_root(store, by);
    dibs__zk_round_drop(round);
    if (rc != ZOK) return failed(store, rc, result);
    round = read_node(store, store->location.root, by);
  }
  if (!round) return DIBS_NO_MEMORY;
  int rc = round->slots[0].rc;
  dibs__status status = rc == ZOK ? check_format(store, &round->slots[0], by, result) : failed(store, rc, result);
  if (status == DIBS_OK) adopt_root(store, &round->slots[0].stat);
  dibs__zk_round_drop(round);
  return status;
}

static dibs__status find_folders(struct dibs__zk *store, dibs__tick by, struct dibs__result *result) {
  char path[DIBS__ZK_PATH];
  snprintf(path, sizeof path, "%s%s", store->path, folders[FOLDERS - 1]);
  round_t *round = read_node(store, path, by);
  if (!round) return DIBS_NO_MEMORY;
  int rc = round->slots[0].rc;
  dibs__zk_round_drop(round);
  if (rc == ZNONODE) rc = make_folders(store, by);
  return rc == ZOK ? DIBS_OK : failed(store, rc, result);
}

dibs__status dibs__zk_ready(struct dibs__zk *store, dibs__tick by, struct dibs__result *result) {
  dibs__status status = await_connection(store, by, result);
  if (status == DIBS_OK && !store->rooted) {
    status = find_root(store, by, result);
    if (status == DIBS_OK) status = find_folders(store, by, result);
    store->rooted = status == DIBS_OK;
  }
  return status;
}
