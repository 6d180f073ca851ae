/* SPDX-License-Identifier: MIT */
/*
 * A batch: operations as redis/lease.lua reads them, many in a script call, all calls in one round trip; its replies
 * as answers.  A call is an atomic step of the server, and bounded, so that other clients get their turn in between.
 */
#include "drivers/redis/cluster.h"
#include "drivers/redis/describe.h"
#include "drivers/redis/redis_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char dibs__redis_lua_lease[];

/* The form of an operation for lease.lua: HEAD bytes, of which the last two are the number of its key; then the owner,
 * after its length. */
enum {
  CALL_OPS = DIBS__REDIS_CALL,
  HEAD = 43,
  OP_MAX = HEAD + 1 + DIBS_OWNER_MAX,
  ANSWER = 30,
  INCARNATION_HEX = 40,
  REPLY_HEAD = INCARNATION_HEX + 8,
  FIRST_ANCHOR = 16, /* later verbs are the anchor's */
  QUEUES = 1,
  AT_ONCE = 2,
  SUBSCRIBED = 4,
  KEY_MAX = 80, /* of a bucket */
  NO_NAME = UINT8_MAX,
  WORDS_MAX = 4 * CALL_OPS + 3,
  WAIT_MS = 1000, /* the longest that replicas may take */
  APART_MS = 1000 /* after a node of a cluster refused a bucket beside another */
};

/* One script call. */
struct call {
  struct dibs__op *ops[CALL_OPS];
  size_t count;
  uint8_t buckets[CALL_OPS], bucket_count; /* its keys */
  dibs__incarnation incarnations[CALL_OPS];
  uint8_t incarnation_count;
  dibs__incarnation present; /* the server's, as of connecting: what a caller means that knows none yet */
  /* The names of its operations, each once, and which of them an operation has. */
  struct {
    uint16_t bucket;
    dibs__str text;
  } names[CALL_OPS];
  uint8_t name_count, name_of[CALL_OPS];
  size_t starts[CALL_OPS], used; /* of the operations in the blob */
  char blob[CALL_OPS * OP_MAX];
  char keys[KEY_MAX + CALL_OPS * (3 * KEY_MAX + DIBS_NAME_MAX)];
};

/* A call as the command has it: the keys, and then the arguments. */
struct words {
  const char *text[WORDS_MAX];
  size_t length[WORDS_MAX], count;
};

/* Of a session. */
struct dibs__redis_scratch {
  struct call call; /* the call that is being filled */
  struct dibs__op **requested;
  size_t capacity, count; /* used bytes of `asked`: all operations that were put, in order */
  uint8_t *counts;        /* operations of each call; `capacity` of them */
  size_t calls;
  struct dibs__report_op **reports; /* one call each, after those; `capacity` of them */
  size_t report_count;
  struct dibs__shared_op **shared; /* after the reports; `capacity` of them */
  size_t shared_count;
};

static dibs__mutex naming = {PTHREAD_MUTEX_INITIALIZER};
static struct dibs__redis_script lease_script;

/* The script's SHA-1 is computed once, by the first caller. */
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
  free(scratch->requested);
  free(scratch->counts);
  free(scratch->reports);
  free(scratch->shared);
  free(scratch);
}

static void empty_call(struct call *c) {
  c->count = c->used = 0;
  c->bucket_count = c->incarnation_count = c->name_count = 0;
}

