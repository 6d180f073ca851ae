/* SPDX-License-Identifier: MIT */
#include "store/uri.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct good {
  const char *text;
  const char *shims, *scheme, *user, *password, *hosts, *path, *shown; /* shown NULL: the same as text */
  const char *key, *value;
};

static const struct good goods[] = {
    {"memory:", "", "memory", NULL, NULL, "", "", NULL, NULL, NULL},
    {"memory:name", "", "memory", NULL, NULL, "", "name", NULL, NULL, NULL},
    {"sqlite:///var/lib/x.db", "", "sqlite", NULL, NULL, "", "/var/lib/x.db", NULL, NULL, NULL},
    {"sqlite:/var/lib/x.db", "", "sqlite", NULL, NULL, "", "/var/lib/x.db", NULL, NULL, NULL},
    {"sqlite:rel/x.db?mode=0660", "", "sqlite", NULL, NULL, "", "rel/x.db", NULL, "mode", "0660"},
    {"sqlite:a b/gr\xc3\xb6\xc3\x9f\x65#1.db", "", "sqlite", NULL, NULL, "", "a b/gr\xc3\xb6\xc3\x9f\x65#1.db", NULL,
     NULL, NULL},
    {"sqlite:100%25%20%3f%40.db", "", "sqlite", NULL, NULL, "", "100% ?@.db", NULL, NULL, NULL},
    {"sqlite:./me@home.db", "", "sqlite", NULL, NULL, "", "./me@home.db", NULL, NULL, NULL},
    {"SQLite:x", "", "sqlite", NULL, NULL, "", "x", NULL, NULL, NULL},
    {"sqlite:x?", "", "sqlite", NULL, NULL, "", "x", NULL, NULL, NULL},
    {"sqlite:x?a=", "", "sqlite", NULL, NULL, "", "x", NULL, "a", ""},
    {"sqlite:x?a=b=c%26d?e", "", "sqlite", NULL, NULL, "", "x", NULL, "a", "b=c&d?e"},
    {"trace+sqlite:x?trace.file=/tmp/t", "trace ", "sqlite", NULL, NULL, "", "x", NULL, "trace.file", "/tmp/t"},
    {"a+b+c+d+memory:", "a b c d ", "memory", NULL, NULL, "", "", NULL, NULL, NULL},
    {"mongodb+srv://me:pw@db.x.y/d", "", "mongodb+srv", "me", "pw", "db.x.y", "/d", "mongodb+srv://me:***@db.x.y/d",
     NULL, NULL},
    {"a+b+mongodb+SRV:", "a b ", "mongodb+srv", NULL, NULL, "", "", NULL, NULL, NULL},
    {"srv://host", "", "srv", NULL, NULL, "host", "", NULL, NULL, NULL},
    {"redis://host", "", "redis", NULL, NULL, "host", "", NULL, NULL, NULL},
    {"redis://h1:1,h2:2,[::1]:3/0", "", "redis", NULL, NULL, "h1:1,h2:2,[::1]:3", "/0", NULL, NULL, NULL},
    {"postgres://%2Frun%2Fpg/db", "", "postgres", NULL, NULL, "%2Frun%2Fpg", "/db", NULL, NULL, NULL},
    {"postgres://me@/db", "", "postgres", "me", NULL, "", "/db", NULL, NULL, NULL},
    {"postgres://me:secret@h/db", "", "postgres", "me", "secret", "h", "/db", "postgres://me:***@h/db", NULL, NULL},
    {"postgres://me:@h/db", "", "postgres", "me", "", "h", "/db", "postgres://me:***@h/db", NULL, NULL},
    {"postgres://:pw@h", "", "postgres", "", "pw", "h", "", "postgres://:***@h", NULL, NULL},
    {"postgres://m%40e:p%3aq%2Fr@h", "", "postgres", "m@e", "p:q/r", "h", "", "postgres://m%40e:***@h", NULL, NULL},
    {"postgres://me:p@q:r@h", "", "postgres", "me", "p@q:r", "h", "", "postgres://me:***@h", NULL, NULL},
    {"postgres://h/db?password=se%20cret&x=1", "", "postgres", NULL, NULL, "h", "/db",
     "postgres://h/db?password=***&x=1", "password", "se cret"},
    {"etcd://h?x=1&ssl_Passphrase=q", "", "etcd", NULL, NULL, "h", "", "etcd://h?x=1&ssl_Passphrase=***", "x", "1"},
    {"etcd://h?auth_token=q", "", "etcd", NULL, NULL, "h", "", "etcd://h?auth_token=***", "auth_token", "q"},
};

static void same(const char *got, const char *want) {
  if (!want)
    assert_null(got);
  else
    assert_string_equal(got, want);
}

