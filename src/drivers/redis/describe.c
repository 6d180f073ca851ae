/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks a Redis: its version, role and replicas, the nodes of a cluster, TLS, and the settings on which
 * promises depend.  A user whom the server does not let see something (NOPERM), and a server whose owner renamed a
 * command, cost only that answer.
 */
#include "drivers/redis/describe.h"

#include "drivers/redis/tls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { FULL_PERCENT = 90, LATE_S = 5, NODES = 1024, NODE_TEXT = 320 };

/* ---- One server ---- */

/* "key:value\r\n" in INFO; "": none. */
static void info(const char *text, const char *key, char *to, size_t size) {
  size_t len = strlen(key);
  to[0] = '\0';
  for (const char *line = text; line && *line; line = strchr(line, '\n')) {
    if (*line == '\n' && !*++line) break;
    if (strncmp(line, key, len) != 0 || line[len] != ':') continue;
    snprintf(to, size, "%.*s", (int)strcspn(line + len + 1, "\r\n"), line + len + 1);
    return;
  }
}

static uint64_t info_number(const char *text, const char *key) {
  char value[32];
  info(text, key, value, sizeof value);
  return strtoull(value, NULL, 10);
}

/* A part of "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0". */
static void part_of(const char *text, const char *key, char *to, size_t size) {
  size_t len = strlen(key);
  to[0] = '\0';
  for (const char *at = text; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    if (strncmp(at, key, len) != 0 || at[len] != '=') continue;
    snprintf(to, size, "%.*s", (int)strcspn(at + len + 1, ","), at + len + 1);
    return;
  }
}

static void find_replicas(const char *text, uint32_t count, struct dibs__findings *to) {
  for (uint32_t i = 0; i < count; i++) {
    char key[16], row[256], ip[128], port[8], state[16], lag[16];
    snprintf(key, sizeof key, "slave%" PRIu32, i);
    info(text, key, row, sizeof row);
    part_of(row, "ip", ip, sizeof ip);
    part_of(row, "port", port, sizeof port);
    part_of(row, "state", state, sizeof state);
    part_of(row, "lag", lag, sizeof lag);
    bool online = strcmp(state, "online") == 0;
    if (online && strtol(lag, NULL, 10) >= LATE_S)
      dibs__find_trouble(to, "node", "look at that replica: it takes over without what it lacks",
                         "replica %s:%s does not answer: its last word came %s s ago", ip, port, lag);
    else
      dibs__find(to, "node", "replica %s:%s: %s%s%s%s", ip, port, *state ? state : "in an unknown state",
                 online ? ", its last word came " : "", online ? lag : "", online ? " s ago" : "");
  }
}

static void read_info(const char *text, struct dibs__redis_facts *f) {
  char host[256], port[8];
  info(text, "valkey_version", f->version, sizeof f->version);
  snprintf(f->name, sizeof f->name, "%s", *f->version ? "Valkey" : "Redis");
  if (!*f->version) info(text, "redis_version", f->version, sizeof f->version);
  info(text, "redis_mode", f->mode, sizeof f->mode);
  info(text, "role", f->role, sizeof f->role);
  info(text, "master_host", host, sizeof host);
  info(text, "master_port", port, sizeof port);
  snprintf(f->master, sizeof f->master, "%s%s%s", host, *host ? ":" : "", port);
  info(text, "maxmemory_policy", f->policy, sizeof f->policy);
  info(text, "aof_enabled", f->aof, sizeof f->aof);
  info(text, "aof_last_write_status", f->aof_write, sizeof f->aof_write);
  info(text, "rdb_last_bgsave_status", f->save, sizeof f->save);
  f->replicas = (uint32_t)info_number(text, "connected_slaves");
  f->used = info_number(text, "used_memory");
  f->limit = info_number(text, "maxmemory");
}

