/* SPDX-License-Identifier: MIT */
/*
 * Where replies live.  hiredis' own allocate and free each piece of each reply; ours are laid one behind the other, and
 * all are forgotten at once when the next commands go.
 */
#include "drivers/redis_room.h"

#include <stdlib.h>
#include <string.h>

/* KEEP: what is given back when it has been used once. */
enum { CHUNK = 16384, KEEP = 1 << 20, ALIGNED = 16, MAX_ELEMENTS = 1 << 24 };

struct chunk {
  struct chunk *next;
  size_t size, used;
  _Alignas(ALIGNED) char bytes[];
};

struct dibs__redis_room {
  struct chunk *first, *at;
};

static struct chunk *new_chunk(size_t size) {
  struct chunk *c = malloc(sizeof *c + size);
  if (!c) return NULL;
  c->next = NULL;
  c->size = size;
  c->used = 0;
  return c;
}

static void *lay(struct dibs__redis_room *room, size_t size) {
  struct chunk *c = room->at;
  size = (size + ALIGNED - 1) & ~(size_t)(ALIGNED - 1);
  while (c->size - c->used < size) {
    if (!c->next && !(c->next = new_chunk(size > CHUNK ? size : CHUNK))) return NULL;
    c = room->at = c->next;
  }
  void *at = c->bytes + c->used;
  c->used += size;
  return at;
}

struct dibs__redis_room *dibs__redis_room_new(void) {
  struct dibs__redis_room *room = calloc(1, sizeof *room);
  if (!room) return NULL;
  room->first = room->at = new_chunk(CHUNK);
  if (room->first) return room;
  free(room);
  return NULL;
}

static void free_chunks(struct chunk *c) {
  while (c) {
    struct chunk *next = c->next;
    free(c);
    c = next;
  }
}

void dibs__redis_room_clear(struct dibs__redis_room *room) {
  size_t kept = 0;
  for (struct chunk *c = room->first; c; c = c->next) {
    c->used = 0;
    kept += c->size;
    if (kept <= KEEP) continue;
    free_chunks(c->next);
    c->next = NULL;
  }
  room->at = room->first;
}

void dibs__redis_room_free(struct dibs__redis_room *room) {
  if (!room) return;
  free_chunks(room->first);
  free(room);
}

/* ---- As hiredis asks for them ---- */

static redisReply *made(const redisReadTask *task, size_t more) {
  redisReply *r = lay(task->privdata, sizeof *r + more);
  if (!r) return NULL;
  memset(r, 0, sizeof *r);
  r->type = task->type;
  if (task->parent) {
    redisReply *parent = task->parent->obj;
    parent->element[task->idx] = r;
  }
  return r;
}

static void *make_string(const redisReadTask *task, char *text, size_t len) {
  redisReply *r = made(task, len + 1);
  if (!r) return NULL;
  r->str = (char *)(r + 1);
  memcpy(r->str, text, len);
  r->str[len] = '\0';
  r->len = len;
  return r;
}

#if HIREDIS_MAJOR >= 1
typedef size_t elements_t;
#else
typedef int elements_t;
#endif

static void *make_array(const redisReadTask *task, elements_t elements) {
  size_t count = (size_t)elements;
  if (count > MAX_ELEMENTS) return NULL;
  redisReply *r = made(task, count * sizeof(redisReply *));
  if (!r) return NULL;
  r->element = (redisReply **)(r + 1);
  r->elements = count;
  memset(r->element, 0, count * sizeof(redisReply *));
  return r;
}

static void *make_integer(const redisReadTask *task, long long value) {
  redisReply *r = made(task, 0);
  if (r) r->integer = value;
  return r;
}

static void *make_nil(const redisReadTask *task) {
  redisReply *r = made(task, 0); /* the task says that it is a string, or an array */
  if (r) r->type = REDIS_REPLY_NIL;
  return r;
}

static void forget(void *reply) {
  (void)reply; /* with its room */
}

/* Doubles, booleans and the like are asked for by nobody who has not said HELLO 3. */
static redisReplyObjectFunctions functions = {.createString = make_string,
                                              .createArray = make_array,
                                              .createInteger = make_integer,
                                              .createNil = make_nil,
                                              .freeObject = forget};

redisReader *dibs__redis_room_reader(struct dibs__redis_room *room) {
  redisReader *reader = redisReaderCreateWithFunctions(&functions);
  if (!reader) return NULL;
  reader->privdata = room;
  return reader;
}
