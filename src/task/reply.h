/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_REPLY_H
#define DIBS_TASK_REPLY_H
/*
 * What the answer to a message that was sent by HTTP means for the message:
 *
 *     2xx                           delivered
 *     408, 425, 429                 a failed try
 *     other 4xx                     dead: the receiver will not accept it later either
 *     3xx                           dead: a redirect is not followed, because the body might go to another receiver
 *     5xx, and no whole response    a failed try; also another status
 *
 * Retry-After of a failed try is the least pause before the next one.  No function here allocates or does I/O; the
 * texts come from a stranger.
 */
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  DIBS__REPLY_BODY = 1024, /* bytes of a response that are kept */
  DIBS__REPLY_TEXT = 2048  /* of the reason, as text */
};
#define DIBS__RETRY_AFTER_MAX_MS INT64_C(86400000) /* a receiver can't postpone a message further */

/* A response as it came. */
struct dibs__http_answer {
  int status;           /* 0: no whole response */
  char trouble[256];    /* why there is no whole response */
  char retry_after[64]; /* the header of that name, and the next; "": none */
  char date[64];
  char location[256];
  size_t length; /* of the body, as far as it is kept */
  char body[DIBS__REPLY_BODY];
};

enum dibs__reply_verdict { DIBS__REPLY_DONE, DIBS__REPLY_FAIL, DIBS__REPLY_DEAD };

struct dibs__reply {
  enum dibs__reply_verdict verdict;
  int64_t least_ms; /* FAIL: the pause that the receiver requested; 0: none */
  char text[DIBS__REPLY_TEXT];
};

/* `now_ms`: this machine's clock, in ms since 1970.  It only counts if the response has no Date. */
void dibs__reply_judge(const struct dibs__http_answer *answer, int64_t now_ms, struct dibs__reply *reply);

/* "120", or a date in one of the three forms of HTTP: the pause from `now_ms` on, between 0 and
 * DIBS__RETRY_AFTER_MAX_MS.  false: it is neither. */
bool dibs__retry_after(const char *text, int64_t now_ms, int64_t *pause_ms);
/* In ms since 1970. */
bool dibs__http_date(const char *text, int64_t *at_ms);

/* Adds bytes as the value of a header: each byte that is not a visible character of ASCII, and %, as %XX. */
void dibs__header_add(struct dibs__text *to, const char *bytes, size_t length);

#endif