bool dibs__redis_begin(struct dibs__redis_session *session, size_t count) {
  struct dibs__redis_scratch *s = session->scratch;
  if (!s) s = session->scratch = calloc(1, sizeof *s);
  if (!s) return false;
  s->count = s->calls = s->report_count = s->shared_count = 0;
  empty_call(&s->call);
  if (s->capacity >= count) return true;
  struct dibs__op **requested = realloc(s->requested, count * sizeof *requested);
  if (requested) s->requested = requested;
  uint8_t *counts = realloc(s->counts, count);
  if (counts) s->counts = counts;
  struct dibs__report_op **reports = realloc(s->reports, count * sizeof *reports);
  if (reports) s->reports = reports;
  struct dibs__shared_op **shared = realloc(s->shared, count * sizeof *shared);
  if (shared) s->shared = shared;
  if (!requested || !counts || !reports || !shared) return false;
  s->capacity = count;
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

/* A number as Lua has it: the bytes of a double. */
static uint64_t double_bits(uint64_t whole) {
  double number = (double)whole;
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static uint8_t bucket_of(struct call *c, uint16_t bucket) {
  uint8_t i = 0;
  while (i < c->bucket_count && c->buckets[i] != bucket) i++;
  if (i == c->bucket_count) c->buckets[c->bucket_count++] = (uint8_t)bucket;
  return (uint8_t)(i + 1);
}

static uint8_t incarnation_of(struct call *c, const dibs__incarnation *incarnation) {
  static const dibs__incarnation unknown;
  uint8_t i = 0;
  if (memcmp(incarnation, &unknown, sizeof unknown) == 0) incarnation = &c->present;
  while (i < c->incarnation_count && memcmp(&c->incarnations[i], incarnation, sizeof *incarnation) != 0) i++;
  if (i == c->incarnation_count) c->incarnations[c->incarnation_count++] = *incarnation;
  return (uint8_t)(i + 1);
}

static uint8_t name_of(struct call *c, uint16_t bucket, dibs__str name) {
  uint8_t i = 0;
  while (i < c->name_count && (c->names[i].bucket != bucket || !dibs__str_equal(c->names[i].text, name))) i++;
  if (i == c->name_count) {
    c->names[i].bucket = bucket;
    c->names[i].text = name;
    c->name_count++;
  }
  return i;
}

static void pack_head(struct call *c, char **to, const struct dibs__op *op, uint8_t verb, uint32_t mode) {
  put_number(to, verb, 1);
  put_number(to, bucket_of(c, op->bucket), 1);
  put_number(to, incarnation_of(c, &op->mandate.incarnation), 1);
  put_number(to, mode, 1);
  put_number(to, op->mandate.epoch, 4);
}

/* Whether the operation may be queued. */
static bool may_be_queued(const struct dibs__op *op) {
  const struct dibs__lease_op *lease = (const struct dibs__lease_op *)op;
  return op->family == DIBS__FAM_LEASE && op->verb == DIBS__ACQUIRE && (lease->queue || lease->ticket);
}

static void pack_lease(struct call *c, const struct dibs__lease_op *op, bool subscribed) {
  char *to = c->blob + c->used;
  bool owned = op->op.verb == DIBS__ACQUIRE || op->op.verb == DIBS__BREAK;
  uint32_t flags = (op->op.verb == DIBS__ACQUIRE && op->queue && subscribed ? QUEUES : 0) |
                   (op->op.verb == DIBS__CANCEL && op->only_waits ? QUEUES : 0) |
                   (op->op.verb == DIBS__BREAK && op->now ? AT_ONCE : 0) |
                   (may_be_queued(&op->op) && subscribed ? SUBSCRIBED : 0);
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
  to += 2; /* put_call knows its key's number */
  put_text(&to, owner);
  c->used = (size_t)(to - c->blob);
}

static void pack_anchor(struct call *c, const struct dibs__op *op) {
  char *to = c->blob + c->used, *head = to;
  pack_head(c, &to, op, (uint8_t)(FIRST_ANCHOR + op->verb), 0);
  memset(to, 0, HEAD - 8);
  to += sizeof(dibs__id);
  put_number(&to, double_bits(((const struct dibs__anchor_op *)op)->above.v), 8);
  to = head + HEAD;
  put_text(&to, (dibs__str){0});
  c->used = (size_t)(to - c->blob);
}

/* Answers what needs no server.  false: its answer is set. */
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

static bool needs_server(struct dibs__op *op) {
  bool known = op->family == DIBS__FAM_LEASE || op->family == DIBS__FAM_ANCHOR || op->family == DIBS__FAM_REPORT ||
               op->family == DIBS__FAM_SHARED;
  if (!known || op->group) {
    op->status = DIBS_UNSUPPORTED;
    return false;
  }
  if (op->family == DIBS__FAM_LEASE) return lease_valid((struct dibs__lease_op *)op);
  if (op->family == DIBS__FAM_REPORT) return dibs__redis_report_valid((struct dibs__report_op *)op);
  if (op->family == DIBS__FAM_SHARED) return dibs__shared_valid((struct dibs__shared_op *)op);
  const struct dibs__anchor_op *anchor = (const struct dibs__anchor_op *)op;
  bool valid = op->bucket < DIBS__BUCKETS && op->verb <= DIBS__ANCHOR_OPEN && anchor->above.v <= DIBS__FENCE_MAX;
  if (!valid) op->status = DIBS_INVALID;
  return valid;
}

/* ---- Sending ---- */

static void incarnation_hex(const dibs__incarnation *incarnation, char to[INCARNATION_HEX]) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < sizeof incarnation->b; i++) {
    to[2 * i] = digits[incarnation->b[i] >> 4];
    to[2 * i + 1] = digits[incarnation->b[i] & 15];
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

static void add_word(struct words *w, const char *text, size_t length) {
  w->text[w->count] = text;
  w->length[w->count++] = length;
}

/* Writes the key of a bucket, and what follows it in the keys of the bucket, and adds it. */
static void add_key(struct words *w, char **to, const char *prefix, uint16_t bucket, const char *kind, dibs__str name) {
  size_t length = bucket_key(prefix, (uint8_t)bucket, *to), more = strlen(kind);
  memcpy(*to + length, kind, more);
  length += more;
  if (name.len) memcpy(*to + length, name.p, name.len);
  length += name.len;
  add_word(w, *to, length);
  *to += length;
}

/* The number of its key for each operation of the nth name: keys are counted from 1 on. */
static void number_key(struct call *c, size_t nth, size_t number) {
  for (size_t i = 0; i < c->count; i++) {
    char *to = c->blob + c->starts[i] + HEAD - 2;
    if (c->name_of[i] == nth) put_number(&to, number, 2);
  }
}

static void add_arguments(struct words *w, const struct call *c, const char *head, size_t head_length,
                          char incarnations[CALL_OPS][INCARNATION_HEX]) {
  add_word(w, head, head_length);
  add_word(w, c->blob, c->used);
  for (size_t i = 0; i < c->incarnation_count; i++) {
    incarnation_hex(&c->incarnations[i], incarnations[i]);
    add_word(w, incarnations[i], INCARNATION_HEX);
  }
}

/* All keys are given as such. */
static size_t add_keys(struct words *w, struct call *c, const char *prefix) {
  char *to = c->keys;
  for (size_t i = 0; i < c->bucket_count; i++) add_key(w, &to, prefix, c->buckets[i], "", (dibs__str){0});
  for (size_t i = 0; i < c->name_count; i++) {
    add_key(w, &to, prefix, c->names[i].bucket, ":n:", c->names[i].text);
    number_key(c, i, w->count);
  }
  return w->count;
}

/* Of a node: the keys of a command must be of one slot, but a script also reaches what it is not given as a key.  The
 * names of a bucket follow one another, as its operations do.  `more` gets how many keys follow that of each bucket. */
static void add_node_keys(struct words *w, struct call *c, const char *prefix, char more[CALL_OPS]) {
  char *to = c->keys + KEY_MAX;
  size_t name = 0, before = 1; /* the word that is a key */
  for (size_t i = 0; i < c->bucket_count; i++) {
    size_t first = w->count;
    add_key(w, &to, prefix, c->buckets[i], "", (dibs__str){0});
    for (; name < c->name_count && c->names[name].bucket == c->buckets[i]; name++) {
      add_key(w, &to, prefix, c->buckets[i], ":n:", c->names[name].text);
      number_key(c, name, w->count - before);
    }
    add_key(w, &to, prefix, c->buckets[i], ":-", (dibs__str){0});
    more[i] = (char)(uint8_t)(w->count - first - 1);
  }
  assert(name == c->name_count);
}

static bool put_call(struct dibs__redis_session *session) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  struct dibs__redis_scratch *s = session->scratch;
  struct call *c = &s->call;
  struct words w = {.count = 0};
  char incarnations[CALL_OPS][INCARNATION_HEX], head[10 + CALL_OPS] = {0}, *to = head + 1;
  const char *prefix = store->location->prefix;
  size_t keys = 1;
  if (!c->count) return true;
  head[0] = (char)('0' + (store->as_tier ? 1 : 0) + (store->is_node ? 2 : 0) + (store->location->replicas ? 4 : 0));
  for (size_t i = 0; i < 8; i++) put_number(&to, store->session >> (56 - 8 * i) & 0xff, 1);
  put_number(&to, c->incarnation_count, 1);
  if (!store->is_node) {
    keys = add_keys(&w, c, prefix);
    add_arguments(&w, c, head, 10u + c->bucket_count, incarnations);
  } else {
    add_word(&w, c->keys, bucket_key(prefix, c->buckets[0], c->keys));
    add_arguments(&w, c, head, 10u + c->bucket_count, incarnations);
    add_node_keys(&w, c, prefix, head + 10);
  }
  if (!dibs__redis_put_script(session->link, script(), keys, w.count, w.text, w.length)) return false;
  memcpy(s->requested + s->count, c->ops, c->count * sizeof *s->requested);
  s->count += c->count;
  s->counts[s->calls++] = (uint8_t)c->count;
  empty_call(c);
  return true;
}

/* A node may refuse one bucket of a call and serve the next call, so that the operations of a bucket, which follow one
 * another in the list, stay in one call. */
static bool put_bucket(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count) {
  const struct call *c = &session->scratch->call;
  size_t run = 1;
  if (c->count == 0 || c->ops[c->count - 1]->bucket == ops[0]->bucket) return true;
  while (run < count && ops[run]->bucket == ops[0]->bucket) run++;
  bool apart = dibs__tick_before(dibs__tick_now(), session->apart_until);
  return (!apart && c->count + run <= CALL_OPS) || put_call(session);
}

static bool put_op(struct dibs__redis_session *session, struct dibs__op *op, bool subscribed) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  struct call *c = &session->scratch->call;
  bool hints = store->is_node && !store->as_tier && op->family == DIBS__FAM_LEASE;
  c->present = hints ? session->link->incarnation : (dibs__incarnation){{0}};
  const struct dibs__lease_op *lease = op->family == DIBS__FAM_LEASE ? (const struct dibs__lease_op *)op : NULL;
  c->starts[c->count] = c->used;
  c->name_of[c->count] = lease ? name_of(c, op->bucket, lease->name) : NO_NAME;
  c->ops[c->count++] = op;
  if (lease)
    pack_lease(c, lease, subscribed);
  else
    pack_anchor(c, op);
  return c->count < CALL_OPS || put_call(session);
}

