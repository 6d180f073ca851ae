/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_STEPS_BED_H
#define DIBS_TEST_MONGODB_STEPS_BED_H
/* A client that ends at one of its requests (wire.h), and another client, which does not. */
#include "drivers/mongodb/mongodb_impl.h"
#include "wire.h"

enum { PATIENCE_MS = 20000 };

/* Two claims stay inside of a stock's document, so that others are moved out. */
struct bed_client {
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
};

extern struct bed {
  const char *server; /* its URI; set by main() */
  char host[64], database[64], prefix[40];
  uint16_t port;
  struct wire *wire;
  struct bed_client other;
  /* Of the present play: at which request the client ends, and how; it has ended, or is stopped there. */
  enum wire_end how;
  int step;
  bool ended;
} bed;

/* Before and after all cases. */
int bed_open(void **state);
int bed_close(void **state);

/* One operation.  `result` may be NULL. */
dibs__status bed_run(const struct bed_client *c, struct dibs__op *op, struct dibs__result *result);

/* A play, with `user`. */
struct bed_scene {
  void (*begin)(void *user);
  void (*act)(const struct bed_client *c, void *user); /* the client that ends, in a thread of its own */
  void (*next)(void *user);                            /* then another client; what was stopped continues after that */
  void (*check)(void *user);
  void *user;
};
/* Plays it with a client that ends at its first request, then with a client that ends at its second one, and so on,
 * until a client sends fewer requests.  That must be in a play from number `least` to number `most` - 1. */
void bed_end_at_each(enum wire_end how, int least, int most, const struct bed_scene *scene);

/* The program of a test with two cases: a client is killed after each step, or stopped at each step and continues.
 * `play_all` plays all scenes with a client that ends like this. */
int bed_main(int argc, char **argv, const char *name, void (*play_all)(enum wire_end how));

#endif
