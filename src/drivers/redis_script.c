/* SPDX-License-Identifier: MIT */
/* A server knows a script by the SHA-1 of its text (FIPS 180-4).  It is a name here, and guards nothing. */
#include "drivers/redis_parts.h"

#include <string.h>

enum { BLOCK = 64 };

static uint32_t left(uint32_t x, unsigned by) {
  return x << by | x >> (32 - by);
}

static void mix(uint32_t h[5], const uint8_t block[BLOCK]) {
  uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
  for (unsigned i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (unsigned i = 16; i < 80; i++) w[i] = left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  for (unsigned i = 0; i < 80; i++) {
    uint32_t f, k;
    if (i < 20)
      f = (b & c) | (~b & d), k = 0x5a827999;
    else if (i < 40)
      f = b ^ c ^ d, k = 0x6ed9eba1;
    else if (i < 60)
      f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
    else
      f = b ^ c ^ d, k = 0xca62c1d6;
    uint32_t next = left(a, 5) + f + e + k + w[i];
    e = d;
    d = c;
    c = left(b, 30);
    b = a;
    a = next;
  }
  h[0] += a;
  h[1] += b;
  h[2] += c;
  h[3] += d;
  h[4] += e;
}

void dibs__redis_script_name(struct dibs__redis_script *script) {
  static const char digits[] = "0123456789abcdef";
  uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  uint8_t last[2 * BLOCK] = {0};
  size_t len = strlen(script->text), whole = len / BLOCK * BLOCK, rest = len - whole;
  const uint8_t *text = (const uint8_t *)script->text;
  for (size_t at = 0; at < whole; at += BLOCK) mix(h, text + at);
  memcpy(last, text + whole, rest);
  last[rest] = 0x80;
  size_t end = rest + 9 > BLOCK ? 2 * BLOCK : BLOCK;
  for (unsigned i = 0; i < 8; i++) last[end - 1 - i] = (uint8_t)((uint64_t)len * 8 >> 8 * i);
  for (size_t at = 0; at < end; at += BLOCK) mix(h, last + at);
  for (unsigned i = 0; i < 40; i++) script->sha[i] = digits[h[i / 8] >> (28 - 4 * (i % 8)) & 15];
  script->sha[40] = '\0';
}
