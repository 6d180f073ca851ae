/* SPDX-License-Identifier: MIT */
/*
 * Sums that wait for the database (store/shared.h): operations as redis/shared.lua reads them, replies as answers.  An
 * ADD is a call for each partition of its keys, because each has a hash tag of its own; LOOK is one for each partition.
 */
#include "drivers/redis/redis_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char dibs__redis_lua_shared[];

typedef struct dibs__shared_op shared_op;

enum { KEY_MAX = 160, ID_HEX = 32, INCARNATION_HEX = 40, HEAD = 6, NUMBER_MAX = 24, WORDS_OF_ITEM = 4, ADDED = 3 };
/* The first element of ADD's answer. */
enum { ADD_DONE = 0, ADD_REPLAY = 1, ADD_CHANGED = 2 };

static dibs__mutex naming = {PTHREAD_MUTEX_INITIALIZER};
static struct dibs__redis_script shared_script;

static const struct dibs__redis_script *script(void) {
  dibs__mutex_lock(&naming);
  if (!shared_script.text) {
    shared_script.text = dibs__redis_lua_shared;
    dibs__redis_script_name(&shared_script);
  }
  dibs__mutex_unlock(&naming);
  return &shared_script;
}

/* ---- Texts ---- */

static void put_hex(const uint8_t *from, size_t count, char *to) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < count; i++) {
    to[2 * i] = digits[from[i] >> 4];
    to[2 * i + 1] = digits[from[i] & 15];
  }
}

