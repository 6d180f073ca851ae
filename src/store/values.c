/* SPDX-License-Identifier: MIT */
/* The helpers of store.h: users' tables, which are reference-counted; decisions on a record; comparisons and digests;
 * the names of statuses and of the version. */
#include "store/values.h"
#include "base/map.h"
#include "base/text.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct dibs__table *dibs__table_hold(const struct dibs__table *table) {
  /* The count is the one field that changes. */
  if (table) atomic_fetch_add(&((struct dibs__table *)(uintptr_t)table)->refs, 1);
  return table;
}

void dibs__table_drop(const struct dibs__table *table) {
  struct dibs__table *mine = (struct dibs__table *)(uintptr_t)table;
  if (mine && atomic_fetch_sub(&mine->refs, 1) == 1) free(mine);
}

/* ---- Decisions on a record of dibs' own table, the same for every store ---- */

DIBS__MODULE_API bool dibs__record_valid(struct dibs__record_op *op) {
  const uint32_t known = DIBS__IF_VERSION | DIBS__IF_ABSENT | DIBS__IF_FENCE | DIBS__IF_DIGEST;
  uint32_t guards = dibs__record_guards(op);
  bool writes = op->op.verb == DIBS__RECORD_PUT;
  op->got = NULL;
  op->got_len = 0;
  op->version = 0;
  op->seen = DIBS__FENCE_NONE;
  op->version_text[0] = '\0';
  op->why[0] = '\0';
  op->op.status = op->table ? DIBS_UNSUPPORTED : DIBS_INVALID;
  if (op->table || op->op.verb > DIBS__RECORD_DROP || (guards & ~known)) return false;
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == 0) return false;
  if ((guards & DIBS__IF_ABSENT) && ((guards & DIBS__IF_VERSION) || op->op.verb == DIBS__RECORD_DROP)) return false;
  return !writes || op->data.len <= DIBS_RECORD_MAX;
}

uint64_t dibs__record_digest(dibs__str data) {
  return dibs__hash(data.p, data.len);
}

DIBS__MODULE_API bool dibs__record_admits(struct dibs__record_op *op, dibs__fence fence, uint64_t digest,
                                          uint64_t version, dibs__str data) {
  uint32_t guards = dibs__record_guards(op);
  bool versioned = (guards & DIBS__IF_VERSION) != 0;
  bool empty = versioned && dibs__str_is_number(op->if_version, 0);
  op->op.status = DIBS_NOT_FOUND;
  if (version == 0 && (op->op.verb == DIBS__RECORD_DROP || (versioned && !empty))) return false;
  op->seen = fence;
  op->op.status = DIBS_STALE;
  if ((guards & DIBS__IF_FENCE) && dibs__fence_below(op->fence, fence)) return false;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == fence.v && digest != dibs__id_digest(op->id)) return false;
  op->seen = DIBS__FENCE_NONE;
  op->version = version;
  op->op.status = DIBS_CONFLICT;
  if ((guards & DIBS__IF_ABSENT) && version != 0) return false;
  if (versioned && !dibs__str_is_number(op->if_version, version)) return false;
  if ((guards & DIBS__IF_DIGEST) && op->if_digest != dibs__record_digest(data)) return false;
  op->version = 0;
  return true;
}

/* ---- Comparisons, buckets and digests ---- */

DIBS__MODULE_API dibs__str dibs__break_owner(char to[DIBS__BREAK_OWNER_MAX], dibs__str who, dibs__str holder) {
  if (who.len > DIBS_OWNER_MAX) who.len = DIBS_OWNER_MAX;
  if (holder.len > DIBS_OWNER_MAX) holder.len = DIBS_OWNER_MAX;
  if (who.len) memcpy(to, who.p, who.len);
  to[who.len] = DIBS__BREAK_FROM;
  if (holder.len) memcpy(to + who.len + 1, holder.p, holder.len);
  return dibs__str_of(to, (size_t)who.len + 1 + holder.len);
}

DIBS__MODULE_API bool dibs__str_before(dibs__str a, dibs__str b) {
  uint32_t least = a.len < b.len ? a.len : b.len;
  int order = least ? memcmp(a.p, b.p, least) : 0;
  return order < 0 || (order == 0 && a.len < b.len);
}

DIBS__MODULE_API bool dibs__stock_list_valid(struct dibs__stock_op *op) {
  op->rows = NULL;
  op->row_count = 0;
  return !op->table && op->amount >= 1 && op->amount <= DIBS__STOCK_ROWS && op->key.len <= DIBS_NAME_MAX &&
         op->claim.len <= DIBS_NAME_MAX;
}