/* A failure of the subscription's connection does not concern this session's connection. */
dibs__status dibs__redis_ensure_subscribed(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__result own = {.dead = false};
  dibs__status status = dibs__redis_notifier_ready(store, by, &own);
  if (status != DIBS_OK) dibs__set_message(result, "%s", own.text);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* replicas=N: the last command of a packet waits until N replicas have what was done before it. */
static bool put_wait(struct dibs__redis_session *session, dibs__tick by) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  const struct dibs__redis_scratch *s = session->scratch;
  uint32_t replicas = store->location->replicas;
  if (!replicas || !(s->calls || s->report_count || s->shared_count)) return true;
  /* It answers before the deadline, so that what the replicas lack is known; never 0, which waits for ever. */
  int64_t ms = dibs__tick_left_ms(dibs__tick_now(), by) / 2;
  char words[2][24];
  snprintf(words[0], sizeof words[0], "%" PRIu32, replicas);
  snprintf(words[1], sizeof words[1], "%" PRId64, ms < 1 ? 1 : ms > WAIT_MS ? WAIT_MS : ms);
  return dibs__redis_put(session->link, 3, (const char *const[]){"WAIT", words[0], words[1]},
                         (const size_t[]){4, strlen(words[0]), strlen(words[1])});
}

/* A waiter is queued only if it can be notified.  A process without a subscription first requests its leases without
 * being queued: a free name needs no queue.  A waiter that is in a queue already keeps its position, and is sent only
 * with a subscription. */
