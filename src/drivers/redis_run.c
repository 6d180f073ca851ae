/* SPDX-License-Identifier: MIT */
/*
 * A batch: operations as redis/lease.lua reads them, many a script call, all calls in one round trip; its replies as
 * answers.  A call is an atomic step of the server, and bounded, so that others get their turn between.
 */
#include "drivers/redis_parts.h"

#include <stdlib.h>
#include <string.h>

extern const char dibs__redis_lua_lease[];

/* What lease.lua says an operation is: HEAD bytes, then name and owner, each behind its length. */
enum {
  CALL_OPS = 64, /* operations a call: about a fifth of a millisecond of the server */
  HEAD = 41,
  OP_MAX = HEAD + 1 + DIBS_NAME_MAX + 1 + DIBS_OWNER_MAX,
  ANSWER = 30,
  LIFE_HEX = 40,
  REPLY_HEAD = LIFE_HEX + 8,
  FIRST_ANCHOR = 16, /* verbs from here on are the anchor's */
  QUEUES = 1,
  AT_ONCE = 2,
  HEARD = 4,
  KEY_MAX = 80
};

/* One script call. */
struct call {
  struct dibs__op *ops[CALL_OPS];
  size_t count;
  uint8_t buckets[CALL_OPS], bucket_count; /* its keys */
  dibs__life lives[CALL_OPS];
  uint8_t life_count;
  size_t used;
  char blob[CALL_OPS * OP_MAX];
};

/* Of a session. */
struct dibs__redis_scratch {
  struct call call; /* the one that is being filled */
  struct dibs__op **asked;
  size_t room, count; /* of asked: all that were put, in order */
  uint8_t *counts;    /* operations of each call; as many as `room` */
  size_t calls;
};

static dibs__mutex naming = {PTHREAD_MUTEX_INITIALIZER};
static struct dibs__redis_script lease_script;

/* The script's name is made once, by whoever is first. */
static const struct dibs__redis_script *script(void) {
  dibs__mutex_lock(&naming);
  if (!lease_script.text) {
    lease_script.text = dibs__redis_lua_lease;
    dibs__redis_script_name(&lease_script);
  }
  dibs__mutex_unlock(&naming);
  return &lease_script;
}

void dibs__redis_scratch_free(struct dibs__redis_scratch *scratch) {
  if (!scratch) return;
  free(scratch->asked);
  free(scratch->counts);
  free(scratch);
}

static bool scratch_for(struct dibs__redis_session *session, size_t count) {
  struct dibs__redis_scratch *s = session->scratch;
  if (!s) s = session->scratch = calloc(1, sizeof *s);
  if (!s) return false;
  s->count = s->calls = 0;
  s->call.count = s->call.bucket_count = s->call.life_count = 0;
  s->call.used = 0;
  if (s->room >= count) return true;
  struct dibs__op **asked = realloc(s->asked, count * sizeof *asked);
  if (asked) s->asked = asked;
  uint8_t *counts = realloc(s->counts, count);
  if (counts) s->counts = counts;
  if (!asked || !counts) return false;
  s->room = count;
  return true;
}

/* ---- Operations, packed ---- */

static void put_number(char **to, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) *(*to)++ = (char)(uint8_t)(number >> 8 * i);
}

static void put_text(char **to, dibs__str text) {
  put_number(to, text.len, 1);
  if (text.len) memcpy(*to, text.p, text.len);
  *to += text.len;
}