static void valid_uris_are_parsed(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT_OF(goods); i++) {
    const struct good *g = &goods[i];
    struct dibs__uri uri;
    struct dibs__result reported = {.text = ""};
    dibs__status status = dibs__uri_parse(g->text, &uri, &reported);
    if (status != DIBS_OK) fail_msg("%s: %s", g->text, reported.text);
    char shims[128] = "";
    for (size_t s = 0; s < uri.shim_count; s++)
      snprintf(shims + strlen(shims), sizeof shims - strlen(shims), "%s ", uri.shims[s]);
    same(shims, g->shims);
    same(uri.scheme, g->scheme);
    same(uri.user, g->user);
    same(uri.password, g->password);
    same(uri.hosts, g->hosts);
    same(uri.path, g->path);
    same(uri.shown, g->shown ? g->shown : g->text);
    if (g->key) same(dibs__uri_param(&uri, g->key), g->value);
    assert_null(dibs__uri_param(&uri, "not there"));
    dibs__uri_free(&uri);
    assert_null(uri.memory);
  }
}

struct bad {
  const char *text;
  size_t at; /* from 1; 0: the message has no position */
  const char *what;
};

static const struct bad bads[] = {
    {"", 0, "empty"},
    {"/var/lib/x.db", 1, "scheme"},
    {"x.db", 1, "scheme"},
    {"?a:b", 1, "scheme"},
    {":x", 1, "missing"},
    {"+sqlite:x", 1, "missing"},
    {"trace+:x", 7, "missing"},
    {"a+b+c+d+e+memory:", 9, "more than 4"},
    {"1a:x", 1, "letters"},
    {"..:x", 1, "letters"},
    {"sq lite:x", 3, "letters"},
    {"abcdefghijklmnopqrstuvwxyzabcdefg:", 1, "32"},
    {"sqlite:a\nb", 9, "control"},
    {"sqlite:a\x7f", 9, "control"},
    {"sqlite:%", 8, "hex"},
    {"sqlite:a%2", 9, "hex"},
    {"sqlite:a%2g", 9, "hex"},
    {"sqlite:a%00b", 9, "%00"},
    {"redis:me:hidden@host", 16, "//"},
    {"me:hidden@host", 10, "//"},
    {"redis://me:hid/den@host", 19, "can't occur here"},
    {"redis://me:hid?den=1@host", 21, "can't occur here"},
    {"redis://me:12/hidden@host", 21, "can't occur here"},
    {"redis://me:hidden", 12, "port"},
    {"redis://me:%zz@h", 12, "hex"},
    {"redis://h:", 11, "port"},
    {"redis://h:0", 11, "65535"},
    {"redis://h:65536", 11, "65535"},
    {"redis://h:99999999999999999999", 11, "65535"},
    {"redis://h:1x", 12, "port"},
    {"redis://:6379", 9, "host is missing"},
    {"redis://,h", 9, "host is missing"},
    {"redis://h,,g", 11, "host is missing"},
    {"redis://h,", 10, "comma"},
    {"redis://h/0,", 12, "no tier follows"},
    {"sqlite:x,", 9, "no tier follows"},
    {"redis://[::1", 9, "no ]"},
    {"redis://[]", 9, "no address"},
    {"redis://[::g]", 12, "IPv6"},
    {"redis://[::1]6379", 14, "follow ]"},
    {"redis://h h", 10, "can't contain"},
    {"redis://h%2", 10, "hex"},
    {"sqlite:x?a", 10, "no value"},
    {"sqlite:x?=b", 10, "no name"},
    {"sqlite:x?a=1&", 13, "missing after"},
    {"sqlite:x?&a=1", 10, "missing"},
    {"sqlite:x?a=1&&b=1", 14, "missing"},
    {"sqlite:x?a b=1", 11, "a parameter's name"},
    {"sqlite:x?a%20b=1", 11, "a parameter's name"},
    {"sqlite:x?a=1&b=2&a=3", 18, "occurs twice"},
    {"sqlite:x?a=%0", 12, "hex"},
    {"sqlite:x?trace.file=y", 10, "shim that is not in the URI"},
    {"trace+sqlite:x?tracer.file=y", 16, "shim that is not in the URI"},
};

static void invalid_uris_are_refused_with_the_position(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT_OF(bads); i++) {
    struct dibs__uri uri;
    struct dibs__result reported = {.text = ""};
    char position[48] = "";
    assert_int_equal(dibs__uri_parse(bads[i].text, &uri, &reported), DIBS_INVALID);
    assert_null(uri.memory);
    assert_int_equal(uri.param_count, 0);
    if (bads[i].at) snprintf(position, sizeof position, "character %zu: ", bads[i].at);
    if (!strstr(reported.text, position) || !strstr(reported.text, bads[i].what))
      fail_msg("%s: said \"%s\", not %s%s", bads[i].text, reported.text, position, bads[i].what);
    assert_null(strstr(reported.text, "hid"));
    dibs__uri_free(&uri); /* freeing twice is harmless */
  }
}

