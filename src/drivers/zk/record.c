/* SPDX-License-Identifier: MIT */
/*
 * Records: a node for each key, which is never removed.
 *
 * The node has a line for dibs, "dibs 1 VERSION FENCE DIGEST STATE [REST]", and then the content.  VERSION is the
 * record's: it counts its contents, also across removals (R22, R23: a removed record is a node without content).  The
 * version of the node itself also counts seals: every write names the version that was read, so it happens only if
 * nothing else happened in between, and otherwise all is read and decided again.
 *
 * A node takes less than a megabyte (jute.maxbuffer), and a record may have one: what does not fit is in a child,
 * REST, which is written before the node and never changed.  Its name begins with the node's version that its writer
 * has read.  A node of a later version does not become that writer's, so then the child is garbage, which the next
 * writer removes.
 *
 * A server may lag behind the others.  So each read comes after a sync.
 */
#include "drivers/zk/zk_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk store_t;
typedef struct dibs__zk_slot slot_t;

enum step { DONE, GET, GET_REST, PUT_REST, WRITE, CLEAN };
enum { SLOTS = 3, FIRST = 512 * 1024, HEAD_MAX = 192, REST_NAME = 48, TRIES_MAX = 1000 };

struct doing {
  struct dibs__record_op *op;
  enum step step;
  size_t at;
  uint32_t tries;
  bool sent;
  bool exists;
  int32_t node_version, children;
  uint64_t version, digest;
  dibs__fence fence;
  bool has_data;
  char rest[REST_NAME], old_rest[REST_NAME]; /* "": none */
  char *data;                                /* of the node as it was read; with a NUL */
  size_t len;
};

struct batch {
  store_t *store;
  struct dibs__result *result;
  dibs__tick by;
  size_t count;
  struct dibs__zk_round *round;
  struct doing all[DIBS__ZK_BATCH];
};

static const char *path_of(const store_t *store, dibs__str key, const char *rest, char to[DIBS__ZK_PATH]) {
  char encoded[3 * DIBS_NAME_MAX + 1];
  dibs__zk_encode(key, encoded);
  snprintf(to, DIBS__ZK_PATH, "%s/r/%02u/%s%s%s", store->path, dibs__bucket(key), encoded, *rest ? "/" : "", rest);
  return to;
}

static void finish(struct doing *d, dibs__status status) {
  d->op->op.status = status;
  d->step = DONE;
}

static void refuse(struct batch *b, struct doing *d, int rc, const char *what) {
  finish(d, dibs__zk_explain(b->store, rc, what, b->result));
}

/* ---- The node's text ---- */

static bool read_head(struct doing *d, const char *text, int len) {
  char state, head[HEAD_MAX]; /* alone: the content must not be read as the name of a child */
  unsigned long long version, fence, digest;
  const char *line = memchr(text, '\n', (size_t)len);
  d->rest[0] = '\0';
  if (!line || line - text >= HEAD_MAX) return false;
  memcpy(head, text, (size_t)(line - text));
  head[line - text] = '\0';
  int got = sscanf(head, "dibs 1 %llu %llu %llx %c %47s", &version, &fence, &digest, &state, d->rest);
  if (got < 4 || (state != '+' && state != '-')) return false;
  if (strchr(d->rest, '/')) return false;
  d->version = version;
  d->fence.v = fence;
  d->digest = digest;
  d->has_data = state == '+';
  d->len = (size_t)(text + len - line - 1);
  free(d->data);
  d->data = malloc(d->len + 1);
  if (!d->data) return false;
  memcpy(d->data, line + 1, d->len);
  d->data[d->len] = '\0';
  return true;
}

/* The text of the node after the operation; malloc'd. */
static char *write_head(const struct doing *d, const char *data, size_t len, size_t *size) {
  char *text = malloc(HEAD_MAX + len);
  if (!text) return NULL;
  const char *rest = *d->rest ? d->rest : "";
  int n = snprintf(text, HEAD_MAX, "dibs 1 %llu %llu %llx %c%s%s\n", (unsigned long long)d->version,
                   (unsigned long long)d->fence.v, (unsigned long long)d->digest, d->has_data ? '+' : '-',
                   *rest ? " " : "", rest);
  if (len) memcpy(text + n, data, len);
  *size = (size_t)n + len;
  return text;
}

