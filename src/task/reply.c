/* SPDX-License-Identifier: MIT */
#include "task/reply.h"
#include "base/date.h"

#include <assert.h>
#include <string.h>

/* ---- Dates ---- */

struct reader {
  const char *at;
};

static bool take(struct reader *r, const char *word) {
  size_t length = strlen(word);
  if (strncmp(r->at, word, length) != 0) return false;
  r->at += length;
  return true;
}

/* A number of exactly `digits` digits; with `blank`, a blank may be in place of its first digit. */
static bool take_number(struct reader *r, int digits, bool blank, int64_t *number) {
  *number = 0;
  for (int i = 0; i < digits; i++, r->at++) {
    if (i == 0 && blank && *r->at == ' ') continue;
    if (*r->at < '0' || *r->at > '9') return false;
    *number = *number * 10 + (*r->at - '0');
  }
  return true;
}

/* The number of the word that the text begins with, from 0; -1: none of them. */
static int take_word(struct reader *r, const char *const *words, int count) {
  for (int i = 0; i < count; i++)
    if (take(r, words[i])) return i;
  return -1;
}

static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
/* The long names first: the short ones are their beginnings. */
static const char *const weekdays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
                                       "Sun",    "Mon",    "Tue",     "Wed",       "Thu",      "Fri",    "Sat"};

struct instant {
  int64_t year, month, day, hour, minute, second; /* month: from 0 */
};

static bool take_time(struct reader *r, struct instant *i) {
  return take_number(r, 2, false, &i->hour) && take(r, ":") && take_number(r, 2, false, &i->minute) && take(r, ":") &&
         take_number(r, 2, false, &i->second);
}

static bool take_month(struct reader *r, struct instant *i) {
  i->month = take_word(r, months, 12);
  return i->month >= 0;
}

/* "06 Nov 1994 08:49:37 GMT", "06-Nov-94 08:49:37 GMT": a year of two digits is at most 50 years from now (RFC 9110);
 * here, it is between 1970 and 2069, because nothing is older. */
static bool take_with_comma(struct reader *r, struct instant *i) {
  if (!take_number(r, 2, false, &i->day)) return false;
  if (take(r, "-")) {
    if (!take_month(r, i) || !take(r, "-") || !take_number(r, 2, false, &i->year)) return false;
    i->year += i->year < 70 ? 2000 : 1900;
  } else if (!take(r, " ") || !take_month(r, i) || !take(r, " ") || !take_number(r, 4, false, &i->year)) {
    return false;
  }
  return take(r, " ") && take_time(r, i) && take(r, " GMT");
}

/* "Nov  6 08:49:37 1994" */
static bool take_asctime(struct reader *r, struct instant *i) {
  return take_month(r, i) && take(r, " ") && take_number(r, 2, true, &i->day) && take(r, " ") && take_time(r, i) &&
         take(r, " ") && take_number(r, 4, false, &i->year);
}

bool dibs__http_date(const char *text, int64_t *at_ms) {
  struct reader r = {text};
  struct instant i;
  *at_ms = 0;
  if (take_word(&r, weekdays, 14) < 0) return false;
  if (!(take(&r, ", ") ? take_with_comma(&r, &i) : take(&r, " ") && take_asctime(&r, &i)) || *r.at != '\0')
    return false;
  if (i.day < 1 || i.day > 31 || i.hour > 23 || i.minute > 59 || i.second > 60) return false;
  int64_t days = dibs__days_of(i.year, i.month + 1, i.day);
  *at_ms = ((days * DIBS__DAY_S) + i.hour * 3600 + i.minute * 60 + i.second) * 1000;
  return true;
}

bool dibs__retry_after(const char *text, int64_t now_ms, int64_t *pause_ms) {
  size_t digits = strspn(text, "0123456789");
  int64_t ms = 0;
  *pause_ms = 0;
  if (digits > 0 && text[digits] == '\0') {
    for (; *text != '\0' && ms <= DIBS__RETRY_AFTER_MAX_MS; text++) ms = ms * 10 + (*text - '0') * INT64_C(1000);
  } else if (dibs__http_date(text, &ms)) {
    ms -= now_ms;
  } else {
    return false;
  }
  *pause_ms = ms < 0 ? 0 : ms > DIBS__RETRY_AFTER_MAX_MS ? DIBS__RETRY_AFTER_MAX_MS : ms;
  return true;
}

/* ---- Texts ---- */

void dibs__header_add(struct dibs__text *to, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)bytes[i];
    if (c > ' ' && c < 0x7f && c != '%')
      dibs__text_add(to, &bytes[i], 1);
    else
      dibs__text_addf(to, "%%%02X", c);
  }
}

/* Control characters and blanks become one blank, and what is not UTF-8 becomes a question mark. */
static void add_printable(struct dibs__text *to, const char *bytes, size_t length) {
  bool gap = false, any = false;
  for (size_t at = 0; at < length;) {
    uint32_t code = 0;
    size_t took = dibs__utf8_next(bytes + at, length - at, &code);
    bool blank = took > 0 && (code <= ' ' || (code >= 0x7f && code < 0xa0));
    if (!blank) {
      if (gap && any) dibs__text_add(to, " ", 1);
      dibs__text_add(to, took > 0 ? bytes + at : "?", took > 0 ? took : 1);
      any = true;
    }
    gap = blank;
    at += took > 0 ? took : 1;
  }
}

/* ---- Verdicts ---- */

static enum dibs__reply_verdict verdict_of(int status) {
  if (status >= 200 && status < 300) return DIBS__REPLY_DONE;
  if (status == 408 || status == 425 || status == 429) return DIBS__REPLY_FAIL;
  return status >= 300 && status < 500 ? DIBS__REPLY_DEAD : DIBS__REPLY_FAIL;
}

void dibs__reply_judge(const struct dibs__http_answer *answer, int64_t now_ms, struct dibs__reply *reply) {
  struct dibs__text text;
  assert(answer->length <= sizeof answer->body);
  reply->verdict = verdict_of(answer->status);
  reply->least_ms = 0;
  dibs__text_begin(&text, reply->text, sizeof reply->text);
  if (answer->status == 0) {
    add_printable(&text, answer->trouble, strlen(answer->trouble));
    return;
  }
  dibs__text_addf(&text, "HTTP %d", answer->status);
  if (answer->status >= 300 && answer->status < 400) {
    dibs__text_adds(&text, ", a redirect, which is not followed");
    if (answer->location[0] != '\0') dibs__text_adds(&text, "; to: ");
    add_printable(&text, answer->location, strlen(answer->location));
  }
  if (answer->length > 0) dibs__text_adds(&text, ": ");
  add_printable(&text, answer->body, answer->length);
  int64_t sent_ms;
  if (!dibs__http_date(answer->date, &sent_ms)) sent_ms = now_ms;
  if (reply->verdict == DIBS__REPLY_FAIL) (void)dibs__retry_after(answer->retry_after, sent_ms, &reply->least_ms);
}
