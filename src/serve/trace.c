/* SPDX-License-Identifier: MIT */
#include "serve/trace.h"
#include "serve/server.h"

#include <string.h>
#include <strings.h>

static const char form[] = "00-00000000000000000000000000000000-0000000000000000-00";
enum { TRACE_AT = 3, TRACE_DIGITS = 32, PARENT_AT = 36, PARENT_DIGITS = 16 };

/* An id of zeros alone is none. */
static bool is_id(const char *text, size_t digits) {
  return strspn(text, "0") < digits;
}

static bool read_trace(const char *value, char to[TRACE_LENGTH + 1]) {
  if (strlen(value) < TRACE_LENGTH) return false;
  for (size_t i = 0; form[i]; i++)
    if (form[i] == '-' ? value[i] != '-' : !strchr("0123456789abcdef", value[i])) return false;
  bool later = strncmp(value, "00", 2) != 0;
  char after = value[TRACE_LENGTH];
  if (strncmp(value, "ff", 2) == 0 || (after != '\0' && !(later && after == '-'))) return false;
  if (!is_id(value + TRACE_AT, TRACE_DIGITS) || !is_id(value + PARENT_AT, PARENT_DIGITS)) return false;
  memcpy(to, value, TRACE_LENGTH);
  to[TRACE_LENGTH] = '\0';
  return true;
}

struct seen {
  const char *value;
  size_t count;
};

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct seen *seen = arg;
  (void)kind;
  if (strcasecmp(name, "traceparent") != 0) return MHD_YES;
  seen->value = value;
  seen->count++;
  return MHD_YES;
}

bool dibs__trace_of(const struct request *r, char to[TRACE_LENGTH + 1]) {
  struct seen seen = {.value = NULL};
  MHD_get_connection_values(r->connection, MHD_HEADER_KIND, see_header, &seen);
  return seen.count == 1 && seen.value && read_trace(seen.value, to);
}
