/* SPDX-License-Identifier: MIT */
/* The messages of message.h: what walks the table of the members that travel (message_table.c). */
#include "store/family.h"
#include "store/message_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- The head of a message ---- */

static const char mark[4] = {'d', 'i', 'b', 's'};

void dibs__message_begin(struct dibs__writer *w, enum dibs__message_kind kind) {
  dibs__write_bytes(w, mark, sizeof mark);
  dibs__write_number(w, DIBS__MESSAGE_FORMAT);
  dibs__write_number(w, kind);
}

enum dibs__message_kind dibs__message_kind(struct dibs__reader *r, uint32_t *format) {
  char found[sizeof mark];
  *format = 0;
  dibs__read_bytes(r, found, sizeof found);
  if (r->bad || memcmp(found, mark, sizeof mark) != 0) return 0;
  *format = (uint32_t)dibs__read_number(r, UINT32_MAX);
  if (*format != DIBS__MESSAGE_FORMAT) return 0;
  return (enum dibs__message_kind)dibs__read_number(r, DIBS__MESSAGE_BYE);
}

static void write_mandate(struct dibs__writer *w, const dibs__mandate *mandate) {
  dibs__write_number(w, mandate->epoch);
  dibs__write_bytes(w, mandate->incarnation.b, sizeof mandate->incarnation.b);
}

static void read_mandate(struct dibs__reader *r, dibs__mandate *mandate) {
  mandate->epoch = (uint32_t)dibs__read_number(r, UINT32_MAX);
  dibs__read_bytes(r, mandate->incarnation.b, sizeof mandate->incarnation.b);
}

void dibs__write_hello(struct dibs__writer *w, const struct dibs__message_hello *hello) {
  write_mandate(w, &hello->mandate);
  dibs__write_number(w, hello->caps);
  dibs__write_number(w, hello->families);
  dibs__write_number(w, hello->max_batch);
  dibs__write_number(w, hello->most_bytes);
  dibs__write_number(w, hello->fresh);
  dibs__write_number(w, hello->cut_off);
}

void dibs__read_hello(struct dibs__reader *r, struct dibs__message_hello *hello) {
  read_mandate(r, &hello->mandate);
  hello->caps = (uint32_t)dibs__read_number(r, UINT32_MAX);
  hello->families = (uint32_t)dibs__read_number(r, UINT32_MAX);
  hello->max_batch = (uint32_t)dibs__read_number(r, UINT32_MAX);
  hello->most_bytes = (uint32_t)dibs__read_number(r, UINT32_MAX);
  hello->fresh = dibs__read_number(r, 1) != 0;
  hello->cut_off = dibs__read_number(r, 1) != 0;
}

/* ---- The members of the head ---- */

/* Of the head: those that a driver sees.  The deadline and the mandates are written beside it. */
static const struct member head_request[] = {
    M(struct dibs__op, flags, DIBS__OP_READS | DIBS__OP_URGENT), M(struct dibs__op, bucket, DIBS__BUCKETS - 1),
    M(struct dibs__op, lane, UINT32_MAX), M(struct dibs__op, group, UINT32_MAX), LAST};
static const struct member head_answer[] = {SIGNED(struct dibs__op, status, 0, DIBS__MOVED),
                                            ANY_INT(struct dibs__op, at), LAST};

/* ---- Walking the table ---- */

static bool is_of(const struct member *m, uint16_t verb) {
  return m->verbs == 0 || (m->verbs >> verb & 1) != 0;
}

/* The number at `at`, of a kind that is one. */
static uint64_t number_at(const struct member *m, const char *at) {
  uint64_t u64 = 0;
  uint32_t u32;
  uint16_t u16;
  int32_t i32;
  bool flag;
  switch (m->kind) {
  case BOOL:
    memcpy(&flag, at, sizeof flag);
    return flag;
  case U16:
    memcpy(&u16, at, sizeof u16);
    return u16;
  case U32:
    memcpy(&u32, at, sizeof u32);
    return u32;
  case I32:
    memcpy(&i32, at, sizeof i32);
    return (uint64_t)(int64_t)i32;
  default:
    memcpy(&u64, at, sizeof u64);
    return u64;
  }
}