DIBS__MODULE_API void dibs__stock_list_answer(struct dibs__stock_op *op, const struct dibs__stock_row *rows,
                                              size_t count) {
  size_t size = 0;
  op->op.status = DIBS_OK;
  if (count == 0) return;
  for (size_t i = 0; i < count; i++) size += sizeof *rows + rows[i].key.len + 1;
  op->rows = malloc(size);
  if (!op->rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(op->rows + count);
  for (size_t i = 0; i < count; i++) {
    struct dibs__stock_row *row = &op->rows[op->row_count++];
    *row = rows[i];
    row->key.p = at;
    if (rows[i].key.len) memcpy(at, rows[i].key.p, rows[i].key.len);
    at[rows[i].key.len] = '\0';
    at += rows[i].key.len + 1;
  }
}

DIBS__MODULE_API bool dibs__list_has(const struct dibs__list *list, dibs__str name) {
  dibs__str prefix = list->prefix;
  if (name.len < prefix.len || (prefix.len && memcmp(name.p, prefix.p, prefix.len) != 0)) return false;
  return list->after.len == 0 || dibs__str_before(list->after, name);
}

/* No name has a control character. */
dibs__str dibs__list_from(const struct dibs__list *list, char to[DIBS_NAME_MAX + 1]) {
  bool after = list->after.len > 0 && !dibs__str_before(list->after, list->prefix);
  dibs__str from = after ? list->after : list->prefix;
  if (from.len > DIBS_NAME_MAX) from.len = DIBS_NAME_MAX;
  if (from.len) memcpy(to, from.p, from.len);
  if (after) to[from.len] = '\1';
  return dibs__str_of(to, from.len + after);
}

DIBS__MODULE_API bool dibs__str_equal(dibs__str a, dibs__str b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

DIBS__MODULE_API bool dibs__str_is_number(dibs__str text, uint64_t number) {
  char digits[24];
  int len = snprintf(digits, sizeof digits, "%" PRIu64, number);
  return dibs__str_equal(text, dibs__str_of(digits, (size_t)len));
}

DIBS__MODULE_API bool dibs__id_equal(dibs__id a, dibs__id b) {
  unsigned differ = 0;
  for (size_t i = 0; i < sizeof a.b; i++) differ |= (unsigned)(a.b[i] ^ b.b[i]);
  return differ == 0;
}

DIBS__MODULE_API bool dibs__mandate_equal(const dibs__mandate *a, const dibs__mandate *b) {
  return a->epoch == b->epoch && memcmp(a->incarnation.b, b->incarnation.b, sizeof a->incarnation.b) == 0;
}

DIBS__MODULE_API uint16_t dibs__bucket(dibs__str name) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint32_t i = 0; i < name.len; i++) hash = (hash ^ (uint8_t)name.p[i]) * UINT64_C(0x100000001b3);
  return (uint16_t)((uint32_t)(hash ^ (hash >> 32)) % DIBS__BUCKETS);
}

/* ---- SipHash-2-4 of exactly 16 bytes ---- */

static uint64_t rotate(uint64_t x, unsigned bits) {
  return (x << bits) | (x >> (64 - bits));
}

static void sip_round(uint64_t v[4]) {
  v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
  v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
  v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
  v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

static void sip_take(uint64_t v[4], uint64_t word) {
  v[3] ^= word;
  sip_round(v);
  sip_round(v);
  v[0] ^= word;
}

/* The same number on every machine: records move between machines. */
static uint64_t little_endian(const uint8_t *p) {
  uint64_t word = 0;
  for (unsigned i = 0; i < 8; i++) word |= (uint64_t)p[i] << (8 * i);
  return word;
}

/* The key is no secret.  64 bits do not determine 128 random bits, with any key. */
DIBS__MODULE_API uint64_t dibs__id_digest(dibs__id id) {
  const uint64_t k0 = UINT64_C(0x6469627320726563), k1 = UINT64_C(0x6f72642064696773);
  uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                   k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
  sip_take(v, little_endian(id.b));
  sip_take(v, little_endian(id.b + 8));
  sip_take(v, (uint64_t)sizeof id.b << 56);
  v[2] ^= 0xff;
  for (int i = 0; i < 4; i++) sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

DIBS__MODULE_API void dibs__set_message(struct dibs__result *result, const char *format, ...) {
  if (!result) return;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(result->text, sizeof result->text, format, args);
  va_end(args);
  if (n < 0) result->text[0] = '\0';
  if (n >= (int)sizeof result->text) result->text[dibs__utf8_cut(result->text, sizeof result->text - 1)] = '\0';
}

/* ---- Functions of dibs.h ---- */

#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)

const char *dibs_version(void) {
  return QUOTED(DIBS_VERSION_MAJOR) "." QUOTED(DIBS_VERSION_MINOR) "." QUOTED(DIBS_VERSION_PATCH);
}

uint32_t dibs_version_number(void) {
  return DIBS_VERSION_MAJOR << 16 | DIBS_VERSION_MINOR << 8 | DIBS_VERSION_PATCH;
}

const char *dibs_status_name(dibs_status status) {
  switch ((int)status) {
#define STATUS_NAME(name, number, text)                                                                                \
  case number:                                                                                                         \
    return #name;
    DIBS_STATUSES(STATUS_NAME)
#undef STATUS_NAME
  default:
    return "?";
  }
}

const char *dibs_status_text(dibs_status status) {
  switch ((int)status) {
#define STATUS_TEXT(name, number, text)                                                                                \
  case number:                                                                                                         \
    return text;
    DIBS_STATUSES(STATUS_TEXT)
#undef STATUS_TEXT
  default:
    return "unknown status";
  }
}
