/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_PAGE_H
#define DIBS_SERVE_PAGE_H
/*
 * Lists come in pages: the caller says behind what a page begins and how long it may be, and the answer's `next` is the
 * `after` of the next page, or null.  Nothing is counted, so a page of a large store costs as much as one of a small
 * store.
 */
#include "serve/field.h"
#include "serve/server.h"

enum {
  PAGE_DEFAULT = 100,
  PAGE_MOST = 10000 /* of --page: some MiB of JSON in the memory of the daemon */
};

struct page {
  const char *prefix, *after;
  int64_t limit;
};

#define PAGE_LIMIT(at_)                                                                                                \
  {                                                                                                                    \
    .name = "limit", .place = FIELD_QUERY, .kind = FIELD_NUMBER, .at = (at_), .least = 1, .most = PAGE_MOST,           \
    .help =                                                                                                            \
        "how many entries the page may have; 100 if it is not given.  A page has no more than the daemon's --page, "   \
        "1000: see `next`"                                                                                             \
  }

#define PREFIX_FIELD(at_)                                                                                              \
  {                                                                                                                    \
    .name = "prefix", .place = FIELD_QUERY, .at = (at_) + offsetof(struct page, prefix), .most = DIBS_NAME_MAX,        \
    .help = "only names that begin so"                                                                                 \
  }
#define AFTER_FIELD(at_, most_)                                                                                        \
  {                                                                                                                    \
    .name = "after", .place = FIELD_QUERY, .at = (at_) + offsetof(struct page, after), .most = (most_),                \
    .help = "only names after this one: the `next` of the page before"                                                 \
  }
#define PAGE_FIELDS(at_)                                                                                               \
  PREFIX_FIELD(at_), AFTER_FIELD(at_, DIBS_NAME_MAX), PAGE_LIMIT((at_) + offsetof(struct page, limit))

static inline size_t dibs__page_limit(const struct request *r, int64_t limit) {
  size_t wanted = limit == FIELD_UNSET ? PAGE_DEFAULT : (size_t)limit, most = r->server->config.page;
  return wanted < most ? wanted : most;
}

/* A page that is being written: {NAME: [ROW, ...], "next": KEY}.  The caller lists one row more than `limit` says, or
 * stops when dibs__rows_add answers false: that row tells that there is another page. */
struct page_rows {
  struct dibs__json *json;
  size_t limit, count;
  bool more;
  char *last; /* key of a full page; malloc'd: a row that was written by SQL may have a long key */
};

void dibs__rows_begin(struct request *r, struct page_rows *rows, const char *name, int64_t limit);
/* Opens a row with its key; the caller writes the rest and closes it.  false: the page is full. */
bool dibs__rows_add(struct page_rows *rows, const char *key_name, const char *key);
/* `status`: how the listing ended. */
void dibs__rows_end(struct request *r, struct page_rows *rows, dibs_status status, const dibs_error *error);

#endif
