/* SPDX-License-Identifier: MIT */
#include "serve/turn.h"
#include "base/map.h"
#include "base/text.h"
#include "handle/handle.h"
#include "lease/lease.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_MS = 2000 };

struct ids {
  struct dibs__map lines; /* by id */
  struct line *held;
};

/* The requests with one id, in their order.  The first one is being done, the others wait.  A line is held while the
 * end of a handle with the id is on its way to the store: of a client that left, for instance, and sends its request
 * again. */
struct line {
  struct dibs__map_node by_id;
  char id[33];
  struct turn *first, *last;
  struct line *held_next;
  dibs__tick held_until; /* zero: it is not held */
};

/* ---- One request of an id at a time ---- */

static uint64_t hash_of(const char *id) {
  return dibs__hash(id, 32);
}

static struct line *find_line(const struct server *server, const char *id) {
  uint64_t hash = hash_of(id);
  for (struct dibs__map_node *node = dibs__map_head(&server->ids->lines, hash); node; node = node->next)
    if (node->hash == hash && memcmp(((struct line *)node)->id, id, 32) == 0) return (struct line *)node;
  return NULL;
}

static struct line *make_line(struct server *server, const char *id) {
  struct line *line = calloc(1, sizeof *line);
  if (!line) return NULL;
  memcpy(line->id, id, sizeof line->id);
  dibs__map_add(&server->ids->lines, &line->by_id, hash_of(id));
  return line;
}

static void free_line(struct server *server, struct line *line) {
  dibs__map_remove(&server->ids->lines, &line->by_id);
  free(line);
}

bool dibs__turns_open(struct server *server) {
  server->ids = calloc(1, sizeof *server->ids);
  return server->ids && dibs__map_init(&server->ids->lines);
}

void dibs__turns_close(struct server *server) {
  if (!server->ids) return;
  for (struct line *line = server->ids->held, *next; line; line = next) {
    next = line->held_next;
    free_line(server, line); /* those that waited were answered */
  }
  dibs__map_free(&server->ids->lines);
  free(server->ids);
}

static void join_line(struct line *line, struct turn *turn) {
  turn->line = line;
  turn->before = line->last;
  if (line->last)
    line->last->after = turn;
  else
    line->first = turn;
  line->last = turn;
}

/* Its request was answered, or is about to be. */
static void free_turn(struct turn *turn) {
  struct line *line = turn->line;
  if (turn->before)
    turn->before->after = turn->after;
  else
    line->first = turn->after;
  if (turn->after)
    turn->after->before = turn->before;
  else
    line->last = turn->before;
  turn->request->work = NULL;
  free(turn);
}

/* The client of a waiting request has left. */
static void leave_line(struct request *r) {
  free_turn(r->work);
  dibs__answer_problem(r, DIBS_CANCELLED, NULL);
}

static void hold(struct server *server, struct line *line) {
  line->held_until = dibs__tick_add_ms(dibs__tick_now(), HELD_MS);
  line->held_next = server->ids->held;
  server->ids->held = line;
  dibs__wait_begin(line->first->request, leave_line);
}

/* A loop: when the store is closing, thousands may end at once. */
static void begin_first(struct server *server, struct line *line) {
  while (line->first) {
    struct turn *turn = line->first;
    dibs__wait_end(turn->request);
    turn->held = false;
    if (turn->request->left) { /* one of several whose waits the loop ends */
      leave_line(turn->request);
      continue;
    }
    if (turn->begin(turn)) return;
    if (turn->held) {
      hold(server, line);
      return;
    }
    free_turn(turn);
  }
  free_line(server, line);
}

/* Has the end arrived that the line is held for?  Its request is answered in any case after HELD_MS. */
static bool may_go_on(struct server *server, struct line *line, dibs__tick now) {
  struct turn *turn = line->first;
  if (!turn || !dibs__lease_ends(server->store, turn->name, line->id)) return true;
  turn->was_held = !dibs__tick_before(now, line->held_until);
  return turn->was_held;
}

void dibs__turns_tick(struct server *server, dibs__tick now) {
  struct line *held = server->ids->held;
  server->ids->held = NULL;
  for (struct line *line = held, *next; line; line = next) {
    next = line->held_next;
    if (may_go_on(server, line, now)) {
      line->held_until = DIBS__TICK_ZERO;
      begin_first(server, line);
    } else {
      line->held_next = server->ids->held;
      server->ids->held = line;
    }
  }
}

bool dibs__turns_held(const struct server *server) {
  return server->ids->held != NULL;
}

void dibs__turn_take(struct request *r, const char *name, const char *id, bool (*begin)(struct turn *turn)) {
  uint8_t bytes[16];
  char lower[33];
  (void)dibs__hex_read(id, bytes); /* checked; either case is the same id */
  dibs__hex_write(bytes, lower);
  struct line *line = find_line(r->server, lower);
  if (line && !dibs__may_wait(r)) return;
  struct turn *turn = calloc(1, sizeof *turn);
  if (turn && !line) line = make_line(r->server, lower);
  if (!turn || !line) {
    free(turn);
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  turn->request = r;
  turn->name = name;
  turn->id = line->id;
  turn->begin = begin;
  r->work = turn;
  join_line(line, turn);
  if (line->first == turn && line->held_until.ns == 0)
    begin_first(r->server, line);
  else
    dibs__wait_begin(r, leave_line);
}

void dibs__turn_end(struct turn *turn) {
  struct server *server = turn->request->server;
  struct line *line = turn->line;
  free_turn(turn);
  begin_first(server, line);
}

bool dibs__turn_refuse(struct turn *turn, dibs_status status, const dibs_error *error) {
  struct request *r = turn->request;
  if (status == DIBS_HELD)
    dibs__answer_refuse(r, 409, "held", "\"%s\" is held by somebody else; send a `wait`, or see the holder with a GET",
                        turn->name);
  else if (status == DIBS_TIMEOUT)
    dibs__answer_refuse(r, 409, "timeout", "\"%s\" was not free within the wait; see the holder with a GET",
                        turn->name);
  else
    dibs__answer_problem(r, status, error);
  dibs_lease_free(turn->lease);
  return false;
}

void dibs__turn_fail(struct turn *turn, dibs_status status, const dibs_error *error) {
  (void)dibs__turn_refuse(turn, status, error);
  dibs__turn_end(turn);
}

/* ---- The handle ---- */

bool dibs__turn_adopt(struct turn *turn, uint64_t fence, int64_t ttl_ms) {
  dibs_store *store = turn->request->server->store;
  dibs_error error = {0};
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW, .ttl_ms = ttl_ms};
  dibs_fence known = {fence};
  dibs_status status = dibs_lease_adopt(store, turn->name, turn->id, known, &options, &turn->lease, &error);
  bool ends = status == DIBS_INVALID && dibs__lease_ends(store, turn->name, turn->id);
  if (status == DIBS_INVALID && !ends) /* the end may have arrived in between */
    status = dibs_lease_adopt(store, turn->name, turn->id, known, &options, &turn->lease, &error);
  if (ends) {
    turn->held = !turn->was_held;
    if (turn->held) return false;
    status = dibs__fail(&error, DIBS_UNAVAILABLE,
                        "\"%s\": the end of an earlier request with this id is on its way to the store; repeat the"
                        " request",
                        turn->name);
  }
  return status == DIBS_OK || dibs__turn_refuse(turn, status, &error);
}

void dibs__turn_let_go(dibs_lease *lease) {
  if (dibs_lease_detach(lease, NULL) != DIBS_OK) return; /* it is lost: nothing is left to release */
}
