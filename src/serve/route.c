/* SPDX-License-Identifier: MIT */
/* From the request line to the route, and its parameters. */
#include "base/text.h"
#include "serve/server.h"

#include <string.h>

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool dibs__percent_decode(char *segment) {
  char *to = segment;
  for (const char *from = segment; *from; from++) {
    if (*from != '%') {
      *to++ = *from;
      continue;
    }
    int high = hex_value(from[1]), low = high < 0 ? -1 : hex_value(from[2]);
    if (low < 0 || (high == 0 && low == 0)) return false;
    *to++ = (char)(high * 16 + low);
    from += 2;
  }
  *to = '\0';
  return true;
}

/* Does the path have the form of the route?  Then param[] are where its parameters begin, which end at the next '/' or
 * at the end. */
static bool matches(const struct route *route, const char *path, const char *param[PARAMS_MAX]) {
  const char *form = route->path;
  size_t params = 0;
  for (; *form; form++, path++) {
    if (*form != '{') {
      if (*form != *path) return false;
      continue;
    }
    size_t length = strcspn(path, "/");
    if (length == 0) return false;
    param[params++] = path;
    path += length - 1;
    form = strchr(form, '}');
  }
  return *path == '\0';
}

static bool cut_and_decode(struct request *r) {
  for (size_t i = 0; i < PARAMS_MAX && r->param[i]; i++) {
    char *segment = r->path + (r->param[i] - r->path);
    segment[strcspn(segment, "/")] = '\0';
  }
  for (size_t i = 0; i < PARAMS_MAX && r->param[i]; i++)
    if (!dibs__percent_decode(r->path + (r->param[i] - r->path))) return false;
  return true;
}

static const char *const method_names[METHOD_COUNT] = {"GET, HEAD", "POST", "PUT", "PATCH", "DELETE"};

static void refuse_method(struct request *r, uint32_t allowed) {
  char text[64];
  struct dibs__text list;
  dibs__text_begin(&list, text, sizeof text);
  for (int m = 0; m < METHOD_COUNT; m++)
    if (allowed & (1u << m)) dibs__text_addf(&list, "%s%s", list.len ? ", " : "", method_names[m]);
  dibs__answer_refuse(r, 405, "method", "%.120s takes %s", r->target, text);
  dibs__answer_header(r, "Allow", "%s", text);
}

/* NULL: none has this path and method; then *allowed has the methods of those that have the path. */
static const struct route *find_route(const struct request *r, const char *param[PARAMS_MAX], uint32_t *allowed) {
  for (const struct route *const *table = dibs__routes; *table; table++)
    for (const struct route *route = *table; route->path; route++) {
      memset(param, 0, PARAMS_MAX * sizeof *param);
      if (!matches(route, r->path, param)) continue;
      if (route->method == r->method) return route;
      *allowed |= 1u << route->method;
    }
  return NULL;
}

bool dibs__route_find(struct request *r) {
  const char *param[PARAMS_MAX];
  uint32_t allowed = 0;
  r->path[strcspn(r->path, "?")] = '\0';
  r->route = find_route(r, param, &allowed);
  if (r->route) {
    memcpy(r->param, param, sizeof param);
    if (cut_and_decode(r)) return true;
    r->param[0] = NULL;
    dibs__answer_refuse(r, 400, "invalid", "the path has a %% that two hexadecimal digits do not follow, or a NUL");
  } else if (allowed) {
    refuse_method(r, allowed);
  } else {
    dibs__answer_refuse(r, 404, "no-such-path", "there is nothing at %.200s; /openapi.json lists what there is",
                        r->target);
  }
  return false;
}