/* As Lua knows numbers: a double's bytes. */
static uint64_t double_bits(uint64_t whole) {
  double number = (double)whole;
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static uint8_t key_of(struct call *c, uint16_t bucket) {
  uint8_t i = 0;
  while (i < c->bucket_count && c->buckets[i] != bucket) i++;
  if (i == c->bucket_count) c->buckets[c->bucket_count++] = (uint8_t)bucket;
  return (uint8_t)(i + 1);
}

static uint8_t life_of(struct call *c, const dibs__life *life) {
  uint8_t i = 0;
  while (i < c->life_count && memcmp(&c->lives[i], life, sizeof *life) != 0) i++;
  if (i == c->life_count) c->lives[c->life_count++] = *life;
  return (uint8_t)(i + 1);
}

static void pack_head(struct call *c, char **to, const struct dibs__op *op, uint8_t verb, uint32_t mode) {
  put_number(to, verb, 1);
  put_number(to, key_of(c, op->bucket), 1);
  put_number(to, life_of(c, &op->mandate.life), 1);
  put_number(to, mode, 1);
  put_number(to, op->mandate.epoch, 4);
}

/* Those are asked only when our subscription stands. */
static bool queues(const struct dibs__op *op) {
  const struct dibs__lease_op *lease = (const struct dibs__lease_op *)op;
  return op->family == DIBS__FAM_LEASE && op->verb == DIBS__ACQUIRE && (lease->queue || lease->ticket);
}

static void pack_lease(struct call *c, const struct dibs__lease_op *op) {
  char *to = c->blob + c->used;
  bool owned = op->op.verb == DIBS__ACQUIRE || op->op.verb == DIBS__BREAK;
  uint32_t flags = (op->op.verb == DIBS__ACQUIRE && op->queue ? QUEUES : 0) |
                   (op->op.verb == DIBS__BREAK && op->now ? AT_ONCE : 0) | (queues(&op->op) ? HEARD : 0);
  dibs__str owner = owned ? op->owner : (dibs__str){0};
  if (owner.len > DIBS_OWNER_MAX) owner.len = DIBS_OWNER_MAX;
  pack_head(c, &to, &op->op, (uint8_t)op->op.verb, op->mode);
  memcpy(to, op->id.b, sizeof op->id.b);
  to += sizeof op->id.b;
  put_number(&to, double_bits(op->fence.v), 8);
  put_number(&to, op->ttl_ms, 4);
  put_number(&to, op->mode == DIBS_COUNTED ? op->slots : 0, 2);
  put_number(&to, op->want_block > UINT16_MAX ? UINT16_MAX : op->want_block, 2);
  put_number(&to, flags, 1);
  put_text(&to, op->name);
  put_text(&to, owner);
  c->used = (size_t)(to - c->blob);
}

static void pack_anchor(struct call *c, const struct dibs__op *op) {
  static const char nothing[HEAD - 8] = {0};
  char *to = c->blob + c->used;
  pack_head(c, &to, op, (uint8_t)(FIRST_ANCHOR + op->verb), 0);
  memcpy(to, nothing, sizeof nothing);
  to += sizeof nothing;
  put_text(&to, (dibs__str){0});
  put_text(&to, (dibs__str){0});
  c->used = (size_t)(to - c->blob);
}

/* What needs no server is answered here.  false: its answer is set. */
static bool lease_valid(struct dibs__lease_op *op) {
  bool valid = op->op.bucket < DIBS__BUCKETS && op->name.len >= 1 && op->name.len <= DIBS_NAME_MAX;
  if (op->op.verb == DIBS__ACQUIRE) {
    valid = valid && op->mode <= DIBS_COUNTED && op->ttl_ms > 0 && op->owner.len <= DIBS_OWNER_MAX;
    if (op->mode == DIBS_COUNTED) valid = valid && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX;
    op->fence = DIBS__FENCE_NONE;
  }
  if (op->op.verb == DIBS__RENEW) valid = valid && op->ttl_ms > 0;
  if (op->op.verb > DIBS__BREAK) valid = false;
  op->waiting = false;
  op->got_block = op->slot = 0;
  op->was = DIBS__WAS_NOTHING;
  op->until = op->recheck = (dibs__when){0};
  if (!valid) op->op.status = DIBS_INVALID;
  return valid;
}

static bool to_be_asked(struct dibs__op *op) {
  if ((op->family != DIBS__FAM_LEASE && op->family != DIBS__FAM_ANCHOR) || op->group) {
    op->status = DIBS_UNSUPPORTED;
    return false;
  }
  if (op->family == DIBS__FAM_LEASE) return lease_valid((struct dibs__lease_op *)op);
  bool valid = op->bucket < DIBS__BUCKETS && op->verb <= DIBS__ANCHOR_ALONE;
  if (!valid) op->status = DIBS_INVALID;
  return valid;
}

/* ---- Sending ---- */

static void life_hex(const dibs__life *life, char to[LIFE_HEX]) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < sizeof life->b; i++) {
    to[2 * i] = digits[life->b[i] >> 4];
    to[2 * i + 1] = digits[life->b[i] & 15];
  }
}

/* "dibs:{17}" */
static size_t bucket_key(const char *prefix, uint8_t bucket, char key[KEY_MAX]) {
  size_t len = strlen(prefix);
  memcpy(key, prefix, len);
  key[len++] = ':';
  key[len++] = '{';
  if (bucket >= 10) key[len++] = (char)('0' + bucket / 10);
  key[len++] = (char)('0' + bucket % 10);
  key[len++] = '}';
  return len;
}

