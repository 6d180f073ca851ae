/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_DURATION_H
#define DIBS_BASE_DURATION_H
/* Durations as people write and read them. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "500ms" "30s" "29.1s" "2m05s" "1d00h" to milliseconds: all that dibs__duration_write writes.  false: `wrong` has the
 * reason, which begins with the text. */
bool dibs__duration_read(const char *text, int64_t *ms, char *wrong, size_t wrong_size);
/* "29.1s", "2m05s", "450ms". */
void dibs__duration_write(char *to, size_t size, int64_t ms);

#endif