static void set_number(const struct member *m, char *at, uint64_t number) {
  uint32_t u32 = (uint32_t)number;
  uint16_t u16 = (uint16_t)number;
  bool flag = number != 0;
  if (m->kind == BOOL)
    memcpy(at, &flag, sizeof flag);
  else if (m->kind == U16)
    memcpy(at, &u16, sizeof u16);
  else if (m->kind == U32 || m->kind == I32)
    memcpy(at, &u32, sizeof u32);
  else
    memcpy(at, &number, sizeof number);
}

static const char *pointer_at(const struct member *m, const char *base) {
  const char *pointer;
  memcpy(&pointer, base + m->at, sizeof pointer);
  return pointer;
}

static uint32_t count_at(const struct member *m, const char *base) {
  uint32_t count;
  memcpy(&count, base + m->count_at, sizeof count);
  return count;
}

static void write_members(struct dibs__writer *w, const struct member *m, uint16_t verb, const char *base);

static void write_elements(struct dibs__writer *w, const struct member *m, const char *base) {
  const char *element = pointer_at(m, base);
  uint32_t count = element ? count_at(m, base) : 0;
  if (m->kind != EACH) dibs__write_number(w, count); /* of EACH the reader knows it */
  for (uint32_t i = 0; i < count; i++, element += m->size) write_members(w, m->of, 0, element);
}

/* NULL is a content of its own. */
static void write_optional(struct dibs__writer *w, const char *p, size_t length) {
  dibs__write_number(w, p ? length + 1 : 0);
  if (p) dibs__write_bytes(w, p, length);
}

static void write_member(struct dibs__writer *w, const struct member *m, const char *base) {
  const char *at = base + m->at;
  dibs__str text;
  switch (m->kind) {
  case I32:
  case I64:
    dibs__write_signed(w, (int64_t)number_at(m, at));
    return;
  case TEXT:
    memcpy(&text, at, sizeof text);
    dibs__write_text(w, text);
    return;
  case ID:
    dibs__write_bytes(w, at, sizeof(dibs__id));
    return;
  case CHARS:
    if (m->most)
      dibs__write_bytes(w, at, m->size);
    else
      dibs__write_text(w, dibs__str_of(at, strnlen(at, m->size - 1u)));
    return;
  case BLOB:
    write_optional(w, pointer_at(m, base), count_at(m, base));
    return;
  case KEPT:
    write_optional(w, pointer_at(m, base), pointer_at(m, base) ? strlen(pointer_at(m, base)) : 0);
    return;
  case ARRAY:
  case EACH:
  case ROWS:
    write_elements(w, m, base);
    return;
  default:
    dibs__write_number(w, number_at(m, at));
  }
}

static void write_members(struct dibs__writer *w, const struct member *m, uint16_t verb, const char *base) {
  for (; m->kind != END; m++)
    if (is_of(m, verb)) write_member(w, m, base);
}

static void put_array(const struct member *m, char *base, char *elements, uint32_t count) {
  memcpy(base + m->at, &elements, sizeof elements);
  memcpy(base + m->count_at, &count, sizeof count);
}

/* Where the reader puts what it reads. */
struct place {
  void **arrays; /* of a request: takes what was allocated; NULL: this is no request */
  char *texts;   /* of rows: where their texts go; NULL: they stay in the message */
  size_t bytes;  /* of rows: of their texts, with a NUL behind each */
  dibs__keep_text *keep;
  void *context;
  bool no_memory;
};

static void read_members(struct dibs__reader *r, const struct member *m, uint16_t verb, char *base,
                         struct place *place);

static void read_array(struct dibs__reader *r, const struct member *m, char *base, struct place *place) {
  uint32_t count = (uint32_t)dibs__read_number(r, m->most);
  r->bad = r->bad || count > dibs__reader_left(r);
  if (r->bad || count == 0) return;
  char *elements = calloc(count, m->size);
  place->no_memory = place->no_memory || !elements;
  if (!elements) return;
  size_t nth = place->arrays[0] != NULL;
  place->arrays[nth] = elements;
  put_array(m, base, elements, count);
  for (uint32_t i = 0; i < count && !r->bad; i++) read_members(r, m->of, 0, elements + (size_t)i * m->size, place);
}