bool dibs__redis_ask(struct dibs__redis_link *link, dibs__tick by, struct dibs__redis_facts *f,
                     struct dibs__findings *replicas, struct dibs__result *result) {
  *f = (struct dibs__redis_facts){.name = "Redis"};
  bool put =
      dibs__redis_put(link, 1, (const char *const[]){"INFO"}, (const size_t[]){4}) &&
      dibs__redis_put(link, 3, (const char *const[]){"CONFIG", "GET", "appendfsync"}, (const size_t[]){6, 3, 11});
  if (!put || dibs__redis_go(link, by, result) != DIBS_OK) return false;
  const redisReply *told = dibs__redis_reply(link, 0), *config = dibs__redis_reply(link, 1);
  f->info = told && told->type == REDIS_REPLY_STRING;
  if (f->info) read_info(told->str, f);
  if (f->info && replicas) find_replicas(told->str, f->replicas, replicas);
  f->config = config && config->type == REDIS_REPLY_ARRAY && config->elements == 2 &&
              config->element[1]->type == REDIS_REPLY_STRING;
  if (f->config) snprintf(f->fsync, sizeof f->fsync, "%s", config->element[1]->str);
  return true;
}

const char *dibs__redis_named(const struct dibs__redis_facts *f, char to[64]) {
  snprintf(to, 64, "%s %s", f->name, *f->version ? f->version : "of an unknown version");
  return to;
}

static void find_log(const struct dibs__redis_facts *f, const char *of, bool waits, struct dibs__findings *to) {
  if (waits && strcmp(f->aof, "0") == 0)
    dibs__find(to, "setting", "appendonly%s = no: after a start it does not count for a while", of);
  else if (strcmp(f->aof, "0") == 0)
    dibs__find_warning(to, "setting", "set appendonly yes: without it a start of the server ends all leases, at once",
                       "appendonly%s = no", of);
  else if (!f->config)
    dibs__find(to, "setting", "appendonly%s = yes; appendfsync: not visible to this user", of);
  else if (strcmp(f->fsync, "always") == 0)
    dibs__find(to, "setting", "appendonly%s = yes, appendfsync = always", of);
  else
    dibs__find_warning(to, "setting", "set appendfsync always, unless a power failure may end the latest leases",
                       "appendonly%s = yes, appendfsync = %s", of, f->fsync);
  if (strcmp(f->aof_write, "err") == 0)
    dibs__find_trouble(to, "setting", "free some space, and see the server's log: it refuses writes",
                       "the last write of the log%s failed", of);
  if (strcmp(f->save, "err") == 0)
    dibs__find_trouble(to, "setting", "see the server's log: with stop-writes-on-bgsave-error it refuses writes",
                       "the last snapshot%s failed", of);
}

void dibs__redis_find_settings(const struct dibs__redis_facts *f, const char *of, bool waits,
                               struct dibs__findings *to) {
  char what[NODE_TEXT];
  if (!f->info) {
    snprintf(what, sizeof what, "the settings%s", of);
    dibs__find_hidden(to, "setting", what);
    return;
  }
  find_log(f, of, waits, to);
  if (*f->policy && strcmp(f->policy, "noeviction") != 0)
    dibs__find_trouble(to, "setting", "set maxmemory-policy noeviction: eviction drops leases that are still valid",
                       "maxmemory-policy%s = %s", of, f->policy);
  else if (f->limit > 0 && f->used / (f->limit / 100 + 1) >= FULL_PERCENT)
    dibs__find_warning(to, "setting", "raise maxmemory: a full server refuses leases",
                       "maxmemory-policy%s = noeviction, and %" PRIu64 " of %" PRIu64 " MiB are used", of,
                       f->used >> 20, f->limit >> 20);
  else
    dibs__find(to, "setting", "maxmemory-policy%s = %s", of, *f->policy ? f->policy : "unknown");
}

void dibs__redis_find_tls(const struct dibs__redis_link *link, struct dibs__findings *to) {
  char words[128];
  if (!link->tls)
    dibs__find(to, "tls",
               link->location->socket ? "not needed: a Unix socket" : "none: the connection is not encrypted");
  else if (dibs__redis_tls_words(link->tls, words, sizeof words))
    dibs__find(to, "tls", "%s; the server's certificate and name are verified", words);
  else
    dibs__find_warning(to, "tls", "remove insecure=1, and name the authority with ca=FILE",
                       "%s; the server is not verified", words);
}

