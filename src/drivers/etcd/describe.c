/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks etcd: its members, each of them by itself, the leader, alarms, and the size of the database with its
 * quota.
 *
 * First the endpoints of the URI are asked, then etcd for the list of its members.  A member that is none of these
 * endpoints is asked at the URL that it gives to clients, without the user's token: such a URL may mean another machine
 * here ("http://localhost:2379").
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FULL_PERCENT = 80, MEMBERS = 32, URL = 256, ID = 24, DEFAULT_QUOTA_MIB = 2048 };

typedef struct dibs__etcd_link link_t;

struct member {
  char name[64], url[URL], id[ID];
  bool learner, of_uri;
  dibs__status status; /* of its answer */
  char why[256], version[32], leader[ID];
  int64_t size, in_use, quota; /* bytes; 0: not known */
};

struct view {
  struct member member[MEMBERS];
  size_t count, endpoints; /* those of the URI come first */
  bool listed;             /* by etcd */
};

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static void ask_member(link_t *link, struct member *m, dibs__tick by) {
  struct dibs__result result = {.text = ""};
  json_t *answer = NULL;
  m->status = dibs__etcd_ask_at(link, m->url, m->of_uri, "/v3/maintenance/status", by, &answer, &result);
  snprintf(m->why, sizeof m->why, "%s", result.text);
  if (m->status != DIBS_OK) return;
  snprintf(m->version, sizeof m->version, "%s", text_of(answer, "version"));
  snprintf(m->leader, sizeof m->leader, "%s", text_of(answer, "leader"));
  snprintf(m->id, sizeof m->id, "%s", text_of(json_object_get(answer, "header"), "member_id"));
  m->learner = json_is_true(json_object_get(answer, "isLearner"));
  m->size = dibs__etcd_number(answer, "dbSize");
  m->in_use = dibs__etcd_number(answer, "dbSizeInUse");
  m->quota = dibs__etcd_number(answer, "dbSizeQuota");
  json_decref(answer);
}

static void ask_endpoints(const struct dibs__etcd *store, link_t *link, dibs__tick by, struct view *view) {
  for (uint32_t i = 0; i < store->location.count; i++) {
    struct member *m = &view->member[view->count++];
    m->of_uri = true;
    snprintf(m->url, sizeof m->url, "%s", store->location.urls[i]);
    ask_member(link, m, dibs__engine_node_by(by, store->location.count - i + 2)); /* and two other questions */
  }
  view->endpoints = view->count;
}

/* The endpoint that is this member. */
static struct member *find_endpoint(struct view *view, const char *id, const char *url) {
  for (size_t i = 0; i < view->endpoints; i++)
    if (*id && strcmp(view->member[i].id, id) == 0) return &view->member[i];
  for (size_t i = 0; i < view->endpoints; i++)
    if (!*view->member[i].id && strcmp(view->member[i].url, url) == 0) return &view->member[i];
  return NULL;
}

static dibs__status ask(link_t *link, const char *path, const char *request, dibs__tick by, json_t **answer,
                        struct dibs__result *result) {
  struct dibs__etcd_text body = {0};
  dibs__etcd_put(&body, request);
  dibs__status status = dibs__etcd_post(link, path, &body, true, by, answer, result);
  dibs__etcd_text_free(&body);
  return status;
}

