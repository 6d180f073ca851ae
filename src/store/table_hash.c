/* SPDX-License-Identifier: MIT */
/* The version of a row, or of a document, that is a hash of its content. */
#include "base/sha256.h"
#include "store/values.h"

#include <stdio.h>
#include <string.h>

DIBS__MODULE_API void dibs__table_hash(const struct dibs__table *table, const dibs_value *values, char hex[65]) {
  struct dibs__sha256 hash;
  char length[24];
  dibs__sha256_begin(&hash);
  for (size_t i = 0; i < table->column_count; i++) {
    dibs__sha256_add(&hash, table->columns[i], strlen(table->columns[i]) + 1);
    if (!values[i].data) {
      dibs__sha256_add(&hash, "-", 1);
      continue;
    }
    int len = snprintf(length, sizeof length, "%zu:", values[i].length);
    dibs__sha256_add(&hash, length, (size_t)len);
    dibs__sha256_add(&hash, values[i].data, values[i].length);
  }
  dibs__sha256_end(&hash, hex);
}