/* ---- A store of one master ---- */

static void describe_master(struct dibs__redis_session *session, dibs__tick by, struct dibs__findings *to) {
  struct dibs__redis_link *link = session->link;
  const struct dibs__redis_location *l = link->location;
  struct dibs__findings replicas = {0};
  struct dibs__result result = {.text = ""};
  struct dibs__redis_facts f;
  char name[64];
  if (!dibs__redis_ask(link, by, &f, &replicas, &result)) {
    dibs__find_trouble(to, "server", "read the message, then try again", "%s", result.text);
    return;
  }
  dibs__find(to, "server", "%s at %s", dibs__redis_named(&f, name), l->shown);
  if (!f.info)
    dibs__find_hidden(to, "role", "the role, and the replicas");
  else if (strcmp(f.role, "master") == 0)
    dibs__find(to, "role", "master, with %" PRIu32 " replicas", f.replicas);
  else
    dibs__find(to, "role", "%s of %s", f.role, f.master);
  dibs__findings_move(&replicas, to);
  if (f.replicas > 0 && l->replicas == 0)
    dibs__find_warning(to, "setting", "give ?replicas=1, or never promote one within a ttl",
                       "replication is asynchronous: a replica that takes over may lack leases that are still valid");
  else if (f.info && f.replicas < l->replicas)
    dibs__find_trouble(to, "setting", "start the replicas, or give a smaller ?replicas=: nothing is granted",
                       "a lease counts when %" PRIu32 " replicas have it, and %" PRIu32 " are connected", l->replicas,
                       f.replicas);
  else if (l->replicas > 0)
    dibs__find(to, "setting", "a lease counts when %" PRIu32 " replicas have it", l->replicas);
  dibs__redis_find_tls(link, to);
  dibs__redis_find_settings(&f, "", false, to);
}

/* Each sentinel by itself: does it answer, and lead to a master? */
static void describe_sentinels(const struct dibs__redis_location *l, dibs__tick by, struct dibs__findings *to) {
  for (size_t i = 0; l->sentinel && i < l->host_count; i++) {
    struct dibs__result result = {.text = ""};
    struct dibs__redis_link *link = NULL;
    struct dibs__redis_location one = *l;
    one.hosts[0] = l->hosts[i];
    one.host_count = 1;
    dibs__status status = dibs__redis_connect(&one, 0, dibs__engine_node_by(by, l->host_count - i), &link, &result);
    if (status == DIBS_OK) dibs__redis_disconnect(link);
    if (status == DIBS_OK)
      dibs__find(to, "node", "sentinel %s:%u leads to the master", l->hosts[i].host, (unsigned)l->hosts[i].port);
    else
      dibs__find_trouble(to, "node", "look at that sentinel", "sentinel %s:%u does not lead to the master: %s",
                         l->hosts[i].host, (unsigned)l->hosts[i].port, result.text);
  }
}

/* ---- A cluster ---- */

struct node {
  struct dibs__redis_address address;
  char id[64], flags[64], master[64];
  uint32_t slots;
};

/* "id host:port@bus,name flags master sent received epoch state slot slot-slot [slot->-id] ..."  A node that does not
 * know its own address yet gives none: it is `from`'s. */
static bool read_node(const char *line, const char *from, struct node *node) {
  char address[300] = "", link[16], *end;
  int at = 0;
  *node = (struct node){.slots = 0};
  if (sscanf(line, "%63s %299s %63s %63s %*s %*s %*s %15s%n", node->id, address, node->flags, node->master, link, &at) <
      5)
    return false;
  address[strcspn(address, "@,")] = '\0';
  char *colon = strrchr(address, ':');
  if (!colon) return false;
  node->address.port = (uint16_t)strtoul(colon + 1, &end, 10);
  *colon = '\0';
  snprintf(node->address.host, sizeof node->address.host, "%s", *address ? address : from);
  for (const char *slots = line + at; *slots == ' '; slots += strcspn(slots, " \r\n")) {
    slots++;
    if (*slots == '[') continue;
    unsigned long first = strtoul(slots, &end, 10), last = *end == '-' ? strtoul(end + 1, NULL, 10) : first;
    node->slots += (uint32_t)(last - first + 1);
  }
  return true;
}