/* ---- Deciding ---- */

static bool is_write(const struct doing *d) {
  return d->op->op.verb == DIBS__RECORD_PUT;
}

static bool needs_rest(const struct doing *d) {
  bool reads = d->op->op.verb == DIBS__RECORD_LOAD || d->op->op.verb == DIBS__RECORD_SEAL;
  return d->rest[0] && (reads || (d->op->guards & DIBS__IF_DIGEST));
}

static void answer_load(struct doing *d) {
  struct dibs__record_op *op = d->op;
  op->seen = d->fence;
  op->version = d->has_data ? d->version : 0;
  op->op.status = DIBS_OK;
  d->step = DONE;
  if (!d->has_data) return;
  op->got = d->data;
  op->got_len = (uint32_t)d->len;
  d->data = NULL;
}

/* The rest of a new content gets a name that no other writer uses. */
static void name_rest(struct doing *d) {
  uint64_t some;
  dibs__random(&some, sizeof some);
  snprintf(d->rest, sizeof d->rest, "%d-%016llx", d->exists ? d->node_version : -1, (unsigned long long)some);
}

/* The node, and its rest if it is needed, were read. */
static void decide(struct doing *d) {
  struct dibs__record_op *op = d->op;
  if (op->op.verb == DIBS__RECORD_LOAD) {
    if (d->exists && (d->has_data || d->version == 0))
      answer_load(d);
    else
      finish(d, DIBS_NOT_FOUND);
    return;
  }
  dibs__str data = d->has_data ? dibs__str_of(d->data, d->len) : (dibs__str){0};
  if (!dibs__record_admits(op, d->fence, d->digest, d->has_data ? d->version : 0, data)) {
    d->step = DONE;
    return;
  }
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    d->fence = op->fence;
    d->digest = dibs__id_digest(op->id);
  }
  d->step = WRITE;
  if (op->op.verb == DIBS__RECORD_SEAL) return;
  memcpy(d->old_rest, d->rest, sizeof d->old_rest);
  d->rest[0] = '\0';
  d->has_data = is_write(d);
  if (!is_write(d)) return;
  d->version++;
  if (op->data.len <= FIRST) return;
  name_rest(d);
  d->step = d->exists ? PUT_REST : WRITE; /* the node must exist first */
}

/* ---- Sending ---- */

static void send_write(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH];
  store_t *store = b->store;
  size_t size = 0, len = 0;
  const char *data = NULL;
  if (d->op->op.verb == DIBS__RECORD_SEAL && d->has_data) data = d->data, len = d->len < FIRST ? d->len : FIRST;
  if (is_write(d)) data = d->op->data.p, len = d->op->data.len < FIRST ? d->op->data.len : FIRST;
  if (!d->exists && d->rest[0]) { /* an empty node, for the child that comes first */
    struct doing empty = {.op = d->op};
    char *text = write_head(&empty, NULL, 0, &size);
    d->at = dibs__zk_put_create(store, b->round, path_of(store, d->op->key, "", path), text ? text : "", size,
                                ZOO_PERSISTENT);
    free(text);
    return;
  }
  char *text = write_head(d, data, len, &size);
  if (!text) {
    finish(d, DIBS_NO_MEMORY);
    return;
  }
  path_of(store, d->op->key, "", path);
  d->sent = true;
  if (d->exists)
    d->at = dibs__zk_put_set(store, b->round, path, text, size, d->node_version);
  else
    d->at = dibs__zk_put_create(store, b->round, path, text, size, ZOO_PERSISTENT);
  free(text);
}

