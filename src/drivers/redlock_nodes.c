/* SPDX-License-Identifier: MIT */
/*
 * The nodes: a session has a link to each.  A node that does not answer in its time loses the link, and is tried again
 * after a pause that doubles; meanwhile the others decide.
 */
#include "drivers/redlock_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

typedef struct dibs__redlock_session session;

enum { RETRY_MIN_MS = 100, RETRY_MAX_MS = 3000, IDLE_MS = 20 };

/* ---- Words of a command ---- */

void dibs__redlock_word(struct dibs__redlock_words *words, const void *p, size_t len) {
  if (words->count == DIBS__REDLOCK_WORDS) return;
  words->p[words->count] = p;
  words->len[words->count++] = len;
}

static char *put_text(struct dibs__redlock_words *words, int len) {
  char *at = words->text + words->used;
  words->used += (size_t)len + 1;
  dibs__redlock_word(words, at, (size_t)len);
  return at;
}

void dibs__redlock_number(struct dibs__redlock_words *words, uint64_t number) {
  char *at = words->text + words->used;
  put_text(words, snprintf(at, sizeof words->text - words->used, "%llu", (unsigned long long)number));
}

void dibs__redlock_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, const char *kind,
                       dibs__str tail) {
  char *at = words->text + words->used;
  size_t room = sizeof words->text - words->used;
  put_text(words,
           snprintf(at, room, "%s:rl:%s%.*s", store->place->prefix, kind, (int)tail.len, tail.len ? tail.p : ""));
  words->keys = words->count;
}

void dibs__redlock_bucket_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, uint16_t bucket) {
  char kind[16];
  snprintf(kind, sizeof kind, "{%u}", (unsigned)bucket);
  dibs__redlock_key(words, store, kind, (dibs__str){0});
}

/* ---- Links ---- */

/* The pause doubles; `why` is what people are told. */
static void node_failed(session *s, size_t node, const char *why) {
  struct dibs__redlock *store = s->store;
  dibs__mutex_lock(&store->lock);
  struct dibs__redlock_node *n = &store->nodes[node];
  int64_t pause = RETRY_MIN_MS;
  for (uint32_t i = 0; i < n->failures && pause < RETRY_MAX_MS; i++) pause *= 2;
  if (pause > RETRY_MAX_MS) pause = RETRY_MAX_MS;
  n->failures++;
  n->retry_at = dibs__tick_add_ms(dibs__tick_now(), pause);
  snprintf(n->why, sizeof n->why, "%s", why);
  dibs__mutex_unlock(&store->lock);
}

static void node_is_well(session *s, size_t node) {
  dibs__mutex_lock(&s->store->lock);
  s->store->nodes[node].failures = 0;
  s->store->nodes[node].why[0] = '\0';
  dibs__mutex_unlock(&s->store->lock);
}

static bool may_try(session *s, size_t node) {
  dibs__mutex_lock(&s->store->lock);
  bool may = !dibs__tick_before(dibs__tick_now(), s->store->nodes[node].retry_at);
  dibs__mutex_unlock(&s->store->lock);
  return may;
}

void dibs__redlock_unlink(session *s, size_t node) {
  if (s->links[node]) dibs__redis_disconnect(s->links[node]);
  s->links[node] = NULL;
}

static const char *reason(dibs__status status) {
  switch (status) {
  case DIBS_DENIED:
    return "it refuses our user or password";
  case DIBS_UNSUPPORTED:
  case DIBS_INVALID:
    return "its settings do not fit";
  default:
    return "it can't be reached";
  }
}

/* By another name or address it would have two votes. */
static bool is_twin(session *s, size_t node) {
  for (size_t i = 0; i < s->store->count; i++) {
    if (i == node || !s->links[i] || memcmp(&s->links[i]->life, &s->links[node]->life, sizeof(dibs__life)) != 0)
      continue;
    s->twin = node;
    s->twin_of = i;
    return true;
  }
  return false;
}

/* A node may take twice as long to be connected as to answer: that is two trips. */
static void link_node(session *s, size_t node, dibs__tick by) {
  int64_t most = s->store->node_timeout_ms * 2;
  if (most > s->store->place->connect_timeout_ms) most = s->store->place->connect_timeout_ms;
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), most));
  struct dibs__said said = {0};
  dibs__status status = dibs__redis_connect(s->store->place, node, until, &s->links[node], &said);
  if (status != DIBS_OK) {
    node_failed(s, node, reason(status));
  } else if (is_twin(s, node)) {
    dibs__redlock_unlink(s, node);
    node_failed(s, node, "it is the same server as another");
  } else {
    node_is_well(s, node);
  }
}

