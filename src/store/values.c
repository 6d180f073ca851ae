/* SPDX-License-Identifier: MIT */
/* The small things of store.h that every side needs, and the names of statuses and of the version. */
#include "base/text.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

DIBS__MODULE_API bool dibs__str_equal(dibs__str a, dibs__str b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

bool dibs__str_is_number(dibs__str text, uint64_t number) {
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
  return a->epoch == b->epoch && memcmp(a->life.b, b->life.b, sizeof a->life.b) == 0;
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

/* The same number on every machine: records travel. */
static uint64_t little_endian(const uint8_t *p) {
  uint64_t word = 0;
  for (unsigned i = 0; i < 8; i++) word |= (uint64_t)p[i] << (8 * i);
  return word;
}

/* The key is no secret.  128 random bits can't be found from 64, whatever the key. */
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

DIBS__MODULE_API void dibs__say(struct dibs__said *said, const char *format, ...) {
  if (!said) return;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(said->text, sizeof said->text, format, args);
  va_end(args);
  if (n < 0) said->text[0] = '\0';
  if (n >= (int)sizeof said->text) said->text[dibs__utf8_cut(said->text, sizeof said->text - 1)] = '\0';
}

/* ---- Of dibs.h ---- */

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
    return "no such status";
  }
}
