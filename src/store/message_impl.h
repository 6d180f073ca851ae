/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_MESSAGE_IMPL_H
#define DIBS_STORE_MESSAGE_IMPL_H
/* The table of the members that travel (message_table.c), for the code that walks it (message.c). */
#include "store/message.h"

enum kind {
  END,
  BOOL,
  U16,
  U32,
  U64,
  I32,
  I64,
  TEXT,
  ID,
  CHARS, /* an array of `size` characters, with a NUL */
  BLOB,  /* an answer's memory and its size; a NUL follows it */
  KEPT,  /* the name of a tier */
  ARRAY, /* of a request: a pointer, a count, elements of `size` bytes */
  EACH,  /* answers in the elements of that array */
  ROWS   /* an answer's array, and after it, in the same memory, the texts of its elements */
};

struct member {
  enum kind kind;
  uint16_t at, count_at, size;
  uint32_t verbs; /* a bit for each; 0: all of the family */
  int64_t least;  /* of a signed number */
  uint64_t most;  /* of a number; of a text, bytes; of an array, elements */
  const struct member *of;
};

#define KIND_OF(type, name)                                                                                            \
  _Generic(((type *)NULL)->name, bool                                                                                  \
           : BOOL, uint16_t                                                                                            \
           : U16, uint32_t                                                                                             \
           : U32, uint64_t                                                                                             \
           : U64, int32_t                                                                                              \
           : I32, int64_t                                                                                              \
           : I64, dibs__fence                                                                                          \
           : U64, dibs__when                                                                                           \
           : I64, dibs__str                                                                                            \
           : TEXT, dibs__id                                                                                            \
           : ID)
/* A member whose kind its type says, and its limit. */
#define M(type, name, limit)                                                                                           \
  { .kind = KIND_OF(type, name), .at = offsetof(type, name), .most = (limit) }
#define SIGNED(type, name, lowest, limit)                                                                              \
  { .kind = KIND_OF(type, name), .at = offsetof(type, name), .least = (lowest), .most = (limit) }
#define ANY_INT(type, name) SIGNED(type, name, INT64_MIN, INT64_MAX)
#define CHARS_OF(type, name)                                                                                           \
  { .kind = CHARS, .at = offsetof(type, name), .size = sizeof((type *)NULL)->name }
#define BLOB_OF(type, name, count)                                                                                     \
  { .kind = BLOB, .at = offsetof(type, name), .count_at = offsetof(type, count), .most = DIBS_RECORD_MAX }
#define ELEMENTS(which, type, name, count, element, limit, shape, its_verbs)                                           \
  {                                                                                                                    \
    .kind = (which), .at = offsetof(type, name), .count_at = offsetof(type, count), .size = sizeof(element),           \
    .most = (limit), .of = (shape), .verbs = (its_verbs)                                                               \
  }
#define LAST                                                                                                           \
  { .kind = END }
#define VERB(verb) (1u << (verb))

/* Of a family; NULL: its operations do not travel. */
struct dibs__shape {
  const struct member *request, *answer;
};
extern const struct dibs__shape dibs__shapes[DIBS__FAM_COUNT];

#endif