static void send_step(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH];
  store_t *store = b->store;
  switch (d->step) {
  case DONE:
    return;
  case GET:
    d->at = dibs__zk_put_sync(store, b->round, path_of(store, d->op->key, "", path)) + 1;
    (void)dibs__zk_put_get(store, b->round, path);
    return;
  case GET_REST:
    d->at = dibs__zk_put_get(store, b->round, path_of(store, d->op->key, d->rest, path));
    return;
  case PUT_REST:
    path_of(store, d->op->key, d->rest, path);
    d->at = dibs__zk_put_create(store, b->round, path, d->op->data.p + FIRST, d->op->data.len - FIRST, ZOO_PERSISTENT);
    return;
  case WRITE:
    send_write(b, d);
    return;
  case CLEAN:
    d->at = dibs__zk_put_children(store, b->round, path_of(store, d->op->key, "", path), NULL, 0);
    return;
  }
}

/* ---- Receiving ---- */

static void received_get(struct batch *b, struct doing *d, const slot_t *slot) {
  if (dibs__zk_lost(slot->rc)) return;
  d->exists = slot->rc == ZOK;
  if (slot->rc == ZNONODE) {
    free(d->data);
    d->data = NULL;
    d->len = 0;
    d->version = d->digest = 0;
    d->fence = DIBS__FENCE_NONE;
    d->has_data = false;
    d->rest[0] = '\0';
    decide(d);
  } else if (slot->rc != ZOK) {
    refuse(b, d, slot->rc, "read a record of");
  } else if (!read_head(d, slot->text, slot->len)) {
    dibs__set_message(b->result, "%.200s: the node of the record \"%.*s\" has another form", b->store->location.shown,
                      (int)d->op->key.len, d->op->key.p);
    finish(d, DIBS_CORRUPT);
  } else {
    d->node_version = slot->stat.version;
    d->children = slot->stat.numChildren;
    d->step = GET_REST;
    if (!needs_rest(d)) decide(d);
  }
}

static void received_get_rest(struct batch *b, struct doing *d, const slot_t *slot) {
  if (dibs__zk_lost(slot->rc)) return;
  if (slot->rc == ZNONODE) { /* another client has just replaced the content */
    d->step = GET;
    return;
  }
  if (slot->rc != ZOK) {
    refuse(b, d, slot->rc, "read a record of");
    return;
  }
  char *whole = realloc(d->data, d->len + (size_t)slot->len + 1);
  if (!whole) {
    finish(d, DIBS_NO_MEMORY);
    return;
  }
  memcpy(whole + d->len, slot->text, (size_t)slot->len + 1);
  d->data = whole;
  d->len += (size_t)slot->len;
  decide(d);
}

static void received_put_rest(struct batch *b, struct doing *d, const slot_t *slot) {
  if (slot->rc == ZOK)
    d->step = WRITE;
  else if (slot->rc == ZNONODE || dibs__zk_lost(slot->rc)) /* the child may exist: another name next time */
    d->step = GET;
  else
    refuse(b, d, slot->rc, "write a record to");
}

/* A bucket's folder is made with its first record. */
static void make_folder(struct batch *b, const struct doing *d) {
  char path[DIBS__ZK_PATH];
  struct dibs__zk_round *round = dibs__zk_round_new(1);
  if (!round) return;
  snprintf(path, sizeof path, "%s/r/%02u", b->store->path, dibs__bucket(d->op->key));
  dibs__zk_put_create(b->store, round, path, "", 0, ZOO_PERSISTENT);
  dibs__zk_go(b->store, round, b->by);
  if (round->slots[0].rc == ZNONODE) b->store->rooted = false; /* ROOT may have been removed */
  dibs__zk_round_drop(round);
}

static void answer_written(struct doing *d) {
  struct dibs__record_op *op = d->op;
  if (op->op.verb == DIBS__RECORD_SEAL) {
    answer_load(d);
    return;
  }
  if (is_write(d)) op->version = d->version;
  op->seen = d->fence;
  op->op.status = DIBS_OK;
  d->step = d->children > 0 ? CLEAN : DONE;
}

static void received_write(struct batch *b, struct doing *d, const slot_t *slot) {
  if (slot->rc == ZOK && d->sent) {
    answer_written(d);
  } else if (slot->rc == ZOK || slot->rc == ZBADVERSION || slot->rc == ZNODEEXISTS) {
    d->sent = false;
    d->step = GET;
  } else if (slot->rc == ZNONODE) {
    make_folder(b, d);
    d->sent = false;
    d->step = GET;
  } else if (dibs__zk_lost(slot->rc)) {
    if (!d->sent) d->step = GET;
    if (d->sent) refuse(b, d, slot->rc, "write a record to");
  } else {
    refuse(b, d, slot->rc, "write a record to");
  }
}