/* Twice: the first time only for the size of the texts.  An element is read into one place. */
static void read_rows(struct dibs__reader *r, const struct member *m, char *base, struct place *place) {
  uint32_t count = (uint32_t)dibs__read_number(r, m->most);
  r->bad = r->bad || count > dibs__reader_left(r);
  if (r->bad || count == 0) return;
  struct dibs__reader again = *r;
  char *rows = calloc(count, m->size);
  place->bytes = 0;
  for (uint32_t i = 0; rows && i < count && !r->bad; i++) read_members(r, m->of, 0, rows + (size_t)i * m->size, place);
  char *whole = rows && !r->bad ? realloc(rows, (size_t)count * m->size + place->bytes) : NULL;
  place->no_memory = place->no_memory || (!whole && !r->bad);
  if (!whole) {
    free(rows);
    return;
  }
  place->texts = whole + (size_t)count * m->size;
  for (uint32_t i = 0; i < count; i++) read_members(&again, m->of, 0, whole + (size_t)i * m->size, place);
  place->texts = NULL;
  put_array(m, base, whole, count);
}

static void read_one_text(struct dibs__reader *r, const struct member *m, char *at, struct place *place) {
  dibs__str text = dibs__read_text(r, m->most);
  place->bytes += (size_t)text.len + 1;
  if (place->texts) {
    memcpy(place->texts, text.p, text.len);
    place->texts[text.len] = '\0';
    text.p = place->texts;
    place->texts += (size_t)text.len + 1;
  }
  memcpy(at, &text, sizeof text);
}

static void read_optional(struct dibs__reader *r, const struct member *m, char *base, struct place *place) {
  size_t length = (size_t)dibs__read_number(r, m->most + 1);
  const char *kept = NULL;
  if (r->bad || length == 0) return;
  length--;
  r->bad = length > dibs__reader_left(r);
  if (r->bad) return;
  dibs__str text = dibs__str_of((const char *)r->at, length);
  r->at += length;
  if (m->kind == KEPT) {
    kept = place->keep ? place->keep(place->context, text) : NULL;
    memcpy(base + m->at, &kept, sizeof kept);
    return;
  }
  char *copy = malloc(length + 1);
  place->no_memory = place->no_memory || !copy;
  if (!copy) return;
  if (length) memcpy(copy, text.p, length);
  copy[length] = '\0';
  memcpy(base + m->at, &copy, sizeof copy);
  memcpy(base + m->count_at, &text.len, sizeof text.len);
  /* cppcheck-suppress memleak ; the operation has the pointer, and dibs__op_free_answer frees it */
}

static void read_chars(struct dibs__reader *r, const struct member *m, char *at) {
  if (m->most) {
    dibs__read_bytes(r, at, m->size);
    return;
  }
  dibs__str text = dibs__read_text(r, m->size - 1u);
  memcpy(at, text.p, text.len);
  at[text.len] = '\0';
}

static void read_each(struct dibs__reader *r, const struct member *m, char *base, struct place *place) {
  uint32_t count = count_at(m, base);
  char *elements;
  memcpy(&elements, base + m->at, sizeof elements);
  for (uint32_t i = 0; elements && i < count && !r->bad; i++)
    read_members(r, m->of, 0, elements + (size_t)i * m->size, place);
}

static void read_member(struct dibs__reader *r, const struct member *m, char *base, struct place *place) {
  switch (m->kind) {
  case I32:
  case I64:
    set_number(m, base + m->at, (uint64_t)dibs__read_signed(r, m->least, (int64_t)m->most));
    return;
  case TEXT:
    read_one_text(r, m, base + m->at, place);
    return;
  case ID:
    dibs__read_bytes(r, base + m->at, sizeof(dibs__id));
    return;
  case CHARS:
    read_chars(r, m, base + m->at);
    return;
  case BLOB:
  case KEPT:
    read_optional(r, m, base, place);
    return;
  case ARRAY:
    read_array(r, m, base, place);
    return;
  case EACH:
    read_each(r, m, base, place);
    return;
  case ROWS:
    read_rows(r, m, base, place);
    return;
  default:
    set_number(m, base + m->at, dibs__read_number(r, m->most));
  }
}