bool dibs__redis_put_operations(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                                dibs__tick by, struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  struct dibs__redis_scratch *s = session->scratch;
  bool subscribed = dibs__redis_notifier_is_open(store), requested = false;
  dibs__status notifier = DIBS_OK;
  for (size_t i = 0; i < count; i++) {
    /* The partitions of a space have slots, and incarnations, of their own. */
    if (store->is_node && ops[i]->family == DIBS__FAM_SHARED) {
      ops[i]->status = DIBS_UNSUPPORTED;
      continue;
    }
    if (!needs_server(ops[i])) continue;
    if (ops[i]->family == DIBS__FAM_REPORT) {
      s->reports[s->report_count++] = (struct dibs__report_op *)ops[i];
      continue;
    }
    if (ops[i]->family == DIBS__FAM_SHARED) {
      s->shared[s->shared_count++] = (struct dibs__shared_op *)ops[i];
      continue;
    }
    bool waits = may_be_queued(ops[i]) && ((const struct dibs__lease_op *)ops[i])->ticket;
    if (waits && !subscribed && !requested) {
      notifier = dibs__redis_ensure_subscribed(store, by, result);
      requested = true;
      subscribed = notifier == DIBS_OK;
    }
    if (waits && !subscribed)
      ops[i]->status = notifier;
    else if ((store->is_node && !put_bucket(session, ops + i, count - i)) || !put_op(session, ops[i], subscribed))
      return false;
  }
  session->subscribed = subscribed;
  bool enough = put_call(session);
  for (size_t i = 0; i < s->report_count && enough; i++) enough = dibs__redis_report_put(session, s->reports[i]);
  for (size_t i = 0; i < s->shared_count && enough; i++) enough = dibs__redis_shared_put(session, s->shared[i]);
  return enough && put_wait(session, by);
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

static void read_answer(struct dibs__op *op, const char *from, const dibs__incarnation *incarnation) {
  dibs__mandate current = {(uint32_t)number_at(from + 6), *incarnation};
  op->status = (uint8_t)from[0];
  if (op->family == DIBS__FAM_ANCHOR) {
    struct dibs__anchor_op *anchor = (struct dibs__anchor_op *)op;
    anchor->current = current;
    anchor->served = short_at(from + 2) == 1 || short_at(from + 2) == 2;
    anchor->left = short_at(from + 2) == 2;
    anchor->used = short_at(from + 2) == 3;
    anchor->last = DIBS__FENCE_NONE; /* after its clock, or above its epoch by less than one */
    return;
  }
  if (op->status == DIBS__MOVED)
    op->has = current;
  else
    answer_lease((struct dibs__lease_op *)op, from);
}

/* Messages for the answers that somebody must act on. */
static void explain_error(const struct dibs__redis *store, const struct dibs__op *op, const redisReply *words,
                          struct dibs__result *result) {
  const struct dibs__redis_location *location = store->location;
  if (result->text[0]) return;
  if (op->status == DIBS_DENIED && !words)
    dibs__set_message(result, "%s is a tier; open it with all its tiers: --store FIRST,SECOND", location->shown);
  else if (op->status == DIBS_CORRUPT)
    dibs__set_message(
        result,
        "%s: a key of %s:{%u} belongs to another program, or is damaged (%.60s); choose another prefix, or delete it",
        location->shown, location->prefix, op->bucket, words && words->str ? words->str : "");
  else if (words && words->str)
    dibs__set_message(result, "%s: %.150s", location->shown, words->str);
}

static void all_are(struct dibs__op *const ops[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) ops[i]->status = status;
}

/* An error from inside a script may follow a write. */
static bool from_inside(const redisReply *r) {
  return r->str && strncmp(r->str, "DIBS ", 5) != 0 &&
         (strstr(r->str, "user_script") || strstr(r->str, "running script"));
}

bool dibs__redis_is_redirection(const redisReply *reply) {
  static const char *const words[] = {"MOVED ",  "ASK ",       "TRYAGAIN", "CLUSTERDOWN",
                                      "LOADING", "MASTERDOWN", "READONLY", "DIBS "};
  for (size_t i = 0; reply && reply->type == REDIS_REPLY_ERROR && i < sizeof words / sizeof words[0]; i++)
    if (strncmp(reply->str, words[i], strlen(words[i])) == 0) return true;
  return false;
}

/* true: a node of a cluster did not do it, because the slot is not there, or it is no master. */
static bool was_redirected(struct dibs__redis_session *session, const redisReply *r, struct dibs__result *result) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  if (!store->is_node || !dibs__redis_is_redirection(r)) return false;
  bool moved = strncmp(r->str, "MOVED ", 6) == 0;
  bool moves = strncmp(r->str, "TRYAGAIN", 8) == 0 || strncmp(r->str, "ASK", 3) == 0;
  session->redirected = session->redirected || moved || moves;
  if (moved) dibs__redis_map_moved(store->whole, r->str, (const struct dibs__redis_node *)store);
  if (!moved && !moves && strncmp(r->str, "CLUSTERDOWN", 11) != 0) session->link->dead = true;
  dibs__set_message(result, "%s: %.150s", store->location->shown,
                    moves ? "a slot is being moved to another node" : r->str);
  return true;
}

