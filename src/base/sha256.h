/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_SHA256_H
#define DIBS_BASE_SHA256_H
/* SHA-256 (FIPS 180-4).  For telling contents apart, not for secrets. */
#include <stddef.h>
#include <stdint.h>

struct dibs__sha256 {
  uint32_t state[8];
  uint64_t length; /* bytes so far */
  uint8_t block[64];
};
void dibs__sha256_begin(struct dibs__sha256 *hash);
void dibs__sha256_add(struct dibs__sha256 *hash, const void *bytes, size_t len);
/* 64 lower-case digits and a NUL. */
void dibs__sha256_end(struct dibs__sha256 *hash, char hex[65]);

#endif