static void read_members(struct dibs__reader *r, const struct member *m, uint16_t verb, char *base,
                         struct place *place) {
  for (; m->kind != END && !r->bad && !place->no_memory; m++)
    if (is_of(m, verb)) read_member(r, m, base, place);
}

/* ---- Limits, before an operation is sent ---- */

static bool is_within(const struct member *m, uint16_t verb, const char *base);

static bool elements_are_within(const struct member *m, const char *base) {
  const char *element = pointer_at(m, base);
  uint32_t count = element ? count_at(m, base) : 0;
  if (count > m->most) return false;
  for (uint32_t i = 0; i < count; i++)
    if (!is_within(m->of, 0, element + (size_t)i * m->size)) return false;
  return true;
}

static bool member_is_within(const struct member *m, const char *base) {
  dibs__str text;
  switch (m->kind) {
  case TEXT:
    memcpy(&text, base + m->at, sizeof text);
    return text.len <= m->most;
  case I32:
  case I64:
    return (int64_t)number_at(m, base + m->at) >= m->least && (int64_t)number_at(m, base + m->at) <= (int64_t)m->most;
  case ARRAY:
    return elements_are_within(m, base);
  case ID:
    return true;
  default:
    return number_at(m, base + m->at) <= m->most;
  }
}

static bool is_within(const struct member *m, uint16_t verb, const char *base) {
  for (; m->kind != END; m++)
    if (is_of(m, verb) && !member_is_within(m, base)) return false;
  return true;
}

dibs__status dibs__op_check(const struct dibs__op *op) {
  if (op->family >= DIBS__FAM_COUNT || !dibs__shapes[op->family].request) return DIBS_UNSUPPORTED;
  if (op->verb >= DIBS__VERBS_MAX || !dibs__family_of(op)->verbs[op->verb] || op->bucket >= DIBS__BUCKETS)
    return DIBS_INVALID;
  if (op->family == DIBS__FAM_RECORD && ((const struct dibs__record_op *)op)->table) return DIBS_UNSUPPORTED;
  if (op->family == DIBS__FAM_STOCK && ((const struct dibs__stock_op *)op)->table) return DIBS_UNSUPPORTED;
  if (op->family == DIBS__FAM_TASK && ((const struct dibs__task_op *)op)->table) return DIBS_UNSUPPORTED;
  if (op->family == DIBS__FAM_COUNTER && ((const struct dibs__counter_op *)op)->table) return DIBS_UNSUPPORTED;
  return is_within(dibs__shapes[op->family].request, op->verb, (const char *)op) ? DIBS_OK : DIBS_INVALID;
}

/* ---- Operations ---- */

void dibs__write_op(struct dibs__writer *w, const struct dibs__op *op, int64_t left_ms) {
  struct dibs__op head = *op;
  head.flags &= DIBS__OP_READS | DIBS__OP_URGENT;
  dibs__write_number(w, op->family);
  dibs__write_number(w, op->verb);
  dibs__write_number(w, (uint64_t)left_ms);
  write_members(w, head_request, op->verb, (const char *)&head);
  write_mandate(w, &op->mandate);
  write_members(w, dibs__shapes[op->family].request, op->verb, (const char *)op);
}