static void take_report(struct dibs__redis_session *session, struct dibs__report_op *op, const redisReply *r,
                        struct dibs__result *result) {
  if (was_redirected(session, r, result))
    op->op.status = DIBS__REDIS_REDIRECTED;
  else
    dibs__redis_report_answer(session, op, r, result);
}

static void take_error(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                       const redisReply *r, struct dibs__result *result) {
  if (was_redirected(session, r, result)) {
    all_are(ops, count, DIBS__REDIS_REDIRECTED);
    return;
  }
  dibs__status status = dibs__redis_refused(session->link, r, "ask", result);
  all_are(ops, count, from_inside(r) ? DIBS_UNKNOWN : status);
  if (r->str && strncmp(r->str, "DIBS ", 5) == 0) result->dead = session->link->dead = true; /* no longer a master */
}

static void take_reply(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                       const redisReply *r, struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  const redisReply *words = NULL;
  if (!r) return; /* missing: they stay UNKNOWN */
  if (r->type == REDIS_REPLY_ERROR) {
    take_error(session, ops, count, r, result);
    return;
  }
  if (r->type == REDIS_REPLY_ARRAY && r->elements == 2) {
    words = r->element[1];
    r = r->element[0];
  }
  if (r->type != REDIS_REPLY_STRING || r->len != REPLY_HEAD + ANSWER * count ||
      !dibs__redis_incarnation(r->str, INCARNATION_HEX, &session->incarnation)) {
    dibs__set_message(result, "%s gave an answer that dibs' script does not give", store->location->shown);
    return;
  }
  result->now.ms = (int64_t)number_at(r->str + INCARNATION_HEX);
  for (size_t i = 0; i < count; i++) {
    ops[i]->at = result->now;
    read_answer(ops[i], r->str + REPLY_HEAD + ANSWER * i, &session->incarnation);
    if (ops[i]->status == DIBS__REDIS_REDIRECTED) {
      session->beside = true;
      session->apart_until = dibs__tick_add_ms(dibs__tick_now(), APART_MS);
    }
    if (words || ops[i]->status == DIBS_DENIED) explain_error(store, ops[i], words, result);
  }
  dibs__redis_notifier_incarnation(store, &session->incarnation);
}

