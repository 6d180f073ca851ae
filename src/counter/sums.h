/* SPDX-License-Identifier: MIT */
#ifndef DIBS_COUNTER_SUMS_H
#define DIBS_COUNTER_SUMS_H
/*
 * Sums by key: a hash table with open addressing, which only grows.  Not locked.  Keys are at most DIBS_NAME_MAX bytes.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One key. */
struct dibs__sum {
  uint64_t hash;
  char *key; /* NUL-terminated, its own memory; NULL: the place is empty */
  int64_t sum;
  uint32_t len;
  int32_t status; /* the user's of this table: a dibs_status */
};

struct dibs__sums {
  struct dibs__sum *places; /* NULL: none yet */
  size_t capacity, count;   /* capacity: a power of two, or 0 */
};

/* The key's, or NULL. */
struct dibs__sum *dibs__sums_find(const struct dibs__sums *sums, const char *key, uint32_t len, uint64_t hash);
/* Adds a key that is not there, with sum 0.  NULL: no memory. */
struct dibs__sum *dibs__sums_make(struct dibs__sums *sums, const char *key, uint32_t len, uint64_t hash);
/* There is a place for `more` keys.  false: no memory. */
bool dibs__sums_reserve(struct dibs__sums *sums, size_t more);
/* Moves a key of another table into this one, which has a place for it: adds its sum, and takes its status.  A sum that
 * does not fit in 64 bits stays at the end of their range.  The other table can then only be iterated and cleared.
 * true: the key was there. */
bool dibs__sums_take(struct dibs__sums *sums, struct dibs__sums *from, struct dibs__sum *sum);
/* All keys, in no order: NULL begins, NULL ends. */
struct dibs__sum *dibs__sums_next(const struct dibs__sums *sums, const struct dibs__sum *sum);
/* The keys in byte order, as an array of pointers into the table; malloc'd.  NULL: no memory, or there are none. */
struct dibs__sum **dibs__sums_sorted(const struct dibs__sums *sums);
/* Frees keys and table, and leaves an empty table. */
void dibs__sums_clear(struct dibs__sums *sums);

#endif
