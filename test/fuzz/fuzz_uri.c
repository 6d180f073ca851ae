/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a store URI.  Either it is refused with a message, or the result is complete: its printed form parses to
 * the same parts, except for the secrets, which are removed from it.
 */
#include "base/text.h"
#include "fuzz.h"
#include "store/uri.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) wrong(#what, text);                                                                                   \
  while (0)

static void wrong(const char *what, const char *text) {
  fprintf(stderr, "failed: %s\nfor: %s\n", what, text);
  abort();
}

static bool same(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_secret(const char *key) {
  return strcasestr(key, "pass") || strcasestr(key, "secret") || strcasestr(key, "token");
}

static void check_whole(const struct dibs__uri *uri, const char *text) {
  CHECK(uri->scheme && uri->scheme[0] && uri->hosts && uri->path && uri->shown);
  CHECK(uri->shim_count <= DIBS__URI_SHIMS && uri->param_count <= DIBS__URI_PARAMS);
  CHECK(strspn(uri->scheme, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(uri->scheme));
  CHECK(!uri->password || uri->user);
  CHECK(strlen(uri->path) <= strlen(text));
  for (const char *c = uri->shown; *c; c++) CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
  for (size_t i = 0; i < uri->param_count; i++)
    CHECK(same(dibs__uri_param(uri, uri->params[i].key), uri->params[i].value));
}

static void check_shown(const struct dibs__uri *uri, const char *text) {
  struct dibs__uri shown;
  struct dibs__result reported = {.text = ""};
  if (strlen(uri->shown) > DIBS__URI_MAX) return; /* the stars are longer than a short secret */
  CHECK(dibs__uri_parse(uri->shown, &shown, &reported) == DIBS_OK);
  CHECK(same(shown.shown, uri->shown));
  CHECK(same(shown.scheme, uri->scheme) && same(shown.user, uri->user) && same(shown.hosts, uri->hosts) &&
        same(shown.path, uri->path));
  CHECK(same(shown.password, uri->password ? "***" : NULL));
  CHECK(shown.shim_count == uri->shim_count && shown.param_count == uri->param_count);
  for (size_t i = 0; i < uri->param_count; i++) {
    const char *key = uri->params[i].key;
    CHECK(same(shown.params[i].key, key));
    CHECK(same(shown.params[i].value, is_secret(key) ? "***" : uri->params[i].value));
  }
  dibs__uri_free(&shown);
}

static void check_numbers(const struct dibs__uri *uri, const char *text) {
  struct dibs__result reported = {.text = ""};
  static const char *const known[] = {"mode", "trace.file", NULL};
  for (size_t i = 0; i < uri->param_count; i++) {
    int64_t number = 0;
    dibs__status status = dibs__uri_number(uri, uri->params[i].key, -1000, 1000, 7, &number, &reported);
    CHECK(status == DIBS_OK ? number >= -1000 && number <= 1000 : number == 7 && reported.text[0]);
  }
  reported.text[0] = '\0';
  if (dibs__uri_only(uri, NULL, known, &reported) != DIBS_OK) CHECK(reported.text[0]);
  for (size_t i = 0; i < uri->shim_count; i++) dibs__uri_only(uri, uri->shims[i], known, &reported);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  text[size] = '\0';
  struct dibs__uri uri;
  struct dibs__result reported = {.text = ""};
  dibs__status status = dibs__uri_parse(text, &uri, &reported);
  if (status == DIBS_OK) {
    check_whole(&uri, text);
    check_shown(&uri, text);
    check_numbers(&uri, text);
  } else {
    CHECK(status == DIBS_INVALID && reported.text[0] && !uri.memory);
    CHECK(memchr(reported.text, '\0', sizeof reported.text));
  }
  dibs__uri_free(&uri);
  free(text);
  return 0;
}