/* Closed by the other side while nobody looked: a node that was started again is linked anew at once. */
static bool was_closed(const struct dibs__redis_link *link) {
  char byte;
  if (dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(link->heard, IDLE_MS))) return false;
  return recv(link->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

size_t dibs__redlock_links(session *s, dibs__tick by) {
  size_t linked = 0;
  uint32_t tried = 0;
  for (size_t i = 0; i < s->store->count; i++) {
    bool closed = s->links[i] && !s->links[i]->dead && was_closed(s->links[i]);
    if (closed || (s->links[i] && s->links[i]->dead)) dibs__redlock_unlink(s, i);
    if (!s->links[i] && (closed || may_try(s, i))) {
      link_node(s, i, by);
      tried |= 1u << i;
    }
    linked += s->links[i] != NULL;
  }
  /* Without them nothing can be done: then nobody is let alone. */
  for (size_t i = 0; i < s->store->count && linked < s->store->majority; i++) {
    if (s->links[i] || (tried >> i & 1) || !dibs__tick_before(dibs__tick_now(), by)) continue;
    link_node(s, i, by);
    linked += s->links[i] != NULL;
  }
  return linked;
}

/* ---- A round ---- */

void dibs__redlock_put(session *s, uint32_t nodes, enum dibs__redlock_script script,
                       const struct dibs__redlock_words *words, struct dibs__redlock_asked *asked) {
  for (size_t i = 0; i < DIBS__REDLOCK_NODES; i++) {
    asked->nth[i] = DIBS__REDLOCK_UNASKED;
    struct dibs__redis_link *link = nodes >> i & 1 ? s->links[i] : NULL;
    if (!link || link->dead) continue;
    size_t nth = link->put;
    if (dibs__redis_put_script(link, &s->store->scripts[script], words->keys, words->count, words->p, words->len))
      asked->nth[i] = (uint16_t)nth;
  }
}

void dibs__redlock_go(session *s, dibs__tick by) {
  struct dibs__redis_link *links[DIBS__REDLOCK_NODES];
  dibs__status answers[DIBS__REDLOCK_NODES];
  struct dibs__said said = {0};
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), s->store->node_timeout_ms));
  for (size_t i = 0; i < s->store->count; i++) links[i] = s->links[i] && s->links[i]->put ? s->links[i] : NULL;
  dibs__redis_go_all(links, s->store->count, until, answers, &said);
  for (size_t i = 0; i < s->store->count; i++)
    if (links[i] && links[i]->dead) node_failed(s, i, "it did not answer in its time");
}

const redisReply *dibs__redlock_reply(session *s, const struct dibs__redlock_asked *asked, size_t node) {
  if (asked->nth[node] == DIBS__REDLOCK_UNASKED || !s->links[node]) return NULL;
  const redisReply *reply = dibs__redis_reply(s->links[node], asked->nth[node]);
  if (!reply || reply->type != REDIS_REPLY_ERROR) return reply;
  dibs__mutex_lock(&s->store->lock);
  snprintf(s->store->nodes[node].why, sizeof s->store->nodes[node].why, "%.60s", reply->str);
  dibs__mutex_unlock(&s->store->lock);
  return NULL;
}

int64_t dibs__redlock_int(const redisReply *reply, size_t nth) {
  if (reply->type == REDIS_REPLY_INTEGER && nth == 0) return reply->integer;
  bool there = reply->type == REDIS_REPLY_ARRAY && nth < reply->elements;
  return there && reply->element[nth]->type == REDIS_REPLY_INTEGER ? reply->element[nth]->integer : 0;
}

dibs__str dibs__redlock_text(const redisReply *reply, size_t nth) {
  bool there = reply->type == REDIS_REPLY_ARRAY && nth < reply->elements;
  if (!there || reply->element[nth]->type != REDIS_REPLY_STRING) return dibs__str_of("", 0);
  return dibs__str_of(reply->element[nth]->str, reply->element[nth]->len);
}

/* ---- Quorum ---- */

void dibs__redlock_say_no_quorum(session *s, uint32_t answered, const int64_t waits[], struct dibs__said *said) {
  const struct dibs__redlock *store = s->store;
  char text[sizeof said->text];
  size_t used = (size_t)snprintf(text, sizeof text, "no quorum: %zu of %zu nodes answered",
                                 dibs__redlock_bits(answered), store->count);
  dibs__mutex_lock(&s->store->lock);
  for (size_t i = 0; i < store->count && used < sizeof text; i++) {
    bool came = answered >> i & 1;
    if (came && waits[i] <= 0) continue;
    const char *host = store->place->hosts[i].host;
    unsigned port = store->place->hosts[i].port;
    int more = came ? snprintf(text + used, sizeof text - used, "; %.60s:%u lost its memory and counts again in %lld s",
                               host, port, (long long)(waits[i] + 999) / 1000)
                    : snprintf(text + used, sizeof text - used, "; %.60s:%u: %s", host, port,
                               store->nodes[i].why[0] ? store->nodes[i].why : "it did not answer");
    used += (size_t)more;
  }
  dibs__mutex_unlock(&s->store->lock);
  dibs__say(said, "%s", text);
}

/* Two looks at the same: nobody counts a node in that was emptied after we looked. */
bool dibs__redlock_found(session *s, dibs__tick by) {
  struct dibs__redlock *store = s->store;
  struct dibs__redlock_asked asked;
  struct dibs__redlock_words words[DIBS__REDLOCK_NODES] = {{.count = 0}};
  uint32_t all = (uint32_t)(UINT64_C(1) << store->count) - 1;
  dibs__redlock_key(&words[0], store, "mark", (dibs__str){0});
  dibs__redlock_put(s, all, DIBS__REDLOCK_MARK, &words[0], &asked);
  dibs__redlock_go(s, by);
  for (size_t i = 0; i < store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, &asked, i);
    if (!reply || dibs__redlock_int(reply, 0) != 0) return false;
    dibs__str life = dibs__redlock_text(reply, 1), since = dibs__redlock_text(reply, 2);
    words[i] = (struct dibs__redlock_words){.count = 0};
    dibs__redlock_key(&words[i], store, "mark", (dibs__str){0});
    char *at = words[i].text + words[i].used;
    size_t room = sizeof words[i].text - words[i].used;
    if (life.len + since.len > room) return false;
    memcpy(at, life.p, life.len);
    memcpy(at + life.len, since.p, since.len);
    dibs__redlock_word(&words[i], at, life.len);
    dibs__redlock_word(&words[i], at + life.len, since.len);
  }
  for (size_t i = 0; i < store->count; i++) dibs__redlock_put(s, 1u << i, DIBS__REDLOCK_MARK, &words[i], &asked);
  dibs__redlock_go(s, by);
  return true;
}