static bool put_call(struct dibs__redis_session *session) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  struct dibs__redis_scratch *s = session->scratch;
  struct call *c = &s->call;
  const char *words[2 * CALL_OPS + 2];
  size_t lengths[2 * CALL_OPS + 2], n = 0;
  char keys[CALL_OPS][KEY_MAX], lives[CALL_OPS][LIFE_HEX], us[9] = {store->as_tier ? '1' : '0'};
  if (!c->count) return true;
  for (; n < c->bucket_count; n++) {
    lengths[n] = bucket_key(store->place->prefix, c->buckets[n], keys[n]);
    words[n] = keys[n];
  }
  for (size_t i = 0; i < 8; i++) us[1 + i] = (char)(uint8_t)(store->session >> (56 - 8 * i));
  words[n] = us, lengths[n++] = sizeof us;
  words[n] = c->blob, lengths[n++] = c->used;
  for (size_t i = 0; i < c->life_count; i++) {
    life_hex(&c->lives[i], lives[i]);
    words[n] = lives[i], lengths[n++] = LIFE_HEX;
  }
  if (!dibs__redis_put_script(session->link, script(), c->bucket_count, n, words, lengths)) return false;
  memcpy(s->asked + s->count, c->ops, c->count * sizeof *s->asked);
  s->count += c->count;
  s->counts[s->calls++] = (uint8_t)c->count;
  c->count = c->bucket_count = c->life_count = 0;
  c->used = 0;
  return true;
}

static bool put_op(struct dibs__redis_session *session, struct dibs__op *op) {
  struct call *c = &session->scratch->call;
  c->ops[c->count++] = op;
  if (op->family == DIBS__FAM_LEASE)
    pack_lease(c, (const struct dibs__lease_op *)op);
  else
    pack_anchor(c, op);
  return c->count < CALL_OPS || put_call(session);
}

/* Nobody is queued who can't be told: without the subscription those few are not asked. */
static bool put_all(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                    struct dibs__said *said) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  bool asked = false;
  dibs__status bell = DIBS_OK;
  for (size_t i = 0; i < count; i++) {
    if (!to_be_asked(ops[i])) continue;
    if (queues(ops[i]) && !asked) {
      bell = dibs__redis_bell_ready(store, by, said);
      asked = true;
    }
    if (queues(ops[i]) && bell != DIBS_OK)
      ops[i]->status = bell == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : bell;
    else if (!put_op(session, ops[i]))
      return false;
  }
  return put_call(session);
}

/* ---- Answers ---- */

static double number_at(const char *from) {
  double number;
  memcpy(&number, from, sizeof number);
  return number;
}

static uint32_t short_at(const char *from) {
  return (uint32_t)(uint8_t)from[0] | (uint32_t)(uint8_t)from[1] << 8;
}

static void answer_lease(struct dibs__lease_op *op, const char *from) {
  int64_t second = (int64_t)number_at(from + 14);
  op->waiting = from[1] != 0;
  if (op->op.status == DIBS_OK && op->op.verb == DIBS__CANCEL) op->was = short_at(from + 2);
  if (op->op.status == DIBS_OK && op->op.verb == DIBS__BREAK) op->until.ms = second;
  if (op->op.status == DIBS_OK && op->op.verb <= DIBS__RENEW) {
    op->slot = short_at(from + 2);
    op->got_block = short_at(from + 4);
    op->fence.v = (uint64_t)number_at(from + 6);
    op->until.ms = second;
  }
  if (op->op.status == DIBS__QUEUED || op->op.status == DIBS_HELD) {
    op->fence.v = (uint64_t)number_at(from + 6);
    op->recheck.ms = second > 0 ? second : INT64_MAX;
    op->ticket = (uint64_t)number_at(from + 22);
  }
}

static void answer(struct dibs__op *op, const char *from, const dibs__life *life) {
  dibs__mandate stands = {(uint32_t)number_at(from + 6), *life};
  op->status = (uint8_t)from[0];
  if (op->family == DIBS__FAM_ANCHOR) {
    struct dibs__anchor_op *anchor = (struct dibs__anchor_op *)op;
    anchor->stands = stands;
    anchor->served = short_at(from + 2) != 0;
    return;
  }
  if (op->status == DIBS__MOVED)
    op->has = stands;
  else
    answer_lease((struct dibs__lease_op *)op, from);
}