/* With fewer replicas than the location wants, a grant may vanish in a failover: it is in doubt. */
static void check_replicas(struct dibs__redis_session *session, const redisReply *r, struct dibs__result *result) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  const struct dibs__redis_scratch *s = session->scratch;
  if (!store->location->replicas) return;
  /* A script that was sent again has run after WAIT. */
  if (!session->link->tellings && r && r->type == REDIS_REPLY_INTEGER &&
      r->integer >= (long long)store->location->replicas)
    return;
  if (r && r->type == REDIS_REPLY_ERROR)
    dibs__set_message(result, "%s: %.150s", store->location->shown, r->str);
  else if (r)
    dibs__set_message(result, "%s: %lld replicas have what was granted, and replicas=%" PRIu32 " is required",
                      store->location->shown, r->integer, store->location->replicas);
  for (size_t i = 0; i < s->count; i++) {
    struct dibs__op *op = s->requested[i];
    bool grants = op->family == DIBS__FAM_ANCHOR || op->verb <= DIBS__RENEW;
    if (op->status == DIBS_OK && grants) op->status = DIBS_UNKNOWN;
  }
  for (size_t i = 0; i < s->shared_count; i++) {
    struct dibs__op *op = &s->shared[i]->op;
    if ((op->status == DIBS_OK || op->status == DIBS_REPLAY) && op->verb == DIBS__SHARED_ADD) op->status = DIBS_UNKNOWN;
  }
}