static void list_members(link_t *link, dibs__tick by, struct view *view, struct dibs__findings *to) {
  struct dibs__result result = {.text = ""};
  json_t *answer = NULL, *one;
  size_t i;
  dibs__status status = ask(link, "/v3/cluster/member/list", "{}", by, &answer, &result);
  if (status == DIBS_DENIED) dibs__find_hidden(to, "node", "the list of members");
  if (status != DIBS_OK && status != DIBS_DENIED)
    dibs__find_trouble(to, "node", "look at the members: without a majority etcd serves nothing", "the members: %s",
                       result.text);
  view->listed = status == DIBS_OK;
  json_array_foreach(json_object_get(answer, "members"), i, one) {
    const char *url = json_string_value(json_array_get(json_object_get(one, "clientURLs"), 0));
    struct member *m = find_endpoint(view, text_of(one, "ID"), url ? url : "");
    if (!m && view->count == MEMBERS) break;
    if (!m) {
      m = &view->member[view->count++];
      m->status = DIBS_UNSUPPORTED; /* not asked yet */
      snprintf(m->url, sizeof m->url, "%s", url ? url : "");
    }
    snprintf(m->id, sizeof m->id, "%s", text_of(one, "ID"));
    snprintf(m->name, sizeof m->name, "%s", text_of(one, "name"));
    m->learner = json_is_true(json_object_get(one, "isLearner"));
  }
  json_decref(answer);
}

static void ask_others(const struct dibs__etcd *store, link_t *link, dibs__tick by, struct view *view) {
  const char *scheme = store->location.tls ? "https://" : "http://";
  for (size_t i = view->endpoints; i < view->count; i++) {
    struct member *m = &view->member[i];
    if (strncmp(m->url, scheme, strlen(scheme)) == 0 && !strstr(m->url, "://0.0.0.0"))
      ask_member(link, m, dibs__engine_node_by(by, view->count - i + 1));
  }
}

/* ---- Findings ---- */

/* The leader, as the members that answer know it; "": they know none. */
static const char *leader_of(const struct view *view) {
  for (size_t i = 0; i < view->count; i++)
    if (view->member[i].status == DIBS_OK && strcmp(view->member[i].leader, "0") != 0) return view->member[i].leader;
  return "";
}

static void find_member(const struct view *view, const struct member *m, struct dibs__findings *to) {
  const char *leader = leader_of(view), *name = *m->name ? m->name : *m->id ? m->id : "a member";
  const char *role = m->learner ? "learner" : *leader && strcmp(leader, m->id) == 0 ? "leader" : "follower";
  if (m->status == DIBS_OK)
    dibs__find(to, "node", "%s at %s: %s, etcd %s", name, m->url, role, m->version);
  else if (m->status == DIBS_DENIED)
    dibs__find(to, "node", "%s at %s: its status is not visible to this user", name, m->url);
  else if (m->status == DIBS_UNSUPPORTED)
    dibs__find(to, "node", "%s: not asked, because its URL for clients, %s, is of no use here", name,
               *m->url ? m->url : "none");
  else if (m->of_uri)
    dibs__find_trouble(to, "node", "look at that member: etcd serves as long as a majority of its members works",
                       "%s at %s does not answer: %s", name, m->url, m->why);
  else
    dibs__find_warning(to, "node", "look at that member, or name all members in the store's URI",
                       "%s does not answer at %s, its URL for clients: %s", name, m->url, m->why);
}

static void find_majority(const struct view *view, struct dibs__findings *to) {
  size_t voters = 0, answer = 0;
  for (size_t i = 0; i < view->count; i++) {
    voters += !view->member[i].learner;
    answer += !view->member[i].learner && view->member[i].status == DIBS_OK;
  }
  if (!view->listed) return;
  if (voters == 1)
    dibs__find(to, "role", "one member: nothing takes its place when it fails");
  else if (!*leader_of(view) && answer > 0)
    dibs__find_trouble(to, "role", "look at the members: without a leader etcd serves nothing",
                       "no leader; %zu of %zu voting members answer here", answer, voters);
  else
    dibs__find(to, "role", "%zu voting members, of which %zu answer here", voters, answer);
}

/* "20 KiB", "912 MiB". */
static const char *size_text(int64_t bytes, char to[32]) {
  bool small = bytes < (int64_t)10 << 20;
  snprintf(to, 32, "%" PRId64 " %s", bytes >> (small ? 10 : 20), small ? "KiB" : "MiB");
  return to;
}