/* A line may be long: a master may have its slots in thousands of pieces. */
static size_t read_nodes(const char *text, const char *from, struct node nodes[NODES]) {
  size_t count = 0;
  char *copy = strdup(text), *rest = NULL;
  for (char *line = copy ? strtok_r(copy, "\n", &rest) : NULL; line && count < NODES;
       line = strtok_r(NULL, "\n", &rest))
    if (read_node(line, from, &nodes[count]) && !strstr(nodes[count].flags, "noaddr")) count++;
  free(copy);
  return count;
}

static const struct node *master_of(const struct node *nodes, size_t count, const struct node *replica) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(nodes[i].id, replica->master) == 0) return &nodes[i];
  return NULL;
}

/* Connects to the node, and asks.  Settings matter where slots are. */
static void describe_node(const struct dibs__redis_location *l, const struct node *nodes, size_t count,
                          const struct node *node, dibs__tick by, struct dibs__findings *to,
                          struct dibs__findings *settings) {
  struct dibs__result result = {.text = ""};
  struct dibs__redis_facts f = {.name = ""};
  struct dibs__redis_location *location = dibs__redis_location_of_node(l, &node->address);
  struct dibs__redis_link *link = NULL;
  const struct node *master = master_of(nodes, count, node);
  char name[64], where[NODE_TEXT], role[NODE_TEXT];
  snprintf(where, sizeof where, "%.255s:%u", node->address.host, (unsigned)node->address.port);
  if (master)
    snprintf(role, sizeof role, "replica of %.255s:%u", master->address.host, (unsigned)master->address.port);
  else
    snprintf(role, sizeof role, "master of %" PRIu32 " slots", node->slots);
  if (location) location->any_role = true;
  bool told = location && dibs__redis_connect(location, 0, by, &link, &result) == DIBS_OK &&
              dibs__redis_ask(link, by, &f, NULL, &result);
  if (told) {
    dibs__find(to, "node", "%s: %s, %s", where, role, dibs__redis_named(&f, name));
    char of[NODE_TEXT + 8];
    snprintf(of, sizeof of, " of %s", where);
    if (!master && node->slots > 0) dibs__redis_find_settings(&f, of, false, settings);
  } else {
    dibs__find_trouble(to, "node",
                       master ? "look at that replica: its master has one less"
                              : "look at that node: its names are not served until it answers, or a replica takes over",
                       "%s, %s, does not answer: %s", where, role, result.text);
  }
  if (link) dibs__redis_disconnect(link);
  free(location);
}

/* "fail" or "fail?", and not "nofailover". */
static bool has_failed(const char *flags) {
  for (const char *at = flags; (at = strstr(at, "fail")); at++)
    if (at == flags || at[-1] == ',') return true;
  return false;
}

/* The fewest replicas of a master that has slots, as the node sees it that was asked; *any: one of them has a replica.
 */
static uint32_t fewest_replicas(const struct node *nodes, size_t count, bool *any) {
  uint32_t fewest = UINT32_MAX;
  *any = false;
  for (size_t i = 0; i < count; i++) {
    uint32_t replicas = 0;
    for (size_t k = 0; k < count && nodes[i].slots; k++) {
      bool follows = strcmp(nodes[k].master, nodes[i].id) == 0;
      *any = *any || follows;
      replicas += follows && !has_failed(nodes[k].flags);
    }
    if (nodes[i].slots && replicas < fewest) fewest = replicas;
  }
  return fewest;
}

