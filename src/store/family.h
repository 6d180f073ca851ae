/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_FAMILY_H
#define DIBS_STORE_FAMILY_H
/*
 * The families of operations, in one table: the facts about each family, for code that handles operations without
 * knowledge of their meaning (requests, the combiner, shims, tiers, groups).  doc/internals/families.md lists the steps
 * to add a family.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

enum { DIBS__VERBS_MAX = 8 };

enum dibs__served {
  DIBS__SERVED_BY_TIER,   /* of several tiers, by the tier that has the bucket */
  DIBS__SERVED_BY_LAST,   /* of several tiers, by the last tier, which is the anchor */
  DIBS__SERVED_BY_ITSELF, /* by the opened store itself, which never passes it on */
  DIBS__SERVED_BY_FIRST   /* of several tiers, by the first one, whichever has a bucket */
};

struct dibs__family_info {
  const char *name;
  const char *verbs[DIBS__VERBS_MAX]; /* in the order of its enum */
  enum dibs__served served;
  bool joins_groups; /* its effect can be undone; of records: those of dibs' own table */
  uint32_t reads;    /* a bit for each verb: it changes nothing */
  /* Of the family's operation. */
  size_t size;
  size_t key;       /* offset of the dibs__str with its key; 0: none, the caller gives the bucket */
  size_t got;       /* offset of a pointer to memory that an answer allocated; 0: none */
  size_t got_count; /* offset of a uint32_t with its size; 0: none */
};

/* For an unknown family: the name "?", and zeros. */
DIBS__MODULE_API const struct dibs__family_info *dibs__family_of(const struct dibs__op *op);
/* A bit for each family, as in dibs__identity. */
uint32_t dibs__families_served(enum dibs__served by);

static inline const char *dibs__verb_name(const struct dibs__op *op) {
  const char *name = op->verb < DIBS__VERBS_MAX ? dibs__family_of(op)->verbs[op->verb] : NULL;
  return name ? name : "?";
}

static inline bool dibs__op_reads(const struct dibs__op *op) {
  return op->verb < DIBS__VERBS_MAX && (dibs__family_of(op)->reads >> op->verb & 1) != 0;
}

/* Empty: the family has none. */
static inline dibs__str dibs__op_key(const struct dibs__op *op) {
  size_t at = dibs__family_of(op)->key;
  dibs__str key = {"", 0};
  if (at) memcpy(&key, (const char *)op + at, sizeof key);
  return key;
}

/* Removes the pointer to allocated memory from the answer, and returns it; the caller frees it. */
static inline void *dibs__op_take_answer(struct dibs__op *op) {
  const struct dibs__family_info *family = dibs__family_of(op);
  void *got = NULL;
  if (family->got) {
    memcpy(&got, (char *)op + family->got, sizeof got);
    memset((char *)op + family->got, 0, sizeof got);
  }
  if (family->got_count) memset((char *)op + family->got_count, 0, sizeof(uint32_t));
  return got;
}

static inline void dibs__op_free_answer(struct dibs__op *op) {
  free(dibs__op_take_answer(op));
}

#endif