static void bounds_are_exact(void **state) {
  (void)state;
  struct dibs__uri uri;
  struct dibs__result reported;
  char *text = malloc(DIBS__URI_MAX + 2);
  memset(text, 'x', DIBS__URI_MAX + 1);
  memcpy(text, "sqlite:", 7);
  text[DIBS__URI_MAX + 1] = '\0';
  assert_int_equal(dibs__uri_parse(text, &uri, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "4096"));
  text[DIBS__URI_MAX] = '\0';
  assert_int_equal(dibs__uri_parse(text, &uri, &reported), DIBS_OK);
  assert_int_equal(strlen(uri.path), DIBS__URI_MAX - 7);
  dibs__uri_free(&uri);

  for (int count = DIBS__URI_PARAMS; count <= DIBS__URI_PARAMS + 1; count++) {
    int n = snprintf(text, DIBS__URI_MAX, "a+b+c+d+e://u:p@h/p?");
    for (int i = 0; i < count; i++) n += snprintf(text + n, (size_t)(DIBS__URI_MAX - n), "%spass%d=", i ? "&" : "", i);
    dibs__status status = dibs__uri_parse(text, &uri, &reported);
    assert_int_equal(status, count > DIBS__URI_PARAMS ? DIBS_INVALID : DIBS_OK);
    if (status == DIBS_OK) assert_non_null(strstr(uri.shown, "&pass31=***"));
    dibs__uri_free(&uri);
  }
  free(text);
}

static void numbers_are_within_their_bounds(void **state) {
  (void)state;
  struct dibs__uri uri;
  struct dibs__result reported = {.text = ""};
  int64_t number;
  assert_int_equal(
      dibs__uri_parse("m:?a=42&b=-7&c=x&d=&e=1e3&f=%201&g=+1&h=99999999999999999999&i=-&j=1%20", &uri, &reported),
      DIBS_OK);
  assert_int_equal(dibs__uri_number(&uri, "a", 0, 42, 5, &number, &reported), DIBS_OK);
  assert_int_equal(number, 42);
  assert_int_equal(dibs__uri_number(&uri, "b", -7, 42, 5, &number, &reported), DIBS_OK);
  assert_int_equal(number, -7);
  assert_int_equal(dibs__uri_number(&uri, "z", 0, 42, 5, &number, &reported), DIBS_OK);
  assert_int_equal(number, 5);
  assert_int_equal(dibs__uri_number(&uri, "a", 0, 41, 5, &number, &reported), DIBS_INVALID);
  assert_int_equal(number, 5);
  assert_string_equal(reported.text, "a of the store URI is not a number from 0 to 41");
  assert_int_equal(dibs__uri_number(&uri, "a", 43, 50, 5, &number, &reported), DIBS_INVALID);
  for (const char *key = "cdefghij"; *key; key++)
    assert_int_equal(dibs__uri_number(&uri, (char[]){*key, '\0'}, INT64_MIN, INT64_MAX, 0, &number, &reported),
                     DIBS_INVALID);
  dibs__uri_free(&uri);
}

static void an_unknown_parameter_lists_the_known_ones(void **state) {
  (void)state;
  static const char *const engine[] = {"mode", "cache", NULL}, *const trace[] = {"trace.file", NULL};
  static const char *const none[] = {NULL};
  struct dibs__uri uri;
  struct dibs__result reported = {.text = ""};
  assert_int_equal(dibs__uri_parse("trace+fault+m:?mode=1&trace.file=f&fault.x=1", &uri, &reported), DIBS_OK);
  assert_int_equal(dibs__uri_only(&uri, NULL, engine, &reported), DIBS_OK);
  assert_int_equal(dibs__uri_only(&uri, "trace", trace, &reported), DIBS_OK);
  assert_int_equal(dibs__uri_only(&uri, "fault", trace, &reported), DIBS_INVALID);
  assert_string_equal(reported.text, "fault has no parameter fault.x; it has trace.file");
  assert_int_equal(dibs__uri_only(&uri, "trace", none, &reported), DIBS_INVALID);
  assert_string_equal(reported.text, "trace has no parameters, and trace.file was given");
  dibs__uri_free(&uri);
  assert_int_equal(dibs__uri_parse("m:?mode=1&moed=2", &uri, &reported), DIBS_OK);
  assert_int_equal(dibs__uri_only(&uri, NULL, engine, &reported), DIBS_INVALID);
  assert_string_equal(reported.text, "m has no parameter moed; it has mode, cache");
  dibs__uri_free(&uri);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(valid_uris_are_parsed),
      cmocka_unit_test(invalid_uris_are_refused_with_the_position),
      cmocka_unit_test(bounds_are_exact),
      cmocka_unit_test(numbers_are_within_their_bounds),
      cmocka_unit_test(an_unknown_parameter_lists_the_known_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