static void find_replication(const struct node *nodes, size_t count, uint32_t wanted, struct dibs__findings *to) {
  bool any;
  uint32_t fewest = fewest_replicas(nodes, count, &any);
  if (any && wanted == 0)
    dibs__find_warning(to, "setting", "give ?replicas=1",
                       "replication is asynchronous: a replica that takes over may lack leases that are still valid");
  else if (count > 0 && fewest < wanted)
    dibs__find_trouble(to, "setting", "start the replicas, or give a smaller ?replicas=: that master grants nothing",
                       "a lease counts when %" PRIu32 " replicas have it, and a master has %" PRIu32, wanted, fewest);
  else if (wanted > 0)
    dibs__find(to, "setting", "a lease counts when %" PRIu32 " replicas have it", wanted);
}

static void describe_nodes(struct dibs__redis_link *link, const char *text, dibs__tick by, struct dibs__findings *to) {
  struct dibs__findings settings = {0};
  struct node *nodes = calloc(NODES, sizeof *nodes);
  size_t count = nodes ? read_nodes(text, link->location->hosts[link->nth].host, nodes) : 0, masters = 0;
  uint32_t slots = 0;
  for (size_t i = 0; i < count; i++) {
    masters += nodes[i].slots > 0;
    slots += nodes[i].slots;
  }
  if (slots < 16384)
    dibs__find_trouble(to, "role", "give the missing slots to a master: the names in them are not served",
                       "%zu masters have %" PRIu32 " of the 16384 slots", masters, slots);
  else
    dibs__find(to, "role", "%zu masters with all slots, %zu nodes", masters, count);
  for (size_t i = 0; i < count; i++)
    describe_node(link->location, nodes, count, &nodes[i], dibs__engine_node_by(by, count - i), to, &settings);
  find_replication(nodes, count, link->location->replicas, &settings);
  dibs__findings_move(&settings, to);
  free(nodes);
}

/* A node of the cluster that answers. */
static struct dibs__redis_link *any_node(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__redis_link *link = NULL;
  size_t count = store->location->host_count;
  struct dibs__redis_location *l = malloc(sizeof *l);
  for (size_t i = 0; l && i < count && !link; i++) {
    *l = *store->location;
    l->any_role = true;
    (void)dibs__redis_connect(l, i, dibs__engine_node_by(by, count - i + 2), &link, result);
  }
  if (!link) free(l);
  return link; /* with its location, which the caller frees */
}

static void describe_cluster(struct dibs__redis_session *session, dibs__tick by, struct dibs__findings *to) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  struct dibs__result result = {.text = ""};
  struct dibs__redis_facts f;
  char name[64];
  struct dibs__redis_link *link = any_node(store, by, &result);
  struct dibs__redis_location *location = link ? (struct dibs__redis_location *)(uintptr_t)link->location : NULL;
  if (!link || !dibs__redis_ask(link, dibs__engine_node_by(by, 2), &f, NULL, &result)) {
    dibs__find_trouble(to, "server", "look at the nodes that the URI names", "%s", result.text);
    goto out;
  }
  dibs__find(to, "server", "%s, a cluster, at %s", dibs__redis_named(&f, name), store->location->shown);
  const char *const words[] = {"CLUSTER", "NODES"};
  if (dibs__redis_put(link, 2, words, (const size_t[]){7, 5}) &&
      dibs__redis_go(link, dibs__engine_node_by(by, 2), &result) == DIBS_OK) {
    const redisReply *nodes = dibs__redis_reply(link, 0);
    if (nodes && nodes->type == REDIS_REPLY_STRING)
      describe_nodes(link, nodes->str, by, to);
    else
      dibs__find_hidden(to, "node", "the nodes, and their replicas");
  } else {
    dibs__find_trouble(to, "node", "read the message, then try again", "%s", result.text);
  }
  dibs__redis_find_tls(link, to);

out:
  if (link) dibs__redis_disconnect(link);
  free(location);
}

void dibs__redis_describe(struct dibs__redis_session *session, dibs__tick by, struct dibs__findings *to) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  if (store->cluster) {
    describe_cluster(session, by, to);
    return;
  }
  describe_master(session, by, to);
  describe_sentinels(store->location, by, to);
}