/* For those who have to do something about it. */
static void explain(const struct dibs__redis *store, const struct dibs__op *op, const redisReply *words,
                    struct dibs__said *said) {
  const struct dibs__redis_place *place = store->place;
  if (said->text[0]) return;
  if (op->status == DIBS_DENIED && !words)
    dibs__say(said,
              "%s is served under an anchor's mandates; open it with all its tiers: --store redis://...,mysql://...",
              place->shown);
  else if (op->status == DIBS_CORRUPT)
    dibs__say(said, "%s: a key of %s:{%u} is none of dibs', or damaged (%.60s): choose another prefix, or delete it",
              place->shown, place->prefix, op->bucket, words && words->str ? words->str : "");
  else if (words && words->str)
    dibs__say(said, "%s: %.150s", place->shown, words->str);
}

static void all_are(struct dibs__op *const ops[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) ops[i]->status = status;
}

/* An error from inside of a script may have come after something was written. */
static bool from_inside(const redisReply *r) {
  return r->str && strncmp(r->str, "DIBS ", 5) != 0 &&
         (strstr(r->str, "user_script") || strstr(r->str, "running script"));
}

static void take_error(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                       const redisReply *r, struct dibs__said *said) {
  dibs__status status = dibs__redis_refused(session->link, r, "ask", said);
  all_are(ops, count, from_inside(r) ? DIBS_UNKNOWN : status);
  if (r->str && strncmp(r->str, "DIBS ", 5) == 0) said->dead = session->link->dead = true; /* no master any more */
}

static void take_reply(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                       const redisReply *r, struct dibs__said *said) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  const redisReply *words = NULL;
  if (!r) return; /* missing: they stay UNKNOWN */
  if (r->type == REDIS_REPLY_ERROR) {
    take_error(session, ops, count, r, said);
    return;
  }
  if (r->type == REDIS_REPLY_ARRAY && r->elements == 2) {
    words = r->element[1];
    r = r->element[0];
  }
  if (r->type != REDIS_REPLY_STRING || r->len != REPLY_HEAD + ANSWER * count ||
      !dibs__redis_life(r->str, LIFE_HEX, &session->life)) {
    dibs__say(said, "%s gave an answer that is none of dibs'", store->place->shown);
    return;
  }
  said->now.ms = (int64_t)number_at(r->str + LIFE_HEX);
  for (size_t i = 0; i < count; i++) {
    answer(ops[i], r->str + REPLY_HEAD + ANSWER * i, &session->life);
    if (words || ops[i]->status == DIBS_DENIED) explain(store, ops[i], words, said);
  }
  dibs__redis_bell_life(store, &session->life);
}

/* R6: what run() itself says. */
static dibs__status verdict(struct dibs__op *const ops[], size_t count, bool called) {
  size_t undone = 0, denied = 0, unknown = 0;
  for (size_t i = 0; i < count; i++) {
    undone += ops[i]->status == DIBS_UNAVAILABLE;
    denied += ops[i]->status == DIBS_DENIED;
    unknown += ops[i]->status == DIBS_UNKNOWN;
  }
  if (unknown) return DIBS_UNKNOWN;
  /* The server let nobody of us in. */
  if (!called && denied == count) return DIBS_DENIED;
  return undone == count ? DIBS_UNAVAILABLE : DIBS_OK;
}

dibs__status dibs__redis_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__said *said) {
  struct dibs__redis_session *session = (struct dibs__redis_session *)base;
  const struct dibs__redis *store = (const struct dibs__redis *)base->store;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  if (!scratch_for(session, count) || !put_all(session, ops, count, by, said)) {
    if (session->link) dibs__redis_drop(session->link);
    dibs__say(said, "no memory to ask %s", store->place->shown);
    return DIBS_UNAVAILABLE;
  }
  struct dibs__redis_scratch *s = session->scratch;
  if (!s->calls) return verdict(ops, count, false);
  dibs__status status = dibs__redis_go(session->link, by, said);
  if (status == DIBS_UNAVAILABLE) return status;
  said->commits = (uint32_t)s->calls;
  for (size_t i = 0, at = 0; i < s->calls; at += s->counts[i++])
    take_reply(session, s->asked + at, s->counts[i], dibs__redis_reply(session->link, i), said);
  return verdict(ops, count, true);
}
