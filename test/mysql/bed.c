/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <stdio.h>
#include <string.h>

const char *bed_uri;

void bed_make(struct bed *b, const char *uri) {
  memset(b, 0, sizeof *b);
  assert_int_equal(dibs__uri_parse(uri, &b->uri, &b->reported), DIBS_OK);
  b->store.engine = &dibs__mysql_engine;
  b->store.options.lock_timeout_ms = 1000;
  b->store.options.connect_timeout_ms = LONG_MS;
  snprintf(b->store.options.prefix, sizeof b->store.options.prefix, "dibs_");
  snprintf(b->store.shown, sizeof b->store.shown, "%s", b->uri.shown);
  dibs__status status = dibs__mysql_prepare(&b->uri, &b->store, &b->store.location, &b->reported);
  if (status != DIBS_OK) print_error("%s\n", b->reported.text);
  assert_int_equal(status, DIBS_OK);
}

void bed_drop(struct bed *b) {
  dibs__mysql_forget(b->store.location);
  dibs__uri_free(&b->uri);
}

const char *bed_with(const char *more) {
  static char text[1024];
  snprintf(text, sizeof text, "%s%c%s", bed_uri, strchr(bed_uri, '?') ? '&' : '?', more);
  return text;
}

struct dibs__sql_wire *bed_connect(struct bed *b) {
  struct dibs__sql_wire *wire;
  dibs__status status =
      dibs__mysql_connect(&b->store, dibs__tick_add_ms(dibs__tick_now(), LONG_MS), &wire, &b->reported);
  if (status != DIBS_OK) print_error("%s\n", b->reported.text);
  assert_int_equal(status, DIBS_OK);
  wire->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  return wire;
}

void put(struct dibs__sql_wire *w, const char *text) {
  assert_int_equal(w->engine->put(w, text, NULL, 0), DIBS__SQL_OK);
}

void run(struct dibs__sql_wire *w, const char *text) {
  put(w, text);
  enum dibs__sql_rc end = w->engine->go(w, false);
  if (end != DIBS__SQL_OK) print_error("%s: %s\n", text, w->message);
  assert_int_equal(end, DIBS__SQL_OK);
}

void breaks(struct dibs__sql_wire *w, enum dibs__sql_trouble trouble) {
  assert_int_equal(w->engine->go(w, false), DIBS__SQL_FAILED);
  if (w->trouble != trouble) print_error("%s\n", w->message);
  assert_int_equal(w->trouble, trouble);
}

int64_t number(struct dibs__sql_wire *w, size_t nth, size_t row, size_t column) {
  return w->engine->cell(w, nth, row, column, DIBS__SQL_NUMBER).number;
}
