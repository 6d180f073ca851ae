/* SPDX-License-Identifier: MIT */
#include "serve/page.h"

#include <stdlib.h>
#include <string.h>

void dibs__rows_begin(struct request *r, struct page_rows *rows, const char *name, int64_t limit) {
  *rows = (struct page_rows){.json = dibs__answer_begin(r, 200), .limit = dibs__page_limit(r, limit)};
  dibs__json_open(rows->json, NULL, '{');
  dibs__json_open(rows->json, name, '[');
}

bool dibs__rows_add(struct page_rows *rows, const char *key_name, const char *key) {
  rows->more = rows->count == rows->limit;
  if (rows->more) return false;
  if (++rows->count == rows->limit) rows->last = strdup(key);
  dibs__json_open(rows->json, NULL, '{');
  dibs__json_text(rows->json, key_name, key);
  return true;
}

void dibs__rows_end(struct request *r, struct page_rows *rows, dibs_status status, const dibs_error *error) {
  if (status == DIBS_OK && rows->more && !rows->last) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) {
    dibs__json_close(rows->json, ']');
    dibs__json_text(rows->json, "next", rows->more ? rows->last : NULL);
    dibs__json_close(rows->json, '}');
  } else {
    dibs__answer_problem(r, status, error);
  }
  free(rows->last);
}