void dibs__redis_take(struct dibs__redis_session *session, struct dibs__result *result) {
  struct dibs__redis_scratch *s = session->scratch;
  result->commits += (uint32_t)(s->calls + s->report_count);
  for (size_t i = 0, at = 0; i < s->calls; at += s->counts[i++])
    take_reply(session, s->requested + at, s->counts[i], dibs__redis_reply(session->link, i), result);
  for (size_t i = 0; i < s->report_count; i++)
    take_report(session, s->reports[i], dibs__redis_reply(session->link, s->calls + i), result);
  size_t at = s->calls + s->report_count;
  for (size_t i = 0; i < s->shared_count; at += dibs__redis_shared_calls(s->shared[i++]))
    dibs__redis_shared_answer(session, s->shared[i], at, result);
  check_replicas(session, dibs__redis_reply(session->link, at), result);
}

/* R6: the status of run() itself. */
dibs__status dibs__redis_status_of_batch(struct dibs__op *const ops[], size_t count, bool called) {
  size_t undone = 0, denied = 0, unknown = 0;
  for (size_t i = 0; i < count; i++) {
    undone += ops[i]->status == DIBS_UNAVAILABLE;
    denied += ops[i]->status == DIBS_DENIED;
    unknown += ops[i]->status == DIBS_UNKNOWN;
  }
  if (unknown) return DIBS_UNKNOWN;
  /* The server refused all of our operations. */
  if (!called && denied == count) return DIBS_DENIED;
  return undone == count ? DIBS_UNAVAILABLE : DIBS_OK;
}

static dibs__status run_once(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                             dibs__tick by, struct dibs__result *result) {
  const struct dibs__redis *store = (const struct dibs__redis *)session->base.store;
  if (!dibs__redis_begin(session, count) || !dibs__redis_put_operations(session, ops, count, by, result)) {
    if (session->link) dibs__redis_drop(session->link);
    dibs__set_message(result, "out of memory for a request to %s", store->location->shown);
    return DIBS_UNAVAILABLE;
  }
  struct dibs__redis_scratch *s = session->scratch;
  if (!s->calls && !s->report_count && !s->shared_count) return dibs__redis_status_of_batch(ops, count, false);
  dibs__status status = dibs__redis_go(session->link, by, result);
  if (status == DIBS_UNAVAILABLE) return status;
  dibs__redis_take(session, result);
  return dibs__redis_status_of_batch(ops, count, true);
}

bool dibs__redis_would_queue(const struct dibs__op *op) {
  return (op->status == DIBS_HELD || op->status == DIBS__QUEUED) && may_be_queued(op);
}

/* The operations that would wait, and were sent without a subscription, move to `to`. */
static size_t select_to_queue(const struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                              struct dibs__op **to) {
  size_t some = 0;
  for (size_t i = 0; i < count && !session->subscribed; i++)
    if (dibs__redis_would_queue(ops[i])) to[some++] = ops[i];
  return some;
}

dibs__status dibs__redis_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *result) {
  struct dibs__redis_session *session = (struct dibs__redis_session *)base;
  struct dibs__redis *store = (struct dibs__redis *)base->store;
  struct dibs__op *again[DIBS__REDIS_BATCH];
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    *result = (struct dibs__result){.sent = dibs__tick_now()};
    dibs__redis_describe(session, by, &findings);
    result->dead = session->link && session->link->dead;
    return dibs__findings_answer(&findings, ops[0]);
  }
  if (store->cluster) return dibs__redis_cluster_run(session, ops, count, by, result);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  dibs__status status = run_once(session, ops, count, by, result);
  size_t some = status == DIBS_OK && count <= DIBS__REDIS_BATCH ? select_to_queue(session, ops, count, again) : 0;
  if (some == 0) return status;
  dibs__status notifier = dibs__redis_ensure_subscribed(store, by, result);
  for (size_t i = 0; i < some; i++) again[i]->status = notifier == DIBS_OK ? DIBS_UNKNOWN : notifier;
  status = notifier == DIBS_OK ? run_once(session, again, some, by, result) : DIBS_OK;
  for (size_t i = 0; i < some; i++) /* the second time did nothing */
    if (status == DIBS_UNAVAILABLE && again[i]->status == DIBS_UNKNOWN) again[i]->status = status;
  return dibs__redis_status_of_batch(ops, count, true);
}
