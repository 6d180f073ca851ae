/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GATE_FENCE_RECORD_H
#define DIBS_GATE_FENCE_RECORD_H
/*
 * The record that remembers the highest fence of a name.
 *
 * A record never accepts a lower fence (R18), so an operator who sets the highest fence begins another record: the
 * first one, `gate:NAME`, then contains how often it was set and the least fence since then, and fences are checked by
 * the record `gate.TIMES:NAME`.
 */
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an operator has set. */
struct fence_set {
  uint32_t times; /* 0: never */
  uint64_t fence; /* the last time */
};

enum { FENCE_SET_BYTES = 40 };

/* The key of the record after `times` settings.  Also the name of the lease of --order, with 0. */
void dibs__fence_key(const char *name, uint32_t times, char key[DIBS_NAME_MAX + 1]);
/* The content of the first record.  false: no gate has written it. */
bool dibs__fence_set_read(const char *data, size_t length, struct fence_set *set);
size_t dibs__fence_set_write(const struct fence_set *set, char to[FENCE_SET_BYTES]);

#endif