static void find_size(const struct member *m, struct dibs__findings *to) {
  const char *name = *m->name ? m->name : m->url, *assumed = m->quota ? "" : ", if it is etcd's default";
  int64_t quota = m->quota ? m->quota : (int64_t)DEFAULT_QUOTA_MIB << 20;
  char size[32], used[32];
  if (m->status != DIBS_OK || m->size == 0) return;
  size_text(m->size, size);
  size_text(m->in_use, used);
  if (m->size / (quota / 100 + 1) >= FULL_PERCENT)
    dibs__find_warning(
        to, "setting", "compact and defragment it, or raise --quota-backend-bytes: a full etcd refuses writes",
        "%s: %s, %s of it in use, of the quota of %" PRId64 " MiB%s", name, size, used, quota >> 20, assumed);
  else
    dibs__find(to, "setting", "%s: %s, %s of it in use, of the quota of %" PRId64 " MiB%s", name, size, used,
               quota >> 20, assumed);
}

static const char *name_of(const struct view *view, const char *id) {
  for (size_t i = 0; i < view->count; i++)
    if (strcmp(view->member[i].id, id) == 0 && *view->member[i].name) return view->member[i].name;
  return *id ? id : "a member";
}

static void find_alarms(link_t *link, dibs__tick by, const struct view *view, struct dibs__findings *to) {
  struct dibs__result result = {.text = ""};
  json_t *answer = NULL, *one;
  size_t i;
  dibs__status status = ask(link, "/v3/maintenance/alarm", "{\"action\":\"GET\"}", by, &answer, &result);
  if (status == DIBS_DENIED)
    dibs__find_hidden(to, "alarm", "alarms");
  else if (status != DIBS_OK)
    dibs__find_trouble(to, "alarm", "read the message, then try again", "alarms: %s", result.text);
  else if (json_array_size(json_object_get(answer, "alarms")) == 0)
    dibs__find(to, "alarm", "none");
  json_array_foreach(json_object_get(answer, "alarms"), i, one) {
    const char *alarm = text_of(one, "alarm"), *name = name_of(view, text_of(one, "memberID"));
    bool space = strcmp(alarm, "NOSPACE") == 0;
    dibs__find_trouble(to, "alarm",
                       space ? "etcd refuses writes: compact, defragment, then etcdctl alarm disarm"
                             : "see etcdctl alarm list: the data of a member may be damaged",
                       "%s of %s", alarm, name);
  }
  json_decref(answer);
}

static void find_tls(const struct dibs__etcd *store, struct dibs__findings *to) {
  const struct dibs__etcd_location *l = &store->location;
  if (l->tls)
    dibs__find(to, "tls", "at least TLS 1.2; the members' certificates and names are verified, by %s%s",
               l->ca ? l->ca : "the system's authorities", l->cert ? "; this client has a certificate" : "");
  else
    dibs__find(to, "tls", "none: the connections are not encrypted");
}

void dibs__etcd_describe(struct dibs__etcd *store, link_t *link, dibs__tick by, struct dibs__findings *to) {
  struct view *view = calloc(1, sizeof *view);
  if (!view) {
    to->no_memory = true;
    return;
  }
  struct dibs__result result = {.text = ""};
  (void)dibs__etcd_authorize(link, dibs__engine_node_by(by, 2), &result); /* else each question says why */
  ask_endpoints(store, link, by, view);
  list_members(link, dibs__engine_node_by(by, 2), view, to);
  ask_others(store, link, by, view);
  for (size_t i = 0; i < view->count; i++)
    if (view->member[i].status == DIBS_OK) {
      dibs__find(to, "server", "etcd %s at %s", view->member[i].version, view->member[i].url);
      break;
    }
  find_majority(view, to);
  for (size_t i = 0; i < view->count; i++) find_member(view, &view->member[i], to);
  find_alarms(link, dibs__engine_node_by(by, 1), view, to);
  find_tls(store, to);
  for (size_t i = 0; i < view->count; i++) find_size(&view->member[i], to);
  free(view);
}
