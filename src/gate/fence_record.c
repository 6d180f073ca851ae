/* SPDX-License-Identifier: MIT */
#include "gate/fence_record.h"
#include "base/sha256.h"
#include "base/text.h"
#include "store/fence.h"

#include <inttypes.h>
#include <string.h>

/* The words before the colon keep the keys of short names, of hashes and of later records apart, whatever the name. */
void dibs__fence_key(const char *name, uint32_t times, char key[DIBS_NAME_MAX + 1]) {
  struct dibs__sha256 hash;
  struct dibs__text text;
  char hex[65], number[16] = "";
  size_t length;
  if (times > 0) {
    dibs__text_begin(&text, number, sizeof number);
    dibs__text_addf(&text, ".%" PRIu32, times);
  }
  length = strlen("gate:") + strlen(number) + strlen(name);
  dibs__text_begin(&text, key, DIBS_NAME_MAX + 1);
  if (length <= DIBS_NAME_MAX) {
    dibs__text_addf(&text, "gate%s:%s", number, name);
    return;
  }
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, name, strlen(name));
  dibs__sha256_end(&hash, hex);
  dibs__text_addf(&text, "gate-hash%s:%s", number, hex);
}

/* Digits, up to `most`; *at: after them. */
static bool read_number(const char **at, const char *end, uint64_t most, uint64_t *number) {
  const char *from = *at;
  *number = 0;
  for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
    uint64_t digit = (uint64_t)(**at - '0');
    if (*number > (most - digit) / 10) return false;
    *number = *number * 10 + digit;
  }
  return *at > from;
}

bool dibs__fence_set_read(const char *data, size_t length, struct fence_set *set) {
  const char *at = data, *end = data + length;
  uint64_t times;
  if (!read_number(&at, end, UINT32_MAX, &times) || times == 0 || at == end || *at++ != ' ') return false;
  if (!read_number(&at, end, DIBS__FENCE_MAX, &set->fence) || at != end) return false;
  set->times = (uint32_t)times;
  return true;
}

size_t dibs__fence_set_write(const struct fence_set *set, char to[FENCE_SET_BYTES]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, FENCE_SET_BYTES);
  dibs__text_addf(&text, "%" PRIu32 " %" PRIu64, set->times, set->fence);
  return strlen(to);
}
