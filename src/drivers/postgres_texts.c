/* SPDX-License-Identifier: MIT */
/*
 * The statements that a connection has prepared, found by their text.
 *
 * $rows becomes "SELECT * FROM unnest($3::bigint[], $4::text[])": an array a column, so that any number of rows is one
 * statement.  A column of NULLs alone has no kind: it is what it was in an earlier packet, else a number, because that
 * is what text takes, too.
 */
#include "drivers/postgres_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MARK = 5 }; /* characters of "$rows" */

static uint64_t hash_of(const char *key, const char *kinds) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *key; key++) hash = (hash ^ (unsigned char)*key) * UINT64_C(0x100000001b3);
  for (; *kinds; kinds++) hash = (hash ^ (unsigned char)*kinds) * UINT64_C(0x100000001b3);
  return hash ^ (hash >> 32);
}

static const char *type_of(char kind) {
  return kind == 't' ? "text" : kind == 'b' ? "bytea" : "bigint";
}

/* Writes the text with $rows replaced; gives its length, also when `to` is NULL. */
static size_t expand(char *to, const char *key, const char *kinds, size_t before) {
  size_t len = 0;
  const char *mark = *kinds ? strstr(key, "$rows") : NULL;
  if (!mark) {
    len = strlen(key);
    if (to) memcpy(to, key, len + 1);
    return len;
  }
  len = (size_t)(mark - key);
  if (to) memcpy(to, key, len);
  char piece[64];
  for (const char *k = kinds; *k; k++) {
    int n = snprintf(piece, sizeof piece, "%s$%zu::%s[]%s", k == kinds ? "SELECT * FROM unnest(" : ", ",
                     before + 1 + (size_t)(k - kinds), type_of(*k), k[1] ? "" : ")");
    if (to) memcpy(to + len, piece, (size_t)n);
    len += (size_t)n;
  }
  size_t rest = strlen(mark + ROWS_MARK);
  if (to) memcpy(to + len, mark + ROWS_MARK, rest + 1);
  return len + rest;
}

static bool is(const struct dibs__pg_text *t, const char *key, const char *kinds) {
  return strcmp(t->kinds, kinds) == 0 && strcmp(t->key, key) == 0;
}

static struct dibs__pg_text *make(const char *key, const char *kinds, size_t before) {
  size_t key_size = strlen(key) + 1, kinds_size = strlen(kinds) + 1, sql_size = expand(NULL, key, kinds, before) + 1;
  struct dibs__pg_text *t = calloc(1, sizeof *t + key_size + kinds_size + sql_size);
  if (!t) return NULL;
  char *at = (char *)(t + 1);
  t->key = memcpy(at, key, key_size);
  t->kinds = memcpy(at + key_size, kinds, kinds_size);
  expand(at + key_size + kinds_size, key, kinds, before);
  t->sql = at + key_size + kinds_size;
  return t;
}

static void unlink_text(struct dibs__pg_texts *texts, struct dibs__pg_text *t) {
  struct dibs__pg_text **at = &texts->heads[t->hash % DIBS__PG_TEXTS];
  while (*at != t) at = &(*at)->next;
  *at = t->next;
  texts->count--;
  for (size_t i = 0; i < sizeof texts->near / sizeof texts->near[0]; i++)
    if (texts->near[i].text == t) texts->near[i].text = NULL;
}

static bool put_away(struct dibs__pg_texts *texts, const struct dibs__pg_text *t) {
  if (!t->ready) return true;
  if (texts->gone_count == texts->gone_room) {
    size_t room = texts->gone_room ? texts->gone_room * 2 : 16;
    uint32_t *more = realloc(texts->gone, room * sizeof *more);
    if (!more) return false;
    texts->gone = more;
    texts->gone_room = room;
  }
  texts->gone[texts->gone_count++] = t->nr;
  return true;
}

/* Under another name; the types of its parameters and answers are found anew. */
static bool renew(struct dibs__pg_texts *texts, struct dibs__pg_text *t) {
  if (!put_away(texts, t)) return false;
  t->nr = ++texts->drawn;
  t->ready = t->bound = t->worked = t->stale = false;
  t->answers = DIBS__PG_UNSEEN;
  return true;
}

/* The one that was not put for longest goes.  None of the packet that is being put; of the latest neither, because its
 * answers are still looked at. */
static bool forget_one(struct dibs__pg_texts *texts, uint32_t packet) {
  struct dibs__pg_text *oldest = NULL;
  for (size_t i = 0; i < DIBS__PG_TEXTS; i++)
    for (struct dibs__pg_text *t = texts->heads[i]; t; t = t->next)
      if (packet - t->packet > 1 && (!oldest || packet - t->packet > packet - oldest->packet)) oldest = t;
  if (!oldest) return true; /* a packet of very many: for once there are more */
  if (!put_away(texts, oldest)) return false;
  unlink_text(texts, oldest);
  free(oldest);
  return true;
}

struct dibs__pg_text *dibs__pg_text_find(struct dibs__pg_texts *texts, const char *key, const char *kinds,
                                         size_t before, uint32_t packet) {
  size_t near = ((uintptr_t)key >> 3) % (sizeof texts->near / sizeof texts->near[0]);
  struct dibs__pg_text *t = texts->near[near].text;
  /* The same place may have another text by now. */
  if (t && texts->near[near].at == key && is(t, key, kinds)) {
    if (t->stale && !renew(texts, t)) return NULL;
    t->packet = packet;
    return t;
  }
  uint64_t hash = hash_of(key, kinds);
  for (t = texts->heads[hash % DIBS__PG_TEXTS]; t; t = t->next)
    if (t->hash == hash && is(t, key, kinds)) break;
  if (!t) {
    if (texts->count >= DIBS__PG_TEXTS && !forget_one(texts, packet)) return NULL;
    t = make(key, kinds, before);
    if (!t) return NULL;
    t->hash = hash;
    t->nr = ++texts->drawn;
    t->next = texts->heads[hash % DIBS__PG_TEXTS];
    texts->heads[hash % DIBS__PG_TEXTS] = t;
    texts->count++;
  }
  if (t->stale && !renew(texts, t)) return NULL;
  texts->near[near].at = key;
  texts->near[near].text = t;
  t->packet = packet;
  return t;
}

void dibs__pg_texts_free(struct dibs__pg_texts *texts) {
  for (size_t i = 0; i < DIBS__PG_TEXTS; i++)
    for (struct dibs__pg_text *t = texts->heads[i], *next; t; t = next) {
      next = t->next;
      free(t);
    }
  free(texts->gone);
  *texts = (struct dibs__pg_texts){.count = 0};
}
