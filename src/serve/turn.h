/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TURN_H
#define DIBS_SERVE_TURN_H
/*
 * Requests about one lease, by its id.  In one process an id has one handle at a time, so requests with one id are done
 * one after the other, in their order: a POST that is repeated while the first one still waits is answered after it,
 * and finds its grant.
 *
 * A lease belongs to the caller that has its id, not to this daemon: between requests the daemon has no handle of it.
 */
#include "serve/server.h"

struct line;

/* What a request does with an id. */
struct turn {
  struct request *request;
  struct line *line;
  struct turn *before, *after;
  const char *name; /* of the lease */
  const char *id;   /* 32 digits, in small letters */
  /* Does what the request wants.  true: dibs__turn_end will be called; false: it could not begin, and was answered, or
   * is held. */
  bool (*begin)(struct turn *turn);
  dibs_lease *lease; /* `begin` makes it */
  bool held;         /* until the end of an earlier handle with the id has reached the store; then it begins again */
  bool was_held;     /* long enough */
};

/* Calls `begin` when it is the request's turn, now or later.  `name` must live as long as the request. */
void dibs__turn_take(struct request *r, const char *name, const char *id, bool (*begin)(struct turn *turn));
/* The request was answered, and its handle is free.  The next one begins. */
void dibs__turn_end(struct turn *turn);
/* For `begin`: answers with a problem, frees the handle, and returns false. */
bool dibs__turn_refuse(struct turn *turn, dibs_status status, const dibs_error *error);
/* The same after `begin`, and ends the turn. */
void dibs__turn_fail(struct turn *turn, dibs_status status, const dibs_error *error);
/* For `begin`: makes the handle for the lease with the id.  `fence` 0: it is not known.  false: the request was
 * answered, or is held. */
bool dibs__turn_adopt(struct turn *turn, uint64_t fence, int64_t ttl_ms);
/* The lease stays with the callers that have its id; the handle is to be freed. */
void dibs__turn_let_go(dibs_lease *lease);

#endif
