/* SPDX-License-Identifier: MIT */
/* A number at a service behind a gate, over curl(1): a client as in any language. */
#include "lab/lab.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 4096, HEADER_MAX = 100 };

static dibs_status fail(dibs_error *error, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static dibs_status fail(dibs_error *error, dibs_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(error->text, sizeof error->text, format, args);
  va_end(args);
  return error->status = status;
}

/* *answer: the body, and then its status in a line of its own.  `number` NULL: a GET. */
static dibs_status send_request(const struct lab_service *s, const char *number, char answer[ANSWER_MAX],
                                dibs_error *error) {
  char program[] = "curl", quiet[] = "-sS", limit[] = "-m20", status[] = "-w\n%{http_code}", put[] = "-XPUT";
  char name[HEADER_MAX], fence[HEADER_MAX], data[HEADER_MAX], url[LAB_URL_MAX + 1], why[256];
  char *argv[12] = {program, quiet, limit, status};
  size_t n = 4;
  snprintf(name, sizeof name, "-HDibs-Name: %s", s->name);
  snprintf(fence, sizeof fence, "-HDibs-Fence: %" PRIu64, s->fence);
  snprintf(data, sizeof data, "-d%s", number ? number : "");
  snprintf(url, sizeof url, "%s", s->url);
  if (s->fence > 0) {
    argv[n++] = name;
    argv[n++] = fence;
  }
  if (number) {
    argv[n++] = put;
    argv[n++] = data;
  }
  argv[n] = url;
  if (dibs__lab_capture(argv, answer, ANSWER_MAX, why, sizeof why)) return DIBS_OK;
  return fail(error, DIBS_UNAVAILABLE, "%.200s: %s", s->url, why);
}

static dibs_status exchange(const struct lab_service *s, const char *number, char answer[ANSWER_MAX],
                            dibs_error *error) {
  dibs_status status = send_request(s, number, answer, error);
  if (status != DIBS_OK) return status;
  char *line = strrchr(answer, '\n');
  long code = line ? strtol(line + 1, NULL, 10) : 0;
  if (line) *line = '\0';
  if (code >= 200 && code <= 299) return DIBS_OK;
  if (code == 409 && strstr(answer, "\"/problems/stale\""))
    return fail(error, DIBS_STALE, "the gate answered 409, /problems/stale: it has seen a newer fence");
  return fail(error, DIBS_UNAVAILABLE, "%.200s answered %ld: %.200s", s->url, code, answer);
}

dibs_status dibs__lab_service_read(const struct lab_service *service, int64_t *value, dibs_error *error) {
  char answer[ANSWER_MAX], *end;
  *value = 0;
  dibs_status status = exchange(service, NULL, answer, error);
  if (status != DIBS_OK) return status;
  *value = strtoll(answer, &end, 10);
  if (end != answer && end[strspn(end, " \r\n")] == '\0') return DIBS_OK;
  return fail(error, DIBS_INVALID, "%.200s answered what is not a number: %.100s", service->url, answer);
}

dibs_status dibs__lab_service_write(const struct lab_service *service, int64_t value, dibs_error *error) {
  char answer[ANSWER_MAX], number[24];
  snprintf(number, sizeof number, "%" PRId64, value);
  return exchange(service, number, answer, error);
}
