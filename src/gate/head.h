/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GATE_HEAD_H
#define DIBS_GATE_HEAD_H
/*
 * The head of a request: its method, target and headers, checked before anything of it goes on.
 *
 * A head that two parsers could understand differently is refused, because the service behind the gate would be the
 * other parser (request smuggling).  What passes is written again from its parts, never copied as it came.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEAD_LINES_MAX = 128, HEAD_WHY_MAX = 200, HEAD_NAME_MAX = 255, HEAD_KEY_MAX = 255 };

struct head_line {
  const char *name, *value;
  size_t name_length, value_length;
};

struct head {
  struct head_line lines[HEAD_LINES_MAX];
  size_t count, bytes;
  /* Found by dibs__head_check. */
  bool chunked, has_length;
  uint64_t length;              /* of the body */
  char name[HEAD_NAME_MAX + 1]; /* Dibs-Name, decoded; "": none */
  uint64_t fence;               /* 0: none */
  const struct head_line *key;  /* Idempotency-Key; NULL: none */
  /* Why it is refused. */
  int status; /* 0: it is not */
  const char *word;
  char why[HEAD_WHY_MAX];
};

/* Adds a header; the texts must live as long as the head.  They need no NUL at the end. */
void dibs__head_add(struct head *head, const char *name, size_t name_length, const char *value, size_t value_length);
/* After the last one.  false: it is refused, and `status`, `word` and `why` are set. */
bool dibs__head_check(struct head *head, const char *method, const char *target, const char *version, size_t bytes_max);
/* Is it a header that goes on to the other side?  Those of one connection do not, nor those that Connection names. */
bool dibs__head_goes_on(const struct head *head, const struct head_line *line);
/* The first header of this name; NULL: there is none. */
const struct head_line *dibs__head_find(const struct head *head, const char *name);
/* Does the method only read? */
bool dibs__head_reads(const char *method);
/* Is it such a header of any message?  For answers. */
bool dibs__head_is_hop_by_hop(const char *name, size_t length);
/* Does the list, as in "close, X-One", have the word? */
bool dibs__head_lists(const char *list, size_t list_length, const char *word, size_t word_length);
/* No control characters but tabs. */
bool dibs__head_value_fine(const char *value, size_t length);
bool dibs__head_name_fine(const char *name, size_t length);

#endif