static int digit_of(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_id(const char *from, size_t len, dibs__id *id) {
  for (size_t i = 0; i < sizeof id->b; i++) {
    int high = 2 * i + 1 < len ? digit_of(from[2 * i]) : -1, low = high < 0 ? -1 : digit_of(from[2 * i + 1]);
    if (low < 0) return false;
    id->b[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

/* A whole number of 64 bits, up to a blank or the end. */
static bool read_number(const char *from, size_t len, int64_t *number) {
  char copy[NUMBER_MAX], *end;
  size_t n = 0;
  while (n < len && n < NUMBER_MAX - 1 && from[n] != ' ') n++;
  memcpy(copy, from, n);
  copy[n] = '\0';
  *number = strtoll(copy, &end, 10);
  return n > 0 && *end == '\0';
}

static bool is_text(const redisReply *r) {
  return r->type == REDIS_REPLY_STRING;
}

/* ---- Calls ---- */

static uint32_t partitions_of(const shared_op *op) {
  uint32_t set = 0;
  for (uint32_t i = 0; i < op->count; i++) set |= 1u << dibs__shared_part(op->items[i].key);
  return set;
}

/* A bit for each partition that is called, in their order. */
static uint32_t called(const shared_op *op) {
  switch (op->op.verb) {
  case DIBS__SHARED_ADD:
  case DIBS__SHARED_READ:
    return partitions_of(op);
  case DIBS__SHARED_LOOK:
    return (1u << DIBS__SHARED_PARTS) - 1;
  default:
    return 1u << op->part;
  }
}

size_t dibs__redis_shared_calls(const shared_op *op) {
  return (size_t)__builtin_popcount(called(op));
}

/* One call that is being put together. */
struct words {
  const char **words;
  size_t *lengths, count;
  char (*numbers)[NUMBER_MAX];
  size_t number_count;
};

static void add_word(struct words *w, const char *word, size_t len) {
  w->words[w->count] = word;
  w->lengths[w->count++] = len;
}

static void add_number(struct words *w, int64_t number) {
  char *to = w->numbers[w->number_count++];
  int len = snprintf(to, NUMBER_MAX, "%" PRId64, number);
  add_word(w, to, (size_t)len);
}

/* What ADD has before its items. */
struct add_head {
  char incarnation[INCARNATION_HEX], source[ID_HEX], fresh[ID_HEX];
};

static void add_items(struct words *w, const shared_op *op, uint32_t part) {
  bool with_status = op->op.verb != DIBS__SHARED_ADD;
  for (uint32_t i = 0; i < op->count; i++) {
    const struct dibs__counter_item *item = &op->items[i];
    if (!with_status && dibs__shared_part(item->key) != part) continue;
    if (with_status) add_number(w, item->status);
    if (op->op.verb == DIBS__SHARED_FORGET) add_number(w, item->number);
    add_word(w, item->key.p, item->key.len);
    add_number(w, item->delta);
  }
}

static void add_arguments(struct words *w, const shared_op *op, uint32_t part, struct add_head *head,
                          char batch[ID_HEX + 1 + NUMBER_MAX]) {
  dibs__id fresh = op->fresh;
  switch (op->op.verb) {
  case DIBS__SHARED_ADD:
    put_hex(op->incarnation.b, sizeof op->incarnation.b, head->incarnation);
    put_hex(op->source.b, sizeof op->source.b, head->source);
    fresh.b[0] ^= (uint8_t)part; /* the ledger of the database knows no partitions: each has a source of its own */
    put_hex(fresh.b, sizeof fresh.b, head->fresh);
    add_word(w, head->incarnation, INCARNATION_HEX);
    add_word(w, head->source, ID_HEX);
    add_number(w, (int64_t)op->sequence);
    add_word(w, head->fresh, ID_HEX);
    add_number(w, op->since_ms);
    add_items(w, op, part);
    break;
  case DIBS__SHARED_READ:
    add_word(w, op->items[0].key.p, op->items[0].key.len);
    break;
  case DIBS__SHARED_DROP:
    put_hex(op->source.b, sizeof op->source.b, batch);
    add_word(w, batch, ID_HEX + (size_t)snprintf(batch + ID_HEX, NUMBER_MAX, " %" PRIu64, op->sequence));
    add_items(w, op, part);
    break;
  case DIBS__SHARED_REFUSED:
    add_number(w, (int64_t)op->cursor);
    break;
  case DIBS__SHARED_FORGET:
    put_hex(fresh.b, sizeof fresh.b, head->fresh);
    add_word(w, head->fresh, ID_HEX);
    add_items(w, op, part);
    break;
  default:
    break;
  }
}

static bool put_call(struct dibs__redis_session *session, const shared_op *op, uint32_t part, struct words *w) {
  const char *prefix = ((const struct dibs__redis *)session->base.store)->location->prefix;
  char key[KEY_MAX], verb = (char)('0' + op->op.verb), batch[ID_HEX + 1 + NUMBER_MAX];
  struct add_head head;
  int len = snprintf(key, sizeof key, "%s:{%u}:c:%.*s", prefix, part, (int)op->space.len, op->space.p);
  w->count = w->number_count = 0;
  add_word(w, key, (size_t)len);
  add_word(w, &verb, 1);
  add_arguments(w, op, part, &head, batch);
  return dibs__redis_put_script(session->link, script(), 1, w->count, w->words, w->lengths);
}

bool dibs__redis_shared_put(struct dibs__redis_session *session, const shared_op *op) {
  size_t most = (size_t)op->count * WORDS_OF_ITEM + HEAD + 2;
  struct words w = {.words = calloc(most, sizeof *w.words),
                    .lengths = calloc(most, sizeof *w.lengths),
                    .numbers = calloc(most, sizeof *w.numbers)};
  bool enough = w.words && w.lengths && w.numbers;
  uint32_t set = called(op);
  for (uint32_t part = 0; part < DIBS__SHARED_PARTS && enough; part++)
    if (set >> part & 1) enough = put_call(session, op, part, &w);
  free(w.words);
  free(w.lengths);
  free(w.numbers);
  return enough;
}

/* ---- Answers ---- */

/* "3,17,": indexes among the items of this partition. */
static void set_misfits(shared_op *op, uint32_t part, const char *text) {
  uint64_t nth = 0;
  for (uint32_t i = 0; i < op->count; i++) {
    if (dibs__shared_part(op->items[i].key) != part) continue;
    char *end;
    bool misfit = *text && strtoull(text, &end, 10) == nth && *end == ',';
    op->items[i].status = misfit ? DIBS_FULL : DIBS_OK;
    if (misfit) text = end + 1;
    nth++;
  }
}

static bool answer_add(shared_op *op, uint32_t part, const redisReply *r, dibs__status *status) {
  if (r->elements != ADDED || r->element[0]->type != REDIS_REPLY_INTEGER || !is_text(r->element[2])) return false;
  int64_t what = r->element[0]->integer;
  *status = what == ADD_CHANGED ? DIBS_CONFLICT : what == ADD_REPLAY ? DIBS_REPLAY : DIBS_OK;
  if (what == ADD_CHANGED)
    return is_text(r->element[1]) && dibs__redis_incarnation(r->element[1]->str, r->element[1]->len, &op->incarnation);
  set_misfits(op, part, r->element[2]->str);
  return true;
}

static bool answer_read(shared_op *op, const redisReply *r) {
  if (r->elements < 2) return false;
  for (size_t i = 0; i < r->elements; i++)
    if (!is_text(r->element[i])) return false;
  snprintf(op->name, sizeof op->name, "%s", r->element[0]->str);
  op->items[0].status = DIBS_OK;
  op->items[0].number = 0;
  if (r->element[1]->len && !read_number(r->element[1]->str, r->element[1]->len, &op->items[0].number)) return false;
  for (size_t i = 2; i < r->elements; i++) {
    int64_t sum;
    if (!read_number(r->element[i]->str, r->element[i]->len, &sum)) return false;
    if (__builtin_add_overflow(op->sealed, sum, &op->sealed)) op->sealed = sum < 0 ? INT64_MIN : INT64_MAX;
    op->waits = true;
  }
  return true;
}

static bool answer_look(struct dibs__shared_part *to, const redisReply *r) {
  if (r->elements != 4) return false;
  for (size_t i = 0; i < 4; i++)
    if (r->element[i]->type != REDIS_REPLY_INTEGER) return false;
  *to = (struct dibs__shared_part){.age_ms = r->element[0]->integer,
                                   .batches = (uint32_t)r->element[1]->integer,
                                   .keys = (uint32_t)r->element[2]->integer,
                                   .refused = (uint32_t)r->element[3]->integer};
  return true;
}

static int compare_rows(const void *left, const void *right) {
  const struct dibs__shared_row *a = left, *b = right;
  return dibs__str_before(a->key, b->key) ? -1 : dibs__str_before(b->key, a->key);
}

/* Pairs from the element `first` on: a key, or "STATUS REPEAT KEY", and its sum.  false: not what the script gives. */
static bool take_rows(shared_op *op, const redisReply *r, size_t first, bool with_status, dibs__status *status) {
  size_t count = (r->elements - first) / 2, size = count * sizeof *op->got;
  for (size_t i = first; i < r->elements; i++) {
    if (!is_text(r->element[i])) return false;
    size += r->element[i]->len + 1;
  }
  *status = DIBS_OK;
  if (count == 0) return true;
  op->got = malloc(size);
  *status = op->got ? DIBS_OK : DIBS_NO_MEMORY;
  char *at = (char *)(op->got + count);
  for (size_t i = 0; i < count && op->got; i++) {
    const redisReply *key = r->element[first + 2 * i], *sum = r->element[first + 2 * i + 1];
    struct dibs__shared_row *row = &op->got[op->got_count];
    int64_t code = DIBS_OK, repeat = 0;
    size_t skip = 0;
    if (with_status) {
      const char *blank = memchr(key->str, ' ', key->len);
      const char *second = blank ? memchr(blank + 1, ' ', key->len - (size_t)(blank + 1 - key->str)) : NULL;
      if (!second || !read_number(key->str, key->len, &code)) return false;
      if (!read_number(blank + 1, (size_t)(second - blank), &repeat)) return false;
      skip = (size_t)(second + 1 - key->str);
    }
    *row = (struct dibs__shared_row){
        .key = {at, (uint32_t)(key->len - skip)}, .status = (dibs__status)code, .repeat = repeat};
    if (!read_number(sum->str, sum->len, &row->sum)) return false;
    memcpy(at, key->str + skip, row->key.len);
    at[row->key.len] = '\0';
    at += row->key.len + 1;
    op->got_count++;
  }
  return true;
}

static bool answer_seal(shared_op *op, const redisReply *r, dibs__status *status) {
  int64_t sequence;
  if (r->elements < 2 || r->elements % 2 || !is_text(r->element[0]) || r->element[1]->type != REDIS_REPLY_INTEGER)
    return false;
  *status = DIBS_NOT_FOUND;
  if (r->element[0]->len == 0) return r->elements == 2;
  const redisReply *name = r->element[0];
  if (name->len < ID_HEX + 2 || !read_id(name->str, ID_HEX, &op->source) ||
      !read_number(name->str + ID_HEX + 1, name->len - ID_HEX - 1, &sequence) || sequence < 1)
    return false;
  op->sequence = (uint64_t)sequence;
  op->age_ms = r->element[1]->integer;
  if (!take_rows(op, r, 2, false, status)) return false;
  if (op->got) qsort(op->got, op->got_count, sizeof *op->got, compare_rows);
  return true;
}

static bool answer_refused(shared_op *op, const redisReply *r, dibs__status *status) {
  int64_t cursor;
  if (r->elements % 2 != 1 || !is_text(r->element[0])) return false;
  if (!read_number(r->element[0]->str, r->element[0]->len, &cursor) || cursor < 0) return false;
  op->cursor = (uint64_t)cursor;
  return take_rows(op, r, 1, true, status);
}

/* false: not what the script gives. */
static bool answer_call(shared_op *op, uint32_t part, const redisReply *r, dibs__status *status) {
  if (op->op.verb == DIBS__SHARED_DROP || op->op.verb == DIBS__SHARED_FORGET) {
    if (r->type != REDIS_REPLY_INTEGER) return false;
    *status = r->integer ? DIBS_OK : DIBS_NOT_FOUND;
    return true;
  }
  if (r->type != REDIS_REPLY_ARRAY) return false;
  *status = DIBS_OK;
  switch (op->op.verb) {
  case DIBS__SHARED_ADD:
    return answer_add(op, part, r, status);
  case DIBS__SHARED_READ:
    return answer_read(op, r);
  case DIBS__SHARED_LOOK:
    return answer_look(&op->parts[part], r);
  case DIBS__SHARED_SEAL:
    return answer_seal(op, r, status);
  default:
    return answer_refused(op, r, status);
  }
}

/* An error from inside the script may follow a write. */
static dibs__status take_error(struct dibs__redis_session *session, const redisReply *r, struct dibs__result *result) {
  dibs__status status = dibs__redis_refused(session->link, r, "keep sums in", result);
  bool ours = r->str && strncmp(r->str, "DIBS ", 5) == 0;
  if (r->str && strncmp(r->str, "CORRUPT ", 8) == 0) return DIBS_CORRUPT;
  if (ours) result->dead = session->link->dead = true; /* no longer a master */
  bool inside = !ours && r->str && (strstr(r->str, "user_script") || strstr(r->str, "running script"));
  bool full = r->str && strncmp(r->str, "OOM ", 4) == 0; /* the first write of a step */
  return inside && !full ? DIBS_UNKNOWN : status;
}

static dibs__status answer_of(struct dibs__redis_session *session, shared_op *op, uint32_t part, const redisReply *r,
                              struct dibs__result *result) {
  dibs__status status = DIBS_UNKNOWN;
  if (!r) return status; /* missing */
  if (r->type == REDIS_REPLY_ERROR) return take_error(session, r, result);
  if (answer_call(op, part, r, &status)) return status;
  dibs__set_message(result, "%s gave an answer that dibs' script does not give",
                    ((const struct dibs__redis *)session->base.store)->location->shown);
  return DIBS_UNKNOWN;
}

static void set_statuses(shared_op *op, uint32_t part, dibs__status status) {
  for (uint32_t i = 0; i < op->count; i++)
    if (dibs__shared_part(op->items[i].key) == part) op->items[i].status = status;
}

/* Of the calls of one operation.  Of an ADD some may have been done: then the repeat finds them; and if one partition
 * can't tell of a repeat, nor can the operation. */
static dibs__status both(const shared_op *op, dibs__status a, dibs__status b) {
  bool done = a == DIBS_OK || a == DIBS_REPLAY, also = b == DIBS_OK || b == DIBS_REPLAY;
  if (a == b) return a;
  if (op->since_ms > 0 && (a == DIBS_CONFLICT || b == DIBS_CONFLICT)) return DIBS_CONFLICT;
  if (done && also) return DIBS_OK;
  /* Nothing was added to that partition: its keys have this status, and the others their own. */
  if ((done && b == DIBS_CORRUPT) || (also && a == DIBS_CORRUPT)) return DIBS_OK;
  return done || also || a == DIBS_UNKNOWN || b == DIBS_UNKNOWN ? DIBS_UNKNOWN : b;
}

void dibs__redis_shared_answer(struct dibs__redis_session *session, shared_op *op, size_t first,
                               struct dibs__result *result) {
  uint32_t set = called(op);
  bool any = false;
  for (uint32_t part = 0; part < DIBS__SHARED_PARTS; part++) {
    if (!(set >> part & 1)) continue;
    dibs__status status = answer_of(session, op, part, dibs__redis_reply(session->link, first++), result);
    if (status == DIBS_CORRUPT && op->op.verb == DIBS__SHARED_ADD) set_statuses(op, part, status);
    op->op.status = any ? both(op, op->op.status, status) : status;
    any = true;
  }
}