/* Children of other contents are garbage: their writers have read this version of the node, or an earlier one. */
static void received_clean(struct batch *b, struct doing *d, const slot_t *slot) {
  char path[DIBS__ZK_PATH];
  d->step = DONE; /* it was answered */
  struct dibs__zk_round *round = slot->rc == ZOK && slot->count ? dibs__zk_round_new((size_t)slot->count) : NULL;
  if (!round) return;
  for (int i = 0; i < slot->count; i++) {
    long version = strtol(slot->names[i], NULL, 10);
    if (strcmp(slot->names[i], d->rest) == 0 || version > d->node_version) continue;
    (void)dibs__zk_put_delete(b->store, round, path_of(b->store, d->op->key, slot->names[i], path), -1);
  }
  dibs__zk_go(b->store, round, b->by);
  dibs__zk_round_drop(round);
}

static void receive(struct batch *b, struct doing *d) {
  const slot_t *slot = &b->round->slots[d->at];
  switch (d->step) {
  case DONE:
    return;
  case GET:
    received_get(b, d, slot);
    return;
  case GET_REST:
    received_get_rest(b, d, slot);
    return;
  case PUT_REST:
    received_put_rest(b, d, slot);
    return;
  case WRITE:
    received_write(b, d, slot);
    return;
  case CLEAN:
    received_clean(b, d, slot);
    return;
  }
}

/* ---- A stretch: no key occurs twice ---- */

static void give_up(struct doing *d) {
  if (d->step == CLEAN) d->step = DONE;
  if (d->step != DONE) finish(d, d->sent ? DIBS_UNKNOWN : DIBS_UNAVAILABLE);
}

static bool run_round(struct batch *b) {
  bool any = false;
  b->round = dibs__zk_round_new(b->count * SLOTS);
  for (size_t i = 0; i < b->count; i++) {
    struct doing *d = &b->all[i];
    if (d->step != DONE && (!b->round || ++d->tries > TRIES_MAX)) give_up(d);
    if (d->step != DONE) send_step(b, d);
    any = any || d->step != DONE;
  }
  if (any) {
    dibs__zk_go(b->store, b->round, b->by);
    for (size_t i = 0; i < b->count; i++) receive(b, &b->all[i]);
    b->result->commits++;
  }
  dibs__zk_round_drop(b->round);
  return any;
}

static void run_stretch(struct batch *b) {
  for (;;) {
    if (!dibs__tick_before(dibs__tick_now(), b->by)) {
      dibs__set_message(b->result, "%.200s did not answer in time", b->store->location.shown);
      break;
    }
    if (dibs__zk_ready(b->store, b->by, b->result) != DIBS_OK || !run_round(b)) break;
  }
  for (size_t i = 0; i < b->count; i++) {
    give_up(&b->all[i]);
    free(b->all[i].data);
  }
  b->count = 0;
}

static bool keyed_before(const struct batch *b, dibs__str key) {
  for (size_t i = 0; i < b->count; i++)
    if (dibs__str_equal(b->all[i].op->key, key)) return true;
  return false;
}

void dibs__zk_records(store_t *store, struct dibs__record_op *ops[], size_t count, dibs__tick by,
                      struct dibs__result *result) {
  struct batch *b = calloc(1, sizeof *b);
  for (size_t i = 0; i < count; i++) {
    if (!dibs__record_valid(ops[i])) continue;
    if (!b) {
      ops[i]->op.status = DIBS_NO_MEMORY;
      continue;
    }
    if (b->count == 0) *b = (struct batch){.store = store, .result = result, .by = by};
    if (keyed_before(b, ops[i]->key)) run_stretch(b);
    b->all[b->count++] = (struct doing){.op = ops[i], .step = GET};
  }
  if (b && b->count) run_stretch(b);
  free(b);
}