bool dibs__read_op(struct dibs__reader *r, dibs__tick now, struct dibs__read_op *op, bool *no_memory) {
  struct place place = {.arrays = op->arrays};
  char *base = (char *)op;
  *no_memory = false;
  op->op.family = (uint16_t)dibs__read_number(r, DIBS__FAM_COUNT - 1);
  op->op.verb = (uint16_t)dibs__read_number(r, DIBS__VERBS_MAX - 1);
  r->bad = r->bad || !dibs__shapes[op->op.family].request || !dibs__family_of(&op->op)->verbs[op->op.verb];
  if (r->bad) {
    /* It has no room for an answer of others, which dibs__read_op_free would look at. */
    op->op.family = DIBS__FAM_LEASE;
    return false;
  }
  op->op.by = dibs__tick_add_ms(now, (int64_t)dibs__read_number(r, INT64_MAX));
  read_members(r, head_request, op->op.verb, base, &place);
  read_mandate(r, &op->op.mandate);
  read_members(r, dibs__shapes[op->op.family].request, op->op.verb, base, &place);
  dibs__str key = dibs__op_key(&op->op);
  if (dibs__family_of(&op->op)->key && key.len) op->op.bucket = dibs__bucket(key);
  op->op.flags = (uint16_t)((op->op.flags & DIBS__OP_URGENT) | (dibs__op_reads(&op->op) ? DIBS__OP_READS : 0));
  *no_memory = place.no_memory;
  return !r->bad && !place.no_memory;
}

void dibs__read_op_free(struct dibs__read_op *op) {
  dibs__op_free_answer(&op->op);
  free(op->arrays[0]);
  free(op->arrays[1]);
}

void dibs__write_answer(struct dibs__writer *w, const struct dibs__op *op) {
  write_members(w, head_answer, op->verb, (const char *)op);
  if (op->status == DIBS__MOVED) write_mandate(w, &op->has);
  write_members(w, dibs__shapes[op->family].answer, op->verb, (const char *)op);
}

bool dibs__read_answer(struct dibs__reader *r, struct dibs__op *op, dibs__keep_text *keep, void *context) {
  struct place place = {.keep = keep, .context = context};
  read_members(r, head_answer, op->verb, (char *)op, &place);
  if (op->status == DIBS__MOVED) read_mandate(r, &op->has);
  read_members(r, dibs__shapes[op->family].answer, op->verb, (char *)op, &place);
  return !r->bad && !place.no_memory;
}

/* ---- Listings and events ---- */

#define T struct dibs__lease_row
static const struct member lease_row[] = {M(T, name, DIBS_NAME_MAX),
                                          M(T, owner, DIBS__BREAK_OWNER_MAX),
                                          M(T, state, DIBS__BROKEN),
                                          M(T, mode, DIBS_COUNTED),
                                          M(T, slots, DIBS_SLOTS_MAX),
                                          M(T, slot, DIBS_SLOTS_MAX),
                                          M(T, ttl_ms, UINT32_MAX),
                                          M(T, ahead, UINT32_MAX),
                                          M(T, pid, UINT32_MAX),
                                          M(T, fence, UINT64_MAX),
                                          ANY_INT(T, left_ms),
                                          ANY_INT(T, age_ms),
                                          LAST};
#undef T

enum { ROWS_END, ROWS_ROW, ROWS_MORE };

void dibs__write_row(struct dibs__writer *w, const struct dibs__lease_row *row) {
  dibs__write_number(w, ROWS_ROW);
  write_members(w, lease_row, 0, (const char *)row);
}

void dibs__write_rows_end(struct dibs__writer *w, bool more) {
  dibs__write_number(w, more ? ROWS_MORE : ROWS_END);
}

bool dibs__read_row(struct dibs__reader *r, struct dibs__lease_row *row, bool *more) {
  struct place place = {0};
  *row = (struct dibs__lease_row){.state = 0};
  uint64_t what = dibs__read_number(r, ROWS_MORE);
  *more = what == ROWS_MORE;
  if (what != ROWS_ROW) return false;
  read_members(r, lease_row, 0, (char *)row, &place);
  return !r->bad;
}

void dibs__write_event(struct dibs__writer *w, const struct dibs__event *event) {
  dibs__write_number(w, event->what);
  dibs__write_bytes(w, event->id.b, sizeof event->id.b);
  dibs__write_number(w, event->held_until.ns ? 0 : event->fence.v);
}

void dibs__read_event(struct dibs__reader *r, struct dibs__event *event) {
  *event = (struct dibs__event){.what = (enum dibs__event_what)dibs__read_number(r, DIBS__EV_TASKS)};
  dibs__read_bytes(r, event->id.b, sizeof event->id.b);
  event->fence.v = dibs__read_number(r, UINT64_MAX);
}
